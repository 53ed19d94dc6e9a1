//! prune: what has outlived its retention goes, a bounded number of rows at a time.

use super::accept::note_oldest;
use super::admit;
use super::alert;
use super::budget;
use super::call;
use super::control;
use super::memory::Settled;
use super::once;
use super::replay;
use super::rows::{DEAD, DROPPED, NOOP, SUCCESS, lane, reason};
use super::token;
use super::writer::{Batch, lock};
use crate::{Pruned, Retention};
use clinch_core::drop::DROPPED_KEPT;
use clinch_core::id::JobId;
use clinch_core::lane::Lane;
use clinch_core::time::Timestamp;
use rusqlite::params;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn prune(
    batch: &mut Batch<'_>,
    now: Timestamp,
    retention: &Retention,
    most: usize,
) -> rusqlite::Result<Pruned> {
    note_oldest(batch)?;
    token::prune(batch, now, most)?;
    control::prune(batch, now)?;
    alert::prune(batch, now)?;
    replay::prune(batch, now, most)?;
    let keys = prune_keys(batch, now, most)?;
    let mut pruned = prune_jobs(batch, now, retention, most)?;
    if pruned.events > 0 {
        note_last_id(batch)?;
    }
    pruned.keys = keys;
    pruned.once = clear(batch, once::PRUNE, now, most)?;
    pruned.calls = clear(batch, call::PRUNE, now, most)?;
    pruned.budgets = clear(batch, budget::PRUNE, now, most)?;
    pruned.admissions = clear(batch, admit::PRUNE, now, most)?;
    let most_gone = pruned.once.max(pruned.calls).max(pruned.budgets).max(pruned.admissions);
    pruned.finished &= keys == 0 && most_gone < most as u64;
    Ok(pruned)
}

/// Removes what is over by a rule of its own, and counts it.
fn clear(batch: &Batch<'_>, sql: &str, now: Timestamp, most: usize) -> rusqlite::Result<u64> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let gone = batch.conn.prepare_cached(sql)?.execute(params![now.as_micros(), most])?;
    Ok(gone as u64)
}

/// An id is never given twice, even when its rows are gone and the clock went back.
fn note_last_id(batch: &Batch<'_>) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached("UPDATE fact SET value = ?1 WHERE name = 'last_id'")?
        .execute([batch.desk.last_id.cast_signed()])?;
    Ok(())
}

/// Drops a run whose keys have all expired and whose jobs are all finished; then its entries, part by part.
fn prune_keys(batch: &mut Batch<'_>, now: Timestamp, most: usize) -> rusqlite::Result<u64> {
    let expired: Vec<(i64, u64, u64)> = batch
        .desk
        .keys
        .runs
        .iter()
        .filter(|run| run.expires_at <= now.as_micros())
        .map(|run| (run.id, run.first_event, run.last_event))
        .collect();
    for (run, first, last) in expired {
        if !unfinished_between(batch, first, last)? {
            batch.conn.execute("DELETE FROM key_run WHERE id = ?1", [run])?;
            batch.forgotten_runs.push(run);
            break;
        }
    }
    let oldest: Option<i64> = batch.conn.query_row("SELECT min(run) FROM key_entry", [], |row| row.get(0))?;
    let Some(run) = oldest else { return Ok(0) };
    let first_kept = batch.desk.keys.first_kept(&batch.forgotten_runs);
    if run >= first_kept {
        return Ok(0);
    }
    let gone = batch.conn.execute(
        "DELETE FROM key_entry WHERE run = ?1 AND hash IN (SELECT hash FROM key_entry WHERE run = ?1 LIMIT ?2)",
        params![run, i64::try_from(most).unwrap_or(i64::MAX)],
    )?;
    Ok(gone as u64)
}

fn unfinished_between(batch: &Batch<'_>, first_event: u64, last_event: u64) -> rusqlite::Result<bool> {
    // The jobs of an event follow it; the last event's are younger than any of its neighbours.
    let (first, last) = (JobId::from_number(first_event), JobId::from_number(last_event.saturating_add(1_000)));
    // A job that this very transaction revives is neither in memory nor dead any more.
    let revived = batch
        .changes
        .iter()
        .any(|change| matches!(change, Settled::Revived { job, .. } if (first..=last).contains(job)));
    if revived || lock(&batch.shared.memory).any_between(first, last) {
        return Ok(true);
    }
    batch.conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM job WHERE state IN (3, 6) AND id BETWEEN ?1 AND ?2)",
        [first.number().cast_signed(), last.number().cast_signed()],
        |row| row.get(0),
    )
}

struct Old {
    job: i64,
    event: i64,
    flow: Arc<str>,
    queue: Arc<str>,
    lane: Lane,
    state: i64,
    ended_at: Option<i64>,
    reason: Option<i64>,
    expires_at: i64,
}

fn prune_jobs(batch: &mut Batch<'_>, now: Timestamp, retention: &Retention, most: usize) -> rusqlite::Result<Pruned> {
    let shortest = retention.shortest();
    let old: Vec<Old> = batch
        .conn
        .prepare_cached(
            "SELECT job.id, job.event, flow.text, queue.text, job.state, job.ended_at, job.reason, event.expires_at,
                    job.lane
             FROM job JOIN event ON event.id = job.event
             JOIN name AS flow ON flow.id = job.flow JOIN name AS queue ON queue.id = job.queue
             WHERE job.id > ?1 AND job.id < ?2 ORDER BY job.id LIMIT ?3",
        )?
        .query_map(
            params![
                batch.desk.pruned_to.cast_signed(),
                JobId::first_at(now - shortest).number().cast_signed(),
                i64::try_from(most).unwrap_or(i64::MAX)
            ],
            |row| {
                Ok(Old {
                    job: row.get(0)?,
                    event: row.get(1)?,
                    flow: Arc::from(row.get_ref(2)?.as_str()?),
                    queue: Arc::from(row.get_ref(3)?.as_str()?),
                    state: row.get(4)?,
                    ended_at: row.get(5)?,
                    reason: row.get(6)?,
                    expires_at: row.get(7)?,
                    lane: lane(row, 8)?,
                })
            },
        )?
        .collect::<rusqlite::Result<_>>()?;
    let mut pruned = Pruned { finished: old.len() < most, ..Pruned::default() };
    // Once through, start over: what was too young or too dead then may go now.
    batch.desk.pruned_to = if pruned.finished { 0 } else { old.last().map_or(0, |old| old.job.cast_unsigned()) };
    for old in old {
        let kept_for = match old.state {
            SUCCESS | NOOP => retention.finished_in(&old.queue),
            DEAD => retention.dead_in(&old.queue),
            DROPPED => DROPPED_KEPT,
            _ => continue,
        };
        let ended_at = Timestamp::from_micros(old.ended_at.unwrap_or(i64::MAX));
        if ended_at + kept_for > now
            || old.expires_at > now.as_micros()
            || !batch.touch(JobId::from_number(old.job.cast_unsigned()))
        {
            continue;
        }
        remove(batch, &old, &mut pruned)?;
    }
    Ok(pruned)
}

fn remove(batch: &mut Batch<'_>, old: &Old, pruned: &mut Pruned) -> rusqlite::Result<()> {
    for sql in [
        "DELETE FROM effect WHERE job = ?1",
        "DELETE FROM late_answer WHERE job = ?1",
        "DELETE FROM vote WHERE job = ?1",
        "DELETE FROM approval WHERE job = ?1",
        "DELETE FROM attempt WHERE job = ?1",
        "DELETE FROM drop_ask WHERE job = ?1",
        "DELETE FROM job WHERE id = ?1",
    ] {
        batch.conn.prepare_cached(sql)?.execute([old.job])?;
    }
    let gone = batch
        .conn
        .prepare_cached(
            "DELETE FROM event WHERE id = ?1
             AND NOT EXISTS (SELECT 1 FROM job WHERE job.id > ?1 AND job.id <= ?1 + event.jobs)",
        )?
        .execute([old.event])?;
    if gone > 0 {
        for sql in ["DELETE FROM delivery WHERE event = ?1", "DELETE FROM handle WHERE event = ?1"] {
            batch.conn.prepare_cached(sql)?.execute([old.event])?;
        }
    }
    batch.expired += 1;
    batch.events_expired += gone as i64;
    pruned.jobs += 1;
    pruned.events += gone as u64;
    if old.state == DEAD {
        batch.changes.push(Settled::DeadForgotten {
            job: JobId::from_number(old.job.cast_unsigned()),
            flow: old.flow.clone(),
            queue: old.queue.clone(),
            lane: old.lane,
            reason: reason(old.reason.unwrap_or_default()),
        });
    }
    Ok(())
}

impl Retention {
    fn finished_in(&self, queue: &str) -> Duration {
        self.finished.iter().find(|(name, _)| &**name == queue).map_or(self.default, |(_, kept)| *kept)
    }

    fn dead_in(&self, queue: &str) -> Duration {
        self.dead.iter().find(|(name, _)| &**name == queue).map_or(self.default, |(_, kept)| *kept)
    }

    fn shortest(&self) -> Duration {
        let rules = self.finished.iter().chain(&self.dead).map(|(_, kept)| *kept);
        rules.chain([self.default, DROPPED_KEPT]).min().unwrap_or_default()
    }
}
