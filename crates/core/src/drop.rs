//! Giving up a dead letter for good: one person asks, another confirms; who is alone waits a day. It stays as a tombstone for a while,
//! and can be taken back.

use crate::replay::Mark;
use crate::time::Timestamp;
use std::time::Duration;

/// After this long who asked may confirm it himself.
pub const ALONE_AFTER: Duration = Duration::from_secs(86_400);
/// A dropped job is kept for this long.
pub const DROPPED_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// Somebody has asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub at: Timestamp,
    pub actor: String,
    /// The dead letter as he saw it.
    pub mark: Mark,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    /// A second person must say so; who asked may from this moment on.
    Alone {
        from: Timestamp,
    },
    /// It is not the dead letter any more that was meant.
    Changed,
}

pub fn confirm(request: &Request, by: &str, mark: Mark, now: Timestamp) -> Verdict {
    let from = request.at + ALONE_AFTER;
    if mark != request.mark {
        Verdict::Changed
    } else if by == request.actor && now < from {
        Verdict::Alone { from }
    } else {
        Verdict::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f4_a_second_person_confirms_or_a_day_passes() {
        let at = Timestamp::from_micros(1_000_000);
        let (mark, other) = (Mark::from_number(1), Mark::from_number(2));
        let request = Request { at, actor: "maya".into(), mark };
        let tomorrow = at + ALONE_AFTER;
        assert_eq!(confirm(&request, "ben", mark, at), Verdict::Drop);
        assert_eq!(confirm(&request, "maya", mark, at), Verdict::Alone { from: tomorrow });
        assert_eq!(
            confirm(&request, "maya", mark, tomorrow - Duration::from_micros(1)),
            Verdict::Alone { from: tomorrow }
        );
        assert_eq!(confirm(&request, "maya", mark, tomorrow), Verdict::Drop);
        assert_eq!(confirm(&request, "ben", other, tomorrow), Verdict::Changed);
    }
}
