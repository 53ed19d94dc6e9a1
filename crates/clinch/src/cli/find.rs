//! `clinch find`: what a text names, whatever it is.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::jobs;
use super::render::{self, Output};
use crate::api::shapes::{Found, Scope};
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch find job_01HZX5T0N8W2A                a job, an event, a plan, a step of a job
  clinch find 0192f1c8d2a37c9be1f04a5b6c7d8e9f  a trace id
  clinch find evt_1Qw8Zx2eZvKYlo2C             a key, or a provider's id
  clinch find ada@example.org                  who is found by `find_by` of a source or a flow
  clinch find flow:orders state:retrying 'age>5m' 'try>=3'")]
pub struct Find {
    /// An id, a key, an address, or words such as flow:orders state:dead
    #[arg(value_name = "TEXT", required = true)]
    text: Vec<String>,
}

impl Find {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let answer = Client::open(globals)?.get::<Found>(&["search"], &[("q", self.text.join(" "))]).await?;
        let told = &answer.told;
        match output {
            Output::Json | Output::Jsonl => render::json(output, &answer.document)?,
            Output::Id => {
                let ids =
                    if told.hits.is_empty() { told.jobs.jobs.iter().map(|job| &job.id).collect() } else { ids(told) };
                render::data(&ids.into_iter().map(|id| format!("{id}\n")).collect::<String>())?;
            }
            Output::Table | Output::Plain => {
                jobs::table(&told.jobs.jobs, render::now()).print(output, &answer.document["jobs"], "jobs")?;
            }
        }
        told.notes.iter().for_each(|note| render::note(note));
        if told.taken_for == "query" {
            render::note(&scope(&told.jobs.scope));
        }
        match told.hits.as_slice() {
            [] if told.taken_for == "query" => Ok(Exit::Done),
            [] => Ok(Exit::NotFound),
            [one] => {
                render::next(output, &next(&one.kind, &one.id));
                Ok(Exit::Done)
            }
            several => {
                render::note(&format!("{} are found by this", render::count(several.len(), "thing")));
                Ok(Exit::Done)
            }
        }
    }
}

fn ids(told: &Found) -> Vec<&String> {
    told.hits.iter().map(|hit| &hit.id).collect()
}

fn next(kind: &str, id: &str) -> String {
    match kind {
        "effect" => format!("clinch effects show {id}"),
        "approval" => format!("clinch approve show {id}"),
        "plan" => format!("clinch replay show {id}"),
        _ => format!("clinch jobs show {id}"),
    }
}

/// How far was looked, and how many fit.
pub fn scope(scope: &Scope) -> String {
    let matches = scope.matches.map_or_else(String::new, |matches| {
        format!("{}{} match; ", render::thousands(matches), if scope.more_match { "+" } else { "" })
    });
    let looked = format!("{matches}{} looked at", render::thousands(scope.looked_at));
    match scope.back_to {
        Some(at) => format!("{looked}, back to {}; older ones were not", at.0),
        None => format!("{looked}, which are all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_the_scope_of_a_list_is_told() {
        let of = |matches, more_match| scope(&Scope { looked_at: 50_000, back_to: None, matches, more_match });
        assert_eq!(of(Some(93), false), "93 match; 50,000 looked at, which are all");
        assert_eq!(of(Some(10_000), true), "10,000+ match; 50,000 looked at, which are all");
        assert_eq!(of(None, false), "50,000 looked at, which are all");
    }
}
