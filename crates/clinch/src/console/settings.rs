//! Settings: how the pages look for this browser, who may come in, who may send, what is kept for how long, and what this is.
//! What lives in files is shown with the name of its file, and changed there.

use super::door::{Refused, THEMES, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::about::About;
use crate::api::settings::{Setting, SettingList};
use crate::api::shapes::{Rejection, RejectionList, SourceList, SourceNow, TokenList, UserList};
use askama::Template;
use axum::response::Response;
use clinch_core::time::human;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// So many of the last refusals of a source are shown.
const REJECTIONS_SHOWN: usize = 5;

#[derive(Template)]
#[template(path = "settings.html")]
struct Page {
    frame: Frame,
    about: About,
    /// Nothing where this person may not see it.
    users: Option<UserList>,
    tokens: Option<TokenList>,
    sources: Vec<SourceShow>,
    /// What is set over the files.
    live: Vec<Setting>,
    /// How much can be.
    settable: usize,
}

struct SourceShow {
    source: SourceNow,
    rejections: Vec<Rejection>,
}

pub async fn show(visitor: Visitor) -> Result<Response, Refused> {
    let about = visitor.get("about").await?;
    let told: SourceList = visitor.get("sources").await?;
    let mut sources = Vec::new();
    for source in told.sources {
        let mut rejections = Vec::new();
        if source.rejections > 0 {
            let path = format!("sources/{}/rejections", super::ask::part(&source.name));
            rejections = visitor.get::<RejectionList>(path).await?.rejections;
            rejections.truncate(REJECTIONS_SHOWN);
        }
        sources.push(SourceShow { source, rejections });
    }
    let SettingList { settings, .. } = visitor.get("settings").await?;
    let settable = settings.len();
    let live = settings.into_iter().filter(|setting| setting.live.is_some()).collect();
    let (users, tokens) = (allowed(&visitor, "users").await?, allowed(&visitor, "tokens").await?);
    let frame = visitor.frame("Settings", "settings").await?;
    Ok(frame::html(&Page { frame, about, users, tokens, sources, live, settable }))
}

/// Nothing where the API says that this is not for this person.
async fn allowed<T: DeserializeOwned>(visitor: &Visitor, path: &str) -> Result<Option<T>, Refused> {
    match visitor.ask.get(path).await {
        Ok(told) => Ok(Some(told)),
        Err(refusal) if refusal.status == 403 => Ok(None),
        Err(refusal) => Err(visitor.refused(refusal)),
    }
}

fn kept(seconds: &u64) -> String {
    human(Duration::from_secs(*seconds))
}
