//! `clinch send`: posts an event to the intake, once or many times, and tells what came back.

use super::Globals;
use super::client::{self, Card, Told};
use super::exit::{Exit, Failure};
use super::render::{self, thousands};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch send signup -d '{\"email\":\"ada@example.com\"}' --key k-1      a flow by its name
  clinch send /hooks/signup -d @event.json --key k-1                  a path of the intake
  clinch send https://hooks.example.com/signup -d - < event.json
  clinch send signup -d '{}' --key 'k-{n}' --times 10000 --concurrency 64
  clinch send signup -d '{}' --key k-1 --times 100                    one event, 99 duplicates")]
pub struct Send {
    /// A flow's name, a path of the intake, or a URL
    target: String,
    /// The body: text, @FILE, or - for standard input
    #[arg(short, long, value_name = "BODY", allow_hyphen_values = true)]
    data: String,
    /// The idempotency key; with --times, {n} stands for the number
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The header that carries the key
    #[arg(long, default_value = "Idempotency-Key", value_name = "NAME")]
    key_header: HeaderName,
    /// How often to send it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000_000), value_name = "N")]
    times: u32,
    /// How many requests at once
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "C")]
    concurrency: u16,
    /// A further header
    #[arg(short = 'H', long = "header", value_parser = header, value_name = "NAME: VALUE")]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The address of the intake; found in the data directory if not given
    #[arg(long, env = "CLINCH_INTAKE", value_name = "URL")]
    intake: Option<String>,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
    let name = name.trim().parse().map_err(|_| format!("`{}` is not a header's name", name.trim()))?;
    let value = value.trim().parse().map_err(|_| "the value has characters that a header cannot have".to_string())?;
    Ok((name, value))
}

/// Everything that one request needs but its number.
struct Letter {
    http: reqwest::Client,
    method: reqwest::Method,
    url: String,
    headers: HeaderMap,
    key: Option<(HeaderName, String)>,
    body: Vec<u8>,
}

/// What came back.
struct Reply {
    took: Duration,
    outcome: Result<Answered, String>,
}

struct Answered {
    status: u16,
    replayed: bool,
    body: Vec<u8>,
}

impl Send {
    pub async fn run(self, globals: &Globals) -> Result<Exit, Failure> {
        let letter = self.letter(globals)?;
        match self.times {
            1 => one(globals, &letter).await,
            times => many(globals, letter, times as usize, usize::from(self.concurrency)).await,
        }
    }

    fn letter(&self, globals: &Globals) -> Result<Letter, Failure> {
        let (method, url) = self.address(globals)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        if let Some(key) = &self.key {
            HeaderValue::from_str(key).map_err(|_| usage("The key has characters that a header cannot have"))?;
        }
        Ok(Letter {
            http: client::http(client::is_local_text(&url))?,
            method,
            url,
            headers,
            key: self.key.clone().map(|key| (self.key_header.clone(), key)),
            body: body(&self.data)?,
        })
    }

    fn address(&self, globals: &Globals) -> Result<(reqwest::Method, String), Failure> {
        if self.target.starts_with("http://") || self.target.starts_with("https://") {
            return Ok((reqwest::Method::POST, self.target.clone()));
        }
        let card = Card::read(globals);
        let routes = card.as_ref().map_or(&[][..], |card| &card.routes);
        let intake = self.intake.clone().or_else(|| card.as_ref()?.intake.clone()).ok_or_else(|| {
            let said = format!("No server is running with the data directory {}", globals.data_dir.display());
            Failure::new(Exit::NotReachable, "CL0520", said)
                .fix("start `clinch serve`, or name the intake with --intake, or send to a whole URL")
        })?;
        let named: Vec<_> =
            routes
                .iter()
                .filter(|route| {
                    if self.target.starts_with('/') { route.path == self.target } else { route.flow == self.target }
                })
                .collect();
        let (method, path) = match named.as_slice() {
            [route] => (route.method.as_str(), route.path.as_str()),
            // The server says what it thinks of a path that is not on its card.
            _ if self.target.starts_with('/') => ("POST", self.target.as_str()),
            [] => {
                let mut flows: Vec<&str> = routes.iter().map(|route| route.flow.as_str()).collect();
                flows.dedup();
                let said = format!("There is no flow `{}`; the flows are {}", self.target, flows.join(", "));
                return Err(Failure::new(Exit::NotFound, "CL0505", said).fix("name a flow, a /path or a URL"));
            }
            several => {
                let paths: Vec<&str> = several.iter().map(|route| route.path.as_str()).collect();
                return Err(usage(&format!("Flow `{}` has several routes: {}", self.target, paths.join(", ")))
                    .fix("name one of its paths"));
            }
        };
        let method = method.parse().map_err(|_| usage(&format!("`{method}` is not a method")))?;
        Ok((method, format!("{}{path}", intake.trim_end_matches('/'))))
    }
}

fn usage(said: &str) -> Failure {
    Failure::new(Exit::Usage, "CL0536", said)
}

fn body(data: &str) -> Result<Vec<u8>, Failure> {
    let unreadable = |what: &str, error: std::io::Error| usage(&format!("{what} cannot be read: {error}"));
    match data.strip_prefix('@') {
        Some(path) => std::fs::read(path).map_err(|error| unreadable(path, error)),
        None if data == "-" => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(|error| unreadable("standard input", error))?;
            Ok(bytes)
        }
        None => Ok(data.as_bytes().to_vec()),
    }
}

impl Letter {
    async fn post(&self, number: usize) -> Reply {
        let began = Instant::now();
        let mut request = self.http.request(self.method.clone(), &self.url).headers(self.headers.clone());
        if let Some((name, key)) = &self.key {
            request = request.header(name, key.replace("{n}", &number.to_string()));
        }
        let sent = async {
            let response = request.body(self.body.clone()).send().await?;
            let status = response.status().as_u16();
            let replayed = response.headers().get("idempotent-replayed").is_some_and(|value| value == "true");
            Ok(Answered { status, replayed, body: response.bytes().await?.to_vec() })
        };
        let outcome = sent.await.map_err(|error: reqwest::Error| client::cause(&error));
        Reply { took: began.elapsed(), outcome }
    }
}

impl Answered {
    fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// What the intake says about a refusal.
    fn said(&self) -> String {
        let told: Told = serde_json::from_slice(&self.body).unwrap_or_default();
        match told.title.as_str() {
            "" => format!("answered {}", self.status),
            title => format!("answered {}: {title}. {}", self.status, told.detail),
        }
    }
}

async fn one(globals: &Globals, letter: &Letter) -> Result<Exit, Failure> {
    let reply = letter.post(1).await;
    let answered = reply.outcome.map_err(|why| {
        Failure::new(Exit::NotReachable, "CL0520", format!("{} does not answer: {why}", letter.url))
            .fix("start `clinch serve`, or name the intake with --intake")
    })?;
    if !answered.is_success() {
        // The key is known with another body.
        let exit = if answered.status == 422 { Exit::Conflict } else { Exit::Failed };
        return Err(Failure::new(exit, "CL0524", format!("{} {}", letter.url, answered.said())));
    }
    let said: Value = serde_json::from_slice(&answered.body).unwrap_or_default();
    let id = |name: &str| said[name].as_str().map(render::clean);
    let (event, job) = (id("event_id"), id("job_id"));
    let document = json!({
        "schema": "clinch.send/v1",
        "status": answered.status,
        "replayed": answered.replayed,
        "event_id": event,
        "job_id": job,
        "seconds": reply.took.as_secs_f64(),
    });
    let shown = job.clone().unwrap_or_default();
    render::show(globals.output(), &document, &shown, || {
        let (event, took) = (event.unwrap_or_default(), reply.took.as_millis());
        match answered.replayed {
            false => format!("{} accepted  {event}  {shown}  {took} ms", answered.status),
            true => format!("{} duplicate of {event}  {shown}  {took} ms  nothing repeated", answered.status),
        }
    })?;
    if let Some(job) = job {
        render::next(globals.output(), &format!("clinch jobs show {job}"));
    }
    Ok(Exit::Done)
}

async fn many(globals: &Globals, letter: Letter, times: usize, concurrency: usize) -> Result<Exit, Failure> {
    let letter = Arc::new(letter);
    let next = Arc::new(AtomicUsize::new(1));
    let bar = bar(times);
    let began = Instant::now();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..concurrency.min(times) {
        let (letter, next, bar) = (letter.clone(), next.clone(), bar.clone());
        senders.spawn(async move {
            let mut tally = Tally::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number > times {
                    return tally;
                }
                tally.count(letter.post(number).await);
                bar.inc(1);
            }
        });
    }
    let mut tally = Tally::default();
    while let Some(part) = senders.join_next().await {
        tally.merge(part.expect("a sender does not panic"));
    }
    bar.finish_and_clear();
    tally.took.sort_unstable();
    let elapsed = began.elapsed();
    render::show(globals.output(), &tally.document(elapsed), "", || tally.text(elapsed))?;
    match &tally.complaint {
        None => Ok(Exit::Done),
        Some(first) => {
            let said =
                format!("{} of {} failed; the first: {first}", thousands(tally.failed as u64), thousands(times as u64));
            let exit = if tally.by_status.is_empty() { Exit::NotReachable } else { Exit::Failed };
            Err(Failure::new(exit, "CL0524", said))
        }
    }
}

fn bar(times: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:26.cyan/dim} {pos}/{len}  {per_sec}  {eta}");
    ProgressBar::new(times as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// What came back from many.
#[derive(Default)]
struct Tally {
    by_status: BTreeMap<u16, usize>,
    accepted: usize,
    duplicates: usize,
    failed: usize,
    no_answer: usize,
    took: Vec<Duration>,
    complaint: Option<String>,
}

impl Tally {
    fn count(&mut self, reply: Reply) {
        self.took.push(reply.took);
        match reply.outcome {
            Err(why) => {
                self.failed += 1;
                self.no_answer += 1;
                self.complaint.get_or_insert(format!("no answer: {why}"));
            }
            Ok(answered) => {
                *self.by_status.entry(answered.status).or_default() += 1;
                match (answered.is_success(), answered.replayed) {
                    (true, false) => self.accepted += 1,
                    (true, true) => self.duplicates += 1,
                    (false, _) => {
                        self.failed += 1;
                        self.complaint.get_or_insert_with(|| answered.said());
                    }
                }
            }
        }
    }

    fn merge(&mut self, other: Tally) {
        for (status, times) in other.by_status {
            *self.by_status.entry(status).or_default() += times;
        }
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.failed += other.failed;
        self.no_answer += other.no_answer;
        self.took.extend(other.took);
        self.complaint = self.complaint.take().or(other.complaint);
    }

    /// The smallest time that this share of all does not exceed; `took` is sorted by now.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.took.len() * percent).div_ceil(100).max(1);
        self.took.get(rank - 1).copied().unwrap_or_default()
    }

    fn document(&self, elapsed: Duration) -> Value {
        json!({
            "schema": "clinch.send.summary/v1",
            "sent": self.took.len(),
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "failed": self.failed,
            "no_answer": self.no_answer,
            "by_status": self.by_status.iter().map(|(status, times)| (status.to_string(), json!(times))).collect::<serde_json::Map<_, _>>(),
            "seconds": elapsed.as_secs_f64(),
            "p50_seconds": self.percentile(50).as_secs_f64(),
            "p99_seconds": self.percentile(99).as_secs_f64(),
        })
    }

    fn text(&self, elapsed: Duration) -> String {
        let number = |number: usize| thousands(number as u64);
        let rate = self.took.len() as f64 / elapsed.as_secs_f64().max(1e-9);
        let millis = |span: Duration| format!("{:.1} ms", span.as_secs_f64() * 1e3);
        let statuses = self.by_status.iter().map(|(status, times)| format!("{status}: {}", number(*times)));
        let silent = (self.no_answer > 0).then(|| format!("no answer: {}", number(self.no_answer)));
        let answers: Vec<String> = statuses.chain(silent).collect();
        format!(
            "{} sent in {:.1} s ({}/s)   {} accepted, {} duplicates, {} failed\nanswers  {}\nlatency  p50 {}   p99 {}   max {}\n",
            number(self.took.len()),
            elapsed.as_secs_f64(),
            number(rate as usize),
            number(self.accepted),
            number(self.duplicates),
            number(self.failed),
            answers.join("   "),
            millis(self.percentile(50)),
            millis(self.percentile(99)),
            millis(self.percentile(100)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, replayed: bool) -> Reply {
        Reply { took: Duration::from_millis(2), outcome: Ok(Answered { status, replayed, body: Vec::new() }) }
    }

    #[test]
    fn many_replies_are_told_by_what_they_mean() {
        let mut tally = Tally::default();
        tally.count(reply(202, false));
        tally.count(reply(202, true));
        let mut other = Tally::default();
        other.count(reply(503, false));
        other.count(Reply { took: Duration::from_millis(9), outcome: Err("refused".into()) });
        tally.merge(other);
        tally.took.sort_unstable();
        assert_eq!((tally.accepted, tally.duplicates, tally.failed), (1, 1, 2));
        let text = tally.text(Duration::from_secs(2));
        assert!(text.starts_with("4 sent in 2.0 s (2/s)   1 accepted, 1 duplicates, 2 failed\n"), "{text}");
        assert!(text.contains("answers  202: 2   503: 1   no answer: 1\n"), "{text}");
        assert!(text.contains("p50 2.0 ms   p99 9.0 ms"), "{text}");
        assert_eq!(tally.document(Duration::from_secs(2))["by_status"]["202"], 2);
        assert_eq!(tally.complaint.as_deref(), Some("answered 503"));
    }

    #[test]
    fn a_header_is_read_as_it_is_written() {
        let (name, value) = header("X-Topic:  orders/create ").expect("fine");
        assert_eq!((name.as_str(), value.to_str().expect("text")), ("x-topic", "orders/create"));
        for bad in ["no colon", "bad name: x", "X: \u{1}"] {
            assert!(header(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_is_text_or_a_file() {
        assert_eq!(body("{}").expect("text"), b"{}");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("event.json");
        std::fs::write(&path, "[1]").expect("written");
        assert_eq!(body(&format!("@{}", path.display())).expect("a file"), b"[1]");
        assert!(body("@/does/not/exist").is_err());
    }
}
