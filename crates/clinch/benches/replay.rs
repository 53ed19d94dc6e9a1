//! How much live events notice of a replay of many dead letters, and whether anything is lost or repeated when the server is
//! killed in the middle of it.
//!
//! ```sh
//! cargo bench -p clinch --bench replay -- [ROUNDS [JOBS [RATE]]]      # 3 10000 500/s
//! ```
//!
//! Each round makes dead letters and lets a plan bring them back while live events come: same queue, same worker, same partner. The
//! plan is paused every few seconds, so that live events alone and live events meanwhile are measured in turn: a disk that is slow
//! for a while is slow for both. The last round kills the server with SIGKILL half way and presses a second time; what is on its way
//! around a switch or a kill is not measured.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Live events in a second.
const LIVE: u64 = 200;
/// For how long they are measured before the plan is paused or goes on.
const TURN: Duration = Duration::from_secs(2);
/// And what comes so soon after that is not.
const SETTLE: Duration = Duration::from_millis(400);
/// What comes before this is not measured.
const WARM_UP: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(900);

const FLOW: &str = "version: 1
name: orders
triggers:
  - http: {path: /hooks/orders, idempotency: {key_from: 'header:Idempotency-Key', ttl: 48h}}
steps:
  - name: enqueue
    queue: {name: orders}
";
const WORKER: &str = "version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 100ms, jitter: none, max_attempts: 3}
run:
  - name: charge
    http: {url: 'http://TARGET/charge', body_from: body, idempotency: header, honoured_for: 24h}
";

/// A partner that honours idempotency keys, and says how long each live event took to reach it.
#[derive(Default)]
struct Partner {
    is_well: AtomicBool,
    /// How often each was asked for.
    made: Mutex<HashMap<String, u32>>,
    /// What live events have waited for, while it is measured.
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    now: Option<Beside>,
    alone: Vec<Duration>,
    meanwhile: Vec<Duration>,
}

/// What live events are beside.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    Replay,
}

impl Partner {
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().expect("whole")
    }

    /// Measures for one turn.
    async fn measure(&self, beside: Beside) {
        tokio::time::sleep(SETTLE).await;
        self.waits().now = Some(beside);
        tokio::time::sleep(TURN).await;
        self.waits().now = None;
    }
}

impl Waits {
    fn add(&mut self, took: Duration) {
        match self.now {
            Some(Beside::Nothing) => self.alone.push(took),
            Some(Beside::Replay) => self.meanwhile.push(took),
            None => {}
        }
    }
}

fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(now.as_micros()).expect("it is before 586524")
}

async fn charge(State(partner): State<Arc<Partner>>, request: Request) -> StatusCode {
    let now = micros();
    let key = request.headers().get("idempotency-key").map(|key| key.as_bytes().to_vec()).unwrap_or_default();
    let body = axum::body::to_bytes(request.into_body(), 1 << 16).await.expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    match body["sent_at"].as_u64() {
        None if !partner.is_well.load(Ordering::Relaxed) => return StatusCode::UNPROCESSABLE_ENTITY,
        None => {}
        Some(sent_at) => partner.waits().add(Duration::from_micros(now.saturating_sub(sent_at))),
    }
    *partner.made.lock().expect("whole").entry(String::from_utf8_lossy(&key).into_owned()).or_default() += 1;
    StatusCode::OK
}

struct Server {
    child: Child,
    intake: String,
    admin: String,
    token: String,
}

impl Server {
    async fn start(directory: &Path) -> Server {
        let data_dir = directory.join("data");
        let child = Command::new(env!("CARGO_BIN_EXE_clinch"))
            .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workspace"])
            .arg(directory.join("workspace"))
            .arg("--data-dir")
            .arg(&data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.join("log")).expect("a log"))
            .spawn()
            .expect("it starts");
        let mut server = Server { child, intake: String::new(), admin: String::new(), token: String::new() };
        let began = Instant::now();
        while server.intake.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the server does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let card = std::fs::read_to_string(data_dir.join("server.json")).unwrap_or_default();
            let card: Value = serde_json::from_str(&card).unwrap_or_default();
            if card["pid"] == server.child.id() {
                server.intake = card["intake"].as_str().expect("an address").into();
                server.admin = card["admin"].as_str().expect("an address").into();
            }
        }
        server.token = std::fs::read_to_string(data_dir.join("admin.token")).expect("a token").trim().into();
        server
    }

    /// Asked without a process of its own, which would take a core from who is measured.
    async fn plan(&self, plan: &str) -> Value {
        let url = format!("{}/api/v1/replays/{plan}", self.admin);
        let answer = reqwest::Client::new().get(url).bearer_auth(&self.token).send().await.expect("an answer");
        let told: Value = serde_json::from_slice(&answer.bytes().await.expect("a body")).expect("JSON");
        told["plan"].clone()
    }

    /// `pause` or `resume`.
    async fn turn(&self, plan: &str, turn: &str) {
        let url = format!("{}/api/v1/replays/{plan}/{turn}", self.admin);
        let ask = json!({"reason": "to measure what is live alone"});
        let answer = reqwest::Client::new().post(url).bearer_auth(&self.token).json(&ask).send().await;
        let status = answer.expect("an answer").status();
        // It may have ended meanwhile.
        assert!(status.is_success() || status == 409, "{turn}: {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn cli(directory: &Path, arguments: &[&str]) -> Value {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_clinch"));
    let told = command
        .args(arguments)
        .arg("--json")
        .arg("--data-dir")
        .arg(directory.join("data"))
        .output()
        .await
        .expect("run");
    serde_json::from_slice(&told.stdout)
        .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&told.stderr)))
}

/// Sends until it is taken.
async fn deliver(client: reqwest::Client, intake: Arc<Mutex<String>>, key: String, body: Value) {
    loop {
        let url = format!("{}/hooks/orders", intake.lock().expect("whole"));
        let request = client.post(url).header("Idempotency-Key", &key).body(body.to_string());
        match request.send().await {
            Ok(answer) if answer.status() == 202 => return,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Live events at an even rate, whether or not they are answered, until told to stop.
async fn live(intake: Arc<Mutex<String>>, sent: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    let client = reqwest::Client::new();
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / LIVE));
    let mut under_way = tokio::task::JoinSet::new();
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        let nth = sent.fetch_add(1, Ordering::Relaxed);
        let body = json!({"id": nth, "sent_at": micros()});
        under_way.spawn(deliver(client.clone(), intake.clone(), format!("live-{nth}"), body));
    }
    under_way.join_all().await;
}

fn percentiles(mut took: Vec<Duration>) -> [Duration; 3] {
    took.sort_unstable();
    [50, 95, 99].map(|percent| took.get(took.len() * percent / 100).copied().unwrap_or_default())
}

async fn dead_letters(directory: &Path, intake: &Arc<Mutex<String>>, round: usize, jobs: usize) -> String {
    let client = reqwest::Client::new();
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..32 {
        let (client, intake) = (client.clone(), intake.clone());
        senders.spawn(async move {
            for nth in (sender..jobs).step_by(32) {
                let key = format!("dead-{round}-{nth}");
                deliver(client.clone(), intake.clone(), key.clone(), json!({"id": key})).await;
            }
        });
    }
    senders.join_all().await;
    let began = Instant::now();
    loop {
        let planned = cli(directory, &["replay", "plan", "queue:orders"]).await;
        if planned["plan"]["jobs"] == jobs {
            return planned["plan"]["id"].as_str().expect("an id").to_string();
        }
        assert!(began.elapsed() < PATIENCE, "they do not die: {planned}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn press(directory: &Path, plan: &str, rate: &str) -> Value {
    cli(directory, &["replay", "apply", plan, "--reason", "the partner is well", "--rate", rate, "--detach"]).await
}

#[tokio::main]
async fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |nth: usize, or| asked.get(nth).map_or(or, |text| text.parse().expect("a number"));
    let (rounds, jobs) = (number(0, 3), number(1, 10_000));
    let rate = asked.get(2).map_or("500/s", String::as_str);
    let partner = Arc::new(Partner::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = listener.local_addr().expect("an address").to_string();
    let app = axum::Router::new().route("/charge", axum::routing::post(charge)).with_state(partner.clone());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let place = tempfile::tempdir().expect("a place");
    let directory = place.path();
    for (file, text) in [
        ("queues.yml", "queues:\n  - name: orders\n".to_string()),
        ("flows/orders.yml", FLOW.into()),
        ("workers/charge.yml", WORKER.replace("TARGET", &target)),
    ] {
        let path = directory.join("workspace").join(file);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    let mut server = Server::start(directory).await;
    let (intake, sent) = (Arc::new(Mutex::new(server.intake.clone())), Arc::new(AtomicUsize::new(0)));
    for round in 1..=rounds {
        let is_killed = round == rounds;
        partner.is_well.store(false, Ordering::Relaxed);
        let plan = dead_letters(directory, &intake, round, jobs).await;
        partner.is_well.store(true, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let traffic = tokio::spawn(live(intake.clone(), sent.clone(), stop.clone()));
        tokio::time::sleep(WARM_UP).await;
        press(directory, &plan, rate).await;
        let began = Instant::now();
        let mut again = json!(null);
        let told = loop {
            let known = partner.waits().meanwhile.len();
            partner.measure(Beside::Replay).await;
            let told = server.plan(&plan).await;
            if told["state"] != "running" {
                // For a part of this turn there was nothing to be beside of.
                partner.waits().meanwhile.truncate(known);
                break told;
            }
            if is_killed && again.is_null() && told["success"].as_u64().unwrap_or(0) > jobs as u64 / 2 {
                drop(server);
                server = Server::start(directory).await;
                *intake.lock().expect("whole") = server.intake.clone();
                again = press(directory, &plan, rate).await["changed"].clone();
            }
            server.turn(&plan, "pause").await;
            partner.measure(Beside::Nothing).await;
            server.turn(&plan, "resume").await;
            assert!(began.elapsed() < PATIENCE, "the plan does not end: {told}");
        };
        let waits = std::mem::take(&mut *partner.waits());
        let (alone, meanwhile) = (percentiles(waits.alone), percentiles(waits.meanwhile));
        stop.store(true, Ordering::Relaxed);
        traffic.await.expect("it ends");
        let ratio = meanwhile[1].as_secs_f64() / alone[1].as_secs_f64();
        println!(
            "round {round}: alone {alone:.1?}, meanwhile {meanwhile:.1?}, p95 ratio {ratio:.2}; {} of {jobs}{}",
            told["success"],
            if is_killed {
                format!("; killed half way, the second press changed something: {again}")
            } else {
                String::new()
            },
        );
    }
    let expected = rounds * jobs + sent.load(Ordering::Relaxed);
    let began = Instant::now();
    while partner.made.lock().expect("whole").len() < expected && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let made = partner.made.lock().expect("whole").clone();
    let again = made.values().filter(|times| **times > 1).count();
    println!("{} effects of {expected} events; {again} came a second time under the same key", made.len());
    assert_eq!(made.len(), expected, "each event has one effect");
}
