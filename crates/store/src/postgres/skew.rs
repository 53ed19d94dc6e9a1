//! The time of the database. Whether a job is due and whether a lease is over is decided by comparing what different nodes
//! wrote: such moments are written in the time of the database. Those that only tell when something happened are left as
//! they were handed in.

use super::{Clock, lock};
use clinch_core::time::Timestamp;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How far the clock of the database is ahead of ours.
pub(super) struct Skew {
    clock: Clock,
    /// A moment, and the time of the database then. It is counted on from there, so that our own clock may be set at will.
    heard: Mutex<Option<(Instant, Timestamp)>>,
    is_apart: AtomicBool,
}

/// A smaller difference is left alone: leases are much longer, and what was handed in reads back unchanged.
const SKEW_MIN: i64 = 250_000;

impl Skew {
    pub fn new(clock: Clock) -> Skew {
        Skew { clock, heard: Mutex::default(), is_apart: AtomicBool::new(false) }
    }

    /// The time here, as it is handed in.
    pub fn here(&self) -> Timestamp {
        (self.clock)()
    }

    /// The database told its time at some moment of the round trip.
    pub fn measured(&self, database: Timestamp, sent_at: Instant, round_trip: Duration) {
        let (at, error) = (sent_at + round_trip / 2, round_trip / 2);
        let mut heard = lock(&self.heard);
        // Where the slowness of the answer explains the difference, what was known before is as good.
        let is_news = heard.is_none_or(|(then, time)| {
            let expected = time + at.saturating_duration_since(then);
            database.since(expected).max(expected.since(database)) > error
        });
        if is_news {
            *heard = Some((at, database));
        }
        drop(heard);
        let ahead = self.ahead();
        if self.is_apart.swap(ahead != 0, Ordering::Relaxed) != (ahead != 0) {
            tracing::warn!("the clock of the database is {ahead} µs ahead of ours; its time counts for leases");
        }
    }

    fn ahead(&self) -> i64 {
        let Some((then, time)) = *lock(&self.heard) else { return 0 };
        let ahead = (time + then.elapsed()).as_micros().saturating_sub((self.clock)().as_micros());
        if ahead.abs() < SKEW_MIN { 0 } else { ahead }
    }

    pub fn to_database(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add(self.ahead()))
    }

    pub fn back_from_database(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_sub(self.ahead()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicI64;

    const AT: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    /// A clock that is set by hand, and a skew that reads it.
    fn skew() -> (Skew, Arc<AtomicI64>) {
        let hand = Arc::new(AtomicI64::new(AT.as_micros()));
        let clock = hand.clone();
        (Skew::new(Arc::new(move || Timestamp::from_micros(clock.load(Ordering::Relaxed)))), hand)
    }

    fn check(skew: &Skew, at: Timestamp, seconds: i64, why: &str) {
        let ahead = skew.to_database(at).as_micros() - at.as_micros();
        let error = ahead - seconds * 1_000_000;
        // Time goes on while this runs, but not for so long.
        assert!((0..30_000_000).contains(&error) && (seconds != 0 || error == 0), "{why}: {ahead}");
        let back = skew.back_from_database(skew.to_database(at)).as_micros() - at.as_micros();
        assert!(back.abs() < 30_000_000, "{why}: {back}");
    }

    #[test]
    fn f16_leases_are_written_in_the_time_of_the_database() {
        let (skew, _) = skew();
        check(&skew, AT, 0, "nothing is known yet");
        skew.measured(AT + Duration::from_secs(300), Instant::now(), Duration::ZERO);
        check(&skew, AT, 300, "it is ahead");
        check(&skew, AT + Duration::from_secs(3_600), 300, "so it will be later");
    }

    #[test]
    fn a_small_difference_between_clocks_is_left_alone() {
        let (skew, hand) = skew();
        let now = Instant::now();
        hand.store((AT + Duration::from_secs(60)).as_micros(), Ordering::Relaxed);
        // Measured in the future, so that no time has passed since.
        skew.measured(
            AT + Duration::from_secs(60) + Duration::from_millis(200),
            now + Duration::from_secs(600),
            Duration::ZERO,
        );
        assert_eq!(skew.to_database(AT), AT);
    }

    #[test]
    fn f16_a_clock_that_is_set_changes_nothing_in_the_time_of_the_database() {
        let (skew, hand) = skew();
        skew.measured(AT, Instant::now(), Duration::ZERO);
        for by in [300, -300] {
            let set = Timestamp::from_micros(AT.as_micros() + by * 1_000_000);
            hand.store(set.as_micros(), Ordering::Relaxed);
            check(&skew, set, -by, "at once, before it is measured again");
        }
    }

    #[test]
    fn a_slow_answer_says_nothing_unless_it_cannot_be_explained() {
        let (skew, _) = skew();
        let now = Instant::now();
        skew.measured(AT + Duration::from_secs(100), now, Duration::ZERO);
        skew.measured(AT + Duration::from_secs(101), now - Duration::from_secs(2), Duration::from_secs(4));
        check(&skew, AT, 100, "it may have been under way for so long");
        skew.measured(AT + Duration::from_secs(400), now - Duration::from_secs(2), Duration::from_secs(4));
        check(&skew, AT, 400, "nothing explains this but a clock that was set");
    }
}
