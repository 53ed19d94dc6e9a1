//! Carries out replays with a plan, a small portion at a time, so that live jobs hardly notice. What it knows is in the store: any
//! number of nodes may do it, and a kill at any moment loses nothing and repeats nothing.

use crate::house::House;
use clinch_core::audit::Who;
use clinch_core::control::Scope;
use clinch_core::id::PlanId;
use clinch_core::replay::{Next, PlanState, next};
use clinch_core::time::Timestamp;
use clinch_store::replay::{PlanRow, Plans};
use clinch_store::{ReleaseAsk, StoreError, Turn, TurnAsk};
use std::time::Duration;

/// How often it is asked whether there is a plan to carry out.
const EVERY: Duration = Duration::from_millis(500);
/// Between two portions: those who wait for the store go first.
const PAUSE: Duration = Duration::from_millis(10);
/// So many plans are asked for at a time.
const PLANS_MAX: usize = 100;

pub async fn run(house: House) {
    loop {
        let pause = match round(&house).await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::warn!("replay plans wait: {error}");
                EVERY
            }
        };
        // Spread, so that several nodes and several plans do not fall into step; rather early than late for the next moment.
        let pause = pause.mul_f64(0.75 + house.clock.dice() / 4.0);
        tokio::select! { () = house.stop.cancelled() => return, () = tokio::time::sleep(pause) => {} }
    }
}

/// Looks at every plan once, however many there are. How long until the next look.
async fn round(house: &House) -> Result<Duration, StoreError> {
    let (mut pause, mut running, mut after) = (EVERY, 0, None);
    loop {
        let plans = house.store.plans(Plans::Open { after }, PLANS_MAX).await?;
        running += plans.iter().filter(|plan| plan.state == PlanState::Running).count();
        for plan in &plans {
            let again = carry_on(house, plan.id).await?;
            pause = pause.min(again.since(house.clock.now()).max(PAUSE));
        }
        after = plans.last().map(|plan| plan.id);
        if plans.len() < PLANS_MAX {
            break;
        }
    }
    house.metrics.replay_plans.set(i64::try_from(running).unwrap_or(i64::MAX));
    Ok(pause)
}

/// When to look at it again.
async fn carry_on(house: &House, plan: PlanId) -> Result<Timestamp, StoreError> {
    let now = house.clock.now();
    let later = now + EVERY;
    let Some(reckoned) = house.store.reckon(plan, now).await? else { return Ok(later) };
    let PlanRow { state: PlanState::Running, start: Some(start), tally, next_at, .. } = reckoned.plan else {
        return Ok(later);
    };
    match next(&start.terms, &tally, reckoned.busy, next_at, now) {
        Next::Wait { until } => Ok(until),
        // What was let go now would only wait at its worker.
        Next::Release { .. } if house.controls.get().paused(&Scope::Replays, now).is_some() => Ok(later),
        Next::Release { most, moments } => {
            let looked_at = tally.looked_at();
            house.store.release(ReleaseAsk { plan, looked_at, most, moments, now }).await?;
            Ok(moments.nth(most))
        }
        Next::Stop { why } => {
            tracing::warn!("{plan} is stopped: {why}");
            end(house, plan, Turn::Stop { why }, now).await
        }
        Next::Finish => {
            tracing::info!("{plan} is done: {} success, {} noop, {} failed", tally.success, tally.noop, tally.failed);
            end(house, plan, Turn::Finish, now).await
        }
    }
}

async fn end(house: &House, plan: PlanId, to: Turn, now: Timestamp) -> Result<Timestamp, StoreError> {
    let record = Who::clinch("replay").record("", now);
    house.store.turn(TurnAsk { plan, to, record }).await?;
    Ok(now + EVERY)
}
