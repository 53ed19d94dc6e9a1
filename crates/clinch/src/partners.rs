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
    pub calls: u64,
    /// Calls that say that the partner is not well.
    pub failed: u64,
    /// How long the newest calls of the window took, the shortest first.
    pub took: Vec<Duration>,
    pub in_flight: usize,
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
