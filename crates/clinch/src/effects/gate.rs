//! The gate that every outbound act passes: intend, send, conclude. In this order, and nothing else opens a connection.

use super::http::{HttpCall, HttpClient, Sent};
use crate::house::House;
use crate::telemetry::ByOutcome;
use clinch_core::attempt::{Again, Failure, Outcome, read_status};
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::term::{Term, may_begin};
use clinch_store::{Conclusion, Held, LeaseRef, NewEffect};
use std::sync::Arc;

pub struct Gate {
    house: House,
    client: HttpClient,
}

/// An effect that was sent, with what is known of it. The conclusion is not on disk yet: the caller writes it, alone or
/// together with the end of the attempt.
#[derive(Debug)]
pub struct Passed {
    pub conclusion: Conclusion,
    /// The receipt, or how the attempt ends.
    pub result: Result<Receipt, Outcome>,
}

impl Gate {
    pub fn new(house: House) -> Result<Gate, String> {
        Ok(Gate { house, client: HttpClient::new()? })
    }

    /// `term` tells how long the lease is surely ours, if it still is. `None`: somebody else has the job; nothing was sent.
    pub async fn pass(
        &self,
        lease: LeaseRef,
        step: &Arc<str>,
        class: Idempotency,
        call: HttpCall,
        term: impl Fn() -> Option<Term>,
    ) -> clinch_store::Result<Option<Passed>> {
        let intent = NewEffect { name: step.clone(), class, at: self.house.clock.now() };
        if self.house.insist(|| self.house.store.intend(lease, intent.clone())).await? == Held::Lost {
            return Ok(None);
        }
        crate::crash::point("after_intend");
        // The answer may have come late, and to connect takes its time: others may have the job by now.
        let may_begin =
            || term().is_some_and(|term| may_begin(self.house.clock.instant(), term, self.house.store.life()));
        let sent = self.client.send(call, class, may_begin).await;
        crate::crash::point("after_send");
        let passed = self.judge(step, class, sent);
        let outcome = match &passed.conclusion.state {
            EffectState::Done(_) => "performed",
            EffectState::Unknown => "unknown",
            EffectState::NotDone | EffectState::Open => "not_done",
        };
        self.house.metrics.effects.get_or_create(&ByOutcome { outcome: outcome.into() }).inc();
        Ok(Some(passed))
    }

    fn judge(&self, step: &Arc<str>, class: Idempotency, sent: Sent) -> Passed {
        let now = self.house.clock.now();
        let (state, result) = match sent {
            Sent::Answered { receipt, retry_after } => {
                let asked = retry_after.and_then(|text| clinch_core::attempt::read_retry_after(&text, now));
                match read_status(receipt.status, asked) {
                    None => (EffectState::Done(receipt.clone()), Ok(receipt)),
                    Some((reason, again)) => {
                        let error = format!("step `{step}`: the target answered {}", receipt.status);
                        let outcome = match again {
                            Again::Later(retry_after) => Outcome::Failed(Failure { reason, error, retry_after }),
                            Again::Never => Outcome::Refused(Failure::new(reason, error)),
                        };
                        (EffectState::NotDone, Err(outcome))
                    }
                }
            }
            Sent::NotSent(why) => {
                let failure = Failure::new(Reason::TargetDown, format!("step `{step}`: nothing was sent: {why}"));
                (EffectState::NotDone, Err(Outcome::Failed(failure)))
            }
            Sent::TooLate => {
                tracing::warn!(
                    "step `{step}` was not sent: the store was not heard of in time, others may have the job"
                );
                (EffectState::NotDone, Err(Outcome::Interrupted))
            }
            Sent::Invalid(why) => {
                let failure = Failure::new(Reason::ConfigError, format!("step `{step}`: {why}"));
                (EffectState::NotDone, Err(Outcome::Refused(failure)))
            }
            Sent::NoAnswer { timed_out, why } => {
                let reason = if timed_out { Reason::Timeout } else { Reason::TargetDown };
                let failure = Failure::new(reason, format!("step `{step}`: sent, but no answer came: {why}"));
                (EffectState::Unknown, Err(Outcome::Unknown { class, failure }))
            }
        };
        Passed { conclusion: Conclusion { name: step.clone(), state, at: now }, result }
    }
}
