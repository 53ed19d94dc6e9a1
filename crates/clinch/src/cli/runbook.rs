//! Pages that say what to do, for when the way to the documentation is what is broken.

use super::exit::{Exit, Failure};
use super::render;
use super::{Globals, render::Output};
use crate::runbook;
use clap::Args;

/// Examples: clinch runbook            every page
///           clinch runbook auth_failed
#[derive(Args, Debug)]
pub struct Runbook {
    /// A dead-letter reason; without one, the list
    name: Option<String>,
}

impl Runbook {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let is_json = matches!(globals.output(), Output::Json | Output::Jsonl);
        let Some(name) = &self.name else {
            let names: Vec<&str> = runbook::names().collect();
            let list = if is_json {
                serde_json::json!({ "schema": "clinch.runbooks.list/v1", "runbooks": names }).to_string()
            } else {
                names.join("\n")
            };
            render::data(&list)?;
            return Ok(Exit::Done);
        };
        let Some(text) = runbook::text(name) else {
            let said = format!("There is no runbook `{name}`");
            return Err(Failure::new(Exit::NotFound, "CL0505", said).fix("clinch runbook lists them"));
        };
        let page = if is_json {
            serde_json::json!({ "schema": "clinch.runbooks.show/v1", "name": name, "text": text }).to_string()
        } else {
            text.trim_end().into()
        };
        render::data(&page)?;
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use crate::runbook;
    use clap::Parser;

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
        let mut found = 0;
        for name in runbook::names() {
            let page = runbook::find(name).expect("it is listed");
            let spans = page.parts.iter().flat_map(|part| &part.lines).flat_map(|line| &line.spans);
            for span in spans.filter(|span| span.is_code && span.text.starts_with("clinch ")) {
                found += 1;
                if let Err(error) = Cli::try_parse_from(words(span.text)) {
                    panic!("{name}: `{}`: {error}", span.text);
                }
            }
        }
        assert!(found > 40, "only {found} commands were found");
    }
}
