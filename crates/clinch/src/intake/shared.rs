//! A key store that several installations share. It is asked before our own store, and told after it; what we accepted
//! ourselves our own store knows best.

use super::answer::Answer;
use crate::crash;
use crate::house::House;
use crate::secrets::Secrets;
use crate::telemetry::{ByStoreOutcome, Metrics, SharedOutcome};
use clinch_core::config::SharedStore;
use clinch_core::flow::OnConflict;
use clinch_core::key::{DedupKey, Fingerprint, Pepper};
use clinch_store::redis::{Hold, SharedKeys};
use clinch_store::{Acceptance, Accepted, Dedup, Held, NewEvent, Read, StoreError};
use data_encoding::HEXLOWER;
use prometheus_client::metrics::counter::Counter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A key that another installation is storing is asked for again this long.
const WAIT_MAX: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(320);

/// One entry of `kv:` in `clinch.yml`.
pub struct KeyStore {
    name: String,
    keys: SharedKeys,
    pepper: Pepper,
    /// It could not be asked the last time.
    is_away: AtomicBool,
    outcomes: Vec<Counter>,
}

/// A delivery as all installations see it.
pub struct Shared {
    kv: Arc<KeyStore>,
    key: DedupKey,
    fingerprint: Fingerprint,
}

/// Stores an event; where its key is shared, others are asked before and told afterwards.
pub async fn accept(house: &House, event: NewEvent, shared: Option<Shared>) -> Result<Acceptance, Answer> {
    if let Some(shared) = shared
        && let Some(dedup) = event.dedup.clone()
    {
        return shared.accept(house.clone(), event, dedup).await;
    }
    house.store.accept(event).await.map_err(|error| Answer::unavailable(&error))
}

impl KeyStore {
    /// Does not connect yet: a Redis that is away keeps no other flow from running.
    pub fn new(kv: &SharedStore, secrets: &Secrets, own: &dyn Read, metrics: &Metrics) -> Result<KeyStore, StoreError> {
        let refuse = |why: String| StoreError::Open(format!("kv:{}: {why}", kv.name));
        let secret = |name: &str| secrets.get(name);
        let address = kv.address(secret).map_err(|error| refuse(error.to_string()))?;
        let words = kv.secret_pepper(secret).map_err(|error| refuse(error.to_string()))?;
        let outcome =
            |outcome: SharedOutcome| metrics.shared_keys.get_or_create_owned(&ByStoreOutcome::of(&kv.name, outcome));
        Ok(KeyStore {
            name: kv.name.clone(),
            keys: SharedKeys::new(&address, &kv.prefix, &installation(own))
                .map_err(|error| refuse(error.to_string()))?,
            pepper: Pepper::of_words(words.as_deref().unwrap_or(&kv.prefix)),
            is_away: AtomicBool::new(false),
            outcomes: SharedOutcome::ALL.into_iter().map(outcome).collect(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Says what in its settings may lose keys, or that it is away.
    pub async fn look(&self) {
        match self.keys.doubts().await {
            Ok(doubts) => {
                for doubt in doubts {
                    tracing::warn!("kv:{}: {doubt}", self.name);
                }
            }
            Err(error) => self.note(Some(&error)),
        }
    }

    pub fn shared(self: &Arc<Self>, tenant: &str, scope: &str, key: &str, fingerprint: &Fingerprint) -> Shared {
        Shared {
            key: DedupKey::scoped(&self.pepper, tenant, scope, key),
            fingerprint: fingerprint.under(&self.pepper),
            kv: self.clone(),
        }
    }

    fn count(&self, outcome: SharedOutcome) {
        self.outcomes[outcome as usize].inc();
    }

    /// Says once that it went away, and once that it is back.
    fn note(&self, error: Option<&StoreError>) {
        let was_away = self.is_away.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_away => {
                tracing::error!("kv:{}: {error}; deliveries of its flows are answered 503 until it is back", self.name);
            }
            None if was_away => tracing::info!("kv:{}: it is back", self.name),
            _ => {}
        }
    }
}

/// The same for every node on one store, also after a restart; tells nothing about the store's secret.
fn installation(own: &dyn Read) -> String {
    let tag = DedupKey::scoped(&Pepper::new(own.pepper()), "", "installation", "");
    HEXLOWER.encode(&tag.as_bytes()[..16])
}

impl Shared {
    /// Ask the others, store, tell the others. A sender that hangs up changes nothing in that: whoever stored an event must
    /// also tell.
    async fn accept(self, house: House, event: NewEvent, dedup: Dedup) -> Result<Acceptance, Answer> {
        let walk = async move {
            match self.ask().await? {
                Hold::Ours => self.store_and_tell(&house, event, &dedup).await,
                Hold::Done { fingerprint, first } => {
                    self.kv.count(SharedOutcome::Theirs);
                    Ok(self.theirs(&fingerprint, first, dedup.on_conflict))
                }
                Hold::Pending => {
                    self.kv.count(SharedOutcome::InFlight);
                    Err(Answer::in_flight())
                }
            }
        };
        tokio::spawn(walk).await.expect("nothing in it panics")
    }

    /// Whose key it is. Another installation that is storing its event at this moment is given time to say so.
    async fn ask(&self) -> Result<Hold, Answer> {
        let (mut waited, mut pause) = (Duration::ZERO, PAUSE_FIRST);
        loop {
            let hold = self.kv.keys.claim(&self.key).await;
            self.kv.note(hold.as_ref().err());
            match hold {
                Ok(Hold::Pending) if waited < WAIT_MAX => {
                    tokio::time::sleep(pause).await;
                    waited += pause;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Ok(hold) => return Ok(hold),
                Err(error) => {
                    self.kv.count(SharedOutcome::Unavailable);
                    return Err(Answer::keys_unavailable(&error));
                }
            }
        }
    }

    /// What our own store says is the truth; then the others are told.
    async fn store_and_tell(&self, house: &House, event: NewEvent, dedup: &Dedup) -> Result<Acceptance, Answer> {
        self.kv.count(SharedOutcome::Ours);
        let answer = house.store.accept(event).await;
        crash::point("after_accept");
        match &answer {
            Ok(Acceptance::Fresh(first) | Acceptance::Duplicate(first)) => {
                let rest = (first.received_at + dedup.ttl).since(house.clock.now());
                self.tell(first, rest).await;
            }
            // The others cannot be told the first body's fingerprint, which is not this one's.
            Ok(Acceptance::Kept(_) | Acceptance::Conflict(_)) => self.release().await,
            Err(_) => {
                // Only what is known not to be stored is given up. Else the entry stays until it expires by itself: we, or
                // another node of ours, may have to say that it is stored after all.
                if let Ok(None) = house.store.key(dedup.key).await {
                    self.release().await;
                }
            }
        }
        answer.map_err(|error| Answer::unavailable(&error))
    }

    /// The event is stored and stays so; that the others do not know is a pity, and said.
    async fn tell(&self, first: &Accepted, rest: Duration) {
        if rest.is_zero() {
            // Our own store keeps keys of unfinished jobs for longer.
            return self.release().await;
        }
        let KeyStore { name, keys, .. } = &*self.kv;
        match keys.keep(&self.key, &self.fingerprint, first, rest).await {
            Ok(Held::Held) => {}
            Ok(Held::Lost) => {
                self.kv.count(SharedOutcome::Untold);
                tracing::error!(event.id = %first.event, trace.id = %first.trace, "kv:{name}: {} is stored here, and another installation has its key by now: it may happen twice", first.event);
            }
            Err(error) => {
                self.kv.count(SharedOutcome::Untold);
                tracing::error!(event.id = %first.event, trace.id = %first.trace, "kv:{name}: {} is stored and other installations cannot be told: {error}", first.event);
            }
        }
    }

    async fn release(&self) {
        if let Err(error) = self.kv.keys.release(&self.key).await {
            tracing::debug!("kv:{}: an entry stays until it expires: {error}", self.kv.name);
        }
    }

    /// Another installation accepted it: its answer, or its conflict.
    fn theirs(&self, fingerprint: &Fingerprint, first: Accepted, on_conflict: OnConflict) -> Acceptance {
        match on_conflict {
            _ if *fingerprint == self.fingerprint => Acceptance::Duplicate(first),
            OnConflict::Reject => Acceptance::Conflict(first),
            OnConflict::KeepFirst => Acceptance::Kept(first),
        }
    }
}
