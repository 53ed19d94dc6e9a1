//! fire: a slot of a schedule and the event of its run, once.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::job::Word;
use clinch_core::lane::{OnDead, Order};
use clinch_core::time::Timestamp;
use clinch_store::read::ScheduleRow;
use clinch_store::{Accepted, FireAsk, Fired, NewEvent, NewJob};
use std::sync::Arc;
use tokio::task::JoinSet;

/// The run of this slot, as every node would ask for it.
fn slot(seconds: u64) -> FireAsk {
    let job = NewJob { order: Order::Fifo { on_dead: OnDead::Continue }, ..job("work") };
    let event = NewEvent { received_at: later(seconds), jobs: vec![job], ..event(&format!("slot {seconds}")) };
    FireAsk {
        schedule: "nightly".into(),
        slot: Some(later(seconds)),
        event: Some(event),
        overlaps: false,
        record: None,
        at: later(seconds),
    }
}

fn pass(seconds: u64) -> FireAsk {
    FireAsk { event: None, ..slot(seconds) }
}

async fn fires(world: &World, ask: FireAsk) -> Fired {
    world.fire(ask).await.expect("answered")
}

async fn fired(world: &World, ask: FireAsk) -> Accepted {
    match fires(world, ask).await {
        Fired::Fired(accepted) => accepted,
        other => panic!("not fired: {other:?}"),
    }
}

async fn last(world: &World) -> ScheduleRow {
    world.schedules().await.expect("read").pop().expect("a schedule")
}

pub async fn c10_a_slot_is_used_up_together_with_its_event(world: World) {
    assert_eq!(world.schedules().await.expect("read"), Vec::new());
    let first = fired(&world, slot(10)).await;
    for world in [world.after_a_kill().await, world] {
        let row = ScheduleRow { name: "nightly".into(), last: later(10), job: Some(first.job) };
        assert_eq!(last(&world).await, row);
        assert_eq!(world.story(first.job).await.row.word, Word::Queued);
        assert_eq!(fires(&world, slot(10)).await, Fired::Before(later(10)));
        assert_eq!(fires(&world, slot(9)).await, Fired::Before(later(10)), "nor one before it");
        assert_eq!(world.jobs_len().await, 1);
        world.adds_up().await;
    }
}

pub async fn c10_of_many_at_once_one_fires(world: World) {
    let world = Arc::new(world);
    let mut asking = JoinSet::new();
    for _ in 0..40 {
        let world = world.clone();
        asking.spawn(async move { fires(&world, slot(10)).await });
    }
    let answers = asking.join_all().await;
    let fired = answers.iter().filter(|answer| matches!(answer, Fired::Fired(_))).count();
    let before = answers.iter().filter(|answer| **answer == Fired::Before(later(10))).count();
    assert_eq!((fired, before), (1, 39), "{answers:?}");
    assert_eq!(world.jobs_len().await, 1);
}

pub async fn c10_no_run_begins_while_another_is_not_finished(world: World) {
    let first = fired(&world, slot(10)).await;
    assert_eq!(fires(&world, slot(20)).await, Fired::Busy(first.job));
    assert_eq!(last(&world).await.last, later(10), "nothing was used up");
    let claim = world.take(later(21)).await;
    assert_eq!(fires(&world, slot(20)).await, Fired::Busy(first.job), "it runs");
    world.settles(claim.lease, failed(later(22), later(23))).await;
    assert_eq!(fires(&world, slot(20)).await, Fired::Busy(first.job), "it is tried again");
    let world = world.after_a_kill().await;
    assert_eq!(fires(&world, slot(20)).await, Fired::Busy(first.job), "nor after a kill");
    world.finish(later(24)).await;
    let second = fired(&world, slot(20)).await;
    assert_ne!(second.job, first.job);
    // A dead letter is finished: the next run does not wait for a person.
    world.bury(later(25), Reason::TargetDown).await;
    fired(&world, slot(30)).await;
}

pub async fn c10_runs_overlap_where_that_is_wanted(world: World) {
    let overlapping = |seconds| FireAsk { overlaps: true, ..slot(seconds) };
    fired(&world, overlapping(10)).await;
    fired(&world, overlapping(20)).await;
    assert_eq!(world.jobs_len().await, 2);
}

pub async fn c10_a_slot_may_be_let_pass(world: World) {
    assert_eq!(fires(&world, pass(10)).await, Fired::Passed);
    assert_eq!(last(&world).await, ScheduleRow { name: "nightly".into(), last: later(10), job: None });
    assert_eq!(fires(&world, slot(10)).await, Fired::Before(later(10)));
    let run = fired(&world, slot(20)).await;
    // That a slot passes does not wait for anybody, and forgets nobody.
    assert_eq!(fires(&world, pass(30)).await, Fired::Passed);
    assert_eq!(fires(&world, slot(40)).await, Fired::Busy(run.job));
    assert_eq!(world.jobs_len().await, 1);
}

pub async fn c10_a_run_that_somebody_asks_for_uses_up_no_slot_and_is_on_record(world: World) {
    let by_hand = |at: Timestamp| {
        let record = by("alice", "INC-7", at);
        let event = NewEvent { dedup: None, ..slot(0).event.expect("an event") };
        FireAsk { slot: None, event: Some(event), record: Some(record), at, ..slot(0) }
    };
    let run = fired(&world, by_hand(later(5))).await;
    assert_eq!(last(&world).await.last, later(5), "what was before is not made up for");
    assert_eq!(fires(&world, by_hand(later(6))).await, Fired::Busy(run.job));
    let audit = world.story(run.job).await.audit;
    assert_eq!((audit[0].actor.as_str(), audit[0].reason.as_str()), ("alice", "INC-7"));
    world.finish(later(7)).await;
    fired(&world, slot(10)).await;
    world.finish(later(11)).await;
    fired(&world, by_hand(later(12))).await;
    assert_eq!(last(&world).await.last, later(10));
}

pub async fn f2_dead_letters_are_pulled_in_the_order_in_which_they_died(world: World) {
    let first = world.dead("a", later(0), Reason::TargetDown).await;
    let second = world.dead("b", later(10), Reason::RejectedByTarget).await;
    let unknown = world.dead("c", later(20), Reason::UnknownOutcome).await;
    let erased = world.dead("d", later(25), Reason::Forgotten).await;
    let pull = async |queues: &[&str], most| {
        let queues = queues.iter().map(|queue| queue.to_string()).collect();
        world.oldest_dead(queues, most).await.expect("read")
    };
    assert_eq!(pull(&["work", "other"], 10).await, [first.job, second.job], "and not {}, {}", unknown.job, erased.job);
    assert_eq!(pull(&["work"], 1).await, [first.job]);
    assert!(pull(&["other"], 10).await.is_empty() && pull(&[], 10).await.is_empty());
    // What was replayed and died again waits behind the others.
    world.revives(first.job, later(30)).await;
    assert_eq!(pull(&["work"], 10).await, [second.job]);
    world.bury(later(40), Reason::TargetDown).await;
    assert_eq!(pull(&["work"], 10).await, [second.job, first.job]);
}
