//! Replays with a plan: what is acted on is what was counted.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::id::{JobId, PlanId};
use clinch_core::job::Word;
use clinch_core::replay::{ItemState, Moments, PLAN_KEPT, PLAN_VALID, PlanState, Tally, Terms};
use clinch_store::replay::{DeadFilter, DeadLetter, Forecast, ItemFilter, PlanRow, Plans};
use clinch_store::{
    NewEvent, NewItem, NewJob, NewPlan, ReleaseAsk, StartAsk, Started, Turn, TurnAsk, Turned, UnknownRuling,
};
use std::num::NonZeroU32;
use std::time::Duration;

const PLAN: PlanId = PlanId::from_number(7);

fn terms() -> Terms {
    let many = NonZeroU32::new(1_000).expect("some");
    Terms { rate: "50/s".parse().expect("a rate"), max: many, canary: 0, stop_at: None, at_once: many }
}

fn all() -> DeadFilter {
    DeadFilter { limit: 1_000, ..DeadFilter::default() }
}

async fn counted(world: &World, id: PlanId, filter: DeadFilter) -> Vec<DeadLetter> {
    let dead = world.dead_letters(filter).await.expect("read");
    let item =
        |dead: &DeadLetter| NewItem { job: dead.job, mark: dead.mark(), replays: dead.replays, died_at: dead.died_at };
    let forecast = Forecast { run: dead.len() as u64, ..Forecast::default() };
    let items = dead.iter().map(item).collect();
    let plan = NewPlan { id, query: "flow:orders".into(), forecast, items, record: by("maya", "INC-482", later(100)) };
    world.plan(plan).await.expect("kept");
    dead
}

async fn start(world: &World, plan: PlanId) -> Started {
    let ask = StartAsk { plan, terms: terms(), version: None, record: by("ben", "the target is back", later(101)) };
    world.start(ask).await.expect("answered")
}

async fn row(world: &World) -> PlanRow {
    world.plan_row(PLAN).await.expect("read").expect("it is there")
}

/// One after the other, ten in a second.
pub fn at(seconds: u64) -> Moments {
    Moments { first: later(seconds), gap: Duration::from_millis(100) }
}

async fn release(world: &World, looked_at: u64, most: u32) -> u64 {
    let ask = ReleaseAsk { plan: PLAN, looked_at, most, moments: at(102), now: later(102) };
    world.release(ask).await.expect("answered")
}

async fn release_all(world: &World) {
    loop {
        let looked_at = row(world).await.tally.looked_at();
        if release(world, looked_at, 5).await == 0 {
            return;
        }
    }
}

async fn items(world: &World, state: Option<ItemState>) -> Vec<JobId> {
    let filter = ItemFilter { plan: PLAN, state, after: 0, limit: 1_000 };
    world.plan_items(filter).await.expect("read").iter().map(|item| item.job).collect()
}

async fn tally(world: &World) -> Tally {
    world.reckon(PLAN, later(900)).await.expect("answered").expect("it is there").plan.tally
}

async fn turn(world: &World, to: Turn) -> Turned {
    world.turn(TurnAsk { plan: PLAN, to, record: by("ben", "", later(150)) }).await.expect("answered")
}

pub async fn p8_a_plan_is_started_once_and_is_on_record(world: World) {
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    assert_eq!(start(&world, PLAN).await, Started::NotFound);
    counted(&world, PLAN, all()).await;
    assert_eq!((row(&world).await.state, world.story(dead.job).await.row.word), (PlanState::Planned, Word::Dead));
    assert_eq!(release(&world, 0, 5).await, 0, "it was not started");
    assert_eq!(start(&world, PLAN).await, Started::Started);
    assert_eq!(start(&world, PLAN).await, Started::Before(PlanState::Running));
    assert_eq!(release(&world, 0, 5).await, 1);
    for world in [world.after_a_kill().await, world] {
        assert_eq!(release(&world, 0, 5).await, 0, "somebody has looked at it before");
        assert_eq!(release(&world, 1, 5).await, 0);
        let story = world.story(dead.job).await;
        assert_eq!((story.row.word, story.row.replays), (Word::Queued, 1));
        let [replayed] = &story.audit[..] else { panic!("{:?}", story.audit) };
        assert_eq!((&*replayed.actor, &*replayed.reason), ("ben", "the target is back"));
        assert_eq!(replayed.origin, format!("replay {PLAN}"));
        assert!(replayed.after.as_deref().expect("told").contains(&PLAN.to_string()));
        let record = world.record().await;
        let told: Vec<_> = record.iter().map(|row| (row.action.as_str(), row.actor.as_str())).collect();
        assert_eq!(told, [("job.replay", "ben"), ("replay.start", "ben"), ("replay.plan", "maya")]);
        world.adds_up().await;
    }
}

pub async fn f3_a_plan_counts_success_noop_and_failure_through_a_kill(world: World) {
    for nth in 0..6 {
        world.dead(&format!("k{nth}"), later(nth), Reason::TargetDown).await;
    }
    let dead = counted(&world, PLAN, all()).await;
    assert!(dead.windows(2).all(|two| two[0].job < two[1].job), "the oldest first");
    start(&world, PLAN).await;
    assert_eq!(release(&world, 0, 4).await, 4);
    assert_eq!(world.reckon(PLAN, later(110)).await.expect("answered").expect("there").busy, 4);
    let claims = world.claims("work", 3, later(110)).await;
    world.settles(claims[0].lease, finished(later(111))).await;
    world.settles(claims[1].lease, buried(later(111), Reason::TargetDown)).await;
    world.settles(claims[2].lease, failed(later(111), later(9_000))).await;
    for world in [world.after_a_kill().await, world] {
        let reckoned = world.reckon(PLAN, later(112)).await.expect("answered").expect("there");
        let tally = reckoned.plan.tally;
        assert_eq!((tally.jobs, tally.released, tally.success, tally.failed, tally.left()), (6, 4, 1, 1, 2));
        assert_eq!((tally.unended(), reckoned.busy), (2, 1), "who waits for his next attempt is in nobody's way");
        assert_eq!(self::tally(&world).await, tally, "counted once");
        release_all(&world).await;
        assert_eq!((self::tally(&world).await.released, items(&world, Some(ItemState::Waiting)).await.len()), (6, 0));
        assert_eq!(turn(&world, Turn::Finish).await, Turned::Turned);
        assert_eq!(row(&world).await.ended_at, Some(later(150)));
        world.adds_up().await;
    }
}

pub async fn f2_what_changed_since_it_was_counted_is_reported_and_not_run(world: World) {
    for nth in 0..4 {
        world.dead(&format!("k{nth}"), later(nth), Reason::TargetDown).await;
    }
    let dead = counted(&world, PLAN, all()).await;
    // The first was replayed and ended well; the second died again of the same.
    world.revives(dead[0].job, later(100)).await;
    world.finish(later(100)).await;
    world.revives(dead[1].job, later(1)).await;
    world.bury(later(1), Reason::TargetDown).await;
    start(&world, PLAN).await;
    release_all(&world).await;
    assert_eq!(items(&world, Some(ItemState::Changed)).await, [dead[0].job, dead[1].job]);
    assert_eq!(items(&world, Some(ItemState::Released)).await, [dead[2].job, dead[3].job]);
    let words: Vec<_> = [world.story(dead[0].job).await.row.word, world.story(dead[1].job).await.row.word].into();
    assert_eq!(words, [Word::Success, Word::Dead]);
    let tally = tally(&world).await;
    assert_eq!((tally.changed, tally.released, tally.left(), tally.unended()), (2, 2, 0, 2));
    world.adds_up().await;
}

pub async fn p3_a_plan_does_not_rule_on_an_unknown_effect(world: World) {
    let asks = world.unknown("a", Idempotency::None).await;
    let ruled = world.unknown("b", Idempotency::None).await;
    let sure = world.unknown("c", Idempotency::Header).await;
    counted(&world, PLAN, all()).await;
    let skip = clinch_store::ReviveAsk { unknown: Some(UnknownRuling::Skip), ..replay(ruled.job, later(10)) };
    world.revive(skip).await.expect("answered");
    world.bury(later(10), Reason::UnknownOutcome).await;
    start(&world, PLAN).await;
    release_all(&world).await;
    assert_eq!(items(&world, Some(ItemState::Asks)).await, [asks.job]);
    assert_eq!(items(&world, Some(ItemState::Changed)).await, [ruled.job]);
    assert_eq!(items(&world, Some(ItemState::Released)).await, [sure.job]);
    assert_eq!(world.story(asks.job).await.row.word, Word::Dead);
    world.adds_up().await;
}

pub async fn f2_what_a_plan_lets_go_stands_behind_what_is_live(world: World) {
    let dead = world.dead("dead", later(0), Reason::TargetDown).await;
    counted(&world, PLAN, all()).await;
    start(&world, PLAN).await;
    release_all(&world).await;
    let lowest = NewJob { priority: -100, ..job("work") };
    let live = world.accepted(NewEvent { jobs: vec![lowest], ..event("live") }).await;
    for world in [world.after_a_kill().await, world] {
        let claims: Vec<_> = [world.take(later(200)).await.lease, world.take(later(200)).await.lease].into();
        assert_eq!([claims[0].job, claims[1].job], [live.job, dead.job]);
        // A person who takes it out by itself gives it its own place again.
        world.settles(claims[1], buried(later(201), Reason::TargetDown)).await;
        world.revives(dead.job, later(202)).await;
        assert_eq!(world.story(dead.job).await.priority, 0);
    }
}

pub async fn f2_of_many_who_let_go_at_once_one_does(world: World) {
    for nth in 0..10 {
        world.dead(&format!("k{nth}"), later(nth), Reason::TargetDown).await;
    }
    counted(&world, PLAN, all()).await;
    start(&world, PLAN).await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = world.clone();
        let ask = ReleaseAsk { plan: PLAN, looked_at: 0, most: 3, moments: at(102), now: later(102) };
        all.spawn(async move { store.release(ask).await.expect("answered") });
    }
    assert_eq!(all.join_all().await.iter().sum::<u64>(), 3);
    assert_eq!(row(&world).await.next_at, at(102).nth(3));
    // Each has a moment of its own.
    assert_eq!(world.claims("work", 10, later(102)).await.len(), 1);
    assert_eq!(world.claims("work", 10, at(102).nth(1)).await.len(), 1);
    assert_eq!(world.claims("work", 10, later(110)).await.len(), 1);
    world.adds_up().await;
}

pub async fn f2_a_plan_is_paused_resumed_and_stopped(world: World) {
    for nth in 0..3 {
        world.dead(&format!("k{nth}"), later(nth), Reason::TargetDown).await;
    }
    counted(&world, PLAN, all()).await;
    assert_eq!(turn(&world, Turn::Pause).await, Turned::Not(PlanState::Planned));
    start(&world, PLAN).await;
    assert_eq!(turn(&world, Turn::Pause).await, Turned::Turned);
    assert_eq!(release(&world, 0, 3).await, 0, "it is paused");
    assert_eq!(start(&world, PLAN).await, Started::Before(PlanState::Paused));
    assert_eq!(turn(&world, Turn::Resume).await, Turned::Turned);
    assert_eq!(release(&world, 0, 1).await, 1);
    let why = "2 of 5 failed".to_string();
    assert_eq!(turn(&world, Turn::Stop { why: why.clone() }).await, Turned::Turned);
    assert_eq!(turn(&world, Turn::Resume).await, Turned::Not(PlanState::Stopped));
    assert_eq!(release(&world, 1, 3).await, 0, "it is stopped");
    let plan = row(&world.after_a_kill().await).await;
    assert_eq!((plan.state, plan.why, plan.tally.left()), (PlanState::Stopped, Some(why), 2));
    let open = async || world.plans(Plans::Open { after: None }, 10).await.expect("read").len();
    assert_eq!(open().await, 1, "one that it let go has not ended");
    world.finish(later(160)).await;
    assert_eq!((tally(&world).await.success, open().await), (1, 0));
    assert_eq!(world.plans(Plans::All, 10).await.expect("read").len(), 1);
    assert_eq!(turn(&world, Turn::Finish).await, Turned::Not(PlanState::Stopped));
    let missing = TurnAsk { plan: PlanId::from_number(1), to: Turn::Pause, record: by("ben", "", later(1)) };
    assert_eq!(world.turn(missing).await.expect("answered"), Turned::NotFound);
}

pub async fn f2_an_open_plan_is_found_behind_any_number_of_others(world: World) {
    world.dead("k", later(0), Reason::TargetDown).await;
    let plans = [1, 2, 3, 4].map(PlanId::from_number);
    for plan in plans {
        counted(&world, plan, all()).await;
    }
    // The third is counted, and nothing more.
    let open = [plans[0], plans[1], plans[3]];
    for plan in open {
        assert_eq!(start(&world, plan).await, Started::Started);
    }
    let (mut found, mut after) = (Vec::new(), None);
    while let Some(plan) = world.plans(Plans::Open { after }, 1).await.expect("read").pop() {
        after = Some(plan.id);
        found.push(plan.id);
    }
    assert_eq!(found, open, "the oldest first");
    let all: Vec<_> = world.plans(Plans::All, 3).await.expect("read").iter().map(|plan| plan.id).collect();
    assert_eq!(all, [plans[3], plans[2], plans[1]], "the newest first");
}

pub async fn f2_a_plan_that_nobody_started_in_time_is_stale_and_goes(world: World) {
    world.dead("k", later(0), Reason::TargetDown).await;
    counted(&world, PLAN, all()).await;
    let late = later(100) + PLAN_VALID + Duration::from_secs(1);
    let ask = StartAsk { plan: PLAN, terms: terms(), version: None, record: by("ben", "", late) };
    assert_eq!(world.start(ask).await.expect("answered"), Started::Stale);
    world.prunes(later(99) + PLAN_KEPT).await;
    assert!(world.plan_row(PLAN).await.expect("read").is_some());
    world.prunes(later(101) + PLAN_KEPT).await;
    assert!(world.plan_row(PLAN).await.expect("read").is_none());
    assert!(items(&world, None).await.is_empty());
}

pub async fn f2_dead_letters_are_found_by_each_word(world: World) {
    let first = world.dead("a", later(1), Reason::Timeout).await;
    let second = world.dead("b", later(5), Reason::AuthFailed).await;
    world.success(later(6)).await;
    let found = async |filter: DeadFilter| -> Vec<JobId> {
        world.dead_letters(filter).await.expect("read").iter().map(|dead| dead.job).collect()
    };
    assert_eq!(found(all()).await, [first.job, second.job]);
    assert_eq!(found(DeadFilter { reason: Some(Reason::AuthFailed), ..all() }).await, [second.job]);
    assert_eq!(found(DeadFilter { flow: Some("orders".into()), ..all() }).await.len(), 2);
    assert_eq!(found(DeadFilter { flow: Some("other".into()), ..all() }).await, []);
    assert_eq!(found(DeadFilter { queue: Some("other".into()), ..all() }).await, []);
    assert_eq!(found(DeadFilter { since: Some(later(5)), ..all() }).await, [second.job]);
    assert_eq!(found(DeadFilter { until: Some(later(5)), ..all() }).await, [first.job]);
    assert_eq!(found(DeadFilter { events: Some(vec![first.event]), ..all() }).await, [first.job]);
    assert_eq!(found(DeadFilter { events: Some(vec![]), ..all() }).await, []);
    assert_eq!(found(DeadFilter { jobs: Some(vec![second.job]), ..all() }).await, [second.job]);
    assert_eq!(found(DeadFilter { jobs: Some(vec![second.job, first.job]), ..all() }).await, [first.job, second.job]);
    assert_eq!(found(DeadFilter { jobs: Some(vec![]), ..all() }).await, []);
    assert_eq!(found(DeadFilter { after: Some(first.job), ..all() }).await, [second.job]);
    assert_eq!(found(DeadFilter { limit: 1, ..all() }).await, [first.job]);
}
