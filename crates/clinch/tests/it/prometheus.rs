//! A real Prometheus, of the distribution's package: it understands what a busy house tells, every question of the dashboard has an
//! answer, and a rule fires while a partner is down.

use crate::world::{Answer, OK, PATIENCE, Reply, World};
use clinch::dashboard;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A machine that is busy with other tests takes its time.
const LONG: Duration = Duration::from_secs(120);

const SETTINGS: &str = "
slo: {end_to_end: 10m, target: 90%}
integrations:
  crm:
    base_url: http://TARGET
    idempotency: header
    rate: 200/s
    concurrency: 8
    breaker: {errors_percent: 50, window: 10m, min_calls: 5, open_for: 30s}
";

/// Asks people where the event says so, computes, runs a script, and calls a partner.
const WORKER: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3, budget_per_contact: 2, on_exhausted: dlq:orders-dlq}
run:
  - name: review
    if: body.ask
    approval:
      title: Shall we?
  - name: shape
    transform: {order: '{{ body.order }}'}
  - name: count
    uses: bash
    on_unknown: retry
    script: |
      echo '{\"n\": 1}'
  - name: charge
    if: not body.idle
    http: {integration: crm, url: /charge, body_from: body}
";

async fn world() -> World {
    World::new(&[("clinch.yml", SETTINGS), ("workers/charge.yml", WORKER)]).await
}

fn body(contact: &str, ask: bool) -> String {
    json!({"order": 7, "contact_id": contact, "ask": ask, "idle": false}).to_string()
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < LONG, "{what} never came");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// All that a house does: successes, duplicates, conflicts, retries, budgets, dead letters, replays, approvals, safe mode.
async fn traffic(world: &World, wave: usize) {
    let key = |name: &str| format!("{name}-{wave}");
    for nth in 0..5 {
        world.wait(world.post(&key(&format!("fine-{nth}")), &body("a", false)).await.job(), Word::Success).await;
    }
    assert!(world.post(&key("fine-0"), &body("a", false)).await.is_replayed());
    world.post(&key("fine-0"), "{}").await.check_problem(422, "idempotency-key-reused");
    world.deliver("/nowhere", &[], "").await.check_problem(404, "not-found");
    let idle = json!({"order": 7, "contact_id": "a", "ask": false, "idle": true}).to_string();
    world.post_and_wait(&key("idle"), &idle, Word::Success).await;

    // Two retries are paid for, and a third would not be.
    world
        .target
        .script("/charge", [Reply::Status(503), Reply::Status(503), Reply::Status(503), Reply::Status(503), OK]);
    let dead = world.post(&key("dead"), &body("b", false)).await.job();
    world.wait(dead, Word::Dead).await;
    let spent = world.post(&key("spent"), &body("b", false)).await.job();
    world.wait(spent, Word::Dead).await;
    replay(world, dead).await;
    let plan = world.command("/api/v1/replays", json!({"query": "flow:orders"})).await.json();
    let id = plan["plan"]["id"].as_str().unwrap_or_else(|| panic!("no plan: {plan}")).to_string();
    let started = world.command(&format!("/api/v1/replays/{id}/start"), json!({"reason": "the CRM is back"})).await;
    assert_eq!(started.status, 200, "{started:?}");
    world.wait_until(spent, "replayed", |story| story.row.word == Word::Success).await;

    let asked = world.post(&key("asked"), &body("c", true)).await.job();
    world.wait_until(asked, "asked", |story| story.row.waits == Some(Waits::Approval)).await;
    let decide = format!("/api/v1/approvals/{asked}/review/decide");
    let decided = world.command(&decide, json!({"vote": "approve", "reason": "it is fine"})).await;
    assert_eq!(decided.status, 200, "{decided:?}");
    world.wait(asked, Word::Success).await;

    let on = world.command("/api/v1/safe-mode", json!({"scope": "integration:crm", "reason": "a look"})).await;
    assert_eq!(on.status, 200, "{on:?}");
    let held = world.post(&key("held"), &body("d", false)).await.job();
    world.wait_until(held, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    let off = world.command("/api/v1/safe-mode/off", json!({"reason": "looked"})).await;
    assert_eq!(off.status, 200, "{off:?}");
    world.wait(held, Word::Success).await;
}

async fn replay(world: &World, job: JobId) {
    assert_eq!(world.replay(job, json!({"reason": "the CRM is back"})).await.json()["replayed"], true);
    world.wait_until(job, "replayed", |story| story.row.word == Word::Success).await;
}

/// promtool, with this on its standard input, must find nothing.
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut tool = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed (the package `prometheus`)");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let said = tool.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "promtool {arguments:?}: {text}");
    text
}

/// A Prometheus of our own, which ends with the test.
struct Prometheus {
    process: Child,
    url: String,
    client: reqwest::Client,
    _dir: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// It asks this house every few seconds, and holds these rules against what it hears.
    async fn start(world: &World, rules: &str) -> Prometheus {
        let dir = tempfile::tempdir().unwrap();
        let admin = world.app().admin.unwrap();
        let config = format!(
            "global: {{scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: clinch
    static_configs: [{{targets: ['{admin}']}}]
"
        );
        std::fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        std::fs::write(dir.path().join("rules.yml"), rules).unwrap();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        // A port that was free a moment ago may be taken by now: then it ends, and another is tried.
        for _ in 0..5 {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut prometheus = Prometheus {
                process: run(dir.path(), port),
                url: format!("http://127.0.0.1:{port}"),
                client: client.clone(),
                _dir: tempfile::tempdir().unwrap(),
            };
            let began = Instant::now();
            while prometheus.process.try_wait().unwrap().is_none() {
                if prometheus.is_ready().await {
                    prometheus._dir = dir;
                    return prometheus;
                }
                assert!(began.elapsed() < LONG, "Prometheus does not get ready");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        panic!("Prometheus does not start: {}", std::fs::read_to_string(dir.path().join("log")).unwrap_or_default());
    }

    async fn is_ready(&self) -> bool {
        let ready = self.client.get(format!("{}/-/ready", self.url)).send().await;
        ready.is_ok_and(|ready| ready.status().is_success())
    }

    /// What it answers to a question: the values, with their labels.
    async fn ask(&self, expr: &str) -> Vec<(Value, f64)> {
        let url = format!("{}/api/v1/query", self.url);
        let url = reqwest::Url::parse_with_params(&url, [("query", expr)]).unwrap();
        let answer = Answer::read(self.client.get(url).send().await.unwrap()).await;
        assert_eq!(answer.status, 200, "{expr}: {}", answer.body);
        let told = answer.json();
        let found = told["data"]["result"].as_array().unwrap();
        let read = |one: &Value| (one["metric"].clone(), one["value"][1].as_str().unwrap().parse().unwrap());
        found.iter().map(read).collect()
    }

    /// What it answers, as soon as it has an answer: after a look at the house that took too long it has none.
    async fn says(&self, expr: &str) -> Vec<(Value, f64)> {
        let mut said = Vec::new();
        eventually(expr, async || {
            said = self.ask(expr).await;
            !said.is_empty()
        })
        .await;
        said
    }
}

impl Prometheus {
    /// The traces that it was shown as examples of a histogram.
    async fn examples(&self, metric: &str) -> BTreeSet<String> {
        let url = format!("{}/api/v1/query_exemplars", self.url);
        let wide = [("query", metric), ("start", "0"), ("end", "99999999999")];
        let url = reqwest::Url::parse_with_params(&url, wide).unwrap();
        let answer = Answer::read(self.client.get(url).send().await.unwrap()).await;
        assert_eq!(answer.status, 200, "{metric}: {}", answer.body);
        let told = answer.json();
        let found = told["data"].as_array().unwrap().iter().flat_map(|of| of["exemplars"].as_array().unwrap());
        found.map(|one| one["labels"]["trace_id"].as_str().unwrap().to_string()).collect()
    }
}

fn run(dir: &Path, port: u16) -> Child {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    Command::new("prometheus")
        .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--enable-feature=exemplar-storage")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("prometheus is installed")
}

/// As Grafana does it, for everybody and everything, and for so long that all that happened is in it.
fn filled_in(expr: &str) -> String {
    let expr = ["instance", "flow", "source", "integration"]
        .iter()
        .fold(expr.to_string(), |expr, name| expr.replace(&format!("${name}"), ".*"));
    expr.replace("$__rate_interval", "10m")
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_h7_prometheus_understands_a_busy_house_and_answers_every_question_of_the_dashboard() {
    let world = world().await;
    let prometheus = Prometheus::start(&world, "groups: []\n").await;
    eventually("a first look", async || prometheus.ask("clinch_build_info").await.len() == 1).await;
    traffic(&world, 0).await;
    promtool(&["check", "metrics"], &world.admin_as(None, "/metrics").await.body);

    let mut unanswered: Vec<(&str, String)> =
        dashboard::queries().into_iter().map(|(panel, query)| (panel, filled_in(&query.expr))).collect();
    let began = Instant::now();
    while !unanswered.is_empty() {
        assert!(began.elapsed() < LONG, "these have no answer: {unanswered:#?}");
        let mut still = Vec::new();
        for (panel, expr) in unanswered {
            let found = prometheus.ask(&expr).await;
            if found.iter().all(|(_, value)| value.is_nan()) {
                still.push((panel, expr));
            }
        }
        unanswered = still;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    // And what they say is what happened.
    let says = async |expr: &str| prometheus.says(expr).await.first().map(|(_, value)| *value);
    eventually("five that were fine", async || {
        says("sum(clinch_jobs_finished_total{outcome=\"success\"})").await.is_some_and(|jobs| jobs >= 8.0)
    })
    .await;
    assert_eq!(says("sum(clinch_intake_requests_total{source=\"\",outcome=\"unknown_source\"})").await, Some(1.0));
    assert!(says("clinch_integration_limit_ratio").await.is_some_and(|ratio| (0.0..=1.0).contains(&ratio)));
    assert_eq!(says("clinch_slo_objective_seconds").await, Some(600.0));
    eventually("two dead letters that were replayed within a day", async || {
        says("clinch_replayed_in_day_total").await == Some(2.0)
            && says("clinch_time_to_replay_seconds_count").await == Some(2.0)
    })
    .await;
    let bad = says("sum(clinch_slo_jobs_total{result=\"bad\"})").await;
    assert_eq!(bad, Some(2.0), "a dead letter misses the objective, and its replay is not counted");
    let done = prometheus.says("clinch_step_duration_seconds_count{step=\"charge\",kind=\"http\"}").await;
    assert!(done.iter().any(|(labels, _)| labels["outcome"] == "ok"), "{done:?}");
    world.close_and_verify().await;
}

/// The rules, as they are printed.
fn printed_rules() -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_clinch")).args(["alerts", "print"]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap()
}

/// What makes each rule fire, minute by minute, and after how many minutes it does; and what is seen of it where all is well.
struct Case {
    rule: &'static str,
    ill: &'static [(&'static str, &'static str)],
    after_minutes: u32,
    well: &'static [(&'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case {
        rule: "ClinchDown",
        ill: &[("up{job='clinch',instance='a'}", "0x10")],
        after_minutes: 5,
        well: &[("up{job='clinch',instance='a'}", "1x200")],
    },
    Case {
        rule: "ClinchIntakeFailing",
        ill: &[
            ("clinch_intake_requests_total{source='shop',outcome='store_error'}", "0+1x30"),
            ("clinch_intake_requests_total{source='shop',outcome='accepted'}", "0+10x30"),
        ],
        after_minutes: 20,
        well: &[
            ("clinch_intake_requests_total{source='shop',outcome='store_error'}", "0x200"),
            ("clinch_intake_requests_total{source='shop',outcome='bad_signature'}", "0x200"),
            ("clinch_intake_requests_total{source='shop',outcome='conflict'}", "0x200"),
            ("clinch_intake_requests_total{source='shop',outcome='accepted'}", "0+10x200"),
        ],
    },
    Case {
        rule: "ClinchStoreFailing",
        ill: &[("clinch_store_errors_total{op='write'}", "0+1x30")],
        after_minutes: 20,
        well: &[("clinch_store_errors_total{op='write'}", "0x200")],
    },
    Case {
        rule: "ClinchStoreAlmostFull",
        ill: &[("clinch_store_free_bytes", "500000000x40")],
        after_minutes: 25,
        well: &[("clinch_store_free_bytes", "50000000000x200")],
    },
    Case {
        rule: "ClinchQueueStalled",
        ill: &[
            ("clinch_job_oldest_age_seconds{flow='orders',state='queued'}", "400x40"),
            ("clinch_jobs_finished_total{flow='orders',outcome='success'}", "5x40"),
        ],
        after_minutes: 30,
        well: &[
            ("clinch_job_oldest_age_seconds{flow='orders',state='queued'}", "1x200"),
            ("clinch_jobs_finished_total{flow='orders',outcome='success'}", "0+5x200"),
        ],
    },
    Case {
        rule: "ClinchEndToEndSlow",
        ill: &[
            ("clinch_job_end_to_end_seconds_bucket{flow='orders',le='30.0'}", "0x50"),
            ("clinch_job_end_to_end_seconds_bucket{flow='orders',le='60.0'}", "0+10x50"),
            ("clinch_job_end_to_end_seconds_bucket{flow='orders',le='+Inf'}", "0+10x50"),
        ],
        after_minutes: 40,
        well: &[
            ("clinch_job_end_to_end_seconds_bucket{flow='orders',le='1.0'}", "0+10x200"),
            ("clinch_job_end_to_end_seconds_bucket{flow='orders',le='+Inf'}", "0+10x200"),
        ],
    },
    // 80 of 100 miss an objective that 5 may miss: sixteen times as fast as they may.
    Case {
        rule: "ClinchObjectiveBurning",
        ill: &[
            ("clinch_slo_jobs_total{flow='orders',result='good'}", "0+2x90"),
            ("clinch_slo_jobs_total{flow='orders',result='bad'}", "0+8x90"),
            ("clinch_slo_target_ratio", "0.95x90"),
        ],
        after_minutes: 70,
        well: &[
            ("clinch_slo_jobs_total{flow='orders',result='good'}", "0+97x200"),
            ("clinch_slo_jobs_total{flow='orders',result='bad'}", "0+3x200"),
            ("clinch_slo_target_ratio", "0.95x200"),
        ],
    },
    // 40 of 100: eight times.
    Case {
        rule: "ClinchObjectiveBurningSlowly",
        ill: &[
            ("clinch_slo_jobs_total{flow='orders',result='good'}", "0+6x450"),
            ("clinch_slo_jobs_total{flow='orders',result='bad'}", "0+4x450"),
            ("clinch_slo_target_ratio", "0.95x450"),
        ],
        after_minutes: 400,
        well: &[],
    },
    Case {
        rule: "ClinchErrorRate",
        ill: &[
            ("clinch_integration_request_duration_seconds_count{integration='crm',code_class='5xx'}", "0+10x30"),
            ("clinch_integration_request_duration_seconds_count{integration='crm',code_class='2xx'}", "0+1x30"),
        ],
        after_minutes: 20,
        well: &[
            ("clinch_integration_request_duration_seconds_count{integration='crm',code_class='5xx'}", "0+1x200"),
            ("clinch_integration_request_duration_seconds_count{integration='crm',code_class='2xx'}", "0+10x200"),
        ],
    },
    Case {
        rule: "ClinchCircuitOpen",
        ill: &[("clinch_circuit_state{integration='crm',state='open'}", "1x30")],
        after_minutes: 20,
        well: &[("clinch_circuit_state{integration='crm',state='open'}", "0x200")],
    },
    Case {
        rule: "ClinchEffectsUnknown",
        ill: &[("clinch_effects_unresolved{integration='crm'}", "2x60")],
        after_minutes: 50,
        well: &[("clinch_effects_unresolved{integration='crm'}", "0x200")],
    },
    Case {
        rule: "ClinchDeadLettersGrowing",
        ill: &[("clinch_dlq_entered_total{flow='orders',reason='timeout'}", "0+1x60")],
        after_minutes: 40,
        well: &[("clinch_dlq_entered_total{flow='orders',reason='timeout'}", "7x200")],
    },
    Case {
        rule: "ClinchDeadLetterOld",
        ill: &[("clinch_dlq_oldest_age_seconds{flow='orders'}", "90000x10")],
        after_minutes: 5,
        well: &[("clinch_dlq_oldest_age_seconds{flow='orders'}", "60x200")],
    },
    Case {
        rule: "ClinchBadSignatures",
        ill: &[
            ("clinch_intake_requests_total{source='shop',outcome='bad_signature'}", "0+1x40"),
            ("clinch_intake_requests_total{source='shop',outcome='accepted'}", "0+1x40"),
        ],
        after_minutes: 30,
        well: &[],
    },
    Case {
        rule: "ClinchKeyConflicts",
        ill: &[("clinch_intake_requests_total{source='shop',outcome='conflict'}", "0x3 1x20")],
        after_minutes: 10,
        well: &[],
    },
    Case {
        rule: "ClinchDedupMisses",
        ill: &[("clinch_intake_same_body_total{source='shop'}", "0+1x60")],
        after_minutes: 30,
        well: &[("clinch_intake_same_body_total{source='shop'}", "1x200")],
    },
    Case {
        rule: "ClinchBudgetExhausted",
        ill: &[("clinch_budget_entities_exhausted{budget='charge'}", "1x60")],
        after_minutes: 30,
        well: &[("clinch_budget_entities_exhausted{budget='charge'}", "0x200")],
    },
    Case {
        rule: "ClinchSourceSilent",
        // The clock of these tests begins at 0, and so does clinch.
        ill: &[
            ("clinch_intake_last_accepted_timestamp_seconds{source='shop'}", "1x60"),
            ("clinch_source_silence_limit_seconds{source='shop'}", "600x60"),
            ("process_start_time_seconds", "0x60"),
        ],
        after_minutes: 30,
        well: &[
            ("clinch_intake_last_accepted_timestamp_seconds{source='shop'}", "0+60x200"),
            ("clinch_source_silence_limit_seconds{source='shop'}", "600x200"),
            ("process_start_time_seconds", "0x200"),
        ],
    },
    Case {
        rule: "ClinchQueueDeep",
        ill: &[("clinch_jobs{flow='orders',state='queued'}", "20000x30")],
        after_minutes: 20,
        well: &[("clinch_jobs{flow='orders',state='queued'}", "20x200")],
    },
    Case {
        rule: "ClinchJobsOld",
        ill: &[("clinch_job_oldest_age_seconds{flow='orders',state='running'}", "4000x30")],
        after_minutes: 20,
        well: &[("clinch_job_oldest_age_seconds{flow='orders',state='waiting'}", "400000x200")],
    },
    Case {
        rule: "ClinchApprovalsOverdue",
        ill: &[("clinch_approval_oldest_age_seconds{flow='orders'}", "4000x10")],
        after_minutes: 5,
        well: &[("clinch_approval_oldest_age_seconds{flow='orders'}", "40x200")],
    },
    Case {
        rule: "ClinchConfigReloadFailed",
        ill: &[("clinch_config_last_reload_successful", "0x20")],
        after_minutes: 15,
        well: &[("clinch_config_last_reload_successful", "1x200")],
    },
    Case {
        rule: "ClinchNotificationsFailing",
        ill: &[("clinch_notifications_total{channel='slack',outcome='error'}", "0+1x30")],
        after_minutes: 20,
        well: &[("clinch_notifications_total{channel='slack',outcome='sent'}", "0+1x200")],
    },
    Case {
        rule: "ClinchSafeModeLong",
        ill: &[("clinch_safe_mode{scope='all'}", "1x200")],
        after_minutes: 150,
        well: &[("clinch_safe_mode{scope='all'}", "0x200")],
    },
    Case {
        rule: "ClinchReplayRunning",
        ill: &[("clinch_replay_batches_active", "1x10")],
        after_minutes: 5,
        well: &[("clinch_replay_batches_active", "0x200")],
    },
];

/// A source that may be silent for 10 minutes: what is seen of it, and whether it is silent at that minute.
struct Silence {
    /// By node: when it accepted something last, and when it began; in seconds.
    nodes: &'static [(&'static str, &'static str)],
    minutes: u32,
    is_silent: bool,
}

const SILENCES: &[Silence] = &[
    // It never sent, and nobody listened before minute 100: it is not silent since 1970.
    Silence { nodes: &[("0", "6000")], minutes: 105, is_silent: false },
    Silence { nodes: &[("0", "6000")], minutes: 120, is_silent: true },
    // It sent before a start, and has its time again.
    Silence { nodes: &[("60", "6000")], minutes: 105, is_silent: false },
    Silence { nodes: &[("60", "6000")], minutes: 120, is_silent: true },
    // Of two nodes one heard it.
    Silence { nodes: &[("0", "0"), ("7000", "0")], minutes: 120, is_silent: false },
    // And one that began just now does not make it less silent.
    Silence { nodes: &[("60", "0"), ("60", "7100")], minutes: 120, is_silent: true },
];

impl Silence {
    fn test(&self) -> Value {
        let mut series =
            vec![("clinch_source_silence_limit_seconds{source='shop'}".to_string(), "600x200".to_string())];
        for (node, (accepted, began)) in self.nodes.iter().enumerate() {
            let accepted_at =
                format!("clinch_intake_last_accepted_timestamp_seconds{{source='shop',instance='{node}'}}");
            series.push((accepted_at, format!("{accepted}x200")));
            series.push((format!("process_start_time_seconds{{instance='{node}'}}"), format!("{began}x200")));
        }
        let series: Vec<(&str, &str)> = series.iter().map(|(series, values)| (&**series, &**values)).collect();
        rule_test(series.iter(), ",alertname=\"ClinchSourceSilent\"", self.minutes, self.is_silent.into())
    }
}

/// A test of promtool: with these series so many alarms of this kind are on at that minute.
fn rule_test<'c>(series: impl Iterator<Item = &'c (&'c str, &'c str)>, alarms: &str, minutes: u32, on: u32) -> Value {
    let series: Vec<Value> = series.map(|(series, values)| json!({"series": series, "values": values})).collect();
    let expr = format!("count(ALERTS{{alertstate=\"firing\"{alarms}}}) or vector(0)");
    let asked =
        json!({"expr": expr, "eval_time": format!("{minutes}m"), "exp_samples": [{"labels": "{}", "value": on}]});
    json!({"interval": "1m", "input_series": series, "promql_expr_test": [asked]})
}

#[test]
fn h4_h7_every_printed_rule_fires_when_it_should_and_none_when_all_is_well() {
    let rules = printed_rules();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let path = file("rules.yml", &rules);
    promtool(&["check", "rules", &path], "");
    let named: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let tried: Vec<&str> = CASES.iter().map(|case| case.rule).collect();
    assert!(named.iter().all(|rule| tried.contains(rule)), "a rule is not tried: {named:?}");
    let ill = CASES
        .iter()
        .map(|case| rule_test(case.ill.iter(), &format!(",alertname=\"{}\"", case.rule), case.after_minutes, 1));
    let well = rule_test(CASES.iter().flat_map(|case| case.well), "", 180, 0);
    let silence = SILENCES.iter().map(Silence::test);
    // JSON is YAML.
    let tests = json!({"rule_files": [path], "tests": ill.chain([well]).chain(silence).collect::<Vec<_>>()});
    promtool(&["test", "rules", &file("tests.yml", &tests.to_string())], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_h7_a_printed_rule_fires_while_a_partner_is_down() {
    let world = world().await;
    // As printed, but that nobody waits for minutes until it counts.
    let rules = printed_rules();
    let hurried: Vec<&str> = rules.lines().filter(|line| !line.trim().starts_with("for: ")).collect();
    assert!(hurried.len() < rules.lines().count());
    let prometheus = Prometheus::start(&world, &(hurried.join("\n") + "\n")).await;
    let firing = "ALERTS{alertname=\"ClinchCircuitOpen\",alertstate=\"firing\"}";
    eventually("a closed circuit", async || {
        prometheus.ask("clinch_circuit_state{integration=\"crm\",state=\"closed\"} == 1").await.len() == 1
    })
    .await;
    assert_eq!(prometheus.ask(firing).await, []);
    world.target.script("/charge", [Reply::Status(503)]);
    for nth in 0..5 {
        world.post(&format!("down-{nth}"), &body(&format!("c-{nth}"), false)).await;
    }
    let alarm = prometheus.says(firing).await;
    assert_eq!((&alarm[0].0["integration"], &alarm[0].0["severity"]), (&json!("crm"), &json!("warning")));
    let states = prometheus.says("clinch_circuit_state{integration=\"crm\"} == 1").await;
    assert_eq!(states.len(), 1, "it is in one state at a time: {states:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_every_series_of_every_flow_source_and_integration_is_there_from_the_start() {
    let world = world().await;
    let text = world.admin_as(None, "/metrics").await.body;
    for series in [
        r#"clinch_intake_requests_total{source="orders",outcome="stale_timestamp"} 0"#,
        r#"clinch_intake_requests_total{source="",outcome="unknown_source"} 0"#,
        r#"clinch_dedup_short_circuits_total{layer="job",flow="orders"} 0"#,
        r#"clinch_jobs{flow="orders",state="retrying"} 0"#,
        r#"clinch_jobs_waiting{flow="orders",why="approval"} 0"#,
        r#"clinch_jobs_finished_total{flow="orders",outcome="dropped"} 0"#,
        r#"clinch_noops_total{flow="orders",why="condition"} 0"#,
        r#"clinch_job_end_to_end_seconds_count{flow="orders",outcome="dead_letter"} 0"#,
        r#"clinch_step_attempts_total{flow="orders",step="charge",outcome="timeout"} 0"#,
        r#"clinch_retries_scheduled_total{flow="orders",step="charge",reason="target_down"} 0"#,
        r#"clinch_retries_scheduled_total{flow="orders",step="charge",reason="rate_limited"} 0"#,
        r#"clinch_retries_scheduled_total{flow="orders",step="charge",reason="unknown_outcome"} 0"#,
        r#"clinch_retries_scheduled_total{flow="orders",step="",reason="internal"} 0"#,
        r#"clinch_proxy_calls_total{outcome="replayed"} 0"#,
        r#"clinch_effects_total{integration="crm",outcome="held_safe_mode"} 0"#,
        r#"clinch_integration_request_duration_seconds_count{integration="crm",code_class="429"} 0"#,
        r#"clinch_integration_throttle_wait_seconds_count{integration="crm"} 0"#,
        r#"clinch_circuit_state{integration="crm",state="closed"} 1"#,
        r#"clinch_circuit_transitions_total{integration="crm",to="open"} 0"#,
        r#"clinch_safe_mode{scope="integration:crm"} 0"#,
        r#"clinch_dlq_jobs{flow="orders",reason="target_down"} 0"#,
        r#"clinch_dlq_oldest_age_seconds{flow="orders"} 0.0"#,
        r#"clinch_approvals_total{flow="orders",decision="expired"} 0"#,
        r#"clinch_script_kills_total{runtime="bash",why="memory"} 0"#,
        r#"clinch_store_errors_total{op="fsync"} 0"#,
        r#"clinch_slo_burn_rate{window="1h"} 0.0"#,
        r#"clinch_console_actions_total{action="replay",via="cli"} 0"#,
        "clinch_config_last_reload_successful 1",
        "clinch_slo_target_ratio 0.9",
    ] {
        assert!(text.lines().any(|line| line == series), "no {series} in {text}");
    }
    assert!(!text.contains("clinch_source_silence_limit_seconds{"), "absent where nothing is said");
    assert!(!text.contains(r#"step="charge",reason="auth_failed"}"#), "nobody tries that again");
    // The newer format has the same, for who asks for it.
    let asked = world.client.get(world.admin_url("/metrics")).header("accept", "application/openmetrics-text");
    let newer = Answer::read(asked.send().await.unwrap()).await;
    assert!(newer.header("content-type").unwrap().starts_with("application/openmetrics-text"), "{newer:?}");
    assert!(newer.body.ends_with("# EOF\n") && newer.body.contains("# TYPE clinch_jobs_finished counter\n"));
    assert!(text.contains("# TYPE clinch_jobs_finished_total counter\n") && !text.contains("# EOF"));
}

/// What the newer format tells, and its lines with examples.
async fn newer(world: &World) -> (String, Vec<String>) {
    let asked = world.client.get(world.admin_url("/metrics")).header("accept", "application/openmetrics-text");
    let text = Answer::read(asked.send().await.unwrap()).await.body;
    let shown = text.lines().filter(|line| line.contains(" # {")).map(str::to_string).collect();
    (text, shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_h2_prometheus_is_led_from_a_bucket_to_a_trace_that_somebody_records() {
    // Nobody is there, which is no matter: somebody is to be told.
    let collected = format!("{SETTINGS}tracing: {{endpoint: 'http://127.0.0.1:1'}}\n");
    let world = World::new(&[("clinch.yml", &collected), ("workers/charge.yml", WORKER)]).await;
    let prometheus = Prometheus::start(&world, "groups: []\n").await;
    let mut traces = BTreeSet::new();
    for nth in 0..3 {
        let answer = world.post(&format!("k-{nth}"), &body("a", false)).await;
        traces.insert(answer.header("clinch-trace-id").unwrap().to_string());
        world.wait(answer.job(), Word::Success).await;
    }
    for metric in dashboard::TRACED {
        eventually(metric, async || {
            let found = prometheus.examples(&format!("{metric}_bucket")).await;
            assert!(found.is_subset(&traces), "{metric}: {found:?} are not of {traces:?}");
            !found.is_empty()
        })
        .await;
    }
    let (text, shown) = newer(&world).await;
    let named: BTreeSet<&str> = shown.iter().map(|line| line.split_once("_bucket{").unwrap().0).collect();
    assert_eq!(named, BTreeSet::from(dashboard::TRACED), "{text}");
    let line = shown.iter().find(|line| line.starts_with("clinch_job_end_to_end_seconds_bucket{")).unwrap();
    let example = line.split_once(" # {trace_id=\"").unwrap().1;
    let [trace, value, at] = example.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert!(traces.contains(trace.trim_end_matches("\"}")), "{line}");
    assert!(value.parse::<f64>().is_ok() && at.parse::<f64>().is_ok_and(|at| at > 1.7e9), "{line}");

    // The older format has none, and is understood.
    let older = world.admin_as(None, "/metrics").await.body;
    assert!(!older.contains("trace_id"), "{older}");
    promtool(&["check", "metrics"], &older);
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_h2_without_a_collector_and_of_traces_that_are_not_recorded_there_are_no_examples() {
    for tracing in ["", "tracing: {endpoint: 'http://127.0.0.1:1', sample: 0}\n"] {
        let settings = format!("{SETTINGS}{tracing}");
        let world = World::new(&[("clinch.yml", &settings), ("workers/charge.yml", WORKER)]).await;
        world.post_and_wait("k", &body("a", false), Word::Success).await;
        let ended = r#"clinch_job_end_to_end_seconds_count{flow="orders",outcome="success"} 1"#;
        eventually("it is counted", async || newer(&world).await.0.lines().any(|line| line == ended)).await;
        let (text, shown) = newer(&world).await;
        assert!(shown.is_empty() && !text.contains("trace_id"), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h1_steps_have_no_series_of_their_own_where_the_workspace_says_so() {
    let settings = format!("{SETTINGS}metrics: {{per_step: false}}\n");
    let world = World::new(&[("clinch.yml", &settings), ("workers/charge.yml", WORKER)]).await;
    world.target.script("/charge", [Reply::Status(503), OK]);
    world.post_and_wait("k", &body("a", false), Word::Success).await;
    let began = Instant::now();
    loop {
        let text = world.admin_as(None, "/metrics").await.body;
        assert!(!text.contains("step=\"charge\""), "{text}");
        if text.contains(r#"clinch_retries_scheduled_total{flow="orders",step="",reason="target_down"} 1"#) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "a retry is counted all the same: {text}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_the_time_that_a_call_waits_for_us_is_not_the_partners() {
    // One after the other, and all of them within the window whose use is told.
    let settings = SETTINGS.replace("rate: 200/s", "rate: 20/20s");
    let worker = crate::world::worker_with_step(
        "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n",
    );
    let world = World::new(&[("clinch.yml", &settings), ("workers/charge.yml", &worker)]).await;
    let mut jobs = Vec::new();
    for nth in 0..5 {
        jobs.push(world.post(&format!("k-{nth}"), "{}").await.job());
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    let told = world.admin("/api/v1/integrations/crm").await.json()["integration"].clone();
    let (ours, theirs) = (told["wait_p99"].as_f64().unwrap(), told["p99"].as_f64().unwrap());
    assert!(ours > 1.0 && ours > theirs, "five calls at one a second wait for us: {told}");
    assert!(told["rate_used"].as_f64().is_some_and(|used| used > 0.0), "{told}");
    let (_, said) = world.clinch(&["integrations", "show", "crm", "-o", "table"]).await;
    assert!(said.contains("waited for our own limits before"), "{said}");
    let (_, said) = world.clinch(&["latency", "-o", "table"]).await;
    assert!(said.contains("attempts: p50 1"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_the_overview_says_how_the_objective_is_met() {
    let world = World::new(&[("clinch.yml", "slo: {end_to_end: 20s, target: 90%}\n")]).await;
    world.post_and_wait("fine", "{}", Word::Success).await;
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("dead", "{}", Word::Dead).await;
    let began = Instant::now();
    loop {
        let told = world.admin("/api/v1/overview?window=1h").await.json();
        let objective = &told["objective"];
        assert_eq!((&objective["end_to_end_seconds"], &objective["burning"]), (&json!(20.0), &json!("no")));
        assert_eq!(told["window"]["end_to_end"]["target_seconds"], 20.0);
        assert_eq!((&told["stars"]["steps"], &told["stars"]["protected"]), (&json!(1), &json!(1)));
        let hour = objective["windows"].as_array().unwrap().iter().find(|one| one["window"] == "1h").unwrap();
        if (&hour["jobs"], &hour["missed"]) == (&json!(2), &json!(1)) {
            assert!((hour["rate"].as_f64().unwrap() - 5.0).abs() < 1e-6, "{hour}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "what ended is counted a moment later: {told}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (_, said) = world.clinch(&["top", "-o", "plain"]).await;
    assert!(said.contains("objective  90 % within 20 s"), "{said}");
}

#[test]
fn h1_h7_the_lists_need_no_server() {
    let run = |arguments: &[&str]| {
        let said = Command::new(env!("CARGO_BIN_EXE_clinch")).args(arguments).output().unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let told: Value = serde_json::from_str(&run(&["metrics", "ls", "-o", "json"])).unwrap();
    let metrics = told["metrics"].as_array().unwrap();
    assert!(metrics.iter().any(|one| one["name"] == "clinch_jobs" && one["type"] == "gauge"), "{told}");
    assert!(run(&["metrics", "ls", "-o", "id"]).lines().any(|line| line == "process_open_fds"));
    let dashboard: Value = serde_json::from_str(&run(&["dashboards", "print"])).unwrap();
    assert_eq!(dashboard["uid"], "clinch-overview");
    let shows = |title: &str| {
        let panels = dashboard["panels"].as_array().unwrap().iter();
        panels
            .filter(|panel| panel["title"] == title)
            .flat_map(|panel| panel["targets"].as_array().unwrap())
            .all(|target| target["exemplar"] == true)
    };
    assert!(shows("End to end") && !shows("Attempts per job"), "what leads to traces is drawn");
}
