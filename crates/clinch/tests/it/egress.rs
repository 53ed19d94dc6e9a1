//! Where clinch calls, and where it does not: shown in a network of its own, in which every address there is is this machine
//! and somebody listens on it. So a connection to a place inside would be seen, whichever it is.

use super::process::{ONCE, Place, Provider, Told};
use super::world::{FLOW, QUEUES, USUAL, World, worker_with_step};
use clinch::app::StartError;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_store::read::JobStory;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, UdpSocket};

const INSIDE: &str = "CLINCH_TEST_NETWORK";

/// Runs the story in a network of its own, by starting this test again in there.
fn in_a_network(name: &str, story: impl AsyncFnOnce(Network)) {
    if std::env::var_os(INSIDE).is_none() {
        if !Command::new("unshare").args(["-rmn", "ip", "link"]).output().is_ok_and(|out| out.status.success()) {
            eprintln!("skipped: a network of its own is made with unshare and ip, which cannot be used here");
            return;
        }
        let test = std::env::current_exe().unwrap();
        let out = Command::new("unshare")
            .arg("-rmn")
            .arg(test)
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(out.status.success() && said.contains("1 passed"), "in a network of its own: {said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let resolv = dir.path().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 127.0.0.1\noptions timeout:10 attempts:1\n").unwrap();
    for command in [
        "ip link set lo up",
        "ip route add local default dev lo",
        "ip -6 route add local default dev lo",
        &format!("mount --bind {} /etc/resolv.conf", resolv.display()),
    ] {
        let out = Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { story(Network::start().await).await });
}

/// Listens on every address, and answers questions for names.
#[derive(Clone, Default)]
struct Network {
    /// Who was connected to.
    connected: Arc<Mutex<Vec<SocketAddr>>>,
    /// What is said at port 8080, whoever asks.
    answer: Arc<Mutex<String>>,
    /// The answers for a name, one after the other; the last one stays. None: there is no such name.
    names: Arc<Mutex<HashMap<String, Vec<Answer>>>>,
    /// The names that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

type Answer = Option<Vec<Ipv4Addr>>;

impl Network {
    async fn start() -> Network {
        let network = Network::default();
        for port in [25, 80, 443, 6379, 8080] {
            let listener = TcpListener::bind(format!("[::]:{port}")).await.unwrap();
            let network = network.clone();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let address = stream.local_addr().unwrap();
                    let plain = SocketAddr::new(address.ip().to_canonical(), port);
                    network.connected.lock().unwrap().push(plain);
                    let answer = network.answer.lock().unwrap().clone();
                    tokio::spawn(async move {
                        if port == 8080 && super::partners_lost::message(&mut stream).await.is_some() {
                            let _ = stream.write_all(answer.as_bytes()).await;
                        }
                    });
                }
            });
        }
        let socket = UdpSocket::bind("127.0.0.1:53").await.unwrap();
        let names = network.clone();
        tokio::spawn(async move {
            let mut packet = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut packet).await {
                let answer = names.resolve(&packet[..length]);
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        network
    }

    fn name(&self, name: &str, answers: &[Option<&[&str]>]) {
        let read = |answer: &Option<&[&str]>| answer.map(|all| all.iter().map(|one| one.parse().unwrap()).collect());
        self.names.lock().unwrap().insert(name.into(), answers.iter().map(read).collect());
    }

    /// The answer to a question in the wire format of DNS. Only IPv4 addresses are known.
    fn resolve(&self, question: &[u8]) -> Vec<u8> {
        let mut labels = Vec::new();
        let mut at = 12;
        while question[at] > 0 {
            let length = usize::from(question[at]);
            labels.push(String::from_utf8_lossy(&question[at + 1..][..length]).to_lowercase());
            at += 1 + length;
        }
        let (name, is_v4, end) = (labels.join("."), question[at + 2] == 1, at + 5);
        let answer = if is_v4 {
            self.asked.lock().unwrap().push(name.clone());
            let mut names = self.names.lock().unwrap();
            match names.get_mut(&name) {
                Some(answers) if answers.len() > 1 => answers.remove(0),
                answers => answers.and_then(|answers| answers[0].clone()),
            }
        } else {
            Some(Vec::new())
        };
        let found = answer.clone().unwrap_or_default();
        let mut packet = question[..end].to_vec();
        // An answer, recursion available; no such name, or no error.
        packet[2..4].copy_from_slice(&[0x81, if answer.is_some() { 0x80 } else { 0x83 }]);
        packet[6..12].copy_from_slice(&[0, u8::try_from(found.len()).unwrap(), 0, 0, 0, 0]);
        for address in found {
            // The name of the question, an IPv4 address, not to be kept.
            packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            packet.extend(address.octets());
        }
        packet
    }

    fn connected(&self) -> Vec<SocketAddr> {
        self.connected.lock().unwrap().clone()
    }

    fn asked(&self, name: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| *asked == name).count()
    }
}

/// How many connections anybody in this network has begun to open, to whatever port.
fn opened() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "ActiveOpens").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// A server that others can reach, so that it may not even call this machine. It calls what the event says.
async fn world(settings: &str) -> World {
    let step = "  - name: charge\n    http: {url: \"{{ body.url }}\", idempotency: natural, timeout: 20s}\n";
    let worker = worker_with_step(step);
    let mut world = World::listening("0.0.0.0:0", &[("clinch.yml", settings), ("workers/charge.yml", &worker)]).await;
    // Each event comes on a connection of its own, so that it is known how many are opened.
    world.client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    world
}

async fn call(world: &World, url: &str, word: Word) -> JobStory {
    let key = data_encoding::HEXLOWER.encode(url.as_bytes());
    world.post_and_wait(&key, &serde_json::json!({ "url": url }).to_string(), word).await
}

/// Nothing is sent, nobody is connected to, and it is not tried again.
async fn check_blocked(world: &World, url: &str, reason: Reason) {
    let before = opened();
    let story = call(world, url, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(reason), 1), "{url}: {story:#?}");
    assert!(story.effects.iter().all(|effect| effect.state == EffectState::NotDone), "{url}");
    assert_eq!(opened(), before + 1, "{url}: a connection was opened beside that of the event");
}

const INSIDE_HOSTS: [&str; 36] = [
    // T-083, and more of the kind.
    "127.0.0.1",
    "2130706433",
    "0x7f.1",
    "0x7f000001",
    "127.1",
    "0177.0.0.1",
    "017700000001",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "a.localhost",
    "[::1]",
    "[::]",
    "0.0.0.0",
    "0",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "100.64.0.1",
    "192.168.1.1",
    "10.1.2.3",
    "172.16.0.1",
    "metadata.google.internal",
    "printer.local",
    // T-084.
    "[::ffff:7f00:1]",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]",
    "[::169.254.169.254]",
    "[fe81::1]",
    "[fd00::1]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    "[2606:4700::5efe:a9fe:a9fe]",
    "[2606:4700::200:5efe:7f00:1]",
];

#[test]
fn t_083_t_084_places_inside_are_refused_without_a_packet_however_they_are_written() {
    in_a_network(
        "egress::t_083_t_084_places_inside_are_refused_without_a_packet_however_they_are_written",
        async |network| {
            let world = world("version: 1\n").await;
            check_is_reached(&network, &world).await;
            for host in INSIDE_HOSTS {
                check_blocked(&world, &format!("https://{host}/latest"), Reason::EgressBlocked).await;
                check_blocked(&world, &format!("http://{host}/latest"), Reason::EgressBlocked).await;
            }
            for url in ["https://8.8.8.8:25/", "https://8.8.8.8:6379/", "http://8.8.8.8/", "https://8.8.8.8:8080/"] {
                check_blocked(&world, url, Reason::EgressBlocked).await;
            }
            assert_eq!(network.connected().len(), 1, "{:?}", network.connected());
            assert_eq!(network.asked("metadata.google.internal") + network.asked("printer.local"), 0);
        },
    );
}

/// The open network is called, so that it means something when a place is not.
async fn check_is_reached(network: &Network, world: &World) {
    let job = world.post("open", r#"{"url":"https://8.8.8.8/"}"#).await.job();
    let story = world.wait_until(job, "tried", |story| !story.attempts.is_empty()).await;
    assert_eq!(story.attempts[0].reason, Some(Reason::TargetDown), "nobody speaks TLS there: {story:#?}");
    world.wait(job, Word::Dead).await;
    let mut connected = network.connected.lock().unwrap();
    assert!(connected.iter().all(|address| address.to_string() == "8.8.8.8:443"), "{connected:?}");
    connected.truncate(1);
}

#[test]
fn t_085_a_name_is_what_all_of_its_addresses_are_each_time_that_it_is_called() {
    in_a_network(
        "egress::t_085_a_name_is_what_all_of_its_addresses_are_each_time_that_it_is_called",
        async |network| {
            let world = world("version: 1\n").await;
            check_is_reached(&network, &world).await;
            let (open, inside) = (&["93.184.216.34"][..], &["10.0.0.8"][..]);
            network.name("inside.example", &[Some(inside)]);
            network.name("both.example", &[Some(&["93.184.216.34", "10.0.0.8"])]);
            network.name("both-ways.example", &[Some(&["169.254.169.254", "93.184.216.34"])]);
            for name in ["inside.example", "both.example", "both-ways.example"] {
                check_blocked(&world, &format!("https://{name}/"), Reason::EgressBlocked).await;
                assert_eq!(network.asked(name), 1, "{name}");
            }
            assert_eq!(network.connected().len(), 1);

            // First somebody in the open, who hangs up, then a place inside: each is looked at, and only the first is called.
            network.name("rebound.example", &[Some(open), Some(inside)]);
            let story = call(&world, "https://rebound.example/", Word::Dead).await;
            let reasons: Vec<_> = story.attempts.iter().map(|attempt| attempt.reason.unwrap()).collect();
            assert_eq!(reasons, [Reason::TargetDown, Reason::EgressBlocked]);
            assert_eq!(network.asked("rebound.example"), 2, "asked once for each call");
            assert_eq!(network.connected()[1..], ["93.184.216.34:443".parse().unwrap()]);

            // A name that is not there is no place at all.
            network.name("later.example", &[None, Some(inside)]);
            let story = call(&world, "https://later.example/", Word::Dead).await;
            let reasons: Vec<_> = story.attempts.iter().map(|attempt| attempt.reason.unwrap()).collect();
            assert_eq!(reasons, [Reason::TargetDown, Reason::EgressBlocked]);
            assert_eq!(network.connected().len(), 2);
        },
    );
}

#[test]
fn t_085_a_call_goes_to_the_address_that_was_looked_at_whatever_the_name_is_by_then() {
    in_a_network(
        "egress::t_085_a_call_goes_to_the_address_that_was_looked_at_whatever_the_name_is_by_then",
        async |network| {
            let world = world("egress: {allow: [93.184.216.34, partner.example]}\n").await;
            *network.answer.lock().unwrap() = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".into();
            network.name("partner.example", &[Some(&["93.184.216.34"]), Some(&["10.0.0.8"])]);
            call(&world, "http://partner.example:8080/", Word::Success).await;
            assert_eq!(network.asked("partner.example"), 1);
            assert_eq!(network.connected(), ["93.184.216.34:8080".parse().unwrap()]);
        },
    );
}

#[test]
fn t_086_a_redirect_to_a_place_inside_is_not_followed() {
    in_a_network("egress::t_086_a_redirect_to_a_place_inside_is_not_followed", async |network| {
        let world = world("egress: {allow: [partner.example]}\n").await;
        network.name("partner.example", &[Some(&["93.184.216.34"])]);
        let partner: SocketAddr = "93.184.216.34:8080".parse().unwrap();
        let places = ["http://169.254.169.254/latest/", "http://127.0.0.1:6379/", "https://[::1]/", "//10.0.0.1/", "/"];
        for (nth, to) in places.into_iter().enumerate() {
            for (mth, status) in [301, 302, 303, 307, 308].into_iter().enumerate() {
                let head = format!("HTTP/1.1 {status} Away\r\nlocation: {to}\r\nconnection: close\r\n");
                *network.answer.lock().unwrap() = head + "content-length: 0\r\n\r\n";
                let story = call(&world, &format!("http://partner.example:8080/{nth}/{status}"), Word::Dead).await;
                assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::RejectedByTarget), 1), "{to}");
                assert_eq!(network.connected().len(), nth * 5 + mth + 1, "{status} {to}");
            }
        }
        assert!(network.connected().iter().all(|address| *address == partner), "{:?}", network.connected());
    });
}

#[test]
fn t_087_what_is_neither_http_nor_https_or_has_a_user_is_refused_without_a_packet() {
    in_a_network(
        "egress::t_087_what_is_neither_http_nor_https_or_has_a_user_is_refused_without_a_packet",
        async |network| {
            let world = world("egress: {allow: [10.0.0.0/8, 8.8.8.8]}\n").await;
            for url in [
                "file:///etc/passwd",
                "gopher://10.0.0.1:6379/_FLUSHALL",
                "ftp://10.0.0.1/x",
                "dict://10.0.0.1:6379/info",
                "http://user:secret@10.0.0.1/",
                "http://8.8.8.8@10.0.0.1/",
                "http://10.0.0.1:80@8.8.8.8/",
                "//10.0.0.1/",
                "10.0.0.1",
                "http://",
            ] {
                let before = opened();
                let story = call(&world, url, Word::Dead).await;
                let reason = story.row.reason.unwrap();
                assert!(matches!(reason, Reason::ConfigError | Reason::MissingData), "{url}: {story:#?}");
                assert_eq!((story.row.attempts, opened()), (1, before + 1), "{url}");
            }
            // What looks like one host and is another is judged by what would be called.
            for url in [r"http://169.254.169.254\@8.8.8.8/", r"https://127.0.0.1\.example.com/", "http://0xa9fea9fe\\x"]
            {
                check_blocked(&world, url, Reason::EgressBlocked).await;
            }
            assert_eq!(network.connected(), []);
        },
    );
}

/// The settings and step as they are written are refused before anything starts.
async fn check_refused(step: &str, says: &str) {
    let worker = worker_with_step(step);
    let files = [("queues.yml", QUEUES), ("flows/orders.yml", FLOW), ("workers/charge.yml", worker.as_str())];
    let StartError::Config { problems, .. } = World::refusal(&files).await else { panic!("another refusal") };
    assert!(problems.iter().any(|problem| problem.message.contains(says)), "{step}: {problems:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn t_087_t_089_what_a_file_may_not_say_keeps_the_server_from_starting() {
    let url = |url: &str| format!("  - name: charge\n    http: {{url: '{url}'}}\n");
    for scheme in ["file:///etc/passwd", "gopher://8.8.8.8/", "ftp://8.8.8.8/"] {
        check_refused(&url(scheme), "is not a URL that clinch calls").await;
    }
    check_refused(&url("https://user:secret@partner.example/"), "has a user or a password in it").await;
    let header =
        |name: &str| format!("  - name: charge\n    http: {{url: 'https://a.b/', headers: {{'{name}': x}}}}\n");
    for name in ["x y", "x:", ""] {
        check_refused(&header(name), "is not a header name").await;
    }
    for name in ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Trailer", "Keep-Alive"]
    {
        check_refused(&header(name), "is set by the connection").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t_088_proxies_of_the_environment_are_not_used() {
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", trap.local_addr().unwrap());
    let trapped = Arc::new(AtomicUsize::new(0));
    let counted = trapped.clone();
    tokio::spawn(async move {
        while trap.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let place = Place::new(&[ONCE]).await;
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let server = place.start_with(&names.map(|name| (name, proxy.as_str()))).await;
    assert_eq!(Provider::new(ONCE).deliver(&server.intake).await, Told::Acknowledged);
    place.drained().await;
    assert_eq!((place.jobs("success"), place.sink.count(), trapped.load(Ordering::Relaxed)), (1, 1, 0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t_089_what_an_event_says_adds_no_line_to_a_request() {
    let step = "  - name: charge
    http:
      url: \"http://TARGET/charge/{{ body.path }}\"
      headers: {x-name: \"{{ body.name }}\"}
      idempotency: natural
";
    let world = World::new(&[USUAL[0], USUAL[1], ("workers/charge.yml", &worker_with_step(step))]).await;
    let lines = [
        ("a", "x\r\nx-evil: 1"),
        ("a", "x\nx-evil: 1"),
        ("a", "x\rx-evil: 1"),
        ("a", "x\0y"),
        ("a", "x\u{7f}"),
        ("a HTTP/1.1\r\nx-evil: 1\r\n\r\nGET /charge/b", "x"),
        ("a\r\nx-evil: 1", "x"),
        ("a\nb", "x"),
        ("a\tb", "x"),
        ("a\0b", "x"),
    ];
    for (nth, (path, name)) in lines.into_iter().enumerate() {
        let body = serde_json::json!({ "path": path, "name": name }).to_string();
        let story = world.post_and_wait(&format!("k{nth}"), &body, Word::Dead).await;
        assert_eq!((story.row.reason, story.effects.len()), (Some(Reason::MissingData), 0), "{path:?} {name:?}");
    }
    assert_eq!(world.target.calls().len(), 0);
    // What a URL may not have is encoded, and stays in its place.
    for (path, seen) in [("a b", "/charge/a%20b"), ("é", "/charge/%C3%A9"), ("a?x=1#y", "/charge/a?x=1")] {
        let body = serde_json::json!({ "path": path, "name": "x" }).to_string();
        world.post_and_wait(&data_encoding::HEXLOWER.encode(path.as_bytes()), &body, Word::Success).await;
        let call = world.target.calls().pop().unwrap();
        assert_eq!((call.path.as_str(), call.headers.contains_key("x-evil")), (seen, false), "{path}");
    }
    let host: IpAddr = world.target.calls()[0].headers["host"].split(':').next().unwrap().parse().unwrap();
    assert!(host.is_loopback());
}
