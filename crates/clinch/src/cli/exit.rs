//! How a command ends: a code for scripts, and for people what went wrong and what to do about it.

use super::render;
use crate::masking::rules;
use anstyle::{AnsiColor, Style};
use std::fmt::Write;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// The reason is on standard error.
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    /// No token, or the wrong one.
    NotAllowed = 4,
    /// The state moved on.
    Conflict = 5,
    ConfigInvalid = 6,
    NotReachable = 7,
    /// It was done, and some of it did not end well.
    Partly = 8,
    /// A guard needs a word from a person.
    Refused = 9,
    /// Something is different or was found; only with `--exit-code`.
    Findings = 10,
    WaitRanOut = 124,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    code: String,
    message: String,
    facts: Vec<String>,
    fix: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, code: &str, message: impl Into<String>) -> Failure {
        Failure { exit, code: code.into(), message: message.into(), facts: Vec::new(), fix: None }
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Nobody reads our output any more: there is nothing to complain about.
    pub fn nobody_listens() -> Failure {
        Failure::new(Exit::Done, "", "")
    }

    pub fn fact(mut self, fact: impl Into<String>) -> Failure {
        self.facts.push(fact.into());
        self
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Failure {
        self.fix = Some(fix.into());
        self
    }

    pub fn print(&self) {
        if !self.message.is_empty() {
            render::complain(&self.text());
        }
    }

    fn text(&self) -> String {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let blue = Style::new().bold().fg_color(Some(AnsiColor::Blue.into()));
        let clean = |text: &str| text.lines().map(render::clean).collect::<Vec<_>>().join("\n    ");
        // What was asked for is repeated, and output is kept and passed on.
        let masked = |text: &str| clean(&rules().sentence(text));
        let mut text = format!("{red}error[{}]{red:#}: {}", self.code, masked(&self.message));
        for fact in &self.facts {
            let _ = write!(text, "\n  {blue}={blue:#} {}", masked(fact));
        }
        if let Some(fix) = &self.fix {
            let _ = write!(text, "\n  {blue}={blue:#} fix: {}", clean(fix));
        }
        if !self.code.is_empty() {
            let _ = write!(text, "\n  {blue}={blue:#} explain: clinch explain {}", self.code);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_happened_and_what_to_do() {
        let failure =
            Failure::new(Exit::NotFound, "CL0505", "There is no job\u{1b}[2J here.").fact("a fact").fix("look");
        let plain = anstream::adapter::strip_str(&failure.text()).to_string();
        assert_eq!(
            plain,
            "error[CL0505]: There is no job\u{fffd}[2J here.\n  = a fact\n  = fix: look\n  = explain: clinch explain CL0505"
        );
    }
}
