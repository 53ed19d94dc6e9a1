//! testify: what a worker learned after its job was another's, kept beside the ledger.

use super::pool::Line;
use super::rows::{self, DONE, effect_number, text};
use super::{Fault, Shared};
use crate::{LATE_ANSWERS_MAX, LeaseRef, Testified, Testimony};
use clinch_core::effect::LateAnswer;
use clinch_core::id::JobId;
use clinch_core::job::Fence;
use clinch_core::seal::FORGOTTEN;

// The row of the job is held, so that nobody removes it meanwhile. The same worker may say it twice. Of an event that was
// forgotten nothing new is kept.
const TESTIFY: &str = "
    WITH held AS MATERIALIZED (
        SELECT id, event FROM job WHERE id = $1 FOR KEY SHARE
    )
    INSERT INTO late_answer (job, name, fence, at, state, status, body)
    SELECT held.id, $2, $3, $4, $5, $6,
           CASE WHEN $7::bytea IS NOT NULL AND event.payload = $8 THEN $8 ELSE $7 END
    FROM held JOIN event ON event.id = held.event
    WHERE EXISTS (SELECT FROM effect WHERE effect.job = $1 AND effect.name = $2)
        AND (SELECT count(*) FROM late_answer WHERE job = $1 AND name = $2 AND fence <> $3) < $9
    ON CONFLICT (job, name, fence) DO UPDATE SET at = late_answer.at
    RETURNING job";

pub(super) async fn testify(shared: &Shared, lease: LeaseRef, testimony: &Testimony) -> Result<Testified, Fault> {
    let end = &testimony.conclusion;
    let body = shared.sealer.result(lease.job, end);
    // A second time, if the job was just on its way to where those are that have ended: who waits for it then finds nothing.
    for _ in 0..2 {
        let kept = shared
            .hands
            .ask(
                TESTIFY,
                &[
                    &lease.job.number().cast_signed(),
                    &text(&end.name),
                    &lease.fence.0.cast_signed(),
                    &end.at.as_micros(),
                    &effect_number(&end.state),
                    &testimony.status.map(i32::from),
                    &body.as_deref(),
                    &&FORGOTTEN[..],
                    &LATE_ANSWERS_MAX,
                ],
            )
            .await?;
        if !kept.is_empty() {
            return Ok(Testified::Kept);
        }
    }
    Ok(Testified::NotKept)
}

/// In the order in which they came, with answers as they are stored.
pub(super) async fn of(line: &mut Line, job: JobId) -> Result<Vec<LateAnswer>, Fault> {
    let sql = "SELECT name, fence, at, state, status, body FROM late_answer WHERE job = $1
               ORDER BY at, name COLLATE \"C\", fence";
    let found = line.query(sql, &[&job.number().cast_signed()]).await?;
    let mut late = Vec::with_capacity(found.len());
    for row in &found {
        let (number, status) = (row.try_get(3)?, rows::status(row, 4)?);
        late.push(LateAnswer {
            step: row.try_get(0)?,
            fence: Fence(rows::big_count(row, 1)?),
            at: rows::time(row, 2)?,
            state: rows::effect_state(number, status.filter(|_| number == DONE), || row.try_get(5))?,
            status,
        });
    }
    Ok(late)
}
