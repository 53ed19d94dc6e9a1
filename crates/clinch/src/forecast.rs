//! A dry run: what would be done for an event, step by step, and nothing of it is. Who can plan is handed to who wants to know,
//! like `inquiry`: the rooms do not meet.

use clinch_core::config::Workspace;
use clinch_core::effect::Effect;
use clinch_core::id::{EventId, JobId};
use clinch_core::payload::Payload;
use clinch_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// An event to plan for, recorded or given.
pub struct Considered {
    pub event: EventId,
    pub received_at: Timestamp,
    pub payload: Arc<Payload>,
    /// The jobs that it had, with what their ledger knows.
    pub jobs: Vec<RecordedJob>,
    /// Only this flow takes it, whatever its source is.
    pub flow: Option<String>,
}

pub struct RecordedJob {
    pub id: JobId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    pub effects: Vec<Effect>,
}

pub trait Forecast: Send + Sync {
    /// What this workspace would do for the event. Nobody is called, and nothing is written down.
    fn foresee(&self, workspace: &Workspace, event: &Considered) -> Vec<JobPlan>;
}

/// What would be done for one job of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPlan {
    pub flow: String,
    pub queue: String,
    /// Null where nobody consumes the queue.
    pub worker: Option<String>,
    pub steps: Vec<StepPlan>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepPlan {
    pub name: String,
    /// run, skip (its condition does not hold), noop (a policy would not have it), wait (for time or people), fail, unknown,
    /// not_reached
    pub verdict: String,
    /// Why, where it does not simply run.
    pub why: Option<String>,
    pub effect: Option<EffectPlan>,
}

/// Something that would leave the house, or the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectPlan {
    pub integration: String,
    /// Such as `POST https://crm.example.com/contacts`, masked.
    pub does: String,
    /// What the target would see as our key.
    pub key: String,
    /// Of all that would be sent: two of them are the same where it is.
    pub fingerprint: String,
}

/// What is different, a sentence each; nothing where the plans are the same.
pub fn differences(old: &[JobPlan], new: &[JobPlan]) -> Vec<String> {
    let mut said = Vec::new();
    let twin = |job: &JobPlan, others: &'_ [JobPlan]| {
        others.iter().position(|other| (&other.flow, &other.queue) == (&job.flow, &job.queue))
    };
    for job in old {
        match twin(job, new) {
            Some(at) => steps(job, &new[at], &mut said),
            None => said.push(format!("no job for {} in queue {} any more", job.flow, job.queue)),
        }
    }
    let come = new.iter().filter(|job| twin(job, old).is_none());
    said.extend(come.map(|job| format!("a job for {} in queue {}, which it did not have", job.flow, job.queue)));
    said
}

fn steps(old: &JobPlan, new: &JobPlan, said: &mut Vec<String>) {
    if old.worker.is_some() != new.worker.is_some() {
        let who = if new.worker.is_some() { "somebody" } else { "nobody" };
        said.push(format!("{who} runs queue {} now", new.queue));
    }
    for step in &old.steps {
        match new.steps.iter().find(|other| other.name == step.name) {
            Some(other) => step_differences(step, other, said),
            None => said.push(format!("{}: it is gone", step.name)),
        }
    }
    let come = new.steps.iter().filter(|step| !old.steps.iter().any(|other| other.name == step.name));
    said.extend(come.map(|step| format!("{}: it is new ({})", step.name, step.verdict)));
    let order = |plan: &JobPlan, other: &JobPlan| -> Vec<String> {
        let both = plan.steps.iter().filter(|step| other.steps.iter().any(|known| known.name == step.name));
        both.map(|step| step.name.clone()).collect()
    };
    if order(old, new) != order(new, old) {
        said.push(format!("another order: {}", order(new, old).join(", ")));
    }
}

fn step_differences(old: &StepPlan, new: &StepPlan, said: &mut Vec<String>) {
    let name = &new.name;
    if old.verdict != new.verdict {
        let why = new.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        return said.push(format!("{name}: {} instead of {}{why}", new.verdict, old.verdict));
    }
    match (&old.effect, &new.effect) {
        (Some(was), Some(now)) if was != now => {
            let mut what = Vec::new();
            if was.integration != now.integration {
                what.push(format!("{} instead of {}", now.integration, was.integration));
            }
            if was.does != now.does {
                what.push(format!("{} instead of {}", now.does, was.does));
            }
            if was.key != now.key {
                what.push("its key differs".into());
            }
            if what.is_empty() {
                what.push("what would be sent differs".into());
            }
            said.push(format!("{name}: {}", what.join(", ")));
        }
        (None, Some(_)) => said.push(format!("{name}: it has an effect now")),
        (Some(_), None) => said.push(format!("{name}: it has no effect any more")),
        _ if old.why != new.why => {
            let why = |plan: &StepPlan| plan.why.clone().unwrap_or_else(|| "nothing".into());
            said.push(format!("{name}: {} instead of {}", why(new), why(old)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, verdict: &str, fingerprint: &str) -> StepPlan {
        let effect = EffectPlan {
            integration: "crm".into(),
            does: "POST https://crm/x".into(),
            key: format!("key of {name}"),
            fingerprint: fingerprint.into(),
        };
        StepPlan { name: name.into(), verdict: verdict.into(), why: None, effect: Some(effect) }
    }

    fn job(steps: Vec<StepPlan>) -> Vec<JobPlan> {
        vec![JobPlan { flow: "f".into(), queue: "q".into(), worker: Some("w".into()), steps }]
    }

    #[test]
    fn j2_plans_are_the_same_or_it_is_said_what_differs() {
        let old = job(vec![step("a", "run", "1"), step("b", "run", "2")]);
        let check = |new: &[JobPlan], expected: &[&str]| assert_eq!(differences(&old, new), expected);
        check(&old, &[]);
        check(&job(vec![step("a", "run", "1"), step("b", "run", "3")]), &["b: what would be sent differs"]);
        check(&job(vec![step("a", "skip", "1"), step("b", "run", "2")]), &["a: skip instead of run"]);
        check(&job(vec![step("b", "run", "2"), step("a", "run", "1")]), &["another order: b, a"]);
        check(&job(vec![step("a", "run", "1"), step("c", "run", "2")]), &["b: it is gone", "c: it is new (run)"]);
        check(&[], &["no job for f in queue q any more"]);
        let mut moved = step("a", "run", "1");
        moved.effect.as_mut().expect("an effect").does = "POST https://other/x".into();
        check(&job(vec![moved, step("b", "run", "2")]), &["a: POST https://other/x instead of POST https://crm/x"]);
    }
}
