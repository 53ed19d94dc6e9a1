//! Another workspace becomes live while clinch runs: an operator applied it, here or on another node; the files were read again
//! because somebody said so; or they changed and are watched. One that does not fit leaves the old one live, and that is said.

use crate::house::House;
use crate::roles::Roles;
use crate::secrets::Unread;
use crate::workspace::read_files;
use crate::{intake, masking, rehearsal, runtimes};
use clinch_core::audit::{Record, Who};
use clinch_core::config::{self, Encryption, Files, Problem, Severity, Workspace, position};
use clinch_core::time::Timestamp;
use clinch_store::{ActivateAsk, Activated, Activation, VersionId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How soon is known here what was made live elsewhere, and what was written into a file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What this node knows of its last reading.
pub struct Reload {
    pub roles: Roles,
    /// Whether its files are watched.
    watches: bool,
    /// Whether it has a workspace at all: a proxy has rules of its own.
    is_fixed: bool,
    refused: Mutex<Option<NotLive>>,
    /// Held by the one who makes something live.
    changing: tokio::sync::Mutex<()>,
}

/// A workspace that is not live though somebody meant it to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLive {
    pub said: String,
    pub since: Timestamp,
    /// What was read: the same is not told twice.
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Files(config::Version),
    Version(VersionId),
    Unread,
}

/// Why a workspace cannot be live on this node.
#[derive(Clone, Debug)]
pub enum Unfit {
    /// It has errors, or asks for what this version cannot do.
    Problems(Vec<Problem>),
    /// What it needs is not here, or cannot change while it runs.
    Here(String),
}

impl Unfit {
    fn told(&self, files: &Files) -> String {
        match self {
            Unfit::Here(said) => said.clone(),
            Unfit::Problems(problems) => {
                let told = |problem: &Problem| {
                    let (line, column) = position(files.text(&problem.file).unwrap_or_default(), problem.span.start);
                    format!("{}:{line}:{column}: {} [{}]", problem.file, problem.message, problem.code)
                };
                problems.iter().filter(|problem| problem.is_error()).map(told).collect::<Vec<_>>().join("; ")
            }
        }
    }
}

impl Reload {
    pub fn new(roles: Roles, watches: bool, is_fixed: bool) -> Reload {
        Reload { roles, watches, is_fixed, refused: Mutex::default(), changing: tokio::sync::Mutex::default() }
    }

    /// What is not live, if the last reading was refused.
    pub fn refused(&self) -> Option<NotLive> {
        self.refused.lock().expect("nobody panics while holding it").clone()
    }

    fn set(&self, refused: Option<NotLive>) -> Option<NotLive> {
        std::mem::replace(&mut *self.refused.lock().expect("nobody panics while holding it"), refused)
    }
}

/// A workspace without errors in which every step can be run, with its warnings.
pub fn checked(files: &Files) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
    let (workspace, warnings) = config::load(files)?;
    match workspace.refusals() {
        [] => Ok((workspace, warnings)),
        refusals => Err(refusals.to_vec()),
    }
}

/// The workspace, if this node can run it as it is: its secrets are there, its runtimes and databases of addresses too.
pub fn fit(house: &House, files: &Files) -> Result<Workspace, Unfit> {
    let (mut workspace, _) = checked(files).map_err(Unfit::Problems)?;
    if house.detour.is_some() {
        rehearsal::keep_inside(&mut workspace);
    }
    let roles = house.reload.roles;
    let missing = if roles.worker { runtimes::missing(&workspace, Severity::Error) } else { Vec::new() };
    if !missing.is_empty() {
        return Err(Unfit::Problems(missing));
    }
    if roles.worker {
        house.geoip.hold(workspace.geoip_files()).map_err(Unfit::Here)?;
    }
    if roles.intake && house.versions.workspace().settings.kv != workspace.settings.kv {
        return Err(Unfit::Here(
            "`kv:` of clinch.yml cannot change while clinch runs: restart the nodes with these files".into(),
        ));
    }
    house
        .secrets
        .hold(secrets_of(&workspace, roles))
        .map_err(|unread| Unfit::Here(unread_secrets(&workspace, &unread)))?;
    if roles.intake {
        intake::credentials(&workspace.sources, &house.secrets).map_err(Unfit::Here)?;
    }
    Ok(workspace)
}

/// The names of the secrets that a node with these roles needs.
pub fn secrets_of(workspace: &Workspace, roles: Roles) -> BTreeSet<&str> {
    let sources = if roles.intake { &workspace.sources[..] } else { &[] };
    let of_sources = sources.iter().flat_map(|source| source.variables());
    let of_steps = workspace.secrets.iter().map(String::as_str);
    let of_store = workspace.settings.encryption.iter().flat_map(Encryption::secrets);
    let of_buttons =
        workspace.settings.approvals.iter().filter(|_| roles.intake).map(|slack| slack.signing_secret.as_str());
    let of_log_ins =
        workspace.settings.oidc.iter().filter(|_| roles.admin).filter_map(|oidc| oidc.client_secret.as_deref());
    of_steps.chain(of_sources).chain(of_store).chain(of_buttons).chain(of_log_ins).collect()
}

/// Which of them cannot be had, why, who needs them, and what to do. Never a value.
pub fn unread_secrets(workspace: &Workspace, unread: &BTreeMap<String, Unread>) -> String {
    let source = |name: &str| {
        let needs = workspace.sources.iter().find(|source| source.variables().any(|variable| variable == name));
        needs.map(|source| source.name.as_str())
    };
    let of_store: Vec<&str> = workspace.settings.encryption.iter().flat_map(Encryption::secrets).collect();
    let told = |(name, why): (&String, &Unread)| match source(name) {
        Some(source) => format!("{name} (source `{source}`): {why}"),
        None if of_store.contains(&name.as_str()) => format!("{name} (encryption): {why}"),
        None => format!("{name}: {why}"),
    };
    let names: Vec<String> = unread.iter().map(told).collect();
    format!(
        "these secrets cannot be used: {}; for each NAME set the environment variable NAME_FILE to a file that only you may read, \
         give systemd a credential NAME, or set the variable NAME (values are never printed)",
        names.join("; ")
    )
}

/// What came of an operator's word.
pub enum Applied {
    Live(VersionId),
    Conflict(VersionId),
    Unfit(Unfit),
}

/// An operator makes these files live: here at once, elsewhere within a moment. Nothing is written if they do not fit here.
pub async fn apply(
    house: &House,
    files: Files,
    action: &'static str,
    expect: Option<VersionId>,
    record: Record,
) -> clinch_store::Result<Applied> {
    if house.reload.is_fixed {
        let said = "this process is a proxy: its rules are its flags, and it has no workspace".into();
        return Ok(Applied::Unfit(Unfit::Here(said)));
    }
    let _changing = house.reload.changing.lock().await;
    let workspace = match fit(house, &files) {
        Ok(workspace) => workspace,
        Err(unfit) => return Ok(Applied::Unfit(unfit)),
    };
    let by = Activation::Operator { action, expect };
    let ask = ActivateAsk { hash: *files.version().as_bytes(), files: files.to_json(), by, record };
    match house.store.activate(ask).await? {
        Activated::Live(version) => {
            adopt(house, version, files, workspace);
            Ok(Applied::Live(version))
        }
        Activated::Conflict(live) => Ok(Applied::Conflict(live)),
        Activated::Kept { .. } => unreachable!("an operator's word is not kept back"),
    }
}

/// From here on it is live on this node.
fn adopt(house: &House, version: VersionId, files: Files, workspace: Workspace) {
    let before = house.versions.live();
    house.reload.set(None);
    let hash = files.version().to_string();
    if before != version {
        let workspace = Arc::new(workspace);
        masking::follow(&workspace.settings.masking);
        house.metrics.begin(&workspace);
        house.rejections.follow(workspace.sources.iter().map(|source| source.name.as_str()));
        house.versions.adopt(version, files, workspace);
        tracing::info!("v{} ({hash}) is live; jobs in flight keep the version that they were accepted with", version.0);
    }
    house.metrics.config_live(&format!("v{}", version.0), &hash, house.clock.now());
}

/// It stays as it was, and that is said once for what was read.
fn refuse(house: &House, what: What, said: String) {
    house.metrics.config_refused();
    let now = house.clock.now();
    let before = house.reload.refused();
    let since = before.as_ref().filter(|before| before.what == what).map_or(now, |before| before.since);
    if before.is_none_or(|before| before.what != what || before.said != said) {
        let live = house.versions.live();
        tracing::error!("v{} stays live: the workspace that was read last cannot be: {said}", live.0);
    }
    house.reload.set(Some(NotLive { said, since, what }));
}

/// Follows what is live until the house is left.
pub fn run(house: House) -> impl Future<Output = ()> {
    // From here on, not from the first poll: whoever knows that we run may send one.
    let mut hangup = signal(SignalKind::hangup()).expect("signals can be listened for");
    async move {
        let mut seen = read_files(&house.versions.directory).map(|files| files.version()).ok();
        loop {
            tokio::select! {
                () = house.stop.cancelled() => return,
                _ = hangup.recv() => {
                    read_again(&house, "SIGHUP: the files were read again").await;
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    follow(&house).await;
                    if house.reload.watches {
                        watch(&house, &mut seen).await;
                    }
                }
            }
        }
    }
}

/// Takes what is live by the store, if it is another.
async fn follow(house: &House) {
    let _changing = house.reload.changing.lock().await;
    let live = match house.store.live_version().await {
        Ok(Some(live)) if live != house.versions.live() => live,
        Ok(_) => return forgive(house),
        Err(error) => return tracing::debug!("which workspace is live could not be read: {error}"),
    };
    let files = match house.store.version_files(live).await {
        Ok(files) => files.and_then(|json| Files::from_json(&json).ok()),
        Err(error) => return tracing::debug!("the live workspace could not be read: {error}"),
    };
    let Some(files) = files else {
        return refuse(
            house,
            What::Version(live),
            format!("v{} is live, and the store does not have its files", live.0),
        );
    };
    match fit(house, &files) {
        Ok(workspace) => adopt(house, live, files, workspace),
        Err(unfit) => {
            let said = format!("v{} is live, and this node cannot run it: {}", live.0, unfit.told(&files));
            refuse(house, What::Version(live), said);
        }
    }
}

/// What this node could not run is live no more: what it runs is.
fn forgive(house: &House) {
    if house.reload.refused().is_some_and(|refused| matches!(refused.what, What::Version(_))) {
        house.metrics.config_forgiven();
        house.reload.set(None);
        tracing::info!("v{} is what is live again, here as elsewhere", house.versions.live().0);
    }
}

/// Looks whether the files have changed, and waits until nobody writes into them any more.
async fn watch(house: &House, seen: &mut Option<config::Version>) {
    let now = read_files(&house.versions.directory).map(|files| files.version()).ok();
    if now == *seen {
        return;
    }
    let before = std::mem::replace(seen, now);
    tokio::time::sleep(LOOK_EVERY / 4).await;
    let later = read_files(&house.versions.directory).map(|files| files.version()).ok();
    // One that is being written is looked at again at the next look, and one that the store could not be told of.
    if later != now || !read_again(house, "a file of the workspace was changed").await {
        *seen = before;
    }
}

/// Reads the files again; what nobody has seen becomes live. False: the store could not be asked.
async fn read_again(house: &House, why: &str) -> bool {
    let _changing = house.reload.changing.lock().await;
    let files = match read_files(&house.versions.directory) {
        Ok(files) if !files.0.is_empty() => files,
        Ok(_) => {
            refuse(house, What::Unread, "there is no workspace any more in its directory".into());
            return true;
        }
        Err(error) => {
            refuse(house, What::Unread, format!("its files cannot be read: {error}"));
            return true;
        }
    };
    let what = What::Files(files.version());
    let workspace = match fit(house, &files) {
        Ok(workspace) => workspace,
        Err(unfit) => {
            refuse(house, what, unfit.told(&files));
            return true;
        }
    };
    let record = Who::clinch("files").record(why, house.clock.now());
    let (hash, text) = (*files.version().as_bytes(), files.to_json());
    match house.store.activate(ActivateAsk { hash, files: text, by: Activation::Files, record }).await {
        Ok(Activated::Live(version)) => adopt(house, version, files, workspace),
        Ok(Activated::Kept { live, files: own }) => {
            house.reload.set(None);
            house.metrics.config_forgiven();
            tracing::warn!("{}", kept(live, own, &house.versions.directory.display().to_string()));
        }
        Ok(Activated::Conflict(_)) => unreachable!("nothing was expected"),
        Err(error) => {
            refuse(house, what, format!("the store could not be asked: {error}"));
            return false;
        }
    }
    true
}

/// That an operator's choice stays, and what to do.
pub fn kept(live: VersionId, files: VersionId, directory: &str) -> String {
    format!(
        "v{} stays live, because an operator chose it; the files in {directory} are v{}, which is older. To go back to them: \
         clinch apply {directory} --reason '…'; else bring the files up to v{}",
        live.0, files.0, live.0
    )
}
