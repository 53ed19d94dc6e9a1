//! `clinch events`: what came in, and how often it came again.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::shapes::EventList;
use clap::Subcommand;
use clinch_core::id::EventId;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch events ls --source stripe --since 2h
  clinch events ls --again conflict            those whose key came with another body")]
pub enum Events {
    /// List events, newest first
    Ls {
        /// Only what this source, or this flow's own route, took in
        #[arg(long)]
        source: Option<String>,
        /// Only those that came again, with the same body or with another
        #[arg(long, value_parser = ["duplicate", "conflict"])]
        again: Option<String>,
        /// Accepted since: how long ago, or when
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Accepted before: how long ago, or when
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
        limit: u16,
        /// Only older ones: the last id of the page before
        #[arg(long, value_name = "ID")]
        before: Option<EventId>,
    },
}

impl Events {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let Events::Ls { source, again, since, until, limit, before } = self;
        let query = given(&[
            ("source", source.clone()),
            ("again", again.clone()),
            ("since", since.clone()),
            ("until", until.clone()),
            ("limit", Some(limit.to_string())),
            ("before", before.map(|id| id.to_string())),
        ]);
        let answer = Client::open(globals)?.get::<EventList>(&["events"], &query).await?;
        let now = render::now();
        let mut table = Table::new(&["ID", "SOURCE", "AGE", "ANSWER", "JOBS", "DUPLICATES", "CONFLICTS"]);
        for event in &answer.told.events {
            table.row(vec![
                Cell::text(&event.id),
                Cell::text(&event.source),
                Cell::age(event.received_at, now),
                Cell::number(event.answer_status),
                Cell::number(event.jobs),
                Cell::number(event.duplicates),
                Cell::number(event.conflicts),
            ]);
        }
        table.print(output, &answer.document, "events")?;
        match (&answer.told.next_before, answer.told.events.first()) {
            (None, None) => render::note("no event is like this"),
            (Some(_), None) => {
                render::note("no event among the newest ones is like this; older ones were not looked at")
            }
            (_, Some(first)) => render::next(output, &format!("clinch jobs show {}", first.id)),
        }
        if let Some(before) = &answer.told.next_before {
            let kept = query.iter().filter(|(name, _)| *name != "before");
            let flags: String = kept.map(|(name, value)| format!(" --{name} {value}")).collect();
            render::next(output, &format!("clinch events ls{flags} --before {before}"));
        }
        Ok(Exit::Done)
    }
}
