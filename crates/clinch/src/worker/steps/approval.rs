//! `approval:` the job waits until people have decided, and ends with nothing done if they will not have it.
//!
//! ```yaml
//! - name: review
//!   if: "body.discount > 20"
//!   approval:
//!     title: "Discount of {{ body.discount }} % for cart {{ body.cart }}"
//!     show: {total: "{{ body.total }}"}
//!     of: [maya, omar]
//!     expires: 4h
//! ```
//!
//! The question, its votes and the verdict are rows of the store. A job that waits costs no attempt and holds no place; the
//! verdict wakes it.

use super::missing;
use crate::house::House;
use crate::masking::rules;
use crate::worker::attempt::count_step;
use crate::worker::end::{End, StepEnd};
use crate::worker::scope::Scope;
use clinch_core::approval::{ApprovalAction, ApprovalId, Card};
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::job::Waits;
use clinch_core::time::Timestamp;
use clinch_core::worker::Step;
use clinch_store::approval::Place;
use clinch_store::{ApprovalAsk, Asked, Claim, Conclusion, Held, NewEffect};
use std::sync::Arc;

/// What people are shown, without what nobody is to see.
pub fn card(action: &ApprovalAction, scope: &mut Scope<'_>) -> Result<Card, Failure> {
    let title = action.title.text(scope.names()).map_err(missing)?;
    let show = action.show.value(scope.names()).map_err(missing)?;
    let rules = rules();
    Ok(Card::of(&title, &show, |name, value| rules.field(name, value)))
}

/// What people are asked. A question that cannot be put is told before anybody waits for an answer.
pub fn ask(
    action: &ApprovalAction,
    step: &Arc<str>,
    claim: &Claim,
    requester: Option<String>,
    scope: &mut Scope<'_>,
    now: Timestamp,
) -> Result<ApprovalAsk, Failure> {
    card(action, scope)?;
    Ok(ApprovalAsk {
        step: step.clone(),
        flow: claim.flow.clone(),
        rule: action.rule.clone(),
        requester,
        place: action
            .slack
            .as_ref()
            .map(|slack| Place { integration: slack.partner.name.to_string(), channel: slack.channel.clone() }),
        at: now,
    })
}

/// The job goes on when people have approved, ends when they will not have it, and is put off until they have decided or their time
/// is over. What was approved stays so, however often the job runs again.
pub async fn wait_for_people(
    house: &House,
    claim: &Claim,
    step: &Step,
    action: &ApprovalAction,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<StepEnd> {
    let (name, now) = (&step.name, house.clock.now());
    let past = claim.effects.iter().find(|effect| *effect.name == **name);
    if let Some(EffectState::Done(receipt)) = past.map(|past| &past.state) {
        return Ok(StepEnd::DoneBefore(receipt.clone()));
    }
    let requester = requester(house, claim).await?;
    let ask = match ask(action, name, claim, requester, scope, now) {
        Ok(ask) => ask,
        Err(failure) => {
            let why = format!("step `{name}`: {}", failure.error);
            return Ok(StepEnd::Over(End::refused(failure.reason, why, name)));
        }
    };
    let Some(asked) = house.insist(|| house.store.ask_approval(claim.lease, ask.clone())).await? else {
        return Ok(StepEnd::TakenOver);
    };
    crate::crash::point("after_ask");
    let outcome = match asked {
        Asked::Pending { expires_at } => {
            let put_off = Outcome::PutOff { until: expires_at, waits: Waits::Approval };
            return Ok(StepEnd::Over(End::of(put_off, name)));
        }
        Asked::Decided { decision, on_expiry } => {
            if let Some(spans) = &scope.spans {
                let asked = house.store.approval(&ApprovalId { job: claim.lease.job, step: name.to_string() }).await?;
                let asked_at = asked.map_or(decision.at, |row| row.asked_at);
                spans.decided(name, decision.verdict.word(), asked_at, decision.at);
            }
            decision.outcome(on_expiry)
        }
    };
    let output = match outcome {
        Ok(output) => output,
        Err(Failure { reason, error, .. }) => {
            count_step(scope, claim, step, "noop", now);
            let declined = Failure::new(reason, format!("step `{name}`: {error}"));
            return Ok(StepEnd::Over(End::of(Outcome::Declined(declined), name)));
        }
    };
    if past.is_none() {
        let reached = NewEffect { name: name.clone(), class: Idempotency::Natural, at: now };
        if house.insist(|| house.store.intend(claim.lease, reached.clone())).await? == Held::Lost {
            return Ok(StepEnd::TakenOver);
        }
    }
    count_step(scope, claim, step, "ok", now);
    let receipt = Receipt { status: 200, body: output.to_string().into() };
    let done = Conclusion { name: name.clone(), state: EffectState::Done(receipt.clone()), at: now };
    Ok(StepEnd::Done(receipt, done.into()))
}

/// Who replayed the job: nobody approves what he asked for himself.
async fn requester(house: &House, claim: &Claim) -> clinch_store::Result<Option<String>> {
    if claim.replays == 0 {
        return Ok(None);
    }
    let story = house.store.job(claim.lease.job).await?;
    let replays = story.into_iter().flat_map(|story| story.audit).filter(|row| row.action == "job.replay");
    Ok(replays.max_by_key(|row| row.at).map(|row| row.actor))
}
