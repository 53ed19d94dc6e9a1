use super::super::Signed;
use super::super::signed::Written;
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "github",
    title: "GitHub",
    family: "github",
    scheme,
    id: &[&[Place::Header("x-github-delivery")]],
    id_is_signed: false,
    kind: &[&[Place::Header("x-github-event"), Place::Event("/action")], &[Place::Header("x-github-event")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: Retries::Never,
    drop: &[],
    docs: "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries",
};

/// The older `X-Hub-Signature` (SHA-1) is sent beside it and never read.
fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-hub-signature-256".into()],
        written: Written::Alone { prefix: "sha256=".into() },
        ..Signed::default()
    }
    .into()
}
