//! Live values: what an operator sets over the files counts for the next decision, on all nodes and through restarts, on record, and
//! until it is taken back.

use crate::nodes::shared_postgres;
use crate::process::{AGAIN, Place, client};
use crate::world::{Answer, NO_WORKER, PATIENCE, Reply, WORKER, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::config::{Files, load};
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const BODY: &str = r#"{"order":7,"email":"ada@example.com"}"#;
const ATTEMPTS: &str = "worker.charge.retry.max_attempts";
/// Who takes one call at a time, and who takes one in an hour.
const PARTNERS: &str = "
integrations:
  crm: {base_url: 'http://TARGET', idempotency: header, concurrency: 1}
  slow: {base_url: 'http://TARGET', idempotency: header, rate: 1/h}
  texts: {base_url: 'http://TARGET', channel: sms, idempotency: header, message: {url: /send}}
";

async fn ask(world: &World, name: &str, ask: Value) -> Answer {
    world.put(&format!("/api/v1/settings/{name}"), ask).await
}

async fn set(world: &World, name: &str, value: impl Into<Value>) -> Value {
    let answer = ask(world, name, json!({"value": value.into(), "reason": "INC-482"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn unset(world: &World, name: &str) -> Value {
    let answer = world.delete(&format!("/api/v1/settings/{name}"), json!({"reason": "over"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn roll_back(world: &World, name: &str, to: &Value) -> Answer {
    world.command(&format!("/api/v1/settings/{name}/rollback"), json!({"to": to, "reason": "too much"})).await
}

async fn shown(world: &World, name: &str) -> Value {
    let answer = world.admin(&format!("/api/v1/settings/{name}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The names of what is set, and what it is set to.
async fn live(world: &World) -> Vec<(String, String)> {
    let told = world.admin("/api/v1/settings").await.json();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let set = told["settings"].as_array().unwrap().iter().filter(|setting| !setting["live"].is_null());
    set.map(|setting| (text(&setting["name"]), text(&setting["live"]["value"]))).collect()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "{what} never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How often a job that always fails is tried before it is a dead letter.
async fn attempts(world: &World, key: &str) -> u32 {
    world.post_and_wait(key, BODY, Word::Dead).await.row.attempts
}

/// The target fails whoever calls it.
async fn failing(files: &[(&str, &str)]) -> World {
    let world = World::new(files).await;
    world.target.script("/charge", [Reply::Status(500)]);
    world
}

/// One step that calls this integration.
async fn calling(integration: &str) -> World {
    let step = format!("  - name: charge\n    http: {{integration: {integration}, url: /charge, body_from: body}}\n");
    World::new(&[("clinch.yml", PARTNERS), ("workers/charge.yml", &worker_with_step(&step))]).await
}

async fn waits_for_the_limit(world: &World, job: JobId) {
    let story = world.wait_until(job, "held up", |story| story.row.waits == Some(Waits::Limit)).await;
    assert_eq!((story.row.attempts, story.row.failures), (0, 0), "waiting costs nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_attempts_that_are_set_count_for_the_next_failure_and_are_taken_back() {
    let world = failing(&[]).await;
    assert_eq!(attempts(&world, "a").await, 3, "as the file says");
    let told = set(&world, ATTEMPTS, 2).await;
    assert_eq!((&told["before"]["value"], &told["after"]["value"]), (&json!("3"), &json!("2")));
    assert_eq!((&told["before"]["by_file"], &told["after"]["by_file"]), (&json!(true), &json!(false)));
    assert!(told["after"]["means"].as_str().unwrap().contains("after 2 attempts"), "{told}");
    assert_eq!(attempts(&world, "b").await, 2);
    set(&world, ATTEMPTS, "5").await;
    assert_eq!(attempts(&world, "c").await, 5);
    assert_eq!(unset(&world, ATTEMPTS).await["changed"], true);
    assert_eq!(attempts(&world, "d").await, 3);
    assert_eq!(unset(&world, ATTEMPTS).await["changed"], false, "pressing twice is pressing once");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_is_set_while_an_attempt_runs_decides_what_becomes_of_its_failure() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Hung(500), Reply::Status(500)]);
    let job = world.post("a", BODY).await.job();
    world.target.called(1).await;
    set(&world, ATTEMPTS, 1).await;
    world.target.release();
    let story = world.wait(job, Word::Dead).await;
    assert_eq!((story.row.attempts, world.target.calls().len()), (1, 1));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_retry_budget_that_is_set_bounds_the_retries_of_one_contact() {
    let world = failing(&[]).await;
    set(&world, "worker.charge.retry.budget_per_contact", 1).await;
    let first = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!((first.row.attempts, first.row.reason), (2, Some(Reason::BudgetExhausted)));
    unset(&world, "worker.charge.retry.budget_per_contact").await;
    assert_eq!(attempts(&world, "b").await, 3);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_e2_a_rate_that_is_raised_is_seen_at_the_target_and_lowered_again_it_holds() {
    let world = calling("slow").await;
    world.post_and_wait("a", BODY, Word::Success).await;
    let held = world.post("b", BODY).await.job();
    waits_for_the_limit(&world, held).await;
    let told = set(&world, "integration.slow.rate", "1000/s").await;
    assert!(told["after"]["means"].as_str().unwrap().contains("at most 1000 calls in 1s"), "{told}");
    for key in ["c", "d", "e"] {
        world.post_and_wait(key, BODY, Word::Success).await;
    }
    let called = world.target.calls().len();
    unset(&world, "integration.slow.rate").await;
    let late = world.post("f", BODY).await.job();
    waits_for_the_limit(&world, late).await;
    assert_eq!(world.target.calls_at("/charge").len(), called);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_e1_places_that_are_set_count_at_once_and_calls_under_way_count_too() {
    let world = calling("crm").await;
    world.target.script("/charge", [Reply::Held]);
    let first = world.post("a", BODY).await.job();
    world.target.called(1).await;
    let second = world.post("b", BODY).await.job();
    waits_for_the_limit(&world, second).await;
    set(&world, "integration.crm.concurrency", 2).await;
    world.target.called(2).await;
    // One again, while two are under way: the third waits for both.
    unset(&world, "integration.crm.concurrency").await;
    let third = world.post("c", BODY).await.job();
    waits_for_the_limit(&world, third).await;
    world.target.release();
    eventually("one of the two ends", async || {
        let ended = [world.job(first).await, world.job(second).await];
        ended.iter().any(|story| story.row.word == Word::Success)
    })
    .await;
    // It asks again and again meanwhile, and is sent away.
    let asked = world.job(third).await.row.run_at;
    world.wait_until(third, "sent away again", |story| story.row.run_at > asked).await;
    assert_eq!(world.target.calls().len(), 2);
    world.target.release();
    world.target.called(3).await;
    world.target.release();
    for job in [first, second, third] {
        world.wait(job, Word::Success).await;
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_g1_a_frequency_cap_that_is_set_counts_what_was_sent_before() {
    let send = "  - name: remind\n    send_template: {integration: texts, template: cart, to: '{{ body.email }}'}\n";
    let world = World::new(&[
        ("clinch.yml", PARTNERS),
        (
            "policies.yml",
            "policies:\n  marketing: {channels: [sms], contact: '{{ body.email }}', frequency: [{max: 1, per: 7d}]}\n",
        ),
        ("templates/cart.txt", "You left something.\n"),
        ("workers/charge.yml", &worker_with_step(send)),
    ])
    .await;
    let cap = "policy.marketing.frequency.0.max";
    world.post_and_wait("a", BODY, Word::Success).await;
    world.post_and_wait("b", BODY, Word::Noop).await;
    let told = set(&world, cap, 2).await;
    assert_eq!(told["after"]["means"], "a contact gets at most 2 in 7d", "{told}");
    world.post_and_wait("c", BODY, Word::Success).await;
    world.post_and_wait("d", BODY, Word::Noop).await;
    unset(&world, cap).await;
    world.post_and_wait("e", BODY, Word::Noop).await;
    assert_eq!(world.target.calls_at("/send").len(), 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_e4_what_safe_mode_holds_goes_when_it_is_set_to_hold_nothing() {
    let world = calling("crm").await;
    assert_eq!(world.command("/api/v1/safe-mode", json!({"reason": "wrong price"})).await.status, 200);
    let job = world.post("a", BODY).await.job();
    world.wait_until(job, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    set(&world, "safe_mode.hold", false).await;
    world.wait(job, Word::Success).await;
    set(&world, "safe_mode.drain", "7/min").await;
    assert_eq!(world.admin("/api/v1/safe-mode").await.json()["drain"], "7/60s");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_p12_what_is_set_counts_through_a_restart_and_for_jobs_of_older_files() {
    let mut world = World::with_roles(NO_WORKER, &[]).await;
    world.target.script("/charge", [Reply::Status(500)]);
    let old = world.post("a", BODY).await.job();
    set(&world, ATTEMPTS, 2).await;
    world.close().await;
    world.write("workers/charge.yml", &WORKER.replace("max_attempts: 3", "max_attempts: 4"));
    world.open(Roles::ALL).await;
    assert_eq!(world.wait(old, Word::Dead).await.row.attempts, 2);
    assert_eq!(attempts(&world, "b").await, 2);
    let told = shown(&world, ATTEMPTS).await;
    assert_eq!((&told["setting"]["value"], &told["setting"]["file"]), (&json!("2"), &json!("4")));
    let note = told["setting"]["live"]["note"].as_str().unwrap();
    assert!(note.contains("it said 3 when this was set"), "{note}");
    unset(&world, ATTEMPTS).await;
    assert_eq!(attempts(&world, "c").await, 4);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_is_set_survives_kill_9_and_the_next_start_says_so() {
    let place = Place::new(&[AGAIN]).await;
    place.sink.answer_with(|_| 500);
    let mut server = place.start().await;
    let clinch = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
        let out = command.args(arguments).env("CLINCH_DATA_DIR", &place.data_dir).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    clinch(&["set", "worker.again-worker.retry.max_attempts", "3", "--reason", "their outage"]);
    server.kill9();
    let server = place.start().await;
    let said = "worker.again-worker.retry.max_attempts: the file says 50, live is 3, set by admin";
    assert!(server.said().contains(said), "{}", server.said());
    let posted = client().post(server.hook("again")).header("idempotency-key", "a").body(BODY).send().await.unwrap();
    assert_eq!(posted.status(), 202);
    place.drained().await;
    assert_eq!((place.sink.count(), place.jobs("dead")), (3, 1));
    server.stop().await;
    place.verified();
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_is_set_on_one_node_counts_on_all() {
    let postgres = shared_postgres();
    let name = "settings_on_all";
    tokio::task::block_in_place(|| postgres.create_database(name));
    let url = format!("postgres://clinch@127.0.0.1:{}/{name}", postgres.port());
    let (one, other) = (World::on(url.clone(), &[]).await, World::on(url, &[]).await);
    for world in [&one, &other] {
        world.target.script("/charge", [Reply::Status(500)]);
    }
    set(&one, ATTEMPTS, 1).await;
    eventually("the other hears of it", async || live(&other).await.len() == 1).await;
    for nth in 0..10 {
        let at = if nth % 2 == 0 { &one } else { &other };
        assert_eq!(attempts(at, &format!("k-{nth}")).await, 1);
    }
    assert_eq!(one.target.calls().len() + other.target.calls().len(), 10);
    // Back, from the other node.
    unset(&other, ATTEMPTS).await;
    eventually("it is gone here too", async || live(&one).await.is_empty()).await;
    assert_eq!(attempts(&one, "last").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_every_change_is_on_record_with_before_and_after_and_can_be_rolled_back() {
    let world = failing(&[]).await;
    let first = set(&world, ATTEMPTS, 2).await["version"].clone();
    let second = set(&world, ATTEMPTS, 5).await["version"].clone();
    assert!(second.as_i64() > first.as_i64());
    let told = roll_back(&world, ATTEMPTS, &first).await.json();
    assert_eq!((&told["before"]["value"], &told["after"]["value"]), (&json!("5"), &json!("2")));
    assert_eq!(attempts(&world, "a").await, 2);
    assert_eq!(roll_back(&world, ATTEMPTS, &json!(0)).await.json()["after"]["by_file"], true);
    assert_eq!(attempts(&world, "b").await, 3);
    roll_back(&world, ATTEMPTS, &json!(4_711)).await.check_problem(404, "not-found");
    let history = shown(&world, ATTEMPTS).await["history"].clone();
    let told: Vec<_> = history.as_array().unwrap().iter().map(|change| (&change["action"], &change["value"])).collect();
    let (set, back) = (json!("setting.set"), json!("setting.rollback"));
    let (two, five) = (json!("2"), json!("5"));
    assert_eq!(told, [(&back, &Value::Null), (&back, &two), (&set, &five), (&set, &two)]);
    let audit = world.admin(&format!("/api/v1/audit?object={ATTEMPTS}")).await.json();
    let row = &audit["audit"][2];
    assert_eq!((&row["actor"], &row["reason"]), (&json!("admin"), &json!("INC-482")));
    let side = |name: &str| serde_json::from_str::<Value>(row[name].as_str().unwrap()).unwrap();
    let (before, after) = (side("before"), side("after"));
    assert_eq!((&before["value"]["value"], &before["version"]), (&two, &first));
    assert_eq!((&after["value"]["value"], &after["version"]), (&five, &second));
    assert_eq!(after["value"]["file"], "3");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_whoever_expects_another_version_changes_nothing() {
    let world = failing(&[]).await;
    let expecting = |value, expect: &Value| json!({"value": value, "reason": "why", "expect": expect});
    let version = ask(&world, ATTEMPTS, expecting("2", &json!(0))).await.json()["version"].clone();
    for late in [json!(0), json!(version.as_i64().unwrap() + 1)] {
        ask(&world, ATTEMPTS, expecting("9", &late)).await.check_problem(409, "not-now");
    }
    let dry = json!({"value": "9", "dry_run": true});
    let told = ask(&world, ATTEMPTS, dry).await.json();
    assert_eq!((&told["after"]["value"], &told["changed"]), (&json!("9"), &json!(false)));
    assert_eq!(live(&world).await, [(ATTEMPTS.to_string(), "2".to_string())]);
    assert_eq!(ask(&world, ATTEMPTS, expecting("4", &version)).await.status, 200);
    assert_eq!(attempts(&world, "a").await, 4);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_the_file_would_refuse_is_refused_in_its_words_and_nothing_is_changed() {
    let world = calling("crm").await;
    // Each is said by `check` too, when the file says so.
    let by_file = |path: &str, from: &str, to: &str| {
        let mut files = clinch::workspace::read_files(&world.workspace_dir()).unwrap();
        let (_, text) = files.0.iter_mut().find(|(file, _)| file == path).unwrap();
        assert!(text.contains(from), "{text}");
        *text = text.replace(from, to);
        let problems = load(&Files(files.0)).expect_err("it is refused");
        problems.into_iter().find(|problem| problem.is_error()).unwrap().message
    };
    let (worker, partners) = ("workers/charge.yml", "clinch.yml");
    for (name, value, said) in [
        (ATTEMPTS, "0", by_file(worker, "max_attempts: 3", "max_attempts: 0")),
        (ATTEMPTS, "many", by_file(worker, "max_attempts: 3", "max_attempts: many")),
        (ATTEMPTS, "", by_file(worker, "max_attempts: 3", "max_attempts: ")),
        ("worker.charge.retry.base_delay", "soon", by_file(worker, "base_delay: 10ms", "base_delay: soon")),
        // No single value is wrong, and all together are: keys would be forgotten before the last attempt.
        (
            "worker.charge.retry.base_delay",
            "47h",
            by_file(worker, "base_delay: 10ms", "base_delay: 47h, max_delay: 47h"),
        ),
        ("integration.crm.concurrency", "-1", by_file(partners, "concurrency: 1", "concurrency: -1")),
        ("integration.slow.rate", "fast", by_file(partners, "rate: 1/h", "rate: fast")),
    ] {
        if value == "47h" {
            set(&world, "worker.charge.retry.max_delay", "47h").await;
        }
        let problem = ask(&world, name, json!({"value": value, "reason": "why"})).await.check_problem(400, "bad-body");
        assert!(problem["detail"].as_str().unwrap().contains(&said), "{problem} should say: {said}");
        if value == "47h" {
            unset(&world, "worker.charge.retry.max_delay").await;
        }
    }
    for (name, meant) in [
        ("worker.charge.retry.max_atempts", "did you mean `worker.charge.retry.max_attempts`?"),
        ("queue.orders.retry.max_attempts", "did you mean `worker.charge.retry.max_attempts`?"),
        ("flow.orders.retry.max_attempts", "did you mean `worker.charge.retry.max_attempts`?"),
        ("playbook.charge.retry.max_delay", "did you mean `worker.charge.retry.max_delay`?"),
        ("colour", "`clinch set` lists what can be set"),
    ] {
        let problem = ask(&world, name, json!({"value": "1", "reason": "why"})).await.check_problem(404, "not-found");
        assert!(problem["detail"].as_str().unwrap().contains(meant), "{problem}");
    }
    for bad in [
        json!({"value": "2"}),
        json!({"value": "2", "reason": " "}),
        json!({"value": [2], "reason": "why"}),
        json!({"value": "2", "reason": "why", "untill": "2h"}),
        json!({"value": "2", "reason": "why", "until": "yesterday"}),
        json!({"value": "2\nname: other", "reason": "why"}),
    ] {
        ask(&world, ATTEMPTS, bad).await.check_problem(400, "bad-body");
    }
    assert_eq!(live(&world).await, []);
    let audit = world.admin(&format!("/api/v1/audit?object={ATTEMPTS}")).await.json();
    assert_eq!(audit["audit"], json!([]));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_value_with_an_end_ends_by_itself_and_can_be_set_again() {
    let world = failing(&[]).await;
    let answer = ask(&world, ATTEMPTS, json!({"value": "1", "reason": "a moment", "until": "2s"})).await;
    assert_eq!(answer.json()["after"]["value"], "1", "{answer:?}");
    eventually("it ends", async || live(&world).await.is_empty()).await;
    eventually("the file counts", async || shown(&world, ATTEMPTS).await["setting"]["value"] == "3").await;
    assert_eq!(attempts(&world, "b").await, 3);
    let again = json!({"value": "2", "reason": "again", "expect": 0});
    assert_eq!(ask(&world, ATTEMPTS, again).await.status, 200);
    assert_eq!(attempts(&world, "c").await, 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_new_files_do_not_bear_is_told_and_the_rest_still_counts() {
    let mut world = calling("slow").await;
    set(&world, "integration.slow.rate", "10/s").await;
    set(&world, ATTEMPTS, 2).await;
    world.close().await;
    world.write(
        "clinch.yml",
        &PARTNERS.replace("  slow:", "  other: {base_url: 'http://TARGET', idempotency: header}\n  crm2:"),
    );
    world.write("workers/charge.yml", WORKER);
    world.target.script("/charge", [Reply::Status(500)]);
    world.open(Roles::ALL).await;
    assert_eq!(attempts(&world, "a").await, 2);
    let told = shown(&world, "integration.slow.rate").await;
    assert_eq!(told["setting"]["live"]["counts"], false, "{told}");
    let note = told["setting"]["live"]["note"].as_str().unwrap();
    assert!(note.contains("there is no setting `integration.slow.rate`"), "{note}");
    let metrics = world.admin("/metrics").await.body;
    for line in ["clinch_live_settings 2", "clinch_live_settings_refused 1"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert_eq!(unset(&world, "integration.slow.rate").await["changed"], true);
    assert_eq!(live(&world).await.len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_person_sees_what_can_be_set_what_would_follow_and_how_it_came_to_that() {
    let world = failing(&[]).await;
    let (code, said) = world.clinch(&["set", "-o", "table"]).await;
    assert!(code == 0 && said.contains(ATTEMPTS) && said.contains("2m (default)"), "{said}");
    assert!(said.contains("nothing is set: the files count"), "{said}");
    let (code, said) = world.clinch(&["set", ATTEMPTS, "6", "--dry-run", "-o", "table"]).await;
    assert!(code == 0 && said.contains(&format!("{ATTEMPTS}: 3 (file) → 6")), "{said}");
    assert!(said.contains("- a job that keeps failing is given up after 3 attempts, within 1m30s"), "{said}");
    assert!(said.contains("+ a job that keeps failing is given up after 6 attempts, within 3m"), "{said}");
    assert!(said.contains("nothing was changed") && live(&world).await.is_empty(), "{said}");
    let (code, said) = world.clinch(&["set", ATTEMPTS, "6", "--reason", "their outage", "-o", "json"]).await;
    assert!(code == 0 && said.contains(r#""schema": "clinch.settings.set/v1""#), "{said}");
    let (code, said) = world.clinch(&["set", "--live", "-o", "plain"]).await;
    assert!(code == 0 && said.starts_with(&format!("{ATTEMPTS}\t3\t6\t")), "{said}");
    let (code, said) = world.clinch(&["set", ATTEMPTS, "-o", "table"]).await;
    assert!(code == 0 && said.contains("setting.set by admin: their outage"), "{said}");
    let (code, said) = world.clinch(&["set", ATTEMPTS, "seven", "--reason", "x"]).await;
    assert!(code == 2 && said.contains("max_attempts"), "{said}");
    let (code, said) = world.clinch(&["set", ATTEMPTS, "7"]).await;
    assert!(code == 2 && said.contains("reason: write 1 to"), "{said}");
    let (code, _) = world.clinch(&["set", ATTEMPTS, "7", "--reason", "x", "--expect", "0"]).await;
    assert_eq!(code, 5);
    let (code, said) = world.clinch(&["set", ATTEMPTS, "--rollback", "0", "--reason", "over", "-o", "table"]).await;
    assert!(code == 0 && said.contains("6 → 3 (file)"), "{said}");
    let (code, said) = world.clinch(&["unset", ATTEMPTS, "--reason", "over"]).await;
    assert!(code == 0 && said.contains("the file counts already"), "{said}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_check_says_where_the_live_value_differs_from_the_file_also_when_the_server_is_down() {
    let mut world = failing(&[]).await;
    let directory = world.workspace_dir().display().to_string();
    let (code, said) = world.clinch(&["check", &directory]).await;
    assert!(code == 0 && !said.contains("live"), "{said}");
    set(&world, ATTEMPTS, 2).await;
    let differs = format!("{ATTEMPTS}: the file says 3, live is 2, set by admin on ");
    let (code, said) = world.clinch(&["check", &directory]).await;
    assert!(code == 0 && said.contains(&differs), "{said}");
    world.close().await;
    let (code, said) = world.clinch(&["check", &directory]).await;
    assert!(code == 0 && said.contains(&differs), "{said}");
    // The file follows, and is then changed again.
    world.write("workers/charge.yml", &WORKER.replace("max_attempts: 3", "max_attempts: 2"));
    let (_, said) = world.clinch(&["check", &directory]).await;
    assert!(said.contains(&format!("the file says the same now: `clinch unset {ATTEMPTS}` changes nothing")), "{said}");
    world.write("workers/charge.yml", &WORKER.replace("max_attempts: 3", "max_attempts: 9"));
    let (_, said) = world.clinch(&["check", &directory, "--format", "json"]).await;
    let told = serde_json::Deserializer::from_str(&said).into_iter::<Value>().next().unwrap().unwrap();
    let differs = &told["live"][0];
    assert_eq!((&differs["file"], &differs["value"], &differs["counts"]), (&json!("9"), &json!("2"), &json!(true)));
    assert!(differs["note"].as_str().unwrap().contains("it said 3 when this was set"), "{told}");
    let elsewhere = format!("{directory}/none");
    let (code, said) = world.clinch(&["check", &directory, "--data-dir", &elsewhere]).await;
    assert!(code == 0 && said.contains("the files were not compared with live values"), "{said}");
}
