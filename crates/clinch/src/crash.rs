//! Places where the process can be made to die, so that tests can prove what a crash right there leaves behind.
//! Nothing happens unless `CLINCH_CRASH_AT` names the place.

use std::sync::LazyLock;

static CRASH_AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("CLINCH_CRASH_AT").ok());

/// Ends the process at once, as a power cut would, if this is the place.
pub fn point(place: &str) {
    if CRASH_AT.as_deref() == Some(place) {
        tracing::error!("crashing at {place} as CLINCH_CRASH_AT asks");
        std::process::abort();
    }
}
