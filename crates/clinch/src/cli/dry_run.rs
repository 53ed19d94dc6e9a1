//! `clinch dry-run`: events through the files, beside what is live. Nothing is sent.

use super::Globals;
use super::client::{Answer, Client};
use super::diff::{Named, sound};
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Output, RED, clean, count, thousands};
use crate::api::config::{Compared, SideAsk, SideShow};
use crate::api::dry_run::{DryRun, DryRunAsk};
use crate::forecast::{JobPlan, StepPlan};
use crate::trials::foresight;
use clap::{Args, ValueEnum};
use clinch_core::config::{self, Files, Workspace};
use clinch_core::id::EventId;
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::Read;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch dry-run --last 100                            the files here, beside what is live
  clinch dry-run orders --last 1000 --exit-code        only this flow; 10 when a plan differs
  clinch dry-run --event evt_01HZX5T0N8W2A             one event, with its plan
  clinch dry-run orders --event event.json             an event that nobody sent; no server is needed
  clinch dry-run orders --event - --expect plan.json   and the plan that it must have
  clinch dry-run orders --event event.json --against main   beside what it would be in a commit

A plan is the steps in order, each with whether it runs, and for an effect whom it calls, where, under which key, and a fingerprint
of all that would be sent. Conditions and templates are evaluated; nobody is called, no script runs, nothing is written. Answers of
earlier steps are those of the recorded event; where there are none, a plan says which it needs.

An event that nobody sent is planned by the server that runs here, or that --url names, beside what is live there. Where none does, it is
planned by these files alone: no duplicate and no ledger is known then, and secrets are stand-ins.")]
pub struct DryRunCommand {
    /// Only this flow; needed for an event from a file, if there are several
    #[arg(value_name = "FLOW")]
    flow: Option<String>,
    /// The workspace that is tried
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// A recorded event, by its id, or the body of one: a file, or - for standard input
    #[arg(long, value_name = "FILE|ID|-", conflicts_with = "last")]
    event: Option<String>,
    /// The newest so many recorded events, 10,000 at most
    #[arg(long, value_name = "N", required_unless_present = "event")]
    last: Option<usize>,
    /// What it is compared with: a version, `live`, a directory, or a commit by a name that git knows; `live` if not given
    #[arg(long, value_name = "VERSION")]
    against: Option<String>,
    /// What of a plan is shown
    #[arg(long, value_enum, default_value = "all")]
    show: Show,
    /// A JSON file with the plan that one event must have; what it leaves out is not looked at
    #[arg(long, value_name = "FILE", requires = "event")]
    expect: Option<PathBuf>,
    /// Exit with 10 when a plan differs
    #[arg(long)]
    exit_code: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Show {
    /// Each step and whether it runs
    Steps,
    /// Only what would be sent
    Effects,
    All,
}

impl DryRunCommand {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (event, body) = self.asked()?;
        let files = sound(&self.workspace)?;
        let flow = match &self.flow {
            None if body.is_some() => Some(only_flow(&files)?),
            flow => flow.clone(),
        };
        let named = |text: &String| Named::of(text, &self.workspace);
        let against = self.against.as_ref().map(named).transpose()?;
        let side = against.as_ref().map(Named::ask).transpose()?;
        let other = against.as_ref().map(Named::here).transpose()?.flatten();
        let ask = DryRunAsk { to: SideAsk::of_files(&files), against: side, flow, last: self.last, event, body };
        let needs_store = ask.body.is_none() || matches!(against, Some(Named::Version(_)));
        let answer = match Client::open(globals) {
            Ok(client) => client.post(&["config", "dry-run"], &json!(ask)).await,
            Err(failure) => Err(failure),
        };
        let mut answer = match answer {
            // Nobody is there, nobody was named, and nobody is needed.
            Err(nobody) if nobody.exit == Exit::NotReachable && globals.url.is_none() && !needs_store => {
                self.alone(&ask, &files, other.as_ref()).await?
            }
            answer => answer?,
        };
        // To the one who planned they were files.
        if let Some(other) = other {
            answer.document["from"]["name"] = json!(other.name);
            answer.told.from.name = other.name;
        }
        let (told, output) = (&answer.told, globals.output());
        match output {
            Output::Json | Output::Jsonl => render::json(output, &answer.document)?,
            Output::Id => {
                render::data(&told.differences.iter().map(|one| format!("{}\n", one.event)).collect::<String>())?
            }
            Output::Table | Output::Plain => render::data(&text(told, self.show))?,
        }
        if let Some(file) = &self.expect {
            let plan = json!(told.plan);
            let missing = unlike(&read_json(file)?, &plan, "plan");
            if !missing.is_empty() {
                let failure = Failure::new(Exit::Failed, "CL0543", "The plan is not the expected one");
                return Err(missing.into_iter().fold(failure, Failure::fact));
            }
        }
        match self.exit_code && told.different > 0 {
            true => Ok(Exit::Findings),
            false => Ok(Exit::Done),
        }
    }

    /// By the files that are here.
    async fn alone(&self, ask: &DryRunAsk, files: &Files, other: Option<&Compared>) -> Result<Answer<DryRun>, Failure> {
        let both = [Some(files), other.map(|other| &other.files)].into_iter().flatten();
        let workspaces: Vec<Workspace> = both.filter_map(|files| Some(config::load(files).ok()?.0)).collect();
        let mut told = foresight::ask(&self.workspace, &workspaces, ask).await.map_err(|why| {
            Failure::new(Exit::ConfigInvalid, "CL0543", format!("Nothing can be planned without a server: {why}"))
        })?;
        if other.is_none() {
            told.from = told.to.clone();
        }
        render::note(
            "no server was asked: duplicates and what was done before are not known, and secrets are stand-ins",
        );
        Ok(Answer { document: json!(told), told })
    }

    /// The id of an event, or the body of one.
    fn asked(&self) -> Result<(Option<String>, Option<Value>), Failure> {
        let Some(event) = &self.event else { return Ok((None, None)) };
        if event.parse::<EventId>().is_ok() {
            return Ok((Some(event.clone()), None));
        }
        if event == "-" {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            let value = read.ok().and_then(|_| serde_json::from_str(&text).ok());
            let value = value.ok_or_else(|| Failure::new(Exit::Usage, "CL0543", "Standard input is not JSON"))?;
            return Ok((None, Some(value)));
        }
        Ok((None, Some(read_json(&PathBuf::from(event))?)))
    }
}

/// Who takes an event, where nobody else could.
fn only_flow(files: &Files) -> Result<String, Failure> {
    let flows = config::load(files).map(|(workspace, _)| workspace.flows).unwrap_or_default();
    match &flows[..] {
        [flow] => Ok(flow.name.clone()),
        flows => {
            let names: Vec<&str> = flows.iter().map(|flow| flow.name.as_str()).collect();
            Err(Failure::new(Exit::Usage, "CL0543", "It is not said which flow would take this event")
                .fix(format!("clinch dry-run FLOW --event …, where FLOW is one of: {}", names.join(", "))))
        }
    }
}

fn read_json(path: &PathBuf) -> Result<Value, Failure> {
    let refuse = |why: String| Failure::new(Exit::Usage, "CL0543", format!("{} cannot be read: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))
}

/// Where the plan does not have what is expected. What is not expected is not looked at.
fn unlike(expected: &Value, found: &Value, at: &str) -> Vec<String> {
    match (expected, found) {
        (Value::Object(fields), Value::Object(others)) => {
            let other = |name: &str| others.get(name).unwrap_or(&Value::Null);
            fields.iter().flat_map(|(name, value)| unlike(value, other(name), &format!("{at}.{name}"))).collect()
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            let pairs = items.iter().zip(others).enumerate();
            pairs.flat_map(|(nth, (item, other))| unlike(item, other, &format!("{at}[{nth}]"))).collect()
        }
        (Value::Array(items), Value::Array(others)) => {
            vec![format!("{at}: {} instead of {}", count(others.len(), "item"), items.len())]
        }
        _ if expected == found => Vec::new(),
        _ => vec![format!("{at}: {found} instead of {expected}")],
    }
}

fn text(told: &DryRun, show: Show) -> String {
    let side = |side: &SideShow| format!("{} ({})", clean(&side.name), side.hash);
    let is_compared = told.from != told.to;
    let sides = if is_compared { format!("{}  ->  {}", side(&told.from), side(&told.to)) } else { side(&told.to) };
    let mut text = format!("{BOLD}{sides}{BOLD:#}\n{}, masked, nothing sent\n", count(told.events, "event"));
    if is_compared {
        let _ = writeln!(text, "  {:>6}  same plan", thousands(told.same as u64));
    }
    if told.different > 0 {
        let _ = writeln!(text, "  {RED}{:>6}  different{RED:#}", thousands(told.different as u64));
    }
    if told.unreadable > 0 {
        let _ = writeln!(text, "  {:>6}  cannot be read any more", thousands(told.unreadable as u64));
    }
    for one in &told.differences {
        let _ = writeln!(text, "{}  {}", clean(&one.event), clean(&one.said.join("; ")));
    }
    if told.different > told.differences.len() {
        let _ = writeln!(text, "… {} more differ", thousands((told.different - told.differences.len()) as u64));
    }
    for plan in told.plan.iter().flatten() {
        job(plan, show, &mut text);
    }
    text
}

fn job(plan: &JobPlan, show: Show, text: &mut String) {
    let worker = plan.worker.as_deref().map_or_else(|| "nobody runs it".into(), |worker| format!("worker {worker}"));
    let _ = writeln!(text, "{BOLD}{}{BOLD:#}  queue {}, {}", clean(&plan.flow), clean(&plan.queue), clean(&worker));
    for StepPlan { name, verdict, why, effect } in &plan.steps {
        if show == Show::Effects && effect.is_none() {
            continue;
        }
        let why = why.as_ref().map_or_else(String::new, |why| format!("  {}", clean(why)));
        let _ = writeln!(text, "  {verdict:<11} {}{why}", clean(name));
        if let Some(effect) = effect.as_ref().filter(|_| show != Show::Steps) {
            let (whom, does) = (clean(&effect.integration), clean(&effect.does));
            let _ = writeln!(
                text,
                "              {whom}: {does}\n              key {}  sends {}",
                effect.key, effect.fingerprint
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j2_what_is_not_expected_is_not_looked_at() {
        let plan =
            json!([{"flow": "orders", "steps": [{"name": "a", "verdict": "run"}, {"name": "b", "verdict": "skip"}]}]);
        let check = |expected: Value, said: &[&str]| assert_eq!(unlike(&expected, &plan, "plan"), said);
        check(json!([{"steps": [{"verdict": "run"}, {"verdict": "skip"}]}]), &[]);
        check(
            json!([{"steps": [{"verdict": "run"}, {"verdict": "run"}]}]),
            &[r#"plan[0].steps[1].verdict: "skip" instead of "run""#],
        );
        check(json!([{"steps": [{}]}]), &["plan[0].steps: 2 items instead of 1"]);
        check(json!([{"queue": "q"}]), &[r#"plan[0].queue: null instead of "q""#]);
    }
}
