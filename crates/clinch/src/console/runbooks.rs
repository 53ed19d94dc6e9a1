//! Runbooks, next to what they are about.

use super::ask::part;
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::runbooks::{RunbookList, RunbookShow};
use crate::runbook::{Runbook, read_page};
use askama::Template;
use axum::extract::Path;
use axum::response::Response;
use clinch_core::alert::Rule;

#[derive(Template)]
#[template(path = "runbook.html")]
struct Page {
    frame: Frame,
    page: Runbook,
    /// Where what it is about is shown.
    about: String,
}

#[derive(Template)]
#[template(path = "runbooks.html")]
struct ListPage {
    frame: Frame,
    /// Of alerts, of dead letters, and the workspace's own.
    alerts: Vec<String>,
    others: Vec<String>,
}

pub async fn list(visitor: Visitor) -> Result<Response, Refused> {
    let told: RunbookList = visitor.get("runbooks").await?;
    let (alerts, others) = told.runbooks.into_iter().partition(|name| Rule::find(name).is_some());
    Ok(frame::html(&ListPage { frame: visitor.frame("Runbooks", "alerts").await?, alerts, others }))
}

pub async fn show(visitor: Visitor, Path(name): Path<String>) -> Result<Response, Refused> {
    let told: RunbookShow = visitor.get(format!("runbooks/{}", part(&name))).await?;
    let page = read_page(&told.name, &told.text);
    let is_alert = Rule::find(&name).is_some();
    let (place, about) = match is_alert {
        true => ("alerts", "/alerts".to_string()),
        false => ("dead", format!("/dead?reason={}", part(&name))),
    };
    Ok(frame::html(&Page { frame: visitor.frame(page.title.as_str(), place).await?, page, about }))
}

/// The page of this name, if there is one.
pub async fn find(visitor: &Visitor, name: &str) -> Option<Runbook> {
    let told: RunbookShow = visitor.get(format!("runbooks/{}", part(name))).await.ok()?;
    Some(read_page(&told.name, &told.text))
}
