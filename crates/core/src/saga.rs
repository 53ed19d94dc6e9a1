//! Undoing: when a job ends for good, what its steps have done is undone in reverse, as far as they say how. That it ended is a line
//! of the ledger, so that a crash at any moment goes on with it.
//!
//! What undoes `reserve` is `undo:reserve` in the ledger. A replay does the step again as `reserve@2`, under another key: the target would
//! answer the first one from memory.

use crate::attempt::Failure;
use crate::death::Reason;
use crate::effect::{Effect, EffectState, Idempotency, Receipt};
use crate::time::Timestamp;
use crate::worker::{Action, Step, Worker};
use serde_json::{Value, json};
use std::sync::Arc;

/// Names of steps have no colon, no `@` and no bracket.
const UNDO: &str = "undo:";
const END: &str = "end:";

/// The step of which a line of the ledger tells, whether it does or undoes it.
pub fn step_of(effect: &str) -> &str {
    let name = effect.strip_prefix(UNDO).unwrap_or(effect);
    name.split_once(['@', '[']).map_or(name, |(step, _)| step)
}

/// Does this line tell of undoing?
pub fn is_undo(effect: &str) -> bool {
    effect.starts_with(UNDO)
}

/// The line of the round before, of a step that is done again.
pub fn round_before(effect: &str) -> Option<String> {
    let (step, round) = effect.split_once('@')?;
    Some(in_round(step.to_string(), round.parse::<u32>().ok()?.checked_sub(1)?))
}

/// Does it tell that a job has ended, and of no step?
pub fn is_end(effect: &str) -> bool {
    effect.starts_with(END)
}

/// What a step, or what undoes it, is called in the ledger when it is done for the how-manieth time.
fn in_round(name: String, round: u32) -> String {
    if round == 1 { name } else { format!("{name}@{round}") }
}

fn find<'e>(effects: &'e [Effect], name: &str) -> Option<&'e Effect> {
    effects.iter().find(|effect| effect.name == name)
}

fn is_done(effects: &[Effect], name: &str) -> bool {
    find(effects, name).is_some_and(|effect| matches!(effect.state, EffectState::Done(_)))
}

/// One more than it was undone.
fn round(step: &str, effects: &[Effect]) -> u32 {
    let is_undone = |round: &u32| is_done(effects, &in_round(format!("{UNDO}{step}"), *round));
    (1..).find(|round| !is_undone(round)).unwrap_or(u32::MAX)
}

/// Was what this line tells of undone since?
pub fn is_undone(effect: &str, effects: &[Effect]) -> bool {
    is_done(effects, &format!("{UNDO}{effect}"))
}

/// What the step is called in the ledger now; `None`: as it is written.
pub fn renewed(step: &Step, effects: &[Effect]) -> Option<Arc<str>> {
    let round = round(&step.name, effects);
    (round > 1).then(|| in_round(step.name.to_string(), round).into())
}

/// Something that was done and can be undone.
#[derive(Clone, Debug)]
pub struct Undo<'w> {
    pub step: &'w Step,
    pub action: &'w Action,
    /// What it is called in the ledger.
    pub line: Arc<str>,
    /// What undoing it is called there.
    pub name: Arc<str>,
}

/// What is to be undone, in this order.
pub fn to_undo<'w>(worker: &'w Worker, effects: &[Effect]) -> Vec<Undo<'w>> {
    let mut found: Vec<Undo<'_>> = worker.all_steps().filter_map(|step| undo_of(step, effects)).collect();
    found.reverse();
    found
}

fn undo_of<'w>(step: &'w Step, effects: &[Effect]) -> Option<Undo<'w>> {
    let action = step.compensate.as_ref()?;
    let round = round(&step.name, effects);
    let name = in_round(format!("{UNDO}{}", step.name), round).into();
    let line = in_round(step.name.to_string(), round);
    // What another job did is not this one's to undo.
    let is_own = find(effects, &line).is_some_and(|effect| effect.class != Idempotency::Shared);
    (is_own && is_done(effects, &line)).then(|| Undo { step, action, line: line.into(), name })
}

/// Of these, what may have been undone: nobody knows, and it must be known before the step is relied on.
pub fn in_doubt<'w>(worker: &'w Worker, effects: &[Effect]) -> Vec<Undo<'w>> {
    let mut found = to_undo(worker, effects);
    found.retain(|undo| find(effects, &undo.name).is_some_and(|effect| effect.state.is_unclear()));
    found
}

/// A job that ends for good: is it known what it had done, and is there something to undo?
pub fn ends_in_undoing(worker: &Worker, effects: &[Effect], replays: u32) -> bool {
    let is_unclear = |effect: &Effect| effect.state.is_unclear() && !is_end(&effect.name);
    Ended::of(effects, replays).is_none() && !effects.iter().any(is_unclear) && !to_undo(worker, effects).is_empty()
}

/// That a job has ended for good and is being undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub reason: Reason,
    pub error: String,
    /// How often it had failed by then.
    pub failures: u32,
    pub at: Timestamp,
}

impl Ended {
    /// What the line is called, in a job that was replayed so often.
    pub fn name(replays: u32) -> String {
        format!("{END}{}", replays.saturating_add(1))
    }

    pub fn receipt(&self) -> Receipt {
        let body = json!({"reason": self.reason.word(), "error": self.error, "failures": self.failures});
        Receipt { status: 0, body: body.to_string().into() }
    }

    /// Of the life that the job lives now, if it has.
    pub fn of(effects: &[Effect], replays: u32) -> Option<Ended> {
        let life = |effect: &Effect| effect.name.strip_prefix(END).and_then(|number| number.parse().ok());
        let line = effects.iter().find(|effect| life(effect) == Some(replays.saturating_add(1)))?;
        let EffectState::Done(receipt) = &line.state else { return None };
        let body: Value = serde_json::from_slice(&receipt.body).unwrap_or_default();
        let reason = body["reason"].as_str().and_then(|word| word.parse().ok());
        let failures = body["failures"].as_u64().and_then(|failures| u32::try_from(failures).ok());
        Some(Ended {
            reason: reason.unwrap_or(Reason::Internal),
            error: body["error"].as_str().unwrap_or("it had ended").to_string(),
            failures: failures.unwrap_or(0),
            at: line.first_intended_at,
        })
    }

    /// What was undone since.
    pub fn undone(&self, effects: &[Effect]) -> Vec<String> {
        let since = effects.iter().filter(|effect| is_undo(&effect.name) && effect.first_intended_at >= self.at);
        let done = since.filter(|effect| matches!(effect.state, EffectState::Done(_)));
        done.map(|effect| step_of(&effect.name).to_string()).collect()
    }

    /// How the job ends when everything is undone, or when that could not be done.
    pub fn failure(&self, undone: &[String], missing: Option<(&str, &Failure)>) -> Failure {
        let reason = match missing {
            // A person must decide about it first.
            Some((_, failure)) if failure.reason == Reason::UnknownOutcome => Reason::UnknownOutcome,
            _ => self.reason,
        };
        Failure::new(reason, self.told(undone, missing, "not undone"))
    }

    /// For people: why it ended, what was undone since, and what was not.
    pub fn told(&self, undone: &[String], missing: Option<(&str, &Failure)>, not: &str) -> String {
        let mut told = self.error.clone();
        if !undone.is_empty() {
            told.push_str(&format!("; undone: {}", undone.join(", ")));
        }
        if let Some((step, failure)) = missing {
            told.push_str(&format!("; {not}: {step} ({})", failure.error));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn worker() -> Worker {
        let text = "\
name: w
consumes: {queue: q}
run:
  - name: reserve
    http: {url: 'https://a.b'}
    compensate: {http: {url: 'https://a.b'}}
  - name: note
    http: {url: 'https://a.b'}
  - name: all
    parallel:
      - name: charge
        http: {url: 'https://a.b'}
        compensate: {http: {url: 'https://a.b'}}
      - name: tell
        http: {url: 'https://a.b'}
  - name: ship
    http: {url: 'https://a.b'}
";
        let files = [("queues.yml", "queues:\n  - name: q\n"), ("workers/w.yml", text)];
        let files = crate::config::Files(files.map(|(path, text)| (path.into(), text.into())).into());
        let (workspace, _) = crate::config::load(&files).expect("a sound workspace");
        workspace.workers[0].clone()
    }

    fn done() -> EffectState {
        EffectState::Done(Receipt { status: 200, body: "{}".into() })
    }

    /// A ledger in which each line is a second later than the one before.
    fn ledger(lines: &[(&str, EffectState)]) -> Vec<Effect> {
        let line = |(second, (name, state)): (i64, &(&str, EffectState))| Effect {
            name: name.to_string(),
            class: Idempotency::Header,
            state: state.clone(),
            first_intended_at: at(second),
            changed_at: at(second),
            sends: 1,
        };
        (0..).zip(lines).map(line).collect()
    }

    fn names(lines: &[(&str, EffectState)]) -> Vec<String> {
        to_undo(&worker(), &ledger(lines)).iter().map(|undo| undo.name.to_string()).collect()
    }

    #[test]
    fn c13_what_is_done_and_can_be_undone_is_undone_in_reverse() {
        let forward = [("reserve", done()), ("note", done()), ("charge", done()), ("ship", EffectState::NotDone)];
        assert_eq!(names(&forward), ["undo:charge", "undo:reserve"]);
        assert_eq!(names(&forward[..2]), ["undo:reserve"]);
        assert_eq!(names(&[("reserve", EffectState::NotDone)]), Vec::<String>::new());
        let half = [&forward[..], &[("undo:charge", done())]].concat();
        assert_eq!(names(&half), ["undo:reserve"]);
        let failed = [&forward[..], &[("undo:charge", EffectState::NotDone)]].concat();
        assert_eq!(names(&failed), ["undo:charge", "undo:reserve"]);
        // What another job did is left to that one.
        let mut shared = ledger(&forward);
        shared[0].class = Idempotency::Shared;
        let (worker, undone) = (worker(), |undo: &Undo<'_>| (undo.line.to_string(), undo.name.to_string()));
        let left: Vec<_> = to_undo(&worker, &shared).iter().map(undone).collect();
        assert_eq!(left, [("charge".to_string(), "undo:charge".to_string())]);
    }

    #[test]
    fn c13_what_was_undone_is_done_again_under_another_name() {
        let worker = worker();
        let name = |lines: &[(&str, EffectState)]| renewed(&worker.steps[0], &ledger(lines));
        assert_eq!(name(&[("reserve", done())]), None);
        let once = [("reserve", done()), ("undo:reserve", done())];
        assert_eq!(name(&once).as_deref(), Some("reserve@2"));
        let again = [&once[..], &[("reserve@2", done())]].concat();
        assert_eq!(names(&again), ["undo:reserve@2"]);
        let twice = [&again[..], &[("undo:reserve@2", done())]].concat();
        assert_eq!(name(&twice).as_deref(), Some("reserve@3"));
        // Also when a younger workspace does not say any more how it was undone.
        let undone = ledger(&[("note", done()), ("undo:note", done())]);
        assert_eq!(renewed(&worker.steps[1], &undone).as_deref(), Some("note@2"));
        assert_eq!(
            ["reserve", "undo:reserve", "undo:reserve@2", "reserve@2", "reserve[3]"].map(step_of),
            ["reserve"; 5]
        );
        assert_eq!(
            ["reserve", "reserve@2", "reserve@3"].map(round_before),
            [None, Some("reserve".to_string()), Some("reserve@2".to_string())]
        );
    }

    #[test]
    fn c13_an_undoing_that_may_have_happened_is_in_doubt() {
        let doubt = |state| {
            let lines = ledger(&[("reserve", done()), ("undo:reserve", state)]);
            in_doubt(&worker(), &lines).len()
        };
        assert_eq!([EffectState::Unknown, EffectState::NotDone, done()].map(doubt), [1, 0, 0]);
    }

    #[test]
    fn c13_the_end_of_a_job_is_read_back_from_its_line() {
        let ended = Ended { reason: Reason::RejectedByTarget, error: "no".into(), failures: 3, at: at(1) };
        let line = EffectState::Done(ended.receipt());
        let lines =
            [("undo:charge", done()), ("end:1", line), ("undo:reserve", done()), ("undo:x", EffectState::NotDone)];
        let lines = ledger(&lines);
        assert_eq!(Ended::of(&lines, 0), Some(ended.clone()));
        assert_eq!(Ended::of(&lines, 1), None, "a replay lives again");
        assert_eq!(Ended::of(&ledger(&[("end:1", EffectState::Open)]), 0), None);
        assert_eq!(ended.undone(&lines), ["reserve"]);

        let undone = ["charge".to_string(), "reserve".to_string()];
        assert_eq!(ended.failure(&undone, None).error, "no; undone: charge, reserve");
        let refused = Failure::new(Reason::TargetDown, "it answered 503");
        let missing = ended.failure(&undone[..1], Some(("reserve", &refused)));
        assert_eq!(missing.error, "no; undone: charge; not undone: reserve (it answered 503)");
        assert_eq!(missing.reason, Reason::RejectedByTarget);
        let unknown = Failure::new(Reason::UnknownOutcome, "no answer");
        assert_eq!(ended.failure(&[], Some(("charge", &unknown))).reason, Reason::UnknownOutcome);
    }
}
