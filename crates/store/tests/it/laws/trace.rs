//! The trace of an event: told by everything that tells of it, and never that of a later delivery.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::flow::OnConflict;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use clinch_store::read::{EffectFilter, EventFilter, JobFilter};
use clinch_store::{Acceptance, Dedup, ForgetAsk, NewEvent, Revived};
use std::collections::BTreeMap;
use std::time::Duration;

pub async fn h2_whatever_tells_of_an_event_tells_its_trace(world: World) {
    let dead = world.unknown("dead", Idempotency::None).await;
    let two = world.accepted(NewEvent { jobs: vec![job("work"), job("other")], ..event("two") }).await;
    let second = JobId::from_number(two.job.number() + 1);
    assert_ne!(dead.trace, two.trace);
    for world in [world.after_a_kill().await, world] {
        let jobs = async |filter: JobFilter| {
            let rows = world.jobs(JobFilter { limit: 10, ..filter }).await.expect("read").rows;
            rows.iter().map(|row| (row.id, row.trace)).collect::<Vec<_>>()
        };
        let all = [(second, two.trace), (two.job, two.trace), (dead.job, dead.trace)];
        assert_eq!(jobs(JobFilter::default()).await, all);
        assert_eq!(jobs(JobFilter { word: Some(Word::Queued), ..JobFilter::default() }).await, all[..2]);
        assert_eq!(jobs(JobFilter { word: Some(Word::Dead), ..JobFilter::default() }).await, all[2..]);
        assert_eq!(jobs(JobFilter { source: Some("orders".into()), ..JobFilter::default() }).await, all);

        let of_two = world.jobs_of(two.event).await.expect("read");
        assert_eq!(of_two.iter().map(|row| row.trace).collect::<Vec<_>>(), [two.trace; 2]);
        assert_eq!(world.story(second).await.row.trace, two.trace);

        let events = world.events(EventFilter { limit: 10, ..EventFilter::default() }).await.expect("read").rows;
        let told: Vec<_> = events.iter().map(|row| (row.id, row.trace)).collect();
        assert_eq!(told, [(two.event, two.trace), (dead.event, dead.trace)]);

        let effects = world.effects(EffectFilter { limit: 10, ..EffectFilter::default() }).await.expect("read").rows;
        assert_eq!(effects.iter().map(|row| (row.job, row.trace)).collect::<Vec<_>>(), [(dead.job, dead.trace)]);

        let gone = JobId::from_number(7);
        let traces = world.traces(vec![second, gone, dead.job, dead.job]).await.expect("read");
        assert_eq!(traces, BTreeMap::from([(second, two.trace), (dead.job, dead.trace)]));
    }
}

pub async fn h2_a_claim_carries_the_trace_of_its_event_at_every_attempt(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(1)).await;
    assert_eq!(claim.trace, accepted.trace);
    let lapsed = world.lapse(later(100), 10, later(200)).await.expect("taken");
    assert_eq!(lapsed.iter().map(|claim| claim.trace).collect::<Vec<_>>(), [accepted.trace]);
    world.settles(lapsed[0].lease, buried(later(101), Reason::Timeout)).await;
    assert_eq!(world.revives(accepted.job, later(102)).await, Revived::Revived { replays: 1 });
    for world in [world.after_a_kill().await, world] {
        assert_eq!(world.take(later(103)).await.trace, accepted.trace);
    }
}

pub async fn h2_a_delivery_of_a_known_key_is_told_the_trace_of_the_first(world: World) {
    let first = world.accepted(event("k")).await;
    let again = event("k");
    assert_ne!(again.trace, first.trace);
    assert_eq!(world.duplicate(again).await.trace, first.trace);
    let other =
        |on_conflict| NewEvent { dedup: Some(Dedup { on_conflict, ..dedup("k", b"another body") }), ..event("k") };
    for world in [world.after_a_kill().await, world] {
        let kept = world.accept(other(OnConflict::KeepFirst)).await.expect("answered");
        assert_eq!(kept, Acceptance::Kept(first));
        let conflict = world.accept(other(OnConflict::Reject)).await.expect("answered");
        assert_eq!(conflict, Acceptance::Conflict(first));
        // Whoever uses the key when its time is over begins a trace.
        world.finish(later(1)).await;
        let next = NewEvent { received_at: later(1) + KEY_TTL, ..event("k") };
        let trace = next.trace;
        assert_eq!(world.accepted(next).await.trace, trace);
    }
}

pub async fn h2_a_trace_leads_to_the_events_that_it_began_with(world: World) {
    let at = Timestamp::from_micros(later(7).as_micros() + 1_234);
    let of = |key: &str, trace: TraceId, received_at| NewEvent { trace, received_at, ..event(key) };
    let (mine, other) = (TraceId::new(at, 1), TraceId::new(at, 2));
    let first = world.accepted(of("a", mine, at)).await.event;
    world.accepted(of("b", other, at)).await;
    let second = world.accepted(of("c", mine, at + Duration::from_millis(20))).await.event;
    let began = async |trace, most| world.begun_by(trace, most).await.expect("read");
    assert_eq!(began(mine, 10).await, [first, second]);
    assert_eq!(began(mine, 1).await, [first]);
    assert_eq!(began(TraceId::new(at, 3), 10).await, []);
    assert_eq!(began(TraceId(u128::MAX), 10).await, [], "that of a sender may say any time");
}

pub async fn h2_an_event_that_was_forgotten_keeps_its_trace(world: World) {
    let accepted = world.accepted(event("k")).await;
    let record = by("maya", "asked for", later(1));
    let ask = ForgetAsk { events: vec![accepted.event], answers: Vec::new(), subject: "h_1".into(), record };
    assert_eq!(world.forget(ask).await.expect("forgotten").events, 1);
    for world in [world.after_a_kill().await, world] {
        assert_eq!(world.story(accepted.job).await.row.trace, accepted.trace);
        let claim = world.take(later(2)).await;
        assert_eq!((claim.payload.is_err(), claim.trace), (true, accepted.trace));
    }
}
