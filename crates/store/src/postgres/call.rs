//! begin_call, end_call: what was done for others under their keys, by any node.

use super::param::Params;
use super::{Fault, Shared};
use crate::{CallAsk, CallEnd, Held};
use clinch_core::call::{CallKey, CallLeave, CallState, CallTurn, PastCall, leave};
use clinch_core::job::Fence;
use clinch_core::key::Fingerprint;
use clinch_core::time::Timestamp;
use tokio_postgres::Row;

const INSERT: &str = "
    INSERT INTO call (key, fingerprint, turn, fence, state, since, until, expires) VALUES ($1, $2, $3, $4, 0, $5, $6, $7)
    ON CONFLICT (key) DO NOTHING RETURNING turn";
const REPLACE: &str = "
    UPDATE call
    SET fingerprint = $2, turn = $3, fence = $4, state = 0, since = $5, until = $6, expires = $7, answer = NULL
    WHERE key = $1 RETURNING turn";
const LOOK: &str =
    "SELECT fingerprint, state, since, until, expires, answer, turn, fence FROM call WHERE key = $1 FOR UPDATE";

/// What to do, and the answer as it is stored, if there is one.
pub(super) async fn begin(shared: &Shared, ask: &CallAsk) -> Result<(CallLeave, Vec<u8>), Fault> {
    let time = |at: Timestamp| shared.skew.to_database(at).as_micros();
    let (key, fingerprint, CallTurn { of, fence }) =
        (ask.key.as_bytes(), ask.caller.fingerprint.as_bytes(), ask.caller.turn);
    let (turn, fence) = (of.cast_signed(), fence.0.cast_signed());
    let (since, until, expires) = (time(ask.at), time(ask.until), time(ask.expires));
    let params: Params<'_> = &[&&key[..], &&fingerprint[..], &turn, &fence, &since, &until, &expires];
    loop {
        // The usual case in one statement.
        if !shared.hands.ask(INSERT, params).await?.is_empty() {
            return Ok((CallLeave::Make, Vec::new()));
        }
        let mut line = shared.hands.line().await?;
        line.begin().await?;
        let rows = line.query(LOOK, &[&&key[..]]).await?;
        let Some(row) = rows.first() else {
            // It was given back at this moment.
            line.commit().await?;
            continue;
        };
        let past = past(row, |at| shared.skew.back_from_database(at))?;
        let answer = row.try_get::<_, Option<&[u8]>>(5)?.unwrap_or_default().to_vec();
        let leave = leave(Some(&past), ask.caller, ask.at);
        if leave == CallLeave::Make {
            line.query(REPLACE, params).await?;
        }
        line.commit().await?;
        return Ok((leave, answer));
    }
}

fn past(row: &Row, ours: impl Fn(Timestamp) -> Timestamp) -> Result<PastCall, Fault> {
    let time = |at: usize| Ok::<_, Fault>(ours(Timestamp::from_micros(row.try_get(at)?)));
    let state = match row.try_get::<_, i16>(1)? {
        0 => CallState::Open { until: time(3)? },
        1 => CallState::Kept,
        _ => CallState::Unknown,
    };
    let fingerprint = row.try_get::<_, &[u8]>(0)?.try_into().map(Fingerprint::from_bytes);
    let fingerprint = fingerprint.unwrap_or(Fingerprint::from_bytes([0; 32]));
    let number = |at: usize| row.try_get::<_, i64>(at).map(i64::cast_unsigned);
    let turn = CallTurn { of: number(6)?, fence: Fence(number(7)?) };
    Ok(PastCall { fingerprint, turn, state, since: time(2)?, expires: time(4)? })
}

pub(super) async fn end(shared: &Shared, key: &CallKey, turn: CallTurn, end: &CallEnd) -> Result<Held, Fault> {
    let (key, fence, turn) = (key.as_bytes(), turn.fence.0.cast_signed(), turn.of.cast_signed());
    // Who lost his job and comes late may tell that it was done, and takes nothing back that another has begun or ended since.
    let rows = match end {
        CallEnd::Done(answer) => {
            let sql = "UPDATE call SET state = 1, answer = $3 WHERE key = $1 AND turn = $2 RETURNING turn";
            shared.hands.ask(sql, &[&&key[..], &turn, &&answer[..]]).await?
        }
        CallEnd::Unknown => {
            let sql = "UPDATE call SET state = 2 WHERE key = $1 AND turn = $2 AND state <> 1 RETURNING turn";
            shared.hands.ask(sql, &[&&key[..], &turn]).await?
        }
        CallEnd::Undone => {
            let sql = "DELETE FROM call WHERE key = $1 AND turn = $2 AND state = 1 RETURNING turn";
            shared.hands.ask(sql, &[&&key[..], &turn]).await?
        }
        CallEnd::NotDone => {
            let sql = "DELETE FROM call WHERE key = $1 AND turn = $2 AND state = 0 AND fence = $3 RETURNING turn";
            shared.hands.ask(sql, &[&&key[..], &turn, &fence]).await?
        }
    };
    Ok(if rows.is_empty() { Held::Lost } else { Held::Held })
}

/// Those whose time is over, a bounded number.
pub(super) const PRUNE: &str = "
    WITH gone AS (
        DELETE FROM call WHERE key = ANY(ARRAY(
            SELECT key FROM call WHERE expires <= $1 ORDER BY expires LIMIT $2 FOR UPDATE SKIP LOCKED
        )) RETURNING key
    ) SELECT count(*) FROM gone";
