//! The gate that every outbound act passes: pause, safe mode, policy, breaker, place and moment of its partner, get ready, intend,
//! send, conclude. In this order, and nothing else opens a connection.

use super::act::{Act, Sent, Tools};
use super::http::{Forwarded, HttpCall, HttpClient};
use super::mail::MailClient;
use super::partner::{Entry, Partners, Visit, Wait};
use super::policy::{self, Policies};
use super::safety::{self, Care, Drains, Outgoing};
use super::script::Scripts;
use super::trail;
use crate::house::House;
use crate::partners::Seen;
use crate::tracer::{Asking, Spans};
use bytes::Bytes;
use clinch_core::answers::Answers;
use clinch_core::attempt::{Again, Failure, Outcome, read_retry_after, read_status};
use clinch_core::breaker::is_failure;
use clinch_core::control::Scope;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::id::JobId;
use clinch_core::integration::Integration;
use clinch_core::job::Waits;
use clinch_core::payload::TraceId;
use clinch_core::term::{Term, may_begin};
use clinch_core::time::Timestamp;
use clinch_store::target::Targets;
use clinch_store::{Claim, Conclusion, Held, NewEffect};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct Gate {
    house: House,
    tools: Tools,
    partners: Partners,
    drains: Drains,
    answers: Mutex<Answers>,
}

/// What is to be done outside, under which name in the ledger, with whom.
pub struct Effect<'a> {
    pub claim: &'a Claim,
    pub step: &'a Arc<str>,
    pub partner: &'a Arc<Integration>,
    pub idempotency: Idempotency,
    /// It was sent before, and nobody knows what came of that.
    pub is_in_doubt: bool,
    pub policies: Policies,
    pub outgoing: Outgoing,
    /// What is told of the attempt, where somebody listens.
    pub spans: Option<&'a Spans>,
}

/// How an act fared at the gate.
#[derive(Debug)]
pub enum Passage {
    Passed(Passed),
    /// Nothing was intended and nothing sent.
    Wait(Wait),
    /// Likewise, and the attempt ends like this.
    Over(Outcome),
    /// Somebody else has the job; nothing was sent.
    TakenOver,
}

/// An effect that was sent, with what is known of it. The conclusion is not on disk yet: the caller writes it, alone or
/// together with the end of the attempt.
#[derive(Debug)]
pub struct Passed {
    pub conclusion: Conclusion,
    pub trace: Trace,
    /// The receipt, or how the attempt ends.
    pub result: Result<Receipt, Outcome>,
}

/// What an act left behind outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    Nothing,
    /// It was sent, and this is what the target answered, if it did.
    Sent {
        status: Option<u16>,
    },
}

impl Trace {
    fn of(sent: &Sent) -> Trace {
        match sent {
            Sent::Answered { receipt, .. } => Trace::Sent { status: Some(receipt.status) },
            Sent::NoAnswer { .. } | Sent::Failed { .. } | Sent::Broken { .. } | Sent::Undone(_) | Sent::Refused(_) => {
                Trace::Sent { status: None }
            }
            Sent::NotSent(_) | Sent::TooLate | Sent::Blocked(_) | Sent::Invalid(_) => Trace::Nothing,
        }
    }
}

impl Gate {
    pub fn new(house: House) -> Result<Gate, String> {
        let directory = &house.versions.directory;
        let scripts = Scripts::new(directory.clone(), &house.directory, house.metrics.clone(), house.stop.clone());
        let databases = Targets::new(directory);
        let (egress, detour) = (&house.egress, &house.detour);
        let http = HttpClient::new(egress.clone(), detour.clone())?;
        let mail = MailClient::new(egress.clone(), detour.clone())?;
        let tools = Tools { http, mail, databases, scripts };
        Ok(Gate { house, tools, partners: Partners::new(), drains: Drains::default(), answers: Mutex::default() })
    }

    /// Asks somebody who is no partner and no step's business, such as who vouches for people: nothing is intended and nothing kept. The
    /// status and all of the answer, or why there is none.
    pub async fn inquire(
        &self,
        question: Request<Bytes>,
        timeout: Duration,
        body_bytes_max: usize,
    ) -> Result<(StatusCode, Bytes), String> {
        let (Parts { method, uri, headers, .. }, body) = question.into_parts();
        let call = HttpCall { method, uri, headers, body, timeout, key: None };
        match self.tools.http.forward(call, Idempotency::None, body_bytes_max).await {
            Ok(Forwarded { status, body: Some(body), .. }) => Ok((status, body)),
            Ok(_) => Err("its answer is too long, or broke off".into()),
            Err(Sent::NotSent(why) | Sent::Blocked(why) | Sent::Invalid(why) | Sent::NoAnswer { why, .. }) => Err(why),
            Err(_) => Err("no answer came".into()),
        }
    }

    /// `term` tells how long the lease is surely ours, if it still is.
    pub async fn pass(
        &self,
        mut effect: Effect<'_>,
        mut act: Box<dyn Act>,
        term: impl Fn() -> Option<Term> + Send + Sync,
    ) -> clinch_store::Result<Passage> {
        if let Some(wait) = self.paused(effect.partner) {
            return Ok(Passage::Wait(wait));
        }
        let care = match self.drains.care(&self.house, &effect).await? {
            Care::Wait(wait) => {
                self.house.metrics.effect_held(&effect.partner.name);
                return Ok(Passage::Wait(wait));
            }
            Care::Decline(failure) => return Ok(Passage::Over(Outcome::Declined(failure))),
            care => care,
        };
        if !effect.policies.over.is_empty()
            && let Some(halt) = Box::pin(policy::check(self, &self.house, &mut effect)).await?
        {
            return Ok(halt);
        }
        let Effect { claim, step, partner, idempotency, is_in_doubt, spans, .. } = effect;
        let lease = claim.lease;
        let mut visit = match self.enter(partner, lease.job, &*act).await? {
            Entry::Enter(visit) => visit,
            Entry::Wait(wait) => return Ok(Passage::Wait(wait)),
        };
        self.answers().forget(lease.job);
        // Counted last: nothing is counted that is not sent.
        if let Care::GoWithin(cap) = care
            && let Some(failure) = safety::within(&self.house, &effect, cap).await?
        {
            return Ok(Passage::Over(Outcome::Declined(failure)));
        }
        act.get_ready(&self.tools).await;
        let intent = NewEffect { name: step.clone(), class: idempotency, at: self.house.clock.now() };
        if self.house.insist(|| self.house.store.intend(lease, intent.clone())).await? == Held::Lost {
            return Ok(Passage::TakenOver);
        }
        crate::crash::point("after_intend");
        if let Care::GoInTurn(lane) = &care {
            lane.hold(&self.house).await;
        }
        visit.hold(&self.house).await;
        // The answer may have come late, and to connect takes its time: others may have the job by now.
        let may_begin = || term().and_then(|term| may_begin(self.house.clock.instant(), term, self.house.store.life()));
        let request = spans.and_then(|_| Some((self.shown(&*act)?, self.house.clock.now())));
        let sent = act.send(&self.tools, idempotency, &may_begin).await;
        crate::crash::point("after_send");
        self.tell(visit, &sent, spans.and_then(Spans::example));
        let answer = spans.map(|_| sent.in_a_word());
        let mut passed = self.judge(step, partner, idempotency, sent);
        passed.conclusion.state = passed.conclusion.state.after(is_in_doubt);
        if let (Some(spans), Some(answer)) = (spans, answer) {
            trail::tell(spans, claim, intent.at, request, answer, partner, &passed);
        }
        self.house.metrics.effect(&partner.name, idempotency, &passed.conclusion.state);
        Ok(Passage::Passed(passed))
    }

    /// A question to the partner, which changes nothing there: it is not in the ledger. `asking` is where it is told.
    pub async fn ask(
        &self,
        job: JobId,
        partner: &Arc<Integration>,
        question: Box<dyn Act>,
        asking: Option<Asking<'_>>,
    ) -> clinch_store::Result<Result<Sent, Wait>> {
        if let Some(wait) = self.paused(partner) {
            return Ok(Err(wait));
        }
        let mut visit = match self.enter(partner, job, &*question).await? {
            Entry::Enter(visit) => visit,
            Entry::Wait(wait) => return Ok(Err(wait)),
        };
        visit.hold(&self.house).await;
        let request = asking.and_then(|asking| Some((asking, self.shown(&*question)?, self.house.clock.now())));
        let sent = question.send(&self.tools, Idempotency::Natural, &|| Some(Duration::MAX)).await;
        self.tell(visit, &sent, asking.and_then(|asking| asking.spans.example()));
        if let Some((asking, request, began)) = request {
            trail::tell_asked(asking, partner, &request, sent.in_a_word(), (began, self.house.clock.now()));
        }
        Ok(Ok(sent))
    }

    /// Something that is no effect of a job: it is not written down, and no limit of a partner counts it.
    pub async fn post(&self, act: Box<dyn Act>) -> Sent {
        act.send(&self.tools, Idempotency::Natural, &|| Some(Duration::MAX)).await
    }

    /// The request that an act is, as others may see it: an address may have a secret in it.
    fn shown(&self, act: &dyn Act) -> Option<(Method, Uri)> {
        let (method, uri) = act.request()?;
        Some((method, self.house.secrets.hidden(&uri.to_string()).parse().unwrap_or_default()))
    }

    /// What is seen of the partners that were called.
    pub fn seen(&self, now: Timestamp, window: Duration) -> Vec<Seen> {
        self.partners.seen(now, window)
    }

    /// Whether an operator has stopped all calls to the partner.
    fn paused(&self, partner: &Integration) -> Option<Wait> {
        let (house, controls) = (&self.house, self.house.controls.get());
        let pause = controls.paused(&Scope::Integration(partner.name.clone()), house.clock.now())?;
        Some(Wait { until: house.controls.resumed_at(pause, &*house.clock), waits: Waits::Paused })
    }

    async fn enter(&self, partner: &Arc<Integration>, job: JobId, act: &dyn Act) -> clinch_store::Result<Entry> {
        let entry = self.partners.of(&self.house, partner).enter(&self.house, job, act.timeout()).await?;
        if let Entry::Wait(Wait { until, waits: Waits::Limit }) = entry {
            self.answers().keep(job, until, self.house.clock.now());
        }
        Ok(entry)
    }

    /// What was said of the contacts of jobs that wait for a limit.
    pub(super) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, visit: Visit, sent: &Sent, example: Option<TraceId>) {
        let (class, failed) = match sent {
            Sent::Answered { receipt, .. } => (class_of(receipt.status), is_failure(receipt.status)),
            Sent::NoAnswer { timed_out: true, .. }
            | Sent::Failed { reason: Reason::Timeout, .. }
            | Sent::Broken { reason: Reason::Timeout, .. } => ("timeout", true),
            Sent::NotSent(_) | Sent::NoAnswer { .. } => ("network", true),
            Sent::Undone(_) | Sent::Failed { .. } | Sent::Broken { .. } => ("error", true),
            Sent::Refused(_) => ("error", false),
            // These say nothing of the partner.
            Sent::TooLate | Sent::Invalid(_) | Sent::Blocked(_) => return,
        };
        visit.tell(&self.house, class, failed, example);
    }

    fn judge(&self, step: &Arc<str>, partner: &Integration, class: Idempotency, sent: Sent) -> Passed {
        let (now, trace) = (self.house.clock.now(), Trace::of(&sent));
        let (state, result) = match sent {
            Sent::Answered { receipt, retry_after, .. } => {
                let asked = || read_retry_after(&retry_after?, now);
                match read_status(receipt.status, &partner.retry_on, asked) {
                    None => (EffectState::Done(receipt.clone()), Ok(receipt)),
                    Some((reason, again)) => {
                        let error = format!("step `{step}`: the target answered {}", receipt.status);
                        match again {
                            Again::Later(retry_after) => {
                                let failure = Failure { reason, error, retry_after };
                                (EffectState::NotDone, Err(Outcome::Failed(failure)))
                            }
                            Again::Unsure(retry_after) => {
                                let error =
                                    format!("{error}, which a gateway says that has lost it: it may have done it");
                                let failure = Failure { reason, error, retry_after };
                                (EffectState::Unknown, Err(Outcome::Unknown { class, failure }))
                            }
                            Again::Never => (EffectState::NotDone, Err(Outcome::Refused(Failure::new(reason, error)))),
                        }
                    }
                }
            }
            Sent::NotSent(why) => {
                let failure = Failure::new(Reason::TargetDown, format!("step `{step}`: nothing was sent: {why}"));
                (EffectState::NotDone, Err(Outcome::Failed(failure)))
            }
            Sent::Undone(why) => {
                let failure = Failure::new(Reason::TargetDown, format!("step `{step}`: nothing was changed: {why}"));
                (EffectState::NotDone, Err(Outcome::Failed(failure)))
            }
            Sent::Refused(why) => {
                let error = format!("step `{step}`: the target refused it: {why}");
                (EffectState::NotDone, Err(Outcome::Refused(Failure::new(Reason::RejectedByTarget, error))))
            }
            Sent::TooLate => {
                tracing::warn!(
                    "step `{step}` was not sent: the server stops, or the store was not heard of in time and others may have the job"
                );
                (EffectState::NotDone, Err(Outcome::Interrupted))
            }
            Sent::Blocked(why) => {
                let failure = Failure::new(Reason::EgressBlocked, format!("step `{step}`: {why}"));
                (EffectState::NotDone, Err(Outcome::Refused(failure)))
            }
            Sent::Invalid(why) => {
                let failure = Failure::new(Reason::ConfigError, format!("step `{step}`: {why}"));
                (EffectState::NotDone, Err(Outcome::Refused(failure)))
            }
            Sent::Failed { reason, why } => {
                let failure = Failure::new(reason, format!("step `{step}` failed: {why}"));
                (EffectState::NotDone, Err(Outcome::Failed(failure)))
            }
            Sent::Broken { reason, why } => {
                let failure =
                    Failure::new(reason, format!("step `{step}` was begun, and what it did is not known: {why}"));
                (EffectState::Unknown, Err(Outcome::Unknown { class, failure }))
            }
            Sent::NoAnswer { timed_out, why } => {
                let reason = if timed_out { Reason::Timeout } else { Reason::TargetDown };
                let failure = Failure::new(reason, format!("step `{step}`: sent, but no answer came: {why}"));
                (EffectState::Unknown, Err(Outcome::Unknown { class, failure }))
            }
        };
        Passed { conclusion: Conclusion { name: step.clone(), state, at: now }, trace, result }
    }
}

/// The class of a status, in the words of metrics.
fn class_of(status: u16) -> &'static str {
    match status {
        429 => "429",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
        ..300 => "2xx",
    }
}
