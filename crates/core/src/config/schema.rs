//! The dialect as a JSON Schema, for completion in editors. Made from the tables that the files are checked with.

use super::dialect::{FLOW, NAMED_ACTIONS, PLAYBOOK, POLICIES, QUEUES, SETTINGS, WORKER};
use super::shape::{Choose, Field, ITEMS_MAX, Kind, Need, Shape};
use super::trial_file::TRIALS;
use super::value::KEY_PARTS_MAX;
use crate::signature::presets;
use serde_json::{Map, Value, json};

/// One document (draft 2020-12) for all files of a workspace; `$defs` has one definition for each shape.
pub fn json_schema() -> Value {
    let files = [&SETTINGS, &QUEUES, &POLICIES, &FLOW, &PLAYBOOK, &WORKER, &TRIALS];
    let mut defs = Map::new();
    for shape in files {
        define(shape, &mut defs);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A file of a clinch workspace",
        "oneOf": files.map(reference),
        "$defs": defs,
    })
}

fn reference(shape: &Shape) -> Value {
    json!({ "$ref": format!("#/$defs/{}", shape.name) })
}

fn define(shape: &'static Shape, defs: &mut Map<String, Value>) {
    if defs.contains_key(shape.name) {
        return;
    }
    // Its place first, so that the definitions stand in reading order.
    defs.insert(shape.name.to_string(), Value::Null);
    let mut properties = Map::new();
    for field in shape.fields() {
        properties.insert(field.name.to_string(), property(field, defs));
    }
    let required: Vec<&str> =
        shape.fields().filter(|field| field.need == Need::Required).map(|field| field.name).collect();
    let choices: Vec<Value> = shape.choices.iter().flat_map(choice).collect();
    let mut schema = json!({
        "description": shape.doc,
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if !choices.is_empty() {
        schema["allOf"] = json!(choices);
    }
    defs.insert(shape.name.to_string(), schema);
}

/// At most one of the keys, and at least one where one is needed.
fn choice(choice: &Choose) -> Vec<Value> {
    let has = |key: &&str| json!({ "required": [key] });
    let one_of: Vec<Value> = choice.keys.iter().map(has).collect();
    match choice.need {
        Need::Required => vec![json!({ "oneOf": one_of })],
        Need::Optional => vec![json!({ "not": { "required": choice.keys } })],
    }
}

fn property(field: &Field, defs: &mut Map<String, Value>) -> Value {
    let mut schema = kind(&field.kind, defs);
    schema["description"] = json!(field.doc);
    schema
}

fn kind(kind: &Kind, defs: &mut Map<String, Value>) -> Value {
    match kind {
        Kind::Text
        | Kind::Template
        | Kind::EventTemplate
        | Kind::Statement
        | Kind::Expr
        | Kind::AnswerExpr
        | Kind::BodyField
        | Kind::Url
        | Kind::UrlOrPath => text(),
        Kind::NamedAction => {
            let names: Vec<&str> = NAMED_ACTIONS.iter().map(|(name, _)| *name).collect();
            json!({ "enum": names })
        }
        Kind::ZoneOfContact => json!({ "type": "string", "examples": ["Europe/Berlin", "{{ body.time_zone }}"] }),
        Kind::Hour => json!({ "type": "string", "examples": ["21:00"] }),
        Kind::Window => json!({ "type": "string", "examples": ["day", "7d"] }),
        Kind::Spread => json!({ "type": "string", "examples": ["200-600ms"] }),
        Kind::Statuses => {
            json!({ "type": "array", "items": text(), "minItems": 1, "maxItems": ITEMS_MAX, "examples": [[429, "500-599"]] })
        }
        Kind::RedisUrl => json!({ "type": "string", "examples": ["rediss://:${secrets.NAME}@redis.example:6379"] }),
        Kind::Secret => json!({ "type": "string", "examples": ["${secrets.NAME}"] }),
        Kind::Name => json!({ "type": ["string", "number"] }),
        Kind::Prefixed(prefix) => json!({ "type": "string", "pattern": format!("^{prefix}.") }),
        Kind::Int { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number { min, max } => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Duration { .. } => json!({ "type": "string", "examples": ["250ms", "30s", "5m", "48h", "7d"] }),
        Kind::Size { .. } => json!({ "type": "string", "examples": ["512B", "256KiB", "2MB"] }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Address => json!({ "type": "string", "examples": ["127.0.0.1:7400"] }),
        Kind::Path => json!({ "type": "string", "pattern": "^/" }),
        Kind::Runtime => json!({ "type": "string", "examples": ["node:18", "python:3", "bash"] }),
        Kind::Endpoint => json!({ "type": "string", "pattern": "^https?://", "examples": ["http://127.0.0.1:4318"] }),
        Kind::Headers | Kind::SecretHeaders | Kind::Attributes | Kind::Env => {
            json!({ "type": "object", "additionalProperties": text() })
        }
        Kind::KeyPart => key_part(),
        Kind::KeyRule => {
            let part = json!({ "anyOf": [key_part(), { "type": "string", "pattern": "\\{\\{" }] });
            let list = json!({ "type": "array", "items": part, "minItems": 1, "maxItems": KEY_PARTS_MAX });
            json!({ "anyOf": [part, list] })
        }
        Kind::Body | Kind::MessageBody => json!({ "type": ["string", "number", "boolean", "object", "array"] }),
        Kind::Tree => json!({}),
        Kind::List(item) => {
            json!({ "type": "array", "items": self::kind(item, defs), "minItems": 1, "maxItems": ITEMS_MAX })
        }
        Kind::Map(shape) => {
            define(shape, defs);
            reference(shape)
        }
        Kind::Or(scalar, map) => json!({ "anyOf": [self::kind(scalar, defs), self::kind(map, defs)] }),
        Kind::Verify => {
            let names: Vec<&str> = presets::ALL.iter().map(|preset| preset.name).chain(["sender", "none"]).collect();
            json!({ "enum": names })
        }
        Kind::PublicUrl => json!({ "type": "string", "examples": ["https://hooks.example.com/in/NAME"] }),
        Kind::Renames => json!({ "type": "object", "additionalProperties": { "type": ["string", "number"] } }),
        Kind::Pointer => json!({ "type": "string", "pattern": "^/" }),
        Kind::Place => json!({ "type": "string", "examples": ["crm.internal", "*.internal", "10.1.0.0/16"] }),
        Kind::Share => json!({ "type": "string", "examples": ["95%", "99.9%"] }),
        Kind::Rate => json!({ "type": "string", "examples": ["100/s", "5/min", "1000/h"] }),
        Kind::DatabaseUrl => {
            json!({ "type": "string", "examples": ["${secrets.NAME}", "postgres://user:${secrets.NAME}@host/database"] })
        }
        Kind::MailUrl => json!({ "type": "string", "examples": ["smtp://user:${secrets.NAME}@mail.example.com:587"] }),
        Kind::Mailbox => json!({ "type": "string", "examples": ["Shop <hello@example.com>"] }),
        Kind::Country => json!({ "type": "string", "examples": ["DE"] }),
        Kind::Cron => json!({ "type": "string", "examples": ["*/10 * * * *"] }),
        Kind::TimeZone => json!({ "type": "string", "examples": ["Europe/Berlin"] }),
        Kind::ListExpr => json!({ "type": "string", "examples": ["step:NAME.messages", "body.items"] }),
        Kind::File(ending) => json!({ "type": "string", "examples": [format!("NAME{ending}")] }),
        Kind::Moment => json!({ "type": "string", "examples": ["2026-08-01T00:00:00Z"] }),
        Kind::Patterns => {
            let list = json!({ "type": "array", "items": text(), "minItems": 1, "maxItems": ITEMS_MAX });
            json!({ "anyOf": [text(), list] })
        }
        Kind::Named(shape) => {
            define(shape, defs);
            json!({ "type": "object", "additionalProperties": reference(shape) })
        }
    }
}

/// A text needs no quotes, so it may look like something else.
fn text() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

fn key_part() -> Value {
    json!({ "type": "string", "pattern": "^(header:.|body:/)" })
}

#[cfg(test)]
mod tests {
    use super::super::problem::Report;
    use super::super::tests::{mutated, problems};
    use super::super::yaml::{self, Node};
    use super::super::{FileKind, value};
    use super::*;
    use proptest::prelude::*;

    /// As much of JSON Schema as is written here.
    fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
        let Value::Object(rules) = schema else { panic!("{schema} is not a schema") };
        rules.iter().all(|(rule, want)| match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "examples" => true,
            "$ref" => fits(value, root.pointer(&want.as_str().expect("a path")[1..]).expect("a definition"), root),
            "oneOf" => of(want).filter(|schema| fits(value, schema, root)).count() == 1,
            "anyOf" => of(want).any(|schema| fits(value, schema, root)),
            "allOf" => of(want).all(|schema| fits(value, schema, root)),
            "not" => !fits(value, want, root),
            "type" if want.is_array() => of(want).any(|kind| has_type(value, kind)),
            "type" => has_type(value, want),
            "enum" => of(want).any(|word| word == value),
            "required" => of(want).all(|key| value.get(key.as_str().expect("a key")).is_some()),
            "properties" => {
                fields(value).all(|(key, child)| want.get(key).is_none_or(|schema| fits(child, schema, root)))
            }
            "additionalProperties" if want.is_object() => fields(value).all(|(_, child)| fits(child, want, root)),
            "additionalProperties" => fields(value).all(|(key, _)| rules["properties"].get(key).is_some()),
            "items" => value.as_array().is_none_or(|items| items.iter().all(|item| fits(item, want, root))),
            "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= want.as_u64().expect("a number")),
            "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= want.as_u64().expect("a number")),
            "minimum" => value.as_f64().is_none_or(|number| number >= want.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|number| number <= want.as_f64().expect("a number")),
            "pattern" => value.as_str().is_none_or(|text| matches(text, want.as_str().expect("a pattern"))),
            other => panic!("{other} is not known"),
        })
    }

    fn of(list: &Value) -> impl Iterator<Item = &Value> {
        list.as_array().expect("a list").iter()
    }

    fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
        value.as_object().into_iter().flatten()
    }

    fn has_type(value: &Value, kind: &Value) -> bool {
        match kind.as_str().expect("a type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            other => panic!("{other} is not known"),
        }
    }

    fn matches(text: &str, pattern: &str) -> bool {
        let begins = |beginnings: &[&str]| beginnings.iter().any(|start| text.starts_with(start));
        match pattern {
            "^/" => begins(&["/"]),
            "^(header:.|body:/)" => begins(&["header:", "body:/"]),
            prefix => begins(&[prefix.trim_start_matches('^').trim_end_matches('.')]),
        }
    }

    /// What an editor sees in the file.
    fn json(node: &Node) -> Value {
        match &node.value {
            yaml::Value::List(items) => items.iter().map(json).collect(),
            yaml::Value::Map(fields) => fields.iter().map(|(key, item)| (key.text.clone(), json(item))).collect(),
            yaml::Value::Scalar { text, quoted: true } => text.clone().into(),
            yaml::Value::Scalar { text, .. } => value::plain_json(node).unwrap_or_else(|| text.clone().into()),
        }
    }

    #[test]
    fn j1_the_schema_has_every_file_and_every_shape_once() {
        let schema = json_schema();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert_eq!(schema["oneOf"].as_array().map(Vec::len), Some(7));
        let retry = &schema["$defs"]["retry_policy"];
        assert_eq!(retry["properties"]["jitter"]["enum"], json!(["full", "equal", "none"]));
        assert_eq!(retry["additionalProperties"], false);
        assert_eq!(schema["$defs"]["queue"]["required"], json!(["name"]));
        for file in [json!({}), json!({"queues": [{"name": "a"}]}), json!({"listen": "1.2.3.4:5"})] {
            assert!(fits(&file, &schema, &schema), "{file}");
        }
        for file in [json!({"queue": []}), json!({"queues": []}), json!({"queues": [{"nam": "a"}]}), json!([])] {
            assert!(!fits(&file, &schema, &schema), "{file}");
        }
    }

    proptest! {
        #[test]
        fn what_the_check_takes_no_editor_underlines(files in mutated()) {
            let schema = json_schema();
            let broken: Vec<String> =
                problems(&files).into_iter().filter(|problem| problem.is_error()).map(|problem| problem.file).collect();
            for (path, text) in files.0.iter().filter(|(path, _)| !broken.contains(path)) {
                let root = yaml::parse(&mut Report::new(path, text)).expect("it was read before");
                prop_assert!(FileKind::of(path).is_some());
                prop_assert!(fits(&json(&root), &schema, &schema), "{}:\n{}", path, text);
            }
        }
    }
}
