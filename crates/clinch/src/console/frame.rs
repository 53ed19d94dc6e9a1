//! What is around every page: where one is, who one is, and what nobody may overlook.

use super::ask::Refusal;
use super::door::{THEMES, Visitor};
use super::held::Shown;
use super::{files, look};
use crate::api::safe_mode::SafeMode;
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
    /// Those that wait for a word.
    pub approvals: u64,
    /// Those that are not closed.
    pub circuits: u64,
    /// Those that fire and are not silenced.
    pub alerts: u64,
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
        Ok(Frame::with(visitor, title, place, &visitor.ask.get("overview").await?))
    }

    /// For who has asked how things are.
    pub fn with(visitor: &Visitor, title: String, place: &'static str, overview: &Overview) -> Frame {
        let needed = |kind: &str| overview.needs.iter().filter(|need| need.kind == kind).map(|need| need.count).sum();
        Frame {
            title,
            place,
            who: visitor.who.name.clone(),
            role: visitor.who.role,
            csrf: visitor.csrf.clone(),
            theme: visitor.theme,
            assets: files::version(),
            now: visitor.now,
            dead: overview.flows.iter().map(|flow| flow.dead).sum(),
            approvals: needed("approvals"),
            circuits: needed("circuit"),
            alerts: overview.alerts.len() as u64,
            version: overview.version.clone(),
            safe_mode: overview.safe_mode.clone(),
            done: visitor.done.as_deref().and_then(look::said),
            held: visitor.held.of(&visitor.who.name, visitor.now),
            path: visitor.path.clone(),
            live: visitor.live,
        }
    }

    /// The theme after this one.
    pub fn next_theme(&self) -> &'static str {
        let at = THEMES.iter().position(|theme| *theme == self.theme).unwrap_or_default();
        THEMES[(at + 1) % THEMES.len()]
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
