//! Live values: what an operator sets over the files counts for the next decision, on all nodes and through restarts, on record, and
//! until it is taken back.

use crate::nodes::shared_postgres;
use crate::world::{Answer, PATIENCE, Reply, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BODY: &str = r#"{"order":7,"customer":"c-1"}"#;
const ATTEMPTS: &str = "worker.charge.retry.max_attempts";
const SETTINGS: &str = "integrations:\n  crm: {base_url: 'http://TARGET', idempotency: header, concurrency: 1}\n";
const STEP: &str = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";

async fn set(world: &World, name: &str, value: &str) -> Value {
    let answer = world.put(&format!("/api/v1/settings/{name}"), json!({"value": value, "reason": "INC-482"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn unset(world: &World, name: &str) -> Value {
    let answer = world.delete(&format!("/api/v1/settings/{name}"), json!({"reason": "over"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn shown(world: &World, name: &str) -> Value {
    let answer = world.admin(&format!("/api/v1/settings/{name}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// How often a job that always fails is tried before it is a dead letter.
async fn attempts(world: &World, key: &str) -> u32 {
    world.post_and_wait(key, BODY, Word::Dead).await.row.attempts
}

async fn failing(files: &[(&str, &str)]) -> World {
    let world = World::new(files).await;
    world.target.script("/charge", [Reply::Status(500)]);
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_attempts_that_are_set_count_for_the_next_failure_and_are_taken_back() {
    let world = failing(&[]).await;
    assert_eq!(attempts(&world, "a").await, 3, "as the file says");
    let told = set(&world, ATTEMPTS, "2").await;
    assert_eq!((&told["before"]["value"], &told["after"]["value"]), (&json!("3"), &json!("2")));
    assert!(told["after"]["means"].as_str().unwrap().contains("after 2 attempts"), "{told}");
    assert_eq!(attempts(&world, "b").await, 2);
    set(&world, ATTEMPTS, "5").await;
    assert_eq!(attempts(&world, "c").await, 5);
    unset(&world, ATTEMPTS).await;
    assert_eq!(attempts(&world, "d").await, 3);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_is_set_while_an_attempt_runs_decides_what_becomes_of_its_failure() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Hung(500), Reply::Status(500)]);
    let job = world.post("a", BODY).await.job();
    world.target.called(1).await;
    set(&world, ATTEMPTS, "1").await;
    world.target.release();
    let story = world.wait(job, Word::Dead).await;
    assert_eq!((story.row.attempts, world.target.calls().len()), (1, 1));
    world.close_and_verify().await;
}
