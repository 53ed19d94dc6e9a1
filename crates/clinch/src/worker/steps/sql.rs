//! `sql:` a statement in a database, which is run once.
//!
//! ```yaml
//! - name: upsert
//!   sql:
//!     database: crm               # integrations: {crm: {url: "${secrets.CRM_DB}"}}
//!     statement: UPDATE contacts SET seen = now() WHERE tenant = $1 AND email = $2 RETURNING id
//!     params: ["{{ event.tenant }}", "{{ body.email }}"]
//! # steps.upsert.output: {"rows": [{"id": 7}], "count": 1}
//! ```
//!
//! Our key is written into `clinch_effects` of the same database in the same transaction, so that it is never run twice and
//! a lost answer is found again.

use super::Outward;
use crate::effects::{Act, Question, SqlCall};
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::config;
use clinch_core::expr::BadExpr;
use clinch_core::integration::{Integration, Promise};
use clinch_core::key::{IdempotencyKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::worker::SqlAction;
use clinch_store::Claim;
use clinch_store::target::Work;
use std::sync::Arc;

impl Outward for SqlAction {
    fn partner(&self) -> &Arc<Integration> {
        &self.partner
    }

    fn promise(&self) -> &Promise {
        &self.promise
    }

    fn plan(&self, step: &str, claim: &Claim, _: &Payload, scope: &mut Scope<'_>) -> Result<Box<dyn Act>, Failure> {
        let params = self.params.iter().map(|param| param.value(scope.names()));
        let params = params.collect::<Result<Vec<_>, _>>()?;
        let address = config::address(&self.address, |name| scope.house().secrets.get(name))?;
        // Several installations may write to one database, and count their jobs alike.
        let home = Pepper::new(scope.house().store.pepper()).installation();
        let work = Work {
            key: format!("{}-{home}", IdempotencyKey::of(claim.lease.job, step).as_str()),
            effect: step.to_string(),
            statement: self.statement.clone(),
            params,
            timeout: self.timeout,
        };
        Ok(Box::new(SqlCall { address, work }))
    }

    /// Nobody need be asked: to send it again is to ask.
    fn question(&self, _: &mut Scope<'_>) -> Option<Result<Question, BadExpr>> {
        None
    }
}
