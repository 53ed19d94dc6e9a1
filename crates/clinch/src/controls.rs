//! What operators have switched, as this node knows it: at once what was switched here, and within a moment what was switched
//! on another node.

use crate::clock::Clock;
use crate::house::House;
use crate::workspace::Versions;
use clinch_core::audit::Who;
use clinch_core::breaker::Away;
use clinch_core::control::{Controls, Pause, ask_again};
use clinch_core::job::Waits;
use clinch_core::safe_mode::{SafeMode, Trip};
use clinch_core::time::Timestamp;
use clinch_store::{RecallAsk, SteerAsk, Steered, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How soon is known here what was switched elsewhere.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// So many of those who wait are looked at in one go.
const RECALL_MAX: usize = 1_000;

pub struct LiveControls {
    now: watch::Sender<Arc<Controls>>,
    /// Those who were sent away, by what sent them.
    away: Mutex<HashMap<Arc<str>, Away>>,
    /// They follow what is set.
    versions: Arc<Versions>,
    /// Held by the one who looks: what was seen last is what counts.
    looking: tokio::sync::Mutex<()>,
}

impl LiveControls {
    pub async fn load(
        store: &dyn Store,
        versions: Arc<Versions>,
        now: Timestamp,
    ) -> clinch_store::Result<LiveControls> {
        let (now_known, away, looking) = Default::default();
        let controls = LiveControls { now: now_known, away, versions, looking };
        controls.look(store, now).await?;
        Ok(controls)
    }

    /// As they are now.
    pub fn get(&self) -> Arc<Controls> {
        self.now.borrow().clone()
    }

    /// Ends when something is switched after this call.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut now = self.now.subscribe();
        async move {
            // The sender lives as long as the house.
            let _ = now.changed().await;
        }
    }

    /// Switches something, here from this moment on.
    pub async fn steer(&self, store: &dyn Store, ask: SteerAsk) -> clinch_store::Result<Steered> {
        let now = ask.record.at;
        let steered = store.steer(ask).await?;
        self.look(store, now).await?;
        Ok(steered)
    }

    async fn look(&self, store: &dyn Store, now: Timestamp) -> clinch_store::Result<()> {
        let _looking = self.looking.lock().await;
        let rows = store.controls().await?;
        let controls = Controls::of(&rows);
        self.versions.follow(controls.live(now));
        self.now.send_if_modified(|now| {
            let is_new = **now != controls;
            if is_new {
                *now = Arc::new(controls);
            }
            is_new
        });
        self.away().retain(|name, _| rows.iter().any(|row| row.name == *name));
        Ok(())
    }

    /// When a job comes back that a pause sends away.
    pub fn resumed_at(&self, pause: &Pause, clock: &dyn Clock) -> Timestamp {
        self.back_at(&pause.scope.control(), pause.since, pause.until, clock)
    }

    /// When a job comes back that safe mode holds.
    pub fn safe_at(&self, mode: &SafeMode, clock: &dyn Clock) -> Timestamp {
        self.back_at(&mode.scope.control(), mode.since, mode.until, clock)
    }

    /// The circuit of an integration opened: where the workspace says so, that turns safe mode on.
    pub fn circuit_opened(&self, house: &House, integration: &Arc<str>) {
        let workspace = house.versions.workspace();
        if let Some(trip) = workspace.settings.safe_mode.trip.as_ref().filter(|trip| trip.minds_circuit(integration)) {
            self.trip(house, trip, integration, format!("the circuit of integration `{integration}` opened"));
        }
    }

    /// As many calls of an integration fail as the workspace says.
    pub fn too_many_errors(&self, house: &House, integration: &Arc<str>) {
        if let Some(trip) = &house.versions.workspace().settings.safe_mode.trip {
            self.trip(house, trip, integration, format!("too many calls of integration `{integration}` failed"));
        }
    }

    /// Turns safe mode on, unless it is. Whoever called out does not wait for that.
    fn trip(&self, house: &House, trip: &Trip, integration: &Arc<str>, reason: String) {
        let (now, scope) = (house.clock.now(), trip.scope(integration));
        let controls = self.get();
        let known = controls.safe_mode_of(&scope);
        if known.is_some_and(|mode| mode.is_on(now)) {
            return;
        }
        let ask = SteerAsk {
            name: scope.control(),
            value: Some(SafeMode::on(&reason, now)),
            until: trip.lasts.map(|lasts| now + lasts),
            // Another node, or another call, may have been faster.
            expect: Some(known.map_or(0, |mode| mode.version)),
            action: "safe_mode.trip",
            record: Who::clinch("worker").record(reason, now),
        };
        let house = house.clone();
        tokio::spawn(async move {
            match house.controls.steer(&*house.store, ask).await {
                Ok(Steered::Steered { .. }) => {
                    house.metrics.safe_mode_tripped(&scope);
                    tracing::warn!(
                        "safe mode is on for {scope}: what cannot be taken back waits; `clinch safe-mode off` ends it"
                    );
                }
                Ok(Steered::Conflict(_)) => {}
                Err(error) => tracing::error!("safe mode could not be turned on for {scope}: {error}"),
            }
        });
    }

    /// When a job comes back that the control of this name sends away.
    fn back_at(&self, name: &Arc<str>, since: Timestamp, until: Option<Timestamp>, clock: &dyn Clock) -> Timestamp {
        let now = clock.now();
        let again = ask_again(since, until, now);
        self.away().entry(name.clone()).or_default().back_at(again, again.since(now), clock.dice())
    }

    fn away(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks until the house is left. While the store is away, what is known still counts.
pub async fn run(house: House) {
    let mut seen = house.controls.get();
    let mut lifted = Vec::new();
    loop {
        let changed = house.controls.changed();
        // Looked at again: what was switched before it was listened for is not missed.
        if house.controls.get() == seen {
            tokio::select! {
                () = house.stop.cancelled() => return,
                () = changed => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        if let Err(error) = house.controls.look(&*house.store, house.clock.now()).await {
            tracing::debug!("what operators switched could not be read: {error}");
        }
        let now = house.controls.get();
        let just_lifted = now.lifted(&seen, house.clock.now());
        // Once more at the next look: who was being sent away at that moment is found then.
        for waits in std::mem::replace(&mut lifted, just_lifted.clone()).into_iter().chain(just_lifted) {
            if let Err(error) = recall(&house, waits).await {
                tracing::warn!("who waited comes back by and by: {error}");
            }
        }
        seen = now;
    }
}

/// Who waits for something that is over comes back now, a bounded number at a time.
async fn recall(house: &House, waits: Waits) -> clinch_store::Result<()> {
    let mut after = None;
    loop {
        let ask = RecallAsk { waits, after, most: RECALL_MAX, now: house.clock.now() };
        after = house.store.recall(ask).await?;
        if after.is_none() || house.stop.is_cancelled() {
            return Ok(());
        }
    }
}
