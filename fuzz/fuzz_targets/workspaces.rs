//! A workspace of any text in any of its files, and a good one with a few places changed: read, or refused with places that
//! are in the text.
#![no_main]

use arbitrary::Arbitrary;
use clinch_core::config::{Files, load, position};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Written {
    Anew(String),
    /// What is there, with some characters at this place replaced.
    Changed(Vec<(u16, u8, String)>),
    Missing,
}

const FILES: [(&str, &str); 6] = [
    ("clinch.yml", CLINCH),
    ("flows/ingest.yml", include_str!("../../crates/core/tests/tutorial/flows/ingest.yml")),
    ("playbooks/cart.yml", include_str!("../../crates/core/tests/cart-recovery/playbooks/cart-recovery.yaml")),
    ("queues.yml", include_str!("../../crates/core/tests/tutorial/queues.yml")),
    ("schemas/order.v2.json", r#"{"type": "object", "required": ["id"], "properties": {"id": {"maxLength": 5}}}"#),
    ("workers/contact-upsert.yml", include_str!("../../crates/core/tests/tutorial/workers/contact-upsert.yml")),
];

const CLINCH: &str = "version: 1
listen: 127.0.0.1:7400
masking: {fields: [crm_id, '*note*'], pointers: [/deal/*/stage], addresses: true}
kv:
  keys: {url: 'rediss://clinch:${secrets.REDIS}@redis.example:6379/0', pepper: '${secrets.PEPPER}'}
sources:
  shop: {verify: shopify, secret: '${secrets.SHOP}', drop: [/customer/note], hash: [/email], schema: order.v2}
  crm:
    verify: {header: X-Sig, signed: '{timestamp}.{body}', timestamp: 'header:X-Time', tolerance: 5m}
    secrets: ['${secrets.A}', {secret: '${secrets.B}', id: old, not_after: 2026-09-01T00:00:00Z}]
    limits: {address: 100/s, source: 10/m, mode: defer}
    cloudevents: {batches: true, origins: [a.example]}
";

fuzz_target!(|written: [Written; 6]| {
    let files = FILES.into_iter().zip(written).filter_map(|((path, text), written)| {
        let text = match written {
            Written::Anew(text) => text,
            Written::Changed(changes) => changes.into_iter().fold(text.to_string(), |text, (at, length, put)| {
                let start = text.floor_char_boundary(usize::from(at) % (text.len() + 1));
                let end = text.ceil_char_boundary((start + usize::from(length % 16)).min(text.len()));
                format!("{}{put}{}", &text[..start], &text[end..])
            }),
            Written::Missing => return None,
        };
        Some((path.to_string(), text))
    });
    let files = Files(files.collect());
    assert_eq!(Files::from_json(&files.to_json()).expect("it reads back"), files);
    let problems = match load(&files) {
        Ok((workspace, warnings)) => {
            assert!(workspace.entrances().all(|way| way.path.starts_with('/')));
            warnings
        }
        Err(problems) => problems,
    };
    for problem in problems {
        let text = files.0.iter().find(|(path, _)| *path == problem.file).map_or("", |(_, text)| text);
        assert!(problem.span.end <= text.len() && text.is_char_boundary(problem.span.start), "{problem:?}");
        position(text, problem.span.start);
    }
});
