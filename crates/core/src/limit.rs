//! Rate limits: how much may pass, and when the next may. A bucket that refills evenly (GCRA), for senders, addresses
//! and destinations alike. The arithmetic is exact: no rate loses or gains a token by rounding.

use crate::time::{Timestamp, parse_duration};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::str::FromStr;
use std::time::Duration;

const COUNT_MAX: u32 = 1_000_000_000;
const WINDOW_SECONDS_MAX: u64 = 31 * 86_400;
const RETRY_AFTER_SECONDS_MAX: u64 = 86_400;

/// So many in such a time. As many may come at once; then they come evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    /// Whole seconds, for the header that tells it knows no others.
    seconds: NonZeroU32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRate {
    #[error("`{0}` is not a rate; write how many in what time, such as `100/10s`, `5/min` or `1000/h`")]
    NotARate(String),
    #[error("`{0}` lets nothing pass; write at least 1")]
    Zero(String),
    #[error("`{0}` counts in a time that is not 1 or more whole seconds; write `20/s` instead of `2/100ms`")]
    Window(String),
    #[error("`{0}` is beyond what can be counted; at most {COUNT_MAX} in at most 31d")]
    TooMuch(String),
}

impl FromStr for Rate {
    type Err = BadRate;
    fn from_str(text: &str) -> Result<Self, BadRate> {
        let said = || text.chars().take(40).collect::<String>();
        let (count, window) = text.split_once('/').ok_or_else(|| BadRate::NotARate(said()))?;
        let (count, window) = (count.trim(), window.trim());
        if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadRate::NotARate(said()));
        }
        let count: u32 = count.parse().map_err(|_| BadRate::TooMuch(said()))?;
        let window = match window {
            "s" | "sec" | "second" => Duration::from_secs(1),
            "m" | "min" | "minute" => Duration::from_secs(60),
            "h" | "hour" => Duration::from_secs(3_600),
            "d" | "day" => Duration::from_secs(86_400),
            length => parse_duration(length).map_err(|_| BadRate::NotARate(said()))?,
        };
        if window.is_zero() || window.subsec_nanos() != 0 {
            return Err(BadRate::Window(said()));
        }
        if count > COUNT_MAX || window.as_secs() > WINDOW_SECONDS_MAX {
            return Err(BadRate::TooMuch(said()));
        }
        let count = NonZeroU32::new(count).ok_or_else(|| BadRate::Zero(said()))?;
        let seconds = u32::try_from(window.as_secs()).ok().and_then(NonZeroU32::new);
        Ok(Rate { count, seconds: seconds.ok_or_else(|| BadRate::Window(said()))? })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}s", self.count, self.seconds)
    }
}

impl Rate {
    pub fn count(&self) -> NonZeroU32 {
        self.count
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs(self.seconds.get().into())
    }

    /// The value of `RateLimit-Policy`.
    pub fn policy_header(&self, name: &'static str) -> String {
        format!("\"{name}\";q={};w={}", self.count, self.seconds)
    }

    /// One token, in the unit of a level.
    fn token(&self) -> i128 {
        i128::from(self.seconds.get()) * 1_000_000
    }

    fn all_tokens(&self) -> i128 {
        self.token() * i128::from(self.count.get())
    }

    fn moment(&self, now: Timestamp) -> i128 {
        i128::from(now.as_micros()) * i128::from(self.count.get())
    }

    fn span(&self, units: i128) -> Duration {
        let count = i128::from(self.count.get());
        let micros = (units.max(0) + count - 1) / count;
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    Taken {
        /// How many more could be taken right now.
        remaining: u32,
        /// When the bucket is full again.
        reset: Duration,
    },
    /// Nothing was taken; after this time it can be.
    Wait(Duration),
}

impl Take {
    /// The value of `RateLimit`. Only for a caller that is known: it tells how much we can bear.
    pub fn header(&self, name: &'static str) -> String {
        let (remaining, reset) = match self {
            Take::Taken { remaining, reset } => (*remaining, *reset),
            Take::Wait(wait) => (0, *wait),
        };
        format!("\"{name}\";r={remaining};t={}", whole_seconds(reset))
    }
}

/// The value of `Retry-After`: never before `t` of the RateLimit header, and a tenth more by the dice (in [0, 1)), so that
/// those who wait do not come back all at once.
pub fn retry_after_seconds(wait: Duration, dice: f64) -> u64 {
    let spread = wait.mul_f64(0.1 * dice.clamp(0.0, 1.0));
    whole_seconds(wait.saturating_add(spread)).clamp(1, RETRY_AFTER_SECONDS_MAX)
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// How far a bucket is emptied: the moment at which it is full again, in microseconds times the rate's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Level(i128);

const FULL: Level = Level(i128::MIN);

impl Level {
    fn at(self, rate: &Rate, now: Timestamp) -> i128 {
        let now = rate.moment(now);
        // No bucket is emptier than empty: after the clock was set back, nobody waits longer than one window.
        self.0.clamp(now, now + rate.all_tokens())
    }

    /// More than the whole bucket counts as the whole bucket; otherwise it could never pass.
    fn take(self, rate: &Rate, now: Timestamp, n: u32) -> (Level, Take) {
        let moment = rate.moment(now);
        let level = self.at(rate, now);
        let after = level + rate.token() * i128::from(n.min(rate.count.get()));
        let room = moment + rate.all_tokens() - after;
        if room < 0 {
            return (Level(level), Take::Wait(rate.span(-room)));
        }
        let remaining = u32::try_from(room / rate.token()).unwrap_or(u32::MAX);
        (Level(after), Take::Taken { remaining, reset: rate.span(after - moment) })
    }

    fn given_back(self, rate: &Rate, now: Timestamp, n: u32) -> Level {
        Level(self.at(rate, now) - rate.token() * i128::from(n))
    }
}

/// One limit.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: Rate,
    level: Level,
}

impl Bucket {
    pub fn full(rate: Rate) -> Self {
        Bucket { rate, level: FULL }
    }

    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    pub fn take(&mut self, now: Timestamp, n: u32) -> Take {
        let (level, take) = self.level.take(&self.rate, now, n);
        self.level = level;
        take
    }
}

/// A limit that refuses nobody: who comes too soon is told when its turn is.
#[derive(Clone, Debug)]
pub struct Pace {
    bucket: Bucket,
    /// The turn of the last one that has to wait.
    last: Timestamp,
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        Pace { bucket: Bucket::full(rate), last: Timestamp::from_micros(i64::MIN) }
    }

    /// When the next one's turn is: now, or one step after the one before it.
    pub fn run_at(&mut self, now: Timestamp) -> Timestamp {
        let rate = *self.bucket.rate();
        let step = rate.span(rate.token());
        self.last = if self.last > now {
            self.last + step
        } else {
            match self.bucket.take(now, 1) {
                Take::Taken { .. } => return now,
                Take::Wait(wait) => now + wait,
            }
        };
        self.last
    }
}

/// A pace for each of many. Who does not wait for a turn need not be remembered for long.
#[derive(Debug)]
pub struct Paces<K> {
    rate: Rate,
    keys_max: NonZeroUsize,
    paces: HashMap<K, Pace>,
}

impl<K: Clone + Eq + Hash> Paces<K> {
    pub fn new(rate: Rate, keys_max: NonZeroUsize) -> Self {
        Paces { rate, keys_max, paces: HashMap::new() }
    }

    pub fn run_at(&mut self, key: &K, now: Timestamp) -> Timestamp {
        if self.paces.len() >= self.keys_max.get() && !self.paces.contains_key(key) {
            self.paces.retain(|_, pace| pace.last > now);
        }
        self.paces.entry(key.clone()).or_insert_with(|| Pace::new(self.rate)).run_at(now)
    }
}

/// One limit for each of many: senders, addresses. Holds at most `keys_max` of them.
///
/// A bucket that is full again is as good as none, so a newcomer takes the place of the one that is fullest. Only when
/// every bucket is in debt is one forgiven: the one with the smallest debt, never the worst offender.
#[derive(Debug)]
pub struct Limits<K> {
    rate: Rate,
    keys_max: NonZeroUsize,
    levels: HashMap<K, Level>,
    fullest_first: BTreeSet<(Level, K)>,
}

impl<K: Clone + Eq + Hash + Ord> Limits<K> {
    pub fn new(rate: Rate, keys_max: NonZeroUsize) -> Self {
        Limits { rate, keys_max, levels: HashMap::new(), fullest_first: BTreeSet::new() }
    }

    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    /// How many are remembered.
    pub fn keys(&self) -> usize {
        self.levels.len()
    }

    pub fn take(&mut self, key: &K, now: Timestamp, n: u32) -> Take {
        let old = self.level(key);
        let (level, take) = old.take(&self.rate, now, n);
        if level != old {
            self.remember(key, level);
        }
        take
    }

    /// For what was taken and not used.
    pub fn give_back(&mut self, key: &K, now: Timestamp, n: u32) {
        if self.levels.contains_key(key) {
            self.remember(key, self.level(key).given_back(&self.rate, now, n));
        }
    }

    fn level(&self, key: &K) -> Level {
        self.levels.get(key).copied().unwrap_or(FULL)
    }

    fn remember(&mut self, key: &K, level: Level) {
        match self.levels.get_mut(key) {
            Some(old) => {
                self.fullest_first.remove(&(*old, key.clone()));
                *old = level;
            }
            None => {
                if self.levels.len() >= self.keys_max.get()
                    && let Some((_, fullest)) = self.fullest_first.pop_first()
                {
                    self.levels.remove(&fullest);
                }
                self.levels.insert(key.clone(), level);
            }
        }
        self.fullest_first.insert((level, key.clone()));
    }
}

/// Who an address counts as: an IPv6 network of 64 bits is one customer, and an IPv4 address stays itself in IPv6 dress.
pub fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect("a rate")
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000 + millis * 1000)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a4_who_comes_too_soon_is_given_a_turn_of_its_own() {
        let mut pace = Pace::new(rate("2/s"));
        let turns: Vec<Timestamp> = (0..6).map(|_| pace.run_at(at(0))).collect();
        assert_eq!(turns, [at(0), at(0), at(500), at(1000), at(1500), at(2000)]);
        assert_eq!(pace.run_at(at(1900)), at(2500), "nobody passes who waits");
        assert_eq!(pace.run_at(at(9000)), at(9000));
    }

    #[test]
    fn a4_each_has_a_pace_of_its_own_and_who_waits_is_never_forgotten() {
        let mut paces = Paces::new(rate("1/s"), NonZeroUsize::new(2).expect("2"));
        let turns: Vec<Timestamp> = (0..3).map(|_| paces.run_at(&"a", at(0))).collect();
        assert_eq!(turns, [at(0), at(1000), at(2000)]);
        assert_eq!(paces.run_at(&"b", at(0)), at(0));
        assert_eq!(paces.run_at(&"c", at(0)), at(0));
        assert_eq!(paces.run_at(&"a", at(0)), at(3000));
        assert_eq!(paces.paces.len(), 2, "b did not wait and was forgotten");
    }

    fn taken(remaining: u32, reset: u64) -> Take {
        Take::Taken { remaining, reset: ms(reset) }
    }

    fn check(rate_text: &str, steps: &[(i64, u32, Take)]) {
        let mut bucket = Bucket::full(rate(rate_text));
        for (millis, n, expected) in steps {
            assert_eq!(bucket.take(at(*millis), *n), *expected, "{n} at {millis}");
        }
    }

    #[test]
    fn a4_a_rate_is_read_as_people_write_it() {
        let check = |text: &str, spelled: &str| assert_eq!(rate(text).to_string(), spelled);
        check("100/10s", "100/10s");
        check("5/min", "5/60s");
        check(" 20 / s ", "20/1s");
        check("1/h", "1/3600s");
        check("10/1m30s", "10/90s");
        let refused = |text: &str, hint: &str| {
            let said = text.parse::<Rate>().expect_err(text).to_string();
            assert!(said.contains(hint), "{text}: {said}");
        };
        for bad in ["", "5", "5/", "/s", "-5/s", "1.5/s", "5/fortnight", "+5/s", "5/10", "5/s/s"] {
            refused(bad, "not a rate");
        }
        refused("0/s", "at least 1");
        refused("2/100ms", "20/s");
        refused("2/1.5s", "whole seconds");
        refused("5/0s", "whole seconds");
        refused("99999999999/s", "beyond");
        refused("2000000000/s", "beyond");
        refused("1/32d", "beyond");
    }

    #[test]
    fn t_080_a_burst_passes_and_the_rest_waits_for_its_turn() {
        check(
            "5/s",
            &[
                (0, 1, taken(4, 200)),
                (0, 3, taken(1, 800)),
                (0, 1, taken(0, 1000)),
                (0, 1, Take::Wait(ms(200))),
                (0, 2, Take::Wait(ms(400))),
                (199, 1, Take::Wait(ms(1))),
                (200, 1, taken(0, 1000)),
                (5_000, 5, taken(0, 1000)),
            ],
        );
    }

    #[test]
    fn a4_more_than_the_whole_bucket_is_the_whole_bucket() {
        check("5/s", &[(0, 50, taken(0, 1000)), (500, 50, Take::Wait(ms(500))), (1000, u32::MAX, taken(0, 1000))]);
    }

    #[test]
    fn t_071_a_clock_that_is_set_back_costs_at_most_one_window() {
        check(
            "2/10s",
            &[
                (0, 2, taken(0, 10_000)),
                (-3_600_000, 1, Take::Wait(ms(5_000))),
                (-3_597_000, 1, Take::Wait(ms(2_000))),
                (-3_595_000, 1, taken(0, 10_000)),
                (0, 2, taken(0, 10_000)),
            ],
        );
        let mut bucket = Bucket::full(rate("2/10s"));
        for moment in [i64::MAX, i64::MIN, 0, i64::MAX] {
            bucket.take(Timestamp::from_micros(moment), u32::MAX);
        }
    }

    #[test]
    fn t_080_the_headers_say_what_the_bucket_knows() {
        let check = |take: Take, header: &str| assert_eq!(take.header("per-sender"), header);
        assert_eq!(rate("600/min").policy_header("per-sender"), r#""per-sender";q=600;w=60"#);
        check(taken(42, 16_001), r#""per-sender";r=42;t=17"#);
        check(Take::Wait(ms(200)), r#""per-sender";r=0;t=1"#);
        for (wait, dice, seconds) in [(0, 0.0, 1), (200, 0.9, 1), (10_000, 0.0, 10), (10_000, 0.5, 11)] {
            assert_eq!(retry_after_seconds(ms(wait), dice), seconds, "{wait} {dice}");
        }
        assert_eq!(retry_after_seconds(Duration::from_secs(10_000_000), 1.0), 86_400);
    }

    fn would(limits: &Limits<&'static str>, key: &'static str, now: Timestamp, n: u32) -> Take {
        limits.level(&key).take(&limits.rate, now, n).1
    }

    #[test]
    fn p10_the_table_is_bounded_and_forgets_the_fullest_first() {
        let mut limits = Limits::new(rate("10/10s"), NonZeroUsize::new(3).expect("3"));
        limits.take(&"worst", at(0), 10);
        limits.take(&"mild", at(0), 2);
        limits.take(&"tame", at(0), 1);
        // After 1.5 s only `tame` is out of debt: it goes, and loses nothing.
        limits.take(&"new", at(1_500), 3);
        assert_eq!(limits.keys(), 3);
        assert_eq!(would(&limits, "worst", at(1_500), 2), Take::Wait(ms(500)));
        assert_eq!(would(&limits, "mild", at(1_500), 1), taken(8, 1_500));
        // Now all are in debt: the smallest debt is forgiven, the worst offender is not.
        limits.take(&"flood", at(1_500), 9);
        assert_eq!(limits.keys(), 3);
        assert_eq!(would(&limits, "mild", at(1_500), 1), taken(9, 1_000));
        assert_eq!(would(&limits, "worst", at(1_500), 2), Take::Wait(ms(500)));
        limits.give_back(&"worst", at(1_500), 1);
        assert_eq!(would(&limits, "worst", at(1_500), 2), taken(0, 10_000 - 500));
        limits.give_back(&"unheard of", at(1_500), 1);
        assert_eq!(limits.keys(), 3);
    }

    #[test]
    fn a4_what_is_given_back_can_be_taken_again_but_never_more() {
        let mut limits = Limits::new(rate("2/10s"), NonZeroUsize::new(1).expect("1"));
        assert_eq!(limits.take(&"a", at(0), 2), taken(0, 10_000));
        limits.give_back(&"a", at(0), 1);
        assert_eq!(limits.take(&"a", at(0), 1), taken(0, 10_000));
        limits.give_back(&"a", at(0), 99);
        assert_eq!(limits.take(&"a", at(0), 2), taken(0, 10_000));
        assert_eq!(limits.take(&"a", at(0), 1), Take::Wait(ms(5_000)));
    }

    #[test]
    fn a4_an_ipv6_network_is_one_neighbour() {
        let check = |address: &str, counts_as: &str| {
            assert_eq!(neighbourhood(address.parse().expect("address")), counts_as.parse::<IpAddr>().expect("address"));
        };
        check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::");
        check("2001:db8:1:2::ffff", "2001:db8:1:2::");
        check("2001:db8:1:3::", "2001:db8:1:3::");
        check("192.0.2.7", "192.0.2.7");
        check("::ffff:192.0.2.7", "192.0.2.7");
    }

    proptest! {
        #[test]
        fn a4_no_window_ever_lets_more_than_two_buckets_pass(
            count in 1u32..50, seconds in 1u32..20,
            steps in proptest::collection::vec((0i64..3_000, 0u32..8), 1..200),
        ) {
            let rate = rate(&format!("{count}/{seconds}s"));
            let mut bucket = Bucket::full(rate);
            let (mut now, mut passed) = (0i64, Vec::new());
            for (pause, n) in steps {
                now += pause;
                if let Take::Taken { remaining, .. } = bucket.take(at(now), n) {
                    prop_assert!(remaining <= count);
                    passed.push((now, n.min(count)));
                }
            }
            for (start, _) in &passed {
                let end = start + i64::from(seconds) * 1000;
                let sum: u32 = passed.iter().filter(|(t, _)| t >= start && *t < end).map(|(_, n)| n).sum();
                prop_assert!(sum <= 2 * count);
            }
        }

        #[test]
        fn a4_after_the_wait_it_passes_and_not_before(
            count in 1u32..1_000, seconds in 1u32..1_000, first in 0u32..1_000, n in 1u32..1_000,
        ) {
            let mut bucket = Bucket::full(rate(&format!("{count}/{seconds}s")));
            bucket.take(at(0), first);
            if let Take::Wait(wait) = bucket.clone().take(at(0), n) {
                let passes = |now: Timestamp| matches!(bucket.clone().take(now, n), Take::Taken { .. });
                prop_assert!(passes(at(0) + wait));
                prop_assert!(!passes(at(0) + wait - Duration::from_micros(1)));
            }
        }

        #[test]
        fn p10_the_table_never_outgrows_its_bound_and_is_exact_below_it(keys in proptest::collection::vec((0u16..40, 0i64..500), 1..300)) {
            let mut limits = Limits::new(rate("3/5s"), NonZeroUsize::new(8).expect("8"));
            let mut alone: HashMap<u16, Bucket> = HashMap::new();
            let mut now = 0;
            for (key, pause) in keys {
                now += pause;
                let unbounded = alone.entry(key).or_insert_with(|| Bucket::full(rate("3/5s"))).take(at(now), 1);
                let bounded = limits.take(&key, at(now), 1);
                prop_assert!(limits.keys() <= 8);
                if alone.len() <= 8 {
                    prop_assert_eq!(bounded, unbounded);
                }
            }
        }
    }
}
