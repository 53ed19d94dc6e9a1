//! Integrations: whom clinch calls, how that goes, and a pause for one of them.

use super::ask::{part, query};
use super::chart::Track;
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use super::overview::WINDOWS;
use crate::api::controls::{PauseAsk, PauseSet, ResumeAsk, Resumed};
use crate::api::integrations::{Integration, IntegrationList, IntegrationShow};
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "integrations.html")]
struct ListPage {
    frame: Frame,
    told: IntegrationList,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let window = asked.get("window").map_or("", String::as_str);
    let told = visitor.get(format!("integrations{}", query(&[("window", window)]))).await?;
    Ok(frame::html(&ListPage { frame: visitor.frame("Integrations", "integrations").await?, told }))
}

#[derive(Template)]
#[template(path = "integration.html")]
struct Page {
    frame: Frame,
    window: String,
    one: Integration,
    track: Option<Track>,
    may_pause: bool,
}

pub async fn show(
    visitor: Visitor,
    Path(name): Path<String>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Result<Response, Refused> {
    let window = asked.get("window").map_or("", String::as_str);
    let path = format!("integrations/{}{}", part(&name), query(&[("window", window)]));
    let IntegrationShow { integration: one, window, .. } = visitor.get(path).await?;
    let turns = one.circuit.as_ref().map(|circuit| circuit.turns.as_slice()).unwrap_or_default();
    let turns: Vec<_> = turns.iter().map(|turn| (turn.at.0, turn.to.as_str())).collect();
    let track = Track::new(&turns, visitor.now);
    let frame = visitor.frame(one.name.clone(), "integrations").await?;
    let may_pause = visitor.who.role.may(Permission::Pause);
    Ok(frame::html(&Page { frame, window, one, track, may_pause }))
}

pub async fn pause(Path(name): Path<String>, post: Post) -> Result<Response, Refused> {
    let until = Some(post.text("until").to_string()).filter(|text| !text.is_empty());
    let ask = PauseAsk { scope: format!("integration:{name}"), reason: post.text("reason").into(), until };
    let _: PauseSet = post.visitor.post("pauses", &ask).await?;
    Ok(see_other(&format!("/integrations/{}?done=left-alone", part(&name))))
}

pub async fn resume(Path(name): Path<String>, post: Post) -> Result<Response, Refused> {
    let scope = part(&format!("integration:{name}"));
    let ask = ResumeAsk { reason: post.text("reason").into() };
    let _: Resumed = post.visitor.post(format!("pauses/{scope}/resume"), &ask).await?;
    Ok(see_other(&format!("/integrations/{}?done=called-again", part(&name))))
}
