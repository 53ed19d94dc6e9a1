//! resolve, testify, and the list of effects: what people are told of an effect of unknown outcome, and what they may say.

use super::world::*;
use bytes::Bytes;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectId, EffectState, EffectWord, Idempotency, LateAnswer, Receipt};
use clinch_core::id::JobId;
use clinch_core::job::{Fence, Word};
use clinch_core::time::Timestamp;
use clinch_store::read::{EffectFilter, EffectPage};
use clinch_store::resolve::Standing;
use clinch_store::{
    Conclusion, ForgetAsk, Held, LATE_ANSWERS_MAX, LeaseRef, NewEvent, Resolution, ResolveAsk, Resolved, Settlement,
    Testified, Testimony, UnknownRuling,
};

fn ask(job: JobId, step: &str, resolution: Resolution, at: Timestamp) -> ResolveAsk {
    ResolveAsk {
        effect: EffectId { job, step: step.into() },
        resolution,
        proof: "payment 77 is in the ledger of the bank".into(),
        record: by("alice", "INC-482", at),
    }
}

async fn resolves(world: &World, job: JobId, step: &str, resolution: Resolution) -> Resolved {
    world.resolve(ask(job, step, resolution, later(20))).await.expect("answered")
}

fn none_left(job: Word) -> Standing {
    Standing { job, unknown: 0 }
}

fn testimony(step: &str, state: EffectState, at: Timestamp) -> Testimony {
    let status = if let EffectState::Done(receipt) = &state { Some(receipt.status) } else { None };
    Testimony { conclusion: Conclusion { name: step.into(), state, at }, status }
}

async fn testifies(world: &World, lease: LeaseRef, state: EffectState, at: Timestamp) -> Testified {
    world.testify(lease, testimony("post", state, at)).await.expect("answered")
}

async fn list(world: &World, filter: EffectFilter) -> EffectPage {
    world.effects(filter).await.expect("read")
}

fn unknown() -> EffectFilter {
    EffectFilter { state: Some(EffectWord::Unknown), limit: 100, ..EffectFilter::default() }
}

/// A worker that sent something lost its job, and the job is a dead letter now. What the worker held.
async fn fenced(world: &World, key: &str) -> LeaseRef {
    world.accepted(event(key)).await;
    let sleeper = world.take(later(1)).await;
    world.intends(sleeper.lease, "post", Idempotency::None, later(1)).await;
    let lost = world.lapse(later(1_000), 10, later(1_060)).await.expect("lapsed").pop().expect("its lease is over");
    let end = Settlement {
        conclusion: Some(Conclusion { name: "post".into(), state: EffectState::Unknown, at: later(1_000) }),
        ..buried(later(1_000), Reason::UnknownOutcome)
    };
    world.settles(lost.lease, end).await;
    sleeper.lease
}

pub async fn d2_a_late_answer_without_a_body_becomes_the_result_as_it_came(world: World) {
    let sleeper = fenced(&world, "k").await;
    let done = EffectState::Done(Receipt { status: 204, body: Bytes::new() });
    assert_eq!(testifies(&world, sleeper, done.clone(), later(1_001)).await, Testified::Kept);
    resolves(&world, sleeper.job, "post", Resolution::Done).await;
    assert_eq!(world.story(sleeper.job).await.effects[0].state, done);
    // Nothing of it is stored that a rotation of keys would have to seal.
    assert_eq!(world.key_uses().await.expect("counted").iter().map(|of| of.results).sum::<u64>(), 0);
}

pub async fn d2_a_persons_word_settles_an_unknown_effect_on_record(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    assert_eq!(resolves(&world, dead.job, "post", Resolution::Done).await, Resolved::Resolved(none_left(Word::Dead)));
    let survivor = world.after_a_kill().await;
    let story = survivor.story(dead.job).await;
    let no_answer = Receipt { status: 0, body: Default::default() };
    assert_eq!(story.effects[0].state, EffectState::Done(no_answer));
    assert_eq!((story.row.word, story.effects[0].changed_at), (Word::Dead, later(20)));
    let audit = &story.audit[0];
    assert_eq!((&*audit.actor, &*audit.action, &*audit.reason), ("alice", "effect.resolve", "INC-482"));
    assert_eq!(audit.object, format!("{}/post", dead.job));
    assert_eq!(audit.before.as_deref(), Some("{\"state\":\"unknown\"}"));
    assert!(audit.after.as_deref().expect("told").contains("payment 77"), "{audit:?}");
    // Nothing is left to ask about: it runs again and skips the step.
    survivor.revives(dead.job, later(30)).await;
    let claim = survivor.take(later(30)).await;
    assert!(matches!(claim.effects[0].state, EffectState::Done(_)));
    survivor.settles(claim.lease, finished(later(31))).await;
    survivor.adds_up().await;
}

pub async fn d2_what_was_given_up_in_doubt_is_unknown_and_a_person_may_settle_it(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    for (step, reason) in [("a", Reason::UnknownOutcome), ("b", Reason::UnknownOutcome), ("c", Reason::TargetDown)] {
        world.intends(claim.lease, step, Idempotency::Header, later(1)).await;
        world.concludes(claim.lease, step, EffectState::GivenUp(reason), later(2)).await;
    }
    let busy = Resolved::Unfinished { job: Word::Running };
    assert_eq!(resolves(&world, accepted.job, "a", Resolution::Done).await, busy);
    world.settles(claim.lease, buried(later(3), Reason::TargetDown)).await;
    let listed = async |world: &World, state: EffectWord| -> Vec<(String, &'static str)> {
        let page = list(world, EffectFilter { state: Some(state), ..unknown() }).await;
        page.rows.into_iter().map(|row| (row.effect.name, row.effect.state.word())).collect()
    };
    let survivor = world.after_a_kill().await;
    assert_eq!(listed(&survivor, EffectWord::Unknown).await, [("b".into(), "unknown"), ("a".into(), "unknown")]);
    assert_eq!(listed(&survivor, EffectWord::GivenUp).await, [("c".into(), "given_up")]);
    let left = |unknown| Resolved::Resolved(Standing { job: Word::Dead, unknown });
    assert_eq!(resolves(&survivor, accepted.job, "a", Resolution::Done).await, left(1));
    assert_eq!(resolves(&survivor, accepted.job, "b", Resolution::NotDone).await, left(0));
    let known = Resolved::NotUnknown { state: "given_up" };
    assert_eq!(resolves(&survivor, accepted.job, "c", Resolution::Done).await, known);
    assert_eq!(listed(&survivor, EffectWord::Unknown).await, []);
    survivor.revives(accepted.job, later(30)).await;
    let states = survivor.take(later(30)).await.effects.into_iter().map(|effect| effect.state);
    let no_answer = EffectState::Done(Receipt { status: 0, body: Bytes::new() });
    assert_eq!(states.collect::<Vec<_>>(), [no_answer, EffectState::NotDone, EffectState::NotDone]);
    survivor.adds_up().await;
}

pub async fn d2_what_a_person_says_was_not_done_is_sent_again_by_a_replay(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    assert_eq!(
        resolves(&world, dead.job, "post", Resolution::NotDone).await,
        Resolved::Resolved(none_left(Word::Dead))
    );
    world.revives(dead.job, later(30)).await;
    let claim = world.take(later(30)).await;
    assert_eq!(claim.effects[0].state, EffectState::NotDone);
    assert_eq!(world.intends(claim.lease, "post", Idempotency::None, later(31)).await, Held::Held);
    world.settles(claim.lease, finished_with(later(32), done())).await;
    assert_eq!(world.story(dead.job).await.effects[0].sends, 2);
    world.adds_up().await;
}

fn finished_with(at: Timestamp, state: EffectState) -> Settlement {
    Settlement { conclusion: Some(Conclusion { name: "post".into(), state, at }), ..finished(at) }
}

pub async fn d2_saying_it_twice_is_saying_it_once(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    let first = resolves(&world, dead.job, "post", Resolution::NotDone).await;
    assert_eq!(first, Resolved::Resolved(none_left(Word::Dead)));
    let again = world.resolve(ask(dead.job, "post", Resolution::NotDone, later(40))).await.expect("answered");
    assert_eq!(again, Resolved::Before(none_left(Word::Dead)));
    // And who says the contrary is told what it is.
    let contrary = resolves(&world, dead.job, "post", Resolution::Done).await;
    assert_eq!(contrary, Resolved::NotUnknown { state: "not_done" });
    let story = world.story(dead.job).await;
    assert_eq!((story.audit.len(), story.effects[0].changed_at), (1, later(20)));
}

pub async fn d2_many_who_say_it_at_once_are_one(world: World) {
    let dead = world.unknown("k", Idempotency::None).await;
    let (a, b, c, d) = tokio::join!(
        resolves(&world, dead.job, "post", Resolution::Done),
        resolves(&world, dead.job, "post", Resolution::Done),
        resolves(&world, dead.job, "post", Resolution::Done),
        resolves(&world, dead.job, "post", Resolution::Done),
    );
    let told = [a, b, c, d];
    assert_eq!(told.iter().filter(|told| matches!(told, Resolved::Resolved(_))).count(), 1, "{told:?}");
    assert_eq!(told.iter().filter(|told| matches!(told, Resolved::Before(_))).count(), 3, "{told:?}");
    assert_eq!(world.story(dead.job).await.audit.len(), 1);
}

pub async fn d2_nobody_rules_on_what_is_known_runs_or_is_not_there(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(1)).await;
    world.intends(claim.lease, "post", Idempotency::Header, later(1)).await;
    let running = Resolved::Unfinished { job: Word::Running };
    assert_eq!(resolves(&world, accepted.job, "post", Resolution::Done).await, running);
    let end = Settlement {
        conclusion: Some(Conclusion { name: "post".into(), state: EffectState::Unknown, at: later(2) }),
        ..failed(later(2), later(50))
    };
    world.settles(claim.lease, end).await;
    // It will be tried again by the rule of its integration.
    let retrying = Resolved::Unfinished { job: Word::Retrying };
    assert_eq!(resolves(&world, accepted.job, "post", Resolution::Done).await, retrying);
    let claim = world.take(later(50)).await;
    world.intends(claim.lease, "post", Idempotency::Header, later(50)).await;
    world.settles(claim.lease, finished_with(later(51), done())).await;
    let known = Resolved::NotUnknown { state: "done" };
    assert_eq!(resolves(&world, accepted.job, "post", Resolution::NotDone).await, known);
    let nobody = JobId::from_number(accepted.job.number() + 77);
    assert_eq!(resolves(&world, nobody, "post", Resolution::Done).await, Resolved::NotFound);
    assert_eq!(resolves(&world, accepted.job, "other", Resolution::Done).await, Resolved::NotFound);
    let story = world.story(accepted.job).await;
    assert_eq!((story.audit.len(), &story.effects[0].state), (0, &done()));
    world.adds_up().await;
}

pub async fn p6_a_late_answer_is_kept_as_evidence_and_changes_no_state(world: World) {
    let sleeper = fenced(&world, "k").await;
    let before = world.story(sleeper.job).await;
    assert_eq!(world.concludes(sleeper, "post", done(), later(1_100)).await, Held::Lost);
    assert_eq!(testifies(&world, sleeper, done(), later(1_100)).await, Testified::Kept);
    // Its answer may be lost: it says it again, and that is one.
    assert_eq!(testifies(&world, sleeper, done(), later(1_101)).await, Testified::Kept);
    let survivor = world.after_a_kill().await;
    let story = survivor.story(sleeper.job).await;
    let late =
        LateAnswer { step: "post".into(), fence: sleeper.fence, at: later(1_100), state: done(), status: Some(201) };
    assert_eq!(story.late, [late]);
    assert_eq!((story.row.word, &story.effects), (Word::Dead, &before.effects));
    assert_eq!(story.effects[0].state, EffectState::Unknown);
    survivor.adds_up().await;
}

pub async fn p6_every_kind_of_late_answer_reads_back(world: World) {
    let sleeper = fenced(&world, "k").await;
    let lease = |fence| LeaseRef { fence: Fence(fence), ..sleeper };
    let refused = Testimony { status: Some(404), ..testimony("post", EffectState::NotDone, later(1_100)) };
    world.testify(lease(1), refused).await.expect("answered");
    testifies(&world, lease(2), EffectState::Unknown, later(1_101)).await;
    let lost = Testimony { status: Some(502), ..testimony("post", EffectState::Unknown, later(1_102)) };
    world.testify(lease(3), lost).await.expect("answered");
    let late = world.story(sleeper.job).await.late;
    let told: Vec<_> = late.into_iter().map(|late| (late.fence.0, late.state, late.status)).collect();
    let unknown_at = |fence, status| (fence, EffectState::Unknown, status);
    assert_eq!(told, [(1, EffectState::NotDone, Some(404)), unknown_at(2, None), unknown_at(3, Some(502))]);
    assert!(!list(&world, unknown()).await.rows[0].late_done);
}

pub async fn p10_late_answers_of_one_effect_are_bounded(world: World) {
    let sleeper = fenced(&world, "k").await;
    let most = LATE_ANSWERS_MAX.unsigned_abs();
    for nth in 0..most + 3 {
        let lease = LeaseRef { fence: Fence(nth + 1), ..sleeper };
        let kept = testifies(&world, lease, EffectState::Unknown, later(1_100 + nth)).await;
        assert_eq!(kept == Testified::Kept, nth < most, "{nth}");
    }
    assert_eq!(world.story(sleeper.job).await.late.len() as u64, most);
    // Of what was never intended nothing is kept, nor of a job that is not there.
    let other = world.testify(sleeper, testimony("other", done(), later(1_200))).await.expect("answered");
    assert_eq!(other, Testified::NotKept);
    let nobody = LeaseRef { job: JobId::from_number(sleeper.job.number() + 77), ..sleeper };
    assert_eq!(testifies(&world, nobody, done(), later(1_200)).await, Testified::NotKept);
    world.adds_up().await;
}

pub async fn d2_what_a_late_answer_proves_becomes_the_result_of_the_step(world: World) {
    let sleeper = fenced(&world, "k").await;
    testifies(&world, sleeper, done(), later(1_100)).await;
    assert!(list(&world, unknown()).await.rows[0].late_done);
    assert_eq!(
        resolves(&world, sleeper.job, "post", Resolution::Done).await,
        Resolved::Resolved(none_left(Word::Dead))
    );
    world.revives(sleeper.job, later(1_200)).await;
    let claim = world.take(later(1_200)).await;
    assert_eq!(claim.effects[0].state, done(), "the next steps get the answer that came");
    world.settles(claim.lease, finished(later(1_201))).await;
    world.adds_up().await;
}

pub async fn p9_a_late_answer_cannot_be_read_without_the_key_and_is_forgotten_with_its_event(world: World) {
    let secret = || {
        EffectState::Done(Receipt { status: 200, body: bytes::Bytes::from_static(b"{\"iban\":\"DE02-late-answer\"}") })
    };
    let holds = |bytes: &[u8]| bytes.windows(16).any(|part| part == b"DE02-late-answer");
    let sleeper = fenced(&world, "k").await;
    testifies(&world, sleeper, secret(), later(1_100)).await;
    assert!(!holds(&world.bytes().await));
    assert_eq!(world.story(sleeper.job).await.late[0].state, secret());
    let uses = world.key_uses().await.expect("read");
    assert_eq!((uses.len(), uses[0].results), (1, 1));
    let contents = world.contents(None, 10).await.expect("read");
    assert!(contents[0].others.iter().any(|kept| kept.as_ref().is_ok_and(|bytes| holds(bytes))));

    // Under another key it is sealed again, and nothing is under the first.
    world.use_keys(ring(OTHER_KEY, &[KEY])).await.expect("known");
    world.reseal(None, 100).await.expect("sealed");
    world.reseal(contents.last().map(|contents| contents.event), 100).await.expect("sealed");
    assert_eq!(world.retire_keys().await.expect("retired").len(), 1);
    assert_eq!(world.story(sleeper.job).await.late[0].state, secret());

    let events = vec![world.story(sleeper.job).await.row.event];
    let at = later(1_300);
    let ask = ForgetAsk { events, answers: Vec::new(), subject: "s".into(), record: by("alice", "asked for it", at) };
    world.forget(ask).await.expect("erased");
    let erased = Receipt { status: 200, body: Default::default() };
    assert_eq!(world.story(sleeper.job).await.late[0].state, EffectState::Done(erased.clone()));
    // Nor is anything kept of what comes later still.
    let later_still = LeaseRef { fence: Fence(sleeper.fence.0 + 1_000), ..sleeper };
    testifies(&world, later_still, secret(), later(1_301)).await;
    let late = world.story(sleeper.job).await.late;
    assert_eq!((late.len(), &late[1].state), (2, &EffectState::Done(erased)));
    world.adds_up().await;
}

pub async fn late_answers_go_with_their_job(world: World) {
    let sleeper = fenced(&world, "k").await;
    testifies(&world, sleeper, done(), later(1_100)).await;
    let over = later(1_000) + 2 * RETENTION;
    assert_eq!(world.prunes(over).await.jobs, 1);
    assert!(world.job(sleeper.job).await.expect("read").is_none());
    world.adds_up_at(over).await;
    assert_eq!(testifies(&world, sleeper, done(), over).await, Testified::NotKept);
    world.adds_up_at(over).await;
}

pub async fn effects_are_listed_by_state_flow_and_job(world: World) {
    let first = world.unknown("a", Idempotency::None).await;
    let second = world.unknown("b", Idempotency::Lookup).await;
    world.accepted(event("c")).await;
    let claim = world.take(later(3)).await;
    world.intends(claim.lease, "post", Idempotency::Natural, later(3)).await;
    world.intends(claim.lease, "mail", Idempotency::Natural, later(3)).await;
    world.concludes(claim.lease, "post", done(), later(4)).await;

    let ids = |page: &EffectPage| page.rows.iter().map(|row| (row.job, row.effect.name.clone())).collect::<Vec<_>>();
    let all = list(&world, EffectFilter { limit: 100, ..EffectFilter::default() }).await;
    let third = claim.lease.job;
    let expected =
        [(third, "post".into()), (third, "mail".into()), (second.job, "post".into()), (first.job, "post".into())];
    assert_eq!(ids(&all), expected);
    assert!(!all.more);
    let row = &all.rows[0];
    assert_eq!((&*row.flow, &*row.queue, row.word), ("orders", "work", Word::Running));
    assert_eq!((row.effect.state.word(), row.effect.sends, row.effect.class), ("done", 1, Idempotency::Natural));
    let EffectState::Done(receipt) = &row.effect.state else { panic!("done") };
    assert_eq!((receipt.status, receipt.body.len()), (201, 0), "a list has no bodies");

    let unknown_ones = list(&world, unknown()).await;
    assert_eq!(ids(&unknown_ones), [(second.job, "post".into()), (first.job, "post".into())]);
    assert!(unknown_ones.rows.iter().all(|row| row.word == Word::Dead));
    let open = EffectFilter { state: Some(EffectWord::Open), ..unknown() };
    assert_eq!(ids(&list(&world, open).await), [(third, "mail".into())]);
    let of_job = EffectFilter { state: None, job: Some(first.job), ..unknown() };
    assert_eq!(ids(&list(&world, of_job).await), [(first.job, "post".into())]);
    let of_flow = |flow: &str| EffectFilter { flow: Some(flow.into()), ..unknown() };
    assert_eq!(list(&world, of_flow("orders")).await.rows.len(), 2);
    assert_eq!(list(&world, of_flow("others")).await.rows.len(), 0);
    world.settles(claim.lease, failed(later(5), later(6))).await;
    world.adds_up().await;
}

pub async fn what_was_unknown_and_is_known_now_is_not_listed_as_unknown(world: World) {
    let by_person = world.unknown("a", Idempotency::None).await;
    let by_replay = world.unknown("b", Idempotency::None).await;
    let by_answer = world.unknown("c", Idempotency::Header).await;
    assert_eq!(list(&world, unknown()).await.rows.len(), 3);
    resolves(&world, by_person.job, "post", Resolution::Done).await;
    let skip = clinch_store::ReviveAsk { unknown: Some(UnknownRuling::Skip), ..replay(by_replay.job, later(10)) };
    world.revive(skip).await.expect("revived");
    world.revives(by_answer.job, later(10)).await;
    for claim in world.claims("work", 10, later(10)).await {
        if claim.lease.job == by_answer.job {
            world.intends(claim.lease, "post", Idempotency::Header, later(11)).await;
            world.settles(claim.lease, finished_with(later(12), done())).await;
        }
    }
    assert!(list(&world, unknown()).await.rows.is_empty());
}

pub async fn pages_show_every_effect_once(world: World) {
    for nth in 0..7 {
        world.unknown(&format!("k{nth}"), Idempotency::None).await;
    }
    world.accepted(NewEvent { dedup: None, ..event("many") }).await;
    let claim = world.take(later(3)).await;
    for step in ["a", "b", "c", "d"] {
        world.intends(claim.lease, step, Idempotency::None, later(3)).await;
        world.concludes(claim.lease, step, EffectState::Unknown, later(4)).await;
    }
    let mut seen = Vec::new();
    let mut filter = EffectFilter { limit: 3, ..unknown() };
    loop {
        let page = list(&world, filter.clone()).await;
        assert!(page.rows.len() <= 3);
        seen.extend(page.rows.iter().map(|row| row.id()));
        if !page.more {
            break;
        }
        filter.before = seen.last().cloned();
    }
    assert_eq!(seen.len(), 11);
    let mut sorted = seen.clone();
    sorted.sort();
    sorted.reverse();
    sorted.dedup();
    assert_eq!(seen, sorted, "each once, the newest job first");
}
