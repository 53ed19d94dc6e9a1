//! How expressions are spelt in a workspace: `{{ … }}` inside texts, and names with hyphens that are not subtractions.

/// `steps.check-and-set` and `headers.X-Id` are read as names, not as subtractions; headers of the request have no case.
pub(super) fn spelt_out(expr: &str) -> String {
    let mut spelt = String::with_capacity(expr.len());
    let mut copied = 0;
    for place in names_after(expr, &["steps", "headers"]) {
        let root = &expr[..place.dot];
        let of_request = root.strip_suffix("headers").is_some_and(|before| !before.ends_with('.'));
        let of_request = of_request || root.ends_with("request.headers");
        let name = &expr[place.name.clone()];
        let meant = if of_request { name.to_ascii_lowercase() } else { name.to_string() };
        let is_identifier = !name.contains('-') && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_identifier || meant != name {
            spelt.push_str(&expr[copied..place.dot]);
            spelt.push_str(&format!("[\"{meant}\"]"));
            copied = place.name.end;
        }
    }
    spelt.push_str(&expr[copied..]);
    spelt
}

/// The names of the steps that an expression reads.
pub(super) fn steps_in_expr(expr: &str) -> Vec<String> {
    names_after(expr, &["steps"]).map(|place| expr[place.name].to_string()).collect()
}

/// The names of the steps that a text with templates reads.
pub(super) fn steps_in_template(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    in_templates(text, |inner| {
        names.extend(steps_in_expr(inner));
        String::new()
    });
    names
}

struct Place {
    dot: usize,
    name: std::ops::Range<usize>,
}

/// Where an expression says `root.NAME`, strings left out. Every byte that is looked at is ASCII.
fn names_after<'e>(expr: &'e str, roots: &'static [&'static str]) -> impl Iterator<Item = Place> + 'e {
    let bytes = expr.as_bytes();
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let end_of = move |from: usize, fits: &dyn Fn(&u8) -> bool| {
        from + bytes[from..].iter().position(|b| !fits(b)).unwrap_or(bytes.len() - from)
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(byte) = bytes.get(at) {
            if matches!(byte, b'"' | b'\'') {
                at = end_of_string(bytes, at);
            } else if is_word(byte) {
                let word_end = end_of(at, &is_word);
                let is_root = roots.iter().any(|root| root.as_bytes() == &bytes[at..word_end]);
                at = word_end;
                if is_root && bytes.get(at) == Some(&b'.') {
                    let name_end = end_of(at + 1, &|b| is_word(b) || *b == b'-');
                    let name = &expr[at + 1..name_end];
                    let name_end = at + 1 + name.trim_end_matches('-').len();
                    let place = Place { dot: at, name: at + 1..name_end };
                    at = name_end;
                    if !place.name.is_empty() {
                        return Some(place);
                    }
                }
            } else {
                at += 1;
            }
        }
        None
    })
}

fn end_of_string(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at = (at + 2).min(bytes.len()),
            byte if *byte == bytes[open] => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The text with `change` applied to the inside of every `{{ … }}`.
pub(super) fn in_templates(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    in_whole_templates(text, |whole| format!("{{{{{}}}}}", change(&whole[2..whole.len() - 2])))
}

pub(super) fn in_whole_templates(text: &str, mut change: impl FnMut(&str) -> String) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut copied = 0;
    for template in templates(text).filter(|template| text[template.clone()].ends_with("}}")) {
        changed.push_str(&text[copied..template.start]);
        changed.push_str(&change(&text[template.clone()]));
        copied = template.end;
    }
    changed.push_str(&text[copied..]);
    changed
}

/// Where `{{ … }}` is written; one that is never closed goes on to the end.
pub(super) fn templates(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let open = from + text[from..].find("{{")?;
        from = end_of_template(text.as_bytes(), open);
        Some(open..from)
    })
}

/// A `}}` in a string or of a map in the expression does not close it.
fn end_of_template(bytes: &[u8], open: usize) -> usize {
    let mut at = open + 2;
    let mut depth = 0usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => at = end_of_string(bytes, at),
            b'}' if depth == 0 && bytes.get(at + 1) == Some(&b'}') => return at + 2,
            b'(' | b'[' | b'{' => (at, depth) = (at + 1, depth + 1),
            b')' | b']' | b'}' => (at, depth) = (at + 1, depth.saturating_sub(1)),
            _ => at += 1,
        }
    }
    bytes.len()
}

/// How deep an expression nests brackets, strings left out.
pub(super) fn nesting(bytes: &[u8]) -> usize {
    let (mut at, mut depth, mut deepest) = (0, 0usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' | b'\'' => {
                at = end_of_string(bytes, at);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        at += 1;
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Expr;
    use crate::scope::Scope;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn c12_a_step_of_any_name_is_read_by_its_name(name in "[a-zA-Z0-9][a-zA-Z0-9_-]{0,12}[a-z0-9]", number in 0..100_i64) {
            let steps = json!({ name.clone(): {"output": {"n": number}} });
            let scope = Scope::from_iter([("steps", steps)]);
            let value = |text: &str| Expr::parse(&spelt_out(text)).expect("an expression").value(&scope);
            prop_assert_eq!(value(&format!("steps.{name}.output.n")), Ok(json!(number)));
            prop_assert_eq!(value(&format!("steps.{name}.output.n-1")), Ok(json!(number - 1)));
            prop_assert_eq!(value(&format!("(steps.{name}.output.n)- steps.{name}.output.n")), Ok(json!(0)));
            prop_assert_eq!(steps_in_expr(&format!("1-steps.{name}.output")), [name]);
        }
    }

    #[test]
    fn a_hyphen_in_the_name_of_a_step_or_a_header_is_part_of_it() {
        assert_eq!(spelt_out("steps.check-and-set.output.set == true"), "steps[\"check-and-set\"].output.set == true");
        assert_eq!(spelt_out("request.headers.X-Id"), "request.headers[\"x-id\"]");
        assert_eq!(spelt_out("headers.Traceparent"), "headers[\"traceparent\"]");
        assert_eq!(spelt_out("steps.a.output.headers.X-Id"), "steps.a.output.headers[\"X-Id\"]");
        assert_eq!(spelt_out("body.a-body.b"), "body.a-body.b");
        assert_eq!(spelt_out("'steps.a-b' ~ steps.x"), "'steps.a-b' ~ steps.x");
        assert_eq!(steps_in_template("steps.no {{ steps.a-b.output }} {{ mysteps.c }}"), ["a-b"]);
        assert_eq!(steps_in_template("{{ '}}' ~ {'a': {'b': 1}} ~ steps.x }} {{ steps.y"), ["x"]);
    }
}
