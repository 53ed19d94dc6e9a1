//! What is counted while the work is done.

use super::intake::{IntakeOutcome, SharedOutcome};
use super::label::*;
use super::metrics::Metrics;
use super::notice::NoticeOutcome;
use super::words::{EFFECTS, STEP_OUTCOMES};
use crate::happenings::Happening;
use crate::masking::rules;
use clinch_core::attempt::{Failure, Outcome, retried_for};
use clinch_core::breaker::Circuit;
use clinch_core::config::Workspace;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::job::{Change, Ending};
use clinch_core::payload::TraceId;
use clinch_core::safe_mode::SafeScope;
use clinch_core::sender::NotASender;
use clinch_core::signature::Refusal;
use clinch_core::slo::Slo;
use clinch_core::source::Proof;
use clinch_core::time::Timestamp;
use clinch_core::worker::{Action, Worker};
use clinch_store::{Accepted, ApprovalRow, Claim};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Dead letters are to end well within this time.
const REPLAY_DAY: Duration = Duration::from_secs(86_400);

/// A job that an attempt of it has ended, or not.
pub struct Ended<'a> {
    pub claim: &'a Claim,
    /// The step in which it ended.
    pub step: &'a Label,
    pub change: Change,
    pub failure: Option<&'a Failure>,
    pub slo: Slo,
    /// Its trace, if somebody records it.
    pub example: Option<TraceId>,
    pub now: Timestamp,
}

/// One try of a step.
pub struct Tried<'a> {
    pub flow: &'a Arc<str>,
    /// Its name in the ledger.
    pub step: &'a Arc<str>,
    pub action: &'a Action,
    /// One of `STEP_OUTCOMES`.
    pub outcome: &'static str,
    pub took: Duration,
    pub example: Option<TraceId>,
    pub now: Timestamp,
}

/// A call to a partner that has ended.
pub struct Called {
    pub class: &'static str,
    /// How long we let it wait.
    pub waited: Duration,
    /// How long the partner took.
    pub took: Duration,
    pub example: Option<TraceId>,
    pub now: Timestamp,
}

impl ByStoreOutcome {
    pub fn of(store: &String, outcome: SharedOutcome) -> ByStoreOutcome {
        ByStoreOutcome { store: store.into(), outcome: outcome.word().into() }
    }
}

/// How a step that was tried ended, in the words of metrics.
pub fn step_outcome<T>(result: &Result<T, Outcome>) -> &'static str {
    let [ok, noop, retryable, permanent, timeout, unknown] = STEP_OUTCOMES;
    match result {
        Ok(_) | Err(Outcome::Succeeded(Ending::Success)) => ok,
        Err(Outcome::Succeeded(_) | Outcome::Declined(_)) => noop,
        Err(Outcome::Failed(Failure { reason: Reason::Timeout, .. }))
        | Err(Outcome::Unknown { failure: Failure { reason: Reason::Timeout, .. }, .. }) => timeout,
        Err(Outcome::Failed(_) | Outcome::PutOff { .. } | Outcome::Interrupted) => retryable,
        Err(Outcome::Refused(_)) => permanent,
        Err(Outcome::Unknown { .. } | Outcome::Lost { .. }) => unknown,
    }
}

/// Why a job ended without having done anything.
fn noop_why(ending: Ending, step: &Label) -> &'static str {
    match ending {
        Ending::Declined(Reason::TooOld) => "expired",
        Ending::Declined(_) => "policy_skip",
        // A step that found its key set ends the job where it is; conditions let it run to its end.
        Ending::Success | Ending::Noop if step.as_str().is_empty() => "condition",
        Ending::Success | Ending::Noop => "already_done",
    }
}

impl Metrics {
    /// Series whose labels hang together, and those that only some sources have.
    pub(super) fn begin_by_hand(&self, workspace: &Workspace) {
        let nowhere = BySourceOutcome { source: "".into(), outcome: IntakeOutcome::UnknownSource.word().into() };
        let _ = self.intake_requests.get_or_create(&nowhere);
        for channel in &workspace.settings.alerts.channels {
            for outcome in NoticeOutcome::ALL {
                let _ = self.notifications.get_or_create(&ByChannelOutcome::of(&channel.name, outcome));
            }
        }
        self.silence_limit.clear();
        for source in &workspace.sources {
            if let Some(silence) = source.silence {
                let limit = self.silence_limit.get_or_create_owned(&BySource { source: (&source.name).into() });
                limit.set(silence.as_secs_f64());
            }
            let reasons: &[&'static str] = match source.proof {
                None => &[],
                Some(Proof::Signature(_)) => &Refusal::WORDS,
                Some(Proof::Sender) => &NotASender::WORDS,
            };
            for reason in reasons.iter().copied() {
                let labels = BySourceReason { source: (&source.name).into(), reason: reason.into() };
                let _ = self.intake_rejected.get_or_create(&labels);
            }
        }
        for partner in workspace.partners().filter(|partner| partner.breaker.is_some()) {
            let closed =
                ByIntegrationState { integration: (&partner.name).into(), state: Circuit::Closed.word().into() };
            if self.circuits.get(&closed).is_none() {
                self.show_circuit(&closed.integration, Circuit::Closed);
            }
        }
        let of_flows = workspace.flows.iter().flat_map(|flow| flow.enqueue.iter().map(|job| (&flow.name, &*job.queue)));
        let of_schedules = workspace.schedules().map(|(worker, _)| (&worker.name, worker.queue()));
        for (flow, queue) in of_flows.chain(of_schedules) {
            let Some(worker) = workspace.worker_for(queue) else { continue };
            if workspace.settings.metrics.per_step {
                self.begin_steps(flow, worker);
            }
            self.begin_retries(flow, worker, workspace.settings.metrics.per_step);
        }
    }

    /// Why the steps of the worker are tried again; and without a step, that a worker was lost before it did anything.
    fn begin_retries(&self, flow: &String, worker: &Worker, per_step: bool) {
        let of_steps = worker.all_steps().flat_map(|step| {
            let name = if per_step { (&step.name).into() } else { Label::from("") };
            retried_for(&step.action).into_iter().map(move |reason| (name.clone(), reason))
        });
        for (step, reason) in of_steps.chain([("".into(), Reason::Internal)]) {
            let labels = ByFlowStepReason { flow: flow.into(), step, reason: reason.word().into() };
            let _ = self.retries.get_or_create(&labels);
        }
    }

    /// The steps of a worker that the jobs of a flow come to, and how long they take when they work.
    fn begin_steps(&self, flow: &String, worker: &Worker) {
        for step in worker.all_steps() {
            let (step, kind) = ((&step.name).into(), step.action.word().into());
            let labels = ByFlowStepKindOutcome { flow: flow.into(), step, kind, outcome: "ok".into() };
            let _ = self.step_seconds.get_or_create(&labels);
        }
        for (step, outcome) in worker.all_steps().flat_map(|step| STEP_OUTCOMES.map(|outcome| (step, outcome))) {
            let labels = ByFlowStepOutcome { flow: flow.into(), step: (&step.name).into(), outcome: outcome.into() };
            let _ = self.step_attempts.get_or_create(&labels);
        }
    }

    pub fn step(&self, tried: Tried<'_>) {
        if !self.per_step.load(Ordering::Relaxed) {
            return;
        }
        let Tried { flow, step, action, outcome, took, example, now } = tried;
        // However often it was done again, and for however many, it is one step.
        let step = match step.split_once(['@', '[']) {
            Some((step, _)) => Label::from(&Arc::from(step)),
            None => step.into(),
        };
        let (flow, outcome) = (Label::from(flow), Label::from(outcome));
        let kind = action.word().into();
        let labels = ByFlowStepOutcome { flow: flow.clone(), step: step.clone(), outcome: outcome.clone() };
        self.step_attempts.get_or_create(&labels).inc();
        let labels = ByFlowStepKindOutcome { flow, step, kind, outcome };
        self.step_seconds.get_or_create(&labels).measure(took, example, || now);
    }

    pub fn effect(&self, partner: &Arc<str>, class: Idempotency, state: &EffectState) {
        let [performed, _, not_done, unknown, _] = EFFECTS;
        self.effect_was(
            partner,
            match state {
                EffectState::Done(_) => performed,
                EffectState::Unknown => unknown,
                EffectState::NotDone | EffectState::Open | EffectState::GivenUp(_) => not_done,
            },
        );
        let protected = if class.is_protected() { "yes" } else { "no" };
        self.protection.get_or_create(&ByProtection { protected: protected.into() }).inc();
    }

    /// An effect that was not sent, because it was done before.
    pub fn effect_saved(&self, flow: &Arc<str>, partner: &Arc<str>) {
        self.saved("effect", flow);
        self.effect_was(partner, EFFECTS[1]);
    }

    /// Work that was not repeated.
    pub fn saved(&self, layer: &'static str, flow: &Arc<str>) {
        self.short_circuits.get_or_create(&ByLayerFlow { layer: layer.into(), flow: flow.into() }).inc();
    }

    /// An effect that waits for the end of safe mode. It may come, and wait, again.
    pub fn effect_held(&self, partner: &Arc<str>) {
        self.effect_was(partner, EFFECTS[4]);
    }

    fn effect_was(&self, partner: &Arc<str>, outcome: &'static str) {
        let labels = ByIntegrationOutcome { integration: partner.into(), outcome: outcome.into() };
        self.effects.get_or_create(&labels).inc();
    }

    pub fn called(&self, partner: &Arc<str>, called: Called) {
        let Called { class, waited, took, example, now } = called;
        let integration = Label::from(partner);
        let labels = ByIntegrationClass { integration: integration.clone(), code_class: class.into() };
        self.integration_seconds.get_or_create(&labels).measure(took, example, || now);
        self.throttle_seconds.get_or_create(&ByIntegration { integration }).observe(waited.as_secs_f64());
    }

    pub fn script(&self, runtime: &'static str, outcome: &'static str, took: Duration) {
        let labels = ByRuntimeOutcome { runtime: runtime.into(), outcome: outcome.into() };
        self.script_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub fn script_killed(&self, runtime: &'static str, why: &'static str) {
        self.script_kills.get_or_create(&ByRuntimeWhy { runtime: runtime.into(), why: why.into() }).inc();
    }

    pub fn circuit(&self, partner: &Arc<str>, circuit: Circuit) {
        let name = Label::from(partner);
        self.show_circuit(&name, circuit);
        self.circuit_transitions.get_or_create(&ByIntegrationTo { integration: name, to: circuit.word().into() }).inc();
    }

    fn show_circuit(&self, name: &Label, circuit: Circuit) {
        for state in Circuit::ALL {
            let labels = ByIntegrationState { integration: name.clone(), state: state.word().into() };
            self.circuits.get_or_create(&labels).set(i64::from(state == circuit));
        }
    }

    pub fn proxy_call(&self, outcome: &'static str) {
        self.proxy_calls.get_or_create(&ByOutcome { outcome: outcome.into() }).inc();
    }

    pub fn circuit_rejected(&self, partner: &Arc<str>) {
        self.circuit_rejections.get_or_create(&ByIntegration { integration: partner.into() }).inc();
    }

    /// A request to a path that nothing is at.
    pub fn nothing_there(&self) {
        let labels = BySourceOutcome { source: "".into(), outcome: IntakeOutcome::UnknownSource.word().into() };
        self.intake_requests.get_or_create(&labels).inc();
    }

    /// Logs and counts what became of a job when an attempt of it ended.
    pub fn report(&self, ended: Ended<'_>) {
        let Ended { claim, step, change, failure, slo, example, now } = ended;
        let (job, flow) = (claim.lease.job, Label::from(&claim.flow));
        let error = failure.map_or(String::new(), |failure| rules().text(&failure.error));
        let ended = |outcome: &'static str| {
            let took = now.since(claim.received_at);
            let labels = ByFlowOutcome { flow: flow.clone(), outcome: outcome.into() };
            self.finished.get_or_create(&labels).inc();
            self.end_to_end_seconds.get_or_create(&labels).measure(took, example, || now);
            self.tries.get_or_create(&labels).observe(f64::from(claim.attempts) + 1.0);
            if claim.replays > 0 {
                let outcome = if outcome == "dead_letter" { "failed" } else { outcome };
                self.replays.get_or_create(&ByFlowOutcome { flow: flow.clone(), outcome: outcome.into() }).inc();
            } else {
                let result = if slo.is_met(outcome != "dead_letter", took) { "good" } else { "bad" };
                self.slo_jobs.get_or_create(&ByFlowResult { flow: flow.clone(), result: result.into() }).inc();
            }
        };
        self.tell(claim, change, failure, now);
        match change {
            Change::Finished { ending, .. } => {
                ended(if ending == Ending::Success { "success" } else { "noop" });
                if ending != Ending::Success {
                    let why = noop_why(ending, step).into();
                    self.noops.get_or_create(&ByFlowWhy { flow: flow.clone(), why }).inc();
                }
                if claim.replays > 0 {
                    self.dead_left.get_or_create(&ByFlowHow { flow, how: "replayed_ok".into() }).inc();
                }
                match ending {
                    Ending::Declined(reason) => {
                        tracing::info!(job.id = %job, trace.id = %claim.trace, "{job} ended without it ({reason}): {error}")
                    }
                    Ending::Success | Ending::Noop => {
                        tracing::debug!(job.id = %job, trace.id = %claim.trace, "{job} ended well")
                    }
                }
            }
            Change::Retried { run_at } => {
                let reason = failure.map_or(Reason::Internal, |failure| failure.reason).word().into();
                let step = if self.per_step.load(Ordering::Relaxed) { step.clone() } else { "".into() };
                self.retries.get_or_create(&ByFlowStepReason { flow, step, reason }).inc();
                tracing::info!(job.id = %job, trace.id = %claim.trace, attempt.no = claim.attempts + 1, "{job} failed and is tried again at {run_at}: {error}");
            }
            Change::Buried { reason, .. } => {
                ended("dead_letter");
                self.dead_entered.get_or_create(&ByFlowReason { flow, reason: reason.word().into() }).inc();
                tracing::warn!(job.id = %job, trace.id = %claim.trace, attempt.no = claim.attempts + 1, "{job} is a dead letter ({reason}): {error}");
            }
            Change::PutOff { run_at, waits } => {
                tracing::debug!(job.id = %job, trace.id = %claim.trace, "{job} waits until {run_at}: {}", waits.word());
            }
            Change::HandedBack { .. } => {
                tracing::info!(job.id = %job, trace.id = %claim.trace, "{job} was handed back unfinished")
            }
            Change::Claimed { .. } | Change::Revived { .. } | Change::Dropped { .. } | Change::TakenBack { .. } => {}
        }
    }

    /// A dead letter ended well by a replay, so long after it had died.
    pub fn replayed(&self, after: Duration) {
        self.time_to_replay.observe(after.as_secs_f64());
        if after <= REPLAY_DAY {
            self.replayed_in_day.inc();
        }
    }

    /// A person gave a dead letter up.
    pub fn dropped(&self, flow: &Arc<str>) {
        let flow = Label::from(flow);
        self.finished.get_or_create(&ByFlowOutcome { flow: flow.clone(), outcome: "dropped".into() }).inc();
        self.dead_left.get_or_create(&ByFlowHow { flow, how: "dropped".into() }).inc();
    }

    /// What became of a request, for whoever watches. `reason` is the real cause where a source has one.
    pub fn at_the_door(
        &self,
        door: &Arc<str>,
        outcome: IntakeOutcome,
        first: Option<Accepted>,
        refused: Option<(&'static str, &str)>,
        now: impl FnOnce() -> Timestamp,
    ) {
        self.happenings.tell(|| {
            let is_rejected = IntakeOutcome::REJECTED.contains(&outcome);
            let (reason, said) = refused.unwrap_or((outcome.word(), ""));
            Happening {
                at: now(),
                what: if is_rejected { "rejected" } else { outcome.word() },
                source: Some(door.clone()),
                flow: None,
                job: first.map(|first| first.job.to_string()),
                trace: first.map(|first| first.trace),
                reason: is_rejected.then_some(reason),
                said: rules().sentence(said),
            }
        });
    }

    /// What became of the job, for whoever watches.
    fn tell(&self, claim: &Claim, change: Change, failure: Option<&Failure>, now: Timestamp) {
        let (what, reason) = match change {
            Change::Finished { ending: Ending::Success, .. } => ("success", None),
            Change::Finished { ending: Ending::Noop, .. } => ("noop", None),
            Change::Finished { ending: Ending::Declined(reason), .. } => ("noop", Some(reason.word())),
            Change::Retried { .. } => ("retry", failure.map(|failure| failure.reason.word())),
            Change::Buried { reason, .. } => ("dead", Some(reason.word())),
            Change::PutOff { waits, .. } => ("waits", Some(waits.word())),
            Change::HandedBack { .. }
            | Change::Claimed { .. }
            | Change::Revived { .. }
            | Change::Dropped { .. }
            | Change::TakenBack { .. } => return,
        };
        self.happenings.tell(|| Happening {
            at: now,
            what,
            source: None,
            flow: Some(claim.flow.clone()),
            job: Some(claim.lease.job.to_string()),
            trace: Some(claim.trace),
            reason,
            said: failure.map_or_else(String::new, |failure| rules().text(&failure.error)),
        });
    }

    /// An approval has its verdict.
    pub fn decided(&self, row: &ApprovalRow) {
        let Some(decision) = &row.decision else { return };
        let flow = Label::from(&row.flow);
        let labels = ByFlowDecision { flow: flow.clone(), decision: decision.verdict.word().into() };
        self.approvals.get_or_create(&labels).inc();
        let took = decision.at.since(row.asked_at).as_secs_f64();
        self.approval_wait.get_or_create(&ByFlow { flow }).observe(took);
    }

    pub fn safe_mode_tripped(&self, scope: &SafeScope) {
        self.safe_mode_trips.get_or_create(&ByScope { scope: (&scope.to_string()).into() }).inc();
    }

    /// Somebody did something that needs a permission of this name.
    pub fn acted(&self, action: &'static str, via: &'static str) {
        self.console_actions.get_or_create(&ByActionVia { action: action.into(), via: via.into() }).inc();
    }

    pub fn notice(&self, channel: &String, outcome: NoticeOutcome) {
        self.notifications.get_or_create(&ByChannelOutcome::of(channel, outcome)).inc();
    }

    /// Somebody could know of a fault so long after it was first seen.
    pub fn first_signal(&self, took: Duration) {
        self.time_to_first_signal.observe(took.as_secs_f64());
    }

    /// The workspace that is live from now on.
    pub fn config_live(&self, version: &str, hash: &str, now: Timestamp) {
        let name = |text: &str| Label::Name(Arc::from(text));
        self.config.clear();
        self.config.get_or_create(&Config { version: name(version), hash: name(hash) }).set(1);
        self.reload_ok.set(1);
        self.reload_at.set(now.seconds_f64());
    }

    /// The files were read again, and are not what is live.
    pub fn config_refused(&self) {
        self.reload_ok.set(0);
    }

    /// Nobody wants any more what was refused.
    pub fn config_forgiven(&self) {
        self.reload_ok.set(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: Reason) -> Failure {
        Failure::new(reason, "no")
    }

    #[test]
    fn h1_a_step_that_was_tried_has_one_of_six_outcomes() {
        let check = |outcome: Outcome, word: &str| assert_eq!(step_outcome::<()>(&Err(outcome)), word);
        assert_eq!(step_outcome(&Ok(())), "ok");
        check(Outcome::Failed(failed(Reason::TargetDown)), "retryable");
        check(Outcome::Failed(failed(Reason::Timeout)), "timeout");
        check(Outcome::Refused(failed(Reason::RejectedByTarget)), "permanent");
        check(Outcome::Declined(failed(Reason::PolicyDenied)), "noop");
        let lost = |reason| Outcome::Unknown { class: Idempotency::None, failure: failed(reason) };
        check(lost(Reason::TargetDown), "unknown");
        check(lost(Reason::Timeout), "timeout");
    }

    #[test]
    fn h1_a_noop_says_why_nothing_was_done() {
        let step = Label::from("once");
        assert_eq!(noop_why(Ending::Noop, &Label::from("")), "condition");
        assert_eq!(noop_why(Ending::Noop, &step), "already_done");
        assert_eq!(noop_why(Ending::Declined(Reason::TooOld), &step), "expired");
        assert_eq!(noop_why(Ending::Declined(Reason::PolicyDenied), &step), "policy_skip");
    }
}
