//! The runtimes of scripts: which programs they are, and which of those that a workspace needs are not there.

use clinch_core::config::{Code, Problem, Severity, Workspace};
use clinch_core::script::{Language, Runtime, version_in};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// The program, as it is found by its name.
pub const fn program(language: Language) -> &'static str {
    match language {
        Language::Node => "node",
        Language::Python => "python3",
        Language::Bash => "bash",
    }
}

/// One problem for each place that needs a runtime that is not there, or is too old.
pub fn missing(workspace: &Workspace, severity: Severity) -> Vec<Problem> {
    let mut installed: BTreeMap<Language, Option<(u32, u32)>> = BTreeMap::new();
    let mut found = Vec::new();
    for needed in &workspace.runtimes {
        let language = needed.runtime.language;
        let version = *installed.entry(language).or_insert_with(|| version(language));
        if let Some(problem) = problem(needed.runtime, version) {
            let severity = Problem { severity, file: needed.file.clone(), span: needed.span, ..problem };
            found.push(severity);
        }
    }
    found
}

fn version(language: Language) -> Option<(u32, u32)> {
    let said =
        Command::new(program(language)).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    version_in(&String::from_utf8_lossy(&said.stdout)).filter(|_| said.status.success())
}

fn problem(runtime: Runtime, version: Option<(u32, u32)>) -> Option<Problem> {
    let program = program(runtime.language);
    let said = match version {
        Some(version) if version >= runtime.least => return None,
        Some((major, minor)) => format!("`{runtime}` is needed here, and `{program}` is {major}.{minor}"),
        None => format!("`{runtime}` is needed here, and `{program}` is not installed"),
    };
    let package = match runtime.language {
        Language::Node => "nodejs",
        Language::Python => "python3",
        Language::Bash => "bash",
    };
    let problem = Problem::error(Code::NoRuntime, Default::default(), said).label("cannot be run");
    Some(problem.help(format!("install it (apt install {package}), so that `{program} --version` says what is needed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c7_a_runtime_that_is_not_there_or_too_old_is_told_with_what_to_install() {
        let node: Runtime = "node:18".parse().expect("a runtime");
        assert_eq!(problem(node, Some((18, 0))), None);
        assert_eq!(problem(node, Some((22, 3))), None);
        let old = problem(node, Some((16, 20))).expect("a problem");
        assert_eq!(old.message, "`node:18` is needed here, and `node` is 16.20");
        let none = problem(node, None).expect("a problem");
        assert_eq!(none.message, "`node:18` is needed here, and `node` is not installed");
        assert!(none.help.is_some_and(|help| help.contains("apt install nodejs")));
    }

    #[test]
    fn c7_an_installed_program_says_its_version() {
        assert!(version(Language::Bash).is_some_and(|version| version >= (3, 0)));
    }
}
