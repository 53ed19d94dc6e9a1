//! The first page: what needs a person, how many jobs there are, and what came in and went out.

use super::ask::query;
use super::chart::Chart;
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::overview::{Counted, Window};
use crate::api::shapes::{DeadNow, FlowNow, Moment, Overview};
use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use std::collections::BTreeMap;

pub const WINDOWS: [&str; 4] = ["15m", "1h", "6h", "24h"];

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    frame: Frame,
    told: Overview,
    window: Window,
    /// Unfinished jobs by state.
    map: Vec<(&'static str, u64)>,
    waiting: Vec<(String, u64)>,
    oldest: Option<(Moment, String)>,
    door: Chart,
    ends: Chart,
    dead: Vec<Reason>,
    /// Where events may be sent, for who has none yet.
    ways: Vec<(String, String)>,
}

/// Dead letters of a reason, and how wide its bar is, in hundredths of the widest.
struct Reason {
    reason: String,
    flows: String,
    jobs: u64,
    percent: u64,
}

pub async fn show(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let asked = asked.get("window").map_or(WINDOWS[1], String::as_str);
    let mut told: Overview = visitor.get(format!("overview{}", query(&[("window", asked)]))).await?;
    let window = told.window.take().ok_or_else(|| visitor.strange("the window is missing"))?;
    let frame = Frame::with(&visitor, "Overview".into(), "overview", &told);
    // What an alert says is not said again.
    told.needs.retain(|need| !told.alerts.iter().any(|alert| need.is_said_by(alert)));
    let sum = |of: fn(&FlowNow) -> u64| told.flows.iter().map(of).sum();
    let map = vec![
        ("queued", sum(|flow| flow.queued)),
        ("running", sum(|flow| flow.running)),
        ("waiting", sum(|flow| flow.waiting)),
        ("retrying", sum(|flow| flow.retrying)),
        ("dead", sum(|flow| flow.dead)),
    ];
    let mut waiting: BTreeMap<String, u64> = BTreeMap::new();
    for one in &told.waiting {
        *waiting.entry(one.waits_for.clone()).or_default() += one.jobs;
    }
    let oldest = told.flows.iter().filter_map(|flow| Some((flow.oldest_at?, flow.flow.clone()))).min();
    let is_empty = window.counted == Counted::default() && map.iter().all(|(_, jobs)| *jobs == 0);
    let routes = told.flows.iter().flat_map(|flow| &flow.routes).filter(|_| is_empty);
    Ok(frame::html(&Page {
        waiting: waiting.into_iter().collect(),
        door: chart(("door", "Requests"), ["accepted", "duplicate", "rejected"], &window, |counted| {
            [counted.accepted, counted.duplicates, counted.rejected]
        }),
        ends: chart(("ends", "Jobs that ended"), ["success", "noop", "dead"], &window, |counted| {
            [counted.success, counted.noop, counted.dead]
        }),
        dead: by_reason(&told.dead),
        ways: routes.map(|route| (route.method.clone(), route.path.clone())).collect(),
        frame,
        map,
        oldest,
        window,
        told,
    }))
}

fn chart(
    name: (&'static str, &'static str),
    names: [&'static str; 3],
    window: &Window,
    counts: fn(&Counted) -> [u64; 3],
) -> Chart {
    let parts: Vec<_> = window.parts.iter().map(|part| (part.since.0, counts(&part.counted))).collect();
    Chart::new(name, names, &parts, window.until.0)
}

fn by_reason(dead: &[DeadNow]) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    for group in dead {
        match reasons.iter_mut().find(|known| known.reason == group.reason) {
            Some(known) => {
                known.jobs += group.jobs;
                known.flows = format!("{}, {}", known.flows, group.flow);
            }
            None => {
                let (reason, flows) = (group.reason.clone(), group.flow.clone());
                reasons.push(Reason { reason, flows, jobs: group.jobs, percent: 0 });
            }
        }
    }
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.jobs));
    let most = reasons.first().map_or(1, |reason| reason.jobs.max(1));
    reasons.iter_mut().for_each(|reason| reason.percent = (reason.jobs * 100 / most).max(1));
    reasons
}
