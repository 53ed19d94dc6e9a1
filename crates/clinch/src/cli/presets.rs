//! `clinch presets`: the providers that are known, and everything that is known about one.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Cell, Table};
use clap::Subcommand;
use clinch_core::signature::presets::{self, ALL, Batch, Content, NoPreset, Preset, Retries};
use clinch_core::signature::settings;
use clinch_core::time::human;
use serde_json::{Value, json};
use std::fmt::Write;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch presets ls
  clinch presets show stripe
  clinch presets ls --json | jq -r '.presets[] | select(.needs_url) | .name'")]
pub enum Presets {
    /// Every preset
    Ls,
    /// One preset: what is signed and how, keys, types, answers
    Show { name: String },
}

impl Presets {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        match self {
            Presets::Ls => list(globals)?,
            Presets::Show { name } => {
                let preset = presets::find(name).map_err(unknown)?;
                let document = document(preset);
                render::show(globals.output(), &document, preset.name, || text(preset))?;
            }
        }
        Ok(Exit::Done)
    }
}

/// There is no such preset: the nearest one, or where they are listed.
pub fn unknown(error: NoPreset) -> Failure {
    let failure = Failure::new(Exit::NotFound, "CL0505", format!("There is no preset `{}`", error.written));
    match error.meant {
        Some(meant) => failure.fix(format!("did you mean `{meant}`?")),
        None => failure.fix("see `clinch presets ls`; `hmac` takes any HMAC sender"),
    }
}

fn list(globals: &Globals) -> Result<(), Failure> {
    let mut table = Table::new(&["NAME", "PROVIDER", "HEADER", "ID", "ACK"]);
    for preset in ALL {
        table.row(vec![
            Cell::text(preset.name),
            Cell::text(preset.title),
            Cell::text(header(preset)),
            Cell::short(presets::told(preset.id), 60),
            Cell::number(preset.ack),
        ]);
    }
    let told: Vec<Value> = ALL.iter().map(|preset| document(preset)).collect();
    table.print(globals.output(), &json!({ "schema": "clinch.presets/v1", "presets": told }), "presets")
}

fn header(preset: &Preset) -> String {
    (preset.scheme)().headers().into_iter().next().unwrap_or_else(|| "-".into())
}

fn content(preset: &Preset) -> String {
    match preset.content {
        Content::Json => "JSON".into(),
        Content::Form => "form or JSON".into(),
        Content::FormField(name) => format!("JSON in the form field {name}"),
    }
}

fn batch(preset: &Preset) -> Option<String> {
    match preset.batch {
        Batch::One => None,
        Batch::List("") => Some("the body, if it is a list".into()),
        Batch::List(pointer) => Some(format!("the list at {pointer}")),
        Batch::Meta => Some("/entry, and in each /changes or /messaging".into()),
    }
}

fn retries(preset: &Preset) -> String {
    match preset.retries {
        Retries::For(span) => human(span),
        Retries::Never => "never".into(),
        Retries::Unknown => "unknown".into(),
    }
}

fn document(preset: &Preset) -> Value {
    let scheme = (preset.scheme)();
    json!({
        "name": preset.name,
        "title": preset.title,
        "signature": scheme.told(),
        "headers": scheme.headers(),
        "secret": scheme.secret_format().told(),
        "tolerance": scheme.tolerance().map(human),
        "needs_url": scheme.needs_url(),
        "id": presets::told(preset.id),
        "id_is_signed": preset.id_is_signed,
        "type": presets::told(preset.kind),
        "types": preset.kinds.iter().map(|(theirs, ours)| json!([theirs, ours])).collect::<Vec<_>>(),
        "family": preset.family,
        "content": content(preset),
        "batch": batch(preset),
        "ack": preset.ack,
        "handshake": preset.handshake.map(|handshake| handshake.told()),
        "handshake_is_signed": preset.handshake.map(|handshake| handshake.is_signed()),
        "retries": retries(preset),
        "drop": preset.drop,
        "docs": preset.docs,
    })
}

fn text(preset: &Preset) -> String {
    let scheme = (preset.scheme)();
    let signed = if preset.id_is_signed { "" } else { " (not signed)" };
    let mut lines = vec![
        ("signature", scheme.told()),
        ("headers", scheme.headers().join(", ")),
        ("secret", scheme.secret_format().told().into()),
        ("tolerance", scheme.tolerance().map_or("none named by the provider".into(), human)),
        ("address", if scheme.needs_url() { "signed: the public address must be configured" } else { "" }.into()),
        ("event id", presets::told(preset.id) + signed),
        ("event type", presets::told(preset.kind)),
        ("content", content(preset)),
        ("batch", batch(preset).unwrap_or_default()),
        ("answer", preset.ack.to_string()),
        ("handshake", preset.handshake.map_or(String::new(), |handshake| handshake.told().into())),
        ("tries again", retries(preset)),
        ("dropped", preset.drop.join(", ")),
        ("more", preset.docs.into()),
    ];
    lines.retain(|(_, what)| !what.is_empty());
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", preset.name, preset.title);
    for (name, what) in lines {
        let _ = writeln!(text, "  {name:<11} {what}");
    }
    for (theirs, ours) in preset.kinds.iter().filter(|(theirs, _)| !theirs.is_empty()) {
        let _ = writeln!(text, "  {theirs} -> {}.{ours}", preset.family);
    }
    if preset.name == "hmac" {
        for (setting, meaning) in settings::KNOWN {
            let _ = writeln!(text, "  --set {setting:<14} {meaning}");
        }
    }
    text
}
