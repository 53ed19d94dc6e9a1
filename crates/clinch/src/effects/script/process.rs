//! One process that runs a script, for one job at a time. Whatever it starts is in its group, and ends with it.
//!
//! It may have jobs before it, which it begins without asking. The first that it has not answered may have begun, and no other: a runner answers one
//! before it begins the next. A job that was not begun in time is given back.

use super::answer::{self, Answer};
use super::demand::Demand;
use super::said::{OUTPUT_BYTES_MAX, Pipe, Said, read_now};
use super::{Home, Usage};
use crate::clock::{secret_bytes, shared_micros};
use crate::runtimes::program;
use bytes::Bytes;
use clinch_core::script::{Language, WAIT_MAX};
use data_encoding::HEXLOWER;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, Sleep};

/// The most that an answer of a runner has.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// How often it is looked at how much memory a script holds.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a process whose wire is closed may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// What a script sees of our own environment. Nothing else: secrets may be in it.
const KEPT: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

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

type Given = (Job, oneshot::Sender<Reported>);

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

/// Hands jobs to a process and hears what becomes of them.
struct Follower {
    home: Home,
    /// Also the group of everything that it starts.
    leader: Pid,
    child: Child,
    /// To the runner. That of bash hears and does not answer: it runs once and ends.
    wire: UnixStream,
    unsent: Vec<u8>,
    /// How many bytes went over it.
    sent: u64,
    unread: Vec<u8>,
    out: Pipe<ChildStdout>,
    err: Pipe<ChildStderr>,
    /// Written between what one job wrote and what the next did, by runners that are given jobs ahead.
    mark: Option<String>,
    /// The first of them runs.
    jobs: VecDeque<Pending>,
    /// Since when, unless there is none.
    since: Instant,
    /// A new one says when it has come as far as the script; then it begins what it gets.
    has_begun: bool,
    /// How many jobs it was given.
    given: u64,
    /// How many it has answered.
    runs: u32,
    runs_max: u32,
    /// It has not grown too large.
    is_small: bool,
    demand: Demand,
    seen: Seen,
}

struct Pending {
    no: u64,
    /// It has all of this job when so many bytes were sent.
    sent_at: u64,
    came: Instant,
    timeout: Duration,
    to: oneshot::Sender<Reported>,
}

/// Why there are no more answers.
enum End {
    /// It may run no other job, and will not.
    Spoiled,
    /// The wire is closed.
    Closed,
    /// Before all was read that was on it.
    Reset,
    Status(std::io::Result<ExitStatus>),
    Ran(Ran),
}

impl Follower {
    fn start(home: &Home, runs_max: u32, programs: &Path, workspace: &Path, seen: Seen) -> Result<Follower, String> {
        let program = program(home.language);
        let failed = |error: std::io::Error| format!("`{program}` cannot be started: {error}");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let mut command = Command::new(program);
        match home.language {
            Language::Node => {
                let heap = format!("--max-old-space-size={}", home.memory_bytes_max >> 20);
                command.args([
                    "--no-warnings",
                    "--experimental-vm-modules",
                    "--experimental-import-meta-resolve",
                    &heap,
                ]);
                command.arg(programs.join("runner.mjs"));
            }
            Language::Python => {
                command.arg(programs.join("runner.py"));
            }
            Language::Bash => {
                command.arg(programs.join("runner.sh"));
            }
        }
        // Who is to be watched: by the time that it looks itself, its parent may be another.
        command.arg(std::process::id().to_string());
        let kept = KEPT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.env_clear().envs(kept).current_dir(workspace).process_group(0).kill_on_drop(true);
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("it was not waited for");
        let (out, err) = (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
        let wire = UnixStream::from_std(ours).map_err(failed)?;
        Ok(Follower {
            leader,
            child,
            wire,
            unsent: Vec::new(),
            sent: 0,
            unread: Vec::new(),
            out: Pipe::new(out),
            err: Pipe::new(err),
            mark: (home.usage() == Usage::Ahead).then(|| HEXLOWER.encode(&secret_bytes())),
            jobs: VecDeque::new(),
            since: Instant::now(),
            has_begun: home.language == Language::Bash,
            given: 0,
            runs: 0,
            runs_max,
            is_small: true,
            demand: Demand::new(),
            seen,
            home: home.clone(),
        })
    }

    async fn follow(mut self, mut given: mpsc::UnboundedReceiver<Given>) {
        let end = self.work(&mut given).await;
        // What comes from now on is for others.
        given.close();
        if let Some(end) = end {
            self.close(end).await;
        }
        while let Ok((_, to)) = given.try_recv() {
            let _ = to.send(Err(Left::Gone));
        }
    }

    /// Until there is nothing more to do, or nobody to do it.
    async fn work(&mut self, given: &mut mpsc::UnboundedReceiver<Given>) -> Option<End> {
        let is_bash = self.home.language == Language::Bash;
        let mut is_wanted = true;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut alarm = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            if let Some(end) = self.hear() {
                return Some(end);
            }
            if self.unread.len() > ANSWER_BYTES_MAX {
                return Some(End::Ran(Ran::Ended(Excess::Output, "its answer is too long".into())));
            }
            let is_busy = !self.jobs.is_empty();
            if !is_busy && !is_wanted {
                return None;
            }
            self.set(alarm.as_mut());
            let (mut hears, says) = self.wire.split();
            tokio::select! {
                biased;
                read = hears.read_buf(&mut self.unread), if !is_bash => match read {
                    Ok(1..) => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return Some(End::Reset),
                    Ok(0) | Err(_) => return Some(End::Closed),
                },
                () = self.out.read(), if self.out.is_open => {}
                () = self.err.read(), if self.err.is_open => {}
                job = given.recv(), if is_wanted => {
                    match job {
                        Some(job) => self.take(job),
                        None => is_wanted = false,
                    }
                    while let Ok(job) = given.try_recv() {
                        self.take(job);
                    }
                    if let Some(end) = self.send() {
                        return Some(end);
                    }
                }
                _ = says.writable(), if !self.unsent.is_empty() => {
                    if let Some(end) = self.send() {
                        return Some(end);
                    }
                }
                status = self.child.wait(), if is_bash && is_busy => return Some(End::Status(status)),
                _ = look.tick(), if is_busy => {
                    self.look();
                    if !self.is_small && self.since.elapsed() >= LOOK_EVERY {
                        let most = self.home.memory_bytes_max >> 20;
                        let why = format!("it held more than {most}MiB of memory and was ended");
                        return Some(End::Ran(Ran::Ended(Excess::Memory, why)));
                    }
                }
                () = alarm.as_mut(), if is_busy => {
                    if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                        return Some(End::Ran(Ran::TimedOut));
                    }
                }
            }
            // What the first of them wrote: before the next began to write, the first was answered.
            if self.out.len() + self.err.len() > OUTPUT_BYTES_MAX && !read_now(&self.wire, &mut self.unread) {
                let most = OUTPUT_BYTES_MAX >> 20;
                let why = format!("it wrote more than {most}MiB and was ended");
                return Some(End::Ran(Ran::Ended(Excess::Output, why)));
            }
        }
    }

    /// By when the one that runs must have ended.
    fn deadline(&self) -> Option<Instant> {
        self.jobs.front().map(|job| self.since + job.timeout)
    }

    /// To set it for every job would take longer than to be woken once in a while for nothing.
    fn set(&self, alarm: Pin<&mut Sleep>) {
        if let Some(deadline) = self.deadline()
            && (alarm.is_elapsed() || deadline < alarm.deadline())
        {
            alarm.reset(deadline);
        }
    }

    fn take(&mut self, (job, to): Given) {
        let now = Instant::now();
        let mut begin_by = job.begin_by;
        if self.jobs.is_empty() {
            // What it wrote when it had nothing to do is nobody's.
            let mark = None;
            drop((self.out.take(mark), self.err.take(mark)));
            self.since = now;
            self.demand.begin();
        } else {
            begin_by = begin_by.min(now + WAIT_MAX);
        }
        self.given += 1;
        let (no, by) = (self.given, shared_micros(begin_by.into_std()));
        if self.home.language == Language::Bash {
            self.unsent.extend_from_slice(&job.env);
            self.unsent.extend(format!("\0{}\0", self.home.text.replace('\0', "")).bytes());
        } else {
            if no == 1 {
                self.unsent.extend(format!("{}\n", json!({ "script": &*self.home.text, "mark": self.mark })).bytes());
            }
            self.unsent.extend(format!("{{\"no\":{no},\"by\":{by},\"env\":").bytes());
            self.unsent.extend_from_slice(&job.env);
            self.unsent.extend(b"}\n");
        }
        let sent_at = self.sent + self.unsent.len() as u64;
        self.jobs.push_back(Pending { no, sent_at, came: now, timeout: job.timeout, to });
    }

    fn send(&mut self) -> Option<End> {
        while !self.unsent.is_empty() {
            match self.wire.try_write(&self.unsent) {
                Ok(length) => {
                    self.unsent.drain(..length);
                    self.sent += length as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(End::Closed),
            }
        }
        None
    }

    fn hear(&mut self) -> Option<End> {
        while let Some(answer) = answer::next(&mut self.unread) {
            let (ran, spoiled) = match answer {
                Ok(Answer::Begun) => {
                    self.has_begun = true;
                    continue;
                }
                Ok(Answer::Late(no)) => {
                    self.give_back(no);
                    continue;
                }
                Ok(Answer::Ended { result, spoiled }) => (result.map_or_else(Ran::Failed, Ran::Done), spoiled),
                Err(why) => return Some(End::Ran(Ran::Broken(why))),
            };
            self.runs += 1;
            let is_fit = self.is_small && self.runs < self.runs_max && !spoiled;
            self.answer(ran, if is_fit { Left::Fit } else { Left::Gone });
            if spoiled {
                return Some(End::Spoiled);
            }
        }
        None
    }

    /// The first of them is over, and the next has begun.
    fn answer(&mut self, ran: Ran, left: Left) {
        let Some(job) = self.jobs.pop_front() else { return };
        let (began, now) = (self.since, Instant::now());
        self.since = now;
        if self.jobs.is_empty() {
            self.demand.count();
        }
        let mark = self.mark.as_deref().map(str::as_bytes);
        let said = Said { out: self.out.take(mark), err: self.err.take(mark) };
        let waited = began.saturating_duration_since(job.came);
        let _ = job.to.send(Ok(Report { ran, said, waited, took: now - began, left }));
    }

    /// Somebody else's: the one that runs takes long.
    fn give_back(&mut self, no: u64) {
        if let Some(at) = self.jobs.iter().position(|job| job.no == no)
            && let Some(job) = self.jobs.remove(at)
        {
            if at == 0 {
                self.since = Instant::now();
            }
            let _ = job.to.send(Err(if self.jobs.is_empty() { Left::Fit } else { Left::Late }));
        }
    }

    /// How much it wants the processors, and whether it holds no more memory than it may. To look takes as long as many a run.
    fn look(&mut self) {
        self.demand.count();
        if let Some(share) = self.demand.share(self.leader) {
            (self.seen)(share);
        }
        self.is_small = resident(self.leader) <= self.home.memory_bytes_max;
    }

    /// Nothing is run here any more. Those that it had before it are for others, but for the one that may have begun.
    async fn close(&mut self, end: End) {
        let (first, is_alone) = (self.jobs.front().map(|job| job.no), self.jobs.len() == 1);
        // One that closed its wire ends by itself, and so says how.
        let ended = match end {
            End::Closed | End::Reset => self.ended().await,
            _ => String::new(),
        };
        self.kill();
        let _ = tokio::time::timeout(END_MAX, self.child.wait()).await;
        if !matches!(end, End::Spoiled) {
            // It may have answered before it was ended: then the next has begun.
            while read_now(&self.wire, &mut self.unread) {}
            let _ = self.hear();
        }
        let is_sent = self.jobs.front().is_some_and(|job| job.sent_at <= self.sent);
        let is_first = self.jobs.front().map(|job| job.no) == first;
        let not_begun = |why| (self.runs == 0).then_some(Ran::NotBegun(why));
        let ran = match end {
            End::Spoiled => None,
            End::Status(status) => Some(by_status(status)),
            // Before it has all of a job it does not begin.
            End::Ran(Ran::TimedOut) if !is_sent => not_begun("its process did not take the job in time".into()),
            End::Ran(ran) if is_first => Some(ran),
            End::Ran(_) if is_sent => Some(Ran::Broken("its process was ended because of the job before it".into())),
            End::Ran(_) => None,
            // It ended before it had read all of the job: the kernel says so.
            End::Reset if is_alone => not_begun(ended),
            End::Closed | End::Reset if self.has_begun && is_sent => Some(Ran::Broken(ended)),
            End::Closed | End::Reset => not_begun(ended),
        };
        if let Some(ran) = ran {
            self.answer(ran, Left::Gone);
        }
        for job in self.jobs.drain(..) {
            let _ = job.to.send(Err(Left::Gone));
        }
    }

    /// How it ended whose wire is closed.
    async fn ended(&mut self) -> String {
        match tokio::time::timeout(END_MAX, self.child.wait()).await {
            Ok(Ok(status)) => format!("its process ended ({status})"),
            _ => "its process closed the connection".to_string(),
        }
    }

    /// With everything that it started. The number is not given to another process while its group has members, and bash
    /// always has its watcher there.
    fn kill(&self) {
        let _ = kill_process_group(self.leader, Signal::KILL);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.kill();
    }
}

fn by_status(status: std::io::Result<ExitStatus>) -> Ran {
    match status.map(|status| (status, status.code(), status.signal())) {
        Ok((_, Some(0), _)) => Ran::Done(None),
        Ok((_, Some(code), _)) => Ran::Failed(format!("it ended with status {code}")),
        Ok((status, ..)) => Ran::Broken(format!("its process ended ({status})")),
        Err(error) => Ran::Broken(error.to_string()),
    }
}

/// What a process and those below it hold in memory.
fn resident(process: Pid) -> usize {
    let process = process.as_raw_nonzero();
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let status = read("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0);
    let children = read(&format!("task/{process}/children"));
    let children = children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?));
    children.map(resident).fold(kib.saturating_mul(1 << 10), usize::saturating_add)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clinch_core::script::Isolation;

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
if (process.env.KEY === '5') console.log('x'.repeat(200000));
await new Promise((on) => setImmediate(on));
return process.pid;";
        let process = start(directory.path(), Language::Node, text);
        let first = done(process.run(job("0", LONG)).await).0;
        let all = (1..=8).map(|key| process.run(job(&key.to_string(), LONG)));
        for (reported, key) in futures_util::future::join_all(all).await.into_iter().zip(1..) {
            let (returned, said) = done(reported);
            assert_eq!(returned, first, "all in one process");
            let mut out = format!("out of {key}\n");
            if key == 3 {
                out += "of a child\n";
            }
            if key == 5 {
                out += &format!("{}\n", "x".repeat(200_000));
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
