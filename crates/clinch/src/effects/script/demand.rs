//! How much a process wants the processors: for which share of the time that its jobs take it runs, or waits for one. The rest of the time it waits
//! for something else, such as a partner's answer.

use rustix::process::Pid;
use std::time::Duration;
use tokio::time::Instant;

pub struct Demand {
    /// For how long it had wanted a processor when it was last asked.
    wanted: Duration,
    /// For how long its jobs have run since, up to `counted`.
    ran: Duration,
    counted: Instant,
}

impl Demand {
    pub fn new() -> Demand {
        Demand { wanted: Duration::ZERO, ran: Duration::ZERO, counted: Instant::now() }
    }

    /// A job begins.
    pub fn begin(&mut self) {
        self.counted = Instant::now();
    }

    /// It has run until now.
    pub fn count(&mut self) {
        let now = Instant::now();
        self.ran += now - self.counted;
        self.counted = now;
    }

    /// Since it was last asked. `None` where the kernel does not tell.
    pub fn share(&mut self, process: Pid) -> Option<f64> {
        if self.ran.is_zero() {
            return None;
        }
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", process.as_raw_nonzero())).ok()?;
        let wanted = wanted(&text)?;
        let more = wanted.saturating_sub(std::mem::replace(&mut self.wanted, wanted));
        Some(more.as_secs_f64() / std::mem::take(&mut self.ran).as_secs_f64())
    }
}

/// For how long its first thread has run, which runs the script, and for how long it has waited for a processor.
fn wanted(schedstat: &str) -> Option<Duration> {
    let mut nanos = schedstat.split_whitespace().map(|word| word.parse::<u64>().ok());
    let (ran, waited) = (nanos.next()??, nanos.next()??);
    Some(Duration::from_nanos(ran.saturating_add(waited)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_to_run_and_to_wait_for_a_processor_is_to_want_one() {
        assert_eq!(wanted("1500 500 7\n"), Some(Duration::from_nanos(2_000)));
        assert_eq!(wanted("1500\n"), None);
        assert_eq!(wanted(""), None);
    }
}
