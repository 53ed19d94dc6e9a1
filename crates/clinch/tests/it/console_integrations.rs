//! Integrations in the console: what this node sees of partners, and a pause for one.

use crate::console_browser::{Browser, check_says};
use crate::process::eventually;
use crate::world::{PATIENCE, Reply, World, worker_with_step};
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};

const BODY: &str = r#"{"order":7}"#;

async fn world(settings: &str) -> World {
    let clinch = format!("integrations:\n  crm:\n    base_url: http://TARGET\n{settings}");
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await
}

async fn crm(world: &World) -> Value {
    world.admin("/api/v1/integrations/crm").await.json()["integration"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_an_open_circuit_is_seen_with_its_cause_and_with_what_waits_for_it() {
    let settings =
        "    breaker: {min_calls: 2, open_for: 1h}\n    idempotency: natural\n    concurrency: 4\n    rate: 100/10s\n";
    let world = world(settings).await;
    let before = crm(&world).await;
    assert_eq!(
        (&before["circuit"]["state"], &before["calls"], &before["p95"]),
        (&json!("closed"), &json!(0), &Value::Null)
    );
    world.target.script("/charge", [Reply::Status(503), Reply::Status(503)]);
    // Its second try opens it.
    world.post("a", BODY).await;
    eventually("the circuit opens", PATIENCE, async || crm(&world).await["circuit"]["state"] == "open").await;
    for key in ["b", "c"] {
        let job = world.post(key, BODY).await.job();
        let waiting = world.wait(job, Word::Waiting).await;
        assert_eq!(waiting.row.waits, Some(Waits::Circuit));
    }
    eventually("all wait", PATIENCE, async || crm(&world).await["waiting"] == 3).await;

    let told = crm(&world).await;
    assert_eq!((&told["calls"], &told["failed"], &told["ok"]), (&json!(2), &json!(2), &json!(0.0)), "{told}");
    assert!(told["p95"].is_number() && told["circuit"]["probe_at"].is_string(), "{told}");
    assert_eq!(told["circuit"]["why"], "2 of 2 calls within 30s failed; the limit is 50 %");
    assert_eq!((&told["rate"], &told["concurrency"], &told["in_flight"]), (&json!("100/10s"), &json!(4), &json!(0)));
    assert_eq!(told["flows"], json!(["orders"]));
    assert_eq!(told["circuit"]["turns"].as_array().unwrap().len(), 1);
    let needs = world.admin("/api/v1/overview").await.json()["needs"].clone();
    let need = (&needs[0]["kind"], &needs[0]["about"], &needs[0]["command"]);
    assert_eq!(need, (&json!("circuit"), &json!("crm"), &json!("clinch integrations show crm")), "{needs}");

    let browser = Browser::of(&world).await;
    check_says(
        &browser.page("/integrations").await,
        &["crm", "open (cut off)", "0 %", "0 / 4", "100/10s", "this node"],
    );
    let page = browser.page("/integrations/crm?window=1h").await;
    check_says(
        &page,
        &[
            "Circuit open (cut off)",
            "2 of 2 calls within 30s failed",
            "3 jobs</a> of its flows",
            "<rect class=\"open\"",
        ],
    );
    // As what needs a person, or by then as an alert.
    let page = browser.page("/").await;
    check_says(&page, &["href=\"/integrations/crm\""]);
    assert!(page.contains("Circuit open") || page.contains("ClinchCircuitOpen:crm"), "{page}");
    let (code, text) = world.clinch(&["integrations", "ls"]).await;
    assert!(code == 0 && text.contains("crm\topen\t2\t0 %\t"), "{text}");
    let (code, text) = world.clinch(&["integrations", "show", "crm"]).await;
    assert!(code == 0 && text.contains("2 of 2 calls within 30s failed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_a_partner_is_left_alone_and_called_again_from_its_page() {
    let world = world("    idempotency: natural\n").await;
    let browser = Browser::of(&world).await;
    check_says(
        &browser.page("/integrations/crm").await,
        &["Circuit closed", "Pause crm", "clinch pause integration:crm"],
    );
    let ask = [("until", "2h"), ("reason", "their migration")];
    browser.check_guarded("/integrations/crm/pause", &ask).await;
    assert_eq!(crm(&world).await["paused"], Value::Null, "nothing was changed");
    assert_eq!(browser.post("/integrations/crm/pause", &ask[..1]).await.status, 400, "a reason is needed");
    let page = browser.follow("/integrations/crm/pause", &ask).await;
    check_says(
        &page,
        &["It is not called any more.", "their migration", "Call it again", "clinch resume integration:crm"],
    );
    let job = world.post("k", BODY).await.job();
    world.wait_until(job, "held", |story| story.row.waits == Some(Waits::Paused)).await;
    browser.check_guarded("/integrations/crm/resume", &[]).await;
    check_says(&browser.follow("/integrations/crm/resume", &[]).await, &["It is called again.", "Pause crm"]);
    world.wait(job, Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_partner_that_is_not_there_is_not_found() {
    let world = world("").await;
    let told = world.admin("/api/v1/integrations/nobody").await.check_problem(404, "not-found");
    assert!(told["detail"].as_str().unwrap().contains("crm"), "{told}");
    assert_eq!(Browser::of(&world).await.get("/integrations/nobody").await.status, 404);
    world.admin("/api/v1/integrations?window=7d").await.check_problem(400, "bad-query");
    let (code, _) = world.clinch(&["integrations", "show", "nobody"]).await;
    assert_eq!(code, 3);
}
