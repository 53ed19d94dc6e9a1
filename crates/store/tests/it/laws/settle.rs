//! settle: an attempt ends, and its row and the job's next state are one change.

use super::world::*;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::job::{Change, Ending, Waits, Word};
use clinch_core::lane::{OnDead, Order};
use clinch_core::time::Timestamp;
use clinch_store::read::JobFilter;
use clinch_store::{Activated, Conclusion, Held, NewEvent, RecallAsk, Settlement, VersionId};

fn put_off(at: Timestamp, run_at: Timestamp) -> Settlement {
    Settlement { charged: false, ..settlement(at, "put_off", Change::PutOff { run_at, waits: Waits::Limit }) }
}

pub async fn p4_a_job_that_is_put_off_waits_and_is_charged_nothing(world: World) {
    let job = world.accepted(event("k")).await.job;
    let claim = world.take(later(1)).await;
    world.settles(claim.lease, put_off(later(1), later(30))).await;
    let story = world.story(job).await;
    assert_eq!((story.row.word, story.row.waits), (Word::Waiting, Some(Waits::Limit)));
    assert_eq!((story.row.attempts, story.row.failures, story.attempts.len()), (0, 0, 0));
    let live = world.counts().await.expect("counted").live;
    assert!(live.iter().any(|(_, word, jobs)| (*word, *jobs) == (Word::Waiting, 1)), "{live:?}");
    let waiting = JobFilter { word: Some(Word::Waiting), limit: 10, ..JobFilter::default() };
    assert_eq!(world.jobs(waiting).await.expect("read").rows.len(), 1);
    let queued = JobFilter { word: Some(Word::Queued), limit: 10, ..JobFilter::default() };
    assert_eq!(world.jobs(queued).await.expect("read").rows.len(), 0);
    assert!(world.claims("work", 1, later(29)).await.is_empty());
    world.adds_up().await;
    let again = world.take(later(30)).await;
    assert_eq!((again.lease.job, again.attempts, again.first_attempt_at), (job, 0, None));
    assert_eq!(world.settle(claim.lease, put_off(later(30), later(60))).await.expect("answered"), Held::Lost);
    world.settles(again.lease, finished(later(31))).await;
    let story = world.story(job).await;
    assert_eq!((story.row.word, story.row.waits, story.row.attempts), (Word::Success, None, 1));
}

pub async fn e6_who_waits_for_something_that_is_over_is_due_at_once_and_no_other(world: World) {
    let waiting = |waits| Settlement {
        charged: false,
        ..settlement(later(1), "put_off", Change::PutOff { run_at: later(500), waits })
    };
    let mut held = Vec::new();
    for nth in 0..7 {
        let mut event = event(&format!("k{nth}"));
        // The last two are of one lane, of which the first keeps the other waiting.
        if nth >= 5 {
            event.jobs[0].order = Order::Fifo { on_dead: OnDead::Continue };
        }
        held.push(world.accepted(event).await.job);
    }
    for claim in world.claims("work", 10, later(1)).await {
        let waits = if claim.lease.job == held[2] { Waits::Limit } else { Waits::Paused };
        world.settles(claim.lease, waiting(waits)).await;
    }
    let recall = async |waits, after| {
        let ask = RecallAsk { waits, after, most: 2, now: later(10) };
        world.recall(ask).await.expect("answered")
    };
    assert_eq!(recall(Waits::SafeMode, None).await, None);
    assert!(world.claims("work", 10, later(10)).await.is_empty(), "nobody waits for that");
    let mut after = recall(Waits::Paused, None).await;
    assert!(after.is_some(), "there are more");
    while after.is_some() {
        after = recall(Waits::Paused, after).await;
    }
    let mut due: Vec<_> = world.claims("work", 10, later(10)).await.iter().map(|claim| claim.lease.job).collect();
    due.sort();
    let expected: Vec<_> = [0, 1, 3, 4, 5].into_iter().map(|nth| held[nth]).collect();
    assert_eq!(due, expected);
    world.adds_up().await;
}

pub async fn c8_what_a_step_came_to_is_on_disk_when_its_job_is_put_off(world: World) {
    let job = world.accepted(event("k")).await.job;
    let claim = world.take(later(1)).await;
    world.intends(claim.lease, "later", Idempotency::Natural, later(1)).await;
    let conclusion = Some(Conclusion { name: "later".into(), state: EffectState::NotDone, at: later(1) });
    world.settles(claim.lease, Settlement { conclusion, ..put_off(later(1), later(30)) }).await;
    let survivor = world.after_a_kill().await;
    let again = survivor.take(later(30)).await;
    assert_eq!((again.lease.job, &again.effects[0].state), (job, &EffectState::NotDone));
    assert_eq!(again.effects[0].first_intended_at, later(1));
    let conclusion = Some(Conclusion { name: "later".into(), state: done(), at: later(31) });
    survivor.settles(again.lease, Settlement { conclusion, ..finished(later(31)) }).await;
    survivor.adds_up().await;
}

pub async fn p7_a_job_that_is_put_off_keeps_its_place_in_its_lane(world: World) {
    let fifo = |key: &str| {
        let mut event = event(key);
        event.jobs[0].order = Order::Fifo { on_dead: OnDead::Continue };
        event
    };
    let first = world.accepted(fifo("1")).await.job;
    let second = world.accepted(fifo("2")).await.job;
    let claim = world.take(later(1)).await;
    assert_eq!(claim.lease.job, first);
    world.settles(claim.lease, put_off(later(1), later(30))).await;
    assert!(world.claims("work", 5, later(29)).await.is_empty());
    let claim = world.take(later(30)).await;
    assert_eq!(claim.lease.job, first);
    world.settles(claim.lease, finished(later(31))).await;
    assert_eq!(world.take(later(32)).await.lease.job, second);
    world.adds_up().await;
}

pub async fn an_attempt_and_what_follows_from_it_are_one_change(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(5)).await;
    let before = world.story(accepted.job).await;
    assert_eq!((before.row.word, before.attempts.len()), (Word::Running, 0));
    world.settles(claim.lease, finished(later(6))).await;
    let after = world.story(accepted.job).await;
    assert_eq!((after.row.word, after.row.ended_at), (Word::Success, Some(later(6))));
    assert_eq!((after.row.attempts, after.row.failures), (1, 0));
    let attempt = &after.attempts[0];
    assert_eq!((attempt.no, &*attempt.outcome), (1, "success"));
    assert_eq!((attempt.started_at, attempt.ended_at), (later(5), later(6)));
    assert!(world.claims("work", 1, later(1_000)).await.is_empty(), "it never runs again");
    world.adds_up().await;
}

pub async fn what_was_settled_is_on_disk_when_it_is_answered(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    world.settles(claim.lease, finished(later(1))).await;
    let survivor = world.after_a_kill().await;
    let story = survivor.story(accepted.job).await;
    assert_eq!((story.row.word, story.attempts.len()), (Word::Success, 1));
    assert!(survivor.claims("work", 1, later(1_000)).await.is_empty());
    survivor.adds_up().await;
}

pub async fn p4_a_retried_job_is_due_later_and_has_failed_once_more(world: World) {
    let accepted = world.accepted(event("k")).await;
    let mut world = world;
    for turn in 1..=3u32 {
        let now = later(u64::from(turn) * 100);
        let claim = world.take(now).await;
        assert_eq!((claim.failures, claim.attempts), (turn - 1, turn - 1));
        world.settles(claim.lease, failed(now, later(u64::from(turn) * 100 + 50))).await;
        world.adds_up().await;
        world = world.after_a_kill().await;
        let row = world.story(accepted.job).await.row;
        assert_eq!((row.word, row.failures, row.attempts), (Word::Retrying, turn, turn));
        assert_eq!(row.run_at, Some(later(u64::from(turn) * 100 + 50)));
        assert_eq!(row.error.as_deref(), Some("the target answered 503"));
    }
    let claim = world.take(later(1_000)).await;
    assert_eq!(claim.first_attempt_at, Some(later(99)), "the first one stays the first");
}

pub async fn a_buried_job_says_why_and_how_often_it_was_tried(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    world.settles(claim.lease, failed(later(1), later(2))).await;
    world.bury(later(2), Reason::RejectedByTarget).await;
    for world in [world.after_a_kill().await, world] {
        let story = world.story(accepted.job).await;
        assert_eq!(story.row.word, Word::Dead);
        assert_eq!(story.row.reason, Some(Reason::RejectedByTarget));
        assert_eq!(story.row.error.as_deref(), Some("the target answered 404"));
        assert_eq!((story.row.attempts, story.row.failures), (2, 2));
        let reasons: Vec<_> = story.attempts.iter().map(|attempt| attempt.reason).collect();
        assert_eq!(reasons, [Some(Reason::TargetDown), Some(Reason::RejectedByTarget)]);
        assert!(world.claims("work", 1, later(1_000)).await.is_empty());
        world.adds_up().await;
    }
}

pub async fn p4_a_job_that_was_handed_back_is_charged_nothing(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let end =
        Settlement { charged: false, ..settlement(later(1), "interrupted", Change::HandedBack { run_at: later(1) }) };
    world.settles(claim.lease, end).await;
    for world in [world.after_a_kill().await, world] {
        let story = world.story(accepted.job).await;
        assert_eq!((story.row.word, story.row.failures), (Word::Queued, 0));
        assert_eq!(story.attempts.len(), 1, "but it is on record");
        assert_eq!(world.take(later(1)).await.failures, 0);
        world.adds_up().await;
    }
}

pub async fn a_job_that_had_nothing_to_do_is_a_noop(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let change = Change::Finished { at: later(1), ending: Ending::Noop };
    world.settles(claim.lease, settlement(later(1), "noop", change)).await;
    assert_eq!(world.story(accepted.job).await.row.word, Word::Noop);
    world.adds_up().await;
}

pub async fn g1_a_job_that_was_declined_is_a_noop_that_says_why(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let declined = Outcome::Declined(Failure::new(Reason::PolicyDenied, "the rule says no"));
    let change = Change::Finished { at: later(1), ending: Ending::Declined(Reason::PolicyDenied) };
    world.settles(claim.lease, Settlement::of(&declined, change, later(0), later(1), None)).await;
    for world in [world.after_a_kill().await, world] {
        let story = world.story(accepted.job).await;
        assert_eq!((story.row.word, story.row.reason), (Word::Noop, Some(Reason::PolicyDenied)));
        let attempt = story.attempts.last().expect("an attempt");
        assert_eq!((attempt.outcome.as_str(), attempt.reason), ("noop", Some(Reason::PolicyDenied)));
        assert_eq!(attempt.error, Some("the rule says no".into()), "an end that has a reason is written down");
        world.adds_up().await;
    }
}

pub async fn a_lease_settles_once(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let mut ends = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (store, lease) = (world.clone(), claim.lease);
        ends.spawn(async move { store.settle(lease, failed(later(1), later(2))).await.expect("answered") });
    }
    let answers = ends.join_all().await;
    assert_eq!(answers.iter().filter(|held| **held == Held::Held).count(), 1);
    let row = world.story(accepted.job).await.row;
    assert_eq!((row.attempts, row.failures), (1, 1));
    world.adds_up().await;
}

pub async fn p5_jobs_of_one_event_end_each_on_their_own(world: World) {
    let accepted = world.accepted(NewEvent { jobs: vec![job("work"), job("other")], ..event("k") }).await;
    world.finish(later(1)).await;
    let words = async |world: &World| -> Vec<Word> {
        let jobs = world.jobs_of(accepted.event).await.expect("read");
        jobs.iter().map(|row| row.word).collect()
    };
    assert_eq!(words(&world).await, [Word::Success, Word::Queued]);
    let world = world.after_a_stop().await;
    assert_eq!(words(&world).await, [Word::Success, Word::Queued]);
    assert_eq!(world.claims("other", 1, later(2)).await.len(), 1);
    world.adds_up().await;
}

pub async fn p12_a_job_keeps_the_version_it_was_accepted_with(world: World) {
    let old = VersionId(1);
    assert_eq!(world.starts_with(1, 0).await, Activated::Live(old));
    let event = NewEvent { version: old, ..event("k") };
    world.accepted(event).await;
    assert_eq!(world.starts_with(2, 1).await, Activated::Live(VersionId(2)));
    let claim = world.take(later(2)).await;
    world.settles(claim.lease, failed(later(3), later(4))).await;
    let world = world.after_a_stop().await;
    assert_eq!(world.take(later(5)).await.version, old);
}
