//! fire: a slot of a schedule and the event of its run, together, in all nodes once.

use super::pool::Line;
use super::rows::text;
use super::{Fault, Shared, accept, audit, rows};
use crate::read::ScheduleRow;
use crate::{FireAsk, Fired};
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use tokio_postgres::Row;

const COLUMNS: &str = "SELECT name, last, job FROM schedule";

pub(super) async fn fire(shared: &Shared, ask: &FireAsk) -> Result<Fired, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // The row is locked until the commit: of nodes that fire at once, the second finds what the first has done.
    let new = "INSERT INTO schedule (name, last) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
    line.query(new, &[&text(&ask.schedule), &ask.begins().as_micros()]).await?;
    let found = line.query(&format!("{COLUMNS} WHERE name = $1 FOR UPDATE"), &[&text(&ask.schedule)]).await?;
    let known = found.first().map(row).transpose()?.ok_or(Fault::Damaged("a schedule that was just written"))?;
    if ask.slot.is_some_and(|slot| slot <= known.last) {
        line.commit().await?;
        return Ok(Fired::Before(known.last));
    }
    let slot = ask.slot.unwrap_or(known.last);
    let Some(event) = &ask.event else {
        used_up(&mut line, &ask.schedule, slot, known.job).await?;
        line.commit().await?;
        return Ok(Fired::Passed);
    };
    if let Some(job) = known.job
        && !ask.overlaps
        && is_unfinished(&mut line, job).await?
    {
        line.commit().await?;
        return Ok(Fired::Busy(job));
    }
    let stored = accept::store(shared, &mut line, std::slice::from_ref(event)).await?;
    let Some(accepted) = stored.accepted().next().map(|(_, accepted)| accepted) else {
        // The event of this slot is there: its schedule has forgotten it.
        used_up(&mut line, &ask.schedule, slot, known.job).await?;
        line.commit().await?;
        return Ok(Fired::Before(slot));
    };
    used_up(&mut line, &ask.schedule, slot, Some(accepted.job)).await?;
    if let Some(record) = &ask.record {
        audit::append(&mut line, [&(ask.act(&accepted), record.clone())]).await?;
    }
    line.commit().await?;
    stored.announce(shared);
    Ok(Fired::Fired(accepted))
}

/// A statement of its own: it must see what whoever held the row has committed.
async fn is_unfinished(line: &mut Line, job: JobId) -> Result<bool, Fault> {
    let unfinished = "SELECT 1 FROM job WHERE id = $1 AND state IN (0, 4, 5)";
    Ok(!line.query(unfinished, &[&job.number().cast_signed()]).await?.is_empty())
}

async fn used_up(line: &mut Line, schedule: &str, slot: Timestamp, job: Option<JobId>) -> Result<(), Fault> {
    let job = job.map(|job| job.number().cast_signed());
    line.query("UPDATE schedule SET last = $2, job = $3 WHERE name = $1", &[&text(schedule), &slot.as_micros(), &job])
        .await?;
    Ok(())
}

pub(super) async fn all(shared: &Shared) -> Result<Vec<ScheduleRow>, Fault> {
    let found = shared.eyes.ask(&format!("{COLUMNS} ORDER BY name"), &[]).await?;
    Ok(found.iter().map(row).collect::<Result<_, _>>()?)
}

fn row(row: &Row) -> Result<ScheduleRow, tokio_postgres::Error> {
    let job: Option<i64> = row.try_get(2)?;
    Ok(ScheduleRow {
        name: rows::name(row, 0)?,
        last: rows::time(row, 1)?,
        job: job.map(|job| JobId::from_number(job.cast_unsigned())),
    })
}
