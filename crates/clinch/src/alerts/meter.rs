//! How much counters grew in a window that ends now.

use clinch_core::time::Timestamp;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Points of a counter are so far apart.
const GRAIN: Duration = Duration::from_secs(5);
/// The longest window.
const KEPT: Duration = Duration::from_secs(3_600);

/// A counter: what it counts, and of whom.
pub type Series = (&'static str, String, &'static str);

/// Points are noted only while a counter grows, so that a quiet one costs nothing.
#[derive(Debug, Default)]
pub struct Meter {
    points: BTreeMap<Series, VecDeque<(Timestamp, u64)>>,
}

impl Meter {
    /// How much it grew in the window. Counters begin with nothing when the process does.
    pub fn grown(&mut self, series: Series, total: u64, window: Duration, now: Timestamp) -> u64 {
        if total == 0 {
            return 0;
        }
        let points = self.points.entry(series).or_default();
        let is_new = points.back().is_none_or(|(at, last)| *last != total && now.since(*at) >= GRAIN);
        if is_new {
            points.push_back((now, total));
        }
        // The last point before the longest window says what the counter was when it began.
        while points.get(1).is_some_and(|(at, _)| *at <= now - KEPT) {
            points.pop_front();
        }
        let before = points.iter().rev().find(|(at, _)| *at <= now - window).map_or(0, |(_, total)| *total);
        total.saturating_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn h4_a_window_has_what_was_counted_in_it() {
        let mut meter = Meter::default();
        let mut grown = |total, window, second| {
            meter.grown(("dead", "orders".into(), "timeout"), total, Duration::from_secs(window), at(second))
        };
        assert_eq!(grown(0, 60, 0), 0);
        assert_eq!(grown(3, 60, 10), 3);
        assert_eq!(grown(5, 60, 20), 5);
        assert_eq!(grown(5, 60, 70), 2, "the first three are a minute old");
        assert_eq!(grown(5, 60, 80), 0);
        assert_eq!(grown(5, 3_600, 3_000), 5);
        assert_eq!(grown(6, 3_600, 3_700), 1);
    }

    #[test]
    fn h4_a_counter_that_grows_all_the_time_has_a_bounded_number_of_points() {
        let mut meter = Meter::default();
        let series = ("dead", "orders".to_string(), "timeout");
        for second in 1..=10_000 {
            meter.grown(series.clone(), second, KEPT, at(second));
        }
        assert!(meter.points[&series].len() <= 722, "{}", meter.points[&series].len());
        assert!((3_600..=3_605).contains(&meter.grown(series, 10_000, KEPT, at(10_000))));
    }
}
