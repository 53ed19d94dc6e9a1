//! Who pays for a retry: an attempt that is to be tried again asks the budget of its entity first.

use crate::house::House;
use crate::names;
use crate::telemetry::ByBudget;
use clinch_core::attempt::Past;
use clinch_core::budget::{RetryBudget, Spent, rule};
use clinch_core::job::Change;
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::retry::RetryPolicy;
use clinch_store::{Claim, Settlement, SpendAsk};
use std::sync::Arc;

/// Takes a unit for the retry that this settlement means, or changes what it means. Before it is written: a crash in between
/// costs a unit and never gains one.
pub async fn charge(
    house: &House,
    claim: &Claim,
    retry: &RetryPolicy,
    past: Past,
    settlement: &mut Settlement,
) -> clinch_store::Result<()> {
    let (Some(budget), Change::Retried { run_at }) = (&retry.budget, settlement.change) else { return Ok(()) };
    let labels = ByBudget { budget: (&budget.name).into() };
    let Some(entity) = entity(house, claim, budget) else {
        house.metrics.budget_without_entity.get_or_create(&labels).inc();
        return Ok(());
    };
    let now = settlement.ended_at;
    let ask = SpendAsk {
        budget: budget.name.clone(),
        entity,
        allowance: budget.allowance,
        on_exhausted: budget.on_exhausted,
        latest: retry.elapsed_max.map(|most| past.first_attempt_at + most),
        now,
    };
    let spent = house.insist(|| house.store.spend(ask.clone())).await?;
    settlement.change = rule(run_at, spent, now);
    let until = match spent {
        Spent::Granted { .. } => {
            house.metrics.budget_spent.get_or_create(&labels).inc();
            return Ok(());
        }
        Spent::Later { at } => {
            house.metrics.budget_spent.get_or_create(&labels).inc();
            at
        }
        Spent::Exhausted { until } => until,
    };
    house.metrics.budget_refusals.get_or_create(&labels).inc();
    let said = format!("the retry budget `{}` of {entity} is spent until {until}", budget.name);
    tracing::info!(job.id = %claim.lease.job, trace.id = %claim.trace, "{}: {said}", claim.lease.job);
    settlement.error = Some(settlement.error.take().map_or(said.clone(), |error| format!("{error}; {said}")));
    Ok(())
}

/// Whom the job is about. Nobody, or nobody knows: then its attempts alone bound it.
fn entity(house: &House, claim: &Claim, budget: &RetryBudget) -> Option<EntityKey> {
    let payload = Arc::new(Payload::decode(claim.payload.as_ref().ok()?).ok()?);
    let name = budget.entity(&names::of_event(claim.into(), &payload))?;
    Some(EntityKey::of(&Pepper::new(house.store.pepper()), &payload.about.tenant, &budget.name, &name))
}
