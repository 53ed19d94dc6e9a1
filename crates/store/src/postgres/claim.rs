//! claim, renew, lapse: who may run a job, and until when. A lease is in the job's own row.

use super::pool::Line;
use super::{Fault, Shared, lock, rows};
use crate::{Claim, ClaimAsk, Held, LeaseRef, VersionId};
use bytes::Bytes;
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::time::Timestamp;
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::Row;

/// What is due but in the hands of another claimer is looked for again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

// The rows are chosen in a CTE of their own: merged into the update, the limit would not bound what is updated.
// A node that was taken for dead claims nothing: nobody would give back what it takes.
const CLAIM: &str = "
    WITH due AS MATERIALIZED (
        SELECT id, fence FROM job
        WHERE queue = $1 AND state = 0 AND run_at <= $2 AND EXISTS (SELECT 1 FROM node WHERE boot = $5)
        ORDER BY run_at, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $4, node = $5
        FROM due WHERE job.id = due.id
        RETURNING job.*, due.fence AS fence_before
    )
    SELECT taken.id, taken.fence, taken.event, taken.flow, taken.queue, taken.version, taken.received_at,
           taken.failures, taken.attempts, taken.replays, taken.first_attempt_at, taken.fence_before, event.payload
    FROM taken JOIN event ON event.id = taken.event ORDER BY taken.run_at, taken.id";

const NEXT_DUE: &str = "SELECT run_at FROM job WHERE queue = $1 AND state = 0 ORDER BY run_at, id LIMIT 1";

pub(super) async fn claim(shared: &Shared, ask: &ClaimAsk) -> Result<Vec<Claim>, Fault> {
    let mut line = shared.hands.line().await?;
    let most = i64::try_from(ask.most).unwrap_or(i64::MAX);
    let (now, until) = (shared.skew.to_database(ask.now), shared.skew.to_database(ask.until));
    let (now, until) = (now.as_micros(), until.as_micros());
    let boot = lock(&shared.node).boot;
    let queue = &*ask.queue;
    let (taken, next) = line.query_both((CLAIM, &[&queue, &now, &most, &until, &boot]), (NEXT_DUE, &[&queue])).await?;
    let next = next.first().map(|row| rows::time(row, 0)).transpose()?;
    let next = next.map(|due| shared.skew.back_from_database(due));
    let is_held_elsewhere = taken.is_empty() && next.is_some_and(|due| due <= ask.now);
    shared.wake.looked(&ask.queue, if is_held_elsewhere { Some(ask.now + LOOK_AGAIN) } else { next });
    claims(&mut line, &taken).await
}

// Found first and locked then, in order: asked for both at once, a planner may walk through every job there ever was.
// Not SKIP LOCKED: a worker that is writing an intent at this moment is waited for, so that the intent is seen.
const LAPSE: &str = "
    WITH over_time AS MATERIALIZED (
        SELECT id FROM job WHERE state = 4 AND lease_until < $1 LIMIT $2
    ), late AS MATERIALIZED (
        SELECT job.id, job.fence FROM over_time JOIN job USING (id) WHERE job.state = 4 AND job.lease_until < $1
        ORDER BY job.id FOR NO KEY UPDATE OF job
    ), taken AS (
        UPDATE job SET fence = nextval('fence'), lease_until = $3, node = $4
        FROM late WHERE job.id = late.id
        RETURNING job.*, late.fence AS fence_before
    )
    SELECT taken.id, taken.fence, taken.event, taken.flow, taken.queue, taken.version, taken.received_at,
           taken.failures, taken.attempts, taken.replays, taken.first_attempt_at, taken.fence_before, event.payload
    FROM taken JOIN event ON event.id = taken.event ORDER BY taken.id";

pub(super) async fn lapse(shared: &Shared, now: Timestamp, most: usize, until: Timestamp) -> Result<Vec<Claim>, Fault> {
    let mut line = shared.hands.line().await?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (now, until) = (shared.skew.to_database(now).as_micros(), shared.skew.to_database(until).as_micros());
    let boot = lock(&shared.node).boot;
    let taken = line.query(LAPSE, &[&now, &most, &until, &boot]).await?;
    claims(&mut line, &taken).await
}

/// Completes what was taken with what earlier attempts left in the ledger.
async fn claims(line: &mut Line, taken: &[Row]) -> Result<Vec<Claim>, Fault> {
    let mut claims = Vec::with_capacity(taken.len());
    // A job that nobody ever claimed has nothing in the ledger.
    let mut claimed_before = Vec::new();
    for row in taken {
        if row.try_get::<_, i64>(11)? > 0 {
            claimed_before.push(row.try_get::<_, i64>(0)?);
        }
        claims.push(Claim {
            lease: LeaseRef { job: rows::job_id(row, 0)?, fence: Fence(rows::big_count(row, 1)?) },
            event: rows::event_id(row, 2)?,
            flow: rows::name(row, 3)?,
            queue: rows::name(row, 4)?,
            version: VersionId(row.try_get(5)?),
            received_at: rows::time(row, 6)?,
            failures: rows::count(row, 7)?,
            attempts: rows::count(row, 8)?,
            replays: rows::count(row, 9)?,
            first_attempt_at: rows::maybe_time(row, 10)?,
            payload: Bytes::copy_from_slice(row.try_get(12)?),
            effects: Vec::new(),
        });
    }
    if !claimed_before.is_empty() {
        let mut effects = rows::effects(line, &claimed_before).await?;
        for claim in &mut claims {
            claim.effects = effects.remove(&claim.lease.job).unwrap_or_default();
        }
    }
    Ok(claims)
}

const RENEW: &str = "
    WITH held AS MATERIALIZED (
        SELECT job.id FROM unnest($1::bigint[], $2::bigint[]) AS asked (id, fence) JOIN job USING (id)
        WHERE job.state = 4 AND job.fence = asked.fence
        ORDER BY job.id FOR NO KEY UPDATE OF job
    )
    UPDATE job SET lease_until = greatest(lease_until, $3) FROM held WHERE job.id = held.id RETURNING job.id";

pub(super) async fn renew(shared: &Shared, leases: &[LeaseRef], until: Timestamp) -> Result<Vec<Held>, Fault> {
    let jobs: Vec<i64> = leases.iter().map(|lease| lease.job.number().cast_signed()).collect();
    let fences: Vec<i64> = leases.iter().map(|lease| lease.fence.0.cast_signed()).collect();
    let until = shared.skew.to_database(until).as_micros();
    let rows = shared.hands.ask(RENEW, &[&jobs, &fences, &until]).await?;
    let renewed: HashSet<JobId> = rows.iter().map(|row| rows::job_id(row, 0)).collect::<Result<_, _>>()?;
    let held = |lease: &LeaseRef| if renewed.contains(&lease.job) { Held::Held } else { Held::Lost };
    Ok(leases.iter().map(held).collect())
}
