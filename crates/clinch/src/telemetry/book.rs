//! The book: every metric there is, with its kind, its labels and what it means. A metric gets into the text that Prometheus
//! reads only through here; so lists, documents and dashboards can name no other, and every series that can be known
//! beforehand is there from the start, at zero.

use super::label::{Label, Labels};
use super::timing::Timing;
use clinch_core::config::Workspace;
use clinch_core::safe_mode::SafeScope;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub type Float = Gauge<f64, AtomicU64>;
pub type Counters<L> = Family<L, Counter>;
pub type Gauges<L> = Family<L, Gauge>;
pub type Floats<L> = Family<L, Float>;
pub type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
pub type Timings<L> = Family<L, Timing, fn() -> Timing>;

/// The values that a label can have, where they are a fixed list.
pub type Words = Vec<(&'static str, Vec<&'static str>)>;

/// A metric, as it is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As Prometheus sees it, with its suffix.
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub words: Words,
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }

    fn of(kind: MetricType) -> Kind {
        match kind {
            MetricType::Counter => Kind::Counter,
            MetricType::Histogram => Kind::Histogram,
            _ => Kind::Gauge,
        }
    }
}

/// The names of a workspace that are values of labels.
pub struct Names(BTreeMap<&'static str, Vec<Label>>);

impl Names {
    pub fn of(workspace: &Arc<Workspace>) -> Names {
        let flows = workspace.flows.iter().map(|flow| &flow.name);
        let own = workspace.flows.iter().filter(|flow| !flow.routes.is_empty()).map(|flow| &flow.name);
        let budgets = workspace.workers.iter().filter_map(|worker| worker.retry.budget.as_ref());
        let scopes = SafeScope::all(std::slice::from_ref(workspace));
        Names(BTreeMap::from([
            ("flow", flows.chain(workspace.schedules().map(|(worker, _)| &worker.name)).map(Label::from).collect()),
            ("source", own.chain(workspace.sources.iter().map(|source| &source.name)).map(Label::from).collect()),
            ("integration", workspace.partners().map(|partner| Label::from(&partner.name)).collect()),
            ("budget", budgets.map(|budget| Label::from(&budget.name)).collect()),
            ("policy", workspace.policies.iter().map(|policy| Label::from(&policy.name)).collect()),
            ("store", workspace.settings.kv.iter().map(|kv| Label::from(&kv.name)).collect()),
            ("scope", scopes.iter().map(|scope| Label::from(&scope.to_string())).collect()),
        ]))
    }

    fn get(&self, label: &str) -> Option<Vec<Label>> {
        self.0.get(label).cloned()
    }
}

/// Makes the series of a metric exist that can be known beforehand.
type Zero = Box<dyn Fn(&Names) + Send + Sync>;

#[derive(Default)]
pub struct Book {
    registry: Registry,
    entries: Vec<Entry>,
    zeros: Vec<Zero>,
}

impl Book {
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Makes what can be known beforehand exist. What exists stays as it is.
    pub fn begin(&self, names: &Names) {
        self.zeros.iter().for_each(|zero| zero(names));
    }

    /// In the format of OpenMetrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }

    /// What tells its values when it is asked.
    pub fn collector(&mut self, collector: Box<dyn prometheus_client::collector::Collector>, entries: &[Entry]) {
        self.registry.register_collector(collector);
        self.entries.extend_from_slice(entries);
    }

    pub fn counter(&mut self, name: &'static str, help: &'static str) -> Counter {
        self.alone(name, help, Counter::default())
    }

    pub fn gauge(&mut self, name: &'static str, help: &'static str) -> Gauge {
        self.alone(name, help, Gauge::default())
    }

    pub fn float(&mut self, name: &'static str, help: &'static str) -> Float {
        self.alone(name, help, Float::default())
    }

    pub fn histogram(&mut self, name: &'static str, help: &'static str, make: fn() -> Histogram) -> Histogram {
        self.alone(name, help, make())
    }

    pub fn counters<L: Labels>(&mut self, name: &'static str, help: &'static str, words: Words) -> Counters<L> {
        self.family(name, help, words, Family::default())
    }

    pub fn gauges<L: Labels>(&mut self, name: &'static str, help: &'static str, words: Words) -> Gauges<L> {
        self.family(name, help, words, Family::default())
    }

    pub fn floats<L: Labels>(&mut self, name: &'static str, help: &'static str, words: Words) -> Floats<L> {
        self.family(name, help, words, Family::default())
    }

    /// Of which only those exist that mean something.
    pub fn some_gauges<L: Labels>(&mut self, name: &'static str, help: &'static str, words: Words) -> Gauges<L> {
        self.enter(name, help, words, Family::default())
    }

    /// Likewise.
    pub fn some_floats<L: Labels>(&mut self, name: &'static str, help: &'static str, words: Words) -> Floats<L> {
        self.enter(name, help, words, Family::default())
    }

    pub fn histograms<L: Labels>(
        &mut self,
        name: &'static str,
        help: &'static str,
        words: Words,
        make: fn() -> Histogram,
    ) -> Histograms<L> {
        self.family(name, help, words, Family::new_with_constructor(make))
    }

    pub fn timings<L: Labels>(
        &mut self,
        name: &'static str,
        help: &'static str,
        words: Words,
        make: fn() -> Timing,
    ) -> Timings<L> {
        self.family(name, help, words, Family::new_with_constructor(make))
    }

    fn alone<M>(&mut self, name: &'static str, help: &'static str, metric: M) -> M
    where
        M: EncodeMetric + TypedMetric + Clone + Debug + Send + Sync + 'static,
    {
        self.register(name, help, &[], Vec::new(), M::TYPE, metric.clone());
        metric
    }

    /// A family that begins at zero, unless one of its labels is neither a name of the workspace nor of a fixed list.
    fn family<L, M, C>(
        &mut self,
        name: &'static str,
        help: &'static str,
        words: Words,
        family: Family<L, M, C>,
    ) -> Family<L, M, C>
    where
        L: Labels,
        M: EncodeMetric + TypedMetric + Clone + Debug + Send + Sync + 'static,
        C: MetricConstructor<M> + Clone + Send + Sync + 'static,
    {
        let (zeroed, fixed) = (family.clone(), words.clone());
        self.zeros.push(Box::new(move |names| {
            for values in all_of(L::NAMES, &fixed, names) {
                let _ = zeroed.get_or_create(&L::with(values));
            }
        }));
        self.enter(name, help, words, family)
    }

    fn enter<L, M, C>(
        &mut self,
        name: &'static str,
        help: &'static str,
        words: Words,
        family: Family<L, M, C>,
    ) -> Family<L, M, C>
    where
        L: Labels,
        M: EncodeMetric + TypedMetric + Debug + Send + Sync + 'static,
        C: MetricConstructor<M> + Clone + Send + Sync + 'static,
    {
        self.register(name, help, L::NAMES, words, M::TYPE, family.clone());
        family
    }

    fn register(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
        words: Words,
        kind: MetricType,
        metric: impl EncodeMetric + Debug + Send + Sync + 'static,
    ) {
        // The format adds the suffix of a counter by itself.
        self.registry.register(name.strip_suffix("_total").unwrap_or(name), help, metric);
        self.entries.push(Entry { name, kind: Kind::of(kind), labels, words, help });
    }
}

/// Every combination of the values that these labels can have; none if the values of one are not known.
fn all_of(labels: &[&str], words: &Words, names: &Names) -> Vec<Vec<Label>> {
    let mut all: Vec<Vec<Label>> = vec![Vec::new()];
    for label in labels {
        let fixed = words.iter().find(|(of, _)| of == label).map(|(_, words)| words);
        let values = fixed.map(|words| words.iter().copied().map(Label::Word).collect()).or_else(|| names.get(label));
        let Some(values) = values else { return Vec::new() };
        all = all
            .iter()
            .flat_map(|before: &Vec<Label>| {
                values.iter().map(|value| before.iter().cloned().chain([value.clone()]).collect())
            })
            .collect();
    }
    all
}
