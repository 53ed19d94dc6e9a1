//! The same body under another id, where the id is not signed: whoever captured a delivery can write another on it. A
//! bounded memory of this node, for counting only; where such a body is dropped, the store recognises it.

use clinch_core::key::{DedupKey, Fingerprint};
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// So many bodies are remembered for each source.
const BODIES_MAX: usize = 10_000;

#[derive(Default)]
pub struct Guard(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    keys: HashMap<Fingerprint, DedupKey>,
    oldest_first: VecDeque<Fingerprint>,
}

impl Guard {
    /// Whether this body was accepted before under another key.
    pub fn knows(&self, body: Fingerprint, key: DedupKey) -> bool {
        let mut seen = self.0.lock().expect("nobody panics while holding the bodies");
        if let Some(first) = seen.keys.get(&body) {
            return *first != key;
        }
        if seen.oldest_first.len() >= BODIES_MAX
            && let Some(oldest) = seen.oldest_first.pop_front()
        {
            seen.keys.remove(&oldest);
        }
        seen.keys.insert(body, key);
        seen.oldest_first.push_back(body);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::key::Pepper;

    #[test]
    fn t056_a_body_under_another_key_is_known_and_the_memory_is_bounded() {
        let guard = Guard::default();
        let key = |text: &str| DedupKey::scoped(&Pepper::new(&[7; 32]), "default", "source hub", text);
        let body = |nth: usize| Fingerprint::of("POST", nth.to_string().as_bytes());
        assert!(!guard.knows(body(0), key("d-1")));
        assert!(!guard.knows(body(0), key("d-1")), "the same delivery again is nothing new");
        assert!(guard.knows(body(0), key("d-2")));
        for nth in 1..=BODIES_MAX {
            assert!(!guard.knows(body(nth), key("d-3")));
        }
        assert_eq!(guard.0.lock().expect("free").keys.len(), BODIES_MAX);
        assert!(!guard.knows(body(0), key("d-2")), "the oldest was forgotten");
    }
}
