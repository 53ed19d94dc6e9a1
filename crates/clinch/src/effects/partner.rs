//! What this node knows of a partner: its circuit, the moments at which it may be called, and its places there.
//! Whoever must wait is sent away with a time to come back; nobody waits here with a place in his hand.

use super::places::{Place, Places};
use super::record::{Record, UnderWay};
use crate::house::House;
use crate::partners::{CircuitNow, Seen};
use crate::telemetry::Called;
use clinch_core::breaker::{Ask, Away, Breaker, BreakerRule, Circuit, Opened};
use clinch_core::config::Workspace;
use clinch_core::id::JobId;
use clinch_core::integration::{Integration, Spread};
use clinch_core::job::Waits;
use clinch_core::limit::Rate;
use clinch_core::pace::{Made, Moments, NEAR, Turn};
use clinch_core::payload::TraceId;
use clinch_core::time::{Timestamp, human};
use clinch_store::PaceAsk;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub struct Partner {
    pub integration: Arc<Integration>,
    breaker: Option<Arc<Mutex<Breaker>>>,
    away: Arc<Mutex<Away>>,
    places: Option<Arc<Places>>,
    pace: Option<Arc<Lane>>,
    errors: Option<Arc<Mutex<Breaker>>>,
    record: Arc<Record>,
}

/// May it be called now?
pub enum Entry {
    Enter(Visit),
    Wait(Wait),
}

/// Not before then, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub until: Timestamp,
    pub waits: Waits,
}

/// A call that may be made. It is told how it ended, or it ends without a word.
pub struct Visit {
    partner: Arc<Partner>,
    is_probe: bool,
    is_told: bool,
    /// How long our own limits have let it wait.
    waited: Duration,
    began: Timestamp,
    _place: Option<Place>,
    _under_way: UnderWay,
}

/// The moments of calls, and the calls that were made.
pub struct Lane {
    pace: tokio::sync::Mutex<Moments>,
    made: Mutex<Made>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Partner {
    /// `errors` is the share of failures that asks for safe mode.
    pub fn new(integration: Arc<Integration>, errors: Option<BreakerRule>) -> Partner {
        Partner {
            breaker: integration.breaker.map(|rule| Arc::new(Mutex::new(Breaker::new(rule)))),
            away: Arc::default(),
            places: integration.concurrency.map(|max| Arc::new(Places::new(integration.name.clone(), max))),
            pace: (integration.rate.as_ref())
                .map(|rate| Arc::new(Lane::new(rate, integration.jitter.map_or(Duration::ZERO, Spread::width)))),
            errors: errors.map(|rule| Arc::new(Mutex::new(Breaker::new(rule)))),
            record: Arc::default(),
            integration,
        }
    }

    /// The same partner after something was set: what is known of it, and the calls that are under way, still count.
    fn after(&self, integration: Arc<Integration>, errors: Option<BreakerRule>) -> Partner {
        let (old, new) = (&self.integration, Partner::new(integration, errors));
        let (rule, places) = (new.integration.breaker, new.integration.concurrency);
        let breaker = self.breaker.clone().zip(rule).map(|(breaker, rule)| {
            lock(&breaker).follow(rule);
            breaker
        });
        let errors = self.errors.clone().zip(errors).map(|(counted, rule)| {
            lock(&counted).follow(rule);
            counted
        });
        let places = self.places.clone().zip(places).map(|(places, max)| {
            places.follow(max);
            places
        });
        let same_pace = (old.rate, old.jitter) == (new.integration.rate, new.integration.jitter);
        Partner {
            breaker: breaker.or(new.breaker),
            away: self.away.clone(),
            places: places.or(new.places),
            pace: if same_pace { self.pace.clone() } else { new.pace },
            errors: errors.or(new.errors),
            record: self.record.clone(),
            integration: new.integration,
        }
    }

    /// Breaker, place, moment: in this order, so that nothing is taken for a call that is not made.
    pub async fn enter(self: &Arc<Self>, house: &House, job: JobId, call_max: Duration) -> clinch_store::Result<Entry> {
        let now = house.clock.now();
        let ask = self.breaker.as_ref().map_or(Ask::Go, |breaker| {
            let mut breaker = lock(breaker);
            let before = breaker.circuit();
            let ask = breaker.ask(now, call_max);
            if before != breaker.circuit() {
                self.record.turned(now, before, breaker.circuit());
                house.metrics.circuit(&self.integration.name, breaker.circuit());
            }
            ask
        });
        if let Ask::Wait(until) = ask {
            house.metrics.circuit_rejected(&self.integration.name);
            let open_for = self.integration.breaker.unwrap_or_default().open_for;
            let until = lock(&self.away).back_at(until, open_for, house.clock.dice());
            return Ok(Entry::Wait(Wait { until, waits: Waits::Circuit }));
        }
        let is_probe = ask == Ask::Probe;
        let under_way = self.record.begin();
        let mut visit = Visit {
            partner: self.clone(),
            is_probe,
            is_told: false,
            waited: Duration::ZERO,
            began: now,
            _place: None,
            _under_way: under_way,
        };
        if let Some(places) = &self.places {
            match places.take(house).await {
                Some(place) => visit._place = Some(place),
                None => return Ok(self.away(job, places.free_at(now), now)),
            }
        }
        if let Some(lane) = &self.pace
            && let Some(until) = lane.turn(house, &self.integration.name).await?
        {
            return Ok(self.away(job, until, now));
        }
        if let Some(jitter) = self.integration.jitter {
            tokio::time::sleep(jitter.pick(house.clock.dice())).await;
        }
        if self.places.is_some() || self.pace.is_some() || self.integration.jitter.is_some() {
            visit.waited = house.clock.now().since(self.record.back(job).unwrap_or(now));
        }
        Ok(Entry::Enter(visit))
    }

    /// Our own limits send the job away until then.
    fn away(&self, job: JobId, until: Timestamp, now: Timestamp) -> Entry {
        self.record.away(job, now);
        Entry::Wait(Wait { until, waits: Waits::Limit })
    }
}

impl Partner {
    /// What people see of it.
    fn seen(&self, now: Timestamp, window: Duration) -> Seen {
        let calls = self.record.within(now, window);
        let circuit = self.breaker.as_ref().map(|breaker| {
            let breaker = lock(breaker).clone();
            let (since, turns) = self.record.turns();
            let why = breaker.opened().map(|(_, because)| match because {
                Opened::TooMany { calls, errors } => {
                    let BreakerRule { errors_percent, window, .. } = breaker.rule();
                    let window = human(window);
                    format!("{errors} of {calls} calls within {window} failed; the limit is {errors_percent} %")
                }
                Opened::ProbeFailed => "it was asked whether it is back, and is not".into(),
            });
            CircuitNow { circuit: breaker.circuit(), since, why, probe_at: breaker.opened().map(|(at, _)| at), turns }
        });
        let in_flight = self.record.in_flight();
        let rate_used = self.pace.as_ref().and_then(|lane| lock(&lane.made).used(now));
        Seen { name: self.integration.name.clone(), circuit, calls, in_flight, rate_used }
    }
}

impl Visit {
    /// Right before the call: until it does not come too close to those that were made. From here on it is the partner's time.
    pub async fn hold(&mut self, house: &House) {
        if let Some(lane) = &self.partner.pace {
            self.waited += lane.hold(house).await;
        }
        self.began = house.clock.now();
    }

    /// How the call ended, in the words of metrics: whether the partner failed, or did what a partner does.
    pub fn tell(mut self, house: &House, class: &'static str, failed: bool, example: Option<TraceId>) {
        self.is_told = true;
        let now = house.clock.now();
        let took = now.since(self.began);
        if let Some(places) = &self.partner.places {
            places.learn(took);
        }
        self.partner.record.add(now, self.waited, took, failed);
        let called = Called { class, waited: self.waited, took, example, now };
        house.metrics.called(&self.partner.integration.name, called);
        self.mind(house, failed, now);
        let Some(breaker) = &self.partner.breaker else { return };
        let mut breaker = lock(breaker);
        let before = breaker.circuit();
        breaker.report(now, self.is_probe, failed);
        let after = breaker.circuit();
        drop(breaker);
        if before != after {
            let name = &self.partner.integration.name;
            self.partner.record.turned(now, before, after);
            house.metrics.circuit(name, after);
            match after {
                Circuit::Open => {
                    tracing::warn!("the circuit of integration `{name}` is open: too many calls failed");
                    house.controls.circuit_opened(house, name);
                }
                Circuit::Closed => tracing::info!("the circuit of integration `{name}` is closed again"),
                Circuit::HalfOpen => {}
            }
        }
    }
}

impl Visit {
    /// Where a share of failures asks for safe mode: whether it is reached.
    fn mind(&self, house: &House, failed: bool, now: Timestamp) {
        let Some(errors) = &self.partner.errors else { return };
        let mut counted = lock(errors);
        counted.report(now, false, failed);
        if counted.circuit() == Circuit::Open {
            *counted = Breaker::new(counted.rule());
            drop(counted);
            house.controls.too_many_errors(house, &self.partner.integration.name);
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(breaker) = self.partner.breaker.as_ref().filter(|_| self.is_probe && !self.is_told) {
            lock(breaker).forgo();
        }
    }
}

impl Lane {
    pub fn new(rate: &Rate, spread: Duration) -> Lane {
        Lane { pace: tokio::sync::Mutex::new(Moments::new(rate, spread)), made: Mutex::new(Made::new(rate)) }
    }

    /// At the next moment, if that is near. If not: when to come back.
    pub async fn turn(&self, house: &House, name: &Arc<str>) -> clinch_store::Result<Option<Timestamp>> {
        match self.next(house, name).await? {
            Turn::Call(moment) => {
                rest(moment.since(house.clock.now())).await;
                Ok(None)
            }
            Turn::Back(until) => Ok(Some(until)),
        }
    }

    /// Right before the call: until it does not come too close to those that were made. How long that was.
    pub async fn hold(&self, house: &House) -> Duration {
        let wait = lock(&self.made).hold(house.clock.now());
        rest(wait).await;
        wait
    }

    async fn next(&self, house: &House, name: &Arc<str>) -> clinch_store::Result<Turn> {
        let mut pace = self.pace.lock().await;
        if let Some(turn) = pace.turn(house.clock.now()) {
            return Ok(turn);
        }
        let (calls, every) = (pace.block(house.clock.now()), pace.every());
        // However long the store cannot be asked: no moment is from before it could.
        let ask =
            || house.store.reserve(PaceAsk { name: name.clone(), calls, every, now: house.clock.now(), ahead: NEAR });
        let reserved = house.insist(ask).await?;
        Ok(pace.hear(reserved, calls, house.clock.now()))
    }
}

/// Timers count whole milliseconds, and make one even of nothing. A call that is so little too early takes next to nothing of the slack
/// that a rate has.
async fn rest(wait: Duration) {
    if wait >= Duration::from_millis(1) {
        tokio::time::sleep(wait).await;
    }
}

/// The partners of this node, by name.
pub struct Partners {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    partners: HashMap<Arc<str>, Arc<Partner>>,
    /// What they are protected by.
    workspace: Option<Arc<Workspace>>,
}

impl Known {
    /// Partners of which another thing is said now are protected by that from here on.
    fn follow(&mut self, now: &Arc<Workspace>) {
        if self.workspace.as_ref().is_some_and(|before| Arc::ptr_eq(before, now)) {
            return;
        }
        for partner in self.partners.values_mut() {
            let said = now.integration(&partner.integration.name).unwrap_or(&partner.integration).clone();
            *partner = Arc::new(partner.after(said, errors_of(now)));
        }
        self.workspace = Some(now.clone());
    }
}

impl Partners {
    pub fn new() -> Partners {
        Partners { known: Mutex::default() }
    }

    /// Those that were called, by name.
    pub fn seen(&self, now: Timestamp, window: Duration) -> Vec<Seen> {
        let known: Vec<Arc<Partner>> = lock(&self.known).partners.values().cloned().collect();
        let mut seen: Vec<Seen> = known.iter().map(|partner| partner.seen(now, window)).collect();
        seen.sort_by(|one, other| one.name.cmp(&other.name));
        seen
    }

    /// What protects a partner is what is said of it now, whatever was said when a job was accepted.
    pub fn of(&self, house: &House, called: &Arc<Integration>) -> Arc<Partner> {
        let mut known = lock(&self.known);
        let now = house.versions.now();
        known.follow(&now);
        if let Some(partner) = known.partners.get(&called.name) {
            return partner.clone();
        }
        let live = now.integration(&called.name).unwrap_or(called);
        let partner = Arc::new(Partner::new(live.clone(), errors_of(&now)));
        known.partners.insert(called.name.clone(), partner.clone());
        partner
    }
}

/// The share of failures that asks for safe mode.
fn errors_of(workspace: &Workspace) -> Option<BreakerRule> {
    workspace.settings.safe_mode.trip.as_ref().and_then(|trip| trip.errors)
}
