//! The webhook destination (Actions).

use super::super::Signed;
use super::super::signed::Algorithm;
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "segment",
    title: "Segment",
    family: "segment",
    scheme,
    id: &[&[Place::Event("/messageId")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/type"), Place::Event("/event")], &[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::List(""),
    ack: 202,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://segment.com/docs/connections/destinations/catalog/actions-webhook/",
};

fn scheme() -> Scheme {
    Signed { algorithm: Algorithm::HmacSha1, headers: vec!["x-signature".into()], ..Signed::default() }.into()
}
