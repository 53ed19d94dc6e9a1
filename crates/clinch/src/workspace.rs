//! Workspaces on disk, and every version of them that some job still runs.

use clinch_core::config::{self, Files, Problem, Workspace};
use clinch_store::{Read, VersionId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

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

/// The live workspace, and older ones that jobs were accepted with.
pub struct Versions {
    pub live: VersionId,
    pub workspace: Arc<Workspace>,
    /// Where its files are. What scripts import from there is read when they run, whatever version they are of.
    pub directory: PathBuf,
    older: Mutex<HashMap<VersionId, Arc<Workspace>>>,
}

impl Versions {
    pub fn new(live: VersionId, workspace: Arc<Workspace>, directory: PathBuf) -> Self {
        Versions { live, workspace, directory, older: Mutex::default() }
    }

    /// The workspace that a job runs; `None` when the store does not have it or it can no longer be read.
    pub async fn get(&self, version: VersionId, store: &dyn Read) -> clinch_store::Result<Option<Arc<Workspace>>> {
        if version == self.live {
            return Ok(Some(self.workspace.clone()));
        }
        if let Some(known) = self.older().get(&version) {
            return Ok(Some(known.clone()));
        }
        let Some(json) = store.version_files(version).await? else {
            return Ok(None);
        };
        let loaded: Result<_, Vec<Problem>> =
            Files::from_json(&json).map_or(Err(Vec::new()), |files| config::load(&files));
        let Ok((workspace, _)) = loaded else { return Ok(None) };
        let workspace = Arc::new(workspace);
        self.older().insert(version, workspace.clone());
        Ok(Some(workspace))
    }

    fn older(&self) -> std::sync::MutexGuard<'_, HashMap<VersionId, Arc<Workspace>>> {
        self.older.lock().expect("nobody panics while holding the versions")
    }
}
