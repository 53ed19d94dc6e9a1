//! What metrics know from before the start: when each source sent last, and how far the audit had come.

use crate::house::House;
use crate::telemetry::BySource;
use clinch_store::read::{AuditFilter, EventFilter};
use std::collections::BTreeSet;

/// Asks the store, beside the work. What cannot be had stays unknown.
pub async fn run(house: House) {
    if let Err(error) = acts(&house).await {
        tracing::debug!("how far the audit has come is not known: {error}");
    }
    let workspace = house.versions.now();
    let doors: BTreeSet<&str> = workspace.entrances().map(|way| way.to.1).collect();
    for door in doors {
        if let Err(error) = last_accepted(&house, door).await {
            tracing::debug!("when source {door} sent last is not known: {error}");
        }
    }
}

async fn acts(house: &House) -> clinch_store::Result<()> {
    let newest = house.store.audit(AuditFilter::last(1)).await?;
    house.metrics.acts_counted.lock().await.get_or_insert(newest.first().map_or(0, |act| act.no));
    Ok(())
}

async fn last_accepted(house: &House, door: &str) -> clinch_store::Result<()> {
    let filter = EventFilter { source: Some(door.into()), limit: 1, ..EventFilter::default() };
    let page = house.store.events(filter).await?;
    let Some(last) = page.rows.first() else { return Ok(()) };
    let gauge = house.metrics.last_accepted.get_or_create_owned(&BySource { source: (&door.to_string()).into() });
    // Something may have come meanwhile.
    if gauge.get() == 0.0 {
        gauge.set(last.received_at.seconds_f64());
    }
    Ok(())
}
