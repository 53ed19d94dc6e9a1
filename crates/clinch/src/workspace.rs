//! Workspaces on disk, and every version of them that some job still runs.

use clinch_core::config::{self, Files, Overrides, Problem, Workspace};
use clinch_core::live::{self, Live, LiveValue, Refused};
use clinch_store::{Read, VersionId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The files that a workspace has at its root.
pub const ROOT_FILES: [&str; 3] = ["clinch.yml", "queues.yml", "policies.yml"];
/// Its folders, and how the names of files end that are looked at there.
pub const FOLDERS: [(&str, &[&str]); 5] = [
    ("flows", &[".yml", ".yaml"]),
    ("playbooks", &[".yml", ".yaml"]),
    ("workers", &[".yml", ".yaml"]),
    ("schemas", &[".json"]),
    ("templates", config::TEMPLATE_ENDINGS),
];

/// Reads the files of a workspace directory. A file that cannot be read is an error; other files are not looked at.
pub fn read_files(directory: &Path) -> std::io::Result<Files> {
    if !directory.is_dir() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("{} is not a directory", directory.display()),
        ));
    }
    let mut files = Vec::new();
    for name in ROOT_FILES {
        if directory.join(name).is_file() {
            files.push((name.to_string(), read_text(&directory.join(name))?));
        }
    }
    for (folder, endings) in FOLDERS {
        if !directory.join(folder).is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(directory.join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if endings.iter().any(|ending| name.ends_with(ending)) {
                files.push((format!("{folder}/{name}"), read_text(&directory.join(folder).join(&name))?));
            }
        }
    }
    files.sort();
    Ok(Files(files))
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let named = |error: String| std::io::Error::other(format!("{}: {error}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| named("it is not UTF-8 text".into()))
}

/// The live workspace, and older ones that jobs were accepted with; all of them with what operators have set over their files.
pub struct Versions {
    /// Where its files are. What scripts import from there is read when they run, whatever version they are of.
    pub directory: PathBuf,
    now: watch::Sender<Arc<Now>>,
    older: Mutex<HashMap<VersionId, Arc<Workspace>>>,
    /// Held by the one who changes something: what was changed last is what counts.
    changing: Mutex<()>,
}

/// What counts from one change to the next: of the live values, or of the workspace itself.
pub struct Now {
    pub live: VersionId,
    pub files: Files,
    /// As its files say.
    pub plain: Arc<Workspace>,
    /// The same, with what is set over it.
    pub workspace: Arc<Workspace>,
    pub warnings: Vec<Problem>,
    /// The live values, whether the live workspace has such a setting or an older one.
    values: Vec<LiveValue>,
    /// Those of them that count in the live workspace.
    over: Overrides,
    pub refused: Vec<Refused>,
}

impl Now {
    /// `None`: the files cannot be read.
    fn of(live: VersionId, files: Files, plain: Arc<Workspace>, values: Vec<LiveValue>) -> Option<Now> {
        let Live { workspace, warnings, over, refused } = live::over(&files, &values)?;
        Some(Now { live, files, plain, workspace: Arc::new(workspace), warnings, values, over, refused })
    }
}

impl Versions {
    pub fn new(
        live: VersionId,
        files: Files,
        (workspace, warnings): (Arc<Workspace>, Vec<Problem>),
        directory: PathBuf,
    ) -> Self {
        let (values, over, refused) = Default::default();
        let now = Now { live, files, plain: workspace.clone(), workspace, warnings, values, over, refused };
        Versions {
            directory,
            now: watch::Sender::new(Arc::new(now)),
            older: Mutex::default(),
            changing: Mutex::default(),
        }
    }

    /// Which one is live.
    pub fn live(&self) -> VersionId {
        self.now.borrow().live
    }

    /// The live workspace as its files say.
    pub fn workspace(&self) -> Arc<Workspace> {
        self.now.borrow().plain.clone()
    }

    /// The live workspace as it counts now.
    pub fn now(&self) -> Arc<Workspace> {
        self.now.borrow().workspace.clone()
    }

    pub fn state(&self) -> Arc<Now> {
        self.now.borrow().clone()
    }

    /// For whoever follows what is live.
    pub fn changes(&self) -> watch::Receiver<Arc<Now>> {
        self.now.subscribe()
    }

    /// From here on these values count. What is under way ends with those that it began with.
    pub fn follow<'v>(&self, values: impl IntoIterator<Item = &'v LiveValue>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let values: Vec<LiveValue> = values.into_iter().cloned().collect();
        let before = self.state();
        if before.values == values {
            return;
        }
        // The files were read before.
        if let Some(now) = Now::of(before.live, before.files.clone(), before.plain.clone(), values) {
            self.replace(&before, now);
        }
    }

    /// From here on this workspace is live: new events are of it. Jobs in flight keep theirs.
    pub fn adopt(&self, live: VersionId, files: Files, workspace: Arc<Workspace>) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.state();
        // It was checked by the one who wants it.
        if let Some(now) = Now::of(live, files, workspace, before.values.clone()) {
            self.replace(&before, now);
        }
    }

    fn replace(&self, before: &Now, now: Now) {
        for Refused { name, why } in now.refused.iter().filter(|refused| !before.refused.contains(refused)) {
            tracing::warn!("the live value of {name} does not count: {why}");
        }
        let mut older = self.older();
        self.now.send_replace(Arc::new(now));
        // They are read again when a job of them runs.
        older.clear();
    }

    /// How the live workspace would be if this were set, or set no more; or what is wrong with that. With its warnings.
    pub fn with(&self, name: &Arc<str>, value: Option<&str>) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
        let state = self.state();
        config::load_with(&state.files, &live::with(&state.over, name, value))
    }

    /// The workspace that a job runs; `None` when the store does not have it or it can no longer be read.
    pub async fn get(&self, version: VersionId, store: &dyn Read) -> clinch_store::Result<Option<Arc<Workspace>>> {
        let now = self.state();
        if version == now.live {
            return Ok(Some(now.workspace.clone()));
        }
        if let Some(known) = self.older().get(&version) {
            return Ok(Some(known.clone()));
        }
        let Some(json) = store.version_files(version).await? else {
            return Ok(None);
        };
        let loaded = Files::from_json(&json).ok().and_then(|files| live::over(&files, &now.values));
        let Some(Live { workspace, .. }) = loaded else { return Ok(None) };
        let workspace = Arc::new(workspace);
        let mut older = self.older();
        // Something may have been set meanwhile: then it is read again by the next who asks.
        if Arc::ptr_eq(&now, &self.state()) {
            older.insert(version, workspace.clone());
        }
        Ok(Some(workspace))
    }

    fn older(&self) -> std::sync::MutexGuard<'_, HashMap<VersionId, Arc<Workspace>>> {
        self.older.lock().expect("nobody panics while holding the versions")
    }
}
