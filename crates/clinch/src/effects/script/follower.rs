//! Follows one process: hands jobs to it and hears what becomes of them. Whatever the process starts is in its group, and ends with it.

use super::answer::{self, Answer, Ended};
use super::demand::Demand;
use super::process::{Excess, Given, Left, Ran, Report, Reported, Seen};
use super::said::{OUTPUT_BYTES_MAX, Pipe, Said, read_now};
use super::{Home, Usage};
use crate::clock::{secret_bytes, shared_micros};
use crate::runtimes::program;
use clinch_core::script::{Language, WAIT_MAX};
use data_encoding::HEXLOWER;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The most that an answer of a runner has.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// A process that has several jobs answers all but the last without waking us. It is looked for that so often.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// How often it is looked at what a script writes, and whether it has taken too long.
const LOOK_LATER: Duration = Duration::from_millis(10);
/// How often it is looked at how much memory a script holds.
const MEASURE_EVERY: Duration = Duration::from_millis(100);
/// How long a process whose wire is closed may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// What a script sees of our own environment. Nothing else: secrets may be in it.
const KEPT: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

pub struct Follower {
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
    out: Pipe,
    err: Pipe,
    /// Written between what one job wrote and what the next did, by runners that are given jobs ahead.
    mark: Option<Arc<str>>,
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
    measured_at: Instant,
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
    /// What it says cannot be read.
    Garbled(String),
    Ran(Ran),
}

impl Follower {
    pub fn start(
        home: &Home,
        runs_max: u32,
        programs: &Path,
        workspace: &Path,
        seen: Seen,
    ) -> Result<Follower, String> {
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
        let mark = (home.usage() == Usage::Ahead).then(|| Arc::from(HEXLOWER.encode(&secret_bytes())));
        let pipe = || Pipe::new(mark.clone()).map_err(failed);
        let ((out, to_out), (err, to_err)) = (pipe()?, pipe()?);
        command.stdin(OwnedFd::from(theirs)).stdout(to_out).stderr(to_err);
        let child = command.spawn().map_err(failed)?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).expect("it was not waited for");
        let wire = UnixStream::from_std(ours).map_err(failed)?;
        Ok(Follower {
            leader,
            child,
            wire,
            unsent: Vec::new(),
            sent: 0,
            unread: Vec::new(),
            out,
            err,
            mark,
            jobs: VecDeque::new(),
            since: Instant::now(),
            has_begun: home.language == Language::Bash,
            given: 0,
            runs: 0,
            runs_max,
            is_small: true,
            measured_at: Instant::now(),
            demand: Demand::new(),
            seen,
            home: home.clone(),
        })
    }

    pub async fn follow(mut self, mut given: mpsc::UnboundedReceiver<Given>) {
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
        let mut pulse = pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            if let Some(end) = self.hear() {
                return Some(end);
            }
            if let Some(ran) = self.excess() {
                return Some(End::Ran(ran));
            }
            let is_busy = !self.jobs.is_empty();
            if !is_busy && !is_wanted {
                return None;
            }
            let (mut hears, says) = self.wire.split();
            tokio::select! {
                biased;
                read = hears.read_buf(&mut self.unread), if !is_bash => match read {
                    Ok(1..) => {}
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return Some(End::Reset),
                    Ok(0) | Err(_) => return Some(End::Closed),
                },
                job = given.recv(), if is_wanted => {
                    match job {
                        Some(job) => self.take(job),
                        None => is_wanted = false,
                    }
                    while let Ok(job) = given.try_recv() {
                        self.take(job);
                    }
                    let next = Instant::now() + self.pause();
                    if !is_busy || next < pulse.deadline() {
                        pulse.as_mut().reset(next);
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
                () = pulse.as_mut(), if is_busy => pulse.as_mut().reset(Instant::now() + self.pause()),
            }
        }
    }

    /// Until it is looked at again.
    fn pause(&self) -> Duration {
        if self.jobs.len() > 1 { LOOK_SOON } else { LOOK_LATER }
    }

    /// What the job that runs has taken more of than it may.
    fn excess(&mut self) -> Option<Ran> {
        if self.unread.len() > ANSWER_BYTES_MAX {
            return Some(Ran::Ended(Excess::Output, "its answer is too long".into()));
        }
        let (now, job) = (Instant::now(), self.jobs.front()?);
        if self.since + job.timeout <= now {
            return Some(Ran::TimedOut);
        }
        if self.out.len() + self.err.len() > OUTPUT_BYTES_MAX {
            let most = OUTPUT_BYTES_MAX >> 20;
            return Some(Ran::Ended(Excess::Output, format!("it wrote more than {most}MiB and was ended")));
        }
        if now - self.measured_at >= MEASURE_EVERY {
            self.measured_at = now;
            self.measure();
            if !self.is_small && now - self.since >= MEASURE_EVERY {
                let most = self.home.memory_bytes_max >> 20;
                let why = format!("it held more than {most}MiB of memory and was ended");
                return Some(Ran::Ended(Excess::Memory, why));
            }
        }
        None
    }

    fn take(&mut self, (job, to): Given) {
        let now = Instant::now();
        let mut begin_by = job.begin_by;
        if self.jobs.is_empty() {
            // What it wrote when it had nothing to do is nobody's.
            self.look(OUTPUT_BYTES_MAX);
            self.out.clear();
            self.err.clear();
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
                self.unsent.extend(
                    format!("{}\n", json!({ "script": &*self.home.text, "mark": self.mark.as_deref() })).bytes(),
                );
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

    /// At what it writes. In this order: the mark in its errors is written first.
    fn look(&mut self, bytes_max: usize) {
        self.out.look(bytes_max);
        self.err.look(bytes_max);
    }

    fn hear(&mut self) -> Option<End> {
        if !self.jobs.is_empty() {
            self.look(OUTPUT_BYTES_MAX);
        }
        while let Some(answer) = self.next_answer() {
            match answer {
                Ok(Answer::Begun) => self.has_begun = true,
                Ok(Answer::Late(no)) => self.give_back(no),
                Ok(Answer::Ended(ended)) => {
                    let Some(at) = self.jobs.iter().position(|job| job.no == ended.no) else {
                        return Some(End::Garbled("it answered what it was not asked".into()));
                    };
                    let spoiled = ended.spoiled;
                    self.end(at, ended);
                    if spoiled {
                        return Some(End::Spoiled);
                    }
                }
                Err(why) => return Some(End::Garbled(why)),
            }
        }
        None
    }

    /// Behind the mark in what it writes, or over the wire.
    fn next_answer(&mut self) -> Option<Result<Answer, String>> {
        match self.out.behind() {
            Some(line) if !line.is_empty() => Some(answer::read(line)),
            _ => answer::next(&mut self.unread),
        }
    }

    fn end(&mut self, at: usize, ended: Ended) {
        self.runs += 1;
        let is_fit = self.is_small && self.runs < self.runs_max && !ended.spoiled;
        let left = if is_fit { Left::Fit } else { Left::Gone };
        if let Some(job) = self.jobs.remove(at) {
            self.report(job, ended.result.map_or_else(Ran::Failed, Ran::Done), ended.took, left);
        }
    }

    /// It is over, and the next has begun.
    fn report(&mut self, job: Pending, ran: Ran, took: Duration, left: Left) {
        let now = Instant::now();
        self.since = now;
        if self.jobs.is_empty() {
            self.demand.count();
        }
        let said = Said { out: self.out.take(), err: self.err.take() };
        let waited = (now - job.came).saturating_sub(took);
        let _ = job.to.send(Ok(Report { ran, said, waited, took, left }));
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
    fn measure(&mut self) {
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
        self.look(2 * OUTPUT_BYTES_MAX);
        let end = match end {
            End::Spoiled | End::Garbled(_) | End::Status(_) => end,
            // It may have answered before it was ended: then the next has begun.
            _ => {
                while read_now(&self.wire, &mut self.unread) > 0 {}
                self.hear().unwrap_or(end)
            }
        };
        let is_sent = self.jobs.front().is_some_and(|job| job.sent_at <= self.sent);
        let is_first = self.jobs.front().map(|job| job.no) == first;
        let runs = self.runs;
        let not_begun = |why| (runs == 0).then_some(Ran::NotBegun(why));
        let ran = match end {
            End::Spoiled => None,
            End::Garbled(why) => {
                // Nobody knows how far it came.
                let sent = self.jobs.iter().filter(|job| job.sent_at <= self.sent).count();
                for job in self.jobs.drain(..sent).collect::<Vec<_>>() {
                    self.report(job, Ran::Broken(why.clone()), self.since.elapsed(), Left::Gone);
                }
                None
            }
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
        if let Some(ran) = ran
            && let Some(job) = self.jobs.pop_front()
        {
            self.report(job, ran, self.since.elapsed(), Left::Gone);
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
