//! Questions: what console, API and CLI ask. They change nothing.

use crate::alert::{AlertRow, Alerts};
use crate::approval::{ApprovalFilter, ApprovalPage, ApprovalRow, Undecided};
use crate::drop::DropRow;
use crate::people::{Holder, UserRow, UserTokenRow};
use crate::replay::{DeadFilter, DeadLetter, ItemFilter, ItemRow, PlanRow, Plans};
use crate::{Kept, Result, VersionId};
use async_trait::async_trait;
use clinch_core::approval::ApprovalId;
pub use clinch_core::audit::Row as AuditRow;
use clinch_core::audit::{Broken, Chain, Digest};
use clinch_core::budget::{Account, Allowance};
use clinch_core::call::CallKey;
use clinch_core::control::Control;
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectId, EffectWord, LateAnswer};
use clinch_core::id::{EventId, JobId, PlanId};
use clinch_core::job::{Waits, Word};
use clinch_core::key::{DedupKey, EntityKey};
use clinch_core::payload::TraceId;
use clinch_core::policy::Tally;
use clinch_core::seal::KeyId;
use clinch_core::sender::Sender;
use clinch_core::session::Session;
use clinch_core::subject::Handle;
use clinch_core::time::Timestamp;
use clinch_core::user::{TokenDigest, UserName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A list never has more rows than this.
pub const LIST_ROWS_MAX: usize = 1_000;
/// A filtered list looks at no more rows than this, and says how far it got: whoever wants more asks again from there.
pub const SCAN_ROWS_MAX: usize = 50_000;
/// The same where every row costs a look elsewhere: into another table, or at a row far from the last.
pub const SCAN_COSTLY_ROWS_MAX: usize = 10_000;
/// What fits is counted up to this; beyond it there are only more.
pub const COUNT_MAX: u64 = 10_000;
/// Latencies are counted over no more jobs than this, the newest.
pub const LATENCY_JOBS_MAX: usize = 500_000;

#[derive(Clone, Debug)]
pub struct JobRow {
    pub id: JobId,
    pub event: EventId,
    pub trace: TraceId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    pub version: VersionId,
    pub word: Word,
    pub received_at: Timestamp,
    /// When it is due, if it is ready.
    pub run_at: Option<Timestamp>,
    /// For what it waits until then, if not for its turn or its next attempt.
    pub waits: Option<Waits>,
    pub failures: u32,
    pub attempts: u32,
    pub replays: u32,
    pub ended_at: Option<Timestamp>,
    pub reason: Option<Reason>,
    /// The error of the last attempt that had one.
    pub error: Option<String>,
}

#[derive(Clone, Debug)]
pub struct AttemptRow {
    pub no: u32,
    pub started_at: Timestamp,
    pub ended_at: Timestamp,
    pub outcome: String,
    pub reason: Option<Reason>,
    pub error: Option<String>,
}

#[derive(Clone, Debug)]
pub struct DeliveryRow {
    pub at: Timestamp,
    /// Another body came under the same key.
    pub conflict: bool,
    pub times: u64,
}

#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    /// A word, or all of a family: `job.*`.
    pub action: Option<String>,
    pub object: Option<String>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub walk: AuditWalk,
    pub limit: usize,
}

impl AuditFilter {
    /// The newest.
    pub fn last(limit: usize) -> AuditFilter {
        AuditFilter { limit, ..AuditFilter::default() }
    }

    /// The word, or how it begins.
    pub(crate) fn action(&self) -> (Option<&str>, bool) {
        match self.action.as_deref().map(|action| (action, action.strip_suffix('*'))) {
            None => (None, false),
            Some((_, Some(family))) => (Some(family), true),
            Some((action, None)) => (Some(action), false),
        }
    }
}

/// In which order rows are told, and from where on.
#[derive(Clone, Copy, Debug)]
pub enum AuditWalk {
    /// The newest first.
    Back { before: Option<u64> },
    /// The oldest first.
    Forth { after: u64 },
}

impl Default for AuditWalk {
    fn default() -> AuditWalk {
        AuditWalk::Back { before: None }
    }
}

/// What a walk along the whole audit has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// What is kept of its end.
    pub head: Chain,
    /// `None`: every row is where it was and as it was.
    pub broken: Option<Broken>,
}

/// A sender's token that was made: what it says, without what proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    pub sender: Sender,
    pub revoked_at: Option<Timestamp>,
}

/// What an entity has used of its retry budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    pub budget: Arc<str>,
    pub entity: EntityKey,
    pub account: Account,
    pub allowance: Allowance,
}

impl BudgetRow {
    pub(crate) fn at(self, now: Timestamp) -> BudgetRow {
        BudgetRow { account: self.account.at(now, self.allowance), ..self }
    }
}

/// How far a schedule has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRow {
    pub name: Arc<str>,
    /// The slot that was used up last.
    pub last: Timestamp,
    /// The job of the last run.
    pub job: Option<JobId>,
}

#[derive(Clone, Debug)]
pub struct BudgetFilter {
    pub budget: Option<String>,
    pub entity: Option<EntityKey>,
    /// Only those that have nothing left.
    pub is_exhausted: bool,
    pub now: Timestamp,
    pub limit: usize,
}

/// Everything about one job.
#[derive(Clone, Debug)]
pub struct JobStory {
    pub row: JobRow,
    pub attempts: Vec<AttemptRow>,
    pub effects: Vec<Effect>,
    /// What workers learned of effects after the job was another's.
    pub late: Vec<LateAnswer>,
    pub deliveries: Vec<DeliveryRow>,
    pub audit: Vec<AuditRow>,
    pub payload: Kept,
    pub answer_status: u16,
    pub key_until: Option<Timestamp>,
    pub priority: i16,
    /// The job of its group that it waits behind, where its queue keeps the order.
    pub behind: Option<JobId>,
}

/// Which jobs; all that is said must fit.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub word: Option<Word>,
    pub flow: Option<String>,
    pub queue: Option<String>,
    pub reason: Option<Reason>,
    /// What took its event in.
    pub source: Option<String>,
    /// One of these steps is in its ledger.
    pub steps: Option<Vec<String>>,
    /// Only these.
    pub jobs: Option<Vec<JobId>>,
    pub attempts_min: u32,
    pub attempts_max: Option<u32>,
    pub accepted: Within,
    pub ended: Within,
    /// Only older ones: where the page before ended.
    pub before: Option<JobId>,
    pub limit: usize,
    /// Whether all that fits is to be counted, as far as the list looks.
    pub counts: bool,
}

impl JobFilter {
    /// How many rows it may look at; `None`: each row that it looks at fits, or it is known which ones they are.
    pub(crate) fn scan_max(&self) -> Option<usize> {
        let has_index = matches!(self.word, None | Some(Word::Dead));
        let is_narrow = self.flow.is_some()
            || self.queue.is_some()
            || self.reason.is_some()
            || self.attempts_min > 0
            || self.attempts_max.is_some()
            || self.ended != Within::default()
            || !has_index;
        match self {
            JobFilter { jobs: Some(_), .. } => None,
            JobFilter { source: Some(_), .. } | JobFilter { steps: Some(_), .. } => Some(SCAN_COSTLY_ROWS_MAX),
            JobFilter { word: Some(Word::Dead | Word::Dropped), .. } => is_narrow.then_some(SCAN_COSTLY_ROWS_MAX),
            _ => is_narrow.then_some(SCAN_ROWS_MAX),
        }
    }

    /// The ids that it can be about: the first, and the one after the last. Ids grow as jobs are accepted.
    pub(crate) fn ids(&self) -> (i64, i64) {
        let first = self.accepted.since.map_or(0, |since| JobId::first_at(since).number().cast_signed());
        let until = self.accepted.until.map_or(i64::MAX, |until| JobId::first_at(until).number().cast_signed());
        (first, self.before.map_or(i64::MAX, |id| id.number().cast_signed()).min(until))
    }
}

/// A span of time: from the first moment, up to the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Within {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Within {
    pub(crate) fn micros(&self) -> (i64, i64) {
        (self.since.map_or(i64::MIN, Timestamp::as_micros), self.until.map_or(i64::MAX, Timestamp::as_micros))
    }
}

#[derive(Clone, Debug)]
pub struct JobPage {
    pub rows: Vec<JobRow>,
    /// Whether older rows exist that were not looked at.
    pub more: bool,
    /// Where to go on, if so.
    pub next: Option<JobId>,
    /// So many rows were looked at, if not only those that are told.
    pub looked_at: u64,
    /// How many of these fit, if they were to be counted: up to `COUNT_MAX`, and one more where there are more.
    pub matches: Option<u64>,
}

/// An event in a list.
#[derive(Clone, Debug)]
pub struct EventRow {
    pub id: EventId,
    pub trace: TraceId,
    pub source: Arc<str>,
    pub received_at: Timestamp,
    /// The status that its sender got.
    pub status: u16,
    pub jobs: u32,
    /// Until when its key is held; `None`: it has none.
    pub key_until: Option<Timestamp>,
    pub duplicates: u64,
    pub conflicts: u64,
}

#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    pub source: Option<String>,
    /// Only those that were delivered again.
    pub again: Option<Again>,
    pub accepted: Within,
    pub before: Option<EventId>,
    pub limit: usize,
}

impl EventFilter {
    pub(crate) fn ids(&self) -> (i64, i64) {
        let first = self.accepted.since.map_or(0, |since| EventId::first_at(since).number().cast_signed());
        let until = self.accepted.until.map_or(i64::MAX, |until| EventId::first_at(until).number().cast_signed());
        (first, self.before.map_or(i64::MAX, |id| id.number().cast_signed()).min(until))
    }
}

/// How an event came again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// With the same body.
    Duplicate,
    /// With another.
    Conflict,
}

#[derive(Clone, Debug)]
pub struct EventPage {
    pub rows: Vec<EventRow>,
    /// Where to go on, if older ones exist that were not looked at.
    pub next: Option<EventId>,
    pub looked_at: u64,
}

/// An effect in a list.
#[derive(Clone, Debug)]
pub struct EffectRow {
    pub job: JobId,
    pub trace: TraceId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    /// The workspace that its job runs.
    pub version: VersionId,
    pub word: Word,
    /// Without the body of its answer.
    pub effect: Effect,
    /// A late answer says that it was done.
    pub late_done: bool,
}

impl EffectRow {
    pub fn id(&self) -> EffectId {
        EffectId { job: self.job, step: self.effect.name.clone() }
    }
}

#[derive(Clone, Debug, Default)]
pub struct EffectFilter {
    pub state: Option<EffectWord>,
    pub flow: Option<String>,
    pub job: Option<JobId>,
    /// Only those after it in the list: the last of the page before.
    pub before: Option<EffectId>,
    pub limit: usize,
}

#[derive(Clone, Debug)]
pub struct EffectPage {
    pub rows: Vec<EffectRow>,
    /// Whether more exist that were not looked at.
    pub more: bool,
}

#[derive(Clone, Debug)]
pub struct DeadGroup {
    pub flow: Arc<str>,
    pub reason: Reason,
    pub jobs: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
    pub example: JobId,
}

/// How long jobs that were accepted in a window took, each stage in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Accepted to first attempt.
    pub wait: Vec<Duration>,
    /// First attempt to the end.
    pub run: Vec<Duration>,
    /// Accepted to the end.
    pub end_to_end: Vec<Duration>,
    /// How many attempts each took, in ascending order.
    pub attempts: Vec<u32>,
    /// Whether the window held more jobs than were counted.
    pub cut: bool,
}

/// What is kept of one event, opened: for who must look into all of them.
#[derive(Clone, Debug)]
pub struct Contents {
    pub event: EventId,
    pub payload: Kept,
    /// Results and errors of its jobs.
    pub others: Vec<Kept>,
}

/// A workspace that was live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionRow {
    pub id: VersionId,
    /// Of its files.
    pub hash: [u8; 32],
    /// When it was live first.
    pub at: Timestamp,
}

/// How much is under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// `None`: from before encryption.
    pub key: Option<KeyId>,
    pub payloads: u64,
    /// Those of steps, and the answers of calls.
    pub results: u64,
    pub errors: u64,
}

impl KeyUse {
    pub fn places(&self) -> u64 {
        self.payloads + self.results + self.errors
    }
}

/// How many jobs there are now, by flow.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub live: Vec<(Arc<str>, Word, u64)>,
    pub dead: Vec<(Arc<str>, Reason, u64)>,
    /// When the oldest unfinished job of each flow and state was accepted.
    pub oldest: Vec<(Arc<str>, Word, Timestamp)>,
    pub oldest_dead: Vec<(Arc<str>, Timestamp)>,
    /// Those that were put off, by what they wait for.
    pub waiting: Vec<Waiting>,
}

/// Jobs of a flow that wait for something else than their own work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub flow: Arc<str>,
    pub waits: Waits,
    pub jobs: u64,
    /// When the oldest of them was accepted, if it was found.
    pub oldest: Option<Timestamp>,
}

/// The borders of `Health::commit_times`.
pub const COMMIT_SECONDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// How the store is.
#[derive(Clone, Debug)]
pub struct Health {
    /// Why it cannot write at the moment.
    pub unwell: Option<String>,
    /// What the operator accepted and should not forget.
    pub warning: Option<String>,
    pub bytes: u64,
    /// Those of them that are its log.
    pub log_bytes: u64,
    pub free_bytes: u64,
    pub pending_verbs: usize,
    pub commits: u64,
    pub commit_seconds: f64,
    /// How many commits took no longer than each of `COMMIT_SECONDS`, and longer than the one before; the last took longer.
    pub commit_times: Vec<u64>,
    pub errors: Errors,
}

impl Health {
    /// How much room is left, where that is known.
    pub fn room(&self) -> Option<u64> {
        (self.free_bytes != u64::MAX).then_some(self.free_bytes)
    }
}

/// What the store could not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    pub read: u64,
    pub write: u64,
    pub fsync: u64,
    /// To fold the log into the rest.
    pub compact: u64,
}

impl Errors {
    /// All that kept something from being written.
    pub fn writing(&self) -> u64 {
        self.write + self.fsync + self.compact
    }
}

#[async_trait]
pub trait Read: Send + Sync {
    async fn job(&self, id: JobId) -> Result<Option<JobStory>>;
    /// The jobs of an event.
    async fn jobs_of(&self, event: EventId) -> Result<Vec<JobRow>>;
    async fn jobs(&self, filter: JobFilter) -> Result<JobPage>;
    /// Events, the newest first.
    async fn events(&self, filter: EventFilter) -> Result<EventPage>;
    /// The newest events that are found by this.
    async fn found_by(&self, handle: Handle, most: usize) -> Result<Vec<EventId>>;
    /// The first events of this trace, if it began with them: its id says when to look.
    async fn begun_by(&self, trace: TraceId, most: usize) -> Result<Vec<EventId>>;
    /// The traces of these jobs, as far as they are there.
    async fn traces(&self, jobs: Vec<JobId>) -> Result<BTreeMap<JobId, TraceId>>;
    /// What took this event in.
    async fn source_of(&self, event: EventId) -> Result<Option<String>>;
    /// When a job that was replayed had died, the last time.
    async fn died_at(&self, job: JobId) -> Result<Option<Timestamp>>;
    /// Effects, those of the newest jobs first.
    async fn effects(&self, filter: EffectFilter) -> Result<EffectPage>;
    /// The dead letters of these queues that wait longest, those first. Not those that only a person can decide about, nor
    /// those whose data was erased.
    async fn oldest_dead(&self, queues: Vec<String>, most: usize) -> Result<Vec<JobId>>;
    /// Schedules that have begun, by name.
    async fn schedules(&self) -> Result<Vec<ScheduleRow>>;
    async fn dead_groups(&self) -> Result<Vec<DeadGroup>>;
    /// Dead letters, the oldest first, as far as their replay depends on them.
    async fn dead_letters(&self, filter: DeadFilter) -> Result<Vec<DeadLetter>>;
    /// Requests to give up dead letters that nobody has confirmed, the oldest first.
    async fn drops(&self, limit: usize) -> Result<Vec<DropRow>>;
    /// A plan; `None`: there is none.
    async fn plan_row(&self, plan: PlanId) -> Result<Option<PlanRow>>;
    /// Plans, in the order in which they are asked for.
    async fn plans(&self, which: Plans, limit: usize) -> Result<Vec<PlanRow>>;
    /// The jobs of a plan, in the order in which they are let go.
    async fn plan_items(&self, filter: ItemFilter) -> Result<Vec<ItemRow>>;
    /// The event that holds this key now.
    async fn key(&self, key: DedupKey) -> Result<Option<EventId>>;
    /// Of the newest jobs of a window, no more than so many.
    async fn latencies(&self, since: Timestamp, most: usize) -> Result<Latencies>;
    /// The workspace that is live; none before the first start.
    async fn live_version(&self) -> Result<Option<VersionId>>;
    async fn version_files(&self, version: VersionId) -> Result<Option<String>>;
    /// Workspaces that were live, the newest first.
    async fn versions(&self, limit: usize) -> Result<Vec<VersionRow>>;
    /// How many unfinished jobs there are, by flow and the workspace that they run.
    async fn unfinished(&self) -> Result<Vec<(Arc<str>, VersionId, u64)>>;
    /// What was done, and by whom.
    async fn audit(&self, filter: AuditFilter) -> Result<Vec<AuditRow>>;
    /// Walks along the whole audit. `noted` is a hash of it that somebody has kept elsewhere.
    async fn inspect(&self, noted: Option<Digest>) -> Result<Inspected>;
    /// Users, by name.
    async fn users(&self) -> Result<Vec<UserRow>>;
    async fn user(&self, name: UserName) -> Result<Option<UserRow>>;
    /// Their tokens, by user and then the newest first.
    async fn user_tokens(&self) -> Result<Vec<UserTokenRow>>;
    /// Whose token this is, if its time is not over.
    async fn holder(&self, token: TokenDigest, now: Timestamp) -> Result<Option<Holder>>;
    /// A log-in, whether it is live or not.
    async fn session(&self, session: TokenDigest) -> Result<Option<Session>>;
    /// Tokens of senders, the newest first.
    async fn tokens(&self) -> Result<Vec<TokenRow>>;
    /// What operators have switched, by name.
    async fn controls(&self) -> Result<Vec<Control>>;
    async fn alerts(&self, which: Alerts) -> Result<Vec<AlertRow>>;
    /// Entities that have used something of their retry budgets.
    async fn budgets(&self, filter: BudgetFilter) -> Result<Vec<BudgetRow>>;
    /// How many entities have nothing left of each budget.
    async fn exhausted(&self, now: Timestamp) -> Result<Vec<(Arc<str>, u64)>>;
    /// What was done to a contact in the time of each cap, but for what this job did.
    async fn sent(&self, tally: Tally, but: Option<JobId>, now: Timestamp) -> Result<Vec<u32>>;
    async fn approval(&self, id: &ApprovalId) -> Result<Option<ApprovalRow>>;
    /// Approvals, those of the newest jobs first.
    async fn approvals(&self, filter: ApprovalFilter) -> Result<ApprovalPage>;
    /// How many wait for people, by flow.
    async fn approvals_waiting(&self) -> Result<Vec<Undecided>>;
    /// Versions that unfinished jobs still run.
    fn live_versions(&self) -> Vec<VersionId>;
    async fn counts(&self) -> Result<Counts>;
    fn health(&self) -> Health;
    /// The next events after this one, with all that is kept of them.
    async fn contents(&self, after: Option<EventId>, most: usize) -> Result<Vec<Contents>>;
    /// The next answers of calls after this one, which belong to no event.
    async fn answers(&self, after: Option<CallKey>, most: usize) -> Result<Vec<(CallKey, Kept)>>;
    /// How much is under each key. Looks at everything.
    async fn key_uses(&self) -> Result<Vec<KeyUse>>;
    /// The key that is written with; `None`: nothing is encrypted.
    fn active_key(&self) -> Option<KeyId>;
    /// The secret under which keys are unreadable.
    fn pepper(&self) -> &[u8; 32];
}
