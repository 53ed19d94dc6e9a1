//! How long jobs take.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.latency/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    pub schema: String,
    pub window_seconds: f64,
    pub since: Moment,
    /// Jobs that were accepted in the window and have ended.
    pub jobs: usize,
    /// Whether only the newest of them were counted.
    pub cut: bool,
    /// wait, run, end_to_end
    pub stages: Vec<Stage>,
    pub attempts: Attempts,
}

/// How many attempts these jobs took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attempts {
    pub p50: Option<u32>,
    pub p95: Option<u32>,
    pub p99: Option<u32>,
    pub max: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Stage {
    pub stage: String,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
    /// Those that were asked for.
    pub percentiles: Vec<Percentile>,
    pub buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Percentile {
    pub percentile: f64,
    pub seconds: Option<f64>,
}

/// How many took at most `le` seconds and more than the bucket before; the last one has no end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    pub le: Option<f64>,
    pub jobs: usize,
}
