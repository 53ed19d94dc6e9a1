//! The first page: how things are, and what needs a person.

use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::{DeadNow, FlowNow, Overview};
use askama::Template;
use axum::response::Response;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    frame: Frame,
    flows: Vec<FlowNow>,
    dead: Vec<DeadNow>,
    map: Vec<(&'static str, u64)>,
}

pub async fn show(visitor: Visitor) -> Result<Response, Refused> {
    let told: Overview = visitor.get("overview").await?;
    let sum = |of: fn(&FlowNow) -> u64| told.flows.iter().map(of).sum();
    let map = vec![
        ("queued", sum(|flow| flow.queued)),
        ("running", sum(|flow| flow.running)),
        ("waiting", sum(|flow| flow.waiting)),
        ("retrying", sum(|flow| flow.retrying)),
        ("dead", sum(|flow| flow.dead)),
    ];
    let frame = visitor.frame("Overview", "overview").await?;
    Ok(frame::html(&Page { frame, flows: told.flows, dead: told.dead, map }))
}
