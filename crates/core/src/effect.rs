//! The ledger's nouns: what was meant to be done outside, and what is known of it.

use crate::death::Reason;
use crate::id::{BadId, JobId};
use crate::integration::Promise;
use crate::job::Fence;
use crate::time::Timestamp;
use bytes::Bytes;
use serde_json::Value;
use std::fmt;
use std::str::FromStr;

/// What a target does with a request that it has seen before, as the step declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idempotency {
    /// It honours our idempotency key.
    Header,
    /// Doing it twice is doing it once (PUT, upsert).
    Natural,
    /// It can be asked whether it was done.
    Lookup,
    /// It knows no keys, and clinch remembers for it what was done under one.
    Wrap,
    /// As `Wrap`, and it was the call of another job that answered: for this one nothing was sent. Only written down, never declared.
    Shared,
    /// Nothing is known: never send again by itself.
    #[default]
    None,
}

impl Idempotency {
    pub const fn word(self) -> &'static str {
        match self {
            Idempotency::Header => "header",
            Idempotency::Natural => "natural",
            Idempotency::Lookup => "lookup",
            Idempotency::Wrap | Idempotency::Shared => "wrap",
            Idempotency::None => "none",
        }
    }

    /// Does sending it again, with the same key, do no harm?
    pub const fn may_send_again(self) -> bool {
        matches!(self, Idempotency::Header | Idempotency::Natural)
    }

    /// Is there a rule that decides an unknown outcome without a person?
    pub const fn is_protected(self) -> bool {
        !matches!(self, Idempotency::None | Idempotency::Wrap)
    }
}

/// What an effect does, which says how careful to be with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EffectClass {
    /// Changes nothing.
    Read,
    #[default]
    Create,
    /// Moves something from one state to another.
    State,
    Monetary,
}

impl EffectClass {
    pub const fn word(self) -> &'static str {
        match self {
            EffectClass::Read => "read",
            EffectClass::Create => "create",
            EffectClass::State => "state",
            EffectClass::Monetary => "monetary",
        }
    }

    /// Whether nobody can take it back.
    pub const fn is_irreversible(self) -> bool {
        matches!(self, EffectClass::Create | EffectClass::Monetary)
    }
}

/// What is known of one effect. An `Open` one was about to be sent, or was sent: only its worker knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectState {
    Open,
    /// The target answered that it did it.
    Done(Receipt),
    /// The target answered that it did not, or nothing was sent.
    NotDone,
    /// It was sent and no answer came, or its worker is gone. The honest name of a gap that nobody can close.
    Unknown,
    /// It was refused, or tried as often as it may be, while others of its job went on: not tried again before a replay.
    /// With `UnknownOutcome` it may have been done, and people read `unknown`.
    GivenUp(Reason),
}

impl EffectState {
    pub const fn word(&self) -> &'static str {
        match self {
            EffectState::Open => EffectWord::Open.as_str(),
            EffectState::Done(_) => EffectWord::Done.as_str(),
            EffectState::NotDone => EffectWord::NotDone.as_str(),
            EffectState::Unknown | EffectState::GivenUp(Reason::UnknownOutcome) => EffectWord::Unknown.as_str(),
            EffectState::GivenUp(_) => EffectWord::GivenUp.as_str(),
        }
    }

    /// Whether it may or may not have happened.
    pub const fn is_unclear(&self) -> bool {
        matches!(self, EffectState::Open | EffectState::Unknown | EffectState::GivenUp(Reason::UnknownOutcome))
    }

    /// What is known once this came of another send, where an earlier one may have arrived: that the later one failed says nothing
    /// of the earlier.
    pub fn after(self, is_in_doubt: bool) -> EffectState {
        match self {
            EffectState::NotDone if is_in_doubt => EffectState::Unknown,
            known => known,
        }
    }
}

/// The words for what is known of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectWord {
    Open,
    Done,
    NotDone,
    Unknown,
    GivenUp,
}

impl EffectWord {
    pub const ALL: [EffectWord; 5] =
        [EffectWord::Open, EffectWord::Done, EffectWord::NotDone, EffectWord::Unknown, EffectWord::GivenUp];

    pub const fn as_str(self) -> &'static str {
        match self {
            EffectWord::Open => "open",
            EffectWord::Done => "done",
            EffectWord::NotDone => "not_done",
            EffectWord::Unknown => "unknown",
            EffectWord::GivenUp => "given_up",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a state of an effect; the states are open, done, not_done, unknown, given_up")]
pub struct BadEffectWord(String);

impl FromStr for EffectWord {
    type Err = BadEffectWord;

    fn from_str(text: &str) -> Result<EffectWord, BadEffectWord> {
        let named = EffectWord::ALL.into_iter().find(|word| word.as_str() == text);
        named.ok_or_else(|| BadEffectWord(text.chars().take(40).collect()))
    }
}

/// The answer that proves it, kept as the step's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub status: u16,
    /// Of an answer at most `RECEIPT_BYTES_MAX`.
    pub body: Bytes,
}

impl Receipt {
    /// What is stored of the answer: of an empty one nothing, for that there was one is told by its status.
    pub fn kept(&self) -> Option<&Bytes> {
        (!self.body.is_empty()).then_some(&self.body)
    }

    /// What steps after it read: JSON, or else text.
    pub fn output(&self) -> Value {
        let text = || Value::String(String::from_utf8_lossy(&self.body).into_owned());
        serde_json::from_slice(&self.body).unwrap_or_else(|_| text())
    }
}

/// More of an answer than this is not kept.
pub const RECEIPT_BYTES_MAX: usize = 16 << 10;

/// One row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The step's name.
    pub name: String,
    pub class: Idempotency,
    pub state: EffectState,
    pub first_intended_at: Timestamp,
    pub changed_at: Timestamp,
    /// How often it was about to be sent.
    pub sends: u32,
}

/// What became of a send whose worker had lost the job by then. It is evidence for a person and changes no state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateAnswer {
    pub step: String,
    /// Of the lease under which it was sent.
    pub fence: Fence,
    pub at: Timestamp,
    /// What it says of the effect: never `Open`.
    pub state: EffectState,
    /// What the target answered, if it did.
    pub status: Option<u16>,
}

/// The name of an effect among all: its job and its step, written `job_…/charge`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EffectId {
    pub job: JobId,
    pub step: String,
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.step)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEffectId {
    #[error("an effect is named by its job and its step, such as job_01HZX5T0N8W2A/charge")]
    NoStep,
    #[error(transparent)]
    Job(#[from] BadId),
}

impl FromStr for EffectId {
    type Err = BadEffectId;

    fn from_str(text: &str) -> Result<EffectId, BadEffectId> {
        let (job, step) = text.split_once('/').filter(|(_, step)| !step.is_empty()).ok_or(BadEffectId::NoStep)?;
        Ok(EffectId { job: job.parse()?, step: step.to_string() })
    }
}

/// May this effect be sent now? Decided before every intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing was ever sent, or what was sent may be sent again.
    Send,
    /// It is done; use the first result.
    Skip(Receipt),
    /// Its outcome is unknown, and the partner can be asked.
    LookUp,
    /// Its outcome is unknown and sending again could repeat it.
    Ask,
    /// An earlier attempt gave it up, for this reason.
    Never(Reason),
}

pub fn leave(past: Option<&Effect>, promise: &Promise, now: Timestamp) -> Leave {
    let Some(past) = past else { return Leave::Send };
    match (&past.state, promise.idempotency) {
        (EffectState::NotDone, _) => Leave::Send,
        (EffectState::GivenUp(reason), _) => Leave::Never(*reason),
        (EffectState::Done(receipt), _) => Leave::Skip(receipt.clone()),
        (EffectState::Open | EffectState::Unknown, _) if past.class == Idempotency::Shared => Leave::Send,
        (EffectState::Open | EffectState::Unknown, Idempotency::Natural) => Leave::Send,
        (EffectState::Open | EffectState::Unknown, Idempotency::Header) => {
            let is_old = promise.honoured_for.is_some_and(|honoured| now.since(past.first_intended_at) >= honoured);
            if is_old { Leave::Ask } else { Leave::Send }
        }
        (EffectState::Open | EffectState::Unknown, Idempotency::Lookup) => Leave::LookUp,
        (EffectState::Open | EffectState::Unknown, Idempotency::None | Idempotency::Wrap | Idempotency::Shared) => {
            Leave::Ask
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(0);

    fn promise(idempotency: Idempotency) -> Promise {
        Promise { idempotency, ..Promise::default() }
    }

    fn past(state: EffectState) -> Effect {
        let at = NOW;
        Effect { name: "post".into(), class: Idempotency::None, state, first_intended_at: at, changed_at: at, sends: 1 }
    }

    #[test]
    fn d2_an_effect_is_named_by_its_job_and_its_step() {
        let id = EffectId { job: JobId::from_number(7), step: "charge/card".into() };
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "charge", "job_01HZX5T0N8W2A", "job_01HZX5T0N8W2A/"] {
            assert_eq!(bad.parse::<EffectId>(), Err(BadEffectId::NoStep), "{bad}");
        }
        assert!(matches!("evt_1/charge".parse::<EffectId>(), Err(BadEffectId::Job(_))));
    }

    #[test]
    fn d1_a_done_effect_is_skipped_with_its_first_result() {
        let receipt = Receipt { status: 201, body: Bytes::from_static(b"{}") };
        let done = past(EffectState::Done(receipt.clone()));
        for class in [Idempotency::None, Idempotency::Header, Idempotency::Natural] {
            assert_eq!(leave(Some(&done), &promise(class), NOW), Leave::Skip(receipt.clone()));
        }
    }

    #[test]
    fn p3_an_unknown_effect_is_sent_again_only_where_the_step_says_it_may() {
        for state in [EffectState::Open, EffectState::Unknown] {
            let left = |class| leave(Some(&past(state.clone())), &promise(class), NOW);
            assert_eq!(left(Idempotency::None), Leave::Ask);
            assert_eq!(left(Idempotency::Wrap), Leave::Ask);
            assert_eq!(left(Idempotency::Header), Leave::Send);
            assert_eq!(left(Idempotency::Natural), Leave::Send);
            assert_eq!(left(Idempotency::Lookup), Leave::LookUp);
            // Another job's call was about to be its answer: this one has sent nothing.
            let shared = Effect { class: Idempotency::Shared, ..past(state.clone()) };
            assert_eq!(leave(Some(&shared), &promise(Idempotency::Wrap), NOW), Leave::Send);
        }
        for class in [Idempotency::None, Idempotency::Lookup] {
            assert_eq!(leave(Some(&past(EffectState::NotDone)), &promise(class), NOW), Leave::Send);
            assert_eq!(leave(None, &promise(class), NOW), Leave::Send);
        }
    }

    #[test]
    fn p3_a_send_that_fails_says_nothing_of_an_earlier_one_whose_answer_was_lost() {
        let done = EffectState::Done(Receipt { status: 201, body: Bytes::from_static(b"{}") });
        assert_eq!(EffectState::NotDone.after(true), EffectState::Unknown);
        assert_eq!(EffectState::NotDone.after(false), EffectState::NotDone);
        assert_eq!(done.clone().after(true), done);
        let promise = Promise { honoured_for: Some(Duration::from_secs(60)), ..promise(Idempotency::Header) };
        let tried_again = past(EffectState::NotDone.after(true));
        assert_eq!(leave(Some(&tried_again), &promise, NOW + Duration::from_secs(61)), Leave::Ask);
    }

    #[test]
    fn c9_what_was_given_up_is_left_alone() {
        let given_up = past(EffectState::GivenUp(Reason::TargetDown));
        for class in [Idempotency::None, Idempotency::Header, Idempotency::Natural, Idempotency::Lookup] {
            assert_eq!(leave(Some(&given_up), &promise(class), NOW), Leave::Never(Reason::TargetDown));
        }
    }

    #[test]
    fn t_066_a_key_that_the_target_has_forgotten_is_not_sent_again() {
        let promise = Promise { honoured_for: Some(Duration::from_secs(60)), ..promise(Idempotency::Header) };
        let unknown = past(EffectState::Unknown);
        let at = |seconds| NOW + Duration::from_secs(seconds);
        assert_eq!(leave(Some(&unknown), &promise, at(59)), Leave::Send);
        assert_eq!(leave(Some(&unknown), &promise, at(60)), Leave::Ask);
    }
}
