//! The real binary in a process of its own, with what stands around it: a sink that writes down every effect, and a
//! provider that sends until it is told 202. What is started here ends with the test, also when the test fails.

use bytes::Bytes;
use clinch::encryption::KEY_FILE;
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::seal::KeyRing;
use clinch_store::Store;
use clinch_store::read::{JobFilter, JobRow, JobStory, LIST_ROWS_MAX};
use clinch_store::sqlite::{Report, SqliteStore, verify};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Nothing that is waited for takes this long, unless it never comes.
pub const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);

/// Waits until it is so; fails, saying what was waited for, if it never is.
pub async fn eventually(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within {within:?}");
        tokio::time::sleep(TICK).await;
    }
}

/// A way through the house: a flow at `/hooks/NAME`, a queue, and a worker that calls the sink once per step.
#[derive(Clone, Copy)]
pub struct Way {
    pub name: &'static str,
    pub idempotency: &'static str,
    pub steps: &'static [&'static str],
    pub concurrency: usize,
}

/// An effect that must never be repeated.
pub const ONCE: Way = Way { name: "once", idempotency: "none", steps: &["charge"], concurrency: 32 };
/// An effect that the target can recognise.
pub const AGAIN: Way = Way { name: "again", idempotency: "header", ..ONCE };
/// An effect that changes nothing the second time.
pub const NATURAL: Way = Way { name: "natural", idempotency: "natural", ..ONCE };
/// An effect that the target can be asked about.
pub const ASKED: Way = Way { name: "asked", idempotency: "lookup", ..ONCE };

impl Way {
    fn files(self, sink: SocketAddr) -> [(String, String); 2] {
        let Way { name, idempotency, steps, concurrency } = self;
        let flow = format!(
            "version: 1
name: {name}
triggers:
  - http:
      path: /hooks/{name}
      idempotency: {{key_from: 'header:Idempotency-Key', ttl: 48h}}
steps:
  - name: enqueue
    queue: {{name: {name}}}
"
        );
        let mut worker = format!(
            "version: 1
name: {name}-worker
consumes: {{queue: {name}}}
concurrency: {concurrency}
retry: {{strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 50}}
run:
"
        );
        let lookup = match idempotency {
            "lookup" => {
                format!(", lookup: {{url: 'http://{sink}/made?key={{{{ step.key }}}}', done: 'answer.body.total > 0'}}")
            }
            _ => String::new(),
        };
        for step in steps {
            let url = format!("http://{sink}/{name}/{step}");
            let _ = writeln!(
                worker,
                "  - name: {step}\n    http: {{url: '{url}', body_from: body, idempotency: {idempotency}{lookup}, timeout: 60s, headers: {{x-node: '${{secrets.NODE}}'}}}}"
            );
        }
        [(format!("flows/{name}.yml"), flow), (format!("workers/{name}.yml"), worker)]
    }
}

/// A workspace, a place for the data, and the sink that the workers call. Servers come and go on it.
pub struct Place {
    pub sink: Sink,
    pub data_dir: PathBuf,
    pub dir: tempfile::TempDir,
    starts: AtomicUsize,
}

impl Place {
    pub async fn new(ways: &[Way]) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        Place::at(ways, dir, data_dir).await
    }

    /// With the data somewhere else.
    pub async fn with_data_in(ways: &[Way], data_dir: PathBuf) -> Place {
        Place::at(ways, tempfile::tempdir().unwrap(), data_dir).await
    }

    async fn at(ways: &[Way], dir: tempfile::TempDir, data_dir: PathBuf) -> Place {
        let sink = Sink::start().await;
        std::fs::create_dir_all(dir.path().join("workspace")).unwrap();
        let mut queues = "queues:\n".to_string();
        for way in ways {
            let _ = writeln!(queues, "  - name: {}", way.name);
            for (file, text) in way.files(sink.address) {
                let path = dir.path().join("workspace").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
        }
        std::fs::write(dir.path().join("workspace/queues.yml"), queues).unwrap();
        Place { sink, data_dir, dir, starts: AtomicUsize::new(0) }
    }

    /// Adds a file to the workspace, or puts it in the place of another.
    pub fn write(&self, file: &str, text: &str) {
        let path = self.dir.path().join("workspace").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Starts the binary and does not wait for anything.
    pub fn spawn(&self, env: &[(&str, &str)]) -> Server {
        self.launch(&self.data_dir, &[], env)
    }

    /// One with a data directory and arguments of its own; the sink learns its number.
    pub fn launch(&self, data_dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Server {
        let number = self.starts.fetch_add(1, Ordering::Relaxed);
        let log = self.dir.path().join(format!("server-{number}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_clinch"))
            .arg("serve")
            .arg("--workspace")
            .arg(self.dir.path().join("workspace"))
            .arg("--data-dir")
            .arg(data_dir)
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--grace", "5s"])
            .args(args)
            .env("NODE", number.to_string())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let card = data_dir.join("server.json");
        Server { child, log, card, name: number.to_string(), intake: String::new(), admin: String::new() }
    }

    pub async fn start(&self) -> Server {
        self.start_with(&[]).await
    }

    /// Starts the binary and waits until its doors are open.
    pub async fn start_with(&self, env: &[(&str, &str)]) -> Server {
        let mut server = self.spawn(env);
        server.opened().await;
        server
    }

    /// The figures of `verify`; a server may be running.
    pub fn report(&self) -> Report {
        verify(&self.data_dir, clinch_core::time::Timestamp::from_micros(0)).unwrap()
    }

    pub fn jobs(&self, part: &str) -> i64 {
        let report = self.report();
        report.parts.iter().find(|(name, _)| *name == part).map(|(_, jobs)| *jobs).unwrap()
    }

    /// Until no job is queued, running or retrying.
    pub async fn drained(&self) {
        eventually("every job ends", PATIENCE, async || self.jobs("queued") + self.jobs("retrying") == 0).await;
    }

    /// What `clinch verify` says when it is content.
    pub fn verified(&self) -> String {
        let out = Command::new(env!("CARGO_BIN_EXE_clinch")).arg("verify").arg(&self.data_dir).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "verify: {said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    /// What the only job came to after a restart.
    pub async fn after_a_restart(&self, provider: &Provider) -> JobStory {
        let server = self.start().await;
        provider.settle(&server.intake).await;
        self.drained().await;
        server.stop().await;
        self.verified();
        let job = provider.acknowledged().into_values().next().expect("it was acknowledged");
        self.books().await.story(job).await
    }

    /// The store, opened by the test itself; no server may be running.
    pub async fn books(&self) -> Books {
        Books(Arc::new(SqliteStore::open(&self.data_dir, [0; 32], keys_in(&self.data_dir)).await.unwrap()))
    }
}

/// The keys of the key file in this directory.
pub fn keys_in(directory: &Path) -> Option<KeyRing> {
    Some(clinch::encryption::read(&directory.join(KEY_FILE)).unwrap())
}

/// What the store knows after the server is gone.
pub struct Books(pub Arc<dyn Store>);

impl Books {
    pub async fn story(&self, job: JobId) -> JobStory {
        self.0.job(job).await.unwrap().unwrap_or_else(|| panic!("{job} was acknowledged and is not there"))
    }

    pub async fn jobs(&self) -> HashMap<JobId, JobRow> {
        let mut jobs = HashMap::new();
        let mut before = None;
        loop {
            let filter = JobFilter { before, limit: LIST_ROWS_MAX, ..JobFilter::default() };
            let page = self.0.jobs(filter).await.unwrap();
            before = page.rows.last().map(|row| row.id);
            let last = page.rows.len() < LIST_ROWS_MAX;
            jobs.extend(page.rows.into_iter().map(|row| (row.id, row)));
            if last {
                return jobs;
            }
        }
    }
}

/// Every acknowledged event is at the sink, at most once unless the ledger knows better. The effects of unknown outcome.
pub async fn nothing_was_lost_or_repeated(sink: &Sink, books: &Books, providers: &[Arc<Provider>]) -> Vec<Effect> {
    let mut calls: HashMap<String, Vec<String>> = HashMap::new();
    for call in sink.calls() {
        calls.entry(call.event).or_default().push(call.effect);
    }
    let jobs = books.jobs().await;
    assert_eq!(jobs.len(), providers.iter().map(|provider| provider.made()).sum::<usize>(), "one job per event");
    let mut unknown = Vec::new();
    for provider in providers {
        let acknowledged = provider.acknowledged();
        assert_eq!(acknowledged.len(), provider.made(), "the provider sent until it was told 202");
        for (event, job) in acknowledged {
            let row = jobs.get(&job).unwrap_or_else(|| panic!("{event} was acknowledged as {job}, which is not there"));
            let seen = calls.get(&event).map_or(&[][..], Vec::as_slice);
            assert!(seen.iter().all(|effect| *effect == seen[0]), "{event} came under several keys: {seen:?}");
            if seen.len() == 1 && row.word == Word::Success {
                continue;
            }
            let effect = books.story(job).await.effects.pop().unwrap_or_else(|| panic!("{event}: {row:?} did nothing"));
            if provider.way == AGAIN.name {
                assert_eq!(row.word, Word::Success, "{event} could be sent again: {row:?}");
                assert!(!seen.is_empty(), "{event} succeeded and never came");
                assert!(seen.len() <= effect.sends as usize, "{event} came {} times: {effect:?}", seen.len());
            } else {
                assert!(seen.len() <= 1, "{event} must not be repeated and came {} times", seen.len());
                assert_eq!((row.word, row.reason), (Word::Dead, Some(Reason::UnknownOutcome)), "{event}");
                assert_eq!(effect.state, EffectState::Unknown, "{event}");
                unknown.push(effect);
            }
        }
    }
    unknown
}

/// The binary, running or ended.
pub struct Server {
    child: Child,
    log: PathBuf,
    card: PathBuf,
    /// What it calls itself at the sink.
    pub name: String,
    pub intake: String,
    pub admin: String,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its doors are open, those that it has.
    pub async fn opened(&mut self) {
        eventually("the server leaves its card", PATIENCE, async || {
            if let Some(status) = self.exit_status() {
                panic!("the server ended at once ({status}): {}", self.said());
            }
            let card = std::fs::read_to_string(&self.card).unwrap_or_default();
            let card: Value = serde_json::from_str(&card).unwrap_or_default();
            self.intake = card["intake"].as_str().unwrap_or_default().into();
            self.admin = card["admin"].as_str().unwrap_or_default().into();
            // It says what there is to say after it left its card.
            card["pid"].as_u64() == Some(self.child.id().into()) && self.said().lines().any(|line| line == "ready")
        })
        .await;
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop and expects that it does so in good order.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.exited().await;
        assert!(status.success(), "a stop in good order: {status}: {}", self.said());
    }

    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// How it ends by itself.
    pub async fn exited(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the server ends", PATIENCE, async || {
            status = self.exit_status();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Everything that it has written to standard error.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    pub fn data_dir(&self) -> &Path {
        self.card.parent().unwrap()
    }

    pub fn hook(&self, way: &str) -> String {
        format!("{}/hooks/{way}", self.intake)
    }

    pub async fn is_ready(&self, client: &reqwest::Client) -> bool {
        let answer = client.get(format!("{}/readyz", self.admin)).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    }

    /// Resident memory.
    pub fn kibibytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server said: {}", String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()));
        }
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One call at the sink.
#[derive(Clone, Debug)]
pub struct Call {
    pub step: String,
    /// Our idempotency key, as the target sees it.
    pub effect: String,
    /// The `id` in the body.
    pub event: String,
    /// The server that called.
    pub node: String,
    pub at: Instant,
    /// How many of the same server were being answered when it came, itself included.
    pub at_once: usize,
    /// What was asked for was done.
    pub is_made: bool,
}

/// When the sink answers. It has done its work before, at once.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    Prompt,
    /// Some time within this.
    Within(Duration),
    /// Not before the pace is another.
    Held,
}

/// What the effects happen to: an HTTP server on loopback that writes down every call.
pub struct Sink {
    pub address: SocketAddr,
    desk: Arc<Desk>,
}

/// How many calls are under way, and how many were at most.
#[derive(Default)]
struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A call under way; it ends also when the caller dies.
struct Guest(Arc<Crowd>);

impl Guest {
    fn comes(crowd: &Arc<Crowd>) -> Guest {
        let now = crowd.now.fetch_add(1, Ordering::SeqCst) + 1;
        crowd.most.fetch_max(now, Ordering::SeqCst);
        Guest(crowd.clone())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Desk {
    calls: Mutex<Vec<Call>>,
    /// The keys that were asked for.
    asked: Mutex<Vec<String>>,
    /// How many calls of each server are being answered.
    at_once: Mutex<HashMap<String, usize>>,
    pace: watch::Sender<Pace>,
    verdict: Mutex<Verdict>,
    crowd: Arc<Crowd>,
}

/// The status that a call is answered with. What is answered with 0 is read, and neither done nor answered.
type Verdict = Box<dyn Fn(&Call) -> u16 + Send>;

impl Sink {
    async fn start() -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let desk = Arc::new(Desk {
            calls: Mutex::default(),
            asked: Mutex::default(),
            at_once: Mutex::default(),
            pace: watch::Sender::new(Pace::Prompt),
            verdict: Mutex::new(Box::new(|_| 200)),
            crowd: Arc::default(),
        });
        let sink = Sink { address: listener.local_addr().unwrap(), desk: desk.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let desk = desk.clone();
                let answer = hyper::service::service_fn(move |request| {
                    let guest = Guest::comes(&desk.crowd);
                    let answer = answer(request, desk.clone());
                    async move {
                        let answer = answer.await;
                        drop(guest);
                        answer
                    }
                });
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                // A caller that dies in the middle is what this is for.
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        sink
    }

    pub fn pace(&self, pace: Pace) {
        self.desk.pace.send_replace(pace);
    }

    /// Answers with 200 unless told otherwise.
    pub fn answer_with(&self, verdict: impl Fn(&Call) -> u16 + Send + 'static) {
        *self.desk.verdict.lock().unwrap() = Box::new(verdict);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.desk.calls.lock().unwrap().clone()
    }

    /// The keys that were asked for, as often as they were.
    pub fn asked(&self) -> Vec<String> {
        self.desk.asked.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.desk.calls.lock().unwrap().len()
    }

    /// For who counts from elsewhere.
    pub fn counter(&self) -> impl Fn() -> usize + Send + 'static {
        let desk = self.desk.clone();
        move || desk.calls.lock().unwrap().len()
    }

    /// How many calls there were at once, at most.
    pub fn crowd_most(&self) -> usize {
        self.desk.crowd.most.load(Ordering::SeqCst)
    }

    pub fn count_of(&self, step: &str) -> usize {
        self.desk.calls.lock().unwrap().iter().filter(|call| call.step == step).count()
    }

    pub async fn called(&self, times: usize) {
        eventually("the sink is called", PATIENCE, async || self.count() >= times).await;
    }
}

/// A call that is being answered.
struct AtOnce<'a> {
    desk: &'a Desk,
    node: String,
}

impl AtOnce<'_> {
    /// With how many there are of this server now.
    fn begin(desk: &Desk, node: String) -> (AtOnce<'_>, usize) {
        let mut at_once = desk.at_once.lock().unwrap();
        let count = at_once.entry(node.clone()).or_default();
        *count += 1;
        (AtOnce { desk, node }, *count)
    }
}

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        *self.desk.at_once.lock().unwrap().get_mut(&self.node).unwrap() -= 1;
    }
}

async fn answer(request: Request<Incoming>, desk: Arc<Desk>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Some(key) = head.uri.query().and_then(|query| query.strip_prefix("key=")) {
        desk.asked.lock().unwrap().push(key.into());
        let is_it = |call: &&Call| call.is_made && call.effect == key;
        let total = desk.calls.lock().unwrap().iter().filter(is_it).count();
        return Ok(Response::new(Full::new(format!(r#"{{"total":{total}}}"#).into())));
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (_way, step) = head.uri.path().trim_start_matches('/').split_once('/').unwrap_or_default();
    let header = |name| head.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let (_at_once, at_once) = AtOnce::begin(&desk, header("x-node").into());
    let mut call = Call {
        step: step.into(),
        effect: header("idempotency-key").into(),
        event: body["id"].as_str().unwrap_or_default().into(),
        node: header("x-node").into(),
        at: Instant::now(),
        at_once,
        is_made: false,
    };
    let status = desk.verdict.lock().unwrap()(&call);
    call.is_made = (200..300).contains(&status);
    desk.calls.lock().unwrap().push(call);
    if status == 0 {
        std::future::pending::<()>().await;
    }
    let mut pace = desk.pace.subscribe();
    let asked = *pace.borrow_and_update();
    match asked {
        Pace::Prompt => {}
        Pace::Within(most) => tokio::time::sleep(most.mul_f64(fastrand::f64())).await,
        Pace::Held => drop(pace.wait_for(|pace| !matches!(pace, Pace::Held)).await),
    }
    let mut response = Response::new(Full::new(Bytes::from_static(b"{}")));
    *response.status_mut() = status.try_into().unwrap();
    Ok(response)
}

/// Sends events with keys of their own, and each again until it is acknowledged, as providers of webhooks do.
pub struct Provider {
    way: &'static str,
    client: reqwest::Client,
    /// Added to every body.
    padding: String,
    made: AtomicUsize,
    unanswered: Mutex<Vec<String>>,
    acknowledged: Mutex<BTreeMap<String, JobId>>,
    /// Answers other than an acknowledgement, by status.
    refusals: Mutex<BTreeMap<u16, usize>>,
}

/// What became of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Acknowledged,
    Refused(u16),
    Nothing,
}

impl Provider {
    pub fn new(way: Way) -> Provider {
        Provider::with_padding(way, 0)
    }

    /// One that does not wait long for an answer before it sends again.
    pub fn in_a_hurry(way: Way, patience: Duration) -> Provider {
        let client = reqwest::Client::builder().no_proxy().timeout(patience).build().unwrap();
        Provider { client, ..Provider::new(way) }
    }

    pub fn with_padding(way: Way, bytes: usize) -> Provider {
        Provider {
            way: way.name,
            client: client(),
            padding: "x".repeat(bytes),
            made: AtomicUsize::new(0),
            unanswered: Mutex::default(),
            acknowledged: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Delivers what is owed, or else a new event.
    pub async fn deliver(&self, server: &str) -> Told {
        let owed = self.unanswered.lock().unwrap().pop();
        let key = owed.unwrap_or_else(|| format!("{}-{}", self.way, self.made.fetch_add(1, Ordering::Relaxed)));
        let told = self.post(server, &key).await;
        if told != Told::Acknowledged {
            self.unanswered.lock().unwrap().push(key);
        }
        told
    }

    async fn post(&self, server: &str, key: &str) -> Told {
        let request = self.client.post(format!("{server}/hooks/{}", self.way)).header("idempotency-key", key);
        let body = format!(r#"{{"id":"{key}","padding":"{}"}}"#, self.padding);
        let Ok(answer) = request.body(body).send().await else { return Told::Nothing };
        let status = answer.status().as_u16();
        if status != 202 {
            *self.refusals.lock().unwrap().entry(status).or_default() += 1;
            return Told::Refused(status);
        }
        // The status is the promise, also when the body breaks off; the key will tell the job later.
        let Ok(body) = answer.bytes().await else { return Told::Nothing };
        let body: Value = serde_json::from_slice(&body).unwrap();
        let job = body["job_id"].as_str().unwrap().parse().unwrap();
        let before = self.acknowledged.lock().unwrap().insert(key.into(), job);
        assert!(before.is_none_or(|before| before == job), "{key} was acknowledged as two jobs");
        Told::Acknowledged
    }

    /// So many connections at once, until told to stop or until `events_max` were made.
    pub async fn load(self: &Arc<Self>, server: &str, connections: usize, events_max: usize, stop: &CancellationToken) {
        let only = watch::Sender::new(vec![server.to_string()]);
        self.load_any(&only, connections, events_max, stop).await;
    }

    /// Each delivery to any of the servers that there are at the moment.
    pub async fn load_any(
        self: &Arc<Self>,
        servers: &watch::Sender<Vec<String>>,
        connections: usize,
        events_max: usize,
        stop: &CancellationToken,
    ) {
        let mut senders = tokio::task::JoinSet::new();
        for _ in 0..connections {
            let (provider, servers, stop) = (self.clone(), servers.subscribe(), stop.clone());
            senders.spawn(async move {
                while !stop.is_cancelled() && provider.made.load(Ordering::Relaxed) < events_max {
                    let server = fastrand::choice(&*servers.borrow()).unwrap().clone();
                    if provider.deliver(&server).await != Told::Acknowledged {
                        tokio::time::sleep(TICK).await;
                    }
                }
            });
        }
        while let Some(sender) = senders.join_next().await {
            sender.unwrap();
        }
    }

    /// Delivers until nothing is owed any more.
    pub async fn settle(&self, server: &str) {
        eventually("everything is acknowledged", PATIENCE, async || {
            while !self.unanswered.lock().unwrap().is_empty() {
                if self.deliver(server).await != Told::Acknowledged {
                    return false;
                }
            }
            true
        })
        .await;
    }

    pub fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    pub fn acknowledged(&self) -> BTreeMap<String, JobId> {
        self.acknowledged.lock().unwrap().clone()
    }

    pub fn refusals(&self) -> BTreeMap<u16, usize> {
        self.refusals.lock().unwrap().clone()
    }
}

pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

/// What is to go wrong in the kernel.
#[derive(Clone, Copy)]
pub struct Fault<'a> {
    pub calls: &'a str,
    /// Only calls on this file of the data directory.
    pub file: Option<&'a str>,
    /// What happens instead, and when, as `strace` spells it.
    pub then: &'a str,
}

/// `strace` holding one thread of a server, so that its calls to the kernel can be made to fail.
pub struct Tracer {
    child: Child,
    trace: PathBuf,
}

impl Tracer {
    /// Holds the thread that writes the store. `None`, with the reason printed, where this cannot be done.
    pub async fn hold_writer(place: &Place, server: &Server, fault: Fault<'_>) -> Option<Tracer> {
        let thread = writer_thread(server.pid());
        let trace = place.dir.path().join(format!("trace-{}", server.pid()));
        let said = trace.with_extension("err");
        let Fault { calls, file, then } = fault;
        let mut strace = Command::new("strace");
        if let Some(file) = file {
            strace.arg("-P").arg(place.data_dir.join(file));
        }
        let started = strace
            .args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{then}")])
            .arg("-o")
            .arg(&trace)
            .args(["-p", &thread.to_string()])
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&said).unwrap())
            .spawn();
        let Ok(child) = started else {
            eprintln!("skipped: faults are injected with strace, which is not installed");
            return None;
        };
        let mut tracer = Tracer { child, trace };
        let mut refused = false;
        eventually("strace holds the writer", PATIENCE, async || {
            refused = tracer.child.try_wait().unwrap().is_some();
            refused || std::fs::read_to_string(&said).unwrap().contains("attached")
        })
        .await;
        if refused {
            eprintln!("skipped: strace may not trace here: {}", std::fs::read_to_string(&said).unwrap());
            return None;
        }
        Some(tracer)
    }

    /// The calls that were seen, one per line. The thread must have ended, or is let go.
    pub fn end(mut self) -> String {
        self.let_go();
        std::fs::read_to_string(&self.trace).unwrap()
    }

    fn let_go(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.let_go();
    }
}

fn writer_thread(pid: u32) -> u32 {
    let threads = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")).unwrap();
    for thread in threads {
        let path = thread.unwrap().path();
        if std::fs::read_to_string(path.join("comm")).unwrap().trim() == "clinch-writer" {
            return path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        }
    }
    panic!("the server has no writer thread");
}
