//! `compensate:` a job that has ended for good is undone, the last step first. What was undone is written down as it happens, so that a
//! crash repeats nothing and leaves nothing out.

use super::attempt::run_step;
use super::end::{End, StepEnd, Unwritten};
use super::fanout::{Ground, life};
use super::lookup::remember;
use super::record;
use super::scope::Scope;
use super::wrap;
use crate::house::House;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::fanout::{Fate, failures, fate, kept};
use clinch_core::saga::{Ended, Undo, ends_in_undoing, in_doubt, to_undo};
use clinch_core::worker::{Step, Worker};
use clinch_store::{Claim, Conclusion, Held};

/// What becomes of a job that has ended for good.
pub enum Marked {
    /// It is undone from now on. The line that says so is completed by the end of the attempt, which it is to travel with.
    Undoing(Conclusion),
    /// Nothing is to be undone; or it is not known what was done, and a person is asked first.
    Stands,
    /// Somebody else has the job now.
    TakenOver,
}

/// Writes down how its last effect ended and, where there is something to undo, that the job has ended. The ledger says what was done, and
/// not this attempt, which may have ended before it came to all of it.
pub async fn mark(
    house: &House,
    claim: &Claim,
    last: Option<Unwritten>,
    ended: &Ended,
) -> clinch_store::Result<Marked> {
    if let Some(last) = last
        && record::conclude(house, claim, last).await? == Held::Lost
    {
        return Ok(Marked::TakenOver);
    }
    let workspace = house.insist(|| house.versions.get(claim.version, &*house.store)).await?;
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&claim.queue));
    let story = house.insist(|| house.store.job(claim.lease.job)).await?;
    let undoes =
        worker.zip(story).is_some_and(|(worker, story)| ends_in_undoing(worker, &story.effects, claim.replays));
    if !undoes {
        return Ok(Marked::Stands);
    }
    Ok(house.mark_ended(claim.lease, claim.replays, ended).await?.map_or(Marked::TakenOver, Marked::Undoing))
}

/// Undoes what is left to undo of a job that has ended. `None`: somebody else has the job now.
pub async fn undo(
    ground: Ground<'_>,
    worker: &Worker,
    ended: Ended,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Option<End>> {
    recall(ground.claim, worker, scope);
    let mut undone = ended.undone(&ground.claim.effects);
    for undo in to_undo(worker, &ground.claim.effects) {
        let step = &undo.step.name;
        let Some(fate) = undo_one(ground, &undo, ended.failures, scope).await? else { return Ok(None) };
        let end = match fate {
            Fate::Done => {
                undone.push(step.to_string());
                continue;
            }
            Fate::Again { failure, failures } => {
                let error = ended.told(&undone, Some((step, &failure)), "still to be undone");
                let end = End::of(Outcome::Failed(Failure { error, ..failure }), &undo.name);
                End { failures: Some(failures.saturating_sub(1)), since: Some(ended.at), ..end }
            }
            // What comes before it in the job may depend on it: nothing is undone out of order.
            Fate::Over(failure) => {
                End::of(Outcome::Refused(ended.failure(&undone, Some((step, &failure)))), &undo.name)
            }
            Fate::Waits { until, waits } => End::of(Outcome::PutOff { until, waits }, &undo.name),
            Fate::Interrupted => End::of(Outcome::Interrupted, &undo.name),
        };
        return Ok(Some(end));
    }
    Ok(Some(End::of(Outcome::Refused(ended.failure(&undone, None)), "")))
}

/// A replay of a job that was being undone when an answer was lost: whether a step still stands must be known before it is
/// relied on. So the undoing is finished first. `None`: somebody else has the job now.
pub async fn resolve(ground: Ground<'_>, worker: &Worker, scope: &mut Scope<'_>) -> clinch_store::Result<Option<End>> {
    recall(ground.claim, worker, scope);
    for undo in in_doubt(worker, &ground.claim.effects) {
        let Some(fate) = undo_one(ground, &undo, 0, scope).await? else { return Ok(None) };
        let end = match fate {
            Fate::Done => continue,
            Fate::Again { failure, failures } => {
                End { failures: Some(failures.saturating_sub(1)), ..End::of(Outcome::Failed(failure), &undo.name) }
            }
            Fate::Over(failure) => End::of(Outcome::Refused(failure), &undo.name),
            Fate::Waits { until, waits } => End::of(Outcome::PutOff { until, waits }, &undo.name),
            Fate::Interrupted => End::of(Outcome::Interrupted, &undo.name),
        };
        return Ok(Some(end));
    }
    // Claimed again, the job sees what is known now.
    Ok(Some(End::of(Outcome::Interrupted, "")))
}

/// What the steps put out when they were done, for the expressions of what undoes them.
fn recall(claim: &Claim, worker: &Worker, scope: &mut Scope<'_>) {
    worker.all_steps().for_each(|step| remember(step, &claim.effects, scope));
}

/// `None`: somebody else has the job now. `failed` is how often the job had failed before there was anything to undo.
async fn undo_one(
    ground: Ground<'_>,
    undo: &Undo<'_>,
    failed: u32,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Option<Fate>> {
    let Ground { house, gate, leases, claim, payload, retry } = ground;
    if house.stop.is_cancelled() {
        return Ok(Some(Fate::Interrupted));
    }
    let step = Step {
        name: undo.name.clone(),
        when: None,
        action: undo.action.clone(),
        each: None,
        compensate: None,
        policies: Vec::new(),
    };
    let (fate, unwritten) = match run_step(house, gate, leases, claim, &step, payload, scope).await? {
        StepEnd::Done(_, unwritten) => (Fate::Done, Some(unwritten)),
        StepEnd::LeftOut | StepEnd::Together | StepEnd::Computed(_) | StepEnd::DoneBefore(_) => (Fate::Done, None),
        StepEnd::TakenOver => return Ok(None),
        StepEnd::Over(end) => {
            let own = match &end.unwritten {
                Some(_) => {
                    let past = claim.effects.iter().filter(|effect| *effect.name == *undo.name);
                    failures(past, 1, life(claim), retry)
                }
                None => claim.failures.saturating_add(1).saturating_sub(failed),
            };
            let fate = match fate(end.outcome, own, retry) {
                Fate::Again { failure, failures } => Fate::Again { failure: bare(failure, undo), failures },
                Fate::Over(failure) => Fate::Over(bare(failure, undo)),
                other => other,
            };
            let mut unwritten = end.unwritten;
            if let Some(last) = &mut unwritten {
                last.conclusion.state = kept(last.conclusion.state.clone(), &fate);
            }
            (fate, unwritten)
        }
    };
    if fate == Fate::Done {
        // Before the line that says so: whoever asks next is told the truth.
        Box::pin(wrap::free(house, claim, undo, payload, scope)).await?;
    }
    if let Some(unwritten) = unwritten
        && record::conclude(house, claim, unwritten).await? == Held::Lost
    {
        return Ok(None);
    }
    if fate == Fate::Done {
        crate::crash::point("after_undo");
    }
    Ok(Some(fate))
}

/// Its error, without the name that stands before it anyway.
fn bare(failure: Failure, undo: &Undo<'_>) -> Failure {
    let error = failure.error.strip_prefix(&format!("step `{}`: ", undo.name)).map(str::to_string);
    Failure { error: error.unwrap_or(failure.error), ..failure }
}
