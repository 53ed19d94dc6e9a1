//! How much of what was verified may come: from each sender, and from the source as a whole.

use clinch_core::limit::{Bucket, Limits, Pace, Paces, Rate, Take};
use clinch_core::sender::SenderName;
use clinch_core::source::{LimitMode, LimitRule};
use clinch_core::time::Timestamp;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// So many senders are remembered for the limit of each source.
const SENDERS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

pub struct Quotas {
    senders: Option<Senders>,
    source: Option<Whole>,
}

enum Senders {
    Reject(Rate, Mutex<Limits<SenderName>>),
    Defer(Mutex<Paces<SenderName>>),
}

enum Whole {
    Reject(Mutex<Bucket>),
    Defer(Mutex<Pace>),
}

/// What a caller that is known is told of its limits: `RateLimit-Policy` and `RateLimit`.
#[derive(Debug, Default)]
pub struct Told {
    pub policy: String,
    pub left: String,
}

/// When the jobs of a request may run.
pub struct Admitted {
    pub run_at: Timestamp,
    pub told: Option<Told>,
}

/// More came than may.
pub struct Beyond {
    pub wait: Duration,
    pub told: Told,
    /// The limit that it broke.
    pub limit: &'static str,
}

const SENDER: &str = "sender";
const SOURCE: &str = "source";

fn held<T>(limit: &Mutex<T>) -> MutexGuard<'_, T> {
    limit.lock().expect("nobody panics while holding a limit")
}

impl Quotas {
    pub fn new(rule: &LimitRule) -> Quotas {
        Quotas {
            senders: rule.sender.map(|rate| match rule.mode {
                LimitMode::Reject => Senders::Reject(rate, Mutex::new(Limits::new(rate, SENDERS_MAX))),
                LimitMode::Defer => Senders::Defer(Mutex::new(Paces::new(rate, SENDERS_MAX))),
            }),
            source: rule.source.map(|rate| match rule.mode {
                LimitMode::Reject => Whole::Reject(Mutex::new(Bucket::full(rate))),
                LimitMode::Defer => Whole::Defer(Mutex::new(Pace::new(rate))),
            }),
        }
    }

    /// The sender's own limit comes first; what the source has no room for costs the sender nothing.
    pub fn admit(&self, sender: Option<&SenderName>, now: Timestamp) -> Result<Admitted, Beyond> {
        let mut told = Told::default();
        let mut run_at = now;
        if let (Some(senders), Some(name)) = (&self.senders, sender) {
            match senders {
                Senders::Defer(paces) => run_at = run_at.max(held(paces).run_at(name, now)),
                Senders::Reject(rate, limits) => told.take(SENDER, rate, held(limits).take(name, now, 1))?,
            }
        }
        match &self.source {
            None => {}
            Some(Whole::Defer(pace)) => run_at = run_at.max(held(pace).run_at(now)),
            Some(Whole::Reject(bucket)) => {
                let mut bucket = held(bucket);
                let (rate, take) = (*bucket.rate(), bucket.take(now, 1));
                if let (Take::Wait(_), Some(Senders::Reject(_, limits)), Some(name)) = (take, &self.senders, sender) {
                    held(limits).give_back(name, now, 1);
                }
                told.take(SOURCE, &rate, take)?;
            }
        }
        Ok(Admitted { run_at, told: Some(told).filter(|told| !told.policy.is_empty()) })
    }
}

impl Told {
    fn take(&mut self, name: &'static str, rate: &Rate, take: Take) -> Result<(), Beyond> {
        let comma = if self.policy.is_empty() { "" } else { ", " };
        self.policy += &format!("{comma}{}", rate.policy_header(name));
        self.left += &format!("{comma}{}", take.header(name));
        match take {
            Take::Taken { .. } => Ok(()),
            Take::Wait(wait) => Err(Beyond { wait, told: std::mem::take(self), limit: name }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn rule(sender: &str, source: &str, mode: LimitMode) -> Quotas {
        let rate = |text: &str| Some(text).filter(|text| !text.is_empty()).map(|text| text.parse().expect("a rate"));
        Quotas::new(&LimitRule { address: None, sender: rate(sender), source: rate(source), mode })
    }

    fn name(text: &str) -> SenderName {
        text.parse().expect("a name")
    }

    #[test]
    fn a4_each_sender_has_a_limit_of_its_own_and_is_told_of_both() {
        let quotas = rule("2/h", "3/h", LimitMode::Reject);
        let (a, b) = (name("a"), name("b"));
        let told = quotas.admit(Some(&a), NOW).ok().and_then(|admitted| admitted.told).expect("limits");
        assert_eq!(told.policy, r#""sender";q=2;w=3600, "source";q=3;w=3600"#);
        assert_eq!(told.left, r#""sender";r=1;t=1800, "source";r=2;t=1200"#);
        assert!(quotas.admit(Some(&a), NOW).is_ok());
        let beyond = quotas.admit(Some(&a), NOW).err().expect("too many");
        assert_eq!((beyond.limit, beyond.told.left.as_str()), ("sender", r#""sender";r=0;t=1800"#));
        assert!(quotas.admit(Some(&b), NOW).is_ok());
        let beyond = quotas.admit(Some(&b), NOW).err().expect("too many");
        assert_eq!(beyond.limit, "source");
        // b has one left: what the source had no room for was given back.
        let later = NOW + Duration::from_secs(1_200);
        assert!(quotas.admit(Some(&b), later).is_ok());
    }

    #[test]
    fn a4_deferred_senders_wait_for_their_own_turn() {
        let quotas = rule("1/s", "", LimitMode::Defer);
        let run_at = |sender: &str| quotas.admit(Some(&name(sender)), NOW).map(|admitted| admitted.run_at).ok();
        assert_eq!(run_at("a"), Some(NOW));
        assert_eq!(run_at("a"), Some(NOW + Duration::from_secs(1)));
        assert_eq!(run_at("b"), Some(NOW));
        let silent = quotas.admit(Some(&name("c")), NOW).ok().expect("admitted");
        assert!(silent.told.is_none(), "who is never refused needs no numbers");
    }
}
