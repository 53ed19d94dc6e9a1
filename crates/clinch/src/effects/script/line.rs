//! Those who want a process of one script. Who has a ticket may say that he will act, and has his turn soon after: between
//! the two a crash leaves in doubt what was never begun. Scripts that are quick have more tickets than processes, so that
//! these need not wait while an intent is written down; the others do not.

use clinch_core::script::{tickets, waits};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// A new process gets so much time to load what it needs before it is seen whether yet another would help.
const GROW_EVERY: Duration = Duration::from_millis(500);

pub struct Line {
    tickets: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    processes_max: usize,
    issued: Mutex<Issued>,
}

/// How many there are, in hands and not.
struct Issued {
    tickets: usize,
    /// One for each process.
    turns: usize,
    /// When there came one more.
    grown_at: Instant,
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
    pub fn new(processes: usize, processes_max: usize) -> Line {
        let semaphore = || Arc::new(Semaphore::new(processes));
        let issued = Mutex::new(Issued { tickets: processes, turns: processes, grown_at: Instant::now() });
        Line { tickets: semaphore(), turns: semaphore(), processes_max, issued }
    }

    pub async fn ticket(self: Arc<Self>) -> Ticket {
        let permit = self.tickets.clone().acquire_owned().await.expect("tickets are never closed");
        Ticket { line: self, permit }
    }

    fn issued(&self) -> MutexGuard<'_, Issued> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// How much its process wants the processors. If it waits for something else there will be one more, when all are in use and there is room for it.
    pub fn seen(&self, demand: f64, has_room: impl FnOnce() -> bool) {
        let line = &self.ticket.line;
        let mut issued = line.issued();
        let is_time = issued.turns < line.processes_max && issued.grown_at.elapsed() >= GROW_EVERY;
        let all_are_in_use = line.tickets.available_permits() == 0;
        if !is_time || !all_are_in_use || !waits(demand) || !has_room() {
            return;
        }
        issued.grown_at = Instant::now();
        issued.turns += 1;
        line.turns.add_permits(1);
        if issued.tickets < issued.turns {
            issued.tickets += 1;
            line.tickets.add_permits(1);
        }
    }

    /// It was used, and what that took decides how many tickets there are from now on.
    pub fn end(self) {
        let ran = self.began.elapsed();
        let Ticket { line, permit } = self.ticket;
        let mut issued = line.issued();
        let wanted = tickets(issued.tickets, issued.turns, self.waited, ran);
        if wanted < issued.tickets {
            permit.forget();
        } else {
            line.tickets.add_permits(wanted - issued.tickets);
        }
        issued.tickets = wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn c7_there_are_never_more_turns_than_processes() {
        let line = Arc::new(Line::new(1, 1));
        let first = line.clone().ticket().await.turn().await;
        first.end();
        let first = line.clone().ticket().await.turn().await;
        assert_eq!(line.turns.available_permits(), 0);
        drop(first);
        assert_eq!(line.turns.available_permits(), 1, "a turn that was not used is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn c7_a_script_that_waits_has_more_processes_while_all_are_in_use_and_there_is_room() {
        let line = Arc::new(Line::new(2, 4));
        let turn = async || line.clone().ticket().await.turn().await;
        let check = |turn: &Turn, demand: f64, has_room: bool, processes: usize| {
            turn.seen(demand, || has_room);
            let issued = line.issued();
            assert_eq!((issued.turns, issued.tickets), (processes, processes));
        };
        let first = turn().await;
        tokio::time::advance(GROW_EVERY).await;
        check(&first, 0.01, true, 2);
        let _second = turn().await;
        check(&first, 0.01, false, 2);
        check(&first, 0.9, true, 2);
        check(&first, 0.01, true, 3);
        let _third = turn().await;
        check(&first, 0.01, true, 3);
        tokio::time::advance(GROW_EVERY).await;
        check(&first, 0.01, true, 4);
        let _fourth = turn().await;
        tokio::time::advance(GROW_EVERY).await;
        check(&first, 0.01, true, 4);
    }
}
