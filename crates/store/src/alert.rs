//! Alerts, as they are stored: rows that nodes change one after the other, whoever is faster.

use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// An alert is kept for so long after there was nothing more to do about it.
pub const ALERT_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// No more are kept, whatever their age.
pub const ALERTS_KEPT_MAX: i64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRow {
    pub id: i64,
    /// Of a name one is open at a time.
    pub name: Arc<str>,
    /// Grows with each change.
    pub version: i64,
    /// JSON.
    pub value: String,
    pub began_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// From then on nothing more is to be done about it.
    pub rest_at: Option<Timestamp>,
}

/// Which alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alerts {
    /// Those about which something is to be done, the oldest first.
    Restless,
    /// The last, the newest first.
    Newest(usize),
}
