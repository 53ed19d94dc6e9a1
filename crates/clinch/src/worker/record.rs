//! What became of an effect goes into the ledger; when the job is another's by now, it is kept as evidence.

use super::end::Unwritten;
use crate::house::House;
use clinch_store::{Claim, Held, Testified, Testimony};

pub async fn conclude(house: &House, claim: &Claim, unwritten: Unwritten) -> clinch_store::Result<Held> {
    let conclusion = &unwritten.conclusion;
    let held = house.insist(|| house.store.conclude(claim.lease, conclusion.clone())).await?;
    if held == Held::Lost {
        testify(house, claim, unwritten.testimony()).await;
    }
    Ok(held)
}

/// Somebody else has the job: what is known of something that was sent is kept as evidence, and nothing is changed.
pub async fn testify(house: &House, claim: &Claim, testimony: Option<Testimony>) {
    let (job, Some(testimony)) = (claim.lease.job, testimony) else { return };
    let step = &testimony.conclusion.name;
    match house.insist(|| house.store.testify(claim.lease, testimony.clone())).await {
        Ok(Testified::Kept) => {
            tracing::info!(job.id = %job, trace.id = %claim.trace, "{job}: the late answer of step `{step}` is kept as evidence")
        }
        Ok(Testified::NotKept) => {
            tracing::info!(job.id = %job, trace.id = %claim.trace, "{job}: enough late answers of step `{step}` are kept")
        }
        Err(error) => {
            tracing::warn!(job.id = %job, trace.id = %claim.trace, "{job}: the late answer of step `{step}` is lost: {error}")
        }
    }
}
