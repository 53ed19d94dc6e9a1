//! Logs and metrics. Labels come from the workspace or from fixed lists, never from an event.

use crate::happenings::{Happening, Happenings};
use crate::masking::rules;
use clinch_core::attempt::Failure;
use clinch_core::breaker::Circuit;
use clinch_core::control::Controls;
use clinch_core::death::Reason;
use clinch_core::effect::{EffectState, Idempotency};
use clinch_core::id::JobId;
use clinch_core::job::{Change, Ending, Word};
use clinch_core::policy::Rule;
use clinch_core::safe_mode::SafeScope;
use clinch_core::sender::NotASender;
use clinch_core::signature::Refusal;
use clinch_core::source::Proof;
use clinch_core::time::Timestamp;
use clinch_store::approval::Undecided;
use clinch_store::read::{COMMIT_SECONDS, Counts, Health};
use clinch_store::{ApprovalRow, Claim};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelValueEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// A label's value: a name of the workspace, or a word of a fixed list. Made for every job, hence without copying.
#[derive(Clone, Debug)]
pub enum Label {
    Word(&'static str),
    Name(Arc<str>),
}

impl Label {
    fn as_str(&self) -> &str {
        match self {
            Label::Word(word) => word,
            Label::Name(name) => name,
        }
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Label) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl std::hash::Hash for Label {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl From<&'static str> for Label {
    fn from(word: &'static str) -> Self {
        Label::Word(word)
    }
}

impl From<&Arc<str>> for Label {
    fn from(name: &Arc<str>) -> Self {
        Label::Name(name.clone())
    }
}

impl From<&String> for Label {
    fn from(name: &String) -> Self {
        Label::Name(Arc::from(name.as_str()))
    }
}

impl prometheus_client::encoding::EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.as_str())
    }
}

macro_rules! labels {
    ($($name:ident { $($field:ident),* })*) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name { $(pub $field: Label),* }
    )*};
}

labels! {
    BySource { source }
    BySourceOutcome { source, outcome }
    BySourceReason { source, reason }
    BySourceSecret { source, secret }
    ByLayerFlow { layer, flow }
    ByFlow { flow }
    ByFlowState { flow, state }
    ByFlowOutcome { flow, outcome }
    ByFlowReason { flow, reason }
    ByFlowStepOutcome { flow, step, outcome }
    ByFlowStepReason { flow, step, reason }
    ByFlowHow { flow, how }
    ByFlowWhy { flow, why }
    ByFlowDecision { flow, decision }
    ByStoreOutcome { store, outcome }
    ByBudget { budget }
    ByPolicyRule { policy, rule }
    ByIntegration { integration }
    ByIntegrationOutcome { integration, outcome }
    ByIntegrationState { integration, state }
    ByIntegrationTo { integration, to }
    ByProtection { protected }
    ByKind { kind }
    ByScope { scope }
    ByState { state }
    ByListener { listener }
    ByOutcome { outcome }
    ByListenerReason { listener, reason }
    Build { version }
    Config { version }
}

/// How a request at the door ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntakeOutcome {
    Accepted,
    Duplicate,
    Conflict,
    InFlight,
    Malformed,
    TooLarge,
    StoreError,
    /// Nobody knows who sent it.
    Unverified,
    /// It breaks its schema.
    Invalid,
    /// Too much came.
    Limited,
    /// No flow wants it.
    Ignored,
    /// A question of the sender, answered.
    Handshake,
}

impl IntakeOutcome {
    pub const ALL: [IntakeOutcome; 12] = [
        IntakeOutcome::Accepted,
        IntakeOutcome::Duplicate,
        IntakeOutcome::Conflict,
        IntakeOutcome::InFlight,
        IntakeOutcome::Malformed,
        IntakeOutcome::TooLarge,
        IntakeOutcome::StoreError,
        IntakeOutcome::Unverified,
        IntakeOutcome::Invalid,
        IntakeOutcome::Limited,
        IntakeOutcome::Ignored,
        IntakeOutcome::Handshake,
    ];

    /// Those that were turned away.
    pub const REJECTED: [IntakeOutcome; 8] = [
        IntakeOutcome::Unverified,
        IntakeOutcome::Conflict,
        IntakeOutcome::Malformed,
        IntakeOutcome::Invalid,
        IntakeOutcome::TooLarge,
        IntakeOutcome::Limited,
        IntakeOutcome::InFlight,
        IntakeOutcome::StoreError,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            IntakeOutcome::Accepted => "accepted",
            IntakeOutcome::Duplicate => "duplicate",
            IntakeOutcome::Conflict => "conflict",
            IntakeOutcome::InFlight => "in_flight",
            IntakeOutcome::Malformed => "malformed",
            IntakeOutcome::TooLarge => "too_large",
            IntakeOutcome::StoreError => "store_error",
            IntakeOutcome::Unverified => "unverified",
            IntakeOutcome::Invalid => "invalid",
            IntakeOutcome::Limited => "limited",
            IntakeOutcome::Ignored => "ignored",
            IntakeOutcome::Handshake => "handshake",
        }
    }
}

const LISTENERS: [&str; 2] = ["intake", "admin"];
/// Why a connection is turned away.
const REFUSED: [&str; 3] = ["full", "address", "handshake"];

/// What a key store that installations share had to say, or could not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedOutcome {
    /// The key is ours: our own store decided.
    Ours,
    /// Another installation has accepted it.
    Theirs,
    /// Another installation was storing it, for longer than was waited.
    InFlight,
    Unavailable,
    /// An event is stored here, and the others could not be told.
    Untold,
}

impl SharedOutcome {
    pub const ALL: [SharedOutcome; 5] = [
        SharedOutcome::Ours,
        SharedOutcome::Theirs,
        SharedOutcome::InFlight,
        SharedOutcome::Unavailable,
        SharedOutcome::Untold,
    ];

    const fn word(self) -> &'static str {
        match self {
            SharedOutcome::Ours => "ours",
            SharedOutcome::Theirs => "theirs",
            SharedOutcome::InFlight => "in_flight",
            SharedOutcome::Unavailable => "unavailable",
            SharedOutcome::Untold => "untold",
        }
    }
}

impl ByStoreOutcome {
    pub fn of(store: &String, outcome: SharedOutcome) -> ByStoreOutcome {
        ByStoreOutcome { store: store.into(), outcome: outcome.word().into() }
    }
}

const SHORT_SECONDS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];
const LONG_SECONDS: [f64; 14] = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86_400.0];

fn short() -> Histogram {
    Histogram::new(SHORT_SECONDS)
}

fn long() -> Histogram {
    Histogram::new(LONG_SECONDS)
}

/// A minute to a month.
const REPLAY_SECONDS: [f64; 8] = [60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 259_200.0, 604_800.0, 2_592_000.0];

fn tries() -> Histogram {
    Histogram::new([1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0])
}

fn bytes() -> Histogram {
    Histogram::new([256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 10_485_760.0])
}

pub struct Metrics {
    registry: Registry,
    /// For those who want to see it happen.
    pub happenings: Happenings,
    pub intake_requests: Family<BySourceOutcome, Counter>,
    pub intake_seconds: Family<BySource, Histogram, fn() -> Histogram>,
    pub intake_bytes: Family<BySource, Histogram, fn() -> Histogram>,
    pub last_accepted: Family<BySource, Gauge<f64, AtomicU64>>,
    pub intake_rejected: Family<BySourceReason, Counter>,
    pub intake_verified: Family<BySourceSecret, Counter>,
    pub intake_same_body: Family<BySource, Counter>,
    pub unknown_routes: Counter,
    proxy_calls: Family<ByOutcome, Counter>,
    pub connections: Family<ByListener, Gauge>,
    pub connections_refused: Family<ByListenerReason, Counter>,
    pub short_circuits: Family<ByLayerFlow, Counter>,
    pub shared_keys: Family<ByStoreOutcome, Counter>,
    pub finished: Family<ByFlowOutcome, Counter>,
    pub wait_seconds: Family<ByFlow, Histogram, fn() -> Histogram>,
    pub end_to_end_seconds: Family<ByFlowOutcome, Histogram, fn() -> Histogram>,
    pub tries: Family<ByFlowOutcome, Histogram, fn() -> Histogram>,
    pub lease_expirations: Family<ByFlow, Counter>,
    pub step_attempts: Family<ByFlowStepOutcome, Counter>,
    pub step_seconds: Family<ByFlowStepOutcome, Histogram, fn() -> Histogram>,
    pub retries: Family<ByFlowStepReason, Counter>,
    pub budget_spent: Family<ByBudget, Counter>,
    pub budget_refusals: Family<ByBudget, Counter>,
    pub budget_without_entity: Family<ByBudget, Counter>,
    budget_exhausted: Family<ByBudget, Gauge>,
    pub policy_refusals: Family<ByPolicyRule, Counter>,
    effects: Family<ByIntegrationOutcome, Counter>,
    protection: Family<ByProtection, Counter>,
    unresolved: Family<ByIntegration, Gauge>,
    circuits: Family<ByIntegrationState, Gauge>,
    circuit_transitions: Family<ByIntegrationTo, Counter>,
    circuit_rejections: Family<ByIntegration, Counter>,
    pub dead_entered: Family<ByFlowReason, Counter>,
    pub dead_left: Family<ByFlowHow, Counter>,
    pub replays: Family<ByFlowOutcome, Counter>,
    approvals: Family<ByFlowDecision, Counter>,
    approval_wait: Family<ByFlow, Histogram, fn() -> Histogram>,
    approvals_pending: Family<ByFlow, Gauge>,
    approval_oldest: Family<ByFlow, Gauge<f64, AtomicU64>>,
    /// Plans that are carried out now.
    pub replay_plans: Gauge,
    /// How long what ended well by a plan had been dead.
    pub time_to_replay: Histogram,
    pub retention_deleted: Family<ByKind, Counter>,
    pub schedule_slots: Family<ByFlowOutcome, Counter>,
    paused: Family<ByScope, Gauge>,
    live_settings: Gauge,
    live_settings_refused: Gauge,
    safe_modes: Family<ByScope, Gauge>,
    safe_mode_trips: Family<ByScope, Counter>,
    waiting: Family<ByFlowWhy, Gauge>,
    jobs: Family<ByFlowState, Gauge>,
    oldest: Family<ByFlow, Gauge<f64, AtomicU64>>,
    dead: Family<ByFlowReason, Gauge>,
    dead_oldest: Family<ByFlow, Gauge<f64, AtomicU64>>,
    pub workers: Family<ByState, Gauge>,
    store_bytes: Gauge,
    store_free: Gauge,
    store: StoreMetrics,
}

impl Metrics {
    /// Every series of every flow exists from the start, at zero, so that rates and silence can be told apart.
    pub fn new(workspace: &clinch_core::config::Workspace, version: &str) -> Metrics {
        let mut registry = Registry::with_prefix("clinch");
        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        let build: Family<Build, Gauge> = register!("build_info", "This build", Family::default());
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION").into() }).set(1);
        let config: Family<Config, Gauge> = register!("config_info", "The live workspace", Family::default());
        config.get_or_create(&Config { version: (&version.to_string()).into() }).set(1);
        let store = StoreMetrics::default();
        registry.register_collector(Box::new(store.clone()));
        let metrics = Metrics {
            happenings: Happenings::default(),
            intake_requests: register!("intake_requests", "Requests by how they ended", Family::default()),
            intake_seconds: register!(
                "intake_request_duration_seconds",
                "Time to the answer, the durable write included",
                Family::new_with_constructor(short as fn() -> Histogram)
            ),
            intake_bytes: register!(
                "intake_body_bytes",
                "Size of accepted bodies",
                Family::new_with_constructor(bytes as fn() -> Histogram)
            ),
            last_accepted: register!(
                "intake_last_accepted_timestamp_seconds",
                "When the last event was accepted",
                Family::default()
            ),
            intake_rejected: register!(
                "intake_rejected",
                "Requests that a source refused, by the real cause",
                Family::default()
            ),
            intake_verified: register!(
                "intake_verified",
                "Requests that were proven, by the secret that matched or the sender whose token it was",
                Family::default()
            ),
            intake_same_body: register!(
                "intake_same_body",
                "Events whose body came before under another id that nobody signed",
                Family::default()
            ),
            unknown_routes: register!(
                "intake_unknown_routes",
                "Requests for paths that no flow has",
                Counter::default()
            ),
            proxy_calls: register!("proxy_calls", "Calls through the proxy by how they ended", Family::default()),
            connections: register!("connections", "Connections that are open now", Family::default()),
            connections_refused: register!(
                "connections_refused",
                "Connections that were turned away: no place for anybody, none for their address, no TLS handshake",
                Family::default()
            ),
            short_circuits: register!("dedup_short_circuits", "Work that was not repeated", Family::default()),
            shared_keys: register!(
                "shared_keys",
                "Keys that a store shared by installations was asked for, by what it said",
                Family::default()
            ),
            finished: register!("jobs_finished", "Jobs by how they ended", Family::default()),
            wait_seconds: register!(
                "job_wait_seconds",
                "Accepted to first run",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            end_to_end_seconds: register!(
                "job_end_to_end_seconds",
                "Accepted to the end",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            tries: register!(
                "job_tries",
                "Attempts per ended job",
                Family::new_with_constructor(tries as fn() -> Histogram)
            ),
            schedule_slots: register!("schedule_slots", "Slots of schedules by what became of them", Family::default()),
            lease_expirations: register!("lease_expirations", "Work taken back from a lost worker", Family::default()),
            step_attempts: register!("step_attempts", "Steps that were tried, by outcome", Family::default()),
            step_seconds: register!(
                "step_duration_seconds",
                "One try of a step",
                Family::new_with_constructor(short as fn() -> Histogram)
            ),
            retries: register!("retries_scheduled", "Retries by reason", Family::default()),
            budget_spent: register!("budget_spent", "Retries that entities paid for", Family::default()),
            budget_refusals: register!(
                "budget_refusals",
                "Retries that had to wait or were not made because nothing was left",
                Family::default()
            ),
            policy_refusals: register!("policy_refusals", "Effects that a policy would not have", Family::default()),
            budget_without_entity: register!(
                "budget_without_entity",
                "Retries that no budget counted, because the event does not say whose it is",
                Family::default()
            ),
            budget_exhausted: register!(
                "budget_entities_exhausted",
                "Entities that have nothing left now",
                Family::default()
            ),
            effects: register!("effects", "Effects by integration and outcome", Family::default()),
            protection: register!(
                "effects_protected",
                "Effects by whether a rule protects them from repetition",
                Family::default()
            ),
            unresolved: register!(
                "effects_unresolved",
                "Effects of unknown outcome that need a person, 1000 at most",
                Family::default()
            ),
            circuits: register!(
                "circuit_state",
                "1 for the state that the circuit of an integration is in",
                Family::default()
            ),
            circuit_transitions: register!("circuit_transitions", "Changes of circuits", Family::default()),
            circuit_rejections: register!(
                "circuit_rejections",
                "Calls not made because a circuit was open",
                Family::default()
            ),
            dead_entered: register!("dlq_entered", "Jobs that became dead letters", Family::default()),
            dead_left: register!("dlq_left", "Dead letters that left", Family::default()),
            replays: register!("replay_jobs", "Replayed jobs by outcome", Family::default()),
            approvals: register!("approvals", "Approvals by what was decided", Family::default()),
            approval_wait: register!(
                "approval_wait_seconds",
                "From when people were asked to the verdict",
                Family::new_with_constructor(long as fn() -> Histogram)
            ),
            approvals_pending: register!("approvals_pending", "Approvals that wait now", Family::default()),
            approval_oldest: register!(
                "approval_oldest_age_seconds",
                "How long the oldest approval has waited",
                Family::default()
            ),
            replay_plans: register!("replay_batches_active", "Replay plans that run now", Gauge::default()),
            time_to_replay: register!(
                "time_to_replay_seconds",
                "From becoming a dead letter to ending well by a replay plan",
                Histogram::new(REPLAY_SECONDS)
            ),
            retention_deleted: register!("retention_deleted", "Rows that outlived their retention", Family::default()),
            safe_modes: register!("safe_mode", "1 where safe mode is on", Family::default()),
            safe_mode_trips: register!("safe_mode_trips", "Safe mode was turned on by failures", Family::default()),
            waiting: register!("jobs_waiting", "Jobs that wait for something else than their work", Family::default()),
            paused: register!("paused", "1 for what an operator has paused", Family::default()),
            live_settings: register!("live_settings", "Values that are set over the files", Gauge::default()),
            live_settings_refused: register!(
                "live_settings_refused",
                "Those of them that do not count, because the files no longer bear them",
                Gauge::default()
            ),
            jobs: register!("jobs", "Unfinished jobs now", Family::default()),
            oldest: register!("job_oldest_age_seconds", "Age of the oldest unfinished job", Family::default()),
            dead: register!("dlq_jobs", "Dead letters now", Family::default()),
            dead_oldest: register!("dlq_oldest_age_seconds", "Age of the oldest dead letter", Family::default()),
            workers: register!("workers", "Places of workers", Family::default()),
            store_bytes: register!("store_bytes", "Size of the store", Gauge::default()),
            store_free: register!("store_free_bytes", "Room left on its disk", Gauge::default()),
            store,
            registry,
        };
        metrics.begin(workspace);
        metrics
    }

    fn begin(&self, workspace: &clinch_core::config::Workspace) {
        let with_routes = workspace.flows.iter().filter(|flow| !flow.routes.is_empty()).map(|flow| &flow.name);
        for source in with_routes.chain(workspace.sources.iter().map(|source| &source.name)) {
            let source = Label::from(source);
            let _ = self.intake_seconds.get_or_create(&BySource { source: source.clone() });
            for outcome in IntakeOutcome::ALL {
                let outcome = outcome.word().into();
                let _ = self.intake_requests.get_or_create(&BySourceOutcome { source: source.clone(), outcome });
            }
        }
        for source in &workspace.sources {
            let reasons: &[&'static str] = match source.proof {
                None => &[],
                Some(Proof::Signature(_)) => &Refusal::WORDS,
                Some(Proof::Sender) => &NotASender::WORDS,
            };
            for reason in reasons.iter().copied() {
                let labels = BySourceReason { source: (&source.name).into(), reason: reason.into() };
                let _ = self.intake_rejected.get_or_create(&labels);
            }
        }
        for flow in &workspace.flows {
            let name = Label::from(&flow.name);
            for outcome in ["success", "noop", "dead_letter"] {
                let _ = self.finished.get_or_create(&ByFlowOutcome { flow: name.clone(), outcome: outcome.into() });
            }
            for layer in ["intake", "effect"] {
                let _ = self.short_circuits.get_or_create(&ByLayerFlow { layer: layer.into(), flow: name.clone() });
            }
            for reason in Reason::ALL {
                let _ =
                    self.dead_entered.get_or_create(&ByFlowReason { flow: name.clone(), reason: reason.word().into() });
            }
            let _ = self.lease_expirations.get_or_create(&ByFlow { flow: name });
        }
        for (listener, reason) in
            LISTENERS.into_iter().flat_map(|listener| REFUSED.into_iter().map(move |reason| (listener, reason)))
        {
            let labels = ByListenerReason { listener: listener.into(), reason: reason.into() };
            let _ = self.connections_refused.get_or_create(&labels);
        }
        for budget in workspace.workers.iter().filter_map(|worker| worker.retry.budget.as_ref()) {
            let labels = ByBudget { budget: (&budget.name).into() };
            for counter in [&self.budget_spent, &self.budget_refusals, &self.budget_without_entity] {
                let _ = counter.get_or_create(&labels);
            }
        }
        for (worker, _) in workspace.schedules() {
            for outcome in ["fired", "passed", "held"] {
                let labels = ByFlowOutcome { flow: (&worker.name).into(), outcome: outcome.into() };
                let _ = self.schedule_slots.get_or_create(&labels);
            }
        }
        for policy in &workspace.policies {
            for rule in Rule::ALL {
                let labels = ByPolicyRule { policy: (&policy.name).into(), rule: rule.word().into() };
                let _ = self.policy_refusals.get_or_create(&labels);
            }
        }
        for protected in ["yes", "no"] {
            let _ = self.protection.get_or_create(&ByProtection { protected: protected.into() });
        }
        for partner in workspace.partners() {
            let name = Label::from(&partner.name);
            for outcome in ["performed", "not_done", "unknown"] {
                let labels = ByIntegrationOutcome { integration: name.clone(), outcome: outcome.into() };
                let _ = self.effects.get_or_create(&labels);
            }
            if partner.breaker.is_some() {
                self.show_circuit(&name, Circuit::Closed);
                let _ = self.circuit_rejections.get_or_create(&ByIntegration { integration: name.clone() });
            }
        }
    }

    pub fn effect(&self, partner: &Arc<str>, class: Idempotency, state: &EffectState) {
        let outcome = match state {
            EffectState::Done(_) => "performed",
            EffectState::Unknown => "unknown",
            EffectState::NotDone | EffectState::Open | EffectState::GivenUp(_) => "not_done",
        };
        let labels = ByIntegrationOutcome { integration: partner.into(), outcome: outcome.into() };
        self.effects.get_or_create(&labels).inc();
        let protected = if class.is_protected() { "yes" } else { "no" };
        self.protection.get_or_create(&ByProtection { protected: protected.into() }).inc();
    }

    pub fn circuit(&self, partner: &Arc<str>, circuit: Circuit) {
        let name = Label::from(partner);
        self.show_circuit(&name, circuit);
        self.circuit_transitions.get_or_create(&ByIntegrationTo { integration: name, to: circuit.word().into() }).inc();
    }

    fn show_circuit(&self, name: &Label, circuit: Circuit) {
        for state in Circuit::ALL {
            let labels = ByIntegrationState { integration: name.clone(), state: state.word().into() };
            self.circuits.get_or_create(&labels).set(i64::from(state == circuit));
        }
    }

    pub fn proxy_call(&self, outcome: &'static str) {
        self.proxy_calls.get_or_create(&ByOutcome { outcome: outcome.into() }).inc();
    }

    pub fn circuit_rejected(&self, partner: &Arc<str>) {
        self.circuit_rejections.get_or_create(&ByIntegration { integration: partner.into() }).inc();
    }

    /// Logs and counts what became of a job when an attempt of it ended.
    pub fn report(&self, claim: &Claim, step: &Label, change: Change, failure: Option<&Failure>, now: Timestamp) {
        let (job, flow) = (claim.lease.job, Label::from(&claim.flow));
        let error = failure.map_or(String::new(), |failure| rules().text(&failure.error));
        let ended = |outcome: &'static str| {
            let labels = ByFlowOutcome { flow: flow.clone(), outcome: outcome.into() };
            self.finished.get_or_create(&labels).inc();
            self.end_to_end_seconds.get_or_create(&labels).observe(now.since(claim.received_at).as_secs_f64());
            self.tries.get_or_create(&labels).observe(f64::from(claim.attempts) + 1.0);
            if claim.replays > 0 {
                let outcome = if outcome == "dead_letter" { "failed" } else { outcome };
                self.replays.get_or_create(&ByFlowOutcome { flow: flow.clone(), outcome: outcome.into() }).inc();
            }
        };
        self.tell(claim, change, failure, now);
        match change {
            Change::Finished { ending, .. } => {
                ended(if ending == Ending::Success { "success" } else { "noop" });
                if claim.replays > 0 {
                    self.dead_left.get_or_create(&ByFlowHow { flow, how: "replayed_ok".into() }).inc();
                }
                match ending {
                    Ending::Declined(reason) => {
                        tracing::info!(job.id = %job, "{job} ended without it ({reason}): {error}")
                    }
                    Ending::Success | Ending::Noop => tracing::debug!(job.id = %job, "{job} ended well"),
                }
            }
            Change::Retried { run_at } => {
                let reason = failure.map_or(Reason::Internal, |failure| failure.reason).word().into();
                self.retries.get_or_create(&ByFlowStepReason { flow, step: step.clone(), reason }).inc();
                tracing::info!(job.id = %job, attempt.no = claim.attempts + 1, "{job} failed and is tried again at {run_at}: {error}");
            }
            Change::Buried { reason, .. } => {
                ended("dead_letter");
                self.dead_entered.get_or_create(&ByFlowReason { flow, reason: reason.word().into() }).inc();
                tracing::warn!(job.id = %job, attempt.no = claim.attempts + 1, "{job} is a dead letter ({reason}): {error}");
            }
            Change::PutOff { run_at, waits } => {
                tracing::debug!(job.id = %job, "{job} waits until {run_at}: {}", waits.word());
            }
            Change::HandedBack { .. } => tracing::info!(job.id = %job, "{job} was handed back unfinished"),
            Change::Claimed { .. } | Change::Revived { .. } | Change::Dropped { .. } | Change::TakenBack { .. } => {}
        }
    }

    /// What became of a request, for whoever watches. `reason` is the real cause where a source has one.
    pub fn at_the_door(
        &self,
        door: &Arc<str>,
        outcome: IntakeOutcome,
        job: Option<JobId>,
        refused: Option<(&'static str, &str)>,
        now: impl FnOnce() -> Timestamp,
    ) {
        self.happenings.tell(|| {
            let is_rejected = IntakeOutcome::REJECTED.contains(&outcome);
            let (reason, said) = refused.unwrap_or((outcome.word(), ""));
            Happening {
                at: now(),
                what: if is_rejected { "rejected" } else { outcome.word() },
                source: Some(door.clone()),
                flow: None,
                job: job.map(|job| job.to_string()),
                reason: is_rejected.then_some(reason),
                said: rules().sentence(said),
            }
        });
    }

    /// What became of the job, for whoever watches.
    fn tell(&self, claim: &Claim, change: Change, failure: Option<&Failure>, now: Timestamp) {
        let (what, reason) = match change {
            Change::Finished { ending: Ending::Success, .. } => ("success", None),
            Change::Finished { ending: Ending::Noop, .. } => ("noop", None),
            Change::Finished { ending: Ending::Declined(reason), .. } => ("noop", Some(reason.word())),
            Change::Retried { .. } => ("retry", failure.map(|failure| failure.reason.word())),
            Change::Buried { reason, .. } => ("dead", Some(reason.word())),
            Change::PutOff { waits, .. } => ("waits", Some(waits.word())),
            Change::HandedBack { .. }
            | Change::Claimed { .. }
            | Change::Revived { .. }
            | Change::Dropped { .. }
            | Change::TakenBack { .. } => return,
        };
        self.happenings.tell(|| Happening {
            at: now,
            what,
            source: None,
            flow: Some(claim.flow.clone()),
            job: Some(claim.lease.job.to_string()),
            reason,
            said: failure.map_or_else(String::new, |failure| rules().text(&failure.error)),
        });
    }

    /// An approval has its verdict.
    pub fn decided(&self, row: &ApprovalRow) {
        let Some(decision) = &row.decision else { return };
        let flow = Label::from(&row.flow);
        let labels = ByFlowDecision { flow: flow.clone(), decision: decision.verdict.word().into() };
        self.approvals.get_or_create(&labels).inc();
        let took = decision.at.since(row.asked_at).as_secs_f64();
        self.approval_wait.get_or_create(&ByFlow { flow }).observe(took);
    }

    /// How many approvals wait, by flow.
    pub fn show_approvals(&self, waiting: &[Undecided], now: Timestamp) {
        self.approvals_pending.clear();
        self.approval_oldest.clear();
        for waiting in waiting {
            let flow = ByFlow { flow: (&waiting.flow).into() };
            self.approvals_pending.get_or_create(&flow).set(i64::try_from(waiting.approvals).unwrap_or(i64::MAX));
            self.approval_oldest.get_or_create(&flow).set(now.since(waiting.oldest).as_secs_f64());
        }
    }

    /// How many effects of each integration need a person.
    pub fn show_unresolved(&self, effects: &BTreeMap<String, i64>) {
        self.unresolved.clear();
        for (name, effects) in effects {
            self.unresolved.get_or_create(&ByIntegration { integration: name.into() }).set(*effects);
        }
    }

    /// How many entities have nothing left, of each budget.
    pub fn show_exhausted(&self, workspace: &clinch_core::config::Workspace, exhausted: &[(Arc<str>, u64)]) {
        self.budget_exhausted.clear();
        for budget in workspace.workers.iter().filter_map(|worker| worker.retry.budget.as_ref()) {
            let _ = self.budget_exhausted.get_or_create(&ByBudget { budget: (&budget.name).into() });
        }
        for (budget, entities) in exhausted {
            let gauge = self.budget_exhausted.get_or_create_owned(&ByBudget { budget: budget.into() });
            gauge.set(i64::try_from(*entities).unwrap_or(i64::MAX));
        }
    }

    pub fn safe_mode_tripped(&self, scope: &SafeScope) {
        self.safe_mode_trips.get_or_create(&ByScope { scope: (&scope.to_string()).into() }).inc();
    }

    /// What operators have switched. Scopes name what is in a workspace: they are few.
    pub fn show_controls(&self, controls: &Controls, now: Timestamp) {
        self.paused.clear();
        for pause in controls.pauses(now) {
            self.paused.get_or_create(&ByScope { scope: (&pause.scope.to_string()).into() }).set(1);
        }
        self.safe_modes.clear();
        for mode in controls.safe_modes() {
            let labels = ByScope { scope: (&mode.scope.to_string()).into() };
            self.safe_modes.get_or_create(&labels).set(i64::from(mode.is_on(now)));
        }
    }

    pub fn show_live(&self, set: usize, refused: usize) {
        self.live_settings.set(i64::try_from(set).unwrap_or(i64::MAX));
        self.live_settings_refused.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }

    /// The text that Prometheus reads.
    pub fn render(&self, counts: &Counts, health: &Health, now: Timestamp) -> String {
        self.jobs.clear();
        self.oldest.clear();
        self.dead.clear();
        self.dead_oldest.clear();
        for word in [Word::Queued, Word::Running, Word::Waiting, Word::Retrying] {
            for (flow, _, _) in &counts.live {
                let _ = self.jobs.get_or_create(&ByFlowState { flow: flow.into(), state: word.as_str().into() });
            }
        }
        for (flow, word, jobs) in &counts.live {
            let labels = ByFlowState { flow: flow.into(), state: word.as_str().into() };
            self.jobs.get_or_create(&labels).set(i64::try_from(*jobs).unwrap_or(i64::MAX));
        }
        self.waiting.clear();
        for waiting in &counts.waiting {
            let labels = ByFlowWhy { flow: (&waiting.flow).into(), why: waiting.waits.word().into() };
            self.waiting.get_or_create(&labels).set(i64::try_from(waiting.jobs).unwrap_or(i64::MAX));
        }
        for (flow, reason, jobs) in &counts.dead {
            let labels = ByFlowReason { flow: flow.into(), reason: reason.word().into() };
            self.dead.get_or_create(&labels).set(i64::try_from(*jobs).unwrap_or(i64::MAX));
        }
        for (ages, family) in [(&counts.oldest, &self.oldest), (&counts.oldest_dead, &self.dead_oldest)] {
            for (flow, since) in ages {
                family.get_or_create(&ByFlow { flow: flow.into() }).set(now.since(*since).as_secs_f64());
            }
        }
        self.store_bytes.set(i64::try_from(health.bytes).unwrap_or(i64::MAX));
        self.store_free.set(i64::try_from(health.free_bytes).unwrap_or(i64::MAX));
        self.store.look(health);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

/// What the store counts by itself, told as of the last look.
#[derive(Clone, Debug, Default)]
struct StoreMetrics(Arc<Mutex<Option<Health>>>);

impl StoreMetrics {
    fn look(&self, health: &Health) {
        *self.0.lock().expect("nobody panics while holding the health") = Some(health.clone());
    }
}

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let health = self.0.lock().expect("nobody panics while holding the health").clone();
        let Some(health) = health else { return Ok(()) };
        let borders = COMMIT_SECONDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = borders.zip(health.commit_times).collect();
        let help = "One transaction, its sync included";
        encoder
            .encode_descriptor("store_commit_duration_seconds", help, None, MetricType::Histogram)?
            .encode_histogram::<[(&str, &str); 0]>(health.commit_seconds, health.commits, &buckets, None)?;
        let mut errors =
            encoder.encode_descriptor("store_errors", "Transactions that failed", None, MetricType::Counter)?;
        ConstCounter::new(health.write_errors).encode(errors.encode_family(&[("op", "write")])?)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Logs go to standard error; `CLINCH_LOG` chooses what (default `info`).
pub fn start_logging(format: LogFormat) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("CLINCH_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start in one process (a test) keeps the first.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => {
            builder.with_target(false).with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
        }
    };
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        tracing::error!("clinch itself failed{place}: {}", failed(panic.payload_as_str().unwrap_or_default()));
    }));
}

/// What a panic says may have a piece of an event in it: it is masked like everything else.
fn failed(message: &str) -> String {
    rules().text(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t110_a_panic_shows_no_secret_and_nobodys_address() {
        let said = failed("byte index 3 is not a char boundary of `ada@example.com sk_live_canary4eC39HqLyjWDarjt`");
        assert!(
            said.starts_with("byte index 3 is not") && !said.contains("ada@") && !said.contains("canary"),
            "{said}"
        );
    }
}
