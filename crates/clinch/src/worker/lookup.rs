//! An effect whose answer was lost, and a partner that can be asked.

use super::end::{End, StepEnd};
use super::scope::Scope;
use super::steps::Outward;
use crate::effects::{Gate, Sent, Wait};
use crate::house::House;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::breaker::is_failure;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::worker::Step;
use clinch_store::{Claim, Conclusion};

/// What the partner says of an effect whose answer was lost.
pub enum Found {
    NotDone,
    /// It was done, or it could not be found out.
    Over(StepEnd),
}

pub async fn look_up(
    house: &House,
    gate: &Gate,
    claim: &Claim,
    step: &Step,
    action: &dyn Outward,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Found> {
    let name = &step.name;
    let over = |outcome| Ok(Found::Over(StepEnd::Over(End::of(outcome, name))));
    let failed = |reason, why: String| {
        Outcome::Failed(Failure::new(reason, format!("step `{name}` was sent before, and {why}; it is asked again")))
    };
    let (Some(lookup), Some(question)) = (&action.promise().lookup, action.question(scope)) else {
        return Ok(Found::Over(StepEnd::Over(End::ask(house.clock.now(), name))));
    };
    let question = match question {
        Ok(question) => question,
        Err(error) => return over(failed(Reason::MissingData, format!("what to ask is not known: {error}"))),
    };
    let (receipt, done) = match gate.ask(claim.lease, action.partner(), question).await? {
        Err(Wait { until, waits }) => return over(Outcome::PutOff { until, waits }),
        Ok(Sent::Answered { receipt, .. }) if !is_failure(receipt.status) => {
            match lookup.is_done(&receipt, scope.names().clone()) {
                Ok(done) => (receipt, done),
                Err(error) => return over(failed(Reason::UnknownOutcome, format!("its answer says nothing: {error}"))),
            }
        }
        Ok(Sent::Answered { receipt, .. }) => {
            return over(failed(
                Reason::UnknownOutcome,
                format!("to the lookup the target answered {}", receipt.status),
            ));
        }
        Ok(_) => return over(failed(Reason::UnknownOutcome, "the lookup was not answered".into())),
    };
    tracing::info!(job.id = %claim.lease.job, "step `{name}`: the lookup says that it was {}done", if done { "" } else { "not " });
    if !done {
        return Ok(Found::NotDone);
    }
    let conclusion =
        Conclusion { name: name.clone(), state: EffectState::Done(receipt.clone()), at: house.clock.now() };
    Ok(Found::Over(StepEnd::Done(receipt, conclusion)))
}
