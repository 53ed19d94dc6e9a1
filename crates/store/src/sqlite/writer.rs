//! The one thread that writes. It takes every verb that is pending, makes one transaction of them and one sync, applies
//! what they changed to memory, and only then has the callers answered, by a task that runs among them: on each runtime one.

use super::keys::{self, Keys};
use super::log::Log;
use super::memory::{Memory, Settled};
use super::{accept, ledger, settle};
use crate::read::COMMIT_SECONDS;
use crate::seal::Sealer;
use crate::{NotAllowed, Result, StoreError, VERBS_PENDING_MAX};
use clinch_core::id::JobId;
use clinch_core::key::Fingerprint;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, PrepFlags, Statement, ffi};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, oneshot, watch};

/// One transaction takes no more verbs than this.
const BATCH_VERBS_MAX: usize = 2_048;
/// A transaction with at least this many verbs says that many callers are at work.
const BUSY_VERBS: usize = 8;
/// While the disk refuses to write, it is asked again this often.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// After a failure, events are accepted again only when the disk has this much room: what was begun is written down
/// first, and a last free block here and there is no reason to say that all is well.
const ROOM_BYTES_MIN: u64 = 4 << 20;

pub(super) struct Shared {
    pub memory: Mutex<Memory>,
    pub sealer: Arc<Sealer>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Why the store cannot write at the moment.
    unwell: Mutex<Option<String>>,
    is_unwell: AtomicBool,
    pub failed: watch::Sender<Option<StoreError>>,
    pub commits: AtomicU64,
    pub commit_nanos: AtomicU64,
    pub commit_times: [AtomicU64; COMMIT_SECONDS.len() + 1],
    pub write_errors: AtomicU64,
    pub sync_errors: AtomicU64,
    pub compact_errors: AtomicU64,
    pub log_pages: AtomicI32,
    /// What was erased must not live on in the log: it is brought in whole and cut.
    cut_log: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    work: Vec<Asked>,
    /// One for each runtime that somebody has asked from.
    clerks: Vec<Clerk>,
    closed: bool,
    /// The writer has to be woken; else it is at work and will look by itself.
    sleeps: bool,
}

/// A verb, and the place of the clerk who answers its caller.
struct Asked {
    work: Box<dyn Work>,
    clerk: usize,
}

type Answers = Vec<(Box<dyn Work>, std::result::Result<(), StoreError>)>;

/// Answers the callers of one runtime: to wake them from another thread costs several times as much.
struct Clerk {
    runtime: runtime::Id,
    answers: mpsc::UnboundedSender<Answers>,
}

impl Clerk {
    fn hire(runtime: &Handle) -> Clerk {
        let (answers, mut told) = mpsc::unbounded_channel::<Answers>();
        runtime.spawn(async move {
            while let Some(answers) = told.recv().await {
                for (work, committed) in answers {
                    work.answer(committed);
                }
            }
        });
        Clerk { runtime: runtime.id(), answers }
    }
}

impl Inbox {
    fn is_idle(&self) -> bool {
        self.work.is_empty() && !self.closed
    }

    fn clerk(&mut self, runtime: &Handle) -> usize {
        let known = self.clerks.iter().position(|clerk| clerk.runtime == runtime.id());
        known.unwrap_or_else(|| {
            self.clerks.push(Clerk::hire(runtime));
            self.clerks.len() - 1
        })
    }
}

/// A verb with its caller.
trait Work: Send {
    fn run(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()>;
    fn answer(self: Box<Self>, committed: std::result::Result<(), StoreError>);
}

struct Pending<F, T> {
    verb: Option<F>,
    made: Option<T>,
    caller: oneshot::Sender<Result<T>>,
}

impl<F, T> Work for Pending<F, T>
where
    F: FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send,
    T: Send,
{
    fn run(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        let verb = self.verb.take().expect("a verb runs once");
        self.made = Some(verb(batch)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: std::result::Result<(), StoreError>) {
        let Pending { made, caller, .. } = *self;
        let answer = committed.map(|()| made.expect("what was committed was run"));
        // The caller may have gone away; what it asked for is on disk all the same.
        let _ = caller.send(answer);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding a lock of the store")
}

impl Shared {
    pub fn new(memory: Memory, sealer: Sealer) -> Self {
        Shared {
            memory: Mutex::new(memory),
            sealer: Arc::new(sealer),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            unwell: Mutex::default(),
            is_unwell: AtomicBool::new(false),
            failed: watch::Sender::new(None),
            commits: AtomicU64::new(0),
            commit_nanos: AtomicU64::new(0),
            commit_times: Default::default(),
            write_errors: AtomicU64::new(0),
            sync_errors: AtomicU64::new(0),
            compact_errors: AtomicU64::new(0),
            log_pages: AtomicI32::new(0),
            cut_log: AtomicBool::new(false),
        }
    }

    /// Hands a verb to the writer and waits until it is on disk.
    pub async fn write<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (caller, answer) = oneshot::channel();
        {
            let mut inbox = lock(&self.inbox);
            if inbox.closed {
                return Err(self.why_closed());
            }
            let clerk = inbox.clerk(&Handle::current());
            inbox.work.push(Asked { work: Box::new(Pending { verb: Some(verb), made: None, caller }), clerk });
            if std::mem::take(&mut inbox.sleeps) {
                self.arrived.notify_one();
            }
        }
        answer.await.unwrap_or_else(|_| Err(self.why_closed()))
    }

    /// A verb of somebody who may not be allowed it. Then all of it is taken back, and nothing of the others with whom it shares the
    /// transaction.
    pub async fn act<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&mut Batch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        Ok(self.write(move |batch| batch.attempt(verb)).await??)
    }

    fn why_closed(&self) -> StoreError {
        self.failed.borrow().clone().unwrap_or_else(|| StoreError::Unavailable("the store is closed".into()))
    }

    pub fn pending(&self) -> usize {
        lock(&self.inbox).work.len()
    }

    /// May something new be accepted? Asked before a body is turned into an event.
    pub fn may_accept(&self) -> Result<()> {
        if self.is_unwell.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable(self.unwell().unwrap_or_default()));
        }
        if self.pending() >= VERBS_PENDING_MAX {
            return Err(StoreError::Full("too many requests wait for the disk"));
        }
        Ok(())
    }

    pub fn cut_log(&self) {
        self.cut_log.store(true, Ordering::Relaxed);
    }

    pub fn is_log_cut(&self) -> bool {
        !self.cut_log.load(Ordering::Relaxed)
    }

    pub fn log_is_cut(&self) {
        self.cut_log.store(false, Ordering::Relaxed);
        self.log_pages.store(0, Ordering::Relaxed);
    }

    pub fn unwell(&self) -> Option<String> {
        lock(&self.unwell).clone()
    }

    fn set_unwell(&self, why: Option<String>) {
        let mut unwell = lock(&self.unwell);
        match (&*unwell, &why) {
            (None, Some(why)) => tracing::error!("the store cannot write and accepts nothing: {why}"),
            (Some(_), None) => tracing::info!("the store writes again"),
            _ => {}
        }
        self.is_unwell.store(why.is_some(), Ordering::Relaxed);
        *unwell = why;
    }

    fn count_commit(&self, took: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commit_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = COMMIT_SECONDS.iter().position(|border| seconds <= *border).unwrap_or(COMMIT_SECONDS.len());
        self.commit_times[bucket].fetch_add(1, Ordering::Relaxed);
    }

    pub fn close(&self) {
        lock(&self.inbox).closed = true;
        self.arrived.notify_one();
    }

    /// Has everybody told what became of his verb.
    fn tell(&self, work: Vec<Asked>, committed: &std::result::Result<(), StoreError>) {
        let clerks: Vec<_> = lock(&self.inbox).clerks.iter().map(|clerk| clerk.answers.clone()).collect();
        let mut answers: Vec<Answers> = clerks.iter().map(|_| Vec::with_capacity(work.len())).collect();
        for Asked { work, clerk } in work {
            answers[clerk].push((work, committed.clone()));
        }
        for (clerk, answers) in clerks.iter().zip(answers).filter(|(_, answers)| !answers.is_empty()) {
            // A runtime is gone only when nobody on it waits any more.
            let _ = clerk.send(answers);
        }
    }

    /// The next verbs; `None` when the store is closed and nothing is left. Where processors are short, whoever is about to hand one in
    /// may do so first; else nobody is waited for when there is one, as who comes during a commit is in the next. While there is none the log
    /// is laid out.
    fn next(&self, patience: Option<Duration>, conn: &Connection, log: &mut Log) -> Option<Vec<Asked>> {
        std::thread::yield_now();
        let mut inbox = lock(&self.inbox);
        while inbox.is_idle() && log.is_short() {
            drop(inbox);
            log.lengthen(conn);
            inbox = lock(&self.inbox);
        }
        if inbox.is_idle() {
            inbox = self.sleep(inbox, patience);
        }
        if inbox.work.is_empty() && inbox.closed {
            return None;
        }
        if inbox.work.len() <= BATCH_VERBS_MAX {
            return Some(std::mem::take(&mut inbox.work));
        }
        let later = inbox.work.split_off(BATCH_VERBS_MAX);
        Some(std::mem::replace(&mut inbox.work, later))
    }
}

impl Shared {
    /// Until there is a verb, the store is closed, or time is up.
    fn sleep<'a>(&self, mut inbox: MutexGuard<'a, Inbox>, most: Option<Duration>) -> MutexGuard<'a, Inbox> {
        const HELD: &str = "nobody panics while holding the inbox";
        inbox.sleeps = true;
        let is_idle = |inbox: &mut Inbox| inbox.is_idle();
        let mut inbox = match most {
            None => self.arrived.wait_while(inbox, is_idle).expect(HELD),
            Some(most) => self.arrived.wait_timeout_while(inbox, most, is_idle).expect(HELD).0,
        };
        inbox.sleeps = false;
        inbox
    }
}

/// What only the writer knows.
pub(super) struct Desk {
    pub last_id: u64,
    pub names: HashMap<Arc<str>, i64>,
    pub keys: Keys,
    /// How far the present round of pruning has come.
    pub pruned_to: u64,
}

/// A key that this very transaction gives to an event.
#[derive(Clone, Copy)]
pub(super) struct FreshKey {
    pub accepted: crate::Accepted,
    pub fingerprint: Fingerprint,
    pub expires_at: i64,
}

/// The statements of what happens to every event. To find one again among all others would take a third as long as to run it.
pub(super) struct Pens<'c> {
    pub event: Statement<'c>,
    pub job: Statement<'c>,
    pub intend: Statement<'c>,
    pub conclude: Statement<'c>,
    pub settle: Statement<'c>,
}

impl<'c> Pens<'c> {
    fn of(conn: &'c Connection) -> rusqlite::Result<Self> {
        let pen = |sql| conn.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT);
        Ok(Pens {
            event: pen(accept::EVENT)?,
            job: pen(accept::JOB)?,
            intend: pen(ledger::INTEND)?,
            conclude: pen(ledger::CONCLUDE)?,
            settle: pen(settle::SETTLE)?,
        })
    }
}

/// One transaction in the making, and the next when it is over. Verbs write rows through it and leave behind what becomes true when it is on disk.
pub(super) struct Batch<'c> {
    pub conn: &'c Connection,
    pub pens: Pens<'c>,
    pub desk: Desk,
    pub shared: &'c Shared,
    pub changes: Vec<Settled>,
    pub fresh_keys: HashMap<keys::Prefix, FreshKey>,
    pub fresh_names: Vec<(Arc<str>, i64)>,
    pub forgotten_runs: Vec<i64>,
    pub accepted: i64,
    pub created: i64,
    pub expired: i64,
    pub events_expired: i64,
    touched: HashSet<JobId>,
}

impl<'c> Batch<'c> {
    fn new(shared: &'c Shared, conn: &'c Connection, desk: Desk) -> rusqlite::Result<Self> {
        Ok(Batch {
            conn,
            pens: Pens::of(conn)?,
            desk,
            shared,
            changes: Vec::new(),
            fresh_keys: HashMap::new(),
            fresh_names: Vec::new(),
            forgotten_runs: Vec::new(),
            accepted: 0,
            created: 0,
            expired: 0,
            events_expired: 0,
            touched: HashSet::new(),
        })
    }

    /// Nothing of what was left behind became true.
    fn clear(&mut self) {
        self.changes.clear();
        self.fresh_keys.clear();
        self.fresh_names.clear();
        self.forgotten_runs.clear();
        self.touched.clear();
        (self.accepted, self.created, self.expired, self.events_expired) = (0, 0, 0, 0);
    }
}

impl Batch<'_> {
    pub fn next_id(&mut self, at: Timestamp) -> u64 {
        self.desk.last_id = clinch_core::id::next_after(self.desk.last_id, at);
        self.desk.last_id
    }

    /// The number of a name, made if it is new.
    pub fn name(&mut self, text: &Arc<str>) -> rusqlite::Result<i64> {
        if let Some(id) = self.desk.names.get(text) {
            return Ok(*id);
        }
        if let Some((_, id)) = self.fresh_names.iter().find(|(name, _)| name == text) {
            return Ok(*id);
        }
        self.conn.execute("INSERT INTO name (text) VALUES (?1)", [&**text])?;
        let id = self.conn.last_insert_rowid();
        self.fresh_names.push((text.clone(), id));
        Ok(id)
    }

    /// A job changes at most once per transaction: memory still shows what was before. False when it was changed already.
    pub fn touch(&mut self, job: JobId) -> bool {
        self.touched.insert(job)
    }

    fn attempt<T>(
        &mut self,
        verb: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<std::result::Result<T, NotAllowed>> {
        self.conn.prepare_cached("SAVEPOINT act")?.execute([])?;
        let before = self.so_far();
        let outcome = match verb(self) {
            Ok(done) => Ok(done),
            Err(error) => {
                let refusal = refusal(error)?;
                self.conn.prepare_cached("ROLLBACK TO act")?.execute([])?;
                self.back_to(before);
                Err(refusal)
            }
        };
        self.conn.prepare_cached("RELEASE act")?.execute([])?;
        Ok(outcome)
    }

    fn so_far(&self) -> SoFar {
        SoFar {
            changes: self.changes.len(),
            fresh_names: self.fresh_names.len(),
            forgotten_runs: self.forgotten_runs.len(),
            fresh_keys: self.fresh_keys.clone(),
            touched: self.touched.clone(),
            counts: [self.accepted, self.created, self.expired, self.events_expired],
        }
    }

    fn back_to(&mut self, before: SoFar) {
        self.changes.truncate(before.changes);
        self.fresh_names.truncate(before.fresh_names);
        self.forgotten_runs.truncate(before.forgotten_runs);
        (self.fresh_keys, self.touched) = (before.fresh_keys, before.touched);
        [self.accepted, self.created, self.expired, self.events_expired] = before.counts;
    }

    pub fn is_touched(&self, job: JobId) -> bool {
        self.touched.contains(&job)
    }
}

/// What earlier verbs of a transaction leave behind.
struct SoFar {
    changes: usize,
    fresh_names: usize,
    forgotten_runs: usize,
    fresh_keys: HashMap<keys::Prefix, FreshKey>,
    touched: HashSet<JobId>,
    counts: [i64; 4],
}

/// A verb ends with this where somebody may not do what he asks for.
pub(super) fn refused(why: NotAllowed) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(why))
}

/// Why somebody may not; any other error stays one.
fn refusal(error: rusqlite::Error) -> rusqlite::Result<NotAllowed> {
    match error {
        rusqlite::Error::ToSqlConversionFailure(inner) => match inner.downcast::<NotAllowed>() {
            Ok(why) => Ok(*why),
            Err(inner) => Err(rusqlite::Error::ToSqlConversionFailure(inner)),
        },
        error => Err(error),
    }
}

/// Starts the thread. `conn` is its own from here on.
pub(super) fn start(
    shared: Arc<Shared>,
    mut conn: Connection,
    desk: Desk,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let counted = shared.clone();
    let count = move |_: &mut rusqlite::hooks::Wal, pages| {
        counted.log_pages.store(pages, Ordering::Relaxed);
        Ok(())
    };
    conn.wal_hook(Some(count)).map_err(std::io::Error::other)?;
    std::thread::Builder::new().name("clinch-writer".into()).spawn(move || {
        write(&shared, &conn, desk);
        // Who still waits for an answer is told by what is dropped here.
        *lock(&shared.inbox) = Inbox { closed: true, ..Inbox::default() };
    })
}

fn write(shared: &Shared, conn: &Connection, desk: Desk) {
    let mut batch = match Batch::new(shared, conn, desk) {
        Ok(batch) => batch,
        Err(error) => {
            shared.failed.send_replace(Some(StoreError::Fatal(error.to_string())));
            return;
        }
    };
    let mut log = Log::of(conn);
    let patience = || shared.is_unwell.load(Ordering::Relaxed).then_some(PROBE_EVERY);
    while let Some(mut work) = shared.next(patience(), conn, &mut log) {
        if work.len() >= BUSY_VERBS {
            log.expect_more();
        }
        if work.is_empty() && !has_room(conn) {
            continue;
        }
        let began = Instant::now();
        let committed = match batch.transact(&mut work) {
            Ok(()) => {
                shared.count_commit(began.elapsed());
                if shared.is_unwell.load(Ordering::Relaxed) && has_room(conn) {
                    shared.set_unwell(None);
                }
                Ok(())
            }
            Err(error) => {
                batch.clear();
                // A transaction that could not be rolled back was already gone.
                let _ = conn.execute_batch("ROLLBACK");
                Err(shared.judge(&error, &shared.write_errors))
            }
        };
        let is_committed = committed.is_ok();
        let cut = if is_committed { log.cut(shared, conn) } else { Ok(()) };
        shared.tell(work, &committed);
        // What was committed stays committed, whatever becomes of the log.
        let kept = cut.and_then(|()| if is_committed { log.bring_in(shared, conn) } else { Ok(()) });
        let kept = kept.map_err(|error| shared.judge(&error, &shared.compact_errors));
        let fatal = [&committed, &kept].iter().any(|outcome| matches!(outcome, Err(StoreError::Fatal(_))));
        if fatal {
            return;
        }
    }
    // Leaves a small log behind; if it cannot, the next start reads the long one.
    let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
}

fn has_room(conn: &Connection) -> bool {
    match conn.path().map(rustix::fs::statvfs) {
        Some(Ok(disk)) => disk.f_bavail.saturating_mul(disk.f_frsize) >= ROOM_BYTES_MIN,
        // A disk that does not say is tried.
        _ => true,
    }
}

impl Batch<'_> {
    /// One transaction and one sync for all of them. An empty one probes whether the disk takes writes again.
    fn transact(&mut self, work: &mut [Asked]) -> rusqlite::Result<()> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for asked in work.iter_mut() {
            asked.work.run(self)?;
        }
        let sealed = self.desk.keys.seal(self.conn)?;
        let counted = [
            ("accepted", std::mem::take(&mut self.accepted)),
            ("created", std::mem::take(&mut self.created)),
            ("expired", std::mem::take(&mut self.expired)),
            ("events_expired", std::mem::take(&mut self.events_expired)),
            ("probes", i64::from(work.is_empty())),
        ];
        for (name, by) in counted {
            if by != 0 {
                self.conn.prepare_cached("UPDATE fact SET value = value + ?2 WHERE name = ?1")?.execute((name, by))?;
            }
        }
        self.conn.prepare_cached("COMMIT")?.execute([])?;

        for (prefix, fresh) in self.fresh_keys.drain() {
            self.desk.keys.insert(prefix, fresh.accepted.event.number(), fresh.expires_at);
        }
        self.desk.names.extend(self.fresh_names.drain(..));
        if let Some(sealed) = sealed {
            self.desk.keys.sealed(sealed);
        }
        for run in self.forgotten_runs.drain(..) {
            self.desk.keys.forget(run);
        }
        self.touched.clear();
        let mut memory = lock(&self.shared.memory);
        for change in self.changes.drain(..) {
            memory.apply(change);
        }
        Ok(())
    }
}

impl Shared {
    /// Says what an error of the disk means, and lets everybody know. `doing` counts what failed, if no sync did.
    fn judge(&self, error: &rusqlite::Error, doing: &AtomicU64) -> StoreError {
        let (said, counter) = match error.sqlite_error().map(|e| e.extended_code) {
            Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => {
                (StoreError::Fatal(error.to_string()), &self.sync_errors)
            }
            _ => (StoreError::Unavailable(error.to_string()), doing),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match &said {
            StoreError::Fatal(_) => {
                self.failed.send_replace(Some(said.clone()));
            }
            _ => self.set_unwell(Some(error.to_string())),
        }
        said
    }
}
