//! Any sender that signs with HMAC. The settings of the source say how; these are the ones it starts from.

use super::super::Signed;
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "hmac",
    title: "Any HMAC sender",
    family: "",
    scheme,
    id: &[&[Place::Header("idempotency-key")], &[Place::Digest]],
    id_is_signed: false,
    kind: &[&[Place::Event("/type")], &[Place::Event("/event")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "docs/sources.md",
};

fn scheme() -> Scheme {
    Signed { headers: vec!["x-signature".into()], ..Signed::default() }.into()
}
