//! Is it alive, and can it work.

use crate::house::House;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
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
