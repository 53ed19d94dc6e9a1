//! The last requests that each source refused, and why: for the operator, who is told the real cause. Names of headers
//! only; what was sent is not kept.

use crate::masking::rules;
use clinch_core::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// So many are remembered for each source.
pub const REJECTIONS_MAX: usize = 20;
/// A refusal is logged at most this often for each source; the ring and the metrics have the others.
const LOG_EVERY: Duration = Duration::from_secs(10);
const HEADERS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub at: Timestamp,
    /// A word of a fixed list, the one of the metric.
    pub reason: &'static str,
    /// What was wrong. Names no value of the request.
    pub said: String,
    /// What to look at first.
    pub advice: &'static str,
    /// The names of the headers that came, in order.
    pub headers: Vec<String>,
}

/// One ring for each source of the live workspace.
#[derive(Debug, Default)]
pub struct Rejections(RwLock<HashMap<String, Arc<Mutex<Ring>>>>);

#[derive(Debug, Default)]
struct Ring {
    last: VecDeque<Rejection>,
    logged_at: Option<Timestamp>,
    unlogged: u64,
}

impl Rejections {
    pub fn of<'a>(sources: impl Iterator<Item = &'a str>) -> Rejections {
        let rejections = Rejections::default();
        rejections.follow(sources);
        rejections
    }

    /// These are the sources from now on; what is known of those that stay is kept.
    pub fn follow<'a>(&self, sources: impl Iterator<Item = &'a str>) {
        let mut known = self.0.write().expect("nobody panics while holding the rings");
        let mut old = std::mem::take(&mut *known);
        *known = sources.map(|name| (name.to_string(), old.remove(name).unwrap_or_default())).collect();
    }

    fn ring(&self, source: &str) -> Option<Arc<Mutex<Ring>>> {
        self.0.read().expect("nobody panics while holding the rings").get(source).cloned()
    }

    pub fn add(&self, source: &str, mut rejection: Rejection) {
        let Some(ring) = self.ring(source) else { return };
        rejection.headers.truncate(HEADERS_MAX);
        let mut ring = ring.lock().expect("nobody panics while holding a ring");
        if ring.logged_at.is_none_or(|last| rejection.at.since(last) >= LOG_EVERY) {
            let more = match std::mem::take(&mut ring.unlogged) {
                0 => String::new(),
                count => format!(" ({count} more since the last of these lines)"),
            };
            tracing::warn!(
                source,
                error.r#type = rejection.reason,
                "a request to source `{source}` was refused: {}; {}{more}",
                rules().sentence(&rejection.said),
                rejection.advice
            );
            ring.logged_at = Some(rejection.at);
        } else {
            ring.unlogged += 1;
        }
        if ring.last.len() == REJECTIONS_MAX {
            ring.last.pop_front();
        }
        ring.last.push_back(rejection);
    }

    /// The newest first; `None` when there is no such source.
    pub fn last(&self, source: &str) -> Option<Vec<Rejection>> {
        let ring = self.ring(source)?;
        let ring = ring.lock().expect("nobody panics while holding a ring");
        Some(ring.last.iter().rev().cloned().collect())
    }

    pub fn sources(&self) -> Vec<String> {
        let known = self.0.read().expect("nobody panics while holding the rings");
        let mut names: Vec<String> = known.keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p10_only_the_last_rejections_are_remembered() {
        let ring = Rejections::of(["shop"].into_iter());
        for nth in 0..i64::try_from(REJECTIONS_MAX).expect("small") + 5 {
            let at = Timestamp::from_micros(nth);
            let (said, headers) = (String::new(), vec!["x".into(); 100]);
            ring.add("shop", Rejection { at, reason: "signature_invalid", said, advice: "", headers });
        }
        let last = ring.last("shop").expect("a source");
        assert_eq!((last.len(), last[0].at.as_micros(), last[0].headers.len()), (REJECTIONS_MAX, 24, HEADERS_MAX));
        assert_eq!(ring.last("other"), None);
    }
}
