//! Dead letters: by reason and flow, with what their messages have in common and what to do about it. To drop some needs a reason, a
//! second person, and can be taken back.

use super::ask::query;
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use super::runbooks;
use crate::api::dead::DeadShapes;
use crate::api::drops::{Drop, DropDone, DropList, DropsAsk, DropsDone};
use crate::api::shapes::{DeadGroup, DeadGroups, Job, JobList, Moment};
use crate::runbook::Runbook;
use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use clinch_core::time::human;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

/// Of so many groups the messages are shown at once; the others have them on a page of their own.
const OPEN_MAX: usize = 5;
const ROWS: &str = "50";
const DROPS: &str = "200";
/// More are not asked to be dropped with one press.
const CHOSEN_MAX: usize = 200;

struct Group {
    told: DeadGroup,
    shapes: Option<DeadShapes>,
    /// Which dead letters are meant, as a plan takes it.
    query: String,
    stands: Stands,
}

struct Stands {
    class: &'static str,
    glyph: &'static str,
    said: String,
}

impl Group {
    fn new(told: DeadGroup, shapes: Option<DeadShapes>, frame: &Frame) -> Group {
        let (class, glyph, said) = match told.standing.as_str() {
            "failing" => ("failed", "!", "STILL FAILING".to_string()),
            "regressed" => ("failed", "↻", "FAILED AGAIN since its replay".into()),
            "needs_person" => ("unknown", "?", "NEEDS A PERSON".into()),
            _ => ("quiet", "–", format!("QUIET {}", human(frame.now.since(told.last_at.0)))),
        };
        let query = format!("{} {}", worded("flow", &told.flow), worded("reason", &told.reason));
        Group { told, shapes, query, stands: Stands { class, glyph, said } }
    }
}

/// A word of a question; in quotes where its value has a space.
fn worded(name: &str, value: &str) -> String {
    let quote = if value.contains(char::is_whitespace) { "\"" } else { "" };
    format!("{name}:{quote}{value}{quote}")
}

#[derive(Template)]
#[template(path = "dead.html")]
struct ListPage {
    frame: Frame,
    groups: Vec<Group>,
    jobs: u64,
    oldest: Option<Moment>,
    drops: usize,
}

#[derive(Template)]
#[template(path = "dead_group.html")]
struct GroupPage {
    frame: Frame,
    group: Group,
    /// What to do about its reason.
    runbook: Option<Runbook>,
    rows: JobList,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", String::as_str);
    let (flow, reason) = (text("flow"), text("reason"));
    let told: DeadGroups = visitor.get("dead/groups").await?;
    let fits =
        |group: &DeadGroup| (flow.is_empty() || group.flow == flow) && (reason.is_empty() || group.reason == reason);
    let mut found: Vec<DeadGroup> = told.groups.into_iter().filter(fits).collect();
    let frame = visitor.frame("Dead letters", "dead").await?;
    if !flow.is_empty() && !reason.is_empty() && found.len() == 1 {
        let group = found.swap_remove(0);
        let shapes = shapes(&visitor, &group).await?;
        let pairs = [("flow", flow), ("reason", reason), ("before", text("before")), ("limit", ROWS)];
        let rows = visitor.get(format!("dead{}", query(&pairs))).await?;
        let (runbook, group) = (runbooks::find(&visitor, reason).await, Group::new(group, Some(shapes), &frame));
        return Ok(frame::html(&GroupPage { frame, group, runbook, rows }));
    }
    let mut groups = Vec::with_capacity(found.len());
    for (nth, group) in found.into_iter().enumerate() {
        let shapes = if nth < OPEN_MAX { Some(shapes(&visitor, &group).await?) } else { None };
        groups.push(Group::new(group, shapes, &frame));
    }
    let jobs = groups.iter().map(|group| group.told.jobs).sum();
    let oldest = groups.iter().map(|group| group.told.first_at).min();
    let drops: DropList = visitor.get(format!("dead/drops?limit={DROPS}")).await?;
    Ok(frame::html(&ListPage { frame, groups, jobs, oldest, drops: drops.drops.len() }))
}

async fn shapes(visitor: &Visitor, group: &DeadGroup) -> Result<DeadShapes, Refused> {
    visitor.get(format!("dead/shapes{}", query(&[("flow", &group.flow), ("reason", &group.reason)]))).await
}

/// A request, and whether this person may confirm it now.
struct Request {
    told: Drop,
    may_confirm: bool,
}

#[derive(Template)]
#[template(path = "dead_drops.html")]
struct DropsPage {
    frame: Frame,
    requests: Vec<Request>,
    dropped: JobList,
}

pub async fn drops(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let told: DropList = visitor.get(format!("dead/drops?limit={DROPS}")).await?;
    let before = asked.get("before").map_or("", String::as_str);
    let pairs = [("state", "dropped"), ("before", before), ("limit", ROWS)];
    let dropped = visitor.get(format!("jobs{}", query(&pairs))).await?;
    let may = |drop: &Drop| drop.asked_by != visitor.who.name || visitor.now >= drop.alone_from.0;
    let requests = told.drops.into_iter().map(|drop| Request { may_confirm: may(&drop), told: drop }).collect();
    let frame = visitor.frame("Drops", "dead").await?;
    Ok(frame::html(&DropsPage { frame, requests, dropped }))
}

#[derive(Template)]
#[template(path = "dead_review.html")]
struct ReviewPage {
    frame: Frame,
    jobs: Vec<Job>,
    command: String,
}

/// Shows what is about to be given up, all of it. Nothing is changed.
pub async fn review(post: Post) -> Result<Response, Refused> {
    let mut jobs = Vec::new();
    for id in chosen(&post)? {
        let told: crate::api::shapes::JobShow = post.visitor.get(format!("jobs/{}", super::ask::part(&id))).await?;
        jobs.push(told.job);
    }
    let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    let command = format!("clinch dlq drop {} --reason TEXT", ids.join(" "));
    let frame = post.visitor.frame(format!("Drop {}", jobs.len()), "dead").await?;
    Ok(frame::html(&ReviewPage { frame, jobs, command }))
}

fn chosen(post: &Post) -> Result<Vec<String>, Refused> {
    let ids: Vec<String> = post.texts("job").into_iter().map(String::from).collect();
    match (1..=CHOSEN_MAX).contains(&ids.len()) {
        true => Ok(ids),
        false => {
            let said = format!("Choose 1 to {CHOSEN_MAX} dead letters, then press the button.");
            Err(post.visitor.unread("Nothing is chosen", &said))
        }
    }
}

pub async fn ask_drop(post: Post) -> Result<Response, Refused> {
    let jobs = chosen(&post)?;
    // What cannot be undone for ever is not done by a slip.
    if post.text("count") != jobs.len().to_string() {
        let said = format!("Type {} to say that you mean all of them. Nothing was changed.", jobs.len());
        return Err(post.visitor.unread("The number is not right", &said));
    }
    act(&post, jobs, "dead/drop", "drop-asked").await
}

pub async fn confirm_drop(post: Post) -> Result<Response, Refused> {
    let jobs = chosen(&post)?;
    act(&post, jobs, "dead/drop/confirm", "drop-confirmed").await
}

pub async fn undrop(post: Post) -> Result<Response, Refused> {
    let jobs = chosen(&post)?;
    act(&post, jobs, "dead/undrop", "undropped").await
}

#[derive(Template)]
#[template(path = "dead_outcome.html")]
struct OutcomePage {
    frame: Frame,
    done: usize,
    refused: Vec<DropDone>,
}

/// Each has an answer of its own; where one was refused, all are shown.
async fn act(post: &Post, jobs: Vec<String>, path: &str, done: &str) -> Result<Response, Refused> {
    let ask = DropsAsk { jobs, reason: post.text("reason").into() };
    let told: DropsDone = post.visitor.post(path, &ask).await?;
    let all = told.jobs.len();
    let refused: Vec<DropDone> = told.jobs.into_iter().filter(|job| job.outcome == "refused").collect();
    if refused.is_empty() {
        return Ok(see_other(&format!("/dead/drops?done={done}")));
    }
    let frame = post.visitor.frame("What came of it", "dead").await?;
    Ok(frame::html(&OutcomePage { frame, done: all - refused.len(), refused }))
}
