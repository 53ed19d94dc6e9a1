//! A process that runs a script, for one job at a time: what it is given, and what becomes of that.
//!
//! It may have jobs before it, which it begins without asking. The first that it has not answered may have begun, and no other: a runner answers one
//! before it begins the next. A job that was not begun in time is given back.

use super::Home;
use super::follower::Follower;
use super::said::Said;
use bytes::Bytes;
use std::path::Path;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Told how much the process wants the processors.
pub type Seen = Box<dyn Fn(f64) + Send + Sync>;

/// It ends when nobody has it any more and what it was given is done.
pub struct Process(mpsc::UnboundedSender<Given>);

/// A job for a process.
pub struct Job {
    /// As its runner reads it.
    pub env: Bytes,
    /// Later it is not begun.
    pub begin_by: Instant,
    /// How long it may take from its beginning.
    pub timeout: Duration,
}

/// What came of a job that was begun, or could not be; else it is for another process.
pub type Reported = Result<Report, Left>;

pub type Given = (Job, oneshot::Sender<Reported>);

pub struct Report {
    pub ran: Ran,
    pub said: Said,
    /// Until it began, after it was handed over.
    pub waited: Duration,
    pub took: Duration,
    pub left: Left,
}

/// What a process is good for after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The next.
    Fit,
    /// The next, when it has answered the one that it runs.
    Late,
    /// Nothing more.
    Gone,
}

/// How one run ended.
pub enum Ran {
    /// With what it returned, if anything.
    Done(Option<String>),
    Failed(String),
    /// Not a line of it was run.
    NotBegun(String),
    TimedOut,
    /// It was ended, because it took too much of something.
    Ended(Excess, String),
    /// It ended by itself, somewhere in between.
    Broken(String),
}

/// What a script may not take more of.
pub enum Excess {
    Memory,
    Output,
}

impl Excess {
    pub const fn word(&self) -> &'static str {
        match self {
            Excess::Memory => "memory",
            Excess::Output => "output",
        }
    }
}

impl Process {
    pub fn start(home: &Home, runs_max: u32, programs: &Path, workspace: &Path, seen: Seen) -> Result<Process, String> {
        let follower = Follower::start(home, runs_max, programs, workspace, seen)?;
        let (jobs, given) = mpsc::unbounded_channel();
        tokio::spawn(follower.follow(given));
        Ok(Process(jobs))
    }

    /// Runs the script once, after those that were handed over before.
    pub async fn run(&self, job: Job) -> Reported {
        let (to, report) = oneshot::channel();
        // It ended when it had nothing to do.
        self.0.send((job, to)).map_err(|_| Left::Gone)?;
        report.await.unwrap_or_else(|_| {
            let (ran, said) = (Ran::Broken("nobody follows its process any more".into()), Said::default());
            Ok(Report { ran, said, waited: Duration::ZERO, took: Duration::ZERO, left: Left::Gone })
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clinch_core::script::{Isolation, Language};
    use serde_json::json;

    const LONG: Duration = Duration::from_secs(60);

    /// A process in the directory, with the runners as they are in the source.
    pub fn start(directory: &Path, language: Language, text: &str) -> Process {
        let (memory_bytes_max, isolation) = (512 << 20, Isolation::Warm);
        let home = Home { id: [0; 32], language, text: text.into(), memory_bytes_max, isolation };
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/effects/script");
        Process::start(&home, 1_000, &programs, directory, Box::new(|_| {})).expect("a process")
    }

    fn job(key: &str, timeout: Duration) -> Job {
        let env = json!({ "KEY": key }).to_string().into();
        Job { env, begin_by: Instant::now() + LONG, timeout }
    }

    fn done(reported: Reported) -> (Option<String>, Said) {
        match reported {
            Ok(Report { ran: Ran::Done(returned), said, .. }) => (returned, said),
            Ok(Report { ran: Ran::Failed(why) | Ran::Broken(why) | Ran::NotBegun(why), .. }) => panic!("{why}"),
            Ok(_) => panic!("it was ended"),
            Err(left) => panic!("it was given back: {left:?}"),
        }
    }

    fn runs(directory: &Path) -> String {
        std::fs::read_to_string(directory.join("runs")).unwrap_or_default()
    }

    /// Notes its key, and then does as the key says.
    const AS_TOLD: &str = "import fs from 'node:fs';
const { KEY } = process.env;
fs.appendFileSync('runs', KEY + ';');
if (KEY === 'computes') for (const end = Date.now() + 400; Date.now() < end; );
if (KEY === 'waits') await new Promise((on) => setTimeout(on, 400));
if (KEY === 'never ends') for (;;);
if (KEY === 'dies') process.kill(process.pid, 'SIGKILL');
if (KEY === 'closes') fs.closeSync(1);
return KEY;";

    #[tokio::test]
    async fn c7_a_job_that_is_behind_another_begins_when_that_has_ended_and_what_they_write_is_told_apart() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = "import { execSync } from 'node:child_process';
console.log('out of ' + process.env.KEY);
console.error('err of ' + process.env.KEY);
if (process.env.KEY === '3') execSync('echo of a child', { stdio: 'inherit' });
if (process.env.KEY === '5' || process.env.KEY === '6') console.log('x'.repeat(700000));
await new Promise((on) => setImmediate(on));
return [process.pid, process.env.KEY === '7' ? 'y'.repeat(5000) : ''];";
        let process = start(directory.path(), Language::Node, text);
        let first = done(process.run(job("0", LONG)).await).0;
        // On a busy machine one may be given back, as it was not begun in time.
        let until_begun = async |key: u32| loop {
            match process.run(job(&key.to_string(), LONG)).await {
                Err(Left::Fit | Left::Late) => {}
                reported => break done(reported),
            }
        };
        for ((returned, said), key) in
            futures_util::future::join_all((1..=8).map(until_begun)).await.into_iter().zip(1..)
        {
            let long = if key == 7 { "y".repeat(5_000) } else { String::new() };
            assert_eq!(
                returned,
                first.as_ref().map(|first| first.replace("\"\"", &format!("\"{long}\""))),
                "all in one process"
            );
            let mut out = format!("out of {key}\n");
            if key == 3 {
                out += "of a child\n";
            }
            // As much as two of them may write, and one may not.
            if key == 5 || key == 6 {
                out += &format!("{}\n", "x".repeat(700_000));
            }
            assert!(said.out == out.as_bytes(), "{key}: {}", String::from_utf8_lossy(&said.out));
            assert_eq!(said.err, format!("err of {key}\n").as_bytes());
        }
    }

    #[tokio::test]
    async fn c7_jobs_behind_one_that_takes_long_are_given_back_and_not_begun() {
        for slow in ["waits", "computes"] {
            let directory = tempfile::tempdir().expect("a directory");
            let process = start(directory.path(), Language::Node, AS_TOLD);
            done(process.run(job("quick", LONG)).await);
            let (slow_one, behind, other) = tokio::join!(
                process.run(job(slow, LONG)),
                process.run(job("behind", LONG)),
                process.run(job("other", LONG)),
            );
            assert_eq!(done(slow_one).0, Some(format!("\"{slow}\"")));
            // While it waits it gives them back at once; while it computes it can only do so afterwards.
            let left = if slow == "waits" { [Left::Late, Left::Late] } else { [Left::Late, Left::Fit] };
            assert_eq!([behind.err(), other.err()], left.map(Some), "{slow}");
            assert_eq!(done(process.run(job("again", LONG)).await).0, Some("\"again\"".into()));
            assert_eq!(runs(directory.path()), format!("quick;{slow};again;"));
        }
    }

    #[tokio::test]
    async fn c7_of_those_that_a_process_had_only_the_first_may_have_begun_when_it_ended() {
        for (first, timeout) in [("never ends", Duration::from_secs(2)), ("dies", LONG)] {
            let directory = tempfile::tempdir().expect("a directory");
            let process = start(directory.path(), Language::Node, AS_TOLD);
            done(process.run(job("quick", LONG)).await);
            let (first_one, behind, other) = tokio::join!(
                process.run(job(first, timeout)),
                process.run(job("behind", LONG)),
                process.run(job("other", LONG)),
            );
            let Ok(Report { ran, left: Left::Gone, .. }) = first_one else { panic!("{first}: it had begun") };
            assert!(matches!((first, ran), ("never ends", Ran::TimedOut) | ("dies", Ran::Broken(_))), "{first}");
            assert_eq!([behind.err(), other.err()], [Some(Left::Gone); 2], "{first}");
            assert_eq!(process.run(job("later", LONG)).await.err(), Some(Left::Gone), "{first}");
            assert_eq!(runs(directory.path()), format!("quick;{first};"));
        }
    }

    #[tokio::test]
    async fn p3_all_that_a_process_had_is_in_doubt_when_what_it_says_cannot_be_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let text = "import fs from 'node:fs';
if (process.env.KEY !== 'garbles') return 1;
fs.writeSync(0, 'what?\\n');
await new Promise(() => {});";
        let process = start(directory.path(), Language::Node, text);
        done(process.run(job("quick", LONG)).await);
        let all = ["garbles", "behind", "other"].map(|key| process.run(job(key, LONG)));
        for reported in futures_util::future::join_all(all).await {
            let Ok(Report { ran: Ran::Broken(why), left: Left::Gone, .. }) = reported else { panic!("it is in doubt") };
            assert_eq!(why, "its answer cannot be read");
        }
    }

    #[tokio::test]
    async fn c7_a_script_that_closes_its_output_is_the_last_of_its_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let process = start(directory.path(), Language::Node, AS_TOLD);
        done(process.run(job("quick", LONG)).await);
        let (closes, behind) = tokio::join!(process.run(job("closes", LONG)), process.run(job("behind", LONG)));
        assert!(matches!(closes, Ok(Report { ran: Ran::Done(_), left: Left::Gone, .. })));
        assert_eq!(behind.err(), Some(Left::Gone));
        assert_eq!(runs(directory.path()), "quick;closes;");
    }

    #[tokio::test]
    async fn p6_a_job_that_may_not_begin_any_more_is_not_begun() {
        for (language, text) in [
            (Language::Node, AS_TOLD),
            (Language::Python, "import os\nopen('runs', 'a').write(os.environ['KEY'] + ';')\nreturn 1"),
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let process = start(directory.path(), language, text);
            let late = Job { begin_by: Instant::now(), ..job("late", LONG) };
            assert_eq!(process.run(late).await.err(), Some(Left::Fit), "{language:?}");
            done(process.run(job("in time", LONG)).await);
            assert_eq!(runs(directory.path()), "in time;", "{language:?}");
        }
    }
}
