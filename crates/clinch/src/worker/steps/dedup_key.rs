//! `dedup_key:` (or `run: utils.compute_dedup_key`) a key of fields of the event, and of the stretch of time that it is in.
//!
//! ```yaml
//! - name: key
//!   dedup_key: {fields: [customer_id, store_id, timestamp], bucket_minutes: 5}
//! # steps.key.output: {"key": "9f8e…", "bucket": "2026-08-01T10:40:00.000Z"}
//! ```

use super::{Inward, bad_payload};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::death::Reason;
use clinch_core::dedup::DedupRule;
use serde_json::{Value, json};

impl Inward for DedupRule {
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure> {
        let computed = DedupRule::compute(self, scope.names()).map_err(|none| match none.is_missing() {
            true => Failure::new(Reason::MissingData, none.to_string()),
            false => bad_payload(none.to_string()),
        })?;
        Ok(match computed.bucket {
            Some(began) => json!({"key": computed.key, "bucket": began.to_string()}),
            None => json!({ "key": computed.key }),
        })
    }
}
