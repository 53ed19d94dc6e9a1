//! set_once: keys that steps set, each with the line in the ledger that says so.

use super::ledger::holds;
use super::memory::Settled;
use super::rows::{self, DONE, class_number};
use super::writer::Batch;
use crate::{LeaseRef, SetOnce};
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use rusqlite::params;

/// Results are given and come back as they are stored.
pub(super) fn set_once(batch: &mut Batch<'_>, lease: LeaseRef, ask: &SetOnce) -> rusqlite::Result<Option<Receipt>> {
    if !holds(batch, lease) {
        return Ok(None);
    }
    let past = rows::effects(batch.conn, lease.job)?.into_iter().find(|effect| *effect.name == *ask.step);
    if let Some(EffectState::Done(receipt)) = past.map(|past| past.state) {
        return Ok(Some(receipt));
    }
    let set = batch
        .conn
        .prepare_cached(
            "INSERT INTO once (key, until) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET until = excluded.until WHERE until <= ?3",
        )?
        .execute(params![ask.key.as_bytes(), ask.until.as_micros(), ask.at.as_micros()])?;
    let receipt = if set > 0 { &ask.was_free } else { &ask.was_taken };
    batch
        .conn
        .prepare_cached(
            "INSERT INTO effect (job, name, class, state, first_intended_at, changed_at, sends, fence, status, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, ?6, ?7, ?8)
             ON CONFLICT (job, name) DO UPDATE SET
                 state = excluded.state, class = excluded.class, changed_at = excluded.changed_at, sends = sends + 1,
                 fence = excluded.fence, status = excluded.status, body = excluded.body",
        )?
        .execute(params![
            lease.job.number().cast_signed(),
            &*ask.step,
            class_number(Idempotency::Natural),
            DONE,
            ask.at.as_micros(),
            lease.fence.0.cast_signed(),
            receipt.status,
            &receipt.body[..],
        ])?;
    batch.changes.push(Settled::Begun { job: lease.job });
    Ok(Some(receipt.clone()))
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "DELETE FROM once WHERE key IN (SELECT key FROM once WHERE until <= ?1 LIMIT ?2)";
