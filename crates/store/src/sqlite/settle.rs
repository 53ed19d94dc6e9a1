//! settle: the end of an attempt and what follows from it.

use super::ledger;
use super::memory::Settled;
use super::rows::{DEAD, NOOP, READY, SUCCESS, reason_number};
use super::writer::{Batch, lock};
use crate::{Held, LeaseRef, Settlement};
use clinch_core::death::Reason;
use clinch_core::job::{Change, Ending};
use clinch_core::time::Timestamp;
use rusqlite::params;

/// What a settlement keeps, as it is to be stored.
pub(super) struct SealedEnd {
    pub error: Option<Vec<u8>>,
    pub body: Option<Vec<u8>>,
}

pub(super) const SETTLE: &str = "UPDATE job SET state = ?2, attempts = attempts + 1, failures = failures + ?3,
         first_attempt_at = ifnull(first_attempt_at, ?4),
         run_at = CASE WHEN ?2 = 0 THEN ?5 ELSE run_at END,
         ended_at = CASE WHEN ?2 = 0 THEN NULL ELSE ?5 END,
         reason = ?6
     WHERE id = ?1";

pub(super) fn settle(
    batch: &mut Batch<'_>,
    lease: LeaseRef,
    end: &Settlement,
    sealed: &SealedEnd,
) -> rusqlite::Result<Held> {
    // Who was charged has an attempt behind it, which is written down like any other.
    if let Change::PutOff { run_at, waits } = end.change
        && !end.charged
    {
        let holds = held(batch, lease).is_some() && batch.touch(lease.job);
        if holds {
            if let Some(conclusion) = &end.conclusion {
                ledger::write(batch, lease, conclusion, sealed.body.as_deref())?;
            }
            batch.changes.push(Settled::PutOff { job: lease.job, run_at, waits });
        }
        return Ok(if holds { Held::Held } else { Held::Lost });
    }
    let (Some(attempts), Some((state, at, reason))) = (held(batch, lease), next_state(end.change)) else {
        return Ok(Held::Lost);
    };
    if !batch.touch(lease.job) {
        return Ok(Held::Lost);
    }
    match &end.conclusion {
        Some(conclusion) => ledger::write(batch, lease, conclusion, sealed.body.as_deref())?,
        None => ledger::close(batch, lease, end.ended_at)?,
    }
    let job = lease.job.number().cast_signed();
    // The usual life, done at the first attempt, is told by the job's own row: most jobs never touch this table.
    if attempts > 0 || reason.is_some() || !matches!(end.change, Change::Finished { .. }) {
        write_attempt(batch, job, attempts + 1, end, sealed.error.as_deref())?;
    }
    batch.pens.settle.execute(params![
        job,
        state,
        i64::from(end.charged && !matches!(end.change, Change::Finished { .. })),
        end.started_at.as_micros(),
        at.as_micros(),
        reason.map(reason_number),
    ])?;
    batch.changes.push(match end.change {
        Change::Finished { .. } => Settled::Ended { job: lease.job },
        Change::Buried { reason, .. } => Settled::Buried { job: lease.job, reason },
        _ => {
            let waits = if let Change::PutOff { waits, .. } = end.change { Some(waits) } else { None };
            let (job, charged, attempt_started_at) = (lease.job, end.charged, end.started_at);
            Settled::Again { job, run_at: at, charged, attempt_started_at, waits }
        }
    });
    Ok(Held::Held)
}

fn write_attempt(batch: &Batch<'_>, job: i64, no: u32, end: &Settlement, error: Option<&[u8]>) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached(
            "INSERT INTO attempt (job, no, started_at, ended_at, outcome, reason, error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            job,
            no,
            end.started_at.as_micros(),
            end.ended_at.as_micros(),
            end.outcome,
            end.reason.map(reason_number),
            error,
        ])?;
    Ok(())
}

/// How the row says it; `None` for a change in which no attempt ends.
fn next_state(change: Change) -> Option<(i64, Timestamp, Option<Reason>)> {
    match change {
        Change::Finished { at, ending: Ending::Success } => Some((SUCCESS, at, None)),
        Change::Finished { at, ending: Ending::Noop } => Some((NOOP, at, None)),
        Change::Finished { at, ending: Ending::Declined(reason) } => Some((NOOP, at, Some(reason))),
        Change::Buried { at, reason } => Some((DEAD, at, Some(reason))),
        Change::Retried { run_at } | Change::HandedBack { run_at } | Change::PutOff { run_at, .. } => {
            Some((READY, run_at, None))
        }
        Change::Claimed { .. } | Change::Revived { .. } | Change::Dropped { .. } | Change::TakenBack { .. } => None,
    }
}

/// How many attempts the job has behind it, if the lease still counts.
fn held(batch: &Batch<'_>, lease: LeaseRef) -> Option<u32> {
    let memory = lock(&batch.shared.memory);
    memory.holds(lease).then(|| memory.get(lease.job).map_or(0, |live| live.attempts))
}
