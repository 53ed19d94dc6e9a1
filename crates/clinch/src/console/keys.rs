//! A key: did we get it, how often, and what did we do about it.

use super::ask::query;
use super::door::{Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::KeyShow;
use askama::Template;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use clinch_core::id::{EventId, JobId};
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "keys.html")]
struct Page {
    frame: Frame,
    key: String,
    flow: String,
    tenant: String,
    told: Option<KeyShow>,
    /// Why nothing is told.
    missing: Option<String>,
    command: String,
}

pub async fn show(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", |text| text.trim());
    let (key, flow, tenant) = (text("k"), text("flow"), text("tenant"));
    if key.parse::<JobId>().is_ok() {
        return Ok(see_other(&format!("/jobs/{key}")));
    }
    if key.parse::<EventId>().is_ok() {
        return Ok(see_other(&format!("/events/{key}")));
    }
    let (told, missing) = match key {
        "" => (None, None),
        _ => match visitor
            .ask
            .get::<KeyShow>(format!("keys{}", query(&[("key", key), ("flow", flow), ("tenant", tenant)])))
            .await
        {
            Ok(told) => (Some(told), None),
            // A key that nobody has is an answer, not a mistake.
            Err(refusal) if refusal.status().is_client_error() => (None, Some(refusal.detail)),
            Err(refusal) => return Err(visitor.refused(refusal)),
        },
    };
    let status = if missing.is_some() { StatusCode::NOT_FOUND } else { StatusCode::OK };
    let quoted = format!("'{}'", key.replace('\'', r"'\''"));
    let flags: String = [("flow", flow), ("tenant", tenant)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!(" --{name} '{}'", value.replace('\'', r"'\''")))
        .collect();
    let page = Page {
        frame: visitor.frame("Keys", "keys").await?,
        key: key.into(),
        flow: flow.into(),
        tenant: tenant.into(),
        told,
        missing,
        command: format!("clinch key show {quoted}{flags}"),
    };
    Ok((status, frame::html(&page)).into_response())
}
