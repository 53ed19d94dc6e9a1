//! `queue_pull:` reads dead letters, those that wait longest first. They stay where they are.
//!
//! ```yaml
//! - name: pull-batch
//!   queue_pull: {from: contact-upserts-dlq, max_messages: 20}
//! - name: requeue
//!   foreach: step:pull-batch.messages
//!   queue: {name: contact-upserts, body_from: item.body, key_from: item.headers.Idempotency-Key}
//! ```
//!
//! What was read is the step's result and stays it, however often the job runs: the list must not change under those who go
//! through it. Dead letters that only a person can decide about are not read.

use crate::names;
use crate::worker::attempt::count_step;
use crate::worker::end::StepEnd;
use crate::worker::scope::Scope;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::job::Word;
use clinch_core::payload::Payload;
use clinch_core::worker::{PullAction, Step};
use clinch_store::read::JobStory;
use clinch_store::{Claim, Conclusion, Held, NewEffect};
use serde_json::{Map, Value, json};

/// All bodies together have no more bytes; one that does not fit is left out, and its message says so.
const BODIES_BYTES_MAX: usize = 256 << 10;
/// As the tutorial of every API writes it.
const KEY_HEADER: &str = "Idempotency-Key";

pub async fn pull(
    claim: &Claim,
    step: &Step,
    action: &PullAction,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (house, name) = (scope.house(), &step.name);
    let past = claim.effects.iter().find(|effect| *effect.name == **name);
    if let Some(EffectState::Done(receipt)) = past.map(|past| &past.state) {
        return Ok(StepEnd::DoneBefore(receipt.clone()));
    }
    let began = house.clock.now();
    let intent = NewEffect { name: name.clone(), class: Idempotency::Natural, at: began };
    if house.insist(|| house.store.intend(claim.lease, intent.clone())).await? == Held::Lost {
        return Ok(StepEnd::TakenOver);
    }
    let queues = scope.workspace().queues_of_dead(&action.from);
    let jobs = house.insist(|| house.store.oldest_dead(queues.clone(), action.most)).await?;
    let (mut messages, mut room) = (Vec::with_capacity(jobs.len()), BODIES_BYTES_MAX);
    for job in jobs {
        // One that was replayed or pruned in between is nobody's dead letter.
        if let Some(story) = house.insist(|| house.store.job(job)).await?
            && story.row.word == Word::Dead
        {
            messages.push(message(&story, &mut room));
        }
    }
    count_step(scope, claim, step, "ok", began);
    let output = json!({ "messages": messages });
    let receipt = Receipt { status: 200, body: output.to_string().into() };
    let state = EffectState::Done(receipt.clone());
    let conclusion = Conclusion { name: name.clone(), state, at: house.clock.now() };
    Ok(StepEnd::Done(receipt, conclusion.into()))
}

fn message(story: &JobStory, room: &mut usize) -> Value {
    let row = &story.row;
    let payload = story.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok());
    let mut headers = Map::new();
    let mut body = None;
    if let Some(payload) = &payload {
        let kept = payload.about.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(KEY_HEADER));
        headers.extend(kept.map(|(name, value)| (name.to_string(), Value::from(&**value))));
        let key = names::key(row.into(), payload);
        if !key.is_empty() {
            headers.insert(KEY_HEADER.into(), key.into());
        }
        if let Some(left) = room.checked_sub(payload.body.len()) {
            *room = left;
            body = Some(read(&payload.body));
        }
    }
    json!({
        "id": row.id.to_string(), "queue": &*row.queue, "flow": &*row.flow, "headers": headers, "left_out": body.is_none(), "body": body,
        "reason": row.reason.map(|reason| reason.word()), "attempts": row.attempts, "replays": row.replays,
        "received_at": row.received_at.to_string(), "died_at": row.ended_at.map(|at| at.to_string()),
    })
}

/// As JSON; what is none, as text.
fn read(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into())
}
