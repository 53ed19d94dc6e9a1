//! How rows are spelt, in both directions.

use super::Fault;
use super::pool::Line;
use crate::VersionId;
use crate::read::{AttemptRow, DeliveryRow, JobRow};
use crate::seal::{SealedAttempt, Sealer};
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Idempotency, Receipt};
use clinch_core::id::{EventId, JobId};
use clinch_core::job::{Waits, Word};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// The same numbers as in the embedded engine, and two more.
pub(super) const READY: i16 = 0;
pub(super) const SUCCESS: i16 = 1;
pub(super) const NOOP: i16 = 2;
pub(super) const DEAD: i16 = 3;
pub(super) const RUNNING: i16 = 4;
/// Ready, but not due yet or behind another of its group.
pub(super) const WAITING: i16 = 5;
pub(super) const DROPPED: i16 = 6;
/// A key holds as long as its job is in one of these, however old it is.
pub(super) const NOT_OVER: [i16; 5] = [READY, DEAD, RUNNING, WAITING, DROPPED];

pub(super) const OPEN: i16 = 0;
pub(super) const DONE: i16 = 1;
pub(super) const NOT_DONE: i16 = 2;
pub(super) const UNKNOWN: i16 = 3;
pub(super) const GIVEN_UP: i16 = 4;

pub(super) type Read<T> = Result<T, tokio_postgres::Error>;

/// The one character that a text of PostgreSQL cannot hold is replaced: a strange error of a target must not keep the
/// attempt that it ended from being written down.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

pub(super) fn class_number(class: Idempotency) -> i16 {
    match class {
        Idempotency::None => 0,
        Idempotency::Header => 1,
        Idempotency::Natural => 2,
        Idempotency::Lookup => 3,
        Idempotency::Wrap => 4,
        Idempotency::Shared => 5,
    }
}

pub(super) fn class(number: i16) -> Idempotency {
    match number {
        1 => Idempotency::Header,
        2 => Idempotency::Natural,
        3 => Idempotency::Lookup,
        4 => Idempotency::Wrap,
        5 => Idempotency::Shared,
        _ => Idempotency::None,
    }
}

pub(super) fn effect_number(state: &EffectState) -> i16 {
    match state {
        EffectState::Open => OPEN,
        EffectState::Done(_) => DONE,
        EffectState::NotDone => NOT_DONE,
        EffectState::Unknown | EffectState::GivenUp(Reason::UnknownOutcome) => UNKNOWN,
        EffectState::GivenUp(_) => GIVEN_UP,
    }
}

/// What the column `status` holds: the answer's, or the number of the reason for which it was given up. An effect that was given up while
/// nobody knew what came of it is unknown, and is told from others by it.
pub(super) fn effect_status(state: &EffectState) -> Option<i32> {
    match state {
        EffectState::Done(receipt) => Some(receipt.status.into()),
        EffectState::GivenUp(reason) => Some(reason_number(*reason).into()),
        EffectState::Open | EffectState::NotDone | EffectState::Unknown => None,
    }
}

/// The place in the fixed list; the list only ever grows at its end.
pub(super) fn reason_number(reason: Reason) -> i16 {
    Reason::ALL.iter().position(|other| *other == reason).and_then(|at| i16::try_from(at).ok()).unwrap_or(0)
}

pub(super) fn reason(number: i16) -> Reason {
    usize::try_from(number).ok().and_then(|at| Reason::ALL.get(at)).copied().unwrap_or(Reason::Internal)
}

pub(super) fn word(state: i16, failures: u32, waits: Option<Waits>) -> Word {
    match state {
        SUCCESS => Word::Success,
        NOOP => Word::Noop,
        DEAD => Word::Dead,
        DROPPED => Word::Dropped,
        RUNNING => Word::Running,
        _ if waits.is_some() => Word::Waiting,
        _ if failures > 0 => Word::Retrying,
        _ => Word::Queued,
    }
}

pub(super) fn time(row: &Row, column: usize) -> Read<Timestamp> {
    Ok(Timestamp::from_micros(row.try_get(column)?))
}

pub(super) fn maybe_time(row: &Row, column: usize) -> Read<Option<Timestamp>> {
    Ok(row.try_get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

pub(super) fn job_id(row: &Row, column: usize) -> Read<JobId> {
    Ok(JobId::from_number(row.try_get::<_, i64>(column)?.cast_unsigned()))
}

pub(super) fn event_id(row: &Row, column: usize) -> Read<EventId> {
    Ok(EventId::from_number(row.try_get::<_, i64>(column)?.cast_unsigned()))
}

/// Its sixteen bytes.
struct StoredTrace(TraceId);

impl<'a> FromSql<'a> for StoredTrace {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(StoredTrace(TraceId::from_bytes(raw.try_into()?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::BYTEA
    }
}

pub(super) fn trace(row: &Row, column: usize) -> Read<TraceId> {
    Ok(row.try_get::<_, StoredTrace>(column)?.0)
}

pub(super) fn maybe_trace(row: &Row, column: usize) -> Read<Option<TraceId>> {
    Ok(row.try_get::<_, Option<StoredTrace>>(column)?.map(|stored| stored.0))
}

pub(super) fn name(row: &Row, column: usize) -> Read<Arc<str>> {
    Ok(Arc::from(row.try_get::<_, &str>(column)?))
}

/// Numbers that only count up.
pub(super) fn count(row: &Row, column: usize) -> Read<u32> {
    Ok(row.try_get::<_, i32>(column)?.cast_unsigned())
}

pub(super) fn big_count(row: &Row, column: usize) -> Read<u64> {
    Ok(row.try_get::<_, i64>(column)?.cast_unsigned())
}

/// The columns that `job_rows` reads. What is kept elsewhere is looked for only of rows that are told.
pub(super) const JOB_ROW: &str = "
    SELECT job.id, job.event, job.flow, job.queue, job.version, job.state, job.run_at, job.failures, job.attempts,
           job.replays, job.ended_at, job.reason, job.received_at,
           CASE WHEN job.attempts > 0 THEN (SELECT error FROM attempt WHERE attempt.job = job.id AND error IS NOT NULL
                                            ORDER BY no DESC LIMIT 1) END,
           CASE WHEN job.attempts > 0 THEN (SELECT started_at FROM attempt WHERE attempt.job = job.id AND error IS NOT NULL
                                            ORDER BY no DESC LIMIT 1) END, job.waits,
           (SELECT trace FROM event WHERE event.id = job.event)
    FROM job ";

/// But for those whose event went with its span while we looked: so did they.
pub(super) fn job_rows(rows: &[Row], sealer: &Sealer) -> Read<Vec<JobRow>> {
    rows.iter().filter_map(|row| job_row(row, sealer).transpose()).collect()
}

fn job_row(row: &Row, sealer: &Sealer) -> Read<Option<JobRow>> {
    let Some(trace) = maybe_trace(row, 16)? else { return Ok(None) };
    let id = job_id(row, 0)?;
    let error: Option<&[u8]> = row.try_get(13)?;
    let failed_at = maybe_time(row, 14)?;
    let state: i16 = row.try_get(5)?;
    let failures = count(row, 7)?;
    let waits = row.try_get::<_, Option<i16>>(15)?.and_then(Waits::from_number);
    let waits = waits.filter(|_| matches!(state, READY | WAITING));
    Ok(Some(JobRow {
        id,
        event: event_id(row, 1)?,
        trace,
        flow: name(row, 2)?,
        queue: name(row, 3)?,
        version: VersionId(row.try_get(4)?),
        word: word(state, failures, waits),
        received_at: time(row, 12)?,
        run_at: if matches!(state, READY | WAITING) { Some(time(row, 6)?) } else { None },
        waits,
        failures,
        attempts: count(row, 8)?,
        replays: count(row, 9)?,
        ended_at: maybe_time(row, 10)?,
        reason: row.try_get::<_, Option<i16>>(11)?.map(reason),
        error: error.zip(failed_at).map(|(error, at)| sealer.open_error(id, at, error)),
    }))
}

/// What the ledger holds of these jobs, with answers as they are stored.
pub(super) async fn effects(line: &mut Line, jobs: &[i64]) -> Result<HashMap<JobId, Vec<Effect>>, Fault> {
    let rows = line
        .query(
            "SELECT job, name, class, state, first_intended_at, changed_at, sends, status, body FROM (
                 SELECT DISTINCT ON (job, name) * FROM effect WHERE job = ANY($1) ORDER BY job, name, no DESC
             ) AS last ORDER BY job, first_intended_at, name COLLATE \"C\"",
            &[&jobs],
        )
        .await?;
    let mut effects: HashMap<JobId, Vec<Effect>> = HashMap::new();
    for row in &rows {
        effects.entry(job_id(row, 0)?).or_default().push(effect(row)?);
    }
    Ok(effects)
}

pub(super) fn status(row: &Row, column: usize) -> Read<Option<u16>> {
    Ok(row.try_get::<_, Option<i32>>(column)?.and_then(|status| u16::try_from(status).ok()))
}

/// The body is read where there is one.
pub(super) fn effect_state(
    number: i16,
    status: Option<u16>,
    body: impl FnOnce() -> Read<Option<Vec<u8>>>,
) -> Read<EffectState> {
    Ok(match number {
        DONE => EffectState::Done(Receipt { status: status.unwrap_or(0), body: body()?.unwrap_or_default().into() }),
        NOT_DONE => EffectState::NotDone,
        UNKNOWN if status.is_some() => EffectState::GivenUp(Reason::UnknownOutcome),
        UNKNOWN => EffectState::Unknown,
        GIVEN_UP => EffectState::GivenUp(reason(status.and_then(|number| i16::try_from(number).ok()).unwrap_or(-1))),
        _ => EffectState::Open,
    })
}

fn effect(row: &Row) -> Read<Effect> {
    let state = effect_state(row.try_get(3)?, status(row, 7)?, || row.try_get(8))?;
    Ok(Effect {
        name: row.try_get(1)?,
        class: class(row.try_get(2)?),
        state,
        first_intended_at: time(row, 4)?,
        changed_at: time(row, 5)?,
        sends: count(row, 6)?,
    })
}

pub(super) async fn attempts(line: &mut Line, job: i64) -> Result<Vec<SealedAttempt>, Fault> {
    let sql = "SELECT no, started_at, ended_at, outcome, reason, error FROM attempt WHERE job = $1 ORDER BY no";
    let rows = line.query(sql, &[&job]).await?;
    let attempt = |row: &Row| -> Read<SealedAttempt> {
        let attempt = AttemptRow {
            no: count(row, 0)?,
            started_at: time(row, 1)?,
            ended_at: time(row, 2)?,
            outcome: row.try_get(3)?,
            reason: row.try_get::<_, Option<i16>>(4)?.map(reason),
            error: None,
        };
        Ok(SealedAttempt { row: attempt, error: row.try_get(5)? })
    };
    Ok(rows.iter().map(attempt).collect::<Read<_>>()?)
}

pub(super) async fn deliveries(line: &mut Line, event: i64) -> Result<Vec<DeliveryRow>, Fault> {
    let rows = line.query("SELECT at, kind, times FROM delivery WHERE event = $1 ORDER BY no", &[&event]).await?;
    let delivery = |row: &Row| -> Read<DeliveryRow> {
        Ok(DeliveryRow { at: time(row, 0)?, conflict: row.try_get::<_, i16>(1)? == 1, times: big_count(row, 2)? })
    };
    Ok(rows.iter().map(delivery).collect::<Read<_>>()?)
}
