//! The examples, as a reader would run them: the real binary, real Node, a real PostgreSQL.

use super::nodes::shared_postgres;
use super::process::{PATIENCE, Place, Server, client, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// The files of an example, in a workspace of its own.
async fn place(name: &str) -> Place {
    let place = Place::new(&[]).await;
    copy(&example(name), &place.dir.path().join("workspace"));
    place
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() { copy(&source, &target) } else { std::fs::copy(source, target).map(|_| ()).unwrap() }
    }
}

/// The partners of the lead router. They end with the test.
struct Partners {
    child: Child,
    url: String,
}

impl Partners {
    fn start(directory: &Path) -> Partners {
        let mut command = Command::new("node");
        command.arg("partners.mjs").arg("0").current_dir(directory).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().last().unwrap().to_string();
        Partners { child, url }
    }

    async fn seen(&self) -> Value {
        let seen = client().get(format!("{}/_seen", self.url)).send().await.unwrap();
        serde_json::from_str(&seen.text().await.unwrap()).unwrap()
    }

    async fn is_now(&self, verb: &str, partner: &str) {
        let told = client().post(format!("{}/_{verb}/{partner}", self.url)).send().await.unwrap();
        assert_eq!(told.status(), 200);
    }
}

impl Drop for Partners {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SECRET: &str = "a-secret-of-the-form-vendor";

/// The vendor's own program, and what it was told.
async fn send(directory: &Path, server: &Server, leads: usize) -> Value {
    let (directory, url) = (directory.to_path_buf(), format!("{}/intake/lead", server.intake));
    let run = move || {
        Command::new("node")
            .args(["send.mjs", &url, &leads.to_string()])
            .current_dir(directory)
            .env("FORM_SECRET", SECRET)
            .output()
            .unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn cli(place: &Place, args: &[&str]) -> Value {
    let command = Command::new(env!("CARGO_BIN_EXE_clinch"))
        .args(args)
        .arg("--json")
        .arg("--data-dir")
        .arg(&place.data_dir)
        .output()
        .unwrap();
    assert!(command.status.success(), "{args:?}: {}", String::from_utf8_lossy(&command.stderr));
    serde_json::from_slice(&command.stdout).unwrap()
}

/// The addresses that a partner has got, each once.
fn once_each(seen: &Value, field: &str) -> BTreeSet<String> {
    let got: Vec<String> =
        seen.as_array().unwrap().iter().map(|call| call["body"][field].as_str().unwrap_or("").to_string()).collect();
    let distinct: BTreeSet<String> = got.iter().cloned().collect();
    assert_eq!(got.len(), distinct.len(), "somebody came twice: {got:?}");
    distinct
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_the_lead_router_gives_each_lead_to_both_partners_once_whatever_happens() {
    let place = place("lead-router").await;
    let directory = place.dir.path().join("workspace");
    let partners = Partners::start(&directory);
    let env = [
        ("FORM_SECRET", SECRET),
        ("CRM_URL", partners.url.as_str()),
        ("CRM_TOKEN", "demo"),
        ("ANALYTICS_URL", partners.url.as_str()),
    ];
    let server = place.start_with(&env).await;
    assert_eq!(send(&directory, &server, 10).await, json!({"202": 10, "202 again": 5}));
    place.drained().await;
    let seen = partners.seen().await;
    assert_eq!(once_each(&seen["crm"], "email").len(), 10);
    assert_eq!(seen["analytics"].as_array().unwrap().len(), 10);
    assert_eq!(seen["crm"][0]["body"]["country"], "US", "the place was added");
    // Whoever does not sign is refused, and so is nobody's lead.
    let forged = client().post(format!("{}/intake/lead", server.intake)).body("{}").send().await.unwrap();
    assert_eq!(forged.status(), 401);

    partners.is_now("down", "crm").await;
    assert_eq!(send(&directory, &server, 20).await, json!({"202": 10, "202 again": 20}));
    // The first ones give up; the circuit opens, and the others wait for it at no cost.
    eventually("some give up", PATIENCE, async || place.jobs("dead") > 0).await;
    eventually("analytics has them all", PATIENCE, async || {
        partners.seen().await["analytics"].as_array().unwrap().len() == 20
    })
    .await;
    partners.is_now("up", "crm").await;
    eventually("the others go on by themselves", PATIENCE, async || place.jobs("success") + place.jobs("dead") == 20)
        .await;
    let dead = cli(&place, &["dlq", "ls"]);
    let dead: Vec<&str> = dead["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert!(!dead.is_empty());
    for job in dead {
        let shown = cli(&place, &["jobs", "show", job]).to_string();
        assert!(shown.contains("1 of 2 branches are done; missing: crm"), "{shown}");
        cli(&place, &["replay", job, "--reason", "the CRM is back"]);
    }
    eventually("all are done", PATIENCE, async || place.jobs("success") == 20).await;
    server.stop().await;
    let seen = partners.seen().await;
    assert_eq!(once_each(&seen["crm"], "email").len(), 20);
    assert_eq!(seen["analytics"].as_array().unwrap().len(), 20, "a replay calls only what is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn c7_the_contact_intake_writes_each_contact_once_into_postgresql() {
    let postgres = shared_postgres();
    tokio::task::block_in_place(|| postgres.create_database("contact_intake"));
    let url = postgres.url("contact_intake");
    let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = std::fs::read_to_string(example("contact-intake").join("schema.sql")).unwrap();
    database.batch_execute(&schema).await.unwrap();
    let place = place("contact-intake").await;
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/senders/node_modules");
    assert!(modules.join("pg").exists(), "run `npm ci` in crates/clinch/tests/senders");
    std::os::unix::fs::symlink(modules, place.dir.path().join("workspace/node_modules")).unwrap();

    let server = place.start_with(&[("DATABASE_URL", &url)]).await;
    let post = async |key: &str, body: Value| {
        let request = client().post(format!("{}/intake/contact", server.intake)).body(body.to_string());
        let answer = request.header("idempotency-key", key).send().await.unwrap();
        (answer.status().as_u16(), answer.headers().contains_key("idempotent-replayed"))
    };
    for n in 0..20 {
        let body = json!({"tenant": "acme", "contact": {"email": format!("P{n}@example.com"), "first_name": "P"}});
        assert_eq!(post(&format!("c-{n}"), body.clone()).await, (202, false));
        assert_eq!(post(&format!("c-{n}"), body).await, (202, true));
    }
    // The same contact under another key is another write of the same row.
    let again = json!({"tenant": "acme", "contact": {"email": "p0@example.com", "first_name": "Q"}});
    assert_eq!(post("c-again", again).await, (202, false));
    assert_eq!(post("c-bad", json!({"tenant": "acme", "contact": {}})).await, (202, false));
    eventually("all but one are done", PATIENCE, async || place.jobs("success") == 21).await;
    let rows = database.query("select email, writes from contacts order by id", &[]).await.unwrap();
    assert_eq!(rows.len(), 20);
    let writes: i64 = rows.iter().map(|row| i64::from(row.get::<_, i32>("writes"))).sum();
    assert_eq!(writes, 21, "each key wrote once");
    let effects = database.query_one("select count(*) from effects where contact is not null", &[]).await.unwrap();
    assert_eq!(effects.get::<_, i64>(0), 21);
    eventually("the bad one gives up", PATIENCE, async || place.jobs("dead") == 1).await;
    server.stop().await;
}
