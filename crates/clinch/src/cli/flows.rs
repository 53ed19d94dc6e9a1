//! `clinch flows`: what runs, in which versions of the workspace, and what is different between two of them.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, DIM, Table, age, clean, count};
use crate::api::flows::{FileDiff, FlowDiff, FlowList, FlowShow, LineShow, StepShow};
use clap::Subcommand;
use clinch_core::time::Timestamp;
use std::fmt::Write;

/// So many lines that are the same are shown around what is not.
const AROUND: usize = 3;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch flows ls
  clinch flows show orders
  clinch flows show orders --version v41 --files
  clinch flows diff orders v41 v42

Files are the source of truth: they are edited where they are kept, and read by `clinch serve`.")]
pub enum Flows {
    /// Flows, playbooks and schedules of the live workspace
    Ls,
    /// What starts one, its steps, and the versions of the workspace
    Show {
        #[arg(value_name = "NAME")]
        name: String,
        /// As it was in this one
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
        /// Print its files too
        #[arg(long)]
        files: bool,
    },
    /// What is different between two versions, line by line
    Diff {
        #[arg(value_name = "NAME")]
        name: String,
        #[arg(value_name = "FROM")]
        from: String,
        #[arg(value_name = "TO")]
        to: String,
    },
}

impl Flows {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (client, output) = (Client::open(globals)?, globals.output());
        match self {
            Flows::Ls => {
                let answer = client.get::<FlowList>(&["flows"], &[]).await?;
                let mut table = Table::new(&["NAME", "KIND", "STEPS", "UNFINISHED", "STARTS", "FILE"]);
                for row in &answer.told.flows {
                    table.row(vec![
                        Cell::text(&row.name),
                        Cell::text(&row.kind),
                        Cell::number(row.steps as u64),
                        Cell::number(row.unfinished),
                        Cell::short(row.starts.join(", "), 48),
                        Cell::text(row.file.as_deref().unwrap_or("-")),
                    ]);
                }
                table.print(output, &answer.document, "flows")?;
                render::note(&format!("the live workspace is {}", answer.told.version));
            }
            Flows::Show { name, version, files } => {
                let query = given(&[("version", version.clone())]);
                let answer = client.get::<FlowShow>(&["flows", name], &query).await?;
                render::show(output, &answer.document, name, || text(&answer.told, *files, render::now()))?;
                if let [newest, before, ..] = answer.told.versions.as_slice() {
                    let (from, to) = (&before.version, &newest.version);
                    render::next(output, &format!("clinch flows diff {name} {from} {to}"));
                }
            }
            Flows::Diff { name, from, to } => {
                let query = [("from", from.clone()), ("to", to.clone())];
                let answer = client.get::<FlowDiff>(&["flows", name, "diff"], &query).await?;
                render::show(output, &answer.document, name, || difference(&answer.told))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn text(told: &FlowShow, with_files: bool, now: Timestamp) -> String {
    let (name, kind, version) = (clean(&told.name), clean(&told.kind), clean(&told.version));
    let mut text = format!("{BOLD}{name}{BOLD:#}  {kind} of {version}\n");
    let _ = writeln!(text, "starts     {}", clean(&told.starts.join(", ")));
    for worker in &told.workers {
        let steps: Vec<String> = worker.steps.iter().map(step).collect();
        let _ = writeln!(text, "worker     {} (queue {})", clean(&worker.name), clean(&worker.queue));
        let _ = writeln!(text, "           {}", steps.join(" > "));
    }
    for version in told.versions.iter().take(10) {
        let live = if version.live { "  live" } else { "" };
        let jobs = count(usize::try_from(version.unfinished).unwrap_or(usize::MAX), "unfinished job");
        let (name, hash, age) = (clean(&version.version), clean(&version.hash), age(version.at, now));
        let _ = writeln!(text, "{name:<10} {hash}  {age} ago  {jobs}{live}");
    }
    if with_files {
        for file in &told.files {
            let _ = writeln!(text, "\n{DIM}{}{DIM:#}", clean(&file.path));
            file.text.lines().for_each(|line| text += &format!("{}\n", clean(line)));
        }
    }
    text
}

fn step(step: &StepShow) -> String {
    let name = clean(&step.name);
    match &step.integration {
        Some(partner) => format!("{name} ({} {})", clean(&step.does), clean(partner)),
        None => format!("{name} ({})", clean(&step.does)),
    }
}

fn difference(told: &FlowDiff) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}  {} -> {}\n", clean(&told.name), clean(&told.from), clean(&told.to));
    if told.files.is_empty() {
        text += "nothing of it is different\n";
    }
    text += &changed_lines(&told.files);
    text
}

/// What changed in each file, and a little around it.
pub fn changed_lines(files: &[FileDiff]) -> String {
    let mut text = String::new();
    for file in files {
        let _ = writeln!(text, "\n{} ({})", clean(&file.path), clean(&file.change));
        let mut skipped = false;
        for (place, line) in file.lines.iter().enumerate() {
            let near = file.lines[place.saturating_sub(AROUND)..(place + AROUND + 1).min(file.lines.len())].iter();
            if near.clone().all(|line| line.kind == "same") {
                skipped = true;
                continue;
            }
            if std::mem::take(&mut skipped) {
                text += "  …\n";
            }
            text += &one(line);
        }
    }
    text
}

fn one(line: &LineShow) -> String {
    let style = match line.kind.as_str() {
        "added" => render::state_style("success"),
        "removed" => render::state_style("dead"),
        _ => anstyle::Style::new(),
    };
    let sign = match line.kind.as_str() {
        "added" => '+',
        "removed" => '-',
        _ => ' ',
    };
    let number = line.to.or(line.from).map_or_else(String::new, |number| number.to_string());
    format!("{number:>5} {style}{sign} {}{style:#}\n", clean(&line.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g3_a_difference_shows_what_changed_and_a_little_around_it() {
        let line = |kind: &str, from: Option<usize>, to: Option<usize>, text: &str| LineShow {
            kind: kind.into(),
            from,
            to,
            text: text.into(),
        };
        let mut lines: Vec<LineShow> =
            (1..=6).map(|no| line("same", Some(no), Some(no), &format!("line {no}"))).collect();
        lines.push(line("removed", Some(7), None, "max: 8"));
        lines.push(line("added", None, Some(7), "max: 12"));
        let told = FlowDiff {
            schema: String::new(),
            name: "orders".into(),
            from: "v1".into(),
            to: "v2".into(),
            changes: Vec::new(),
            files: vec![FileDiff { path: "workers/charge.yml".into(), change: "changed".into(), lines }],
        };
        let text = anstream::adapter::strip_str(&difference(&told)).to_string();
        let expected = "\
orders  v1 -> v2

workers/charge.yml (changed)
  …
    4   line 4
    5   line 5
    6   line 6
    7 - max: 8
    7 + max: 12
";
        assert_eq!(text, expected);
    }
}
