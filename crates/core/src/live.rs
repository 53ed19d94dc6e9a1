//! Values that operators set over what the files say, while clinch runs. The files stay the truth: what is set is kept apart from
//! them, told wherever it differs, and taken back by saying nothing any more.

use crate::config::nearest::nearest;
use crate::config::{Files, Overrides, Problem, Workspace, load_with};
use crate::control::Control;
use crate::policy::Window;
use crate::time::{Timestamp, human};
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

pub(crate) const PREFIX: &str = "set/";
/// No value of a setting is longer.
pub const VALUE_CHARS_MAX: usize = 200;

/// A value that is set, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveValue {
    pub name: Arc<str>,
    /// As it would be written in the file.
    pub value: String,
    /// What counted by the file when it was set.
    pub file: String,
    pub reason: String,
    pub version: i64,
    pub since: Timestamp,
    pub actor: String,
    pub until: Option<Timestamp>,
}

/// What its control holds.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    value: String,
    file: String,
    reason: String,
}

impl LiveValue {
    /// The name of the control of a setting.
    pub fn control(name: &str) -> Arc<str> {
        format!("{PREFIX}{name}").into()
    }

    /// The value of its control.
    pub fn stored(value: &str, file: &str, reason: &str) -> String {
        let stored = Stored { value: value.into(), file: file.into(), reason: reason.into() };
        serde_json::to_string(&stored).expect("texts are JSON")
    }

    /// What such a control set, by its value.
    pub fn value_in(stored: &str) -> Option<String> {
        serde_json::from_str(stored).ok().map(|Stored { value, .. }| value)
    }

    pub(crate) fn read(name: &str, row: &Control) -> Option<LiveValue> {
        let Stored { value, file, reason } = serde_json::from_str(&row.value).ok()?;
        let Control { version, at: since, ref actor, until, .. } = *row;
        Some(LiveValue { name: name.into(), value, file, reason, version, since, actor: actor.clone(), until })
    }

    /// Whether it still counts.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// A value that is set, beside what the files say now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    pub set: LiveValue,
    /// What counts by the files; `None`: they have no such setting.
    pub file: Option<String>,
    /// Whether it counts though the files say something else.
    pub counts: bool,
    /// What whoever reads the list should know of it.
    pub note: Option<String>,
}

impl Beside {
    pub fn of(set: &LiveValue, workspace: &Workspace, refused: &[Refused]) -> Beside {
        let file = workspace.settable(&set.name).map(|settable| settable.by_file().to_string());
        let refused = refused.iter().find(|refused| refused.name == set.name);
        let note = match (refused, &file) {
            (Some(Refused { why, .. }), _) => Some(format!("it does not count: {why}")),
            (None, Some(file)) if *file == set.value => {
                Some(format!("the file says the same now: `clinch unset {}` changes nothing", set.name))
            }
            (None, Some(file)) if *file != set.file => {
                Some(format!("the file was changed since: it said {} when this was set", set.file))
            }
            (None, _) => None,
        };
        Beside { set: set.clone(), file, counts: refused.is_none(), note }
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { set, file, note, .. } = self;
        let file = file.as_deref().map_or_else(|| "nothing".into(), |file| file.to_string());
        write!(f, "{}: the file says {file}, live is {}, ", set.name, set.value)?;
        write!(f, "set by {} on {} ({})", set.actor, set.since, set.reason)?;
        set.until.map_or(Ok(()), |until| write!(f, " until {until}"))?;
        note.as_ref().map_or(Ok(()), |note| write!(f, "; {note}"))
    }
}

/// The workspace with what is set over it.
pub struct Live {
    pub workspace: Workspace,
    pub warnings: Vec<Problem>,
    /// What is set over it.
    pub over: Overrides,
    /// What the files do not bear, and why.
    pub refused: Vec<Refused>,
}

/// A value that does not count though it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub name: Arc<str>,
    pub why: String,
}

/// Sets all that can be set. Where the files have changed and do not bear one, the others still count: the older first, because
/// the younger was set beside them. `None`: the files cannot be read even alone.
pub fn over<'v>(files: &Files, values: impl IntoIterator<Item = &'v LiveValue>) -> Option<Live> {
    let mut values: Vec<&LiveValue> = values.into_iter().collect();
    values.sort_by_key(|value| value.version);
    let all: Overrides = values.iter().map(|value| (value.name.clone(), value.value.clone())).collect();
    let unknown = |workspace: &Workspace, over: &Overrides| -> Vec<Refused> {
        let unknown = over.keys().filter(|name| workspace.settable(name).is_none());
        unknown.map(|name| Refused { name: name.clone(), why: Unknown::of(name, workspace).to_string() }).collect()
    };
    if let Ok((workspace, warnings)) = load_with(files, &all) {
        let refused = unknown(&workspace, &all);
        return Some(Live { workspace, warnings, over: all, refused });
    }
    let (mut over, mut refused) = (Overrides::new(), Vec::new());
    let (mut workspace, mut warnings) = load_with(files, &over).ok()?;
    for value in values {
        let more = with(&over, &value.name, Some(&value.value));
        match load_with(files, &more) {
            Ok(read) => ((workspace, warnings), over) = (read, more),
            Err(problems) => refused.push(Refused { name: value.name.clone(), why: told(&problems) }),
        }
    }
    refused.extend(unknown(&workspace, &over));
    Some(Live { workspace, warnings, over, refused })
}

/// The same, but for one value.
pub fn with(over: &Overrides, name: &Arc<str>, value: Option<&str>) -> Overrides {
    let mut changed = over.clone();
    match value {
        Some(value) => changed.insert(name.clone(), value.into()),
        None => changed.remove(name),
    };
    changed
}

/// What is wrong, in the words of the files: the first of it, with what to write instead.
pub fn told(problems: &[Problem]) -> String {
    let Some(problem) = problems.iter().find(|problem| problem.is_error()) else { return String::new() };
    let help = problem.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
    format!("{}{help}", problem.message)
}

/// Nothing of this name can be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    name: String,
    meant: Option<String>,
}

impl Unknown {
    pub fn of(name: &str, workspace: &Workspace) -> Unknown {
        let known = || workspace.settable.iter().map(|settable| &*settable.name);
        // The retries of a queue or a flow are those of whoever works for it.
        let of_worker = workspace.workers.iter().find_map(|worker| {
            let (owner, rest) = name.split_once(".retry.")?;
            let (kind, of) = owner.split_once('.')?;
            let enqueues = || workspace.flow(of)?.enqueue.iter().find(|step| step.queue == worker.queue());
            let is_its = match kind {
                "queue" => worker.queue() == of,
                "flow" => enqueues().is_some(),
                "worker" | "playbook" => worker.name == of,
                _ => false,
            };
            let meant = is_its.then(|| format!("{}.retry.{rest}", owner_of(worker, workspace)))?;
            known().find(|known| *known == meant)
        });
        let meant = of_worker.or_else(|| nearest(name, known())).map(str::to_string);
        Unknown { name: name.chars().take(VALUE_CHARS_MAX).collect(), meant }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no setting `{}`", self.name)?;
        match &self.meant {
            Some(meant) => write!(f, "; did you mean `{meant}`?"),
            None => f.write_str("; `clinch set` lists what can be set"),
        }
    }
}

fn owner_of(worker: &Worker, workspace: &Workspace) -> String {
    let kind = if workspace.playbook(&worker.name).is_some() { "playbook" } else { "worker" };
    format!("{kind}.{}", worker.name)
}

/// What follows from a setting as it is in this workspace, in a sentence.
pub fn meaning(workspace: &Workspace, name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("safe_mode.") {
        return of_safe_mode(workspace, rest);
    }
    let of_worker = |worker: &Worker| {
        let rest = name.strip_prefix(&owner_of(worker, workspace))?.strip_prefix(".retry.")?;
        Some(of_retry(worker, rest))
    };
    let of_integration = || {
        workspace.integrations.iter().find_map(|known| {
            let rest = name.strip_prefix(&format!("integration.{}.", known.name))?;
            of_partner(known, rest)
        })
    };
    let of_policy = || {
        workspace.policies.iter().find_map(|policy| {
            let rest = name.strip_prefix(&format!("policy.{}.frequency.", policy.name))?;
            let cap = policy.caps.get(rest.strip_suffix(".max")?.parse::<usize>().ok()?)?;
            let per = match cap.per {
                Window::Day => "day".into(),
                Window::Last(span) => human(span),
            };
            Some(format!("a contact gets at most {} in a {per}", cap.max))
        })
    };
    workspace.workers.iter().find_map(of_worker).or_else(of_integration).or_else(of_policy)
}

fn of_retry(worker: &Worker, rest: &str) -> String {
    let retry = &worker.retry;
    match &retry.budget {
        Some(budget) if rest.starts_with("budget") => {
            let (units, window) = (budget.allowance.units, human(budget.allowance.window));
            format!("one entity may cause at most {units} retries in {window}")
        }
        None if rest.starts_with("budget") => "retries are not counted by entity".into(),
        _ => {
            let horizon = human(Workspace::horizon(worker));
            format!("a job that keeps failing is given up after {} attempts, within {horizon}", retry.attempts_max)
        }
    }
}

fn of_partner(partner: &crate::integration::Integration, rest: &str) -> Option<String> {
    Some(match rest {
        "concurrency" => match partner.concurrency {
            Some(calls) => format!("at most {calls} calls at once, on all nodes together"),
            None => "any number of calls at once".into(),
        },
        "rate" | "rate_limit.per_integration" => match partner.rate {
            Some(rate) => {
                format!("at most {} calls in {}, on all nodes together", rate.count(), human(rate.window()))
            }
            None => "calls as fast as jobs come".into(),
        },
        _ => {
            let rule = partner.breaker?;
            format!(
                "left alone for {} when {}% of at least {} calls in {} fail; back after {} good probes",
                human(rule.open_for),
                rule.errors_percent,
                rule.calls_min,
                human(rule.window),
                rule.probes,
            )
        }
    })
}

fn of_safe_mode(workspace: &Workspace, rest: &str) -> Option<String> {
    let rule = &workspace.settings.safe_mode;
    Some(match rest {
        "hold" if rule.hold => "in safe mode, what cannot be taken back waits".into(),
        "hold" => "in safe mode, nothing waits".into(),
        "drain" => {
            format!("what waited is let go at {} in {}", rule.drain.count(), human(rule.drain.window()))
        }
        "max_age" => match rule.max_age {
            Some(age) => format!("what has waited longer than {} is not done any more", human(age)),
            None => "what waited is done however old it is".into(),
        },
        _ => {
            let cap = rule.cap?;
            format!("in safe mode, a contact gets at most {} messages in {}", cap.units, human(cap.window))
        }
    })
}
