//! What steps read: the outputs of steps that ran before, and the item of a list.

use super::{list, named, steps};
use crate::config::nearest::nearest;
use crate::config::problem::{Code, Problem, shown};
use crate::config::read::{Reader, Spot};
use crate::config::spelling;
use crate::config::value;
use crate::config::yaml::{Node, Value};

/// Where a step has expressions, and where templates.
const EXPRS: &[&[&str]] = &[
    &["if"],
    &["http", "body_from"],
    &["validate", "from"],
    &["enrich", "phone", "from"],
    &["enrich", "geoip", "from"],
    &["delay", "until"],
    &["queue", "body_from"],
    &["queue", "key_from"],
];

const TEMPLATES: &[&[&str]] = &[
    &["http", "url"],
    &["http", "headers"],
    &["http", "wrap_key"],
    &["http", "body"],
    &["transform"],
    &["setnx", "key"],
    &["sql", "params"],
    &["send_template", "to"],
    &["send_template", "with"],
    &["approval", "title"],
    &["approval", "show"],
    &["env"],
];

/// A step, or a branch with steps, and what its expressions may read.
struct Seen<'a> {
    here: Reader<'a>,
    name: Spot<String>,
    /// The names that have run by then.
    before: Vec<Spot<String>>,
    /// Those that run beside it.
    beside: Vec<Spot<String>>,
}

/// Everything that has a name, with what it may read; `None` if some name is missing.
fn seen<'a>(worker: Reader<'a>) -> Option<Vec<Seen<'a>>> {
    let mut found = Vec::new();
    let mut before: Vec<Spot<String>> = Vec::new();
    for step in list(worker) {
        let name = step.step_name()?;
        let parts = step.has("parallel");
        found.push(Seen { here: step, name: name.clone(), before: before.clone(), beside: Vec::new() });
        found.extend(step.map("compensate").map(|here| {
            let before = before.iter().chain([&name]).cloned().collect();
            Seen { here, name: name.clone(), before, beside: Vec::new() }
        }));
        let branches = step.maps("parallel").map(|branch| {
            let own = if branch.has("steps") { branch.maps("steps").collect() } else { vec![branch] };
            let names = own.iter().map(Reader::step_name).collect::<Option<Vec<_>>>()?;
            Some((branch, own, names))
        });
        let branches = branches.collect::<Option<Vec<_>>>()?;
        for (at, (branch, own, names)) in branches.iter().enumerate() {
            let others = branches.iter().enumerate().filter(|(other, _)| *other != at);
            let beside: Vec<_> = others.flat_map(|(_, (.., names))| names.iter().cloned()).collect();
            let sees = |here: Reader<'a>, name: Spot<String>, own: &[Spot<String>]| {
                let before = before.iter().chain(own).cloned().collect();
                Seen { here, name, before, beside: beside.clone() }
            };
            if branch.has("steps") {
                found.push(sees(*branch, branch.step_name()?, &[]));
            }
            for (index, step) in own.iter().enumerate() {
                found.push(sees(*step, names[index].clone(), &names[..index]));
                found.extend(step.map("compensate").map(|undo| sees(undo, names[index].clone(), &names[..=index])));
            }
        }
        // What parts has no output; its branches do.
        before.extend(branches.into_iter().flat_map(|(.., names)| names));
        before.extend((!parts).then_some(name));
    }
    Some(found)
}

/// Every `steps.NAME` must be a step that ran before.
pub(super) fn unknown_steps(worker: Reader<'_>, names: &[Spot<String>]) -> Vec<Problem> {
    let mut found = Vec::new();
    for seen in seen(worker).unwrap_or_default() {
        let mut texts = Vec::new();
        let at = |path: &&[&str]| path.iter().try_fold(seen.here.node, |node, name| node.get(name));
        for node in EXPRS.iter().filter_map(at) {
            texts.push((node, spelling::steps_in_expr(node.text().unwrap_or_default())));
        }
        if let Some(node) = seen.here.node.get("foreach") {
            let written = value::list_spelt_out(node.text().unwrap_or_default());
            texts.push((node, spelling::steps_in_expr(&written)));
        }
        for node in TEMPLATES.iter().filter_map(at) {
            templates(node, &mut texts);
        }
        for node in at(&&["dedup_key", "fields"][..]).map_or(&[][..], Node::items) {
            texts.push((node, spelling::steps_in_expr(node.text().unwrap_or_default())));
        }
        for (node, read) in texts.into_iter().filter(|(node, _)| !worker.report.is_flawed(node.span)) {
            let unknown = read.into_iter().filter(|name| !seen.before.iter().any(|known| known.value == *name));
            found.extend(unknown.map(|name| unknown_step(worker, node, &name, names, &seen)));
        }
    }
    found
}

fn unknown_step(worker: Reader<'_>, node: &Node, name: &str, names: &[Spot<String>], seen: &Seen<'_>) -> Problem {
    let span = worker.report.narrow(node.span, &format!("steps.{name}"));
    let Seen { name: Spot { value: here, .. }, before, beside, .. } = seen;
    if let Some(other) = beside.iter().find(|step| step.value == name) {
        let said = format!("step `{here}` reads `steps.{name}`, which runs beside it in another branch");
        let problem = Problem::error(Code::UnknownStep, span, said).label("not there yet");
        let help = "read it in a step after the `parallel`, or put both into one branch with `steps:`";
        return problem.also(other.span, "runs here").help(help);
    }
    if let Some(later) = names.iter().find(|step| step.value == name) {
        let parting = named(worker).filter(|named| named.has("parallel") || named.has("steps"));
        let parts = parting.filter_map(|named| named.step_name()).any(|parting| parting.value == name);
        let (said, label, help) = match parts {
            true => ("which has steps inside and no output", "no output", "read one of the steps inside it"),
            false => {
                ("which has not run by then", "not there yet", "read only steps above this one, or change their order")
            }
        };
        let said = format!("step `{here}` reads `steps.{name}`, {said}");
        let problem = Problem::error(Code::UnknownStep, span, said).label(label);
        return problem.also(later.span, if parts { "this one" } else { "runs here" }).help(help);
    }
    let said = format!("step `{here}` reads `steps.{}`, but no step has the name `{0}`", shown(name));
    let problem = Problem::error(Code::UnknownStep, span, said).label("unknown step");
    let known: Vec<&str> = before.iter().map(|step| step.value.as_str()).collect();
    if known.is_empty() {
        return problem.help("no step runs before this one; read `body` instead");
    }
    let problem = problem.note(format!("steps before this one: {}", known.join(", ")));
    match nearest(name, known.iter().copied()).and_then(|meant| before.iter().find(|step| step.value == meant)) {
        Some(meant) => {
            problem.also(meant.span, "this one exists").help(format!("did you mean `steps.{}`?", meant.value))
        }
        None => problem.help("name a step that runs before this one"),
    }
}

/// `item` is there where `foreach` is.
pub(super) fn items_of_nothing(worker: Reader<'_>) -> Vec<Problem> {
    let acts = steps(worker).filter(|step| !step.has("foreach"));
    let acts = acts.flat_map(|step| std::iter::once(step).chain(step.map("compensate")));
    let mut found = Vec::new();
    for act in acts {
        let at = |path: &&[&str]| path.iter().try_fold(act.node, |node, name| node.get(name));
        let mut reads: Vec<(&Node, bool)> = Vec::new();
        for node in EXPRS.iter().filter_map(at) {
            reads.push((node, value::expr(node, "").is_ok_and(|expr| expr.roots().contains("item"))));
        }
        let mut texts = Vec::new();
        TEMPLATES.iter().filter_map(at).for_each(|node| templates(node, &mut texts));
        for (node, _) in texts {
            let roots = value::template(node, "").map(|text| text.roots()).unwrap_or_default();
            reads.push((node, roots.contains("item")));
        }
        for (node, _) in reads.iter().filter(|(node, reads)| *reads && !worker.report.is_flawed(node.span)) {
            let problem =
                Problem::error(Code::BadExpression, node.span, "`item` is read in a step that runs for no list");
            found.push(problem.label("there is no item").help("add `foreach:` with a list to this step"));
        }
    }
    found
}

fn templates<'n>(node: &'n Node, texts: &mut Vec<(&'n Node, Vec<String>)>) {
    match &node.value {
        Value::Scalar { text, .. } => texts.push((node, spelling::steps_in_template(text))),
        Value::List(items) => items.iter().for_each(|item| templates(item, texts)),
        Value::Map(fields) => fields.iter().for_each(|(_, item)| templates(item, texts)),
    }
}
