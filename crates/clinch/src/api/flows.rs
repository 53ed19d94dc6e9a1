//! Flows, playbooks and schedules: what starts them, their steps, the workspaces in which they were live, and what is different
//! between two of these. Files are the source of truth; nothing is edited here.

use super::config::{ChangeShow, Compared, LiveBy, difference, in_flight, live_by};
use super::problem::Problem;
use super::query::Query;
use super::shapes::{self, Moment};
use crate::house::House;
use crate::masking::rules;
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use clinch_core::config::{Files, Version, Workspace};
use clinch_core::diff::{self, Line};
use clinch_core::worker::{Step, Worker};
use clinch_store::VersionId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::ToSchema;

/// So many of the newest workspaces are told.
pub(super) const VERSIONS_MAX: usize = 100;
/// What counts for all flows.
const SHARED: [&str; 3] = ["clinch.yml", "queues.yml", "policies.yml"];

/// `clinch.flows.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlowList {
    pub schema: String,
    /// The live workspace.
    pub version: String,
    pub flows: Vec<FlowRow>,
    /// The newest first.
    pub versions: Vec<VersionShow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowRow {
    pub name: String,
    /// flow, playbook, schedule
    pub kind: String,
    /// Its file, if it could be told.
    pub file: Option<String>,
    /// What starts it: routes, sources, types of events, a cron line.
    pub starts: Vec<String>,
    pub steps: usize,
    /// Unfinished jobs, of any version.
    pub unfinished: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionShow {
    /// v42
    pub version: String,
    /// The beginning of the hash of its files.
    pub hash: String,
    /// When it was live first.
    pub at: Moment,
    pub live: bool,
    /// Unfinished jobs that run it.
    pub unfinished: u64,
    /// Who made it live the last time, and why; null where that is too long ago.
    pub by: Option<LiveBy>,
}

/// `clinch.flows.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlowShow {
    pub schema: String,
    pub name: String,
    /// The workspace that is shown.
    pub version: String,
    pub kind: String,
    pub starts: Vec<String>,
    pub workers: Vec<WorkerShow>,
    pub versions: Vec<VersionShow>,
    /// Its own, and those of its workers.
    pub files: Vec<FileShow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerShow {
    pub name: String,
    pub queue: String,
    pub concurrency: usize,
    pub attempts_max: u32,
    pub dead_letters: Option<String>,
    pub steps: Vec<StepShow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepShow {
    pub name: String,
    /// http, sql, send, approval, parallel …
    pub does: String,
    /// Whom it calls.
    pub integration: Option<String>,
    /// Whether it has a condition, runs for each of a list, and is undone when its job gives up.
    pub conditional: bool,
    pub each: bool,
    pub compensated: bool,
    /// The policies over it.
    pub policies: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileShow {
    pub path: String,
    /// With what looks like a secret or somebody's address masked.
    pub text: String,
}

/// `clinch.flows.diff/v1`: what is different in the files of a flow, and in those that count for all.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlowDiff {
    pub schema: String,
    pub name: String,
    pub from: String,
    pub to: String,
    /// What it means, as far as these files say it; risks first.
    pub changes: Vec<ChangeShow>,
    /// Those that are not the same.
    pub files: Vec<FileDiff>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDiff {
    pub path: String,
    /// added, removed, changed
    pub change: String,
    /// All lines of both.
    pub lines: Vec<LineShow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LineShow {
    /// same, removed, added
    pub kind: String,
    pub from: Option<usize>,
    pub to: Option<usize>,
    pub text: String,
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<FlowList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let unfinished = house.store.unfinished().await?;
    let workspace = &house.versions.workspace();
    let files = files_of(&house, house.versions.live()).await?;
    let row = |(name, kind): (String, &'static str)| FlowRow {
        file: own_file(&files, &name),
        starts: starts(workspace, &name),
        steps: workers(workspace, &name).iter().map(|worker| worker.steps.len()).sum(),
        unfinished: unfinished.iter().filter(|(flow, ..)| **flow == *name).map(|(.., jobs)| jobs).sum(),
        kind: kind.into(),
        name,
    };
    Ok(Json(FlowList {
        schema: "clinch.flows.list/v1".into(),
        version: shapes::version(house.versions.live()),
        flows: named(workspace).into_iter().map(row).collect(),
        versions: versions(&house, |_| true, &unfinished).await?,
    }))
}

pub async fn show(
    State(house): State<House>,
    Path(name): Path<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<FlowShow>, Problem> {
    let query = Query::parse(raw.as_deref(), &["version"])?;
    let version = query.text("version").map_or(Ok(house.versions.live()), version_of)?;
    let workspace = house.versions.get(version, &*house.store).await?.ok_or_else(no_version)?;
    let Some((_, kind)) = named(&workspace).into_iter().find(|(known, _)| *known == name) else {
        let known: Vec<String> = named(&workspace).into_iter().map(|(name, _)| name).collect();
        let told = format!("There is no such flow in {}; it has {}.", shapes::version(version), known.join(", "));
        return Err(Problem::not_found(told));
    };
    let files = files_of(&house, version).await?;
    let own = related(&files, &workspace, &name);
    let file = |(path, text): &(String, String)| FileShow { path: path.clone(), text: masked(text) };
    let unfinished = house.store.unfinished().await?;
    Ok(Json(FlowShow {
        schema: "clinch.flows.show/v1".into(),
        version: shapes::version(version),
        kind: kind.into(),
        starts: starts(&workspace, &name),
        workers: workers(&workspace, &name).iter().map(|worker| worker_show(&workspace, worker)).collect(),
        versions: versions(&house, |flow| flow == name, &unfinished).await?,
        files: files.0.iter().filter(|(path, _)| own.contains(path)).map(file).collect(),
        name,
    }))
}

pub async fn compare(
    State(house): State<House>,
    Path(name): Path<String>,
    RawQuery(raw): RawQuery,
) -> Result<Json<FlowDiff>, Problem> {
    let query = Query::parse(raw.as_deref(), &["from", "to"])?;
    let asked = |field: &str| {
        let text =
            query.text(field).ok_or_else(|| Problem::bad_query(format!("{field}: write a version like v42.")))?;
        version_of(text)
    };
    let (from, to) = (asked("from")?, asked("to")?);
    let (old, new) = (files_of(&house, from).await?, files_of(&house, to).await?);
    let mut paths: BTreeSet<String> = SHARED.map(String::from).into();
    for (version, files) in [(from, &old), (to, &new)] {
        if let Some(workspace) = house.versions.get(version, &*house.store).await? {
            paths.extend(related(files, &workspace, &name));
        }
    }
    let files = paths.iter().filter_map(|path| file_diff(path, old.text(path), new.text(path))).collect();
    let jobs = in_flight(&house).await?;
    let side = |version: VersionId, files: Files| Compared { name: shapes::version(version), files };
    // One that this version cannot read any more has lines, and no meaning.
    let told = difference(side(from, old), side(to, new), Some(&jobs)).map_or_else(|_| Vec::new(), |told| told.changes);
    let is_here = |change: &ChangeShow| change.at.iter().chain(&change.was_at).any(|place| paths.contains(&place.file));
    Ok(Json(FlowDiff {
        schema: "clinch.flows.diff/v1".into(),
        from: shapes::version(from),
        to: shapes::version(to),
        changes: told.into_iter().filter(is_here).collect(),
        files,
        name,
    }))
}

pub(super) fn version_of(text: &str) -> Result<VersionId, Problem> {
    let number = text.strip_prefix('v').unwrap_or(text).parse().map(VersionId);
    number.map_err(|_| Problem::bad_query(format!("`{text}` is not a version; write one like v42.")))
}

fn no_version() -> Problem {
    Problem::not_found(
        "The store has no workspace of this version that can be read; `clinch flows ls` has them.".into(),
    )
}

pub(super) async fn files_of(house: &House, version: VersionId) -> Result<Files, Problem> {
    let json = house.store.version_files(version).await?.ok_or_else(no_version)?;
    Files::from_json(&json).map_err(|_| no_version())
}

/// Line by line: what is masked stays where it is.
fn masked(text: &str) -> String {
    text.lines().map(|line| rules().text(line)).collect::<Vec<_>>().join("\n")
}

pub(super) fn file_diff(path: &str, old: Option<&str>, new: Option<&str>) -> Option<FileDiff> {
    let change = match (old, new) {
        (None, None) => return None,
        (Some(old), Some(new)) if old == new => return None,
        (Some(_), Some(_)) => "changed",
        (None, Some(_)) => "added",
        (Some(_), None) => "removed",
    };
    let show = |line: &Line<'_>| match *line {
        Line::Same { old, new, text } => line_show("same", Some(old), Some(new), text),
        Line::Removed { old, text } => line_show("removed", Some(old), None, text),
        Line::Added { new, text } => line_show("added", None, Some(new), text),
    };
    let lines = diff::lines(old.unwrap_or_default(), new.unwrap_or_default()).iter().map(show).collect();
    Some(FileDiff { path: path.into(), change: change.into(), lines })
}

fn line_show(kind: &str, from: Option<usize>, to: Option<usize>, text: &str) -> LineShow {
    LineShow { kind: kind.into(), from, to, text: rules().text(text) }
}

/// All that runs, by name: flows, playbooks, schedules.
fn named(workspace: &Workspace) -> Vec<(String, &'static str)> {
    let kind = |name: &str| if workspace.playbook(name).is_some() { "playbook" } else { "flow" };
    let mut all: Vec<_> = workspace.flows.iter().map(|flow| (flow.name.clone(), kind(&flow.name))).collect();
    all.extend(workspace.schedules().map(|(worker, _)| (worker.name.clone(), "schedule")));
    all
}

/// Those that do its work.
fn workers<'a>(workspace: &'a Workspace, name: &str) -> Vec<&'a Worker> {
    let flow = workspace.flow(name);
    let is_fed = |worker: &&Worker| flow.is_some_and(|flow| flow.enqueue.iter().any(|to| to.queue == worker.queue()));
    let is_it = |worker: &&Worker| worker.schedule().is_some() && worker.name == name;
    workspace.workers.iter().filter(|worker| is_fed(worker) || is_it(worker)).collect()
}

fn starts(workspace: &Workspace, name: &str) -> Vec<String> {
    let mut starts = Vec::new();
    if let Some(flow) = workspace.flow(name) {
        starts.extend(flow.routes.iter().map(|route| format!("{} {}", route.method.word(), route.path)));
        starts.extend(flow.subscriptions.iter().map(|from| format!("source {}", from.source)));
    }
    if let Some((_, schedule)) = workspace.schedules().find(|(worker, _)| worker.name == name) {
        starts.push(format!("{} ({})", schedule.cron.text(), schedule.zone.name()));
    }
    starts
}

/// The file that says this name. Workspaces are read as a whole, and do not tell which of their files said what.
fn own_file(files: &Files, name: &str) -> Option<String> {
    ["flows/", "playbooks/", "workers/"].into_iter().find_map(|folder| file_in(files, folder, name))
}

fn file_in(files: &Files, folder: &str, name: &str) -> Option<String> {
    let says = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("name:"));
        line.is_some_and(|said| said.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']) == name)
    };
    let mut own = files.0.iter().filter(|(path, _)| path.starts_with(folder));
    own.find(|(_, text)| says(text)).map(|(path, _)| path.clone())
}

/// The files of a flow: its own, and those of its workers.
fn related(files: &Files, workspace: &Workspace, name: &str) -> BTreeSet<String> {
    let of_worker = |worker: &&Worker| file_in(files, "workers/", &worker.name);
    own_file(files, name).into_iter().chain(workers(workspace, name).iter().filter_map(of_worker)).collect()
}

fn worker_show(workspace: &Workspace, worker: &Worker) -> WorkerShow {
    WorkerShow {
        name: worker.name.clone(),
        queue: worker.queue().into(),
        concurrency: worker.concurrency,
        attempts_max: worker.retry.attempts_max.get(),
        dead_letters: worker.dead_letters.clone(),
        steps: worker.all_steps().map(|step| step_show(workspace, step)).collect(),
    }
}

fn step_show(workspace: &Workspace, step: &Step) -> StepShow {
    StepShow {
        name: step.name.to_string(),
        does: step.action.word().into(),
        integration: step.action.outward().map(|(partner, _)| partner.name.to_string()),
        conditional: step.when.is_some(),
        each: step.each.is_some(),
        compensated: step.compensate.is_some(),
        policies: workspace.policies_over(step).map(|policy| policy.name.to_string()).collect(),
    }
}

async fn versions(
    house: &House,
    counts: impl Fn(&str) -> bool,
    unfinished: &[(Arc<str>, VersionId, u64)],
) -> Result<Vec<VersionShow>, Problem> {
    let jobs = |id: VersionId| {
        let own = unfinished.iter().filter(|(flow, version, _)| *version == id && counts(flow));
        own.map(|(.., jobs)| jobs).sum()
    };
    let rows = house.store.versions(VERSIONS_MAX).await?;
    let by = live_by(house).await?;
    let told = |row: &clinch_store::read::VersionRow| VersionShow {
        version: shapes::version(row.id),
        hash: Version::from_bytes(row.hash).to_string(),
        at: Moment(row.at),
        live: row.id == house.versions.live(),
        unfinished: jobs(row.id),
        by: by.get(&row.id).cloned(),
    };
    Ok(rows.iter().map(told).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g3_the_file_of_a_flow_is_the_one_that_says_its_name() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let files = Files(vec![
            file("flows/a.yml", "version: 1\nname: orders # ours\n"),
            file("playbooks/b.yml", "name: 'cart'\nsteps:\n  - name: orders\n"),
            file("workers/c.yml", "name: nightly\n"),
        ]);
        let told = |name: &str| own_file(&files, name);
        assert_eq!(told("orders").as_deref(), Some("flows/a.yml"));
        assert_eq!(told("cart").as_deref(), Some("playbooks/b.yml"));
        assert_eq!(told("nightly").as_deref(), Some("workers/c.yml"));
        assert_eq!(told("other"), None);
    }

    #[test]
    fn g3_a_file_that_is_the_same_is_not_told() {
        assert_eq!(file_diff("x", Some("a"), Some("a")), None);
        assert_eq!(file_diff("x", None, None), None);
        let told = file_diff("x", Some("a\nb"), Some("a\nc")).expect("different");
        assert_eq!(told.change, "changed");
        let kinds: Vec<&str> = told.lines.iter().map(|line| line.kind.as_str()).collect();
        assert_eq!(kinds, ["same", "removed", "added"]);
        assert_eq!(file_diff("x", None, Some("a")).expect("new").change, "added");
    }
}
