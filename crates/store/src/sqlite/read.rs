//! The questions, asked on connections of their own: a reader never waits for the writer, nor the writer for it.

use super::memory::Phase;
use super::writer::{Shared, lock};
use super::{Readers, audit, late, rows};
use crate::read::*;
use crate::seal::Sealer;
use crate::{Result, StoreError, VersionId};
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

pub(super) async fn job(readers: &Readers, shared: &Shared, id: JobId) -> Result<Option<JobStory>> {
    let sealer = shared.sealer.clone();
    let story = readers.ask(move |conn| story(conn, &sealer, id)).await?;
    Ok(story.map(|mut story| {
        mark_running(shared, std::slice::from_mut(&mut story.row));
        story.behind = lock(&shared.memory).behind(id);
        story
    }))
}

fn story(conn: &Connection, sealer: &Sealer, id: JobId) -> rusqlite::Result<Option<JobStory>> {
    let row = conn
        .prepare_cached(&format!("{} WHERE job.id = ?1", rows::JOB_ROW))?
        .query_row([id.number().cast_signed()], |row| rows::job_row(row, sealer))
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let (answer_status, expires_at, has_key): (u16, i64, bool) = conn.query_row(
        "SELECT status, expires_at, key IS NOT NULL FROM event WHERE id = ?1",
        [row.event.number().cast_signed()],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let priority =
        conn.query_row("SELECT priority FROM job WHERE id = ?1", [id.number().cast_signed()], |row| row.get(0))?;
    let audit = audit::of_job(conn, id)?;
    let mut effects = rows::effects(conn, id)?;
    // An answer that does not open is shown as none; the job's next attempt says why.
    let _ = sealer.open_effects(id, &mut effects);
    let mut late = late::of(conn, id)?;
    sealer.open_late(id, &mut late);
    Ok(Some(JobStory {
        attempts: rows::attempts(conn, id)?.into_iter().map(|attempt| attempt.open(sealer, id)).collect(),
        effects,
        late,
        deliveries: rows::deliveries(conn, row.event)?,
        payload: rows::payload(conn, sealer, row.event)?,
        audit,
        answer_status,
        priority,
        behind: None,
        key_until: has_key.then(|| Timestamp::from_micros(expires_at)),
        row,
    }))
}

pub(super) async fn jobs_of(readers: &Readers, shared: &Shared, event: EventId) -> Result<Vec<JobRow>> {
    let sealer = shared.sealer.clone();
    let mut found = readers
        .ask(move |conn| {
            conn.prepare_cached(&format!(
                "{} WHERE job.id > ?1 AND job.id <= ?1 + event.jobs AND job.event = ?1",
                rows::JOB_ROW
            ))?
            .query_map([event.number().cast_signed()], |row| rows::job_row(row, &sealer))?
            .collect::<rusqlite::Result<Vec<_>>>()
        })
        .await?;
    mark_running(shared, &mut found);
    Ok(found)
}

/// Running is known in memory only.
pub(super) fn mark_running(shared: &Shared, found: &mut [JobRow]) {
    let memory = lock(&shared.memory);
    for row in found {
        if let Some(live) = memory.get(row.id) {
            row.word = live.word();
            match live.phase {
                Phase::Running { .. } => row.run_at = None,
                Phase::Ready { run_at, waits } => (row.run_at, row.waits) = (Some(run_at), waits),
            }
        }
    }
}

pub(super) fn source_of(conn: &Connection, event: EventId) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT name.text FROM event JOIN name ON name.id = event.source WHERE event.id = ?1";
    conn.prepare_cached(sql)?.query_row([event.number().cast_signed()], |row| row.get(0)).optional()
}

/// The end of its last attempt before somebody replayed it.
pub(super) fn died_at(conn: &Connection, job: JobId) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT max(ended_at) FROM attempt WHERE job = ?1
         AND ended_at <= (SELECT max(at) FROM audit WHERE job = ?1 AND action = 'job.replay')";
    conn.prepare_cached(sql)?.query_row([job.number().cast_signed()], |row| rows::maybe_time(row, 0))
}

pub(super) fn oldest_dead_of(conn: &Connection, queues: &[String], most: usize) -> rusqlite::Result<Vec<JobId>> {
    let queues = serde_json::to_string(queues).expect("texts are JSON");
    conn.prepare_cached(
        "SELECT job.id FROM job JOIN name AS queue ON queue.id = job.queue
         WHERE job.state = 3 AND job.reason NOT IN (?2, ?4) AND queue.text IN (SELECT value FROM json_each(?1))
         ORDER BY job.ended_at, job.id LIMIT ?3",
    )?
    .query_map(
        params![
            queues,
            rows::reason_number(Reason::UnknownOutcome),
            i64::try_from(most).unwrap_or(i64::MAX),
            rows::reason_number(Reason::Forgotten)
        ],
        |row| Ok(JobId::from_number(row.get::<_, i64>(0)?.cast_unsigned())),
    )?
    .collect()
}

pub(super) async fn dead_groups(readers: &Readers) -> Result<Vec<DeadGroup>> {
    readers
        .ask(|conn| {
            conn.prepare_cached(
                "SELECT flow.text, job.reason, count(*), min(job.ended_at), max(job.ended_at), max(job.id)
                 FROM job JOIN name AS flow ON flow.id = job.flow WHERE job.state = 3
                 GROUP BY job.flow, job.reason ORDER BY count(*) DESC",
            )?
            .query_map([], |row| {
                Ok(DeadGroup {
                    flow: Arc::from(row.get_ref(0)?.as_str()?),
                    reason: rows::reason(row.get(1)?),
                    jobs: row.get::<_, i64>(2)?.cast_unsigned(),
                    first_at: rows::time(row, 3)?,
                    last_at: rows::time(row, 4)?,
                    example: JobId::from_number(row.get::<_, i64>(5)?.cast_unsigned()),
                })
            })?
            .collect()
        })
        .await
}

pub(super) async fn latencies(readers: &Readers, since: Timestamp, most: usize) -> Result<Latencies> {
    let most = most.min(LATENCY_JOBS_MAX);
    readers
        .ask(move |conn| {
            let mut found = Latencies::default();
            let mut rows = conn.prepare_cached(
                "SELECT event.received_at, job.first_attempt_at, job.ended_at, job.attempts
                 FROM job JOIN event ON event.id = job.event
                 WHERE job.id >= ?1 AND job.ended_at IS NOT NULL ORDER BY job.id DESC LIMIT ?2",
            )?;
            let first = JobId::first_at(since).number().cast_signed();
            let mut rows = rows.query(params![first, most as i64 + 1])?;
            while let Some(row) = rows.next()? {
                if found.end_to_end.len() == most {
                    found.cut = true;
                    break;
                }
                let received = rows::time(row, 0)?;
                let ended = rows::time(row, 2)?;
                let began = rows::maybe_time(row, 1)?.unwrap_or(ended);
                found.wait.push(began.since(received));
                found.run.push(ended.since(began));
                found.end_to_end.push(ended.since(received));
                found.attempts.push(row.get(3)?);
            }
            found.attempts.sort_unstable();
            for stage in [&mut found.wait, &mut found.run, &mut found.end_to_end] {
                stage.sort_unstable();
            }
            Ok(found)
        })
        .await
}

pub(super) async fn version_files(readers: &Readers, version: VersionId) -> Result<Option<String>> {
    readers
        .ask(move |conn| {
            conn.query_row("SELECT files FROM version WHERE id = ?1", [version.0], |row| row.get(0)).optional()
        })
        .await
}

pub(super) async fn versions(readers: &Readers, limit: usize) -> Result<Vec<VersionRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    readers
        .ask(move |conn| {
            conn.prepare_cached("SELECT id, hash, at FROM version ORDER BY id DESC LIMIT ?1")?
                .query_map([limit], |row| {
                    Ok(VersionRow { id: VersionId(row.get(0)?), hash: row.get(1)?, at: rows::time(row, 2)? })
                })?
                .collect()
        })
        .await
}

pub(super) fn oldest_dead(conn: &Connection) -> rusqlite::Result<Vec<(Arc<str>, Timestamp)>> {
    // One look per name: a minimum over groups would read every dead letter.
    conn.prepare_cached(
        "SELECT flow.text, dead.ended_at FROM name AS flow JOIN job AS dead ON dead.id = (
             SELECT id FROM job INDEXED BY job_dead_since
             WHERE job.state = 3 AND job.flow = flow.id ORDER BY job.ended_at LIMIT 1)",
    )?
    .query_map([], |row| Ok((Arc::from(row.get_ref(0)?.as_str()?), rows::time(row, 1)?)))?
    .collect()
}

pub(super) fn read_error(error: rusqlite::Error) -> StoreError {
    StoreError::Unavailable(format!("reading failed: {error}"))
}
