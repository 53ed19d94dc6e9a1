//! Pages that say what to do, for when the way to the documentation is what is broken.

use super::exit::{Exit, Failure};
use super::render;
use super::{Globals, render::Output};
use crate::runbook;
use clap::Args;
use std::path::PathBuf;

/// Examples: clinch runbook            every page
///           clinch runbook auth_failed
///           clinch runbook ClinchCircuitOpen
#[derive(Args, Debug)]
pub struct Runbook {
    /// An alert or a dead-letter reason; without one, the list
    name: Option<String>,
    /// Whose own pages, runbooks/NAME.md, are shown instead of those that clinch has
    #[arg(long, default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
}

impl Runbook {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let is_json = matches!(globals.output(), Output::Json | Output::Jsonl);
        let Some(name) = &self.name else {
            let names = runbook::names(Some(&self.workspace));
            let list = if is_json {
                serde_json::json!({ "schema": "clinch.runbooks.list/v1", "runbooks": names }).to_string()
            } else {
                names.join("\n")
            };
            render::data(&list)?;
            return Ok(Exit::Done);
        };
        // One alert of a rule is under the rule's name.
        let page_name = name.split_once(':').map_or(name.as_str(), |(rule, _)| rule);
        let Some(page) = runbook::page(Some(&self.workspace), page_name) else {
            let said = format!("There is no runbook `{name}`");
            return Err(Failure::new(Exit::NotFound, "CL0505", said).fix("clinch runbook lists them"));
        };
        let text = if is_json {
            let (schema, own) = ("clinch.runbooks.show/v1", page.is_own);
            serde_json::json!({ "schema": schema, "name": page_name, "text": page.text, "own": own }).to_string()
        } else {
            page.text.trim_end().into()
        };
        render::data(&text)?;
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use crate::runbook;
    use clap::Parser;
    use clinch_core::alert::RULES;

    /// The words of a command, with what stands for something put in.
    fn words(command: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for letter in command.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                other => words.last_mut().expect("there is one").push(other),
            }
        }
        let named = |word: String| word.replace("JOB", "job_01HZX5T0N8W2A").replace("PLAN", "rpl_01HZX5T0N8W2A");
        words.into_iter().map(named).collect()
    }

    #[test]
    fn i4_every_command_in_a_runbook_is_one_that_clinch_takes() {
        let (mut found, mut wrong) = (0, Vec::new());
        for name in runbook::names(None) {
            let page = runbook::page(None, &name).expect("it is listed");
            let page = runbook::read_page(&name, &page.text);
            let spans = page.parts.iter().flat_map(|part| &part.lines).flat_map(|line| &line.spans);
            for span in spans.filter(|span| span.is_code && span.text.starts_with("clinch ")) {
                found += 1;
                if let Err(error) = Cli::try_parse_from(words(&span.text)) {
                    wrong.push(format!("{name}: `{}`: {error}", span.text));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(found > 120, "only {found} commands were found");
    }

    #[test]
    fn h4_the_first_command_of_every_alert_is_one_that_clinch_takes() {
        for rule in RULES {
            let filled = rule.labels.iter().fold(rule.command.to_string(), |command, label| {
                let value = if *label == "reason" { "timeout" } else { "orders" };
                command.replace(&format!("{{{label}}}"), value)
            });
            if let Err(error) = Cli::try_parse_from(words(&filled)) {
                panic!("{}: `{filled}`: {error}", rule.name);
            }
        }
    }
}
