//! The sheet of safe mode: what it would hold, on, and off again with what waited. It is what one looks for on a phone.

use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use super::pauses::{Kind, by_kind};
use crate::api::safe_mode::{SafeModeOff, SafeModeOn, SafeModeSet, SafeModeShow};
use crate::api::shapes::Overview;
use askama::Template;
use axum::response::Response;
use clinch_core::limit::Rate;
use clinch_core::safe_mode::drain_time;
use clinch_core::time::human;
use clinch_core::user::Permission;

/// How fast what waited may be let go, besides the rate of the workspace.
const RATES: [&str; 4] = ["1/s", "5/s", "20/s", "100/s"];

/// A rate, and how long all that waits takes at it.
struct Drain {
    rate: String,
    takes: String,
}

#[derive(Template)]
#[template(path = "safe_mode.html")]
struct Page {
    frame: Frame,
    told: SafeModeShow,
    /// It is on for all already.
    everywhere: bool,
    flows: Vec<Kind>,
    integrations: Vec<String>,
    running: u64,
    queued: u64,
    drains: Vec<Drain>,
}

pub async fn show(visitor: Visitor) -> Result<Response, Refused> {
    let told: SafeModeShow = visitor.get("safe-mode").await?;
    let overview: Overview = visitor.get("overview").await?;
    let flows = by_kind(&told.scopes, &[("Flows", "flow:"), ("Playbooks", "playbook:")]);
    let integrations = told.scopes.iter().filter(|scope| scope.starts_with("integration:")).cloned().collect();
    let usual = told.now.drain.parse::<Rate>().ok();
    let others = RATES.iter().filter_map(|rate| rate.parse().ok()).filter(|rate| Some(*rate) != usual);
    let drains = usual.into_iter().chain(others).map(|rate: Rate| {
        let takes = human(drain_time(told.now.held_jobs, rate));
        Drain { rate: rate.to_string(), takes }
    });
    let page = Page {
        drains: drains.collect(),
        everywhere: told.on.iter().any(|mode| mode.scope == "all"),
        flows,
        integrations,
        running: overview.flows.iter().map(|flow| flow.running).sum(),
        queued: overview.flows.iter().map(|flow| flow.queued + flow.retrying).sum(),
        frame: visitor.frame("Safe mode", "overview").await?,
        told,
    };
    Ok(frame::html(&page))
}

pub async fn on(post: Post) -> Result<Response, Refused> {
    // A list that was not chosen from says nothing: only its own radio button makes it count.
    let scope = match post.text("what") {
        list @ ("flow" | "integration") => post.given(list),
        _ => Some("all".into()),
    };
    if scope.is_none() {
        return Err(post.visitor.unread("It does not say what", "Choose one from the list. Nothing was changed."));
    }
    let until = match post.text("until") {
        "other" => post.given("until_other"),
        _ => post.given("until"),
    };
    let ask = SafeModeOn { scope, reason: post.text("reason").into(), until };
    let _: SafeModeSet = post.visitor.post("safe-mode", &ask).await?;
    Ok(see_other("/safe-mode?done=safe-mode-on"))
}

pub async fn off(post: Post) -> Result<Response, Refused> {
    let ask = SafeModeOff {
        scope: post.given("scope"),
        reason: post.text("reason").into(),
        drain: post.given("drain_other").or_else(|| post.given("drain")),
    };
    let _: SafeModeSet = post.visitor.post("safe-mode/off", &ask).await?;
    Ok(see_other("/safe-mode?done=safe-mode-off"))
}
