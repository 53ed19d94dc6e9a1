//! The overview, and what is heard as it happens: in the console, by the API and on the command line.

use crate::console_browser::{Browser, check_says};
use crate::process::eventually;
use crate::world::{PATIENCE, Reply, World, worker_with_step};
use clinch_core::job::Word;
use serde_json::{Value, json};
use std::time::Duration;

const BODY: &str = r#"{"order":7}"#;

/// One success, its duplicate, one refused by the target, one of unknown outcome, and one without a key.
async fn lived() -> World {
    let step = "  - name: charge\n    http: {url: http://TARGET/charge, body_from: body}\n";
    let world = World::new(&[("workers/charge.yml", &worker_with_step(step))]).await;
    world.post_and_wait("good", BODY, Word::Success).await;
    assert!(world.post("good", BODY).await.is_replayed());
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("bad", BODY, Word::Dead).await;
    world.target.script("/charge", [Reply::Drop]);
    world.post_and_wait("lost", BODY, Word::Dead).await;
    world.deliver("/hooks/orders", &[], BODY).await.check_problem(400, "idempotency-key-missing");
    // An end is counted a moment after it is on disk.
    eventually("all ends are counted", PATIENCE, async || {
        let window = &world.admin("/api/v1/overview?window=15m").await.json()["window"];
        (&window["success"], &window["dead"]) == (&json!(1), &json!(2))
    })
    .await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_the_overview_says_what_needs_a_person_and_what_to_run_first() {
    let world = lived().await;
    let told = world.admin("/api/v1/overview?window=15m").await.json();
    let needs: Vec<(&str, u64, &str)> = told["needs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|need| {
            (need["kind"].as_str().unwrap(), need["count"].as_u64().unwrap(), need["command"].as_str().unwrap())
        })
        .collect();
    let unknown = "clinch effects ls state:unknown integration:127.0.0.1";
    assert_eq!(needs, [("unknown_effects", 1, unknown), ("dead_letters", 2, "clinch dlq groups")], "{told}");
    let window = &told["window"];
    let counted = |name: &str| window[name].as_u64().unwrap();
    assert_eq!((counted("accepted"), counted("duplicates"), counted("rejected")), (3, 1, 1), "{window}");
    assert_eq!((counted("success"), counted("noop"), counted("dead")), (1, 0, 2), "{window}");
    assert_eq!(window["rejections"], json!([{"outcome": "malformed", "requests": 1}]));
    assert_eq!((&window["end_to_end"]["jobs"], &window["end_to_end"]["within_target"]), (&json!(3), &json!(1.0)));
    let parts: u64 = window["parts"].as_array().unwrap().iter().map(|part| part["accepted"].as_u64().unwrap()).sum();
    assert_eq!((window["parts"].as_array().unwrap().len(), parts), (15, 3));
    assert_eq!(world.admin("/api/v1/overview").await.json()["window"], Value::Null);
    world.admin("/api/v1/overview?window=2h").await.check_problem(400, "bad-query");

    let browser = Browser::of(&world).await;
    let page = browser.page("/?window=15m").await;
    check_says(
        &page,
        &[
            "Needs a person",
            "1 effect of unknown outcome",
            "href=\"/effects?state=unknown&#38;integration=127.0.0.1\"",
            "2 dead letters: jobs that gave up",
            "data-copy=\"clinch dlq groups\"",
            "<a href=\"/?window=15m\" aria-current=\"true\">15m</a>",
            "3 <span>accepted</span>",
            "1 duplicates</a>, 1 rejected",
            "Show as table",
            "href=\"/dead?reason=rejected_by_target\"",
            "100 % within 30 s",
        ],
    );
    assert!(!page.contains("style=") && !page.contains("onclick"), "nothing that the policy of the pages forbids");
    assert!(!page.contains("Nothing needs you"));
    assert_eq!(browser.get("/?window=2h").await.status, 400);

    let (code, text) = world.clinch(&["top", "--window", "15m"]).await;
    assert_eq!(code, 0, "{text}");
    check_says(&text, &["! 2 dead letters", unknown, "accepted 3   duplicates 1   rejected 1 (malformed 1)"]);
    let (code, text) = world.clinch(&["top", "--json"]).await;
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &document["schema"]), (0, &json!("clinch.overview/v1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_an_empty_house_says_that_nothing_needs_anybody_and_how_to_begin() {
    let world = World::new(&[]).await;
    let browser = Browser::of(&world).await;
    let page = browser.page("/").await;
    check_says(&page, &["Nothing needs you.", "No events yet", "clinch send /hooks/orders", "No dead letters."]);
    world.post_and_wait("k", BODY, Word::Success).await;
    assert!(!browser.page("/").await.contains("No events yet"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_jobs_that_wait_are_told_by_what_they_wait_for() {
    let world = World::new(&[]).await;
    let paused = world.command("/api/v1/pauses", json!({"scope": "flow:orders", "reason": "wrong prices"})).await;
    assert_eq!(paused.status, 200, "{paused:?}");
    let job = world.post("k", BODY).await.job();
    world.wait(job, Word::Waiting).await;
    let told = world.admin("/api/v1/overview").await.json();
    assert_eq!(
        (&told["waiting"][0]["waits_for"], &told["waiting"][0]["jobs"]),
        (&json!("paused"), &json!(1)),
        "{told}"
    );
    let page = Browser::of(&world).await.page("/").await;
    check_says(&page, &["Waiting for", "a pause to end 1</a>", "A wait is not a try."]);
}

/// Reads a stream until this is in it.
async fn hear(stream: &mut reqwest::Response, what: &str) -> String {
    let mut heard = String::new();
    while !heard.contains(what) {
        let chunk = tokio::time::timeout(PATIENCE, stream.chunk()).await;
        let chunk = chunk.unwrap_or_else(|_| panic!("`{what}` was not heard: {heard}")).unwrap().expect("it goes on");
        heard.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    heard
}

#[tokio::test(flavor = "multi_thread")]
async fn t101_a_page_that_stays_open_hears_nothing_more_when_its_log_in_is_over() {
    let world = World::new(&[]).await;
    let maya = Browser::of_user(&world, "maya", "viewer").await;
    let mut pulse = maya.open("/live").await;
    hear(&mut pulse, "event: pulse").await;
    let removed = world.command("/api/v1/users/maya/remove", json!({"reason": "left"})).await;
    assert_eq!(removed.status, 200, "{removed:?}");
    let rest = async { while pulse.chunk().await.unwrap().is_some() {} };
    tokio::time::timeout(PATIENCE, rest).await.expect("who was removed hears nothing more");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_what_happens_is_heard_as_it_happens_by_who_shows_a_token() {
    let world = World::new(&[]).await;
    let token = std::fs::read_to_string(world.data_dir().join("admin.token")).unwrap();
    let url = format!("http://{}/api/v1/stream", world.app().admin.unwrap());
    assert_eq!(world.admin_as(None, "/api/v1/stream").await.status, 401);
    world.admin("/api/v1/stream?only=ded").await.check_problem(400, "bad-query");

    let open = async |query: &str| {
        let request = world.client.get(format!("{url}{query}")).bearer_auth(token.trim());
        let stream = request.send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        stream
    };
    let (mut all, mut dead) = (open("").await, open("?only=dead").await);
    // Who has heard the first beat listens.
    hear(&mut all, "event: overview").await;
    hear(&mut dead, "event: overview").await;
    let email = r#"{"order":7,"email":"ada@example.com"}"#;
    // What happens is told by whom it happens to: one is heard before the next happens.
    world.post_and_wait("k", email, Word::Success).await;
    let mut heard = hear(&mut all, "\"what\":\"success\"").await;
    world.post("k", email).await;
    heard += &hear(&mut all, "\"what\":\"duplicate\"").await;
    world.target.script("/charge", [Reply::Status(403)]);
    let job = world.post_and_wait("bad", email, Word::Dead).await.row.id;
    heard += &hear(&mut all, "\"what\":\"dead\"").await;
    for what in ["accepted", "success", "duplicate", "dead"] {
        assert!(heard.contains(&format!("\"what\":\"{what}\"")), "{what}: {heard}");
    }
    assert!(heard.contains("auth_failed") && heard.contains(&job.to_string()), "{heard}");
    assert!(!heard.contains("ada@"), "nothing of an event is in it: {heard}");
    let heard = hear(&mut dead, "\"what\":\"dead\"").await;
    assert!(!heard.contains("accepted"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_clinch_listen_prints_a_line_for_what_happens_and_ends_after_so_many() {
    let world = World::new(&[]).await;
    let listen = ["listen", "--flow", "orders", "--only", "success", "--max", "2", "-o", "jsonl"];
    let heard = world.clinch(&listen);
    tokio::pin!(heard);
    // It is not known when it has begun to listen: something happens until it has heard enough.
    let mut nth = 0;
    let (code, text) = loop {
        tokio::select! {
            said = &mut heard => break said,
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                nth += 1;
                world.post(&format!("k-{nth}"), BODY).await.job();
                assert!(nth < 2_000, "nothing was heard");
            }
        }
    };
    let rows: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!((code, rows.len()), (0, 2), "{text}");
    assert!(rows.iter().all(|row| row["what"] == "success" && row["flow"] == "orders"), "{text}");
    let (code, text) = world.clinch(&["listen", "--only", "ded"]).await;
    assert_eq!(code, 2, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i3_clinch_open_prints_where_the_console_shows_it() {
    let world = World::new(&[]).await;
    let (code, text) = world.clinch(&["open", "job_01HZX5T0N8W2A"]).await;
    let base = format!("http://{}/login?code=", world.app().admin.unwrap());
    assert!(code == 0 && text.starts_with(&base) && text.contains("&back=%2Fjobs%2Fjob_01HZX5T0N8W2A\n"), "{text}");
    let (code, text) = world.clinch(&["open"]).await;
    assert!(code == 0 && text.starts_with(&base) && !text.contains("back="), "{text}");
    let (code, text) = world.clinch(&["open", "nowhere"]).await;
    assert!(code == 2 && text.contains("the pages are overview, jobs"), "{text}");
}
