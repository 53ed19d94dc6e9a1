//! claim, renew, lapse: who may run a job, and until when. A lease is in the job's own row.

use super::doubt::Doubt;
use super::param::Params;
use super::pool::Line;
use super::wake::Outlook;
use super::{Fault, Shared, lock, rows};
use crate::{Claim, ClaimAsk, Held, LeaseRef, VersionId};
use bytes::Bytes;
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::lane::Lane;
use clinch_core::time::Timestamp;
use std::collections::HashSet;
use std::time::Duration;
use tokio_postgres::Row;

/// What is due but in the hands of another claimer is looked for again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// No more jobs that came due are given their turn at once.
const LIFT_MAX: i64 = 500;

macro_rules! taken {
    ($rest:literal) => {
        concat!(
            "SELECT taken.id, taken.fence, taken.event, taken.flow, taken.queue, taken.version, taken.received_at,
                    taken.failures, taken.attempts, taken.replays, taken.first_attempt_at, taken.fence_before,
                    event.payload, taken.priority, taken.turn
             FROM taken JOIN event ON event.id = taken.event ",
            $rest
        )
    };
}

// The rows are chosen in a CTE of their own: merged into the update, the limit would not bound what is updated.
// A node that was taken for dead claims nothing: nobody would give back what it takes.
const CLAIM: &str = concat!(
    "
    WITH due AS MATERIALIZED (
        SELECT id, fence FROM job
        WHERE queue = $1 AND state = 0 AND EXISTS (SELECT 1 FROM node WHERE boot = $4)
        ORDER BY priority DESC, turn, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $3, node = $4
        FROM due WHERE job.id = due.id
        RETURNING job.*, due.fence AS fence_before
    ) ",
    taken!("ORDER BY taken.priority DESC, taken.turn, taken.id")
);

// The lane is locked first and says who is first in it; the job is found by that and looked at again. Whatever is held by
// another is left alone: who holds a job may be waiting for its lane.
// One that turns out not to be due is put off.
const CLAIM_IN_ORDER: &str = concat!(
    "
    WITH door AS MATERIALIZED (
        SELECT id, coalesce(again[1], head) AS pos FROM lane
        WHERE queue = $1 AND open AND due_at <= $5 AND EXISTS (SELECT 1 FROM node WHERE boot = $4)
        ORDER BY priority DESC, due_at, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
    ), first AS MATERIALIZED (
        SELECT job.id, job.fence, job.lane, job.run_at FROM door
        JOIN job ON job.queue = $1 AND job.lane = door.id AND job.pos = door.pos AND job.ord > 0
        WHERE job.state = 5 FOR NO KEY UPDATE OF job SKIP LOCKED
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $3, node = $4
        FROM first WHERE job.id = first.id AND first.run_at <= $5
        RETURNING job.*, first.fence AS fence_before
    ), entered AS (
        UPDATE lane SET open = first.run_at > $5, running = CASE WHEN first.run_at <= $5 THEN first.id END,
                        due_at = greatest(lane.due_at, first.run_at)
        FROM first WHERE lane.queue = $1 AND lane.id = first.lane
    ) ",
    taken!("ORDER BY taken.priority DESC, taken.run_at, taken.id")
);

// What can be claimed, what comes due, and whether there are lanes that keep their order.
const NEXT: &str = "
    SELECT (SELECT run_at FROM job WHERE queue = $1 AND state = 0 ORDER BY priority DESC, turn, id LIMIT 1),
           (SELECT run_at FROM job WHERE queue = $1 AND state = 5 AND ord = 0 ORDER BY run_at, id LIMIT 1),
           (SELECT due_at FROM lane WHERE queue = $1 AND open ORDER BY due_at LIMIT 1),
           EXISTS (SELECT 1 FROM lane WHERE queue = $1)";

pub(super) async fn claim(shared: &Shared, ask: &ClaimAsk) -> Result<Vec<Claim>, Fault> {
    let mut line = shared.hands.line().await?;
    let mut taken = Vec::new();
    let mut lifted = 0;
    let terms = Terms {
        now: shared.skew.to_database(ask.now).as_micros(),
        until: shared.skew.to_database(ask.until).as_micros(),
        boot: lock(&shared.node).boot,
    };
    let doubt = Doubt::begin(shared, terms.boot, terms.until, Some(&ask.queue));
    // A second time, if the first look found what nobody here had heard of.
    for _ in 0..2 {
        if shared.wake.is_later_due(&ask.queue, ask.now) {
            lifted += lift(shared, &mut line, ask).await?;
        }
        let had_lanes = look(shared, &mut line, ask, &terms, &mut taken).await?;
        let is_news = shared.wake.is_later_due(&ask.queue, ask.now) || had_lanes == Lanes::NewsToUs;
        if taken.len() == ask.most || !is_news || lifted >= LIFT_MAX {
            break;
        }
    }
    for row in &taken {
        shared.rota.serve(&ask.queue, row.try_get(13)?, rows::big_count(row, 14)?);
    }
    let claims = claims(&mut line, &taken).await?;
    doubt.end();
    Ok(claims)
}

/// What a claim is made on, in the time of the database.
struct Terms {
    now: i64,
    until: i64,
    boot: i64,
}

#[derive(PartialEq, Eq)]
enum Lanes {
    Asked,
    NewsToUs,
}

/// Takes what is due, and looks at what comes.
async fn look(
    shared: &Shared,
    line: &mut Line,
    ask: &ClaimAsk,
    Terms { now, until, boot }: &Terms,
    taken: &mut Vec<Row>,
) -> Result<Lanes, Fault> {
    let queue = &*ask.queue;
    let left = |taken: &[Row]| i64::try_from(ask.most - taken.len()).unwrap_or(i64::MAX);
    let lanes_first = shared.wake.lanes_first(queue);
    if lanes_first == Some(true) {
        let most = left(taken);
        taken.extend(line.query(CLAIM_IN_ORDER, &[&queue, &most, until, boot, now]).await?);
    } else if lanes_first == Some(false) {
        let most = left(taken);
        taken.extend(line.query(CLAIM, &[&queue, &most, until, boot]).await?);
    }
    let most = left(taken);
    let (rest, next) = match lanes_first {
        Some(false) => {
            let params: Params<'_> = &[&queue, &most, until, boot, now];
            line.query_both((CLAIM_IN_ORDER, params), (NEXT, &[&queue])).await?
        }
        Some(true) | None => line.query_both((CLAIM, &[&queue, &most, until, boot]), (NEXT, &[&queue])).await?,
    };
    taken.extend(rest);
    let Some(next) = next.first() else { return Ok(Lanes::Asked) };
    let time = |column| -> Result<Option<Timestamp>, Fault> {
        Ok(rows::maybe_time(next, column)?.map(|due| shared.skew.back_from_database(due)))
    };
    let (ready, later, in_order) = (time(0)?, time(1)?, time(2)?);
    let mut due = [ready, later, in_order].into_iter().flatten().min();
    let has_lanes = next.try_get(3)?;
    let is_held_elsewhere = taken.is_empty() && due.is_some_and(|due| due <= ask.now);
    if is_held_elsewhere {
        due = Some(ask.now + LOOK_AGAIN);
    }
    shared.wake.looked(&ask.queue, &Outlook { due, later, has_lanes });
    Ok(if has_lanes && lanes_first.is_none() { Lanes::NewsToUs } else { Lanes::Asked })
}

const LATER: &str = "
    SELECT id, lane, priority FROM job WHERE queue = $1 AND state = 5 AND ord = 0 AND run_at <= $2
    ORDER BY run_at, id LIMIT $3";

const LIFT: &str = "
    WITH due AS MATERIALIZED (
        SELECT job.id, asked.turn FROM unnest($1::bigint[], $2::bigint[]) AS asked (id, turn) JOIN job USING (id)
        WHERE job.state = 5 AND job.run_at <= $3 FOR NO KEY UPDATE OF job SKIP LOCKED
    )
    UPDATE job SET state = 0, turn = due.turn FROM due WHERE job.id = due.id";

/// Gives jobs that have come due their turn, as if they had been accepted now: time that they were not ready to use is no
/// claim on the future.
async fn lift(shared: &Shared, line: &mut Line, ask: &ClaimAsk) -> Result<i64, Fault> {
    let now = shared.skew.to_database(ask.now).as_micros();
    let found = line.query(LATER, &[&&*ask.queue, &now, &LIFT_MAX]).await?;
    let mut draft = shared.rota.draft();
    let (mut jobs, mut turns) = (Vec::with_capacity(found.len()), Vec::with_capacity(found.len()));
    for row in &found {
        let (lane, priority) = (Lane::from_number(rows::big_count(row, 1)?), row.try_get(2)?);
        let turn = draft.take(&ask.queue, priority, lane);
        shared.rota.give(&ask.queue, priority, lane, turn);
        jobs.push(row.try_get::<_, i64>(0)?);
        turns.push(turn.cast_signed());
    }
    if !jobs.is_empty() {
        line.query(LIFT, &[&jobs, &turns, &now]).await?;
    }
    Ok(i64::try_from(jobs.len()).unwrap_or(i64::MAX))
}

// Found first and locked then, in order: asked for both at once, a planner may walk through every job there ever was.
// Not SKIP LOCKED: a worker that is writing an intent at this moment is waited for, so that the intent is seen.
const LAPSE: &str = concat!(
    "
    WITH over_time AS MATERIALIZED (
        SELECT id FROM job WHERE state = 4 AND lease_until < $1 LIMIT $2
    ), late AS MATERIALIZED (
        SELECT job.id, job.fence FROM over_time JOIN job USING (id) WHERE job.state = 4 AND job.lease_until < $1
        ORDER BY job.id FOR NO KEY UPDATE OF job
    ), taken AS (
        UPDATE job SET fence = nextval('fence'), lease_until = $3, node = $4
        FROM late WHERE job.id = late.id
        RETURNING job.*, late.fence AS fence_before
    ) ",
    taken!("ORDER BY taken.id")
);

pub(super) async fn lapse(shared: &Shared, now: Timestamp, most: usize, until: Timestamp) -> Result<Vec<Claim>, Fault> {
    let mut line = shared.hands.line().await?;
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (now, until) = (shared.skew.to_database(now).as_micros(), shared.skew.to_database(until).as_micros());
    let boot = lock(&shared.node).boot;
    let doubt = Doubt::begin(shared, boot, until, None);
    let taken = line.query(LAPSE, &[&now, &most, &until, &boot]).await?;
    let claims = claims(&mut line, &taken).await?;
    doubt.end();
    Ok(claims)
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
