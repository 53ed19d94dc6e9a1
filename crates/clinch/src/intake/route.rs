//! Which flow a request is for.

use super::answer::Answer;
use super::shared::KeyStore;
use super::source::SourceDoor;
use crate::house::House;
use crate::placing::JobRule;
use crate::secrets::Secrets;
use crate::telemetry::{ByLayerFlow, BySource, BySourceOutcome, IntakeOutcome, Label, Timing};
use crate::workspace::Now;
use clinch_core::flow::{Flow, Method, Route};
use clinch_core::key::{self, KeyPart, KeyRule, NoKey, Pepper};
use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use clinch_store::{NewJob, VersionId};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

pub struct Routes {
    doors: HashMap<String, Vec<Door>>,
    /// By path.
    sources: HashMap<String, SourceDoor>,
}

/// One route, with everything that answering it needs.
pub struct Door {
    pub flow: Arc<str>,
    /// The workspace that it is of; its jobs run that one.
    pub version: VersionId,
    pub route: Route,
    /// The scope of its keys, besides the tenant.
    pub scope: String,
    /// Where its keys are shared with other installations, if they are.
    pub shared: Option<Arc<KeyStore>>,
    pub reads_body: bool,
    jobs: Vec<JobRule>,
    /// The key rules of its jobs; empty where each has the delivery's own key.
    job_keys: Vec<KeyRule>,
    pub status: u16,
    pub metrics: DoorMetrics,
}

impl Routes {
    pub fn of(house: &House, now: &Now, pepper: &Pepper, stores: &[Arc<KeyStore>]) -> Routes {
        let mut doors: HashMap<String, Vec<Door>> = HashMap::new();
        let workspace = &now.plain;
        for flow in &workspace.flows {
            for route in &flow.routes {
                let rule = route.dedup.as_ref();
                let tenant_in_body = matches!(route.tenant, Some(KeyPart::Body(_)));
                let jobs: Vec<JobRule> = flow
                    .enqueue
                    .iter()
                    .map(|step| JobRule::of(workspace, &flow.name, step, route.tenant.is_some(), pepper))
                    .collect();
                doors.entry(route.path.clone()).or_default().push(Door {
                    flow: Arc::from(flow.name.as_str()),
                    version: now.live,
                    scope: route.scope(),
                    shared: rule.and_then(|rule| stores.iter().find(|store| store.name() == rule.store)).cloned(),
                    reads_body: tenant_in_body
                        || route.find_by.iter().any(|part| !matches!(part, KeyPart::Header(_)))
                        || rule.is_some_and(|rule| rule.key.reads_body())
                        || flow.enqueue.iter().any(|job| job.key.as_ref().is_some_and(KeyRule::reads_body))
                        || jobs.iter().any(|job| job.reads_body()),
                    jobs,
                    job_keys: job_keys(flow, route),
                    status: flow.answer.status,
                    metrics: DoorMetrics::of(house, &flow.name, [&flow.name]),
                    route: route.clone(),
                });
            }
        }
        let sources = workspace
            .sources
            .iter()
            .map(|source| (source.path.clone(), SourceDoor::new(house, now, pepper, stores, source)));
        Routes { doors, sources: sources.collect() }
    }

    /// Takes what the secrets of the sources say now.
    pub fn renew(&self, secrets: &Secrets) {
        self.sources.values().for_each(|door| door.renew(secrets));
    }

    /// The door of the source that has this path.
    pub fn source(&self, path: &str) -> Option<&SourceDoor> {
        self.sources.get(path)
    }

    /// Paths are matched whole, byte for byte: there is one spelling of each.
    pub fn find(&self, method: &hyper::Method, path: &str) -> Result<&Door, Answer> {
        let doors = self.doors.get(path).ok_or_else(Answer::not_found)?;
        doors.iter().find(|door| method == door.route.method.word()).ok_or_else(|| {
            let allowed: Vec<&str> = doors.iter().map(|door| Method::word(door.route.method)).collect();
            Answer::wrong_method(&allowed.join(", "))
        })
    }
}

/// A flow whose jobs differ in their keys has a rule for each of them.
fn job_keys(flow: &Flow, route: &Route) -> Vec<KeyRule> {
    let own = route.dedup.as_ref().map(|rule| &rule.key);
    let rules: Vec<Option<&KeyRule>> = flow.enqueue.iter().map(|job| job.key.as_ref().or(own)).collect();
    if rules.iter().all(|rule| *rule == own) { Vec::new() } else { rules.into_iter().flatten().cloned().collect() }
}

impl Door {
    /// The jobs of a delivery.
    pub fn jobs(
        &self,
        pepper: &Pepper,
        tenant: &str,
        delivery: &dyn key::Delivery,
        received_at: Timestamp,
    ) -> Result<Vec<NewJob>, NoKey> {
        self.jobs.iter().map(|rule| rule.job(pepper, tenant, delivery, received_at)).collect()
    }

    /// The keys of the jobs, where they are not the delivery's own.
    pub fn job_keys(&self, delivery: &dyn key::Delivery) -> Result<Vec<String>, NoKey> {
        self.job_keys.iter().map(|rule| key::find(rule, delivery)).collect()
    }
}

/// The counters of a door, looked up once.
pub struct DoorMetrics {
    outcomes: Vec<Counter>,
    seconds: Timing,
    bytes: Histogram,
    last_accepted: Gauge<f64, AtomicU64>,
    /// Of the flows whose work a delivery is that came again.
    short_circuits: Vec<Counter>,
}

impl DoorMetrics {
    pub fn of<'f>(house: &House, name: &str, flows: impl IntoIterator<Item = &'f String>) -> DoorMetrics {
        let metrics = &house.metrics;
        let source = Label::from(&name.to_string());
        let by_source = BySource { source: source.clone() };
        let outcome = |outcome: IntakeOutcome| {
            let labels = BySourceOutcome { source: source.clone(), outcome: outcome.word().into() };
            metrics.intake_requests.get_or_create_owned(&labels)
        };
        let saved = |flow: &String| {
            metrics.short_circuits.get_or_create_owned(&ByLayerFlow { layer: "intake".into(), flow: flow.into() })
        };
        DoorMetrics {
            outcomes: IntakeOutcome::at_a_door().map(outcome).collect(),
            seconds: metrics.intake_seconds.get_or_create_owned(&by_source),
            bytes: metrics.intake_bytes.get_or_create_owned(&by_source),
            last_accepted: metrics.last_accepted.get_or_create_owned(&by_source),
            short_circuits: flows.into_iter().map(saved).collect(),
        }
    }

    /// `example` is the trace of it, if somebody records that.
    pub fn count(&self, outcome: IntakeOutcome, took: Duration, example: Option<TraceId>, now: impl Fn() -> Timestamp) {
        self.outcomes[outcome as usize].inc();
        self.seconds.measure(took, example, &now);
        match outcome {
            IntakeOutcome::Accepted => {
                self.last_accepted.set(now().seconds_f64());
            }
            IntakeOutcome::Duplicate => {
                self.short_circuits.iter().for_each(|saved| {
                    saved.inc();
                });
            }
            _ => {}
        }
    }

    pub fn body(&self, bytes: usize) {
        self.bytes.observe(bytes as f64);
    }
}
