//! The workspace: what starts, what does not and says why, and that a job keeps the one it was accepted with.

use crate::world::{FLOW, NO_WORKER, OK, QUEUES, Reply, WORKER, World, check_absent, files_below};
use clinch::app::{Roles, StartError};
use clinch_core::config::{self, Code, Files, Problem, position};
use clinch_core::job::Word;
use serde_json::json;
use std::path::Path;

const BODY: &str = r#"{"order":7}"#;

/// Problems as people see them: place, text at the place, sentence.
fn told(files: &Files, problems: &[Problem]) -> Vec<(String, String, String)> {
    let tell = |problem: &Problem| {
        let text = &files.0.iter().find(|(path, _)| *path == problem.file).expect("a file of the workspace").1;
        let (line, column) = position(text, problem.span.start);
        let at = format!("{}:{line}:{column}", problem.file);
        (at, text[problem.span.start..problem.span.end].to_string(), problem.message.clone())
    };
    problems.iter().map(tell).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_the_tutorials_workspace_loads_unchanged_and_what_the_edge_cannot_run_is_refused_by_name() {
    let tutorial = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/tutorial");
    let files = clinch::workspace::read_files(&tutorial).unwrap();
    assert_eq!(files.0.len(), 4);
    let (workspace, warnings) = config::load(&files).expect("it has no errors");
    // The worker with a schedule has a queue of its own.
    assert_eq!((workspace.flows.len(), workspace.workers.len(), workspace.queues.len()), (1, 2, 3));
    assert!(warnings.iter().all(|problem| !problem.is_error()) && workspace.refusals().is_empty());

    let flow = FLOW.replace("queue: {name: orders}", "delay: 2h");
    let texts = [("queues.yml", QUEUES), ("flows/orders.yml", &*flow), ("workers/charge.yml", WORKER)];
    let StartError::Config { files, problems } = World::refusal(&texts).await else { panic!("another refusal") };
    assert!(problems.iter().all(|problem| problem.code == Code::NotYet && problem.help.is_some()), "{problems:#?}");
    let told = told(&files, &problems);
    assert!(told.len() == 1 && told[0].0.starts_with("flows/orders.yml:") && told[0].1 == "delay", "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_everything_that_is_wrong_is_told_at_once_with_its_place() {
    let flow = FLOW.replace("queue: {name: orders}", "queue: {name: ordres}").replace("ttl: 48h", "ttl: 48");
    let worker = WORKER.replace("max_attempts: 3", "max_atempts: 3");
    let refusal = World::refusal(&[("queues.yml", QUEUES), ("flows/a.yml", &flow), ("workers/b.yml", &worker)]).await;
    let StartError::Config { files, problems } = refusal else { panic!("another refusal: {refusal}") };
    let told = told(&files, &problems);
    let has = |file: &str, word: &str| told.iter().any(|(at, text, _)| at.starts_with(file) && text == word);
    assert!(has("flows/a.yml:9:14", "48") && has("flows/a.yml:12:", "ordres"), "{told:#?}");
    assert!(has("workers/b.yml:5:", "max_atempts"), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_cannot_be_says_what_to_do() {
    let said = World::refusal(&[]).await.to_string();
    assert!(said.contains("no workspace here") && said.contains("--workspace"), "{said}");

    let worker = WORKER.replace("body_from: body", "headers: {x-key: \"${secrets.CLINCH_NOBODY_SETS_THIS}\"}");
    let files = [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", worker.as_str())];
    let said = World::refusal(&files).await.to_string();
    assert!(said.contains("CLINCH_NOBODY_SETS_THIS") && said.contains("environment variable"), "{said}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = format!("listen: {}\nadmin: 127.0.0.1:0\n", taken.local_addr().unwrap());
    let files = [("clinch.yml", settings.as_str()), ("queues.yml", QUEUES), ("flows/orders.yml", FLOW)];
    let said = World::refusal(&files).await.to_string();
    assert!(said.contains(&taken.local_addr().unwrap().to_string()) && said.contains("--listen"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_data_directory_has_one_house() {
    let world = World::new(&[]).await;
    let Err(error) = clinch::app::start(world.options(Roles::ALL)).await else { panic!("both started") };
    assert!(error.to_string().contains("another clinch is using"), "{error}");
    world.post_and_wait("k", BODY, Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_secret_reaches_its_target_and_nobody_else() {
    let secret = std::env::var("PATH").expect("every machine has one");
    let worker = WORKER.replace("body_from: body", "headers: {x-key: \"Bearer ${secrets.PATH}\"}");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Drop, Reply::Status(403), OK]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    assert_eq!(world.target.calls().len(), 3);
    assert!(world.target.calls().iter().all(|call| call.headers["x-key"] == format!("Bearer {secret}")));

    let mut answers = vec![world.replay(job, json!({"reason": "look"})).await];
    world.wait(job, Word::Success).await;
    for path in ["jobs", "dead", "dead/groups", "keys?key=k", "latency", "audit", "overview", &format!("jobs/{job}")] {
        answers.push(world.admin(&format!("/api/v1/{path}")).await);
    }
    answers.push(world.admin("/metrics").await);
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:#?}");
    check_absent(&secret, &answers);
    let data = world.data_dir();
    for file in files_below(&data) {
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{} holds the secret", file.display());
    }
}

/// The usual worker, calling another path.
fn calling(path: &str) -> String {
    WORKER.replace("TARGET/charge", &format!("TARGET{path}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_job_runs_the_workspace_that_it_was_accepted_with() {
    let old = calling("/old").replace("base_delay: 10ms", "base_delay: 2s");
    let mut world = World::new(&[("workers/charge.yml", &old)]).await;
    world.target.script("/old", [Reply::Status(503), OK]);
    let waiting = world.post("waiting", BODY).await.job();
    // Who looks late may find it tried again, which changes nothing of what follows.
    world.wait_until(waiting, "tried once", |story| story.row.attempts > 0).await;
    world.close().await;
    world.open(NO_WORKER).await;
    let queued = world.post("queued", BODY).await.job();
    world.close().await;

    world.write("workers/charge.yml", &calling("/new"));
    world.open(Roles::ALL).await;
    let fresh = world.post("fresh", BODY).await.job();
    for job in [waiting, queued, fresh] {
        world.wait(job, Word::Success).await;
    }
    assert_eq!(world.target.calls_at("/old").len(), 3, "one failed call, and then one for each old job");
    assert_eq!(world.target.calls_at("/new").len(), 1);
    let version = async |job| world.job(job).await.row.version;
    assert_eq!(version(waiting).await, version(queued).await);
    assert_ne!(version(waiting).await, version(fresh).await);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_replay_runs_the_old_workspace_unless_the_live_one_is_asked_for() {
    let mut world = World::new(&[("workers/charge.yml", &calling("/old"))]).await;
    world.target.script("/old", [Reply::Status(422)]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    world.close().await;
    world.write("workers/charge.yml", &calling("/new"));
    world.open(Roles::ALL).await;

    assert_eq!(world.replay(job, json!({"reason": "once more"})).await.json()["replayed"], true);
    world.wait_until(job, "dead again", |story| story.row.word == Word::Dead && story.row.attempts == 2).await;
    assert_eq!((world.target.calls_at("/old").len(), world.target.calls_at("/new").len()), (2, 0));

    let ask = json!({"reason": "the url was wrong", "config": "live"});
    assert_eq!(world.replay(job, ask).await.json()["replayed"], true);
    let story = world.wait(job, Word::Success).await;
    assert_eq!((world.target.calls_at("/old").len(), world.target.calls_at("/new").len()), (2, 1));
    assert_eq!(story.row.version, world.app().house.versions.live());
    assert_eq!(world.target.calls_at("/old")[0].key(), world.target.calls_at("/new")[0].key());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_job_keeps_the_secrets_and_the_queue_that_the_live_workspace_no_longer_has() {
    let old = WORKER.replace("body_from: body", "headers: {x-path: \"${secrets.PATH}\"}");
    let mut world = World::with_roles(NO_WORKER, &[("workers/charge.yml", &old)]).await;
    let job = world.post("k", BODY).await.job();
    world.close().await;
    world.write("queues.yml", "queues:\n  - name: others\n  - name: orders-dlq\n");
    world.write("flows/orders.yml", &FLOW.replace("queue: {name: orders}", "queue: {name: others}"));
    world.write("workers/charge.yml", &calling("/new").replace("queue: orders", "queue: others"));
    world.open(Roles::ALL).await;
    world.wait(job, Word::Success).await;
    let calls = world.target.calls();
    assert_eq!((calls.len(), calls[0].path.as_str()), (1, "/charge"));
    assert_eq!(calls[0].headers["x-path"], std::env::var("PATH").unwrap());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_dead_letter_of_a_queue_that_is_gone_can_still_be_replayed() {
    let mut world = World::new(&[("workers/charge.yml", &calling("/old"))]).await;
    world.target.script("/old", [Reply::Status(422)]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    world.close().await;
    world.write("queues.yml", "queues:\n  - name: others\n  - name: orders-dlq\n");
    world.write("flows/orders.yml", &FLOW.replace("queue: {name: orders}", "queue: {name: others}"));
    world.write("workers/charge.yml", &calling("/new").replace("queue: orders", "queue: others"));
    world.open(Roles::ALL).await;

    world.target.script("/old", [OK]);
    assert_eq!(world.replay(job, json!({"reason": "the target was repaired"})).await.json()["replayed"], true);
    world.wait(job, Word::Success).await;
    assert_eq!((world.target.calls_at("/old").len(), world.target.calls_at("/new").len()), (2, 0));
    world.close_and_verify().await;
}
