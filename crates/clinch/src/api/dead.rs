//! Dead letters: the jobs that gave up, one by one and by reason.

use super::jobs::{FILTERS, filter};
use super::problem::Problem;
use super::query::Query;
use super::shapes::{DeadGroup, DeadGroups, JobList};
use crate::house::House;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::job::Word;

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
    let groups = house.store.dead_groups().await?;
    let groups = groups.iter().map(DeadGroup::from).collect();
    Ok(Json(DeadGroups { schema: "clinch.dlq.groups/v1".into(), groups }))
}
