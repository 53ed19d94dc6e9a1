//! accept: what a success answer promises, and who a key belongs to.

use super::world::*;
use bytes::Bytes;
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::job::Word;
use clinch_core::key::{DedupKey, Pepper};
use clinch_core::time::Timestamp;
use clinch_store::{Acceptance, DELIVERIES_KEPT_MAX, Dedup, NewEvent, NewJob};
use std::collections::BTreeSet;
use std::time::Duration;

fn received_at(key: &str, received_at: Timestamp) -> NewEvent {
    NewEvent { received_at, ..event(key) }
}

/// The same key, another body.
fn other_body(key: &str, on_conflict: OnConflict) -> NewEvent {
    NewEvent {
        received_at: later(5),
        payload: Bytes::from_static(b"another payload"),
        dedup: Some(Dedup { on_conflict, ..dedup(key, b"another body") }),
        ..event(key)
    }
}

fn replaying(key: &str, received_at: Timestamp) -> NewEvent {
    NewEvent {
        received_at,
        dedup: Some(Dedup { on_duplicate_of_dead: OnDuplicateOfDead::Replay, ..dedup(key, b"the body") }),
        ..event(key)
    }
}

pub async fn p1_a_success_means_that_event_key_and_job_are_on_disk(world: World) {
    let first = world.accepted(event("k")).await;
    let survivor = world.after_a_kill().await;
    let story = survivor.story(first.job).await;
    assert_eq!(story.row.event, first.event);
    assert_eq!(story.row.word, Word::Queued);
    assert_eq!(&opened(&story.payload)[..], b"the payload");
    assert_eq!(survivor.key(key("k")).await.expect("read"), Some(first.event));
    assert_eq!(survivor.take(later(1)).await.lease.job, first.job);
    survivor.adds_up().await;
}

pub async fn p1_what_was_accepted_is_there_after_a_clean_stop(world: World) {
    let first = world.accepted(event("k")).await;
    let world = world.after_a_stop().await;
    assert_eq!(world.duplicate(event("k")).await, first);
    let claim = world.take(later(1)).await;
    assert_eq!((claim.lease.job, &opened(&claim.payload)[..]), (first.job, &b"the payload"[..]));
    world.adds_up().await;
}

pub async fn p2_a_duplicate_makes_no_second_job_and_gets_the_first_answer(world: World) {
    let first = world.accepted(NewEvent { status: 201, ..event("k") }).await;
    let again = NewEvent { status: 202, ..received_at("k", later(9)) };
    assert_eq!(world.duplicate(again).await, first);
    assert_eq!((first.status, first.received_at), (201, later(0)));
    assert_eq!(world.jobs_len().await, 1);
    assert_eq!(world.claims("work", 10, later(10)).await.len(), 1);
    world.adds_up().await;
}

pub async fn p2_another_body_under_the_same_key_is_a_conflict_and_leaves_the_first_untouched(world: World) {
    let first = world.accepted(event("k")).await;
    let answer = world.accept(other_body("k", OnConflict::Reject)).await.expect("answered");
    assert_eq!(answer, Acceptance::Conflict(first));
    let story = world.story(first.job).await;
    assert_eq!(&opened(&story.payload)[..], b"the payload");
    assert!(story.deliveries[0].conflict);
    assert_eq!(world.jobs_len().await, 1);
    // The conflict did not take the key over: the first body is still a duplicate.
    assert_eq!(world.duplicate(event("k")).await, first);
    world.adds_up().await;
}

pub async fn p2_keep_first_answers_another_body_like_a_duplicate(world: World) {
    let first = world.accepted(event("k")).await;
    assert_eq!(world.accept(other_body("k", OnConflict::KeepFirst)).await.expect("a store"), Acceptance::Kept(first));
    let story = world.story(first.job).await;
    assert_eq!(&opened(&story.payload)[..], b"the payload");
    assert!(story.deliveries[0].conflict, "it is counted as a conflict all the same");
}

pub async fn p2_keys_and_scopes_never_collide(world: World) {
    let pepper = Pepper::new(&PEPPER);
    let mut events = BTreeSet::new();
    for (tenant, route, text) in [
        ("a", "/orders", "k"),
        ("b", "/orders", "k"),
        ("a", "/invoices", "k"),
        ("a", "/orders", "k2"),
        ("a", "/ordersk", "2"),
    ] {
        let dedup = Dedup { key: DedupKey::scoped(&pepper, tenant, route, text), ..dedup(text, b"the body") };
        let event = NewEvent { dedup: Some(dedup), ..event(text) };
        events.insert(world.accepted(event).await.event);
    }
    assert_eq!(events.len(), 5);
}

pub async fn p2_without_a_key_nothing_is_a_duplicate(world: World) {
    let keyless = || NewEvent { dedup: None, ..event("k") };
    let (one, two) = (world.accepted(keyless()).await, world.accepted(keyless()).await);
    assert_ne!(one.event, two.event);
    assert_eq!(world.story(one.job).await.key_until, None);
}

pub async fn p2_a_thousand_deliveries_at_once_are_one_event(world: World) {
    let mut deliveries = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let store = world.clone();
        deliveries.spawn(async move { store.accept(event("k")).await.expect("answered") });
    }
    let answers = deliveries.join_all().await;
    let fresh: Vec<_> = answers.iter().filter(|answer| matches!(answer, Acceptance::Fresh(_))).collect();
    assert_eq!(fresh.len(), 1);
    let Acceptance::Fresh(first) = fresh[0] else { unreachable!("it is fresh") };
    let same = answers.iter().filter(|answer| **answer == Acceptance::Duplicate(*first));
    assert_eq!(same.count(), 999);
    assert_eq!(world.jobs_len().await, 1);
    let deliveries = world.story(first.job).await.deliveries;
    assert_eq!(deliveries.iter().map(|delivery| delivery.times).sum::<u64>(), 999);
    world.adds_up().await;
}

pub async fn p2_deliveries_of_many_keys_at_once_are_one_event_each(world: World) {
    let mut deliveries = tokio::task::JoinSet::new();
    for nth in 0..1_000 {
        let store = world.clone();
        let event = event(&format!("k{}", nth % 20));
        deliveries.spawn(async move { store.accept(event).await.expect("answered") });
    }
    let answers = deliveries.join_all().await;
    let fresh = answers.iter().filter(|answer| matches!(answer, Acceptance::Fresh(_))).count();
    assert_eq!((fresh, world.jobs_len().await), (20, 20));
    world.adds_up().await;
}

pub async fn p2_a_key_is_known_after_a_kill(world: World) {
    let first = world.accepted(event("k")).await;
    let survivor = world.after_a_kill().await;
    assert_eq!(survivor.duplicate(event("k")).await, first);
    assert_eq!(survivor.jobs_len().await, 1);
}

pub async fn t_058_a_key_outlives_its_ttl_while_its_job_is_unfinished(world: World) {
    let long_after = later(0) + 30 * KEY_TTL;
    let first = world.accepted(event("k")).await;
    assert_eq!(world.duplicate(received_at("k", long_after)).await, first, "queued");
    let claim = world.take(later(1)).await;
    assert_eq!(world.duplicate(received_at("k", long_after)).await, first, "running");
    world.settles(claim.lease, failed(later(2), later(3))).await;
    assert_eq!(world.duplicate(received_at("k", long_after)).await, first, "retrying");
    world.bury(later(3), Reason::RejectedByTarget).await;
    assert_eq!(world.duplicate(received_at("k", long_after)).await, first, "dead");
}

pub async fn t_059_an_expired_key_belongs_to_the_event_that_uses_it_next(world: World) {
    let first = world.accepted(event("k")).await;
    world.finish(later(1)).await;
    let end = later(0) + KEY_TTL;
    let just_before = end - Duration::from_micros(1);
    assert_eq!(world.duplicate(received_at("k", just_before)).await, first);
    let second = world.accepted(received_at("k", end)).await;
    assert_ne!(second.event, first.event);
    assert_eq!(world.duplicate(received_at("k", end)).await, second);
    assert_eq!(world.key(key("k")).await.expect("read"), Some(second.event));
    let world = world.after_a_stop().await;
    assert_eq!(world.duplicate(received_at("k", end)).await, second);
    world.adds_up_at(end).await;
}

pub async fn a_duplicate_is_on_record_and_the_record_is_bounded(world: World) {
    let first = world.accepted(event("k")).await;
    let sent = DELIVERIES_KEPT_MAX.unsigned_abs() + 20;
    for nth in 1..=sent {
        world.duplicate(received_at("k", later(nth))).await;
    }
    let deliveries = world.story(first.job).await.deliveries;
    assert_eq!(deliveries.len(), 100);
    assert_eq!((deliveries[0].at, deliveries[0].times), (later(1), 1));
    let last = deliveries.last().expect("the last row");
    assert_eq!((last.at, last.times), (later(sent), 21));
    assert_eq!(deliveries.iter().map(|delivery| delivery.times).sum::<u64>(), sent);
}

pub async fn t_060_a_duplicate_revives_a_dead_letter_where_the_flow_says_so(world: World) {
    let first = world.dead("k", later(0), Reason::TargetDown).await;
    assert_eq!(world.duplicate(replaying("k", later(9))).await, first);
    let story = world.story(first.job).await;
    assert_eq!((story.row.word, story.row.replays), (Word::Queued, 1));
    assert_eq!(story.audit.len(), 1, "nobody is revived off the record");
    // It lives now, so the next delivery is an ordinary duplicate.
    assert_eq!(world.duplicate(replaying("k", later(10))).await, first);
    assert_eq!(world.story(first.job).await.row.replays, 1);
    assert_eq!(world.take(later(11)).await.lease.job, first.job);
    world.adds_up().await;
}

pub async fn a_duplicate_leaves_a_dead_letter_alone_by_default(world: World) {
    let first = world.dead("k", later(0), Reason::TargetDown).await;
    assert_eq!(world.duplicate(received_at("k", later(9))).await, first);
    let story = world.story(first.job).await;
    assert_eq!((story.row.word, story.row.replays), (Word::Dead, 0));
    assert_eq!(story.deliveries.len(), 1, "but it is seen");
    assert!(world.claims("work", 1, later(10)).await.is_empty());
}

pub async fn a_duplicate_does_not_rule_on_an_unknown_effect(world: World) {
    let first = world.unknown("k", Idempotency::None).await;
    assert_eq!(world.duplicate(replaying("k", later(9))).await, first);
    assert_eq!(world.story(first.job).await.row.word, Word::Dead);
}

pub async fn an_event_for_several_queues_has_a_job_in_each(world: World) {
    let queues = ["bill", "ship", "tell"];
    let accepted = world.accepted(NewEvent { jobs: queues.map(job).to_vec(), ..event("k") }).await;
    let jobs = world.jobs_of(accepted.event).await.expect("read");
    let found: Vec<_> = jobs.iter().map(|row| (row.id.number() - accepted.event.number(), &*row.queue)).collect();
    assert_eq!(found, [(1, "bill"), (2, "ship"), (3, "tell")]);
    assert_eq!(accepted.job, jobs[0].id);
    for (row, queue) in jobs.iter().zip(queues) {
        let claims = world.claims(queue, 10, later(1)).await;
        assert_eq!(claims.len(), 1);
        assert_eq!((claims[0].lease.job, &opened(&claims[0].payload)[..]), (row.id, &b"the payload"[..]));
    }
    world.adds_up().await;
}

pub async fn a6_one_event_may_have_jobs_of_several_flows(world: World) {
    let of = |flow: &str| NewJob { flow: flow.into(), ..job("work") };
    let accepted = world.accepted(NewEvent { jobs: vec![of("bill"), of("ship")], ..event("k") }).await;
    let jobs = world.jobs_of(accepted.event).await.expect("read");
    assert_eq!(jobs.iter().map(|row| &*row.flow).collect::<Vec<_>>(), ["bill", "ship"]);
    let claims = world.claims("work", 10, later(1)).await;
    assert_eq!(claims.iter().map(|claim| &*claim.flow).collect::<Vec<_>>(), ["bill", "ship"]);
    world.duplicate(event("k")).await;
    world.adds_up().await;
}

pub async fn ids_grow_even_when_the_clock_goes_back(world: World) {
    let mut last = 0;
    for (key, seconds) in [("a", 100), ("b", 100), ("c", 50), ("d", 0), ("e", 200)] {
        let accepted = world.accepted(received_at(key, later(seconds))).await;
        assert!(accepted.event.number() > last, "{key}");
        last = accepted.job.number();
    }
    let world = world.after_a_stop().await;
    assert!(world.accepted(event("f")).await.event.number() > last);
}

pub async fn ids_are_not_given_twice_when_rows_are_gone(world: World) {
    let stuck = world.accepted(NewEvent { jobs: vec![job("stuck")], ..event("stuck") }).await;
    let first = world.success(later(0)).await;
    let pruned = world.prunes(later(0) + RETENTION + KEY_TTL).await;
    assert_eq!(pruned.jobs, 1);
    let world = world.after_a_stop().await;
    let second = world.accepted(event("second")).await;
    assert!(second.event.number() > first.job.number());
    assert_eq!(world.story(stuck.job).await.row.word, Word::Queued);
}

pub async fn t_072_no_key_is_readable_on_disk(world: World) {
    let secret = "alice@example.com-4711";
    let first = world.accepted(event(secret)).await;
    world.duplicate(event(secret)).await;
    world.finish(later(1)).await;
    let bytes = world.bytes().await;
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(holds(b"orders"), "the search finds what is there");
    assert!(!holds(secret.as_bytes()));
    assert_eq!(world.key(key(secret)).await.expect("read"), Some(first.event));
}
