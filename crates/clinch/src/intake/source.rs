//! The door of a source: a request is proven, read, held against its schema and reduced to what may be kept, in this
//! order, before anything of it is stored.

use super::answer::Answer;
use super::body;
use super::credentials::{Credentials, of_source};
use super::guard::Guard;
use super::quota::{Quotas, Told};
use super::route::DoorMetrics;
use super::shared::{self, KeyStore, Shared};
use super::strand::{Sketch, Stored, Strand};
use crate::house::House;
use crate::placing::JobRule;
use crate::rejections::Rejection;
use crate::secrets::Secrets;
use crate::telemetry::{BySource, BySourceReason, BySourceSecret, IntakeOutcome};
use crate::workspace::Now;
use bytes::Bytes;
use clinch_core::flow::Flow;
use clinch_core::key::{self, DedupKey, Fingerprint, KeyRule, Pepper};
use clinch_core::limit::{Limits, Take, neighbourhood};
use clinch_core::minimise::HashKey;
use clinch_core::payload::{About, TENANT_DEFAULT};
use clinch_core::schema::Schema;
use clinch_core::sender::{NotASender, Sender, SenderName};
use clinch_core::signature::handshake::cloudevents_origin;
use clinch_core::signature::{self, Refusal, Request, Verified, Window};
use clinch_core::source::{Arrived, Content, Look, OnMismatch, Proof, SameBody, Source, schema_version};
use clinch_core::subject::Handle;
use clinch_core::time::Timestamp;
use clinch_core::trace::{self, Remote};
use clinch_store::{Acceptance, Accepted, Dedup, NewEvent, VersionId};
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
/// So many senders have a metric of their own for each source.
const SENDERS_COUNTED_MAX: usize = 100;

pub struct SourceDoor {
    source: Source,
    name: Arc<str>,
    /// The workspace that it is of; its jobs run that one.
    version: VersionId,
    credentials: RwLock<Standing>,
    /// The flows that take some of its events.
    takers: Vec<Taker>,
    schemas: HashMap<String, Arc<Schema>>,
    shared: Option<Arc<KeyStore>>,
    hash_key: HashKey,
    shows_key: bool,
    shows_tenant: bool,
    addresses: Option<Mutex<Limits<IpAddr>>>,
    quotas: Quotas,
    guard: Option<Guard>,
    metrics: DoorMetrics,
    /// By the id of the secret that matched.
    verified: HashMap<String, Counter>,
    /// By the sender whose token it was, the first of them; the others count as one.
    senders: Mutex<HashMap<SenderName, Counter>>,
}

/// A flow, and its jobs of each event that it takes.
struct Taker {
    flow: Flow,
    jobs: Vec<(JobRule, Option<KeyRule>)>,
}

/// Who sent a request.
enum Proven {
    /// Anybody may.
    Nobody,
    Signed(Verified),
    Sender(Sender),
}

impl Proven {
    fn sender(&self) -> Option<&SenderName> {
        match self {
            Proven::Sender(sender) => Some(&sender.name),
            Proven::Nobody | Proven::Signed(_) => None,
        }
    }
}

/// How an event came: whose it is, when, and when its jobs may run.
struct Arrival<'a> {
    sender: &'a str,
    received_at: Timestamp,
    run_at: Timestamp,
    /// The sender's trace, if the event is to be in it.
    within: Option<&'a Remote>,
}

/// What a request came to.
enum Taken {
    Handshake(signature::handshake::Answer),
    /// Its origin may deliver CloudEvents.
    Allowed(String),
    Stored(Vec<Acceptance>, Vec<Stored>, Option<Told>),
    /// No flow wants any of its events.
    Ignored(Option<Told>),
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
        let answer = match refusal {
            Refusal::Stale { .. } | Refusal::Future { .. } => Answer::stale(),
            _ => Answer::unverified(),
        };
        Refused { answer, reason, said, advice }
    }
}

impl From<NotASender> for Refused {
    fn from(refusal: NotASender) -> Refused {
        let advice = "the sender was told only that it is not accepted";
        Refused { answer: Answer::unverified(), reason: refusal.word(), said: refusal.to_string(), advice }
    }
}

impl SourceDoor {
    pub fn new(house: &House, now: &Now, pepper: &Pepper, stores: &[Arc<KeyStore>], source: &Source) -> SourceDoor {
        let workspace = &now.plain;
        // One that cannot be had is asked for again when secrets are read again.
        let credentials = of_source(source, &house.secrets).map(|held| held.map(Arc::new));
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
            .collect::<Vec<Taker>>();
        let names = source.schema.iter().flat_map(|rule| rule.by_kind.iter().map(|(_, name)| name));
        let schemas = names.filter_map(|name| Some((name.clone(), workspace.schema(name)?.clone()))).collect();
        let verified = credentials.iter().flatten().flat_map(|held| held.secrets.all()).map(|secret| {
            let labels = BySourceSecret { source: (&source.name).into(), secret: (&secret.id).into() };
            (secret.id.clone(), house.metrics.intake_verified.get_or_create_owned(&labels))
        });
        SourceDoor {
            name: Arc::from(source.name.as_str()),
            version: now.live,
            verified: verified.collect(),
            schemas,
            shared: stores.iter().find(|store| store.name() == source.keys.store).cloned(),
            hash_key: HashKey::of_store(pepper),
            shows_key: source.shows_key(),
            shows_tenant: source.tenant.as_ref().is_none_or(|part| source.shows(part)),
            addresses: source.limits.address.map(|rate| Mutex::new(Limits::new(rate, ADDRESSES_MAX))),
            quotas: Quotas::new(&source.limits),
            guard: (source.same_body == Some(SameBody::Count)).then(Guard::default),
            senders: Mutex::default(),
            metrics: DoorMetrics::of(house, &source.name, takers.iter().map(|taker| &taker.flow.name)),
            takers,
            credentials: RwLock::new(credentials),
            source: source.clone(),
        }
    }

    /// Takes what the secrets say now. A source that is verified never becomes one that is not.
    pub fn renew(&self, secrets: &Secrets) {
        let standing = of_source(&self.source, secrets).map(|held| held.map(Arc::new));
        *self.credentials.write().expect("nobody panics while holding the credentials") = standing;
    }

    pub fn path(&self) -> &str {
        &self.source.path
    }

    pub const fn incoming(&self) -> trace::Incoming {
        self.source.trace
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

    /// The answer, and the events of the request.
    pub async fn answer(
        &self,
        house: &House,
        pepper: &Pepper,
        request: hyper::Request<Incoming>,
        peer: IpAddr,
    ) -> (Answer, Vec<Stored>) {
        let began = std::time::Instant::now();
        let (head, body) = request.into_parts();
        let taken = self.take(house, pepper, &head, body, peer).await;
        let (first, cause) = match &taken {
            Ok(Taken::Stored(acceptances, ..)) => (acceptances.first().map(|one| *one.first()), None),
            Ok(_) => (None, None),
            Err(refused) => (None, Some((refused.reason, refused.said.clone()))),
        };
        let mut events = Vec::new();
        let (outcome, answer) = match taken {
            Ok(Taken::Handshake(answer)) => (IntakeOutcome::Handshake, Answer::handshake(answer)),
            Ok(Taken::Allowed(origin)) => (IntakeOutcome::Handshake, Answer::allowed(&origin)),
            Ok(Taken::Ignored(told)) => (IntakeOutcome::Ignored, Answer::ignored(self.source.ack).with_quota(told)),
            Ok(Taken::Stored(acceptances, stored, told)) => {
                events = stored;
                let (outcome, answer) = self.stored(&acceptances);
                (outcome, answer.with_quota(told))
            }
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
        let example = events.first().and_then(|first| first.example(house));
        self.metrics.count(outcome, began.elapsed(), example, || house.clock.now());
        let cause = cause.as_ref().map(|(reason, said)| (*reason, said.as_str()));
        house.metrics.at_the_door(&self.name, outcome, first, cause, || house.clock.now());
        (answer, events)
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
        let encoding = body::encoding(&head.headers, self.source.takes_gzip)?;
        let body = body::read(body, &head.headers, self.source.body_bytes_max).await?;
        let request = Request { body: &body, ..asked };
        if let Some(answer) = self.unsigned_handshake(&request, held) {
            return Ok(Taken::Handshake(answer));
        }
        let now = house.clock.now();
        let proven = self.verify(house, &request, held, now)?;
        if let (Proven::Signed(proof), Some(held)) = (&proven, held)
            && let Some(answer) = self.signed_handshake(&request, proof, held)
        {
            return Ok(Taken::Handshake(answer));
        }
        let is_known = !matches!(proven, Proven::Nobody);
        let admitted = self
            .quotas
            .admit(proven.sender(), now)
            .map_err(|beyond| Answer::beyond(beyond, house.clock.dice(), is_known))?;
        let told = admitted.told.filter(|_| is_known);
        body::check_digest(&head.headers, &body)?;
        // What was signed is what came; only now is it unwrapped.
        let body = match encoding {
            body::Encoding::Plain => body,
            body::Encoding::Gzip => body::inflate(&body, self.source.body_bytes_max)?,
        };
        let request = Request { body: &body, ..asked };
        if self.source.content == Content::Preset && self.source.preset.content == signature::presets::Content::Json {
            // Says where the JSON ends and how deep it may be; a preset only says that it is none.
            body::Delivery::read(&head.headers, &body, false)?;
        }
        let continues = is_known && self.source.trace == trace::Incoming::Continue;
        let remote = if continues { Remote::read(&headers) } else { None };
        let arrived = self.source.events(&request).map_err(|unfit| Answer::unfit(&unfit))?;
        let mut events = Vec::with_capacity(arrived.len());
        for event in arrived {
            let sender = proven.sender().map_or("", SenderName::as_str);
            let arrival = Arrival { sender, received_at: now, run_at: admitted.run_at, within: remote.as_ref() };
            events.extend(self.event(house, pepper, &request, event, arrival)?);
        }
        if events.is_empty() {
            return Ok(Taken::Ignored(told));
        }
        // What is no longer needed is not carried through the wait for the disk.
        let body_bytes = body.len();
        drop(body);
        let bodies: Vec<Option<Dedup>> = match &self.guard {
            Some(_) => events.iter().map(|(event, ..)| event.dedup.clone()).collect(),
            None => Vec::new(),
        };
        // Begun in their order, they share what the store writes together.
        let traced: Vec<Sketch> = events.iter().map(|(event, ..)| Sketch::of(house, event)).collect();
        let (events, strands): (Vec<_>, Vec<Strand>) =
            events.into_iter().map(|(event, shared, strand)| ((event, shared), strand)).unzip();
        let stored = join_all(events.into_iter().map(|(event, shared)| shared::accept(house, event, shared))).await;
        let stored = stored.into_iter().collect::<Result<Vec<_>, Answer>>()?;
        let traced = traced.into_iter().zip(strands).zip(&stored);
        let traced = traced.map(|((sketch, strand), one)| sketch.stored(strand, one)).collect();
        if stored.iter().any(|acceptance| matches!(acceptance, Acceptance::Fresh(_))) {
            self.metrics.body(body_bytes);
        }
        self.guard_bodies(house, &stored, bodies);
        if let Some(sender) = proven.sender() {
            tracing::debug!(
                source = &*self.name,
                sender = sender.as_str(),
                "a request of sender {sender} was accepted"
            );
        }
        Ok(Taken::Stored(stored, traced, told))
    }

    /// Counts events whose body is not new.
    fn guard_bodies(&self, house: &House, stored: &[Acceptance], bodies: Vec<Option<Dedup>>) {
        let Some(guard) = &self.guard else { return };
        for (acceptance, dedup) in stored.iter().zip(bodies) {
            if let (Acceptance::Fresh(first), Some(dedup)) = (acceptance, dedup)
                && guard.knows(dedup.fingerprint, dedup.key)
            {
                house.metrics.intake_same_body.get_or_create(&BySource { source: (&self.name).into() }).inc();
                let source = &self.name;
                tracing::warn!(event.id = %first.event, trace.id = %first.trace, "{} of source `{source}` has the body of an earlier event under another id, which nobody signed; `same_body: drop` takes such for duplicates", first.event);
            }
        }
    }

    /// The address as the sender wrote it, with the query that came: never from what a header says.
    fn url(&self, uri: &http::Uri) -> String {
        let configured = self.source.signature().and_then(|rule| rule.public_url.as_deref());
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

    fn verify(
        &self,
        house: &House,
        request: &Request<'_>,
        held: Option<&Credentials>,
        now: Timestamp,
    ) -> Result<Proven, Refused> {
        let rule = match &self.source.proof {
            None => return Ok(Proven::Nobody),
            Some(Proof::Sender) => {
                let sender = house.senders.recognise(request.headers, now)?;
                self.count_sender(house, &sender.name);
                return Ok(Proven::Sender(sender));
            }
            Some(Proof::Signature(rule)) => rule,
        };
        let held = held.ok_or(Refusal::NoLiveSecret)?;
        let window = Window { now, tolerance: rule.tolerance };
        let verified = signature::verify(&rule.scheme, request, &held.secrets, window)?;
        if let Some(counter) = self.verified.get(&verified.secret_id) {
            counter.inc();
        }
        Ok(Proven::Signed(verified))
    }

    /// The first senders by their names; metrics must stay few.
    fn count_sender(&self, house: &House, name: &SenderName) {
        let counter = |label: &str| {
            let labels = BySourceSecret { source: (&self.name).into(), secret: (&label.to_string()).into() };
            house.metrics.intake_verified.get_or_create_owned(&labels)
        };
        let mut senders = self.senders.lock().expect("nobody panics while holding the senders");
        if let Some(known) = senders.get(name) {
            known.inc();
        } else if senders.len() < SENDERS_COUNTED_MAX {
            senders.entry(name.clone()).or_insert_with(|| counter(name.as_str())).inc();
        } else {
            counter("other").inc();
        }
    }

    /// Before anything is known about the caller: it is told only to come later.
    fn admit_address(&self, peer: IpAddr, now: Timestamp) -> Result<(), Answer> {
        let Some(addresses) = &self.addresses else { return Ok(()) };
        let mut addresses = addresses.lock().expect("nobody panics while holding the limits");
        match addresses.take(&neighbourhood(peer), now, 1) {
            Take::Taken { .. } => Ok(()),
            Take::Wait(wait) => Err(Answer::too_many_from_there(wait, 0.0)),
        }
    }

    /// What is stored of an event that arrived; `None` when no flow takes it.
    fn event(
        &self,
        house: &House,
        pepper: &Pepper,
        request: &Request<'_>,
        event: Arrived<'_>,
        Arrival { sender, received_at, run_at, within }: Arrival<'_>,
    ) -> Result<Option<(NewEvent, Option<Shared>, Strand)>, Answer> {
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
        let strand = Strand::new(house, received_at).within(within);
        let mut handles = Handle::all(pepper, &self.source.find_by, &look);
        // The ids of senders do not tell when their event came.
        let traced = within.and_then(|_| Handle::of(pepper, &strand.trace.to_string()));
        handles.extend(traced.filter(|traced| !handles.contains(traced)));
        let about = About {
            source: (&*self.name).into(),
            source_event_id: id,
            kind: (&*event.kind).into(),
            tenant: self.shown(tenant, self.shows_tenant),
            sender: sender.into(),
            schema_version,
            mismatch: mismatch.into(),
            trace: strand.trace,
            job_keys,
            headers: self.kept_headers(request, &event, within),
        };
        let new = NewEvent {
            source: self.name.clone(),
            version: self.version,
            received_at,
            trace: strand.trace,
            dedup,
            status: self.source.ack,
            payload: about.encode(&self.kept_body(&event)?),
            handles,
            jobs,
        };
        Ok(Some((new, shared, strand)))
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

    fn kept_headers<'t>(
        &self,
        request: &Request<'t>,
        event: &'t Arrived<'_>,
        within: Option<&Remote>,
    ) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
        let said: Vec<_> = event.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // The body that is kept is JSON, whatever it was wrapped in; or what its sender says that the bytes are.
        let kind = (self.source.content == Content::Preset).then_some(("content-type", "application/json"));
        let is_said = |name: &str| kind.iter().chain(&said).any(|(there, _)| *there == name);
        // What is kept of a trace other than linked is what we made of it.
        let is_trace = |name: &str| {
            self.source.trace != trace::Incoming::Link && matches!(name, trace::TRACEPARENT | trace::TRACESTATE)
        };
        let came = request.headers.iter().filter(|(name, _)| !is_said(name) && !is_trace(name));
        let came = came.filter_map(|(name, value)| Some((*name, std::str::from_utf8(value).ok()?)));
        let all = kind.into_iter().chain(said.iter().copied()).chain(came);
        let mut kept = body::bounded_headers(all.filter(|(name, _)| self.source.minimise.keeps_header(name)));
        if let Some(Remote { context, state }) = within {
            kept.push((trace::TRACEPARENT.into(), context.to_string().into()));
            if !state.is_empty() {
                kept.push((trace::TRACESTATE.into(), state.clone().into()));
            }
        }
        kept
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
