use super::super::Signed;
use super::super::handshake::Handshake;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::{TOLERANCE_USUAL, Unit};
use super::{Batch, Content, Place, Preset, Scheme, minutes};

pub const PRESET: Preset = Preset {
    name: "zoom",
    title: "Zoom",
    family: "zoom",
    scheme,
    id: &[&[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: Some(Handshake::Zoom),
    retries: minutes(90),
    drop: &[],
    docs: "https://developers.zoom.us/docs/api/webhooks/",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-zm-signature".into()],
        written: Written::Alone { prefix: "v0=".into() },
        parts: vec![Part::Text("v0:".into()), Part::Timestamp, Part::Text(":".into()), Part::Body],
        moment: Some(Moment { place: At::Header("x-zm-request-timestamp".into()), unit: Unit::Seconds }),
        tolerance: Some(TOLERANCE_USUAL),
        ..Signed::default()
    }
    .into()
}
