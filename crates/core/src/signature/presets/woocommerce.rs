use super::super::handshake::Handshake;
use super::super::signed::Encoding;
use super::super::{SecretFormat, Signed};
use super::{Batch, Content, Place, Preset, Retries, Scheme};

pub const PRESET: Preset = Preset {
    name: "woocommerce",
    title: "WooCommerce",
    family: "woocommerce",
    scheme,
    // Two deliveries of one second share a delivery id; by that id an order would be lost.
    id: &[&[Place::Header("x-wc-webhook-topic"), Place::Digest], &[Place::Digest]],
    id_is_signed: false,
    kind: &[&[Place::Header("x-wc-webhook-topic")]],
    kinds: &[],
    content: Content::Json,
    batch: Batch::One,
    ack: 200,
    handshake: Some(Handshake::WooCommerce),
    retries: Retries::Never,
    drop: &[],
    docs: "https://woocommerce.com/document/webhooks/",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-wc-webhook-signature".into()],
        encoding: Encoding::Base64,
        secret: SecretFormat::WordPress,
        ..Signed::default()
    }
    .into()
}
