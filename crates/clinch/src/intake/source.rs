//! The door of a source: a request is proven, read, held against its schema and reduced to what may be kept, in this
//! order, before anything of it is stored.

use super::answer::Answer;
use super::body;
use super::credentials::{Credentials, of_source};
use super::route::{DoorMetrics, JobRule};
use super::shared::{self, KeyStore, Shared};
use crate::house::House;
use crate::rejections::Rejection;
use crate::secrets::Secrets;
use crate::telemetry::{BySourceReason, BySourceSecret, IntakeOutcome};
use bytes::Bytes;
use clinch_core::flow::Flow;
use clinch_core::key::{self, DedupKey, Fingerprint, KeyRule, Pepper};
use clinch_core::limit::{Bucket, Limits, Pace, Take, neighbourhood};
use clinch_core::minimise::HashKey;
use clinch_core::payload::{About, TENANT_DEFAULT, TraceId};
use clinch_core::schema::Schema;
use clinch_core::signature::handshake::cloudevents_origin;
use clinch_core::signature::{self, Refusal, Request, Verified, Window};
use clinch_core::source::{Arrived, LimitMode, Look, OnMismatch, Source, schema_version};
use clinch_core::time::Timestamp;
use clinch_store::{Acceptance, Accepted, Dedup, NewEvent};
use futures_util::future::join_all;
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, RwLock};

/// So many addresses are remembered for the limit of each source.
const ADDRESSES_MAX: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// What requests are checked with, if they are; or why it cannot be had, and then nobody is let in.
type Standing = Result<Option<Arc<Credentials>>, String>;

pub struct SourceDoor {
    source: Source,
    name: Arc<str>,
    credentials: RwLock<Standing>,
    /// The flows that take some of its events.
    takers: Vec<Taker>,
    schemas: HashMap<String, Arc<Schema>>,
    shared: Option<Arc<KeyStore>>,
    hash_key: HashKey,
    shows_key: bool,
    shows_tenant: bool,
    addresses: Option<Mutex<Limits<IpAddr>>>,
    flow_limit: Option<FlowLimit>,
    metrics: DoorMetrics,
    /// By the id of the secret that matched.
    verified: HashMap<String, Counter>,
}

/// A flow, and its jobs of each event that it takes.
struct Taker {
    flow: Flow,
    jobs: Vec<(JobRule, Option<KeyRule>)>,
}

/// How fast verified requests may come.
enum FlowLimit {
    Reject(Mutex<Bucket>),
    Defer(Mutex<Pace>),
}

/// What a request came to.
enum Taken {
    Handshake(signature::handshake::Answer),
    /// Its origin may deliver CloudEvents.
    Allowed(String),
    Stored(Vec<Acceptance>),
    /// No flow wants any of its events.
    Ignored,
}

/// A refusal: what the sender is told, and for the operator why.
struct Refused {
    answer: Answer,
    reason: &'static str,
    said: String,
    advice: &'static str,
}

impl From<Answer> for Refused {
    fn from(answer: Answer) -> Refused {
        let (reason, said) = answer.told();
        Refused { answer, reason, said, advice: "the sender was told the same" }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let (reason, said, advice) = (refusal.word(), refusal.to_string(), refusal.advice());
        Refused { answer: Answer::unverified(), reason, said, advice }
    }
}

impl SourceDoor {
    pub fn new(
        house: &House,
        pepper: &Pepper,
        stores: &[Arc<KeyStore>],
        source: &Source,
        credentials: Option<Credentials>,
    ) -> SourceDoor {
        let workspace = &house.versions.workspace;
        let takers = workspace
            .flows
            .iter()
            .filter(|flow| flow.subscriptions.iter().any(|subscription| subscription.source == source.name))
            .map(|flow| Taker {
                flow: flow.clone(),
                jobs: flow
                    .enqueue
                    .iter()
                    .map(|step| {
                        let has_tenant = source.tenant.is_some();
                        (JobRule::of(workspace, &flow.name, step, has_tenant, pepper), step.key.clone())
                    })
                    .collect(),
            })
            .collect();
        let names = source.schema.iter().flat_map(|rule| rule.by_kind.iter().map(|(_, name)| name));
        let schemas = names.filter_map(|name| Some((name.clone(), workspace.schema(name)?.clone()))).collect();
        let verified = credentials.iter().flat_map(|held| held.secrets.all()).map(|secret| {
            let labels = BySourceSecret { source: (&source.name).into(), secret: (&secret.id).into() };
            (secret.id.clone(), house.metrics.intake_verified.get_or_create_owned(&labels))
        });
        SourceDoor {
            name: Arc::from(source.name.as_str()),
            verified: verified.collect(),
            takers,
            schemas,
            shared: stores.iter().find(|store| store.name() == source.keys.store).cloned(),
            hash_key: HashKey::of_store(pepper),
            shows_key: source.shows_key(),
            shows_tenant: source.tenant.as_ref().is_none_or(|part| source.shows(part)),
            addresses: source.limits.address.map(|rate| Mutex::new(Limits::new(rate, ADDRESSES_MAX))),
            flow_limit: source.limits.source.map(|rate| match source.limits.mode {
                LimitMode::Reject => FlowLimit::Reject(Mutex::new(Bucket::full(rate))),
                LimitMode::Defer => FlowLimit::Defer(Mutex::new(Pace::new(rate))),
            }),
            metrics: DoorMetrics::of(house, &source.name),
            credentials: RwLock::new(Ok(credentials.map(Arc::new))),
            source: source.clone(),
        }
    }

    /// Takes what the secrets say now. A source that is verified never becomes one that is not.
    pub fn renew(&self, secrets: &Secrets) {
        let standing = of_source(&self.source, secrets).map(|held| held.map(Arc::new));
        *self.credentials.write().expect("nobody panics while holding the credentials") = standing;
    }

    fn held(&self) -> Result<Option<Arc<Credentials>>, Refused> {
        let standing = self.credentials.read().expect("nobody panics while holding the credentials").clone();
        standing.map_err(|why| Refused {
            answer: Answer::no_secret(),
            reason: "secret_unavailable",
            said: why,
            advice: "put the secret back and send the process a SIGHUP",
        })
    }

    pub async fn answer(
        &self,
        house: &House,
        pepper: &Pepper,
        request: hyper::Request<Incoming>,
        peer: IpAddr,
    ) -> Answer {
        let began = std::time::Instant::now();
        let (head, body) = request.into_parts();
        let taken = self.take(house, pepper, &head, body, peer).await;
        let (outcome, answer) = match taken {
            Ok(Taken::Handshake(answer)) => (IntakeOutcome::Handshake, Answer::handshake(answer)),
            Ok(Taken::Allowed(origin)) => (IntakeOutcome::Handshake, Answer::allowed(&origin)),
            Ok(Taken::Ignored) => (IntakeOutcome::Ignored, Answer::ignored(self.source.ack)),
            Ok(Taken::Stored(acceptances)) => self.stored(&acceptances),
            Err(refused) => {
                let labels = BySourceReason { source: (&self.name).into(), reason: refused.reason.into() };
                house.metrics.intake_rejected.get_or_create(&labels).inc();
                let headers = head.headers.keys().map(|name| name.as_str().to_string()).collect();
                let Refused { answer, reason, said, advice } = refused;
                let at = house.clock.now();
                house.rejections.add(&self.name, Rejection { at, reason, said, advice, headers });
                (answer.outcome(), answer)
            }
        };
        self.metrics.count(outcome, began.elapsed(), || house.clock.now());
        answer
    }

    /// Several events of one request have one answer: success only if each of them is stored.
    fn stored(&self, acceptances: &[Acceptance]) -> (IntakeOutcome, Answer) {
        let mut outcome = IntakeOutcome::Duplicate;
        let mut firsts: Vec<&Accepted> = Vec::new();
        for acceptance in acceptances {
            match acceptance {
                Acceptance::Conflict(first) => return (IntakeOutcome::Conflict, Answer::conflict(first)),
                Acceptance::Fresh(_) => outcome = IntakeOutcome::Accepted,
                Acceptance::Kept(_) if outcome == IntakeOutcome::Duplicate => outcome = IntakeOutcome::Conflict,
                Acceptance::Kept(_) | Acceptance::Duplicate(_) => {}
            }
            let (Acceptance::Fresh(first) | Acceptance::Duplicate(first) | Acceptance::Kept(first)) = acceptance else {
                continue;
            };
            firsts.push(first);
        }
        let replayed = outcome != IntakeOutcome::Accepted;
        let answer = match firsts.as_slice() {
            [one] if replayed => Answer::again(one),
            [one] => Answer::accepted(one),
            several => Answer::several(several, self.source.ack, replayed),
        };
        (outcome, answer)
    }

    /// The fixed order of checks. Only what passes all of them touches the store, and only a success claims a key.
    async fn take(
        &self,
        house: &House,
        pepper: &Pepper,
        head: &http::request::Parts,
        body: Incoming,
        peer: IpAddr,
    ) -> Result<Taken, Refused> {
        let held = self.held()?;
        let held = held.as_deref();
        let headers: Vec<(&str, &[u8])> =
            head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let url = self.url(&head.uri);
        let asked = Request { method: head.method.as_str(), url: &url, headers: &headers, body: b"" };
        if head.method != self.source.method.word() {
            return Ok(self.other_method(&asked, held)?);
        }
        self.admit_address(peer, house.clock.now())?;
        body::refuse_encoded(&head.headers)?;
        let body = body::read(body, &head.headers, self.source.body_bytes_max).await?;
        let request = Request { body: &body, ..asked };
        if let Some(answer) = self.unsigned_handshake(&request, held) {
            return Ok(Taken::Handshake(answer));
        }
        let now = house.clock.now();
        if let Some(held) = held
            && let proof = self.verify(&request, held, now)?
            && let Some(answer) = self.signed_handshake(&request, &proof, held)
        {
            return Ok(Taken::Handshake(answer));
        }
        let run_at = self.admit(now, house.clock.dice())?;
        if self.source.preset.content == signature::presets::Content::Json {
            // Says where the JSON ends and how deep it may be; a preset only says that it is none.
            body::Delivery::read(&head.headers, &body, false)?;
        }
        let arrived = self.source.events(&request).map_err(|unfit| Answer::unfit(&unfit))?;
        let mut events = Vec::with_capacity(arrived.len());
        for event in arrived {
            events.extend(self.event(house, pepper, &request, event, (now, run_at))?);
        }
        if events.is_empty() {
            return Ok(Taken::Ignored);
        }
        // What is no longer needed is not carried through the wait for the disk.
        let body_bytes = body.len();
        drop(body);
        // Begun in their order, they share what the store writes together.
        let stored = join_all(events.into_iter().map(|(event, shared)| shared::accept(house, event, shared))).await;
        let stored = stored.into_iter().collect::<Result<Vec<_>, Answer>>()?;
        if stored.iter().any(|acceptance| matches!(acceptance, Acceptance::Fresh(_))) {
            self.metrics.body(body_bytes);
        }
        Ok(Taken::Stored(stored))
    }

    /// The address as the sender wrote it, with the query that came: never from what a header says.
    fn url(&self, uri: &http::Uri) -> String {
        let configured = self.source.proof.as_ref().and_then(|proof| proof.public_url.as_deref());
        let url = configured.unwrap_or(&self.source.path);
        match uri.query() {
            Some(query) => format!("{}?{query}", url.split('?').next().unwrap_or_default()),
            None => url.to_string(),
        }
    }

    /// A question, or nothing that is answered here.
    fn other_method(&self, asked: &Request<'_>, held: Option<&Credentials>) -> Result<Taken, Answer> {
        let origins: Vec<&str> = self.source.cloudevents.origins.iter().map(String::as_str).collect();
        if let Some(origin) = cloudevents_origin(asked, &origins) {
            return Ok(Taken::Allowed(origin.to_string()));
        }
        match self.unsigned_handshake(asked, held) {
            Some(answer) => Ok(Taken::Handshake(answer)),
            None => Err(Answer::wrong_method(self.source.method.word())),
        }
    }

    fn unsigned_handshake(
        &self,
        request: &Request<'_>,
        held: Option<&Credentials>,
    ) -> Option<signature::handshake::Answer> {
        self.source.preset.handshake?.answer_unsigned(request, held?.verify_token.as_deref())
    }

    fn signed_handshake(
        &self,
        request: &Request<'_>,
        proof: &Verified,
        held: &Credentials,
    ) -> Option<signature::handshake::Answer> {
        self.source.preset.handshake?.answer_signed(request, proof, &held.secrets)
    }

    fn verify(&self, request: &Request<'_>, held: &Credentials, now: Timestamp) -> Result<Verified, Refusal> {
        let proof = self.source.proof.as_ref().expect("only who signs has credentials");
        let window = Window { now, tolerance: proof.tolerance };
        let verified = signature::verify(&proof.scheme, request, &held.secrets, window)?;
        if let Some(counter) = self.verified.get(&verified.secret_id) {
            counter.inc();
        }
        Ok(verified)
    }

    /// Before anything is known about the caller: it is told only to come later.
    fn admit_address(&self, peer: IpAddr, now: Timestamp) -> Result<(), Answer> {
        let Some(addresses) = &self.addresses else { return Ok(()) };
        let mut addresses = addresses.lock().expect("nobody panics while holding the limits");
        match addresses.take(&neighbourhood(peer), now, 1) {
            Take::Taken { .. } => Ok(()),
            Take::Wait(wait) => Err(Answer::too_many(wait, 0.0, None)),
        }
    }

    /// When the jobs of a verified request may run.
    fn admit(&self, now: Timestamp, dice: f64) -> Result<Timestamp, Answer> {
        match &self.flow_limit {
            None => Ok(now),
            Some(FlowLimit::Defer(pace)) => Ok(pace.lock().expect("nobody panics while holding the pace").run_at(now)),
            Some(FlowLimit::Reject(bucket)) => {
                let mut bucket = bucket.lock().expect("nobody panics while holding the bucket");
                match bucket.take(now, 1) {
                    Take::Taken { .. } => Ok(now),
                    wait @ Take::Wait(rest) => {
                        let limit = (bucket.rate().policy_header("source"), wait.header("source"));
                        Err(Answer::too_many(rest, dice, Some(limit)))
                    }
                }
            }
        }
    }

    /// What is stored of an event that arrived; `None` when no flow takes it.
    fn event(
        &self,
        house: &House,
        pepper: &Pepper,
        request: &Request<'_>,
        event: Arrived<'_>,
        (received_at, run_at): (Timestamp, Timestamp),
    ) -> Result<Option<(NewEvent, Option<Shared>)>, Answer> {
        let takers: Vec<&Taker> =
            self.takers.iter().filter(|taker| taker.flow.takes(&self.source.name, &event.kind)).collect();
        if takers.is_empty() {
            return Ok(None);
        }
        let (schema_version, mismatch) = self.held_against_schema(&event)?;
        let look = Look { headers: request.headers, value: &event.value };
        let tenant: &str = event.tenant.as_deref().unwrap_or(TENANT_DEFAULT);
        let mut jobs = Vec::new();
        let mut job_keys = Vec::new();
        for (rule, key) in takers.iter().flat_map(|taker| &taker.jobs) {
            let mut job =
                rule.job(pepper, tenant, &look, received_at).map_err(|refused| Answer::bad_group(&refused))?;
            job.run_at = job.run_at.max(run_at);
            jobs.push(job);
            job_keys.push(self.job_key(key.as_ref(), &look, &event)?);
        }
        let id = self.shown(&event.id, self.shows_key);
        if job_keys.iter().all(|key| **key == *id) {
            job_keys.clear();
        }
        // Taken before anything is dropped from the body, and of the event's own bytes: a batch comes in other company.
        let fingerprint = Fingerprint::of(request.method, &event.body);
        let keys = &self.source.keys;
        let dedup = event.key.as_ref().map(|key| Dedup {
            key: DedupKey::scoped(pepper, tenant, &self.source.scope, key),
            fingerprint,
            ttl: keys.ttl,
            on_conflict: keys.on_conflict,
            on_duplicate_of_dead: keys.on_duplicate_of_dead,
        });
        let shared = match (&self.shared, &event.key) {
            (Some(store), Some(key)) => Some(store.shared(tenant, &self.source.scope, key, &fingerprint)),
            _ => None,
        };
        let about = About {
            source: (&*self.name).into(),
            source_event_id: id,
            kind: (&*event.kind).into(),
            tenant: self.shown(tenant, self.shows_tenant),
            schema_version,
            mismatch: mismatch.into(),
            trace: TraceId(house.clock.random()),
            job_keys,
            headers: self.kept_headers(request, &event),
        };
        let new = NewEvent {
            source: self.name.clone(),
            version: house.versions.live,
            received_at,
            dedup,
            status: self.source.ack,
            payload: about.encode(&self.kept_body(&event)?),
            jobs,
        };
        Ok(Some((new, shared)))
    }

    /// The version of the event's schema, and what in it breaks the schema, where that is not a reason to refuse it.
    fn held_against_schema(&self, event: &Arrived<'_>) -> Result<(u32, String), Answer> {
        let rule = self.source.schema.as_ref();
        let named = rule.and_then(|rule| Some((rule.on_mismatch, rule.name_for(&event.kind)?)));
        let Some((on_mismatch, name)) = named else { return Ok((1, String::new())) };
        let checked = self.schemas.get(name).map_or(Ok(()), |schema| schema.check(&event.value));
        let version = schema_version(name);
        match (checked, on_mismatch) {
            (Ok(()), _) => Ok((version, String::new())),
            (Err(mismatches), OnMismatch::DeadLetter) => Ok((version, format!("schema `{name}`: {mismatches}"))),
            (Err(mismatches), OnMismatch::Reject) => Err(Answer::mismatch(name, &mismatches)),
        }
    }

    fn job_key(&self, rule: Option<&KeyRule>, look: &Look<'_>, event: &Arrived<'_>) -> Result<String, Answer> {
        match rule {
            None => Ok(self.shown(&event.id, self.shows_key).into_owned()),
            Some(rule) => {
                let key = key::find(rule, look).map_err(|refused| Answer::bad_key(&refused))?;
                Ok(self.shown(&key, self.source.shows_all(rule)).into_owned())
            }
        }
    }

    /// What was read from a field that is not kept is written down as its hash.
    fn shown<'t>(&self, text: &'t str, shows: bool) -> Cow<'t, str> {
        if shows { text.into() } else { self.hash_key.hash(text.as_bytes()).into() }
    }

    fn kept_headers<'t>(&self, request: &Request<'t>, event: &'t Arrived<'_>) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
        let said: Vec<_> = event.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // The body that is kept is JSON, whatever it was wrapped in.
        let came = request
            .headers
            .iter()
            .filter(|(name, _)| *name != "content-type" && !said.iter().any(|(there, _)| there == name));
        let came = came.filter_map(|(name, value)| Some((*name, std::str::from_utf8(value).ok()?)));
        let all = [("content-type", "application/json")].into_iter().chain(said.iter().copied()).chain(came);
        body::bounded_headers(all.filter(|(name, _)| self.source.minimise.keeps_header(name)))
    }

    fn kept_body<'t>(&self, event: &'t Arrived<'_>) -> Result<Cow<'t, [u8]>, Answer> {
        if !self.source.minimise.changes_bodies() {
            return Ok((&*event.body).into());
        }
        let body = Bytes::copy_from_slice(&event.body);
        match self.source.minimise.body(&body, None, &self.hash_key) {
            Ok(kept) => Ok(kept.to_vec().into()),
            Err(why) => Err(Answer::not_readable(&why)),
        }
    }
}
