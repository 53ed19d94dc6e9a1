//! How things are.

use super::Moment;
use crate::api::alerts::AlertShow;
use crate::api::needs::Need;
use crate::api::objective::{Objective, Stars};
use crate::api::overview::Window;
use crate::api::safe_mode::SafeMode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.overview/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    pub schema: String,
    pub clinch: String,
    /// The live workspace.
    pub version: String,
    /// When it was so.
    pub at: Moment,
    /// What needs a person, the most urgent first.
    pub needs: Vec<Need>,
    /// What fires and is not silenced, the most urgent first.
    #[serde(default)]
    pub alerts: Vec<AlertShow>,
    pub safe_mode: Vec<SafeMode>,
    pub flows: Vec<FlowNow>,
    /// The most jobs first.
    pub dead: Vec<DeadNow>,
    /// Jobs that wait for something else than their own work.
    pub waiting: Vec<WaitingNow>,
    pub objective: Objective,
    pub stars: Stars,
    /// What was counted, where a window was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    pub store: StoreNow,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingNow {
    pub flow: String,
    /// circuit, limit, delay, key, budget, approval, paused, safe_mode, quiet_hours
    pub waits_for: String,
    pub jobs: u64,
    pub oldest_at: Option<Moment>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct FlowNow {
    pub flow: String,
    pub routes: Vec<Route>,
    pub queued: u64,
    pub running: u64,
    pub waiting: u64,
    pub retrying: u64,
    pub dead: u64,
    pub oldest_at: Option<Moment>,
    pub oldest_dead_at: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Route {
    pub method: String,
    pub path: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadNow {
    pub flow: String,
    pub reason: String,
    pub jobs: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoreNow {
    /// Why it cannot write at the moment.
    pub unwell: Option<String>,
    /// What the operator accepted and should not forget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    pub bytes: u64,
    pub free_bytes: u64,
    pub pending_verbs: usize,
    pub commits: u64,
    pub write_errors: u64,
}
