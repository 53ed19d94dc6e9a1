//! What is remembered of the calls to a partner, for people: how many there were and how they went, minute by minute; how long
//! the newest took, and how long we had let them wait; and when its circuit changed.

use crate::partners::Calls;
use clinch_core::breaker::Circuit;
use clinch_core::id::JobId;
use clinch_core::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A day.
const MINUTES_MAX: usize = 24 * 60;
/// A minute, for windows that are no longer than that: counted by the minute they would begin anew with each.
const SECONDS_MAX: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);
const CALLS_MAX: usize = 1_024;
/// Of so many jobs it is known since when they wait for us.
const ASKED_MAX: usize = 10_000;
const TURNS_MAX: usize = 64;

#[derive(Default)]
pub struct Record {
    calls: Mutex<Kept>,
    in_flight: AtomicUsize,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Kept {
    /// Which minute, how many calls, and how many of them failed.
    minutes: VecDeque<(i64, u64, u64)>,
    /// The same by the second.
    seconds: VecDeque<(i64, u64, u64)>,
    newest: VecDeque<Call>,
    turns: VecDeque<(Timestamp, Circuit)>,
    /// When the circuit was closed last, or left that state.
    since: Option<Timestamp>,
}

#[derive(Clone, Copy)]
struct Call {
    at: Timestamp,
    waited: Duration,
    took: Duration,
}

/// When jobs asked first that were sent away because of our own limits.
#[derive(Default)]
struct Asked {
    since: HashMap<JobId, Timestamp>,
    /// The oldest first. Those that came back are still in it.
    order: VecDeque<JobId>,
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

    /// A job has to come back: our own limits do not let it through.
    pub fn away(&self, job: JobId, now: Timestamp) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.since.contains_key(&job) {
            return;
        }
        if asked.order.len() == ASKED_MAX
            && let Some(oldest) = asked.order.pop_front()
        {
            asked.since.remove(&oldest);
        }
        asked.since.insert(job, now);
        asked.order.push_back(job);
    }

    /// It is let through: since when it had asked, if it was sent away before.
    pub fn back(&self, job: JobId) -> Option<Timestamp> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).since.remove(&job)
    }

    pub fn add(&self, now: Timestamp, waited: Duration, took: Duration, failed: bool) {
        let mut calls = self.calls();
        count(&mut calls.minutes, minute_of(now), failed, MINUTES_MAX);
        count(&mut calls.seconds, second_of(now), failed, SECONDS_MAX);
        push(&mut calls.newest, Call { at: now, waited, took }, CALLS_MAX);
    }

    pub fn turned(&self, now: Timestamp, from: Circuit, to: Circuit) {
        let mut calls = self.calls();
        push(&mut calls.turns, (now, to), TURNS_MAX);
        // While it is asked again and again whether it is back, it is open since it opened.
        if from == Circuit::Closed || to == Circuit::Closed {
            calls.since = Some(now);
        }
    }

    /// How the calls of a window went.
    pub fn within(&self, now: Timestamp, window: Duration) -> Calls {
        let kept = self.calls();
        let (counted, first) = match window <= MINUTE {
            true => (&kept.seconds, second_of(now - window)),
            false => (&kept.minutes, minute_of(now - window)),
        };
        let counted = counted.iter().filter(|(at, ..)| *at > first);
        let (all, failed) = counted.fold((0, 0), |sum, (_, all, failed)| (sum.0 + all, sum.1 + failed));
        let newest = || kept.newest.iter().filter(|call| now.since(call.at) < window);
        let sorted = |mut spans: Vec<Duration>| {
            spans.sort_unstable();
            spans
        };
        Calls {
            all,
            failed,
            took: sorted(newest().map(|call| call.took).collect()),
            waited: sorted(newest().map(|call| call.waited).collect()),
        }
    }

    pub fn turns(&self) -> (Option<Timestamp>, Vec<(Timestamp, Circuit)>) {
        let calls = self.calls();
        (calls.since, calls.turns.iter().copied().collect())
    }

    fn calls(&self) -> MutexGuard<'_, Kept> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn minute_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(60_000_000)
}

fn second_of(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000)
}

/// One more call at this minute or second.
fn count(ring: &mut VecDeque<(i64, u64, u64)>, at: i64, failed: bool, most: usize) {
    match ring.back_mut() {
        Some((last, all, bad)) if *last >= at => (*all, *bad) = (*all + 1, *bad + u64::from(failed)),
        _ => push(ring, (at, 1, u64::from(failed)), most),
    }
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
            record.add(at(second), Duration::from_secs(second), Duration::from_millis(millis), failed);
        }
        let took = [10, 20, 30].map(Duration::from_millis).to_vec();
        let waited = [1_000, 1_020, 1_021].map(Duration::from_secs).to_vec();
        assert_eq!(record.within(at(1_022), Duration::from_secs(900)), Calls { all: 3, failed: 1, took, waited });
        assert_eq!(record.within(at(1_022), Duration::from_secs(3_600)).all, 4);
        (0..2_000).for_each(|nth| record.add(at(2_000 + nth), Duration::ZERO, Duration::ZERO, false));
        let calls = record.within(at(4_000), Duration::from_secs(86_400));
        assert_eq!((calls.all, calls.took.len()), (2_004, CALLS_MAX));
    }

    #[test]
    fn h4_the_last_minute_does_not_begin_anew_with_each_minute() {
        let record = Record::default();
        for second in 0..120 {
            record.add(at(second), Duration::ZERO, Duration::ZERO, true);
            assert_eq!(record.within(at(second), MINUTE).failed, (second + 1).min(60), "{second}");
        }
        assert_eq!((record.within(at(149), MINUTE).failed, record.within(at(180), MINUTE).failed), (30, 0));
    }

    #[test]
    fn e5_a_job_waits_for_us_from_when_it_was_sent_away_first() {
        let record = Record::default();
        let job = JobId::from_number;
        record.away(job(1), at(1));
        record.away(job(1), at(5));
        assert_eq!((record.back(job(1)), record.back(job(1))), (Some(at(1)), None));
        let most = ASKED_MAX as u64;
        (0..2 * most).for_each(|nth| record.away(job(nth), at(10)));
        assert_eq!((record.back(job(0)), record.back(job(2 * most - 1))), (None, Some(at(10))));
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
