//! The door in: a request becomes a stored event, or a clear refusal. Nothing is answered 2xx before it is on disk.

mod answer;
mod body;
mod buttons;
mod credentials;
mod guard;
mod quota;
mod route;
mod shared;
mod source;
mod strand;

use crate::house::House;
use crate::people::People;
use crate::server::Listener;
use crate::telemetry::IntakeOutcome;
use answer::Answer;
use buttons::Buttons;
use clinch_core::config::SlackButtons;
use clinch_core::key::{self, DedupKey, Fingerprint, NoKey, Pepper};
use clinch_core::payload::{About, TENANT_DEFAULT, TraceId};
use clinch_core::subject::Handle;
use clinch_core::trace::Incoming;
use clinch_store::{Acceptance, Dedup, NewEvent, VersionId};
pub use credentials::credentials;
use hyper::body::Incoming as Body;
use hyper::{HeaderMap, Request, Response};
use route::{Door, Routes};
pub use shared::KeyStore;
use shared::Shared;
use std::borrow::Cow;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use strand::{Arrival, Place, Sketch, Stored, Strand};
use tokio::net::TcpListener;

pub async fn run(
    socket: TcpListener,
    listener: Listener,
    house: House,
    shared: Vec<Arc<KeyStore>>,
    people: Option<Arc<dyn People>>,
) {
    let stop = house.stop.clone();
    let pepper = Pepper::new(house.store.pepper());
    let room = RwLock::new(Arc::new(Room::of(&house, &pepper, &shared, people.as_ref())));
    let is_secure = listener.tls.is_some();
    let intake = Arc::new(Intake { room, shared, people, pepper, house, is_secure });
    tokio::spawn(renew(intake.clone()));
    crate::server::serve(socket, listener, |peer| Service(intake.clone(), peer), stop).await;
}

/// Whenever secrets were read again, the doors take what they say.
async fn renew(intake: Arc<Intake>) {
    let mut readings = intake.house.secrets.readings();
    loop {
        tokio::select! {
            changed = readings.changed() => match changed {
                Ok(()) => intake.room().routes.renew(&intake.house.secrets),
                Err(_) => return,
            },
            () = intake.house.stop.cancelled() => return,
        }
    }
}

struct Intake {
    room: RwLock<Arc<Room>>,
    shared: Vec<Arc<KeyStore>>,
    people: Option<Arc<dyn People>>,
    pepper: Pepper,
    house: House,
    is_secure: bool,
}

/// What answers requests while one workspace is live.
struct Room {
    version: VersionId,
    routes: Routes,
    /// Where people decide in Slack.
    buttons: Option<Buttons>,
}

impl Room {
    fn of(house: &House, pepper: &Pepper, shared: &[Arc<KeyStore>], people: Option<&Arc<dyn People>>) -> Room {
        let now = house.versions.state();
        let settings = now.plain.settings.approvals.clone();
        Room {
            version: now.live,
            routes: Routes::of(house, &now, pepper, shared),
            buttons: settings.zip(people).map(|(settings, people)| Buttons::new(house, settings, people.clone())),
        }
    }
}

/// One connection.
struct Service(Arc<Intake>, IpAddr);

impl hyper::service::Service<Request<Body>> for Service {
    type Response = Response<http_body_util::Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Body>) -> Self::Future {
        let (intake, peer) = (self.0.clone(), self.1);
        Box::pin(async move {
            let (answer, trace) = intake.answer(request, peer).await;
            Ok(answer.into_response(trace))
        })
    }
}

impl Intake {
    /// Whoever comes after a workspace became live is answered by it; who came before, by the one of then.
    fn room(&self) -> Arc<Room> {
        let room = self.room.read().unwrap_or_else(PoisonError::into_inner).clone();
        if room.version == self.house.versions.live() {
            return room;
        }
        let mut known = self.room.write().unwrap_or_else(PoisonError::into_inner);
        if known.version != self.house.versions.live() {
            *known = Arc::new(Room::of(&self.house, &self.pepper, &self.shared, self.people.as_ref()));
        }
        known.clone()
    }

    /// The answer, and the trace that the request is in.
    async fn answer(&self, request: Request<Body>, peer: IpAddr) -> (Answer, TraceId) {
        let began = std::time::Instant::now();
        let room = self.room();
        let arrival = |request: &Request<Body>, route: Option<&str>, incoming: Incoming| {
            let place = Place { peer, is_secure: self.is_secure, route, incoming };
            Arrival::of(&self.house, request, place)
        };
        if let Some(buttons) = room.buttons.as_ref().filter(|buttons| buttons.is_at(request.uri().path())) {
            let arrival = arrival(&request, Some(SlackButtons::PATH), Incoming::Ignore);
            // Boxed, because few requests are of that kind.
            return self.traced(Box::pin(buttons.answer(&self.house, request)).await, arrival, &[]);
        }
        let door = match room.routes.find(request.method(), request.uri().path()) {
            Ok(door) => door,
            Err(refusal) => {
                if let Some(door) = room.routes.source(request.uri().path()) {
                    let arrival = arrival(&request, Some(door.path()), door.incoming());
                    let (answer, stored) = door.answer(&self.house, &self.pepper, request, peer).await;
                    return self.traced(answer, arrival, &stored);
                }
                self.house.metrics.nothing_there();
                return self.traced(refusal, arrival(&request, None, Incoming::Link), &[]);
            }
        };
        let arrival = arrival(&request, Some(&door.route.path), Incoming::Link);
        let taken = self.take(door, request).await;
        let first = taken.as_ref().ok().map(|(acceptance, _)| *acceptance.first());
        let (outcome, answer, stored) = match taken {
            Ok((acceptance, stored)) => {
                let (outcome, answer) = match acceptance {
                    Acceptance::Fresh(first) => (IntakeOutcome::Accepted, Answer::accepted(&first)),
                    Acceptance::Duplicate(first) => (IntakeOutcome::Duplicate, Answer::again(&first)),
                    Acceptance::Kept(first) => (IntakeOutcome::Conflict, Answer::again(&first)),
                    Acceptance::Conflict(first) => (IntakeOutcome::Conflict, Answer::conflict(&first)),
                };
                (outcome, answer, Some(stored))
            }
            Err(refusal) => (refusal.outcome(), refusal, None),
        };
        let example = stored.as_ref().and_then(|stored| stored.example(&self.house));
        door.metrics.count(outcome, began.elapsed(), example, || self.house.clock.now());
        self.house.metrics.at_the_door(&door.flow, outcome, first, None, || self.house.clock.now());
        self.traced(answer, arrival, stored.as_slice())
    }

    /// An answer tells its trace, and so does whoever listens to traces.
    fn traced(&self, answer: Answer, arrival: Option<Arrival>, stored: &[Stored]) -> (Answer, TraceId) {
        let trace = stored.first().map_or_else(|| strand::alone(&self.house), |first| first.trace);
        if let Some(arrival) = arrival {
            arrival.answered(&self.house, answer.status(), stored, trace);
        }
        (answer, trace)
    }

    /// The fixed order of checks. Only what passes all of them touches the store, and only a success claims a key.
    async fn take(&self, door: &Door, request: Request<Body>) -> Result<(Acceptance, Stored), Answer> {
        let (head, body) = request.into_parts();
        body::encoding(&head.headers, false)?;
        let body = body::read(body, &head.headers, door.route.body_bytes_max).await?;
        body::check_digest(&head.headers, &body)?;
        let body_bytes = body.len();
        let (event, shared, strand) = self.event(door, &head.headers, &body)?;
        // What is no longer needed is not carried through the wait for the disk.
        drop((head, body));
        let sketch = Sketch::of(&self.house, &event);
        let acceptance = shared::accept(&self.house, event, shared).await?;
        if matches!(acceptance, Acceptance::Fresh(_)) {
            door.metrics.body(body_bytes);
        }
        let stored = sketch.stored(strand, &acceptance);
        Ok((acceptance, stored))
    }

    /// The event that a request means; how other installations know it, where the route's key store is shared; and its trace.
    fn event(
        &self,
        door: &Door,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(NewEvent, Option<Shared>, Strand), Answer> {
        let bad_key = |refused: NoKey| Answer::bad_key(&refused);
        let delivery = body::Delivery::read(headers, body, door.reads_body)?;
        let tenant: Cow<'_, str> = match &door.route.tenant {
            None => TENANT_DEFAULT.into(),
            Some(part) => key::find(&key::KeyRule::One(part.clone()), &delivery).map_err(bad_key)?.into(),
        };
        let key = self.key(door, &delivery)?;
        let job_keys = door.job_keys(&delivery).map_err(bad_key)?;
        let dedup = match (&door.route.dedup, &key) {
            (Some(rule), Some(key)) => Some(Dedup {
                key: DedupKey::scoped(&self.pepper, &tenant, &door.scope, key),
                fingerprint: Fingerprint::of(door.route.method.word(), body),
                ttl: rule.ttl,
                on_conflict: rule.on_conflict,
                on_duplicate_of_dead: rule.on_duplicate_of_dead,
            }),
            _ => None,
        };
        let shared = match (&door.shared, &key, &dedup) {
            (Some(store), Some(key), Some(dedup)) => Some(store.shared(&tenant, &door.scope, key, &dedup.fingerprint)),
            _ => None,
        };
        let received_at = self.house.clock.now();
        let strand = Strand::new(&self.house, received_at);
        let jobs =
            door.jobs(&self.pepper, &tenant, &delivery, received_at).map_err(|refused| Answer::bad_group(&refused))?;
        let about = About {
            source: (&*door.flow).into(),
            source_event_id: key.unwrap_or_default().into(),
            kind: (&*door.flow).into(),
            tenant,
            sender: "".into(),
            schema_version: 1,
            mismatch: "".into(),
            trace: strand.trace,
            job_keys,
            headers: body::kept_headers(headers),
        };
        let event = NewEvent {
            source: door.flow.clone(),
            version: door.version,
            received_at,
            trace: strand.trace,
            dedup,
            status: door.status,
            payload: about.encode(body),
            handles: Handle::all(&self.pepper, &door.route.find_by, &delivery),
            jobs,
        };
        Ok((event, shared, strand))
    }

    fn key(&self, door: &Door, delivery: &body::Delivery<'_>) -> Result<Option<String>, Answer> {
        let Some(rule) = &door.route.dedup else { return Ok(None) };
        match key::find(&rule.key, delivery) {
            Ok(key) => Ok(Some(key)),
            Err(missing) if missing.is_missing() && !rule.required => Ok(None),
            Err(refused) => Err(Answer::bad_key(&refused)),
        }
    }
}
