//! The metrics: one line for each, with its name, what it means, and the words that its labels can have.

use super::book::{Book, Counters, Entry, Float, Floats, Gauges, Histograms, Kind, Names, Timings, Words};
use super::intake::{IntakeOutcome, SharedOutcome};
use super::label::*;
use super::notice::NoticeOutcome;
use super::process::ProcessMetrics;
use super::store::StoreMetrics;
use super::timing::Timing;
use super::words::*;
use crate::happenings::Happenings;
use clinch_core::approval::Verdict;
use clinch_core::breaker::Circuit;
use clinch_core::config::Workspace;
use clinch_core::death::Reason;
use clinch_core::job::Waits;
use clinch_core::policy::Rule;
use clinch_core::script::Language;
use clinch_core::slo;
use clinch_core::user::Permission;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const SHORT: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
/// The middle ones are close together: where an objective lies is to be seen.
const LONG: [f64; 14] = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86_400.0];

fn short() -> Histogram {
    Histogram::new(SHORT)
}

fn long() -> Histogram {
    Histogram::new(LONG)
}

fn short_traced() -> Timing {
    Timing::new(SHORT)
}

fn long_traced() -> Timing {
    Timing::new(LONG)
}

/// A minute to a month.
fn days() -> Histogram {
    Histogram::new([60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0])
}

/// A second to an hour.
fn signals() -> Histogram {
    Histogram::new([1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0])
}

fn tries() -> Histogram {
    Histogram::new([1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0])
}

fn bytes() -> Histogram {
    Histogram::new([256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 10_485_760.0])
}

fn of(label: &'static str, words: impl IntoIterator<Item = &'static str>) -> Words {
    vec![(label, words.into_iter().collect())]
}

fn and(mut words: Words, label: &'static str, more: impl IntoIterator<Item = &'static str>) -> Words {
    words.push((label, more.into_iter().collect()));
    words
}

fn any() -> Words {
    Vec::new()
}

fn reasons() -> Words {
    of("reason", Reason::ALL.iter().map(|reason| reason.word()))
}

macro_rules! metrics {
    ($($field:ident: $kind:ty = $make:ident($($say:expr),* $(,)?);)*) => {
        pub struct Metrics {
            pub(super) book: Book,
            /// Held by who tells how things are now: what is cleared is filled before the next one looks.
            pub(super) telling: Mutex<()>,
            pub(super) per_step: AtomicBool,
            pub(super) store: StoreMetrics,
            /// The last act on record that was counted; nothing where that is not known yet.
            pub acts_counted: tokio::sync::Mutex<Option<u64>>,
            /// For those who want to see it happen.
            pub happenings: Happenings,
            $(pub $field: $kind,)*
        }

        impl Default for Metrics {
            fn default() -> Metrics {
                let mut book = Book::default();
                $(let $field: $kind = book.$make($($say),*);)*
                let store = StoreMetrics::default();
                book.collector(Box::new(store.clone()), &StoreMetrics::entries());
                book.collector(Box::new(ProcessMetrics), &ProcessMetrics::entries());
                let per_step = AtomicBool::new(true);
                let (telling, acts_counted, happenings) = Default::default();
                Metrics { book, telling, per_step, store, acts_counted, happenings, $($field,)* }
            }
        }
    };
}

metrics! {
    // The door.
    intake_requests: Counters<BySourceOutcome> = counters("clinch_intake_requests_total",
        "Requests by how they ended; what came to a path that nothing is at has no source",
        of("outcome", IntakeOutcome::at_a_door().map(IntakeOutcome::word)));
    intake_seconds: Timings<BySource> = timings("clinch_intake_request_duration_seconds",
        "Time to the answer, the durable write included", any(), short_traced);
    intake_bytes: Histograms<BySource> = histograms("clinch_intake_body_bytes", "Size of accepted bodies", any(), bytes);
    last_accepted: Floats<BySource> = floats("clinch_intake_last_accepted_timestamp_seconds",
        "When the last event was accepted; 0 where none ever was", any());
    silence_limit: Floats<BySource> = some_floats("clinch_source_silence_limit_seconds",
        "How long the source may be silent; absent where nothing is said", any());
    intake_rejected: Counters<BySourceReason> = counters("clinch_intake_rejected_total",
        "Requests that a source refused, by the real cause", any());
    intake_verified: Counters<BySourceSecret> = counters("clinch_intake_verified_total",
        "Requests that were proven, by the secret that matched or the sender whose token it was", any());
    intake_same_body: Counters<BySource> = counters("clinch_intake_same_body_total",
        "Events whose body came before under another id that nobody signed", any());
    short_circuits: Counters<ByLayerFlow> = counters("clinch_dedup_short_circuits_total",
        "Work that was not repeated: a delivery that came again, a key that another job had set, an effect that was done",
        of("layer", LAYERS));
    shared_keys: Counters<ByStoreOutcome> = counters("clinch_shared_keys_total",
        "Keys that a store shared by installations was asked for, by what it said",
        of("outcome", SharedOutcome::ALL.map(SharedOutcome::word)));
    connections: Gauges<ByListener> = gauges("clinch_connections", "Connections that are open now", of("listener", LISTENERS));
    connections_refused: Counters<ByListenerReason> = counters("clinch_connections_refused_total",
        "Connections that were turned away: no place for anybody, none for their address, no TLS handshake",
        and(of("listener", LISTENERS), "reason", REFUSED));
    proxy_calls: Counters<ByOutcome> = counters("clinch_proxy_calls_total", "Calls through the proxy by how they ended",
        of("outcome", PROXIED));

    // Jobs.
    jobs: Gauges<ByFlowState> = gauges("clinch_jobs", "Unfinished jobs now", of("state", STATES));
    waiting: Gauges<ByFlowWhy> = gauges("clinch_jobs_waiting", "Jobs that wait for something else than their work",
        of("why", Waits::ALL.map(Waits::word)));
    finished: Counters<ByFlowOutcome> = counters("clinch_jobs_finished_total", "Jobs by how they ended", of("outcome", ENDINGS));
    noops: Counters<ByFlowWhy> = counters("clinch_noops_total", "Jobs that ended without having done anything, by why", of("why", NOOPS));
    oldest: Floats<ByFlowState> = floats("clinch_job_oldest_age_seconds",
        "How long ago the oldest unfinished job was accepted; 0 where there is none", of("state", STATES));
    wait_seconds: Histograms<ByFlow> = histograms("clinch_job_wait_seconds", "Accepted to first run", any(), long);
    end_to_end_seconds: Timings<ByFlowOutcome> = timings("clinch_job_end_to_end_seconds", "Accepted to the end",
        of("outcome", REPORTED), long_traced);
    tries: Histograms<ByFlowOutcome> = histograms("clinch_job_tries", "Attempts per ended job", of("outcome", REPORTED), tries);
    lease_expirations: Counters<ByFlow> = counters("clinch_lease_expirations_total", "Work taken back from a lost worker", any());
    schedule_slots: Counters<ByFlowOutcome> = counters("clinch_schedule_slots_total",
        "Slots of schedules by what became of them", of("outcome", SLOTS));
    workers: Gauges<ByState> = gauges("clinch_workers", "Places of workers", of("state", PLACES));

    // Steps. `metrics: {per_step: false}` turns these off.
    step_seconds: Timings<ByFlowStepKindOutcome> = timings("clinch_step_duration_seconds", "One try of a step",
        of("outcome", STEP_OUTCOMES), short_traced);
    step_attempts: Counters<ByFlowStepOutcome> = counters("clinch_step_attempts_total", "Steps that were tried, by outcome",
        of("outcome", STEP_OUTCOMES));
    retries: Counters<ByFlowStepReason> = counters("clinch_retries_scheduled_total", "Retries by reason", reasons());

    // Effects, and those whom they are with.
    effects: Counters<ByIntegrationOutcome> = counters("clinch_effects_total", "Effects by integration and outcome",
        of("outcome", EFFECTS));
    protection: Counters<ByProtection> = counters("clinch_effects_protected_total",
        "Effects by whether a rule protects them from repetition", of("protected", YES_NO));
    unresolved: Gauges<ByIntegration> = gauges("clinch_effects_unresolved",
        "Effects of unknown outcome that need a person, 1000 at most", any());
    integration_seconds: Timings<ByIntegrationClass> = timings("clinch_integration_request_duration_seconds",
        "The partner's time: from the first byte of a call to the end of its answer", of("code_class", CLASSES), short_traced);
    integration_in_flight: Gauges<ByIntegration> = gauges("clinch_integration_in_flight", "Calls under way", any());
    throttle_seconds: Histograms<ByIntegration> = histograms("clinch_integration_throttle_wait_seconds",
        "Our own time: how long a call waited for its rate, its place and its jitter", any(), long);
    limit_ratio: Floats<ByIntegration> = some_floats("clinch_integration_limit_ratio",
        "Share of the rate that this node uses, 0 to 1; absent where no rate is said", any());
    circuits: Gauges<ByIntegrationState> = some_gauges("clinch_circuit_state",
        "1 for the state that the circuit of an integration is in; absent where it has none",
        of("state", Circuit::ALL.map(Circuit::word)));
    circuit_transitions: Counters<ByIntegrationTo> = counters("clinch_circuit_transitions_total", "Changes of circuits",
        of("to", Circuit::ALL.map(Circuit::word)));
    circuit_rejections: Counters<ByIntegration> = counters("clinch_circuit_rejections_total",
        "Calls not made because a circuit was open", any());
    script_seconds: Histograms<ByRuntimeOutcome> = histograms("clinch_script_duration_seconds", "One run of a script",
        and(of("runtime", Language::ALL.map(Language::word)), "outcome", RUNS), short);
    script_kills: Counters<ByRuntimeWhy> = counters("clinch_script_kills_total", "Scripts that were ended, by why",
        and(of("runtime", Language::ALL.map(Language::word)), "why", KILLS));

    // What holds effects back.
    budget_spent: Counters<ByBudget> = counters("clinch_budget_spent_total", "Retries that entities paid for", any());
    budget_refusals: Counters<ByBudget> = counters("clinch_budget_refusals_total",
        "Retries that had to wait or were not made because nothing was left", any());
    budget_without_entity: Counters<ByBudget> = counters("clinch_budget_without_entity_total",
        "Retries that no budget counted, because the event does not say whose it is", any());
    budget_exhausted: Gauges<ByBudget> = gauges("clinch_budget_entities_exhausted", "Entities that have nothing left now", any());
    policy_refusals: Counters<ByPolicyRule> = counters("clinch_policy_refusals_total", "Effects that a policy would not have",
        of("rule", Rule::ALL.map(Rule::word)));
    safe_modes: Gauges<ByScope> = gauges("clinch_safe_mode", "1 where safe mode is on", any());
    safe_mode_held: Gauges<ByScope> = gauges("clinch_safe_mode_held_jobs",
        "Jobs that wait because of safe mode, of the flows that the scope is about; 0 where it is not on", any());
    safe_mode_trips: Counters<ByScope> = counters("clinch_safe_mode_trips_total", "Safe mode was turned on by failures", any());
    paused: Gauges<ByScope> = some_gauges("clinch_paused", "1 for what an operator has paused", any());

    // Dead letters and replays.
    dead: Gauges<ByFlowReason> = gauges("clinch_dlq_jobs", "Dead letters now", reasons());
    dead_entered: Counters<ByFlowReason> = counters("clinch_dlq_entered_total", "Jobs that became dead letters", reasons());
    dead_left: Counters<ByFlowHow> = counters("clinch_dlq_left_total", "Dead letters that left", of("how", LEFT));
    dead_oldest: Floats<ByFlow> = floats("clinch_dlq_oldest_age_seconds",
        "How long the oldest dead letter has been one; 0 where there is none", any());
    replays: Counters<ByFlowOutcome> = counters("clinch_replay_jobs_total", "Replayed jobs by outcome", of("outcome", REPLAYED));
    replay_plans: Gauge = gauge("clinch_replay_batches_active", "Replay plans that run now");
    time_to_replay: Histogram = histogram("clinch_time_to_replay_seconds",
        "From becoming a dead letter to ending well by a replay", days);
    replayed_in_day: Counter = counter("clinch_replayed_in_day_total",
        "Dead letters that ended well by a replay within 24 hours");

    // People.
    approvals_pending: Gauges<ByFlow> = gauges("clinch_approvals_pending", "Approvals that wait now", any());
    approval_oldest: Floats<ByFlow> = floats("clinch_approval_oldest_age_seconds",
        "How long the oldest approval has waited; 0 where none does", any());
    approvals: Counters<ByFlowDecision> = counters("clinch_approvals_total", "Approvals by what was decided",
        of("decision", Verdict::ALL.map(Verdict::word)));
    approval_wait: Histograms<ByFlow> = histograms("clinch_approval_wait_seconds", "From when people were asked to the verdict",
        any(), long);
    audit_records: Counters<ByAction> = counters("clinch_audit_records_total",
        "Acts on record since this node began, those of other nodes too", any());
    console_actions: Counters<ByActionVia> = counters("clinch_console_actions_total",
        "What people did, by the permission that it takes and where they did it",
        and(of("action", Permission::ALL.map(Permission::word)), "via", VIAS));

    // The objective, and the other north stars.
    slo_jobs: Counters<ByFlowResult> = counters("clinch_slo_jobs_total",
        "Jobs that ended, by whether they did well within the objective; replays are not counted", of("result", GOOD_BAD));
    slo_objective: Float = float("clinch_slo_objective_seconds", "From acceptance to the end, as `slo` says");
    slo_target: Float = float("clinch_slo_target_ratio", "The share of jobs that is to meet the objective");
    slo_burn: Floats<ByWindow> = floats("clinch_slo_burn_rate",
        "How fast this node spends what may miss the objective: 1 spends all of it, no more", of("window", slo::WINDOWS.map(|window| window.word)));
    time_to_first_signal: Histogram = histogram("clinch_time_to_first_signal_seconds",
        "From the first observation of a fault to the first notice of it", signals);

    // The machine.
    retention_deleted: Counters<ByKind> = counters("clinch_retention_deleted_total", "Rows that outlived their retention",
        of("kind", PRUNED));
    config: Gauges<Config> = some_gauges("clinch_config_info", "1 for the live workspace", any());
    reload_ok: Gauge = gauge("clinch_config_last_reload_successful", "1 if the workspace that was read last is live");
    reload_at: Float = float("clinch_config_last_reload_success_timestamp_seconds", "When the live workspace became live here");
    live_settings: Gauge = gauge("clinch_live_settings", "Values that are set over the files");
    live_settings_refused: Gauge = gauge("clinch_live_settings_refused",
        "Those of them that do not count, because the files no longer bear them");
    notifications: Counters<ByChannelOutcome> = counters("clinch_notifications_total",
        "Notices of alerts by channel: sent, tries that failed, given up", of("outcome", NoticeOutcome::ALL.map(NoticeOutcome::word)));
    exports_failed: Counters<BySignal> = counters("clinch_otlp_export_failures_total", "Times that the collector could not be told",
        of("signal", SIGNALS));
    spans_dropped: Counter = counter("clinch_otlp_dropped_spans_total",
        "Spans that the collector was not told, because it was away or too slow");
    build: Gauges<Build> = some_gauges("clinch_build_info", "1 for this build", any());
}

impl Metrics {
    /// Of a house that begins with this workspace.
    pub fn new(workspace: &Arc<Workspace>) -> Metrics {
        let metrics = Metrics::default();
        let revision = option_env!("CLINCH_REVISION").unwrap_or("unknown");
        let build = Build {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: revision.into(),
            rustc: env!("CLINCH_RUSTC").into(),
        };
        metrics.build.get_or_create(&build).set(1);
        metrics.begin(workspace);
        metrics
    }

    /// Every metric there is.
    pub fn list() -> Vec<Entry> {
        let mut entries = Metrics::default().book.entries().to_vec();
        entries.sort_by_key(|entry| entry.name);
        entries
    }

    /// Whether there is a metric that has series of this name.
    pub fn has(name: &str) -> bool {
        Metrics::list().iter().any(|entry| {
            let parts = ["_bucket", "_sum", "_count"];
            let is_part = |rest: &str| entry.kind == Kind::Histogram && parts.contains(&rest);
            name.strip_prefix(entry.name).is_some_and(|rest| rest.is_empty() || is_part(rest))
        })
    }

    /// The names in an expression of Prometheus that can only be metrics of ours.
    pub fn named_in(expr: &str) -> Vec<String> {
        // What is between quotes is a value.
        let outside: String = expr.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let words = outside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let is_ours = |word: &&str| word.starts_with("clinch_") || word.starts_with("process_");
        words.filter(is_ours).map(str::to_string).collect()
    }

    /// Every series that this workspace can have exists from now on, so that rates and silence can be told apart.
    pub fn begin(&self, workspace: &Arc<Workspace>) {
        self.book.begin(&Names::of(workspace));
        self.begin_by_hand(workspace);
        let slo = workspace.settings.slo;
        self.slo_objective.set(slo.end_to_end.as_secs_f64());
        self.slo_target.set(slo.target.ratio());
        self.per_step.store(workspace.settings.metrics.per_step, Ordering::Relaxed);
    }
}
