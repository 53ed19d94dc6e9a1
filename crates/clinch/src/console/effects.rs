//! Effects: what may or may not have happened outside, the question to the partner, and a person's word.

use super::ask::{part, query};
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::jobs::not_confirmed;
use super::look;
use crate::api::shapes::{EffectList, EffectResolved, EffectShow, EffectVerified, LateAnswer, ResolveAsk, ResolveTo};
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use clinch_core::effect::EffectWord;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

#[derive(Template)]
#[template(path = "effects.html")]
struct ListPage {
    frame: Frame,
    told: EffectList,
    state: String,
    states: [&'static str; 5],
    integration: String,
    flow: String,
    /// The next page of the same question.
    older: Option<String>,
    command: String,
}

/// Those of unknown outcome, if nothing else is asked for: they need a person.
pub async fn list(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", |text| text.trim());
    let state = if asked.contains_key("state") { text("state") } else { EffectWord::Unknown.as_str() };
    let (integration, flow) = (text("integration"), text("flow"));
    let which = [("state", state), ("integration", integration), ("flow", flow)];
    let page = query(&[&which[..], &[("before", text("before"))]].concat());
    let told: EffectList = visitor.get(format!("effects{page}")).await?;
    let older = told.next_before.as_deref().map(|before| {
        // An empty state is a choice, too: it means all.
        format!(
            "/effects?state={}&{}",
            part(state),
            query(&[("integration", integration), ("flow", flow), ("before", before)]).trim_start_matches('?')
        )
    });
    let words: String =
        which.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!(" {name}:{value}")).collect();
    Ok(frame::html(&ListPage {
        frame: visitor.frame("Effects", "jobs").await?,
        older,
        state: state.into(),
        states: EffectWord::ALL.map(EffectWord::as_str),
        integration: integration.into(),
        flow: flow.into(),
        command: format!("clinch effects ls{words}"),
        told,
    }))
}

#[derive(Template)]
#[template(path = "effect.html")]
struct Page {
    frame: Frame,
    told: EffectShow,
    /// What the partner has just said.
    found: Option<EffectVerified>,
    path: String,
    answer: String,
    /// A late answer proves that it was done.
    proof: String,
    is_open: bool,
    may_resolve: bool,
}

pub async fn show(visitor: Visitor, Path((job, step)): Path<(String, String)>) -> Result<Response, Refused> {
    page(&visitor, &job, &step, None).await
}

async fn page(visitor: &Visitor, job: &str, step: &str, found: Option<EffectVerified>) -> Result<Response, Refused> {
    let path = format!("effects/{}/{}", part(job), part(step));
    let told: EffectShow = visitor.get(&path).await?;
    let is_ended = matches!(told.job.state.as_str(), "dead" | "success" | "noop");
    Ok(frame::html(&Page {
        frame: visitor.frame(told.id.clone(), "jobs").await?,
        found,
        path: format!("/{path}"),
        answer: told.answer.as_ref().map(|answer| answer.lines.join("\n")).unwrap_or_default(),
        proof: late_proof(&told.late_answers),
        is_open: told.effect.state == EffectWord::Unknown.as_str() && is_ended,
        may_resolve: visitor.who.role.may(Permission::Resolve),
        told,
    }))
}

fn late_proof(late: &[LateAnswer]) -> String {
    let done = late.iter().rev().find(|late| late.state == EffectWord::Done.as_str());
    let told = |late: &LateAnswer| match late.answer_status {
        Some(status) => format!("late answer {status} at {}", late.at.0),
        None => format!("late answer at {}", late.at.0),
    };
    done.map(told).unwrap_or_default()
}

/// Asks the partner. It changes nothing, so the answer is a page and no other is gone to.
pub async fn verify(Path((job, step)): Path<(String, String)>, post: Post) -> Result<Response, Refused> {
    let path = format!("effects/{}/{}/verify", part(&job), part(&step));
    let found = post.visitor.post(path, &()).await?;
    page(&post.visitor, &job, &step, Some(found)).await
}

pub async fn resolve(Path((job, step)): Path<(String, String)>, post: Post) -> Result<Response, Refused> {
    let outcome = match post.text("outcome") {
        "done" => ResolveTo::Done,
        "not_done" => ResolveTo::NotDone,
        _ => {
            let detail = "Say whether it was done or not. Nothing was changed.".into();
            return Err(post.visitor.refused(not_confirmed(detail)));
        }
    };
    if post.text("confirm") != step {
        let detail = format!("Type the step's name, `{step}`, to give your word on it. Nothing was changed.");
        return Err(post.visitor.refused(not_confirmed(detail)));
    }
    let ask = ResolveAsk { outcome, proof: post.text("proof").into(), reason: post.text("reason").into() };
    let path = format!("effects/{}/{}", part(&job), part(&step));
    let done: EffectResolved = post.visitor.post(format!("{path}/resolve"), &ask).await?;
    let word = if done.resolved { "resolved" } else { "resolved-before" };
    Ok(see_other(&format!("/{path}?done={word}")))
}
