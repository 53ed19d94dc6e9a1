//! `alerts:` of `clinch.yml`.

use super::nearest::nearest;
use super::problem::{Code, Problem, Span, printable};
use super::read::{Reader, word};
use super::settings_file::SettingsFile;
use super::source::texts;
use super::value::{self, Names};
use super::yaml::{Key, Node};
use crate::alert::{
    Channel, ChannelKind, END_TO_END_SLOW, Limit, PAGERDUTY, REPEAT_DEFAULT, RULES, Routes, Rule, Severity, Threshold,
    Unit,
};
use crate::message::Mailbox;
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) const CHANNELS_MAX: usize = 20;

const SEVERITIES: [(&str, Severity); 3] =
    [("critical", Severity::Critical), ("warning", Severity::Warning), ("info", Severity::Info)];

/// `late`: how long is too long by the objective of this workspace, if it has one of its own. A limit of the rule goes before it.
pub(super) fn read(settings: Reader<'_>, late: Option<Duration>) -> Routes {
    let mut routes = read_alerts(settings);
    if let Some(late) = late {
        let rule = routes.rules.entry(END_TO_END_SLOW.into()).or_default();
        rule.limit.get_or_insert(Limit::new(late.as_secs_f64()));
    }
    routes
}

fn read_alerts(settings: Reader<'_>) -> Routes {
    let Some(map) = settings.map("alerts") else { return Routes::default() };
    let rules = map.node.get("rules").map_or(&[][..], Node::fields);
    let channels = map.node.get("channels").map_or(&[][..], Node::fields);
    Routes {
        console: map.may("console", value::public_url).flatten(),
        repeat: map.or("repeat", REPEAT_DEFAULT, value::duration).unwrap_or(REPEAT_DEFAULT),
        off: map.or("off", Vec::new(), texts).unwrap_or_default().into_iter().collect(),
        rules: rules.iter().filter_map(|(key, node)| threshold(key, Reader { node, ..map })).collect(),
        channels: channels.iter().filter_map(|(key, node)| channel(key, Reader { node, ..map }, settings)).collect(),
    }
}

fn threshold(key: &Key, map: Reader<'_>) -> Option<(String, Threshold)> {
    let rule = Rule::find(&key.text)?;
    let threshold = Threshold {
        limit: map.may("limit", |node, _| limit(rule, node))?,
        after: map.may("for", value::duration)?,
        severity: map.may("severity", word(&SEVERITIES))?,
    };
    Some((key.text.clone(), threshold))
}

/// In the unit of the rule.
fn limit(rule: &Rule, node: &Node) -> value::Read<Limit> {
    let bad = || {
        let said = format!("`limit` of {} is {}", rule.name, rule.unit.example());
        Box::new(value::bad(Code::BadAlert, node, said).label("not such a limit"))
    };
    if !rule.has_limit() {
        let said = format!("{} has no limit: it is so or it is not", rule.name);
        return Err(Box::new(
            value::bad(Code::BadAlert, node, said).help("remove `limit`; `for` says how long it may be so"),
        ));
    }
    match rule.unit {
        Unit::Seconds => value::duration(node, "limit").map(|span| Limit::new(span.as_secs_f64())),
        Unit::Bytes => value::size(node, "limit").map(|bytes| Limit::new(bytes as f64)),
        Unit::Share => {
            let percent = node.text().and_then(|text| text.trim().strip_suffix('%')).ok_or_else(bad)?;
            let percent = percent.trim().parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
            percent.map(|percent| Limit::new(percent / 100.0)).ok_or_else(bad)
        }
        Unit::Times => {
            let times = node.text().and_then(|text| text.trim().parse::<f64>().ok());
            let times = times.filter(|times| (0.1..=1e6).contains(times));
            times.map(Limit::new).ok_or_else(bad)
        }
        Unit::Count | Unit::Flag => {
            let count = node.text().and_then(|text| text.trim().parse::<u32>().ok());
            count.map(|count| Limit::new(f64::from(count))).ok_or_else(bad)
        }
    }
}

fn channel(key: &Key, map: Reader<'_>, settings: Reader<'_>) -> Option<Channel> {
    let kind = if map.has("slack") {
        ChannelKind::SlackHook { url: map.must("slack", value::variable)? }
    } else if map.has("webhook") {
        let secret = map.may("secret", value::variable)?;
        ChannelKind::Webhook { url: map.must("webhook", value::url)?, secret }
    } else if map.has("pagerduty") {
        let url = map.or("url", PAGERDUTY.to_string(), value::public_url)?;
        ChannelKind::PagerDuty { key: map.must("pagerduty", value::variable)?, url }
    } else {
        let integration = map.must("integration", value::name)?;
        match carrier(settings, &integration)? {
            Carrier::Slack => ChannelKind::Slack { to: map.must("to", value::text)?.to_string(), integration },
            Carrier::Mail => {
                let to = addresses(map).into_iter().map(|(mailbox, _)| mailbox.ok()).collect::<Option<_>>()?;
                ChannelKind::Mail { to, integration }
            }
        }
    };
    Some(Channel { name: key.text.clone(), kind, severities: severities(settings.map("alerts")?, &key.text) })
}

/// What a channel is told: what the routes say, or all that is wrong.
fn severities(alerts: Reader<'_>, channel: &str) -> BTreeSet<Severity> {
    let Some(routes) = alerts.map("routes") else { return [Severity::Critical, Severity::Warning].into() };
    let names = |word: &str| routes.or(word, Vec::new(), texts).unwrap_or_default();
    let is_told = |(word, _): &&(&str, Severity)| names(word).iter().any(|name| name == channel);
    SEVERITIES.iter().filter(is_told).map(|(_, severity)| *severity).collect()
}

enum Carrier {
    Slack,
    Mail,
}

/// What an integration carries, by what is written of it: at this moment none has been read.
fn carrier(settings: Reader<'_>, name: &str) -> Option<Carrier> {
    let integration = settings.map("integrations")?.map(name)?;
    let is_slack = integration.node.get("message").and_then(Node::text) == Some("slack");
    match (integration.has("smtp"), is_slack) {
        (true, _) => Some(Carrier::Mail),
        (false, true) => Some(Carrier::Slack),
        (false, false) => None,
    }
}

fn addresses(map: Reader<'_>) -> Vec<(value::Read<Mailbox>, Span)> {
    let Some(node) = map.node.get("to") else { return Vec::new() };
    let one = [node];
    let nodes: Vec<&Node> = if node.text().is_some() { one.to_vec() } else { node.items().iter().collect() };
    nodes.into_iter().map(|node| (value::mailbox(node, "to"), node.head())).collect()
}

/// What cannot be seen in one value: names that nothing has, and channels that would tell nobody.
pub(super) fn check(settings: Reader<'_>, file: &SettingsFile, problems: &mut Vec<Problem>) {
    let Some(map) = settings.map("alerts") else { return };
    let off = map.node.get("off").map_or(&[][..], Node::items);
    problems.extend(off.iter().filter_map(|node| no_rule(node.text()?, node.head())));
    for (key, node) in map.node.get("rules").map_or(&[][..], Node::fields) {
        match (Rule::find(&key.text), node.get("limit")) {
            (None, _) => problems.extend(no_rule(&key.text, key.span)),
            (Some(rule), Some(node)) => problems.extend(limit(rule, node).err().map(|problem| *problem)),
            (Some(_), None) => {}
        }
    }
    let channels = map.node.get("channels").map_or(&[][..], Node::fields);
    if channels.len() > CHANNELS_MAX {
        let said = format!("`channels` has {} of them, and {CHANNELS_MAX} at most are told", channels.len());
        problems.push(Problem::error(Code::OutOfRange, channels[CHANNELS_MAX].0.span, said));
    }
    for (key, node) in channels {
        bad_channel(key, Reader { node, ..map }, settings, file, problems);
    }
    let Some(routes) = map.map("routes") else { return };
    let known = || channels.iter().map(|(key, _)| key.text.as_str());
    for node in SEVERITIES.iter().filter_map(|(word, _)| routes.node.get(word)).flat_map(Node::items) {
        let Some(name) = node.text().filter(|name| known().all(|known| known != *name)) else { continue };
        let said = format!("channel `{}` is not defined", printable(name));
        let problem = Problem::error(Code::UnknownChannel, node.head(), said).label("unknown channel");
        problems.push(problem.meant(nearest(name, known()), "add it below `channels:`".into()));
    }
}

fn no_rule(name: &str, span: Span) -> Option<Problem> {
    if Rule::find(name).is_some() {
        return None;
    }
    let said = format!("there is no alert `{}`", printable(name));
    let problem = Problem::error(Code::UnknownAlert, span, said).label("unknown alert");
    Some(problem.meant(nearest(name, RULES.iter().map(|rule| rule.name)), "`clinch alerts rules` lists them".into()))
}

fn bad_channel(key: &Key, map: Reader<'_>, settings: Reader<'_>, file: &SettingsFile, problems: &mut Vec<Problem>) {
    let with = |name: &str, of: &[&str]| map.has(name) && !of.iter().any(|of| map.has(of));
    for (name, of) in [("to", &["integration"][..]), ("secret", &["webhook"]), ("url", &["pagerduty"])] {
        let Some((written, _)) = map.node.entry(name).filter(|_| with(name, of)) else { continue };
        let said = format!("`{name}` is for channels with `{}`", of.join("` or `"));
        problems.push(Problem::error(Code::EitherOr, written.span, said).label("says nothing here"));
    }
    if let Some(url) = map.must("webhook", value::url)
        && Names::of(&url).roots.iter().any(|root| root != "secrets")
    {
        let said = "an alert is about no event: only secrets can be computed in `webhook`";
        let problem = Problem::error(Code::BadExpression, map.node.get("webhook").map_or(key.span, Node::head), said);
        problems.push(problem.help("write the URL as it is, or `${secrets.NAME}`"));
    }
    let Some(integration) = map.spot("integration", value::name) else { return };
    let known = file.integration_names.iter().map(|known| known.value.as_str());
    if !known.clone().any(|known| known == integration.value) {
        let said = format!("integration `{}` is not defined", integration.value);
        let problem = Problem::error(Code::UnknownIntegration, integration.span, said).label("unknown integration");
        problems.push(problem.meant(nearest(&integration.value, known), "add it below `integrations:`".into()));
        return;
    }
    let Some(carrier) = carrier(settings, &integration.value) else {
        let said = format!("integration `{}` carries neither mails nor messages of Slack", integration.value);
        let problem = Problem::error(Code::BadAlert, integration.span, said).label("needs `smtp` or `message: slack`");
        return problems.push(problem.help("or tell people by `webhook:`"));
    };
    let Some(to) = map.node.get("to") else {
        let said = format!("channel `{}` does not say who is told", key.text);
        let problem = Problem::error(Code::MissingKey, key.span, said).label("needs `to`");
        return problems.push(problem.help("add `to:`, a channel of Slack or mail addresses"));
    };
    match carrier {
        Carrier::Mail => {
            problems.extend(addresses(map).into_iter().filter_map(|(read, _)| read.err().map(|problem| *problem)));
        }
        Carrier::Slack if to.text().is_none() => {
            let said = "a message of Slack goes to one channel";
            let problem = Problem::error(Code::WrongType, to.head(), said).label("a list");
            problems.push(problem.help("write `to: '#incidents'`, and a channel of alerts for each other one"));
        }
        Carrier::Slack => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Files, Workspace, load, position};
    use super::*;

    const INTEGRATIONS: &str = "integrations:
  mail: {smtp: 'smtp://mail.example.com', from: Ops <ops@example.com>}
  chat: {message: slack, auth: {bearer: '${secrets.SLACK_TOKEN}'}}
  crm: {base_url: 'https://crm.example.com'}
";

    fn files(alerts: &str) -> Files {
        Files(vec![("clinch.yml".into(), format!("{INTEGRATIONS}{alerts}"))])
    }

    fn loaded(alerts: &str) -> Workspace {
        load(&files(alerts)).unwrap_or_else(|problems| panic!("{alerts}: {problems:?}")).0
    }

    /// Where the first problem is, after the integrations, and what is said.
    fn refused(alerts: &str, at: (usize, usize), said: &str) {
        let files = files(alerts);
        let problems = load(&files).err().unwrap_or_else(|| panic!("not refused: {alerts}"));
        let (line, column) = position(&files.0[0].1, problems[0].span.start);
        assert_eq!((line - 4, column), at, "{alerts}: {problems:?}");
        let told = format!("{} {}", problems[0].message, problems[0].help.as_deref().unwrap_or_default());
        assert!(told.contains(said), "{alerts}: {told}");
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn h4_alerts_are_as_the_settings_say() {
        let workspace = loaded(
            "alerts:
  console: https://clinch.example.com
  repeat: 30m
  off: [ClinchQueueDeep]
  rules:
    ClinchErrorRate: {limit: 20%, for: 5s, severity: critical}
    ClinchQueueStalled: {limit: 10m}
    ClinchStoreAlmostFull: {limit: 2GiB}
    ClinchDeadLettersGrowing: {limit: 1}
  channels:
    ops: {slack: '${secrets.HOOK}'}
    team: {integration: chat, to: '#incidents'}
    mail: {integration: mail, to: [a@example.com, Bo <b@example.com>]}
    hook: {webhook: 'https://example.com/in', secret: '${secrets.SIGN}'}
    pager: {pagerduty: '${secrets.PD}'}
  routes: {critical: [pager, ops], warning: [ops]}
",
        );
        let routes = &workspace.settings.alerts;
        assert_eq!(
            (routes.console.as_deref(), routes.repeat),
            (Some("https://clinch.example.com"), Duration::from_secs(1_800))
        );
        let rule = |name: &str| Rule::find(name).expect("a rule");
        let limits = ["ClinchErrorRate", "ClinchQueueStalled", "ClinchStoreAlmostFull", "ClinchDeadLettersGrowing"];
        assert_eq!(limits.map(|name| routes.limit(rule(name))), [0.2, 600.0, f64::from(1u32 << 31), 1.0]);
        assert_eq!(routes.after(rule("ClinchErrorRate")), Duration::from_secs(5));
        assert_eq!(routes.severity(rule("ClinchErrorRate")), Severity::Critical);
        assert!(!routes.judged().any(|rule| rule.name == "ClinchQueueDeep"));
        let told: Vec<(&str, &str, usize)> = routes
            .channels
            .iter()
            .map(|channel| (channel.name.as_str(), channel.kind.word(), channel.severities.len()))
            .collect();
        let expected = [
            ("ops", "slack", 2),
            ("team", "slack", 0),
            ("mail", "email", 0),
            ("hook", "webhook", 0),
            ("pager", "pagerduty", 1),
        ];
        assert_eq!(told, expected);
        for secret in ["HOOK", "SIGN", "PD"] {
            assert!(workspace.secrets.contains(secret), "{secret} is asked for at the start");
        }
        let usual = loaded("alerts: {channels: {ops: {slack: '${secrets.HOOK}'}}}\n");
        assert_eq!(usual.settings.alerts.channels[0].severities, [Severity::Critical, Severity::Warning].into());
        assert_eq!(loaded("").settings.alerts, Routes::default());
    }

    #[test]
    fn h5_what_is_too_slow_is_what_the_objective_says_unless_the_rule_says_another() {
        let limit = |settings: &str| {
            let workspace = loaded(settings);
            workspace.settings.alerts.limit(Rule::find(END_TO_END_SLOW).expect("a rule"))
        };
        assert_eq!(limit(""), 30.0);
        assert_eq!(limit("slo: {target: 99%}\n"), 30.0);
        assert_eq!(limit("slo: {end_to_end: 2m}\n"), 120.0);
        assert_eq!(limit("slo: {end_to_end: 2m}\nalerts: {rules: {ClinchEndToEndSlow: {for: 5m}}}\n"), 120.0);
        assert_eq!(limit("slo: {end_to_end: 2m}\nalerts: {rules: {ClinchEndToEndSlow: {limit: 10s}}}\n"), 10.0);
    }

    #[test]
    fn h4_what_cannot_be_meant_is_told_at_its_place() {
        refused("alerts: {off: [ClinchCircuit]}\n", (1, 16), "ClinchCircuitOpen");
        refused("alerts:\n  rules:\n    ClinchErorRate: {for: 1m}\n", (3, 5), "did you mean `ClinchErrorRate`");
        refused("alerts: {rules: {ClinchErrorRate: {limit: 5}}}\n", (1, 43), "a share, such as 5%");
        refused("alerts: {rules: {ClinchQueueDeep: {limit: many}}}\n", (1, 43), "a number, such as 10");
        refused("alerts: {rules: {ClinchQueueStalled: {limit: 5}}}\n", (1, 46), "needs a unit");
        refused("alerts: {rules: {ClinchObjectiveBurning: {limit: 0}}}\n", (1, 50), "a number, such as 14.4");
        refused("alerts: {rules: {ClinchCircuitOpen: {limit: 5}}}\n", (1, 45), "has no limit");
        refused("alerts: {channels: {x: {}}}\n", (1, 21), "does not say how people are told");
        refused("alerts: {channels: {x: {integration: mial, to: a@example.com}}}\n", (1, 38), "did you mean `mail`");
        refused("alerts: {channels: {x: {integration: crm, to: y}}}\n", (1, 38), "carries neither mails nor messages");
        refused("alerts: {channels: {x: {integration: mail}}}\n", (1, 21), "does not say who is told");
        refused("alerts: {channels: {x: {integration: mail, to: [nobody]}}}\n", (1, 49), "not a mail address");
        refused("alerts: {channels: {x: {integration: chat, to: [a, b]}}}\n", (1, 49), "goes to one channel");
        refused("alerts: {channels: {x: {slack: 'https://hooks.slack.com/x'}}}\n", (1, 32), "must be a secret");
        refused(
            "alerts: {channels: {x: {slack: '${secrets.A}', to: y}}}\n",
            (1, 48),
            "is for channels with `integration`",
        );
        refused("alerts: {channels: {x: {webhook: 'https://e.com/{{ body.id }}'}}}\n", (1, 34), "only secrets");
        refused(
            "alerts: {channels: {x: {webhook: 'https://e.com'}}, routes: {critical: [y]}}\n",
            (1, 73),
            "channel `y` is not defined",
        );
    }

    #[test]
    fn h4_a_source_says_how_long_it_may_be_silent() {
        let flow = "version: 1\nname: a\ntriggers: [{source: shop}]\nsteps: [{name: e, queue: {name: q}}]\n";
        let worker = "version: 1\nname: w\nconsumes: {queue: q}\nrun: [{name: s, http: {url: 'https://e.com', idempotency: header}}]\n";
        let settings = "sources: {shop: {verify: none, silence: 1h}}\n";
        let files = Files(vec![
            ("clinch.yml".into(), settings.into()),
            ("flows/a.yml".into(), flow.into()),
            ("queues.yml".into(), "queues: [{name: q}]\n".into()),
            ("workers/w.yml".into(), worker.into()),
        ]);
        let (workspace, _) = load(&files).expect("it loads");
        assert_eq!(workspace.sources[0].silence, Some(Duration::from_secs(3_600)));
    }
}
