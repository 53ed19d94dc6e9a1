//! Encryption at rest, below the verbs: what can carry somebody's data is sealed where it is written and opened where it is
//! read. Here and nowhere else; whoever asks the store never meets an envelope.

use crate::read::{AttemptRow, KeyUse};
use crate::{CallEnd, Called, Conclusion, SetOnce, Settlement};
use aws_lc_rs::rand;
use bytes::Bytes;
use clinch_core::call::{CallKey, CallLeave};
use clinch_core::effect::{Effect, EffectState, LateAnswer, Receipt};
use clinch_core::id::{EventId, JobId};
use clinch_core::seal::{KeyCheck, KeyId, KeyRing, NONCE_BYTES, NotOpened, Place, sealed_with};
use clinch_core::time::Timestamp;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// What is kept in a place, or why it cannot be had.
pub type Kept = std::result::Result<Bytes, NotOpened>;

pub(crate) struct Sealer {
    /// `None`: nothing is encrypted, because the operator said so.
    ring: RwLock<Option<Arc<KeyRing>>>,
    /// Nothing in this store is from before encryption: what is not sealed was put there by somebody else.
    strict: AtomicBool,
}

impl Sealer {
    pub fn new(ring: Option<KeyRing>) -> Sealer {
        Sealer { ring: RwLock::new(ring.map(Arc::new)), strict: AtomicBool::new(false) }
    }

    pub fn ring(&self) -> Option<Arc<KeyRing>> {
        self.ring.read().expect("nobody panics while holding the keys").clone()
    }

    /// From here on this is what is written with.
    pub fn use_keys(&self, ring: KeyRing) {
        *self.ring.write().expect("nobody panics while holding the keys") = Some(Arc::new(ring));
    }

    pub fn be_strict(&self) {
        self.strict.store(true, Ordering::Relaxed);
    }

    pub fn payload<'p>(&self, event: EventId, plain: &'p [u8]) -> Cow<'p, [u8]> {
        self.seal(Place::Payload(event), plain)
    }

    /// The answer that a conclusion keeps.
    pub fn result(&self, job: JobId, end: &Conclusion) -> Option<Vec<u8>> {
        let EffectState::Done(receipt) = &end.state else { return None };
        receipt.kept().map(|body| self.seal(result_place(job, &end.name), body).into_owned())
    }

    /// Both results that a key may have.
    pub fn once(&self, job: JobId, ask: SetOnce) -> SetOnce {
        let seal = |receipt: &Receipt| {
            let body = self.seal(result_place(job, &ask.step), &receipt.body).into_owned().into();
            Receipt { status: receipt.status, body }
        };
        SetOnce { was_free: seal(&ask.was_free), was_taken: seal(&ask.was_taken), ..ask }
    }

    pub fn open_result(&self, job: JobId, step: &str, stored: Receipt) -> crate::Result<Receipt> {
        match self.open(result_place(job, step), &stored.body) {
            Ok(body) => Ok(Receipt { body, ..stored }),
            Err(why) => Err(crate::StoreError::Damaged(format!("the result of step `{step}` of {job}: {why}"))),
        }
    }

    /// The answer that a call keeps.
    pub fn call_end(&self, key: &CallKey, end: CallEnd) -> CallEnd {
        match end {
            CallEnd::Done(answer) => CallEnd::Done(self.seal(Place::Answer(key), &answer).into_owned().into()),
            end => end,
        }
    }

    pub fn called(&self, key: &CallKey, leave: CallLeave, answer: &[u8]) -> Called {
        match leave {
            CallLeave::Make => Called::Ours,
            CallLeave::Answer => Called::Before(self.open(Place::Answer(key), answer)),
            CallLeave::Own => Called::Own(self.open(Place::Answer(key), answer)),
            CallLeave::Other => Called::Other,
            CallLeave::Busy { until } => Called::Busy { until },
            CallLeave::Unknown { since } => Called::Unknown { since },
        }
    }

    pub fn error(&self, job: JobId, end: &Settlement) -> Option<Vec<u8>> {
        let error = end.error.as_ref()?;
        Some(self.seal(Place::Error { job, started_at: end.started_at }, error.as_bytes()).into_owned())
    }

    fn seal<'p>(&self, place: Place<'_>, plain: &'p [u8]) -> Cow<'p, [u8]> {
        match self.ring() {
            None => Cow::Borrowed(plain),
            Some(ring) => Cow::Owned(ring.seal(place, nonce(), plain)),
        }
    }

    pub fn open(&self, place: Place<'_>, stored: &[u8]) -> Kept {
        let opened = match self.ring() {
            Some(ring) => ring.open(place, stored),
            None => Err(match sealed_with(stored) {
                Ok(key) => NotOpened::UnknownKey(key),
                Err(why) => why,
            }),
        };
        match opened {
            Err(NotOpened::NotSealed) if self.strict.load(Ordering::Relaxed) => Err(NotOpened::Tampered),
            Err(NotOpened::NotSealed) => Ok(Bytes::copy_from_slice(stored)),
            opened => opened.map(Bytes::from),
        }
    }

    pub fn open_payload(&self, event: EventId, stored: &[u8]) -> Kept {
        self.open(Place::Payload(event), stored)
    }

    /// The answers in these rows of a job's ledger. One that does not open is left empty; the first reason is told.
    pub fn open_effects(&self, job: JobId, effects: &mut [Effect]) -> std::result::Result<(), NotOpened> {
        let mut done = Ok(());
        for effect in effects {
            let EffectState::Done(Receipt { body, .. }) = &mut effect.state else { continue };
            // A person may have ruled that it is done: then there never was an answer.
            if body.is_empty() {
                continue;
            }
            match self.open(result_place(job, &effect.name), body) {
                Ok(opened) => *body = opened,
                Err(why) => {
                    *body = Bytes::new();
                    done = done.and(Err(why));
                }
            }
        }
        done
    }

    /// The answers that came too late. They lie in the place of the result, which they may become; one that does not open is
    /// left empty.
    pub fn open_late(&self, job: JobId, late: &mut [LateAnswer]) {
        for answer in late {
            if let EffectState::Done(Receipt { body, .. }) = &mut answer.state {
                *body = self.open(result_place(job, &answer.step), body).unwrap_or_default();
            }
        }
    }

    /// For people: what was kept, or why it is not told.
    pub fn open_error(&self, job: JobId, started_at: Timestamp, stored: &[u8]) -> String {
        match self.open(Place::Error { job, started_at }, stored) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(why) => format!("(the error is not shown: {why})"),
        }
    }

    /// The same content under the key that writes now; `None` if there is nothing to be done.
    pub fn again(&self, place: Place<'_>, stored: &[u8]) -> std::result::Result<Option<Vec<u8>>, NotOpened> {
        let Some(ring) = self.ring() else { return Ok(None) };
        match sealed_with(stored) {
            Ok(key) if key == ring.active() => return Ok(None),
            Err(NotOpened::Forgotten) => return Ok(None),
            _ => {}
        }
        let plain = self.open(place, stored)?;
        Ok(Some(ring.seal(place, nonce(), &plain)))
    }
}

pub(crate) fn result_place(job: JobId, step: &str) -> Place<'_> {
    Place::Result { job, step }
}

/// Never twice: the operating system gives it.
fn nonce() -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    rand::fill(&mut nonce).expect("the operating system has randomness");
    nonce
}

/// An attempt as it is stored.
pub(crate) struct SealedAttempt {
    /// Without its error.
    pub row: AttemptRow,
    pub error: Option<Vec<u8>>,
}

impl SealedAttempt {
    pub fn open(self, sealer: &Sealer, job: JobId) -> AttemptRow {
        let error = self.error.map(|error| sealer.open_error(job, self.row.started_at, &error));
        AttemptRow { error, ..self.row }
    }
}

/// Which count of a key.
pub(crate) type Part = fn(&mut KeyUse) -> &mut u64;

impl KeyUse {
    /// Counts places that begin like this: head of an envelope, or of something from before encryption. What was erased is
    /// under no key.
    pub(crate) fn add(uses: &mut Vec<KeyUse>, head: &[u8], places: u64, part: Part) {
        let key = match sealed_with(head) {
            Ok(key) => Some(key),
            Err(NotOpened::NotSealed) => None,
            Err(_) => return,
        };
        let at = uses.iter().position(|of| of.key == key).unwrap_or_else(|| {
            uses.push(KeyUse { key, payloads: 0, results: 0, errors: 0 });
            uses.len() - 1
        });
        *part(&mut uses[at]) += places;
    }
}

/// The name under which a store knows a key it has envelopes of.
pub(crate) fn check_name(key: KeyId) -> String {
    key.to_string()
}

/// Rows of the table `secret` that are key checks.
pub(crate) fn check(name: &str, value: &[u8]) -> Option<KeyCheck> {
    let value = <[u8; KeyCheck::BYTES]>::try_from(value).ok()?;
    name.starts_with("key_").then(|| KeyCheck::from_bytes(value))
}

/// Refuses to go on without a key that the store has data under.
pub(crate) fn refuse_unknown(ring: Option<&KeyRing>, kept: &[KeyCheck]) -> crate::Result<()> {
    let refuse = |why: String| Err(crate::StoreError::Open(why));
    match (ring, kept.first()) {
        (Some(ring), _) => ring.recognises(kept).or_else(|wrong| refuse(wrong.to_string())),
        (None, None) => Ok(()),
        (None, Some(check)) => refuse(format!(
            "it has data under {}, and no key is configured; give that key under `encryption:` in clinch.yml",
            check.key()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn t107_a_million_nonces_are_all_different() {
        let nonces: HashSet<_> = (0..1_000_000).map(|_| nonce()).collect();
        assert_eq!(nonces.len(), 1_000_000);
    }
}
