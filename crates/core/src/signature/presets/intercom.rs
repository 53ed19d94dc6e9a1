use super::super::Signed;
use super::super::handshake::Handshake;
use super::super::signed::{Algorithm, Written};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "intercom",
    title: "Intercom",
    family: "intercom",
    scheme,
    id: &[&[Place::Event("/id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/topic")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: Some(Handshake::Intercom),
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://developers.intercom.com/docs/references/webhooks/webhook-models",
};

fn scheme() -> Scheme {
    Signed {
        algorithm: Algorithm::HmacSha1,
        headers: vec!["x-hub-signature".into()],
        written: Written::Alone { prefix: "sha1=".into() },
        ..Signed::default()
    }
    .into()
}
