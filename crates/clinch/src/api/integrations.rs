//! Integrations: whom this installation calls, how that goes, and what is kept from them. Calls, times and circuits are what
//! this node has seen; what is paused and what waits is of all nodes.

use super::controls::Pause;
use super::latency::nearest_rank;
use super::overview::window_of;
use super::problem::Problem;
use super::query::Query;
use super::safe_mode::SafeMode;
use super::shapes::Moment;
use crate::house::House;
use crate::partners::{CircuitNow, Outlook, Seen};
use crate::unresolved;
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use clinch_core::breaker::BreakerRule;
use clinch_core::config::Workspace;
use clinch_core::control::Scope;
use clinch_core::job::Waits;
use clinch_core::time::{Timestamp, human};
use clinch_core::worker::Action;
use clinch_store::read::Counts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// `clinch.integrations.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct IntegrationList {
    pub schema: String,
    /// Of the calls: 15m, 1h, 6h, 24h.
    pub window: String,
    pub integrations: Vec<Integration>,
}

/// `clinch.integrations.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct IntegrationShow {
    pub schema: String,
    pub window: String,
    pub integration: Integration,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Integration {
    pub name: String,
    /// Whether `clinch.yml` says something of it; if not, it is whoever is at the url of a step.
    pub declared: bool,
    /// read, create, state, monetary
    pub class: String,
    /// Nothing where it is called however it fares.
    pub circuit: Option<CircuitShow>,
    /// Calls of the window that this node made.
    pub calls: u64,
    /// Those that say that the partner is not well.
    pub failed: u64,
    /// The share of the others.
    pub ok: Option<f64>,
    /// How long the newest calls took, in seconds: the partner's time.
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    /// How long these had waited for our own limits before, in seconds.
    pub wait_p50: Option<f64>,
    pub wait_p95: Option<f64>,
    pub wait_p99: Option<f64>,
    /// Calls under way on this node.
    pub in_flight: usize,
    /// How many may be, on all nodes together.
    pub concurrency: Option<usize>,
    pub rate: Option<String>,
    /// The share of it that this node uses now, 0 to 1.
    pub rate_used: Option<f64>,
    /// Jobs of its flows that wait for a circuit, a limit or the end of a pause.
    pub waiting: u64,
    /// Effects of unknown outcome that need a person.
    pub unresolved: u64,
    pub paused: Option<Pause>,
    pub safe_mode: Option<SafeMode>,
    /// The flows whose steps call it.
    pub flows: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitShow {
    /// closed, open, half_open
    pub state: String,
    /// Since when; nothing where it never changed.
    pub since: Option<Moment>,
    /// Why it is open.
    pub why: Option<String>,
    pub probe_at: Option<Moment>,
    /// When it opens.
    pub rule: String,
    /// The last changes, the oldest first.
    pub turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Turn {
    pub at: Moment,
    pub to: String,
}

const WINDOW_DEFAULT: &str = "15m";

pub async fn list(
    State(house): State<House>,
    Extension(partners): Extension<Arc<dyn Outlook>>,
    RawQuery(raw): RawQuery,
) -> Result<Json<IntegrationList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["window"])?;
    let (name, window, _) = window_of(query.text("window").unwrap_or(WINDOW_DEFAULT))?;
    let integrations = all(&house, &*partners, window).await?;
    Ok(Json(IntegrationList { schema: "clinch.integrations.list/v1".into(), window: name.into(), integrations }))
}

pub async fn show(
    State(house): State<House>,
    Extension(partners): Extension<Arc<dyn Outlook>>,
    Path(name): Path<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<IntegrationShow>, Problem> {
    let query = Query::parse(raw.as_deref(), &["window"])?;
    let (window_name, window, _) = window_of(query.text("window").unwrap_or(WINDOW_DEFAULT))?;
    let mut integrations = all(&house, &*partners, window).await?;
    let Some(place) = integrations.iter().position(|known| known.name == name) else {
        let known: Vec<&str> = integrations.iter().map(|known| known.name.as_str()).collect();
        return Err(Problem::not_found(match known.as_slice() {
            [] => "This workspace calls nobody.".to_string(),
            _ => format!("There is no such integration; those that are called are {}.", known.join(", ")),
        }));
    };
    let integration = integrations.swap_remove(place);
    Ok(Json(IntegrationShow { schema: "clinch.integrations.show/v1".into(), window: window_name.into(), integration }))
}

async fn all(house: &House, partners: &dyn Outlook, window: Duration) -> Result<Vec<Integration>, Problem> {
    let now = house.clock.now();
    let counts = house.store.counts().await?;
    let unresolved = unresolved::count(house).await?;
    let mut seen: BTreeMap<Arc<str>, Seen> =
        partners.partners(now, window).into_iter().map(|seen| (seen.name.clone(), seen)).collect();
    let workspace = house.versions.now();
    let told = workspace.partners().map(|partner| {
        let seen = seen.remove(&partner.name);
        let unresolved = unresolved.get(&*partner.name).copied().unwrap_or_default();
        Integration {
            unresolved: u64::try_from(unresolved).unwrap_or_default(),
            ..integration(house, partner, seen, &counts, now)
        }
    });
    Ok(told.collect())
}

fn integration(
    house: &House,
    partner: &Arc<clinch_core::integration::Integration>,
    seen: Option<Seen>,
    counts: &Counts,
    now: Timestamp,
) -> Integration {
    let (workspace, controls) = (house.versions.now(), house.controls.get());
    let flows = flows_calling(&workspace, &partner.name);
    let is_held = |waits| matches!(waits, Waits::Circuit | Waits::Limit | Waits::Paused);
    let waiting =
        counts.waiting.iter().filter(|one| is_held(one.waits) && flows.iter().any(|flow| **flow == *one.flow));
    let scope = Scope::Integration(partner.name.clone());
    let mut modes = controls.safe_modes().iter().filter(|mode| mode.is_on(now));
    let made = seen.as_ref().map(|seen| seen.calls.clone()).unwrap_or_default();
    let of = |spans: &[Duration], percentile| nearest_rank(spans, percentile).map(|span| span.as_secs_f64());
    let at = |percentile| of(&made.took, percentile);
    let waited = |percentile| of(&made.waited, percentile);
    let (calls, failed) = (made.all, made.failed);
    Integration {
        declared: workspace.integration(&partner.name).is_some(),
        class: partner.class.word().into(),
        calls,
        failed,
        ok: (calls > 0).then(|| calls.saturating_sub(failed) as f64 / calls as f64),
        p50: at(50.0),
        p95: at(95.0),
        p99: at(99.0),
        wait_p50: waited(50.0),
        wait_p95: waited(95.0),
        wait_p99: waited(99.0),
        rate_used: seen.as_ref().and_then(|seen| seen.rate_used),
        in_flight: seen.as_ref().map_or(0, |seen| seen.in_flight),
        concurrency: partner.concurrency,
        rate: partner.rate.as_ref().map(ToString::to_string),
        waiting: waiting.map(|one| one.jobs).sum(),
        unresolved: 0,
        paused: controls.paused(&scope, now).map(Pause::from),
        safe_mode: modes.find(|mode| mode.scope.is_over(&partner.name)).map(SafeMode::from),
        circuit: partner.breaker.map(|rule| circuit(rule, seen.and_then(|seen| seen.circuit))),
        name: partner.name.to_string(),
        flows,
    }
}

fn circuit(rule: BreakerRule, seen: Option<CircuitNow>) -> CircuitShow {
    let BreakerRule { errors_percent, window, calls_min, open_for, probes } = rule;
    let (window, open_for) = (human(window), human(open_for));
    let rule = format!(
        "opens when {errors_percent} % of at least {calls_min} calls within {window} fail; asked again after {open_for}; \
         closes after {probes} good answers"
    );
    match seen {
        // It was not called yet.
        None => CircuitShow { state: "closed".into(), since: None, why: None, probe_at: None, rule, turns: Vec::new() },
        Some(now) => CircuitShow {
            state: now.circuit.word().into(),
            since: now.since.map(Moment),
            why: now.why,
            probe_at: now.probe_at.map(Moment),
            rule,
            turns: now.turns.iter().map(|(at, to)| Turn { at: Moment(*at), to: to.word().into() }).collect(),
        },
    }
}

/// The flows that put jobs into the queue of a worker with such a step, and schedules that run one.
pub fn flows_calling(workspace: &Workspace, partner: &str) -> Vec<String> {
    let calls = |action: &Action| action.outward().is_some_and(|(called, _)| *called.name == *partner);
    let mut flows: Vec<String> = Vec::new();
    for worker in workspace.workers.iter().filter(|worker| worker.actions().any(calls)) {
        let fills = workspace.flows.iter().filter(|flow| flow.enqueue.iter().any(|step| step.queue == worker.queue()));
        flows.extend(fills.map(|flow| flow.name.clone()));
        if worker.schedule().is_some() {
            flows.push(worker.name.clone());
        }
    }
    flows.sort_unstable();
    flows.dedup();
    flows
}
