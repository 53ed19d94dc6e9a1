//! revive: a dead letter runs again, under the same keys, on record.

use super::audit;
use super::memory::{Live, Phase, Settled};
use super::rows::{self, DEAD, DONE, GIVEN_UP, NOT_DONE, OPEN, READY, UNKNOWN};
use super::writer::Batch;
use crate::replay::InPlan;
use crate::{ReviveAsk, Revived, UnknownRuling};
use clinch_core::replay::{self, Mark};
use rusqlite::{OptionalExtension, params};

pub(super) fn revive(batch: &mut Batch<'_>, ask: &ReviveAsk) -> rusqlite::Result<Revived> {
    bring_back(batch, ask, None)
}

/// By a plan, if it is what the plan has counted: then it stands behind everything live.
pub(super) fn bring_back(
    batch: &mut Batch<'_>,
    ask: &ReviveAsk,
    by_plan: Option<&InPlan>,
) -> rusqlite::Result<Revived> {
    let job = ask.job.number().cast_signed();
    let row = batch
        .conn
        .prepare_cached(&format!("{} WHERE job.id = ?1", rows::JOB_ROW))?
        .query_row([job], |row| rows::job_row(row, &batch.shared.sealer))
        .optional()?;
    let Some(row) = row else { return Ok(Revived::NotFound) };
    let Some(reason) = row.reason.filter(|_| row.word == clinch_core::job::Word::Dead) else {
        return Ok(Revived::NotDead { state: row.word });
    };
    let effects = rows::effects(batch.conn, ask.job)?;
    if by_plan.is_some_and(|plan| plan.mark != Mark::of(row.replays, row.attempts, row.ended_at, row.reason, &effects))
    {
        return Ok(Revived::NotDead { state: row.word });
    }
    // Where the target can tell, the worker sends again by itself; else a person must say what to do.
    if ask.unknown.is_none() && replay::asks(&effects) {
        let unclear = effects.into_iter().filter(|effect| effect.state.is_unclear());
        let steps = unclear.map(|effect| effect.name).collect();
        return Ok(Revived::Ask { steps });
    }
    if !batch.touch(ask.job) {
        // It is being buried in this very transaction: the ask came before anybody could know.
        return Ok(Revived::NotDead { state: clinch_core::job::Word::Running });
    }
    // What was given up may be tried again; whether it was done is as unknown as it was.
    batch
        .conn
        .prepare_cached(
            "UPDATE effect SET state = CASE state WHEN ?2 THEN ?2 ELSE ?3 END, status = NULL, changed_at = ?4
             WHERE job = ?1 AND (state = ?5 OR (state = ?2 AND status IS NOT NULL))",
        )?
        .execute(params![job, UNKNOWN, NOT_DONE, ask.record.at.as_micros(), GIVEN_UP])?;
    if let Some(ruling) = ask.unknown {
        let state = match ruling {
            UnknownRuling::Resend => NOT_DONE,
            UnknownRuling::Skip => DONE,
        };
        batch.conn.execute(
            "UPDATE effect SET state = ?2, changed_at = ?3 WHERE job = ?1 AND state IN (?4, ?5)",
            params![job, state, ask.record.at.as_micros(), OPEN, UNKNOWN],
        )?;
    }
    let mut place = batch
        .conn
        .prepare_cached("SELECT lane, ord, priority FROM job WHERE id = ?1")?
        .query_row([job], |row| rows::place(row, 0))?;
    // Where the order is kept, those behind it in its lane would wait with it.
    place.priority = match by_plan {
        Some(_) if !place.order.is_fifo() => replay::behind(place.priority),
        _ => replay::own(place.priority),
    };
    let run_at = by_plan.map_or(ask.record.at, |plan| plan.run_at);
    let version = ask.version.unwrap_or(row.version);
    let replays = row.replays + 1;
    batch
        .conn
        .prepare_cached(
            "UPDATE job SET state = ?2, run_at = ?3, failures = 0, replays = ?4, version = ?5, priority = ?7,
                 first_attempt_at = NULL, ended_at = NULL, reason = NULL
             WHERE id = ?1 AND state = ?6",
        )?
        .execute(params![job, READY, run_at.as_micros(), replays, version.0, DEAD, place.priority])?;
    audit::append(batch, &ask.act(&row, version, by_plan), &ask.record)?;
    // A start looks only at jobs from `live_from` on: an older one that lives again must move it back.
    batch.conn.prepare_cached("UPDATE fact SET value = ?1 WHERE name = 'live_from' AND value > ?1")?.execute([job])?;
    batch.changes.push(Settled::Revived {
        job: ask.job,
        reason,
        live: Live {
            event: row.event,
            flow: row.flow,
            queue: row.queue,
            place,
            version,
            received_at: row.received_at,
            trace: row.trace,
            failures: 0,
            attempts: row.attempts,
            replays,
            first_attempt_at: None,
            phase: Phase::Ready { run_at, waits: None },
            payload: None,
            has_effects: true,
        },
    });
    Ok(Revived::Revived { replays })
}
