//! A histogram of times that shows examples: in each of its buckets the trace of the last measurement that somebody records. OpenMetrics
//! calls them exemplars, and a dashboard leads from them to the trace.

use clinch_core::payload::TraceId;
use clinch_core::time::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// By this label dashboards find a trace.
pub const LABEL: &str = "trace_id";

#[derive(Clone, Debug)]
pub struct Timing(HistogramWithExemplars<Example>);

/// Spelt out only when it is asked for.
#[derive(Clone, Debug)]
struct Example(TraceId);

impl Timing {
    pub fn new(buckets: impl IntoIterator<Item = f64>) -> Timing {
        Timing(HistogramWithExemplars::new(buckets.into_iter()))
    }

    /// `example` is the trace of it, if somebody records that.
    pub fn measure(&self, took: Duration, example: Option<TraceId>, now: impl FnOnce() -> Timestamp) {
        let at = example.and_then(|_| {
            let since = Duration::from_micros(u64::try_from(now().as_micros()).ok()?);
            UNIX_EPOCH.checked_add(since)
        });
        self.0.observe(took.as_secs_f64(), example.map(Example), at);
    }
}

impl TypedMetric for Timing {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Timing {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Timing::TYPE
    }
}

impl EncodeLabelSet for Example {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        [(LABEL, self.0.to_string())].encode(encoder)
    }
}
