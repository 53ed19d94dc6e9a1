//! What steps can do, one kind per file. Each says what it means for an event; what leaves the house passes the gate.

pub mod http;
pub mod script;

use super::scope::Scope;
use crate::effects::Act;
use clinch_core::expr::BadExpr;
use clinch_core::integration::{Integration, Promise};
use clinch_core::payload::Payload;
use clinch_core::worker::Action;
use clinch_store::Claim;
use std::sync::Arc;

/// A kind of step that does something outside.
pub trait Outward: Send + Sync {
    /// Who is called.
    fn partner(&self) -> &Arc<Integration>;

    /// What is done about an answer that is lost.
    fn promise(&self) -> &Promise;

    /// What is to be done for this event.
    fn plan(
        &self,
        step: &str,
        claim: &Claim,
        payload: &Payload,
        scope: &mut Scope<'_>,
    ) -> Result<Box<dyn Act>, BadExpr>;

    /// The question whether it was done.
    fn question(&self, scope: &mut Scope<'_>) -> Option<Result<Box<dyn Act>, BadExpr>>;
}

/// The kind of an action, if it does something outside.
pub fn outward(action: &Action) -> Option<&dyn Outward> {
    match action {
        Action::Http(http) => Some(&**http),
        Action::Script(script) => Some(&**script),
        Action::NotYet(_) => None,
    }
}
