//! Keys that are set once, for a while.

use super::world::*;
use bytes::Bytes;
use clinch_core::effect::{EffectState, Receipt};
use clinch_core::key::{OnceKey, Pepper};
use clinch_core::time::Timestamp;
use clinch_store::{Claim, Retention, SetOnce};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

fn retention() -> Retention {
    Retention { default: RETENTION, ..Retention::default() }
}

const TTL: Duration = Duration::from_secs(3600);

fn receipt(body: &'static str) -> Receipt {
    Receipt { status: 200, body: Bytes::from_static(body.as_bytes()) }
}

fn set(key: &str, at: Timestamp) -> SetOnce {
    let key = OnceKey::of(&Pepper::new(&PEPPER), "default", key);
    SetOnce { step: "once".into(), key, at, until: at + TTL, was_free: receipt("free"), was_taken: receipt("taken") }
}

async fn sets(world: &World, claim: &Claim, key: &str, at: Timestamp) -> Option<Bytes> {
    world.set_once(claim.lease, set(key, at)).await.expect("answered").map(|receipt| receipt.body)
}

async fn job(world: &World, key: &str, at: Timestamp) -> Claim {
    world.accepted(event(key)).await;
    world.take(at).await
}

pub async fn b8_a_key_is_set_by_one_job_and_that_job_is_told_the_same_again(world: World) {
    let (first, second) = (job(&world, "1", later(0)).await, job(&world, "2", later(0)).await);
    assert_eq!(sets(&world, &first, "cart", later(1)).await.as_deref(), Some(&b"free"[..]));
    assert_eq!(sets(&world, &first, "cart", later(2)).await.as_deref(), Some(&b"free"[..]));
    assert_eq!(sets(&world, &second, "cart", later(3)).await.as_deref(), Some(&b"taken"[..]));
    // Also when it would be free by now: a step has one result.
    let much_later = later(3) + TTL;
    assert_eq!(sets(&world, &second, "cart", much_later).await.as_deref(), Some(&b"taken"[..]));
    let story = world.story(first.lease.job).await;
    assert_eq!(story.effects[0].state, EffectState::Done(receipt("free")));
    for claim in [first, second] {
        world.settles(claim.lease, finished(later(4))).await;
    }
    world.adds_up().await;
}

pub async fn p9_the_result_of_a_key_cannot_be_read_without_the_key_of_the_store(world: World) {
    let claim = job(&world, "1", later(0)).await;
    let ask = SetOnce { was_free: receipt("result-of-lovelace"), ..set("cart", later(1)) };
    for _ in 0..2 {
        let told = world.set_once(claim.lease, ask.clone()).await.expect("answered");
        assert_eq!(told, Some(receipt("result-of-lovelace")));
    }
    let wanted = b"lovelace";
    assert!(!world.bytes().await.windows(wanted.len()).any(|window| window == wanted));
    let uses = world.key_uses().await.expect("counted");
    assert_eq!(uses.iter().map(|of| of.results).sum::<u64>(), 1);
    assert!(uses.iter().all(|of| of.results == 0 || of.key == world.active_key()));
}

pub async fn b8_a_key_may_be_set_again_when_its_time_is_over(world: World) {
    let (first, second, third) =
        (job(&world, "1", later(0)).await, job(&world, "2", later(0)).await, job(&world, "3", later(0)).await);
    assert_eq!(sets(&world, &first, "cart", later(0)).await.as_deref(), Some(&b"free"[..]));
    assert_eq!(sets(&world, &second, "cart", later(1) + TTL).await.as_deref(), Some(&b"free"[..]));
    assert_eq!(sets(&world, &third, "cart", later(2) + TTL).await.as_deref(), Some(&b"taken"[..]));
}

pub async fn b8_a_kill_leaves_the_key_and_its_line_in_the_ledger_or_neither(world: World) {
    let first = job(&world, "1", later(0)).await;
    sets(&world, &first, "cart", later(1)).await;
    let survivor = world.after_a_kill().await;
    let again = match survivor.claims("work", 1, later(2)).await.pop() {
        Some(claim) => claim,
        None => survivor.lapse(later(1_000), 1, later(1_060)).await.expect("lapsed").remove(0),
    };
    assert_eq!(again.effects[0].state, EffectState::Done(receipt("free")));
    let second = job(&survivor, "2", later(1_001)).await;
    assert_eq!(sets(&survivor, &second, "cart", later(1_002)).await.as_deref(), Some(&b"taken"[..]));
}

pub async fn b8_of_many_at_once_one_sets_the_key(world: World) {
    let mut claims = Vec::new();
    for nth in 0..20 {
        claims.push(job(&world, &format!("k{nth}"), later(0)).await);
    }
    let world = Arc::new(world);
    let mut setting = JoinSet::new();
    for claim in claims {
        let world = world.clone();
        setting.spawn(async move { sets(&world, &claim, "cart", later(1)).await.expect("held") });
    }
    let told = setting.join_all().await;
    assert_eq!(told.iter().filter(|body| body[..] == b"free"[..]).count(), 1);
    assert_eq!(told.iter().filter(|body| body[..] == b"taken"[..]).count(), 19);
}

pub async fn b8_who_lost_the_lease_sets_nothing(world: World) {
    let late = job(&world, "1", later(0)).await;
    let taken = world.lapse(later(1_000), 1, later(1_060)).await.expect("lapsed").remove(0);
    assert_eq!(taken.lease.job, late.lease.job);
    assert_eq!(sets(&world, &late, "cart", later(1_001)).await, None);
    assert_eq!(world.story(late.lease.job).await.effects.len(), 0);
    let second = job(&world, "2", later(1_001)).await;
    assert_eq!(sets(&world, &second, "cart", later(1_002)).await.as_deref(), Some(&b"free"[..]));
}

pub async fn b8_keys_whose_time_is_over_are_pruned(world: World) {
    for nth in 0..3 {
        let claim = job(&world, &format!("k{nth}"), later(0)).await;
        sets(&world, &claim, &format!("cart {nth}"), later(0)).await;
    }
    let early = world.prune(later(1), retention(), 10).await.expect("pruned");
    assert_eq!(early.once, 0);
    let (mut once, mut rounds) = (0, 0);
    while rounds < 10 {
        once += world.prune(later(1) + TTL, retention(), 2).await.expect("pruned").once;
        rounds += 1;
    }
    assert_eq!(once, 3);
}
