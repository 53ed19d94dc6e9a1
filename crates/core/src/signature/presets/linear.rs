use super::super::Signed;
use super::super::signed::{At, Moment};
use super::super::window::Unit;
use super::{Batch, Content, Place, Preset, Scheme, hours};
use std::time::Duration;

pub const PRESET: Preset = Preset {
    name: "linear",
    title: "Linear",
    family: "linear",
    scheme,
    id: &[&[Place::Header("linear-delivery")], &[Place::Digest]],
    id_is_signed: false,
    kind: &[&[Place::Event("/type"), Place::Event("/action")], &[Place::Event("/type")]],
    kinds: &[
        ("Issue.create", "issue.created"),
        ("Issue.update", "issue.updated"),
        ("Issue.remove", "issue.removed"),
        ("Comment.create", "comment.created"),
        ("Comment.update", "comment.updated"),
        ("Comment.remove", "comment.removed"),
        ("Project.create", "project.created"),
        ("Project.update", "project.updated"),
    ],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: hours(8),
    drop: &[],
    docs: "https://linear.app/developers/webhooks",
};

/// The timestamp that counts is in the signed body; the header beside it proves nothing.
fn scheme() -> Scheme {
    Signed {
        headers: vec!["linear-signature".into()],
        moment: Some(Moment { place: At::Body("/webhookTimestamp".into()), unit: Unit::Millis }),
        tolerance: Some(Duration::from_secs(60)),
        ..Signed::default()
    }
    .into()
}
