//! What only the whole workspace can tell: names that lead nowhere, things that are there twice, times that do not fit.

use super::SlackButtons;
use super::flow_file::FlowFile;
use super::nearest::nearest;
use super::playbook_file::PlaybookFile;
use super::policy_file::{self, PoliciesFile};
use super::problem::{Code, Problem, position, shown};
use super::queues_file::QueuesFile;
use super::read::Spot;
use super::source::SourceFile;
use super::worker_file::WorkerFile;
use crate::flow::TypePattern;
use crate::message::{Channel, MessageTemplate};
use crate::playbook::{Playbook, queue_of};
use crate::schedule::QUEUE_PREFIX;
use crate::schema::Schema;
use crate::time::human;
use crate::worker::{Action, Worker};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

/// The files as far as they could be read.
pub(super) struct Parts<'a> {
    /// The text of every file, for places in other files than a problem's own.
    pub texts: HashMap<&'a str, &'a str>,
    /// The names below `kv:` of the settings.
    pub kv: Vec<Spot<String>>,
    /// The names below `integrations:` of the settings.
    pub integrations: Vec<Spot<String>>,
    /// The templates of safe mode: instead of which, and which.
    pub safe_templates: Vec<(Spot<String>, Spot<String>)>,
    /// Whose circuits turn safe mode on.
    pub safe_circuits: Vec<Spot<String>>,
    /// Whether the settings say that people may decide in Slack.
    pub has_buttons: bool,
    /// Of the settings, and of flows.
    pub sources: Vec<SourceFile>,
    /// By name; `None` for one that cannot be used.
    pub schemas: BTreeMap<String, Option<Arc<Schema>>>,
    /// By name.
    pub templates: BTreeMap<String, MessageTemplate>,
    /// The settings could not be read at all.
    pub settings_unread: bool,
    pub queues: Option<QueuesFile>,
    pub policies: Option<PoliciesFile>,
    pub flows: Vec<FlowFile>,
    /// Of playbooks too.
    pub workers: Vec<WorkerFile>,
    pub playbooks: Vec<PlaybookFile>,
    /// A file of queues, of a worker, or of a playbook, could not be read at all.
    pub queues_unread: bool,
    pub workers_unread: bool,
    pub playbooks_unread: bool,
    pub policies_unread: bool,
}

pub(super) fn check(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    found.extend(duplicate_names(parts));
    found.extend(duplicate_routes(parts));
    found.extend(duplicate_consumers(parts));
    found.extend(unknown_queues(parts));
    found.extend(unconsumed(parts));
    found.extend(nothing_to_pull(parts));
    found.extend(short_ttls(parts));
    found.extend(short_ttls_of_playbooks(parts));
    found.extend(unused_stores(parts));
    found.extend(one_group(parts));
    found.extend(unknown_sources(parts));
    found.extend(unused_sources(parts));
    found.extend(unstarted_playbooks(parts));
    found.extend(unknown_schemas(parts));
    found.extend(unknown_integrations(parts));
    found.extend(unknown_templates(parts));
    found.extend(unfit_templates(parts));
    found.extend(policy_file::check(parts));
    found
}

pub(super) fn at<T>(spot: &Spot<T>, problem: Problem) -> Problem {
    Problem { file: spot.file.clone(), span: spot.span, ..problem }
}

impl Parts<'_> {
    /// Says where the first of two is: under the same snippet if it is in the same file.
    fn with_first<T>(&self, first: &Spot<T>, second: &Spot<T>, problem: Problem) -> Problem {
        let problem = at(second, problem).label("again here");
        if first.file == second.file {
            return problem.also(first.span, "first here");
        }
        let (line, column) = position(self.texts.get(first.file.as_str()).unwrap_or(&""), first.span.start);
        problem.note(format!("the first is at {}:{line}:{column}", first.file))
    }

    fn queue_names(&self) -> &[Spot<String>] {
        self.queues.as_ref().map_or(&[], |file| &file.names)
    }
}

/// Each spot whose value an earlier one has, with the earliest.
fn repeated<'s, T: Eq + Hash>(spots: impl Iterator<Item = &'s Spot<T>>) -> Vec<(&'s Spot<T>, &'s Spot<T>)> {
    let mut first: HashMap<&T, &Spot<T>> = HashMap::new();
    let mut pairs = Vec::new();
    for spot in spots {
        match first.get(&spot.value) {
            Some(earlier) => pairs.push((*earlier, spot)),
            None => {
                first.insert(&spot.value, spot);
            }
        }
    }
    pairs
}

fn duplicate_names(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut look = |what: &str, pairs: Vec<(&Spot<String>, &Spot<String>)>| {
        for (first, second) in pairs {
            let said = format!("two {what}s have the name `{}`", second.value);
            let problem = Problem::error(Code::DuplicateName, second.span, said);
            found.push(parts.with_first(first, second, problem.help(format!("give each {what} a name of its own"))));
        }
    };
    look("queue", repeated(parts.queue_names().iter()));
    // A flow may have several routes; all of them are sources of its name.
    let mut names: Vec<&Spot<String>> = parts.sources.iter().map(|source| &source.name).collect();
    names.dedup_by(|second, first| first.file == second.file && first.value == second.value);
    look("source", repeated(names.into_iter()));
    look("flow", repeated(parts.flows.iter().filter_map(|flow| flow.name.as_ref())));
    let workers =
        || parts.workers.iter().filter(|worker| !worker.is_playbook).filter_map(|worker| worker.name.as_ref());
    look("worker", repeated(workers()));
    look("playbook", repeated(parts.playbooks.iter().filter_map(|playbook| playbook.name.as_ref())));
    let flow_steps = parts.flows.iter().map(|flow| &flow.step_names);
    for steps in flow_steps.chain(parts.workers.iter().map(|worker| &worker.step_names)) {
        look("step", repeated(steps.iter()));
    }
    // Both would be counted and asked for under one name.
    let flows = parts.flows.iter().filter_map(|flow| flow.name.as_ref()).map(|name| ("flow", name));
    let others: Vec<_> = flows.chain(workers().map(|name| ("worker", name))).collect();
    for name in parts.playbooks.iter().filter_map(|playbook| playbook.name.as_ref()) {
        let Some((what, other)) = others.iter().find(|(_, other)| other.value == name.value) else { continue };
        let said = format!("a playbook and a {what} have the name `{}`", name.value);
        let problem = Problem::error(Code::DuplicateName, name.span, said).help("give one of them another name");
        found.push(parts.with_first(*other, name, problem));
    }
    found
}

fn duplicate_routes(parts: &Parts<'_>) -> Vec<Problem> {
    let pairs = repeated(parts.flows.iter().flat_map(|flow| &flow.routes));
    let problem = |(first, second): (&_, &Spot<_>)| {
        let (method, path): &(crate::flow::Method, String) = &second.value;
        let said = format!("two routes take {} {}", method.word(), shown(path));
        let problem = Problem::error(Code::DuplicateRoute, second.span, said);
        parts.with_first(first, second, problem.help("give one of them another path or method"))
    };
    let of_routes = pairs.into_iter().map(problem).collect::<Vec<_>>();
    of_routes.into_iter().chain(shared_paths(parts)).chain(paths_of_buttons(parts)).collect()
}

/// Where buttons of Slack are pressed nothing else is delivered.
fn paths_of_buttons(parts: &Parts<'_>) -> Vec<Problem> {
    if !parts.has_buttons {
        return Vec::new();
    }
    let problem = |spot: Spot<()>| {
        let said = format!("{} is where buttons of Slack are pressed (`approvals:` in clinch.yml)", SlackButtons::PATH);
        let problem = Problem::error(Code::DuplicateRoute, spot.span, said).label("taken");
        at(&spot, problem.help("give it another path"))
    };
    let routes = parts.flows.iter().flat_map(|flow| &flow.routes).filter(|route| route.value.1 == SlackButtons::PATH);
    let routes = routes.map(|route| Spot { value: (), file: route.file.clone(), span: route.span });
    let sources = parts.sources.iter().filter_map(|source| source.path.as_ref());
    let sources = sources.filter(|path| path.value == SlackButtons::PATH);
    let sources = sources.map(|path| Spot { value: (), file: path.file.clone(), span: path.span });
    routes.chain(sources).map(problem).collect()
}

/// A source answers every method of its path.
fn shared_paths(parts: &Parts<'_>) -> Vec<Problem> {
    let of_sources = || parts.sources.iter().filter_map(|source| source.path.as_ref());
    let routes: Vec<Spot<String>> = parts
        .flows
        .iter()
        .flat_map(|flow| &flow.routes)
        .map(|route| Spot { value: route.value.1.clone(), file: route.file.clone(), span: route.span })
        .filter(|route| of_sources().any(|source| source.value == route.value))
        .collect();
    let problem = |(first, second): (&Spot<String>, &Spot<String>)| {
        let said = format!("a source and another route have the path {}", shown(&second.value));
        let problem = Problem::error(Code::DuplicateRoute, second.span, said);
        parts.with_first(first, second, problem.help("give one of them another path"))
    };
    let doubled = |(first, second): &(&Spot<String>, &Spot<String>)| {
        // Two routes of one path are fine as long as their methods differ; that was looked at before.
        of_sources().any(|source| source.span == first.span || source.span == second.span)
    };
    repeated(of_sources().chain(&routes)).into_iter().filter(doubled).map(problem).collect()
}

fn duplicate_consumers(parts: &Parts<'_>) -> Vec<Problem> {
    // A worker with a schedule consumes the queue of its own.
    let own = |worker: &WorkerFile| match &worker.consumes {
        Some(consumes) => Some(consumes.clone()),
        None if !worker.trigger_is_known => None,
        None => worker.name.clone().map(|name| Spot { value: format!("{QUEUE_PREFIX}{}", name.value), ..name }),
    };
    let consumed: Vec<Spot<String>> = parts.workers.iter().filter_map(own).collect();
    let pairs = repeated(consumed.iter());
    let problem = |(first, second): (&Spot<String>, &Spot<String>)| {
        let said = format!("two workers consume queue `{}`", second.value);
        let problem = Problem::error(Code::DuplicateConsumer, second.span, said);
        let help = "let the flow put a job into a queue of its own for each worker, or join the workers' steps";
        parts.with_first(first, second, problem.help(help))
    };
    pairs.into_iter().map(problem).collect()
}

fn unknown_queues(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.queues_unread || parts.queues.as_ref().is_some_and(|file| file.has_nameless) {
        return Vec::new();
    }
    let unknown = |spot: &&Spot<String>| !parts.queue_names().iter().any(|name| name.value == spot.value);
    let named = parts.flows.iter().flat_map(|flow| &flow.queues);
    let workers = parts.workers.iter().filter(|worker| !worker.is_playbook);
    let named = named.chain(workers.filter_map(|worker| worker.consumes.as_ref()));
    let named = named.chain(parts.workers.iter().flat_map(|worker| worker.fills.iter().chain(&worker.pulls)));
    let named = named.filter(unknown).map(|spot| {
        let said = format!("queue `{}` is not defined", spot.value);
        let problem = Problem::error(Code::UnknownQueue, spot.span, said).label("unknown queue");
        (spot, problem, "")
    });
    let dead = parts.workers.iter().filter_map(|worker| worker.dead_letters.as_ref());
    let dead = dead.filter(unknown).map(|spot| {
        let said = format!("dead letter queue `{}` is not defined", spot.value);
        let problem = Problem::error(Code::UnknownQueue, spot.span, said).label("unknown queue");
        (spot, problem, "\n    retention: 7d")
    });
    let tell = |(spot, problem, more): (&Spot<String>, Problem, &str)| {
        let known = parts.queue_names().iter().map(|name| name.value.as_str());
        let lines = format!("  - name: {}{more}", spot.value);
        let add = match &parts.queues {
            Some(_) => format!("add to queues.yml, below `queues:`:\n{lines}"),
            None => format!("create queues.yml:\nqueues:\n{lines}"),
        };
        at(spot, problem.meant(nearest(&spot.value, known), add))
    };
    named.chain(dead).map(tell).collect()
}

fn unconsumed(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.workers_unread || parts.workers.iter().any(|worker| !worker.trigger_is_known) {
        return Vec::new();
    }
    let consumed = |queue: &str| {
        let mut queues = parts.workers.iter().filter_map(|worker| worker.consumes.as_ref());
        queues.any(|consumed| consumed.value == queue)
    };
    let is_known = |queue: &str| parts.queue_names().iter().any(|name| name.value == queue);
    let filled = parts.flows.iter().flat_map(|flow| &flow.queues);
    let filled = filled.chain(parts.workers.iter().flat_map(|worker| &worker.fills));
    let alone = filled.filter(|queue| is_known(&queue.value) && !consumed(&queue.value));
    let problem = |queue: &Spot<String>| {
        let said = format!("nobody consumes queue `{}`: its jobs will wait", queue.value);
        let help = format!("add a worker with `consumes: {{queue: {}}}`", queue.value);
        at(queue, Problem::warning(Code::Unconsumed, queue.span, said).label("filled here").help(help))
    };
    alone.map(problem).collect()
}

/// A queue that is read from, and in which there will never be a dead letter.
fn nothing_to_pull(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.workers_unread || parts.workers.iter().any(|worker| !worker.trigger_is_known) {
        return Vec::new();
    }
    let is_known = |queue: &str| parts.queue_names().iter().any(|name| name.value == queue);
    let kept_in = |worker: &'_ WorkerFile| match &worker.dead_letters {
        Some(dead) => Some(dead.value.clone()),
        None => worker.consumes.as_ref().map(|queue| queue.value.clone()),
    };
    let kept: Vec<String> = parts.workers.iter().filter_map(kept_in).collect();
    let pulls = parts.workers.iter().flat_map(|worker| &worker.pulls);
    let empty = pulls.filter(|pull| is_known(&pull.value) && !kept.contains(&pull.value));
    let problem = |pull: &Spot<String>| {
        let said = format!("no worker's dead letters go into queue `{}`: there is nothing to pull", pull.value);
        let problem = Problem::warning(Code::NoDeadLetters, pull.span, said).label("always empty");
        let help = match nearest(&pull.value, kept.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("add `on_exhausted: dlq:{}` below `retry:` of the worker that is meant", pull.value),
        };
        at(pull, problem.help(help))
    };
    empty.map(problem).collect()
}

fn short_ttls(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    for flow in &parts.flows {
        let consumers = flow.queues.iter().filter_map(|queue| Some((queue, consumer(parts, &queue.value)?)));
        let horizons = consumers
            .map(|(queue, worker)| (worker.horizon().saturating_add(delay(parts, flow, &queue.value)), worker));
        let Some((horizon, worker)) = horizons.max_by_key(|(horizon, _)| *horizon) else {
            continue;
        };
        let of_sources =
            parts.sources.iter().filter(|source| is_taken_by(source, flow)).filter_map(|file| file.ttl.as_ref());
        let ttls = flow.ttls.iter().chain(of_sources).filter(|ttl| ttl.value < horizon);
        found.extend(ttls.map(|ttl| short_ttl(ttl, "worker", worker, horizon)));
    }
    found
}

fn short_ttl(ttl: &Spot<Duration>, what: &str, worker: &Worker, horizon: Duration) -> Problem {
    let enough = rounded_up(horizon);
    let said = format!(
        "keys are forgotten after {}, but {what} `{}` may retry a job for {enough}",
        human(ttl.value),
        worker.name,
    );
    let problem = Problem::error(Code::TtlTooShort, ttl.span, said)
        .label("too short")
        .note(format!("at most {} attempts and the pauses between them", worker.retry.attempts_max))
        .help(format!("write `ttl: {enough}` or longer, or let the {what} give up sooner"));
    at(ttl, problem)
}

fn short_ttls_of_playbooks(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    for playbook in parts.playbooks.iter().filter_map(|file| file.playbook()) {
        let queue = queue_of(&playbook.name);
        let Some(worker) = consumer(parts, &queue) else { continue };
        let declared = parts.queues.iter().flat_map(|file| &file.queues).find(|known| known.name == queue);
        let horizon = worker.horizon().saturating_add(declared.map_or(Duration::ZERO, |queue| queue.delay));
        let taken =
            parts.sources.iter().filter(|file| file.source.as_ref().is_some_and(|source| playbook.may_take(source)));
        let ttls = taken.filter_map(|file| file.ttl.as_ref()).filter(|ttl| ttl.value < horizon);
        found.extend(ttls.map(|ttl| short_ttl(ttl, "playbook", worker, horizon)));
    }
    found
}

/// A flow whose `store` is misspelt would use this installation's own store, and nobody would know.
fn unused_stores(parts: &Parts<'_>) -> Vec<Problem> {
    let routes = || parts.flows.iter().filter_map(|file| file.flow.as_ref()).flat_map(|flow| &flow.routes);
    let sources = || parts.sources.iter().filter_map(|file| file.source.as_ref());
    let used = |name: &str| {
        routes().filter_map(|route| route.dedup.as_ref()).any(|rule| rule.store == name)
            || sources().any(|source| source.keys.store == name)
    };
    if parts.flows.iter().any(|file| file.flow.is_none()) || parts.sources.iter().any(|file| file.source.is_none()) {
        return Vec::new();
    }
    let problem = |kv: &Spot<String>| {
        let said = format!("no flow has `store: kv:{}`: its keys are not shared with anybody", kv.value);
        let problem = Problem::warning(Code::UnusedStore, kv.span, said).label("not used");
        let stores = parts.flows.iter().flat_map(|flow| &flow.stores).map(|store| store.value.as_str());
        at(
            kv,
            match nearest(&kv.value, stores) {
                Some(meant) => problem.help(format!("a flow says `store: kv:{meant}`; write both the same")),
                None => problem.help(format!("write `store: kv:{}` below `idempotency:` of a flow", kv.value)),
            },
        )
    };
    parts.kv.iter().filter(|kv| !used(&kv.value)).map(problem).collect()
}

/// A queue that keeps its order, and a step that does not say whose.
fn one_group(parts: &Parts<'_>) -> Vec<Problem> {
    let Some(file) = &parts.queues else { return Vec::new() };
    let flows = || parts.flows.iter().filter_map(|flow| flow.flow.as_ref());
    let groupless = |fifo: &&Spot<String>| {
        let queue = file.queues.iter().find(|queue| queue.name == fifo.value);
        let mut steps = flows().flat_map(|flow| &flow.enqueue).filter(|step| step.queue == fifo.value);
        let mut playbooks = parts.playbooks.iter().filter_map(|playbook| playbook.name.as_ref());
        let of_playbook = playbooks.any(|name| queue_of(&name.value) == fifo.value);
        queue.is_some_and(|queue| queue.group.is_none()) && (of_playbook || steps.any(|step| step.group.is_none()))
    };
    let problem = |fifo: &Spot<String>| {
        let said = format!("queue `{}` keeps its order without groups: its jobs run one at a time", fifo.value);
        let problem = Problem::warning(Code::OneGroup, fifo.span, said).label("one job at a time");
        let help = "add `group_from: body:/json/pointer` (or `header:NAME`), so that only jobs of one group wait for each other";
        at(fifo, problem.help(help))
    };
    file.fifo.iter().filter(groupless).map(problem).collect()
}

fn is_taken_by(source: &SourceFile, flow: &FlowFile) -> bool {
    let own = flow.name.as_ref().is_some_and(|name| name.value == source.name.value && name.file == source.name.file);
    own || flow.named_sources.iter().any(|named| named.value == source.name.value)
}

fn unknown_sources(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.settings_unread {
        return Vec::new();
    }
    let known = || parts.sources.iter().map(|source| source.name.value.as_str());
    let named = parts.flows.iter().flat_map(|flow| &flow.named_sources);
    let unknown = named.filter(|named| !known().any(|name| name == named.value));
    let problem = |named: &Spot<String>| {
        let said = format!("source `{}` is not defined", named.value);
        let problem = Problem::error(Code::UnknownSource, named.span, said).label("unknown source");
        let add = format!("add to clinch.yml, below `sources:`:\n  {}:\n    verify: PRESET", named.value);
        at(named, problem.meant(nearest(&named.value, known()), add))
    };
    unknown.map(problem).collect()
}

fn unknown_integrations(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.settings_unread {
        return Vec::new();
    }
    let known = || parts.integrations.iter().map(|integration| integration.value.as_str());
    let called = parts.workers.iter().flat_map(|worker| &worker.called).map(|spot| (spot, "base_url: https://…"));
    let databases =
        parts.workers.iter().flat_map(|worker| &worker.databases).map(|spot| (spot, "url: ${secrets.NAME}"));
    let of_policies = parts.policies.iter().flat_map(|file| &file.called).map(|spot| (spot, "base_url: https://…"));
    let circuits = parts.safe_circuits.iter().map(|spot| (spot, "base_url: https://…"));
    let called = called.chain(databases).chain(of_policies).chain(circuits);
    let unknown = called.filter(|(called, _)| !known().any(|name| name == called.value));
    let problem = |(called, line): (&Spot<String>, &str)| {
        let said = format!("integration `{}` is not defined", called.value);
        let problem = Problem::error(Code::UnknownIntegration, called.span, said).label("unknown integration");
        let add = format!("add to clinch.yml, below `integrations:`:\n  {}:\n    {line}", called.value);
        at(called, problem.meant(nearest(&called.value, known()), add))
    };
    unknown.map(problem).collect()
}

fn unused_sources(parts: &Parts<'_>) -> Vec<Problem> {
    let playbooks: Option<Vec<Playbook>> = parts.playbooks.iter().map(PlaybookFile::playbook).collect();
    let Some(playbooks) = playbooks.filter(|_| !parts.playbooks_unread) else { return Vec::new() };
    if parts.flows.iter().any(|flow| flow.flow.is_none()) {
        return Vec::new();
    }
    let starts = |file: &SourceFile| {
        let source = file.source.as_ref();
        playbooks.iter().any(|playbook| source.is_none_or(|source| playbook.may_take(source)))
    };
    let unused = parts.sources.iter().filter(|source| !parts.flows.iter().any(|flow| is_taken_by(source, flow)));
    let problem = |source: &SourceFile| {
        let name = &source.name.value;
        let said = format!("no flow takes the events of source `{name}`: they are answered and not stored");
        let problem = Problem::warning(Code::UnusedSource, source.name.span, said).label("not used");
        let help = format!("add `- source: {name}` to the `triggers:` of a flow, or a playbook `on:` their type");
        at(&source.name, problem.help(help))
    };
    unused.filter(|source| !starts(source)).map(problem).collect()
}

/// A playbook for events that nobody sends.
fn unstarted_playbooks(parts: &Parts<'_>) -> Vec<Problem> {
    if parts.settings_unread || parts.sources.iter().any(|file| file.source.is_none()) {
        return Vec::new();
    }
    let sources = || parts.sources.iter().filter_map(|file| file.source.as_ref());
    let starts = |on: &&Spot<Vec<TypePattern>>| sources().any(|source| on.value.iter().any(|on| source.may_send(on)));
    let problem = |on: &Spot<Vec<TypePattern>>| {
        let problem =
            Problem::warning(Code::Unstarted, on.span, "no source sends events of this type").label("never starts");
        at(on, problem.help("add a source to clinch.yml, below `sources:`, or correct the type"))
    };
    parts.playbooks.iter().filter_map(|file| file.on.as_ref()).filter(|on| !starts(on)).map(problem).collect()
}

fn unknown_schemas(parts: &Parts<'_>) -> Vec<Problem> {
    let of_steps = parts.workers.iter().flat_map(|worker| &worker.schemas);
    let named = parts.sources.iter().flat_map(|source| &source.schemas).chain(of_steps);
    let unknown = named.filter(|named| !parts.schemas.contains_key(&named.value));
    let problem = |named: &Spot<String>| {
        let said = format!("there is no schemas/{}.json", named.value);
        let problem = Problem::error(Code::UnknownSchema, named.span, said).label("unknown schema");
        at(
            named,
            match nearest(&named.value, parts.schemas.keys().map(String::as_str)) {
                Some(meant) => problem.help(format!("did you mean `{meant}`?")),
                None => problem.help("write a JSON Schema (draft 2020-12) into that file"),
            },
        )
    };
    unknown.map(problem).collect()
}

fn unknown_templates(parts: &Parts<'_>) -> Vec<Problem> {
    let safe = parts.safe_templates.iter().flat_map(|(asked, safe)| [asked, safe]);
    let named = parts.workers.iter().flat_map(|worker| &worker.templates).chain(safe);
    let unknown = named.filter(|named| !parts.templates.contains_key(&named.value));
    let problem = |named: &Spot<String>| {
        let said = format!("there is no template `{}`", named.value);
        let problem = Problem::error(Code::UnknownTemplate, named.span, said).label("unknown template");
        let add = format!("write what it says into templates/{}.txt", named.value);
        at(named, problem.meant(nearest(&named.value, parts.templates.keys().map(String::as_str)), add))
    };
    unknown.map(problem).collect()
}

/// A template that its channel cannot carry.
fn unfit_templates(parts: &Parts<'_>) -> Vec<Problem> {
    let mut found = Vec::new();
    for file in &parts.workers {
        for action in file.worker.iter().flat_map(Worker::actions) {
            let Action::Send(send) = action else { continue };
            let own = file.templates.iter().find(|named| named.value == send.template);
            let safe = parts.safe_templates.iter().find(|(asked, _)| asked.value == send.template);
            for named in own.into_iter().chain(safe.map(|(_, safe)| safe)) {
                let Some(template) = parts.templates.get(&named.value) else { continue };
                let has_text = template.text.is_some() || template.html.is_some();
                let (why, help) = match &send.channel {
                    Channel::Mail(_) if !has_text => ("a mail needs a text", "write templates/NAME.txt or .html"),
                    Channel::Mail(_) if template.subject.is_none() => (
                        "a mail needs a subject",
                        "begin templates/NAME.txt with a line `---`, a line `subject: …` and a line `---`",
                    ),
                    Channel::Slack if template.text.is_none() && template.json.is_none() => {
                        ("Slack needs a text, or JSON", "write templates/NAME.md, .txt or .json")
                    }
                    _ => continue,
                };
                let said = format!("template `{}` cannot be sent by `{}`: {why}", named.value, send.partner.name);
                let problem = Problem::error(Code::BadTemplate, named.span, said).label("does not fit");
                found.push(at(named, problem.help(help.replace("NAME", &named.value))));
            }
        }
    }
    found
}

fn consumer<'p>(parts: &'p Parts<'_>, queue: &str) -> Option<&'p Worker> {
    let mut consumers =
        parts.workers.iter().filter(|file| file.consumes.as_ref().is_some_and(|spot| spot.value == queue));
    consumers.next()?.worker.as_ref()
}

/// The longest that a job of this flow waits in this queue before its first attempt.
fn delay(parts: &Parts<'_>, flow: &FlowFile, queue: &str) -> Duration {
    let mut queues = parts.queues.iter().flat_map(|file| &file.queues);
    let default = queues.find(|other| other.name == queue).map_or(Duration::ZERO, |queue| queue.delay);
    let steps = flow.flow.iter().flat_map(|flow| &flow.enqueue).filter(|step| step.queue == queue);
    steps.map(|step| step.delay.unwrap_or(default)).max().unwrap_or(default)
}

/// The next length of time that people would write.
fn rounded_up(span: Duration) -> String {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    let (unit, word) = match seconds {
        0..=120 => (1, "s"),
        121..=7_200 => (60, "m"),
        7_201..=172_800 => (3_600, "h"),
        _ => (86_400, "d"),
    };
    format!("{}{word}", seconds.div_ceil(unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_duration;

    #[test]
    fn a_suggested_time_is_never_shorter_than_needed() {
        for millis in [0, 1, 999, 1_001, 119_999, 125_001, 7_199_000, 7_201_000, 200_000_000, 86_400_000_001] {
            let span = Duration::from_millis(millis);
            assert!(parse_duration(&rounded_up(span)).expect("a duration") >= span, "{millis}");
        }
        assert_eq!(rounded_up(Duration::from_secs(336)), "6m");
    }
}
