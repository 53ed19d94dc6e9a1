//! `clinch alerts`: what is wrong now, what was, what nobody wants to hear of, and the rules for a Prometheus.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table};
use crate::api::alerts::{
    AlertHistory, AlertList, AlertShow, ChannelTested, RuleList, SilenceAsk, SilenceSet, UnsilenceAsk, Unsilenced,
    rule_shown,
};
use crate::app::ADMIN_DEFAULT;
use crate::workspace::read_files;
use clap::Subcommand;
use clinch_core::alert::{Name, RULES, Routes, prometheus};
use clinch_core::config;
use clinch_core::time::human;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch alerts ls                                   what fires, and the first command for each
  clinch alerts silence ClinchCircuitOpen:crm --for 2h --reason 'their migration, INC-482'
  clinch alerts test ops                             would people hear it?
  clinch alerts print > clinch-alerts.yaml           the same rules for a Prometheus

Clinch judges its rules by itself; `alerts:` in clinch.yml says who is told and what is too much.")]
pub enum Alerts {
    /// What fires now, what is silenced, and the channels
    Ls,
    /// What fired, the newest first
    History {
        /// At most so many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
        limit: u16,
    },
    /// Tell nobody that an alert fires, for a while; it is shown and counted all the same
    Silence {
        /// A rule, or one alert of it as `clinch alerts ls` shows it
        #[arg(value_name = "NAME")]
        name: Name,
        /// For how long, or until when
        #[arg(long = "for", value_name = "TIME", visible_alias = "until")]
        until: String,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Tell people again
    Unsilence {
        #[arg(value_name = "NAME")]
        name: Name,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Send a test over a channel
    Test {
        #[arg(value_name = "CHANNEL")]
        channel: String,
    },
    /// Every rule with its limit, as the running server has it
    Rules,
    /// The rules for a Prometheus, as YAML
    Print {
        /// The workspace whose limits count; the usual ones if not given
        #[arg(long, value_name = "DIR")]
        workspace: Option<PathBuf>,
        /// Where people find the console, for the links to runbooks; as the workspace says if not given
        #[arg(long, value_name = "URL")]
        console: Option<String>,
    },
}

impl Alerts {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        match self {
            Alerts::Ls => ls(globals, output).await,
            Alerts::History { limit } => {
                let limit = limit.to_string();
                let answer =
                    Client::open(globals)?.get::<AlertHistory>(&["alerts", "history"], &[("limit", limit)]).await?;
                history(&answer.told.alerts).print(output, &answer.document, "alerts")?;
                Ok(Exit::Done)
            }
            Alerts::Silence { name, until, reason } => {
                let ask = SilenceAsk { name: name.to_string(), until: until.clone(), reason: reason.clone() };
                let answer = Client::open(globals)?.post::<SilenceSet>(&["alerts", "silences"], &json!(ask)).await?;
                let silence = &answer.told.silence;
                render::show(output, &answer.document, &silence.name, || {
                    let until = silence.until.map_or_else(String::new, |until| format!(" until {}", until.0));
                    format!("{} is silenced{until}: nobody is told that it fires; it is still shown", silence.name)
                })?;
                render::next(output, &format!("clinch alerts unsilence {name}"));
                Ok(Exit::Done)
            }
            Alerts::Unsilence { name, reason } => {
                let (name, ask) = (name.to_string(), json!(UnsilenceAsk { reason: reason.clone() }));
                let path = ["alerts", "silences", &name, "end"];
                let answer = Client::open(globals)?.post::<Unsilenced>(&path, &ask).await?;
                render::show(output, &answer.document, &name, || match answer.told.ended {
                    true => format!("people are told of {name} again"),
                    false => format!("{name} was not silenced"),
                })?;
                Ok(Exit::Done)
            }
            Alerts::Test { channel } => {
                let path = ["alerts", "channels", channel, "test"];
                let answer = Client::open(globals)?.post::<ChannelTested>(&path, &json!({})).await?;
                let ChannelTested { sent, why, .. } = &answer.told;
                render::show(output, &answer.document, channel, || match why {
                    None => format!("the test was sent over `{channel}`"),
                    Some(why) => format!("the test could not be sent over `{channel}`: {}", render::clean(why)),
                })?;
                Ok(if *sent { Exit::Done } else { Exit::Failed })
            }
            Alerts::Rules => {
                let answer = Client::open(globals)?.get::<RuleList>(&["alerts", "rules"], &[]).await?;
                let mut table = Table::new(&["RULE", "SEVERITY", "LIMIT", "FOR", "SAYS"]);
                for rule in &answer.told.rules {
                    let lasts = match rule.judged {
                        true => human(Duration::from_secs(rule.for_seconds)),
                        false => "not judged here".into(),
                    };
                    table.row(vec![
                        Cell::text(&rule.name),
                        Cell::text(&rule.severity),
                        Cell::text(rule.limit.as_deref().unwrap_or("")),
                        Cell::text(lasts),
                        Cell::text(&rule.summary),
                    ]);
                }
                table.print(output, &answer.document, "rules")?;
                Ok(Exit::Done)
            }
            Alerts::Print { workspace, console } => print(workspace.as_deref(), console.as_deref(), output),
        }
    }
}

async fn ls(globals: &Globals, output: Output) -> Result<Exit, Failure> {
    let answer = Client::open(globals)?.get::<AlertList>(&["alerts"], &[]).await?;
    let (told, now) = (&answer.told, render::now());
    let mut table = Table::new(&["SEVERITY", "NAME", "SINCE", "SAYS", "FIRST"]);
    for alert in &told.alerts {
        let severity = if alert.silenced { format!("{} (silenced)", alert.severity) } else { alert.severity.clone() };
        table.row(vec![
            if alert.severity == "critical" { Cell::alarm(&severity) } else { Cell::text(&severity) },
            Cell::text(&alert.name),
            Cell::age(alert.fired_at, now),
            Cell::text(&alert.description),
            Cell::text(&alert.command),
        ]);
    }
    table.print(output, &answer.document, "alerts")?;
    if told.alerts.is_empty() {
        render::note("nothing fires");
    }
    for silence in &told.silences {
        let until = silence.until.map_or_else(String::new, |until| format!(" until {}", until.0));
        render::note(&format!("{} is silenced by {}{until}: {}", silence.name, silence.actor, silence.reason));
    }
    if told.channels.is_empty() {
        render::note("nobody is told: clinch.yml has no `alerts: channels:`");
    }
    let loud = told.alerts.iter().find(|alert| !alert.silenced);
    if let Some(alert) = loud {
        render::next(output, &format!("clinch runbook {}", alert.runbook));
    }
    Ok(Exit::Done)
}

fn history(alerts: &[AlertShow]) -> Table {
    let mut table = Table::new(&["NAME", "BEGAN", "LASTED", "SIGNAL", "SAYS"]);
    for alert in alerts {
        let lasted = alert.resolved_at.map(|at| human(Duration::from_secs(at.0.since(alert.fired_at.0).as_secs())));
        let signal = alert.signal_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        table.row(vec![
            Cell::text(&alert.name),
            Cell::text(alert.fired_at.0.to_string()),
            Cell::text(lasted.unwrap_or_else(|| "fires".into())),
            Cell::text(signal.map_or_else(|| "–".into(), human)),
            Cell::text(&alert.description),
        ]);
    }
    table
}

fn print(workspace: Option<&Path>, console: Option<&str>, output: Output) -> Result<Exit, Failure> {
    let routes = match workspace {
        None => Routes::default(),
        Some(directory) => {
            let unread =
                |why: String| Failure::new(Exit::ConfigInvalid, "CL0527", why).fix("clinch check tells every problem");
            let files =
                read_files(directory).map_err(|error| unread(format!("The workspace cannot be read: {error}")))?;
            let loaded = config::load(&files).map_err(|_| unread("The workspace has problems".into()))?;
            loaded.0.settings.alerts
        }
    };
    let usual = format!("http://{ADMIN_DEFAULT}");
    let console = console.or(routes.console.as_deref()).unwrap_or(&usual);
    if matches!(output, Output::Json | Output::Jsonl) {
        let rules: Vec<_> = RULES.iter().map(|rule| rule_shown(rule, &routes)).collect();
        render::data(&json!({ "schema": "clinch.alerts.rules/v1", "rules": rules }).to_string())?;
        return Ok(Exit::Done);
    }
    render::data(prometheus::rules(&routes, console).trim_end())?;
    Ok(Exit::Done)
}
