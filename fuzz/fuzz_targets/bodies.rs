//! Bodies of every kind: batches, forms, CloudEvents, what is kept of them, and what is read back from the store.
#![no_main]

use arbitrary::Arbitrary;
use bytes::Bytes;
use clinch_core::form;
use clinch_core::minimise::{HashKey, Minimise, Wanted};
use clinch_core::payload::{About, Payload, TraceId};
use clinch_core::schema::Schema;
use clinch_core::signature::Request;
use clinch_core::signature::presets::ALL;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[derive(Arbitrary, Debug)]
struct Sent<'a> {
    preset: u8,
    form: bool,
    keep: Option<Vec<String>>,
    drop: Vec<String>,
    hash: Vec<String>,
    id: &'a str,
    header: &'a str,
    body: &'a [u8],
}

fuzz_target!(|sent: Sent<'_>| {
    let kind = if sent.form { "application/x-www-form-urlencoded" } else { "application/json" };
    let headers = [("content-type", kind.as_bytes()), ("x-github-event", sent.header.as_bytes())];
    let request = Request { method: "POST", url: "", headers: &headers, body: sent.body };
    let preset = ALL[usize::from(sent.preset) % ALL.len()];
    if let Ok(events) = preset.events(&request) {
        for event in events {
            let again: Value = serde_json::from_slice(&event.body).expect("an event is JSON");
            assert_eq!(again, event.value);
        }
    }
    if let Ok(fields) = form::fields(sent.body) {
        form::to_json(fields);
    }
    let body = Bytes::copy_from_slice(sent.body);
    let wanted = Wanted { keep: sent.keep.as_deref(), drop: &sent.drop, hash: &sent.hash, headers: None };
    if let Ok(rules) = Minimise::new(wanted) {
        let _ = rules.body(&body, Some(kind), &HashKey::new(&[7; 32])).map(|kept| {
            assert!(kind != "application/json" || serde_json::from_slice::<Value>(&kept).is_ok() || kept == body);
        });
    }
    // What is stored reads back; what is not ours is refused.
    let _ = Payload::decode(&body);
    let about = About {
        source: "s".into(),
        source_event_id: sent.id.into(),
        kind: "k".into(),
        tenant: sent.header.into(),
        sender: "".into(),
        schema_version: 1,
        mismatch: "".into(),
        trace: TraceId(1),
        job_keys: Vec::new(),
        headers: vec![("h".into(), sent.header.into())],
    };
    let read = Payload::decode(&about.encode(sent.body)).expect("what was written reads back");
    assert_eq!(&read.body[..], sent.body);
    assert_eq!(read.about.source_event_id, sent.id);
    if let (Ok(text), Ok(value)) = (std::str::from_utf8(sent.body), serde_json::from_slice(sent.body)) {
        if let Ok(schema) = Schema::read(text) {
            let _ = schema.check(&value);
        }
        let order = r#"{"type":"object","required":["id"],"properties":{"id":{"type":"string","maxLength":5}}}"#;
        let _ = Schema::read(order).expect("a schema").check(&value);
    }
});
