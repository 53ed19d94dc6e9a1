//! Pauses: what an operator stops stands still, on all nodes and through restarts, while events are accepted as before.

use crate::nodes::shared_postgres;
use crate::world::{Answer, PATIENCE, Reply, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BODY: &str = r#"{"order":7}"#;
const SETTINGS: &str = "integrations:\n  crm: {base_url: 'http://TARGET', idempotency: header}\n";
const STEP: &str = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";

/// Beside the usual one, a flow whose queue is that of a playbook.
const QUEUES: &str = "
queues:
  - name: orders
  - name: orders-dlq
  - name: playbook.cart
";
const CART: &str = "
version: 1
name: cart
triggers:
  - http: {path: /hooks/cart, idempotency: {key_from: 'header:Idempotency-Key', ttl: 48h}}
steps:
  - name: enqueue
    queue: {name: playbook.cart}
";
const CART_WORKER: &str = "
version: 1
name: cart
consumes: {queue: playbook.cart}
run:
  - name: remind
    http: {url: http://TARGET/remind, body_from: body, idempotency: header}
";

async fn world() -> World {
    World::new(&[
        ("clinch.yml", SETTINGS),
        ("queues.yml", QUEUES),
        ("flows/cart.yml", CART),
        ("workers/cart.yml", CART_WORKER),
        ("workers/charge.yml", &worker_with_step(STEP)),
    ])
    .await
}

async fn cart(world: &World, key: &str) -> JobId {
    world.deliver("/hooks/cart", &[("idempotency-key", key)], BODY).await.job()
}

async fn pause(world: &World, scope: &str, more: Value) -> Value {
    let mut ask = json!({"scope": scope, "reason": "their migration"});
    ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = world.command("/api/v1/pauses", ask).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn resume(world: &World, scope: &str) -> Answer {
    world.command(&format!("/api/v1/pauses/{scope}/resume"), json!({})).await
}

async fn listed(world: &World) -> Vec<String> {
    let told = world.admin("/api/v1/pauses").await.json();
    told["pauses"].as_array().unwrap().iter().map(|pause| pause["scope"].as_str().unwrap().to_string()).collect()
}

/// The job stands still, and that costs it nothing.
async fn stands_still(world: &World, job: JobId) {
    let story = world.wait_until(job, "paused", |story| story.row.waits == Some(Waits::Paused)).await;
    assert_eq!((story.row.word, story.row.attempts, story.row.failures), (Word::Waiting, 0, 0));
    // When another pause ends, who waits is called back, looks and is sent away again: for that moment it does not wait.
    let began = Instant::now();
    loop {
        let shown = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!((&shown["job"]["attempts"], &shown["job"]["failures"]), (&json!(0), &json!(0)), "{shown}");
        if shown["job"]["waits_for"] == "paused" {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it is never shown that it stands still: {shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_p4_what_is_paused_stands_still_at_no_cost_and_goes_on_when_it_is_resumed() {
    let world = world().await;
    for (before, scope) in ["flow:orders", "source:orders", "integration:crm"].into_iter().enumerate() {
        let told = pause(&world, scope, json!({})).await;
        assert_eq!((&told["pause"]["scope"], &told["before"]), (&json!(scope), &json!(false)));
        let job = world.post(scope, BODY).await.job();
        stands_still(&world, job).await;
        assert_eq!(world.target.calls_at("/charge").len(), before, "{scope}");
        // Others are not in its way.
        world.wait(cart(&world, scope).await, Word::Success).await;
        assert_eq!(resume(&world, scope).await.json()["resumed"], true);
        let story = world.wait(job, Word::Success).await;
        assert_eq!((story.row.attempts, story.row.failures), (1, 0), "waiting costs no attempt");
        assert_eq!(resume(&world, scope).await.json()["resumed"], false, "pressing twice is pressing once");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_of_a_paused_queue_no_job_is_taken_and_of_the_others_every_one() {
    let world = world().await;
    pause(&world, "queue:orders", json!({})).await;
    let jobs = [world.post("a", BODY).await.job(), world.post("b", BODY).await.job()];
    world.wait(cart(&world, "c").await, Word::Success).await;
    for job in jobs {
        assert_eq!(world.job(job).await.row.word, Word::Queued);
    }
    resume(&world, "queue:orders").await;
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    // The other way round, by the name of the playbook; a flow of its name is not meant.
    pause(&world, "playbook:cart", json!({})).await;
    let job = cart(&world, "d").await;
    stands_still(&world, job).await;
    world.post_and_wait("e", BODY, Word::Success).await;
    resume(&world, "playbook:cart").await;
    world.wait(job, Word::Success).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_what_runs_when_its_queue_is_paused_ends_and_the_next_waits() {
    let world = world().await;
    world.target.script("/charge", [Reply::Held, Reply::Status(200)]);
    let running = world.post("a", BODY).await.job();
    world.target.called(1).await;
    pause(&world, "queue:orders", json!({})).await;
    let next = world.post("b", BODY).await.job();
    world.target.release();
    world.wait(running, Word::Success).await;
    world.wait(cart(&world, "c").await, Word::Success).await;
    assert_eq!(world.job(next).await.row.word, Word::Queued);
    resume(&world, "queue:orders").await;
    world.wait(next, Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_paused_replays_wait_and_new_events_do_not() {
    let world = world().await;
    world.target.script("/charge", [Reply::Status(422), Reply::Status(200)]);
    let dead = world.post_and_wait("a", BODY, Word::Dead).await.row.id;
    pause(&world, "replays", json!({})).await;
    assert_eq!(world.replay(dead, json!({"reason": "fixed"})).await.json()["replayed"], true);
    world.wait_until(dead, "paused", |story| story.row.waits == Some(Waits::Paused)).await;
    world.post_and_wait("b", BODY, Word::Success).await;
    assert_eq!(world.target.calls_at("/charge").len(), 2);
    resume(&world, "replays").await;
    world.wait(dead, Word::Success).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_pause_survives_a_restart_and_is_seen_everywhere_with_who_and_why() {
    let mut world = world().await;
    let (code, said) = world.clinch(&["pause", "flow:orders", "--reason", "wrong prices", "--until", "2h"]).await;
    assert!(code == 0 && said.contains("flow:orders"), "{said}");
    let (code, said) = world.clinch(&["pauses", "-o", "table"]).await;
    assert!(code == 0 && said.contains("wrong prices") && said.contains("admin"), "{said}");
    let job = world.post("a", BODY).await.job();
    stands_still(&world, job).await;
    world.close().await;
    world.open(Roles::ALL).await;
    stands_still(&world, job).await;
    assert_eq!(listed(&world).await, ["flow:orders"]);
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_paused{scope="flow:orders"} 1"#), "{metrics}");
    let audit = world.admin("/api/v1/audit").await.json();
    let newest = &audit["audit"][0];
    assert_eq!((&newest["action"], &newest["reason"]), (&json!("pause.set"), &json!("wrong prices")));
    let (code, said) = world.clinch(&["resume", "flow:orders"]).await;
    assert!(code == 0 && said.contains("goes on"), "{said}");
    world.wait(job, Word::Success).await;
    assert!(!world.admin("/metrics").await.body.contains("clinch_paused{"));
    let (_, said) = world.clinch(&["pauses", "-o", "table"]).await;
    assert!(said.contains("nothing is paused"), "{said}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_pause_with_an_end_ends_by_itself_and_may_be_changed_before() {
    let world = world().await;
    pause(&world, "queue:orders", json!({"until": "1h"})).await;
    pause(&world, "flow:cart", json!({"until": "2s"})).await;
    let told = pause(&world, "queue:orders", json!({"until": "2s", "reason": "shorter"})).await;
    assert_eq!((&told["before"], &told["pause"]["reason"]), (&json!(true), &json!("shorter")));
    let job = world.post("a", BODY).await.job();
    world.wait(job, Word::Success).await;
    assert_eq!(listed(&world).await.iter().filter(|scope| *scope == "queue:orders").count(), 0);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_what_is_not_there_cannot_be_paused() {
    let world = world().await;
    for (scope, said) in [
        ("flow:odrers", "did you mean `orders`?"),
        ("queue:order", "did you mean `orders`?"),
        ("integration:cmr", "there is no integration `cmr`"),
        ("playbook:orders", "there is no playbook `orders`"),
        ("source:odrers", "did you mean `orders`?"),
    ] {
        let answer = world.command("/api/v1/pauses", json!({"scope": scope, "reason": "why"})).await;
        let problem = answer.check_problem(404, "not-found");
        assert!(problem["detail"].as_str().unwrap().contains(said), "{problem}");
    }
    for bad in [
        json!({"scope": "everything", "reason": "why"}),
        json!({"scope": "flow:orders"}),
        json!({"scope": "flow:orders", "reason": " "}),
        json!({"scope": "flow:orders", "reason": "why", "until": "2020-01-01T00:00:00Z"}),
        json!({"scope": "flow:orders", "reason": "why", "untill": "2h"}),
    ] {
        world.command("/api/v1/pauses", bad).await.check_problem(400, "bad-body");
    }
    assert_eq!(listed(&world).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_pause_on_one_node_counts_on_all() {
    let postgres = shared_postgres();
    let name = "pauses_on_all";
    tokio::task::block_in_place(|| postgres.create_database(name));
    let url = format!("postgres://clinch@127.0.0.1:{}/{name}", postgres.port());
    let (one, other) = (World::on(url.clone(), &[]).await, World::on(url, &[]).await);
    for scope in ["flow:orders", "queue:orders"] {
        pause(&one, scope, json!({})).await;
    }
    let began = Instant::now();
    while listed(&other).await.len() < 2 {
        assert!(began.elapsed() < PATIENCE, "the other never hears of it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    resume(&other, "queue:orders").await;
    let jobs = [one.post("a", BODY).await.job(), other.post("b", BODY).await.job()];
    for job in jobs {
        stands_still(&one, job).await;
    }
    assert_eq!((one.target.calls().len(), other.target.calls().len()), (0, 0));
    resume(&other, "flow:orders").await;
    for job in jobs {
        other.wait(job, Word::Success).await;
    }
    assert_eq!(one.target.calls().len() + other.target.calls().len(), 2);
}
