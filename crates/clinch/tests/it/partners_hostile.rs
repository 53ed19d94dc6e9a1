//! Partners that mean harm, or do it: their answers never end, never begin, are none, or lead elsewhere. A call takes the
//! time of its step and no more, memory stays as it was, and the ledger says what is known.

use super::partners_lost::message;
use super::process::{ONCE, Place, Server, client, eventually};
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, RECEIPT_BYTES_MAX};
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::read::JobStory;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Those that answer at once do so within it, also where the machine is busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(15);
/// Peak memory may not grow by more than this, whatever is answered: far less than what each of them would send.
const GROWTH_KIBIBYTES_MAX: u64 = 64 * 1024;
/// No more of an answer is taken: what is kept of it, and what the buffers on the way hold.
const TAKEN_MAX: usize = 32 << 20;
/// So many of each at once.
const COPIES: usize = 4;
/// What the policy says where nothing is asked for, and the most that can be.
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(86_400);

/// What a partner does with a request that it has read.
#[derive(Clone, Debug)]
enum Harm {
    /// These bytes, and then the connection is closed.
    Says(Vec<u8>),
    /// These bytes, and then it is reset.
    Resets(&'static str),
    /// These bytes, then one byte a second of the other ones.
    Drips(&'static str, &'static str),
    /// These bytes, then the other ones for ever.
    Floods(&'static str, Vec<u8>),
}

/// What is right after it.
#[derive(Clone, Copy, Debug)]
enum Right {
    Done,
    /// Parked: nobody knows.
    Unknown,
    Refused,
    /// Tried again after so long.
    Later(Duration),
    /// Tried again at this moment.
    At(Timestamp),
}

/// Little on the wire, and a thousand times as much for who unpacks it.
fn bomb() -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..128).for_each(|_| packed.write_all(&[0; 1 << 20]).unwrap());
    let packed = packed.finish().unwrap();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", packed.len());
    [head.as_bytes(), &packed].concat()
}

fn harms(trap: SocketAddr) -> BTreeMap<&'static str, (Harm, Right)> {
    use Right::{At, Done, Later, Refused, Unknown};
    let says = |text: &str| Harm::Says(text.as_bytes().to_vec());
    let asks = |pause: &str| says(&format!("HTTP/1.1 429 Slow\r\nretry-after: {pause}\r\ncontent-length: 0\r\n\r\n"));
    let away = |to: &str| says(&format!("HTTP/1.1 302 Away\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n"));
    let in_ten_minutes = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(600);
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&in_ten_minutes).unwrap();
    let chunk = [b"100000\r\n".as_slice(), &[b'x'; 1 << 20], b"\r\n"].concat();
    let headers: Vec<u8> = (0..1_000).flat_map(|nth| format!("x-{nth}: {}\r\n", "y".repeat(90)).into_bytes()).collect();
    let storm = "HTTP/1.1 103 Hint\r\nlink: </x>\r\n\r\n".repeat(1_000).into_bytes();
    BTreeMap::from([
        ("seconds", (asks("120"), Later(Duration::from_secs(120)))),
        ("date", (asks(&date), At(Timestamp::from_micros(in_ten_minutes.as_second() * 1_000_000)))),
        ("past", (asks("Mon, 13 Nov 2023 22:14:20 GMT"), Later(PAUSE))),
        ("garbage", (asks("soon"), Later(PAUSE))),
        ("negative", (asks("-5"), Later(PAUSE))),
        ("long", (asks("1000000000"), Later(PAUSE_MAX))),
        ("year-9999", (asks("Fri, 31 Dec 9999 23:59:59 GMT"), Later(PAUSE_MAX))),
        ("hang", (Harm::Drips("", ""), Unknown)),
        ("drip-head", (Harm::Drips("HTTP/1.1 200 OK\r\n", "x-slow: 1\r\n"), Unknown)),
        ("drip-body", (Harm::Drips("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", "slow"), Done)),
        ("huge", (Harm::Floods("HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n", vec![b'x'; 1 << 20]), Done)),
        ("huge-chunks", (Harm::Floods("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk), Done)),
        ("huge-unsaid", (Harm::Floods("HTTP/1.1 200 OK\r\n\r\n", vec![b'x'; 1 << 20]), Done)),
        ("huge-refusal", (Harm::Floods("HTTP/1.1 422 No\r\n\r\n", vec![b'x'; 1 << 20]), Refused)),
        ("headers", (Harm::Floods("HTTP/1.1 200 OK\r\n", headers), Unknown)),
        ("header", (Harm::Floods("HTTP/1.1 200 OK\r\nx: ", vec![b'x'; 1 << 20]), Unknown)),
        ("reason", (Harm::Floods("HTTP/1.1 200 ", vec![b'x'; 1 << 20]), Unknown)),
        ("hints", (Harm::Floods("", storm), Unknown)),
        ("continue", (Harm::Floods("", b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000)), Unknown)),
        ("patient", (says("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), Done)),
        ("upgrade", (says("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), Unknown)),
        ("bomb", (Harm::Says(bomb()), Done)),
        ("reset", (Harm::Resets("HTTP/1.1 200 OK\r\ncontent-le"), Unknown)),
        ("silence", (says(""), Unknown)),
        ("old", (says("hello, this is a page of 1991\n"), Unknown)),
        ("noise", (says("\u{1}\u{2}\u{3}\u{16}\u{3}\u{1}\r\n\r\n"), Unknown)),
        ("no-number", (says("HTTP/1.1 twohundred OK\r\n\r\n"), Unknown)),
        ("two-lengths", (says("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"), Unknown)),
        ("minus-one", (says("HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), Unknown)),
        ("away", (away(&format!("http://{trap}/")), Refused)),
        ("metadata", (away("http://169.254.169.254/latest/meta-data/"), Refused)),
        ("loop", (away("/once/loop"), Refused)),
    ])
}

/// What the partner was asked, and how much of its answers was taken from it.
#[derive(Default)]
struct Seen {
    calls: Mutex<BTreeMap<String, usize>>,
    taken: Mutex<BTreeMap<String, usize>>,
}

async fn harm(mut stream: TcpStream, harms: Arc<BTreeMap<&'static str, (Harm, Right)>>, seen: Arc<Seen>) {
    let Some((request, _)) = message(&mut stream).await else { return };
    let request = String::from_utf8_lossy(&request).into_owned();
    let name = request.split(' ').nth(1).unwrap().rsplit('/').next().unwrap().to_string();
    *seen.calls.lock().unwrap().entry(name.clone()).or_default() += 1;
    // That it is closed under us is what we are here for.
    match &harms[name.as_str()].0 {
        Harm::Says(text) => {
            let _ = stream.write_all(text).await;
        }
        Harm::Resets(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            stream.set_zero_linger().unwrap();
        }
        Harm::Drips(first, rest) => {
            let _ = stream.write_all(first.as_bytes()).await;
            for byte in rest.bytes().cycle().take(60) {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
            std::future::pending().await
        }
        Harm::Floods(first, rest) => {
            let _ = stream.write_all(first.as_bytes()).await;
            let mut taken = 0;
            while stream.write_all(rest).await.is_ok() && taken < 10 << 30 {
                taken += rest.len();
            }
            let mut all = seen.taken.lock().unwrap();
            let most = all.entry(name).or_default();
            *most = taken.max(*most);
        }
    }
}

/// The most memory that a server ever had.
fn peak_kibibytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

async fn post(client: &reqwest::Client, server: &Server, key: &str, harm: &str) -> JobId {
    let body = format!(r#"{{"harm":"{harm}"}}"#);
    let request = client.post(server.hook("once")).header("idempotency-key", key).body(body);
    let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
    answer["job_id"].as_str().unwrap().parse().unwrap()
}

fn check(name: &str, right: Right, story: &JobStory) {
    let about = format!("{name}: {right:?}, and it is {story:#?}");
    let (row, attempt, effect) = (&story.row, &story.attempts[0], &story.effects[0]);
    assert_eq!((story.attempts.len(), effect.sends), (1, 1), "{about}");
    assert!(attempt.ended_at.since(attempt.started_at) < TIMEOUT + SLACK, "{about}");
    match right {
        Right::Done => {
            assert_eq!((row.word, attempt.outcome.as_str()), (Word::Success, "success"), "{about}");
            assert!(matches!(&effect.state, EffectState::Done(receipt) if receipt.body.len() <= RECEIPT_BYTES_MAX));
        }
        Right::Unknown => {
            assert_eq!((row.word, row.reason), (Word::Dead, Some(Reason::UnknownOutcome)), "{about}");
            assert_eq!((attempt.outcome.as_str(), &effect.state), ("unknown", &EffectState::Unknown), "{about}");
        }
        Right::Refused => {
            assert_eq!((row.word, row.reason), (Word::Dead, Some(Reason::RejectedByTarget)), "{about}");
            assert_eq!((attempt.outcome.as_str(), &effect.state), ("refused", &EffectState::NotDone), "{about}");
        }
        Right::Later(pause) => {
            assert_eq!((row.word, attempt.reason), (Word::Retrying, Some(Reason::RateLimited)), "{about}");
            assert_eq!(row.run_at.unwrap().since(attempt.ended_at), pause, "{about}");
            assert_eq!(effect.state, EffectState::NotDone, "{about}");
        }
        Right::At(moment) => {
            assert_eq!((row.word, attempt.reason), (Word::Retrying, Some(Reason::RateLimited)), "{about}");
            let run_at = row.run_at.unwrap();
            assert!(run_at >= moment && run_at.since(moment) < SLACK, "{about}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_f21_t_082_a_hostile_partner_costs_its_time_and_no_more_and_the_ledger_says_what_is_known() {
    let place = Place::new(&[ONCE]).await;
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let trap_address = trap.local_addr().unwrap();
    let trapped = Arc::new(AtomicUsize::new(0));
    let counted = trapped.clone();
    tokio::spawn(async move {
        while trap.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let harms = Arc::new(harms(trap_address));
    let seen: Arc<Seen> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let partner = listener.local_addr().unwrap();
    let (all, seen_there) = (harms.clone(), seen.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(harm(stream, all.clone(), seen_there.clone()));
        }
    });
    place.write(
        "workers/once.yml",
        &format!(
            "version: 1
name: once-worker
consumes: {{queue: once}}
concurrency: 256
retry: {{strategy: fixed, base_delay: {}s, max_delay: {}s, jitter: none, max_attempts: 50}}
run:
  - name: charge
    http: {{url: 'http://{partner}/once/{{{{ body.harm }}}}', body_from: body, idempotency: none, timeout: {}s}}
",
            PAUSE.as_secs(),
            PAUSE_MAX.as_secs(),
            TIMEOUT.as_secs()
        ),
    );
    let server = place.start().await;
    let client = client();
    for nth in 0..200 {
        post(&client, &server, &format!("warm-{nth}"), "patient").await;
    }
    eventually("it is warm", TIMEOUT + SLACK, async || place.jobs("success") == 200).await;
    let before = peak_kibibytes(&server);
    let mut jobs = Vec::new();
    for copy in 0..COPIES {
        for name in harms.keys() {
            jobs.push((*name, post(&client, &server, &format!("{name}-{copy}"), name).await));
        }
    }
    let later = harms.values().filter(|(_, right)| matches!(right, Right::Later(_) | Right::At(_))).count() * COPIES;
    eventually("every call is over", TIMEOUT + 2 * SLACK, async || {
        place.jobs("queued") == 0 && place.jobs("retrying") as usize == later
    })
    .await;
    let after = peak_kibibytes(&server);
    let said = server.said();
    server.stop().await;
    place.verified();

    let books = place.books().await;
    for (name, job) in jobs {
        check(name, harms[name].1, &books.story(job).await);
    }
    for (name, calls) in seen.calls.lock().unwrap().iter() {
        assert!(*calls == COPIES || name == "patient", "{name} was called {calls} times");
    }
    let taken = seen.taken.lock().unwrap().clone();
    for (name, taken) in &taken {
        assert!(*taken < TAKEN_MAX, "{taken} bytes of {name} were taken");
    }
    assert_eq!(trapped.load(Ordering::Relaxed), 0, "a redirect was followed");
    assert!(!said.contains("panicked"), "{said}");
    eprintln!("{} calls; peak {before} KiB before, {after} KiB after; bytes taken: {taken:?}", harms.len() * COPIES);
    assert!(after < before + GROWTH_KIBIBYTES_MAX, "memory grew from {before} KiB to {after} KiB");
}
