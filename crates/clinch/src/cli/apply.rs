//! `clinch apply`, `clinch rollback`: another workspace becomes live, on all nodes, on record. Jobs in flight keep theirs.

use super::Globals;
use super::client::{Answer, Client};
use super::diff::{self, sound};
use super::exit::{Exit, Failure};
use super::render::{self, Output};
use crate::api::config::{ApplyAsk, ConfigApplied, RollbackAsk, SideAsk};
use clap::Args;
use serde_json::json;
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch apply --dry-run                              what it would mean
  clinch apply --reason 'new prices, REQ-77'          asks first
  clinch apply ./contacts --reason 'new prices' --yes
  clinch apply --reason 'new prices' --expect v41     only if nobody was faster

New events use the files from then on, on every node within a second. Jobs in flight keep the version that they were accepted
with. What has errors is refused, and nothing changes. What is only read at a start (listeners, TLS, encryption) is named;
a change of kv is refused.")]
pub struct Apply {
    /// The workspace
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    word: Word,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch flows ls                                     which versions there are
  clinch diff live v41                                what going back would mean
  clinch rollback v41 --reason 'wrong prices, INC-482'

The version stays live also when a server starts with files that were live before; `clinch apply` makes files live again.")]
pub struct Rollback {
    /// One that was live, such as v41
    #[arg(value_name = "VERSION")]
    version: String,
    #[command(flatten)]
    word: Word,
}

#[derive(Args, Debug)]
struct Word {
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Only if this version is live now, such as v41
    #[arg(long, value_name = "VERSION")]
    expect: Option<String>,
    /// Only tell what would change
    #[arg(long)]
    dry_run: bool,
}

impl Apply {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let files = sound(&self.directory)?;
        let files = SideAsk::of_files(&files).files.unwrap_or_default();
        let ask = |dry_run: bool, expect: Option<String>| {
            let reason = if dry_run { String::new() } else { self.word.reason.clone() };
            json!(ApplyAsk { files: files.clone(), reason, expect, dry_run })
        };
        run(globals, "apply", &self.word, ask).await
    }
}

impl Rollback {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let ask = |dry_run: bool, expect: Option<String>| {
            let reason = if dry_run { String::new() } else { self.word.reason.clone() };
            json!(RollbackAsk { version: self.version.clone(), reason, expect, dry_run })
        };
        run(globals, "rollback", &self.word, ask).await
    }
}

/// Shows what it means, asks, and does it: on the version that was shown, and no other.
async fn run(
    globals: &Globals,
    what: &str,
    word: &Word,
    ask: impl Fn(bool, Option<String>) -> serde_json::Value,
) -> Result<Exit, Failure> {
    let (client, output) = (Client::open(globals)?, globals.output());
    let path = ["config", what];
    let looked: Answer<ConfigApplied> = client.post(&path, &ask(true, word.expect.clone())).await?;
    let told = &looked.told;
    let for_people = matches!(output, Output::Table | Output::Plain);
    if for_people {
        render::data(&(diff::head(&told.diff) + &diff::meaning(&told.diff)))?;
    }
    if word.dry_run || told.diff.files.is_empty() {
        if !for_people {
            render::json(output, &looked.document)?;
        }
        let said =
            if told.diff.files.is_empty() { "it is live already; nothing was changed" } else { "nothing was changed" };
        render::note(said);
        return Ok(Exit::Done);
    }
    if word.reason.trim().is_empty() {
        let said = "Why? Nothing was changed: it is kept on record who made something live, and why";
        return Err(
            Failure::new(Exit::Refused, "CL0522", said).fix(format!("clinch {what} … --reason 'new prices, REQ-77'"))
        );
    }
    if !word.yes && !agreed(told.diff.risks)? {
        return Err(Failure::new(Exit::Refused, "CL0542", "Nothing was changed"));
    }
    let done: Answer<ConfigApplied> = client.post(&path, &ask(false, Some(told.before.clone()))).await?;
    let version = done.told.version.clone().unwrap_or_default();
    if !for_people {
        render::json(output, &done.document)?;
    }
    render::note(&format!("{version} is live; before it was {}", done.told.before));
    render::next(output, &format!("clinch rollback {} --reason '…'   (the way back)", done.told.before));
    Ok(Exit::Done)
}

fn agreed(risks: usize) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let said = "Nothing was changed: nobody is there to be asked";
        return Err(Failure::new(Exit::Refused, "CL0542", said).fix("read what it means above, then add --yes"));
    }
    let risks = match risks {
        0 => String::new(),
        risks => format!(" ({} to think of)", render::count(risks, "risk")),
    };
    eprint!("Make it live{risks}? [y/N] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    Ok(read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes"))
}
