//! What is done to contacts, counted under policies.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::policy::{Cap, Tally, Window, time_zone};
use clinch_core::time::Timestamp;
use clinch_store::{Admission, AdmitAsk, Claim, Conclusion, Held, NewEvent, Retention, Settlement};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const HOUR: Duration = Duration::from_secs(3_600);

fn contact(name: &str) -> EntityKey {
    EntityKey::of(&Pepper::new(&PEPPER), "default", "marketing", name)
}

fn cap(max: u32, per: Window, channel: Option<&str>) -> Cap {
    Cap { max: NonZeroU32::new(max).expect("not zero"), per, channel: channel.map(Arc::from) }
}

/// By mail, so many in an hour.
fn tally(name: &str, max: u32) -> Tally {
    Tally {
        contact: contact(name),
        channel: "email".into(),
        zone: time_zone("UTC").expect("a zone"),
        caps: vec![cap(max, Window::Last(HOUR), None)],
    }
}

fn ask(tally: Tally, now: Timestamp) -> AdmitAsk {
    AdmitAsk { step: "remind".into(), tallies: vec![tally], may_be_sent: false, now }
}

async fn claimed(world: &World, key: &str) -> Claim {
    world.accepted(NewEvent { dedup: None, ..event(key) }).await;
    world.take(later(0)).await
}

async fn asks(world: &World, claim: &Claim, ask: AdmitAsk) -> Option<Admission> {
    world.admit(claim.lease, ask).await.expect("answered")
}

/// A job of its own asks; whether it may.
async fn is_admitted(world: &World, tally: Tally, now: Timestamp) -> bool {
    let claim = claimed(world, "one more").await;
    asks(world, &claim, ask(tally, now)).await.expect("held") == Admission::Admitted
}

async fn sent(world: &World, tally: Tally, now: Timestamp) -> Vec<u32> {
    world.sent(tally, None, now).await.expect("counted")
}

pub async fn g1_a_contact_gets_no_more_than_a_cap_allows_and_others_have_their_own(world: World) {
    for _ in 0..2 {
        assert!(is_admitted(&world, tally("ada", 2), later(0)).await);
    }
    let claim = claimed(&world, "third").await;
    let refused = Admission::Refused { tally: 0, cap: 0, sent: 2 };
    assert_eq!(asks(&world, &claim, ask(tally("ada", 2), later(60))).await, Some(refused));
    assert!(is_admitted(&world, tally("bob", 2), later(60)).await);
    assert_eq!(sent(&world, tally("ada", 2), later(60)).await, [2]);
    // An hour later it is over, and asking counted nothing.
    assert!(is_admitted(&world, tally("ada", 2), later(3_601)).await);
    assert_eq!(sent(&world, tally("ada", 2), later(3_602)).await, [1]);
}

pub async fn g1_of_many_at_once_no_more_are_admitted_than_a_cap_allows(world: World) {
    const CONTACTS: usize = 10;
    let mut claims = Vec::new();
    for nth in 0..15 * CONTACTS {
        claims.push(claimed(&world, &format!("k{nth}")).await);
    }
    let world = Arc::new(world);
    let mut asking = JoinSet::new();
    for (nth, claim) in claims.into_iter().enumerate() {
        let world = world.clone();
        asking.spawn(async move {
            // Under two policies at once, in whatever order: the narrower one decides.
            let name = format!("contact {}", nth / 15);
            let mut tallies = vec![tally(&name, 2), tally(&format!("{name}, elsewhere"), 5)];
            tallies.rotate_left(nth % 2);
            let ask = AdmitAsk { tallies, ..ask(tally(&name, 2), later(0)) };
            (nth / 15, world.admit(claim.lease, ask).await.expect("answered").expect("held"))
        });
    }
    let told = asking.join_all().await;
    for contact in 0..CONTACTS {
        let admitted = told.iter().filter(|(of, told)| *of == contact && *told == Admission::Admitted).count();
        let elsewhere = tally(&format!("contact {contact}, elsewhere"), 5);
        assert_eq!(
            (admitted, sent(&world, elsewhere, later(1)).await),
            (2, vec![2]),
            "all or none of contact {contact}"
        );
    }
}

pub async fn g1_a_step_that_asks_again_counts_once_and_at_its_last_time(world: World) {
    let claim = claimed(&world, "one").await;
    for at in [0, 10, 1_800] {
        assert_eq!(asks(&world, &claim, ask(tally("ada", 1), later(at))).await, Some(Admission::Admitted));
    }
    assert!(!is_admitted(&world, tally("ada", 1), later(3_700)).await, "it counts from when it last asked");
    assert!(is_admitted(&world, tally("ada", 1), later(1_800 + 3_601)).await);
    // By now another has the place; this one waited too long, and holds none.
    let refused = Admission::Refused { tally: 0, cap: 0, sent: 1 };
    assert_eq!(asks(&world, &claim, ask(tally("ada", 1), later(1_800 + 3_602))).await, Some(refused));
    // Another step of the same job is another thing; who only asks for the job is told what others did.
    let other = AdmitAsk { step: "text".into(), ..ask(tally("ada", 2), later(1_800 + 3_603)) };
    assert_eq!(asks(&world, &claim, other).await, Some(Admission::Admitted));
    let told = world.sent(tally("ada", 2), Some(claim.lease.job), later(1_800 + 3_604)).await.expect("counted");
    assert_eq!((told, sent(&world, tally("ada", 2), later(1_800 + 3_604)).await), (vec![1], vec![2]));
}

pub async fn g1_what_may_have_been_sent_stays_admitted(world: World) {
    let claim = claimed(&world, "one").await;
    assert_eq!(asks(&world, &claim, ask(tally("ada", 1), later(0))).await, Some(Admission::Admitted));
    assert!(is_admitted(&world, tally("ada", 1), later(3_601)).await);
    let again = AdmitAsk { may_be_sent: true, ..ask(tally("ada", 1), later(3_602)) };
    assert_eq!(asks(&world, &claim, again).await, Some(Admission::Admitted));
}

pub async fn g1_a_restart_gives_nothing_back(world: World) {
    for _ in 0..2 {
        let claim = claimed(&world, "one").await;
        assert_eq!(asks(&world, &claim, ask(tally("ada", 2), later(0))).await, Some(Admission::Admitted));
        world.settles(claim.lease, finished(later(1))).await;
    }
    let world = world.after_a_kill().await;
    assert_eq!(sent(&world, tally("ada", 2), later(1)).await, [2]);
    let world = world.restarted(keys(KEY)).await;
    assert!(!is_admitted(&world, tally("ada", 2), later(2)).await);
}

pub async fn g1_a_channel_has_a_cap_of_its_own_and_a_day_is_that_of_the_contact(world: World) {
    let by = |channel: &str| Tally {
        channel: channel.into(),
        caps: vec![cap(9, Window::Day, None), cap(1, Window::Day, Some("sms"))],
        ..tally("ada", 9)
    };
    let mails = Tally { caps: vec![cap(9, Window::Day, None)], ..by("email") };
    assert!(is_admitted(&world, mails.clone(), later(0)).await);
    assert!(is_admitted(&world, by("sms"), later(0)).await);
    let claim = claimed(&world, "another").await;
    let refused = Admission::Refused { tally: 0, cap: 1, sent: 1 };
    assert_eq!(asks(&world, &claim, ask(by("sms"), later(1))).await, Some(refused));
    assert!(is_admitted(&world, mails.clone(), later(1)).await);
    assert_eq!(sent(&world, by("sms"), later(2)).await, [3, 1]);
    // The world begins at 14:13 in London, and so in another day of the far east than its evening is.
    let of_day = |zone: &str, hours: u64| {
        let tally = Tally { zone: time_zone(zone).expect("a zone"), ..mails.clone() };
        let world = &world;
        async move { sent(world, tally, later(hours * 3_600)).await }
    };
    assert_eq!((of_day("UTC", 8).await, of_day("UTC", 11).await), (vec![3], vec![0]));
    assert_eq!((of_day("Asia/Tokyo", 0).await, of_day("Asia/Tokyo", 8).await), (vec![3], vec![0]));
}

pub async fn g1_what_was_surely_not_done_counts_no_more_when_its_job_ends(world: World) {
    let settled = |at: u64, state: EffectState| Settlement {
        conclusion: Some(Conclusion { name: "remind".into(), state, at: later(at) }),
        ..buried(later(at), Reason::RejectedByTarget)
    };
    // Refused by its target, as its end will say; never begun; given up in a branch.
    for how in 0..3 {
        let claim = claimed(&world, "one").await;
        assert_eq!(asks(&world, &claim, ask(tally("ada", 1), later(0))).await, Some(Admission::Admitted));
        let not_done = match how {
            0 => {
                world.intends(claim.lease, "remind", Idempotency::None, later(1)).await;
                Some("remind".into())
            }
            1 => None,
            _ => {
                world.intends(claim.lease, "remind", Idempotency::None, later(1)).await;
                world.concludes(claim.lease, "remind", EffectState::GivenUp(Reason::TargetDown), later(1)).await;
                None
            }
        };
        assert_eq!(world.give_back(claim.lease, not_done).await.expect("answered"), Held::Held);
        assert_eq!(sent(&world, tally("ada", 1), later(2)).await, [0], "{how}");
        world.settles(claim.lease, settled(2, EffectState::NotDone)).await;
    }
}

pub async fn g1_what_was_or_may_have_been_done_counts_on(world: World) {
    let unclear = EffectState::GivenUp(Reason::UnknownOutcome);
    for (nth, state) in [None, Some(done()), Some(EffectState::Unknown), Some(unclear)].into_iter().enumerate() {
        let (name, claim) = (format!("contact {nth}"), claimed(&world, "one").await);
        assert_eq!(asks(&world, &claim, ask(tally(&name, 1), later(0))).await, Some(Admission::Admitted));
        world.intends(claim.lease, "remind", Idempotency::None, later(1)).await;
        if let Some(state) = state.clone() {
            world.concludes(claim.lease, "remind", state, later(1)).await;
        }
        assert_eq!(world.give_back(claim.lease, None).await.expect("answered"), Held::Held);
        assert_eq!(sent(&world, tally(&name, 1), later(2)).await, [1], "{state:?}");
    }
}

pub async fn g1_who_lost_the_lease_is_neither_admitted_nor_gives_back(world: World) {
    let late = claimed(&world, "one").await;
    assert_eq!(asks(&world, &late, ask(tally("ada", 1), later(0))).await, Some(Admission::Admitted));
    let taken = world.lapse(later(1_000), 1, later(1_060)).await.expect("lapsed").remove(0);
    assert_eq!(taken.lease.job, late.lease.job);
    assert_eq!(asks(&world, &late, ask(tally("bob", 1), later(1_001))).await, None);
    assert_eq!(world.give_back(late.lease, None).await.expect("answered"), Held::Lost);
    assert_eq!(sent(&world, tally("ada", 1), later(1_001)).await, [1]);
    assert_eq!(sent(&world, tally("bob", 1), later(1_001)).await, [0]);
    assert_eq!(world.give_back(taken.lease, None).await.expect("answered"), Held::Held);
    assert_eq!(sent(&world, tally("ada", 1), later(1_001)).await, [0]);
}

pub async fn g1_counts_that_are_over_are_pruned(world: World) {
    for nth in 0..3 {
        assert!(is_admitted(&world, tally(&format!("contact {nth}"), 1), later(0)).await);
    }
    let retention = || Retention { default: RETENTION, ..Retention::default() };
    assert_eq!(world.prune(later(3_500), retention(), 10).await.expect("pruned").admissions, 0);
    let mut gone = 0;
    for _ in 0..5 {
        gone += world.prune(later(3_700), retention(), 2).await.expect("pruned").admissions;
    }
    assert_eq!(gone, 3);
}
