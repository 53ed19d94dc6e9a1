//! reserve: moments at which an integration may be called, on all nodes together.

use super::{Fault, Shared};
use crate::PaceAsk;
use clinch_core::pace::Reserved;
use clinch_core::time::Timestamp;
use std::time::Duration;

// A row that was changed meanwhile is looked at again, so that no moment is given twice. Who is given none reads how far they are taken, or
// were when it began to ask.
const RESERVE: &str = "
    WITH given AS (
        INSERT INTO pace (name, last) VALUES ($1, $2 + $3)
        ON CONFLICT (name) DO UPDATE SET last = greatest(pace.last + $5, $2) + $3 WHERE pace.last + $5 < $4 RETURNING last
    )
    SELECT last, true FROM given
    UNION ALL SELECT last, false FROM pace WHERE name = $1 AND NOT EXISTS (SELECT 1 FROM given)";

pub(super) async fn reserve(shared: &Shared, ask: &PaceAsk) -> Result<Reserved, Fault> {
    let now = shared.skew.to_database(ask.now).as_micros();
    let end = shared.skew.to_database(ask.now + ask.ahead).as_micros();
    // From the first of them to the last.
    let length = micros(ask.every.saturating_mul(ask.calls.saturating_sub(1)));
    let every = micros(ask.every);
    let rows = shared.hands.ask(RESERVE, &[&&*ask.name, &now, &length, &end, &every]).await?;
    // Others have made the row in this moment.
    let Some(row) = rows.first() else { return Ok(Reserved::Taken { free_at: ask.now + ask.ahead }) };
    let (last, is_given): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
    let here = |moment: i64| shared.skew.back_from_database(Timestamp::from_micros(moment));
    Ok(match is_given {
        true => Reserved::From(here(last.saturating_sub(length))),
        false => Reserved::Taken { free_at: here(last.saturating_add(every)) },
    })
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}
