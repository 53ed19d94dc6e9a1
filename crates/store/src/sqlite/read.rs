//! The questions, asked on connections of their own: a reader never waits for the writer, nor the writer for it.

use super::memory::Phase;
use super::writer::{Shared, lock};
use super::{Readers, audit, late, rows};
use crate::read::*;
use crate::seal::Sealer;
use crate::{Result, StoreError, VersionId};
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use std::fmt::Write;
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
fn mark_running(shared: &Shared, found: &mut [JobRow]) {
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

pub(super) async fn jobs(readers: &Readers, shared: &Shared, filter: JobFilter) -> Result<JobPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let asked = filter.clone();
    let sealer = shared.sealer.clone();
    let (mut found, mut more) = match filter.word {
        Some(Word::Running) => {
            let running = lock(&shared.memory).running();
            let asking = move |conn: &Connection| select_running(conn, &sealer, &running, &asked, limit + 1);
            (readers.ask(asking).await?, false)
        }
        // A row does not say whether its job is running or put off: as many more are read as may have to be left out.
        Some(Word::Queued | Word::Retrying | Word::Waiting) => {
            let rows_max = limit + 1 + lock(&shared.memory).len();
            readers.ask(move |conn| select_jobs(conn, &sealer, &asked, rows_max)).await?
        }
        _ => readers.ask(move |conn| select_jobs(conn, &sealer, &asked, limit + 1)).await?,
    };
    mark_running(shared, &mut found);
    found.retain(|row| fits(row, &filter));
    more |= found.len() > limit;
    found.truncate(limit);
    Ok(JobPage { rows: found, more })
}

fn select_running(
    conn: &Connection,
    sealer: &Sealer,
    running: &[JobId],
    filter: &JobFilter,
    rows_max: usize,
) -> rusqlite::Result<Vec<JobRow>> {
    let any_word = JobFilter { word: None, ..filter.clone() };
    let mut row = conn.prepare_cached(&format!("{} WHERE job.id = ?1", rows::JOB_ROW))?;
    let mut found = Vec::new();
    for id in running {
        if found.len() == rows_max {
            break;
        }
        let row = row.query_row([id.number().cast_signed()], |row| rows::job_row(row, sealer)).optional()?;
        found.extend(row.filter(|row| fits(row, &any_word)));
    }
    Ok(found)
}

fn fits(row: &JobRow, filter: &JobFilter) -> bool {
    filter.word.is_none_or(|word| word == row.word)
        && filter.flow.as_ref().is_none_or(|flow| **flow == *row.flow)
        && filter.queue.as_ref().is_none_or(|queue| **queue == *row.queue)
        && filter.reason.is_none_or(|reason| Some(reason) == row.reason)
        && filter.before.is_none_or(|before| row.id < before)
}

/// The newest first; and whether older rows exist that were not looked at.
fn select_jobs(
    conn: &Connection,
    sealer: &Sealer,
    filter: &JobFilter,
    rows_max: usize,
) -> rusqlite::Result<(Vec<JobRow>, bool)> {
    let state = filter.word.map(|word| match word {
        Word::Queued | Word::Running | Word::Waiting | Word::Retrying => rows::READY,
        Word::Success => rows::SUCCESS,
        Word::Noop => rows::NOOP,
        Word::Dead => rows::DEAD,
        Word::Dropped => rows::DROPPED,
    });
    let failed = match filter.word {
        Some(Word::Queued) => " AND job.failures = 0",
        Some(Word::Retrying) => " AND job.failures > 0",
        _ => "",
    };
    let before = filter.before.map_or(i64::MAX, |id| id.number().cast_signed());
    // Dead ones have an index of their own; for the rest the look back is bounded.
    let floor: i64 = match state {
        Some(rows::DEAD) => 0,
        _ => conn
            .prepare_cached("SELECT id FROM job WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2")?
            .query_row(params![before, SCAN_ROWS_MAX as i64], |row| row.get(0))
            .optional()?
            .unwrap_or(0),
    };
    let mut sql = format!("{} WHERE job.id < ?1 AND job.id >= ?2", rows::JOB_ROW);
    if let Some(state) = state {
        let _ = write!(sql, " AND job.state = {state}");
    }
    if let Some(reason) = filter.reason {
        let _ = write!(sql, " AND job.reason = {}", rows::reason_number(reason));
    }
    sql.push_str(failed);
    sql.push_str(" AND (?3 IS NULL OR flow.text = ?3) AND (?4 IS NULL OR queue.text = ?4)");
    sql.push_str(" ORDER BY job.id DESC LIMIT ?5");
    let found = conn
        .prepare_cached(&sql)?
        .query_map(params![before, floor, filter.flow, filter.queue, rows_max as i64], |row| {
            rows::job_row(row, sealer)
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    Ok((found, floor > 0))
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

pub(super) async fn latencies(readers: &Readers, since: Timestamp) -> Result<Latencies> {
    readers
        .ask(move |conn| {
            let mut found = Latencies::default();
            let mut rows = conn.prepare_cached(
                "SELECT event.received_at, job.first_attempt_at, job.ended_at
                 FROM job JOIN event ON event.id = job.event
                 WHERE job.id >= ?1 AND job.ended_at IS NOT NULL ORDER BY job.id DESC LIMIT ?2",
            )?;
            let first = JobId::first_at(since).number().cast_signed();
            let mut rows = rows.query(params![first, LATENCY_JOBS_MAX as i64 + 1])?;
            while let Some(row) = rows.next()? {
                if found.end_to_end.len() == LATENCY_JOBS_MAX {
                    found.cut = true;
                    break;
                }
                let received = rows::time(row, 0)?;
                let ended = rows::time(row, 2)?;
                let began = rows::maybe_time(row, 1)?.unwrap_or(ended);
                found.wait.push(began.since(received));
                found.run.push(ended.since(began));
                found.end_to_end.push(ended.since(received));
            }
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

pub(super) fn oldest_dead(conn: &Connection) -> rusqlite::Result<Vec<(Arc<str>, Timestamp)>> {
    conn.prepare_cached(
        "SELECT flow.text, min(job.ended_at) FROM job JOIN name AS flow ON flow.id = job.flow
         WHERE job.state = 3 GROUP BY job.flow",
    )?
    .query_map([], |row| Ok((Arc::from(row.get_ref(0)?.as_str()?), rows::time(row, 1)?)))?
    .collect()
}

pub(super) fn read_error(error: rusqlite::Error) -> StoreError {
    StoreError::Unavailable(format!("reading failed: {error}"))
}
