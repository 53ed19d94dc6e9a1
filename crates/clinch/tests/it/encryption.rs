//! Encryption at rest with the real binary: what is on disk, who may start, a new key while serving, and what is left of
//! somebody who asked to be forgotten.

use super::nodes::{KEY, Nodes, shared_postgres};
use super::process::{AGAIN, PATIENCE, Pace, Place, Provider, Server, eventually, keys_in};
use clinch::encryption::KEY_FILE;
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::seal::NotOpened;
use clinch_store::read::AuditFilter;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const OTHER_KEY: &str = "1f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100";
const EMAIL: &str = "ada.lovelace+goldfinch@example.org";

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Every byte in this directory, but for the key file.
fn bytes_in(directory: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|path| path.is_file() && path.file_name().unwrap() != KEY_FILE);
    files.flat_map(|path| std::fs::read(path).unwrap()).collect()
}

/// What a command says as JSON, while a server of this process' runtime may have to answer it.
fn clinch(data_dir: &Path, arguments: &[&str], stdin: &str) -> (i32, Value, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(arguments)
        .arg("--json")
        .env("CLINCH_DATA_DIR", data_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let out = tokio::task::block_in_place(|| child.wait_with_output()).unwrap();
    let document = serde_json::from_slice(&out.stdout).unwrap_or_default();
    (out.status.code().unwrap(), document, String::from_utf8_lossy(&out.stderr).into_owned())
}

fn done(data_dir: &Path, arguments: &[&str], stdin: &str) -> Value {
    let (code, document, said) = clinch(data_dir, arguments, stdin);
    assert_eq!(code, 0, "{said}");
    document
}

async fn post(server: &Server, key: &str, body: &Value) -> (EventId, JobId, bool) {
    let request = reqwest::Client::builder().no_proxy().build().unwrap().post(server.hook(AGAIN.name));
    let answer = request.header("idempotency-key", key).body(body.to_string()).send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let again = answer.headers().contains_key("idempotent-replayed");
    let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let id = |name: &str| body[name].as_str().unwrap();
    (id("event_id").parse().unwrap(), id("job_id").parse().unwrap(), again)
}

fn about(email: &str) -> Value {
    json!({"id": "1", "email": email, "note": format!("please write to {email}")})
}

fn key_rows(data_dir: &Path) -> Vec<(String, String, u64)> {
    let keys = done(data_dir, &["keys", "ls"], "");
    let row = |key: &Value| {
        let text = |name: &str| key[name].as_str().unwrap().to_string();
        (text("id"), text("state"), key["payloads"].as_u64().unwrap())
    };
    keys["keys"].as_array().unwrap().iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p9_k2_nothing_of_an_event_can_be_read_in_the_files_of_the_store() {
    let place = Place::new(&[AGAIN]).await;
    let server = place.start().await;
    eventually("it says so", PATIENCE, async || server.said().contains("keep a copy elsewhere")).await;
    post(&server, "ada-key-goldfinch", &about(EMAIL)).await;
    place.drained().await;
    assert!(!has(&bytes_in(&place.data_dir), "goldfinch"), "while it serves");
    server.stop().await;
    let bytes = bytes_in(&place.data_dir);
    assert!(has(&bytes, AGAIN.name), "the search finds what is there");
    assert!(!has(&bytes, "goldfinch") && !has(&bytes, "lovelace"));
    place.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t106_a_store_is_not_opened_without_its_key() {
    let place = Place::new(&[AGAIN]).await;
    let settings = "encryption: {key: '${secrets.STORE_KEY}'}\n";
    place.write("clinch.yml", settings);
    let refused = async |env: &[(&str, &str)]| {
        let mut server = place.spawn(env);
        assert!(!server.exited().await.success());
        server.said()
    };
    assert!(refused(&[]).await.contains("STORE_KEY (encryption)"));
    let said = refused(&[("STORE_KEY", "too short")]).await;
    assert!(said.contains("openssl rand -hex 32") && !said.contains("too short"), "{said}");
    assert!(!place.data_dir.exists(), "a start that fails leaves no data behind");

    let server = place.start_with(&[("STORE_KEY", KEY)]).await;
    post(&server, "k", &about(EMAIL)).await;
    place.drained().await;
    let [(key, state, payloads)] = &key_rows(&place.data_dir)[..] else { panic!("one key") };
    assert_eq!((state.as_str(), *payloads), ("active", 1));
    server.stop().await;
    assert!(!place.data_dir.join(KEY_FILE).exists());

    let said = refused(&[("STORE_KEY", OTHER_KEY)]).await;
    assert!(said.contains(&format!("the store has data under {key}")), "{said}");
    place.write("clinch.yml", "encryption: none\n");
    assert!(refused(&[]).await.contains(key));
    place.write("clinch.yml", "");
    let said = refused(&[]).await;
    assert!(said.contains(key) && said.contains("put the file back"), "{said}");
    place.write("clinch.yml", settings);
    place.start_with(&[("STORE_KEY", KEY)]).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t104_a_job_whose_data_was_changed_is_a_dead_letter_and_sends_nothing() {
    let place = Place::new(&[AGAIN]).await;
    let mut idle = place.launch(&place.data_dir, &["--roles", "intake,admin"], &[]);
    idle.opened().await;
    let (event, changed, _) = post(&idle, "changed", &about(EMAIL)).await;
    let (other, moved, _) = post(&idle, "moved", &about("grace@example.org")).await;
    let (_, whole, _) = post(&idle, "whole", &json!({"id": "whole"})).await;
    idle.stop().await;
    let file = rusqlite::Connection::open(place.data_dir.join("clinch.db")).unwrap();
    let (event, other) = (event.number().cast_signed(), other.number().cast_signed());
    // One lies in the place of another, and then one byte of the first is another.
    file.execute("UPDATE event SET payload = (SELECT payload FROM event WHERE id = ?1) WHERE id = ?2", [event, other])
        .unwrap();
    let mut sealed: Vec<u8> =
        file.query_row("SELECT payload FROM event WHERE id = ?1", [event], |row| row.get(0)).unwrap();
    *sealed.last_mut().unwrap() ^= 1;
    file.execute("UPDATE event SET payload = ?2 WHERE id = ?1", rusqlite::params![event, sealed]).unwrap();
    drop(file);
    let server = place.start().await;
    place.drained().await;
    for job in [changed, moved] {
        let shown = done(&place.data_dir, &["jobs", "show", &job.to_string()], "");
        assert_eq!((&shown["job"]["state"], &shown["job"]["reason"]), (&json!("dead"), &json!("unreadable")));
        assert!(shown["job"]["error"].as_str().unwrap().contains("changed or belongs to another row"), "{shown}");
        assert_eq!(shown["job"]["attempts"], json!(1), "it is not tried again and again");
    }
    assert_eq!(done(&place.data_dir, &["jobs", "show", &whole.to_string()], "")["job"]["state"], "success");
    assert_eq!(place.sink.calls().iter().map(|call| &*call.event).collect::<Vec<_>>(), ["whole"]);
    server.stop().await;
    place.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t106_a_key_is_rotated_while_the_server_serves() {
    let place = Place::new(&[AGAIN]).await;
    let server = place.start().await;
    let provider = Arc::new(Provider::new(AGAIN));
    let stop = CancellationToken::new();
    let load = tokio::spawn({
        let (provider, stop, intake) = (provider.clone(), stop.clone(), server.intake.clone());
        async move { provider.load(&intake, 4, 100_000, &stop).await }
    });
    eventually("events are done", PATIENCE, async || place.sink.count() > 100).await;
    let old = keys_in(&place.data_dir).unwrap().active().to_string();
    let rotated = done(&place.data_dir, &["keys", "rotate"], "");
    assert!(rotated["changed"].as_u64().unwrap() > 100, "{rotated}");
    let new = keys_in(&place.data_dir).unwrap().active().to_string();
    assert_ne!(old, new);
    let done_by_then = place.sink.count();
    eventually("it goes on", PATIENCE, async || place.sink.count() > done_by_then + 100).await;
    stop.cancel();
    load.await.unwrap();
    provider.settle(&server.intake).await;
    // A busy machine may have accepted more than it did, for as long as the load lasted.
    let left = || place.jobs("queued") + place.jobs("retrying");
    eventually("every job ends", 4 * PATIENCE, async || left() == 0).await;
    let rows = key_rows(&place.data_dir);
    assert_eq!(rows.iter().map(|row| (&*row.0, &*row.1)).collect::<Vec<_>>(), [(&*new, "active")]);
    assert_eq!(rows[0].2 as usize, provider.made());
    server.stop().await;

    // Nothing is under the old key: the store opens without it.
    let file = place.data_dir.join(KEY_FILE);
    let text = std::fs::read_to_string(&file).unwrap();
    let first = text.lines().find(|line| !line.starts_with('#')).unwrap();
    std::fs::write(&file, first).unwrap();
    let server = place.start().await;
    server.stop().await;
    let books = place.books().await;
    for job in provider.acknowledged().into_values() {
        assert!(books.story(job).await.payload.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t108_what_is_kept_of_a_person_is_forgotten() {
    let place = Place::new(&[AGAIN]).await;
    place.sink.answer_with(|call| if call.event == "dead" { 400 } else { 200 });
    let server = place.start().await;
    let mut gone = vec![post(&server, "done", &about(EMAIL)).await];
    gone.push(post(&server, "dead", &json!({"id": "dead", "who": EMAIL.to_uppercase()})).await);
    place.drained().await;
    let other = post(&server, "other", &about("grace@example.org")).await;
    place.drained().await;
    // One waits for its turn while the others of its worker are held.
    place.sink.pace(Pace::Held);
    for nth in 0..AGAIN.concurrency {
        post(&server, &format!("held-{nth}"), &json!({"id": format!("held-{nth}")})).await;
    }
    place.sink.called(3 + AGAIN.concurrency).await;
    gone.push(post(&server, "waiting", &about(EMAIL)).await);

    let looked = done(&place.data_dir, &["forget", "--value", EMAIL, "--dry-run"], "");
    assert_eq!((&looked["changed"], &looked["state"]), (&json!(3), &json!("done")));
    let (code, _, said) = clinch(&place.data_dir, &["forget", "--value", EMAIL], "");
    assert!(code == 9 && said.contains("reason"), "{said}");
    let (code, _, said) =
        clinch(&place.data_dir, &["forget", "--value", EMAIL, "--reason", &format!("of {EMAIL}")], "");
    assert!(code == 2 && !said.contains("goldfinch"), "{said}");
    let forgotten =
        done(&place.data_dir, &["forget", "--value", "-", "--reason", "request 4711"], &format!("{EMAIL}\n"));
    assert_eq!((&forgotten["changed"], &forgotten["jobs_unfinished"]), (&json!(3), &json!(1)));
    assert_eq!(forgotten["jobs_running"], json!(0));
    let again = done(&place.data_dir, &["forget", "--value", EMAIL, "--dry-run"], "");
    assert_eq!(again["changed"], json!(0), "nothing of it is left");

    let calls = place.sink.count();
    place.sink.pace(Pace::Prompt);
    place.drained().await;
    assert_eq!(place.sink.count(), calls, "what waited is not sent");
    assert_eq!(post(&server, "done", &about(EMAIL)).await, (gone[0].0, gone[0].1, true), "a duplicate is known");
    let shown = done(&place.data_dir, &["jobs", "show", &gone[2].1.to_string()], "");
    assert_eq!((&shown["job"]["state"], &shown["job"]["reason"]), (&json!("dead"), &json!("forgotten")));
    assert!(shown["unread"].as_str().unwrap().contains("erased"), "{shown}");
    assert!(!has(server.said().as_bytes(), "goldfinch"));
    let event = done(&place.data_dir, &["forget", "--event", &other.0.to_string(), "--reason", "request 4712"], "");
    assert_eq!(event["changed"], json!(1));
    server.stop().await;
    place.verified();
    let books = place.books().await;
    for (_, job, _) in &gone {
        let story = books.story(*job).await;
        assert_eq!(story.payload, Err(NotOpened::Forgotten));
        assert!(!format!("{story:?}").contains("goldfinch"), "{story:?}");
    }
    assert_eq!(books.story(gone[0].1).await.row.word, Word::Success);
    assert_eq!(books.story(gone[2].1).await.row.reason, Some(Reason::Forgotten));
    let audit: Vec<_> = books.0.audit(AuditFilter::last(100)).await.unwrap();
    assert_eq!(audit.iter().filter(|row| row.action == "data.forget").count(), 2);
    assert!(!format!("{audit:?}").contains("goldfinch"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t108_what_is_forgotten_is_gone_from_the_files_also_where_nothing_is_encrypted() {
    let place = Place::new(&[AGAIN]).await;
    place.write("clinch.yml", "encryption: none\n");
    let server = place.start().await;
    eventually("it says so", PATIENCE, async || server.said().contains("everything is stored readable")).await;
    for nth in 0..20 {
        let email = if nth % 3 == 0 { EMAIL.into() } else { format!("{nth}@example.org") };
        post(&server, &format!("k{nth}"), &about(&email)).await;
    }
    place.drained().await;
    assert!(has(&bytes_in(&place.data_dir), "goldfinch"), "the search finds what is there");
    let forgotten = done(&place.data_dir, &["forget", "--value", EMAIL, "--reason", "request 4711"], "");
    assert_eq!(forgotten["changed"], json!(7));
    let bytes = bytes_in(&place.data_dir);
    assert!(!has(&bytes, "goldfinch") && has(&bytes, "19@example.org"), "the database and its log, while it serves");
    server.stop().await;
    place.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t106_nodes_of_one_database_never_write_what_another_cannot_read() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    let keys = nodes.place.dir.path().join(KEY_FILE);
    let first = nodes.start().await;
    let (_, job, _) = post(&first, "before", &about(EMAIL)).await;
    nodes.drained().await;
    // One that would write with a key that the other does not have does not start.
    std::fs::write(&keys, format!("{OTHER_KEY}\n{KEY}\n")).unwrap();
    let mut hasty = nodes.spawn(&nodes.url, &[]);
    assert!(!hasty.exited().await.success());
    assert!(hasty.said().contains("first give that key to every node under `older`"), "{}", hasty.said());
    // Every node learns the new key, then they write with it one after the other.
    std::fs::write(&keys, format!("{KEY}\n{OTHER_KEY}\n")).unwrap();
    let second = nodes.start().await;
    first.stop().await;
    std::fs::write(&keys, format!("{OTHER_KEY}\n{KEY}\n")).unwrap();
    let third = nodes.start().await;
    post(&third, "after", &about(EMAIL)).await;
    nodes.drained().await;
    second.stop().await;
    let mut data_dirs = std::fs::read_dir(nodes.place.dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let data_dir = data_dirs.find(|path| path.join("server.json").exists()).unwrap();
    assert_eq!(key_rows(&data_dir).iter().map(|row| row.2).collect::<Vec<_>>(), [1, 1]);
    let rotated = done(&data_dir, &["keys", "rotate"], "");
    assert!(rotated["notes"].to_string().contains("it can be removed"), "{rotated}");
    assert_eq!(key_rows(&data_dir).iter().map(|row| row.2).collect::<Vec<_>>(), [2]);
    third.stop().await;
    std::fs::write(&keys, OTHER_KEY).unwrap();
    let last = nodes.start().await;
    assert_eq!(nodes.books().await.story(job).await.row.word, Word::Success);
    last.stop().await;
    // Whoever has no key is not let in either.
    nodes.place.write("clinch.yml", "");
    let mut keyless = nodes.spawn(&nodes.url, &[]);
    assert!(!keyless.exited().await.success());
    assert!(keyless.said().contains("key_"), "{}", keyless.said());
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread")]
async fn k2_nodes_that_were_given_no_key_serve_and_say_that_nothing_is_encrypted() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    nodes.place.write("clinch.yml", "");
    let node = nodes.start().await;
    // It says so when its doors are open.
    eventually("it says that nothing is encrypted", PATIENCE, async || {
        node.said().contains("nothing is encrypted at rest") && node.said().contains("openssl rand -hex 32")
    })
    .await;
    post(&node, "k", &about(EMAIL)).await;
    nodes.drained().await;
    node.stop().await;
    nodes.verified();
}
