//! Approvals: what waits for people, by what happens if they agree; decided in bulk or one by one. Votes are held for some
//! seconds before they are cast, so that a slip can be taken back.

use super::ask::{part, query};
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::held::Hold;
use super::look;
use crate::api::REASON_CHARS_MAX;
use crate::api::approvals::{Approval, ApprovalList, ApprovalShow, Ballot, BulkAsk, BulkVoted};
use crate::api::shapes::Moment;
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use clinch_core::dead::Shape;
use clinch_core::user::Permission;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long votes can be taken back.
const WINDOW: Duration = Duration::from_secs(10);
const ROWS: usize = 100;
/// More are not decided with one press: they were all to be seen first.
const CHOSEN_MAX: usize = 200;

/// What is alike: the same step of the same flow, about the same.
struct Group {
    flow: String,
    step: String,
    title: String,
    rows: Vec<Row>,
    /// Those that this person can decide now.
    open: usize,
}

struct Row {
    told: Approval,
    /// This person may decide it.
    yours: bool,
    /// Votes of this person are held.
    held: bool,
}

#[derive(Template)]
#[template(path = "approvals.html")]
struct ListPage {
    frame: Frame,
    groups: Vec<Group>,
    yours: usize,
    others: usize,
    oldest: Option<Moment>,
    expires: Option<Moment>,
    older: Option<String>,
}

#[derive(Template)]
#[template(path = "approvals_past.html")]
struct PastPage {
    frame: Frame,
    told: ApprovalList,
    state: String,
}

pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", String::as_str);
    let state = if text("state").is_empty() { "pending" } else { text("state") };
    let wanted = if state == "all" { "" } else { state };
    let limit = ROWS.to_string();
    let pairs = [("state", wanted), ("flow", text("flow")), ("before", text("before")), ("limit", &limit)];
    let told: ApprovalList = visitor.get(format!("approvals{}", query(&pairs))).await?;
    let frame = visitor.frame("Approvals", "approvals").await?;
    if state != "pending" {
        return Ok(frame::html(&PastPage { frame, told, state: state.into() }));
    }
    let oldest = told.approvals.iter().map(|approval| approval.asked_at).min();
    let expires = told.approvals.iter().map(|approval| approval.expires_at).min();
    let older = told.next_before.clone();
    let groups = group(told.approvals, &frame);
    let yours = groups.iter().flat_map(|group| &group.rows).filter(|row| row.yours).count();
    let others = groups.iter().map(|group| group.rows.len()).sum::<usize>() - yours;
    Ok(frame::html(&ListPage { frame, groups, yours, others, oldest, expires, older }))
}

fn group(approvals: Vec<Approval>, frame: &Frame) -> Vec<Group> {
    let held: BTreeSet<&String> =
        frame.held.iter().filter(|act| act.until().is_some()).flat_map(|act| &act.about).collect();
    let mut groups: BTreeMap<(String, String, String), Vec<Row>> = BTreeMap::new();
    for told in approvals {
        let shape = Shape::of(&told.title).message;
        let is_own = told.requester.as_deref() == Some(frame.who.as_str());
        let yours =
            frame.role.may(Permission::Approve) && !is_own && (told.of.is_empty() || told.of.contains(&frame.who));
        let row = Row { yours, held: held.contains(&told.id), told };
        groups.entry((row.told.flow.clone(), row.told.step.clone(), shape)).or_default().push(row);
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|((flow, step, shape), rows)| {
            let title = match rows.as_slice() {
                [one] => one.told.title.clone(),
                _ => ["<number>", "<id>", "<hidden>", "#"].iter().fold(shape, |text, kind| text.replace(kind, "…")),
            };
            let open = rows.iter().filter(|row| row.yours && !row.held).count();
            Group { flow, step, title, rows, open }
        })
        .collect();
    groups.sort_by_key(|group| group.rows.iter().map(|row| row.told.expires_at).min());
    groups
}

#[derive(Template)]
#[template(path = "approval.html")]
struct Page {
    frame: Frame,
    told: ApprovalShow,
    yours: bool,
    held: bool,
}

pub async fn show(visitor: Visitor, Path((job, step)): Path<(String, String)>) -> Result<Response, Refused> {
    let told: ApprovalShow = visitor.get(format!("approvals/{}/{}", part(&job), part(&step))).await?;
    let frame = visitor.frame(told.approval.title.clone(), "approvals").await?;
    let row = group(vec![told.approval.clone()], &frame).swap_remove(0).rows.swap_remove(0);
    Ok(frame::html(&Page { frame, yours: row.yours, held: row.held, told }))
}

/// What is about to be decided, all of it, and what was decided meanwhile.
struct Chosen {
    vote: Ballot,
    open: Vec<Approval>,
    late: Vec<Approval>,
}

#[derive(Template)]
#[template(path = "approvals_review.html")]
struct ReviewPage {
    frame: Frame,
    vote: &'static str,
    verb: &'static str,
    chosen: Chosen,
    reason: String,
    command: String,
}

/// Shows all that were chosen before anything is decided.
pub async fn review(post: Post) -> Result<Response, Refused> {
    let chosen = chosen(&post).await?;
    reviewed(&post, chosen).await
}

async fn reviewed(post: &Post, chosen: Chosen) -> Result<Response, Refused> {
    let (vote, verb, word) = match chosen.vote {
        Ballot::Approve => ("approve", "Approve", "yes"),
        Ballot::Reject => ("reject", "Reject", "no"),
        Ballot::Cancel => ("cancel", "Take back", "cancel"),
    };
    let ids: Vec<&str> = chosen.open.iter().map(|approval| approval.id.as_str()).collect();
    let command = format!("clinch approve {word} {} --reason TEXT", ids.join(" "));
    let frame = post.visitor.frame(format!("{verb} {}", ids.len()), "approvals").await?;
    Ok(frame::html(&ReviewPage { frame, vote, verb, reason: post.text("reason").into(), chosen, command }))
}

/// Holds the votes. What was decided meanwhile is shown instead, with who was first.
pub async fn decide(post: Post) -> Result<Response, Refused> {
    let chosen = chosen(&post).await?;
    if !chosen.late.is_empty() {
        return reviewed(&post, chosen).await.map(|page| (axum::http::StatusCode::CONFLICT, page).into_response());
    }
    let reason = post.text("reason");
    if !(1..=REASON_CHARS_MAX).contains(&reason.chars().count()) {
        return Err(post
            .visitor
            .unread("It needs a reason", "Write why, in at most 500 characters; it is kept on record."));
    }
    let verb = match chosen.vote {
        Ballot::Approve => "Approve",
        Ballot::Reject => "Reject",
        Ballot::Cancel => "Take back",
    };
    let ids: Vec<String> = chosen.open.iter().map(|approval| approval.id.clone()).collect();
    let what = match chosen.open.as_slice() {
        [one] => format!("{verb} “{}”", one.title),
        many => format!("{verb} {}", many.len()),
    };
    let ask = BulkAsk { vote: chosen.vote, reason: reason.into(), ids: ids.clone(), query: None, max: None };
    post.visitor.hold(Hold {
        what,
        path: "approvals/decide".into(),
        body: json!(ask),
        about: ids,
        window: WINDOW,
        told: outcome,
    })?;
    Ok(see_other("/approvals"))
}

async fn chosen(post: &Post) -> Result<Chosen, Refused> {
    let vote = match post.text("vote") {
        "approve" => Ballot::Approve,
        "reject" => Ballot::Reject,
        "cancel" => Ballot::Cancel,
        _ => return Err(post.visitor.unread("Nothing is decided", "Press Approve or Reject.")),
    };
    let ids: BTreeSet<&str> = post.texts("id").into_iter().collect();
    if !(1..=CHOSEN_MAX).contains(&ids.len()) {
        let said = format!("Choose 1 to {CHOSEN_MAX} approvals, then press the button.");
        return Err(post.visitor.unread("Nothing is chosen", &said));
    }
    let (mut open, mut late) = (Vec::new(), Vec::new());
    for id in ids {
        let (job, step) = id.split_once('/').unwrap_or((id, ""));
        let told: ApprovalShow = post.visitor.get(format!("approvals/{}/{}", part(job), part(step))).await?;
        if told.approval.state == "pending" { open.push(told.approval) } else { late.push(told.approval) }
    }
    let kinds: BTreeSet<(&str, &str)> = open.iter().map(|one| (one.flow.as_str(), one.step.as_str())).collect();
    match kinds.len() {
        0 | 1 => Ok(Chosen { vote, open, late }),
        _ => {
            let said = "These are of different kinds. Decide about one kind at a time.";
            Err(post.visitor.unread("Mixed kinds are not decided together", said))
        }
    }
}

/// What came of the votes: how many decided, and of the others, why not.
fn outcome(answer: &Value) -> Result<String, String> {
    let voted: BulkVoted = serde_json::from_value(answer.clone()).map_err(|error| error.to_string())?;
    let count = |word: &str| voted.outcomes.iter().filter(|one| one.outcome == word).count();
    let (decided, counted) = (count("decided"), count("counted") + count("before"));
    let mut said = vec![format!("{decided} decided")];
    if counted > 0 {
        said.push(format!("{counted} votes count, and more people are needed"));
    }
    let others: Vec<_> = voted
        .outcomes
        .iter()
        .filter(|one| ["late", "not_allowed", "not_found"].contains(&one.outcome.as_str()))
        .collect();
    let told = others.iter().take(3).map(|one| format!("{}: {}", one.id, one.said));
    match others.len() {
        0 => Ok(format!("{}.", said.join(", "))),
        left => Err(format!("{}, {left} not: {}.", said.join(", "), told.collect::<Vec<_>>().join("; "))),
    }
}
