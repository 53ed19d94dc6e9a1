//! Jobs and events as lists: the newest first, looked at backwards and no further than a bound, which the answer tells.

use super::memory::Found;
use super::read::mark_running;
use super::writer::{Shared, lock};
use super::{Readers, rows};
use crate::Result;
use crate::read::{Again, COUNT_MAX, EventFilter, EventPage, EventRow, JobFilter, JobPage, JobRow, LIST_ROWS_MAX};
use crate::read::{SCAN_COSTLY_ROWS_MAX, SCAN_ROWS_MAX};
use crate::seal::Sealer;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Word;
use clinch_core::payload::TraceId;
use clinch_core::subject::Handle;
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) async fn jobs(readers: &Readers, shared: &Shared, filter: JobFilter) -> Result<JobPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (asked, sealer) = (filter.clone(), shared.sealer.clone());
    let live = live(shared, &filter);
    let mut page = readers.ask(move |conn| select(conn, &sealer, &asked, live, limit)).await?;
    mark_running(shared, &mut page.rows);
    // It may have moved on since it was found.
    page.rows.retain(|row| filter.word.is_none_or(|word| word == row.word));
    Ok(page)
}

/// Only memory knows which of the unfinished jobs run, and which were put off.
fn live(shared: &Shared, filter: &JobFilter) -> Option<Found> {
    let word = filter.word.filter(|word| !word.is_over())?;
    let (first, until) = filter.ids();
    let ids = JobId::from_number(first.cast_unsigned())..JobId::from_number(until.max(first).cast_unsigned());
    let is_asked = |id: &JobId| ids.contains(id) && filter.jobs.as_ref().is_none_or(|jobs| jobs.contains(id));
    let memory = lock(&shared.memory);
    if let (Some(jobs), true) = (&filter.jobs, word != Word::Running) {
        let has_word = |id: &&JobId| memory.get(**id).is_some_and(|live| live.word() == word);
        let jobs: Vec<JobId> = jobs.iter().filter(has_word).copied().filter(is_asked).collect();
        return Some(Found { looked_at: jobs.len(), jobs, next: None });
    }
    if word == Word::Running {
        let jobs: Vec<JobId> = memory.running().into_iter().filter(is_asked).collect();
        return Some(Found { looked_at: jobs.len(), jobs, next: None });
    }
    let fits = |live: &super::memory::Live| {
        filter.flow.as_ref().is_none_or(|flow| **flow == *live.flow)
            && filter.queue.as_ref().is_none_or(|queue| **queue == *live.queue)
            && live.attempts >= filter.attempts_min
            && filter.attempts_max.is_none_or(|most| live.attempts <= most)
    };
    Some(memory.find(word, ids.clone(), fits, usize::try_from(COUNT_MAX).unwrap_or(usize::MAX) + 1))
}

/// What must be true of a row, and what it is held against.
#[derive(Default)]
struct Conditions {
    sql: String,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, sql: &str, value: impl Into<Value>) {
        self.values.push(value.into());
        self.sql.push_str(" AND ");
        self.sql.push_str(&sql.replace('?', &format!("?{}", self.values.len())));
    }
}

/// Where a list looks: from the first id on, and before the last.
struct Window {
    first: i64,
    until: i64,
    looked_at: u64,
    /// Older ones exist that it does not look at.
    is_cut: bool,
}

fn select(
    conn: &Connection,
    sealer: &Sealer,
    filter: &JobFilter,
    live: Option<Found>,
    limit: usize,
) -> rusqlite::Result<JobPage> {
    let ids = live.as_ref().map(|found| &found.jobs).or(filter.jobs.as_ref());
    let (first, until) = filter.ids();
    let window = match (ids, filter.scan_max()) {
        (None, Some(most)) => look_back(conn, filter.word, first, until, most)?,
        _ => Window { first, until, looked_at: 0, is_cut: false },
    };
    let conditions = conditions(filter, ids, &window);
    let (most, rows_max) = (conditions.values.len() + 1, Value::from(limit as i64 + 1));
    let sql = format!("{} WHERE 1{} ORDER BY job.id DESC LIMIT ?{most}", rows::JOB_ROW, conditions.sql);
    let mut rows = conn
        .prepare_cached(&sql)?
        .query_map(params_from_iter(conditions.values.iter().chain([&rows_max])), |row| rows::job_row(row, sealer))?
        .collect::<rusqlite::Result<Vec<JobRow>>>()?;
    let matches = if filter.counts { Some(count(conn, &conditions)?) } else { None };
    let is_full = rows.len() > limit;
    rows.truncate(limit);
    let next = match live
        .as_ref()
        .map_or(window.is_cut.then_some(window.first), |live| live.next.map(|next| next.number().cast_signed()))
    {
        _ if is_full => rows.last().map(|row| row.id),
        next => next.map(|next| JobId::from_number(next.cast_unsigned())),
    };
    let looked_at = live.map_or(window.looked_at, |live| live.looked_at as u64).max(rows.len() as u64);
    Ok(JobPage { more: next.is_some(), next, looked_at, matches, rows })
}

fn look_back(conn: &Connection, word: Option<Word>, first: i64, until: i64, most: usize) -> rusqlite::Result<Window> {
    // What is rare has an index of its own.
    let rare = match word {
        Some(Word::Dead) => " AND state = 3",
        Some(Word::Dropped) => " AND state = 6",
        _ => "",
    };
    let sql = format!(
        "SELECT count(*), min(id) FROM (SELECT id FROM job WHERE id >= ?1 AND id < ?2{rare} ORDER BY id DESC LIMIT ?3)"
    );
    let (looked_at, floor): (i64, Option<i64>) = conn
        .prepare_cached(&sql)?
        .query_row(params![first, until, most as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_cut = looked_at == most as i64;
    let first = floor.filter(|_| is_cut).unwrap_or(first);
    Ok(Window { first, until, looked_at: looked_at.cast_unsigned(), is_cut })
}

fn conditions(filter: &JobFilter, ids: Option<&Vec<JobId>>, window: &Window) -> Conditions {
    let mut all = Conditions::default();
    match ids {
        Some(ids) => {
            let numbers: Vec<i64> = ids.iter().map(|id| id.number().cast_signed()).collect();
            all.add("job.id IN (SELECT value FROM json_each(?))", serde_json::json!(numbers).to_string());
        }
        None => {
            all.add("job.id >= ?", window.first);
            all.add("job.id < ?", window.until);
        }
    }
    // Written out, so that what is rare is found by its own index.
    let state = filter.word.map(|word| match word {
        Word::Queued | Word::Running | Word::Waiting | Word::Retrying => rows::READY,
        Word::Success => rows::SUCCESS,
        Word::Noop => rows::NOOP,
        Word::Dead => rows::DEAD,
        Word::Dropped => rows::DROPPED,
    });
    if let Some(state) = state {
        all.sql.push_str(&format!(" AND job.state = {state}"));
    }
    if let Some(reason) = filter.reason {
        all.add("job.reason = ?", rows::reason_number(reason));
    }
    for (column, name) in [("job.flow", &filter.flow), ("job.queue", &filter.queue), ("event.source", &filter.source)] {
        if let Some(name) = name {
            all.add(&format!("{column} = (SELECT id FROM name WHERE text = ?)"), name.clone());
        }
    }
    if filter.attempts_min > 0 {
        all.add("job.attempts >= ?", i64::from(filter.attempts_min));
    }
    if let Some(most) = filter.attempts_max {
        all.add("job.attempts <= ?", i64::from(most));
    }
    let (since, until) = filter.ended.micros();
    if since > i64::MIN {
        all.add("job.ended_at >= ?", since);
    }
    if until < i64::MAX {
        all.add("job.ended_at < ?", until);
    }
    if let Some(steps) = &filter.steps {
        // `send[3]` is the step `send`, of one item of a list.
        all.add(
            "EXISTS (SELECT 1 FROM effect WHERE effect.job = job.id
             AND substr(effect.name, 1, instr(effect.name || '[', '[') - 1) IN (SELECT value FROM json_each(?)))",
            serde_json::json!(steps).to_string(),
        );
    }
    all
}

/// Up to one more than is told.
fn count(conn: &Connection, conditions: &Conditions) -> rusqlite::Result<u64> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM job JOIN event ON event.id = job.event WHERE 1{} LIMIT {})",
        conditions.sql,
        COUNT_MAX + 1
    );
    let count: i64 = conn.prepare_cached(&sql)?.query_row(params_from_iter(&conditions.values), |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

pub(super) fn events(conn: &Connection, filter: &EventFilter) -> rusqlite::Result<EventPage> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (mut first, until) = filter.ids();
    let (mut looked_at, mut is_cut) = (0, false);
    // Few events come again: those are looked at in place of all.
    let (table, id, most) = match (filter.again, &filter.source) {
        (Some(_), _) => ("delivery", "event", SCAN_ROWS_MAX),
        (None, Some(_)) => ("event", "id", SCAN_COSTLY_ROWS_MAX),
        (None, None) => ("event", "id", 0),
    };
    if most > 0 {
        let sql = format!(
            "SELECT count(*), min(id) FROM (SELECT DISTINCT {id} AS id FROM {table} WHERE {id} >= ?1 AND {id} < ?2
                                            ORDER BY {id} DESC LIMIT ?3)"
        );
        let (looked, floor): (i64, Option<i64>) = conn
            .prepare_cached(&sql)?
            .query_row(params![first, until, most as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
        is_cut = looked == most as i64;
        looked_at = looked.cast_unsigned();
        first = floor.filter(|_| is_cut).unwrap_or(first);
    }
    let among = match filter.again {
        None => "",
        Some(Again::Duplicate) => {
            " AND event.id IN (SELECT event FROM delivery WHERE event >= ?1 AND event < ?2 AND kind = 0)"
        }
        Some(Again::Conflict) => {
            " AND event.id IN (SELECT event FROM delivery WHERE event >= ?1 AND event < ?2 AND kind = 1)"
        }
    };
    let sql = format!(
        "SELECT event.id, name.text, event.received_at, event.status, event.jobs,
                CASE WHEN event.key IS NOT NULL THEN event.expires_at END,
                (SELECT ifnull(sum(times), 0) FROM delivery WHERE delivery.event = event.id AND kind = 0),
                (SELECT ifnull(sum(times), 0) FROM delivery WHERE delivery.event = event.id AND kind = 1), event.trace
         FROM event CROSS JOIN name ON name.id = event.source
         WHERE event.id >= ?1 AND event.id < ?2{among}
             AND (?3 IS NULL OR event.source = (SELECT id FROM name WHERE text = ?3))
         ORDER BY event.id DESC LIMIT ?4"
    );
    let mut rows = conn
        .prepare_cached(&sql)?
        .query_map(params![first, until, filter.source, limit as i64 + 1], |row| {
            Ok(EventRow {
                id: EventId::from_number(row.get::<_, i64>(0)?.cast_unsigned()),
                trace: rows::trace(row, 8)?,
                source: rows::name(row, 1)?,
                received_at: rows::time(row, 2)?,
                status: row.get(3)?,
                jobs: row.get(4)?,
                key_until: rows::maybe_time(row, 5)?,
                duplicates: row.get::<_, i64>(6)?.cast_unsigned(),
                conflicts: row.get::<_, i64>(7)?.cast_unsigned(),
            })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let is_full = rows.len() > limit;
    rows.truncate(limit);
    let floor = is_cut.then(|| EventId::from_number(first.cast_unsigned()));
    let next = if is_full { rows.last().map(|row| row.id) } else { floor };
    Ok(EventPage { looked_at: looked_at.max(rows.len() as u64), next, rows })
}

pub(super) fn found_by(conn: &Connection, handle: Handle, most: usize) -> rusqlite::Result<Vec<EventId>> {
    conn.prepare_cached("SELECT event FROM handle WHERE mark = ?1 ORDER BY event DESC LIMIT ?2")?
        .query_map(params![handle.number(), most as i64], |row| {
            Ok(EventId::from_number(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect()
}

/// Ids may run ahead of the clock, for a moment.
const AHEAD: Duration = Duration::from_secs(2);

pub(super) fn begun_by(conn: &Connection, trace: TraceId, most: usize) -> rusqlite::Result<Vec<EventId>> {
    let first = EventId::first_at(trace.at()).number().cast_signed();
    let until = EventId::first_at(trace.at() + AHEAD).number().cast_signed();
    conn.prepare_cached("SELECT id FROM event WHERE id >= ?1 AND id < ?2 AND trace = ?3 ORDER BY id LIMIT ?4")?
        .query_map(params![first, until, trace.to_bytes(), most as i64], |row| {
            Ok(EventId::from_number(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect()
}

pub(super) fn traces(conn: &Connection, jobs: &[JobId]) -> rusqlite::Result<BTreeMap<JobId, TraceId>> {
    let numbers: Vec<i64> = jobs.iter().map(|job| job.number().cast_signed()).collect();
    conn.prepare_cached(
        "SELECT job.id, event.trace FROM json_each(?1) AS asked
         CROSS JOIN job ON job.id = asked.value CROSS JOIN event ON event.id = job.event",
    )?
    .query_map([serde_json::json!(numbers).to_string()], |row| Ok((rows::job_id(row, 0)?, rows::trace(row, 1)?)))?
    .collect()
}
