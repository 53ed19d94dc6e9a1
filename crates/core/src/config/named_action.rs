//! `run: store.setnx` with `with:`: another spelling of `setnx:`. It is rewritten before anything looks at it, so that both
//! are checked by the same table, and every word keeps its place.

use super::dialect::NAMED_ACTIONS;
use super::nearest::nearest;
use super::problem::{Code, Problem, Report, Span, shown};
use super::yaml::{Key, Node, Value};

/// The steps below this key of a file, with named actions in their short forms.
pub(super) fn spelt_out(mut root: Node, steps: &str, report: &mut Report<'_>) -> Node {
    each_map(&mut root, steps, &mut |step| rewrite_step(step, report));
    root
}

fn rewrite_step(step: &mut Node, report: &mut Report<'_>) {
    rewrite(step, report);
    each_map(step, "parallel", &mut |branch| {
        rewrite(branch, report);
        each_map(branch, "steps", &mut |step| rewrite(step, report));
    });
}

fn rewrite(step: &mut Node, report: &mut Report<'_>) {
    let Some((run, named)) = step.entry("run") else { return };
    let (at, place) = (run.span, named.head());
    let Some(written) = named.text() else { return };
    let Some((name, short)) = NAMED_ACTIONS.iter().find(|(known, _)| *known == written) else {
        return report.flaw(step.span, unknown(written, place));
    };
    // Both spellings at once: what does one thing is told to keep one of the two.
    if step.get(short).is_some() {
        return;
    }
    let span = step.span;
    let Value::Map(fields) = &mut step.value else { return };
    let Some(with) = fields.iter().position(|(key, _)| key.text == "with") else {
        let said = format!("`{name}` is given nothing");
        let problem = Problem::error(Code::MissingKey, place, said).label("needs `with`");
        return report.flaw(span, problem.help(format!("add `with:` and below it what belongs below `{short}:`")));
    };
    let (_, given) = fields.remove(with);
    if let Some(run) = fields.iter_mut().find(|(key, _)| key.text == "run") {
        *run = (Key { text: short.to_string(), span: at }, given);
    }
}

fn unknown(name: &str, place: Span) -> Problem {
    let known: Vec<&str> = NAMED_ACTIONS.iter().map(|(known, _)| *known).collect();
    let said = format!("there is no action `{}`", shown(name));
    let problem = Problem::error(Code::BadChoice, place, said).label("unknown action");
    let problem = problem.note(format!("actions: {}", known.join(", ")));
    // `setnx` is as good a guess as `store.setnxx`.
    let short = NAMED_ACTIONS.iter().find(|(known, _)| known.rsplit('.').next() == Some(name)).map(|(known, _)| *known);
    match short.or_else(|| nearest(name, known)) {
        Some(meant) => problem.help(format!("did you mean `{meant}`?")),
        None => problem.help("write one of these, or use a short form such as `http:`"),
    }
}

fn field<'n>(node: &'n mut Node, name: &str) -> Option<&'n mut Node> {
    match &mut node.value {
        Value::Map(fields) => fields.iter_mut().find(|(key, _)| key.text == name).map(|(_, value)| value),
        Value::List(_) | Value::Scalar { .. } => None,
    }
}

fn each_map(node: &mut Node, name: &str, act: &mut dyn FnMut(&mut Node)) {
    if let Some(Node { value: Value::List(items), .. }) = field(node, name) {
        items.iter_mut().for_each(act);
    }
}
