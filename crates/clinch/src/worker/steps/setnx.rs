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
use crate::worker::scope::Scope;
use bytes::Bytes;
use clinch_core::attempt::Failure;
use clinch_core::effect::Receipt;
use clinch_core::key::{OnceKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::time::Timestamp;
use clinch_core::worker::SetnxAction;
use clinch_store::SetOnce;
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
