//! System webhooks. The webhook action of a flow is not signed at all.

use super::super::signed::{At, Moment, Part};
use super::super::window::Unit;
use super::super::{SecretFormat, Signed};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "klaviyo",
    title: "Klaviyo",
    family: "klaviyo",
    scheme,
    // The header `Klaviyo-Webhook-Id` names the subscription, not the delivery.
    id: &[&[Place::Event("/external_id"), Place::Event("/topic")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/topic")]],
    kinds: &[
        ("event:klaviyo.opened_email", "email.opened"),
        ("event:klaviyo.clicked_email", "email.clicked"),
        ("event:klaviyo.received_email", "email.received"),
        ("event:klaviyo.email_delivered", "email.delivered"),
        ("event:klaviyo.bounced_email", "email.bounced"),
        ("event:klaviyo.marked_email_as_spam", "email.reported"),
        ("event:klaviyo.unsubscribed_from_email_marketing", "email.unsubscribed"),
        ("event:klaviyo.received_sms", "sms.received"),
        ("event:klaviyo.sent_sms", "sms.sent"),
    ],
    content: Content::Json,
    batch: Batch::List("/data"),
    ack: 202,
    handshake: None,
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://developers.klaviyo.com/en/docs/system-webhooks",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["klaviyo-signature".into()],
        parts: vec![Part::Body, Part::Timestamp],
        moment: Some(Moment { place: At::Header("klaviyo-timestamp".into()), unit: Unit::HttpDate }),
        secret: SecretFormat::Text { chars_min: 16 },
        ..Signed::default()
    }
    .into()
}
