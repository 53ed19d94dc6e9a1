//! `clinch listen`: what happens on the server, as it happens.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, DIM, Output, clean, state};
use crate::api::stream::{Happened, Missed, WORDS};
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch listen                                  everything that happens on that node
  clinch listen --only rejected,dead
  clinch listen --source stripe -o jsonl | jq -r .reason
  clinch listen --only dead --max 1              wait for the next dead letter

What happens is told as it happens, and is kept nowhere: `clinch jobs ls` and `clinch dlq tail` have what was.")]
pub struct Listen {
    /// Only what comes in there
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Only what becomes of this flow's events
    #[arg(long, value_name = "NAME")]
    flow: Option<String>,
    /// Only these
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(WORDS), value_name = "WHAT")]
    only: Vec<String>,
    /// End after so many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
}

impl Listen {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (client, output) = (Client::open(globals)?, globals.output());
        let only = (!self.only.is_empty()).then(|| self.only.join(","));
        let query = given(&[("source", self.source.clone()), ("flow", self.flow.clone()), ("only", only)]);
        let mut left = self.max;
        let mut is_new = true;
        // The server ends every stream after a while, and is asked again: as long as it lets us in.
        loop {
            let mut events = client.stream(&["stream"], &query).await?;
            if std::mem::take(&mut is_new) {
                render::note(&format!("listening to {}; Ctrl-C ends it", client.base()));
            }
            while let Some(event) = events.next().await? {
                match event.name.as_str() {
                    "happening" => {
                        let Ok(told) = serde_json::from_str::<Happened>(&event.data) else { continue };
                        show(output, &told, &event.data)?;
                        left = left.map(|left| left.saturating_sub(1));
                        if left == Some(0) {
                            return Ok(Exit::Done);
                        }
                    }
                    "missed" => {
                        if let Ok(Missed { missed }) = serde_json::from_str(&event.data) {
                            render::note(&format!("{missed} more happened than could be told in time"));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn show(output: Output, told: &Happened, data: &str) -> Result<(), Failure> {
    match output {
        Output::Json | Output::Jsonl => render::data(data),
        Output::Id => told.job_id.as_deref().map_or(Ok(()), render::data),
        Output::Plain => render::data(&plain(told)),
        Output::Table => render::data(&line(told)),
    }
}

/// For programs: time, what, where, job, reason, and what was said.
fn plain(told: &Happened) -> String {
    let place = told.source.as_deref().or(told.flow.as_deref()).unwrap_or_default();
    let (job, reason) = (told.job_id.as_deref().unwrap_or_default(), told.reason.as_deref().unwrap_or_default());
    [&told.at.0.to_string(), &told.what, place, job, reason, &told.said].map(clean).join("\t")
}

/// For people.
fn line(told: &Happened) -> String {
    let at = told.at.0.to_string();
    let clock = at.get(11..19).unwrap_or(&at);
    let place = told.source.as_deref().or(told.flow.as_deref()).unwrap_or("-");
    let pad = " ".repeat(9usize.saturating_sub(told.what.len()));
    let mut text = format!("{DIM}{clock}{DIM:#}  {}{pad}  {}", state(&told.what), clean(place));
    for part in [told.job_id.as_deref(), told.reason.as_deref(), Some(told.said.as_str())].into_iter().flatten() {
        if !part.is_empty() {
            text += "  ";
            text += &clean(part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::sample::at;

    #[test]
    fn i2_what_happened_is_one_line_for_people_and_one_for_programs() {
        let told = Happened {
            at: at(0),
            what: "dead".into(),
            source: None,
            flow: Some("orders".into()),
            job_id: Some("job_1".into()),
            trace_id: None,
            reason: Some("auth_failed".into()),
            said: "it answered\u{1b}[2J 401".into(),
        };
        let text = anstream::adapter::strip_str(&line(&told)).to_string();
        assert!(text.ends_with("  dead       orders  job_1  auth_failed  it answered\u{fffd}[2J 401"), "{text}");
        let cells: Vec<String> = plain(&told).split('\t').map(String::from).collect();
        assert_eq!(cells[1..], ["dead", "orders", "job_1", "auth_failed", "it answered\u{fffd}[2J 401"]);
    }
}
