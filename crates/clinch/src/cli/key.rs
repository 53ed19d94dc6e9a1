//! `clinch key`: everything that ever happened under an idempotency key.

use super::Globals;
use super::client::{Client, given};
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, clean};
use crate::api::shapes::{KeyFound, KeyShow};
use clap::Subcommand;
use std::fmt::Write;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch key show k-1
  clinch key show evt_1Qw8Zx --flow stripe --tenant acme")]
pub enum Key {
    /// Deliveries, attempts, effects and replays of a key, in the order of time
    Show {
        /// The key as the sender wrote it; for a key of several fields, its SHA-256
        key: String,
        /// Only on the routes of this flow
        #[arg(long)]
        flow: Option<String>,
        /// Whose key it is, where routes tell tenants apart
        #[arg(long)]
        tenant: Option<String>,
    },
}

impl Key {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let Key::Show { key, flow, tenant } = self;
        let client = Client::open(globals)?;
        let query = given(&[("key", Some(key.clone())), ("flow", flow.clone()), ("tenant", tenant.clone())]);
        let answer = client.get::<KeyShow>(&["keys"], &query).await?;
        let told = &answer.told;
        let jobs: Vec<&str> = told.found.iter().flat_map(|found| &found.jobs).map(|job| job.id.as_str()).collect();
        render::show(globals.output(), &answer.document, &jobs.join("\n"), || text(told))?;
        if let Some(first) = jobs.first() {
            render::next(globals.output(), &format!("clinch jobs show {first}"));
        }
        Ok(Exit::Done)
    }
}

fn text(told: &KeyShow) -> String {
    told.found.iter().map(|found| one(&told.key, found)).collect::<Vec<_>>().join("\n")
}

fn one(key: &str, found: &KeyFound) -> String {
    let mut text = format!(
        "{BOLD}KEY {}{BOLD:#}   {}   flow {}   tenant {}\n",
        clean(key),
        clean(&found.route),
        clean(&found.flow),
        clean(&found.tenant)
    );
    let until = found.kept_until.map_or_else(String::new, |until| format!("   kept until {}", until.0));
    let _ = writeln!(
        text,
        "seen {}   jobs {}   duplicates {}   conflicts {}{until}",
        found.seen,
        found.jobs.len(),
        found.duplicates,
        found.conflicts
    );
    for line in &found.story {
        let style = render::state_style(&line.what);
        let job = line.job_id.as_ref().map_or_else(String::new, |id| format!("{id}  "));
        let _ = writeln!(text, "{}  {style}{:<10}{style:#} {job}{}", line.at.0, clean(&line.what), clean(&line.detail));
    }
    for job in &found.jobs {
        let _ = writeln!(text, "now: {} {}", job.id, render::state(&job.state));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::shapes::StoryLine;
    use crate::api::shapes::sample::{at, job};

    #[test]
    fn a_key_is_told_from_its_first_delivery_to_now() {
        let told = KeyShow {
            schema: String::new(),
            key: "k-1".into(),
            found: vec![KeyFound {
                flow: "signup".into(),
                route: "POST /hooks/signup".into(),
                tenant: "default".into(),
                event_id: job().event_id,
                kept_until: None,
                on_duplicate_of_dead: None,
                seen: 2,
                duplicates: 1,
                conflicts: 0,
                jobs: vec![job()],
                effects: vec![],
                story: vec![StoryLine {
                    at: at(0),
                    what: "accepted".into(),
                    job_id: None,
                    detail: "answered 202".into(),
                }],
            }],
        };
        let text = anstream::adapter::strip_str(&text(&told)).to_string();
        assert!(text.starts_with("KEY k-1   POST /hooks/signup   flow signup   tenant default\n"), "{text}");
        assert!(text.contains("seen 2   jobs 1   duplicates 1   conflicts 0\n"), "{text}");
        assert!(text.contains("Z  accepted   answered 202\nnow: job_01HZX5T0N8W2A dead\n"), "{text}");
    }
}
