//! `clinch dlq drop`: gives dead letters up, with a reason and a second person. It can be taken back.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table};
use crate::api::drops::{DropList, DropsAsk, DropsDone};
use clap::{Args, Subcommand};
use clinch_core::id::JobId;
use serde_json::json;

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  clinch dlq drop job_01HZX5T0N8W2A --reason 'poison, INC-482'           asks for it
  clinch dlq drop ls                                                    what waits for a second person
  clinch dlq drop confirm job_01HZX5T0N8W2A --reason 'seen, agreed'      by somebody else, or a day later
  clinch dlq undrop job_01HZX5T0N8W2A --reason 'it was good'             within 30 days"
)]
pub struct Drop {
    #[command(subcommand)]
    then: Option<Then>,
    #[command(flatten)]
    which: Option<Which>,
}

#[derive(Subcommand, Debug)]
pub enum Then {
    /// Confirm what somebody else asked for; or oneself, after a day
    Confirm(Which),
    /// List what was asked for and not confirmed
    Ls,
}

#[derive(Args, Debug)]
pub struct Which {
    /// The dead letters
    #[arg(value_name = "ID", required = true)]
    ids: Vec<JobId>,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl Drop {
    pub async fn run(&self, client: &Client, output: Output) -> Result<Exit, Failure> {
        match (&self.then, &self.which) {
            (Some(Then::Ls), _) => list(client, output).await,
            (Some(Then::Confirm(which)), _) => which.run(client, output, &["dead", "drop", "confirm"]).await,
            (None, Some(which)) => which.run(client, output, &["dead", "drop"]).await,
            (None, None) => unreachable!("clap asks for an id"),
        }
    }
}

impl Which {
    pub async fn run(&self, client: &Client, output: Output, path: &[&str]) -> Result<Exit, Failure> {
        if self.reason.trim().is_empty() {
            return Err(Failure::new(Exit::Refused, "CL0522", "This needs a reason; it is kept on record")
                .fix("say it with --reason TEXT"));
        }
        let ask = DropsAsk { jobs: self.ids.iter().map(ToString::to_string).collect(), reason: self.reason.clone() };
        let answer = client.post::<DropsDone>(path, &json!(ask)).await?;
        let mut table = Table::new(&["JOB", "OUTCOME", "WHAT"]);
        for job in &answer.told.jobs {
            table.row(vec![Cell::text(&job.job_id), Cell::state(&job.outcome), Cell::text(&job.said)]);
        }
        table.print(output, &answer.document, "jobs")?;
        let refused = answer.told.jobs.iter().filter(|job| job.outcome == "refused").count();
        Ok(match refused {
            0 => Exit::Done,
            all if all == answer.told.jobs.len() => Exit::Conflict,
            _ => Exit::Partly,
        })
    }
}

async fn list(client: &Client, output: Output) -> Result<Exit, Failure> {
    let answer = client.get::<DropList>(&["dead", "drops"], &[]).await?;
    let now = render::now();
    let mut table = Table::new(&["JOB", "FLOW", "ASKED", "BY", "REASON", "ALONE FROM"]);
    for drop in &answer.told.drops {
        table.row(vec![
            Cell::text(&drop.job_id),
            Cell::text(&drop.flow),
            Cell::age(drop.asked_at, now),
            Cell::text(&drop.asked_by),
            Cell::short(&drop.reason, 60),
            Cell::text(drop.alone_from.0.to_string()),
        ]);
    }
    table.print(output, &answer.document, "drops")?;
    match answer.told.drops.first() {
        None => render::note("nobody wants a dead letter dropped"),
        Some(first) => render::next(output, &format!("clinch dlq drop confirm {} --reason TEXT", first.job_id)),
    }
    Ok(Exit::Done)
}
