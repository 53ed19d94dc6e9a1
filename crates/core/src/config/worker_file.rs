//! `workers/*.yml`.

use super::dialect::WORKER;
use super::named_action;
use super::problem::Report;
use super::read::{Reader, Spot, word};
use super::shape;
use super::step::{self, acts, list, named, read_step, steps};
use super::value;
use super::yaml::Node;
use crate::budget::{Allowance, OnExhausted, Per, RetryBudget, WINDOW_DEFAULT};
use crate::integration::Integration;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::schedule::{Missed, QUEUE_PREFIX, Schedule, Zone};
use crate::script::Runtime;
use crate::worker::{Action, CONCURRENCY_DEFAULT, Step, Trigger, Worker};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// What a worker's file says, as far as it can be read.
pub(super) struct WorkerFile {
    pub name: Option<Spot<String>>,
    pub consumes: Option<Spot<String>>,
    /// It is the worker of a playbook, whose queue need not be declared.
    pub is_playbook: bool,
    /// Whether it is certain which queue it consumes, or that it consumes none.
    pub trigger_is_known: bool,
    pub dead_letters: Option<Spot<String>>,
    pub step_names: Vec<Spot<String>>,
    /// The queues that its steps put jobs into.
    pub fills: Vec<Spot<String>>,
    /// The queues whose dead letters its steps read.
    pub pulls: Vec<Spot<String>>,
    /// The integrations that its steps name.
    pub called: Vec<Spot<String>>,
    /// The integrations that its steps name as databases.
    pub databases: Vec<Spot<String>>,
    /// The templates that its steps name.
    pub templates: Vec<Spot<String>>,
    /// The schemas that its steps name.
    pub schemas: Vec<Spot<String>>,
    /// The policies that its steps name.
    pub policies: Vec<Spot<String>>,
    /// The runtimes that its scripts need.
    pub runtimes: Vec<Spot<Runtime>>,
    pub worker: Option<Worker>,
}

pub(super) fn read(root: Node, integrations: &[Arc<Integration>], report: &mut Report<'_>) -> WorkerFile {
    let root = named_action::spelt_out(root, "run", report);
    shape::check(&root, &WORKER, root.head(), report);
    let reader = Reader { node: &root, report };
    let consumes = reader.map("consumes").and_then(|consumes| consumes.spot("queue", value::name));
    let trigger = match reader.map("consumes") {
        Some(consumes) => consumes.must("queue", value::name).map(Trigger::Queue),
        None => reader
            .map("schedule")
            .zip(reader.must("name", value::name))
            .and_then(|(schedule, worker)| read_schedule(schedule, &worker))
            .map(|schedule| Trigger::Schedule(Box::new(schedule))),
    };
    let trigger_is_known = consumes.is_some() || reader.has("schedule");
    let file = read_steps(&root, trigger, integrations, report);
    WorkerFile { trigger_is_known, consumes, ..file }
}

/// What a file says whose steps are started by this.
pub(super) fn read_steps(
    root: &Node,
    trigger: Option<Trigger>,
    integrations: &[Arc<Integration>],
    report: &mut Report<'_>,
) -> WorkerFile {
    let reader = Reader { node: root, report };
    let file = WorkerFile {
        name: reader.spot("name", value::name),
        consumes: None,
        is_playbook: false,
        trigger_is_known: true,
        dead_letters: reader.map("retry").and_then(|retry| retry.spot("on_exhausted", dead_letters)),
        step_names: named(reader).filter_map(|step| step.step_name()).collect(),
        fills: queues_named(reader, "queue", "name"),
        pulls: queues_named(reader, "queue_pull", "from"),
        called: called(reader),
        databases: databases(reader),
        templates: templates_named(reader),
        schemas: schemas(reader),
        policies: policies(reader),
        runtimes: acts(reader).filter_map(|step| step.spot("uses", value::runtime)).collect(),
        worker: trigger.and_then(|trigger| read_worker(reader, trigger, integrations)),
    };
    step::broken(reader, &file.step_names, integrations).into_iter().for_each(|problem| report.add(problem));
    file
}

fn called<'a>(worker: Reader<'a>) -> Vec<Spot<String>> {
    let in_slack = |step: Reader<'a>| step.map("approval").and_then(|approval| approval.map("slack"));
    let steps = acts(worker).filter_map(|step| step.map("http").or(step.map("send_template")).or(in_slack(step)));
    steps.filter_map(|called| called.spot("integration", value::name)).collect()
}

fn queues_named(worker: Reader<'_>, action: &str, key: &str) -> Vec<Spot<String>> {
    let steps = steps(worker).filter_map(|step| step.map(action));
    steps.filter_map(|queue| queue.spot(key, value::name)).collect()
}

fn templates_named(worker: Reader<'_>) -> Vec<Spot<String>> {
    let steps = acts(worker).filter_map(|step| step.map("send_template"));
    steps.filter_map(|send| send.spot("template", value::name)).collect()
}

fn databases(worker: Reader<'_>) -> Vec<Spot<String>> {
    let steps = acts(worker).filter_map(|step| step.map("sql"));
    steps.filter_map(|sql| sql.spot("database", value::name)).collect()
}

fn schemas(worker: Reader<'_>) -> Vec<Spot<String>> {
    let steps = steps(worker).filter_map(|step| step.map("validate"));
    steps.filter_map(|validate| validate.spot("schema", value::name)).collect()
}

fn policies(worker: Reader<'_>) -> Vec<Spot<String>> {
    let asked = steps(worker).filter_map(|step| step.map("policy")).filter_map(|ask| ask.spot("use", value::name));
    let lists = named(worker).filter_map(|step| step.node.get("policies")).flat_map(Node::items);
    let over = lists.filter_map(|item| {
        let value = value::name(item, "policies").ok()?;
        Some(Spot { value, file: worker.report.file.to_string(), span: item.head() })
    });
    asked.chain(over).collect()
}

fn dead_letters(node: &Node, name: &str) -> value::Read<String> {
    value::prefixed(node, name, "dlq:")
}

fn read_worker(worker: Reader<'_>, trigger: Trigger, integrations: &[Arc<Integration>]) -> Option<Worker> {
    let concurrency = worker.or("concurrency", CONCURRENCY_DEFAULT as i64, value::int)?;
    let (name, retry) = (worker.must("name", value::name)?, worker.map("retry"));
    let mut steps = list(worker).map(|step| read_step(step, integrations)).collect::<Option<Vec<_>>>()?;
    take_keys(&mut steps, &name);
    let read = Worker {
        trigger,
        concurrency: usize::try_from(concurrency).ok()?,
        retry: retry.map_or(Some(RetryPolicy::default()), |retry| read_retry(retry, &name))?,
        dead_letters: retry.map_or(Some(None), |retry| retry.may("on_exhausted", dead_letters))?,
        steps,
        name,
    };
    (worker.is_sound() && !read.steps.is_empty()).then_some(read)
}

fn read_schedule(schedule: Reader<'_>, worker: &str) -> Option<Schedule> {
    let rules = [("once", Missed::Once), ("skip", Missed::Skip), ("all", Missed::All)];
    let read = Schedule {
        queue: format!("{QUEUE_PREFIX}{worker}"),
        cron: schedule.must("cron", value::cron)?,
        zone: schedule.or("time_zone", Zone::UTC, value::time_zone)?,
        missed: schedule.or("missed", Missed::default(), word(&rules))?,
        overlaps: schedule.or("overlap", false, value::bool)?,
    };
    schedule.is_sound().then_some(read)
}

/// Keys of the same fields are not the same in two workers.
fn take_keys(steps: &mut [Step], worker: &str) {
    for step in steps {
        match &mut step.action {
            Action::DedupKey(rule) => rule.owner = worker.to_string(),
            Action::Parallel(branches) => branches.iter_mut().for_each(|branch| take_keys(&mut branch.steps, worker)),
            _ => {}
        }
    }
}

fn read_retry(retry: Reader<'_>, worker: &str) -> Option<RetryPolicy> {
    let strategies = [("exponential", Backoff::Exponential), ("linear", Backoff::Linear), ("fixed", Backoff::Fixed)];
    let jitters = [("full", Jitter::Full), ("equal", Jitter::Equal), ("none", Jitter::None)];
    let default = RetryPolicy::default();
    let base = match retry.may("base_ms", value::int)? {
        Some(millis) => Duration::from_millis(u64::try_from(millis).ok()?),
        None => retry.or("base_delay", default.base, value::duration)?,
    };
    let attempts_max = match retry.may("max_attempts", value::int)? {
        Some(attempts) => NonZeroU32::new(u32::try_from(attempts).ok()?)?,
        None => default.attempts_max,
    };
    let read = RetryPolicy {
        strategy: retry.or("strategy", default.strategy, word(&strategies))?,
        base,
        multiplier: retry.or("multiplier", default.multiplier, value::number)?,
        pause_max: retry.or("max_delay", default.pause_max, value::duration)?,
        attempts_max,
        elapsed_max: retry.may("max_elapsed", value::duration)?,
        jitter: retry.or("jitter", default.jitter, word(&jitters))?,
        budget: read_budget(retry, worker)?.map(Arc::new),
    };
    retry.is_sound().then_some(read)
}

fn read_budget(retry: Reader<'_>, worker: &str) -> Option<Option<RetryBudget>> {
    let units = |count: i64| NonZeroU32::new(u32::try_from(count).ok()?);
    let of = |per, units, window, on_exhausted| {
        Some(Some(RetryBudget { name: worker.into(), per, allowance: Allowance { units, window }, on_exhausted }))
    };
    if let Some(count) = retry.may("budget_per_contact", value::int)? {
        return of(Per::Contact, units(count)?, WINDOW_DEFAULT, OnExhausted::Dead);
    }
    let Some(budget) = retry.map("budget") else { return Some(None) };
    let ends = [("dead", OnExhausted::Dead), ("wait", OnExhausted::Wait)];
    let per = Per::Said(budget.must("per", value::template)?);
    let count = units(budget.must("max", value::int)?)?;
    let window = budget.or("window", WINDOW_DEFAULT, value::duration)?;
    of(per, count, window, budget.or("on_exhausted", OnExhausted::Dead, word(&ends))?).filter(|_| budget.is_sound())
}
