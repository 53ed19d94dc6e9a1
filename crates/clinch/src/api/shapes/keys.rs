//! The history of an idempotency key.

use super::{Effect, Job, Moment};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.keys.show/v1`: everything that ever happened under a key.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyShow {
    pub schema: String,
    pub key: String,
    /// One entry for each route that knows the key.
    pub found: Vec<KeyFound>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyFound {
    pub flow: String,
    pub route: String,
    pub tenant: String,
    pub event_id: String,
    pub kept_until: Option<Moment>,
    /// What a duplicate of a dead letter does: keep, replay.
    #[serde(default)]
    pub on_duplicate_of_dead: Option<String>,
    /// Deliveries of all kinds, the first one included.
    pub seen: u64,
    pub duplicates: u64,
    pub conflicts: u64,
    pub jobs: Vec<Job>,
    pub effects: Vec<Effect>,
    pub story: Vec<StoryLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoryLine {
    pub at: Moment,
    /// accepted, duplicate, conflict, attempt, effect, replay …
    pub what: String,
    pub job_id: Option<String>,
    pub detail: String,
}
