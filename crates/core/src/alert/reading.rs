//! What the rules are judged on: figures of one moment, put together by whoever can see them.

use crate::slo::{Burn, Slo};
use crate::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Failures of partners and of the intake: what goes wrong now.
pub const WINDOW_FAST: Duration = Duration::from_secs(60);
/// Bad signatures: a few of them are usual.
pub const WINDOW_SIGNATURES: Duration = Duration::from_secs(600);
/// What is counted over an hour: dead letters, conflicts, missed duplicates.
pub const WINDOW_LONG: Duration = Duration::from_secs(3_600);
/// Notices that failed.
pub const WINDOW_NOTICES: Duration = Duration::from_secs(900);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings {
    pub intake: Vec<IntakeReading>,
    pub flows: Vec<FlowReading>,
    pub dead: Vec<DeadReading>,
    pub partners: Vec<PartnerReading>,
    /// Effects that need a person, by integration.
    pub unknown_effects: Vec<(String, u64)>,
    /// Entities that have nothing left, by budget.
    pub budgets: Vec<(Arc<str>, u64)>,
    pub store: StoreReading,
    /// Notices that failed in `WINDOW_NOTICES`, by channel.
    pub notices: Vec<(String, u64)>,
    /// Where safe mode is on, and since when.
    pub safe_modes: Vec<(String, Timestamp)>,
    /// Accepted to ended, of the jobs of the last 15 minutes.
    pub end_to_end_p95: Option<Duration>,
    pub slo: Slo,
    /// How fast each window spends what may miss the objective.
    pub burns: Vec<Burn>,
    /// The newest files were refused, and the workspace before them still runs.
    pub is_reload_refused: bool,
    pub replays: u64,
}

/// What came in at a source, or at a flow's own route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntakeReading {
    pub source: Arc<str>,
    /// In `WINDOW_FAST`.
    pub requests: u64,
    pub store_errors: u64,
    /// In `WINDOW_SIGNATURES`.
    pub signed_requests: u64,
    pub unverified: u64,
    /// In `WINDOW_LONG`.
    pub conflicts: u64,
    pub same_bodies: u64,
    /// The longest that it may be silent, and since when it has been.
    pub silence: Option<(Duration, Timestamp)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowReading {
    pub flow: Arc<str>,
    pub queued: u64,
    /// When the job was accepted that waits longest for its turn.
    pub oldest_queued: Option<Timestamp>,
    /// When the oldest job was accepted that is unfinished and waits for nobody.
    pub oldest: Option<Timestamp>,
    /// Since when jobs have waited for their turn and none got it.
    pub stuck_since: Option<Timestamp>,
    pub oldest_dead: Option<Timestamp>,
    pub oldest_approval: Option<Timestamp>,
}

/// Jobs that became dead letters in `WINDOW_LONG`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadReading {
    pub flow: Arc<str>,
    pub reason: &'static str,
    pub entered: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartnerReading {
    pub name: Arc<str>,
    /// Since when its circuit has been open, or is tried again.
    pub open_since: Option<Timestamp>,
    /// In `WINDOW_FAST`.
    pub calls: u64,
    pub failed: u64,
    /// When the first call failed of those that fail now.
    pub failing_since: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreReading {
    /// It cannot write.
    pub is_unwell: bool,
    /// `None`: nobody can say.
    pub free_bytes: Option<u64>,
}

/// That a rule is broken, for which labels and how much.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// In the order of the rule's labels.
    pub values: Vec<String>,
    pub value: f64,
    /// When it began, where that is known.
    pub since: Option<Timestamp>,
}

impl Found {
    pub fn of(values: &[&str], value: f64) -> Found {
        Found { values: values.iter().map(ToString::to_string).collect(), value, since: None }
    }

    pub fn since(self, since: Option<Timestamp>) -> Found {
        Found { since, ..self }
    }
}
