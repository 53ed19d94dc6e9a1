//! Idempotency in front of a target that has none.

use super::nodes::{KEY, shared_postgres};
use super::process::{PATIENCE, client, eventually};
use super::world::{Answer, Reply, Target, USUAL, World};
use clinch::app::{self, App, Options, Roles};
use clinch::proxy::Rules;
use clinch_testbed::{Fate, Proxy};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

const ROLES: Roles = Roles { intake: false, worker: false, keeper: true, admin: true };
const CREATED: Reply = Reply::With {
    status: 201,
    headers: &[("location", "/leads/1"), ("content-type", "application/json"), ("set-cookie", "session=1")],
    body: "{\"id\":1}",
};

fn rules(target: &Target) -> Rules {
    Rules {
        to: format!("http://{}", target.address).parse().unwrap(),
        key_header: "idempotency-key".parse().unwrap(),
        keep: Duration::from_secs(3600),
        timeout: Duration::from_secs(20),
        needs_key: false,
        resends: false,
        body_bytes_max: 1 << 20,
        key_file: None,
    }
}

/// A target, and a proxy in front of it.
struct Front {
    world: World,
    app: Option<App>,
}

impl Front {
    async fn new() -> Front {
        Front::with(|_| ()).await
    }

    async fn with(change: impl Fn(&mut Rules)) -> Front {
        let mut front = Front { world: World::unopened(&[]).await, app: None };
        front.open(change).await;
        front
    }

    async fn open(&mut self, change: impl Fn(&mut Rules)) {
        let mut rules = rules(&self.world.target);
        change(&mut rules);
        let options = Options { proxy: Some(rules), ..self.world.options(ROLES) };
        self.app = Some(app::start(options).await.unwrap_or_else(|error| panic!("{error}")));
    }

    async fn close(&mut self) {
        self.app.take().unwrap().stop().await;
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.as_ref().unwrap().proxy.as_ref().unwrap().0)
    }

    async fn post(&self, key: &str, body: &str) -> Answer {
        post(&self.url("/leads"), key, body).await
    }

    fn made(&self) -> usize {
        self.world.target.calls().len()
    }
}

async fn post(url: &str, key: &str, body: &str) -> Answer {
    let request = client().post(url).header("idempotency-key", key).body(body.to_string());
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_the_first_success_is_kept_and_given_again_also_after_a_restart() {
    let mut front = Front::new().await;
    front.world.target.script("/leads", [CREATED]);
    let first = front.post("k-1", "{}").await;
    assert_eq!((first.status, first.is_replayed(), first.header("set-cookie")), (201, false, Some("session=1")));
    for is_restarted in [false, true] {
        if is_restarted {
            front.close().await;
            front.open(|_| ()).await;
        }
        let again = front.post("k-1", "{}").await;
        assert_eq!((again.status, again.json(), again.is_replayed()), (201, first.json(), true));
        assert_eq!(again.header("location"), Some("/leads/1"));
        assert_eq!(again.header("set-cookie"), None, "that was for the first one alone");
    }
    assert_eq!(front.made(), 1);
    assert_eq!(front.post("k-2", "{}").await.status, 201);
    assert_eq!(front.made(), 2, "another key is another call");
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_calls_at_the_same_time_are_joined_and_one_who_leaves_does_not_end_it() {
    let front = Front::new().await;
    front.world.target.script("/leads", [Reply::Held]);
    let url = front.url("/leads");
    let leaver = tokio::spawn({
        let url = url.clone();
        async move { post(&url, "k-1", "{}").await }
    });
    front.world.target.called(1).await;
    leaver.abort();
    let mut asking = JoinSet::new();
    for _ in 0..50 {
        let url = url.clone();
        asking.spawn(async move { post(&url, "k-1", "{}").await });
    }
    // Another call under the key is told so while the first is made.
    front.post("k-1", "{\"other\":1}").await.check_problem(422, "idempotency-conflict");
    front.world.target.release();
    for answer in asking.join_all().await {
        assert_eq!((answer.status, answer.is_replayed()), (200, true));
    }
    assert_eq!(front.made(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_another_method_path_or_body_under_the_same_key_is_refused_and_never_sent() {
    let front = Front::new().await;
    assert_eq!(front.post("k-1", "{}").await.status, 200);
    front.post("k-1", "{ }").await.check_problem(422, "idempotency-conflict");
    post(&front.url("/leads?x=1"), "k-1", "{}").await.check_problem(422, "idempotency-conflict");
    let put = client().put(front.url("/leads")).header("idempotency-key", "k-1").body("{}").send().await.unwrap();
    Answer::read(put).await.check_problem(422, "idempotency-conflict");
    assert_eq!(front.made(), 1);
    // Somebody else may have chosen the same key.
    let other = client().post(front.url("/leads")).header("idempotency-key", "k-1").header("authorization", "Bearer b");
    assert_eq!(other.body("{}").send().await.unwrap().status(), 200);
    assert_eq!(front.made(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_only_a_success_is_remembered() {
    let front = Front::new().await;
    front.world.target.script("/leads", [Reply::Status(500), Reply::Status(422), CREATED]);
    for status in [500, 422, 201, 201] {
        assert_eq!(front.post("k-1", "{}").await.status, status);
    }
    assert_eq!(front.made(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_p3_a_call_that_a_gateway_lost_is_not_sent_again() {
    let front = Front::new().await;
    front.world.target.script("/leads", [Reply::Status(504), CREATED]);
    assert_eq!(front.post("k-1", "{}").await.status, 504, "what came is handed on");
    front.post("k-1", "{}").await.check_problem(409, "outcome-unknown");
    assert_eq!(front.made(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_call_whose_answer_was_lost_is_not_sent_again_unless_the_operator_says_so() {
    let mut front = Front::new().await;
    front.world.target.script("/leads", [Reply::Drop, CREATED]);
    front.post("k-1", "{}").await.check_problem(504, "outcome-unknown");
    for is_restarted in [false, true] {
        if is_restarted {
            front.close().await;
            front.open(|_| ()).await;
        }
        front.post("k-1", "{}").await.check_problem(409, "outcome-unknown");
    }
    assert_eq!(front.made(), 1);
    front.close().await;
    front.open(|rules| rules.resends = true).await;
    assert_eq!(front.post("k-1", "{}").await.status, 201);
    assert_eq!(front.made(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_target_that_cannot_be_reached_leaves_the_key_free() {
    // Bound, and nobody listens: it refuses, and nobody else gets it meanwhile.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = socket.local_addr().unwrap();
    let front = Front::with(|rules| rules.to = format!("http://{nobody}").parse().unwrap()).await;
    for _ in 0..2 {
        let refused = front.post("k-1", "{}").await;
        refused.check_problem(502, "target-unreachable");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_without_a_key_a_call_is_handed_on_or_refused_and_questions_always_pass() {
    let mut front = Front::new().await;
    let bare = async |front: &Front| Answer::read(client().post(front.url("/leads")).send().await.unwrap()).await;
    for _ in 0..2 {
        assert_eq!(bare(&front).await.status, 200);
    }
    assert_eq!(front.made(), 2);
    front.close().await;
    front.open(|rules| rules.needs_key = true).await;
    bare(&front).await.check_problem(400, "idempotency-key-missing");
    for _ in 0..2 {
        let question = client().get(front.url("/leads?page=2")).header("idempotency-key", "k-1");
        assert_eq!(question.send().await.unwrap().status(), 200);
    }
    let calls = front.world.target.calls();
    assert_eq!(calls.len(), 4);
    assert_eq!(calls[3].path, "/leads?page=2");
    let long = "k".repeat(256);
    post(&front.url("/leads"), &long, "{}").await.check_problem(400, "malformed");
    let big = "x".repeat((1 << 20) + 1);
    post(&front.url("/leads"), "k-2", &big).await.check_problem(413, "too-large");
    assert_eq!(front.made(), 4);
}

/// A server comes to the store of a proxy, and a proxy to that of a server.
async fn check_apart(store: impl Fn(&World) -> String) {
    for first_is_proxy in [true, false] {
        let world = World::unopened(&USUAL).await;
        let store = store(&world);
        let options = |is_proxy: bool| Options {
            store: Some(store.clone()),
            proxy: is_proxy.then(|| rules(&world.target)),
            ..world.options(if is_proxy { ROLES } else { Roles::ALL })
        };
        let first = app::start(options(first_is_proxy)).await.unwrap_or_else(|error| panic!("{error}"));
        let before = (first.house.store.live_version().await.unwrap(), first.house.store.key_uses().await.unwrap());
        first.stop().await;
        let refused = app::start(options(!first_is_proxy)).await.err().expect("it is another's").to_string();
        let whose = if first_is_proxy { "clinch proxy" } else { "clinch serve" };
        assert!(refused.contains(whose) && refused.contains("--store"), "{refused}");
        let again = app::start(options(first_is_proxy)).await.unwrap_or_else(|error| panic!("{error}"));
        let after = (again.house.store.live_version().await.unwrap(), again.house.store.key_uses().await.unwrap());
        assert_eq!(before, after, "nothing was changed");
        again.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_p12_a_proxy_and_a_server_share_no_store() {
    check_apart(|world| format!("sqlite:{}", world.data_dir().join("store").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_p12_a_proxy_and_a_server_share_no_database() {
    let made = AtomicU32::new(0);
    check_apart(|_| {
        let nth = made.fetch_add(1, Ordering::Relaxed);
        let name = format!("apart_{}_{nth}", std::process::id());
        tokio::task::block_in_place(|| shared_postgres().create_database(&name));
        shared_postgres().url(&name)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_lost_answer_of_the_store_takes_no_key() {
    let name = format!("proxy_lost_{}", std::process::id());
    tokio::task::block_in_place(|| shared_postgres().create_database(&name));
    let wire = Proxy::to(shared_postgres().port()).await;
    let mut front = Front { world: World::unopened(&[]).await, app: None };
    let options = Options {
        store: Some(format!("postgres://clinch@127.0.0.1:{}/{name}", wire.port)),
        proxy: Some(rules(&front.world.target)),
        ..front.world.options(ROLES)
    };
    front.app = Some(app::start(options).await.unwrap_or_else(|error| panic!("{error}")));
    // The turn is written down and the word of it is lost: once, and more often than the proxy asks.
    for (key, lost, statuses) in [("k-1", 1, [201, 201]), ("k-2", 3, [503, 201])] {
        let left = AtomicU32::new(lost);
        wire.at_commits(move |sql| {
            let one_less = |left: u32| left.checked_sub(1);
            let is_one = sql.contains("INSERT INTO call");
            let is_lost = is_one && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
            if is_lost { Fate::Cut } else { Fate::Pass }
        });
        front.world.target.script("/leads", [CREATED]);
        assert_eq!(front.post(key, "{}").await.status, statuses[0], "{key}");
        eventually("the key is free again", PATIENCE, async || {
            let answer = front.post(key, "{}").await;
            assert!([409, 503, 201].contains(&answer.status), "{answer:?}");
            answer.status == statuses[1]
        })
        .await;
    }
    assert_eq!(front.made(), 2);
}

/// The real binary.
struct Process(Child, PathBuf);

impl Process {
    fn spawn(directory: &Path, target: &Target, args: &[&str], env: &[(&str, &str)]) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_clinch"))
            .args(["proxy", "--to", &format!("http://{}", target.address), "--data-dir"])
            .arg(directory)
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Process(child, directory.join("proxy/server.json"))
    }

    async fn url(&self) -> String {
        let mut url = String::new();
        eventually("the proxy leaves its card", PATIENCE, async || {
            let card: Value =
                std::fs::read(&self.1).ok().and_then(|card| serde_json::from_slice(&card).ok()).unwrap_or_default();
            url = format!("{}/leads", card["proxy"].as_str().unwrap_or_default());
            card["pid"].as_u64() == Some(self.0.id().into())
        })
        .await;
        url
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_proxy_that_was_killed_between_send_and_record_never_sends_it_again() {
    let world = World::unopened(&[]).await;
    for (at, calls) in [("after_begin_call", 0), ("after_call", 1)] {
        let directory = world.data_dir().join(at);
        let before = world.target.calls().len();
        // Nobody wants to wait for long until its time is over; and the target must be able to answer within it.
        let time = ["--timeout", "5s"];
        let mut first = Process::spawn(&directory, &world.target, &time, &[("CLINCH_CRASH_AT", at)]);
        let url = first.url().await;
        let cut = client().post(&url).header("idempotency-key", "k-1").body("{}").send().await;
        assert!(cut.is_err(), "{at}: it died before it could answer");
        first.0.wait().unwrap();
        let second = Process::spawn(&directory, &world.target, &time, &[]);
        let url = second.url().await;
        // Until its time is over, somebody might still make it.
        eventually("it is known to be unknown", PATIENCE, async || {
            let answer = post(&url, "k-1", "{}").await;
            assert_eq!(answer.status, 409, "{at}");
            answer.json()["type"] == "urn:clinch:problem:outcome-unknown"
        })
        .await;
        assert_eq!(world.target.calls().len() - before, calls, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_two_proxies_on_one_database_make_a_call_once() {
    let world = World::unopened(&[]).await;
    let name = format!("proxy_{}", std::process::id());
    tokio::task::block_in_place(|| shared_postgres().create_database(&name));
    let url = format!("postgres://clinch@127.0.0.1:{}/{name}", shared_postgres().port());
    let key_file = world.workspace_dir().join("answers.key");
    std::fs::write(&key_file, KEY).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let args = ["--store", &url, "--key-file", key_file.to_str().unwrap(), "--timeout", "20s"];
    let proxies = ["a", "b"].map(|node| Process::spawn(&world.data_dir().join(node), &world.target, &args, &[]));
    let urls = [proxies[0].url().await, proxies[1].url().await];
    world.target.script("/leads", [CREATED]);
    let mut asking = JoinSet::new();
    for nth in 0..40 {
        let (url, key) = (urls[nth % 2].clone(), format!("k-{}", nth / 8));
        asking.spawn(async move {
            let mut answer = post(&url, &key, "{}").await;
            while answer.status == 409 {
                answer.check_problem(409, "idempotency-in-flight");
                answer = post(&url, &key, "{}").await;
            }
            answer
        });
    }
    for answer in asking.join_all().await {
        assert_eq!((answer.status, answer.json()["id"].as_u64()), (201, Some(1)));
    }
    assert_eq!(world.target.calls().len(), 5, "one call for each key");
}
