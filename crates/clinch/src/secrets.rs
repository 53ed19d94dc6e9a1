//! Secrets: from a file that `NAME_FILE` names, from a systemd credential, or from the environment variable `NAME`. They are
//! shown to steps that name them and to nobody else. Those in files are read again when we are told to.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

/// No key or token is longer; what is, is another file.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Where systemd puts the credentials of a service.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a secret cannot be had. Never shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    #[error("it is not set")]
    NotSet,
    #[error("both the variable and its _FILE are set; keep one of them")]
    Both,
    #[error("{} cannot be read: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("others may look into {} (mode {mode:04o}); run `chmod 600` on it", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{} is empty", .0.display())]
    Empty(PathBuf),
}

/// A secret that was read at least once.
struct Held {
    value: String,
    /// What went wrong when it was last read. The value before stays for jobs under way; nobody is let in with it.
    fault: Option<Unread>,
    /// Nobody gave it: it was made up, and is nowhere to be read again.
    is_stand_in: bool,
}

/// What a secret is that nobody gave, by its name.
type StandIn = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub struct Secrets {
    held: Mutex<BTreeMap<String, Held>>,
    /// Told whenever they were read again.
    readings: watch::Sender<u64>,
    /// In a rehearsal: what a secret is that nobody gave.
    stand_in: StandIn,
}

/// A text without these. The longest first: one may be a part of another. In an address they may be written with percents.
pub fn hide(text: &str, secrets: impl IntoIterator<Item = String>) -> String {
    let secrets = secrets.into_iter().filter(|secret| !secret.is_empty());
    let mut secrets: Vec<String> =
        secrets.flat_map(|secret| [form_urlencoded::byte_serialize(secret.as_bytes()).collect(), secret]).collect();
    secrets.sort_unstable_by_key(|secret| Reverse(secret.len()));
    secrets.iter().fold(text.to_string(), |text, secret| text.replace(secret, "***"))
}

impl Secrets {
    /// Reads every name that nothing stands in for; says which cannot be had, and why.
    pub fn read<'a>(
        names: impl IntoIterator<Item = &'a str>,
        stand_in: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Secrets, BTreeMap<String, Unread>> {
        let secrets = Secrets { held: Mutex::default(), readings: watch::Sender::new(0), stand_in: Box::new(stand_in) };
        secrets.hold(names)?;
        Ok(secrets)
    }

    /// Reads these too, from now on; or, if one of them cannot be had, none.
    pub fn hold<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), BTreeMap<String, Unread>> {
        let mut held = self.held();
        let (mut more, mut unread) = (Vec::new(), BTreeMap::new());
        for name in names.into_iter().filter(|name| !held.contains_key(*name)) {
            match (self.stand_in)(name)
                .map_or_else(|| read(name).map(|value| (value, false)), |value| Ok((value, true)))
            {
                Ok((value, is_stand_in)) => more.push((name.to_string(), Held { value, fault: None, is_stand_in })),
                Err(why) => drop(unread.insert(name.to_string(), why)),
            }
        }
        if !unread.is_empty() {
            return Err(unread);
        }
        held.extend(more);
        Ok(())
    }

    /// A text without any that is held.
    pub fn hidden(&self, text: &str) -> String {
        let held: Vec<String> = self.held().values().map(|held| held.value.clone()).collect();
        hide(text, held)
    }

    /// For a step. A job that was accepted with an older workspace may name one that the live workspace no longer has.
    pub fn get(&self, name: &str) -> Option<String> {
        self.held().get(name).map(|held| held.value.clone()).or_else(|| read(name).ok())
    }

    /// For the proof of a sender, which must not be had with what is no longer there.
    pub fn current(&self, name: &str) -> Result<String, Unread> {
        match self.held().get(name) {
            Some(Held { fault: Some(fault), .. }) => Err(fault.clone()),
            Some(Held { value, .. }) => Ok(value.clone()),
            None => read(name),
        }
    }

    /// How many come from the environment, where more people can see them than in a file.
    pub fn in_environment(&self) -> usize {
        self.held().keys().filter(|name| matches!(place(name), Ok(Place::Environment(_)))).count()
    }

    /// Reads all of them again and tells whoever waits for that.
    pub fn read_again(&self) {
        let mut changed = 0;
        for (name, held) in self.held().iter_mut().filter(|(_, held)| !held.is_stand_in) {
            match read(name) {
                Ok(value) => {
                    changed += u32::from(held.value != value || held.fault.is_some());
                    *held = Held { value, fault: None, is_stand_in: false };
                }
                Err(why) => {
                    tracing::error!("secret {name}: {why}; sources that are verified with it answer 503");
                    held.fault = Some(why);
                }
            }
        }
        tracing::info!("secrets were read again; {changed} changed");
        self.readings.send_modify(|readings| *readings += 1);
    }

    /// Changes when they were read again.
    pub fn readings(&self) -> watch::Receiver<u64> {
        self.readings.subscribe()
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().expect("nobody panics while holding the secrets")
    }
}

/// Reads them again whenever the process gets a SIGHUP.
pub fn read_on_hangup(secrets: Arc<Secrets>, stop: CancellationToken) -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    // From here on, not from the first poll: whoever knows that we run may send one.
    let mut hangup = signal(SignalKind::hangup()).expect("signals can be listened for");
    async move {
        loop {
            tokio::select! {
                _ = hangup.recv() => secrets.read_again(),
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Where a secret is.
enum Place {
    Environment(String),
    File(PathBuf),
    /// A file whose directory systemd keeps from others; it lets the service in as a member of a group.
    Credential(PathBuf),
}

/// Whether somebody has given it, whether or not it can be read.
pub fn is_given(name: &str) -> bool {
    !matches!(place(name), Err(Unread::NotSet))
}

fn place(name: &str) -> Result<Place, Unread> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (variable(name), variable(&format!("{name}_FILE"))) {
        (Some(_), Some(_)) => Err(Unread::Both),
        (None, Some(path)) => Ok(Place::File(path.into())),
        (Some(value), None) => Ok(Place::Environment(value)),
        (None, None) => {
            let credential = variable(CREDENTIALS).map(|directory| Path::new(&directory).join(name));
            credential.filter(|path| path.exists()).map(Place::Credential).ok_or(Unread::NotSet)
        }
    }
}

fn read(name: &str) -> Result<String, Unread> {
    match place(name)? {
        Place::Environment(value) => Ok(value),
        Place::File(path) => read_file(path, 0o077),
        Place::Credential(path) => read_file(path, 0o007),
    }
}

/// The text of a file that nobody else may look into. One line break at its end came with writing it, and is no part of it.
fn read_file(path: PathBuf, closed: u32) -> Result<String, Unread> {
    let failed = |why: String| Unread::File { path: path.clone(), why };
    let file = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
    if !metadata.is_file() {
        return Err(failed("it is not a file".into()));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & closed != 0 {
        return Err(Unread::Open { path, mode });
    }
    let mut text = String::new();
    // The error of a text that is no UTF-8 says so and shows none of it.
    let length = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(failed(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() { Err(Unread::Empty(path)) } else { Ok(text) }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} names)", self.held().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        (directory, path)
    }

    fn check(text: &[u8], mode: u32, closed: u32, wanted: Result<&str, &str>) {
        let (_directory, path) = file(text, mode);
        let told =
            read_file(path.clone(), closed).map_err(|why| why.to_string().replace(&*path.to_string_lossy(), "F"));
        assert_eq!(told.as_deref().map_err(String::as_str), wanted, "{text:?} {mode:o}");
    }

    #[test]
    fn p9_no_part_of_a_secret_is_left_in_a_text() {
        let secrets = ["canary", "canary of/a:secret"].map(String::from);
        for text in ["bot/canary of/a:secret/send", "bot/canary+of%2Fa%3Asecret/send", "bot/canary/send"] {
            assert_eq!(hide(text, secrets.clone()), "bot/***/send", "{text}");
        }
        assert_eq!(hide("nothing", [String::new()]), "nothing");
    }

    #[test]
    fn t111_a_secret_is_the_text_of_a_file_that_only_its_owner_may_read() {
        check(b"abc", 0o600, 0o077, Ok("abc"));
        check(b"abc\n", 0o400, 0o077, Ok("abc"));
        check(b" abc \r\n", 0o400, 0o077, Ok(" abc "));
        check(b"a\nb\n\n", 0o400, 0o077, Ok("a\nb\n"));
        for mode in [0o644, 0o640, 0o604, 0o660, 0o610] {
            let said = format!("others may look into F (mode {mode:04o}); run `chmod 600` on it");
            check(b"abc", mode, 0o077, Err(&said));
        }
        check(b"abc", 0o440, 0o007, Ok("abc"));
        check(b"abc", 0o444, 0o007, Err("others may look into F (mode 0444); run `chmod 600` on it"));
        check(b"\n", 0o600, 0o077, Err("F is empty"));
        check(b"hunter2\xff", 0o600, 0o077, Err("F cannot be read: stream did not contain valid UTF-8"));
        check(&[b'x'; 70_000], 0o600, 0o077, Err("F cannot be read: it has more than 65536 bytes"));
    }

    #[test]
    fn t111_what_is_not_there_or_is_no_file_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        for path in [directory.path().join("none"), directory.path().to_path_buf()] {
            assert!(matches!(read_file(path, 0o077), Err(Unread::File { .. })));
        }
    }

    #[test]
    fn t110_a_secret_is_not_in_what_is_written_for_developers() {
        let held =
            BTreeMap::from([("A".to_string(), Held { value: "hunter2".into(), fault: None, is_stand_in: false })]);
        let secrets = Secrets { held: Mutex::new(held), readings: watch::Sender::new(0), stand_in: Box::new(|_| None) };
        assert_eq!(format!("{secrets:?}"), "Secrets(1 names)");
    }
}
