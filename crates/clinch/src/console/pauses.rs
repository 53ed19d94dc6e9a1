//! What stands still, and everything that can be made to.

use super::ask::part;
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::controls::{Pause, PauseAsk, PauseList, PauseSet, ResumeAsk, Resumed};
use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

/// Scopes of a kind, as a list offers them.
pub struct Kind {
    pub name: &'static str,
    pub scopes: Vec<String>,
}

/// By kind, in this order; what is of none of them is left out.
pub fn by_kind(scopes: &[String], kinds: &[(&'static str, &'static str)]) -> Vec<Kind> {
    let of = |prefix: &str| scopes.iter().filter(|scope| scope.starts_with(prefix)).cloned().collect();
    let kinds = kinds.iter().map(|(name, prefix)| Kind { name, scopes: of(prefix) });
    kinds.filter(|kind| !kind.scopes.is_empty()).collect()
}

#[derive(Template)]
#[template(path = "pauses.html")]
struct Page {
    frame: Frame,
    pauses: Vec<Pause>,
    kinds: Vec<Kind>,
    /// What was asked for by the page before.
    scope: String,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let told: PauseList = visitor.get("pauses").await?;
    let kinds = [
        ("Flows", "flow:"),
        ("Playbooks", "playbook:"),
        ("Integrations", "integration:"),
        ("Queues", "queue:"),
        ("Sources", "source:"),
        ("Replays", "replays"),
    ];
    let kinds = by_kind(&told.can_pause, &kinds);
    let frame = visitor.frame("Pauses", "overview").await?;
    let scope = asked.get("scope").cloned().unwrap_or_default();
    Ok(frame::html(&Page { frame, pauses: told.pauses, kinds, scope }))
}

pub async fn pause(post: Post) -> Result<Response, Refused> {
    let (scope, reason) = (post.text("scope").into(), post.text("reason").into());
    let ask = PauseAsk { scope, reason, until: post.given("until") };
    let _: PauseSet = post.visitor.post("pauses", &ask).await?;
    Ok(see_other("/pauses?done=paused"))
}

pub async fn resume(post: Post) -> Result<Response, Refused> {
    let ask = ResumeAsk { reason: post.text("reason").into() };
    let told: Resumed = post.visitor.post(format!("pauses/{}/resume", part(post.text("scope"))), &ask).await?;
    Ok(see_other(if told.resumed { "/pauses?done=resumed" } else { "/pauses?done=not-paused" }))
}
