//! Dead letters: the jobs that gave up, one by one, by reason, and by what their messages have in common.

use super::jobs::{FILTERS, filter};
use super::problem::Problem;
use super::query::Query;
use super::shapes::{DeadGroup, DeadGroups, Job, JobList, LastReplay, Moment};
use crate::house::House;
use crate::masking::rules;
use crate::unresolved::partner;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::dead::{SHAPE_VERSION, Shape, Standing};
use clinch_core::job::Word;
use clinch_core::search::Query as Which;
use clinch_core::time::Timestamp;
use clinch_store::read::{self, JobFilter};
use clinch_store::replay::{PlanRow, Plans};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Whose messages are compared: the newest of a group.
const COMPARED: usize = 200;
const EXAMPLES: usize = 3;
/// Older plans are not looked at for the last replay of a group.
const PLANS_SEEN: usize = 100;

/// `clinch.dlq.shapes/v1`: the messages of a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadShapes {
    pub schema: String,
    /// How messages are told apart: ids, numbers and addresses are left out.
    pub version: u32,
    /// So many of the newest were compared.
    pub compared: u64,
    /// There are others, which were not.
    pub more: bool,
    /// The most frequent first.
    pub shapes: Vec<DeadShape>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadShape {
    pub integration: Option<String>,
    pub step: Option<String>,
    pub status: Option<u16>,
    pub message: String,
    pub jobs: u64,
    pub first_at: Moment,
    pub last_at: Moment,
    /// The newest.
    pub examples: Vec<Job>,
}

pub async fn list(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    RawQuery(raw): RawQuery,
) -> Result<Json<JobList>, Problem> {
    let query = Query::parse(raw.as_deref(), FILTERS)?;
    let page = house.store.jobs(filter(&house, &query, Some(Word::Dead), &who).await?).await?;
    Ok(Json(JobList::new("clinch.dlq.list/v1", &page)))
}

pub async fn groups(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<DeadGroups>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let now = house.clock.now();
    let plans = house.store.plans(Plans::All, PLANS_SEEN).await?;
    let groups = house.store.dead_groups().await?;
    let groups = groups.iter().map(|group| told(group, &plans, now)).collect();
    Ok(Json(DeadGroups { schema: "clinch.dlq.groups/v1".into(), groups }))
}

fn told(group: &read::DeadGroup, plans: &[PlanRow], now: Timestamp) -> DeadGroup {
    let last_replay = plans.iter().filter(|plan| covers(&plan.query, group, now)).find_map(|plan| {
        let start = plan.start.as_ref()?;
        Some(LastReplay {
            plan_id: plan.id.to_string(),
            state: plan.state.to_string(),
            started_at: Moment(start.at),
            started_by: start.actor.clone(),
        })
    });
    let replayed_at = last_replay.as_ref().map(|replay| replay.started_at.0);
    DeadGroup {
        flow: group.flow.to_string(),
        reason: group.reason.to_string(),
        meaning: group.reason.meaning().into(),
        jobs: group.jobs,
        first_at: Moment(group.first_at),
        last_at: Moment(group.last_at),
        example: group.example.to_string(),
        standing: Standing::of(group.reason, group.last_at, replayed_at, now).word().into(),
        last_replay,
    }
}

/// Whether a plan was for the whole group, and not for one job, one key or one step of it.
fn covers(query: &str, group: &read::DeadGroup, now: Timestamp) -> bool {
    Which::parse(query, now).is_ok_and(|which| {
        let Which { flow, reason, since, until, .. } = which.clone();
        let is_whole = which == Which { flow: flow.clone(), reason, since, until, ..Which::default() };
        is_whole && flow.is_none_or(|flow| *flow == *group.flow) && reason.is_none_or(|reason| reason == group.reason)
    })
}

pub async fn shapes(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    RawQuery(raw): RawQuery,
) -> Result<Json<DeadShapes>, Problem> {
    let query = Query::parse(raw.as_deref(), &["flow", "reason"])?;
    let filter = JobFilter { limit: COMPARED, ..filter(&house, &query, Some(Word::Dead), &who).await? };
    let page = house.store.jobs(filter).await?;
    let mut found: BTreeMap<(Option<String>, Shape), DeadShape> = BTreeMap::new();
    for row in &page.rows {
        // Masked first: what is hidden must not tell messages apart.
        let shape = Shape::of(&row.error.as_deref().map_or_else(String::new, |error| rules().text(error)));
        let integration = match &shape.step {
            Some(step) => partner(&house, row.version, &row.queue, step).await?,
            None => None,
        };
        let at = Moment(row.ended_at.unwrap_or(row.received_at));
        let entry = found.entry((integration.clone(), shape.clone())).or_insert_with(|| DeadShape {
            integration,
            step: shape.step,
            status: shape.status,
            message: shape.message,
            jobs: 0,
            first_at: at,
            last_at: at,
            examples: Vec::new(),
        });
        entry.jobs += 1;
        entry.first_at = entry.first_at.min(at);
        entry.last_at = entry.last_at.max(at);
        if entry.examples.len() < EXAMPLES {
            entry.examples.push(Job::from(row));
        }
    }
    let mut shapes: Vec<DeadShape> = found.into_values().collect();
    shapes.sort_by_key(|shape| std::cmp::Reverse((shape.jobs, shape.last_at)));
    Ok(Json(DeadShapes {
        schema: "clinch.dlq.shapes/v1".into(),
        version: SHAPE_VERSION,
        compared: page.rows.len() as u64,
        more: page.more,
        shapes,
    }))
}
