//! admit and give_back: what is done to contacts, counted on all nodes together. Times are those of the database.

use super::pool::Line;
use super::rows::text;
use super::{Fault, Shared};
use crate::{Admission, AdmitAsk, Held, LeaseRef};
use clinch_core::id::JobId;
use clinch_core::policy::{Cap, Tally};
use clinch_core::time::Timestamp;
use tokio_postgres::Row;

/// The first half of the lock of whoever counts a contact.
const COUNTER: i32 = 0x636c_6902;

// One at a time for each contact, in the same order for all; a statement of its own, so that the next one sees what the last
// has written.
const LOCK: &str = "SELECT pg_advisory_xact_lock($1, contact) FROM unnest($2::integer[]) AS contact";

const HELD: &str = "
    SELECT EXISTS (SELECT FROM admission WHERE job = $1 AND step = $3) FROM job
    WHERE id BETWEEN $1 AND $1 AND slot BETWEEN 1 AND 3
        AND state BETWEEN 4 AND 4 AND fence = $2 AND node IS NOT NULL FOR SHARE OF job";

const COUNT: &str = "
    SELECT count(*) FROM admission
    WHERE contact = $1 AND at > $2 AND ($3::text IS NULL OR channel = $3) AND job IS DISTINCT FROM $4";

const ADMIT: &str = "INSERT INTO admission (job, step, contact, channel, at, until) VALUES ($1, $2, $3, $4, $5, $6)";

const GIVE_BACK: &str = "
    WITH held AS MATERIALIZED (
        SELECT id FROM job
        WHERE id BETWEEN $1 AND $1 AND slot BETWEEN 1 AND 3 AND state BETWEEN 4 AND 4 AND fence = $2 FOR SHARE
    ), gone AS (
        DELETE FROM admission USING held
        WHERE admission.job = held.id AND (admission.step = $3::text OR NOT EXISTS (
            SELECT FROM (
                SELECT state FROM effect
                WHERE effect.job = $1 AND effect.name = admission.step ORDER BY no DESC LIMIT 1
            ) AS last WHERE state IN (0, 1, 3)
        ))
    )
    SELECT id FROM held";

pub(super) async fn admit(shared: &Shared, lease: LeaseRef, ask: &AdmitAsk) -> Result<Option<Admission>, Fault> {
    let now = shared.skew.to_database(ask.now);
    let (job, fence, step) = (lease.job.number().cast_signed(), lease.fence.0.cast_signed(), text(&ask.step));
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    line.query(LOCK, &[&COUNTER, &locks(&ask.tallies)]).await?;
    let held = line.query(HELD, &[&job, &fence, &step]).await?;
    let Some(held) = held.first() else {
        line.commit().await?;
        return Ok(None);
    };
    let admission = if ask.may_be_sent && held.try_get(0)? {
        Admission::Admitted
    } else {
        // Who asks again is not in his own way, and is held against what is so now.
        line.query("DELETE FROM admission WHERE job = $1 AND step = $2", &[&job, &step]).await?;
        let admission = weigh(&mut line, ask, now).await?;
        if admission == Admission::Admitted {
            for tally in &ask.tallies {
                let (contact, until) = (&tally.contact.as_bytes()[..], tally.over_at(now).as_micros());
                line.query(ADMIT, &[&job, &step, &contact, &&*tally.channel, &now.as_micros(), &until]).await?;
            }
        }
        admission
    };
    line.commit().await?;
    Ok(Some(admission))
}

fn locks(tallies: &[Tally]) -> Vec<i32> {
    let half = |tally: &Tally| i32::from_be_bytes(*tally.contact.as_bytes().first_chunk().expect("16 bytes are more"));
    let mut locks: Vec<i32> = tallies.iter().map(half).collect();
    locks.sort_unstable();
    locks.dedup();
    locks
}

async fn weigh(line: &mut Line, ask: &AdmitAsk, now: Timestamp) -> Result<Admission, Fault> {
    for (at, tally) in ask.tallies.iter().enumerate() {
        let mut sent = Vec::with_capacity(tally.caps.len());
        for cap in &tally.caps {
            let (contact, since, channel) = counted(tally, cap, now);
            sent.push(number(&line.query(COUNT, &[&contact, &since, &channel, &None::<i64>]).await?)?);
        }
        if let Some((cap, sent)) = tally.reached(&sent) {
            return Ok(Admission::Refused { tally: at, cap, sent });
        }
    }
    Ok(Admission::Admitted)
}

fn counted<'a>(tally: &'a Tally, cap: &'a Cap, now: Timestamp) -> (&'a [u8], i64, Option<&'a str>) {
    (&tally.contact.as_bytes()[..], cap.per.since(now, &tally.zone).as_micros(), cap.channel.as_deref())
}

fn number(rows: &[Row]) -> Result<u32, Fault> {
    let count: i64 = rows.first().ok_or(Fault::Silent)?.try_get(0)?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) async fn give_back(shared: &Shared, lease: LeaseRef, not_done: Option<&str>) -> Result<Held, Fault> {
    let (job, fence) = (lease.job.number().cast_signed(), lease.fence.0.cast_signed());
    let held = shared.hands.ask(GIVE_BACK, &[&job, &fence, &not_done.map(text)]).await?;
    Ok(if held.is_empty() { Held::Lost } else { Held::Held })
}

pub(super) async fn sent(
    shared: &Shared,
    tally: &Tally,
    but: Option<JobId>,
    now: Timestamp,
) -> Result<Vec<u32>, Fault> {
    let (now, but) = (shared.skew.to_database(now), but.map(|job| job.number().cast_signed()));
    let mut sent = Vec::with_capacity(tally.caps.len());
    for cap in &tally.caps {
        let (contact, since, channel) = counted(tally, cap, now);
        sent.push(number(&shared.eyes.ask(COUNT, &[&contact, &since, &channel, &but]).await?)?);
    }
    Ok(sent)
}

/// Those that count no more, a bounded number.
pub(super) const PRUNE: &str = "
    WITH over AS MATERIALIZED (
        SELECT job, step, contact FROM admission WHERE until <= $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM admission USING over
        WHERE admission.job = over.job AND admission.step = over.step AND admission.contact = over.contact
        RETURNING admission.job
    ) SELECT count(*) FROM gone";
