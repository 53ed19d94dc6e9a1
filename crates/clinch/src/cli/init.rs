//! `clinch init`: a workspace to start from, with its tests, in a directory of its own.

use super::exit::{Exit, Failure};
use super::render;
use super::{Globals, send};
use crate::starters::{self, Starter};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use std::path::{Path, PathBuf};

/// For editors: what they complete and check with.
const SCHEMA: &str = "clinch.schema.json";

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch init contacts                              contacts over HTTP into a CRM
  clinch init leads --template lead-router          signed leads to two partners
  clinch init carts --template cart-recovery        reminders and discounts by mail
  clinch init mine --template blank                 one flow, one worker, one target")]
pub struct Init {
    /// Where to; it is made if it is not there
    #[arg(default_value = ".", value_name = "DIR")]
    directory: PathBuf,
    /// What to start from
    #[arg(long, default_value = "contact-intake", value_parser = PossibleValuesParser::new(starters::ALL.iter().map(|starter| starter.name)), value_name = "NAME")]
    template: String,
    /// Write also where something is; files of the same name are replaced
    #[arg(long)]
    force: bool,
}

impl Init {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let starter = starters::find(&self.template).expect("the parser knows the templates");
        if !self.force {
            self.refuse_what_is_there()?;
        }
        let schema = serde_json::to_string_pretty(&clinch_core::config::json_schema()).expect("JSON is always JSON");
        write(&self.directory, SCHEMA, &(schema + "\n"))?;
        for (path, text, _) in starter.files {
            write(&self.directory, path, text)?;
        }
        let output = globals.output();
        let next = next_steps(&self.directory, starter);
        let files: Vec<_> =
            starter.files.iter().map(|(path, _, about)| json!({"path": path, "about": about})).collect();
        let document = json!({
            "schema": "clinch.init/v1",
            "directory": self.directory.display().to_string(),
            "template": starter.name,
            "files": files,
            "next": next,
        });
        render::show(output, &document, &self.directory.display().to_string(), || self.told(starter))?;
        for command in &next {
            render::next(output, command);
        }
        Ok(Exit::Done)
    }

    /// Only version control may be there before.
    fn refuse_what_is_there(&self) -> Result<(), Failure> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Ok(()) };
        let mut there: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        there.retain(|name| name != ".git");
        there.sort();
        let Some(first) = there.first() else { return Ok(()) };
        let (directory, count) = (self.directory.display(), there.len());
        let said = format!("{directory} is not empty: it has {first}{}", if count > 1 { " and more" } else { "" });
        Err(Failure::new(Exit::Conflict, "CL0551", said).fact("nothing was written").fix(
            "name a directory that is not there yet, or write with --force, which replaces files of the same name",
        ))
    }

    fn told(&self, starter: &Starter) -> String {
        let widest = starter.files.iter().map(|(path, ..)| path.len()).max().unwrap_or(0).max(SCHEMA.len());
        let mut text = format!("Created {} ({}: {})\n", self.directory.display(), starter.name, starter.title);
        let line = |path: &str, about: &str| format!("  {path:<widest$}  {about}\n");
        for (path, _, about) in starter.files {
            text += &line(path, about);
        }
        text + &line(SCHEMA, "what editors complete and check with")
    }
}

/// What works next, as it is printed.
fn next_steps(directory: &Path, starter: &Starter) -> Vec<String> {
    let go = match directory == Path::new(".") {
        true => None,
        false => Some(format!("cd {}", send::quoted(&directory.display().to_string()))),
    };
    let commands =
        ["clinch test".to_string(), "clinch serve --dev".into(), format!("clinch send {} --wait", starter.first)];
    go.into_iter().chain(commands).collect()
}

fn write(directory: &Path, path: &str, text: &str) -> Result<(), Failure> {
    let path = directory.join(path);
    let written =
        std::fs::create_dir_all(path.parent().unwrap_or(directory)).and_then(|()| std::fs::write(&path, text));
    written
        .map_err(|error| Failure::new(Exit::Failed, "CL0531", format!("{} cannot be written: {error}", path.display())))
}
