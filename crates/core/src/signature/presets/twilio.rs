use super::super::signed::{Algorithm, Encoding, Part};
use super::super::{Signed, Spelling};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "twilio",
    title: "Twilio",
    family: "twilio",
    scheme,
    id: &[
        &[Place::Header("i-twilio-idempotency-token")],
        &[Place::Event("/MessageSid"), Place::Event("/MessageStatus")],
        &[Place::Event("/CallSid"), Place::Event("/CallStatus")],
        &[Place::Digest],
    ],
    id_is_signed: false,
    kind: &[
        &[Place::Event("/EventType")],
        &[Place::Event("/MessageStatus")],
        &[Place::Event("/SmsStatus")],
        &[Place::Event("/CallStatus")],
    ],
    kinds: &[
        ("received", "message.received"),
        ("receiving", "message.receiving"),
        ("queued", "message.queued"),
        ("sending", "message.sending"),
        ("sent", "message.sent"),
        ("delivered", "message.delivered"),
        ("undelivered", "message.undelivered"),
        ("failed", "message.failed"),
        ("read", "message.read"),
        ("ringing", "call.ringing"),
        ("in-progress", "call.answered"),
        ("completed", "call.completed"),
        ("busy", "call.busy"),
        ("no-answer", "call.unanswered"),
        ("canceled", "call.cancelled"),
    ],
    content: Content::Form,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://www.twilio.com/docs/usage/webhooks/webhooks-security",
};

fn scheme() -> Scheme {
    Signed {
        algorithm: Algorithm::HmacSha1,
        headers: vec!["x-twilio-signature".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Url, Part::TwilioBody],
        spelling: Spelling::AnyPort,
        ..Signed::default()
    }
    .into()
}
