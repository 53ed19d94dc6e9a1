//! A gap: why a job stood still before an attempt, told from what is on record.

use crate::time::Timestamp;

/// What came before the gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before<'a> {
    /// It was accepted.
    Accepted,
    /// An attempt that ended with this word, for this reason.
    Attempt { outcome: &'a str, reason: Option<&'a str> },
}

/// A replay in the gap, and who asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed<'a> {
    pub at: Timestamp,
    pub by: &'a str,
}

/// Why it waited until `until`. `replays` are all that the job ever had.
pub fn why(before: Before<'_>, since: Timestamp, until: Timestamp, replays: &[Replayed<'_>]) -> String {
    if let Some(replayed) = replays.iter().find(|replayed| (since..=until).contains(&replayed.at)) {
        return format!("a dead letter until {} replayed it", replayed.by);
    }
    match before {
        Before::Accepted => "in its queue".into(),
        Before::Attempt { outcome: "put_off", .. } => {
            "put off: it waited for something else, which cost no attempt".into()
        }
        Before::Attempt { outcome: "interrupted", .. } => "handed back when its worker stopped".into(),
        Before::Attempt { outcome: "lost", .. } => "its worker was lost; then the pause before the next attempt".into(),
        Before::Attempt { reason: Some(reason), .. } => format!("the pause after {reason}"),
        Before::Attempt { .. } => "the pause before the next attempt".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(second: i64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    #[test]
    fn i1_a_gap_says_why_nothing_happened() {
        let told = |before| why(before, at(10), at(20), &[]);
        assert_eq!(told(Before::Accepted), "in its queue");
        let after = |outcome, reason| told(Before::Attempt { outcome, reason });
        assert_eq!(after("failed", Some("rate_limited")), "the pause after rate_limited");
        assert!(after("interrupted", None).contains("handed back"));
        assert!(after("put_off", None).contains("cost no attempt"));
    }

    #[test]
    fn i1_a_dead_letter_waited_for_who_replayed_it() {
        let buried = Before::Attempt { outcome: "refused", reason: Some("auth_failed") };
        let told = |second| why(buried, at(10), at(20), &[Replayed { at: at(second), by: "op1" }]);
        assert_eq!(told(15), "a dead letter until op1 replayed it");
        assert_eq!(told(25), "the pause after auth_failed", "a later replay says nothing of this gap");
    }
}
