//! Effects of unknown outcome that need a person, by whom they were sent to.

use crate::house::House;
use clinch_core::effect::EffectWord;
use clinch_core::job::Word;
use clinch_store::VersionId;
use clinch_store::read::{EffectFilter, LIST_ROWS_MAX};
use std::collections::BTreeMap;

/// How many effects of each integration are unknown in a dead letter: there a person is needed. As many as one list has.
pub async fn count(house: &House) -> clinch_store::Result<BTreeMap<String, i64>> {
    let workspace = house.versions.now();
    let mut counted: BTreeMap<String, i64> =
        workspace.partners().map(|partner| (partner.name.to_string(), 0)).collect();
    let filter = EffectFilter { state: Some(EffectWord::Unknown), limit: LIST_ROWS_MAX, ..EffectFilter::default() };
    for row in house.store.effects(filter).await?.rows.iter().filter(|row| row.word == Word::Dead) {
        let partner = partner(house, row.version, &row.queue, &row.effect.name).await?;
        *counted.entry(partner.unwrap_or_else(|| "not known any more".into())).or_default() += 1;
    }
    Ok(counted)
}

/// Whom the step calls, by the workspace that its job runs: the ledger itself is spared the name.
pub async fn partner(
    house: &House,
    version: VersionId,
    queue: &str,
    step: &str,
) -> clinch_store::Result<Option<String>> {
    let workspace = house.versions.get(version, &*house.store).await?;
    let partner = workspace.as_deref().and_then(|workspace| workspace.partner_of(queue, step));
    Ok(partner.map(|partner| partner.name.to_string()))
}
