//! One queue in memory: who may run now and in which order, who later, and who waits behind another of its lane.

use clinch_core::id::JobId;
use clinch_core::lane::{Lane, Order, Turns};
use clinch_core::time::Timestamp;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

/// Beside a lane that is left alone no more jobs are looked at. Who is new has the lowest turn and stands before them.
const BESIDE_MAX: usize = 64;

/// Where a job stands among the others of its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub lane: Lane,
    pub order: Order,
    pub priority: i16,
}

pub(super) struct Queue {
    later: BTreeMap<(Timestamp, JobId), Place>,
    /// What is due, by priority, the highest first.
    due: BTreeMap<Reverse<i16>, Due>,
    /// When it was last claimed from: up to this moment everything has come due.
    seen: Timestamp,
    /// The lanes that keep their order. Of each only the head is among those above.
    lines: HashMap<Lane, Line>,
    pub wake: Arc<Notify>,
}

/// What is due at one priority. A job has its turn from when it comes due, not before: time that it was not ready to use
/// is no claim on the future.
#[derive(Default)]
struct Due {
    turns: Turns,
    jobs: BTreeMap<(u64, JobId), Place>,
}

/// A lane whose jobs run one at a time, in order.
#[derive(Default)]
struct Line {
    /// All that are not finished.
    jobs: BTreeMap<JobId, (Timestamp, Place)>,
    head: Option<(JobId, Stand)>,
    /// Dead letters that nobody may pass.
    blocked_by: BTreeSet<JobId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    Later(Timestamp),
    Due { turn: u64, priority: i16 },
    Running,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            later: BTreeMap::new(),
            due: BTreeMap::new(),
            seen: Timestamp::from_micros(0),
            lines: HashMap::new(),
            wake: Arc::default(),
        }
    }
}

impl Queue {
    /// A job that waits to be run, from this time on: new, to be tried again, or revived.
    pub fn enter(&mut self, job: JobId, place: Place, run_at: Timestamp) {
        if !place.order.is_fifo() {
            self.stand(job, place, run_at);
            self.wake.notify_one();
            return;
        }
        let line = self.lines.entry(place.lane).or_default();
        line.blocked_by.remove(&job);
        line.jobs.insert(job, (run_at, place));
        self.line_up(place.lane);
    }

    /// A job that was running when the process ended.
    pub fn enter_running(&mut self, job: JobId, place: Place) {
        if place.order.is_fifo() {
            let line = self.lines.entry(place.lane).or_default();
            line.jobs.insert(job, (self.seen, place));
            let before = line.head.replace((job, Stand::Running));
            self.step_aside(before);
        }
    }

    /// A job that ran is not running any more: it ended, died, or enters again.
    pub fn left(&mut self, job: JobId, place: Place) {
        if !place.order.is_fifo() {
            return;
        }
        if let Some(line) = self.lines.get_mut(&place.lane) {
            line.jobs.remove(&job);
            line.head = line.head.filter(|(head, _)| *head != job);
        }
        self.line_up(place.lane);
    }

    /// A job that waits to be run is due earlier than it was said to be.
    pub fn hasten(&mut self, job: JobId, place: Place, before: Timestamp, run_at: Timestamp) {
        if let Some(line) = self.lines.get_mut(&place.lane).filter(|_| place.order.is_fifo()) {
            line.jobs.insert(job, (run_at, place));
        }
        // Who is not there is due already, or behind another of its lane.
        if self.later.remove(&(before, job)).is_some() {
            let stand = self.stand(job, place, run_at);
            self.note(job, place, stand);
            self.wake.notify_one();
        }
    }

    /// Nobody of its lane passes this dead letter.
    pub fn block(&mut self, lane: Lane, by: JobId) {
        self.lines.entry(lane).or_default().blocked_by.insert(by);
        self.line_up(lane);
    }

    /// A dead letter is gone.
    pub fn unblock(&mut self, lane: Lane, by: JobId) {
        if let Some(line) = self.lines.get_mut(&lane) {
            line.blocked_by.remove(&by);
        }
        self.line_up(lane);
    }

    /// Takes the next job that is due and not of that lane.
    pub fn claim(&mut self, now: Timestamp, but: Option<Lane>) -> Option<JobId> {
        self.come_due(now);
        let (due, turn, job) = self.due.values_mut().find_map(|due| {
            let mut first = due.jobs.iter().take(BESIDE_MAX);
            let (turn, job) = first.find_map(|(next, place)| (Some(place.lane) != but).then_some(*next))?;
            Some((due, turn, job))
        })?;
        let place = due.jobs.remove(&(turn, job))?;
        due.turns.serve(turn);
        self.note(job, place, Stand::Running);
        Some(job)
    }

    pub fn next_due(&self) -> Option<Timestamp> {
        if self.due.values().any(|due| !due.jobs.is_empty()) {
            return Some(self.seen);
        }
        self.later.first_key_value().map(|((run_at, _), _)| *run_at)
    }

    /// The job of its lane that this one waits behind.
    pub fn behind(&self, job: JobId, lane: Lane) -> Option<JobId> {
        let line = self.lines.get(&lane)?;
        let head = line.head.map(|(head, _)| head);
        line.blocked_by.first().copied().or(head).filter(|other| *other != job)
    }

    fn come_due(&mut self, now: Timestamp) {
        self.seen = now;
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= self.seen) {
            let ((run_at, job), place) = first.remove_entry();
            let stand = self.stand(job, place, run_at);
            self.note(job, place, stand);
        }
    }

    fn stand(&mut self, job: JobId, place: Place, run_at: Timestamp) -> Stand {
        if run_at > self.seen {
            self.later.insert((run_at, job), place);
            return Stand::Later(run_at);
        }
        let due = self.due.entry(Reverse(place.priority)).or_default();
        let turn = due.turns.take(place.lane);
        due.jobs.insert((turn, job), place);
        Stand::Due { turn, priority: place.priority }
    }

    fn note(&mut self, job: JobId, place: Place, stand: Stand) {
        if place.order.is_fifo()
            && let Some(line) = self.lines.get_mut(&place.lane)
        {
            line.head = Some((job, stand));
        }
    }

    /// Lets the first of a lane stand where it can be claimed, unless one of them runs or a dead letter is in the way.
    fn line_up(&mut self, lane: Lane) {
        let Some(line) = self.lines.get_mut(&lane) else { return };
        if matches!(line.head, Some((_, Stand::Running))) {
            return;
        }
        let first = line.jobs.first_key_value().filter(|_| line.blocked_by.is_empty());
        let first = first.map(|(job, (run_at, place))| (*job, *run_at, *place));
        if line.head.map(|(head, _)| head) == first.map(|(job, ..)| job) {
            if line.jobs.is_empty() && line.blocked_by.is_empty() {
                self.lines.remove(&lane);
            }
            return;
        }
        let before = line.head.take();
        self.step_aside(before);
        if let Some((job, run_at, place)) = first {
            let stand = self.stand(job, place, run_at);
            self.note(job, place, stand);
            self.wake.notify_one();
        }
    }

    fn step_aside(&mut self, head: Option<(JobId, Stand)>) {
        match head {
            Some((job, Stand::Later(run_at))) => {
                self.later.remove(&(run_at, job));
            }
            Some((job, Stand::Due { turn, priority })) => {
                if let Some(due) = self.due.get_mut(&Reverse(priority)) {
                    due.jobs.remove(&(turn, job));
                }
            }
            Some((_, Stand::Running)) | None => {}
        }
    }
}
