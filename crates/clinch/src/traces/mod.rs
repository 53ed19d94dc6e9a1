//! Passes traces on to a collector, beside the work and never in its way: what is told waits in a queue with an end, and a collector that
//! is slow, away or hung costs spans and nothing else.

mod collector;
mod otlp;

use crate::secrets::Secrets;
use crate::telemetry::{BySignal, Metrics};
use crate::trust::tls_config;
use clinch_core::config::filled;
use clinch_core::trace::{Protocol, Rule, Span};
use collector::{Collector, NotTold};
use otlp::Resource;
use prometheus_client::metrics::counter::Counter;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

/// Where the collector is, unless the workspace says it.
pub const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// So many spans are told at once.
const BATCH_MAX: usize = 512;
/// The first of a batch waits so long for others.
const GATHER: Duration = Duration::from_millis(500);
/// A collector has so long to take a batch.
const TELL_TIMEOUT: Duration = Duration::from_secs(10);
/// So often a batch is told before it is given up, with these pauses between.
const TELLS_MAX: u32 = 4;
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// When the house is left, what is still waiting has so long.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the workspace says, and the environment where it says nothing. `None`: nobody is told.
pub fn endpoint(rule: &Rule) -> Option<String> {
    let from_environment = || std::env::var(ENDPOINT).ok().filter(|endpoint| !endpoint.is_empty());
    rule.endpoint.clone().or_else(from_environment)
}

/// Who passes spans on.
pub struct Exporter {
    collector: Collector,
    resource: Resource,
    spans: Receiver<Span>,
    dropped: Counter,
    failures: Counter,
    /// It did not take the last batch.
    is_away: bool,
    stop: CancellationToken,
}

impl Exporter {
    pub fn new(
        endpoint: &str,
        rule: &Rule,
        (secrets, metrics): (&Secrets, &Metrics),
        dice: u128,
        spans: Receiver<Span>,
        stop: CancellationToken,
    ) -> Result<Exporter, String> {
        let mut headers = Vec::new();
        for (name, value) in &rule.headers {
            let value = filled(value, |secret| secrets.get(secret)).map_err(|error| error.to_string())?;
            headers.push((name.clone(), value));
        }
        Ok(Exporter {
            collector: Collector::new(endpoint, rule.protocol, &headers, tls_config()?)?,
            resource: Resource { service: rule.service.clone(), instance: format!("{dice:032x}") },
            spans,
            dropped: metrics.spans_dropped.clone(),
            failures: metrics.exports_failed.get_or_create_owned(&BySignal { signal: "traces".into() }),
            is_away: false,
            stop,
        })
    }

    /// Tells the collector until it is stopped, and then for a moment what was told last.
    pub async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while self.gather(&mut batch).await {
            self.tell(&batch).await;
            batch.clear();
        }
        let _ = tokio::time::timeout(FAREWELL, async {
            loop {
                while batch.len() < BATCH_MAX
                    && let Ok(span) = self.spans.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() {
                    return;
                }
                self.tell(&batch).await;
                batch.clear();
            }
        })
        .await;
    }

    /// The next batch; `false` when it is stopped.
    async fn gather(&mut self, batch: &mut Vec<Span>) -> bool {
        let (spans, stop) = (&mut self.spans, &self.stop);
        tokio::select! {
            biased;
            () = stop.cancelled() => return false,
            got = spans.recv_many(batch, BATCH_MAX) => if got == 0 { return false },
        }
        let more =
            async { while batch.len() < BATCH_MAX && spans.recv_many(batch, BATCH_MAX - batch.len()).await > 0 {} };
        tokio::select! {
            () = more => {}
            () = tokio::time::sleep(GATHER) => {}
            () = stop.cancelled() => {}
        }
        true
    }

    async fn tell(&mut self, batch: &[Span]) {
        let message = otlp::request(&self.resource, batch);
        let mut pause = PAUSE_FIRST;
        for nth in 1..=TELLS_MAX {
            let told = tokio::select! {
                told = tokio::time::timeout(TELL_TIMEOUT, self.collector.tell(&message)) => told,
                // Who leaves waits no longer than for the farewell.
                told = cut_off(&self.stop) => Ok(Err(told)),
            };
            let why = match told.unwrap_or_else(|_| Err(NotTold::Later("it did not answer in time".into()))) {
                Ok(()) => return self.note(None),
                Err(why) => why,
            };
            self.failures.inc();
            self.note(Some(&why));
            if nth == TELLS_MAX || matches!(why, NotTold::Never(_)) || self.stop.is_cancelled() {
                break;
            }
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = self.stop.cancelled() => {} }
            pause *= 2;
        }
        self.dropped.inc_by(batch.len() as u64);
    }

    /// Says once that it went away, and once that it is back.
    fn note(&mut self, why: Option<&NotTold>) {
        let was_away = std::mem::replace(&mut self.is_away, why.is_some());
        match why {
            Some(why) if !was_away => tracing::warn!(
                "the collector of traces does not take them: {why}; work goes on, and what it misses is counted in clinch_otlp_dropped_spans_total"
            ),
            None if was_away => tracing::info!("the collector of traces is back"),
            _ => {}
        }
    }
}

/// A moment after the stop.
async fn cut_off(stop: &CancellationToken) -> NotTold {
    stop.cancelled().await;
    tokio::time::sleep(FAREWELL / 2).await;
    NotTold::Later("it did not answer before clinch stopped".into())
}

/// What is said at the start.
pub fn greeting(endpoint: &str, rule: &Rule) -> String {
    let way = match rule.protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
    };
    format!("{endpoint} ({way}, {} of traces)", rule.share)
}
