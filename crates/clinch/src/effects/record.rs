//! What is remembered of the calls to a partner, for people: how many there were and how they went, minute by minute; how long
//! the newest took; and when its circuit changed.

use clinch_core::breaker::Circuit;
use clinch_core::time::Timestamp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A day.
const MINUTES_MAX: usize = 24 * 60;
const CALLS_MAX: usize = 1_024;
const TURNS_MAX: usize = 64;

#[derive(Default)]
pub struct Record {
    calls: Mutex<Calls>,
    in_flight: AtomicUsize,
}

#[derive(Default)]
struct Calls {
    /// Which minute, how many calls, and how many of them failed.
    minutes: VecDeque<(i64, u64, u64)>,
    newest: VecDeque<(Timestamp, Duration)>,
    turns: VecDeque<(Timestamp, Circuit)>,
    /// When the circuit was closed last, or left that state.
    since: Option<Timestamp>,
}

/// A call that is under way.
pub struct UnderWay(Arc<Record>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Record {
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub fn add(&self, now: Timestamp, took: Duration, failed: bool) {
        let mut calls = self.calls();
        let minute = minute_of(now);
        match calls.minutes.back_mut() {
            Some((last, all, bad)) if *last >= minute => (*all, *bad) = (*all + 1, *bad + u64::from(failed)),
            _ => push(&mut calls.minutes, (minute, 1, u64::from(failed)), MINUTES_MAX),
        }
        push(&mut calls.newest, (now, took), CALLS_MAX);
    }

    pub fn turned(&self, now: Timestamp, from: Circuit, to: Circuit) {
        let mut calls = self.calls();
        push(&mut calls.turns, (now, to), TURNS_MAX);
        // While it is asked again and again whether it is back, it is open since it opened.
        if from == Circuit::Closed || to == Circuit::Closed {
            calls.since = Some(now);
        }
    }

    /// Calls, those that failed, and how long the newest took, the shortest first.
    pub fn within(&self, now: Timestamp, window: Duration) -> (u64, u64, Vec<Duration>) {
        let calls = self.calls();
        let first = minute_of(now - window);
        let counted = calls.minutes.iter().filter(|(minute, ..)| *minute > first);
        let (all, failed) = counted.fold((0, 0), |sum, (_, all, failed)| (sum.0 + all, sum.1 + failed));
        let newest = calls.newest.iter().filter(|(at, _)| now.since(*at) < window);
        let mut took: Vec<Duration> = newest.map(|(_, took)| *took).collect();
        took.sort_unstable();
        (all, failed, took)
    }

    pub fn turns(&self) -> (Option<Timestamp>, Vec<(Timestamp, Circuit)>) {
        let calls = self.calls();
        (calls.since, calls.turns.iter().copied().collect())
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}

fn push<T>(ring: &mut VecDeque<T>, one: T, most: usize) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(one);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_790_000_040_000_000) + Duration::from_secs(seconds)
    }

    #[test]
    fn e3_calls_are_counted_by_the_minute_and_the_newest_are_timed() {
        let record = Record::default();
        for (second, millis, failed) in [(0, 5, true), (1_000, 30, false), (1_020, 10, true), (1_021, 20, false)] {
            record.add(at(second), Duration::from_millis(millis), failed);
        }
        let millis = [10, 20, 30].map(Duration::from_millis).to_vec();
        assert_eq!(record.within(at(1_022), Duration::from_secs(900)), (3, 1, millis));
        assert_eq!(record.within(at(1_022), Duration::from_secs(3_600)).0, 4);
        (0..2_000).for_each(|nth| record.add(at(2_000 + nth), Duration::ZERO, false));
        let (calls, _, took) = record.within(at(4_000), Duration::from_secs(86_400));
        assert_eq!((calls, took.len()), (2_004, CALLS_MAX));
    }

    #[test]
    fn e3_a_circuit_is_open_since_it_opened_however_often_it_was_probed() {
        let record = Record::default();
        assert_eq!(record.turns(), (None, Vec::new()));
        record.turned(at(1), Circuit::Closed, Circuit::Open);
        record.turned(at(31), Circuit::Open, Circuit::HalfOpen);
        record.turned(at(32), Circuit::HalfOpen, Circuit::Open);
        assert_eq!((record.turns().0, record.turns().1.len()), (Some(at(1)), 3));
        record.turned(at(70), Circuit::HalfOpen, Circuit::Closed);
        assert_eq!(record.turns().0, Some(at(70)));
    }
}
