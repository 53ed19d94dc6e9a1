//! What the rooms tell of traces, and how much of it. Where no collector is configured it is one branch and nothing is built; where one is,
//! spans go into a queue with an end: who works never waits for who listens.

use crate::clock::Clock;
use crate::house::House;
use crate::masking::rules;
use crate::names;
use crate::telemetry::Metrics;
use clinch_core::attempt::Outcome;
use clinch_core::id::{EventId, JobId};
use clinch_core::job::Change;
use clinch_core::minimise::HashKey;
use clinch_core::payload::{Payload, TraceId};
use clinch_core::time::Timestamp;
use clinch_core::trace::{self, Asked, AttributeRule, Attributes, By, Called, Context, Done, Question, Rule, Share};
use clinch_core::trace::{Span, SpanId, Story, Tried};
use clinch_store::{Accepted, Claim, NewEvent};
use prometheus_client::metrics::counter::Counter;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// So many spans wait for the collector. What comes when they all do is dropped, and counted.
pub const QUEUE_MAX: usize = 8_192;
/// So many spans of one attempt are told; a list of thousands would leave no room for anybody else.
const OF_ATTEMPT_MAX: usize = 256;

pub struct Tracer(Option<Box<On>>);

struct On {
    queue: mpsc::Sender<Span>,
    share: Share,
    attributes: Vec<AttributeRule>,
    hash_key: HashKey,
    dropped: Counter,
}

impl Tracer {
    /// Nobody listens.
    pub const fn off() -> Tracer {
        Tracer(None)
    }

    /// And what it is told, for who passes it on.
    pub fn on(rule: &Rule, hash_key: HashKey, metrics: &Metrics) -> (Tracer, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let (share, attributes) = (rule.share, rule.attributes.clone());
        let on = On { queue, share, attributes, hash_key, dropped: metrics.spans_dropped.clone() };
        (Tracer(Some(Box::new(on))), spans)
    }

    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the whole of it is recorded.
    pub fn keeps(&self, story: &Story<'_>) -> bool {
        self.0.as_ref().is_some_and(|on| story.is_kept(on.share))
    }

    /// Whether a trace that is about no event is recorded.
    pub fn keeps_alone(&self, trace: TraceId) -> bool {
        self.0.as_ref().is_some_and(|on| on.share.has(trace))
    }

    /// What the next ones are told when their trace goes on outside: recorded here, or where it came from.
    pub fn call(&self, story: &Story<'_>, job: JobId, no: u32, step: &str) -> Context {
        story.call(job, no, step, self.goes_on(story))
    }

    /// The same for a question.
    pub fn question(&self, story: &Story<'_>, span: SpanId) -> Context {
        story.question(span, self.goes_on(story))
    }

    fn goes_on(&self, story: &Story<'_>) -> bool {
        story.within.map_or_else(|| self.keeps(story), Context::is_sampled)
    }

    pub fn tell(&self, span: Span) {
        if let Some(on) = &self.0
            && on.queue.try_send(span).is_err()
        {
            on.dropped.inc();
        }
    }

    /// An event that nobody delivered: a run of a schedule.
    pub fn scheduled(&self, accepted: &Accepted, event: &NewEvent, now: Timestamp) {
        let story = Story { trace: accepted.trace, event: accepted.event, within: None, state: "" };
        if let Some(job) = event.jobs.first().filter(|_| self.keeps(&story)) {
            let times = (event.received_at, now);
            self.tell(trace::creation(&story, By::Schedule, &job.queue, event.jobs.len(), times));
        }
    }

    /// Jobs that a worker took out of its queue together.
    pub fn claimed(&self, clock: &dyn Clock, queue: &str, claims: &[Claim], asked_at: Timestamp) {
        let Some(on) = &self.0 else { return };
        let own = (TraceId::new(asked_at, clock.random()), random_span(clock));
        let payload = |claim: &Claim| claim.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok());
        let read: Vec<_> = claims.iter().filter_map(|claim| Some((claim.event, payload(claim)?))).collect();
        let stories = read.iter().map(|(event, payload)| Story::of(*event, &payload.about));
        let times = (asked_at, clock.now());
        if let Some(span) = trace::claim(own, queue, claims.len(), stories, on.share, times) {
            self.tell(span);
        }
    }

    /// The attempt that begins.
    pub fn attempt(&self, claim: &Claim, payload: &Payload) -> Option<Arc<Spans>> {
        self.spans(&Story::of(claim.event, &payload.about), claim.lease.job, claim.attempts.saturating_add(1))
    }

    /// What a person asks a partner about a job.
    pub fn aside(&self, story: &Story<'_>, job: JobId) -> Option<Arc<Spans>> {
        self.spans(story, job, 0)
    }

    fn spans(&self, story: &Story<'_>, job: JobId, no: u32) -> Option<Arc<Spans>> {
        self.0.as_ref()?;
        Some(Arc::new(Spans {
            trace: story.trace,
            event: story.event,
            within: story.within,
            state: story.state.to_string(),
            job,
            no,
            is_kept: self.keeps(story),
            told: Mutex::default(),
        }))
    }

    /// The person was answered.
    pub fn answered(&self, spans: &Spans) {
        if spans.is_kept {
            spans.take().into_iter().for_each(|span| self.tell(span));
        }
    }

    /// The attempt has ended, and what follows from it is on disk. Of a trace that is not recorded those are told that failed.
    pub fn ended(&self, spans: &Spans, claim: &Claim, ended: Ended<'_>) {
        let Some(on) = &self.0 else { return };
        let Ended { outcome, change, began, ended, settled } = ended;
        let has_failed = matches!(change, Change::Buried { .. } | Change::Retried { .. });
        if !spans.is_kept && !has_failed {
            return;
        }
        let (queue, flow) = (&*claim.queue, &*claim.flow);
        let (job, no, replays, business) = (spans.job, spans.no, claim.replays, on.business(claim));
        let fence = claim.lease.fence;
        let tried = Tried { job, no, fence, replays, queue, flow, outcome, change, began, ended, settled, business };
        trace::attempt(&spans.story(), tried, spans.take()).into_iter().for_each(|span| self.tell(span));
    }

    /// The attempt of a worker that is gone.
    pub fn lost(&self, claim: &Claim, ended: Ended<'_>) {
        if !self.is_on() {
            return;
        }
        let payload = claim.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok());
        if let Some(spans) = payload.and_then(|payload| self.attempt(claim, &payload)) {
            self.ended(&spans, claim, ended);
        }
    }
}

impl On {
    /// What the workspace wants to be told of the event: hashed where it is somebody's own, masked like everything else where not.
    fn business(&self, claim: &Claim) -> Attributes {
        if self.attributes.is_empty() {
            return Vec::new();
        }
        let payload = claim.payload.as_ref().ok().and_then(|stored| Payload::decode(stored).ok());
        let Some(names) = payload.map(|payload| names::of_event(claim.into(), &Arc::new(payload))) else {
            return Vec::new();
        };
        let told = self.attributes.iter().filter_map(|rule| {
            let text = rule.value.text(&names).ok().filter(|text| !text.is_empty())?;
            let value = if rule.is_personal { self.hash_key.hash(text.as_bytes()) } else { rules().text(&text) };
            Some((rule.name.clone().into(), value.into()))
        });
        told.collect()
    }
}

/// How an attempt ended.
pub struct Ended<'a> {
    pub outcome: &'a Outcome,
    pub change: Change,
    pub began: Timestamp,
    pub ended: Timestamp,
    /// When that was on disk.
    pub settled: Timestamp,
}

/// The spans of an attempt that is under way. They are told together, when it has ended.
pub struct Spans {
    trace: TraceId,
    event: EventId,
    within: Option<Context>,
    state: String,
    job: JobId,
    /// 0: outside of any attempt.
    no: u32,
    is_kept: bool,
    told: Mutex<Vec<Span>>,
}

impl Spans {
    fn story(&self) -> Story<'_> {
        Story { trace: self.trace, event: self.event, within: self.within, state: &self.state }
    }

    /// The trace, if all of it is recorded: then it can be shown as an example of something that was measured.
    pub fn example(&self) -> Option<TraceId> {
        self.is_kept.then_some(self.trace)
    }

    fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *self.told.lock().expect("nobody panics while holding the spans"))
    }

    fn add(&self, span: Span) {
        let mut told = self.told.lock().expect("nobody panics while holding the spans");
        if told.len() < OF_ATTEMPT_MAX {
            told.push(span);
        }
    }

    /// One try of an effect, and the request by which it was tried. Of a trace that is not recorded those are told that failed.
    pub fn tried(&self, done: &Done<'_>, called: Option<Called<'_>>) {
        if !self.is_kept && done.error.is_none() {
            return;
        }
        let attempt = (self.job, self.no);
        self.add(trace::effect(&self.story(), attempt, done));
        if let Some(called) = called {
            self.add(trace::call(&self.story(), attempt, done.step, called));
        }
    }

    /// A question to a partner. Of a trace that is not recorded those are told that failed.
    pub fn asked(&self, asking: Asking<'_>, integration: &str, called: Called<'_>) {
        if self.is_kept || called.error().is_some() {
            let Asking { span, step, question, .. } = asking;
            let no = (self.no > 0).then_some(self.no);
            let asked = Asked { span, job: self.job, no, step, integration, question };
            self.add(trace::question(&self.story(), &asked, called));
        }
    }

    /// What people decided, and when they were asked.
    pub fn decided(&self, step: &str, decision: &'static str, asked_at: Timestamp, at: Timestamp) {
        if self.is_kept {
            self.add(trace::approval(&self.story(), self.job, step, decision, (asked_at, at)));
        }
    }

    /// A step made an event, which goes on in the same trace.
    pub fn created(&self, event: EventId, queue: &str, began: Timestamp, ended: Timestamp) {
        if self.is_kept {
            let story = Story { event, ..self.story() };
            let by = By::Attempt(self.story().attempt(self.job, self.no));
            self.add(trace::creation(&story, by, queue, 1, (began, ended)));
        }
    }
}

/// A question that is about to be asked, and where it is told.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub spans: &'a Spans,
    pub span: SpanId,
    pub step: &'a str,
    pub question: Question,
}

/// For a span that nobody else has to find.
pub fn random_span(clock: &dyn Clock) -> SpanId {
    SpanId::of_number((clock.random() >> 64) as u64)
}

/// The trace of a job that somebody did something to, for a line of the log.
pub async fn trace_of(house: &House, job: JobId) -> String {
    let traces = house.store.traces(vec![job]).await.unwrap_or_default();
    traces.get(&job).map_or_else(|| "-".into(), TraceId::to_string)
}
