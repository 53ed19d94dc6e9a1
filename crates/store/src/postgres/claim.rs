//! claim, renew, lapse: who may run a job, and until when. A lease is in the job's own row.

use super::doubt::Doubt;
use super::ground::Reach;
use super::param::Params;
use super::pool::Line;
use super::turns::Levels;
use super::wake::Outlook;
use super::{Fault, Shared, lock, rows};
use crate::{Claim, ClaimAsk, Held, LeaseRef, VersionId};
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::lane::Lane;
use clinch_core::time::Timestamp;
use std::collections::HashSet;
use std::time::{Duration, Instant};
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
                    event.payload, taken.priority, taken.turn, taken.ord, taken.lane, event.trace
             FROM taken JOIN event ON event.id = taken.event ",
            $rest
        )
    };
}

/// What is ready in queue $1, in order: level by level, first what is at none that is known. Each part begins at a point of the
/// index and ends with the limit.
macro_rules! ready {
    ($what:literal, $most:literal, $lock:literal, $above:literal, $at:literal, $from:literal) => {
        concat!(
            "unnest(",
            $above,
            "::integer[], ",
            $at,
            "::integer[], ",
            $from,
            "::bigint[]) AS level (above, at, turn)
             CROSS JOIN LATERAL (
                 SELECT * FROM (
                     SELECT ",
            $what,
            " FROM job
                     WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND state = 0 AND priority < level.above
                       AND priority > level.at
                     ORDER BY priority DESC, turn, id LIMIT ",
            $most,
            $lock,
            "
                 ) AS unheard_of
                 UNION ALL
                 SELECT * FROM (
                     SELECT ",
            $what,
            " FROM job
                     WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND state = 0 AND priority = level.at
                       AND turn >= level.turn
                     ORDER BY priority DESC, turn, id LIMIT ",
            $most,
            $lock,
            "
                 ) AS known
             ) AS ready LIMIT ",
            $most
        )
    };
}

// The rows are chosen in a CTE of their own: merged into the update, the limit would not bound what is updated.
// A node that was taken for dead claims nothing: nobody would give back what it takes.
const CLAIM: &str = concat!(
    "
    WITH due AS MATERIALIZED (
        SELECT ready.id, ready.slot, ready.fence FROM (SELECT 1 FROM node WHERE boot = $4) AS here CROSS JOIN ",
    ready!("id, slot, fence", "$2", " FOR NO KEY UPDATE SKIP LOCKED", "$5", "$6", "$7"),
    "
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $3, node = $4
        FROM due WHERE job.id BETWEEN due.id AND due.id AND job.slot = due.slot
        RETURNING job.*, due.fence AS fence_before
    ) ",
    taken!("ORDER BY taken.priority DESC, taken.turn, taken.id")
);

// Beside a lane that is left alone only what is at levels that are known, and no further than its first job: who is new has
// the lowest turn, and a backlog is not walked through.
const CLAIM_BESIDE: &str = concat!(
    "
    WITH due AS MATERIALIZED (
        SELECT ready.id, ready.slot, ready.fence FROM (SELECT 1 FROM node WHERE boot = $4) AS here
        CROSS JOIN unnest($5::integer[], $6::bigint[], $7::bigint[]) AS level (at, turn, upto)
        CROSS JOIN LATERAL (
            SELECT id, slot, fence FROM job
            WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND state = 0 AND priority = level.at AND turn >= level.turn AND turn <= level.upto
              AND lane <> $8
            ORDER BY priority DESC, turn, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
        ) AS ready LIMIT $2
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $3, node = $4
        FROM due WHERE job.id BETWEEN due.id AND due.id AND job.slot = due.slot
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
        SELECT open.id, open.pos FROM (SELECT 1 FROM node WHERE boot = $4) AS here
        CROSS JOIN unnest($6::integer[], $7::integer[]) AS level (above, at)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT id, coalesce(again[1], head) AS pos FROM lane
                WHERE queue = $1 AND open AND priority < level.above AND priority > level.at AND due_at <= $5
                ORDER BY priority DESC, due_at, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
            ) AS unheard_of
            UNION ALL
            SELECT * FROM (
                SELECT id, coalesce(again[1], head) AS pos FROM lane
                WHERE queue = $1 AND open AND priority = level.at AND due_at >= $8 AND due_at <= $5
                ORDER BY priority DESC, due_at, id LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
            ) AS known
        ) AS open LIMIT $2
    ), first AS MATERIALIZED (
        SELECT job.id, job.slot, job.fence, job.lane, job.run_at FROM door
        CROSS JOIN LATERAL (
            SELECT * FROM job WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND lane = door.id AND pos = door.pos AND ord > 0
                                AND state BETWEEN 5 AND 5 FOR NO KEY UPDATE SKIP LOCKED
        ) AS job
    ), taken AS (
        UPDATE job SET state = 4, fence = nextval('fence'), lease_until = $3, node = $4
        FROM first WHERE job.id BETWEEN first.id AND first.id AND job.slot = first.slot AND first.run_at <= $5
        RETURNING job.*, first.fence AS fence_before
    ), entered AS (
        UPDATE lane SET open = first.run_at > $5, running = CASE WHEN first.run_at <= $5 THEN first.id END,
                        due_at = greatest(lane.due_at, first.run_at)
        FROM first WHERE lane.queue = $1 AND lane.id = first.lane
    ) ",
    taken!("ORDER BY taken.priority DESC, taken.run_at, taken.id")
);

// What can be claimed, what comes due, and whether there are lanes that keep their order.
const NEXT: &str = concat!(
    "SELECT (SELECT run_at FROM ",
    ready!("run_at", "1", "", "$2", "$3", "$4"),
    "),
            (SELECT run_at FROM job WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND state = 5 AND ord = 0 AND run_at >= $5
             ORDER BY run_at, id LIMIT 1),
            (SELECT due_at FROM lane WHERE queue = $1 AND open AND due_at >= $5 ORDER BY due_at LIMIT 1),
            EXISTS (SELECT 1 FROM lane WHERE queue = $1)"
);

pub(super) async fn claim(shared: &Shared, ask: &ClaimAsk) -> Result<Vec<Claim>, Fault> {
    let mut line = shared.hands.line().await?;
    let reach = if ask.but.is_none() { shared.wake.look(&ask.queue) } else { Reach::Since(ask.now) };
    let terms = Terms::new(shared, ask, reach);
    let doubt = Doubt::begin(shared, terms.boot, terms.until, Some(&ask.queue));
    let taken = match ask.but {
        Some(lane) => beside(&mut line, ask, &terms, lane).await?,
        None => anyone(shared, &mut line, ask, &terms).await?,
    };
    for row in &taken {
        shared.rota.serve(&ask.queue, row.try_get(13)?, rows::big_count(row, 14)?);
    }
    // A whole look that found all that it was asked for may have left more of the kind.
    let mut with_turns = taken.iter().rev().filter(|row| matches!(row.try_get::<_, i16>(15), Ok(0)));
    if let Some(last) = with_turns.next()
        && taken.len() == ask.most
        && terms.reach == Reach::Whole
    {
        shared.rota.fell_behind(&ask.queue, last.try_get(13)?, rows::big_count(last, 14)?);
    }
    let claims = claims(shared, &mut line, &taken).await?;
    doubt.end();
    Ok(claims)
}

/// Takes what is due.
async fn anyone(shared: &Shared, line: &mut Line, ask: &ClaimAsk, terms: &Terms) -> Result<Vec<Row>, Fault> {
    let mut taken = Vec::new();
    let mut lifted = 0;
    // A second time, if the first look found what nobody here had heard of.
    for _ in 0..2 {
        if shared.wake.is_later_due(&ask.queue, ask.now) {
            lifted += lift(shared, line, ask, terms).await?;
        }
        let had_lanes = look(shared, line, ask, terms, &mut taken).await?;
        let is_news = shared.wake.is_later_due(&ask.queue, ask.now) || had_lanes == Lanes::NewsToUs;
        if taken.len() == ask.most || !is_news || lifted >= LIFT_MAX {
            break;
        }
    }
    Ok(taken)
}

/// Takes what is due beside a lane that is left alone.
async fn beside(line: &mut Line, ask: &ClaimAsk, terms: &Terms, but: Lane) -> Result<Vec<Row>, Fault> {
    let (queue, most) = (&*ask.queue, i64::try_from(ask.most).unwrap_or(i64::MAX));
    let Levels { at, from, upto, .. } = &terms.levels;
    let lane = but.number().cast_signed();
    let params: Params<'_> = &[&queue, &most, &terms.until, &terms.boot, at, from, upto, &lane];
    line.query(CLAIM_BESIDE, params).await
}

/// What a claim is made on, in the time of the database, and where it looks.
struct Terms {
    now: i64,
    until: i64,
    boot: i64,
    reach: Reach,
    since: i64,
    levels: Levels,
}

impl Terms {
    fn new(shared: &Shared, ask: &ClaimAsk, reach: Reach) -> Terms {
        let (since, levels) = match reach {
            Reach::Whole => (i64::MIN, Levels::unknown()),
            Reach::Since(since) => (shared.skew.to_database(since).as_micros(), shared.rota.levels(&ask.queue)),
        };
        let now = shared.skew.to_database(ask.now).as_micros();
        let until = shared.skew.to_database(ask.until).as_micros();
        Terms { now, until, boot: lock(&shared.node).boot, reach, since, levels }
    }
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
    Terms { now, until, boot, reach, since, levels: Levels { above, at, from, .. } }: &Terms,
    taken: &mut Vec<Row>,
) -> Result<Lanes, Fault> {
    let began = Instant::now();
    let queue = &*ask.queue;
    let left = |taken: &[Row]| i64::try_from(ask.most - taken.len()).unwrap_or(i64::MAX);
    let lanes_first = shared.wake.lanes_first(queue);
    if lanes_first == Some(true) {
        let most = left(taken);
        taken.extend(line.query(CLAIM_IN_ORDER, &[&queue, &most, until, boot, now, above, at, since]).await?);
    } else if lanes_first == Some(false) {
        let most = left(taken);
        taken.extend(line.query(CLAIM, &[&queue, &most, until, boot, above, at, from]).await?);
    }
    let most = left(taken);
    let next: Params<'_> = &[&queue, above, at, from, since];
    let (rest, next) = match lanes_first {
        Some(false) => {
            let params: Params<'_> = &[&queue, &most, until, boot, now, above, at, since];
            line.query_both((CLAIM_IN_ORDER, params), (NEXT, next)).await?
        }
        Some(true) | None => {
            let params: Params<'_> = &[&queue, &most, until, boot, above, at, from];
            line.query_both((CLAIM, params), (NEXT, next)).await?
        }
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
    if *reach == Reach::Whole {
        let first = [later, in_order].into_iter().flatten().min();
        shared.wake.looked_whole(queue, began, first, ask.now);
    }
    shared.wake.looked(&ask.queue, &Outlook { due, later, has_lanes });
    Ok(if has_lanes && lanes_first.is_none() { Lanes::NewsToUs } else { Lanes::Asked })
}

const LATER: &str = "
    SELECT id, lane, priority FROM job
    WHERE slot BETWEEN 1 AND 3 AND queue = $1 AND state = 5 AND ord = 0 AND run_at <= $2 AND run_at >= $4
    ORDER BY run_at, id LIMIT $3";

const LIFT: &str = "
    WITH due AS MATERIALIZED (
        SELECT job.id, job.slot, asked.turn FROM unnest($1::bigint[], $2::bigint[]) AS asked (id, turn)
        JOIN job ON job.id BETWEEN asked.id AND asked.id
        WHERE job.slot BETWEEN 1 AND 3 AND job.state BETWEEN 5 AND 5 AND job.run_at <= $3 FOR NO KEY UPDATE OF job SKIP LOCKED
    )
    UPDATE job SET state = 0, turn = due.turn FROM due WHERE job.id BETWEEN due.id AND due.id AND job.slot = due.slot";

/// Gives jobs that have come due their turn, as if they had been accepted now: time that they were not ready to use is no
/// claim on the future.
async fn lift(shared: &Shared, line: &mut Line, ask: &ClaimAsk, terms: &Terms) -> Result<i64, Fault> {
    let found = line.query(LATER, &[&&*ask.queue, &terms.now, &LIFT_MAX, &terms.since]).await?;
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
        line.query(LIFT, &[&jobs, &turns, &terms.now]).await?;
    }
    Ok(i64::try_from(jobs.len()).unwrap_or(i64::MAX))
}

// Found first and locked then, in order: asked for both at once, a planner may walk through every job there ever was.
// Not SKIP LOCKED: a worker that is writing an intent at this moment is waited for, so that the intent is seen.
const LAPSE: &str = concat!(
    "
    WITH over_time AS MATERIALIZED (
        SELECT id, slot FROM job WHERE slot BETWEEN 1 AND 3 AND state = 4 AND lease_until < $1 LIMIT $2
    ), late AS MATERIALIZED (
        SELECT job.id, job.slot, job.fence FROM over_time
        JOIN job ON job.id BETWEEN over_time.id AND over_time.id AND job.slot = over_time.slot
        WHERE job.state BETWEEN 4 AND 4 AND job.lease_until < $1
        ORDER BY over_time.id FOR NO KEY UPDATE OF job
    ), taken AS (
        UPDATE job SET fence = nextval('fence'), lease_until = $3, node = $4
        FROM late WHERE job.id BETWEEN late.id AND late.id AND job.slot = late.slot
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
    let claims = claims(shared, &mut line, &taken).await?;
    doubt.end();
    Ok(claims)
}

/// Completes what was taken with what earlier attempts left in the ledger.
async fn claims(shared: &Shared, line: &mut Line, taken: &[Row]) -> Result<Vec<Claim>, Fault> {
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
            lane: Lane::from_number(row.try_get::<_, i64>(16)?.cast_unsigned()),
            version: VersionId(row.try_get(5)?),
            received_at: rows::time(row, 6)?,
            trace: rows::trace(row, 17)?,
            failures: rows::count(row, 7)?,
            attempts: rows::count(row, 8)?,
            replays: rows::count(row, 9)?,
            first_attempt_at: rows::maybe_time(row, 10)?,
            payload: shared.sealer.open_payload(rows::event_id(row, 2)?, row.try_get(12)?),
            effects: Vec::new(),
        });
    }
    if !claimed_before.is_empty() {
        let mut effects = rows::effects(line, &claimed_before).await?;
        for claim in &mut claims {
            claim.effects = effects.remove(&claim.lease.job).unwrap_or_default();
            if let Err(why) = shared.sealer.open_effects(claim.lease.job, &mut claim.effects) {
                claim.payload = claim.payload.clone().and(Err(why));
            }
        }
    }
    Ok(claims)
}

const RENEW: &str = "
    WITH held AS MATERIALIZED (
        SELECT job.id, job.slot FROM unnest($1::bigint[], $2::bigint[]) AS asked (id, fence)
        JOIN job ON job.id BETWEEN asked.id AND asked.id
        WHERE job.slot BETWEEN 1 AND 3 AND job.state BETWEEN 4 AND 4 AND job.fence = asked.fence
        ORDER BY asked.id FOR NO KEY UPDATE OF job
    )
    UPDATE job SET lease_until = greatest(lease_until, $3) FROM held
    WHERE job.id BETWEEN held.id AND held.id AND job.slot = held.slot RETURNING job.id";

pub(super) async fn renew(shared: &Shared, leases: &[LeaseRef], until: Timestamp) -> Result<Vec<Held>, Fault> {
    let jobs: Vec<i64> = leases.iter().map(|lease| lease.job.number().cast_signed()).collect();
    let fences: Vec<i64> = leases.iter().map(|lease| lease.fence.0.cast_signed()).collect();
    let until = shared.skew.to_database(until).as_micros();
    let rows = shared.hands.ask(RENEW, &[&jobs, &fences, &until]).await?;
    let renewed: HashSet<JobId> = rows.iter().map(|row| rows::job_id(row, 0)).collect::<Result<_, _>>()?;
    let held = |lease: &LeaseRef| if renewed.contains(&lease.job) { Held::Held } else { Held::Lost };
    Ok(leases.iter().map(held).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::postgres::ledger::INTEND;
    use crate::postgres::{Options, PostgresStore, node};
    use crate::{Acceptance, NewEvent, NewJob, Settlement, Store};
    use bytes::Bytes;
    use clinch_core::job::{Change, Ending};
    use clinch_core::lane::{OnDead, Order};
    use clinch_core::payload::TraceId;
    use clinch_testbed::Postgres;
    use std::sync::Arc;
    use tokio::task::JoinSet;
    use tokio_postgres::{Client, NoTls};

    /// Far more than any machine needs; a test that fails must end.
    pub(in crate::postgres) const PATIENCE: Duration = Duration::from_secs(30);

    pub(in crate::postgres) fn now() -> Timestamp {
        let since = std::time::UNIX_EPOCH.elapsed().expect("it is later than that");
        Timestamp::from_micros(i64::try_from(since.as_micros()).expect("not that much later"))
    }

    pub(in crate::postgres) async fn client(server: &Postgres) -> Client {
        let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.expect("connected");
        tokio::spawn(connection);
        client
    }

    pub(in crate::postgres) async fn open(server: &Postgres) -> PostgresStore {
        PostgresStore::open(&server.url("postgres"), [7; 32], None, Options::new(Arc::new(now))).await.expect("opened")
    }

    pub(in crate::postgres) fn job(queue: &str, lane: u64) -> NewJob {
        let order = if queue == "groups" { Order::Fifo { on_dead: OnDead::Continue } } else { Order::Any };
        NewJob {
            flow: "orders".into(),
            queue: queue.into(),
            lane: Lane::from_number(lane),
            order,
            priority: 0,
            run_at: now(),
        }
    }

    pub(in crate::postgres) async fn accept(store: &PostgresStore, job: NewJob) -> JobId {
        let event = NewEvent {
            source: "orders".into(),
            version: VersionId(1),
            // What is due a moment later is put off first.
            received_at: if &*job.queue == "delayed" { job.run_at - Duration::from_millis(1) } else { job.run_at },
            trace: TraceId(1),
            dedup: None,
            status: 202,
            payload: Bytes::from_static(b"the payload"),
            handles: Vec::new(),
            jobs: vec![job],
        };
        match store.accept(event).await.expect("accepted") {
            Acceptance::Fresh(accepted) => accepted.job,
            other => panic!("not fresh: {other:?}"),
        }
    }

    pub(in crate::postgres) fn ask(queue: &str, most: usize) -> ClaimAsk {
        ClaimAsk { queue: queue.into(), most, but: None, now: now(), until: now() + PATIENCE }
    }

    /// The next job, brought to a good end.
    async fn next(store: &PostgresStore, queue: &str) -> Option<JobId> {
        let lease = store.claim(ask(queue, 1)).await.expect("claimed").first()?.lease;
        assert_eq!(store.settle(lease, finished()).await.expect("settled"), Held::Held);
        Some(lease.job)
    }

    /// What a worker finds who looks whenever he is told to.
    async fn found(store: &PostgresStore, queue: &str) -> JobId {
        let looks = async {
            loop {
                if let Some(job) = next(store, queue).await {
                    return job;
                }
                store.work(queue).await;
            }
        };
        tokio::time::timeout(PATIENCE, looks).await.expect("it is found")
    }

    pub(in crate::postgres) fn finished() -> Settlement {
        Settlement {
            started_at: now(),
            ended_at: now(),
            outcome: "success",
            reason: None,
            error: None,
            charged: true,
            change: Change::Finished { at: now(), ending: Ending::Success },
            conclusion: None,
        }
    }

    /// Jobs are accepted, claimed and settled, and then some heartbeats pass.
    pub(in crate::postgres) async fn live(store: &Arc<PostgresStore>, queue: &'static str, lives: u64) {
        const AT_ONCE: u64 = 500;
        for _ in 0..lives / AT_ONCE {
            let mut hands = JoinSet::new();
            for lane in 0..AT_ONCE {
                let store = store.clone();
                hands.spawn(async move { accept(&store, job(queue, lane)).await });
            }
            hands.join_all().await;
            let mut ended = 0;
            while ended < AT_ONCE {
                let claims = store.claim(ask(queue, 500)).await.expect("claimed");
                let mut hands = JoinSet::new();
                for claim in claims {
                    let store = store.clone();
                    hands.spawn(async move { store.settle(claim.lease, finished()).await.expect("settled") });
                }
                ended += hands.join_all().await.len() as u64;
            }
        }
        for _ in 0..8 {
            node::learn(&store.shared).await.expect("learned");
        }
    }

    /// How many pages a look into this queue touches, with all its statements, and a heartbeat, and an intent.
    async fn pages(store: &PostgresStore, queue: &str, reach: Reach) -> u64 {
        let Terms { now, until, boot, since, levels: Levels { above, at, from, .. }, .. } =
            &Terms::new(&store.shared, &ask(queue, 1), reach);
        let (leases, steps) = (vec![1i64], vec!["post"]);
        let looks: [(&str, Params<'_>); 6] = [
            (RENEW, &[&leases, &leases, until]),
            (INTEND, &[&leases, &leases, &steps, &vec![0i16], &leases]),
            (CLAIM, &[&queue, &1i64, until, boot, above, at, from]),
            (CLAIM_IN_ORDER, &[&queue, &1i64, until, boot, now, above, at, since]),
            (LATER, &[&queue, now, &1i64, since]),
            (NEXT, &[&queue, above, at, from, since]),
        ];
        let mut line = store.shared.hands.line().await.expect("a line");
        let mut pages = 0;
        for (sql, params) in looks {
            line.begin().await.expect("begun");
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF) {sql}");
            let plan = line.query(&explain, params).await.expect("explained");
            line.run("ROLLBACK; BEGIN").await.expect("undone");
            line.commit().await.expect("ended");
            let plan: Vec<&str> = plan.iter().map(|row| row.try_get(0).expect("a line of the plan")).collect();
            let whole = plan.join("\n");
            assert!(!whole.contains("Seq Scan on job"), "{whole}");
            // The first line that tells of pages counts those of the parts, too.
            let told = plan.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared ")).expect("pages");
            let numbers = told.split([' ', '=']).filter_map(|word| word.parse::<u64>().ok());
            pages += numbers.sum::<u64>();
        }
        pages
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_a_look_steps_over_what_a_forgotten_session_keeps_from_being_removed() {
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        let forgotten = client(&server).await;
        forgotten.batch_execute("BEGIN; SELECT txid_current()").await.expect("pinned");
        for queue in ["work", "groups", "delayed"] {
            let mut touched = Vec::new();
            for lives in [500, 4_000] {
                live(&store, queue, lives).await;
                let last = accept(&store, job(queue, 0)).await;
                client(&server).await.batch_execute("ANALYZE job").await.expect("analyzed");
                let bounded = pages(&store, queue, Reach::Since(now() - Duration::from_millis(1))).await;
                touched.push((bounded, pages(&store, queue, Reach::Whole).await));
                assert_eq!(found(&store, queue).await, last);
            }
            let [(few, whole_few), (many, whole_many)] = touched[..] else { panic!("{touched:?}") };
            assert!(whole_many > whole_few + 60, "{queue}: there is something to step over: {touched:?}");
            assert!(many < few + 30, "{queue}: {touched:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p6_what_is_below_the_ground_is_found_all_the_same() {
        let server = Postgres::start();
        let store = Arc::new(open(&server).await);
        let client = client(&server).await;
        for (queue, sink) in [
            ("work", "UPDATE job SET turn = 0 WHERE id = $1"),
            ("delayed", "UPDATE job SET run_at = 1 WHERE id = $1"),
            ("groups", "UPDATE lane SET due_at = 1 WHERE id = 7 AND $1::bigint > 0"),
        ] {
            live(&store, queue, 500).await;
            // The others learn of it only by looking.
            let job = accept(&store, job(queue, 7)).await;
            let number = job.number().cast_signed();
            assert_eq!(client.execute(sink, &[&number]).await.expect("sunk"), 1);
            assert_eq!(found(&store, queue).await, job);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn f42_p7_a_priority_that_nobody_here_has_heard_of_comes_first_if_it_is_higher() {
        let server = Postgres::start();
        let (here, elsewhere) = (Arc::new(open(&server).await), open(&server).await);
        for queue in ["work", "groups"] {
            live(&here, queue, 500).await;
            let mut jobs = Vec::new();
            for (lane, priority) in [(1, 0), (2, -5), (3, 7), (4, i16::MIN), (5, i16::MAX)] {
                jobs.push((priority, accept(&elsewhere, NewJob { priority, ..job(queue, lane) }).await));
            }
            jobs.sort();
            while let Some((priority, job)) = jobs.pop() {
                assert_eq!(next(&here, queue).await, Some(job), "{queue} {priority}");
            }
        }
    }
}
