//! Sources: who may send; and why the last requests were refused. Who sent them was told one text; here is the real cause.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Moment, Rejection, RejectionList, SourceList, SourceNow};
use crate::house::House;
use crate::masking::rules;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use clinch_core::config::Entrance;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<SourceList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let told = |way: Entrance<'_>| SourceNow {
        name: way.to.1.into(),
        kind: way.to.0.into(),
        method: way.method.into(),
        path: way.path.into(),
        verify: way.verify.unwrap_or("none").into(),
        secrets: way.secrets,
    };
    let sources = house.versions.workspace.entrances().map(told).collect();
    Ok(Json(SourceList { schema: "clinch.sources.list/v1".into(), sources }))
}

pub async fn rejections(
    State(house): State<House>,
    Path(name): Path<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<RejectionList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let Some(last) = house.rejections.last(&name) else {
        let known = house.rejections.sources();
        return Err(Problem::not_found(match known.as_slice() {
            [] => "This workspace has no sources.".to_string(),
            _ => format!("There is no such source; the sources are {}.", known.join(", ")),
        }));
    };
    let told = |rejection: crate::rejections::Rejection| Rejection {
        at: Moment(rejection.at),
        reason: rejection.reason.into(),
        message: rules().sentence(&rejection.said),
        advice: rejection.advice.into(),
        headers: rejection.headers.iter().map(|name| rules().text(name)).collect(),
    };
    Ok(Json(RejectionList {
        schema: "clinch.sources.rejections/v1".into(),
        source: name,
        rejections: last.into_iter().map(told).collect(),
    }))
}
