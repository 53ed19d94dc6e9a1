//! What happened on this node, minute by minute since its start: what the metrics had counted by then, noted once a minute.
//! Who works pays nothing for it, and what other nodes did is not in it.

use crate::house::House;
use crate::telemetry::{ByFlowOutcome, ByFlowResult, ByLayerFlow, BySourceOutcome, IntakeOutcome, Metrics};
use clinch_core::config::Workspace;
use clinch_core::slo::{self, Burn, Counted, Slo};
use clinch_core::time::Timestamp;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const NOTE_EVERY: Duration = Duration::from_secs(60);
/// A day, and the moment at which it began.
const NOTES_MAX: usize = 24 * 60 + 1;

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests at the door, by how they ended.
    intake: [u64; IntakeOutcome::ALL.len()],
    pub success: u64,
    pub noop: u64,
    pub dead: u64,
    /// Effects that were not repeated.
    pub effects_saved: u64,
    /// Jobs that ended for the first time, and those of them that missed the objective.
    pub slo: Counted,
    /// Dead letters that ended well by a replay, within a day.
    pub replayed_in_day: u64,
}

impl Totals {
    /// As the metrics say now.
    pub fn of(metrics: &Metrics, workspace: &Workspace) -> Totals {
        let mut totals = Totals::default();
        let doors: BTreeSet<&str> = workspace.entrances().map(|way| way.to.1).collect();
        for door in doors {
            for outcome in IntakeOutcome::ALL {
                let labels = BySourceOutcome { source: (&door.to_string()).into(), outcome: outcome.word().into() };
                totals.intake[outcome as usize] += metrics.intake_requests.get_or_create(&labels).get();
            }
        }
        for flow in &workspace.flows {
            let ended = |outcome: &'static str| {
                let labels = ByFlowOutcome { flow: (&flow.name).into(), outcome: outcome.into() };
                metrics.finished.get_or_create(&labels).get()
            };
            totals.success += ended("success");
            totals.noop += ended("noop");
            totals.dead += ended("dead_letter");
            let saved = ByLayerFlow { layer: "effect".into(), flow: (&flow.name).into() };
            totals.effects_saved += metrics.short_circuits.get_or_create(&saved).get();
        }
        // The objective is for what runs by the clock, too.
        let scheduled = workspace.schedules().map(|(worker, _)| &worker.name);
        for name in workspace.flows.iter().map(|flow| &flow.name).chain(scheduled) {
            let of = |result: &'static str| {
                let labels = ByFlowResult { flow: name.into(), result: result.into() };
                metrics.slo_jobs.get_or_create(&labels).get()
            };
            let (good, bad) = (of("good"), of("bad"));
            totals.slo = Counted { jobs: totals.slo.jobs + good + bad, missed: totals.slo.missed + bad };
        }
        totals.replayed_in_day = metrics.replayed_in_day.get();
        totals
    }

    pub fn at_the_door(&self, outcome: IntakeOutcome) -> u64 {
        self.intake[outcome as usize]
    }

    /// Requests that were turned away.
    pub fn rejected(&self) -> u64 {
        IntakeOutcome::REJECTED.into_iter().map(|outcome| self.at_the_door(outcome)).sum()
    }

    pub fn since(&self, before: &Totals) -> Totals {
        let mut intake = self.intake;
        intake.iter_mut().zip(before.intake).for_each(|(now, then)| *now = now.saturating_sub(then));
        Totals {
            intake,
            success: self.success.saturating_sub(before.success),
            noop: self.noop.saturating_sub(before.noop),
            dead: self.dead.saturating_sub(before.dead),
            effects_saved: self.effects_saved.saturating_sub(before.effects_saved),
            slo: Counted {
                jobs: self.slo.jobs.saturating_sub(before.slo.jobs),
                missed: self.slo.missed.saturating_sub(before.slo.missed),
            },
            replayed_in_day: self.replayed_in_day.saturating_sub(before.replayed_in_day),
        }
    }
}

/// What was counted by the end of each minute, the oldest first. Never empty: it begins when the house does, with nothing.
#[derive(Debug)]
pub struct Minutes {
    pub start: Timestamp,
    notes: Mutex<VecDeque<(Timestamp, Totals)>>,
}

/// A part of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub since: Timestamp,
    pub counted: Totals,
}

impl Minutes {
    pub fn new(start: Timestamp) -> Minutes {
        Minutes { start, notes: Mutex::new(VecDeque::from([(start, Totals::default())])) }
    }

    pub fn note(&self, at: Timestamp, totals: Totals) {
        let mut notes = self.notes();
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back((at, totals));
    }

    /// What was counted in a window that ends now, in so many parts. Before the house began nothing was.
    pub fn window(&self, now: (Timestamp, Totals), window: Duration, parts: u32) -> Vec<Part> {
        let notes = self.notes();
        let (start, step) = (now.0 - window, window / parts.max(1));
        // What was counted by then, as far as it was noted.
        let by = |at: Timestamp| {
            let place = notes.partition_point(|(noted, _)| *noted <= at).saturating_sub(1);
            notes.get(place).map_or_else(Totals::default, |(_, totals)| *totals)
        };
        let mut before = by(start);
        (0..parts)
            .map(|nth| {
                let since = start + step * nth;
                let totals = if nth + 1 == parts { now.1 } else { by(since + step) };
                let counted = totals.since(&before);
                before = totals;
                Part { since, counted }
            })
            .collect()
    }

    /// How fast each window spends what may miss the objective.
    pub fn burns(&self, now: (Timestamp, Totals), slo: &Slo) -> Vec<Burn> {
        let counted = |span| self.window(now, span, 1).first().map_or_else(Counted::default, |part| part.counted.slo);
        slo::WINDOWS.into_iter().map(|window| slo.burn(window, counted(window.span))).collect()
    }

    fn notes(&self) -> MutexGuard<'_, VecDeque<(Timestamp, Totals)>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes until the house is left.
pub async fn run(house: House) {
    let mut beat = tokio::time::interval(NOTE_EVERY);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    beat.tick().await;
    loop {
        tokio::select! {
            () = house.stop.cancelled() => return,
            _ = beat.tick() => {}
        }
        house.minutes.note(house.clock.now(), Totals::of(&house.metrics, &house.versions.workspace()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Timestamp {
        Timestamp::from_micros(1_790_000_000_000_000) + Duration::from_secs(60 * minutes)
    }

    fn so_far(success: u64) -> Totals {
        Totals { success, ..Totals::default() }
    }

    fn counted(minutes: &Minutes, now: (Timestamp, Totals), window: u64, parts: u32) -> Vec<u64> {
        let parts = minutes.window(now, Duration::from_secs(60 * window), parts);
        parts.iter().map(|part| part.counted.success).collect()
    }

    #[test]
    fn i1_a_window_has_what_was_counted_in_it_part_by_part() {
        let minutes = Minutes::new(at(0));
        (1..=10).for_each(|nth| minutes.note(at(nth), so_far(nth * 10)));
        assert_eq!(counted(&minutes, (at(10), so_far(103)), 4, 4), [10, 10, 10, 13]);
        assert_eq!(counted(&minutes, (at(10), so_far(100)), 4, 1), [40]);
    }

    #[test]
    fn i1_before_the_house_began_nothing_was_counted() {
        let minutes = Minutes::new(at(5));
        minutes.note(at(6), so_far(3));
        assert_eq!(counted(&minutes, (at(7), so_far(8)), 4, 4), [0, 0, 3, 5]);
    }

    #[test]
    fn h5_what_a_window_spends_of_the_objective_is_counted_in_that_window() {
        let minutes = Minutes::new(at(0));
        let so_far = |jobs, missed| Totals { slo: Counted { jobs, missed }, ..Totals::default() };
        (1..=60).for_each(|nth| minutes.note(at(nth), so_far(nth * 10, if nth > 58 { nth * 10 - 580 } else { 0 })));
        let burns = minutes.burns((at(60), so_far(600, 20)), &Slo::default());
        let told: Vec<_> =
            burns.iter().map(|burn| (burn.window.word, burn.counted.jobs, burn.counted.missed)).collect();
        assert_eq!(told, [("5m", 50, 20), ("30m", 300, 20), ("1h", 600, 20), ("6h", 600, 20)]);
    }

    #[test]
    fn i1_only_a_day_is_remembered() {
        let minutes = Minutes::new(at(0));
        (1..=2_000).for_each(|nth| minutes.note(at(nth), so_far(nth)));
        assert_eq!(minutes.notes().len(), NOTES_MAX);
        assert_eq!(counted(&minutes, (at(2_000), so_far(2_000)), 24 * 60, 1), [1_440]);
    }
}
