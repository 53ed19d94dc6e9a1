//! `clinch safe-mode`: what cannot be taken back waits, or is said in a safer way, until somebody lets it go.

use super::Globals;
use super::client::{Answer, Client};
use super::exit::{Exit, Failure};
use super::render::{self, Output, thousands};
use crate::api::safe_mode::{SafeModeOff, SafeModeOn, SafeModeSet, SafeModeShow, Standing};
use clap::Subcommand;
use clinch_core::safe_mode::SafeScope;
use clinch_core::time::human;
use serde_json::json;
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch safe-mode on --reason 'wrong price in campaign 118' --until 2h
  clinch safe-mode on --scope integration:mail --reason 'they bounce everything'
  clinch safe-mode status
  clinch safe-mode off --drain 10/s

Events are accepted and answered as before. `safe_mode:` in clinch.yml says what still leaves and what turns it on by itself.")]
pub enum SafeMode {
    /// Hold what cannot be taken back
    On {
        /// all, flow:NAME, playbook:NAME or integration:NAME
        #[arg(long, value_name = "SCOPE", default_value = "all")]
        scope: SafeScope,
        /// Why; it is kept on record and shown while it lasts
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// When it ends by itself: a time, or how long from now
        #[arg(long, value_name = "TIME", visible_alias = "for")]
        until: Option<String>,
    },
    /// Let go what waited, at a bearable rate
    Off {
        /// Only there; wherever it is on if not given
        #[arg(long, value_name = "SCOPE")]
        scope: Option<SafeScope>,
        /// How fast what waited is let go; as clinch.yml says if not given
        #[arg(long, value_name = "RATE", visible_alias = "drain-rate")]
        drain: Option<String>,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Only tell what waits
        #[arg(long)]
        dry_run: bool,
    },
    /// Where it is on, why, and what waits
    Status,
}

impl SafeMode {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (output, client) = (globals.output(), Client::open(globals)?);
        match self {
            SafeMode::On { scope, reason, until } => {
                let (scope, reason, until) = (Some(scope.to_string()), reason.clone(), until.clone());
                let ask = json!(SafeModeOn { scope, reason, until });
                let answer = client.post::<SafeModeSet>(&["safe-mode"], &ask).await?;
                show_set(output, &answer, |scope, until| {
                    format!("safe mode is ON for {scope}{until}; events are still accepted")
                })?;
                render::next(output, "clinch safe-mode off");
            }
            SafeMode::Off { dry_run: true, .. } => {
                let answer = client.get::<SafeModeShow>(&["safe-mode"], &[]).await?;
                let told = &answer.told;
                render::show(output, &answer.document, "", || format!("{}; nothing was changed", waiting(&told.now)))?;
            }
            SafeMode::Off { scope, drain, reason, .. } => {
                let scope = scope.as_ref().map(ToString::to_string);
                let ask = json!(SafeModeOff { scope, reason: reason.clone(), drain: drain.clone() });
                let answer = client.post::<SafeModeSet>(&["safe-mode", "off"], &ask).await?;
                show_set(output, &answer, |scope, _| format!("safe mode is off for {scope}"))?;
                if answer.told.changed.is_empty() {
                    render::note("safe mode was not on");
                }
            }
            SafeMode::Status => {
                let answer = client.get::<SafeModeShow>(&["safe-mode"], &[]).await?;
                render::show(output, &answer.document, "", || status(&answer.told))?;
            }
        }
        Ok(Exit::Done)
    }
}

fn show_set(output: Output, answer: &Answer<SafeModeSet>, said: impl Fn(&str, &str) -> String) -> Result<(), Failure> {
    let told = &answer.told;
    render::show(output, &answer.document, "", || {
        let changed = told.changed.iter().map(|mode| {
            let until = mode.until.map_or_else(String::new, |until| format!(" until {}", until.0));
            said(&mode.scope, &until)
        });
        let held = waiting(&told.now);
        changed.chain([held]).collect::<Vec<_>>().join("\n")
    })
}

fn status(told: &SafeModeShow) -> String {
    let mut lines: Vec<String> = told
        .on
        .iter()
        .map(|mode| {
            let until = mode.until.map_or_else(String::new, |until| format!(", until {}", until.0));
            format!("ON for {} since {} by {}{until}: {}", mode.scope, mode.since.0, mode.actor, mode.reason)
        })
        .collect();
    if lines.is_empty() {
        lines.push("safe mode is off".into());
    }
    lines.extend(told.draining.iter().map(|mode| format!("off for {}; what waited is let go in turn", mode.scope)));
    lines.push(waiting(&told.now));
    lines.join("\n")
}

/// What waits, by flow, and how long it takes to let it go.
fn waiting(Standing { held, held_jobs, drain, drain_seconds }: &Standing) -> String {
    if held.is_empty() {
        return "nothing waits".into();
    }
    let by_flow: Vec<String> = held
        .iter()
        .map(|held| {
            let oldest = held.oldest_at.map_or_else(String::new, |at| format!(", the oldest of {}", at.0));
            format!("  {}: {}{oldest}", held.flow, thousands(held.jobs))
        })
        .collect();
    let takes = human(Duration::from_secs((*drain_seconds).max(1)));
    let by_flow = by_flow.join("\n");
    if *held_jobs == 1 {
        return format!("1 job waits; at {drain} it is let go in {takes}\n{by_flow}");
    }
    format!("{} jobs wait; at {drain} they are let go in {takes}\n{by_flow}", thousands(*held_jobs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::safe_mode::Held;

    #[test]
    fn e4_a_person_is_told_what_waits_and_how_long_it_takes_to_let_it_go() {
        let held = |flow: &str, jobs| Held { flow: flow.into(), jobs, oldest_at: None };
        let standing = |held: Vec<Held>, held_jobs, drain_seconds| Standing {
            held,
            held_jobs,
            drain: "20/1s".into(),
            drain_seconds,
        };
        assert_eq!(waiting(&standing(Vec::new(), 0, 0)), "nothing waits");
        let said = waiting(&standing(vec![held("cart", 1)], 1, 1));
        assert_eq!(said, "1 job waits; at 20/1s it is let go in 1s\n  cart: 1");
        let said = waiting(&standing(vec![held("cart", 12_000), held("winback", 40)], 12_040, 602));
        assert_eq!(said, "12,040 jobs wait; at 20/1s they are let go in 10m2s\n  cart: 12,000\n  winback: 40");
    }
}
