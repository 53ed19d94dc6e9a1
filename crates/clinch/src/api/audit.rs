//! What operators did, newest first.

use super::problem::Problem;
use super::query::Query;
use super::shapes::{Audit, AuditList};
use crate::house::House;
use axum::Json;
use axum::extract::{RawQuery, State};

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<AuditList>, Problem> {
    let limit = Query::parse(raw.as_deref(), &["limit"])?.limit(100)?;
    let rows = house.store.audit(limit).await?;
    Ok(Json(AuditList { schema: "clinch.audit.list/v1".into(), audit: rows.iter().map(Audit::from).collect() }))
}
