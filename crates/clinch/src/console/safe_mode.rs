//! The sheet of safe mode: what it holds, on, and off again.

use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::safe_mode::{SafeModeOff, SafeModeOn, SafeModeSet, SafeModeShow};
use askama::Template;
use axum::response::Response;

#[derive(Template)]
#[template(path = "safe_mode.html")]
struct Page {
    frame: Frame,
    told: SafeModeShow,
}

pub async fn show(visitor: Visitor) -> Result<Response, Refused> {
    let told = visitor.get("safe-mode").await?;
    Ok(frame::html(&Page { frame: visitor.frame("Safe mode", "overview").await?, told }))
}

fn given(text: &str) -> Option<String> {
    Some(text.to_string()).filter(|text| !text.is_empty())
}

pub async fn on(post: Post) -> Result<Response, Refused> {
    let ask = SafeModeOn {
        scope: given(post.text("scope")),
        reason: post.text("reason").into(),
        until: given(post.text("until")),
    };
    let _: SafeModeSet = post.visitor.post("safe-mode", &ask).await?;
    Ok(see_other("/safe-mode?done=safe-mode-on"))
}

pub async fn off(post: Post) -> Result<Response, Refused> {
    let ask = SafeModeOff {
        scope: given(post.text("scope")),
        reason: post.text("reason").into(),
        drain: given(post.text("drain")),
    };
    let _: SafeModeSet = post.visitor.post("safe-mode/off", &ask).await?;
    Ok(see_other("/safe-mode?done=safe-mode-off"))
}
