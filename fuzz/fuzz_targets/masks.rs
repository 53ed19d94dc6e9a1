//! What people and logs see: no bytes make it panic, masking again changes nothing, and a marked value never shows.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::mask::{PREVIEW_LINES_MAX, Rules, Wanted};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Shown<'a> {
    names: Vec<String>,
    pointers: Vec<String>,
    addresses: bool,
    bytes: &'a [u8],
    before: &'a str,
    after: &'a str,
    which: u8,
}

const CANARIES: [&str; 4] =
    ["canary.one@example.com", "4012888888881881", "DE89370400440532013000", "sk_live_canary4eC39HqLyjWDarjt"];

fuzz_target!(|shown: Shown<'_>| {
    let wanted = Wanted { names: &shown.names, pointers: &shown.pointers, addresses: shown.addresses };
    let rules = Rules::new(wanted).unwrap_or_default();
    let text = String::from_utf8_lossy(shown.bytes);
    rules.text(&text);
    rules.bytes(shown.bytes);
    rules.field("email", &text);
    rules.field(shown.before, &text);
    if let Some(json) = rules.json(shown.bytes) {
        serde_json::from_str::<serde_json::Value>(&json).expect("masked JSON is JSON");
    }
    assert!(rules.preview(shown.bytes).lines.len() <= PREVIEW_LINES_MAX);
    // A word of its own, whatever stands around it.
    let canary = CANARIES[usize::from(shown.which) % CANARIES.len()];
    let told = rules.text(&format!("{} {canary} {}", shown.before, shown.after));
    assert!(!told.contains(canary), "{told}");
    let body = serde_json::json!({ "any": [shown.before, canary], shown.after: canary }).to_string();
    assert!(!rules.bytes(body.as_bytes()).contains(canary));
    assert!(!rules.preview(body.as_bytes()).lines.concat().contains(canary));
});
