//! Statements in databases of others: run once, whatever is lost on the way.

use crate::nodes::shared_postgres;
use crate::process::{Place, Provider, Way};
use crate::world::{World, worker_with_step};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_testbed::{Fate, Proxy};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_postgres::{Client, NoTls};

/// A database with the contacts of somebody.
struct Contacts {
    name: String,
    client: Client,
}

impl Contacts {
    async fn new() -> Contacts {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("contacts_{}", MADE.fetch_add(1, Ordering::Relaxed));
        tokio::task::block_in_place(|| shared_postgres().create_database(&name));
        let (client, connection) = tokio_postgres::connect(&url(&name, shared_postgres().port()), NoTls).await.unwrap();
        tokio::spawn(connection);
        let table = "CREATE TABLE contacts (id serial PRIMARY KEY, email text UNIQUE, age integer CHECK (age > 0), seen integer NOT NULL DEFAULT 1)";
        client.batch_execute(table).await.unwrap();
        Contacts { name, client }
    }

    fn url(&self) -> String {
        url(&self.name, shared_postgres().port())
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn is_run_once(&self) {
        assert_eq!(self.number("SELECT sum(seen) FROM contacts").await, 1);
        assert_eq!(self.number("SELECT count(*) FROM clinch_effects WHERE result IS NOT NULL").await, 1);
    }
}

fn url(database: &str, port: u16) -> String {
    format!("postgres://clinch@127.0.0.1:{port}/{database}")
}

const UPSERT: &str = "INSERT INTO contacts (email, age) VALUES ($1, $2) ON CONFLICT (email) DO UPDATE SET seen = contacts.seen + 1 RETURNING id, email, seen";

fn step(statement: &str, params: &str) -> String {
    format!(
        "  - name: upsert\n    sql: {{database: crm, statement: \"{statement}\", params: {params}, timeout: 10s}}\n"
    )
}

fn settings(url: &str) -> String {
    format!("integrations:\n  crm:\n    url: {url}\n    breaker: none\n")
}

const PARAMS: &str = "['{{ body.email }}', '{{ body.age }}']";
const BODY: &str = r#"{"email":"ada@example.com","age":36}"#;

async fn world(url: &str, statement: &str, params: &str) -> World {
    let worker = worker_with_step(&step(statement, params));
    World::new(&[("clinch.yml", &settings(url)), ("workers/charge.yml", &worker)]).await
}

fn output(effect: &EffectState) -> Value {
    let EffectState::Done(receipt) = effect else { panic!("{effect:?}") };
    serde_json::from_slice(&receipt.body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_statement_is_run_and_its_rows_are_the_output() {
    let contacts = Contacts::new().await;
    let world = world(&contacts.url(), UPSERT, PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let row = json!({"id": 1, "email": "ada@example.com", "seen": 1});
    assert_eq!(output(&story.effects[0].state), json!({"rows": [row], "count": 1}));
    contacts.is_run_once().await;
    let story = world.post_and_wait("b", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state)["rows"][0]["seen"], 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_values_of_every_usual_type_go_in_and_come_out() {
    let contacts = Contacts::new().await;
    let statement = "SELECT $1::boolean AS yes, $2::bigint AS big, $3::numeric AS exact, $4::jsonb AS tree, $5::timestamptz AS at, \
                     $6::uuid AS id, $7::text AS nothing, $8::date AS day, $9::float8 AS real";
    let params = "[true, 9007199254740993, '-12.50', {a: ['{{ body.email }}']}, '2026-01-02T03:04:05Z', \
                  '00112233-4455-6677-8899-aabbccddeeff', '{{ none }}', '2026-02-03', 1.5]";
    let world = world(&contacts.url(), statement, params).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let row = json!({
        "yes": true, "big": 9_007_199_254_740_993_i64, "exact": "-12.50", "tree": {"a": ["ada@example.com"]},
        "at": "2026-01-02T03:04:05.000Z", "id": "00112233-4455-6677-8899-aabbccddeeff", "nothing": null,
        "day": "2026-02-03", "real": 1.5,
    });
    assert_eq!(output(&story.effects[0].state)["rows"][0], row);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_p3_a_commit_whose_answer_is_lost_is_found_again_and_not_repeated() {
    let contacts = Contacts::new().await;
    let proxy = Proxy::to(shared_postgres().port()).await;
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = commits.clone();
    proxy.at_commits(move |sql| {
        let is_first = sql == "COMMIT" && counted.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fate::Cut } else { Fate::Pass }
    });
    let world = world(&url(&contacts.name, proxy.port), UPSERT, PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state)["rows"][0]["seen"], 1, "the first result");
    let outcomes: Vec<&str> = story.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
    assert_eq!((outcomes, story.effects[0].sends), (vec!["unknown", "success"], 2));
    assert_eq!(commits.load(Ordering::Relaxed), 1, "nothing is committed the second time");
    contacts.is_run_once().await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_p3_a_crash_between_the_commit_and_the_record_runs_it_once() {
    for point in ["after_intend", "after_send"] {
        let contacts = Contacts::new().await;
        let way = Way { name: "two", idempotency: "natural", steps: &["upsert"], concurrency: 1 };
        let place = Place::new(&[way]).await;
        place.write("clinch.yml", &settings(&contacts.url()));
        let step = step(UPSERT, "['{{ body.id }}', 7]");
        place.write(
            "workers/two.yml",
            &format!("name: two\nconsumes: {{queue: two}}\nretry: {{base_delay: 10ms}}\nrun:\n{step}"),
        );
        let provider = Provider::new(way);
        let mut server = place.start_with(&[("CLINCH_CRASH_AT", point)]).await;
        provider.deliver(&server.intake).await;
        assert_eq!(server.exited().await.signal(), Some(6), "{point}");
        let server = place.start().await;
        provider.settle(&server.intake).await;
        place.drained().await;
        server.stop().await;
        place.verified();
        contacts.is_run_once().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_the_database_will_not_have_is_a_dead_letter_without_values() {
    let contacts = Contacts::new().await;
    let check = async |statement: &str, params: &str, reason: Reason, said: &str| {
        let world = world(&contacts.url(), statement, params).await;
        let story = world.post_and_wait("a", BODY, Word::Dead).await;
        let error = story.row.error.unwrap();
        assert_eq!((story.row.reason, story.row.attempts), (Some(reason), 1), "{error}");
        assert!(error.contains(said) && !error.contains("ada@"), "{error}");
        assert!(matches!(story.effects[0].state, EffectState::NotDone), "{:?}", story.effects[0]);
    };
    let insert = "INSERT INTO contacts (email, age) VALUES ($1, $2)";
    check(
        insert,
        "['{{ body.email }}', -1]",
        Reason::RejectedByTarget,
        "SQLSTATE 23514, constraint contacts_age_check",
    )
    .await;
    check(insert, "['x', '{{ body.email }}']", Reason::RejectedByTarget, "SQLSTATE 22P02").await;
    check("INSERT INTO kontacts VALUES ($1)", "[1]", Reason::ConfigError, "kontacts").await;
    check(insert, "[1]", Reason::ConfigError, "as many `params`").await;
    check("SELECT '1 day'::interval AS pause", "['{{ body.email }}']", Reason::ConfigError, "").await;
    check("SELECT $1::text AS email, '1 day'::interval AS pause", "['x']", Reason::ConfigError, "`pause::text`").await;
    assert_eq!(contacts.number("SELECT count(*) FROM contacts").await, 0);
    assert_eq!(contacts.number("SELECT count(*) FROM clinch_effects").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_may_work_later_is_tried_again() {
    let contacts = Contacts::new().await;
    // As a server says it that had to choose one of two.
    let trigger = "CREATE SEQUENCE tries;
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF nextval('tries') = 1 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER fail BEFORE INSERT ON contacts FOR EACH ROW EXECUTE FUNCTION fail();";
    contacts.client.batch_execute(trigger).await.unwrap();
    let world = world(&contacts.url(), UPSERT, PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(story.attempts[0].error.as_deref(), Some("step `upsert`: nothing was changed: SQLSTATE 40P01"));
    assert_eq!((story.row.attempts, story.row.failures), (2, 1));
    contacts.is_run_once().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_statement_that_takes_too_long_is_taken_back() {
    let contacts = Contacts::new().await;
    let step = "  - name: upsert\n    sql: {database: crm, statement: 'SELECT pg_sleep(60)', timeout: 300ms}\n";
    let worker = worker_with_step(step);
    let world = World::new(&[("clinch.yml", &settings(&contacts.url())), ("workers/charge.yml", &worker)]).await;
    let story = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 3));
    assert_eq!(contacts.number("SELECT count(*) FROM clinch_effects").await, 0);
}

fn file(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_statement_in_a_sqlite_file_is_run_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crm.db");
    let table = "CREATE TABLE contacts (id INTEGER PRIMARY KEY, email TEXT UNIQUE, age INTEGER CHECK (age > 0), seen INTEGER NOT NULL DEFAULT 1)";
    file(&path).execute_batch(table).unwrap();
    // The second stands first: places count, not the order of their appearance.
    let statement = "INSERT INTO contacts (age, email) VALUES ($2, $1) ON CONFLICT (email) DO UPDATE SET seen = seen + 1 RETURNING id, email, age";
    let world = world(&format!("sqlite:{}", path.display()), statement, PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let row = json!({"id": 1, "email": "ada@example.com", "age": 36});
    assert_eq!(output(&story.effects[0].state), json!({"rows": [row], "count": 1}));
    let story = world.post_and_wait("b", r#"{"email":"bob@example.com","age":-1}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::RejectedByTarget));
    assert!(!story.row.error.unwrap().contains("bob"));
    let counted: i64 = file(&path).query_row("SELECT count(*) FROM clinch_effects", [], |row| row.get(0)).unwrap();
    assert_eq!(counted, 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_p3_a_crash_after_the_commit_in_a_sqlite_file_runs_it_once() {
    let way = Way { name: "two", idempotency: "natural", steps: &["upsert"], concurrency: 1 };
    let place = Place::new(&[way]).await;
    place.write("clinch.yml", &settings("sqlite:crm.db"));
    let step = step("INSERT INTO contacts VALUES ($1)", "['{{ body.id }}']");
    place.write(
        "workers/two.yml",
        &format!("name: two\nconsumes: {{queue: two}}\nretry: {{base_delay: 10ms}}\nrun:\n{step}"),
    );
    let path = place.dir.path().join("workspace/crm.db");
    file(&path).execute_batch("CREATE TABLE contacts (email TEXT)").unwrap();
    let provider = Provider::new(way);
    let mut server = place.start_with(&[("CLINCH_CRASH_AT", "after_send")]).await;
    provider.deliver(&server.intake).await;
    assert_eq!(server.exited().await.signal(), Some(6));
    let server = place.start().await;
    provider.settle(&server.intake).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    let counted: i64 = file(&path).query_row("SELECT count(*) FROM contacts", [], |row| row.get(0)).unwrap();
    assert_eq!(counted, 1);
}
