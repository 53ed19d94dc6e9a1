//! admit and give_back: what is done to contacts, counted. The one writer is the order in which they come.

use super::ledger::holds;
use super::rows::{DONE, OPEN, UNKNOWN};
use super::writer::Batch;
use crate::{Admission, AdmitAsk, Held, LeaseRef};
use clinch_core::id::JobId;
use clinch_core::policy::Tally;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, params};

pub(super) fn admit(batch: &Batch<'_>, lease: LeaseRef, ask: &AdmitAsk) -> rusqlite::Result<Option<Admission>> {
    if !holds(batch, lease) {
        return Ok(None);
    }
    let job = lease.job.number().cast_signed();
    if ask.may_be_sent && is_admitted(batch, job, &ask.step)? {
        return Ok(Some(Admission::Admitted));
    }
    // Who asks again is not in his own way, and is held against what is so now.
    batch
        .conn
        .prepare_cached("DELETE FROM admission WHERE job = ?1 AND step = ?2")?
        .execute(params![job, &*ask.step])?;
    for (at, tally) in ask.tallies.iter().enumerate() {
        if let Some((cap, sent)) = tally.reached(&sent(batch.conn, tally, None, ask.now)?) {
            return Ok(Some(Admission::Refused { tally: at, cap, sent }));
        }
    }
    for tally in &ask.tallies {
        batch
            .conn
            .prepare_cached(
                "INSERT INTO admission (job, step, contact, channel, at, until) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                job,
                &*ask.step,
                tally.contact.as_bytes(),
                &*tally.channel,
                ask.now.as_micros(),
                tally.over_at(ask.now).as_micros(),
            ])?;
    }
    Ok(Some(Admission::Admitted))
}

fn is_admitted(batch: &Batch<'_>, job: i64, step: &str) -> rusqlite::Result<bool> {
    batch
        .conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM admission WHERE job = ?1 AND step = ?2)")?
        .query_row(params![job, step], |row| row.get(0))
}

pub(super) fn give_back(batch: &Batch<'_>, lease: LeaseRef, not_done: Option<&str>) -> rusqlite::Result<Held> {
    if !holds(batch, lease) {
        return Ok(Held::Lost);
    }
    batch
        .conn
        .prepare_cached(
            "DELETE FROM admission WHERE job = ?1 AND (step = ?2 OR NOT EXISTS (
                 SELECT 1 FROM effect WHERE effect.job = ?1 AND effect.name = admission.step
                 AND state IN (?3, ?4, ?5)))",
        )?
        .execute(params![lease.job.number().cast_signed(), not_done, OPEN, DONE, UNKNOWN])?;
    Ok(Held::Held)
}

pub(super) fn sent(conn: &Connection, tally: &Tally, but: Option<JobId>, now: Timestamp) -> rusqlite::Result<Vec<u32>> {
    let mut count = conn.prepare_cached(
        "SELECT count(*) FROM admission
         WHERE contact = ?1 AND at > ?2 AND (?3 IS NULL OR channel = ?3) AND job IS NOT ?4",
    )?;
    let but = but.map(|job| job.number().cast_signed());
    let caps = tally.caps.iter().map(|cap| {
        let since = cap.per.since(now, &tally.zone).as_micros();
        count.query_row(params![tally.contact.as_bytes(), since, cap.channel.as_deref(), but], |row| row.get(0))
    });
    caps.collect()
}

/// Those that count no more, a bounded number.
pub(super) const PRUNE: &str = "DELETE FROM admission WHERE (job, step, contact) IN
                 (SELECT job, step, contact FROM admission WHERE until <= ?1 LIMIT ?2)";
