//! Who runs a job: one worker at a time, as long as it lives; and what a stop does to it.

use crate::process::eventually;
use crate::world::{FLOW, NO_WORKER, PATIENCE, QUEUES, Reply, WORKER, World};
use clinch::app::Roles;
use clinch_core::attempt::Outcome;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::id::JobId;
use clinch_core::job::{Change, Ending, Word};
use clinch_store::read::JobStory;
use clinch_store::{Claim, ClaimAsk, Conclusion, Held, NewEffect, Settlement};
use std::time::Duration;

const BODY: &str = r#"{"order":7}"#;

fn outcomes(story: &JobStory) -> Vec<&str> {
    story.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect()
}

/// A worker that takes one job and then never renews its lease.
async fn claim(world: &World, queue: &str, lease: Duration) -> Claim {
    let house = &world.app().house;
    let now = house.clock.now();
    let ask = ClaimAsk { queue: queue.into(), most: 1, but: None, now, until: now + lease };
    house.store.claim(ask).await.unwrap().pop().expect("a job is due")
}

/// This worker says that it is done.
async fn settle_as_done(world: &World, claim: &Claim) -> Held {
    let house = &world.app().house;
    let now = house.clock.now();
    let change = Change::Finished { at: now, ending: Ending::Success };
    let settlement = Settlement::of(&Outcome::Succeeded(Ending::Success), change, now, now, None);
    house.store.settle(claim.lease, settlement).await.unwrap()
}

async fn intend(world: &World, claim: &Claim, class: Idempotency) -> Held {
    let house = &world.app().house;
    let effect = NewEffect { name: "charge".into(), class, at: house.clock.now() };
    house.store.intend(claim.lease, effect).await.unwrap()
}

/// A worker claimed this job and went away; the reaper has taken it back.
async fn taken_back(world: &World, job: JobId) -> JobStory {
    world.wait_until(job, "taken back", |story| outcomes(story).contains(&"lost")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_p11_t_067_a_worker_that_slept_past_its_lease_changes_nothing() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    let job = world.post("k", BODY).await.job();
    let lease = Duration::from_secs(3);
    let sleeper = claim(&world, "orders", lease).await;
    assert_eq!(sleeper.lease.job, job);
    assert_eq!(world.job(job).await.row.word, Word::Running);

    // Nobody else gets it until its lease ends; then it runs again, and the lost worker has cost an attempt.
    let story = taken_back(&world, job).await;
    assert_eq!((story.row.word, story.row.failures), (Word::Retrying, 1));
    assert!(story.attempts[0].ended_at.since(sleeper.received_at) >= lease, "not before its lease ended");
    world.wait_until(job, "due", |story| story.row.run_at.is_some_and(|at| at <= world.app().house.clock.now())).await;
    let second = claim(&world, "orders", Duration::from_secs(60)).await;
    assert!(second.lease.fence > sleeper.lease.fence, "the fence grows with each claim");

    // The sleeper wakes up and tries everything a worker can do.
    let house = &world.app().house;
    let until = house.clock.now() + Duration::from_secs(60);
    assert_eq!(house.store.renew(&[sleeper.lease], until).await.unwrap(), [Held::Lost]);
    assert_eq!(intend(&world, &sleeper, Idempotency::Header).await, Held::Lost);
    let receipt = Receipt { status: 200, body: Default::default() };
    let done = Conclusion { name: "charge".into(), state: EffectState::Done(receipt), at: house.clock.now() };
    assert_eq!(house.store.conclude(sleeper.lease, done).await.unwrap(), Held::Lost);
    assert_eq!(settle_as_done(&world, &sleeper).await, Held::Lost);
    let story = world.job(job).await;
    assert_eq!((story.row.word, outcomes(&story)), (Word::Running, vec!["lost"]));
    assert!(story.effects.is_empty());

    assert_eq!(settle_as_done(&world, &second).await, Held::Held);
    assert_eq!(settle_as_done(&world, &sleeper).await, Held::Lost);
    let story = world.job(job).await;
    assert_eq!((story.row.word, outcomes(&story)), (Word::Success, vec!["lost", "success"]));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_worker_lost_after_its_intent_leaves_the_effect_unknown() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    // It cannot be repeated: a person must say.
    let job = world.post("none", BODY).await.job();
    let lost = claim(&world, "orders", Duration::from_secs(2)).await;
    assert_eq!(intend(&world, &lost, Idempotency::None).await, Held::Held);
    let story = taken_back(&world, job).await;
    assert_eq!((story.row.word, story.row.reason), (Word::Dead, Some(Reason::UnknownOutcome)));
    assert_eq!(story.effects[0].state, EffectState::Unknown);

    // The target will recognise it: it is sent again.
    let job = world.post("header", BODY).await.job();
    let lost = claim(&world, "orders", Duration::from_secs(2)).await;
    assert_eq!(intend(&world, &lost, Idempotency::Header).await, Held::Held);
    let story = taken_back(&world, job).await;
    assert_eq!((story.row.word, story.row.failures), (Word::Retrying, 1));
    assert_eq!(story.effects[0].state, EffectState::Unknown);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_dead_workers_job_is_run_by_a_living_one() {
    let mut world = World::with_roles(NO_WORKER, &[]).await;
    let job = world.post("k", BODY).await.job();
    claim(&world, "orders", Duration::from_secs(3600)).await;
    // Its process ends with it, an hour before the lease would.
    world.close().await;
    world.open(Roles::ALL).await;
    let story = world.wait(job, Word::Success).await;
    assert_eq!(outcomes(&story), ["success"]);
    assert_eq!(world.target.calls().len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_a_slow_but_living_worker_is_not_robbed() {
    let queues = format!("{QUEUES}  - name: parked\n");
    let queues = queues.replace("- name: orders\n", "- name: orders\n    visibility_timeout: 5s\n");
    let parked = FLOW.replace("orders", "parked");
    let world = World::new(&[("queues.yml", &queues), ("flows/parked.yml", &parked)]).await;
    world.target.script("/charge", [Reply::Held]);
    let slow = world.post("k", BODY).await.job();
    world.target.called(1).await;
    // A claim that nobody renews is the clock: when the reaper has taken it back, two leases of the slow job are over.
    let neighbour = world.deliver("/hooks/parked", &[("idempotency-key", "k")], BODY).await.job();
    claim(&world, "parked", Duration::from_secs(11)).await;
    taken_back(&world, neighbour).await;
    let story = world.job(slow).await;
    assert_eq!((story.row.word, story.attempts.len()), (Word::Running, 0));
    world.target.release();
    let story = world.wait(slow, Word::Success).await;
    assert_eq!(outcomes(&story), ["success"]);
    assert_eq!(world.target.calls().len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_never_runs_more_jobs_at_once_than_it_may() {
    let worker = WORKER.replace("retry:", "concurrency: 2\nretry:");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Held]);
    let mut jobs = Vec::new();
    for n in 0..6 {
        jobs.push(world.post(&format!("k-{n}"), BODY).await.job());
    }
    for released in 0..6 {
        world.target.called((released + 2).min(6)).await;
        assert!(
            world.target.calls().len() <= released + 2,
            "{released} were let go, so at most two more may have come"
        );
        // What was answered runs until that is written down.
        eventually("two run", PATIENCE, async || {
            world.jobs().await.iter().filter(|row| row.word == Word::Running).count() <= 2
        })
        .await;
        world.target.release();
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_a_stop_lets_the_job_under_way_finish_and_begins_no_other() {
    let worker = WORKER.replace("retry:", "concurrency: 1\nretry:");
    let mut world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Held]);
    let first = world.post("first", BODY).await.job();
    world.target.called(1).await;
    let second = world.post("second", BODY).await.job();
    let stopped = world.begin_to_close().await;
    world.target.release();
    stopped.await.unwrap();
    assert_eq!(world.target.calls().len(), 1);
    let report = world.verify();
    assert!(report.parts.contains(&("success", 1)) && report.parts.contains(&("queued", 1)), "{report:?}");

    world.open(NO_WORKER).await;
    assert_eq!(outcomes(&world.job(first).await), ["success"]);
    assert_eq!(world.job(second).await.row.attempts, 0);
    world.close().await;
    world.open(Roles::ALL).await;
    world.target.release();
    world.wait(second, Word::Success).await;
    assert_eq!(world.target.calls().len(), 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_a_job_stopped_between_two_steps_is_handed_back_at_no_cost_and_goes_on_where_it_was() {
    let worker = format!("{WORKER}  - name: mail\n    http: {{url: http://TARGET/mail, body_from: body}}\n");
    // A single attempt: if the stop cost one, the job would be a dead letter.
    let worker = worker.replace("max_attempts: 3", "max_attempts: 1");
    let mut world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Held]);
    let job = world.post("k", BODY).await.job();
    world.target.called(1).await;
    let stopped = world.begin_to_close().await;
    world.target.release();
    stopped.await.unwrap();

    world.open(NO_WORKER).await;
    let story = world.job(job).await;
    assert_eq!((story.row.word, story.row.failures), (Word::Queued, 0));
    assert_eq!(outcomes(&story), ["interrupted"]);
    assert!(matches!(story.effects[0].state, EffectState::Done(_)), "{:?}", story.effects);
    world.close().await;
    world.open(Roles::ALL).await;
    let story = world.wait(job, Word::Success).await;
    assert_eq!((outcomes(&story), story.row.failures), (vec!["interrupted", "success"], 0));
    assert_eq!((world.target.calls_at("/charge").len(), world.target.calls_at("/mail").len()), (1, 1));
    world.close_and_verify().await;
}
