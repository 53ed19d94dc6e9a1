//! What the command line says, word for word: tables, JSON and errors of one small house in which something of everything has
//! happened. `INSTA_UPDATE=always` writes the files below `snapshots/` anew; a change of them is a change for whoever reads or parses it.

use crate::process::eventually;
use crate::replays::{TWO_STEPS, dead};
use crate::world::{PATIENCE, World};
use clinch_core::job::Word;
use serde_json::Value;

const SETTINGS: &str = "
sources:
  form: {verify: none, key_from: 'body:/id'}
integrations:
  crm: {base_url: 'http://TARGET', idempotency: header, honoured_for: 1h, rate: 50/s}
egress: {allow: [127.0.0.1]}
";

/// What differs from run to run: ids, times, ports, hashes, and the blanks that a column is wide.
const CHANGING: &[(&str, &str)] = &[
    (r"\b(job|evt|rpl|apr|key|tok|drop)_[0-9a-zA-Z]{8,}", "${1}_ID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d(\.\d+)?)?Z?", "TIME"),
    (r"\b\d\d:\d\d(:\d\d(\.\d+)?)?\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"\b[0-9a-f]{12,64}\b", "HASH"),
    (r"\b\d+(\.\d+)? ?(µs|us|ms|s|m|h)(\d+[sm])?\b( \d+ ?(ms|s|m))?", "SPAN"),
    (r#"("[a-z_0-9]*(seconds|_ms|p50|p95|p99|bytes|micros)[a-z_]*": ?)[0-9.e-]+"#, "${1}NUMBER"),
    (r"\b\d+(\.\d+)? (B|KB|KiB|MB|MiB|GB|GiB|TB|TiB)\b", "SIZE"),
    (r"[─━]{3,}", "---"),
    (r" {2,}", "  "),
    (r"(?m) +$", ""),
];

/// A house with two ended jobs, three dead letters of one kind, a duplicate and a rejection.
async fn lived_in() -> World {
    let world = World::new(&[("clinch.yml", SETTINGS), ("workers/charge.yml", TWO_STEPS)]).await;
    for key in ["first", "second"] {
        world.post_and_wait(key, r#"{"order":7}"#, Word::Success).await;
    }
    world.post("first", r#"{"order":7}"#).await;
    world.post("first", r#"{"order":8}"#).await;
    dead(&world, 3).await;
    // The second body under the first key is an alert, a moment later.
    let fires = async || !world.admin("/api/v1/alerts").await.json()["alerts"].as_array().unwrap().is_empty();
    eventually("the conflict is an alert", PATIENCE, fires).await;
    world
}

async fn said(world: &World, commands: &[&[&str]]) -> String {
    let mut told = String::new();
    for arguments in commands {
        let (code, said) = world.clinch(arguments).await;
        told.push_str(&format!("$ clinch {}\n{}\nexit {code}\n\n", arguments.join(" "), said.trim_end()));
    }
    told
}

fn check(name: &str, told: String) {
    let mut settings = insta::Settings::clone_current();
    settings.set_filters(CHANGING.iter().copied());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, told));
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_tables_say_what_they_said_before() {
    let world = lived_in().await;
    let lists: &[&[&str]] = &[
        &["jobs", "ls"],
        &["jobs", "ls", "state:dead"],
        &["events", "ls"],
        &["dlq", "ls"],
        &["dlq", "groups"],
        &["dlq", "shapes", "--flow", "orders", "--reason", "rejected_by_target"],
        &["effects", "ls"],
        &["flows", "ls"],
        &["integrations", "ls"],
        &["sources", "ls"],
        &["approve", "ls"],
        &["budget", "ls"],
        &["schedules", "ls"],
        &["pauses"],
        &["safe-mode", "status"],
        &["alerts", "ls"],
        &["alerts", "rules"],
        &["users", "ls"],
        &["token", "ls"],
        &["replay", "ls"],
        &["key", "show", "first"],
        &["find", "reason:rejected_by_target"],
        &["audit", "ls"],
    ];
    let lists: Vec<Vec<&str>> =
        lists.iter().map(|arguments| [*arguments, &["-o", "table", "--color", "never"]].concat()).collect();
    let lists: Vec<&[&str]> = lists.iter().map(Vec::as_slice).collect();
    check("tables", said(&world, &lists).await);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_errors_say_what_is_wrong_and_what_to_do_as_before() {
    let world = lived_in().await;
    let refused: &[&[&str]] = &[
        &["jobs", "show", "job_0000000000000"],
        &["jobs", "show", "nonsense"],
        &["jobs", "ls", "reson:auth_failed"],
        &["jobs", "ls", "-o", "TABLE"],
        &["dlq", "ls", "--since", "soon"],
        &["replay", "job_0000000000000", "--reason", "again"],
        &["replay", "plan", "reason:nothing"],
        &["replay", "apply", "rpl_0000000000000", "--reason", "again"],
        &["effects", "resolve", "job_0000000000000/mail", "--done", "--proof", "seen", "--reason", "seen"],
        &["key", "show", "never-sent"],
        &["safe-mode", "on"],
        &["pause", "flow:nowhere", "--reason", "quiet"],
        &["set", "nothing.at.all", "5", "--reason", "more"],
        &["users", "add", "ada", "--role", "king", "--reason", "new"],
        &["latency", "--window", "15"],
        &["runbook", "nothing"],
        &["jobs", "ls", "--url", "http://127.0.0.1:1"],
        &["check", "/nowhere"],
        &["jbos"],
    ];
    check("errors", said(&world, refused).await);
    world.close_and_verify().await;
}

/// The names of all that a document has, in order, with what kind of value each is: fields may be added, and none may go.
fn outline(value: &Value, at: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, field)| outline(field, &format!("{at}.{name}"), lines)),
        Value::Array(items) => items.iter().for_each(|item| outline(item, &format!("{at}[]"), lines)),
        Value::String(text) if at.ends_with(".schema") => lines.push(format!("{at}: {text}")),
        Value::String(_) => lines.push(format!("{at}: text")),
        Value::Number(_) => lines.push(format!("{at}: number")),
        Value::Bool(_) => lines.push(format!("{at}: true or false")),
        Value::Null => lines.push(format!("{at}: nothing")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_json_has_the_fields_that_it_had_before() {
    let world = lived_in().await;
    let mut told = String::new();
    for arguments in [
        &["jobs", "ls"][..],
        &["events", "ls"],
        &["dlq", "ls"],
        &["dlq", "groups"],
        &["effects", "ls"],
        &["flows", "ls"],
        &["integrations", "ls"],
        &["sources", "ls"],
        &["safe-mode", "status"],
        &["alerts", "ls"],
        &["users", "ls"],
        &["key", "show", "first"],
        &["find", "reason:rejected_by_target"],
        &["audit", "ls"],
        &["top"],
        &["about"],
        &["latency"],
    ] {
        let (code, said) = world.clinch(&[arguments, &["-o", "json"]].concat()).await;
        // What is on standard error comes after it.
        let document = serde_json::Deserializer::from_str(&said).into_iter::<Value>().next();
        let document = document.and_then(Result::ok).unwrap_or_else(|| panic!("{arguments:?} is not JSON: {said}"));
        let mut lines = Vec::new();
        outline(&document, "", &mut lines);
        lines.sort();
        lines.dedup();
        told.push_str(&format!("$ clinch {} -o json\n{}\nexit {code}\n\n", arguments.join(" "), lines.join("\n")));
    }
    check("json", told);
    world.close_and_verify().await;
}
