//! What this installation is: its version, its workspace, its store, and how long what is kept where.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{self, Moment};
use crate::house::House;
use axum::Json;
use axum::extract::{RawQuery, State};
use clinch_core::config::{Encryption, Files, Version};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.about/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct About {
    pub schema: String,
    pub clinch: String,
    /// The live workspace, and the beginning of the hash of its files.
    pub version: String,
    pub hash: String,
    pub files: Vec<String>,
    /// When this node started.
    pub started_at: Moment,
    /// sqlite, postgres
    pub engine: String,
    pub store_bytes: u64,
    /// Of the disk that an embedded store is on.
    pub free_bytes: u64,
    /// Why the store cannot write, or what the operator accepted and should not forget.
    pub store_says: Option<String>,
    /// How the store is encrypted, and the key that it is written with.
    pub encryption: String,
    pub active_key: Option<String>,
    pub queues: Vec<QueueKept>,
    /// Names by which the console may be called, besides its address.
    pub console_hosts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueKept {
    pub queue: String,
    /// How long what ended in it is kept.
    pub retention_seconds: u64,
}

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<About>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let (health, settings) = (house.store.health(), &house.versions.workspace().settings);
    let live = house.versions.live();
    let stored = house.store.version_files(live).await?.and_then(|json| Files::from_json(&json).ok());
    let version: Option<Version> = stored.as_ref().map(Files::version);
    let kept = |queue: &clinch_core::flow::Queue| QueueKept {
        queue: queue.name.clone(),
        retention_seconds: queue.retention.as_secs(),
    };
    Ok(Json(About {
        schema: "clinch.about/v1".into(),
        clinch: env!("CARGO_PKG_VERSION").into(),
        version: shapes::version(live),
        hash: version.map(|version| version.to_string()).unwrap_or_default(),
        files: stored.map_or_else(Vec::new, |files| files.0.into_iter().map(|(path, _)| path).collect()),
        started_at: Moment(house.minutes.start),
        // Only those who share a store can be taken for dead.
        engine: if house.store.life().is_some() { "postgres" } else { "sqlite" }.into(),
        store_bytes: health.bytes,
        free_bytes: health.free_bytes,
        store_says: health.unwell.or(health.warning),
        encryption: match &settings.encryption {
            None => "a key file beside the store",
            Some(Encryption::None) => "none: everything is stored readable",
            Some(Encryption::File(_)) => "a key file",
            Some(Encryption::Keys { .. }) => "keys from secrets",
        }
        .into(),
        active_key: house.store.active_key().map(|key| key.to_string()),
        queues: house.versions.workspace().queues.iter().map(kept).collect(),
        console_hosts: settings.console_hosts.clone(),
    }))
}
