//! Paddle Billing.

use super::super::Signed;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::Unit;
use super::{Batch, Content, Place, Preset, Scheme, hours};
use std::time::Duration;

pub const PRESET: Preset = Preset {
    name: "paddle",
    title: "Paddle Billing",
    family: "paddle",
    scheme,
    id: &[&[Place::Event("/event_id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event_type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: hours(72),
    drop: &[],
    docs: "https://developer.paddle.com/webhooks/signature-verification",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["paddle-signature".into()],
        written: Written::Pairs { separator: ';', name: "h1".into() },
        parts: vec![Part::Timestamp, Part::Text(":".into()), Part::Body],
        moment: Some(Moment { place: At::Pair("ts".into()), unit: Unit::Seconds }),
        tolerance: Some(Duration::from_secs(5)),
        ..Signed::default()
    }
    .into()
}
