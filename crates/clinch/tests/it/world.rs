//! The world of a story: the real house on loopback ports, in directories of its own, with a target that does what the
//! story says and writes down every call.

use clinch::app::{self, App, Options, Roles, StartError};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::read::{JobRow, JobStory};
use clinch_store::sqlite::{Report, verify};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Nothing that a story waits for takes this long, unless it never comes.
pub const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(5);

pub const QUEUES: &str = "
queues:
  - name: orders
  - name: orders-dlq
    retention: 7d
";

pub const FLOW: &str = "
version: 1
name: orders
triggers:
  - http:
      path: /hooks/orders
      idempotency:
        key_from: header:Idempotency-Key
        ttl: 48h
steps:
  - name: enqueue
    queue: {name: orders}
";

/// One call to the target that honours our key, tried three times without delay worth mentioning.
pub const WORKER: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3, on_exhausted: dlq:orders-dlq}
run:
  - name: charge
    http: {url: http://TARGET/charge, body_from: body, idempotency: header}
";

pub const USUAL: [(&str, &str); 3] =
    [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", WORKER)];

/// The usual worker with one step, written as given.
pub fn worker_with_step(step: &str) -> String {
    let head = WORKER.split("  - name: charge").next().unwrap();
    format!("{head}{step}")
}

pub const NO_WORKER: Roles = Roles { worker: false, ..Roles::ALL };

pub struct World {
    pub target: Target,
    pub client: reqwest::Client,
    app: Option<App>,
    token: String,
    dir: tempfile::TempDir,
}

impl World {
    /// The usual workspace, with these files added or put in place of its own. `TARGET` stands for the target's address.
    pub async fn new(files: &[(&str, &str)]) -> World {
        World::with_roles(Roles::ALL, files).await
    }

    pub async fn with_roles(roles: Roles, files: &[(&str, &str)]) -> World {
        let mut world = World::unopened(&[&USUAL, files].concat()).await;
        world.open(roles).await;
        world.token = world.app().new_token.clone().expect("the first start makes a token");
        world
    }

    /// On a database, which is encrypted as those of several nodes are.
    pub async fn on(database: String, files: &[(&str, &str)]) -> World {
        let mut world = World::unopened(&[&USUAL, files].concat()).await;
        let keys = world.dir.path().join(clinch::encryption::KEY_FILE);
        std::fs::write(&keys, crate::nodes::KEY).unwrap();
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
        world.write("clinch.yml", &format!("encryption: {{file: '{}'}}\n", keys.display()));
        world.open_with(Options { store: Some(database), ..world.options(Roles::ALL) }).await;
        world.token = world.app().new_token.clone().expect("the first start makes a token");
        world
    }

    /// With an intake at this address.
    pub async fn listening(at: &str, files: &[(&str, &str)]) -> World {
        let usual = [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", WORKER)];
        let mut world = World::unopened(&[&usual, files].concat()).await;
        world.open_with(Options { listen: Some(at.parse().unwrap()), ..world.options(Roles::ALL) }).await;
        world
    }

    /// Everything is written down and nothing is started.
    pub async fn unopened(files: &[(&str, &str)]) -> World {
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let world = World {
            target: Target::start().await,
            client: client.build().unwrap(),
            app: None,
            token: String::new(),
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(world.dir.path().join("workspace")).unwrap();
        for (path, text) in files {
            world.write(path, text);
        }
        world
    }

    pub fn workspace_dir(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Why a workspace of these files alone does not start.
    pub async fn refusal(files: &[(&str, &str)]) -> StartError {
        let world = World::unopened(files).await;
        let mut options = world.options(Roles::ALL);
        options.listen = None;
        let Err(error) = app::start(options).await else { panic!("it started") };
        assert!(!world.data_dir().exists(), "a start that fails leaves no data behind");
        error
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.workspace_dir().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text.replace("TARGET", &self.target.address.to_string())).unwrap();
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn options(&self, roles: Roles) -> Options {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        Options {
            workspace: self.workspace_dir(),
            data_dir: self.data_dir(),
            store: None,
            listen: Some(any),
            admin: Some(any),
            tls: None,
            admin_tls: None,
            roles,
            proxy: None,
            watch: false,
            grace: PATIENCE,
            rehearsal: None,
        }
    }

    /// Starts the house, again if need be, on the same data.
    pub async fn open(&mut self, roles: Roles) {
        self.open_with(self.options(roles)).await;
    }

    pub async fn open_with(&mut self, options: Options) {
        assert!(self.app.is_none(), "it runs already");
        match app::start(options).await {
            Ok(app) => self.app = Some(app),
            Err(StartError::Config { problems, .. }) => panic!("the workspace has problems: {problems:#?}"),
            Err(error) => panic!("it does not start: {error}"),
        }
    }

    pub async fn close(&mut self) {
        self.app.take().expect("it runs").stop().await;
    }

    /// Begins to stop, and says when it has stopped. Nothing new is begun from here on.
    pub async fn begin_to_close(&mut self) -> tokio::task::JoinHandle<()> {
        let app = self.app.take().expect("it runs");
        let stop = app.house.stop.clone();
        let stopped = tokio::spawn(app.stop());
        stop.cancelled().await;
        stopped
    }

    /// Stops the house and holds its books against P5.
    pub async fn close_and_verify(mut self) -> Report {
        self.close().await;
        self.verify()
    }

    /// Nothing vanished, nothing contradicts itself.
    pub fn verify(&self) -> Report {
        let now = Timestamp::from_micros(jiff::Timestamp::now().as_microsecond());
        let report = verify(&self.data_dir(), now).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.parts.iter().map(|(_, jobs)| jobs).sum::<i64>(), report.accepted, "{report:?}");
        report
    }

    pub fn app(&self) -> &App {
        self.app.as_ref().expect("it runs")
    }

    pub fn intake(&self) -> SocketAddr {
        self.app().intake.expect("it has an intake")
    }

    /// One delivery to the usual route.
    pub async fn post(&self, key: &str, body: &str) -> Answer {
        self.deliver("/hooks/orders", &[("idempotency-key", key)], body).await
    }

    pub async fn deliver(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = self.client.post(format!("http://{}{path}", self.intake())).body(body.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.unwrap()).await
    }

    /// Posts, and waits until the job ended this way.
    pub async fn post_and_wait(&self, key: &str, body: &str, word: Word) -> JobStory {
        let answer = self.post(key, body).await;
        self.wait(answer.job(), word).await
    }

    pub async fn job(&self, job: JobId) -> JobStory {
        self.app().house.store.job(job).await.unwrap().expect("the job exists")
    }

    /// The job once it is in this state. That it ended in another one is a failure at once.
    pub async fn wait(&self, job: JobId, word: Word) -> JobStory {
        let ended = |row: &JobRow| matches!(row.word, Word::Success | Word::Noop | Word::Dead);
        self.wait_until(job, &format!("{word:?}"), |story| {
            assert!(story.row.word == word || !ended(&story.row), "{job} should become {word:?}: {story:#?}");
            story.row.word == word
        })
        .await
    }

    pub async fn wait_until(&self, job: JobId, what: &str, holds: impl Fn(&JobStory) -> bool) -> JobStory {
        let began = Instant::now();
        loop {
            let story = self.job(job).await;
            if holds(&story) {
                return story;
            }
            assert!(began.elapsed() < PATIENCE, "{job} never became {what}: {story:#?}");
            tokio::time::sleep(TICK).await;
        }
    }

    /// Every job there is, the newest first.
    pub async fn jobs(&self) -> Vec<JobRow> {
        let filter = clinch_store::read::JobFilter { limit: 1_000, ..Default::default() };
        self.app().house.store.jobs(filter).await.unwrap().rows
    }

    pub fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app().admin.expect("it has an admin listener"))
    }

    /// The command line, against this house: its exit code, and all that it said.
    pub async fn clinch(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clinch"));
        command.args(arguments).env("CLINCH_DATA_DIR", self.data_dir()).env_remove("CLINCH_URL").stdin(Stdio::null());
        let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (said.status.code().unwrap(), text(said.stdout) + &text(said.stderr))
    }

    pub async fn admin(&self, path: &str) -> Answer {
        let request = self.client.get(self.admin_url(path)).bearer_auth(&self.token);
        Answer::read(request.send().await.unwrap()).await
    }

    pub async fn admin_as(&self, token: Option<&str>, path: &str) -> Answer {
        let request = self.client.get(self.admin_url(path));
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        Answer::read(request.send().await.unwrap()).await
    }

    /// A request to the API, by the admin.
    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, self.admin_url(path)).bearer_auth(&self.token)
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub async fn replay(&self, job: JobId, ask: Value) -> Answer {
        self.command(&format!("/api/v1/jobs/{job}/replay"), ask).await
    }

    pub async fn put(&self, path: &str, ask: Value) -> Answer {
        let request = self.client.put(self.admin_url(path)).bearer_auth(&self.token).body(ask.to_string());
        Answer::read(request.send().await.unwrap()).await
    }

    pub async fn delete(&self, path: &str, ask: Value) -> Answer {
        let request = self.client.delete(self.admin_url(path)).bearer_auth(&self.token).body(ask.to_string());
        Answer::read(request.send().await.unwrap()).await
    }

    pub async fn command(&self, path: &str, ask: Value) -> Answer {
        let request = self.client.post(self.admin_url(path)).bearer_auth(&self.token).body(ask.to_string());
        Answer::read(request.send().await.unwrap()).await
    }
}

/// An HTTP answer, read whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: String,
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Answer {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        // A stream has no end to read to.
        let is_stream = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { String::new() } else { response.text().await.unwrap() };
        Answer { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The job that a success names.
    pub fn job(&self) -> JobId {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()["job_id"].as_str().unwrap().parse().unwrap()
    }

    pub fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// T-121: a refusal says what it is, in one shape; its `type` ends like this, also where one is registered.
    pub fn check_problem(&self, status: u16, slug: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert!(!self.is_replayed(), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], status, "{self:?}");
        let kind = match slug {
            "quota-exceeded" => format!("https://iana.org/assignments/http-problem-types#{slug}"),
            _ => format!("urn:clinch:problem:{slug}"),
        };
        assert_eq!(problem["type"], kind, "{self:?}");
        for member in ["title", "detail"] {
            assert!(problem[member].as_str().is_some_and(|text| text.len() > 5), "{self:?}");
        }
        problem
    }
}

/// Sends these bytes as they are and reads until the other side closes.
pub async fn raw(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A refusal may come, and the connection be closed, before all of it is written.
    let _ = stream.write_all(request).await;
    read_raw(stream).await
}

pub async fn read_raw(mut stream: TcpStream) -> Answer {
    let mut read = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("the connection is closed");
    let text = String::from_utf8(read).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer ({ended:?}): {text}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let mut headers = reqwest::header::HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        headers.append(reqwest::header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    Answer { status, headers, body: body.to_string() }
}

/// What the target does with a call, after it has read it whole.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    With {
        status: u16,
        headers: &'static [(&'static str, &'static str)],
        body: &'static str,
    },
    /// Waits until the story lets it go on, then 200.
    Held,
    /// Waits until the story lets it go on, then this.
    Hung(u16),
    /// Closes the connection without a word.
    Drop,
    /// Keeps the connection open and says nothing, ever.
    Silence,
}

pub const OK: Reply = Reply::Status(200);

/// A call as the target saw it.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: String,
    pub at: Instant,
}

impl Call {
    /// Our idempotency key.
    pub fn key(&self) -> &str {
        self.headers.get("idempotency-key").expect("every call carries our key")
    }
}

#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    desk: Arc<Desk>,
}

struct Desk {
    /// What is still to be done at each path; the last entry stays.
    script: Mutex<HashMap<String, VecDeque<Reply>>>,
    calls: watch::Sender<Vec<Call>>,
    releases: Semaphore,
}

impl Target {
    pub async fn start() -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let desk = Desk { script: Mutex::default(), calls: watch::Sender::default(), releases: Semaphore::new(0) };
        let target = Target { address: listener.local_addr().unwrap(), desk: Arc::new(desk) };
        let desk = target.desk.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_all(stream, desk.clone()));
            }
        });
        target
    }

    /// The replies at this path, in order; the last one is repeated. Without a script every call is answered 200.
    pub fn script(&self, path: &str, replies: impl Into<VecDeque<Reply>>) {
        self.desk.script.lock().unwrap().insert(path.into(), replies.into());
    }

    /// Lets one held call go on.
    pub fn release(&self) {
        self.desk.releases.add_permits(1);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.desk.calls.borrow().clone()
    }

    pub fn calls_at(&self, path: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| bare(&call.path) == path).collect()
    }

    /// Waits until so many calls have come.
    pub async fn called(&self, times: usize) -> Vec<Call> {
        self.called_until(&format!("{times} calls"), |calls| calls.len() >= times).await
    }

    /// Waits until so many calls have come at this path.
    pub async fn called_at(&self, path: &str, times: usize) -> Vec<Call> {
        let come = |calls: &[Call]| calls.iter().filter(|call| bare(&call.path) == path).count() >= times;
        self.called_until(&format!("{times} calls at {path}"), come).await;
        self.calls_at(path)
    }

    /// Waits until what has come is enough.
    pub async fn called_until(&self, what: &str, is_enough: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let mut calls = self.desk.calls.subscribe();
        let waited = tokio::time::timeout(PATIENCE, calls.wait_for(|calls| is_enough(calls))).await;
        waited.unwrap_or_else(|_| panic!("{what} never came: {:#?}", self.calls())).unwrap().clone()
    }
}

/// A path without its question.
fn bare(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

impl Desk {
    fn next_reply(&self, path: &str) -> Reply {
        let mut script = self.script.lock().unwrap();
        match script.get_mut(bare(path)) {
            None => OK,
            Some(replies) if replies.len() > 1 => replies.pop_front().unwrap(),
            Some(replies) => replies.front().cloned().unwrap_or(OK),
        }
    }
}

async fn answer_all(mut stream: TcpStream, desk: Arc<Desk>) {
    let mut unread = Vec::new();
    while let Some(call) = read_call(&mut stream, &mut unread).await {
        let reply = desk.next_reply(&call.path);
        desk.calls.send_modify(|calls| calls.push(call));
        let text = match reply {
            Reply::Status(status) => response(status, &[], "{}"),
            Reply::With { status, headers, body } => response(status, headers, body),
            Reply::Held => {
                desk.releases.acquire().await.unwrap().forget();
                response(200, &[], "{}")
            }
            Reply::Hung(status) => {
                desk.releases.acquire().await.unwrap().forget();
                response(status, &[], "{}")
            }
            Reply::Drop => return,
            Reply::Silence => std::future::pending().await,
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn response(status: u16, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// The next request on this connection; `None` when it is closed.
async fn read_call(stream: &mut TcpStream, unread: &mut Vec<u8>) -> Option<Call> {
    let head_end = loop {
        if let Some(at) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(unread[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ').map(str::to_string);
    let (method, path) = (words.next()?, words.next()?);
    let headers: HashMap<String, String> =
        lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v.to_string())).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while unread.len() < head_end + length {
        if stream.read_buf(unread).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8(unread[head_end..head_end + length].to_vec()).unwrap();
    unread.drain(..head_end + length);
    Some(Call { method, path, headers, body, at: Instant::now() })
}

/// A text that must appear in none of these answers.
pub fn check_absent(secret: &str, answers: &[Answer]) {
    for answer in answers {
        let headers = format!("{:?}", answer.headers);
        assert!(!answer.body.contains(secret) && !headers.contains(secret), "it leaks: {answer:?}");
    }
}

/// Every regular file below a directory.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}
