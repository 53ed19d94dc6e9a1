//! `clinch set`, `clinch unset`: values that count over what the files say, until they are taken back.

use super::Globals;
use super::client::{Answer, Client};
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, Output, Table};
use crate::api::settings::{
    Setting, SettingAsk, SettingChange, SettingList, SettingRollback, SettingSet, SettingShow, SettingSide,
    SettingUnset,
};
use clap::Args;
use serde_json::json;
use std::fmt::Write;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch set                                                    what can be set, and what is
  clinch set worker.charge.retry.max_attempts                   one of them, and how it came to that
  clinch set worker.charge.retry.max_attempts 3 --dry-run       what would follow
  clinch set worker.charge.retry.max_attempts 3 --reason 'their outage, INC-482' --until 2h
  clinch set integration.crm.rate 50/s --reason 'they raised our quota' --expect 0
  clinch set integration.crm.rate --rollback 12 --reason 'too fast after all'
  clinch unset integration.crm.rate --reason 'it is in clinch.yml now'

A value counts on all nodes within a second, for what is decided from then on, also for jobs that were accepted before. It
survives restarts. The files stay as they are: write there what is to stay, and `clinch check` says where they differ.")]
pub struct Set {
    /// Where it is in the files, such as worker.NAME.retry.max_attempts, as `clinch set` lists it
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// As it would be written in the file
    #[arg(value_name = "VALUE", requires = "name")]
    value: Option<String>,
    /// Why; it is kept on record and shown while it lasts
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// When the file counts again by itself: a time, or how long from now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only if this is its version now; 0 where nothing is set
    #[arg(long, value_name = "VERSION")]
    expect: Option<i64>,
    /// Back to what it was in this version; 0 is the file
    #[arg(long, value_name = "VERSION", conflicts_with = "value", requires = "name")]
    rollback: Option<i64>,
    /// Only tell what would change
    #[arg(long)]
    dry_run: bool,
    /// Only what is set
    #[arg(long, conflicts_with = "name")]
    live: bool,
}

#[derive(Args, Debug)]
pub struct Unset {
    /// What was set, as `clinch set` lists it
    #[arg(value_name = "NAME")]
    name: String,
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Only if this is its version now
    #[arg(long, value_name = "VERSION")]
    expect: Option<i64>,
    /// Only tell what would change
    #[arg(long)]
    dry_run: bool,
}

impl Set {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let (output, client) = (globals.output(), Client::open(globals)?);
        let Set { name, value, reason, until, expect, rollback, dry_run, .. } = self;
        let (reason, until, expect, dry_run) = (reason.clone(), until.clone(), *expect, *dry_run);
        match (name, value, *rollback) {
            (None, ..) => self.list(output, &client).await?,
            (Some(name), Some(value), _) => {
                let ask = json!(SettingAsk { value: value.clone(), reason, until, expect, dry_run });
                changed(output, &client.put(&["settings", name], &ask).await?)?;
            }
            (Some(name), None, Some(to)) => {
                let ask = json!(SettingRollback { to, reason, until, expect, dry_run });
                changed(output, &client.post(&["settings", name, "rollback"], &ask).await?)?;
            }
            (Some(name), None, None) => {
                let answer = client.get::<SettingShow>(&["settings", name], &[]).await?;
                render::show(output, &answer.document, name, || shown(&answer.told))?;
                render::next(output, &format!("clinch set {name} VALUE --dry-run"));
            }
        }
        Ok(Exit::Done)
    }

    async fn list(&self, output: Output, client: &Client) -> Result<(), Failure> {
        let mut answer = client.get::<SettingList>(&["settings"], &[]).await?;
        if self.live {
            answer.told.settings.retain(|setting| setting.live.is_some());
            answer.document["settings"] = json!(answer.told.settings);
        }
        let now = render::now();
        let mut table = Table::new(&["NAME", "FILE", "LIVE", "SINCE", "BY", "UNTIL", "REASON"]);
        for setting in &answer.told.settings {
            let (name, file) = (Cell::text(&setting.name), Cell::text(by_file(setting)));
            let none = || Cell::text("");
            table.row(match &setting.live {
                None => vec![name, file, none(), none(), none(), none(), none()],
                Some(live) => vec![
                    name,
                    file,
                    Cell::alarm(&live.value),
                    Cell::age(live.since, now),
                    Cell::text(&live.actor),
                    Cell::text(live.until.map_or_else(|| "unset".into(), |until| until.0.to_string())),
                    Cell::text(&live.reason),
                ],
            });
        }
        table.print(output, &answer.document, "settings")?;
        let live = || answer.told.settings.iter().filter_map(|setting| Some((setting, setting.live.as_ref()?)));
        for (setting, note) in live().filter_map(|(setting, live)| Some((setting, live.note.as_ref()?))) {
            render::note(&format!("{}: {note}", setting.name));
        }
        if live().next().is_none() {
            render::note("nothing is set: the files count");
        }
        Ok(())
    }
}

impl Unset {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let Unset { name, reason, expect, dry_run } = self;
        let ask = json!(SettingUnset { reason: reason.clone(), expect: *expect, dry_run: *dry_run });
        changed(globals.output(), &Client::open(globals)?.delete(&["settings", name], &ask).await?)?;
        Ok(Exit::Done)
    }
}

fn by_file(setting: &Setting) -> String {
    setting.file.clone().unwrap_or_else(|| format!("{} (default)", setting.default))
}

fn changed(output: Output, answer: &Answer<SettingSet>) -> Result<(), Failure> {
    let told = &answer.told;
    render::show(output, &answer.document, &told.name, || diff(told))?;
    for warning in &told.warnings {
        render::note(&format!("warning: {warning}"));
    }
    match (told.changed, told.dry_run, told.version) {
        (_, true, _) => render::note("nothing was changed"),
        (false, ..) => render::note("nothing was set: the file counts already"),
        (true, false, 0) => {}
        (true, false, _) => render::next(output, &format!("clinch unset {} --reason …", told.name)),
    }
    Ok(())
}

/// What was and what is, and what follows from each.
fn diff(told: &SettingSet) -> String {
    let side = |side: &SettingSide| format!("{}{}", side.value, if side.by_file { " (file)" } else { "" });
    let SettingSet { name, before, after, .. } = told;
    let mut text = format!("{BOLD}{}{BOLD:#}: {} → {}", render::clean(name), side(before), side(after));
    for (sign, side) in [("-", before), ("+", after)] {
        if let Some(means) = side.means.as_ref().filter(|_| before.means != after.means) {
            let _ = write!(text, "\n  {sign} {means}");
        }
    }
    if told.changed && told.version > 0 {
        let _ = write!(text, "\n  version {}, on all nodes within a second", told.version);
    }
    text
}

fn shown(SettingShow { setting, history, .. }: &SettingShow) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#} = {}", render::clean(&setting.name), render::clean(&setting.value));
    let mut line = |name: &str, value: &str| {
        let _ = write!(text, "\n  {name:8} {}", render::clean(value));
    };
    line("what", &setting.about);
    line("means", setting.means.as_deref().unwrap_or("-"));
    line("file", &by_file(setting));
    if let Some(live) = &setting.live {
        let until = live.until.map_or_else(String::new, |until| format!(" until {}", until.0));
        let (value, version, actor) = (&live.value, live.version, &live.actor);
        let said = format!("{value}, version {version}, by {actor} on {}{until}: {}", live.since.0, live.reason);
        line("live", &said);
        live.note.iter().for_each(|note| line("note", note));
    }
    for change in history {
        line("history", &past(change));
    }
    text
}

fn past(change: &SettingChange) -> String {
    let SettingChange { version, value, until, at, actor, action, reason } = change;
    let what = match value {
        Some(value) => format!("version {version}: {value}"),
        None => "as the file says".into(),
    };
    let until = until.as_ref().map_or_else(String::new, |until| format!(" until {until}"));
    format!("{}  {what}{until}  {action} by {actor}: {reason}", at.0)
}
