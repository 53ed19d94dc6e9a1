//! drop: a dead letter is given up by two people, or by one and a day, on record; and may be taken back.

use super::world::*;
use clinch_core::death::Reason;
use clinch_core::drop::{ALONE_AFTER, DROPPED_KEPT};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::lane::{Lane, OnDead, Order};
use clinch_core::time::Timestamp;
use clinch_store::{DropAsk, DropEnd, NewEvent, NewJob, Revived};
use std::time::Duration;

fn wish(job: JobId, who: &str, at: Timestamp) -> DropAsk {
    DropAsk { job, record: by(who, "poison", at) }
}

async fn asks(world: &World, job: JobId, who: &str, at: Timestamp) -> DropEnd {
    world.ask_drop(wish(job, who, at)).await.expect("answered")
}

async fn confirms(world: &World, job: JobId, who: &str, at: Timestamp) -> DropEnd {
    world.confirm_drop(wish(job, who, at)).await.expect("answered")
}

async fn undrops(world: &World, job: JobId, at: Timestamp) -> DropEnd {
    world.undrop(wish(job, "cleo", at)).await.expect("answered")
}

async fn word(world: &World, job: JobId) -> Word {
    world.story(job).await.row.word
}

fn dropped() -> DropEnd {
    DropEnd::Dropped { flow: "orders".into() }
}

/// What is counted as dead now.
async fn dead_now(world: &World) -> u64 {
    world.counts().await.expect("read").dead.iter().map(|(_, _, jobs)| *jobs).sum()
}

pub async fn f4_a_dead_letter_is_dropped_by_a_second_person_and_taken_back(world: World) {
    let job = world.dead("k", later(0), Reason::BadPayload).await.job;
    assert_eq!(confirms(&world, job, "ben", later(9)).await, DropEnd::NotAsked);
    let alone_from = later(10) + ALONE_AFTER;
    let by = "maya".to_string();
    assert_eq!(asks(&world, job, "maya", later(10)).await, DropEnd::Asked { by: by.clone(), alone_from });
    assert_eq!(asks(&world, job, "ben", later(11)).await, DropEnd::AskedBefore { by: by.clone(), alone_from });
    assert_eq!(confirms(&world, job, "maya", later(12)).await, DropEnd::AskedBefore { by, alone_from });
    let drops = world.drops(10).await.expect("read");
    assert_eq!((drops.len(), drops[0].job, &*drops[0].actor, &*drops[0].reason), (1, job, "maya", "poison"));
    let world = world.after_a_stop().await;
    assert_eq!((word(&world, job).await, dead_now(&world).await), (Word::Dead, 1));
    assert_eq!(confirms(&world, job, "ben", later(13)).await, dropped());
    assert_eq!(world.drops(10).await.expect("read").len(), 0);
    for world in [&world.after_a_kill().await, &world] {
        let row = world.story(job).await.row;
        assert_eq!((row.word, row.reason, row.ended_at), (Word::Dropped, Some(Reason::BadPayload), Some(later(13))));
        assert_eq!(world.revives(job, later(14)).await, Revived::NotDead { state: Word::Dropped });
        assert_eq!(confirms(world, job, "eve", later(14)).await, DropEnd::Not { state: Word::Dropped });
        assert!(world.report(later(0)).await.parts.contains(&("dropped", 1)));
        world.adds_up().await;
        assert_eq!(world.duplicate(event("k")).await.job, job, "its key is still its own");
    }
    let world = world.after_a_stop().await;
    assert_eq!(dead_now(&world).await, 0);
    assert_eq!(undrops(&world, job, later(20)).await, DropEnd::TakenBack);
    assert_eq!(undrops(&world, job, later(21)).await, DropEnd::Not { state: Word::Dead });
    let told: Vec<_> = world.story(job).await.audit.into_iter().map(|row| (row.action, row.actor)).collect();
    let told: Vec<_> = told.iter().map(|(action, actor)| (&**action, &**actor)).collect();
    assert_eq!(told, [("job.drop.ask", "maya"), ("job.drop", "ben"), ("job.undrop", "cleo")]);
    assert_eq!(world.revives(job, later(22)).await, Revived::Revived { replays: 1 });
    world.finish(later(23)).await;
    world.adds_up().await;
}

pub async fn f4_who_is_alone_waits_a_day(world: World) {
    let job = world.dead("k", later(0), Reason::BadPayload).await.job;
    asks(&world, job, "maya", later(10)).await;
    let tomorrow = later(10) + ALONE_AFTER;
    let early = confirms(&world, job, "maya", tomorrow - Duration::from_secs(1)).await;
    assert_eq!(early, DropEnd::AskedBefore { by: "maya".into(), alone_from: tomorrow });
    assert_eq!(confirms(&world, job, "maya", tomorrow).await, dropped());
}

pub async fn f4_a_request_is_for_the_dead_letter_that_was_seen(world: World) {
    let job = world.dead("k", later(0), Reason::BadPayload).await.job;
    asks(&world, job, "maya", later(10)).await;
    world.revives(job, later(11)).await;
    assert_eq!(confirms(&world, job, "ben", later(12)).await, DropEnd::Not { state: Word::Queued });
    world.bury(later(12), Reason::BadPayload).await;
    assert_eq!(confirms(&world, job, "ben", later(13)).await, DropEnd::Changed);
    assert_eq!(confirms(&world, job, "ben", later(14)).await, DropEnd::NotAsked);
    assert!(matches!(asks(&world, job, "ben", later(15)).await, DropEnd::Asked { .. }));
    assert_eq!(undrops(&world, job, later(16)).await, DropEnd::Withdrawn);
    assert_eq!(
        (confirms(&world, job, "eve", later(17)).await, word(&world, job).await),
        (DropEnd::NotAsked, Word::Dead)
    );
    let nobody = JobId::from_number(job.number() + 77);
    assert_eq!(asks(&world, nobody, "maya", later(18)).await, DropEnd::NotFound);
    let live = world.accepted(event("live")).await.job;
    assert_eq!(asks(&world, live, "maya", later(18)).await, DropEnd::Not { state: Word::Queued });
    world.adds_up().await;
}

pub async fn f4_of_many_who_confirm_at_once_one_does(world: World) {
    let job = world.dead("k", later(0), Reason::BadPayload).await.job;
    asks(&world, job, "maya", later(10)).await;
    let mut all = tokio::task::JoinSet::new();
    for nth in 0..20 {
        let store = world.clone();
        all.spawn(async move { store.confirm_drop(wish(job, &format!("p{nth}"), later(11))).await.expect("answered") });
    }
    assert_eq!(all.join_all().await.into_iter().filter(|end| *end == dropped()).count(), 1);
    assert_eq!(world.record().await.iter().filter(|row| row.action == "job.drop").count(), 1);
    world.adds_up().await;
}

pub async fn f4_who_waited_behind_a_dropped_one_goes_on(world: World) {
    let lane = Lane::from_number(7);
    let blocking = || NewJob { lane, order: Order::Fifo { on_dead: OnDead::Block }, ..job("work") };
    let first = world.accepted(NewEvent { jobs: vec![blocking()], ..event("a") }).await.job;
    let second = world.accepted(NewEvent { jobs: vec![blocking()], ..event("b") }).await.job;
    world.bury(later(1), Reason::BadPayload).await;
    assert!(world.claims("work", 1, later(2)).await.is_empty(), "nobody passes it");
    asks(&world, first, "maya", later(3)).await;
    assert_eq!(confirms(&world, first, "ben", later(4)).await, dropped());
    for world in [&world.after_a_kill().await, &world] {
        world.adds_up().await;
        let claim = world.take(later(5)).await;
        assert_eq!(claim.lease.job, second);
        world.settles(claim.lease, finished(later(6))).await;
        assert_eq!(undrops(world, first, later(7)).await, DropEnd::TakenBack);
        world.adds_up().await;
        let third = world.accepted(NewEvent { jobs: vec![blocking()], ..event("c") }).await.job;
        assert_eq!(world.take(later(8)).await.lease.job, third, "it stops nobody any more");
    }
    let world = world.after_a_stop().await;
    world.adds_up().await;
}

pub async fn f4_a_dropped_one_is_kept_for_thirty_days(world: World) {
    let job = world.dead("k", later(0), Reason::BadPayload).await.job;
    asks(&world, job, "maya", later(10)).await;
    confirms(&world, job, "ben", later(11)).await;
    world.prunes(later(10) + DROPPED_KEPT).await;
    assert_eq!(word(&world, job).await, Word::Dropped, "longer than a dead letter");
    while world.prunes(later(12) + DROPPED_KEPT).await.jobs == 0 {}
    assert!(world.job(job).await.expect("read").is_none());
    world.adds_up_at(later(12) + DROPPED_KEPT).await;
}
