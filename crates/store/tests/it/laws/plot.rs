//! Replays with a plan, as a property: whatever dead letters there are, whatever is asked for, and whatever is done to them between the
//! plan and its start, the set that is acted on is the set that was counted, without those that are reported as changed.

use super::replay::at;
use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::id::{JobId, PlanId};
use clinch_core::job::Change;
use clinch_core::replay::{ItemState, PlanState, Terms};
use clinch_core::time::Timestamp;
use clinch_store::replay::{DeadFilter, DeadLetter, Forecast, ItemFilter};
use clinch_store::{
    Claim, Conclusion, DropAsk, DropEnd, NewEvent, NewItem, NewJob, NewPlan, ReleaseAsk, ReviveAsk, Revived,
    Settlement, StartAsk, Started, UnknownRuling,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

const PLAN: PlanId = PlanId::from_number(7);
const FLOWS: [&str; 3] = ["orders", "leads", "carts"];
const QUEUES: [&str; 2] = ["work", "more"];
const REASONS: [Reason; 3] = [Reason::Timeout, Reason::AuthFailed, Reason::TargetDown];
/// Dead letters die within so many seconds.
const NIGHT: u64 = 20;

#[derive(Clone, Debug)]
pub struct Plot {
    letters: Vec<Letter>,
    asked: Asked,
    deeds: Vec<(Index, Deed)>,
    /// How many are let go at a time, over and over.
    portions: Vec<u32>,
    /// After so many portions the server is killed.
    killed_after: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Letter {
    flow: &'static str,
    queue: &'static str,
    reason: Reason,
    died_at: Timestamp,
    /// It has an effect of this class that may have happened.
    doubt: Option<Idempotency>,
}

impl Letter {
    /// Only a person can say what becomes of it.
    fn asks(&self) -> bool {
        self.doubt == Some(Idempotency::None)
    }
}

#[derive(Clone, Debug)]
struct Asked {
    flow: Option<&'static str>,
    queue: Option<&'static str>,
    reason: Option<Reason>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    job: Option<Index>,
    limit: usize,
}

/// What somebody does while the plan lies on the table.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// Replays it, and it is a dead letter again.
    DiesAgain,
    EndsWell,
    /// Replays it, and nobody has begun with it.
    Waits,
    /// Says what became of what may have happened; it is a dead letter again.
    Rules,
    /// Two people give it up.
    Drops,
    /// Another one dies that is like it.
    Joins,
}

fn letter() -> impl Strategy<Value = Letter> {
    let doubt = prop_oneof![4 => Just(None), 1 => Just(Some(Idempotency::None)), 1 => Just(Some(Idempotency::Header))];
    let (flow, queue, reason) =
        (prop::sample::select(&FLOWS[..]), prop::sample::select(&QUEUES[..]), prop::sample::select(&REASONS[..]));
    (flow, queue, reason, 0..NIGHT, doubt).prop_map(|(flow, queue, reason, died, doubt)| Letter {
        flow,
        queue,
        reason,
        died_at: later(10 + died),
        doubt,
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let seldom = |strategy| prop::option::weighted(0.3, strategy);
    let moment = || seldom((10..10 + NIGHT).prop_map(later).boxed());
    (
        prop::option::of(prop::sample::select(&FLOWS[..])),
        prop::option::of(prop::sample::select(&QUEUES[..])),
        prop::option::of(prop::sample::select(&REASONS[..])),
        moment(),
        moment(),
        prop::option::weighted(0.1, any::<Index>()),
        prop_oneof![3 => Just(1_000), 1 => 1..10_usize],
    )
        .prop_map(|(flow, queue, reason, since, until, job, limit)| Asked {
            flow,
            queue,
            reason,
            since,
            until,
            job,
            limit,
        })
}

fn plot() -> impl Strategy<Value = Plot> {
    use Deed::*;
    let deed = prop::sample::select(&[DiesAgain, EndsWell, Waits, Rules, Drops, Joins][..]);
    (
        prop::collection::vec(letter(), 1..16),
        asked(),
        prop::collection::vec((any::<Index>(), deed), 0..8),
        prop::collection::vec(1..6_u32, 1..4),
        prop::option::of(0..5_usize),
    )
        .prop_map(|(letters, asked, deeds, portions, killed_after)| Plot {
            letters,
            asked,
            deeds,
            portions,
            killed_after,
        })
}

/// So many plots, each in a world of its own.
pub fn f2_the_set_that_is_acted_on_is_the_set_that_was_counted(cases: u32, world: impl AsyncFn() -> World) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let tell = |plot| {
        runtime.block_on(async { Box::pin(told(world().await, plot)).await });
        Ok(())
    };
    TestRunner::new(config).run(&plot(), tell).unwrap_or_else(|error| panic!("{error}"));
}

async fn die(world: &World, key: &str, letter: &Letter) -> JobId {
    let job = NewJob { flow: letter.flow.into(), ..job(letter.queue) };
    let accepted = world.accepted(NewEvent { jobs: vec![job], ..event(key) }).await;
    let claim = take(world, accepted.job, letter).await;
    let mut end = buried(letter.died_at, letter.reason);
    if let Some(class) = letter.doubt {
        world.intends(claim.lease, "post", class, letter.died_at).await;
        end.conclusion = Some(Conclusion { name: "post".into(), state: EffectState::Unknown, at: letter.died_at });
    }
    world.settles(claim.lease, end).await;
    accepted.job
}

/// This one; others that were replayed before may wait in the same queue, and go on waiting.
async fn take(world: &World, job: JobId, letter: &Letter) -> Claim {
    let mut taken = None;
    for claim in world.claims(letter.queue, 100, letter.died_at).await {
        if claim.lease.job == job {
            taken = Some(claim);
        } else {
            let change = Change::HandedBack { run_at: later(0) };
            let back = Settlement { charged: false, ..settlement(letter.died_at, "interrupted", change) };
            world.settles(claim.lease, back).await;
        }
    }
    taken.expect("it is due")
}

impl Asked {
    fn filter(&self, jobs: &[JobId]) -> DeadFilter {
        DeadFilter {
            flow: self.flow.map(String::from),
            queue: self.queue.map(String::from),
            reason: self.reason,
            since: self.since,
            until: self.until,
            jobs: self.job.map(|job| vec![*job.get(jobs)]),
            limit: self.limit,
            ..DeadFilter::default()
        }
    }

    fn fits(&self, job: JobId, letter: &Letter, jobs: &[JobId]) -> bool {
        self.flow.is_none_or(|flow| flow == letter.flow)
            && self.queue.is_none_or(|queue| queue == letter.queue)
            && self.reason.is_none_or(|reason| reason == letter.reason)
            && self.since.is_none_or(|since| letter.died_at >= since)
            && self.until.is_none_or(|until| letter.died_at < until)
            && self.job.is_none_or(|one| *one.get(jobs) == job)
    }
}

async fn count(world: &World, filter: DeadFilter) -> BTreeSet<JobId> {
    let dead = world.dead_letters(filter).await.expect("read");
    let item =
        |dead: &DeadLetter| NewItem { job: dead.job, mark: dead.mark(), replays: dead.replays, died_at: dead.died_at };
    let forecast = Forecast { run: dead.len() as u64, ..Forecast::default() };
    let (items, record) = (dead.iter().map(item).collect(), by("maya", "INC-482", later(100)));
    world.plan(NewPlan { id: PLAN, query: "flow:orders".into(), forecast, items, record }).await.expect("kept");
    dead.iter().map(|dead| dead.job).collect()
}

/// Whether it is another dead letter now, or none.
async fn done_to(world: &World, job: JobId, letter: &Letter, deed: Deed) -> bool {
    let ruling = matches!(deed, Deed::Rules).then_some(UnknownRuling::Resend);
    match deed {
        Deed::Joins => {
            die(world, &format!("like {job}"), letter).await;
            return false;
        }
        Deed::Drops => {
            let wish = |who| DropAsk { job, record: by(who, "poison", later(110)) };
            world.ask_drop(wish("maya")).await.expect("answered");
            let dropped = world.confirm_drop(wish("ben")).await.expect("answered");
            assert!(matches!(dropped, DropEnd::Dropped { .. }), "{dropped:?}");
            return true;
        }
        Deed::DiesAgain | Deed::EndsWell | Deed::Waits | Deed::Rules => {}
    }
    let revived = world.revive(ReviveAsk { unknown: ruling, ..replay(job, letter.died_at) }).await.expect("answered");
    if let Revived::Ask { .. } = revived {
        assert!(letter.asks());
        return false;
    }
    if let Deed::Waits = deed {
        return true;
    }
    let claim = take(world, job, letter).await;
    if let Deed::EndsWell = deed {
        end_well(world, &claim, letter.died_at).await;
    } else {
        // At the same moment, of the same: still it is another.
        world.settles(claim.lease, buried(letter.died_at, letter.reason)).await;
    }
    true
}

/// With all that it began.
async fn end_well(world: &World, claim: &Claim, at: Timestamp) {
    let mut end = finished(at);
    if let Some(effect) = claim.effects.first() {
        world.intends(claim.lease, &effect.name, effect.class, at).await;
        end.conclusion = Some(Conclusion { name: effect.name.as_str().into(), state: done(), at });
    }
    world.settles(claim.lease, end).await;
}

async fn items(world: &World, state: ItemState) -> BTreeSet<JobId> {
    let filter = ItemFilter { plan: PLAN, state: Some(state), after: 0, limit: 1_000 };
    world.plan_items(filter).await.expect("read").iter().map(|item| item.job).collect()
}

async fn told(mut world: World, plot: Plot) {
    let mut jobs = Vec::new();
    for (nth, letter) in plot.letters.iter().enumerate() {
        jobs.push(die(&world, &format!("k{nth}"), letter).await);
    }
    let counted = count(&world, plot.asked.filter(&jobs)).await;
    let all = || jobs.iter().copied().zip(&plot.letters);
    let fit = all().filter(|(job, letter)| plot.asked.fits(*job, letter, &jobs)).map(|(job, _)| job);
    assert_eq!(counted, fit.take(plot.asked.limit).collect(), "what was asked for is what is counted");

    let (mut touched, mut changed, mut by_hand) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (whose, deed) in &plot.deeds {
        let at = whose.index(jobs.len());
        // One deed is enough for each.
        if touched.insert(jobs[at]) && done_to(&world, jobs[at], &plot.letters[at], *deed).await {
            changed.insert(jobs[at]);
            if matches!(deed, Deed::Waits) {
                by_hand.insert(jobs[at]);
            }
        }
    }
    let many = NonZeroU32::new(1_000).expect("some");
    let terms = Terms { rate: "50/s".parse().expect("a rate"), max: many, canary: 0, stop_at: None, at_once: many };
    let start = StartAsk { plan: PLAN, terms, version: None, record: by("ben", "the target is back", later(120)) };
    assert_eq!(world.start(start.clone()).await.expect("answered"), Started::Started);
    for portion in 0.. {
        if plot.killed_after == Some(portion) {
            world = world.after_a_kill().await;
        }
        assert_eq!(world.start(start.clone()).await.expect("answered"), Started::Before(PlanState::Running));
        let looked_at = world.plan_row(PLAN).await.expect("read").expect("there").tally.looked_at();
        let most = plot.portions[portion % plot.portions.len()];
        let ask = ReleaseAsk { plan: PLAN, looked_at, most, moments: at(121), now: later(121) };
        if world.release(ask).await.expect("answered") == 0 {
            break;
        }
    }
    let unchanged: BTreeSet<JobId> = counted.difference(&changed).copied().collect();
    let asks: BTreeSet<JobId> = all().filter(|(_, letter)| letter.asks()).map(|(job, _)| job).collect();
    let acted: BTreeSet<JobId> = unchanged.difference(&asks).copied().collect();
    assert_eq!(items(&world, ItemState::Released).await, acted);
    assert_eq!(items(&world, ItemState::Changed).await, counted.intersection(&changed).copied().collect());
    assert_eq!(items(&world, ItemState::Asks).await, unchanged.intersection(&asks).copied().collect());

    // What is there to be run is that, and what somebody replayed by hand.
    let mut runs = BTreeSet::new();
    for queue in QUEUES {
        for claim in world.claims(queue, 1_000, later(130)).await {
            runs.insert(claim.lease.job);
            end_well(&world, &claim, later(131)).await;
        }
    }
    assert_eq!(runs, acted.union(&by_hand).copied().collect());
    let tally = world.reckon(PLAN, later(140)).await.expect("answered").expect("there").plan.tally;
    let told = [tally.jobs, tally.success, tally.changed + tally.asks, tally.left(), tally.unended()];
    let of = |set: &BTreeSet<JobId>| set.len() as u64;
    assert_eq!(told, [of(&counted), of(&acted), of(&counted) - of(&acted), 0, 0]);
    world.adds_up().await;
}
