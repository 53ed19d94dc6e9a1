//! A job's ledger as people read it: each line with the key that was sent, what proves its state, and what a replay would do
//! with it.

use super::shapes::Effect;
use crate::masking::rules;
use clinch_core::audit::Row;
use clinch_core::death::Reason;
use clinch_core::effect::{self, EffectId, EffectState};
use clinch_core::id::JobId;
use clinch_core::key::IdempotencyKey;
use clinch_core::replay::again;
use clinch_core::worker::{Action, Worker};
use clinch_store::read::JobStory;
use serde_json::Value;

/// `worker` is what the job runs; `None`: the workspace does not say.
pub fn told(story: &JobStory, worker: Option<&Worker>) -> Vec<Effect> {
    story.effects.iter().map(|effect| line(story, worker, effect)).collect()
}

pub fn line(story: &JobStory, worker: Option<&Worker>, effect: &effect::Effect) -> Effect {
    let job = story.row.id;
    Effect {
        key: worker.and_then(|worker| key(worker, job, &effect.name)),
        proof: Some(proof(job, effect, &story.audit)),
        if_replayed: again(effect, &story.effects).map(|again| again.word().into()),
        ..Effect::from(effect)
    }
}

/// Where one is sent that is ours alone. Scripts and tables have keys of their own making.
fn key(worker: &Worker, job: JobId, effect: &str) -> Option<String> {
    match worker.action_of(effect)?.0 {
        Action::Http(_) | Action::Send(_) => Some(IdempotencyKey::of(job, effect).as_str().to_string()),
        _ => None,
    }
}

/// How it is known what became of it.
fn proof(job: JobId, effect: &effect::Effect, audit: &[Row]) -> String {
    let by_person = || word(job, &effect.name, audit);
    match &effect.state {
        EffectState::Done(receipt) if receipt.status > 0 => format!("answered {}", receipt.status),
        EffectState::Done(_) => by_person().unwrap_or_else(|| "done here, nobody had to answer".into()),
        EffectState::NotDone => by_person().unwrap_or_else(|| "refused, or never sent".into()),
        EffectState::Unknown => "sent, and no answer came".into(),
        EffectState::Open => "about to be sent".into(),
        EffectState::GivenUp(Reason::UnknownOutcome) => "sent as often as it may be, and no answer came".into(),
        EffectState::GivenUp(reason) => format!("given up: {reason}"),
    }
}

/// What a person said of it last.
fn word(job: JobId, step: &str, audit: &[Row]) -> Option<String> {
    let object = EffectId { job, step: step.into() }.to_string();
    let resolved = |row: &&Row| row.action == "effect.resolve" && row.object == object;
    if let Some(row) = audit.iter().rev().find(resolved) {
        let after: Value = serde_json::from_str(row.after.as_deref().unwrap_or_default()).unwrap_or_default();
        return Some(format!("{}: {}", row.actor, rules().text(after["proof"].as_str().unwrap_or_default())));
    }
    let ruled = audit.iter().rev().find(|row| row.action == "job.replay")?;
    let after: Value = serde_json::from_str(ruled.after.as_deref().unwrap_or_default()).unwrap_or_default();
    Some(format!("{}, at a replay: {}", ruled.actor, after["unknown_effects"].as_str()?))
}
