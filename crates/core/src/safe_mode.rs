//! Safe mode: what still leaves the house while somebody, or the failures of a partner, ask for care. Events are accepted as
//! before; what can be taken back goes on; what cannot waits, or is said in a safer way.

use crate::breaker::BreakerRule;
use crate::budget::Allowance;
use crate::config::Workspace;
use crate::control::{BadScope, Control, Controls, NotThere, PLAYBOOK_QUEUE, Scope};
use crate::effect::{Effect, EffectClass};
use crate::limit::Rate;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PREFIX: &str = "safe_mode/";
const DRAIN_DEFAULT: &str = "20/s";
/// Who waited is let go in turn for so long after what the turns take, and where nobody counted, for so long.
const DRAIN_SLACK: Duration = Duration::from_secs(600);
const DRAIN_UNCOUNTED: Duration = Duration::from_secs(86_400);

/// `safe_mode:` of `clinch.yml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafeModeRule {
    /// Whether what cannot be taken back waits.
    pub hold: bool,
    /// The templates that are used instead of others. Such a message does not wait.
    pub templates: BTreeMap<String, String>,
    /// How many messages one contact gets, of those that do not wait.
    pub cap: Option<Allowance>,
    /// What has waited longer is not done any more.
    pub max_age: Option<Duration>,
    /// How fast what waited is let go.
    pub drain: Rate,
    pub trip: Option<Trip>,
}

/// What turns it on without a person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trip {
    pub circuits: Circuits,
    /// The share of calls of an integration that fail.
    pub errors: Option<BreakerRule>,
    /// Whether for everything, and not for the integration alone.
    pub all: bool,
    /// It ends by itself after so long.
    pub lasts: Option<Duration>,
}

/// Whose circuit, when it opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Circuits {
    #[default]
    Nobodys,
    Any,
    Of(Vec<String>),
}

impl Trip {
    pub fn minds_circuit(&self, integration: &str) -> bool {
        match &self.circuits {
            Circuits::Nobodys => false,
            Circuits::Any => true,
            Circuits::Of(names) => names.iter().any(|name| name == integration),
        }
    }

    pub fn scope(&self, integration: &Arc<str>) -> SafeScope {
        if self.all { SafeScope(None) } else { SafeScope(Some(Scope::Integration(integration.clone()))) }
    }
}

impl Default for SafeModeRule {
    fn default() -> Self {
        SafeModeRule {
            hold: true,
            templates: BTreeMap::new(),
            cap: None,
            max_age: None,
            drain: DRAIN_DEFAULT.parse().expect("it is a rate"),
            trip: None,
        }
    }
}

/// What is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A message, written with this template.
    Message(&'a str),
    Call(EffectClass),
}

/// What becomes of it in safe mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    Go,
    /// If its contact has not had enough of them.
    GoWithin(Allowance),
    /// There is a safer template, and it was written before that counted.
    WriteAgain,
    Hold,
}

impl SafeModeRule {
    /// What a message is written with that asks for this template.
    pub fn template<'a>(&'a self, asked: &'a str) -> &'a str {
        self.templates.get(asked).map_or(asked, String::as_str)
    }

    pub fn ruling(&self, what: What<'_>) -> Ruling {
        let is_safe = |template: &str| self.templates.values().any(|safe| safe == template);
        let send = self.cap.map_or(Ruling::Go, Ruling::GoWithin);
        match what {
            What::Message(template) if is_safe(template) => send,
            What::Message(template) if self.templates.contains_key(template) => Ruling::WriteAgain,
            What::Message(_) if self.hold => Ruling::Hold,
            What::Message(_) => send,
            What::Call(EffectClass::Create | EffectClass::Monetary) if self.hold => Ruling::Hold,
            What::Call(_) => Ruling::Go,
        }
    }

    /// Whether something has waited for too long that could have been done from then on.
    pub fn is_too_old(&self, since: Timestamp, now: Timestamp) -> bool {
        self.max_age.is_some_and(|most| now.since(since) > most)
    }
}

/// What safe mode says to something that is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care<'a> {
    Go,
    /// If its contact has not had enough of them.
    GoWithin(Allowance),
    /// With the safer template, soon.
    WriteAgain,
    /// Until this is over.
    Hold(&'a SafeMode),
    /// It is over, and what waited is let go one after the other.
    Turn(&'a SafeMode),
    /// It waited for longer than it may.
    TooOld(Duration),
}

/// Something that is about to leave.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    pub what: What<'a>,
    pub sending: Sending<'a>,
    /// From when on it could have been done.
    pub ready: Timestamp,
    pub is_replay: bool,
}

pub fn care<'a>(rule: &SafeModeRule, controls: &'a Controls, leaving: &Leaving<'_>, now: Timestamp) -> Care<'a> {
    let Leaving { what, sending, ready, is_replay } = *leaving;
    let (on, ruling) = (controls.safe_mode(sending, now), rule.ruling(what));
    let draining = || controls.drained(sending, ready, now);
    match (on, ruling) {
        (_, Ruling::Go) => Care::Go,
        (Some(_), Ruling::GoWithin(cap)) => Care::GoWithin(cap),
        (Some(_), Ruling::WriteAgain) => Care::WriteAgain,
        // What did not wait has nothing to make up for.
        (None, Ruling::GoWithin(_) | Ruling::WriteAgain) => Care::Go,
        (on, Ruling::Hold) => match on.or_else(draining) {
            None => Care::Go,
            // A person who replays a job wants it done, however old it is.
            Some(_) if !is_replay && rule.is_too_old(ready, now) => Care::TooOld(now.since(ready)),
            Some(mode) if on.is_some() => Care::Hold(mode),
            Some(mode) => Care::Turn(mode),
        },
    }
}

/// From when on the next effect of a job could have been done: it was accepted, and what comes before it was done.
pub fn ready_since(received_at: Timestamp, effects: &[Effect]) -> Timestamp {
    effects.iter().map(|effect| effect.changed_at).fold(received_at, Timestamp::max)
}

/// Where safe mode counts: everywhere, or for a flow, a playbook or an integration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SafeScope(Option<Scope>);

impl SafeScope {
    pub const ALL: SafeScope = SafeScope(None);

    /// The name of its control.
    pub fn control(&self) -> Arc<str> {
        format!("{PREFIX}{self}").into()
    }

    /// Everything of these workspaces that can have a safe mode of its own.
    pub fn all(workspaces: &[Arc<Workspace>]) -> Vec<SafeScope> {
        let of = |scope: &Scope| matches!(scope, Scope::Flow(_) | Scope::Playbook(_) | Scope::Integration(_));
        let parts = Scope::all(workspaces).into_iter().filter(of).map(|scope| SafeScope(Some(scope)));
        std::iter::once(SafeScope::ALL).chain(parts).collect()
    }

    pub fn find(&self, workspaces: &[Arc<Workspace>]) -> Result<(), NotThere> {
        self.0.as_ref().map_or(Ok(()), |scope| scope.find(workspaces))
    }

    /// Whether it counts for whatever is sent to this integration.
    pub fn is_over(&self, integration: &str) -> bool {
        match &self.0 {
            None => true,
            Some(Scope::Integration(name)) => **name == *integration,
            Some(_) => false,
        }
    }

    fn covers(&self, sending: Sending<'_>) -> bool {
        let playbook = sending.queue.strip_prefix(PLAYBOOK_QUEUE);
        match &self.0 {
            None => true,
            Some(Scope::Playbook(name)) => playbook == Some(&**name),
            Some(Scope::Flow(name)) => playbook.is_none() && **name == *sending.flow,
            Some(Scope::Integration(name)) => **name == *sending.integration,
            Some(_) => false,
        }
    }
}

impl fmt::Display for SafeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("all"),
            Some(scope) => scope.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` has no safe mode; what has: all, flow:NAME, playbook:NAME, integration:NAME")]
pub struct BadSafeScope(String);

impl FromStr for SafeScope {
    type Err = BadSafeScope;
    fn from_str(text: &str) -> Result<Self, BadSafeScope> {
        let bad = |_: BadScope| BadSafeScope(text.to_string());
        match text {
            "all" => Ok(SafeScope::ALL),
            _ => match text.parse().map_err(bad)? {
                scope @ (Scope::Flow(_) | Scope::Playbook(_) | Scope::Integration(_)) => Ok(SafeScope(Some(scope))),
                _ => Err(BadSafeScope(text.to_string())),
            },
        }
    }
}

/// Who sends, and to whom.
#[derive(Clone, Copy, Debug)]
pub struct Sending<'a> {
    pub queue: &'a str,
    pub flow: &'a str,
    pub integration: &'a str,
}

/// A safe mode that is on, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafeMode {
    pub scope: SafeScope,
    pub reason: String,
    pub actor: String,
    pub since: Timestamp,
    /// From then on what waited is let go.
    pub until: Option<Timestamp>,
    /// How fast, if not as the workspace says.
    pub drain: Option<Rate>,
    drained_by: Option<Timestamp>,
    pub version: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Value {
    reason: String,
    since: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drain: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drained_by: Option<i64>,
}

impl SafeMode {
    /// The value of the control that turns it on.
    pub fn on(reason: &str, since: Timestamp) -> String {
        value(Value { reason: reason.into(), since: since.as_micros(), drain: None, drained_by: None })
    }

    /// The value of the control that turns it off, which ends at `now`: so many wait and are let go at this rate.
    pub fn off(&self, jobs: u64, rate: Rate, now: Timestamp) -> String {
        value(Value {
            reason: self.reason.clone(),
            since: self.since.as_micros(),
            drain: Some(rate.to_string()),
            drained_by: Some((now + drain_time(jobs, rate) + DRAIN_SLACK).as_micros()),
        })
    }

    pub(crate) fn read(scope: &str, row: &Control) -> Option<SafeMode> {
        let value: Value = serde_json::from_str(&row.value).ok()?;
        Some(SafeMode {
            scope: scope.parse().ok()?,
            reason: value.reason,
            actor: row.actor.clone(),
            since: Timestamp::from_micros(value.since),
            until: row.until,
            drain: value.drain.map(|rate| rate.parse()).transpose().ok()?,
            drained_by: value.drained_by.map(Timestamp::from_micros),
            version: row.version,
        })
    }

    pub fn is_on(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// When it ended, if what waited is still let go in turn.
    pub fn draining_since(&self, now: Timestamp) -> Option<Timestamp> {
        let ended = self.until.filter(|until| *until <= now)?;
        (now < self.drained_by.unwrap_or(ended + DRAIN_UNCOUNTED)).then_some(ended)
    }

    pub(crate) fn counts_for(&self, sending: Sending<'_>, now: Timestamp) -> bool {
        self.is_on(now) && self.scope.covers(sending)
    }

    /// Whether something that could have been done from `ready` on waits for its turn now that it has ended.
    pub(crate) fn drains(&self, sending: Sending<'_>, ready: Timestamp, now: Timestamp) -> bool {
        self.draining_since(now).is_some_and(|ended| ready < ended) && self.scope.covers(sending)
    }
}

fn value(value: Value) -> String {
    serde_json::json!(value).to_string()
}

/// How long it takes to let so many go.
pub fn drain_time(jobs: u64, rate: Rate) -> Duration {
    let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
    rate.window().saturating_mul(jobs) / rate.count().get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::{EffectState, Idempotency};
    use std::num::NonZeroU32;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000) + Duration::from_secs(seconds)
    }

    fn rule() -> SafeModeRule {
        let templates = [("cart".to_string(), "cart-safe".to_string())].into_iter().collect();
        SafeModeRule { templates, ..SafeModeRule::default() }
    }

    fn row(scope: &str, value: String, until: Option<Timestamp>) -> Control {
        let name = scope.parse::<SafeScope>().expect("a scope").control();
        Control { name, value, version: 3, at: at(0), actor: "ada".into(), until }
    }

    const SENDING: Sending<'static> = Sending { queue: "orders", flow: "shop", integration: "mail" };

    #[test]
    fn e4_what_cannot_be_taken_back_waits_and_the_rest_goes_on() {
        let rule = rule();
        for (what, ruling) in [
            (What::Call(EffectClass::Create), Ruling::Hold),
            (What::Call(EffectClass::Monetary), Ruling::Hold),
            (What::Call(EffectClass::Read), Ruling::Go),
            (What::Call(EffectClass::State), Ruling::Go),
            (What::Message("other"), Ruling::Hold),
            (What::Message("cart"), Ruling::WriteAgain),
            (What::Message("cart-safe"), Ruling::Go),
        ] {
            assert_eq!(rule.ruling(what), ruling, "{what:?}");
        }
        assert_eq!((rule.template("cart"), rule.template("other")), ("cart-safe", "other"));
    }

    #[test]
    fn e4_without_holding_messages_are_capped_and_calls_go_on() {
        let cap = Allowance { units: NonZeroU32::MIN, window: Duration::from_secs(86_400) };
        let rule = SafeModeRule { hold: false, cap: Some(cap), ..rule() };
        for (what, ruling) in [
            (What::Call(EffectClass::Create), Ruling::Go),
            (What::Message("other"), Ruling::GoWithin(cap)),
            (What::Message("cart-safe"), Ruling::GoWithin(cap)),
            (What::Message("cart"), Ruling::WriteAgain),
        ] {
            assert_eq!(rule.ruling(what), ruling, "{what:?}");
        }
    }

    #[test]
    fn e4_a_safe_template_that_has_a_safer_one_is_sent_all_the_same() {
        let mut rule = rule();
        rule.templates.insert("cart-safe".into(), "cart-safest".into());
        assert_eq!(rule.ruling(What::Message(rule.template("cart"))), Ruling::Go);
        assert_eq!(rule.ruling(What::Message(rule.template("cart-safe"))), Ruling::Go);
    }

    #[test]
    fn e4_it_counts_where_it_was_turned_on_and_for_as_long() {
        let of_playbook = Sending { queue: "playbook.shop", ..SENDING };
        let counts = |scope: &str, sending| {
            let controls = Controls::of(&[row(scope, SafeMode::on("why", at(0)), Some(at(60)))]);
            assert!(controls.safe_mode(sending, at(60)).is_none(), "{scope}");
            controls.safe_mode(sending, at(59)).is_some()
        };
        for scope in ["all", "flow:shop", "integration:mail"] {
            assert!(counts(scope, SENDING), "{scope}");
        }
        for scope in ["flow:other", "integration:shop", "playbook:shop"] {
            assert!(!counts(scope, SENDING), "{scope}");
        }
        assert!(counts("playbook:shop", of_playbook) && !counts("flow:shop", of_playbook));
        for bad in ["queue:a", "source:a", "replays", "everything", ""] {
            assert!(bad.parse::<SafeScope>().is_err(), "{bad}");
        }
    }

    #[test]
    fn e4_what_waited_is_let_go_in_turn_until_all_of_it_could_be() {
        let on = row("all", SafeMode::on("why", at(0)), None);
        let controls = Controls::of(&[on]);
        let mode = controls.safe_mode(SENDING, at(99)).expect("it is on");
        assert_eq!((mode.since, mode.version, mode.draining_since(at(99))), (at(0), 3, None));
        let rate: Rate = "10/s".parse().expect("a rate");
        let off = Controls::of(&[row("all", mode.off(1_000, rate, at(100)), Some(at(100)))]);
        assert!(off.safe_mode(SENDING, at(100)).is_none());
        let drained = |ready, now| off.drained(SENDING, ready, now).map(|mode| mode.drain);
        assert_eq!(drained(at(99), at(101)), Some(Some(rate)));
        assert_eq!(drained(at(100), at(101)), None, "it never waited");
        assert_eq!(drained(at(99), at(799)), Some(Some(rate)));
        assert_eq!(drained(at(99), at(800)), None);
        // One that ended by itself counted nobody.
        let over = Controls::of(&[row("all", SafeMode::on("why", at(0)), Some(at(100)))]);
        assert!(
            over.drained(SENDING, at(1), at(80_000)).is_some() && over.drained(SENDING, at(1), at(90_000)).is_none()
        );
    }

    #[test]
    fn e4_what_is_held_waits_then_has_its_turn_and_is_declined_when_it_is_too_old() {
        let rule = SafeModeRule { max_age: Some(Duration::from_secs(3_600)), ..rule() };
        let rate: Rate = "10/s".parse().expect("a rate");
        let on = Controls::of(&[row("all", SafeMode::on("why", at(100)), None)]);
        let mode = on.safe_mode_of(&SafeScope::ALL).expect("it is on");
        let off = Controls::of(&[row("all", mode.off(10, rate, at(200)), Some(at(200)))]);
        let leaving = |what, ready| Leaving { what, sending: SENDING, ready: at(ready), is_replay: false };
        let says = |controls: &Controls, leaving: Leaving<'_>, now| match care(&rule, controls, &leaving, at(now)) {
            Care::Go => "go",
            Care::GoWithin(_) => "go within",
            Care::WriteAgain => "write again",
            Care::Hold(_) => "hold",
            Care::Turn(_) => "turn",
            Care::TooOld(_) => "too old",
        };
        let call = What::Call(EffectClass::Create);
        for (controls, leaving, now, said) in [
            (&on, leaving(call, 90), 150, "hold"),
            (&off, leaving(call, 90), 210, "turn"),
            (&off, leaving(call, 201), 210, "go"),
            (&Controls::default(), leaving(call, 0), 10_000, "go"),
            (&on, leaving(call, 90), 3_691, "too old"),
            (&on, Leaving { is_replay: true, ..leaving(call, 90) }, 3_691, "hold"),
            (&on, leaving(What::Message("cart"), 90), 150, "write again"),
            (&off, leaving(What::Message("cart"), 90), 210, "go"),
            (&on, leaving(What::Message("cart-safe"), 0), 9_000, "go"),
            (&on, leaving(What::Call(EffectClass::Read), 0), 9_000, "go"),
        ] {
            assert_eq!(says(controls, leaving, now), said, "{leaving:?} at {now}");
        }
        // What was draining when it became too old is not done either.
        let over = Controls::of(&[row("all", SafeMode::on("why", at(100)), Some(at(200)))]);
        assert_eq!(says(&over, leaving(call, 90), 3_691), "too old");
        let cap = Allowance { units: NonZeroU32::MIN, window: Duration::from_secs(60) };
        let capped = SafeModeRule { cap: Some(cap), ..rule.clone() };
        let safe = leaving(What::Message("cart-safe"), 90);
        assert_eq!(care(&capped, &on, &safe, at(150)), Care::GoWithin(cap));
        assert_eq!(care(&capped, &off, &safe, at(210)), Care::Go);
    }

    #[test]
    fn e4_how_long_something_waited_is_counted_from_when_it_could_have_been_done() {
        let rule = SafeModeRule { max_age: Some(Duration::from_secs(60)), ..rule() };
        let slept = Effect {
            name: "sleep".into(),
            class: Idempotency::Natural,
            state: EffectState::NotDone,
            first_intended_at: at(0),
            changed_at: at(500),
            sends: 1,
        };
        assert_eq!(ready_since(at(3), &[]), at(3));
        assert_eq!(ready_since(at(3), std::slice::from_ref(&slept)), at(500), "a step that sleeps is no waiting");
        assert!(!rule.is_too_old(at(500), at(560)) && rule.is_too_old(at(500), at(561)));
        assert!(!SafeModeRule::default().is_too_old(at(0), at(1_000_000_000)));
    }

    #[test]
    fn e4_what_trips_it_says_where_it_counts() {
        let trip = Trip { circuits: Circuits::Of(vec!["crm".into()]), ..Trip::default() };
        assert!(trip.minds_circuit("crm") && !trip.minds_circuit("mail"));
        assert!(Trip { circuits: Circuits::Any, ..Trip::default() }.minds_circuit("mail"));
        assert_eq!(trip.scope(&"crm".into()).to_string(), "integration:crm");
        assert_eq!(Trip { all: true, ..trip }.scope(&"crm".into()).to_string(), "all");
    }
}
