//! A replay with a plan: which dead letters are meant, what will become of each, and how fast they are let go. The set is frozen when it
//! is counted, so that what is acted on is what was counted.

use crate::death::Reason;
use crate::effect::{Effect, EffectState, Idempotency};
use crate::flow::PRIORITY_MIN;
use crate::job::Word;
use crate::limit::Rate;
use crate::saga;
use crate::time::Timestamp;
use crate::worker::Worker;
use aws_lc_rs::digest::{Context, SHA256};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

/// A plan that nobody has started by then is stale.
pub const PLAN_VALID: Duration = Duration::from_secs(86_400);
/// What is kept of a plan that is over goes after this long; the audit stays.
pub const PLAN_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// A plan has no more jobs than this: the oldest of those that fit.
pub const PLAN_JOBS_MAX: usize = 20_000;
/// So many jobs of a plan that were let go and have not ended, at most: also those that wait for something.
pub const UNENDED_MAX: u64 = 1_000;
/// They are let go in portions of at most so many, each one transaction.
pub const PORTION: u32 = 20;
/// A share says nothing before so many have ended.
pub const SHARE_OF_MIN: u64 = 5;
/// How far below its own priority a job of a plan stands: behind everything live.
const BEHIND: i16 = 1_000;

/// The priority of a job that a plan lets go.
pub fn behind(priority: i16) -> i16 {
    if is_behind(priority) { priority } else { priority.saturating_sub(BEHIND) }
}

/// And its own again, when a person takes it out by itself.
pub fn own(priority: i16) -> i16 {
    if is_behind(priority) { priority.saturating_add(BEHIND) } else { priority }
}

fn is_behind(priority: i16) -> bool {
    priority < PRIORITY_MIN
}

/// What will become of a dead letter that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Run,
    /// Everything that it does outside is done: nothing is sent.
    Noop,
    /// It may have done something: a person must say what is to be done about it, and it is not run by a plan.
    Ask,
}

/// `worker` is what it runs; `None`: the workspace does not say.
pub fn fate(worker: Option<&Worker>, effects: &[Effect]) -> Fate {
    if asks(effects) {
        return Fate::Ask;
    }
    let Some(worker) = worker else { return Fate::Run };
    let mut outward = worker.all_steps().filter(|step| step.action.outward().is_some()).peekable();
    let is_done =
        |name: &str| effects.iter().any(|effect| effect.name == name && matches!(effect.state, EffectState::Done(_)));
    let does_something = outward.peek().is_some();
    let is_all_done = outward.all(|step| is_done(&saga::renewed(step, effects).unwrap_or_else(|| step.name.clone())));
    if does_something && is_all_done { Fate::Noop } else { Fate::Run }
}

/// What a replay does about one line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It is done, and its first answer is used.
    Skipped,
    Runs,
    /// The partner is asked whether it was done; then it is skipped, or runs.
    LooksUp,
    /// It may have been done, and a person must say first what becomes of it.
    AsksFirst,
}

impl Again {
    pub const fn word(self) -> &'static str {
        match self {
            Again::Skipped => "skipped",
            Again::Runs => "runs",
            Again::LooksUp => "looks_up",
            Again::AsksFirst => "asks_first",
        }
    }
}

/// `effects` is the whole ledger of the job: what was undone since is done again. `None` for a line that no replay looks at.
pub fn again(effect: &Effect, effects: &[Effect]) -> Option<Again> {
    if effect.state.is_unclear() {
        return Some(match effect.class {
            Idempotency::Header | Idempotency::Natural | Idempotency::Shared => Again::Runs,
            Idempotency::Lookup => Again::LooksUp,
            Idempotency::Wrap | Idempotency::None => Again::AsksFirst,
        });
    }
    if saga::is_undo(&effect.name) || saga::is_end(&effect.name) {
        return None;
    }
    Some(match effect.state {
        EffectState::Done(_) if !saga::is_undone(&effect.name, effects) => Again::Skipped,
        _ => Again::Runs,
    })
}

/// Whether only a person can say what becomes of an effect.
pub fn asks(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| again(effect, effects) == Some(Again::AsksFirst))
}

/// The steps that are done and will not be repeated.
pub fn kept(effects: &[Effect]) -> impl Iterator<Item = &str> {
    effects.iter().filter(|effect| again(effect, effects) == Some(Again::Skipped)).map(|effect| &*effect.name)
}

/// Recognises a dead letter as it was when it was counted. Whatever is done to it makes it another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(i64);

impl Mark {
    pub fn of(
        replays: u32,
        attempts: u32,
        died_at: Option<Timestamp>,
        reason: Option<Reason>,
        effects: &[Effect],
    ) -> Mark {
        let mut told = Context::new(&SHA256);
        told.update(&replays.to_be_bytes());
        told.update(&attempts.to_be_bytes());
        told.update(&died_at.map_or(0, Timestamp::as_micros).to_be_bytes());
        told.update(reason.map_or("", Reason::word).as_bytes());
        for effect in effects {
            // No name of a step and no word has a zero in it.
            for part in [effect.name.as_bytes(), &[0], effect.state.word().as_bytes(), &[0]] {
                told.update(part);
            }
            told.update(&effect.changed_at.as_micros().to_be_bytes());
        }
        let digest = told.finish();
        Mark(i64::from_be_bytes(digest.as_ref()[..8].try_into().expect("SHA-256 has 32 bytes")))
    }

    pub const fn from_number(number: i64) -> Mark {
        Mark(number)
    }

    pub const fn number(self) -> i64 {
        self.0
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident $number:literal $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// How a store spells it.
            pub const fn number(self) -> i16 {
                match self { $($name::$variant => $number,)* }
            }

            pub fn from_number(number: i16) -> Option<$name> {
                $name::ALL.iter().copied().find(|word| word.number() == number)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Where a plan stands.
    PlanState {
        /// Counted, and not started.
        Planned 0 "planned",
        Running 1 "running",
        Paused 2 "paused",
        /// By a person, or because too many failed. What was let go goes on.
        Stopped 3 "stopped",
        Done 4 "done",
    }
}

words! {
    /// What became of one job of a plan.
    ItemState {
        Waiting 0 "waiting",
        /// It was let go and has not ended.
        Released 1 "released",
        Success 2 "success",
        Noop 3 "noop",
        /// It is a dead letter again.
        Failed 4 "failed",
        /// It was not the same dead letter any more as when it was counted, and was not run.
        Changed 5 "changed",
        /// A person must say first what becomes of an effect; it was not run.
        Asks 6 "asks",
    }
}

impl FromStr for ItemState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        ItemState::ALL.iter().copied().find(|state| state.as_str() == text).ok_or_else(|| {
            let words: Vec<_> = ItemState::ALL.iter().map(|state| state.as_str()).collect();
            format!("`{text}` is not a state of a job of a plan; the states are {}", words.join(", "))
        })
    }
}

/// What became of a job that was let go as its replay number `replay`. `now` is how it is: its state and its replays; `None`: it
/// is gone. `None` for one that has not ended.
pub fn ended(replay: u32, now: Option<(Word, u32)>) -> Option<ItemState> {
    match now {
        // Its retention was over before anybody looked: nothing can be said of it.
        None => Some(ItemState::Changed),
        // Only a dead letter is replayed again.
        Some((_, replays)) if replays > replay => Some(ItemState::Failed),
        Some((Word::Success, _)) => Some(ItemState::Success),
        Some((Word::Noop, _)) => Some(ItemState::Noop),
        Some((Word::Dead | Word::Dropped, _)) => Some(ItemState::Failed),
        Some((Word::Queued | Word::Running | Word::Waiting | Word::Retrying, _)) => None,
    }
}

/// A share of what ended, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    pub fn new(percent: u8) -> Option<Percent> {
        (1..=100).contains(&percent).then_some(Percent(percent))
    }

    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%').parse().ok().and_then(Percent::new);
        number.ok_or_else(|| format!("`{text}` is not a share; write 1% to 100%"))
    }
}

/// How a plan is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub rate: Rate,
    /// No more are let go.
    pub max: NonZeroU32,
    /// So many first, and the others when all of these have ended well.
    pub canary: u32,
    /// It stops when this share of what ended has failed; `None`: it never does.
    pub stop_at: Option<Percent>,
    /// So many are in work at the same time: the others of a worker's places are for live jobs.
    pub at_once: NonZeroU32,
}

pub const RATE_DEFAULT: &str = "50/s";
pub const CANARY_DEFAULT: u32 = 1;
pub const STOP_AT_DEFAULT: Percent = Percent(20);
pub const AT_ONCE_DEFAULT: NonZeroU32 = NonZeroU32::new(8).expect("8 is not 0");

/// How far a plan has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub jobs: u64,
    /// Let go so far.
    pub released: u64,
    pub success: u64,
    pub noop: u64,
    pub failed: u64,
    /// Not run, since they are not what was counted.
    pub changed: u64,
    pub asks: u64,
    /// Of what was changed, those that had been let go: nothing is known of their end.
    pub lost: u64,
}

impl Tally {
    /// Nobody has looked at these yet.
    pub fn left(&self) -> u64 {
        self.jobs.saturating_sub(self.looked_at())
    }

    pub fn looked_at(&self) -> u64 {
        self.released + self.changed.saturating_sub(self.lost) + self.asks
    }

    pub fn ended(&self) -> u64 {
        self.success + self.noop + self.failed
    }

    /// Let go, and not ended.
    pub fn unended(&self) -> u64 {
        self.released.saturating_sub(self.ended() + self.lost)
    }
}

/// What is to be done about a plan that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Let so many go, each at a moment of its own.
    Release {
        most: u32,
        moments: Moments,
    },
    /// Look again then, or when some have ended.
    Wait {
        until: Timestamp,
    },
    Stop {
        why: String,
    },
    Finish,
}

/// When those of a portion run: the first at its moment, and the others one after the other. A rate is kept to the job, so that those
/// who are live never meet a whole portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moments {
    pub first: Timestamp,
    pub gap: Duration,
}

impl Moments {
    pub fn nth(&self, nth: u32) -> Timestamp {
        self.first + self.gap * nth
    }
}

/// `busy` of those that were let go are in work or about to be. None runs before `next_at`.
pub fn next(terms: &Terms, tally: &Tally, busy: u64, next_at: Timestamp, now: Timestamp) -> Next {
    if tally.released <= u64::from(terms.canary) && tally.failed > 0 {
        let ended = format!("{} of {} that went first failed again", tally.failed, tally.released);
        return Next::Stop { why: ended };
    }
    if let Some(stop_at) = terms.stop_at
        && tally.ended() >= SHARE_OF_MIN
        && tally.failed * 100 >= tally.ended() * u64::from(stop_at.get())
    {
        return Next::Stop {
            why: format!("{} of {} failed again; it was to stop at {stop_at}", tally.failed, tally.ended()),
        };
    }
    let allowed = u64::from(terms.max.get()).saturating_sub(tally.released);
    if allowed == 0 || tally.left() == 0 {
        return if tally.unended() == 0 { Next::Finish } else { Next::Wait { until: now + LOOK } };
    }
    let canary = u64::from(terms.canary);
    let first = match tally.released < canary {
        true => canary - tally.released,
        false if tally.released == canary && tally.unended() > 0 => 0,
        false => u64::MAX,
    };
    let free = u64::from(terms.at_once.get()).saturating_sub(busy).min(UNENDED_MAX.saturating_sub(tally.unended()));
    let most = first.min(free).min(allowed).min(tally.left());
    if most == 0 {
        let look = if busy > 0 { LOOK_SOON } else { LOOK };
        return Next::Wait { until: now + look };
    }
    if next_at > now + EARLY {
        return Next::Wait { until: next_at };
    }
    // Moments that nobody used are lost: after a pause there is no rush.
    let moments = Moments { first: next_at.max(now - LOOK), gap: gap(&terms.rate) };
    let due = (now + AHEAD).since(moments.first).as_nanos() / moments.gap.as_nanos().max(1) + 1;
    let most = u32::try_from(most).unwrap_or(u32::MAX).min(PORTION).min(u32::try_from(due).unwrap_or(u32::MAX));
    Next::Release { most, moments }
}

/// A portion is for the moments of so long a time: one transaction for all of them.
const AHEAD: Duration = Duration::from_millis(40);

/// Who looks so much too early need not come again.
const EARLY: Duration = Duration::from_millis(10);

/// Between two looks at a plan of which nothing can be let go at the moment.
const LOOK: Duration = Duration::from_millis(100);

/// And of one whose places are all taken: they are free again as soon as a call has ended.
const LOOK_SOON: Duration = Duration::from_millis(10);

/// Between two jobs.
fn gap(rate: &Rate) -> Duration {
    rate.window() / rate.count().get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::{Idempotency, Receipt};
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

    fn terms(max: u32, canary: u32, at_once: u32) -> Terms {
        Terms {
            rate: "50/s".parse().expect("a rate"),
            max: NonZeroU32::new(max).expect("some"),
            canary,
            stop_at: Some(STOP_AT_DEFAULT),
            at_once: NonZeroU32::new(at_once).expect("some"),
        }
    }

    fn effect(name: &str, state: EffectState) -> Effect {
        let class = Idempotency::None;
        Effect { name: name.into(), class, state, first_intended_at: NOW, changed_at: NOW, sends: 1 }
    }

    fn done() -> EffectState {
        EffectState::Done(Receipt { status: 200, body: bytes::Bytes::new() })
    }

    proptest! {
        #[test]
        fn p8_whatever_is_done_to_a_dead_letter_makes_it_another(replays in 0..9u32, attempts in 0..9u32, died in 0..9i64, change in 0..6usize) {
            let ledger = vec![effect("a", done()), effect("b", EffectState::NotDone)];
            let at = |seconds: i64| Some(Timestamp::from_micros(seconds));
            let mark = Mark::of(replays, attempts, at(died), Some(Reason::Timeout), &ledger);
            let mut other = ledger.clone();
            let changed = match change {
                0 => Mark::of(replays + 1, attempts, at(died), Some(Reason::Timeout), &ledger),
                1 => Mark::of(replays, attempts + 1, at(died), Some(Reason::Timeout), &ledger),
                2 => Mark::of(replays, attempts, at(died + 1), Some(Reason::Timeout), &ledger),
                3 => Mark::of(replays, attempts, at(died), Some(Reason::Internal), &ledger),
                4 => { other[1].state = done(); Mark::of(replays, attempts, at(died), Some(Reason::Timeout), &other) }
                _ => { other.pop(); Mark::of(replays, attempts, at(died), Some(Reason::Timeout), &other) }
            };
            prop_assert_ne!(mark, changed);
            prop_assert_eq!(mark, Mark::of(replays, attempts, at(died), Some(Reason::Timeout), &ledger));
        }

        /// A plan that is carried out to its end, whatever becomes of its jobs.
        #[test]
        fn f2_a_plan_lets_go_no_more_and_no_faster_than_it_may(
            fates in proptest::collection::vec(0..10u8, 1..120), max in 1..150u32, canary in 0..4u32, at_once in 1..30u32,
        ) {
            let terms = terms(max, canary, at_once);
            let mut tally = Tally { jobs: fates.len() as u64, ..Tally::default() };
            let (mut now, mut next_at, mut fates) = (NOW, NOW, fates.into_iter());
            let mut working: Vec<u8> = Vec::new();
            for _ in 0..10_000 {
                match next(&terms, &tally, working.len() as u64, next_at, now) {
                    Next::Release { most, moments } => {
                        prop_assert!((1..=PORTION).contains(&most) && moments.first >= next_at);
                        next_at = moments.nth(most);
                        prop_assert!(next_at <= now + AHEAD + moments.gap, "not far ahead");
                        for fate in fates.by_ref().take(most as usize) {
                            if fate == 9 { tally.changed += 1 } else { tally.released += 1; working.push(fate) }
                        }
                    }
                    Next::Wait { until } => {
                        prop_assert!(until > now);
                        now = until;
                        match working.pop() { Some(8) => tally.failed += 1, Some(_) => tally.success += 1, None => {} }
                    }
                    Next::Stop { .. } => {
                        prop_assert!(tally.failed > 0);
                        break;
                    }
                    Next::Finish => {
                        prop_assert!(working.is_empty());
                        prop_assert!(tally.left() == 0 || tally.released == u64::from(max));
                        break;
                    }
                }
                prop_assert!(working.len() <= at_once as usize);
                prop_assert!(tally.released <= u64::from(max));
                let ended = now.since(NOW).as_millis() / 20;
                prop_assert!(u128::from(tally.released) <= ended + 8, "{} in {:?}", tally.released, now.since(NOW));
                if tally.released > u64::from(canary) && canary > 0 {
                    prop_assert!(tally.ended() >= u64::from(canary), "they went first");
                }
            }
            prop_assert!(tally.left() == 0 || tally.failed > 0 || tally.released == u64::from(max), "it ends: {:?}", tally);
        }
    }

    #[test]
    fn f2_who_went_first_and_failed_stops_all_the_others() {
        let tally = Tally { jobs: 100, released: 1, failed: 1, ..Tally::default() };
        assert!(matches!(next(&terms(100, 1, 4), &tally, 0, NOW, NOW), Next::Stop { .. }));
        let waiting = Tally { jobs: 100, released: 1, ..Tally::default() };
        assert!(matches!(next(&terms(100, 1, 4), &waiting, 0, NOW, NOW), Next::Wait { .. }));
        let well = Tally { success: 1, ..waiting };
        assert!(matches!(next(&terms(100, 1, 4), &well, 0, NOW, NOW), Next::Release { .. }));
    }

    #[test]
    fn f2_a_share_of_failures_stops_a_plan_when_enough_have_ended() {
        let tally =
            |failed, success| Tally { jobs: 100, released: failed + success, failed, success, ..Tally::default() };
        let stops = |tally: Tally| matches!(next(&terms(100, 0, 4), &tally, 0, NOW, NOW), Next::Stop { .. });
        assert!(!stops(tally(2, 2)), "too few have ended");
        assert!(stops(tally(1, 4)) && !stops(tally(1, 5)));
        let never = Terms { stop_at: None, ..terms(100, 0, 4) };
        assert!(matches!(next(&never, &tally(90, 0), 0, NOW, NOW), Next::Release { .. }));
    }

    #[test]
    fn f2_a_plan_says_what_becomes_of_each() {
        assert_eq!(fate(None, &[]), Fate::Run);
        assert_eq!(fate(None, &[effect("a", EffectState::Unknown)]), Fate::Ask);
        let protected = Effect { class: Idempotency::Header, ..effect("a", EffectState::Unknown) };
        assert_eq!(fate(None, &[protected]), Fate::Run);
        let ledger =
            [effect("a", done()), effect("b", EffectState::NotDone), effect("c", done()), effect("undo:c", done())];
        assert_eq!(kept(&ledger).collect::<Vec<_>>(), ["a"], "what was undone is done again");
    }

    #[test]
    fn i1_each_line_of_the_ledger_says_what_a_replay_does_with_it() {
        let check = |state: EffectState, class, expected| {
            let line = Effect { class, ..effect("a", state.clone()) };
            assert_eq!(again(&line, &[]), Some(expected), "{state:?} {class:?}");
        };
        check(done(), Idempotency::None, Again::Skipped);
        check(EffectState::NotDone, Idempotency::None, Again::Runs);
        check(EffectState::GivenUp(Reason::TargetDown), Idempotency::None, Again::Runs);
        for state in [EffectState::Open, EffectState::Unknown, EffectState::GivenUp(Reason::UnknownOutcome)] {
            check(state.clone(), Idempotency::Header, Again::Runs);
            check(state.clone(), Idempotency::Natural, Again::Runs);
            check(state.clone(), Idempotency::Lookup, Again::LooksUp);
            check(state.clone(), Idempotency::Wrap, Again::AsksFirst);
            check(state, Idempotency::None, Again::AsksFirst);
        }
        let ledger = [effect("a", done()), effect("undo:a", done()), effect("a@2", done()), effect("end:1", done())];
        assert_eq!(
            [0, 1, 2, 3].map(|line| again(&ledger[line], &ledger)),
            [Some(Again::Runs), None, Some(Again::Skipped), None]
        );
    }

    #[test]
    fn f3_the_end_of_a_job_is_that_of_its_own_replay() {
        assert_eq!(ended(1, Some((Word::Success, 1))), Some(ItemState::Success));
        assert_eq!(ended(1, Some((Word::Queued, 1))), None);
        assert_eq!(ended(1, Some((Word::Dead, 1))), Some(ItemState::Failed));
        assert_eq!(
            ended(1, Some((Word::Success, 2))),
            Some(ItemState::Failed),
            "it died before somebody else replayed it"
        );
        assert_eq!(ended(1, None), Some(ItemState::Changed));
    }

    #[test]
    fn f2_a_job_of_a_plan_stands_behind_all_that_is_live() {
        for priority in [-100, 0, 100] {
            assert!(behind(priority) < PRIORITY_MIN);
            assert_eq!((own(behind(priority)), own(priority)), (priority, priority));
            assert_eq!(behind(behind(priority)), behind(priority));
        }
    }
}
