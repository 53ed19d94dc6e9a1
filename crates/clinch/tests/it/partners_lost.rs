//! A wire to the partner that breaks at every byte of an exchange: what is known of the call is what can be known, and every
//! class is dealt with as it declared.

use super::process::{AGAIN, ASKED, Call, NATURAL, ONCE, Place, Server, Way, client};
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::key::IdempotencyKey;
use clinch_store::read::JobStory;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Where an exchange is cut, and how the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// So many bytes of the request reach the partner.
    Request(usize, How),
    /// So many bytes of the answer come back.
    Answer(usize, How),
    /// So many bytes of the answer to the question come back; the answer to the call itself never did.
    Found(usize),
    Nowhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Closed,
    Reset,
}

/// It travels in the path, always equally long: so every request is.
impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letters, at) = match self {
            Cut::Request(at, How::Closed) => ("qc", *at),
            Cut::Request(at, How::Reset) => ("qr", *at),
            Cut::Answer(at, How::Closed) => ("ac", *at),
            Cut::Answer(at, How::Reset) => ("ar", *at),
            Cut::Found(at) => ("fc", *at),
            Cut::Nowhere => ("no", 0),
        };
        write!(f, "{letters}{at:04}")
    }
}

impl FromStr for Cut {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Cut, Self::Err> {
        let at = text[2..].parse()?;
        Ok(match &text[..2] {
            "qc" => Cut::Request(at, How::Closed),
            "qr" => Cut::Request(at, How::Reset),
            "ac" => Cut::Answer(at, How::Closed),
            "ar" => Cut::Answer(at, How::Reset),
            "fc" => Cut::Found(at),
            _ => Cut::Nowhere,
        })
    }
}

/// Carries requests to the sink, and cuts the first of each event and each question where its path says.
struct Wire {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Who was cut already: the event and the kind of request.
    cut: Mutex<HashSet<(String, String)>>,
    lengths: Mutex<HashMap<String, Lengths>>,
}

/// Of an exchange that passed.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    request: usize,
    answer_head: usize,
    answer: usize,
}

impl Wire {
    async fn to(sink: SocketAddr) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Wire { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let seen = wire.seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, sink, seen.clone()));
            }
        });
        wire
    }

    /// Of the requests with this method.
    fn lengths(&self, method: &str) -> Lengths {
        self.seen.lengths.lock().unwrap()[method]
    }
}

/// One HTTP message with all of its body. Its head ends at the second place.
pub async fn message(stream: &mut TcpStream) -> Option<(Vec<u8>, usize)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) {
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if read.len() >= end + length {
                assert_eq!(read.len(), end + length, "one request at a time");
                return Some((read, end));
            }
        }
        if stream.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// The end of a connection, on both sides of it.
fn end(how: How, streams: [TcpStream; 2]) {
    for stream in streams {
        if how == How::Reset {
            stream.set_zero_linger().unwrap();
        }
        drop(stream);
    }
}

async fn carry(mut clinch: TcpStream, sink: SocketAddr, seen: Arc<Seen>) {
    clinch.set_nodelay(true).unwrap();
    while let Some((request, _)) = message(&mut clinch).await {
        let head = String::from_utf8_lossy(&request).into_owned();
        let mut words = head.split([' ', '?']);
        let (method, path) = (words.next().unwrap().to_string(), words.next().unwrap());
        let cut: Cut = path.rsplit('/').next().unwrap().parse().unwrap();
        // Events are told apart by their keys, which are in the header of a call and in the question.
        let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: ").map(str::to_string));
        let key = key.or_else(|| head.split(['=', ' ']).nth(2).map(str::to_string)).unwrap();
        let is_first = seen.cut.lock().unwrap().insert((key, method.clone()));
        let cut = match cut {
            _ if !is_first => Cut::Nowhere,
            Cut::Found(_) if method != "GET" => Cut::Answer(0, How::Closed),
            Cut::Found(at) => Cut::Answer(at, How::Closed),
            _ if method == "GET" => Cut::Nowhere,
            cut => cut,
        };
        let mut sink = TcpStream::connect(sink).await.unwrap();
        if let Cut::Request(at, how) = cut
            && at < request.len()
        {
            sink.write_all(&request[..at]).await.unwrap();
            return end(how, [clinch, sink]);
        }
        sink.write_all(&request).await.unwrap();
        let Some((answer, answer_head)) = message(&mut sink).await else { return };
        match cut {
            Cut::Request(_, how) => return end(how, [clinch, sink]),
            Cut::Answer(at, how) if at < answer.len() => {
                let _ = clinch.write_all(&answer[..at]).await;
                return end(how, [clinch, sink]);
            }
            _ => {}
        }
        let lengths = Lengths { request: request.len(), answer_head, answer: answer.len() };
        seen.lengths.lock().unwrap().insert(method, lengths);
        if clinch.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// As the way's own, but over the wire.
fn worker(way: Way, wire: SocketAddr) -> String {
    let Way { name, idempotency, .. } = way;
    let lookup = match idempotency {
        "lookup" => format!(
            ", lookup: {{url: 'http://{wire}/made/{{{{ body.cut }}}}?key={{{{ step.key }}}}', done: 'answer.body.total > 0'}}"
        ),
        _ => String::new(),
    };
    format!(
        "version: 1
name: {name}-worker
consumes: {{queue: {name}}}
concurrency: 32
retry: {{strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 5}}
run:
  - name: charge
    http: {{url: 'http://{wire}/{name}/{{{{ body.cut }}}}', body_from: body, idempotency: {idempotency}{lookup}, timeout: 20s}}
"
    )
}

struct World {
    place: Place,
    wire: Wire,
    server: Server,
    client: reqwest::Client,
}

impl World {
    async fn new() -> World {
        let ways = [AGAIN, ASKED, NATURAL, ONCE];
        let place = Place::new(&ways).await;
        let wire = Wire::to(place.sink.address).await;
        for way in ways {
            place.write(&format!("workers/{}.yml", way.name), &worker(way, wire.address));
        }
        let server = place.start().await;
        World { place, wire, server, client: client() }
    }

    async fn post(&self, way: Way, cut: Cut) -> JobId {
        let event = format!("{}-{cut}", way.name);
        let body = format!(r#"{{"id":"{event}","cut":"{cut}"}}"#);
        let request = self.client.post(self.server.hook(way.name)).header("idempotency-key", event).body(body);
        let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        answer["job_id"].as_str().unwrap().parse().unwrap()
    }

    /// One event for each of these cuts, and what became of each.
    async fn told(self, way: Way, cuts: &[Cut]) -> Vec<(Cut, Told)> {
        let mut jobs = Vec::new();
        for cut in cuts {
            jobs.push((*cut, self.post(way, *cut).await));
        }
        self.place.drained().await;
        self.server.stop().await;
        self.place.verified();
        let books = self.place.books().await;
        let mut calls: HashMap<String, Vec<Call>> = HashMap::new();
        for call in self.place.sink.calls() {
            calls.entry(call.effect.clone()).or_default().push(call);
        }
        let asked = self.place.sink.asked();
        let mut told = Vec::new();
        for (cut, job) in jobs {
            let key = IdempotencyKey::of(job, "charge");
            let calls = calls.get(key.as_str()).map_or(0, Vec::len);
            let asked = asked.iter().filter(|asked| **asked == key.as_str()).count();
            told.push((cut, Told::of(&books.story(job).await, calls, asked)));
        }
        let by_key: usize = told.iter().map(|(_, told)| told.calls).sum();
        // The one that passed to measure the exchange is not among them.
        assert_eq!(self.place.sink.count(), by_key + 1, "no call under another key");
        told
    }
}

/// What the sink and the books say of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    /// Whole requests that reached the sink.
    calls: usize,
    asked: usize,
    outcomes: Vec<String>,
    end: (Word, Option<Reason>),
    ledger: (&'static str, u32),
}

impl Told {
    fn of(story: &JobStory, calls: usize, asked: usize) -> Told {
        Told {
            calls,
            asked,
            outcomes: story.attempts.iter().map(|attempt| attempt.outcome.clone()).collect(),
            end: (story.row.word, story.row.reason),
            ledger: (story.effects[0].state.word(), story.effects[0].sends),
        }
    }

    /// What is right when the first exchange left the effect like this.
    fn right(way: Way, is_made: bool, is_answered: bool) -> Told {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        if is_answered {
            let outcomes = words(&["success"]);
            return Told { calls: 1, asked: 0, outcomes, end: (Word::Success, None), ledger: ("done", 1) };
        }
        let made = usize::from(is_made);
        let again = Told {
            calls: made + 1,
            asked: 0,
            outcomes: words(&["unknown", "success"]),
            end: (Word::Success, None),
            ledger: ("done", 2),
        };
        match way.idempotency {
            "none" => Told {
                calls: made,
                outcomes: words(&["unknown"]),
                end: (Word::Dead, Some(Reason::UnknownOutcome)),
                ledger: ("unknown", 1),
                ..again
            },
            "lookup" => Told { calls: 1, asked: 1, ledger: ("done", 2 - u32::from(is_made)), ..again },
            _ => again,
        }
    }
}

async fn every_byte(way: Way) {
    let world = World::new().await;
    world.post(way, Cut::Nowhere).await;
    world.place.drained().await;
    let lengths = world.wire.lengths("POST");
    let Lengths { request, answer_head, answer } = lengths;
    let hows = [How::Closed, How::Reset];
    let requests = (0..=request).flat_map(|at| hows.map(|how| Cut::Request(at, how)));
    let answers = (0..=answer).flat_map(|at| hows.map(|how| Cut::Answer(at, how)));
    let cuts: Vec<Cut> = requests.chain(answers).collect();
    let told = world.told(way, &cuts).await;
    let mut unknown = 0;
    for (cut, told) in told {
        let about = format!("{} {cut:?} of {lengths:?}", way.idempotency);
        let (unanswered, answered) = (|is_made| Told::right(way, is_made, false), Told::right(way, true, true));
        match cut {
            Cut::Request(at, _) => assert_eq!(told, unanswered(at == request), "{about}"),
            Cut::Answer(at, _) if at < answer_head => assert_eq!(told, unanswered(true), "{about}"),
            // A reset may overtake what came before it.
            Cut::Answer(at, How::Reset) if at < answer && told != answered => {
                assert_eq!(told, unanswered(true), "{about}");
            }
            _ => assert_eq!(told, answered, "{about}"),
        }
        unknown += usize::from(told.outcomes[0] == "unknown");
    }
    eprintln!("{}: {} cuts of {lengths:?}, {unknown} of them left it unknown", way.idempotency, cuts.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_p3_an_exchange_cut_at_any_byte_is_never_repeated_where_that_could_hurt() {
    every_byte(ONCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_p3_an_exchange_cut_at_any_byte_is_made_again_under_the_same_key() {
    every_byte(AGAIN).await;
    every_byte(NATURAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_d2_an_exchange_cut_at_any_byte_is_asked_about_and_made_once() {
    every_byte(ASKED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_d2_an_answer_to_the_question_that_is_cut_at_any_byte_decides_nothing() {
    let world = World::new().await;
    world.post(ASKED, Cut::Nowhere).await;
    // The question of this one passes, and so its length is known.
    world.post(ASKED, Cut::Answer(0, How::Closed)).await;
    world.place.drained().await;
    let lengths = world.wire.lengths("GET");
    let cuts: Vec<Cut> = (0..=lengths.answer).map(Cut::Found).collect();
    let mut jobs = Vec::new();
    for cut in &cuts {
        jobs.push((*cut, world.post(ASKED, *cut).await));
    }
    world.place.drained().await;
    world.server.stop().await;
    let books = world.place.books().await;
    for (cut, job) in jobs {
        let key = IdempotencyKey::of(job, "charge");
        let calls = world.place.sink.calls().iter().filter(|call| call.effect == key.as_str()).count();
        let asked = world.place.sink.asked().iter().filter(|asked| **asked == key.as_str()).count();
        let told = Told::of(&books.story(job).await, calls, asked);
        let is_whole = cut == Cut::Found(lengths.answer);
        assert_eq!((told.calls, told.ledger, told.end.0), (1, ("done", 1), Word::Success), "{cut:?}: {told:?}");
        assert_eq!(told.asked, if is_whole { 1 } else { 2 }, "{cut:?} of {lengths:?}: {told:?}");
    }
    eprintln!("{} cuts of {lengths:?}", cuts.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f19_p3_a_connection_that_ends_as_it_begins_is_sent_again_only_where_nothing_left() {
    for way in [AGAIN, ASKED, NATURAL, ONCE] {
        for how in [How::Closed, How::Reset] {
            let place = Place::new(&[way]).await;
            // The first connection ends before anything is read from it; the rest goes through.
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, sink) = (listener.local_addr().unwrap(), place.sink.address);
            place.write(&format!("workers/{}.yml", way.name), &worker(way, address));
            tokio::spawn(async move {
                let (first, _) = listener.accept().await.unwrap();
                if how == How::Reset {
                    first.set_zero_linger().unwrap();
                }
                drop(first);
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(carry(stream, sink, Arc::default()));
                }
            });
            let server = place.start().await;
            let event = r#"{"id":"e","cut":"no0000"}"#;
            let request = client().post(server.hook(way.name)).header("idempotency-key", "k").body(event);
            let answer: Value = serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
            place.drained().await;
            server.stop().await;
            place.verified();
            let job = answer["job_id"].as_str().unwrap().parse().unwrap();
            let asked = place.sink.asked().len();
            let told = Told::of(&place.books().await.story(job).await, place.sink.count(), asked);
            match told.outcomes[0].as_str() {
                // Not a byte had left: it is sent whatever the partner promises, and nobody is asked.
                "failed" => {
                    let outcomes = vec!["failed".to_string(), "success".into()];
                    let right = Told { calls: 1, asked: 0, outcomes, end: (Word::Success, None), ledger: ("done", 2) };
                    assert_eq!(told, right, "{} {how:?}", way.idempotency);
                }
                _ => assert_eq!(told, Told::right(way, false, false), "{} {how:?}", way.idempotency),
            }
        }
    }
}
