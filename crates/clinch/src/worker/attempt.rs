//! One attempt of one job: run its steps in order, skip what is done, settle.
//!
//! What few jobs need is boxed: the future of a job is made anew for each, and is as large as the largest thing that it may wait
//! for.

use super::end::{End, StepEnd, Unwritten};
use super::fanout::{self, Ground};
use super::foreach;
use super::lease::Leases;
use super::lookup::{Found, look_up};
use super::record::{self, testify};
use super::replayed;
use super::saga::{self, Marked};
use super::scope::Scope;
use super::steps::{self, Inward, Kind, approval, delay, policy, queue, queue_pull, setnx};
use super::wrap;
use crate::budget;
use crate::effects::{self, Effect, Gate, Passage, Wait};
use crate::house::House;
use crate::tally;
use crate::telemetry::{self, ByFlow, Label, Tried, step_outcome};
use crate::tracer::{Ended, Spans};
use clinch_core::attempt::{Failure, Outcome, Past, Tally, verdict};
use clinch_core::config::Workspace;
use clinch_core::control::Paused;
use clinch_core::death::Reason;
use clinch_core::effect::{Idempotency, Leave, Receipt, leave};
use clinch_core::expr::BadExpr;
use clinch_core::job::{Change, Ending, Waits};
use clinch_core::payload::Payload;
use clinch_core::retry::RetryPolicy;
use clinch_core::saga::{self as undoing, in_doubt, renewed};
use clinch_core::seal::NotOpened;
use clinch_core::time::Timestamp;
use clinch_core::worker::{Action, PolicyAction, Step, Worker};
use clinch_store::{Claim, Held, Settlement};
use std::sync::Arc;
use std::time::Duration;

/// A job whose key this node does not have is given back for so long.
const UNREAD_PAUSE: Duration = Duration::from_secs(30);

/// An attempt whose work is over and which is still to be settled.
pub struct Performed {
    started_at: Timestamp,
    end: End,
    retry: RetryPolicy,
    /// Whether a policy may have counted something for it.
    counts: bool,
    spans: Option<Arc<Spans>>,
}

/// Runs the steps of the job that was claimed. `None`: somebody else has it now, or it is left to its lease.
pub async fn perform(house: &House, gate: &Gate, leases: &Leases, claim: &Claim) -> Option<Performed> {
    let started_at = house.clock.now();
    let job = claim.lease.job;
    if claim.attempts == 0 {
        let flow = ByFlow { flow: Label::from(&claim.flow) };
        house.metrics.wait_seconds.get_or_create(&flow).observe(started_at.since(claim.received_at).as_secs_f64());
    }
    let workspace = match house.versions.get(claim.version, &*house.store).await {
        Ok(workspace) => workspace,
        Err(error) => {
            // Nothing was begun: the lease ends by itself and the job comes back.
            tracing::warn!(job.id = %job, trace.id = %claim.trace, "{job} cannot be run now: {error}");
            return None;
        }
    };
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&claim.queue));
    let (Some(workspace), Some(worker)) = (&workspace, worker) else {
        let why = format!("the workspace that {job} was accepted with has no worker for `{}`", claim.queue);
        let end = End::refused(Reason::ConfigError, why, "");
        return Some(Performed { started_at, end, retry: RetryPolicy::default(), counts: false, spans: None });
    };
    let mut spans = None;
    match steps_of(house, gate, leases, claim, workspace, worker, &mut spans).await {
        Ok(Some(end)) => {
            let retry = retry_of(house, claim, worker, &end).await;
            Some(Performed { started_at, end, retry, counts: workspace.counts(worker), spans })
        }
        Ok(None) => {
            tracing::info!(job.id = %job, trace.id = %claim.trace, "{job} was taken over; this attempt changed nothing");
            None
        }
        Err(error) => {
            tracing::error!(job.id = %job, trace.id = %claim.trace, "{job} is left to its lease: {error}");
            None
        }
    }
}

/// What decides about a failure is what is set by then, not what was when the attempt began.
async fn retry_of(house: &House, claim: &Claim, worker: &Worker, end: &End) -> RetryPolicy {
    if end.outcome.failure().is_none() {
        return worker.retry.clone();
    }
    let now = house.versions.get(claim.version, &*house.store).await.ok().flatten();
    let worker_now = now.as_deref().and_then(|workspace| workspace.worker_for(&claim.queue));
    worker_now.unwrap_or(worker).retry.clone()
}

/// Every step in order. `None`: the job is no longer ours.
async fn steps_of(
    house: &House,
    gate: &Gate,
    leases: &Leases,
    claim: &Claim,
    workspace: &Workspace,
    worker: &Worker,
    spans: &mut Option<Arc<Spans>>,
) -> clinch_store::Result<Option<End>> {
    let stored = match &claim.payload {
        Ok(stored) => stored,
        Err(why) => return Ok(Some(unread(house, *why))),
    };
    let payload = match Payload::decode(stored) {
        Ok(payload) => Arc::new(payload),
        Err(error) => return Ok(Some(End::refused(Reason::Internal, error.to_string(), ""))),
    };
    *spans = house.tracer.attempt(claim, &payload);
    let about =
        Paused { queue: &claim.queue, flow: &claim.flow, source: &payload.about.source, is_replay: claim.replays > 0 };
    if let Some(pause) = house.controls.get().keeps(about, house.clock.now()) {
        let until = house.controls.resumed_at(pause, &*house.clock);
        return Ok(Some(End::of(Outcome::PutOff { until, waits: Waits::Paused }, "")));
    }
    // A person who replays it has seen why, and wants it run.
    if !payload.about.mismatch.is_empty() && claim.replays == 0 {
        return Ok(Some(End::refused(Reason::BadPayload, payload.about.mismatch.to_string(), "")));
    }
    let mut scope = Scope::new(house, claim.into(), &payload, workspace);
    scope.spans = spans.clone();
    let ground = Ground { house, gate, leases, claim, payload: &payload, retry: &worker.retry };
    if let Some(ended) = undoing::Ended::of(&claim.effects, claim.replays) {
        return Box::pin(saga::undo(ground, worker, ended, &mut scope)).await;
    }
    if !in_doubt(worker, &claim.effects).is_empty() {
        return Box::pin(saga::resolve(ground, worker, &mut scope)).await;
    }
    let mut tally = Tally::default();
    for (at, step) in worker.steps.iter().enumerate() {
        if house.stop.is_cancelled() {
            return Ok(Some(End::of(Outcome::Interrupted, &step.name)));
        }
        let ended = match (&step.action, &step.each) {
            (Action::Parallel(branches), _) => Box::pin(fanout::part(ground, step, branches, &mut scope)).await?,
            (_, Some(each)) => Box::pin(foreach::run(ground, step, each, &mut scope)).await?,
            _ => run_step(house, gate, leases, claim, step, &payload, &mut scope).await?,
        };
        match ended {
            StepEnd::LeftOut => tally.left_out = true,
            StepEnd::Together => tally.acted = true,
            StepEnd::Computed(output) => {
                tally.ran = true;
                scope.add_computed(&step.name, output);
            }
            StepEnd::DoneBefore(receipt) => {
                tally = tally_of(step, &receipt, tally);
                scope.add_output(&step.name, &receipt);
            }
            StepEnd::Done(_, unwritten) if at + 1 == worker.steps.len() => {
                // The last result and the end of the job are one change.
                let outcome = Outcome::Succeeded(Ending::Success);
                let end = End::of(outcome, &step.name);
                return Ok(Some(End { unwritten: Some(unwritten), ..end }));
            }
            StepEnd::Done(receipt, unwritten) => {
                if record::conclude(house, claim, unwritten).await? == Held::Lost {
                    return Ok(None);
                }
                crate::crash::point("after_conclude");
                tally = tally_of(step, &receipt, tally);
                scope.add_output(&step.name, &receipt);
            }
            StepEnd::Over(end) => {
                let undo = worker.all_steps().any(|step| step.compensate.is_some());
                return Ok(Some(End { undo, ..end }));
            }
            StepEnd::TakenOver => return Ok(None),
        }
    }
    Ok(Some(End::of(Outcome::Succeeded(tally.ending()), "")))
}

/// A step that waited, or that found a key set by another job, did nothing.
fn tally_of(step: &Step, receipt: &Receipt, tally: Tally) -> Tally {
    let acted = match &step.action {
        Action::Delay(_) => false,
        Action::Setnx(_) => setnx::is_set(receipt),
        _ => true,
    };
    Tally { acted: tally.acted || acted, ran: true, ..tally }
}

pub async fn run_step(
    house: &House,
    gate: &Gate,
    leases: &Leases,
    claim: &Claim,
    step: &Step,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    // What was undone is done again under another name.
    let again = renewed(step, &claim.effects).map(|name| Step { name, ..step.clone() });
    let step = again.as_ref().unwrap_or(step);
    let name = &step.name;
    scope.begin(name);
    let missing =
        |error: BadExpr| StepEnd::Over(End::refused(Reason::MissingData, format!("step `{name}`: {error}"), name));
    match step.when.as_ref().map(|condition| condition.holds(scope.names())) {
        None | Some(Ok(true)) => {}
        Some(Ok(false)) => {
            let (now, before) = (house.clock.now(), claim.effects.iter().filter(|effect| *effect.name == **name));
            if let Some(end) = End::of_left_out(before, now) {
                return Ok(StepEnd::Over(end));
            }
            count_step(scope, claim, step, "noop", now);
            return Ok(StepEnd::LeftOut);
        }
        Some(Err(error)) => return Ok(missing(error)),
    }
    let action = match steps::kind(&step.action) {
        Some(Kind::Outward(action)) => action,
        Some(Kind::Inward(action)) => return Ok(compute(house, claim, step, action, scope)),
        Some(Kind::Delay(delay)) => return Box::pin(delay::wait_out(house, claim, step, delay, scope)).await,
        Some(Kind::Approval(action)) => {
            return Box::pin(approval::wait_for_people(house, claim, step, action, scope)).await;
        }
        Some(Kind::Setnx(setnx)) => return Box::pin(setnx::set_once(house, claim, step, setnx, payload, scope)).await,
        Some(Kind::Queue(action)) => return Box::pin(queue::put(claim, step, action, payload, scope)).await,
        Some(Kind::Pull(action)) => return Box::pin(queue_pull::pull(claim, step, action, scope)).await,
        Some(Kind::Policy(ask)) => return Box::pin(ask_policy(house, gate, claim, step, ask, payload, scope)).await,
        None => {
            let why = format!("step `{name}` is of a kind that this version cannot run");
            return Ok(StepEnd::Over(End::refused(Reason::ConfigError, why, name)));
        }
    };
    let channel = action.partner().channel_word().unwrap_or_default();
    scope.goes_over(channel);
    let mut past = claim.effects.iter().find(|effect| *effect.name == **name);
    let mut not_done = None;
    match leave(past, action.promise(), house.clock.now()) {
        Leave::Send => {}
        Leave::Ask => return Ok(StepEnd::Over(End::ask(house.clock.now(), name))),
        Leave::Never(reason) => {
            let why = format!("step `{name}` was given up: {}", reason.meaning());
            return Ok(StepEnd::Over(End::refused(reason, why, name)));
        }
        Leave::LookUp => match Box::pin(look_up(house, gate, claim, step, action, scope)).await? {
            Found::NotDone(conclusion) => (past, not_done) = (None, Some(conclusion)),
            Found::Over(end) => return Ok(end),
        },
        Leave::Skip(receipt) => {
            house.metrics.effect_saved(&claim.flow, &action.partner().name);
            count_step(scope, claim, step, "noop", house.clock.now());
            Box::pin(wrap::confirm(house, claim, step, action, payload, scope, &receipt)).await?;
            return Ok(StepEnd::DoneBefore(receipt));
        }
    }
    let is_in_doubt = past.is_some_and(|past| past.state.is_unclear());
    // What the partner said is written down when nothing is sent: to ask again may take a moment at which it may be called.
    let over = |end: End| StepEnd::Over(End { unwritten: not_done.clone().map(Unwritten::from), ..end });
    let planned =
        action.plan(name, claim, payload, scope).and_then(|act| Ok((act, action.outgoing(claim, payload, scope)?)));
    let (act, outgoing) = match planned {
        Ok(planned) => planned,
        Err(Failure { reason, error, .. }) => {
            return Ok(over(End::refused(reason, format!("step `{name}`: {error}"), name)));
        }
    };
    let policies = match policy::over(step, channel, past, payload, scope) {
        Ok(policies) => policies,
        Err(Failure { reason, error, .. }) => {
            return Ok(over(End::refused(reason, format!("step `{name}`: {error}"), name)));
        }
    };
    let turn = match action.promise().idempotency {
        Idempotency::Wrap => match Box::pin(wrap::begin(house, claim, step, action, &*act, scope)).await? {
            Ok(turn) => Some(turn),
            Err(end) => return Ok(end),
        },
        _ => None,
    };
    let began = house.clock.now();
    let term = || leases.term(claim.lease);
    let idempotency = action.promise().idempotency;
    let spans = scope.spans.as_deref();
    let partner = action.partner();
    let effect = Effect { claim, step: name, partner, idempotency, is_in_doubt, policies, outgoing, spans };
    let halted = match gate.pass(effect, act, term).await? {
        Passage::Passed(passed) => Ok(passed),
        Passage::Wait(Wait { until, waits }) => Err(Outcome::PutOff { until, waits }),
        Passage::Over(outcome) => Err(outcome.after(is_in_doubt)),
        Passage::TakenOver => return Ok(StepEnd::TakenOver),
    };
    let passed = match halted {
        Ok(passed) => passed,
        Err(outcome) => {
            if let Some(turn) = turn {
                Box::pin(turn.give_back(house)).await?;
            }
            return Ok(over(End::of(outcome, name)));
        }
    };
    if let Some(turn) = turn {
        Box::pin(turn.end(house, &passed.conclusion.state)).await?;
    }
    count_step(scope, claim, step, step_outcome(&passed.result), began);
    let unwritten = Unwritten { conclusion: passed.conclusion, trace: passed.trace };
    Ok(match passed.result {
        Ok(receipt) => StepEnd::Done(receipt, unwritten),
        Err(outcome) => StepEnd::Over(End { unwritten: Some(unwritten), ..End::of(outcome, name) }),
    })
}

fn compute(house: &House, claim: &Claim, step: &Step, action: &dyn Inward, scope: &mut Scope<'_>) -> StepEnd {
    let (name, began) = (&step.name, house.clock.now());
    let computed = action.compute(scope);
    count_step(scope, claim, step, if computed.is_ok() { "ok" } else { "permanent" }, began);
    match computed {
        Ok(output) => StepEnd::Computed(output),
        Err(failure) => StepEnd::Over(End::refused(failure.reason, format!("step `{name}`: {}", failure.error), name)),
    }
}

/// Asked again whenever the job runs again: nothing of it is written down.
async fn ask_policy(
    house: &House,
    gate: &Gate,
    claim: &Claim,
    step: &Step,
    action: &PolicyAction,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (name, began) = (&step.name, house.clock.now());
    let told = policy::ask(house, gate, claim, (step, action), payload, scope).await?;
    count_step(scope, claim, step, step_outcome(&told), began);
    Ok(match told {
        Ok(output) => StepEnd::Computed(output),
        Err(outcome) => StepEnd::Over(End::of(effects::policy::about(name, outcome), name)),
    })
}

/// What cannot be read is not run with something else. What another node may be able to read is left to it.
fn unread(house: &House, why: NotOpened) -> End {
    let reason = if why == NotOpened::Forgotten { Reason::Forgotten } else { Reason::Unreadable };
    let failure = Failure::new(reason, format!("what was stored of the event is not to be had: {why}"));
    match why {
        NotOpened::UnknownKey(_) | NotOpened::UnknownVersion(_) => {
            tracing::warn!("a job waits for a node that can read its data: {why}");
            End::of(Outcome::PutOff { until: house.clock.now() + UNREAD_PAUSE, waits: Waits::Key }, "")
        }
        NotOpened::Forgotten | NotOpened::NotSealed | NotOpened::Tampered => End::of(Outcome::Refused(failure), ""),
    }
}

/// Writes down how it ended and what follows, unless somebody else took the job over in the meantime.
pub async fn settle(house: &House, claim: &Claim, performed: Performed) {
    let Performed { started_at, end, retry, counts, spans } = performed;
    let (job, now) = (claim.lease.job, house.clock.now());
    let failures = end.failures.unwrap_or(claim.failures);
    let first_attempt_at = end.since.or(claim.first_attempt_at).unwrap_or(started_at);
    let past = Past { failures, first_attempt_at };
    let change = verdict(&end.outcome, past, &retry, now, house.clock.dice());
    let mut settlement = Settlement::of(&end.outcome, change, started_at, now, None);
    // What undoes a job is nobody's retry.
    if end.since.is_none()
        && let Err(error) = budget::charge(house, claim, &retry, past, &mut settlement).await
    {
        return tracing::error!(job.id = %job, trace.id = %claim.trace, "{job} could not be settled: {error}");
    }
    let mut unwritten = end.unwritten;
    if let Change::Buried { reason, .. } = settlement.change
        && end.undo
        && reason != Reason::UnknownOutcome
    {
        let error = settlement.error.clone().unwrap_or_default();
        let ended = undoing::Ended { reason, error, failures: claim.failures.saturating_add(1), at: now };
        unwritten = match Box::pin(saga::mark(house, claim, unwritten, &ended)).await {
            Ok(Marked::Undoing(line)) => {
                settlement.change = Change::Retried { run_at: now };
                Some(line.into())
            }
            Ok(Marked::Stands) => None,
            Ok(Marked::TakenOver) => {
                return tracing::info!(job.id = %job, trace.id = %claim.trace, "{job} was taken over before it could be undone");
            }
            Err(error) => {
                return tracing::error!(job.id = %job, trace.id = %claim.trace, "{job} could not be settled: {error}");
            }
        };
    }
    let testimony = unwritten.as_ref().and_then(Unwritten::testimony);
    settlement.conclusion = unwritten.map(|unwritten| unwritten.conclusion);
    if counts && let Err(error) = Box::pin(tally::give_back(house, claim.lease, &settlement)).await {
        return tracing::error!(job.id = %job, trace.id = %claim.trace, "{job} could not be settled: {error}");
    }
    let change = settlement.change;
    match house.insist(|| house.store.settle(claim.lease, settlement.clone())).await {
        Ok(Held::Held) => {
            if matches!(change, Change::Retried { .. }) {
                crate::crash::point("after_retry");
            }
            let failure = end.outcome.failure();
            let slo = house.versions.now().settings.slo;
            let (step, failure) = (&end.step, failure.as_ref());
            let example = spans.as_deref().and_then(Spans::example);
            house.metrics.report(telemetry::Ended { claim, step, change, failure, slo, example, now });
            if claim.replays > 0 && matches!(change, Change::Finished { .. }) {
                tokio::spawn(replayed::tell(house.clone(), job, claim.trace, now));
            }
            if let Some(spans) = spans {
                let (outcome, settled) = (&end.outcome, house.clock.now());
                let ended = Ended { outcome, change, began: started_at, ended: now, settled };
                house.tracer.ended(&spans, claim, ended);
            }
        }
        Ok(Held::Lost) => {
            tracing::info!(job.id = %job, trace.id = %claim.trace, "{job} was taken over before it could be settled");
            Box::pin(testify(house, claim, testimony)).await;
        }
        Err(error) => {
            tracing::error!(job.id = %job, trace.id = %claim.trace, "{job} could not be settled: {error}")
        }
    }
}

/// `outcome` is a word of metrics.
pub fn count_step(scope: &Scope<'_>, claim: &Claim, step: &Step, outcome: &'static str, began: Timestamp) {
    let (metrics, now) = (&scope.house().metrics, scope.house().clock.now());
    let (flow, action, took) = (&claim.flow, &step.action, now.since(began));
    let example = scope.spans.as_deref().and_then(Spans::example);
    metrics.step(Tried { flow, step: &step.name, action, outcome, took, example, now });
}
