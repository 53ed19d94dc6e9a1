//! Lead forms. Nothing is signed: the key that was typed into the form's settings comes in the body.

use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "google-ads",
    title: "Google Ads lead forms",
    family: "google-ads",
    scheme: || Scheme::Token("/google_key"),
    id: &[&[Place::Event("/lead_id")]],
    id_is_signed: false,
    kind: &[&[Place::Event("/is_test")]],
    kinds: &[("true", "lead.tested"), ("false", "lead.created"), ("", "lead.created")],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: Retries::Unknown,
    drop: &["/google_key"],
    docs: "https://developers.google.com/google-ads/webhook/docs/implementation",
};
