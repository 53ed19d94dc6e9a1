//! What steps can do, one kind per file. Each says what it means for an event; what leaves the house passes the gate.

pub mod approval;
mod dedup_key;
pub mod delay;
mod geoip;
pub mod http;
pub mod message;
mod phone;
pub mod policy;
pub mod queue;
pub mod queue_pull;
pub mod script;
pub mod setnx;
mod sql;
mod transform;
mod validate;

use super::scope::Scope;
use crate::effects::{Act, Outgoing, Question};
use clinch_core::approval::ApprovalAction;
use clinch_core::attempt::Failure;
use clinch_core::death::Reason;
use clinch_core::expr::BadExpr;
use clinch_core::integration::{Integration, Promise};
use clinch_core::payload::Payload;
use clinch_core::worker::{Action, DelayAction, PolicyAction, PullAction, QueueAction, SetnxAction};
use clinch_store::Claim;
use serde_json::Value;
use std::sync::Arc;

/// What a step does, as far as the attempt that runs it must know.
pub enum Kind<'a> {
    Inward(&'a dyn Inward),
    Outward(&'a dyn Outward),
    Delay(&'a DelayAction),
    Setnx(&'a SetnxAction),
    Queue(&'a QueueAction),
    Pull(&'a PullAction),
    Policy(&'a PolicyAction),
    Approval(&'a ApprovalAction),
}

/// A kind of step that only computes. Nothing of it is written down: it is computed again whenever the job runs again.
pub trait Inward: Send + Sync {
    /// Its output, or why the job can never go on.
    fn compute(&self, scope: &mut Scope<'_>) -> Result<Value, Failure>;
}

/// A kind of step that does something outside.
pub trait Outward: Send + Sync {
    /// Who is called.
    fn partner(&self) -> &Arc<Integration>;

    /// What is done about an answer that is lost.
    fn promise(&self) -> &Promise;

    /// What is to be done for this event, or why it never can be.
    fn plan(
        &self,
        step: &str,
        claim: &Claim,
        payload: &Payload,
        scope: &mut Scope<'_>,
    ) -> Result<Box<dyn Act>, Failure>;

    /// What it is, as far as rules for what leaves the house ask.
    fn outgoing(&self, _: &Claim, _: &Payload, _: &mut Scope<'_>) -> Result<Outgoing, Failure> {
        Ok(Outgoing::Call(self.partner().class))
    }

    /// The question whether it was done.
    fn question(&self, scope: &mut Scope<'_>) -> Option<Result<Question, BadExpr>>;
}

/// The kind of an action, if this version runs it.
pub fn kind(action: &Action) -> Option<Kind<'_>> {
    Some(match action {
        Action::Http(http) => Kind::Outward(&**http),
        Action::Script(script) => Kind::Outward(&**script),
        Action::Sql(sql) => Kind::Outward(&**sql),
        Action::Send(send) => Kind::Outward(&**send),
        Action::Transform(tree) => Kind::Inward(tree),
        Action::Validate(validate) => Kind::Inward(validate),
        Action::Phone(phone) => Kind::Inward(phone),
        Action::Geoip(geoip) => Kind::Inward(geoip),
        Action::DedupKey(rule) => Kind::Inward(&**rule),
        Action::Delay(delay) => Kind::Delay(delay),
        Action::Setnx(setnx) => Kind::Setnx(setnx),
        Action::Queue(queue) => Kind::Queue(queue),
        Action::Pull(pull) => Kind::Pull(pull),
        Action::Policy(policy) => Kind::Policy(policy),
        Action::Approval(approval) => Kind::Approval(approval),
        Action::Parallel(_) => return None,
    })
}

/// A value that a step needs is not there.
fn missing(error: BadExpr) -> Failure {
    Failure::new(Reason::MissingData, error.0)
}

/// The event is not what a step needs.
fn bad_payload(why: impl Into<String>) -> Failure {
    Failure::new(Reason::BadPayload, why)
}
