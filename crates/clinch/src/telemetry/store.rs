//! What the store counts by itself, told as of the last look.

use super::book::{Entry, Kind};
use clinch_store::read::{COMMIT_SECONDS, Health};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Debug, Default)]
pub struct StoreMetrics(Arc<Mutex<Option<Health>>>);

const COMMITS: (&str, &str) = ("clinch_store_commit_duration_seconds", "One transaction, its sync included");
const ERRORS: (&str, &str) = ("clinch_store_errors_total", "What the store could not do");
const BYTES: (&str, &str) = ("clinch_store_bytes", "Size of the store: what is kept, and its log");
const FREE: (&str, &str) =
    ("clinch_store_free_bytes", "Room left on its disk; absent where the database does not tell");
const PENDING: (&str, &str) = ("clinch_store_pending_verbs", "Changes that wait for a commit");

impl StoreMetrics {
    pub fn entries() -> Vec<Entry> {
        let entry = |(name, help), kind, labels, words| Entry { name, kind, labels, words, help };
        vec![
            entry(COMMITS, Kind::Histogram, &[], Vec::new()),
            entry(ERRORS, Kind::Counter, &["op"], vec![("op", vec!["read", "write", "fsync", "compact"])]),
            entry(BYTES, Kind::Gauge, &["kind"], vec![("kind", vec!["data", "log"])]),
            entry(FREE, Kind::Gauge, &[], Vec::new()),
            entry(PENDING, Kind::Gauge, &[], Vec::new()),
        ]
    }

    pub fn look(&self, health: &Health) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(health.clone());
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let health = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(health) = health else { return Ok(()) };
        let borders = COMMIT_SECONDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = borders.zip(health.commit_times.iter().copied()).collect();
        encoder
            .encode_descriptor(COMMITS.0, COMMITS.1, None, MetricType::Histogram)?
            .encode_histogram::<[(&str, &str); 0]>(health.commit_seconds, health.commits, &buckets, None)?;
        let name = ERRORS.0.strip_suffix("_total").unwrap_or(ERRORS.0);
        let mut errors = encoder.encode_descriptor(name, ERRORS.1, None, MetricType::Counter)?;
        let counted = [
            ("read", health.errors.read),
            ("write", health.errors.write),
            ("fsync", health.errors.fsync),
            ("compact", health.errors.compact),
        ];
        for (op, counted) in counted {
            ConstCounter::new(counted).encode(errors.encode_family(&[("op", op)])?)?;
        }
        let mut bytes = encoder.encode_descriptor(BYTES.0, BYTES.1, None, MetricType::Gauge)?;
        for (kind, size) in [("data", health.bytes.saturating_sub(health.log_bytes)), ("log", health.log_bytes)] {
            ConstGauge::new(size as f64).encode(bytes.encode_family(&[("kind", kind)])?)?;
        }
        if let Some(free) = health.room() {
            let metric = encoder.encode_descriptor(FREE.0, FREE.1, None, MetricType::Gauge)?;
            ConstGauge::new(free as f64).encode(metric)?;
        }
        let metric = encoder.encode_descriptor(PENDING.0, PENDING.1, None, MetricType::Gauge)?;
        ConstGauge::new(health.pending_verbs as f64).encode(metric)
    }
}
