//! prune: what has outlived its retention goes, by one node at a time: partitions whole, and a bounded number of rows.

use super::lanes::Standing;
use super::pool::Line;
use super::rows::{self, DEAD, DROPPED, NOOP, SUCCESS};
use super::span::{Plan, Span};
use super::{Fault, Shared, admit, alert, bucket, budget, call, control, lanes, lock, once, replay, span, token};
use crate::{Pruned, Retention};
use clinch_core::drop::DROPPED_KEPT;
use clinch_core::id::JobId;
use clinch_core::lane::Order;
use clinch_core::replay::PLAN_KEPT;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Row;

/// The lock of whoever prunes.
const PRUNER: i64 = 0x636c_696e_6368_0002;

/// Who wants to change partitions waits no longer than this for those who use them, and they no longer for him: he comes
/// again in the next round.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '200ms'";

/// From this size on the tally is folded into one row.
const TALLY_BYTES_MAX: i64 = 1 << 20;

/// Where the present round is.
#[derive(Default)]
pub(super) struct Round {
    /// Jobs up to this one were looked at.
    to: i64,
    spans: Vec<Span>,
}

pub(super) async fn prune(
    shared: &Shared,
    now: Timestamp,
    retention: &Retention,
    most: usize,
) -> Result<Pruned, Fault> {
    let is_new_round = lock(&shared.round).to == 0;
    if is_new_round {
        token::prune(shared, now, most).await?;
        control::prune(shared, now).await?;
        alert::prune(shared, now).await?;
    }
    let keys = if is_new_round { drop_and_make(shared, now, retention).await? } else { 0 };
    let Some(mut line) = alone(shared).await? else {
        // Another node is at it.
        return Ok(Pruned { finished: true, ..Pruned::default() });
    };
    let (old, looked) = old(shared, &mut line, now, retention, most).await?;
    let mut pruned = Pruned { keys, finished: looked.is_none(), ..Pruned::default() };
    if !old.is_empty() {
        let spans = lock(&shared.round).spans.clone();
        remove(&mut line, shared.skew.to_database(now), &old, &spans, &mut pruned).await?;
    }
    pruned.once = clear(shared, &mut line, once::PRUNE, now, most).await?;
    pruned.calls = clear(shared, &mut line, call::PRUNE, now, most).await?;
    pruned.budgets = clear(shared, &mut line, budget::PRUNE, now, most).await?;
    pruned.admissions = clear(shared, &mut line, admit::PRUNE, now, most).await?;
    clear(shared, &mut line, replay::PRUNE, now - PLAN_KEPT, most).await?;
    let most_gone = pruned.once.max(pruned.calls).max(pruned.budgets).max(pruned.admissions);
    pruned.finished &= most_gone < most as u64;
    line.commit().await?;
    // Once through, start over: what was too young or too dead then may go now.
    lock(&shared.round).to = looked.unwrap_or(0);
    Ok(pruned)
}

/// Removes what is over by a rule of its own, and counts it.
async fn clear(shared: &Shared, line: &mut Line, sql: &str, now: Timestamp, most: usize) -> Result<u64, Fault> {
    let now = shared.skew.to_database(now).as_micros();
    let rows = line.query(sql, &[&now, &i64::try_from(most).unwrap_or(i64::MAX)]).await?;
    let gone: i64 = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0);
    Ok(u64::try_from(gone).unwrap_or(0))
}

/// A transaction of the only one who prunes.
async fn alone(shared: &Shared) -> Result<Option<Line>, Fault> {
    alone_with(shared, PRUNER).await
}

/// A transaction of the only one who has this lock, unless another has it.
pub(super) async fn alone_with(shared: &Shared, lock: i64) -> Result<Option<Line>, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let rows = line.query("SELECT pg_try_advisory_xact_lock($1)", &[&lock]).await?;
    let is_ours = rows.first().map(|row| row.try_get::<_, bool>(0)).transpose()?.unwrap_or(false);
    if !is_ours {
        line.commit().await?;
        return Ok(None);
    }
    Ok(Some(line))
}

/// Makes what a store needs before its first event comes. Without it everything works as well.
pub(super) async fn prepare(shared: &Shared) {
    later(make(shared, shared.skew.here()).await);
}

/// The partitions: those that are over go, those that are needed next come. Tells how many keys went.
async fn drop_and_make(shared: &Shared, now: Timestamp, retention: &Retention) -> Result<u64, Fault> {
    later(make(shared, now).await);
    let keys = later(drop_keys(shared, now).await).unwrap_or(0);
    later(fold(shared).await);
    let longest = longest(retention);
    while later(drop_span(shared, now, longest).await) == Some(true) {}
    let mut line = shared.hands.line().await?;
    let buckets = bucket::all(&mut line).await?;
    let spans = span::all(&mut line, now, longest, shared.span, &buckets).await?;
    lock(&shared.round).spans = spans;
    Ok(keys)
}

/// What could not be done now is done in a later round. Nobody but the disk waits for it.
fn later<T>(done: Result<T, Fault>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(fault) if fault.is_locked_out() => {
            tracing::debug!("the partitions are in use and stay as they are for now");
            None
        }
        Err(fault) => {
            tracing::warn!("the partitions stay as they are for now: {fault}");
            None
        }
    }
}

async fn make(shared: &Shared, now: Timestamp) -> Result<(), Fault> {
    let Some(mut line) = alone(shared).await? else { return Ok(()) };
    line.run(LOCK_WAIT).await?;
    span::make_ahead(&mut line, now, shared.span).await?;
    bucket::turn(&mut line, now, shared.span).await?;
    line.commit().await
}

async fn drop_keys(shared: &Shared, now: Timestamp) -> Result<u64, Fault> {
    let mut keys = 0;
    while let Some(mut line) = alone(shared).await? {
        line.run(LOCK_WAIT).await?;
        let gone = bucket::drop_expired(&mut line, now).await?;
        line.commit().await?;
        let Some(gone) = gone else { break };
        keys += gone;
    }
    Ok(keys)
}

async fn drop_span(shared: &Shared, now: Timestamp, longest: Duration) -> Result<bool, Fault> {
    let Some(mut line) = alone(shared).await? else { return Ok(false) };
    line.run(LOCK_WAIT).await?;
    let buckets = bucket::all(&mut line).await?;
    let is_dropped = span::drop_over(&mut line, now, longest, &buckets).await?;
    line.commit().await?;
    Ok(is_dropped)
}

/// What was counted becomes one row, where there are many. The table is emptied as a whole: rows that are deleted stay for as
/// long as anybody keeps an old snapshot.
async fn fold(shared: &Shared) -> Result<(), Fault> {
    let Some(mut line) = alone(shared).await? else { return Ok(()) };
    let rows = line.query("SELECT pg_relation_size('tally') >= $1", &[&TALLY_BYTES_MAX]).await?;
    if rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false) {
        line.run(&format!("{LOCK_WAIT}; LOCK TABLE tally IN ACCESS EXCLUSIVE MODE")).await?;
        let sums = line
            .query(
                "SELECT coalesce(sum(accepted), 0)::bigint, coalesce(sum(created), 0)::bigint,
                        coalesce(sum(expired), 0)::bigint, coalesce(sum(events_expired), 0)::bigint FROM tally",
                &[],
            )
            .await?;
        let sum = |column| -> Result<i64, Fault> { Ok(sums.first().ok_or(Fault::Silent)?.try_get(column)?) };
        line.run("TRUNCATE tally").await?;
        let fold = "INSERT INTO tally (accepted, created, expired, events_expired) VALUES ($1, $2, $3, $4)";
        line.query(fold, &[&sum(0)?, &sum(1)?, &sum(2)?, &sum(3)?]).await?;
    }
    line.commit().await
}

/// Jobs that may go, with their states; and how far was looked, if there is more to look at.
async fn old(
    shared: &Shared,
    line: &mut Line,
    now: Timestamp,
    retention: &Retention,
    most: usize,
) -> Result<(Vec<(i64, i16)>, Option<i64>), Fault> {
    let from = lock(&shared.round).to;
    let to = JobId::first_at(now - shortest(retention)).number().cast_signed();
    let rows = line
        .query(
            "SELECT job.id, job.queue, job.state, job.ended_at, event.expires_at
             FROM job JOIN event ON event.id = job.event
             WHERE job.slot = 0 AND job.id > $1 AND job.id < $2 ORDER BY job.id LIMIT $3",
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
        DROPPED => return Some(DROPPED_KEPT),
        SUCCESS | NOOP => &retention.finished,
        DEAD => &retention.dead,
        _ => return None,
    };
    Some(rules.iter().find(|(name, _)| &**name == queue).map_or(retention.default, |(_, kept)| *kept))
}

fn shortest(retention: &Retention) -> Duration {
    let rules = retention.finished.iter().chain(&retention.dead).map(|(_, kept)| *kept);
    rules.fold(retention.default.min(DROPPED_KEPT), Duration::min)
}

/// A finished job is nowhere kept longer.
fn longest(retention: &Retention) -> Duration {
    retention.finished.iter().map(|(_, kept)| *kept).fold(retention.default, Duration::max)
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

async fn remove(
    line: &mut Line,
    now: Timestamp,
    old: &[(i64, i16)],
    spans: &[Span],
    pruned: &mut Pruned,
) -> Result<(), Fault> {
    let (jobs, states): (Vec<i64>, Vec<i16>) = old.iter().copied().unzip();
    // A dead letter that was revived meanwhile stays.
    let rows = line
        .query(
            "DELETE FROM job USING unnest($1::bigint[], $2::smallint[]) AS old (id, state)
             WHERE job.slot = 0 AND job.id = old.id AND job.state = old.state
             RETURNING job.id, job.event, job.state, job.ord, job.queue, job.lane, job.pos",
            &[&jobs, &states],
        )
        .await?;
    let stood = stood(&rows, now)?;
    let mut jobs: Vec<i64> = Vec::with_capacity(rows.len());
    let mut events: Vec<i64> = Vec::with_capacity(rows.len());
    for row in &rows {
        jobs.push(row.try_get(0)?);
        events.push(row.try_get(1)?);
    }
    let gone = line
        .query(
            "SELECT id, key FROM event WHERE id = ANY($1)
             AND NOT EXISTS (SELECT 1 FROM job WHERE job.id > event.id AND job.id <= event.id + event.jobs)",
            &[&events],
        )
        .await?;
    pruned.jobs = jobs.len() as u64;
    pruned.events = gone.len() as u64;
    line.query(
        "INSERT INTO tally (expired, events_expired) VALUES ($1, $2)",
        &[&pruned.jobs.cast_signed(), &pruned.events.cast_signed()],
    )
    .await?;
    // An id is never given twice, even when its rows are gone and every clock went back.
    let last = jobs.iter().max().copied().unwrap_or(0);
    line.query("UPDATE fact SET value = greatest(value, $1) WHERE name = 'last_id'", &[&last]).await?;
    // What goes with its span stays until then, and the span says so; unless another node dropped it since we looked.
    let there = line.query("SELECT first FROM span", &[]).await?;
    let there: Vec<i64> = there.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let is_left = |span: &&Span| span.plan == Plan::Leave && there.contains(&span.first);
    let left: Vec<&Span> = spans.iter().filter(is_left).collect();
    let stays = |id: i64| left.iter().any(|span| span.holds(id));
    let leaving: Vec<i64> = jobs.iter().copied().filter(|job| stays(*job)).collect();
    line.query(
        "UPDATE span SET pruned_to = gone.last
         FROM (SELECT span.first, max(job) AS last FROM span JOIN unnest($1::bigint[]) AS job
               ON job >= span.first AND job < span.next GROUP BY span.first) AS gone
         WHERE span.first = gone.first AND span.pruned_to < gone.last",
        &[&leaving],
    )
    .await?;
    line.query("DELETE FROM late_answer WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM vote WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM approval WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM drop_ask WHERE job = ANY($1)", &[&jobs]).await?;
    let jobs: Vec<i64> = jobs.into_iter().filter(|job| !stays(*job)).collect();
    let mut events: Vec<i64> = Vec::new();
    let mut keys: Vec<Option<&[u8]>> = Vec::new();
    for row in &gone {
        let event = row.try_get(0)?;
        if !stays(event) {
            events.push(event);
            keys.push(row.try_get(1)?);
        }
    }
    if !jobs.is_empty() {
        pruned.keys += remove_history(line, &jobs, &events, keys).await?;
    }
    // After the keys: whoever accepts locks them in this order, too.
    lanes::forget(line, &stood.in_the_way).await?;
    lanes::remove_empty(line, &stood.queues, &stood.lanes).await
}

/// Row by row; tells how many keys are free.
async fn remove_history(line: &mut Line, jobs: &[i64], events: &[i64], keys: Vec<Option<&[u8]>>) -> Result<u64, Fault> {
    line.query("DELETE FROM attempt WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM effect WHERE job = ANY($1)", &[&jobs]).await?;
    line.query("DELETE FROM event WHERE id = ANY($1)", &[&events]).await?;
    line.query("DELETE FROM delivery WHERE event = ANY($1)", &[&events]).await?;
    line.query("DELETE FROM handle WHERE event = ANY($1)", &[&events]).await?;
    let freed = line
        .query(
            "DELETE FROM dedup USING unnest($1::bytea[], $2::bigint[]) AS gone (key, event)
             WHERE dedup.key = gone.key AND dedup.event = gone.event RETURNING dedup.event",
            &[&keys, &events],
        )
        .await?;
    Ok(freed.len() as u64)
}
