//! How things are, in one answer: what needs a person, how many jobs there are and in which state, and what was counted in a
//! window. Nothing is looked for here that takes longer the more there is.

use super::effects;
use super::latency::nearest_rank;
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
use clinch_core::breaker::Circuit;
use clinch_core::config::Workspace;
use clinch_core::flow::{Flow, Method};
use clinch_core::job::Word;
use clinch_core::time::{Timestamp, human};
use clinch_store::read::{Counts, Health};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// The windows, and in how many parts each is shown.
pub const WINDOWS: [(&str, u64, u32); 4] = [("15m", 15, 15), ("1h", 60, 60), ("6h", 360, 72), ("24h", 1_440, 96)];
/// How long jobs took is told of no more than the newest so many.
const SAMPLE_JOBS: usize = 2_000;
/// From the door to the end, for 95 of 100 jobs: what the alerts say too.
const TARGET: Duration = Duration::from_secs(30);
/// So little room is worth saying.
const FREE_BYTES_LOW: u64 = 1 << 30;

/// Something that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Need {
    /// store, circuit, unknown_effects, dead_letters, approvals, budget
    pub kind: String,
    /// The integration or the budget that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    pub count: u64,
    pub said: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// What to run first.
    pub command: String,
    /// Where the console shows it.
    pub page: String,
}

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
    Ok(Json(Overview {
        schema: "clinch.overview/v1".into(),
        clinch: env!("CARGO_PKG_VERSION").into(),
        version: shapes::version(house.versions.live),
        at: Moment(now),
        flows: flows(&house.versions.workspace, &counts),
        dead: dead(&counts),
        waiting: waiting(&counts),
        needs: needs(&house, &*partners, &counts, &health, now).await?,
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
            write_errors: health.write_errors,
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
    let totals = Totals::of(&house.metrics, &house.versions.workspace);
    let all = house.minutes.window((now, totals), window, 1);
    let told = |part: &Part| WindowPart { since: Moment(part.since), counted: Counted::from(&part.counted) };
    let whole = all.first().map_or_else(Totals::default, |part| part.counted);
    let by_outcome =
        |outcome: IntakeOutcome| Rejections { outcome: outcome.word().into(), requests: whole.at_the_door(outcome) };
    let found = house.store.latencies(now - window, SAMPLE_JOBS).await?;
    let spans = &found.end_to_end;
    let at = |percentile| nearest_rank(spans, percentile).map(|span| span.as_secs_f64());
    let within = spans.partition_point(|span| *span <= TARGET);
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
            target_seconds: TARGET.as_secs_f64(),
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

/// The most urgent first.
async fn needs(
    house: &House,
    partners: &dyn Outlook,
    counts: &Counts,
    health: &Health,
    now: Timestamp,
) -> Result<Vec<Need>, Problem> {
    let mut needs = Vec::new();
    needs.extend(store_need(health));
    needs.extend(circuit_needs(partners, now));
    let unknown = effects::unresolved(house).await?;
    needs.extend(unknown.into_iter().filter(|(_, effects)| *effects > 0).map(|(integration, effects)| {
        let count = u64::try_from(effects).unwrap_or_default();
        let said = format!("{} of unknown outcome: nobody knows whether they happened", noun(count, "effect"));
        let command = format!("clinch effects ls state:unknown integration:{integration}");
        let page = format!("/effects?state=unknown&integration={}", encoded(&integration));
        Need { kind: "unknown_effects".into(), about: Some(integration), count, said, since: None, command, page }
    }));
    let dead: u64 = counts.dead.iter().map(|(_, _, jobs)| jobs).sum();
    if dead > 0 {
        needs.push(Need {
            kind: "dead_letters".into(),
            about: None,
            count: dead,
            said: format!("{}: jobs that gave up", noun(dead, "dead letter")),
            since: counts.oldest_dead.iter().map(|(_, at)| Moment(*at)).min(),
            command: "clinch dlq groups".into(),
            page: "/dead".into(),
        });
    }
    let asked = house.store.approvals_waiting().await?;
    let approvals: u64 = asked.iter().map(|waiting| waiting.approvals).sum();
    if approvals > 0 {
        needs.push(Need {
            kind: "approvals".into(),
            about: None,
            count: approvals,
            said: format!("{} for somebody's word", noun_verb(approvals, "approval", "wait")),
            since: asked.iter().map(|waiting| Moment(waiting.oldest)).min(),
            command: "clinch approve ls".into(),
            page: "/approvals".into(),
        });
    }
    needs.extend(house.store.exhausted(now).await?.into_iter().filter(|(_, count)| *count > 0).map(
        |(budget, count)| Need {
            kind: "budget".into(),
            said: format!("the retry budget {budget} has nothing left for {}", noun_of(count, "entity", "entities")),
            command: format!("clinch budget ls {budget} --exhausted"),
            page: "/jobs?q=state:waiting".into(),
            about: Some(budget.to_string()),
            count,
            since: None,
        },
    ));
    Ok(needs)
}

fn store_need(health: &Health) -> Option<Need> {
    let is_full = health.free_bytes < FREE_BYTES_LOW && health.free_bytes > 0;
    let said = match (&health.unwell, &health.warning) {
        (Some(why), _) => format!("the store cannot write: {why}"),
        (None, Some(warning)) => warning.clone(),
        (None, None) if is_full => format!("the disk has room for {} MB", health.free_bytes >> 20),
        (None, None) => return None,
    };
    let command = if is_full { "df -h" } else { "clinch verify" };
    let (about, page) = (None, "/settings#store".into());
    Some(Need { kind: "store".into(), about, count: 1, said, since: None, command: command.into(), page })
}

fn circuit_needs(partners: &dyn Outlook, now: Timestamp) -> Vec<Need> {
    let told = |seen: crate::partners::Seen| {
        let circuit = seen.circuit.filter(|circuit| circuit.circuit != Circuit::Closed)?;
        let why = circuit.why.unwrap_or_else(|| "it is asked whether it is back".into());
        let name = seen.name.to_string();
        let again = circuit.probe_at.map(|at| format!("; it is asked again in {}", human(at.since(now))));
        Some(Need {
            kind: "circuit".into(),
            count: 1,
            said: format!("the circuit of {name} is open: {why}{}", again.unwrap_or_default()),
            since: circuit.since.map(Moment),
            command: format!("clinch integrations show {name}"),
            page: format!("/integrations/{}", encoded(&name)),
            about: Some(name),
        })
    };
    partners.partners(now, Duration::ZERO).into_iter().filter_map(told).collect()
}

fn encoded(name: &str) -> String {
    url::form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

fn noun(count: u64, one: &str) -> String {
    noun_of(count, one, &format!("{one}s"))
}

fn noun_of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `1 approval waits`, `2 approvals wait`.
fn noun_verb(count: u64, one: &str, verb: &str) -> String {
    format!("{} {verb}{}", noun(count, one), if count == 1 { "s" } else { "" })
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
    for (flow, since) in &counts.oldest {
        entry(&mut flows, flow).oldest_at = Some(Moment(*since));
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
