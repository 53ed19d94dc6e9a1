//! revive: a dead letter runs again, under the same keys, on record.

use super::pool::Line;
use super::rows::{self, DEAD, DONE, GIVEN_UP, NOT_DONE, UNKNOWN};
use super::{Fault, Shared, lanes};
use crate::replay::InPlan;
use crate::{Act, Record, ReviveAsk, Revived, UnknownRuling, VersionId};
use clinch_core::job::Word;
use clinch_core::lane::Order;
use clinch_core::replay::{self, Mark};
use clinch_core::time::Timestamp;
use std::sync::Arc;

/// A job that lives again, as soon as it is committed.
pub(super) struct Again {
    pub queue: Arc<str>,
    pub version: VersionId,
    pub run_at: Timestamp,
    /// For the audit.
    pub acted: (Act, Record),
}

/// Within the transaction of the caller, who puts it on record before the commit and lets others know after it.
pub(super) async fn revive(
    shared: &Shared,
    line: &mut Line,
    ask: &ReviveAsk,
) -> Result<(Revived, Option<Again>), Fault> {
    bring_back(shared, line, ask, None).await
}

/// By a plan, if it is what the plan has counted: then it stands behind everything live.
pub(super) async fn bring_back(
    shared: &Shared,
    line: &mut Line,
    ask: &ReviveAsk,
    by_plan: Option<&InPlan>,
) -> Result<(Revived, Option<Again>), Fault> {
    let job = ask.job.number().cast_signed();
    // Locked first: who presses the button at the same time waits, and then finds a job that is no dead letter.
    // A second time, if it was just on its way to where dead letters are, or back: who waits for it then finds nothing.
    let is_locked = async |line: &mut Line| -> Result<bool, Fault> {
        Ok(!line.query("SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE", &[&job]).await?.is_empty())
    };
    if !is_locked(line).await? && !is_locked(line).await? {
        return Ok((Revived::NotFound, None));
    }
    let rows = line.query(&format!("{} WHERE job.id = $1", rows::JOB_ROW), &[&job]).await?;
    let Some(row) = rows::job_rows(&rows, &shared.sealer)?.pop() else {
        return Ok((Revived::NotFound, None));
    };
    if row.word != Word::Dead {
        return Ok((Revived::NotDead { state: row.word }, None));
    }
    let effects = rows::effects(line, &[job]).await?.remove(&ask.job).unwrap_or_default();
    if by_plan.is_some_and(|plan| plan.mark != Mark::of(row.replays, row.attempts, row.ended_at, row.reason, &effects))
    {
        return Ok((Revived::NotDead { state: row.word }, None));
    }
    // Where the target can tell, the worker sends again by itself; else a person must say what to do.
    if ask.unknown.is_none() && replay::asks(&effects) {
        let unclear = effects.into_iter().filter(|effect| effect.state.is_unclear());
        let steps = unclear.map(|effect| effect.name).collect();
        return Ok((Revived::Ask { steps }, None));
    }
    // What was given up may be tried again; whether it was done is as unknown as it was.
    line.query(
        "INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence)
         SELECT job, name, no + 1, class, CASE state WHEN $2::smallint THEN $2::smallint ELSE $3::smallint END,
                first_intended_at, $4::bigint, sends, fence
         FROM (SELECT DISTINCT ON (name) * FROM effect WHERE job = $1 ORDER BY name, no DESC) AS last
         WHERE state = $5::smallint OR (state = $2::smallint AND status IS NOT NULL)",
        &[&job, &UNKNOWN, &NOT_DONE, &ask.record.at.as_micros(), &GIVEN_UP],
    )
    .await?;
    if let Some(ruling) = ask.unknown {
        let state = match ruling {
            UnknownRuling::Resend => NOT_DONE,
            UnknownRuling::Skip => DONE,
        };
        line.query(
            "INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence)
             SELECT job, name, no + 1, class, $2::smallint, first_intended_at, $3::bigint, sends, fence
             FROM (SELECT DISTINCT ON (name) * FROM effect WHERE job = $1 ORDER BY name, no DESC) AS last
             WHERE state IN (0, 3)",
            &[&job, &state, &ask.record.at.as_micros()],
        )
        .await?;
    }
    let version = ask.version.unwrap_or(row.version);
    let replays = row.replays + 1;
    let places = line.query("SELECT priority, ord FROM job WHERE slot = 0 AND id = $1", &[&job]).await?;
    let place = places.first().ok_or(Fault::Damaged("a dead letter that is locked is gone"))?;
    let (priority, is_fifo) = (place.try_get(0)?, Order::from_number(place.try_get(1)?).is_fifo());
    // Where the order is kept, those behind it in its lane would wait with it.
    let priority = if by_plan.is_some() && !is_fifo { replay::behind(priority) } else { replay::own(priority) };
    let when = by_plan.map_or(ask.record.at, |plan| plan.run_at);
    let run_at = shared.skew.to_database(when).as_micros();
    line.query(
        "WITH dead AS (DELETE FROM job WHERE slot = 0 AND id = $1 AND state = $5 RETURNING *)
         INSERT INTO job (id, event, version, received_at, run_at, lane, turn, pos, fence, failures, attempts, replays, state,
                          ord, priority, flow, queue, slot)
         SELECT id, event, $4, received_at, $2, lane, turn, pos, fence, 0, attempts, $3, 5, ord, $6, flow, queue,
                (SELECT active FROM ring)
         FROM dead",
        &[&job, &run_at, &replays.cast_signed(), &version.0, &DEAD, &priority],
    )
    .await?;
    lanes::revive(line, job, run_at).await?;
    let acted = (ask.act(&row, version, by_plan), ask.record.clone());
    Ok((Revived::Revived { replays }, Some(Again { queue: row.queue, version, run_at: when, acted })))
}
