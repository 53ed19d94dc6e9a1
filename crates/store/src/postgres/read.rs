//! The questions, asked on lines of their own: a long list never keeps a verb waiting.

use super::pool::Pool;
use super::{Fault, audit, lanes, late, rows};
use crate::VersionId;
use crate::read::*;
use crate::seal::Sealer;
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::{Waits, Word};
use clinch_core::key::DedupKey;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

type Answer<T> = Result<T, Fault>;

pub(super) async fn job(eyes: &Arc<Pool>, sealer: &Sealer, id: JobId) -> Answer<Option<JobStory>> {
    let job = id.number().cast_signed();
    let mut line = eyes.line().await?;
    line.begin_reading().await?;
    let found = line.query(&format!("{} WHERE job.id = $1", rows::JOB_ROW), &[&job]).await?;
    let Some(row) = rows::job_rows(&found, sealer)?.pop() else {
        line.commit().await?;
        return Ok(None);
    };
    let event = row.event.number().cast_signed();
    let events =
        line.query("SELECT status, expires_at, key IS NOT NULL, payload FROM event WHERE id = $1", &[&event]).await?;
    let Some(told) = events.first() else {
        line.commit().await?;
        return Ok(None);
    };
    let audit = audit::of_job(&mut line, job).await?;
    let (priority, behind) = lanes::place(&mut line, job).await?;
    let mut effects = rows::effects(&mut line, &[job]).await?.remove(&id).unwrap_or_default();
    // An answer that does not open is shown as none; the job's next attempt says why.
    let _ = sealer.open_effects(id, &mut effects);
    let mut late = late::of(&mut line, id).await?;
    sealer.open_late(id, &mut late);
    let attempts = rows::attempts(&mut line, job).await?;
    let story = JobStory {
        priority,
        behind,
        attempts: attempts.into_iter().map(|attempt| attempt.open(sealer, id)).collect(),
        effects,
        late,
        deliveries: rows::deliveries(&mut line, event).await?,
        audit,
        answer_status: u16::try_from(told.try_get::<_, i32>(0)?).unwrap_or_default(),
        key_until: if told.try_get(2)? { Some(rows::time(told, 1)?) } else { None },
        payload: sealer.open_payload(row.event, told.try_get(3)?),
        row,
    };
    line.commit().await?;
    Ok(Some(story))
}

pub(super) async fn jobs_of(eyes: &Arc<Pool>, sealer: &Sealer, event: EventId) -> Answer<Vec<JobRow>> {
    let sql = format!(
        "{} WHERE job.event = $1 AND job.id > $1
             AND job.id <= $1 + (SELECT jobs FROM event WHERE event.id = $1) ORDER BY job.id",
        rows::JOB_ROW
    );
    let found = eyes.ask(&sql, &[&event.number().cast_signed()]).await?;
    Ok(rows::job_rows(&found, sealer)?)
}

pub(super) async fn source_of(eyes: &Arc<Pool>, event: EventId) -> Answer<Option<String>> {
    let found = eyes.ask("SELECT source FROM event WHERE id = $1", &[&event.number().cast_signed()]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?)
}

/// The end of its last attempt before somebody replayed it.
pub(super) async fn died_at(eyes: &Arc<Pool>, job: JobId) -> Answer<Option<Timestamp>> {
    let sql = "SELECT max(ended_at) FROM attempt WHERE job = $1
         AND ended_at <= (SELECT max(at) FROM audit WHERE job = $1 AND action = 'job.replay')";
    let found = eyes.ask(sql, &[&job.number().cast_signed()]).await?;
    let died_at = found.first().map(|row| row.try_get::<_, Option<i64>>(0)).transpose()?;
    Ok(died_at.flatten().map(Timestamp::from_micros))
}

pub(super) async fn oldest_dead(eyes: &Arc<Pool>, queues: &[String], most: usize) -> Answer<Vec<JobId>> {
    let queues: Vec<&str> = queues.iter().map(String::as_str).collect();
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (unknown, forgotten) = (rows::reason_number(Reason::UnknownOutcome), rows::reason_number(Reason::Forgotten));
    let found = eyes
        .ask(
            "SELECT id FROM job WHERE slot = 0 AND state = 3 AND reason NOT IN ($2, $4) AND queue = ANY($1)
             ORDER BY ended_at, id LIMIT $3",
            &[&queues, &unknown, &most, &forgotten],
        )
        .await?;
    Ok(found.iter().map(|row| rows::job_id(row, 0)).collect::<Result<_, _>>()?)
}

pub(super) async fn dead_groups(eyes: &Arc<Pool>) -> Answer<Vec<DeadGroup>> {
    let found = eyes
        .ask(
            "SELECT flow, reason, count(*), min(ended_at), max(ended_at), max(id)
             FROM job WHERE slot = 0 AND state = 3 GROUP BY flow, reason ORDER BY count(*) DESC",
            &[],
        )
        .await?;
    let mut groups = Vec::with_capacity(found.len());
    for row in &found {
        groups.push(DeadGroup {
            flow: rows::name(row, 0)?,
            reason: rows::reason(row.try_get::<_, Option<i16>>(1)?.unwrap_or_default()),
            jobs: rows::big_count(row, 2)?,
            first_at: rows::time(row, 3)?,
            last_at: rows::time(row, 4)?,
            example: rows::job_id(row, 5)?,
        });
    }
    Ok(groups)
}

pub(super) async fn key(eyes: &Arc<Pool>, key: DedupKey) -> Answer<Option<EventId>> {
    // The row of a key may outlive its jobs by a little.
    let found = eyes
        .ask(
            "SELECT event FROM dedup WHERE key = $1
                 AND EXISTS (SELECT 1 FROM job WHERE job.id > dedup.event AND job.id <= dedup.event + dedup.jobs)
             ORDER BY bucket DESC LIMIT 1",
            &[&&key.as_bytes()[..]],
        )
        .await?;
    Ok(found.first().map(|row| rows::event_id(row, 0)).transpose()?)
}

pub(super) async fn latencies(eyes: &Arc<Pool>, since: Timestamp, most: usize) -> Answer<Latencies> {
    let most = most.min(LATENCY_JOBS_MAX);
    let first = JobId::first_at(since).number().cast_signed();
    let rows = eyes
        .ask(
            "SELECT received_at, first_attempt_at, ended_at, attempts FROM job
             WHERE slot = 0 AND id >= $1 ORDER BY id DESC LIMIT $2",
            &[&first, &(most as i64 + 1)],
        )
        .await?;
    let mut found = Latencies { cut: rows.len() > most, ..Latencies::default() };
    for row in rows.iter().take(most) {
        let (received, ended) = (rows::time(row, 0)?, rows::time(row, 2)?);
        let began = rows::maybe_time(row, 1)?.unwrap_or(ended);
        found.wait.push(began.since(received));
        found.run.push(ended.since(began));
        found.end_to_end.push(ended.since(received));
        found.attempts.push(row.try_get::<_, i32>(3)?.cast_unsigned());
    }
    found.attempts.sort_unstable();
    for stage in [&mut found.wait, &mut found.run, &mut found.end_to_end] {
        stage.sort_unstable();
    }
    Ok(found)
}

pub(super) async fn version_files(eyes: &Arc<Pool>, version: VersionId) -> Answer<Option<String>> {
    let found = eyes.ask("SELECT files FROM version WHERE id = $1", &[&version.0]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?)
}

pub(super) async fn versions(eyes: &Arc<Pool>, limit: usize) -> Answer<Vec<VersionRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = eyes.ask("SELECT id, hash, at FROM version ORDER BY id DESC LIMIT $1", &[&limit]).await?;
    let told = |row: &Row| -> Answer<VersionRow> {
        let hash: &[u8] = row.try_get(1)?;
        Ok(VersionRow {
            id: VersionId(row.try_get(0)?),
            hash: hash.try_into().unwrap_or_default(),
            at: Timestamp::from_micros(row.try_get(2)?),
        })
    };
    rows.iter().map(told).collect()
}

pub(super) async fn unfinished(eyes: &Arc<Pool>) -> Answer<Vec<(Arc<str>, VersionId, u64)>> {
    let sql = "SELECT flow, version, count(*) FROM job WHERE slot BETWEEN 1 AND 3 GROUP BY flow, version";
    let rows = eyes.ask(sql, &[]).await?;
    let told =
        |row: &Row| -> Answer<_> { Ok((rows::name(row, 0)?, VersionId(row.try_get(1)?), rows::big_count(row, 2)?)) };
    rows.iter().map(told).collect()
}

/// Counts that were asked for a moment ago are told again.
pub(super) const COUNTS_KEPT: Duration = Duration::from_secs(1);

const LIVE: &str = "
    SELECT flow, CASE WHEN state = 4 THEN state ELSE 0::smallint END AS live, state <> 4 AND failures > 0 AS is_failed,
           count(*), min(received_at), CASE WHEN state <> 4 THEN waits END AS waiting
    FROM job WHERE slot BETWEEN 1 AND 3 GROUP BY flow, live, is_failed, waiting";

const DEAD: &str =
    "SELECT flow, reason, count(*), min(ended_at) FROM job WHERE slot = 0 AND state = 3 GROUP BY flow, reason";

pub(super) async fn counts(eyes: &Arc<Pool>) -> Answer<Counts> {
    let (live, dead) = eyes.line().await?.query_both((LIVE, &[]), (DEAD, &[])).await?;
    let mut counts = Counts::default();
    for row in &live {
        let flow = rows::name(row, 0)?;
        let failures = u32::from(row.try_get::<_, bool>(2)?);
        let waits = row.try_get::<_, Option<i16>>(5)?.and_then(Waits::from_number);
        let (word, jobs) = (rows::word(row.try_get(1)?, failures, waits), rows::big_count(row, 3)?);
        match counts.live.iter_mut().find(|(of, as_word, _)| *of == flow && *as_word == word) {
            Some((.., sum)) => *sum += jobs,
            None => counts.live.push((flow.clone(), word, jobs)),
        }
        if let Some(waits) = waits {
            keep_waiting(&mut counts.waiting, &flow, waits, jobs, rows::time(row, 4)?);
        }
        keep_first(&mut counts.oldest, flow, word, rows::time(row, 4)?);
    }
    for row in &dead {
        let flow = rows::name(row, 0)?;
        let reason = rows::reason(row.try_get::<_, Option<i16>>(1)?.unwrap_or_default());
        counts.dead.push((flow.clone(), reason, rows::big_count(row, 2)?));
        if let Some(ended_at) = rows::maybe_time(row, 3)? {
            keep_oldest(&mut counts.oldest_dead, flow, ended_at);
        }
    }
    Ok(counts)
}

fn keep_waiting(waiting: &mut Vec<Waiting>, flow: &Arc<str>, waits: Waits, jobs: u64, since: Timestamp) {
    match waiting.iter_mut().find(|other| other.flow == *flow && other.waits == waits) {
        Some(known) => (known.jobs, known.oldest) = (known.jobs + jobs, known.oldest.min(Some(since))),
        None => waiting.push(Waiting { flow: flow.clone(), waits, jobs, oldest: Some(since) }),
    }
}

fn keep_first(oldest: &mut Vec<(Arc<str>, Word, Timestamp)>, flow: Arc<str>, word: Word, at: Timestamp) {
    match oldest.iter_mut().find(|(other, as_word, _)| *other == flow && *as_word == word) {
        Some((.., first)) => *first = at.min(*first),
        None => oldest.push((flow, word, at)),
    }
}

fn keep_oldest(oldest: &mut Vec<(Arc<str>, Timestamp)>, flow: Arc<str>, at: Timestamp) {
    match oldest.iter_mut().find(|(other, _)| *other == flow) {
        Some((_, first)) => *first = at.min(*first),
        None => oldest.push((flow, at)),
    }
}
