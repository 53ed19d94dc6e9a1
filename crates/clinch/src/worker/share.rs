//! Who has which places of a pool, counted while they are used.

use clinch_core::lane::Lane;
use clinch_core::share::{Room, Shares};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub struct Table {
    shares: Mutex<Shares>,
    freed: Notify,
}

/// A place that a lane has.
pub struct Share {
    lane: Lane,
    table: Arc<Table>,
}

impl Table {
    pub fn new(shares: Shares) -> Arc<Table> {
        Arc::new(Table { shares: Mutex::new(shares), freed: Notify::new() })
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn room(&self, free: usize) -> Room {
        self.shares().room(free)
    }

    pub fn take(self: &Arc<Self>, lane: Lane) -> Option<Share> {
        self.shares().take(lane).then(|| Share { lane, table: self.clone() })
    }

    /// Until somebody gives a place back.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.table.shares().give_back(self.lane);
        self.table.freed.notify_one();
    }
}
