//! Everything that is read from a header or written like one: structured fields, message signatures, digests, dates,
//! rates, keys, CloudEvents.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::attempt::read_retry_after;
use clinch_core::cloudevents::{self, Batches};
use clinch_core::key::{self, Delivery, KeyPart, KeyRule};
use clinch_core::limit::Rate;
use clinch_core::signature::handshake::cloudevents_origin;
use clinch_core::signature::{
    Request, Scheme, Secret, SecretFormat, Secrets, Window, digest, presets, settings, verify,
};
use clinch_core::time::{Timestamp, parse_duration};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[derive(Arbitrary, Debug)]
struct Sent<'a> {
    input: &'a str,
    signature: &'a str,
    digest: &'a str,
    text: &'a str,
    cloud: [Option<&'a [u8]>; 6],
    body: &'a [u8],
    now: i64,
    settings: Vec<(u8, &'a str)>,
    secret: &'a str,
}

/// One header, sent once or twice.
struct One<'a>(&'a str, bool);

impl Delivery for One<'_> {
    fn header(&self, _: &str) -> Vec<Option<&str>> {
        if self.1 { vec![Some(self.0), None] } else { vec![Some(self.0)] }
    }
    fn body(&self, pointer: &str) -> Option<Value> {
        serde_json::from_str::<Value>(self.0).ok()?.pointer(pointer).cloned()
    }
}

fuzz_target!(|sent: Sent<'_>| {
    let now = Timestamp::from_micros(sent.now);
    let _ = digest::check(sent.digest, sent.body);
    let _ = read_retry_after(sent.text, now);
    let _ = sent.text.parse::<Rate>().map(|rate| rate.policy_header("source"));
    let _ = parse_duration(sent.text);
    if let Ok(part) = sent.text.parse::<KeyPart>() {
        let _ = key::find(&KeyRule::One(part), &One(sent.input, false));
    }
    let header = KeyRule::One(KeyPart::Header("idempotency-key".into()));
    if let Ok(key) = key::find(&header, &One(sent.text, false)) {
        assert!((1..=key::KEY_BYTES_MAX).contains(&key.len()));
    }
    assert!(key::find(&header, &One(sent.text, true)).is_err(), "two are not one");
    for format in [
        SecretFormat::Text { chars_min: 16 },
        SecretFormat::WordPress,
        SecretFormat::StandardWebhooks,
        SecretFormat::P256Public,
        SecretFormat::Labelled,
    ] {
        if let Err(bad) = format.read(sent.secret) {
            let said = bad.to_string();
            assert!(sent.secret.len() < 60 || !said.contains(sent.secret), "a secret is repeated");
        }
    }
    let known = settings::KNOWN;
    let wanted: Vec<(&str, &str)> =
        sent.settings.iter().map(|(place, value)| (known[usize::from(*place) % known.len()].0, *value)).collect();
    let _ = settings::read(&wanted).map(|signed| Scheme::from(signed).told());

    let message = presets::find("rfc9421").expect("a preset");
    let headers: [(&str, &[u8]); 4] = [
        ("signature-input", sent.input.as_bytes()),
        ("signature", sent.signature.as_bytes()),
        ("content-digest", sent.digest.as_bytes()),
        ("date", sent.text.as_bytes()),
    ];
    let request = Request { method: "POST", url: "https://a.example/in?x=1", headers: &headers, body: sent.body };
    let scheme = (message.scheme)();
    let key = scheme.secret_format().read("hmac-sha256:C2FVsBQIhrscChlQIMV+b5sSYspob7oD").expect("a secret");
    let secrets = Secrets::new(vec![Secret::new("one", key)]).expect("one secret");
    assert!(verify(&scheme, &request, &secrets, Window::at(now)).is_err(), "it was forged");

    let names = ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-subject", "content-type"];
    let cloud: Vec<(&str, &[u8])> =
        names.into_iter().zip(sent.cloud).filter_map(|(name, value)| Some((name, value?))).collect();
    let request = Request { headers: &cloud, ..request };
    for batches in [Batches::Refused, Batches::Accepted] {
        let _ = cloudevents::read(&request, batches).map(|events| events.map(|events| events.len()));
    }
    let origin = [("webhook-request-origin", sent.text.as_bytes())];
    let asked = cloudevents_origin(&Request { method: "OPTIONS", headers: &origin, ..request }, &["events.example"]);
    assert!(asked.is_none_or(|origin| origin == "events.example"));
});
