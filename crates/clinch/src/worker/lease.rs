//! The heartbeat: a slow but living worker is not robbed of its jobs. And what it knows of its leases without asking.

use crate::house::House;
use clinch_core::term::Term;
use clinch_store::{Held, LeaseRef};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub struct Leases {
    house: House,
    length: Duration,
    held: Mutex<HashMap<LeaseRef, Term>>,
}

impl Leases {
    pub fn new(house: House, length: Duration) -> Self {
        Leases { house, length, held: Mutex::default() }
    }

    /// `asked_at` is from before the claim was sent: the lease cannot have begun earlier.
    pub fn add(&self, lease: LeaseRef, asked_at: Instant) {
        self.held().insert(lease, Term::asked_at(asked_at, self.length));
    }

    pub fn remove(&self, lease: LeaseRef) {
        self.held().remove(&lease);
    }

    /// How long it is surely ours; `None` if it is known not to be.
    pub fn term(&self, lease: LeaseRef) -> Option<Term> {
        self.held().get(&lease).copied()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseRef, Term>> {
        self.held.lock().expect("nobody panics while holding the leases")
    }

    /// Renews all of them three times per lease, until aborted.
    pub async fn keep(self: std::sync::Arc<Self>) {
        loop {
            tokio::time::sleep(self.length / 3).await;
            let leases: Vec<LeaseRef> = self.held().keys().copied().collect();
            if leases.is_empty() {
                continue;
            }
            let (asked_at, now) = (self.house.clock.instant(), self.house.clock.now());
            match self.house.store.renew(&leases, now + self.length).await {
                Ok(answers) => self.heard(leases.iter().copied().zip(answers), asked_at),
                Err(error) => tracing::warn!("leases could not be renewed: {error}"),
            }
        }
    }

    fn heard(&self, answers: impl Iterator<Item = (LeaseRef, Held)>, asked_at: Instant) {
        let mut held = self.held();
        for (lease, answer) in answers {
            match answer {
                Held::Held => {
                    if let Some(term) = held.get_mut(&lease) {
                        *term = term.renewed(asked_at, self.length);
                    }
                }
                // Settled in this very moment, or taken over: either way there is nothing left to renew.
                Held::Lost => {
                    held.remove(&lease);
                }
            }
        }
    }
}
