//! What operators switch: pauses.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::Moment;
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::config::Workspace;
use clinch_core::control::{self, Scope};
use clinch_core::time::{Timestamp, parse_duration};
use clinch_store::{Record, SteerAsk, Steered};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// `clinch.pauses.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PauseList {
    pub schema: String,
    pub pauses: Vec<Pause>,
    /// Everything that can be paused, as a scope is written.
    #[serde(default)]
    pub can_pause: Vec<String>,
}

/// Something that stands still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pause {
    pub scope: String,
    pub reason: String,
    pub actor: String,
    pub since: Moment,
    /// When it ends by itself, if it does.
    pub until: Option<Moment>,
}

impl From<&control::Pause> for Pause {
    fn from(pause: &control::Pause) -> Pause {
        Pause {
            scope: pause.scope.to_string(),
            reason: pause.reason.clone(),
            actor: pause.actor.clone(),
            since: Moment(pause.since),
            until: pause.until.map(Moment),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseAsk {
    pub scope: String,
    pub reason: String,
    /// A time, or how long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// `clinch.pauses.set/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PauseSet {
    pub schema: String,
    pub pause: Pause,
    /// It stood still already; why and until when are those of now.
    pub before: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeAsk {
    #[serde(default)]
    pub reason: String,
}

/// `clinch.pauses.resume/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Resumed {
    pub schema: String,
    pub scope: String,
    /// False: it did not stand still.
    pub resumed: bool,
}

pub async fn pauses(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<PauseList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let pauses = house.controls.get().pauses(house.clock.now()).map(Pause::from).collect();
    let can_pause = Scope::all(&workspaces(&house).await?).iter().map(ToString::to_string).collect();
    Ok(Json(PauseList { schema: "clinch.pauses.list/v1".into(), pauses, can_pause }))
}

pub async fn pause(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PauseSet>, Problem> {
    let ask: PauseAsk = read_body(body)?;
    let scope: Scope = ask.scope.parse().map_err(|error| Problem::bad_body(format!("scope: {error}.")))?;
    let now = house.clock.now();
    let until = ask.until.as_deref().map(|text| end(text, now)).transpose()?;
    let reason = reason(&ask.reason, 1)?;
    scope.find(&workspaces(&house).await?).map_err(|error| Problem::not_found(format!("{error}.")))?;
    let value = Some(control::Pause::value(&reason));
    let before = steer(&house, &scope, value, until, "pause.set", who.record(reason, now)).await?;
    let controls = house.controls.get();
    let Some(pause) = controls.paused(&scope, now) else {
        return Err(Problem::not_now(format!("Somebody resumed {scope} at this moment; look at `clinch pauses`.")));
    };
    tracing::warn!("{scope} is paused by {}", pause.actor);
    Ok(Json(PauseSet { schema: "clinch.pauses.set/v1".into(), pause: pause.into(), before }))
}

pub async fn resume(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(scope): Id<Scope>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Resumed>, Problem> {
    let ask: ResumeAsk = read_body(body)?;
    let resumed =
        steer(&house, &scope, None, None, "pause.end", who.record(reason(&ask.reason, 0)?, house.clock.now())).await?;
    if resumed {
        tracing::warn!("{scope} goes on");
    }
    Ok(Json(Resumed { schema: "clinch.pauses.resume/v1".into(), scope: scope.to_string(), resumed }))
}

/// Whether it stood still until now.
async fn steer(
    house: &House,
    scope: &Scope,
    value: Option<String>,
    until: Option<Timestamp>,
    action: &'static str,
    record: Record,
) -> Result<bool, Problem> {
    let at = record.at;
    let ask = SteerAsk { name: scope.control(), value, until, expect: None, action, record };
    Ok(match house.controls.steer(&*house.store, ask).await? {
        Steered::Steered { before, .. } => before.is_some_and(|before| before.until.is_none_or(|until| at < until)),
        Steered::Conflict(there) => there.is_some(),
    })
}

/// The live workspace, and those that jobs still run.
pub async fn workspaces(house: &House) -> Result<Vec<Arc<Workspace>>, Problem> {
    let mut workspaces = vec![house.versions.workspace().clone()];
    for version in house.store.live_versions() {
        workspaces.extend(house.versions.get(version, &*house.store).await?);
    }
    Ok(workspaces)
}

/// A time to come: as such, or as how long from now.
pub fn end(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    let bad = |why: &str| Problem::bad_body(format!("until: `{text}` {why}; write 2h, or 2026-01-31T18:00:00Z."));
    let at = match (parse_duration(text), text.parse::<jiff::Timestamp>()) {
        (Ok(span), _) => now + span,
        (_, Ok(at)) => Timestamp::from_micros(at.as_microsecond()),
        _ => return Err(bad("is neither a time nor how long from now")),
    };
    if at <= now { Err(bad("is over")) } else { Ok(at) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn e6_an_end_is_a_time_to_come() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let read = |text: &str| end(text, now).ok();
        assert_eq!(read("2h"), Some(now + Duration::from_secs(7_200)));
        assert_eq!(read("2030-01-01T00:00:00Z"), Some(Timestamp::from_micros(1_893_456_000_000_000)));
        for bad in ["2020-01-01T00:00:00Z", "0s", "tomorrow", "", "2h later", "30"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
