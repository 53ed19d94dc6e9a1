use super::super::Signed;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::{TOLERANCE_USUAL, Unit};
use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "stripe",
    title: "Stripe",
    family: "stripe",
    scheme,
    id: &[&[Place::Event("/id")]],
    id_is_signed: true,
    kind: &[&[Place::Event("/type")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: hours(72),
    drop: &[],
    docs: "https://docs.stripe.com/webhooks/signature",
};

/// The secret is used whole, `whsec_` included: here it is not base64. `v0` is for tests and never counts.
fn scheme() -> Scheme {
    Signed {
        headers: vec!["stripe-signature".into()],
        written: Written::Pairs { separator: ',', name: "v1".into() },
        parts: vec![Part::Timestamp, Part::Text(".".into()), Part::Body],
        moment: Some(Moment { place: At::Pair("t".into()), unit: Unit::Seconds }),
        tolerance: Some(TOLERANCE_USUAL),
        ..Signed::default()
    }
    .into()
}
