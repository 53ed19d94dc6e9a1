//! Flows: what runs, in which versions of the workspace, and what is different between two of them. Nothing is edited here.

use super::ask::{part, query};
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::flows::{FlowDiff, FlowList, FlowShow};
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "flows.html")]
struct ListPage {
    frame: Frame,
    told: FlowList,
}

pub async fn list(visitor: Visitor) -> Result<Response, Refused> {
    let told = visitor.get("flows").await?;
    Ok(frame::html(&ListPage { frame: visitor.frame("Flows", "flows").await?, told }))
}

#[derive(Template)]
#[template(path = "flow.html")]
struct Page {
    frame: Frame,
    told: FlowShow,
    /// What is compared, if something is.
    from: String,
    to: String,
    diff: Option<FlowDiff>,
}

pub async fn show(
    visitor: Visitor,
    Path(name): Path<String>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", String::as_str);
    let own = format!("flows/{}", part(&name));
    let told: FlowShow = visitor.get(format!("{own}{}", query(&[("version", text("version"))]))).await?;
    let (from, to) = (text("from").to_string(), text("to").to_string());
    let diff = match from.is_empty() || to.is_empty() {
        true => None,
        false => Some(visitor.get(format!("{own}/diff{}", query(&[("from", &from), ("to", &to)]))).await?),
    };
    // What is offered: the version before the newest, and the newest.
    let offered = |at: usize| told.versions.get(at).map(|row| row.version.clone()).unwrap_or_default();
    let (from, to) = if diff.is_some() { (from, to) } else { (offered(1), offered(0)) };
    Ok(frame::html(&Page { frame: visitor.frame(told.name.clone(), "flows").await?, told, from, to, diff }))
}
