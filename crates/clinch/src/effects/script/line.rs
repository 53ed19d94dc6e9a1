//! Those who want a process of one script. Who has a ticket may say that he will act, and has his turn soon after: between
//! the two a crash leaves in doubt what was never begun. Scripts that are quick have more tickets than processes, so that
//! these need not wait while an intent is written down; the others do not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Nobody with a ticket should wait longer for his turn.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// For each process, at most so many tickets.
const TICKETS_PER_PROCESS: usize = 16;

pub struct Line {
    tickets: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    processes: usize,
    /// How many tickets there are, in hands and not.
    issued: Mutex<usize>,
}

/// The right to have a turn soon.
pub struct Ticket {
    line: Arc<Line>,
    permit: OwnedSemaphorePermit,
}

/// The right to use a process.
pub struct Turn {
    ticket: Ticket,
    waited: Duration,
    began: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Line {
    pub fn new(processes: usize) -> Line {
        let semaphore = || Arc::new(Semaphore::new(processes));
        Line { tickets: semaphore(), turns: semaphore(), processes, issued: Mutex::new(processes) }
    }

    pub async fn ticket(self: Arc<Self>) -> Ticket {
        let permit = self.tickets.clone().acquire_owned().await.expect("tickets are never closed");
        Ticket { line: self, permit }
    }
}

impl Ticket {
    pub async fn turn(self) -> Turn {
        let came = Instant::now();
        let permit = self.line.turns.clone().acquire_owned().await.expect("turns are never closed");
        let began = Instant::now();
        Turn { ticket: self, waited: began - came, began, _permit: permit }
    }
}

impl Turn {
    /// It was used, and what that took decides how many tickets there are from now on.
    pub fn end(self) {
        let ran = self.began.elapsed();
        let Ticket { line, permit } = self.ticket;
        let mut issued = line.issued.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = tickets(*issued, line.processes, self.waited, ran);
        if wanted < *issued {
            permit.forget();
        } else {
            line.tickets.add_permits(wanted - *issued);
        }
        *issued = wanted;
    }
}

/// How many there should be: one more after a run that was quick, one less after a wait that was long.
fn tickets(issued: usize, processes: usize, waited: Duration, ran: Duration) -> usize {
    if waited > WAIT_MAX && issued > processes {
        issued - 1
    } else if waited + ran < WAIT_MAX && issued < processes * TICKETS_PER_PROCESS {
        issued + 1
    } else {
        issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_a_quick_script_has_more_tickets_than_processes_and_a_slow_one_has_not() {
        let (quick, slow) = (Duration::from_micros(200), Duration::from_secs(1));
        assert_eq!(tickets(4, 4, Duration::ZERO, quick), 5);
        assert_eq!(tickets(64, 4, Duration::ZERO, quick), 64, "there is a bound");
        assert_eq!(tickets(4, 4, Duration::ZERO, slow), 4);
        assert_eq!(tickets(9, 4, Duration::ZERO, slow), 9, "nobody had to wait");
        assert_eq!(tickets(9, 4, slow, quick), 8, "somebody had");
        assert_eq!(tickets(4, 4, slow, slow), 4, "never less than there are processes");
    }

    #[tokio::test]
    async fn c7_there_are_never_more_turns_than_processes() {
        let line = Arc::new(Line::new(1));
        let first = line.clone().ticket().await.turn().await;
        first.end();
        let first = line.clone().ticket().await.turn().await;
        assert_eq!(line.turns.available_permits(), 0);
        drop(first);
        assert_eq!(line.turns.available_permits(), 1, "a turn that was not used is given back");
    }
}
