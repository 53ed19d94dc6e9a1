//! What clinch remembers. One contract of verbs, each of them one atomic change that is on disk when it is answered.
//!
//! Expected answers (`Duplicate`, `Lost`) are values. A `StoreError` means that the store could not answer.

pub mod activate;
mod acts;
pub mod alert;
pub mod approval;
pub mod drop;
pub mod moving;
pub mod people;
pub mod postgres;
pub mod read;
pub mod redis;
pub mod replay;
pub mod resolve;
pub mod seal;
pub mod sqlite;
pub mod target;
pub mod verify;

use async_trait::async_trait;
use bytes::Bytes;
use clinch_core::approval::ApprovalId;
use clinch_core::attempt::Outcome;
pub use clinch_core::audit::{Act, NotAllowed, Record};
use clinch_core::budget::{Allowance, OnExhausted, Spent};
use clinch_core::call::{CallKey, CallTurn, Caller};
use clinch_core::control::Control;
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Idempotency, Receipt};
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::id::{EventId, JobId, PlanId};
use clinch_core::job::{Change, Fence, Waits};
use clinch_core::key::{DedupKey, EntityKey, Fingerprint, OnceKey};
use clinch_core::lane::{Lane, Order};
use clinch_core::oidc::Guest;
use clinch_core::pace::Reserved;
use clinch_core::payload::TraceId;
use clinch_core::policy::Tally;
use clinch_core::portion::Share;
use clinch_core::seal::{KeyId, KeyRing};
use clinch_core::sender::{Sender, TokenId};
use clinch_core::session::Session;
use clinch_core::subject::Handle;
use clinch_core::term::Term;
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use std::sync::Arc;
use std::time::Duration;

pub use activate::{ActivateAsk, Activated, Activation};
pub use alert::{AlertRow, Alerts};
pub use approval::{ApprovalAsk, ApprovalRow, Asked, DecideAsk, Decided, TellAsk};
pub use drop::{DropAsk, DropEnd};
pub use people::{
    Holder, NewLink, NewSession, NewUser, NewUserToken, Proof, SESSIONS_MAX, Seen, USER_TOKENS_MAX, USERS_MAX,
    UserAdded, UserRow, UserTokenMade, UserTokenRow, Welcomed,
};
use read::BudgetRow;
pub use read::Read;
pub use replay::{NewItem, NewPlan, Reckoned, ReleaseAsk, StartAsk, Started, Turn, TurnAsk, Turned};
pub use resolve::{Resolution, ResolveAsk, Resolved};
pub use seal::Kept;

/// At most this many jobs may be unfinished; beyond it acceptance is refused.
pub const LIVE_JOBS_MAX: usize = 2_000_000;
/// At most this many verbs may wait for the writer; beyond it acceptance is refused.
pub const VERBS_PENDING_MAX: usize = 65_536;
/// At most this many tokens of senders are kept.
pub const TOKENS_MAX: i64 = 10_000;
/// A token is on the list for so long after its end: by then no node's clock takes it for a live one.
pub const TOKEN_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// A control is kept for so long after its end: what was held back by it may still be on its way.
pub const CONTROL_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// Later deliveries of one key that are kept one by one; the last row counts the rest.
pub const DELIVERIES_KEPT_MAX: i64 = 100;
/// Late answers of one effect that are kept; what comes after them is not.
pub const LATE_ANSWERS_MAX: i64 = 10;

#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written. It may work again later: a full disk, an I/O error.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
    /// A bound was reached; nothing was written.
    #[error("the store is full: {0}")]
    Full(&'static str),
    /// A sync failed. What is on disk is no longer known to this process, which must end.
    #[error("a sync to disk failed: {0}; clinch stops rather than promise what it cannot keep")]
    Fatal(String),
    #[error("the store cannot be opened: {0}")]
    Open(String),
    #[error("the store holds something that cannot be read: {0}")]
    Damaged(String),
    /// Who asked has not the role for it, or has it no more; nothing was written.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// A workspace that the store knows by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VersionId(pub i64);

#[derive(Clone, Debug)]
pub struct NewEvent {
    /// What took it in: a source, or the flow whose own route it came to.
    pub source: Arc<str>,
    pub version: VersionId,
    pub received_at: Timestamp,
    /// As its payload says it: kept beside that, where lists find it and no key is needed.
    pub trace: TraceId,
    /// `None`: never a duplicate of anything.
    pub dedup: Option<Dedup>,
    /// The status of the answer, kept so that a duplicate gets the same.
    pub status: u16,
    pub payload: Bytes,
    /// By what it is found, besides its key.
    pub handles: Vec<Handle>,
    /// Never empty.
    pub jobs: Vec<NewJob>,
}

/// One job of an event.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// An event of a source may be for several flows; its jobs are stored together all the same.
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    /// Whose it is among the jobs of the queue: the unit of fairness, and of order where there is one.
    pub lane: Lane,
    pub order: Order,
    /// Of those that are due, the highest goes first.
    pub priority: i16,
    /// It is not due before.
    pub run_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Dedup {
    pub key: DedupKey,
    pub fingerprint: Fingerprint,
    pub ttl: Duration,
    pub on_conflict: OnConflict,
    pub on_duplicate_of_dead: OnDuplicateOfDead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    Fresh(Accepted),
    /// The key is known and the body is the same.
    Duplicate(Accepted),
    /// The key is known with another body, and the rule says to answer like the first.
    Kept(Accepted),
    /// The key is known with another body; the first stays as it is.
    Conflict(Accepted),
}

impl Acceptance {
    /// What the first delivery of its key was answered.
    pub fn first(&self) -> &Accepted {
        let (Acceptance::Fresh(first)
        | Acceptance::Duplicate(first)
        | Acceptance::Kept(first)
        | Acceptance::Conflict(first)) = self;
        first
    }
}

/// What the first delivery of a key was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub event: EventId,
    pub job: JobId,
    pub status: u16,
    pub received_at: Timestamp,
    pub trace: TraceId,
}

#[derive(Clone, Debug)]
pub struct ClaimAsk {
    pub queue: Arc<str>,
    pub most: usize,
    /// The jobs of this lane are left alone: enough of them run.
    pub but: Option<Lane>,
    pub now: Timestamp,
    pub until: Timestamp,
}

/// Who holds a job. Every write of a worker names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    pub job: JobId,
    pub fence: Fence,
}

/// A job that is ours until its lease ends.
#[derive(Clone, Debug)]
pub struct Claim {
    pub lease: LeaseRef,
    pub event: EventId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    pub lane: Lane,
    pub version: VersionId,
    pub received_at: Timestamp,
    pub trace: TraceId,
    /// Failures that count against the policy.
    pub failures: u32,
    /// Attempts that ended, of all kinds.
    pub attempts: u32,
    pub replays: u32,
    pub first_attempt_at: Option<Timestamp>,
    /// The payload; or why it, or an answer in the ledger, does not open.
    pub payload: Kept,
    /// What earlier attempts left in the ledger.
    pub effects: Vec<Effect>,
}

/// The lease still counts, or somebody else has the job now and nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Held,
    Lost,
}

#[derive(Clone, Debug)]
pub struct NewEffect {
    /// The step's name.
    pub name: Arc<str>,
    pub class: Idempotency,
    pub at: Timestamp,
}

/// What became of an effect.
#[derive(Clone, Debug)]
pub struct Conclusion {
    pub name: Arc<str>,
    pub state: EffectState,
    pub at: Timestamp,
}

/// What a worker knows of something it sent, when its job is another's by now.
#[derive(Clone, Debug)]
pub struct Testimony {
    pub conclusion: Conclusion,
    /// What the target answered, if it did.
    pub status: Option<u16>,
}

/// What became of a testimony.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Testified {
    Kept,
    /// There are enough of this effect, or its job is gone.
    NotKept,
}

/// The end of an attempt and what follows from it, as one change.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub outcome: &'static str,
    pub reason: Option<Reason>,
    pub error: Option<String>,
    /// Whether it counts against the policy.
    pub charged: bool,
    pub change: Change,
    /// The last effect, when it is concluded together with the attempt.
    pub conclusion: Option<Conclusion>,
}

impl Settlement {
    pub fn of(
        outcome: &Outcome,
        change: Change,
        started_at: Timestamp,
        ended_at: Timestamp,
        conclusion: Option<Conclusion>,
    ) -> Settlement {
        let failure = outcome.failure();
        Settlement {
            started_at,
            ended_at,
            outcome: outcome.word(),
            reason: failure.as_ref().map(|failure| failure.reason),
            error: failure.map(|failure| failure.error),
            charged: outcome.is_charged(),
            change,
            conclusion,
        }
    }
}

/// A key that a step sets if nobody has, for a while.
#[derive(Clone, Debug)]
pub struct SetOnce {
    pub step: Arc<str>,
    pub key: OnceKey,
    pub at: Timestamp,
    /// From then on it may be set again.
    pub until: Timestamp,
    /// What becomes the step's result if it sets the key, and what if another has.
    pub was_free: Receipt,
    pub was_taken: Receipt,
}

/// A call that somebody wants made under a key.
#[derive(Clone, Debug)]
pub struct CallAsk {
    pub key: CallKey,
    /// His turn is unlike that of anybody else, ever.
    pub caller: Caller,
    pub at: Timestamp,
    /// Until then it surely has ended, if whoever makes it lives.
    pub until: Timestamp,
    /// From then on the key is free again.
    pub expires: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// It is ours to make.
    Ours,
    /// It was made, and this is what was kept of its answer.
    Before(Kept),
    /// It was made under this very turn, and this is what was kept of its answer.
    Own(Kept),
    /// Another call has this key.
    Other,
    /// Somebody makes it at this moment.
    Busy { until: Timestamp },
    /// It may have been made, and nobody knows.
    Unknown { since: Timestamp },
}

/// What became of a call.
#[derive(Clone, Debug)]
pub enum CallEnd {
    /// It was done; this is kept of its answer.
    Done(Bytes),
    /// It was not done, and the key is free.
    NotDone,
    Unknown,
    /// It was done and is undone by now: the key is free.
    Undone,
}

/// Those who wait for something that is over.
#[derive(Clone, Copy, Debug)]
pub struct RecallAsk {
    pub waits: Waits,
    /// Looked at in order of acceptance, from behind this one on.
    pub after: Option<JobId>,
    /// No more are looked at.
    pub most: usize,
    pub now: Timestamp,
}

/// Calls of an integration, evenly apart.
#[derive(Clone, Debug)]
pub struct PaceAsk {
    pub name: Arc<str>,
    pub calls: u32,
    pub every: Duration,
    pub now: Timestamp,
    /// The first of them no later than so long from now.
    pub ahead: Duration,
}

/// The part of a node in the places of an integration.
#[derive(Clone, Debug)]
pub struct ShareAsk {
    pub name: Arc<str>,
    /// So many calls at once, of all nodes together.
    pub max: u32,
    /// What the node keeps of what it was granted. It uses no more from here on.
    pub held: u32,
    /// Its calls under way.
    pub in_use: u32,
    /// Whether it goes on calling; if not, its places are free for the others.
    pub stays: bool,
    pub now: Timestamp,
}

/// A retry that an entity is to pay for.
#[derive(Clone, Debug)]
pub struct SpendAsk {
    pub budget: Arc<str>,
    pub entity: EntityKey,
    pub allowance: Allowance,
    pub on_exhausted: OnExhausted,
    /// No retry starts later than this.
    pub latest: Option<Timestamp>,
    pub now: Timestamp,
}

/// More for an entity, until its window ends.
#[derive(Clone, Debug)]
pub struct GrantAsk {
    pub budget: Arc<str>,
    pub entity: EntityKey,
    pub allowance: Allowance,
    pub units: u32,
    pub record: Record,
}

/// A run of a schedule.
#[derive(Clone, Debug)]
pub struct FireAsk {
    pub schedule: Arc<str>,
    /// The slot that is used up with it, and all before it. `None`: somebody wants a run now, and no slot is used up.
    pub slot: Option<Timestamp>,
    /// `None`: the slot is let pass.
    pub event: Option<NewEvent>,
    /// Whether it may run while an earlier run is not finished.
    pub overlaps: bool,
    /// Who wants it, if it is a person.
    pub record: Option<Record>,
    pub at: Timestamp,
}

impl FireAsk {
    /// Where a schedule begins that was never seen: nothing is made up for from before a person's run.
    fn begins(&self) -> Timestamp {
        if self.slot.is_some() { Timestamp::from_micros(i64::MIN) } else { self.at }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    Fired(Accepted),
    /// The slot was let pass.
    Passed,
    /// This earlier run is not finished; nothing was changed.
    Busy(JobId),
    /// The slot was used up before: this is the last that was.
    Before(Timestamp),
}

/// Something that is to be done to a contact, and counted under every policy that counts it.
#[derive(Clone, Debug)]
pub struct AdmitAsk {
    pub step: Arc<str>,
    /// All of them, or none. Never empty.
    pub tallies: Vec<Tally>,
    /// It may have been sent before: then who was admitted for it stays so.
    pub may_be_sent: bool,
    pub now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// This cap of this tally is reached, by so many, and nothing is counted.
    Refused {
        tally: usize,
        cap: usize,
        sent: u32,
    },
}

#[derive(Clone, Debug)]
pub struct ReviveAsk {
    pub job: JobId,
    pub record: Record,
    /// The version to run on; `None` keeps the one it was accepted with.
    pub version: Option<VersionId>,
    /// What to do with effects that may or may not have happened.
    pub unknown: Option<UnknownRuling>,
}

/// A person's word on an effect of unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownRuling {
    /// It may happen twice.
    Resend,
    /// Treat it as done.
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revived {
    /// It will run; this is its how-manieth replay.
    Revived {
        replays: u32,
    },
    /// It is not a dead letter (any more): nothing was changed.
    NotDead {
        state: clinch_core::job::Word,
    },
    /// These steps may have happened; say what to do with them.
    Ask {
        steps: Vec<String>,
    },
    NotFound,
}

/// A control that somebody sets, or takes away.
#[derive(Clone, Debug)]
pub struct SteerAsk {
    pub name: Arc<str>,
    /// `None`: it is to be gone.
    pub value: Option<String>,
    /// From then on it says nothing more.
    pub until: Option<Timestamp>,
    /// Only if this is its version now; 0 where there is none.
    pub expect: Option<i64>,
    /// How the record calls it.
    pub action: &'static str,
    pub record: Record,
}

impl SteerAsk {
    /// Somebody was faster.
    fn is_late(&self, before: Option<&Control>) -> bool {
        self.expect.is_some_and(|expected| expected != before.map_or(0, |before| before.version))
    }

    /// What is to be gone is not there.
    fn is_idle(&self, before: Option<&Control>) -> bool {
        self.value.is_none() && before.is_none()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steered {
    /// What it was before, and its version now; 0 where there is none.
    Steered { before: Option<Control>, version: i64 },
    /// Somebody was faster, and this is what is there; nothing was changed.
    Conflict(Option<Control>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    Issued,
    /// As many are kept as may be.
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    Revoked,
    /// It was revoked before; nothing was changed.
    Before,
    NotFound,
}

/// How long rows are kept, by queue; what has no rule is kept for `default`.
#[derive(Clone, Debug, Default)]
pub struct Retention {
    pub default: Duration,
    /// Finished jobs of a queue.
    pub finished: Vec<(Arc<str>, Duration)>,
    /// Dead jobs of a queue.
    pub dead: Vec<(Arc<str>, Duration)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub jobs: u64,
    pub events: u64,
    pub keys: u64,
    /// Keys that steps had set.
    pub once: u64,
    /// Answers of calls.
    pub calls: u64,
    /// Entities that have their whole budget again.
    pub budgets: u64,
    /// What was counted of contacts and counts no more.
    pub admissions: u64,
    /// Whether there was nothing more to look at.
    pub finished: bool,
}

/// Somebody's data is to be erased.
#[derive(Clone, Debug)]
pub struct ForgetAsk {
    pub events: Vec<EventId>,
    /// Answers of calls. That the calls were made stays known.
    pub answers: Vec<CallKey>,
    /// Recognises whose data it was, to who knows him, and tells nobody else.
    pub subject: String,
    pub record: Record,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Those that are there and were not erased before.
    pub events: u64,
    /// Jobs of theirs that had not ended: they end as dead letters when their turn comes.
    pub unfinished: u64,
    /// Of these, the ones that were running at that moment, with the data in hand.
    pub running: u64,
    /// Answers of calls that were there and were not erased before.
    pub answers: u64,
}

/// A part of a walk over all that is sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    /// The walk goes on after this event; `None` when it is over.
    pub last: Option<EventId>,
    /// So many were looked at.
    pub events: u64,
    /// So many places were sealed again: payloads, results, errors, answers of calls.
    pub places: u64,
    /// So many do not open and stay as they are.
    pub unreadable: u64,
}

/// The verbs that write. Times are handed in; policy stays outside; each is one transaction.
#[async_trait]
pub trait Store: Read {
    /// Stores the event, its key and its jobs together, or names the event that already holds this key.
    async fn accept(&self, event: NewEvent) -> Result<Acceptance>;
    /// Takes due jobs of a queue; nobody else gets them until `until`. The highest priority goes first, then lanes take
    /// turns; of a lane that keeps its order, the first, if no other of it runs.
    async fn claim(&self, ask: ClaimAsk) -> Result<Vec<Claim>>;
    /// Keeps leases alive.
    async fn renew(&self, leases: &[LeaseRef], until: Timestamp) -> Result<Vec<Held>>;
    /// Writes down what is about to leave. Only after this may the first byte go.
    async fn intend(&self, lease: LeaseRef, effect: NewEffect) -> Result<Held>;
    /// Writes down what became of it, before the job moves on.
    async fn conclude(&self, lease: LeaseRef, conclusion: Conclusion) -> Result<Held>;
    /// Keeps what a worker learned too late as evidence beside the ledger. It changes no state, whoever holds the job.
    async fn testify(&self, lease: LeaseRef, testimony: Testimony) -> Result<Testified>;
    /// Writes down a person's word on an effect of unknown outcome, on record. Once: a second time it changes nothing.
    async fn resolve(&self, ask: ResolveAsk) -> Result<Resolved>;
    /// Sets a key that is not set, and writes down whether it did as the step's result: both or neither. A step that has a
    /// result gets it again. `None`: somebody else has the job now.
    async fn set_once(&self, lease: LeaseRef, ask: SetOnce) -> Result<Option<Receipt>>;
    /// Ends the attempt: its row and the job's next state, or nothing.
    async fn settle(&self, lease: LeaseRef, end: Settlement) -> Result<Held>;
    /// Uses up a slot of a schedule, together with the event of its run: in all nodes together once, and not while an earlier run
    /// is not finished.
    async fn fire(&self, ask: FireAsk) -> Result<Fired>;
    /// Takes jobs whose lease ended from their workers, so that the caller may settle them as lost.
    async fn lapse(&self, now: Timestamp, most: usize, until: Timestamp) -> Result<Vec<Claim>>;
    /// Takes a job out of the dead letters, with a reason, on record.
    async fn revive(&self, ask: ReviveAsk) -> Result<Revived>;
    /// Keeps a set of dead letters that was counted, on record. Nothing is run by that.
    async fn plan(&self, plan: NewPlan) -> Result<()>;
    /// Starts a plan, once, on record.
    async fn start(&self, ask: StartAsk) -> Result<Started>;
    /// Pauses, resumes, stops or ends a plan, on record.
    async fn turn(&self, ask: TurnAsk) -> Result<Turned>;
    /// Revives the next jobs of a plan that runs, those that are what was counted, behind everything live. How many were looked
    /// at: none, if somebody else has looked at some since.
    async fn release(&self, ask: ReleaseAsk) -> Result<u64>;
    /// Writes down what became of those that a plan has let go; and how it stands. `None`: there is no such plan.
    async fn reckon(&self, plan: PlanId, now: Timestamp) -> Result<Option<Reckoned>>;
    /// Asks for a dead letter to be given up, on record. Nothing becomes of it before somebody confirms.
    async fn ask_drop(&self, ask: DropAsk) -> Result<DropEnd>;
    /// Gives a dead letter up that somebody else asked for, or who confirms himself a day ago; on record.
    async fn confirm_drop(&self, ask: DropAsk) -> Result<DropEnd>;
    /// Takes back what was dropped, or asked for; on record.
    async fn undrop(&self, ask: DropAsk) -> Result<DropEnd>;
    /// Puts a sender's token on the list of those that were made, on record.
    async fn issue(&self, token: Sender, record: Record) -> Result<Issued>;
    /// Ends a sender's token for good, on record.
    async fn revoke(&self, token: TokenId, record: Record) -> Result<Revocation>;
    /// Makes somebody a user, on record.
    async fn add_user(&self, user: NewUser, record: Record) -> Result<UserAdded>;
    /// And none again, without tokens and log-ins, on record: whether he was one.
    async fn remove_user(&self, name: UserName, record: Record) -> Result<bool>;
    /// Gives a user another role, on record: whether there is one. His log-ins end, and so do tokens that are for more than that.
    async fn set_role(&self, name: UserName, role: Role, record: Record) -> Result<bool>;
    /// Gives a user another password, on record: whether there is one. His log-ins end.
    async fn set_password(&self, name: UserName, password: PasswordHash, record: Record) -> Result<bool>;
    /// The user who a provider says that somebody is, on record: known, linked to who was invited, or added with the role that he is given.
    async fn welcome(&self, guest: Guest, record: Record) -> Result<Welcomed>;
    /// Gives a user another token, on record.
    async fn make_user_token(&self, user: UserName, token: NewUserToken, record: Record) -> Result<UserTokenMade>;
    /// Takes one away, on record: whether he had it.
    async fn remove_user_token(&self, user: UserName, token: UserTokenId, record: Record) -> Result<bool>;
    /// Keeps a link that logs somebody in, on record.
    async fn make_link(&self, link: NewLink) -> Result<()>;
    /// Logs somebody in, on record. `None`: what proved who it is does so no more.
    async fn open_session(&self, session: NewSession) -> Result<Option<Session>>;
    async fn end_session(&self, session: TokenDigest) -> Result<()>;
    /// Notes that a log-in, or a token, was used.
    async fn saw(&self, secret: Seen, at: Timestamp) -> Result<()>;
    /// Puts an act on record that changes nothing here.
    async fn note(&self, act: Act, record: Record) -> Result<()>;
    /// Sets what operators switch, on record. What is taken away and was not there leaves no record.
    async fn steer(&self, ask: SteerAsk) -> Result<Steered>;
    /// Begins an alert, unless one of its name is open: which one it is. What the row says of id and version does not count.
    async fn raise_alert(&self, alert: AlertRow) -> Result<Option<i64>>;
    /// Changes an alert, if this is its version: whether it was. Its version is the next one then.
    async fn mark_alert(&self, alert: AlertRow) -> Result<bool>;
    /// Makes jobs due at once that wait for this. The last that was looked at, if there may be more behind it.
    async fn recall(&self, ask: RecallAsk) -> Result<Option<JobId>>;
    /// Moments in a row at which an integration may be called, or when the next is that is nobody's.
    async fn reserve(&self, ask: PaceAsk) -> Result<Reserved>;
    /// Takes a call to make, unless it was made or is being made. Only after this may the first byte go.
    async fn begin_call(&self, ask: CallAsk) -> Result<Called>;
    /// Writes down what became of a call that is ours to make.
    async fn end_call(&self, key: CallKey, turn: CallTurn, end: CallEnd) -> Result<Held>;
    /// Divides the places of an integration among the nodes that call it: what this one may use now, never more than the others
    /// leave.
    async fn share(&self, ask: ShareAsk) -> Result<Share>;
    /// Takes a unit of an entity's retry budget, if there is one. What is taken stays taken, whatever becomes of the retry.
    async fn spend(&self, ask: SpendAsk) -> Result<Spent>;
    /// Gives an entity more for its present window, on record. What it has then.
    async fn grant(&self, ask: GrantAsk) -> Result<BudgetRow>;
    /// Counts what a step is to do to a contact, unless a cap is reached: exactly, however many ask at once. The same step of the
    /// same job counts once, at the time of its last asking. `None`: somebody else has the job now.
    async fn admit(&self, lease: LeaseRef, ask: AdmitAsk) -> Result<Option<Admission>>;
    /// Before a job ends: what was counted for steps of it that were surely not done counts no more. `not_done` is one of which
    /// the ledger does not know it yet.
    async fn give_back(&self, lease: LeaseRef, not_done: Option<Arc<str>>) -> Result<Held>;
    /// Asks people about a step, unless they were asked before, on record; and how it stands. `None`: somebody else has the job now.
    async fn ask_approval(&self, lease: LeaseRef, ask: ApprovalAsk) -> Result<Option<Asked>>;
    /// A person's vote, on record, whatever becomes of it. Of all verdicts one wins, and its job is woken.
    async fn decide(&self, ask: DecideAsk) -> Result<Decided>;
    /// Ends a bounded number of approvals that nobody decided in time, on record, and wakes their jobs.
    async fn expire_approvals(&self, now: Timestamp, most: usize) -> Result<Vec<ApprovalRow>>;
    /// Takes approvals of one place that people are to be told of. Who does not say that he has told is asked again later.
    async fn tell_approvals(&self, ask: TellAsk) -> Result<Vec<ApprovalRow>>;
    /// People were told of these.
    async fn told_approvals(&self, ids: &[ApprovalId], now: Timestamp) -> Result<()>;
    /// Makes a workspace live, which gets its number when it is first, on record if another was. Of those who ask at once, each
    /// finds what the one before him did.
    async fn activate(&self, ask: ActivateAsk) -> Result<Activated>;
    /// Removes a bounded number of rows whose time has passed.
    async fn prune(&self, now: Timestamp, retention: Retention, most: usize) -> Result<Pruned>;

    /// From here on this is written with, and what it knows is read. Refused while a node lives that could not read it.
    async fn use_keys(&self, keys: KeyRing) -> Result<()>;
    /// Seals the next events again that are not under the active key, a bounded number; at the end of the walk the answers of calls.
    async fn reseal(&self, after: Option<EventId>, most: usize) -> Result<Resealed>;
    /// Lets go of the keys that nothing is under and nobody writes with: the store can be opened without them.
    async fn retire_keys(&self) -> Result<Vec<KeyId>>;
    /// Erases payloads, results and errors of these events, and these answers, on record. Ids, states, times and hashed keys stay.
    async fn forget(&self, ask: ForgetAsk) -> Result<Forgotten>;

    /// Waits until this queue may have work: a job became ready, or one comes due. A hint; claiming is the truth.
    async fn work(&self, queue: &str);
    /// When the next job of this queue comes due.
    fn next_due(&self, queue: &str) -> Option<Timestamp>;
    /// How long this node surely counts as alive. `None`: there is nobody who could take it for dead.
    fn life(&self) -> Option<Term>;
    /// Leaves: what this process holds is given back at once. Nothing may be asked of the store afterwards.
    async fn close(&self);
    /// Resolves when the store has failed for good and the process must end.
    async fn failed(&self) -> StoreError;
}
