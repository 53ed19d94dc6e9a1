//! `clinch send`: posts an event to the intake as its sender would, once or many times, and tells what came back.

use super::Globals;
use super::client::{self, Card, Client, Told};
use super::exit::{Exit, Failure};
use super::render::{self, thousands};
use super::replay;
use crate::letters;
use crate::secrets::Secrets;
use crate::stand_ins::{CONTROL_HEADER, secrets::made_up};
use crate::workspace::read_files;
use clap::Args;
use clinch_core::config::{self, Workspace};
use clinch_core::id::JobId;
use clinch_core::source::Source;
use clinch_core::time::parse_duration;
use clinch_core::trial::{self as core, LetterBody, Signature, set_field};
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use url::Url;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch send signup -d '{\"email\":\"ada@example.com\"}' --key k-1      a flow by its name
  clinch send /hooks/signup -d @event.json --key k-1                  a path of the intake
  clinch send https://hooks.example.com/signup -d - < event.json
  clinch send leads --fixture lead --set email=ada@example.com --wait    fixtures/lead.json of the workspace, signed
  clinch send leads --fixture lead --chaos crm=500:2                  with `serve --dev`: the CRM fails twice
  clinch send signup -d '{}' --key 'k-{n}' --times 10000 --concurrency 64
  clinch send signup -d '{}' --key k-1 --times 100                    one event, 99 duplicates")]
pub struct Send {
    /// A flow's or a source's name, a path of the intake, or a URL
    target: String,
    /// The body: text, @FILE, or - for standard input
    #[arg(short, long, value_name = "BODY", allow_hyphen_values = true, required_unless_present = "fixture")]
    data: Option<String>,
    /// The body is fixtures/NAME.json of the workspace, its headers fixtures/NAME.headers
    #[arg(long, value_name = "NAME", conflicts_with = "data")]
    fixture: Option<String>,
    /// A field of the body that is different: a.b=VALUE, where VALUE is JSON or a text
    #[arg(long = "set", value_parser = field, value_name = "FIELD=VALUE")]
    fields: Vec<(String, Value)>,
    /// The idempotency key, where the flow or the provider looks for it; with --times, {n} stands for the number
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// The header that carries the key, if it is not where the workspace says
    #[arg(long, value_name = "NAME")]
    key_header: Option<HeaderName>,
    /// Sign it with a secret that the sender does not have
    #[arg(long)]
    bad_signature: bool,
    /// Wait until its job has ended, at most this long
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// With `serve --dev`: what the stand-in of an integration answers next, and how often
    #[arg(long, value_parser = chaos, value_name = "INTEGRATION=STATUS[:TIMES]")]
    chaos: Vec<(String, Vec<u16>)>,
    /// Where fixtures and the ways to sign are; the workspace of the running server if not given
    #[arg(long, env = "CLINCH_WORKSPACE", value_name = "DIR")]
    workspace: Option<PathBuf>,
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

/// `a.b=VALUE`: JSON where it is JSON, else a text.
fn field(text: &str) -> Result<(String, Value), String> {
    let (path, value) = text.split_once('=').ok_or("write it as FIELD=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_string()));
    Ok((path.to_string(), value))
}

/// `crm=500:2`: twice 500.
fn chaos(text: &str) -> Result<(String, Vec<u16>), String> {
    const TIMES_MAX: usize = 1_000;
    let shape = || format!("`{text}` is not like crm=500 or crm=500:2");
    let (name, answer) = text.split_once('=').ok_or_else(shape)?;
    let (status, times) = answer.split_once(':').unwrap_or((answer, "1"));
    let status = status.parse().ok().filter(|status| (200..=599).contains(status)).ok_or_else(shape)?;
    let times = times.parse().ok().filter(|times| (1..=TIMES_MAX).contains(times)).ok_or_else(shape)?;
    Ok((name.to_string(), vec![status; times]))
}

/// A word as a shell reads it back.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
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

/// The workspace of the server that a letter is for, and how its senders sign.
struct Home {
    directory: PathBuf,
    workspace: Workspace,
    /// With `serve --dev`, secrets that nobody gave are made up.
    made_up: BTreeMap<String, String>,
}

impl Home {
    fn secret(&self, name: &str) -> Option<String> {
        let given = Secrets::read([name], |_| None).ok().and_then(|secrets| secrets.get(name));
        given.or_else(|| self.made_up.get(name).cloned())
    }
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
        if !self.chaos.is_empty() {
            upset(globals, &self.chaos).await?;
        }
        match self.times {
            1 => one(globals, &letter, self.wait).await,
            times => many(globals, letter, times as usize, usize::from(self.concurrency)).await,
        }
    }

    fn letter(&self, globals: &Globals) -> Result<Letter, Failure> {
        let (method, url) = self.address(globals)?;
        if let Some(key) = &self.key {
            HeaderValue::from_str(key).map_err(|_| usage("The key has characters that a header cannot have"))?;
        }
        let path = Url::parse(&url).map_or_else(|_| String::new(), |url| url.path().to_string());
        let home = self.home(globals)?;
        let written = match &home {
            Some(home) if letters::door(&home.workspace, &path).is_ok() => self.written(home, path)?,
            _ => {
                let at = home.as_ref().map_or(Path::new("."), |home| &home.directory);
                self.unsigned(at)?
            }
        };
        let (mut headers, key, body) = written;
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        Ok(Letter { http: client::http(client::is_local_text(&url))?, method, url, headers, key, body })
    }

    /// The workspace that says how senders sign, and has the fixtures. Only who names it must have it.
    fn home(&self, globals: &Globals) -> Result<Option<Home>, Failure> {
        let card = Card::read(globals);
        let directory = match (&self.workspace, card.as_ref().and_then(|card| card.workspace.as_ref())) {
            (Some(named), _) => named.clone(),
            (None, Some(served)) => served.clone(),
            (None, None) => PathBuf::from("."),
        };
        let files = read_files(&directory).ok().filter(|files| !files.0.is_empty());
        let Some((workspace, _)) = files.and_then(|files| config::load(&files).ok()) else {
            return match &self.workspace {
                Some(_) => Err(usage(&format!("There is no workspace in {}", directory.display()))),
                None => Ok(None),
            };
        };
        let is_dev = card.is_some_and(|card| card.stand_ins.is_some());
        let made_up = if is_dev { made_up(&workspace) } else { BTreeMap::new() };
        Ok(Some(Home { directory, workspace, made_up }))
    }

    fn content(&self) -> Result<LetterBody, Failure> {
        match (&self.fixture, &self.data) {
            (Some(fixture), _) => Ok(LetterBody::Fixture(fixture.clone())),
            (None, Some(data)) => Ok(LetterBody::Raw(body(data)?)),
            (None, None) => Ok(LetterBody::Value(Value::Null)),
        }
    }

    /// As its sender would write it, signed if we have what it signs with.
    fn written(&self, home: &Home, path: String) -> Result<Written, Failure> {
        let source = home.workspace.sources.iter().find(|source| source.path == path);
        let secret = source.and_then(Source::signature).and_then(|rule| rule.secrets.first());
        let has_own = source.is_some_and(|source| {
            source.signature().is_some_and(|rule| {
                let named = rule.scheme.headers();
                named.first().is_some_and(|name| self.headers.iter().any(|(given, _)| given.as_str() == name))
            })
        });
        let signature = match secret.map(|secret| (secret, home.secret(&secret.variable))) {
            _ if has_own => Signature::None,
            Some((_, Some(_))) if self.bad_signature => Signature::Wrong,
            Some((_, Some(_))) => Signature::Right,
            Some((secret, None)) => {
                render::note(&format!("it is not signed: {} is not set here", secret.variable));
                Signature::None
            }
            None => Signature::None,
        };
        let own_key = self.key.clone().filter(|_| self.key_header.is_none());
        let letter = core::Letter {
            to: path,
            body: self.content()?,
            set: self.fields.clone(),
            // A number that is put into it later can only be in a header that nobody signs.
            key: own_key,
            headers: Vec::new(),
            times: 1,
            signature,
        };
        let post = letters::post(&home.workspace, &home.directory, &letter, |name| home.secret(name), render::now());
        let post = post.map_err(|said| usage(&said))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &post.headers {
            let (name, value) = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
            let (Ok(name), Ok(value)) = (name, value) else {
                return Err(usage("A header has characters that headers cannot have"));
            };
            headers.insert(name, value);
        }
        let mut key = self.key_header.clone().zip(self.key.clone());
        if self.times > 1
            && let Some(wanted) = &letter.key
            && let Some(name) = headers.iter().find(|(_, value)| *value == wanted).map(|(name, _)| name.clone())
        {
            headers.remove(&name);
            key = Some((name, wanted.clone()));
        }
        Ok((headers, key, post.body))
    }

    /// To an address that no workspace here knows.
    fn unsigned(&self, directory: &Path) -> Result<Written, Failure> {
        if self.bad_signature {
            return Err(usage("Nothing says how to sign for this address").fix("name the workspace with --workspace"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key_header = self.key_header.clone().unwrap_or(HeaderName::from_static("idempotency-key"));
        let body = match self.content()? {
            LetterBody::Raw(bytes) if self.fields.is_empty() => bytes,
            LetterBody::Raw(bytes) => changed(serde_json::from_slice(&bytes).unwrap_or_default(), &self.fields)?,
            LetterBody::Fixture(name) => {
                changed(letters::fixture(directory, &name).map_err(|said| usage(&said))?, &self.fields)?
            }
            LetterBody::Value(value) => changed(value, &self.fields)?,
        };
        Ok((headers, self.key.clone().map(|key| (key_header, key)), body))
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

/// Headers, the key that numbers may be put into, and the body.
type Written = (HeaderMap, Option<(HeaderName, String)>, Vec<u8>);

fn changed(mut body: Value, fields: &[(String, Value)]) -> Result<Vec<u8>, Failure> {
    for (path, value) in fields {
        if !set_field(&mut body, path, value.clone()) {
            return Err(usage(&format!("`{path}` cannot be set in this body")));
        }
    }
    Ok(body.to_string().into_bytes())
}

/// Tells the stand-ins of a server in dev mode what to answer next.
async fn upset(globals: &Globals, asked: &[(String, Vec<u16>)]) -> Result<(), Failure> {
    let Some(at) = Card::read(globals).and_then(|card| card.stand_ins) else {
        return Err(Failure::new(
            Exit::Refused,
            "CL0554",
            "Nobody can be told to fail: partners are called for real here",
        )
        .fix("start the server with `clinch serve --dev`, in which stand-ins are called"));
    };
    let mut answers: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for (name, statuses) in asked {
        answers.entry(name).or_default().extend(statuses);
    }
    let request = client::http(true)?.post(format!("{at}/answers")).header(CONTROL_HEADER, "1").json(&answers);
    let answer = request.send().await.map_err(|error| {
        Failure::new(
            Exit::NotReachable,
            "CL0520",
            format!("The stand-ins at {at} do not answer: {}", client::cause(&error)),
        )
    })?;
    let known: Value = answer.json().await.unwrap_or_default();
    let known: Vec<&str> = known["stand_ins"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match asked.iter().find(|(name, _)| !known.contains(&name.as_str()) && !name.contains('.')) {
        None => Ok(()),
        Some((name, _)) => {
            let said = format!("There is no integration `{name}`; there are: {}", known.join(", "));
            Err(Failure::new(Exit::NotFound, "CL0505", said))
        }
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

async fn one(globals: &Globals, letter: &Letter, wait: Option<Duration>) -> Result<Exit, Failure> {
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
    let sentence = || {
        let (event, took) = (event.clone().unwrap_or_default(), reply.took.as_millis());
        match answered.replayed {
            false => format!("{} accepted  {event}  {shown}  {took} ms", answered.status),
            true => format!("{} duplicate of {event}  {shown}  {took} ms  nothing repeated", answered.status),
        }
    };
    if let (Some(wait), Some(id)) = (wait, job.as_ref().and_then(|job| job.parse::<JobId>().ok())) {
        render::note(&sentence());
        let ended = replay::ended(&Client::open(globals)?, globals.output(), id, wait, "").await;
        if ended.is_ok() {
            render::next(globals.output(), &format!("clinch jobs show {id}"));
        }
        return ended;
    }
    render::show(globals.output(), &document, &shown, sentence)?;
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
