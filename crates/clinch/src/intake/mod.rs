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

use crate::house::House;
use crate::people::People;
use crate::server::Listener;
use crate::telemetry::IntakeOutcome;
use answer::Answer;
use buttons::Buttons;
use clinch_core::key::{self, DedupKey, Fingerprint, NoKey, Pepper};
use clinch_core::payload::{About, TENANT_DEFAULT, TraceId};
use clinch_core::subject::Handle;
use clinch_store::{Acceptance, Dedup, NewEvent};
pub use credentials::{Credentials, credentials};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use route::{Door, Routes};
pub use shared::KeyStore;
use shared::Shared;
use std::borrow::Cow;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::TcpListener;

pub async fn run(
    socket: TcpListener,
    listener: Listener,
    house: House,
    shared: Vec<Arc<KeyStore>>,
    credentials: Vec<Option<Credentials>>,
    people: Option<Arc<dyn People>>,
) {
    let stop = house.stop.clone();
    let pepper = Pepper::new(house.store.pepper());
    let routes = Routes::of(&house, &pepper, &shared, credentials);
    let settings = house.versions.workspace.settings.approvals.clone();
    let buttons = settings.zip(people).map(|(settings, people)| Buttons::new(&house, settings, people));
    let intake = Arc::new(Intake { routes, buttons, pepper, house });
    tokio::spawn(renew(intake.clone()));
    crate::server::serve(socket, listener, |peer| Service(intake.clone(), peer), stop).await;
}

/// Whenever secrets were read again, the doors take what they say.
async fn renew(intake: Arc<Intake>) {
    let mut readings = intake.house.secrets.readings();
    loop {
        tokio::select! {
            changed = readings.changed() => match changed {
                Ok(()) => intake.routes.renew(&intake.house.secrets),
                Err(_) => return,
            },
            () = intake.house.stop.cancelled() => return,
        }
    }
}

struct Intake {
    routes: Routes,
    /// Where people decide in Slack.
    buttons: Option<Buttons>,
    pepper: Pepper,
    house: House,
}

/// One connection.
struct Service(Arc<Intake>, IpAddr);

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<http_body_util::Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (intake, peer) = (self.0.clone(), self.1);
        Box::pin(async move { Ok(intake.answer(request, peer).await.into_response()) })
    }
}

impl Intake {
    async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Answer {
        let began = std::time::Instant::now();
        if let Some(buttons) = self.buttons.as_ref().filter(|buttons| buttons.is_at(request.uri().path())) {
            return buttons.answer(&self.house, request).await;
        }
        let door = match self.routes.find(request.method(), request.uri().path()) {
            Ok(door) => door,
            Err(refusal) => {
                if let Some(door) = self.routes.source(request.uri().path()) {
                    return door.answer(&self.house, &self.pepper, request, peer).await;
                }
                self.house.metrics.unknown_routes.inc();
                return refusal;
            }
        };
        let taken = self.take(door, request).await;
        let job = taken.as_ref().ok().map(|acceptance| acceptance.first().job);
        let (outcome, answer) = match taken {
            Ok(Acceptance::Fresh(first)) => (IntakeOutcome::Accepted, Answer::accepted(&first)),
            Ok(Acceptance::Duplicate(first)) => (IntakeOutcome::Duplicate, Answer::again(&first)),
            Ok(Acceptance::Kept(first)) => (IntakeOutcome::Conflict, Answer::again(&first)),
            Ok(Acceptance::Conflict(first)) => (IntakeOutcome::Conflict, Answer::conflict(&first)),
            Err(refusal) => (refusal.outcome(), refusal),
        };
        door.metrics.count(outcome, began.elapsed(), || self.house.clock.now());
        self.house.metrics.at_the_door(&door.flow, outcome, job, None, || self.house.clock.now());
        answer
    }

    /// The fixed order of checks. Only what passes all of them touches the store, and only a success claims a key.
    async fn take(&self, door: &Door, request: Request<Incoming>) -> Result<Acceptance, Answer> {
        let (head, body) = request.into_parts();
        body::encoding(&head.headers, false)?;
        let body = body::read(body, &head.headers, door.route.body_bytes_max).await?;
        body::check_digest(&head.headers, &body)?;
        let body_bytes = body.len();
        let (event, shared) = self.event(door, &head.headers, &body)?;
        // What is no longer needed is not carried through the wait for the disk.
        drop((head, body));
        let acceptance = shared::accept(&self.house, event, shared).await?;
        if matches!(acceptance, Acceptance::Fresh(_)) {
            door.metrics.body(body_bytes);
        }
        Ok(acceptance)
    }

    /// The event that a request means; and how other installations know it, where the route's key store is shared.
    fn event(&self, door: &Door, headers: &HeaderMap, body: &[u8]) -> Result<(NewEvent, Option<Shared>), Answer> {
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
            trace: TraceId::new(received_at, self.house.clock.random()),
            job_keys,
            headers: body::kept_headers(headers),
        };
        let event = NewEvent {
            source: door.flow.clone(),
            version: self.house.versions.live,
            received_at,
            dedup,
            status: door.status,
            payload: about.encode(body),
            handles: Handle::all(&self.pepper, &door.route.find_by, &delivery),
            jobs,
        };
        Ok((event, shared))
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
