//! Keys. A `DedupKey` recognises a delivery that was seen before; an `IdempotencyKey` lets a target recognise ours.

use crate::expr::{BadExpr, Expr};
use crate::id::JobId;
use crate::scope::Scope;
use aws_lc_rs::{digest, hmac};
use data_encoding::HEXLOWER;
use serde_json::Value;
use std::fmt;

pub const KEY_BYTES_MAX: usize = 255;

/// Where one part of a key is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// A header's value; the name is lower case.
    Header(String),
    /// A JSON pointer into the body, such as `/data/id`.
    Body(String),
    /// What an expression makes of the body.
    Computed(Expr),
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Header(name) => write!(f, "header:{name}"),
            KeyPart::Body(pointer) => write!(f, "body:{pointer}"),
            KeyPart::Computed(expr) => write!(f, "{{{{ {} }}}}", expr.source()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not say where to look; write `header:NAME` or `body:/json/pointer`")]
pub struct BadKeyPart(String);

impl std::str::FromStr for KeyPart {
    type Err = BadKeyPart;
    fn from_str(text: &str) -> Result<Self, BadKeyPart> {
        let bad = || BadKeyPart(text.to_string());
        match text.split_once(':') {
            Some(("header", name))
                if !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) =>
            {
                Ok(KeyPart::Header(name.to_ascii_lowercase()))
            }
            Some(("body", pointer)) if pointer.starts_with('/') => Ok(KeyPart::Body(pointer.to_string())),
            _ => Err(bad()),
        }
    }
}

/// How a delivery's key is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRule {
    /// The value itself is the key.
    One(KeyPart),
    /// The key is the SHA-256 of all values, in this order.
    Tuple(Vec<KeyPart>),
}

impl KeyRule {
    pub fn parts(&self) -> &[KeyPart] {
        match self {
            KeyRule::One(part) => std::slice::from_ref(part),
            KeyRule::Tuple(parts) => parts,
        }
    }

    pub fn reads_body(&self) -> bool {
        self.parts().iter().any(|part| matches!(part, KeyPart::Body(_) | KeyPart::Computed(_)))
    }
}

/// The values a key rule may look at.
pub trait Delivery {
    /// Every value sent under this header name; `None` stands for bytes that are not visible ASCII.
    fn header(&self, name: &str) -> Vec<Option<&str>>;
    /// The value at this pointer, or all of it for an empty one; only asked when the body is JSON.
    fn body(&self, pointer: &str) -> Option<Value>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    #[error("the request has no {0}")]
    Missing(KeyPart),
    #[error("{0} is empty; it must have 1 to {KEY_BYTES_MAX} characters")]
    Empty(KeyPart),
    #[error("{0} is longer than {KEY_BYTES_MAX} bytes")]
    TooLong(KeyPart),
    #[error("{0} was sent more than once; send it once")]
    Twice(KeyPart),
    #[error("{0} has characters that it may not have; use visible ASCII without commas, or a quoted string")]
    Unreadable(KeyPart),
    #[error("{0} is not a string, a number or a boolean; point to one value")]
    NotScalar(KeyPart),
    #[error("the key cannot be computed: {0}")]
    NotComputed(#[from] BadExpr),
}

impl NoKey {
    pub fn is_missing(&self) -> bool {
        matches!(self, NoKey::Missing(_))
    }
}

/// The key of a delivery, as text: what the sender chose, or the hash of what the rule names.
pub fn find(rule: &KeyRule, delivery: &dyn Delivery) -> Result<String, NoKey> {
    match rule {
        KeyRule::One(part) => value(part, delivery),
        KeyRule::Tuple(parts) => {
            let mut hash = digest::Context::new(&digest::SHA256);
            for part in parts {
                let text = value(part, delivery)?;
                // Length first, so that ("ab", "c") and ("a", "bc") differ.
                hash.update(&(text.len() as u64).to_be_bytes());
                hash.update(text.as_bytes());
            }
            Ok(HEXLOWER.encode(hash.finish().as_ref()))
        }
    }
}

fn value(part: &KeyPart, delivery: &dyn Delivery) -> Result<String, NoKey> {
    let text = match part {
        KeyPart::Header(name) => match delivery.header(name).as_slice() {
            [] => return Err(NoKey::Missing(part.clone())),
            [Some(text)] => header_key(text, part)?,
            [None] => return Err(NoKey::Unreadable(part.clone())),
            _ => return Err(NoKey::Twice(part.clone())),
        },
        KeyPart::Body(pointer) => scalar(delivery.body(pointer), part)?,
        KeyPart::Computed(expr) => {
            let body = delivery.body("").unwrap_or(Value::Null);
            scalar(Some(expr.value(&Scope::from_iter([("body", body)]))?), part)?
        }
    };
    match text.len() {
        0 => Err(NoKey::Empty(part.clone())),
        1..=KEY_BYTES_MAX => Ok(text),
        _ => Err(NoKey::TooLong(part.clone())),
    }
}

fn scalar(value: Option<Value>, part: &KeyPart) -> Result<String, NoKey> {
    match value {
        None | Some(Value::Null) => Err(NoKey::Missing(part.clone())),
        Some(Value::String(text)) => Ok(text),
        Some(scalar @ (Value::Number(_) | Value::Bool(_))) => Ok(scalar.to_string()),
        Some(_) => Err(NoKey::NotScalar(part.clone())),
    }
}

/// A bare key or a structured-field string: `k` and `"k"` are the same key.
fn header_key(raw: &str, part: &KeyPart) -> Result<String, NoKey> {
    let unreadable = || NoKey::Unreadable(part.clone());
    let raw = raw.trim_matches([' ', '\t']);
    let Some(quoted) = raw.strip_prefix('"') else {
        let fine = raw.bytes().all(|b| (0x21..=0x7e).contains(&b) && b != b',');
        return if fine { Ok(raw.to_string()) } else { Err(unreadable()) };
    };
    let mut text = String::with_capacity(quoted.len());
    let mut bytes = quoted.bytes();
    loop {
        match bytes.next().ok_or_else(unreadable)? {
            b'"' => break,
            b'\\' => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => text.push(char::from(escaped)),
                _ => return Err(unreadable()),
            },
            plain @ 0x20..=0x7e => text.push(char::from(plain)),
            _ => return Err(unreadable()),
        }
    }
    // Parameters may follow and mean nothing here; a second value may not.
    match bytes.next() {
        None | Some(b';') => Ok(text),
        Some(_) => Err(unreadable()),
    }
}

/// The secret that keeps keys unreadable in the store: made once, with the store.
#[derive(Clone)]
pub struct Pepper(hmac::Key);

impl Pepper {
    pub fn new(secret: &[u8; 32]) -> Self {
        Pepper(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The same in every installation that is given the same words.
    pub fn of_words(words: &str) -> Self {
        Pepper(hmac::Key::new(hmac::HMAC_SHA256, words.as_bytes()))
    }

    /// What tells this installation from others, and tells nobody the secret.
    pub fn installation(&self) -> String {
        HEXLOWER.encode(&self.mac("clinch installation 1", &[])[..8])
    }

    /// Of these parts, in this order, for one purpose.
    pub(crate) fn mac(&self, purpose: &str, parts: &[&str]) -> [u8; 32] {
        let mut mac = hmac::Context::with_key(&self.0);
        mac.update(purpose.as_bytes());
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
    }
}

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(***)")
    }
}

/// Recognises a delivery: the key, in the scope of its tenant and route, unreadable without the pepper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DedupKey([u8; 32]);

impl DedupKey {
    pub fn scoped(pepper: &Pepper, tenant: &str, route: &str, key: &str) -> Self {
        let mut mac = hmac::Context::with_key(&pepper.0);
        for part in [tenant, route] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac.update(key.as_bytes());
        DedupKey(mac.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes"))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        DedupKey(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A key that a step sets, in the scope of its tenant, unreadable without the pepper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OnceKey([u8; 32]);

impl OnceKey {
    pub fn of(pepper: &Pepper, tenant: &str, key: &str) -> Self {
        OnceKey(pepper.mac("clinch once 1", &[tenant, key]))
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Recognises an entity that has a retry budget: in the scope of its tenant and its worker, unreadable without the pepper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntityKey([u8; 16]);

impl EntityKey {
    pub fn of(pepper: &Pepper, tenant: &str, worker: &str, entity: &str) -> Self {
        let mac = pepper.mac("clinch entity 1", &[tenant, worker, entity]);
        EntityKey(*mac.first_chunk().expect("32 bytes are more than 16"))
    }

    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        EntityKey(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for EntityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ent_{}", HEXLOWER.encode(&self.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the id of an entity; write `ent_` and 32 digits, as `clinch budget ls` shows it")]
pub struct BadEntityKey;

impl std::str::FromStr for EntityKey {
    type Err = BadEntityKey;
    fn from_str(text: &str) -> Result<Self, BadEntityKey> {
        let bytes = text.strip_prefix("ent_").and_then(|hex| HEXLOWER.decode(hex.as_bytes()).ok());
        bytes.and_then(|bytes| bytes.try_into().ok()).map(EntityKey).ok_or(BadEntityKey)
    }
}

/// Tells one body from another under the same key: SHA-256 of the raw bytes, before anything is dropped from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(method: &str, body: &[u8]) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(method.as_bytes());
        hash.update(&[0]);
        hash.update(body);
        Fingerprint(hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// For the eyes of others: two of them can be compared, and a body that is guessed cannot.
    pub fn under(&self, pepper: &Pepper) -> Self {
        let tag = hmac::sign(&pepper.0, &self.0);
        Fingerprint(tag.as_ref().try_into().expect("HMAC-SHA256 has 32 bytes"))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Fingerprint(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// What a target sees as our key: the same on every attempt and every replay of one step of one job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    pub fn of(job: JobId, step: &str) -> Self {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(b"clinch effect 1\0");
        hash.update(&job.number().to_be_bytes());
        hash.update(step.as_bytes());
        IdempotencyKey(format!("clinch-{}", HEXLOWER.encode(&hash.finish().as_ref()[..16])))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a text could be one.
    pub fn is_like(text: &str) -> bool {
        let digits = text.strip_prefix("clinch-").unwrap_or_default();
        digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }

    /// As unlike any other as the key is, for practical purposes.
    pub fn number(&self) -> u64 {
        let digits = self.0.strip_prefix("clinch-").and_then(|digits| digits.get(..16));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Sent {
        headers: Vec<(&'static str, Option<&'static str>)>,
        body: Value,
    }

    impl Delivery for Sent {
        fn header(&self, name: &str) -> Vec<Option<&str>> {
            self.headers.iter().filter(|(n, _)| *n == name).map(|(_, v)| *v).collect()
        }
        fn body(&self, pointer: &str) -> Option<Value> {
            self.body.pointer(pointer).cloned()
        }
    }

    fn header(values: &[Option<&'static str>]) -> Result<String, NoKey> {
        let sent = Sent { headers: values.iter().map(|v| ("idempotency-key", *v)).collect(), body: Value::Null };
        find(&KeyRule::One("header:Idempotency-Key".parse().expect("a part")), &sent)
    }

    #[test]
    fn t_052_bare_and_quoted_spellings_are_one_key() {
        assert_eq!(header(&[Some("k-1")]), Ok("k-1".into()));
        assert_eq!(header(&[Some("\"k-1\"")]), Ok("k-1".into()));
        assert_eq!(header(&[Some("\"k-1\";v=2")]), Ok("k-1".into()));
        assert_eq!(header(&[Some(r#""a\"b""#)]), Ok("a\"b".into()));
    }

    #[test]
    fn t_053_a_key_is_one_readable_value() {
        assert!(header(&[]).expect_err("missing").is_missing());
        for bad in [vec![Some("")], vec![Some("\"\"")], vec![Some("a"), Some("a")], vec![Some("\"a\", \"b\"")]] {
            assert!(header(&bad).is_err(), "{bad:?}");
        }
        for bad in [Some("a,b"), Some("a b"), Some("\u{7}"), None, Some("\"open"), Some("\"a\"b")] {
            assert!(header(&[bad]).is_err(), "{bad:?}");
        }
        let long: &'static str = "x".repeat(256).leak();
        assert!(header(&[Some(long)]).is_err());
        assert!(header(&[Some(&long[..255])]).is_ok());
    }

    #[test]
    fn b1_a_tuple_of_fields_is_hashed_and_keeps_its_borders() {
        let rule = KeyRule::Tuple(vec!["body:/a".parse().expect("part"), "body:/b".parse().expect("part")]);
        let key = |body: Value| find(&rule, &Sent { headers: vec![], body });
        let one = key(serde_json::json!({"a": "ab", "b": "c"})).expect("found");
        let other = key(serde_json::json!({"a": "a", "b": "bc"})).expect("found");
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
        assert!(key(serde_json::json!({"a": 1})).expect_err("b is missing").is_missing());
        assert!(key(serde_json::json!({"a": 1, "b": {}})).is_err());
    }

    #[test]
    fn b1_a_part_may_be_computed_from_the_body() {
        let computed = |text: &str| KeyPart::Computed(Expr::parse(text).expect("an expression"));
        let rule = KeyRule::Tuple(vec![computed("body.email | lower | trim"), computed("body.at | bucket(5)")]);
        let key = |body: Value| find(&rule, &Sent { headers: vec![], body });
        let first = key(serde_json::json!({"email": " Ada@Example.com", "at": "2026-08-01T10:40:00Z"}));
        assert_eq!(first, key(serde_json::json!({"email": "ada@example.com", "at": 1_785_580_900})));
        assert_ne!(first, key(serde_json::json!({"email": "ada@example.com", "at": "2026-08-01T10:45:00Z"})));
        let said = key(serde_json::json!({"emial": "kanary", "at": 1})).expect_err("missing").to_string();
        assert!(said.contains("did you mean `body.emial`?") && !said.contains("kanary"), "{said}");
        let said = key(serde_json::json!({"email": "kanary", "at": "kanary"})).expect_err("no moment").to_string();
        assert!(!said.contains("kanary"), "{said}");
        let with_default = KeyRule::One(computed("body.id | default(none)"));
        let none = find(&with_default, &Sent { headers: vec![], body: serde_json::json!({}) });
        assert!(none.expect_err("no key").is_missing());
    }

    #[test]
    fn a_key_part_says_where_to_look() {
        for bad in ["Idempotency-Key", "header:", "body:id", "query:x", "header:a b"] {
            assert!(bad.parse::<KeyPart>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_outbound_key_is_the_same_on_every_attempt_and_differs_by_step() {
        let job = JobId::from_number(7);
        assert_eq!(IdempotencyKey::of(job, "post"), IdempotencyKey::of(job, "post"));
        assert_ne!(IdempotencyKey::of(job, "post"), IdempotencyKey::of(job, "mail"));
        assert_ne!(IdempotencyKey::of(job, "post"), IdempotencyKey::of(JobId::from_number(8), "post"));
    }

    #[test]
    fn c5_an_entity_is_recognised_by_who_has_the_pepper_and_has_an_id_for_people() {
        let (pepper, other) = (Pepper::new(&[7; 32]), Pepper::new(&[8; 32]));
        let key = EntityKey::of(&pepper, "t", "w", "ada");
        assert_eq!(key.to_string().parse(), Ok(key));
        for unlike in [
            EntityKey::of(&other, "t", "w", "ada"),
            EntityKey::of(&pepper, "u", "w", "ada"),
            EntityKey::of(&pepper, "t", "v", "ada"),
            EntityKey::of(&pepper, "t", "wa", "da"),
        ] {
            assert_ne!(key, unlike);
        }
        for bad in ["", "ada", "ent_", "ent_0011", "ent_zz112233445566778899aabbccddeeff"] {
            assert_eq!(bad.parse::<EntityKey>(), Err(BadEntityKey), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn b2_scopes_never_collide(t1 in "[a-z]{0,4}", t2 in "[a-z]{0,4}", r1 in "[a-z/]{0,4}", r2 in "[a-z/]{0,4}", k1 in "[a-z]{1,4}", k2 in "[a-z]{1,4}") {
            let pepper = Pepper::new(&[7; 32]);
            let same = (&t1, &r1, &k1) == (&t2, &r2, &k2);
            prop_assert_eq!(same, DedupKey::scoped(&pepper, &t1, &r1, &k1) == DedupKey::scoped(&pepper, &t2, &r2, &k2));
        }
    }
}
