//! drop: a dead letter is given up by two people, stays as a tombstone, and may be taken back.

use super::lanes::{self, Standing};
use super::pool::{Line, Pool};
use super::rows::{self, DEAD, DROPPED};
use super::{Fault, Shared, audit};
use crate::drop::{DropAsk, DropEnd, DropRow};
use crate::read::JobRow;
use clinch_core::drop::{self, ALONE_AFTER, Request, Verdict};
use clinch_core::job::Word;
use clinch_core::lane::Order;
use clinch_core::replay::Mark;
use std::sync::Arc;

fn job(ask: &DropAsk) -> i64 {
    ask.job.number().cast_signed()
}

/// Locked, so that nobody revives or removes it meanwhile. A second time, if it was just on its way.
async fn found(shared: &Shared, line: &mut Line, ask: &DropAsk) -> Result<Option<JobRow>, Fault> {
    for _ in 0..2 {
        if !line.query("SELECT 1 FROM job WHERE id = $1 FOR NO KEY UPDATE", &[&job(ask)]).await?.is_empty() {
            break;
        }
    }
    let found = line.query(&format!("{} WHERE job.id = $1", rows::JOB_ROW), &[&job(ask)]).await?;
    Ok(rows::job_rows(&found, &shared.sealer)?.pop())
}

async fn mark(line: &mut Line, row: &JobRow) -> Result<Mark, Fault> {
    let effects = rows::effects(line, &[row.id.number().cast_signed()]).await?.remove(&row.id).unwrap_or_default();
    Ok(Mark::of(row.replays, row.attempts, row.ended_at, row.reason, &effects))
}

async fn request(line: &mut Line, ask: &DropAsk) -> Result<Option<Request>, Fault> {
    let found = line.query("SELECT at, actor, mark FROM drop_ask WHERE job = $1", &[&job(ask)]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let mark = Mark::from_number(row.try_get(2)?);
    Ok(Some(Request { at: rows::time(row, 0)?, actor: row.try_get(1)?, mark }))
}

async fn forget(line: &mut Line, ask: &DropAsk) -> Result<(), Fault> {
    line.query("DELETE FROM drop_ask WHERE job = $1", &[&job(ask)]).await?;
    Ok(())
}

pub(super) async fn ask(shared: &Shared, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let end = asked(shared, &mut line, ask).await?;
    line.commit().await?;
    Ok(end)
}

async fn asked(shared: &Shared, line: &mut Line, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let Some(row) = found(shared, line, ask).await? else { return Ok(DropEnd::NotFound) };
    if row.word != Word::Dead {
        return Ok(DropEnd::Not { state: row.word });
    }
    let mark = mark(line, &row).await?;
    // A request for what it was before is none for what it is.
    if let Some(before) = request(line, ask).await?.filter(|before| before.mark == mark) {
        return Ok(DropEnd::AskedBefore { by: before.actor, alone_from: before.at + ALONE_AFTER });
    }
    forget(line, ask).await?;
    line.query(
        "INSERT INTO drop_ask (job, at, mark, actor, reason) VALUES ($1, $2, $3, $4, $5)",
        &[
            &job(ask),
            &ask.record.at.as_micros(),
            &mark.number(),
            &rows::text(&ask.record.actor),
            &rows::text(&ask.record.reason),
        ],
    )
    .await?;
    audit::append(line, [&(ask.asked(), ask.record.clone())]).await?;
    Ok(DropEnd::Asked { by: ask.record.actor.clone(), alone_from: ask.record.at + ALONE_AFTER })
}

pub(super) async fn confirm(shared: &Shared, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let end = confirmed(shared, &mut line, ask).await?;
    line.commit().await?;
    Ok(end)
}

async fn confirmed(shared: &Shared, line: &mut Line, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let Some(row) = found(shared, line, ask).await? else { return Ok(DropEnd::NotFound) };
    if row.word != Word::Dead {
        return Ok(DropEnd::Not { state: row.word });
    }
    let Some(request) = request(line, ask).await? else { return Ok(DropEnd::NotAsked) };
    match drop::confirm(&request, &ask.record.actor, mark(line, &row).await?, ask.record.at) {
        Verdict::Alone { from } => return Ok(DropEnd::AskedBefore { by: request.actor, alone_from: from }),
        Verdict::Changed => {
            forget(line, ask).await?;
            return Ok(DropEnd::Changed);
        }
        Verdict::Drop => {}
    }
    forget(line, ask).await?;
    let dropped = line
        .query(
            "UPDATE job SET state = $2, ended_at = $3 WHERE slot = 0 AND id = $1 RETURNING ord, lane, pos",
            &[&job(ask), &DROPPED, &ask.record.at.as_micros()],
        )
        .await?;
    let place = dropped.first().ok_or(Fault::Damaged("a dead letter that is locked is gone"))?;
    if Order::from_number(place.try_get(0)?).blocks() {
        let run_at = shared.skew.to_database(ask.record.at).as_micros();
        let (lane, pos) = (place.try_get(1)?, place.try_get(2)?);
        lanes::forget(line, &[Standing { job: job(ask), queue: row.queue.clone(), lane, pos, run_at }]).await?;
    }
    audit::append(line, [&(ask.dropped(&row, &request.actor), ask.record.clone())]).await?;
    Ok(DropEnd::Dropped { flow: row.flow })
}

pub(super) async fn take_back(shared: &Shared, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let end = taken_back(shared, &mut line, ask).await?;
    line.commit().await?;
    Ok(end)
}

async fn taken_back(shared: &Shared, line: &mut Line, ask: &DropAsk) -> Result<DropEnd, Fault> {
    let Some(row) = found(shared, line, ask).await? else { return Ok(DropEnd::NotFound) };
    if let Some(request) = request(line, ask).await? {
        forget(line, ask).await?;
        audit::append(line, [&(ask.withdrawn(&request.actor), ask.record.clone())]).await?;
        return Ok(DropEnd::Withdrawn);
    }
    if row.word != Word::Dropped {
        return Ok(DropEnd::Not { state: row.word });
    }
    // Others of its group may have passed it: from here on it keeps its place among them, and stops nobody.
    line.query(
        "UPDATE job SET state = $2, ended_at = $3, ord = CASE ord WHEN 2 THEN 1 ELSE ord END WHERE slot = 0 AND id = $1",
        &[&job(ask), &DEAD, &ask.record.at.as_micros()],
    )
    .await?;
    audit::append(line, [&(ask.taken_back(), ask.record.clone())]).await?;
    Ok(DropEnd::TakenBack)
}

pub(super) async fn all(eyes: &Arc<Pool>, limit: usize) -> Result<Vec<DropRow>, Fault> {
    let found = eyes
        .ask(
            "SELECT drop_ask.job, job.flow, drop_ask.at, drop_ask.actor, drop_ask.reason
             FROM drop_ask JOIN job ON job.slot = 0 AND job.id = drop_ask.job
             WHERE job.state = 3 ORDER BY drop_ask.at, drop_ask.job LIMIT $1",
            &[&i64::try_from(limit).unwrap_or(i64::MAX)],
        )
        .await?;
    let mut drops = Vec::with_capacity(found.len());
    for row in &found {
        drops.push(DropRow {
            job: rows::job_id(row, 0)?,
            flow: rows::name(row, 1)?,
            at: rows::time(row, 2)?,
            actor: row.try_get(3)?,
            reason: row.try_get(4)?,
        });
    }
    Ok(drops)
}
