//! What every room is given. Rooms meet in the store, never in each other.

use crate::chores::Chores;
use crate::clock::Clock;
use crate::controls::LiveControls;
use crate::encryption::Keys;
use crate::geoip::Geoip;
use crate::minutes::Minutes;
use crate::rehearsal::Detour;
use crate::rejections::Rejections;
use crate::reload::Reload;
use crate::secrets::Secrets;
use crate::senders::Senders;
use crate::telemetry::Metrics;
use crate::tracer::Tracer;
use crate::workspace::Versions;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::egress::Egress;
use clinch_core::saga::Ended;
use clinch_store::{Conclusion, Held, LeaseRef, NewEffect, Seen, Store, StoreError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub struct House {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// Who is told of traces, if anybody is.
    pub tracer: Arc<Tracer>,
    pub versions: Arc<Versions>,
    pub secrets: Arc<Secrets>,
    pub geoip: Arc<Geoip>,
    pub rejections: Arc<Rejections>,
    /// What was counted here, minute by minute.
    pub minutes: Arc<Minutes>,
    pub senders: Arc<Senders>,
    /// What operators have switched.
    pub controls: Arc<LiveControls>,
    /// What this node keeps besides the store is in here.
    pub directory: PathBuf,
    /// Where steps may call.
    pub egress: Arc<Egress>,
    /// In a rehearsal: where calls go instead.
    pub detour: Option<Arc<Detour>>,
    pub keys: Arc<Keys>,
    pub chores: Arc<Chores>,
    /// What became of the last workspace that was read.
    pub reload: Arc<Reload>,
    /// Cancelled when the house is to be left: nothing new is begun.
    pub stop: CancellationToken,
}

/// How long a store that could not write is left alone before it is asked again.
const INSIST_PAUSE: Duration = Duration::from_millis(250);

impl House {
    /// Begins the line that says that a job has ended and is undone from now on. It counts when it is concluded as is answered.
    /// `None`: somebody else has the job now.
    pub async fn mark_ended(
        &self,
        lease: LeaseRef,
        replays: u32,
        ended: &Ended,
    ) -> clinch_store::Result<Option<Conclusion>> {
        let name: Arc<str> = Ended::name(replays).into();
        let line = NewEffect { name: name.clone(), class: Idempotency::Natural, at: ended.at };
        if self.insist(|| self.store.intend(lease, line.clone())).await? == Held::Lost {
            return Ok(None);
        }
        crate::crash::point("after_mark");
        Ok(Some(Conclusion { name, state: EffectState::Done(ended.receipt()), at: ended.at }))
    }

    /// That somebody used what recognises him is worth a note, and no refusal where it cannot be taken.
    pub async fn saw(&self, secret: Seen) {
        if let Err(error) = self.store.saw(secret, self.clock.now()).await {
            tracing::debug!("that somebody came was not noted: {error}");
        }
    }

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
