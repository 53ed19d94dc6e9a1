//! `clinch audit-idempotency`: walks six questions over a workspace and prints the checklist.

use super::Globals;
use super::exit::{Exit, Failure};
use super::findings::{self, Finding, Level};
use super::problems::Problems;
use super::render::{self, Output, RED};
use super::test;
use crate::workspace::read_files;
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use clinch_core::checklist::{Checklist, Item, Stage, Verdict};
use clinch_core::config::{self, Places};
use clinch_core::trial::Trial;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const GREEN: Style = AnsiColor::Green.on_default();
const YELLOW: Style = AnsiColor::Yellow.on_default();

#[derive(Args, Debug)]
#[command(after_help = "\
Six questions, each answered with pass, fail or unknown (only a person can know), the line, and what to write there:
what changes something outside; what recognises it; whose keys, and for how long; conflicts; jobs, lists and replays; tests.

Examples:
  clinch audit-idempotency                      this directory
  clinch audit-idempotency examples/lead-router
  clinch audit-idempotency --exit-code          10 if something fails, for CI
  clinch audit-idempotency --format github      marks in a pull request; sarif for whoever collects findings
  clinch audit-idempotency -o json | jq '.stages[].items[] | select(.verdict == \"fail\")'")]
pub struct AuditIdempotency {
    /// The workspace: a directory with flows/, workers/, playbooks/ and queues.yml
    #[arg(default_value = ".")]
    directory: PathBuf,
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Exit with 10 if something fails
    #[arg(long)]
    exit_code: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
    Github,
    Sarif,
}

impl AuditIdempotency {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let files = read_files(&self.directory).map_err(|error| {
            Failure::new(Exit::ConfigInvalid, "CL0527", format!("The workspace cannot be read: {error}"))
        })?;
        let (workspace, _) = match config::load(&files) {
            Ok(loaded) => loaded,
            Err(found) => {
                let problems = Problems { directory: &self.directory, files: &files, found: &found };
                let said = format!("The workspace has errors: {}", problems.count());
                let fix = format!("clinch check {}", self.directory.display());
                return Err(Failure::new(Exit::ConfigInvalid, "CL0527", said).fix(fix));
            }
        };
        let checklist = Checklist::of(&workspace, &Places::of(&files), &trials(&self.directory)?);
        let usual = if matches!(globals.output(), Output::Json | Output::Jsonl) { Format::Json } else { Format::Human };
        match self.format.unwrap_or(usual) {
            Format::Human => render::data(&human(&checklist))?,
            Format::Json => render::json(Output::Json, &document(&checklist))?,
            Format::Github => render::data(&findings::github(&found(&checklist, &self.directory)))?,
            Format::Sarif => render::json(Output::Json, &findings::sarif(&found(&checklist, &self.directory)))?,
        }
        Ok(if self.exit_code && checklist.count(Verdict::Fail) > 0 { Exit::Findings } else { Exit::Done })
    }
}

/// The tests of the workspace; one need not have any.
fn trials(directory: &Path) -> Result<Vec<(String, Trial)>, Failure> {
    if !directory.join("tests").is_dir() {
        return Ok(Vec::new());
    }
    let mut trials = Vec::new();
    for file in test::found(directory)?.1 {
        let name = format!("tests/{}", file.file_name().unwrap_or_default().display());
        trials.extend(test::read(directory, &file)?.into_iter().map(|trial| (name.clone(), trial)));
    }
    Ok(trials)
}

fn human(checklist: &Checklist) -> String {
    let mut text = String::new();
    let widest = checklist.items.iter().map(|item| item.subject.chars().count()).max().unwrap_or(0).min(32);
    for (number, stage) in (1..).zip(Stage::ALL) {
        let _ = writeln!(text, "{number}. {}", stage.question());
        if checklist.stage(stage).next().is_none() {
            text.push_str("   nothing to ask\n");
        }
        for Item { verdict, subject, said, place, fix, .. } in checklist.stage(stage) {
            let color = match verdict {
                Verdict::Pass => GREEN,
                Verdict::Fail => RED,
                Verdict::Unknown => YELLOW,
            };
            let (word, subject, said) = (verdict.word(), render::clean(subject), render::clean(said));
            let _ = writeln!(text, "   {color}{word:<7}{color:#}  {subject:<widest$}  {said}");
            let Some(fix) = fix else { continue };
            let _ = writeln!(text, "            {}:{}", render::clean(&place.file), place.line);
            for line in fix.lines() {
                let _ = writeln!(text, "            {}", render::clean(line));
            }
        }
        text.push('\n');
    }
    text + &count(checklist)
}

fn count(checklist: &Checklist) -> String {
    Verdict::ALL.map(|verdict| format!("{} {}", checklist.count(verdict), verdict.word())).join(", ")
}

fn document(checklist: &Checklist) -> Value {
    let item = |item: &Item| {
        json!({
            "verdict": item.verdict.word(),
            "subject": item.subject,
            "said": item.said,
            "file": item.place.file,
            "line": item.place.line,
            "fix": item.fix,
        })
    };
    let stages = (1..).zip(Stage::ALL).map(|(number, stage)| {
        json!({
            "number": number,
            "stage": stage.word(),
            "question": stage.question(),
            "items": checklist.stage(stage).map(item).collect::<Vec<_>>(),
        })
    });
    json!({
        "schema": "clinch.audit_idempotency/v1",
        "pass": checklist.count(Verdict::Pass),
        "fail": checklist.count(Verdict::Fail),
        "unknown": checklist.count(Verdict::Unknown),
        "stages": stages.collect::<Vec<_>>(),
    })
}

/// As other programs read them: what fails is an error, and what is unknown a note.
fn found(checklist: &Checklist, directory: &Path) -> Vec<Finding> {
    let finding = |item: &Item| {
        let level = match item.verdict {
            Verdict::Pass => return None,
            Verdict::Fail => Level::Error,
            Verdict::Unknown => Level::Note,
        };
        let here = directory == Path::new(".");
        let path = if here { item.place.file.clone().into() } else { directory.join(&item.place.file) };
        Some(Finding {
            level,
            code: format!("idempotency/{}", item.stage.word()),
            title: item.stage.question().into(),
            path: Some(path.display().to_string()),
            from: (item.place.line, 1),
            to: (item.place.line, 1),
            message: format!("{}: {}", item.subject, item.said),
            fix: item.fix.clone(),
        })
    };
    checklist.items.iter().filter_map(finding).collect()
}
