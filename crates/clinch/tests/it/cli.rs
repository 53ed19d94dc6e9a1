//! The command line as people and scripts use it: the real binary, its output, its exit codes.

use crate::world::{OK, Reply, World};
use clinch_core::job::Word;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BODY: &str = r#"{"order":7}"#;

pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {:?}; {}", self.out, self.err))
    }
}

fn say(command: &mut Command) -> Said {
    heard(command.env_remove("CLINCH_TOKEN"))
}

fn heard(command: &mut Command) -> Said {
    said(command.env_remove("CLINCH_URL").stdin(Stdio::null()).output().unwrap())
}

fn said(output: Output) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

pub fn clinch(data_dir: &Path, arguments: &[&str]) -> Said {
    say(Command::new(env!("CARGO_BIN_EXE_clinch")).args(arguments).env("CLINCH_DATA_DIR", data_dir))
}

/// In the hands of whoever has this token.
pub fn clinch_as(data_dir: &Path, token: &str, arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    heard(command.args(arguments).env("CLINCH_DATA_DIR", data_dir).env("CLINCH_TOKEN", token))
}

/// With something typed, as the admin or in the hands of whoever has this token.
pub fn clinch_with(data_dir: &Path, token: Option<&str>, typed: &str, arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(arguments).env("CLINCH_DATA_DIR", data_dir).env_remove("CLINCH_URL").env_remove("CLINCH_TOKEN");
    command.envs(token.map(|token| ("CLINCH_TOKEN", token)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may not read any of it.
    let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    said(child.wait_with_output().unwrap())
}

/// Blocking, and the house runs in the same process: it must not wait for this thread.
pub async fn ask(world: &World, arguments: &[&str]) -> Said {
    let (data_dir, arguments) = (world.data_dir(), arguments.iter().map(|a| a.to_string()).collect::<Vec<_>>());
    let ask = move || clinch(&data_dir, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(ask).await.unwrap()
}

fn workspace(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

#[test]
fn j1_check_reports_every_problem_at_once_with_its_place_and_exits_with_6() {
    let directory = workspace(&[
        ("queues.yml", "queues:\n  - name: orders\n    retention: 4\n"),
        (
            "flows/in.yml",
            "name: in\ntriggers:\n  - http:\n      pth: /in\nsteps:\n  - name: go\n    queue: {name: ordres}\n",
        ),
    ]);
    let said = say(Command::new(env!("CARGO_BIN_EXE_clinch")).arg("check").arg(directory.path()));
    assert_eq!(said.code, 6, "{}", said.err);
    for part in
        ["queues.yml:3:16", "4s", "flows/in.yml:4:7", "did you mean `path`", "flows/in.yml:7:19", "orders", "^^^"]
    {
        assert!(said.out.contains(part), "no `{part}` in:\n{}", said.out);
    }
    let serve = say(Command::new(env!("CARGO_BIN_EXE_clinch")).arg("serve").arg("--workspace").arg(directory.path()));
    assert_eq!((serve.code, serve.out.as_str()), (6, ""));
    assert!(serve.err.contains("flows/in.yml:4:7"), "{}", serve.err);
}

#[test]
fn j1_the_schema_is_json_and_names_every_kind_of_file() {
    let said = clinch(Path::new("."), &["schema"]);
    assert_eq!(said.code, 0);
    assert_eq!(said.json()["oneOf"].as_array().unwrap().len(), 7);
}

#[test]
fn a_wrong_word_is_a_usage_error_and_prints_no_data() {
    for arguments in [&["jobs", "ls", "-o", "JSON"][..], &["frobnicate"], &["replay"], &["jobs", "ls", "--limit", "x"]]
    {
        let said = clinch(Path::new("."), arguments);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{arguments:?}: {}", said.err);
    }
}

#[test]
fn a_server_that_is_not_there_is_exit_7_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [&["jobs", "ls"][..], &["dlq", "groups", "--json"], &["key", "show", "k"], &["latency"]] {
        let said = clinch(directory.path(), arguments);
        assert_eq!((said.code, said.out.as_str()), (7, ""), "{arguments:?}");
        assert!(said.err.contains("clinch serve"), "{}", said.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_an_operator_finds_reads_and_replays_a_dead_letter() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), OK]);
    let job = world.post_and_wait("k-1", BODY, Word::Dead).await.row.id.to_string();

    let list = ask(&world, &["dlq", "ls", "--json"]).await;
    assert_eq!(list.code, 0, "{}", list.err);
    assert_eq!(list.json()["jobs"][0]["id"], job.as_str());
    assert_eq!(ask(&world, &["dlq", "ls", "-o", "id"]).await.out.trim(), job);
    let groups = ask(&world, &["dlq", "groups", "--json"]).await.json();
    assert_eq!(groups["groups"][0]["reason"], "auth_failed");
    let shown = ask(&world, &["jobs", "show", &job]).await;
    assert!(shown.out.contains("auth_failed") && shown.out.contains("401"), "{}", shown.out);

    let refused = ask(&world, &["replay", &job]).await;
    assert_eq!((refused.code, refused.out.as_str()), (9, ""), "{}", refused.err);
    let replayed = ask(&world, &["replay", &job, "--reason", "token rotated", "--wait"]).await;
    assert_eq!(replayed.code, 0, "{}", replayed.err);
    world.wait(job.parse().unwrap(), Word::Success).await;
    let again = ask(&world, &["replay", &job, "--reason", "token rotated"]).await;
    assert!(again.err.contains("nothing") || again.out.contains("nothing"), "{} {}", again.out, again.err);
    assert_eq!(world.target.calls().len(), 2);

    let key = ask(&world, &["key", "show", "k-1", "--json"]).await;
    assert!(key.out.contains("token rotated"), "{}", key.out);
    assert_eq!(ask(&world, &["jobs", "show", "job_0000000000000"]).await.code, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_the_runbooks_names_work_word_for_word() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(422), OK]);
    let job = world.post_and_wait("k-1", BODY, Word::Dead).await.row.id.to_string();
    let bin = tempfile::tempdir().unwrap();
    let at = bin.path().to_str().unwrap().to_string();
    assert_eq!(ask(&world, &["aliases", "install", "--dir", &at]).await.code, 0);
    let alias = async |name: &str, arguments: &[&str]| {
        let mut command = Command::new(bin.path().join(name));
        command.args(arguments).env("CLINCH_DATA_DIR", world.data_dir());
        tokio::task::spawn_blocking(move || say(&mut command)).await.unwrap()
    };
    let tail = alias("dlq_tail", &[]).await;
    assert_eq!(tail.code, 0, "{}", tail.err);
    assert!(tail.out.contains(&job) && tail.err.contains("= clinch dlq tail"), "{} {}", tail.out, tail.err);
    let histogram = alias("latency_histogram", &["--window", "15m", "--percentile", "95"]).await;
    assert!(histogram.code == 0 && histogram.out.contains("p95"), "{} {}", histogram.out, histogram.err);
    let replay = alias("replay_msg", &["--id", &job, "--reason", "fixed"]).await;
    assert_eq!(replay.code, 0, "{}", replay.err);
    world.wait(job.parse().unwrap(), Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_every_command_prints_json_or_nothing() {
    let world = World::new(&[]).await;
    let job = world.post_and_wait("k-1", BODY, Word::Success).await.row.id.to_string();
    for arguments in [
        &["jobs", "ls"][..],
        &["jobs", "show", &job],
        &["dlq", "ls"],
        &["dlq", "groups"],
        &["key", "show", "k-1"],
        &["latency"],
        &["version"],
        &["about"],
        &["top"],
        &["jobs", "ls", "state:success"],
        &["find", "state:success"],
        &["events", "ls"],
        &["dlq", "tail"],
        &["dlq", "shapes", "--flow", "orders", "--reason", "timeout"],
        &["dlq", "drop", "ls"],
        &["replay", "ls"],
        &["effects", "ls"],
        &["approve", "ls"],
        &["pauses"],
        &["safe-mode", "status"],
        &["alerts", "ls"],
        &["alerts", "history"],
        &["alerts", "rules"],
        &["alerts", "print"],
        &["budget", "ls"],
        &["schedules", "ls"],
        &["integrations", "ls"],
        &["flows", "ls"],
        &["flows", "show", "orders"],
        &["sources", "ls"],
        &["presets", "ls"],
        &["set"],
        &["keys", "ls"],
        &["audit", "ls"],
        &["audit", "verify"],
        &["users", "ls"],
        &["users", "me"],
        &["token", "ls"],
        &["open"],
        &["runbook"],
        &["runbook", "timeout"],
        &["openapi"],
        &["explain"],
        &["explain", "CL0121"],
        &["doctor", "store"],
        &["schema"],
        &["send", "orders", "-d", BODY, "--key", "k-2"],
        &["send", "orders", "-d", "{\"n\": 1}", "--key", "m-{n}", "--times", "20"],
    ] {
        let said = ask(&world, &[arguments, &["-o", "json"][..]].concat()).await;
        assert_eq!(said.code, 0, "{arguments:?}: {}", said.err);
        said.json();
    }
    let verify = ask(&world, &["verify", "--json"]).await;
    assert_eq!(verify.code, 0, "{}", verify.err);
    verify.json();
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_send_tells_a_duplicate_and_a_conflict_apart() {
    let world = World::new(&[]).await;
    let send = async |body: &str| ask(&world, &["send", "orders", "-d", body, "--key", "k"]).await;
    let (first, again, other) = (send(BODY).await, send(BODY).await, send("{}").await);
    assert!(first.code == 0 && first.out.contains("accepted"), "{} {}", first.out, first.err);
    assert!(again.code == 0 && again.out.contains("duplicate"), "{} {}", again.out, again.err);
    assert_eq!((other.code, other.out.as_str()), (5, ""));
}

#[test]
fn the_demo_adds_up_and_leaves_a_store_that_does() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let said = clinch(directory.path(), &["demo", "--exit", "--events", "200", "--dir", at]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    for line in ["accepted                 200", "duplicates stopped        40", "effects repeated           0"] {
        assert!(said.out.contains(line), "no `{line}` in\n{}", said.out);
    }
    let verify = clinch(&directory.path().join(".clinch"), &["verify"]);
    assert_eq!(verify.code, 0, "{}", verify.err);
}

#[test]
fn completions_are_printed_for_shells() {
    let said = clinch(Path::new("."), &["completions", "bash"]);
    assert!(said.code == 0 && said.out.contains("clinch"), "{}", said.err);
}
