//! The Grafana dashboard: rows that ask one question each, made of what `telemetry` counts. A test holds that every expression
//! names metrics that there are.

use serde_json::{Value, json};

/// Grafana remembers a dashboard by this.
const UID: &str = "clinch-overview";
const COLUMNS: u32 = 24;
const DATASOURCE: &str = "${datasource}";

struct Row {
    title: &'static str,
    /// The variable for each of whose values there is such a row.
    each: Option<&'static str>,
    panels: Vec<Panel>,
}

struct Panel {
    title: &'static str,
    look: Look,
    unit: &'static str,
    width: u32,
    queries: Vec<Query>,
}

pub struct Query {
    pub expr: String,
    legend: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Number,
    Lines,
    Stacked,
    Heat,
    States,
}

impl Look {
    const fn kind(self) -> &'static str {
        match self {
            Look::Number => "stat",
            Look::Lines | Look::Stacked => "timeseries",
            Look::Heat => "heatmap",
            Look::States => "state-timeline",
        }
    }

    const fn height(self) -> u32 {
        if matches!(self, Look::Number) { 4 } else { 8 }
    }
}

/// A variable: its name, and the metric and label that its values are found in.
const VARIABLES: [(&str, &str, &str); 4] = [
    ("instance", "clinch_build_info", "instance"),
    ("flow", "clinch_jobs_finished_total", "flow"),
    ("source", "clinch_intake_request_duration_seconds_count", "source"),
    ("integration", "clinch_effects_total", "integration"),
];

/// What is drawn across all panels.
const ANNOTATIONS: [(&str, &str); 3] = [
    ("Config versions", "changes(clinch_config_last_reload_success_timestamp_seconds[2m]) > 0"),
    ("Safe mode", "max by (scope) (clinch_safe_mode) == 1"),
    ("Replays", "max(clinch_replay_batches_active) > 0"),
];

/// In expressions, so that they can be read: whose series are meant, of which flow, source or integration.
const SHORT: [(&str, &str); 4] = [
    ("@i", "instance=~\"$instance\""),
    ("@f", "instance=~\"$instance\",flow=~\"$flow\""),
    ("@s", "instance=~\"$instance\",source=~\"$source\""),
    ("@p", "instance=~\"$instance\",integration=~\"$integration\""),
];

/// Histograms whose buckets lead to traces; panels that are drawn of them show these as points.
pub const TRACED: [&str; 4] = [
    "clinch_integration_request_duration_seconds",
    "clinch_intake_request_duration_seconds",
    "clinch_job_end_to_end_seconds",
    "clinch_step_duration_seconds",
];

fn ask(expr: &str, legend: &'static str) -> Query {
    let expr = SHORT.iter().fold(expr.to_string(), |expr, (short, long)| expr.replace(short, long));
    Query { expr, legend }
}

/// One percentile of a histogram.
fn quantile(q: &str, by: &str, series: &str, legend: &'static str) -> Query {
    let by = if by.is_empty() { "le".to_string() } else { format!("{by}, le") };
    ask(&format!("histogram_quantile({q}, sum by ({by}) (rate({series}[$__rate_interval])))"), legend)
}

fn percentiles(series: &str) -> Vec<Query> {
    [("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")].map(|(q, legend)| quantile(q, "", series, legend)).into()
}

fn panel(title: &'static str, look: Look, unit: &'static str, width: u32, queries: Vec<Query>) -> Panel {
    Panel { title, look, unit, width, queries }
}

fn number(title: &'static str, unit: &'static str, expr: &str) -> Panel {
    panel(title, Look::Number, unit, 3, vec![ask(expr, "")])
}

fn rows() -> Vec<Row> {
    let row = |title, panels| Row { title, each: None, panels };
    vec![
        row("Can I go back to bed?", bed()),
        row("Intake", intake()),
        row("Flow of work", work()),
        row("Dead letters and replay", dead()),
        Row { title: "Integration $integration", each: Some("integration"), panels: integrations() },
        row("People", people()),
        row("Machine", machine()),
    ]
}

/// What many nodes of an installation tell alike is told once.
fn bed() -> Vec<Panel> {
    vec![
        number(
            "Intake ok",
            "percentunit",
            "1 - sum(rate(clinch_intake_requests_total{@i,outcome=\"store_error\"}[5m])) / sum(rate(clinch_intake_requests_total{@i}[5m]))",
        ),
        panel(
            "End to end p95, and the objective",
            Look::Number,
            "s",
            4,
            vec![
                ask(
                    "histogram_quantile(0.95, sum by (le) (rate(clinch_job_end_to_end_seconds_bucket{@f}[15m])))",
                    "p95",
                ),
                ask("max(clinch_slo_objective_seconds{@i})", "objective"),
            ],
        ),
        panel(
            "Burn rate of the objective",
            Look::Number,
            "none",
            5,
            vec![ask("max by (window) (clinch_slo_burn_rate{@i})", "{{window}}")],
        ),
        number("Oldest job", "s", "max(clinch_job_oldest_age_seconds{@f})"),
        number("Dead letters", "none", "sum(max by (flow, reason) (clinch_dlq_jobs{@f}))"),
        number("Unknown effects", "none", "sum(max by (integration) (clinch_effects_unresolved{@p}))"),
        number("Circuits open", "none", "sum(max by (integration) (clinch_circuit_state{@p,state=\"open\"}))"),
        number("Safe mode", "none", "max(clinch_safe_mode{@i})"),
        number(
            "Effects protected from repetition, 24 h",
            "percentunit",
            "sum(increase(clinch_effects_protected_total{@i,protected=\"yes\"}[24h])) / sum(increase(clinch_effects_protected_total{@i}[24h]))",
        ),
        number(
            "Dead letters replayed well within 24 h",
            "percentunit",
            "sum(increase(clinch_replayed_in_day_total{@i}[24h])) / sum(increase(clinch_dlq_entered_total{@f}[24h]))",
        ),
        number(
            "Time to first signal, mean of 7 days",
            "s",
            "sum(rate(clinch_time_to_first_signal_seconds_sum{@i}[7d])) / sum(rate(clinch_time_to_first_signal_seconds_count{@i}[7d]))",
        ),
    ]
}

fn intake() -> Vec<Panel> {
    vec![
        panel(
            "Requests by outcome",
            Look::Stacked,
            "reqps",
            8,
            vec![ask(
                "sum by (outcome) (rate(clinch_intake_requests_total{@i,source=~\"$source|\"}[$__rate_interval]))",
                "{{outcome}}",
            )],
        ),
        panel(
            "Time to the answer",
            Look::Lines,
            "s",
            8,
            percentiles("clinch_intake_request_duration_seconds_bucket{@s}"),
        ),
        panel(
            "Duplicates stopped",
            Look::Lines,
            "ops",
            8,
            vec![
                ask("sum by (layer) (rate(clinch_dedup_short_circuits_total{@f}[$__rate_interval]))", "{{layer}}"),
                ask(
                    "sum(rate(clinch_intake_requests_total{@s,outcome=\"duplicate\"}[5m])) / sum(rate(clinch_intake_requests_total{@s,outcome=~\"accepted|duplicate\"}[5m]))",
                    "share of deliveries",
                ),
            ],
        ),
        panel(
            "Bad signatures and conflicts",
            Look::Lines,
            "reqps",
            12,
            vec![ask(
                "sum by (source, outcome) (rate(clinch_intake_requests_total{@s,outcome=~\"bad_signature|stale_timestamp|conflict\"}[$__rate_interval]))",
                "{{source}} {{outcome}}",
            )],
        ),
        panel(
            "Time since the last event",
            Look::Lines,
            "s",
            12,
            vec![ask(
                "time() - (max by (source) (clinch_intake_last_accepted_timestamp_seconds{@s}) > 0)",
                "{{source}}",
            )],
        ),
    ]
}

fn work() -> Vec<Panel> {
    vec![
        panel(
            "Jobs by state",
            Look::Stacked,
            "none",
            8,
            vec![ask("sum by (state) (max by (flow, state) (clinch_jobs{@f}))", "{{state}}")],
        ),
        panel(
            "Waiting for",
            Look::Stacked,
            "none",
            8,
            vec![ask("sum by (why) (max by (flow, why) (clinch_jobs_waiting{@f}))", "{{why}}")],
        ),
        panel(
            "Ended",
            Look::Stacked,
            "ops",
            8,
            vec![ask("sum by (outcome) (rate(clinch_jobs_finished_total{@f}[$__rate_interval]))", "{{outcome}}")],
        ),
        panel(
            "p95: waiting for a worker, one step, end to end",
            Look::Lines,
            "s",
            8,
            vec![
                quantile("0.95", "", "clinch_job_wait_seconds_bucket{@f}", "wait"),
                quantile("0.95", "", "clinch_step_duration_seconds_bucket{@f}", "step"),
                quantile("0.95", "", "clinch_job_end_to_end_seconds_bucket{@f}", "end to end"),
            ],
        ),
        panel(
            "Attempts per job",
            Look::Heat,
            "none",
            8,
            vec![ask("sum by (le) (increase(clinch_job_tries_bucket{@f}[$__rate_interval]))", "{{le}}")],
        ),
        panel(
            "End to end",
            Look::Heat,
            "s",
            8,
            vec![ask("sum by (le) (increase(clinch_job_end_to_end_seconds_bucket{@f}[$__rate_interval]))", "{{le}}")],
        ),
        panel(
            "Steps by outcome",
            Look::Stacked,
            "ops",
            12,
            vec![ask("sum by (outcome) (rate(clinch_step_attempts_total{@f}[$__rate_interval]))", "{{outcome}}")],
        ),
        panel(
            "Nothing to do, by why",
            Look::Stacked,
            "ops",
            12,
            vec![ask("sum by (why) (rate(clinch_noops_total{@f}[$__rate_interval]))", "{{why}}")],
        ),
    ]
}

fn dead() -> Vec<Panel> {
    vec![
        panel(
            "New in an hour, by reason",
            Look::Stacked,
            "none",
            6,
            vec![ask("sum by (reason) (increase(clinch_dlq_entered_total{@f}[1h]))", "{{reason}}")],
        ),
        panel(
            "Oldest",
            Look::Lines,
            "s",
            6,
            vec![ask("max by (flow) (clinch_dlq_oldest_age_seconds{@f})", "{{flow}}")],
        ),
        panel(
            "Left in an hour, by how",
            Look::Stacked,
            "none",
            6,
            vec![ask("sum by (how) (increase(clinch_dlq_left_total{@f}[1h]))", "{{how}}")],
        ),
        panel(
            "Replays",
            Look::Lines,
            "none",
            6,
            vec![
                ask("sum by (outcome) (increase(clinch_replay_jobs_total{@f}[1h]))", "{{outcome}} in an hour"),
                ask("max(clinch_replay_batches_active{@i})", "plans that run"),
            ],
        ),
    ]
}

fn integrations() -> Vec<Panel> {
    vec![
        panel(
            "Circuit",
            Look::States,
            "none",
            24,
            vec![ask("max by (integration, state) (clinch_circuit_state{@p})", "{{integration}} {{state}}")],
        ),
        panel(
            "The partner's time",
            Look::Lines,
            "s",
            6,
            percentiles("clinch_integration_request_duration_seconds_bucket{@p}"),
        ),
        panel(
            "Calls by class",
            Look::Stacked,
            "reqps",
            6,
            vec![ask(
                "sum by (code_class) (rate(clinch_integration_request_duration_seconds_count{@p}[$__rate_interval]))",
                "{{code_class}}",
            )],
        ),
        panel(
            "Our own limits",
            Look::Lines,
            "none",
            6,
            vec![
                ask("sum by (integration) (clinch_integration_limit_ratio{@p})", "{{integration}}: rate in use"),
                quantile(
                    "0.95",
                    "integration",
                    "clinch_integration_throttle_wait_seconds_bucket{@p}",
                    "{{integration}}: wait p95, s",
                ),
                ask("sum by (integration) (clinch_integration_in_flight{@p})", "{{integration}}: in flight"),
            ],
        ),
        panel(
            "Effects by outcome",
            Look::Stacked,
            "ops",
            6,
            vec![ask("sum by (outcome) (rate(clinch_effects_total{@p}[$__rate_interval]))", "{{outcome}}")],
        ),
    ]
}

fn people() -> Vec<Panel> {
    vec![
        panel(
            "Approvals",
            Look::Lines,
            "none",
            8,
            vec![
                ask("sum(max by (flow) (clinch_approvals_pending{@f}))", "waiting"),
                ask("max(clinch_approval_oldest_age_seconds{@f}) / 60", "oldest, minutes"),
                ask("sum by (decision) (increase(clinch_approvals_total{@f}[1h]))", "{{decision}} in an hour"),
            ],
        ),
        panel(
            "What people did in an hour",
            Look::Stacked,
            "none",
            8,
            vec![ask("sum by (action) (increase(clinch_console_actions_total{@i}[1h]))", "{{action}}")],
        ),
        panel(
            "Budgets",
            Look::Lines,
            "none",
            8,
            vec![
                ask(
                    "sum by (budget) (rate(clinch_budget_refusals_total{@i}[$__rate_interval]))",
                    "{{budget}}: refusals/s",
                ),
                ask("max by (budget) (clinch_budget_entities_exhausted{@i})", "{{budget}}: with nothing left"),
            ],
        ),
    ]
}

fn machine() -> Vec<Panel> {
    vec![
        panel(
            "Commits",
            Look::Lines,
            "s",
            8,
            vec![
                quantile("0.95", "", "clinch_store_commit_duration_seconds_bucket{@i}", "p95"),
                ask("sum by (op) (rate(clinch_store_errors_total{@i}[$__rate_interval]))", "{{op}} errors/s"),
            ],
        ),
        panel(
            "Store",
            Look::Lines,
            "bytes",
            8,
            vec![
                ask("max by (kind) (clinch_store_bytes{@i})", "{{kind}}"),
                ask("min(clinch_store_free_bytes{@i})", "free"),
            ],
        ),
        number(
            "Days until the disk is full",
            "d",
            "min(clinch_store_free_bytes{@i} / clamp_min(-deriv(clinch_store_free_bytes{@i}[6h]), 1e-9)) / 86400",
        ),
        panel(
            "Workers",
            Look::Lines,
            "none",
            8,
            vec![
                ask("sum by (state) (clinch_workers{@i})", "{{state}}"),
                ask("sum(increase(clinch_lease_expirations_total{@f}[1h]))", "taken back in an hour"),
            ],
        ),
        panel(
            "Process",
            Look::Lines,
            "none",
            8,
            vec![
                ask(
                    "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) clinch_build_info{@i}",
                    "{{instance}}: cores",
                ),
                ask(
                    "process_resident_memory_bytes / 2^20 and on (instance) clinch_build_info{@i}",
                    "{{instance}}: MiB",
                ),
                ask("process_open_fds and on (instance) clinch_build_info{@i}", "{{instance}}: files"),
            ],
        ),
        panel(
            "Scripts",
            Look::Lines,
            "s",
            8,
            vec![
                quantile("0.95", "runtime", "clinch_script_duration_seconds_bucket{@i}", "{{runtime}} p95"),
                ask(
                    "sum by (runtime, why) (increase(clinch_script_kills_total{@i}[1h]))",
                    "{{runtime}} ended: {{why}}",
                ),
            ],
        ),
        panel(
            "Signals that did not get out, in an hour",
            Look::Lines,
            "none",
            8,
            vec![
                ask("sum by (signal) (increase(clinch_otlp_export_failures_total{@i}[1h]))", "{{signal}}"),
                ask("sum(increase(clinch_notifications_total{@i,outcome!=\"sent\"}[1h])) or vector(0)", "notices"),
            ],
        ),
    ]
}

/// Every expression of the panels, with the title of its panel.
pub fn queries() -> Vec<(&'static str, Query)> {
    let panels = rows().into_iter().flat_map(|row| row.panels);
    panels.flat_map(|panel| panel.queries.into_iter().map(move |query| (panel.title, query))).collect()
}

/// The dashboard, as Grafana imports it.
pub fn document() -> Value {
    let mut panels = Vec::new();
    let mut next = Place { id: 1, x: 0, y: 0, height: 0 };
    for row in rows() {
        next.line();
        let mut head = json!({ "type": "row", "title": row.title, "collapsed": false, "panels": [] });
        head["id"] = next.id.into();
        head["gridPos"] = json!({ "x": 0, "y": next.y, "w": COLUMNS, "h": 1 });
        if let Some(variable) = row.each {
            head["repeat"] = variable.into();
        }
        panels.push(head);
        (next.id, next.y) = (next.id + 1, next.y + 1);
        for panel in &row.panels {
            panels.push(told(panel, next.take(panel.width, panel.look.height())));
        }
    }
    json!({
        "uid": UID,
        "title": "clinch",
        "tags": ["clinch"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": variables() },
        "annotations": { "list": ANNOTATIONS.map(annotation) },
        "panels": panels,
    })
}

/// Where the next panel goes.
struct Place {
    id: u32,
    x: u32,
    y: u32,
    /// Of the line that is being filled.
    height: u32,
}

impl Place {
    fn line(&mut self) {
        (self.x, self.y, self.height) = (0, self.y + self.height, 0);
    }

    fn take(&mut self, width: u32, height: u32) -> Value {
        if self.x + width > COLUMNS {
            self.line();
        }
        let taken = json!({ "id": self.id, "gridPos": { "x": self.x, "y": self.y, "w": width, "h": height } });
        (self.id, self.x, self.height) = (self.id + 1, self.x + width, self.height.max(height));
        taken
    }
}

fn told(panel: &Panel, mut place: Value) -> Value {
    let letters = "ABCDEFGH".chars();
    let format = if panel.look == Look::Heat { "heatmap" } else { "time_series" };
    let target = |(letter, query): (char, &Query)| {
        json!({
            "refId": letter.to_string(),
            "datasource": { "type": "prometheus", "uid": DATASOURCE },
            "expr": query.expr,
            "legendFormat": query.legend,
            "format": format,
            "instant": panel.look == Look::Number,
            "exemplar": panel.look != Look::Number && TRACED.iter().any(|metric| query.expr.contains(metric)),
        })
    };
    let mut defaults = json!({ "unit": panel.unit });
    if panel.look == Look::Stacked {
        defaults["custom"] = json!({ "stacking": { "mode": "normal" }, "fillOpacity": 30 });
    }
    place["type"] = panel.look.kind().into();
    place["title"] = panel.title.into();
    place["datasource"] = json!({ "type": "prometheus", "uid": DATASOURCE });
    place["fieldConfig"] = json!({ "defaults": defaults, "overrides": [] });
    place["targets"] = letters.zip(&panel.queries).map(target).collect();
    place
}

fn variables() -> Vec<Value> {
    let source = json!({ "name": "datasource", "type": "datasource", "query": "prometheus" });
    let named = VARIABLES.iter().map(|(name, metric, label)| {
        json!({
            "name": name,
            "type": "query",
            "datasource": { "type": "prometheus", "uid": DATASOURCE },
            "query": format!("label_values({metric}, {label})"),
            "refresh": 2,
            "includeAll": true,
            "allValue": ".*",
            "multi": true,
            "current": { "text": "All", "value": "$__all" },
        })
    });
    std::iter::once(source).chain(named).collect()
}

fn annotation((name, expr): (&str, &str)) -> Value {
    json!({
        "name": name,
        "datasource": { "type": "prometheus", "uid": DATASOURCE },
        "expr": expr,
        "enable": true,
        "iconColor": "blue",
        "step": "60s",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Metrics;
    use std::collections::BTreeSet;

    #[test]
    fn h7_the_dashboard_names_only_metrics_that_there_are() {
        let mut asked: Vec<String> = queries().into_iter().map(|(_, query)| query.expr).collect();
        asked.extend(ANNOTATIONS.map(|(_, expr)| expr.to_string()));
        asked.extend(VARIABLES.map(|(_, metric, _)| metric.to_string()));
        for expr in &asked {
            let named = Metrics::named_in(expr);
            assert!(!named.is_empty(), "{expr} names no metric");
            for name in named {
                assert!(Metrics::has(&name), "{expr} names {name}, which there is not");
            }
        }
        // Each family of the metrics is looked at somewhere.
        let all: BTreeSet<String> = asked.iter().flat_map(|expr| Metrics::named_in(expr)).collect();
        assert!(all.len() > 40, "{all:?}");
    }

    #[test]
    fn h7_a_metric_that_there_is_not_would_be_found() {
        assert_eq!(
            Metrics::named_in(
                "sum by (clinch_x) (rate(clinch_nothing_total{a=\"clinch_quoted\"}[5m])) / process_nothing"
            ),
            ["clinch_x", "clinch_nothing_total", "process_nothing"]
        );
        assert!(!Metrics::has("clinch_nothing_total") && Metrics::has("clinch_job_tries_bucket"));
        assert!(!Metrics::has("clinch_jobs_bucket"), "a gauge has no buckets");
    }

    #[test]
    fn h7_panels_do_not_lie_on_each_other() {
        let document = document();
        let panels = document["panels"].as_array().expect("a list");
        let mut taken = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in panels {
            assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
            let side = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
            for x in side("x")..side("x") + side("w") {
                assert!(x < u64::from(COLUMNS), "{}", panel["title"]);
                for y in side("y")..side("y") + side("h") {
                    assert!(taken.insert((x, y)), "{} lies on another", panel["title"]);
                }
            }
        }
        assert!(panels.len() > 40, "{}", panels.len());
    }
}
