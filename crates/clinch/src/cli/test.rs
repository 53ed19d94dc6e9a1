//! `clinch test`: carries out the trials of a workspace and tells what is not as it was expected.

use super::Globals;
use super::exit::{Exit, Failure};
use super::problems::Problems;
use super::render::{self, Output, RED};
use crate::runtimes;
use crate::trials::{self, Outcome};
use crate::workspace::read_files;
use clap::Args;
use clinch_core::config::{self, Files, Severity, Workspace};
use clinch_core::time::human;
use clinch_core::trial::Trial;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch test                                 tests/*.yml of this directory
  clinch test leads tests/contacts.yml        a workspace, and a file of another
  clinch test --only duplicate                those whose name has this word
  clinch test --junit report.xml              for the CI

Each test runs the real server in a directory of its own: embedded store, intake on a loopback port, workers and API. Everybody outside has a
stand-in, which answers as the test says; secrets are made up. The clock is put forward over pauses between attempts, delays and terms, and
jitter is always the middle. What scripts do by themselves is not held back.")]
pub struct Test {
    /// Workspaces, or files in the tests/ of one
    #[arg(default_value = ".", value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only tests whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the result to this file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// A test that was carried out.
struct Ran {
    file: String,
    trial: Trial,
    outcome: Outcome,
}

impl Test {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let is_text = matches!(output, Output::Table | Output::Plain);
        let mut ran: Vec<Ran> = Vec::new();
        for path in &self.paths {
            let (directory, files) = found(path)?;
            let workspace = workspace(&directory)?;
            for file in files {
                let shown = file.display().to_string();
                let trials = read(&directory, &file)?;
                let meant = |trial: &Trial| self.only.as_ref().is_none_or(|only| trial.name.contains(only.as_str()));
                for trial in trials.into_iter().filter(meant) {
                    let outcome = trials::run(&workspace, &directory, &trial).await;
                    let one = Ran { file: shown.clone(), trial, outcome };
                    if is_text {
                        render::data(&one.text())?;
                    }
                    ran.push(one);
                }
            }
        }
        if let Some(path) = &self.junit {
            std::fs::write(path, junit(&ran)).map_err(|error| {
                Failure::new(Exit::Failed, "CL0531", format!("{} cannot be written: {error}", path.display()))
            })?;
        }
        self.conclude(output, &ran)
    }

    fn conclude(&self, output: Output, ran: &[Ran]) -> Result<Exit, Failure> {
        let failed = ran.iter().filter(|one| !one.is_ok()).count();
        if ran.is_empty() {
            let said = "There is no such test";
            return Err(Failure::new(Exit::NotFound, "CL0552", said).fix(
                "write tests/NAME.yml (docs/start.md#tests), or see some: clinch init --template contact-intake DIR",
            ));
        }
        let skipped: Duration = ran.iter().map(|one| one.outcome.skipped).sum();
        let document = json!({
            "schema": "clinch.test/v1",
            "passed": ran.len() - failed,
            "failed": failed,
            "skipped_seconds": skipped.as_secs_f64(),
            "tests": ran.iter().map(Ran::json).collect::<Vec<_>>(),
        });
        match output {
            Output::Table | Output::Plain => {
                let tests = render::count(ran.len(), "test");
                render::data(&format!("{tests}: {} ok, {failed} failed", ran.len() - failed))?;
                if !skipped.is_zero() {
                    render::note(&format!("the clock was put forward by {}", human(skipped)));
                }
            }
            Output::Id => {}
            Output::Json | Output::Jsonl => render::json(output, &document)?,
        }
        match failed {
            0 => Ok(Exit::Done),
            _ => Err(Failure::new(
                Exit::Failed,
                "CL0550",
                format!("{failed} of {} failed", render::count(ran.len(), "test")),
            )),
        }
    }
}

/// The workspace of a path, and the files of its tests.
pub(super) fn found(path: &Path) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    if path.is_file() {
        let directory = path.parent().and_then(Path::parent).unwrap_or(Path::new("."));
        let directory = if directory == Path::new("") { Path::new(".") } else { directory };
        return Ok((directory.to_path_buf(), vec![path.to_path_buf()]));
    }
    let tests = if path == Path::new(".") { PathBuf::from("tests") } else { path.join("tests") };
    let entries = std::fs::read_dir(&tests).map_err(|error| {
        let said = format!("{} cannot be read: {error}", tests.display());
        Failure::new(Exit::NotFound, "CL0552", said)
            .fix("name a workspace with tests/*.yml, or make one: clinch init DIR")
    })?;
    let is_test = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "yml" || ending == "yaml");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_test).collect();
    files.sort();
    Ok((path.to_path_buf(), files))
}

fn workspace(directory: &Path) -> Result<Workspace, Failure> {
    let unread = |said: String| Failure::new(Exit::ConfigInvalid, "CL0527", said);
    let files = read_files(directory).map_err(|error| unread(format!("The workspace cannot be read: {error}")))?;
    if files.0.is_empty() {
        let said = format!("There is no workspace in {}", directory.display());
        return Err(unread(said).fix("name the directory: clinch test DIR; or make one: clinch init DIR"));
    }
    let loaded = config::load(&files).and_then(|(workspace, _)| match workspace.refusals().is_empty() {
        true => Ok(workspace),
        false => Err(workspace.refusals().to_vec()),
    });
    let workspace = loaded.map_err(|problems| refused(directory, &files, &problems))?;
    let missing = runtimes::missing(&workspace, Severity::Error);
    if !missing.is_empty() {
        return Err(refused(directory, &files, &missing));
    }
    match trials::obstacle(&workspace) {
        None => Ok(workspace),
        Some(why) => {
            Err(Failure::new(Exit::ConfigInvalid, "CL0553", format!("This workspace cannot be tested: {why}")))
        }
    }
}

pub(super) fn read(directory: &Path, file: &Path) -> Result<Vec<Trial>, Failure> {
    let unread = |error: std::io::Error| {
        Failure::new(Exit::ConfigInvalid, "CL0527", format!("{} cannot be read: {error}", file.display()))
    };
    let text = std::fs::read_to_string(file).map_err(unread)?;
    let name = file.strip_prefix(directory).unwrap_or(file).display().to_string();
    config::trials(&name, &text)
        .map_err(|problems| refused(directory, &Files(vec![(name.clone(), text.clone())]), &problems))
}

fn refused(directory: &Path, files: &Files, problems: &[config::Problem]) -> Failure {
    let problems = Problems { directory, files, found: problems };
    render::complain(&(problems.human() + "\n"));
    Failure::new(Exit::ConfigInvalid, "CL0528", "Nothing was tested: the workspace or its tests have problems")
        .fix(format!("clinch check {}", directory.display()))
}

impl Ran {
    fn is_ok(&self) -> bool {
        self.outcome.differences.is_empty()
    }

    fn text(&self) -> String {
        let name = render::clean(&self.trial.name);
        if self.is_ok() {
            return format!("ok    {name}");
        }
        let mut text = format!("{RED}FAIL{RED:#}  {name}  ({}:{})", self.file, self.trial.line);
        for difference in &self.outcome.differences {
            let _ = write!(text, "\n      {}", render::clean(difference));
        }
        text
    }

    fn json(&self) -> Value {
        let calls = self
            .outcome
            .calls
            .iter()
            .map(|call| json!({"to": call.to, "method": call.method, "path": call.path, "status": call.status}));
        json!({
            "file": self.file,
            "line": self.trial.line,
            "name": self.trial.name,
            "ok": self.is_ok(),
            "differences": self.outcome.differences,
            "seconds": self.outcome.took.as_secs_f64(),
            "skipped_seconds": self.outcome.skipped.as_secs_f64(),
            "calls": calls.collect::<Vec<_>>(),
        })
    }
}

fn junit(ran: &[Ran]) -> String {
    let escaped = |text: &str| {
        let plain = render::clean(text);
        plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    let failed = ran.iter().filter(|one| !one.is_ok()).count();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"clinch\" tests=\"{}\" failures=\"{failed}\">\n",
        ran.len()
    );
    for one in ran {
        let (file, name, took) = (escaped(&one.file), escaped(&one.trial.name), one.outcome.took.as_secs_f64());
        let _ = write!(xml, "  <testcase classname=\"{file}\" name=\"{name}\" time=\"{took:.3}\"");
        if one.is_ok() {
            xml.push_str("/>\n");
            continue;
        }
        let said: Vec<String> = one.outcome.differences.iter().map(|said| escaped(said)).collect();
        let _ = writeln!(xml, ">\n    <failure message=\"{}\">{}</failure>\n  </testcase>", said[0], said.join("\n"));
    }
    xml + "</testsuite>\n"
}
