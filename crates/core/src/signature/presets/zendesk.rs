use super::super::Signed;
use super::super::signed::{At, Encoding, Moment, Part};
use super::super::window::Unit;
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "zendesk",
    title: "Zendesk",
    family: "zendesk",
    scheme,
    id: &[&[Place::Header("x-zendesk-webhook-invocation-id")], &[Place::Event("/id")], &[Place::Digest]],
    id_is_signed: false,
    kind: &[&[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://developer.zendesk.com/documentation/webhooks/verifying/",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-zendesk-webhook-signature".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Timestamp, Part::Body],
        moment: Some(Moment { place: At::Header("x-zendesk-webhook-signature-timestamp".into()), unit: Unit::Rfc3339 }),
        ..Signed::default()
    }
    .into()
}
