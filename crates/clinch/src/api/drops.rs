//! Dead letters that people give up: one asks, another confirms, and anybody may take it back.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::Query;
use super::shapes::Moment;
use crate::house::House;
use crate::tracer::trace_of;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::id::JobId;
use clinch_core::payload::TraceId;
use clinch_store::{DropAsk, DropEnd};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// So many in one command.
const JOBS_MAX: usize = 1_000;
const ROWS_DEFAULT: usize = 100;

/// What `POST /api/v1/dead/drop`, `…/drop/confirm` and `…/undrop` take.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DropsAsk {
    pub jobs: Vec<String>,
    pub reason: String,
}

/// `clinch.dlq.drop/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DropsDone {
    pub schema: String,
    pub jobs: Vec<DropDone>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DropDone {
    pub job_id: String,
    /// asked, dropped, undropped, withdrawn; or refused, and then nothing was changed.
    pub outcome: String,
    pub said: String,
}

/// `clinch.dlq.drops/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DropList {
    pub schema: String,
    pub drops: Vec<Drop>,
}

/// A request that nobody has confirmed yet.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Drop {
    pub job_id: String,
    /// Nothing, if its job went while it was looked at.
    pub trace_id: Option<String>,
    pub flow: String,
    pub asked_at: Moment,
    pub asked_by: String,
    pub reason: String,
    /// From then on who asked may confirm it himself.
    pub alone_from: Moment,
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<DropList>, Problem> {
    let query = Query::parse(raw.as_deref(), &["limit"])?;
    let rows = house.store.drops(query.limit(ROWS_DEFAULT)?).await?;
    let traces = house.store.traces(rows.iter().map(|row| row.job).collect()).await?;
    let drops = rows.iter().map(|row| Drop {
        job_id: row.job.to_string(),
        trace_id: traces.get(&row.job).map(TraceId::to_string),
        flow: row.flow.to_string(),
        asked_at: Moment(row.at),
        asked_by: row.actor.clone(),
        reason: row.reason.clone(),
        alone_from: Moment(row.alone_from()),
    });
    Ok(Json(DropList { schema: "clinch.dlq.drops/v1".into(), drops: drops.collect() }))
}

#[derive(Clone, Copy)]
enum Verb {
    Ask,
    Confirm,
    TakeBack,
}

pub async fn ask(
    state: State<House>,
    who: Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DropsDone>, Problem> {
    each(state, who, body, Verb::Ask).await
}

pub async fn confirm(
    state: State<House>,
    who: Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DropsDone>, Problem> {
    each(state, who, body, Verb::Confirm).await
}

pub async fn take_back(
    state: State<House>,
    who: Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DropsDone>, Problem> {
    each(state, who, body, Verb::TakeBack).await
}

/// Each by itself: what becomes of one says nothing of the others.
async fn each(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
    verb: Verb,
) -> Result<Json<DropsDone>, Problem> {
    let asked: DropsAsk = read_body(body)?;
    let why = reason(&asked.reason, 1)?;
    if !(1..=JOBS_MAX).contains(&asked.jobs.len()) {
        return Err(Problem::bad_body(format!("jobs: name 1 to {JOBS_MAX} dead letters.")));
    }
    let ids = asked.jobs.iter().map(|text| text.parse::<JobId>()).collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|error| Problem::bad_body(format!("jobs: {error}.")))?;
    let mut jobs = Vec::with_capacity(ids.len());
    for job in ids {
        let ask = DropAsk { job, record: who.record(why.clone(), house.clock.now()) };
        let end = match verb {
            Verb::Ask => house.store.ask_drop(ask).await?,
            Verb::Confirm => house.store.confirm_drop(ask).await?,
            Verb::TakeBack => house.store.undrop(ask).await?,
        };
        if let DropEnd::Dropped { flow } = &end {
            let trace = trace_of(&house, job).await;
            tracing::info!(job.id = %job, trace.id = trace, "{job} was dropped by {}", who.name);
            house.metrics.dropped(flow);
        }
        let (outcome, said) = told(&end);
        jobs.push(DropDone { job_id: job.to_string(), outcome: outcome.into(), said });
    }
    Ok(Json(DropsDone { schema: "clinch.dlq.drop/v1".into(), jobs }))
}

fn told(end: &DropEnd) -> (&'static str, String) {
    match end {
        DropEnd::Asked { alone_from, .. } => {
            ("asked", format!("a second person confirms it, or who asked does from {alone_from} on"))
        }
        DropEnd::AskedBefore { by, alone_from } => {
            ("refused", format!("{by} asked for it; a second person confirms it, or {by} does from {alone_from} on"))
        }
        DropEnd::Dropped { .. } => ("dropped", "it is kept for 30 days; clinch dlq undrop takes it back".into()),
        DropEnd::NotAsked => ("refused", "nobody has asked for it; clinch dlq drop asks".into()),
        DropEnd::Changed => {
            ("refused", "it is not the dead letter any more that was meant: look at it, and ask again".into())
        }
        DropEnd::TakenBack => ("undropped", "it is a dead letter again".into()),
        DropEnd::Withdrawn => ("withdrawn", "nobody wants it dropped any more".into()),
        DropEnd::Not { state } => ("refused", format!("it is {}", state.as_str())),
        DropEnd::NotFound => ("refused", "there is no such job; its retention may have ended".into()),
    }
}
