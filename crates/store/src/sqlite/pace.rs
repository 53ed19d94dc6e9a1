//! reserve: moments at which an integration may be called.

use super::writer::Batch;
use crate::PaceAsk;
use clinch_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};

pub(super) fn reserve(batch: &Batch<'_>, ask: &PaceAsk) -> rusqlite::Result<Option<Timestamp>> {
    let length = ask.every.saturating_mul(ask.calls).as_micros();
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let next: Option<i64> = batch
        .conn
        .prepare_cached(
            "INSERT INTO pace (name, next) VALUES (?1, ?2 + ?3)
             ON CONFLICT (name) DO UPDATE SET next = max(next, ?2) + ?3 WHERE next < ?4 RETURNING next",
        )?
        .query_row(params![&*ask.name, ask.now.as_micros(), length, (ask.now + ask.ahead).as_micros()], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(next.map(|next| Timestamp::from_micros(next.saturating_sub(length))))
}
