//! `clinch diff`: what a change of the workspace means, and then its lines.

use super::Globals;
use super::client::{Answer, Client};
use super::commit::Commit;
use super::exit::{Exit, Failure};
use super::findings::{self, Finding, Level};
use super::flows::changed_lines;
use super::problems::Problems;
use super::render::{self, BOLD, DIM, Output, RED, clean, count};
use crate::api::config::{ChangeShow, Compared, ConfigDiff, DiffAsk, SideAsk, difference};
use crate::workspace::read_files;
use clap::{Args, ValueEnum};
use clinch_core::config::{self, Files, Problem};
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch diff                          what is live, and the files in this directory
  clinch diff live ../contacts         the same for another directory
  clinch diff v41 v42                  two versions that were live
  clinch diff main                     this directory in a commit, and its files now; no server is needed
  clinch diff v1.2 HEAD                two commits: a branch, a tag, or whatever else git knows
  clinch diff main-checkout .          two directories
  clinch diff --lines                  only the lines
  clinch diff --format github          marks in a pull request
  clinch diff --exit-code              10 when something is different

What it means comes first: for keys, for jobs in flight, for those who are called. A `!` is a risk that somebody should have
thought of. Files with errors are not compared: they are told as `clinch check` tells them. `clinch explain CODE` says more about a code.")]
pub struct Diff {
    /// A version such as v41, `live`, a directory, or a commit by a name that git knows: the first of these that it can be
    #[arg(value_name = "A")]
    from: Option<String>,
    /// The same; the files in this directory if not given
    #[arg(value_name = "B")]
    to: Option<String>,
    /// Only what it means
    #[arg(long, conflicts_with_all = ["lines", "both"])]
    meaning: bool,
    /// Only the lines
    #[arg(long, conflicts_with = "both")]
    lines: bool,
    /// What it means, and the lines
    #[arg(long)]
    both: bool,
    /// Only how many changes there are, by file
    #[arg(long, conflicts_with_all = ["meaning", "lines", "both"])]
    stat: bool,
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Exit with 10 when something is different
    #[arg(long)]
    exit_code: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Human,
    Json,
    Sarif,
    Github,
}

/// What somebody named.
pub enum Named {
    Version(String),
    Directory(PathBuf),
    Commit(Commit),
}

impl Named {
    /// The first that it can be. A commit is one of the repository that `beside` is in, and means that directory there.
    pub fn of(text: &str, beside: &Path) -> Result<Named, Failure> {
        if is_version(text) {
            return Ok(Named::Version(text.into()));
        }
        if Path::new(text).is_dir() {
            return Ok(Named::Directory(text.into()));
        }
        Commit::read(text, beside).map(Named::Commit).map_err(|why| {
            let said = format!("`{text}` is neither a version, nor `live`, nor a directory, nor a commit of git: {why}");
            Failure::new(Exit::NotFound, "CL0527", said)
                .fix("write a version such as v41 (`clinch flows ls`), `live`, a directory with a workspace, or a name such as main or HEAD~1")
        })
    }

    /// Its files, if they need not be asked for.
    pub fn here(&self) -> Result<Option<Compared>, Failure> {
        match self {
            Named::Version(_) => Ok(None),
            Named::Directory(path) => Ok(Some(Compared { name: path.display().to_string(), files: sound(path)? })),
            Named::Commit(commit) => {
                let files = sound_files(&commit.place, commit.files.clone())?;
                Ok(Some(Compared { name: commit.to_string(), files }))
            }
        }
    }

    /// As a server is asked about it.
    pub fn ask(&self) -> Result<SideAsk, Failure> {
        match self {
            Named::Version(version) => Ok(SideAsk::of_version(version)),
            Named::Directory(_) | Named::Commit(_) => {
                let here = self.here()?.expect("files are here");
                Ok(SideAsk::of_files(&here.files))
            }
        }
    }
}

fn is_version(text: &str) -> bool {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    text == "live" || text.strip_prefix('v').is_some_and(is_number)
}

impl Diff {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        // Where the files are that it is about, if it is about any that are here.
        let named = [&self.to, &self.from].into_iter().flatten();
        let mut directories =
            named.map(Path::new).filter(|path| path.is_dir() && !path.to_str().is_some_and(is_version));
        let beside = directories.next().unwrap_or(Path::new("."));
        let named = |text: &str| Named::of(text, beside);
        let (from, to) = match (self.from.as_deref(), self.to.as_deref()) {
            (None, _) => (named("live")?, named(".")?),
            (Some("live"), None) => (named("live")?, named(".")?),
            (Some(one), None) => match named(one)? {
                // One alone is the newer one.
                Named::Directory(path) => (named("live")?, Named::Directory(path)),
                Named::Version(version) => (Named::Version(version), named("live")?),
                // Files come from commits: those that are here are newer.
                Named::Commit(commit) => (Named::Commit(commit), named(".")?),
            },
            (Some(one), Some(other)) => (named(one)?, named(other)?),
        };
        let answer = compare(globals, &from, &to).await?;
        let told = &answer.told;
        let output = globals.output();
        let usual = if matches!(output, Output::Json | Output::Jsonl) { Format::Json } else { Format::Human };
        match self.format.unwrap_or(usual) {
            Format::Json => render::json(output, &answer.document)?,
            Format::Github => render::data(&findings::github(&findings(told, beside)))?,
            Format::Sarif => render::json(Output::Json, &findings::sarif(&findings(told, beside)))?,
            Format::Human if self.stat => render::data(&stat(told))?,
            Format::Human => {
                let mut text = head(told);
                if !self.lines {
                    text += &meaning(told);
                }
                if self.lines || self.both {
                    text += &changed_lines(&told.files);
                }
                render::data(&text)?;
                if let (Named::Version(_), Named::Directory(directory)) = (&from, &to)
                    && !told.files.is_empty()
                {
                    let directory = directory.display();
                    render::next(
                        output,
                        &format!(
                            "clinch dry-run --workspace {directory} --last 100; clinch apply {directory} --reason '…'"
                        ),
                    );
                }
            }
        }
        match self.exit_code && !told.files.is_empty() {
            true => Ok(Exit::Findings),
            false => Ok(Exit::Done),
        }
    }
}

/// What is different. Directories and commits need no server; nobody says then how many jobs there are.
pub async fn compare(globals: &Globals, from: &Named, to: &Named) -> Result<Answer<ConfigDiff>, Failure> {
    if let (Some(from), Some(to)) = (from.here()?, to.here()?) {
        let told = difference(from, to, None);
        // Both were read without errors a moment ago, alone.
        let told = told.map_err(|(side, found)| refused(Path::new(&side.name), &side.files, &found))?;
        return Ok(Answer { document: json!(told), told });
    }
    let ask = DiffAsk { from: from.ask()?, to: to.ask()? };
    let mut answer: Answer<ConfigDiff> = Client::open(globals)?.post(&["config", "diff"], &json!(ask)).await?;
    // To the server they were files.
    for (named, side) in [(from, "from"), (to, "to")] {
        let Named::Commit(commit) = named else { continue };
        answer.document[side]["name"] = json!(commit.to_string());
        let shown = if side == "from" { &mut answer.told.from } else { &mut answer.told.to };
        shown.name = commit.to_string();
    }
    Ok(answer)
}

/// The files of a directory, if they can be read as a workspace. What is wrong is told as `clinch check` tells it.
pub fn sound(directory: &Path) -> Result<Files, Failure> {
    let files = read_files(directory).map_err(|error| {
        Failure::new(Exit::ConfigInvalid, "CL0527", format!("The workspace cannot be read: {error}"))
    })?;
    sound_files(directory, files)
}

/// Likewise for files that were read; `directory` is where from.
pub fn sound_files(directory: &Path, files: Files) -> Result<Files, Failure> {
    if files.0.is_empty() {
        let said = format!("There is no workspace in {}", directory.display());
        return Err(Failure::new(Exit::ConfigInvalid, "CL0527", said)
            .fix("name its directory, which has flows/, workers/, playbooks/ or queues.yml"));
    }
    match config::load(&files) {
        Ok(_) => Ok(files),
        Err(found) => Err(refused(directory, &files, &found)),
    }
}

fn refused(directory: &Path, files: &Files, found: &[Problem]) -> Failure {
    render::complain(&Problems { directory, files, found }.human());
    Failure::new(Exit::ConfigInvalid, "CL0519", format!("The workspace in {} has problems", directory.display()))
        .fix(format!("correct what is told above, then: clinch check {}", directory.display()))
}

fn findings(told: &ConfigDiff, directory: &Path) -> Vec<Finding> {
    let path = |file: &str| match directory == Path::new(".") {
        true => file.to_string(),
        false => directory.join(file).display().to_string(),
    };
    let one = |change: &ChangeShow| {
        let place = change.at.as_ref();
        let at = place.map_or((1, 1), |place| (place.line, place.column));
        Finding {
            level: if change.weight == "risk" { Level::Warning } else { Level::Note },
            code: change.code.clone(),
            title: change.title.clone(),
            path: place.map(|place| path(&place.file)),
            from: at,
            to: (at.0, at.1 + 1),
            message: format!("{}: {}", change.subject, change.sentence),
            fix: change.fix.clone(),
        }
    };
    told.changes.iter().map(one).collect()
}

pub fn head(told: &ConfigDiff) -> String {
    let (from, to) = (clean(&told.from.name), clean(&told.to.name));
    let differ = match told.files.len() {
        0 => "nothing is different".to_string(),
        files => format!("{} different", count(files, "file")),
    };
    format!("{BOLD}{from} ({})  ->  {to} ({}){BOLD:#}  {differ}\n", told.from.hash, told.to.hash)
}

/// By subject: a sign, what changed and how, and below it what follows.
pub fn meaning(told: &ConfigDiff) -> String {
    let mut text = String::new();
    let mut subject = "";
    for change in &told.changes {
        if change.subject != subject {
            subject = &change.subject;
            let _ = writeln!(text, "{}", clean(subject));
        }
        let is_risk = change.weight == "risk";
        let sign = match (&change.was_at, &change.at) {
            _ if is_risk => '!',
            (None, Some(_)) => '+',
            (Some(_), None) => '-',
            _ => '~',
        };
        let style = if is_risk { RED } else { anstyle::Style::new() };
        let _ = write!(text, "  {style}{sign} {}{style:#}", clean(&change.what));
        match (&change.was, &change.now) {
            (Some(was), Some(now)) => text += &format!("  {} -> {}", clean(was), clean(now)),
            (Some(was), None) => text += &format!("  was {}", clean(was)),
            (None, Some(now)) => text += &format!("  {}", clean(now)),
            (None, None) => {}
        }
        let place = |place: &crate::api::config::PlaceShow| format!("{}:{}", clean(&place.file), place.line);
        let at = match (&change.at, &change.was_at) {
            (Some(at), Some(was)) if at == was => place(at),
            (Some(at), Some(was)) => format!("{} (was {})", place(at), place(was)),
            (Some(at), None) => place(at),
            (None, Some(was)) => format!("was {}", place(was)),
            (None, None) => String::new(),
        };
        let _ = writeln!(text, "  {DIM}{at}{DIM:#}");
        if change.code != "CL0200" {
            let _ = writeln!(text, "      {} {}", change.code, clean(&change.sentence));
        }
        if let Some(fix) = &change.fix {
            let _ = writeln!(text, "      fix: {}", clean(fix));
        }
    }
    if let Some(jobs) = told.in_flight.filter(|_| !told.files.is_empty()) {
        let told = match jobs {
            0 => "no job".to_string(),
            1 => "1 job stays on the version that it was accepted with; new events use the new one".to_string(),
            jobs => {
                let jobs = render::thousands(jobs);
                format!("{jobs} jobs stay on the version that they were accepted with; new events use the new one")
            }
        };
        let _ = writeln!(text, "In flight: {told}.");
    }
    if !told.next_start.is_empty() {
        let _ = writeln!(text, "At the next start of a process: {}.", told.next_start.join(", "));
    }
    if !told.files.is_empty() {
        let notes = told.changes.len() - told.risks;
        let risks = match told.risks {
            0 => "No risk was found".to_string(),
            1 => format!("{RED}1 change needs attention{RED:#}"),
            more => format!("{RED}{more} changes need attention{RED:#}"),
        };
        let _ = writeln!(text, "{risks}, {}.", count(notes, "note"));
    }
    text
}

fn stat(told: &ConfigDiff) -> String {
    let mut text = String::new();
    for file in &told.files {
        let of = |kind: &str| file.lines.iter().filter(|line| line.kind == kind).count();
        let _ = writeln!(text, "{}\t{}\t+{}\t-{}", clean(&file.path), clean(&file.change), of("added"), of("removed"));
    }
    let _ = writeln!(text, "{}, {}", count(told.risks, "risk"), count(told.changes.len() - told.risks, "note"));
    text
}
