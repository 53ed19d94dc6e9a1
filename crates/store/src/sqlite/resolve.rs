//! resolve: a person's word on an effect of unknown outcome, on record.

use super::rows::{self, DONE, NOT_DONE};
use super::writer::{Batch, lock};
use super::{audit, late};
use crate::resolve::decide;
use crate::{Resolution, ResolveAsk, Resolved};
use clinch_core::job::Word;
use rusqlite::{OptionalExtension, params};

pub(super) fn resolve(batch: &Batch<'_>, ask: &ResolveAsk) -> rusqlite::Result<Resolved> {
    let job = ask.effect.job;
    let row = batch
        .conn
        .prepare_cached(&format!("{} WHERE job.id = ?1", rows::JOB_ROW))?
        .query_row([job.number().cast_signed()], |row| rows::job_row(row, &batch.shared.sealer))
        .optional()?;
    let Some(row) = row else { return Ok(Resolved::NotFound) };
    // It ends, or begins again, in this very transaction: how it will stand is not known yet.
    let live = if batch.is_touched(job) { Some(Word::Running) } else { live(batch, ask) };
    let word = live.unwrap_or(row.word);
    let standing = match decide(ask, &rows::effects(batch.conn, job)?, word) {
        Ok(standing) => standing,
        Err(answer) => return Ok(answer),
    };
    let (state, (status, body)) = match ask.resolution {
        // Later steps may need the answer, where one came after all.
        Resolution::Done => (DONE, late::receipt(batch.conn, job, &ask.effect.step)?),
        Resolution::NotDone => (NOT_DONE, (None, None)),
    };
    let at = ask.record.at.as_micros();
    batch.conn.execute(
        "UPDATE effect SET state = ?3, changed_at = ?4, status = ?5, body = ?6
         WHERE job = ?1 AND name = ?2",
        params![job.number().cast_signed(), ask.effect.step, state, at, status, body],
    )?;
    audit::append(batch, &ask.act(), &ask.record)?;
    Ok(Resolved::Resolved(standing))
}

/// An unfinished job is known in memory.
fn live(batch: &Batch<'_>, ask: &ResolveAsk) -> Option<Word> {
    lock(&batch.shared.memory).get(ask.effect.job).map(|live| live.word())
}
