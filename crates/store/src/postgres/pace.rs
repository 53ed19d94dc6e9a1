//! reserve: moments at which an integration may be called, on all nodes together.

use super::{Fault, Shared};
use crate::PaceAsk;
use clinch_core::time::Timestamp;

// A row that was changed meanwhile is looked at again, so that no moment is given twice.
const RESERVE: &str = "
    INSERT INTO pace (name, next) VALUES ($1, $2 + $3)
    ON CONFLICT (name) DO UPDATE SET next = greatest(pace.next, $2) + $3 WHERE pace.next < $4 RETURNING next";

pub(super) async fn reserve(shared: &Shared, ask: &PaceAsk) -> Result<Option<Timestamp>, Fault> {
    let now = shared.skew.to_database(ask.now).as_micros();
    let end = shared.skew.to_database(ask.now + ask.ahead).as_micros();
    let length = i64::try_from(ask.every.saturating_mul(ask.calls).as_micros()).unwrap_or(i64::MAX);
    let rows = shared.hands.ask(RESERVE, &[&&*ask.name, &now, &length, &end]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let first = Timestamp::from_micros(row.try_get::<_, i64>(0)?.saturating_sub(length));
    Ok(Some(shared.skew.back_from_database(first)))
}
