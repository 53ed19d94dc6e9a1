//! Safe mode: what cannot be taken back waits, or is said in a safer way, and is let go at a bearable rate.

use crate::nodes::shared_postgres;
use crate::world::{Call, PATIENCE, Reply, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BODY: &str = r#"{"email":"ada@example.com"}"#;

/// A partner in which things are made, one in which something is only moved from one state to another, and one that carries messages.
const PARTNERS: &str = "
integrations:
  crm: {base_url: 'http://TARGET', idempotency: header BREAKER}
  books: {base_url: 'http://TARGET', idempotency: natural, class: state}
  mail: {base_url: 'http://TARGET', idempotency: header, message: {url: /mail}}
";
const NOTE: &str = "  - name: note\n    http: {integration: books, url: /books, body_from: body}\n";
const CHARGE: &str = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
const REMIND: &str =
    "  - name: remind\n    send_template: {integration: mail, template: cart, to: '{{ body.email }}'}\n";

async fn world(safe_mode: &str, steps: &str) -> World {
    with_breaker("", safe_mode, steps).await
}

async fn with_breaker(breaker: &str, safe_mode: &str, steps: &str) -> World {
    let settings = PARTNERS.replace(" BREAKER", breaker) + safe_mode;
    World::new(&[
        ("clinch.yml", &settings),
        ("workers/charge.yml", &worker_with_step(steps)),
        ("templates/cart.txt", "Half of it for you!\n"),
        ("templates/cart-safe.txt", "You left something here.\n"),
        ("templates/other.txt", "Hello.\n"),
    ])
    .await
}

async fn on(world: &World, ask: Value) -> Value {
    let answer = world.command("/api/v1/safe-mode", ask).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn off(world: &World, ask: Value) -> Value {
    let answer = world.command("/api/v1/safe-mode/off", ask).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn status(world: &World) -> Value {
    world.admin("/api/v1/safe-mode").await.json()
}

async fn held(world: &World, job: JobId) {
    let story = world.wait_until(job, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    assert_eq!((story.row.word, story.row.attempts, story.row.failures), (Word::Waiting, 0, 0));
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_p4_what_cannot_be_taken_back_waits_through_a_restart_and_the_rest_is_done() {
    let mut world = world("", &format!("{NOTE}{CHARGE}")).await;
    let (code, said) = world.clinch(&["safe-mode", "on", "--reason", "wrong price", "-o", "table"]).await;
    assert!(code == 0 && said.contains("safe mode is ON for all"), "{said}");
    let jobs = [world.post("a", BODY).await.job(), world.post("b", BODY).await.job()];
    for job in jobs {
        held(&world, job).await;
    }
    assert_eq!((world.target.calls_at("/books").len(), world.target.calls_at("/charge").len()), (2, 0));
    world.close().await;
    world.open(Roles::ALL).await;
    for job in jobs {
        held(&world, job).await;
    }
    let told = status(&world).await;
    assert_eq!((&told["on"][0]["scope"], &told["on"][0]["reason"]), (&json!("all"), &json!("wrong price")));
    // One that asks again at this very moment does not wait: so each is looked at until both do.
    eventually("two that wait", async || {
        let held = &status(&world).await["held"][0];
        (&held["flow"], &held["jobs"]) == (&json!("orders"), &json!(2)) && held["oldest_at"].is_string()
    })
    .await;
    eventually("a plan", async || {
        let (_, said) = world.clinch(&["safe-mode", "off", "--dry-run", "-o", "table"]).await;
        assert!(said.contains("nothing was changed"), "{said}");
        said.contains("2 jobs wait; at 20/1s") && said.contains("orders: 2")
    })
    .await;
    eventually("a metric", async || {
        let metrics = world.admin("/metrics").await.body;
        assert!(metrics.contains(r#"clinch_safe_mode{scope="all"} 1"#), "{metrics}");
        metrics.contains(r#"clinch_jobs_waiting{flow="orders",why="safe_mode"} 2"#)
    })
    .await;
    let (code, said) = world.clinch(&["safe-mode", "off", "-o", "table"]).await;
    assert!(code == 0 && said.contains("safe mode is off for all"), "{said}");
    for job in jobs {
        let story = world.wait(job, Word::Success).await;
        assert_eq!((story.row.attempts, story.row.failures), (1, 0), "waiting costs no attempt");
    }
    assert_eq!((world.target.calls_at("/books").len(), world.target.calls_at("/charge").len()), (2, 2));
    let audit = world.admin("/api/v1/audit?action=safe_mode.*").await.json();
    let actions: Vec<&str> =
        audit["audit"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["safe_mode.off", "safe_mode.on"]);
    assert!(world.admin("/metrics").await.body.contains(r#"clinch_safe_mode{scope="all"} 0"#));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_it_counts_for_an_integration_or_a_flow_and_for_no_other() {
    let world = world("", &format!("{REMIND}{CHARGE}")).await;
    on(&world, json!({"scope": "integration:crm", "reason": "their outage"})).await;
    let job = world.post("a", BODY).await.job();
    held(&world, job).await;
    assert_eq!((world.target.calls_at("/mail").len(), world.target.calls_at("/charge").len()), (1, 0));
    let told = off(&world, json!({"scope": "integration:mail"})).await;
    assert_eq!(told["changed"], json!([]), "it was not on there");
    assert_eq!(off(&world, json!({})).await["changed"][0]["scope"], "integration:crm");
    world.wait(job, Word::Success).await;
    on(&world, json!({"scope": "flow:orders", "reason": "a wrong text"})).await;
    let job = world.post("b", BODY).await.job();
    held(&world, job).await;
    assert_eq!(world.target.calls_at("/mail").len(), 1);
    off(&world, json!({})).await;
    world.wait(job, Word::Success).await;
    for (bad, status, slug) in [
        (json!({"scope": "flow:odrers", "reason": "x"}), 404, "not-found"),
        (json!({"scope": "queue:orders", "reason": "x"}), 400, "bad-body"),
        (json!({"scope": "all"}), 400, "bad-body"),
        (json!({"scope": "all", "reason": "x", "until": "yesterday"}), 400, "bad-body"),
    ] {
        world.command("/api/v1/safe-mode", bad).await.check_problem(status, slug);
    }
    world.command("/api/v1/safe-mode/off", json!({"drain": "fast"})).await.check_problem(400, "bad-body");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_message_with_a_safer_template_is_sent_with_it_and_others_wait() {
    let other = REMIND.replace("name: remind", "name: greet").replace("template: cart", "template: other");
    let world = world("safe_mode: {templates: {cart: cart-safe}}\n", &format!("{REMIND}{other}")).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    on(&world, json!({"reason": "the discount is wrong"})).await;
    let job = world.post("b", BODY).await.job();
    held(&world, job).await;
    off(&world, json!({})).await;
    world.wait(job, Word::Success).await;
    world.post_and_wait("c", BODY, Word::Success).await;
    let said: Vec<String> = world.target.calls_at("/mail").into_iter().map(|call| call.body).collect();
    let (loud, safe, hello) = ("Half of it for you!", "You left something here.", "Hello.");
    let expected = [loud, hello, safe, hello, loud, hello];
    assert_eq!(said.len(), expected.len(), "{said:?}");
    assert!(said.iter().zip(expected).all(|(said, expected)| said.contains(expected)), "{said:?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_what_waited_too_long_ends_as_a_noop_that_says_so_and_a_replay_does_not() {
    let world = world("safe_mode: {max_age: 1s}\n", CHARGE).await;
    world.target.script("/charge", [Reply::Status(422), Reply::Status(200)]);
    let dead = world.post_and_wait("dead", BODY, Word::Dead).await.row.id;
    on(&world, json!({"reason": "wrong price"})).await;
    world.replay(dead, json!({"reason": "fixed"})).await;
    let story = world.post_and_wait("a", BODY, Word::Noop).await;
    assert_eq!(story.row.reason, Some(Reason::TooOld));
    let last = story.attempts.last().unwrap();
    assert!(last.error.as_deref().is_some_and(|error| error.contains("waited in safe mode")), "{last:?}");
    world.wait_until(dead, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    off(&world, json!({})).await;
    world.wait(dead, Word::Success).await;
    assert_eq!(world.target.calls_at("/charge").len(), 2);
    world.close_and_verify().await;
}

/// From then on no call was let go before its turn, at so many in a second. On a busy machine one may be late, and so come close
/// to the next: the turns count, and not the distance of two calls.
fn kept(began: Instant, calls: &[Call], rate: u32) {
    for (turn, call) in (0u32..).zip(calls) {
        let (after, due) = (call.at - began, Duration::from_secs(1) / rate * turn);
        assert!(after >= due, "call {turn} came after {after:?}, its turn was after {due:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_what_waited_is_let_go_at_the_rate_that_was_chosen() {
    let world = world("safe_mode: {drain: 1000/s}\n", CHARGE).await;
    on(&world, json!({"reason": "wrong price"})).await;
    let mut jobs = Vec::new();
    for nth in 0..15 {
        jobs.push(world.post(&format!("k{nth}"), BODY).await.job());
    }
    for job in &jobs {
        held(&world, *job).await;
    }
    let began = Instant::now();
    let told = off(&world, json!({"drain": "5/s"})).await;
    assert!(told["held_jobs"].as_u64().is_some_and(|jobs| (1..=15).contains(&jobs)), "{told}");
    assert_eq!(told["drain"], "5/1s");
    for job in &jobs {
        let story = world.wait(*job, Word::Success).await;
        assert_eq!((story.row.attempts, story.row.failures), (1, 0));
    }
    assert_eq!(world.target.calls().len(), 15);
    kept(began, &world.target.calls(), 5);
    assert_eq!(status(&world).await["draining"][0]["scope"], "all");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_safe_mode_with_an_end_ends_by_itself() {
    let world = world("", CHARGE).await;
    on(&world, json!({"reason": "a moment", "until": "1h"})).await;
    let job = world.post("a", BODY).await.job();
    held(&world, job).await;
    // It is held for sure before the end is near.
    on(&world, json!({"reason": "a moment", "until": "1s"})).await;
    world.wait(job, Word::Success).await;
    assert_eq!(status(&world).await["on"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_circuit_that_opens_turns_it_on_once_on_record() {
    // Nobody is let through to see whether it is well before safe mode is on: that would be somebody's last attempt.
    let breaker = ", breaker: {min_calls: 2, open_for: 5s, probes: 1}";
    let world = with_breaker(breaker, "safe_mode: {trip: {circuits: [crm], scope: all}}\n", CHARGE).await;
    world.target.script("/charge", [Reply::Status(503)]);
    let jobs = [world.post("a", BODY).await.job(), world.post("b", BODY).await.job()];
    eventually("safe mode", async || !status(&world).await["on"].as_array().unwrap().is_empty()).await;
    let told = status(&world).await;
    assert_eq!((&told["on"][0]["scope"], &told["on"][0]["actor"]), (&json!("all"), &json!("clinch")));
    for job in jobs {
        world.wait_until(job, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    }
    let audit = world.admin("/api/v1/audit?action=safe_mode.*").await.json();
    let row = &audit["audit"][0];
    assert_eq!((&row["action"], audit["audit"].as_array().unwrap().len()), (&json!("safe_mode.trip"), 1));
    assert!(row["reason"].as_str().unwrap().contains("the circuit of integration `crm` opened"), "{row}");
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_safe_mode_trips_total{scope="all"} 1"#), "{metrics}");
    world.target.script("/charge", [Reply::Status(200)]);
    off(&world, json!({})).await;
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_share_of_errors_turns_it_on_for_that_integration_alone() {
    let rule = "safe_mode: {trip: {errors: {percent: 50, min_calls: 2}}}\n";
    let world = with_breaker(", breaker: none", rule, &format!("{CHARGE}{REMIND}")).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Status(503), Reply::Status(200)]);
    let jobs = [world.post("a", BODY).await.job(), world.post("b", BODY).await.job()];
    eventually("safe mode", async || !status(&world).await["on"].as_array().unwrap().is_empty()).await;
    assert_eq!(status(&world).await["on"][0]["scope"], "integration:crm");
    off(&world, json!({})).await;
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_share_of_errors_counts_for_a_partner_that_was_called_before_it_was_said() {
    let world = with_breaker(", breaker: none", "", CHARGE).await;
    world.post_and_wait("before", BODY, Word::Success).await;
    let rule = "safe_mode: {trip: {errors: {percent: 50, min_calls: 2}}}\n";
    world.write("clinch.yml", &(PARTNERS.replace(" BREAKER", ", breaker: none") + rule));
    let directory = world.workspace_dir().display().to_string();
    let (code, said) = world.clinch(&["apply", &directory, "--reason", "more care", "--yes"]).await;
    assert_eq!(code, 0, "{said}");
    world.target.script("/charge", [Reply::Status(503), Reply::Status(503), Reply::Status(200)]);
    let jobs = [world.post("a", BODY).await.job(), world.post("b", BODY).await.job()];
    eventually("safe mode", async || !status(&world).await["on"].as_array().unwrap().is_empty()).await;
    off(&world, json!({})).await;
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_contact_gets_no_more_messages_than_the_cap_allows() {
    let world = world("safe_mode: {hold: false, cap: {max: 2, per: 1h}}\n", REMIND).await;
    let bob = r#"{"email":"bob@example.com"}"#;
    // What was sent before is not counted, and calls that are no messages are not capped.
    world.post_and_wait("before", BODY, Word::Success).await;
    on(&world, json!({"reason": "they complain"})).await;
    world.target.script("/mail", [Reply::Status(503), Reply::Status(200)]);
    let first = world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(first.row.attempts, 2, "a message that is tried again is one message");
    world.post_and_wait("b", r#"{"email":" ADA@example.com "}"#, Word::Success).await;
    for nth in 0..3 {
        let story = world.post_and_wait(&format!("c{nth}"), BODY, Word::Noop).await;
        assert_eq!(story.row.reason, Some(Reason::PolicyDenied));
        let error = story.attempts.last().unwrap().error.clone().unwrap();
        assert!(error.contains("at most 2 messages in 1h") && !error.contains("ada@"), "{error}");
    }
    world.post_and_wait("d", bob, Word::Success).await;
    off(&world, json!({})).await;
    world.post_and_wait("e", BODY, Word::Success).await;
    assert_eq!(world.target.calls_at("/mail").len(), 6);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_it_counts_on_all_nodes_and_they_let_go_together_at_one_rate() {
    let postgres = shared_postgres();
    let name = "safe_mode_on_all";
    tokio::task::block_in_place(|| postgres.create_database(name));
    let url = format!("postgres://clinch@127.0.0.1:{}/{name}", postgres.port());
    let (one, other) = (World::on(url.clone(), &[]).await, World::on(url, &[]).await);
    on(&one, json!({"reason": "wrong price"})).await;
    eventually("the news", async || !status(&other).await["on"].as_array().unwrap().is_empty()).await;
    let mut jobs = Vec::new();
    for nth in 0..6 {
        jobs.push(one.post(&format!("one{nth}"), r#"{}"#).await.job());
        jobs.push(other.post(&format!("other{nth}"), r#"{}"#).await.job());
    }
    for job in &jobs {
        held(&one, *job).await;
    }
    assert_eq!(one.target.calls().len() + other.target.calls().len(), 0);
    let began = Instant::now();
    off(&other, json!({"drain": "4/s"})).await;
    for job in &jobs {
        one.wait(*job, Word::Success).await;
    }
    let mut calls = [one.target.calls(), other.target.calls()].concat();
    calls.sort_by_key(|call| call.at);
    assert_eq!(calls.len(), 12);
    // Who has not heard of the end holds on a little longer; nobody is faster.
    kept(began, &calls, 4);
}
