//! `clinch check`: reads a workspace and tells every problem at once.

use super::Globals;
use super::exit::{Exit, Failure};
use super::problems::Problems;
use super::render::{self, Output, RED};
use crate::runtimes;
use crate::workspace::read_files;
use clap::{Args, ValueEnum};
use clinch_core::config::{self, Severity};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch check                        this directory
  clinch check examples/contacts
  clinch check --format github        marks in a pull request
  clinch check --json | jq '.problems[].message'")]
pub struct Check {
    /// The workspace: a directory with flows/, workers/ and queues.yml
    #[arg(default_value = ".")]
    directory: PathBuf,
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
    Github,
}

impl Check {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let files = read_files(&self.directory).map_err(|error| {
            Failure::new(Exit::ConfigInvalid, "CL0527", format!("The workspace cannot be read: {error}"))
        })?;
        if files.0.is_empty() {
            let said = format!("There is no workspace in {}", self.directory.display());
            return Err(Failure::new(Exit::ConfigInvalid, "CL0527", said)
                .fact("a workspace is a directory with flows/*.yml, workers/*.yml and queues.yml")
                .fix("name the directory: clinch check DIR; or see one work: clinch demo"));
        }
        let mut open = Vec::new();
        let (found, refused) = match config::load(&files) {
            Ok((workspace, warnings)) => {
                let ways = workspace.entrances().filter(|way| way.verify.is_none());
                open.extend(ways.map(|way| format!("{} ({} {})", way.path, way.to.0, way.to.1)));
                let missing = runtimes::missing(&workspace, Severity::Warning);
                (warnings.into_iter().chain(missing).collect(), workspace.refusals().len())
            }
            Err(problems) => (problems, 0),
        };
        let problems = Problems { directory: &self.directory, files: &files, found: &found };
        let usual = if matches!(globals.output(), Output::Json | Output::Jsonl) { Format::Json } else { Format::Human };
        match self.format.unwrap_or(usual) {
            Format::Human => render::data(&problems.human())?,
            Format::Json => render::json(Output::Json, &problems.json())?,
            Format::Github => render::data(&problems.github())?,
        }
        if problems.errors() > 0 {
            return Ok(Exit::ConfigInvalid);
        }
        if !open.is_empty() && matches!(globals.output(), Output::Table | Output::Plain) {
            render::complain(&format!("{RED}anybody may send{RED:#} to {}", open.join(", ")));
        }
        match refused {
            0 => render::next(globals.output(), &format!("clinch serve --workspace {}", self.directory.display())),
            _ => render::note("`serve` refuses this workspace: it has parts that this version cannot run yet"),
        }
        Ok(Exit::Done)
    }
}
