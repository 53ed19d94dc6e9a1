//! intend, conclude: the ledger. A worker that lost its lease writes nothing into it.

use super::memory::Settled;
use super::rows::{OPEN, UNKNOWN, class_number, effect_number, effect_status};
use super::writer::{Batch, lock};
use crate::{Conclusion, Held, LeaseRef, NewEffect};
use clinch_core::time::Timestamp;
use rusqlite::params;

pub(super) const INTEND: &str =
    "INSERT INTO effect (job, name, class, state, first_intended_at, changed_at, sends, fence)
     VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, ?6)
     ON CONFLICT (job, name) DO UPDATE SET
         state = excluded.state, class = excluded.class, changed_at = excluded.changed_at,
         sends = sends + 1, fence = excluded.fence
     WHERE state <> 1";
pub(super) const CONCLUDE: &str =
    "UPDATE effect SET state = ?3, changed_at = ?4, status = ?5, body = ?6 WHERE job = ?1 AND name = ?2";

pub(super) fn intend(batch: &mut Batch<'_>, lease: LeaseRef, effect: &NewEffect) -> rusqlite::Result<Held> {
    if !holds(batch, lease) {
        return Ok(Held::Lost);
    }
    let written = batch.pens.intend.execute(params![
        lease.job.number().cast_signed(),
        &*effect.name,
        class_number(effect.class),
        OPEN,
        effect.at.as_micros(),
        lease.fence.0.cast_signed(),
    ])?;
    if written == 0 {
        // It is done. Whoever asks has an older picture of the job, and must not send.
        return Ok(Held::Lost);
    }
    batch.changes.push(Settled::Begun { job: lease.job });
    Ok(Held::Held)
}

/// `body` is the answer as it is to be stored.
pub(super) fn conclude(
    batch: &mut Batch<'_>,
    lease: LeaseRef,
    end: &Conclusion,
    body: Option<&[u8]>,
) -> rusqlite::Result<Held> {
    if !holds(batch, lease) {
        return Ok(Held::Lost);
    }
    write(batch, lease, end, body)?;
    Ok(Held::Held)
}

/// A line in the ledger does not move the job, so one worker may write several of them in one transaction.
pub(super) fn holds(batch: &Batch<'_>, lease: LeaseRef) -> bool {
    !batch.is_touched(lease.job) && lock(&batch.shared.memory).holds(lease)
}

/// No attempt ends with an effect still open: one that nobody concluded is unknown.
pub(super) fn close(batch: &Batch<'_>, lease: LeaseRef, at: Timestamp) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached("UPDATE effect SET state = ?2, changed_at = ?3 WHERE job = ?1 AND state = ?4")?
        .execute(params![lease.job.number().cast_signed(), UNKNOWN, at.as_micros(), OPEN])?;
    Ok(())
}

pub(super) fn write(
    batch: &mut Batch<'_>,
    lease: LeaseRef,
    end: &Conclusion,
    body: Option<&[u8]>,
) -> rusqlite::Result<()> {
    batch.pens.conclude.execute(params![
        lease.job.number().cast_signed(),
        &*end.name,
        effect_number(&end.state),
        end.at.as_micros(),
        effect_status(&end.state),
        body,
    ])?;
    Ok(())
}
