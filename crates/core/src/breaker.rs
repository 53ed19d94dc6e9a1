//! A circuit breaker: when too many calls to a partner fail, it is left alone for a while, and then asked one call at a time
//! whether it is back. Waiting for it costs no attempt.

use crate::time::Timestamp;
use std::time::Duration;

/// The window is counted in so many parts, and forgotten part by part.
const PARTS: usize = 10;

/// When to leave a partner alone, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// From this share of failures on, in hundredths.
    pub errors_percent: u8,
    /// Of the calls of so long.
    pub window: Duration,
    /// With fewer calls than this nothing is concluded.
    pub calls_min: u32,
    /// How long it is left alone before the first probe, and after a probe that failed.
    pub open_for: Duration,
    /// How many probes in a row must succeed.
    pub probes: u32,
}

impl Default for BreakerRule {
    fn default() -> Self {
        BreakerRule {
            errors_percent: 50,
            window: Duration::from_secs(30),
            calls_min: 20,
            open_for: Duration::from_secs(30),
            probes: 3,
        }
    }
}

/// Does such an answer say that the partner is not well? What it refuses is our affair.
pub const fn is_failure(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

/// May a call be made now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Go,
    /// It is the one call that finds out whether the partner is back.
    Probe,
    /// Not before then.
    Wait(Timestamp),
}

/// What people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Circuit {
    Closed,
    Open,
    HalfOpen,
}

impl Circuit {
    pub const ALL: [Circuit; 3] = [Circuit::Closed, Circuit::Open, Circuit::HalfOpen];

    pub const fn word(self) -> &'static str {
        match self {
            Circuit::Closed => "closed",
            Circuit::Open => "open",
            Circuit::HalfOpen => "half_open",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    calls: u32,
    errors: u32,
}

/// Why a partner is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// So many of the calls in its window failed.
    TooMany { calls: u64, errors: u64 },
    /// It was asked whether it is back, and is not.
    ProbeFailed,
}

#[derive(Clone, Debug)]
enum State {
    Closed {
        parts: [Count; PARTS],
        newest: i64,
    },
    Open {
        until: Timestamp,
        because: Opened,
    },
    /// `probe` is when the one that is out ought to be over. It is told when it is: until then there is no other.
    HalfOpen {
        succeeded: u32,
        probe: Option<Timestamp>,
    },
}

#[derive(Clone, Debug)]
pub struct Breaker {
    rule: BreakerRule,
    state: State,
}

impl Breaker {
    pub fn new(rule: BreakerRule) -> Breaker {
        Breaker { rule, state: State::closed() }
    }

    pub const fn rule(&self) -> BreakerRule {
        self.rule
    }

    /// What was said of it has changed. What it knows of the partner has not: an open circuit stays open as long as it was to.
    pub fn follow(&mut self, rule: BreakerRule) {
        // The parts of another window are others.
        if self.rule.window != rule.window && self.circuit() == Circuit::Closed {
            self.state = State::closed();
        }
        self.rule = rule;
    }

    pub fn circuit(&self) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    /// While it is open: until when, and why.
    pub fn opened(&self) -> Option<(Timestamp, Opened)> {
        match self.state {
            State::Open { until, because } => Some((until, because)),
            State::Closed { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// `probe_max` is how long a call may take. Whoever is let through as a probe reports how it ended, or forgoes it.
    pub fn ask(&mut self, now: Timestamp, probe_max: Duration) -> Ask {
        match &mut self.state {
            State::Closed { .. } => Ask::Go,
            State::Open { until, .. } if now < *until => Ask::Wait(*until),
            State::HalfOpen { probe: Some(over_at), .. } => {
                // What comes before the call takes its time, too: a probe may be late, and end long before it must.
                let over_at = if now < *over_at { *over_at } else { now + probe_max };
                Ask::Wait(over_at.min(now + self.rule.open_for))
            }
            State::Open { .. } => {
                self.state = State::HalfOpen { succeeded: 0, probe: Some(now + probe_max) };
                Ask::Probe
            }
            State::HalfOpen { probe, .. } => {
                *probe = Some(now + probe_max);
                Ask::Probe
            }
        }
    }

    /// The probe came to nothing that says how the partner is.
    pub fn forgo(&mut self) {
        if let State::HalfOpen { probe, .. } = &mut self.state {
            *probe = None;
        }
    }

    /// How a call ended that was let through, as a probe or not.
    pub fn report(&mut self, now: Timestamp, is_probe: bool, failed: bool) {
        match &mut self.state {
            State::Closed { parts, newest } => {
                turn(parts, newest, part_of(now, &self.rule));
                let part = &mut parts[0];
                part.calls = part.calls.saturating_add(1);
                part.errors = part.errors.saturating_add(u32::from(failed));
                let (calls, errors) = counted(parts);
                if failed && is_broken(calls, errors, &self.rule) {
                    let because = Opened::TooMany { calls, errors };
                    self.state = State::Open { until: now + self.rule.open_for, because };
                }
            }
            // A call that began before the circuit opened says nothing new.
            State::Open { .. } => {}
            State::HalfOpen { .. } if !is_probe => {}
            State::HalfOpen { .. } if failed => {
                self.state = State::Open { until: now + self.rule.open_for, because: Opened::ProbeFailed };
            }
            State::HalfOpen { succeeded, probe } => {
                *succeeded += 1;
                *probe = None;
                if *succeeded >= self.rule.probes {
                    self.state = State::closed();
                }
            }
        }
    }
}

/// Those who were sent away, from an open circuit or a pause. They come back a little after they may ask again, and the more they
/// are the longer it takes them: a backlog that asks all the time keeps the store busy with nothing.
#[derive(Clone, Debug)]
pub struct Away {
    until: Timestamp,
    count: u32,
}

/// Of those who were sent away no more come back in a second, on average.
const BACK_PER_SECOND: u32 = 2_000;

impl Default for Away {
    fn default() -> Self {
        Away { until: Timestamp::from_micros(i64::MIN), count: 0 }
    }
}

impl Away {
    /// When one more comes back who was told to wait until then, about `wait` from now. `dice` is uniform in [0, 1).
    pub fn back_at(&mut self, until: Timestamp, wait: Duration, dice: f64) -> Timestamp {
        // Another pause, others who are sent away.
        if until > self.until + wait / 2 {
            *self = Away { until, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        let spread = (wait / 2).max(Duration::from_secs(1) / BACK_PER_SECOND * self.count);
        until + spread.mul_f64(dice)
    }
}

impl State {
    fn closed() -> State {
        State::Closed { parts: [Count::default(); PARTS], newest: i64::MIN }
    }
}

/// Which part of time it is.
fn part_of(now: Timestamp, rule: &BreakerRule) -> i64 {
    let part = i64::try_from(rule.window.as_micros() / PARTS as u128).unwrap_or(i64::MAX).max(1);
    now.as_micros().div_euclid(part)
}

/// Makes room for a newer part, the newest first. After the clock was set back, the newest goes on being used.
fn turn(parts: &mut [Count; PARTS], newest: &mut i64, part: i64) {
    let passed = part.saturating_sub(*newest);
    if passed <= 0 {
        return;
    }
    let passed = usize::try_from(passed).unwrap_or(PARTS).min(PARTS);
    parts.rotate_right(passed);
    parts[..passed].fill(Count::default());
    *newest = part;
}

/// The calls of the window, and how many of them failed.
fn counted(parts: &[Count; PARTS]) -> (u64, u64) {
    parts.iter().fold((0, 0), |(calls, errors), part| (calls + u64::from(part.calls), errors + u64::from(part.errors)))
}

fn is_broken(calls: u64, errors: u64, rule: &BreakerRule) -> bool {
    calls >= u64::from(rule.calls_min) && errors * 100 >= calls * u64::from(rule.errors_percent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PROBE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn rule() -> BreakerRule {
        BreakerRule { calls_min: 4, probes: 2, ..BreakerRule::default() }
    }

    fn broken() -> Breaker {
        let mut breaker = Breaker::new(rule());
        (0..4).for_each(|_| breaker.report(at(0), false, true));
        assert_eq!(breaker.circuit(), Circuit::Open);
        breaker
    }

    #[test]
    fn e3_it_opens_at_the_share_of_failures_and_not_for_a_few_calls() {
        let mut breaker = Breaker::new(rule());
        for failed in [true, true, true] {
            breaker.report(at(0), false, failed);
            assert_eq!(breaker.circuit(), Circuit::Closed);
        }
        let mut half = Breaker::new(rule());
        for failed in [false, false, true, true] {
            half.report(at(0), false, failed);
        }
        assert_eq!(half.circuit(), Circuit::Open);
        assert_eq!(half.opened(), Some((at(30), Opened::TooMany { calls: 4, errors: 2 })));
        let mut mostly_fine = Breaker::new(rule());
        for failed in [false, false, false, true, true, false, true] {
            mostly_fine.report(at(0), false, failed);
            assert_eq!(mostly_fine.circuit(), Circuit::Closed);
        }
    }

    #[test]
    fn e3_what_a_partner_refuses_is_no_failure_of_it() {
        assert!([408, 429, 500, 503, 599].into_iter().all(is_failure));
        assert!([200, 302, 400, 401, 404, 409, 422].into_iter().all(|status| !is_failure(status)));
    }

    #[test]
    fn e3_old_failures_are_forgotten() {
        let mut breaker = Breaker::new(rule());
        (0..3).for_each(|_| breaker.report(at(0), false, true));
        breaker.report(at(31), false, true);
        assert_eq!(breaker.circuit(), Circuit::Closed);
    }

    #[test]
    fn e3_an_open_circuit_waits_then_probes_one_call_at_a_time_and_closes_after_enough() {
        let mut breaker = broken();
        assert_eq!(breaker.ask(at(29), PROBE), Ask::Wait(at(30)));
        assert_eq!(breaker.ask(at(30), PROBE), Ask::Probe);
        assert_eq!(breaker.ask(at(31), PROBE), Ask::Wait(at(35)));
        breaker.report(at(32), true, false);
        assert_eq!(breaker.ask(at(32), PROBE), Ask::Probe);
        breaker.report(at(33), true, false);
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert_eq!(breaker.ask(at(33), PROBE), Ask::Go);
    }

    #[test]
    fn c4_a_changed_rule_counts_from_the_next_call_on_and_closes_no_circuit() {
        let mut breaker = broken();
        breaker.follow(BreakerRule { probes: 1, open_for: Duration::from_secs(60), ..rule() });
        assert_eq!(breaker.ask(at(29), PROBE), Ask::Wait(at(30)));
        assert_eq!(breaker.ask(at(30), PROBE), Ask::Probe);
        breaker.report(at(31), true, true);
        assert_eq!(breaker.ask(at(32), PROBE), Ask::Wait(at(91)));
        let mut careful = Breaker::new(rule());
        (0..3).for_each(|_| careful.report(at(0), false, true));
        careful.follow(BreakerRule { calls_min: 100, ..rule() });
        careful.report(at(0), false, true);
        assert_eq!(careful.circuit(), Circuit::Closed);
        careful.follow(rule());
        careful.report(at(0), false, true);
        assert_eq!(careful.circuit(), Circuit::Open, "what was counted before still counts");
    }

    #[test]
    fn e3_a_failed_probe_opens_again_and_one_that_was_not_made_is_replaced() {
        let mut breaker = broken();
        assert_eq!(breaker.ask(at(30), PROBE), Ask::Probe);
        assert_eq!(breaker.opened(), None);
        breaker.report(at(31), true, true);
        assert_eq!(breaker.opened(), Some((at(61), Opened::ProbeFailed)));
        assert_eq!(breaker.ask(at(32), PROBE), Ask::Wait(at(61)));
        assert_eq!(breaker.ask(at(61), PROBE), Ask::Probe);
        breaker.forgo();
        assert_eq!(breaker.ask(at(61), PROBE), Ask::Probe);
    }

    #[test]
    fn e3_a_probe_that_takes_longer_than_it_ought_to_is_still_the_only_one() {
        let mut breaker = broken();
        assert_eq!(breaker.ask(at(30), PROBE), Ask::Probe);
        // It was held up before its call. Who asks meanwhile comes back soon, and not at once.
        for late in [35, 36, 90] {
            assert_eq!(breaker.ask(at(late), PROBE), Ask::Wait(at(late + 5)));
        }
        assert_eq!(breaker.ask(at(90), 60 * PROBE), Ask::Wait(at(120)));
        breaker.report(at(91), true, false);
        assert_eq!(breaker.ask(at(91), PROBE), Ask::Probe);
    }

    #[test]
    fn e3_a_call_from_before_the_outage_neither_closes_the_circuit_nor_takes_the_place_of_a_probe() {
        for failed in [true, false] {
            let mut breaker = broken();
            assert_eq!(breaker.ask(at(30), PROBE), Ask::Probe);
            (0..2).for_each(|_| breaker.report(at(31), false, failed));
            assert_eq!((breaker.circuit(), breaker.ask(at(31), PROBE)), (Circuit::HalfOpen, Ask::Wait(at(35))));
        }
    }

    #[test]
    fn e3_nobody_waits_longer_for_a_probe_than_for_an_open_circuit() {
        let mut breaker = broken();
        assert_eq!(breaker.ask(at(30), 60 * PROBE), Ask::Probe);
        assert_eq!(breaker.ask(at(31), 60 * PROBE), Ask::Wait(at(61)));
    }

    #[test]
    fn e3_a_few_come_back_soon_and_many_one_after_the_other() {
        let (wait, mut away) = (Duration::from_secs(1), Away::default());
        assert_eq!(away.back_at(at(1), wait, 0.0), at(1));
        assert_eq!(away.back_at(at(1), wait, 0.5), at(1) + Duration::from_millis(250));
        let last = (0..20_000).map(|nth| away.back_at(at(1), wait, f64::from(nth % 100) / 100.0)).max();
        assert!(last.is_some_and(|last| last > at(10)), "{last:?}");
        assert_eq!(away.back_at(at(2), wait, 0.5), at(2) + Duration::from_millis(250));
    }

    proptest! {
        /// However long a partner is down, no more is let through than what opened the circuit and one probe per pause.
        #[test]
        fn e3_calls_during_an_outage_are_bounded(asks in prop::collection::vec(0u64..2_000, 1..600)) {
            let mut breaker = Breaker::new(rule());
            let (mut now, mut calls) = (0, 0u64);
            for pause in asks {
                now += pause;
                let moment = at(0) + Duration::from_millis(now);
                let ask = breaker.ask(moment, PROBE);
                if !matches!(ask, Ask::Wait(_)) {
                    calls += 1;
                    breaker.report(moment, ask == Ask::Probe, true);
                }
            }
            // While it is closed, calls that are too far apart to be counted together are let through.
            let apart = now / 7_500 + 1;
            prop_assert!(calls <= 4 + apart + now / 30_000, "{calls} calls in {now} ms");
        }
    }
}
