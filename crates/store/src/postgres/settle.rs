//! settle: the end of an attempt and what follows from it, with the fence compared in the same statement.

use super::batch::Family;
use super::ledger::{answers, columns};
use super::rows::{DEAD, NOOP, READY, SUCCESS, WAITING, effect_number, effect_status, reason_number, text};
use super::{Fault, Shared, lanes, lock};
use crate::{Conclusion, Held, LeaseRef, Result, Settlement, VersionId};
use clinch_core::death::Reason;
use clinch_core::job::{Change, Ending, Waits};
use clinch_core::lane::Order;
use clinch_core::time::Timestamp;
use std::borrow::Cow;
use std::collections::HashMap;

pub(super) struct Settlements;

// Who waits has tried nothing, unless it is charged for an attempt that failed before it had to.
// What is to wait for people does not, if they have decided meanwhile: its row says so (`approval::WOKEN`).
// No attempt ends with an effect still open: one that nobody concluded is unknown.
// A job that is over goes to rest. It is deleted and inserted, and not moved by an update: who waits for its row is then told
// that it is gone, as it is for him, and is not refused with all that he asked for besides.
const SETTLE: &str = concat!(
    "
    WITH held AS MATERIALIZED (
        SELECT asked.job, asked.fence, asked.state, asked.failed, asked.reason, asked.started_at, asked.ended_at, asked.outcome,
               asked.attempt_reason, asked.error, asked.step, asked.step_state, asked.step_at, asked.step_status, asked.step_body,
               asked.now, asked.waits, CASE WHEN asked.waits = 6 AND job.waits = 0 THEN asked.now ELSE asked.at END AS at,
               coalesce(asked.waits = 6 AND job.waits = 0, false) AS woken,
               asked.waits IS NULL OR asked.failed > 0 AS tried, job.slot, job.attempts, job.queue, job.version, job.ord, job.lane, job.pos FROM unnest(
            $1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::integer[], $6::smallint[],
            $7::bigint[], $8::bigint[], $9::text[], $10::smallint[], $11::bytea[],
            $12::text[], $13::smallint[], $14::bigint[], $15::integer[], $16::bytea[], $17::bigint[], $18::smallint[]
        ) AS asked (job, fence, state, at, failed, reason,
                    started_at, ended_at, outcome, attempt_reason, error,
                    step, step_state, step_at, step_status, step_body, now, waits)
        JOIN job ON job.id BETWEEN asked.job AND asked.job AND job.slot BETWEEN 1 AND 3
        WHERE job.state BETWEEN 4 AND 4 AND job.fence = asked.fence
        ORDER BY asked.job FOR NO KEY UPDATE OF job
    ), concluded AS (
        INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence, status, body)
        SELECT last.job, last.name, last.no + 1, last.class, CASE WHEN step.yes THEN held.step_state ELSE 3 END,
               last.first_intended_at, CASE WHEN step.yes THEN held.step_at ELSE held.ended_at END, last.sends, last.fence,
               CASE WHEN step.yes THEN held.step_status END, CASE WHEN step.yes THEN held.step_body END
        FROM held CROSS JOIN LATERAL (
            SELECT DISTINCT ON (name) * FROM effect WHERE effect.job = held.job ORDER BY name, no DESC
        ) AS last CROSS JOIN LATERAL (SELECT last.name IS NOT DISTINCT FROM held.step) AS step (yes)
        WHERE step.yes OR last.state = 0
    ), ended AS (
        INSERT INTO attempt (job, no, started_at, ended_at, outcome, reason, error)
        SELECT job, attempts + 1, started_at, ended_at, outcome, attempt_reason, error FROM held
        WHERE tried
    ), put_off AS (
        UPDATE job SET state = CASE WHEN held.state = 0 AND held.ord > 0 THEN 5 ELSE held.state END, run_at = held.at,
            attempts = job.attempts + held.tried::integer, failures = job.failures + held.failed, waits = held.waits,
            first_attempt_at = CASE WHEN held.tried THEN coalesce(job.first_attempt_at, held.started_at)
                                    ELSE job.first_attempt_at END,
            reason = held.reason, lease_until = NULL, node = NULL
        FROM held WHERE job.id BETWEEN held.job AND held.job AND job.slot = held.slot AND held.state IN (0, 5)
    ), over AS (
        DELETE FROM job USING held WHERE job.id BETWEEN held.job AND held.job AND job.slot = held.slot AND held.state IN (1, 2, 3)
        RETURNING job.id, job.event, job.version, job.received_at, job.run_at, job.lane, job.turn, job.pos, job.fence,
            coalesce(job.first_attempt_at, held.started_at), held.at, job.failures + held.failed, job.attempts + 1,
            job.replays, held.state, job.ord, job.priority, held.reason, job.flow, job.queue
    ), rested AS (
        INSERT INTO job (id, event, version, received_at, run_at, lane, turn, pos, fence, first_attempt_at, ended_at,
                         failures, attempts, replays, state, ord, priority, reason, flow, queue, slot)
        SELECT *, 0 FROM over
    ), stepping AS MATERIALIZED (
        SELECT queue, lane, job, pos, at, now, state IN (1, 2) OR (state = 3 AND ord = 1) AS leaves,
               state = 3 AND ord = 2 AS blocks
        FROM held WHERE ord > 0
    ), ",
    lanes::step!(),
    "
    SELECT job, queue, version, ord, woken FROM held"
);

impl Family for Settlements {
    type Ask = (LeaseRef, Settlement);
    type Answer = Held;

    fn touches((lease, _): &Self::Ask) -> Option<u64> {
        Some(lease.job.number())
    }

    async fn write(shared: &Shared, asks: &[Self::Ask]) -> std::result::Result<Vec<Result<Held>>, Fault> {
        let ending: Vec<(LeaseRef, &Settlement, Next)> =
            asks.iter().filter_map(|(lease, end)| Some((*lease, end, next(shared, end)?))).collect();
        let ends = || ending.iter().map(|(_, end, _)| *end);
        let nexts = || ending.iter().map(|(.., next)| next);
        let steps = || ends().map(|end| end.conclusion.as_ref());
        let of_step = |of: fn(&Conclusion) -> i64| -> Vec<Option<i64>> { steps().map(|step| step.map(of)).collect() };

        let (jobs, fences) = columns(ending.iter().map(|(lease, ..)| lease));
        let states: Vec<i16> = nexts().map(|next| next.state).collect();
        let at: Vec<i64> = nexts().map(|next| next.at.as_micros()).collect();
        let failed: Vec<i32> =
            ends().map(|end| i32::from(end.charged && !matches!(end.change, Change::Finished { .. }))).collect();
        let reasons: Vec<Option<i16>> = nexts().map(|next| next.reason.map(reason_number)).collect();
        let started_at: Vec<i64> = ends().map(|end| end.started_at.as_micros()).collect();
        let ended_at: Vec<i64> = ends().map(|end| end.ended_at.as_micros()).collect();
        let outcomes: Vec<&str> = ends().map(|end| end.outcome).collect();
        let attempt_reasons: Vec<Option<i16>> = ends().map(|end| end.reason.map(reason_number)).collect();
        let errors: Vec<Option<Vec<u8>>> =
            ending.iter().map(|(lease, end, _)| shared.sealer.error(lease.job, end)).collect();
        let errors: Vec<Option<&[u8]>> = errors.iter().map(Option::as_deref).collect();
        let step_names: Vec<Option<Cow<'_, str>>> = steps().map(|step| step.map(|step| text(&step.name))).collect();
        let step_states: Vec<Option<i16>> = steps().map(|step| step.map(|step| effect_number(&step.state))).collect();
        let step_at = of_step(|step| step.at.as_micros());
        let step_statuses: Vec<Option<i32>> =
            steps().map(|step| step.and_then(|step| effect_status(&step.state))).collect();
        let result = |(lease, end, _): &(LeaseRef, &Settlement, Next)| {
            end.conclusion.as_ref().and_then(|step| shared.sealer.result(lease.job, step))
        };
        let step_bodies: Vec<Option<Vec<u8>>> = ending.iter().map(result).collect();
        let step_bodies: Vec<Option<&[u8]>> = step_bodies.iter().map(Option::as_deref).collect();

        let waits: Vec<Option<i16>> = nexts().map(|next| next.waits.map(Waits::number)).collect();
        let now: Vec<i64> = ends().map(|end| shared.skew.to_database(end.ended_at).as_micros()).collect();
        let rows = shared
            .hands
            .ask(
                SETTLE,
                &[
                    &jobs,
                    &fences,
                    &states,
                    &at,
                    &failed,
                    &reasons,
                    &started_at,
                    &ended_at,
                    &outcomes,
                    &attempt_reasons,
                    &errors,
                    &step_names,
                    &step_states,
                    &step_at,
                    &step_statuses,
                    &step_bodies,
                    &now,
                    &waits,
                ],
            )
            .await?;
        let mut held: HashMap<i64, (&str, VersionId, Order, bool)> = HashMap::new();
        for row in &rows {
            let order = Order::from_number(row.try_get(3)?);
            held.insert(row.try_get(0)?, (row.try_get(1)?, VersionId(row.try_get(2)?), order, row.try_get(4)?));
        }
        for ((_, end, _), job) in ending.iter().zip(&jobs) {
            let Some((queue, version, order, woken)) = held.get(job) else { continue };
            match end.change {
                Change::HandedBack { run_at } => {
                    if run_at <= end.ended_at {
                        shared.wake.put_back(queue);
                    }
                    shared.wake.later(queue, run_at);
                    shared.wake.ready(queue, run_at);
                }
                // Nobody else need hurry for a retry: who looks when it is due will find it.
                Change::Retried { run_at } => shared.wake.later(queue, run_at),
                Change::PutOff { run_at, .. } => {
                    // It may be due at once: see above.
                    let due = if *woken { end.ended_at } else { run_at };
                    shared.wake.later(queue, due);
                }
                _ => {
                    lock(&shared.versions).count(*version, -1);
                    // The next of its lane may go.
                    if order.is_fifo() {
                        shared.wake.ready(queue, end.ended_at);
                    }
                }
            }
        }
        answers(asks.iter().map(|(lease, _)| lease), &rows)
    }
}

/// How the row says it.
struct Next {
    state: i16,
    at: Timestamp,
    reason: Option<Reason>,
    waits: Option<Waits>,
}

/// `None` for a change in which no attempt ends.
fn next(shared: &Shared, end: &Settlement) -> Option<Next> {
    let (state, at, reason) = match end.change {
        Change::Finished { at, ending: Ending::Success } => (SUCCESS, at, None),
        Change::Finished { at, ending: Ending::Noop } => (NOOP, at, None),
        Change::Finished { at, ending: Ending::Declined(reason) } => (NOOP, at, Some(reason)),
        Change::Buried { at, reason } => (DEAD, at, Some(reason)),
        // Who did not use its turn keeps it.
        Change::HandedBack { run_at } if run_at <= end.ended_at => (READY, shared.skew.to_database(run_at), None),
        Change::Retried { run_at } | Change::HandedBack { run_at } | Change::PutOff { run_at, .. } => {
            (WAITING, shared.skew.to_database(run_at), None)
        }
        Change::Claimed { .. } | Change::Revived { .. } | Change::Dropped { .. } | Change::TakenBack { .. } => {
            return None;
        }
    };
    let waits = if let Change::PutOff { waits, .. } = end.change { Some(waits) } else { None };
    Some(Next { state, at, reason, waits })
}
