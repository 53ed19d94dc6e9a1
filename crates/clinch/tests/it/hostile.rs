//! Senders that mean harm, or do it: what is not a request, what is not an event, and what never ends. They get a clear
//! refusal or a closed connection; everybody else is served, and memory stays as it was.

use super::process::{ONCE, PATIENCE, Place, Provider, Server, Told};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Resident memory may not grow by more than this, whatever is sent. An allocator keeps some of what it was given back;
/// what is sent in each story is several times as much.
const GROWTH_KIBIBYTES_MAX: u64 = 64 * 1024;
/// What a busy machine may add to the server's own deadlines, the longest of which is still within our patience then.
const SLACK: Duration = Duration::from_secs(14);
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const BODY_TIMEOUT: Duration = Duration::from_secs(15);
/// Who would have to wait for slow senders would wait until the first of them are cut.
const AT_ONCE: Duration = Duration::from_secs(8);
/// After an answer it is listened for another for so long.
const ANOTHER: Duration = Duration::from_secs(2);

/// A server that has been at work for a moment, so that its memory is what it usually is.
struct Victim {
    place: Place,
    server: Server,
    provider: Provider,
    kibibytes: u64,
}

impl Victim {
    async fn new() -> Victim {
        let place = Place::new(&[ONCE]).await;
        let server = place.start().await;
        let provider = Provider::new(ONCE);
        for _ in 0..200 {
            assert_eq!(provider.deliver(&server.intake).await, Told::Acknowledged);
        }
        let kibibytes = server.kibibytes();
        Victim { place, server, provider, kibibytes }
    }

    fn address(&self) -> String {
        self.server.intake.trim_start_matches("http://").into()
    }

    /// The status of the answer to these bytes; 0 for a connection that is closed without one.
    async fn status(&self, bytes: &[u8]) -> u16 {
        let answer = Stranger::connect(&self.address()).await.talk(bytes).await;
        statuses(&answer).first().copied().unwrap_or(0)
    }

    fn memory_is_flat(&self) {
        let (before, now) = (self.kibibytes, self.server.kibibytes());
        eprintln!("memory: {before} KiB before, {now} KiB now");
        assert!(now < before + GROWTH_KIBIBYTES_MAX, "memory grew from {before} KiB to {now} KiB");
    }

    /// It serves as before, and nothing that came in meanwhile became an event unless `events` says so.
    async fn ends_unharmed(self, events: usize) {
        assert_eq!(self.provider.deliver(&self.server.intake).await, Told::Acknowledged);
        self.memory_is_flat();
        let said = self.server.said();
        assert!(!said.contains("panicked"), "{said}");
        self.place.drained().await;
        self.server.stop().await;
        self.place.verified();
        assert_eq!(self.place.report().events as usize, self.provider.made() + events);
    }
}

/// A connection without manners.
struct Stranger(TcpStream);

impl Stranger {
    async fn connect(address: &str) -> Stranger {
        Stranger(TcpStream::connect(address).await.unwrap())
    }

    /// Sends everything, and reads until the server has closed the connection, or has said nothing more for a while.
    async fn talk(self, bytes: &[u8]) -> String {
        let (mut reading, mut writing) = self.0.into_split();
        let mut heard = Vec::new();
        let hear = async {
            let mut piece = [0; 4096];
            let mut patience = PATIENCE;
            while let Ok(Ok(read @ 1..)) = tokio::time::timeout(patience, reading.read(&mut piece)).await {
                heard.extend_from_slice(&piece[..read]);
                patience = ANOTHER;
            }
        };
        // Who is refused early cannot send everything.
        let (_, ()) = tokio::join!(writing.write_all(bytes), hear);
        String::from_utf8_lossy(&heard).into_owned()
    }

    /// Sends a beginning, then a byte now and then, until the server has had enough. How long that took, and the answer.
    async fn drip(mut self, beginning: &[u8], more: Option<u8>) -> (Duration, String) {
        let began = Instant::now();
        self.0.write_all(beginning).await.unwrap();
        let mut heard = Vec::new();
        let mut piece = [0; 4096];
        while began.elapsed() < PATIENCE {
            match tokio::time::timeout(Duration::from_secs(1), self.0.read(&mut piece)).await {
                Ok(Ok(read @ 1..)) => heard.extend_from_slice(&piece[..read]),
                Ok(_) => break,
                Err(_) => {
                    if let Some(byte) = more {
                        // It may be closed by now; reading will tell.
                        let _ = self.0.write_all(&[byte]).await;
                    }
                }
            }
        }
        (began.elapsed(), String::from_utf8_lossy(&heard).into_owned())
    }
}

fn statuses(answer: &str) -> Vec<u16> {
    let starts = answer.match_indices("HTTP/1.1 ");
    starts.map(|(at, word)| answer[at + word.len()..][..3].parse().unwrap()).collect()
}

/// A delivery with these headers, each with its line end, and this body.
fn request(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST /hooks/once HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn delivery(key: &str, body: &[u8]) -> Vec<u8> {
    request(&format!("Idempotency-Key: {key}\r\nContent-Length: {}\r\n", body.len()), body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t078_what_is_not_http_is_refused() {
    let victim = Victim::new().await;
    let sound = "Idempotency-Key: k\r\nContent-Length: 2\r\n";
    let many: String = (0..101).map(|at| format!("X-{at}: y\r\n")).collect();
    let long = format!("X-Long: {}\r\n", "y".repeat(1 << 20));
    let refused: Vec<(&str, Vec<u8>, u16)> = vec![
        ("two lengths", request("Content-Length: 2\r\nContent-Length: 3\r\n", b"{}"), 400),
        ("a list of lengths", request("Content-Length: 2, 2\r\n", b"{}"), 400),
        ("a negative length", request("Content-Length: -2\r\n", b"{}"), 400),
        ("a length with a sign", request("Content-Length: +2\r\n", b"{}"), 400),
        ("a huge length", request("Content-Length: 99999999999999999999\r\n", b"{}"), 400),
        ("a space before the colon", request(&format!("X : y\r\n{sound}"), b"{}"), 400),
        ("Host with a space", b"POST /hooks/once HTTP/1.1\r\nHost : x\r\nContent-Length: 2\r\n\r\n{}".to_vec(), 400),
        ("a folded header", request(&format!("X: y\r\n z\r\n{sound}"), b"{}"), 400),
        ("NUL in a value", request(&format!("X: y\0z\r\n{sound}"), b"{}"), 400),
        ("NUL in a name", request(&format!("X\0: y\r\n{sound}"), b"{}"), 400),
        ("a bare CR", request(&format!("X: y\rz\r\n{sound}"), b"{}"), 400),
        ("another coding", request("Idempotency-Key: k\r\nTransfer-Encoding: gzip\r\n", b"{}"), 400),
        ("chunked, but not last", request("Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"), 400),
        ("a bad chunk", request("Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n", b"zz\r\n{}\r\n"), 400),
        ("101 headers", request(&format!("{many}{sound}"), b"{}"), 431),
        ("a header of 1 MB", request(&format!("{long}{sound}"), b"{}"), 431),
        ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n".to_vec(), 400),
        ("no version", b"POST /hooks/once\r\n\r\n".to_vec(), 400),
        ("a version to come", b"POST /hooks/once HTTP/9.9\r\nHost: x\r\n\r\n".to_vec(), 400),
    ];
    for (what, bytes, expected) in refused {
        assert_eq!(victim.status(&bytes).await, expected, "{what}");
    }
    victim.ends_unharmed(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t078_a_request_with_two_kinds_of_length_is_served_once_and_closes_the_connection() {
    let victim = Victim::new().await;
    // For one reader all of it is one body; for another a second request begins in the middle.
    let hidden = "POST /hooks/once HTTP/1.1\r\nHost: x\r\nIdempotency-Key: hidden\r\nContent-Length: 2\r\n\r\n{}";
    let body = format!("2\r\n{{}}\r\n0\r\n\r\n{hidden}");
    for order in
        ["Content-Length: {}\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: {}\r\n"]
    {
        let lengths = order.replace("{}", &body.len().to_string());
        let head = format!("POST /hooks/once HTTP/1.1\r\nHost: x\r\nIdempotency-Key: seen\r\n{lengths}\r\n");
        let answer = Stranger::connect(&victim.address()).await.talk(format!("{head}{body}").as_bytes()).await;
        assert_eq!(statuses(&answer), [202], "{answer}");
    }
    victim.ends_unharmed(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_what_is_not_an_event_is_refused() {
    let victim = Victim::new().await;
    let large = vec![b' '; 2 << 20];
    let pieces: Vec<u8> = large.chunks(1 << 16).flat_map(|piece| [b"10000\r\n", piece, b"\r\n"].concat()).collect();
    let bad: Vec<(&str, Vec<u8>, u16)> = vec![
        ("half an object", delivery("a", br#"{"id":"#), 400),
        ("two values", delivery("b", b"{} {}"), 400),
        ("no JSON", delivery("c", b"id=1&name=x"), 400),
        ("bad UTF-8", delivery("d", b"{\"id\":\"\xff\xfe\"}"), 400),
        ("half a surrogate", delivery("e", b"{\"id\":\"\xed\xa0\x80\"}"), 400),
        ("10,000 arrays deep", delivery("f", "[".repeat(10_000).as_bytes()), 400),
        ("10,000 objects deep", delivery("g", r#"{"a":"#.repeat(10_000).as_bytes()), 400),
        ("10,000 deep, and closed", delivery("h", ("[".repeat(10_000) + &"]".repeat(10_000)).as_bytes()), 400),
        ("2 MB", delivery("i", &large), 413),
        ("2 MB, only announced", request("Idempotency-Key: j\r\nContent-Length: 2097152\r\n", b""), 413),
        ("2 MB in pieces", request("Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\n", &pieces), 413),
        (
            "an encoded body",
            request("Idempotency-Key: l\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n", b"{}"),
            415,
        ),
        ("no key", request("Content-Length: 2\r\n", b"{}"), 400),
        ("two keys", request("Idempotency-Key: m\r\nIdempotency-Key: n\r\nContent-Length: 2\r\n", b"{}"), 400),
        ("an unreadable key", request("Idempotency-Key: \u{fe}\r\nContent-Length: 2\r\n", b"{}"), 400),
    ];
    for round in 0..30 {
        for (what, bytes, expected) in &bad {
            // The large ones every time: they are what memory would show.
            if round == 0 || *expected == 413 {
                assert_eq!(victim.status(bytes).await, *expected, "{what}");
            }
        }
    }
    victim.ends_unharmed(0).await;
}

/// A sender that never ends: how it begins, the byte that it adds every second, and how it is to end.
#[derive(Clone, Copy)]
struct Slow<'a> {
    what: &'static str,
    beginning: &'a [u8],
    more: Option<u8>,
    limit: Duration,
    /// 0 for a connection that is closed without an answer.
    status: u16,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_senders_that_never_end_are_cut_and_keep_nobody_waiting() {
    let victim = Victim::new().await;
    let address = victim.address();
    let half_a_header = b"POST /hooks/once HTTP/1.1\r\nHost: x\r\nX-Slow: ".as_slice();
    let head_only = request("Idempotency-Key: stalled\r\nContent-Length: 1000\r\n", b"{");
    let chunk_only = request("Idempotency-Key: stalled\r\nTransfer-Encoding: chunked\r\n", b"400\r\n{");
    let headers = Slow {
        what: "headers that drip",
        beginning: half_a_header,
        more: Some(b'y'),
        limit: HEADER_TIMEOUT,
        status: 0,
    };
    let body = Slow { what: "a body that stops", beginning: &head_only, more: None, limit: BODY_TIMEOUT, status: 408 };
    let kinds = [
        (500, headers),
        (10, Slow { what: "headers that stop", more: None, ..headers }),
        (10, Slow { what: "nothing at all", beginning: b"", more: None, ..headers }),
        (10, body),
        (10, Slow { what: "a body that drips", more: Some(b' '), ..body }),
        (10, Slow { what: "a chunk that drips", beginning: &chunk_only, more: Some(b' '), ..body }),
    ];
    let mut slow = JoinSet::new();
    for (times, Slow { what, beginning, more, limit, status }) in kinds {
        for _ in 0..times {
            let stranger = Stranger::connect(&address).await;
            let beginning = beginning.to_vec();
            slow.spawn(async move {
                let (took, answer) = stranger.drip(&beginning, more).await;
                assert!(took < limit + SLACK, "{what} were suffered for {took:?}");
                assert_eq!(statuses(&answer).first().copied().unwrap_or(0), status, "{what}: {answer}");
            });
        }
    }
    victim.memory_is_flat();
    // Meanwhile a sender with manners is served, every time and before anybody is cut.
    let done = CancellationToken::new();
    let good = async {
        let mut served = 0;
        while !done.is_cancelled() {
            let told = tokio::time::timeout(AT_ONCE, victim.provider.deliver(&victim.server.intake)).await;
            assert_eq!(told, Ok(Told::Acknowledged), "after {served} were served");
            served += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        served
    };
    let cut = async {
        while let Some(ended) = slow.join_next().await {
            ended.unwrap();
        }
        done.cancel();
    };
    let (served, ()) = tokio::join!(good, cut);
    eprintln!("{served} events were served meanwhile");
    assert!(served > 20, "only {served} were served meanwhile");
    victim.ends_unharmed(0).await;
}
