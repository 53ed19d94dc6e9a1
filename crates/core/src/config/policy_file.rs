//! `policies.yml`.

use super::cross::{Parts, at};
use super::dialect::POLICIES;
use super::nearest::nearest;
use super::problem::{Code, Problem, Report};
use super::read::{Reader, Spot, word};
use super::shape;
use super::step::read_headers;
use super::value::{self, Names};
use super::yaml::Node;
use crate::expr::Template;
use crate::integration::{Integration, Lookup};
use crate::policy::{Cap, Consent, Policy, Question, QuietHours, Then};
use crate::worker::{STEP_TIMEOUT_DEFAULT, Worker};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct PoliciesFile {
    pub names: Vec<Spot<String>>,
    pub policies: Vec<Arc<Policy>>,
    /// The integrations that they name.
    pub called: Vec<Spot<String>>,
    /// The channels that they name.
    pub channels: Vec<Spot<String>>,
    /// The words for the channels that there are.
    known_channels: BTreeSet<String>,
}

pub(super) fn read(root: &Node, integrations: &[Arc<Integration>], report: &mut Report<'_>) -> PoliciesFile {
    shape::check(root, &POLICIES, root.head(), report);
    let reader = Reader { node: root, report };
    let named = reader.node.get("policies").map_or(&[][..], Node::fields);
    let mut file = PoliciesFile::default();
    file.known_channels.extend(integrations.iter().filter_map(|known| known.channel_word()).map(str::to_string));
    let mut problems = Vec::new();
    for (key, node) in named {
        let policy = Reader { node, report };
        file.names.push(Spot { value: key.text.clone(), file: report.file.to_string(), span: key.span });
        file.called.extend(names(policy, "integrations"));
        file.called.extend(policy.map("consent").and_then(|consent| consent.spot("integration", value::name)));
        file.channels.extend(names(policy, "channels"));
        file.channels.extend(policy.maps("frequency").filter_map(|cap| cap.spot("channel", value::name)));
        file.policies.extend(read_policy(&key.text, policy, integrations).map(Arc::new));
        if ["consent", "frequency", "quiet_hours"].iter().all(|rule| !policy.has(rule)) && policy.is_sound() {
            let said = format!("policy `{}` has no rule", key.text);
            let problem = Problem::error(Code::MissingKey, key.span, said).label("allows everything");
            problems.push(problem.help("add `consent:`, `frequency:` or `quiet_hours:`"));
        }
        let more = [nobody_counted(policy), never_or_always(policy), asks_anybody(policy, integrations)];
        problems.extend(more.into_iter().flatten());
    }
    problems.into_iter().for_each(|problem| report.add(problem));
    file
}

fn names(policy: Reader<'_>, list: &str) -> Vec<Spot<String>> {
    let items = policy.node.get(list).map_or(&[][..], Node::items).iter();
    let spot = |item: &Node| {
        let value = value::name(item, list).ok()?;
        Some(Spot { value, file: policy.report.file.to_string(), span: item.head() })
    };
    items.filter_map(spot).collect()
}

fn read_policy(name: &str, policy: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Policy> {
    let list = |list: &str| names(policy, list).into_iter().map(|spot| spot.value).collect();
    let utc = Template::Plain("UTC".into());
    let read = Policy {
        name: name.into(),
        channels: list("channels"),
        integrations: list("integrations"),
        contact: policy.may("contact", value::template)?,
        consent: read_consent(policy, integrations)?,
        time_zone: policy.or("time_zone", utc, value::zone_of_contact)?,
        caps: policy.maps("frequency").map(read_cap).collect::<Option<_>>()?,
        quiet: match policy.map("quiet_hours") {
            None => None,
            Some(quiet) => Some(read_quiet(quiet)?),
        },
    };
    policy.is_sound().then_some(read)
}

/// The inner `None`: nobody need agree.
fn read_consent(policy: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Option<Consent>> {
    match policy.node.get("consent") {
        None => return Some(None),
        Some(node) if node.text().is_some() => return Some(Some(Consent::Said(policy.must("consent", value::expr)?))),
        Some(_) => {}
    }
    let consent = policy.map("consent")?;
    let name = consent.must("integration", value::name)?;
    let partner = integrations.iter().find(|known| *known.name == *name)?.clone();
    let lookup = Lookup {
        method: consent.or("method", "GET", value::text)?.to_string(),
        url: consent.must("url", value::url_or_path)?,
        headers: consent.map("headers").map_or(Some(Vec::new()), read_headers)?,
        done: consent.must("given", value::expr)?,
    };
    let timeout = consent.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT);
    let read = Question { partner, timeout, lookup };
    consent.is_sound().then_some(Some(Consent::Asked(Box::new(read))))
}

fn read_cap(cap: Reader<'_>) -> Option<Cap> {
    let read = Cap {
        max: NonZeroU32::new(u32::try_from(cap.must("max", value::int)?).ok()?)?,
        per: cap.must("per", value::window)?,
        channel: cap.may("channel", value::name)?.map(Arc::from),
    };
    cap.is_sound().then_some(read)
}

fn read_quiet(quiet: Reader<'_>) -> Option<QuietHours> {
    let then = [("wait", Then::Wait), ("decline", Then::Decline)];
    let (from, to) = (quiet.must("from", value::hour)?, quiet.must("to", value::hour)?);
    let read = QuietHours { from, to, then: quiet.or("then", Then::Wait, word(&then))? };
    quiet.is_sound().then_some(read)
}

fn nobody_counted(policy: Reader<'_>) -> Option<Problem> {
    let (key, _) = policy.node.entry("frequency").filter(|_| !policy.has("contact"))?;
    let problem = Problem::error(Code::MissingKey, key.span, "`frequency` must know whom to count");
    Some(problem.label("needs `contact`").help("add `contact: \"{{ body.customer.id }}\"`"))
}

fn never_or_always(policy: Reader<'_>) -> Option<Problem> {
    let quiet = policy.map("quiet_hours")?;
    let (from, to) = (quiet.must("from", value::hour)?, quiet.spot("to", value::hour)?);
    (from == to.value).then(|| {
        let problem = Problem::error(Code::BadHours, to.span, "quiet hours that end when they begin are none, or all");
        problem.help("write another hour, or remove `quiet_hours`")
    })
}

/// Only where a partner has an address of its own is it certain who gets its credentials.
fn asks_anybody(policy: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let named = policy.map("consent")?.spot("integration", value::name)?;
    // An integration that is not there is a problem of its own.
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    known.base_url.is_none().then(|| {
        let said = format!("integration `{}` does not say where it is", named.value);
        let help = format!("add `base_url: https://…` below `{}:` in clinch.yml", named.value);
        Problem::error(Code::BadUrl, named.span, said).label("has no `base_url`").help(help)
    })
}

/// What only the whole workspace can tell.
pub(super) fn check(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = unknown_policies(parts);
    found.extend(unknown_channels(parts));
    found.extend(idle_policies(parts));
    found
}

fn unknown_policies(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.policies_unread {
        return Vec::new();
    }
    let known = || parts.policies.iter().flat_map(|file| &file.names).map(|name| name.value.as_str());
    let named = parts.workers.iter().flat_map(|worker| &worker.policies);
    let unknown = named.filter(|named| !known().any(|name| name == named.value));
    let problem = |named: &Spot<String>| {
        let said = format!("policy `{}` is not defined", named.value);
        let problem = Problem::error(Code::UnknownPolicy, named.span, said).label("unknown policy");
        let add = format!("add to policies.yml, below `policies:`:\n  {}:\n    consent: body.…", named.value);
        at(named, problem.meant(nearest(&named.value, known()), add))
    };
    unknown.map(problem).collect()
}

/// A channel that is misspelt would be ruled over by nobody.
fn unknown_channels(parts: &Parts<'_>) -> Vec<Problem> {
    let Some(file) = parts.policies.as_ref().filter(|_| !parts.settings_unread) else { return Vec::new() };
    let unknown = file.channels.iter().filter(|channel| !file.known_channels.contains(&channel.value));
    let problem = |channel: &Spot<String>| {
        let said = format!("nothing goes over channel `{}`", channel.value);
        let problem = Problem::error(Code::UnknownChannel, channel.span, said).label("unknown channel");
        let add = format!("write `channel: {}` below an integration of clinch.yml", channel.value);
        at(channel, problem.meant(nearest(&channel.value, file.known_channels.iter().map(String::as_str)), add))
    };
    unknown.map(problem).collect()
}

fn idle_policies(parts: &Parts<'_>) -> Vec<Problem> {
    let Some(file) = parts.policies.as_ref().filter(|_| !parts.workers_unread) else { return Vec::new() };
    if parts.workers.iter().any(|file| file.worker.is_none()) {
        return Vec::new();
    }
    let steps = || parts.workers.iter().filter_map(|file| file.worker.as_ref()).flat_map(Worker::all_steps);
    let is_named =
        |name: &str| parts.workers.iter().flat_map(|worker| &worker.policies).any(|named| named.value == name);
    // Names that lead nowhere are problems of their own.
    let is_whole = |policy: &Policy| {
        let is_partner = |name: &String| parts.integrations.iter().any(|known| known.value == *name);
        policy.channels.iter().all(|channel| file.known_channels.contains(channel))
            && policy.integrations.iter().all(is_partner)
    };
    let is_idle = |policy: &&Arc<Policy>| {
        is_whole(policy) && !is_named(&policy.name) && !steps().any(|step| policy.covers(&step.action))
    };
    let problem = |policy: &Arc<Policy>| {
        let spot = file.names.iter().find(|spot| *spot.value == *policy.name)?;
        let said = format!("nothing is under policy `{}`", policy.name);
        let problem = Problem::warning(Code::IdlePolicy, spot.span, said).label("rules over no step");
        let help = "name its `channels:` or `integrations:`, or write `policies: [NAME]` to a step";
        Some(at(spot, problem.help(help.replace("NAME", &policy.name))))
    };
    file.policies.iter().filter(is_idle).filter_map(problem).collect()
}

/// The secrets that a policy reads.
pub(super) fn secrets(policy: &Policy) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = policy.contact.iter().flat_map(Template::secrets).collect();
    found.extend(policy.time_zone.secrets());
    match &policy.consent {
        None => {}
        Some(Consent::Said(expr)) => found.extend(Names::of_expr(expr).secrets),
        Some(Consent::Asked(question)) => {
            found.extend(question.lookup.url.secrets());
            found.extend(question.lookup.headers.iter().flat_map(|(_, value)| value.secrets()));
            found.extend(Names::of_expr(&question.lookup.done).secrets);
        }
    }
    found
}
