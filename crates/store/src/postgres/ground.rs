//! Where a look into a queue begins. What was claimed leaves entries in the indexes, at the very edge where the next job is
//! looked for, and they stay for as long as anybody keeps an old snapshot: a session forgotten in a transaction leaves hundreds
//! of thousands of them in minutes. So most looks begin above what was served some time ago, and step over them. What is below,
//! which is rare, is found by whole looks now and then: nothing but how soon it is found depends on where a look begins.

use clinch_core::time::Timestamp;
use std::time::{Duration, Instant};

/// A whole look is due after this time, or later if it is slow: whole looks take no more than this part of the time.
const WHOLE_EVERY: Duration = Duration::from_secs(1);
const WHOLE_PART: u32 = 20;
const WHOLE_EVERY_MAX: Duration = Duration::from_secs(10);
/// What becomes due on other nodes is written late, and by other clocks, but rarely by more than this.
const LATE_MAX: Duration = Duration::from_secs(10);

/// What is due in a queue is due since then, as far as this node knows.
#[derive(Default)]
pub(super) struct Ground {
    since: Option<Timestamp>,
    /// The earliest that this node put there since the last whole look.
    put: Option<Timestamp>,
    whole_at: Option<Instant>,
    /// The last look was not a whole one.
    is_whole_due: bool,
}

/// How a look is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Whole,
    /// At what is due since then.
    Since(Timestamp),
}

impl Ground {
    pub fn look(&mut self, now: Instant) -> Reach {
        match (self.since, self.whole_at) {
            (Some(since), Some(at)) if now < at => {
                self.is_whole_due = true;
                Reach::Since(since)
            }
            _ => {
                self.is_whole_due = false;
                // The others need not make it at the same time.
                self.whole_at = Some(now + WHOLE_EVERY);
                Reach::Whole
            }
        }
    }

    /// When a look is due that nobody asked for.
    pub fn whole_at(&self) -> Option<Instant> {
        self.whole_at.filter(|_| self.is_whole_due)
    }

    /// A whole look took this long and found this to be the first.
    pub fn looked(&mut self, ended_at: Instant, took: Duration, first: Option<Timestamp>, now: Timestamp) {
        self.whole_at = Some(ended_at + (took * WHOLE_PART).clamp(WHOLE_EVERY, WHOLE_EVERY_MAX));
        let known = [first, self.put.take()].into_iter().flatten();
        self.since = Some(known.fold(now - LATE_MAX, Timestamp::min));
    }

    /// This node put something there that is due at this time.
    pub fn put(&mut self, due: Timestamp) {
        self.put = Some(self.put.map_or(due, |put| put.min(due)));
        self.since = self.since.map(|since| since.min(due));
    }

    /// Something was put back to where it was: the next look is a whole one.
    pub fn put_back(&mut self) {
        self.whole_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn f42_a_whole_look_comes_first_and_follows_every_other() {
        let (mut ground, start) = (Ground::default(), Instant::now());
        assert_eq!(ground.look(start), Reach::Whole);
        ground.looked(start, Duration::from_millis(1), None, NOW);
        assert_eq!(ground.whole_at(), None, "all was seen");
        assert_eq!(ground.look(start + SECOND / 4), Reach::Since(NOW - LATE_MAX));
        assert_eq!(ground.whole_at(), Some(start + SECOND));
        assert_eq!(ground.look(start + SECOND), Reach::Whole);
        assert_eq!(ground.whole_at(), None);
        assert_eq!(ground.look(start + SECOND), Reach::Since(NOW - LATE_MAX), "one at a time");
    }

    #[test]
    fn f42_slow_whole_looks_are_rare_and_never_given_up() {
        let (mut ground, start) = (Ground::default(), Instant::now());
        for (took, again) in [(SECOND / 10, 2 * SECOND), (60 * SECOND, WHOLE_EVERY_MAX)] {
            ground.looked(start, took, None, NOW);
            assert_eq!(ground.look(start), Reach::Since(NOW - LATE_MAX));
            assert_eq!(ground.whole_at(), Some(start + again));
            assert_eq!(ground.look(start + again), Reach::Whole);
        }
    }

    #[test]
    fn f42_a_look_begins_no_later_than_what_is_known_to_be_there() {
        let (mut ground, start) = (Ground::default(), Instant::now());
        let [found, put] = [100, 200].map(|seconds| NOW - seconds * SECOND);
        ground.looked(start, SECOND, Some(found), NOW);
        assert_eq!(ground.look(start), Reach::Since(found));
        ground.put(put);
        assert_eq!(ground.look(start), Reach::Since(put));
        // It may have come too late for the whole look that was under way.
        ground.looked(start, SECOND, Some(found), NOW);
        assert_eq!(ground.look(start), Reach::Since(put));
        ground.looked(start, SECOND, Some(found), NOW);
        assert_eq!(ground.look(start), Reach::Since(found));
        ground.put_back();
        assert_eq!(ground.look(start), Reach::Whole);
    }
}
