//! Takes jobs back from workers that are gone, and settles them as lost.

use crate::house::House;
use crate::telemetry::{ByFlow, Label};
use clinch_core::attempt::{Outcome, Past, verdict};
use clinch_core::effect::EffectState;
use clinch_core::retry::RetryPolicy;
use clinch_store::{Claim, Conclusion, Held, Settlement};
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
const BATCH: usize = 256;
/// The reaper's own lease while it settles.
const LEASE: Duration = Duration::from_secs(30);

pub async fn run(house: House) {
    loop {
        if let Err(error) = round(&house).await {
            tracing::warn!("lost jobs could not be taken back: {error}");
        }
        tokio::select! {
            () = house.stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Settles every job whose lease is over.
async fn round(house: &House) -> clinch_store::Result<()> {
    loop {
        let now = house.clock.now();
        let lost = house.store.lapse(now, BATCH, now + LEASE).await?;
        let full = lost.len() == BATCH;
        for claim in lost {
            house.metrics.lease_expirations.get_or_create(&ByFlow { flow: (&claim.flow).into() }).inc();
            settle(house, &claim).await?;
        }
        if !full {
            return Ok(());
        }
    }
}

async fn settle(house: &House, claim: &Claim) -> clinch_store::Result<()> {
    let now = house.clock.now();
    let open = claim.effects.iter().find(|effect| effect.state == EffectState::Open);
    let outcome = Outcome::Lost { open: open.map(|effect| effect.class) };
    let workspace = house.versions.get(claim.version, &*house.store).await?;
    let retry = workspace
        .as_deref()
        .and_then(|workspace| workspace.worker_for(&claim.queue))
        .map(|worker| worker.retry.clone());
    let past = Past { failures: claim.failures, first_attempt_at: claim.first_attempt_at.unwrap_or(now) };
    let change = verdict(&outcome, past, &retry.unwrap_or_else(RetryPolicy::default), now, house.clock.dice());
    let conclusion =
        open.map(|effect| Conclusion { name: Arc::from(effect.name.as_str()), state: EffectState::Unknown, at: now });
    let started_at = open.map_or(now, |effect| effect.changed_at);
    let settlement = Settlement::of(&outcome, change, started_at, now, conclusion);
    if house.store.settle(claim.lease, settlement).await? == Held::Held {
        let step = open.map_or(Label::from(""), |effect| (&effect.name).into());
        house.metrics.report(claim, &step, change, outcome.failure().as_ref(), now);
    }
    Ok(())
}
