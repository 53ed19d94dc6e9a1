//! Replays with a plan: a set of dead letters is counted and frozen, somebody starts it, and everybody can watch.

use super::jobs::{read_body, reason};
use super::keys;
use super::problem::Problem;
use super::query::{Id, Query};
use super::search;
use super::shapes::{Moment, ReplayOn};
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::id::PlanId;
use clinch_core::job::Word;
use clinch_core::limit::Rate;
use clinch_core::payload::TraceId;
use clinch_core::replay::{
    AT_ONCE_DEFAULT, CANARY_DEFAULT, Fate, ItemState, PLAN_JOBS_MAX, PLAN_VALID, Percent, PlanState, RATE_DEFAULT,
    STOP_AT_DEFAULT, Terms, fate, kept,
};
use clinch_core::saga;
use clinch_core::search::Query as Which;
use clinch_store::replay::{DeadFilter, DeadLetter, Forecast, ItemFilter, PlanRow, Plans};
use clinch_store::{NewItem, NewPlan, StartAsk, Started, Turn, TurnAsk, Turned};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use utoipa::ToSchema;

/// So many dead letters are looked at in one part.
const PART: usize = 500;
const PLANS_TOLD: usize = 50;
const ITEMS_TOLD: usize = 100;
/// The low bits of an id are a counter; a plan rolls dice for them.
const COUNTER: u64 = (1 << 20) - 1;

/// What `POST /api/v1/replays` takes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanAsk {
    /// Words such as `flow:orders reason:auth_failed since:2h`.
    pub query: String,
    #[serde(default)]
    pub reason: String,
}

/// What `POST /api/v1/replays/{id}/start` takes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanStart {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub max: Option<NonZeroU32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<u32>,
    /// A share such as `20%`, or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub at_once: Option<NonZeroU32>,
    #[serde(default)]
    pub config: ReplayOn,
}

/// What `POST /api/v1/replays/{id}/pause`, `resume` and `stop` take.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTurn {
    pub reason: String,
}

/// `clinch.replays.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanShow {
    pub schema: String,
    /// Of a command: whether it changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    pub plan: Plan,
}

/// `clinch.replays.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanList {
    pub schema: String,
    pub plans: Vec<Plan>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    pub id: String,
    /// planned, running, paused, stopped or done.
    pub state: String,
    pub query: String,
    pub planned_at: Moment,
    pub planned_by: String,
    /// Nobody can start it after this.
    pub start_until: Moment,
    pub jobs: u64,
    pub will_run: u64,
    pub will_be_noop: u64,
    pub ask_first: u64,
    /// How many effects are done and will not be repeated, by step.
    pub not_repeated: BTreeMap<String, u64>,
    pub oldest: Option<Moment>,
    pub newest: Option<Moment>,
    /// More dead letters fit than one plan can have; plan again for the rest.
    pub more: bool,
    pub started_at: Option<Moment>,
    pub started_by: Option<String>,
    pub reason: Option<String>,
    pub rate: Option<String>,
    pub max: Option<u32>,
    pub canary: Option<u32>,
    pub stop_at: Option<String>,
    pub at_once: Option<u32>,
    pub ended_at: Option<Moment>,
    pub why: Option<String>,
    /// What became of them so far.
    pub released: u64,
    pub success: u64,
    pub noop: u64,
    pub failed: u64,
    pub changed: u64,
    pub asked: u64,
    /// Not looked at yet.
    pub left: u64,
    /// Let go, and not ended.
    pub under_way: u64,
}

impl From<&PlanRow> for Plan {
    fn from(row: &PlanRow) -> Plan {
        let (start, forecast, tally) = (row.start.as_ref(), &row.forecast, &row.tally);
        let terms = start.map(|start| start.terms);
        Plan {
            id: row.id.to_string(),
            state: row.state.to_string(),
            query: row.query.clone(),
            planned_at: Moment(row.at),
            planned_by: row.actor.clone(),
            start_until: Moment(row.at + PLAN_VALID),
            jobs: tally.jobs,
            will_run: forecast.run,
            will_be_noop: forecast.noop,
            ask_first: forecast.ask,
            not_repeated: forecast.kept.clone(),
            oldest: forecast.oldest.map(Moment),
            newest: forecast.newest.map(Moment),
            more: forecast.more,
            started_at: start.map(|start| Moment(start.at)),
            started_by: start.map(|start| start.actor.clone()),
            reason: start.map(|start| start.reason.clone()),
            rate: terms.map(|terms| terms.rate.to_string()),
            max: terms.map(|terms| terms.max.get()),
            canary: terms.map(|terms| terms.canary),
            stop_at: terms.map(|terms| terms.stop_at.map_or_else(|| "never".into(), |share| share.to_string())),
            at_once: terms.map(|terms| terms.at_once.get()),
            ended_at: row.ended_at.map(Moment),
            why: row.why.clone(),
            released: tally.released,
            success: tally.success,
            noop: tally.noop,
            failed: tally.failed,
            changed: tally.changed,
            asked: tally.asks,
            left: tally.left(),
            under_way: tally.unended(),
        }
    }
}

/// `clinch.replays.jobs/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanJobs {
    pub schema: String,
    pub jobs: Vec<PlanJob>,
    /// Where the next page begins.
    pub next_after: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PlanJob {
    pub no: u64,
    pub job_id: String,
    /// Nothing, if the job is not kept any more.
    pub trace_id: Option<String>,
    /// waiting, released, success, noop, failed, changed or asks.
    pub state: String,
    pub died_at: Moment,
    pub ended_at: Option<Moment>,
}

pub async fn plan(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PlanShow>, Problem> {
    let ask: PlanAsk = read_body(body)?;
    let now = house.clock.now();
    let which = Which::parse(&ask.query, now).map_err(|error| Problem::bad_body(format!("query: {error}.")))?;
    if which.state.is_some_and(|state| state != Word::Dead) {
        return Err(Problem::bad_body("query: only dead letters are replayed; leave `state:` out.".into()));
    }
    let record = who.record(reason(&ask.reason, 0)?, now);
    let (items, forecast) = count(&house, &which).await?;
    if items.is_empty() {
        return Err(Problem::not_found(format!("No dead letter is like this: {which}.")));
    }
    let dice = u64::try_from(house.clock.random() & u128::from(COUNTER)).unwrap_or_default();
    let id = PlanId::from_number(PlanId::first_at(now).number() | dice);
    house.store.plan(NewPlan { id, query: which.to_string(), forecast, items, record }).await?;
    told(&house, id, None).await
}

/// The dead letters that are meant, and what will become of them.
async fn count(house: &House, which: &Which) -> Result<(Vec<NewItem>, Forecast), Problem> {
    let events = match &which.key {
        Some(key) => Some(keys::holders(house, key, which.flow.as_deref()).await?),
        None => None,
    };
    let steps = search::steps(house, which)?;
    let mut filter = DeadFilter {
        source: which.source.clone(),
        flow: which.flow.clone(),
        queue: which.queue.clone(),
        reason: which.reason,
        since: which.since,
        until: which.until,
        events,
        jobs: which.jobs.clone(),
        after: None,
        limit: PART,
    };
    let (mut items, mut forecast) = (Vec::new(), Forecast::default());
    loop {
        let part = house.store.dead_letters(filter.clone()).await?;
        let Some(last) = part.last() else { break };
        filter.after = Some(last.job);
        for dead in part.iter().filter(|dead| fits(which, steps.as_deref(), dead)) {
            if items.len() == PLAN_JOBS_MAX {
                forecast.more = true;
                return Ok((items, forecast));
            }
            let workspace = house.versions.get(dead.version, &*house.store).await?;
            let worker = workspace.as_deref().and_then(|workspace| workspace.worker_for(&dead.queue));
            match fate(worker, &dead.effects) {
                Fate::Run => forecast.run += 1,
                Fate::Noop => forecast.noop += 1,
                Fate::Ask => forecast.ask += 1,
            }
            for step in kept(&dead.effects) {
                *forecast.kept.entry(step.to_string()).or_default() += 1;
            }
            forecast.oldest = Some(forecast.oldest.map_or(dead.died_at, |oldest| oldest.min(dead.died_at)));
            forecast.newest = Some(forecast.newest.map_or(dead.died_at, |newest| newest.max(dead.died_at)));
            let (job, replays, died_at) = (dead.job, dead.replays, dead.died_at);
            items.push(NewItem { job, mark: dead.mark(), replays, died_at });
        }
        if part.len() < PART {
            break;
        }
    }
    Ok((items, forecast))
}

/// What the store was not asked for.
fn fits(which: &Which, steps: Option<&[String]>, dead: &DeadLetter) -> bool {
    let accepted_at = dead.job.given_at();
    let has_step = |steps: &[String]| {
        let mut begun = dead.effects.iter().map(|effect| saga::step_of(&effect.name));
        begun.any(|begun| steps.iter().any(|step| *step == *begun))
    };
    which.older.is_none_or(|older| accepted_at < older)
        && which.younger.is_none_or(|younger| accepted_at >= younger)
        && which.tries_min.is_none_or(|least| dead.attempts >= least)
        && which.tries_max.is_none_or(|most| dead.attempts <= most)
        && steps.is_none_or(has_step)
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<PlanList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["limit"])?;
    let plans = house.store.plans(Plans::All, query.limit(PLANS_TOLD)?).await?;
    Ok(Json(PlanList { schema: "clinch.replays.list/v1".into(), plans: plans.iter().map(Plan::from).collect() }))
}

pub async fn show(
    State(house): State<House>,
    Id(id): Id<PlanId>,
    RawQuery(raw): RawQuery,
) -> Result<Json<PlanShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    told(&house, id, None).await
}

async fn told(house: &House, id: PlanId, changed: Option<bool>) -> Result<Json<PlanShow>, Problem> {
    let row = house.store.plan_row(id).await?.ok_or_else(|| absent(id))?;
    Ok(Json(PlanShow { schema: "clinch.replays.show/v1".into(), changed, plan: Plan::from(&row) }))
}

fn absent(id: PlanId) -> Problem {
    Problem::not_found(format!("There is no plan {id}; plans are kept for 30 days."))
}

pub async fn jobs(
    State(house): State<House>,
    Id(id): Id<PlanId>,
    RawQuery(raw): RawQuery,
) -> Result<Json<PlanJobs>, Problem> {
    let query = Query::parse(raw.as_deref(), &["state", "after", "limit"])?;
    let limit = query.limit(ITEMS_TOLD)?;
    let (state, after) = (query.get::<ItemState>("state")?, query.get("after")?.unwrap_or(0));
    let rows = house.store.plan_items(ItemFilter { plan: id, state, after, limit }).await?;
    if rows.is_empty() && house.store.plan_row(id).await?.is_none() {
        return Err(absent(id));
    }
    let traces = house.store.traces(rows.iter().map(|row| row.job).collect()).await?;
    Ok(Json(PlanJobs {
        schema: "clinch.replays.jobs/v1".into(),
        next_after: rows.last().filter(|_| rows.len() == limit).map(|last| last.no),
        jobs: rows
            .iter()
            .map(|row| PlanJob {
                no: row.no,
                job_id: row.job.to_string(),
                trace_id: traces.get(&row.job).map(TraceId::to_string),
                state: row.state.to_string(),
                died_at: Moment(row.died_at),
                ended_at: row.ended_at.map(Moment),
            })
            .collect(),
    }))
}

pub async fn start(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(plan): Id<PlanId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PlanShow>, Problem> {
    let ask: PlanStart = read_body(body)?;
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let terms = terms(&ask)?;
    let version = match ask.config {
        ReplayOn::Original => None,
        ReplayOn::Live => Some(house.versions.live()),
    };
    match house.store.start(StartAsk { plan, terms, version, record }).await? {
        Started::Started => {
            tracing::info!("{plan} was started by {}", who.name);
            told(&house, plan, Some(true)).await
        }
        // Pressing twice is pressing once.
        Started::Before(_) => told(&house, plan, Some(false)).await,
        Started::Stale => {
            Err(Problem::not_now(format!("{plan} was counted more than a day ago; plan it again, then start that.")))
        }
        Started::NotFound => Err(absent(plan)),
    }
}

fn terms(ask: &PlanStart) -> Result<Terms, Problem> {
    let rate: Rate = ask
        .rate
        .as_deref()
        .unwrap_or(RATE_DEFAULT)
        .parse()
        .map_err(|error| Problem::bad_body(format!("rate: {error}.")))?;
    let stop_at = match ask.stop_at.as_deref() {
        None => Some(STOP_AT_DEFAULT),
        Some("never") => None,
        Some(share) => Some(share.parse::<Percent>().map_err(|error| Problem::bad_body(format!("stop_at: {error}.")))?),
    };
    Ok(Terms {
        rate,
        max: ask.max.unwrap_or(NonZeroU32::MAX),
        canary: ask.canary.unwrap_or(CANARY_DEFAULT),
        stop_at,
        at_once: ask.at_once.unwrap_or(AT_ONCE_DEFAULT),
    })
}

pub async fn pause(
    state: State<House>,
    who: Extension<Who>,
    id: Id<PlanId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PlanShow>, Problem> {
    turn(state, who, id, body, PlanState::Paused).await
}

pub async fn resume(
    state: State<House>,
    who: Extension<Who>,
    id: Id<PlanId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PlanShow>, Problem> {
    turn(state, who, id, body, PlanState::Running).await
}

pub async fn stop(
    state: State<House>,
    who: Extension<Who>,
    id: Id<PlanId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PlanShow>, Problem> {
    turn(state, who, id, body, PlanState::Stopped).await
}

async fn turn(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(plan): Id<PlanId>,
    body: Result<Bytes, BytesRejection>,
    to: PlanState,
) -> Result<Json<PlanShow>, Problem> {
    let ask: PlanTurn = read_body(body)?;
    let record = who.record(reason(&ask.reason, 1)?, house.clock.now());
    let turn = match to {
        PlanState::Paused => Turn::Pause,
        PlanState::Running => Turn::Resume,
        _ => Turn::Stop { why: format!("{}: {}", who.name, record.reason) },
    };
    match house.store.turn(TurnAsk { plan, to: turn, record }).await? {
        Turned::Turned => told(&house, plan, Some(true)).await,
        // It is there already.
        Turned::Not(state) if state == to => told(&house, plan, Some(false)).await,
        Turned::Not(state) => Err(Problem::not_now(format!("{plan} is {state} and cannot become {to}."))),
        Turned::NotFound => Err(absent(plan)),
    }
}
