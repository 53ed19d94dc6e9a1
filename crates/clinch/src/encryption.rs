//! The keys of this installation: where they come from, and how a new one comes in.
//!
//! Said in `clinch.yml` they are secrets like others, or in a key file: one key per line, the first writes, the others only
//! read. With nothing said an embedded store has such a file beside it, which is made if need be.

use crate::clock;
use crate::secrets::Secrets;
use clinch_core::config::Encryption;
use clinch_core::seal::{KeyId, KeyRing};
use data_encoding::HEXLOWER;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the key file, beside an embedded store.
pub const KEY_FILE: &str = "encryption.key";
/// What is said of a store that nodes share and that nobody gave a key.
pub const UNSAID: &str = "nothing is encrypted at rest; make a key with `openssl rand -hex 32`, set it as a secret on every node, and \
                          name it in clinch.yml: `encryption: {key: '${secrets.NAME}'}`; or say `encryption: none`";

#[derive(Clone)]
pub enum Keys {
    /// Nothing is encrypted, because the operator said so.
    Nothing,
    /// Nothing is encrypted: nodes must share a key, so none can be made for them, and none was given.
    Unsaid,
    /// From the secrets that `clinch.yml` names.
    Configured(KeyRing),
    File {
        path: PathBuf,
        made: Made,
    },
}

/// What we have to do with a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It is shared by nodes: people change it, on all of them.
    ByOthers,
    /// It is ours to change.
    Before,
    Now,
}

impl Keys {
    /// What `clinch.yml` says; `None` where nothing is said and the store may have a key file beside it.
    pub fn asked_for(asked: Option<&Encryption>, secrets: &Secrets, is_shared: bool) -> Result<Option<Keys>, String> {
        let made = if is_shared { Made::ByOthers } else { Made::Before };
        let read = |name: &String| secrets.get(name).unwrap_or_default();
        let keys = match asked {
            None if is_shared => Keys::Unsaid,
            None => return Ok(None),
            Some(Encryption::None) => Keys::Nothing,
            Some(Encryption::File(path)) => Keys::File { path: path.into(), made },
            Some(Encryption::Keys { key, older }) => {
                Keys::Configured(ring(&read(key), &older.iter().map(read).collect::<Vec<_>>())?)
            }
        };
        // Said before anything is opened.
        keys.ring()?;
        Ok(Some(keys))
    }

    /// Of a store in this directory, which has envelopes of the keys that are `known`. A key file that is not there is made,
    /// but not where one is missing.
    pub fn beside(directory: &Path, known: &[KeyId]) -> Result<Keys, String> {
        let path = directory.join(KEY_FILE);
        if path.exists() {
            return Ok(Keys::File { path, made: Made::Before });
        }
        if let Some(key) = known.first() {
            return Err(format!(
                "{} is not there, and the store has data under {key}; put the file back, or say in clinch.yml where it is: \
                 `encryption: {{file: PATH}}` or `encryption: {{key: '${{secrets.NAME}}'}}`",
                path.display()
            ));
        }
        make(&path).map_err(|error| error.to_string())?;
        Ok(Keys::File { path, made: Made::Now })
    }

    /// What the store is opened with.
    pub fn ring(&self) -> Result<Option<KeyRing>, String> {
        match self {
            Keys::Nothing | Keys::Unsaid => Ok(None),
            Keys::Configured(ring) => Ok(Some(ring.clone())),
            Keys::File { path, .. } => read(path).map_err(|error| error.to_string()).map(Some),
        }
    }

    /// A new key that writes from now on, where we may make one: it is on disk before anything is written with it.
    pub fn renewed(&self) -> io::Result<Option<KeyRing>> {
        let Keys::File { path, made: Made::Before | Made::Now } = self else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| named(path, &error))?;
        let aside = path.with_extension("key.new");
        write_new(&aside, &format!("{}\n{text}", new_key()))?;
        std::fs::rename(&aside, path).map_err(|error| named(path, &error))?;
        sync_directory(path)?;
        read(path).map(Some)
    }
}

/// The keys of a key file, which only its owner may read.
pub fn read(path: &Path) -> io::Result<KeyRing> {
    let mode = std::fs::metadata(path).map_err(|error| named(path, &error))?.mode();
    if mode & 0o077 != 0 {
        let said = format!("{0}: others may read the encryption key; run `chmod 600 {0}`", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
    }
    let text = std::fs::read_to_string(path).map_err(|error| named(path, &error))?;
    let mut keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let key = keys.next().unwrap_or_default();
    let older: Vec<String> = keys.map(String::from).collect();
    ring(key, &older).map_err(|said| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {said}", path.display())))
}

fn ring(key: &str, older: &[String]) -> Result<KeyRing, String> {
    let older: Vec<&str> = older.iter().map(String::as_str).collect();
    KeyRing::new(key, &older).map_err(|error| error.to_string())
}

fn make(path: &Path) -> io::Result<()> {
    let about = "# Encrypts this store. Keep a copy elsewhere: without it nothing can be read.\n\
                 # One key per line; the first writes, the others only read.\n";
    write_new(path, &format!("{about}{}\n", new_key()))?;
    sync_directory(path)
}

fn new_key() -> String {
    HEXLOWER.encode(&clock::secret_bytes())
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    // What an interrupted run left is nobody's key.
    let _ = std::fs::remove_file(path.with_extension("key.new"));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| named(path, &error))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| named(directory, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn no_secrets() -> Secrets {
        Secrets::read([], |_| None).expect("none are needed")
    }

    #[test]
    fn k2_a_key_is_made_once_and_kept_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Keys::beside(dir.path(), &[]).expect("made").ring().expect("read").expect("a key");
        let again = Keys::beside(dir.path(), &[first.active()]).expect("there").ring().expect("read").expect("a key");
        assert_eq!(first.active(), again.active());
        let path = dir.path().join(KEY_FILE);
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("changed");
        let said = Keys::beside(dir.path(), &[]).expect("there").ring().expect_err("others may read it");
        assert!(said.contains("chmod 600"), "{said}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).expect("changed");
        assert!(Keys::beside(dir.path(), &[]).expect("there").ring().is_ok());
    }

    #[test]
    fn t106_a_key_file_that_is_missing_is_not_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let known = KeyRing::new(&new_key(), &[]).expect("a key").active();
        let said = Keys::beside(dir.path(), &[known]).err().expect("refused");
        assert!(said.contains(&known.to_string()) && said.contains("put the file back"), "{said}");
        assert!(!dir.path().join(KEY_FILE).exists());
    }

    #[test]
    fn t106_a_new_key_stands_before_the_old_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let keys = Keys::beside(dir.path(), &[]).expect("made");
        let old = keys.ring().expect("read").expect("a key").active();
        let new = keys.renewed().expect("written").expect("a key");
        assert_ne!(new.active(), old);
        assert_eq!(new.ids().collect::<Vec<_>>(), [new.active(), old]);
        assert_eq!(keys.ring().expect("read").expect("a key").active(), new.active());
        assert_eq!(std::fs::metadata(dir.path().join(KEY_FILE)).expect("there").mode() & 0o777, 0o600);
        std::fs::write(dir.path().join(KEY_FILE), "hunter2").expect("written");
        let said = keys.ring().expect_err("no key");
        assert!(said.contains("64 hex digits") && !said.contains("hunter2"), "{said}");
    }

    #[test]
    fn k2_no_key_is_made_for_a_store_that_nodes_share() {
        let unsaid = Keys::asked_for(None, &no_secrets(), true).expect("answered").expect("said");
        assert!(matches!(unsaid, Keys::Unsaid) && unsaid.ring().expect("none").is_none());
        assert!(Keys::asked_for(None, &no_secrets(), false).expect("answered").is_none());
        let none = Keys::asked_for(Some(&Encryption::None), &no_secrets(), true).expect("said").expect("said");
        assert!(none.ring().expect("none").is_none());
    }
}
