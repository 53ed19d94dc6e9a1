//! The life of a workspace: what a change means, how it becomes live while clinch runs, and the way back.

use super::nodes::{Nodes, shared_postgres};
use super::process::{AGAIN, PATIENCE, Place, Provider, Server, client, eventually};
use super::world::{Answer, FLOW, NO_WORKER, OK, Reply, WORKER, World};
use clinch_core::audit::Who;
use clinch_core::config::Files;
use clinch_core::job::Word;
use clinch_store::{ActivateAsk, Activated, Activation};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The files of a directory, as the API takes them.
fn files(directory: &Path) -> Value {
    let Files(files) = clinch::workspace::read_files(directory).unwrap();
    files.into_iter().map(|(path, text)| json!({"path": path, "text": text})).collect()
}

fn second_route() -> String {
    FLOW.replace("name: orders\n", "name: more\n").replace("/hooks/orders", "/hooks/more")
}

fn live_of(answer: &Answer) -> String {
    answer.json()["version"].as_str().unwrap_or_default().to_string()
}

async fn apply(world: &World, ask: Value) -> Answer {
    let mut body = json!({"files": files(&world.workspace_dir()), "reason": "a story"});
    body.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
    world.command("/api/v1/config/apply", body).await
}

async fn live(world: &World) -> Value {
    world.admin("/api/v1/config").await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_diff_says_what_a_change_means_before_its_lines() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    world.post("k-1", "{}").await;
    world.write("workers/charge.yml", &WORKER.replace("max_attempts: 3", "max_attempts: 2"));
    let directory = world.workspace_dir().display().to_string();
    let (code, said) = world.clinch(&["diff", "live", &directory]).await;
    assert_eq!(code, 0, "{said}");
    for part in [
        "live v1 (",
        "worker charge\n  ! retry.max_attempts  3 -> 2  workers/charge.yml:5",
        "CL0204 a job that keeps failing is given up after 2 attempts instead of 3",
        "In flight: 1 job stays on the version that it was accepted with",
        "1 change needs attention, 0 notes.",
        &format!("; clinch apply {directory} --reason"),
    ] {
        assert!(said.contains(part), "{part}\n{said}");
    }
    assert!(!said.contains("- retry: {strategy"), "lines come when they are asked for: {said}");
    let (_, lines) = world.clinch(&["diff", "--lines", "live", &directory]).await;
    assert!(lines.contains("5 - retry: {strategy: fixed") && !lines.contains("CL0204"), "{lines}");
    let (_, stat) = world.clinch(&["diff", "--stat", "live", &directory]).await;
    assert!(stat.contains("workers/charge.yml\tchanged\t+1\t-1\n1 risk, 0 notes"), "{stat}");
    assert_eq!(world.clinch(&["diff", "--exit-code", "live", &directory]).await.0, 10);
    assert_eq!(world.clinch(&["diff", "--exit-code", "live", "v1"]).await.0, 0);
    let (_, marks) = world.clinch(&["diff", "--format", "github", "live", &directory]).await;
    assert!(marks.starts_with(&format!("::warning file={directory}/workers/charge.yml,line=5,col=")), "{marks}");
    let (_, document) = world.clinch(&["diff", "-o", "json", "live", &directory]).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((&document["schema"], &document["risks"]), (&json!("clinch.config.diff/v1"), &json!(1)));
    assert_eq!(document["changes"][0]["at"]["line"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_two_directories_are_compared_without_a_server_and_errors_are_told_as_check_tells_them() {
    let world = World::unopened(&super::world::USUAL).await;
    let other = World::unopened(&super::world::USUAL).await;
    other.write("flows/orders.yml", &FLOW.replace("ttl: 48h", "ttl: 1s"));
    let directories = [&world, &other].map(|world| world.workspace_dir().display().to_string());
    let (code, said) = world.clinch(&["diff", &directories[0], &directories[1]]).await;
    assert_eq!(code, 6, "{said}");
    assert!(said.contains("keys are forgotten after 1s, but worker `charge` may retry a job for"), "{said}");
    other.write("flows/orders.yml", &FLOW.replace("ttl: 48h", "ttl: 4h"));
    let (code, said) = world.clinch(&["diff", &directories[0], &directories[1], "--exit-code"]).await;
    assert_eq!(code, 10, "{said}");
    assert!(said.contains("CL0201 keys are forgotten after 4h instead of 2d"), "{said}");
    let (code, said) = world.clinch(&["diff", "nowhere", &directories[1]]).await;
    assert!(
        code == 3 && said.contains("is neither a version, nor `live`, nor a directory, nor a commit of git"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn j1_check_speaks_sarif_and_github() {
    let world = World::unopened(&super::world::USUAL).await;
    world.write("workers/charge.yml", &WORKER.replace("max_attempts", "max_attemps"));
    let directory = world.workspace_dir().display().to_string();
    let (code, log) = world.clinch(&["check", &directory, "--format", "sarif"]).await;
    assert_eq!(code, 6);
    let log: Value = serde_json::from_str(&log).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    let result = results.iter().find(|result| result["ruleId"] == "CL0121").expect("an unknown key");
    assert_eq!(result["level"], "error");
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 5);
    let (code, marks) = world.clinch(&["check", &directory, "--format", "github"]).await;
    assert!(code == 6 && marks.contains("::error file="), "{marks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_what_is_applied_counts_for_the_next_event_and_jobs_in_flight_keep_their_version() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Held, OK]);
    let before = world.post("k-1", r#"{"n":1}"#).await;
    world.target.called(1).await;
    // The step has another path in the new one, and there is another route.
    world.write("workers/charge.yml", &WORKER.replace("TARGET/charge", "TARGET/charge2"));
    world.write("flows/more.yml", &second_route());
    assert_eq!(world.deliver("/hooks/more", &[("idempotency-key", "k-2")], "{}").await.status, 404);
    let applied = apply(&world, json!({})).await;
    assert_eq!((applied.status, live_of(&applied).as_str()), (200, "v2"), "{applied:?}");
    let after = world.deliver("/hooks/more", &[("idempotency-key", "k-2")], "{}").await;
    assert_eq!(after.status, 202, "{after:?}");
    let story = world.wait(after.job(), Word::Success).await;
    assert_eq!((story.row.version.0, world.target.calls_at("/charge2").len()), (2, 1));
    world.target.release();
    let story = world.wait(before.job(), Word::Success).await;
    assert_eq!((story.row.version.0, world.target.calls_at("/charge").len()), (1, 1), "P12");
    let duplicate = world.post("k-1", r#"{"n":1}"#).await;
    assert!(duplicate.is_replayed(), "keys are the same in both: {duplicate:?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_who_made_something_live_and_why_is_on_record_and_shown() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    world.write("flows/more.yml", &second_route());
    assert_eq!(apply(&world, json!({"reason": ""})).await.status, 400);
    let dry = apply(&world, json!({"dry_run": true, "reason": ""})).await;
    assert_eq!((&dry.json()["changed"], &dry.json()["version"]), (&json!(false), &Value::Null));
    assert_eq!(live(&world).await["version"], "v1");
    assert_eq!(apply(&world, json!({"reason": "more orders, REQ-7"})).await.status, 200);
    let shown = live(&world).await;
    assert_eq!((&shown["version"], &shown["live"]["action"]), (&json!("v2"), &json!("config.apply")));
    assert_eq!(shown["live"]["reason"], "more orders, REQ-7");
    let stale = apply(&world, json!({"expect": "v1"})).await;
    stale.check_problem(409, "not-now");
    let (code, said) = world.clinch(&["rollback", "v1", "--reason", "too many", "--yes"]).await;
    assert!(code == 0 && said.contains("v1 is live; before it was v2"), "{said}");
    assert!(said.contains("CL0215"), "the way back has a meaning too: {said}");
    assert_eq!(world.deliver("/hooks/more", &[("idempotency-key", "k")], "{}").await.status, 404);
    let flows = world.admin("/api/v1/flows").await.json();
    let by: Vec<_> = flows["versions"].as_array().unwrap().iter().map(|row| row["by"]["action"].as_str()).collect();
    assert_eq!(by, [Some("config.apply"), Some("config.rollback")]);
    let metrics = world.admin_as(None, "/metrics").await.body;
    assert!(metrics.contains("clinch_config_info{version=\"v1\",hash=\""), "{metrics}");
    assert!(metrics.lines().any(|line| line == "clinch_config_last_reload_successful 1"));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f36_a_workspace_with_errors_or_without_its_secrets_is_refused_and_nothing_changes() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    world.write("workers/charge.yml", &WORKER.replace("max_attempts", "max_attemps"));
    let refused = apply(&world, json!({})).await;
    let told = refused.check_problem(422, "config-invalid");
    assert!(told["detail"].as_str().unwrap().contains("workers/charge.yml:5:"), "{told}");
    assert_eq!(
        world.clinch(&["apply", &world.workspace_dir().display().to_string(), "--reason", "x", "--yes"]).await.0,
        6
    );
    let step = "    http: {url: http://TARGET/charge, headers: {x: '${secrets.NOT_THERE}'}, idempotency: header}\n";
    world.write("workers/charge.yml", &super::world::worker_with_step(&format!("  - name: charge\n{step}")));
    let refused = apply(&world, json!({})).await;
    let told = refused.check_problem(422, "config-invalid");
    assert!(told["detail"].as_str().unwrap().contains("NOT_THERE: it is not set"), "{told}");
    assert_eq!(live(&world).await["version"], "v1");
    assert_eq!(world.post("k-1", "{}").await.status, 202);
    let (code, said) = world.clinch(&["apply", "--reason", "x"]).await;
    assert!(code != 0, "this directory is no workspace: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f36_a_node_that_could_not_run_what_another_made_live_says_no_more_of_it_when_that_is_taken_back() {
    let world = World::new(&[]).await;
    // As another node does it, which has the secret.
    let elsewhere = async |files: Files| {
        let record = Who::clinch("test").record("a story", world.app().house.clock.now());
        let by = Activation::Operator { action: "config.apply", expect: None };
        let ask = ActivateAsk { hash: *files.version().as_bytes(), files: files.to_json(), by, record };
        assert!(matches!(world.app().house.store.activate(ask).await, Ok(Activated::Live(_))));
    };
    let well = async || {
        let metrics = world.admin("/metrics").await.body;
        metrics.lines().any(|line| line == "clinch_config_last_reload_successful 1")
    };
    let own = clinch::workspace::read_files(&world.workspace_dir()).unwrap();
    let step = "    http: {url: http://TARGET/charge, headers: {x: '${secrets.NOT_THERE}'}, idempotency: header}\n";
    world.write("workers/charge.yml", &super::world::worker_with_step(&format!("  - name: charge\n{step}")));
    elsewhere(clinch::workspace::read_files(&world.workspace_dir()).unwrap()).await;
    eventually("it says that it cannot", PATIENCE, async || live(&world).await["refused"] != Value::Null).await;
    assert!(!well().await);
    elsewhere(own).await;
    eventually("nothing is wrong any more", PATIENCE, async || live(&world).await["refused"] == Value::Null).await;
    assert!(well().await);
    assert_eq!(live(&world).await["version"], "v1");
}

#[tokio::test(flavor = "multi_thread")]
async fn f36_a_workspace_that_looks_addresses_up_in_a_file_that_is_not_there_is_refused() {
    let world = World::new(&[]).await;
    let step = "  - name: made\n    enrich: {geoip: {from: body.ip, database: geo/City.mmdb}}\n";
    world.write("workers/charge.yml", &super::world::worker_with_step(step));
    let told = apply(&world, json!({})).await.check_problem(422, "config-invalid");
    assert!(told["detail"].as_str().unwrap().contains("geo/City.mmdb cannot be used"), "{told}");
    assert_eq!(live(&world).await["version"], "v1");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_files_that_were_live_before_do_not_undo_what_an_operator_chose() {
    let mut world = World::with_roles(NO_WORKER, &[]).await;
    let old = FLOW.to_string();
    world.write("flows/more.yml", &second_route());
    assert_eq!(apply(&world, json!({})).await.status, 200);
    // The files on disk are what they were.
    std::fs::remove_file(world.workspace_dir().join("flows/more.yml")).unwrap();
    world.close().await;
    world.open(NO_WORKER).await;
    let kept = world.app().kept.clone().expect("it is said");
    assert!(kept.contains("v2 stays live") && kept.contains("are v1") && kept.contains("clinch apply"), "{kept}");
    assert_eq!(world.deliver("/hooks/more", &[("idempotency-key", "k")], "{}").await.status, 202);
    world.close().await;
    // What nobody has seen is what somebody wants now.
    world.write("flows/orders.yml", &old.replace("ttl: 48h", "ttl: 47h"));
    world.open(NO_WORKER).await;
    assert_eq!((&world.app().kept, &live(&world).await["version"]), (&None, &json!("v3")));
    world.close_and_verify().await;
}

/// Tells the server to read its files again, and waits until it says so.
async fn hang_up(server: &Server, said: &str) {
    let before = server.said().matches(said).count();
    server.signal(Signal::HUP);
    eventually(said, PATIENCE, async || server.said().matches(said).count() > before).await;
}

fn another_way(place: &Place) -> String {
    let flows = place.dir.path().join("workspace/flows");
    let (_, text) = clinch::workspace::read_files(flows.parent().unwrap())
        .unwrap()
        .0
        .into_iter()
        .find(|(path, _)| path.starts_with("flows/"))
        .unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn f36_a_hangup_reads_the_files_again_and_a_bad_one_leaves_the_old_live() {
    let place = Place::new(&[AGAIN]).await;
    let server = place.start().await;
    let metrics = async || {
        let metrics = client().get(format!("{}/metrics", server.admin)).send().await.unwrap();
        metrics.text().await.unwrap()
    };
    let flow = another_way(&place);
    let more = flow.replace("name: again\n", "name: more\n").replace("/again", "/more");
    place.write("flows/more.yml", &more.replace("triggers:", "trigers:"));
    hang_up(&server, "v1 stays live").await;
    assert!(server.said().contains("flows/more.yml:"), "{}", server.said());
    assert!(metrics().await.contains("clinch_config_last_reload_successful 0"));
    let send = async |path: &str, key: &str| {
        let url = format!("{}{path}", server.hook("again").replace("/again", ""));
        let request = client().post(url).header("idempotency-key", key).body("{}");
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!((send("/again", "k-1").await, send("/more", "k-1").await), (202, 404));
    place.write("flows/more.yml", &more);
    hang_up(&server, "v2 (").await;
    eventually("the new one is live", PATIENCE, async || {
        metrics().await.contains("clinch_config_last_reload_successful 1")
    })
    .await;
    assert_eq!((send("/again", "k-2").await, send("/more", "k-2").await), (202, 202));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_files_that_are_watched_become_live_by_themselves() {
    let place = Place::new(&[AGAIN]).await;
    let mut server = place.launch(&place.data_dir, &["--watch"], &[]);
    server.opened().await;
    let more = another_way(&place).replace("name: again\n", "name: more\n").replace("/again", "/more");
    // What is no text is said as well.
    std::fs::write(place.dir.path().join("workspace/flows/more.yml"), [0xff]).unwrap();
    let unread = "v1 stays live: the workspace that was read last cannot be: its files cannot be read";
    eventually("it is said", PATIENCE, async || server.said().contains(unread)).await;
    place.write("flows/more.yml", &more);
    eventually("it is live", PATIENCE, async || server.said().contains("v2 (")).await;
    let url = server.hook("again").replace("/again", "/more");
    let sent = client().post(url).header("idempotency-key", "k").body("{}").send().await.unwrap();
    assert_eq!(sent.status(), 202);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f36_under_load_nothing_is_refused_lost_or_done_twice_while_workspaces_come_and_go() {
    let place = Place::new(&[AGAIN]).await;
    let server = place.start().await;
    let (provider, stop) = (Arc::new(Provider::new(AGAIN)), CancellationToken::new());
    let loading = tokio::spawn({
        let (provider, url, stop) = (provider.clone(), server.intake.clone(), stop.clone());
        async move { provider.load(&url, 8, usize::MAX, &stop).await }
    });
    let more = another_way(&place).replace("name: again\n", "name: more\n").replace("/again", "/more");
    for round in 0..6 {
        let made = provider.made();
        eventually("events flow", PATIENCE, async || provider.made() > made + 20).await;
        match round % 2 {
            0 => place.write("flows/more.yml", &more),
            _ => std::fs::remove_file(place.dir.path().join("workspace/flows/more.yml")).unwrap(),
        }
        hang_up(&server, " is live; jobs in flight keep").await;
    }
    stop.cancel();
    loading.await.unwrap();
    provider.settle(&server.intake).await;
    assert_eq!(provider.refusals(), Default::default(), "nobody was turned away");
    place.drained().await;
    server.stop().await;
    let books = place.books().await;
    super::process::nothing_was_lost_or_repeated(&place.sink, &books, &[provider]).await;
    let versions: std::collections::BTreeSet<i64> = books.jobs().await.values().map(|row| row.version.0).collect();
    assert_eq!(versions.len(), 2, "jobs of both: {versions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_what_is_applied_on_one_node_counts_on_all_within_a_moment() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    let (one, other) = (nodes.start().await, nodes.start().await);
    let flow = another_way(&nodes.place);
    let more = flow.replace("name: again\n", "name: more\n").replace("/again", "/more");
    nodes.place.write("flows/more.yml", &more);
    let directory = nodes.place.dir.path().join("workspace");
    let said = std::process::Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(["apply", directory.to_str().unwrap(), "--reason", "more", "--yes"])
        .env("CLINCH_DATA_DIR", one.data_dir())
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    for (server, key) in [(&one, "k-1"), (&other, "k-2")] {
        let url = server.hook("again").replace("/again", "/more");
        eventually("it is live there", PATIENCE, async || {
            let sent = client().post(&url).header("idempotency-key", key).body("{}").send().await.unwrap();
            sent.status() == 202
        })
        .await;
    }
    one.stop().await;
    other.stop().await;
}

/// How many events a dry run is tried with; more by hand.
fn many() -> usize {
    std::env::var("CLINCH_DRY_RUN_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// The second step reads what the first was answered.
const TWO_STEPS: &str = "
version: 1
name: charge
consumes: {queue: orders}
concurrency: 64
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3, on_exhausted: dlq:orders-dlq}
run:
  - name: find
    http: {method: GET, url: 'http://TARGET/find?n={{ body.n }}', body_from: body, idempotency: natural}
  - name: charge
    if: body.n != 3
    http: {url: http://TARGET/charge, body: {n: '{{ body.n }}', id: '{{ steps.find.output.id }}'}, idempotency: header}
";

async fn dry(world: &World, ask: Value) -> Value {
    let mut body = json!({"to": {"files": files(&world.workspace_dir())}});
    body.as_object_mut().unwrap().extend(ask.as_object().unwrap().clone());
    let answer = world.command("/api/v1/config/dry-run", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_a_dry_run_plans_what_was_recorded_like_the_live_one_and_sends_nothing() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    world.target.script("/find", [Reply::With { status: 200, headers: &[], body: r#"{"id": "c-7"}"# }]);
    let events = many();
    let mut jobs = Vec::new();
    for n in 0..events {
        jobs.push(world.post(&format!("k-{n}"), &json!({ "n": n }).to_string()).await.job());
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    let calls = world.target.calls().len();
    assert_eq!(calls, events * 2 - 1, "one of them skips a step");

    let began = std::time::Instant::now();
    let told = dry(&world, json!({ "last": events })).await;
    let counted = |told: &Value| (told["events"].clone(), told["same"].clone(), told["different"].clone());
    assert_eq!(counted(&told), (json!(events), json!(events), json!(0)), "nothing changed: {told}");
    eprintln!("{events} events in {:?}", began.elapsed());

    // The condition is another: one that was skipped runs, and one that ran is skipped.
    world.write("workers/charge.yml", &TWO_STEPS.replace("body.n != 3", "body.n != 4"));
    let told = dry(&world, json!({ "last": events })).await;
    assert_eq!(counted(&told), (json!(events), json!(events - 2), json!(2)), "{told}");
    let said: Vec<&Value> = told["differences"].as_array().unwrap().iter().map(|one| &one["said"][0]).collect();
    assert_eq!(said, ["charge: skip instead of run (not `body.n != 4`)", "charge: run instead of skip"]);
    // What would be sent is another, whoever it is for.
    world.write("workers/charge.yml", &TWO_STEPS.replace("n: '{{ body.n }}', id:", "number: '{{ body.n }}', id:"));
    let told = dry(&world, json!({ "last": events })).await;
    assert_eq!(counted(&told), (json!(events), json!(1), json!(events - 1)), "{told}");
    assert_eq!(told["differences"][0]["said"], json!(["charge: what would be sent differs"]));
    world.write("workers/charge.yml", &TWO_STEPS.replace("- name: charge\n", "- name: bill\n"));
    let told = dry(&world, json!({ "last": 1 })).await;
    assert_eq!(told["differences"][0]["said"], json!(["charge: it is gone", "bill: it is new (run)"]));
    assert_eq!(world.target.calls().len(), calls, "nobody was called");
    assert_eq!(told["effects_sent"], 0);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_a_dry_run_of_a_flow_counts_its_events_alone() {
    let world = World::with_roles(NO_WORKER, &[("flows/more.yml", &second_route())]).await;
    let send = async |path: &str, key: &str| world.deliver(path, &[("idempotency-key", key)], "{}").await.status;
    for key in ["k-1", "k-2", "k-3"] {
        assert_eq!(send("/hooks/orders", key).await, 202);
    }
    for key in ["k-4", "k-5"] {
        assert_eq!(send("/hooks/more", key).await, 202);
    }
    for (flow, last, events) in [("orders", 2, 2), ("orders", 9, 3), ("more", 9, 2)] {
        let told = dry(&world, json!({"flow": flow, "last": last})).await;
        assert_eq!((&told["events"], &told["same"]), (&json!(events), &json!(events)), "{flow} {last}: {told}");
    }
    assert_eq!(dry(&world, json!({"last": 4})).await["events"], 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_an_event_that_nobody_sent_is_planned_and_says_which_answers_it_needs() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    let directory = world.workspace_dir().display().to_string();
    let (event, plan) = (world.data_dir().join("event.json"), world.data_dir().join("plan.json"));
    std::fs::write(&event, r#"{"n": 1}"#).unwrap();
    std::fs::write(
        &plan,
        json!([{"steps": [
            {"name": "find", "verdict": "run", "effect": {"integration": "127.0.0.1"}},
            {"name": "charge", "verdict": "unknown", "why": "needs the answer of find"},
        ]}])
        .to_string(),
    )
    .unwrap();
    let ask = |more: &[&'static str]| -> Vec<String> {
        let own = ["dry-run", "orders", "--workspace", &directory, "--event", event.to_str().unwrap()];
        own.iter().chain(more).map(|word| word.to_string()).collect()
    };
    let run = async |words: Vec<String>| world.clinch(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let (code, said) = run(ask(&[])).await;
    assert_eq!(code, 0, "{said}");
    for part in
        ["1 event, masked, nothing sent", "run         find", "GET http://127.0.0.1", "needs the answer of find"]
    {
        assert!(said.contains(part), "{part}\n{said}");
    }
    let mut expecting = ask(&[]);
    expecting.extend(["--expect".to_string(), plan.display().to_string()]);
    assert_eq!(run(expecting.clone()).await.0, 0);
    std::fs::write(&event, r#"{"n": 3}"#).unwrap();
    let (code, said) = run(expecting).await;
    assert!(code == 1 && said.contains("plan[0].steps[1].verdict: \"skip\" instead of \"unknown\""), "{said}");
    world.write("workers/charge.yml", &TWO_STEPS.replace("body.n != 3", "body.n != 4"));
    assert_eq!(run(ask(&["--exit-code"])).await.0, 10);
    assert_eq!(world.target.calls().len(), 0);
    let (code, said) = world.clinch(&["dry-run", "--workspace", &directory, "--last", "5"]).await;
    assert!(code == 0 && said.contains("0 events"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_files_of_ones_own_tell_nobody_a_secret_and_are_tried_by_who_may_make_them_live() {
    let world = World::new(&[]).await;
    // Whatever the process has in its environment can be named as a secret.
    let secret = std::env::var("PATH").unwrap();
    let url = "http://TARGET/charge?path=${secrets.PATH}";
    world.write("workers/charge.yml", &WORKER.replace("http://TARGET/charge", &format!("'{url}'")));
    let body = json!({"to": {"files": files(&world.workspace_dir())}, "flow": "orders", "body": {"order": 7}});
    for role in ["viewer", "operator", "approver", "growth"] {
        let user = world.command("/api/v1/users", json!({"name": format!("a-{role}"), "role": role})).await.json();
        let ask =
            world.client.post(world.admin_url("/api/v1/config/dry-run")).bearer_auth(user["token"].as_str().unwrap());
        let refused = Answer::read(ask.body(body.to_string()).send().await.unwrap()).await;
        refused.check_problem(403, "not-allowed");
    }
    let told = world.command("/api/v1/config/dry-run", body).await;
    assert_eq!(told.status, 200, "{told:?}");
    let does = told.json()["plan"][0]["steps"][0]["effect"]["does"].as_str().unwrap().to_string();
    assert!(does.ends_with("/charge?path=***"), "{does}");
    assert!(!told.body.contains(&secret), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_queues_workers_and_schedules_of_what_is_applied_are_served() {
    let world = World::new(&[]).await;
    world.write("queues.yml", &format!("{}  - name: extra\n", super::world::QUEUES));
    let flow = FLOW.replace("name: orders\n", "name: extra\n").replace("/hooks/orders", "/hooks/extra");
    world.write("flows/extra.yml", &flow.replace("queue: {name: orders}", "queue: {name: extra}"));
    let worker = WORKER.replace("name: charge\nconsumes: {queue: orders}", "name: extra\nconsumes: {queue: extra}");
    world.write("workers/extra.yml", &worker.replace("TARGET/charge", "TARGET/extra"));
    // The pool of a queue that stays is another from now on.
    world.write("workers/charge.yml", &WORKER.replace("retry:", "concurrency: 1\nretry:"));
    let tick = "version: 1\nname: tick\nschedule: {cron: '* * * * * *'}\nrun:\n  - name: tick\n    http: {url: http://TARGET/tick, idempotency: natural}\n";
    world.write("workers/tick.yml", tick);
    let applied = apply(&world, json!({})).await;
    assert_eq!(applied.status, 200, "{applied:?}");
    let extra = world.deliver("/hooks/extra", &[("idempotency-key", "k-1")], "{}").await;
    world.wait(extra.job(), Word::Success).await;
    assert_eq!(world.target.calls_at("/extra").len(), 1);
    world.post_and_wait("k-2", "{}", Word::Success).await;
    eventually("the schedule runs", PATIENCE, async || !world.target.calls_at("/tick").is_empty()).await;
    world.close_and_verify().await;
}
