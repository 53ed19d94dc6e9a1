//! `flows/*.yml`.

use super::dialect::{ACTIONS, FLOW, MODIFIERS};
use super::nearest::nearest;
use super::problem::{Code, Problem, Report, shown};
use super::read::{Reader, Spot, word};
use super::shape;
use super::source::{self, SourceFile};
use super::value;
use super::yaml::Node;
use crate::flow::{
    AnswerRule, BODY_BYTES_DEFAULT, DedupRule, Enqueue, Flow, Method, OnConflict, OnDuplicateOfDead, Route,
    Subscription,
};
use std::time::Duration;

const STATUS_DEFAULT: i64 = 202;

/// What a flow's file says, as far as it can be read.
pub(super) struct FlowFile {
    pub name: Option<Spot<String>>,
    pub routes: Vec<Spot<(Method, String)>>,
    /// Its triggers that are sources of its own.
    pub sources: Vec<SourceFile>,
    /// The sources that it names.
    pub named_sources: Vec<Spot<String>>,
    pub ttls: Vec<Spot<Duration>>,
    /// The stores that its routes name after `kv:`.
    pub stores: Vec<Spot<String>>,
    /// The queues that its steps name.
    pub queues: Vec<Spot<String>>,
    pub step_names: Vec<Spot<String>>,
    pub flow: Option<Flow>,
    pub refusals: Vec<Problem>,
}

pub(super) fn read(root: &Node, report: &mut Report<'_>) -> FlowFile {
    shape::check(root, &FLOW, root.head(), report);
    let reader = Reader { node: root, report };
    let https = reader.maps("triggers").filter_map(|trigger| trigger.map("http"));
    let routes = https.clone().filter(|http| !source::is_source(*http));
    let name = reader.spot("name", value::name);
    let status = reader.map("responses").and_then(|said| u16::try_from(said.must("status", value::int)?).ok());
    let inline = https.clone().filter(|http| source::is_source(*http)).filter_map(|http| {
        let method = http.or("method", Method::Post, word(METHODS))?;
        Some(source::read_inline(name.clone()?, method, status, http))
    });
    let steps = reader.maps("steps");
    let file = FlowFile {
        sources: inline.collect(),
        named_sources: reader.maps("triggers").filter_map(|trigger| trigger.spot("source", value::name)).collect(),
        name: name.clone(),
        routes: routes.clone().filter_map(read_address).collect(),
        ttls: routes.filter_map(|http| http.map("idempotency")?.spot("ttl", value::duration)).collect(),
        stores: https.clone().filter_map(|http| http.map("idempotency")?.spot("store", kv_name)).collect(),
        queues: steps.clone().filter_map(|step| step.map("queue")?.spot("name", value::name)).collect(),
        step_names: steps.clone().filter_map(|step| step.step_name()).collect(),
        flow: read_flow(reader),
        refusals: steps.filter(Reader::is_sound).filter_map(refusal).collect(),
    };
    let mut problems: Vec<Problem> = unknown_success_step(reader, &file.step_names).into_iter().collect();
    for http in https {
        source::check(http, http.node.head(), &mut problems);
        problems.extend(source::unsaid(http));
    }
    problems.into_iter().for_each(|problem| report.add(problem));
    file
}

fn read_flow(flow: Reader<'_>) -> Option<Flow> {
    let name = flow.must("name", value::name)?;
    let (mut routes, mut subscriptions) = (Vec::new(), Vec::new());
    for trigger in flow.maps("triggers") {
        match trigger.map("http") {
            Some(http) if source::is_source(http) => {
                subscriptions.push(Subscription { source: name.clone(), on: Vec::new() });
            }
            Some(http) => routes.push(read_route(http, &name)?),
            None => subscriptions.push(Subscription {
                source: trigger.must("source", value::name)?,
                on: trigger.or("on", Vec::new(), source::patterns)?,
            }),
        }
    }
    let runs = flow.maps("steps").filter(|step| refusal(*step).is_none());
    let enqueue = runs.map(read_enqueue).collect::<Option<Vec<_>>>()?;
    let status =
        flow.map("responses").map_or(Some(STATUS_DEFAULT), |said| said.or("status", STATUS_DEFAULT, value::int))?;
    let answer = AnswerRule { status: u16::try_from(status).ok()? };
    (flow.is_sound() && !enqueue.is_empty()).then_some(Flow { name, routes, subscriptions, enqueue, answer })
}

const METHODS: &[(&str, Method)] = &[("POST", Method::Post), ("PUT", Method::Put), ("PATCH", Method::Patch)];

fn read_address(http: Reader<'_>) -> Option<Spot<(Method, String)>> {
    let method = http.or("method", Method::Post, word(METHODS))?;
    let path = http.spot("path", value::path)?;
    Some(Spot { value: (method, path.value), file: path.file, span: path.span })
}

fn read_route(http: Reader<'_>, flow: &str) -> Option<Route> {
    let (method, path) = read_address(http)?.value;
    let dedup = match http.map("idempotency") {
        Some(rule) => Some(read_dedup(rule, flow)?),
        None => None,
    };
    Some(Route {
        method,
        path,
        body_bytes_max: http.or("body_max", BODY_BYTES_DEFAULT, value::size)?,
        tenant: http.may("tenant_from", value::key_part)?,
        find_by: http.may("find_by", value::key_rule)?.map_or_else(Vec::new, |rule| rule.parts().to_vec()),
        dedup,
    })
}

fn read_dedup(rule: Reader<'_>, flow: &str) -> Option<DedupRule> {
    let conflicts = [("reject", OnConflict::Reject), ("keep_first", OnConflict::KeepFirst)];
    let dead = [("keep", OnDuplicateOfDead::Keep), ("replay", OnDuplicateOfDead::Replay)];
    Some(DedupRule {
        key: rule.must("key_from", value::key_rule)?,
        store: rule.or("store", flow.to_string(), kv_name)?,
        ttl: rule.must("ttl", value::duration)?,
        required: rule.or("required", true, value::bool)?,
        on_conflict: rule.or("on_conflict", OnConflict::Reject, word(&conflicts))?,
        on_duplicate_of_dead: rule.or("on_duplicate_of_dead", OnDuplicateOfDead::Keep, word(&dead))?,
    })
}

fn kv_name(node: &Node, name: &str) -> value::Read<String> {
    value::prefixed(node, name, "kv:")
}

fn read_enqueue(step: Reader<'_>) -> Option<Enqueue> {
    let queue = step.map("queue")?;
    Some(Enqueue {
        step: step.step_name()?.value,
        queue: queue.must("name", value::name)?,
        key: queue.may("key_from", value::key_rule)?,
        group: queue.may("group_from", value::key_rule)?,
        priority: queue.may("priority", value::priority)?,
        delay: queue.may("delay", value::duration)?,
    })
}

/// At the edge this version only puts jobs into queues, always and once.
fn refusal(step: Reader<'_>) -> Option<Problem> {
    let later = ACTIONS.iter().filter(|action| **action != "queue").chain(MODIFIERS).chain(&["if", "compensate"]);
    let (key, _) = later.filter_map(|name| step.node.entry(name)).min_by_key(|(key, _)| key.span.start)?;
    let step = step.step_name().map_or(String::new(), |name| format!(" `{}`", name.value));
    let said = format!("step{step} of a flow uses `{}`, which this version of clinch cannot run yet", key.text);
    let problem = Problem::warning(Code::NotYet, key.span, said).label("not available yet");
    Some(problem.help("remove it, or put the delivery into a queue and do it in a worker"))
}

fn unknown_success_step(flow: Reader<'_>, names: &[Spot<String>]) -> Option<Problem> {
    let said = flow.map("responses")?.spot("success_from", |node, name| value::prefixed(node, name, "step:"))?;
    let all_named = names.len() == flow.maps("steps").count();
    if !all_named || names.iter().any(|name| name.value == said.value) {
        return None;
    }
    let message = format!("`success_from` names step `{}`, which this flow does not have", shown(&said.value));
    let known: Vec<&str> = names.iter().map(|name| name.value.as_str()).collect();
    let problem = Problem::error(Code::UnknownStep, said.span, message).label("unknown step");
    let problem = problem.note(format!("its steps: {}", known.join(", ")));
    let only = known.first().copied().filter(|_| known.len() == 1);
    let meant = nearest(&said.value, known.iter().copied()).or(only);
    let place = meant.and_then(|meant| names.iter().find(|name| name.value == meant));
    Some(match place {
        Some(place) => {
            problem.also(place.span, "this one exists").help(format!("did you mean `step:{}`?", place.value))
        }
        None => problem.help("name one of its steps, as `step:NAME`"),
    })
}
