//! Jobs: the list, and the whole story of one in the order of the questions that one has at night: what is wrong, what
//! already happened, why, with what data.

use super::ask::{part, query};
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::{JobList, JobShow, ReplayAsk, ReplayOn, Replayed, Ruling};
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "jobs.html")]
struct ListPage {
    frame: Frame,
    told: JobList,
    state: String,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", String::as_str);
    let told = visitor.get(format!("jobs{}", query(&[("state", text("state")), ("before", text("before"))]))).await?;
    let frame = visitor.frame("Jobs", "jobs").await?;
    Ok(frame::html(&ListPage { frame, told, state: text("state").into() }))
}

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    frame: Frame,
    told: JobShow,
}

pub async fn show(visitor: Visitor, Path(id): Path<String>) -> Result<Response, Refused> {
    let told: JobShow = visitor.get(format!("jobs/{}", part(&id))).await?;
    Ok(frame::html(&Page { frame: visitor.frame(told.job.id.clone(), "jobs").await?, told }))
}

pub async fn replay(Path(id): Path<String>, post: Post) -> Result<Response, Refused> {
    let ask = ReplayAsk {
        reason: post.text("reason").into(),
        config: ReplayOn::Live,
        unknown: match post.text("unknown") {
            "resend" => Some(Ruling::Resend),
            "skip" => Some(Ruling::Skip),
            _ => None,
        },
    };
    let _: Replayed = post.visitor.post(format!("jobs/{}/replay", part(&id)), &ask).await?;
    Ok(see_other(&format!("/jobs/{}?done=replayed", part(&id))))
}
