//! recall: who waits for something that is over is due at once.

use super::{Fault, Shared, lanes, rows};
use crate::RecallAsk;
use clinch_core::id::JobId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Those that are being changed by others are not waiting any more.
const RECALL: &str = "
    UPDATE job SET run_at = $3
    FROM (SELECT id, slot FROM job WHERE id = ANY($1) AND slot BETWEEN 1 AND 3 AND state IN (0, 5) AND waits = $2 AND run_at > $3
          ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS waiting
    WHERE job.id BETWEEN waiting.id AND waiting.id AND job.slot = waiting.slot RETURNING job.queue";

pub(super) async fn recall(shared: &Shared, ask: &RecallAsk) -> Result<Option<JobId>, Fault> {
    let (waits, now) = (ask.waits.number(), shared.skew.to_database(ask.now));
    let after = ask.after.map_or(0, |job| job.number().cast_signed());
    let mut line = shared.hands.line().await?;
    let sql = "SELECT id FROM job WHERE slot BETWEEN 1 AND 3 AND state IN (0, 5) AND waits = $1 AND id > $2 ORDER BY id LIMIT $3";
    let found = line.query(sql, &[&waits, &after, &(ask.most as i64)]).await?;
    let jobs: Vec<i64> = found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let Some(last) = jobs.last() else { return Ok(None) };
    line.begin().await?;
    let recalled = line.query(RECALL, &[&jobs, &waits, &now.as_micros()]).await?;
    lanes::hasten(&mut line, &jobs, now).await?;
    line.commit().await?;
    let queues: BTreeSet<Arc<str>> = recalled.iter().map(|row| rows::name(row, 0)).collect::<Result<_, _>>()?;
    for queue in &queues {
        shared.wake.ready(queue, ask.now);
        shared.wake.later(queue, ask.now);
    }
    Ok((jobs.len() == ask.most).then(|| JobId::from_number(last.cast_unsigned())))
}
