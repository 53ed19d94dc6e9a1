//! A JSON text, looked at one level at a time. What is not looked into stays as it came, byte for byte: the digits of
//! numbers, the order of fields, fields that are sent twice.

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    List,
    Text,
    Number,
    /// true, false, null
    Word,
}

/// Checks the whole text once; nesting costs no stack here.
pub(crate) fn parse(body: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(body).ok()
}

pub(crate) fn kind(raw: &RawValue) -> Kind {
    match raw.get().as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::List,
        Some(b'"') => Kind::Text,
        Some(b't' | b'f' | b'n') => Kind::Word,
        _ => Kind::Number,
    }
}

/// What a JSON string says; `None` when it is no string, or spells half of a character.
pub(crate) fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// A field's name that spells half of a character. Such a name cannot be compared with a rule.
#[derive(Debug)]
pub(crate) struct BadName;

/// Calls `each` with every field of an object or item of a list (whose name is its number), in order, until it breaks.
pub(crate) fn each<'a>(
    raw: &'a RawValue,
    each: impl FnMut(&str, &'a RawValue) -> ControlFlow<()>,
) -> Result<(), BadName> {
    let mut stopped = false;
    let level = Level { each, stopped: &mut stopped };
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    let read = match kind(raw) {
        Kind::Object => reader.deserialize_map(level),
        Kind::List => reader.deserialize_seq(level),
        _ => return Ok(()),
    };
    if read.is_err() && !stopped { Err(BadName) } else { Ok(()) }
}

/// Borrowed where it is spelled without escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct Level<'s, F> {
    each: F,
    stopped: &'s mut bool,
}

impl<'de, F: FnMut(&str, &'de RawValue) -> ControlFlow<()>> Level<'_, F> {
    fn call<E: serde::de::Error>(&mut self, name: &str, value: &'de RawValue) -> Result<(), E> {
        if (self.each)(name, value).is_break() {
            *self.stopped = true;
            return Err(E::custom("stopped"));
        }
        Ok(())
    }
}

impl<'de, F: FnMut(&str, &'de RawValue) -> ControlFlow<()>> Visitor<'de> for Level<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key()? {
            let value = map.next_value::<&'de RawValue>()?;
            self.call(&name, value)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut place = 0u64;
        while let Some(value) = seq.next_element::<&'de RawValue>()? {
            self.call(&place.to_string(), value)?;
            place += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(body: &str) -> Vec<(String, String)> {
        let mut seen = Vec::new();
        each(parse(body.as_bytes()).expect("JSON"), |name, value| {
            seen.push((name.to_string(), value.get().to_string()));
            ControlFlow::Continue(())
        })
        .expect("names are whole");
        seen
    }

    #[test]
    fn a5_values_are_seen_as_they_came() {
        let pairs =
            |list: &[(&str, &str)]| -> Vec<_> { list.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect() };
        assert_eq!(
            seen(r#" {"b": 1.0, "a":1e400, "b": [ 2 ], "\u0063": "\u00e9"} "#),
            pairs(&[("b", "1.0"), ("a", "1e400"), ("b", "[ 2 ]"), ("c", r#""\u00e9""#)])
        );
        assert_eq!(seen("[90071992547409931234, null]"), pairs(&[("0", "90071992547409931234"), ("1", "null")]));
        assert_eq!(seen("7"), vec![]);
    }

    #[test]
    fn t_077_deep_nesting_costs_no_stack_and_half_characters_no_panic() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(seen(&deep).len(), 1);
        let raw = parse(br#"{"\ud800": 1}"#).expect("JSON by its grammar");
        assert!(each(raw, |_, _| ControlFlow::Continue(())).is_err());
        assert!(parse(b"{\"a\": \xff}").is_none() && parse(b"{} x").is_none() && parse(b"").is_none());
    }

    #[test]
    fn looking_stops_when_asked_to() {
        let mut count = 0;
        each(parse(b"[1,2,3,4]").expect("JSON"), |_, _| {
            count += 1;
            if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .expect("stopping is no error");
        assert_eq!(count, 2);
    }
}
