//! Those who want a process of one script, and the processes that it has. Who has a ticket may say that he will act, and has his turn soon after: between
//! the two a crash leaves in doubt what was never begun. Scripts that are quick have more tickets than processes, so that
//! these need not wait while an intent is written down; the others do not. And where runs are short, a process has the next jobs before it.

use super::Usage;
use super::process::{Left, Process};
use clinch_core::script::{WAIT_MAX, jobs_at_once, tickets, typical, waits};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// A new process gets so much time to load what it needs before it is seen whether yet another would help.
const GROW_EVERY: Duration = Duration::from_millis(500);

pub struct Line {
    tickets: Arc<Semaphore>,
    processes_max: usize,
    usage: Usage,
    desk: Mutex<Desk>,
}

struct Desk {
    /// How many tickets there are, in hands and not.
    tickets: usize,
    /// How many processes it may have.
    processes: usize,
    /// When there came one more.
    grown_at: Instant,
    /// How long a run takes.
    run: Duration,
    members: Vec<Member>,
    /// How many there ever were.
    hired: u64,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A process, or what will be one.
struct Member {
    no: u64,
    /// None while it is started, and where it is one job's alone.
    process: Option<Arc<Process>>,
    /// It has loaded what it needs.
    has_run: bool,
    /// How many it has, or will have in a moment.
    jobs: usize,
    /// The one that it runs takes long: it is given no other meanwhile.
    is_late: bool,
    used_at: Instant,
}

impl Member {
    fn is_idle(&self) -> bool {
        self.jobs == 0 && self.process.is_some()
    }
}

/// The right to have a turn soon.
pub struct Ticket {
    line: Arc<Line>,
    permit: OwnedSemaphorePermit,
}

/// The right to give a job to a process.
pub struct Turn {
    line: Arc<Line>,
    member: u64,
    /// None where it is to be started.
    process: Option<Arc<Process>>,
    has_ended: bool,
}

/// Who comes back because a process did not do its job was there before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    End,
    Front,
}

impl Line {
    pub fn new(processes: usize, processes_max: usize, usage: Usage) -> Line {
        let desk = Desk {
            tickets: processes,
            processes,
            grown_at: Instant::now(),
            run: WAIT_MAX,
            members: Vec::new(),
            hired: 0,
            waiting: VecDeque::new(),
        };
        Line { tickets: Arc::new(Semaphore::new(processes)), processes_max, usage, desk: Mutex::new(desk) }
    }

    pub async fn ticket(self: Arc<Self>) -> Ticket {
        let permit = self.tickets.clone().acquire_owned().await.expect("tickets are never closed");
        Ticket { line: self, permit }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much one of its processes wants the processors. If it waits for something else there will be one more, when all are in use and there is
    /// room for it.
    pub fn seen(self: &Arc<Self>, demand: f64, has_room: impl FnOnce() -> bool) {
        {
            let mut desk = self.desk();
            let is_time = desk.processes < self.processes_max && desk.grown_at.elapsed() >= GROW_EVERY;
            let all_are_in_use = self.tickets.available_permits() == 0;
            if !is_time || !all_are_in_use || !waits(demand) || !has_room() {
                return;
            }
            desk.grown_at = Instant::now();
            desk.processes += 1;
            if desk.tickets < desk.processes {
                desk.tickets += 1;
                self.tickets.add_permits(1);
            }
        }
        self.deal();
    }

    /// How many processes there are.
    pub fn processes(&self) -> usize {
        self.desk().members.len()
    }

    /// Since when the one is idle that is idle for the longest time.
    pub fn idle_since(&self) -> Option<Instant> {
        self.desk().members.iter().filter(|member| member.is_idle()).map(|member| member.used_at).min()
    }

    /// Ends those that are idle since then, or for longer.
    pub fn end_idle(&self, since: Instant) {
        self.desk().members.retain(|member| !member.is_idle() || member.used_at > since);
    }

    /// To those who wait, as far as there are turns.
    fn deal(self: &Arc<Self>) {
        loop {
            let (to, member, process) = {
                let mut desk = self.desk();
                // Who waits no longer is passed over.
                while desk.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                    desk.waiting.pop_front();
                }
                if desk.waiting.is_empty() {
                    return;
                }
                let Some((member, process)) = desk.take(self.usage) else { return };
                let Some(to) = desk.waiting.pop_front() else { return };
                (to, member, process)
            };
            // Who has gone in this moment gives it back.
            let _ = to.send(Turn { line: self.clone(), member, process, has_ended: false });
        }
    }
}

impl Desk {
    /// The process that was used last, if one is free; a new one, if there may be more; the one that has the fewest jobs, if they are short.
    fn take(&mut self, usage: Usage) -> Option<(u64, Option<Arc<Process>>)> {
        let at_once = if usage == Usage::Ahead { jobs_at_once(self.run) } else { 1 };
        let may_be_more = self.members.len() < self.processes;
        let has_time = |member: &&mut Member| {
            member.is_idle() || (!may_be_more && member.has_run && !member.is_late && member.jobs < at_once)
        };
        let fit = self.members.iter_mut().filter(has_time);
        if let Some(member) = fit.min_by_key(|member| (member.jobs, Reverse(member.used_at))) {
            member.jobs += 1;
            return Some((member.no, member.process.clone()));
        }
        if !may_be_more {
            return None;
        }
        self.hired += 1;
        let (no, used_at) = (self.hired, Instant::now());
        self.members.push(Member { no, process: None, has_run: false, jobs: 1, is_late: false, used_at });
        Some((no, None))
    }

    fn member(&mut self, no: u64) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.no == no)
    }
}

impl Ticket {
    pub async fn turn(&self, from: From) -> Turn {
        let turn = {
            let mut desk = self.line.desk();
            let is_first = desk.waiting.is_empty() || from == From::Front;
            match is_first.then(|| desk.take(self.line.usage)).flatten() {
                Some(taken) => Ok(taken),
                None => {
                    let (to, turn) = oneshot::channel();
                    match from {
                        From::End => desk.waiting.push_back(to),
                        From::Front => desk.waiting.push_front(to),
                    }
                    Err(turn)
                }
            }
        };
        match turn {
            Ok((member, process)) => Turn { line: self.line.clone(), member, process, has_ended: false },
            Err(turn) => turn.await.expect("the line is there, and gives everybody a turn"),
        }
    }

    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// It was used. What that took decides how many tickets there are from now on, and how many jobs a process may have.
    pub fn end(self, waited: Duration, ran: Duration) {
        let Ticket { line, permit } = self;
        let mut desk = line.desk();
        desk.run = typical(desk.run, ran);
        let wanted = tickets(desk.tickets, desk.processes, waited, ran);
        if wanted < desk.tickets {
            permit.forget();
        } else {
            line.tickets.add_permits(wanted - desk.tickets);
        }
        desk.tickets = wanted;
    }
}

impl Turn {
    pub fn process(&self) -> Option<Arc<Process>> {
        self.process.clone()
    }

    /// It is started, and others may use it, too, unless it is for one job.
    pub fn begin(&self, process: Process) -> Arc<Process> {
        let process = Arc::new(process);
        if self.line.usage != Usage::Once
            && let Some(member) = self.line.desk().member(self.member)
        {
            member.process = Some(process.clone());
        }
        process
    }

    /// It was used.
    pub fn end(mut self, left: Left) {
        self.has_ended = true;
        self.leave(Some(left));
    }

    fn leave(&self, left: Option<Left>) {
        {
            let mut desk = self.line.desk();
            let Some(member) = desk.member(self.member) else { return };
            member.jobs -= 1;
            match left {
                Some(Left::Fit) => (member.has_run, member.is_late, member.used_at) = (true, false, Instant::now()),
                Some(Left::Late) => member.is_late = true,
                Some(Left::Gone) | None => {}
            }
            if left == Some(Left::Gone) || member.process.is_none() {
                desk.members.retain(|member| member.no != self.member);
            }
        }
        self.line.deal();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_ended {
            self.leave(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::tests::start;
    use super::*;
    use clinch_core::script::Language;
    use futures_util::FutureExt;

    /// Each has its own ticket.
    async fn turn(line: &Arc<Line>) -> Turn {
        line.clone().ticket().await.turn(From::End).await
    }

    /// One that has run, with nothing to do.
    async fn warm(line: &Arc<Line>) -> u64 {
        let turn = turn(line).await;
        let process = start(&std::env::temp_dir(), Language::Bash, "");
        turn.begin(process);
        let member = turn.member;
        turn.end(Left::Fit);
        member
    }

    /// It is known that runs are short.
    async fn learn(line: &Arc<Line>, run: Duration) {
        for _ in 0..64 {
            line.clone().ticket().await.end(Duration::ZERO, run);
        }
    }

    const SHORT: Duration = Duration::from_micros(300);

    #[tokio::test]
    async fn c7_a_turn_is_at_a_free_process_then_at_a_new_one_then_behind_another_job() {
        let line = Arc::new(Line::new(2, 2, Usage::Ahead));
        let first = warm(&line).await;
        learn(&line, SHORT).await;
        let at_first = turn(&line).await;
        assert_eq!((at_first.member, at_first.process().is_some()), (first, true), "it is free");
        let at_second = turn(&line).await;
        assert!(at_second.member != first && at_second.process().is_none(), "there may be another");
        let behind = turn(&line).await;
        assert_eq!(behind.member, first, "the other has not loaded what it needs");
        at_second.begin(start(&std::env::temp_dir(), Language::Bash, ""));
        let second = at_second.member;
        at_second.end(Left::Fit);
        assert_eq!(turn(&line).await.member, second, "it has the fewest");
        drop((at_first, behind));
        assert!(line.idle_since().is_some(), "turns that were not used are given back");
    }

    #[tokio::test]
    async fn c7_nobody_is_behind_a_job_where_runs_are_long_or_it_cannot_be_given_back() {
        for (usage, run, at_once) in [
            (Usage::Ahead, SHORT, 8),
            (Usage::Ahead, Duration::from_millis(4), 2),
            (Usage::Ahead, WAIT_MAX, 1),
            (Usage::OneByOne, SHORT, 1),
        ] {
            let line = Arc::new(Line::new(1, 1, usage));
            warm(&line).await;
            learn(&line, run).await;
            let ticket = line.clone().ticket().await;
            let mut turns = Vec::new();
            while let Some(turn) = ticket.turn(From::End).now_or_never() {
                turns.push(turn);
            }
            assert_eq!(turns.len(), at_once, "{usage:?} {run:?}");
        }
    }

    #[tokio::test]
    async fn c7_a_process_that_gave_a_job_back_gets_no_other_until_it_has_answered() {
        let line = Arc::new(Line::new(1, 1, Usage::Ahead));
        warm(&line).await;
        learn(&line, SHORT).await;
        let (slow, behind) = (turn(&line).await, turn(&line).await);
        behind.end(Left::Late);
        let ticket = line.clone().ticket().await;
        let mut other = Box::pin(ticket.turn(From::End));
        assert!(other.as_mut().now_or_never().is_none());
        let mut again = Box::pin(ticket.turn(From::Front));
        assert!(again.as_mut().now_or_never().is_none());
        learn(&line, WAIT_MAX).await;
        slow.end(Left::Fit);
        let again = again.now_or_never().expect("it was there before the other");
        assert!(other.as_mut().now_or_never().is_none());
        drop(again);
        assert!(other.now_or_never().is_some());
    }

    #[tokio::test]
    async fn c7_who_waits_has_a_process_of_his_own_when_one_has_ended() {
        let line = Arc::new(Line::new(1, 1, Usage::Ahead));
        let gone = warm(&line).await;
        let using = turn(&line).await;
        let ticket = line.clone().ticket().await;
        let mut gone_away = Box::pin(ticket.turn(From::End));
        let mut waits = Box::pin(ticket.turn(From::End));
        assert!(gone_away.as_mut().now_or_never().is_none() && waits.as_mut().now_or_never().is_none());
        drop(gone_away);
        using.end(Left::Gone);
        let turn = waits.now_or_never().expect("a turn");
        assert!(turn.member != gone && turn.process().is_none());
        drop(turn);
        assert_eq!(line.processes(), 0, "one that was not started is none");
    }

    #[tokio::test]
    async fn c7_a_script_that_waits_has_more_processes_while_all_are_in_use_and_there_is_room() {
        let line = Arc::new(Line::new(2, 4, Usage::Ahead));
        let ticket = async || line.clone().ticket().await;
        let check = |demand: f64, has_room: bool, processes: usize| {
            line.seen(demand, || has_room);
            let desk = line.desk();
            assert_eq!((desk.processes, desk.tickets), (processes, processes));
        };
        tokio::time::pause();
        let _first = ticket().await;
        tokio::time::advance(GROW_EVERY).await;
        check(0.01, true, 2);
        let _second = ticket().await;
        check(0.01, false, 2);
        check(0.9, true, 2);
        check(0.01, true, 3);
        let _third = ticket().await;
        check(0.01, true, 3);
        tokio::time::advance(GROW_EVERY).await;
        check(0.01, true, 4);
        let _fourth = ticket().await;
        tokio::time::advance(GROW_EVERY).await;
        check(0.01, true, 4);
    }
}
