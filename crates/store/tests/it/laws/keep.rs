//! prune, activate: what is kept, for how long, and that nothing goes uncounted.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::time::Timestamp;
use clinch_store::{Activated, Dedup, NewEvent, Pruned, Retention, VersionId};
use std::time::Duration;

const A_MOMENT: Duration = Duration::from_micros(1);

/// A finished job that has been kept for long enough.
fn long_after() -> Timestamp {
    later(0) + 10 * RETENTION
}

fn short_key(key: &str, ttl: Duration) -> NewEvent {
    NewEvent { dedup: Some(Dedup { ttl, ..dedup(key, b"the body") }), ..event(key) }
}

pub async fn retention_removes_a_finished_job_after_its_time(world: World) {
    let accepted = world.accepted(short_key("k", A_MOMENT)).await;
    world.finish(later(500)).await;
    let end = later(500) + RETENTION;
    assert_eq!(world.prunes(end - A_MOMENT).await.jobs, 0, "its time counts from its end");
    let pruned = world.prunes(end).await;
    assert_eq!((pruned.jobs, pruned.events), (1, 1));
    assert!(world.job(accepted.job).await.expect("read").is_none());
    let survivor = world.after_a_kill().await;
    assert!(survivor.job(accepted.job).await.expect("read").is_none());
    survivor.adds_up().await;
}

pub async fn retention_keeps_a_dead_letter_for_its_own_time(world: World) {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let retention = Retention {
        default: days(100),
        finished: vec![("work".into(), days(4))],
        dead: vec![("work".into(), days(30))],
    };
    let prune = async |now: Timestamp| world.prune(now, retention.clone(), 100).await.expect("pruned");
    let success = world.success(later(0)).await;
    let dead = world.dead("k", later(0), Reason::TargetDown).await;
    assert_eq!(prune(later(0) + days(5)).await.jobs, 1);
    assert!(world.job(success.job).await.expect("read").is_none());
    assert_eq!(prune(later(0) + days(29)).await.jobs, 0);
    world.story(dead.job).await;
    assert_eq!(prune(later(0) + days(30)).await.jobs, 1);
    assert!(world.job(dead.job).await.expect("read").is_none());
    assert!(world.dead_groups().await.expect("read").is_empty());
    let counts = world.counts().await.expect("read");
    assert_eq!(counts.dead.iter().map(|(_, _, jobs)| jobs).sum::<u64>(), 0);
    world.adds_up().await;
}

pub async fn retention_never_removes_an_unfinished_job(world: World) {
    for key in ["running", "retrying", "queued"] {
        world.accepted(short_key(key, A_MOMENT)).await;
    }
    let claims = world.claims("work", 2, later(0)).await;
    world.settles(claims[1].lease, failed(later(1), later(2))).await;
    let pruned = world.prunes(long_after()).await;
    assert_eq!((pruned.jobs, pruned.events), (0, 0));
    assert_eq!(world.jobs_len().await, 3);
    world.settles(claims[0].lease, finished(later(1))).await;
    world.adds_up().await;
}

pub async fn retention_never_removes_a_job_before_its_key_expires(world: World) {
    let ttl = 3 * RETENTION;
    let accepted = world.accepted(short_key("k", ttl)).await;
    world.finish(later(1)).await;
    assert_eq!(world.prunes(later(0) + ttl - A_MOMENT).await.jobs, 0);
    assert_eq!(world.duplicate(short_key("k", ttl)).await, accepted);
    assert_eq!(world.prunes(later(0) + ttl).await.jobs, 1);
}

pub async fn an_event_goes_with_the_last_of_its_jobs(world: World) {
    let accepted = world.accepted(NewEvent { jobs: vec![job("work"), job("slow")], ..event("k") }).await;
    world.finish(later(1)).await;
    let pruned = world.prunes(long_after()).await;
    assert_eq!((pruned.jobs, pruned.events), (1, 0));
    world.adds_up().await;
    let world = world.after_a_stop().await;
    let claims = world.claims("slow", 1, later(2)).await;
    assert_eq!(&opened(&claims[0].payload)[..], b"the payload");
    assert_eq!(world.duplicate(event("k")).await, accepted, "nor has its key gone");
    world.settles(claims[0].lease, finished(later(3))).await;
    let pruned = world.prunes(long_after()).await;
    assert_eq!((pruned.jobs, pruned.events), (1, 1));
    world.adds_up().await;
}

pub async fn pruning_goes_in_bounded_steps(world: World) {
    for _ in 0..25 {
        world.success(later(0)).await;
    }
    let retention = Retention { default: RETENTION, ..Retention::default() };
    let mut steps = Vec::new();
    loop {
        let step = world.prune(long_after(), retention.clone(), 10).await.expect("pruned");
        steps.push(step.jobs);
        world.adds_up().await;
        if step.finished {
            break;
        }
    }
    assert_eq!(steps, [10, 10, 5]);
    assert_eq!(world.jobs_len().await, 0);
}

pub async fn p5_what_retention_removed_is_accounted_for(world: World) {
    for _ in 0..3 {
        world.success(later(0)).await;
    }
    world.dead("dead", later(0), Reason::TargetDown).await;
    world.accepted(event("queued")).await;
    world.prunes(long_after()).await;
    let report = world.report(long_after()).await;
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.accepted, report.events), (5, 5));
    let part = |name: &str| report.parts.iter().find(|(part, _)| *part == name).expect("a part").1;
    assert_eq!((part("expired by retention"), part("queued")), (4, 1));
    assert_eq!(world.prunes(long_after()).await, Pruned { finished: true, ..Pruned::default() });
}

pub async fn a_key_is_free_when_its_event_is_gone(world: World) {
    let first = world.accepted(event("k")).await;
    world.finish(later(1)).await;
    world.prunes(long_after()).await;
    assert_eq!(world.key(key("k")).await.expect("read"), None);
    let again = NewEvent { received_at: long_after(), ..event("k") };
    let second = world.accepted(again.clone()).await;
    assert_ne!(second.event, first.event);
    let world = world.after_a_stop().await;
    assert_eq!(world.duplicate(again).await, second);
}

pub async fn a_workspace_has_one_number(world: World) {
    let (one, two) = (VersionId(1), VersionId(2));
    assert_eq!(world.starts_with(1, 0).await, Activated::Live(one));
    assert_eq!(world.starts_with(2, 0).await, Activated::Live(two));
    let world = world.after_a_stop().await;
    assert_eq!(world.starts_with(1, 0).await, Activated::Live(one));
    assert_eq!(world.version_files(two).await.expect("read").as_deref(), Some("2"));
    assert_eq!(world.version_files(VersionId(99)).await.expect("read"), None);
    let known = world.versions(10).await.expect("read");
    let told: Vec<_> = known.iter().map(|row| (row.id, row.hash[0], row.at)).collect();
    assert_eq!(told, [(two, 2, later(0)), (one, 1, later(0))], "the newest first");
    assert_eq!(world.versions(1).await.expect("read").len(), 1);
}
