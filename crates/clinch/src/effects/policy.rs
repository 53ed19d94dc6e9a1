//! The first stage of the gate: what policies say of something that cannot be taken back. The facts of the event are put together
//! by the step; what a partner knows is asked here, and what was done before is asked of the store. Whoever comes again is asked
//! again, unless he had to wait for nothing but a limit of ours.

use super::act::Sent;
use super::gate::{Effect, Gate, Passage};
use super::partner::Wait;
use super::question::Question;
use crate::house::House;
use crate::telemetry::ByPolicyRule;
use crate::tracer::Spans;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::integration::{Integration, Lookup, is_answer};
use clinch_core::job::Waits;
use clinch_core::policy::{Policy, Refusal, Ruling, Tally};
use clinch_core::scope::Scope;
use clinch_core::trace;
use clinch_store::{Admission, AdmitAsk, Claim};
use jiff::tz::TimeZone;
use std::sync::Arc;

/// The policies over an effect.
#[derive(Default)]
pub struct Policies {
    pub over: Vec<Over>,
    /// It may have been sent before: then it is counted already.
    pub may_be_sent: bool,
}

/// A policy, with the facts of the event.
pub struct Over {
    pub policy: Arc<Policy>,
    pub zone: TimeZone,
    pub consent: Option<Agreed>,
    /// Who is counted, where the policy counts.
    pub tally: Option<Tally>,
}

pub enum Agreed {
    /// Whether it has, and by which fact.
    Said(bool, String),
    Ask(Box<Inquiry>),
}

/// A partner who knows, and what to ask it.
pub struct Inquiry {
    pub partner: Arc<Integration>,
    pub question: Question,
    pub lookup: Lookup,
    pub names: Scope,
}

/// For whom a policy is asked.
#[derive(Clone, Copy)]
pub struct Asker<'a> {
    pub job: JobId,
    pub step: &'a str,
    /// What is told of the attempt, where somebody listens.
    pub spans: Option<&'a Spans>,
}

/// What a policy says of an effect.
pub enum Said {
    Allowed,
    Refused(Refusal),
    /// Not now: for the hour, or because who must be asked cannot be.
    Wait(Wait),
    /// Nobody could say.
    Failed(Outcome),
}

/// `None`: it may pass.
pub(super) async fn check(
    gate: &Gate,
    house: &House,
    effect: &mut Effect<'_>,
) -> clinch_store::Result<Option<Passage>> {
    let (lease, step) = (effect.claim.lease, effect.step);
    let Policies { over, may_be_sent } = std::mem::take(&mut effect.policies);
    let (mut counting, mut tallies) = (Vec::new(), Vec::new());
    let asker = Asker { job: lease.job, step, spans: effect.spans };
    for Over { policy, zone, consent, tally } in over {
        match weigh(gate, house, asker, &policy, &zone, consent).await? {
            Said::Allowed => {}
            Said::Refused(refusal) => return Ok(Some(refuse(house, effect.claim, step, &refusal))),
            Said::Wait(wait) => return Ok(Some(Passage::Wait(wait))),
            Said::Failed(outcome) => return Ok(Some(Passage::Over(about(step, outcome)))),
        }
        if let Some(tally) = tally {
            counting.push(policy);
            tallies.push(tally);
        }
    }
    if tallies.is_empty() {
        return Ok(None);
    }
    let ask = AdmitAsk { step: step.clone(), tallies, may_be_sent, now: house.clock.now() };
    Ok(match house.insist(|| house.store.admit(lease, ask.clone())).await? {
        None => Some(Passage::TakenOver),
        Some(Admission::Admitted) => {
            crate::crash::point("after_admit");
            None
        }
        Some(Admission::Refused { tally, cap, sent }) => {
            let refusal = counting[tally].reached(&ask.tallies[tally].caps[cap], sent);
            Some(refuse(house, effect.claim, step, &refusal))
        }
    })
}

/// What a policy would say. Nothing is counted.
pub async fn ask(gate: &Gate, house: &House, asker: Asker<'_>, over: Over) -> clinch_store::Result<Said> {
    let Over { policy, zone, consent, tally } = over;
    let said = weigh(gate, house, asker, &policy, &zone, consent).await?;
    let (Said::Allowed, Some(tally)) = (&said, tally) else { return Ok(said) };
    let sent = house.insist(|| house.store.sent(tally.clone(), Some(asker.job), house.clock.now())).await?;
    Ok(match tally.reached(&sent) {
        None => Said::Allowed,
        Some((cap, sent)) => Said::Refused(policy.reached(&tally.caps[cap], sent)),
    })
}

/// Consent and the hour.
async fn weigh(
    gate: &Gate,
    house: &House,
    asker: Asker<'_>,
    policy: &Policy,
    zone: &TimeZone,
    consent: Option<Agreed>,
) -> clinch_store::Result<Said> {
    let consent = match consent {
        None => None,
        Some(Agreed::Said(given, fact)) => Some((given, fact)),
        Some(Agreed::Ask(inquiry)) => {
            let kept = gate.answers().kept(asker.job, asker.step, &policy.name, house.clock.now());
            let said = match kept {
                Some(agreed) => Ok(agreed),
                None => inquire(gate, house, asker, policy, *inquiry).await?,
            };
            match said {
                Ok(agreed) => Some(agreed),
                Err(said) => return Ok(said),
            }
        }
    };
    Ok(match policy.rule(consent, zone, house.clock.now()) {
        Ruling::Allow => Said::Allowed,
        Ruling::Decline(refusal) => Said::Refused(refusal),
        Ruling::WaitUntil(until) => Said::Wait(Wait { until, waits: Waits::QuietHours }),
    })
}

/// Whether the contact has agreed, by what the partner says now; or what becomes of the effect because it does not say.
async fn inquire(
    gate: &Gate,
    house: &House,
    asker: Asker<'_>,
    policy: &Policy,
    inquiry: Inquiry,
) -> clinch_store::Result<Result<(bool, String), Said>> {
    let Inquiry { partner, question, lookup, names } = inquiry;
    let Asker { job, step, spans } = asker;
    let asking = question.asking(spans, step, trace::Question::Consent);
    let answer = match gate.ask(job, &partner, Box::new(question.call), asking).await? {
        Ok(answer) => answer,
        Err(wait) => return Ok(Err(Said::Wait(wait))),
    };
    let agreed = read(answer, &partner, &lookup, names);
    if let Ok(agreed) = &agreed {
        gate.answers().hear(job, step, &policy.name, agreed.clone(), house.clock.now());
    }
    Ok(agreed.map_err(Said::Failed))
}

/// Whether the contact has agreed, by what the partner answered.
fn read(answer: Sent, partner: &Integration, lookup: &Lookup, names: Scope) -> Result<(bool, String), Outcome> {
    let unknown = |why: String| format!("whether the contact has agreed is not known: `{}` {why}", partner.name);
    let failed = |why: String| Outcome::Failed(Failure::new(Reason::TargetDown, unknown(why)));
    let refused = |reason, why: String| Outcome::Refused(Failure::new(reason, unknown(why)));
    match answer {
        Sent::Answered { receipt, is_whole, .. } if is_answer(receipt.status) => {
            let given = lookup.is_done(&receipt, is_whole, names);
            let given = given.map_err(|error| refused(Reason::MissingData, format!("said nothing of it: {error}")))?;
            Ok((
                given,
                format!("`{}` answered {}, and `{}` is {given}", partner.name, receipt.status, lookup.done.source()),
            ))
        }
        Sent::Answered { receipt, .. } => Err(failed(format!("answered {}", receipt.status))),
        Sent::Blocked(why) => Err(refused(Reason::EgressBlocked, format!("may not be called: {why}"))),
        Sent::Invalid(why) => Err(refused(Reason::ConfigError, format!("cannot be asked: {why}"))),
        _ => Err(failed("did not answer".into())),
    }
}

fn refuse(house: &House, claim: &Claim, step: &Arc<str>, refusal: &Refusal) -> Passage {
    let labels = ByPolicyRule { policy: (&refusal.policy).into(), rule: refusal.rule.word().into() };
    house.metrics.policy_refusals.get_or_create(&labels).inc();
    // In a branch beside others this is all that is told of it.
    let job = claim.lease.job;
    tracing::info!(job.id = %job, trace.id = %claim.trace, "{job}: step `{step}` is not done: {refusal}");
    let failure = Failure::new(Reason::PolicyDenied, format!("step `{step}`: {refusal}"));
    Passage::Over(Outcome::Declined(failure))
}

/// Says in which step it was.
pub fn about(step: &str, outcome: Outcome) -> Outcome {
    let named = |failure: Failure| Failure { error: format!("step `{step}`: {}", failure.error), ..failure };
    match outcome {
        Outcome::Failed(failure) => Outcome::Failed(named(failure)),
        Outcome::Refused(failure) => Outcome::Refused(named(failure)),
        other => other,
    }
}
