//! Order and fairness: who is next, who waits behind whom, and for how long.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::effect::Idempotency;
use clinch_core::id::JobId;
use clinch_core::key::Pepper;
use clinch_core::lane::{Lane, OnDead, Order};
use clinch_core::time::Timestamp;
use clinch_store::{Acceptance, Claim, ClaimAsk, NewEvent, NewJob, Revived};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn lane(group: &str) -> Lane {
    Lane::group(&Pepper::new(&PEPPER), "work", "default", group)
}

/// A job of this group, in a queue that keeps no order.
fn plain(group: &str) -> NewJob {
    NewJob { lane: lane(group), ..job("work") }
}

fn fifo(group: &str) -> NewJob {
    NewJob { order: Order::Fifo { on_dead: OnDead::Continue }, ..plain(group) }
}

fn blocking(group: &str) -> NewJob {
    NewJob { order: Order::Fifo { on_dead: OnDead::Block }, ..plain(group) }
}

/// One event with this one job.
async fn put(world: &World, key: &str, job: NewJob) -> JobId {
    world.accepted(NewEvent { jobs: vec![job], ..event(key) }).await.job
}

/// So many events of one lane, sent side by side.
async fn backlog(world: &World, jobs: usize, job: NewJob) {
    let mut accepts = tokio::task::JoinSet::new();
    for _ in 0..jobs {
        let (store, job) = (Arc::clone(world), job.clone());
        accepts.spawn(async move {
            let event = NewEvent { dedup: None, jobs: vec![job], ..event("backlog") };
            assert!(matches!(store.accept(event).await, Ok(Acceptance::Fresh(_))));
        });
    }
    accepts.join_all().await;
}

async fn next(world: &World, now: Timestamp) -> Vec<Claim> {
    world.claims("work", 10, now).await
}

fn ids(claims: &[Claim]) -> Vec<JobId> {
    claims.iter().map(|claim| claim.lease.job).collect()
}

/// The only job that can be claimed now is this one.
async fn take_only(world: &World, job: JobId, now: Timestamp) -> Claim {
    let mut claims = next(world, now).await;
    assert_eq!(ids(&claims), [job]);
    claims.pop().expect("one")
}

async fn nobody(world: &World, now: Timestamp) {
    assert_eq!(ids(&next(world, now).await), []);
}

pub async fn p7_jobs_of_a_group_run_one_at_a_time_in_order_of_acceptance(world: World) {
    let mut jobs = Vec::new();
    for key in ["a", "b"] {
        jobs.push(put(&world, key, fifo("g")).await);
    }
    // Two jobs of one event stand one behind the other.
    let both = world.accepted(NewEvent { jobs: vec![fifo("g"), fifo("g")], ..event("both") }).await.job;
    jobs.extend([both, JobId::from_number(both.number() + 1)]);
    for (nth, job) in (1..).zip(jobs) {
        let claim = take_only(&world, job, later(nth)).await;
        nobody(&world, later(nth)).await;
        world.adds_up().await;
        world.settles(claim.lease, finished(later(nth))).await;
    }
    nobody(&world, later(100)).await;
    assert_eq!(world.next_due("work"), None);
    world.adds_up().await;
}

pub async fn p7_groups_do_not_block_each_other(world: World) {
    let mut first = Vec::new();
    let mut second = Vec::new();
    for group in ["a", "b", "c"] {
        first.push(put(&world, &format!("{group}1"), fifo(group)).await);
        second.push(put(&world, &format!("{group}2"), fifo(group)).await);
    }
    let claims = next(&world, later(1)).await;
    assert_eq!(ids(&claims), first);
    world.settles(claims[1].lease, finished(later(2))).await;
    take_only(&world, second[1], later(3)).await;
    world.settles(claims[0].lease, buried(later(4), Reason::Timeout)).await;
    take_only(&world, second[0], later(5)).await;
    world.adds_up().await;
}

pub async fn p7_a_group_that_was_empty_goes_on_where_it_was(world: World) {
    for round in 0..3 {
        let job = put(&world, &format!("k{round}"), fifo("g")).await;
        let claim = take_only(&world, job, later(round)).await;
        let waiting = put(&world, &format!("l{round}"), fifo("g")).await;
        nobody(&world, later(round)).await;
        world.settles(claim.lease, finished(later(round))).await;
        let claim = take_only(&world, waiting, later(round)).await;
        world.settles(claim.lease, finished(later(round))).await;
    }
    world.adds_up().await;
}

pub async fn p7_a_job_that_is_tried_again_keeps_its_group_waiting_and_no_other(world: World) {
    let first = put(&world, "a1", fifo("a")).await;
    let second = put(&world, "a2", fifo("a")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.settles(claim.lease, failed(later(2), later(100))).await;
    let other = put(&world, "b1", fifo("b")).await;
    let other = take_only(&world, other, later(50)).await;
    world.settles(other.lease, finished(later(51))).await;
    nobody(&world, later(99)).await;
    assert_eq!(world.next_due("work"), Some(later(100)));
    for world in [world.after_a_kill().await, world] {
        nobody(&world, later(99)).await;
        let claim = take_only(&world, first, later(100)).await;
        world.settles(claim.lease, finished(later(101))).await;
        take_only(&world, second, later(102)).await;
    }
}

pub async fn p7_a_dead_letter_lets_the_next_of_its_group_pass(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let second = put(&world, "2", fifo("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.settles(claim.lease, buried(later(2), Reason::RejectedByTarget)).await;
    for world in [world.after_a_kill().await, world] {
        let claim = take_only(&world, second, later(3)).await;
        world.settles(claim.lease, finished(later(4))).await;
        world.adds_up().await;
    }
}

pub async fn p7_a_dead_letter_blocks_its_group_and_no_other_where_the_queue_says_so(world: World) {
    let first = put(&world, "a1", blocking("a")).await;
    let second = put(&world, "a2", blocking("a")).await;
    let other = put(&world, "b1", blocking("b")).await;
    let claims = next(&world, later(1)).await;
    assert_eq!(ids(&claims), [first, other]);
    world.settles(claims[0].lease, buried(later(2), Reason::RejectedByTarget)).await;
    world.settles(claims[1].lease, finished(later(2))).await;
    let third = put(&world, "a3", blocking("a")).await;
    world.adds_up().await;
    for world in [world.after_a_kill().await, world.after_a_stop().await] {
        nobody(&world, later(10)).await;
        assert_eq!(world.story(second).await.behind, Some(first));
        let other = put(&world, "b2", blocking("b")).await;
        take_only(&world, other, later(11)).await;
        assert_eq!(world.revives(first, later(12)).await, Revived::Revived { replays: 1 });
        for job in [first, second, third] {
            let claim = take_only(&world, job, later(13)).await;
            nobody(&world, later(13)).await;
            world.settles(claim.lease, finished(later(13))).await;
        }
        world.adds_up().await;
    }
}

pub async fn p7_a_dead_letter_that_dies_again_blocks_again(world: World) {
    let first = put(&world, "1", blocking("g")).await;
    let second = put(&world, "2", blocking("g")).await;
    for round in 0..3 {
        let claim = take_only(&world, first, later(10 * round)).await;
        world.settles(claim.lease, buried(later(10 * round + 1), Reason::RejectedByTarget)).await;
        nobody(&world, later(10 * round + 2)).await;
        world.adds_up().await;
        world.revives(first, later(10 * round + 3)).await;
    }
    let claim = take_only(&world, first, later(100)).await;
    world.settles(claim.lease, finished(later(101))).await;
    take_only(&world, second, later(102)).await;
}

pub async fn p7_a_dead_letter_that_retention_removed_blocks_nobody(world: World) {
    let first = NewEvent { dedup: None, jobs: vec![blocking("g")], ..event("1") };
    let first = world.accepted(first).await.job;
    let second = put(&world, "2", blocking("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.settles(claim.lease, buried(later(2), Reason::RejectedByTarget)).await;
    let end = later(2) + RETENTION;
    assert_eq!(world.prunes(end).await.jobs, 1);
    let claim = take_only(&world, second, end).await;
    world.settles(claim.lease, finished(end)).await;
    world.adds_up().await;
    // Nothing of the group is left; it begins anew.
    assert_eq!(world.prunes(end + 10 * RETENTION).await.jobs, 1);
    let third = put(&world, "3", blocking("g")).await;
    take_only(&world, third, end + 11 * RETENTION).await;
    world.adds_up().await;
}

pub async fn p7_a_dead_letter_that_lives_again_comes_before_younger_ones_and_never_beside_one(world: World) {
    let mut jobs = Vec::new();
    for key in ["1", "2", "3", "4"] {
        jobs.push(put(&world, key, fifo("g")).await);
    }
    for (at, job) in [(1, jobs[0]), (2, jobs[1])] {
        let claim = take_only(&world, job, later(at)).await;
        world.settles(claim.lease, buried(later(at), Reason::TargetDown)).await;
    }
    let third = take_only(&world, jobs[2], later(3)).await;
    // In whatever order they are replayed.
    world.revives(jobs[1], later(4)).await;
    world.revives(jobs[0], later(5)).await;
    nobody(&world, later(6)).await;
    assert_eq!(world.story(jobs[0]).await.behind, Some(jobs[2]));
    world.adds_up().await;
    // Even the one that ran meanwhile waits for those before it.
    world.settles(third.lease, failed(later(7), later(8))).await;
    for world in [world.after_a_kill().await, world] {
        for (at, job) in (10..).zip(&jobs) {
            let claim = take_only(&world, *job, later(at)).await;
            nobody(&world, later(at)).await;
            world.settles(claim.lease, finished(later(at))).await;
        }
        world.adds_up().await;
    }
}

pub async fn p7_a_dead_letter_that_lives_again_goes_before_one_that_is_not_due(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let second = put(&world, "2", fifo("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.settles(claim.lease, buried(later(2), Reason::TargetDown)).await;
    let claim = take_only(&world, second, later(3)).await;
    world.settles(claim.lease, failed(later(4), later(1_000))).await;
    world.revives(first, later(5)).await;
    let claim = take_only(&world, first, later(6)).await;
    world.settles(claim.lease, finished(later(7))).await;
    nobody(&world, later(999)).await;
    take_only(&world, second, later(1_000)).await;
    world.adds_up().await;
}

pub async fn p7_the_job_of_a_lost_worker_stays_the_first_of_its_group(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let second = put(&world, "2", fifo("g")).await;
    take_only(&world, first, later(0)).await;
    let lapsed = world.lapse(later(100), 10, later(200)).await.expect("lapsed");
    assert_eq!(ids(&lapsed), [first]);
    nobody(&world, later(100)).await;
    world.settles(lapsed[0].lease, failed(later(101), later(102))).await;
    let claim = take_only(&world, first, later(102)).await;
    world.settles(claim.lease, finished(later(103))).await;
    take_only(&world, second, later(104)).await;
    world.adds_up().await;
}

pub async fn p7_order_survives_a_kill_and_a_stop(world: World) {
    let mut jobs = Vec::new();
    for nth in 0..6 {
        jobs.push(put(&world, &format!("k{nth}"), fifo("g")).await);
    }
    let claim = take_only(&world, jobs[0], later(1)).await;
    world.settles(claim.lease, finished(later(2))).await;
    // Claimed, and nothing begun: it is simply the first again.
    take_only(&world, jobs[1], later(3)).await;
    let mut world = world.after_a_kill().await;
    for (nth, job) in (1..).zip(&jobs[1..5]) {
        let claim = take_only(&world, *job, later(10 * nth)).await;
        nobody(&world, later(10 * nth)).await;
        world.settles(claim.lease, finished(later(10 * nth))).await;
        world = world.after_a_stop().await;
    }
    world.adds_up().await;
    take_only(&world, jobs[5], later(100)).await;
}

pub async fn p7_a_job_that_had_begun_something_is_still_the_first_after_a_kill(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let second = put(&world, "2", fifo("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.intends(claim.lease, "post", Idempotency::Header, later(1)).await;
    let world = world.after_a_kill().await;
    nobody(&world, later(2)).await;
    let lost = world.lapse(later(2), 10, later(60)).await.expect("lapsed");
    assert_eq!(ids(&lost), [first]);
    nobody(&world, later(2)).await;
    world.settles(lost[0].lease, failed(later(3), later(4))).await;
    let claim = take_only(&world, first, later(4)).await;
    world.settles(claim.lease, finished(later(5))).await;
    take_only(&world, second, later(6)).await;
}

pub async fn p7_a_duplicate_takes_no_place_in_its_group(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    for _ in 0..3 {
        world.duplicate(NewEvent { jobs: vec![fifo("g")], ..event("1") }).await;
    }
    let second = put(&world, "2", fifo("g")).await;
    for job in [first, second] {
        let claim = take_only(&world, job, later(1)).await;
        world.settles(claim.lease, finished(later(1))).await;
    }
    world.adds_up().await;
}

pub async fn p7_two_claimers_never_share_a_group(world: World) {
    const GROUPS: usize = 12;
    const EACH: usize = 15;
    let mut accepted: HashMap<Lane, Vec<JobId>> = HashMap::new();
    let mut lanes = HashMap::new();
    for nth in 0..GROUPS * EACH {
        let group = format!("g{}", nth % GROUPS);
        let job = put(&world, &format!("k{nth}"), fifo(&group)).await;
        accepted.entry(lane(&group)).or_default().push(job);
        lanes.insert(job, lane(&group));
    }
    let lanes = Arc::new(lanes);
    let running: Arc<Mutex<HashSet<Lane>>> = Arc::default();
    let done: Arc<Mutex<HashMap<Lane, Vec<JobId>>>> = Arc::default();
    let mut claimers = tokio::task::JoinSet::new();
    for claimer in 0..6u64 {
        let (store, lanes, running, done) = (Arc::clone(&world), lanes.clone(), running.clone(), done.clone());
        claimers.spawn(async move {
            let mut turn = 0;
            while done.lock().expect("held").values().map(Vec::len).sum::<usize>() < GROUPS * EACH {
                let ask = ClaimAsk { queue: "work".into(), most: 4, but: None, now: later(10), until: later(60) };
                for claim in store.claim(ask).await.expect("claimed") {
                    let job = claim.lease.job;
                    assert!(running.lock().expect("held").insert(lanes[&job]), "two of one group run");
                    tokio::task::yield_now().await;
                    running.lock().expect("held").remove(&lanes[&job]);
                    turn += 1;
                    // Some fail first, and must not be overtaken.
                    let again = claim.attempts == 0 && (turn + claimer) % 3 == 0;
                    if !again {
                        done.lock().expect("held").entry(lanes[&job]).or_default().push(job);
                    }
                    let end = if again { failed(later(9), later(9)) } else { finished(later(9)) };
                    assert_eq!(store.settle(claim.lease, end).await.expect("answered"), clinch_store::Held::Held);
                }
                tokio::task::yield_now().await;
            }
        });
    }
    tokio::time::timeout(2 * PATIENCE, claimers.join_all()).await.expect("all of them ended");
    assert_eq!(*done.lock().expect("held"), accepted);
    world.adds_up().await;
}

pub async fn p7_a_worker_that_waits_is_woken_when_the_one_before_it_has_ended(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let second = put(&world, "2", fifo("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    // Acceptance left a call behind.
    tokio::time::timeout(PATIENCE, world.work("work")).await.expect("called by the acceptance");
    let store = Arc::clone(&world);
    let waiting = tokio::spawn(async move { store.work("work").await });
    world.settles(claim.lease, finished(later(2))).await;
    tokio::time::timeout(PATIENCE, waiting).await.expect("it was woken").expect("it ended well");
    take_only(&world, second, later(3)).await;
}

pub async fn c1_the_highest_priority_goes_first(world: World) {
    let with = |priority: i16, job: NewJob| NewJob { priority, ..job };
    let low = put(&world, "low", with(-7, plain("a"))).await;
    let middle = put(&world, "middle", plain("a")).await;
    let high = put(&world, "high", with(100, plain("a"))).await;
    for world in [world.after_a_kill().await, world] {
        assert_eq!(ids(&next(&world, later(1)).await), [high, middle, low]);
    }
}

pub async fn c1_of_two_groups_that_keep_their_order_the_higher_goes_first(world: World) {
    let low = put(&world, "low", fifo("a")).await;
    let high = put(&world, "high", NewJob { priority: 3, ..fifo("b") }).await;
    // Within its group it waits all the same.
    let high_behind = put(&world, "behind", NewJob { priority: 100, ..fifo("a") }).await;
    let first = world.claims("work", 1, later(1)).await;
    assert_eq!(ids(&first), [high]);
    assert_eq!(world.story(high_behind).await.priority, 100);
    let claim = take_only(&world, low, later(1)).await;
    world.settles(claim.lease, finished(later(2))).await;
    let lower = put(&world, "lower", NewJob { priority: 50, ..fifo("c") }).await;
    assert_eq!(ids(&next(&world, later(3)).await), [high_behind, lower]);
}

pub async fn f49_a_high_priority_does_not_bring_its_backlog_forward(world: World) {
    backlog(&world, 200, plain("noisy")).await;
    put(&world, "urgent", NewJob { priority: 9, ..plain("noisy") }).await;
    assert_eq!(world.claims("work", 5, later(1)).await.len(), 5);
    let newcomer = put(&world, "new", plain("quiet")).await;
    assert!(ids(&world.claims("work", 5, later(1)).await).contains(&newcomer));
}

pub async fn c1_a_delayed_job_is_not_claimed_before_its_time(world: World) {
    for (key, job, due) in [("plain", plain("a"), later(30)), ("fifo", fifo("b"), later(60))] {
        let delayed = put(&world, key, NewJob { run_at: due, ..job }).await;
        for world in [&world.after_a_kill().await, &world] {
            nobody(world, due - Duration::from_micros(1)).await;
            assert_eq!(world.next_due("work"), Some(due), "{key}");
            assert_eq!(world.story(delayed).await.row.run_at, Some(due));
            let claim = take_only(world, delayed, due).await;
            world.settles(claim.lease, finished(due)).await;
            world.adds_up().await;
        }
    }
}

pub async fn c1_a_delayed_job_goes_by_its_priority_when_it_is_due(world: World) {
    backlog(&world, 5, plain("a")).await;
    let delayed = put(&world, "late", NewJob { run_at: later(30), priority: 1, ..plain("a") }).await;
    let next = world.claims("work", 1, later(29)).await;
    assert_ne!(ids(&next), [delayed]);
    let next = world.claims("work", 1, later(30)).await;
    assert_eq!(ids(&next), [delayed]);
}

pub async fn p7_a_delayed_job_keeps_those_behind_it_waiting(world: World) {
    let first = put(&world, "1", fifo("g")).await;
    let delayed = put(&world, "2", NewJob { run_at: later(100), ..fifo("g") }).await;
    let third = put(&world, "3", fifo("g")).await;
    let claim = take_only(&world, first, later(1)).await;
    world.settles(claim.lease, finished(later(2))).await;
    nobody(&world, later(99)).await;
    assert_eq!(world.next_due("work"), Some(later(100)));
    let claim = take_only(&world, delayed, later(100)).await;
    world.settles(claim.lease, finished(later(101))).await;
    take_only(&world, third, later(102)).await;
}

pub async fn f49_a_backlog_of_one_lane_does_not_delay_another(world: World) {
    backlog(&world, 5_000, plain("noisy")).await;
    assert_eq!(world.claims("work", 64, later(1)).await.len(), 64);
    let newcomer = put(&world, "new", plain("quiet")).await;
    assert!(ids(&world.claims("work", 64, later(1)).await).contains(&newcomer));
    let world = world.after_a_stop().await;
    let newcomer = put(&world, "newer", plain("quiet")).await;
    // Its jobs that were given back come before it; there are no more of them than were running.
    let claims = [world.claims("work", 64, later(2)).await, world.claims("work", 128, later(2)).await].concat();
    assert!(ids(&claims).contains(&newcomer));
}

pub async fn f49_beside_a_lane_that_has_enough_the_others_are_served(world: World) {
    backlog(&world, 500, plain("noisy")).await;
    let taken = world.claims("work", 28, later(1)).await;
    let crowded = taken[0].lane;
    assert!(taken.iter().all(|claim| claim.lane == crowded));
    let beside = ClaimAsk { queue: "work".into(), most: 4, but: Some(crowded), now: later(1), until: later(60) };
    assert_eq!(ids(&world.claim(beside.clone()).await.expect("claimed")), []);
    let newcomers = [put(&world, "a", plain("quiet")).await, put(&world, "b", plain("shy")).await];
    let claims = world.claim(beside).await.expect("claimed");
    assert_eq!(ids(&claims), newcomers);
    assert!(claims[0].lane != crowded && claims[1].lane != claims[0].lane);
    assert_eq!(world.claims("work", 1, later(1)).await[0].lane, crowded);
}

pub async fn f49_retries_of_one_lane_do_not_delay_another(world: World) {
    backlog(&world, 300, plain("noisy")).await;
    for claim in world.claims("work", 300, later(1)).await {
        world.settles(claim.lease, failed(later(2), later(10))).await;
    }
    assert_eq!(world.claims("work", 5, later(10)).await.len(), 5);
    let newcomer = put(&world, "new", plain("quiet")).await;
    assert!(ids(&world.claims("work", 5, later(10)).await).contains(&newcomer));
}

pub async fn f49_groups_that_keep_their_order_take_turns(world: World) {
    for group in ["a", "b", "c"] {
        for nth in 0..5 {
            put(&world, &format!("{group}{nth}"), fifo(group)).await;
        }
    }
    // One hand: each group is served once before any is served twice.
    let mut served = Vec::new();
    for at in 10..16 {
        let claim = world.claims("work", 1, later(at)).await.pop().expect("a job is due");
        served.push(claim.lease.job);
        world.settles(claim.lease, finished(later(at))).await;
    }
    let newcomer = put(&world, "new", NewJob { run_at: later(15), ..fifo("new") }).await;
    for at in 16..20 {
        let claim = world.claims("work", 1, later(at)).await.pop().expect("a job is due");
        served.push(claim.lease.job);
        world.settles(claim.lease, finished(later(at))).await;
    }
    let mut distinct = served.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), served.len());
    let groups: Vec<_> = {
        let page = world.jobs(clinch_store::read::JobFilter { limit: 100, ..Default::default() }).await.expect("read");
        let mut all: Vec<JobId> = page.rows.iter().map(|row| row.id).collect();
        all.sort();
        served.iter().map(|job| all.iter().position(|id| id == job).expect("it is there") / 5).collect()
    };
    for round in groups[..6].chunks(3) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert_eq!(round, [0, 1, 2], "{groups:?}");
    }
    assert!(served[6..].contains(&newcomer), "{groups:?}");
}
