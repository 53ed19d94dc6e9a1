//! The moment a request was signed, and how far from now it may be.

use super::Refusal;
use crate::time::Timestamp;
use std::time::Duration;

/// What most providers and libraries use.
pub const TOLERANCE_USUAL: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Millis,
    Rfc3339,
    /// `Tue, 20 Apr 2021 02:07:55 GMT`
    HttpDate,
}

impl Unit {
    /// Strict: digits only for numbers, so that nothing is read that was written otherwise.
    pub fn read(self, text: &str) -> Option<Timestamp> {
        let scaled = |scale: i64| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number: i64 = text.parse().ok().filter(|_| digits)?;
            number.checked_mul(scale).map(Timestamp::from_micros)
        };
        match self {
            Unit::Seconds => scaled(1_000_000),
            Unit::Millis => scaled(1_000),
            Unit::Rfc3339 => Some(Timestamp::from_micros(text.parse::<jiff::Timestamp>().ok()?.as_microsecond())),
            Unit::HttpDate => {
                let read = jiff::fmt::rfc2822::parse(text).ok()?;
                Some(Timestamp::from_micros(read.timestamp().as_microsecond()))
            }
        }
    }

    pub fn told(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds since 1970",
            Unit::Millis => "milliseconds since 1970",
            Unit::Rfc3339 => "an RFC 3339 moment",
            Unit::HttpDate => "an HTTP date",
        }
    }
}

/// Both directions count: a moment far in the future would stay fresh for as long as its writer likes.
pub fn check(at: Timestamp, now: Timestamp, tolerance: Duration) -> Result<(), Refusal> {
    let (age, ahead) = (now.since(at), at.since(now));
    if age > tolerance {
        Err(Refusal::Stale { age, tolerance })
    } else if ahead > tolerance {
        Err(Refusal::Future { ahead, tolerance })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t029_a_timestamp_is_digits_and_nothing_else() {
        for bad in
            ["-9223372036854775808", "99999999999999999999", "9223372036854775807", "1e9", " 1700000000", "", "+1"]
        {
            assert_eq!(Unit::Seconds.read(bad), None, "{bad:?}");
        }
        let at = Some(Timestamp::from_micros(1_700_000_000_000_000));
        assert_eq!(Unit::Seconds.read("1700000000"), at);
        assert_eq!(Unit::Millis.read("1700000000000"), at);
        assert_eq!(Unit::Rfc3339.read("2023-11-14T22:13:20Z"), at);
        assert_eq!(Unit::HttpDate.read("Tue, 14 Nov 2023 22:13:20 GMT"), at);
    }

    #[test]
    fn the_window_has_the_same_width_on_both_sides() {
        let now = Timestamp::from_micros(1_000_000_000_000);
        let second = Duration::from_secs(1);
        assert_eq!(check(now + TOLERANCE_USUAL, now, TOLERANCE_USUAL), Ok(()));
        assert_eq!(check(now - TOLERANCE_USUAL, now, TOLERANCE_USUAL), Ok(()));
        let wide = TOLERANCE_USUAL + second;
        assert!(matches!(check(now + wide, now, TOLERANCE_USUAL), Err(Refusal::Future { .. })));
        assert!(matches!(check(now - wide, now, TOLERANCE_USUAL), Err(Refusal::Stale { .. })));
    }
}
