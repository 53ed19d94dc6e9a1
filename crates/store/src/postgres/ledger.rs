//! intend, conclude: the ledger. A worker that lost its lease writes nothing into it.
//!
//! Both hold on to the job's row while they write: nobody takes the job away between the look at its fence and the line in
//! the ledger, and who takes it away afterwards sees the line.

use super::batch::Family;
use super::rows::{class_number, effect_number, effect_status, job_id, text};
use super::{Fault, Shared};
use crate::{Conclusion, Held, LeaseRef, NewEffect, Result};
use clinch_core::id::JobId;
use std::borrow::Cow;
use std::collections::HashSet;
use tokio_postgres::Row;

pub(super) struct Intents;

// BETWEEN, here and wherever jobs of the ring are found by their ids: a planner that is told `=` may walk through all that run
// or all that live instead, for they are few; and so through what is left of all that ever did.
// An effect that is done is not intended again: whoever asks has an older picture of the job, and must not send.
// Nor does anybody begin under a lease that was given back in his absence, even if nobody has taken the job up yet.
pub(super) const INTEND: &str = "
    WITH intending AS MATERIALIZED (
        SELECT asked.* FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::smallint[], $5::bigint[])
            AS asked (job, fence, name, class, at)
        JOIN job ON job.id BETWEEN asked.job AND asked.job AND job.slot BETWEEN 1 AND 3
        WHERE job.state BETWEEN 4 AND 4 AND job.fence = asked.fence AND job.node IS NOT NULL
        ORDER BY asked.job FOR SHARE OF job
    )
    INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence)
    SELECT job, name, coalesce(last.no, 0) + 1, class, 0, coalesce(last.first_intended_at, at), at,
           coalesce(last.sends, 0) + 1, fence
    FROM intending LEFT JOIN LATERAL (
        SELECT no, state, first_intended_at, sends FROM effect
        WHERE effect.job = intending.job AND effect.name = intending.name ORDER BY no DESC LIMIT 1
    ) AS last ON true
    WHERE last.state IS DISTINCT FROM 1
    RETURNING job";

impl Family for Intents {
    type Ask = (LeaseRef, NewEffect);
    type Answer = Held;

    fn touches((lease, _): &Self::Ask) -> Option<u64> {
        Some(lease.job.number())
    }

    async fn write(shared: &Shared, asks: &[Self::Ask]) -> std::result::Result<Vec<Result<Held>>, Fault> {
        let leases = || asks.iter().map(|(lease, _)| lease);
        let (jobs, fences) = columns(leases());
        let names: Vec<Cow<'_, str>> = asks.iter().map(|(_, effect)| text(&effect.name)).collect();
        let classes: Vec<i16> = asks.iter().map(|(_, effect)| class_number(effect.class)).collect();
        let at: Vec<i64> = asks.iter().map(|(_, effect)| effect.at.as_micros()).collect();
        let rows = shared.hands.ask(INTEND, &[&jobs, &fences, &names, &classes, &at]).await?;
        answers(leases(), &rows)
    }
}

pub(super) struct Conclusions;

const CONCLUDE: &str = "
    WITH held AS MATERIALIZED (
        SELECT asked.* FROM unnest(
            $1::bigint[], $2::bigint[], $3::text[], $4::smallint[], $5::bigint[], $6::integer[], $7::bytea[]
        ) AS asked (job, fence, name, state, at, status, body)
        JOIN job ON job.id BETWEEN asked.job AND asked.job AND job.slot BETWEEN 1 AND 3
        WHERE job.state BETWEEN 4 AND 4 AND job.fence = asked.fence
        ORDER BY asked.job FOR SHARE OF job
    ), written AS (
        INSERT INTO effect (job, name, no, class, state, first_intended_at, changed_at, sends, fence, status, body)
        SELECT last.job, last.name, last.no + 1, last.class, held.state, last.first_intended_at, held.at, last.sends,
               last.fence, held.status, held.body
        FROM held CROSS JOIN LATERAL (
            SELECT * FROM effect WHERE effect.job = held.job AND effect.name = held.name ORDER BY no DESC LIMIT 1
        ) AS last
    )
    SELECT job FROM held";

impl Family for Conclusions {
    type Ask = (LeaseRef, Conclusion);
    type Answer = Held;

    fn touches((lease, _): &Self::Ask) -> Option<u64> {
        Some(lease.job.number())
    }

    async fn write(shared: &Shared, asks: &[Self::Ask]) -> std::result::Result<Vec<Result<Held>>, Fault> {
        let leases = || asks.iter().map(|(lease, _)| lease);
        let ends = || asks.iter().map(|(_, end)| end);
        let (jobs, fences) = columns(leases());
        let names: Vec<Cow<'_, str>> = ends().map(|end| text(&end.name)).collect();
        let states: Vec<i16> = ends().map(|end| effect_number(&end.state)).collect();
        let at: Vec<i64> = ends().map(|end| end.at.as_micros()).collect();
        let statuses: Vec<Option<i32>> = ends().map(|end| effect_status(&end.state)).collect();
        let bodies: Vec<Option<Vec<u8>>> =
            asks.iter().map(|(lease, end)| shared.sealer.result(lease.job, end)).collect();
        let bodies: Vec<Option<&[u8]>> = bodies.iter().map(Option::as_deref).collect();
        let rows = shared.hands.ask(CONCLUDE, &[&jobs, &fences, &names, &states, &at, &statuses, &bodies]).await?;
        answers(leases(), &rows)
    }
}

pub(super) fn columns<'a>(leases: impl Iterator<Item = &'a LeaseRef>) -> (Vec<i64>, Vec<i64>) {
    leases.map(|lease| (lease.job.number().cast_signed(), lease.fence.0.cast_signed())).unzip()
}

/// Whose job comes back held it. A job is in a batch once.
pub(super) fn answers<'a>(
    leases: impl Iterator<Item = &'a LeaseRef>,
    rows: &[Row],
) -> std::result::Result<Vec<Result<Held>>, Fault> {
    let held: HashSet<JobId> = rows.iter().map(|row| job_id(row, 0)).collect::<std::result::Result<_, _>>()?;
    Ok(leases.map(|lease| Ok(if held.contains(&lease.job) { Held::Held } else { Held::Lost })).collect())
}
