//! `clinch completions`: a script that lets a shell complete commands and flags.

use super::exit::{Exit, Failure};
use super::{Cli, render};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch completions zsh > ~/.zfunc/_clinch
  clinch completions bash > ~/.local/share/bash-completion/completions/clinch
  clinch completions fish > ~/.config/fish/completions/clinch.fish")]
pub struct Completions {
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub fn run(&self) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "clinch", &mut script);
        render::data(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}
