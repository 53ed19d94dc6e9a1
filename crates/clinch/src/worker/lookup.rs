//! An effect whose answer was lost, and a partner that can be asked: by the next attempt, or by a person.

use super::end::{End, StepEnd};
use super::scope::Scope;
use super::steps::{self, Kind, Outward};
use crate::effects::{Gate, Sent, Wait};
use crate::house::House;
use crate::inquiry::Finding;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Receipt};
use clinch_core::expr::BadExpr;
use clinch_core::foreach::{item_name, item_of};
use clinch_core::id::JobId;
use clinch_core::integration::is_answer;
use clinch_core::job::Waits;
use clinch_core::payload::Payload;
use clinch_core::saga;
use clinch_core::trace;
use clinch_core::worker::Step;
use clinch_store::read::JobStory;
use clinch_store::{Claim, Conclusion};
use serde_json::Value;
use std::sync::Arc;

/// What the partner said.
enum Told {
    Done(Receipt),
    NotDone(Receipt),
    /// Nothing says how to ask it.
    NoQuestion,
    /// The question cannot be put together.
    BadQuestion(BadExpr),
    /// It cannot be asked now.
    Wait(Wait),
    /// Its answer says nothing: why.
    Nothing(String),
}

async fn ask(
    gate: &Gate,
    job: JobId,
    step: &str,
    action: &dyn Outward,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Told> {
    let (Some(lookup), Some(question)) = (&action.promise().lookup, action.question(scope)) else {
        return Ok(Told::NoQuestion);
    };
    let question = match question {
        Ok(question) => question,
        Err(error) => return Ok(Told::BadQuestion(error)),
    };
    let spans = scope.spans.clone();
    let asking = question.asking(spans.as_deref(), step, trace::Question::Lookup);
    Ok(match gate.ask(job, action.partner(), Box::new(question.call), asking).await? {
        Err(wait) => Told::Wait(wait),
        Ok(Sent::Answered { receipt, is_whole, .. }) if is_answer(receipt.status) => {
            match lookup.is_done(&receipt, is_whole, scope.names().clone()) {
                Ok(true) => Told::Done(receipt),
                Ok(false) => Told::NotDone(receipt),
                Err(error) => Told::Nothing(format!("its answer says nothing: {error}")),
            }
        }
        Ok(Sent::Answered { receipt, .. }) => {
            Told::Nothing(format!("to the lookup the target answered {}", receipt.status))
        }
        Ok(_) => Told::Nothing("the lookup was not answered".into()),
    })
}

/// What the partner says of an effect whose answer was lost.
pub enum Found {
    /// It was not done, which is still to be written unless it is sent now.
    NotDone(Conclusion),
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
    let (name, job) = (&step.name, claim.lease.job);
    let over = |outcome| Ok(Found::Over(StepEnd::Over(End::of(outcome, name))));
    let failed = |reason, why: String| {
        Outcome::Failed(Failure::new(reason, format!("step `{name}` was sent before, and {why}; it is asked again")))
    };
    let said = |done: &str| tracing::info!(job.id = %job, trace.id = %claim.trace, "step `{name}`: the lookup says that it was {done}");
    let concluded = |state| Conclusion { name: name.clone(), state, at: house.clock.now() };
    match ask(gate, job, name, action, scope).await? {
        Told::NoQuestion => Ok(Found::Over(StepEnd::Over(End::ask(house.clock.now(), name)))),
        Told::BadQuestion(error) => over(failed(Reason::MissingData, format!("what to ask is not known: {error}"))),
        Told::Wait(Wait { until, waits }) => over(Outcome::PutOff { until, waits }),
        Told::Nothing(why) => over(failed(Reason::UnknownOutcome, why)),
        Told::NotDone(_) => {
            said("not done");
            Ok(Found::NotDone(concluded(EffectState::NotDone)))
        }
        Told::Done(receipt) => {
            said("done");
            let conclusion = concluded(EffectState::Done(receipt.clone()));
            Ok(Found::Over(StepEnd::Done(receipt, conclusion.into())))
        }
    }
}

/// The same question, for a person. Nothing is written down.
pub async fn inquire(house: &House, gate: &Gate, story: &JobStory, step: &str) -> clinch_store::Result<Finding> {
    let cannot = |why: String| Ok(Finding::CannotBeAsked(why));
    let job = story.row.id;
    let workspace = house.versions.get(story.row.version, &*house.store).await?;
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&story.row.queue));
    let (Some(workspace), Some(worker)) = (&workspace, worker) else {
        return cannot(format!("the workspace that {job} runs is not there any more"));
    };
    let Some((action, asked)) = worker.action_of(step) else {
        return cannot(format!("worker `{}` has no step `{step}`", worker.name));
    };
    let Some(Kind::Outward(action)) = steps::kind(action) else {
        return cannot(format!("step `{step}` calls nobody"));
    };
    let payload = match &story.payload {
        Ok(stored) => Payload::decode(stored).map_err(|error| error.to_string()),
        Err(why) => Err(why.to_string()),
    };
    let payload = match payload {
        Ok(payload) => Arc::new(payload),
        Err(why) => return cannot(format!("what was stored of the event is not to be had: {why}")),
    };
    let mut scope = Scope::new(house, (&story.row).into(), &payload, workspace);
    // What undoes a step may name it too.
    let is_undo = saga::is_undo(step);
    for before in worker.all_steps().take_while(|known| known.name != asked.name).chain(is_undo.then_some(asked)) {
        remember(before, &story.effects, &mut scope);
    }
    if let Some((each, (_, index))) = asked.each.as_ref().zip(item_of(step)) {
        let items = each.items(scope.names()).unwrap_or_default();
        scope.set_item(items.into_iter().nth(index));
    }
    scope.begin(&step.into());
    scope.spans = house.tracer.aside(&scope.story(), job);
    let partner = &action.partner().name;
    let told = ask(gate, job, step, action, &mut scope).await?;
    if let Some(spans) = &scope.spans {
        house.tracer.answered(spans);
    }
    Ok(match told {
        Told::Done(receipt) => Finding::Done { status: receipt.status },
        Told::NotDone(receipt) => Finding::NotDone { status: receipt.status },
        Told::NoQuestion => Finding::CannotBeAsked(format!(
            "no `lookup:` says how to ask `{partner}`; look there yourself, or declare one and it can be asked from then on"
        )),
        Told::BadQuestion(error) => Finding::CannotBeAsked(format!("what to ask is not known: {error}")),
        Told::Wait(Wait { until, waits }) => {
            let why = match waits {
                Waits::Circuit => "its circuit is open",
                Waits::Paused => "it is paused",
                _ => "its limit is reached",
            };
            Finding::NoAnswer(format!("`{partner}` is not called now, because {why}; ask again after {until}"))
        }
        Told::Nothing(why) => Finding::NoAnswer(why),
    })
}

/// What an earlier step came to, as the ledger knows it or as it is computed again: a question, or what undoes a step, may name it. What
/// cannot be computed is missing to whoever asks for it.
pub fn remember(step: &Step, effects: &[Effect], scope: &mut Scope<'_>) {
    if let Some(each) = &step.each {
        let items = each.items(scope.names()).unwrap_or_default().into_iter().enumerate();
        let outputs = items.map(|(index, item)| {
            scope.set_item(Some(item));
            let done = receipt_of(&item_name(&step.name, index), effects);
            done.map(Receipt::output).or_else(|| computed(step, scope)).unwrap_or(Value::Null)
        });
        let outputs = Value::Array(outputs.collect());
        scope.set_item(None);
        return scope.add_computed(&step.name, outputs);
    }
    let name = saga::renewed(step, effects).unwrap_or_else(|| step.name.clone());
    if let Some(receipt) = receipt_of(&name, effects) {
        scope.add_output(&step.name, receipt);
    } else if let Some(output) = computed(step, scope) {
        scope.add_computed(&step.name, output);
    }
}

fn receipt_of<'e>(name: &str, effects: &'e [Effect]) -> Option<&'e Receipt> {
    match &effects.iter().find(|effect| effect.name == name)?.state {
        EffectState::Done(receipt) => Some(receipt),
        _ => None,
    }
}

fn computed(step: &Step, scope: &mut Scope<'_>) -> Option<Value> {
    let Some(Kind::Inward(action)) = steps::kind(&step.action) else { return None };
    let is_left_out = step.when.as_ref().is_some_and(|when| !matches!(when.holds(scope.names()), Ok(true)));
    if is_left_out { None } else { action.compute(scope).ok() }
}
