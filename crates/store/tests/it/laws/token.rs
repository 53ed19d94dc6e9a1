//! Tokens of senders: made and revoked, on record.

use super::world::*;
use clinch_core::sender::{Sender, TokenId};
use clinch_core::time::Timestamp;
use clinch_store::read::TokenRow;
use clinch_store::{Issued, Revocation, TOKEN_KEPT};

const DAY: u64 = 86_400;

fn sender(id: u8, issued_at: Timestamp, expires_at: Option<Timestamp>) -> Sender {
    Sender { name: "shop-1".parse().expect("a name"), token: TokenId::from_bytes([id; 8]), issued_at, expires_at }
}

async fn issued(world: &World, sender: &Sender) {
    let at = sender.issued_at;
    assert_eq!(world.issue(sender.clone(), by("ada", "a new shop", at)).await.expect("answered"), Issued::Issued);
}

pub async fn a4_a_token_is_listed_until_long_after_its_end(world: World) {
    let (forever, brief) = (sender(1, later(0), None), sender(2, later(1), Some(later(DAY))));
    issued(&world, &forever).await;
    issued(&world, &brief).await;
    let row = |sender: &Sender| TokenRow { sender: sender.clone(), revoked_at: None };
    assert_eq!(world.tokens().await.expect("read"), [row(&brief), row(&forever)], "the newest first");
    let end = later(DAY) + TOKEN_KEPT;
    world.prunes(end - std::time::Duration::from_secs(1)).await;
    assert_eq!(world.tokens().await.expect("read").len(), 2);
    world.prunes(end).await;
    assert_eq!(world.tokens().await.expect("read"), [row(&forever)]);
    world.adds_up_at(end).await;
}

pub async fn a4_a_token_is_revoked_once_and_that_survives_a_kill(world: World) {
    let (one, other) = (sender(1, later(0), None), sender(2, later(1), None));
    issued(&world, &one).await;
    issued(&world, &other).await;
    let revoke =
        async |world: &World, id: TokenId, at| world.revoke(id, by("ada", "it leaked", at)).await.expect("answered");
    assert_eq!(revoke(&world, one.token, later(5)).await, Revocation::Revoked);
    assert_eq!(revoke(&world, one.token, later(6)).await, Revocation::Before);
    assert_eq!(revoke(&world, TokenId::from_bytes([9; 8]), later(6)).await, Revocation::NotFound);
    for world in [world.after_a_kill().await, world] {
        let tokens = world.tokens().await.expect("read");
        let revoked: Vec<_> = tokens.iter().map(|row| (row.sender.token, row.revoked_at)).collect();
        assert_eq!(revoked, [(other.token, None), (one.token, Some(later(5)))]);
        let audit = world.record().await;
        let told: Vec<_> = audit.iter().map(|row| (row.action.as_str(), row.reason.as_str())).collect();
        assert_eq!(told, [("token.revoke", "it leaked"), ("token.issue", "a new shop"), ("token.issue", "a new shop")]);
        assert_eq!(audit[0].object, one.token.to_string());
        assert!(audit[0].after.as_deref().expect("told").contains("shop-1"));
        world.adds_up().await;
    }
}
