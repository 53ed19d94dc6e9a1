//! What entities have used of their retry budgets.

use super::world::*;
use clinch_core::budget::{Allowance, OnExhausted, Spent};
use clinch_core::death::Reason;
use clinch_core::job::{Change, Waits, Word};
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::time::Timestamp;
use clinch_store::read::{BudgetFilter, BudgetRow};
use clinch_store::{GrantAsk, Retention, Settlement, SpendAsk};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const WINDOW: Duration = Duration::from_secs(3_600);

fn entity(name: &str) -> EntityKey {
    EntityKey::of(&Pepper::new(&PEPPER), "default", "post", name)
}

fn allowance(units: u32) -> Allowance {
    Allowance { units: NonZeroU32::new(units).expect("not zero"), window: WINDOW }
}

fn ask(name: &str, units: u32, on_exhausted: OnExhausted, now: Timestamp) -> SpendAsk {
    SpendAsk {
        budget: "post".into(),
        entity: entity(name),
        allowance: allowance(units),
        on_exhausted,
        latest: None,
        now,
    }
}

async fn spends(world: &World, name: &str, units: u32, now: Timestamp) -> Spent {
    world.spend(ask(name, units, OnExhausted::Dead, now)).await.expect("answered")
}

/// As a database has a clock of its own.
fn near(left: Timestamp, right: Timestamp) {
    let apart = left.since(right).max(right.since(left));
    assert!(apart < Duration::from_millis(1), "{left} is not {right}");
}

async fn listed(world: &World, is_exhausted: bool, now: Timestamp) -> Vec<BudgetRow> {
    let filter = BudgetFilter { budget: None, entity: None, is_exhausted, now, limit: 100 };
    world.budgets(filter).await.expect("listed")
}

pub async fn c5_an_entity_has_so_many_units_in_a_window_and_others_have_their_own(world: World) {
    for left in [1, 0] {
        assert_eq!(spends(&world, "ada", 2, later(0)).await, Spent::Granted { left });
    }
    let Spent::Exhausted { until } = spends(&world, "ada", 2, later(60)).await else { panic!("it is spent") };
    near(until, later(3_600));
    assert_eq!(spends(&world, "bob", 2, later(60)).await, Spent::Granted { left: 1 });
    // The same name of another worker is another entity.
    let elsewhere = SpendAsk { budget: "mail".into(), ..ask("ada", 2, OnExhausted::Dead, later(60)) };
    assert_eq!(world.spend(elsewhere).await.expect("answered"), Spent::Granted { left: 1 });
    assert_eq!(spends(&world, "ada", 2, later(3_601)).await, Spent::Granted { left: 1 });
}

pub async fn c5_who_waits_gets_a_unit_of_a_later_window(world: World) {
    let mut starts = Vec::new();
    for _ in 0..5 {
        starts.push(world.spend(ask("ada", 2, OnExhausted::Wait, later(0))).await.expect("answered"));
    }
    assert!(starts[..2].iter().all(|spent| matches!(spent, Spent::Granted { .. })), "{starts:?}");
    for (spent, start) in starts[2..].iter().zip([3_600, 3_600, 7_200]) {
        let Spent::Later { at } = spent else { panic!("{starts:?}") };
        near(*at, later(start));
    }
    assert!(matches!(spends(&world, "ada", 2, later(3_700)).await, Spent::Exhausted { .. }));
}

pub async fn c5_p4_a_unit_that_would_come_too_late_is_not_taken(world: World) {
    let ask = |latest| SpendAsk { latest: Some(later(latest)), ..ask("ada", 1, OnExhausted::Wait, later(0)) };
    assert_eq!(world.spend(ask(60)).await.expect("answered"), Spent::Granted { left: 0 });
    for _ in 0..3 {
        let Spent::Exhausted { until } = world.spend(ask(60)).await.expect("answered") else { panic!("too late") };
        near(until, later(3_600));
    }
    // So it is still there for who can use it.
    let Spent::Later { at } = world.spend(ask(4_000)).await.expect("answered") else { panic!("in time") };
    near(at, later(3_600));
}

pub async fn c5_a_restart_gives_nothing_back(world: World) {
    for _ in 0..3 {
        spends(&world, "ada", 3, later(0)).await;
    }
    let world = world.after_a_kill().await;
    assert!(matches!(spends(&world, "ada", 3, later(1)).await, Spent::Exhausted { .. }));
    let world = world.restarted(keys(KEY)).await;
    assert!(matches!(spends(&world, "ada", 3, later(2)).await, Spent::Exhausted { .. }));
}

pub async fn c5_of_many_at_once_no_more_get_a_unit_than_there_are(world: World) {
    let world = Arc::new(world);
    let mut asking = JoinSet::new();
    for nth in 0..60 {
        let world = world.clone();
        let name = if nth % 2 == 0 { "ada" } else { "bob" };
        asking.spawn(async move { (name, spends(&world, name, 5, later(0)).await) });
    }
    let told = asking.join_all().await;
    for name in ["ada", "bob"] {
        let granted = told.iter().filter(|(of, spent)| *of == name && matches!(spent, Spent::Granted { .. })).count();
        assert_eq!(granted, 5, "{name}");
    }
}

pub async fn c5_a_person_may_grant_more_on_record(world: World) {
    spends(&world, "ada", 1, later(0)).await;
    assert_eq!(listed(&world, true, later(1)).await.len(), 1);
    let record = by("eve", "a promise", later(10));
    let grant = GrantAsk { budget: "post".into(), entity: entity("ada"), allowance: allowance(1), units: 2, record };
    let row = world.grant(grant.clone()).await.expect("granted");
    assert_eq!(row.account.left(row.allowance), 2);
    assert_eq!(listed(&world, true, later(11)).await, []);
    for left in [1, 0] {
        assert_eq!(spends(&world, "ada", 1, later(20)).await, Spent::Granted { left });
    }
    assert!(matches!(spends(&world, "ada", 1, later(20)).await, Spent::Exhausted { .. }));
    // Also before anything is used.
    let row = world.grant(GrantAsk { entity: entity("bob"), ..grant }).await.expect("granted");
    assert_eq!(row.account.left(row.allowance), 3);
    let audit = world.record().await;
    assert_eq!(audit.len(), 2);
    assert_eq!((&*audit[0].actor, &*audit[0].action, &*audit[0].reason), ("eve", "budget.grant", "a promise"));
    assert_eq!(audit[1].object, format!("budget:post/{}", entity("ada")));
    let told = |text: &Option<String>| text.clone().expect("told");
    assert_eq!(
        (told(&audit[1].before), told(&audit[1].after)),
        (r#"{"left":0,"granted":0}"#.into(), r#"{"left":2,"granted":2}"#.into())
    );
}

pub async fn c5_entities_are_listed_with_what_they_have_left(world: World) {
    for _ in 0..2 {
        spends(&world, "ada", 2, later(0)).await;
    }
    spends(&world, "bob", 2, later(0)).await;
    let all = listed(&world, false, later(1)).await;
    let mut left: Vec<u32> = all.iter().map(|row| row.account.left(row.allowance)).collect();
    left.sort();
    assert_eq!(left, [0, 1]);
    let exhausted = listed(&world, true, later(1)).await;
    assert_eq!(exhausted.iter().map(|row| row.entity).collect::<Vec<_>>(), [entity("ada")]);
    near(exhausted[0].account.free_at(allowance(2)).expect("nothing is left"), later(3_600));
    assert_eq!(world.exhausted(later(1)).await.expect("counted"), [("post".into(), 1)]);
    assert_eq!(world.exhausted(later(3_700)).await.expect("counted"), []);
    let of = |budget: &str, name: &str| BudgetFilter {
        budget: Some(budget.into()),
        entity: Some(entity(name)),
        is_exhausted: false,
        now: later(1),
        limit: 10,
    };
    assert_eq!(world.budgets(of("post", "bob")).await.expect("listed").len(), 1);
    assert_eq!(world.budgets(of("mail", "bob")).await.expect("listed"), []);
}

pub async fn p9_no_entity_is_readable_on_disk(world: World) {
    spends(&world, "ada.lovelace@example.org", 2, later(0)).await;
    let wanted = b"lovelace";
    assert!(!world.bytes().await.windows(wanted.len()).any(|window| window == wanted));
}

pub async fn c5_accounts_that_are_over_are_pruned(world: World) {
    for nth in 0..3 {
        spends(&world, &format!("contact {nth}"), 2, later(0)).await;
    }
    let retention = || Retention { default: RETENTION, ..Retention::default() };
    assert_eq!(world.prune(later(3_500), retention(), 10).await.expect("pruned").budgets, 0);
    let mut gone = 0;
    for _ in 0..5 {
        gone += world.prune(later(3_700), retention(), 2).await.expect("pruned").budgets;
    }
    assert_eq!(gone, 3);
}

/// P4: the failure counts, the wait does not, and both are on disk.
pub async fn p4_a_job_that_failed_and_waits_for_its_budget_has_one_attempt_behind_it(world: World) {
    world.accepted(event("1")).await;
    let claim = world.take(later(0)).await;
    let change = Change::PutOff { run_at: later(3_600), waits: Waits::Budget };
    let failed = Settlement { reason: Some(Reason::TargetDown), ..settlement(later(1), "failed", change) };
    world.settles(claim.lease, failed).await;
    let story = world.story(claim.lease.job).await;
    assert_eq!((story.row.word, story.row.waits), (Word::Waiting, Some(Waits::Budget)));
    assert_eq!((story.row.failures, story.row.attempts, story.attempts.len()), (1, 1, 1));
    assert!(world.claims("work", 1, later(3_599)).await.is_empty());
    let world = world.after_a_kill().await;
    assert!(world.claims("work", 1, later(3_599)).await.is_empty(), "it waits on after a restart");
    let again = world.take(later(3_601)).await;
    assert_eq!((again.failures, again.attempts), (1, 1));
    world.settles(again.lease, finished(later(3_602))).await;
    world.adds_up().await;
}
