//! A call to a target that knows no keys, made for somebody who has one: the first success under a key is kept and given
//! again, and what may have happened is not tried again by itself.

use crate::job::Fence;
use crate::key::{Fingerprint, Pepper};
use crate::time::Timestamp;
use bytes::Bytes;

/// Whose call it is, unreadable without the pepper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallKey([u8; 32]);

impl CallKey {
    /// Keys of two scopes never meet.
    pub fn of(pepper: &Pepper, scope: &[&str], key: &str) -> CallKey {
        CallKey(pepper.mac("clinch call 1", &[scope, &[key]].concat()))
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> CallKey {
        CallKey(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Whose call it is: for which effect it is made, the same on every attempt of a job, and by which of those who had the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTurn {
    pub of: u64,
    pub fence: Fence,
}

impl CallTurn {
    /// Of one who has no job, and cannot lose it.
    pub const fn alone(of: u64) -> CallTurn {
        CallTurn { of, fence: Fence(0) }
    }
}

/// What is known of the call that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// Somebody makes it, or died over it; until then he surely has the time to end it.
    Open { until: Timestamp },
    /// It was done, and its answer is kept.
    Kept,
    /// It was sent and no answer came.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastCall {
    pub fingerprint: Fingerprint,
    /// Who made it, or makes it.
    pub turn: CallTurn,
    pub state: CallState,
    pub since: Timestamp,
    /// From then on the key is free again.
    pub expires: Timestamp,
}

/// What to do about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallLeave {
    Make,
    /// Give the answer that is kept.
    Answer,
    /// Give it: it is that of this very turn.
    Own,
    /// Another call has this key.
    Other,
    /// It is being made.
    Busy {
        until: Timestamp,
    },
    /// Nobody knows whether it was done.
    Unknown {
        since: Timestamp,
    },
}

/// Who wants a call made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub fingerprint: Fingerprint,
    pub turn: CallTurn,
    /// What may have happened is sent again.
    pub resends: bool,
}

pub fn leave(past: Option<&PastCall>, caller: Caller, now: Timestamp) -> CallLeave {
    let Some(past) = past.filter(|past| now < past.expires) else { return CallLeave::Make };
    if past.fingerprint != caller.fingerprint {
        return CallLeave::Other;
    }
    let is_own = past.turn.of == caller.turn.of;
    match past.state {
        // Whoever comes again under his own turn knows that he may, unless another has his job by now.
        CallState::Open { .. } | CallState::Unknown if is_own && past.turn.fence <= caller.turn.fence => {
            CallLeave::Make
        }
        CallState::Kept if is_own => CallLeave::Own,
        CallState::Kept => CallLeave::Answer,
        CallState::Open { until } if now < until => CallLeave::Busy { until },
        CallState::Open { .. } | CallState::Unknown if caller.resends => CallLeave::Make,
        CallState::Open { .. } | CallState::Unknown => CallLeave::Unknown { since: past.since },
    }
}

/// An answer as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAnswer {
    pub status: u16,
    pub headers: Vec<(String, Vec<u8>)>,
    /// `None`: it was too long to be kept.
    pub body: Option<Bytes>,
}

impl CallAnswer {
    /// Status, whether there is a body, the headers with the lengths before them, the body.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.status.to_be_bytes().to_vec();
        out.push(u8::from(self.body.is_some()));
        out.extend(u32::try_from(self.headers.len()).unwrap_or(0).to_be_bytes());
        for (name, value) in &self.headers {
            for part in [name.as_bytes(), value] {
                out.extend(u32::try_from(part.len()).unwrap_or(0).to_be_bytes());
                out.extend(part);
            }
        }
        out.extend(self.body.iter().flatten());
        out
    }

    /// `None`: it is not what was encoded.
    pub fn decode(bytes: &Bytes) -> Option<CallAnswer> {
        fn take<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
            let (taken, left) = rest.split_at_checked(length)?;
            *rest = left;
            Some(taken)
        }
        fn number(rest: &mut &[u8]) -> Option<usize> {
            usize::try_from(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?)).ok()
        }
        let mut rest = &bytes[..];
        let status = u16::from_be_bytes(take(&mut rest, 2)?.try_into().ok()?);
        let has_body = take(&mut rest, 1)? == [1];
        let mut headers = Vec::new();
        for _ in 0..number(&mut rest)? {
            let mut part = || number(&mut rest).and_then(|length| take(&mut rest, length));
            headers.push((String::from_utf8(part()?.to_vec()).ok()?, part()?.to_vec()));
        }
        let body = has_body.then(|| bytes.slice_ref(rest));
        Some(CallAnswer { status, headers, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const SOON: Timestamp = Timestamp::from_micros(1_000_000_001);
    const BEFORE: Timestamp = Timestamp::from_micros(999_999_999);

    fn body(text: &str) -> Fingerprint {
        Fingerprint::of("POST /charges", text.as_bytes())
    }

    #[test]
    fn d3_a_call_is_made_once_and_what_may_have_happened_is_left_alone() {
        let first = CallTurn { of: 1, fence: Fence(7) };
        let past = |state, expires| PastCall { fingerprint: body("a"), turn: first, state, since: BEFORE, expires };
        let of = |text, turn, resends| Caller { fingerprint: body(text), turn, resends };
        let caller = |text, resends| of(text, CallTurn { of: 2, fence: Fence(9) }, resends);
        let check = |state, expires, resends, expected| {
            assert_eq!(leave(Some(&past(state, expires)), caller("a", resends), NOW), expected, "{state:?}");
        };
        assert_eq!(leave(None, caller("a", false), NOW), CallLeave::Make);
        check(CallState::Kept, SOON, false, CallLeave::Answer);
        check(CallState::Kept, NOW, false, CallLeave::Make);
        check(CallState::Open { until: SOON }, SOON, true, CallLeave::Busy { until: SOON });
        // Who made it is gone: that it was not sent is not known.
        check(CallState::Open { until: NOW }, SOON, false, CallLeave::Unknown { since: BEFORE });
        check(CallState::Open { until: NOW }, SOON, true, CallLeave::Make);
        check(CallState::Unknown, SOON, false, CallLeave::Unknown { since: BEFORE });
        check(CallState::Unknown, SOON, true, CallLeave::Make);
        let later = NOW + Duration::from_secs(1);
        assert_eq!(leave(Some(&past(CallState::Kept, later)), caller("b", true), NOW), CallLeave::Other);
        let by_himself = |fence, state| {
            leave(Some(&past(state, later)), of("a", CallTurn { of: 1, fence: Fence(fence) }, false), NOW)
        };
        for fence in [7, 8] {
            assert_eq!(by_himself(fence, CallState::Unknown), CallLeave::Make);
            assert_eq!(by_himself(fence, CallState::Open { until: later }), CallLeave::Make);
        }
        // He has lost his job to who makes the call now.
        assert_eq!(by_himself(6, CallState::Unknown), CallLeave::Unknown { since: BEFORE });
        assert_eq!(by_himself(6, CallState::Open { until: later }), CallLeave::Busy { until: later });
        assert_eq!([6, 7].map(|fence| by_himself(fence, CallState::Kept)), [CallLeave::Own; 2]);
    }

    #[test]
    fn d3_an_answer_comes_back_as_it_was_kept() {
        let answer = |body: Option<&'static str>| CallAnswer {
            status: 201,
            headers: vec![("location".into(), b"/charges/1".to_vec()), ("x-odd".into(), vec![0xff, 0])],
            body: body.map(Bytes::from),
        };
        for answer in [answer(Some("{\"id\": 1}")), answer(Some("")), answer(None)] {
            let encoded = Bytes::from(answer.encode());
            assert_eq!(CallAnswer::decode(&encoded), Some(answer));
            let shorter = encoded.slice(..encoded.len().min(12));
            assert_eq!(CallAnswer::decode(&shorter), None, "cut short within the headers");
        }
    }
}
