//! A commit: a directory as git knows it there. Git is asked with arguments of ours and the id of a commit, through no shell; what
//! it says is read up to a bound, and nothing is written into the repository or the directory.

use crate::workspace::{FOLDERS, ROOT_FILES};
use clinch_core::config::Files;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// No directory of a workspace has more, at any commit.
const LISTED_BYTES_MAX: u64 = 4 << 20;
const FILES_MAX: usize = 10_000;
/// All its files together.
const BYTES_MAX: u64 = 32 << 20;
/// Nobody reads more of what git complains about.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

/// The files of a workspace, as they are in a commit.
#[derive(Clone, Debug)]
pub struct Commit {
    /// What it was called by.
    pub name: String,
    /// The beginning of its id.
    pub id: String,
    /// The directory there: `main:crm/workspace`, as git writes it.
    pub place: PathBuf,
    pub files: Files,
}

/// An entry of a tree.
struct Entry {
    kind: Kind,
    object: String,
    bytes: u64,
    name: String,
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "git {} {}", self.name, self.id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    Link,
    Submodule,
}

impl Kind {
    const fn told(self) -> &'static str {
        match self {
            Kind::File => "a file",
            Kind::Directory => "a directory",
            Kind::Link => "a symbolic link",
            Kind::Submodule => "a submodule",
        }
    }
}

impl Commit {
    /// What this directory is in the commit that `name` means in its repository.
    pub fn read(name: &str, directory: &Path) -> Result<Commit, String> {
        if name.starts_with('-') || name.is_empty() {
            return Err("the name of a commit does not begin with `-`".into());
        }
        let git = Git { directory };
        let wanted = format!("{name}^{{commit}}");
        let id = git.line(&["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted]);
        let id = id.map_err(|why| if why.is_empty() { "git knows no such commit here".into() } else { why })?;
        let inside = git.line(&["rev-parse", "--show-prefix"])?;
        let inside = inside.trim_end_matches('/');
        let root = git.tree(&format!("{id}:{inside}"));
        let root = root.map_err(|why| format!("there is no directory `{inside}` in it ({why})"))?;
        let mut wanted = Vec::new();
        for entry in root {
            let folder = FOLDERS.iter().find(|(folder, _)| *folder == entry.name);
            match (folder, entry.kind) {
                (Some((folder, endings)), Kind::Directory) => {
                    let inside = git.tree(&entry.object)?.into_iter();
                    let known = inside.filter(|entry| endings.iter().any(|ending| entry.name.ends_with(ending)));
                    wanted.extend(known.map(|entry| Entry { name: format!("{folder}/{}", entry.name), ..entry }));
                }
                (Some(_), Kind::File) => {}
                (Some(_), _) => wanted.push(entry),
                (None, _) if ROOT_FILES.contains(&entry.name.as_str()) => wanted.push(entry),
                (None, _) => {}
            }
        }
        if let Some(odd) = wanted.iter().find(|entry| entry.kind != Kind::File) {
            return Err(format!("`{}` is {} there, which is not followed", odd.name, odd.kind.told()));
        }
        let bytes = wanted.iter().fold(0_u64, |sum, entry| sum.saturating_add(entry.bytes));
        if wanted.len() > FILES_MAX || bytes > BYTES_MAX {
            return Err(format!("its workspace is too large: {} files, {bytes} bytes", wanted.len()));
        }
        let mut files = git.texts(wanted)?;
        files.sort();
        let id = id.chars().take(12).collect();
        Ok(Commit { name: name.into(), id, place: format!("{name}:{inside}").into(), files: Files(files) })
    }
}

impl Entry {
    /// `040000 tree ID       -<tab>NAME`, as `git ls-tree -l` tells it.
    fn read(line: &[u8]) -> Option<Entry> {
        let (about, name) = std::str::from_utf8(line).ok()?.split_once('\t')?;
        let mut words = about.split_ascii_whitespace();
        let (mode, _, object, bytes) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let is_id = object.len() >= 40 && object.bytes().all(|b| b.is_ascii_hexdigit());
        let kind = match mode {
            "040000" => Kind::Directory,
            "120000" => Kind::Link,
            "160000" => Kind::Submodule,
            _ => Kind::File,
        };
        Some(Entry {
            kind,
            object: is_id.then(|| object.into())?,
            bytes: bytes.parse().unwrap_or(0),
            name: name.into(),
        })
    }
}

struct Git<'a> {
    directory: &'a Path,
}

impl Git<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("--no-pager").arg("-C").arg(self.directory).args(arguments);
        // Nobody is asked for a password, and nothing is fetched, for something that is only looked at.
        command
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What it prints, if it is content and that is not too long.
    fn asked(&self, arguments: &[&str], told: &[u8], bytes_max: u64) -> Result<Vec<u8>, String> {
        let mut command = self.command(arguments);
        if !told.is_empty() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "git is not installed".to_string(),
            _ => format!("git cannot be asked: {error}"),
        })?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut answer, mut complaint) = (Vec::new(), String::new());
        // What it says is read while it is told: neither waits for the other for ever.
        let read = std::thread::scope(|scope| {
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(told)));
            let complained =
                scope.spawn(|| stderr.map(|from| from.take(COMPLAINT_BYTES_MAX).read_to_string(&mut complaint)));
            let read = stdout.map(|from| from.take(bytes_max + 1).read_to_end(&mut answer)).transpose();
            // One who says too much, or complains for too long, is not listened to.
            if answer.len() as u64 > bytes_max {
                let _ = child.kill();
            }
            let _ = complained.join();
            read
        });
        let ended = child.wait().map_err(|error| error.to_string())?;
        read.map_err(|error| format!("git cannot be understood: {error}"))?;
        match ended.success() {
            _ if answer.len() as u64 > bytes_max => Err("git has more to say of it than a workspace can be".into()),
            true => Ok(answer),
            false => Err(complaint.lines().next().unwrap_or_default().trim_start_matches("fatal: ").to_string()),
        }
    }

    fn line(&self, arguments: &[&str]) -> Result<String, String> {
        let said = self.asked(arguments, &[], COMPLAINT_BYTES_MAX)?;
        let said = String::from_utf8(said).map_err(|_| "git does not answer in UTF-8".to_string())?;
        Ok(said.trim_end_matches('\n').to_string())
    }

    /// What is in a directory, not in those below it.
    fn tree(&self, object: &str) -> Result<Vec<Entry>, String> {
        let listed = self.asked(&["ls-tree", "-z", "-l", "--full-tree", object], &[], LISTED_BYTES_MAX)?;
        // A name that is no text is none of a workspace.
        Ok(listed.split(|byte| *byte == 0).filter_map(Entry::read).collect())
    }

    /// The texts of these files, by their names.
    fn texts(&self, wanted: Vec<Entry>) -> Result<Vec<(String, String)>, String> {
        let told: String = wanted.iter().map(|entry| format!("{}\n", entry.object)).collect();
        let heads = 128 * wanted.len() as u64;
        let said = self.asked(&["cat-file", "--batch"], told.as_bytes(), BYTES_MAX + heads)?;
        let mut rest = said.as_slice();
        let mut files = Vec::new();
        for entry in wanted {
            // `ID blob BYTES<newline>TEXT<newline>`
            let text = (|| {
                let end = rest.iter().position(|byte| *byte == b'\n')?;
                let head = std::str::from_utf8(&rest[..end]).ok()?.strip_prefix(&format!("{} blob ", entry.object))?;
                let bytes: usize = head.parse().ok()?;
                let (text, after) = rest.get(end + 1..)?.split_at_checked(bytes)?;
                rest = after.strip_prefix(b"\n")?;
                Some(text)
            })();
            let text = text.ok_or_else(|| format!("git does not have `{}` of it here", entry.name))?;
            let text =
                String::from_utf8(text.to_vec()).map_err(|_| format!("`{}` is not UTF-8 text there", entry.name))?;
            files.push((entry.name, text));
        }
        Ok(files)
    }
}
