//! Is it alive, can it work, and what it has counted.

use super::effects;
use super::problem::Problem;
use crate::house::House;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
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
