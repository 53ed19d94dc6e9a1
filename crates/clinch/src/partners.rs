//! What this node sees of the partners that it calls. Who sees it is handed to who wants to know: the rooms do not meet.

use clinch_core::breaker::Circuit;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use std::time::Duration;

pub trait Outlook: Send + Sync {
    /// The partners that were called since the start, and how their calls of the last `window` went.
    fn partners(&self, now: Timestamp, window: Duration) -> Vec<Seen>;
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub name: Arc<str>,
    /// Nothing where it has no circuit.
    pub circuit: Option<CircuitNow>,
    pub calls: Calls,
    pub in_flight: usize,
    /// The share of its rate that this node has used in the time of that; nothing where it has none.
    pub rate_used: Option<f64>,
}

/// How the calls of a window went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub all: u64,
    /// Those that say that the partner is not well.
    pub failed: u64,
    /// The partner's time: how long the newest calls took, the shortest first.
    pub took: Vec<Duration>,
    /// Our own: how long these had waited for our limits, the shortest first.
    pub waited: Vec<Duration>,
}

#[derive(Clone, Debug)]
pub struct CircuitNow {
    pub circuit: Circuit,
    /// When it was closed last, or opened.
    pub since: Option<Timestamp>,
    /// Why it is open.
    pub why: Option<String>,
    /// When it is asked whether it is back.
    pub probe_at: Option<Timestamp>,
    /// The last changes, the oldest first.
    pub turns: Vec<(Timestamp, Circuit)>,
}
