//! A target that knows no keys, and what clinch remembers for it: one call for a key, whichever job comes first.

use super::end::{End, StepEnd};
use super::scope::Scope;
use super::steps::Outward;
use crate::effects::Act;
use crate::house::House;
use clinch_core::attempt::Outcome;
use clinch_core::call::{CallAnswer, CallKey, Caller};
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency, Receipt};
use clinch_core::integration::WRAPPED_FOR_DEFAULT;
use clinch_core::job::Waits;
use clinch_core::key::{IdempotencyKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::saga;
use clinch_core::time::Timestamp;
use clinch_core::worker::Step;
use clinch_store::{CallAsk, CallEnd, Called, Claim, Conclusion, Held, NewEffect};
use std::time::Duration;

/// While another job makes the call, this one comes back after so long.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// After the time that a call may take, so long to write down how it ended.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// A call that is ours to make.
pub struct Turn {
    key: CallKey,
    number: u64,
}

/// For a target that calls are remembered for: whether this job makes the call.
pub async fn begin(
    house: &House,
    claim: &Claim,
    step: &Step,
    action: &dyn Outward,
    act: &dyn Act,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Result<Turn, StepEnd>> {
    let (name, promise) = (&step.name, action.promise());
    let over = |end: End| Ok(Err(StepEnd::Over(end)));
    let Some((place, fingerprint)) = act.fingerprint() else {
        let why = format!("step `{name}`: `idempotency: wrap` is for calls by HTTP");
        return over(End::refused(Reason::ConfigError, why, name));
    };
    let written = match &promise.wrap_key {
        Some(key) => key.text(scope.names()),
        None => Ok(scope.names().get("key").and_then(|key| key.as_str()).unwrap_or_default().to_string()),
    };
    let written = match written {
        // What undoes a step, or does it again, is another call than the first one was.
        Ok(written) if !written.is_empty() && saga::step_of(name) != &**name => format!("{written} {name}"),
        Ok(written) if !written.is_empty() => written,
        Ok(_) => {
            let why = format!("step `{name}`: the key that the call is remembered under is empty");
            return over(End::refused(Reason::MissingData, why, name));
        }
        Err(error) => return over(End::refused(Reason::MissingData, format!("step `{name}`: {error}"), name)),
    };
    let now = house.clock.now();
    let key = CallKey::of(&Pepper::new(house.store.pepper()), &["step", &action.partner().name, &place], &written);
    let number = IdempotencyKey::of(claim.lease.job, name).number();
    let ask = CallAsk {
        key,
        // The ledger of a job knows whether it may send again; nobody else is asked.
        caller: Caller { fingerprint, turn: number, resends: false },
        at: now,
        until: now + act.timeout() + WRITE_MAX,
        expires: now + promise.honoured_for.unwrap_or(WRAPPED_FOR_DEFAULT),
    };
    match house.insist(|| house.store.begin_call(ask.clone())).await? {
        Called::Ours => Ok(Ok(Turn { key, number })),
        Called::Before(kept) => match kept.ok().as_ref().and_then(CallAnswer::decode) {
            Some(CallAnswer { status, body, .. }) => {
                done_by_another(house, claim, step, Receipt { status, body: body.unwrap_or_default() }, now).await
            }
            None => {
                let why = format!("step `{name}` was done for another job, and its answer cannot be read any more");
                over(End::refused(Reason::Unreadable, why, name))
            }
        },
        Called::Busy { .. } => over(End::of(Outcome::PutOff { until: now + BUSY_PAUSE, waits: Waits::Limit }, name)),
        Called::Other => {
            let why = format!("step `{name}`: another call was made under the same key, with another body");
            over(End::refused(Reason::RejectedByTarget, why, name))
        }
        Called::Unknown { since } => {
            let why = format!(
                "step `{name}` was begun by another job at {since} and its outcome is unknown; that one must be decided first"
            );
            over(End::refused(Reason::UnknownOutcome, why, name))
        }
    }
}

/// It is done, as the ledger of this job says: by a person's word perhaps, of which other jobs should know.
pub async fn confirm(
    house: &House,
    claim: &Claim,
    step: &Step,
    action: &dyn Outward,
    payload: &Payload,
    scope: &mut Scope<'_>,
    receipt: &Receipt,
) -> clinch_store::Result<()> {
    if action.promise().idempotency != Idempotency::Wrap {
        return Ok(());
    }
    // What cannot be planned any more is nothing that others could ask for.
    let Ok(act) = action.plan(&step.name, claim, payload, scope) else { return Ok(()) };
    match begin(house, claim, step, action, &*act, scope).await? {
        Ok(turn) => turn.end(house, &EffectState::Done(receipt.clone())).await,
        _ => Ok(()),
    }
}

/// The first answer is the step's result in this job too, and its ledger says so.
async fn done_by_another(
    house: &House,
    claim: &Claim,
    step: &Step,
    receipt: Receipt,
    now: Timestamp,
) -> clinch_store::Result<Result<Turn, StepEnd>> {
    let intent = NewEffect { name: step.name.clone(), class: Idempotency::Wrap, at: now };
    if house.insist(|| house.store.intend(claim.lease, intent.clone())).await? == Held::Lost {
        return Ok(Err(StepEnd::TakenOver));
    }
    let conclusion = Conclusion { name: step.name.clone(), state: EffectState::Done(receipt.clone()), at: now };
    Ok(Err(StepEnd::Done(receipt, conclusion.into())))
}

impl Turn {
    /// Written down before the ledger of the job: whoever asks next is told the truth.
    pub async fn end(self, house: &House, state: &EffectState) -> clinch_store::Result<()> {
        let end = match state {
            EffectState::Done(Receipt { status, body }) => {
                let answer = CallAnswer { status: *status, headers: Vec::new(), body: Some(body.clone()) };
                CallEnd::Done(answer.encode().into())
            }
            EffectState::Unknown => CallEnd::Unknown,
            EffectState::NotDone | EffectState::Open | EffectState::GivenUp(_) => CallEnd::NotDone,
        };
        house.insist(|| house.store.end_call(self.key, self.number, end.clone())).await.map(|_| ())
    }

    /// Nothing was sent.
    pub async fn give_back(self, house: &House) -> clinch_store::Result<()> {
        self.end(house, &EffectState::NotDone).await
    }
}
