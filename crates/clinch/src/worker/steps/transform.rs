//! `transform:` another shape of what is there, for the steps that follow.
//!
//! ```yaml
//! - name: lead
//!   transform:
//!     name: "{{ body.first }} {{ body.last }}"
//!     source: web
//! - name: send
//!   http: {url: https://crm.example/leads, body_from: steps.lead.output}
//! ```

use super::{Inward, missing};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::expr::Tree;
use serde_json::Value;

impl Inward for Tree {
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure> {
        self.value(scope.names()).map_err(missing)
    }
}
