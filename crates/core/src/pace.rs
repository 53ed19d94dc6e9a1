//! The pace of calls to a partner: evenly apart, never more than its rate in any window. Moments are taken from the store in
//! blocks, so that nodes share a rate without asking each other for every call, and a restart takes none twice.

use crate::id::JobId;
use crate::limit::Rate;
use crate::time::Timestamp;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// So many hundredths slower than the rate allows. Half of that a call may be late, the other half its way may take longer
/// than another's; and still no window has too many.
const SLACK_PERCENT: u32 = 5;
/// A block covers about this time.
const BLOCK: Duration = Duration::from_secs(1);
const BLOCK_CALLS_MAX: u32 = 1_000;
/// No moment is taken further ahead: a node that dies takes its moments with it.
pub const AHEAD_MAX: Duration = Duration::from_secs(30);
/// Nobody who finds no moment is sent away for longer: by then the rate may be another.
const AWAY_MAX: Duration = Duration::from_secs(300);
/// Of those who are sent away from a slow partner, the next comes back no later after the one before.
const AWAY_APART_MAX: Duration = Duration::from_secs(3);

/// The moments in a row that are ours.
#[derive(Clone, Debug)]
pub struct Moments {
    every: Duration,
    /// A call that is later than this has lost its moment.
    late_max: Duration,
    next: Timestamp,
    left: u32,
    /// When the last of those would be due that were sent away without a moment.
    queued_to: Timestamp,
}

impl Moments {
    /// Each call is made up to `spread` after its moment.
    pub fn new(rate: &Rate, spread: Duration) -> Moments {
        let window = rate.window();
        let every = (window.saturating_mul(100 + SLACK_PERCENT) / 100).saturating_add(spread) / rate.count().get();
        let long_ago = Timestamp::from_micros(i64::MIN);
        Moments {
            every: every.max(Duration::from_micros(1)),
            late_max: window.saturating_mul(SLACK_PERCENT) / 200,
            next: long_ago,
            left: 0,
            queued_to: long_ago,
        }
    }

    /// Moments from then on still count.
    pub fn valid_from(&self, now: Timestamp) -> Timestamp {
        now - self.late_max
    }

    pub const fn every(&self) -> Duration {
        self.every
    }

    /// How many moments to take at once.
    pub fn block(&self) -> u32 {
        let calls = BLOCK.as_nanos() / self.every.as_nanos().max(1);
        u32::try_from(calls).unwrap_or(BLOCK_CALLS_MAX).clamp(1, BLOCK_CALLS_MAX)
    }

    /// A block that the store gave.
    pub fn refill(&mut self, first: Timestamp, calls: u32) {
        (self.next, self.left) = (first, calls);
    }

    /// The next moment that is ours, if there is one. Moments that nobody used are gone: they are not saved up.
    pub fn take(&mut self, now: Timestamp) -> Option<Timestamp> {
        while self.left > 0 {
            let at = self.next;
            (self.next, self.left) = (at + self.every, self.left - 1);
            if at >= self.valid_from(now) {
                return Some(at);
            }
        }
        None
    }

    /// When to ask again, when all moments are taken: one after the other, as if each had one. Where that would be too long, they
    /// begin again at the front.
    pub fn queue(&mut self, now: Timestamp) -> Timestamp {
        let (front, apart) = (now + AHEAD_MAX, self.every.min(AWAY_APART_MAX));
        let next = self.queued_to.max(front) + apart;
        self.queued_to = if next > now + AWAY_MAX { front + apart } else { next };
        self.queued_to
    }
}

/// Who has which moment. Who comes too late for his own takes the next that another was promised, and leaves him the same right:
/// where jobs come back more slowly than the rate allows, those who are late would otherwise queue behind everybody again and again
/// while moments pass unused.
#[derive(Debug, Default)]
pub struct Promised {
    moments: HashMap<JobId, Timestamp>,
    by_time: BTreeSet<(Timestamp, JobId)>,
}

/// Who does not come for so long after his moment is forgotten.
const MOMENT_KEPT: Duration = Duration::from_secs(60);

impl Promised {
    pub fn promise(&mut self, job: JobId, moment: Timestamp, now: Timestamp) {
        while let Some((oldest, late)) = self.by_time.first().copied()
            && now.since(oldest) > MOMENT_KEPT
        {
            self.by_time.pop_first();
            self.moments.remove(&late);
        }
        self.forget(job);
        self.moments.insert(job, moment);
        self.by_time.insert((moment, job));
    }

    /// The moment of the job, or the next of another if its own is from before `valid_from`. `None`: there is none for it.
    pub fn kept(&mut self, job: JobId, valid_from: Timestamp) -> Option<Timestamp> {
        let own = self.moments.get(&job).copied()?;
        if own >= valid_from {
            return Some(own);
        }
        let next = self.by_time.range((valid_from, JobId::from_number(0))..).next().copied();
        let Some((moment, other)) = next else {
            self.forget(job);
            return None;
        };
        for (at, whose) in [(own, job), (moment, other)] {
            self.by_time.remove(&(at, whose));
        }
        for (at, whose) in [(moment, job), (own, other)] {
            self.by_time.insert((at, whose));
            self.moments.insert(whose, at);
        }
        Some(moment)
    }

    /// The job uses its moment.
    pub fn forget(&mut self, job: JobId) {
        if let Some(moment) = self.moments.remove(&job) {
            self.by_time.remove(&(moment, job));
        }
    }
}

/// The last calls that were made, so that those which were held up on their way do not crowd together.
#[derive(Clone, Debug)]
pub struct Made {
    window: Duration,
    count: usize,
    calls: VecDeque<Timestamp>,
}

/// Of a faster rate the calls are not remembered one by one.
const REMEMBERED_MAX: usize = 10_000;

impl Made {
    /// The share of the rate that was used up to now, where calls are remembered.
    pub fn used(&self, now: Timestamp) -> Option<f64> {
        let recent = self.calls.iter().rev().take_while(|at| now.since(**at) < self.window).count();
        (self.count <= REMEMBERED_MAX).then(|| recent as f64 / self.count.max(1) as f64)
    }

    pub fn new(rate: &Rate) -> Made {
        let window = rate.window().saturating_mul(200 + SLACK_PERCENT) / 200;
        Made { window, count: usize::try_from(rate.count().get()).unwrap_or(usize::MAX), calls: VecDeque::new() }
    }

    /// How long the next call must still be held back; it counts as made then.
    pub fn hold(&mut self, now: Timestamp) -> Duration {
        if self.count > REMEMBERED_MAX {
            return Duration::ZERO;
        }
        let full = self.calls.len() >= self.count;
        let free_at = if full { self.calls.pop_front().map(|oldest| oldest + self.window) } else { None };
        let at = free_at.map_or(now, |free_at| free_at.max(now));
        self.calls.push_back(at);
        at.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_millis(millis)
    }

    fn pace(rate: &str) -> Moments {
        Moments::new(&rate.parse().expect("a rate"), Duration::ZERO)
    }

    #[test]
    fn e2_moments_are_evenly_apart_and_slower_than_the_rate() {
        let mut pace = pace("100/10s");
        assert_eq!((pace.every(), pace.block()), (Duration::from_millis(105), 9));
        assert_eq!(pace.take(at(0)), None);
        pace.refill(at(0), 3);
        let taken: Vec<_> = (0..4).map(|_| pace.take(at(0))).collect();
        assert_eq!(taken, [Some(at(0)), Some(at(105)), Some(at(210)), None]);
    }

    #[test]
    fn e2_moments_that_nobody_used_are_gone() {
        let mut pace = pace("10/s");
        pace.refill(at(0), 9);
        assert_eq!(pace.take(at(445)), Some(at(420)));
        assert_eq!(pace.take(at(551)), Some(at(630)));
        assert_eq!(pace.take(at(90_000)), None);
    }

    #[test]
    fn e2_a_slow_rate_is_taken_one_by_one_and_a_fast_one_in_bounded_blocks() {
        assert_eq!(pace("5/min").block(), 1);
        assert_eq!(pace("1000000/s").block(), BLOCK_CALLS_MAX);
    }

    #[test]
    fn e2_the_share_of_a_rate_that_is_used_goes_up_with_calls_and_down_with_time() {
        let mut made = Made::new(&"4/s".parse().expect("a rate"));
        (0..3).for_each(|nth| assert_eq!(made.hold(at(nth)), Duration::ZERO));
        assert_eq!((made.used(at(10)), made.used(at(5_000))), (Some(0.75), Some(0.0)));
        assert_eq!(Made::new(&"1000000/s".parse().expect("a rate")).used(at(0)), None);
    }

    #[test]
    fn e2_calls_that_were_held_up_do_not_crowd_together() {
        let mut made = Made::new(&"2/s".parse().expect("a rate"));
        assert_eq!([made.hold(at(0)), made.hold(at(0))], [Duration::ZERO; 2]);
        assert_eq!(made.hold(at(100)), Duration::from_millis(925));
        assert_eq!(made.hold(at(1_025)), Duration::ZERO);
        assert_eq!(made.hold(at(9_000)), Duration::ZERO);
    }

    #[test]
    fn e2_who_comes_too_late_takes_the_next_moment_and_nobody_loses_his_right() {
        let mut promised = Promised::default();
        let job = JobId::from_number;
        for (nth, moment) in [(1, 0), (2, 100), (3, 200)] {
            promised.promise(job(nth), at(moment), at(0));
        }
        assert_eq!(promised.kept(job(2), at(90)), Some(at(100)));
        assert_eq!(promised.kept(job(9), at(90)), None, "it was promised nothing");
        assert_eq!(promised.kept(job(1), at(90)), Some(at(100)));
        promised.forget(job(1));
        assert_eq!(promised.kept(job(2), at(110)), Some(at(200)));
        promised.forget(job(2));
        assert_eq!(promised.kept(job(3), at(110)), None, "all are used");
        assert_eq!((promised.moments.len(), promised.by_time.len()), (0, 0));
        promised.promise(job(4), at(0), at(0));
        promised.promise(job(5), at(70_000), at(70_000));
        assert_eq!(promised.moments.len(), 1, "who never came is forgotten");
    }

    #[test]
    fn e2_who_finds_no_moment_queues_behind_those_before() {
        let mut pace = pace("10/s");
        let first = pace.queue(at(0));
        assert_eq!(first, at(30_105));
        assert_eq!(pace.queue(at(5)), first + pace.every());
        assert_eq!(pace.queue(at(600_000)), at(630_105));
    }

    #[test]
    fn c4_who_finds_no_moment_asks_again_in_bounded_time_however_slow_the_rate_is() {
        for rate in ["1/h", "5/min", "10/s"] {
            let mut pace = pace(rate);
            let asked: Vec<_> = (0..10_000).map(|_| pace.queue(at(0))).collect();
            assert!(asked.iter().all(|again| (at(30_000)..=at(300_000)).contains(again)), "{rate}");
            assert!(asked.iter().filter(|again| **again == asked[0]).count() <= 10_000 / 80, "{rate}: not all at once");
        }
    }

    proptest! {
        /// However late they come, no moment is used twice, and none passes while somebody who was promised one is there.
        #[test]
        fn e2_late_ones_use_the_moments_that_pass(order in Just((0u64..40).collect::<Vec<_>>()).prop_shuffle(), each in 1u64..30) {
            let mut promised = Promised::default();
            for nth in 0..40 {
                promised.promise(JobId::from_number(nth + 1), at(nth * 10), at(0));
            }
            let mut used = BTreeSet::new();
            for (nth, job) in order.into_iter().enumerate() {
                let (job, from) = (JobId::from_number(job + 1), at(nth as u64 * each));
                let Some(moment) = promised.kept(job, from) else { continue };
                prop_assert!(moment >= from && used.insert(moment));
                promised.forget(job);
            }
        }

        /// However calls come, in no window are there more than the rate allows.
        #[test]
        fn e2_no_window_has_more_than_the_rate(pauses in prop::collection::vec(0u64..400, 1..300), count in 1u32..50) {
            let mut pace = pace(&format!("{count}/5s"));
            let (mut now, mut free, mut calls) = (at(0), at(0), Vec::new());
            for pause in pauses {
                now = now + Duration::from_millis(pause);
                let at = pace.take(now).unwrap_or_else(|| {
                    let first = free.max(now);
                    pace.refill(first, pace.block());
                    free = first + pace.every() * pace.block();
                    pace.take(now).expect("it was just refilled")
                });
                calls.push(at.max(now));
            }
            calls.sort();
            for (nth, call) in calls.iter().enumerate() {
                let within = calls[nth..].iter().take_while(|other| other.since(*call) < Duration::from_secs(5)).count();
                prop_assert!(within <= count as usize, "{within} of {count}");
            }
        }
    }
}
