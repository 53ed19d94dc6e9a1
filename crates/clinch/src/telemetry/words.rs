//! The fixed words of labels that nothing else in the house has a list of.

pub const LISTENERS: [&str; 2] = ["intake", "admin"];
/// Why a connection is turned away.
pub const REFUSED: [&str; 3] = ["full", "address", "handshake"];
/// Where a repetition was recognised.
pub const LAYERS: [&str; 3] = ["intake", "job", "effect"];
/// How a call through the proxy ends.
pub const PROXIED: [&str; 11] = [
    "passed",
    "done",
    "not_done",
    "joined",
    "replayed",
    "conflict",
    "busy",
    "unknown",
    "not_sent",
    "store_error",
    "refused",
];
pub const STATES: [&str; 4] = ["queued", "running", "waiting", "retrying"];
/// How a worker ends a job.
pub const REPORTED: [&str; 3] = ["success", "noop", "dead_letter"];
/// And how it can end besides: a person gives it up.
pub const ENDINGS: [&str; 4] = ["success", "noop", "dead_letter", "dropped"];
pub const NOOPS: [&str; 4] = ["already_done", "policy_skip", "expired", "condition"];
pub const SLOTS: [&str; 3] = ["fired", "passed", "held"];
pub const PLACES: [&str; 2] = ["busy", "idle"];
pub const STEP_OUTCOMES: [&str; 6] = ["ok", "noop", "retryable", "permanent", "timeout", "unknown"];
pub const EFFECTS: [&str; 5] = ["performed", "already_done", "not_done", "unknown", "held_safe_mode"];
pub const YES_NO: [&str; 2] = ["yes", "no"];
/// `error` is what says no without a status: a database, a script.
pub const CLASSES: [&str; 8] = ["2xx", "3xx", "4xx", "429", "5xx", "network", "timeout", "error"];
pub const RUNS: [&str; 4] = ["ok", "failed", "broken", "not_begun"];
pub const KILLS: [&str; 3] = ["timeout", "memory", "output"];
pub const LEFT: [&str; 2] = ["replayed_ok", "dropped"];
pub const REPLAYED: [&str; 3] = ["success", "noop", "failed"];
/// Where people act.
pub const VIAS: [&str; 3] = ["web", "cli", "api"];
pub const GOOD_BAD: [&str; 2] = ["good", "bad"];
pub const PRUNED: [&str; 3] = ["jobs", "events", "keys"];
pub const SIGNALS: [&str; 1] = ["traces"];
