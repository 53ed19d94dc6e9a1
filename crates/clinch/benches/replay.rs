//! How much live events notice of a replay of many dead letters, and whether anything is lost or repeated when the server is
//! killed in the middle of it.
//!
//! ```sh
//! cargo bench -p clinch --bench replay -- [ROUNDS [JOBS [RATE]]]      # 3 10000 500/s
//! ```
//!
//! Each round makes dead letters, measures live events alone, then while a plan brings the dead letters back: same queue, same
//! worker, same partner. The last round kills the server with SIGKILL half way and presses a second time.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Live events in a second, and for how long they are measured alone.
const LIVE: u64 = 200;
const ALONE: Duration = Duration::from_secs(15);
/// What comes before this is not measured.
const WARM_UP: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is looked at how far a plan is. Each look is a process that takes a core from who is measured: a few times in a round.
const LOOK: Duration = Duration::from_secs(2);

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
    took: Mutex<Vec<Duration>>,
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
        Some(sent_at) => partner.took.lock().expect("whole").push(Duration::from_micros(now.saturating_sub(sent_at))),
    }
    *partner.made.lock().expect("whole").entry(String::from_utf8_lossy(&key).into_owned()).or_default() += 1;
    StatusCode::OK
}

struct Server {
    child: Child,
    intake: String,
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
        let mut server = Server { child, intake: String::new() };
        let began = Instant::now();
        while server.intake.is_empty() {
            assert!(began.elapsed() < PATIENCE, "the server does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let card = std::fs::read_to_string(data_dir.join("server.json")).unwrap_or_default();
            let card: Value = serde_json::from_str(&card).unwrap_or_default();
            if card["pid"] == server.child.id() {
                server.intake = card["intake"].as_str().expect("an address").into();
            }
        }
        server
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

fn percentiles(partner: &Partner) -> [Duration; 3] {
    let mut took = std::mem::take(&mut *partner.took.lock().expect("whole"));
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
        partner.took.lock().expect("whole").clear();
        tokio::time::sleep(ALONE).await;
        let alone = percentiles(&partner);
        let began = Instant::now();
        press(directory, &plan, rate).await;
        let mut again = json!(null);
        let told = loop {
            tokio::time::sleep(LOOK).await;
            let told = cli(directory, &["replay", "show", &plan]).await["plan"].clone();
            if is_killed && again.is_null() && told["success"].as_u64().unwrap_or(0) > jobs as u64 / 2 {
                drop(server);
                server = Server::start(directory).await;
                *intake.lock().expect("whole") = server.intake.clone();
                again = press(directory, &plan, rate).await["changed"].clone();
            }
            if told["state"] != "running" {
                break told;
            }
            assert!(began.elapsed() < PATIENCE, "the plan does not end: {told}");
        };
        let took = began.elapsed();
        let meanwhile = percentiles(&partner);
        stop.store(true, Ordering::Relaxed);
        traffic.await.expect("it ends");
        let ratio = meanwhile[1].as_secs_f64() / alone[1].as_secs_f64();
        println!(
            "round {round}: alone {alone:.1?}, meanwhile {meanwhile:.1?}, p95 ratio {ratio:.2}; {} of {jobs} in {took:.1?} ({:.0}/s){}",
            told["success"],
            jobs as f64 / took.as_secs_f64(),
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
