//! What is around every page: where one is, who one is, and what nobody may overlook.

use super::ask::Refusal;
use super::door::Visitor;
use super::held::Shown;
use super::{files, look};
use crate::api::safe_mode::{SafeMode, SafeModeShow};
use crate::api::shapes::Overview;
use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use clinch_core::time::Timestamp;
use clinch_core::user::Role;

pub struct Frame {
    pub title: String,
    /// The entry of the navigation that one is under.
    pub place: &'static str,
    pub who: String,
    /// What is not allowed is not offered; the API refuses it all the same.
    pub role: Role,
    pub csrf: String,
    pub theme: &'static str,
    pub assets: &'static str,
    pub now: Timestamp,
    pub version: String,
    pub dead: u64,
    pub safe_mode: Vec<SafeMode>,
    /// What was done on the page before.
    pub done: Option<&'static str>,
    /// What this person has pressed and may still take back.
    pub held: Vec<Shown>,
    /// This page, to come back to.
    pub path: String,
    /// The script may ask for it again.
    pub live: bool,
}

impl Frame {
    pub async fn of(visitor: &Visitor, title: String, place: &'static str) -> Result<Frame, Refusal> {
        let overview: Overview = visitor.ask.get("overview").await?;
        let safe_mode: SafeModeShow = visitor.ask.get("safe-mode").await?;
        Ok(Frame {
            title,
            place,
            who: visitor.who.name.clone(),
            role: visitor.who.role,
            csrf: visitor.csrf.clone(),
            theme: visitor.theme,
            assets: files::version(),
            now: visitor.now,
            dead: overview.flows.iter().map(|flow| flow.dead).sum(),
            version: overview.version,
            safe_mode: safe_mode.on,
            done: visitor.done.as_deref().and_then(look::said),
            held: visitor.held.of(&visitor.who.name, visitor.now),
            path: visitor.path.clone(),
            live: visitor.live,
        })
    }
}

/// A page, or that it could not be made, which is our fault.
pub fn html(page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => Html(look::inert(text)).into_response(),
        Err(error) => {
            tracing::error!("a page could not be rendered: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, "The page could not be rendered.\n").into_response()
        }
    }
}
