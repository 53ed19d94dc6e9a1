//! Scripts: real Node, Python and bash, with what they return, what they may see, and how far they may go.

use crate::nodes::shared_postgres;
use crate::process::{PATIENCE, Place, client, eventually};
use crate::world::{FLOW, QUEUES, World};
use clinch::app::StartError;
use clinch_core::config::Code;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_store::read::JobStory;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const BODY: &str = r#"{"order":7}"#;

/// A worker that runs one job at a time, with these lines below its only step.
fn worker(step: &str) -> String {
    let head = "version: 1
name: charge
concurrency: 1
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3, on_exhausted: dlq:orders-dlq}
run:
  - name: script
";
    let lines: String = step.lines().map(|line| format!("    {line}\n")).collect();
    format!("{head}{lines}")
}

async fn world(step: &str) -> World {
    World::new(&[("workers/charge.yml", &worker(step))]).await
}

fn script(uses: &str, more: &str, text: &str) -> String {
    let text: String = text.lines().map(|line| format!("  {line}\n")).collect();
    format!("uses: {uses}\n{more}\nscript: |\n{text}")
}

/// What the step came to, as the ledger has it.
fn output(story: &JobStory) -> Value {
    let effect = story.effects.iter().find(|effect| effect.name == "script").expect("it is in the ledger");
    let EffectState::Done(receipt) = &effect.state else { panic!("it is not done: {story:#?}") };
    serde_json::from_slice(&receipt.body).unwrap()
}

fn error(story: &JobStory) -> &str {
    story.attempts.iter().find_map(|attempt| attempt.error.as_deref()).expect("an attempt failed")
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_string).collect()
}

/// Gone, or a zombie that nobody has asked about yet.
fn has_ended(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('Z'))
}

async fn all_ended(pids: &[String]) {
    eventually("the processes end", PATIENCE, async || pids.iter().all(|pid| has_ended(pid))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_the_result_is_what_is_returned_or_the_last_line_of_json() {
    for (uses, text, result) in [
        ("node:18", "const body = JSON.parse(process.env.BODY);\nreturn { n: body.order };", json!({"n": 7})),
        ("node:18", "console.log('hello');\nconsole.log(JSON.stringify({ n: 7 }));", json!({"n": 7})),
        (
            "node:18",
            "import os from 'node:os';\nconst fs = await import('node:fs');\nreturn typeof fs.readSync + typeof os.cpus",
            json!("functionfunction"),
        ),
        ("node:18", "await 1; console.log('no result')", json!(null)),
        ("node:18", "process.exit(0)", json!(null)),
        (
            "node:18",
            "import process from 'node:process';\nlet all = '';\nfor await (const piece of process.stdin) all += piece;\nreturn all",
            json!(""),
        ),
        ("python:3", "import json, os\nreturn {'n': json.loads(os.environ['BODY'])['order']}", json!({"n": 7})),
        ("python:3", "print('hello')\nprint('[1, 2]')", json!([1, 2])),
        ("python:3", "from json import *\nreturn loads('3')", json!(3)),
        ("bash", "echo hello\necho \"$BODY\"", json!({"order": 7})),
        ("bash", "true", json!(null)),
        ("bash", "true & wait\necho 7", json!(7)),
    ] {
        let world = world(&script(uses, "", text)).await;
        let story = world.post_and_wait("k", BODY, Word::Success).await;
        assert_eq!(output(&story), result, "{uses}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_later_step_reads_what_a_script_came_to() {
    let step = script("node:18", "", "return { id: 'c-' + JSON.parse(process.env.BODY).order };");
    let worker = worker(&step)
        + "  - name: tell\n    http: {url: 'http://TARGET/tell', body: {id: '{{ steps.script.output.id }}'}}\n";
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.post_and_wait("k", BODY, Word::Success).await;
    assert_eq!(world.target.calls_at("/tell")[0].body, r#"{"id":"c-7"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_finds_the_event_in_its_environment_and_nothing_of_the_server() {
    let more = "env: {GREETING: 'hello {{ body.order }}', SECRET: '${secrets.CARGO_PKG_NAME}'}";
    for (uses, text) in [
        ("node:18", "return { ...process.env };"),
        ("python:3", "import os\nreturn dict(os.environ)"),
        ("bash", "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"),
    ] {
        let world = world(&script(uses, more, text)).await;
        let story = world.post_and_wait("the-key", BODY, Word::Success).await;
        let Value::Object(env) = output(&story) else { panic!("an object") };
        let given = |name: &str| env.get(name).and_then(Value::as_str);
        assert_eq!(given("BODY"), Some(BODY), "{uses}");
        assert_eq!(given("IDEMPOTENCY_KEY"), Some("the-key"), "{uses}");
        assert_eq!(given("JOB_ID"), Some(story.row.id.to_string().as_str()), "{uses}");
        assert!(given("EVENT_ID").is_some_and(|event| !event.is_empty()), "{uses}");
        assert_eq!(given("ATTEMPT"), Some("1"), "{uses}");
        assert_eq!(given("GREETING"), Some("hello 7"), "{uses}");
        assert_eq!(given("SECRET"), Some("clinch"), "{uses}");
        // Our own environment has this one in it.
        assert!(std::env::var("CARGO_MANIFEST_DIR").is_ok() && given("CARGO_MANIFEST_DIR").is_none(), "{uses}");
        let known = "BODY IDEMPOTENCY_KEY JOB_ID EVENT_ID ATTEMPT GREETING SECRET PATH HOME LANG TZ PWD SHLVL _ OLDPWD LC_CTYPE";
        // A `python3` that is chosen by a version manager brings names of its own.
        let stray = env.keys().filter(|name| !known.split(' ').any(|known| known == *name) && !name.contains("PYENV"));
        assert_eq!(stray.collect::<Vec<_>>(), Vec::<&String>::new(), "{uses}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_an_error_is_an_answer_and_is_tried_again() {
    for (uses, text, said) in [
        (
            "node:18",
            "console.error('of anna@example.com with ' + process.env.SECRET);\nif (process.env.ATTEMPT === '1') throw new Error('forced transient');",
            "forced transient",
        ),
        (
            "python:3",
            "import os, sys\nprint('of anna@example.com with ' + os.environ['SECRET'], file=sys.stderr)\nif os.environ['ATTEMPT'] == '1':\n    raise ValueError('forced transient')",
            "forced transient",
        ),
        ("bash", "echo \"of anna@example.com with $SECRET\" >&2\n[ \"$ATTEMPT\" != 1 ]", "status 1"),
    ] {
        let world = world(&script(uses, "env: {SECRET: '${secrets.CARGO_MANIFEST_DIR}'}", text)).await;
        let story = world.post_and_wait("k", BODY, Word::Success).await;
        assert_eq!(story.attempts.len(), 2, "{uses}: {story:#?}");
        assert_eq!(story.attempts[0].reason, Some(Reason::ScriptError), "{uses}");
        let error = error(&story);
        assert!(error.contains(said) && error.contains("stderr: of "), "{uses}: {error}");
        assert!(!error.contains("anna") && !error.contains(env!("CARGO_MANIFEST_DIR")), "{uses}: {error}");
        assert_eq!(story.effects[0].sends, 2, "{uses}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_that_cannot_be_loaded_says_where_it_is_wrong() {
    for (uses, text, said) in [
        ("node:18", "const a = 1;\nconst a = 2;", "already been declared"),
        ("node:18", "import { nothing } from './lib/not-there.js';", "not-there.js"),
        ("node:18", "process.exit(3)", "process.exit(3)"),
        ("node:18", "process.exitCode = 3; return 7;", "process.exitCode = 3"),
        ("node:18", "throw Object.create(null)", "has no text"),
        // Half of a character.
        ("node:18", "throw new Error('a \\ud83d!')", "a \u{fffd}"),
        ("python:3", "raise ValueError('a \\ud83d!')", "a \u{fffd}"),
        ("python:3", "x = 1\n  y = 2", "line 2"),
        ("python:3", "import not_there", "not_there"),
        ("python:3", "import sys\nsys.exit(3)", "sys.exit(3)"),
        ("bash", "exit 3", "status 3"),
    ] {
        let world = world(&script(uses, "", text)).await;
        let story = world.post_and_wait("k", BODY, Word::Dead).await;
        assert_eq!((story.row.reason, story.attempts.len()), (Some(Reason::ScriptError), 3), "{uses}: {text}");
        assert!(error(&story).contains(said), "{uses}: {}", error(&story));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_result_that_is_cut_in_the_middle_of_a_character_is_a_result() {
    let world = world(&script("node:18", "", "return '😀'.repeat(9000);")).await;
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    let EffectState::Done(receipt) = &story.effects[0].state else { panic!("{story:#?}") };
    assert!(receipt.body.starts_with("\"😀😀".as_bytes()));
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_module_of_json_is_imported() {
    let text = "import one from './lib/one.json' with { type: 'json' };\nconst two = await import('./lib/one.json', { with: { type: 'json' } });\nreturn [one.n, two.default.n];";
    let worker = worker(&script("node:18", "", text));
    let world = World::new(&[("workers/charge.yml", &worker), ("lib/one.json", r#"{"n": 7}"#)]).await;
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    assert_eq!(output(&story), json!([7, 7]));
}

/// No program can be handed as many bytes as these letters have.
#[tokio::test(flavor = "multi_thread")]
async fn c7_a_body_that_is_too_long_in_bytes_is_a_variable_of_bash() {
    let world =
        world(&script("bash", "env: {LC_ALL: C.UTF-8, ZZ: '{{ body.text }}'}", "env | grep -c ZZ=\necho ${#ZZ}")).await;
    let body = json!({"text": "é".repeat(90_000)}).to_string();
    let story = world.post_and_wait("k", &body, Word::Success).await;
    assert_eq!(output(&story), json!(90_000));
}

/// A line with its process and its key, before anything goes wrong.
fn noted(uses: &str, then: &str) -> String {
    match uses {
        "node:18" => format!(
            "import fs from 'node:fs';\nfs.appendFileSync('runs', process.pid + ' ' + process.env.IDEMPOTENCY_KEY + '\\n');\n{then}"
        ),
        "python:3" => format!(
            "import os, time\nwith open('runs', 'a') as runs:\n    runs.write(str(os.getpid()) + ' ' + os.environ['IDEMPOTENCY_KEY'] + '\\n')\n{then}"
        ),
        _ => format!("echo \"$$ $IDEMPOTENCY_KEY\" >>runs\n{then}"),
    }
}

const FOREVER: [(&str, &str); 3] =
    [("node:18", "for (;;);"), ("python:3", "while True: pass"), ("bash", "while :; do :; done")];

fn workspace(world: &World) -> PathBuf {
    world.options(clinch::app::Roles::ALL).workspace
}

/// The processes of the runs that were noted, and the one key that they all had.
fn runs(world: &World) -> Vec<String> {
    let noted = lines(&workspace(world).join("runs"));
    assert!(noted.iter().all(|line| line.ends_with(" k")), "{noted:?}");
    noted.iter().map(|line| line.split(' ').next().unwrap().to_string()).collect()
}

/// It is run once, ended, and parked until a person says what to do.
async fn check_parked(step: &str, said: &str) {
    assert!(parked(step, said).await, "it has begun: {step}");
}

/// The same. Whether it had begun when it was ended.
async fn parked(step: &str, said: &str) -> bool {
    let world = world(step).await;
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::UnknownOutcome), "{story:#?}");
    assert_eq!(story.effects[0].state, EffectState::Unknown, "{story:#?}");
    assert!(error(&story).contains(said), "{}", error(&story));
    let runs = runs(&world);
    assert!(runs.len() <= 1, "it is never run again by itself: {step}");
    all_ended(&runs).await;
    !runs.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_that_takes_too_long_is_killed_and_parked() {
    for (uses, forever) in FOREVER {
        // Its process starts within that time; on a busy machine it needs more.
        let mut has_begun = false;
        for time in ["2s", "6s", "20s"] {
            let step = script(uses, &format!("timeout: {time}"), &noted(uses, forever));
            has_begun = has_begun || parked(&step, &format!("longer than {time}")).await;
        }
        assert!(has_begun, "{uses}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_process_that_dies_under_a_script_leaves_its_outcome_unknown() {
    for (uses, die) in [
        ("node:18", "process.kill(process.pid, 'SIGKILL'); for (;;);"),
        ("python:3", "os.kill(os.getpid(), 9)"),
        ("bash", "kill -KILL $$"),
    ] {
        check_parked(&script(uses, "", &noted(uses, die)), "its process ended (signal: 9").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_that_writes_too_much_is_ended() {
    for (uses, flood) in [
        ("node:18", "for (;;) console.log('x'.repeat(1000));"),
        ("python:3", "while True: print('x' * 1000)"),
        ("bash", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"),
    ] {
        check_parked(&script(uses, "", &noted(uses, flood)), "wrote more than 1MiB").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_that_takes_too_much_memory_is_ended() {
    for (uses, take) in [
        (
            "node:18",
            "const all = []; for (;;) { all.push(Buffer.alloc(8 << 20, 1)); await new Promise((r) => setTimeout(r, 20)); }",
        ),
        ("python:3", "all = []\nwhile True:\n    all.append(b'x' * (8 << 20))\n    time.sleep(0.02)"),
        // What it starts counts too.
        ("bash", "python3 -c 'import time; x = b\"x\" * (300 << 20); time.sleep(60)'"),
    ] {
        check_parked(&script(uses, "memory: 200MiB", &noted(uses, take)), "more than 200MiB of memory").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_script_that_may_be_repeated_is_run_again_under_the_same_key() {
    for (uses, once) in [
        ("node:18", "if (process.env.ATTEMPT === '1') { process.kill(process.pid, 'SIGKILL'); for (;;); }"),
        ("python:3", "if os.environ['ATTEMPT'] == '1': os.kill(os.getpid(), 9)"),
        ("bash", "[ \"$ATTEMPT\" != 1 ] || kill -KILL $$"),
    ] {
        let world = world(&script(uses, "on_unknown: retry", &noted(uses, once))).await;
        let story = world.post_and_wait("k", BODY, Word::Success).await;
        assert_eq!(story.attempts.len(), 2, "{story:#?}");
        let runs = runs(&world);
        assert_eq!(runs.iter().collect::<BTreeSet<_>>().len(), 2, "each in a process of its own: {runs:?}");
    }
}

/// Counts in a module, and leaves something behind in its environment.
const COUNTING: [(&str, &str, &str, &str); 2] = [
    (
        "node:18",
        "lib/counter.mjs",
        "let n = 0;\nexport const next = () => ++n;",
        "import { next } from './lib/counter.mjs';\nconst seen = process.env.LEFT ?? null;\nprocess.env.LEFT = 'something';\nreturn { n: next(), seen, pid: process.pid };",
    ),
    (
        "python:3",
        "lib/counter.py",
        "n = 0\ndef next():\n    global n\n    n += 1\n    return n",
        "import os\nfrom lib import counter\nseen = os.environ.get('LEFT')\nos.environ['LEFT'] = 'something'\nreturn {'n': counter.next(), 'seen': seen, 'pid': os.getpid()}",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_warm_process_runs_one_job_after_the_other_and_they_share_nothing_but_modules() {
    for (uses, file, module, text) in COUNTING {
        let step = worker(&script(uses, "", text));
        let world = World::new(&[("workers/charge.yml", &step), (file, module)]).await;
        for n in 1..=3 {
            let story = world.post_and_wait(&format!("k{n}"), BODY, Word::Success).await;
            let output = output(&story);
            assert_eq!((&output["n"], &output["seen"]), (&json!(n), &json!(null)), "{uses}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_job_finds_its_own_environment_and_directory_whatever_the_one_before_put_there() {
    for (uses, text) in [
        (
            "node:18",
            "const found = [process.env.IDEMPOTENCY_KEY, process.cwd(), process.pid];\nprocess.env = { ...process.env };\nprocess.chdir('/');\nreturn found;",
        ),
        (
            "python:3",
            "import os\nfrom os import environ\nfound = [environ['IDEMPOTENCY_KEY'], os.getcwd(), os.getpid()]\nos.environ = dict(environ)\nos.chdir('/')\nreturn found",
        ),
    ] {
        let world = world(&script(uses, "", text)).await;
        let first = output(&world.post_and_wait("k1", BODY, Word::Success).await);
        let second = output(&world.post_and_wait("k2", BODY, Word::Success).await);
        assert_eq!((&first[0], &second[0]), (&json!("k1"), &json!("k2")), "{uses}");
        assert_eq!((&first[1], &first[2]), (&second[1], &second[2]), "{uses}: {first} {second}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_status_counts_for_the_job_that_set_it() {
    let text = "if (process.env.ATTEMPT === '1') process.exitCode = 3;\nreturn process.pid;";
    let world = world(&script("node:18", "", text)).await;
    let first = world.post_and_wait("k1", BODY, Word::Success).await;
    assert_eq!((first.attempts.len(), first.attempts[0].reason), (2, Some(Reason::ScriptError)), "{first:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_process_whose_environment_cannot_be_changed_any_more_is_replaced() {
    let text = "Object.freeze(process.env);\nreturn process.env.IDEMPOTENCY_KEY;";
    let world = world(&script("node:18", "", text)).await;
    for (key, attempts) in [("k1", 1), ("k2", 2)] {
        let story = world.post_and_wait(key, BODY, Word::Success).await;
        assert_eq!((output(&story), story.attempts.len()), (json!(key), attempts));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_isolation_gives_every_job_a_process_of_its_own() {
    for (uses, file, module, text) in COUNTING {
        let step = worker(&script(uses, "isolation: process", text));
        let world = World::new(&[("workers/charge.yml", &step), (file, module)]).await;
        let mut pids = Vec::new();
        for n in 1..=3 {
            let story = world.post_and_wait(&format!("k{n}"), BODY, Word::Success).await;
            assert_eq!(output(&story)["n"], 1, "{uses}");
            pids.push(output(&story)["pid"].to_string());
        }
        assert_eq!(pids.iter().collect::<BTreeSet<_>>().len(), 3, "{uses}: {pids:?}");
        all_ended(&pids).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_scripts_that_wait_for_others_run_in_more_processes_than_there_are_processors() {
    let together = std::thread::available_parallelism().map_or(1, usize::from).max(2) + 2;
    // None of them ends before all of them have begun.
    for (uses, text) in [
        (
            "node:18",
            "while (fs.readFileSync('runs', 'utf8').split('\\n').length <= ALL) await new Promise((on) => setTimeout(on, 200));",
        ),
        ("python:3", "while len(open('runs').readlines()) < ALL: time.sleep(0.2)"),
        ("bash", "while [ $(wc -l <runs) -lt ALL ]; do sleep 0.2; done"),
    ] {
        let step = script(uses, "timeout: 2m", &noted(uses, &text.replace("ALL", &together.to_string())));
        let step = worker(&step).replace("concurrency: 1", "concurrency: 64");
        let world = World::new(&[("workers/charge.yml", &step)]).await;
        let mut jobs = Vec::new();
        for n in 0..together {
            jobs.push(world.post(&format!("k{n}"), BODY).await.job());
        }
        for job in jobs {
            world.wait(job, Word::Success).await;
        }
    }
}

/// Many jobs of one script, none of which ends before all are there.
async fn many(text: &str, more: &str, jobs: usize) -> (World, Vec<JobId>) {
    let text = format!("while (!fs.existsSync('go')) await new Promise((on) => setTimeout(on, 10));\n{text}");
    let step = worker(&script("node:18", more, &noted("node:18", &text))).replace("concurrency: 1", "concurrency: 64");
    let world = World::new(&[("workers/charge.yml", &step)]).await;
    let mut posted = Vec::new();
    for n in 0..jobs {
        posted.push(world.post(&format!("k{n}"), &json!({"order": n}).to_string()).await.job());
    }
    std::fs::write(workspace(&world).join("go"), "").unwrap();
    (world, posted)
}

/// How often each key was noted.
fn noted_keys(world: &World) -> BTreeMap<String, usize> {
    let mut keys = BTreeMap::new();
    for line in lines(&workspace(world).join("runs")) {
        *keys.entry(line.split(' ').next_back().unwrap().to_string()).or_default() += 1;
    }
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_jobs_that_follow_each_other_at_once_have_their_own_results_and_errors() {
    const JOBS: usize = 400;
    let text = "const { order } = JSON.parse(process.env.BODY);
console.error('said by ' + order + '.');
if (order % 10 === 7 && process.env.ATTEMPT === '1') throw new Error('thrown by ' + order + '.');
if (order % 3) await new Promise((on) => setImmediate(on));
if (order % 2) return { order };
console.log(JSON.stringify({ order }));";
    let (world, jobs) = many(text, "", JOBS).await;
    for (n, job) in jobs.into_iter().enumerate() {
        let story = world.wait(job, Word::Success).await;
        assert_eq!(output(&story), json!({"order": n}));
        if n % 10 == 7 {
            let error = error(&story);
            assert!(error.contains(&format!("thrown by {n}.")), "{n}: {error}");
            assert!(error.ends_with(&format!("stderr: said by {n}.")), "{n}: {error}");
        }
    }
    let expected = (0..JOBS).map(|n| (format!("k{n}"), if n % 10 == 7 { 2 } else { 1 })).collect();
    assert_eq!(noted_keys(&world), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_process_that_dies_leaves_one_job_in_doubt_and_those_behind_it_are_run_once() {
    const JOBS: usize = 300;
    let text = "const { order } = JSON.parse(process.env.BODY);
if (order % 100 === 50) process.kill(process.pid, 'SIGKILL');
if (order % 100 === 75) for (;;);";
    let (world, jobs) = many(text, "timeout: 5s", JOBS).await;
    for (n, job) in jobs.into_iter().enumerate() {
        if n % 100 == 50 || n % 100 == 75 {
            let story = world.wait(job, Word::Dead).await;
            assert_eq!(story.row.reason, Some(Reason::UnknownOutcome), "{n}: {story:#?}");
        } else {
            let story = world.wait(job, Word::Success).await;
            assert_eq!(story.attempts.len(), 1, "{n}: {story:#?}");
        }
    }
    assert_eq!(noted_keys(&world), (0..JOBS).map(|n| (format!("k{n}"), 1)).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_job_that_waits_for_long_does_not_hold_up_those_behind_it() {
    const JOBS: usize = 200;
    // It ends when all others have begun.
    let text = format!(
        "const all = () => fs.readFileSync('runs', 'utf8').split('\\n').length > {JOBS};
if (JSON.parse(process.env.BODY).order === 100) while (!all()) await new Promise((on) => setTimeout(on, 50));"
    );
    let (world, jobs) = many(&text, "timeout: 60s", JOBS).await;
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    assert_eq!(noted_keys(&world), (0..JOBS).map(|n| (format!("k{n}"), 1)).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_steps_with_other_secrets_or_other_text_have_other_processes() {
    let (uses, file, module, text) = COUNTING[0];
    let text: String = text.lines().map(|line| format!("      {line}\n")).collect();
    let step = |name: &str, env: &str| {
        format!("  - name: {name}\n    uses: {uses}\n    env: {{{env}}}\n    script: |\n{text}")
    };
    let head = worker("").replace("  - name: script\n", "");
    let worker = [head, step("script", "A: '1'"), step("other", "A: '2'"), step("same", "A: '1'")].concat();
    let world = World::new(&[("workers/charge.yml", &worker), (file, module)]).await;
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    let counted: BTreeMap<&str, Value> = story
        .effects
        .iter()
        .map(|effect| {
            let EffectState::Done(receipt) = &effect.state else { panic!("{story:#?}") };
            (effect.name.as_str(), serde_json::from_slice::<Value>(&receipt.body).unwrap()["n"].clone())
        })
        .collect();
    assert_eq!(counted, BTreeMap::from([("script", json!(1)), ("other", json!(1)), ("same", json!(2))]));
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_process_that_ended_between_jobs_is_replaced_and_nothing_is_lost() {
    let world = world(&script("node:18", "", "return process.pid;")).await;
    let first = output(&world.post_and_wait("k1", BODY, Word::Success).await);
    assert!(Command::new("kill").args(["-9", &first.to_string()]).status().unwrap().success());
    all_ended(&[first.to_string()]).await;
    let second = world.post_and_wait("k2", BODY, Word::Success).await;
    assert_eq!(second.attempts.len(), 1, "{second:#?}");
    assert_ne!(output(&second), first);
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_server_that_stops_ends_its_processes() {
    let mut world = world(&script("node:18", "", "return process.pid;")).await;
    let pid = output(&world.post_and_wait("k", BODY, Word::Success).await).to_string();
    assert!(!has_ended(&pid), "it is kept warm");
    world.close().await;
    all_ended(&[pid]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_scripts_end_with_a_server_that_was_killed() {
    for (uses, forever) in FOREVER {
        let place = Place::new(&[]).await;
        place.write("queues.yml", QUEUES);
        place.write("flows/orders.yml", FLOW);
        place.write("workers/charge.yml", &worker(&script(uses, "timeout: 600s", &noted(uses, forever))));
        let mut server = place.start().await;
        let hook = format!("{}/hooks/orders", server.intake);
        let answer = client().post(hook).header("idempotency-key", "k").body(BODY).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let file = place.dir.path().join("workspace/runs");
        eventually("the script runs", PATIENCE, async || !lines(&file).is_empty()).await;
        let pid = lines(&file)[0].split(' ').next().unwrap().to_string();
        assert!(!has_ended(&pid), "{uses} runs");
        server.kill9();
        all_ended(&[pid]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_a_runtime_that_is_not_there_is_refused_by_serve_and_told_by_check() {
    let worker = worker(&script("node:999", "", "return 1;"));
    let files = [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", worker.as_str())];
    let StartError::Config { problems, .. } = World::refusal(&files).await else { panic!("another refusal") };
    assert_eq!(problems.iter().map(|problem| problem.code).collect::<Vec<_>>(), [Code::NoRuntime]);
    assert!(problems[0].is_error() && problems[0].help.as_deref().unwrap().contains("nodejs"), "{problems:#?}");

    let dir = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let out = Command::new(env!("CARGO_BIN_EXE_clinch")).arg("check").arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && said.contains("CL0171") && said.contains("node:999"), "{said}");
}

/// A handler as people write it: one transaction that upserts and writes down under which key.
pub const CONTACTS: &str = "
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.DB_URL, max: 2 });

export async function upsertContact({ tenant_id, payload }, key) {
  const link = await pool.connect();
  try {
    await link.query('begin');
    const upsert = `insert into contacts (tenant_id, email, first_name) values ($1, $2, $3)
      on conflict (tenant_id, email) do update set first_name = excluded.first_name, writes = contacts.writes + 1
      returning id`;
    const { rows } = await link.query(upsert, [tenant_id, payload.email, payload.first_name ?? null]);
    const effect = `insert into effects (idempotency_key, effect_type, ref_id) values ($1, 'upsert-contact', $2)
      on conflict do nothing`;
    await link.query(effect, [key, rows[0].id]);
    await link.query('commit');
    return { contactId: rows[0].id };
  } catch (error) {
    await link.query('rollback');
    throw error;
  } finally {
    link.release();
  }
}
";

pub const TABLES: &str = "
create table contacts (
  id bigserial primary key, tenant_id text, email text, first_name text, writes int not null default 1,
  unique (tenant_id, email)
);
create table effects (
  idempotency_key text, effect_type text, ref_id bigint, created_at timestamptz not null default now(),
  primary key (idempotency_key, effect_type)
);
";

#[tokio::test(flavor = "multi_thread")]
async fn c7_the_tutorials_worker_runs_unchanged_with_a_real_handler_on_postgresql() {
    const CONTACTS_SENT: usize = 20;
    let postgres = shared_postgres();
    tokio::task::block_in_place(|| postgres.create_database("contacts"));
    let url = postgres.url("contacts");
    let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    database.batch_execute(TABLES).await.unwrap();

    let place = Place::new(&[]).await;
    let tutorial = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/tutorial");
    for file in ["queues.yml", "flows/ingest.yml", "workers/contact-upsert.yml"] {
        place.write(file, &std::fs::read_to_string(tutorial.join(file)).unwrap());
    }
    place.write("lib/contacts.js", CONTACTS);
    place.write("package.json", r#"{"type": "module"}"#);
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders/node_modules");
    assert!(modules.join("pg").exists(), "run `npm ci` in crates/clinch/tests/senders");
    std::os::unix::fs::symlink(modules, place.dir.path().join("workspace/node_modules")).unwrap();

    let server = place.start_with(&[("DB_URL", &url)]).await;
    let client = client();
    let post = async |n: usize| {
        let body = json!({"tenant_id": "acme", "payload": {"email": format!("p{n}@example.com"), "first_name": "P"}});
        let request = client.post(format!("{}/intake/contact", server.intake)).body(body.to_string());
        let answer = request.header("idempotency-key", format!("key-{n}")).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        answer.headers().contains_key("idempotent-replayed")
    };
    for n in 0..CONTACTS_SENT {
        assert!(!post(n).await, "the first of its key");
        assert!(post(n).await, "a duplicate is answered as the first was");
    }
    place.drained().await;
    for n in 0..CONTACTS_SENT {
        assert!(post(n).await, "a duplicate of what is done");
    }
    server.stop().await;
    assert_eq!(place.jobs("success"), CONTACTS_SENT as i64);

    let contacts = database.query("select email, writes from contacts order by id", &[]).await.unwrap();
    assert_eq!(contacts.len(), CONTACTS_SENT);
    assert!(contacts.iter().all(|row| row.get::<_, i32>("writes") == 1), "each was written once");
    let joined = "select e.idempotency_key, c.email from effects e join contacts c on c.id = e.ref_id";
    let effects: BTreeMap<String, String> =
        database.query(joined, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected = (0..CONTACTS_SENT).map(|n| (format!("key-{n}"), format!("p{n}@example.com"))).collect();
    assert_eq!(effects, expected, "the delivery's key is in the effect's row");
}
