//! What an effect, or a question to a partner, leaves behind in its trace.

use super::gate::Passed;
use crate::masking::rules;
use crate::tracer::{Asking, Spans};
use clinch_core::effect::EffectState;
use clinch_core::integration::Integration;
use clinch_core::key::IdempotencyKey;
use clinch_core::time::Timestamp;
use clinch_core::trace::{Called, Done, redacted};
use clinch_store::Claim;
use http::{Method, Uri};

pub fn tell(
    spans: &Spans,
    claim: &Claim,
    began: Timestamp,
    request: Option<((Method, Uri), Timestamp)>,
    answer: Result<u16, &'static str>,
    partner: &Integration,
    passed: &Passed,
) {
    let step = &*passed.conclusion.name;
    let failure = passed.result.as_ref().err().and_then(|outcome| outcome.failure());
    let key = IdempotencyKey::of(claim.lease.job, step);
    let done = Done {
        step,
        key: key.as_str(),
        integration: &partner.name,
        outcome: match passed.conclusion.state {
            EffectState::Done(_) => "done",
            EffectState::Unknown => "unknown",
            EffectState::NotDone | EffectState::Open | EffectState::GivenUp(_) => "not_done",
        },
        error: failure.map(|failure| failure.reason.word()),
        began,
        ended: passed.conclusion.at,
    };
    let before = claim.effects.iter().find(|effect| effect.name == step).map_or(0, |effect| effect.sends);
    let times = |began: &Timestamp| (*began, passed.conclusion.at);
    let called = request.as_ref().map(|(request, began)| Called { before, ..called(request, answer, times(began)) });
    spans.tried(&done, called);
}

/// A question, and what was answered.
pub fn tell_asked(
    asking: Asking<'_>,
    partner: &Integration,
    request: &(Method, Uri),
    answer: Result<u16, &'static str>,
    times: (Timestamp, Timestamp),
) {
    asking.spans.asked(asking, &partner.name, called(request, answer, times));
}

fn called<'a>(
    (method, uri): &'a (Method, Uri),
    answer: Result<u16, &'static str>,
    (began, ended): (Timestamp, Timestamp),
) -> Called<'a> {
    Called {
        method: method.as_str(),
        // What stands in a path may be somebody's own, too.
        url: redacted(&uri.to_string(), |path| rules().text(path)),
        server: uri.host().unwrap_or_default(),
        port: uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 }),
        answer,
        before: 0,
        began,
        ended,
    }
}
