//! `workers/*.yml`.

use super::dialect::{ACTIONS, DETAILS, WORKER};
use super::integration;
use super::named_action;
use super::nearest::nearest;
use super::problem::{Code, Problem, Report, Span, shown};
use super::read::{Reader, Spot, word};
use super::shape;
use super::source::texts;
use super::spelling;
use super::value::{self, Names};
use super::yaml::{Key, Node, Value};
use crate::approval::{ApprovalAction, EXPIRES_DEFAULT, OnExpiry, Rule, SlackChannel};
use crate::budget::{Allowance, OnExhausted, Per, RetryBudget, WINDOW_DEFAULT};
use crate::dedup::{self, DedupRule, Reading};
use crate::effect::Idempotency;
use crate::expr::{Expr, Template, Tree};
use crate::foreach::{Each, ItemPace};
use crate::integration::{Integration, Promise};
use crate::message::{Channel, MessageBody};
use crate::phone::Strictness;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::schedule::{Missed, QUEUE_PREFIX, Schedule, Zone};
use crate::script::{Isolation, MEMORY_DEFAULT, Runtime, ScriptAction, fingerprint};
use crate::worker::{
    Action, BRANCHES_MAX, Branch, CONCURRENCY_DEFAULT, DelayAction, GeoipAction, HttpAction, HttpBody, PULL_DEFAULT,
    PhoneAction, PolicyAction, PullAction, QueueAction, QueueBody, STEP_TIMEOUT_DEFAULT, SendAction, SetnxAction,
    SqlAction, Step, Trigger, ValidateAction, Worker,
};
use std::collections::BTreeSet;
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
    let mut found = unknown_steps(reader, &file.step_names);
    found.extend(list(reader).flat_map(parted_wrongly));
    found.extend(list(reader).flat_map(repeated_wrongly));
    found.extend(items_of_nothing(reader));
    found.extend(named(reader).flat_map(misplaced_details));
    found.extend(named(reader).filter_map(nothing_to_undo));
    found.extend(named(reader).filter_map(nothing_to_rule_over));
    found.extend(named(reader).filter_map(|step| step.map("compensate")).flat_map(misplaced_details));
    found.extend(acts(reader).filter_map(no_script));
    found.extend(acts(reader).filter_map(|step| path_of_nobody(step, integrations)));
    found.extend(acts(reader).filter_map(|step| credentials_for_anybody(step, integrations)));
    found.extend(acts(reader).filter_map(|step| no_database(step, integrations)));
    found.extend(acts(reader).filter_map(|step| no_channel(step, integrations)));
    found.extend(acts(reader).filter_map(|step| no_carrier(step, integrations)));
    found.extend(acts(reader).flat_map(no_such_field));
    found.extend(steps(reader).flat_map(|step| undecidable(step, integrations)));
    found.into_iter().for_each(|problem| report.add(problem));
    file
}

/// The steps of a worker, which are below `run`, or of a playbook.
fn list<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    worker.maps(if worker.has("run") { "run" } else { "steps" })
}

/// Everything in a worker that has a name: its steps, the branches of these, and the steps in them.
fn named<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    list(worker).flat_map(|step| {
        let branches = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
        std::iter::once(step).chain(branches)
    })
}

/// Every step, those inside branches too.
fn steps<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    named(worker).filter(|named| !named.has("steps"))
}

/// Wherever it is said what to do: in every step, and in what undoes it.
fn acts<'a>(worker: Reader<'a>) -> impl Iterator<Item = Reader<'a>> + Clone {
    steps(worker).flat_map(|step| std::iter::once(step).chain(step.map("compensate")))
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

fn read_step(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Step> {
    let action = read_action(step, integrations)?;
    let compensate = match step.map("compensate") {
        Some(undo) => Some(read_action(undo, integrations)?),
        None => None,
    };
    let over = step.node.get("policies").map_or(&[][..], Node::items).iter();
    let read = Step {
        name: step.step_name()?.value.into(),
        when: step.may("if", value::expr)?,
        action,
        each: read_each(step)?,
        compensate,
        policies: over.map(|policy| value::name(policy, "policies").ok()).collect::<Option<_>>()?,
    };
    step.is_sound().then_some(read)
}

fn read_each(step: Reader<'_>) -> Option<Option<Each>> {
    let Some(list) = step.may("foreach", value::list)? else { return Some(None) };
    let Some(limit) = step.map("rate_limit") else { return Some(Some(Each { list, pace: None })) };
    let pace = ItemPace {
        rate: limit.must("per_integration", value::rate)?,
        jitter: limit.may("jitter", integration::spread)?,
    };
    limit.is_sound().then_some(Some(Each { list, pace: Some(pace) }))
}

fn read_branch(branch: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Branch> {
    let name: Arc<str> = branch.step_name()?.value.into();
    if !branch.has("steps") {
        return Some(Branch { name, when: None, steps: vec![read_step(branch, integrations)?] });
    }
    let steps = branch.maps("steps").map(|step| read_step(step, integrations)).collect::<Option<Vec<_>>>()?;
    branch.is_sound().then_some(Branch { name, when: branch.may("if", value::expr)?, steps })
}

fn read_action(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Action> {
    if step.has("parallel") {
        let branches = step.maps("parallel").map(|branch| read_branch(branch, integrations));
        return branches.collect::<Option<Vec<_>>>().map(Action::Parallel);
    }
    if step.has("uses") {
        return Some(Action::Script(Box::new(read_script(step)?)));
    }
    if let Some(http) = step.map("http") {
        return Some(Action::Http(Box::new(read_http(http, integrations)?)));
    }
    if step.has("transform") {
        return Some(Action::Transform(step.must("transform", value::tree)?));
    }
    if let Some(validate) = step.map("validate") {
        let body = Expr::parse("body").expect("it is an expression");
        let (schema, from) = (validate.must("schema", value::name)?, validate.or("from", body, value::expr)?);
        return validate.is_sound().then_some(Action::Validate(ValidateAction { schema, from }));
    }
    if let Some(enrich) = step.map("enrich") {
        return read_enrich(enrich).filter(|_| enrich.is_sound());
    }
    if let Some(dedup) = step.map("dedup_key") {
        return Some(Action::DedupKey(Box::new(read_dedup_key(dedup)?)));
    }
    if let Some(setnx) = step.map("setnx") {
        let stops = [("continue", false), ("stop", true)];
        let read = SetnxAction {
            key: setnx.must("key", value::template)?,
            ttl: match setnx.may("ttl_seconds", value::int)? {
                Some(seconds) => Duration::from_secs(u64::try_from(seconds).ok()?),
                None => setnx.must("ttl", value::duration)?,
            },
            stops: setnx.or("on_exists", false, word(&stops))?,
        };
        return setnx.is_sound().then_some(Action::Setnx(read));
    }
    if let Some(sql) = step.map("sql") {
        return Some(Action::Sql(Box::new(read_sql(sql, integrations)?)));
    }
    if let Some(send) = step.map("send_template") {
        return Some(Action::Send(Box::new(read_send(send, integrations)?)));
    }
    if let Some(queue) = step.map("queue") {
        return read_queue(queue).map(|read| Action::Queue(Box::new(read)));
    }
    if let Some(pull) = step.map("queue_pull") {
        let most = pull.or("max_messages", PULL_DEFAULT as i64, value::int)?;
        let read = PullAction { from: pull.must("from", value::name)?, most: usize::try_from(most).ok()? };
        return pull.is_sound().then_some(Action::Pull(read));
    }
    if let Some(ask) = step.map("policy") {
        let read = PolicyAction { policy: ask.must("use", value::name)?, channel: ask.may("channel", value::name)? };
        return ask.is_sound().then_some(Action::Policy(read));
    }
    if let Some(approval) = step.map("approval") {
        return Some(Action::Approval(Box::new(read_approval(approval, integrations)?)));
    }
    read_delay(step).map(Action::Delay)
}

fn read_queue(queue: Reader<'_>) -> Option<QueueAction> {
    let body = match queue.may("body_from", value::expr)? {
        Some(from) if !["body", "request.body"].contains(&from.source()) => QueueBody::From(from),
        _ => QueueBody::Event,
    };
    let read = QueueAction { queue: queue.must("name", value::name)?, body, key: queue.may("key_from", value::expr)? };
    queue.is_sound().then_some(read)
}

fn read_approval(approval: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<ApprovalAction> {
    let slack = match approval.map("slack") {
        None => None,
        Some(slack) => {
            let name = slack.must("integration", value::name)?;
            let partner = integrations.iter().find(|known| *known.name == *name)?.clone();
            Some(SlackChannel { partner, channel: slack.must("channel", value::text)?.to_string() })
        }
    };
    let ends = [("reject", OnExpiry::Reject), ("approve", OnExpiry::Approve)];
    let read = ApprovalAction {
        rule: Rule {
            of: approval.or("of", Vec::new(), texts)?,
            need: u32::try_from(approval.or("need", 1, value::int)?).ok()?,
            expires: approval.or("expires", EXPIRES_DEFAULT, value::duration)?,
            on_expiry: approval.or("on_expiry", OnExpiry::Reject, word(&ends))?,
            remind: approval.may("remind", value::duration)?,
        },
        title: approval.must("title", value::template)?,
        show: approval.or("show", Tree::Map(Vec::new()), value::tree)?,
        slack,
    };
    approval.is_sound().then_some(read)
}

fn read_enrich(enrich: Reader<'_>) -> Option<Action> {
    let strictness = [("none", Strictness::None), ("possible", Strictness::Possible), ("valid", Strictness::Valid)];
    if let Some(phone) = enrich.map("phone") {
        let read = PhoneAction {
            from: phone.must("from", value::expr)?,
            country: phone.may("country", value::country)?,
            strict: phone.or("strict", Strictness::default(), word(&strictness))?,
        };
        return phone.is_sound().then_some(Action::Phone(read));
    }
    let geoip = enrich.map("geoip")?;
    let database = geoip.must("database", |node, name| value::file(node, name, ".mmdb"))?;
    let read = GeoipAction { from: geoip.must("from", value::expr)?, database };
    geoip.is_sound().then_some(Action::Geoip(read))
}

fn read_delay(step: Reader<'_>) -> Option<DelayAction> {
    if step.node.get("delay")?.text().is_some() {
        return Some(DelayAction::For(step.must("delay", value::duration)?));
    }
    let delay = step.map("delay")?;
    let read = match delay.may("for", value::duration)? {
        Some(pause) => DelayAction::For(pause),
        None => DelayAction::Until(delay.must("until", value::expr)?),
    };
    delay.is_sound().then_some(read)
}

fn read_sql(sql: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<SqlAction> {
    let name = sql.must("database", value::name)?;
    let partner = integrations.iter().find(|known| *known.name == *name)?.clone();
    let params = sql.node.get("params").map_or(&[][..], Node::items).iter();
    let read = SqlAction {
        address: partner.url.clone()?,
        statement: sql.must("statement", value::statement)?.into(),
        params: params.map(|param| value::tree(param, "params").ok()).collect::<Option<_>>()?,
        timeout: sql.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        // The table in the target sees to it that what is sent twice is done once.
        promise: Promise { idempotency: Idempotency::Natural, ..Promise::default() },
        partner,
    };
    sql.is_sound().then_some(read)
}

fn read_dedup_key(dedup: Reader<'_>) -> Option<DedupRule> {
    let listed = |name: &str| dedup.map("normalise").map_or(Vec::new(), |map| fields(map, name));
    let (emails, phones) = (listed("email"), listed("phone"));
    let country = match dedup.map("normalise") {
        Some(map) => map.may("country", value::country)?,
        None => None,
    };
    let minutes = match dedup.may("bucket_minutes", value::int)? {
        Some(minutes) => Some(NonZeroU32::new(u32::try_from(minutes).ok()?)?),
        None => None,
    };
    let time_field = dedup.or("time_field", dedup::TIME_FIELD_DEFAULT, value::text)?;
    let fields = dedup.node.get("fields").map_or(&[][..], Node::items).iter().map(|node| {
        let name = node.text()?.to_string();
        let reading = match minutes {
            Some(bucket_minutes) if name == time_field => Reading::Time { bucket_minutes },
            _ if emails.contains(&name.as_str()) => Reading::Email,
            _ if phones.contains(&name.as_str()) => Reading::Phone(country),
            _ => Reading::AsItIs,
        };
        Some(dedup::Field { value: value::body_field(node, "fields").ok()?, name, reading })
    });
    let fields = fields.collect::<Option<Vec<_>>>()?;
    dedup.is_sound().then_some(DedupRule { owner: String::new(), fields })
}

fn fields<'n>(map: Reader<'n>, name: &str) -> Vec<&'n str> {
    map.node.get(name).map_or(&[][..], Node::items).iter().filter_map(Node::text).collect()
}

/// What is said of a field must be said of one that is there, and a stretch of time needs a moment.
fn no_such_field(step: Reader<'_>) -> Vec<Problem> {
    let Some(dedup) = step.map("dedup_key").filter(Reader::is_sound) else { return Vec::new() };
    let fields = fields(dedup, "fields");
    let mut found = Vec::new();
    if fields.len() > dedup::FIELDS_MAX
        && let Some((key, _)) = dedup.node.entry("fields")
    {
        let said = format!("a key has at most {} fields, not {}", dedup::FIELDS_MAX, fields.len());
        found.push(Problem::error(Code::OutOfRange, key.span, said));
    }
    let unknown = |name: &str, span: Span, problem: &str| {
        let problem = Problem::error(Code::BadChoice, span, format!("`{}` {problem}", shown(name)))
            .label("not a field of the key");
        match nearest(name, fields.iter().copied()) {
            Some(meant) => problem.help(format!("did you mean `{meant}`?")),
            None => problem.help("write one that is below `fields:`"),
        }
    };
    let normalised = dedup.map("normalise");
    let named = ["email", "phone"].into_iter().filter_map(|name| normalised?.node.get(name)).flat_map(Node::items);
    let named = named.filter_map(|node| Some((node.text()?, node.head()))).filter(|(name, _)| !fields.contains(name));
    found.extend(named.map(|(name, span)| unknown(name, span, "is to be normalised and is not one of the fields")));
    match (dedup.node.entry("bucket_minutes"), dedup.spot("time_field", value::text)) {
        (Some(_), Some(time)) if !fields.contains(&time.value) => {
            found.push(unknown(time.value, time.span, "is to be the moment and is not one of the fields"));
        }
        (Some((key, _)), None) if !fields.contains(&dedup::TIME_FIELD_DEFAULT) => {
            let said = "`bucket_minutes` needs a field that is a moment";
            let problem = Problem::error(Code::MissingKey, key.span, said).label("of which moment?");
            found.push(
                problem.help("add `timestamp` to `fields`, or say which of them it is: `time_field: created_at`"),
            );
        }
        (None, Some(time)) => {
            let said = "`time_field` goes with `bucket_minutes`";
            found.push(Problem::error(Code::EitherOr, time.span, said).help("add `bucket_minutes: 5`, or remove it"));
        }
        _ => {}
    }
    found
}

/// Who carries a message: who is named, who is there for its channel, or the only one who can.
fn carrier<'i>(send: Reader<'_>, integrations: &'i [Arc<Integration>]) -> Option<&'i Arc<Integration>> {
    if let Some(name) = send.may("integration", value::name)? {
        return integrations.iter().find(|known| *known.name == *name);
    }
    if let Some(channel) = send.may("channel", value::name)? {
        return integrations.iter().find(|known| known.carries.contains(&channel));
    }
    match carriers(integrations).as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

/// Those that `messaging` names, or else all that a message can be sent to.
fn carriers(integrations: &[Arc<Integration>]) -> Vec<&Arc<Integration>> {
    let chosen: Vec<_> = integrations.iter().filter(|known| !known.carries.is_empty()).collect();
    if chosen.is_empty() { integrations.iter().filter(|known| known.channel.is_some()).collect() } else { chosen }
}

/// A message that nobody carries, or that several could.
fn no_carrier(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let send = step.map("send_template").filter(Reader::is_sound)?;
    if send.has("integration") || carrier(send, integrations).is_some() {
        return None;
    }
    if let Some(channel) = send.spot("channel", value::name) {
        let known = integrations.iter().flat_map(|known| &known.carries).map(String::as_str);
        let said = format!("nobody carries messages of channel `{}`", channel.value);
        let problem = Problem::error(Code::UnknownIntegration, channel.span, said).label("unknown channel");
        let add = format!("add to clinch.yml, below `messaging:`: `{}: INTEGRATION`", channel.value);
        return Some(problem.meant(nearest(&channel.value, known), add));
    }
    let (key, _) = step.node.entry("send_template")?;
    let names: Vec<&str> = carriers(integrations).iter().map(|known| &*known.name).collect();
    let (said, help) = match names.as_slice() {
        [] => (
            "no integration can carry this message".to_string(),
            "add one to clinch.yml, below `integrations:`, with `smtp:` and `from:`, or with `message:`".to_string(),
        ),
        _ => (
            format!("several integrations can carry this message: {}", names.join(", ")),
            "write `integration: NAME`, or name one below `messaging:` of clinch.yml, as in `messaging: {email: NAME}`"
                .to_string(),
        ),
    };
    Some(Problem::error(Code::UnknownIntegration, key.span, said).label("who carries it?").help(help))
}

fn read_send(send: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<SendAction> {
    let partner = carrier(send, integrations)?.clone();
    let read = SendAction {
        channel: partner.channel.clone()?,
        template: send.must("template", value::name)?,
        to: send.must("to", value::template)?,
        with: send.or("with", Tree::Map(Vec::new()), value::tree)?,
        timeout: send.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        promise: partner.promise.clone(),
        partner,
    };
    send.is_sound().then_some(read)
}

fn read_http(http: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<HttpAction> {
    let url = http.must("url", value::url_or_path)?;
    let partner = match http.may("integration", value::name)? {
        Some(name) => integrations.iter().find(|known| *known.name == *name)?.clone(),
        None => Arc::new(Integration::unsaid(host(&url))),
    };
    let method = http.or("method", "POST", value::text)?;
    let read = HttpAction {
        method: method.to_string(),
        url,
        headers: http.map("headers").map_or(Some(Vec::new()), read_headers)?,
        body: read_body(http)?,
        timeout: http.may("timeout", value::duration)?.or(partner.timeout).unwrap_or(STEP_TIMEOUT_DEFAULT),
        promise: partner.promise.with(integration::read_promise(http)?),
        propagate_trace: http.or("propagate_trace", partner.propagate_trace, value::bool)?,
        partner,
    };
    http.is_sound().then_some(read)
}

fn read_script(step: Reader<'_>) -> Option<ScriptAction> {
    let runtime = step.must("uses", value::runtime)?;
    let answers = [("ask", Idempotency::None), ("retry", Idempotency::Header)];
    let isolations = [("warm", Isolation::Warm), ("process", Isolation::Process)];
    let env = step.map("env").map_or(&[][..], |env| env.node.fields());
    let env = env.iter().map(|(key, value)| Some((key.text.clone(), value::template(value, &key.text).ok()?)));
    let env: Vec<(String, Template)> = env.collect::<Option<_>>()?;
    let text = step.must("script", value::text)?;
    let memory_bytes_max = step.or("memory", MEMORY_DEFAULT, value::size)?;
    Some(ScriptAction {
        runtime,
        text: text.into(),
        secrets: env.iter().flat_map(|(_, value)| value.secrets()).collect(),
        fingerprint: fingerprint(runtime, text, &env, memory_bytes_max),
        env,
        timeout: step.or("timeout", STEP_TIMEOUT_DEFAULT, value::duration)?,
        memory_bytes_max,
        isolation: step.or("isolation", Isolation::Warm, word(&isolations))?,
        // No integration can have such a name.
        partner: Arc::new(Integration::unsaid(&format!("script:{}", runtime.language.word()))),
        promise: Promise {
            idempotency: step.or("on_unknown", Idempotency::None, word(&answers))?,
            ..Promise::default()
        },
    })
}

/// A host that is only known when an event is here.
const ANYBODY: &str = "other";

/// What an integration is called that nobody named.
fn host(url: &Template) -> &str {
    let (Template::Plain(text) | Template::Mixed(text)) = url;
    let rest = text.split_once("://").map_or("", |(_, rest)| rest);
    let host = &rest[..rest.find(['/', '?', '#', ':']).unwrap_or(rest.len())];
    if host.is_empty() || host.contains('{') { ANYBODY } else { host }
}

pub(super) fn read_headers(headers: Reader<'_>) -> Option<Vec<(String, Template)>> {
    let fields = headers.node.fields().iter();
    fields.map(|(key, _)| Some((key.text.clone(), headers.must(&key.text, value::header_value)?))).collect()
}

fn read_body(http: Reader<'_>) -> Option<HttpBody> {
    if let Some(from) = http.may("body_from", value::expr)? {
        return Some(match from.source() {
            "body" | "request.body" => HttpBody::Event,
            _ => HttpBody::From(from),
        });
    }
    let Some(body) = http.node.get("body") else {
        return Some(HttpBody::Empty);
    };
    Some(match &body.value {
        Value::Scalar { .. } => HttpBody::Text(http.must("body", value::template)?),
        _ => HttpBody::Tree(value::tree(body, "body").ok()?),
    })
}

/// Branches do not part again, and there are not too many of them.
fn parted_wrongly(step: Reader<'_>) -> Vec<Problem> {
    let inside = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
    let nested = inside.filter_map(|step| step.node.entry("parallel")).map(|(key, _)| {
        Problem::error(Code::EitherOr, key.span, "`parallel` is inside a branch of another")
            .label("parts again")
            .help("add its branches to the outer `parallel`, or make it a step after that one")
    });
    let count = step.maps("parallel").count();
    let many = step.node.entry("parallel").filter(|_| count > BRANCHES_MAX).map(|(key, _)| {
        Problem::error(Code::OutOfRange, key.span, format!("`parallel` has {count} branches"))
            .help(format!("write at most {BRANCHES_MAX}; more go into another step after this one"))
    });
    nested.chain(many).collect()
}

/// Items do not part, and only what leaves a line in the ledger can be paced: the rest is done anew in each attempt.
fn repeated_wrongly(step: Reader<'_>) -> Vec<Problem> {
    const LEDGERED: &[&str] = &["http", "uses", "sql", "send_template", "queue", "setnx"];
    let problem = |key: Span, said: &str, help: &str| Problem::error(Code::EitherOr, key, said).help(help);
    let mut found = Vec::new();
    let inside = step.maps("parallel").flat_map(|branch| std::iter::once(branch).chain(branch.maps("steps")));
    for (key, _) in inside.flat_map(|step| ["foreach", "rate_limit"].map(|name| step.node.entry(name))).flatten() {
        let said = format!("`{}` is inside a branch", key.text);
        found.push(problem(key.span, &said, "make it a step before or after the `parallel`"));
    }
    let foreach = step.node.entry("foreach");
    if let Some((key, _)) = foreach {
        for other in ["parallel", "compensate", "delay"].iter().filter_map(|name| step.node.entry(name)) {
            let said = format!("`foreach` does not go with `{}`", other.0.text);
            let said = problem(key.span, &said, "make two steps of it, or remove one of the two");
            found.push(said.also(other.0.span, "with this"));
        }
    }
    if let Some((key, _)) = step.node.entry("rate_limit") {
        if foreach.is_none() {
            let help = "add `foreach:`, or write `rate` below the integration in clinch.yml";
            found.push(problem(key.span, "`rate_limit` is for the runs of `foreach`", help));
        } else if !LEDGERED.iter().any(|action| step.has(action)) {
            let said = "`rate_limit` is for steps that do something outside or in a queue";
            found.push(problem(key.span, said, "remove it"));
        }
    }
    found
}

/// `item` is there where `foreach` is.
fn items_of_nothing(worker: Reader<'_>) -> Vec<Problem> {
    let acts = steps(worker).filter(|step| !step.has("foreach"));
    let acts = acts.flat_map(|step| std::iter::once(step).chain(step.map("compensate")));
    let mut found = Vec::new();
    for act in acts {
        let at = |path: &&[&str]| path.iter().try_fold(act.node, |node, name| node.get(name));
        let mut reads: Vec<(&Node, bool)> = Vec::new();
        for node in EXPRS.iter().filter_map(at) {
            reads.push((node, value::expr(node, "").is_ok_and(|expr| expr.roots().contains("item"))));
        }
        let mut texts = Vec::new();
        TEMPLATES.iter().filter_map(at).for_each(|node| templates(node, &mut texts));
        for (node, _) in texts {
            let roots = value::template(node, "").map(|text| text.roots()).unwrap_or_default();
            reads.push((node, roots.contains("item")));
        }
        for (node, _) in reads.iter().filter(|(node, reads)| *reads && !worker.report.is_flawed(node.span)) {
            let problem =
                Problem::error(Code::BadExpression, node.span, "`item` is read in a step that runs for no list");
            found.push(problem.label("there is no item").help("add `foreach:` with a list to this step"));
        }
    }
    found
}

/// The action of a step that does nothing outside itself.
fn inward<'a>(step: Reader<'a>) -> Option<&'a Key> {
    let outward = ["http", "sql", "uses", "send_template"];
    let mut inward = ACTIONS.iter().filter(|name| !outward.contains(name)).chain(&["steps"]);
    inward.find_map(|name| step.node.entry(name)).map(|(action, _)| action)
}

/// Only what does something outside can be undone.
fn nothing_to_undo(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("compensate")?;
    let action = inward(step)?;
    let help = match action.text.as_str() {
        "parallel" | "steps" => "move it to the steps inside that it undoes",
        _ => "remove it",
    };
    let said = format!("`compensate` does not go with `{}`", action.text);
    let problem = Problem::error(Code::EitherOr, key.span, said).label("there is nothing to undo");
    Some(problem.also(action.span, "the action of this step").help(help))
}

/// Only what does something outside is under a policy.
fn nothing_to_rule_over(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("policies")?;
    let action = inward(step)?;
    let help = match action.text.as_str() {
        "parallel" | "steps" => "move it to the steps inside that are under it",
        _ => "remove it",
    };
    let said = format!("`policies` does not go with `{}`", action.text);
    let problem = Problem::error(Code::EitherOr, key.span, said).label("nothing is done outside");
    Some(problem.also(action.span, "the action of this step").help(help))
}

/// `with`, `env` and `script` say more about an action that is not there.
fn misplaced_details(step: Reader<'_>) -> Vec<Problem> {
    let mut others = ACTIONS.iter().filter(|name| !["uses", "run"].contains(name)).chain(&["steps"]);
    let Some((action, _)) = others.find_map(|name| step.node.entry(name)) else {
        return Vec::new();
    };
    let stray = DETAILS.iter().filter_map(|name| step.node.entry(name));
    let problem = |name: &str, span: Span| {
        let help = match action.text.as_str() {
            "http" => "write what is sent below `http:`, as `headers:` and `body:`".to_string(),
            "parallel" | "steps" => "move it to the step that it is for".to_string(),
            other => format!("remove it; what the step needs is written below `{other}:`"),
        };
        Problem::error(Code::EitherOr, span, format!("`{name}` does not go with `{}`", action.text))
            .label("belongs to `uses` or `run`")
            .also(action.span, "the action of this step")
            .help(help)
    };
    stray.map(|(key, _)| problem(&key.text, key.span)).collect()
}

/// A runtime alone does nothing.
fn no_script(step: Reader<'_>) -> Option<Problem> {
    let (key, _) = step.node.entry("uses").filter(|_| !step.has("script"))?;
    let problem = Problem::error(Code::MissingKey, key.span, "`uses` needs a `script`").label("runs nothing");
    Some(problem.help("add `script: |` and below it what is to be run"))
}

/// A path alone is called only where an integration says what it belongs to.
fn path_of_nobody(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let http = step.map("http")?;
    let url = http.spot("url", value::url_or_path)?;
    let (Template::Plain(text) | Template::Mixed(text)) = &url.value;
    let named = http.spot("integration", value::name);
    // An integration that is not there is a problem of its own.
    let has_base = named.is_some_and(|named| {
        integrations.iter().find(|known| *known.name == *named.value).is_none_or(|known| known.base_url.is_some())
    });
    (text.starts_with('/') && !has_base).then(|| {
        let problem = Problem::error(Code::BadUrl, url.span, format!("`{}` is a path of nobody", shown(text)));
        problem.help("write the whole URL, or `integration:` with one that has a `base_url`")
    })
}

/// Credentials, and an event that says who gets them.
fn credentials_for_anybody(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let http = step.map("http")?;
    let url = http.spot("url", value::url_or_path)?;
    let named = http.spot("integration", value::name)?;
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    let is_bare = known.base_url.is_none() && (known.auth.is_some() || !known.headers.is_empty());
    (is_bare && host(&url.value) == ANYBODY).then(|| {
        let said = format!("the event says who gets the credentials of integration `{}`", named.value);
        let problem = Problem::error(Code::BadUrl, url.span, said).label("anybody may be meant");
        problem.help("give the integration a `base_url` and write a path, or write the host out")
    })
}

/// An integration that is no database.
fn no_database(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let named = step.map("sql")?.spot("database", value::name)?;
    // An integration that is not there is a problem of its own.
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    known.url.is_none().then(|| {
        let said = format!("integration `{}` does not say where its database is", named.value);
        let help = format!("add `url: ${{secrets.NAME}}` below `{}:` in clinch.yml", named.value);
        Problem::error(Code::BadDatabase, named.span, said).label("has no `url`").help(help)
    })
}

/// An integration that no message can be sent to.
fn no_channel(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Option<Problem> {
    let named = step.map("send_template")?.spot("integration", value::name)?;
    // An integration that is not there is a problem of its own.
    let known = integrations.iter().find(|known| *known.name == *named.value)?;
    known.channel.is_none().then(|| {
        let said = format!("integration `{}` does not say how a message is sent to it", named.value);
        let help = format!("add `smtp:` and `from:`, or `message:`, below `{}:` in clinch.yml", named.value);
        Problem::error(Code::BadMailServer, named.span, said).label("has neither `smtp` nor `message`").help(help)
    })
}

/// An approval that cannot be given, or of which nobody hears.
fn undecidable(step: Reader<'_>, integrations: &[Arc<Integration>]) -> Vec<Problem> {
    let Some(approval) = step.map("approval") else { return Vec::new() };
    let mut found = Vec::new();
    if let (Some(of), Some(need)) = (approval.may("of", texts).flatten(), approval.spot("need", value::int)) {
        let people: BTreeSet<&String> = of.iter().collect();
        if i64::try_from(people.len()).is_ok_and(|people| people < need.value) {
            let said = format!("`need` is {}, but `of` names {} people", need.value, people.len());
            let problem = Problem::error(Code::OutOfRange, need.span, said).label("can never be approved");
            found.push(problem.help("name more people, or need fewer"));
        }
    }
    if let Some((key, _)) = approval.node.entry("remind").filter(|_| !approval.has("slack")) {
        let problem = Problem::error(Code::MissingKey, key.span, "`remind` needs `slack`").label("nobody is told");
        found.push(problem.help("add `slack: {integration: NAME, channel: CHANNEL}`, or remove `remind`"));
    }
    let (title, show) = (approval.spot("title", value::template), approval.spot("show", value::tree));
    let in_title = title.filter(|title| !title.value.secrets().is_empty()).map(|title| title.span);
    let in_show = show.filter(|show| {
        let mut secrets = BTreeSet::new();
        tree_secrets(&show.value, &mut secrets);
        !secrets.is_empty()
    });
    for span in in_title.into_iter().chain(in_show.map(|show| show.span)) {
        let problem =
            Problem::error(Code::BadExpression, span, "people would see a secret").label("is shown to people");
        found.push(problem.help("remove `secrets` from it"));
    }
    let named = approval.map("slack").and_then(|slack| slack.spot("integration", value::name));
    // An integration that is not there is a problem of its own.
    let known = named.and_then(|named| {
        let known = integrations.iter().find(|known| *known.name == *named.value)?;
        Some((named, known))
    });
    if let Some((named, _)) = known.filter(|(_, known)| !matches!(known.channel, Some(Channel::Slack))) {
        let said = format!("integration `{}` is not Slack", named.value);
        let help = format!("add `message: slack` below `{}:` in clinch.yml", named.value);
        found.push(Problem::error(Code::BadMailServer, named.span, said).label("has no `message: slack`").help(help));
    }
    found
}

/// Where a step has expressions, and where templates.
const EXPRS: &[&[&str]] = &[
    &["if"],
    &["http", "body_from"],
    &["validate", "from"],
    &["enrich", "phone", "from"],
    &["enrich", "geoip", "from"],
    &["delay", "until"],
    &["queue", "body_from"],
    &["queue", "key_from"],
];
const TEMPLATES: &[&[&str]] = &[
    &["http", "url"],
    &["http", "headers"],
    &["http", "wrap_key"],
    &["http", "body"],
    &["transform"],
    &["setnx", "key"],
    &["sql", "params"],
    &["send_template", "to"],
    &["send_template", "with"],
    &["approval", "title"],
    &["approval", "show"],
    &["env"],
];

/// A step, or a branch with steps, and what its expressions may read.
struct Seen<'a> {
    here: Reader<'a>,
    name: Spot<String>,
    /// The names that have run by then.
    before: Vec<Spot<String>>,
    /// Those that run beside it.
    beside: Vec<Spot<String>>,
}

/// Everything that has a name, with what it may read; `None` if some name is missing.
fn seen<'a>(worker: Reader<'a>) -> Option<Vec<Seen<'a>>> {
    let mut found = Vec::new();
    let mut before: Vec<Spot<String>> = Vec::new();
    for step in list(worker) {
        let name = step.step_name()?;
        let parts = step.has("parallel");
        found.push(Seen { here: step, name: name.clone(), before: before.clone(), beside: Vec::new() });
        found.extend(step.map("compensate").map(|here| {
            let before = before.iter().chain([&name]).cloned().collect();
            Seen { here, name: name.clone(), before, beside: Vec::new() }
        }));
        let branches = step.maps("parallel").map(|branch| {
            let own = if branch.has("steps") { branch.maps("steps").collect() } else { vec![branch] };
            let names = own.iter().map(Reader::step_name).collect::<Option<Vec<_>>>()?;
            Some((branch, own, names))
        });
        let branches = branches.collect::<Option<Vec<_>>>()?;
        for (at, (branch, own, names)) in branches.iter().enumerate() {
            let others = branches.iter().enumerate().filter(|(other, _)| *other != at);
            let beside: Vec<_> = others.flat_map(|(_, (.., names))| names.iter().cloned()).collect();
            let sees = |here: Reader<'a>, name: Spot<String>, own: &[Spot<String>]| {
                let before = before.iter().chain(own).cloned().collect();
                Seen { here, name, before, beside: beside.clone() }
            };
            if branch.has("steps") {
                found.push(sees(*branch, branch.step_name()?, &[]));
            }
            for (index, step) in own.iter().enumerate() {
                found.push(sees(*step, names[index].clone(), &names[..index]));
                found.extend(step.map("compensate").map(|undo| sees(undo, names[index].clone(), &names[..=index])));
            }
        }
        // What parts has no output; its branches do.
        before.extend(branches.into_iter().flat_map(|(.., names)| names));
        before.extend((!parts).then_some(name));
    }
    Some(found)
}

/// Every `steps.NAME` must be a step that ran before.
fn unknown_steps(worker: Reader<'_>, names: &[Spot<String>]) -> Vec<Problem> {
    let mut found = Vec::new();
    for seen in seen(worker).unwrap_or_default() {
        let mut texts = Vec::new();
        let at = |path: &&[&str]| path.iter().try_fold(seen.here.node, |node, name| node.get(name));
        for node in EXPRS.iter().filter_map(at) {
            texts.push((node, spelling::steps_in_expr(node.text().unwrap_or_default())));
        }
        if let Some(node) = seen.here.node.get("foreach") {
            let written = value::list_spelt_out(node.text().unwrap_or_default());
            texts.push((node, spelling::steps_in_expr(&written)));
        }
        for node in TEMPLATES.iter().filter_map(at) {
            templates(node, &mut texts);
        }
        for node in at(&&["dedup_key", "fields"][..]).map_or(&[][..], Node::items) {
            texts.push((node, spelling::steps_in_expr(node.text().unwrap_or_default())));
        }
        for (node, read) in texts.into_iter().filter(|(node, _)| !worker.report.is_flawed(node.span)) {
            let unknown = read.into_iter().filter(|name| !seen.before.iter().any(|known| known.value == *name));
            found.extend(unknown.map(|name| unknown_step(worker, node, &name, names, &seen)));
        }
    }
    found
}

fn templates<'n>(node: &'n Node, texts: &mut Vec<(&'n Node, Vec<String>)>) {
    match &node.value {
        Value::Scalar { text, .. } => texts.push((node, spelling::steps_in_template(text))),
        Value::List(items) => items.iter().for_each(|item| templates(item, texts)),
        Value::Map(fields) => fields.iter().for_each(|(_, item)| templates(item, texts)),
    }
}

fn unknown_step(worker: Reader<'_>, node: &Node, name: &str, names: &[Spot<String>], seen: &Seen<'_>) -> Problem {
    let span = worker.report.narrow(node.span, &format!("steps.{name}"));
    let Seen { name: Spot { value: here, .. }, before, beside, .. } = seen;
    if let Some(other) = beside.iter().find(|step| step.value == name) {
        let said = format!("step `{here}` reads `steps.{name}`, which runs beside it in another branch");
        let problem = Problem::error(Code::UnknownStep, span, said).label("not there yet");
        let help = "read it in a step after the `parallel`, or put both into one branch with `steps:`";
        return problem.also(other.span, "runs here").help(help);
    }
    if let Some(later) = names.iter().find(|step| step.value == name) {
        let parting = named(worker).filter(|named| named.has("parallel") || named.has("steps"));
        let parts = parting.filter_map(|named| named.step_name()).any(|parting| parting.value == name);
        let (said, label, help) = match parts {
            true => ("which has steps inside and no output", "no output", "read one of the steps inside it"),
            false => {
                ("which has not run by then", "not there yet", "read only steps above this one, or change their order")
            }
        };
        let said = format!("step `{here}` reads `steps.{name}`, {said}");
        let problem = Problem::error(Code::UnknownStep, span, said).label(label);
        return problem.also(later.span, if parts { "this one" } else { "runs here" }).help(help);
    }
    let said = format!("step `{here}` reads `steps.{}`, but no step has the name `{0}`", shown(name));
    let problem = Problem::error(Code::UnknownStep, span, said).label("unknown step");
    let known: Vec<&str> = before.iter().map(|step| step.value.as_str()).collect();
    if known.is_empty() {
        return problem.help("no step runs before this one; read `body` instead");
    }
    let problem = problem.note(format!("steps before this one: {}", known.join(", ")));
    match nearest(name, known.iter().copied()).and_then(|meant| before.iter().find(|step| step.value == meant)) {
        Some(meant) => {
            problem.also(meant.span, "this one exists").help(format!("did you mean `steps.{}`?", meant.value))
        }
        None => problem.help("name a step that runs before this one"),
    }
}

/// How long one attempt may take: its steps one after the other, and of branches the longest.
pub(super) fn attempt_max(worker: &Worker) -> Duration {
    along(&worker.steps, &timeout)
}

/// How long undoing a job may take: each step in turn, with all attempts.
pub(super) fn undoing(worker: &Worker) -> Duration {
    let actions = worker.all_steps().filter_map(|step| step.compensate.as_ref());
    actions.map(|action| worker.retry.horizon(timeout(action))).fold(Duration::ZERO, Duration::saturating_add)
}

fn timeout(action: &Action) -> Duration {
    match action {
        Action::Http(http) => http.timeout,
        Action::Script(script) => script.timeout,
        Action::Sql(sql) => sql.timeout,
        Action::Send(send) => send.timeout,
        Action::Transform(_) | Action::Validate(_) | Action::Phone(_) | Action::Geoip(_) => Duration::ZERO,
        Action::Delay(_) | Action::DedupKey(_) | Action::Setnx(_) | Action::Queue(_) | Action::Pull(_) => {
            Duration::ZERO
        }
        Action::Policy(_) | Action::Approval(_) | Action::Parallel(_) => Duration::ZERO,
    }
}

/// How long its steps make a job wait, as far as they say it.
pub(super) fn delays(worker: &Worker) -> Duration {
    along(&worker.steps, &|action| match action {
        Action::Delay(DelayAction::For(pause)) => *pause,
        Action::Approval(approval) => approval.rule.expires,
        _ => Duration::ZERO,
    })
}

fn along(steps: &[Step], time: &dyn Fn(&Action) -> Duration) -> Duration {
    let times = steps.iter().map(|step| match &step.action {
        Action::Parallel(branches) => {
            branches.iter().map(|branch| along(&branch.steps, time)).max().unwrap_or_default()
        }
        action => time(action),
    });
    times.fold(Duration::ZERO, Duration::saturating_add)
}

/// The secrets that its steps read.
pub(super) fn secrets(worker: &Worker) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for step in worker.all_steps() {
        let of_branches = step.branches().iter().filter_map(|branch| branch.when.as_ref());
        let lists = step.each.iter().map(|each| &each.list);
        found.extend(step.when.iter().chain(of_branches).chain(lists).flat_map(|expr| Names::of_expr(expr).secrets));
        std::iter::once(&step.action).chain(&step.compensate).for_each(|action| action_secrets(action, &mut found));
    }
    found
}

fn action_secrets(action: &Action, found: &mut BTreeSet<String>) {
    match action {
        Action::Script(script) => found.extend(script.secrets.iter().cloned()),
        Action::Http(http) => http_secrets(http, found),
        Action::Transform(tree) => tree_secrets(tree, found),
        Action::Validate(ValidateAction { from, .. })
        | Action::Phone(PhoneAction { from, .. })
        | Action::Geoip(GeoipAction { from, .. })
        | Action::Delay(DelayAction::Until(from)) => found.extend(Names::of_expr(from).secrets),
        Action::Sql(sql) => sql.params.iter().for_each(|param| tree_secrets(param, found)),
        Action::Send(send) => {
            found.extend(send.to.secrets());
            tree_secrets(&send.with, found);
            if let Channel::Request(request) = &send.channel
                && let MessageBody::Tree(tree) = &request.body
            {
                tree_secrets(tree, found);
            }
        }
        Action::DedupKey(rule) => {
            found.extend(rule.fields.iter().flat_map(|field| Names::of_expr(&field.value).secrets))
        }
        Action::Setnx(setnx) => found.extend(setnx.key.secrets()),
        Action::Queue(queue) => {
            let body = match &queue.body {
                QueueBody::From(from) => Some(from),
                QueueBody::Event => None,
            };
            found.extend(body.into_iter().chain(&queue.key).flat_map(|expr| Names::of_expr(expr).secrets));
        }
        // People see what an approval reads, so it reads none.
        Action::Approval(_)
        | Action::Delay(DelayAction::For(_))
        | Action::Pull(_)
        | Action::Policy(_)
        | Action::Parallel(_) => {}
    }
}

fn http_secrets(http: &HttpAction, found: &mut BTreeSet<String>) {
    found.extend(http.url.secrets());
    found.extend(http.headers.iter().flat_map(|(_, value)| value.secrets()));
    found.extend(http.promise.wrap_key.iter().flat_map(Template::secrets));
    found.extend(http.promise.lookup.iter().flat_map(|lookup| {
        lookup.url.secrets().into_iter().chain(lookup.headers.iter().flat_map(|(_, value)| value.secrets()))
    }));
    match &http.body {
        HttpBody::From(expr) => found.extend(Names::of_expr(expr).secrets),
        HttpBody::Text(text) => found.extend(text.secrets()),
        HttpBody::Tree(tree) => tree_secrets(tree, found),
        HttpBody::Event | HttpBody::Empty => {}
    }
}

fn tree_secrets(tree: &Tree, found: &mut BTreeSet<String>) {
    match tree {
        Tree::Value(_) => {}
        Tree::Expr(expr) => found.extend(Names::of_expr(expr).secrets),
        Tree::Text(text) => found.extend(text.secrets()),
        Tree::List(items) => items.iter().for_each(|item| tree_secrets(item, found)),
        Tree::Map(fields) => fields.iter().for_each(|(_, item)| tree_secrets(item, found)),
    }
}
