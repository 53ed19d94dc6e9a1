//! The embedded engine: every law, and what is true of one file and one process only.

use crate::laws::{self, *};
use async_trait::async_trait;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::flow::OnConflict;
use clinch_core::id::EventId;
use clinch_core::job::Word;
use clinch_core::seal::KeyRing;
use clinch_core::time::Timestamp;
use clinch_store::sqlite::{Report, SqliteStore, verify};
use clinch_store::{
    Acceptance, Conclusion, Dedup, Held, NewEffect, NewEvent, NewJob, Retention, ReviveAsk, Revived, Settlement, Store,
    StoreError, UnknownRuling,
};
use rusqlite::{Connection, params};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;

laws::every_law!(crate::sqlite::world);

/// A directory of its own, removed with the last that knows it.
#[derive(Clone)]
struct Sqlite(Arc<TempDir>);

impl Sqlite {
    fn new() -> Sqlite {
        Sqlite(Arc::new(tempfile::tempdir().expect("a directory")))
    }

    fn directory(&self) -> &Path {
        self.0.path()
    }

    /// The file itself, behind the back of the store.
    fn file(&self) -> Connection {
        Connection::open(self.directory().join("clinch.db")).expect("opened")
    }

    fn count(&self, sql: &str) -> i64 {
        self.file().query_row(sql, [], |row| row.get(0)).expect("counted")
    }

    async fn world(&self) -> World {
        World::new(Box::new(self.clone())).await
    }
}

#[async_trait]
impl Engine for Sqlite {
    async fn open(&self, keys: Option<KeyRing>) -> clinch_store::Result<Arc<dyn Store>> {
        Ok(Arc::new(SqliteStore::open(self.directory(), PEPPER, keys).await?))
    }

    async fn empty(&self) -> Box<dyn Engine> {
        Box::new(Sqlite::new())
    }

    async fn look(&self, sql: &str, id: u64) -> Vec<u8> {
        self.file().query_row(sql, [id.cast_signed()], |row| row.get(0)).expect("found")
    }

    async fn forge(&self, sql: &str) {
        let triggers = "DROP TRIGGER audit_is_not_changed; DROP TRIGGER audit_is_not_removed";
        self.file().execute_batch(&format!("{triggers}; {sql}")).expect("done");
    }

    async fn refusal(&self, sql: &str) -> String {
        self.file().execute_batch(sql).expect_err("refused").to_string()
    }

    async fn meddle(&self, sql: &str, id: u64, value: &[u8]) {
        assert_eq!(self.file().execute(&sql.replace('$', "?"), params![id.cast_signed(), value]).expect("changed"), 1);
    }

    async fn copy(&self) -> Box<dyn Engine> {
        let copy = Sqlite::new();
        // The index of the log (-shm) is not copied: it is rebuilt, as after a power cut.
        for file in ["clinch.db", "clinch.db-wal"] {
            let from = self.directory().join(file);
            if from.exists() {
                std::fs::copy(from, copy.directory().join(file)).expect("copied");
            }
        }
        Box::new(copy)
    }

    async fn verify(&self, now: Timestamp) -> Report {
        verify(self.directory(), now).expect("read")
    }

    async fn bytes(&self) -> Vec<u8> {
        let files = std::fs::read_dir(self.directory()).expect("listed");
        files.flat_map(|file| std::fs::read(file.expect("listed").path()).expect("read")).collect()
    }
}

async fn world() -> World {
    Sqlite::new().world().await
}

#[test]
fn f2_the_set_that_is_acted_on_is_the_set_that_was_counted() {
    laws::plot::f2_the_set_that_is_acted_on_is_the_set_that_was_counted(96, world);
}

async fn refusal(sqlite: &Sqlite) -> String {
    match SqliteStore::open(sqlite.directory(), PEPPER, keys(KEY)).await {
        Err(StoreError::Open(why)) => why,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("opened"),
    }
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let sqlite = Sqlite::new();
    drop(sqlite.world().await);
    sqlite.file().execute_batch("PRAGMA user_version = 99").expect("marked");
    let why = refusal(&sqlite).await;
    assert!(why.contains("newer clinch") && why.contains("99"), "{why}");
    assert!(matches!(verify(sqlite.directory(), later(0)), Err(StoreError::Open(_))));
    assert_eq!(sqlite.count("PRAGMA user_version"), 99);
    assert_eq!(sqlite.count("SELECT value FROM fact WHERE name = 'boot'"), 1);
}

#[tokio::test]
async fn a_store_of_an_older_version_is_brought_up_to_date() {
    let sqlite = Sqlite::new();
    drop(sqlite.world().await);
    sqlite.file().execute_batch("ALTER TABLE call DROP COLUMN fence; PRAGMA user_version = 1").expect("as it was");
    laws::call::d3_a_call_is_made_once_and_its_answer_is_given_again(sqlite.world().await).await;
    assert_eq!(sqlite.count("PRAGMA user_version"), 2);
}

#[tokio::test]
async fn a_directory_has_one_store_at_a_time() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let why = refusal(&sqlite).await;
    assert!(why.contains("another clinch is using") && why.contains("--data-dir"), "{why}");
    world.accepted(event("k")).await;
    drop(world);
    assert_eq!(sqlite.world().await.jobs_len().await, 1);
}

#[tokio::test]
async fn the_pepper_is_the_one_the_store_was_made_with() {
    let sqlite = Sqlite::new();
    drop(sqlite.world().await);
    let store = SqliteStore::open(sqlite.directory(), [9; 32], keys(KEY)).await.expect("opened");
    assert_eq!(clinch_store::Read::pepper(&store), &PEPPER);
}

#[tokio::test]
async fn a_directory_without_a_store_is_not_verified_to_be_well() {
    let sqlite = Sqlite::new();
    assert!(matches!(verify(sqlite.directory(), later(0)), Err(StoreError::Open(_))));
}

/// One job in each state, the finished one with an effect.
async fn lived_in() -> Sqlite {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    world.accepted(event("success")).await;
    let claim = world.take(later(0)).await;
    world.intends(claim.lease, "post", Idempotency::None, later(0)).await;
    world.concludes(claim.lease, "post", done(), later(0)).await;
    world.settles(claim.lease, finished(later(1))).await;
    world.dead("dead", later(0), Reason::Timeout).await;
    world.accepted(event("queued")).await;
    world.adds_up().await;
    sqlite
}

#[tokio::test]
async fn p5_verify_finds_what_was_damaged() {
    for (damage, finding) in [
        ("DELETE FROM job WHERE state = 0", "3 jobs were accepted, but 2 are accounted for"),
        ("DELETE FROM job WHERE state = 0", "events have no job"),
        ("DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "3 events were accepted, but 2"),
        ("DELETE FROM event WHERE id = (SELECT max(id) FROM event)", "jobs have no event"),
        ("UPDATE job SET state = 9 WHERE state = 0", "jobs are in no known state"),
        ("UPDATE job SET ord = 9 WHERE state = 0", "jobs keep no known order"),
        (
            "UPDATE fact SET value = (SELECT max(id) + 1 FROM job) WHERE name = 'live_from'",
            "unfinished jobs lie where the next start does not look",
        ),
        ("UPDATE job SET ended_at = NULL WHERE state = 1", "ended jobs do not say when"),
        ("UPDATE job SET reason = NULL WHERE state = 3", "dead letters do not say why"),
        ("DELETE FROM attempt", "other attempts than they count"),
        ("UPDATE effect SET state = 0", "jobs ended while an effect was open"),
        ("UPDATE effect SET state = 3", "jobs ended well with an effect of unknown outcome"),
        ("UPDATE effect SET job = job + 1000", "effects have no job"),
        ("UPDATE event SET key = (SELECT key FROM event)", "1 keys are held by more than one event"),
    ] {
        let sqlite = lived_in().await;
        sqlite.file().execute_batch(damage).expect("damaged");
        let problems = sqlite.verify(later(0)).await.problems;
        assert!(problems.iter().any(|problem| problem.contains(finding)), "{damage}: {problems:?}");
    }
}

/// Keeps the writer busy while verbs are handed in, in order, so that they become one transaction.
struct OneCommit<'w> {
    world: &'w World,
    plug: Pin<Box<dyn Future<Output = ()> + Send + 'w>>,
    blocker: Connection,
    commits: u64,
}

impl<'w> OneCommit<'w> {
    async fn hold(sqlite: &Sqlite, world: &'w World) -> OneCommit<'w> {
        let blocker = sqlite.file();
        blocker.execute_batch("BEGIN IMMEDIATE").expect("blocked");
        let plug = async {
            world.key(key("plug")).await.expect("read");
        };
        let mut plug: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(plug);
        let commits = world.health().commits;
        hand_in(&mut plug).await;
        while world.health().pending_verbs > 0 {
            tokio::task::yield_now().await;
        }
        OneCommit { world, plug, blocker, commits }
    }

    async fn with<T>(
        &self,
        verb: impl Future<Output = clinch_store::Result<T>> + 'w,
    ) -> Pin<Box<dyn Future<Output = T> + 'w>>
    where
        T: 'w,
    {
        let mut verb: Pin<Box<dyn Future<Output = T>>> = Box::pin(async { verb.await.expect("answered") });
        let pending = self.world.health().pending_verbs;
        hand_in(&mut verb).await;
        assert_eq!(self.world.health().pending_verbs, pending + 1, "it waits for the writer");
        verb
    }

    async fn release(self) {
        self.blocker.execute_batch("ROLLBACK").expect("released");
        self.plug.await;
        // Its own, and the one of all that waited.
        let world = self.world;
        while world.health().commits < self.commits + 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.health().commits, self.commits + 2);
    }
}

/// A verb is handed to the writer when it is first polled.
async fn hand_in<T: ?Sized + Future>(verb: &mut Pin<Box<T>>) {
    std::future::poll_fn(|context| {
        assert!(verb.as_mut().poll(context).is_pending(), "the writer is held");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn p2_deliveries_in_one_commit_are_told_apart_by_key_and_body() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let other_body =
        |on_conflict| NewEvent { dedup: Some(Dedup { on_conflict, ..dedup("k", b"another body") }), ..event("k") };
    let commit = OneCommit::hold(&sqlite, &world).await;
    let first = commit.with(world.accept(event("k"))).await;
    let again = commit.with(world.accept(event("k"))).await;
    let conflict = commit.with(world.accept(other_body(OnConflict::Reject))).await;
    let kept = commit.with(world.accept(other_body(OnConflict::KeepFirst))).await;
    let other = commit.with(world.accept(event("other"))).await;
    commit.release().await;
    let Acceptance::Fresh(accepted) = first.await else { panic!("the first is fresh") };
    assert_eq!(again.await, Acceptance::Duplicate(accepted));
    assert_eq!(conflict.await, Acceptance::Conflict(accepted));
    assert_eq!(kept.await, Acceptance::Kept(accepted));
    assert!(matches!(other.await, Acceptance::Fresh(_)));
    assert_eq!(world.story(accepted.job).await.deliveries.len(), 3);
    world.adds_up().await;
}

#[tokio::test]
async fn p5_a_log_that_was_laid_out_ahead_is_read_no_further_than_it_was_written() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let before = world.health().log_bytes;
    let commit = OneCommit::hold(&sqlite, &world).await;
    let mut many = Vec::new();
    for nth in 0..8 {
        many.push(commit.with(world.accept(event(&format!("k{nth}")))).await);
    }
    commit.release().await;
    for one in many {
        assert!(matches!(one.await, Acceptance::Fresh(_)));
    }
    let laid_out = async {
        while world.health().log_bytes < before + (30 << 20) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), laid_out).await.expect("laid out, on a disk with 1 GiB free");
    world.accepted(event("after")).await;
    let after_power_cut = World::new(sqlite.copy().await).await;
    for world in [&world, &after_power_cut] {
        assert_eq!(world.jobs_len().await, 9);
        world.adds_up().await;
    }
}

fn intent(step: &str) -> NewEffect {
    NewEffect { name: step.into(), class: Idempotency::None, at: later(1) }
}

fn concluded(step: &str, state: EffectState) -> Conclusion {
    Conclusion { name: step.into(), state, at: later(2) }
}

#[tokio::test]
async fn p6_the_verbs_of_one_worker_count_in_their_order_within_one_commit() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let accepted = world.accepted(event("k")).await;
    let lease = world.take(later(0)).await.lease;
    let commit = OneCommit::hold(&sqlite, &world).await;
    let one = commit.with(world.intend(lease, intent("one"))).await;
    let two = commit.with(world.intend(lease, intent("two"))).await;
    let told = commit.with(world.conclude(lease, concluded("one", done()))).await;
    let end = Settlement { conclusion: Some(concluded("two", done())), ..failed(later(2), later(3)) };
    let settled = commit.with(world.settle(lease, end)).await;
    let late_end = commit.with(world.settle(lease, finished(later(2)))).await;
    let late_step = commit.with(world.intend(lease, intent("three"))).await;
    commit.release().await;
    for held in [one.await, two.await, told.await, settled.await] {
        assert_eq!(held, Held::Held);
    }
    assert_eq!((late_end.await, late_step.await), (Held::Lost, Held::Lost));
    let story = world.story(accepted.job).await;
    assert_eq!((story.row.word, story.row.attempts), (Word::Retrying, 1));
    let states: Vec<_> = story.effects.iter().map(|effect| (&*effect.name, &effect.state)).collect();
    assert_eq!(states, [("one", &done()), ("two", &done())]);
    assert_eq!(world.take(later(3)).await.effects, story.effects);
    world.adds_up().await;
}

#[tokio::test]
async fn p3_an_intent_and_a_lapse_in_one_commit_see_each_other() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    world.accepted(event("k")).await;
    let slow = world.take(later(0)).await.lease;
    let over = later(100);
    let commit = OneCommit::hold(&sqlite, &world).await;
    let granted = commit.with(world.intend(slow, intent("before"))).await;
    let lapsed = commit.with(world.lapse(over, 10, over + LEASE)).await;
    let refused = commit.with(world.intend(slow, intent("after"))).await;
    commit.release().await;
    assert_eq!((granted.await, refused.await), (Held::Held, Held::Lost));
    let lapsed = lapsed.await;
    let seen: Vec<_> = lapsed[0].effects.iter().map(|effect| &*effect.name).collect();
    assert_eq!(seen, ["before"]);
}

#[tokio::test]
async fn p8_a_replay_that_comes_with_the_burial_changes_nothing() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let accepted = world.accepted(event("k")).await;
    let lease = world.take(later(0)).await.lease;
    world.intends(lease, "post", Idempotency::None, later(1)).await;
    let end = Settlement {
        conclusion: Some(concluded("post", EffectState::Unknown)),
        ..buried(later(2), Reason::UnknownOutcome)
    };
    let ask = ReviveAsk { unknown: Some(UnknownRuling::Resend), ..replay(accepted.job, later(3)) };
    let commit = OneCommit::hold(&sqlite, &world).await;
    let settled = commit.with(world.settle(lease, end)).await;
    let early = commit.with(world.revive(ask.clone())).await;
    commit.release().await;
    assert_eq!(settled.await, Held::Held);
    assert!(matches!(early.await, Revived::NotDead { .. }));
    let story = world.story(accepted.job).await;
    assert_eq!((story.row.word, &story.effects[0].state), (Word::Dead, &EffectState::Unknown));
    assert!(story.audit.is_empty());
    // Asked again, it is granted.
    assert_eq!(world.revive(ask).await.expect("answered"), Revived::Revived { replays: 1 });
    world.adds_up().await;
}

#[tokio::test]
async fn p10_what_cannot_be_written_is_refused_and_leaves_nothing_behind() {
    let sqlite = Sqlite::new();
    let world = sqlite.world().await;
    let accepted = world.accepted(event("k")).await;
    let lease = world.take(later(0)).await.lease;
    let full = "CREATE TRIGGER full BEFORE INSERT ON job BEGIN SELECT RAISE(ABORT, 'no space'); END";
    sqlite.file().execute_batch(full).expect("made");
    let new = || NewEvent { jobs: vec![NewJob { flow: "new".into(), ..job("work") }], ..event("new") };
    let refused = world.accept(new()).await;
    assert!(matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("no space")), "{refused:?}");
    assert!(world.health().unwell.is_some());
    assert_eq!(world.health().errors.write, 1);
    assert!(matches!(world.accept(new()).await, Err(StoreError::Unavailable(_))), "nor is the next one tried");
    sqlite.file().execute_batch("DROP TRIGGER full").expect("removed");
    // The first write that succeeds shows that it can write again.
    world.settles(lease, finished(later(1))).await;
    assert_eq!(world.health().unwell, None);
    assert_eq!((world.jobs_len().await, sqlite.count("SELECT count(*) FROM event")), (1, 1));
    let job = world.accepted(new()).await.job;
    assert_eq!(&*world.story(job).await.row.flow, "new");
    assert_eq!(world.story(accepted.job).await.row.word, Word::Success);
    world.adds_up().await;
}

/// More keys than one run has.
const MANY: u64 = 140_000;

/// An event for each of the keys `k0` …, all finished, written into the file while no store has it.
async fn with_many_keys(sqlite: &Sqlite) {
    let world = sqlite.world().await;
    world.accepted(event("names")).await;
    world.finish(later(1)).await;
    drop(world);
    let mut file = sqlite.file();
    let rows = file.transaction().expect("begun");
    let first = EventId::first_at(later(10)).number();
    {
        let mut event = rows
            .prepare(
                "INSERT INTO event (id, source, received_at, key, fingerprint, expires_at, status, jobs, trace, payload)
                 SELECT ?1, source, ?2, ?3, ?4, ?5, 202, 1, trace, x'00' FROM event LIMIT 1",
            )
            .expect("prepared");
        let mut job = rows
            .prepare(
                "INSERT INTO job (id, event, flow, queue, version, state, run_at, ended_at, lane, ord, priority)
                 SELECT ?1, ?2, flow, queue, 1, 1, ?3, ?3, lane, ord, priority FROM job LIMIT 1",
            )
            .expect("prepared");
        let (at, until) = (later(10).as_micros(), (later(10) + KEY_TTL).as_micros());
        for nth in 0..MANY {
            let id = (first + 2 * nth).cast_signed();
            let dedup = dedup(&format!("k{nth}"), b"the body");
            let (key, fingerprint) = (dedup.key.as_bytes(), dedup.fingerprint.as_bytes());
            event.execute(params![id, at, key, fingerprint, until]).expect("inserted");
            job.execute(params![id + 1, id, at]).expect("inserted");
        }
    }
    let counted = "UPDATE fact SET value = value + ?1 WHERE name IN ('accepted', 'created')";
    rows.execute(counted, [MANY.cast_signed()]).expect("counted");
    rows.commit().expect("committed");
}

/// Every so many of the keys leads to its event, and one that nobody used to none.
async fn knows_every_key(world: &World) {
    let first = EventId::first_at(later(10)).number();
    for nth in (0..MANY).step_by(1_009) {
        let found = world.key(key(&format!("k{nth}"))).await.expect("read");
        assert_eq!(found, Some(EventId::from_number(first + 2 * nth)), "k{nth}");
    }
    assert_eq!(world.key(key("k-1")).await.expect("read"), None);
}

#[tokio::test]
async fn p2_a_key_is_known_wherever_it_is_kept_until_it_expires() {
    let sqlite = Sqlite::new();
    with_many_keys(&sqlite).await;
    let runs = || sqlite.count("SELECT count(*) FROM key_run");
    let entries = || sqlite.count("SELECT count(*) FROM key_entry");

    // Killed while the keys are being written out: they are still in their events' rows.
    let world = sqlite.world().await;
    knows_every_key(&world).await;
    assert!(entries() > 0 && runs() == 0);
    let survivor = world.after_a_kill().await;
    knows_every_key(&survivor).await;
    drop((world, survivor));
    let world = sqlite.world().await;
    while runs() == 0 {
        world.key(key("k1")).await.expect("read");
    }
    knows_every_key(&world).await;
    let world = world.after_a_stop().await;
    knows_every_key(&world).await;
    assert!(entries() > MANY.cast_signed());
    let again = |nth: u64, received_at: Timestamp| NewEvent { received_at, ..event(&format!("k{nth}")) };
    let known = world.duplicate(again(77, later(20))).await;

    // One of them dies and is revived: as long as it is unfinished none of its run is forgotten.
    let died = "UPDATE job SET state = 3, reason = 0, attempts = 0 WHERE id = ?1";
    let job = known.job.number().cast_signed();
    drop(world);
    sqlite.file().execute(died, [job]).expect("written");
    let world = sqlite.world().await;
    let expired = later(10) + KEY_TTL;
    let ages = || Retention { default: 1_000 * KEY_TTL, ..Retention::default() };
    let prune = async || world.prune(expired, ages(), 20_000).await.expect("pruned");
    assert_eq!(prune().await.keys, 0, "a dead letter keeps its key");
    let commit = OneCommit::hold(&sqlite, &world).await;
    let revived = commit.with(world.revive(replay(known.job, expired))).await;
    let pruned = commit.with(world.prune(expired, ages(), 20_000)).await;
    commit.release().await;
    assert_eq!(revived.await, Revived::Revived { replays: 1 });
    assert_eq!((pruned.await.keys, runs()), (0, 1), "and so does one that is being revived");
    assert_eq!(world.duplicate(again(77, expired)).await, known);
    world.finish(expired).await;

    // All are finished and expired: the run goes, its entries in bounded steps, and the keys are free.
    let mut gone = 0;
    loop {
        let step = prune().await.keys;
        assert!(step <= 20_000);
        gone += step;
        if step == 0 {
            break;
        }
    }
    assert_eq!((runs(), entries()), (0, 0));
    assert!(gone > MANY);
    let second = world.accepted(again(77, expired)).await;
    assert_eq!(world.duplicate(again(77, expired)).await, second);
    let world = world.after_a_stop().await;
    assert_eq!(world.duplicate(again(77, expired)).await, second);
    // What has been forgotten is not read back, though the events are still there.
    assert_eq!(world.key(key("k78")).await.expect("read"), None);
    world.adds_up_at(expired).await;
}
