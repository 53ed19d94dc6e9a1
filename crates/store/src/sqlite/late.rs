//! testify: what a worker learned after its job was another's, kept beside the ledger.

use super::rows::{self, DONE, effect_number};
use super::writer::Batch;
use crate::{LATE_ANSWERS_MAX, LeaseRef, Testified, Testimony};
use clinch_core::effect::{EffectState, LateAnswer};
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::seal::FORGOTTEN;
use rusqlite::{Connection, params};

/// `body` is the answer as it is to be stored.
pub(super) fn testify(
    batch: &Batch<'_>,
    lease: LeaseRef,
    testimony: &Testimony,
    body: Option<&[u8]>,
) -> rusqlite::Result<Testified> {
    let end = &testimony.conclusion;
    // The same worker may say it twice; and of an event that was forgotten nothing new is kept.
    let kept = batch
        .conn
        .prepare_cached(
            "INSERT INTO late_answer (job, name, fence, at, state, status, body)
             SELECT effect.job, effect.name, ?3, ?4, ?5, ?6,
                    CASE WHEN ?7 IS NOT NULL AND event.payload = ?8 THEN ?8 ELSE ?7 END
             FROM effect JOIN job ON job.id = effect.job JOIN event ON event.id = job.event
             WHERE effect.job = ?1 AND effect.name = ?2
                 AND (SELECT count(*) FROM late_answer WHERE job = ?1 AND name = ?2 AND fence <> ?3) < ?9
             ON CONFLICT (job, name, fence) DO UPDATE SET at = at",
        )?
        .execute(params![
            lease.job.number().cast_signed(),
            &*end.name,
            lease.fence.0.cast_signed(),
            end.at.as_micros(),
            effect_number(&end.state),
            testimony.status,
            body,
            FORGOTTEN,
            LATE_ANSWERS_MAX,
        ])?;
    Ok(if kept > 0 { Testified::Kept } else { Testified::NotKept })
}

/// In the order in which they came, with answers as they are stored.
pub(super) fn of(conn: &Connection, job: JobId) -> rusqlite::Result<Vec<LateAnswer>> {
    conn.prepare_cached(
        "SELECT name, fence, at, state, status, body FROM late_answer WHERE job = ?1 ORDER BY at, name, fence",
    )?
    .query_map([job.number().cast_signed()], |row| {
        let (number, status): (i64, Option<u16>) = (row.get(3)?, row.get(4)?);
        Ok(LateAnswer {
            step: row.get(0)?,
            fence: Fence(row.get::<_, i64>(1)?.cast_unsigned()),
            at: rows::time(row, 2)?,
            state: rows::effect_state(number, status.filter(|_| number == DONE), || row.get(5))?,
            status,
        })
    })?
    .collect()
}

/// The last that says that the effect was done, as it is stored: it may become the result.
pub(super) fn receipt(conn: &Connection, job: JobId, step: &str) -> rusqlite::Result<(Option<u16>, Option<Vec<u8>>)> {
    let late = of(conn, job)?.into_iter().rev().filter(|answer| answer.step == step);
    let receipt = late.into_iter().find_map(|answer| match answer.state {
        EffectState::Done(receipt) => Some((Some(receipt.status), receipt.kept().map(|body| body.to_vec()))),
        _ => None,
    });
    Ok(receipt.unwrap_or_default())
}
