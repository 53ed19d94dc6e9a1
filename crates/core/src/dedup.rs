//! A key made of an event's fields: whom it is about, and in which stretch of time. The same fields give the same key on
//! every attempt, replay and node.

use crate::expr::{BadExpr, Expr};
use crate::message::Mailbox;
use crate::phone::{self, Country, NotAPhone, Strictness};
use crate::scope::Scope;
use crate::time::Timestamp;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use serde_json::Value;
use std::num::NonZeroU32;

pub const FIELDS_MAX: usize = 16;
/// A year; longer stretches are not for deduplication.
pub const BUCKET_MINUTES_MAX: u32 = 527_040;
/// No value of a field is longer.
pub const VALUE_BYTES_MAX: usize = 1 << 10;
/// The field that is a time, where nothing else is said.
pub const TIME_FIELD_DEFAULT: &str = "timestamp";

/// What the key is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct DedupRule {
    /// The playbook or worker: two of them that name the same fields do not take each other's keys.
    pub owner: String,
    /// 1 to `FIELDS_MAX`, in the order in which they are hashed.
    pub fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// As it is written.
    pub name: String,
    pub value: Expr,
    pub reading: Reading,
}

/// How a value is read, so that spellings of the same thing are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    AsItIs,
    /// A mail address, whatever its case and the name before it.
    Email,
    /// A phone number as the whole world writes it.
    Phone(Option<Country>),
    /// A moment, of which only the stretch counts that it is in.
    Time {
        bucket_minutes: NonZeroU32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// 64 hexadecimal digits.
    pub key: String,
    /// When the stretch began, if one of the fields is a time.
    pub bucket: Option<Timestamp>,
}

/// Never repeats a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDedupKey {
    #[error("{0}")]
    Missing(#[from] BadExpr),
    #[error("field `{0}` is empty")]
    Empty(String),
    #[error("field `{0}` is longer than {VALUE_BYTES_MAX} bytes")]
    TooLong(String),
    #[error("field `{0}` is not a text, a number or a boolean")]
    NotScalar(String),
    #[error("field `{0}` is not a mail address")]
    NotAnEmail(String),
    #[error("field `{0}` will not do as a phone number: {1}")]
    NotAPhone(String, NotAPhone),
    #[error("field `{0}` is not a moment; a text such as 2026-08-01T00:00:00Z, or seconds or milliseconds since 1970")]
    NotATime(String),
}

impl NoDedupKey {
    pub fn is_missing(&self) -> bool {
        matches!(self, NoDedupKey::Missing(_))
    }
}

impl DedupRule {
    pub fn compute(&self, names: &Scope) -> Result<Computed, NoDedupKey> {
        let mut hash = digest::Context::new(&digest::SHA256);
        hash.update(b"clinch dedup 1\0");
        part(&mut hash, &self.owner);
        let mut bucket = None;
        for field in &self.fields {
            let (text, began) = field.read(names)?;
            part(&mut hash, &field.name);
            part(&mut hash, &text);
            bucket = bucket.or(began);
        }
        Ok(Computed { key: HEXLOWER.encode(hash.finish().as_ref()), bucket })
    }
}

/// Length first, so that ("ab", "c") and ("a", "bc") differ.
fn part(hash: &mut digest::Context, text: &str) {
    hash.update(&(text.len() as u64).to_be_bytes());
    hash.update(text.as_bytes());
}

impl Field {
    /// What is hashed of it, and the beginning of the stretch of time that it is in.
    fn read(&self, names: &Scope) -> Result<(String, Option<Timestamp>), NoDedupKey> {
        let name = || self.name.clone();
        let value = self.value.value(names)?;
        if let Reading::Time { bucket_minutes } = self.reading {
            let began = bucket_of(&value, bucket_minutes).ok_or_else(|| NoDedupKey::NotATime(name()))?;
            return Ok((began.as_micros().to_string(), Some(began)));
        }
        let text = match value {
            Value::String(text) => text,
            scalar @ (Value::Number(_) | Value::Bool(_)) => scalar.to_string(),
            Value::Null => return Err(NoDedupKey::Empty(name())),
            Value::Array(_) | Value::Object(_) => return Err(NoDedupKey::NotScalar(name())),
        };
        match text.len() {
            0 => return Err(NoDedupKey::Empty(name())),
            1..=VALUE_BYTES_MAX => {}
            _ => return Err(NoDedupKey::TooLong(name())),
        }
        let text = match self.reading {
            Reading::AsItIs | Reading::Time { .. } => text,
            Reading::Email => {
                let read: Mailbox = text.parse().map_err(|_| NoDedupKey::NotAnEmail(name()))?;
                read.address().to_lowercase()
            }
            Reading::Phone(country) => {
                let bad = |why| NoDedupKey::NotAPhone(name(), why);
                let read = phone::read(&text, country, Strictness::Possible).map_err(bad)?;
                read.ok_or_else(|| bad(NotAPhone::Unreadable))?.e164
            }
        };
        Ok((text, None))
    }
}

/// Seconds below this are seconds; more are milliseconds. It is a moment of 5138, or of 1973.
const SECONDS_MAX: i64 = 100_000_000_000;
const MILLIS_MAX: i64 = 100_000_000_000_000;

/// RFC 3339, or seconds or milliseconds since 1970, as a number or as its digits.
fn moment(value: &Value) -> Option<Timestamp> {
    let micros = match value {
        Value::String(text) => match text.trim().parse::<i64>() {
            Ok(count) => since_1970(count)?,
            Err(_) => text.trim().parse::<jiff::Timestamp>().ok()?.as_microsecond(),
        },
        Value::Number(number) => match number.as_i64() {
            Some(count) => since_1970(count)?,
            // A part of a second, or of a millisecond, is in the same minute.
            None => since_1970(number.as_f64().filter(|count| count.abs() < MILLIS_MAX as f64)?.floor() as i64)?,
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(Timestamp::from_micros(micros))
}

fn since_1970(count: i64) -> Option<i64> {
    match count.checked_abs()? {
        0..SECONDS_MAX => count.checked_mul(1_000_000),
        SECONDS_MAX..MILLIS_MAX => count.checked_mul(1_000),
        _ => None,
    }
}

/// The beginning of the stretch that a value is in, if it is a moment.
pub(crate) fn bucket_of(value: &Value, minutes: NonZeroU32) -> Option<Timestamp> {
    moment(value).map(|at| bucket(at, minutes))
}

/// The beginning of the stretch that a moment is in. Stretches are counted from 1970, in UTC.
fn bucket(at: Timestamp, minutes: NonZeroU32) -> Timestamp {
    let width = i64::from(minutes.get()) * 60_000_000;
    Timestamp::from_micros(at.as_micros().div_euclid(width).saturating_mul(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn field(name: &str, reading: Reading) -> Field {
        Field { name: name.into(), value: Expr::parse(&format!("body.{name}")).expect("an expression"), reading }
    }

    fn minutes(count: u32) -> Reading {
        Reading::Time { bucket_minutes: NonZeroU32::new(count).expect("not zero") }
    }

    fn cart() -> DedupRule {
        let plain = |name| field(name, Reading::AsItIs);
        let fields = vec![plain("customer_id"), plain("store_id"), field("timestamp", minutes(5))];
        DedupRule { owner: "cart".into(), fields }
    }

    fn computed(rule: &DedupRule, body: Value) -> Result<Computed, NoDedupKey> {
        rule.compute(&Scope::from_iter([("body", body)]))
    }

    fn key(rule: &DedupRule, body: Value) -> String {
        computed(rule, body).expect("a key").key
    }

    fn at(timestamp: impl Into<Value>) -> Value {
        json!({"customer_id": "c-1", "store_id": 7, "timestamp": timestamp.into()})
    }

    #[test]
    fn b1_a_key_is_of_the_fields_and_of_the_stretch_of_time_that_the_event_is_in() {
        let first = key(&cart(), at("2026-08-01T10:40:00Z"));
        assert_eq!(first.len(), 64);
        for same in [
            at("2026-08-01T10:44:59.999Z"),
            at("2026-08-01T12:42:00+02:00"),
            at(1_785_580_800),
            at(1_785_580_800_123_i64),
            at("1785580900"),
            at(1_785_580_800.5),
        ] {
            assert_eq!(key(&cart(), same.clone()), first, "{same}");
        }
        for other in [
            at("2026-08-01T10:45:00Z"),
            at("2026-08-01T10:39:59Z"),
            json!({"customer_id": "c-2", "store_id": 7, "timestamp": "2026-08-01T10:40:00Z"}),
            json!({"customer_id": "c-1", "store_id": 8, "timestamp": "2026-08-01T10:40:00Z"}),
        ] {
            assert_ne!(key(&cart(), other.clone()), first, "{other}");
        }
        let bucket = computed(&cart(), at("2026-08-01T10:44:59Z")).expect("a key").bucket.expect("a stretch");
        assert_eq!(bucket.to_string(), "2026-08-01T10:40:00.000Z");
        assert_ne!(key(&DedupRule { owner: "other".into(), ..cart() }, at("2026-08-01T10:40:00Z")), first);
    }

    #[test]
    fn b1_the_key_of_these_fields_never_changes_from_one_version_to_the_next() {
        let pinned = "0647d47ee2160f180bbe1c4a2416e4cb2b5c1d015c78984a1db7433238d79e92";
        assert_eq!(key(&cart(), at("2026-08-01T10:40:00Z")), pinned);
    }

    #[test]
    fn b1_a_mail_address_and_a_phone_number_are_one_however_they_are_written() {
        let country = "DE".parse().expect("a country");
        let rule = DedupRule {
            owner: "w".into(),
            fields: vec![field("email", Reading::Email), field("phone", Reading::Phone(Some(country)))],
        };
        let of = |email: &str, phone: &str| key(&rule, json!({"email": email, "phone": phone}));
        let first = of("ada@example.com", "+4930123456");
        assert_eq!(of(" Ada <ADA@Example.com>", "030 123456"), first);
        assert_ne!(of("bob@example.com", "+4930123456"), first);
        let bad = computed(&rule, json!({"email": "kanary", "phone": "+4930123456"})).expect_err("no address");
        assert_eq!(bad, NoDedupKey::NotAnEmail("email".into()));
        let bad = computed(&rule, json!({"email": "a@b.example", "phone": "kanary"})).expect_err("no number");
        assert!(matches!(bad, NoDedupKey::NotAPhone(..)) && !bad.to_string().contains("kanary"), "{bad}");
    }

    #[test]
    fn b1_a_field_that_is_not_there_or_says_nothing_makes_no_key() {
        let said = |body: Value| computed(&cart(), body).expect_err("no key");
        let missing = said(json!({"customer": 1, "customer_idd": 2, "store_id": 7, "timestamp": 1}));
        assert!(missing.is_missing() && missing.to_string().contains("did you mean `body.customer_idd`?"), "{missing}");
        let with = |id: Value| said(json!({"customer_id": id, "store_id": 7, "timestamp": 1}));
        assert_eq!(with(Value::Null), NoDedupKey::Empty("customer_id".into()));
        assert_eq!(with("".into()), NoDedupKey::Empty("customer_id".into()));
        assert_eq!(with("x".repeat(2_000).into()), NoDedupKey::TooLong("customer_id".into()));
        assert_eq!(with(json!([1])), NoDedupKey::NotScalar("customer_id".into()));
        for bad in
            [json!("yesterday"), json!(null), json!(1e20), json!(i64::MIN), json!(u64::MAX), json!(true), json!("")]
        {
            assert_eq!(said(at(bad.clone())), NoDedupKey::NotATime("timestamp".into()), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn b1_moments_of_one_stretch_have_one_key_and_those_of_two_have_two(
            seconds in -30_000_000_000_i64..50_000_000_000, later in 0_i64..10_000, width in 1_u32..2_000,
        ) {
            let rule = DedupRule { owner: "w".into(), fields: vec![field("t", minutes(width))] };
            let of = |seconds: i64| key(&rule, json!({ "t": seconds }));
            let stretch = |seconds: i64| seconds.div_euclid(i64::from(width) * 60);
            let same = stretch(seconds) == stretch(seconds + later);
            prop_assert_eq!(of(seconds) == of(seconds + later), same);
        }

        #[test]
        fn b1_two_keys_are_one_only_where_all_fields_are(a in "[ab]{1,3}", b in "[ab]{1,3}", c in "[ab]{1,3}", d in "[ab]{1,3}") {
            let rule = DedupRule { owner: "w".into(), fields: vec![field("x", Reading::AsItIs), field("y", Reading::AsItIs)] };
            let of = |x: &str, y: &str| key(&rule, json!({ "x": x, "y": y }));
            prop_assert_eq!(of(&a, &b) == of(&c, &d), (a, b) == (c, d));
        }

        #[test]
        fn b1_no_value_makes_it_panic(text in "\\PC{0,40}", number: f64, whole: i64) {
            for value in [json!(text), json!(number), json!(whole)] {
                for reading in [Reading::AsItIs, Reading::Email, Reading::Phone(None), minutes(1), minutes(BUCKET_MINUTES_MAX)] {
                    let rule = DedupRule { owner: "w".into(), fields: vec![field("x", reading)] };
                    if let Ok(Computed { key, .. }) = computed(&rule, json!({ "x": value.clone() })) {
                        prop_assert_eq!(key.len(), 64);
                    }
                }
            }
        }
    }
}
