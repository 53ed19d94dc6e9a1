//! The heartbeat: a slow but living worker is not robbed of its jobs.

use crate::house::House;
use clinch_store::{Held, LeaseRef};
use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

pub struct Leases {
    house: House,
    length: Duration,
    held: Mutex<HashSet<LeaseRef>>,
}

impl Leases {
    pub fn new(house: House, length: Duration) -> Self {
        Leases { house, length, held: Mutex::default() }
    }

    pub fn add(&self, lease: LeaseRef) {
        self.held().insert(lease);
    }

    pub fn remove(&self, lease: LeaseRef) {
        self.held().remove(&lease);
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashSet<LeaseRef>> {
        self.held.lock().expect("nobody panics while holding the leases")
    }

    /// Renews all of them three times per lease, until aborted.
    pub async fn keep(self: std::sync::Arc<Self>) {
        loop {
            tokio::time::sleep(self.length / 3).await;
            let leases: Vec<LeaseRef> = self.held().iter().copied().collect();
            if leases.is_empty() {
                continue;
            }
            match self.house.store.renew(&leases, self.house.clock.now() + self.length).await {
                Ok(answers) => {
                    // Settled in this very moment, or taken over: either way there is nothing left to renew.
                    for (lease, _) in leases.iter().zip(answers).filter(|(_, answer)| *answer == Held::Lost) {
                        self.remove(*lease);
                    }
                }
                Err(error) => tracing::warn!("leases could not be renewed: {error}"),
            }
        }
    }
}
