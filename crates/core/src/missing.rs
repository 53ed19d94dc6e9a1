//! A name that an expression reads and that is not there, and the one that was perhaps meant: names only, never values.

use crate::config::nearest::nearest;
use crate::scope::Scope;
use serde_json::Value;

/// Says it of an expression, or of a text with some in it.
pub(crate) fn said(source: &str, scope: &Scope) -> String {
    let lost = match source.contains("{{") {
        true => inside(source).flat_map(Paths::of).find_map(|path| lost(&path, scope)),
        false => Paths::of(source).find_map(|path| lost(&path, scope)),
    };
    match lost {
        Some((path, Some(meant))) => format!("`{path}` is not there; did you mean `{meant}`?"),
        Some((path, None)) => format!("`{path}` is not there"),
        None => "a name in it has no value here".to_string(),
    }
}

fn inside(text: &str) -> impl Iterator<Item = &str> {
    text.split("{{").skip(1).map(|rest| rest.split_once("}}").map_or(rest, |(inner, _)| inner))
}

/// The part of a path up to the name that is not there, and with the nearest name that is.
fn lost(path: &[String], scope: &Scope) -> Option<(String, Option<String>)> {
    let mut here: Option<&Value> = None;
    for (at, name) in path.iter().enumerate() {
        let found = match here {
            None => scope.get(name),
            Some(Value::Object(fields)) => fields.get(name),
            Some(Value::Array(items)) => name.parse().ok().and_then(|index: usize| items.get(index)),
            Some(_) => None,
        };
        if let Some(found) = found {
            here = Some(found);
            continue;
        }
        let known: Vec<&str> = match here {
            None => scope.names().collect(),
            Some(Value::Object(fields)) => fields.keys().map(String::as_str).collect(),
            Some(_) => Vec::new(),
        };
        let meant = nearest(name, known.into_iter().filter(|name| is_plain(name)))
            .map(|meant| [&path[..at], &[meant.to_string()]].concat());
        return Some((spelt(&path[..=at]), meant.map(|meant| spelt(&meant))));
    }
    None
}

/// A name that people chose; whatever else is the key of a map may be somebody's data.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && name.bytes().any(|b| !b.is_ascii_digit())
}

fn spelt(path: &[String]) -> String {
    path.join(".")
}

/// The paths that an expression reads, such as `body.customer.id` or `steps["a-b"].output`; not those with a default.
/// Only an error is told by them, so they need not know the whole language.
struct Paths<'s> {
    rest: &'s str,
    /// What stood before, spaces left out.
    before: Option<char>,
}

impl<'s> Paths<'s> {
    fn of(source: &'s str) -> Paths<'s> {
        Paths { rest: source, before: None }
    }

    fn string(&mut self, quote: char) -> &'s str {
        let inner = &self.rest[1..];
        let mut escaped = false;
        let end = inner.char_indices().find(|(_, c)| {
            let ends = *c == quote && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        let (inner, rest) = end.map_or((inner, ""), |(at, _)| (&inner[..at], &inner[at + 1..]));
        self.rest = rest;
        inner
    }

    fn word(&mut self) -> &'s str {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// The names after the first, as far as they are written out.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.word().to_string()];
        loop {
            let after =
                self.rest.strip_prefix('.').filter(|rest| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
            if let Some(rest) = after {
                self.rest = rest;
                path.push(self.word().to_string());
                continue;
            }
            let Some(inside) = self.rest.strip_prefix('[') else { return path };
            let mut ahead = Paths::of(inside);
            let name = match inside.chars().next() {
                Some(quote @ ('"' | '\'')) => ahead.string(quote),
                _ => ahead.word(),
            };
            let is_quoted = inside.starts_with(['"', '\'']);
            let Some(rest) = ahead.rest.strip_prefix(']') else { return path };
            if !is_quoted && !name.bytes().all(|b| b.is_ascii_digit()) {
                return path;
            }
            path.push(name.to_string());
            self.rest = rest;
        }
    }

    /// Whether what follows makes up for a value that is not there, or calls the path.
    fn is_excused(&self) -> bool {
        let rest = self.rest.trim_start();
        let words: Vec<&str> =
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).take(3).collect();
        let defaults = rest.starts_with('|') && matches!(words.first(), Some(&("default" | "d")));
        let asks = matches!(
            words.as_slice(),
            ["is", "defined" | "undefined", ..] | ["is", "not", "defined" | "undefined", ..]
        );
        defaults || (asks && rest.starts_with("is")) || rest.starts_with('(')
    }
}

impl Iterator for Paths<'_> {
    type Item = Vec<String>;

    fn next(&mut self) -> Option<Vec<String>> {
        /// Stands for the word `is` among what stood before.
        const IS: char = '\u{1}';
        const WORDS: &[&str] =
            &["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"];
        while let Some(c) = self.rest.chars().next() {
            match c {
                '"' | '\'' => _ = self.string(c),
                c if c.is_alphabetic() || c == '_' => {
                    // After `|` is a filter, after `.` a part of what was computed, after `is` a test.
                    let is_path = !matches!(self.before, Some('|' | '.' | IS));
                    let path = self.path();
                    let word = if path.len() == 1 { path[0].as_str() } else { "" };
                    self.before = if word == "is" || (word == "not" && !is_path) { Some(IS) } else { Some(c) };
                    if is_path && !WORDS.contains(&word) && !self.is_excused() {
                        return Some(path);
                    }
                    continue;
                }
                c if c.is_alphanumeric() => _ = self.word(),
                c => self.rest = &self.rest[c.len_utf8()..],
            }
            if !c.is_whitespace() {
                self.before = Some(c);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn scope() -> Scope {
        let body = json!({
            "email": "ada@leak.example", "customer": {"id": 7, "first-name": "Ada"}, "items": [{"sku": "x"}],
            "ada@leak.example": 1, "4711": 1,
        });
        Scope::from_iter([("body", body), ("steps", json!({"check-and-set": {"output": {"set": true}}}))])
    }

    fn check(source: &str, expected: &str) {
        assert_eq!(said(source, &scope()), expected, "{source}");
    }

    #[test]
    fn c12_a_missing_path_is_named_with_the_nearest_name() {
        check("body.emial", "`body.emial` is not there; did you mean `body.email`?");
        check("bdy.email", "`bdy` is not there; did you mean `body`?");
        check("body.customer.idd == 7", "`body.customer.idd` is not there; did you mean `body.customer.id`?");
        check("body[\"custmer\"].id", "`body.custmer` is not there; did you mean `body.customer`?");
        check("body.items[0].skuu", "`body.items.0.skuu` is not there; did you mean `body.items.0.sku`?");
        check("body.items[3].sku", "`body.items.3` is not there");
        check("body.email.domain", "`body.email.domain` is not there");
        check(
            "steps[\"check-and-set\"].output.sett",
            "`steps.check-and-set.output.sett` is not there; did you mean `steps.check-and-set.output.set`?",
        );
        check("body.colour", "`body.colour` is not there");
        check(
            "To {{ body.email }} from {{ body.customer.firstname }}",
            "`body.customer.firstname` is not there; did you mean `body.customer.first-name`?",
        );
    }

    #[test]
    fn c12_what_has_a_default_or_is_no_path_is_not_blamed() {
        check("body.plan | default('body.x') ~ body.emial", "`body.emial` is not there; did you mean `body.email`?");
        check("body.plan is defined and body.emial | lower", "`body.emial` is not there; did you mean `body.email`?");
        check(
            "body.plan is not defined or not true in body.customr.id",
            "`body.customr` is not there; did you mean `body.customer`?",
        );
        check("'bdy.x' ~ \"it's \\\" bdy\" ~ body.email", "a name in it has no value here");
        check("range(3) ~ 5.5 ~ body.email | upper", "a name in it has no value here");
    }

    #[test]
    fn p9_c12_no_value_and_no_name_that_may_be_data_is_repeated() {
        for source in ["body['ada@leak.exampl']", "body.ada", "body['4712']", "body.email.ada"] {
            let said = said(source, &scope());
            assert!(!said.contains("ada@leak.example") && !said.contains("4711"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn no_source_makes_it_panic(source in "[\\PC\"'.\\[\\]{}|\\\\ é]{0,60}") {
            let _ = said(&source, &scope());
        }

        #[test]
        fn a_path_that_is_there_is_never_blamed(names in prop::collection::vec("[a-z_]{1,8}", 1..5)) {
            let value = names.iter().rev().fold(json!(1), |inner, name| json!({ name: inner }));
            let scope = Scope::from_iter([("body", value)]);
            let source = format!("body.{}", names.join("."));
            prop_assert_eq!(said(&source, &scope), "a name in it has no value here");
            let longer = format!("{source}.more");
            let told = said(&longer, &scope);
            prop_assert!(told.starts_with(&format!("`{longer}` is not there")), "{told}");
        }
    }
}
