use super::super::Signed;
use super::super::handshake::Handshake;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::{TOLERANCE_USUAL, Unit};
use super::{Batch, Content, Place, Preset, Scheme, minutes};

pub const PRESET: Preset = Preset {
    name: "slack",
    title: "Slack",
    family: "slack",
    scheme,
    // Commands and buttons have no event id; each press has a trigger of its own.
    id: &[&[Place::Event("/event_id")], &[Place::Event("/trigger_id")], &[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event/type")], &[Place::Event("/command")], &[Place::Event("/type")]],
    kinds: &[],
    content: Content::Form,
    batch: Batch::One,
    ack: 200,
    handshake: Some(Handshake::Slack),
    retries: minutes(7),
    drop: &["/token"],
    docs: "https://docs.slack.dev/authentication/verifying-requests-from-slack/",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-slack-signature".into()],
        written: Written::Alone { prefix: "v0=".into() },
        parts: vec![Part::Text("v0:".into()), Part::Timestamp, Part::Text(":".into()), Part::Body],
        moment: Some(Moment { place: At::Header("x-slack-request-timestamp".into()), unit: Unit::Seconds }),
        tolerance: Some(TOLERANCE_USUAL),
        ..Signed::default()
    }
    .into()
}
