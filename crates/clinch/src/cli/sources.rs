//! `clinch sources`: every way into the running server, and how whoever comes is recognised.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::shapes::{RejectionList, SourceList};
use clap::Subcommand;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch sources ls
  clinch sources rejections shop
  clinch sources ls --json | jq -r '.sources[] | select(.verify == \"none\") | .path'")]
pub enum Sources {
    /// Every source and route; `none` where anybody may send
    Ls,
    /// What a source refused since the server started, and why; the newest first
    Rejections {
        /// The source's name
        name: String,
    },
}

impl Sources {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let client = Client::open(globals)?;
        match self {
            Sources::Ls => list(globals, &client).await,
            Sources::Rejections { name } => rejections(globals, &client, name).await,
        }
    }
}

async fn rejections(globals: &Globals, client: &Client, name: &str) -> Result<Exit, Failure> {
    let answer = client.get::<RejectionList>(&["sources", name, "rejections"], &[]).await?;
    let mut table = Table::new(&["REASON", "AGE", "WHAT WAS WRONG", "WHAT TO DO"]);
    let now = render::now();
    for refused in &answer.told.rejections {
        table.row(vec![
            Cell::text(&refused.reason),
            Cell::age(refused.at, now),
            Cell::text(&refused.message),
            Cell::text(&refused.advice),
        ]);
    }
    table.print(globals.output(), &answer.document, "rejections")?;
    if answer.told.rejections.is_empty() {
        render::note(&format!("source {name} has refused nothing since the server started"));
    }
    Ok(Exit::Done)
}

async fn list(globals: &Globals, client: &Client) -> Result<Exit, Failure> {
    let answer = client.get::<SourceList>(&["sources"], &[]).await?;
    let mut table = Table::new(&["NAME", "VERIFY", "SECRETS", "METHOD", "PATH"]);
    for source in &answer.told.sources {
        table.row(vec![
            Cell::text(&source.name),
            if source.verify == "none" { Cell::alarm("none") } else { Cell::text(&source.verify) },
            Cell::number(source.secrets as u64),
            Cell::text(&source.method),
            Cell::text(&source.path),
        ]);
    }
    table.print(globals.output(), &answer.document, "sources")?;
    let open = answer.told.sources.iter().filter(|source| source.verify == "none").count();
    if open > 0 {
        render::note(&format!("anybody may send to {}", render::count(open, "path")));
    }
    Ok(Exit::Done)
}
