//! set_once: keys that steps set, each with the line in the ledger that says so, in one statement.

use super::rows::{class_number, text};
use super::{Fault, Shared};
use crate::{LeaseRef, SetOnce};
use clinch_core::effect::{Idempotency, Receipt};
use clinch_core::time::Timestamp;

// Who comes second waits for the first and then looks again. A result that is there is given again: the answer to the first
// time may have been lost.
const SET_ONCE: &str = "
    WITH held AS MATERIALIZED (
        SELECT id FROM job
        WHERE id BETWEEN $1 AND $1 AND slot BETWEEN 1 AND 3
            AND state BETWEEN 4 AND 4 AND fence = $2 AND node IS NOT NULL FOR SHARE
    ), last AS MATERIALIZED (
        SELECT no, state, first_intended_at, sends, status, body FROM effect
        WHERE job = $1 AND name = $3 ORDER BY no DESC LIMIT 1
    ), past AS MATERIALIZED (
        SELECT status, body FROM last WHERE state = 1
    ), won AS (
        INSERT INTO once (key, until) SELECT $4, $5 FROM held WHERE NOT EXISTS (SELECT FROM past)
        ON CONFLICT (key) DO UPDATE SET until = excluded.until WHERE once.until <= $6
        RETURNING key
    ), written AS (
        INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence, status, body)
        SELECT $1, $3, coalesce(last.no, 0) + 1, $7, 1, coalesce(last.first_intended_at, $8), $8,
            coalesce(last.sends, 0) + 1, $2,
            CASE WHEN EXISTS (SELECT FROM won) THEN $9::integer ELSE $11::integer END,
            CASE WHEN EXISTS (SELECT FROM won) THEN $10::bytea ELSE $12::bytea END
        FROM held LEFT JOIN last ON true WHERE NOT EXISTS (SELECT FROM past)
        RETURNING status, body
    )
    SELECT status, body FROM past WHERE EXISTS (SELECT FROM held) UNION ALL SELECT status, body FROM written";

/// Results are given and come back as they are stored.
pub(super) async fn set_once(shared: &Shared, lease: LeaseRef, ask: &SetOnce) -> Result<Option<Receipt>, Fault> {
    let time = |at: Timestamp| shared.skew.to_database(at).as_micros();
    let rows = shared
        .hands
        .ask(
            SET_ONCE,
            &[
                &lease.job.number().cast_signed(),
                &lease.fence.0.cast_signed(),
                &text(&ask.step),
                &&ask.key.as_bytes()[..],
                &time(ask.until),
                &time(ask.at),
                &class_number(Idempotency::Natural),
                &ask.at.as_micros(),
                &i32::from(ask.was_free.status),
                &&ask.was_free.body[..],
                &i32::from(ask.was_taken.status),
                &&ask.was_taken.body[..],
            ],
        )
        .await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let status = u16::try_from(row.try_get::<_, Option<i32>>(0)?.unwrap_or(0)).unwrap_or(0);
    let body = row.try_get::<_, Option<&[u8]>>(1)?.unwrap_or_default().to_vec().into();
    Ok(Some(Receipt { status, body }))
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "
    WITH gone AS (
        DELETE FROM once WHERE key = ANY(ARRAY(
            SELECT key FROM once WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
        )) RETURNING key
    ) SELECT count(*) FROM gone";
