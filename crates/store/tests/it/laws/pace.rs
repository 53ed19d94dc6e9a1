//! Moments at which an integration may be called.

use super::world::*;
use clinch_core::pace::Reserved;
use clinch_core::time::Timestamp;
use clinch_store::PaceAsk;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const EVERY: Duration = Duration::from_millis(100);

fn ask(name: &str, calls: u32, now: Timestamp) -> PaceAsk {
    PaceAsk { name: name.into(), calls, every: EVERY, now, ahead: Duration::from_secs(10) }
}

/// As times are told to the microsecond, and a database has a clock of its own.
fn near(left: Reserved, right: Timestamp) {
    let Reserved::From(left) = left else { panic!("a moment, and not {left:?}") };
    is_about(left, right);
}

fn taken(left: Reserved, right: Timestamp) {
    let Reserved::Taken { free_at } = left else { panic!("none, and not {left:?}") };
    is_about(free_at, right);
}

fn is_about(left: Timestamp, right: Timestamp) {
    let apart = left.since(right).max(right.since(left));
    assert!(apart < Duration::from_millis(1), "{left} is not {right}");
}

pub async fn e2_moments_follow_each_other_and_each_name_has_its_own(world: World) {
    near(world.reserve(ask("crm", 5, later(0))).await.expect("reserved"), later(0));
    near(world.reserve(ask("crm", 1, later(0))).await.expect("reserved"), later(0) + EVERY * 5);
    near(world.reserve(ask("mail", 1, later(0))).await.expect("reserved"), later(0));
    // What nobody took is not saved up.
    near(world.reserve(ask("crm", 1, later(60))).await.expect("reserved"), later(60));
}

pub async fn e2_no_moment_is_given_too_far_ahead(world: World) {
    near(world.reserve(ask("crm", 100, later(0))).await.expect("reserved"), later(0));
    taken(world.reserve(ask("crm", 1, later(0))).await.expect("answered"), later(10));
    near(world.reserve(ask("crm", 1, later(1))).await.expect("reserved"), later(10));
}

pub async fn c4_moments_are_as_far_apart_as_who_asks_now_wants_them(world: World) {
    let slow = |now| PaceAsk { every: Duration::from_secs(3_600), ..ask("crm", 1, now) };
    near(world.reserve(slow(later(0))).await.expect("reserved"), later(0));
    taken(world.reserve(slow(later(1))).await.expect("answered"), later(3_600));
    // The rate was raised: nobody waits for the moment that the old one would have had next.
    near(world.reserve(ask("crm", 2, later(1))).await.expect("reserved"), later(1));
    near(world.reserve(ask("crm", 1, later(1))).await.expect("reserved"), later(1) + EVERY * 2);
    // And lowered again.
    taken(world.reserve(slow(later(2))).await.expect("answered"), later(1) + EVERY * 2 + Duration::from_secs(3_600));
}

pub async fn e2_a_restart_gives_no_moment_twice(world: World) {
    near(world.reserve(ask("crm", 10, later(0))).await.expect("reserved"), later(0));
    let world = world.after_a_kill().await;
    near(world.reserve(ask("crm", 1, later(0))).await.expect("reserved"), later(1));
}

pub async fn e2_many_at_once_never_get_the_same_moment(world: World) {
    let world = Arc::new(world);
    let mut asking = JoinSet::new();
    for _ in 0..40 {
        let world = world.clone();
        asking.spawn(async move { world.reserve(ask("crm", 2, later(0))).await.expect("reserved") });
    }
    let moment = |reserved| if let Reserved::From(first) = reserved { Some(first) } else { None };
    let mut given: Vec<Timestamp> = asking.join_all().await.into_iter().filter_map(moment).collect();
    assert_eq!(given.len(), 40);
    given.sort();
    for pair in given.windows(2) {
        assert!(pair[1].since(pair[0]) >= EVERY * 2 - Duration::from_millis(1), "{pair:?}");
    }
}
