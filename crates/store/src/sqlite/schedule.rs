//! fire: a slot of a schedule and the event of its run, together.

use super::rows::{self, READY};
use super::writer::Batch;
use super::{accept, audit};
use crate::read::ScheduleRow;
use crate::{Acceptance, FireAsk, Fired};
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

pub(super) fn fire(batch: &mut Batch<'_>, ask: FireAsk) -> rusqlite::Result<Fired> {
    let known = batch
        .conn
        .prepare_cached("SELECT name, last, job FROM schedule WHERE name = ?1")?
        .query_row([&*ask.schedule], row)
        .optional()?;
    let (last, job) = known.map_or((ask.begins(), None), |known| (known.last, known.job));
    if ask.slot.is_some_and(|slot| slot <= last) {
        return Ok(Fired::Before(last));
    }
    let slot = ask.slot.unwrap_or(last);
    let Some(event) = ask.event.clone() else {
        used_up(batch, &ask.schedule, slot, job)?;
        return Ok(Fired::Passed);
    };
    if let Some(job) = job
        && !ask.overlaps
        && is_unfinished(batch.conn, job)?
    {
        return Ok(Fired::Busy(job));
    }
    let accepted = match accept::accept(batch, event)? {
        Acceptance::Fresh(accepted) => accepted,
        // The event of this slot is there: its schedule has forgotten it.
        Acceptance::Duplicate(first) | Acceptance::Kept(first) | Acceptance::Conflict(first) => {
            used_up(batch, &ask.schedule, slot, Some(first.job))?;
            return Ok(Fired::Before(slot));
        }
    };
    used_up(batch, &ask.schedule, slot, Some(accepted.job))?;
    if let Some(record) = &ask.record {
        audit::append(batch, &ask.act(&accepted), record)?;
    }
    Ok(Fired::Fired(accepted))
}

fn is_unfinished(conn: &Connection, job: JobId) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM job WHERE id = ?1 AND state = ?2)")?
        .query_row(params![job.number().cast_signed(), READY], |row| row.get(0))
}

fn used_up(batch: &Batch<'_>, schedule: &str, slot: Timestamp, job: Option<JobId>) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached(
            "INSERT INTO schedule (name, last, job) VALUES (?1, ?2, ?3)
             ON CONFLICT (name) DO UPDATE SET last = excluded.last, job = excluded.job",
        )?
        .execute(params![schedule, slot.as_micros(), job.map(|job| job.number().cast_signed())])?;
    Ok(())
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<ScheduleRow>> {
    conn.prepare_cached("SELECT name, last, job FROM schedule ORDER BY name")?.query_map([], row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
    let job: Option<i64> = row.get(2)?;
    Ok(ScheduleRow {
        name: Arc::from(row.get_ref(0)?.as_str()?),
        last: rows::time(row, 1)?,
        job: job.map(|job| JobId::from_number(job.cast_unsigned())),
    })
}
