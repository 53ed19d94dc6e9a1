//! Values that a workspace computes: `{{ … }}` in texts, bare expressions after `if:` and `…_from:`.
//!
//! Total and bounded: no loops, no statements, fuel for the evaluation, a limit on what is written. A name that is not
//! there is an error that says which one is near, never an empty text.

use crate::dedup;
use crate::missing;
use crate::scope::Scope;
use minijinja::{Environment, UndefinedBehavior};
use serde_json::Value;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::LazyLock;

pub const FUEL_MAX: u64 = 10_000;
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadExpr(pub String);

static LANGUAGE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut language = Environment::new();
    language.set_undefined_behavior(UndefinedBehavior::Strict);
    language.set_fuel(Some(FUEL_MAX));
    language.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    language.set_formatter(|out, _, value| {
        if value.is_undefined() {
            return Err(minijinja::Error::new(minijinja::ErrorKind::UndefinedError, "a value that is not there"));
        }
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&serde_json::to_string(value).map_err(|e| {
                minijinja::Error::new(minijinja::ErrorKind::BadSerialization, "a value that JSON cannot hold")
                    .with_source(e)
            })?)?,
        }
        Ok(())
    });
    language.add_filter("bucket", bucket);
    language
});

/// `{{ body.at | bucket(5) }}`: when the stretch of so many minutes began that the moment is in.
fn bucket(value: minijinja::Value, minutes: u32) -> Result<String, minijinja::Error> {
    let bad = || minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, "neither a moment nor minutes");
    let value = serde_json::to_value(&value).map_err(|_| bad())?;
    let minutes =
        NonZeroU32::new(minutes).filter(|minutes| minutes.get() <= dedup::BUCKET_MINUTES_MAX).ok_or_else(bad)?;
    dedup::bucket_of(&value, minutes).map(|began| began.to_string()).ok_or_else(bad)
}

/// Says what is wrong without repeating values of the event.
fn explain(error: &minijinja::Error, source: &str, scope: &Scope) -> BadExpr {
    let what = match error.kind() {
        minijinja::ErrorKind::UndefinedError => missing::said(source, scope),
        minijinja::ErrorKind::OutOfFuel => "it takes too long to compute".to_string(),
        minijinja::ErrorKind::SyntaxError => error.detail().unwrap_or("it cannot be read").to_string(),
        kind => kind.to_string(),
    };
    BadExpr(format!("in `{source}`: {what}"))
}

/// One expression, such as `body.amount > 100` or `body.customer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr(String);

impl Expr {
    /// Also takes the spelling `{{ … }}`.
    pub fn parse(text: &str) -> Result<Expr, BadExpr> {
        let text = text.trim();
        let inner = whole_expression(text).unwrap_or(text).trim();
        if inner.is_empty() {
            return Err(BadExpr("an expression is missing".into()));
        }
        LANGUAGE.compile_expression_owned(inner.to_string()).map_err(|error| explain(&error, inner, &Scope::new()))?;
        Ok(Expr(inner.to_string()))
    }

    pub fn source(&self) -> &str {
        &self.0
    }

    /// The first names of every path it reads: `body`, `steps`, `secrets` …
    pub fn roots(&self) -> BTreeSet<String> {
        match LANGUAGE.compile_expression_owned(self.0.clone()) {
            Ok(compiled) => compiled.undeclared_variables(false).into_iter().collect(),
            Err(_) => BTreeSet::new(),
        }
    }

    pub fn value(&self, scope: &Scope) -> Result<Value, BadExpr> {
        let bad = |error: minijinja::Error| explain(&error, &self.0, scope);
        let value = LANGUAGE.compile_expression(&self.0).map_err(bad)?.eval(scope.ready()).map_err(bad)?;
        if value.is_undefined() {
            return Err(BadExpr(format!("in `{}`: {}", self.0, missing::said(&self.0, scope))));
        }
        let value = serde_json::to_value(&value).map_err(|_| BadExpr(format!("`{}` is not a JSON value", self.0)))?;
        bounded(value, &self.0)
    }

    /// The value as a condition; only `true` and `false` will do.
    pub fn holds(&self, scope: &Scope) -> Result<bool, BadExpr> {
        match self.value(scope)? {
            Value::Bool(holds) => Ok(holds),
            _ => Err(BadExpr(format!("`{}` is neither true nor false; compare it with something", self.0))),
        }
    }
}

fn bounded(value: Value, source: &str) -> Result<Value, BadExpr> {
    let size = |value: &Value| serde_json::to_string(value).map_or(usize::MAX, |text| text.len());
    match &value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value),
        Value::String(text) if text.len() <= OUTPUT_BYTES_MAX => Ok(value),
        Value::Array(_) | Value::Object(_) if size(&value) <= OUTPUT_BYTES_MAX => Ok(value),
        _ => Err(BadExpr(format!("`{source}` is longer than {OUTPUT_BYTES_MAX} bytes"))),
    }
}

fn whole_expression(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("{{")?.strip_suffix("}}")?;
    (!inner.contains("{{") && !inner.contains("}}")).then_some(inner)
}

/// Text with `{{ … }}` in it; most have none and cost nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    Plain(String),
    Mixed(String),
}

impl Template {
    /// As it stands in the file.
    pub fn written(&self) -> &str {
        match self {
            Template::Plain(text) | Template::Mixed(text) => text,
        }
    }

    /// `${secrets.NAME}` is the same as `{{ secrets.NAME }}`.
    pub fn parse(text: &str) -> Result<Template, BadExpr> {
        let text = with_secrets_spelt_out(text)?;
        if text.contains("{%") || text.contains("{#") {
            return Err(BadExpr("only `{{ … }}` is known here; `{% … %}` and `{# … #}` are not".into()));
        }
        if !text.contains("{{") {
            return Ok(Template::Plain(text));
        }
        LANGUAGE.template_from_named_str("", &text).map_err(|error| explain(&error, &text, &Scope::new()))?;
        Ok(Template::Mixed(text))
    }

    pub fn roots(&self) -> BTreeSet<String> {
        let Template::Mixed(text) = self else {
            return BTreeSet::new();
        };
        match LANGUAGE.template_from_named_str("", text) {
            Ok(compiled) => compiled.undeclared_variables(false).into_iter().collect(),
            Err(_) => BTreeSet::new(),
        }
    }

    /// The names of the secrets it reads.
    pub fn secrets(&self) -> BTreeSet<String> {
        let Template::Mixed(text) = self else {
            return BTreeSet::new();
        };
        match LANGUAGE.template_from_named_str("", text) {
            Ok(compiled) => {
                let paths = compiled.undeclared_variables(true);
                paths.iter().filter_map(|path| path.strip_prefix("secrets.")).map(str::to_string).collect()
            }
            Err(_) => BTreeSet::new(),
        }
    }

    pub fn text(&self, scope: &Scope) -> Result<String, BadExpr> {
        let text = match self {
            Template::Plain(text) => return Ok(text.clone()),
            Template::Mixed(text) => text,
        };
        let bad = |error: minijinja::Error| explain(&error, text, scope);
        let written = LANGUAGE.template_from_named_str("", text).map_err(bad)?.render(scope.ready()).map_err(bad)?;
        if written.len() > OUTPUT_BYTES_MAX {
            return Err(BadExpr(format!("`{text}` writes more than {OUTPUT_BYTES_MAX} bytes")));
        }
        Ok(written)
    }
}

fn with_secrets_spelt_out(text: &str) -> Result<String, BadExpr> {
    let mut spelt = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        spelt.push_str(&rest[..at]);
        let end = rest[at..].find('}').ok_or_else(|| BadExpr("`${` is never closed with `}`".into()))?;
        let name = rest[at + 2..at + end].trim();
        if !name.starts_with("secrets.") {
            return Err(BadExpr(format!(
                "`${{{name}}}` is not known; write `${{secrets.NAME}}` or `{{{{ {name} }}}}`"
            )));
        }
        spelt.push_str("{{ ");
        spelt.push_str(name);
        spelt.push_str(" }}");
        rest = &rest[at + end + 1..];
    }
    spelt.push_str(rest);
    Ok(spelt)
}

/// A tree as YAML writes it, with templates in its strings. A string that is one `{{ … }}` keeps the type of its value.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    Value(Value),
    Expr(Expr),
    Text(Template),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    pub fn text(text: &str) -> Result<Tree, BadExpr> {
        Ok(match Template::parse(text)? {
            Template::Plain(plain) => Tree::Value(Value::String(plain)),
            Template::Mixed(mixed) => match whole_expression(mixed.trim()) {
                Some(inner) => Tree::Expr(Expr::parse(inner)?),
                None => Tree::Text(Template::Mixed(mixed)),
            },
        })
    }

    pub fn value(&self, scope: &Scope) -> Result<Value, BadExpr> {
        Ok(match self {
            Tree::Value(value) => value.clone(),
            Tree::Expr(expr) => expr.value(scope)?,
            Tree::Text(template) => Value::String(template.text(scope)?),
            Tree::List(items) => Value::Array(items.iter().map(|item| item.value(scope)).collect::<Result<_, _>>()?),
            Tree::Map(fields) => {
                let fields = fields.iter().map(|(name, item)| Ok((name.clone(), item.value(scope)?)));
                Value::Object(fields.collect::<Result<_, BadExpr>>()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn scope() -> Scope {
        Scope::from_iter([
            ("body", json!({"email": "a@example.com", "amount": 120, "tags": ["x", "y"], "none": null})),
            ("secrets", json!({"TOKEN": "s3cret"})),
        ])
    }

    #[test]
    fn texts_take_values_and_json_spelling() {
        let check = |text: &str, written: &str| {
            assert_eq!(Template::parse(text).expect("a template").text(&scope()).as_deref(), Ok(written), "{text}");
        };
        check("plain", "plain");
        check("to {{ body.email }}", "to a@example.com");
        check("{{ body.tags }} {{ body.none }} {{ body.amount > 1 }}", r#"["x","y"] null true"#);
        check("Bearer ${secrets.TOKEN}", "Bearer s3cret");
        check("{{ body.missing | default('nobody') }}", "nobody");
    }

    #[test]
    fn a_name_that_is_not_there_is_an_error_that_repeats_no_value() {
        for text in ["{{ body.missing }}", "{{ nothing }}", "{{ body.email.deeper.still }}"] {
            let said = Template::parse(text).expect("a template").text(&scope()).expect_err("missing").to_string();
            assert!(!said.contains("a@example.com"), "{said}");
        }
        assert!(Expr::parse("body.missing").expect("an expression").value(&scope()).is_err());
    }

    #[test]
    fn a_value_alone_keeps_its_type() {
        let tree = Tree::Map(vec![
            ("amount".into(), Tree::text("{{ body.amount }}").expect("tree")),
            ("note".into(), Tree::text("{{ body.amount }} EUR").expect("tree")),
        ]);
        assert_eq!(tree.value(&scope()), Ok(json!({"amount": 120, "note": "120 EUR"})));
    }

    #[test]
    fn conditions_are_true_or_false_and_nothing_else() {
        assert_eq!(Expr::parse("{{ body.amount > 100 }}").expect("an expression").holds(&scope()), Ok(true));
        assert!(Expr::parse("body.amount").expect("an expression").holds(&scope()).is_err());
    }

    #[test]
    fn loops_statements_and_explosions_are_refused() {
        assert!(Template::parse("{% for x in body %}{% endfor %}").is_err());
        assert!(Template::parse("${env.HOME}").is_err());
        assert!(Template::parse("${secrets.X").is_err());
        let long = Expr::parse("'a' * 100000000").expect("an expression");
        assert!(long.value(&scope()).is_err());
        assert!(Expr::parse("").is_err());
    }

    #[test]
    fn what_a_template_reads_is_known_before_it_runs() {
        let template = Template::parse("{{ body.x }} ${secrets.TOKEN}").expect("a template");
        assert_eq!(template.secrets().into_iter().collect::<Vec<_>>(), ["TOKEN"]);
        assert!(template.roots().contains("body"));
    }

    /// Any value that JSON has.
    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e15..1e15_f64).prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let fields = prop::collection::btree_map("[a-z_]{1,6}", inner.clone(), 0..4);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::from),
                fields.prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// An expression as people write them, right or wrong.
    fn written() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "body.email",
            "body.amount",
            "body.tags",
            "body.none",
            "body.gone",
            "body.tags[0]",
            "body['email']",
            "body",
            "secrets.TOKEN",
            "nobody",
            "1",
            "0",
            "-1.5",
            "'a'",
            "\"b\"",
            "true",
            "none",
            "[1, 2]",
            "{'a': body.amount}",
        ]);
        leaf.prop_map(str::to_string).prop_recursive(4, 24, 3, |inner| {
            let operator = prop::sample::select(vec![
                "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in",
            ]);
            let filter = prop::sample::select(vec![
                "lower",
                "upper",
                "length",
                "default('x')",
                "first",
                "last",
                "trim",
                "int",
                "string",
                "join(',')",
                "sort",
                "replace('a', 'b')",
                "round",
                "tojson",
                "urlencode",
                "bucket(5)",
                "list",
                "reverse",
                "abs",
            ]);
            prop_oneof![
                (inner.clone(), operator, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
                (inner.clone(), filter).prop_map(|(a, filter)| format!("({a} | {filter})")),
                (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} if {b} else {c})")),
                (inner.clone(), inner).prop_map(|(a, b)| format!("{a}[{b}]")),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_text_makes_the_language_panic(text in "\\PC{0,60}") {
            if let Ok(template) = Template::parse(&text) {
                let _ = template.text(&scope());
            }
            if let Ok(expr) = Expr::parse(&text) {
                let _ = expr.value(&scope());
            }
        }

        #[test]
        fn c12_every_expression_has_a_value_or_an_error_always_the_same_and_never_tells_a_value(text in written()) {
            let expr = Expr::parse(&text).expect("it is well formed");
            let value = expr.value(&scope());
            prop_assert_eq!(&value, &expr.value(&scope()));
            match &value {
                Ok(value) => prop_assert!(value.to_string().len() <= OUTPUT_BYTES_MAX),
                Err(said) => prop_assert!(!said.0.contains("a@example.com") && !said.0.contains("s3cret"), "{}", said),
            }
            let holds = expr.holds(&scope());
            prop_assert_eq!(holds.is_ok(), matches!(value, Ok(Value::Bool(_))));
            let known = ["body", "secrets", "nobody"];
            prop_assert!(expr.roots().iter().all(|root| known.contains(&root.as_str())), "{:?}", expr.roots());
        }

        #[test]
        fn c12_a_value_comes_out_as_it_went_in(value in json_value()) {
            let scope = Scope::from_iter([("body", json!({"x": value.clone()}))]);
            let read = |text: &str| Tree::text(text).expect("a tree").value(&scope);
            prop_assert_eq!(read("{{ body.x }}"), Ok(value.clone()));
            prop_assert_eq!(read("{{ body['x'] | default('gone') }}"), Ok(value.clone()));
            prop_assert_eq!(read("{{ body.y | default(body.x) }}"), Ok(value.clone()));
            let text = Template::parse("<{{ body.x }}>").expect("a template").text(&scope);
            let spelt = value.as_str().map_or_else(|| value.to_string(), str::to_string);
            prop_assert_eq!(text, Ok(format!("<{spelt}>")));
        }

        #[test]
        fn c12_text_without_values_is_itself(text in "[^{}$]{0,60}") {
            prop_assert_eq!(Template::parse(&text).expect("plain").text(&Scope::new()), Ok(text));
        }
    }
}
