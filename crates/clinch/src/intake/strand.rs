//! In which trace a delivery is, and what it leaves behind there.

use crate::house::House;
use crate::masking::rules;
use crate::tracer::random_span;
use clinch_core::id::EventId;
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use clinch_core::trace::{self, By, Came, Context, Incoming, Remote, Request, SpanId, Story};
use clinch_store::{Acceptance, Accepted, NewEvent};
use hyper::Version;
use std::net::IpAddr;
use std::sync::Arc;

/// The trace of an event that is about to be stored, unless its key is known: then it is that of the first delivery.
pub struct Strand {
    pub trace: TraceId,
    /// The sender's span, where the event is in the sender's trace.
    within: Option<Remote>,
}

impl Strand {
    pub fn new(house: &House, received_at: Timestamp) -> Strand {
        Strand { trace: TraceId::new(received_at, house.clock.random()), within: None }
    }

    /// `remote`: the span of a sender that is known and whose traces are continued.
    pub fn within(self, remote: Option<&Remote>) -> Strand {
        Strand { trace: remote.map_or(self.trace, |remote| remote.context.trace), within: remote.cloned() }
    }
}

/// The events of a request: in which trace each of them is, and, where somebody listens, what is told of it.
pub struct Stored {
    pub trace: TraceId,
    event: EventId,
    is_fresh: bool,
    within: Option<Remote>,
    queue: Arc<str>,
    jobs: usize,
}

/// What is needed of an event when it is stored; nothing where nobody listens.
pub struct Sketch(Option<(Arc<str>, usize)>);

impl Sketch {
    pub fn of(house: &House, event: &NewEvent) -> Sketch {
        let job = event.jobs.first().filter(|_| house.tracer.is_on());
        Sketch(job.map(|job| (job.queue.clone(), event.jobs.len())))
    }

    pub fn stored(self, strand: Strand, acceptance: &Acceptance) -> Stored {
        let (queue, jobs) = self.0.unwrap_or_default();
        let is_fresh = matches!(acceptance, Acceptance::Fresh(_));
        let Accepted { trace, event, .. } = *acceptance.first();
        Stored { trace, event, is_fresh, within: strand.within, queue, jobs }
    }
}

impl Stored {
    /// Its trace, if somebody records it.
    pub fn example(&self, house: &House) -> Option<TraceId> {
        house.tracer.keeps(&self.story()).then_some(self.trace)
    }

    fn story(&self) -> Story<'_> {
        Story {
            trace: self.trace,
            event: self.event,
            within: self.within.as_ref().map(|remote| remote.context).filter(|sender| sender.trace == self.trace),
            state: self.within.as_ref().map_or("", |remote| &remote.state),
        }
    }
}

/// A request that came while somebody listens.
pub struct Arrival {
    request: Request,
    remote: Option<Context>,
    span: SpanId,
}

/// Where a request came in.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub peer: IpAddr,
    pub is_secure: bool,
    /// `None`: nothing is there.
    pub route: Option<&'a str>,
    pub incoming: Incoming,
}

impl Arrival {
    /// `None`: nobody listens.
    pub fn of<B>(house: &House, request: &hyper::Request<B>, place: Place<'_>) -> Option<Arrival> {
        if !house.tracer.is_on() {
            return None;
        }
        let (method, version, headers) = (request.method(), request.version(), request.headers());
        let now = house.clock.now();
        let parent = || Context::read(headers.get_all(trace::TRACEPARENT).iter().map(|value| value.as_bytes()));
        let agent = headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let request = Request {
            // A method that nobody knows is the sender's own text.
            method: ["POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
                .into_iter()
                .find(|known| method == known)
                .unwrap_or("_OTHER"),
            route: place.route.map(str::to_string),
            scheme: if place.is_secure { "https" } else { "http" },
            protocol: if version == Version::HTTP_2 { "2" } else { "1.1" },
            client: rules().text(&place.peer.to_string()),
            agent: agent.map(|agent| rules().text(agent)),
            status: 0,
            began: now,
            ended: now,
        };
        let remote = if place.incoming == Incoming::Ignore { None } else { parent() };
        Some(Arrival { request, remote, span: random_span(&*house.clock) })
    }

    /// It was answered: `stored` are its events, and `alone` is its trace where there are none.
    pub fn answered(self, house: &House, status: u16, stored: &[Stored], alone: TraceId) {
        let Arrival { request, remote, span } = self;
        let (began, ended) = (request.began, house.clock.now());
        let request = Request { status, ended, ..request };
        let Some(first) = stored.first() else {
            if house.tracer.keeps_alone(alone) || status >= 500 {
                house.tracer.tell(trace::delivery(request, Came::Alone(alone, span), remote));
            }
            return;
        };
        let came = if first.is_fresh { Came::Fresh(first.story()) } else { Came::Again(first.story(), span) };
        let delivery = trace::delivery(request, came, remote);
        let context = delivery.context;
        if house.tracer.keeps(&first.story()) || status >= 500 {
            house.tracer.tell(delivery);
        }
        for (place, one) in stored.iter().enumerate().filter(|(_, one)| one.is_fresh) {
            let by = if place == 0 { By::Delivery } else { By::With(context) };
            if house.tracer.keeps(&one.story()) {
                house.tracer.tell(trace::creation(&one.story(), by, &one.queue, one.jobs, (began, ended)));
            }
        }
    }
}

/// The trace of what is no event.
pub fn alone(house: &House) -> TraceId {
    TraceId::new(house.clock.now(), house.clock.random())
}
