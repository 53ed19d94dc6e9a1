//! The rules: what is judged, how much is too much, and what to say and do then.
//!
//! A rule is judged by clinch itself, every second, and by Prometheus where there is one. Both have its name, its words, its
//! first command and its runbook. Prometheus waits longer (`lasts`), because it looks seldom; clinch waits for `after`.

use super::reading::{Found, PartnerReading, Readings};
use super::{Severity, Unit};
use crate::slo;
use crate::time::Timestamp;
use std::time::Duration;

pub struct Rule {
    pub name: &'static str,
    pub severity: Severity,
    pub summary: &'static str,
    /// With `{label}`, `{value}` and `{limit}`.
    pub description: &'static str,
    /// The first line to type, with labels.
    pub command: &'static str,
    /// Where the console shows it, with labels.
    pub page: &'static str,
    pub labels: &'static [&'static str],
    pub unit: Unit,
    /// What is more than this is too much; of free bytes, less. `clinch.yml` may say another.
    pub limit: f64,
    /// How long it must be so before clinch says it.
    pub after: Duration,
    /// For Prometheus, with `{limit}`.
    pub expr: &'static str,
    pub lasts: Duration,
    /// `None`: who does not run cannot judge that.
    pub judge: Option<Judge>,
}

/// What is found with this limit at this moment.
pub type Judge = fn(&Readings, f64, Timestamp) -> Vec<Found>;

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Its limit is the objective's, where a workspace has one.
pub const END_TO_END_SLOW: &str = "ClinchEndToEndSlow";
/// With fewer failures of a partner nothing is concluded.
pub const FAILED_CALLS_MIN: u64 = 3;
/// With fewer bad signatures nothing is concluded.
pub const UNVERIFIED_MIN: u64 = 5;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

const AT_ONCE: Duration = Duration::ZERO;

/// For Prometheus: how fast a window spends what may miss the objective.
macro_rules! burn {
    ($window:literal) => {
        concat!(
            "(sum(rate(clinch_slo_jobs_total{result=\"bad\"}[",
            $window,
            "])) / sum(rate(clinch_slo_jobs_total[",
            $window,
            "])))\n  / (1 - max(clinch_slo_target_ratio))"
        )
    };
}

/// For Prometheus: since when somebody has listened to each source. Who sent before that, or never, has been silent since then.
macro_rules! start_of_sources {
    () => {
        "min by (source) (\n    0 * clinch_intake_last_accepted_timestamp_seconds + on (job, instance) group_left process_start_time_seconds)"
    };
}

/// What `slo::Pair::burns` decides.
macro_rules! both_burn {
    ($long:literal, $short:literal) => {
        concat!(
            burn!($long),
            "\n  >= clamp_max(0.999 / (1 - max(clinch_slo_target_ratio)), {limit})\nand ",
            burn!($short),
            "\n  >= clamp_max(0.999 / (1 - max(clinch_slo_target_ratio)), {limit})\nand ",
            "sum(increase(clinch_slo_jobs_total[",
            $long,
            "])) >= 10\nand sum(increase(clinch_slo_jobs_total[",
            $short,
            "])) >= 10"
        )
    };
}

impl Rule {
    pub fn find(name: &str) -> Option<&'static Rule> {
        RULES.iter().find(|rule| rule.name == name)
    }

    /// Whether there is something to be more than.
    pub fn has_limit(&self) -> bool {
        self.expr.contains("{limit}") || self.limit > 0.0
    }

    /// The page of what to do. Dead letters have one for each reason.
    pub fn runbook<'a>(&'a self, label: impl Fn(&str) -> Option<&'a str>) -> &'a str {
        match self.labels.contains(&"reason") {
            true => label("reason").unwrap_or(self.name),
            false => self.name,
        }
    }
}

fn age(since: Timestamp, now: Timestamp) -> f64 {
    now.since(since).as_secs_f64()
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// Of these, those that are over the limit.
fn over(found: impl IntoIterator<Item = Found>, limit: f64) -> Vec<Found> {
    found.into_iter().filter(|found| found.value > limit).collect()
}

fn burns(pair: slo::Pair, readings: &Readings, limit: f64) -> Vec<Found> {
    pair.burns(&readings.slo, &readings.burns, limit).map(|rate| Found::of(&[], rate)).into_iter().collect()
}

pub static RULES: &[Rule] = &[
    Rule {
        name: "ClinchDown",
        severity: Severity::Critical,
        summary: "Clinch is not answering.",
        description: "Instance {instance} has not been scraped for 2 minutes. Senders are getting errors.",
        command: "clinch about --url http://{instance}",
        page: "/",
        labels: &["instance"],
        unit: Unit::Flag,
        limit: 0.0,
        after: AT_ONCE,
        expr: "up{job=\"clinch\"} == 0",
        lasts: minutes(2),
        judge: None,
    },
    Rule {
        name: "ClinchIntakeFailing",
        severity: Severity::Critical,
        summary: "Clinch is refusing webhooks it should store.",
        description: "Source {source} gets errors on {value} of its requests, limit {limit}.",
        command: "clinch about",
        page: "/settings",
        labels: &["source"],
        unit: Unit::Share,
        limit: 0.01,
        after: AT_ONCE,
        expr: "sum by (source) (rate(clinch_intake_requests_total{outcome=\"store_error\"}[5m]))\n  / sum by (source) (rate(clinch_intake_requests_total[5m])) > {limit}",
        lasts: minutes(5),
        judge: Some(|readings, limit, _| {
            let failing = readings.intake.iter().filter(|one| one.store_errors > 0);
            over(failing.map(|one| Found::of(&[&one.source], share(one.store_errors, one.requests))), limit)
        }),
    },
    Rule {
        name: "ClinchStoreFailing",
        severity: Severity::Critical,
        summary: "The store cannot write.",
        description: "Nothing is accepted and nothing is sent until it can. What was accepted is kept.",
        command: "clinch about",
        page: "/settings",
        labels: &[],
        unit: Unit::Flag,
        limit: 0.0,
        after: seconds(1),
        expr: "sum(increase(clinch_store_errors_total[5m])) > 0",
        lasts: minutes(2),
        judge: Some(|readings, _, _| match readings.store.is_unwell {
            true => vec![Found::of(&[], 1.0)],
            false => Vec::new(),
        }),
    },
    Rule {
        name: "ClinchStoreAlmostFull",
        severity: Severity::Critical,
        summary: "The disk clinch writes to is filling up.",
        description: "Free space is {value}, limit {limit}. At zero nothing is accepted.",
        command: "clinch about",
        page: "/settings",
        labels: &[],
        unit: Unit::Bytes,
        limit: 1e9,
        after: seconds(10),
        expr: "(clinch_store_free_bytes > 0) < {limit} or predict_linear(clinch_store_free_bytes[6h], 86400) < 0",
        lasts: minutes(15),
        judge: Some(|readings, limit, _| {
            let free = readings.store.free_bytes.map(|free| free as f64).filter(|free| *free < limit);
            free.map(|free| Found::of(&[], free)).into_iter().collect()
        }),
    },
    Rule {
        name: "ClinchQueueStalled",
        severity: Severity::Critical,
        summary: "Jobs are waiting and none finish.",
        description: "Flow {flow} has jobs that wait for their turn, and none got it for {value}, limit {limit}.",
        command: "clinch jobs ls flow:{flow} state:queued",
        page: "/jobs?q=flow:{flow}+state:queued",
        labels: &["flow"],
        unit: Unit::Seconds,
        limit: 300.0,
        after: AT_ONCE,
        expr: "max by (flow) (clinch_job_oldest_age_seconds{state=\"queued\"}) > {limit}\n  and on (flow) sum by (flow) (rate(clinch_jobs_finished_total[10m])) == 0",
        lasts: minutes(5),
        judge: Some(|readings, limit, now| {
            let stuck = readings.flows.iter().filter_map(|one| Some((one, one.stuck_since?)));
            over(stuck.map(|(one, since)| Found::of(&[&one.flow], age(since, now))), limit)
        }),
    },
    Rule {
        name: END_TO_END_SLOW,
        severity: Severity::Critical,
        summary: "Webhook to effect is slower than the target.",
        description: "The 95th percentile of the last 15 minutes is {value}, limit {limit}.",
        command: "clinch latency --window 15m --percentile 95",
        page: "/",
        labels: &[],
        unit: Unit::Seconds,
        limit: 30.0,
        after: minutes(1),
        expr: "histogram_quantile(0.95,\n  sum by (le) (rate(clinch_job_end_to_end_seconds_bucket[15m]))) > {limit}",
        lasts: minutes(10),
        judge: Some(|readings, limit, _| {
            let p95 = readings.end_to_end_p95.map(|p95| Found::of(&[], p95.as_secs_f64()));
            over(p95, limit)
        }),
    },
    Rule {
        name: "ClinchObjectiveBurning",
        severity: Severity::Critical,
        summary: "What may miss the objective will be used up within hours.",
        description: "Jobs miss the objective {value} times as fast as they may, in the last hour and still in the last 5 minutes; limit {limit}.",
        command: "clinch top",
        page: "/",
        labels: &[],
        unit: Unit::Times,
        limit: slo::FAST.rate,
        after: AT_ONCE,
        expr: both_burn!("1h", "5m"),
        lasts: minutes(2),
        judge: Some(|readings, limit, _| burns(slo::FAST, readings, limit)),
    },
    Rule {
        name: "ClinchObjectiveBurningSlowly",
        severity: Severity::Warning,
        summary: "What may miss the objective will be used up within days.",
        description: "Jobs miss the objective {value} times as fast as they may, in the last 6 hours and still in the last 30 minutes; limit {limit}.",
        command: "clinch top --window 6h",
        page: "/",
        labels: &[],
        unit: Unit::Times,
        limit: slo::SLOW.rate,
        after: AT_ONCE,
        expr: both_burn!("6h", "30m"),
        lasts: minutes(15),
        judge: Some(|readings, limit, _| burns(slo::SLOW, readings, limit)),
    },
    Rule {
        name: "ClinchErrorRate",
        severity: Severity::Warning,
        summary: "Calls to an integration fail.",
        description: "{integration}: {value} of the calls of the last minute failed, limit {limit}.",
        command: "clinch integrations show {integration}",
        page: "/integrations/{integration}",
        labels: &["integration"],
        unit: Unit::Share,
        limit: 0.5,
        after: AT_ONCE,
        expr: "sum by (integration) (rate(clinch_integration_request_duration_seconds_count{code_class=~\"429|5xx|network|timeout\"}[5m]))\n  / sum by (integration) (rate(clinch_integration_request_duration_seconds_count[5m])) > {limit}",
        lasts: minutes(2),
        judge: Some(|readings, limit, _| {
            let failing = readings.partners.iter().filter(|one| one.failed >= FAILED_CALLS_MIN);
            let told = |one: &PartnerReading| Found::of(&[&one.name], share(one.failed, one.calls));
            over(failing.map(|one| told(one).since(one.failing_since)), limit)
        }),
    },
    Rule {
        name: "ClinchCircuitOpen",
        severity: Severity::Warning,
        summary: "An integration is cut off.",
        description: "{integration} fails, and its circuit is open. Jobs wait and lose nothing.",
        command: "clinch integrations show {integration}",
        page: "/integrations/{integration}",
        labels: &["integration"],
        unit: Unit::Flag,
        limit: 0.0,
        after: AT_ONCE,
        expr: "clinch_circuit_state{state=\"open\"} == 1",
        lasts: minutes(10),
        judge: Some(|readings, _, _| {
            let open = readings.partners.iter().filter_map(|one| Some((one, one.open_since?)));
            open.map(|(one, since)| Found::of(&[&one.name], 1.0).since(one.failing_since.or(Some(since)))).collect()
        }),
    },
    Rule {
        name: "ClinchEffectsUnknown",
        severity: Severity::Warning,
        summary: "Some effects may or may not have happened.",
        description: "{value} effects on {integration} need a person to decide.",
        command: "clinch effects ls state:unknown integration:{integration}",
        page: "/effects?state=unknown&integration={integration}",
        labels: &["integration"],
        unit: Unit::Count,
        limit: 0.0,
        after: seconds(30),
        expr: "sum by (integration) (clinch_effects_unresolved) > {limit}",
        lasts: minutes(30),
        judge: Some(|readings, limit, _| {
            over(readings.unknown_effects.iter().map(|(name, effects)| Found::of(&[name], *effects as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchDeadLettersGrowing",
        severity: Severity::Warning,
        summary: "Dead letters are growing.",
        description: "Flow {flow} got {value} dead letters in an hour for reason {reason}, limit {limit}.",
        command: "clinch dlq shapes --flow {flow} --reason {reason}",
        page: "/dead?flow={flow}&reason={reason}",
        labels: &["flow", "reason"],
        unit: Unit::Count,
        limit: 5.0,
        after: AT_ONCE,
        expr: "sum by (flow, reason) (increase(clinch_dlq_entered_total[1h])) > {limit}",
        lasts: minutes(10),
        judge: Some(|readings, limit, _| {
            over(readings.dead.iter().map(|one| Found::of(&[&one.flow, one.reason], one.entered as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchDeadLetterOld",
        severity: Severity::Warning,
        summary: "A dead letter is older than a day.",
        description: "Flow {flow}: the oldest dead letter has waited for {value}, limit {limit}.",
        command: "clinch dlq ls --flow {flow}",
        page: "/dead?flow={flow}",
        labels: &["flow"],
        unit: Unit::Seconds,
        limit: 86_400.0,
        after: AT_ONCE,
        expr: "max by (flow) (clinch_dlq_oldest_age_seconds) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, now| {
            let dead = readings.flows.iter().filter_map(|one| Some((one, one.oldest_dead?)));
            over(dead.map(|(one, at)| Found::of(&[&one.flow], age(at, now))), limit)
        }),
    },
    Rule {
        name: "ClinchBadSignatures",
        severity: Severity::Warning,
        summary: "Many webhooks fail the signature check.",
        description: "Source {source}: {value} of ten minutes, limit {limit}. Rotated secret, clock, or an attack.",
        command: "clinch sources rejections {source}",
        page: "/settings#sources",
        labels: &["source"],
        unit: Unit::Share,
        limit: 0.05,
        after: AT_ONCE,
        expr: "sum by (source) (rate(clinch_intake_requests_total{outcome=~\"bad_signature|stale_timestamp\"}[10m]))\n  / sum by (source) (rate(clinch_intake_requests_total[10m])) > {limit}",
        lasts: minutes(10),
        judge: Some(|readings, limit, _| {
            let bad = readings.intake.iter().filter(|one| one.unverified >= UNVERIFIED_MIN);
            over(bad.map(|one| Found::of(&[&one.source], share(one.unverified, one.signed_requests))), limit)
        }),
    },
    Rule {
        name: "ClinchKeyConflicts",
        severity: Severity::Warning,
        summary: "One idempotency key came with two different bodies.",
        description: "Source {source}: {value} in an hour. The sender or the key rule is wrong.",
        command: "clinch events ls --source {source} --again conflict",
        page: "/events?source={source}&again=conflict",
        labels: &["source"],
        unit: Unit::Count,
        limit: 0.0,
        after: AT_ONCE,
        expr: "sum by (source) (increase(clinch_intake_requests_total{outcome=\"conflict\"}[1h])) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, _| {
            over(readings.intake.iter().map(|one| Found::of(&[&one.source], one.conflicts as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchDedupMisses",
        severity: Severity::Warning,
        summary: "The same body came under different keys.",
        description: "Source {source}: {value} in an hour, limit {limit}. Its key rule may miss duplicates.",
        command: "clinch events ls --source {source}",
        page: "/events?source={source}",
        labels: &["source"],
        unit: Unit::Count,
        limit: 5.0,
        after: AT_ONCE,
        expr: "sum by (source) (increase(clinch_intake_same_body_total[1h])) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, _| {
            over(readings.intake.iter().map(|one| Found::of(&[&one.source], one.same_bodies as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchBudgetExhausted",
        severity: Severity::Warning,
        summary: "Some entities have no retry budget left.",
        description: "Budget {budget}: {value} entities are held back.",
        command: "clinch budget ls {budget} --exhausted",
        page: "/jobs?q=state:waiting",
        labels: &["budget"],
        unit: Unit::Count,
        limit: 0.0,
        after: minutes(1),
        expr: "sum by (budget) (clinch_budget_entities_exhausted) > {limit}",
        lasts: minutes(15),
        judge: Some(|readings, limit, _| {
            over(readings.budgets.iter().map(|(budget, entities)| Found::of(&[budget], *entities as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchSourceSilent",
        severity: Severity::Warning,
        summary: "A source that normally sends has gone quiet.",
        description: "Source {source} sent nothing for {value}. Its `silence` says how long that may be.",
        command: "clinch sources ls",
        page: "/events?source={source}",
        labels: &["source"],
        unit: Unit::Seconds,
        limit: 0.0,
        after: AT_ONCE,
        expr: concat!(
            "time() - (\n  max by (source) (clinch_intake_last_accepted_timestamp_seconds)\n    > on (source) ",
            start_of_sources!(),
            "\n  or on (source) ",
            start_of_sources!(),
            "\n)\n  > on (source) max by (source) (clinch_source_silence_limit_seconds)"
        ),
        lasts: minutes(5),
        judge: Some(|readings, _, now| {
            let limited = readings.intake.iter().filter_map(|one| Some((one, one.silence?)));
            let silent = limited.filter(|(_, (limit, since))| now.since(*since) > *limit);
            silent.map(|(one, (_, since))| Found::of(&[&one.source], age(since, now))).collect()
        }),
    },
    Rule {
        name: "ClinchQueueDeep",
        severity: Severity::Warning,
        summary: "Many jobs wait for their turn.",
        description: "Flow {flow} has {value} jobs that wait, limit {limit}.",
        command: "clinch jobs ls flow:{flow} state:queued",
        page: "/jobs?q=flow:{flow}+state:queued",
        labels: &["flow"],
        unit: Unit::Count,
        limit: 10_000.0,
        after: seconds(30),
        expr: "sum by (flow) (clinch_jobs{state=\"queued\"}) > {limit}",
        lasts: minutes(10),
        judge: Some(|readings, limit, _| {
            over(readings.flows.iter().map(|one| Found::of(&[&one.flow], one.queued as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchJobsOld",
        severity: Severity::Warning,
        summary: "A job has been unfinished for long.",
        description: "Flow {flow}: the oldest job that waits for nobody is {value} old, limit {limit}.",
        command: "clinch jobs ls flow:{flow}",
        page: "/jobs?q=flow:{flow}",
        labels: &["flow"],
        unit: Unit::Seconds,
        limit: 3_600.0,
        after: AT_ONCE,
        expr: "max by (flow) (clinch_job_oldest_age_seconds{state=~\"queued|running|retrying\"}) > {limit}",
        lasts: minutes(10),
        judge: Some(|readings, limit, now| {
            let old = readings.flows.iter().filter_map(|one| Some((one, one.oldest?)));
            over(old.map(|(one, at)| Found::of(&[&one.flow], age(at, now))), limit)
        }),
    },
    Rule {
        name: "ClinchApprovalsOverdue",
        severity: Severity::Warning,
        summary: "An approval has been waiting for long.",
        description: "Flow {flow}: the oldest approval has waited for {value}, limit {limit}.",
        command: "clinch approve ls flow:{flow}",
        page: "/approvals",
        labels: &["flow"],
        unit: Unit::Seconds,
        limit: 3_600.0,
        after: AT_ONCE,
        expr: "max by (flow) (clinch_approval_oldest_age_seconds) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, now| {
            let asked = readings.flows.iter().filter_map(|one| Some((one, one.oldest_approval?)));
            over(asked.map(|(one, at)| Found::of(&[&one.flow], age(at, now))), limit)
        }),
    },
    Rule {
        name: "ClinchConfigReloadFailed",
        severity: Severity::Warning,
        summary: "The new config was refused, the old one is still running.",
        description: "The files of the workspace have a problem. What runs is what ran before.",
        command: "clinch check .",
        page: "/flows",
        labels: &[],
        unit: Unit::Flag,
        limit: 0.0,
        after: AT_ONCE,
        expr: "clinch_config_last_reload_successful == 0",
        lasts: minutes(5),
        judge: Some(|readings, _, _| match readings.is_reload_refused {
            true => vec![Found::of(&[], 1.0)],
            false => Vec::new(),
        }),
    },
    Rule {
        name: "ClinchNotificationsFailing",
        severity: Severity::Warning,
        summary: "Clinch cannot send its own alerts.",
        description: "Channel {channel}: {value} notices failed in 15 minutes, limit {limit}.",
        command: "clinch alerts test {channel}",
        page: "/alerts",
        labels: &["channel"],
        unit: Unit::Count,
        limit: 3.0,
        after: AT_ONCE,
        expr: "sum by (channel) (increase(clinch_notifications_total{outcome=\"error\"}[15m])) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, _| {
            over(readings.notices.iter().map(|(channel, failed)| Found::of(&[channel], *failed as f64)), limit)
        }),
    },
    Rule {
        name: "ClinchSafeModeLong",
        severity: Severity::Warning,
        summary: "Safe mode has been on for long.",
        description: "Scope {scope}, for {value}, limit {limit}. Nothing is lost, nothing is sent.",
        command: "clinch safe-mode status",
        page: "/safe-mode",
        labels: &["scope"],
        unit: Unit::Seconds,
        limit: 7_200.0,
        after: AT_ONCE,
        expr: "clinch_safe_mode == 1",
        lasts: minutes(120),
        judge: Some(|readings, limit, now| {
            over(readings.safe_modes.iter().map(|(scope, since)| Found::of(&[scope], age(*since, now))), limit)
        }),
    },
    Rule {
        name: "ClinchReplayRunning",
        severity: Severity::Info,
        summary: "A replay is running.",
        description: "{value} replay plans run.",
        command: "clinch replay ls",
        page: "/replays",
        labels: &[],
        unit: Unit::Count,
        limit: 0.0,
        after: AT_ONCE,
        expr: "sum(clinch_replay_batches_active) > {limit}",
        lasts: AT_ONCE,
        judge: Some(|readings, limit, _| over([Found::of(&[], readings.replays as f64)], limit)),
    },
];

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, after};
    use super::super::{DeadReading, FlowReading, IntakeReading, StoreReading};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn judged(rule: &str, readings: &Readings, now: Timestamp) -> Vec<(Vec<String>, f64)> {
        let rule = Rule::find(rule).expect("a rule");
        let found = rule.judge.expect("it is judged here")(readings, rule.limit, now);
        found.into_iter().map(|found| (found.values, found.value)).collect()
    }

    #[test]
    fn h4_every_rule_says_what_is_wrong_what_to_run_and_for_which_labels() {
        let mut names = BTreeSet::new();
        for rule in RULES {
            assert!(names.insert(rule.name) && rule.name.starts_with("Clinch"), "{rule:?}");
            assert!(rule.command.starts_with("clinch ") && rule.page.starts_with('/'), "{rule:?}");
            assert!(rule.summary.ends_with('.') && rule.description.ends_with('.'), "{rule:?}");
            assert_eq!(
                rule.unit == Unit::Flag,
                !rule.expr.contains("{limit}") && rule.limit == 0.0 && !rule.description.contains("{value}"),
                "{rule:?}"
            );
            for text in [rule.description, rule.command, rule.page] {
                for word in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
                    assert!(["value", "limit"].contains(&word.0) || rule.labels.contains(&word.0), "{rule:?}: {text}");
                }
            }
        }
    }

    #[test]
    fn h4_a_partner_that_fails_is_found_by_its_share_and_an_open_circuit_at_once() {
        let partner = |calls, failed| PartnerReading { name: "crm".into(), calls, failed, ..PartnerReading::default() };
        let of = |partner| Readings { partners: vec![partner], ..Readings::default() };
        assert_eq!(judged("ClinchErrorRate", &of(partner(4, 3)), NOW), [(vec!["crm".to_string()], 0.75)]);
        assert_eq!(judged("ClinchErrorRate", &of(partner(2, 2)), NOW), [], "two calls say nothing");
        assert_eq!(judged("ClinchErrorRate", &of(partner(100, 50)), NOW), [], "the limit itself is not too much");
        let open = PartnerReading { open_since: Some(NOW), ..partner(0, 0) };
        assert_eq!(judged("ClinchCircuitOpen", &of(open), NOW), [(vec!["crm".to_string()], 1.0)]);
    }

    #[test]
    fn h4_a_source_is_silent_only_where_it_may_not_be() {
        let source = |silence| IntakeReading { source: "shop".into(), silence, ..IntakeReading::default() };
        let of = |source| Readings { intake: vec![source], ..Readings::default() };
        let hour = Duration::from_secs(3_600);
        assert_eq!(judged("ClinchSourceSilent", &of(source(Some((hour, NOW)))), after(3_600)), []);
        let silent = judged("ClinchSourceSilent", &of(source(Some((hour, NOW)))), after(3_601));
        assert_eq!(silent, [(vec!["shop".to_string()], 3_601.0)]);
        assert_eq!(judged("ClinchSourceSilent", &of(source(None)), after(1_000_000)), []);
    }

    #[test]
    fn h5_an_objective_that_burns_is_found_by_the_pair_of_windows_that_burn() {
        let of = |[five, thirty, hour, six]: [u64; 4]| {
            let slo = slo::Slo::default();
            let counted = [five, thirty, hour, six].map(|missed| slo::Counted { jobs: 100, missed });
            let burns = slo::WINDOWS.into_iter().zip(counted).map(|(window, counted)| slo.burn(window, counted));
            Readings { slo, burns: burns.collect(), ..Readings::default() }
        };
        let found = |rule: &str, readings: &Readings| {
            judged(rule, readings, NOW).into_iter().map(|(_, rate)| rate.round()).collect::<Vec<_>>()
        };
        let fast = of([90, 90, 80, 10]);
        assert_eq!(found("ClinchObjectiveBurning", &fast), [16.0]);
        assert_eq!(found("ClinchObjectiveBurningSlowly", &fast), [0.0; 0]);
        let slow = of([0, 40, 40, 35]);
        assert_eq!(found("ClinchObjectiveBurning", &slow), [0.0; 0]);
        assert_eq!(found("ClinchObjectiveBurningSlowly", &slow), [7.0]);
        for (name, pair) in [("ClinchObjectiveBurning", slo::FAST), ("ClinchObjectiveBurningSlowly", slo::SLOW)] {
            let rule = Rule::find(name).expect("a rule");
            for window in [pair.long, pair.short] {
                assert!(rule.expr.contains(&format!("[{}]", window.word)), "{name} looks at other windows");
            }
            let (jobs, most) = (format!(">= {}", slo::JOBS_MIN), format!("clamp_max({} /", slo::NEARLY_ALL));
            assert_eq!((rule.expr.matches(&jobs).count(), rule.expr.matches(&most).count()), (2, 2), "{name}");
        }
    }

    #[test]
    fn h4_what_the_store_says_is_judged_as_it_is() {
        let of =
            |is_unwell, free_bytes| Readings { store: StoreReading { is_unwell, free_bytes }, ..Readings::default() };
        assert_eq!(judged("ClinchStoreAlmostFull", &of(false, Some(5)), NOW), [(vec![], 5.0)]);
        assert_eq!(judged("ClinchStoreAlmostFull", &of(false, None), NOW), [], "nobody can say");
        assert_eq!(judged("ClinchStoreFailing", &of(true, None), NOW), [(vec![], 1.0)]);
    }

    proptest! {
        #[test]
        fn h4_of_nothing_nothing_is_found_and_no_limit_is_broken_by_less(
            count in 0u64..20_000, seconds in 0u64..1_000_000, share in 0.0f64..1.0,
        ) {
            let (calls, failed) = (1_000, (share * 1_000.0) as u64);
            let readings = Readings {
                flows: vec![FlowReading {
                    flow: "orders".into(), queued: count, oldest_queued: Some(NOW), oldest: Some(NOW), stuck_since: Some(NOW),
                    oldest_dead: Some(NOW), oldest_approval: Some(NOW),
                }],
                dead: vec![DeadReading { flow: "orders".into(), reason: "timeout", entered: count }],
                partners: vec![PartnerReading { name: "crm".into(), calls, failed, ..PartnerReading::default() }],
                intake: vec![IntakeReading {
                    source: "shop".into(), requests: calls, store_errors: failed, signed_requests: calls,
                    unverified: failed, conflicts: count, same_bodies: count, silence: None,
                }],
                end_to_end_p95: Some(Duration::from_secs(seconds)),
                ..Readings::default()
            };
            for rule in RULES {
                let Some(judge) = rule.judge else { continue };
                prop_assert_eq!(judge(&Readings::default(), rule.limit, after(seconds)), vec![], "{}", rule.name);
                for found in judge(&readings, rule.limit, after(seconds)) {
                    prop_assert!(found.value > rule.limit || rule.unit == Unit::Flag, "{}", rule.name);
                    prop_assert_eq!(found.values.len(), rule.labels.len(), "{}", rule.name);
                    // A limit that is higher finds no more.
                    prop_assert!(!judge(&readings, found.value, after(seconds)).contains(&found) || rule.unit == Unit::Flag);
                }
            }
        }
    }
}
