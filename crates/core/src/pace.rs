//! The pace of calls to a partner: evenly apart, never more than its rate in any window. Moments are taken from the store in
//! blocks, so that nodes share a rate without asking each other for every call, and a restart takes none twice.
//!
//! A moment is nobody's before a call is made at it. Who comes too early is sent away until there may be one, and takes the next that is there
//! when it comes back, on whichever node that is: a moment that was kept for one job would pass unused when another node claims that job.

use crate::limit::Rate;
use crate::time::Timestamp;
use std::collections::VecDeque;
use std::time::Duration;

/// So many hundredths slower than the rate allows. Half of that a call may be late, the other half its way may take longer
/// than another's; and still no window has too many.
const SLACK_PERCENT: u32 = 5;
/// A block covers about this time. While one node uses its block the others have none, and send their jobs away: so it is short where others
/// were heard of, and long where it saves a node that is alone the asking.
const BLOCK: Duration = Duration::from_secs(1);
const BLOCK_SHARED: Duration = Duration::from_millis(100);
/// Others are expected for so long after they were heard of.
const SHARED_FOR: Duration = Duration::from_secs(60);
/// A moment so near is waited for on the spot: to come back would take longer. None is taken from the store that is further ahead: a node
/// that dies takes its moments with it.
pub const NEAR: Duration = Duration::from_millis(25);
/// Nobody is sent away for longer: by then the rate may be another.
const AWAY_MAX: Duration = Duration::from_secs(300);
/// Nor is the first of those who are, however long all moments are taken.
const AWAY_FIRST_MAX: Duration = Duration::from_secs(30);
/// Of those who are sent away from a slow partner, the next comes back no later after the one before.
const AWAY_APART_MAX: Duration = Duration::from_secs(3);

/// What the store says to who asks for moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// As many as were asked for, from this one on.
    From(Timestamp),
    /// None: the next that is nobody's is this one, and it is further ahead than was asked for.
    Taken { free_at: Timestamp },
}

/// What becomes of somebody who wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It calls at this moment, which is now or near.
    Call(Timestamp),
    /// It comes back then.
    Back(Timestamp),
}

/// The moments in a row that are ours.
#[derive(Clone, Debug)]
pub struct Moments {
    every: Duration,
    /// A moment that has passed for longer is gone.
    late_max: Duration,
    next: Timestamp,
    left: u32,
    /// The first that is nobody's, as far as we heard.
    free_at: Timestamp,
    /// When it was last heard that others have taken some.
    shared_at: Timestamp,
    /// When the last of those comes back that were sent away.
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
            free_at: long_ago,
            shared_at: long_ago,
            queued_to: long_ago,
        }
    }

    pub const fn every(&self) -> Duration {
        self.every
    }

    /// How many moments to take at once.
    pub fn block(&self, now: Timestamp) -> u32 {
        let span = if now.since(self.shared_at) < SHARED_FOR { BLOCK_SHARED } else { BLOCK };
        // They are a microsecond apart at the least.
        u32::try_from(span.as_nanos() / self.every.as_nanos().max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// `None`: the store has to be asked. Moments that nobody used are gone: they are not saved up.
    pub fn turn(&mut self, now: Timestamp) -> Option<Turn> {
        let late = (now - self.late_max).since(self.next).as_nanos().div_ceil(self.every.as_nanos().max(1));
        self.pass(u32::try_from(late).unwrap_or(u32::MAX));
        let first = if self.left > 0 { self.next } else { self.free_at };
        if first > now + NEAR {
            return Some(Turn::Back(self.queue(first, now)));
        }
        (self.left > 0).then(|| {
            self.pass(1);
            Turn::Call(first)
        })
    }

    /// The answer of the store to who asked for so many. The first of them is the asker's, however long the answer took: where the store is
    /// slow, all may be gone when it comes.
    pub fn hear(&mut self, reserved: Reserved, calls: u32, now: Timestamp) -> Turn {
        match reserved {
            Reserved::From(first) => {
                (self.next, self.left, self.free_at) = (first, calls, first + self.every * calls);
                self.pass(1);
                Turn::Call(first)
            }
            Reserved::Taken { free_at } => {
                (self.free_at, self.shared_at) = (free_at, now);
                Turn::Back(self.queue(free_at.max(now + NEAR), now))
            }
        }
    }

    /// The next so many are used, or gone.
    fn pass(&mut self, calls: u32) {
        let calls = calls.min(self.left);
        (self.next, self.left) = (self.next + self.every * calls, self.left - calls);
    }

    /// When to come back, when there is no moment before `first`: one after the other, as if each had one from then on. Where that would be
    /// too long, they begin again at the front.
    fn queue(&mut self, first: Timestamp, now: Timestamp) -> Timestamp {
        let front = first.min(now + AWAY_FIRST_MAX);
        let next = front.max(self.queued_to + self.apart());
        self.queued_to = if next > now + AWAY_MAX { front } else { next };
        // A little before the moment: who is late may lose it.
        self.queued_to - NEAR
    }

    /// As far apart as moments are; or so that some of them come back right when there is one.
    fn apart(&self) -> Duration {
        let within = self.every.as_nanos().div_ceil(AWAY_APART_MAX.as_nanos()).max(1);
        self.every / u32::try_from(within).unwrap_or(u32::MAX)
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
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_millis(millis)
    }

    fn pace(rate: &str) -> Moments {
        Moments::new(&rate.parse().expect("a rate"), Duration::ZERO)
    }

    fn call(millis: u64) -> Option<Turn> {
        Some(Turn::Call(at(millis)))
    }

    fn back(millis: u64) -> Option<Turn> {
        Some(Turn::Back(at(millis) - NEAR))
    }

    /// Others have moments of their own.
    fn shared(rate: &str) -> Moments {
        let mut pace = pace(rate);
        pace.hear(Reserved::Taken { free_at: at(0) }, 1, at(0));
        Moments { queued_to: at(0), ..pace }
    }

    #[test]
    fn e2_moments_are_evenly_apart_and_slower_than_the_rate() {
        let mut pace = pace("50/s");
        assert_eq!((pace.every(), pace.turn(at(0))), (Duration::from_millis(21), None), "the store is asked");
        assert_eq!(pace.hear(Reserved::From(at(0)), 4, at(0)), Turn::Call(at(0)));
        assert_eq!([0, 40, 40].map(|now| pace.turn(at(now))), [call(21), call(42), call(63)]);
        assert_eq!([58, 60].map(|now| pace.turn(at(now))), [back(84), None], "they are used up");
    }

    #[test]
    fn e2_moments_that_nobody_used_are_gone() {
        let mut pace = pace("50/s");
        pace.hear(Reserved::From(at(0)), 4, at(0));
        assert_eq!([60, 60].map(|now| pace.turn(at(now))), [call(42), call(63)]);
        assert_eq!(pace.turn(at(90_000)), None);
    }

    #[test]
    fn e2_a_slow_rate_is_taken_one_by_one_and_a_fast_one_in_bounded_blocks() {
        for (rate, alone, among_others) in
            [("5/min", 1, 1), ("20/s", 19, 1), ("50/s", 47, 4), ("100000/s", 95_238, 9_523)]
        {
            assert_eq!((pace(rate).block(at(0)), shared(rate).block(at(0))), (alone, among_others), "{rate}");
        }
        assert_eq!(shared("50/s").block(at(60_000)), 47, "the others are gone");
    }

    #[test]
    fn e2_who_comes_too_early_comes_back_behind_those_before() {
        let mut pace = shared("10/s");
        pace.hear(Reserved::From(at(0)), 1, at(0));
        assert_eq!([0, 0, 0].map(|now| pace.turn(at(now))), [back(105), back(210), back(315)]);
        assert_eq!([79, 80].map(|now| pace.turn(at(now))), [back(420), None], "nobody asks before it is near");
        // Others have taken what comes next.
        assert_eq!(Some(pace.hear(Reserved::Taken { free_at: at(600) }, 1, at(80))), back(600));
        assert_eq!([500, 575].map(|now| pace.turn(at(now))), [back(705), None]);
    }

    #[test]
    fn e2_where_the_store_is_slow_whoever_asked_has_a_moment_all_the_same() {
        let mut pace = pace("50/s");
        assert_eq!(pace.hear(Reserved::From(at(0)), 4, at(5_000)), Turn::Call(at(0)));
        assert_eq!(pace.turn(at(5_000)), None, "the others of the block have passed");
        // And who heard too late of one that it was free does not ask again at once.
        assert_eq!(Some(pace.hear(Reserved::Taken { free_at: at(5_020) }, 4, at(6_000))), back(6_025));
    }

    #[test]
    fn c4_who_finds_no_moment_asks_again_in_bounded_time_however_slow_the_rate_is() {
        for rate in ["1/h", "5/min", "10/s"] {
            let mut pace = pace(rate);
            pace.hear(Reserved::Taken { free_at: at(0) + pace.every() * 1_000 }, 1, at(0));
            let asked: Vec<_> = (0..10_000).map(|_| pace.turn(at(0)).expect("it is known")).collect();
            let is_bounded =
                |turn: &Turn| matches!(turn, Turn::Back(then) if (at(29_000)..=at(300_000)).contains(then));
            assert!(asked.iter().all(is_bounded), "{rate}");
            assert!(asked.iter().filter(|again| **again == asked[0]).count() <= 10_000 / 80, "{rate}: not all at once");
        }
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

    /// What the store remembers of a partner, for all nodes.
    #[derive(Default)]
    struct Row(Option<Timestamp>);

    impl Row {
        fn reserve(&mut self, calls: u32, every: Duration, now: Timestamp) -> Reserved {
            let free_at = self.0.map_or(now, |last| last + every);
            if free_at >= now + NEAR && self.0.is_some() {
                return Reserved::Taken { free_at };
            }
            let first = free_at.max(now);
            self.0 = Some(first + every * (calls - 1));
            Reserved::From(first)
        }
    }

    /// A backlog that some nodes work off: when each call is made, and how often jobs asked. Who was sent away is claimed by any of the
    /// nodes, up to 20 ms late.
    fn worked_off(rate: &str, nodes: usize, jobs: usize, mut seed: u64) -> (Vec<Timestamp>, usize) {
        let mut dice = move |sides: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % sides
        };
        let (mut row, mut nodes) = (Row::default(), vec![pace(rate); nodes]);
        let mut due: BinaryHeap<_> = (0..jobs).map(|_| Reverse(at(dice(1_000)))).collect();
        let (mut calls, mut asked) = (Vec::new(), 0);
        while let Some(Reverse(now)) = due.pop() {
            asked += 1;
            let nth = dice(nodes.len() as u64) as usize;
            let pace = &mut nodes[nth];
            let turn = pace.turn(now).unwrap_or_else(|| {
                let calls = pace.block(now);
                pace.hear(row.reserve(calls, pace.every(), now), calls, now)
            });
            match turn {
                Turn::Call(moment) => calls.push(moment.max(now)),
                Turn::Back(until) => due.push(Reverse(until + Duration::from_millis(dice(20)))),
            }
        }
        calls.sort();
        (calls, asked)
    }

    #[test]
    fn e2_however_many_nodes_share_a_rate_they_use_it_up_and_not_more() {
        for (rate, count, window, jobs) in
            [("200/s", 200, 1, 6_000), ("2000/10s", 2_000, 10, 6_000), ("20/s", 20, 1, 600), ("5/min", 5, 60, 60)]
        {
            for nodes in [1, 2, 4] {
                let (calls, asked) = worked_off(rate, nodes, jobs, nodes as u64);
                assert_eq!(calls.len(), jobs);
                let window = Duration::from_secs(window);
                let fullest = calls
                    .iter()
                    .enumerate()
                    .map(|(nth, call)| calls[nth..].iter().take_while(|other| other.since(*call) < window).count());
                assert!(fullest.max() <= Some(count), "{rate} on {nodes}");
                let least = pace(rate).every() * jobs as u32;
                let took = calls[jobs - 1].since(calls[0]);
                assert!(took < least.mul_f64(1.15), "{rate} on {nodes}: {took:?}, and {least:?} would do");
                let most = if pace(rate).block(at(0)) == 1 { 6 * nodes } else { 2 * (nodes + 1) };
                assert!(asked <= most * jobs, "{rate} on {nodes}: {asked} questions for {jobs} calls");
            }
        }
    }

    proptest! {
        /// However calls come, in no window are there more than the rate allows.
        #[test]
        fn e2_no_window_has_more_than_the_rate(pauses in prop::collection::vec(0u64..400, 1..300), count in 1u32..50) {
            let (mut pace, mut row) = (pace(&format!("{count}/5s")), Row::default());
            let (mut now, mut calls) = (at(0), Vec::new());
            for pause in pauses {
                now = now + Duration::from_millis(pause);
                let turn = pace.turn(now).unwrap_or_else(|| {
                    let calls = pace.block(now);
                    pace.hear(row.reserve(calls, pace.every(), now), calls, now)
                });
                if let Turn::Call(moment) = turn {
                    calls.push(moment.max(now));
                }
            }
            prop_assert!(!calls.is_empty());
            calls.sort();
            for (nth, call) in calls.iter().enumerate() {
                let within = calls[nth..].iter().take_while(|other| other.since(*call) < Duration::from_secs(5)).count();
                prop_assert!(within <= count as usize, "{within} of {count}");
            }
        }
    }
}
