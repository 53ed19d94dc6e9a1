//! Those who want a process of one script. Who has a ticket may say that he will act, and has his turn soon after: between
//! the two a crash leaves in doubt what was never begun. Scripts that are quick have more tickets than processes, so that
//! these need not wait while an intent is written down; the others do not.

use clinch_core::script::tickets;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

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

#[cfg(test)]
mod tests {
    use super::*;

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
