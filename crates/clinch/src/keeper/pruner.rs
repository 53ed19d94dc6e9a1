//! Removes what has outlived its retention, a little at a time.

use crate::house::House;
use crate::telemetry::ByKind;
use clinch_core::config::Workspace;
use clinch_core::flow::QUEUE_RETENTION_DEFAULT;
use clinch_store::Retention;
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(10);
/// Rows looked at in one transaction.
const BATCH: usize = 500;
/// Between two transactions of one round: those who wait for the writer go first.
const PAUSE: Duration = Duration::from_millis(5);

pub async fn run(house: House) {
    loop {
        let retention = retention_of(&house.versions.workspace());
        match house.store.prune(house.clock.now(), retention, BATCH).await {
            Ok(pruned) => {
                for (kind, rows) in [("jobs", pruned.jobs), ("events", pruned.events), ("keys", pruned.keys)] {
                    house.metrics.retention_deleted.get_or_create(&ByKind { kind: kind.into() }).inc_by(rows);
                }
                let pause = if pruned.finished { EVERY } else { PAUSE };
                tokio::select! { () = house.stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
            }
            Err(error) => {
                tracing::debug!("nothing was pruned: {error}");
                tokio::select! { () = house.stop.cancelled() => return, () = tokio::time::sleep(EVERY) => {} }
            }
        }
    }
}

/// Finished jobs are kept as long as their queue says; dead ones as long as their dead letter queue says.
fn retention_of(workspace: &Workspace) -> Retention {
    let mut retention = Retention { default: QUEUE_RETENTION_DEFAULT, ..Retention::default() };
    for queue in &workspace.queues {
        retention.finished.push((Arc::from(queue.name.as_str()), queue.retention));
        let dead = workspace.worker_for(&queue.name).and_then(|worker| worker.dead_letters.as_deref());
        let kept = dead.and_then(|name| workspace.queue(name)).map_or(queue.retention, |dead| dead.retention);
        retention.dead.push((Arc::from(queue.name.as_str()), kept));
    }
    retention
}
