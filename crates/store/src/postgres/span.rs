//! Spans: the partitions of events and their history. They are made ahead of time and dropped whole when the time of all that
//! is in them has passed.
//!
//! A job that is removed leaves its history behind, if its span is dropped soon. What outlives its span (dead letters with a
//! longer retention, jobs that were retried for long) is moved into the partition `…_rest` in the transaction that drops the
//! span, and goes row by row when its own time has come. Where that is too much to be moved while everybody waits, what is
//! over goes row by row, and the span when little is left in it.
//!
//! No insert needs a span: without one a row goes into `…_rest`.

use super::Fault;
use super::bucket::Bucket;
use super::pool::Line;
use clinch_core::id::EventId;
use clinch_core::time::Timestamp;
use std::time::Duration;
use tokio_postgres::Row;

/// So many are made ahead of the present one: a keeper may be away for as long.
const AHEAD: u32 = 2;
/// No more jobs than this are moved out of a span that is dropped.
const STRAGGLERS_MAX: i64 = 1_000;

/// Table, and the column that it is partitioned by.
const TABLES: [(&str, &str); 5] =
    [("event", "id"), ("attempt", "job"), ("effect", "job"), ("delivery", "event"), ("handle", "event")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub first: i64,
    pub next: i64,
    pub plan: Plan,
}

/// What becomes of the history of a job that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It stays, and goes with the span.
    Leave,
    /// It goes at once: the span would keep it for too long.
    Remove,
}

impl Span {
    pub fn holds(&self, id: i64) -> bool {
        (self.first..self.next).contains(&id)
    }

    fn end(&self) -> Timestamp {
        EventId::from_number(self.next.cast_unsigned()).given_at()
    }

    /// When the time of all that was accepted in it has passed: what it did is kept for `longest`, its keys until their
    /// buckets have expired.
    fn over_at(&self, longest: Duration, buckets: &[Bucket]) -> Timestamp {
        let keys = buckets.iter().filter(|bucket| bucket.since < self.end()).map(|bucket| bucket.until);
        keys.fold(self.end() + longest, Timestamp::max)
    }
}

/// The oldest first.
pub(super) async fn all(
    line: &mut Line,
    now: Timestamp,
    longest: Duration,
    length: Duration,
    buckets: &[Bucket],
) -> Result<Vec<Span>, Fault> {
    let rows = line.query("SELECT first, next FROM span ORDER BY first", &[]).await?;
    let mut spans = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut span = read(row)?;
        let over_at = span.over_at(longest, buckets);
        if over_at > now + length || is_crowded(line, &span).await? {
            span.plan = Plan::Remove;
        }
        spans.push(span);
    }
    Ok(spans)
}

fn read(row: &Row) -> Result<Span, Fault> {
    Ok(Span { first: row.try_get(0)?, next: row.try_get(1)?, plan: Plan::Leave })
}

/// Whether more dead letters are in it than would be moved.
async fn is_crowded(line: &mut Line, span: &Span) -> Result<bool, Fault> {
    let sql = "SELECT 1 FROM job WHERE slot = 0 AND state IN (3, 6) AND id >= $1 AND id < $2 OFFSET $3 LIMIT 1";
    Ok(!line.query(sql, &[&span.first, &span.next, &STRAGGLERS_MAX]).await?.is_empty())
}

/// The span of this moment and the next ones, as far as they are missing. Within the transaction of the caller.
pub(super) async fn make_ahead(line: &mut Line, now: Timestamp, length: Duration) -> Result<(), Fault> {
    let millis = i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1);
    let begin = now.as_micros() / 1_000 / millis * millis;
    let id_at = |millis: i64| EventId::first_at(Timestamp::from_micros(millis * 1_000)).number().cast_signed();
    for nth in 0..=i64::from(AHEAD) {
        let (first, next) = (id_at(begin + nth * millis), id_at(begin + (nth + 1) * millis));
        // One that somebody's clock was ahead of has rows in the rest already, and is left to it.
        let sql = "SELECT EXISTS (SELECT 1 FROM span WHERE first < $2 AND next > $1)
                       OR EXISTS (SELECT 1 FROM event_rest WHERE id >= $1 AND id < $2)";
        let known = line.query(sql, &[&first, &next]).await?;
        if known.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(true) {
            continue;
        }
        for (table, _) in TABLES {
            let name = format!("{table}_{first}");
            line.run(&format!("CREATE TABLE {name} PARTITION OF {table} FOR VALUES FROM ({first}) TO ({next})"))
                .await?;
        }
        line.query("INSERT INTO span (first, next) VALUES ($1, $2)", &[&first, &next]).await?;
    }
    Ok(())
}

/// Drops the oldest span that is over, and moves what lives on in it. Within the transaction of the caller.
pub(super) async fn drop_over(
    line: &mut Line,
    now: Timestamp,
    longest: Duration,
    buckets: &[Bucket],
) -> Result<bool, Fault> {
    // A key that is still in its bucket may point to an event of the span.
    let keys_begin = buckets.first().map_or(now, |bucket| bucket.since);
    let rows = line.query("SELECT first, next FROM span ORDER BY first", &[]).await?;
    let spans = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let is_over = |span: &&Span| span.over_at(longest, buckets) <= now && span.end() <= keys_begin;
    for span in spans.iter().filter(is_over) {
        if living(line, span).await?.is_none() {
            continue;
        }
        let first = span.first;
        for (table, _) in TABLES {
            line.run(&format!("ALTER TABLE {table} DETACH PARTITION {table}_{first}")).await?;
        }
        // Looked at once more: now nobody can add to it.
        let Some(jobs) = living(line, span).await? else { return Err(Fault::Busy) };
        let events = "SELECT event FROM job WHERE id = ANY($1)";
        for (table, column) in TABLES {
            let which = if column == "job" { "SELECT unnest($1::bigint[])" } else { events };
            let sql = format!("INSERT INTO {table} SELECT * FROM {table}_{first} WHERE {column} IN ({which})");
            line.query(&sql, &[&jobs]).await?;
            line.run(&format!("DROP TABLE {table}_{first}")).await?;
        }
        line.query("DELETE FROM span WHERE first = $1", &[&first]).await?;
        tracing::debug!("a span of events was dropped; {} jobs live on", jobs.len());
        return Ok(true);
    }
    Ok(false)
}

/// The jobs that are still there; `None` if they are too many.
async fn living(line: &mut Line, span: &Span) -> Result<Option<Vec<i64>>, Fault> {
    let sql = "SELECT id FROM job WHERE id >= $1 AND id < $2 LIMIT $3";
    let found = line.query(sql, &[&span.first, &span.next, &(STRAGGLERS_MAX + 1)]).await?;
    let jobs: Vec<i64> = found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok((found.len() as i64 <= STRAGGLERS_MAX).then_some(jobs))
}
