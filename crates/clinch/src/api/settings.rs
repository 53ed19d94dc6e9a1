//! What operators set over the files: what can be set, what is, how it came to that, and a change of it.

use super::controls::end;
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
use clinch_core::config::{Problem as Flaw, Settable, Workspace};
use clinch_core::live::{self, Beside, LiveValue, Unknown, VALUE_CHARS_MAX, meaning};
use clinch_store::read::{AuditFilter, AuditRow};
use clinch_store::{SteerAsk, Steered};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::ToSchema;

/// So many changes of a setting are told, the newest.
const CHANGES_MAX: usize = 100;

/// `clinch.settings.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingList {
    pub schema: String,
    pub settings: Vec<Setting>,
}

/// Something that can be set, or is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Setting {
    pub name: String,
    /// What counts now.
    pub value: String,
    /// As the file says; null where it says nothing, and the default counts.
    pub file: Option<String>,
    pub default: String,
    /// What is set over it, whether it counts or not.
    pub live: Option<LiveSetting>,
    /// What follows from it.
    pub means: Option<String>,
    /// What it is.
    pub about: String,
}

/// What is set over the file.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveSetting {
    pub value: String,
    pub version: i64,
    pub since: Moment,
    pub actor: String,
    pub reason: String,
    pub until: Option<Moment>,
    /// What counted by the file when it was set.
    pub file_was: String,
    /// False: the files no longer bear it, and the note says why.
    pub counts: bool,
    pub note: Option<String>,
}

/// `clinch.settings.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingShow {
    pub schema: String,
    pub setting: Setting,
    /// The newest first.
    pub history: Vec<SettingChange>,
}

/// One change of it, from the record.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingChange {
    /// 0: from then on the file counted.
    pub version: i64,
    pub value: Option<String>,
    pub until: Option<String>,
    pub at: Moment,
    pub actor: String,
    pub action: String,
    pub reason: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingAsk {
    /// A text, a number or a boolean.
    #[serde(deserialize_with = "as_written")]
    #[schema(value_type = Value)]
    pub value: String,
    #[serde(default)]
    pub reason: String,
    /// A time, or how long from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only if this is its version now; 0 where nothing is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<i64>,
    /// Only tell what would be.
    #[serde(default)]
    pub dry_run: bool,
}

fn as_written<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text),
        value @ (Value::Number(_) | Value::Bool(_)) => Ok(value.to_string()),
        _ => Err(serde::de::Error::custom("value: write a text, a number, true or false")),
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingUnset {
    #[serde(default)]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<i64>,
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingRollback {
    /// The version to go back to; 0 is the file.
    pub to: i64,
    #[serde(default)]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<i64>,
    #[serde(default)]
    pub dry_run: bool,
}

/// `clinch.settings.set/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingSet {
    pub schema: String,
    pub name: String,
    pub before: SettingSide,
    pub after: SettingSide,
    /// What `clinch check` would warn of if the file said so, and did not before.
    pub warnings: Vec<String>,
    /// Its version from now on; 0 where the file counts.
    pub version: i64,
    /// Nothing was changed: it was only asked, or nothing was set that could be taken back.
    pub changed: bool,
    pub dry_run: bool,
}

/// A setting before or after a change.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingSide {
    pub value: String,
    /// Whether it is what the file says.
    pub by_file: bool,
    pub means: Option<String>,
}

impl SettingSide {
    fn of(workspace: &Workspace, settable: &Settable) -> SettingSide {
        SettingSide {
            value: settable.live.as_deref().unwrap_or(settable.by_file()).to_string(),
            by_file: settable.live.is_none(),
            means: meaning(workspace, &settable.name),
        }
    }
}

impl From<Beside> for LiveSetting {
    fn from(Beside { set, counts, note, .. }: Beside) -> LiveSetting {
        LiveSetting {
            value: set.value,
            version: set.version,
            since: Moment(set.since),
            actor: set.actor,
            reason: set.reason,
            until: set.until.map(Moment),
            file_was: set.file,
            counts,
            note,
        }
    }
}

impl Setting {
    /// As it was set, if it is.
    pub fn set(&self) -> Option<LiveValue> {
        let live = self.live.as_ref()?;
        Some(LiveValue {
            name: self.name.as_str().into(),
            value: live.value.clone(),
            file: live.file_was.clone(),
            reason: live.reason.clone(),
            version: live.version,
            since: live.since.0,
            actor: live.actor.clone(),
            until: live.until.map(|until| until.0),
        })
    }
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<SettingList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    Ok(Json(SettingList { schema: "clinch.settings.list/v1".into(), settings: all(&house) }))
}

pub async fn show(
    State(house): State<House>,
    Id(name): Id<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<SettingShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let history = changes(&house, &name).await?;
    let setting = all(&house).into_iter().find(|setting| setting.name == name).ok_or_else(|| unknown(&house, &name))?;
    Ok(Json(SettingShow { schema: "clinch.settings.show/v1".into(), setting, history }))
}

pub async fn set(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SettingSet>, Problem> {
    let SettingAsk { value, reason, until, expect, dry_run } = read_body(body)?;
    let value = value.trim().to_string();
    if value.chars().count() > VALUE_CHARS_MAX || value.contains(char::is_control) {
        return Err(Problem::bad_body(format!("value: write at most {VALUE_CHARS_MAX} characters on one line.")));
    }
    let value = Some(value);
    change(&house, &who, Change { action: "setting.set", name, value, reason, until, expect, dry_run }).await
}

pub async fn unset(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SettingSet>, Problem> {
    let SettingUnset { reason, expect, dry_run } = read_body(body)?;
    let action = "setting.unset";
    change(&house, &who, Change { action, name, value: None, reason, until: None, expect, dry_run }).await
}

pub async fn roll_back(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SettingSet>, Problem> {
    let SettingRollback { to, reason, until, expect, dry_run } = read_body(body)?;
    let value = match to {
        0 => None,
        version => {
            let found = changes(&house, &name).await?.into_iter().find(|change| change.version == version);
            let absent = || format!("{name} never had version {version}; `clinch set {name}` tells which it had.");
            Some(found.and_then(|change| change.value).ok_or_else(|| Problem::not_found(absent()))?)
        }
    };
    let action = "setting.rollback";
    change(&house, &who, Change { action, name, value, reason, until, expect, dry_run }).await
}

/// What is asked for.
struct Change {
    action: &'static str,
    name: String,
    /// `None`: what the file says.
    value: Option<String>,
    reason: String,
    until: Option<String>,
    expect: Option<i64>,
    dry_run: bool,
}

async fn change(house: &House, who: &Who, ask: Change) -> Result<Json<SettingSet>, Problem> {
    let Change { action, name, value, reason: why, until, expect, dry_run } = ask;
    let (name, now): (Arc<str>, _) = (name.into(), house.clock.now());
    let until = until.as_deref().map(|text| end(text, now)).transpose()?;
    let reason = reason(&why, usize::from(!dry_run))?;
    let state = house.versions.state();
    let controls = house.controls.get();
    let set = controls.live(now).find(|set| set.name == name);
    // What the files no longer have can still be taken back.
    if state.workspace.settable(&name).is_none() && !(set.is_some() && value.is_none()) {
        return Err(unknown(house, &name));
    }
    let refuse = |flaws: Vec<Flaw>| Problem::bad_body(format!("{name}: {}.", live::told(&flaws)));
    let (changed, warnings) = house.versions.with(&name, value.as_deref()).map_err(refuse)?;
    let side = |workspace: &Workspace| match workspace.settable(&name) {
        Some(settable) => SettingSide::of(workspace, settable),
        None => SettingSide { value: "none".into(), by_file: true, means: None },
    };
    let (before, after) = (side(&state.workspace), side(&changed));
    let is_new = |warning: &&Flaw| !state.warnings.iter().any(|old| old.message == warning.message);
    let warnings = warnings.iter().filter(is_new).map(|warning| warning.message.clone()).collect();
    let mut told = SettingSet {
        schema: "clinch.settings.set/v1".into(),
        name: name.to_string(),
        before,
        after,
        warnings,
        version: set.map_or(0, |set| set.version),
        changed: false,
        dry_run,
    };
    if let Some(expected) = expect.filter(|expected| *expected != told.version) {
        return Err(moved_on(&name, expected, told.version));
    }
    if dry_run || (value.is_none() && set.is_none()) {
        return Ok(Json(told));
    }
    let by_file = changed.settable(&name).map_or_else(String::new, |settable| settable.by_file().to_string());
    let value = value.map(|value| LiveValue::stored(&value, &by_file, &reason));
    // One whose time is over is still stored, and is what would be changed.
    let expect = expect.map(|_| controls.live_version(&name));
    let ask =
        SteerAsk { name: LiveValue::control(&name), value, until, expect, action, record: who.record(reason, now) };
    match house.controls.steer(&*house.store, ask).await? {
        Steered::Steered { version, .. } => (told.version, told.changed) = (version, true),
        Steered::Conflict(there) => {
            return Err(moved_on(&name, expect.unwrap_or_default(), there.map_or(0, |there| there.version)));
        }
    }
    let (actor, before, after) = (&who.name, &told.before.value, &told.after.value);
    tracing::warn!("{name} is set from {before} to {after} by {actor}");
    Ok(Json(told))
}

fn moved_on(name: &str, expected: i64, version: i64) -> Problem {
    Problem::not_now(format!(
        "{name} has version {version}, not {expected}: somebody has changed it meanwhile; look at `clinch set {name}`."
    ))
}

fn unknown(house: &House, name: &str) -> Problem {
    Problem::not_found(format!("{}.", Unknown::of(name, &house.versions.now())))
}

/// What can be set, in the order of the files, and what is set though they have no such setting any more.
fn all(house: &House) -> Vec<Setting> {
    let (controls, state, now) = (house.controls.get(), house.versions.state(), house.clock.now());
    let live = |name: &str| {
        let set = controls.live(now).find(|set| *set.name == *name)?;
        Some(Beside::of(set, &state.workspace, &state.refused).into())
    };
    let known = state.workspace.settable.iter().map(|settable| {
        let SettingSide { value, means, .. } = SettingSide::of(&state.workspace, settable);
        Setting {
            name: settable.name.to_string(),
            value,
            file: settable.file.clone(),
            default: settable.usual.clone(),
            live: live(&settable.name),
            means,
            about: settable.doc.into(),
        }
    });
    let gone = controls.live(now).filter(|set| state.workspace.settable(&set.name).is_none()).map(|set| Setting {
        name: set.name.to_string(),
        value: "none".into(),
        file: None,
        default: "none".into(),
        live: live(&set.name),
        means: None,
        about: "The workspace has no such setting any more.".into(),
    });
    known.chain(gone).collect()
}

/// What the record knows of a setting, the newest first.
async fn changes(house: &House, name: &str) -> Result<Vec<SettingChange>, Problem> {
    let filter = AuditFilter {
        action: Some("setting.*".into()),
        object: Some(name.into()),
        limit: CHANGES_MAX,
        ..AuditFilter::default()
    };
    Ok(house.store.audit(filter).await?.iter().map(told).collect())
}

fn told(row: &AuditRow) -> SettingChange {
    let after: Value = row.after.as_deref().and_then(|after| serde_json::from_str(after).ok()).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_string);
    SettingChange {
        version: after["version"].as_i64().unwrap_or_default(),
        value: text(&after["value"]["value"]),
        until: text(&after["until"]),
        at: Moment(row.at),
        actor: row.actor.clone(),
        action: row.action.clone(),
        reason: row.reason.clone(),
    }
}
