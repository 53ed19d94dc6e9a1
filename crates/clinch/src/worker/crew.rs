//! Who works: a pool for each queue of the live workspace, and for queues of older ones that jobs were accepted with.

use super::pool::{self, Pool};
use crate::effects::Gate;
use crate::house::House;
use clinch_core::config::Workspace;
use clinch_store::VersionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How often to look whether a job of an older workspace lives again, for a queue that nobody serves.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the stop, then waits up to `grace` for jobs under way.
pub async fn run(house: House, gate: Arc<Gate>, grace: Duration) {
    let mut changes = house.versions.changes();
    let mut crew =
        Crew { gate, pools: TaskTracker::new(), served: BTreeMap::new(), seen: BTreeSet::new(), live: None, house };
    while !crew.house.stop.is_cancelled() {
        crew.follow();
        crew.look().await;
        tokio::select! {
            () = crew.house.stop.cancelled() => {}
            // The sender lives as long as the house.
            _ = changes.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
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
    /// What each queue is served like, and what sends its pool home.
    served: BTreeMap<String, (Pool, CancellationToken)>,
    seen: BTreeSet<VersionId>,
    /// The workspace that decides how wide the pools are.
    live: Option<VersionId>,
}

impl Crew {
    /// The live workspace decides how wide a pool is; a pool of another width is put in the place of the old one, which ends when
    /// what it has begun is done.
    fn follow(&mut self) {
        let now = self.house.versions.state();
        if self.live == Some(now.live) {
            return;
        }
        self.live = Some(now.live);
        self.seen.insert(now.live);
        for pool in pools(&now.plain) {
            match self.served.get(&*pool.queue) {
                Some((known, _)) if *known == pool => {}
                Some((_, leave)) => {
                    leave.cancel();
                    self.hire(pool);
                }
                None => self.hire(pool),
            }
        }
    }

    async fn look(&mut self) {
        for version in self.house.store.live_versions() {
            if self.seen.contains(&version) {
                continue;
            }
            // A version that cannot be had now is asked for again at the next look.
            if let Ok(found) = self.house.versions.get(version, &*self.house.store).await {
                self.seen.insert(version);
                for pool in found.iter().flat_map(|workspace| pools(workspace)).collect::<Vec<_>>() {
                    if !self.served.contains_key(&*pool.queue) {
                        self.hire(pool);
                    }
                }
            }
        }
    }

    fn hire(&mut self, pool: Pool) {
        let leave = self.house.stop.child_token();
        self.served.insert(pool.queue.to_string(), (pool.clone(), leave.clone()));
        self.pools.spawn(pool::serve(self.house.clone(), self.gate.clone(), pool, leave));
    }
}

fn pools(workspace: &Workspace) -> impl Iterator<Item = Pool> {
    workspace.queues.iter().filter_map(|queue| {
        let worker = workspace.worker_for(&queue.name)?;
        Some(Pool {
            queue: Arc::from(queue.name.as_str()),
            concurrency: worker.concurrency,
            is_shared: workspace.is_shared(&queue.name),
            visibility_timeout: queue.visibility_timeout,
        })
    })
}
