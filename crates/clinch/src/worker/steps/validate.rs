//! `validate:` a value must fit a schema of the workspace, or the job is a dead letter. Its output is the value.
//!
//! ```yaml
//! - name: check
//!   validate: {schema: lead, from: body.lead}
//! ```

use super::{Inward, bad_payload, missing};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::death::Reason;
use clinch_core::worker::ValidateAction;
use serde_json::Value;

impl Inward for ValidateAction {
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure> {
        let value = self.from.value(scope.names()).map_err(missing)?;
        let Some(schema) = scope.workspace().schema(&self.schema) else {
            return Err(Failure::new(Reason::ConfigError, format!("there is no schemas/{}.json", self.schema)));
        };
        // Places and rules, never values.
        schema.check(&value).map_err(|mismatches| bad_payload(mismatches.to_string()))?;
        Ok(value)
    }
}
