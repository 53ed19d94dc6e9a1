//! Scripts: run in processes that stay warm. A process runs one script only, one job at a time, and goes when it has run
//! many, was idle for a while, or did what it may not.

mod answer;
mod demand;
mod follower;
mod line;
mod process;
mod room;
mod said;

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use crate::secrets::hide;
use crate::telemetry::Metrics;
use bytes::Bytes;
use clinch_core::death::Reason;
use clinch_core::effect::{Idempotency, RECEIPT_BYTES_MAX, Receipt};
use clinch_core::key::Fingerprint;
use clinch_core::script::{Isolation, Language, life};
use data_encoding::HEXLOWER;
use line::{From, Line, Ticket};
use process::{Job, Process, Ran, Report, Seen};
use said::Said;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One script has as many processes as there are processors, and at least so many: one may have to wait while another computes. Where they wait
/// for partners it has more.
const PROCESSES_MIN: usize = 2;
/// All scripts together have so many times as many. One of them has half of these at most, and gets no more while half are in use: one that is slow
/// does not keep the rest waiting.
const SCRIPTS_AT_ONCE: usize = 16;
/// A process that has run so many jobs is replaced. Modules are loaded and compiled anew then, which takes as long as thousands
/// of jobs; what leaks meanwhile meets the limit of memory.
const RUNS_MAX: u32 = 100_000;
/// A process that has had nothing to do for so long is ended.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Who may begin for longer than this may begin for as long as it takes.
const BEGIN_MAX: Duration = Duration::from_secs(86_400);
/// Of what a script says when it fails, so much is kept.
const ERROR_CHARS_MAX: usize = 2_000;

const RUNNERS: [(&str, &str); 3] = [
    ("runner.mjs", include_str!("runner.mjs")),
    ("runner.py", include_str!("runner.py")),
    ("runner.sh", include_str!("runner.sh")),
];

/// What a process is started for.
#[derive(Clone, Debug)]
pub struct Home {
    /// The same for scripts that may share a process.
    pub id: [u8; 32],
    pub language: Language,
    pub text: Arc<str>,
    pub memory_bytes_max: usize,
    pub isolation: Isolation,
}

/// How a process is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Usage {
    /// For one job.
    Once,
    /// For one after the other.
    OneByOne,
    /// Likewise, and it is given the next ones while it runs one.
    Ahead,
}

impl Home {
    /// How its processes are used. Node gives jobs back when one takes long; Python could not, while it waits for a partner.
    fn usage(&self) -> Usage {
        match (self.isolation, self.language) {
            (Isolation::Process, _) | (_, Language::Bash) => Usage::Once,
            (Isolation::Warm, Language::Python) => Usage::OneByOne,
            (Isolation::Warm, Language::Node) => Usage::Ahead,
        }
    }

    /// An environment as the runner reads it.
    fn written(&self, env: &[(String, String)]) -> Bytes {
        if self.language == Language::Bash {
            return env.iter().map(|(name, value)| format!("{name}={value}\0")).collect::<String>().into();
        }
        let env: serde_json::Map<String, serde_json::Value> =
            env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        serde_json::Value::Object(env).to_string().into()
    }
}

pub struct ScriptCall {
    home: Home,
    env: Vec<(String, String)>,
    /// Never shown, whatever a script says.
    secrets: Vec<String>,
    timeout: Duration,
    ticket: Option<Ticket>,
}

impl ScriptCall {
    pub fn new(home: Home, env: Vec<(String, String)>, secrets: Vec<String>, timeout: Duration) -> ScriptCall {
        ScriptCall { home, env, secrets, timeout, ticket: None }
    }
}

impl Act for ScriptCall {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn told(&self) -> (String, Fingerprint) {
        let env = serde_json::json!(self.env).to_string();
        let fingerprint = Fingerprint::of(&HEXLOWER.encode(&self.home.id), env.as_bytes());
        (format!("a script for {}", self.home.language.word()), fingerprint)
    }

    fn get_ready<'a>(&'a mut self, tools: &'a Tools) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async { self.ticket = tools.scripts.ticket(&self.home).await })
    }

    fn send<'a>(self: Box<Self>, tools: &'a Tools, _class: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a> {
        Box::pin(tools.scripts.run(*self, may_begin))
    }
}

/// The processes of this node.
pub struct Scripts {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

struct Pool {
    /// Where scripts run.
    workspace: PathBuf,
    /// Where the programs are that run them, once they are there.
    programs: PathBuf,
    written: OnceLock<()>,
    runs_max: u32,
    /// How many processes were started.
    started: AtomicU32,
    /// The right to run a script at all.
    places: Arc<Semaphore>,
    places_max: usize,
    /// Those of each script, while anybody runs it or waits for it, or it has processes.
    lines: Mutex<HashMap<Id, Arc<Line>>>,
    line_processes: usize,
}

/// Scripts that are the same share a line.
type Id = ([u8; 32], Usage);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scripts {
    /// Scripts run in the workspace; what runs them is kept below `home`.
    pub fn new(workspace: PathBuf, home: &Path, metrics: Arc<Metrics>, stop: CancellationToken) -> Scripts {
        let pool = Arc::new(Pool::new(workspace, home, RUNS_MAX));
        tokio::spawn(end_the_idle(Arc::downgrade(&pool)));
        Scripts { pool, metrics, stop }
    }

    /// `None`: the house is left.
    async fn ticket(&self, home: &Home) -> Option<Ticket> {
        self.stop.run_until_cancelled(self.pool.line(home).ticket()).await
    }

    async fn run(&self, mut call: ScriptCall, may_begin: MayBegin<'_>) -> Sent {
        let Some(ticket) = call.ticket.take() else { return Sent::TooLate };
        let (came, env) = (Instant::now(), call.home.written(&call.env));
        let mut from = From::End;
        loop {
            // In this order: who has a place waits for nobody, so that those who wait for one do not wait for each other.
            let rights = async { (ticket.turn(from).await, self.pool.place().await) };
            let Some((turn, _place)) = self.stop.run_until_cancelled(rights).await else { return Sent::TooLate };
            let process = match turn.process() {
                Some(process) => process,
                None => match self.pool.start(&call.home, ticket.line()) {
                    Ok(process) => turn.begin(process),
                    Err(why) => return Sent::NotSent(why),
                },
            };
            let Some(within) = may_begin() else { return Sent::TooLate };
            let handed_over = Instant::now();
            let begin_by = handed_over + within.min(BEGIN_MAX);
            match process.run(Job { env: env.clone(), begin_by, timeout: call.timeout }).await {
                Ok(report) => {
                    turn.end(report.left);
                    ticket.end(handed_over - came + report.waited, report.took);
                    self.count(call.home.language, &report);
                    return call.sent(report.ran, &report.said);
                }
                // Another does what it did not begin.
                Err(left) => {
                    turn.end(left);
                    from = From::Front;
                }
            }
        }
    }

    fn count(&self, language: Language, report: &Report) {
        let (outcome, killed) = match &report.ran {
            Ran::Done(_) => ("ok", None),
            Ran::Failed(_) => ("failed", None),
            Ran::NotBegun(_) => ("not_begun", None),
            Ran::Broken(_) => ("broken", None),
            Ran::TimedOut => ("broken", Some("timeout")),
            Ran::Ended(excess, _) => ("broken", Some(excess.word())),
        };
        self.metrics.script(language.word(), outcome, report.took);
        if let Some(why) = killed {
            self.metrics.script_killed(language.word(), why);
        }
    }
}

impl ScriptCall {
    fn sent(&self, ran: Ran, said: &Said) -> Sent {
        match ran {
            Ran::Done(returned) => {
                let mut body = returned.unwrap_or_else(|| last_json(&said.out)).into_bytes();
                body.truncate(RECEIPT_BYTES_MAX);
                let receipt = Receipt { status: 200, body: Bytes::from(body) };
                Sent::Answered { receipt, retry_after: None, is_whole: true }
            }
            Ran::NotBegun(why) => Sent::NotSent(self.shown(&why, said)),
            Ran::Failed(why) => Sent::Failed { reason: Reason::ScriptError, why: self.shown(&why, said) },
            Ran::TimedOut => {
                let why = format!("it ran longer than {} and was ended", clinch_core::time::human(self.timeout));
                Sent::Broken { reason: Reason::Timeout, why: self.shown(&why, said) }
            }
            Ran::Broken(why) | Ran::Ended(_, why) => {
                Sent::Broken { reason: Reason::ScriptError, why: self.shown(&why, said) }
            }
        }
    }

    /// What people may see of what went wrong: the end of what the script said, masked. Secrets are hidden before it is cut: half of
    /// one would not be recognised.
    fn shown(&self, why: &str, said: &Said) -> String {
        let (why, err) = (self.hidden(why), self.hidden(&String::from_utf8_lossy(&said.err)));
        let err = err.trim();
        let from = err.ceil_char_boundary(err.len().saturating_sub(ERROR_CHARS_MAX));
        let why = &why[..why.floor_char_boundary(ERROR_CHARS_MAX)];
        let text = if err.is_empty() { why.to_string() } else { format!("{why}; stderr: {}", &err[from..]) };
        crate::masking::rules().text(&text)
    }

    fn hidden(&self, text: &str) -> String {
        hide(text, self.secrets.iter().cloned())
    }
}

/// The last line of what it wrote, if that is JSON.
fn last_json(out: &[u8]) -> String {
    let text = String::from_utf8_lossy(out);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(last).is_ok();
    if is_json { last.to_string() } else { "null".to_string() }
}

impl Pool {
    fn new(workspace: PathBuf, home: &Path, runs_max: u32) -> Pool {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let line_processes = cpus.max(PROCESSES_MIN);
        let places_max = line_processes * SCRIPTS_AT_ONCE;
        Pool {
            workspace,
            programs: home.join("scripts"),
            written: OnceLock::new(),
            runs_max,
            started: AtomicU32::new(0),
            places: Arc::new(Semaphore::new(places_max)),
            places_max,
            lines: Mutex::default(),
            line_processes,
        }
    }

    fn line(&self, home: &Home) -> Arc<Line> {
        let line = || Arc::new(Line::new(self.line_processes, self.places_max / 2, home.usage()));
        lock(&self.lines).entry((home.id, home.usage())).or_insert_with(line).clone()
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        self.places.clone().acquire_owned().await.expect("the places are never closed")
    }

    /// For another process of a script that has some.
    fn has_room(&self, memory_bytes_max: usize) -> bool {
        self.places.available_permits() > self.places_max / 2
            && room::free_bytes().is_none_or(|free| free > memory_bytes_max as u64)
    }

    /// A new one of that line, for which another that is idle may have to go.
    fn start(self: &Arc<Self>, home: &Home, line: &Arc<Line>) -> Result<Process, String> {
        self.make_room();
        self.write_programs()
            .map_err(|error| format!("there is no place for the programs that run scripts: {error}"))?;
        let runs_max = life(self.runs_max, self.started.fetch_add(1, Ordering::Relaxed));
        let (pool, line, memory_bytes_max) = (Arc::downgrade(self), Arc::downgrade(line), home.memory_bytes_max);
        let seen: Seen = Box::new(move |demand| {
            if let (Some(pool), Some(line)) = (pool.upgrade(), line.upgrade()) {
                line.seen(demand, || pool.has_room(memory_bytes_max));
            }
        });
        Process::start(home, runs_max, &self.programs, &self.workspace, seen)
    }

    /// There are never more processes than may be used at once: those that are idle for the longest time go.
    fn make_room(&self) {
        let lines = lock(&self.lines);
        let count: usize = lines.values().map(|line| line.processes()).sum();
        for _ in self.places_max..count {
            let idle = lines.values().filter_map(|line| Some((line.idle_since()?, line)));
            let Some((since, line)) = idle.min_by_key(|(since, _)| *since) else { return };
            line.end_idle(since);
        }
    }

    /// Ends those that are idle since then, or for longer.
    fn end_idle(&self, since: Instant) {
        lock(&self.lines).retain(|_, line| {
            line.end_idle(since);
            line.processes() > 0 || Arc::strong_count(line) > 1
        });
    }

    /// Once, and whole: another may be reading them.
    fn write_programs(&self) -> std::io::Result<()> {
        if self.written.get().is_some() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.programs)?;
        for (name, text) in RUNNERS {
            let unfinished = self.programs.join(format!("{name}.{}", std::process::id()));
            std::fs::write(&unfinished, text)?;
            std::fs::rename(unfinished, self.programs.join(name))?;
        }
        let _ = self.written.set(());
        Ok(())
    }
}

async fn end_the_idle(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(IDLE_MAX / 4).await;
        let Some(pool) = pool.upgrade() else { return };
        if let Some(since) = Instant::now().checked_sub(IDLE_MAX) {
            pool.end_idle(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(language: Language, text: &str) -> Home {
        Home { id: [0; 32], language, text: text.into(), memory_bytes_max: 512 << 20, isolation: Isolation::Warm }
    }

    #[test]
    fn c7_the_last_line_of_json_is_the_result() {
        for (out, result) in [
            ("", "null"),
            ("hello\n", "null"),
            ("hello\n{\"a\": 1}\n\n", "{\"a\": 1}"),
            ("{\"a\": 1}\nbye", "null"),
            ("7", "7"),
        ] {
            assert_eq!(last_json(out.as_bytes()), result, "{out:?}");
        }
    }

    #[test]
    fn p9_no_part_of_a_secret_is_left_where_an_error_is_cut() {
        let home = home(Language::Bash, "");
        let secrets = ["canary", "canary-of-a-secret"].map(String::from).to_vec();
        let call = ScriptCall::new(home, vec![], secrets, Duration::from_secs(1));
        let many = "so ".repeat(ERROR_CHARS_MAX / 3 - 1);
        let err = format!("canary-of-a-secret {many}").into_bytes();
        let shown = call.shown(&format!("{many} canary-of-a-secret"), &Said { out: Vec::new(), err });
        assert!(shown.contains("so so") && !shown.contains("can") && !shown.contains("cret"), "{shown}");
        let said = Said { out: Vec::new(), err: b"it says canary-of-a-secret\n".to_vec() };
        assert_eq!(call.shown("it ended with status 1", &said), "it ended with status 1; stderr: it says ***");
    }

    #[tokio::test]
    async fn c7_a_process_that_has_run_many_jobs_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = Arc::new(Pool::new(directory.path().to_path_buf(), directory.path(), 3));
        let scripts = Scripts { pool, metrics: Arc::default(), stop: CancellationToken::new() };
        let home = home(Language::Node, "return process.pid");
        let mut processes = Vec::new();
        for _ in 0..7 {
            let mut call = ScriptCall::new(home.clone(), vec![], vec![], Duration::from_secs(60));
            call.ticket = scripts.ticket(&home).await;
            match scripts.run(call, &|| Some(Duration::MAX)).await {
                Sent::Answered { receipt, .. } => processes.push(receipt.body),
                other => panic!("{other:?}"),
            }
        }
        let runs: Vec<usize> = processes.chunk_by(|one, next| one == next).map(<[Bytes]>::len).collect();
        assert_eq!(runs, [3, 3, 1]);
    }
}
