//! The event webhook. The body ends with CR LF, and that is signed too.

use super::super::signed::{Algorithm, At, Encoding, Moment, Part};
use super::super::window::Unit;
use super::super::{SecretFormat, Signed};
use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "sendgrid",
    title: "SendGrid",
    family: "sendgrid",
    scheme,
    id: &[&[Place::Event("/sg_event_id")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event")]],
    kinds: &[
        ("processed", "email.processed"),
        ("delivered", "email.delivered"),
        ("deferred", "email.deferred"),
        ("bounce", "email.bounced"),
        ("dropped", "email.dropped"),
        ("open", "email.opened"),
        ("click", "email.clicked"),
        ("spamreport", "email.reported"),
        ("unsubscribe", "email.unsubscribed"),
        ("group_unsubscribe", "email.group_unsubscribed"),
        ("group_resubscribe", "email.group_resubscribed"),
    ],
    content: Content::Json,
    batch: Batch::List(""),
    ack: 202,
    handshake: None,
    retries: hours(24),
    drop: &[],
    docs: "https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features",
};

fn scheme() -> Scheme {
    Signed {
        algorithm: Algorithm::EcdsaP256,
        headers: vec!["x-twilio-email-event-webhook-signature".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Timestamp, Part::Body],
        moment: Some(Moment {
            place: At::Header("x-twilio-email-event-webhook-timestamp".into()),
            unit: Unit::Seconds,
        }),
        secret: SecretFormat::P256Public,
        ..Signed::default()
    }
    .into()
}
