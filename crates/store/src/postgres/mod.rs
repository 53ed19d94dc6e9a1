//! The engine for many nodes: one PostgreSQL database, shared by any number of processes. Leases are rows; verbs of
//! concurrent callers are grouped into one statement and one commit; every call has a deadline.
//!
//! A commit whose answer was lost is answered with `Unavailable`. To ask again is safe: an accept finds its own key, and a
//! settlement finds that its lease is over.

mod accept;
mod activate;
mod admit;
mod alert;
mod approval;
mod audit;
mod batch;
mod bucket;
mod budget;
mod call;
mod claim;
mod control;
mod doubt;
mod drop;
mod effects;
mod ground;
mod ids;
pub(crate) mod import;
mod keep;
mod lanes;
mod late;
mod ledger;
pub(crate) mod link;
mod list;
mod migrate;
mod node;
mod once;
mod pace;
mod param;
mod pool;
mod read;
mod recall;
mod replay;
mod resolve;
mod revive;
mod ring;
mod rows;
mod schedule;
mod sealed;
mod session;
mod settle;
mod share;
mod skew;
mod span;
mod token;
mod turns;
mod user;
mod verify;
mod wake;

pub use activate::first_files;
pub use verify::verify;

use crate::approval::{ApprovalFilter, ApprovalPage, Undecided};
use crate::drop::DropRow;
use crate::read::*;
use crate::replay::{DeadFilter, DeadLetter, ItemFilter, ItemRow, PlanRow, Plans};
use crate::seal::Sealer;
use crate::*;
use accept::Accepts;
use async_trait::async_trait;
use batch::Batcher;
use clinch_core::approval::ApprovalId;
use clinch_core::audit::Digest;
use clinch_core::budget::Spent;
use clinch_core::call::{CallKey, CallTurn};
use clinch_core::control::Control;
use clinch_core::oidc::Guest;
use clinch_core::pace::Reserved;
use clinch_core::payload::TraceId;
use clinch_core::policy::Tally;
use clinch_core::portion::Share;
use clinch_core::sender::{Sender, TokenId};
use clinch_core::session::Session;
use clinch_core::subject::Handle;
use clinch_core::term::Term;
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use ledger::{Conclusions, Intents};
use link::Link;
use node::Identity;
use pool::{Pool, Use};
use settle::Settlements;
use skew::Skew;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use tokio::sync::{Notify, watch};
use turns::Rota;
use wake::Wake;

/// Lines for verbs: each family uses one at a time, claims and the rest share what is left.
const HANDS: usize = 10;
const EYES: usize = 4;
/// Who leaves waits this long to be heard.
const GOODBYE_MAX: Duration = Duration::from_secs(3);

/// Tells the time, from outside.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How this node behaves among the others.
#[derive(Clone)]
pub struct Options {
    /// The clock that the times handed in are read from: it is compared with that of the database.
    pub clock: Clock,
    /// A node that was not heard of for this long is taken for dead, and what it had runs elsewhere.
    pub silence_max: Duration,
    /// Events and keys are kept in partitions of about this length, and go with them.
    pub span: Duration,
    /// No statement takes longer, and nobody waits longer for a line.
    pub deadline: Duration,
}

impl Options {
    pub fn new(clock: Clock) -> Options {
        Options {
            clock,
            silence_max: Duration::from_secs(10),
            span: Duration::from_secs(86_400),
            deadline: Duration::from_secs(10),
        }
    }
}

/// Why the database did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{}", said(.0))]
    Database(#[from] tokio_postgres::Error),
    #[error("the database did not answer in time")]
    Silent,
    #[error("every line to the database is in use")]
    Busy,
    #[error("this node was not heard of and taken for dead; it comes back in a moment")]
    TakenForDead,
    #[error("{0}")]
    Refused(String),
    #[error("256 nodes use this database, and no more can")]
    TooManyNodes,
    #[error("the database holds something that cannot be read: {0}")]
    Damaged(&'static str),
    /// Not the fault of anything: who asked may not.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
}

/// The server's own words, where there are any: the error itself says only that there was one. And what to do, where we know.
fn said(error: &tokio_postgres::Error) -> String {
    let code = error.as_db_error().map(|db| db.code().code());
    let words = match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    };
    let remedy = match code {
        Some("26000" | "42P05") => {
            "; if this is the address of a PgBouncer in transaction mode, add pgbouncer=transaction to it"
        }
        Some("28P01" | "28000") => REMEDY_PASSWORD,
        None if words.contains("password missing") => REMEDY_PASSWORD,
        None if words.contains("UnknownIssuer") => {
            "; name the file with the certificate of its authority: sslrootcert=FILE"
        }
        None if words.contains("not valid for name") => {
            "; name the host in the address as its certificate does, or give it a certificate for this name"
        }
        _ => "",
    };
    words + remedy
}

const REMEDY_PASSWORD: &str =
    "; the password is taken from the address, or from the password file (passfile=FILE, PGPASSFILE or ~/.pgpass)";

impl Fault {
    fn code(&self) -> Option<&str> {
        match self {
            Fault::Database(error) => Some(error.as_db_error()?.code().code()),
            _ => None,
        }
    }

    /// Rolled back because of another transaction: asking again may simply work.
    fn is_conflict(&self) -> bool {
        matches!(self.code(), Some("40001" | "40P01")) || self.is_out_of_date()
    }

    /// A row went to where rows went when the statement began: its bucket is sealed now, or it has a span of its own.
    fn is_out_of_date(&self) -> bool {
        let Fault::Database(error) = self else { return false };
        let Some(error) = error.as_db_error() else { return false };
        error.code().code() == "23514" && matches!(error.constraint(), None | Some(bucket::SEALED))
    }

    /// A lock was not to be had in the time that was given.
    fn is_locked_out(&self) -> bool {
        self.code() == Some("55P03")
    }

    /// The server understood, wrote nothing, and would refuse again: the fault is in what was asked, not in the server.
    fn is_refusal(&self) -> bool {
        // Data exceptions, violated constraints, and what no statement of ours should ever run into.
        self.code().is_some_and(|code| ["21", "22", "23", "42", "54"].contains(&&code[..2]))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics while holding a lock of the store")
}

/// What verbs, heartbeat and listener share.
struct Shared {
    link: Link,
    sealer: Sealer,
    hands: Arc<Pool>,
    eyes: Arc<Pool>,
    /// One line that nobody else uses: a busy node must not look like a dead one.
    heart: Arc<Pool>,
    node: Mutex<Identity>,
    skew: Skew,
    wake: Wake,
    rota: Rota,
    silence: Duration,
    span: Duration,
    closed: watch::Sender<bool>,
    /// Whether the others were told that this node goes.
    gone: watch::Sender<bool>,
    /// The database did not do what it was asked to: whether it would do anything is to be found out.
    doubt: Notify,
    /// Claims that may have been made without their answer being heard.
    unheard: Mutex<Vec<doubt::Unheard>>,
    /// The present round of pruning.
    round: Mutex<keep::Round>,
    unwell: Mutex<Option<String>>,
    is_full: AtomicBool,
    pending: AtomicUsize,
    commits: AtomicU64,
    commit_nanos: AtomicU64,
    commit_times: [AtomicU64; COMMIT_SECONDS.len() + 1],
    write_errors: AtomicU64,
    bytes: AtomicU64,
    counts: Mutex<Option<(Instant, Counts)>>,
    versions: Mutex<Versions>,
}

impl Shared {
    fn committed(&self, began: Instant) {
        let took = began.elapsed();
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.commit_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let seconds = took.as_secs_f64();
        let bucket = COMMIT_SECONDS.iter().position(|border| seconds <= *border).unwrap_or(COMMIT_SECONDS.len());
        self.commit_times[bucket].fetch_add(1, Ordering::Relaxed);
        self.well();
    }

    /// Says what a fault means, and lets everybody know.
    fn judge(&self, fault: &Fault) -> StoreError {
        if let Fault::NotAllowed(why) = fault {
            return StoreError::NotAllowed(why.clone());
        }
        self.write_errors.fetch_add(1, Ordering::Relaxed);
        let why = fault.to_string();
        // A database that refuses one ask is well; one that is only busy says so to each caller.
        if !fault.is_refusal() && !fault.is_conflict() && !matches!(fault, Fault::Busy) {
            let mut unwell = lock(&self.unwell);
            if unwell.is_none() {
                tracing::error!("the database cannot be written to and nothing is accepted: {why}");
            }
            *unwell = Some(why.clone());
            self.doubt.notify_one();
        }
        StoreError::Unavailable(why)
    }

    fn well(&self) {
        if lock(&self.unwell).take().is_some() {
            tracing::info!("the database answers again");
        }
    }

    /// May something new be accepted? Asked before a body is turned into an event.
    fn may_accept(&self) -> Result<()> {
        if let Some(why) = lock(&self.unwell).clone() {
            return Err(StoreError::Unavailable(why));
        }
        if self.pending.load(Ordering::Relaxed) >= VERBS_PENDING_MAX {
            return Err(StoreError::Full("too many requests wait for the database"));
        }
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StoreError::Full("too many jobs are unfinished"));
        }
        Ok(())
    }

    /// A verb that is a transaction of its own.
    fn done<T>(&self, began: Instant, answer: std::result::Result<T, Fault>) -> Result<T> {
        match answer {
            Ok(answer) => {
                self.committed(began);
                Ok(answer)
            }
            Err(fault) => Err(self.judge(&fault)),
        }
    }

    async fn revive(&self, ask: &ReviveAsk) -> std::result::Result<Revived, Fault> {
        let mut line = self.hands.line().await?;
        line.begin().await?;
        let (revived, again) = revive::revive(self, &mut line, ask).await?;
        audit::append(&mut line, again.as_ref().map(|again| &again.acted)).await?;
        line.commit().await?;
        if let Some(again) = again {
            self.lives_again(&again);
        }
        Ok(revived)
    }

    fn lives_again(&self, again: &revive::Again) {
        lock(&self.versions).count(again.version, 1);
        self.wake.ready(&again.queue, again.run_at);
        self.wake.later(&again.queue, again.run_at);
    }
}

/// How many unfinished jobs run each version: as it was at the last look, and what this node did since.
#[derive(Default)]
struct Versions(BTreeMap<VersionId, i64>);

impl Versions {
    fn count(&mut self, version: VersionId, by: i64) {
        *self.0.entry(version).or_default() += by;
    }

    /// `before` is how it was when the look began: what happened meanwhile is added to what was seen.
    fn looked(&mut self, before: &Versions, seen: Vec<(VersionId, i64)>) {
        let of = |known: &Versions, version| known.0.get(&version).copied().unwrap_or(0);
        let mut now: BTreeMap<VersionId, i64> = seen.into_iter().collect();
        for version in self.0.keys().copied() {
            *now.entry(version).or_default() += of(self, version) - of(before, version);
        }
        now.retain(|_, jobs| *jobs != 0);
        self.0 = now;
    }

    fn live(&self) -> Vec<VersionId> {
        self.0.iter().filter(|(_, jobs)| **jobs > 0).map(|(version, _)| *version).collect()
    }
}

pub struct PostgresStore {
    shared: Arc<Shared>,
    accepts: Batcher<Accepts>,
    intents: Batcher<Intents>,
    conclusions: Batcher<Conclusions>,
    settlements: Batcher<Settlements>,
    pepper: [u8; 32],
    forgets: Option<String>,
}

impl PostgresStore {
    /// Opens the store of this database, and makes it if it is new. `pepper` is used if the store is new. Without `keys` nothing
    /// is encrypted.
    pub async fn open(url: &str, pepper: [u8; 32], keys: Option<KeyRing>, options: Options) -> Result<PostgresStore> {
        let link = Link::parse(url)?;
        let found = migrate::migrate(&link, pepper).await?;
        if found.is_half_moved {
            // Some of its jobs and of its keys are not there.
            return Err(StoreError::Open(
                "a store is being moved into this database and is not all there; finish with `clinch migrate`".into(),
            ));
        }
        let hands = Pool::new(link.clone(), Use::Verbs, HANDS, &found.commit, options.deadline);
        let eyes = Pool::new(link.clone(), Use::Questions, EYES, &found.commit, options.deadline);
        let heart = Pool::new(link.clone(), Use::Verbs, 1, &found.commit, options.deadline);
        let sealer = Sealer::new(keys);
        let open_error = |fault: Fault| StoreError::Open(fault.to_string());
        let node = node::register(&heart, options.silence_max, &sealer).await.map_err(open_error)?;
        let shared = Arc::new(Shared {
            link,
            sealer,
            hands,
            eyes,
            heart,
            node: Mutex::new(node),
            skew: Skew::new(options.clock),
            wake: Wake::default(),
            rota: Rota::default(),
            silence: options.silence_max,
            span: options.span,
            closed: watch::Sender::new(false),
            gone: watch::Sender::new(false),
            doubt: Notify::new(),
            unheard: Mutex::default(),
            round: Mutex::default(),
            unwell: Mutex::default(),
            is_full: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            commits: AtomicU64::new(0),
            commit_nanos: AtomicU64::new(0),
            commit_times: Default::default(),
            write_errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            counts: Mutex::default(),
            versions: Mutex::default(),
        });
        // Nobody is told that his lease is over before it is known what time it is there.
        node::beat(&shared).await.map_err(open_error)?;
        node::measure(&shared).await.map_err(open_error)?;
        node::learn(&shared).await.map_err(open_error)?;
        keep::prepare(&shared).await;
        tokio::spawn(node::live(shared.clone()));
        tokio::spawn(node::mind_others(shared.clone()));
        tokio::spawn(node::keep_learning(shared.clone()));
        tokio::spawn(node::watch(shared.clone()));
        if !shared.link.is_pooled {
            tokio::spawn(wake::listen(shared.clone()));
        }
        Ok(PostgresStore {
            accepts: Batcher::start(&shared),
            intents: Batcher::start(&shared),
            conclusions: Batcher::start(&shared),
            settlements: Batcher::start(&shared),
            pepper: found.pepper,
            forgets: found.forgets,
            shared,
        })
    }
}

/// Makes the store of this database, or brings it up to date, without becoming a node of it.
pub async fn prepare(url: &str, pepper: [u8; 32]) -> Result<()> {
    migrate::migrate(&Link::parse(url)?, pepper).await.map(drop)
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.shared.closed.send_replace(true);
    }
}

fn unread(fault: Fault) -> StoreError {
    StoreError::Unavailable(format!("reading failed: {fault}"))
}

#[async_trait]
impl Store for PostgresStore {
    async fn accept(&self, event: NewEvent) -> Result<Acceptance> {
        self.shared.may_accept()?;
        self.accepts.write(event).await
    }

    async fn claim(&self, ask: ClaimAsk) -> Result<Vec<Claim>> {
        if ask.most == 0 {
            return Ok(Vec::new());
        }
        let began = Instant::now();
        self.shared.done(began, claim::claim(&self.shared, &ask).await)
    }

    async fn renew(&self, leases: &[LeaseRef], until: Timestamp) -> Result<Vec<Held>> {
        let began = Instant::now();
        self.shared.done(began, claim::renew(&self.shared, leases, until).await)
    }

    async fn intend(&self, lease: LeaseRef, effect: NewEffect) -> Result<Held> {
        self.intents.write((lease, effect)).await
    }

    async fn conclude(&self, lease: LeaseRef, conclusion: Conclusion) -> Result<Held> {
        self.conclusions.write((lease, conclusion)).await
    }

    async fn testify(&self, lease: LeaseRef, testimony: Testimony) -> Result<Testified> {
        let began = Instant::now();
        self.shared.done(began, late::testify(&self.shared, lease, &testimony).await)
    }

    async fn resolve(&self, ask: ResolveAsk) -> Result<Resolved> {
        let began = Instant::now();
        self.shared.done(began, resolve::resolve(&self.shared, &ask).await)
    }

    async fn settle(&self, lease: LeaseRef, end: Settlement) -> Result<Held> {
        self.settlements.write((lease, end)).await
    }

    async fn fire(&self, ask: FireAsk) -> Result<Fired> {
        if ask.event.is_some() {
            self.shared.may_accept()?;
        }
        let began = Instant::now();
        self.shared.done(began, schedule::fire(&self.shared, &ask).await)
    }

    async fn lapse(&self, now: Timestamp, most: usize, until: Timestamp) -> Result<Vec<Claim>> {
        let began = Instant::now();
        self.shared.done(began, claim::lapse(&self.shared, now, most, until).await)
    }

    async fn revive(&self, ask: ReviveAsk) -> Result<Revived> {
        let began = Instant::now();
        self.shared.done(began, self.shared.revive(&ask).await)
    }

    async fn plan(&self, plan: NewPlan) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, replay::keep(&self.shared, &plan).await)
    }

    async fn start(&self, ask: StartAsk) -> Result<Started> {
        let began = Instant::now();
        self.shared.done(began, replay::start(&self.shared, &ask).await)
    }

    async fn turn(&self, ask: TurnAsk) -> Result<Turned> {
        let began = Instant::now();
        self.shared.done(began, replay::turn(&self.shared, &ask).await)
    }

    async fn release(&self, ask: ReleaseAsk) -> Result<u64> {
        let began = Instant::now();
        self.shared.done(began, replay::release(&self.shared, &ask).await)
    }

    async fn reckon(&self, plan: PlanId, now: Timestamp) -> Result<Option<Reckoned>> {
        let began = Instant::now();
        self.shared.done(began, replay::reckon(&self.shared, plan, now).await)
    }

    async fn ask_drop(&self, ask: DropAsk) -> Result<DropEnd> {
        let began = Instant::now();
        self.shared.done(began, drop::ask(&self.shared, &ask).await)
    }

    async fn confirm_drop(&self, ask: DropAsk) -> Result<DropEnd> {
        let began = Instant::now();
        self.shared.done(began, drop::confirm(&self.shared, &ask).await)
    }

    async fn undrop(&self, ask: DropAsk) -> Result<DropEnd> {
        let began = Instant::now();
        self.shared.done(began, drop::take_back(&self.shared, &ask).await)
    }

    async fn issue(&self, token: Sender, record: Record) -> Result<Issued> {
        let began = Instant::now();
        self.shared.done(began, token::issue(&self.shared, &token, &record).await)
    }

    async fn revoke(&self, token: TokenId, record: Record) -> Result<Revocation> {
        let began = Instant::now();
        self.shared.done(began, token::revoke(&self.shared, token, &record).await)
    }

    async fn add_user(&self, user: NewUser, record: Record) -> Result<UserAdded> {
        let began = Instant::now();
        self.shared.done(began, user::add(&self.shared, &user, &record).await)
    }

    async fn remove_user(&self, name: UserName, record: Record) -> Result<bool> {
        let began = Instant::now();
        self.shared.done(began, user::remove(&self.shared, &name, &record).await)
    }

    async fn set_role(&self, name: UserName, role: Role, record: Record) -> Result<bool> {
        let began = Instant::now();
        self.shared.done(began, user::set_role(&self.shared, &name, role, &record).await)
    }

    async fn set_password(&self, name: UserName, password: PasswordHash, record: Record) -> Result<bool> {
        let began = Instant::now();
        self.shared.done(began, user::set_password(&self.shared, &name, &password, &record).await)
    }

    async fn welcome(&self, guest: Guest, record: Record) -> Result<Welcomed> {
        let began = Instant::now();
        self.shared.done(began, user::welcome(&self.shared, &guest, &record).await)
    }

    async fn make_user_token(&self, user: UserName, token: NewUserToken, record: Record) -> Result<UserTokenMade> {
        let began = Instant::now();
        self.shared.done(began, user::make_token(&self.shared, &user, &token, &record).await)
    }

    async fn remove_user_token(&self, user: UserName, token: UserTokenId, record: Record) -> Result<bool> {
        let began = Instant::now();
        self.shared.done(began, user::remove_token(&self.shared, &user, token, &record).await)
    }

    async fn make_link(&self, link: NewLink) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, session::make_link(&self.shared, &link).await)
    }

    async fn open_session(&self, session: NewSession) -> Result<Option<Session>> {
        let began = Instant::now();
        self.shared.done(began, session::open(&self.shared, &session).await)
    }

    async fn end_session(&self, session: TokenDigest) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, session::end(&self.shared, &session).await)
    }

    async fn saw(&self, secret: Seen, at: Timestamp) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, session::saw(&self.shared, &secret, at).await)
    }

    async fn note(&self, act: Act, record: Record) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, audit::note(&self.shared, act, record).await)
    }

    async fn steer(&self, ask: SteerAsk) -> Result<Steered> {
        let began = Instant::now();
        self.shared.done(began, control::steer(&self.shared, &ask).await)
    }

    async fn raise_alert(&self, alert: AlertRow) -> Result<Option<i64>> {
        let began = Instant::now();
        self.shared.done(began, alert::raise(&self.shared, &alert).await)
    }

    async fn mark_alert(&self, alert: AlertRow) -> Result<bool> {
        let began = Instant::now();
        self.shared.done(began, alert::mark(&self.shared, &alert).await)
    }

    async fn recall(&self, ask: RecallAsk) -> Result<Option<JobId>> {
        let began = Instant::now();
        self.shared.done(began, recall::recall(&self.shared, &ask).await)
    }

    async fn activate(&self, ask: ActivateAsk) -> Result<Activated> {
        let began = Instant::now();
        self.shared.done(began, activate::activate(&self.shared, &ask).await)
    }

    async fn set_once(&self, lease: LeaseRef, ask: SetOnce) -> Result<Option<Receipt>> {
        let began = Instant::now();
        let sealer = &self.shared.sealer;
        let ask = sealer.once(lease.job, ask);
        let stored = self.shared.done(began, once::set_once(&self.shared, lease, &ask).await)?;
        stored.map(|stored| sealer.open_result(lease.job, &ask.step, stored)).transpose()
    }

    async fn begin_call(&self, ask: CallAsk) -> Result<Called> {
        let began = Instant::now();
        let (leave, answer) = self.shared.done(began, call::begin(&self.shared, &ask).await)?;
        Ok(self.shared.sealer.called(&ask.key, leave, &answer))
    }

    async fn end_call(&self, key: CallKey, turn: CallTurn, end: CallEnd) -> Result<Held> {
        let began = Instant::now();
        let end = self.shared.sealer.call_end(&key, end);
        self.shared.done(began, call::end(&self.shared, &key, turn, &end).await)
    }

    async fn reserve(&self, ask: PaceAsk) -> Result<Reserved> {
        let began = Instant::now();
        self.shared.done(began, pace::reserve(&self.shared, &ask).await)
    }

    async fn share(&self, ask: ShareAsk) -> Result<Share> {
        let began = Instant::now();
        self.shared.done(began, share::share(&self.shared, &ask).await)
    }

    async fn spend(&self, ask: SpendAsk) -> Result<Spent> {
        let began = Instant::now();
        self.shared.done(began, budget::spend(&self.shared, &ask).await)
    }

    async fn grant(&self, ask: GrantAsk) -> Result<BudgetRow> {
        let began = Instant::now();
        self.shared.done(began, budget::grant(&self.shared, &ask).await)
    }

    async fn admit(&self, lease: LeaseRef, ask: AdmitAsk) -> Result<Option<Admission>> {
        let began = Instant::now();
        self.shared.done(began, admit::admit(&self.shared, lease, &ask).await)
    }

    async fn give_back(&self, lease: LeaseRef, not_done: Option<Arc<str>>) -> Result<Held> {
        let began = Instant::now();
        self.shared.done(began, admit::give_back(&self.shared, lease, not_done.as_deref()).await)
    }

    async fn ask_approval(&self, lease: LeaseRef, ask: ApprovalAsk) -> Result<Option<Asked>> {
        let began = Instant::now();
        self.shared.done(began, approval::ask(&self.shared, lease, &ask).await)
    }

    async fn decide(&self, ask: DecideAsk) -> Result<Decided> {
        let began = Instant::now();
        self.shared.done(began, approval::decide(&self.shared, &ask).await)
    }

    async fn expire_approvals(&self, now: Timestamp, most: usize) -> Result<Vec<ApprovalRow>> {
        let began = Instant::now();
        self.shared.done(began, approval::expire(&self.shared, now, most).await)
    }

    async fn tell_approvals(&self, ask: TellAsk) -> Result<Vec<ApprovalRow>> {
        let began = Instant::now();
        self.shared.done(began, approval::tell(&self.shared, &ask).await)
    }

    async fn told_approvals(&self, ids: &[ApprovalId], now: Timestamp) -> Result<()> {
        let began = Instant::now();
        self.shared.done(began, approval::told(&self.shared, ids, now).await)
    }

    async fn prune(&self, now: Timestamp, retention: Retention, most: usize) -> Result<Pruned> {
        let began = Instant::now();
        self.shared.done(began, keep::prune(&self.shared, now, &retention, most).await)
    }

    async fn use_keys(&self, keys: KeyRing) -> Result<()> {
        sealed::use_keys(&self.shared, keys).await.map_err(|fault| StoreError::Open(fault.to_string()))
    }

    async fn reseal(&self, after: Option<EventId>, most: usize) -> Result<Resealed> {
        let began = Instant::now();
        self.shared.done(began, sealed::reseal(&self.shared, after, most).await)
    }

    async fn retire_keys(&self) -> Result<Vec<KeyId>> {
        if self.active_key().is_none() {
            return Ok(Vec::new());
        }
        let uses = self.key_uses().await?;
        let began = Instant::now();
        self.shared.done(began, sealed::retire(&self.shared, &uses).await)
    }

    async fn forget(&self, ask: ForgetAsk) -> Result<Forgotten> {
        let began = Instant::now();
        self.shared.done(began, sealed::forget(&self.shared, &ask).await)
    }

    async fn work(&self, queue: &str) {
        let wake = self.shared.wake.wake_of(queue);
        // Nobody is heard behind a pooler: who waits for others must look.
        let look = async {
            if self.shared.link.is_pooled {
                let boot = lock(&self.shared.node).boot;
                tokio::time::sleep(self.shared.wake.look_pause(boot)).await;
            } else {
                self.shared.wake.whole_look(queue).await;
            }
        };
        tokio::select! { () = wake.notified() => {}, () = look => {} }
    }

    fn next_due(&self, queue: &str) -> Option<Timestamp> {
        self.shared.wake.next_due(queue)
    }

    fn life(&self) -> Option<Term> {
        Some(lock(&self.shared.node).life(self.shared.silence))
    }

    async fn close(&self) {
        self.shared.closed.send_replace(true);
        let mut gone = self.shared.gone.subscribe();
        // A database that is away is not waited for: the silence will tell.
        let _ = tokio::time::timeout(GOODBYE_MAX, gone.wait_for(|gone| *gone)).await;
    }

    /// A database that is away comes back: this engine never fails for good.
    async fn failed(&self) -> StoreError {
        std::future::pending().await
    }
}

#[async_trait]
impl Read for PostgresStore {
    async fn job(&self, id: JobId) -> Result<Option<JobStory>> {
        read::job(&self.shared.eyes, &self.shared.sealer, id).await.map_err(unread)
    }

    async fn jobs_of(&self, event: EventId) -> Result<Vec<JobRow>> {
        read::jobs_of(&self.shared.eyes, &self.shared.sealer, event).await.map_err(unread)
    }

    async fn jobs(&self, filter: JobFilter) -> Result<JobPage> {
        list::jobs(&self.shared.eyes, &self.shared.sealer, &filter).await.map_err(unread)
    }

    async fn events(&self, filter: EventFilter) -> Result<EventPage> {
        list::events(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn found_by(&self, handle: Handle, most: usize) -> Result<Vec<EventId>> {
        list::found_by(&self.shared.eyes, handle, most).await.map_err(unread)
    }

    async fn begun_by(&self, trace: TraceId, most: usize) -> Result<Vec<EventId>> {
        list::begun_by(&self.shared.eyes, trace, most).await.map_err(unread)
    }

    async fn traces(&self, jobs: Vec<JobId>) -> Result<BTreeMap<JobId, TraceId>> {
        list::traces(&self.shared.eyes, &jobs).await.map_err(unread)
    }

    async fn source_of(&self, event: EventId) -> Result<Option<String>> {
        read::source_of(&self.shared.eyes, event).await.map_err(unread)
    }

    async fn died_at(&self, job: JobId) -> Result<Option<Timestamp>> {
        read::died_at(&self.shared.eyes, job).await.map_err(unread)
    }

    async fn effects(&self, filter: EffectFilter) -> Result<EffectPage> {
        effects::list(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn oldest_dead(&self, queues: Vec<String>, most: usize) -> Result<Vec<JobId>> {
        read::oldest_dead(&self.shared.eyes, &queues, most).await.map_err(unread)
    }

    async fn schedules(&self) -> Result<Vec<ScheduleRow>> {
        schedule::all(&self.shared).await.map_err(unread)
    }

    async fn dead_groups(&self) -> Result<Vec<DeadGroup>> {
        read::dead_groups(&self.shared.eyes).await.map_err(unread)
    }

    async fn dead_letters(&self, filter: DeadFilter) -> Result<Vec<DeadLetter>> {
        replay::dead_letters(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn drops(&self, limit: usize) -> Result<Vec<DropRow>> {
        drop::all(&self.shared.eyes, limit).await.map_err(unread)
    }

    async fn plan_row(&self, plan: PlanId) -> Result<Option<PlanRow>> {
        replay::find(&self.shared.eyes, plan).await.map_err(unread)
    }

    async fn plans(&self, which: Plans, limit: usize) -> Result<Vec<PlanRow>> {
        replay::list(&self.shared.eyes, which, limit).await.map_err(unread)
    }

    async fn plan_items(&self, filter: ItemFilter) -> Result<Vec<ItemRow>> {
        replay::items(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn key(&self, key: DedupKey) -> Result<Option<EventId>> {
        read::key(&self.shared.eyes, key).await.map_err(unread)
    }

    async fn latencies(&self, since: Timestamp, most: usize) -> Result<Latencies> {
        read::latencies(&self.shared.eyes, since, most).await.map_err(unread)
    }

    async fn versions(&self, limit: usize) -> Result<Vec<VersionRow>> {
        read::versions(&self.shared.eyes, limit).await.map_err(unread)
    }

    async fn unfinished(&self) -> Result<Vec<(Arc<str>, VersionId, u64)>> {
        read::unfinished(&self.shared.eyes).await.map_err(unread)
    }

    async fn live_version(&self) -> Result<Option<VersionId>> {
        activate::live(&self.shared.eyes).await.map_err(unread)
    }

    async fn version_files(&self, version: VersionId) -> Result<Option<String>> {
        read::version_files(&self.shared.eyes, version).await.map_err(unread)
    }

    async fn audit(&self, filter: AuditFilter) -> Result<Vec<AuditRow>> {
        audit::find(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn inspect(&self, noted: Option<Digest>) -> Result<Inspected> {
        audit::inspect(&self.shared.eyes, noted).await.map_err(unread)
    }

    async fn users(&self) -> Result<Vec<UserRow>> {
        user::all(&self.shared.eyes).await.map_err(unread)
    }

    async fn user(&self, name: UserName) -> Result<Option<UserRow>> {
        user::find(&self.shared.eyes, &name).await.map_err(unread)
    }

    async fn user_tokens(&self) -> Result<Vec<UserTokenRow>> {
        user::tokens(&self.shared.eyes).await.map_err(unread)
    }

    async fn holder(&self, token: TokenDigest, now: Timestamp) -> Result<Option<Holder>> {
        user::holder(&self.shared.eyes, &token, now).await.map_err(unread)
    }

    async fn session(&self, session: TokenDigest) -> Result<Option<Session>> {
        session::one(&self.shared.eyes, &session).await.map_err(unread)
    }

    async fn tokens(&self) -> Result<Vec<TokenRow>> {
        token::all(&self.shared.eyes).await.map_err(unread)
    }

    async fn controls(&self) -> Result<Vec<Control>> {
        control::all(&self.shared.eyes).await.map_err(unread)
    }

    async fn alerts(&self, which: Alerts) -> Result<Vec<AlertRow>> {
        alert::all(&self.shared.eyes, which).await.map_err(unread)
    }

    async fn budgets(&self, filter: BudgetFilter) -> Result<Vec<BudgetRow>> {
        budget::find(&self.shared, &filter).await.map_err(unread)
    }

    async fn exhausted(&self, now: Timestamp) -> Result<Vec<(Arc<str>, u64)>> {
        budget::exhausted(&self.shared, now).await.map_err(unread)
    }

    async fn sent(&self, tally: Tally, but: Option<JobId>, now: Timestamp) -> Result<Vec<u32>> {
        admit::sent(&self.shared, &tally, but, now).await.map_err(unread)
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<ApprovalRow>> {
        approval::find(&self.shared.eyes, id).await.map_err(unread)
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<ApprovalPage> {
        approval::list(&self.shared.eyes, &filter).await.map_err(unread)
    }

    async fn approvals_waiting(&self) -> Result<Vec<Undecided>> {
        approval::waiting(&self.shared.eyes).await.map_err(unread)
    }

    fn live_versions(&self) -> Vec<VersionId> {
        lock(&self.shared.versions).live()
    }

    async fn counts(&self) -> Result<Counts> {
        if let Some((at, counts)) = &*lock(&self.shared.counts)
            && at.elapsed() < read::COUNTS_KEPT
        {
            return Ok(counts.clone());
        }
        let counts = read::counts(&self.shared.eyes).await.map_err(unread)?;
        *lock(&self.shared.counts) = Some((Instant::now(), counts.clone()));
        Ok(counts)
    }

    fn health(&self) -> Health {
        Health {
            unwell: lock(&self.shared.unwell).clone(),
            warning: self.forgets.clone(),
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            log_bytes: 0,
            // The server does not tell how much room its disk has.
            free_bytes: u64::MAX,
            pending_verbs: self.shared.pending.load(Ordering::Relaxed),
            commits: self.shared.commits.load(Ordering::Relaxed),
            commit_seconds: self.shared.commit_nanos.load(Ordering::Relaxed) as f64 / 1e9,
            commit_times: self.shared.commit_times.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            // What a read could not do is told to who asked; syncs and logs are the server's own.
            errors: Errors { write: self.shared.write_errors.load(Ordering::Relaxed), ..Errors::default() },
        }
    }

    async fn contents(&self, after: Option<EventId>, most: usize) -> Result<Vec<Contents>> {
        sealed::contents(&self.shared, after, most).await.map_err(unread)
    }

    async fn answers(&self, after: Option<CallKey>, most: usize) -> Result<Vec<(CallKey, Kept)>> {
        sealed::answers(&self.shared, after, most).await.map_err(unread)
    }

    async fn key_uses(&self) -> Result<Vec<KeyUse>> {
        sealed::uses(&self.shared).await.map_err(unread)
    }

    fn active_key(&self) -> Option<KeyId> {
        Some(self.shared.sealer.ring()?.active())
    }

    fn pepper(&self) -> &[u8; 32] {
        &self.pepper
    }
}
