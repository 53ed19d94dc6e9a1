//! Safe mode at the gate: what it says to an effect is carried out, and what waited has its turns.

use super::gate::Effect;
use super::partner::{Lane, Wait};
use crate::house::House;
use clinch_core::attempt::Failure;
use clinch_core::budget::{Allowance, OnExhausted, Spent};
use clinch_core::death::Reason;
use clinch_core::effect::EffectClass;
use clinch_core::job::Waits;
use clinch_core::key::{EntityKey, Pepper};
use clinch_core::limit::Rate;
use clinch_core::safe_mode::{self, Leaving, Sending, What, ready_since};
use clinch_core::time::human;
use clinch_store::SpendAsk;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The account of messages that contacts get in safe mode.
const CAP: &str = "safe_mode";
/// A message that is to be written with another template is soon tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// What becomes of an effect in safe mode.
pub enum Care {
    Go,
    /// If its contact has not had enough.
    GoWithin(Allowance),
    /// It waited, and this is its turn.
    GoInTurn(Arc<Lane>),
    Wait(Wait),
    Decline(Failure),
}

/// The turns of those that waited, by the safe mode that has ended.
#[derive(Default)]
pub struct Drains {
    known: Mutex<HashMap<Arc<str>, Drain>>,
}

struct Drain {
    rate: Rate,
    lane: Arc<Lane>,
}

impl Drain {
    fn new(rate: Rate) -> Drain {
        Drain { rate, lane: Arc::new(Lane::new(&rate, Duration::ZERO)) }
    }
}

impl Drains {
    pub async fn care(&self, house: &House, effect: &Effect<'_>) -> clinch_store::Result<Care> {
        let (controls, now) = (house.controls.get(), house.clock.now());
        if controls.safe_modes().is_empty() {
            return Ok(Care::Go);
        }
        let workspace = house.versions.now();
        let rule = &workspace.settings.safe_mode;
        let wait = |until| Care::Wait(Wait { until, waits: Waits::SafeMode });
        Ok(match safe_mode::care(rule, &controls, &leaving(effect), now) {
            safe_mode::Care::Go => Care::Go,
            safe_mode::Care::GoWithin(cap) => Care::GoWithin(cap),
            safe_mode::Care::WriteAgain => wait(now + AGAIN),
            safe_mode::Care::Hold(mode) => wait(house.controls.safe_at(mode, &*house.clock)),
            safe_mode::Care::Turn(mode) => {
                let name = mode.scope.control();
                let lane = self.lane(&name, mode.drain.unwrap_or(rule.drain));
                match lane.turn(house, &name).await? {
                    Some(until) => wait(until),
                    None => Care::GoInTurn(lane),
                }
            }
            safe_mode::Care::TooOld(waited) => {
                let why = format!("waited in safe mode for {}, longer than it may", human(waited));
                Care::Decline(Failure::new(Reason::TooOld, format!("step `{}` {why}", effect.step)))
            }
        })
    }

    fn lane(&self, name: &Arc<str>, rate: Rate) -> Arc<Lane> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let drain = known.entry(name.clone()).or_insert_with(|| Drain::new(rate));
        if drain.rate != rate {
            *drain = Drain::new(rate);
        }
        drain.lane.clone()
    }
}

fn leaving<'a>(effect: &'a Effect<'_>) -> Leaving<'a> {
    let claim = effect.claim;
    Leaving {
        what: effect.outgoing.what(),
        sending: Sending { queue: &claim.queue, flow: &claim.flow, integration: &effect.partner.name },
        ready: ready_since(claim.received_at, &claim.effects),
        is_replay: claim.replays > 0,
    }
}

/// Counts one more message to this contact. Why not, if it has had enough of them. A message that was begun before is the same
/// message.
pub async fn within(house: &House, effect: &Effect<'_>, cap: Allowance) -> clinch_store::Result<Option<Failure>> {
    let Outgoing::Message { contact, .. } = effect.outgoing else { return Ok(None) };
    if effect.claim.effects.iter().any(|past| *past.name == **effect.step) {
        return Ok(None);
    }
    let (now, on_exhausted) = (house.clock.now(), OnExhausted::Dead);
    let ask = SpendAsk { budget: CAP.into(), entity: contact, allowance: cap, on_exhausted, latest: None, now };
    let spent = house.insist(|| house.store.spend(ask.clone())).await?;
    Ok((!matches!(spent, Spent::Granted { .. })).then(|| {
        let (step, max, per) = (effect.step, cap.units, human(cap.window));
        let why = format!("step `{step}`: in safe mode {contact} gets at most {max} messages in {per}");
        Failure::new(Reason::PolicyDenied, why)
    }))
}

/// What is about to leave.
#[derive(Clone, Debug)]
pub enum Outgoing {
    Message {
        /// What it was written with.
        template: Arc<str>,
        /// Whom it is for, as a hash.
        contact: EntityKey,
    },
    Call(EffectClass),
}

impl Outgoing {
    fn what(&self) -> What<'_> {
        match self {
            Outgoing::Message { template, .. } => What::Message(template),
            Outgoing::Call(class) => What::Call(*class),
        }
    }

    /// The name under which a contact is counted.
    pub fn contact(house: &House, tenant: &str, to: &str) -> EntityKey {
        let pepper = Pepper::new(house.store.pepper());
        EntityKey::of(&pepper, tenant, CAP, &to.trim().to_lowercase())
    }
}
