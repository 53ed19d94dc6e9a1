//! A target that knows no keys, and what clinch remembers for it: one call for a key, whichever job comes first.

use super::end::{End, StepEnd};
use super::scope::Scope;
use super::steps::{self, Kind, Outward};
use crate::effects::Act;
use crate::house::House;
use clinch_core::attempt::{Failure, Outcome};
use clinch_core::call::{CallAnswer, CallKey, CallTurn, Caller};
use clinch_core::death::Reason;
use clinch_core::effect::{Effect, EffectState, Idempotency, Receipt};
use clinch_core::integration::WRAPPED_FOR_DEFAULT;
use clinch_core::job::Waits;
use clinch_core::key::{Fingerprint, IdempotencyKey, Pepper};
use clinch_core::payload::Payload;
use clinch_core::saga::{self, Undo};
use clinch_core::time::Timestamp;
use clinch_core::worker::Step;
use clinch_store::{CallAsk, CallEnd, Called, Claim, Conclusion, Held, Kept, NewEffect};
use std::time::Duration;

/// While another job makes the call, this one comes back after so long.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// After the time that a call may take, so long to write down how it ended.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// A call that is ours to make.
pub struct Ours {
    key: CallKey,
    turn: CallTurn,
}

/// For a target that calls are remembered for: whether this job makes the call.
pub async fn begin(
    house: &House,
    claim: &Claim,
    step: &Step,
    action: &dyn Outward,
    act: &dyn Act,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<Result<Ours, StepEnd>> {
    let (name, promise) = (&step.name, action.promise());
    let over = |end: End| Ok(Err(StepEnd::Over(end)));
    let (key, fingerprint) = match remembered(claim, name, action, act, scope) {
        Ok(found) => found,
        Err(Failure { reason, error, .. }) => {
            return over(End::refused(reason, format!("step `{name}`: {error}"), name));
        }
    };
    let now = house.clock.now();
    let turn = turn_of(claim, name);
    // What was undone is not done any more, also where it was a person who said that it is undone.
    if let Some(before) = saga::round_before(name) {
        house.insist(|| house.store.end_call(key, turn_of(claim, &before), CallEnd::Undone)).await?;
    }
    let ask = CallAsk {
        key,
        // The ledger of a job knows whether it may send again; nobody else is asked.
        caller: Caller { fingerprint, turn, resends: false },
        at: now,
        until: now + act.timeout() + WRITE_MAX,
        expires: now + promise.honoured_for.unwrap_or(WRAPPED_FOR_DEFAULT),
    };
    match house.insist(|| house.store.begin_call(ask.clone())).await? {
        Called::Ours => Ok(Ok(Ours { key, turn })),
        Called::Own(kept) => answered(house, claim, step, kept, Idempotency::Wrap, now).await,
        Called::Before(kept) => answered(house, claim, step, kept, Idempotency::Shared, now).await,
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

/// Under what the call is remembered, and what tells it from another under the same key.
fn remembered(
    claim: &Claim,
    name: &str,
    action: &dyn Outward,
    act: &dyn Act,
    scope: &mut Scope<'_>,
) -> Result<(CallKey, Fingerprint), Failure> {
    let Some((place, fingerprint)) = act.fingerprint() else {
        return Err(Failure::new(Reason::ConfigError, "`idempotency: wrap` is for calls by HTTP"));
    };
    let chosen = action.promise().wrap_key.as_ref();
    let written = match chosen {
        Some(key) => key.text(scope.names()).map_err(|error| Failure::new(Reason::MissingData, error.to_string()))?,
        None => scope.names().get("key").and_then(|key| key.as_str()).unwrap_or_default().to_string(),
    };
    if written.is_empty() {
        return Err(Failure::new(Reason::MissingData, "the key that the call is remembered under is empty"));
    }
    let about = &scope.payload().about;
    // A key that a sender gave is his alone: others count in the same way. Schedules share a source, and are told apart by their kind.
    let (source, kind) = if chosen.is_some() { ("", "") } else { (&*about.source, &*about.kind) };
    // What undoes a step undoes what this job did. Items differ only where nobody says by what.
    let own = match (saga::is_undo(name), chosen) {
        (true, _) => IdempotencyKey::of(claim.lease.job, name).as_str().to_string(),
        (false, None) if name.contains('[') => name.to_string(),
        (false, _) => String::new(),
    };
    let within = ["step", &action.partner().name, &place, &about.tenant, source, kind, &own];
    Ok((CallKey::of(&Pepper::new(scope.house().store.pepper()), &within, &written), fingerprint))
}

fn turn_of(claim: &Claim, line: &str) -> CallTurn {
    CallTurn { of: IdempotencyKey::of(claim.lease.job, line).number(), fence: claim.lease.fence }
}

/// What was undone is not done any more: the key of a call that this job made is free again.
pub async fn free(
    house: &House,
    claim: &Claim,
    undo: &Undo<'_>,
    payload: &Payload,
    scope: &mut Scope<'_>,
) -> clinch_store::Result<()> {
    let Some(Kind::Outward(action)) = steps::kind(&undo.step.action) else { return Ok(()) };
    if action.promise().idempotency != Idempotency::Wrap {
        return Ok(());
    }
    scope.begin(&undo.line);
    // What cannot be planned any more is nothing that others could ask for.
    let Ok(act) = action.plan(&undo.line, claim, payload, scope) else { return Ok(()) };
    let Ok((key, _)) = remembered(claim, &undo.line, action, &*act, scope) else { return Ok(()) };
    let turn = turn_of(claim, &undo.line);
    house.insist(|| house.store.end_call(key, turn, CallEnd::Undone)).await.map(drop)
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
    // What another job did is for that one to confirm: it may have undone it.
    let is_shared = |effect: &Effect| *effect.name == *step.name && effect.class == Idempotency::Shared;
    if action.promise().idempotency != Idempotency::Wrap || claim.effects.iter().any(is_shared) {
        return Ok(());
    }
    // What cannot be planned any more is nothing that others could ask for.
    let Ok(act) = action.plan(&step.name, claim, payload, scope) else { return Ok(()) };
    match begin(house, claim, step, action, &*act, scope).await? {
        Ok(ours) => ours.end(house, &EffectState::Done(receipt.clone())).await,
        _ => Ok(()),
    }
}

/// The first answer is the step's result in this job too, and its ledger says so, and whose call it was.
async fn answered(
    house: &House,
    claim: &Claim,
    step: &Step,
    kept: Kept,
    class: Idempotency,
    now: Timestamp,
) -> clinch_store::Result<Result<Ours, StepEnd>> {
    let name = &step.name;
    let Some(CallAnswer { status, body, .. }) = kept.ok().as_ref().and_then(CallAnswer::decode) else {
        let why = format!("step `{name}` was done before, and its answer cannot be read any more");
        return Ok(Err(StepEnd::Over(End::refused(Reason::Unreadable, why, name))));
    };
    let receipt = Receipt { status, body: body.unwrap_or_default() };
    let intent = NewEffect { name: name.clone(), class, at: now };
    if house.insist(|| house.store.intend(claim.lease, intent.clone())).await? == Held::Lost {
        return Ok(Err(StepEnd::TakenOver));
    }
    let conclusion = Conclusion { name: name.clone(), state: EffectState::Done(receipt.clone()), at: now };
    Ok(Err(StepEnd::Done(receipt, conclusion.into())))
}

impl Ours {
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
        house.insist(|| house.store.end_call(self.key, self.turn, end.clone())).await.map(|_| ())
    }

    /// Nothing was sent.
    pub async fn give_back(self, house: &House) -> clinch_store::Result<()> {
        self.end(house, &EffectState::NotDone).await
    }
}
