//! What people and clinch itself did, newest first or from the beginning, and whether anybody has changed the record of it.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Audit, AuditList, AuditVerified, Moment};
use crate::house::House;
use axum::Json;
use axum::extract::{RawQuery, State};
use clinch_core::audit::Digest;
use clinch_store::read::{AuditFilter, AuditWalk};

const ROWS_DEFAULT: usize = 100;

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<AuditList>, Problem> {
    let allowed = ["actor", "action", "object", "since", "until", "before", "after", "limit"];
    let query = Query::parse(raw.as_deref(), &allowed)?;
    let time = |name: &str| -> Result<_, Problem> { Ok(query.get::<Moment>(name)?.map(|moment| moment.0)) };
    let walk = match (query.get("before")?, query.get("after")?) {
        (Some(_), Some(_)) => return Err(Problem::bad_query("before, after: give one of them.".into())),
        (before, None) => AuditWalk::Back { before },
        (None, Some(after)) => AuditWalk::Forth { after },
    };
    let limit = query.limit(ROWS_DEFAULT)?;
    let filter = AuditFilter {
        actor: query.text("actor").map(String::from),
        action: query.text("action").map(String::from),
        object: query.text("object").map(String::from),
        since: time("since")?,
        until: time("until")?,
        walk,
        // One more than is told, to know whether there are more.
        limit: limit + 1,
    };
    let rows = house.store.audit(filter).await?;
    Ok(Json(AuditList {
        schema: "clinch.audit.list/v1".into(),
        more: rows.len() > limit,
        audit: rows.iter().take(limit).map(Audit::from).collect(),
    }))
}

pub async fn verify(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<AuditVerified>, Problem> {
    let noted = Query::parse(raw.as_deref(), &["head"])?.get::<Digest>("head")?;
    let found = house.store.inspect(noted).await?;
    if let Some(broken) = &found.broken {
        tracing::error!("{broken}");
    }
    Ok(Json(AuditVerified {
        schema: "clinch.audit.verify/v1".into(),
        ok: found.broken.is_none(),
        rows: found.head.count,
        head: found.head.hash.to_string(),
        row: found.broken.as_ref().and_then(|broken| broken.no()),
        problem: found.broken.map(|broken| broken.to_string()),
    }))
}
