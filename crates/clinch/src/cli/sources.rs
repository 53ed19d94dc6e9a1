//! `clinch sources`: every way into the running server, and how whoever comes is recognised.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::shapes::SourceList;
use clap::Subcommand;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch sources ls
  clinch sources ls --json | jq -r '.sources[] | select(.verify == \"none\") | .path'")]
pub enum Sources {
    /// Every source and route; `none` where anybody may send
    Ls,
}

impl Sources {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let Sources::Ls = self;
        let client = Client::open(globals)?;
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
}
