//! What is counted, for Prometheus. Open like health: its labels come from the workspace or from fixed lists, never from an event.

use super::integrations::flows_calling;
use super::problem::Problem;
use crate::house::House;
use crate::minutes::Totals;
use crate::partners::Outlook;
use crate::telemetry::{ByAction, Format, Label, Sight};
use crate::unresolved;
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use clinch_core::config::Workspace;
use clinch_core::control::Controls;
use clinch_core::job::Waits;
use clinch_core::time::Timestamp;
use clinch_store::read::{AuditFilter, AuditWalk, Counts};
use std::sync::Arc;
use std::time::Duration;

/// So many acts are looked at in a scrape; the next one goes on from there.
const ACTS_MAX: usize = 1_000;

pub async fn show(
    State(house): State<House>,
    Extension(partners): Extension<Arc<dyn Outlook>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let format = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).map_or(Format::Plain, Format::accepted);
    count_acts(&house).await?;
    let sight = sight(&house, &*partners).await?;
    Ok(([(CONTENT_TYPE, format.content_type())], house.metrics.render(&sight, format)))
}

async fn sight(house: &House, partners: &dyn Outlook) -> Result<Sight, Problem> {
    let (counts, now) = (house.store.counts().await?, house.clock.now());
    let (workspace, controls) = (house.versions.now(), house.controls.get());
    let totals = Totals::of(&house.metrics, &workspace);
    Ok(Sight {
        held: held(&controls, &workspace, &counts, now),
        health: house.store.health(),
        unresolved: unresolved::count(house).await?,
        exhausted: house.store.exhausted(now).await?,
        approvals: house.store.approvals_waiting().await?,
        refused: house.versions.state().refused.len(),
        partners: partners.partners(now, Duration::ZERO),
        burn: house.minutes.burns((now, totals), &workspace.settings.slo),
        controls,
        workspace,
        counts,
        now,
    })
}

/// The jobs that wait because of safe mode, of the flows that each scope is about that is on, or whose jobs still have their turns
/// to come.
fn held(controls: &Controls, workspace: &Workspace, counts: &Counts, now: Timestamp) -> Vec<(String, u64)> {
    let is_of = |mode: &&clinch_core::safe_mode::SafeMode| mode.is_on(now) || mode.draining_since(now).is_some();
    let modes = controls.safe_modes().iter().filter(is_of);
    let told = modes.map(|mode| {
        let scope = mode.scope.to_string();
        let flows = match scope.split_once(':') {
            Some(("integration", name)) => Some(flows_calling(workspace, name)),
            Some((_, name)) => Some(vec![name.to_string()]),
            None => None,
        };
        let is_about = |flow: &str| flows.as_ref().is_none_or(|flows| flows.iter().any(|known| known == flow));
        let waiting = counts.waiting.iter().filter(|of| of.waits == Waits::SafeMode && is_about(&of.flow));
        (scope, waiting.map(|of| of.jobs).sum())
    });
    told.collect()
}

/// The acts on record that were not counted yet.
async fn count_acts(house: &House) -> Result<(), Problem> {
    let mut counted = house.metrics.acts_counted.lock().await;
    let Some(after) = *counted else { return Ok(()) };
    let filter = AuditFilter { walk: AuditWalk::Forth { after }, ..AuditFilter::last(ACTS_MAX) };
    for act in house.store.audit(filter).await? {
        let action = Label::Name(Arc::from(act.action.as_str()));
        house.metrics.audit_records.get_or_create(&ByAction { action }).inc();
        *counted = Some(act.no);
    }
    Ok(())
}
