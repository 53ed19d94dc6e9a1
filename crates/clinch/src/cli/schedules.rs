//! `clinch schedules`: when each runs, what its last run came to, and a run now.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::shapes::{ScheduleList, ScheduleRun, ScheduleRunAsk};
use clap::Subcommand;
use clinch_core::time::human;
use serde_json::json;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch schedules ls
  clinch schedules run replay-contact-dlq --reason 'the CRM is back, INC-482'

A run is a job in the queue schedule.NAME: `clinch jobs ls --queue schedule.NAME` lists them.")]
pub enum Schedules {
    /// When each runs next, and what its last run came to
    Ls,
    /// Run one now, whatever its cron line says
    Run {
        /// The worker with the schedule
        #[arg(value_name = "NAME")]
        name: String,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl Schedules {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Schedules::Ls => {
                let answer = client.get::<ScheduleList>(&["schedules"], &[]).await?;
                let now = render::now();
                let mut table = Table::new(&["NAME", "CRON", "ZONE", "NEXT", "LAST RUN", "STATE"]);
                for row in &answer.told.schedules {
                    let next = row.next.map_or("never".to_string(), |at| format!("in {}", human(at.0.since(now))));
                    let state = match row.state.as_deref() {
                        Some("dead") => Cell::alarm("dead"),
                        state => Cell::text(state.unwrap_or("-")),
                    };
                    table.row(vec![
                        Cell::text(&row.name),
                        Cell::text(&row.cron),
                        Cell::text(&row.time_zone),
                        Cell::text(next),
                        Cell::text(row.job_id.as_deref().unwrap_or("-")),
                        state,
                    ]);
                }
                table.print(output, &answer.document, "schedules")?;
                if answer.told.schedules.is_empty() {
                    render::note("no worker has a schedule");
                }
                Ok(Exit::Done)
            }
            Schedules::Run { name, reason } => {
                let ask = json!(ScheduleRunAsk { reason: reason.clone() });
                let answer = client.post::<ScheduleRun>(&["schedules", name, "run"], &ask).await?;
                let job = &answer.told.job_id;
                render::show(output, &answer.document, job, || format!("{name} runs as {job}"))?;
                render::next(output, &format!("clinch jobs show {job}"));
                Ok(Exit::Done)
            }
        }
    }
}
