use super::super::Signed;
use super::super::signed::{Encoding, Written};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "typeform",
    title: "Typeform",
    family: "typeform",
    scheme,
    id: &[&[Place::Event("/event_id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event_type")]],
    kinds: &[("form_response", "form.submitted"), ("form_response_partial", "form.submitted_partly")],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://www.typeform.com/developers/webhooks/secure-your-webhooks/",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["typeform-signature".into()],
        written: Written::Alone { prefix: "sha256=".into() },
        encoding: Encoding::Base64,
        ..Signed::default()
    }
    .into()
}
