//! Replays with a plan: kept, started, let go in portions, and reckoned. Whoever changes a plan has locked its row first, so that
//! of many nodes one at a time does.

use super::pool::{Line, Pool};
use super::rows::{self, Read};
use super::{Fault, Shared, audit, revive};
use crate::replay::{
    DeadFilter, DeadLetter, Forecast, InPlan, ItemFilter, ItemRow, NewPlan, PlanRow, Plans, Reckoned, ReleaseAsk,
    Start, StartAsk, Started, TurnAsk, Turned, tally,
};
use crate::{ReviveAsk, Revived, VersionId};
use clinch_core::id::PlanId;
use clinch_core::job::{Waits, Word};
use clinch_core::replay::{self, ItemState, Mark, PLAN_VALID, Percent, PlanState, Terms, UNENDED_MAX};
use clinch_core::time::Timestamp;
use std::num::NonZeroU32;
use std::sync::Arc;
use tokio_postgres::Row;

const PLAN: &str = "SELECT id, at, actor, reason, query, run, noop, ask, kept, oldest, newest, more, state, started_at, started_by,
    started_why, rate, jobs_max, canary, stop_at, at_once, version, ended_at, why, next_at, jobs, released, succeeded, nooped,
    failed, changed, asked, lost FROM replay_plan";

/// Plans of which nothing is left to tell, with all that is in them.
pub(super) const PRUNE: &str = "WITH over AS (
        SELECT id FROM replay_plan WHERE state IN (0, 3, 4) AND coalesce(ended_at, at) <= $1 ORDER BY id LIMIT 1
    ), items AS (
        DELETE FROM replay_item USING over WHERE plan = over.id
    ), gone AS (
        DELETE FROM replay_plan USING over WHERE replay_plan.id = over.id RETURNING 1
    ) SELECT count(*) FROM gone WHERE $2::bigint > 0";

fn number(plan: PlanId) -> i64 {
    plan.number().cast_signed()
}

pub(super) async fn keep(shared: &Shared, plan: &NewPlan) -> Result<(), Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let (forecast, micros) = (&plan.forecast, |at: Option<Timestamp>| at.map(Timestamp::as_micros));
    line.query(
        "INSERT INTO replay_plan (id, at, actor, reason, query, run, noop, ask, kept, oldest, newest, more, state, jobs)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 0, $13)",
        &[
            &number(plan.id),
            &plan.record.at.as_micros(),
            &rows::text(&plan.record.actor),
            &rows::text(&plan.record.reason),
            &rows::text(&plan.query),
            &forecast.run.cast_signed(),
            &forecast.noop.cast_signed(),
            &forecast.ask.cast_signed(),
            &forecast.kept_text(),
            &micros(forecast.oldest),
            &micros(forecast.newest),
            &forecast.more,
            &i64::try_from(plan.items.len()).unwrap_or(i64::MAX),
        ],
    )
    .await?;
    let jobs: Vec<i64> = plan.items.iter().map(|item| item.job.number().cast_signed()).collect();
    let marks: Vec<i64> = plan.items.iter().map(|item| item.mark.number()).collect();
    let replays: Vec<i32> = plan.items.iter().map(|item| item.replays.cast_signed()).collect();
    let died: Vec<i64> = plan.items.iter().map(|item| item.died_at.as_micros()).collect();
    line.query(
        "INSERT INTO replay_item (plan, no, job, mark, replays, died_at)
         SELECT $1, no, job, mark, replays, died_at
         FROM unnest($2::bigint[], $3::bigint[], $4::integer[], $5::bigint[]) WITH ORDINALITY
             AS item (job, mark, replays, died_at, no)",
        &[&number(plan.id), &jobs, &marks, &replays, &died],
    )
    .await?;
    audit::append(&mut line, [&(plan.act(), plan.record.clone())]).await?;
    line.commit().await
}

async fn locked(line: &mut Line, plan: PlanId) -> Result<Option<PlanRow>, Fault> {
    line.query(&format!("{PLAN} WHERE id = $1 FOR UPDATE"), &[&number(plan)]).await?.first().map(row).transpose()
}

pub(super) async fn start(shared: &Shared, ask: &StartAsk) -> Result<Started, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let started = match locked(&mut line, ask.plan).await? {
        None => Started::NotFound,
        Some(plan) if plan.state != PlanState::Planned => Started::Before(plan.state),
        Some(plan) if plan.at + PLAN_VALID < ask.record.at => Started::Stale,
        Some(_) => {
            let Terms { rate, max, canary, stop_at, at_once } = ask.terms;
            line.query(
                "UPDATE replay_plan SET state = 1, started_at = $2, started_by = $3, started_why = $4, rate = $5, jobs_max = $6,
                     canary = $7, stop_at = $8, at_once = $9, version = $10, next_at = $2 WHERE id = $1",
                &[
                    &number(ask.plan),
                    &ask.record.at.as_micros(),
                    &rows::text(&ask.record.actor),
                    &rows::text(&ask.record.reason),
                    &rate.to_string(),
                    &i64::from(max.get()),
                    &i64::from(canary),
                    &stop_at.map(|share| i64::from(share.get())),
                    &i64::from(at_once.get()),
                    &ask.version.map(|version| version.0),
                ],
            )
            .await?;
            audit::append(&mut line, [&(ask.act(), ask.record.clone())]).await?;
            Started::Started
        }
    };
    line.commit().await?;
    Ok(started)
}

pub(super) async fn turn(shared: &Shared, ask: &TurnAsk) -> Result<Turned, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let (from, to) = ask.to.step();
    let turned = match locked(&mut line, ask.plan).await? {
        None => Turned::NotFound,
        Some(plan) if !from.contains(&plan.state) => Turned::Not(plan.state),
        Some(plan) => {
            let is_over = matches!(to, PlanState::Stopped | PlanState::Done);
            let ended_at = is_over.then(|| ask.record.at.as_micros());
            line.query(
                "UPDATE replay_plan SET state = $2, why = $3, ended_at = $4 WHERE id = $1",
                &[&number(ask.plan), &to.number(), &ask.to.why().map(rows::text), &ended_at],
            )
            .await?;
            audit::append(&mut line, [&(ask.to.act(&plan), ask.record.clone())]).await?;
            Turned::Turned
        }
    };
    line.commit().await?;
    Ok(turned)
}

pub(super) async fn release(shared: &Shared, ask: &ReleaseAsk) -> Result<u64, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let plan = locked(&mut line, ask.plan).await?.filter(|plan| plan.state == PlanState::Running);
    let plan = plan.filter(|plan| plan.tally.looked_at() == ask.looked_at);
    let Some(start) = plan.and_then(|plan| plan.start) else {
        line.commit().await?;
        return Ok(0);
    };
    let items = line
        .query(
            "SELECT no, job, mark FROM replay_item WHERE plan = $1 AND state = 0 ORDER BY no LIMIT $2",
            &[&number(ask.plan), &i64::from(ask.most)],
        )
        .await?;
    let record = start.record(ask.plan, ask.now);
    let (mut lives, mut ends) = (Vec::new(), Ends::default());
    for (nth, item) in (0..).zip(&items) {
        let (job, mark) = (rows::job_id(item, 1)?, Mark::from_number(item.try_get(2)?));
        let revival = ReviveAsk { job, record: record.clone(), version: start.version, unknown: None };
        let by_plan = InPlan { plan: ask.plan, mark, run_at: ask.moments.nth(nth).max(ask.now) };
        let (revived, again) = revive::bring_back(shared, &mut line, &revival, Some(&by_plan)).await?;
        lives.extend(again);
        let state = match revived {
            Revived::Revived { .. } => ItemState::Released,
            Revived::Ask { .. } => ItemState::Asks,
            Revived::NotDead { .. } | Revived::NotFound => ItemState::Changed,
        };
        ends.push(item.try_get(0)?, state, None);
    }
    mark_items(&mut line, ask.plan, ItemState::Waiting, &ends).await?;
    let next_at = ask.moments.nth(ask.most).as_micros();
    line.query("UPDATE replay_plan SET next_at = $2 WHERE id = $1", &[&number(ask.plan), &next_at]).await?;
    audit::append(&mut line, lives.iter().map(|again| &again.acted)).await?;
    line.commit().await?;
    for again in &lives {
        shared.lives_again(again);
    }
    Ok(items.len() as u64)
}

/// Where jobs of a plan stand from here on.
#[derive(Default)]
struct Ends {
    no: Vec<i32>,
    state: Vec<i16>,
    ended_at: Vec<Option<i64>>,
}

impl Ends {
    fn push(&mut self, no: i32, state: ItemState, ended_at: Option<Timestamp>) {
        self.no.push(no);
        self.state.push(state.number());
        self.ended_at.push(ended_at.map(Timestamp::as_micros));
    }
}

/// Writes it down and counts it; a job is marked once as let go, and once as ended.
async fn mark_items(line: &mut Line, plan: PlanId, from: ItemState, ends: &Ends) -> Result<(), Fault> {
    line.query(
        "WITH marked AS (
             UPDATE replay_item SET state = new.state, ended_at = new.ended_at
             FROM unnest($2::integer[], $3::smallint[], $4::bigint[]) AS new (no, state, ended_at)
             WHERE replay_item.plan = $1 AND replay_item.no = new.no AND replay_item.state = $5
             RETURNING new.state
         ), counted AS (
             SELECT count(*) FILTER (WHERE state = 1) AS released, count(*) FILTER (WHERE state = 2) AS succeeded,
                    count(*) FILTER (WHERE state = 3) AS nooped, count(*) FILTER (WHERE state = 4) AS failed,
                    count(*) FILTER (WHERE state = 5) AS changed, count(*) FILTER (WHERE state = 6) AS asked
             FROM marked
         )
         UPDATE replay_plan AS plan SET
             released = plan.released + counted.released, succeeded = plan.succeeded + counted.succeeded,
             nooped = plan.nooped + counted.nooped, failed = plan.failed + counted.failed,
             changed = plan.changed + counted.changed, asked = plan.asked + counted.asked,
             lost = plan.lost + CASE WHEN $5::smallint = 1 THEN counted.changed ELSE 0 END
         FROM counted WHERE plan.id = $1",
        &[&number(plan), &ends.no, &ends.state, &ends.ended_at, &from.number()],
    )
    .await?;
    Ok(())
}

pub(super) async fn reckon(shared: &Shared, plan: PlanId, now: Timestamp) -> Result<Option<Reckoned>, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let Some(mut row) = locked(&mut line, plan).await? else {
        line.commit().await?;
        return Ok(None);
    };
    let out = line
        .query(
            "SELECT item.no, item.replays, job.state, job.failures, job.waits, job.replays, job.ended_at
             FROM replay_item AS item LEFT JOIN job ON job.id = item.job
             WHERE item.plan = $1 AND item.state = 1 ORDER BY item.no LIMIT $2",
            &[&number(plan), &UNENDED_MAX.cast_signed()],
        )
        .await?;
    let (mut ends, mut busy) = (Ends::default(), 0);
    for out in &out {
        let as_it_is = match out.try_get::<_, Option<i16>>(2)? {
            None => None,
            Some(state) => {
                let waits = out.try_get::<_, Option<i16>>(4)?.and_then(Waits::from_number);
                Some((rows::word(state, rows::count(out, 3)?, waits), rows::count(out, 5)?))
            }
        };
        match replay::ended(rows::count(out, 1)? + 1, as_it_is) {
            None => busy += u64::from(as_it_is.is_some_and(|(word, _)| matches!(word, Word::Queued | Word::Running))),
            Some(state) => {
                let ended_at = rows::maybe_time(out, 6)?.unwrap_or(now);
                ends.push(out.try_get(0)?, state, Some(ended_at));
            }
        }
    }
    if !ends.no.is_empty() {
        mark_items(&mut line, plan, ItemState::Released, &ends).await?;
        let Some(after) = locked(&mut line, plan).await? else {
            return Err(Fault::Damaged("a plan that is locked is gone"));
        };
        row = after;
    }
    line.commit().await?;
    Ok(Some(Reckoned { plan: row, busy }))
}

pub(super) async fn find(eyes: &Arc<Pool>, plan: PlanId) -> Result<Option<PlanRow>, Fault> {
    eyes.ask(&format!("{PLAN} WHERE id = $1"), &[&number(plan)]).await?.first().map(row).transpose()
}

pub(super) async fn list(eyes: &Arc<Pool>, which: Plans, limit: usize) -> Result<Vec<PlanRow>, Fault> {
    let sql = format!("{PLAN} WHERE id > $1 AND {} LIMIT $2", which.condition());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    eyes.ask(&sql, &[&which.after(), &limit]).await?.iter().map(row).collect()
}

fn row(row: &Row) -> Result<PlanRow, Fault> {
    let start = rows::maybe_time(row, 13)?.map(|at| start_of(row, at)).transpose()?;
    let mut counts = [0; 7];
    for (column, count) in (26..).zip(&mut counts) {
        *count = row.try_get(column)?;
    }
    Ok(PlanRow {
        id: PlanId::from_number(rows::big_count(row, 0)?),
        at: rows::time(row, 1)?,
        actor: row.try_get(2)?,
        reason: row.try_get(3)?,
        query: row.try_get(4)?,
        forecast: Forecast {
            run: rows::big_count(row, 5)?,
            noop: rows::big_count(row, 6)?,
            ask: rows::big_count(row, 7)?,
            kept: Forecast::kept_of(row.try_get(8)?),
            oldest: rows::maybe_time(row, 9)?,
            newest: rows::maybe_time(row, 10)?,
            more: row.try_get(11)?,
        },
        state: PlanState::from_number(row.try_get(12)?).unwrap_or(PlanState::Stopped),
        start,
        ended_at: rows::maybe_time(row, 22)?,
        why: row.try_get(23)?,
        next_at: rows::time(row, 24)?,
        tally: tally(row.try_get(25)?, counts),
    })
}

fn start_of(row: &Row, at: Timestamp) -> Result<Start, Fault> {
    let number = |column: usize| -> Read<u32> { Ok(u32::try_from(row.try_get::<_, i64>(column)?).unwrap_or(u32::MAX)) };
    let share = row.try_get::<_, Option<i64>>(19)?.and_then(|share| u8::try_from(share).ok());
    Ok(Start {
        at,
        actor: row.try_get(14)?,
        reason: row.try_get(15)?,
        terms: Terms {
            rate: row.try_get::<_, &str>(16)?.parse().map_err(|_| Fault::Damaged("the rate of a plan"))?,
            max: NonZeroU32::new(number(17)?).unwrap_or(NonZeroU32::MIN),
            canary: number(18)?,
            stop_at: share.and_then(Percent::new),
            at_once: NonZeroU32::new(number(20)?).unwrap_or(NonZeroU32::MIN),
        },
        version: row.try_get::<_, Option<i64>>(21)?.map(VersionId),
    })
}

pub(super) async fn items(eyes: &Arc<Pool>, filter: &ItemFilter) -> Result<Vec<ItemRow>, Fault> {
    let found = eyes
        .ask(
            "SELECT no, job, state, died_at, ended_at FROM replay_item
             WHERE plan = $1 AND no > $2 AND ($3::smallint IS NULL OR state = $3) ORDER BY no LIMIT $4",
            &[
                &number(filter.plan),
                &i32::try_from(filter.after).unwrap_or(i32::MAX),
                &filter.state.map(ItemState::number),
                &i64::try_from(filter.limit).unwrap_or(i64::MAX),
            ],
        )
        .await?;
    let item = |row: &Row| -> Result<ItemRow, Fault> {
        Ok(ItemRow {
            no: rows::count(row, 0)?.into(),
            job: rows::job_id(row, 1)?,
            state: ItemState::from_number(row.try_get(2)?).unwrap_or(ItemState::Changed),
            died_at: rows::time(row, 3)?,
            ended_at: rows::maybe_time(row, 4)?,
        })
    };
    found.iter().map(item).collect()
}

pub(super) async fn dead_letters(eyes: &Arc<Pool>, filter: &DeadFilter) -> Result<Vec<DeadLetter>, Fault> {
    let mut line = eyes.line().await?;
    line.begin_reading().await?;
    let is_of_events = filter.events.is_some();
    let events: Vec<i64> = filter.events.iter().flatten().map(|event| event.number().cast_signed()).collect();
    let is_of_jobs = filter.jobs.is_some();
    let jobs: Vec<i64> = filter.jobs.iter().flatten().map(|job| job.number().cast_signed()).collect();
    let found = line
        .query(
            "SELECT id, queue, version, reason, ended_at, replays, attempts FROM job
             WHERE slot = 0 AND state = 3 AND id > $1 AND ($2::text IS NULL OR flow = $2) AND ($3::text IS NULL OR queue = $3)
               AND ($4::smallint IS NULL OR reason = $4) AND ($5::bigint IS NULL OR ended_at >= $5)
               AND ($6::bigint IS NULL OR ended_at < $6) AND (NOT $12 OR id = ANY($7)) AND (NOT $8 OR event = ANY($9))
               AND ($11::text IS NULL OR (SELECT source FROM event WHERE event.id = job.event) = $11)
             ORDER BY id LIMIT $10",
            &[
                &filter.after.map_or(0, |job| job.number().cast_signed()),
                &filter.flow.as_deref().map(rows::text),
                &filter.queue.as_deref().map(rows::text),
                &filter.reason.map(rows::reason_number),
                &filter.since.map(Timestamp::as_micros),
                &filter.until.map(Timestamp::as_micros),
                &jobs,
                &is_of_events,
                &events,
                &i64::try_from(filter.limit).unwrap_or(i64::MAX),
                &filter.source.as_deref().map(rows::text),
                &is_of_jobs,
            ],
        )
        .await?;
    let dead = |row: &Row| -> Read<DeadLetter> {
        Ok(DeadLetter {
            job: rows::job_id(row, 0)?,
            queue: rows::name(row, 1)?,
            version: VersionId(row.try_get(2)?),
            reason: row.try_get::<_, Option<i16>>(3)?.map(rows::reason),
            died_at: rows::time(row, 4)?,
            replays: rows::count(row, 5)?,
            attempts: rows::count(row, 6)?,
            effects: Vec::new(),
        })
    };
    let mut found = found.iter().map(dead).collect::<Read<Vec<_>>>()?;
    let jobs: Vec<i64> = found.iter().map(|dead| dead.job.number().cast_signed()).collect();
    let mut effects = rows::effects(&mut line, &jobs).await?;
    line.commit().await?;
    for dead in &mut found {
        dead.effects = effects.remove(&dead.job).unwrap_or_default();
    }
    Ok(found)
}
