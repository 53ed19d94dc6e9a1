use super::super::Signed;
use super::super::signed::{Encoding, Part};
use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "square",
    title: "Square",
    family: "square",
    scheme,
    id: &[&[Place::Event("/event_id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: hours(24),
    drop: &[],
    docs: "https://developer.squareup.com/docs/webhooks/step3validate",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-square-hmacsha256-signature".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Url, Part::Body],
        ..Signed::default()
    }
    .into()
}
