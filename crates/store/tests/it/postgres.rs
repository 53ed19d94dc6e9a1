//! The engine for many nodes, on a real server that the tests start: every law, and what is true of many nodes only.

use crate::laws::user::{name, user};
use crate::laws::{self, *};
use async_trait::async_trait;
use clinch_core::audit::Who;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, EffectWord, Idempotency};
use clinch_core::flow::OnDuplicateOfDead;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::key::Pepper;
use clinch_core::lane::{Lane, OnDead, Order};
use clinch_core::oidc::{Guest, Identity};
use clinch_core::seal::KeyRing;
use clinch_core::time::Timestamp;
use clinch_core::user::Role;
use clinch_store::postgres::{Options, PostgresStore, prepare, verify};
use clinch_store::read::{AuditFilter, EffectFilter, JobFilter};
use clinch_store::verify::Report;
use clinch_store::{
    Acceptance, Claim, ClaimAsk, Conclusion, Held, NewEvent, NewJob, Pruned, Read, Retention, Settlement, Store,
    StoreError, UserAdded, Welcomed,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

laws::every_law!(crate::postgres::world);

/// Far more than any machine needs; a test that fails must end.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The server of all tests here.
pub fn cluster() -> &'static clinch_testbed::Postgres {
    static CLUSTER: OnceLock<clinch_testbed::Postgres> = OnceLock::new();
    CLUSTER.get_or_init(clinch_testbed::Postgres::start)
}

/// A database of its own.
#[derive(Clone)]
pub struct Postgres {
    pub name: Arc<str>,
    /// Through PgBouncer in transaction mode, and not directly.
    pub is_pooled: bool,
}

impl Postgres {
    pub async fn new() -> Postgres {
        Postgres::like("template1").await
    }

    /// With the tables of a store: they are made once and copied, which takes a third of the time.
    pub async fn prepared() -> Postgres {
        static TABLES: OnceCell<Postgres> = OnceCell::const_new();
        let tables = TABLES.get_or_init(async || {
            let tables = Postgres::new().await;
            prepare(&tables.url(), PEPPER).await.expect("made");
            tables
        });
        Postgres::like(&tables.await.name).await
    }

    async fn like(template: &str) -> Postgres {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("world_{}", MADE.fetch_add(1, Ordering::Relaxed));
        let sql = format!("CREATE DATABASE {name} TEMPLATE {template}");
        client("postgres").await.batch_execute(&sql).await.expect("made");
        Postgres { name: name.into(), is_pooled: false }
    }

    pub fn url(&self) -> String {
        if self.is_pooled { crate::pgbouncer::url(&self.name) } else { url(&self.name) }
    }

    /// The database itself, behind the back of the store.
    pub async fn client(&self) -> Client {
        client(&self.name).await
    }

    pub async fn run(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.expect("done");
    }

    pub async fn count(&self, sql: &str) -> i64 {
        self.client().await.query_one(sql, &[]).await.expect("counted").get(0)
    }

    /// With partitions for the time that laws play in.
    pub async fn world(&self) -> World {
        let world = World::new(Box::new(self.clone())).await;
        world.prunes(later(0)).await;
        world
    }

    /// What is committed at this moment, in another database.
    async fn copied(&self) -> Postgres {
        let copy = Postgres { is_pooled: self.is_pooled, ..Postgres::new().await };
        let (from, to) = (self.name.clone(), copy.name.clone());
        tokio::task::spawn_blocking(move || cluster().copy(&from, &to)).await.expect("copied");
        copy
    }

    /// A node as it is in the wild: others are left alone until they have been silent for long.
    pub async fn node(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.url(), PEPPER, keys(KEY), in_the_wild()).await.expect("opened"))
    }
}

fn url(database: &str) -> String {
    cluster().url(database)
}

async fn client(database: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(&url(database), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// Whoever is not alone in this database is dead: what a kill left is found at once, and no law waits.
pub fn alone() -> Options {
    Options { silence_max: Duration::ZERO, ..in_the_wild() }
}

pub fn in_the_wild() -> Options {
    Options::new(Arc::new(|| {
        let since = std::time::UNIX_EPOCH.elapsed().expect("it is later than that");
        Timestamp::from_micros(i64::try_from(since.as_micros()).expect("not that much later"))
    }))
}

#[async_trait]
impl Engine for Postgres {
    async fn open(&self, keys: Option<KeyRing>) -> clinch_store::Result<Arc<dyn Store>> {
        Ok(Arc::new(PostgresStore::open(&self.url(), PEPPER, keys, alone()).await?))
    }

    async fn empty(&self) -> Box<dyn Engine> {
        Box::new(Postgres { is_pooled: self.is_pooled, ..Postgres::new().await })
    }

    async fn look(&self, sql: &str, id: u64) -> Vec<u8> {
        self.client().await.query_one(sql, &[&id.cast_signed()]).await.expect("found").get(0)
    }

    async fn forge(&self, sql: &str) {
        self.run(&format!("SET session_replication_role = replica; {sql}")).await;
    }

    async fn refusal(&self, sql: &str) -> String {
        let refused = self.client().await.batch_execute(sql).await.expect_err("refused");
        refused.as_db_error().expect("by the server").message().to_string()
    }

    async fn meddle(&self, sql: &str, id: u64, value: &[u8]) {
        let changed = self.client().await.execute(sql, &[&id.cast_signed(), &value]).await;
        assert_eq!(changed.expect("changed"), 1);
    }

    async fn copy(&self) -> Box<dyn Engine> {
        Box::new(self.copied().await)
    }

    async fn verify(&self, now: Timestamp) -> Report {
        verify(&self.url(), now).await.expect("read")
    }

    async fn bytes(&self) -> Vec<u8> {
        let client = self.client().await;
        client.batch_execute("CHECKPOINT").await.expect("written out");
        let sql = "SELECT 'base/' || oid FROM pg_database WHERE datname = current_database()";
        let files: String = client.query_one(sql, &[]).await.expect("read").get(0);
        let files = std::fs::read_dir(cluster().data().join(files)).expect("listed");
        // A file of a running server may go between the list and the look.
        files.flat_map(|file| std::fs::read(file.expect("listed").path()).unwrap_or_default()).collect()
    }
}

async fn world() -> World {
    Postgres::prepared().await.world().await
}

#[test]
fn f2_the_set_that_is_acted_on_is_the_set_that_was_counted() {
    laws::plot::f2_the_set_that_is_acted_on_is_the_set_that_was_counted(6, world);
}

async fn refusal(url: &str) -> String {
    match PostgresStore::open(url, PEPPER, keys(KEY), alone()).await {
        Err(StoreError::Open(why)) => why,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("opened"),
    }
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let postgres = Postgres::new().await;
    prepare(&postgres.url(), PEPPER).await.expect("made");
    postgres.run("INSERT INTO migration (no, hash) VALUES (3, 'newer')").await;
    let why = refusal(&postgres.url()).await;
    assert!(why.contains("newer clinch") && why.contains("schema 3"), "{why}");
    assert!(matches!(verify(&postgres.url(), later(0)).await, Err(StoreError::Open(_))));
    assert_eq!(postgres.count("SELECT count(*) FROM node").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_an_older_version_is_brought_up_to_date() {
    let postgres = Postgres::new().await;
    prepare(&postgres.url(), PEPPER).await.expect("made");
    postgres.run("ALTER TABLE call DROP COLUMN fence").await;
    postgres.run("DELETE FROM migration WHERE no = 2").await;
    laws::call::d3_a_call_is_made_once_and_its_answer_is_given_again(postgres.world().await).await;
    assert_eq!(postgres.count("SELECT count(*) FROM migration").await, 2);
}

#[tokio::test]
async fn a_store_whose_schema_is_not_ours_is_refused() {
    let postgres = Postgres::new().await;
    prepare(&postgres.url(), PEPPER).await.expect("made");
    postgres.run("UPDATE migration SET hash = 'other'").await;
    let why = refusal(&postgres.url()).await;
    assert!(why.contains("not the one that this clinch knows"), "{why}");
}

#[tokio::test]
async fn p1_a_server_that_forgets_commits_is_refused() {
    let postgres = Postgres::new().await;
    postgres.run(&format!("ALTER DATABASE {} SET synchronous_commit = off", postgres.name)).await;
    let why = refusal(&postgres.url()).await;
    assert!(why.contains("synchronous_commit = off") && why.contains("set it to on"), "{why}");
}

#[tokio::test]
async fn an_address_where_nobody_answers_is_said_to_be_one() {
    let why = refusal("postgres://clinch@127.0.0.1:1/nobody").await;
    assert!(why.contains("connect"), "{why}");
    let why = refusal(&url("nothing_of_that_name")).await;
    assert!(why.contains("nothing_of_that_name"), "{why}");
    assert!(matches!(verify(&url("postgres"), later(0)).await, Err(StoreError::Open(_))), "there is no store in it");
}

#[tokio::test]
async fn the_pepper_is_the_one_the_store_was_made_with() {
    let postgres = Postgres::new().await;
    drop(postgres.world().await);
    let store = PostgresStore::open(&postgres.url(), [9; 32], keys(KEY), alone()).await.expect("opened");
    assert_eq!(clinch_store::Read::pepper(&store), &PEPPER);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_that_start_at_once_make_one_store_and_have_numbers_of_their_own() {
    let postgres = Postgres::new().await;
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let postgres = postgres.clone();
        starts.spawn(async move { postgres.node().await });
    }
    let nodes = starts.join_all().await;
    assert_eq!(nodes.len(), 6);
    assert_eq!(postgres.count("SELECT count(DISTINCT number) FROM node").await, 6);
    assert_eq!(postgres.count("SELECT max(number)::bigint FROM node").await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_the_same_key_at_the_same_instant_on_two_nodes_is_one_event_with_equal_answers() {
    let postgres = Postgres::new().await;
    let nodes = [postgres.node().await, postgres.node().await];
    let mut deliveries = tokio::task::JoinSet::new();
    for nth in 0..400u64 {
        let node = nodes[usize::from(nth % 2 == 1)].clone();
        // Each key goes to both nodes, and each node gets the keys in another order.
        let key = if nth % 2 == 0 { nth / 2 } else { 199 - nth / 2 };
        deliveries.spawn(async move { (key, node.accept(event(&format!("k{key}"))).await.expect("answered")) });
    }
    let mut answers = deliveries.join_all().await;
    answers.sort_by_key(|(key, answer)| (*key, !matches!(answer, Acceptance::Fresh(_))));
    let mut events = HashSet::new();
    for pair in answers.chunks(2) {
        let (Acceptance::Fresh(first), Acceptance::Duplicate(again)) = (pair[0].1, pair[1].1) else {
            panic!("one is fresh and one is a duplicate: {pair:?}")
        };
        assert_eq!(first, again);
        assert!(events.insert(first.event));
    }
    assert_eq!(events.len(), 200);
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

/// A delivery again makes all dead letters of an event live, in one transaction, while people press for one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_p8_what_people_and_senders_revive_on_two_nodes_at_once_is_one_chain_with_each_job_once() {
    const EVENTS: usize = 20;
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let again = |key: usize| {
        let mut event = NewEvent { jobs: vec![job("work"), job("work"), job("work")], ..event(&format!("k{key}")) };
        event.dedup.as_mut().expect("a key").on_duplicate_of_dead = OnDuplicateOfDead::Replay;
        event
    };
    let mut dead = Vec::new();
    for key in 0..EVENTS {
        let first = world.accepted(again(key)).await.job.number();
        for job in first..first + 3 {
            world.bury(later(1), Reason::Timeout).await;
            dead.push(JobId::from_number(job));
        }
    }
    let nodes = [postgres.node().await, postgres.node().await];
    let mut hands = tokio::task::JoinSet::new();
    for key in 0..EVENTS {
        let node = nodes[0].clone();
        hands.spawn(async move { node.accept(again(key)).await.map(drop) });
    }
    for job in dead.iter().rev().copied() {
        let node = nodes[1].clone();
        hands.spawn(async move { node.revive(replay(job, later(2))).await.map(drop) });
    }
    for done in hands.join_all().await {
        done.expect("nobody waits for the other for ever");
    }
    let revived: Vec<_> = world.record().await.into_iter().filter_map(|row| row.job).collect();
    assert_eq!((revived.len(), revived.iter().collect::<HashSet<_>>().len()), (dead.len(), dead.len()));
    assert_eq!(world.inspect(None).await.expect("read").broken, None);
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

/// The end of the chain is what all who act wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_who_is_welcomed_and_has_to_wait_keeps_nobody_from_acting() {
    let postgres = Postgres::new().await;
    let node = postgres.node().await;
    let identity = Identity::of("https://id.example.com", "u-1");
    // Somebody else is given the same identity, and it is not said yet whether he keeps it.
    let other = postgres.client().await;
    other.batch_execute("BEGIN").await.expect("begun");
    let given = "INSERT INTO person (name, added_at, role, identity) VALUES ('other', 0, 'viewer', $1)";
    other.execute(given, &[&&identity.as_bytes()[..]]).await.expect("given");
    let guest = Guest { identity, name: name("ada"), role: Some(Role::Viewer), is_invited: false };
    let record = || Who::clinch("web").record("", later(1));
    let welcome = {
        let (node, record) = (node.clone(), record());
        tokio::spawn(async move { node.welcome(guest, record).await })
    };
    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event = 'transactionid'";
    let is_waiting = async {
        while postgres.count(waits).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_waiting).await.expect("it waits for the other");
    let added = node.add_user(user("ben", Role::Viewer, "clk_1"), record()).await.expect("nobody is in his way");
    assert_eq!(added, UserAdded::Added);
    other.batch_execute("ROLLBACK").await.expect("taken back");
    assert_eq!(welcome.await.expect("it ended").expect("answered"), Welcomed::As(name("ada")));
    let record = node.audit(AuditFilter::last(10)).await.expect("read");
    let acts: Vec<_> = record.iter().map(|row| row.action.as_str()).collect();
    assert_eq!(acts, ["user.link", "user.add", "user.add"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p6_the_workers_of_two_nodes_never_share_a_job() {
    let postgres = Postgres::new().await;
    let nodes = [postgres.node().await, postgres.node().await];
    for nth in 0..100 {
        nodes[nth % 2].accept(event(&format!("k{nth}"))).await.expect("accepted");
    }
    let mut workers = tokio::task::JoinSet::new();
    for node in nodes.iter().cycle().take(8) {
        let node = node.clone();
        workers.spawn(async move {
            let mut done = Vec::new();
            loop {
                let ask = ClaimAsk { queue: "work".into(), most: 4, but: None, now: later(1), until: later(60) };
                let claims = node.claim(ask).await.expect("claimed");
                if claims.is_empty() {
                    return done;
                }
                for claim in claims {
                    let held = node.settle(claim.lease, finished(later(2))).await.expect("settled");
                    assert_eq!(held, Held::Held);
                    done.push(claim.lease.job);
                }
            }
        });
    }
    let done: Vec<_> = workers.join_all().await.concat();
    assert_eq!((done.len(), done.iter().collect::<HashSet<_>>().len()), (100, 100));
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_worker_is_woken_by_an_acceptance_on_another_node() {
    let postgres = Postgres::new().await;
    let (here, there) = (postgres.node().await, postgres.node().await);
    let mut nth = 0;
    let woken = async {
        let worker = here.work("work");
        tokio::pin!(worker);
        loop {
            // Nobody knows when it has begun to listen: what is said before is not heard.
            nth += 1;
            there.accept(event(&format!("k{nth}"))).await.expect("accepted");
            tokio::select! { () = &mut worker => return, () = tokio::time::sleep(Duration::from_millis(50)) => {} }
        }
    };
    tokio::time::timeout(PATIENCE, woken).await.expect("it was woken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_the_jobs_of_a_silent_node_run_elsewhere_and_it_changes_nothing_any_more() {
    let postgres = Postgres::new().await;
    let silent = postgres.node().await;
    for key in ["idle", "begun"] {
        silent.accept(event(key)).await.expect("accepted");
    }
    let ask = ClaimAsk { queue: "work".into(), most: 2, but: None, now: later(0), until: later(60) };
    let claims = silent.claim(ask).await.expect("claimed");
    let (idle, begun) = (claims[0].lease, claims[1].lease);
    let effect = clinch_store::NewEffect { name: "post".into(), class: Idempotency::None, at: later(1) };
    assert_eq!(silent.intend(begun, effect).await.expect("answered"), Held::Held);
    let world = postgres.world().await;
    let again = world.claims("work", 10, later(2)).await;
    assert_eq!(again.iter().map(|claim| claim.lease.job).collect::<Vec<_>>(), [idle.job]);
    let lost = world.lapse(later(2), 10, later(60)).await.expect("lapsed");
    assert_eq!((lost.len(), lost[0].lease.job), (1, begun.job));
    assert_eq!(lost[0].effects[0].state, EffectState::Open);
    for lease in [idle, begun] {
        assert_eq!(silent.settle(lease, finished(later(3))).await.expect("answered"), Held::Lost);
    }
    // It comes back by itself, as another, and under a number that nobody else has.
    let back = async {
        while !matches!(silent.accept(event("back")).await, Ok(Acceptance::Fresh(_) | Acceptance::Duplicate(_))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("it came back");
    assert_eq!(postgres.count("SELECT count(DISTINCT number) FROM node").await, 2);
    world.adds_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_a_living_node_is_not_taken_for_dead_by_one_that_starts() {
    let postgres = Postgres::new().await;
    let living = postgres.node().await;
    living.accept(event("k")).await.expect("accepted");
    let ask = ClaimAsk { queue: "work".into(), most: 1, but: None, now: later(0), until: later(60) };
    let lease = living.claim(ask).await.expect("claimed")[0].lease;
    let _other = postgres.node().await;
    assert_eq!(living.settle(lease, finished(later(1))).await.expect("answered"), Held::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_who_was_taken_for_dead_begins_nothing_under_an_old_lease() {
    let postgres = Postgres::new().await;
    let silent = postgres.node().await;
    silent.accept(event("k")).await.expect("accepted");
    let ask = ClaimAsk { queue: "work".into(), most: 1, but: None, now: later(0), until: later(60) };
    let lease = silent.claim(ask).await.expect("claimed")[0].lease;
    let effect = |name: &str| clinch_store::NewEffect { name: name.into(), class: Idempotency::Header, at: later(1) };
    assert_eq!(silent.intend(lease, effect("first")).await.expect("answered"), Held::Held);
    let first_life = silent.life().expect("others may take it for dead");
    // It is buried by one that starts. Its job had begun something, and nobody has looked at that yet.
    let _other = postgres.world().await;
    let done = Conclusion { name: "first".into(), state: done(), at: later(2) };
    assert_eq!(silent.conclude(lease, done).await.expect("answered"), Held::Held, "what is known is written down");
    assert_eq!(silent.intend(lease, effect("second")).await.expect("answered"), Held::Lost);
    let next_life = async {
        while silent.life().is_some_and(|life| life.since == first_life.since) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, next_life).await.expect("it came back");
    assert_eq!(silent.intend(lease, effect("second")).await.expect("answered"), Held::Lost, "nor when it is back");
}

/// A node whose clock is off by so many seconds, and its time.
async fn skewed(postgres: &Postgres, seconds: i64) -> (Arc<PostgresStore>, impl Fn() -> Timestamp) {
    let right = in_the_wild().clock;
    let clock = move || Timestamp::from_micros(right().as_micros() + seconds * 1_000_000);
    let node = PostgresStore::open(&postgres.url(), PEPPER, keys(KEY), Options::new(Arc::new(clock.clone()))).await;
    (Arc::new(node.expect("opened")), clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f16_p6_leases_are_safe_among_nodes_whose_clocks_are_minutes_apart() {
    let postgres = Postgres::new().await;
    let (slow, slow_clock) = skewed(&postgres, -300).await;
    let (fast, fast_clock) = skewed(&postgres, 300).await;
    let minute = Duration::from_secs(60);
    let nodes: [(&Arc<PostgresStore>, &(dyn Fn() -> Timestamp + Sync)); 2] =
        [(&slow, &slow_clock), (&fast, &fast_clock)];
    for (nth, (owner, clock)) in nodes.into_iter().enumerate() {
        let (other, other_clock) = nodes[1 - nth];
        let (at, key) = (other_clock(), format!("k{nth}"));
        let jobs = vec![NewJob { run_at: at, ..job("work") }];
        other.accept(NewEvent { received_at: at, jobs, ..event(&key) }).await.expect("accepted");
        let ask = ClaimAsk { queue: "work".into(), most: 9, but: None, now: clock(), until: clock() + minute };
        let claims = owner.claim(ask).await.expect("claimed");
        assert_eq!(claims.len(), 1, "what the other accepted is due at once");
        let lost = other.lapse(other_clock(), 9, other_clock() + minute).await.expect("answered");
        assert!(lost.is_empty(), "the lease is not over for the other");
        let ask =
            ClaimAsk { queue: "work".into(), most: 9, but: None, now: other_clock(), until: other_clock() + minute };
        assert!(other.claim(ask).await.expect("claimed").is_empty());
        let lost = other.lapse(other_clock() + 2 * minute, 9, other_clock() + 3 * minute).await.expect("answered");
        assert_eq!(lost.len(), 1, "but in two minutes it is");
        assert_eq!(owner.settle(claims[0].lease, finished(clock())).await.expect("answered"), Held::Lost);
        assert_eq!(other.settle(lost[0].lease, finished(other_clock())).await.expect("answered"), Held::Held);
    }
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_two_keepers_that_prune_at_the_same_time_count_each_row_once() {
    const JOBS: u64 = 300;
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    for nth in 0..JOBS {
        world.accepted(event(&format!("k{nth}"))).await;
    }
    for claim in world.claims("work", JOBS as usize, later(1)).await {
        world.settles(claim.lease, finished(later(2))).await;
    }
    let retention = Retention { default: Duration::from_secs(60), ..Retention::default() };
    let long_after = later(400 * 86_400);
    let mut keepers = tokio::task::JoinSet::new();
    for keeper in [postgres.node().await, postgres.node().await] {
        let (retention, postgres) = (retention.clone(), postgres.clone());
        keepers.spawn(async move {
            let mut sum = Pruned::default();
            // Either may be told that the other is at it.
            while postgres.count("SELECT count(*) FROM job").await > 0 {
                let pruned = keeper.prune(long_after, retention.clone(), 10).await.expect("pruned");
                sum.jobs += pruned.jobs;
                sum.events += pruned.events;
            }
            sum
        });
    }
    let sums = keepers.join_all().await;
    assert_eq!(sums.iter().map(|sum| sum.jobs).sum::<u64>(), JOBS, "{sums:?}");
    assert_eq!(sums.iter().map(|sum| sum.events).sum::<u64>(), JOBS, "{sums:?}");
    let report = postgres.verify(long_after).await;
    assert_eq!(report.problems, Vec::<String>::new());
    let expired = report.parts.iter().find(|(part, _)| *part == "expired by retention").expect("told").1;
    assert_eq!((report.accepted, expired), (JOBS.cast_signed(), JOBS.cast_signed()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_node_whose_every_verb_waits_for_a_lock_is_not_taken_for_dead() {
    let postgres = Postgres::new().await;
    let node = postgres.node().await;
    let client = postgres.client().await;
    client.batch_execute("BEGIN; LOCK TABLE job IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let node = node.clone();
        waiting.spawn(async move {
            node.claim(ClaimAsk { queue: "work".into(), most: 1, but: None, now: later(0), until: later(60) }).await
        });
    }
    let heard = || postgres.count("SELECT count(*) FROM node WHERE seen_at > clock_timestamp() - interval '3 seconds'");
    let locked_at = node.life().expect("others may take it for dead").until;
    let lives_on = async {
        // Longer than a line is waited for.
        while node.life().expect("as before").until < locked_at + Duration::from_secs(13) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, lives_on).await.expect("it is heard all the time");
    assert_eq!(heard().await, 1);
    client.batch_execute("ROLLBACK").await.expect("unlocked");
    assert!(waiting.join_all().await.iter().any(Result::is_err), "a verb does not wait for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verbs_of_concurrent_callers_share_commits() {
    let world = world().await;
    let before = world.health().commits;
    let mut accepts = tokio::task::JoinSet::new();
    for nth in 0..500 {
        let store = world.clone();
        accepts.spawn(async move { store.accept(event(&format!("k{nth}"))).await.expect("accepted") });
    }
    let answers = accepts.join_all().await;
    assert!(answers.iter().all(|answer| matches!(answer, Acceptance::Fresh(_))));
    let commits = world.health().commits - before;
    assert!(commits < 100, "{commits} commits for 500 events");
    assert_eq!(world.health().pending_verbs, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_p6_nothing_acknowledged_is_lost_when_connections_are_cut_all_the_time() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let knife = postgres.client().await;
    let cutting = tokio::spawn(async move {
        for _ in 0..40 {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE application_name = 'clinch' AND datname = current_database() AND random() < 0.5";
            knife.query(cut, &[]).await.expect("cut");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut lives = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let store = world.clone();
        lives.spawn(async move {
            let mut acknowledged = Vec::new();
            for nth in 0..40 {
                let event = NewEvent { jobs: vec![job("work")], ..event(&format!("{caller}-{nth}")) };
                let accepted = loop {
                    match store.accept(event.clone()).await {
                        Ok(Acceptance::Fresh(accepted) | Acceptance::Duplicate(accepted)) => break accepted,
                        Ok(conflict) => panic!("{conflict:?}"),
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                };
                acknowledged.push(accepted.job);
                let ask = ClaimAsk { queue: "work".into(), most: 2, but: None, now: later(1), until: later(60) };
                for claim in store.claim(ask).await.unwrap_or_default() {
                    // Lost or held: asked until it is answered.
                    while store.settle(claim.lease, finished(later(2))).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            acknowledged
        });
    }
    let acknowledged = lives.join_all().await.concat();
    cutting.await.expect("it ended well");
    let acknowledged: HashSet<_> = acknowledged.into_iter().collect();
    assert_eq!(acknowledged.len(), 16 * 40);
    let page = world.jobs(JobFilter { limit: 1_000, ..JobFilter::default() }).await.expect("read");
    assert_eq!(page.rows.iter().map(|row| row.id).collect::<HashSet<_>>(), acknowledged);
    world.adds_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_refuses_of_one_is_not_refused_to_the_others() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    postgres.run("ALTER TABLE event ADD CONSTRAINT picky CHECK (status <> 299)").await;
    let mut accepts = tokio::task::JoinSet::new();
    for nth in 0..50 {
        let store = world.clone();
        let status = if nth == 25 { 299 } else { 202 };
        accepts.spawn(async move { store.accept(NewEvent { status, ..event(&format!("k{nth}")) }).await });
    }
    let answers = accepts.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1);
    assert_eq!(world.health().unwell, None, "nor is the database unwell");
    world.adds_up().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_no_text_can_hold_does_not_keep_an_attempt_from_ending() {
    let world = world().await;
    let accepted = world.accepted(event("k")).await;
    let claim = world.take(later(0)).await;
    let error = Some("the target answered \0 and nothing else".into());
    world.settles(claim.lease, Settlement { error, ..buried(later(1), Reason::RejectedByTarget) }).await;
    let story = world.story(accepted.job).await;
    assert_eq!(story.row.word, Word::Dead);
    assert!(story.row.error.expect("told").contains("\0 and nothing else"));
}

/// One job in each state, the finished one with an effect.
async fn lived_in() -> Postgres {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    world.accepted(event("success")).await;
    let claim = world.take(later(0)).await;
    world.intends(claim.lease, "post", Idempotency::None, later(0)).await;
    world.concludes(claim.lease, "post", done(), later(0)).await;
    world.settles(claim.lease, finished(later(1))).await;
    world.dead("dead", later(0), Reason::Timeout).await;
    world.accepted(event("queued")).await;
    world.adds_up().await;
    postgres
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_verify_finds_what_was_damaged() {
    let postgres = lived_in().await;
    for (damage, finding) in [
        ("DELETE FROM job WHERE state = 0", "3 jobs were accepted, but 2 are accounted for"),
        ("DELETE FROM job WHERE state = 0", "events have no job"),
        ("DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "3 events were accepted, but 2"),
        ("DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "jobs have no event"),
        ("UPDATE job SET state = 9 WHERE state = 0", "jobs are in no known state"),
        ("UPDATE job SET state = 4 WHERE state = 0", "jobs run without a lease"),
        ("UPDATE job SET ended_at = NULL WHERE state = 1", "ended jobs do not say when"),
        ("UPDATE job SET reason = NULL WHERE state = 3", "dead letters do not say why"),
        ("DELETE FROM attempt", "other attempts than they count"),
        ("UPDATE effect SET state = 0", "jobs ended while an effect was open"),
        ("UPDATE effect SET state = 3", "jobs ended well with an effect of unknown outcome"),
        ("UPDATE effect SET job = job + 1000", "effects have no job"),
        ("UPDATE event SET key = (SELECT min(key::text)::bytea FROM event)", "1 keys are held by more than one event"),
        ("DELETE FROM dedup", "3 keys are not held by the event"),
    ] {
        let damaged = postgres.copied().await;
        damaged.run(damage).await;
        let problems = damaged.verify(later(0)).await.problems;
        assert!(problems.iter().any(|problem| problem.contains(finding)), "{damage}: {problems:?}");
    }
}

/// A job of a group whose order is kept.
fn fifo(group: &str) -> NewJob {
    let lane = Lane::group(&Pepper::new(&PEPPER), "work", "default", group);
    NewJob { lane, order: Order::Fifo { on_dead: OnDead::Continue }, ..job("work") }
}

async fn first_of(node: &PostgresStore, now: Timestamp) -> Vec<Claim> {
    let ask = ClaimAsk { queue: "work".into(), most: 10, but: None, now, until: now + LEASE };
    node.claim(ask).await.expect("claimed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_the_order_of_a_group_is_that_of_acceptance_whatever_node_accepts_and_whatever_its_clock_says() {
    let postgres = Postgres::new().await;
    let nodes = [postgres.node().await, postgres.node().await];
    let mut accepted = Vec::new();
    for nth in 0..20usize {
        // The clock of the second is two minutes behind, and so its ids are lower.
        let received_at = later(200) - Duration::from_secs(120 * (nth as u64 % 2));
        let event = NewEvent { received_at, jobs: vec![fifo("g")], ..event(&format!("k{nth}")) };
        match nodes[nth % 2].accept(event).await.expect("accepted") {
            Acceptance::Fresh(first) => accepted.push(first.job),
            other => panic!("{other:?}"),
        }
    }
    assert!(!accepted.is_sorted(), "the ids alone would tell another order");
    let mut ran = Vec::new();
    for nth in 0..20usize {
        let claims = first_of(&nodes[nth / 3 % 2], later(300)).await;
        assert_eq!(claims.len(), 1);
        assert!(first_of(&nodes[0], later(300)).await.is_empty() && first_of(&nodes[1], later(300)).await.is_empty());
        ran.push(claims[0].lease.job);
        let held = nodes[nth % 2].settle(claims[0].lease, finished(later(300))).await.expect("answered");
        assert_eq!(held, Held::Held);
    }
    assert_eq!(ran, accepted);
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_p11_the_job_of_a_silent_node_is_still_the_first_of_its_group() {
    let postgres = Postgres::new().await;
    let silent = postgres.node().await;
    for (key, group) in [("idle 1", "a"), ("idle 2", "a"), ("begun 1", "b"), ("begun 2", "b")] {
        silent.accept(NewEvent { jobs: vec![fifo(group)], ..event(key) }).await.expect("accepted");
    }
    let claims = first_of(&silent, later(0)).await;
    assert_eq!(claims.len(), 2);
    let effect = clinch_store::NewEffect { name: "post".into(), class: Idempotency::Header, at: later(1) };
    assert_eq!(silent.intend(claims[1].lease, effect).await.expect("answered"), Held::Held);
    let world = postgres.world().await;
    world.adds_up().await;
    let again = world.claims("work", 10, later(2)).await;
    assert_eq!(again.iter().map(|claim| claim.lease.job).collect::<Vec<_>>(), [claims[0].lease.job]);
    let lost = world.lapse(later(2), 10, later(60)).await.expect("lapsed");
    assert_eq!(lost[0].lease.job, claims[1].lease.job);
    world.settles(lost[0].lease, failed(later(3), later(4))).await;
    let again = world.claims("work", 10, later(4)).await;
    assert_eq!(again.iter().map(|claim| claim.lease.job).collect::<Vec<_>>(), [claims[1].lease.job]);
    world.adds_up().await;
}

/// Many callers accept, claim, settle, bury and revive in few groups on two nodes at once, for as long as it takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_order_holds_while_everything_happens_at_once_on_two_nodes() {
    const GROUPS: usize = 4;
    const EACH: usize = 60;
    let postgres = Postgres::new().await;
    let nodes = [postgres.node().await, postgres.node().await];
    let ended = Arc::new(std::sync::Mutex::new(vec![Vec::new(); GROUPS]));
    let group_of = Arc::new(std::sync::Mutex::new(std::collections::HashMap::new()));
    let count = |ended: &[Vec<clinch_core::id::JobId>]| ended.iter().map(Vec::len).sum::<usize>();
    let mut hands = tokio::task::JoinSet::new();
    let mut senders = tokio::task::JoinSet::new();
    for group in 0..GROUPS {
        let (nodes, group_of) = (nodes.clone(), group_of.clone());
        senders.spawn(async move {
            let mut accepted = Vec::new();
            for nth in 0..EACH {
                let name = format!("g{group}");
                let event = NewEvent { jobs: vec![fifo(&name)], ..event(&format!("{group}-{nth}")) };
                match nodes[nth % 2].accept(event).await.expect("accepted") {
                    Acceptance::Fresh(first) => accepted.push(first.job),
                    other => panic!("{other:?}"),
                }
                group_of.lock().expect("held").insert(accepted[nth], group);
            }
            accepted
        });
    }
    for hand in 0..6usize {
        let (node, ended, group_of) = (nodes[hand % 2].clone(), ended.clone(), group_of.clone());
        hands.spawn(async move {
            let mut turn = hand;
            while count(&ended.lock().expect("held")) < GROUPS * EACH {
                for claim in first_of(&node, later(10)).await {
                    turn += 1;
                    let job = claim.lease.job;
                    let end = match turn % 5 {
                        0 => failed(later(9), later(9)),
                        1 => buried(later(9), Reason::Timeout),
                        _ => finished(later(9)),
                    };
                    if turn % 5 > 0 && claim.replays == 0 {
                        // An acceptance is known here a moment after it can be claimed.
                        let group = loop {
                            if let Some(group) = group_of.lock().expect("held").get(&job) {
                                break *group;
                            }
                            tokio::task::yield_now().await;
                        };
                        ended.lock().expect("held")[group].push(job);
                    }
                    assert_eq!(node.settle(claim.lease, end).await.expect("answered"), Held::Held);
                    if turn % 5 == 1 && claim.replays < 2 {
                        node.revive(replay(job, later(9))).await.expect("answered");
                    }
                }
                tokio::task::yield_now().await;
            }
        });
    }
    let mut accepted = senders.join_all().await;
    tokio::time::timeout(4 * PATIENCE, hands.join_all()).await.expect("all of them ended");
    let mut ended = ended.lock().expect("held").clone();
    accepted.sort();
    ended.sort();
    assert_eq!(ended, accepted, "each group ended or died for the first time in order of acceptance");
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_a_claim_looks_at_no_more_of_a_backlog_than_it_takes() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    for key in ["a", "b"] {
        world.accepted(event(key)).await;
    }
    let client = postgres.client().await;
    client
        .batch_execute(
            "INSERT INTO job (id, event, version, received_at, run_at, flow, queue, lane, ord, priority, turn, state, slot)
             SELECT 1000000 + nth, job.event, 1, 0, 0, 'orders', 'work', nth % 3, 0, 0, nth, 0, 1 + nth % 3
             FROM generate_series(1, 20000) AS nth, (SELECT event FROM job LIMIT 1) AS job;
             ANALYZE job; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off",
        )
        .await
        .expect("filled");
    let plan = client
        .query(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)
             SELECT id FROM job WHERE slot BETWEEN 1 AND 3 AND queue = 'work' AND state = 0 ORDER BY priority DESC, turn, id
             LIMIT 64 FOR NO KEY UPDATE SKIP LOCKED",
            &[],
        )
        .await
        .expect("explained");
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("queue_priority_turn_id_idx") && !plan.contains("->  Sort ("), "{plan}");
    assert!(plan.contains("rows=64"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_what_is_unknown_is_found_without_a_look_at_what_is_known() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    let unknown = world.unknown("k", Idempotency::None).await;
    let client = postgres.client().await;
    client
        .batch_execute(
            "INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence)
             SELECT nth, 'post', 1, 0, 1, 0, 0, 1, 0 FROM generate_series(1, 50000) AS nth;
             ANALYZE effect",
        )
        .await
        .expect("filled");
    let filter = EffectFilter { state: Some(EffectWord::Unknown), limit: 10, ..EffectFilter::default() };
    let page = world.effects(filter).await.expect("read");
    assert_eq!(page.rows.iter().map(|row| row.job).collect::<Vec<_>>(), [unknown.job]);
    // As the list asks, but for what it tells of each.
    let plan = client
        .query(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF)
             SELECT effect.job FROM effect JOIN job ON job.id = effect.job
             WHERE (effect.job, effect.name) < (9223372036854775807, '') AND effect.job >= 0 AND effect.state = 3
                 AND NOT EXISTS (SELECT 1 FROM effect AS later
                                 WHERE later.job = effect.job AND later.name = effect.name AND later.no > effect.no)
             ORDER BY effect.job DESC, effect.name DESC LIMIT 11",
            &[],
        )
        .await
        .expect("explained");
    let plan = plan.iter().map(|row| row.get(0)).collect::<Vec<String>>().join("\n");
    assert!(plan.contains("_job_name_idx") && !plan.contains("rows=50000"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_p7_verify_finds_groups_that_do_not_agree_with_their_jobs() {
    let postgres = Postgres::new().await;
    let world = postgres.world().await;
    for (key, group, on_dead) in [
        ("running", "a", OnDead::Continue),
        ("waiting", "a", OnDead::Continue),
        ("dead", "b", OnDead::Block),
        ("blocked", "b", OnDead::Block),
    ] {
        let job = NewJob { order: Order::Fifo { on_dead }, ..fifo(group) };
        world.accepted(NewEvent { jobs: vec![job], ..event(key) }).await;
    }
    let claims = world.claims("work", 10, later(1)).await;
    world.settles(claims[1].lease, buried(later(2), Reason::Timeout)).await;
    world.adds_up().await;
    for (damage, finding) in [
        ("UPDATE job SET pos = NULL WHERE state = 5", "jobs keep no known order"),
        ("DELETE FROM lane", "jobs have no place in their group"),
        ("UPDATE lane SET head = 1000", "jobs have no place in their group"),
        ("UPDATE lane SET running = NULL", "jobs run beside another of their group"),
        ("UPDATE job SET state = 5, lease_until = NULL WHERE state = 4", "groups wait for a job that does not run"),
        ("UPDATE job SET ord = 1", "groups are blocked by a job that is no dead letter"),
        ("UPDATE lane SET open = true", "groups stand open or closed for no reason"),
        ("UPDATE lane SET last = last + 1", "groups have another number of jobs than they count"),
    ] {
        let damaged = postgres.copied().await;
        damaged.run(damage).await;
        let problems = damaged.verify(later(0)).await.problems;
        assert!(problems.iter().any(|problem| problem.contains(finding)), "{damage}: {problems:?}");
    }
}
