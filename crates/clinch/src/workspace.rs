//! Workspaces on disk, and every version of them that some job still runs.

use clinch_core::config::{self, Files, Overrides, Problem, Workspace};
use clinch_core::live::{self, Live, LiveValue, Refused};
use clinch_store::{Read, VersionId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

/// Reads the files of a workspace directory. A file that cannot be read is an error; other files are not looked at.
pub fn read_files(directory: &Path) -> std::io::Result<Files> {
    if !directory.is_dir() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("{} is not a directory", directory.display()),
        ));
    }
    let mut files = Vec::new();
    for name in ["clinch.yml", "queues.yml", "policies.yml"] {
        if directory.join(name).is_file() {
            files.push((name.to_string(), read_text(&directory.join(name))?));
        }
    }
    for (folder, endings) in [
        ("flows", &[".yml", ".yaml"][..]),
        ("playbooks", &[".yml", ".yaml"]),
        ("workers", &[".yml", ".yaml"]),
        ("schemas", &[".json"]),
        ("templates", config::TEMPLATE_ENDINGS),
    ] {
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
    pub live: VersionId,
    /// As its files say. What is fixed when the house is built follows them alone.
    pub workspace: Arc<Workspace>,
    /// Where its files are. What scripts import from there is read when they run, whatever version they are of.
    pub directory: PathBuf,
    files: Files,
    now: RwLock<Arc<Now>>,
    older: Mutex<HashMap<VersionId, Arc<Workspace>>>,
}

/// What counts from one change of the live values to the next.
pub struct Now {
    pub workspace: Arc<Workspace>,
    pub warnings: Vec<Problem>,
    /// The live values, whether the live workspace has such a setting or an older one.
    values: Vec<LiveValue>,
    /// Those of them that count in the live workspace.
    over: Overrides,
    pub refused: Vec<Refused>,
}

impl Versions {
    pub fn new(
        live: VersionId,
        files: Files,
        (workspace, warnings): (Arc<Workspace>, Vec<Problem>),
        directory: PathBuf,
    ) -> Self {
        let (values, over, refused) = Default::default();
        let now = RwLock::new(Arc::new(Now { workspace: workspace.clone(), warnings, values, over, refused }));
        Versions { live, workspace, directory, files, now, older: Mutex::default() }
    }

    /// The live workspace as it counts now.
    pub fn now(&self) -> Arc<Workspace> {
        self.now.read().expect("nobody panics while changing it").workspace.clone()
    }

    pub fn state(&self) -> Arc<Now> {
        self.now.read().expect("nobody panics while changing it").clone()
    }

    /// From here on these values count. What is under way ends with those that it began with.
    pub fn follow<'v>(&self, values: impl IntoIterator<Item = &'v LiveValue>) {
        let values: Vec<LiveValue> = values.into_iter().cloned().collect();
        let before = self.state();
        if before.values == values {
            return;
        }
        // The files were read when the house was built.
        let Some(Live { workspace, warnings, over, refused }) = live::over(&self.files, &values) else { return };
        for Refused { name, why } in refused.iter().filter(|refused| !before.refused.contains(refused)) {
            tracing::warn!("the live value of {name} does not count: {why}");
        }
        let now = Arc::new(Now { workspace: Arc::new(workspace), warnings, values, over, refused });
        let mut older = self.older();
        *self.now.write().expect("nobody panics while changing it") = now;
        // They are read again when a job of them runs.
        older.clear();
    }

    /// How the live workspace would be if this were set, or set no more; or what is wrong with that. With its warnings.
    pub fn with(&self, name: &Arc<str>, value: Option<&str>) -> Result<(Workspace, Vec<Problem>), Vec<Problem>> {
        config::load_with(&self.files, &live::with(&self.state().over, name, value))
    }

    /// The workspace that a job runs; `None` when the store does not have it or it can no longer be read.
    pub async fn get(&self, version: VersionId, store: &dyn Read) -> clinch_store::Result<Option<Arc<Workspace>>> {
        if version == self.live {
            return Ok(Some(self.now()));
        }
        if let Some(known) = self.older().get(&version) {
            return Ok(Some(known.clone()));
        }
        let Some(json) = store.version_files(version).await? else {
            return Ok(None);
        };
        let now = self.state();
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
