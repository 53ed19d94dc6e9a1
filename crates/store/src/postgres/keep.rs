//! prune: what has outlived its retention goes, a bounded number of rows at a time, by one node at a time.

use super::lanes::Standing;
use super::pool::Line;
use super::rows::{self, DEAD, NOOP, SUCCESS};
use super::{Fault, Shared, lanes, lock};
use crate::{Pruned, Retention};
use clinch_core::id::JobId;
use clinch_core::lane::Order;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

/// The lock of whoever prunes.
const PRUNER: i64 = 0x636c_696e_6368_0002;

pub(super) async fn prune(
    shared: &Shared,
    now: Timestamp,
    retention: &Retention,
    most: usize,
) -> Result<Pruned, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let rows = line.query("SELECT pg_try_advisory_xact_lock($1)", &[&PRUNER]).await?;
    let is_ours = rows.first().map(|row| row.try_get::<_, bool>(0)).transpose()?.unwrap_or(false);
    if !is_ours {
        // Another node is at it.
        line.commit().await?;
        return Ok(Pruned { finished: true, ..Pruned::default() });
    }
    let (old, looked) = old(shared, &mut line, now, retention, most).await?;
    let mut pruned = Pruned { finished: looked.is_none(), ..Pruned::default() };
    if !old.is_empty() {
        remove(&mut line, shared.skew.to_database(now), &old, &mut pruned).await?;
    }
    line.query(FOLD, &[]).await?;
    line.commit().await?;
    // Once through, start over: what was too young or too dead then may go now.
    *lock(&shared.pruned_to) = looked.unwrap_or(0);
    Ok(pruned)
}

const FOLD: &str = "
    WITH old AS (DELETE FROM tally RETURNING *)
    INSERT INTO tally (accepted, created, expired, events_expired)
    SELECT sum(accepted), sum(created), sum(expired), sum(events_expired) FROM old HAVING count(*) > 0";

/// Jobs that may go, with their states; and how far was looked, if there is more to look at.
async fn old(
    shared: &Shared,
    line: &mut Line,
    now: Timestamp,
    retention: &Retention,
    most: usize,
) -> Result<(Vec<(i64, i16)>, Option<i64>), Fault> {
    let from = *lock(&shared.pruned_to);
    let to = JobId::first_at(now - shortest(retention)).number().cast_signed();
    let rows = line
        .query(
            "SELECT job.id, job.queue, job.state, job.ended_at, event.expires_at
             FROM job JOIN event ON event.id = job.event
             WHERE job.id > $1 AND job.id < $2 ORDER BY job.id LIMIT $3",
            &[&from, &to, &i64::try_from(most).unwrap_or(i64::MAX)],
        )
        .await?;
    let mut old = Vec::new();
    for row in &rows {
        let (job, queue, state): (i64, &str, i16) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (ended_at, expires_at) = (rows::maybe_time(row, 3)?, rows::time(row, 4)?);
        let is_over = match (ended_at, kept_for(retention, state, queue)) {
            (Some(ended_at), Some(kept_for)) => ended_at + kept_for <= now,
            _ => false,
        };
        if is_over && expires_at <= now {
            old.push((job, state));
        }
    }
    let last = if rows.len() < most { None } else { rows.last().map(|row| row.try_get(0)).transpose()? };
    Ok((old, last))
}

/// `None` for a job that is not finished.
fn kept_for(retention: &Retention, state: i16, queue: &str) -> Option<Duration> {
    let rules = match state {
        SUCCESS | NOOP => &retention.finished,
        DEAD => &retention.dead,
        _ => return None,
    };
    Some(rules.iter().find(|(name, _)| &**name == queue).map_or(retention.default, |(_, kept)| *kept))
}

fn shortest(retention: &Retention) -> Duration {
    let rules = retention.finished.iter().chain(&retention.dead).map(|(_, kept)| *kept);
    rules.fold(retention.default, Duration::min)
}

/// What the jobs that go had to do with lanes that keep their order.
#[derive(Default)]
struct Stood {
    /// Dead letters that nobody passed.
    in_the_way: Vec<Standing>,
    queues: Vec<Arc<str>>,
    lanes: Vec<i64>,
}

fn stood(rows: &[Row], now: Timestamp) -> Result<Stood, Fault> {
    let mut stood = Stood::default();
    for row in rows {
        let order = Order::from_number(row.try_get(3)?);
        if !order.is_fifo() {
            continue;
        }
        let (queue, lane) = (rows::name(row, 4)?, row.try_get(5)?);
        stood.queues.push(queue.clone());
        stood.lanes.push(lane);
        if order.blocks() && row.try_get::<_, i16>(2)? == DEAD {
            let (job, pos) = (row.try_get(0)?, row.try_get(6)?);
            stood.in_the_way.push(Standing { job, queue, lane, pos, run_at: now.as_micros() });
        }
    }
    Ok(stood)
}

async fn remove(line: &mut Line, now: Timestamp, old: &[(i64, i16)], pruned: &mut Pruned) -> Result<(), Fault> {
    let (jobs, states): (Vec<i64>, Vec<i16>) = old.iter().copied().unzip();
    // A dead letter that was revived meanwhile stays.
    let rows = line
        .query(
            "DELETE FROM job USING unnest($1::bigint[], $2::smallint[]) AS old (id, state)
             WHERE job.id = old.id AND job.state = old.state
             RETURNING job.id, job.event, job.state, job.ord, job.queue, job.lane, job.pos",
            &[&jobs, &states],
        )
        .await?;
    let left = stood(&rows, now)?;
    let mut jobs: Vec<i64> = Vec::with_capacity(rows.len());
    let mut events: Vec<i64> = Vec::with_capacity(rows.len());
    for row in &rows {
        jobs.push(row.try_get(0)?);
        events.push(row.try_get(1)?);
    }
    line.query("DELETE FROM attempt WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM effect WHERE job = ANY($1)", &[&jobs]).await?;
    let gone = line
        .query(
            "DELETE FROM event WHERE id = ANY($1)
             AND NOT EXISTS (SELECT 1 FROM job WHERE job.id > event.id AND job.id <= event.id + event.jobs)
             RETURNING id, key",
            &[&events],
        )
        .await?;
    let mut events: Vec<i64> = Vec::with_capacity(gone.len());
    let mut keys: Vec<Option<&[u8]>> = Vec::with_capacity(gone.len());
    for row in &gone {
        events.push(row.try_get(0)?);
        keys.push(row.try_get(1)?);
    }
    line.query("DELETE FROM delivery WHERE event = ANY($1)", &[&events]).await?;
    let freed = line
        .query(
            "DELETE FROM dedup USING unnest($1::bytea[], $2::bigint[]) AS gone (key, event)
             WHERE dedup.key = gone.key AND dedup.event = gone.event RETURNING dedup.event",
            &[&keys, &events],
        )
        .await?;
    pruned.jobs = jobs.len() as u64;
    pruned.events = events.len() as u64;
    pruned.keys = freed.len() as u64;
    line.query(
        "INSERT INTO tally (expired, events_expired) VALUES ($1, $2)",
        &[&pruned.jobs.cast_signed(), &pruned.events.cast_signed()],
    )
    .await?;
    // After the keys: whoever accepts locks them in this order, too.
    lanes::forget(line, &left.in_the_way).await?;
    lanes::remove_empty(line, &left.queues, &left.lanes).await?;
    // An id is never given twice, even when its rows are gone and every clock went back.
    let last = jobs.iter().max().copied().unwrap_or(0);
    line.query("UPDATE fact SET value = greatest(value, $1) WHERE name = 'last_id'", &[&last]).await?;
    Ok(())
}
