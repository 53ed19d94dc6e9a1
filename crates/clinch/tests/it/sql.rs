//! Statements in databases of others: run once, whatever is lost on the way.

use crate::nodes::shared_postgres;
use crate::process::{Place, Provider, Way};
use crate::world::{World, worker_with_step};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_testbed::{Fate, Mariadb, MysqlProxy, Proxy};
use mysql_async::prelude::Queryable;
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Mutex;
use tokio_postgres::NoTls;

/// One for all tests; each has a database of its own.
fn shared_mariadb() -> &'static Mariadb {
    static SHARED: OnceLock<Mariadb> = OnceLock::new();
    tokio::task::block_in_place(|| SHARED.get_or_init(Mariadb::start))
}

/// Stories that are the same on every server.
macro_rules! on_every_server {
    ($($story:ident)*) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(super::Kind::Postgres).await;
            })*
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(super::Kind::Mariadb).await;
            })*
        }
    };
}

on_every_server! {
    c8_a_statement_is_run_and_its_rows_are_the_output
    c8_p3_a_commit_whose_answer_is_lost_is_found_again_and_not_repeated
    c8_p3_a_crash_between_the_commit_and_the_record_runs_it_once
    c8_what_the_database_will_not_have_is_a_dead_letter_without_values
    c8_a_statement_that_takes_too_long_is_taken_back
    c8_a_parameter_is_a_value_whatever_it_says
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Postgres,
    Mariadb,
}

impl Kind {
    fn port(self) -> u16 {
        match self {
            Kind::Postgres => shared_postgres().port(),
            Kind::Mariadb => shared_mariadb().port(),
        }
    }

    fn url(self, database: &str, port: u16) -> String {
        let scheme = if self == Kind::Postgres { "postgres" } else { "mysql" };
        format!("{scheme}://clinch@127.0.0.1:{port}/{database}")
    }

    fn upsert(self) -> &'static str {
        match self {
            Kind::Postgres => {
                "INSERT INTO contacts (email, age) VALUES ($1, $2) ON CONFLICT (email) DO UPDATE SET seen = contacts.seen + 1 RETURNING id, email, seen"
            }
            Kind::Mariadb => {
                "INSERT INTO contacts (email, age) VALUES ($1, $2) ON DUPLICATE KEY UPDATE seen = seen + 1 RETURNING id, email, seen"
            }
        }
    }
}

/// A database with the contacts of somebody.
struct Contacts {
    kind: Kind,
    name: String,
    client: Client,
}

/// Straight to it.
enum Client {
    Postgres(tokio_postgres::Client),
    Mariadb(Mutex<mysql_async::Conn>),
}

impl Contacts {
    async fn new(kind: Kind) -> Contacts {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("contacts_{}", MADE.fetch_add(1, Ordering::Relaxed));
        let (client, table) = match kind {
            Kind::Postgres => {
                tokio::task::block_in_place(|| shared_postgres().create_database(&name));
                let (client, connection) = tokio_postgres::connect(&kind.url(&name, kind.port()), NoTls).await.unwrap();
                tokio::spawn(connection);
                let table = "CREATE TABLE contacts (id serial PRIMARY KEY, email text UNIQUE, age integer CHECK (age > 0), seen integer NOT NULL DEFAULT 1)";
                (Client::Postgres(client), table)
            }
            Kind::Mariadb => {
                tokio::task::block_in_place(|| shared_mariadb().create_database(&name));
                let client = mysql_async::Conn::from_url(kind.url(&name, kind.port())).await.unwrap();
                let table = "CREATE TABLE contacts (id integer AUTO_INCREMENT PRIMARY KEY, email varchar(190) UNIQUE, age integer CHECK (age > 0), seen integer NOT NULL DEFAULT 1)";
                (Client::Mariadb(Mutex::new(client)), table)
            }
        };
        let contacts = Contacts { kind, name, client };
        contacts.does(table).await;
        contacts
    }

    fn url(&self) -> String {
        self.kind.url(&self.name, self.kind.port())
    }

    async fn does(&self, sql: &str) {
        match &self.client {
            Client::Postgres(client) => client.batch_execute(sql).await.unwrap(),
            Client::Mariadb(client) => client.lock().await.query_drop(sql).await.unwrap(),
        }
    }

    async fn number(&self, sql: &str) -> i64 {
        match &self.client {
            Client::Postgres(client) => client.query_one(sql, &[]).await.unwrap().get(0),
            Client::Mariadb(client) => client.lock().await.query_first(sql).await.unwrap().unwrap(),
        }
    }

    async fn is_run_once(&self) {
        assert_eq!(self.number("SELECT sum(seen) FROM contacts").await, 1);
        assert_eq!(self.number("SELECT count(*) FROM clinch_effects WHERE result IS NOT NULL").await, 1);
    }
}

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

async fn c8_a_statement_is_run_and_its_rows_are_the_output(kind: Kind) {
    let contacts = Contacts::new(kind).await;
    let world = world(&contacts.url(), kind.upsert(), PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let row = json!({"id": 1, "email": "ada@example.com", "seen": 1});
    assert_eq!(output(&story.effects[0].state), json!({"rows": [row], "count": 1}));
    contacts.is_run_once().await;
    let story = world.post_and_wait("b", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state)["rows"][0]["seen"], 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_values_of_every_usual_type_go_into_postgresql_and_come_out() {
    let contacts = Contacts::new(Kind::Postgres).await;
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
async fn c8_many_rows_of_a_type_that_postgresql_was_taught_are_read() {
    let contacts = Contacts::new(Kind::Postgres).await;
    contacts.does("CREATE TYPE mood AS ENUM ('fine', 'sad')").await;
    let rows = "SELECT n, 'fine'::mood AS mood, repeat('x', 200) AS note FROM generate_series(1, 20000) AS n";
    contacts.does(&format!("CREATE TABLE moods AS {rows}")).await;
    let world = world(&contacts.url(), "SELECT mood, note FROM moods WHERE n >= $1", "[1]").await;
    for key in ["a", "b"] {
        let story = world.post_and_wait(key, BODY, Word::Success).await;
        let output = output(&story.effects[0].state);
        assert_eq!((&output["count"], &output["rows"][0]["mood"]), (&json!(20_000), &json!("fine")));
        assert_eq!(story.row.attempts, 1);
    }
}

async fn c8_p3_a_commit_whose_answer_is_lost_is_found_again_and_not_repeated(kind: Kind) {
    let contacts = Contacts::new(kind).await;
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = commits.clone();
    let fate = move || if counted.fetch_add(1, Ordering::Relaxed) == 0 { Fate::Cut } else { Fate::Pass };
    let port = match kind {
        Kind::Postgres => {
            let proxy = Proxy::to(kind.port()).await;
            proxy.at_commits(move |sql| if sql == "COMMIT" { fate() } else { Fate::Pass });
            proxy.port
        }
        Kind::Mariadb => MysqlProxy::to(kind.port(), fate).await.port,
    };
    let world = world(&kind.url(&contacts.name, port), kind.upsert(), PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state)["rows"][0]["seen"], 1, "the first result");
    let outcomes: Vec<&str> = story.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
    assert_eq!((outcomes, story.effects[0].sends), (vec!["unknown", "success"], 2));
    assert_eq!(commits.load(Ordering::Relaxed), 1, "nothing is committed the second time");
    contacts.is_run_once().await;
    world.close_and_verify().await;
}

async fn c8_p3_a_crash_between_the_commit_and_the_record_runs_it_once(kind: Kind) {
    for point in ["after_intend", "after_send"] {
        let contacts = Contacts::new(kind).await;
        let way = Way { name: "two", idempotency: "natural", steps: &["upsert"], concurrency: 1 };
        let place = Place::new(&[way]).await;
        place.write("clinch.yml", &settings(&contacts.url()));
        let step = step(kind.upsert(), "['{{ body.id }}', 7]");
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

async fn c8_what_the_database_will_not_have_is_a_dead_letter_without_values(kind: Kind) {
    let contacts = Contacts::new(kind).await;
    let check = async |statement: &str, params: &str, reason: Reason, said: &str| {
        let world = world(&contacts.url(), statement, params).await;
        let story = world.post_and_wait("a", BODY, Word::Dead).await;
        let error = story.row.error.unwrap();
        assert_eq!((story.row.reason, story.row.attempts), (Some(reason), 1), "{error}");
        assert!(error.contains(said) && !error.contains("ada@"), "{error}");
        assert!(matches!(story.effects[0].state, EffectState::NotDone), "{:?}", story.effects[0]);
    };
    let insert = "INSERT INTO contacts (email, age) VALUES ($1, $2)";
    let (negative, unfit) = match kind {
        Kind::Postgres => ("SQLSTATE 23514, constraint contacts_age_check", "SQLSTATE 22P02"),
        Kind::Mariadb => ("error 4025, SQLSTATE 23000, CONSTRAINT `contacts.age` failed", ".`contacts`.`age` at row 1"),
    };
    check(insert, "['{{ body.email }}', -1]", Reason::RejectedByTarget, negative).await;
    check(insert, "['x', '{{ body.email }}']", Reason::RejectedByTarget, unfit).await;
    check("INSERT INTO kontacts VALUES ($1)", "[1]", Reason::ConfigError, "kontacts").await;
    check(insert, "[1]", Reason::ConfigError, "as many `params`").await;
    let (unread, said) = match kind {
        Kind::Postgres => ("SELECT '1 day'::interval AS pause", "`pause::text`"),
        Kind::Mariadb => ("SELECT unhex('00ff') AS pause", "`hex(pause)`"),
    };
    if kind == Kind::Postgres {
        // Codes of statements that cannot be understood, for values that are taken for such.
        let query = "['{{ body.email }} (']";
        check("SELECT to_tsquery($1)::text", query, Reason::RejectedByTarget, "SQLSTATE 42601").await;
        check("SELECT $1::regclass::text", "['ada@']", Reason::RejectedByTarget, "SQLSTATE 42P01").await;
        let missing = "INSERT INTO contacts (email) VALUES ($1) ON CONFLICT (age) DO NOTHING";
        check(missing, "['{{ body.email }}']", Reason::ConfigError, "ON CONFLICT").await;
    }
    check(unread, "['{{ body.email }}']", Reason::ConfigError, "").await;
    check(&format!("{unread}, $1 AS email"), "['x']", Reason::ConfigError, said).await;
    assert_eq!(contacts.number("SELECT count(*) FROM contacts").await, 0);
    assert_eq!(contacts.number("SELECT count(*) FROM clinch_effects").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_may_work_later_is_tried_again() {
    let contacts = Contacts::new(Kind::Postgres).await;
    // As a server says it that had to choose one of two.
    let trigger = "CREATE SEQUENCE tries;
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN IF nextval('tries') = 1 THEN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER fail BEFORE INSERT ON contacts FOR EACH ROW EXECUTE FUNCTION fail();";
    contacts.does(trigger).await;
    let world = world(&contacts.url(), contacts.kind.upsert(), PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(story.attempts[0].error.as_deref(), Some("step `upsert`: nothing was changed: SQLSTATE 40P01"));
    assert_eq!((story.row.attempts, story.row.failures), (2, 1));
    contacts.is_run_once().await;
}

async fn c8_a_statement_that_takes_too_long_is_taken_back(kind: Kind) {
    let contacts = Contacts::new(kind).await;
    let sleep = if kind == Kind::Postgres { "pg_sleep(60)" } else { "sleep(60)" };
    let step = format!("  - name: upsert\n    sql: {{database: crm, statement: 'SELECT {sleep}', timeout: 3s}}\n");
    let worker = worker_with_step(&step);
    let world = World::new(&[("clinch.yml", &settings(&contacts.url())), ("workers/charge.yml", &worker)]).await;
    let story = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 3));
    assert_eq!(contacts.number("SELECT count(*) FROM clinch_effects").await, 0);
}

async fn c8_a_parameter_is_a_value_whatever_it_says(kind: Kind) {
    let contacts = Contacts::new(kind).await;
    let world = world(&contacts.url(), kind.upsert(), PARAMS).await;
    for (nth, said) in
        [r#"x'); DROP TABLE contacts; -- "#, r#"\' OR 1=1 # "$1 ? :a `"#, r"\\", "🦀 %s"].iter().enumerate()
    {
        let body = json!({"email": said, "age": 1}).to_string();
        let story = world.post_and_wait(&nth.to_string(), &body, Word::Success).await;
        assert_eq!(output(&story.effects[0].state)["rows"][0]["email"], *said);
    }
    assert_eq!(contacts.number("SELECT sum(seen) FROM contacts").await, 4);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_connection_that_mariadb_has_closed_costs_no_attempt() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    let world = world(&contacts.url(), contacts.kind.upsert(), PARAMS).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    let others = "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    assert_eq!(contacts.number(others).await, 1, "it is kept");
    let kept = contacts.number(&others.replace("count(*)", "max(id)")).await;
    contacts.does(&format!("KILL {kept}")).await;
    let story = world.post_and_wait("b", BODY, Word::Success).await;
    assert_eq!((story.row.attempts, &output(&story.effects[0].state)["rows"][0]["seen"]), (1, &json!(2)));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_values_of_every_usual_type_go_into_mariadb_and_come_out() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    contacts
        .does(
            "CREATE TABLE kinds (yes boolean, big bigint, huge bigint unsigned, exact decimal(10,2), tree json, at datetime(3), \
             stamp timestamp, day date, pause time, id uuid, nothing text, floating double, small float, bits bit(10), \
             choice enum('one', 'two'), letters char(4), words longtext)",
        )
        .await;
    let columns = "yes, big, huge, exact, tree, at, stamp, day, pause, id, nothing, floating, small, bits, choice, letters, words";
    let places = (1..=17).map(|nth| format!("${nth}")).collect::<Vec<_>>().join(", ");
    let statement = format!("INSERT INTO kinds ({columns}) VALUES ({places}) RETURNING *");
    let params = "[true, 9007199254740993, 18446744073709551615, '-12.50', {a: ['{{ body.email }}']}, '2026-01-02T03:04:05.250', \
                  '2026-01-02 03:04:05', '2026-02-03', '-26:00:01', '00112233-4455-6677-8899-aabbccddeeff', '{{ none }}', 1.5, 0.25, 5, \
                  'two', 'é', '{{ body.email }}']";
    let world = world(&contacts.url(), &statement, params).await;
    let story = world.post_and_wait("a", BODY, Word::Success).await;
    let row = json!({
        "yes": 1, "big": 9_007_199_254_740_993_i64, "huge": u64::MAX, "exact": "-12.50", "tree": r#"{"a":["ada@example.com"]}"#,
        "at": "2026-01-02 03:04:05.250000", "stamp": "2026-01-02 03:04:05", "day": "2026-02-03", "pause": "-26:00:01",
        "id": "00112233-4455-6677-8899-aabbccddeeff", "nothing": null, "floating": 1.5, "small": 0.25, "bits": 5,
        "choice": "two", "letters": "é", "words": "ada@example.com",
    });
    assert_eq!(output(&story.effects[0].state)["rows"][0], row);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_row_made_in_mariadb_tells_its_number_and_one_found_counts_as_changed() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    let made = world(&contacts.url(), "INSERT INTO contacts (email, age) VALUES ($1, $2)", PARAMS).await;
    let story = made.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state), json!({"rows": [], "count": 1, "last_insert_id": 1}));
    let found = world(&contacts.url(), "UPDATE contacts SET age = $2 WHERE email = $1", PARAMS).await;
    let story = found.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(output(&story.effects[0].state), json!({"rows": [], "count": 1}));
}

/// Ours changes the first row and waits for the second, which we hold and from which we go for the first.
#[tokio::test(flavor = "multi_thread")]
async fn c8_a_deadlock_in_mariadb_is_tried_again() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    contacts.does("INSERT INTO contacts (id, email) VALUES (1, 'a'), (2, 'b')").await;
    contacts.does("CREATE TABLE weight (n integer) ENGINE=InnoDB").await;
    contacts.does("START TRANSACTION").await;
    // Whoever has done less is sent away.
    contacts.does("INSERT INTO weight SELECT seq FROM seq_1_to_1000").await;
    contacts.does("UPDATE contacts SET age = 1 WHERE id = 2").await;
    let world = world(&contacts.url(), "UPDATE contacts SET seen = seen + $1 ORDER BY id", "[1]").await;
    let job = world.post("a", BODY).await.job();
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id \
                   WHERE db = DATABASE() AND trx_state = 'LOCK WAIT'";
    let until = std::time::Instant::now() + crate::world::PATIENCE;
    while contacts.number(waiting).await == 0 {
        assert!(std::time::Instant::now() < until, "it never waits for the second row");
        // Who looks again within 100 ms is shown what was there before.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    contacts.does("UPDATE contacts SET age = 1 WHERE id = 1").await;
    contacts.does("COMMIT").await;
    let story = world.wait(job, Word::Success).await;
    assert_eq!(
        story.attempts[0].error.as_deref(),
        Some("step `upsert`: nothing was changed: error 1213, SQLSTATE 40001")
    );
    assert_eq!(contacts.number("SELECT sum(seen) FROM contacts").await, 4, "each of the two once more");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_statement_that_mariadb_would_commit_by_itself_is_refused_before_it_is_run() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    for (statement, said) in [
        ("ALTER TABLE contacts ADD more integer DEFAULT $1", "`ALTER` is not run: MySQL and MariaDB may commit"),
        ("TRUNCATE contacts", "`TRUNCATE` is not run"),
        ("DO $1; DROP TABLE contacts", "more than one statement"),
    ] {
        let world = world(&contacts.url(), statement, "[1]").await;
        let story = world.post_and_wait("a", BODY, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::ConfigError), 1), "{statement}");
        assert!(story.row.error.unwrap().contains(said), "{statement}");
        assert!(matches!(story.effects[0].state, EffectState::NotDone));
    }
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()";
    assert_eq!(contacts.number(tables).await, 1, "not even a table of ours was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_table_of_keys_that_cannot_take_anything_back_is_refused() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    contacts
        .does("CREATE TABLE clinch_effects (`key` varchar(128) PRIMARY KEY, effect text, result text) ENGINE=MyISAM")
        .await;
    let world = world(&contacts.url(), Kind::Mariadb.upsert(), PARAMS).await;
    let story = world.post_and_wait("a", BODY, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::ConfigError));
    assert!(story.row.error.unwrap().contains("ALTER TABLE clinch_effects ENGINE=InnoDB"));
    assert_eq!(contacts.number("SELECT count(*) FROM contacts").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_mariadb_is_spoken_to_by_tls_with_those_who_are_who_they_say() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    contacts.does("GRANT ALL ON *.* TO tls@'127.0.0.1' IDENTIFIED BY '' REQUIRE SSL").await;
    let url = |end: &str| contacts.url().replace("clinch@", "tls@") + end;
    let root = |name: &str| format!("?sslmode=require&sslrootcert={}", shared_mariadb().file(name).display());
    let fine = world(&url(&root("ca.pem")), contacts.kind.upsert(), PARAMS).await;
    fine.post_and_wait("a", BODY, Word::Success).await;
    for end in [root("stranger.pem").as_str(), "?sslmode=require", ""] {
        let refused = world(&url(end), contacts.kind.upsert(), PARAMS).await;
        let story = refused.post_and_wait("a", BODY, Word::Dead).await;
        assert_eq!(story.row.reason, Some(Reason::TargetDown), "{end}");
    }
    contacts.is_run_once().await;
}

/// The secrets here are what cargo tells every test.
#[tokio::test(flavor = "multi_thread")]
async fn c8_a_password_of_mariadb_is_used_and_never_told() {
    let contacts = Contacts::new(Kind::Mariadb).await;
    let (right, wrong) = (std::env::var("CARGO_MANIFEST_DIR").unwrap(), std::env::var("PATH").unwrap());
    contacts.does(&format!("CREATE USER guarded@'127.0.0.1' IDENTIFIED BY '{right}'")).await;
    contacts.does("GRANT ALL ON *.* TO guarded@'127.0.0.1'").await;
    let url = |secret: &str| {
        contacts.url().replace("clinch@", &format!("guarded:${{secrets.{secret}}}@")).replace("mysql://", "mariadb://")
    };
    let fine = world(&url("CARGO_MANIFEST_DIR"), contacts.kind.upsert(), PARAMS).await;
    fine.post_and_wait("a", BODY, Word::Success).await;
    let refused = world(&url("PATH"), contacts.kind.upsert(), PARAMS).await;
    let story = refused.post_and_wait("a", BODY, Word::Dead).await;
    let told = format!("{story:?}");
    assert!(told.contains("error 1045, SQLSTATE 28000, Access denied for user 'guarded'"), "{told}");
    assert!(!told.contains(&wrong) && !told.contains(&wrong.replace('/', "%2F").replace(':', "%3A")), "{told}");
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
