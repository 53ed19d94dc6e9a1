//! `clinch forget`: erases what is kept of one person, and leaves the books as they are.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, thousands};
use super::{Globals, keys};
use crate::api::shapes::{ChoreShow, ForgetAsk};
use clap::Args;
use clinch_core::id::EventId;
use serde_json::json;
use std::io::Read;

/// A value is far shorter.
const VALUE_BYTES_MAX: u64 = 4 << 10;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch forget --value - --reason 'request 4711' < address.txt     the value is in no shell history
  clinch forget --value ada@example.org --dry-run
  clinch forget --event evt_01HZX5T0N8W2A --reason 'request 4711'

Every event in which the value appears, in its body, its headers, an answer or an error, loses its data. Ids, states, times,
counts and hashed keys stay: `clinch verify` adds up, and a duplicate is still recognised. A job that has not ended becomes a
dead letter with the reason `forgotten`. Backups and what targets were told are not touched.")]
pub struct Forget {
    /// An email address, a phone number, a customer's id; `-` reads it from standard input
    #[arg(long, value_name = "VALUE", required_unless_present = "event", conflicts_with = "event")]
    value: Option<String>,
    /// One event and no other
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,
    /// Why; it is kept on record, so the value must not be in it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only tell how many events there are
    #[arg(long)]
    dry_run: bool,
}

impl Forget {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let reason = match (&self.reason, self.dry_run) {
            (Some(reason), _) if !reason.trim().is_empty() => reason.clone(),
            (_, true) => "a look".into(),
            _ => {
                return Err(Failure::new(Exit::Refused, "CL0522", "An erasure needs a reason; it is kept on record")
                    .fix("add --reason TEXT, or only look with --dry-run"));
            }
        };
        let value = match self.value.as_deref() {
            Some("-") => Some(from_stdin()?),
            other => other.map(String::from),
        };
        let ask = ForgetAsk { value, event: self.event.map(|id| id.to_string()), reason, dry_run: self.dry_run };
        let client = Client::open(globals)?;
        client.post::<ChoreShow>(&["forget"], &json!(ask)).await?;
        let (document, chore) = keys::ended(&client).await?;
        render::show(globals.output(), &document, "", || told(&chore, self.dry_run))?;
        if chore.changed > 0 && !self.dry_run {
            render::next(globals.output(), "clinch verify");
        }
        Ok(Exit::Done)
    }
}

fn from_stdin() -> Result<String, Failure> {
    let unread = |said: String| Failure::new(Exit::Usage, "CL0539", said).fix("write the value, and nothing else");
    let mut text = String::new();
    std::io::stdin()
        .take(VALUE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| unread(format!("The value cannot be read: {error}")))?;
    match text.trim() {
        "" => Err(unread("There is no value on standard input".into())),
        value => Ok(value.to_string()),
    }
}

fn told(chore: &ChoreShow, dry_run: bool) -> String {
    let number = thousands(chore.changed);
    let mut text = match dry_run {
        true => format!("{number} events would lose their data; nothing was changed\n"),
        false => format!("the data of {number} events is erased\n"),
    };
    if chore.jobs_unfinished > 0 {
        text +=
            &format!("{} jobs had not ended and become dead letters (forgotten)\n", thousands(chore.jobs_unfinished));
    }
    if chore.jobs_running > 0 {
        let running = thousands(chore.jobs_running);
        text += &format!("{running} of them were running with the data in hand: ask again when they have ended\n");
    }
    if chore.unreadable > 0 {
        text += &format!("{} events do not open and could not be looked into\n", thousands(chore.unreadable));
    }
    for note in &chore.notes {
        text += &format!("{}\n", render::clean(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t108_an_erasure_tells_what_it_did_and_what_is_left_to_do() {
        let mut chore = ChoreShow {
            schema: String::new(),
            kind: "forget".into(),
            state: "done".into(),
            error: None,
            events_looked_at: 5_000,
            changed: 1_200,
            unreadable: 0,
            jobs_unfinished: 0,
            jobs_running: 0,
            notes: Vec::new(),
        };
        assert_eq!(told(&chore, false), "the data of 1,200 events is erased\n");
        assert!(told(&chore, true).contains("would lose their data"));
        (chore.jobs_unfinished, chore.jobs_running, chore.unreadable) = (3, 1, 2);
        let said = told(&chore, false);
        assert!(
            said.contains("3 jobs") && said.contains("ask again") && said.contains("2 events do not open"),
            "{said}"
        );
    }
}
