//! Alerts: what fires with what to do about it, what is silenced, what was, and the channels that tell people.

use super::ask::part;
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use super::runbooks;
use crate::api::alerts::{
    AlertHistory, AlertList, AlertShow, ChannelTested, RuleList, SilenceAsk, SilenceSet, UnsilenceAsk, Unsilenced,
};
use crate::runbook::{Part, Runbook};
use askama::Template;
use axum::response::Response;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

/// Of the past.
const ROWS: usize = 50;
/// The part of a runbook that is shown beside its alert.
const DO: &str = "Do this";

#[derive(Template)]
#[template(path = "alerts.html")]
struct Page {
    frame: Frame,
    told: AlertList,
    past: Vec<AlertShow>,
    rules: RuleList,
    /// What to do, by the name of the runbook.
    runbooks: BTreeMap<String, Runbook>,
}

impl Page {
    /// The steps of an alert's runbook.
    fn steps(&self, alert: &AlertShow) -> Option<&Part> {
        self.runbooks.get(&alert.runbook)?.parts.iter().find(|part| part.heading == DO)
    }

    fn title<'a>(&'a self, alert: &'a AlertShow) -> &'a str {
        self.runbooks.get(&alert.runbook).map_or(&alert.runbook, |page| &page.title)
    }
}

pub async fn show(visitor: Visitor) -> Result<Response, Refused> {
    let told: AlertList = visitor.get("alerts").await?;
    let past: AlertHistory = visitor.get(format!("alerts/history?limit={ROWS}")).await?;
    let mut pages = BTreeMap::new();
    for alert in &told.alerts {
        if !pages.contains_key(&alert.runbook)
            && let Some(page) = runbooks::find(&visitor, &alert.runbook).await
        {
            pages.insert(alert.runbook.clone(), page);
        }
    }
    let page = Page {
        past: past.alerts.into_iter().filter(|alert| alert.status == "resolved").collect(),
        rules: visitor.get("alerts/rules").await?,
        frame: visitor.frame("Alerts", "alerts").await?,
        runbooks: pages,
        told,
    };
    Ok(frame::html(&page))
}

pub async fn silence(post: Post) -> Result<Response, Refused> {
    let (name, until, reason) = (post.text("name").into(), post.text("until").into(), post.text("reason").into());
    let _: SilenceSet = post.visitor.post("alerts/silences", &SilenceAsk { name, until, reason }).await?;
    Ok(see_other("/alerts?done=silenced"))
}

pub async fn unsilence(post: Post) -> Result<Response, Refused> {
    let path = format!("alerts/silences/{}/end", part(post.text("name")));
    let ask = UnsilenceAsk { reason: post.text("reason").into() };
    let told: Unsilenced = post.visitor.post(path, &ask).await?;
    Ok(see_other(if told.ended { "/alerts?done=unsilenced" } else { "/alerts?done=not-silenced" }))
}

pub async fn test(post: Post) -> Result<Response, Refused> {
    let path = format!("alerts/channels/{}/test", part(post.text("channel")));
    let told: ChannelTested = post.visitor.post(path, &serde_json::json!({})).await?;
    Ok(see_other(if told.sent { "/alerts?done=channel-works" } else { "/alerts?done=channel-fails" }))
}
