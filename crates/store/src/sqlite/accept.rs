//! accept: the event, its key and its jobs, together or not at all.

use super::keys;
use super::memory::{Live, Phase, Settled};
use super::queue::Place;
use super::revive;
use super::rows::{self, READY};
use super::writer::{Batch, FreshKey, lock};
use crate::{Acceptance, Accepted, DELIVERIES_KEPT_MAX, Dedup, NewEvent, ReviveAsk};
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::id::{EventId, JobId};
use clinch_core::key::Fingerprint;
use clinch_core::time::Timestamp;
use rusqlite::params;

pub(super) fn accept(batch: &mut Batch<'_>, new: NewEvent) -> rusqlite::Result<Acceptance> {
    if let Some(dedup) = &new.dedup
        && let Some(first) = holder(batch, dedup, new.received_at)?
    {
        return again(batch, &new, dedup, first);
    }
    let accepted = insert(batch, &new)?;
    Ok(Acceptance::Fresh(accepted))
}

/// The first delivery of a key.
struct First {
    accepted: Accepted,
    fingerprint: Fingerprint,
    jobs: u64,
    fresh: bool,
}

/// Who holds this key now: in this very transaction, or on disk and not expired.
fn holder(batch: &Batch<'_>, dedup: &Dedup, now: Timestamp) -> rusqlite::Result<Option<First>> {
    let prefix = keys::prefix(dedup.key.as_bytes());
    if let Some(fresh) = batch.fresh_keys.get(&prefix) {
        return Ok(Some(First { accepted: fresh.accepted, fingerprint: fresh.fingerprint, jobs: 0, fresh: true }));
    }
    let Some(event) = batch.desk.keys.find(batch.conn, &prefix)? else {
        return Ok(None);
    };
    let Some(row) = rows::event_key(batch.conn, event)? else {
        return Ok(None);
    };
    if row.key.as_deref() != Some(&dedup.key.as_bytes()[..]) {
        return Ok(None);
    }
    let expired = now.as_micros() >= row.expires_at;
    if expired && rows::jobs_finished(batch.conn, event, row.jobs)? {
        return Ok(None);
    }
    let accepted = Accepted {
        event: EventId::from_number(event),
        job: JobId::from_number(event + 1),
        status: row.status,
        received_at: Timestamp::from_micros(row.received_at),
        trace: row.trace,
    };
    Ok(Some(First { accepted, fingerprint: row.fingerprint, jobs: row.jobs, fresh: false }))
}

/// A later delivery: put on record, answered like the first, and nothing else.
fn again(batch: &mut Batch<'_>, new: &NewEvent, dedup: &Dedup, first: First) -> rusqlite::Result<Acceptance> {
    let conflict = first.fingerprint != dedup.fingerprint;
    record(batch, first.accepted.event, new.received_at, conflict)?;
    if conflict && dedup.on_conflict == OnConflict::Reject {
        return Ok(Acceptance::Conflict(first.accepted));
    }
    if dedup.on_duplicate_of_dead == OnDuplicateOfDead::Replay && !first.fresh {
        for job in 1..=first.jobs {
            let job = JobId::from_number(first.accepted.event.number() + job);
            revive::revive(batch, &ReviveAsk::of_sender(job, new.received_at))?;
        }
    }
    Ok(if conflict { Acceptance::Kept(first.accepted) } else { Acceptance::Duplicate(first.accepted) })
}

fn record(batch: &Batch<'_>, event: EventId, at: Timestamp, conflict: bool) -> rusqlite::Result<()> {
    let event = event.number().cast_signed();
    let kept: i64 = batch
        .conn
        .prepare_cached("SELECT ifnull(max(no), 0) FROM delivery WHERE event = ?1")?
        .query_row([event], |row| row.get(0))?;
    if kept < DELIVERIES_KEPT_MAX {
        batch
            .conn
            .prepare_cached("INSERT INTO delivery (event, no, at, kind) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![event, kept + 1, at.as_micros(), i64::from(conflict)])?;
    } else {
        batch
            .conn
            .prepare_cached("UPDATE delivery SET times = times + 1, at = ?3 WHERE event = ?1 AND no = ?2")?
            .execute(params![event, kept, at.as_micros()])?;
    }
    Ok(())
}

pub(super) const EVENT: &str =
    "INSERT INTO event (id, source, received_at, key, fingerprint, expires_at, status, jobs, trace, payload)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
pub(super) const JOB: &str = "INSERT INTO job (id, event, flow, queue, version, state, run_at, lane, ord, priority)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

fn insert(batch: &mut Batch<'_>, new: &NewEvent) -> rusqlite::Result<Accepted> {
    let event = EventId::from_number(batch.next_id(new.received_at));
    let source = batch.name(&new.source)?;
    let expires_at = new.dedup.as_ref().map_or(new.received_at, |dedup| new.received_at + dedup.ttl).as_micros();
    let payload = batch.shared.sealer.payload(event, &new.payload);
    batch.pens.event.execute(params![
        event.number().cast_signed(),
        source,
        new.received_at.as_micros(),
        new.dedup.as_ref().map(|dedup| dedup.key.as_bytes()),
        new.dedup.as_ref().map(|dedup| dedup.fingerprint.as_bytes()),
        expires_at,
        new.status,
        i64::try_from(new.jobs.len()).unwrap_or(i64::MAX),
        new.trace.to_bytes(),
        &payload[..],
    ])?;
    for handle in &new.handles {
        batch
            .conn
            .prepare_cached("INSERT INTO handle (event, mark) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
            .execute(params![event.number().cast_signed(), handle.number()])?;
    }
    let first_job = JobId::from_number(event.number() + 1);
    for ask in &new.jobs {
        let job = JobId::from_number(batch.next_id(new.received_at));
        let (flow, queue) = (batch.name(&ask.flow)?, batch.name(&ask.queue)?);
        batch.pens.job.execute(params![
            job.number().cast_signed(),
            event.number().cast_signed(),
            flow,
            queue,
            new.version.0,
            READY,
            ask.run_at.as_micros(),
            ask.lane.number().cast_signed(),
            ask.order.number(),
            ask.priority,
        ])?;
        batch.changes.push(Settled::Born {
            job,
            live: Live {
                event,
                flow: ask.flow.clone(),
                queue: ask.queue.clone(),
                place: Place { lane: ask.lane, order: ask.order, priority: ask.priority },
                version: new.version,
                received_at: new.received_at,
                trace: new.trace,
                failures: 0,
                attempts: 0,
                replays: 0,
                first_attempt_at: None,
                phase: Phase::Ready { run_at: ask.run_at, waits: None },
                payload: Some(new.payload.clone()),
                has_effects: false,
            },
        });
    }
    batch.accepted += 1;
    batch.created += i64::try_from(new.jobs.len()).unwrap_or(i64::MAX);
    let accepted =
        Accepted { event, job: first_job, status: new.status, received_at: new.received_at, trace: new.trace };
    if let Some(dedup) = &new.dedup {
        let fresh = FreshKey { accepted, fingerprint: dedup.fingerprint, expires_at };
        batch.fresh_keys.insert(keys::prefix(dedup.key.as_bytes()), fresh);
    }
    Ok(accepted)
}

/// The event that holds this key now.
pub(super) fn find(batch: &Batch<'_>, key: &[u8; 32]) -> rusqlite::Result<Option<EventId>> {
    let Some(event) = batch.desk.keys.find(batch.conn, &keys::prefix(key))? else {
        return Ok(None);
    };
    let row = rows::event_key(batch.conn, event)?;
    Ok(row.filter(|row| row.key.as_deref() == Some(&key[..])).map(|_| EventId::from_number(event)))
}

/// The lowest job that is not finished is written down now and then, so that a start need not look at older ones.
pub(super) fn note_oldest(batch: &Batch<'_>) -> rusqlite::Result<()> {
    let oldest = lock(&batch.shared.memory).oldest();
    // Jobs of this very transaction are not in memory yet, and are younger than any id given before it.
    let floor = batch.changes.iter().filter_map(|change| match change {
        Settled::Born { job, .. } => Some(*job),
        Settled::Revived { job, .. } => Some(*job),
        _ => None,
    });
    let oldest = oldest.into_iter().chain(floor).min().map_or(batch.desk.last_id + 1, JobId::number);
    batch
        .conn
        .prepare_cached("UPDATE fact SET value = ?1 WHERE name = 'live_from' AND value IS NOT ?1")?
        .execute([oldest.cast_signed()])?;
    Ok(())
}
