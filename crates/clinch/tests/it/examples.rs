//! The examples, as a reader would run them: the real binary, real Node, a real PostgreSQL.

use super::nodes::shared_postgres;
use super::policies::zone_at;
use super::process::{Place, Server, client, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Looks and scripts are processes of their own here, and circuits stay open for seconds.
const PATIENCE: Duration = Duration::from_secs(120);

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// The files of an example, in a workspace of its own.
pub async fn place(name: &str) -> Place {
    let place = Place::new(&[]).await;
    furnish(&place, name);
    place
}

pub fn furnish(place: &Place, name: &str) {
    // It comes with an empty list of queues, and some examples need none.
    std::fs::remove_file(place.dir.path().join("workspace/queues.yml")).unwrap();
    copy(&example(name), &place.dir.path().join("workspace"));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() { copy(&source, &target) } else { std::fs::copy(source, target).map(|_| ()).unwrap() }
    }
}

/// The stand-ins of an example. They end with the test.
pub struct Partners {
    child: Child,
    pub url: String,
    /// The mail server, where there is one.
    pub smtp: String,
}

impl Partners {
    pub fn start(directory: &Path, program: &str) -> Partners {
        let mut command = Command::new("node");
        command.args([program, "0", "0"]).current_dir(directory).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at = |scheme| line.split_whitespace().find(|word| word.starts_with(scheme)).unwrap_or_default().to_string();
        Partners { child, url: at("http:"), smtp: at("smtp:") }
    }

    pub async fn seen(&self) -> Value {
        let seen = client().get(format!("{}/_seen", self.url)).send().await.unwrap();
        serde_json::from_str(&seen.text().await.unwrap()).unwrap()
    }

    pub async fn is_now(&self, how: &str) {
        let told = client().post(format!("{}/_{how}", self.url)).send().await.unwrap();
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
    sent(directory, ("FORM_SECRET", SECRET), &[&format!("{}/intake/lead", server.intake), &leads.to_string()]).await
}

/// `send.mjs` of an example, and what it was told.
async fn sent(directory: &Path, secret: (&'static str, &'static str), args: &[&str]) -> Value {
    let mut command = Command::new("node");
    command.arg("send.mjs").args(args).current_dir(directory).env(secret.0, secret.1);
    let run = move || command.output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn cli(place: &Place, args: &[&str]) -> Value {
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
    let partners = Partners::start(&directory, "partners.mjs");
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

    partners.is_now("down/crm").await;
    assert_eq!(send(&directory, &server, 20).await, json!({"202": 10, "202 again": 20}));
    // The first ones give up; the circuit opens, and the others wait for it at no cost.
    eventually("some give up", PATIENCE, async || place.jobs("dead") > 0).await;
    eventually("analytics has them all", PATIENCE, async || {
        partners.seen().await["analytics"].as_array().unwrap().len() == 20
    })
    .await;
    partners.is_now("up/crm").await;
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

pub const SHOP: &str = "a-secret-of-the-shop";

/// What the cart recovery reads from its environment.
pub fn cart_recovery(partners: &Partners) -> [(&'static str, &str); 4] {
    [
        ("SHOP_SECRET", SHOP),
        ("CODES_URL", partners.url.as_str()),
        ("CODES_TOKEN", "demo"),
        ("SMTP_URL", partners.smtp.as_str()),
    ]
}

/// How many codes were made, and mails with such a subject sent; none of them twice.
async fn at_the_sink(partners: &Partners, subject: &str) -> (usize, usize) {
    let seen = partners.seen().await;
    let each = |list: &str, of: &dyn Fn(&Value) -> String| {
        let all: Vec<String> = seen[list].as_array().unwrap().iter().map(of).collect();
        let distinct: BTreeSet<&String> = all.iter().collect();
        assert_eq!(all.len(), distinct.len(), "twice: {all:?}");
        all
    };
    let codes = each("codes", &|code| code["customer"].to_string());
    let mails = each("mails", &|mail| format!("{} to {}", mail["subject"].as_str().unwrap(), mail["to"]));
    (codes.len(), mails.iter().filter(|mail| mail.contains(subject)).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_g1_g2_e4_the_cart_recovery_reminds_and_discounts_once_with_consent_and_with_people() {
    let place = place("cart-recovery").await;
    let directory = place.dir.path().join("workspace");
    let as_written = include_str!("../../../core/tests/cart-recovery/playbooks/cart-recovery.yaml");
    assert_eq!(std::fs::read_to_string(directory.join("playbooks/cart-recovery.yaml")).unwrap(), as_written);
    let partners = Partners::start(&directory, "partner.mjs");
    let server = place.start_with(&cart_recovery(&partners)).await;
    let shop = format!("{}/in/shop", server.intake);
    let send = async |args: &[&str]| sent(&directory, ("SHOP_SECRET", SHOP), &[&[shop.as_str()], args].concat()).await;
    let sink = async |what: &str, subject: &str, expected: (usize, usize)| {
        eventually(what, PATIENCE, async || at_the_sink(&partners, subject).await == expected).await;
    };
    let ends = async |state: &str, of: &str| {
        let told = cli(&place, &["jobs", "ls", "--state", state, "--limit", "500"]);
        told["jobs"].as_array().unwrap().iter().filter(|job| job.to_string().contains(of)).count()
    };
    let forged = client().post(&shop).header("x-shopify-webhook-id", "1").body("{}").send().await.unwrap();
    assert_eq!(forged.status(), 401);

    // A moment that stays in its five minutes, however long the test takes.
    const NOW: &str = r#"{"timestamp": "2026-08-01T10:40:00Z"}"#;
    // Every cart comes twice: half of them under another id, which is found out by customer, store and time.
    assert_eq!(send(&["10", NOW]).await, json!({"202": 15, "202 again": 5}));
    sink("all are reminded", "left something", (8, 10)).await;
    sink("small discounts are given", "10 % off", (8, 8)).await;
    // High ones are decided by people.
    let ask = async |count: usize| {
        eventually("they ask", PATIENCE, async || {
            cli(&place, &["approve", "ls"])["approvals"].as_array().unwrap().len() == count
        })
        .await;
    };
    ask(2).await;
    let asked = cli(&place, &["approve", "ls"]);
    let [yes, no] = [0, 1].map(|nth| asked["approvals"][nth]["id"].as_str().unwrap());
    cli(&place, &["approve", "yes", yes, "--reason", "a good customer"]);
    cli(&place, &["approve", "no", no, "--reason", "too much"]);
    sink("one of them is given", "25 % off", (9, 1)).await;
    eventually("the other is not", PATIENCE, async || ends("noop", "approval_rejected").await == 1).await;

    // Who has not agreed, who sleeps, and who has had two mails today.
    send(&["1", r#"{"customer_id": "c-501", "agreed": []}"#]).await;
    eventually("no consent", PATIENCE, async || ends("noop", "rule `consent`").await == 2).await;
    let night = json!({"customer_id": "c-502", "time_zone": zone_at(2)}).to_string();
    send(&["1", &night]).await;
    eventually("they sleep", PATIENCE, async || ends("waiting", "quiet_hours").await == 2).await;
    send(&["1", r#"{"timestamp": "2026-08-01T10:45:00Z"}"#]).await;
    eventually("enough for today", PATIENCE, async || ends("noop", "rule `frequency`").await == 2).await;
    assert_eq!(at_the_sink(&partners, "").await, (9, 19));

    // Whoever makes the codes throttles: discounts wait, in safe mode that nobody had to turn on, and reminders go on.
    partners.is_now("throttle/100").await;
    partners.is_now("slow/50").await;
    send(&["40", NOW]).await;
    let safe = async || cli(&place, &["safe-mode", "status"])["on"].clone();
    eventually("safe mode is on", PATIENCE, async || safe().await[0]["scope"] == "integration:codes").await;
    sink("all are reminded", "left something", (9, 40)).await;
    ask(6).await;
    cli(&place, &["approve", "yes", "--query", "flow:cart-discount", "--max", "6", "--reason", "checked list"]);
    eventually("nobody calls any more", PATIENCE, async || {
        ends("waiting", "safe_mode").await + ends("dead", "rate_limited").await == 30
    })
    .await;
    partners.is_now("well").await;
    cli(&place, &["safe-mode", "off", "--drain", "100/s"]);
    let dead = ends("dead", "rate_limited").await;
    sink("what waited is let go", "% off", (39 - dead, 39 - dead)).await;
    for job in cli(&place, &["dlq", "ls"])["jobs"].as_array().unwrap() {
        cli(&place, &["replay", job["id"].as_str().unwrap(), "--reason", "they are well again"]);
    }
    sink("the others are replayed", "% off", (39, 39)).await;

    // By hand, for all: a reminder that promises nothing, and no discount until it is over.
    cli(&place, &["safe-mode", "on", "--reason", "a wrong price"]);
    send(&["1", r#"{"customer_id": "c-503", "email": "c-503@example.com"}"#]).await;
    sink("a calm reminder", "Your cart is saved", (39, 1)).await;
    eventually("no discount", PATIENCE, async || ends("waiting", "safe_mode").await == 1).await;
    cli(&place, &["safe-mode", "off"]);
    sink("then a discount", "% off", (40, 40)).await;
    server.stop().await;
    place.verified();
}
