//! `clinch audit`: who did what, from where and why; whether that record is whole; and a copy of it for others.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table, thousands};
use crate::api::shapes::{Audit as Row, AuditList, AuditVerified, Moment};
use clap::{Args, Subcommand, ValueEnum};
use clinch_core::audit::Digest;
use clinch_core::time::parse_duration;
use serde_json::Value;

/// So many rows are asked for at once when all are wanted.
const PART: &str = "1000";

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch audit ls --since 24h
  clinch audit ls --actor maya --action 'job.*'
  clinch audit ls --object job_01HZX5T0N8W2A --json
  clinch audit verify
  clinch audit verify --head 9f86d081884c7d65…      the hash that was noted last month
  clinch audit export --format csv --since 2026-01-01T00:00:00Z > audit.csv

Rows are only ever added, and each is chained to the one before it. Note the head that `verify` prints somewhere else:
with it even an audit that was written anew from the beginning is found out.")]
pub enum Audit {
    /// What was done, newest first
    Ls {
        #[command(flatten)]
        which: Which,
        /// Only older ones: the number of the last row of the page before
        #[arg(long, value_name = "NO")]
        before: Option<u64>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Prove that no row was changed, removed, added or swapped
    Verify {
        /// A hash that was noted before and must still be in it
        #[arg(long, value_name = "HASH")]
        head: Option<Digest>,
    },
    /// Print all of it, oldest first
    Export {
        #[command(flatten)]
        which: Which,
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

#[derive(Args, Debug)]
pub struct Which {
    /// Only what this one did: a user, `admin`, or `clinch` for what it did by itself
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only this: job.replay, or all of a family: 'job.*'
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only what was done to this: an id, or kind:name
    #[arg(long, value_name = "OBJECT")]
    object: Option<String>,
    /// From then on: a time like 2026-01-31T12:00:00Z, or how long ago: 24h
    #[arg(long, value_name = "TIME", value_parser = when)]
    since: Option<Moment>,
    /// Before then
    #[arg(long, value_name = "TIME", value_parser = when)]
    until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON value per line, with everything that goes into the hash
    #[default]
    Jsonl,
    /// For spreadsheets
    Csv,
}

fn when(text: &str) -> Result<Moment, String> {
    match parse_duration(text) {
        Ok(ago) => Ok(Moment(render::now() - ago)),
        Err(_) => {
            text.parse().map_err(|_| "write a time like 2026-01-31T12:00:00Z, or how long ago, like 24h".to_string())
        }
    }
}

impl Which {
    fn query(&self) -> Vec<(&'static str, String)> {
        let time = |at: Option<Moment>| at.map(|at| at.0.to_string());
        given(&[
            ("actor", self.actor.clone()),
            ("action", self.action.clone()),
            ("object", self.object.clone()),
            ("since", time(self.since)),
            ("until", time(self.until)),
        ])
    }
}

impl Audit {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let client = Client::open(globals)?;
        match self {
            Audit::Ls { which, before, limit } => {
                let mut query = which.query();
                query.extend(given(&[
                    ("before", before.map(|no| no.to_string())),
                    ("limit", limit.map(|limit| limit.to_string())),
                ]));
                list(&client, globals.output(), &query).await
            }
            Audit::Verify { head } => verify(&client, globals.output(), *head).await,
            Audit::Export { which, format } => export(&client, which.query(), *format).await,
        }
    }
}

async fn list(client: &Client, output: Output, query: &[(&'static str, String)]) -> Result<Exit, Failure> {
    let answer = client.get::<AuditList>(&["audit"], query).await?;
    let now = render::now();
    let mut table = Table::new(&["NO", "AGE", "ACTOR", "FROM", "ACTION", "OBJECT", "CHANGE", "REASON"]);
    for row in &answer.told.audit {
        table.row(vec![
            Cell::number(row.no),
            Cell::age(row.at, now),
            Cell::text(&row.actor),
            Cell::text(&row.origin),
            Cell::text(&row.action),
            Cell::text(&row.object),
            Cell::short(row.change(), 60),
            Cell::short(&row.reason, 40),
        ]);
    }
    table.print(output, &answer.document, "audit")?;
    match answer.told.audit.last() {
        None => render::note("nothing of the kind is on record"),
        Some(last) if answer.told.more => render::note(&format!("there are more: --before {}", last.no)),
        Some(_) => {}
    }
    Ok(Exit::Done)
}

async fn verify(client: &Client, output: Output, head: Option<Digest>) -> Result<Exit, Failure> {
    let query = given(&[("head", head.map(|head| head.to_string()))]);
    let answer = client.get::<AuditVerified>(&["audit", "verify"], &query).await?;
    let told = &answer.told;
    let sentence = || match told.ok {
        true => format!("ok: {} rows, each as it was written; head {}", thousands(told.rows), told.head),
        false => format!("broken; {} rows by its own count", thousands(told.rows)),
    };
    render::show(output, &answer.document, &told.head, sentence)?;
    match &told.problem {
        None => Ok(Exit::Done),
        Some(problem) => Err(Failure::new(Exit::Failed, "CL0540", format!("The audit is not whole: {problem}"))
            .fix("keep a copy of the store, and compare it with a backup or an export from before")),
    }
}

async fn export(client: &Client, query: Vec<(&'static str, String)>, format: Format) -> Result<Exit, Failure> {
    if format == Format::Csv {
        render::data(&csv(&COLUMNS.map(String::from)))?;
    }
    let mut after = 0;
    loop {
        let mut query = query.clone();
        query.extend([("after", after.to_string()), ("limit", PART.to_string())]);
        let answer = client.get::<AuditList>(&["audit"], &query).await?;
        let items = answer.document["audit"].as_array().map_or(&[][..], Vec::as_slice);
        for (row, item) in answer.told.audit.iter().zip(items) {
            render::data(&line(row, item, format))?;
            after = row.no;
        }
        if !answer.told.more {
            return Ok(Exit::Done);
        }
    }
}

const COLUMNS: [&str; 11] =
    ["no", "at", "actor", "origin", "action", "object", "job_id", "before", "after", "reason", "hash"];

fn line(row: &Row, item: &Value, format: Format) -> String {
    if format == Format::Jsonl {
        return format!("{item}\n");
    }
    let maybe = |text: &Option<String>| text.clone().unwrap_or_default();
    csv(&[
        row.no.to_string(),
        row.at.0.to_string(),
        row.actor.clone(),
        row.origin.clone(),
        row.action.clone(),
        row.object.clone(),
        maybe(&row.job_id),
        maybe(&row.before),
        maybe(&row.after),
        row.reason.clone(),
        row.hash.clone(),
    ])
}

/// RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe before it.
fn csv(cells: &[String]) -> String {
    let cell = |text: &String| {
        let text = match text.chars().next() {
            Some('=' | '+' | '-' | '@' | '\t' | '\r') => format!("'{text}"),
            _ => text.clone(),
        };
        match text.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text,
        }
    };
    cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g3_a_csv_cell_is_neither_cut_by_its_text_nor_a_formula() {
        let told = csv(&["a,b".into(), "say \"x\"".into(), "=1+1".into(), "two\nlines".into(), String::new()]);
        assert_eq!(told, "\"a,b\",\"say \"\"x\"\"\",'=1+1,\"two\nlines\",\r\n");
    }

    #[test]
    fn g3_a_time_is_told_as_such_or_as_so_long_ago() {
        assert_eq!(when("2026-01-31T12:00:00Z").expect("a time").0.to_string(), "2026-01-31T12:00:00.000Z");
        assert!(when("24h").expect("ago").0 < render::now());
        assert!(when("yesterday").is_err());
    }
}
