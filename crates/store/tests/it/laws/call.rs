//! Calls that are made for others, once for each key.

use super::world::*;
use bytes::Bytes;
use clinch_core::call::{CallKey, CallTurn, Caller};
use clinch_core::job::Fence;
use clinch_core::key::{Fingerprint, Pepper};
use clinch_core::time::Timestamp;
use clinch_store::{CallAsk, CallEnd, Called, Held, Retention};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(3600);
const TIMEOUT: Duration = Duration::from_secs(30);

fn key(key: &str) -> CallKey {
    CallKey::of(&Pepper::new(&PEPPER), &["somebody"], key)
}

fn ask(of: &str, turn: u64, at: Timestamp) -> CallAsk {
    let fingerprint = Fingerprint::of("POST /charges", b"{}");
    let caller = Caller { fingerprint, turn: CallTurn::alone(turn), resends: false };
    CallAsk { key: key(of), caller, at, until: at + TIMEOUT, expires: at + TTL }
}

async fn call(world: &World, of: &str, turn: u64, at: Timestamp) -> Called {
    world.begin_call(ask(of, turn, at)).await.expect("answered")
}

async fn ends(world: &World, of: &str, turn: u64, end: CallEnd) -> Held {
    world.end_call(key(of), CallTurn::alone(turn), end).await.expect("answered")
}

fn done(answer: &'static str) -> CallEnd {
    CallEnd::Done(Bytes::from_static(answer.as_bytes()))
}

fn before(answer: &'static str) -> Called {
    Called::Before(Ok(Bytes::from_static(answer.as_bytes())))
}

pub async fn d3_a_call_is_made_once_and_its_answer_is_given_again(world: World) {
    assert_eq!(call(&world, "a", 1, later(0)).await, Called::Ours);
    assert_eq!(call(&world, "a", 2, later(1)).await, Called::Busy { until: later(0) + TIMEOUT });
    assert_eq!(ends(&world, "a", 1, done("first")).await, Held::Held);
    assert_eq!(call(&world, "a", 3, later(2)).await, before("first"));
    let caller =
        Caller { fingerprint: Fingerprint::of("POST /charges", b"{1}"), turn: CallTurn::alone(4), resends: false };
    let other = CallAsk { caller, ..ask("a", 4, later(3)) };
    assert_eq!(world.begin_call(other).await.expect("answered"), Called::Other);
    assert_eq!(call(&world, "b", 5, later(4)).await, Called::Ours, "keys do not meet");
    assert_eq!(call(&world, "a", 6, later(5)).await, before("first"));
}

pub async fn d3_a_call_that_was_not_done_is_free_at_once(world: World) {
    assert_eq!(call(&world, "a", 1, later(0)).await, Called::Ours);
    assert_eq!(ends(&world, "a", 1, CallEnd::NotDone).await, Held::Held);
    assert_eq!(call(&world, "a", 2, later(1)).await, Called::Ours);
    // The answer to the last may have been lost.
    assert_eq!(call(&world, "a", 2, later(1)).await, Called::Ours);
}

pub async fn d3_what_may_have_happened_is_made_again_only_where_that_is_wanted(world: World) {
    assert_eq!(call(&world, "told", 1, later(0)).await, Called::Ours);
    assert_eq!(ends(&world, "told", 1, CallEnd::Unknown).await, Held::Held);
    assert_eq!(call(&world, "killed", 2, later(0)).await, Called::Ours);
    let world = world.after_a_kill().await;
    for of in ["told", "killed"] {
        assert_eq!(call(&world, of, 3, later(60)).await, Called::Unknown { since: later(0) }, "{of}");
        let again = ask(of, 4, later(61));
        let again = CallAsk { caller: Caller { resends: true, ..again.caller }, ..again };
        assert_eq!(world.begin_call(again).await.expect("answered"), Called::Ours, "{of}");
        // Whoever it was may come late.
        for turn in [1, 2] {
            assert_eq!(ends(&world, of, turn, done("late")).await, Held::Lost, "{of}");
        }
        assert_eq!(ends(&world, of, 4, done("again")).await, Held::Held, "{of}");
        assert_eq!(call(&world, of, 5, later(62)).await, before("again"), "{of}");
    }
}

pub async fn d3_p6_who_comes_late_takes_nothing_back(world: World) {
    for (of, end) in [("done", done("first")), ("doubtful", CallEnd::Unknown)] {
        // A worker begins it and loses its job; the next one of that job begins it again, and ends it.
        for _ in 0..2 {
            assert_eq!(call(&world, of, 1, later(0)).await, Called::Ours);
        }
        assert_eq!(ends(&world, of, 1, end).await, Held::Held);
        assert_eq!(ends(&world, of, 1, CallEnd::NotDone).await, Held::Lost, "{of}");
    }
    assert_eq!(ends(&world, "done", 1, CallEnd::Unknown).await, Held::Lost);
    assert_eq!(call(&world, "done", 2, later(1)).await, before("first"));
    assert_eq!(call(&world, "doubtful", 2, later(1)).await, Called::Unknown { since: later(0) });
    // That it was done is no less true for being told late.
    assert_eq!(ends(&world, "doubtful", 1, done("late")).await, Held::Held);
    assert_eq!(call(&world, "doubtful", 2, later(2)).await, before("late"));
}

pub async fn d3_p6_who_lost_his_job_frees_nothing_that_the_next_one_of_it_has_begun(world: World) {
    let of = |fence| CallTurn { of: 1, fence: Fence(fence) };
    let begins = async |fence, at| {
        let ask = ask("a", 1, at);
        let caller = Caller { turn: of(fence), ..ask.caller };
        world.begin_call(CallAsk { caller, ..ask }).await.expect("answered")
    };
    let ends = async |fence, end| world.end_call(key("a"), of(fence), end).await.expect("answered");
    assert_eq!(begins(7, later(0)).await, Called::Ours);
    assert_eq!(begins(8, later(1)).await, Called::Ours, "the next worker of the job");
    assert_eq!(ends(7, CallEnd::NotDone).await, Held::Lost, "told late by the one before");
    assert_eq!(call(&world, "a", 2, later(2)).await, Called::Busy { until: later(1) + TIMEOUT });
    assert_eq!(begins(7, later(3)).await, Called::Busy { until: later(1) + TIMEOUT }, "and he begins nothing any more");
    assert_eq!(ends(8, CallEnd::NotDone).await, Held::Held);
    assert_eq!(call(&world, "a", 2, later(4)).await, Called::Ours);
}

pub async fn d3_c13_what_was_undone_is_free_for_who_had_done_it_alone(world: World) {
    assert_eq!(call(&world, "a", 1, later(0)).await, Called::Ours);
    assert_eq!(ends(&world, "a", 1, CallEnd::Undone).await, Held::Lost, "it was not done");
    assert_eq!(ends(&world, "a", 1, done("first")).await, Held::Held);
    assert_eq!(call(&world, "a", 1, later(1)).await, Called::Own(Ok(Bytes::from_static(b"first"))));
    assert_eq!(ends(&world, "a", 2, CallEnd::Undone).await, Held::Lost, "another's");
    assert_eq!(call(&world, "a", 2, later(2)).await, before("first"));
    assert_eq!(ends(&world, "a", 1, CallEnd::Undone).await, Held::Held);
    assert_eq!(call(&world, "a", 2, later(3)).await, Called::Ours);
}

pub async fn d3_of_many_at_once_one_makes_the_call(world: World) {
    let world = Arc::new(world);
    let mut calling = JoinSet::new();
    for turn in 1..=30 {
        let world = world.clone();
        calling.spawn(async move { call(&world, "a", turn, later(0)).await });
    }
    let told = calling.join_all().await;
    assert_eq!(told.iter().filter(|told| **told == Called::Ours).count(), 1);
    assert_eq!(told.iter().filter(|told| matches!(told, Called::Busy { .. })).count(), 29);
}

pub async fn p9_the_answer_of_a_call_cannot_be_read_without_the_key_of_the_store(world: World) {
    call(&world, "a", 1, later(0)).await;
    ends(&world, "a", 1, done("answer-for-lovelace")).await;
    assert_eq!(call(&world, "a", 2, later(1)).await, before("answer-for-lovelace"));
    let wanted = b"lovelace";
    assert!(!world.bytes().await.windows(wanted.len()).any(|window| window == wanted));
}

pub async fn d3_a_call_is_forgotten_when_its_time_is_over(world: World) {
    for of in ["a", "b", "c"] {
        call(&world, of, 1, later(0)).await;
        ends(&world, of, 1, done("first")).await;
    }
    assert_eq!(call(&world, "a", 2, later(0) + TTL).await, Called::Ours);
    let retention = Retention { default: RETENTION, ..Retention::default() };
    let mut pruned = 0;
    for _ in 0..10 {
        pruned += world.prune(later(1) + TTL, retention.clone(), 1).await.expect("pruned").calls;
    }
    assert_eq!(pruned, 2);
}
