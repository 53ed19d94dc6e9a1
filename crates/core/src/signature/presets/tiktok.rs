//! TikTok for Developers. TikTok Shop signs otherwise: `hmac` with `header: Authorization` and `signed: APPKEY{body}`.

use super::super::Signed;
use super::super::signed::{At, Moment, Part, Written};
use super::super::window::Unit;
use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "tiktok",
    title: "TikTok for Developers",
    family: "tiktok",
    scheme,
    id: &[&[Place::Digest]],
    id_is_signed: true,
    kind: &[&[Place::Event("/event")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: None,
    retries: hours(72),
    drop: &[],
    docs: "https://developers.tiktok.com/doc/webhooks-verification",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["tiktok-signature".into()],
        written: Written::Pairs { separator: ',', name: "s".into() },
        parts: vec![Part::Timestamp, Part::Text(".".into()), Part::Body],
        moment: Some(Moment { place: At::Pair("t".into()), unit: Unit::Seconds }),
        ..Signed::default()
    }
    .into()
}
