//! Events: what came in, how often it came again, and what was refused at the door.

use super::ask::{Refusal, part, query};
use super::door::{Refused, Visitor};
use super::frame::{self, Frame};
use super::look;
use crate::api::shapes::{EventLine, EventList, Job, JobList, JobShow, Rejection, RejectionList, SourceList};
use askama::Template;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "events.html")]
struct ListPage {
    frame: Frame,
    events: Vec<EventLine>,
    scope: String,
    sources: Vec<String>,
    source: String,
    again: String,
    since: String,
    wrong: Option<String>,
    older: Option<String>,
    is_first: bool,
    command: String,
    rejections: Vec<Rejection>,
    /// Whether the source is one that can refuse.
    is_source: bool,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", |text| text.trim());
    let (source, again, since) = (text("source"), text("again"), text("since"));
    let which = [("source", source), ("again", again), ("since", since)];
    let page = query(&[&which[..], &[("before", text("before"))]].concat());
    let (told, wrong) = match visitor.ask.get::<EventList>(format!("events{page}")).await {
        Ok(told) => (Some(told), None),
        Err(refusal) if refusal.status() == StatusCode::BAD_REQUEST => (None, Some(refusal.detail)),
        Err(refusal) => return Err(visitor.refused(refusal)),
    };
    let known: SourceList = visitor.get("sources").await?;
    let is_source = known.sources.iter().any(|own| own.name == source && own.kind == "source");
    let rejections = if is_source { refused_at(&visitor, source).await? } else { Vec::new() };
    let mut sources: Vec<String> = known.sources.into_iter().map(|source| source.name).collect();
    sources.sort_unstable();
    sources.dedup();
    let next = told.as_ref().and_then(|told| told.next_before.clone());
    let flags: String = which
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!(" --{name} '{}'", value.replace('\'', r"'\''")))
        .collect();
    let status = if wrong.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let page = ListPage {
        frame: visitor.frame("Events", "jobs").await?,
        scope: told.as_ref().map(scope).unwrap_or_default(),
        events: told.map(|told| told.events).unwrap_or_default(),
        older: next.map(|before| format!("/events{}", query(&[&which[..], &[("before", &before)]].concat()))),
        is_first: text("before").is_empty(),
        command: format!("clinch events ls{flags}"),
        sources,
        source: source.into(),
        again: again.into(),
        since: since.into(),
        wrong,
        rejections,
        is_source,
    };
    Ok((status, frame::html(&page)).into_response())
}

async fn refused_at(visitor: &Visitor, source: &str) -> Result<Vec<Rejection>, Refused> {
    let told: RejectionList = visitor.get(format!("sources/{}/rejections", part(source))).await?;
    Ok(told.rejections)
}

fn scope(told: &EventList) -> String {
    let looked = format!("{} shown; {} looked at", told.events.len(), look::number(&told.scope.looked_at));
    match told.scope.back_to {
        Some(at) => format!("{looked}, back to {}; older ones were not", at.0),
        None => format!("{looked}, which are all"),
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct Page {
    frame: Frame,
    id: String,
    jobs: Vec<Job>,
    /// The first of its jobs, which tells of the event too.
    told: JobShow,
    duplicates: u64,
    conflicts: u64,
    body: String,
    curl: Option<String>,
}

pub async fn show(visitor: Visitor, Path(id): Path<String>) -> Result<Response, Refused> {
    let list: JobList = visitor.get(format!("events/{}", part(&id))).await?;
    let Some(first) = list.jobs.first() else {
        let detail = format!("Nothing is kept of {id} any more.");
        let title = "It is not there".into();
        return Err(visitor.refused(Refusal { status: 404, code: "CL0505".into(), title, detail }));
    };
    let told: JobShow = visitor.get(format!("jobs/{}", part(&first.id))).await?;
    let times = |conflict| {
        told.deliveries.iter().filter(|delivery| delivery.conflict == conflict).map(|delivery| delivery.times).sum()
    };
    Ok(frame::html(&Page {
        frame: visitor.frame(first.event_id.clone(), "jobs").await?,
        id: first.event_id.clone(),
        duplicates: times(false),
        conflicts: times(true),
        body: told.body.lines.join("\n"),
        curl: told.entrance.as_ref().map(|entrance| entrance.curl(&told.body)),
        jobs: list.jobs,
        told,
    }))
}
