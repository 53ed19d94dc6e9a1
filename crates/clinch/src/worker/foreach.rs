//! `foreach:` a step once for each of a list, one after the other. Each run has its own line in the ledger: what one came to is written
//! down as soon as it ends, and the failure of another never repeats it.

use super::attempt::run_step;
use super::end::{End, StepEnd};
use super::fanout::{Ground, judge};
use super::record;
use super::scope::Scope;
use crate::effects::Trace;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::expr::BadExpr;
use clinch_core::fanout::{Fate, Together, effects_of, items_together, kept};
use clinch_core::foreach::{Each, ItemPace, item_name};
use clinch_core::job::Waits;
use clinch_core::pace::Reserved;
use clinch_core::time::Timestamp;
use clinch_core::worker::{Branch, Step};
use clinch_store::{Held, PaceAsk};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// A moment that is free now, or none: who finds none is put off and holds no place meanwhile.
const AHEAD: Duration = Duration::from_millis(1);

/// Runs what is missing, and says what all runs come to together. The output is the list of theirs.
pub async fn run(ground: Ground<'_>, step: &Step, each: &Each, scope: &mut Scope<'_>) -> clinch_store::Result<StepEnd> {
    scope.begin(&step.name);
    let items = match each.items(scope.names()) {
        Ok(items) => items,
        Err(error) => return Ok(refused(step, &error)),
    };
    let mut turn = Turn { ground, step, pace: each.pace.as_ref(), used: None, is_spare: false };
    let (mut fates, mut outputs) = (Vec::new(), Vec::new());
    let is_empty = items.is_empty();
    for (index, item) in items.into_iter().enumerate() {
        let name = item_name(&step.name, index);
        scope.set_item(Some(item));
        let ran = turn.run(&name, scope).await?;
        let goes_on = match ran {
            Ran::TakenOver => return Ok(StepEnd::TakenOver),
            Ran::Done(output) => {
                fates.push((name, Fate::Done));
                outputs.push(output);
                true
            }
            Ran::Over(fate) => {
                fates.push((name, fate));
                outputs.push(Value::Null);
                true
            }
            Ran::NoTurn(fate) => {
                fates.push((name, fate));
                false
            }
        };
        if !goes_on {
            break;
        }
    }
    scope.set_item(None);
    Ok(match items_together(&step.name, &fates) {
        Together::GoOn => {
            scope.add_computed(&step.name, Value::Array(outputs));
            if is_empty { StepEnd::LeftOut } else { StepEnd::Together }
        }
        Together::End { outcome, failures } => StepEnd::Over(End { failures, ..End::of(outcome, &step.name) }),
    })
}

fn refused(step: &Step, error: &BadExpr) -> StepEnd {
    StepEnd::Over(End::refused(Reason::MissingData, format!("step `{}`: {error}", step.name), &step.name))
}

enum Ran {
    Done(Value),
    Over(Fate),
    /// It was not begun, and neither is any after it.
    NoTurn(Fate),
    /// Somebody else has the job now.
    TakenOver,
}

struct Turn<'a> {
    ground: Ground<'a>,
    step: &'a Step,
    pace: Option<&'a ItemPace>,
    /// The moment of the last run of this attempt.
    used: Option<Timestamp>,
    /// Nothing was done at it: it is the next one's. Otherwise one that can never run would use up every moment of those behind it.
    is_spare: bool,
}

impl Turn<'_> {
    async fn run(&mut self, name: &Arc<str>, scope: &mut Scope<'_>) -> clinch_store::Result<Ran> {
        let ground = self.ground;
        let Ground { house, gate, leases, claim, payload, .. } = ground;
        if house.stop.is_cancelled() {
            return Ok(Ran::NoTurn(Fate::Interrupted));
        }
        scope.begin(name);
        let branch = Branch::of_item(&Step { when: None, ..self.step.clone() }, name.clone());
        match self.step.when.as_ref().map(|condition| condition.holds(scope.names())) {
            None | Some(Ok(true)) => {}
            Some(Ok(false)) => {
                let end = End::of_left_out(effects_of(&branch, &claim.effects), house.clock.now());
                return Ok(end.map_or(Ran::Done(Value::Null), |end| Ran::Over(judge(ground, &branch, &end))));
            }
            Some(Err(error)) => {
                let end = End::refused(Reason::MissingData, format!("step `{name}`: {error}"), &self.step.name);
                return Ok(Ran::Over(judge(ground, &branch, &end)));
            }
        }
        let past = claim.effects.iter().find(|effect| *effect.name == **name);
        let is_over = past.is_some_and(|past| matches!(past.state, EffectState::Done(_) | EffectState::GivenUp(_)));
        if let Some(pace) = self.pace
            && !is_over
            && let Some(until) = self.moment(*pace).await?
        {
            return Ok(Ran::NoTurn(Fate::Waits { until, waits: Waits::Limit }));
        }
        Ok(match run_step(house, gate, leases, claim, &branch.steps[0], payload, scope).await? {
            StepEnd::LeftOut | StepEnd::Together => Ran::Done(Value::Null),
            StepEnd::Computed(output) => Ran::Done(output),
            StepEnd::DoneBefore(receipt) => Ran::Done(receipt.output()),
            StepEnd::Done(receipt, unwritten) => {
                if record::conclude(house, claim, unwritten).await? == Held::Lost {
                    return Ok(Ran::TakenOver);
                }
                crate::crash::point("after_conclude");
                Ran::Done(receipt.output())
            }
            StepEnd::Over(end) => {
                let fate = judge(ground, &branch, &end);
                self.is_spare = end.unwritten.as_ref().is_none_or(|last| last.trace == Trace::Nothing);
                if let Some(mut unwritten) = end.unwritten {
                    unwritten.conclusion.state = kept(unwritten.conclusion.state, &fate);
                    if record::conclude(house, claim, unwritten).await? == Held::Lost {
                        return Ok(Ran::TakenOver);
                    }
                }
                Ran::Over(fate)
            }
            StepEnd::TakenOver => Ran::TakenOver,
        })
    }

    /// Takes a moment that is free now. `Some`: there is none before then.
    async fn moment(&mut self, pace: ItemPace) -> clinch_store::Result<Option<Timestamp>> {
        let Ground { house, claim, .. } = self.ground;
        let dice = house.clock.dice();
        if std::mem::take(&mut self.is_spare) {
            return Ok(None);
        }
        if let Some(used) = self.used {
            return Ok(Some(pace.next(used, dice)));
        }
        let now = house.clock.now();
        // No integration can have such a name.
        let name: Arc<str> = format!("step:{}/{}", claim.queue, self.step.name).into();
        let ask = PaceAsk { name, calls: 1, every: pace.every(), now, ahead: AHEAD };
        match house.insist(|| house.store.reserve(ask.clone())).await? {
            Reserved::From(moment) => {
                self.used = Some(moment);
                Ok(None)
            }
            Reserved::Taken { .. } => Ok(Some(pace.next(now, dice))),
        }
    }
}
