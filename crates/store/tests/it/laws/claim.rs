//! claim, renew, lapse: who may run a job, and until when.

use super::world::*;
use bytes::Bytes;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::{Held, LeaseRef, NewEvent, VersionId};
use std::collections::HashSet;
use std::time::Duration;

async fn accept_many(world: &World, jobs: usize) {
    for nth in 0..jobs {
        world.accepted(event(&format!("k{nth}"))).await;
    }
}

/// Every verb of a worker answers `Lost`, and its job's rows stay as they are.
async fn changes_nothing(world: &World, lease: LeaseRef) {
    let before = format!("{:?}", world.story(lease.job).await);
    let at = later(500);
    assert_eq!(world.intends(lease, "post", Idempotency::None, at).await, Held::Lost);
    assert_eq!(world.intends(lease, "new", Idempotency::None, at).await, Held::Lost);
    assert_eq!(world.concludes(lease, "post", done(), at).await, Held::Lost);
    for end in [finished(at), failed(at, at)] {
        assert_eq!(world.settle(lease, end).await.expect("answered"), Held::Lost);
    }
    let renewed = world.renew(&[lease], later(9_999)).await.expect("answered");
    assert_eq!(renewed, [Held::Lost]);
    assert_eq!(format!("{:?}", world.story(lease.job).await), before);
}

pub async fn p6_two_claimers_never_share_a_job(world: World) {
    const JOBS: usize = 200;
    accept_many(&world, JOBS).await;
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = world.clone();
        claimers.spawn(async move {
            let mut taken = Vec::new();
            loop {
                let ask = clinch_store::ClaimAsk {
                    queue: "work".into(),
                    most: 3,
                    but: None,
                    now: later(1),
                    until: later(60),
                };
                let claims = store.claim(ask).await.expect("claimed");
                if claims.is_empty() {
                    return taken;
                }
                taken.extend(claims.iter().map(|claim| claim.lease));
                tokio::task::yield_now().await;
            }
        });
    }
    let taken: Vec<LeaseRef> = claimers.join_all().await.into_iter().flatten().collect();
    let jobs: HashSet<_> = taken.iter().map(|lease| lease.job).collect();
    let fences: HashSet<_> = taken.iter().map(|lease| lease.fence).collect();
    assert_eq!((taken.len(), jobs.len(), fences.len()), (JOBS, JOBS, JOBS));
}

pub async fn a_job_is_not_claimed_before_its_time(world: World) {
    world.accepted(event("k")).await;
    let claim = world.take(later(1)).await;
    world.settles(claim.lease, failed(later(2), later(100))).await;
    let just_before = later(100) - Duration::from_micros(1);
    assert!(world.claims("work", 1, just_before).await.is_empty());
    assert_eq!(world.next_due("work"), Some(later(100)));
    assert_eq!(world.take(later(100)).await.lease.job, claim.lease.job);
    assert_eq!(world.next_due("work"), None);
}

pub async fn jobs_come_in_order_of_their_time_and_then_of_acceptance(world: World) {
    let mut jobs = Vec::new();
    for key in ["a", "b", "c", "d"] {
        jobs.push(world.accepted(event(key)).await.job);
    }
    // The first one failed: it is due after the others.
    let first = world.take(later(0)).await;
    world.settles(first.lease, failed(later(1), later(2))).await;
    let order: Vec<_> = world.claims("work", 10, later(3)).await.iter().map(|claim| claim.lease.job).collect();
    assert_eq!(order, [jobs[1], jobs[2], jobs[3], jobs[0]]);
}

pub async fn queues_do_not_see_each_others_jobs(world: World) {
    world.accepted(event("k")).await;
    assert!(world.claims("other", 10, later(1)).await.is_empty());
    assert_eq!(world.claims("work", 10, later(1)).await.len(), 1);
}

pub async fn a_claim_takes_no_more_than_asked(world: World) {
    accept_many(&world, 5).await;
    assert!(world.claims("work", 0, later(1)).await.is_empty());
    assert_eq!(world.claims("work", 3, later(1)).await.len(), 3);
    assert_eq!(world.claims("work", 3, later(1)).await.len(), 2);
}

pub async fn a_claim_carries_what_was_accepted(world: World) {
    let accepted = world.accepted(NewEvent { version: VersionId(42), ..event("k") }).await;
    for world in [world.after_a_kill().await, world] {
        let claim = world.take(later(1)).await;
        assert_eq!((claim.lease.job, claim.event), (accepted.job, accepted.event));
        assert_eq!((&*claim.flow, &*claim.queue), ("orders", "work"));
        assert_eq!((claim.version, claim.received_at), (VersionId(42), later(0)));
        assert_eq!((claim.failures, claim.attempts, claim.replays), (0, 0, 0));
        assert_eq!(claim.first_attempt_at, None);
        assert_eq!(&opened(&claim.payload)[..], b"the payload");
        assert!(claim.effects.is_empty());
        assert_eq!(world.story(accepted.job).await.row.word, Word::Running);
    }
}

pub async fn a_claim_carries_its_payload_however_much_waits(world: World) {
    const EACH: usize = 1 << 20;
    for nth in 0..40u8 {
        world.accepted(NewEvent { payload: Bytes::from(vec![nth; EACH]), ..event(&format!("k{nth}")) }).await;
    }
    let claims = world.claims("work", 40, later(1)).await;
    assert_eq!(claims.len(), 40);
    for (nth, claim) in (0..40u8).zip(&claims) {
        let payload = opened(&claim.payload);
        assert!(payload.len() == EACH && payload.iter().all(|byte| *byte == nth), "{nth}");
    }
}

pub async fn p6_every_claim_has_a_bigger_fence_than_the_one_before(world: World) {
    world.accepted(event("k")).await;
    let mut last = clinch_core::job::Fence(0);
    let mut world = world;
    for round in 0..3u64 {
        for turn in 0..3u64 {
            let now = later(10 * round + turn);
            let claim = world.take(now).await;
            assert!(claim.lease.fence > last, "round {round}, turn {turn}");
            last = claim.lease.fence;
            world.settles(claim.lease, failed(now, now)).await;
        }
        // Also past a lease that nobody gave back, and past a kill.
        let claim = world.take(later(10 * round + 5)).await;
        assert!(claim.lease.fence > last);
        last = claim.lease.fence;
        world = world.after_a_kill().await;
    }
}

pub async fn p6_who_lost_the_lease_changes_nothing(world: World) {
    world.accepted(event("k")).await;
    let slow = world.take(later(0)).await;
    world.intends(slow.lease, "post", Idempotency::None, later(0)).await;
    let taken = world.lapse(later(100), 10, later(200)).await.expect("lapsed");
    changes_nothing(&world, slow.lease).await;
    // Nor when the job has moved on, whoever has it now.
    let lost = failed(later(101), later(102));
    assert_eq!(world.concludes(taken[0].lease, "post", EffectState::NotDone, later(101)).await, Held::Held);
    world.settles(taken[0].lease, lost).await;
    changes_nothing(&world, slow.lease).await;
    changes_nothing(&world, taken[0].lease).await;
    let next = world.take(later(102)).await;
    changes_nothing(&world, slow.lease).await;
    world.settles(next.lease, finished(later(103))).await;
    changes_nothing(&world, slow.lease).await;
    changes_nothing(&world, next.lease).await;
}

pub async fn p6_a_lease_from_before_a_kill_changes_nothing(world: World) {
    world.accepted(event("k")).await;
    let before = world.take(later(0)).await;
    let survivor = world.after_a_kill().await;
    changes_nothing(&survivor, before.lease).await;
    let now = survivor.take(later(1)).await;
    changes_nothing(&survivor, before.lease).await;
    survivor.settles(now.lease, finished(later(2))).await;
}

pub async fn p11_a_renewed_lease_is_kept_and_a_lapsed_one_is_lost(world: World) {
    accept_many(&world, 2).await;
    let claims = world.claims("work", 2, later(0)).await;
    let (living, dead) = (claims[0].lease, claims[1].lease);
    let renewed = world.renew(&[living], later(500)).await.expect("answered");
    assert_eq!(renewed, [Held::Held]);
    let lapsed = world.lapse(later(100), 10, later(160)).await.expect("lapsed");
    assert_eq!(lapsed.iter().map(|claim| claim.lease.job).collect::<Vec<_>>(), [dead.job]);
    let renewed = world.renew(&[living, dead], later(600)).await.expect("answered");
    assert_eq!(renewed, [Held::Held, Held::Lost]);
    world.settles(living, finished(later(101))).await;
}

pub async fn p11_a_lapsed_job_goes_to_the_caller_under_a_new_fence(world: World) {
    let lapse = async |now: Timestamp| world.lapse(now, 10, now + LEASE).await.expect("lapsed");
    world.accepted(event("k")).await;
    let slow = world.take(later(0)).await;
    assert!(lapse(later(0) + LEASE).await.is_empty(), "a lease counts until its end");
    let lapsed = lapse(later(100)).await;
    assert_eq!(lapsed.len(), 1);
    assert_eq!(lapsed[0].lease.job, slow.lease.job);
    assert!(lapsed[0].lease.fence > slow.lease.fence);
    assert_eq!(&opened(&lapsed[0].payload)[..], b"the payload");
    assert!(world.claims("work", 1, later(100)).await.is_empty(), "nobody else gets it");
    assert!(lapse(later(100)).await.is_empty(), "nor is it handed out twice");
    world.settles(lapsed[0].lease, failed(later(101), later(102))).await;
    assert_eq!(world.take(later(102)).await.lease.job, slow.lease.job);
}

pub async fn a_waiting_worker_is_woken_by_acceptance(world: World) {
    let store = world.clone();
    let worker = tokio::spawn(async move {
        loop {
            let ask =
                clinch_store::ClaimAsk { queue: "work".into(), most: 1, but: None, now: later(1), until: later(60) };
            if let Some(claim) = store.claim(ask).await.expect("claimed").pop() {
                return claim.lease.job;
            }
            store.work("work").await;
        }
    });
    let accepted = world.accepted(event("k")).await;
    let ran = tokio::time::timeout(PATIENCE, worker).await.expect("it was woken");
    assert_eq!(ran.expect("it ended well"), accepted.job);
}

pub async fn a_waiting_worker_is_woken_by_a_retry_and_told_when_it_is_due(world: World) {
    world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    // The acceptance itself left a call behind; only the retry's counts here.
    tokio::time::timeout(PATIENCE, world.work("work")).await.expect("called by the acceptance");
    let store = world.clone();
    let waiting = tokio::spawn(async move { store.work("work").await });
    world.settles(claim.lease, failed(later(1), later(30))).await;
    tokio::time::timeout(PATIENCE, waiting).await.expect("it was woken").expect("it ended well");
    assert_eq!(world.next_due("work"), Some(later(30)));
}
