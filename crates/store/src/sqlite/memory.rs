//! The unfinished jobs, in memory: who is due, who runs, until when. Rebuilt from rows at start; changed only after the
//! rows are on disk. Claims and heartbeats touch nothing else: a lease of this engine ends with its process.

use super::queue::{Place, Queue};
use crate::read::Waiting;
use crate::{ClaimAsk, Held, LeaseRef, RecallAsk, VersionId};
use bytes::Bytes;
use clinch_core::death::Reason;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::{Fence, Waits, Word};
use clinch_core::lane::Lane;
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;
use tokio::sync::Notify;

/// Payloads of waiting jobs are kept at hand up to this size; beyond it they are read from disk when claimed.
const PAYLOADS_BYTES_MAX: usize = 32 << 20;
/// To find the oldest job of each flow no more than this many are looked at.
const OLDEST_LOOK_MAX: usize = 10_000;
/// A list looks at no more unfinished jobs than this: nobody else has the memory meanwhile.
const LOOK_MAX: usize = 50_000;

#[derive(Clone, Debug)]
pub(super) struct Live {
    pub event: EventId,
    pub flow: Arc<str>,
    pub queue: Arc<str>,
    pub place: Place,
    pub version: VersionId,
    pub received_at: Timestamp,
    pub trace: TraceId,
    pub failures: u32,
    pub attempts: u32,
    pub replays: u32,
    pub first_attempt_at: Option<Timestamp>,
    pub phase: Phase,
    pub payload: Option<Bytes>,
    /// Whether the ledger may hold rows of this job.
    pub has_effects: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Ready {
        run_at: Timestamp,
        waits: Option<Waits>,
    },
    Running {
        fence: Fence,
        until: Timestamp,
        /// What it may have found undecided was decided since: it does not wait for that.
        woken: Option<Timestamp>,
    },
}

impl Live {
    fn waits(&self) -> Option<Waits> {
        match self.phase {
            Phase::Ready { waits, .. } => waits,
            Phase::Running { .. } => None,
        }
    }

    pub fn word(&self) -> Word {
        match self.phase {
            Phase::Ready { waits: Some(_), .. } => Word::Waiting,
            Phase::Ready { .. } if self.failures > 0 => Word::Retrying,
            Phase::Ready { .. } => Word::Queued,
            Phase::Running { .. } => Word::Running,
        }
    }
}

/// A change that is on disk and now becomes true.
#[derive(Debug)]
pub(super) enum Settled {
    Born {
        job: JobId,
        live: Live,
    },
    /// The job has something in the ledger.
    Begun {
        job: JobId,
    },
    Ended {
        job: JobId,
    },
    Buried {
        job: JobId,
        reason: Reason,
    },
    Again {
        job: JobId,
        run_at: Timestamp,
        charged: bool,
        attempt_started_at: Timestamp,
        waits: Option<Waits>,
    },
    /// Nothing of it is on disk: after a restart it asks again.
    PutOff {
        job: JobId,
        run_at: Timestamp,
        waits: Waits,
    },
    /// What the job waits for, if it waits for people, was decided.
    Woken {
        job: JobId,
        at: Timestamp,
    },
    Revived {
        job: JobId,
        live: Live,
        reason: Reason,
    },
    /// The data of these jobs is gone: what is kept at hand of it goes, too.
    Erased {
        first: JobId,
        last: JobId,
    },
    /// A dropped one is a dead letter again. Others may have passed it: it does not stop them any more.
    DeadAgain {
        flow: Arc<str>,
        reason: Reason,
    },
    /// It is no dead letter any more: its retention has ended, or people gave it up.
    DeadForgotten {
        job: JobId,
        flow: Arc<str>,
        queue: Arc<str>,
        lane: Lane,
        reason: Reason,
    },
}

/// What was found among the unfinished jobs.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub jobs: Vec<JobId>,
    pub looked_at: usize,
    /// Those before it were not looked at.
    pub next: Option<JobId>,
}

pub(super) struct Memory {
    jobs: BTreeMap<JobId, Live>,
    queues: HashMap<Arc<str>, Queue>,
    leases: BTreeSet<(Timestamp, JobId)>,
    live: HashMap<(Arc<str>, Word), u64>,
    waiting: HashMap<(Arc<str>, Waits), u64>,
    dead: HashMap<(Arc<str>, Reason), u64>,
    /// How many unfinished jobs of each flow run each version.
    versions: BTreeMap<(VersionId, Arc<str>), u64>,
    payload_bytes: usize,
    fence: u64,
}

impl Memory {
    /// `boot` grows with every start, so that fences do too.
    pub fn new(boot: u64) -> Self {
        Memory {
            jobs: BTreeMap::new(),
            queues: HashMap::new(),
            leases: BTreeSet::new(),
            live: HashMap::new(),
            waiting: HashMap::new(),
            dead: HashMap::new(),
            versions: BTreeMap::new(),
            payload_bytes: 0,
            fence: boot << 40,
        }
    }

    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    pub fn oldest(&self) -> Option<JobId> {
        self.jobs.first_key_value().map(|(id, _)| *id)
    }

    pub fn get(&self, job: JobId) -> Option<&Live> {
        self.jobs.get(&job)
    }

    pub fn holds(&self, lease: LeaseRef) -> bool {
        matches!(self.jobs.get(&lease.job), Some(Live { phase: Phase::Running { fence, .. }, .. }) if *fence == lease.fence)
    }

    pub fn any_between(&self, first: JobId, last: JobId) -> bool {
        self.jobs.range(first..=last).next().is_some()
    }

    /// How many there are, and how many of them run.
    pub fn unfinished(&self, first: JobId, last: JobId) -> (u64, u64) {
        let running = |live: &&Live| matches!(live.phase, Phase::Running { .. });
        let jobs = || self.jobs.range(first..=last).map(|(_, live)| live);
        (jobs().count() as u64, jobs().filter(running).count() as u64)
    }

    pub fn wake_of(&mut self, queue: &str) -> Arc<Notify> {
        self.queue(&Arc::from(queue)).wake.clone()
    }

    pub fn next_due(&self, queue: &str) -> Option<Timestamp> {
        self.queues.get(queue)?.next_due()
    }

    fn queue(&mut self, name: &Arc<str>) -> &mut Queue {
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), Queue::default());
        }
        self.queues.get_mut(name).expect("it was just put there")
    }

    fn next_fence(&mut self) -> Fence {
        self.fence += 1;
        Fence(self.fence)
    }

    fn count(&mut self, flow: &Arc<str>, word: Word, waits: Option<Waits>, by: i64) {
        let slot = self.live.entry((flow.clone(), word)).or_default();
        *slot = slot.saturating_add_signed(by);
        if let Some(waits) = waits {
            let slot = self.waiting.entry((flow.clone(), waits)).or_default();
            *slot = slot.saturating_add_signed(by);
        }
    }

    fn count_dead(&mut self, flow: &Arc<str>, reason: Reason, by: i64) {
        let slot = self.dead.entry((flow.clone(), reason)).or_default();
        *slot = slot.saturating_add_signed(by);
    }

    /// The job of its lane that this one waits behind.
    pub fn behind(&self, job: JobId) -> Option<JobId> {
        let live = self.jobs.get(&job).filter(|live| live.place.order.is_fifo())?;
        self.queues.get(&live.queue)?.behind(job, live.place.lane)
    }

    /// A dead letter that those behind it may not pass.
    pub fn block(&mut self, queue: &Arc<str>, lane: Lane, by: JobId) {
        self.queue(queue).block(lane, by);
    }

    pub fn remember_dead(&mut self, flow: &Arc<str>, reason: Reason, jobs: u64) {
        self.count_dead(flow, reason, i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// A job enters: new, recovered or revived.
    pub fn enter(&mut self, job: JobId, mut live: Live) {
        let held = live.payload.as_ref().map_or(0, Bytes::len);
        if self.payload_bytes + held > PAYLOADS_BYTES_MAX {
            live.payload = None;
        } else {
            self.payload_bytes += held;
        }
        self.count(&live.flow.clone(), live.word(), live.waits(), 1);
        *self.versions.entry((live.version, live.flow.clone())).or_default() += 1;
        match live.phase {
            Phase::Ready { run_at, .. } => self.queue(&live.queue).enter(job, live.place, run_at),
            Phase::Running { until, .. } => {
                self.queue(&live.queue).enter_running(job, live.place);
                self.leases.insert((until, job));
            }
        }
        self.jobs.insert(job, live);
    }

    /// A job that runs is not running any more. Only such a one ends, dies, or is tried again.
    fn leave(&mut self, job: JobId) -> Option<Live> {
        let live = self.jobs.remove(&job)?;
        self.drop_payload(live.payload.as_ref());
        self.count(&live.flow, live.word(), live.waits(), -1);
        let version = (live.version, live.flow.clone());
        if let Some(jobs) = self.versions.get_mut(&version) {
            *jobs -= 1;
            if *jobs == 0 {
                self.versions.remove(&version);
            }
        }
        if let Phase::Running { until, .. } = live.phase {
            self.leases.remove(&(until, job));
        }
        self.queue(&live.queue).left(job, live.place);
        Some(live)
    }

    fn drop_payload(&mut self, payload: Option<&Bytes>) {
        self.payload_bytes = self.payload_bytes.saturating_sub(payload.map_or(0, Bytes::len));
    }

    /// What has been committed becomes true here.
    pub fn apply(&mut self, change: Settled) {
        match change {
            Settled::Born { job, live } => self.enter(job, live),
            Settled::Begun { job } => {
                if let Some(live) = self.jobs.get_mut(&job) {
                    live.has_effects = true;
                }
            }
            Settled::Ended { job } => {
                self.leave(job);
            }
            Settled::Buried { job, reason } => {
                if let Some(live) = self.leave(job) {
                    self.count_dead(&live.flow, reason, 1);
                    if live.place.order.blocks() {
                        self.block(&live.queue, live.place.lane, job);
                    }
                }
            }
            Settled::Again { job, run_at, charged, attempt_started_at, waits } => {
                if let Some(mut live) = self.leave(job) {
                    live.attempts += 1;
                    live.failures += u32::from(charged);
                    live.first_attempt_at.get_or_insert(attempt_started_at);
                    live.phase = Phase::Ready { run_at, waits };
                    self.enter(job, live);
                }
            }
            Settled::PutOff { job, run_at, waits } => {
                if let Some(mut live) = self.leave(job) {
                    let woken = match live.phase {
                        Phase::Running { woken, .. } if waits == Waits::Approval => woken,
                        _ => None,
                    };
                    let run_at = woken.unwrap_or(run_at);
                    live.phase = Phase::Ready { run_at, waits: Some(waits) };
                    self.enter(job, live);
                }
            }
            Settled::Woken { job, at } => self.wake(job, at),
            Settled::Revived { job, live, reason } => {
                self.count_dead(&live.flow, reason, -1);
                self.enter(job, live);
            }
            Settled::Erased { first, last } => {
                let held: Vec<Bytes> =
                    self.jobs.range_mut(first..=last).filter_map(|(_, live)| live.payload.take()).collect();
                held.iter().for_each(|payload| self.drop_payload(Some(payload)));
            }
            Settled::DeadAgain { flow, reason } => self.count_dead(&flow, reason, 1),
            Settled::DeadForgotten { job, flow, queue, lane, reason } => {
                self.count_dead(&flow, reason, -1);
                self.queue(&queue).unblock(lane, job);
            }
        }
    }

    /// Nothing of it is on disk, as nothing is of their waiting.
    pub fn recall(&mut self, ask: &RecallAsk) -> Option<JobId> {
        if !self.waiting.iter().any(|((_, waits), jobs)| *waits == ask.waits && *jobs > 0) {
            return None;
        }
        let from = ask.after.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut looked_at, mut last) = (0, None);
        let mut recalled = Vec::new();
        for (job, live) in self.jobs.range_mut((from, Bound::Unbounded)).take(ask.most) {
            (looked_at, last) = (looked_at + 1, Some(*job));
            if let Phase::Ready { run_at, waits: Some(waits) } = &mut live.phase
                && *waits == ask.waits
                && *run_at > ask.now
            {
                let before = std::mem::replace(run_at, ask.now);
                recalled.push((*job, live.place, live.queue.clone(), before));
            }
        }
        for (job, place, queue, before) in recalled {
            self.queue(&queue).hasten(job, place, before, ask.now);
        }
        last.filter(|_| looked_at == ask.most)
    }

    fn wake(&mut self, job: JobId, at: Timestamp) {
        let Some(live) = self.jobs.get_mut(&job) else { return };
        match &mut live.phase {
            Phase::Running { woken, .. } => *woken = Some(at),
            Phase::Ready { run_at, waits: Some(Waits::Approval) } if *run_at > at => {
                let (before, place, queue) = (std::mem::replace(run_at, at), live.place, live.queue.clone());
                self.queue(&queue).hasten(job, place, before, at);
            }
            Phase::Ready { .. } => {}
        }
    }

    pub fn claim(&mut self, ask: &ClaimAsk) -> Vec<(LeaseRef, Live)> {
        let mut claimed = Vec::new();
        while claimed.len() < ask.most {
            let Some(job) = self.queue(&ask.queue).claim(ask.now, ask.but) else { break };
            claimed.extend(self.lease(job, ask.until));
        }
        claimed
    }

    pub fn any_lapsed(&self, now: Timestamp) -> bool {
        self.leases.first().is_some_and(|(end, _)| *end < now)
    }

    /// Jobs whose lease ended get a new fence: from here on their old worker changes nothing.
    pub fn lapse(&mut self, now: Timestamp, most: usize, until: Timestamp) -> Vec<(LeaseRef, Live)> {
        let over: Vec<JobId> =
            self.leases.iter().take_while(|(end, _)| *end < now).take(most).map(|(_, job)| *job).collect();
        over.into_iter()
            .filter_map(|job| {
                let (lease, mut live) = self.lease(job, until)?;
                // Its old worker may have intended something in the very transaction that is being written.
                live.has_effects = true;
                Some((lease, live))
            })
            .collect()
    }

    fn lease(&mut self, job: JobId, until: Timestamp) -> Option<(LeaseRef, Live)> {
        let fence = self.next_fence();
        let live = self.jobs.get_mut(&job)?;
        let (before, waits) = (live.word(), live.waits());
        if let Phase::Running { until, .. } = live.phase {
            self.leases.remove(&(until, job));
        }
        live.phase = Phase::Running { fence, until, woken: None };
        self.leases.insert((until, job));
        let payload = live.payload.take();
        let claimed = Live { payload, ..live.clone() };
        self.drop_payload(claimed.payload.as_ref());
        self.count(&claimed.flow, before, waits, -1);
        self.count(&claimed.flow, Word::Running, None, 1);
        Some((LeaseRef { job, fence }, claimed))
    }

    pub fn renew(&mut self, lease: LeaseRef, until: Timestamp) -> Held {
        if !self.holds(lease) {
            return Held::Lost;
        }
        let live = self.jobs.get_mut(&lease.job).expect("a held job is there");
        if let Phase::Running { until: end, .. } = &mut live.phase {
            self.leases.remove(&(*end, lease.job));
            *end = until.max(*end);
            self.leases.insert((*end, lease.job));
        }
        Held::Held
    }

    pub fn versions(&self) -> Vec<VersionId> {
        let mut versions: Vec<VersionId> = self.versions.keys().map(|(version, _)| *version).collect();
        versions.dedup();
        versions
    }

    pub fn by_version(&self) -> Vec<(Arc<str>, VersionId, u64)> {
        self.versions.iter().map(|((version, flow), jobs)| (flow.clone(), *version, *jobs)).collect()
    }

    pub fn live_counts(&self) -> Vec<(Arc<str>, Word, u64)> {
        self.live.iter().map(|((flow, word), jobs)| (flow.clone(), *word, *jobs)).collect()
    }

    pub fn dead_counts(&self) -> Vec<(Arc<str>, Reason, u64)> {
        self.dead.iter().map(|((flow, reason), jobs)| (flow.clone(), *reason, *jobs)).collect()
    }

    pub fn oldest_by_state(&self) -> Vec<(Arc<str>, Word, Timestamp)> {
        let mut oldest: Vec<(Arc<str>, Word, Timestamp)> = Vec::new();
        for live in self.jobs.values().take(OLDEST_LOOK_MAX) {
            if !oldest.iter().any(|(flow, word, _)| *flow == live.flow && *word == live.word()) {
                oldest.push((live.flow.clone(), live.word(), live.received_at));
            }
        }
        oldest
    }

    pub fn waiting(&self) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = self
            .waiting
            .iter()
            .filter(|(_, jobs)| **jobs > 0)
            .map(|((flow, waits), jobs)| Waiting { flow: flow.clone(), waits: *waits, jobs: *jobs, oldest: None })
            .collect();
        if waiting.is_empty() {
            return waiting;
        }
        for live in self.jobs.values().take(OLDEST_LOOK_MAX) {
            let known = waiting.iter_mut().find(|known| known.flow == live.flow && Some(known.waits) == live.waits());
            if let Some(known) = known {
                known.oldest.get_or_insert(live.received_at);
            }
        }
        waiting
    }

    /// The newest first.
    /// Those with this word, the newest first; how many were looked at, and where that ended before all were.
    pub fn find(&self, word: Word, ids: Range<JobId>, fits: impl Fn(&Live) -> bool, most: usize) -> Found {
        let mut found = Found::default();
        let mut left: u64 = self.live.iter().filter(|((_, of), _)| *of == word).map(|(_, jobs)| jobs).sum();
        for (id, live) in self.jobs.range(ids).rev() {
            if left == 0 {
                break;
            }
            if found.looked_at == LOOK_MAX || found.jobs.len() == most {
                found.next = Some(JobId::from_number(id.number().saturating_add(1)));
                break;
            }
            found.looked_at += 1;
            if live.word() == word {
                left -= 1;
                if fits(live) {
                    found.jobs.push(*id);
                }
            }
        }
        found
    }

    pub fn running(&self) -> Vec<JobId> {
        let mut running: Vec<JobId> = self.leases.iter().map(|(_, job)| *job).collect();
        running.sort_unstable_by_key(|job| std::cmp::Reverse(*job));
        running
    }
}
