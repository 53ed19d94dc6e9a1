//! How long something that others will take away may still be used without asking them.
//!
//! A lease ends by the clock of the store, and so does a node's place among the living. Who cannot reach the store does not
//! hear of it, and must have stopped before, by a clock of its own that nobody sets.

use std::time::{Duration, Instant};

/// The clocks that a term is written and read by are less than this apart.
const MARGIN_MIN: Duration = Duration::from_secs(1);

/// The time in which something is surely ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub since: Instant,
    pub until: Instant,
}

impl Term {
    /// Of what lasts for `length`, counted by others from some moment after we asked for it.
    pub fn asked_at(asked_at: Instant, length: Duration) -> Term {
        Term { since: asked_at, until: surely_until(asked_at, length) }
    }

    /// It was asked for once more at this moment, and given.
    pub fn renewed(self, asked_at: Instant, length: Duration) -> Term {
        Term { until: self.until.max(surely_until(asked_at, length)), ..self }
    }
}

fn surely_until(asked_at: Instant, length: Duration) -> Instant {
    let margin = (length / 10).max(MARGIN_MIN).min(length / 2);
    asked_at + (length - margin)
}

/// For how much longer an effect may begin under this lease; `None`: not any more. `life` is the term of the node, where others may take it
/// for dead: a lease of a former life was given back when that ended.
pub fn may_begin(now: Instant, lease: Term, life: Option<Term>) -> Option<Duration> {
    let until = life.map_or(lease.until, |life| life.until.min(lease.until));
    (now < until && is_of_this_life(now, lease.since, life)).then(|| until - now)
}

/// Does what was given then still count? What a node had in a former life went when that ended.
pub fn is_of_this_life(now: Instant, given_at: Instant, life: Option<Term>) -> bool {
    life.is_none_or(|life| now < life.until && life.since <= given_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn check(length: Duration, sure: Duration) {
        let now = Instant::now();
        let term = Term::asked_at(now, length);
        assert_eq!(term.until - now, sure, "{length:?}");
        if !sure.is_zero() {
            assert_eq!(may_begin(now, term, None), Some(sure), "{length:?}");
        }
        assert_eq!(may_begin(now + sure, term, None), None, "{length:?}");
    }

    #[test]
    fn f43_a_term_ends_for_us_before_it_ends_for_others() {
        check(60 * SECOND, 54 * SECOND);
        check(10 * SECOND, 9 * SECOND);
        check(3 * SECOND, 2 * SECOND);
        check(SECOND, SECOND / 2);
        check(Duration::ZERO, Duration::ZERO);
    }

    #[test]
    fn f43_nothing_begins_after_the_earlier_of_both_ends() {
        let now = Instant::now();
        let (lease, life) = (Term::asked_at(now, 60 * SECOND), Term::asked_at(now, 10 * SECOND));
        assert_eq!(may_begin(now + 8 * SECOND, lease, Some(life)), Some(SECOND));
        assert_eq!(may_begin(now + 9 * SECOND, lease, Some(life)), None, "others may take this node for dead");
        let life = life.renewed(now + 55 * SECOND, 10 * SECOND);
        assert_eq!(may_begin(now + 53 * SECOND, lease, Some(life)), Some(SECOND));
        assert_eq!(may_begin(now + 54 * SECOND, lease, Some(life)), None, "others may take the job");
    }

    #[test]
    fn f43_a_term_that_is_renewed_never_ends_earlier() {
        let now = Instant::now();
        let term = Term::asked_at(now, 10 * SECOND);
        assert_eq!(term.renewed(now + SECOND, 10 * SECOND).until, term.until + SECOND);
        assert_eq!(term.renewed(now, SECOND), term);
    }

    #[test]
    fn f14_a_lease_of_a_former_life_counts_no_more() {
        let now = Instant::now();
        let lease = Term::asked_at(now, 60 * SECOND);
        let next_life = Term::asked_at(now + 15 * SECOND, 10 * SECOND);
        assert_eq!(may_begin(now + 16 * SECOND, lease, Some(next_life)), None);
        let next_lease = Term::asked_at(now + 15 * SECOND, 60 * SECOND);
        assert!(may_begin(now + 16 * SECOND, next_lease, Some(next_life)).is_some());
    }
}
