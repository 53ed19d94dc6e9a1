//! A job: one run of one worker's steps for one event, and the only place where its state may change.

use crate::death::Reason;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Waits for a worker, from `run_at` on. A retry is only a `Ready` job with a later `run_at`.
    Ready {
        run_at: Timestamp,
        /// For what it waits until then, if not for its turn or its next attempt.
        waits: Option<Waits>,
    },
    Running {
        lease: Lease,
    },
    Done {
        at: Timestamp,
        ending: Ending,
    },
    /// In the dead letter queue, until it is replayed or its retention ends.
    Dead {
        at: Timestamp,
        reason: Reason,
    },
    /// Given up by people: it is not run again, and comes back only by their word.
    Dropped {
        at: Timestamp,
        reason: Reason,
    },
}

/// The right to run a job: whoever holds a smaller fence than the job's own changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub fence: Fence,
    pub until: Timestamp,
}

/// Grows with each claim of a job, also across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Success,
    /// Nothing was to be done: what would have done something was left out by its condition.
    Noop,
    /// A rule or a person would not have it, which is an end like any other: nothing failed.
    Declined(Reason),
}

/// For what a job waits that is not its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waits {
    /// The circuit of an integration is open.
    Circuit,
    /// An integration is called as often, or by as many at once, as it may be.
    Limit,
    /// A step says so.
    Delay,
    /// A node that has the key of its data.
    Key,
    /// The next window of a retry budget.
    Budget,
    /// A person's word.
    Approval,
    /// An operator has stopped what it needs.
    Paused,
    /// Safe mode holds what it is about to do.
    SafeMode,
    /// The hours in which its contact may be written to.
    QuietHours,
}

impl Waits {
    pub const ALL: [Waits; 9] = [
        Waits::Circuit,
        Waits::Limit,
        Waits::Delay,
        Waits::Key,
        Waits::Budget,
        Waits::Approval,
        Waits::Paused,
        Waits::SafeMode,
        Waits::QuietHours,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Waits::Circuit => "circuit",
            Waits::Limit => "limit",
            Waits::Delay => "delay",
            Waits::Key => "key",
            Waits::Budget => "budget",
            Waits::Approval => "approval",
            Waits::Paused => "paused",
            Waits::SafeMode => "safe_mode",
            Waits::QuietHours => "quiet_hours",
        }
    }

    /// How a store spells it.
    pub const fn number(self) -> i16 {
        match self {
            Waits::Circuit => 1,
            Waits::Limit => 2,
            Waits::Delay => 3,
            Waits::Key => 4,
            Waits::Budget => 5,
            Waits::Approval => 6,
            Waits::Paused => 7,
            Waits::SafeMode => 8,
            Waits::QuietHours => 9,
        }
    }

    pub fn from_number(number: i16) -> Option<Waits> {
        Waits::ALL.into_iter().find(|waits| waits.number() == number)
    }
}

/// What may happen to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Claimed {
        lease: Lease,
    },
    Finished {
        at: Timestamp,
        ending: Ending,
    },
    /// The attempt failed and another one is due.
    Retried {
        run_at: Timestamp,
    },
    /// It waits for something else than its own work: nothing is charged for that. An attempt that failed before it had to
    /// wait is charged like any other.
    PutOff {
        run_at: Timestamp,
        waits: Waits,
    },
    /// The attempt was stopped by us, not by its work: no attempt is charged.
    HandedBack {
        run_at: Timestamp,
    },
    Buried {
        at: Timestamp,
        reason: Reason,
    },
    /// An operator, or a sender's duplicate where the flow says so, asks for it again.
    Revived {
        run_at: Timestamp,
    },
    /// Two people, or one and a day, gave it up.
    Dropped {
        at: Timestamp,
    },
    /// It is a dead letter again.
    TakenBack {
        at: Timestamp,
    },
}

/// The state after the change, or `None` where the change is not allowed.
pub fn after(state: JobState, change: Change) -> Option<JobState> {
    match (state, change) {
        (JobState::Ready { run_at, .. }, Change::Claimed { lease }) if run_at <= lease.until => {
            Some(JobState::Running { lease })
        }
        (JobState::Running { .. }, Change::Finished { at, ending }) => Some(JobState::Done { at, ending }),
        (JobState::Running { .. }, Change::Retried { run_at } | Change::HandedBack { run_at }) => {
            Some(JobState::Ready { run_at, waits: None })
        }
        (JobState::Running { .. }, Change::PutOff { run_at, waits }) => {
            Some(JobState::Ready { run_at, waits: Some(waits) })
        }
        (JobState::Running { .. }, Change::Buried { at, reason }) => Some(JobState::Dead { at, reason }),
        (JobState::Dead { reason, .. }, Change::Dropped { at }) => Some(JobState::Dropped { at, reason }),
        (JobState::Dropped { reason, .. }, Change::TakenBack { at }) => Some(JobState::Dead { at, reason }),
        (JobState::Dead { .. }, Change::Revived { run_at }) => Some(JobState::Ready { run_at, waits: None }),
        _ => None,
    }
}

/// The words that people see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    Queued,
    Running,
    Waiting,
    Retrying,
    Success,
    Noop,
    Dead,
    Dropped,
}

impl Word {
    pub const ALL: [Word; 8] = [
        Word::Queued,
        Word::Running,
        Word::Waiting,
        Word::Retrying,
        Word::Success,
        Word::Noop,
        Word::Dead,
        Word::Dropped,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Word::Queued => "queued",
            Word::Running => "running",
            Word::Waiting => "waiting",
            Word::Retrying => "retrying",
            Word::Success => "success",
            Word::Noop => "noop",
            Word::Dead => "dead",
            Word::Dropped => "dropped",
        }
    }

    /// Whether nothing is to be done any more, unless people want it.
    pub const fn is_over(self) -> bool {
        matches!(self, Word::Success | Word::Noop | Word::Dead | Word::Dropped)
    }
}

impl std::str::FromStr for Word {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Word::ALL.into_iter().find(|word| word.as_str() == text).ok_or_else(|| {
            let words: Vec<_> = Word::ALL.iter().map(|word| word.as_str()).collect();
            format!("`{text}` is not a state; the states are {}", words.join(", "))
        })
    }
}

impl JobState {
    /// A ready job that has failed before is `retrying`.
    pub fn word(self, failures: u32) -> Word {
        match self {
            JobState::Ready { waits: Some(_), .. } => Word::Waiting,
            JobState::Ready { .. } if failures > 0 => Word::Retrying,
            JobState::Ready { .. } => Word::Queued,
            JobState::Running { .. } => Word::Running,
            JobState::Done { ending: Ending::Success, .. } => Word::Success,
            JobState::Done { ending: Ending::Noop | Ending::Declined(_), .. } => Word::Noop,
            JobState::Dead { .. } => Word::Dead,
            JobState::Dropped { .. } => Word::Dropped,
        }
    }
}

/// The diagram of `docs/job-states.md`, drawn by walking every state and every change.
pub fn diagram() -> String {
    let at = Timestamp::from_micros(0);
    let lease = Lease { fence: Fence(1), until: at };
    let states = [
        ("Ready", JobState::Ready { run_at: at, waits: None }),
        ("Running", JobState::Running { lease }),
        ("Done", JobState::Done { at, ending: Ending::Success }),
        ("Dead", JobState::Dead { at, reason: Reason::Timeout }),
        ("Dropped", JobState::Dropped { at, reason: Reason::Timeout }),
    ];
    let changes = [
        ("claimed", Change::Claimed { lease }),
        ("finished", Change::Finished { at, ending: Ending::Success }),
        ("retried", Change::Retried { run_at: at }),
        ("put off", Change::PutOff { run_at: at, waits: Waits::Limit }),
        ("handed back", Change::HandedBack { run_at: at }),
        ("buried", Change::Buried { at, reason: Reason::Timeout }),
        ("revived", Change::Revived { run_at: at }),
        ("dropped", Change::Dropped { at }),
        ("taken back", Change::TakenBack { at }),
    ];
    let name = |state: JobState| {
        let same = |(_, s): &&(&str, JobState)| std::mem::discriminant(s) == std::mem::discriminant(&state);
        states.iter().find(same).map_or("?", |(name, _)| name)
    };
    let mut lines = vec!["[*] --> Ready: accepted".to_string()];
    for (from, state) in &states {
        for (what, change) in &changes {
            if let Some(to) = after(*state, *change) {
                lines.push(format!("{from} --> {}: {what}", name(to)));
            }
        }
    }
    lines.push("Done --> [*]: retention ends".into());
    lines.push("Dead --> [*]: retention ends".into());
    lines.push("Dropped --> [*]: 30 days pass".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drawn_states_are_the_coded_ones() {
        let page = include_str!("../../../docs/job-states.md");
        for line in diagram().lines() {
            assert!(page.contains(line), "docs/job-states.md lacks `{line}`; the whole diagram is:\n{}", diagram());
        }
        let drawn = page.lines().filter(|line| line.contains("-->")).count();
        assert_eq!(drawn, diagram().lines().count(), "docs/job-states.md draws an arrow that the code does not have");
    }

    #[test]
    fn a_finished_job_never_moves_again() {
        let at = Timestamp::from_micros(0);
        let done = JobState::Done { at, ending: Ending::Success };
        let lease = Lease { fence: Fence(9), until: at };
        for change in [Change::Claimed { lease }, Change::Revived { run_at: at }, Change::Retried { run_at: at }] {
            assert_eq!(after(done, change), None);
        }
    }

    #[test]
    fn c11_a_ready_job_that_failed_before_is_retrying() {
        let ready = JobState::Ready { run_at: Timestamp::from_micros(0), waits: None };
        assert_eq!(ready.word(0), Word::Queued);
        assert_eq!(ready.word(1), Word::Retrying);
        let waiting = JobState::Ready { run_at: Timestamp::from_micros(0), waits: Some(Waits::Circuit) };
        assert_eq!(waiting.word(1), Word::Waiting);
    }
}
