//! `delay:` the job waits, from when the step was first reached, across restarts and replays.
//!
//! ```yaml
//! - name: later
//!   delay: 2h                        # or {for: 2h}, or {until: body.remind_at}
//! ```
//!
//! That it was reached is a line of the ledger, which has the moment. A job that waits costs no attempt and holds no place.

use bytes::Bytes;
use clinch_core::effect::{Effect, EffectState, Receipt};
use clinch_core::expr::{BadExpr, Scope};
use clinch_core::time::Timestamp;
use clinch_core::worker::DelayAction;

/// Where a job stands at a delay.
#[derive(Debug, PartialEq, Eq)]
pub enum Stand {
    /// An earlier attempt passed it.
    Passed(Receipt),
    /// Its time is over.
    Over(Receipt),
    WaitUntil(Timestamp),
}

pub fn stand(delay: &DelayAction, past: Option<&Effect>, now: Timestamp, scope: &Scope) -> Result<Stand, BadExpr> {
    if let Some(EffectState::Done(receipt)) = past.map(|past| &past.state) {
        return Ok(Stand::Passed(receipt.clone()));
    }
    let until = delay.until(past.map_or(now, |past| past.first_intended_at), scope)?;
    if now < until {
        return Ok(Stand::WaitUntil(until));
    }
    let output = serde_json::json!({ "until": until.to_string() });
    Ok(Stand::Over(Receipt { status: 200, body: Bytes::from(output.to_string()) }))
}
