//! Pages that say what to do.

use super::problem::Problem;
use super::query::Query;
use crate::house::House;
use crate::runbook;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.runbooks.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunbookList {
    pub schema: String,
    pub runbooks: Vec<String>,
}

/// `clinch.runbooks.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RunbookShow {
    pub schema: String,
    pub name: String,
    /// Markdown.
    pub text: String,
    /// Whether the workspace has a page of its own.
    pub own: bool,
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<RunbookList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let runbooks = runbook::names(Some(&house.versions.directory));
    Ok(Json(RunbookList { schema: "clinch.runbooks.list/v1".into(), runbooks }))
}

pub async fn show(
    State(house): State<House>,
    Path(name): Path<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<RunbookShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let Some(page) = runbook::page(Some(&house.versions.directory), &name) else {
        return Err(Problem::not_found("There is no such runbook; /api/v1/runbooks lists them.".into()));
    };
    Ok(Json(RunbookShow { schema: "clinch.runbooks.show/v1".into(), name, text: page.text, own: page.is_own }))
}
