//! Installations with stores of their own that share their keys in one Redis: real processes, a real Redis.

use super::process::{Fault, ONCE, PATIENCE, Place, Server, Tracer, client, eventually};
use super::redis_server::Redis;
use clinch_store::redis::PENDING_MAX;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const FIRST: &str = r#"{"id":"first"}"#;
const OTHER: &str = r#"{"id":"other"}"#;
/// Before something that was refused for the moment is sent again.
const PAUSE: Duration = Duration::from_millis(100);

/// An installation whose only flow shares its keys.
async fn installation(redis: &Redis) -> Place {
    let place = Place::new(&[ONCE]).await;
    place.write("clinch.yml", &format!("kv:\n  once: {{url: '{}', pepper: '${{secrets.PEPPER}}'}}\n", redis.url()));
    place
}

const PEPPER: (&str, &str) = ("PEPPER", "the same everywhere");

async fn start(place: &Place) -> Server {
    place.start_with(&[PEPPER]).await
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    body: String,
    replayed: bool,
    retry_after: bool,
    trace: String,
}

async fn post(server: &Server, key: &str, body: &'static str) -> Told {
    let request = client().post(server.hook("once")).header("idempotency-key", key).body(body);
    let answer = request.send().await.unwrap();
    Told {
        status: answer.status().as_u16(),
        replayed: answer.headers().contains_key("idempotent-replayed"),
        retry_after: answer.headers().contains_key("retry-after"),
        trace: answer.headers()["clinch-trace-id"].to_str().unwrap().to_string(),
        body: answer.text().await.unwrap(),
    }
}

/// The same by a sender that sends again what an installation refuses because it does not hear Redis for a second.
async fn send(server: &Server, key: &str, body: &'static str) -> Told {
    let began = Instant::now();
    loop {
        let told = post(server, key, body).await;
        if told.status != 503 || began.elapsed() > PATIENCE {
            return told;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn problem(told: &Told) -> String {
    let body: Value = serde_json::from_str(&told.body).unwrap();
    body["type"].as_str().unwrap().trim_start_matches("urn:clinch:problem:").to_string()
}

fn accepted(place: &Place) -> i64 {
    place.report().accepted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_p2_a_thousand_posts_of_one_key_to_two_installations_make_one_event() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    let (first, second) = (start(&one).await, start(&two).await);
    let (client, began) = (client(), Instant::now());
    let posts: Vec<_> = (0..1_000)
        .map(|nth| {
            let server = if nth % 2 == 0 { &first } else { &second };
            let request = client.post(server.hook("once")).header("idempotency-key", "k").body(FIRST);
            tokio::spawn(async move {
                loop {
                    let answer = request.try_clone().unwrap().send().await.unwrap();
                    let status = answer.status().as_u16();
                    let replayed = answer.headers().contains_key("idempotent-replayed");
                    let body = answer.text().await.unwrap();
                    // A Redis that is not heard for a second, or a key that is being stored for two: who sent it sends it again.
                    if ![409, 503].contains(&status) || began.elapsed() > 2 * PATIENCE {
                        return (status, replayed, body);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for post in posts {
        answers.push(post.await.unwrap());
    }
    assert_eq!(answers.iter().filter(|(_, replayed, _)| !replayed).count(), 1, "one of them did the work");
    assert!(answers.iter().all(|(status, _, body)| (*status, body) == (202, &answers[0].2)), "{answers:?}");
    assert_eq!(accepted(&one) + accepted(&two), 1);
    one.drained().await;
    two.drained().await;
    assert_eq!(one.sink.count() + two.sink.count(), 1);
    let metrics = |server: &Server| client.get(format!("{}/metrics", server.admin)).send();
    let metrics =
        metrics(&first).await.unwrap().text().await.unwrap() + &metrics(&second).await.unwrap().text().await.unwrap();
    let counted = |outcome: &str| -> u64 {
        let series = format!("clinch_intake_requests_total{{source=\"once\",outcome=\"{outcome}\"}} ");
        metrics.lines().filter_map(|line| line.strip_prefix(series.as_str())?.parse::<u64>().ok()).sum()
    };
    assert_eq!((counted("accepted"), counted("duplicate")), (1, 999));
    first.stop().await;
    second.stop().await;
    one.verified();
    two.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_b7_another_body_never_overwrites_the_first_of_another_installation() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    let (first, second) = (start(&one).await, start(&two).await);
    let told = send(&first, "k", FIRST).await;
    assert_eq!((told.status, told.replayed), (202, false));
    let conflict = send(&second, "k", OTHER).await;
    assert_eq!((conflict.status, problem(&conflict).as_str()), (422, "idempotency-key-reused"));
    let job: Value = serde_json::from_str(&told.body).unwrap();
    assert!(conflict.body.contains(job["job_id"].as_str().unwrap()), "{conflict:?}");
    assert_eq!(conflict.trace, told.trace, "it is in the trace of the first, which is elsewhere");
    assert_eq!(send(&second, "k", FIRST).await, Told { replayed: true, ..told });
    assert_eq!((accepted(&one), accepted(&two)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_b7_a_shared_key_is_remembered_for_its_ttl_from_acceptance_on() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    let (first, second) = (start(&one).await, start(&two).await);
    send(&first, "k", FIRST).await;
    let entry = redis.only_key();
    let rest: u64 = redis.ask(&format!("PTTL {entry}")).parse().unwrap();
    let ttl = Duration::from_secs(48 * 3_600);
    assert!(rest <= ttl.as_millis() as u64 && rest > (ttl - PATIENCE).as_millis() as u64, "{rest} ms");
    assert!(!entry.contains("first") && !redis.ask(&format!("GET {entry}")).contains("first"));
    redis.ask(&format!("PEXPIRE {entry} 1"));
    eventually("it expires", PATIENCE, async || redis.ask("DBSIZE") == "0").await;
    assert!(!send(&second, "k", OTHER).await.replayed);
    assert_eq!((accepted(&one), accepted(&two)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p10_b7_without_redis_nothing_is_accepted_and_with_it_again() {
    let mut redis = Redis::start();
    let place = installation(&redis).await;
    let server = start(&place).await;
    assert_eq!(post(&server, "before", FIRST).await.status, 202);
    let refused = async |key: &str| {
        let told = post(&server, key, FIRST).await;
        assert_eq!((told.status, told.retry_after, problem(&told).as_str()), (503, true, "storage-unavailable"));
    };
    let pid = Pid::from_raw(redis.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    refused("silent").await;
    kill_process(pid, Signal::CONT).unwrap();
    redis.kill();
    refused("gone").await;
    assert_eq!(accepted(&place), 1);
    redis.start_with(&["--appendonly", "yes"]);
    let told = post(&server, "gone", FIRST).await;
    assert_eq!((told.status, told.replayed), (202, false));
    assert!(post(&server, "before", FIRST).await.replayed);
    let said = server.said();
    assert!(said.contains("answered 503 until it is back") && said.contains("it is back"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_house_opens_its_doors_without_redis() {
    let mut redis = Redis::start();
    redis.kill();
    let place = installation(&redis).await;
    let server = start(&place).await;
    assert_eq!(post(&server, "k", FIRST).await.status, 503);
    redis.start_with(&[]);
    assert_eq!(post(&server, "k", FIRST).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_b7_a_redis_that_lost_its_memory_lets_duplicates_through_only_between_installations() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    let (first, second) = (start(&one).await, start(&two).await);
    let told = send(&first, "k", FIRST).await;
    redis.ask("FLUSHALL");
    assert_eq!(send(&first, "k", FIRST).await, Told { replayed: true, ..told.clone() });
    assert_eq!(send(&second, "k", FIRST).await, Told { replayed: true, ..told }, "and the first told it again");
    redis.ask("FLUSHALL");
    assert!(!send(&second, "k", FIRST).await.replayed, "nobody could know");
    assert_eq!((accepted(&one), accepted(&two)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_delivery_that_could_not_be_stored_leaves_its_key_to_the_others() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    let (first, second) = (start(&one).await, start(&two).await);
    let fault = Fault { calls: "pwrite64", file: None, then: "error=EIO:when=1" };
    let Some(tracer) = Tracer::hold_writer(&one, &first, fault).await else { return };
    assert_eq!(post(&first, "k", FIRST).await.status, 503);
    assert!(tracer.end().contains("INJECTED"));
    let told = send(&second, "k", FIRST).await;
    assert_eq!((told.status, told.replayed), (202, false));
    assert_eq!(send(&first, "k", FIRST).await, Told { replayed: true, ..told });
    assert_eq!((accepted(&one), accepted(&two)), (0, 1));
}

/// Stores the event and dies before anybody is told.
async fn crashed_after_accept(place: &Place) {
    let mut server = place.start_with(&[PEPPER, ("CLINCH_CRASH_AT", "after_accept")]).await;
    let request = client().post(server.hook("once")).header("idempotency-key", "k").body(FIRST);
    assert!(request.send().await.is_err(), "nobody is answered");
    assert_eq!(server.exited().await.signal(), Some(6), "{}", server.said());
    assert_eq!(accepted(place), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_b7_a_crash_before_others_are_told_is_told_after_the_restart() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    // It runs before the crash: the key is held for half a minute, of which a start takes its part.
    let second = start(&two).await;
    crashed_after_accept(&one).await;
    let told = send(&second, "k", FIRST).await;
    assert_eq!((told.status, told.retry_after, problem(&told).as_str()), (409, true, "idempotency-in-flight"));
    let first = start(&one).await;
    let told = send(&first, "k", FIRST).await;
    assert_eq!((told.status, told.replayed), (202, true));
    assert_eq!(send(&second, "k", FIRST).await, told);
    assert_eq!((accepted(&one), accepted(&two)), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_an_installation_that_died_and_stays_away_does_not_hold_a_key_for_long() {
    let redis = Redis::start();
    let (one, two) = (installation(&redis).await, installation(&redis).await);
    crashed_after_accept(&one).await;
    let entry = redis.only_key();
    let rest: i64 = redis.ask(&format!("PTTL {entry}")).parse().unwrap();
    assert!(rest > 0 && rest <= PENDING_MAX.as_millis() as i64, "{rest} ms");
    redis.ask(&format!("PEXPIRE {entry} 1"));
    let second = start(&two).await;
    assert_eq!(send(&second, "k", FIRST).await.status, 202);
    assert_eq!(accepted(&two), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b7_a_redis_that_may_forget_is_said_at_the_start() {
    let mut redis = Redis::start();
    redis.start_with(&["--appendonly", "no"]);
    let place = installation(&redis).await;
    let server = start(&place).await;
    eventually("it is said", PATIENCE, async || server.said().contains("kv:once: appendonly is off")).await;
    assert!(server.said().contains("CL0118"), "the warning of the check: {}", server.said());
}
