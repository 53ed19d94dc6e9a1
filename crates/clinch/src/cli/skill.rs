//! `clinch skill`: what clinch knows for coding agents, as files that they read.

use super::Globals;
use super::exit::{Exit, Failure};
use super::render;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The skill, file by file, below a directory of its name.
const NAME: &str = "idempotency";
const FILES: [(&str, &str); 2] = [
    ("SKILL.md", include_str!("../../../../skills/idempotency/SKILL.md")),
    ("reference.md", include_str!("../../../../skills/idempotency/reference.md")),
];

#[derive(Subcommand, Debug)]
pub enum Skill {
    /// Write the skill `idempotency`, which drives `clinch audit-idempotency`, to where an agent looks for skills
    Install(Install),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch skill install                   skills/idempotency/ in this directory
  clinch skill install .agent/skills")]
pub struct Install {
    /// The directory in which the agent looks for skills
    #[arg(default_value = "skills")]
    directory: PathBuf,
    /// Write over files that were changed
    #[arg(long)]
    force: bool,
}

impl Skill {
    pub fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let Skill::Install(Install { directory, force }) = self;
        let home = directory.join(NAME);
        if let Some(changed) = changed(&home).filter(|_| !force) {
            let said = format!("{} is there and is another text", changed.display());
            return Err(Failure::new(Exit::Conflict, "CL0511", said).fix("clinch skill install --force"));
        }
        write(&home).map_err(|error| {
            Failure::new(Exit::Failed, "CL0531", format!("{} cannot be written: {error}", home.display()))
        })?;
        let files = FILES.map(|(file, _)| home.join(file).display().to_string());
        let document = json!({"schema": "clinch.skill/v1", "name": NAME, "files": files});
        render::show(globals.output(), &document, NAME, || files.join("\n"))?;
        Ok(Exit::Done)
    }
}

/// A file of the skill that somebody has changed.
fn changed(home: &Path) -> Option<PathBuf> {
    let differs =
        |(file, text): &(&str, &str)| std::fs::read_to_string(home.join(file)).is_ok_and(|there| there != *text);
    FILES.iter().find(|file| differs(file)).map(|(file, _)| home.join(file))
}

fn write(home: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(home)?;
    FILES.iter().try_for_each(|(file, text)| std::fs::write(home.join(file), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    /// What stands in backquotes, and the lines of consoles.
    fn commands(text: &str) -> Vec<&str> {
        let spans = text.split('`').filter(|part| part.starts_with("clinch ") && !part.contains('\n'));
        let lines = text.lines().map(|line| line.trim_start_matches("$ ")).filter(|line| line.starts_with("clinch "));
        spans.chain(lines).collect()
    }

    #[test]
    fn j6_every_command_of_the_skill_can_be_given_and_every_file_it_names_is_there() {
        let page = include_str!("../../../../docs/idempotency-audit.md");
        let mut seen = 0;
        for text in FILES.iter().map(|(_, text)| *text).chain([page]) {
            for command in commands(text) {
                assert!(Cli::try_parse_from(command.split_whitespace()).is_ok(), "{command}");
                seen += 1;
            }
        }
        assert!(seen >= 6, "{seen}");
        for (_, text) in FILES {
            for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
                assert!(FILES.iter().any(|(file, _)| *file == link.0), "{}", link.0);
            }
        }
        let (head, _) =
            FILES[0].1.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n")).expect("front matter");
        assert!(head.contains("name: idempotency\n") && head.contains("description: "), "{head}");
    }

    #[test]
    fn j6_a_skill_is_written_once_and_never_over_what_somebody_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let home = directory.path().join(NAME);
        assert_eq!(changed(&home), None);
        write(&home).expect("written");
        assert_eq!(changed(&home), None, "the same text is no other");
        std::fs::write(home.join("SKILL.md"), "mine").expect("written");
        assert_eq!(changed(&home), Some(home.join("SKILL.md")));
    }
}
