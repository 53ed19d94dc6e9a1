//! How things are, in one answer: what needs a person, how many jobs there are and in which state, and what was counted in a
//! window. Nothing is looked for here that takes longer the more there is.

use super::alerts;
use super::latency::nearest_rank;
use super::needs;
use super::objective;
use super::problem::Problem;
use super::query::Query;
use super::safe_mode::SafeMode;
use super::shapes::{self, DeadNow, FlowNow, Moment, Overview, StoreNow, WaitingNow};
use crate::house::House;
use crate::minutes::{Part, Totals};
use crate::partners::Outlook;
use crate::telemetry::IntakeOutcome;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::config::Workspace;
use clinch_core::flow::{Flow, Method};
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use clinch_store::read::Counts;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// The windows, and in how many parts each is shown.
pub const WINDOWS: [(&str, u64, u32); 4] = [("15m", 15, 15), ("1h", 60, 60), ("6h", 360, 72), ("24h", 1_440, 96)];
/// How long jobs took is told of no more than the newest so many.
const SAMPLE_JOBS: usize = 2_000;

/// What this node counted in a window; it began with the node where that is younger.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Window {
    /// 15m, 1h, 6h, 24h
    pub window: String,
    pub since: Moment,
    pub until: Moment,
    #[serde(flatten)]
    pub counted: Counted,
    /// Requests that were turned away, by how.
    pub rejections: Vec<Rejections>,
    pub end_to_end: EndToEnd,
    pub parts: Vec<WindowPart>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    pub accepted: u64,
    /// Deliveries that had come before.
    pub duplicates: u64,
    pub rejected: u64,
    /// Events that no flow wants.
    pub ignored: u64,
    pub success: u64,
    pub noop: u64,
    pub dead: u64,
    /// Effects that were not repeated.
    pub effects_saved: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rejections {
    pub outcome: String,
    pub requests: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WindowPart {
    pub since: Moment,
    #[serde(flatten)]
    pub counted: Counted,
}

/// From acceptance to the end, of all nodes' jobs that were accepted in the window and have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EndToEnd {
    /// How many were looked at.
    pub jobs: usize,
    /// Whether these are only the newest.
    pub cut: bool,
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub target_seconds: f64,
    /// The share that took no longer than the target.
    pub within_target: Option<f64>,
}

impl From<&Totals> for Counted {
    fn from(totals: &Totals) -> Counted {
        Counted {
            accepted: totals.at_the_door(IntakeOutcome::Accepted),
            duplicates: totals.at_the_door(IntakeOutcome::Duplicate),
            rejected: totals.rejected(),
            ignored: totals.at_the_door(IntakeOutcome::Ignored),
            success: totals.success,
            noop: totals.noop,
            dead: totals.dead,
            effects_saved: totals.effects_saved,
        }
    }
}

pub async fn show(
    State(house): State<House>,
    Extension(partners): Extension<Arc<dyn Outlook>>,
    RawQuery(raw): RawQuery,
) -> Result<Json<Overview>, Problem> {
    let query = Query::parse(raw.as_deref(), &["window"])?;
    let asked = query.text("window").map(window_of).transpose()?;
    let (counts, health, now) = (house.store.counts().await?, house.store.health(), house.clock.now());
    let window = match asked {
        Some(asked) => Some(window(&house, asked, now).await?),
        None => None,
    };
    let (objective, stars) = objective::of(&house, now);
    Ok(Json(Overview {
        objective,
        stars,
        schema: "clinch.overview/v1".into(),
        clinch: env!("CARGO_PKG_VERSION").into(),
        version: shapes::version(house.versions.live()),
        at: Moment(now),
        flows: flows(&house.versions.workspace(), &counts),
        dead: dead(&counts),
        waiting: waiting(&counts),
        needs: needs::of(&house, &*partners, &counts, &health, now).await?,
        alerts: alerts::firing(&house, now).await?.into_iter().filter(|alert| !alert.silenced).collect(),
        safe_mode: house
            .controls
            .get()
            .safe_modes()
            .iter()
            .filter(|mode| mode.is_on(now))
            .map(SafeMode::from)
            .collect(),
        window,
        store: StoreNow {
            unwell: health.unwell,
            warning: health.warning,
            bytes: health.bytes,
            free_bytes: health.free_bytes,
            pending_verbs: health.pending_verbs,
            commits: health.commits,
            write_errors: health.errors.writing(),
        },
    }))
}

type Asked = (&'static str, Duration, u32);

/// One of the windows that there are.
pub fn window_of(text: &str) -> Result<Asked, Problem> {
    let known = WINDOWS.iter().find(|(name, ..)| *name == text);
    let (name, minutes, parts) = known.ok_or_else(|| {
        let names = WINDOWS.map(|(name, ..)| name).join(", ");
        Problem::bad_query(format!("window: what is remembered is told for {names}."))
    })?;
    Ok((name, Duration::from_secs(60 * minutes), *parts))
}

async fn window(house: &House, (name, window, parts): Asked, now: Timestamp) -> Result<Window, Problem> {
    let totals = Totals::of(&house.metrics, &house.versions.workspace());
    let all = house.minutes.window((now, totals), window, 1);
    let told = |part: &Part| WindowPart { since: Moment(part.since), counted: Counted::from(&part.counted) };
    let whole = all.first().map_or_else(Totals::default, |part| part.counted);
    let by_outcome =
        |outcome: IntakeOutcome| Rejections { outcome: outcome.word().into(), requests: whole.at_the_door(outcome) };
    let found = house.store.latencies(now - window, SAMPLE_JOBS).await?;
    let spans = &found.end_to_end;
    let at = |percentile| nearest_rank(spans, percentile).map(|span| span.as_secs_f64());
    let target = house.versions.now().settings.slo.end_to_end;
    let within = spans.partition_point(|span| *span <= target);
    Ok(Window {
        window: name.into(),
        since: Moment(house.minutes.start.max(now - window)),
        until: Moment(now),
        counted: Counted::from(&whole),
        rejections: IntakeOutcome::REJECTED.map(by_outcome).into_iter().filter(|some| some.requests > 0).collect(),
        end_to_end: EndToEnd {
            jobs: spans.len(),
            cut: found.cut,
            p50: at(50.0),
            p95: at(95.0),
            p99: at(99.0),
            target_seconds: target.as_secs_f64(),
            within_target: (!spans.is_empty()).then(|| within as f64 / spans.len() as f64),
        },
        parts: house.minutes.window((now, totals), window, parts).iter().map(told).collect(),
    })
}

fn dead(counts: &Counts) -> Vec<DeadNow> {
    let told = |(flow, reason, jobs): &(Arc<str>, _, u64)| DeadNow {
        flow: flow.to_string(),
        reason: clinch_core::death::Reason::to_string(reason),
        jobs: *jobs,
    };
    let mut dead: Vec<DeadNow> = counts.dead.iter().map(told).collect();
    dead.sort_by(|one, other| other.jobs.cmp(&one.jobs).then_with(|| one.reason.cmp(&other.reason)));
    dead
}

fn waiting(counts: &Counts) -> Vec<WaitingNow> {
    let told = |waiting: &clinch_store::read::Waiting| WaitingNow {
        flow: waiting.flow.to_string(),
        waits_for: waiting.waits.word().into(),
        jobs: waiting.jobs,
        oldest_at: waiting.oldest.map(Moment),
    };
    counts.waiting.iter().map(told).collect()
}

/// The flows of the live workspace, then those that only jobs still know.
fn flows(workspace: &Workspace, counts: &Counts) -> Vec<FlowNow> {
    let route = |method: Method, path: &str| shapes::Route { method: method.word().into(), path: path.into() };
    let routes = |flow: &Flow| {
        let own = flow.routes.iter().map(|own| route(own.method, &own.path));
        let taken = workspace
            .sources
            .iter()
            .filter(|source| flow.subscriptions.iter().any(|subscription| subscription.source == source.name));
        own.chain(taken.map(|source| route(source.method, &source.path))).collect()
    };
    let now = |flow: &Flow| FlowNow { flow: flow.name.clone(), routes: routes(flow), ..FlowNow::default() };
    named(workspace.flows.iter().map(now).collect(), counts)
}

/// The flows with their figures.
fn named(mut flows: Vec<FlowNow>, counts: &Counts) -> Vec<FlowNow> {
    for (flow, word, jobs) in &counts.live {
        let flow = entry(&mut flows, flow);
        match word {
            Word::Queued => flow.queued += jobs,
            Word::Running => flow.running += jobs,
            Word::Waiting => flow.waiting += jobs,
            Word::Retrying => flow.retrying += jobs,
            Word::Success | Word::Noop | Word::Dead | Word::Dropped => {}
        }
    }
    for (flow, _, jobs) in &counts.dead {
        entry(&mut flows, flow).dead += jobs;
    }
    for (flow, _, since) in &counts.oldest {
        let flow = entry(&mut flows, flow);
        flow.oldest_at = Some(flow.oldest_at.map_or(Moment(*since), |oldest| oldest.min(Moment(*since))));
    }
    for (flow, since) in &counts.oldest_dead {
        entry(&mut flows, flow).oldest_dead_at = Some(Moment(*since));
    }
    flows
}

fn entry<'a>(flows: &'a mut Vec<FlowNow>, name: &str) -> &'a mut FlowNow {
    let place = flows.iter().position(|flow| flow.flow == name).unwrap_or_else(|| {
        flows.push(FlowNow { flow: name.into(), ..FlowNow::default() });
        flows.len() - 1
    });
    &mut flows[place]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overview_names_flows_that_only_jobs_still_know() {
        let counts = Counts {
            live: vec![("old".into(), Word::Queued, 2), ("old".into(), Word::Retrying, 1)],
            dead: vec![("old".into(), clinch_core::death::Reason::Timeout, 3)],
            ..Counts::default()
        };
        let told = named(Vec::new(), &counts);
        assert_eq!(told.len(), 1);
        assert_eq!((told[0].queued, told[0].retrying, told[0].dead), (2, 1, 3));
    }
}
