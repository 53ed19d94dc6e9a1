//! drop: a dead letter is given up by two people, stays as a tombstone, and may be taken back.

use super::audit;
use super::memory::Settled;
use super::rows::{self, DEAD, DROPPED};
use super::writer::Batch;
use crate::drop::{DropAsk, DropEnd, DropRow};
use crate::read::JobRow;
use clinch_core::death::Reason;
use clinch_core::drop::{self, ALONE_AFTER, Request, Verdict};
use clinch_core::job::Word;
use clinch_core::replay::Mark;
use rusqlite::{Connection, OptionalExtension, params};

fn job(ask: &DropAsk) -> i64 {
    ask.job.number().cast_signed()
}

/// `None`: it is not there, or is being changed in this very transaction.
fn found(batch: &mut Batch<'_>, ask: &DropAsk) -> rusqlite::Result<Option<JobRow>> {
    let row = batch
        .conn
        .prepare_cached(&format!("{} WHERE job.id = ?1", rows::JOB_ROW))?
        .query_row([job(ask)], |row| rows::job_row(row, &batch.shared.sealer))
        .optional()?;
    Ok(row.filter(|_| !batch.is_touched(ask.job)))
}

fn mark(batch: &Batch<'_>, row: &JobRow) -> rusqlite::Result<Mark> {
    Ok(Mark::of(row.replays, row.attempts, row.ended_at, row.reason, &rows::effects(batch.conn, row.id)?))
}

fn request(batch: &Batch<'_>, ask: &DropAsk) -> rusqlite::Result<Option<Request>> {
    let request = |row: &rusqlite::Row<'_>| {
        Ok(Request { at: rows::time(row, 0)?, actor: row.get(1)?, mark: Mark::from_number(row.get(2)?) })
    };
    let sql = "SELECT at, actor, mark FROM drop_ask WHERE job = ?1";
    batch.conn.prepare_cached(sql)?.query_row([job(ask)], request).optional()
}

fn forget(batch: &Batch<'_>, ask: &DropAsk) -> rusqlite::Result<()> {
    batch.conn.prepare_cached("DELETE FROM drop_ask WHERE job = ?1")?.execute([job(ask)])?;
    Ok(())
}

pub(super) fn ask(batch: &mut Batch<'_>, ask: &DropAsk) -> rusqlite::Result<DropEnd> {
    let Some(row) = found(batch, ask)? else { return Ok(DropEnd::NotFound) };
    if row.word != Word::Dead {
        return Ok(DropEnd::Not { state: row.word });
    }
    let mark = mark(batch, &row)?;
    // A request for what it was before is none for what it is.
    if let Some(before) = request(batch, ask)?.filter(|before| before.mark == mark) {
        return Ok(DropEnd::AskedBefore { by: before.actor, alone_from: before.at + ALONE_AFTER });
    }
    batch.conn.execute(
        "INSERT OR REPLACE INTO drop_ask (job, at, mark, actor, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![job(ask), ask.record.at.as_micros(), mark.number(), ask.record.actor, ask.record.reason],
    )?;
    audit::append(batch, &ask.asked(), &ask.record)?;
    Ok(DropEnd::Asked { by: ask.record.actor.clone(), alone_from: ask.record.at + ALONE_AFTER })
}

pub(super) fn confirm(batch: &mut Batch<'_>, ask: &DropAsk) -> rusqlite::Result<DropEnd> {
    let Some(row) = found(batch, ask)? else { return Ok(DropEnd::NotFound) };
    if row.word != Word::Dead {
        return Ok(DropEnd::Not { state: row.word });
    }
    let Some(request) = request(batch, ask)? else { return Ok(DropEnd::NotAsked) };
    match drop::confirm(&request, &ask.record.actor, mark(batch, &row)?, ask.record.at) {
        Verdict::Alone { from } => return Ok(DropEnd::AskedBefore { by: request.actor, alone_from: from }),
        Verdict::Changed => {
            forget(batch, ask)?;
            return Ok(DropEnd::Changed);
        }
        Verdict::Drop => {}
    }
    forget(batch, ask)?;
    batch.touch(ask.job);
    let place = batch
        .conn
        .prepare_cached("UPDATE job SET state = ?2, ended_at = ?3 WHERE id = ?1 RETURNING lane, ord, priority")?
        .query_row(params![job(ask), DROPPED, ask.record.at.as_micros()], |row| rows::place(row, 0))?;
    audit::append(batch, &ask.dropped(&row, &request.actor), &ask.record)?;
    let flow = row.flow.clone();
    batch.changes.push(Settled::DeadForgotten {
        job: ask.job,
        flow: row.flow,
        queue: row.queue,
        lane: place.lane,
        reason: row.reason.unwrap_or(Reason::Internal),
    });
    Ok(DropEnd::Dropped { flow })
}

pub(super) fn take_back(batch: &mut Batch<'_>, ask: &DropAsk) -> rusqlite::Result<DropEnd> {
    let Some(row) = found(batch, ask)? else { return Ok(DropEnd::NotFound) };
    if let Some(request) = request(batch, ask)? {
        forget(batch, ask)?;
        audit::append(batch, &ask.withdrawn(&request.actor), &ask.record)?;
        return Ok(DropEnd::Withdrawn);
    }
    if row.word != Word::Dropped {
        return Ok(DropEnd::Not { state: row.word });
    }
    batch.touch(ask.job);
    // Others of its group may have passed it: from here on it keeps its place among them, and stops nobody.
    batch
        .conn
        .prepare_cached(
            "UPDATE job SET state = ?2, ended_at = ?3, ord = CASE ord WHEN 2 THEN 1 ELSE ord END WHERE id = ?1",
        )?
        .execute(params![job(ask), DEAD, ask.record.at.as_micros()])?;
    audit::append(batch, &ask.taken_back(), &ask.record)?;
    let reason = row.reason.unwrap_or(Reason::Internal);
    batch.changes.push(Settled::DeadAgain { flow: row.flow, reason });
    Ok(DropEnd::TakenBack)
}

pub(super) fn all(conn: &Connection, limit: usize) -> rusqlite::Result<Vec<DropRow>> {
    conn.prepare_cached(
        "SELECT drop_ask.job, flow.text, drop_ask.at, drop_ask.actor, drop_ask.reason
         FROM drop_ask JOIN job ON job.id = drop_ask.job JOIN name AS flow ON flow.id = job.flow
         WHERE job.state = 3 ORDER BY drop_ask.at, drop_ask.job LIMIT ?1",
    )?
    .query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
        Ok(DropRow {
            job: rows::job_id(row, 0)?,
            flow: rows::name(row, 1)?,
            at: rows::time(row, 2)?,
            actor: row.get(3)?,
            reason: row.get(4)?,
        })
    })?
    .collect()
}
