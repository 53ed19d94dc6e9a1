//! Branches that run side by side, and items one after the other: what the end of each means for it, and all of them together for the
//! job.

use crate::attempt::{Failure, Outcome};
use crate::death::Reason;
use crate::effect::{Effect, EffectState, Idempotency};
use crate::foreach::item_of;
use crate::job::Waits;
use crate::retry::RetryPolicy;
use crate::saga::{self, Ended};
use crate::time::Timestamp;
use crate::worker::{Action, Branch, Step, Worker};
use std::cmp::Ordering;
use std::sync::Arc;

/// What became of a branch in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its steps are done, or were left out.
    Done,
    /// It did not work and is tried again. `failures` are its own, this one included.
    Again {
        failure: Failure,
        failures: u32,
    },
    Waits {
        until: Timestamp,
        waits: Waits,
    },
    /// It is not tried again by itself. With `UnknownOutcome`, only a person can say whether it was done.
    Over(Failure),
    /// We stopped it.
    Interrupted,
}

/// The life of the job since it was accepted or replayed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub replays: u32,
    /// Failed attempts before this one.
    pub failures: u32,
    /// The start of its first attempt, if there was one before this.
    pub began: Option<Timestamp>,
}

/// How often these effects have failed in this life, by what the ledger says of them: whatever was sent and is not done. `more` is
/// what it does not know yet. Never more often than the job itself, and at least once.
pub fn failures<'e>(effects: impl Iterator<Item = &'e Effect>, more: u32, life: Life, retry: &RetryPolicy) -> u32 {
    let in_vain = |effect: &Effect| match effect.state {
        EffectState::Done(_) => effect.sends.saturating_sub(1),
        _ => effect.sends,
    };
    let is_new = |effect: &Effect| life.began.is_some_and(|began| effect.first_intended_at >= began);
    let (mut now, mut before) = (more, 0u32);
    for effect in effects {
        let sends = if is_new(effect) { &mut now } else { &mut before };
        *sends = sends.saturating_add(in_vain(effect));
    }
    let of_earlier_lives = retry.attempts_max.get().saturating_mul(life.replays);
    let failed = now.saturating_add(before.saturating_sub(of_earlier_lives));
    failed.min(life.failures.saturating_add(1)).max(1)
}

/// What the ledger says of a branch. That a delay was reached is no attempt at anything.
pub fn effects_of<'e>(branch: &Branch, effects: &'e [Effect]) -> impl Iterator<Item = &'e Effect> {
    let is_of = |step: &Step, effect: &Effect| match item_of(&step.name) {
        // An item is a branch of its own name; its step has others.
        Some(_) => *step.name == *effect.name,
        None => *step.name == *saga::step_of(&effect.name),
    };
    effects.iter().filter(move |effect| {
        let step = branch.steps.iter().find(|step| is_of(step, effect));
        !saga::is_undo(&effect.name) && step.is_some_and(|step| !matches!(step.action, Action::Delay(_)))
    })
}

/// The branch that a line of the ledger tells of: one of its worker's, or the item that it is about.
fn branch_of(worker: &Worker, effect: &str) -> Option<Branch> {
    if saga::is_undo(effect) {
        return None;
    }
    if item_of(effect).is_some() {
        let step = worker.all_steps().find(|step| step.each.is_some() && *step.name == *saga::step_of(effect))?;
        return Some(Branch::of_item(step, effect.into()));
    }
    worker.branch_of(saga::step_of(effect)).cloned()
}

/// What the end of a branch's step means for the branch. `failures` are its own, this one included.
pub fn fate(outcome: Outcome, failures: u32, retry: &RetryPolicy) -> Fate {
    match outcome {
        // What is declined concerns this branch alone: the others go on.
        Outcome::Succeeded(_) | Outcome::Declined(_) => Fate::Done,
        Outcome::Interrupted => Fate::Interrupted,
        Outcome::PutOff { until, waits } => Fate::Waits { until, waits },
        Outcome::Refused(failure) => Fate::Over(failure),
        Outcome::Unknown { class, failure } if !class.is_protected() => {
            Fate::Over(Failure { reason: Reason::UnknownOutcome, ..failure })
        }
        Outcome::Failed(failure) | Outcome::Unknown { failure, .. } if retry.spent_by(failures) => Fate::Over(failure),
        Outcome::Failed(failure) | Outcome::Unknown { failure, .. } => Fate::Again { failure, failures },
        Outcome::Lost { open } => {
            let lost = Outcome::Lost { open };
            Fate::Again { failure: lost.failure().expect("a lost attempt has a failure"), failures }
        }
    }
}

/// What the ledger keeps of the last effect of a branch that is over: that it is not to be tried again.
pub fn kept(state: EffectState, fate: &Fate) -> EffectState {
    match (state, fate) {
        (EffectState::NotDone, Fate::Over(failure)) => EffectState::GivenUp(failure.reason),
        // A person is asked; nothing is sent before.
        (EffectState::Unknown, Fate::Over(failure)) if failure.reason == Reason::UnknownOutcome => EffectState::Unknown,
        (EffectState::Unknown, Fate::Over(_)) => EffectState::GivenUp(Reason::UnknownOutcome),
        (state, _) => state,
    }
}

/// What the branches come to together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Together {
    GoOn,
    /// The attempt ends. `failures` is how often the branch has failed before that is tried again, and not the job.
    End {
        outcome: Outcome,
        failures: Option<u32>,
    },
}

pub fn together(step: &str, branches: &[(Arc<str>, Fate)]) -> Together {
    all_together(step, "branches", branches)
}

/// Those that had no turn yet are not among them.
pub fn items_together(step: &str, items: &[(Arc<str>, Fate)]) -> Together {
    all_together(step, "items", items)
}

fn all_together(step: &str, what: &str, branches: &[(Arc<str>, Fate)]) -> Together {
    let end = |outcome| Together::End { outcome, failures: None };
    let fates = || branches.iter().map(|(_, fate)| fate);
    if fates().any(|fate| *fate == Fate::Interrupted) {
        return end(Outcome::Interrupted);
    }
    let again = fates().filter_map(|fate| match fate {
        Fate::Again { failure, failures } => Some((failure, *failures)),
        _ => None,
    });
    // The one that has failed most often, and so waits longest.
    if let Some((failure, failures)) = again.clone().reduce(|most, next| if next.1 > most.1 { next } else { most }) {
        let retry_after = again.filter_map(|(failure, _)| failure.retry_after).max();
        let failure = Failure { reason: failure.reason, error: missing(step, what, branches), retry_after };
        return Together::End { outcome: Outcome::Failed(failure), failures: Some(failures.saturating_sub(1)) };
    }
    let waiting = fates().filter_map(|fate| match fate {
        Fate::Waits { until, waits } => Some((*until, *waits)),
        _ => None,
    });
    if let Some((until, waits)) = waiting.clone().min() {
        // People may decide before any time is over: whoever waits for them is woken then.
        let for_people = waiting.map(|(_, waits)| waits).find(|waits| *waits == Waits::Approval);
        return end(Outcome::PutOff { until, waits: for_people.unwrap_or(waits) });
    }
    let over = fates().filter_map(|fate| match fate {
        Fate::Over(failure) => Some(failure),
        _ => None,
    });
    // Whoever must decide about one that is unknown looks at the job first.
    let first = over.reduce(|first, next| match (first.reason, next.reason) {
        (Reason::UnknownOutcome, _) => first,
        (_, Reason::UnknownOutcome) => next,
        _ => first,
    });
    match first {
        Some(failure) => end(Outcome::Refused(Failure::new(failure.reason, missing(step, what, branches)))),
        None => Together::GoOn,
    }
}

/// No more are told one by one.
const MISSING_TOLD_MAX: usize = 20;

/// For people: which branches are done, which are not, and why.
fn missing(step: &str, what: &str, branches: &[(Arc<str>, Fate)]) -> String {
    let why = |(name, fate): &(Arc<str>, Fate)| {
        let why = match fate {
            Fate::Done => return None,
            Fate::Again { failure, .. } | Fate::Over(failure) => {
                failure.error.strip_prefix(&format!("step `{name}`: ")).unwrap_or(&failure.error)
            }
            Fate::Waits { waits, .. } => return Some(format!("{name} (waits: {})", waits.word())),
            Fate::Interrupted => "interrupted",
        };
        Some(format!("{name} ({why})"))
    };
    let missing: Vec<String> = branches.iter().filter_map(why).collect();
    let (done, all) = (branches.len() - missing.len(), branches.len());
    let more = missing.len().saturating_sub(MISSING_TOLD_MAX);
    let told = missing[..missing.len() - more].join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("step `{step}`: {done} of {all} {what} are done; missing: {told}{more}")
}

/// What a worker that is gone had begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The class that decides whether its job may be tried again.
    pub open: Option<Idempotency>,
    /// How often it has failed before, where that is not how often the job has.
    pub failures: Option<u32>,
}

/// With several open effects the worst counts. A branch is decided by itself when the job runs again: the others go on, and one
/// that may not be repeated is left for a person.
pub fn begun(worker: Option<&Worker>, effects: &[Effect], life: Life) -> Begun {
    let open = || effects.iter().filter(|effect| effect.state == EffectState::Open && !saga::is_end(&effect.name));
    let branch = |effect: &Effect| branch_of(worker?, &effect.name);
    let class = |effect: &Effect| match (effect.class, branch(effect)) {
        (class, Some(_)) if !class.is_protected() => Idempotency::Lookup,
        (class, _) => class,
    };
    let worse = |a: Idempotency, b: Idempotency| match a.is_protected().cmp(&b.is_protected()) {
        Ordering::Greater => b,
        Ordering::Less | Ordering::Equal => a,
    };
    let own = |effect: &Effect| {
        let retry = &worker?.retry;
        match branch(effect) {
            Some(branch) => Some(failures(effects_of(&branch, effects), 0, life, retry)),
            None if saga::is_undo(&effect.name) => Some(failures(std::iter::once(effect), 0, life, retry)),
            None => None,
        }
    };
    // Nothing was sent: undoing begins with attempts of its own.
    let undoing = || Ended::of(effects, life.replays).map(|ended| life.failures.saturating_sub(ended.failures));
    let failures = open().filter_map(own).max().map(|failures| failures.saturating_sub(1)).or_else(undoing);
    Begun { open: open().map(class).reduce(worse), failures }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Receipt;
    use crate::job::Ending;
    use std::num::NonZeroU32;
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn policy() -> RetryPolicy {
        RetryPolicy { attempts_max: NonZeroU32::new(3).expect("3"), ..RetryPolicy::default() }
    }

    fn failure(step: &str) -> Failure {
        Failure::new(Reason::TargetDown, format!("step `{step}`: the target answered 503"))
    }

    fn unknown() -> Failure {
        Failure::new(Reason::UnknownOutcome, "step `c`: sent, but no answer came")
    }

    fn again(step: &str, failures: u32) -> Fate {
        Fate::Again { failure: failure(step), failures }
    }

    fn waits(seconds: u64) -> Fate {
        Fate::Waits { until: NOW + Duration::from_secs(seconds), waits: Waits::Circuit }
    }

    fn check(fates: &[Fate], outcome: Option<Outcome>, failures: Option<u32>) {
        let names = ["a", "b", "c"].into_iter().map(Arc::from);
        let branches: Vec<(Arc<str>, Fate)> = names.zip(fates.iter().cloned()).collect();
        let expected = outcome.map_or(Together::GoOn, |outcome| Together::End { outcome, failures });
        assert_eq!(together("all", &branches), expected, "{fates:?}");
    }

    #[test]
    fn c9_branches_come_to_one_end() {
        let failed = |error: &str| Some(Outcome::Failed(Failure::new(Reason::TargetDown, error)));
        let refused = |reason, error: &str| Some(Outcome::Refused(Failure::new(reason, error)));
        let put_off =
            |seconds| Some(Outcome::PutOff { until: NOW + Duration::from_secs(seconds), waits: Waits::Circuit });
        let (done, over) = (Fate::Done, |step| Fate::Over(failure(step)));
        check(&[done.clone(), done.clone()], None, None);
        check(&[again("a", 1), Fate::Interrupted, over("c")], Some(Outcome::Interrupted), None);
        check(
            &[done.clone(), again("track", 2), done.clone()],
            failed("step `all`: 2 of 3 branches are done; missing: b (step `track`: the target answered 503)"),
            Some(1),
        );
        check(
            &[again("a", 1), again("b", 2), Fate::Over(unknown())],
            failed(
                "step `all`: 0 of 3 branches are done; missing: a (the target answered 503), b (the target answered 503), \
                 c (sent, but no answer came)",
            ),
            Some(1),
        );
        check(
            &[again("a", 1), waits(5), done.clone()],
            failed("step `all`: 1 of 3 branches are done; missing: a (the target answered 503), b (waits: circuit)"),
            Some(0),
        );
        check(&[waits(9), over("b"), waits(5)], put_off(5), None);
        check(
            &[over("a"), done.clone(), Fate::Over(unknown())],
            refused(
                Reason::UnknownOutcome,
                "step `all`: 1 of 3 branches are done; missing: a (the target answered 503), c (sent, but no answer came)",
            ),
            None,
        );
        check(
            &[done.clone(), over("b"), done],
            refused(Reason::TargetDown, "step `all`: 2 of 3 branches are done; missing: b (the target answered 503)"),
            None,
        );
    }

    #[test]
    fn c9_the_longest_pause_that_a_branch_asks_for_is_the_pause_of_all() {
        let asks = |seconds| Fate::Again {
            failure: Failure { retry_after: Some(Duration::from_secs(seconds)), ..failure("x") },
            failures: 1,
        };
        let branches = [("a".into(), asks(3)), ("b".into(), asks(8)), ("c".into(), again("c", 2))];
        let Together::End { outcome: Outcome::Failed(failure), .. } = together("all", &branches) else {
            panic!("it failed")
        };
        assert_eq!(failure.retry_after, Some(Duration::from_secs(8)));
    }

    #[test]
    fn p4_a_branch_counts_its_own_failures_of_this_life() {
        let count = |sends, replays, job| {
            let past = effect("a", Idempotency::None, EffectState::NotDone, sends);
            let life = Life { replays, failures: job, began: None };
            failures([&past].into_iter(), 0, life, &policy())
        };
        let done = effect("a", Idempotency::None, done(), 3);
        let life = Life { replays: 0, failures: 9, began: None };
        assert_eq!(failures([&done].into_iter(), 1, life, &policy()), 3, "two before it was done, and this one");
        // What was first sent in this life was never sent in another.
        let again = effect("a", Idempotency::None, EffectState::NotDone, 2);
        let life = Life { replays: 1, failures: 9, began: Some(NOW) };
        assert_eq!(failures([&again].into_iter(), 0, life, &policy()), 2);
        assert_eq!(count(1, 0, 0), 1);
        assert_eq!(count(2, 0, 5), 2, "others of the job have failed more often");
        assert_eq!(count(4, 1, 2), 1, "three were of the life before");
        assert_eq!(count(2, 1, 2), 1, "it was refused early in the life before");
        assert_eq!(count(3, 0, 1), 2, "a shutdown came after an intent");
        assert_eq!(count(0, 0, 0), 1);
    }

    #[test]
    fn c9_what_an_end_means_for_its_branch() {
        let end = |outcome, failures| fate(outcome, failures, &policy());
        let failed = Outcome::Failed(failure("a"));
        assert_eq!(end(failed.clone(), 2), again("a", 2));
        assert_eq!(end(failed, 3), Fate::Over(failure("a")));
        assert_eq!(end(Outcome::Refused(failure("a")), 1), Fate::Over(failure("a")));
        assert_eq!(end(Outcome::Succeeded(Ending::Noop), 1), Fate::Done);
        let lost = |class| Outcome::Unknown { class, failure: failure("a") };
        assert_eq!(end(lost(Idempotency::Header), 1), again("a", 1));
        let parked = Failure { reason: Reason::UnknownOutcome, ..failure("a") };
        assert_eq!(end(lost(Idempotency::None), 1), Fate::Over(parked.clone()));
        assert_eq!(end(lost(Idempotency::Wrap), 1), Fate::Over(parked.clone()));

        assert_eq!(kept(EffectState::NotDone, &again("a", 1)), EffectState::NotDone);
        let over = Fate::Over(failure("a"));
        assert_eq!(kept(EffectState::NotDone, &over), EffectState::GivenUp(Reason::TargetDown));
        assert_eq!(kept(EffectState::Unknown, &over), EffectState::GivenUp(Reason::UnknownOutcome));
        assert_eq!(kept(EffectState::Unknown, &Fate::Over(parked)), EffectState::Unknown);
    }

    #[test]
    fn c8_p3_an_item_decides_for_itself_and_counts_its_own_failures() {
        let text = "name: w\nconsumes: {queue: q}\nretry: {max_attempts: 3}\nrun:\n  \
                    - {name: a, foreach: body.items, http: {url: 'https://a.b'}}\n";
        let files = [("queues.yml", "queues:\n  - name: q\n"), ("workers/w.yml", text)];
        let files = crate::config::Files(files.map(|(path, text)| (path.into(), text.into())).into());
        let (workspace, _) = crate::config::load(&files).expect("a sound workspace");
        let lines = [
            effect("a[0]", Idempotency::None, EffectState::NotDone, 2),
            effect("a[1]", Idempotency::None, EffectState::Open, 1),
            effect("a[10]", Idempotency::None, EffectState::NotDone, 2),
        ];
        let life = Life { replays: 0, failures: 5, began: None };
        let expected = Begun { open: Some(Idempotency::Lookup), failures: Some(0) };
        assert_eq!(begun(Some(&workspace.workers[0]), &lines, life), expected);
        let many: Vec<(Arc<str>, Fate)> =
            (0..30).map(|at| (crate::foreach::item_name("a", at), waits(at as u64))).collect();
        let mut many = many;
        many[0].1 = again("a[0]", 1);
        let Together::End { outcome: Outcome::Failed(failure), .. } = items_together("a", &many) else {
            panic!("failed")
        };
        assert!(
            failure.error.starts_with("step `a`: 0 of 30 items are done; missing: a[0] (the target"),
            "{}",
            failure.error
        );
        assert!(failure.error.ends_with(" and 10 more"), "{}", failure.error);
    }

    /// A worker with two branches and a step after them.
    fn worker() -> Worker {
        let text = "name: w\nconsumes: {queue: q}\nretry: {max_attempts: 3}\nrun:\n  - name: all\n    parallel:\n      \
                    - {name: a, http: {url: 'https://a.b'}}\n      - {name: b, http: {url: 'https://a.b'}}\n  \
                    - {name: c, http: {url: 'https://a.b'}}\n";
        let files = [("queues.yml", "queues:\n  - name: q\n"), ("workers/w.yml", text)];
        let files = crate::config::Files(files.map(|(path, text)| (path.into(), text.into())).into());
        let (workspace, _) = crate::config::load(&files).expect("a sound workspace");
        workspace.workers[0].clone()
    }

    fn done() -> EffectState {
        EffectState::Done(Receipt { status: 200, body: "{}".into() })
    }

    fn effect(name: &str, class: Idempotency, state: EffectState, sends: u32) -> Effect {
        Effect { name: name.into(), class, state, first_intended_at: NOW, changed_at: NOW, sends }
    }

    #[test]
    fn c9_p3_of_what_a_lost_worker_had_begun_the_worst_counts_and_branches_decide_for_themselves() {
        let check = |effects: &[Effect], open, failures| {
            let life = Life { replays: 0, failures: 5, began: None };
            assert_eq!(begun(Some(&worker()), effects, life), Begun { open, failures }, "{effects:?}");
        };
        let open = |name, class, sends| effect(name, class, EffectState::Open, sends);
        check(&[], None, None);
        check(&[effect("a", Idempotency::None, EffectState::Unknown, 1)], None, None);
        check(&[open("c", Idempotency::None, 1)], Some(Idempotency::None), None);
        check(&[open("c", Idempotency::Header, 1)], Some(Idempotency::Header), None);
        // In a branch it is no reason to bury the others.
        check(&[open("a", Idempotency::None, 1)], Some(Idempotency::Lookup), Some(0));
        check(&[open("a", Idempotency::Wrap, 1)], Some(Idempotency::Lookup), Some(0));
        check(
            &[open("a", Idempotency::Header, 1), open("b", Idempotency::None, 2)],
            Some(Idempotency::Header),
            Some(1),
        );
        check(&[open("a", Idempotency::None, 1), open("c", Idempotency::None, 1)], Some(Idempotency::None), Some(0));
        // Undoing has attempts of its own, from when the job had ended.
        let ended = Ended { reason: Reason::Timeout, error: "late".into(), failures: 3, at: NOW };
        let end = effect("end:1", Idempotency::Natural, EffectState::Done(ended.receipt()), 1);
        check(std::slice::from_ref(&end), None, Some(2));
        check(&[end, open("undo:a", Idempotency::None, 2)], Some(Idempotency::None), Some(1));
        check(&[open("end:1", Idempotency::Natural, 1)], None, None);
        // Without its worker nothing is known of branches.
        let alone = begun(None, &[open("a", Idempotency::None, 1)], Life { replays: 0, failures: 0, began: None });
        assert_eq!(alone, Begun { open: Some(Idempotency::None), failures: None });
    }
}
