//! Replays with a plan: a set of dead letters that is frozen when it is counted, and what became of each. Both engines say it alike.

use crate::{Act, Record, VersionId};
use clinch_core::audit::Right;
use clinch_core::death::Reason;
use clinch_core::effect::Effect;
use clinch_core::id::{EventId, JobId, PlanId};
use clinch_core::replay::{ItemState, Mark, Moments, PlanState, Tally, Terms};
use clinch_core::time::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which dead letters; all that is said must fit.
#[derive(Clone, Debug, Default)]
pub struct DeadFilter {
    pub source: Option<String>,
    pub flow: Option<String>,
    pub queue: Option<String>,
    pub reason: Option<Reason>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    /// Only the jobs of these.
    pub events: Option<Vec<EventId>>,
    /// Only these.
    pub jobs: Option<Vec<JobId>>,
    /// Only younger ones: the last of the part before.
    pub after: Option<JobId>,
    pub limit: usize,
}

/// A dead letter, as far as its replay depends on it.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    pub job: JobId,
    pub queue: Arc<str>,
    pub version: VersionId,
    pub reason: Option<Reason>,
    pub died_at: Timestamp,
    pub replays: u32,
    pub attempts: u32,
    /// With answers as they are stored: they are not looked into.
    pub effects: Vec<Effect>,
}

impl DeadLetter {
    pub fn mark(&self) -> Mark {
        Mark::of(self.replays, self.attempts, Some(self.died_at), self.reason, &self.effects)
    }
}

/// A set that was counted.
#[derive(Clone, Debug)]
pub struct NewPlan {
    pub id: PlanId,
    /// As it was written.
    pub query: String,
    pub forecast: Forecast,
    /// The oldest first.
    pub items: Vec<NewItem>,
    pub record: Record,
}

#[derive(Clone, Copy, Debug)]
pub struct NewItem {
    pub job: JobId,
    pub mark: Mark,
    pub replays: u32,
    pub died_at: Timestamp,
}

/// What will become of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    pub run: u64,
    pub noop: u64,
    pub ask: u64,
    /// How many effects will not be repeated, by step.
    pub kept: BTreeMap<String, u64>,
    /// When the first and the last of them died.
    pub oldest: Option<Timestamp>,
    pub newest: Option<Timestamp>,
    /// More fit than a plan can have.
    pub more: bool,
}

impl Forecast {
    pub(crate) fn kept_text(&self) -> String {
        json!(self.kept).to_string()
    }

    pub(crate) fn kept_of(text: &str) -> BTreeMap<String, u64> {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// Somebody starts a plan.
#[derive(Clone, Debug)]
pub struct StartAsk {
    pub plan: PlanId,
    pub terms: Terms,
    /// The version that they run on; `None`: each the one that it was accepted with.
    pub version: Option<VersionId>,
    pub record: Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    Started,
    /// It was started before; nothing was changed.
    Before(PlanState),
    /// Nobody started it in time; nothing was changed.
    Stale,
    NotFound,
}

/// A plan takes another turn.
#[derive(Clone, Debug)]
pub struct TurnAsk {
    pub plan: PlanId,
    pub to: Turn,
    pub record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    Pause,
    Resume,
    Stop {
        why: String,
    },
    /// All that it may let go has ended.
    Finish,
}

impl Turn {
    /// From which state to which.
    pub(crate) fn step(&self) -> (&'static [PlanState], PlanState) {
        match self {
            Turn::Pause => (&[PlanState::Running], PlanState::Paused),
            Turn::Resume => (&[PlanState::Paused], PlanState::Running),
            Turn::Stop { .. } => (&[PlanState::Planned, PlanState::Running, PlanState::Paused], PlanState::Stopped),
            Turn::Finish => (&[PlanState::Running], PlanState::Done),
        }
    }

    pub(crate) fn why(&self) -> Option<&str> {
        match self {
            Turn::Stop { why } => Some(why),
            _ => None,
        }
    }

    pub(crate) fn act(&self, plan: &PlanRow) -> Act {
        let (_, to) = self.step();
        let action = match self {
            Turn::Pause => "replay.pause",
            Turn::Resume => "replay.resume",
            Turn::Stop { .. } => "replay.stop",
            Turn::Finish => "replay.finish",
        };
        let Tally { jobs, released, success, noop, failed, changed, asks, .. } = plan.tally;
        Act {
            action,
            object: plan.id.to_string(),
            job: None,
            before: json!({ "state": plan.state.as_str() }),
            after: json!({
                "state": to.as_str(), "why": self.why(), "jobs": jobs, "released": released, "success": success, "noop": noop,
                "failed": failed, "changed": changed, "asks": asks,
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    Turned,
    /// From where it stands it cannot; nothing was changed.
    Not(PlanState),
    NotFound,
}

/// The next of a plan are to be let go.
#[derive(Clone, Debug)]
pub struct ReleaseAsk {
    pub plan: PlanId,
    /// How many had been looked at: if somebody else has let some go since, nothing is done.
    pub looked_at: u64,
    pub most: u32,
    /// When they run; from then on none before the moment after the last.
    pub moments: Moments,
    pub now: Timestamp,
}

/// What became of those that a plan had let go.
#[derive(Clone, Debug)]
pub struct Reckoned {
    pub plan: PlanRow,
    /// Of those that have not ended, how many are in work or about to be.
    pub busy: u64,
}

/// A plan, as it stands.
#[derive(Clone, Debug)]
pub struct PlanRow {
    pub id: PlanId,
    pub at: Timestamp,
    pub actor: String,
    pub reason: String,
    pub query: String,
    pub forecast: Forecast,
    pub state: PlanState,
    pub start: Option<Start>,
    pub ended_at: Option<Timestamp>,
    /// Why it was stopped.
    pub why: Option<String>,
    pub next_at: Timestamp,
    pub tally: Tally,
}

/// Which plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plans {
    /// The newest first.
    All,
    /// Those that run, and those that do not any more but have jobs that have not ended. The oldest first,
    /// after this one.
    Open { after: Option<PlanId> },
}

impl Plans {
    /// What they are, and in which order.
    pub(crate) const fn condition(self) -> &'static str {
        match self {
            Plans::All => "true ORDER BY id DESC",
            Plans::Open { .. } => {
                "(state = 1 OR (state IN (2, 3) AND released > succeeded + nooped + failed + lost)) ORDER BY id"
            }
        }
    }

    /// The id that they are all above.
    pub(crate) fn after(self) -> i64 {
        match self {
            Plans::Open { after: Some(plan) } => plan.number().cast_signed(),
            Plans::All | Plans::Open { after: None } => 0,
        }
    }
}

/// Who started a plan, and how it is carried out.
#[derive(Clone, Debug)]
pub struct Start {
    pub at: Timestamp,
    pub actor: String,
    pub reason: String,
    pub terms: Terms,
    pub version: Option<VersionId>,
}

impl Start {
    /// What is on record of each job that is let go.
    pub(crate) fn record(&self, plan: PlanId, at: Timestamp) -> Record {
        // Who began it was allowed to: it goes on as long as nobody stops it, also when he is gone.
        Record {
            actor: self.actor.clone(),
            origin: format!("replay {plan}"),
            right: Right::Given,
            reason: self.reason.clone(),
            at,
        }
    }
}

/// One job of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRow {
    pub no: u64,
    pub job: JobId,
    pub state: ItemState,
    pub died_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
pub struct ItemFilter {
    pub plan: PlanId,
    pub state: Option<ItemState>,
    /// Only those after it.
    pub after: u64,
    pub limit: usize,
}

impl NewPlan {
    pub(crate) fn act(&self) -> Act {
        let Forecast { run, noop, ask, .. } = self.forecast;
        Act {
            action: "replay.plan",
            object: self.id.to_string(),
            job: None,
            before: Value::Null,
            after: json!({ "query": self.query, "jobs": self.items.len(), "run": run, "noop": noop, "ask": ask }),
        }
    }
}

impl StartAsk {
    pub(crate) fn act(&self) -> Act {
        let Terms { rate, max, canary, stop_at, at_once } = self.terms;
        Act {
            action: "replay.start",
            object: self.plan.to_string(),
            job: None,
            before: json!({ "state": PlanState::Planned.as_str() }),
            after: json!({
                "state": PlanState::Running.as_str(), "rate": rate.to_string(), "max": max, "canary": canary,
                "stop_at": stop_at.map(|share| share.to_string()), "at_once": at_once,
                "version": self.version.map(|version| version.0),
            }),
        }
    }
}

/// What a dead letter must be to be let go, and where it stands then.
pub(crate) struct InPlan {
    pub plan: PlanId,
    pub mark: Mark,
    pub run_at: Timestamp,
}

/// Columns of a plan that are numbers, in the order of `Tally`.
pub(crate) fn tally(jobs: i64, counts: [i64; 7]) -> Tally {
    let [released, success, noop, failed, changed, asks, lost] = counts.map(i64::cast_unsigned);
    Tally { jobs: jobs.cast_unsigned(), released, success, noop, failed, changed, asks, lost }
}
