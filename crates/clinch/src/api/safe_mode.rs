//! Safe mode: whether it is on and what waits because of it; on, and off again.

use super::controls::{end, workspaces};
use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::Query;
use super::shapes::Moment;
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::job::Waits;
use clinch_core::limit::Rate;
use clinch_core::safe_mode::{self, SafeScope, drain_time};
use clinch_core::time::Timestamp;
use clinch_store::{Record, SteerAsk, Steered};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.safe_mode.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SafeModeShow {
    pub schema: String,
    pub on: Vec<SafeMode>,
    /// Those that have ended, and for which something may still wait for its turn.
    pub draining: Vec<SafeMode>,
    /// Everything that can have a safe mode, as a scope is written.
    #[serde(default)]
    pub scopes: Vec<String>,
    #[serde(flatten)]
    pub now: Standing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SafeMode {
    pub scope: String,
    pub reason: String,
    pub actor: String,
    pub since: Moment,
    /// When it ends by itself, or has ended.
    pub until: Option<Moment>,
}

impl From<&safe_mode::SafeMode> for SafeMode {
    fn from(mode: &safe_mode::SafeMode) -> SafeMode {
        SafeMode {
            scope: mode.scope.to_string(),
            reason: mode.reason.clone(),
            actor: mode.actor.clone(),
            since: Moment(mode.since),
            until: mode.until.map(Moment),
        }
    }
}

/// Jobs of a flow or a playbook that wait because of safe mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Held {
    pub flow: String,
    pub jobs: u64,
    pub oldest_at: Option<Moment>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SafeModeOn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    pub reason: String,
    /// A time, or how long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SafeModeOff {
    /// Without one, wherever it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    #[serde(default)]
    pub reason: String,
    /// How fast what waited is let go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
}

/// `clinch.safe_mode.set/v1`: what was turned on or off, and how things are now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SafeModeSet {
    pub schema: String,
    pub changed: Vec<SafeMode>,
    #[serde(flatten)]
    pub now: Standing,
}

/// What waits, as it is now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Standing {
    /// By flow.
    pub held: Vec<Held>,
    pub held_jobs: u64,
    /// How fast it is let go when safe mode ends, and how long that takes.
    pub drain: String,
    pub drain_seconds: u64,
}

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<SafeModeShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let (controls, now) = (house.controls.get(), house.clock.now());
    let modes = controls.safe_modes();
    Ok(Json(SafeModeShow {
        schema: "clinch.safe_mode.show/v1".into(),
        on: modes.iter().filter(|mode| mode.is_on(now)).map(SafeMode::from).collect(),
        draining: modes.iter().filter(|mode| mode.draining_since(now).is_some()).map(SafeMode::from).collect(),
        scopes: SafeScope::all(&workspaces(&house).await?).iter().map(ToString::to_string).collect(),
        now: standing(&house, None).await?,
    }))
}

pub async fn on(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SafeModeSet>, Problem> {
    let ask: SafeModeOn = read_body(body)?;
    let (scope, now) = (scope(ask.scope.as_deref().unwrap_or("all"))?, house.clock.now());
    let until = ask.until.as_deref().map(|text| end(text, now)).transpose()?;
    let reason = reason(&ask.reason, 1)?;
    scope.find(&workspaces(&house).await?).map_err(|error| Problem::not_found(format!("{error}.")))?;
    let value = safe_mode::SafeMode::on(&reason, now);
    steer(&house, &scope, value, until, "safe_mode.on", who.record(reason, now)).await?;
    tracing::warn!("safe mode is on for {scope}");
    told(&house, &[scope], None).await
}

pub async fn off(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SafeModeSet>, Problem> {
    let ask: SafeModeOff = read_body(body)?;
    let (reason, now) = (reason(&ask.reason, 0)?, house.clock.now());
    let rate: Option<Rate> = ask
        .drain
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|error| Problem::bad_body(format!("drain: {error}.")))?;
    let wanted = ask.scope.as_deref().map(scope).transpose()?;
    let controls = house.controls.get();
    let is_meant =
        |mode: &&safe_mode::SafeMode| mode.is_on(now) && wanted.as_ref().is_none_or(|scope| mode.scope == *scope);
    let modes: Vec<_> = controls.safe_modes().iter().filter(is_meant).collect();
    let waiting = standing(&house, rate).await?;
    for mode in &modes {
        let value = mode.off(waiting.held_jobs, rate.unwrap_or(drain(&house)), now);
        steer(&house, &mode.scope, value, Some(now), "safe_mode.off", who.record(reason.clone(), now)).await?;
        tracing::warn!("safe mode is off for {}: {} jobs waited", mode.scope, waiting.held_jobs);
    }
    let scopes: Vec<SafeScope> = modes.iter().map(|mode| mode.scope.clone()).collect();
    told(&house, &scopes, Some(waiting)).await
}

async fn told(house: &House, scopes: &[SafeScope], waiting: Option<Standing>) -> Result<Json<SafeModeSet>, Problem> {
    let controls = house.controls.get();
    let changed = scopes.iter().filter_map(|scope| controls.safe_mode_of(scope)).map(SafeMode::from).collect();
    let now = match waiting {
        Some(waiting) => waiting,
        None => standing(house, None).await?,
    };
    Ok(Json(SafeModeSet { schema: "clinch.safe_mode.set/v1".into(), changed, now }))
}

fn scope(text: &str) -> Result<SafeScope, Problem> {
    text.parse().map_err(|error| Problem::bad_body(format!("scope: {error}.")))
}

fn drain(house: &House) -> Rate {
    house.versions.now().settings.safe_mode.drain
}

async fn standing(house: &House, rate: Option<Rate>) -> Result<Standing, Problem> {
    let rate = rate.unwrap_or(drain(house));
    let counts = house.store.counts().await?;
    let mut held: Vec<Held> = counts
        .waiting
        .iter()
        .filter(|waiting| waiting.waits == Waits::SafeMode)
        .map(|of| Held { flow: of.flow.to_string(), jobs: of.jobs, oldest_at: of.oldest.map(Moment) })
        .collect();
    held.sort_by(|a, b| a.flow.cmp(&b.flow));
    let held_jobs = held.iter().map(|held| held.jobs).sum();
    Ok(Standing { held, held_jobs, drain: rate.to_string(), drain_seconds: drain_time(held_jobs, rate).as_secs() })
}

async fn steer(
    house: &House,
    scope: &SafeScope,
    value: String,
    until: Option<Timestamp>,
    action: &'static str,
    record: Record,
) -> Result<(), Problem> {
    let ask = SteerAsk { name: scope.control(), value: Some(value), until, expect: None, action, record };
    match house.controls.steer(&*house.store, ask).await? {
        Steered::Steered { .. } => Ok(()),
        Steered::Conflict(_) => Err(Problem::not_now("Somebody else switched it at this moment; look again.".into())),
    }
}
