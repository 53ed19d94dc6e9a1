//! What of a workspace can be set while it runs: where each value is written, what the files say, and what is set over it.
//!
//! What is set takes the place of what is written, in the tree, before anything is read or checked. So it is held against the
//! rules of the files, alone and together with all the rest, and refused in their words.

use super::FileKind;
use super::dialect::{PLAYBOOK, POLICIES, SETTINGS, WORKER};
use super::shape::{Kind, Shape};
use super::yaml::{Key, Node, Value};
use crate::breaker::BreakerRule;
use crate::budget::WINDOW_DEFAULT;
use crate::retry::RetryPolicy;
use crate::safe_mode::SafeModeRule;
use crate::time::human;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values by the names of what they are set over.
pub type Overrides = BTreeMap<Arc<str>, String>;

/// Something that can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settable {
    /// Where it is in the files, such as `worker.charge.retry.max_attempts`.
    pub name: Arc<str>,
    /// As it is written; `None`: nothing is.
    pub file: Option<String>,
    /// What counts where nothing is written.
    pub usual: String,
    /// What is set over it.
    pub live: Option<String>,
    /// What it is, in the words of the dialect.
    pub doc: &'static str,
}

impl Settable {
    /// What counts by the files alone.
    pub fn by_file(&self) -> &str {
        self.file.as_deref().unwrap_or(&self.usual)
    }
}

const BREAKER: [&str; 5] = ["errors_percent", "window", "min_calls", "open_for", "probes"];

/// Notes what of this file can be set, and puts in its place what is.
pub(super) fn put_over(kind: FileKind, root: &mut Node, over: &Overrides, found: &mut Vec<Settable>) {
    for Place { name, path, own } in places(kind, root) {
        let live = over.get(&*name).cloned();
        let file = at(root, &path).and_then(Node::text).map(str::to_string);
        if let Some(value) = &live {
            put(root, &path, value);
        }
        let doc = doc(kind, &path).unwrap_or_default();
        found.push(Settable { name: name.into(), file, usual: usual(&path[own..]), live, doc });
    }
}

/// Where a value is in the tree of its file. From `own` on the path is the same whoever it belongs to.
struct Place {
    name: String,
    path: Vec<String>,
    own: usize,
}

fn places(kind: FileKind, root: &Node) -> Vec<Place> {
    let place = |owner: &str, base: &[&str], rest: &[&str]| Place {
        name: format!("{owner}.{}", rest.join(".")),
        path: base.iter().chain(rest).map(|part| part.to_string()).collect(),
        own: base.len(),
    };
    let named = |list: &str| root.get(list).map_or(&[][..], Node::fields);
    let mut places = Vec::new();
    match kind {
        FileKind::Worker | FileKind::Playbook => {
            let Some(name) = root.get("name").and_then(Node::text) else { return places };
            let owner = format!("{}.{name}", if kind == FileKind::Worker { "worker" } else { "playbook" });
            places.extend(retry(root.get("retry")).iter().map(|rest| place(&owner, &[], rest)));
        }
        FileKind::Settings => {
            for (Key { text: name, .. }, node) in named("integrations") {
                let (owner, base) = (format!("integration.{name}"), ["integrations", name]);
                places.extend(integration(node).iter().map(|rest| place(&owner, &base, rest)));
            }
            let base = ["safe_mode"];
            let mut of_safe_mode = vec![vec!["hold"], vec!["max_age"], vec!["drain"]];
            if root.get("safe_mode").is_some_and(|rule| rule.get("cap").is_some()) {
                of_safe_mode.extend([vec!["cap", "max"], vec!["cap", "per"]]);
            }
            places.extend(of_safe_mode.iter().map(|rest| place("safe_mode", &base, rest)));
        }
        FileKind::Policies => {
            for (Key { text: name, .. }, node) in named("policies") {
                let caps = node.get("frequency").map_or(0, |caps| caps.items().len());
                for nth in (0..caps).map(|nth| nth.to_string()) {
                    places.push(place(&format!("policy.{name}"), &["policies", name], &["frequency", &nth, "max"]));
                }
            }
        }
        FileKind::Queues | FileKind::Flow | FileKind::Schema | FileKind::Template => {}
    }
    places
}

/// Of two spellings, the one that the file uses.
fn retry(written: Option<&Node>) -> Vec<Vec<&'static str>> {
    let has = |name: &str| written.is_some_and(|retry| retry.get(name).is_some());
    let base = if has("base_ms") { "base_ms" } else { "base_delay" };
    let mut all: Vec<_> = ["max_attempts", base, "max_delay", "max_elapsed"].map(|key| vec!["retry", key]).into();
    match has("budget") {
        true => all.extend(["max", "window"].map(|key| vec!["retry", "budget", key])),
        false => all.push(vec!["retry", "budget_per_contact"]),
    }
    all
}

fn integration(written: &Node) -> Vec<Vec<&'static str>> {
    let rate = if written.get("rate_limit").is_some() { vec!["rate_limit", "per_integration"] } else { vec!["rate"] };
    let mut all = vec![rate, vec!["concurrency"]];
    // Who is called however it fares has no breaker to set.
    if written.get("breaker").is_none_or(|breaker| breaker.text().is_none()) {
        all.extend(BREAKER.map(|key| vec!["breaker", key]));
    }
    all
}

/// What counts where the file says nothing.
fn usual(path: &[String]) -> String {
    let (retry, breaker, safe) = (RetryPolicy::default(), BreakerRule::default(), SafeModeRule::default());
    match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["retry", "max_attempts"] => retry.attempts_max.to_string(),
        ["retry", "base_delay"] => human(retry.base),
        ["retry", "max_delay"] => human(retry.pause_max),
        ["retry", "budget", "window"] => human(WINDOW_DEFAULT),
        ["breaker", "errors_percent"] => breaker.errors_percent.to_string(),
        ["breaker", "window"] => human(breaker.window),
        ["breaker", "min_calls"] => breaker.calls_min.to_string(),
        ["breaker", "open_for"] => human(breaker.open_for),
        ["breaker", "probes"] => breaker.probes.to_string(),
        ["hold"] => safe.hold.to_string(),
        ["drain"] => safe.drain.to_string(),
        _ => "none".into(),
    }
}

fn at<'n>(root: &'n Node, path: &[String]) -> Option<&'n Node> {
    path.iter().try_fold(root, |node, part| match &node.value {
        Value::List(items) => items.get(part.parse::<usize>().ok()?),
        _ => node.get(part),
    })
}

/// What is not there is added, as if somebody had written it without quotes.
fn put(node: &mut Node, path: &[String], text: &str) {
    let Some((part, rest)) = path.split_first() else {
        node.value = Value::Scalar { text: text.into(), quoted: false };
        return;
    };
    if node.is_null() {
        node.value = Value::Map(Vec::new());
    }
    let span = node.span;
    match &mut node.value {
        Value::List(items) => {
            if let Some(item) = part.parse().ok().and_then(|nth: usize| items.get_mut(nth)) {
                put(item, rest, text);
            }
        }
        Value::Map(fields) => {
            let nth = fields.iter().position(|(key, _)| key.text == *part).unwrap_or_else(|| {
                let nothing = Node { span, value: Value::Scalar { text: String::new(), quoted: false } };
                fields.push((Key { text: part.clone(), span }, nothing));
                fields.len() - 1
            });
            put(&mut fields[nth].1, rest, text);
        }
        // It is wrong as it is, and told so.
        Value::Scalar { .. } => {}
    }
}

fn doc(kind: FileKind, path: &[String]) -> Option<&'static str> {
    let shape: &'static Shape = match kind {
        FileKind::Worker => &WORKER,
        FileKind::Playbook => &PLAYBOOK,
        FileKind::Settings => &SETTINGS,
        FileKind::Policies => &POLICIES,
        FileKind::Queues | FileKind::Flow | FileKind::Schema | FileKind::Template => return None,
    };
    doc_in(shape, path)
}

fn doc_in(shape: &'static Shape, path: &[String]) -> Option<&'static str> {
    let (part, rest) = path.split_first()?;
    let field = shape.fields.iter().copied().flatten().find(|field| field.name == *part)?;
    match &field.kind {
        _ if rest.is_empty() => Some(field.doc),
        Kind::Map(below) | Kind::Or(_, Kind::Map(below)) => doc_in(below, rest),
        Kind::Named(below) | Kind::List(Kind::Map(below)) => doc_in(below, &rest[1..]),
        _ => None,
    }
}
