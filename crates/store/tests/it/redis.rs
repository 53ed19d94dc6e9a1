//! Keys that installations share, on a real Redis that the tests start.

use crate::redis_server::Redis;
use clinch_core::id::{EventId, JobId};
use clinch_core::key::{DedupKey, Fingerprint};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use clinch_store::redis::{Hold, PENDING_MAX, SharedKeys};
use clinch_store::{Accepted, Held, StoreError};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

const KEY: DedupKey = DedupKey::from_bytes([1; 32]);
const BODY: Fingerprint = Fingerprint::from_bytes([2; 32]);
const TTL: Duration = Duration::from_secs(3_600);

fn first(number: u64) -> Accepted {
    Accepted {
        event: EventId::from_number(number),
        job: JobId::from_number(number + 1),
        status: 202,
        received_at: Timestamp::from_micros(1_790_000_000_000_001),
        trace: TraceId(10),
    }
}

/// Two installations and the Redis between them.
fn world() -> (Redis, SharedKeys, SharedKeys) {
    let redis = Redis::start();
    let open = |owner: &str| SharedKeys::new(&redis.url(), "orders", owner).expect("an address");
    let (ours, theirs) = (open("a1"), open("b2"));
    (redis, ours, theirs)
}

fn millis(redis: &Redis) -> u128 {
    redis.ask(&format!("PTTL {}", redis.only_key())).parse().expect("it expires")
}

#[tokio::test]
async fn b7_a_key_has_one_owner_and_others_hear_its_first_answer() {
    let (redis, ours, theirs) = world();
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    assert_eq!(theirs.claim(&KEY).await.expect("asked"), Hold::Pending);
    assert!(millis(&redis) <= PENDING_MAX.as_millis(), "what is never finished is forgotten soon");
    assert_eq!(ours.keep(&KEY, &BODY, &first(7), TTL).await.expect("told"), Held::Held);
    assert!((PENDING_MAX.as_millis()..=TTL.as_millis()).contains(&millis(&redis)));
    assert_eq!(theirs.claim(&KEY).await.expect("asked"), Hold::Done { fingerprint: BODY, first: first(7) });
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours, "our own store knows it better");
    assert!(redis.only_key().starts_with("clinch:orders:0101"));
}

#[tokio::test]
async fn b7_an_entry_is_freed_by_the_last_request_of_its_owner_and_by_nobody_else() {
    let (redis, ours, theirs) = world();
    for _ in 0..2 {
        assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    }
    theirs.release(&KEY).await.expect("done");
    ours.release(&KEY).await.expect("done");
    assert_eq!(theirs.claim(&KEY).await.expect("asked"), Hold::Pending, "another request of ours may have stored it");
    ours.release(&KEY).await.expect("done");
    assert_eq!(redis.ask("DBSIZE"), "0");
    assert_eq!(theirs.claim(&KEY).await.expect("asked"), Hold::Ours);
    theirs.keep(&KEY, &BODY, &first(9), TTL).await.expect("told");
    theirs.release(&KEY).await.expect("done");
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Done { fingerprint: BODY, first: first(9) });
}

#[tokio::test]
async fn b7_who_was_too_slow_does_not_overwrite_who_came_after() {
    let (redis, ours, theirs) = world();
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    redis.ask("FLUSHALL");
    assert_eq!(theirs.claim(&KEY).await.expect("asked"), Hold::Ours);
    assert_eq!(ours.keep(&KEY, &BODY, &first(7), TTL).await.expect("told"), Held::Lost);
    assert_eq!(theirs.keep(&KEY, &BODY, &first(9), TTL).await.expect("told"), Held::Held);
    assert_eq!(ours.keep(&KEY, &BODY, &first(7), TTL).await.expect("told"), Held::Lost);
}

#[tokio::test]
async fn b7_a_redis_that_was_away_is_asked_again_with_its_scripts() {
    let (mut redis, ours, _) = world();
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    redis.ask("SCRIPT FLUSH");
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    let pid = Pid::from_raw(redis.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::STOP).expect("stopped");
    assert!(matches!(ours.claim(&KEY).await, Err(StoreError::Unavailable(_))), "it is silent");
    kill_process(pid, Signal::CONT).expect("goes on");
    assert_eq!(ours.claim(&KEY).await.expect("asked"), Hold::Ours);
    redis.kill();
    assert!(matches!(ours.claim(&KEY).await, Err(StoreError::Unavailable(_))));
    redis.start_with(&["--appendonly", "yes"]);
    assert_eq!(ours.claim(&KEY).await.expect("it is back"), Hold::Ours);
}

#[tokio::test]
async fn b7_what_somebody_else_wrote_there_is_neither_read_nor_changed() {
    let (redis, ours, _) = world();
    ours.claim(&KEY).await.expect("asked");
    let entry = redis.only_key();
    redis.ask(&format!("SET {entry} something"));
    let said = ours.claim(&KEY).await.expect_err("not ours").to_string();
    assert!(said.contains("clinch:orders:") && said.contains("delete it"), "{said}");
    assert_eq!(ours.keep(&KEY, &BODY, &first(7), TTL).await.expect("asked"), Held::Lost);
    assert_eq!(redis.ask(&format!("GET {entry}")), "something");
}

#[tokio::test]
async fn b7_settings_that_forget_are_found_out() {
    let (mut redis, ours, _) = world();
    assert!(ours.doubts().await.expect("asked").is_empty());
    redis.start_with(&["--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    // The first call finds that the old connection is gone.
    let doubts = match ours.doubts().await {
        Err(_) => ours.doubts().await.expect("asked"),
        Ok(doubts) => doubts,
    };
    assert!(doubts.len() == 2 && doubts[0].contains("appendonly") && doubts[1].contains("maxmemory-policy"));
}
