//! `clinch keys`: what the store is encrypted with, and a change of it while the server serves.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table, thousands};
use crate::api::shapes::{ChoreShow, KeysList};
use clap::Subcommand;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::time::Duration;

/// How often a chore is looked at.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch keys ls                   which keys, and how much is under each
  clinch keys rotate               a new key for everything, while the server serves

With a key file (encryption.key) a rotation makes the new key by itself. With keys in clinch.yml, give the new one as `key` and
the present one as `older`, restart, then rotate; several nodes must all have the new one as `older` first.
An old key can be removed when nothing is under it: until then the server does not start without it.")]
pub enum Keys {
    /// List the keys that the store is encrypted with; looks at everything
    Ls,
    /// Seal everything with the active key, after a new one was made where clinch keeps the key file
    Rotate,
}

impl Keys {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Keys::Ls => list(&client, output).await,
            Keys::Rotate => {
                client.post::<ChoreShow>(&["encryption", "rotate"], &json!({})).await?;
                let (document, chore) = ended(&client).await?;
                render::show(output, &document, "", || rotated(&chore))?;
                render::next(output, "clinch keys ls");
                Ok(Exit::Done)
            }
        }
    }
}

async fn list(client: &Client, output: Output) -> Result<Exit, Failure> {
    let answer = client.get::<KeysList>(&["encryption"], &[]).await?;
    let mut table = Table::new(&["KEY", "STATE", "PAYLOADS", "RESULTS", "ERRORS"]);
    for key in &answer.told.keys {
        table.row(vec![
            Cell::text(&key.id),
            Cell::text(&key.state),
            Cell::number(key.payloads),
            Cell::number(key.results),
            Cell::number(key.errors),
        ]);
    }
    table.print(output, &answer.document, "keys")?;
    if answer.told.keys.iter().any(|key| key.state != "active") {
        render::next(output, "clinch keys rotate");
    }
    Ok(Exit::Done)
}

/// Watches what the server was asked to do until it has ended.
pub async fn ended(client: &Client) -> Result<(Value, ChoreShow), Failure> {
    let bar = ProgressBar::new_spinner();
    loop {
        let answer = client.get::<ChoreShow>(&["chore"], &[]).await?;
        let chore = answer.told;
        bar.set_message(format!("{} events", thousands(chore.events_looked_at)));
        bar.tick();
        match chore.state.as_str() {
            "running" => tokio::time::sleep(LOOK).await,
            "failed" => {
                bar.finish_and_clear();
                let why = chore.error.unwrap_or_default();
                return Err(Failure::new(Exit::Failed, "CL0538", format!("It did not end: {why}"))
                    .fix("ask again: what is done is not done twice"));
            }
            _ => {
                bar.finish_and_clear();
                return Ok((answer.document, chore));
            }
        }
    }
}

fn rotated(chore: &ChoreShow) -> String {
    let mut text = format!(
        "{} payloads, results and errors of {} events are sealed again\n",
        thousands(chore.changed),
        thousands(chore.events_looked_at)
    );
    if chore.unreadable > 0 {
        text += &format!("{} do not open and were left as they are\n", thousands(chore.unreadable));
    }
    for note in &chore.notes {
        text += &format!("{}\n", render::clean(note));
    }
    text
}
