//! What was done outside, and what a person says of it.

use super::{Audit, Job, Moment, Preview};
use clinch_core::effect::EffectState;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Effect {
    pub step: String,
    pub state: String,
    /// What the target does with a repetition: header, natural, none.
    pub idempotency: String,
    /// How often it was about to be sent.
    pub sends: u32,
    pub first_intended_at: Moment,
    pub changed_at: Moment,
    /// What the target answered, if it is done.
    pub answer_status: Option<u16>,
    /// The idempotency key that was sent with it; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How its state is known; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// What a replay does with it: skipped, runs, looks_up, asks_first; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_replayed: Option<String>,
}

impl From<&clinch_core::effect::Effect> for Effect {
    fn from(effect: &clinch_core::effect::Effect) -> Effect {
        Effect {
            step: effect.name.clone(),
            state: effect.state.word().into(),
            idempotency: effect.class.word().into(),
            sends: effect.sends,
            first_intended_at: Moment(effect.first_intended_at),
            changed_at: Moment(effect.changed_at),
            answer_status: match &effect.state {
                // What a person took as done was answered by nobody.
                EffectState::Done(receipt) => Some(receipt.status).filter(|status| *status > 0),
                EffectState::Open | EffectState::NotDone | EffectState::Unknown | EffectState::GivenUp(_) => None,
            },
            key: None,
            proof: None,
            if_replayed: None,
        }
    }
}

/// What became of a send whose worker had lost the job by then: evidence, which changed nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LateAnswer {
    pub step: String,
    /// What it says of the effect: done, not_done, unknown.
    pub state: String,
    pub answer_status: Option<u16>,
    pub at: Moment,
    /// Of the lease under which it was sent.
    pub fence: u64,
    /// Its shape, its texts masked.
    pub answer: Option<Preview>,
}

impl From<&clinch_core::effect::LateAnswer> for LateAnswer {
    fn from(late: &clinch_core::effect::LateAnswer) -> LateAnswer {
        LateAnswer {
            step: late.step.clone(),
            state: late.state.word().into(),
            answer_status: late.status,
            at: Moment(late.at),
            fence: late.fence.0,
            answer: Preview::of_answer(&late.state),
        }
    }
}

/// `clinch.effects.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectList {
    pub schema: String,
    pub effects: Vec<EffectRow>,
    /// Whether more exist that were not looked at.
    pub more: bool,
    /// Ask again with `before` of this for the next page.
    pub next_before: Option<String>,
}

/// An effect in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectRow {
    /// Its job and its step: `job_…/charge`.
    pub id: String,
    pub job_id: String,
    pub trace_id: String,
    pub job_state: String,
    pub flow: String,
    /// Whom it calls; nothing when the workspace of its job cannot be read any more.
    pub integration: Option<String>,
    #[serde(flatten)]
    pub effect: Effect,
    /// A late answer says that it was done.
    pub late_done: bool,
}

/// `clinch.effects.show/v1`: everything about one effect.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectShow {
    pub schema: String,
    pub id: String,
    pub job: Job,
    pub integration: Option<String>,
    pub effect: Effect,
    /// The shape of the answer, its texts masked.
    pub answer: Option<Preview>,
    pub late_answers: Vec<LateAnswer>,
    /// What people did to its job.
    pub audit: Vec<Audit>,
}

/// `clinch.effects.verify/v1`: what the partner says. Nothing was changed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectVerified {
    pub schema: String,
    pub id: String,
    /// done, not_done, no_answer, cannot_be_asked
    pub found: String,
    pub answer_status: Option<u16>,
    /// Why nothing was found out.
    pub why: Option<String>,
    /// What the ledger says.
    pub state: String,
    /// Whether its job has not ended: then it decides itself.
    pub job_state: String,
}

/// What `POST /api/v1/effects/{job}/{step}/resolve` takes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveAsk {
    pub outcome: ResolveTo,
    /// How the person knows.
    pub proof: String,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolveTo {
    Done,
    NotDone,
}

/// `clinch.effects.resolve/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EffectResolved {
    pub schema: String,
    pub id: String,
    /// False: it was so already and nothing was changed.
    pub resolved: bool,
    pub state: String,
    pub job_id: String,
    pub job_state: String,
    /// Effects of its job that are unknown still.
    pub unknown_left: usize,
}
