//! The ledger's nouns: what was meant to be done outside, and what is known of it.

use crate::time::Timestamp;
use bytes::Bytes;

/// What a target does with a request that it has seen before, as the step declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idempotency {
    /// It honours our idempotency key.
    Header,
    /// Doing it twice is doing it once (PUT, upsert).
    Natural,
    /// Nothing is known: never send again by itself.
    #[default]
    None,
}

impl Idempotency {
    pub const fn word(self) -> &'static str {
        match self {
            Idempotency::Header => "header",
            Idempotency::Natural => "natural",
            Idempotency::None => "none",
        }
    }

    /// May an effect of unknown outcome be sent again with the same key?
    pub const fn may_send_again(self) -> bool {
        !matches!(self, Idempotency::None)
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
}

impl EffectState {
    pub const fn word(&self) -> &'static str {
        match self {
            EffectState::Open => "open",
            EffectState::Done(_) => "done",
            EffectState::NotDone => "not_done",
            EffectState::Unknown => "unknown",
        }
    }
}

/// The answer that proves it, kept as the step's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub status: u16,
    /// At most `RECEIPT_BYTES_MAX` of it.
    pub body: Bytes,
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

/// May this effect be sent now? Decided before every intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing was ever sent, or what was sent may be sent again.
    Send,
    /// It is done; use the first result.
    Skip(Receipt),
    /// Its outcome is unknown and sending again could repeat it.
    Ask,
}

pub fn leave(past: Option<&Effect>, class: Idempotency) -> Leave {
    match past.map(|effect| &effect.state) {
        None | Some(EffectState::NotDone) => Leave::Send,
        Some(EffectState::Done(receipt)) => Leave::Skip(receipt.clone()),
        Some(EffectState::Open | EffectState::Unknown) if class.may_send_again() => Leave::Send,
        Some(EffectState::Open | EffectState::Unknown) => Leave::Ask,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(state: EffectState) -> Effect {
        let at = Timestamp::from_micros(0);
        Effect { name: "post".into(), class: Idempotency::None, state, first_intended_at: at, changed_at: at, sends: 1 }
    }

    #[test]
    fn d1_a_done_effect_is_skipped_with_its_first_result() {
        let receipt = Receipt { status: 201, body: Bytes::from_static(b"{}") };
        let done = past(EffectState::Done(receipt.clone()));
        for class in [Idempotency::None, Idempotency::Header, Idempotency::Natural] {
            assert_eq!(leave(Some(&done), class), Leave::Skip(receipt.clone()));
        }
    }

    #[test]
    fn p3_an_unknown_effect_is_sent_again_only_where_the_step_says_it_may() {
        for state in [EffectState::Open, EffectState::Unknown] {
            assert_eq!(leave(Some(&past(state.clone())), Idempotency::None), Leave::Ask);
            assert_eq!(leave(Some(&past(state.clone())), Idempotency::Header), Leave::Send);
            assert_eq!(leave(Some(&past(state)), Idempotency::Natural), Leave::Send);
        }
        assert_eq!(leave(Some(&past(EffectState::NotDone)), Idempotency::None), Leave::Send);
        assert_eq!(leave(None, Idempotency::None), Leave::Send);
    }
}
