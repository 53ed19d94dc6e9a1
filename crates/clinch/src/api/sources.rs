//! Sources: who may send; and why the last requests were refused. Who sent them was told one text; here is the real cause.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Moment, Rejection, RejectionList, SourceList, SourceNow};
use crate::house::House;
use crate::masking::rules;
use crate::telemetry::BySource;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use clinch_core::config::Entrance;
use clinch_core::time::Timestamp;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<SourceList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let told = |way: Entrance<'_>| SourceNow {
        name: way.to.1.into(),
        kind: way.to.0.into(),
        method: way.method.into(),
        path: way.path.into(),
        verify: way.verify.unwrap_or("none").into(),
        secrets: way.secrets,
        last_accepted_at: last_accepted(&house, way.to.1),
        rejections: house.rejections.last(way.to.1).map_or(0, |last| last.len()),
    };
    let sources = house.versions.workspace().entrances().map(told).collect();
    Ok(Json(SourceList { schema: "clinch.sources.list/v1".into(), sources }))
}

fn last_accepted(house: &House, door: &str) -> Option<Moment> {
    let labels = BySource { source: (&door.to_string()).into() };
    let seconds = house.metrics.last_accepted.get_or_create(&labels).get();
    (seconds > 0.0).then(|| Moment(Timestamp::from_micros((seconds * 1e6) as i64)))
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
