//! What operators and machines see: health, metrics, and the admin API with everything that it must not show.

use crate::world::{Answer, FLOW, NO_WORKER, OK, PATIENCE, Reply, World, check_absent};
use clinch_core::job::Word;
use serde_json::{Value, json};
use std::collections::HashMap;

const BODY: &str = r#"{"order":7,"email":"ada@example.com"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn j1_health_is_open_and_says_whether_work_may_be_sent() {
    let world = World::new(&[]).await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(world.admin_as(None, path).await.status, 200, "{path}");
    }
    assert_eq!(world.admin_as(None, "/readyz").await.json(), json!({"status": "ready"}));
    // None of it is on the public side.
    for path in ["/healthz", "/metrics", "/api/v1/jobs"] {
        world.deliver(path, &[], "").await.check_problem(404, "not-found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_is_for_who_has_the_token() {
    let world = World::new(&[]).await;
    let paths = ["overview", "jobs", "dead", "dead/groups", "keys?key=k", "latency", "audit", "jobs/job_01HZX5T0N8W2A"];
    for path in paths {
        let path = format!("/api/v1/{path}");
        let answer = world.admin_as(None, &path).await;
        answer.check_problem(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        for wrong in ["", "clk_wrong", "Bearer"] {
            world.admin_as(Some(wrong), &path).await.check_problem(401, "unauthorized");
        }
    }
    assert_eq!(world.admin("/api/v1/jobs").await.status, 200);
    assert_eq!(world.admin("/api/v1/jobs").await.header("cache-control"), Some("no-store"));
    world.admin("/api/v1/nothing").await.check_problem(404, "not-found");
    use std::os::unix::fs::PermissionsExt;
    let token = std::fs::metadata(world.data_dir().join("admin.token")).unwrap();
    assert_eq!(token.permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_with_an_unknown_part_is_refused_and_not_half_answered() {
    let world = World::new(&[]).await;
    for path in
        ["jobs?stat=dead", "dead?state=dead", "dead/groups?x=1", "latency?windw=1m", "overview?x", "audit?job=1"]
    {
        world.admin(&format!("/api/v1/{path}")).await.check_problem(400, "bad-query");
    }
    for path in
        ["jobs?state=gone", "jobs?limit=0", "jobs?reason=x", "jobs?before=evt_1", "jobs/42", "keys", "latency?window=9"]
    {
        world.admin(&format!("/api/v1/{path}")).await.check_problem(400, "bad-query");
    }
    let told = world.admin("/api/v1/jobs?stat=dead").await.json()["detail"].to_string();
    assert!(told.contains("`stat`") && told.contains("state"), "{told}");
}

/// One success, one refused with 422 in the same flow, and two refused with 403 in another.
async fn lived() -> World {
    let refunds = FLOW.replace("name: orders\ntriggers", "name: refunds\ntriggers");
    let world = World::new(&[("flows/refunds.yml", &refunds.replace("/hooks/orders", "/hooks/refunds"))]).await;
    world.post_and_wait("good", BODY, Word::Success).await;
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("bad", BODY, Word::Dead).await;
    world.target.script("/charge", [Reply::Status(403)]);
    for key in ["r-1", "r-2"] {
        let job = world.deliver("/hooks/refunds", &[("idempotency-key", key)], BODY).await.job();
        world.wait(job, Word::Dead).await;
    }
    world
}

async fn listed(world: &World, query: &str) -> Vec<(String, String)> {
    let told = world.admin(&format!("/api/v1/{query}")).await.json();
    let text = |job: &Value, field: &str| job[field].as_str().unwrap().to_string();
    told["jobs"]
        .as_array()
        .unwrap_or_else(|| panic!("{told}"))
        .iter()
        .map(|job| (text(job, "flow"), text(job, "state")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_jobs_are_listed_newest_first_by_state_flow_and_reason_a_page_at_a_time() {
    let world = lived().await;
    let pair = |flow: &str, state: &str| (flow.to_string(), state.to_string());
    let (success, refused) = (pair("orders", "success"), pair("orders", "dead"));
    let refund = pair("refunds", "dead");
    let all = [refund.clone(), refund.clone(), refused.clone(), success.clone()];
    assert_eq!(listed(&world, "jobs").await, all);
    assert_eq!(listed(&world, "jobs?state=success").await, [success]);
    assert_eq!(listed(&world, "jobs?state=dead&flow=orders").await, all[2..3]);
    assert_eq!(listed(&world, "dead?reason=auth_failed").await, [refund.clone(), refund]);
    assert_eq!(listed(&world, "dead?queue=orders&flow=orders").await, [refused]);
    assert_eq!(listed(&world, "jobs?state=queued").await, []);
    assert_eq!(listed(&world, "jobs?flow=nobody").await, []);

    // Page by page, without a gap and without a repetition.
    let mut seen = Vec::new();
    let mut query = "/api/v1/jobs?limit=3".to_string();
    loop {
        let page = world.admin(&query).await.json();
        seen.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_string()));
        assert_eq!(page["more"] == true, page["next_before"].is_string(), "{page}");
        let Some(before) = page["next_before"].as_str() else { break };
        query = format!("/api/v1/jobs?limit=3&before={before}");
    }
    let expected: Vec<String> = world.jobs().await.iter().map(|row| row.id.to_string()).collect();
    assert_eq!((seen.len(), seen), (4, expected));
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_dead_letters_are_grouped_by_flow_and_reason() {
    let world = lived().await;
    let told = world.admin("/api/v1/dead/groups").await.json();
    let groups: Vec<(&str, &str, u64)> = told["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            (group["flow"].as_str().unwrap(), group["reason"].as_str().unwrap(), group["jobs"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(groups, [("refunds", "auth_failed", 2), ("orders", "rejected_by_target", 1)]);
    let group = &told["groups"][0];
    assert!(group["meaning"].as_str().unwrap().contains("401 or 403"), "{group}");
    let example = world.admin(&format!("/api/v1/jobs/{}", group["example"].as_str().unwrap())).await.json();
    assert_eq!((&example["job"]["flow"], &example["job"]["reason"]), (&json!("refunds"), &json!("auth_failed")));
    assert!(example["job"]["error"].as_str().unwrap().contains("answered 403"), "{example}");

    let overview = world.admin("/api/v1/overview").await.json();
    let flow =
        |name: &str| overview["flows"].as_array().unwrap().iter().find(|flow| flow["flow"] == name).unwrap().clone();
    assert_eq!((&flow("orders")["dead"], &flow("refunds")["dead"]), (&json!(1), &json!(2)));
    assert_eq!(flow("orders")["routes"], json!([{"method": "POST", "path": "/hooks/orders"}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn b9_a_key_tells_everything_that_happened_under_it() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Status(422), OK]);
    let key = "\"invoice 17/a\"";
    let accepted = world.post(key, BODY).await;
    let job = accepted.job();
    world.wait(job, Word::Dead).await;
    world.post(key, BODY).await;
    world.post(key, "{}").await.check_problem(422, "idempotency-key-reused");
    assert_eq!(world.replay(job, json!({"reason": "the card was renewed"})).await.json()["replayed"], true);
    world.wait(job, Word::Success).await;

    let told = world.admin("/api/v1/keys?key=invoice%2017%2Fa").await.json();
    assert_eq!((&told["key"], told["found"].as_array().unwrap().len()), (&json!("invoice 17/a"), 1));
    let found = &told["found"][0];
    assert_eq!(
        (&found["flow"], &found["route"], &found["tenant"]),
        (&json!("orders"), &json!("POST /hooks/orders"), &json!("default"))
    );
    assert_eq!((&found["seen"], &found["duplicates"], &found["conflicts"]), (&json!(3), &json!(1), &json!(1)));
    assert_eq!(found["event_id"], accepted.json()["event_id"]);
    assert_eq!((&found["jobs"][0]["state"], &found["jobs"][0]["replays"]), (&json!("success"), &json!(1)));
    assert_eq!((&found["effects"][0]["step"], &found["effects"][0]["sends"]), (&json!("charge"), &json!(3)));
    assert!(found["kept_until"].is_string());
    let lines: Vec<&str> =
        found["story"].as_array().unwrap().iter().map(|line| line["what"].as_str().unwrap()).collect();
    let mut counted: HashMap<&str, usize> = HashMap::new();
    lines.iter().for_each(|what| *counted.entry(what).or_default() += 1);
    let expected =
        [("accepted", 1), ("duplicate", 1), ("conflict", 1), ("attempt", 3), ("job.replay", 1), ("effect", 1)];
    assert_eq!(counted, HashMap::from(expected), "{found}");
    assert_eq!(lines[0], "accepted");
    assert!(found["story"].to_string().contains("the card was renewed"), "{found}");

    world.admin("/api/v1/keys?key=invoice").await.check_problem(404, "not-found");
    world.admin("/api/v1/keys?key=invoice%2017%2Fa&tenant=other").await.check_problem(404, "not-found");
    world.admin("/api/v1/keys?key=x&flow=nobody").await.check_problem(400, "bad-query");
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_latency_is_counted_from_every_job_that_ended() {
    let world = World::new(&[]).await;
    let empty = world.admin("/api/v1/latency").await.json();
    assert_eq!((&empty["jobs"], &empty["stages"][0]["p95"]), (&json!(0), &Value::Null));
    for n in 0..5 {
        world.post_and_wait(&format!("k-{n}"), BODY, Word::Success).await;
    }
    let told = world.admin("/api/v1/latency?window=15m&percentile=50,95,100").await.json();
    assert_eq!((&told["jobs"], &told["window_seconds"]), (&json!(5), &json!(900.0)));
    let stages: HashMap<&str, &Value> =
        told["stages"].as_array().unwrap().iter().map(|stage| (stage["stage"].as_str().unwrap(), stage)).collect();
    let seconds = |stage: &str, field: &str| stages[stage][field].as_f64().unwrap();
    for stage in ["wait", "run", "end_to_end"] {
        assert!(
            seconds(stage, "p50") <= seconds(stage, "p95") && seconds(stage, "p95") <= seconds(stage, "max"),
            "{told}"
        );
        let asked: Vec<f64> = stages[stage]["percentiles"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["percentile"].as_f64().unwrap())
            .collect();
        assert_eq!(asked, [50.0, 95.0, 100.0]);
        let counted: u64 =
            stages[stage]["buckets"].as_array().unwrap().iter().map(|b| b["jobs"].as_u64().unwrap()).sum();
        assert_eq!(counted, 5, "every job is in one bucket");
    }
    assert!(seconds("end_to_end", "max") > 0.0 && seconds("end_to_end", "max") >= seconds("run", "max"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_body_is_shown_by_its_shape_and_never_in_clear() {
    let world = World::new(&[]).await;
    world.target.script(
        "/charge",
        [Reply::With { status: 422, headers: &[], body: r#"{"why":"ada@example.com is blocked"}"# }],
    );
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    let told = world.admin(&format!("/api/v1/jobs/{job}")).await;
    let preview = &told.json()["body"];
    assert_eq!((&preview["bytes"], &preview["json"]), (&json!(BODY.len()), &json!(true)));
    let lines = preview["lines"].to_string();
    assert!(lines.contains("order") && lines.contains("7") && lines.contains("a•••@e•••"), "{lines}");
    let mut answers = vec![told];
    for path in ["jobs", "dead", "dead/groups", "keys?key=k", "overview", "audit"] {
        answers.push(world.admin(&format!("/api/v1/{path}")).await);
    }
    answers.push(world.admin_as(None, "/metrics").await);
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:#?}");
    check_absent("ada@example", &answers);
    check_absent("is blocked", &answers);
}

/// The text of metrics as series and values; every line of it must be one.
fn series(answer: &Answer) -> HashMap<String, f64> {
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"), "{answer:?}");
    let mut found = HashMap::new();
    for line in answer.body.lines().filter(|line| !line.starts_with("# ")) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let is_ours = name.starts_with("clinch_") || name.starts_with("process_");
        assert!(is_ours && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
        let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("labels do not end: {line}"));
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (name, value) = label.split_once('=').unwrap_or_else(|| panic!("no label: {line}"));
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            assert!(value.len() >= 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(found.insert(series.to_string(), value).is_none(), "twice: {line}");
    }
    found
}

/// All series, once this one has this value: an end is counted a moment after it is on disk.
async fn eventually(world: &World, name: &str, value: f64) -> HashMap<String, f64> {
    let began = std::time::Instant::now();
    loop {
        let found = series(&world.admin_as(None, "/metrics").await);
        match found.get(name) {
            Some(now) if *now == value => return found,
            now => assert!(began.elapsed() < PATIENCE, "{name} is {now:?} and never {value}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_metrics_count_what_happened() {
    let world = World::new(&[]).await;
    let before = series(&world.admin_as(None, "/metrics").await);
    let accepted = r#"clinch_intake_requests_total{source="orders",outcome="accepted"}"#;
    assert_eq!(before.get(accepted), Some(&0.0), "silence is told from absence");

    world.target.script("/charge", [Reply::Status(503), OK]);
    let first = world.post("a", BODY).await.job();
    world.wait(first, Word::Success).await;
    world.post("a", BODY).await;
    world.post("a", BODY).await;
    world.post("a", "{}").await.check_problem(422, "idempotency-key-reused");
    world.post("b", "{").await.check_problem(400, "malformed");
    // Only announced: a refusal comes before a body is read, and may cut off who is still writing one.
    let large = b"POST /hooks/orders HTTP/1.1\r\nhost: x\r\nidempotency-key: c\r\ncontent-length: 2097152\r\n\r\n";
    crate::world::raw(world.intake(), large).await.check_problem(413, "too-large");
    world.deliver("/nowhere", &[], "").await.check_problem(404, "not-found");
    world.target.script("/charge", [Reply::Status(422)]);
    let dead = world.post("d", BODY).await.job();
    world.wait(dead, Word::Dead).await;

    eventually(&world, r#"clinch_jobs_finished_total{flow="orders",outcome="success"}"#, 1.0).await;
    let entered = r#"clinch_dlq_entered_total{flow="orders",reason="rejected_by_target"}"#;
    let after = eventually(&world, entered, 1.0).await;
    let check = |series: &str, value: f64| assert_eq!(after.get(series), Some(&value), "{series}");
    check(accepted, 2.0);
    for (outcome, times) in
        [("duplicate", 2.0), ("conflict", 1.0), ("malformed", 1.0), ("too_large", 1.0), ("store_error", 0.0)]
    {
        check(&format!(r#"clinch_intake_requests_total{{source="orders",outcome="{outcome}"}}"#), times);
    }
    check(r#"clinch_intake_requests_total{source="",outcome="unknown_source"}"#, 1.0);
    check(r#"clinch_dedup_short_circuits_total{layer="intake",flow="orders"}"#, 2.0);
    check(r#"clinch_jobs_finished_total{flow="orders",outcome="success"}"#, 1.0);
    check(r#"clinch_jobs_finished_total{flow="orders",outcome="dead_letter"}"#, 1.0);
    check(r#"clinch_retries_scheduled_total{flow="orders",step="charge",reason="target_down"}"#, 1.0);
    check(r#"clinch_effects_total{integration="127.0.0.1",outcome="performed"}"#, 1.0);
    check(r#"clinch_effects_total{integration="127.0.0.1",outcome="not_done"}"#, 2.0);
    check(r#"clinch_dlq_jobs{flow="orders",reason="rejected_by_target"}"#, 1.0);
    check(r#"clinch_job_end_to_end_seconds_count{flow="orders",outcome="success"}"#, 1.0);
    check(r#"clinch_intake_body_bytes_count{source="orders"}"#, 2.0);
    check(r#"clinch_intake_body_bytes_sum{source="orders"}"#, 2.0 * BODY.len() as f64);
    assert!(after["clinch_store_commit_duration_seconds_count"] > before["clinch_store_commit_duration_seconds_count"]);

    // Repaired and replayed: it has left the dead letters, once.
    world.target.script("/charge", [OK]);
    assert_eq!(world.replay(dead, json!({"reason": "fixed"})).await.json()["replayed"], true);
    world.wait(dead, Word::Success).await;
    let last = eventually(&world, r#"clinch_dlq_left_total{flow="orders",how="replayed_ok"}"#, 1.0).await;
    let left = last.iter().filter(|(series, _)| series.starts_with("clinch_dlq_left_total{"));
    assert_eq!(left.map(|(_, value)| value).sum::<f64>(), 1.0, "it is counted in one way only");
    assert_eq!(last.get(r#"clinch_dlq_jobs{flow="orders",reason="rejected_by_target"}"#).copied().unwrap_or(0.0), 0.0);
    assert_eq!(last.get(r#"clinch_replay_jobs_total{flow="orders",outcome="success"}"#), Some(&1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_are_counted_while_they_wait() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    for n in 0..3 {
        world.post(&format!("k-{n}"), BODY).await;
    }
    let now = series(&world.admin_as(None, "/metrics").await);
    assert_eq!(now.get(r#"clinch_jobs{flow="orders",state="queued"}"#), Some(&3.0));
    assert!(now[r#"clinch_job_oldest_age_seconds{flow="orders",state="queued"}"#] >= 0.0);
    let overview = world.admin("/api/v1/overview").await.json();
    assert_eq!(overview["flows"][0]["queued"], 3);
}
