//! What operators switch while clinch runs: rows of the store, as they were at one look, and what follows from them.
//!
//! A row has a name (`pause/queue:orders`), a value that only who wrote it understands, and perhaps an end. Whoever adds a kind
//! of control adds a prefix, and how it is read in `Controls::of`.

use crate::alert::{self, Silence};
use crate::config::Workspace;
use crate::config::nearest::nearest;
use crate::job::Waits;
use crate::live::{self, LiveValue};
use crate::safe_mode::{self, SafeMode, SafeScope, Sending};
use crate::time::Timestamp;
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

const PAUSE: &str = "pause/";
/// What a playbook's own queue is called: this, and its name.
pub const PLAYBOOK_QUEUE: &str = "playbook.";
/// Who was sent away is called back when the cause is gone. Should nobody call, he asks by himself, after so long.
const BACK_MIN: Duration = Duration::from_secs(5);
const BACK_MAX: Duration = Duration::from_secs(60);

/// A control, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    pub name: Arc<str>,
    /// JSON.
    pub value: String,
    /// Grows with each change of any control, and is never used again.
    pub version: i64,
    /// When it was last changed, and by whom.
    pub at: Timestamp,
    pub actor: String,
    /// From then on it says nothing more.
    pub until: Option<Timestamp>,
}

/// What can be paused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Queue(Arc<str>),
    Flow(Arc<str>),
    Playbook(Arc<str>),
    Integration(Arc<str>),
    Source(Arc<str>),
    Replays,
}

impl Scope {
    pub const KINDS: &'static str = "queue:NAME, flow:NAME, playbook:NAME, integration:NAME, source:NAME, replays";

    /// The name of its control.
    pub fn control(&self) -> Arc<str> {
        format!("{PAUSE}{self}").into()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.parts()) {
            (Scope::Replays, (kind, _)) => f.write_str(kind),
            (_, (kind, name)) => write!(f, "{kind}:{name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot be paused; what can: {kinds}", kinds = Scope::KINDS)]
pub struct BadScope(String);

impl FromStr for Scope {
    type Err = BadScope;
    fn from_str(text: &str) -> Result<Self, BadScope> {
        let bad = || BadScope(text.to_string());
        if text == "replays" {
            return Ok(Scope::Replays);
        }
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(bad)?;
        let name = Arc::from(name);
        Ok(match kind {
            "queue" => Scope::Queue(name),
            "flow" => Scope::Flow(name),
            "playbook" => Scope::Playbook(name),
            "integration" => Scope::Integration(name),
            "source" => Scope::Source(name),
            _ => return Err(bad()),
        })
    }
}

/// It would be kept in mind and never hold anything: most likely a slip of the pen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} `{name}` in the workspace{meant}")]
pub struct NotThere {
    kind: &'static str,
    name: Arc<str>,
    meant: String,
}

impl Scope {
    /// Everything of these workspaces that can be paused.
    pub fn all(workspaces: &[Arc<Workspace>]) -> BTreeSet<Scope> {
        let mut all = BTreeSet::from([Scope::Replays]);
        for workspace in workspaces {
            let queues = || workspace.workers.iter().map(Worker::queue);
            // A playbook has a flow of its name, and is paused by its own word.
            let own = workspace.flows.iter().map(|flow| flow.name.as_str());
            let by_the_clock = workspace.schedules().map(|(worker, _)| worker.name.as_str());
            let flows: Vec<&str> = own.filter(|name| workspace.playbook(name).is_none()).chain(by_the_clock).collect();
            let sources = workspace.sources.iter().map(|source| source.name.as_str());
            all.extend(queues().map(|name| Scope::Queue(name.into())));
            all.extend(flows.iter().map(|name| Scope::Flow((*name).into())));
            all.extend(queues().filter_map(|queue| Some(Scope::Playbook(queue.strip_prefix(PLAYBOOK_QUEUE)?.into()))));
            all.extend(workspace.partners().map(|partner| Scope::Integration(partner.name.clone())));
            // An event of a flow's own route is known by the flow.
            all.extend(sources.chain(flows.iter().copied()).map(|name| Scope::Source(name.into())));
        }
        all
    }

    /// What kind of a thing it is, and its name.
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Scope::Queue(name) => ("queue", name),
            Scope::Flow(name) => ("flow", name),
            Scope::Playbook(name) => ("playbook", name),
            Scope::Integration(name) => ("integration", name),
            Scope::Source(name) => ("source", name),
            Scope::Replays => ("replays", ""),
        }
    }

    /// Whether one of these workspaces has such a thing.
    pub fn find(&self, workspaces: &[Arc<Workspace>]) -> Result<(), NotThere> {
        let all = Scope::all(workspaces);
        if all.contains(self) {
            return Ok(());
        }
        let (kind, name) = self.parts();
        let alike = all.iter().map(Scope::parts).filter(|(other, _)| *other == kind).map(|(_, name)| name);
        let meant = nearest(name, alike).map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        Err(NotThere { kind, name: name.into(), meant })
    }
}

/// Something that stands still until somebody says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub scope: Scope,
    pub reason: String,
    pub actor: String,
    pub since: Timestamp,
    pub until: Option<Timestamp>,
}

/// What the control of a pause holds.
#[derive(Debug, Serialize, Deserialize)]
struct PauseValue {
    reason: String,
}

impl Pause {
    /// The value of its control.
    pub fn value(reason: &str) -> String {
        serde_json::json!(PauseValue { reason: reason.into() }).to_string()
    }

    fn read(scope: &str, row: &Control) -> Option<Pause> {
        let PauseValue { reason } = serde_json::from_str(&row.value).ok()?;
        Some(Pause { scope: scope.parse().ok()?, reason, actor: row.actor.clone(), since: row.at, until: row.until })
    }

    /// Whether it still counts.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// When somebody who is sent away should ask again: soon while the cause is new, less often the longer it lasts, so that a
/// short pause is short for everybody and a long one keeps nobody busy.
pub fn ask_again(since: Timestamp, until: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let at = now + now.since(since).clamp(BACK_MIN, BACK_MAX);
    until.map_or(at, |until| at.min(until.max(now)))
}

/// What a job is, as far as it can be paused.
#[derive(Clone, Copy, Debug)]
pub struct Paused<'a> {
    pub queue: &'a Arc<str>,
    pub flow: &'a Arc<str>,
    pub source: &'a str,
    pub is_replay: bool,
}

/// All controls, as they were at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    pauses: BTreeMap<Scope, Pause>,
    safe_modes: Vec<SafeMode>,
    live: Vec<LiveValue>,
    silences: Vec<Silence>,
}

impl Controls {
    /// What cannot be read was written by a newer clinch, and is left to it.
    pub fn of(rows: &[Control]) -> Controls {
        let mut controls = Controls::default();
        for row in rows {
            if let Some(pause) = row.name.strip_prefix(PAUSE).and_then(|scope| Pause::read(scope, row)) {
                controls.pauses.insert(pause.scope.clone(), pause);
            }
            let safe_mode = row.name.strip_prefix(safe_mode::PREFIX).and_then(|scope| SafeMode::read(scope, row));
            controls.safe_modes.extend(safe_mode);
            controls.silences.extend(row.name.strip_prefix(alert::SILENCE).and_then(|name| Silence::read(name, row)));
            controls.live.extend(row.name.strip_prefix(live::PREFIX).and_then(|name| LiveValue::read(name, row)));
        }
        controls
    }

    /// The pauses that count now.
    pub fn pauses(&self, now: Timestamp) -> impl Iterator<Item = &Pause> {
        self.pauses.values().filter(move |pause| pause.holds(now))
    }

    pub fn paused(&self, scope: &Scope, now: Timestamp) -> Option<&Pause> {
        self.pauses.get(scope).filter(|pause| pause.holds(now))
    }

    /// The silences that count now.
    pub fn silences(&self, now: Timestamp) -> impl Iterator<Item = &Silence> {
        self.silences.iter().filter(move |silence| silence.holds(now))
    }

    /// What is set over the files now.
    pub fn live(&self, now: Timestamp) -> impl Iterator<Item = &LiveValue> {
        self.live.iter().filter(move |value| value.holds(now))
    }

    /// The version of what is stored of a setting, also when it counts no more; 0 where nothing is.
    pub fn live_version(&self, name: &str) -> i64 {
        self.live.iter().find(|value| *value.name == *name).map_or(0, |value| value.version)
    }

    /// Safe modes that are on, and those that ended.
    pub fn safe_modes(&self) -> &[SafeMode] {
        &self.safe_modes
    }

    /// The last that is known of the safe mode of this scope.
    pub fn safe_mode_of(&self, scope: &SafeScope) -> Option<&SafeMode> {
        self.safe_modes.iter().find(|mode| mode.scope == *scope)
    }

    /// The safe mode in which this is to be sent.
    pub fn safe_mode(&self, sending: Sending<'_>, now: Timestamp) -> Option<&SafeMode> {
        self.safe_modes.iter().find(|mode| mode.counts_for(sending, now))
    }

    /// The safe mode that has ended and for which this may have waited from `ready` on.
    pub fn drained(&self, sending: Sending<'_>, ready: Timestamp, now: Timestamp) -> Option<&SafeMode> {
        self.safe_modes.iter().find(|mode| mode.drains(sending, ready, now))
    }

    /// What nobody need wait for any longer, as somebody switched something since it was `before`. What ends by itself is not
    /// among it: who waits for that knows the time.
    pub fn lifted(&self, before: &Controls, now: Timestamp) -> Vec<Waits> {
        let resumed = before.pauses(now).any(|pause| self.paused(&pause.scope, now).is_none());
        let is_on = |controls: &Controls, scope| controls.safe_mode_of(scope).is_some_and(|mode| mode.is_on(now));
        let off = before.safe_modes.iter().any(|mode| mode.is_on(now) && !is_on(self, &mode.scope));
        [(resumed, Waits::Paused), (off, Waits::SafeMode)]
            .into_iter()
            .filter_map(|(is, waits)| is.then_some(waits))
            .collect()
    }

    /// What keeps a job from being run. The pause of its queue does not: who has it already may end it.
    pub fn keeps(&self, job: Paused<'_>, now: Timestamp) -> Option<&Pause> {
        if self.pauses.is_empty() {
            return None;
        }
        let playbook = job.queue.strip_prefix(PLAYBOOK_QUEUE);
        let of = match playbook {
            Some(name) => Scope::Playbook(name.into()),
            None => Scope::Flow(job.flow.clone()),
        };
        let source = Scope::Source(job.source.into());
        let replays = job.is_replay.then_some(Scope::Replays);
        [of, source].into_iter().chain(replays).find_map(|scope| self.paused(&scope, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn row(name: &str, value: &str, until: Option<Timestamp>) -> Control {
        let (name, value, actor) = (name.into(), value.into(), "ada".into());
        Control { name, value, version: 1, at: at(0), actor, until }
    }

    fn paused(scope: &str) -> Controls {
        let scope: Scope = scope.parse().expect("a scope");
        Controls::of(&[row(&scope.control(), &Pause::value("why not"), None)])
    }

    #[test]
    fn e6_a_scope_is_spelt_as_it_is_read() {
        for text in ["queue:a", "flow:b", "playbook:c-d", "integration:e", "source:f", "replays"] {
            assert_eq!(text.parse::<Scope>().expect("a scope").to_string(), text);
        }
        for bad in ["queue", "queue:", "worker:a", "", "everything", "replays:a"] {
            let said = bad.parse::<Scope>().expect_err("no scope").to_string();
            assert!(said.contains("what can: queue:NAME"), "{said}");
        }
    }

    #[test]
    fn e6_a_job_is_kept_by_the_pause_of_what_it_is_and_by_no_other() {
        let (queue, flow, other) = (Arc::from("orders"), Arc::from("shop"), Arc::from("playbook.shop"));
        let job = Paused { queue: &queue, flow: &flow, source: "stripe", is_replay: false };
        let of_playbook = Paused { queue: &other, ..job };
        let keeps = |scope: &str, job| paused(scope).keeps(job, at(1)).map(|pause| pause.scope.to_string());
        for scope in ["flow:shop", "source:stripe"] {
            assert_eq!(keeps(scope, job).as_deref(), Some(scope));
        }
        for scope in ["flow:other", "source:shop", "playbook:shop", "replays", "queue:orders", "integration:shop"] {
            assert_eq!(keeps(scope, job), None, "{scope}");
        }
        assert_eq!(keeps("replays", Paused { is_replay: true, ..job }).as_deref(), Some("replays"));
        assert_eq!(keeps("playbook:shop", of_playbook).as_deref(), Some("playbook:shop"));
        assert_eq!(keeps("flow:shop", of_playbook), None, "a playbook may be called like a flow");
    }

    #[test]
    fn e6_a_pause_ends_by_itself_when_it_says_so() {
        let scope: Scope = "queue:orders".parse().expect("a scope");
        let controls = Controls::of(&[row(&scope.control(), &Pause::value("a night"), Some(at(60)))]);
        let pause = controls.paused(&scope, at(59)).expect("it counts");
        assert_eq!((pause.reason.as_str(), pause.actor.as_str(), pause.since), ("a night", "ada", at(0)));
        assert_eq!(controls.paused(&scope, at(60)), None);
        assert_eq!(controls.pauses(at(60)).count(), 0);
    }

    #[test]
    fn e6_e4_what_was_switched_off_is_lifted_and_what_ends_by_itself_is_not() {
        let safe = |until| row("safe_mode/all", &SafeMode::on("why", at(0)), until);
        let pause = |until| row("pause/flow:a", &Pause::value("why"), until);
        let lifted = |before: &[Control], after: &[Control]| Controls::of(after).lifted(&Controls::of(before), at(9));
        assert_eq!(lifted(&[pause(None)], &[]), [Waits::Paused]);
        assert_eq!(lifted(&[safe(None)], &[safe(Some(at(9)))]), [Waits::SafeMode]);
        assert_eq!(lifted(&[safe(None), pause(None)], &[]), [Waits::Paused, Waits::SafeMode]);
        assert_eq!(lifted(&[safe(None), pause(None)], &[safe(Some(at(10))), pause(Some(at(10)))]), []);
        assert_eq!(lifted(&[pause(Some(at(9)))], &[]), []);
        assert_eq!(lifted(&[], &[safe(None), pause(None)]), []);
    }

    #[test]
    fn e6_what_a_newer_clinch_wrote_is_left_alone() {
        let rows = [
            row("pause/moon:full", "{}", None),
            row("set/retry", "5", None),
            row("pause/queue:a", "not JSON", None),
            row("pause/queue:b", r#"{"reason":"r","more":1}"#, None),
        ];
        let controls = Controls::of(&rows);
        let known: Vec<_> = controls.pauses(at(0)).map(|pause| pause.scope.to_string()).collect();
        assert_eq!(known, ["queue:b"]);
    }

    proptest! {
        /// Who is sent away comes back, within bounds, and never long after the pause is over.
        #[test]
        fn e6_who_is_sent_away_asks_again_in_bounded_time(age in 0u64..1_000_000, end in prop::option::of(0u64..2_000_000)) {
            let (now, until) = (at(age), end.map(at));
            let back = ask_again(at(0), until, now);
            prop_assert!(back >= now && back <= now + BACK_MAX);
            if until.is_none_or(|until| until > now + BACK_MAX) {
                prop_assert!(back >= now + BACK_MIN);
            }
            if let Some(until) = until {
                prop_assert!(back <= until.max(now));
            }
        }
    }
}
