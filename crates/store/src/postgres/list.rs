//! Jobs and events as lists: the newest first, looked at backwards and no further than a bound, which the answer tells.

use super::param::Param;
use super::pool::{Line, Pool};
use super::{Fault, rows};
use crate::read::{Again, COUNT_MAX, EventFilter, EventPage, EventRow, JobFilter, JobPage, LIST_ROWS_MAX};
use crate::read::{SCAN_COSTLY_ROWS_MAX, SCAN_ROWS_MAX};
use crate::seal::Sealer;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::payload::TraceId;
use clinch_core::subject::Handle;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

type Answer<T> = Result<T, Fault>;

pub(super) async fn jobs(eyes: &Arc<Pool>, sealer: &Sealer, filter: &JobFilter) -> Answer<JobPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (mut first, until) = filter.ids();
    let (mut looked_at, mut is_cut) = (0, false);
    let mut line = eyes.line().await?;
    line.begin_reading().await?;
    if let Some(most) = filter.scan_max() {
        let found = look_back(&mut line, "job", "id", rare(filter.word), (first, until), most).await?;
        (first, looked_at, is_cut) = (found.first, found.looked_at, found.is_cut);
    }
    let asked = conditions(filter, first, until);
    let most = asked.values.len() + 1;
    let select = format!("{} WHERE true{} ORDER BY job.id DESC LIMIT ${most}", rows::JOB_ROW, asked.sql);
    let found = line.query(&select, &asked.params(&(limit as i64 + 1))).await?;
    let mut rows = rows::job_rows(&found, sealer)?;
    let mut matches = None;
    if filter.counts {
        let count = format!("SELECT count(*) FROM (SELECT 1 FROM job WHERE true{} LIMIT ${most}) AS found", asked.sql);
        let counted = line.query(&count, &asked.params(&(COUNT_MAX.cast_signed() + 1))).await?;
        matches = counted.first().map(|row| rows::big_count(row, 0)).transpose()?;
    }
    line.commit().await?;
    let is_full = rows.len() > limit;
    rows.truncate(limit);
    let floor = is_cut.then(|| JobId::from_number(first.cast_unsigned()));
    let next = if is_full { rows.last().map(|row| row.id) } else { floor };
    Ok(JobPage { more: next.is_some(), next, looked_at: looked_at.max(rows.len() as u64), matches, rows })
}

/// What must be true of a row, and what it is held against.
#[derive(Default)]
struct Conditions {
    sql: String,
    values: Vec<Box<dyn Param + Send + Sync>>,
}

impl Conditions {
    fn add(&mut self, sql: &str, value: impl Param + Send + Sync + 'static) {
        self.values.push(Box::new(value));
        self.sql.push_str(" AND ");
        self.sql.push_str(&sql.replace('?', &format!("${}", self.values.len())));
    }

    /// With how many rows there may be, at most.
    fn params<'a>(&'a self, most: &'a i64) -> Vec<&'a (dyn Param + Sync)> {
        let values = self.values.iter().map(|value| &**value as &(dyn Param + Sync));
        values.chain([most as &(dyn Param + Sync)]).collect()
    }
}

fn conditions(filter: &JobFilter, first: i64, until: i64) -> Conditions {
    let mut all = Conditions::default();
    all.add("job.id >= ?", first);
    all.add("job.id < ?", until);
    all.sql.push_str(filter.word.map_or("", has_word));
    if let Some(jobs) = &filter.jobs {
        let jobs: Vec<i64> = jobs.iter().map(|job| job.number().cast_signed()).collect();
        all.add("job.id = ANY(?)", jobs);
    }
    if let Some(reason) = filter.reason {
        all.add("job.reason = ?", rows::reason_number(reason));
    }
    let of_event = "EXISTS (SELECT 1 FROM event WHERE event.id = job.event AND event.source = ?)";
    for (sql, name) in [("job.flow = ?", &filter.flow), ("job.queue = ?", &filter.queue), (of_event, &filter.source)] {
        if let Some(name) = name {
            all.add(sql, rows::text(name).into_owned());
        }
    }
    if filter.attempts_min > 0 {
        all.add("job.attempts >= ?", i32::try_from(filter.attempts_min).unwrap_or(i32::MAX));
    }
    if let Some(most) = filter.attempts_max {
        all.add("job.attempts <= ?", i32::try_from(most).unwrap_or(i32::MAX));
    }
    let (since, before) = filter.ended.micros();
    if since > i64::MIN {
        all.add("job.ended_at >= ?", since);
    }
    if before < i64::MAX {
        all.add("job.ended_at < ?", before);
    }
    if let Some(steps) = &filter.steps {
        let steps: Vec<String> = steps.iter().map(|step| rows::text(step).into_owned()).collect();
        // `send[3]` is the step `send`, of one item of a list.
        all.add(
            "EXISTS (SELECT 1 FROM effect WHERE effect.job = job.id AND split_part(effect.name, '[', 1) = ANY(?))",
            steps,
        );
    }
    all
}

/// What is rare has an index of its own, and what is not finished is in a part of its own. Nothing is asked that would make it look
/// into the rows.
fn rare(word: Option<Word>) -> &'static str {
    match word {
        Some(Word::Dead) => " AND state = 3",
        Some(Word::Dropped) => " AND state = 6",
        Some(Word::Running) => " AND slot BETWEEN 1 AND 3 AND state = 4",
        Some(Word::Queued | Word::Retrying | Word::Waiting) => " AND slot BETWEEN 1 AND 3",
        Some(Word::Success | Word::Noop) | None => "",
    }
}

fn has_word(word: Word) -> &'static str {
    match word {
        Word::Queued => {
            " AND job.slot BETWEEN 1 AND 3 AND job.state IN (0, 5) AND job.waits IS NULL AND job.failures = 0"
        }
        Word::Retrying => {
            " AND job.slot BETWEEN 1 AND 3 AND job.state IN (0, 5) AND job.waits IS NULL AND job.failures > 0"
        }
        Word::Waiting => " AND job.slot BETWEEN 1 AND 3 AND job.state IN (0, 5) AND job.waits IS NOT NULL",
        Word::Running => " AND job.slot BETWEEN 1 AND 3 AND job.state = 4",
        Word::Success => " AND job.slot = 0 AND job.state = 1",
        Word::Noop => " AND job.slot = 0 AND job.state = 2",
        Word::Dead => " AND job.slot = 0 AND job.state = 3",
        Word::Dropped => " AND job.slot = 0 AND job.state = 6",
    }
}

/// Where a list looks.
struct Window {
    first: i64,
    looked_at: u64,
    /// Older ones exist that it does not look at.
    is_cut: bool,
}

async fn look_back(
    line: &mut Line,
    table: &str,
    id: &str,
    rare: &str,
    (first, until): (i64, i64),
    most: usize,
) -> Answer<Window> {
    let sql = format!(
        "SELECT count(*), min(id) FROM (SELECT {id} AS id FROM {table} WHERE {id} >= $1 AND {id} < $2{rare}
                                        ORDER BY {id} DESC LIMIT $3) AS looked"
    );
    let rows = line.query(&sql, &[&first, &until, &(most as i64)]).await?;
    let looked_at = rows.first().map(|row| rows::big_count(row, 0)).transpose()?.unwrap_or(0);
    let floor: Option<i64> = rows.first().map(|row| row.try_get(1)).transpose()?.flatten();
    let is_cut = looked_at == most as u64;
    Ok(Window { first: floor.filter(|_| is_cut).unwrap_or(first), looked_at, is_cut })
}

pub(super) async fn events(eyes: &Arc<Pool>, filter: &EventFilter) -> Answer<EventPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (mut first, until) = filter.ids();
    let (mut looked_at, mut is_cut) = (0, false);
    let mut line = eyes.line().await?;
    line.begin_reading().await?;
    // Few events come again: those are looked at in place of all.
    let look = match (filter.again, &filter.source) {
        (Some(_), _) => Some(("delivery", "event", SCAN_ROWS_MAX)),
        (None, Some(_)) => Some(("event", "id", SCAN_COSTLY_ROWS_MAX)),
        (None, None) => None,
    };
    if let Some((table, id, most)) = look {
        let found = look_back(&mut line, table, id, "", (first, until), most).await?;
        (first, looked_at, is_cut) = (found.first, found.looked_at, found.is_cut);
    }
    let among = match filter.again {
        None => "",
        Some(Again::Duplicate) => {
            " AND event.id IN (SELECT event FROM delivery WHERE delivery.event >= $1 AND delivery.event < $2 AND kind = 0)"
        }
        Some(Again::Conflict) => {
            " AND event.id IN (SELECT event FROM delivery WHERE delivery.event >= $1 AND delivery.event < $2 AND kind = 1)"
        }
    };
    let sql = format!(
        "SELECT event.id, event.source, event.received_at, event.status, event.jobs,
                CASE WHEN event.key IS NOT NULL THEN event.expires_at END,
                (SELECT coalesce(sum(times), 0)::bigint FROM delivery WHERE delivery.event = event.id AND kind = 0),
                (SELECT coalesce(sum(times), 0)::bigint FROM delivery WHERE delivery.event = event.id AND kind = 1),
                event.trace
         FROM event
         WHERE event.id >= $1 AND event.id < $2{among} AND ($3::text IS NULL OR event.source = $3)
         ORDER BY event.id DESC LIMIT $4"
    );
    let source = filter.source.as_deref().map(rows::text);
    let found = line.query(&sql, &[&first, &until, &source, &(limit as i64 + 1)]).await?;
    line.commit().await?;
    let row = |row: &Row| -> rows::Read<EventRow> {
        Ok(EventRow {
            id: rows::event_id(row, 0)?,
            trace: rows::trace(row, 8)?,
            source: rows::name(row, 1)?,
            received_at: rows::time(row, 2)?,
            status: u16::try_from(row.try_get::<_, i32>(3)?).unwrap_or_default(),
            jobs: rows::count(row, 4)?,
            key_until: rows::maybe_time(row, 5)?,
            duplicates: rows::big_count(row, 6)?,
            conflicts: rows::big_count(row, 7)?,
        })
    };
    let mut rows = found.iter().map(row).collect::<rows::Read<Vec<_>>>()?;
    let is_full = rows.len() > limit;
    rows.truncate(limit);
    let floor = is_cut.then(|| EventId::from_number(first.cast_unsigned()));
    let next = if is_full { rows.last().map(|row| row.id) } else { floor };
    Ok(EventPage { looked_at: looked_at.max(rows.len() as u64), next, rows })
}

pub(super) async fn found_by(eyes: &Arc<Pool>, handle: Handle, most: usize) -> Answer<Vec<EventId>> {
    let sql = "SELECT event FROM handle WHERE mark = $1 ORDER BY event DESC LIMIT $2";
    let found = eyes.ask(sql, &[&handle.number(), &(most as i64)]).await?;
    Ok(found.iter().map(|row| rows::event_id(row, 0)).collect::<Result<_, _>>()?)
}

/// Ids may run ahead of the clock, for a moment.
const AHEAD: Duration = Duration::from_secs(2);

pub(super) async fn begun_by(eyes: &Arc<Pool>, trace: TraceId, most: usize) -> Answer<Vec<EventId>> {
    let first = EventId::first_at(trace.at()).number().cast_signed();
    let until = EventId::first_at(trace.at() + AHEAD).number().cast_signed();
    let sql = "SELECT id FROM event WHERE id >= $1 AND id < $2 AND trace = $3 ORDER BY id LIMIT $4";
    let found = eyes.ask(sql, &[&first, &until, &&trace.to_bytes()[..], &(most as i64)]).await?;
    Ok(found.iter().map(|row| rows::event_id(row, 0)).collect::<Result<_, _>>()?)
}

pub(super) async fn traces(eyes: &Arc<Pool>, jobs: &[JobId]) -> Answer<BTreeMap<JobId, TraceId>> {
    let jobs: Vec<i64> = jobs.iter().map(|job| job.number().cast_signed()).collect();
    let sql = "SELECT job.id, (SELECT trace FROM event WHERE event.id = job.event)
               FROM unnest($1::bigint[]) AS asked (id) JOIN job ON job.id BETWEEN asked.id AND asked.id";
    let mut traces = BTreeMap::new();
    for row in &eyes.ask(sql, &[&jobs]).await? {
        let job = rows::job_id(row, 0)?;
        traces.extend(rows::maybe_trace(row, 1)?.map(|trace| (job, trace)));
    }
    Ok(traces)
}
