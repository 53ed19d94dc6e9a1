//! Problems of a workspace, shown in its text: where, what, and what to write instead.

use super::findings::{self, Finding};
use super::render;
use annotate_snippets::{AnnotationKind, Element, Level, Origin, Renderer, Snippet};
use clinch_core::config::{Files, Problem, Severity, Span, position};
use serde_json::{Value, json};
use std::path::Path;

/// The problems of one reading of a workspace directory.
pub struct Problems<'a> {
    pub directory: &'a Path,
    pub files: &'a Files,
    pub found: &'a [Problem],
}

impl Problems<'_> {
    pub fn errors(&self) -> usize {
        self.found.iter().filter(|problem| problem.is_error()).count()
    }

    /// Every problem as rustc would show it, then the count.
    pub fn human(&self) -> String {
        let shown: Vec<String> = self.found.iter().map(|problem| self.one(problem) + "\n\n").collect();
        shown.concat() + &self.count()
    }

    pub fn count(&self) -> String {
        let errors = self.errors();
        format!(
            "{}, {} in {}",
            render::count(errors, "error"),
            render::count(self.found.len() - errors, "warning"),
            render::count(self.files.0.len(), "file")
        )
    }

    fn one(&self, problem: &Problem) -> String {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(render::clean(&problem.message)).id(problem.code.to_string());
        let path = self.path(&problem.file);
        let mut parts: Vec<Element<'_>> = Vec::new();
        match self.text(&problem.file) {
            Some(text) if !text.is_empty() => {
                let label = (!problem.label.is_empty()).then_some(problem.label.as_str());
                let mut snippet = Snippet::source(text)
                    .path(path)
                    .annotation(AnnotationKind::Primary.span(within(text, problem.span)).label(label));
                if let Some((span, label)) = &problem.also {
                    snippet =
                        snippet.annotation(AnnotationKind::Context.span(within(text, *span)).label(label.as_str()));
                }
                parts.push(snippet.into());
            }
            _ => parts.push(Origin::path(path).into()),
        }
        for note in &problem.notes {
            parts.push(Level::NOTE.message(lines(note)).into());
        }
        if let Some(help) = &problem.help {
            parts.push(Level::HELP.with_name("fix").message(lines(help)).into());
        }
        parts.push(Level::HELP.with_name("explain").message(format!("clinch explain {}", problem.code)).into());
        Renderer::styled().render(&[title.elements(parts)])
    }

    pub fn json(&self) -> Value {
        let errors = self.errors();
        json!({
            "schema": "clinch.check/v1",
            "errors": errors,
            "warnings": self.found.len() - errors,
            "files": self.files.0.len(),
            "problems": self.found.iter().map(|problem| self.one_json(problem)).collect::<Vec<_>>(),
        })
    }

    fn one_json(&self, problem: &Problem) -> Value {
        let text = self.text(&problem.file).unwrap_or_default();
        let (line, column) = position(text, problem.span.start);
        let (end_line, end_column) = position(text, problem.span.end);
        json!({
            "severity": word(problem.severity),
            "code": problem.code.to_string(),
            "file": problem.file,
            "line": line,
            "column": column,
            "end_line": end_line,
            "end_column": end_column,
            "message": problem.message,
            "label": problem.label,
            "notes": problem.notes,
            "help": problem.help,
        })
    }

    /// As other programs read them.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |problem: &Problem| {
            let text = self.text(&problem.file).unwrap_or_default();
            Finding {
                level: match problem.severity {
                    Severity::Error => findings::Level::Error,
                    Severity::Warning => findings::Level::Warning,
                },
                code: problem.code.to_string(),
                title: problem.code.title().into(),
                path: Some(self.path(&problem.file)),
                from: position(text, problem.span.start),
                to: position(text, problem.span.end),
                message: problem.message.clone(),
                fix: problem.help.clone(),
            }
        };
        self.found.iter().map(finding).collect()
    }

    fn text(&self, file: &str) -> Option<&str> {
        self.files.text(file)
    }

    /// As an editor or a terminal can open it from here.
    fn path(&self, file: &str) -> String {
        match self.directory {
            here if here == Path::new(".") => file.to_string(),
            there => there.join(file).display().to_string(),
        }
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn lines(text: &str) -> String {
    text.lines().map(render::clean).collect::<Vec<_>>().join("\n")
}

/// A span that lies in the text and does not cut a character.
fn within(text: &str, span: Span) -> std::ops::Range<usize> {
    let start = text.floor_char_boundary(span.start.min(text.len()));
    start..text.ceil_char_boundary(span.end.clamp(start, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clinch_core::config::Code;

    fn problem() -> Problem {
        let mut problem = Problem::error(Code::UnknownKey, Span::new(12, 19), "unknown key `retires`")
            .label("did you mean `retries`?")
            .note("allowed here: retries, steps")
            .help("write `retries: 5`");
        problem.file = "workers/w.yml".into();
        problem
    }

    fn with<T>(found: &[Problem], look: impl Fn(&Problems<'_>) -> T) -> T {
        let files = Files(vec![
            ("workers/w.yml".into(), "name: post\n\nretires: 5\n".into()),
            ("queues.yml".into(), String::new()),
        ]);
        look(&Problems { directory: Path::new("."), files: &files, found })
    }

    #[test]
    fn j1_a_problem_is_shown_in_the_text_with_its_fix() {
        let told = with(&[problem()], |problems| anstream::adapter::strip_str(&problems.human()).to_string());
        let expected = "\
error[CL0121]: unknown key `retires`
 --> workers/w.yml:3:1
  |
3 | retires: 5
  | ^^^^^^^ did you mean `retries`?
  |
  = note: allowed here: retries, steps
  = fix: write `retries: 5`
  = explain: clinch explain CL0121

1 error, 0 warnings in 2 files";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_problem_without_text_or_beyond_it_is_still_shown() {
        let mut nowhere = problem();
        nowhere.file = "queues.yml".into();
        let mut beyond = problem();
        beyond.span = Span::new(900, 950);
        let told = with(&[nowhere, beyond], |problems| anstream::adapter::strip_str(&problems.human()).to_string());
        assert!(told.contains("--> queues.yml") && told.contains("2 errors"), "{told}");
    }

    #[test]
    fn programs_get_places_and_github_gets_marks() {
        let document = with(&[problem()], |problems| problems.json());
        assert_eq!((&document["problems"][0]["line"], &document["problems"][0]["end_column"]), (&json!(3), &json!(8)));
        let marks = with(&[problem()], |problems| findings::github(&problems.findings()));
        assert_eq!(
            marks,
            "::error file=workers/w.yml,line=3,col=1,title=CL0121::unknown key `retires`%0Afix: write `retries: 5`\n"
        );
    }
}
