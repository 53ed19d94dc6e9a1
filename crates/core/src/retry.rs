//! How long to wait before the next attempt, and when to stop: a policy is data, this is its arithmetic.

use crate::budget::RetryBudget;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// base × multiplier^(n−1)
    Exponential,
    /// base × n
    Linear,
    /// base
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Uniform between nothing and the ceiling.
    Full,
    /// Half the ceiling, and uniform over the other half.
    Equal,
    /// The ceiling itself.
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    pub strategy: Backoff,
    pub base: Duration,
    pub multiplier: f64,
    /// No pause is longer, whatever the arithmetic or a target's Retry-After says.
    pub pause_max: Duration,
    /// How often a job may fail before it is buried, the first attempt included.
    pub attempts_max: NonZeroU32,
    /// From the first attempt on; a retry that would start later is not made.
    pub elapsed_max: Option<Duration>,
    pub jitter: Jitter,
    /// How many retries one entity may cause, all its jobs together.
    pub budget: Option<Arc<RetryBudget>>,
}

impl Default for RetryPolicy {
    /// What a worker gets when it says nothing.
    fn default() -> Self {
        RetryPolicy {
            strategy: Backoff::Exponential,
            base: Duration::from_secs(2),
            multiplier: 2.0,
            pause_max: Duration::from_secs(120),
            attempts_max: NonZeroU32::new(7).expect("7 is not zero"),
            elapsed_max: None,
            jitter: Jitter::Full,
            budget: None,
        }
    }
}

impl RetryPolicy {
    /// The longest pause after the `failures`-th failure (counted from 1).
    pub fn ceiling_after(&self, failures: u32) -> Duration {
        let grown = match self.strategy {
            Backoff::Fixed => 1.0,
            Backoff::Linear => f64::from(failures.max(1)),
            Backoff::Exponential => self.multiplier.powi(i32::try_from(failures.max(1) - 1).unwrap_or(i32::MAX)),
        };
        Duration::try_from_secs_f64(self.base.as_secs_f64() * grown)
            .map_or(self.pause_max, |pause| pause.min(self.pause_max))
    }

    /// The pause after the `failures`-th failure; `dice` is uniform in [0, 1).
    pub fn pause_after(&self, failures: u32, dice: f64) -> Duration {
        let ceiling = self.ceiling_after(failures);
        let dice = dice.clamp(0.0, 1.0);
        match self.jitter {
            Jitter::None => ceiling,
            Jitter::Full => ceiling.mul_f64(dice),
            Jitter::Equal => ceiling / 2 + (ceiling / 2).mul_f64(dice),
        }
    }

    pub fn spent_by(&self, failures: u32) -> bool {
        failures >= self.attempts_max.get()
    }

    /// The longest time between the first attempt and the last, if each attempt itself takes no longer than `attempt_max`.
    pub fn horizon(&self, attempt_max: Duration) -> Duration {
        let attempts = self.attempts_max.get();
        // Past this many the pause is the cap, or the number of attempts is absurd and saturates anyway.
        let counted = attempts.min(10_000);
        let pauses = (1..counted).fold(Duration::ZERO, |sum, n| sum.saturating_add(self.ceiling_after(n)));
        let rest = self.pause_max.saturating_mul(attempts - counted);
        let horizon = pauses.saturating_add(rest).saturating_add(attempt_max.saturating_mul(attempts));
        self.elapsed_max.map_or(horizon, |most| horizon.min(most.saturating_add(attempt_max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_policy() -> impl Strategy<Value = RetryPolicy> {
        (0..3u8, 0..3u8, 0..100_000u64, 1.0..10.0f64, 0..10_000_000u64, 1..1000u32).prop_map(
            |(strategy, jitter, base, multiplier, cap, attempts)| RetryPolicy {
                strategy: [Backoff::Exponential, Backoff::Linear, Backoff::Fixed][usize::from(strategy)],
                jitter: [Jitter::Full, Jitter::Equal, Jitter::None][usize::from(jitter)],
                base: Duration::from_millis(base),
                multiplier,
                pause_max: Duration::from_millis(cap),
                attempts_max: NonZeroU32::new(attempts).expect("at least one"),
                elapsed_max: None,
                budget: None,
            },
        )
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_the_cap_or_the_ceiling(policy in any_policy(), n in 1..u32::MAX, dice in 0.0..1.0f64) {
            let pause = policy.pause_after(n, dice);
            prop_assert!(pause <= policy.ceiling_after(n));
            prop_assert!(policy.ceiling_after(n) <= policy.pause_max);
        }

        #[test]
        fn full_jitter_is_a_share_of_min_cap_and_base_times_multiplier_to_the_n_minus_1(
            base in 1..10_000u64, multiplier in 1.0..4.0f64, cap in 1..1_000_000u64, n in 1..20u32, dice in 0.0..1.0f64,
        ) {
            let policy = RetryPolicy {
                base: Duration::from_millis(base),
                multiplier,
                pause_max: Duration::from_millis(cap),
                ..RetryPolicy::default()
            };
            let most = (base as f64 / 1e3 * multiplier.powi(n as i32 - 1)).min(cap as f64 / 1e3);
            prop_assert!((policy.pause_after(n, dice).as_secs_f64() - most * dice).abs() < 1e-6);
        }

        #[test]
        fn ceilings_never_shrink(policy in any_policy(), n in 1..10_000u32) {
            prop_assert!(policy.ceiling_after(n) <= policy.ceiling_after(n + 1));
        }

        #[test]
        fn equal_jitter_waits_at_least_half(policy in any_policy(), n in 1..100u32, dice in 0.0..1.0f64) {
            let policy = RetryPolicy { jitter: Jitter::Equal, ..policy };
            prop_assert!(policy.pause_after(n, dice) >= policy.ceiling_after(n) / 2);
        }

        #[test]
        fn the_horizon_covers_every_schedule(policy in any_policy(), dice in 0.0..1.0f64) {
            let waited: Duration = (1..policy.attempts_max.get()).map(|n| policy.pause_after(n, dice)).sum();
            prop_assert!(waited <= policy.horizon(Duration::ZERO) + Duration::from_micros(1));
        }
    }

    #[test]
    fn the_tutorial_policy_grows_to_its_cap() {
        let policy = RetryPolicy::default();
        let ceilings: Vec<u64> = (1..=8).map(|n| policy.ceiling_after(n).as_secs()).collect();
        assert_eq!(ceilings, [2, 4, 8, 16, 32, 64, 120, 120]);
        assert!(!policy.spent_by(6));
        assert!(policy.spent_by(7));
        assert_eq!(policy.horizon(Duration::ZERO), Duration::from_secs(126));
    }
}
