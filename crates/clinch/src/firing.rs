//! What a run of a schedule is: an event of its own, in the queue of its worker.

use crate::house::House;
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::key::{DedupKey, Fingerprint, Pepper};
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::{About, TENANT_DEFAULT, TraceId};
use clinch_core::schedule::{SOURCE, Schedule};
use clinch_core::time::Timestamp;
use clinch_core::worker::Worker;
use clinch_store::{Dedup, FireAsk, NewEvent, NewJob, Record};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// The slot is remembered by its schedule; the key is for the case that the schedule was forgotten.
const KEY_TTL: Duration = Duration::from_secs(86_400);

/// The run of this slot, as every node asks for it.
pub fn of_slot(house: &House, worker: &Worker, schedule: &Schedule, slot: Timestamp) -> FireAsk {
    let at = house.clock.now();
    let event = event(house, worker, schedule, slot, at);
    let dedup = Dedup {
        key: DedupKey::scoped(&pepper(house), TENANT_DEFAULT, &schedule.queue, &slot.to_string()),
        fingerprint: Fingerprint::of(SOURCE, slot.to_string().as_bytes()),
        ttl: KEY_TTL,
        on_conflict: OnConflict::KeepFirst,
        on_duplicate_of_dead: OnDuplicateOfDead::Keep,
    };
    FireAsk { event: Some(NewEvent { dedup: Some(dedup), ..event }), ..pass(worker, schedule, slot, at) }
}

/// This slot and all before it are let pass.
pub fn pass(worker: &Worker, schedule: &Schedule, slot: Timestamp, at: Timestamp) -> FireAsk {
    let (name, overlaps) = (Arc::from(worker.name.as_str()), schedule.overlaps);
    FireAsk { schedule: name, slot: Some(slot), event: None, overlaps, record: None, at }
}

/// A run that somebody asks for.
pub fn by_hand(house: &House, worker: &Worker, schedule: &Schedule, record: Record) -> FireAsk {
    let at = record.at;
    let event = Some(event(house, worker, schedule, at, at));
    FireAsk { slot: None, event, record: Some(record), ..pass(worker, schedule, at, at) }
}

fn pepper(house: &House) -> Pepper {
    Pepper::new(house.store.pepper())
}

fn event(house: &House, worker: &Worker, schedule: &Schedule, slot: Timestamp, at: Timestamp) -> NewEvent {
    let slot = slot.to_string();
    let about = About {
        source: SOURCE.into(),
        source_event_id: slot.as_str().into(),
        kind: worker.name.as_str().into(),
        tenant: TENANT_DEFAULT.into(),
        sender: "".into(),
        schema_version: 1,
        mismatch: "".into(),
        trace: TraceId::new(at, house.clock.random()),
        job_keys: Vec::new(),
        headers: Vec::new(),
    };
    let body = json!({"schedule": worker.name, "slot": slot}).to_string();
    let now = house.versions.state();
    let queue = now.plain.queue(&schedule.queue);
    let job = NewJob {
        flow: Arc::from(worker.name.as_str()),
        queue: Arc::from(schedule.queue.as_str()),
        lane: Lane::whole(&pepper(house), &schedule.queue),
        order: queue.map_or(Order::Any, |queue| queue.order),
        priority: queue.map_or(0, |queue| queue.priority),
        run_at: at,
    };
    NewEvent {
        source: Arc::from(SOURCE),
        version: now.live,
        received_at: at,
        trace: about.trace,
        dedup: None,
        status: 202,
        payload: about.encode(body.as_bytes()),
        handles: Vec::new(),
        jobs: vec![job],
    }
}
