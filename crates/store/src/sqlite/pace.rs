//! reserve: moments at which an integration may be called.

use super::writer::Batch;
use crate::PaceAsk;
use clinch_core::pace::Reserved;
use clinch_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};
use std::time::Duration;

pub(super) fn reserve(batch: &Batch<'_>, ask: &PaceAsk) -> rusqlite::Result<Reserved> {
    // From the first of them to the last.
    let length = micros(ask.every.saturating_mul(ask.calls.saturating_sub(1)));
    let every = micros(ask.every);
    let last: Option<i64> = batch
        .conn
        .prepare_cached(
            "INSERT INTO pace (name, last) VALUES (?1, ?2 + ?3)
             ON CONFLICT (name) DO UPDATE SET last = max(last + ?5, ?2) + ?3 WHERE last + ?5 < ?4 RETURNING last",
        )?
        .query_row(params![&*ask.name, ask.now.as_micros(), length, (ask.now + ask.ahead).as_micros(), every], |row| {
            row.get(0)
        })
        .optional()?;
    if let Some(last) = last {
        return Ok(Reserved::From(Timestamp::from_micros(last.saturating_sub(length))));
    }
    let sql = "SELECT last FROM pace WHERE name = ?1";
    let last: i64 = batch.conn.prepare_cached(sql)?.query_row([&*ask.name], |row| row.get(0))?;
    Ok(Reserved::Taken { free_at: Timestamp::from_micros(last.saturating_add(every)) })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}
