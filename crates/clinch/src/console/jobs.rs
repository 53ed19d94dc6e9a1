//! One job, its whole story in the order of the questions that one has at night: what is wrong, what to do, what already
//! happened, why, with what data.

use super::ask::{Refusal, part};
use super::door::{Post, Refused, Visitor, see_other};
use super::frame::{self, Frame};
use super::look;
use super::timeline::Timeline;
use crate::api::shapes::{Effect, JobShow, ReplayAsk, ReplayOn, Replayed, Ruling};
use askama::Template;
use axum::extract::Path;
use axum::response::Response;
use clinch_core::saga;
use clinch_core::user::Permission;

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    frame: Frame,
    told: JobShow,
    timeline: Timeline,
    /// The ledger without the lines that tell of no step.
    effects: Vec<Effect>,
    /// The newest first.
    attempts: Vec<crate::api::shapes::Attempt>,
    /// What only a person can decide before a replay.
    asks: Vec<String>,
    confirm: String,
    /// The key that its sender gave, where it can be looked up as it is shown.
    key: Option<String>,
    curl: Option<String>,
    body: String,
    live: String,
    may_replay: bool,
    may_resolve: bool,
}

/// What is masked is not what it was.
fn is_whole(text: &str) -> bool {
    !text.is_empty() && !text.contains('•') && !text.contains('…')
}

pub async fn show(visitor: Visitor, Path(id): Path<String>) -> Result<Response, Refused> {
    let told: JobShow = visitor.get(format!("jobs/{}", part(&id))).await?;
    let frame = visitor.frame(told.job.id.clone(), "jobs").await?;
    let asks = asks(&told);
    Ok(frame::html(&Page {
        timeline: Timeline::of(&told, frame.now),
        effects: told.effects.iter().filter(|effect| !saga::is_end(&effect.step)).cloned().collect(),
        attempts: told.attempts.iter().rev().cloned().collect(),
        confirm: confirmation(&asks),
        asks,
        key: told.event.as_ref().map(|event| event.source_event_id.clone()).filter(|key| is_whole(key)),
        curl: told.entrance.as_ref().map(|entrance| entrance.curl(&told.body)),
        body: told.body.lines.join("\n"),
        live: frame.version.clone(),
        may_replay: visitor.who.role.may(Permission::Replay),
        may_resolve: visitor.who.role.may(Permission::Resolve),
        frame,
        told,
    }))
}

/// The steps that may have been done, of which at least one only a person can decide.
fn asks(told: &JobShow) -> Vec<String> {
    let asks = |effect: &&Effect| effect.if_replayed.as_deref() == Some("asks_first");
    told.effects.iter().filter(asks).map(|effect| effect.step.clone()).collect()
}

/// What is typed by who has effects sent again that may have happened: the step's name, or how many they are.
fn confirmation(asks: &[String]) -> String {
    match asks {
        [one] => one.clone(),
        several => several.len().to_string(),
    }
}

pub async fn replay(Path(id): Path<String>, post: Post) -> Result<Response, Refused> {
    let unknown = match post.text("unknown") {
        "resend" => Some(Ruling::Resend),
        "skip" => Some(Ruling::Skip),
        _ => None,
    };
    if unknown == Some(Ruling::Resend) {
        let told: JobShow = post.visitor.get(format!("jobs/{}", part(&id))).await?;
        let expected = confirmation(&asks(&told));
        if post.text("confirm") != expected {
            let detail = format!("It may happen twice: type `{expected}` to send it again. Nothing was changed.");
            return Err(post.visitor.refused(not_confirmed(detail)));
        }
    }
    let ask = ReplayAsk {
        reason: post.text("reason").into(),
        config: if post.text("config") == "live" { ReplayOn::Live } else { ReplayOn::Original },
        unknown,
    };
    let done: Replayed = post.visitor.post(format!("jobs/{}/replay", part(&id)), &ask).await?;
    let word = if done.replayed { "replayed" } else { "not-dead" };
    Ok(see_other(&format!("/jobs/{}?done={word}", part(&id))))
}

/// What may repeat or lose something is not done by one press.
pub fn not_confirmed(detail: String) -> Refusal {
    Refusal { status: 400, code: "CL0518".into(), title: "It was not confirmed".into(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_what_may_happen_twice_is_confirmed_by_its_name_or_its_number() {
        assert_eq!(confirmation(&["charge".into()]), "charge");
        assert_eq!(confirmation(&["charge".into(), "mail".into()]), "2");
    }

    #[test]
    fn i1_a_masked_key_is_no_link() {
        assert!(is_whole("evt_1Qw"));
        assert!(!is_whole("a•••@e•••.com") && !is_whole(""));
    }
}
