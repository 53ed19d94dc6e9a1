//! `clinch explain`: what a code means and what to do about it, without a way to the documentation.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render::{self, BOLD, Output};
use crate::errors::{self, Entry};
use crate::runbook;
use clap::Args;
use serde_json::json;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch explain CL0121              a code that clinch printed
  clinch explain auth_failed         the reason of a dead letter
  clinch explain signature-invalid   what the intake answered
  clinch explain exit 7              an exit code
  clinch explain                     the list")]
pub struct Explain {
    /// A code, a reason, the word of an answer, or `exit` and a number
    #[arg(value_name = "CODE", num_args = 0..=2)]
    code: Vec<String>,
}

impl Explain {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        if self.code.is_empty() {
            return list(output);
        }
        let code = self.code.join(" ");
        if let Some(Entry { code, title, text }) = errors::find(&code) {
            let document = json!({"schema": "clinch.explain/v1", "code": code, "title": title, "text": text});
            let head = if title.is_empty() { code.to_string() } else { format!("{code}: {title}") };
            render::show(output, &document, code, || format!("{BOLD}{head}{BOLD:#}\n\n{text}\n"))?;
            return Ok(Exit::Done);
        }
        if let Some(runbook::Page { text, .. }) = runbook::page(None, &code) {
            let document = json!({"schema": "clinch.explain/v1", "code": code, "title": "", "text": text});
            render::show(output, &document, &code, || text.clone())?;
            return Ok(Exit::Done);
        }
        Err(Failure::new(Exit::NotFound, "CL0556", format!("There is no code `{code}`"))
            .fix("clinch explain lists them"))
    }
}

fn list(output: Output) -> Result<Exit, Failure> {
    let entries: Vec<Entry> = errors::all().collect();
    let runbooks = runbook::names(None);
    let told = |entry: &Entry| json!({"code": entry.code, "title": entry.title, "text": entry.text});
    let document = json!({
        "schema": "clinch.explain.list/v1",
        "codes": entries.iter().map(told).collect::<Vec<_>>(),
        "runbooks": runbooks,
    });
    let ids: Vec<&str> = entries.iter().map(|entry| entry.code).chain(runbooks.iter().map(String::as_str)).collect();
    render::show(output, &document, &ids.join("\n"), || {
        let lines = entries.iter().map(|entry| match entry.title {
            "" => format!("{:<26}{}\n", entry.code, entry.text.lines().next().unwrap_or_default()),
            title => format!("{:<26}{title}\n", entry.code),
        });
        lines.chain(runbooks.iter().map(|name| format!("{name:<26}a runbook\n"))).collect()
    })?;
    Ok(Exit::Done)
}
