//! intend, conclude: what is known of an effect at every moment at which the process may die.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::job::Word;
use clinch_store::{Claim, Conclusion, Held, Settlement};

async fn lapsed(world: &World) -> Vec<Claim> {
    world.lapse(later(1_000), 10, later(1_060)).await.expect("lapsed")
}

pub async fn p3_an_intent_is_on_disk_before_it_is_answered(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let held = world.intends(claim.lease, "post", Idempotency::Header, later(1)).await;
    assert_eq!(held, Held::Held);
    let survivor = world.after_a_kill().await;
    let effects = survivor.story(accepted.job).await.effects;
    assert_eq!(effects.len(), 1);
    assert_eq!((&*effects[0].name, &effects[0].state), ("post", &EffectState::Open));
    assert_eq!((effects[0].class, effects[0].sends), (Idempotency::Header, 1));
    survivor.adds_up().await;
}

pub async fn p3_a_kill_after_an_intent_leaves_the_job_to_be_settled_as_lost(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    world.intends(claim.lease, "post", Idempotency::None, later(1)).await;
    let survivor = world.after_a_kill().await;
    assert!(survivor.claims("work", 10, later(900)).await.is_empty(), "it is never silently ready");
    let lost = lapsed(&survivor).await;
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].lease.job, accepted.job);
    assert_eq!(lost[0].effects[0].state, EffectState::Open);
    assert_eq!(&opened(&lost[0].payload)[..], b"the payload");
    let end = Settlement {
        conclusion: Some(Conclusion { name: "post".into(), state: EffectState::Unknown, at: later(1_000) }),
        ..buried(later(1_000), Reason::UnknownOutcome)
    };
    survivor.settles(lost[0].lease, end).await;
    let survivor = survivor.after_a_stop().await;
    let story = survivor.story(accepted.job).await;
    assert_eq!((story.row.word, story.row.attempts), (Word::Dead, 1));
    assert_eq!(story.effects[0].state, EffectState::Unknown);
    assert!(lapsed(&survivor).await.is_empty());
    survivor.adds_up().await;
}

pub async fn p3_a_kill_after_a_conclusion_leaves_the_receipt_for_the_next_attempt(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    world.intends(claim.lease, "post", Idempotency::None, later(1)).await;
    assert_eq!(world.concludes(claim.lease, "post", done(), later(2)).await, Held::Held);
    let survivor = world.after_a_kill().await;
    assert!(lapsed(&survivor).await.is_empty(), "nothing is open");
    let next = survivor.take(later(3)).await;
    assert_eq!(next.lease.job, accepted.job);
    assert_eq!(next.effects.len(), 1);
    assert_eq!(next.effects[0].state, done());
    survivor.settles(next.lease, finished(later(4))).await;
    survivor.adds_up().await;
}

pub async fn p3_a_lapsed_job_shows_what_its_worker_had_begun(world: World) {
    for nth in 0..50u64 {
        let now = later(nth * 10_000);
        let accepted = world.accepted(event(&format!("k{nth}"))).await;
        let claim = world.take(now).await;
        let over = now + 2 * LEASE;
        // Both at once: whoever comes first, an intent that was granted is one that the other side sees.
        let (held, taken) = tokio::join!(
            world.intends(claim.lease, "post", Idempotency::None, over),
            world.lapse(over, 10, over + LEASE),
        );
        let taken = taken.expect("lapsed");
        assert_eq!(taken[0].lease.job, accepted.job);
        assert_eq!(held == Held::Held, taken[0].effects.len() == 1, "round {nth}");
        if held == Held::Held {
            world.concludes(taken[0].lease, "post", EffectState::Unknown, over).await;
        }
        world.settles(taken[0].lease, buried(over, Reason::UnknownOutcome)).await;
    }
    world.adds_up().await;
}

pub async fn the_last_conclusion_is_on_disk_with_the_attempt(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    world.intends(claim.lease, "post", Idempotency::None, later(1)).await;
    let end = Settlement {
        conclusion: Some(Conclusion { name: "post".into(), state: done(), at: later(2) }),
        ..finished(later(2))
    };
    world.settles(claim.lease, end).await;
    let survivor = world.after_a_kill().await;
    let story = survivor.story(accepted.job).await;
    assert_eq!((story.row.word, &story.effects[0].state), (Word::Success, &done()));
    survivor.adds_up().await;
}

pub async fn p3_a_kill_before_any_intent_leaves_the_job_ready(world: World) {
    let accepted = world.accepted(event("k")).await;
    world.take(later(0)).await;
    let survivor = world.after_a_kill().await;
    assert!(lapsed(&survivor).await.is_empty());
    assert_eq!(survivor.take(later(1)).await.lease.job, accepted.job);
}

pub async fn an_effect_that_is_sent_again_is_one_row_that_counts(world: World) {
    let accepted = world.accepted(event("k")).await;
    for turn in 0..3 {
        let claim = world.take(later(turn * 10)).await;
        world.intends(claim.lease, "post", Idempotency::Natural, later(turn * 10)).await;
        world.concludes(claim.lease, "post", EffectState::NotDone, later(turn * 10 + 1)).await;
        world.settles(claim.lease, failed(later(turn * 10 + 1), later(turn * 10 + 2))).await;
    }
    let effects = world.story(accepted.job).await.effects;
    assert_eq!(effects.len(), 1);
    assert_eq!((effects[0].sends, &effects[0].state), (3, &EffectState::NotDone));
    assert_eq!((effects[0].first_intended_at, effects[0].changed_at), (later(0), later(21)));
    // An intent takes back what was known: until the answer it is open again.
    let claim = world.take(later(30)).await;
    assert_eq!(claim.effects, effects);
    world.intends(claim.lease, "post", Idempotency::Natural, later(30)).await;
    assert_eq!(world.story(accepted.job).await.effects[0].state, EffectState::Open);
}

pub async fn effects_come_in_the_order_of_their_first_intent(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    for (at, step) in [(1, "zip"), (2, "mail"), (3, "archive")] {
        world.intends(claim.lease, step, Idempotency::None, later(at)).await;
        world.concludes(claim.lease, step, done(), later(at)).await;
    }
    let story = world.story(accepted.job).await;
    let names: Vec<_> = story.effects.iter().map(|effect| &*effect.name).collect();
    assert_eq!(names, ["zip", "mail", "archive"]);
}

pub async fn every_state_and_class_of_an_effect_reads_back(world: World) {
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let given_up = EffectState::GivenUp(Reason::EgressBlocked);
    let states = [done(), EffectState::NotDone, EffectState::Unknown, EffectState::Open, given_up];
    let classes = [
        Idempotency::None,
        Idempotency::Header,
        Idempotency::Natural,
        Idempotency::Lookup,
        Idempotency::Wrap,
        Idempotency::Shared,
    ];
    let mut expected = Vec::new();
    for (row, state) in (0..).zip(&states) {
        for (column, class) in (0..).zip(classes) {
            let (name, at) = (format!("{row}-{column}"), later(row * 6 + column));
            world.intends(claim.lease, &name, class, at).await;
            world.concludes(claim.lease, &name, state.clone(), at).await;
            expected.push((name, class, state.clone()));
        }
    }
    let survivor = world.after_a_kill().await;
    let effects = survivor.story(accepted.job).await.effects;
    let found: Vec<_> = effects.into_iter().map(|effect| (effect.name, effect.class, effect.state)).collect();
    assert_eq!(found, expected);
}
