//! The wire: certificates from files, both versions of HTTP, and connections that nobody can hold. The real binary on real
//! sockets.

use crate::process::{AGAIN, PATIENCE, Place, Server, eventually};
use crate::world::Answer;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate of `localhost` and its key.
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Pair {
    pub fn make(dir: &Path, name: &str) -> Pair {
        let pair = Pair { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        let made = Command::new("openssl")
            .args(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
                    .split(' '),
            )
            .args([
                "-addext",
                "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ])
            .arg("-keyout")
            .arg(&pair.key)
            .arg("-out")
            .arg(&pair.cert)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        private(&pair.key, 0o600);
        pair
    }

    /// Takes the place of another, as a renewal does.
    fn replaces(&self, other: &Pair) {
        for (from, to) in [(&self.cert, &other.cert), (&self.key, &other.key)] {
            let aside = to.with_extension("new");
            std::fs::copy(from, &aside).unwrap();
            std::fs::rename(aside, to).unwrap();
        }
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.cert).unwrap()
    }

    /// A client that trusts this certificate and no other.
    fn client(&self) -> reqwest::Client {
        let root = reqwest::Certificate::from_pem(&std::fs::read(&self.cert).unwrap()).unwrap();
        reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).tls_certs_only([root]).build().unwrap()
    }

    async fn connect(&self, address: SocketAddr, alpn: &[u8]) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

fn private(key: &Path, mode: u32) {
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn address(url: &str) -> SocketAddr {
    url.split_once("://").unwrap().1.parse().unwrap()
}

/// A server with a certificate for deliveries, and another for operators.
struct Safe {
    place: Place,
    server: Server,
    pair: Pair,
    admin: Pair,
}

impl Safe {
    async fn new() -> Safe {
        let place = Place::new(&[AGAIN]).await;
        let (pair, admin) = (Pair::make(place.dir.path(), "intake"), Pair::make(place.dir.path(), "admin"));
        place.write("clinch.yml", &format!("admin_tls: {{cert: {:?}, key: {:?}}}", admin.cert, admin.key));
        let flags = [pair.cert.to_str().unwrap(), pair.key.to_str().unwrap()];
        let mut server = place.launch(&place.data_dir, &["--tls-cert", flags[0], "--tls-key", flags[1]], &[]);
        server.opened().await;
        Safe { place, server, pair, admin }
    }

    async fn post(&self, client: &reqwest::Client, key: &str) -> reqwest::Result<Answer> {
        let sent = client.post(self.server.hook("again")).header("idempotency-key", key).body(r#"{"id":"1"}"#).send();
        Ok(Answer::read(sent.await?).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_deliveries_come_in_over_tls_by_either_version_of_http() {
    let safe = Safe::new().await;
    assert!(safe.server.intake.starts_with("https://127.0.0.1:"), "{}", safe.server.intake);
    let client = safe.pair.client();
    assert_eq!(safe.post(&client, "over-1").await.unwrap().status, 202);
    assert!(safe.post(&safe.admin.client(), "strange").await.is_err(), "another certificate is shown to operators");
    let ready = safe.admin.client().get(format!("{}/readyz", safe.server.admin)).send().await.unwrap();
    assert_eq!(ready.status(), 200);

    let stream = safe.pair.connect(address(&safe.server.intake), b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut waiting = Vec::new();
    for nth in 0..50 {
        let request =
            hyper::Request::post(safe.server.hook("again")).header("idempotency-key", format!("over-2-{nth}"));
        waiting.push(sender.send_request(request.body(Full::new(Bytes::from_static(br#"{"id":"2"}"#))).unwrap()));
    }
    for answer in futures_util::future::join_all(waiting).await {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 202);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(br#"{"event_id":"evt_"#), "{body:?}");
    }
    drop(sender);
    connection.await.unwrap().unwrap();

    // Without TLS there is nothing to hear.
    let mut plain = TcpStream::connect(address(&safe.server.intake)).await.unwrap();
    plain.write_all(b"POST /hooks/again HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    let mut heard = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut heard)).await.expect("it is closed");
    assert!(!String::from_utf8_lossy(&heard).contains("HTTP"), "{heard:?}");
    // Who was refused may know it before it is counted.
    let count = r#"clinch_connections_refused_total{listener="intake",reason="handshake"} 2"#;
    eventually("both are counted", PATIENCE, async || {
        let metrics = safe.admin.client().get(format!("{}/metrics", safe.server.admin)).send().await.unwrap();
        metrics.text().await.unwrap().contains(count)
    })
    .await;
    safe.place.drained().await;
    safe.server.stop().await;
    assert_eq!(safe.place.report().events, 51);
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_new_certificate_is_shown_without_a_restart_and_a_bad_one_never() {
    let safe = Safe::new().await;
    let (old, dir) = (safe.pair.client(), safe.place.dir.path());
    let next = Pair::make(dir, "next");
    next.replaces(&safe.pair);
    let new = next.client();
    // Nobody is told: the files are looked at from time to time.
    eventually("the new certificate is shown", PATIENCE, async || safe.post(&new, "k").await.is_ok()).await;
    assert!(safe.post(&old, "k").await.is_err(), "and the old one no more");

    // Half a renewal: the certificate is new and the key is not its own.
    let third = Pair::make(dir, "third");
    std::fs::copy(&third.cert, &safe.pair.cert).unwrap();
    safe.server.signal(Signal::HUP);
    eventually("it is said in the log", PATIENCE, async || safe.server.said().contains("it is not the key of")).await;
    assert!(safe.post(&new, "k").await.is_ok(), "the old one is shown on");
    std::fs::write(&safe.pair.cert, "nonsense").unwrap();
    safe.server.signal(Signal::HUP);
    eventually("it is said in the log", PATIENCE, async || safe.server.said().contains("no certificate in it")).await;
    assert!(safe.post(&new, "k").await.is_ok());
    third.replaces(&safe.pair);
    safe.server.signal(Signal::HUP);
    eventually("the third is shown", PATIENCE, async || safe.post(&third.client(), "k").await.is_ok()).await;
    let said = safe.server.said();
    assert!(!said.contains("PRIVATE"), "{said}");
    safe.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t111_a_key_that_others_may_read_or_that_fits_no_certificate_starts_nothing() {
    let place = Place::new(&[AGAIN]).await;
    let (one, two) = (Pair::make(place.dir.path(), "one"), Pair::make(place.dir.path(), "two"));
    let start = async |cert: &Path, key: &Path| {
        place.write("clinch.yml", &format!("tls: {{cert: {cert:?}, key: {key:?}}}"));
        let mut server = place.spawn(&[]);
        assert_eq!(server.exited().await.code(), Some(6), "{}", server.said());
        assert!(!place.data_dir.exists(), "a start that fails leaves no data behind");
        server.said()
    };
    assert!(start(&one.cert, &two.key).await.contains("it is not the key of the certificate"));
    assert!(start(&one.key, &one.key).await.contains("no certificate in it"));
    assert!(start(&one.cert, &one.cert).await.contains("others may read the private key"));
    private(&one.key, 0o644);
    let said = start(&one.cert, &one.key).await;
    assert!(said.contains("others may read the private key; run `chmod o= "), "{said}");
    assert!(start(&one.cert, Path::new("missing.key")).await.contains("missing.key"));
}

/// Connects from another address of this machine.
pub async fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

const HALF_A_HEAD: &[u8] = b"POST /hooks/again HTTP/1.1\r\nHost: x\r\nX-Slow: ";

#[tokio::test(flavor = "multi_thread")]
async fn t074_an_address_that_holds_connections_is_capped_and_the_others_are_served() {
    let place = Place::new(&[AGAIN]).await;
    place.write("clinch.yml", "connections: {per_address: 20}");
    let server = place.start().await;
    let to = address(&server.intake);
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut stream = connect_from("127.0.0.2", to).await;
        stream.write_all(HALF_A_HEAD).await.unwrap();
        held.push(stream);
    }
    // Who finds no place is told so at once. All of them together: a head that does not end is waited for ten seconds.
    let turned_away = (0..280).map(|_| async move {
        let mut said = String::new();
        connect_from("127.0.0.2", to).await.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 429 ") && said.contains("retry-after: 2"), "{said}");
    });
    futures_util::future::join_all(turned_away).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for nth in 0..100 {
        let sent = client.post(server.hook("again")).header("idempotency-key", nth).body(r#"{"id":"x"}"#).send();
        assert_eq!(sent.await.unwrap().status(), 202);
    }
    let metrics = client.get(format!("{}/metrics", server.admin)).send().await.unwrap().text().await.unwrap();
    let count = r#"clinch_connections_refused_total{listener="intake",reason="address"} 280"#;
    assert!(metrics.contains(count), "{metrics}");
    drop(held);
    place.drained().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_a_burst_of_senders_waits_until_it_is_accepted() {
    let place = Place::new(&[AGAIN]).await;
    let server = place.start().await;
    // While nobody accepts them: as many as there are at a busy moment, from no more addresses than may have them.
    server.signal(Signal::STOP);
    let burst = async {
        let mut waiting = Vec::new();
        for nth in 0..300 {
            waiting.push(connect_from(&format!("127.0.0.{}", 2 + nth / 60), address(&server.intake)).await);
        }
        waiting
    };
    let waiting = tokio::time::timeout(PATIENCE, burst).await;
    server.signal(Signal::CONT);
    for mut sender in waiting.expect("there is room for all of them") {
        sender.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut heard = String::new();
        sender.read_to_string(&mut heard).await.unwrap();
        assert!(heard.starts_with("HTTP/1.1 404 "), "{heard}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t073_a_handshake_that_never_ends_and_a_wait_between_two_requests_have_their_own_deadlines() {
    let safe = Safe::new().await;
    let to = address(&safe.server.intake);
    let mut silent = TcpStream::connect(to).await.unwrap();
    let mut half = TcpStream::connect(to).await.unwrap();
    half.write_all(b"\x16\x03\x01\x02\x00\x01\x00").await.unwrap();
    // Agreed, and then nothing: no preface of HTTP/2, no head of HTTP/1.
    let mut quiet2 = safe.pair.connect(to, b"h2").await;
    let mut quiet1 = safe.pair.connect(to, b"http/1.1").await;
    let mut used = safe.pair.connect(to, b"http/1.1").await;
    used.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut heard = vec![0; 4096];
    let read = used.read(&mut heard).await.unwrap();
    assert!(heard[..read].starts_with(b"HTTP/1.1 404"), "{heard:?}");
    let mut rest = Vec::new();
    let closed = async {
        let _ = silent.read_to_end(&mut Vec::new()).await;
        let _ = half.read_to_end(&mut Vec::new()).await;
        let _ = quiet1.read_to_end(&mut Vec::new()).await;
        let _ = quiet2.read_to_end(&mut rest).await;
    };
    tokio::time::timeout(PATIENCE, closed).await.expect("who begins nothing is not waited for");
    used.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let read = used.read(&mut heard).await.unwrap();
    assert!(heard[..read].starts_with(b"HTTP/1.1 404"), "a connection that was used may wait longer");
    safe.server.stop().await;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// POST https://x/hooks/again, in the words of the static table as far as it goes.
const HEAD: &[u8] = b"\x83\x87\x44\x0c/hooks/again\x41\x01x";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn t079_floods_of_http2_frames_end_the_connection_and_cost_no_memory() {
    let safe = Safe::new().await;
    let client = safe.pair.client();
    for nth in 0..50 {
        assert_eq!(safe.post(&client, &format!("warm-{nth}")).await.unwrap().status, 202);
    }
    let before = safe.server.kibibytes();
    // As much as it takes: whoever is cut off cannot write any more.
    let flood = async |name: &str, beginning: &[u8], piece: &dyn Fn(u32) -> Vec<u8>| {
        let mut stream = safe.pair.connect(address(&safe.server.intake), b"h2").await;
        let mut written = stream.write_all(&[PREFACE, beginning].concat()).await;
        let mut nth = 0;
        while written.is_ok() && nth < 200_000 {
            let pieces: Vec<u8> = (nth..nth + 100).flat_map(piece).collect();
            nth += 100;
            written = stream.write_all(&pieces).await;
            if written.is_ok() {
                written = stream.flush().await;
            }
        }
        eprintln!("{name}: cut off after {nth} frames");
        assert!(written.is_err(), "{name} was suffered for {nth} frames");
    };
    let reset = |nth: u32| [frame(1, 4, 2 * nth + 1, HEAD), frame(3, 0, 2 * nth + 1, &[0, 0, 0, 8])].concat();
    flood("rapid reset", b"", &reset).await;
    let more = |_: u32| frame(9, 0, 1, &[0x00, 0x01, b'a', 0x01, b'b'].repeat(50));
    flood("continuations", &frame(1, 0, 1, HEAD), &more).await;
    let empty = |_: u32| frame(0, 0, 1, b"");
    flood("empty data", &frame(1, 4, 1, HEAD), &empty).await;
    let now = safe.server.kibibytes();
    assert!(now < before + 32 * 1024, "memory grew from {before} KiB to {now} KiB");
    assert_eq!(safe.post(&client, "after").await.unwrap().status, 202);
    safe.server.stop().await;
}
