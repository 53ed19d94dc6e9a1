//! `parallel:` branches side by side in one attempt. What one of them came to is written down as soon as it ends, so that the
//! failure of another never repeats it.

use super::attempt::run_step;
use super::end::{End, StepEnd};
use super::lease::Leases;
use super::record;
use super::scope::Scope;
use crate::effects::Gate;
use crate::house::House;
use crate::telemetry::Label;
use clinch_core::death::Reason;
use clinch_core::fanout::{Fate, Life, Together, effects_of, failures, fate, kept, together};
use clinch_core::payload::Payload;
use clinch_core::retry::RetryPolicy;
use clinch_core::worker::{Branch, Step};
use clinch_store::{Claim, Held};
use futures_util::future::join_all;

/// What an attempt stands on.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub house: &'a House,
    pub gate: &'a Gate,
    pub leases: &'a Leases,
    pub claim: &'a Claim,
    pub payload: &'a Payload,
    pub retry: &'a RetryPolicy,
}

/// Runs what is missing of every branch, and says what they come to together.
pub async fn part(
    ground: Ground<'_>,
    step: &Step,
    branches: &[Branch],
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let refused = |error| StepEnd::Over(End::refused(Reason::MissingData, error, &step.name));
    scope.begin(&step.name);
    match step.when.as_ref().map(|condition| condition.holds(scope.names())) {
        None | Some(Ok(true)) => {}
        Some(Ok(false)) => {
            let before = branches.iter().flat_map(|branch| effects_of(branch, &ground.claim.effects));
            return Ok(End::of_left_out(before, ground.house.clock.now()).map_or(StepEnd::LeftOut, StepEnd::Over));
        }
        Some(Err(error)) => return Ok(refused(format!("step `{}`: {error}", step.name))),
    }
    let had = scope.outputs();
    let runs = branches.iter().map(|branch| run_branch(ground, branch, scope.child()));
    let mut fates = Vec::with_capacity(branches.len());
    let (mut last, mut taken_over) = (None, false);
    for (branch, run) in branches.iter().zip(join_all(runs).await) {
        match run? {
            Some(run) => {
                if run.fate != Fate::Done {
                    last = Some(run.step);
                }
                fates.push((branch.name.clone(), run.fate));
                scope.merge(run.scope, had);
            }
            None => taken_over = true,
        }
    }
    if taken_over {
        return Ok(StepEnd::TakenOver);
    }
    Ok(match together(&step.name, &fates) {
        Together::GoOn => StepEnd::Together,
        Together::End { outcome, failures } => {
            let step = last.unwrap_or_else(|| (&step.name).into());
            StepEnd::Over(End { failures, ..End::of(outcome, step) })
        }
    })
}

/// A branch that has run as far as it could.
struct Run<'a> {
    fate: Fate,
    /// The step in which it ended, for the metrics.
    step: Label,
    scope: Scope<'a>,
}

/// `None`: somebody else has the job now.
async fn run_branch<'a>(
    ground: Ground<'_>,
    branch: &Branch,
    mut scope: Scope<'a>,
) -> clinch_store::Result<Option<Run<'a>>> {
    let Ground { house, gate, leases, claim, payload, .. } = ground;
    let done = |scope| Ok(Some(Run { fate: Fate::Done, step: (&branch.name).into(), scope }));
    scope.begin(&branch.name);
    match branch.when.as_ref().map(|condition| condition.holds(scope.names())) {
        None | Some(Ok(true)) => {}
        Some(Ok(false)) => match End::of_left_out(effects_of(branch, &claim.effects), house.clock.now()) {
            None => return done(scope),
            Some(end) => return Ok(Some(Run { fate: judge(ground, branch, &end), step: end.step, scope })),
        },
        Some(Err(error)) => {
            let end = End::refused(Reason::MissingData, error.to_string(), &branch.name);
            return Ok(Some(Run { fate: judge(ground, branch, &end), step: end.step, scope }));
        }
    }
    for step in &branch.steps {
        if house.stop.is_cancelled() {
            return Ok(Some(Run { fate: Fate::Interrupted, step: (&step.name).into(), scope }));
        }
        match run_step(house, gate, leases, claim, step, payload, &mut scope).await? {
            StepEnd::LeftOut | StepEnd::Together => {}
            StepEnd::Computed(output) => scope.add_computed(&step.name, output),
            StepEnd::DoneBefore(receipt) => scope.add_output(&step.name, &receipt),
            StepEnd::Done(receipt, unwritten) => {
                if record::conclude(house, claim, unwritten).await? == Held::Lost {
                    return Ok(None);
                }
                crate::crash::point("after_conclude");
                scope.add_output(&step.name, &receipt);
            }
            StepEnd::Over(end) => {
                let fate = judge(ground, branch, &end);
                if let Some(mut unwritten) = end.unwritten {
                    unwritten.conclusion.state = kept(unwritten.conclusion.state, &fate);
                    if record::conclude(house, claim, unwritten).await? == Held::Lost {
                        return Ok(None);
                    }
                }
                return Ok(Some(Run { fate, step: end.step, scope }));
            }
            StepEnd::TakenOver => return Ok(None),
        }
    }
    done(scope)
}

pub fn judge(ground: Ground<'_>, branch: &Branch, end: &End) -> Fate {
    let Ground { claim, retry, .. } = ground;
    let own = match &end.unwritten {
        // The ledger that was claimed does not know of this send yet.
        Some(_) => failures(effects_of(branch, &claim.effects), 1, life(claim), retry),
        // It failed without sending anything, which the ledger does not count: then the job's failures do.
        None => claim.failures.saturating_add(1),
    };
    fate(end.outcome.clone(), own, retry)
}

/// What the job has behind it in the life that it lives now.
pub fn life(claim: &Claim) -> Life {
    Life { replays: claim.replays, failures: claim.failures, began: claim.first_attempt_at }
}
