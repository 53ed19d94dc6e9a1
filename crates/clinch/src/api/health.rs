//! Is it alive, can it work, how much is there to do.

use super::effects;
use super::problem::Problem;
use super::query::Query;
use super::shapes::{self, DeadNow, FlowNow, Moment, Overview, StoreNow};
use crate::house::House;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use clinch_core::config::Workspace;
use clinch_core::flow::{Flow, Method};
use clinch_core::job::Word;
use clinch_store::read::Counts;
use serde_json::{Value, json};

/// The process runs; nothing more is said.
pub async fn alive() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Whether new work should be sent here.
pub async fn ready(State(house): State<House>) -> (StatusCode, Json<Value>) {
    let health = house.store.health();
    let why = if house.stop.is_cancelled() { Some("it is stopping".into()) } else { health.unwell };
    match (why, health.warning) {
        (None, None) => (StatusCode::OK, Json(json!({ "status": "ready" }))),
        (None, Some(warning)) => (StatusCode::OK, Json(json!({ "status": "ready", "warning": warning }))),
        (Some(why), _) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "not ready", "why": why }))),
    }
}

/// Open like health: its labels come from the workspace or from fixed lists, never from an event.
pub async fn metrics(State(house): State<House>) -> Result<impl IntoResponse, Problem> {
    let (counts, now) = (house.store.counts().await?, house.clock.now());
    house.metrics.show_unresolved(&effects::unresolved(&house).await?);
    house.metrics.show_exhausted(&house.versions.now(), &house.store.exhausted(now).await?);
    let controls = house.controls.get();
    house.metrics.show_controls(&controls, now);
    house.metrics.show_live(controls.live(now).count(), house.versions.state().refused.len());
    house.metrics.show_approvals(&house.store.approvals_waiting().await?, now);
    let text = house.metrics.render(&counts, &house.store.health(), now);
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

pub async fn overview(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<Overview>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let counts = house.store.counts().await?;
    let health = house.store.health();
    Ok(Json(Overview {
        schema: "clinch.overview/v1".into(),
        clinch: env!("CARGO_PKG_VERSION").into(),
        version: shapes::version(house.versions.live),
        flows: flows(&house.versions.workspace, &counts),
        dead: counts
            .dead
            .iter()
            .map(|(flow, reason, jobs)| DeadNow { flow: flow.to_string(), reason: reason.to_string(), jobs: *jobs })
            .collect(),
        store: StoreNow {
            unwell: health.unwell,
            bytes: health.bytes,
            free_bytes: health.free_bytes,
            pending_verbs: health.pending_verbs,
            commits: health.commits,
            write_errors: health.write_errors,
        },
    }))
}

/// The flows of the live workspace, then those that only jobs still know.
fn flows(workspace: &Workspace, counts: &Counts) -> Vec<FlowNow> {
    let route = |method: Method, path: &str| shapes::Route { method: method.word().into(), path: path.into() };
    let routes = |flow: &Flow| {
        let own = flow.routes.iter().map(|own| route(own.method, &own.path));
        let taken = workspace
            .sources
            .iter()
            .filter(|source| flow.subscriptions.iter().any(|subscription| subscription.source == source.name));
        own.chain(taken.map(|source| route(source.method, &source.path))).collect()
    };
    let now = |flow: &Flow| FlowNow { flow: flow.name.clone(), routes: routes(flow), ..FlowNow::default() };
    named(workspace.flows.iter().map(now).collect(), counts)
}

/// The flows with their figures.
fn named(mut flows: Vec<FlowNow>, counts: &Counts) -> Vec<FlowNow> {
    for (flow, word, jobs) in &counts.live {
        let flow = entry(&mut flows, flow);
        match word {
            Word::Queued => flow.queued += jobs,
            Word::Running => flow.running += jobs,
            Word::Waiting => flow.waiting += jobs,
            Word::Retrying => flow.retrying += jobs,
            Word::Success | Word::Noop | Word::Dead | Word::Dropped => {}
        }
    }
    for (flow, _, jobs) in &counts.dead {
        entry(&mut flows, flow).dead += jobs;
    }
    for (flow, since) in &counts.oldest {
        entry(&mut flows, flow).oldest_at = Some(Moment(*since));
    }
    for (flow, since) in &counts.oldest_dead {
        entry(&mut flows, flow).oldest_dead_at = Some(Moment(*since));
    }
    flows
}

fn entry<'a>(flows: &'a mut Vec<FlowNow>, name: &str) -> &'a mut FlowNow {
    let place = flows.iter().position(|flow| flow.flow == name).unwrap_or_else(|| {
        flows.push(FlowNow { flow: name.into(), ..FlowNow::default() });
        flows.len() - 1
    });
    &mut flows[place]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_names_flows_that_only_jobs_still_know() {
        let counts = Counts {
            live: vec![("old".into(), Word::Queued, 2), ("old".into(), Word::Retrying, 1)],
            dead: vec![("old".into(), clinch_core::death::Reason::Timeout, 3)],
            ..Counts::default()
        };
        let told = named(Vec::new(), &counts);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].queued, told[0].retrying, told[0].dead), (2, 1, 3));
    }
}
