//! The life of a workspace: what is different between two of them and what that means, and which one is live.

use super::flows::{FileDiff, VERSIONS_MAX, file_diff, files_of, version_of};
use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::Query;
use super::shapes::{self, Moment};
use crate::house::House;
use crate::masking::rules;
use crate::reload::{self, Applied, Unfit, checked, fit};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::change::{self, Change, InFlight, Jobs, Side, Weight, at_next_start};
use clinch_core::config::{self, Files, Problem as Flaw, position};
use clinch_store::VersionId;
use clinch_store::read::AuditFilter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

/// The files of a workspace together, as JSON.
pub const FILES_BYTES_MAX: usize = 8 << 20;
/// So far back it is told who made something live.
const RECORD_ROWS_MAX: usize = 500;

/// A workspace: one that was live, or the files of one that is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SideAsk {
    /// `live`, or one like v42.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Paths relative to the workspace, and texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<FileText>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileText {
    pub path: String,
    pub text: String,
}

impl SideAsk {
    pub fn of_version(version: &str) -> SideAsk {
        SideAsk { version: Some(version.into()), files: None }
    }

    pub fn of_files(files: &Files) -> SideAsk {
        let file = |(path, text): &(String, String)| FileText { path: path.clone(), text: text.clone() };
        SideAsk { version: None, files: Some(files.0.iter().map(file).collect()) }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiffAsk {
    pub from: SideAsk,
    pub to: SideAsk,
}

/// `clinch.config.diff/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConfigDiff {
    pub schema: String,
    pub from: SideShow,
    pub to: SideShow,
    /// By subject; those with risks first.
    pub changes: Vec<ChangeShow>,
    /// How many of them are risks.
    pub risks: usize,
    /// Unfinished jobs: they stay on the version that they were accepted with. Null where no server was asked.
    pub in_flight: Option<u64>,
    /// What takes effect only when a process starts, by its keys.
    pub next_start: Vec<String>,
    /// Those that are not the same, line by line.
    pub files: Vec<FileDiff>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SideShow {
    /// live v41, v40, files, or a directory.
    pub name: String,
    /// The beginning of the hash of its files.
    pub hash: String,
}

/// Something that is different, and what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeShow {
    pub code: String,
    /// risk, note
    pub weight: String,
    pub title: String,
    /// Whose it is, such as `flow orders`.
    pub subject: String,
    /// What of it, in the keys of its file.
    pub what: String,
    pub was: Option<String>,
    pub now: Option<String>,
    /// What follows.
    pub sentence: String,
    pub fix: Option<String>,
    pub at: Option<PlaceShow>,
    pub was_at: Option<PlaceShow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlaceShow {
    pub file: String,
    pub line: usize,
    pub column: usize,
}

impl From<Change> for ChangeShow {
    fn from(change: Change) -> ChangeShow {
        let masked = |text: String| rules().sentence(&text);
        let place = |place: change::Place| PlaceShow { file: place.file, line: place.line, column: place.column };
        ChangeShow {
            code: change.kind.code().into(),
            weight: change.weight.word().into(),
            title: change.kind.title().into(),
            subject: change.subject,
            what: change.what,
            was: change.was.map(masked),
            now: change.now.map(masked),
            sentence: masked(change.sentence),
            fix: change.fix,
            at: change.at.map(place),
            was_at: change.was_at.map(place),
        }
    }
}

/// A workspace that is compared.
pub struct Compared {
    pub name: String,
    pub files: Files,
}

/// What is different, or the one of the two that cannot be read and why. Without jobs nobody was asked how many there are.
pub fn difference(from: Compared, to: Compared, jobs: Option<&InFlight>) -> Result<ConfigDiff, (Compared, Vec<Flaw>)> {
    let old = match config::load(&from.files) {
        Ok((workspace, _)) => workspace,
        Err(flaws) => return Err((from, flaws)),
    };
    let new = match checked(&to.files) {
        Ok((workspace, _)) => workspace,
        Err(flaws) => return Err((to, flaws)),
    };
    let none = InFlight::default();
    let (before, after) = (Side { files: &from.files, workspace: &old }, Side { files: &to.files, workspace: &new });
    let changes = change::changes(before, after, jobs.unwrap_or(&none));
    let paths: BTreeSet<&String> = from.files.0.iter().chain(&to.files.0).map(|(path, _)| path).collect();
    let side = |side: &Compared| SideShow { name: side.name.clone(), hash: side.files.version().to_string() };
    Ok(ConfigDiff {
        schema: "clinch.config.diff/v1".into(),
        risks: changes.iter().filter(|change| change.weight == Weight::Risk).count(),
        changes: changes.into_iter().map(ChangeShow::from).collect(),
        in_flight: jobs.map(InFlight::unfinished),
        next_start: at_next_start(&old.settings, &new.settings).into_iter().map(String::from).collect(),
        files: paths
            .into_iter()
            .filter_map(|path| file_diff(path, from.files.text(path), to.files.text(path)))
            .collect(),
        from: side(&from),
        to: side(&to),
    })
}

pub async fn diff(
    State(house): State<House>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ConfigDiff>, Problem> {
    let DiffAsk { from, to } = read_body(body)?;
    let (from, to) = (compared(&house, from).await?, compared(&house, to).await?);
    let jobs = in_flight(&house).await?;
    difference(from, to, Some(&jobs)).map(Json).map_err(|(side, flaws)| invalid(&side.files, &flaws))
}

/// What is meant, with its files.
pub(super) async fn compared(house: &House, asked: SideAsk) -> Result<Compared, Problem> {
    match asked {
        SideAsk { version: Some(version), files: None } => {
            let live = house.versions.live();
            let id: VersionId = if version == "live" { live } else { version_of(&version)? };
            let name = shapes::version(id);
            let name = if id == live { format!("live {name}") } else { name };
            Ok(Compared { name, files: files_of(house, id).await? })
        }
        SideAsk { version: None, files: Some(files) } => Ok(Compared { name: "files".into(), files: of_texts(files)? }),
        _ => Err(Problem::bad_body("Say `version` or `files`, one of them.".into())),
    }
}

pub(super) fn of_texts(files: Vec<FileText>) -> Result<Files, Problem> {
    let mut files: Vec<(String, String)> = files.into_iter().map(|file| (file.path, file.text)).collect();
    files.sort();
    if files.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Problem::bad_body("files: a path is there twice.".into()));
    }
    match files.is_empty() {
        true => Err(Problem::bad_body("files: there are none.".into())),
        false => Ok(Files(files)),
    }
}

/// All jobs that are not done, by flow.
pub async fn in_flight(house: &House) -> Result<InFlight, Problem> {
    let mut jobs: BTreeMap<String, Jobs> = BTreeMap::new();
    for (flow, _, count) in house.store.unfinished().await? {
        jobs.entry(flow.to_string()).or_default().unfinished += count;
    }
    for (flow, _, count) in house.store.counts().await?.dead {
        jobs.entry(flow.to_string()).or_default().dead += count;
    }
    Ok(InFlight(jobs))
}

/// In the words of `clinch check`.
pub fn invalid(files: &Files, flaws: &[Flaw]) -> Problem {
    let told = |flaw: &Flaw| {
        let (line, column) = position(files.text(&flaw.file).unwrap_or_default(), flaw.span.start);
        let help = flaw.help.as_ref().map_or_else(String::new, |help| format!("; fix: {help}"));
        format!("{}:{line}:{column} {} {}{help}", flaw.file, flaw.code, flaw.message)
    };
    let all: Vec<String> = flaws.iter().map(told).collect();
    Problem::config_invalid(all.join("\n"))
}

/// `clinch.config.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConfigShow {
    pub schema: String,
    /// The live workspace.
    pub version: String,
    pub hash: String,
    /// Who made it live, when, how and why.
    pub live: Option<LiveBy>,
    /// Why the workspace that was read last is not live on this node.
    pub refused: Option<NotLiveShow>,
}

/// How a workspace became live, from the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveBy {
    pub at: Moment,
    pub actor: String,
    /// config.activate (a process had its files), config.apply, config.rollback
    pub action: String,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotLiveShow {
    pub said: String,
    pub since: Moment,
}

pub async fn show(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<ConfigShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let now = house.versions.state();
    let refused = house.reload.refused();
    Ok(Json(ConfigShow {
        schema: "clinch.config.show/v1".into(),
        version: shapes::version(now.live),
        hash: now.files.version().to_string(),
        live: live_by(&house).await?.remove(&now.live),
        refused: refused.map(|refused| NotLiveShow { said: refused.said, since: Moment(refused.since) }),
    }))
}

/// How each workspace became live the last time, as far back as the record is looked at.
pub async fn live_by(house: &House) -> Result<BTreeMap<VersionId, LiveBy>, Problem> {
    let filter = AuditFilter { action: Some("config.*".into()), ..AuditFilter::last(RECORD_ROWS_MAX) };
    let mut by = BTreeMap::new();
    for row in house.store.audit(filter).await? {
        let after: Option<Value> = row.after.as_deref().and_then(|after| serde_json::from_str(after).ok());
        let Some(version) = after.and_then(|after| after["version"].as_i64()) else { continue };
        let told = LiveBy { at: Moment(row.at), actor: row.actor, action: row.action, reason: row.reason };
        // The newest first.
        by.entry(VersionId(version)).or_insert(told);
    }
    Ok(by)
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyAsk {
    pub files: Vec<FileText>,
    #[serde(default)]
    pub reason: String,
    /// Only if this version is live, such as v42.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// Only tell what would be.
    #[serde(default)]
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackAsk {
    /// One like v41.
    pub version: String,
    #[serde(default)]
    pub reason: String,
    /// Only if this version is live, such as v42.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// Only tell what would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// `clinch.config.apply/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ConfigApplied {
    pub schema: String,
    /// What was live before.
    pub before: String,
    /// What is live now; when it was only asked, what would be: null for files that were never live.
    pub version: Option<String>,
    pub changed: bool,
    pub dry_run: bool,
    pub diff: ConfigDiff,
}

pub async fn apply(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ConfigApplied>, Problem> {
    let ApplyAsk { files, reason, expect, dry_run } = read_body(body)?;
    let to = Compared { name: "files".into(), files: of_texts(files)? };
    make_live(&house, &who, "config.apply", to, Word { reason, expect, dry_run }).await
}

pub async fn roll_back(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ConfigApplied>, Problem> {
    let RollbackAsk { version, reason, expect, dry_run } = read_body(body)?;
    let id = version_of(&version)?;
    let to = Compared { name: shapes::version(id), files: files_of(&house, id).await? };
    make_live(&house, &who, "config.rollback", to, Word { reason, expect, dry_run }).await
}

/// An operator's word.
struct Word {
    reason: String,
    expect: Option<String>,
    dry_run: bool,
}

async fn make_live(
    house: &House,
    who: &Who,
    action: &'static str,
    to: Compared,
    Word { reason: why, expect, dry_run }: Word,
) -> Result<Json<ConfigApplied>, Problem> {
    let reason = reason(&why, usize::from(!dry_run))?;
    let expect = expect.as_deref().map(version_of).transpose()?;
    let before = house.versions.live();
    let moved_on = |expected: VersionId, live: VersionId| {
        let (expected, live) = (shapes::version(expected), shapes::version(live));
        Problem::not_now(format!("{live} is live, and not {expected}: somebody was faster. Look again: clinch diff"))
    };
    if let Some(expected) = expect.filter(|expected| *expected != before) {
        return Err(moved_on(expected, before));
    }
    let files = to.files.clone();
    let from = Compared { name: format!("live {}", shapes::version(before)), files: files_of(house, before).await? };
    let jobs = in_flight(house).await?;
    let diff = difference(from, to, Some(&jobs)).map_err(|(side, flaws)| invalid(&side.files, &flaws))?;
    let hash = *files.version().as_bytes();
    let known = house.store.versions(VERSIONS_MAX).await?.into_iter().find(|row| row.hash == hash);
    let mut told = ConfigApplied {
        schema: "clinch.config.apply/v1".into(),
        before: shapes::version(before),
        version: known.map(|row| shapes::version(row.id)),
        changed: false,
        dry_run,
        diff,
    };
    if dry_run {
        fit(house, &files).map_err(|unfit| unfit_here(&files, unfit))?;
        return Ok(Json(told));
    }
    let record = who.record(reason, house.clock.now());
    match reload::apply(house, files.clone(), action, expect, record).await? {
        Applied::Live(version) => {
            told.changed = version != before;
            told.version = Some(shapes::version(version));
            Ok(Json(told))
        }
        Applied::Conflict(live) => Err(moved_on(expect.unwrap_or(before), live)),
        Applied::Unfit(unfit) => Err(unfit_here(&files, unfit)),
    }
}

fn unfit_here(files: &Files, unfit: Unfit) -> Problem {
    match unfit {
        Unfit::Problems(flaws) => invalid(files, &flaws),
        Unfit::Here(said) => Problem::config_invalid(format!("This node cannot run it: {said}.")),
    }
}
