//! Standard Webhooks, and Svix, from which it came.

use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "standardwebhooks",
    title: "Standard Webhooks (v1, v1a), Svix",
    family: "",
    scheme: || Scheme::Standard,
    id: &[&[Place::Header("webhook-id")], &[Place::Header("svix-id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: hours(75),
    drop: &[],
    docs: "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
};
