//! Dead letters by what they have in common.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.dlq.groups/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadGroups {
    pub schema: String,
    pub groups: Vec<DeadGroup>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadGroup {
    pub flow: String,
    pub reason: String,
    pub meaning: String,
    pub jobs: u64,
    pub first_at: Moment,
    pub last_at: Moment,
    pub example: String,
    /// needs_person, regressed, failing or quiet.
    #[serde(default)]
    pub standing: String,
    /// The plan that was last started for all of it.
    #[serde(default)]
    pub last_replay: Option<LastReplay>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LastReplay {
    pub plan_id: String,
    pub state: String,
    pub started_at: Moment,
    pub started_by: String,
}
