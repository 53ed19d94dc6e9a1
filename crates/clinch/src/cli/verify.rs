//! `clinch verify`: the accounting, proved from the store alone. It reads only; a server may be running.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, thousands};
use clap::Args;
use clinch_store::verify::Report;
use clinch_store::{postgres, sqlite};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch verify                          the store in .clinch
  clinch verify /var/lib/clinch
  clinch verify --store postgres://clinch@db.internal/clinch
  clinch verify --json | jq .problems

Exits with 1 when something does not add up.")]
pub struct Verify {
    /// The directory of the store; the data directory if not given
    directory: Option<PathBuf>,
    /// A database instead of a directory: postgres://…
    #[arg(long, env = "CLINCH_STORE", value_name = "STORE", conflicts_with = "directory")]
    store: Option<String>,
}

impl Verify {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let report = self.report(globals).await.map_err(|error| {
            Failure::new(Exit::Failed, "CL0526", error.to_string())
                .fix("name the store: clinch verify DIR, or --store postgres://…")
        })?;
        render::show(globals.output(), &document(&report), "", || text(&report))?;
        match report.problems.len() {
            0 => Ok(Exit::Done),
            problems => {
                let said = format!("The store does not add up: {}", render::count(problems, "problem"));
                Err(Failure::new(Exit::Failed, "CL0525", said)
                    .fix("stop the server, keep a copy of the directory, and report it"))
            }
        }
    }
}

impl Verify {
    async fn report(&self, globals: &Globals) -> clinch_store::Result<Report> {
        match self.store.as_deref().map(|store| store.strip_prefix("sqlite:").ok_or(store)) {
            Some(Err(url)) => postgres::verify(url, render::now()).await,
            Some(Ok(directory)) => sqlite::verify(Path::new(directory), render::now()),
            None => sqlite::verify(self.directory.as_ref().unwrap_or(&globals.data_dir), render::now()),
        }
    }
}

fn document(report: &Report) -> Value {
    let named = |parts: &[(&'static str, i64)]| -> Map<String, Value> {
        parts.iter().map(|(name, number)| (name.replace(' ', "_"), json!(number))).collect()
    };
    json!({
        "schema": "clinch.verify/v1",
        "accepted": report.accepted,
        "parts": named(&report.parts),
        "events": report.events,
        "effects": named(&report.effects),
        "audit_rows": report.audit_rows,
        "problems": report.problems,
    })
}

fn text(report: &Report) -> String {
    let number = |number: i64| thousands(number.unsigned_abs());
    let told = |parts: &[(&str, i64)], between: &str| {
        parts.iter().map(|(name, part)| format!("{} {name}", number(*part))).collect::<Vec<_>>().join(between)
    };
    let mut text =
        format!("{BOLD}{} jobs accepted{BOLD:#} = {}\n", number(report.accepted), told(&report.parts, " + "));
    text += &format!("{} events accepted\n", number(report.events));
    text += &format!("effects: {}\n", told(&report.effects, ", "));
    text += &format!("audit: {} rows in a chain\n", thousands(report.audit_rows));
    for problem in &report.problems {
        text += &format!("problem: {}\n", render::clean(problem));
    }
    if report.problems.is_empty() {
        text += "ok: everything that was accepted is accounted for\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p5_the_accounting_is_told_as_a_sum() {
        let mut report = Report {
            accepted: 1_007,
            parts: vec![("queued", 1), ("success", 1_006), ("expired by retention", 0)],
            events: 1_007,
            effects: vec![("done", 5), ("not done", 1)],
            audit_rows: 3,
            problems: vec![],
        };
        let told = anstream::adapter::strip_str(&text(&report)).to_string();
        assert!(
            told.starts_with("1,007 jobs accepted = 1 queued + 1,006 success + 0 expired by retention\n"),
            "{told}"
        );
        assert!(told.contains("effects: 5 done, 1 not done") && told.ends_with("accounted for\n"), "{told}");
        report.problems.push("jobs have no event".into());
        assert!(text(&report).contains("problem: jobs have no event"));
        assert_eq!(document(&report)["effects"]["not_done"], 1);
    }
}
