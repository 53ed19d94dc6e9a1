//! What a worker would do for an event: its steps are walked as an attempt walks them, with the same conditions, templates and
//! plans, and nothing passes the gate. Answers come from the ledger of the recorded job; what is not there is said to be needed.

use super::scope::Scope;
use super::steps::{self, Kind, policy, setnx};
use crate::effects::policy::Agreed;
use crate::forecast::{Considered, EffectPlan, JobPlan, RecordedJob, StepPlan};
use crate::house::House;
use crate::masking::rules;
use crate::secrets::hide;
use bytes::Bytes;
use clinch_core::approval;
use clinch_core::attempt::Failure;
use clinch_core::config::Workspace;
use clinch_core::effect::{EffectState, Receipt};
use clinch_core::flow::Flow;
use clinch_core::foreach::item_name;
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::key::{Fingerprint, IdempotencyKey, Pepper};
use clinch_core::lane::Lane;
use clinch_core::schedule;
use clinch_core::time::human;
use clinch_core::worker::{Action, DelayAction, QueueBody, Step, Worker};
use clinch_store::{Claim, LeaseRef, VersionId};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

pub fn plan(house: &House, workspace: &Workspace, event: &Considered) -> Vec<JobPlan> {
    places(workspace, event).into_iter().map(|(flow, queue)| of_job(house, workspace, event, flow, queue)).collect()
}

/// The flows and queues that it would have jobs in.
fn places(workspace: &Workspace, event: &Considered) -> Vec<(String, String)> {
    let about = &event.payload.about;
    let own = |flow: &Flow| !flow.routes.is_empty() && flow.name == about.source;
    let takes = |flow: &&Flow| match &event.flow {
        Some(name) => flow.name == *name,
        None => own(flow) || flow.takes(&about.source, &about.kind),
    };
    let taken = workspace.flows.iter().filter(takes);
    let mut places: Vec<(String, String)> =
        taken.flat_map(|flow| flow.enqueue.iter().map(|step| (flow.name.clone(), step.queue.clone()))).collect();
    if about.source == schedule::SOURCE {
        let found = workspace.schedules().find(|(worker, _)| worker.name == about.kind);
        places.extend(found.map(|(worker, schedule)| (worker.name.clone(), schedule.queue.clone())));
    }
    // A step of another job may have put it there: no flow takes such an event.
    let is_known =
        |job: &RecordedJob| places.iter().any(|(flow, queue)| (&**flow, &**queue) == (&*job.flow, &*job.queue));
    let by_steps = !event.jobs.is_empty() && !event.jobs.iter().any(is_known) && fills(workspace, event);
    match by_steps {
        true => event.jobs.iter().map(|job| (job.flow.to_string(), job.queue.to_string())).collect(),
        false => places,
    }
}

/// Whether steps put jobs into the queues of this event, and no flow does.
fn fills(workspace: &Workspace, event: &Considered) -> bool {
    let by_flow = |queue: &str| workspace.flows.iter().any(|flow| flow.enqueue.iter().any(|step| step.queue == queue));
    let by_step = |queue: &str| {
        let mut actions = workspace.workers.iter().flat_map(Worker::actions);
        actions.any(|action| matches!(action, Action::Queue(to) if to.queue == queue))
    };
    event.jobs.iter().all(|job| by_step(&job.queue) && !by_flow(&job.queue))
}

fn of_job(house: &House, workspace: &Workspace, event: &Considered, flow: String, queue: String) -> JobPlan {
    let Some(worker) = workspace.worker_for(&queue) else {
        return JobPlan { flow, queue, worker: None, steps: Vec::new() };
    };
    let recorded = event.jobs.iter().find(|job| (&*job.flow, &*job.queue) == (&*flow, &*queue));
    // One that never was goes by the number after that of its event, as the first job of an event does.
    let id = recorded.map_or_else(|| JobId::from_number(event.event.number().saturating_add(1)), |job| job.id);
    let claim = Claim {
        lease: LeaseRef { job: id, fence: Fence(0) },
        event: event.event,
        flow: flow.as_str().into(),
        queue: queue.as_str().into(),
        lane: Lane::from_number(0),
        version: VersionId(0),
        received_at: event.received_at,
        trace: event.payload.about.trace,
        failures: 0,
        attempts: 0,
        replays: 0,
        first_attempt_at: None,
        payload: Ok(Bytes::new()),
        effects: recorded.map_or_else(Vec::new, |job| job.effects.clone()),
    };
    let mut scope = Scope::new(house, (&claim).into(), &event.payload, workspace);
    let mut player =
        Player { house, workspace, event, claim: &claim, steps: Vec::new(), unknown: BTreeSet::new(), over: None };
    player.walk(&worker.steps, &mut scope);
    JobPlan { flow, queue, worker: Some(worker.name.clone()), steps: player.steps }
}

struct Player<'a> {
    house: &'a House,
    workspace: &'a Workspace,
    event: &'a Considered,
    claim: &'a Claim,
    steps: Vec<StepPlan>,
    /// Steps whose answer nobody knows.
    unknown: BTreeSet<String>,
    /// The job ends here, and why: what follows is not reached.
    over: Option<&'static str>,
}

impl Player<'_> {
    fn walk(&mut self, steps: &[Step], scope: &mut Scope<'_>) {
        for step in steps {
            scope.begin(&step.name);
            if let Some(why) = self.over {
                self.add(&step.name, "not_reached", Some(why.into()), None);
                continue;
            }
            match (&step.action, &step.each) {
                (Action::Parallel(branches), _) => {
                    if self.holds(&step.name, step, scope) {
                        let had = scope.outputs();
                        for branch in branches {
                            let mut child = scope.child();
                            child.begin(&branch.name);
                            let holds = branch.when.as_ref().map(|condition| condition.holds(child.names()));
                            match holds {
                                None | Some(Ok(true)) => self.walk(&branch.steps, &mut child),
                                Some(Ok(false)) => self.add(
                                    &branch.name,
                                    "skip",
                                    branch.when.as_ref().map(|when| when.source().into()),
                                    None,
                                ),
                                Some(Err(error)) => self.failed(&branch.name, &error.into()),
                            }
                            scope.merge(child, had);
                        }
                    }
                }
                (_, Some(each)) => match each.items(scope.names()) {
                    Ok(items) => {
                        let mut outputs = Vec::new();
                        for (index, item) in items.into_iter().enumerate() {
                            let name = item_name(&step.name, index);
                            scope.set_item(Some(item));
                            scope.begin(&name);
                            if self.holds(&name, step, scope) {
                                self.step(&Step { name: name.clone(), each: None, ..step.clone() }, scope);
                            }
                            outputs.push(scope.output(&name).cloned().unwrap_or(Value::Null));
                        }
                        scope.set_item(None);
                        scope.add_computed(&step.name, Value::Array(outputs));
                    }
                    Err(error) => self.failed(&step.name, &error.into()),
                },
                _ => {
                    if self.holds(&step.name, step, scope) {
                        self.step(step, scope);
                    }
                }
            }
        }
    }

    /// Whether it runs; if not, that is said.
    fn holds(&mut self, name: &str, step: &Step, scope: &mut Scope<'_>) -> bool {
        let Some(condition) = &step.when else { return true };
        match condition.holds(scope.names()) {
            Ok(true) => true,
            Ok(false) => {
                self.add(name, "skip", Some(format!("not `{}`", condition.source())), None);
                false
            }
            Err(error) => {
                self.failed(name, &error.into());
                false
            }
        }
    }

    fn step(&mut self, step: &Step, scope: &mut Scope<'_>) {
        let name = &step.name;
        match steps::kind(&step.action) {
            Some(Kind::Inward(action)) => match action.compute(scope) {
                Ok(output) => {
                    scope.add_computed(name, output);
                    self.add(name, "run", None, None);
                }
                Err(failure) => self.failed(name, &failure),
            },
            Some(Kind::Outward(action)) => {
                let channel = action.partner().channel_word().unwrap_or_default();
                scope.goes_over(channel);
                if let Some(why) = self.declined(step, channel, scope) {
                    return match why {
                        Ok(why) => {
                            self.add(name, "noop", Some(why), None);
                            self.over = Some("a policy would not have it, and the job ends there");
                        }
                        Err(failure) => self.failed(name, &failure),
                    };
                }
                match action.plan(name, self.claim, &self.event.payload, scope) {
                    Ok(act) => {
                        let (does, fingerprint) = act.told();
                        let effect = self.effect(&action.partner().name, &does, name, &fingerprint);
                        self.add(name, "run", None, Some(effect));
                        self.answered(name, scope);
                    }
                    Err(failure) => self.failed(name, &failure),
                }
            }
            Some(Kind::Delay(delay)) => match delay.until(self.event.received_at, scope.names()) {
                Ok(until) => {
                    let why = match delay {
                        DelayAction::For(pause) => format!("for {}", human(*pause)),
                        DelayAction::Until(_) => format!("until {until}"),
                    };
                    self.add(name, "wait", Some(why), None);
                    self.answered_or(name, json!({ "until": until.to_string() }), scope);
                }
                Err(error) => self.failed(name, &error.into()),
            },
            Some(Kind::Setnx(action)) => {
                match setnx::ask(action, name, &self.event.payload, scope, self.event.received_at) {
                    Ok(ask) => {
                        let fingerprint = Fingerprint::of("setnx", ask.key.as_bytes());
                        let does = format!("set a key for {}", human(action.ttl));
                        let effect = self.effect("clinch", &does, name, &fingerprint);
                        self.add(name, "run", None, Some(effect));
                        let taken = self.recorded(name).is_some_and(|receipt| !setnx::is_set(receipt));
                        self.answered_or(name, json!({"set": true}), scope);
                        if taken && action.stops {
                            self.over = Some("another job had set the key, and the job ends there");
                        }
                    }
                    Err(failure) => self.failed(name, &failure),
                }
            }
            Some(Kind::Queue(action)) => {
                let body = match &action.body {
                    QueueBody::Event => Ok(self.event.payload.body.to_vec()),
                    QueueBody::From(from) => from.value(scope.names()).map(|value| value.to_string().into_bytes()),
                };
                let key = action.key.as_ref().map(|key| key.value(scope.names()).map(|value| value.to_string()));
                match (body, key.transpose()) {
                    (Ok(body), Ok(key)) => {
                        let does = format!("a job in queue {}", action.queue);
                        let fingerprint = Fingerprint::of(&key.unwrap_or_default(), &body);
                        let effect = self.effect("clinch", &does, name, &fingerprint);
                        self.add(name, "run", None, Some(effect));
                        self.answered(name, scope);
                    }
                    (Err(error), _) | (_, Err(error)) => self.failed(name, &error.into()),
                }
            }
            Some(Kind::Pull(action)) => {
                self.add(name, "run", Some(format!("reads dead letters of {}", action.from)), None);
                self.answered(name, scope);
            }
            Some(Kind::Policy(action)) => {
                let said = policy::consent(action, &self.event.payload, scope);
                match said {
                    Ok(Some(given)) => {
                        let why = "consent only: caps and quiet hours are asked for when it runs";
                        self.add(name, "run", Some(why.into()), None);
                        scope.add_computed(name, json!({ "allowed": given }));
                    }
                    Ok(None) => {
                        self.add(name, "run", Some("a partner is asked".into()), None);
                        self.unknown.insert(name.to_string());
                    }
                    Err(failure) => self.failed(name, &failure),
                }
            }
            Some(Kind::Approval(action)) => {
                match (action.title.text(scope.names()), action.show.value(scope.names())) {
                    (Ok(_), Ok(_)) => {
                        let approval::Rule { need, .. } = &action.rule;
                        let people = if *need == 1 { "person" } else { "people" };
                        self.add(name, "wait", Some(format!("for {need} {people}")), None);
                        self.answered(name, scope);
                    }
                    (Err(error), _) | (_, Err(error)) => self.failed(name, &error.into()),
                }
            }
            None => self.add(name, "fail", Some("this version cannot run it".into()), None),
        }
    }

    /// What a policy over the step says without asking anybody: whether the contact has not agreed.
    fn declined(&self, step: &Step, channel: &str, scope: &mut Scope<'_>) -> Option<Result<String, Failure>> {
        let policies = match policy::over(step, channel, None, &self.event.payload, scope) {
            Ok(policies) => policies,
            Err(failure) => return Some(Err(failure)),
        };
        policies.over.into_iter().find_map(|over| match over.consent {
            Some(Agreed::Said(false, why)) => Some(Ok(format!("policy {}: {why}", over.policy.name))),
            _ => None,
        })
    }

    fn effect(&self, integration: &str, does: &str, step: &str, fingerprint: &Fingerprint) -> EffectPlan {
        let pepper = Pepper::new(self.house.store.pepper());
        EffectPlan {
            integration: integration.into(),
            does: rules().sentence(&self.without_secrets(does)),
            key: IdempotencyKey::of(self.claim.lease.job, step).as_str().to_string(),
            fingerprint: HEXLOWER.encode(&fingerprint.under(&pepper).as_bytes()[..8]),
        }
    }

    /// An address may have one in it.
    fn without_secrets(&self, does: &str) -> String {
        hide(does, self.workspace.secrets.iter().filter_map(|name| self.house.secrets.get(name)))
    }

    fn recorded(&self, name: &str) -> Option<&Receipt> {
        let effect = self.claim.effects.iter().find(|effect| *effect.name == *name)?;
        match &effect.state {
            EffectState::Done(receipt) => Some(receipt),
            _ => None,
        }
    }

    /// What was answered when it was done; if it never was, who reads the answer has to wait for it.
    fn answered(&mut self, name: &Arc<str>, scope: &mut Scope<'_>) {
        match self.recorded(name).cloned() {
            Some(receipt) => scope.add_output(name, &receipt),
            None => drop(self.unknown.insert(name.to_string())),
        }
    }

    fn answered_or(&mut self, name: &Arc<str>, usual: Value, scope: &mut Scope<'_>) {
        match self.recorded(name).cloned() {
            Some(receipt) => scope.add_output(name, &receipt),
            None => scope.add_computed(name, usual),
        }
    }

    /// It cannot be told, because an answer is needed; or the job would end in an error.
    fn failed(&mut self, name: &str, failure: &Failure) {
        let reads = |step: &&String| {
            let (dotted, quoted) = (format!("steps.{step}"), format!("steps[\"{step}\"]"));
            failure.error.contains(&dotted) || failure.error.contains(&quoted)
        };
        let needed = self.unknown.iter().find(reads).cloned();
        match needed {
            Some(step) => {
                self.add(name, "unknown", Some(format!("needs the answer of {step}")), None);
                self.unknown.insert(name.to_string());
            }
            None => {
                self.add(name, "fail", Some(format!("{}: {}", failure.reason, failure.error)), None);
                self.over = Some("the job fails before");
            }
        }
    }

    fn add(&mut self, name: &str, verdict: &str, why: Option<String>, effect: Option<EffectPlan>) {
        let why = why.map(|why| rules().sentence(&why));
        self.steps.push(StepPlan { name: name.into(), verdict: verdict.into(), why, effect });
    }
}
