//! How things are at the moment of a scrape, and the text that Prometheus reads.

use super::book::Names;
use super::label::*;
use super::metrics::Metrics;
use super::plain::plain;
use crate::partners::Seen;
use clinch_core::config::Workspace;
use clinch_core::control::Controls;
use clinch_core::slo;
use clinch_core::time::Timestamp;
use clinch_store::approval::Undecided;
use clinch_store::read::{Counts, Health};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// How things are now.
pub struct Sight {
    pub workspace: Arc<Workspace>,
    pub counts: Counts,
    pub health: Health,
    /// Effects of each integration that need a person.
    pub unresolved: BTreeMap<String, i64>,
    /// Entities that have nothing left, of each budget.
    pub exhausted: Vec<(Arc<str>, u64)>,
    pub approvals: Vec<Undecided>,
    pub controls: Arc<Controls>,
    /// Live values that do not count.
    pub refused: usize,
    pub partners: Vec<Seen>,
    /// Jobs that safe mode holds, by its scope.
    pub held: Vec<(String, u64)>,
    pub burn: Vec<slo::Burn>,
    pub now: Timestamp,
}

/// What a reader of metrics understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    /// The older format of Prometheus.
    Plain,
}

impl Format {
    /// By the header `Accept` of a request.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Plain }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Metrics {
    pub fn render(&self, sight: &Sight, format: Format) -> String {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        self.forget();
        self.book.begin(&Names::of(&sight.workspace));
        self.show_jobs(&sight.counts, sight.now);
        self.show_people(sight);
        self.show_controls(sight);
        self.show_partners(&sight.partners);
        for burn in &sight.burn {
            let labels = ByWindow { window: burn.window.word.into() };
            self.slo_burn.get_or_create(&labels).set(burn.rate.unwrap_or_default());
        }
        self.store.look(&sight.health);
        let text = self.book.text();
        match format {
            Format::OpenMetrics => text,
            Format::Plain => plain(&text),
        }
    }

    /// What was so at the last scrape.
    fn forget(&self) {
        self.jobs.clear();
        self.waiting.clear();
        self.oldest.clear();
        self.dead.clear();
        self.dead_oldest.clear();
        self.approvals_pending.clear();
        self.approval_oldest.clear();
        self.unresolved.clear();
        self.budget_exhausted.clear();
        self.paused.clear();
        self.safe_modes.clear();
        self.safe_mode_held.clear();
        self.integration_in_flight.clear();
        self.limit_ratio.clear();
    }

    fn show_jobs(&self, counts: &Counts, now: Timestamp) {
        for (flow, word, jobs) in &counts.live {
            let labels = ByFlowState { flow: flow.into(), state: word.as_str().into() };
            self.jobs.get_or_create(&labels).set(whole(*jobs));
        }
        for waiting in &counts.waiting {
            let labels = ByFlowWhy { flow: (&waiting.flow).into(), why: waiting.waits.word().into() };
            self.waiting.get_or_create(&labels).set(whole(waiting.jobs));
        }
        for (flow, word, since) in &counts.oldest {
            let labels = ByFlowState { flow: flow.into(), state: word.as_str().into() };
            self.oldest.get_or_create(&labels).set(now.since(*since).as_secs_f64());
        }
        for (flow, reason, jobs) in &counts.dead {
            let labels = ByFlowReason { flow: flow.into(), reason: reason.word().into() };
            self.dead.get_or_create(&labels).set(whole(*jobs));
        }
        for (flow, since) in &counts.oldest_dead {
            self.dead_oldest.get_or_create(&ByFlow { flow: flow.into() }).set(now.since(*since).as_secs_f64());
        }
    }

    /// What waits for people.
    fn show_people(&self, sight: &Sight) {
        for waiting in &sight.approvals {
            let flow = ByFlow { flow: (&waiting.flow).into() };
            self.approvals_pending.get_or_create(&flow).set(whole(waiting.approvals));
            self.approval_oldest.get_or_create(&flow).set(sight.now.since(waiting.oldest).as_secs_f64());
        }
        for (name, effects) in &sight.unresolved {
            self.unresolved.get_or_create(&ByIntegration { integration: name.into() }).set(*effects);
        }
        for (budget, entities) in &sight.exhausted {
            self.budget_exhausted.get_or_create(&ByBudget { budget: budget.into() }).set(whole(*entities));
        }
    }

    /// What operators have switched. Scopes name what is in a workspace: they are few.
    fn show_controls(&self, sight: &Sight) {
        let (controls, now) = (&sight.controls, sight.now);
        for pause in controls.pauses(now) {
            self.paused.get_or_create(&ByScope { scope: (&pause.scope.to_string()).into() }).set(1);
        }
        for mode in controls.safe_modes() {
            let labels = ByScope { scope: (&mode.scope.to_string()).into() };
            self.safe_modes.get_or_create(&labels).set(i64::from(mode.is_on(now)));
        }
        for (scope, jobs) in &sight.held {
            self.safe_mode_held.get_or_create(&ByScope { scope: scope.into() }).set(whole(*jobs));
        }
        self.live_settings.set(i64::try_from(controls.live(now).count()).unwrap_or(i64::MAX));
        self.live_settings_refused.set(i64::try_from(sight.refused).unwrap_or(i64::MAX));
    }

    fn show_partners(&self, partners: &[Seen]) {
        for seen in partners {
            let labels = ByIntegration { integration: (&seen.name).into() };
            let in_flight = i64::try_from(seen.in_flight).unwrap_or(i64::MAX);
            self.integration_in_flight.get_or_create(&labels).set(in_flight);
            if let Some(used) = seen.rate_used {
                self.limit_ratio.get_or_create(&labels).set(used);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h1_a_reader_gets_the_format_that_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        for other in ["", "*/*", "text/plain"] {
            assert_eq!(Format::accepted(other), Format::Plain, "{other}");
        }
    }
}
