//! Takes jobs back from workers that are gone, and settles them as lost.

use crate::budget;
use crate::house::House;
use crate::tally;
use crate::telemetry::{self, ByFlow, Label};
use crate::tracer;
use clinch_core::attempt::{Outcome, Past, verdict};
use clinch_core::effect::{Effect, EffectState};
use clinch_core::fanout::{Begun, Life, begun};
use clinch_core::job::Change;
use clinch_core::retry::RetryPolicy;
use clinch_core::saga::{self, Ended};
use clinch_store::{Claim, Conclusion, Held, Settlement};
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
    let workspace = house.versions.get(claim.version, &*house.store).await?;
    let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&claim.queue));
    let life = Life { replays: claim.replays, failures: claim.failures, began: claim.first_attempt_at };
    let Begun { open: class, failures } = begun(worker, &claim.effects, life);
    let outcome = Outcome::Lost { open: class };
    let undoing_since = Ended::of(&claim.effects, claim.replays).map(|ended| ended.at);
    let past = Past {
        failures: failures.unwrap_or(claim.failures),
        first_attempt_at: undoing_since.or(claim.first_attempt_at).unwrap_or(now),
    };
    let retry = worker.map_or_else(RetryPolicy::default, |worker| worker.retry.clone());
    let change = verdict(&outcome, past, &retry, now, house.clock.dice());
    let mut opened = claim.effects.iter().filter(|effect| effect.state == EffectState::Open);
    let open = opened.next();
    let closed = |effect: &Effect| {
        let state = if saga::is_end(&effect.name) { EffectState::NotDone } else { EffectState::Unknown };
        Conclusion { name: effect.name.as_str().into(), state, at: now }
    };
    // Branches may have begun several; the end of the attempt carries one.
    for other in opened {
        if house.store.conclude(claim.lease, closed(other)).await? == Held::Lost {
            return Ok(());
        }
    }
    let started_at = open.map_or(now, |effect| effect.changed_at);
    let mut settlement = Settlement::of(&outcome, change, started_at, now, open.map(closed));
    // What undoes a job is nobody's retry.
    if undoing_since.is_none() {
        budget::charge(house, claim, &retry, past, &mut settlement).await?;
    }
    if let Change::Buried { reason, .. } = settlement.change
        && worker.is_some_and(|worker| saga::ends_in_undoing(worker, &claim.effects, claim.replays))
    {
        let error = settlement.error.clone().unwrap_or_default();
        let ended = Ended { reason, error, failures: claim.failures.saturating_add(1), at: now };
        let Some(line) = house.mark_ended(claim.lease, claim.replays, &ended).await? else { return Ok(()) };
        (settlement.change, settlement.conclusion) = (Change::Retried { run_at: now }, Some(line));
    }
    let counts = workspace.as_deref().is_some_and(|workspace| worker.is_some_and(|worker| workspace.counts(worker)));
    if counts {
        tally::give_back(house, claim.lease, &settlement).await?;
    }
    let change = settlement.change;
    if house.store.settle(claim.lease, settlement).await? == Held::Held {
        let step = open.map_or(Label::from(""), |effect| (&effect.name).into());
        let (failure, slo) = (outcome.failure(), house.versions.now().settings.slo);
        let (step, failure) = (&step, failure.as_ref());
        house.metrics.report(telemetry::Ended { claim, step, change, failure, slo, example: None, now });
        let settled = house.clock.now();
        let lost = tracer::Ended { outcome: &outcome, change, began: started_at, ended: now, settled };
        house.tracer.lost(claim, lost);
    }
    Ok(())
}
