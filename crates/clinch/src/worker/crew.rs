//! Who works: a pool for each queue of the live workspace, and for queues of older ones that jobs were accepted with.

use super::pool::{self, Pool};
use crate::effects::Gate;
use crate::house::House;
use clinch_core::config::Workspace;
use clinch_store::VersionId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::TaskTracker;

/// How often to look whether a job of an older workspace lives again, for a queue that nobody serves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the stop, then waits up to `grace` for jobs under way.
pub async fn run(house: House, gate: Arc<Gate>, grace: Duration) {
    let mut crew = Crew {
        gate,
        pools: TaskTracker::new(),
        served: BTreeSet::new(),
        seen: BTreeSet::from([house.versions.live]),
        house,
    };
    // The live workspace comes first: it decides how wide a pool is.
    crew.hire(&crew.house.versions.workspace.clone());
    while !crew.house.stop.is_cancelled() {
        crew.look().await;
        tokio::select! { () = crew.house.stop.cancelled() => {}, () = tokio::time::sleep(LOOK_EVERY) => {} }
    }
    crew.pools.close();
    if tokio::time::timeout(grace, crew.pools.wait()).await.is_err() {
        tracing::warn!("jobs were still under way after {grace:?}; what they had begun to send is unknown");
    }
}

struct Crew {
    house: House,
    gate: Arc<Gate>,
    pools: TaskTracker,
    served: BTreeSet<String>,
    seen: BTreeSet<VersionId>,
}

impl Crew {
    async fn look(&mut self) {
        for version in self.house.store.live_versions() {
            if self.seen.contains(&version) {
                continue;
            }
            // A version that cannot be had now is asked for again at the next look.
            if let Ok(found) = self.house.versions.get(version, &*self.house.store).await {
                self.seen.insert(version);
                if let Some(workspace) = found {
                    self.hire(&workspace);
                }
            }
        }
    }

    fn hire(&mut self, workspace: &Workspace) {
        for queue in &workspace.queues {
            if let Some(worker) = workspace.worker_for(&queue.name)
                && self.served.insert(queue.name.clone())
            {
                let pool = Pool {
                    queue: Arc::from(queue.name.as_str()),
                    concurrency: worker.concurrency,
                    is_shared: workspace.is_shared(&queue.name),
                    visibility_timeout: queue.visibility_timeout,
                };
                self.pools.spawn(pool::serve(self.house.clone(), self.gate.clone(), pool));
            }
        }
    }
}
