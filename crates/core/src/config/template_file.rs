//! `templates/NAME.txt`, `.md`, `.html` and `.json`: what messages say.

use super::cross::Parts;
use super::nearest::nearest;
use super::problem::{Code, Problem, Report, Span, shown};
use super::spelling::templates;
use super::value::{self, Names, TEMPLATE_ROOTS};
use crate::expr::{BadExpr, Tree};
use crate::message::{Letter, Piece};
use serde_json::Value;

pub const ENDINGS: &[&str] = &[".txt", ".md", ".html", ".json"];
/// What may stand between two lines `---` at the head of a file.
const HEAD: &[&str] = &["subject"];

/// `templates/NAME.txt` as its name and its ending.
pub(super) fn name_of(path: &str) -> Option<(&str, &str)> {
    let file = path.strip_prefix("templates/")?;
    let ending = *ENDINGS.iter().find(|ending| file.ends_with(**ending))?;
    Some((file.strip_suffix(ending)?, ending)).filter(|(name, _)| !name.is_empty())
}

/// One that cannot be used is known by its name all the same, so that nobody calls it missing too.
pub(super) fn read(report: &mut Report<'_>, parts: &mut Parts<'_>) {
    let Some((name, ending)) = name_of(report.file) else { return };
    let known = parts.templates.entry(name.to_string()).or_default();
    if ending == ".json" {
        match json(report.text) {
            Ok(tree) => known.json = Some(tree),
            Err((span, why)) => report.add(Problem::error(Code::BadTemplate, span, why).label("here")),
        }
        return;
    }
    let (subject, body) = head(report);
    if let Some(subject) = subject
        && known.subject.replace(letter(report, subject)).is_some()
    {
        let said = format!("the subject of template `{name}` is in another of its files too");
        report.add(Problem::error(Code::BadTemplate, subject, said).help("keep one of the two"));
    }
    let body = letter(report, body);
    let before = if ending == ".html" { known.html.replace(body) } else { known.text.replace(body) };
    if before.is_some() {
        let said = format!("template `{name}` has its text in two files");
        let problem = Problem::error(Code::BadTemplate, Span::default(), said);
        report.add(problem.help(format!("keep one of templates/{name}.txt and templates/{name}.md")));
    }
}

/// The subject, if the head of the file has one, and the rest.
fn head(report: &mut Report<'_>) -> (Option<Span>, Span) {
    let text = report.text;
    let whole = Span::new(0, text.len());
    let Some(first) = text.split_inclusive('\n').next().filter(|line| line.trim_end() == "---") else {
        return (None, whole);
    };
    let (mut at, mut subject) = (first.len(), None);
    for line in text[at..].split_inclusive('\n') {
        let span = Span::new(at, at + line.trim_end().len());
        at += line.len();
        if line.trim_end() == "---" {
            return (subject, Span::new(at, text.len()));
        }
        match line.split_once(':') {
            Some(("subject", value)) => {
                let start = span.start + "subject:".len() + (value.len() - value.trim_start().len());
                subject = Some(Span::new(start.min(span.end), span.end));
            }
            _ if line.trim().is_empty() => {}
            written => {
                let key = written.map_or(line.trim(), |(key, _)| key);
                let said = format!("`{}` is not known at the head of a template", shown(key));
                let problem = Problem::error(Code::UnknownKey, span, said).note("known there: subject");
                report.add(match nearest(key, HEAD.iter().copied()) {
                    Some(meant) => problem.help(format!("did you mean `{meant}`?")),
                    None => problem.help("write `subject: …` between the two lines `---`, or remove it"),
                });
            }
        }
    }
    let problem = Problem::error(Code::BadTemplate, Span::new(0, 3), "the head of this template has no end");
    report.add(problem.label("begins here").help("write a line `---` below it"));
    (subject, whole)
}

/// The text in this span, with its values.
fn letter(report: &mut Report<'_>, span: Span) -> Letter {
    let text = &report.text[span.start..span.end];
    let mut pieces = Vec::new();
    let mut copied = 0;
    for place in templates(text) {
        pieces.push(Piece::Text(text[copied..place.start].to_string()));
        copied = place.end;
        let here = Span::new(span.start + place.start, span.start + place.end);
        match value::expr_of(&text[place]) {
            Ok(expr) => {
                names(report, here, &Names::of_expr(&expr));
                pieces.push(Piece::Value(expr));
            }
            Err(error) => bad(report, here, &error),
        }
    }
    pieces.push(Piece::Text(text[copied..].to_string()));
    // A sum of money is written `${{ … }}`.
    let dollar = text.match_indices("${").find(|(at, _)| !text[at + 1..].starts_with("{{")).map(|(at, _)| at);
    let known = "only `{{ … }}` is known here; compute what depends on a condition in a `transform:` step";
    for (at, help) in [(text.find("{%"), known), (dollar, "write `{{ … }}`; a message has no secrets in it")] {
        let Some(at) = at else { continue };
        let here = Span::new(span.start + at, span.start + at + 2);
        let said = format!("`{}` means nothing in a message", &text[at..at + 2]);
        report.add(Problem::error(Code::BadTemplate, here, said).help(help));
    }
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
    Letter(pieces)
}

fn bad(report: &mut Report<'_>, span: Span, error: &BadExpr) {
    let problem = Problem::error(Code::BadTemplate, span, super::problem::printable(&error.0));
    report.add(problem.note(format!("names that are known here: {}", TEMPLATE_ROOTS.join(", "))));
}

fn names(report: &mut Report<'_>, span: Span, names: &Names) {
    for root in names.roots.iter().filter(|root| !TEMPLATE_ROOTS.contains(&root.as_str())) {
        let said = format!("the name `{}` is not known in a message", shown(root));
        let problem = Problem::error(Code::BadTemplate, report.narrow(span, root), said)
            .label("unknown name")
            .note(format!("names that are known here: {}", TEMPLATE_ROOTS.join(", ")));
        report.add(match nearest(root, TEMPLATE_ROOTS.iter().copied()) {
            Some(meant) => problem.help(format!("did you mean `{meant}`?")),
            None => {
                problem.help(format!("write `body.{0}`, or give it to the step as `with: {{{0}: …}}`", shown(root)))
            }
        });
    }
}

fn json(text: &str) -> Result<Tree, (Span, String)> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let line = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let at = text.floor_char_boundary((line + error.column().saturating_sub(1)).min(text.len()));
        (Span::new(at, at), format!("this is not JSON: {}", super::problem::printable(&error.to_string())))
    })?;
    tree(value).map_err(|error| (Span::default(), error.0))
}

fn tree(value: Value) -> Result<Tree, BadExpr> {
    Ok(match value {
        Value::String(text) => {
            let read = value::tree_of(&text)?;
            let roots = value::roots_of(&text);
            if let Some(root) = roots.iter().find(|root| !TEMPLATE_ROOTS.contains(&root.as_str())) {
                let known = TEMPLATE_ROOTS.join(", ");
                return Err(BadExpr(format!("the name `{}` is not known in a message; known: {known}", shown(root))));
            }
            read
        }
        Value::Array(items) => Tree::List(items.into_iter().map(tree).collect::<Result<_, _>>()?),
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, item)| Ok((name, tree(item)?)));
            Tree::Map(fields.collect::<Result<_, BadExpr>>()?)
        }
        plain => Tree::Value(plain),
    })
}
