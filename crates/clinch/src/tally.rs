//! What policies have counted for a job that ends; asked by whoever settles one.

use crate::house::House;
use clinch_core::effect::EffectState;
use clinch_core::job::Change;
use clinch_store::{LeaseRef, Settlement};

/// What was counted for it and was surely not done counts no more. Before it is written that the job ends: a crash in between costs
/// nothing, for who runs again is counted again.
pub async fn give_back(house: &House, lease: LeaseRef, end: &Settlement) -> clinch_store::Result<()> {
    if !matches!(end.change, Change::Finished { .. } | Change::Buried { .. }) {
        return Ok(());
    }
    let not_done = end.conclusion.as_ref().filter(|last| last.state == EffectState::NotDone);
    let not_done = not_done.map(|last| last.name.clone());
    // Where another has the job by now, he sees to it.
    house.insist(|| house.store.give_back(lease, not_done.clone())).await.map(drop)
}
