//! Sources: why the last requests were refused. Who sent them was told one text; here is the real cause.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Moment, Rejection, RejectionList};
use crate::house::House;
use crate::masking::rules;
use axum::Json;
use axum::extract::{Path, RawQuery, State};

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
