//! The world of a law: one engine with one store in it, and the few moves from which every law is told.

use async_trait::async_trait;
use bytes::Bytes;
use clinch_core::audit::{Right, Who};
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::flow::{OnConflict, OnDuplicateOfDead};
use clinch_core::id::JobId;
use clinch_core::job::{Change, Ending};
use clinch_core::key::{DedupKey, Fingerprint, Pepper};
use clinch_core::lane::{Lane, Order};
use clinch_core::payload::TraceId;
use clinch_core::seal::KeyRing;
use clinch_core::time::Timestamp;
use clinch_store::read::{AuditFilter, AuditRow, JobFilter, JobStory};
use clinch_store::sqlite::Report;
use clinch_store::{
    Acceptance, Accepted, ActivateAsk, Activated, Activation, Claim, ClaimAsk, Conclusion, Dedup, Held, Kept, LeaseRef,
    NewEffect, NewEvent, NewJob, Pruned, Record, Retention, ReviveAsk, Revived, Settlement, Store, StoreError,
    VersionId,
};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub const PEPPER: [u8; 32] = [7; 32];
pub const KEY_TTL: Duration = Duration::from_secs(86_400);
pub const LEASE: Duration = Duration::from_secs(60);
/// Far more than any machine needs; a law that fails must end.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const RETENTION: Duration = Duration::from_secs(4 * 86_400);

const START: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// What the store of every law is encrypted with, and what else there is.
pub const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
pub const OTHER_KEY: &str = "1f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100";

pub fn ring(active: &str, older: &[&str]) -> KeyRing {
    KeyRing::new(active, older).expect("keys")
}

pub fn keys(active: &str) -> Option<KeyRing> {
    Some(ring(active, &[]))
}

pub fn opened(kept: &Kept) -> &Bytes {
    kept.as_ref().expect("it opens")
}

/// So many seconds after the world began. Time is handed in; no law waits for it.
pub fn later(seconds: u64) -> Timestamp {
    START + Duration::from_secs(seconds)
}

/// Where a store lives and what can be done to it from outside.
#[async_trait]
pub trait Engine: Send + Sync {
    async fn open(&self, keys: Option<KeyRing>) -> clinch_store::Result<Arc<dyn Store>>;
    /// The place as a kill at this very moment would leave it. The store in it stays as it is.
    async fn copy(&self) -> Box<dyn Engine>;
    /// Another place of the kind, with nothing in it.
    async fn empty(&self) -> Box<dyn Engine>;
    async fn verify(&self, now: Timestamp) -> Report;
    /// Every byte that is kept.
    async fn bytes(&self) -> Vec<u8>;
    /// The one value that this finds, behind the back of the store: `$1` is an id.
    async fn look(&self, sql: &str, id: u64) -> Vec<u8>;
    /// Writes as whoever has the database itself in hand, and whom no trigger stops.
    async fn forge(&self, sql: &str);
    /// Why a statement is refused that somebody runs beside the store.
    async fn refusal(&self, sql: &str) -> String;
    /// Changes a value behind the back of the store: `$1` is an id, `$2` the value.
    async fn meddle(&self, sql: &str, id: u64, value: &[u8]);
}

pub struct World {
    engine: Box<dyn Engine>,
    store: Arc<dyn Store>,
}

impl Deref for World {
    type Target = Arc<dyn Store>;
    fn deref(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

impl World {
    pub async fn new(engine: Box<dyn Engine>) -> World {
        World::opened(engine, keys(KEY)).await
    }

    async fn opened(engine: Box<dyn Engine>, keys: Option<KeyRing>) -> World {
        let store = engine.open(keys).await.expect("opened");
        World { engine, store }
    }

    /// The same place in another world, in which nothing was encrypted from the beginning.
    pub async fn emptied(self, keys: Option<KeyRing>) -> World {
        let World { engine, store } = self;
        drop(store);
        World::opened(engine.empty().await, keys).await
    }

    /// Stopped and started again with these keys.
    pub async fn restarted(self, keys: Option<KeyRing>) -> World {
        let World { engine, store } = self;
        drop(store);
        World::opened(engine, keys).await
    }

    /// Stopped, and why it does not start with these keys.
    pub async fn refused(self, keys: Option<KeyRing>) -> (String, Box<dyn Engine>) {
        let World { engine, store } = self;
        drop(store);
        match engine.open(keys).await {
            Err(StoreError::Open(why)) => (why, engine),
            Err(other) => panic!("refused for another reason: {other}"),
            Ok(_) => panic!("opened"),
        }
    }

    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// What a kill at this moment leaves, started again.
    pub async fn after_a_kill(&self) -> World {
        World::new(self.engine.copy().await).await
    }

    /// Stopped in good order and started again.
    pub async fn after_a_stop(self) -> World {
        drop(self.store);
        World::new(self.engine).await
    }

    pub async fn bytes(&self) -> Vec<u8> {
        self.engine.bytes().await
    }

    pub async fn report(&self, now: Timestamp) -> Report {
        self.engine.verify(now).await
    }

    /// P5: everything adds up, while no key has expired yet.
    pub async fn adds_up(&self) {
        self.adds_up_at(later(0)).await;
    }

    pub async fn adds_up_at(&self, now: Timestamp) {
        assert_eq!(self.report(now).await.problems, Vec::<String>::new());
    }

    /// A process starts with these files.
    pub async fn starts_with(&self, hash: u8, at: u64) -> Activated {
        let record = Who::clinch("start").record("a server started with it", later(at));
        let ask = ActivateAsk { hash: [hash; 32], files: format!("{hash}"), by: Activation::Files, record };
        self.activate(ask).await.expect("known")
    }

    pub async fn accepted(&self, event: NewEvent) -> Accepted {
        match self.accept(event).await.expect("accepted") {
            Acceptance::Fresh(accepted) => accepted,
            other => panic!("not fresh: {other:?}"),
        }
    }

    pub async fn duplicate(&self, event: NewEvent) -> Accepted {
        match self.accept(event).await.expect("accepted") {
            Acceptance::Duplicate(accepted) => accepted,
            other => panic!("not a duplicate: {other:?}"),
        }
    }

    pub async fn claims(&self, queue: &str, most: usize, now: Timestamp) -> Vec<Claim> {
        let ask = ClaimAsk { queue: queue.into(), most, but: None, now, until: now + LEASE };
        self.claim(ask).await.expect("claimed")
    }

    /// Takes the one job that is due in the queue `work`.
    pub async fn take(&self, now: Timestamp) -> Claim {
        let mut claims = self.claims("work", 1, now).await;
        claims.pop().expect("a job is due")
    }

    pub async fn story(&self, job: JobId) -> JobStory {
        self.job(job).await.expect("read").expect("the job is there")
    }

    /// What is on record, newest first.
    pub async fn record(&self) -> Vec<AuditRow> {
        self.audit(AuditFilter::last(1_000)).await.expect("read")
    }

    /// How many jobs there are, in whatever state.
    pub async fn jobs_len(&self) -> usize {
        let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
        self.jobs(filter).await.expect("read").rows.len()
    }

    pub async fn intends(&self, lease: LeaseRef, step: &str, class: Idempotency, at: Timestamp) -> Held {
        let effect = NewEffect { name: step.into(), class, at };
        self.intend(lease, effect).await.expect("answered")
    }

    pub async fn concludes(&self, lease: LeaseRef, step: &str, state: EffectState, at: Timestamp) -> Held {
        let name = step.into();
        self.conclude(lease, Conclusion { name, state, at }).await.expect("answered")
    }

    pub async fn settles(&self, lease: LeaseRef, end: Settlement) {
        assert_eq!(self.settle(lease, end).await.expect("answered"), Held::Held);
    }

    /// Accepts one event without a key, and brings its job to a good end.
    pub async fn success(&self, at: Timestamp) -> Accepted {
        let accepted = self.accepted(NewEvent { received_at: at, dedup: None, ..event("success") }).await;
        self.finish(at).await;
        accepted
    }

    /// Brings the next job to a good end.
    pub async fn finish(&self, at: Timestamp) {
        let claim = self.take(at).await;
        self.settles(claim.lease, finished(at)).await;
    }

    /// Accepts an event under this key and lets it become a dead letter.
    pub async fn dead(&self, key: &str, at: Timestamp, reason: Reason) -> Accepted {
        let event = NewEvent { received_at: at, ..event(key) };
        let accepted = self.accepted(event).await;
        self.bury(at, reason).await;
        accepted
    }

    pub async fn bury(&self, at: Timestamp, reason: Reason) {
        let claim = self.take(at).await;
        self.settles(claim.lease, buried(at, reason)).await;
    }

    /// A dead letter whose one effect may or may not have happened.
    pub async fn unknown(&self, key: &str, class: Idempotency) -> Accepted {
        let accepted = self.accepted(event(key)).await;
        let claim = self.take(later(1)).await;
        self.intends(claim.lease, "post", class, later(1)).await;
        let end = Settlement {
            conclusion: Some(Conclusion { name: "post".into(), state: EffectState::Unknown, at: later(2) }),
            ..buried(later(2), Reason::UnknownOutcome)
        };
        self.settles(claim.lease, end).await;
        accepted
    }

    pub async fn revives(&self, job: JobId, at: Timestamp) -> Revived {
        self.revive(replay(job, at)).await.expect("answered")
    }

    pub async fn prunes(&self, now: Timestamp) -> Pruned {
        let retention = Retention { default: RETENTION, ..Retention::default() };
        self.prune(now, retention, 1_000).await.expect("pruned")
    }
}

pub fn key(text: &str) -> DedupKey {
    DedupKey::scoped(&Pepper::new(&PEPPER), "default", "/orders", text)
}

pub fn dedup(text: &str, body: &[u8]) -> Dedup {
    Dedup {
        key: key(text),
        fingerprint: Fingerprint::of("POST", body),
        ttl: KEY_TTL,
        on_conflict: OnConflict::Reject,
        on_duplicate_of_dead: OnDuplicateOfDead::Keep,
    }
}

/// One delivery for the queue `work`, received when the world began. Each is in a trace of its own.
pub fn event(key: &str) -> NewEvent {
    static DELIVERIES: AtomicU64 = AtomicU64::new(1);
    NewEvent {
        source: "orders".into(),
        version: VersionId(1),
        received_at: later(0),
        trace: TraceId::new(later(0), DELIVERIES.fetch_add(1, Ordering::Relaxed).into()),
        dedup: Some(dedup(key, b"the body")),
        status: 202,
        payload: Bytes::from_static(b"the payload"),
        handles: Vec::new(),
        jobs: vec![job("work")],
    }
}

/// A job for this queue, due when the world began, with nothing said about its place.
pub fn job(queue: &str) -> NewJob {
    let lane = Lane::tenant(&Pepper::new(&PEPPER), queue, "default");
    NewJob { flow: "orders".into(), queue: queue.into(), lane, order: Order::Any, priority: 0, run_at: later(0) }
}

/// The end of an attempt that took a second.
pub fn settlement(ended_at: Timestamp, outcome: &'static str, change: Change) -> Settlement {
    Settlement {
        started_at: ended_at - Duration::from_secs(1),
        ended_at,
        outcome,
        reason: None,
        error: None,
        charged: true,
        change,
        conclusion: None,
    }
}

pub fn finished(at: Timestamp) -> Settlement {
    let ending = Ending::Success;
    settlement(at, "success", Change::Finished { at, ending })
}

pub fn failed(at: Timestamp, run_at: Timestamp) -> Settlement {
    Settlement {
        reason: Some(Reason::TargetDown),
        error: Some("the target answered 503".into()),
        ..settlement(at, "failed", Change::Retried { run_at })
    }
}

pub fn buried(at: Timestamp, reason: Reason) -> Settlement {
    Settlement {
        reason: Some(reason),
        error: Some("the target answered 404".into()),
        ..settlement(at, "refused", Change::Buried { at, reason })
    }
}

/// Somebody does something, from somewhere.
pub fn by(actor: &str, reason: &str, at: Timestamp) -> Record {
    Record { actor: actor.into(), origin: "api 192.0.2.7".into(), right: Right::Named, reason: reason.into(), at }
}

pub fn replay(job: JobId, at: Timestamp) -> ReviveAsk {
    ReviveAsk { job, record: by("alice", "the target is back", at), version: None, unknown: None }
}

pub fn done() -> EffectState {
    EffectState::Done(Receipt { status: 201, body: Bytes::from_static(b"{\"id\":7}") })
}
