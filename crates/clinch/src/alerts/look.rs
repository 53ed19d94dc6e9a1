//! Looks at what the rules are judged on: counters and partners of this node, and what the store knows of all.

use super::meter::Meter;
use super::soon;
use crate::house::House;
use crate::minutes::Totals;
use crate::partners::Outlook;
use crate::telemetry::{
    ByChannelOutcome, ByFlowOutcome, ByFlowReason, BySource, BySourceOutcome, IntakeOutcome, NoticeOutcome,
};
use crate::unresolved;
use clinch_core::alert::{
    DeadReading, FlowReading, IntakeReading, PartnerReading, Readings, StoreReading, WINDOW_FAST, WINDOW_LONG,
    WINDOW_NOTICES, WINDOW_SIGNATURES,
};
use clinch_core::breaker::Circuit;
use clinch_core::config::Workspace;
use clinch_core::control::{PLAYBOOK_QUEUE, Scope};
use clinch_core::death::Reason;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::read::{Counts, EventFilter};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What costs the store something is asked for less often.
const STORE_EVERY: Duration = Duration::from_secs(5);
/// And what looks at many rows, less often still.
const COSTLY_EVERY: Duration = Duration::from_secs(30);
/// Times are counted over so many jobs at most.
const SAMPLE_JOBS: usize = 2_000;
/// Of the jobs that were accepted in such a time.
const LATENCY_WINDOW: Duration = Duration::from_secs(900);

pub struct Looker {
    house: House,
    outlook: Arc<dyn Outlook>,
    meter: Meter,
    /// Since when calls of a partner fail.
    failing: BTreeMap<Arc<str>, Timestamp>,
    lines: BTreeMap<Arc<str>, Line>,
    /// When the last event of a source came, by the store.
    heard: BTreeMap<String, Timestamp>,
    store_at: Option<Timestamp>,
    costly_at: Option<Timestamp>,
    /// What could not be looked at again stays as it was.
    last: Readings,
}

/// How the jobs of a flow that wait for their turn get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    queued: u64,
    finished: u64,
    /// When the one that waits longest was accepted.
    oldest: Option<Timestamp>,
    since: Timestamp,
}

impl Line {
    /// Whether somebody got his turn since then.
    fn moved(&self, before: &Line) -> bool {
        self.queued < before.queued || self.finished != before.finished || self.oldest != before.oldest
    }
}

impl Looker {
    pub fn new(house: House, outlook: Arc<dyn Outlook>) -> Looker {
        Looker {
            house,
            outlook,
            meter: Meter::default(),
            failing: BTreeMap::new(),
            lines: BTreeMap::new(),
            heard: BTreeMap::new(),
            store_at: None,
            costly_at: None,
            last: Readings::default(),
        }
    }

    pub async fn look(&mut self, now: Timestamp) -> Readings {
        let workspace = self.house.versions.now();
        let is_due = |at: Option<Timestamp>, every| at.is_none_or(|at| now.since(at) >= every);
        if is_due(self.store_at, STORE_EVERY) {
            self.store_at = Some(now);
            if let Err(error) = soon(self.look_into_store(&workspace, now)).await {
                tracing::debug!("alerts are judged on what was known before: {error}");
            }
        }
        if is_due(self.costly_at, COSTLY_EVERY) {
            self.costly_at = Some(now);
            if let Err(error) = soon(self.look_closely(&workspace, now)).await {
                tracing::debug!("alerts are judged on what was known before: {error}");
            }
        }
        self.last.intake = self.intake(&workspace, now);
        self.last.dead = self.dead(&workspace, now);
        self.last.partners = self.partners(now);
        self.last.notices = self.notices(&workspace, now);
        self.last.safe_modes = self.safe_modes(now);
        self.last.slo = workspace.settings.slo;
        let totals = Totals::of(&self.house.metrics, &workspace);
        self.last.burns = self.house.minutes.burns((now, totals), &workspace.settings.slo);
        self.last.is_reload_refused = self.house.reload.refused().is_some();
        self.last.replays = u64::try_from(self.house.metrics.replay_plans.get()).unwrap_or(0);
        let health = self.house.store.health();
        let free_bytes = Some(health.free_bytes).filter(|free| *free > 0);
        self.last.store = StoreReading { is_unwell: health.unwell.is_some(), free_bytes };
        self.last.clone()
    }

    async fn look_into_store(&mut self, workspace: &Workspace, now: Timestamp) -> clinch_store::Result<()> {
        let store = &self.house.store;
        let counts = store.counts().await?;
        let asked = store.approvals_waiting().await?;
        self.last.budgets = store.exhausted(now).await?;
        let mut flows = self.flows(workspace, &counts, now);
        for waiting in asked {
            entry(&mut flows, &waiting.flow).oldest_approval = Some(waiting.oldest);
        }
        self.last.flows = flows.into_values().collect();
        Ok(())
    }

    async fn look_closely(&mut self, workspace: &Workspace, now: Timestamp) -> clinch_store::Result<()> {
        let unknown = unresolved::count(&self.house).await?;
        let some = unknown.into_iter().filter_map(|(name, effects)| Some((name, u64::try_from(effects).ok()?)));
        self.last.unknown_effects = some.filter(|(_, effects)| *effects > 0).collect();
        let spans = self.house.store.latencies(now - LATENCY_WINDOW, SAMPLE_JOBS).await?.end_to_end;
        self.last.end_to_end_p95 = spans.get((spans.len() * 95).div_ceil(100).saturating_sub(1)).copied();
        for source in workspace.sources.iter().filter(|source| source.silence.is_some()) {
            let filter = EventFilter { source: Some(source.name.clone()), limit: 1, ..EventFilter::default() };
            if let Some(row) = self.house.store.events(filter).await?.rows.first() {
                self.heard.insert(source.name.clone(), row.received_at);
            }
        }
        Ok(())
    }

    fn intake(&mut self, workspace: &Workspace, now: Timestamp) -> Vec<IntakeReading> {
        let doors: BTreeSet<&str> = workspace.entrances().map(|way| way.to.1).collect();
        doors.into_iter().map(|door| self.door(door, workspace, now)).collect()
    }

    fn door(&mut self, door: &str, workspace: &Workspace, now: Timestamp) -> IntakeReading {
        let metrics = self.house.metrics.clone();
        let source: Arc<str> = door.into();
        let total = |outcome: IntakeOutcome| {
            let labels = BySourceOutcome { source: (&source).into(), outcome: outcome.word().into() };
            metrics.intake_requests.get_or_create(&labels).get()
        };
        let all: u64 = IntakeOutcome::at_a_door().map(total).sum();
        let mut grown = |what, total, window| self.meter.grown((what, door.to_string(), ""), total, window, now);
        let requests = grown("requests", all, WINDOW_FAST);
        let store_errors = grown("store_errors", total(IntakeOutcome::StoreError), WINDOW_FAST);
        let signed_requests = grown("signed", all, WINDOW_SIGNATURES);
        let unproven = total(IntakeOutcome::BadSignature) + total(IntakeOutcome::StaleTimestamp);
        let unverified = grown("unverified", unproven, WINDOW_SIGNATURES);
        let conflicts = grown("conflicts", total(IntakeOutcome::Conflict), WINDOW_LONG);
        let known = workspace.sources.iter().find(|known| known.name == door);
        let same_bodies = known.filter(|known| known.same_body.is_some()).map_or(0, |_| {
            let same = metrics.intake_same_body.get_or_create(&BySource { source: (&source).into() }).get();
            self.meter.grown(("same", door.to_string(), ""), same, WINDOW_LONG, now)
        });
        let silence = known.and_then(|known| known.silence).map(|limit| (limit, self.last_heard(&source)));
        IntakeReading { source, requests, store_errors, signed_requests, unverified, conflicts, same_bodies, silence }
    }

    /// When it sent last: here by the metrics, elsewhere by the store. Who never did has been silent since we began.
    fn last_heard(&self, source: &Arc<str>) -> Timestamp {
        let here = self.house.metrics.last_accepted.get_or_create(&BySource { source: source.into() }).get();
        let here = Timestamp::from_micros((here * 1e6) as i64);
        let elsewhere = self.heard.get(&**source).copied().unwrap_or_default();
        here.max(elsewhere).max(self.house.minutes.start)
    }

    fn flows(&mut self, workspace: &Workspace, counts: &Counts, now: Timestamp) -> BTreeMap<Arc<str>, FlowReading> {
        let mut flows = BTreeMap::new();
        for (flow, word, jobs) in &counts.live {
            let reading = entry(&mut flows, flow);
            reading.queued += if *word == Word::Queued { *jobs } else { 0 };
        }
        for (flow, word, at) in &counts.oldest {
            let reading = entry(&mut flows, flow);
            if *word == Word::Queued {
                reading.oldest_queued = Some(*at);
            }
            if *word != Word::Waiting {
                reading.oldest = Some(reading.oldest.map_or(*at, |known| known.min(*at)));
            }
        }
        for (flow, at) in &counts.oldest_dead {
            entry(&mut flows, flow).oldest_dead = Some(*at);
        }
        for (flow, reading) in &mut flows {
            let finished = ["success", "noop", "dead_letter"].into_iter().map(|outcome| {
                let labels = ByFlowOutcome { flow: flow.into(), outcome: outcome.into() };
                self.house.metrics.finished.get_or_create(&labels).get()
            });
            let line =
                Line { queued: reading.queued, finished: finished.sum(), oldest: reading.oldest_queued, since: now };
            let before = self.lines.get(flow).filter(|before| !line.moved(before));
            let line = Line { since: before.map_or(now, |before| before.since), ..line };
            self.lines.insert(flow.clone(), line);
            let stands = reading.queued > 0 && !is_paused(&self.house, workspace, flow, now);
            reading.stuck_since = stands.then_some(line.since);
        }
        self.lines.retain(|flow, _| flows.contains_key(flow));
        flows
    }

    fn dead(&mut self, workspace: &Workspace, now: Timestamp) -> Vec<DeadReading> {
        let mut dead = Vec::new();
        for flow in &workspace.flows {
            let name: Arc<str> = flow.name.as_str().into();
            for reason in Reason::ALL {
                let labels = ByFlowReason { flow: (&name).into(), reason: reason.word().into() };
                let total = self.house.metrics.dead_entered.get_or_create(&labels).get();
                let entered = self.meter.grown(("dead", flow.name.clone(), reason.word()), total, WINDOW_LONG, now);
                if entered > 0 {
                    dead.push(DeadReading { flow: name.clone(), reason: reason.word(), entered });
                }
            }
        }
        dead
    }

    fn partners(&mut self, now: Timestamp) -> Vec<PartnerReading> {
        let seen = self.outlook.partners(now, WINDOW_FAST);
        self.failing.retain(|name, _| seen.iter().any(|seen| seen.name == *name));
        let reading = |seen: &crate::partners::Seen| {
            let open = seen.circuit.as_ref().filter(|circuit| circuit.circuit != Circuit::Closed);
            let open_since = open.map(|circuit| circuit.since.unwrap_or(now));
            if seen.calls.failed == 0 && open_since.is_none() {
                self.failing.remove(&seen.name);
            }
            let failing_since = match seen.calls.failed > 0 {
                true => Some(*self.failing.entry(seen.name.clone()).or_insert(now)),
                false => self.failing.get(&seen.name).copied(),
            };
            let name = seen.name.clone();
            PartnerReading { name, open_since, calls: seen.calls.all, failed: seen.calls.failed, failing_since }
        };
        seen.iter().map(reading).collect()
    }

    fn notices(&mut self, workspace: &Workspace, now: Timestamp) -> Vec<(String, u64)> {
        let channels = workspace.settings.alerts.channels.iter();
        let failed = channels.map(|channel| {
            let labels = ByChannelOutcome::of(&channel.name, NoticeOutcome::Error);
            let total = self.house.metrics.notifications.get_or_create(&labels).get();
            let failed = self.meter.grown(("notices", channel.name.clone(), ""), total, WINDOW_NOTICES, now);
            (channel.name.clone(), failed)
        });
        failed.collect()
    }

    fn safe_modes(&self, now: Timestamp) -> Vec<(String, Timestamp)> {
        let controls = self.house.controls.get();
        let on = controls.safe_modes().iter().filter(|mode| mode.is_on(now));
        on.map(|mode| (mode.scope.to_string(), mode.since)).collect()
    }
}

fn entry<'a>(flows: &'a mut BTreeMap<Arc<str>, FlowReading>, flow: &Arc<str>) -> &'a mut FlowReading {
    flows.entry(flow.clone()).or_insert_with(|| FlowReading { flow: flow.clone(), ..FlowReading::default() })
}

/// Whether somebody wants these jobs to wait.
fn is_paused(house: &House, workspace: &Workspace, flow: &Arc<str>, now: Timestamp) -> bool {
    let queues: Vec<&str> =
        workspace.flow(flow).iter().flat_map(|flow| &flow.enqueue).map(|to| to.queue.as_str()).collect();
    let controls = house.controls.get();
    let mut pauses = controls.pauses(now);
    pauses.any(|pause| match &pause.scope {
        Scope::Flow(name) => name == flow,
        Scope::Queue(name) => queues.contains(&&**name),
        Scope::Playbook(name) => queues.contains(&format!("{PLAYBOOK_QUEUE}{name}").as_str()),
        Scope::Integration(_) | Scope::Source(_) | Scope::Replays => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h4_a_line_has_moved_when_somebody_got_his_turn() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let line = Line { queued: 5, finished: 9, oldest: Some(at(1)), since: at(10) };
        let moved = |now: Line| now.moved(&line);
        assert!(!moved(line) && !moved(Line { queued: 6, ..line }), "more of them is no movement");
        assert!(moved(Line { queued: 4, ..line }));
        assert!(moved(Line { finished: 10, ..line }));
        assert!(moved(Line { oldest: Some(at(2)), ..line }));
    }
}
