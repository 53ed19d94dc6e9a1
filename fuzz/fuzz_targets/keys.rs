//! Keys of an event's fields, whatever is in them: of 64 digits and always the same, or none, and never a panic.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::dedup::{BUCKET_MINUTES_MAX, DedupRule, Field, Reading};
use clinch_core::expr::{Expr, Scope};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::num::NonZeroU32;

#[derive(Arbitrary, Debug)]
enum Read {
    AsItIs,
    Email,
    Phone(bool),
    Time(u32),
}

#[derive(Arbitrary, Debug)]
struct Made<'a> {
    owner: &'a str,
    readings: Vec<Read>,
    body: &'a [u8],
}

fuzz_target!(|made: Made<'_>| {
    let body: Value = serde_json::from_slice(made.body).unwrap_or_default();
    let fields = made.readings.iter().take(16).enumerate().map(|(at, reading)| Field {
        name: format!("f{at}"),
        value: Expr::parse(&format!("body.f{at} | default(body.x)")).expect("an expression"),
        reading: match reading {
            Read::AsItIs => Reading::AsItIs,
            Read::Email => Reading::Email,
            Read::Phone(german) => Reading::Phone(german.then(|| "DE".parse().expect("a country"))),
            Read::Time(minutes) => {
                let minutes = minutes % BUCKET_MINUTES_MAX + 1;
                Reading::Time { bucket_minutes: NonZeroU32::new(minutes).expect("not zero") }
            }
        },
    });
    let rule = DedupRule { owner: made.owner.to_string(), fields: fields.collect() };
    let names = Scope::from_iter([("body".to_string(), body)]);
    let computed = rule.compute(&names);
    assert_eq!(computed, rule.compute(&names));
    if let Ok(computed) = computed {
        assert_eq!(computed.key.len(), 64);
        let other = DedupRule { owner: format!("{}x", rule.owner), ..rule };
        assert_ne!(other.compute(&names).expect("the same fields").key, computed.key);
    }
});
