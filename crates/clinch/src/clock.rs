//! The only reader of time and randomness.

use clinch_core::time::Timestamp;
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

/// Bytes that nobody can guess: tokens, the store's pepper.
pub fn secret_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}
