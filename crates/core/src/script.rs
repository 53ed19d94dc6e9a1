//! A script: a few lines of another language that a step runs, and how far they may go.

use crate::expr::Template;
use crate::integration::{Integration, Promise};
use aws_lc_rs::digest;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What a process that runs scripts may hold in memory, unless the step says otherwise.
pub const MEMORY_DEFAULT: usize = 512 << 20;
pub const MEMORY_MIN: usize = 32 << 20;
pub const MEMORY_MAX: usize = 64 << 30;

/// The names that every script finds in its environment. No step may give them another meaning.
pub const GIVEN: &[&str] = &["BODY", "IDEMPOTENCY_KEY", "JOB_ID", "EVENT_ID", "ATTEMPT"];

#[derive(Clone, Debug)]
pub struct ScriptAction {
    pub runtime: Runtime,
    pub text: Arc<str>,
    pub env: Vec<(String, Template)>,
    pub timeout: Duration,
    pub memory_bytes_max: usize,
    pub isolation: Isolation,
    /// Stands for the runtime where effects are counted.
    pub partner: Arc<Integration>,
    pub promise: Promise,
    /// The secrets that its environment is made with.
    pub secrets: BTreeSet<String>,
    /// Tells it from every other script: a process runs one script only, for its modules keep what they once read.
    pub fingerprint: [u8; 32],
}

/// Of all that is written about what a process runs.
pub fn fingerprint(runtime: Runtime, text: &str, env: &[(String, Template)], memory_bytes_max: usize) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    let mut add = |part: &str| {
        // Length first, so that no text can pass for another.
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    };
    add(runtime.language.word());
    add(text);
    add(&memory_bytes_max.to_string());
    for (name, Template::Plain(value) | Template::Mixed(value)) in env {
        add(name);
        add(value);
    }
    hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A process runs one job after the other, and keeps what its modules have opened.
    Warm,
    /// Every job has a process of its own.
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    Node,
    Python,
    Bash,
}

impl Language {
    pub const ALL: [Language; 3] = [Language::Node, Language::Python, Language::Bash];

    pub const fn word(self) -> &'static str {
        match self {
            Language::Node => "node",
            Language::Python => "python",
            Language::Bash => "bash",
        }
    }
}

/// A language and the oldest version of it that will do, as in `node:18`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Runtime {
    pub language: Language,
    /// Major and minor; what is not written is 0.
    pub least: (u32, u32),
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.language.word())?;
        match self.least {
            (0, 0) => Ok(()),
            (major, 0) => write!(f, ":{major}"),
            (major, minor) => write!(f, ":{major}.{minor}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a runtime")]
pub struct BadRuntime(pub String);

impl FromStr for Runtime {
    type Err = BadRuntime;
    fn from_str(text: &str) -> Result<Self, BadRuntime> {
        let bad = || BadRuntime(text.to_string());
        let (word, version) = text.split_once(':').map_or((text, None), |(word, version)| (word, Some(version)));
        let language = Language::ALL.into_iter().find(|language| language.word() == word).ok_or_else(bad)?;
        let least = version.map_or(Some((0, 0)), read_version).ok_or_else(bad)?;
        Ok(Runtime { language, least })
    }
}

/// `18`, or `3.11`.
fn read_version(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    Some((number(major)?, number(minor)?))
}

/// The first version in what a program says of itself: `v20.11.1`, `Python 3.11.7`, `GNU bash, version 5.2.15(1)-release`.
pub fn version_in(said: &str) -> Option<(u32, u32)> {
    let words = said.split(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|word| word.contains('.'));
    words.filter_map(|word| read_version(&word.splitn(3, '.').take(2).collect::<Vec<_>>().join("."))).next()
}

/// How many jobs the nth process may run, where the most is given: those that were started together do not all end together.
pub fn life(runs_max: u32, nth: u32) -> u32 {
    runs_max - runs_max / 16 * (nth % 8)
}

/// Nobody who has said that he will run a script should wait longer for a process. Long enough for many to say so at once: to write it down takes
/// as long for one as for all of them.
pub const WAIT_MAX: Duration = Duration::from_millis(25);
/// For each process, at most so many may have said so.
const TICKETS_PER_PROCESS: usize = 16;

/// How many may say that they will run a script, after one of them waited and ran so long: one more after a run that was quick,
/// one less after a wait that was long, and never fewer than there are processes.
pub fn tickets(issued: usize, processes: usize, waited: Duration, ran: Duration) -> usize {
    let wanted = if waited > WAIT_MAX {
        issued.saturating_sub(1)
    } else if waited + ran < WAIT_MAX && issued < processes * TICKETS_PER_PROCESS {
        issued + 1
    } else {
        issued
    };
    wanted.max(processes)
}

/// A process may have so much work before it: the first job runs, and the others begin as soon as it ends, before we have heard of it.
const AHEAD_TIME: Duration = Duration::from_millis(10);
const AHEAD_MAX: usize = TICKETS_PER_PROCESS / 2;

/// How many jobs a process may have at once, of which it runs one, where a run takes so long. What has to be handed over between two runs is
/// little beside long ones, and a short one is soon over for those behind it.
pub fn jobs_at_once(run: Duration) -> usize {
    let jobs = AHEAD_TIME.as_nanos() / run.as_nanos().max(1);
    usize::try_from(jobs).unwrap_or(AHEAD_MAX).clamp(1, AHEAD_MAX)
}

/// How long a run takes, after it was thought to be so long and one took so long: the last eight decide.
pub fn typical(run: Duration, last: Duration) -> Duration {
    (run * 7 + last.min(WAIT_MAX)) / 8
}

/// A process that wants a processor for less of its jobs' time than this waits for something else.
const WAITING_BELOW: f64 = 0.1;

/// Whether another process would help, after one wanted a processor for this share of the time that its jobs took: while they wait for partners it
/// would, and while they compute it would only be in the way.
pub fn waits(demand: f64) -> bool {
    demand < WAITING_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_a_runtime_is_a_language_and_the_oldest_version_that_will_do() {
        let runtime = |text: &str| text.parse::<Runtime>();
        assert_eq!(runtime("node:18"), Ok(Runtime { language: Language::Node, least: (18, 0) }));
        assert_eq!(runtime("python:3.11"), Ok(Runtime { language: Language::Python, least: (3, 11) }));
        assert_eq!(runtime("bash"), Ok(Runtime { language: Language::Bash, least: (0, 0) }));
        for text in ["node:18", "python:3", "python:3.11", "bash", "node"] {
            assert_eq!(runtime(text).expect("a runtime").to_string(), text);
        }
        for text in ["", "nodejs:18", "node:", "node:x", "node:+1", "node:18.", "ruby:3", "node:99999999999"] {
            assert_eq!(runtime(text), Err(BadRuntime(text.into())), "{text}");
        }
    }

    #[test]
    fn c7_programs_say_their_version_in_their_own_ways() {
        assert_eq!(version_in("v20.11.1\n"), Some((20, 11)));
        assert_eq!(version_in("Python 3.11.7"), Some((3, 11)));
        assert_eq!(version_in("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)"), Some((5, 2)));
        assert_eq!(version_in("command not found"), None);
    }

    #[test]
    fn c7_a_quick_script_has_more_tickets_than_processes_and_a_slow_one_has_not() {
        let (quick, slow) = (Duration::from_micros(200), Duration::from_secs(1));
        assert_eq!(tickets(4, 4, Duration::ZERO, quick), 5);
        assert_eq!(tickets(64, 4, Duration::ZERO, quick), 64, "there is a bound");
        assert_eq!(tickets(4, 4, Duration::ZERO, slow), 4);
        assert_eq!(tickets(9, 4, Duration::ZERO, slow), 9, "nobody had to wait");
        assert_eq!(tickets(9, 4, slow, quick), 8, "somebody had");
        assert_eq!(tickets(4, 4, slow, slow), 4, "never less than there are processes");
        assert_eq!(tickets(4, 7, slow, slow), 7, "of which there may be more by now");
    }

    #[test]
    fn c7_a_process_has_jobs_before_it_only_where_they_are_short() {
        let micros = Duration::from_micros;
        for (run, jobs) in [(0, 8), (300, 8), (1_250, 8), (2_000, 5), (4_000, 2), (6_000, 1), (50_000, 1)] {
            assert_eq!(jobs_at_once(micros(run)), jobs, "{run} µs");
        }
        let after = |runs, last| (0..runs).fold(micros(400), |run, _| typical(run, last));
        assert_eq!(jobs_at_once(after(4, Duration::from_secs(60))), 1, "some that are slow are enough");
        let after = (0..64).fold(WAIT_MAX, |run, _| typical(run, micros(300)));
        assert_eq!(jobs_at_once(after), 8, "{after:?}");
    }

    #[test]
    fn c7_another_process_helps_a_script_that_waits_and_not_one_that_computes() {
        assert!(waits(0.0) && waits(0.05));
        assert!(!waits(0.4) && !waits(1.0));
    }

    #[test]
    fn c7_processes_that_begin_together_are_replaced_one_after_the_other() {
        let lives: BTreeSet<u32> = (0..8).map(|nth| life(100_000, nth)).collect();
        assert_eq!(lives.len(), 8);
        assert!(lives.iter().all(|runs| (50_000..=100_000).contains(runs)), "{lives:?}");
        assert_eq!(life(3, 7), 3);
    }
}
