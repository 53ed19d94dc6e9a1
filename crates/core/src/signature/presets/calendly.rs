use super::super::Signed;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::Unit;
use super::{Batch, Content, Place, Preset, Scheme, hours};
use std::time::Duration;

pub const PRESET: Preset = Preset {
    name: "calendly",
    title: "Calendly",
    family: "calendly",
    scheme,
    id: &[&[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event")]],
    kinds: &[
        ("invitee.created", "booking.created"),
        ("invitee.canceled", "booking.cancelled"),
        ("invitee_no_show.created", "booking.no_show"),
        ("routing_form_submission.created", "form.submitted"),
    ],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: hours(24),
    drop: &[],
    docs: "https://developer.calendly.com/api-docs/4c305798a61d3-webhook-signatures",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["calendly-webhook-signature".into()],
        written: Written::Pairs { separator: ',', name: "v1".into() },
        parts: vec![Part::Timestamp, Part::Text(".".into()), Part::Body],
        moment: Some(Moment { place: At::Pair("t".into()), unit: Unit::Seconds }),
        tolerance: Some(Duration::from_secs(180)),
        ..Signed::default()
    }
    .into()
}
