//! A store that is moved into PostgreSQL: the real command, a real server, and jobs in every state.

use super::nodes::shared_postgres;
use super::process::{ONCE, PATIENCE, Place, Provider, Told, eventually, keys_in};
use super::world::{Answer, OK, Reply, World};
use bytes::Bytes;
use clinch::app::Roles;
use clinch::encryption::KEY_FILE;
use clinch_core::audit::Who;
use clinch_core::budget::{Allowance, OnExhausted, Spent};
use clinch_core::config::Files;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Receipt};
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::key::{DedupKey, EntityKey, Fingerprint, Pepper};
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::TraceId;
use clinch_core::policy::{Cap, Tally, Window, time_zone};
use clinch_core::seal::KeyRing;
use clinch_core::sender::{Sender, TokenId};
use clinch_core::subject::Handle;
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserTokenId};
use clinch_store::postgres::{self, PostgresStore};
use clinch_store::read::{AuditFilter, JobFilter, LIST_ROWS_MAX, TokenRow};
use clinch_store::sqlite::SqliteStore;
use clinch_store::{
    Acceptance, ActivateAsk, Activated, Activation, Admission, AdmitAsk, AlertRow, Alerts, ClaimAsk, Dedup, FireAsk,
    Fired, NewEvent, NewJob, NewUser, NewUserToken, Read, SpendAsk, SteerAsk, Steered, Store,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// An empty database.
fn database() -> String {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let (server, name) = (shared_postgres(), format!("moved_{}", MADE.fetch_add(1, Ordering::Relaxed)));
    tokio::task::block_in_place(|| server.create_database(&name));
    server.url(&name)
}

fn command(from: &Path, to: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
    command.args(["migrate", "--from", &format!("sqlite:{}", from.display()), "--to", to, "--json"]);
    command
}

fn migrate_with(from: &Path, to: &str, env: &[(&str, &str)]) -> Output {
    command(from, to).envs(env.iter().copied()).output().unwrap()
}

fn migrate(from: &Path, to: &str) -> Value {
    let out = migrate_with(from, to, &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn refused(from: &Path, to: &str) -> String {
    let out = migrate_with(from, to, &[]);
    assert_eq!(out.status.code(), Some(1), "{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn now() -> Timestamp {
    Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
}

async fn in_postgres(url: &str, keys: Option<KeyRing>) -> clinch_store::Result<PostgresStore> {
    PostgresStore::open(url, [9; 32], keys, postgres::Options::new(Arc::new(now))).await
}

/// Everything that is known of every job.
async fn stories(store: &dyn Read) -> BTreeMap<JobId, String> {
    let mut stories = BTreeMap::new();
    let mut before = None;
    loop {
        let filter = JobFilter { before, limit: LIST_ROWS_MAX, ..JobFilter::default() };
        let page = store.jobs(filter).await.unwrap();
        for row in &page.rows {
            let story = store.job(row.id).await.unwrap().unwrap();
            stories.insert(row.id, format!("{story:#?}"));
        }
        match page.rows.last() {
            Some(last) if page.rows.len() == LIST_ROWS_MAX => before = Some(last.id),
            _ => return stories,
        }
    }
}

const FLOW: &str = "
version: 1
name: NAME
triggers:
  - http:
      path: /hooks/NAME
      idempotency: {key_from: 'header:Idempotency-Key', ttl: 48h, required: false}
steps:
  - name: enqueue
    queue: {name: NAME}
";

const WORKER: &str = "
version: 1
name: NAME
consumes: {queue: NAME}
concurrency: PLACES
retry: {strategy: fixed, base_delay: PAUSE, jitter: none, max_attempts: 2}
run:
  - name: charge
    if: \"body.kind != 'noop'\"
    http: {url: 'http://TARGET/{{ body.kind }}', body_from: body, idempotency: none, timeout: 60s}
";

/// One job of each kind that there is; and the store as it would be found if the machine lost power at this moment.
struct Crashed {
    world: World,
    directory: PathBuf,
    jobs: BTreeMap<&'static str, (Answer, JobId)>,
    _dir: tempfile::TempDir,
}

async fn deliver(world: &World, flow: &str, kind: &str, key: &str) -> Answer {
    let headers: &[(&str, &str)] = if key.is_empty() { &[] } else { &[("idempotency-key", key)] };
    world.deliver(&format!("/hooks/{flow}"), headers, &json!({ "kind": kind, "group": &kind[..1] }).to_string()).await
}

async fn crashed() -> Crashed {
    let ways = [("soon", "10ms", 8), ("later", "1h", 8), ("slow", "1h", 1), ("line", "1h", 8), ("gate", "1h", 8)];
    let files: Vec<(String, String)> = ways
        .into_iter()
        .flat_map(|(name, pause, places)| {
            let of =
                |text: &str| text.replace("NAME", name).replace("PAUSE", pause).replace("PLACES", &places.to_string());
            [(format!("flows/{name}.yml"), of(FLOW)), (format!("workers/{name}.yml"), of(WORKER))]
        })
        .collect();
    let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    files.push((
        "queues.yml",
        "queues:
  - {name: orders}
  - {name: orders-dlq}
  - {name: soon}
  - {name: later}
  - {name: slow}
  - {name: line, fifo: true, group_from: 'body:/group', priority: 3}
  - {name: gate, fifo: true, group_from: 'body:/group', on_dead: block}
",
    ));
    let world = World::new(&files).await;
    let down = Reply::Status(503);
    for (kind, replies) in [
        ("twice", vec![down.clone(), OK]),
        ("refused", vec![Reply::Status(400), OK]),
        ("replayed", vec![Reply::Status(400), OK]),
        ("down", vec![down.clone()]),
        ("retrying", vec![down]),
        ("lost", vec![Reply::Drop]),
        ("running", vec![Reply::Held, OK]),
        ("empty", vec![Reply::With { status: 202, headers: &[], body: "" }]),
    ] {
        world.target.script(&format!("/{kind}"), replies);
    }
    let mut jobs = BTreeMap::new();
    for (kind, word) in [
        ("ok", Word::Success),
        ("empty", Word::Success),
        ("twice", Word::Success),
        ("noop", Word::Noop),
        ("refused", Word::Dead),
        ("replayed", Word::Dead),
        ("down", Word::Dead),
        ("lost", Word::Dead),
    ] {
        let answer = deliver(&world, "soon", kind, kind).await;
        world.wait(answer.job(), word).await;
        jobs.insert(kind, (answer.clone(), answer.job()));
    }
    let keyless = deliver(&world, "soon", "ok", "").await;
    world.wait(keyless.job(), Word::Success).await;
    for _ in 0..2 {
        assert!(deliver(&world, "soon", "ok", "ok").await.is_replayed());
    }
    deliver(&world, "soon", "noop", "ok").await.check_problem(422, "idempotency-key-reused");
    let replayed = jobs["replayed"].1;
    assert_eq!(world.replay(replayed, json!({"reason": "repaired"})).await.status, 200);
    world.wait(replayed, Word::Success).await;
    let planned = world.command("/api/v1/replays", json!({"query": "reason:target_down"})).await;
    assert_eq!(planned.json()["plan"]["jobs"], 1, "{planned:?}");
    let refused = jobs["refused"].1.to_string();
    let asked = world.command("/api/v1/dead/drop", json!({"jobs": [refused], "reason": "poison"})).await;
    assert_eq!(asked.json()["jobs"][0]["outcome"], "asked", "{asked:?}");
    let retrying = deliver(&world, "later", "retrying", "retrying").await;
    world.wait(retrying.job(), Word::Retrying).await;
    jobs.insert("retrying", (retrying.clone(), retrying.job()));
    let before = world.target.calls().len();
    for kind in ["running", "queued", "queued too", "queued last"] {
        let answer = deliver(&world, "slow", kind.split(' ').next().unwrap(), &kind.replace(' ', "-")).await;
        jobs.insert(kind, (answer.clone(), answer.job()));
    }
    world.target.called(before + 1).await;
    in_lanes(&world, &mut jobs).await;

    let dir = tempfile::tempdir().unwrap();
    for file in ["clinch.db", "clinch.db-wal", KEY_FILE] {
        std::fs::copy(world.data_dir().join(file), dir.path().join(file)).unwrap();
    }
    Crashed { world, directory: dir.path().to_path_buf(), jobs, _dir: dir }
}

/// Groups that keep their order: one with a job that runs, one that is blocked by a dead letter, and one whose dead letter
/// lives again after the next has passed.
async fn in_lanes(world: &World, jobs: &mut BTreeMap<&'static str, (Answer, JobId)>) {
    for (kind, replies) in [
        ("a-held", vec![Reply::Held, OK]),
        ("b-dead", vec![Reply::Status(400), OK]),
        ("c-again", vec![Reply::Status(400), Reply::Held, OK]),
    ] {
        world.target.script(&format!("/{kind}"), replies);
    }
    for (queue, kind, word) in [
        ("line", "a-done", Some(Word::Success)),
        ("line", "a-held", None),
        ("line", "a-next", None),
        ("line", "a-last", None),
        ("gate", "b-done", Some(Word::Success)),
        ("gate", "b-dead", Some(Word::Dead)),
        ("gate", "b-next", None),
        ("gate", "b-last", None),
        ("line", "c-again", Some(Word::Dead)),
        ("line", "c-done", Some(Word::Success)),
    ] {
        let answer = deliver(world, queue, kind, kind).await;
        if let Some(word) = word {
            world.wait(answer.job(), word).await;
        }
        jobs.insert(kind, (answer.clone(), answer.job()));
    }
    assert_eq!(world.replay(jobs["c-again"].1, json!({"reason": "try again"})).await.status, 200);
    deliver(world, "line", "c-behind", "c-behind").await;
    for kind in ["a-held", "c-again"] {
        world.wait_until(jobs[kind].1, "running", |story| story.row.word == Word::Running).await;
    }
    let calls = |kind: &str| world.target.calls_at(&format!("/{kind}")).len();
    eventually("both are held", PATIENCE, async || calls("a-held") == 1 && calls("c-again") == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_a_moved_store_tells_the_same_story_of_every_job() {
    let crashed = crashed().await;
    let store = SqliteStore::open(&crashed.directory, [0; 32], keys_in(&crashed.directory)).await.unwrap();
    let (told, versions) = (stories(&store).await, store.live_versions());
    let (audit, inspected) = (store.audit(AuditFilter::last(100)).await.unwrap(), store.inspect(None).await.unwrap());
    let (pepper, uses) = (*store.pepper(), store.key_uses().await.unwrap());
    drop(store);
    let url = database();
    let moved = migrate(&crashed.directory, &url);
    assert_eq!((&moved["status"], &moved["resumed"]), (&json!("moved"), &json!(false)));
    assert_eq!(moved["counts"]["jobs"], told.len());
    assert_eq!((&moved["counts"]["deliveries"], &moved["counts"]["audit_rows"]), (&json!(3), &json!(audit.len())));

    let refused = in_postgres(&url, None).await.err().expect("it is encrypted as before").to_string();
    assert!(refused.contains("it has data under key_"), "{refused}");
    let store = in_postgres(&url, keys_in(&crashed.directory)).await.unwrap();
    for (job, story) in &told {
        let arrived = format!("{:#?}", store.job(*job).await.unwrap().unwrap());
        assert_eq!(&arrived, story, "{job}");
    }
    assert_eq!(stories(&store).await.len(), told.len());
    assert_eq!(*store.pepper(), pepper);
    // Of an answer without a body nothing is stored, here as there; that there was one is known by its status.
    let empty = store.job(crashed.jobs["empty"].1).await.unwrap().unwrap();
    assert_eq!(empty.effects[0].state, EffectState::Done(Receipt { status: 202, body: Bytes::new() }));
    let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT body IS NULL FROM effect WHERE job = $1";
    let is_absent = database.query_one(sql, &[&empty.row.id.number().cast_signed()]).await.unwrap().get::<_, bool>(0);
    assert!(is_absent, "and nothing is sealed");
    assert_eq!(store.key_uses().await.unwrap(), uses);
    assert_eq!(store.audit(AuditFilter::last(100)).await.unwrap(), audit);
    assert_eq!((store.inspect(None).await.unwrap(), inspected.broken.as_ref()), (inspected.clone(), None));
    for version in versions {
        let files = store.version_files(version).await.unwrap().expect("a job runs it");
        assert!(Files::from_json(&files).is_ok());
    }
    let states = ["running", "queued", "retrying", "lost"].map(|kind| told[&crashed.jobs[kind].1].clone());
    for (state, story) in ["word: Running", "word: Queued", "word: Retrying", "word: Dead"].iter().zip(states) {
        assert!(story.contains(state), "{story}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_a_moved_store_goes_on_where_it_was() {
    let Crashed { mut world, directory, jobs, _dir } = crashed().await;
    let url = database();
    migrate(&directory, &url);
    // Its own life goes on elsewhere; what follows is that of the copy.
    for _ in 0..3 {
        world.target.release();
    }
    world.close().await;
    let calls = world.target.calls().len();
    let mut options = world.options(Roles::ALL);
    options.store = Some(url.clone());
    let keys = directory.join(KEY_FILE);
    world.write("clinch.yml", &format!("encryption: {{file: '{}'}}\n", keys.display()));
    world.open_with(options).await;

    let running = world.wait(jobs["running"].1, Word::Dead).await;
    assert_eq!(running.row.reason, Some(Reason::UnknownOutcome), "it may have happened, and is not sent again");
    for kind in ["queued", "queued too", "queued last"] {
        world.wait(jobs[kind].1, Word::Success).await;
    }
    // What was running may have happened, and its group goes on; what is behind a dead letter that nobody passes waits.
    for kind in ["a-held", "c-again"] {
        assert_eq!(world.wait(jobs[kind].1, Word::Dead).await.row.reason, Some(Reason::UnknownOutcome), "{kind}");
    }
    for kind in ["a-next", "a-last"] {
        world.wait(jobs[kind].1, Word::Success).await;
    }
    world.target.called(calls + 6).await;
    let order = || -> Vec<String> { world.target.calls()[calls..].iter().map(|call| call.path[1..].into()).collect() };
    let of_group =
        |group: char| -> Vec<String> { order().into_iter().filter(|path| path.starts_with(group)).collect() };
    assert_eq!(of_group('a'), ["a-next", "a-last"]);
    assert_eq!(of_group('b'), Vec::<String>::new());
    assert_eq!(of_group('c'), ["c-behind"]);
    assert_eq!(world.job(jobs["b-next"].1).await.behind, Some(jobs["b-dead"].1));
    assert_eq!(world.replay(jobs["b-dead"].1, json!({"reason": "repaired"})).await.status, 200);
    world.wait(jobs["b-last"].1, Word::Success).await;
    assert_eq!(of_group('b'), ["b-dead", "b-next", "b-last"]);
    for kind in ["ok", "twice", "noop", "refused", "lost", "retrying"] {
        let flow = if kind == "retrying" { "later" } else { "soon" };
        let again = deliver(&world, flow, kind, kind).await;
        let (first, _) = &jobs[kind];
        assert_eq!((again.status, &again.body, again.is_replayed()), (first.status, &first.body, true), "{kind}");
    }
    deliver(&world, "soon", "noop", "ok").await.check_problem(422, "idempotency-key-reused");
    let plans = world.admin("/api/v1/replays").await.json();
    let plan = &plans["plans"][0];
    assert_eq!((&plan["state"], &plan["will_run"], &plan["more"]), (&json!("planned"), &json!(1), &json!(false)));
    let of_plan = world.admin(&format!("/api/v1/replays/{}/jobs", plan["id"].as_str().unwrap())).await.json();
    assert_eq!(of_plan["jobs"][0]["job_id"], jobs["down"].1.to_string());
    let (_, refused) = jobs["refused"];
    assert_eq!(world.admin("/api/v1/dead/drops").await.json()["drops"][0]["job_id"], refused.to_string());
    assert_eq!(world.replay(refused, json!({"reason": "repaired"})).await.status, 200);
    let story = world.wait(refused, Word::Success).await;
    assert_eq!((story.row.attempts, story.effects[0].sends), (2, 2));
    let new = deliver(&world, "soon", "ok", "new").await;
    world.wait(new.job(), Word::Success).await;
    assert!(jobs.values().all(|(_, job)| *job < new.job()), "ids go on growing");
    world.close().await;
    let report = postgres::verify(&url, now()).await.unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// A store with many events, of which nobody works on any.
async fn full(events: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path(), clinch::clock::secret_bytes(), None).await.unwrap();
    add(&store, 0..events).await;
    drop(store);
    dir
}

async fn add(store: &SqliteStore, events: std::ops::Range<u64>) {
    let (by, record) = (Activation::Files, Who::clinch("start").record("a server started with it", now()));
    let ask = ActivateAsk { hash: [1; 32], files: "[]".into(), by, record };
    let Activated::Live(version) = store.activate(ask).await.unwrap() else { panic!("nobody chose another") };
    let job = |queue: &str| NewJob {
        flow: "orders".into(),
        queue: queue.into(),
        lane: Lane::from_number(1),
        order: Order::Any,
        priority: 0,
        run_at: now(),
    };
    let accept = |nth: u64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&nth.to_be_bytes());
        let dedup = Dedup {
            key: DedupKey::from_bytes(key),
            fingerprint: Fingerprint::from_bytes([2; 32]),
            ttl: Duration::from_secs(3_600),
            on_conflict: OnConflict::Reject,
            on_duplicate_of_dead: OnDuplicateOfDead::Keep,
        };
        store.accept(NewEvent {
            source: "orders".into(),
            version,
            received_at: now(),
            trace: TraceId(u128::from(nth) + 1),
            dedup: Some(dedup),
            status: 202,
            payload: vec![7; 100].into(),
            handles: Handle::of(&Pepper::new(&[7; 32]), &format!("user-{nth}")).into_iter().collect(),
            jobs: ["orders", "mails"].map(job).to_vec(),
        })
    };
    for nth in events {
        assert!(matches!(accept(nth).await.unwrap(), Acceptance::Fresh(_)));
    }
}

const CRASH: &str = "CLINCH_CRASH_AT";

/// A user, and a sender's token that does not count any more, in a store that nobody has open.
async fn revoked_token(dir: &Path) -> Vec<TokenRow> {
    let store = SqliteStore::open(dir, [0; 32], None).await.unwrap();
    let sender = Sender {
        name: "shop".parse().unwrap(),
        token: TokenId::from_bytes([7; 8]),
        issued_at: now(),
        expires_at: None,
    };
    let record = || Who::clinch("test").record("it leaked", now());
    store.issue(sender.clone(), record()).await.unwrap();
    store.revoke(sender.token, record()).await.unwrap();
    let user = NewUser {
        name: "maya".parse().unwrap(),
        role: Role::Operator,
        password: Some(PasswordHash::new("$argon2id$of-maya".into())),
        token: Some(NewUserToken {
            id: UserTokenId::from_bytes([7; 8]),
            digest: TokenDigest::of("clk_maya"),
            role: Some(Role::Viewer),
            source: Some("orders".into()),
            expires_at: None,
        }),
    };
    store.add_user(user, record()).await.unwrap();
    store.tokens().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_c5_what_entities_have_used_of_their_budgets_moves_with_the_store() {
    let (dir, url) = (full(3).await, database());
    let ask = |entity: u8| SpendAsk {
        budget: "charge".into(),
        entity: EntityKey::from_bytes([entity; 16]),
        allowance: Allowance { units: NonZeroU32::MIN, window: Duration::from_secs(3_600) },
        on_exhausted: OnExhausted::Dead,
        latest: None,
        now: now(),
    };
    let here = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    assert_eq!(here.spend(ask(1)).await.unwrap(), Spent::Granted { left: 0 });
    drop(here);
    migrate(dir.path(), &url);
    let there = in_postgres(&url, None).await.unwrap();
    assert!(matches!(there.spend(ask(1)).await.unwrap(), Spent::Exhausted { .. }));
    assert_eq!(there.spend(ask(2)).await.unwrap(), Spent::Granted { left: 0 });
    assert_eq!(there.exhausted(now()).await.unwrap(), [("charge".into(), 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_c10_a_schedule_that_was_moved_runs_no_slot_again() {
    let (dir, url) = (full(3).await, database());
    let slot = now();
    let pass =
        FireAsk { schedule: "nightly".into(), slot: Some(slot), event: None, overlaps: false, record: None, at: slot };
    let here = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    assert_eq!(here.fire(pass.clone()).await.unwrap(), Fired::Passed);
    let known = here.schedules().await.unwrap();
    drop(here);
    migrate(dir.path(), &url);
    let there = in_postgres(&url, None).await.unwrap();
    assert_eq!(there.schedules().await.unwrap(), known);
    assert_eq!(there.fire(pass).await.unwrap(), Fired::Before(slot));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_g1_what_contacts_were_sent_moves_with_the_store() {
    let (dir, url) = (full(3).await, database());
    let tally = Tally {
        contact: EntityKey::from_bytes([1; 16]),
        channel: "sms".into(),
        zone: time_zone("Europe/Berlin").unwrap(),
        caps: vec![Cap { max: NonZeroU32::MIN, per: Window::Last(Duration::from_secs(3_600)), channel: None }],
    };
    let here = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    let until = now() + Duration::from_secs(60);
    let ask = ClaimAsk { queue: "orders".into(), most: 1, but: None, now: now(), until };
    let claim = here.claim(ask).await.unwrap().remove(0);
    let ask = AdmitAsk { step: "remind".into(), tallies: vec![tally.clone()], may_be_sent: false, now: now() };
    assert_eq!(here.admit(claim.lease, ask).await.unwrap(), Some(Admission::Admitted));
    drop(here);
    migrate(dir.path(), &url);
    let there = in_postgres(&url, None).await.unwrap();
    assert_eq!(there.sent(tally.clone(), None, now()).await.unwrap(), [1]);
    assert_eq!(there.sent(tally, Some(claim.lease.job), now()).await.unwrap(), [0], "it is still that of its job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_h4_alerts_move_with_the_store_and_one_of_a_name_stays_open() {
    let (dir, url) = (full(3).await, database());
    let alert = AlertRow {
        id: 0,
        name: "ClinchCircuitOpen:crm".into(),
        version: 0,
        value: r#"{"told":{}}"#.into(),
        began_at: now(),
        ended_at: None,
        rest_at: None,
    };
    let here = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    here.raise_alert(alert.clone()).await.unwrap().expect("it is the first");
    let before = here.alerts(Alerts::Restless).await.unwrap();
    drop(here);
    migrate(dir.path(), &url);
    let there = in_postgres(&url, None).await.unwrap();
    assert_eq!(there.alerts(Alerts::Restless).await.unwrap(), before);
    assert_eq!(there.raise_alert(alert.clone()).await.unwrap(), None, "it is open");
    let other = AlertRow { name: "ClinchDown".into(), ..alert };
    assert!(there.raise_alert(other).await.unwrap().is_some_and(|id| id > before[0].id), "ids go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_e6_what_is_paused_stays_paused_when_the_store_moves() {
    let (dir, url) = (full(3).await, database());
    let ask = |value: &str| SteerAsk {
        name: "pause/queue:orders".into(),
        value: Some(value.into()),
        until: Some(now() + Duration::from_secs(60)),
        expect: None,
        action: "pause.set",
        record: Who::clinch("a test").record("a night", now()),
    };
    let here = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    for value in ["1", "2"] {
        here.steer(ask(value)).await.unwrap();
    }
    let before = here.controls().await.unwrap();
    drop(here);
    migrate(dir.path(), &url);
    let there = in_postgres(&url, None).await.unwrap();
    assert_eq!(there.controls().await.unwrap(), before);
    let Steered::Steered { version, .. } = there.steer(ask("3")).await.unwrap() else { panic!("in conflict") };
    assert!(version > before[0].version, "versions go on where they were");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_an_interrupted_move_is_finished_by_the_next_run_and_done_once() {
    let (dir, url) = (full(1_200).await, database());
    let revoked = revoked_token(dir.path()).await;
    let out = migrate_with(dir.path(), &url, &[(CRASH, "migrate_part")]);
    assert!(!out.status.success());
    let half = in_postgres(&url, None).await.err().expect("half of a store is not served from").to_string();
    assert!(half.contains("clinch migrate"), "{half}");

    // All of it is there, and the process dies before it is said that it may be served from.
    let out = migrate_with(dir.path(), &url, &[(CRASH, "migrate_marked")]);
    assert!(!out.status.success());
    assert!(in_postgres(&url, None).await.is_err());
    let gone = SqliteStore::open(dir.path(), [0; 32], None).await.err().expect("nor from the old one").to_string();
    assert!(gone.contains("it was moved to postgres://clinch@") && gone.contains("--store"), "{gone}");

    let moved = migrate(dir.path(), &url);
    assert_eq!((&moved["status"], &moved["resumed"]), (&json!("moved"), &json!(true)));
    let counts = json!({"versions": 1, "events": 1_200, "keys": 1_200, "jobs": 2_400, "attempts": 0, "effects": 0, "late_answers": 0, "approvals": 0, "votes": 0,
                        "deliveries": 0, "handles": 1_200, "audit_rows": 4, "set_keys": 0, "calls": 0, "retry_budgets": 0, "schedules": 0,
                        "counts_of_contacts": 0, "sender_tokens": 1, "users": 1, "user_tokens": 1, "controls": 0,
                        "replay_plans": 0, "jobs_of_replay_plans": 0, "requests_to_drop": 0, "alerts": 0});
    assert_eq!(moved["counts"], counts);
    let again = migrate(dir.path(), &url);
    assert_eq!((&again["status"], &again["counts"]), (&json!("already_moved"), &counts));
    let report = postgres::verify(&url, now()).await.unwrap();
    assert_eq!((report.accepted, report.problems), (2_400, Vec::new()));
    let store = in_postgres(&url, None).await.unwrap();
    assert_eq!(store.tokens().await.unwrap(), revoked, "what was revoked stays so");
    let maya = store.holder(TokenDigest::of("clk_maya"), now()).await.unwrap().expect("who had a token has it here");
    assert_eq!((maya.role, maya.source.as_deref()), (Role::Viewer, Some("orders")));
    let user = store.user(maya.name.clone()).await.unwrap().expect("and is a user here");
    assert_eq!((user.role, user.password), (Role::Operator, Some(PasswordHash::new("$argon2id$of-maya".into()))));
    let record = Who::clinch("test").record("she left", now());
    assert!(store.remove_user(maya.name, record).await.unwrap());
    let audit = store.inspect(None).await.unwrap();
    assert_eq!((audit.head.count, audit.broken), (5, None), "the chain goes on here");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_a_move_of_a_store_that_was_served_from_meanwhile_begins_anew() {
    let (dir, url) = (full(600).await, database());
    assert!(!migrate_with(dir.path(), &url, &[(CRASH, "migrate_part")]).status.success());
    let store = SqliteStore::open(dir.path(), [0; 32], None).await.unwrap();
    add(&store, 600..601).await;
    drop(store);
    let moved = migrate(dir.path(), &url);
    assert_eq!((&moved["resumed"], &moved["counts"]["events"]), (&json!(false), &json!(601)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_killed_at_any_moment_a_move_can_be_finished() {
    let (dir, url) = (full(3_000).await, database());
    for millis in [20, 60, 120, 200, 300] {
        let mut child = command(dir.path(), &url).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(millis)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(migrate(dir.path(), &url)["counts"]["jobs"], 6_000);
    assert_eq!(postgres::verify(&url, now()).await.unwrap().problems, Vec::<String>::new());
}

/// Whoever says that all of it is there waits at his commit, for as long as somebody has the lock.
const HELD_AT_COMMIT: &str = "
    CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER held AFTER INSERT ON fact DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.name = 'moved_at') EXECUTE FUNCTION held();
    SELECT pg_advisory_lock(7)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_what_becomes_of_a_run_that_was_killed_at_its_commit_is_waited_for() {
    let (dir, url) = (full(3).await, database());
    assert!(!migrate_with(dir.path(), &url, &[(CRASH, "migrate_marked")]).status.success());
    let (database, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    database.batch_execute(HELD_AT_COMMIT).await.unwrap();
    let waiting = async |runs: i64| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                   AND backend_type = 'client backend' AND wait_event_type = 'Lock'";
        let waits = async || database.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == runs;
        eventually("they wait", PATIENCE, waits).await;
    };
    let mut killed = command(dir.path(), &url).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    waiting(1).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let next = command(dir.path(), &url).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    waiting(2).await;
    // Its commit succeeds after all. Nodes may serve from the store from here on, and nothing in it is written over.
    database.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    let out = next.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["status"], "already_moved");
    assert_eq!(postgres::verify(&url, now()).await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_a_store_that_is_served_from_is_not_moved() {
    let (place, url) = (Place::new(&[ONCE]).await, database());
    let server = place.start().await;
    assert_eq!(Provider::new(ONCE).deliver(&server.intake).await, Told::Acknowledged);
    let said = refused(&place.data_dir, &url);
    assert!(said.contains("another clinch is using") && said.contains("stop"), "{said}");
    place.drained().await;
    server.stop().await;
    assert_eq!(migrate(&place.data_dir, &url)["status"], "moved");
    let mut server = place.spawn(&[]);
    assert_eq!(server.exited().await.code(), Some(1));
    assert!(server.said().contains("it was moved to postgres://"), "{}", server.said());
    place.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_another_store_is_never_overwritten() {
    let (mine, other, url) = (full(3).await, full(5).await, database());
    migrate(other.path(), &url);
    let said = refused(mine.path(), &url);
    assert!(said.contains("there is a store in this database already"), "{said}");
    assert_eq!(migrate(other.path(), &url)["counts"]["events"], 5);
    // One that was never used is not taken over either: its keys are hashed under another secret.
    let fresh = database();
    drop(in_postgres(&fresh, None).await.unwrap());
    assert!(refused(mine.path(), &fresh).contains("name an empty database"));
    // What was moved is not moved a second time, to somewhere else.
    let said = refused(other.path(), &database());
    assert!(said.contains("was moved to postgres://"), "{said}");
    SqliteStore::open(mine.path(), [0; 32], None).await.expect("what was refused is as it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_what_cannot_be_moved_is_said_before_anything_is_done() {
    let empty = tempfile::tempdir().unwrap();
    assert!(refused(empty.path(), "postgres://localhost/x").contains("there is no store in"));
    let said = refused(full(1).await.path(), "postgres://u:hunter2@127.0.0.1:1/x");
    assert!(!said.contains("hunter2"), "{said}");
    let out = Command::new(env!("CARGO_BIN_EXE_clinch")).args(["migrate", "--to", "sqlite:/x"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
}
