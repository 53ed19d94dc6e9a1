//! The objective: so many of a hundred jobs end well so soon after they were accepted. What may miss it is a budget, and how fast
//! that is spent says whether somebody has to get up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// From acceptance to the end.
    pub end_to_end: Duration,
    pub target: Target,
}

impl Default for Slo {
    fn default() -> Slo {
        Slo { end_to_end: Duration::from_secs(30), target: Target(95_000) }
    }
}

impl Slo {
    /// A job that became a dead letter did not come through, however soon.
    pub fn is_met(&self, ended_well: bool, took: Duration) -> bool {
        ended_well && took <= self.end_to_end
    }

    /// What a window of these jobs spends.
    pub fn burn(&self, window: Window, counted: Counted) -> Burn {
        let allowed = 1.0 - self.target.ratio();
        let rate = (counted.jobs > 0).then(|| counted.missed as f64 / counted.jobs as f64 / allowed);
        Burn { window, counted, rate }
    }
}

/// A share of jobs, in thousandths of a percent: neither none nor all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target(u32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a share that can be reached and missed; write more than 0% and less than 100%, such as `95%` or `99.9%`"
)]
pub struct BadTarget(String);

impl Target {
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / 100_000.0
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1_000.0)
    }
}

impl FromStr for Target {
    type Err = BadTarget;
    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(text.chars().take(40).collect());
        let number = text.strip_suffix('%').map(str::trim).ok_or_else(bad)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |digits: &str, most: usize| {
            (1..=most).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
        };
        if !is_number(whole, 3) || !is_number(part, 3) {
            return Err(bad());
        }
        let thousandths: u32 = format!("{whole}{part:0<3}").parse().map_err(|_| bad())?;
        if (1..100_000).contains(&thousandths) { Ok(Target(thousandths)) } else { Err(bad()) }
    }
}

/// A stretch of time that is looked back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub word: &'static str,
    pub span: Duration,
}

const fn minutes(word: &'static str, minutes: u64) -> Window {
    Window { word, span: Duration::from_secs(60 * minutes) }
}

pub const WINDOWS: [Window; 4] = [minutes("5m", 5), minutes("30m", 30), minutes("1h", 60), minutes("6h", 360)];

/// A long window that says that it matters, a short one that says that it still goes on, and how fast both must burn to call for
/// somebody.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub long: Window,
    pub short: Window,
    pub rate: f64,
}

/// 2 % of what a month may miss within an hour.
pub const FAST: Pair = Pair { long: WINDOWS[2], short: WINDOWS[0], rate: 14.4 };
/// 5 % within six.
pub const SLOW: Pair = Pair { long: WINDOWS[3], short: WINDOWS[1], rate: 6.0 };

/// Jobs that ended in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub jobs: u64,
    pub missed: u64,
}

/// How fast a window spends what may miss the objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burn {
    pub window: Window,
    pub counted: Counted,
    /// 1 spends exactly what may be missed. Nothing where nothing ended.
    pub rate: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burning {
    No,
    /// Within days there is nothing left.
    Slowly,
    /// Within hours.
    Fast,
}

impl Burning {
    pub const fn word(self) -> &'static str {
        match self {
            Burning::No => "no",
            Burning::Slowly => "slowly",
            Burning::Fast => "fast",
        }
    }
}

/// With fewer jobs one that was late would be an alarm.
pub const JOBS_MIN: u64 = 10;
/// A target so low that a rate cannot be reached burns when so many miss it.
pub const NEARLY_ALL: f64 = 0.999;

impl Pair {
    /// How fast the long window burns, where both do at this rate or more: one that is over, and one that is only a moment, call
    /// nobody.
    pub fn burns(&self, slo: &Slo, burns: &[Burn], rate: f64) -> Option<f64> {
        let limit = rate.min(NEARLY_ALL / (1.0 - slo.target.ratio()));
        let over = |window: Window| {
            let burn = burns.iter().find(|burn| burn.window == window && burn.counted.jobs >= JOBS_MIN)?;
            burn.rate.filter(|rate| *rate >= limit)
        };
        over(self.short).and(over(self.long))
    }
}

pub fn burning(slo: &Slo, burns: &[Burn]) -> Burning {
    let is_over = |pair: Pair| pair.burns(slo, burns, pair.rate).is_some();
    match () {
        () if is_over(FAST) => Burning::Fast,
        () if is_over(SLOW) => Burning::Slowly,
        () => Burning::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burns(slo: &Slo, counted: [(u64, u64); 4]) -> Vec<Burn> {
        let both = WINDOWS.into_iter().zip(counted);
        both.map(|(window, (jobs, missed))| slo.burn(window, Counted { jobs, missed })).collect()
    }

    #[test]
    fn h5_a_target_is_a_share_that_can_be_reached_and_missed() {
        for (text, ratio) in
            [("95%", 0.95), ("99.9%", 0.999), ("99.999%", 0.999_99), ("0.001%", 0.000_01), ("5 %", 0.05)]
        {
            let target: Target = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert!((target.ratio() - ratio).abs() < 1e-9, "{text}: {}", target.ratio());
        }
        for bad in ["", "%", "95", "100%", "0%", "100.1%", "-5%", "9 5%", "99.9999%", "1e1%", ".5%", "95.%", "5%%"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
        assert_eq!("99.90%".parse::<Target>().map(|target| target.to_string()), Ok("99.9%".into()));
    }

    #[test]
    fn h5_an_objective_is_met_in_time_and_never_by_a_dead_letter() {
        let slo = Slo::default();
        assert!(slo.is_met(true, Duration::from_secs(30)));
        assert!(!slo.is_met(true, Duration::from_micros(30_000_001)));
        assert!(!slo.is_met(false, Duration::ZERO));
    }

    #[test]
    fn h5_the_burn_rate_is_one_where_exactly_what_may_is_missed() {
        let slo = Slo::default();
        let rate = |jobs, missed| slo.burn(WINDOWS[0], Counted { jobs, missed }).rate;
        assert!(rate(100, 5).is_some_and(|rate| (rate - 1.0).abs() < 1e-9));
        assert!(rate(100, 50).is_some_and(|rate| (rate - 10.0).abs() < 1e-9));
        assert_eq!((rate(0, 0), rate(7, 0)), (None, Some(0.0)));
    }

    #[test]
    fn h5_only_what_matters_and_still_goes_on_burns() {
        let slo = Slo { target: "99%".parse().expect("a share"), ..Slo::default() };
        let check =
            |counted, expected: Burning| assert_eq!(burning(&slo, &burns(&slo, counted)), expected, "{counted:?}");
        check([(100, 20), (100, 20), (100, 20), (100, 20)], Burning::Fast);
        // It is over, and was long enough to matter.
        check([(100, 0), (100, 0), (100, 20), (100, 20)], Burning::No);
        check([(100, 8), (100, 8), (100, 8), (100, 8)], Burning::Slowly);
        check([(0, 0), (100, 8), (100, 8), (100, 8)], Burning::Slowly);
        assert_eq!(
            FAST.burns(&slo, &burns(&slo, [(100, 30), (0, 0), (100, 20), (0, 0)]), 19.0).map(f64::round),
            Some(20.0)
        );
        // Too few to say.
        check([(5, 5), (5, 5), (5, 5), (5, 5)], Burning::No);
    }

    #[test]
    fn h5_with_a_low_target_everything_that_is_missed_burns_fast() {
        let slo = Slo { target: "50%".parse().expect("a share"), ..Slo::default() };
        assert_eq!(burning(&slo, &burns(&slo, [(100, 100); 4])), Burning::Fast);
        assert_eq!(burning(&slo, &burns(&slo, [(100, 90); 4])), Burning::No);
    }
}
