//! Moving a stopped store into PostgreSQL with everything in it: in order, in bounded parts, and so that it may be interrupted
//! anywhere and begun again. At no moment can both be served from, for then the same jobs would have two lives.

use crate::approval::ApprovalRow;
use crate::postgres::import::{Target, TargetState};
use crate::read::{BudgetRow, DeliveryRow};
use crate::seal::SealedAttempt;
use crate::sqlite::export::Source;
use crate::{Result, StoreError, VersionId, postgres, sqlite};
use bytes::Bytes;
use clinch_core::audit::Chain;
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, LateAnswer};
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::key::{DedupKey, Fingerprint};
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use std::path::Path;
use std::sync::Arc;

/// One transaction takes no more events than this.
const EVENTS_MAX: usize = 500;
/// Nor more bytes, if it has more than one event.
const BYTES_MAX: usize = 8 << 20;
const AUDIT_ROWS_MAX: usize = 1_000;
const ONCE_ROWS_MAX: usize = 1_000;
/// Few, for each may have an answer.
const CALL_ROWS_MAX: usize = 50;
const BUDGET_ROWS_MAX: usize = 1_000;
const ADMISSION_ROWS_MAX: usize = 1_000;

/// What is written once for the whole store.
pub(crate) struct Facts {
    pub last_id: i64,
    pub accepted: i64,
    pub created: i64,
    pub expired: i64,
    pub events_expired: i64,
    pub live_version: i64,
    /// Whether an operator chose it.
    pub live_chosen: i64,
    /// Where the audit ends.
    pub audit: Chain,
}

pub(crate) struct VersionPart {
    pub id: VersionId,
    pub hash: Vec<u8>,
    pub files: String,
    pub at: Timestamp,
}

/// An event and all that hangs on it.
pub(crate) struct EventPart {
    pub id: EventId,
    pub source: Arc<str>,
    pub received_at: Timestamp,
    pub key: Option<DedupKey>,
    pub fingerprint: Option<Fingerprint>,
    pub expires_at: Timestamp,
    pub status: u16,
    /// How many it was accepted with; some may have outlived their retention.
    pub jobs_born: u32,
    pub trace: TraceId,
    /// As it is stored: ids stay, so what is sealed opens there as it did here.
    pub payload: Bytes,
    pub deliveries: Vec<DeliveryRow>,
    /// By what it is found.
    pub handles: Vec<i64>,
    pub jobs: Vec<JobPart>,
}

impl EventPart {
    /// What of it can be large.
    pub fn bytes(&self) -> usize {
        let length = |state: &EffectState| match state {
            EffectState::Done(receipt) => receipt.body.len(),
            _ => 0,
        };
        let answers = self.jobs.iter().flat_map(|job| &job.effects).map(|effect| length(&effect.state));
        let late = self.jobs.iter().flat_map(|job| &job.late).map(|answer| length(&answer.state));
        self.payload.len() + answers.chain(late).sum::<usize>()
    }
}

pub(crate) struct JobPart {
    pub id: JobId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    pub version: VersionId,
    /// Running: it has an open effect, so it was running when its process ended.
    pub word: Word,
    pub run_at: Timestamp,
    pub lane: Lane,
    pub order: Order,
    pub priority: i16,
    pub failures: u32,
    pub attempts_made: u32,
    pub replays: u32,
    pub first_attempt_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub reason: Option<Reason>,
    /// The highest that is in its ledger; 0 when nothing is.
    pub fence: u64,
    pub attempts: Vec<SealedAttempt>,
    pub effects: Vec<Effect>,
    pub late: Vec<LateAnswer>,
    pub approvals: Vec<ApprovalPart>,
}

/// What people are asked about a job, with their votes.
pub(crate) struct ApprovalPart {
    pub row: ApprovalRow,
    pub remind_at: Option<Timestamp>,
    pub tell_at: Option<Timestamp>,
}

/// A key that a step has set.
pub(crate) struct OncePart {
    pub key: Vec<u8>,
    pub until: Timestamp,
}

/// A call that was made under a key, with its answer as it is stored.
pub(crate) struct CallPart {
    pub key: Vec<u8>,
    pub fingerprint: Vec<u8>,
    pub turn: i64,
    pub fence: i64,
    pub state: i16,
    pub since: Timestamp,
    pub until: Timestamp,
    pub expires: Timestamp,
    pub answer: Option<Vec<u8>>,
}

/// What is counted of a contact for a step of a job.
pub(crate) struct AdmissionPart {
    pub job: i64,
    pub step: String,
    pub contact: Vec<u8>,
    pub channel: String,
    pub at: i64,
    pub until: i64,
}

/// How much there is of each kind.
pub type Totals = Vec<(&'static str, i64)>;

/// Where it has come to.
pub enum Step {
    /// So many events of so many are in the target.
    Events { done: i64, of: i64 },
    /// The source is marked as moved; the target is not open yet.
    Marked,
}

#[derive(Debug)]
pub struct Moved {
    pub to: String,
    /// It was moved before, and nothing was done.
    pub before: bool,
    /// An earlier run had begun, and this one went on from there.
    pub resumed: bool,
    pub totals: Totals,
}

pub async fn carry(from: &Path, to: &str, now: Timestamp, mut step: impl FnMut(Step)) -> Result<Moved> {
    let mut source = Source::open(from)?;
    let mut target = Target::open(to, *source.pepper()).await?;
    let after = match plan(source.boot(), source.moved_to(), target.state())? {
        Plan::Nothing => {
            let totals = target.totals().await?;
            return Ok(Moved { to: target.name().into(), before: true, resumed: false, totals });
        }
        Plan::Begin => None,
        Plan::Resume => target.state().moving.map(|moving| (moving.event, moving.audit)),
    };
    refuse_unsound(&sqlite::verify(from, now)?.problems, "the store to be moved")?;
    let (event, audit) = match after {
        Some(after) => after,
        None => {
            let people = (source.tokens()?, source.users()?, source.user_tokens()?);
            let (versions, controls) = (source.versions()?, source.controls()?);
            target.begin(source.boot(), &versions, people, &controls, &source.secrets()?).await?;
            (0, 0)
        }
    };
    carry_events(&source, &mut target, event, &mut step).await?;
    carry_audit(&source, &mut target, audit).await?;
    carry_once(&source, &mut target).await?;
    carry_calls(&source, &mut target).await?;
    carry_budgets(&source, &mut target).await?;
    target.take_schedules(&source.schedules()?).await?;
    carry_admissions(&source, &mut target).await?;
    carry_plans(&source, &mut target).await?;
    target.take_rows("alert", &source.rows_of("alert", &ALERT, "id > ?1", 0)?).await?;
    target.close_books(&source.facts()?).await?;

    let (totals, arrived) = (source.totals()?, target.totals().await?);
    if totals != arrived {
        return Err(StoreError::Damaged(format!(
            "not all of it arrived: {} became {}; nothing was lost, the store is where it was",
            told(&totals),
            told(&arrived)
        )));
    }
    refuse_unsound(&postgres::verify(to, now).await?.problems, "the store in the database")?;
    // In this order: in between neither can be served from, and the next run finishes.
    source.mark_moved(target.name(), now)?;
    step(Step::Marked);
    target.open_for_service(now).await?;
    Ok(Moved { to: target.name().into(), before: false, resumed: after.is_some(), totals })
}

async fn carry_events(source: &Source, target: &mut Target, after: i64, step: &mut impl FnMut(Step)) -> Result<()> {
    let of = source.events()?;
    let mut done = of - source.events_after(after)?;
    let mut after = after;
    step(Step::Events { done, of });
    loop {
        let events = source.next(after, EVENTS_MAX, BYTES_MAX)?;
        let Some(last) = events.last() else { return Ok(()) };
        after = last.id.number().cast_signed();
        target.take(&events).await?;
        done += i64::try_from(events.len()).unwrap_or(i64::MAX);
        step(Step::Events { done, of });
    }
}

const PLAN: [&str; 33] = [
    "id",
    "at",
    "actor",
    "reason",
    "query",
    "run",
    "noop",
    "ask",
    "kept",
    "oldest",
    "newest",
    "more",
    "state",
    "started_at",
    "started_by",
    "started_why",
    "rate",
    "jobs_max",
    "canary",
    "stop_at",
    "at_once",
    "version",
    "ended_at",
    "why",
    "next_at",
    "jobs",
    "released",
    "succeeded",
    "nooped",
    "failed",
    "changed",
    "asked",
    "lost",
];
const ALERT: [&str; 7] = ["id", "name", "version", "value", "began_at", "ended_at", "rest_at"];
const ITEM: [&str; 8] = ["plan", "no", "job", "mark", "replays", "died_at", "state", "ended_at"];

/// Replays with a plan, one by one, and the dead letters that somebody wants to drop. They are few.
async fn carry_plans(source: &Source, target: &mut Target) -> Result<()> {
    for plan in source.plans()? {
        target.take_rows("replay_plan", &source.rows_of("replay_plan", &PLAN, "id = ?1", plan)?).await?;
        target.take_rows("replay_item", &source.rows_of("replay_item", &ITEM, "plan = ?1", plan)?).await?;
    }
    let asks = source.rows_of("drop_ask", &["job", "at", "mark", "actor", "reason"], "job > ?1", 0)?;
    target.take_rows("drop_ask", &asks).await
}

async fn carry_audit(source: &Source, target: &mut Target, mut after: i64) -> Result<()> {
    loop {
        let rows = source.next_audit(after, AUDIT_ROWS_MAX)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.no.cast_signed();
        target.take_audit(&rows).await?;
    }
}

/// From the beginning each time: what is there already stays.
async fn carry_once(source: &Source, target: &mut Target) -> Result<()> {
    let mut after = Vec::new();
    loop {
        let keys = source.next_once(&after, ONCE_ROWS_MAX)?;
        let Some(last) = keys.last() else { return Ok(()) };
        after.clone_from(&last.key);
        target.take_once(&keys).await?;
    }
}

/// Likewise.
async fn carry_calls(source: &Source, target: &mut Target) -> Result<()> {
    let mut after = Vec::new();
    loop {
        let calls = source.next_calls(&after, CALL_ROWS_MAX)?;
        let Some(last) = calls.last() else { return Ok(()) };
        after.clone_from(&last.key);
        target.take_calls(&calls).await?;
    }
}

/// Likewise.
async fn carry_budgets(source: &Source, target: &mut Target) -> Result<()> {
    let mut after: Option<BudgetRow> = None;
    loop {
        let budgets = source.next_budgets(after.as_ref(), BUDGET_ROWS_MAX)?;
        let Some(last) = budgets.last() else { return Ok(()) };
        target.take_budgets(&budgets).await?;
        after = Some(last.clone());
    }
}

/// Likewise.
async fn carry_admissions(source: &Source, target: &mut Target) -> Result<()> {
    let mut after: Option<AdmissionPart> = None;
    loop {
        let mut admissions = source.next_admissions(after.as_ref(), ADMISSION_ROWS_MAX)?;
        target.take_admissions(&admissions).await?;
        let Some(last) = admissions.pop() else { return Ok(()) };
        after = Some(last);
    }
}

fn told(totals: &Totals) -> String {
    totals.iter().map(|(kind, number)| format!("{number} {kind}")).collect::<Vec<_>>().join(", ")
}

fn refuse_unsound(problems: &[String], which: &str) -> Result<()> {
    match problems.first() {
        None => Ok(()),
        Some(first) => Err(StoreError::Damaged(format!("{which} does not add up: {first}; see `clinch verify`"))),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// From the beginning, whatever an earlier run has left there.
    Begin,
    /// From where the earlier run was.
    Resume,
    /// It is moved.
    Nothing,
}

/// What is to be done, seeing both. Nothing that is not ours is ever overwritten.
fn plan(boot: i64, moved_to: Option<&str>, target: &TargetState) -> Result<Plan> {
    let refuse = |why: String| Err(StoreError::Open(why));
    match (target, moved_to) {
        (TargetState { is_ours: true, moved: true, .. }, Some(_)) => Ok(Plan::Nothing),
        (TargetState { is_ours: true, moved: true, .. }, None) => refuse(
            "this store was moved there before, and what is here is an older copy of it; serve from the database"
                .into(),
        ),
        (TargetState { is_ours: true, moving: Some(moving), .. }, _) if moving.boot == boot => Ok(Plan::Resume),
        // It was served from again after the earlier run: what that run carried is out of date.
        (TargetState { is_ours: true, moving: Some(_), .. }, _) => Ok(Plan::Begin),
        (_, Some(to)) => refuse(format!("this store was moved to {to}, and not there")),
        (TargetState { is_ours: true, is_empty: true, .. }, None) => Ok(Plan::Begin),
        _ => {
            refuse("there is a store in this database already, which is not overwritten; name an empty database".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::import::Moving;

    fn state(is_ours: bool, is_empty: bool, moving: Option<i64>, moved: bool) -> TargetState {
        let moving = moving.map(|boot| Moving { boot, event: 7, audit: 0 });
        TargetState { is_ours, is_empty, moving, moved }
    }

    #[test]
    fn k3_what_is_not_ours_is_never_overwritten() {
        let planned = |moved_to, target| plan(3, moved_to, &target).map_err(|error| error.to_string());
        assert_eq!(planned(None, state(true, true, None, false)), Ok(Plan::Begin));
        assert_eq!(planned(None, state(true, false, Some(3), false)), Ok(Plan::Resume));
        assert_eq!(planned(Some("there"), state(true, false, Some(3), false)), Ok(Plan::Resume));
        assert_eq!(planned(None, state(true, false, Some(2), false)), Ok(Plan::Begin));
        assert_eq!(planned(Some("there"), state(true, false, None, true)), Ok(Plan::Nothing));
        for (moved_to, target, said) in [
            (None, state(false, true, None, false), "there is a store"),
            (None, state(false, false, Some(3), false), "there is a store"),
            (None, state(true, false, None, false), "there is a store"),
            (None, state(true, false, None, true), "older copy"),
            (Some("elsewhere"), state(true, true, None, false), "moved to elsewhere"),
            (Some("elsewhere"), state(false, false, None, true), "moved to elsewhere"),
        ] {
            let refused = planned(moved_to, target).expect_err(said);
            assert!(refused.contains(said), "{refused}");
        }
    }
}
