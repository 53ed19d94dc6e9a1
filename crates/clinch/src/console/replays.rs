//! Replays with a plan: what would happen, how fast, why; started once, and watched to its end.

use super::ask::{part, query};
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use crate::api::controls::PauseList;
use crate::api::replays::{Plan, PlanAsk, PlanJobs, PlanList, PlanShow, PlanStart, PlanTurn};
use crate::api::shapes::ReplayOn;
use askama::Template;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use clinch_core::replay::{AT_ONCE_DEFAULT, CANARY_DEFAULT, ItemState, RATE_DEFAULT, STOP_AT_DEFAULT};
use clinch_core::time::human;
use clinch_core::user::Permission;
use std::collections::BTreeMap;

const ROWS: &str = "100";

#[derive(Template)]
#[template(path = "replays.html")]
struct ListPage {
    frame: Frame,
    plans: Vec<Plan>,
}

pub async fn list(visitor: Visitor) -> Result<Response, Refused> {
    let told: PlanList = visitor.get(format!("replays?limit={ROWS}")).await?;
    Ok(frame::html(&ListPage { frame: visitor.frame("Replays", "dead").await?, plans: told.plans }))
}

#[derive(Template)]
#[template(path = "replay_new.html")]
struct NewPage {
    frame: Frame,
    query: String,
    reason: String,
    /// Why the question was not understood, or nothing fits.
    wrong: Option<String>,
}

pub async fn new(visitor: Visitor, Query(asked): Query<BTreeMap<String, String>>) -> Result<Response, Refused> {
    let query = asked.get("q").cloned().unwrap_or_default();
    let frame = visitor.frame("Plan a replay", "dead").await?;
    Ok(frame::html(&NewPage { frame, query, reason: String::new(), wrong: None }))
}

pub async fn plan(post: Post) -> Result<Response, Refused> {
    let (query, reason) = (post.text("query").to_string(), post.text("reason").to_string());
    let ask = PlanAsk { query: query.clone(), reason: reason.clone() };
    match post.visitor.ask.post::<PlanShow>("replays", &ask).await {
        Ok(made) => Ok(see_other(&format!("/replays/{}?done=planned", part(&made.plan.id)))),
        // What was asked stays in the form, to be corrected.
        Err(refusal) if [400, 404].contains(&refusal.status) => {
            let frame = post.visitor.frame("Plan a replay", "dead").await?;
            let page = NewPage { frame, query, reason, wrong: Some(refusal.detail.clone()) };
            Ok((refusal.status(), frame::html(&page)).into_response())
        }
        Err(refusal) => Err(post.visitor.refused(refusal)),
    }
}

/// Where a plan is, in numbers for people.
struct Progress {
    ended: u64,
    /// So many it is for: all, or as many as were let.
    all: u64,
    speed: String,
    took: Option<String>,
}

impl Progress {
    fn of(plan: &Plan, frame: &Frame) -> Progress {
        let ended = plan.success + plan.noop + plan.failed + plan.changed + plan.asked;
        let all = plan.max.map_or(plan.jobs, |max| plan.jobs.min(u64::from(max)));
        let until = plan.ended_at.map_or(frame.now, |at| at.0);
        let seconds = plan.started_at.map_or(0.0, |at| until.since(at.0).as_secs_f64());
        let speed = if seconds > 0.0 { format!("{:.1}", ended as f64 / seconds) } else { "0".into() };
        let took = plan.ended_at.zip(plan.started_at).map(|(ended, started)| human(ended.0.since(started.0)));
        Progress { ended, all, speed, took }
    }
}

/// The terms that are proposed.
struct Usual {
    rate: &'static str,
    canary: u32,
    stop_at: String,
    at_once: u32,
}

#[derive(Template)]
#[template(path = "replay.html")]
struct Page {
    frame: Frame,
    plan: Plan,
    progress: Progress,
    usual: Usual,
    /// How long the usual rate takes at least.
    takes: String,
    /// All replays stand still.
    paused: bool,
    /// How many effects are done and will not be repeated.
    kept: u64,
    states: Vec<&'static str>,
    state: String,
    jobs: PlanJobs,
    command: String,
}

pub async fn show(
    visitor: Visitor,
    Path(id): Path<String>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Result<Response, Refused> {
    let text = |name: &str| asked.get(name).map_or("", String::as_str);
    let PlanShow { plan, .. } = visitor.get(format!("replays/{}", part(&id))).await?;
    let pairs = [("state", text("jobs")), ("after", text("after")), ("limit", ROWS)];
    let jobs = visitor.get(format!("replays/{}/jobs{}", part(&id), query(&pairs))).await?;
    let pauses: PauseList = visitor.get("pauses").await?;
    let frame = visitor.frame(format!("Replay {}", plan.id), "dead").await?;
    let rate: clinch_core::limit::Rate = RATE_DEFAULT.parse().expect("it is a rate");
    let page = Page {
        progress: Progress::of(&plan, &frame),
        usual: Usual {
            rate: RATE_DEFAULT,
            canary: CANARY_DEFAULT,
            stop_at: STOP_AT_DEFAULT.to_string(),
            at_once: AT_ONCE_DEFAULT.get(),
        },
        takes: human(clinch_core::safe_mode::drain_time(plan.jobs, rate)),
        paused: pauses.pauses.iter().any(|pause| pause.scope == "replays"),
        kept: plan.not_repeated.values().sum(),
        states: ItemState::ALL.iter().map(|state| state.as_str()).collect(),
        state: text("jobs").into(),
        command: command(&plan),
        frame,
        plan,
        jobs,
    };
    Ok(frame::html(&page))
}

/// What one would type.
fn command(plan: &Plan) -> String {
    match plan.state.as_str() {
        "planned" => format!(
            "clinch replay apply {} --rate {RATE_DEFAULT} --max {} --canary {CANARY_DEFAULT} --stop-at {STOP_AT_DEFAULT} --reason TEXT",
            plan.id, plan.jobs
        ),
        _ => format!("clinch replay show {}", plan.id),
    }
}

pub async fn start(Path(id): Path<String>, post: Post) -> Result<Response, Refused> {
    let number = |name: &str| match post.given(name).map(|text| text.parse::<u32>()) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => {
            Err(post.visitor.unread("The limits cannot be read", &format!("{name}: write a whole number.")))
        }
    };
    let least = |name: &str| -> Result<Option<std::num::NonZeroU32>, Refused> {
        number(name)?
            .map(|number| {
                let said = format!("{name}: write at least 1.");
                std::num::NonZeroU32::new(number).ok_or_else(|| post.visitor.unread("The limits cannot be read", &said))
            })
            .transpose()
    };
    // People write 20; the API wants a share.
    let stop_at = post.given("stop_at").map(|text| match text.bytes().all(|one| one.is_ascii_digit()) {
        true => format!("{text}%"),
        false => text,
    });
    let ask = PlanStart {
        reason: post.text("reason").into(),
        rate: post.given("rate"),
        max: least("max")?,
        canary: number("canary")?,
        stop_at,
        at_once: least("at_once")?,
        config: if post.text("config") == "original" { ReplayOn::Original } else { ReplayOn::Live },
    };
    let told: PlanShow = post.visitor.post(format!("replays/{}/start", part(&id)), &ask).await?;
    let word = if told.changed == Some(true) { "started" } else { "started-before" };
    Ok(see_other(&format!("/replays/{}?done={word}", part(&id))))
}

pub async fn turn(Path(id): Path<String>, post: Post) -> Result<Response, Refused> {
    let to = match post.text("to") {
        "pause" => "pause",
        "resume" => "resume",
        "stop" => "stop",
        _ => return Err(post.visitor.unread("Nothing is done", "Press Pause, Resume or Stop.")),
    };
    let ask = PlanTurn { reason: post.text("reason").into() };
    let told: PlanShow = post.visitor.post(format!("replays/{}/{to}", part(&id)), &ask).await?;
    let word = if told.changed == Some(true) { "turned" } else { "turned-before" };
    Ok(see_other(&format!("/replays/{}?done={word}", part(&id))))
}
