//! Workers that run by the clock.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.schedules.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    pub schema: String,
    pub schedules: Vec<Schedule>,
}

/// When a worker runs by itself, and what its last run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The worker's name.
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    pub missed: String,
    pub overlap: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Moment>,
    /// The slot that was used up last, if it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Moment>,
    /// The job of the last run, and its state, if it is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A run now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRunAsk {
    pub reason: String,
}

/// `clinch.schedules.run/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    pub schema: String,
    pub schedule: String,
    pub job_id: String,
    pub event_id: String,
    pub trace_id: String,
}
