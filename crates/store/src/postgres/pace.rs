//! reserve: moments at which an integration may be called, on all nodes together.

use super::{Fault, Shared};
use crate::PaceAsk;
use clinch_core::time::Timestamp;
use std::time::Duration;

// A row that was changed meanwhile is looked at again, so that no moment is given twice.
const RESERVE: &str = "
    INSERT INTO pace (name, last) VALUES ($1, $2 + $3)
    ON CONFLICT (name) DO UPDATE SET last = greatest(pace.last + $5, $2) + $3 WHERE pace.last + $5 < $4 RETURNING last";

pub(super) async fn reserve(shared: &Shared, ask: &PaceAsk) -> Result<Option<Timestamp>, Fault> {
    let now = shared.skew.to_database(ask.now).as_micros();
    let end = shared.skew.to_database(ask.now + ask.ahead).as_micros();
    // From the first of them to the last.
    let length = micros(ask.every.saturating_mul(ask.calls.saturating_sub(1)));
    let rows = shared.hands.ask(RESERVE, &[&&*ask.name, &now, &length, &end, &micros(ask.every)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let first = Timestamp::from_micros(row.try_get::<_, i64>(0)?.saturating_sub(length));
    Ok(Some(shared.skew.back_from_database(first)))
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}
