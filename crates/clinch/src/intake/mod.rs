//! The door in: a request becomes a stored event, or a clear refusal. Nothing is answered 2xx before it is on disk.

mod answer;
mod body;
mod route;

use crate::house::House;
use crate::telemetry::IntakeOutcome;
use answer::Answer;
use clinch_core::key::{self, DedupKey, Fingerprint, Pepper};
use clinch_core::payload::{About, Payload, TENANT_DEFAULT, TraceId};
use clinch_store::{Acceptance, Dedup, NewEvent};
use hyper::body::Incoming;
use hyper::{Request, Response};
use route::{Door, Routes};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use tokio::net::TcpListener;

pub async fn run(listener: TcpListener, house: House) {
    let stop = house.stop.clone();
    let intake = Intake { routes: Routes::of(&house), pepper: Pepper::new(house.store.pepper()), house };
    crate::server::serve(listener, Service(Arc::new(intake)), stop).await;
}

struct Intake {
    routes: Routes,
    pepper: Pepper,
    house: House,
}

#[derive(Clone)]
struct Service(Arc<Intake>);

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<http_body_util::Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let intake = self.0.clone();
        Box::pin(async move { Ok(intake.answer(request).await.into_response()) })
    }
}

impl Intake {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let began = std::time::Instant::now();
        let door = match self.routes.find(request.method(), request.uri().path()) {
            Ok(door) => door,
            Err(refusal) => {
                self.house.metrics.unknown_routes.inc();
                return refusal;
            }
        };
        let (outcome, answer) = match self.take(door, request).await {
            Ok(Acceptance::Fresh(first)) => (IntakeOutcome::Accepted, Answer::accepted(&first)),
            Ok(Acceptance::Duplicate(first)) => (IntakeOutcome::Duplicate, Answer::again(&first)),
            Ok(Acceptance::Kept(first)) => (IntakeOutcome::Conflict, Answer::again(&first)),
            Ok(Acceptance::Conflict(first)) => (IntakeOutcome::Conflict, Answer::conflict(&first)),
            Err(refusal) => (refusal.outcome(), refusal),
        };
        door.metrics.count(outcome, began.elapsed(), || self.house.clock.now());
        answer
    }

    /// The fixed order of checks. Only what passes all of them touches the store, and only a success claims a key.
    async fn take(&self, door: &Door, request: Request<Incoming>) -> Result<Acceptance, Answer> {
        let (head, body) = request.into_parts();
        body::refuse_encoded(&head.headers)?;
        let body = body::read(body, &head.headers, door.route.body_bytes_max).await?;
        let delivery = body::Delivery::read(&head.headers, &body, door.reads_body)?;
        let tenant = match &door.route.tenant {
            None => TENANT_DEFAULT.to_string(),
            Some(part) => key::find(&key::KeyRule::One(part.clone()), &delivery).map_err(|e| Answer::bad_key(&e))?,
        };
        let key = self.key(door, &delivery)?;
        let job_keys = door.job_keys(&delivery).map_err(|refused| Answer::bad_key(&refused))?;
        let now = self.house.clock.now();
        let dedup = match (&door.route.dedup, &key) {
            (Some(rule), Some(key)) => Some(Dedup {
                key: DedupKey::scoped(&self.pepper, &tenant, &door.scope, key),
                fingerprint: Fingerprint::of(door.route.method.word(), &body),
                ttl: rule.ttl,
                on_conflict: rule.on_conflict,
                on_duplicate_of_dead: rule.on_duplicate_of_dead,
            }),
            _ => None,
        };
        let about = About {
            source: door.flow.to_string(),
            source_event_id: key.unwrap_or_default(),
            kind: door.flow.to_string(),
            tenant,
            schema_version: 1,
            trace: TraceId(self.house.clock.random()),
            job_keys,
            headers: body::kept_headers(&head.headers),
        };
        let body_bytes = body.len();
        let event = NewEvent {
            flow: door.flow.clone(),
            version: self.house.versions.live,
            received_at: now,
            dedup,
            status: door.status,
            payload: Payload { about, body }.encode(),
            queues: door.queues.clone(),
        };
        let acceptance = self.house.store.accept(event).await.map_err(|error| Answer::unavailable(&error))?;
        if matches!(acceptance, Acceptance::Fresh(_)) {
            door.metrics.body(body_bytes);
        }
        Ok(acceptance)
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
