//! The only reader of time and randomness.

use clinch_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub type Sleeping<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

pub trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
    /// For deadlines of our own: whatever is done to the other clock, this one goes on.
    fn instant(&self) -> Instant;
    /// Uniform in [0, 1): for jitter.
    fn dice(&self) -> f64;
    /// For trace ids: unlike any other, not secret.
    fn random(&self) -> u128;
    /// Until so much of its time has gone by.
    fn sleep(&self, pause: Duration) -> Sleeping<'_> {
        Box::pin(tokio::time::sleep(pause))
    }
}

/// The machine's clock, which never goes back while the process lives.
#[derive(Default)]
pub struct SystemClock {
    latest: AtomicI64,
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.latest.fetch_max(micros, Ordering::Relaxed).max(micros))
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn dice(&self) -> f64 {
        fastrand::f64()
    }

    fn random(&self) -> u128 {
        fastrand::u128(1..)
    }
}

/// The moment by the clock that all processes of the machine read, in microseconds.
pub fn shared_micros(at: Instant) -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
    let then = now.saturating_add(at.saturating_duration_since(Instant::now()));
    u64::try_from(then.as_micros()).unwrap_or(u64::MAX)
}

/// Bytes that nobody can guess: tokens, the store's pepper.
pub fn secret_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}
