//! Whose data it is: one value by which a person is known, and where it appears in what is kept.
//!
//! It is found as a whole word, in whatever case, also where it is escaped in JSON or in a form, and as the keyed hash that
//! `hash:` left of it. A phone number is found by its digits, however they are grouped. Not within a longer word or number:
//! the data of `joanna@example.org` is not that of `anna@example.org`.

use crate::call::CallAnswer;
use crate::form;
use crate::key::{self, KeyPart, KeyRule, Pepper};
use crate::minimise::HashKey;
use crate::payload::Payload;
use bytes::Bytes;
use serde_json::Value;
use std::fmt;

pub const VALUE_CHARS_MIN: usize = 4;
pub const VALUE_CHARS_MAX: usize = 320;
/// A number with fewer digits is no phone number.
const PHONE_DIGITS_MIN: usize = 7;

/// By what an event is found again: somebody's address, a phone number, the number of an order. Unreadable without the pepper;
/// the case of a text and the grouping of a number make no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(i64);

impl Handle {
    /// `None`: the text is too short or too long to name anything.
    pub fn of(pepper: &Pepper, text: &str) -> Option<Handle> {
        let text = text.trim();
        if !(VALUE_CHARS_MIN..=VALUE_CHARS_MAX).contains(&text.chars().count()) {
            return None;
        }
        let plain = match phone(text) {
            Some(digits) => bare_phone(&digits).to_string(),
            None => text.to_lowercase(),
        };
        let mac = pepper.mac("clinch handle 1", &[&plain]);
        Some(Handle(i64::from_be_bytes(*mac.first_chunk().expect("32 bytes are more than 8"))))
    }

    /// What these places of a delivery say; where nothing is, nothing is found by it.
    pub fn all(pepper: &Pepper, places: &[KeyPart], delivery: &dyn key::Delivery) -> Vec<Handle> {
        let values = places.iter().filter_map(|part| key::find(&KeyRule::One(part.clone()), delivery).ok());
        let mut handles: Vec<Handle> = values.filter_map(|value| Handle::of(pepper, &value)).collect();
        handles.sort_unstable_by_key(|handle| handle.0);
        handles.dedup();
        handles
    }

    pub const fn number(self) -> i64 {
        self.0
    }
}

pub struct Subject {
    /// In lower case: the value and its hashes.
    words: Vec<String>,
    /// The digits of a phone number.
    digits: Option<String>,
    mark: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a value has {VALUE_CHARS_MIN} to {VALUE_CHARS_MAX} characters: an email address, a phone number, a customer's id"
)]
pub struct BadSubject;

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({})", self.mark)
    }
}

impl Subject {
    pub fn new(value: &str, key: &HashKey) -> Result<Subject, BadSubject> {
        let value = value.trim();
        if !(VALUE_CHARS_MIN..=VALUE_CHARS_MAX).contains(&value.chars().count()) {
            return Err(BadSubject);
        }
        let lower = value.to_lowercase();
        let digits = phone(value);
        let mark = key.hash(lower.as_bytes());
        let mut words = vec![lower, mark.clone(), key.hash(value.as_bytes())];
        words.extend(digits.as_ref().map(|digits| key.hash(digits.as_bytes())));
        Ok(Subject { words, digits, mark })
    }

    /// Recognises the subject, to who knows the value, and tells nobody else.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// In an event as it is kept: its body, its description, its headers.
    pub fn is_in_event(&self, stored: &Bytes) -> bool {
        let Ok(payload) = Payload::decode(stored) else { return self.is_in(stored) };
        let about = &payload.about;
        let texts = [&about.source_event_id, &about.tenant, &about.sender].into_iter().map(|text| &**text);
        let texts = texts.chain(about.job_keys.iter().map(String::as_str));
        let mut texts = texts.chain(about.headers.iter().map(|(_, value)| &**value));
        texts.any(|text| self.is_in_text(text)) || self.is_in(&payload.body)
    }

    /// In the answer of a call, as it is kept.
    pub fn is_in_answer(&self, stored: &Bytes) -> bool {
        let Some(answer) = CallAnswer::decode(stored) else { return self.is_in(stored) };
        answer.headers.iter().any(|(_, value)| self.is_in(value)) || answer.body.is_some_and(|body| self.is_in(&body))
    }

    /// In a body: of whatever kind it is, what it says is looked at.
    pub fn is_in(&self, body: &[u8]) -> bool {
        let text = String::from_utf8_lossy(body);
        if self.is_in_text(&text) {
            return true;
        }
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            return self.is_in_json(&value);
        }
        form::raw_fields(body)
            .any(|field| self.is_in_text(&field.name()) || self.is_in_text(&String::from_utf8_lossy(&field.value())))
    }

    fn is_in_json(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_in_text(text),
            Value::Array(items) => items.iter().any(|item| self.is_in_json(item)),
            Value::Object(fields) => fields.iter().any(|(name, item)| self.is_in_text(name) || self.is_in_json(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn is_in_text(&self, text: &str) -> bool {
        let lower = text.to_lowercase();
        self.words.iter().any(|word| has_word(&lower, word))
            || self.digits.as_ref().is_some_and(|digits| numbers(text).any(|number| same_phone(&number, digits)))
    }
}

/// As a whole: what stands before and after it is no part of a longer word, or of a longer address.
fn has_word(text: &str, word: &str) -> bool {
    let is_address = word.contains('@');
    let joins_before = |c: char| c.is_alphanumeric() || (is_address && "._%+-".contains(c));
    let joins_after = |c: char| c.is_alphanumeric() || (is_address && c == '-');
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(joins_before)
            && !text[at + word.len()..].chars().next().is_some_and(joins_after)
    })
}

/// The digits of what is written like a phone number, and nothing else.
fn phone(value: &str) -> Option<String> {
    let is_phone = value.chars().all(|c| c.is_ascii_digit() || is_separator(c));
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    (is_phone && digits.len() >= PHONE_DIGITS_MIN).then_some(digits)
}

fn is_separator(c: char) -> bool {
    " -.()/+\u{a0}".contains(c)
}

/// Every run of digits and what groups them.
fn numbers(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_digit() && !is_separator(c))
        .map(|run| run.chars().filter(char::is_ascii_digit).collect())
}

/// `+49…` and `0049…` are the same.
fn same_phone(one: &str, two: &str) -> bool {
    bare_phone(one) == bare_phone(two)
}

fn bare_phone(digits: &str) -> &str {
    digits.strip_prefix("00").unwrap_or(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{About, TENANT_DEFAULT, TraceId};

    fn key() -> HashKey {
        HashKey::new(&[7; 32])
    }

    fn check(value: &str, body: &str, found: bool) {
        let subject = Subject::new(value, &key()).expect("a value");
        assert_eq!(subject.is_in(body.as_bytes()), found, "{value} in {body}");
    }

    #[test]
    fn t108_an_address_is_found_in_whatever_case_and_wrapping() {
        for body in [
            r#"{"email":"ada@example.org"}"#,
            r#"{"customer":[{"Email":"ADA@Example.ORG"}]}"#,
            r#"{"note":"write to ada@example.org, please"}"#,
            r#"{"mailto":"<ada@example.org>"}"#,
            r#"{"email":"ada\u0040example.org"}"#,
            r#"{"ada@example.org":true}"#,
            "name=Ada&email=ada%40example.org",
            "ada@example.org",
            "the target answered 422: ada@example.org is taken",
        ] {
            check("Ada@example.org", body, true);
        }
        check("ada@example.org", &format!(r#"{{"email":"{}"}}"#, key().hash(b"ada@example.org")), true);
    }

    #[test]
    fn t108_nobody_else_is_found() {
        for body in [
            r#"{"email":"joada@example.org"}"#,
            r#"{"email":"x.ada@example.org"}"#,
            r#"{"email":"ada@example.organic"}"#,
            r#"{"email":"ada@example.com"}"#,
            r#"{"email":"other"}"#,
            "",
        ] {
            check("ada@example.org", body, false);
        }
        check("Anna", r#"{"name":"Annabel"}"#, false);
        check("Anna", r#"{"name":"Anna Lovelace"}"#, true);
    }

    #[test]
    fn t108_a_phone_number_is_found_by_its_digits() {
        for body in [
            r#"{"phone":"+49 30 1234567"}"#,
            r#"{"phone":"0049 (30) 123-4567"}"#,
            r#"{"phone":"+49301234567"}"#,
            r#"{"phone":49301234567}"#,
            "phone=%2B49+30+1234567",
        ] {
            check("+49 30 1234567", body, true);
        }
        for body in [r#"{"phone":"+49 30 12345678"}"#, r#"{"id":149301234567}"#, r#"{"phone":"1234567"}"#] {
            check("+49 30 1234567", body, false);
        }
    }

    #[test]
    fn i1_who_is_looked_for_is_found_in_whatever_spelling() {
        let (pepper, other) = (Pepper::new(&[7; 32]), Pepper::new(&[8; 32]));
        let of = |text: &str| Handle::of(&pepper, text);
        assert_eq!(of(" Ada@Example.org"), of("ada@example.org"));
        assert_eq!(of("+49 30 1234567"), of("0049 (30) 123-4567"));
        assert_ne!(of("ada@example.org"), of("eve@example.org"));
        assert_ne!(of("ada@example.org"), Handle::of(&other, "ada@example.org"));
        assert_eq!((of("abc"), of(&"x".repeat(321))), (None, None));
    }

    #[test]
    fn t108_an_event_is_looked_at_as_a_whole() {
        let about = About {
            source: "shop".into(),
            source_event_id: "ada@example.org".into(),
            kind: "order".into(),
            tenant: TENANT_DEFAULT.into(),
            sender: "".into(),
            schema_version: 1,
            mismatch: "".into(),
            trace: TraceId(1),
            job_keys: Vec::new(),
            headers: vec![("x-user-id".into(), "eve@example.org".into())],
        };
        let stored = about.encode(br#"{"to":"bob@example.org"}"#);
        for (value, found) in
            [("ada@example.org", true), ("bob@example.org", true), ("eve@example.org", true), ("mallory", false)]
        {
            assert_eq!(Subject::new(value, &key()).expect("a value").is_in_event(&stored), found, "{value}");
        }
        assert!(
            Subject::new("bob@example.org", &key()).expect("a value").is_in_event(&Bytes::from("x bob@example.org"))
        );
    }

    #[test]
    fn t108_an_answer_is_looked_at_as_a_whole() {
        let headers = vec![("location".into(), b"/people/eve@example.org".to_vec())];
        let body = Some(Bytes::from(r#"{"email":"ada\u0040example.org"}"#));
        let stored = Bytes::from(CallAnswer { status: 201, headers, body }.encode());
        for (value, found) in [("ada@example.org", true), ("eve@example.org", true), ("mallory", false)] {
            assert_eq!(Subject::new(value, &key()).expect("a value").is_in_answer(&stored), found, "{value}");
        }
    }

    #[test]
    fn t108_a_value_is_not_shown_and_has_a_sensible_length() {
        let subject = Subject::new("ada@example.org", &key()).expect("a value");
        assert!(!format!("{subject:?}").contains("ada"));
        assert_eq!(subject.mark(), Subject::new(" ADA@example.org ", &key()).expect("a value").mark());
        for bad in ["", "  ", "abc", &"x".repeat(321)] {
            assert!(Subject::new(bad, &key()).is_err());
        }
    }
}
