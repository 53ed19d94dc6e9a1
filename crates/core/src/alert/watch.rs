//! The watch: what is found from one look to the next becomes alerts that begin, last and end.
//!
//! Several nodes watch together. What one of them sees alone, such as its own circuit, is kept alive by it: it says every
//! `SEEN_EVERY` that it still sees it. An alert ends when nobody has said so for `UNSEEN`, by the clock of whoever ends it, so
//! that clocks that differ end nothing.

use super::{Alert, Found, Name, OPEN_MAX, Routes, Rule};
use crate::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often a node says that it still sees an alert.
pub const SEEN_EVERY: Duration = Duration::from_secs(3);
/// An alert that nobody has seen for so long is over.
pub const UNSEEN: Duration = Duration::from_secs(9);

/// An alert as it is stored: the how-manieth of its name, and its version, which grows with each change.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    pub no: i64,
    pub version: i64,
    pub alert: Alert,
}

/// What one node remembers between two looks.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// When it was found first, of what is found now.
    pending: BTreeMap<Name, Timestamp>,
    /// What others, or we, said last of an alert, and since when it is the last.
    heard: BTreeMap<Name, (Timestamp, Timestamp)>,
}

/// What has to be written down.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Raise(Alert),
    /// It is still so; with this value.
    See {
        name: Name,
        value: f64,
    },
    Resolve {
        name: Name,
    },
}

impl Watch {
    /// `found` is what is wrong now, `open` are the alerts that have not ended.
    pub fn step(
        &mut self,
        found: &[(&'static Rule, Found)],
        open: &[Episode],
        routes: &Routes,
        now: Timestamp,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let open: BTreeMap<Name, &Alert> =
            open.iter().filter(|one| one.alert.is_firing()).map(|one| (one.alert.name(), &one.alert)).collect();
        let mut seen = BTreeSet::new();
        for (rule, found) in found {
            let name = Name { rule: rule.name.into(), values: found.values.clone() };
            let first = *self.pending.entry(name.clone()).or_insert(now);
            seen.insert(name.clone());
            if let Some(alert) = open.get(&name) {
                if now.since(alert.seen_at) >= SEEN_EVERY || alert.seen_at > now + UNSEEN {
                    steps.push(Step::See { name, value: found.value });
                }
            } else if now.since(first) >= routes.after(rule) && open.len() + steps.len() < OPEN_MAX {
                steps.push(Step::Raise(raise(rule, found, first, routes, now)));
            }
        }
        self.pending.retain(|name, _| seen.contains(name));
        self.heard.retain(|name, _| open.contains_key(name));
        for (name, alert) in open {
            let heard = self.heard.entry(name.clone()).or_insert((alert.seen_at, now));
            if heard.0 != alert.seen_at || seen.contains(&name) {
                *heard = (alert.seen_at, now);
            } else if now.since(heard.1) >= UNSEEN {
                steps.push(Step::Resolve { name });
            }
        }
        steps
    }
}

fn raise(rule: &Rule, found: &Found, first: Timestamp, routes: &Routes, now: Timestamp) -> Alert {
    let labels = rule.labels.iter().zip(&found.values).map(|(label, value)| (label.to_string(), value.clone()));
    Alert {
        rule: rule.name.into(),
        labels: labels.collect(),
        severity: routes.severity(rule),
        value: found.value,
        limit: routes.limit(rule),
        fault_at: found.since.map_or(first, |since| since.min(first)),
        fired_at: now,
        seen_at: now,
        resolved_at: None,
        signal_at: None,
        told: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, after};
    use super::*;
    use proptest::prelude::*;

    /// A watch with the rows that it writes.
    #[derive(Default)]
    struct World {
        watch: Watch,
        open: Vec<Episode>,
        raised: usize,
        resolved: usize,
    }

    impl World {
        fn look(&mut self, found: &[(&'static Rule, Found)], now: Timestamp) {
            for step in self.watch.step(found, &self.open, &Routes::default(), now) {
                let at = |open: &Vec<Episode>, name: &Name| {
                    open.iter().rposition(|one| one.alert.name() == *name).expect("it is there")
                };
                match step {
                    Step::Raise(alert) => {
                        self.raised += 1;
                        self.open.push(Episode { no: 1, version: 1, alert });
                    }
                    Step::See { name, .. } => {
                        let at = at(&self.open, &name);
                        self.open[at].alert.seen_at = now;
                    }
                    Step::Resolve { name } => {
                        self.resolved += 1;
                        let at = at(&self.open, &name);
                        self.open[at].alert.resolved_at = Some(now);
                    }
                }
            }
        }
    }

    fn found(rule: &str, value: &str) -> (&'static Rule, Found) {
        (Rule::find(rule).expect("a rule"), Found::of(&[value], 1.0))
    }

    #[test]
    fn h4_an_alert_begins_once_lasts_and_ends_when_nobody_sees_it() {
        let mut world = World::default();
        let open = [found("ClinchCircuitOpen", "crm")];
        (0..60).for_each(|second| world.look(&open, after(second)));
        assert_eq!((world.raised, world.resolved, world.open[0].alert.fired_at), (1, 0, NOW));
        (60..68).for_each(|second| world.look(&[], after(second)));
        assert_eq!(world.resolved, 0, "not yet");
        world.look(&[], after(68));
        assert_eq!((world.raised, world.resolved), (1, 1));
        world.look(&open, after(70));
        assert_eq!(world.raised, 2, "another time");
    }

    #[test]
    fn h4_what_must_last_is_not_said_before() {
        let mut world = World::default();
        let budget = [found("ClinchBudgetExhausted", "orders")];
        (0..60).for_each(|second| world.look(&budget, after(second)));
        assert_eq!(world.raised, 0);
        world.look(&[], after(60));
        (61..121).for_each(|second| world.look(&budget, after(second)));
        assert_eq!(world.raised, 0, "it began anew");
        world.look(&budget, after(121));
        assert_eq!((world.raised, world.open[0].alert.fault_at), (1, after(61)));
    }

    #[test]
    fn h4_after_a_restart_an_alert_that_lasts_is_the_same() {
        let mut world = World::default();
        let budget = [found("ClinchBudgetExhausted", "orders")];
        (0..=60).for_each(|second| world.look(&budget, after(second)));
        world.watch = Watch::default();
        (600..700).for_each(|second| world.look(&budget, after(second)));
        assert_eq!((world.raised, world.resolved), (1, 0));
        world.watch = Watch::default();
        (900..909).for_each(|second| world.look(&[], after(second)));
        assert_eq!(world.resolved, 0, "who has just come has not looked for long enough");
        world.look(&[], after(909));
        assert_eq!(world.resolved, 1);
    }

    #[test]
    fn h4_what_another_node_sees_is_not_ended_by_one_whose_clock_differs() {
        let mut world = World::default();
        world.look(&[found("ClinchCircuitOpen", "crm")], NOW);
        let mut other = Watch::default();
        for second in 0..60 {
            world.look(&[found("ClinchCircuitOpen", "crm")], after(second));
            // An hour ahead.
            let steps = other.step(&[], &world.open, &Routes::default(), after(second + 3_600));
            assert_eq!(steps, []);
        }
        let mut steps = Vec::new();
        (60..75)
            .for_each(|second| steps.extend(other.step(&[], &world.open, &Routes::default(), after(second + 3_600))));
        assert!(matches!(steps[0], Step::Resolve { .. }), "nobody sees it any more: {steps:?}");
    }

    #[test]
    fn h4_no_more_are_open_than_may_be() {
        let many: Vec<_> = (0..OPEN_MAX + 100).map(|nth| found("ClinchCircuitOpen", &format!("p{nth}"))).collect();
        let mut world = World::default();
        world.look(&many, NOW);
        world.look(&many, after(1));
        assert_eq!(world.open.len(), OPEN_MAX);
    }

    proptest! {
        /// Whatever is found when: one alert of a name is open at a time, it fires only when found, and none ends while it is.
        #[test]
        fn h4_alerts_begin_and_end_in_turn(looks in proptest::collection::vec((any::<[bool; 3]>(), 1u64..8), 1..80)) {
            let names = ["a", "b", "c"];
            let mut world = World::default();
            let mut now = NOW;
            for (wrong, pause) in looks {
                now = now + Duration::from_secs(pause);
                let wrong: Vec<_> =
                    names.iter().zip(wrong).filter(|(_, is)| *is).map(|(name, _)| found("ClinchCircuitOpen", name)).collect();
                world.look(&wrong, now);
                for name in names {
                    let open = world.open.iter().filter(|one| one.alert.is_firing() && one.alert.label("integration") == Some(name));
                    prop_assert!(open.count() <= 1);
                }
                for (_, found) in &wrong {
                    let is_open = |one: &&Episode| one.alert.is_firing() && one.alert.name().values == found.values;
                    prop_assert!(world.open.iter().any(|one| is_open(&one)), "what is found is open");
                }
                for ended in world.open.iter().filter_map(|one| one.alert.resolved_at.map(|at| (at, &one.alert))) {
                    prop_assert!(ended.0 >= ended.1.seen_at + UNSEEN || ended.0 >= ended.1.fired_at + UNSEEN);
                }
            }
        }
    }
}
