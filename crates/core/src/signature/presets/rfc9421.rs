//! HTTP Message Signatures, for senders that follow the RFC instead of a vendor.

use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "rfc9421",
    title: "HTTP Message Signatures",
    family: "",
    scheme: || Scheme::Message,
    id: &[&[Place::Header("idempotency-key")], &[Place::Digest]],
    id_is_signed: false,
    kind: &[&[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://www.rfc-editor.org/rfc/rfc9421",
};
