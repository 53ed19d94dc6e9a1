//! The embedded engine: one SQLite file, one writer thread with group commit, readers of their own.

mod accept;
mod activate;
mod admit;
mod alert;
mod approval;
mod audit;
mod budget;
mod call;
mod control;
mod drop;
mod effects;
pub(crate) mod export;
mod keep;
mod keys;
mod late;
mod ledger;
mod list;
mod log;
mod memory;
mod once;
mod pace;
mod queue;
mod read;
mod replay;
mod resolve;
mod revive;
mod rows;
mod schedule;
mod sealed;
mod session;
mod settle;
mod token;
mod user;
mod verify;
mod writer;

pub use crate::verify::Report;
pub use activate::first_files;
pub use control::controls_of;
pub use sealed::keys_of;
pub use verify::verify;

use crate::approval::{ApprovalFilter, ApprovalPage, Undecided};
use crate::drop::DropRow;
use crate::read::*;
use crate::replay::{DeadFilter, DeadLetter, ItemFilter, ItemRow, PlanRow, Plans};
use crate::seal::Sealer;
use crate::*;
use async_trait::async_trait;
use clinch_core::approval::ApprovalId;
use clinch_core::audit::Digest;
use clinch_core::budget::Spent;
use clinch_core::call::{CallKey, CallTurn};
use clinch_core::control::Control;
use clinch_core::job::Fence;
use clinch_core::oidc::Guest;
use clinch_core::pace::Reserved;
use clinch_core::payload::TraceId;
use clinch_core::policy::Tally;
use clinch_core::portion::Share;
use clinch_core::sender::{Sender, TokenId};
use clinch_core::session::Session;
use clinch_core::subject::Handle;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use memory::{Live, Memory, Phase};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, params};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use writer::{Desk, Shared, lock};

/// Older ones can lose committed writes when a checkpoint races a commit.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// The migrations, in order; the number of the last one is the version of the schema.
const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/sqlite/0001_init.sql"),
    include_str!("../../migrations/sqlite/0002_call_fence.sql"),
];
const READERS_MAX: usize = 4;
/// After an erasure the log is cut; where a reader is in the way, this often and at such a distance.
const CUTS_MAX: u32 = 50;
const CUT_AGAIN: Duration = Duration::from_millis(100);

pub struct SqliteStore {
    shared: Arc<Shared>,
    readers: Readers,
    pepper: [u8; 32],
    path: PathBuf,
    writer: Option<std::thread::JoinHandle<()>>,
    /// Held as long as the store is open: one process per store.
    _lock: std::fs::File,
}

fn database_path(data_dir: &Path) -> PathBuf {
    data_dir.join("clinch.db")
}

fn open_error(error: impl std::fmt::Display) -> StoreError {
    StoreError::Open(error.to_string())
}

impl SqliteStore {
    /// Opens or makes the store of this directory. `pepper` is used if the store is new. Without `keys` nothing is encrypted.
    pub async fn open(data_dir: &Path, pepper: [u8; 32], keys: Option<KeyRing>) -> Result<SqliteStore> {
        if rusqlite::version_number() < SQLITE_VERSION_MIN {
            return Err(StoreError::Open(format!("SQLite {} can lose writes; 3.51.3 is needed", rusqlite::version())));
        }
        let lock = lock_directory(data_dir)?;
        let path = database_path(data_dir);
        let mut conn = Connection::open(&path).map_err(open_error)?;
        let sealer = Sealer::new(keys);
        let (memory, desk, pepper) = prepare(&mut conn, pepper, &sealer)?;
        sync_directory(data_dir)?;
        let shared = Arc::new(Shared::new(memory, sealer));
        let writer = writer::start(shared.clone(), conn, desk).map_err(open_error)?;
        Ok(SqliteStore { shared, readers: Readers::new(&path), pepper, path, writer: Some(writer), _lock: lock })
    }

    fn may_accept(&self) -> Result<()> {
        self.shared.may_accept()?;
        match lock(&self.shared.memory).len() >= LIVE_JOBS_MAX {
            true => Err(StoreError::Full("too many jobs are unfinished")),
            false => Ok(()),
        }
    }

    fn claims(&self, taken: Vec<(LeaseRef, Live)>) -> impl Future<Output = Result<Vec<Claim>>> {
        // Most are fresh and have their payload at hand; the others are completed from disk, all in one question.
        let (readers, sealer) = (self.readers.clone(), self.shared.sealer.clone());
        async move {
            let thin = taken.iter().any(|(_, live)| live.payload.is_none() || live.has_effects);
            let complete = move |conn: Option<&Connection>| -> rusqlite::Result<Vec<Claim>> {
                taken.into_iter().map(|(lease, live)| claim(conn, &sealer, lease, live)).collect()
            };
            if thin {
                readers.ask(move |conn| complete(Some(conn))).await
            } else {
                complete(None).map_err(read::read_error)
            }
        }
    }
}

fn claim(conn: Option<&Connection>, sealer: &Sealer, lease: LeaseRef, live: Live) -> rusqlite::Result<Claim> {
    let payload = match (live.payload, conn) {
        (Some(payload), _) => Ok(payload),
        (None, Some(conn)) => rows::payload(conn, sealer, live.event)?,
        (None, None) => Ok(Bytes::new()),
    };
    let mut effects = match conn {
        Some(conn) if live.has_effects => rows::effects(conn, lease.job)?,
        _ => Vec::new(),
    };
    let payload = payload.and_then(|payload| sealer.open_effects(lease.job, &mut effects).map(|()| payload));
    Ok(Claim {
        lease,
        event: live.event,
        flow: live.flow,
        queue: live.queue,
        lane: live.place.lane,
        version: live.version,
        received_at: live.received_at,
        trace: live.trace,
        failures: live.failures,
        attempts: live.attempts,
        replays: live.replays,
        first_attempt_at: live.first_attempt_at,
        payload,
        effects,
    })
}

/// Opened for one process at a time: leases and the ready queue live in it.
fn lock_directory(data_dir: &Path) -> Result<std::fs::File> {
    std::fs::create_dir_all(data_dir).map_err(|e| StoreError::Open(format!("{}: {e}", data_dir.display())))?;
    let path = data_dir.join("clinch.lock");
    let file = std::fs::File::options().create(true).append(true).open(&path).map_err(open_error)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        StoreError::Open(format!(
            "another clinch is using {}; stop it, or choose another --data-dir",
            data_dir.display()
        ))
    })?;
    Ok(file)
}

/// The new file's name must survive a power cut, too.
fn sync_directory(data_dir: &Path) -> Result<()> {
    std::fs::File::open(data_dir).and_then(|directory| directory.sync_all()).map_err(open_error)
}

fn refuse_newer(conn: &Connection) -> Result<()> {
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(open_error)?;
    if version > MIGRATIONS.len() as i64 {
        return Err(StoreError::Open(format!(
            "it was written by a newer clinch (schema {version}, this one knows {}); use that version",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

fn prepare(conn: &mut Connection, pepper: [u8; 32], sealer: &Sealer) -> Result<(Memory, Desk, [u8; 32])> {
    refuse_newer(conn)?;
    export::refuse_moved(conn)?;
    conn.execute_batch(
        "PRAGMA page_size = 8192;
         PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA cache_size = -16384;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(open_error)?;
    conn.set_prepared_statement_cache_capacity(64);
    // Closing must not bring in the log: after a failed sync that would be a second sync, which lies. The writer does it
    // by hand when it ends well.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(open_error)?;
    plan_once(conn).map_err(open_error)?;
    migrate(conn, pepper).map_err(open_error)?;
    sealed::unlock(conn, sealer)?;
    load(conn).map_err(|error| StoreError::Damaged(error.to_string()))
}

/// A plan follows from its statement alone. Else SQLite looks whether a value that is bound would do for an index of some rows only, and
/// makes the plan anew whenever it is bound: that takes longer than to read a row. Where such an index is wanted the value is
/// written out.
fn plan_once(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

fn migrate(conn: &mut Connection, pepper: [u8; 32]) -> rusqlite::Result<()> {
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version: i64 = tx.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for (at, migration) in MIGRATIONS.iter().enumerate().skip(usize::try_from(version).unwrap_or(0)) {
        tx.execute_batch(migration)?;
        tx.execute_batch(&format!("PRAGMA user_version = {}", at + 1))?;
    }
    let facts = [
        "accepted",
        "created",
        "expired",
        "events_expired",
        "probes",
        "boot",
        "live_from",
        "last_id",
        "keys_sealed_to",
        "control_version",
    ];
    for name in facts {
        tx.execute("INSERT INTO fact (name, value) VALUES (?1, 0) ON CONFLICT DO NOTHING", [name])?;
    }
    tx.execute("INSERT INTO fact (name, value) VALUES ('pepper', ?1) ON CONFLICT DO NOTHING", [&pepper[..]])?;
    tx.execute("UPDATE fact SET value = value + 1 WHERE name = 'boot'", [])?;
    tx.commit()
}

fn load(conn: &Connection) -> rusqlite::Result<(Memory, Desk, [u8; 32])> {
    let pepper: [u8; 32] = conn.query_row("SELECT value FROM fact WHERE name = 'pepper'", [], |row| row.get(0))?;
    let mut names = HashMap::new();
    let mut texts = HashMap::new();
    for row in conn
        .prepare("SELECT id, text FROM name")?
        .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
    {
        let (id, text) = row?;
        let text: Arc<str> = Arc::from(text);
        names.insert(text.clone(), id);
        texts.insert(id, text);
    }
    let newest = |table: &str| {
        conn.query_row(&format!("SELECT ifnull(max(id), 0) FROM {table}"), [], |row| row.get::<_, i64>(0))
    };
    let given = rows::fact(conn, "last_id")?;
    let last_id = newest("event")?.max(newest("job")?).max(given).cast_unsigned();
    let mut memory = Memory::new(rows::fact(conn, "boot")?.cast_unsigned());
    let live_from = rows::fact(conn, "live_from")?;
    recover(conn, live_from, &texts, &mut memory)?;
    let mut blocking = conn.prepare("SELECT id, queue, lane FROM job WHERE state = 3 AND ord = 2")?;
    let mut blocking = blocking.query([])?;
    while let Some(row) = blocking.next()? {
        if let Some(queue) = texts.get(&row.get(1)?) {
            memory.block(queue, rows::lane(row, 2)?, JobId::from_number(row.get::<_, i64>(0)?.cast_unsigned()));
        }
    }
    let mut dead = conn.prepare("SELECT flow, reason, count(*) FROM job WHERE state = 3 GROUP BY flow, reason")?;
    let mut dead = dead.query([])?;
    while let Some(row) = dead.next()? {
        if let Some(flow) = texts.get(&row.get(0)?) {
            memory.remember_dead(flow, rows::reason(row.get(1)?), row.get::<_, i64>(2)?.cast_unsigned());
        }
    }
    let desk = Desk { last_id, names, keys: keys::Keys::load(conn)?, pruned_to: 0 };
    Ok((memory, desk, pepper))
}

/// Unfinished jobs come back as they were. One with an open effect was running when the process ended: it comes back as
/// running under a lease that is over, so that it is settled as lost and not silently run again.
fn recover(
    conn: &Connection,
    live_from: i64,
    texts: &HashMap<i64, Arc<str>>,
    memory: &mut Memory,
) -> rusqlite::Result<()> {
    let open: BTreeSet<i64> = conn
        .prepare("SELECT DISTINCT job FROM effect WHERE job >= ?1 AND state = 0")?
        .query_map([live_from], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let mut jobs = conn.prepare(
        "SELECT job.id, job.event, job.flow, job.queue, job.version, job.run_at, job.failures, job.attempts, job.replays,
                job.first_attempt_at, event.received_at, job.lane, job.ord, job.priority, event.trace
         FROM job CROSS JOIN event ON event.id = job.event WHERE job.id >= ?1 AND job.state = 0 ORDER BY job.id",
    )?;
    let mut jobs = jobs.query(params![live_from])?;
    let unnamed: Arc<str> = Arc::from("?");
    let text = |id: i64| texts.get(&id).unwrap_or(&unnamed).clone();
    while let Some(row) = jobs.next()? {
        let id: i64 = row.get(0)?;
        let attempts: u32 = row.get(7)?;
        let replays: u32 = row.get(8)?;
        let was_running = open.contains(&id);
        let phase = if was_running {
            Phase::Running { fence: Fence(0), until: Timestamp::from_micros(0), woken: None }
        } else {
            Phase::Ready { run_at: rows::time(row, 5)?, waits: None }
        };
        let live = Live {
            event: EventId::from_number(row.get::<_, i64>(1)?.cast_unsigned()),
            flow: text(row.get(2)?),
            queue: text(row.get(3)?),
            place: rows::place(row, 11)?,
            version: VersionId(row.get(4)?),
            received_at: rows::time(row, 10)?,
            trace: rows::trace(row, 14)?,
            failures: row.get(6)?,
            attempts,
            replays,
            first_attempt_at: rows::maybe_time(row, 9)?,
            phase,
            payload: None,
            // A step may have been done before the process ended, without any attempt having ended.
            has_effects: true,
        };
        memory.enter(JobId::from_number(id.cast_unsigned()), live);
    }
    Ok(())
}

/// A few connections that only read, made when first needed.
#[derive(Clone)]
struct Readers {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
    places: Arc<tokio::sync::Semaphore>,
    errors: Arc<AtomicU64>,
}

impl Readers {
    fn new(path: &Path) -> Self {
        Readers {
            path: Arc::new(path.to_path_buf()),
            idle: Arc::default(),
            places: Arc::new(tokio::sync::Semaphore::new(READERS_MAX)),
            errors: Arc::default(),
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = self.places.clone().acquire_owned().await.expect("the places are never closed");
        let readers = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _place = place;
            readers.ask_here(question)
        });
        asked.await.map_err(|error| StoreError::Unavailable(format!("a reader ended: {error}")))?
    }

    fn ask_here<T>(&self, question: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let failed = |error| {
            self.errors.fetch_add(1, Ordering::Relaxed);
            read::read_error(error)
        };
        let idle = lock(&self.idle).pop();
        let conn = match idle {
            Some(conn) => conn,
            None => self.open().map_err(failed)?,
        };
        // All that one question reads is of one moment, also when it takes several statements.
        let moment = conn.unchecked_transaction().map_err(failed)?;
        let answer = question(&moment).map_err(failed)?;
        drop(moment);
        lock(&self.idle).push(conn);
        Ok(answer)
    }

    fn open(&self) -> rusqlite::Result<Connection> {
        let conn = Connection::open_with_flags(&*self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        conn.execute_batch("PRAGMA query_only = 1; PRAGMA cache_size = -2048;")?;
        conn.busy_timeout(Duration::from_secs(5))?;
        plan_once(&conn)?;
        Ok(conn)
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(writer) = self.writer.take() {
            // It ends after what was already handed in; a panic in it was reported when it happened.
            let _ = writer.join();
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn accept(&self, event: NewEvent) -> Result<Acceptance> {
        self.may_accept()?;
        self.shared.write(move |batch| accept::accept(batch, event)).await
    }

    async fn claim(&self, ask: ClaimAsk) -> Result<Vec<Claim>> {
        let taken = lock(&self.shared.memory).claim(&ask);
        self.claims(taken).await
    }

    async fn renew(&self, leases: &[LeaseRef], until: Timestamp) -> Result<Vec<Held>> {
        let mut memory = lock(&self.shared.memory);
        Ok(leases.iter().map(|lease| memory.renew(*lease, until)).collect())
    }

    async fn intend(&self, lease: LeaseRef, effect: NewEffect) -> Result<Held> {
        self.shared.write(move |batch| ledger::intend(batch, lease, &effect)).await
    }

    async fn conclude(&self, lease: LeaseRef, conclusion: Conclusion) -> Result<Held> {
        let body = self.shared.sealer.result(lease.job, &conclusion);
        self.shared.write(move |batch| ledger::conclude(batch, lease, &conclusion, body.as_deref())).await
    }

    async fn testify(&self, lease: LeaseRef, testimony: Testimony) -> Result<Testified> {
        let body = self.shared.sealer.result(lease.job, &testimony.conclusion);
        self.shared.write(move |batch| late::testify(batch, lease, &testimony, body.as_deref())).await
    }

    async fn resolve(&self, ask: ResolveAsk) -> Result<Resolved> {
        self.shared.act(move |batch| resolve::resolve(batch, &ask)).await
    }

    async fn settle(&self, lease: LeaseRef, end: Settlement) -> Result<Held> {
        let sealer = &self.shared.sealer;
        let body = end.conclusion.as_ref().and_then(|conclusion| sealer.result(lease.job, conclusion));
        let sealed = settle::SealedEnd { error: sealer.error(lease.job, &end), body };
        self.shared.write(move |batch| settle::settle(batch, lease, &end, &sealed)).await
    }

    async fn fire(&self, ask: FireAsk) -> Result<Fired> {
        if ask.event.is_some() {
            self.may_accept()?;
        }
        self.shared.act(move |batch| schedule::fire(batch, ask)).await
    }

    async fn lapse(&self, now: Timestamp, most: usize, until: Timestamp) -> Result<Vec<Claim>> {
        if !lock(&self.shared.memory).any_lapsed(now) {
            return Ok(Vec::new());
        }
        // In the writer's turn: an intent that is being written down is either seen by the caller, or refused.
        let taken = self.shared.write(move |batch| Ok(lock(&batch.shared.memory).lapse(now, most, until))).await?;
        self.claims(taken).await
    }

    async fn revive(&self, ask: ReviveAsk) -> Result<Revived> {
        self.shared.act(move |batch| revive::revive(batch, &ask)).await
    }

    async fn plan(&self, plan: NewPlan) -> Result<()> {
        self.shared.act(move |batch| replay::keep(batch, &plan)).await
    }

    async fn start(&self, ask: StartAsk) -> Result<Started> {
        self.shared.act(move |batch| replay::start(batch, &ask)).await
    }

    async fn turn(&self, ask: TurnAsk) -> Result<Turned> {
        self.shared.act(move |batch| replay::turn(batch, &ask)).await
    }

    async fn release(&self, ask: ReleaseAsk) -> Result<u64> {
        self.shared.act(move |batch| replay::release(batch, &ask)).await
    }

    async fn reckon(&self, plan: PlanId, now: Timestamp) -> Result<Option<Reckoned>> {
        replay::reckon(&self.readers, &self.shared, plan, now).await
    }

    async fn ask_drop(&self, ask: DropAsk) -> Result<DropEnd> {
        self.shared.act(move |batch| drop::ask(batch, &ask)).await
    }

    async fn confirm_drop(&self, ask: DropAsk) -> Result<DropEnd> {
        self.shared.act(move |batch| drop::confirm(batch, &ask)).await
    }

    async fn undrop(&self, ask: DropAsk) -> Result<DropEnd> {
        self.shared.act(move |batch| drop::take_back(batch, &ask)).await
    }

    async fn issue(&self, token: Sender, record: Record) -> Result<Issued> {
        self.shared.act(move |batch| token::issue(batch, &token, &record)).await
    }

    async fn revoke(&self, token: TokenId, record: Record) -> Result<Revocation> {
        self.shared.act(move |batch| token::revoke(batch, token, &record)).await
    }

    async fn add_user(&self, user: NewUser, record: Record) -> Result<UserAdded> {
        self.shared.act(move |batch| user::add(batch, &user, &record)).await
    }

    async fn remove_user(&self, name: UserName, record: Record) -> Result<bool> {
        self.shared.act(move |batch| user::remove(batch, &name, &record)).await
    }

    async fn set_role(&self, name: UserName, role: Role, record: Record) -> Result<bool> {
        self.shared.act(move |batch| user::set_role(batch, &name, role, &record)).await
    }

    async fn set_password(&self, name: UserName, password: PasswordHash, record: Record) -> Result<bool> {
        self.shared.act(move |batch| user::set_password(batch, &name, &password, &record)).await
    }

    async fn welcome(&self, guest: Guest, record: Record) -> Result<Welcomed> {
        self.shared.act(move |batch| user::welcome(batch, &guest, &record)).await
    }

    async fn make_user_token(&self, user: UserName, token: NewUserToken, record: Record) -> Result<UserTokenMade> {
        self.shared.act(move |batch| user::make_token(batch, &user, &token, &record)).await
    }

    async fn remove_user_token(&self, user: UserName, token: UserTokenId, record: Record) -> Result<bool> {
        self.shared.act(move |batch| user::remove_token(batch, &user, token, &record)).await
    }

    async fn make_link(&self, link: NewLink) -> Result<()> {
        self.shared.act(move |batch| session::make_link(batch, &link)).await
    }

    async fn open_session(&self, session: NewSession) -> Result<Option<Session>> {
        self.shared.act(move |batch| session::open(batch, &session)).await
    }

    async fn end_session(&self, session: TokenDigest) -> Result<()> {
        self.shared.write(move |batch| session::end(batch, &session)).await
    }

    async fn saw(&self, secret: Seen, at: Timestamp) -> Result<()> {
        self.shared.write(move |batch| session::saw(batch, &secret, at)).await
    }

    async fn note(&self, act: Act, record: Record) -> Result<()> {
        self.shared.act(move |batch| audit::append(batch, &act, &record)).await
    }

    async fn steer(&self, ask: SteerAsk) -> Result<Steered> {
        self.shared.act(move |batch| control::steer(batch, &ask)).await
    }

    async fn raise_alert(&self, alert: AlertRow) -> Result<Option<i64>> {
        self.shared.write(move |batch| alert::raise(batch, &alert)).await
    }

    async fn mark_alert(&self, alert: AlertRow) -> Result<bool> {
        self.shared.write(move |batch| alert::mark(batch, &alert)).await
    }

    async fn recall(&self, ask: RecallAsk) -> Result<Option<JobId>> {
        Ok(lock(&self.shared.memory).recall(&ask))
    }

    async fn activate(&self, ask: ActivateAsk) -> Result<Activated> {
        self.shared.write(move |batch| activate::activate(batch, &ask)).await
    }

    async fn set_once(&self, lease: LeaseRef, ask: SetOnce) -> Result<Option<Receipt>> {
        let (sealer, step) = (&self.shared.sealer, ask.step.clone());
        let ask = sealer.once(lease.job, ask);
        let stored = self.shared.write(move |batch| once::set_once(batch, lease, &ask)).await?;
        stored.map(|stored| sealer.open_result(lease.job, &step, stored)).transpose()
    }

    async fn begin_call(&self, ask: CallAsk) -> Result<Called> {
        let key = ask.key;
        let (leave, answer) = self.shared.write(move |batch| call::begin(batch, &ask)).await?;
        Ok(self.shared.sealer.called(&key, leave, &answer))
    }

    async fn end_call(&self, key: CallKey, turn: CallTurn, end: CallEnd) -> Result<Held> {
        let end = self.shared.sealer.call_end(&key, end);
        self.shared.write(move |batch| call::end(batch, &key, turn, &end)).await
    }

    async fn reserve(&self, ask: PaceAsk) -> Result<Reserved> {
        self.shared.write(move |batch| pace::reserve(batch, &ask)).await
    }

    /// There is nobody to share with.
    async fn share(&self, ask: ShareAsk) -> Result<Share> {
        Ok(Share { granted: ask.max, part: ask.max })
    }

    async fn spend(&self, ask: SpendAsk) -> Result<Spent> {
        self.shared.write(move |batch| budget::spend(batch, &ask)).await
    }

    async fn grant(&self, ask: GrantAsk) -> Result<BudgetRow> {
        self.shared.act(move |batch| budget::grant(batch, &ask)).await
    }

    async fn admit(&self, lease: LeaseRef, ask: AdmitAsk) -> Result<Option<Admission>> {
        self.shared.write(move |batch| admit::admit(batch, lease, &ask)).await
    }

    async fn give_back(&self, lease: LeaseRef, not_done: Option<Arc<str>>) -> Result<Held> {
        self.shared.write(move |batch| admit::give_back(batch, lease, not_done.as_deref())).await
    }

    async fn ask_approval(&self, lease: LeaseRef, ask: ApprovalAsk) -> Result<Option<Asked>> {
        self.shared.write(move |batch| approval::ask(batch, lease, &ask)).await
    }

    async fn decide(&self, ask: DecideAsk) -> Result<Decided> {
        self.shared.act(move |batch| approval::decide(batch, &ask)).await
    }

    async fn expire_approvals(&self, now: Timestamp, most: usize) -> Result<Vec<ApprovalRow>> {
        if !self.readers.ask(move |conn| approval::is_any(conn, "expires_at", now)).await? {
            return Ok(Vec::new());
        }
        self.shared.write(move |batch| approval::expire(batch, now, most)).await
    }

    async fn tell_approvals(&self, ask: TellAsk) -> Result<Vec<ApprovalRow>> {
        let now = ask.now;
        if !self.readers.ask(move |conn| approval::is_any(conn, "tell_at", now)).await? {
            return Ok(Vec::new());
        }
        self.shared.write(move |batch| approval::tell(batch, &ask)).await
    }

    async fn told_approvals(&self, ids: &[ApprovalId], now: Timestamp) -> Result<()> {
        let ids = ids.to_vec();
        self.shared.write(move |batch| approval::told(batch, &ids, now)).await
    }

    async fn prune(&self, now: Timestamp, retention: Retention, most: usize) -> Result<Pruned> {
        self.shared.write(move |batch| keep::prune(batch, now, &retention, most)).await
    }

    async fn use_keys(&self, keys: KeyRing) -> Result<()> {
        let known = self.readers.ask(sealed::checks).await?;
        seal::refuse_unknown(Some(&keys), &known)?;
        let noted = keys.clone();
        self.shared.write(move |batch| sealed::note_key(batch.conn, &noted)).await?;
        self.shared.sealer.use_keys(keys);
        Ok(())
    }

    async fn reseal(&self, after: Option<EventId>, most: usize) -> Result<Resealed> {
        let sealer = self.shared.sealer.clone();
        let after = after.map_or(0, |event| event.number().cast_signed());
        let sealed::Swaps { rows, last, events, unreadable } =
            self.readers.ask(move |conn| sealed::swaps(conn, &sealer, after, most)).await?;
        let places = match rows.is_empty() {
            true => 0,
            false => self.shared.write(move |batch| sealed::write(batch, &rows)).await?,
        };
        let mut sealed = Resealed { last, events, places, unreadable };
        // Answers of calls belong to no event: the end of the walk takes them, some at a time.
        let (mut is_over, mut after) = (last.is_some(), None);
        while !is_over {
            let sealer = self.shared.sealer.clone();
            let (swaps, last) = self.readers.ask(move |conn| sealed::answer_swaps(conn, &sealer, after, most)).await?;
            sealed.unreadable += swaps.unreadable;
            if !swaps.rows.is_empty() {
                sealed.places += self.shared.write(move |batch| sealed::write(batch, &swaps.rows)).await?;
            }
            (is_over, after) = (last.is_none(), last);
        }
        Ok(sealed)
    }

    async fn retire_keys(&self) -> Result<Vec<KeyId>> {
        let Some(active) = self.active_key() else { return Ok(Vec::new()) };
        let uses = self.key_uses().await?;
        self.shared.write(move |batch| sealed::retire(batch, &uses, active)).await
    }

    async fn forget(&self, ask: ForgetAsk) -> Result<Forgotten> {
        let erased = self.shared.act(move |batch| sealed::forget(batch, &ask)).await?;
        for _ in 0..CUTS_MAX {
            if self.shared.is_log_cut() {
                return Ok(erased);
            }
            // Any commit tries again.
            tokio::time::sleep(CUT_AGAIN).await;
            self.shared.write(|_| Ok(())).await?;
        }
        Err(StoreError::Unavailable("the data is erased, but a reader keeps the old log in use; ask again".into()))
    }

    async fn work(&self, queue: &str) {
        let wake = lock(&self.shared.memory).wake_of(queue);
        wake.notified().await;
    }

    fn next_due(&self, queue: &str) -> Option<Timestamp> {
        lock(&self.shared.memory).next_due(queue)
    }

    fn life(&self) -> Option<clinch_core::term::Term> {
        None
    }

    /// There is nobody to tell; the file is closed when the store is dropped.
    async fn close(&self) {}

    async fn failed(&self) -> StoreError {
        let mut failed = self.shared.failed.subscribe();
        let error = failed.wait_for(Option::is_some).await.expect("the sender lives as long as the store").clone();
        error.expect("it was waited for")
    }
}

#[async_trait]
impl Read for SqliteStore {
    async fn job(&self, id: JobId) -> Result<Option<JobStory>> {
        read::job(&self.readers, &self.shared, id).await
    }

    async fn jobs_of(&self, event: EventId) -> Result<Vec<JobRow>> {
        read::jobs_of(&self.readers, &self.shared, event).await
    }

    async fn jobs(&self, filter: JobFilter) -> Result<JobPage> {
        list::jobs(&self.readers, &self.shared, filter).await
    }

    async fn events(&self, filter: EventFilter) -> Result<EventPage> {
        self.readers.ask(move |conn| list::events(conn, &filter)).await
    }

    async fn found_by(&self, handle: Handle, most: usize) -> Result<Vec<EventId>> {
        self.readers.ask(move |conn| list::found_by(conn, handle, most)).await
    }

    async fn begun_by(&self, trace: TraceId, most: usize) -> Result<Vec<EventId>> {
        self.readers.ask(move |conn| list::begun_by(conn, trace, most)).await
    }

    async fn traces(&self, jobs: Vec<JobId>) -> Result<BTreeMap<JobId, TraceId>> {
        self.readers.ask(move |conn| list::traces(conn, &jobs)).await
    }

    async fn source_of(&self, event: EventId) -> Result<Option<String>> {
        self.readers.ask(move |conn| read::source_of(conn, event)).await
    }

    async fn died_at(&self, job: JobId) -> Result<Option<Timestamp>> {
        self.readers.ask(move |conn| read::died_at(conn, job)).await
    }

    async fn effects(&self, filter: EffectFilter) -> Result<EffectPage> {
        effects::list(&self.readers, &self.shared, filter).await
    }

    async fn oldest_dead(&self, queues: Vec<String>, most: usize) -> Result<Vec<JobId>> {
        self.readers.ask(move |conn| read::oldest_dead_of(conn, &queues, most)).await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleRow>> {
        self.readers.ask(schedule::all).await
    }

    async fn dead_groups(&self) -> Result<Vec<DeadGroup>> {
        read::dead_groups(&self.readers).await
    }

    async fn dead_letters(&self, filter: DeadFilter) -> Result<Vec<DeadLetter>> {
        self.readers.ask(move |conn| replay::dead_letters(conn, &filter)).await
    }

    async fn drops(&self, limit: usize) -> Result<Vec<DropRow>> {
        self.readers.ask(move |conn| drop::all(conn, limit)).await
    }

    async fn plan_row(&self, plan: PlanId) -> Result<Option<PlanRow>> {
        self.readers.ask(move |conn| replay::find(conn, plan)).await
    }

    async fn plans(&self, which: Plans, limit: usize) -> Result<Vec<PlanRow>> {
        self.readers.ask(move |conn| replay::list(conn, which, limit)).await
    }

    async fn plan_items(&self, filter: ItemFilter) -> Result<Vec<ItemRow>> {
        self.readers.ask(move |conn| replay::items(conn, &filter)).await
    }

    async fn key(&self, key: DedupKey) -> Result<Option<EventId>> {
        self.shared.write(move |batch| accept::find(batch, key.as_bytes())).await
    }

    async fn latencies(&self, since: Timestamp, most: usize) -> Result<Latencies> {
        read::latencies(&self.readers, since, most).await
    }

    async fn versions(&self, limit: usize) -> Result<Vec<VersionRow>> {
        read::versions(&self.readers, limit).await
    }

    async fn unfinished(&self) -> Result<Vec<(Arc<str>, VersionId, u64)>> {
        Ok(lock(&self.shared.memory).by_version())
    }

    async fn live_version(&self) -> Result<Option<VersionId>> {
        self.readers.ask(activate::live).await
    }

    async fn version_files(&self, version: VersionId) -> Result<Option<String>> {
        read::version_files(&self.readers, version).await
    }

    async fn audit(&self, filter: AuditFilter) -> Result<Vec<AuditRow>> {
        self.readers.ask(move |conn| audit::find(conn, &filter)).await
    }

    async fn inspect(&self, noted: Option<Digest>) -> Result<Inspected> {
        self.readers.ask(move |conn| audit::inspect(conn, noted)).await
    }

    async fn users(&self) -> Result<Vec<UserRow>> {
        self.readers.ask(user::all).await
    }

    async fn user(&self, name: UserName) -> Result<Option<UserRow>> {
        self.readers.ask(move |conn| user::find(conn, name.as_str())).await
    }

    async fn user_tokens(&self) -> Result<Vec<UserTokenRow>> {
        self.readers.ask(user::tokens).await
    }

    async fn holder(&self, token: TokenDigest, now: Timestamp) -> Result<Option<Holder>> {
        self.readers.ask(move |conn| user::holder(conn, &token, now)).await
    }

    async fn session(&self, session: TokenDigest) -> Result<Option<Session>> {
        self.readers.ask(move |conn| session::one(conn, &session)).await
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>> {
        self.readers.ask(token::all).await
    }

    async fn controls(&self) -> Result<Vec<Control>> {
        self.readers.ask(control::all).await
    }

    async fn alerts(&self, which: Alerts) -> Result<Vec<AlertRow>> {
        self.readers.ask(move |conn| alert::all(conn, which)).await
    }

    async fn budgets(&self, filter: BudgetFilter) -> Result<Vec<BudgetRow>> {
        self.readers.ask(move |conn| budget::find(conn, &filter)).await
    }

    async fn exhausted(&self, now: Timestamp) -> Result<Vec<(Arc<str>, u64)>> {
        self.readers.ask(move |conn| budget::exhausted(conn, now)).await
    }

    async fn sent(&self, tally: Tally, but: Option<JobId>, now: Timestamp) -> Result<Vec<u32>> {
        self.readers.ask(move |conn| admit::sent(conn, &tally, but, now)).await
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<ApprovalRow>> {
        let id = id.clone();
        self.readers.ask(move |conn| approval::find(conn, &id)).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<ApprovalPage> {
        self.readers.ask(move |conn| approval::list(conn, &filter)).await
    }

    async fn approvals_waiting(&self) -> Result<Vec<Undecided>> {
        self.readers.ask(approval::waiting).await
    }

    fn live_versions(&self) -> Vec<VersionId> {
        lock(&self.shared.memory).versions()
    }

    async fn counts(&self) -> Result<Counts> {
        let oldest_dead = self.readers.ask(read::oldest_dead).await?;
        let memory = lock(&self.shared.memory);
        Ok(Counts {
            live: memory.live_counts(),
            dead: memory.dead_counts(),
            oldest: memory.oldest_by_state(),
            waiting: memory.waiting(),
            oldest_dead,
        })
    }

    fn health(&self) -> Health {
        let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
        let free = rustix::fs::statvfs(&self.path).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let log_bytes = size(self.path.with_extension("db-wal"));
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Health {
            unwell: self.shared.unwell(),
            warning: None,
            bytes: size(self.path.clone()) + log_bytes,
            log_bytes,
            free_bytes: free,
            pending_verbs: self.shared.pending(),
            commits: self.shared.commits.load(Ordering::Relaxed),
            commit_seconds: self.shared.commit_nanos.load(Ordering::Relaxed) as f64 / 1e9,
            commit_times: self.shared.commit_times.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            errors: Errors {
                read: count(&self.readers.errors),
                write: count(&self.shared.write_errors),
                fsync: count(&self.shared.sync_errors),
                compact: count(&self.shared.compact_errors),
            },
        }
    }

    async fn contents(&self, after: Option<EventId>, most: usize) -> Result<Vec<Contents>> {
        let sealer = self.shared.sealer.clone();
        let after = after.map_or(0, |event| event.number().cast_signed());
        self.readers.ask(move |conn| sealed::contents(conn, &sealer, after, most)).await
    }

    async fn answers(&self, after: Option<CallKey>, most: usize) -> Result<Vec<(CallKey, Kept)>> {
        let sealer = self.shared.sealer.clone();
        self.readers.ask(move |conn| sealed::answers(conn, &sealer, after, most)).await
    }

    async fn key_uses(&self) -> Result<Vec<KeyUse>> {
        self.readers.ask(sealed::uses).await
    }

    fn active_key(&self) -> Option<KeyId> {
        Some(self.shared.sealer.ring()?.active())
    }

    fn pepper(&self) -> &[u8; 32] {
        &self.pepper
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::StatementStatus;

    #[test]
    fn statements_are_planned_once_whatever_is_bound() {
        let conn = Connection::open_in_memory().expect("a database");
        conn.execute_batch(MIGRATIONS[0]).expect("the schema");
        plan_once(&conn).expect("a setting");
        for (sql, values) in [
            ("SELECT name FROM effect WHERE job = ?1 ORDER BY first_intended_at", 1),
            ("UPDATE effect SET state = ?2 WHERE job = ?1 AND state = ?3", 3),
            ("SELECT id FROM job WHERE id = ?1 AND state = ?2", 2),
            ("SELECT budget FROM budget WHERE free_at > ?1 AND free_at > 0", 1),
        ] {
            let mut statement = conn.prepare(sql).expect("a statement");
            for value in 0..10 {
                let values = rusqlite::params_from_iter(std::iter::repeat_n(value, values));
                let mut rows = statement.query(values).expect("an answer");
                while rows.next().expect("a row").is_some() {}
            }
            assert_eq!(statement.get_status(StatementStatus::RePrepare), 0, "{sql}");
        }
    }
}
