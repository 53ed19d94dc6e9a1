//! How rows are spelt, in both directions.

use super::queue::Place;
use crate::read::{AttemptRow, DeliveryRow, JobRow};
use crate::seal::{SealedAttempt, Sealer};
use crate::{Kept, VersionId};
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Idempotency, Receipt};
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::key::Fingerprint;
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

pub(super) const READY: i64 = 0;
pub(super) const SUCCESS: i64 = 1;
pub(super) const NOOP: i64 = 2;
pub(super) const DEAD: i64 = 3;
/// The numbers between are those of the other engine.
pub(super) const DROPPED: i64 = 6;

pub(super) const OPEN: i64 = 0;
pub(super) const DONE: i64 = 1;
pub(super) const NOT_DONE: i64 = 2;
pub(super) const UNKNOWN: i64 = 3;
pub(super) const GIVEN_UP: i64 = 4;

pub(super) fn class_number(class: Idempotency) -> i64 {
    match class {
        Idempotency::None => 0,
        Idempotency::Header => 1,
        Idempotency::Natural => 2,
        Idempotency::Lookup => 3,
        Idempotency::Wrap => 4,
        Idempotency::Shared => 5,
    }
}

pub(super) fn class(number: i64) -> Idempotency {
    match number {
        1 => Idempotency::Header,
        2 => Idempotency::Natural,
        3 => Idempotency::Lookup,
        4 => Idempotency::Wrap,
        5 => Idempotency::Shared,
        _ => Idempotency::None,
    }
}

pub(super) fn effect_number(state: &EffectState) -> i64 {
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
pub(super) fn effect_status(state: &EffectState) -> Option<i64> {
    match state {
        EffectState::Done(receipt) => Some(receipt.status.into()),
        EffectState::GivenUp(reason) => Some(reason_number(*reason)),
        EffectState::Open | EffectState::NotDone | EffectState::Unknown => None,
    }
}

/// The place in the fixed list; the list only ever grows at its end.
pub(super) fn reason_number(reason: Reason) -> i64 {
    Reason::ALL.iter().position(|other| *other == reason).map_or(0, |at| at as i64)
}

pub(super) fn reason(number: i64) -> Reason {
    usize::try_from(number).ok().and_then(|at| Reason::ALL.get(at)).copied().unwrap_or(Reason::Internal)
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_micros(row.get(column)?))
}

pub(super) fn maybe_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
}

pub(super) fn job_id(row: &Row<'_>, column: usize) -> rusqlite::Result<JobId> {
    Ok(JobId::from_number(row.get::<_, i64>(column)?.cast_unsigned()))
}

pub(super) fn trace(row: &Row<'_>, column: usize) -> rusqlite::Result<TraceId> {
    Ok(TraceId::from_bytes(row.get(column)?))
}

pub(super) fn name(row: &Row<'_>, column: usize) -> rusqlite::Result<Arc<str>> {
    Ok(Arc::from(row.get_ref(column)?.as_str()?))
}

pub(super) fn lane(row: &Row<'_>, column: usize) -> rusqlite::Result<Lane> {
    Ok(Lane::from_number(row.get::<_, i64>(column)?.cast_unsigned()))
}

/// Of three columns: lane, ord, priority.
pub(super) fn place(row: &Row<'_>, column: usize) -> rusqlite::Result<Place> {
    let order = Order::from_number(row.get(column + 1)?);
    Ok(Place { lane: lane(row, column)?, order, priority: row.get(column + 2)? })
}

pub(super) struct EventKey {
    pub key: Option<Vec<u8>>,
    pub fingerprint: Fingerprint,
    pub received_at: i64,
    pub expires_at: i64,
    pub status: u16,
    pub jobs: u64,
    pub trace: TraceId,
}

pub(super) fn event_key(conn: &Connection, event: u64) -> rusqlite::Result<Option<EventKey>> {
    let sql = "SELECT key, fingerprint, received_at, expires_at, status, jobs, trace FROM event WHERE id = ?1";
    conn.prepare_cached(sql)?
        .query_row([event.cast_signed()], |row| {
            let fingerprint: Option<[u8; 32]> = row.get(1)?;
            Ok(EventKey {
                key: row.get(0)?,
                fingerprint: Fingerprint::from_bytes(fingerprint.unwrap_or_default()),
                received_at: row.get(2)?,
                expires_at: row.get(3)?,
                status: row.get(4)?,
                jobs: row.get::<_, i64>(5)?.cast_unsigned(),
                trace: trace(row, 6)?,
            })
        })
        .optional()
}

/// Whether every job of an event ended well. A dead letter has not.
pub(super) fn jobs_finished(conn: &Connection, event: u64, jobs: u64) -> rusqlite::Result<bool> {
    let unfinished: i64 = conn
        .prepare_cached("SELECT count(*) FROM job WHERE id > ?1 AND id <= ?2 AND state NOT IN (1, 2)")?
        .query_row([event.cast_signed(), (event + jobs).cast_signed()], |row| row.get(0))?;
    Ok(unfinished == 0)
}

pub(super) fn payload(conn: &Connection, sealer: &Sealer, event: EventId) -> rusqlite::Result<Kept> {
    conn.prepare_cached("SELECT payload FROM event WHERE id = ?1")?
        .query_row([event.number().cast_signed()], |row| Ok(sealer.open_payload(event, row.get_ref(0)?.as_blob()?)))
}

/// The body is read where there is one.
pub(super) fn effect_state(
    number: i64,
    status: Option<u16>,
    body: impl FnOnce() -> rusqlite::Result<Option<Vec<u8>>>,
) -> rusqlite::Result<EffectState> {
    Ok(match number {
        DONE => EffectState::Done(Receipt { status: status.unwrap_or(0), body: body()?.unwrap_or_default().into() }),
        NOT_DONE => EffectState::NotDone,
        UNKNOWN if status.is_some() => EffectState::GivenUp(Reason::UnknownOutcome),
        UNKNOWN => EffectState::Unknown,
        GIVEN_UP => EffectState::GivenUp(reason(status.map_or(-1, i64::from))),
        _ => EffectState::Open,
    })
}

/// With answers as they are stored.
pub(super) fn effects(conn: &Connection, job: JobId) -> rusqlite::Result<Vec<Effect>> {
    conn.prepare_cached(
        "SELECT name, class, state, first_intended_at, changed_at, sends, status, body
         FROM effect WHERE job = ?1 ORDER BY first_intended_at, name",
    )?
    .query_map([job.number().cast_signed()], |row| {
        let state = effect_state(row.get(2)?, row.get(6)?, || row.get(7))?;
        Ok(Effect {
            name: row.get(0)?,
            class: class(row.get(1)?),
            state,
            first_intended_at: time(row, 3)?,
            changed_at: time(row, 4)?,
            sends: row.get(5)?,
        })
    })?
    .collect()
}

/// The columns that `job_row` reads, with the names spelt out.
pub(super) const JOB_ROW: &str = "
    SELECT job.id, job.event, flow.text, queue.text, job.version, job.state, job.run_at, job.failures, job.attempts,
           job.replays, job.ended_at, job.reason, event.received_at,
           CASE WHEN job.attempts > 0 THEN (SELECT error FROM attempt WHERE attempt.job = job.id AND error IS NOT NULL
                                            ORDER BY no DESC LIMIT 1) END,
           CASE WHEN job.attempts > 0 THEN (SELECT started_at FROM attempt WHERE attempt.job = job.id AND error IS NOT NULL
                                            ORDER BY no DESC LIMIT 1) END, event.trace
    FROM job
    JOIN event ON event.id = job.event
    JOIN name AS flow ON flow.id = job.flow
    JOIN name AS queue ON queue.id = job.queue ";

/// Running and waiting are known in memory only.
pub(super) fn word(state: i64, failures: u32) -> Word {
    match state {
        SUCCESS => Word::Success,
        NOOP => Word::Noop,
        DEAD => Word::Dead,
        DROPPED => Word::Dropped,
        _ if failures > 0 => Word::Retrying,
        _ => Word::Queued,
    }
}

pub(super) fn job_row(row: &Row<'_>, sealer: &Sealer) -> rusqlite::Result<JobRow> {
    let id = job_id(row, 0)?;
    let error: Option<Vec<u8>> = row.get(13)?;
    let failed_at = maybe_time(row, 14)?;
    let state: i64 = row.get(5)?;
    let failures: u32 = row.get(7)?;
    Ok(JobRow {
        id,
        event: EventId::from_number(row.get::<_, i64>(1)?.cast_unsigned()),
        trace: trace(row, 15)?,
        flow: name(row, 2)?,
        queue: name(row, 3)?,
        version: VersionId(row.get(4)?),
        word: word(state, failures),
        received_at: time(row, 12)?,
        run_at: if state == READY { Some(time(row, 6)?) } else { None },
        // Known in memory only.
        waits: None,
        failures,
        attempts: row.get(8)?,
        replays: row.get(9)?,
        ended_at: maybe_time(row, 10)?,
        reason: row.get::<_, Option<i64>>(11)?.map(reason),
        error: error.zip(failed_at).map(|(error, at)| sealer.open_error(id, at, &error)),
    })
}

/// A job that was done at its first attempt has no row for it: its own row tells all there is.
pub(super) fn attempts(conn: &Connection, job: JobId) -> rusqlite::Result<Vec<SealedAttempt>> {
    conn.prepare_cached(
        "SELECT no, started_at, ended_at, outcome, reason, error FROM attempt WHERE job = ?1
         UNION ALL
         SELECT 1, first_attempt_at, ended_at, CASE state WHEN 1 THEN 'success' ELSE 'noop' END, NULL, NULL
         FROM job WHERE id = ?1 AND state IN (1, 2) AND attempts = 1 AND reason IS NULL
         ORDER BY no",
    )?
    .query_map([job.number().cast_signed()], |row| {
        let attempt = AttemptRow {
            no: row.get(0)?,
            started_at: time(row, 1)?,
            ended_at: time(row, 2)?,
            outcome: row.get(3)?,
            reason: row.get::<_, Option<i64>>(4)?.map(reason),
            error: None,
        };
        Ok(SealedAttempt { row: attempt, error: row.get(5)? })
    })?
    .collect()
}

pub(super) fn deliveries(conn: &Connection, event: EventId) -> rusqlite::Result<Vec<DeliveryRow>> {
    conn.prepare_cached("SELECT at, kind, times FROM delivery WHERE event = ?1 ORDER BY no")?
        .query_map([event.number().cast_signed()], |row| {
            Ok(DeliveryRow {
                at: time(row, 0)?,
                conflict: row.get::<_, i64>(1)? == 1,
                times: row.get::<_, i64>(2)?.cast_unsigned(),
            })
        })?
        .collect()
}

pub(super) fn fact(conn: &Connection, name: &str) -> rusqlite::Result<i64> {
    conn.query_row("SELECT value FROM fact WHERE name = ?1", params![name], |row| row.get(0))
}
