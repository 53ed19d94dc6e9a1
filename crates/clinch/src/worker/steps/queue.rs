//! `queue:` a job for a queue; or a dead letter that `queue_pull` read, back into its own.
//!
//! ```yaml
//! - name: hand-over
//!   queue: {name: invoices, body_from: steps.invoice.output, key_from: steps.invoice.output.number}
//! ```
//!
//! A dead letter goes back as it is: the same job, with its key, its trace and what its steps have done. Anything else is a new event,
//! which is recognised by its key: the job that runs again puts nothing into the queue twice.

use super::{bad_payload, missing};
use crate::placing::JobRule;
use crate::worker::attempt::count_step;
use crate::worker::end::{End, StepEnd};
use crate::worker::scope::Scope;
use bytes::Bytes;
use clinch_core::attempt::Failure;
use clinch_core::audit::Who;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::flow::{Enqueue, OnConflict, OnDuplicateOfDead};
use clinch_core::id::JobId;
use clinch_core::key::{DedupKey, Fingerprint, IdempotencyKey, KEY_BYTES_MAX, Pepper};
use clinch_core::payload::{About, Payload};
use clinch_core::schedule::QUEUE_PREFIX;
use clinch_core::source::Look;
use clinch_core::subject::Handle;
use clinch_core::time::Timestamp;
use clinch_core::trace;
use clinch_core::worker::{Action, QueueAction, QueueBody, Step};
use clinch_store::{Acceptance, Claim, Conclusion, Dedup, Held, NewEffect, NewEvent, ReviveAsk, Revived};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a key of such an event is remembered.
const KEY_TTL: Duration = Duration::from_secs(7 * 86_400);

pub async fn put(
    claim: &Claim,
    step: &Step,
    action: &QueueAction,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (house, name) = (scope.house(), &step.name);
    let past = claim.effects.iter().find(|effect| *effect.name == **name);
    if let Some(EffectState::Done(receipt)) = past.map(|past| &past.state) {
        return Ok(StepEnd::DoneBefore(receipt.clone()));
    }
    let began = house.clock.now();
    let what = match plan(claim, name, action, payload, scope, began) {
        Ok(what) => what,
        Err(failure) => {
            count_step(scope, claim, step, "permanent", began);
            let why = format!("step `{name}`: {}", failure.error);
            return Ok(StepEnd::Over(End::refused(failure.reason, why, name)));
        }
    };
    let intent = NewEffect { name: name.clone(), class: Idempotency::Natural, at: began };
    if house.insist(|| house.store.intend(claim.lease, intent.clone())).await? == Held::Lost {
        return Ok(StepEnd::TakenOver);
    }
    let output = match &what {
        What::Back(ask) => back(ask.job, house.insist(|| house.store.revive(ask.clone())).await?),
        What::New(event) => {
            let acceptance = house.insist(|| house.store.accept((**event).clone())).await?;
            if let (Some(spans), Acceptance::Fresh(accepted)) = (&scope.spans, &acceptance) {
                spans.created(accepted.event, &action.queue, began, house.clock.now());
            }
            new(acceptance)
        }
    };
    crate::crash::point("after_queue");
    count_step(scope, claim, step, "ok", began);
    let receipt = Receipt { status: 200, body: output.to_string().into() };
    let state = EffectState::Done(receipt.clone());
    let conclusion = Conclusion { name: name.clone(), state, at: house.clock.now() };
    Ok(StepEnd::Done(receipt, conclusion.into()))
}

enum What {
    Back(ReviveAsk),
    New(Box<NewEvent>),
}

fn plan(
    claim: &Claim,
    step: &Arc<str>,
    action: &QueueAction,
    payload: &Payload,
    scope: &mut Scope<'_>,
    now: Timestamp,
) -> Result<What, Failure> {
    if let Some(job) = pulled(claim, action, scope) {
        let origin = match claim.queue.strip_prefix(QUEUE_PREFIX) {
            Some(schedule) => format!("schedule {schedule}"),
            None => format!("queue {}", claim.queue),
        };
        let record = Who::clinch(&origin).record(format!("step {step} of {}", claim.lease.job), now);
        return Ok(What::Back(ReviveAsk { job, record, version: None, unknown: None }));
    }
    let body = match &action.body {
        QueueBody::Event => payload.body.clone(),
        QueueBody::From(from) => Bytes::from(from.value(scope.names()).map_err(missing)?.to_string()),
    };
    let own = IdempotencyKey::of(claim.lease.job, step);
    let key = match &action.key {
        None => own.as_str().to_string(),
        Some(from) => match from.value(scope.names()).map_err(missing)? {
            Value::String(text) => text,
            scalar @ (Value::Number(_) | Value::Bool(_)) => scalar.to_string(),
            _ => return Err(bad_payload(format!("its key, `{}`, is not one value", from.source()))),
        },
    };
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Err(bad_payload(format!("its key has {} bytes; a key has 1 to {KEY_BYTES_MAX}", key.len())));
    }
    let house = scope.house();
    let pepper = Pepper::new(house.store.pepper());
    // Another body has headers of its own; the trace is the same.
    let is_event = matches!(action.body, QueueBody::Event);
    let goes_on = |name: &str| is_event || matches!(name, trace::TRACEPARENT | trace::TRACESTATE);
    let about = About {
        source_event_id: key.as_str().into(),
        mismatch: "".into(),
        job_keys: Vec::new(),
        headers: payload.about.headers.iter().filter(|(name, _)| goes_on(name)).cloned().collect(),
        ..payload.about.clone()
    };
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let headers: Vec<(&str, &[u8])> = about.headers.iter().map(|(name, value)| (&**name, value.as_bytes())).collect();
    let to = Enqueue {
        step: step.to_string(),
        queue: action.queue.clone(),
        key: None,
        group: None,
        priority: None,
        delay: None,
    };
    let rule = JobRule::of(scope.workspace(), &claim.flow, &to, true, &pepper);
    let job = rule.job(&pepper, &about.tenant, &Look { headers: &headers, value: &value }, now);
    let job = job.map_err(|error| bad_payload(format!("queue `{}` keeps its order, and {error}", action.queue)))?;
    let dedup = Dedup {
        key: DedupKey::scoped(&pepper, &about.tenant, &format!("queue {}", action.queue), &key),
        fingerprint: Fingerprint::of("queue", &body),
        ttl: KEY_TTL,
        on_conflict: OnConflict::KeepFirst,
        on_duplicate_of_dead: OnDuplicateOfDead::Keep,
    };
    Ok(What::New(Box::new(NewEvent {
        source: Arc::from(&*about.source),
        // What the job was accepted with has this queue.
        version: claim.version,
        received_at: now,
        trace: about.trace,
        dedup: Some(dedup),
        status: 202,
        payload: about.encode(&body),
        // Its trace began before it came.
        handles: Handle::of(&pepper, &about.trace.to_string()).into_iter().collect(),
        jobs: vec![job],
    })))
}

/// The dead letter that the item is, if a step of this very job has read it and it is of this queue. An event that only names a
/// job moves nobody's dead letter.
fn pulled(claim: &Claim, action: &QueueAction, scope: &Scope<'_>) -> Option<JobId> {
    let item = scope.item()?;
    let (id, queue) = (item["id"].as_str()?, item["queue"].as_str()?);
    if queue != action.queue {
        return None;
    }
    let worker = scope.workspace().worker_for(&claim.queue)?;
    let pulls = worker.all_steps().filter(|step| matches!(step.action, Action::Pull(_)));
    let mut messages = pulls
        .filter_map(|pull| scope.output(&pull.name))
        .flat_map(|output| output["messages"].as_array().into_iter().flatten());
    messages.find(|message| message["id"].as_str() == Some(id))?;
    id.parse().ok()
}

fn back(job: JobId, revived: Revived) -> Value {
    let id = job.to_string();
    match revived {
        Revived::Revived { replays } => json!({"job_id": id, "result": "replayed", "replays": replays}),
        // Somebody else has replayed it, or we did and could not write that down any more.
        Revived::NotDead { state } => json!({"job_id": id, "result": "skipped", "state": state.as_str()}),
        Revived::Ask { steps } => json!({"job_id": id, "result": "needs_ruling", "steps": steps}),
        Revived::NotFound => json!({"job_id": id, "result": "gone"}),
    }
}

fn new(acceptance: Acceptance) -> Value {
    let (result, accepted) = match acceptance {
        Acceptance::Fresh(accepted) => ("queued", accepted),
        Acceptance::Duplicate(first) => ("duplicate", first),
        // Another body came under the key; the first stays.
        Acceptance::Kept(first) | Acceptance::Conflict(first) => ("conflict", first),
    };
    json!({"job_id": accepted.job.to_string(), "event_id": accepted.event.to_string(), "result": result})
}
