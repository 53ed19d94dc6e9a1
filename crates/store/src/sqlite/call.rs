//! begin_call, end_call: what was done for others under their keys.

use super::writer::Batch;
use crate::{CallAsk, CallEnd, Held};
use clinch_core::call::{CallKey, CallLeave, CallState, CallTurn, PastCall, leave};
use clinch_core::job::Fence;
use clinch_core::key::Fingerprint;
use clinch_core::time::Timestamp;
use rusqlite::{OptionalExtension, Row, params};

pub(super) const OPEN: i64 = 0;
pub(super) const DONE: i64 = 1;
pub(super) const UNKNOWN: i64 = 2;

/// What to do, and the answer as it is stored, if there is one.
pub(super) fn begin(batch: &Batch<'_>, ask: &CallAsk) -> rusqlite::Result<(CallLeave, Vec<u8>)> {
    let past = batch
        .conn
        .prepare_cached(
            "SELECT fingerprint, state, since, until, expires, answer, turn, fence FROM call WHERE key = ?1",
        )?
        .query_row([ask.key.as_bytes()], |row| Ok((past(row)?, row.get::<_, Option<Vec<u8>>>(5)?)))
        .optional()?;
    let (past, answer) = past.unzip();
    let leave = leave(past.as_ref(), ask.caller, ask.at);
    if leave == CallLeave::Make {
        batch
            .conn
            .prepare_cached(
                "INSERT INTO call (key, fingerprint, turn, fence, state, since, until, expires, answer)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NULL)
                 ON CONFLICT (key) DO UPDATE SET
                     fingerprint = excluded.fingerprint, turn = excluded.turn, fence = excluded.fence, state = excluded.state,
                     since = excluded.since, until = excluded.until, expires = excluded.expires, answer = NULL",
            )?
            .execute(params![
                ask.key.as_bytes(),
                ask.caller.fingerprint.as_bytes(),
                ask.caller.turn.of.cast_signed(),
                ask.caller.turn.fence.0.cast_signed(),
                OPEN,
                ask.at.as_micros(),
                ask.until.as_micros(),
                ask.expires.as_micros(),
            ])?;
    }
    Ok((leave, answer.flatten().unwrap_or_default()))
}

fn past(row: &Row<'_>) -> rusqlite::Result<PastCall> {
    let time = |at: usize| Ok::<_, rusqlite::Error>(Timestamp::from_micros(row.get(at)?));
    let state = match row.get::<_, i64>(1)? {
        OPEN => CallState::Open { until: time(3)? },
        DONE => CallState::Kept,
        _ => CallState::Unknown,
    };
    let fingerprint = Fingerprint::from_bytes(row.get(0)?);
    let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let turn = CallTurn { of: number(6)?, fence: Fence(number(7)?) };
    Ok(PastCall { fingerprint, turn, state, since: time(2)?, expires: time(4)? })
}

pub(super) fn end(batch: &Batch<'_>, key: &CallKey, turn: CallTurn, end: &CallEnd) -> rusqlite::Result<Held> {
    let (key, fence, turn) = (key.as_bytes(), turn.fence.0.cast_signed(), turn.of.cast_signed());
    // Who lost his job and comes late may tell that it was done, and takes nothing back that another has begun or ended since.
    let changed = match end {
        CallEnd::Done(answer) => batch
            .conn
            .prepare_cached("UPDATE call SET state = ?3, answer = ?4 WHERE key = ?1 AND turn = ?2")?
            .execute(params![key, turn, DONE, &answer[..]])?,
        CallEnd::Unknown => batch
            .conn
            .prepare_cached("UPDATE call SET state = ?3 WHERE key = ?1 AND turn = ?2 AND state <> ?4")?
            .execute(params![key, turn, UNKNOWN, DONE])?,
        CallEnd::Undone => batch
            .conn
            .prepare_cached("DELETE FROM call WHERE key = ?1 AND turn = ?2 AND state = ?3")?
            .execute(params![key, turn, DONE])?,
        CallEnd::NotDone => batch
            .conn
            .prepare_cached("DELETE FROM call WHERE key = ?1 AND turn = ?2 AND state = ?3 AND fence = ?4")?
            .execute(params![key, turn, OPEN, fence])?,
    };
    Ok(if changed > 0 { Held::Held } else { Held::Lost })
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "DELETE FROM call WHERE key IN (SELECT key FROM call WHERE expires <= ?1 LIMIT ?2)";
