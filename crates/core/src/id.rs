//! Names that clinch gives: `evt_…`, `job_…`. A number that grows with time, in a spelling that sorts the same way.

use crate::time::Timestamp;
use std::fmt;
use std::str::FromStr;

/// Crockford's alphabet: no I, L, O, U, so an id survives being read aloud at 3 a.m.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const LENGTH: usize = 13;
/// Ids carry milliseconds above these bits and a counter in them.
const COUNTER_BITS: u32 = 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {article} id; one looks like {prefix}01HZX5T0N8W2A")]
pub struct BadId {
    text: String,
    article: &'static str,
    prefix: &'static str,
}

fn spell(prefix: &str, number: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0u8; LENGTH];
    for (place, slot) in text.iter_mut().rev().enumerate() {
        *slot = ALPHABET[(number >> (5 * place)) as usize & 31];
    }
    f.write_str(prefix)?;
    f.write_str(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
}

fn read(prefix: &str, text: &str) -> Option<u64> {
    let digits = text.strip_prefix(prefix)?;
    if digits.len() != LENGTH {
        return None;
    }
    digits.bytes().try_fold(0u64, |number, byte| {
        let digit = ALPHABET.iter().position(|a| *a == byte.to_ascii_uppercase())?;
        number.checked_mul(32)?.checked_add(digit as u64)
    })
}

macro_rules! id {
    ($name:ident, $prefix:literal, $article:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            pub const fn from_number(number: u64) -> Self {
                Self(number)
            }
            pub const fn number(self) -> u64 {
                self.0
            }
            /// The first id that a store could give at this moment.
            pub fn first_at(at: Timestamp) -> Self {
                Self(floor_at(at))
            }
            /// When the store gave it, to the millisecond.
            pub fn given_at(self) -> Timestamp {
                Timestamp::from_micros(((self.0 >> COUNTER_BITS) as i64).saturating_mul(1000))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                spell($prefix, self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                spell($prefix, self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                read($prefix, text).map(Self).ok_or_else(|| BadId {
                    text: text.chars().take(40).collect(),
                    article: $article,
                    prefix: $prefix,
                })
            }
        }
    };
}

id!(EventId, "evt_", "an event", "One accepted delivery.");
id!(JobId, "job_", "a job", "One run of one worker's steps for one event.");
id!(PlanId, "rpl_", "a plan", "A replay of many, counted before it is begun.");

fn floor_at(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0) << COUNTER_BITS
}

/// The next id after `last` at this moment: grows with time, and keeps growing when time does not.
pub fn next_after(last: u64, at: Timestamp) -> u64 {
    floor_at(at).max(last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_sorts_by_age() {
        let at = Timestamp::from_micros(1_790_000_000_000_000);
        let first = JobId::from_number(next_after(0, at));
        let second = JobId::from_number(next_after(first.number(), at));
        assert_eq!(first.to_string().parse(), Ok(first));
        assert_eq!(first.to_string().to_lowercase().parse(), Ok(first));
        assert!(first.to_string() < second.to_string());
        assert_eq!(second.given_at(), at);
    }

    #[test]
    fn an_id_grows_when_the_clock_goes_back() {
        let late = next_after(0, Timestamp::from_micros(2_000_000));
        assert!(next_after(late, Timestamp::from_micros(1_000_000)) > late);
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        for bad in ["", "job_", "evt_01HZX5T0N8W2A", "job_01HZX5T0N8W2", "job_ZZZZZZZZZZZZZ", "job_01HZX5T0N8W2U"] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }
}
