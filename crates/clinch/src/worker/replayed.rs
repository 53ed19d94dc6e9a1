//! A job that ended well by a replay: how long it had been dead. Asked of the store, after everything is settled.

use crate::house::House;
use clinch_core::id::JobId;
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;

pub async fn tell(house: House, job: JobId, trace: TraceId, now: Timestamp) {
    match house.store.died_at(job).await {
        Ok(Some(died_at)) => house.metrics.replayed(now.since(died_at)),
        // Its retention was short.
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(job.id = %job, trace.id = %trace, "how long {job} had been dead is not known: {error}")
        }
    }
}
