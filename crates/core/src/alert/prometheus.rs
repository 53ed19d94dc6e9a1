//! The rules for a Prometheus: printed from the same list that clinch judges by itself.

use super::{RULES, Routes, Rule, Severity, Unit};
use std::time::Duration;

/// The groups, by who is to be told.
const GROUPS: [(&str, &str, Severity); 3] = [
    ("clinch-symptoms", "these may wake a person", Severity::Critical),
    ("clinch-causes", "these become tickets", Severity::Warning),
    ("clinch-info", "good to know", Severity::Info),
];

/// The file, with the limits of this workspace; `console` is where the runbooks are.
pub fn rules(routes: &Routes, console: &str) -> String {
    let mut file =
        String::from("# Printed by `clinch alerts print`. The same rules are judged by clinch itself.\ngroups:\n");
    for (group, who, severity) in GROUPS {
        let rules = RULES.iter().filter(|rule| routes.severity(rule) == severity && !routes.off.contains(rule.name));
        let rules: Vec<String> = rules.map(|rule| told(rule, routes, console)).collect();
        if !rules.is_empty() {
            file.push_str(&format!("  - name: {group} # {who}\n    rules:\n{}", rules.concat()));
        }
    }
    file
}

fn told(rule: &Rule, routes: &Routes, console: &str) -> String {
    let limit = routes.limit(rule);
    let expr = expr(rule, limit).replace('\n', "\n          ");
    let runbook = if rule.labels.contains(&"reason") { "{{ $labels.reason }}" } else { rule.name };
    let mut text = format!("      - alert: {}\n        expr: |\n          {expr}\n", rule.name);
    if lasts(rule, routes) > Duration::ZERO {
        text.push_str(&format!("        for: {}s\n", lasts(rule, routes).as_secs()));
    }
    text.push_str(&format!("        labels:\n          severity: {}\n        annotations:\n", routes.severity(rule)));
    for (name, value) in [
        ("summary", rule.summary.to_string()),
        ("description", templated(rule.description, rule, limit)),
        ("command", templated(rule.command, rule, limit)),
        ("runbook_url", format!("{}/runbooks/{runbook}", console.trim_end_matches('/'))),
    ] {
        text.push_str(&format!("          {name}: {}\n", quoted(&value)));
    }
    text
}

/// Where the limit is a length of time that the expression does not hold, it is how long it must be so.
fn lasts(rule: &Rule, routes: &Routes) -> Duration {
    let is_length = rule.unit == Unit::Seconds && !rule.expr.contains("{limit}") && rule.limit > 0.0;
    if is_length { Duration::from_secs_f64(routes.limit(rule)) } else { rule.lasts }
}

/// What Prometheus computes.
pub fn expr(rule: &Rule, limit: f64) -> String {
    rule.expr.replace("{limit}", &format!("{limit}"))
}

/// A text with Prometheus' own words for labels and values.
fn templated(text: &str, rule: &Rule, limit: f64) -> String {
    let value = match rule.unit {
        Unit::Count | Unit::Times | Unit::Flag => "{{ $value | humanize }}",
        Unit::Share => "{{ $value | humanizePercentage }}",
        Unit::Seconds => "{{ $value | humanizeDuration }}",
        Unit::Bytes => "{{ $value | humanize1024 }}B",
    };
    let mut text = text.replace("{value}", value).replace("{limit}", &rule.unit.told(limit));
    for label in rule.labels {
        text = text.replace(&format!("{{{label}}}"), &format!("{{{{ $labels.{label} }}}}"));
    }
    text
}

/// As YAML writes a text that is only itself.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::super::{Limit, Threshold};
    use super::*;
    use crate::config::Files;

    #[test]
    fn h4_every_rule_is_printed_once_with_its_words_and_its_runbook() {
        let file = rules(&Routes::default(), "https://clinch.example.com/");
        for rule in RULES {
            assert_eq!(file.matches(&format!("alert: {}\n", rule.name)).count(), 1, "{rule:?}");
        }
        assert!(file.contains("runbook_url: 'https://clinch.example.com/runbooks/ClinchCircuitOpen'"));
        assert!(file.contains("runbook_url: 'https://clinch.example.com/runbooks/{{ $labels.reason }}'"));
        assert!(file.contains("command: 'clinch integrations show {{ $labels.integration }}'"), "{file}");
        assert!(!file.contains("{limit}") && !file.contains("{value}"), "{file}");
        assert_eq!(file.matches("severity: critical").count(), 7);
    }

    #[test]
    fn h4_what_a_workspace_says_of_a_rule_is_printed_too() {
        let mut routes = Routes::default();
        routes.off.insert("ClinchDown".into());
        let threshold = |limit, severity| Threshold { limit: Some(Limit::new(limit)), after: None, severity };
        routes.rules.insert("ClinchQueueDeep".into(), threshold(50.0, Some(Severity::Critical)));
        routes.rules.insert("ClinchSafeModeLong".into(), threshold(600.0, None));
        let file = rules(&routes, "http://localhost");
        assert!(!file.contains("ClinchDown") && file.contains("sum by (flow) (clinch_jobs{state=\"queued\"}) > 50\n"));
        assert_eq!(file.matches("severity: critical").count(), 7);
        assert!(file.contains("clinch_safe_mode == 1\n        for: 600s\n"), "{file}");
    }

    #[test]
    fn h4_the_printed_file_is_yaml() {
        // The same reader as for a workspace: it knows where every value is.
        let text = rules(&Routes::default(), "http://localhost");
        let files = Files(vec![("clinch.yml".into(), text)]);
        let problems = crate::config::load(&files).expect_err("it is no workspace");
        assert!(problems.iter().all(|problem| problem.code == crate::config::Code::UnknownKey), "{problems:?}");
    }
}
