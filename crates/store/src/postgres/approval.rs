//! Approvals: asked, voted on, decided once, on record. Whoever waits for a verdict is woken by it.
//!
//! Whoever decides an approval has locked its job first: votes of one approval come one after the other, and an attempt that
//! is about to wait for a verdict is either seen to wait, or sees that it need not.

use super::pool::{Line, Pool};
use super::rows::{self, text};
use super::{Fault, Shared, audit, lanes};
use crate::approval::{
    ApprovalFilter, ApprovalPage, ApprovalRow, Place, Undecided, expiry, names, spelt, vote, vote_number,
};
use crate::read::LIST_ROWS_MAX;
use crate::{ApprovalAsk, Asked, DecideAsk, Decided, LeaseRef, Record, TellAsk};
use clinch_core::approval::{ApprovalId, Ballot, Decision, OnExpiry, Ruling, Verdict, remind_at, rule};
use clinch_core::audit::Act;
use clinch_core::id::JobId;
use clinch_core::job::Waits;
use clinch_core::time::Timestamp;
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::Row;

const COLUMNS: &str = "job, step, flow, voters, need, on_expiry, requester, integration, channel, asked_at, expires_at, told, \
                       state, decided_at, decided_by, reason";

/// A running job bears this instead of what it waits for when something was decided meanwhile.
pub(super) const WOKEN: i16 = 0;

fn number(job: JobId) -> i64 {
    job.number().cast_signed()
}

fn row(row: &Row) -> Result<ApprovalRow, Fault> {
    let place = match (row.try_get(7)?, row.try_get(8)?) {
        (Some(integration), Some(channel)) => Some(Place { integration, channel }),
        _ => None,
    };
    let decision = match (Verdict::from_number(row.try_get(12)?), rows::maybe_time(row, 13)?) {
        (Some(verdict), Some(at)) => {
            let words = |column| Ok::<_, Fault>(row.try_get::<_, Option<String>>(column)?.unwrap_or_default());
            Some(Decision { verdict, at, by: words(14)?, reason: words(15)? })
        }
        _ => None,
    };
    Ok(ApprovalRow {
        id: ApprovalId { job: rows::job_id(row, 0)?, step: row.try_get(1)? },
        flow: rows::name(row, 2)?,
        of: names(row.try_get(3)?),
        need: rows::count(row, 4)?,
        on_expiry: if row.try_get::<_, i16>(5)? == 1 { OnExpiry::Approve } else { OnExpiry::Reject },
        requester: row.try_get(6)?,
        place,
        asked_at: rows::time(row, 9)?,
        expires_at: rows::time(row, 10)?,
        told: rows::count(row, 11)?,
        ballots: Vec::new(),
        decision,
    })
}

async fn with_ballots(line: &mut Line, found: &[Row]) -> Result<Vec<ApprovalRow>, Fault> {
    let mut found: Vec<ApprovalRow> = found.iter().map(row).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Ok(found);
    }
    let jobs: Vec<i64> = found.iter().map(|row| number(row.id.job)).collect();
    let sql =
        "SELECT job, step, actor, vote, at, reason FROM vote WHERE job = ANY($1) ORDER BY at, actor COLLATE \"C\"";
    let mut ballots: HashMap<ApprovalId, Vec<Ballot>> = HashMap::new();
    for row in &line.query(sql, &[&jobs]).await? {
        let id = ApprovalId { job: rows::job_id(row, 0)?, step: row.try_get(1)? };
        let ballot = Ballot {
            actor: row.try_get(2)?,
            vote: vote(row.try_get(3)?),
            at: rows::time(row, 4)?,
            reason: row.try_get(5)?,
        };
        ballots.entry(id).or_default().push(ballot);
    }
    for row in &mut found {
        row.ballots = ballots.remove(&row.id).unwrap_or_default();
    }
    Ok(found)
}

async fn find_in(line: &mut Line, id: &ApprovalId) -> Result<Option<ApprovalRow>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM approval WHERE job = $1 AND step = $2");
    let rows = line.query(&sql, &[&number(id.job), &text(&id.step)]).await?;
    Ok(with_ballots(line, &rows).await?.pop())
}

pub(super) async fn find(eyes: &Arc<Pool>, id: &ApprovalId) -> Result<Option<ApprovalRow>, Fault> {
    find_in(&mut eyes.line().await?, id).await
}

/// Locks the job. A second time, if it was just on its way to where those are that have ended, or to another slot: who waits
/// for it then finds nothing.
async fn lock_job(line: &mut Line, job: i64) -> Result<(), Fault> {
    for _ in 0..2 {
        if !line.query("SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE", &[&job]).await?.is_empty() {
            break;
        }
    }
    Ok(())
}

pub(super) async fn ask(shared: &Shared, lease: LeaseRef, ask: &ApprovalAsk) -> Result<Option<Asked>, Fault> {
    let id = ApprovalId { job: lease.job, step: ask.step.to_string() };
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let held =
        "SELECT 1 FROM job WHERE id BETWEEN $1 AND $1 AND slot BETWEEN 1 AND 3 AND state BETWEEN 4 AND 4 AND fence = $2
                    AND node IS NOT NULL FOR NO KEY UPDATE";
    if line.query(held, &[&number(id.job), &lease.fence.0.cast_signed()]).await?.is_empty() {
        line.commit().await?;
        return Ok(None);
    }
    let mut acts = Vec::new();
    let asked = match find_in(&mut line, &id).await? {
        None => {
            insert(shared, &mut line, &id, ask).await?;
            acts.push(ask.act(&id));
            Asked::Pending { expires_at: ask.at + ask.rule.expires }
        }
        Some(known) => {
            let on_expiry = known.on_expiry;
            match &known.decision {
                Some(decision) => Asked::Decided { decision: decision.clone(), on_expiry },
                None if shared.skew.to_database(ask.at) < known.expires_at => {
                    Asked::Pending { expires_at: shared.skew.back_from_database(known.expires_at) }
                }
                // The job came before whoever looks after the time.
                None => {
                    let decision = expire_one(&mut line, &known, ask.at, &mut acts).await?;
                    Asked::Decided { decision, on_expiry }
                }
            }
        }
    };
    audit::append(&mut line, &acts).await?;
    line.commit().await?;
    Ok(Some(asked))
}

async fn insert(shared: &Shared, line: &mut Line, id: &ApprovalId, ask: &ApprovalAsk) -> Result<(), Fault> {
    let ApprovalAsk { rule, place, at, .. } = ask;
    let time = |at: Timestamp| shared.skew.to_database(at).as_micros();
    line.query(
        "INSERT INTO approval (job, step, flow, state, voters, need, on_expiry, requester, asked_at, expires_at, remind_at,
                               integration, channel, tell_at)
         VALUES ($1, $2, $3, 0, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
        &[
            &number(id.job),
            &text(&id.step),
            &text(&ask.flow),
            &text(&spelt(&rule.of)),
            &i32::try_from(rule.need).unwrap_or(i32::MAX),
            &i16::from(rule.on_expiry == OnExpiry::Approve),
            &ask.requester.as_deref().map(text),
            &at.as_micros(),
            &time(*at + rule.expires),
            &remind_at(rule, *at).map(time),
            &place.as_ref().map(|place| text(&place.integration)),
            &place.as_ref().map(|place| text(&place.channel)),
            &place.as_ref().map(|_| time(*at)),
        ],
    )
    .await?;
    Ok(())
}

pub(super) async fn decide(shared: &Shared, ask: &DecideAsk) -> Result<Decided, Fault> {
    let (id, record) = (&ask.approval, &ask.record);
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    lock_job(&mut line, number(id.job)).await?;
    let Some(known) = find_in(&mut line, id).await? else {
        line.commit().await?;
        return Ok(Decided::NotFound);
    };
    let at = shared.skew.to_database(record.at);
    let ruling = rule(known.standing(), &record.actor, ask.vote, at);
    let ends = matches!(ruling, Ruling::Decides(_) | Ruling::Overdue);
    let mut acts = Vec::new();
    let decided = match ruling {
        Ruling::Decides(verdict) => {
            cast(&mut line, ask).await?;
            let decision = ask.decision(verdict);
            end(&mut line, id, &decision).await?;
            Decided::Verdict(decision)
        }
        Ruling::Overdue => Decided::Late(expire_one(&mut line, &known, record.at, &mut acts).await?),
        Ruling::Counts(tally) => {
            cast(&mut line, ask).await?;
            Decided::Counted(tally)
        }
        Ruling::Before(tally) => Decided::Before(tally),
        Ruling::NotAllowed(why) => Decided::NotAllowed(why),
        Ruling::Late(decision) => Decided::Late(decision),
    };
    acts.extend(ask.act(&decided));
    let woken = if ends { wake(&mut line, &[number(id.job)], at).await? } else { Vec::new() };
    audit::append(&mut line, &acts).await?;
    line.commit().await?;
    tell_workers(shared, &woken, record.at);
    Ok(decided)
}

async fn cast(line: &mut Line, ask: &DecideAsk) -> Result<(), Fault> {
    let (id, ballot) = (&ask.approval, ask.ballot());
    // Who has approved and cancels then has said the last.
    line.query(
        "INSERT INTO vote (job, step, actor, vote, at, reason) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (job, step, actor) DO UPDATE SET vote = excluded.vote, at = excluded.at, reason = excluded.reason",
        &[
            &number(id.job),
            &text(&id.step),
            &text(&ballot.actor),
            &vote_number(ballot.vote),
            &ballot.at.as_micros(),
            &text(&ballot.reason),
        ],
    )
    .await?;
    Ok(())
}

/// The verdict. Nobody is told of it any more.
async fn end(line: &mut Line, id: &ApprovalId, decision: &Decision) -> Result<(), Fault> {
    line.query(
        "UPDATE approval SET state = $3, decided_at = $4, decided_by = $5, reason = $6, tell_at = NULL
         WHERE job = $1 AND step = $2 AND state = 0",
        &[
            &number(id.job),
            &text(&id.step),
            &decision.verdict.number(),
            &decision.at.as_micros(),
            &text(&decision.by),
            &text(&decision.reason),
        ],
    )
    .await?;
    Ok(())
}

/// What is put on record of it is left to the end of the transaction.
async fn expire_one(
    line: &mut Line,
    known: &ApprovalRow,
    at: Timestamp,
    acts: &mut Vec<(Act, Record)>,
) -> Result<Decision, Fault> {
    let decision = Decision::expired(at);
    end(line, &known.id, &decision).await?;
    acts.push(expiry(known, &decision));
    Ok(decision)
}

/// These jobs, which are locked, wait for people no longer. One that runs is told not to begin to. The queues of those that were
/// waiting.
async fn wake(line: &mut Line, jobs: &[i64], now: Timestamp) -> Result<Vec<Arc<str>>, Fault> {
    let rows = line
        .query(
            "UPDATE job SET run_at = CASE WHEN state = 4 THEN run_at ELSE $2 END, waits = CASE WHEN state = 4 THEN $3 ELSE waits END
             WHERE id = ANY($1) AND slot BETWEEN 1 AND 3 AND (state = 4 OR (state IN (0, 5) AND waits = $4 AND run_at > $2))
             RETURNING queue, state <> 4",
            &[&jobs, &now.as_micros(), &WOKEN, &Waits::Approval.number()],
        )
        .await?;
    lanes::hasten(line, jobs, now).await?;
    let mut queues = Vec::new();
    for row in &rows {
        if row.try_get(1)? {
            queues.push(rows::name(row, 0)?);
        }
    }
    Ok(queues)
}

/// After the commit.
fn tell_workers(shared: &Shared, queues: &[Arc<str>], at: Timestamp) {
    for queue in queues {
        shared.wake.ready(queue, at);
        shared.wake.later(queue, at);
    }
}

pub(super) async fn expire(shared: &Shared, now: Timestamp, most: usize) -> Result<Vec<ApprovalRow>, Fault> {
    let at = shared.skew.to_database(now);
    let mut line = shared.hands.line().await?;
    let sql = "SELECT DISTINCT job FROM (
                   SELECT job FROM approval WHERE state = 0 AND expires_at <= $1 ORDER BY expires_at LIMIT $2
               ) AS over ORDER BY job";
    let rows = line.query(sql, &[&at.as_micros(), &(most as i64)]).await?;
    let jobs: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    line.begin().await?;
    for job in &jobs {
        lock_job(&mut line, *job).await?;
    }
    // Asked again, now that nobody else decides.
    let sql = format!(
        "SELECT {COLUMNS} FROM approval WHERE job = ANY($1) AND state = 0 AND expires_at <= $2 ORDER BY job, step"
    );
    let rows = line.query(&sql, &[&jobs, &at.as_micros()]).await?;
    let mut over = with_ballots(&mut line, &rows).await?;
    let mut acts = Vec::new();
    for known in &mut over {
        known.decision = Some(expire_one(&mut line, known, now, &mut acts).await?);
    }
    let ended: Vec<i64> = over.iter().map(|known| number(known.id.job)).collect();
    let woken = wake(&mut line, &ended, at).await?;
    audit::append(&mut line, &acts).await?;
    line.commit().await?;
    tell_workers(shared, &woken, now);
    Ok(over)
}

pub(super) async fn tell(shared: &Shared, ask: &TellAsk) -> Result<Vec<ApprovalRow>, Fault> {
    let (now, until) = (shared.skew.to_database(ask.now).as_micros(), shared.skew.to_database(ask.until).as_micros());
    let mut line = shared.hands.line().await?;
    let sql = "SELECT DISTINCT integration, channel FROM approval WHERE tell_at <= $1";
    let mut places = Vec::new();
    for row in &line.query(sql, &[&now]).await? {
        places.push(Place { integration: row.try_get(0)?, channel: row.try_get(1)? });
    }
    let Some(place) = places.into_iter().find(|place| !ask.but.contains(place)) else { return Ok(Vec::new()) };
    line.begin().await?;
    let sql = format!(
        "UPDATE approval SET tell_at = $5 FROM (
             SELECT job AS due_job, step AS due_step FROM approval WHERE tell_at <= $1 AND integration = $2 AND channel = $3
             ORDER BY tell_at, job, step LIMIT $4 FOR UPDATE SKIP LOCKED
         ) AS due WHERE job = due_job AND step = due_step RETURNING {COLUMNS}"
    );
    let most = ask.most as i64;
    let rows = line.query(&sql, &[&now, &text(&place.integration), &text(&place.channel), &most, &until]).await?;
    let mut due = with_ballots(&mut line, &rows).await?;
    line.commit().await?;
    due.sort_by(|a, b| (a.asked_at, &a.id).cmp(&(b.asked_at, &b.id)));
    Ok(due)
}

/// The first time people are asked, the second time reminded.
pub(super) async fn told(shared: &Shared, ids: &[ApprovalId], now: Timestamp) -> Result<(), Fault> {
    let jobs: Vec<i64> = ids.iter().map(|id| number(id.job)).collect();
    let steps: Vec<String> = ids.iter().map(|id| id.step.clone()).collect();
    shared
        .hands
        .ask(
            "UPDATE approval SET told = told + 1, tell_at = CASE WHEN told = 0 AND remind_at > $3 THEN remind_at END
             FROM unnest($1::bigint[], $2::text[]) AS said (said_job, said_step)
             WHERE job = said_job AND step = said_step AND state = 0",
            &[&jobs, &steps, &shared.skew.to_database(now).as_micros()],
        )
        .await?;
    Ok(())
}

pub(super) async fn list(eyes: &Arc<Pool>, filter: &ApprovalFilter) -> Result<ApprovalPage, Fault> {
    let limit = filter.limit.clamp(1, LIST_ROWS_MAX);
    let (job, step) = filter.before.as_ref().map_or((i64::MAX, ""), |id| (number(id.job), &*id.step));
    let state = match filter.state {
        None => String::new(),
        Some(state) => format!(" AND state = {}", state.map_or(0, Verdict::number)),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM approval
         WHERE (job, step) < ($1, $2){state} AND ($3::text IS NULL OR flow = $3) AND ($4::text IS NULL OR step = $4)
             AND ($5::bigint IS NULL OR job = $5)
         ORDER BY job DESC, step DESC LIMIT $6"
    );
    let mut line = eyes.line().await?;
    let rows = line
        .query(&sql, &[&job, &step, &filter.flow, &filter.step, &filter.job.map(number), &(limit as i64 + 1)])
        .await?;
    let found = with_ballots(&mut line, &rows[..rows.len().min(limit)]).await?;
    Ok(ApprovalPage { rows: found, more: rows.len() > limit })
}

pub(super) async fn waiting(eyes: &Arc<Pool>) -> Result<Vec<Undecided>, Fault> {
    let sql = "SELECT flow, count(*), min(asked_at) FROM approval WHERE state = 0 GROUP BY flow";
    let waiting = |row: &Row| -> Result<Undecided, Fault> {
        Ok(Undecided { flow: rows::name(row, 0)?, approvals: rows::big_count(row, 1)?, oldest: rows::time(row, 2)? })
    };
    eyes.ask(sql, &[]).await?.iter().map(waiting).collect()
}
