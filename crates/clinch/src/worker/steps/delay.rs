//! `delay:` the job waits, from when the step was first reached, across restarts and replays.
//!
//! ```yaml
//! - name: later
//!   delay: 2h                        # or {for: 2h}, or {until: body.remind_at}
//! ```
//!
//! That it was reached is a line of the ledger, which has the moment. A job that waits costs no attempt and holds no place.

use crate::house::House;
use crate::worker::end::{End, StepEnd, Unwritten};
use crate::worker::scope;
use bytes::Bytes;
use clinch_core::attempt::Outcome;
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Idempotency, Receipt};
use clinch_core::expr::BadExpr;
use clinch_core::job::Waits;
use clinch_core::scope::Scope;
use clinch_core::time::Timestamp;
use clinch_core::worker::{DelayAction, Step};
use clinch_store::{Claim, Conclusion, Held, NewEffect};

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

/// The job goes on when its time has come, and is put off until then. When it came here first is in the ledger.
pub async fn wait_out(
    house: &House,
    claim: &Claim,
    step: &Step,
    delay: &DelayAction,
    scope: &mut scope::Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (name, now) = (&step.name, house.clock.now());
    let past = claim.effects.iter().find(|effect| *effect.name == **name);
    let stand = match stand(delay, past, now, scope.names()) {
        Ok(stand) => stand,
        Err(error) => {
            return Ok(StepEnd::Over(End::refused(Reason::BadPayload, format!("step `{name}`: {error}"), name)));
        }
    };
    if past.is_none() {
        let reached = NewEffect { name: name.clone(), class: Idempotency::Natural, at: now };
        if house.insist(|| house.store.intend(claim.lease, reached.clone())).await? == Held::Lost {
            return Ok(StepEnd::TakenOver);
        }
    }
    let unwritten = |state| Unwritten::from(Conclusion { name: name.clone(), state, at: now });
    Ok(match stand {
        Stand::Passed(receipt) => StepEnd::DoneBefore(receipt),
        Stand::Over(receipt) => {
            let done = unwritten(EffectState::Done(receipt.clone()));
            StepEnd::Done(receipt, done)
        }
        Stand::WaitUntil(until) => {
            let put_off = End::of(Outcome::PutOff { until, waits: Waits::Delay }, name);
            StepEnd::Over(End { unwritten: Some(unwritten(EffectState::NotDone)), ..put_off })
        }
    })
}
