//! `clinch check`: reads a workspace and tells every problem at once.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::findings::{self, message};
use super::problems::Problems;
use super::render::{self, Output, RED};
use crate::api::settings::{Setting, SettingList};
use crate::runtimes;
use crate::workspace::read_files;
use clap::{Args, ValueEnum};
use clinch_core::config::{self, Files, Severity};
use clinch_core::control::Controls;
use clinch_core::live::{self, Beside, Live, LiveValue};
use clinch_core::protection::{Protection, Unprotected};
use clinch_store::sqlite;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch check                        this directory
  clinch check examples/contacts
  clinch check --format github        marks in a pull request
  clinch check --format sarif         for whoever collects such findings
  clinch check --json | jq '.problems[].message'")]
pub struct Check {
    /// The workspace: a directory with flows/, workers/, playbooks/ and queues.yml
    #[arg(default_value = ".")]
    directory: PathBuf,
    #[arg(long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Human,
    Json,
    /// A log of SARIF 2.1.0
    Sarif,
    /// Marks in a pull request
    Github,
}

impl Check {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let files = read_files(&self.directory).map_err(|error| {
            Failure::new(Exit::ConfigInvalid, "CL0527", format!("The workspace cannot be read: {error}"))
        })?;
        if files.0.is_empty() {
            let said = format!("There is no workspace in {}", self.directory.display());
            return Err(Failure::new(Exit::ConfigInvalid, "CL0527", said)
                .fact("a workspace is a directory with flows/*.yml, workers/*.yml, playbooks/*.yml and queues.yml")
                .fix("name the directory: clinch check DIR; or see one work: clinch demo"));
        }
        let mut open = Vec::new();
        let mut protection = None;
        let (found, refused) = match config::load(&files) {
            Ok((workspace, warnings)) => {
                protection = Some(Protection::of(&workspace));
                let ways = workspace.entrances().filter(|way| way.verify.is_none());
                open.extend(ways.map(|way| format!("{} ({} {})", way.path, way.to.0, way.to.1)));
                let missing = runtimes::missing(&workspace, Severity::Warning);
                (warnings.into_iter().chain(missing).collect(), workspace.refusals().len())
            }
            Err(problems) => (problems, 0),
        };
        // What is set can only be held against files that can be read.
        let live = match protection {
            Some(_) => live_values(globals).await.map(|values| beside(&files, &values)),
            None => Ok(Vec::new()),
        };
        let beside = live.as_deref().unwrap_or_default();
        let problems = Problems { directory: &self.directory, files: &files, found: &found };
        let usual = if matches!(globals.output(), Output::Json | Output::Jsonl) { Format::Json } else { Format::Human };
        match self.format.unwrap_or(usual) {
            Format::Human => {
                let shares =
                    protection.as_ref().and_then(protected).map_or_else(String::new, |text| "\n".to_owned() + &text);
                render::data(&(problems.human() + &shares + &told(beside)))?;
            }
            Format::Json => {
                let mut document = problems.json();
                document["protected_effects"] = protection.as_ref().map_or(Value::Null, protected_json);
                document["live"] = live.as_ref().map_or(Value::Null, |live| live.iter().map(beside_json).collect());
                render::json(Output::Json, &document)?;
            }
            Format::Sarif => render::json(Output::Json, &findings::sarif(&problems.findings()))?,
            Format::Github => {
                let notice = |beside: &Beside| format!("::notice title=live value::{}\n", message(&beside.to_string()));
                render::data(
                    &(findings::github(&problems.findings()) + &beside.iter().map(notice).collect::<String>()),
                )?;
            }
        }
        if problems.errors() > 0 {
            return Ok(Exit::ConfigInvalid);
        }
        if let Err(why) = &live {
            render::note(&format!("the files were not compared with live values (`clinch set`): {why}"));
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

/// What is set over the files in the running system, or in the store that it left; or why nobody can say.
async fn live_values(globals: &Globals) -> Result<Vec<LiveValue>, String> {
    let asked = match Client::open(globals) {
        Ok(client) => client.get::<SettingList>(&["settings"], &[]).await,
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(answer) => Ok(answer.told.settings.iter().filter_map(Setting::set).collect()),
        // Who names a server wants to know of that one.
        Err(failure) if globals.url.is_some() => Err(failure.message().into()),
        Err(failure) => match sqlite::controls_of(&globals.data_dir) {
            Ok(rows) => Ok(Controls::of(&rows).live(render::now()).cloned().collect()),
            Err(error) => Err(format!("{}, and {error}", failure.message())),
        },
    }
}

/// Each live value beside what these files say.
fn beside(files: &Files, values: &[LiveValue]) -> Vec<Beside> {
    let Some(Live { workspace, refused, .. }) = live::over(files, values) else { return Vec::new() };
    values.iter().map(|set| Beside::of(set, &workspace, &refused)).collect()
}

fn told(live: &[Beside]) -> String {
    let lines = live.iter().map(|beside| format!("\n  {}", render::clean(&beside.to_string())));
    match live.is_empty() {
        true => String::new(),
        false => format!("\nlive values: {} over the files{}", live.len(), lines.collect::<String>()),
    }
}

fn beside_json(Beside { set, file, counts, note }: &Beside) -> Value {
    json!({
        "name": &*set.name,
        "file": file,
        "value": set.value,
        "version": set.version,
        "since": set.since.to_string(),
        "until": set.until.map(|until| until.to_string()),
        "actor": set.actor,
        "reason": set.reason,
        "counts": counts,
        "note": note,
    })
}

/// The share of effects that a rule protects, and what to write for the others; nothing where nothing acts outside.
fn protected(found: &Protection) -> Option<String> {
    let percent = found.percent()?;
    let mut text =
        format!("protected effects: {} of {} ({percent} %)", found.protected(), render::count(found.steps, "step"));
    for Unprotected { worker, step, integration, advice } in &found.unprotected {
        let (worker, step, integration) = (render::clean(worker), render::clean(step), render::clean(integration));
        let _ = write!(text, "\n  {worker}/{step} ({integration}): {advice}");
    }
    Some(text)
}

fn protected_json(found: &Protection) -> Value {
    let unprotected = found.unprotected.iter().map(|step| {
        json!({"worker": step.worker, "step": step.step, "integration": step.integration, "advice": step.advice})
    });
    json!({
        "steps": found.steps,
        "protected": found.protected(),
        "percent": found.percent(),
        "unprotected": unprotected.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d5_check_tells_the_share_of_protected_effects_and_what_to_write() {
        let step = |step: &str| Unprotected {
            worker: "orders".into(),
            step: step.into(),
            integration: "crm".into(),
            advice: "write `idempotency: header`",
        };
        let found = Protection { steps: 9, unprotected: vec![step("mail"), step("call")] };
        let expected = "\
protected effects: 7 of 9 steps (78 %)
  orders/mail (crm): write `idempotency: header`
  orders/call (crm): write `idempotency: header`";
        assert_eq!(protected(&found).as_deref(), Some(expected));
        assert_eq!(protected(&Protection::default()), None);
        let told = protected_json(&found);
        assert_eq!((&told["steps"], &told["protected"], &told["percent"]), (&json!(9), &json!(7), &json!(78)));
        assert_eq!(told["unprotected"][1]["step"], "call");
    }
}
