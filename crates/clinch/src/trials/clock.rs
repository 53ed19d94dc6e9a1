//! The clock of a trial: it goes on like any other, and can be put forward. Who waits for a moment need not wait for it in truth.

use crate::clock::{Clock, Sleeping, SystemClock};
use clinch_core::time::Timestamp;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub struct JumpingClock {
    system: SystemClock,
    /// How far it is ahead of the machine's, in microseconds.
    ahead: AtomicI64,
    jumped: watch::Sender<u64>,
}

impl JumpingClock {
    /// Begins at this moment, or now.
    pub fn new(at: Option<Timestamp>) -> JumpingClock {
        let system = SystemClock::default();
        let ahead = at.map_or(0, |at| at.as_micros() - system.now().as_micros());
        JumpingClock { system, ahead: AtomicI64::new(ahead), jumped: watch::Sender::new(0) }
    }

    /// To this moment, if it is not past.
    pub fn jump(&self, to: Timestamp) {
        let leap = to.since(self.now());
        let micros = i64::try_from(leap.as_micros()).unwrap_or(i64::MAX);
        self.ahead.fetch_add(micros, Ordering::Relaxed);
        self.jumped.send_modify(|times| *times += 1);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.system.now().as_micros().saturating_add(self.ahead.load(Ordering::Relaxed)))
    }

    fn instant(&self) -> Instant {
        self.system.instant()
    }

    /// The middle of every pause, so that a trial runs alike each time.
    fn dice(&self) -> f64 {
        0.5
    }

    fn random(&self) -> u128 {
        self.system.random()
    }

    fn sleep(&self, pause: Duration) -> Sleeping<'_> {
        let until = self.now() + pause;
        let mut jumped = self.jumped.subscribe();
        Box::pin(async move {
            loop {
                let rest = until.since(self.now());
                if rest.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(rest) => {}
                    _ = jumped.changed() => {}
                }
            }
        })
    }
}
