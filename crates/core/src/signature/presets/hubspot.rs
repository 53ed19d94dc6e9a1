//! Three schemes of one provider. CRM webhooks still come as v1, workflow actions as v2; v3 is beside them for new apps.

use super::super::signed::{Algorithm, At, Encoding, Moment, Part};
use super::super::window::{TOLERANCE_USUAL, Unit};
use super::super::{Signed, Spelling};
use super::{Batch, Content, Place, Places, Preset, Scheme, hours};

/// An id is not unique by itself, and `attemptNumber` changes with each try.
const ID: &[Places] = &[
    &[Place::Event("/eventId"), Place::Event("/subscriptionId"), Place::Event("/occurredAt")],
    &[Place::Event("/eventId")],
    &[Place::Digest],
];

const BASE: Preset = Preset {
    name: "hubspot-v3",
    title: "HubSpot (v3)",
    family: "hubspot",
    scheme: v3,
    id: ID,
    id_is_signed: true,
    kind: &[&[Place::Event("/subscriptionType")]],
    kinds: &[
        ("contact.creation", "contact.created"),
        ("contact.deletion", "contact.deleted"),
        ("contact.propertyChange", "contact.changed"),
        ("contact.merge", "contact.merged"),
        ("contact.privacyDeletion", "contact.erased"),
        ("company.creation", "company.created"),
        ("company.deletion", "company.deleted"),
        ("company.propertyChange", "company.changed"),
        ("deal.creation", "deal.created"),
        ("deal.deletion", "deal.deleted"),
        ("deal.propertyChange", "deal.changed"),
        ("ticket.creation", "ticket.created"),
        ("ticket.propertyChange", "ticket.changed"),
    ],
    content: Content::Json,
    batch: Batch::List(""),
    ack: 202,
    handshake: None,
    retries: hours(24),
    drop: &[],
    docs: "https://developers.hubspot.com/docs/apps/developer-platform/build-apps/authentication/request-validation",
};

pub const V1: Preset = Preset { name: "hubspot-v1", title: "HubSpot (v1)", scheme: v1, ..BASE };
pub const V2: Preset = Preset { name: "hubspot-v2", title: "HubSpot (v2)", scheme: v2, ..BASE };
pub const V3: Preset = BASE;

fn older(version: &str, parts: Vec<Part>) -> Scheme {
    Signed {
        algorithm: Algorithm::Sha256,
        headers: vec!["x-hubspot-signature".into()],
        version: Some(("x-hubspot-signature-version".into(), version.into())),
        parts,
        ..Signed::default()
    }
    .into()
}

fn v1() -> Scheme {
    older("v1", vec![Part::Secret, Part::Body])
}

fn v2() -> Scheme {
    older("v2", vec![Part::Secret, Part::Method, Part::Url, Part::Body])
}

fn v3() -> Scheme {
    Signed {
        headers: vec!["x-hubspot-signature-v3".into()],
        encoding: Encoding::Base64,
        parts: vec![Part::Method, Part::Url, Part::Body, Part::Timestamp],
        moment: Some(Moment { place: At::Header("x-hubspot-request-timestamp".into()), unit: Unit::Millis }),
        tolerance: Some(TOLERANCE_USUAL),
        spelling: Spelling::HubSpot,
        ..Signed::default()
    }
    .into()
}
