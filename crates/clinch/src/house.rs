//! What every room is given. Rooms meet in the store, never in each other.

use crate::chores::Chores;
use crate::clock::Clock;
use crate::encryption::Keys;
use crate::geoip::Geoip;
use crate::rejections::Rejections;
use crate::secrets::Secrets;
use crate::senders::Senders;
use crate::telemetry::Metrics;
use crate::workspace::Versions;
use clinch_core::egress::Egress;
use clinch_store::{Store, StoreError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub struct House {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    pub versions: Arc<Versions>,
    pub secrets: Arc<Secrets>,
    pub geoip: Arc<Geoip>,
    pub rejections: Arc<Rejections>,
    pub senders: Arc<Senders>,
    /// What this node keeps besides the store is in here.
    pub directory: PathBuf,
    /// Where steps may call.
    pub egress: Arc<Egress>,
    pub keys: Arc<Keys>,
    pub chores: Arc<Chores>,
    /// Cancelled when the house is to be left: nothing new is begun.
    pub stop: CancellationToken,
}

/// How long a store that could not write is left alone before it is asked again.
const INSIST_PAUSE: Duration = Duration::from_millis(250);

impl House {
    /// What was done must be written down: asks until the store can write, or is gone for good, or we leave.
    pub async fn insist<T, F>(&self, verb: impl Fn() -> F) -> clinch_store::Result<T>
    where
        F: Future<Output = clinch_store::Result<T>>,
    {
        loop {
            match verb().await {
                Err(StoreError::Unavailable(why)) if !self.stop.is_cancelled() => {
                    tracing::debug!("the store is asked again: {why}");
                    tokio::time::sleep(INSIST_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}
