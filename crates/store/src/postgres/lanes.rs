//! Lanes that keep their order: a row for each, which hands out positions and says who is first, whether one of them runs,
//! and whether a dead letter is in the way. Whoever changes it has locked it, after the jobs, and in order of queue and lane.
//! All that decides is in the row itself: what a statement sees of other rows may be older than its lock.

use super::Fault;
use super::pool::Line;
use super::rows::text;
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use std::borrow::Cow;
use std::sync::Arc;

/// For each row of `stepping (queue, lane, job, pos, leaves, blocks, at, now)`: this job runs no more. It leaves its lane, or
/// stays in it until `at`; and if it blocks, nobody passes. When the next one is due is looked up, and looked at again when
/// it is claimed.
macro_rules! step {
    () => {
        "lined AS MATERIALIZED (
        SELECT lane.queue, lane.id, lane.last, stepping.job, stepping.pos, stepping.blocks, stepping.at, stepping.now,
               lane.head + (stepping.leaves AND stepping.pos = lane.head)::integer AS head,
               CASE WHEN stepping.leaves THEN array_remove(lane.again, stepping.pos) ELSE lane.again END AS again
        FROM stepping JOIN lane ON lane.queue = stepping.queue AND lane.id = stepping.lane
        ORDER BY lane.queue, lane.id FOR NO KEY UPDATE OF lane
    ), stepped AS (
        UPDATE lane SET
            head = lined.head, again = lined.again, running = NULL,
            blocked = CASE WHEN lined.blocks THEN lined.job END,
            open = NOT lined.blocks AND (lined.head <= lined.last OR lined.again <> '{}'),
            due_at = CASE WHEN next.pos = lined.pos THEN lined.at ELSE greatest(next.run_at, lined.now) END,
            priority = coalesce(next.priority, lane.priority)
        FROM lined LEFT JOIN LATERAL (
            SELECT pos, run_at, priority FROM job WHERE slot BETWEEN 1 AND 3 AND queue = lined.queue AND lane = lined.id
                                                    AND ord > 0 AND pos = coalesce(lined.again[1], lined.head) LIMIT 1
        ) AS next ON true
        WHERE lane.queue = lined.queue AND lane.id = lined.id
    )"
    };
}
pub(super) use step;

/// A job that stands in a lane that keeps its order.
pub(super) struct Standing {
    pub job: i64,
    pub queue: Arc<str>,
    pub lane: i64,
    pub pos: i64,
    pub run_at: i64,
}

const STOP: &str = concat!(
    "WITH stepping AS MATERIALIZED (
        SELECT *, $6::boolean AS leaves, false AS blocks, at AS now
        FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
            AS stepping (queue, lane, job, pos, at)
    ), ",
    step!(),
    " SELECT"
);

/// They run no more and stay where they are: whoever ran them is gone.
pub(super) async fn give_back(line: &mut Line, jobs: &[Standing]) -> Result<(), Fault> {
    stop(line, jobs, false).await
}

/// Dead letters that were in the way of others are gone.
pub(super) async fn forget(line: &mut Line, jobs: &[Standing]) -> Result<(), Fault> {
    stop(line, jobs, true).await
}

async fn stop(line: &mut Line, jobs: &[Standing], leaves: bool) -> Result<(), Fault> {
    if jobs.is_empty() {
        return Ok(());
    }
    let queues: Vec<Cow<'_, str>> = jobs.iter().map(|job| text(&job.queue)).collect();
    let lanes: Vec<i64> = jobs.iter().map(|job| job.lane).collect();
    let ids: Vec<i64> = jobs.iter().map(|job| job.job).collect();
    let positions: Vec<i64> = jobs.iter().map(|job| job.pos).collect();
    let at: Vec<i64> = jobs.iter().map(|job| job.run_at).collect();
    line.query(STOP, &[&queues, &lanes, &ids, &positions, &at, &leaves]).await?;
    Ok(())
}

/// A dead letter lives again: it stands where it stood, before all that were accepted later.
pub(super) async fn revive(line: &mut Line, job: i64, run_at: i64) -> Result<(), Fault> {
    line.query(
        "UPDATE lane SET
             again = CASE WHEN blocked = job.id THEN again
                          ELSE (SELECT array_agg(pos ORDER BY pos) FROM unnest(again || job.pos) AS pos) END,
             due_at = CASE WHEN job.pos <= ALL (again || head) THEN $2 ELSE due_at END,
             priority = CASE WHEN job.pos <= ALL (again || head) THEN job.priority ELSE lane.priority END,
             open = running IS NULL AND (blocked IS NULL OR blocked = job.id),
             blocked = nullif(blocked, job.id)
         FROM job WHERE job.id = $1 AND job.ord > 0 AND lane.queue = job.queue AND lane.id = job.lane",
        &[&job, &run_at],
    )
    .await?;
    Ok(())
}

/// Lanes of which nothing is left. They are kept as long as a job of them is: its position must not be given again.
pub(super) async fn remove_empty(line: &mut Line, queues: &[Arc<str>], lanes: &[i64]) -> Result<(), Fault> {
    let queues: Vec<&str> = queues.iter().map(|queue| &**queue).collect();
    line.query(
        "WITH empty AS MATERIALIZED (
             SELECT lane.queue, lane.id FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::bigint[]) AS asked (queue, id)) AS asked
             JOIN lane ON lane.queue = asked.queue AND lane.id = asked.id
             WHERE lane.head > lane.last AND lane.again = '{}' AND lane.blocked IS NULL
               AND NOT EXISTS (SELECT 1 FROM job WHERE job.queue = lane.queue AND job.lane = lane.id AND job.ord > 0)
             ORDER BY lane.queue, lane.id FOR UPDATE OF lane
         )
         DELETE FROM lane USING empty WHERE lane.queue = empty.queue AND lane.id = empty.id",
        &[&queues, &lanes],
    )
    .await?;
    Ok(())
}

/// Leaves behind the old versions of rows, if the table is this big and no more than so many lanes are in it for each time that it
/// is this big. Every job changes its lane some times, and a forgotten session keeps a vacuum from removing what was; but the
/// lanes are few, and can be taken out and put back while everybody waits. Within the transaction of the caller, who does
/// not wait for long.
pub(super) async fn rewrite(line: &mut Line, bytes: i64, most: i64) -> Result<(), Fault> {
    let sql = "SELECT size >= $1 AND lanes <= size / $1 * $2
               FROM (SELECT pg_relation_size('lane')) AS now (size),
                    LATERAL (SELECT count(*) FROM lane WHERE size >= $1) AS there (lanes)";
    let rows = line.query(sql, &[&bytes, &most]).await?;
    if rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false) {
        line.run(
            "LOCK TABLE lane IN ACCESS EXCLUSIVE MODE;
             INSERT INTO lane_aside SELECT * FROM lane; TRUNCATE lane;
             INSERT INTO lane SELECT * FROM lane_aside; TRUNCATE lane_aside",
        )
        .await?;
    }
    Ok(())
}

/// These jobs are due sooner than they were: where one of them is the first of its lane, so is the lane.
pub(super) async fn hasten(line: &mut Line, jobs: &[i64], now: Timestamp) -> Result<(), Fault> {
    line.query(
        "UPDATE lane SET due_at = $2
         FROM (SELECT lane.queue, lane.id FROM job JOIN lane ON lane.queue = job.queue AND lane.id = job.lane
               WHERE job.id = ANY($1) AND job.slot BETWEEN 1 AND 3 AND job.ord > 0 AND job.state = 5 AND job.run_at <= $2
                   AND job.pos = coalesce(lane.again[1], lane.head) AND lane.due_at > $2
               ORDER BY lane.queue, lane.id FOR NO KEY UPDATE OF lane) AS first
         WHERE lane.queue = first.queue AND lane.id = first.id",
        &[&jobs, &now.as_micros()],
    )
    .await?;
    Ok(())
}

/// The job of its lane that this one waits behind; and its priority.
pub(super) async fn place(line: &mut Line, job: i64) -> Result<(i16, Option<JobId>), Fault> {
    let rows = line
        .query(
            "SELECT job.priority, nullif(coalesce(lane.blocked, lane.running, first.id), job.id)
             FROM job
             LEFT JOIN lane ON job.ord > 0 AND job.state IN (4, 5) AND lane.queue = job.queue AND lane.id = job.lane
             LEFT JOIN job AS first ON first.queue = lane.queue AND first.lane = lane.id AND first.ord > 0
                                   AND first.pos = coalesce(lane.again[1], lane.head)
             WHERE job.id = $1",
            &[&job],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok((0, None)) };
    let behind = row.try_get::<_, Option<i64>>(1)?;
    Ok((row.try_get(0)?, behind.map(|job| JobId::from_number(job.cast_unsigned()))))
}
