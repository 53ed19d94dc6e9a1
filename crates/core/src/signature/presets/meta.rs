//! Facebook, Instagram and WhatsApp: one request carries entries, each entry changes or messages.

use super::super::Signed;
use super::super::handshake::Handshake;
use super::super::signed::Written;
use super::{Batch, Content, Members, Place, Preset, Scheme, hours};
use serde_json::value::RawValue;
use std::borrow::Cow;

pub const PRESET: Preset = Preset {
    name: "meta",
    title: "Meta (Lead Ads, WhatsApp, Instagram)",
    family: "meta",
    scheme,
    id: &[&[Place::Event("/value/leadgen_id")], &[Place::Event("/message/mid")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/object"), Place::Event("/field")], &[Place::Event("/object")]],
    kinds: &[
        ("page.leadgen", "lead.created"),
        ("page.messages", "message.received"),
        ("page.messaging", "message.received"),
        ("instagram.messaging", "message.received"),
        ("instagram.comments", "comment.created"),
        ("whatsapp_business_account.messages", "whatsapp.message"),
    ],
    content: Content::Json,
    batch: Batch::Meta,
    ack: 200,
    handshake: Some(Handshake::Meta),
    retries: hours(36),
    drop: &[],
    docs: "https://developers.facebook.com/docs/graph-api/webhooks/getting-started",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-hub-signature-256".into()],
        written: Written::Alone { prefix: "sha256=".into() },
        ..Signed::default()
    }
    .into()
}

/// Each change with what its entry says around it: `{"object":…,"id":…,"time":…,"field":…,"value":…}`. `None` when the
/// body has no entries.
pub(super) fn items(body: &[u8]) -> Option<Vec<Cow<'_, [u8]>>> {
    let body: Members<'_> = serde_json::from_slice(body).ok()?;
    let entries: Vec<Members<'_>> = serde_json::from_str(body.get("entry")?.get()).ok()?;
    let mut items = Vec::new();
    for entry in &entries {
        for list in ["changes", "messaging"] {
            let Some(raw) = entry.get(list) else { continue };
            for change in serde_json::from_str::<Vec<Members<'_>>>(raw.get()).ok()? {
                let around = [("object", body.get("object")), ("id", entry.get("id")), ("time", entry.get("time"))];
                items.push(item(around, list, &change).into());
            }
        }
    }
    Some(items)
}

fn item(around: [(&str, Option<&&RawValue>); 3], list: &str, change: &Members<'_>) -> Vec<u8> {
    let around = around.into_iter().filter_map(|(name, raw)| Some((name, raw?.get())));
    let change_members = change.iter().map(|(name, raw)| (&**name, raw.get()));
    let field = (list == "messaging").then_some(("field", "\"messaging\""));
    let members = around.filter(|(name, _)| !change.contains_key(*name)).chain(field).chain(change_members);
    let written: Vec<String> = members.map(|(name, raw)| format!("{}:{raw}", serde_json::Value::from(name))).collect();
    format!("{{{}}}", written.join(",")).into_bytes()
}
