//! A JSON Schema (draft 2020-12): what a payload must look like. Read once; it fetches nothing and opens no file.

use crate::config::Span;
use crate::pointer::escaped;
use crate::raw;
use jsonschema::error::ValidationErrorKind;
use jsonschema::paths::LocationSegment;
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;

/// A mismatch is told with at most this many places.
pub const MISMATCHES_MAX: usize = 10;
const RULE_CHARS_MAX: usize = 80;
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

pub struct Schema {
    validator: Validator,
    source: Value,
    /// Names that the schema itself uses. Only these are repeated in a message: any other is a sender's, and may be data.
    names: HashSet<String>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({} names)", self.names.len())
    }
}

/// Why a file is no schema, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct BadSchema {
    pub span: Span,
    pub why: String,
}

/// A place in a payload and the rule that it breaks; never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// A JSON pointer; empty for the payload as a whole. A name that the schema does not know is shown as `*`.
    pub pointer: String,
    /// As the schema says it: `type: "string"`, `required: "email"`.
    pub rule: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.pointer.is_empty() { "/" } else { &self.pointer };
        write!(f, "{place} breaks {}", self.rule)
    }
}

/// Not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatches {
    pub first: Vec<Mismatch>,
    /// Whether there are more than are told.
    pub more: bool,
}

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mismatch) in self.first.iter().enumerate() {
            write!(f, "{}{mismatch}", if at == 0 { "" } else { "; " })?;
        }
        f.write_str(if self.more { "; and more" } else { "" })
    }
}

impl Schema {
    pub fn read(text: &str) -> Result<Self, BadSchema> {
        let source: Value = serde_json::from_str(text).map_err(|error| {
            let at = offset(text, error.line(), error.column());
            BadSchema { span: Span::new(at, text.len().min(at + 1)), why: format!("this is not JSON: {error}") }
        })?;
        let bad = |pointer: &str, why: String| BadSchema { span: place(text, pointer), why };
        if let Some(draft) = source.get("$schema").filter(|draft| draft.as_str().map(trimmed) != Some(DRAFT)) {
            return Err(bad("/$schema", format!("{draft} is another draft of JSON Schema; write \"{DRAFT}\"")));
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false)
            // Without look-around, and in time that grows only with the text.
            .with_pattern_options(PatternOptions::regex())
            .build(&source)
            .map_err(|error| bad(error.instance_path().as_str(), why(&error.to_string())))?;
        let mut names = HashSet::new();
        collect_names(&source, &mut names);
        Ok(Schema { validator, source, names })
    }

    pub fn check(&self, payload: &Value) -> Result<(), Mismatches> {
        if self.validator.is_valid(payload) {
            return Ok(());
        }
        let mut errors = self.validator.iter_errors(payload);
        let first: Vec<Mismatch> = errors.by_ref().take(MISMATCHES_MAX).map(|error| self.mismatch(&error)).collect();
        Err(Mismatches { first, more: errors.next().is_some() })
    }

    fn mismatch(&self, error: &jsonschema::ValidationError<'_>) -> Mismatch {
        let pointer = error.instance_path().segments().map(|segment| match segment {
            LocationSegment::Index(at) => format!("/{at}"),
            LocationSegment::Property(name) if self.names.contains(&*name) => {
                format!("/{}", escaped(&name))
            }
            LocationSegment::Property(_) => "/*".to_string(),
        });
        let (pointer, keyword) = (pointer.collect(), error.kind().keyword());
        let rule = match error.kind() {
            ValidationErrorKind::Required { property } => short(keyword, Some(property)),
            _ => short(keyword, self.source.pointer(error.schema_path().as_str())),
        };
        Mismatch { pointer, rule }
    }
}

/// The keyword, with what the schema writes behind it where that is short.
fn short(keyword: &str, written: Option<&Value>) -> String {
    match written.map(Value::to_string) {
        Some(text) if text.chars().count() <= RULE_CHARS_MAX => format!("{keyword}: {text}"),
        _ => keyword.to_string(),
    }
}

fn trimmed(draft: &str) -> &str {
    draft.trim_end_matches('#')
}

fn why(said: &str) -> String {
    let said: String = said.chars().take(200).collect();
    format!("this is not a valid schema: {said}")
}

fn collect_names(schema: &Value, names: &mut HashSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (keyword, inner) in fields {
                if let ("properties", Value::Object(properties)) = (keyword.as_str(), inner) {
                    names.extend(properties.keys().cloned());
                }
                collect_names(inner, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_names(item, names)),
        _ => {}
    }
}

/// Where in the file the value at this pointer stands.
fn place(text: &str, pointer: &str) -> Span {
    let Some(mut found) = raw::parse(text.as_bytes()) else { return Span::default() };
    for part in pointer.split('/').skip(1) {
        match member(found, part) {
            Some(below) => found = below,
            None => break,
        }
    }
    // A raw value is a part of the text it was read from.
    let start = found.get().as_ptr() as usize - text.as_ptr() as usize;
    Span::new(start, start + found.get().len())
}

fn member<'a>(raw: &'a RawValue, part: &str) -> Option<&'a RawValue> {
    let mut found = None;
    let _ = raw::each(raw, |name, value| {
        if escaped(name) == part {
            found = Some(value);
        }
        ControlFlow::Continue(())
    });
    found
}

fn offset(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    text.floor_char_boundary(before + column.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const ORDER: &str = r##"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["id", "customer"],
  "properties": {
    "id": { "type": "integer", "minimum": 1 },
    "customer": { "$ref": "#/$defs/customer" },
    "plan": { "enum": ["free", "pro"] },
    "code": { "type": "string", "pattern": "^[A-Z]{3}$", "maxLength": 3 },
    "tags": { "type": "array", "items": { "type": "string" } },
    "a/b": { "type": "null" },
    "extra": { "type": "object", "additionalProperties": { "type": "integer" } }
  },
  "additionalProperties": false,
  "$defs": {
    "customer": { "type": "object", "properties": { "email": { "type": "string", "format": "email" } }, "required": ["email"] }
  }
}"##;

    fn order() -> Schema {
        Schema::read(ORDER).expect("a schema")
    }

    fn check(payload: Value, expected: &[&str]) {
        let told = match order().check(&payload) {
            Ok(()) => vec![],
            Err(mismatches) => mismatches.first.iter().map(Mismatch::to_string).collect(),
        };
        assert_eq!(told, expected, "{payload}");
    }

    fn with(field: &str, value: Value) -> Value {
        let mut order = json!({ "id": 1, "customer": { "email": "ada@example.com" } });
        order[field] = value;
        order
    }

    #[test]
    fn a7_a_mismatch_names_the_place_and_the_rule() {
        check(with("plan", json!("pro")), &[]);
        check(with("id", json!("seven")), &[r#"/id breaks type: "integer""#]);
        check(with("id", json!(0)), &["/id breaks minimum: 1"]);
        check(with("plan", json!("gold")), &[r#"/plan breaks enum: ["free","pro"]"#]);
        check(with("code", json!("abc")), &[r#"/code breaks pattern: "^[A-Z]{3}$""#]);
        check(with("tags", json!(["a", 5])), &[r#"/tags/1 breaks type: "string""#]);
        check(with("a/b", json!(5)), &[r#"/a~1b breaks type: "null""#]);
        check(with("customer", json!({})), &[r#"/customer breaks required: "email""#]);
        check(with("customer", json!({"email": "nobody"})), &[r#"/customer/email breaks format: "email""#]);
        check(json!([]), &[r#"/ breaks type: "object""#]);
        check(json!({"id": 1}), &[r#"/ breaks required: "customer""#]);
    }

    #[test]
    fn a7_names_that_only_the_sender_knows_are_not_repeated() {
        check(with("ada@example.com", json!(1)), &["/ breaks additionalProperties: false"]);
        check(with("extra", json!({"ada@example.com": "x"})), &[r#"/extra/* breaks type: "integer""#]);
    }

    #[test]
    fn p10_a_list_of_mismatches_is_bounded() {
        let many: Vec<u32> = (0..1000).collect();
        let mismatches = order().check(&with("tags", json!(many))).expect_err("no strings");
        assert_eq!((mismatches.first.len(), mismatches.more), (MISMATCHES_MAX, true));
        assert!(mismatches.to_string().ends_with("; and more"));
    }

    #[test]
    fn a7_a_bad_schema_is_shown_where_it_is_wrong() {
        let check = |text: &str, part: &str, hint: &str| {
            let bad = Schema::read(text).expect_err(text);
            assert!(bad.why.contains(hint), "{}", bad.why);
            assert_eq!(&text[bad.span.start..bad.span.end], part, "{}", bad.why);
        };
        check(r#"{"type": "object","#, ",", "not JSON");
        check(r#"{"properties": {"a": {"type": "strin"}}}"#, r#""strin""#, "not a valid schema");
        check(r#"{"properties": {"a/b": {"minimum": "1"}}}"#, r#""1""#, "not a valid schema");
        check(
            r#"{"$schema": "http://json-schema.org/draft-07/schema#"}"#,
            r#""http://json-schema.org/draft-07/schema#""#,
            "2020-12",
        );
        check(r#"{"$schema": 7}"#, "7", "2020-12");
        let wrong = |text: &str| Schema::read(text).expect_err(text).why;
        assert!(wrong(r#"{"properties": {"a": {"format": "emial"}}}"#).contains("emial"));
        assert!(wrong(r#"{"pattern": "(?=x)"}"#).contains("not a valid schema"));
        assert!(wrong("[]").contains("not a valid schema"));
        assert!(Schema::read(r#"{"$schema": "https://json-schema.org/draft/2020-12/schema#"}"#).is_ok());
    }

    #[test]
    fn a7_a_schema_fetches_nothing_and_opens_no_file() {
        for outside in ["http://127.0.0.1:9/x.json", "https://example.com/x.json", "file:///etc/hostname", "other.json"]
        {
            let text = json!({ "properties": { "a": { "$ref": outside } } }).to_string();
            assert!(Schema::read(&text).is_err(), "{outside}");
        }
    }

    proptest! {
        #[test]
        fn p9_no_message_holds_a_value(field in "id|customer|plan|code|tags|a/b|extra|canary[a-z]", value in "canary[a-z]{3}", wrapped in any::<bool>()) {
            let value = if wrapped { json!({ value.clone(): [value] }) } else { json!(value) };
            if let Err(mismatches) = order().check(&with(&field, value)) {
                prop_assert!(!mismatches.to_string().contains("canary"), "{}", mismatches);
            }
        }
    }
}
