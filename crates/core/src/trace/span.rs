//! The spans of a trace: what each of them says, whose child it is, and what it is linked to.

use super::*;

/// Texts of spans are cut at so many characters.
const TEXT_CHARS_MAX: usize = 512;
/// A claim is linked to so many of its messages: as many as collectors keep of a span unless told otherwise.
pub const CLAIM_LINKS_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal,
    Server,
    Client,
    Producer,
    Consumer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Cow<'static, str>),
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        match text.char_indices().nth(TEXT_CHARS_MAX) {
            Some((end, _)) => Value::Text(text[..end].to_string().into()),
            None => Value::Text(text.into()),
        }
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Value {
        Value::Number(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

pub type Attributes = Vec<(Cow<'static, str>, Value)>;

/// Something that happened in a span and took no time.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    pub at: Timestamp,
    pub name: &'static str,
    pub attributes: Attributes,
}

/// A part of a trace, as collectors are told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: Context,
    pub parent: Option<SpanId>,
    pub state: String,
    pub name: String,
    pub kind: Kind,
    pub began: Timestamp,
    pub ended: Timestamp,
    /// It failed, in this word of a fixed list, or with this status.
    pub error: Option<Cow<'static, str>>,
    pub attributes: Attributes,
    pub moments: Vec<Moment>,
    pub links: Vec<Context>,
}

impl Span {
    fn new(story: &Story<'_>, span: SpanId, kind: Kind, name: String, times: (Timestamp, Timestamp)) -> Span {
        let (parent, state) = (Some(story.creation()), story.state.to_string());
        Span { parent, state, ..Span::root(story.context(span, true), kind, name, times) }
    }

    fn root(context: Context, kind: Kind, name: String, (began, ended): (Timestamp, Timestamp)) -> Span {
        Span {
            context,
            parent: None,
            state: String::new(),
            name,
            kind,
            began,
            ended: ended.max(began),
            error: None,
            attributes: Vec::with_capacity(12),
            moments: Vec::new(),
            links: Vec::new(),
        }
    }

    fn tell(&mut self, name: &'static str, value: impl Into<Value>) {
        self.attributes.push((name.into(), value.into()));
    }

    fn fail(&mut self, error: impl Into<Cow<'static, str>>) {
        let error = error.into();
        self.attributes.push(("error.type".into(), Value::Text(error.clone())));
        self.error = Some(error);
    }

    fn operation(&mut self, operation: &'static str, kind: &'static str, queue: &str) {
        self.tell("messaging.system", "clinch");
        self.tell("messaging.operation.name", operation);
        self.tell("messaging.operation.type", kind);
        self.tell("messaging.destination.name", queue.to_string());
    }

    fn message(&mut self, operation: &'static str, kind: &'static str, queue: &str, event: EventId) {
        self.operation(operation, kind, queue);
        self.tell("messaging.message.id", event.to_string());
    }
}

/// A request at the door, as far as it may be told: no body, no query, and masked where somebody can be recognised.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: &'static str,
    /// `None`: nothing here has this path.
    pub route: Option<String>,
    pub scheme: &'static str,
    pub protocol: &'static str,
    pub client: String,
    pub agent: Option<String>,
    pub status: u16,
    pub began: Timestamp,
    pub ended: Timestamp,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub enum Came<'a> {
    /// This event, and perhaps others.
    Fresh(Story<'a>),
    /// Of an event that was there already; the span is one of many.
    Again(Story<'a>, SpanId),
    /// No event: it was refused, or asked for none.
    Alone(TraceId, SpanId),
}

/// The delivery: the root of a trace, or within the sender's. `remote` is what the request said, where it is not ignored.
pub fn delivery(request: Request, came: Came<'_>, remote: Option<Context>) -> Span {
    let (trace, span, parent, state) = match came {
        Came::Fresh(story) => (story.trace, story.delivery(), story.within.map(|sender| sender.span), story.state),
        Came::Again(story, span) => (story.trace, span, Some(story.creation()), story.state),
        Came::Alone(trace, span) => (trace, span, None, ""),
    };
    let route = request.route.clone().unwrap_or_default();
    let context = Context { trace, span, flags: SAMPLED | RANDOM };
    let name = if route.is_empty() { request.method.to_string() } else { format!("{} {route}", request.method) };
    let bare = Span::root(context, Kind::Server, name, (request.began, request.ended));
    let mut told = Span { parent, state: state.to_string(), ..bare };
    if let Came::Again(story, _) = came {
        told.links.push(story.context(story.creation(), true));
    }
    told.links.extend(remote.filter(|sender| told.parent != Some(sender.span)));
    told.tell("http.request.method", request.method);
    told.tell("url.scheme", request.scheme);
    if !route.is_empty() {
        told.tell("url.path", route.clone());
        told.tell("http.route", route);
    }
    told.tell("http.response.status_code", u32::from(request.status));
    told.tell("network.protocol.version", request.protocol);
    told.tell("client.address", request.client);
    if let Some(agent) = request.agent {
        told.tell("user_agent.original", agent);
    }
    if let Came::Fresh(story) | Came::Again(story, _) = came {
        told.tell("messaging.message.id", story.event.to_string());
    }
    // What a sender does wrong is no failure of ours.
    if request.status >= 500 {
        told.fail(request.status.to_string());
    }
    told
}

/// How an event came to be.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// A delivery, alone.
    Delivery,
    /// One delivery that had several events: the others are linked to it.
    With(Context),
    /// A step of a job, in this attempt.
    Attempt(SpanId),
    /// Nobody: the clock.
    Schedule,
}

/// The event came to be, with so many jobs, the first of them in this queue.
pub fn creation(story: &Story<'_>, by: By, queue: &str, jobs: usize, at: (Timestamp, Timestamp)) -> Span {
    let mut span = Span::new(story, story.creation(), Kind::Producer, format!("send {queue}"), at);
    span.parent = match by {
        By::Delivery => Some(story.delivery()),
        By::With(first) if first.trace == story.trace => Some(first.span),
        By::Attempt(attempt) => Some(attempt),
        By::With(_) | By::Schedule => None,
    };
    if let By::With(first) = by {
        span.links.push(first);
    }
    span.message("send", "send", queue, story.event);
    if jobs > 1 {
        span.tell("clinch.jobs", jobs);
    }
    span
}

/// A worker took so many jobs out of its queue together: a root of its own, linked to the events that they are of. Only those are linked
/// that are recorded; where none of them is, there is nothing to tell.
pub fn claim<'a>(
    (trace, span): (TraceId, SpanId),
    queue: &str,
    messages: usize,
    of: impl IntoIterator<Item = Story<'a>>,
    share: Share,
    at: (Timestamp, Timestamp),
) -> Option<Span> {
    let kept = of.into_iter().filter(|story| story.is_kept(share)).take(CLAIM_LINKS_MAX);
    let links: Vec<Context> = kept.map(|story| story.context(story.creation(), true)).collect();
    if links.is_empty() {
        return None;
    }
    let context = Context { trace, span, flags: SAMPLED | RANDOM };
    let mut span = Span { links, ..Span::root(context, Kind::Client, format!("receive {queue}"), at) };
    span.operation("receive", "receive", queue);
    span.tell("messaging.batch.message_count", messages);
    Some(span)
}

/// One attempt of a job.
pub struct Tried<'a> {
    pub job: JobId,
    pub no: u32,
    pub fence: Fence,
    pub replays: u32,
    pub queue: &'a str,
    pub flow: &'a str,
    pub outcome: &'a Outcome,
    pub change: Change,
    pub began: Timestamp,
    pub ended: Timestamp,
    /// When what follows was on disk.
    pub settled: Timestamp,
    pub business: Attributes,
}

/// The attempt, the writing down of how it ended, and what was done in it.
pub fn attempt(story: &Story<'_>, tried: Tried<'_>, mut done: Vec<Span>) -> Vec<Span> {
    let Tried { job, no, queue, outcome, .. } = tried;
    // Who only has to wait has not used up the attempt: it goes on later, under the same number.
    let goes_on = matches!(tried.change, Change::PutOff { .. }) && !outcome.is_charged();
    let whole = story.attempt(job, no);
    let own = if goes_on { story.run(job, tried.fence) } else { whole };
    done.iter_mut().filter(|span| span.parent == Some(whole)).for_each(|span| span.parent = Some(own));
    let times = (tried.began, tried.settled);
    let mut span = Span::new(story, own, Kind::Consumer, format!("process {queue}"), times);
    span.links.push(story.context(story.creation(), true));
    if no > 1 {
        span.links.push(story.context(story.attempt(job, no - 1), true));
    }
    span.message("process", "process", queue, story.event);
    span.tell("clinch.job.id", job.to_string());
    span.tell("clinch.flow", tried.flow.to_string());
    span.tell("clinch.attempt", no);
    span.tell("clinch.replay", tried.replays);
    span.tell("clinch.outcome", outcome.word());
    span.attributes.extend(tried.business);
    if let Outcome::PutOff { until, waits } = outcome {
        let attributes =
            vec![("clinch.waits_for".into(), waits.word().into()), ("clinch.until".into(), until.to_string().into())];
        span.moments.push(Moment { at: tried.ended, name: "clinch.waits", attributes });
    }
    let is_failure = !matches!(outcome, Outcome::Declined(_));
    if let Some(failure) = outcome.failure().filter(|_| is_failure) {
        span.fail(failure.reason.word());
    }
    let word = match tried.change {
        Change::Finished { .. } => "ack",
        Change::Buried { .. } => "dead_letter",
        _ => "nack",
    };
    let mut settling =
        Span::new(story, story.settling(own), Kind::Client, format!("{word} {queue}"), (tried.ended, tried.settled));
    settling.parent = Some(own);
    settling.message(word, "settle", queue, story.event);
    done.extend([span, settling]);
    done
}

/// One try of an effect.
pub struct Done<'a> {
    pub step: &'a str,
    pub key: &'a str,
    pub integration: &'a str,
    /// done, not_done, unknown
    pub outcome: &'static str,
    /// The word of what went wrong.
    pub error: Option<&'static str>,
    pub began: Timestamp,
    pub ended: Timestamp,
}

/// `no` is the number of the job's attempt.
pub fn effect(story: &Story<'_>, (job, no): (JobId, u32), done: &Done<'_>) -> Span {
    let own = story.effect(job, no, done.step);
    let mut span = Span::new(story, own, Kind::Internal, format!("effect {}", done.step), (done.began, done.ended));
    span.parent = Some(story.attempt(job, no));
    span.tell("clinch.effect.name", done.step.to_string());
    span.tell("clinch.effect.key", done.key.to_string());
    span.tell("clinch.effect.outcome", done.outcome);
    span.tell("clinch.integration", done.integration.to_string());
    if let Some(error) = done.error {
        span.fail(error);
    }
    span
}

/// The request by which an effect was tried, or by which a partner was asked.
pub struct Called<'a> {
    pub method: &'a str,
    /// Without what nobody may see of it.
    pub url: String,
    pub server: &'a str,
    pub port: u16,
    /// What the target answered, or in a word why it did not.
    pub answer: Result<u16, &'static str>,
    /// How often it was sent before.
    pub before: u32,
    pub began: Timestamp,
    pub ended: Timestamp,
}

impl Called<'_> {
    /// The status of an answer that is none of success, or the word.
    pub fn error(&self) -> Option<Cow<'static, str>> {
        match self.answer {
            Ok(status) => (status >= 400).then(|| status.to_string().into()),
            Err(why) => Some(why.into()),
        }
    }

    fn span(self, story: &Story<'_>, own: SpanId, parent: SpanId) -> Span {
        let mut span = Span::new(story, own, Kind::Client, self.method.to_string(), (self.began, self.ended));
        let error = self.error();
        span.parent = Some(parent);
        span.tell("http.request.method", self.method.to_string());
        span.tell("server.address", self.server.to_string());
        span.tell("server.port", u32::from(self.port));
        span.tell("url.full", self.url);
        if self.before > 0 {
            span.tell("http.request.resend_count", self.before);
        }
        if let Ok(status) = self.answer {
            span.tell("http.response.status_code", u32::from(status));
        }
        if let Some(error) = error {
            span.fail(error);
        }
        span
    }
}

/// The request of an effect.
pub fn call(story: &Story<'_>, (job, no): (JobId, u32), step: &str, called: Called<'_>) -> Span {
    let own = story.call(job, no, step, true).span;
    called.span(story, own, story.effect(job, no, step))
}

/// Why a partner is asked something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether an effect was done whose answer was lost.
    Lookup,
    /// Whether a contact has agreed.
    Consent,
}

impl Question {
    pub const fn word(self) -> &'static str {
        match self {
            Question::Lookup => "lookup",
            Question::Consent => "consent",
        }
    }
}

/// A partner was asked, and nothing was changed there.
pub struct Asked<'a> {
    pub span: SpanId,
    pub job: JobId,
    /// The attempt in which it was asked; `None`: a person wanted to know.
    pub no: Option<u32>,
    pub step: &'a str,
    pub integration: &'a str,
    pub question: Question,
}

/// The request of a question: a child of its attempt, since there may be no effect in it.
pub fn question(story: &Story<'_>, asked: &Asked<'_>, called: Called<'_>) -> Span {
    let parent = asked.no.map_or_else(|| story.creation(), |no| story.attempt(asked.job, no));
    let mut span = called.span(story, asked.span, parent);
    span.tell("clinch.question", asked.question.word());
    span.tell("clinch.effect.name", asked.step.to_string());
    span.tell("clinch.integration", asked.integration.to_string());
    span
}

/// People were asked at the one time and had decided at the other.
pub fn approval(story: &Story<'_>, job: JobId, step: &str, decision: &'static str, at: (Timestamp, Timestamp)) -> Span {
    let own = story.approval(job, step, at.0);
    let mut span = Span::new(story, own, Kind::Internal, format!("approval {step}"), at);
    span.links.push(story.context(story.creation(), true));
    span.tell("clinch.job.id", job.to_string());
    span.tell("clinch.approval.step", step.to_string());
    span.tell("clinch.approval.decision", decision);
    span
}

/// A URL without what could be a secret or somebody's data: user, password, the values of its query, the fragment; and its path as
/// people may see it.
pub fn redacted(url: &str, mask: impl Fn(&str) -> String) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    let mut told = String::with_capacity(url.len());
    let (scheme, rest) = place.split_once("://").unwrap_or(("", place));
    if !scheme.is_empty() {
        told.push_str(scheme);
        told.push_str("://");
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => {
            told.push_str("REDACTED:REDACTED@");
            told.push_str(host);
        }
        None => told.push_str(authority),
    }
    told.push_str(&mask(path));
    for (place, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        told.push(if place == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((name, _)) => {
                told.push_str(name);
                told.push_str("=REDACTED");
            }
            // Nobody can tell whether it is a name.
            None if pair.is_empty() => {}
            None => told.push_str("REDACTED"),
        }
    }
    told
}
