//! Mailchimp Transactional.

use super::super::Signed;
use super::super::handshake::Handshake;
use super::super::signed::{Algorithm, Encoding, Part};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "mandrill",
    title: "Mandrill (Mailchimp Transactional)",
    family: "mandrill",
    scheme,
    id: &[&[Place::Event("/_id"), Place::Event("/event"), Place::Event("/ts")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event")]],
    kinds: &[
        ("send", "email.sent"),
        ("delivered", "email.delivered"),
        ("deferral", "email.deferred"),
        ("soft_bounce", "email.bounced_softly"),
        ("hard_bounce", "email.bounced"),
        ("open", "email.opened"),
        ("click", "email.clicked"),
        ("spam", "email.reported"),
        ("unsub", "email.unsubscribed"),
        ("reject", "email.rejected"),
        ("inbound", "email.received"),
    ],
    content: Content::FormField("mandrill_events"),
    batch: Batch::List(""),
    ack: 200,
    handshake: Some(Handshake::Mandrill),
    retries: Retries::Unknown,
    drop: &[],
    docs: "https://mailchimp.com/developer/transactional/guides/track-respond-activity-webhooks/",
};

/// The address is signed exactly as it was typed into the settings, user and password too.
fn scheme() -> Scheme {
    Signed {
        algorithm: Algorithm::HmacSha1,
        headers: vec!["x-mandrill-signature".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Url, Part::SortedForm],
        ..Signed::default()
    }
    .into()
}
