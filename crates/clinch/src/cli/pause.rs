//! `clinch pause`, `clinch resume`, `clinch pauses`: what stands still until somebody says otherwise.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::controls::{PauseAsk, PauseList, PauseSet, ResumeAsk, Resumed};
use clap::Args;
use clinch_core::control::Scope;
use serde_json::json;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch pause integration:crm --reason 'their migration, INC-482' --until 2h
  clinch pause queue:orders --reason 'wrong prices' --until 2026-11-20T08:00:00Z
  clinch pause replays --reason 'the partner is slow'

Events are accepted and answered as before; their jobs wait, and waiting costs no attempt. What is running ends. A pause
survives a restart and counts on all nodes.")]
pub struct Pause {
    /// queue:NAME, flow:NAME, playbook:NAME, integration:NAME, source:NAME or replays
    #[arg(value_name = "SCOPE")]
    scope: Scope,
    /// Why; it is kept on record and shown while it lasts
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// When it ends by itself: a time, or how long from now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

#[derive(Args, Debug)]
pub struct Resume {
    /// What was paused, as `clinch pauses` lists it
    #[arg(value_name = "SCOPE")]
    scope: Scope,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

#[derive(Args, Debug)]
pub struct Pauses;

impl Pause {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let ask = PauseAsk { scope: self.scope.to_string(), reason: self.reason.clone(), until: self.until.clone() };
        let answer = Client::open(globals)?.post::<PauseSet>(&["pauses"], &json!(ask)).await?;
        let PauseSet { pause, before, .. } = &answer.told;
        render::show(output, &answer.document, &pause.scope, || {
            let was = if *before { "was paused already; from now on it is" } else { "is" };
            let until = pause.until.map_or_else(|| "it is resumed".into(), |until| until.0.to_string());
            format!("{} {was} paused until {until}; events are still accepted", pause.scope)
        })?;
        render::next(output, &format!("clinch resume {}", self.scope));
        Ok(Exit::Done)
    }
}

impl Resume {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let scope = self.scope.to_string();
        let ask = json!(ResumeAsk { reason: self.reason.clone() });
        let answer = Client::open(globals)?.post::<Resumed>(&["pauses", &scope, "resume"], &ask).await?;
        render::show(globals.output(), &answer.document, &scope, || match answer.told.resumed {
            true => format!("{scope} goes on; jobs that were sent away come back within a minute, the more the slower"),
            false => format!("{scope} was not paused"),
        })?;
        Ok(Exit::Done)
    }
}

impl Pauses {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let answer = Client::open(globals)?.get::<PauseList>(&["pauses"], &[]).await?;
        let now = render::now();
        let mut table = Table::new(&["SCOPE", "SINCE", "UNTIL", "BY", "REASON"]);
        for pause in &answer.told.pauses {
            table.row(vec![
                Cell::alarm(&pause.scope),
                Cell::age(pause.since, now),
                Cell::text(pause.until.map_or_else(|| "resumed".into(), |until| until.0.to_string())),
                Cell::text(&pause.actor),
                Cell::text(&pause.reason),
            ]);
        }
        table.print(globals.output(), &answer.document, "pauses")?;
        if answer.told.pauses.is_empty() {
            render::note("nothing is paused");
        }
        Ok(Exit::Done)
    }
}
