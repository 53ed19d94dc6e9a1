//! A moment and a length of time, as people write them.

use std::fmt;
use std::time::Duration;

/// Microseconds since the Unix epoch. Handed in by whoever owns a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Timestamp(micros)
    }

    pub const fn as_micros(self) -> i64 {
        self.0
    }

    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// How long after `earlier` this is; zero when it is not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub fn seconds_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;
    /// Saturates: a moment too far away to count is simply the last one.
    fn add(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Timestamp;
    fn sub(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, to the millisecond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.as_millis()) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => f.write_str("beyond-the-calendar"),
        }
    }
}

/// Why a text is not a duration, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    #[error("a duration needs a unit; write `{0}s` for seconds or `{0}ms` for milliseconds")]
    NoUnit(String),
    #[error("`{0}` is not a duration; write a number and a unit: 250ms, 30s, 5m, 48h, 7d")]
    NotADuration(String),
    #[error("`{0}` is longer than clinch counts; the most is 3650d")]
    TooLong(String),
}

/// No length of time is longer.
pub const DURATION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// Reads `250ms`, `1.5s`, `90s`, `5m`, `48h`, `7d`, and sums of these such as `1h30m`.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let trimmed = text.trim();
    let bad = || BadDuration::NotADuration(trimmed.to_string());
    if trimmed.is_empty() {
        return Err(bad());
    }
    // A longer number is no length of time that somebody forgot the unit of; it may be a card's.
    if trimmed.len() <= 9 && trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(BadDuration::NoUnit(trimmed.to_string()));
    }
    let mut total = 0f64;
    let mut rest = trimmed;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let seconds = match &rest[..letters] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            "w" => 604_800.0,
            _ => return Err(bad()),
        };
        total += number * seconds;
        rest = rest[letters..].trim_start();
    }
    match Duration::try_from_secs_f64(total) {
        Ok(span) if span <= DURATION_MAX => Ok(span),
        _ => Err(BadDuration::TooLong(trimmed.to_string())),
    }
}

/// The shortest honest spelling: `250ms`, `1.5s`, `2m5s`, `3h20m`, `4d`.
pub fn human(span: Duration) -> String {
    let seconds = span.as_secs();
    if seconds == 0 {
        return if span.subsec_millis() > 0 || span.is_zero() {
            format!("{}ms", span.subsec_millis())
        } else {
            format!("{}us", span.subsec_micros())
        };
    }
    if seconds < 60 {
        let tenths = span.subsec_millis() / 100;
        return if tenths == 0 { format!("{seconds}s") } else { format!("{seconds}.{tenths}s") };
    }
    let pair = |big: u64, unit: &str, small: u64, sub: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{sub}") }
    };
    match seconds {
        ..3600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => pair(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let check =
            |text: &str, millis: u64| assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        check("250ms", 250);
        check("2s", 2_000);
        check("1.5h", 5_400_000);
        check("1h30m", 5_400_000);
        check("48h", 172_800_000);
        check("7d", 604_800_000);
    }

    #[test]
    fn a_duration_without_a_unit_is_told_which_unit_to_add() {
        let said = parse_duration("30").expect_err("no unit").to_string();
        assert!(said.contains("30s"), "{said}");
        for bad in ["", "soon", "-5s", "5x", "1..5s", "9999999d", "s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let end = Timestamp::from_micros(i64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Timestamp::from_micros(5).since(Timestamp::from_micros(9)), Duration::ZERO);
    }

    #[test]
    fn lengths_are_told_shortly() {
        for (text, said) in [("0ms", "0ms"), ("1500ms", "1.5s"), ("125s", "2m5s"), ("4d", "4d"), ("26h", "1d2h")] {
            assert_eq!(human(parse_duration(text).expect("valid")), said);
        }
    }
}
