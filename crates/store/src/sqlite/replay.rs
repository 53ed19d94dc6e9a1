//! Replays with a plan: kept, started, let go in portions, and reckoned.

use super::memory::Memory;
use super::writer::{Batch, Shared, lock};
use super::{Readers, audit, revive, rows};
use crate::replay::{
    DeadFilter, DeadLetter, Forecast, InPlan, ItemFilter, ItemRow, NewPlan, PlanRow, Plans, Reckoned, ReleaseAsk,
    Start, StartAsk, Started, TurnAsk, Turned, tally,
};
use crate::{Result, ReviveAsk, Revived, VersionId};
use clinch_core::id::{JobId, PlanId};
use clinch_core::job::Word;
use clinch_core::replay::{self, ItemState, Mark, PLAN_VALID, Percent, PlanState, Terms, UNENDED_MAX};
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::num::NonZeroU32;

const PLAN: &str = "SELECT id, at, actor, reason, query, run, noop, ask, kept, oldest, newest, more, state, started_at, started_by,
    started_why, rate, jobs_max, canary, stop_at, at_once, version, ended_at, why, next_at, jobs, released, succeeded, nooped,
    failed, changed, asked, lost FROM replay_plan";

/// Plans of which nothing is left to tell, with all that is in them.
pub(super) const PRUNE_ITEMS: &str = "DELETE FROM replay_item WHERE (plan, no) IN (
    SELECT item.plan, item.no FROM replay_plan AS plan JOIN replay_item AS item ON item.plan = plan.id
    WHERE plan.state IN (0, 3, 4) AND ifnull(plan.ended_at, plan.at) <= ?1 LIMIT ?2)";
pub(super) const PRUNE: &str = "DELETE FROM replay_plan WHERE id IN (
    SELECT id FROM replay_plan AS plan WHERE plan.state IN (0, 3, 4) AND ifnull(plan.ended_at, plan.at) <= ?1
        AND NOT EXISTS (SELECT 1 FROM replay_item AS item WHERE item.plan = plan.id) LIMIT ?2)";

fn number(plan: PlanId) -> i64 {
    plan.number().cast_signed()
}

pub(super) fn keep(batch: &Batch<'_>, plan: &NewPlan) -> rusqlite::Result<()> {
    let (forecast, micros) = (&plan.forecast, |at: Option<Timestamp>| at.map(Timestamp::as_micros));
    batch.conn.execute(
        "INSERT INTO replay_plan (id, at, actor, reason, query, run, noop, ask, kept, oldest, newest, more, state, jobs)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 0, ?13)",
        params![
            number(plan.id),
            plan.record.at.as_micros(),
            plan.record.actor,
            plan.record.reason,
            plan.query,
            forecast.run.cast_signed(),
            forecast.noop.cast_signed(),
            forecast.ask.cast_signed(),
            forecast.kept_text(),
            micros(forecast.oldest),
            micros(forecast.newest),
            forecast.more,
            i64::try_from(plan.items.len()).unwrap_or(i64::MAX),
        ],
    )?;
    let mut insert = batch.conn.prepare_cached(
        "INSERT INTO replay_item (plan, no, job, mark, replays, died_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    for (no, item) in (1_i64..).zip(&plan.items) {
        let job = item.job.number().cast_signed();
        insert.execute(params![
            number(plan.id),
            no,
            job,
            item.mark.number(),
            item.replays,
            item.died_at.as_micros()
        ])?;
    }
    audit::append(batch, &plan.act(), &plan.record)
}

pub(super) fn start(batch: &Batch<'_>, ask: &StartAsk) -> rusqlite::Result<Started> {
    let Some(plan) = find(batch.conn, ask.plan)? else { return Ok(Started::NotFound) };
    if plan.state != PlanState::Planned {
        return Ok(Started::Before(plan.state));
    }
    if plan.at + PLAN_VALID < ask.record.at {
        return Ok(Started::Stale);
    }
    let Terms { rate, max, canary, stop_at, at_once } = ask.terms;
    batch.conn.execute(
        "UPDATE replay_plan SET state = 1, started_at = ?2, started_by = ?3, started_why = ?4, rate = ?5, jobs_max = ?6,
             canary = ?7, stop_at = ?8, at_once = ?9, version = ?10, next_at = ?2 WHERE id = ?1",
        params![
            number(ask.plan),
            ask.record.at.as_micros(),
            ask.record.actor,
            ask.record.reason,
            rate.to_string(),
            max.get(),
            canary,
            stop_at.map(Percent::get),
            at_once.get(),
            ask.version.map(|version| version.0),
        ],
    )?;
    audit::append(batch, &ask.act(), &ask.record)?;
    Ok(Started::Started)
}

pub(super) fn turn(batch: &Batch<'_>, ask: &TurnAsk) -> rusqlite::Result<Turned> {
    let Some(plan) = find(batch.conn, ask.plan)? else { return Ok(Turned::NotFound) };
    let (from, to) = ask.to.step();
    if !from.contains(&plan.state) {
        return Ok(Turned::Not(plan.state));
    }
    let is_over = matches!(to, PlanState::Stopped | PlanState::Done);
    batch.conn.execute(
        "UPDATE replay_plan SET state = ?2, why = ?3, ended_at = ?4 WHERE id = ?1",
        params![number(ask.plan), to.number(), ask.to.why(), is_over.then(|| ask.record.at.as_micros())],
    )?;
    audit::append(batch, &ask.to.act(&plan), &ask.record)?;
    Ok(Turned::Turned)
}

pub(super) fn release(batch: &mut Batch<'_>, ask: &ReleaseAsk) -> rusqlite::Result<u64> {
    let plan = find(batch.conn, ask.plan)?.filter(|plan| plan.state == PlanState::Running);
    let Some((plan, start)) = plan.and_then(|plan| Some((plan.clone(), plan.start?))) else { return Ok(0) };
    if plan.tally.looked_at() != ask.looked_at {
        return Ok(0);
    }
    let items: Vec<(i64, JobId, Mark)> = batch
        .conn
        .prepare_cached(
            "SELECT no, job, mark FROM replay_item INDEXED BY replay_item_waiting
             WHERE plan = ?1 AND state = 0 ORDER BY no LIMIT ?2",
        )?
        .query_map(params![number(ask.plan), ask.most], |row| {
            Ok((row.get(0)?, rows::job_id(row, 1)?, Mark::from_number(row.get(2)?)))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let record = start.record(ask.plan, ask.now);
    for (nth, (no, job, mark)) in (0..).zip(&items) {
        let revival = ReviveAsk { job: *job, record: record.clone(), version: start.version, unknown: None };
        let by_plan = InPlan { plan: ask.plan, mark: *mark, run_at: ask.moments.nth(nth).max(ask.now) };
        let revived = revive::bring_back(batch, &revival, Some(&by_plan))?;
        let state = match revived {
            Revived::Revived { .. } => ItemState::Released,
            Revived::Ask { .. } => ItemState::Asks,
            Revived::NotDead { .. } | Revived::NotFound => ItemState::Changed,
        };
        mark_item(batch, ask.plan, *no, state, None)?;
    }
    batch
        .conn
        .prepare_cached("UPDATE replay_plan SET next_at = ?2 WHERE id = ?1")?
        .execute(params![number(ask.plan), ask.moments.nth(ask.most).as_micros()])?;
    Ok(items.len() as u64)
}

/// Writes down where a job of a plan stands, and counts it.
fn mark_item(
    batch: &Batch<'_>,
    plan: PlanId,
    no: i64,
    state: ItemState,
    ended_at: Option<Timestamp>,
) -> rusqlite::Result<()> {
    // A job is marked once as let go, and once as ended.
    let from = if ended_at.is_some() { ItemState::Released } else { ItemState::Waiting };
    let marked = batch
        .conn
        .prepare_cached("UPDATE replay_item SET state = ?3, ended_at = ?4 WHERE plan = ?1 AND no = ?2 AND state = ?5")?
        .execute(params![number(plan), no, state.number(), ended_at.map(Timestamp::as_micros), from.number()])?;
    let column = match state {
        ItemState::Waiting => return Ok(()),
        ItemState::Released => "released = released + ?2",
        ItemState::Success => "succeeded = succeeded + ?2",
        ItemState::Noop => "nooped = nooped + ?2",
        ItemState::Failed => "failed = failed + ?2",
        ItemState::Asks => "asked = asked + ?2",
        ItemState::Changed if ended_at.is_some() => "changed = changed + ?2, lost = lost + ?2",
        ItemState::Changed => "changed = changed + ?2",
    };
    batch
        .conn
        .prepare_cached(&format!("UPDATE replay_plan SET {column} WHERE id = ?1"))?
        .execute(params![number(plan), marked as i64])?;
    Ok(())
}

/// What was let go and has not been reckoned, with how its job is on disk.
struct Out {
    no: i64,
    job: JobId,
    replay: u32,
    now: Option<(Word, u32)>,
    ended_at: Option<Timestamp>,
}

pub(super) async fn reckon(
    readers: &Readers,
    shared: &Shared,
    plan: PlanId,
    now: Timestamp,
) -> Result<Option<Reckoned>> {
    let out = readers.ask(move |conn| all_out(conn, plan)).await?;
    let is_busy = |memory: &Memory, out: &Out| {
        memory.get(out.job).is_some_and(|live| matches!(live.word(), Word::Queued | Word::Running))
    };
    let mut ends: Vec<(i64, ItemState, Timestamp)> = Vec::new();
    let mut busy = 0;
    {
        let memory = lock(&shared.memory);
        for out in &out {
            match replay::ended(out.replay, out.now) {
                None => busy += u64::from(is_busy(&memory, out)),
                Some(state) => ends.push((out.no, state, out.ended_at.unwrap_or(now))),
            }
        }
    }
    let row = match ends.is_empty() {
        true => readers.ask(move |conn| find(conn, plan)).await?,
        false => {
            let write = move |batch: &mut Batch<'_>| {
                for (no, state, ended_at) in &ends {
                    mark_item(batch, plan, *no, *state, Some(*ended_at))?;
                }
                find(batch.conn, plan)
            };
            shared.write(write).await?
        }
    };
    Ok(row.map(|plan| Reckoned { plan, busy }))
}

/// By the small index: left to itself, SQLite walks over all jobs of the plan by their primary key, in this order as well.
fn all_out(conn: &Connection, plan: PlanId) -> rusqlite::Result<Vec<Out>> {
    conn.prepare_cached(
        "SELECT item.no, item.job, item.replays, job.state, job.failures, job.replays, job.ended_at
         FROM replay_item AS item INDEXED BY replay_item_released LEFT JOIN job ON job.id = item.job
         WHERE item.plan = ?1 AND item.state = 1 ORDER BY item.no LIMIT ?2",
    )?
    .query_map(params![number(plan), UNENDED_MAX.cast_signed()], |row| {
        let state: Option<i64> = row.get(3)?;
        let now = state.map(|state| Ok::<_, rusqlite::Error>((rows::word(state, row.get(4)?), row.get(5)?)));
        Ok(Out {
            no: row.get(0)?,
            job: rows::job_id(row, 1)?,
            replay: row.get::<_, u32>(2)? + 1,
            now: now.transpose()?,
            ended_at: rows::maybe_time(row, 6)?,
        })
    })?
    .collect()
}

pub(super) fn find(conn: &Connection, plan: PlanId) -> rusqlite::Result<Option<PlanRow>> {
    conn.prepare_cached(&format!("{PLAN} WHERE id = ?1"))?.query_row([number(plan)], row).optional()
}

pub(super) fn list(conn: &Connection, which: Plans, limit: usize) -> rusqlite::Result<Vec<PlanRow>> {
    conn.prepare_cached(&format!("{PLAN} WHERE id > ?1 AND {} LIMIT ?2", which.condition()))?
        .query_map([which.after(), i64::try_from(limit).unwrap_or(i64::MAX)], row)?
        .collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<PlanRow> {
    let count = |column: usize| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let start = rows::maybe_time(row, 13)?.map(|at| start_of(row, at)).transpose()?;
    Ok(PlanRow {
        id: PlanId::from_number(count(0)?),
        at: rows::time(row, 1)?,
        actor: row.get(2)?,
        reason: row.get(3)?,
        query: row.get(4)?,
        forecast: Forecast {
            run: count(5)?,
            noop: count(6)?,
            ask: count(7)?,
            kept: Forecast::kept_of(row.get_ref(8)?.as_str()?),
            oldest: rows::maybe_time(row, 9)?,
            newest: rows::maybe_time(row, 10)?,
            more: row.get(11)?,
        },
        state: PlanState::from_number(row.get(12)?).unwrap_or(PlanState::Stopped),
        start,
        ended_at: rows::maybe_time(row, 22)?,
        why: row.get(23)?,
        next_at: rows::time(row, 24)?,
        tally: tally(
            row.get(25)?,
            [row.get(26)?, row.get(27)?, row.get(28)?, row.get(29)?, row.get(30)?, row.get(31)?, row.get(32)?],
        ),
    })
}

fn start_of(row: &Row<'_>, at: Timestamp) -> rusqlite::Result<Start> {
    let damaged = |error| rusqlite::Error::FromSqlConversionFailure(16, rusqlite::types::Type::Text, Box::new(error));
    Ok(Start {
        at,
        actor: row.get(14)?,
        reason: row.get(15)?,
        terms: Terms {
            rate: row.get_ref(16)?.as_str()?.parse().map_err(damaged)?,
            max: NonZeroU32::new(row.get(17)?).unwrap_or(NonZeroU32::MIN),
            canary: row.get(18)?,
            stop_at: row.get::<_, Option<u8>>(19)?.and_then(Percent::new),
            at_once: NonZeroU32::new(row.get(20)?).unwrap_or(NonZeroU32::MIN),
        },
        version: row.get::<_, Option<i64>>(21)?.map(VersionId),
    })
}

pub(super) fn items(conn: &Connection, filter: &ItemFilter) -> rusqlite::Result<Vec<ItemRow>> {
    conn.prepare_cached(
        "SELECT no, job, state, died_at, ended_at FROM replay_item
         WHERE plan = ?1 AND no > ?2 AND (?3 IS NULL OR state = ?3) ORDER BY no LIMIT ?4",
    )?
    .query_map(
        params![
            number(filter.plan),
            i64::try_from(filter.after).unwrap_or(i64::MAX),
            filter.state.map(ItemState::number),
            i64::try_from(filter.limit).unwrap_or(i64::MAX),
        ],
        |row| {
            Ok(ItemRow {
                no: row.get::<_, i64>(0)?.cast_unsigned(),
                job: rows::job_id(row, 1)?,
                state: ItemState::from_number(row.get(2)?).unwrap_or(ItemState::Changed),
                died_at: rows::time(row, 3)?,
                ended_at: rows::maybe_time(row, 4)?,
            })
        },
    )?
    .collect()
}

pub(super) fn dead_letters(conn: &Connection, filter: &DeadFilter) -> rusqlite::Result<Vec<DeadLetter>> {
    let events = filter.events.as_ref().map(|events| {
        let numbers: Vec<i64> = events.iter().map(|event| event.number().cast_signed()).collect();
        serde_json::json!(numbers).to_string()
    });
    let jobs = filter.jobs.as_ref().map(|jobs| {
        let numbers: Vec<i64> = jobs.iter().map(|job| job.number().cast_signed()).collect();
        serde_json::json!(numbers).to_string()
    });
    let mut found: Vec<DeadLetter> = conn
        .prepare_cached(
            "SELECT job.id, queue.text, job.version, job.reason, job.ended_at, job.replays, job.attempts
             FROM job JOIN name AS flow ON flow.id = job.flow JOIN name AS queue ON queue.id = job.queue
             WHERE job.state = 3 AND job.id > ?1 AND (?2 IS NULL OR flow.text = ?2) AND (?3 IS NULL OR queue.text = ?3)
               AND (?4 IS NULL OR job.reason = ?4) AND (?5 IS NULL OR job.ended_at >= ?5) AND (?6 IS NULL OR job.ended_at < ?6)
               AND (?10 IS NULL OR (SELECT source FROM event WHERE event.id = job.event) = (SELECT id FROM name WHERE text = ?10))
               AND (?7 IS NULL OR job.id IN (SELECT value FROM json_each(?7))) AND (?8 IS NULL OR job.event IN (SELECT value FROM json_each(?8)))
             ORDER BY job.id LIMIT ?9",
        )?
        .query_map(
            params![
                filter.after.map_or(0, |job| job.number().cast_signed()),
                filter.flow,
                filter.queue,
                filter.reason.map(rows::reason_number),
                filter.since.map(Timestamp::as_micros),
                filter.until.map(Timestamp::as_micros),
                jobs,
                events,
                i64::try_from(filter.limit).unwrap_or(i64::MAX),
                filter.source,
            ],
            |row| {
                Ok(DeadLetter {
                    job: rows::job_id(row, 0)?,
                    queue: rows::name(row, 1)?,
                    version: VersionId(row.get(2)?),
                    reason: row.get::<_, Option<i64>>(3)?.map(rows::reason),
                    died_at: rows::time(row, 4)?,
                    replays: row.get(5)?,
                    attempts: row.get(6)?,
                    effects: Vec::new(),
                })
            },
        )?
        .collect::<rusqlite::Result<_>>()?;
    for dead in &mut found {
        dead.effects = rows::effects(conn, dead.job)?;
    }
    Ok(found)
}

pub(super) fn prune(batch: &Batch<'_>, now: Timestamp, most: usize) -> rusqlite::Result<()> {
    let (before, most) = ((now - replay::PLAN_KEPT).as_micros(), i64::try_from(most).unwrap_or(i64::MAX));
    for sql in [PRUNE_ITEMS, PRUNE] {
        batch.conn.prepare_cached(sql)?.execute(params![before, most])?;
    }
    Ok(())
}
