//! What a change of a workspace means: for keys and what they protect, for jobs in flight, for those who are called. Each change
//! is a sentence that names the risk, a place, and what to do.

mod doors;
mod partners;
mod work;

#[cfg(test)]
mod tests;

use crate::config::outline::{Leaf, Sheet, sheets};
use crate::config::{Files, Settings, Span, Workspace, position};
use crate::time::human;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// One of the two workspaces.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub files: &'a Files,
    pub workspace: &'a Workspace,
}

/// Jobs by the name of their flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlight(pub BTreeMap<String, Jobs>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    pub unfinished: u64,
    pub dead: u64,
}

impl InFlight {
    fn of<'n>(&self, flows: impl IntoIterator<Item = &'n str>) -> Jobs {
        let flows: BTreeSet<&str> = flows.into_iter().collect();
        let own = flows.into_iter().filter_map(|name| self.0.get(name));
        own.fold(Jobs::default(), |sum, jobs| Jobs {
            unfinished: sum.unfinished.saturating_add(jobs.unfinished),
            dead: sum.dead.saturating_add(jobs.dead),
        })
    }

    pub fn unfinished(&self) -> u64 {
        self.0.values().map(|jobs| jobs.unfinished).sum()
    }
}

impl Jobs {
    const NONE: Jobs = Jobs { unfinished: 0, dead: 0 };

    fn in_flight(self) -> Jobs {
        Jobs { dead: 0, ..self }
    }

    /// They, and what they do: `was` for one, `were` for more.
    fn do_it(self, one: &str, more: &str) -> String {
        let verb = if self.unfinished.saturating_add(self.dead) == 1 { one } else { more };
        format!("{self} {verb}")
    }
}

impl fmt::Display for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: u64, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
        let unfinished = count(self.unfinished, "job in flight", "jobs in flight");
        match (self.unfinished, self.dead) {
            (0, 0) => f.write_str("no job"),
            (_, 0) => f.write_str(&unfinished),
            (0, dead) => f.write_str(&count(dead, "dead letter", "dead letters")),
            (_, dead) => write!(f, "{unfinished} and {}", count(dead, "dead letter", "dead letters")),
        }
    }
}

/// Something that is different, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: Kind,
    pub weight: Weight,
    /// Whose it is, such as `flow orders`.
    pub subject: String,
    /// What of it, in the keys of its file.
    pub what: String,
    pub was: Option<String>,
    pub now: Option<String>,
    /// What follows. It names the risk, if there is one.
    pub sentence: String,
    /// What to do about it.
    pub fix: Option<String>,
    pub at: Option<Place>,
    pub was_at: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Somebody should have thought of it before it is live.
    Risk,
    Note,
}

impl Weight {
    pub const fn word(self) -> &'static str {
        match self {
            Weight::Risk => "risk",
            Weight::Note => "note",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

macro_rules! kinds {
    ($($name:ident = $code:literal, $title:literal;)+) => {
        /// What kind of change it is. A number, once given, keeps its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($name,)+
        }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$name,)+];

            pub const fn code(self) -> &'static str {
                match self {
                    $(Kind::$name => $code,)+
                }
            }

            /// The change in one line, whatever the file.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Kind::$name => $title,)+
                }
            }
        }
    };
}

kinds! {
    Other = "CL0200", "something else is written differently";
    KeyTtl = "CL0201", "keys are remembered for another time";
    KeyRule = "CL0202", "deliveries are recognised by something else";
    KeyScope = "CL0203", "keys belong to another scope";
    Attempts = "CL0204", "a failing job is given up sooner";
    Horizon = "CL0205", "a failing job is retried for longer";
    Integration = "CL0206", "an integration is gone, or is somewhere else";
    EffectKey = "CL0207", "an effect goes under another key";
    StepOrder = "CL0208", "steps come, go, or run in another order";
    Promise = "CL0209", "another promise about a call that is made twice";
    Queue = "CL0210", "a queue is gone";
    Order = "CL0211", "a queue keeps another order";
    Cap = "CL0212", "a budget or a cap is another";
    Pace = "CL0213", "more can be called, or at once";
    Proof = "CL0214", "a sender is recognised by something else";
    Way = "CL0215", "a way in is gone or moved";
    Approval = "CL0216", "people are asked less";
    Masking = "CL0217", "people and logs see more";
    Retention = "CL0218", "jobs are kept for another time";
    Policy = "CL0219", "a policy asks less";
    Condition = "CL0220", "a step runs under another condition";
    Undo = "CL0221", "what was done is not undone any more";
    Reach = "CL0222", "steps may call more places";
    Schedule = "CL0223", "a worker runs at other times";
    NextStart = "CL0224", "it takes effect at the next start";
}

/// What is different, by subject, risks first.
pub fn changes(old: Side<'_>, new: Side<'_>, jobs: &InFlight) -> Vec<Change> {
    let mut found = Found { old: sheets(old.files), new: sheets(new.files), list: Vec::new(), said: Vec::new() };
    let pair = Pair { old: old.workspace, new: new.workspace, jobs };
    doors::flows(pair, &mut found);
    doors::sources(pair, &mut found);
    work::queues(pair, &mut found);
    work::workers(pair, &mut found);
    partners::integrations(pair, &mut found);
    partners::policies(pair, &mut found);
    partners::settings(pair, &mut found);
    found.others();
    let mut list = found.list;
    let worst: BTreeMap<String, Weight> = list.iter().fold(BTreeMap::new(), |mut worst, change| {
        let entry = worst.entry(change.subject.clone()).or_insert(change.weight);
        *entry = (*entry).min(change.weight);
        worst
    });
    list.sort_by(|one, other| {
        let key = |change: &Change| (worst.get(&change.subject).copied(), change.subject.clone(), change.weight);
        key(one).cmp(&key(other))
    });
    list
}

/// What of the settings is only read when a process starts, by its keys.
pub fn at_next_start(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let mut keys = Vec::new();
    let mut differs = |key: &'static str, differs: bool| keys.extend(differs.then_some(key));
    differs("listen", old.listen != new.listen);
    differs("admin", old.admin != new.admin);
    differs("tls", old.tls != new.tls);
    differs("admin_tls", old.admin_tls != new.admin_tls);
    differs("tracing", old.tracing != new.tracing);
    differs("connections", old.connections != new.connections);
    differs("encryption", old.encryption != new.encryption);
    differs("kv", old.kv != new.kv);
    differs("egress", old.egress != new.egress);
    differs("console", old.console_hosts != new.console_hosts);
    keys
}

#[derive(Clone, Copy)]
struct Pair<'a> {
    old: &'a Workspace,
    new: &'a Workspace,
    jobs: &'a InFlight,
}

impl Pair<'_> {
    /// The jobs that are, or were, in this queue: those of the flows that fill it.
    fn jobs_of(&self, queue: &str) -> Jobs {
        let fills = |flow: &&crate::flow::Flow| flow.enqueue.iter().any(|step| step.queue == queue);
        let flows = self.old.flows.iter().filter(fills).map(|flow| flow.name.as_str());
        let scheduled = self.old.schedules().filter(|(worker, _)| worker.queue() == queue);
        self.jobs.of(flows.chain(scheduled.map(|(worker, _)| worker.name.as_str())))
    }
}

/// The file of something, before its name is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner<'a> {
    Flow(&'a str),
    Worker(&'a str),
    Settings,
    Queues,
    Policies,
}

impl Owner<'_> {
    fn sheet<'s, 'f>(self, sheets: &'s [Sheet<'f>]) -> Option<&'s Sheet<'f>> {
        let named = |folder: &str, name: &str| {
            let within = |sheet: &&Sheet<'_>| sheet.file.starts_with(folder) && sheet.says("name") == Some(name);
            sheets.iter().find(within)
        };
        let single = |stem: &str| sheets.iter().find(|sheet| sheet.file.strip_prefix(stem).is_some_and(is_ending));
        match self {
            Owner::Flow(name) => named("flows/", name).or_else(|| named("playbooks/", name)),
            Owner::Worker(name) => named("workers/", name).or_else(|| named("playbooks/", name)),
            Owner::Settings => single("clinch"),
            Owner::Queues => single("queues"),
            Owner::Policies => single("policies"),
        }
    }
}

fn is_ending(rest: &str) -> bool {
    rest == ".yml" || rest == ".yaml"
}

struct Found<'f> {
    old: Vec<Sheet<'f>>,
    new: Vec<Sheet<'f>>,
    list: Vec<Change>,
    /// The places that something was said about, on either side.
    said: Vec<(String, Vec<String>)>,
}

/// A change before its places are looked up.
struct Said<'a> {
    kind: Kind,
    weight: Weight,
    subject: String,
    owner: Owner<'a>,
    path: Vec<String>,
    was: Option<String>,
    now: Option<String>,
    sentence: String,
    fix: Option<String>,
}

impl<'a> Said<'a> {
    fn risk(kind: Kind, subject: impl Into<String>, owner: Owner<'a>, path: &[&str], sentence: String) -> Self {
        let (subject, path) = (subject.into(), path.iter().map(|part| part.to_string()).collect());
        Said { kind, weight: Weight::Risk, subject, owner, path, was: None, now: None, sentence, fix: None }
    }

    fn note(kind: Kind, subject: impl Into<String>, owner: Owner<'a>, path: &[&str], sentence: String) -> Self {
        Said { weight: Weight::Note, ..Said::risk(kind, subject, owner, path, sentence) }
    }

    fn from(mut self, was: impl Into<String>) -> Self {
        self.was = Some(was.into());
        self
    }

    fn to(mut self, now: impl Into<String>) -> Self {
        self.now = Some(now.into());
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl Found<'_> {
    fn say(&mut self, said: Said<'_>) {
        let at = |sheets: &[Sheet<'_>]| {
            let sheet = said.owner.sheet(sheets)?;
            let (depth, leaf) = sheet.nearest(&said.path)?;
            Some((depth, place(sheet, leaf.span), sheet.file.to_string()))
        };
        let (old, new) = (at(&self.old), at(&self.new));
        for (_, _, file) in old.iter().chain(&new) {
            self.said.push((file.clone(), said.path.clone()));
        }
        // A place that says nothing of it is no place.
        let written = |found: Option<(usize, Place, String)>| {
            found.filter(|(depth, ..)| *depth > 0 || said.path.is_empty()).map(|(_, place, _)| place)
        };
        self.list.push(Change {
            kind: said.kind,
            weight: said.weight,
            subject: said.subject,
            what: said.path.join("."),
            was: said.was,
            now: said.now,
            sentence: said.sentence,
            fix: said.fix,
            at: written(new),
            was_at: written(old),
        });
    }

    /// What was said about another place is about this one of the old side too.
    fn covers(&mut self, owner: Owner<'_>, path: &[&str]) {
        if let Some(sheet) = owner.sheet(&self.old) {
            self.said.push((sheet.file.to_string(), path.iter().map(|part| part.to_string()).collect()));
        }
    }

    /// That a file, or a whole part of one, came or went, and every value that nothing was said about yet.
    fn others(&mut self) {
        let mut list = Vec::new();
        for old in &self.old {
            match twin(old, &self.new) {
                Some(new) => self.compare(old, new, &mut list),
                None => list.push(of_file(old, "is gone", None, Some(old))),
            }
        }
        for new in self.new.iter().filter(|new| twin(new, &self.old).is_none()) {
            list.push(of_file(new, "is new", Some(new), None));
        }
        self.list.extend(list);
    }

    fn compare(&self, old: &Sheet<'_>, new: &Sheet<'_>, list: &mut Vec<Change>) {
        let (Some(from), Some(to)) = (&old.leaves, &new.leaves) else {
            if old.text != new.text {
                list.push(of_file(new, "reads differently", Some(new), Some(old)));
            }
            return;
        };
        let is_said = |file: &str, path: &[String]| {
            let touches = |said: &[String]| said.iter().zip(path).all(|(one, other)| one == other);
            self.said.iter().any(|(known, said)| known == file && !said.is_empty() && touches(said))
        };
        let (before, after) = (by_path(from), by_path(to));
        let mut told: BTreeSet<Vec<String>> = BTreeSet::new();
        let paths: BTreeSet<&Vec<String>> = before.keys().chain(after.keys()).copied().collect();
        for path in paths {
            let (was, now) = (before.get(path), after.get(path));
            if was.map(|leaf| &leaf.text) == now.map(|leaf| &leaf.text)
                || is_said(old.file, path)
                || is_said(new.file, path)
            {
                continue;
            }
            // A part that only one of them has is told once, not value by value.
            let shown: Vec<String> = match (was, now) {
                (Some(_), None) => own_part(path, &after),
                (None, Some(_)) => own_part(path, &before),
                _ => path.clone(),
            };
            if !told.insert(shown.clone()) {
                continue;
            }
            let (word, whole) = (shown.join("."), shown.len() == path.len());
            let value = |leaf: Option<&&Leaf>| leaf.filter(|_| whole).map(|leaf| short(&leaf.text));
            let sentence = match (was, now) {
                (Some(_), Some(_)) => format!("`{word}` is written differently."),
                (None, _) => format!("`{word}` is new."),
                (_, None) => format!("`{word}` is gone."),
            };
            list.push(Change {
                kind: Kind::Other,
                weight: Weight::Note,
                subject: subject_of(new, &shown),
                what: word,
                was: value(was),
                now: value(now),
                sentence,
                fix: None,
                at: now.map(|leaf| place(new, leaf.span)),
                was_at: was.map(|leaf| place(old, leaf.span)),
            });
        }
    }
}

fn by_path(leaves: &[Leaf]) -> BTreeMap<&Vec<String>, &Leaf> {
    leaves.iter().map(|leaf| (&leaf.path, leaf)).collect()
}

/// The beginning of the path that the other side does not have.
fn own_part(path: &[String], other: &BTreeMap<&Vec<String>, &Leaf>) -> Vec<String> {
    let has = |part: &[String]| other.keys().any(|known| known.starts_with(part));
    let own = (1..path.len()).find(|length| !has(&path[..*length])).unwrap_or(path.len());
    path[..own].to_vec()
}

/// The same file on the other side, or the one that says the same name in the same folder.
fn twin<'s, 'f>(sheet: &Sheet<'_>, others: &'s [Sheet<'f>]) -> Option<&'s Sheet<'f>> {
    let folder = |file: &str| file.split_once('/').map(|(folder, _)| folder.to_string());
    let same_name = |other: &&Sheet<'_>| {
        sheet.says("name").is_some()
            && other.says("name") == sheet.says("name")
            && folder(other.file) == folder(sheet.file)
    };
    others.iter().find(|other| other.file == sheet.file).or_else(|| others.iter().find(same_name))
}

fn of_file(sheet: &Sheet<'_>, became: &str, new: Option<&Sheet<'_>>, old: Option<&Sheet<'_>>) -> Change {
    let top = |sheet: &Sheet<'_>| Place { file: sheet.file.to_string(), line: 1, column: 1 };
    Change {
        kind: Kind::Other,
        weight: Weight::Note,
        subject: subject_of(sheet, &[]),
        what: sheet.file.to_string(),
        was: None,
        now: None,
        sentence: format!("`{}` {became}.", sheet.file),
        fix: None,
        at: new.map(top),
        was_at: old.map(top),
    }
}

/// Whose a place is: the thing that its file says, or the entry of a file that says many.
fn subject_of(sheet: &Sheet<'_>, path: &[String]) -> String {
    let kind = [("flows/", "flow"), ("workers/", "worker"), ("playbooks/", "playbook")];
    if let (Some((_, kind)), Some(name)) =
        (kind.iter().find(|(folder, _)| sheet.file.starts_with(folder)), sheet.says("name"))
    {
        return format!("{kind} {name}");
    }
    let named = [("integrations", "integration"), ("sources", "source"), ("policies", "policy"), ("queues", "queue")];
    let entry = path.first().zip(path.get(1));
    let entry = entry.and_then(|(list, name)| Some((named.iter().find(|(known, _)| known == list)?.1, name)));
    entry.map_or_else(|| sheet.file.to_string(), |(kind, name)| format!("{kind} {name}"))
}

fn place(sheet: &Sheet<'_>, span: Span) -> Place {
    let (line, column) = position(sheet.text, span.start);
    Place { file: sheet.file.to_string(), line, column }
}

/// Enough of a value to recognise it.
fn short(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    match line.chars().count() > CHARS_MAX || text.lines().count() > 1 {
        true => line.chars().take(CHARS_MAX).chain(['…']).collect(),
        false => line.to_string(),
    }
}

fn times(one: Duration, other: Duration) -> (String, String) {
    (human(one), human(other))
}
