use super::super::Signed;
use super::super::signed::Encoding;
use super::{Batch, Content, Place, Preset, Scheme, hours};

pub const PRESET: Preset = Preset {
    name: "shopify",
    title: "Shopify",
    family: "shopify",
    scheme,
    id: &[&[Place::Header("x-shopify-webhook-id")], &[Place::Header("shopify-webhook-id")]],
    id_is_signed: false,
    kind: &[&[Place::Header("x-shopify-topic")], &[Place::Header("shopify-topic")]],
    kinds: &[
        ("app/uninstalled", "app.uninstalled"),
        ("carts/create", "cart.created"),
        ("carts/update", "cart.updated"),
        ("checkouts/create", "checkout.created"),
        ("checkouts/update", "checkout.updated"),
        ("checkouts/delete", "checkout.deleted"),
        ("collections/create", "collection.created"),
        ("collections/update", "collection.updated"),
        ("customers/create", "customer.created"),
        ("customers/update", "customer.updated"),
        ("customers/delete", "customer.deleted"),
        ("customers/data_request", "customer.data_requested"),
        ("customers/redact", "customer.redacted"),
        ("draft_orders/create", "draft_order.created"),
        ("draft_orders/update", "draft_order.updated"),
        ("fulfillments/create", "fulfillment.created"),
        ("fulfillments/update", "fulfillment.updated"),
        ("inventory_levels/update", "inventory_level.updated"),
        ("orders/create", "order.created"),
        ("orders/updated", "order.updated"),
        ("orders/paid", "order.paid"),
        ("orders/cancelled", "order.cancelled"),
        ("orders/fulfilled", "order.fulfilled"),
        ("products/create", "product.created"),
        ("products/update", "product.updated"),
        ("products/delete", "product.deleted"),
        ("refunds/create", "refund.created"),
        ("shop/redact", "shop.redacted"),
        ("shop/update", "shop.updated"),
    ],
    content: Content::Json,
    batch: Batch::One,
    ack: 202,
    handshake: None,
    retries: hours(4),
    drop: &[],
    docs: "https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
};

fn scheme() -> Scheme {
    Signed {
        headers: vec!["x-shopify-hmac-sha256".into(), "shopify-hmac-sha256".into()],
        encoding: Encoding::Base64,
        ..Signed::default()
    }
    .into()
}
