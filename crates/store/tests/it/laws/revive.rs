//! revive: a dead letter runs again, under the same keys and on record.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_store::{NewEvent, ReviveAsk, Revived, UnknownRuling, VersionId};

const FIRST_REPLAY: Revived = Revived::Revived { replays: 1 };

/// A dead letter with one effect done and one refused.
async fn half_done(world: &World) -> clinch_store::Accepted {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    for (step, state) in [("charge", done()), ("mail", EffectState::NotDone)] {
        world.intends(claim.lease, step, Idempotency::None, later(1)).await;
        world.concludes(claim.lease, step, state, later(2)).await;
    }
    world.settles(claim.lease, buried(later(3), Reason::RejectedByTarget)).await;
    accepted
}

async fn rules(world: &World, job: JobId, ruling: UnknownRuling) -> Revived {
    let ask = ReviveAsk { unknown: Some(ruling), ..replay(job, later(10)) };
    world.revive(ask).await.expect("answered")
}

pub async fn p8_a_replay_keeps_id_key_and_effects(world: World) {
    let dead = half_done(&world).await;
    let before = world.story(dead.job).await;
    assert_eq!(world.revives(dead.job, later(10)).await, FIRST_REPLAY);
    for world in [world.after_a_kill().await, world] {
        assert_eq!(world.duplicate(event("k")).await, dead, "the key is still its own");
        let claim = world.take(later(10)).await;
        assert_eq!((claim.lease.job, claim.event), (dead.job, dead.event));
        assert_eq!(claim.effects, before.effects);
        assert_eq!(claim.payload, before.payload);
        assert_eq!(world.jobs_len().await, 1);
        world.adds_up().await;
    }
}

pub async fn p8_a_replay_has_its_attempts_before_it_again(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    world.revives(dead.job, later(10)).await;
    let row = world.story(dead.job).await.row;
    assert_eq!((row.word, row.failures, row.replays), (Word::Queued, 0, 1));
    assert_eq!((row.attempts, row.ended_at, row.reason), (1, None, None));
    let claim = world.take(later(10)).await;
    assert_eq!((claim.failures, claim.attempts, claim.replays), (0, 1, 1));
    assert_eq!(claim.first_attempt_at, None, "the clock of its policy starts anew");
    world.settles(claim.lease, finished(later(11))).await;
    let story = world.story(dead.job).await;
    let numbers: Vec<_> = story.attempts.iter().map(|attempt| attempt.no).collect();
    assert_eq!((story.row.word, numbers), (Word::Success, vec![1, 2]), "no attempt is forgotten");
    let died_at = world.died_at(dead.job).await.expect("answered");
    assert_eq!(died_at, Some(story.attempts[0].ended_at), "also when it had died is known");
    world.adds_up().await;
}

pub async fn p8_a_replay_is_on_record_with_actor_and_reason(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    world.revives(dead.job, later(10)).await;
    for world in [world.after_a_kill().await, world] {
        let story = world.story(dead.job).await;
        let all = world.record().await;
        for audit in [&story.audit, &all] {
            assert_eq!(audit.len(), 1);
            assert_eq!((&*audit[0].actor, &*audit[0].action), ("alice", "job.replay"));
            assert_eq!((&*audit[0].reason, audit[0].at), ("the target is back", later(10)));
            assert_eq!(audit[0].job, Some(dead.job));
        }
    }
}

pub async fn p8_pressing_twice_is_pressing_once(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    assert_eq!(world.revives(dead.job, later(10)).await, FIRST_REPLAY);
    let state = Word::Queued;
    assert_eq!(world.revives(dead.job, later(11)).await, Revived::NotDead { state });
    let story = world.story(dead.job).await;
    assert_eq!((story.row.replays, story.audit.len()), (1, 1));
    assert_eq!(story.row.run_at, Some(later(10)));
    assert_eq!(world.claims("work", 10, later(12)).await.len(), 1);
}

pub async fn p8_a_hundred_presses_at_once_are_one(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    let mut presses = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let store = world.clone();
        presses.spawn(async move { store.revive(replay(dead.job, later(10))).await.expect("answered") });
    }
    let answers = presses.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == FIRST_REPLAY).count(), 1);
    assert_eq!(world.story(dead.job).await.audit.len(), 1);
    assert_eq!(world.claims("work", 10, later(12)).await.len(), 1);
    world.adds_up().await;
}

pub async fn p8_an_unknown_effect_asks_first_and_changes_nothing(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    let before = format!("{:?}", world.story(dead.job).await);
    let steps = vec!["post".to_string()];
    assert_eq!(world.revives(dead.job, later(10)).await, Revived::Ask { steps });
    assert_eq!(format!("{:?}", world.story(dead.job).await), before);
    assert!(world.claims("work", 1, later(11)).await.is_empty());
}

pub async fn p8_resend_opens_the_way_for_an_unknown_effect(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    assert_eq!(rules(&world, dead.job, UnknownRuling::Resend).await, FIRST_REPLAY);
    let claim = world.take(later(10)).await;
    assert_eq!(claim.effects[0].state, EffectState::NotDone);
    assert!(world.story(dead.job).await.audit[0].after.as_deref().expect("told").contains("sent again"));
    world.adds_up().await;
}

pub async fn p8_skip_takes_an_unknown_effect_as_done(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    assert_eq!(rules(&world, dead.job, UnknownRuling::Skip).await, FIRST_REPLAY);
    let claim = world.take(later(10)).await;
    let no_answer = Receipt { status: 0, body: bytes::Bytes::new() };
    assert_eq!(claim.effects[0].state, EffectState::Done(no_answer));
    assert!(world.story(dead.job).await.audit[0].after.as_deref().expect("told").contains("taken as done"));
    world.settles(claim.lease, finished(later(11))).await;
    world.adds_up().await;
}

pub async fn p8_an_unknown_effect_that_may_be_sent_again_asks_nobody(world: World) {
    let dead = world.unknown("k", Idempotency::Header).await;
    assert_eq!(world.revives(dead.job, later(10)).await, FIRST_REPLAY);
    let claim = world.take(later(10)).await;
    assert_eq!(claim.effects[0].state, EffectState::Unknown, "and it is not made to look certain");
}

pub async fn c9_a_replay_takes_up_what_was_given_up_and_knows_no_more_of_it(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let given_up = |reason| EffectState::GivenUp(reason);
    let ends = [("a", done()), ("b", given_up(Reason::TargetDown)), ("c", given_up(Reason::UnknownOutcome))];
    for (step, state) in ends {
        world.intends(claim.lease, step, Idempotency::Header, later(1)).await;
        world.concludes(claim.lease, step, state, later(2)).await;
    }
    world.settles(claim.lease, buried(later(3), Reason::TargetDown)).await;
    assert_eq!(world.revives(accepted.job, later(10)).await, FIRST_REPLAY);
    for world in [world.after_a_kill().await, world] {
        let effects = world.take(later(10)).await.effects;
        let states: Vec<_> = effects.into_iter().map(|effect| effect.state).collect();
        assert_eq!(states, [done(), EffectState::NotDone, EffectState::Unknown]);
        world.adds_up().await;
    }
}

pub async fn p12_a_replay_runs_on_another_version_when_asked_to(world: World) {
    let dead = world.dead("k", later(0), Reason::ConfigError).await;
    let ask = ReviveAsk { version: Some(VersionId(9)), ..replay(dead.job, later(10)) };
    world.revive(ask).await.expect("answered");
    let world = world.after_a_stop().await;
    assert_eq!(world.take(later(10)).await.version, VersionId(9));
}

pub async fn only_a_dead_letter_is_revived(world: World) {
    let accepted = world.accepted(event("k")).await;
    let refused = async |state: Word| {
        let answer = world.revives(accepted.job, later(10)).await;
        assert_eq!(answer, Revived::NotDead { state }, "{state:?}");
    };
    refused(Word::Queued).await;
    let claim = world.take(later(0)).await;
    world.settles(claim.lease, failed(later(1), later(2))).await;
    refused(Word::Retrying).await;
    let claim = world.take(later(2)).await;
    assert!(matches!(world.revives(accepted.job, later(10)).await, Revived::NotDead { .. }));
    world.settles(claim.lease, finished(later(3))).await;
    refused(Word::Success).await;
    assert!(world.story(accepted.job).await.audit.is_empty());
    let nobody = JobId::from_number(accepted.job.number() + 77);
    assert_eq!(world.revives(nobody, later(10)).await, Revived::NotFound);
    world.adds_up().await;
}

pub async fn a_revived_job_survives_a_stop_however_old_it_is(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    let young = world.accepted(NewEvent { received_at: later(5_000), ..event("young") }).await;
    // What is behind the oldest unfinished job is not looked at when the store starts.
    world.prunes(later(5_000)).await;
    world.revives(dead.job, later(5_001)).await;
    let survivor = world.after_a_kill().await;
    let jobs = survivor.claims("work", 10, later(6_000)).await;
    let jobs: Vec<_> = jobs.iter().map(|claim| claim.lease.job).collect();
    assert_eq!(jobs, [young.job, dead.job]);
    let world = world.after_a_stop().await;
    assert_eq!(world.claims("work", 10, later(6_000)).await.len(), 2);
    world.adds_up().await;
}
