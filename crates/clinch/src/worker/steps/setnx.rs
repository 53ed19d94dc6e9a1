//! `setnx:` sets a key that is not set, for a while, and says whether it did.
//!
//! ```yaml
//! - name: first
//!   setnx: {key: "reminder-{{ body.customer }}", ttl: 24h}
//! - name: remind
//!   if: "steps.first.output.set"
//!   http: {url: https://mail.example/send, body_from: body}
//! ```
//!
//! The key and the step's result are written together, in the installation's own store: a job that has set a key and runs
//! again is told again that it has. Keys are those of the event's tenant, and are stored as hashes.

use super::{bad_payload, missing};
use crate::house::House;
use crate::worker::attempt::count_step;
use crate::worker::end::{End, StepEnd};
use crate::worker::scope::Scope;
use bytes::Bytes;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::effect::{EffectState, Receipt};
use clinch_core::job::Ending;
use clinch_core::key::{OnceKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::time::Timestamp;
use clinch_core::worker::{SetnxAction, Step};
use clinch_store::{Claim, SetOnce};
use std::sync::Arc;

const SET: &[u8] = br#"{"set":true}"#;
const NOT_SET: &[u8] = br#"{"set":false}"#;

/// What is to be set for this event.
pub fn ask(
    action: &SetnxAction,
    step: &Arc<str>,
    payload: &Payload,
    scope: &mut Scope<'_>,
    now: Timestamp,
) -> Result<SetOnce, Failure> {
    let key = action.key.text(scope.names()).map_err(missing)?;
    if key.is_empty() {
        return Err(bad_payload("its key is empty"));
    }
    let receipt = |body| Receipt { status: 200, body: Bytes::from_static(body) };
    Ok(SetOnce {
        step: step.clone(),
        key: OnceKey::of(&Pepper::new(scope.house().store.pepper()), &payload.about.tenant, &key),
        at: now,
        until: now + action.ttl,
        was_free: receipt(SET),
        was_taken: receipt(NOT_SET),
    })
}

pub fn is_set(receipt: &Receipt) -> bool {
    receipt.body == SET
}

/// Whether the key was free is the result of the step, now and whenever the job runs again.
pub async fn set_once(
    house: &House,
    claim: &Claim,
    step: &Step,
    action: &SetnxAction,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (name, began) = (&step.name, house.clock.now());
    let past = claim.effects.iter().find(|effect| *effect.name == **name);
    let receipt = match past.map(|past| &past.state) {
        Some(EffectState::Done(receipt)) => receipt.clone(),
        _ => {
            let ask = match ask(action, name, payload, scope, began) {
                Ok(ask) => ask,
                Err(failure) => {
                    let why = format!("step `{name}`: {}", failure.error);
                    return Ok(StepEnd::Over(End::refused(failure.reason, why, name)));
                }
            };
            let Some(receipt) = house.insist(|| house.store.set_once(claim.lease, ask.clone())).await? else {
                return Ok(StepEnd::TakenOver);
            };
            crate::crash::point("after_set");
            count_step(scope, claim, step, "ok", began);
            receipt
        }
    };
    if action.stops && !is_set(&receipt) {
        house.metrics.saved("job", &claim.flow);
        return Ok(StepEnd::Over(End::of(Outcome::Succeeded(Ending::Noop), name)));
    }
    Ok(StepEnd::DoneBefore(receipt))
}
