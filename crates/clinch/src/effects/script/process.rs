//! One process that runs a script, and what came of each run. Whatever it starts is in its group, and ends with it.

use super::Home;
use super::demand::Demand;
use crate::runtimes::program;
use clinch_core::script::Language;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde_json::json;
use std::fmt;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::Instant;

/// A script that writes more than this, output and errors together, is ended.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The most that an answer of a runner has.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// How often it is looked at how much memory a script holds.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a process whose wire is closed may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// What a script sees of our own environment. Nothing else: secrets may be in it.
const KEPT: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

pub struct Process {
    /// Also the group of everything that it starts.
    leader: Pid,
    child: Child,
    /// To the runner. That of bash hears and does not answer: it runs once and ends.
    wire: UnixStream,
    unread: Vec<u8>,
    out: ChildStdout,
    err: ChildStderr,
    runs: u32,
    runs_max: u32,
    /// When it was last looked at: how much memory it holds, and how much it wants the processors.
    looked: Instant,
    demand: Demand,
}

/// Who is told how much a process wants the processors, when it is looked at.
pub type Seen<'a> = &'a (dyn Fn(f64) + Send + Sync);

/// What a script wrote during one run.
#[derive(Default)]
pub struct Said {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

/// How one run ended.
pub enum Ran {
    /// With what it returned, if anything.
    Done(Option<String>),
    /// With an error. A process that is spoiled would fail in the same way for ever.
    Failed {
        why: String,
        spoiled: bool,
    },
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

#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    begun: bool,
    returned: Option<Text>,
    error: Option<Text>,
    #[serde(default)]
    spoiled: bool,
}

/// What a script says. Texts of scripts may have half of a character, as where one was cut in two; it is replaced.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
        // As a string it would be refused with all that is said beside it.
        from.deserialize_bytes(Lossy)
    }
}

struct Lossy;

impl Visitor<'_> for Lossy {
    type Value = Text;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a text")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
    }
}

impl Process {
    pub fn start(home: &Home, runs_max: u32, programs: &Path, workspace: &Path) -> Result<Process, String> {
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
        Ok(Process {
            leader,
            child,
            wire,
            unread: Vec::new(),
            out,
            err,
            runs: 0,
            runs_max,
            looked: Instant::now(),
            demand: Demand::new(),
        })
    }

    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// May it run another job?
    pub fn is_fit(&mut self, home: &Home, seen: Seen<'_>) -> bool {
        home.language != Language::Bash && self.runs < self.runs_max && self.is_small(home, seen)
    }

    /// To look takes as long as many a run, so it is not done after every one.
    fn is_small(&mut self, home: &Home, seen: Seen<'_>) -> bool {
        self.looked.elapsed() < LOOK_EVERY || self.look(home, seen)
    }

    /// Whether it holds no more memory than it may.
    fn look(&mut self, home: &Home, seen: Seen<'_>) -> bool {
        self.looked = Instant::now();
        if let Some(share) = self.demand.share(self.leader) {
            seen(share);
        }
        resident(self.leader) <= home.memory_bytes_max
    }

    /// Runs the script once. Unless it ended well, or with an error of its own, the process is gone afterwards.
    pub async fn run(
        &mut self,
        home: &Home,
        env: &[(String, String)],
        deadline: Instant,
        seen: Seen<'_>,
    ) -> (Ran, Said) {
        // What it wrote when it had nothing to do is nobody's.
        drop(self.rest(Said::default()));
        let message = message(home, env, self.runs == 0);
        self.runs += 1;
        self.demand.begin();
        let mut said = Said::default();
        let ran = match tokio::time::timeout_at(deadline, self.wire.write_all(&message)).await {
            Ok(Ok(())) => self.follow(home, &mut said, deadline, seen).await,
            // Before it has all of a job it does not begin.
            Ok(Err(_)) => Ran::NotBegun(self.end().await),
            Err(_) => Ran::NotBegun("its process did not take the job in time".into()),
        };
        if !matches!(ran, Ran::Done(_) | Ran::Failed { .. }) {
            self.kill();
        }
        self.demand.count();
        (ran, self.rest(said))
    }

    async fn follow(&mut self, home: &Home, said: &mut Said, deadline: Instant, seen: Seen<'_>) -> Ran {
        let is_bash = home.language == Language::Bash;
        // One that has run before begins what it gets. A new one says when it is there.
        let mut begun = is_bash || self.runs > 1;
        let (mut is_out_open, mut is_err_open) = (true, true);
        let mut look = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        loop {
            match next_answer(&mut self.unread) {
                Some(Ok(Answer { begun: true, .. })) => {
                    // The rest of what it says may have come with it.
                    begun = true;
                    continue;
                }
                Some(Ok(Answer { error: Some(Text(why)), spoiled, .. })) => return Ran::Failed { why, spoiled },
                Some(Ok(answer)) => return Ran::Done(answer.returned.map(|Text(text)| text)),
                Some(Err(why)) => return Ran::Broken(why),
                None => {}
            }
            tokio::select! {
                read = self.wire.read_buf(&mut self.unread), if !is_bash => match read {
                    Ok(1..) if self.unread.len() > ANSWER_BYTES_MAX => {
                        return Ran::Ended(Excess::Output, "its answer is too long".into());
                    }
                    Ok(1..) => {}
                    // It ended before it had read all of the job: the kernel says so.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ran::NotBegun(self.end().await),
                    Ok(0) | Err(_) if begun => return Ran::Broken(self.end().await),
                    // It never came as far as the script.
                    Ok(0) | Err(_) => return Ran::NotBegun(self.end().await),
                },
                read = self.out.read_buf(&mut said.out), if is_out_open => is_out_open = matches!(read, Ok(1..)),
                read = self.err.read_buf(&mut said.err), if is_err_open => is_err_open = matches!(read, Ok(1..)),
                status = self.child.wait(), if is_bash => return by_status(status),
                _ = look.tick() => {
                    self.demand.count();
                    if !self.look(home, seen) {
                        let most = home.memory_bytes_max >> 20;
                        return Ran::Ended(Excess::Memory, format!("it held more than {most}MiB of memory and was ended"));
                    }
                },
                () = tokio::time::sleep_until(deadline) => return Ran::TimedOut,
            }
            if said.out.len() + said.err.len() > OUTPUT_BYTES_MAX {
                let most = OUTPUT_BYTES_MAX >> 20;
                return Ran::Ended(Excess::Output, format!("it wrote more than {most}MiB and was ended"));
            }
        }
    }

    /// How it ended whose wire is closed.
    async fn end(&mut self) -> String {
        match tokio::time::timeout(END_MAX, self.child.wait()).await {
            Ok(Ok(status)) => format!("its process ended ({status})"),
            _ => "its process closed the connection".to_string(),
        }
    }

    /// With what is left in the pipes: whoever answers has written everything before.
    fn rest(&self, mut said: Said) -> Said {
        drain(&self.out, &mut said.out);
        drain(&self.err, &mut said.err);
        said
    }

    /// With everything that it started. The number is not given to another process while its group has members, and bash
    /// always has its watcher there.
    fn kill(&self) {
        let _ = kill_process_group(self.leader, Signal::KILL);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A job, and the script before the first one.
fn message(home: &Home, env: &[(String, String)], is_first: bool) -> Vec<u8> {
    if home.language == Language::Bash {
        let pairs: String = env.iter().map(|(name, value)| format!("{name}={value}\0")).collect();
        return format!("{pairs}\0{}\0", home.text.replace('\0', "")).into_bytes();
    }
    let env: serde_json::Map<String, serde_json::Value> =
        env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
    let job = json!({ "env": env });
    let message = if is_first { format!("{}\n{job}\n", json!({ "script": &*home.text })) } else { format!("{job}\n") };
    message.into_bytes()
}

fn next_answer(unread: &mut Vec<u8>) -> Option<Result<Answer, String>> {
    let end = unread.iter().position(|byte| *byte == b'\n')?;
    let line: Vec<u8> = unread.drain(..=end).collect();
    Some(serde_json::from_slice(&line).map_err(|_| "its answer cannot be read".to_string()))
}

fn by_status(status: std::io::Result<ExitStatus>) -> Ran {
    match status.map(|status| (status, status.code(), status.signal())) {
        Ok((_, Some(0), _)) => Ran::Done(None),
        Ok((_, Some(code), _)) => Ran::Failed { why: format!("it ended with status {code}"), spoiled: true },
        Ok((status, ..)) => Ran::Broken(format!("its process ended ({status})")),
        Err(error) => Ran::Broken(error.to_string()),
    }
}

fn drain(from: impl AsFd, into: &mut Vec<u8>) {
    let mut piece = [0; 8 << 10];
    while into.len() <= OUTPUT_BYTES_MAX
        && let Ok(length @ 1..) = rustix::io::read(&from, &mut piece)
    {
        into.extend_from_slice(&piece[..length]);
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
mod tests {
    use super::*;

    #[test]
    fn c7_half_of_a_character_in_an_answer_is_replaced() {
        let check = |line: &str, returned: Option<&str>, error: Option<&str>| {
            let answer = next_answer(&mut format!("{line}\n").into_bytes()).expect("a line").expect("an answer");
            let text = |text: Option<Text>| text.map(|Text(text)| text);
            assert_eq!(
                (text(answer.returned), text(answer.error)),
                (returned.map(str::to_string), error.map(str::to_string))
            );
        };
        check("{}", None, None);
        check(r#"{"returned": null}"#, None, None);
        check(r#"{"returned": "{\"a\":\"\u00fc\ud83d\ude00\"}"}"#, Some(r#"{"a":"ü😀"}"#), None);
        check(r#"{"returned": "\"x\ud83d"}"#, Some("\"x\u{fffd}\u{fffd}\u{fffd}"), None);
        check(r#"{"error": "\udce9!"}"#, None, Some("\u{fffd}\u{fffd}\u{fffd}!"));
        assert!(next_answer(&mut b"{\"error\": 7}\n".to_vec()).expect("a line").is_err());
    }
}
