//! The names by which expressions read an event.

use clinch_core::id::{EventId, JobId};
use clinch_core::payload::Payload;
use clinch_core::scope::Scope;
use clinch_core::time::Timestamp;
use clinch_store::Claim;
use clinch_store::read::JobRow;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What names tell of the job.
#[derive(Clone, Copy)]
pub struct Subject {
    pub job: JobId,
    pub event: EventId,
    pub received_at: Timestamp,
    /// Attempts that ended.
    pub attempts: u32,
}

impl From<&Claim> for Subject {
    fn from(claim: &Claim) -> Subject {
        let Claim { lease, event, received_at, attempts, .. } = *claim;
        Subject { job: lease.job, event, received_at, attempts }
    }
}

impl From<&JobRow> for Subject {
    fn from(row: &JobRow) -> Subject {
        let JobRow { id: job, event, received_at, attempts, .. } = *row;
        Subject { job, event, received_at, attempts }
    }
}

/// The key that the job was accepted with; empty if with none.
pub fn key(subject: Subject, payload: &Payload) -> &str {
    // The jobs of an event have the numbers after its own.
    let place = subject.job.number().saturating_sub(subject.event.number() + 1);
    payload.about.key_of(usize::try_from(place).unwrap_or(usize::MAX))
}

/// What is known of it before any step has run. Most of it is read by nobody, and made for who does.
pub fn of_event(subject: Subject, payload: &Arc<Payload>) -> Scope {
    let mut names = Scope::new();
    let mut say = |name: &str, say: fn(Subject, &Payload) -> Value| {
        let payload = payload.clone();
        names.insert_with(name, move || say(subject, &payload));
    };
    say("request", |_, payload| json!({"body": body(payload), "headers": headers(payload)}));
    say("body", |_, payload| body(payload));
    say("headers", |_, payload| headers(payload));
    say("key", |subject, payload| key(subject, payload).into());
    say("event", event);
    names
}

fn body(payload: &Payload) -> Value {
    serde_json::from_slice(&payload.body).unwrap_or_default()
}

fn headers(payload: &Payload) -> Value {
    payload.about.headers.iter().map(|(name, value)| (name.to_string(), Value::from(&**value))).collect()
}

/// What the event says, and over it what is known of it: `event.id` is ours, `body.id` the sender's.
fn event(subject: Subject, payload: &Payload) -> Value {
    let about = &payload.about;
    let mut event = match body(payload) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (name, value) in [
        ("id", Value::from(subject.event.to_string())),
        ("source", (&*about.source).into()),
        ("source_event_id", (&*about.source_event_id).into()),
        ("type", (&*about.kind).into()),
        ("tenant", (&*about.tenant).into()),
        ("sender", (&*about.sender).into()),
        ("schema_version", about.schema_version.into()),
        ("received_at", subject.received_at.to_string().into()),
    ] {
        event.insert(name.into(), value);
    }
    Value::Object(event)
}
