//! Whole workspaces: what loads, and everything that is said when one does not.

use super::*;
use crate::approval::{OnExpiry, Rule};
use crate::budget::{OnExhausted, Per};
use crate::effect::Idempotency;
use crate::expr::Expr;
use crate::flow::{Method, OnConflict, OnDuplicateOfDead};
use crate::key::{KeyPart, KeyRule};
use crate::lane::{OnDead, Order};
use crate::retry::{Backoff, Jitter};
use crate::safe_mode::{Circuits, SafeModeRule};
use crate::schedule::Missed;
use crate::scope::Scope;
use crate::script::Isolation;
use crate::trace::{Incoming, Protocol, Share};
use crate::user::Role;
use crate::worker::{Action, HttpAction, HttpBody};
use proptest::prelude::*;
use std::time::Duration;

const INGEST: &str = include_str!("../../tests/tutorial/flows/ingest.yml");
const UPSERT: &str = include_str!("../../tests/tutorial/workers/contact-upsert.yml");
const REPLAY: &str = include_str!("../../tests/tutorial/workers/replay-dlq.yml");
const CART: &str = include_str!("../../tests/cart-recovery/playbooks/cart-recovery.yaml");
const CART_RETRY: &str = include_str!("../../tests/cart-recovery/retry.json");
const TUTORIAL_QUEUES: &str = include_str!("../../tests/tutorial/queues.yml");

const QUEUES: &str = "queues:\n  - name: orders\n  - name: orders-dlq\n    retention: 7d\n";
const FLOW: &str = "\
version: 1
name: intake
triggers:
  - http:
      path: /orders
      idempotency:
        key_from: header:Idempotency-Key
        store: kv:orders
        ttl: 48h
      verify: none
steps:
  - name: enqueue
    queue:
      name: orders
";
const WORKER: &str = "\
version: 1
name: post
consumes:
  queue: orders
retry:
  max_attempts: 5
  on_exhausted: dlq:orders-dlq
run:
  - name: send
    http:
      url: https://api.example.com/orders
      headers:
        authorization: Bearer ${secrets.TOKEN}
      body_from: body
      idempotency: header
";

fn files(files: &[(&str, &str)]) -> Files {
    Files(files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
}

fn good() -> Vec<(&'static str, &'static str)> {
    vec![("flows/intake.yml", FLOW), ("queues.yml", QUEUES), ("workers/post.yml", WORKER)]
}

/// The good workspace with some files added or put in the place of others.
fn with(changed: &[(&'static str, &str)]) -> Files {
    let kept = good().into_iter().filter(|(path, _)| !changed.iter().any(|(other, _)| other == path));
    let mut all: Vec<(String, String)> = kept.map(|(path, text)| (path.to_string(), text.to_string())).collect();
    all.extend(changed.iter().map(|(path, text)| (path.to_string(), text.to_string())));
    all.sort();
    Files(all)
}

pub(super) fn problems(files: &Files) -> Vec<Problem> {
    load(files).map_or_else(|problems| problems, |(_, warnings)| warnings)
}

/// `file:line:column code message`, as a person would read it.
fn told(files: &Files) -> Vec<String> {
    let place = |problem: &Problem| {
        let (_, text) = files.0.iter().find(|(path, _)| *path == problem.file).expect("a file of the workspace");
        let (line, column) = position(text, problem.span.start);
        format!("{}:{line}:{column} {} {}", problem.file, problem.code, problem.message)
    };
    problems(files).iter().map(place).collect()
}

/// Exactly one problem, at this place, with these words in its message and in its help.
fn check(files: &Files, place: &str, code: Code, said: &str, help: &str) -> Problem {
    let found = problems(files);
    assert_eq!(found.len(), 1, "{:#?}", told(files));
    let told = &told(files)[0];
    assert!(told.starts_with(&format!("{place} {code} ")), "{told}");
    assert!(told.contains(said), "{told}");
    assert!(found[0].help.as_deref().unwrap_or_default().contains(help), "{:#?}", found[0]);
    found.into_iter().next().expect("one")
}

/// The worker with one piece of its text replaced has exactly this problem.
fn check_worker(from: &str, to: &str, place: &str, code: Code, said: &str, help: &str) -> Problem {
    assert!(WORKER.contains(from), "{from}");
    let worker = WORKER.replacen(from, to, 1);
    check(&with(&[("workers/post.yml", &worker)]), &format!("workers/post.yml:{place}"), code, said, help)
}

fn check_flow(from: &str, to: &str, place: &str, code: Code, said: &str, help: &str) -> Problem {
    assert!(FLOW.contains(from), "{from}");
    let flow = FLOW.replacen(from, to, 1);
    check(&with(&[("flows/intake.yml", &flow)]), &format!("flows/intake.yml:{place}"), code, said, help)
}

fn http(workspace: &Workspace) -> &HttpAction {
    match &workspace.workers[0].steps[0].action {
        Action::Http(http) => http,
        other => panic!("{other:?}"),
    }
}

fn loaded(files: &Files) -> Workspace {
    match load(files) {
        Ok((workspace, _)) => workspace,
        Err(_) => panic!("{:#?}", told(files)),
    }
}

#[test]
fn the_files_of_the_tutorial_load_unchanged() {
    let files = files(&[
        ("flows/ingest.yml", INGEST),
        ("queues.yml", TUTORIAL_QUEUES),
        ("workers/contact-upsert.yml", UPSERT),
        ("workers/replay-dlq.yml", REPLAY),
    ]);
    let workspace = loaded(&files);
    let route = &workspace.flow("contact-intake").expect("the flow").routes[0];
    assert_eq!((route.method, route.path.as_str()), (Method::Post, "/intake/contact"));
    let dedup = route.dedup.as_ref().expect("a rule");
    assert_eq!(dedup.key, KeyRule::One(KeyPart::Header("idempotency-key".into())));
    assert_eq!((dedup.store.as_str(), dedup.ttl), ("intake-keys", Duration::from_secs(48 * 3600)));
    assert_eq!((dedup.on_conflict, dedup.on_duplicate_of_dead), (OnConflict::Reject, OnDuplicateOfDead::Keep));
    assert!(dedup.required);
    assert_eq!(workspace.flows[0].answer.status, 202);
    assert_eq!(workspace.queue("contact-upserts").expect("a queue").visibility_timeout, Duration::from_secs(90));
    let worker = workspace.worker_for("contact-upserts").expect("a worker");
    assert_eq!(worker.retry, crate::retry::RetryPolicy::default());
    assert_eq!(worker.dead_letters.as_deref(), Some("contact-upserts-dlq"));
    let Action::Script(script) = &worker.steps[0].action else { panic!("a script: {:?}", worker.steps[0]) };
    assert_eq!(script.runtime.to_string(), "node:18");
    assert!(script.text.starts_with("import { upsertContact } from './lib/contacts.js';\nconst body"));
    assert_eq!((script.isolation, script.promise.idempotency), (Isolation::Warm, Idempotency::None));
    let replay = &workspace.workers[1];
    let schedule = replay.schedule().expect("a schedule");
    assert_eq!((schedule.cron.text(), schedule.zone.name()), ("*/10 * * * *", "UTC"));
    assert_eq!((schedule.missed, schedule.overlaps), (Missed::Once, false));
    assert!(workspace.queue("schedule.replay-contact-dlq").is_some_and(|queue| queue.order.is_fifo()));
    let Action::Pull(pull) = &replay.steps[0].action else { panic!("a pull: {:?}", replay.steps[0]) };
    assert_eq!((pull.from.as_str(), pull.most), ("contact-upserts-dlq", 20));
    assert_eq!(workspace.queues_of_dead("contact-upserts-dlq"), ["contact-upserts"]);
    let each = replay.steps[1].each.as_ref().expect("a list");
    assert_eq!(each.list.source(), "steps[\"pull-batch\"].output.messages");
    let pace = each.pace.expect("a pace");
    assert_eq!((pace.rate.count().get(), pace.jitter.map(|jitter| jitter.most)), (5, Some(Duration::from_millis(600))));
    let Action::Queue(queue) = &replay.steps[1].action else { panic!("a queue: {:?}", replay.steps[1]) };
    let key = queue.key.as_ref().map(|key| key.source().to_string());
    assert_eq!((queue.queue.as_str(), key.as_deref()), ("contact-upserts", Some("item.headers[\"Idempotency-Key\"]")));
    assert!(workspace.refusals().is_empty());
    assert_eq!(workspace.secrets.iter().collect::<Vec<_>>(), ["DB_URL"]);
    let unsaid = problems(&files).into_iter().find(|problem| problem.code == Code::Unverified).expect("a warning");
    assert_eq!((unsaid.severity, unsaid.file.as_str()), (Severity::Warning, "flows/ingest.yml"));
    assert!(unsaid.help.is_some_and(|help| help.contains("`verify: none`")));
}

/// A worker with a schedule and one step.
fn scheduled(schedule: &str, step: &str) -> Files {
    let worker = format!("name: nightly\nschedule: {schedule}\nrun:\n  - {step}\n");
    with(&[("workers/nightly.yml", &worker)])
}

/// As `check`, for a problem somewhere in a line.
fn check_near(files: &Files, line: &str, code: Code, said: &str, help: &str) {
    let told = told(files).pop().unwrap_or_default();
    assert!(told.starts_with(line), "{told}");
    check(files, told.split(' ').next().unwrap_or_default(), code, said, help);
}

const STEP: &str = "{name: a, http: {url: 'https://a.b'}}";

#[test]
fn c10_a_schedule_says_when_and_what_becomes_of_missed_moments() {
    let files = scheduled("{cron: '0 9 * * MON', time_zone: Europe/Berlin, missed: all, overlap: true}", STEP);
    let workspace = loaded(&files);
    let (worker, schedule) = workspace.schedules().next().expect("a schedule");
    assert_eq!((worker.name.as_str(), worker.queue()), ("nightly", "schedule.nightly"));
    assert_eq!((schedule.zone.name(), schedule.missed, schedule.overlaps), ("Europe/Berlin", Missed::All, true));
    assert!(workspace.queue("schedule.nightly").is_some_and(|queue| !queue.order.is_fifo()));
    let check = |schedule: &str, said: &str, help: &str| {
        check_near(&scheduled(schedule, STEP), "workers/nightly.yml:2:", Code::BadSchedule, said, help);
    };
    check("{cron: 'every day'}", "says no moment", "*/10 * * * *");
    check("{cron: '0 0 30 2 *'}", "no such moment, ever", "*/10 * * * *");
    check("{cron: '* * * * *', time_zone: Berlin}", "`Berlin` is not a time zone", "Europe/Berlin");
}

#[test]
fn c10_the_queue_of_a_schedule_is_its_own() {
    let queues = format!("{QUEUES}  - name: schedule.nightly\n    retention: 1d\n");
    let said = scheduled("{cron: '* * * * *'}", STEP).0;
    let mut files = with(&[("queues.yml", &queues)]);
    files.0.extend(said.into_iter().filter(|(path, _)| path == "workers/nightly.yml"));
    let day = Duration::from_secs(86_400);
    let queue = loaded(&files).queue("schedule.nightly").expect("a queue").clone();
    assert_eq!((queue.retention, queue.order.is_fifo()), (day, true));
    let other = "name: other\nconsumes: {queue: schedule.nightly}\nrun:\n  - {name: a, http: {url: 'https://a.b'}}\n";
    files.0.push(("workers/other.yml".into(), other.into()));
    let help = "a queue of its own";
    check_near(&files, "workers/other.yml:2:", Code::DuplicateConsumer, "consume queue `schedule.nightly`", help);
}

#[test]
fn c8_a_step_for_each_of_a_list_is_read_and_its_wrong_uses_are_told() {
    let check = |step: &str, code: Code, said: &str, help: &str| {
        check_near(&scheduled("{cron: '* * * * *'}", step), "workers/nightly.yml:4:", code, said, help);
    };
    let fine = "{name: a, foreach: body.items, if: 'item.id > 1', http: {url: 'https://a.b/{{ item.id }}'}}";
    assert_eq!(told(&scheduled("{cron: '* * * * *'}", fine)), Vec::<String>::new());
    let to_queue = "{name: a, foreach: body.items, queue: {name: orders, body_from: item, key_from: item.id}}";
    assert_eq!(told(&scheduled("{cron: '* * * * *'}", to_queue)), Vec::<String>::new());
    check("{name: a, http: {url: 'https://a.b/{{ item.id }}'}}", Code::BadExpression, "runs for no list", "`foreach:`");
    check(
        "{name: a, foreach: 'step:b.messages', transform: {}}",
        Code::UnknownStep,
        "no step has the name `b`",
        "body",
    );
    let paced = "rate_limit: {per_integration: 5/min}";
    check(
        &format!("{{name: a, {paced}, http: {{url: 'https://a.b'}}}}"),
        Code::EitherOr,
        "runs of `foreach`",
        "`foreach:`",
    );
    check(
        &format!("{{name: a, foreach: body.items, {paced}, transform: {{x: '{{{{ item }}}}'}}}}"),
        Code::EitherOr,
        "do something outside or in a queue",
        "remove it",
    );
    check("{name: a, foreach: body.items, delay: 2h}", Code::EitherOr, "does not go with `delay`", "two steps");
    let parted = "{name: p, parallel: [{name: a, foreach: body.items, http: {url: 'https://a.b'}}]}";
    check(parted, Code::EitherOr, "`foreach` is inside a branch", "before or after");
    check("{name: a, queue: {name: ordres}}", Code::UnknownQueue, "`ordres` is not defined", "did you mean `orders`");
    check("{name: a, queue_pull: {from: orders-dql}}", Code::UnknownQueue, "is not defined", "queues.yml");
    check("{name: a, queue_pull: {from: orders-dlq, max_messages: 0}}", Code::OutOfRange, "max_messages", "");
}

#[test]
fn c8_a_pull_from_where_nothing_dies_is_told() {
    let queues = QUEUES.replacen("queues:\n", "queues:\n  - name: nothing\n", 1);
    let worker = "name: n\nschedule: {cron: '* * * * *'}\nrun:\n  - {name: a, queue_pull: {from: nothing}}\n";
    let files = with(&[("queues.yml", &queues), ("workers/nightly.yml", worker)]);
    let found: Vec<Code> = problems(&files).iter().map(|problem| problem.code).collect();
    assert!(found.contains(&Code::NoDeadLetters), "{found:?}");
    assert!(loaded(&files).refusals().is_empty());
}

const PARTED: &str = "\
name: post
consumes: {queue: orders}
retry: {max_attempts: 2}
run:
  - name: first
    http: {url: 'https://a.b', timeout: 1s}
  - name: everywhere
    parallel:
      - name: crm
        http: {url: 'https://crm.b/{{ steps.first.output.id }}', timeout: 20s, headers: {x: '${secrets.CRM}'}}
      - name: analytics
        if: body.tracked
        steps:
          - name: shape
            transform: {of: '{{ body.id }}'}
          - name: rest
            delay: 10m
          - name: track
            http: {url: 'https://stats.b', body_from: steps.shape.output, timeout: 30s}
  - name: after
    http: {url: 'https://a.b/{{ steps.crm.output.id }}/{{ steps.track.output.id }}', timeout: 5s}
";

#[test]
fn c9_a_branch_is_a_step_or_has_steps_of_its_own() {
    let files = with(&[("workers/post.yml", PARTED)]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let worker = &workspace.workers[0];
    let names = |steps: &[crate::worker::Step]| steps.iter().map(|step| step.name.to_string()).collect::<Vec<_>>();
    let branches = worker.steps[1].branches();
    let found: Vec<_> = branches.iter().map(|branch| (&*branch.name, names(&branch.steps))).collect();
    assert_eq!(
        found,
        [("crm", vec!["crm".into()]), ("analytics", vec!["shape".into(), "rest".into(), "track".into()])]
    );
    assert_eq!(worker.all_steps().count(), 7);
    assert_eq!(worker.branch_of("track").map(|branch| &*branch.name), Some("analytics"));
    assert!(worker.branch_of("after").is_none());
    assert!(workspace.secrets.contains("CRM"), "{:?}", workspace.secrets);
    // The longest branch counts: two attempts of 1s + 30s + 5s, a pause of 2s, and 10 minutes of waiting.
    let flow = FLOW.replace("48h", "10m");
    let short = with(&[("workers/post.yml", PARTED), ("flows/intake.yml", &flow)]);
    assert!(told(&short)[0].contains("may retry a job for 12m"), "{:?}", told(&short));
}

/// The parted worker with one piece of its text replaced has exactly this problem.
fn check_parted(from: &str, to: &str, place: &str, code: Code, said: &str, help: &str) {
    assert!(PARTED.contains(from), "{from}");
    let worker = PARTED.replacen(from, to, 1);
    check(&with(&[("workers/post.yml", &worker)]), &format!("workers/post.yml:{place}"), code, said, help);
}

#[test]
fn c9_branches_read_what_ran_before_and_nothing_of_each_other() {
    let beside = "step `track` reads `steps.crm`, which runs beside it in another branch";
    let help = "read it in a step after the `parallel`";
    check_parted(
        "body_from: steps.shape.output",
        "body_from: steps.crm.output",
        "19:55",
        Code::UnknownStep,
        beside,
        help,
    );
    check_parted(
        "if: body.tracked",
        "if: steps.shape.output",
        "12:13",
        Code::UnknownStep,
        "has not run by then",
        "above",
    );
    let within = "reads `steps.everywhere`, which has steps inside and no output";
    check_parted("steps.track.output.id", "steps.everywhere.id", "21:59", Code::UnknownStep, within, "inside it");
    check_parted(
        "steps.track.output.id",
        "steps.trak.output.id",
        "21:59",
        Code::UnknownStep,
        "no step has the name",
        "steps.track",
    );
    check_parted(
        "name: rest",
        "name: crm",
        "16:19",
        Code::DuplicateName,
        "two steps have the name `crm`",
        "of its own",
    );
}

#[test]
fn c9_branches_do_not_part_again_and_are_not_too_many() {
    let nested = "parallel: [{name: a, http: {url: 'https://a.b'}}]";
    let help = "add its branches to the outer";
    check_parted("delay: 10m", nested, "17:13", Code::EitherOr, "inside a branch of another", help);
    let step = "http: {url: 'https://crm.b/{{ steps.first.output.id }}', timeout: 20s, headers: {x: '${secrets.CRM}'}}";
    check_parted(step, nested, "10:9", Code::EitherOr, "inside a branch of another", help);
    check_parted(
        "if: body.tracked",
        "timeout: 5s",
        "12:9",
        Code::EitherOr,
        "`timeout` does not go with `steps`",
        "move",
    );
    let many: String = (0..21).map(|at| format!("{{name: b{at}, http: {{url: 'https://a.b'}}}}, ")).collect();
    let worker = format!("name: w\nconsumes: {{queue: orders}}\nrun:\n  - name: all\n    parallel: [{many}]\n");
    let files = with(&[("workers/post.yml", &worker)]);
    check(&files, "workers/post.yml:5:5", Code::OutOfRange, "`parallel` has 21 branches", "at most 20");
}

const UNDONE: &str = "\
name: post
consumes: {queue: orders}
retry: {max_attempts: 1}
run:
  - name: reserve
    http: {url: 'https://a.b', timeout: 1s}
    compensate:
      http: {url: 'https://a.b/{{ steps.reserve.output.id }}', timeout: 90m, headers: {x: '${secrets.UNDO}'}}
  - name: mail
    uses: bash
    script: mail
    compensate: {uses: bash, script: unmail, env: {ID: '{{ steps.reserve.output.id }}'}}
  - name: last
    http: {url: 'https://a.b'}
";

#[test]
fn c13_a_step_may_say_what_undoes_it() {
    let files = with(&[("workers/post.yml", UNDONE)]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let undo = |at: usize| workspace.workers[0].steps[at].compensate.as_ref();
    assert!(
        matches!(undo(0), Some(Action::Http(_))) && matches!(undo(1), Some(Action::Script(_))) && undo(2).is_none()
    );
    assert!(workspace.secrets.contains("UNDO"), "{:?}", workspace.secrets);
    assert_eq!(workspace.runtimes.len(), 2);
    // A key is remembered until everything is undone.
    let flow = FLOW.replace("48h", "1h");
    let short = with(&[("workers/post.yml", UNDONE), ("flows/intake.yml", &flow)]);
    assert!(told(&short)[0].contains("may retry a job for 92m"), "{:?}", told(&short));
}

#[test]
fn c13_what_undoes_a_step_is_checked_like_a_step() {
    let check = |from: &str, to: &str, place: &str, code: Code, said: &str, help: &str| {
        assert!(UNDONE.contains(from), "{from}");
        let worker = UNDONE.replacen(from, to, 1);
        check(&with(&[("workers/post.yml", &worker)]), &format!("workers/post.yml:{place}"), code, said, help);
    };
    let later = "reads `steps.last`, which has not run by then";
    check(
        "{{ steps.reserve.output.id }}', timeout",
        "{{ steps.last.output.id }}', timeout",
        "8:35",
        Code::UnknownStep,
        later,
        "above",
    );
    check(
        "{uses: bash, script: unmail",
        "{uses: bash",
        "12:18",
        Code::MissingKey,
        "`uses` needs a `script`",
        "add `script",
    );
    check(
        "{uses: bash, script: unmail, env: {ID: '{{ steps.reserve.output.id }}'}}",
        "{http: {url: /x}}",
        "12:30",
        Code::BadUrl,
        "path of nobody",
        "whole URL",
    );
    check(
        "compensate: {uses: bash, script: unmail, env: {ID: '{{ steps.reserve.output.id }}'}}",
        "compensate: {timeout: 2h}",
        "12:5",
        Code::MissingKey,
        "this undoes nothing",
        "add `http:`",
    );
    let inward = "transform: {a: 1}\n    compensate: {http: {url: 'https://a.b'}}";
    check(
        "http: {url: 'https://a.b'}\n",
        &format!("{inward}\n"),
        "15:5",
        Code::EitherOr,
        "does not go with `transform`",
        "remove",
    );
}

#[test]
fn templates_need_no_quotes_and_step_names_may_have_hyphens() {
    let worker = "\
name: cart
consumes: {queue: orders}
run:
  - id: check-and-set
    http: {url: 'https://a.b/set'}
  - id: maybe-send
    if: {{ steps.check-and-set.output.set == true }}
    http:
      url: https://a.b/{{ body.id }}
      headers:
        x-to: {{ event.email }}
      body:
        to: {{ body.email }}
        times: 2
";
    let workspace = loaded(&with(&[("workers/post.yml", worker)]));
    let step = &workspace.workers[0].steps[1];
    let scope = Scope::from_iter([("steps", serde_json::json!({"check-and-set": {"output": {"set": true}}}))]);
    assert_eq!(step.when.as_ref().expect("a condition").holds(&scope), Ok(true));
    assert!(matches!(&step.action, Action::Http(http) if matches!(http.body, HttpBody::Tree(_))));
}

#[test]
fn the_json_spelling_of_a_retry_policy_is_read() {
    let retry = r#""retry": {"strategy": "fixed", "base_ms": 500, "max_attempts": 3, "jitter": "none"}"#;
    let worker = WORKER.replace("retry:\n  max_attempts: 5\n  on_exhausted: dlq:orders-dlq", retry);
    let retry = loaded(&with(&[("workers/post.yml", &worker)])).workers.remove(0).retry;
    assert_eq!((retry.strategy, retry.jitter, retry.base), (Backoff::Fixed, Jitter::None, Duration::from_millis(500)));
    assert_eq!(retry.attempts_max.get(), 3);
}

/// The worker with this in its retry policy.
fn with_retry(retry: &str) -> Files {
    with(&[("workers/post.yml", &WORKER.replace("  max_attempts: 5\n", &format!("  max_attempts: 5\n  {retry}\n")))])
}

#[test]
fn c5_a_budget_says_whose_it_is_how_much_and_what_then() {
    let budget = |retry: &str| loaded(&with_retry(retry)).workers.remove(0).retry.budget.expect("a budget");
    let said = budget(r#"budget: {per: "{{ body.email }}", max: 5, window: 10m, on_exhausted: wait}"#);
    assert_eq!((&*said.name, said.on_exhausted), ("post", OnExhausted::Wait));
    assert_eq!((said.allowance.units.get(), said.allowance.window), (5, Duration::from_secs(600)));
    assert_eq!(said.per, Per::Said(crate::expr::Template::parse("{{ body.email }}").expect("a template")));
    let usual = budget(r#"budget: {per: "{{ event.sender }}", max: 1}"#);
    assert_eq!((usual.allowance.window, usual.on_exhausted), (Duration::from_secs(3_600), OnExhausted::Dead));
    let retry = r#""retry": {"strategy": "exponential", "base_ms": 500, "max_attempts": 3, "jitter": "full", "budget_per_contact": 5}"#;
    let worker = WORKER.replace("retry:\n  max_attempts: 5\n  on_exhausted: dlq:orders-dlq", retry);
    let workspace = loaded(&with(&[("workers/post.yml", &worker)]));
    assert!(workspace.refusals().is_empty(), "{:#?}", workspace.refusals());
    let contact = workspace.workers[0].retry.budget.as_ref().expect("a budget");
    assert_eq!((&contact.per, contact.allowance.units.get()), (&Per::Contact, 5));
    assert_eq!((contact.allowance.window, contact.on_exhausted), (Duration::from_secs(3_600), OnExhausted::Dead));
}

#[test]
fn c5_a_budget_is_of_one_who_is_known_before_any_step_runs() {
    let place = |retry: &str, place: &str, code, said: &str, help: &str| {
        check(&with_retry(retry), &format!("workers/post.yml:{place}"), code, said, help)
    };
    place(
        r#"budget: {per: "{{ steps.post.output.id }}", max: 5}"#,
        "7:21",
        Code::BadExpression,
        "the name `steps` is not known",
        "",
    );
    place(r#"budget: {per: "{{ body.id }}", max: 0}"#, "7:39", Code::OutOfRange, "max", "");
    place(r#"budget: {per: "{{ body.id }}"}"#, "7:3", Code::MissingKey, "max", "max");
    let both = "budget: {per: \"{{ body.id }}\", max: 5}\n  budget_per_contact: 5";
    place(both, "8:3", Code::EitherOr, "budget", "");
}

#[test]
fn a_step_says_what_it_sends() {
    let workspace = loaded(&with(&[]));
    let action = http(&workspace);
    assert_eq!((action.method.as_str(), action.promise.idempotency), ("POST", Idempotency::Header));
    assert_eq!(action.timeout, Duration::from_secs(30));
    assert!(matches!(action.body, HttpBody::Event));
    assert_eq!(workspace.secrets.into_iter().collect::<Vec<_>>(), ["TOKEN"]);

    let body = |text: &str| {
        let worker = WORKER.replace("body_from: body", text);
        http(&loaded(&with(&[("workers/post.yml", &worker)]))).body.clone()
    };
    assert!(matches!(body("body_from: request.body"), HttpBody::Event));
    assert!(matches!(body("body_from: body.customer"), HttpBody::From(_)));
    assert!(matches!(body("body: '{{ body.id }}'"), HttpBody::Text(_)));
    assert!(matches!(body("body: {a: [1, '{{ body.id }}']}"), HttpBody::Tree(_)));
    assert!(matches!(body("timeout: 5s"), HttpBody::Empty));
}

#[test]
fn secrets_are_found_wherever_a_step_reads_them() {
    let worker = "\
name: w
consumes: {queue: orders}
run:
  - name: a
    if: \"secrets.A == 'x'\"
    http:
      url: https://a.b/${secrets.B}
      headers: {x: '{{ secrets.C }}'}
      body: {deep: ['{{ secrets.D }}', 'and ${secrets.E}']}
  - name: b
    http: {url: 'https://a.b', body_from: 'secrets.F'}
  - {name: c, http: {url: 'https://a.b', body: 'x ${secrets.G}'}}
  - {name: d, uses: node:18, script: x, env: {A: '${secrets.H}'}}
";
    let secrets = loaded(&with(&[("workers/post.yml", worker)])).secrets;
    assert_eq!(secrets.into_iter().collect::<String>(), "ABCDEFGH");
    let said = check_worker(
        "${secrets.TOKEN}",
        "{{ secrets['TOKEN'] }}",
        "13:34",
        Code::BadExpression,
        "without its name",
        "secrets.NAME",
    );
    assert_eq!(said.severity, Severity::Error);
}

#[test]
fn settings_are_addresses() {
    let settings = |text: &str| load(&with(&[("clinch.yml", text)])).map(|(workspace, _)| workspace.settings);
    let both = settings("version: 1\nlisten: 127.0.0.1:7400\nadmin: '[::1]:7401'\n").expect("two addresses");
    assert_eq!(both.listen, Some("127.0.0.1:7400".parse().expect("an address")));
    assert_eq!(settings("# nothing\n"), Ok(Settings::default()));
    let check = |text: &str, place: &str, code, said: &str, help: &str| {
        check(&with(&[("clinch.yml", text)]), &format!("clinch.yml:{place}"), code, said, help)
    };
    check("listen: localhost:8080\n", "1:9", Code::BadAddress, "`localhost:8080` is not an address", "127.0.0.1:8080");
    check("listen: 1.2.3.4:1\nadmin: 1.2.3.4:1\n", "2:8", Code::BadAddress, "same address", "another port");
    check(
        "lisen: 1.2.3.4:1\n",
        "1:1",
        Code::UnknownKey,
        "`lisen` is not a key of this settings file",
        "did you mean `listen`?",
    );
    check("version: 2\n", "1:10", Code::OutOfRange, "`version` is too large", "write 1");
}

#[test]
fn h6_a_workspace_says_what_else_is_masked() {
    let masking = |text: &str| loaded(&with(&[("clinch.yml", text)])).settings.masking;
    let rules = masking("masking: {fields: [crm_id, '*note*'], pointers: [/deal/stage], addresses: true}\n");
    let body = br#"{"crm_id":1,"inner_note":2,"deal":{"stage":3,"size":4}}"#;
    assert_eq!(
        rules.json(body).as_deref(),
        Some(r#"{"crm_id":"•••","inner_note":"•••","deal":{"stage":"•••","size":4}}"#)
    );
    assert_eq!(rules.text("from 203.0.113.7"), "from 203.•••");
    assert_eq!(masking("# nothing\n"), crate::mask::Rules::default());
    let check = |text: &str, place: &str, code, said: &str, help: &str| {
        check(&with(&[("clinch.yml", text)]), &format!("clinch.yml:{place}"), code, said, help);
    };
    check("masking: {fields: [fine, 'a*b']}\n", "1:26", Code::BadName, "`a*b` is not a field name to mask", "");
    check("masking: {pointers: [deal]}\n", "1:22", Code::BadPointer, "`deal` is not a path into a body", "");
    check("masking: {field: [a]}\n", "1:11", Code::UnknownKey, "`field`", "did you mean `fields`?");
    let many = format!("masking: {{fields: [{}]}}\n", vec!["a"; 300].join(", "));
    check(&many, "1:11", Code::OutOfRange, "300 names and pointers are more than 256", "");
}

const REDIS: &str = "\
kv:
  orders:
    url: rediss://clinch:${secrets.REDIS_PASSWORD}@redis.example:6380/2
    pepper: ${secrets.PEPPER}
    prefix: shop
";

#[test]
fn k2_encryption_names_its_keys_and_holds_none() {
    let read = |text: &str| loaded(&with(&[("clinch.yml", text)])).settings.encryption;
    assert_eq!(read("listen: 127.0.0.1:7400\n"), None);
    assert_eq!(read("encryption: none\n"), Some(Encryption::None));
    assert_eq!(read("encryption: {file: /etc/clinch/keys}\n"), Some(Encryption::File("/etc/clinch/keys".into())));
    let keys =
        read("encryption: {key: '${secrets.NEW}', older: ['${secrets.OLD}', '${secrets.OLDER}']}\n").expect("keys");
    assert_eq!(keys.secrets().collect::<Vec<_>>(), ["NEW", "OLD", "OLDER"]);
    let shown = loaded(&with(&[("clinch.yml", "encryption: {key: '${secrets.NEW}'}\n")])).secrets;
    assert!(!shown.contains("NEW"), "no step sees it");
    for (text, said) in [
        ("encryption: off\n", "`off` is not a value of `encryption`"),
        ("encryption: {}\n", "there is no key"),
        ("encryption: {key: 0001}\n", "must be a secret"),
        ("encryption: {key: '${secrets.A}', file: x}\n", "keys come from secrets or from a file"),
        ("encryption: {older: ['${secrets.A}']}\n", "there is no key"),
        ("encryption: {key: '${secrets.A}', older: [0001]}\n", "must be a secret"),
    ] {
        let told = told(&with(&[("clinch.yml", text)]));
        assert!(told.iter().any(|told| told.contains(said)), "{text}: {told:?}");
    }
}

fn secret(name: &str) -> Option<String> {
    Some(format!("{name}/@ü"))
}

#[test]
fn b7_a_key_store_is_a_redis_whose_password_is_in_no_file() {
    let files = with(&[("clinch.yml", REDIS)]);
    let workspace = loaded(&files);
    let [kv] = workspace.settings.kv.as_slice() else { panic!("{:?}", workspace.settings) };
    assert_eq!((kv.name.as_str(), kv.prefix.as_str()), ("orders", "shop"));
    let address = kv.address(secret).expect("an address");
    assert_eq!(address, "rediss://clinch:REDIS_PASSWORD%2F%40%C3%BC@redis.example:6380/2");
    assert_eq!(kv.secret_pepper(secret), Ok(Some("PEPPER/@ü".into())));
    assert!(["PEPPER", "REDIS_PASSWORD", "TOKEN"].iter().all(|name| workspace.secrets.contains(*name)));
    let whole = with(&[("clinch.yml", "kv: {orders: {url: '${secrets.REDIS_URL}'}}\n")]);
    let kv = &loaded(&whole).settings.kv[0];
    assert_eq!(kv.address(secret), Ok("REDIS_URL/@ü".into()));
    assert_eq!((kv.prefix.as_str(), kv.secret_pepper(secret)), ("orders", Ok(None)));
}

#[test]
fn b7_every_redis_is_warned_about_and_one_that_nobody_uses_too() {
    let said = "keys of `kv:orders` are remembered between installations as well as its Redis remembers";
    let warned = check(&with(&[("clinch.yml", REDIS)]), "clinch.yml:2:3", Code::ForgetfulStore, said, "appendonly yes");
    assert!(!warned.is_error());
    let misspelt = with(&[("clinch.yml", "kv: {order: {url: 'redis://127.0.0.1'}}\n")]);
    let told = told(&misspelt);
    assert!(told.iter().any(|told| told.contains("CL0117 no flow has `store: kv:order`")), "{told:?}");
    let unused = problems(&misspelt).into_iter().find(|problem| problem.code == Code::UnusedStore).expect("told");
    assert_eq!(unused.help.as_deref(), Some("a flow says `store: kv:orders`; write both the same"));
}

#[test]
fn b7_an_address_that_is_no_redis_or_shows_a_password_is_refused() {
    for (store, code, help) in [
        ("url: https://redis.example", Code::BadStore, "begin it with `redis://`"),
        ("url: redis://:hunter2@redis.example", Code::BadStore, "write `:${secrets.NAME}@` in its place"),
        ("url: redis://:6379", Code::BadStore, "write the host after `//`"),
        ("url: 'redis://{{ body.host }}'", Code::BadExpression, "write `${secrets.NAME}`"),
        ("url: redis://h, pepper: salt", Code::BadStore, "write `pepper: ${secrets.NAME}`"),
        ("prefix: x", Code::MissingKey, "add `url: redis://127.0.0.1:6379`"),
    ] {
        let files = with(&[("clinch.yml", &format!("kv: {{orders: {{{store}}}}}\n"))]);
        let found = problems(&files).into_iter().find(|problem| problem.is_error()).expect(store);
        assert_eq!(found.code, code, "{store}");
        assert!(found.help.as_deref().is_some_and(|said| said.contains(help)), "{store}: {found:?}");
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
    }
    let files = with(&[("clinch.yml", "kv: {a b: {url: 'redis://h'}}\n")]);
    assert!(problems(&files).iter().any(|problem| problem.code == Code::BadName));
    let files = with(&[("clinch.yml", "kv: [orders]\n")]);
    assert!(problems(&files).iter().any(|problem| problem.code == Code::WrongType));
}

#[test]
fn j1_every_problem_is_reported_at_once_with_its_place() {
    let queues = "queues:\n  - name: orders\n    retention: 4 days\n  - nam: orders-dlq\n";
    let flow = FLOW.replace("ttl: 48h", "ttl: 48").replace("name: orders", "name: ordres");
    let worker = WORKER.replace("max_attempts: 5", "max_attempts: 0\n  max_delay: soon").replace("https://", "ftp://");
    let files = with(&[
        ("clinch.yml", "é: 1\n"),
        ("flows/b.yml", "name: [\n"),
        ("flows/intake.yml", &flow),
        ("other.yml", ""),
        ("queues.yml", queues),
        ("workers/post.yml", &worker),
    ]);
    let expected = [
        "clinch.yml:1:1 CL0121 `é` is not a key of this settings file",
        "flows/b.yml:2:1 CL0101 a `[` or `{` is not closed, or a comma is missing",
        "flows/intake.yml:9:14 CL0131 `ttl` needs a unit",
        "other.yml:1:1 CL0104 `other.yml` is not a file of a workspace",
        "queues.yml:3:16 CL0131 `4 days` is not a duration",
        "queues.yml:4:5 CL0121 `nam` is not a key of this queue",
        "workers/post.yml:6:17 CL0124 `max_attempts` is too small",
        "workers/post.yml:7:14 CL0131 `soon` is not a duration",
        "workers/post.yml:12:12 CL0136 `ftp://api.example.com/orders` is not a URL that clinch calls",
    ];
    // Not among them: the unknown queue, which may be the one whose name is misspelt in queues.yml.
    assert_eq!(told(&files), expected);
}

#[test]
fn j1_an_unknown_key_is_told_which_ones_are_known() {
    let said = check_worker(
        "max_attempts",
        "max_atempts",
        "6:3",
        Code::UnknownKey,
        "`max_atempts`",
        "did you mean `max_attempts`?",
    );
    assert_eq!(said.label, "unknown key");
    assert!(said.notes[0].starts_with("allowed here: strategy, base_delay,"), "{:?}", said.notes);
    check_worker("url:", "uri:", "11:7", Code::UnknownKey, "`uri`", "did you mean `url`?");
    check_worker("    http:", "    htpp:", "10:5", Code::UnknownKey, "`htpp`", "did you mean `http`?");
    check_flow("path:", "colour: red\n      path:", "5:7", Code::UnknownKey, "`colour`", "remove it");
}

#[test]
fn j1_a_missing_key_is_told_where_it_belongs() {
    check_flow(
        "      path: /orders\n",
        "",
        "4:5",
        Code::MissingKey,
        "`path` is missing in this http trigger",
        "add `path: /intake/NAME`",
    );
    check_flow("        ttl: 48h\n", "", "6:7", Code::MissingKey, "`ttl` is missing", "add `ttl: 48h`");
    check_worker("name: post\n", "", "1:1", Code::MissingKey, "`name` is missing in this worker", "add `name: NAME`");
    check_worker(
        "consumes:\n  queue: orders\n",
        "",
        "1:1",
        Code::MissingKey,
        "nothing starts this worker",
        "consumes:",
    );
    check_worker(
        "- name: send\n    http:",
        "- http:",
        "9:5",
        Code::MissingKey,
        "this step has no name",
        "add `name: NAME`",
    );
    check_flow(
        "    queue:\n      name: orders\n",
        "",
        "12:5",
        Code::MissingKey,
        "this step does nothing",
        "add `queue:`",
    );
    check(&with(&[("queues.yml", "")]), "queues.yml:1:1", Code::MissingKey, "`queues` is missing", "add `queues:`");
}

#[test]
fn j1_a_value_of_another_type_is_told_what_is_needed() {
    check_worker(
        "max_attempts: 5",
        "max_attempts: '5'",
        "6:17",
        Code::WrongType,
        "must be a whole number, not a text",
        "`max_attempts: 5`",
    );
    check_worker(
        "max_attempts: 5",
        "max_attempts: 99999999999999999999999999",
        "6:17",
        Code::OutOfRange,
        "too large",
        "",
    );
    check_worker("max_attempts: 5", "max_attempts: 10001", "6:17", Code::OutOfRange, "too large", "write 1 to 10000");
    check_worker(
        "max_attempts: 5",
        "multiplier: 0.5",
        "6:15",
        Code::OutOfRange,
        "`multiplier` is too small",
        "write 1 to",
    );
    check_worker("max_attempts: 5", "multiplier: .inf", "6:15", Code::WrongType, "must be a number", "");
    check_worker(
        "max_attempts: 5",
        "jitter: ful",
        "6:11",
        Code::BadChoice,
        "`ful` is not a value of `jitter`",
        "did you mean `full`?",
    );
    check_worker(
        "max_attempts: 5",
        "max_attempts:",
        "6:3",
        Code::WrongType,
        "`max_attempts` is empty",
        "write `max_attempts: 1`",
    );
    check_worker(
        "max_attempts: 5",
        "base_delay: 1s\n  base_ms: 5",
        "7:3",
        Code::EitherOr,
        "exclude each other",
        "keep one",
    );
    check_worker("orders-dlq", "'a b'", "7:17", Code::BadName, "`'a b'` is not a name", "letters, digits");
    check_worker("dlq:orders", "orders", "7:17", Code::BadName, "must begin with `dlq:`", "write `dlq:orders-dlq`");
    check_worker(
        "  - name: send\n    http",
        "    name: send\n    http",
        "9:5",
        Code::WrongType,
        "`run` must be a list, not a map",
        "`- `",
    );
    check_worker(
        "body_from: body",
        "body_from: body\n      body: x",
        "15:7",
        Code::EitherOr,
        "both are the body",
        "keep one",
    );
    check_flow("48h", "48h\n        required: yes", "10:19", Code::WrongType, "true or false", "`required: true`");
    check_flow("48h", "0s", "9:14", Code::OutOfRange, "`ttl` is too small", "write 1s to 3650d");
    check_flow("path: /orders", "path: orders", "5:13", Code::BadPath, "does not begin with `/`", "write `/orders`");
    check_flow("path: /orders", "path: /orders/{id}", "5:13", Code::BadPath, "pattern", "matched whole");
    check_flow(
        "path: /orders",
        "path: /a\n      body_max: 11MiB",
        "6:17",
        Code::OutOfRange,
        "too large",
        "1B to 10MiB",
    );
    check_flow("path: /orders", "path: /a\n      method: GET", "6:15", Code::BadChoice, "`GET`", "POST");
    check_flow(
        "name: orders",
        "name: orders\n      body_from: body",
        "15:18",
        Code::BadChoice,
        "`body`",
        "request.body",
    );
    check_flow(
        "header:Idempotency-Key",
        "[body:/a, id]",
        "7:29",
        Code::BadKeyRule,
        "`id`",
        "did you mean `header:id`?",
    );
    check_flow("header:Idempotency-Key", "[]", "7:19", Code::OutOfRange, "1 to 16 parts, not 0", "");
}

#[test]
fn a_step_does_one_thing() {
    let said = check_worker(
        "    http:",
        "    queue_pull: {from: orders-dlq}\n    http:",
        "11:5",
        Code::EitherOr,
        "`queue_pull` and `http` exclude each other",
        "keep one",
    );
    assert_eq!(said.also.expect("the other").1, "either this");
    check_worker(
        "    http:",
        "    with: {a: 1}\n    http:",
        "10:5",
        Code::EitherOr,
        "`with` does not go with `http`",
        "below `http:`",
    );
}

#[test]
fn d2_a_header_that_is_not_the_steps_to_set_is_refused() {
    for name in ["Host", "content-length", "Transfer-Encoding", "connection", "TE"] {
        check_worker("authorization", name, "13:9", Code::BadHeader, "set by the connection", "remove it");
    }
    check_worker("authorization", "Idempotency-Key", "13:9", Code::BadHeader, "set by clinch", "idempotency: header");
    check_worker("authorization", "'a b'", "13:9", Code::BadHeader, "`a b` is not a header name", "letters");
    check_worker("Bearer ${secrets.TOKEN}", "\"a\\nb\"", "13:24", Code::BadHeader, "line break", "one line");
    let twice = "X-A: 1\n        x-a: 2\n        authorization";
    check_worker("authorization", twice, "14:9", Code::DuplicateKey, "`x-a` is written twice", "no case");
}

#[test]
fn expressions_are_read_before_they_run() {
    check_worker(
        "body_from: body",
        "body_from: 'body.'",
        "14:18",
        Code::BadExpression,
        "`body_from` cannot be read",
        "",
    );
    let said = check_worker(
        "body_from: body",
        "body_from: bdy.x",
        "14:18",
        Code::BadExpression,
        "`bdy` is not known",
        "did you mean `body`?",
    );
    assert!(
        said.notes[0].ends_with("body, request, headers, key, event, job, step, steps, item, secrets"),
        "{:?}",
        said.notes
    );
    check_worker(
        "body_from: body",
        "body: {é: ['{{ customer }}']}",
        "14:22",
        Code::BadExpression,
        "`customer`",
        "body.customer",
    );
    check_worker(
        "    http:",
        "    if: \"body.amount >\"\n    http:",
        "10:9",
        Code::BadExpression,
        "`if` cannot be read",
        "",
    );
    check_worker("${secrets.TOKEN}", "${env.TOKEN}", "13:24", Code::BadExpression, "`${env.TOKEN}` is not known", "");
    check_worker(
        "orders\n      headers",
        "{% if x %}\n      headers",
        "11:12",
        Code::BadExpression,
        "`url` cannot be read",
        "",
    );
}

#[test]
fn a_step_that_is_read_must_have_run() {
    let more = |reads: &str| {
        format!(
            "body_from: body\n      idempotency: header\n  - name: notify\n    http:\n      url: https://a.b/{reads}\n  - name: last\n    http: {{url: 'https://a.b'}}"
        )
    };
    let worker = |reads: &str| WORKER.replace("body_from: body\n      idempotency: header", &more(reads));
    let check = |reads: &str, said: &str, help: &str| {
        check(&with(&[("workers/post.yml", &worker(reads))]), "workers/post.yml:18:27", Code::UnknownStep, said, help)
    };
    let problem = check(
        "{{ steps.sned.output }}",
        "`notify` reads `steps.sned`, but no step has the name `sned`",
        "did you mean `steps.send`?",
    );
    assert_eq!(problem.notes, ["steps before this one: send"]);
    assert_eq!(problem.also.expect("the step that exists").1, "this one exists");
    check("{{ steps.last.output }}", "has not run by then", "above this one");
    check("{{ steps.notify.output }}", "has not run by then", "above this one");
    loaded(&with(&[("workers/post.yml", &worker("{{ steps.send.output }}"))]));
}

#[test]
fn a_queue_that_is_named_must_be_defined() {
    check_flow(
        "name: orders",
        "name: order",
        "14:13",
        Code::UnknownQueue,
        "queue `order` is not defined",
        "did you mean `orders`?",
    );
    let flow = "name: b\ntriggers: [{http: {path: /b, verify: none}}]\nsteps: [{name: a, queue: {name: mails}}]\n";
    check(
        &with(&[("flows/b.yml", flow)]),
        "flows/b.yml:3:33",
        Code::UnknownQueue,
        "queue `mails` is not defined",
        "below `queues:`:\n  - name: mails",
    );
    let files = Files(with(&[]).0.into_iter().filter(|(path, _)| path != "queues.yml").collect());
    let found = problems(&files);
    assert_eq!(found.len(), 3, "{found:#?}");
    assert_eq!(found[0].help.as_deref(), Some("create queues.yml:\nqueues:\n  - name: orders"));
    let worker = WORKER.replace("orders-dlq", "graveyard");
    let help = "add to queues.yml, below `queues:`:\n  - name: graveyard\n    retention: 7d";
    check(
        &with(&[("workers/post.yml", &worker)]),
        "workers/post.yml:7:17",
        Code::UnknownQueue,
        "dead letter queue `graveyard`",
        help,
    );
}

#[test]
fn a_name_belongs_to_one_thing() {
    let queues = format!("{QUEUES}  - name: orders\n");
    let said = check(
        &with(&[("queues.yml", &queues)]),
        "queues.yml:5:11",
        Code::DuplicateName,
        "two queues have the name `orders`",
        "a name of its own",
    );
    assert_eq!(said.also.expect("the first").1, "first here");
    let again = FLOW.replace("path: /orders", "path: /again");
    let said = check(
        &with(&[("flows/z.yml", &again)]),
        "flows/z.yml:2:7",
        Code::DuplicateName,
        "two flows have the name `intake`",
        "a name of its own",
    );
    assert_eq!(said.notes, ["the first is at flows/intake.yml:2:7"]);
    let steps = format!("{FLOW}  - {{name: enqueue, queue: {{name: orders}}}}\n");
    check(
        &with(&[("flows/intake.yml", &steps)]),
        "flows/intake.yml:15:12",
        Code::DuplicateName,
        "two steps",
        "a name of its own",
    );
}

#[test]
fn a_queue_has_one_consumer() {
    let second = WORKER.replace("name: post", "name: other");
    let said = check(
        &with(&[("workers/z.yml", &second)]),
        "workers/z.yml:4:10",
        Code::DuplicateConsumer,
        "two workers consume queue `orders`",
        "a queue of its own",
    );
    assert_eq!(said.notes, ["the first is at workers/post.yml:4:10"]);
}

#[test]
fn a_request_has_one_route() {
    let trigger = "  - http: {path: /orders, method: PUT, verify: none}\n  - http: {path: /orders, verify: none}\n";
    let said = check_flow(
        "triggers:\n",
        &format!("triggers:\n{trigger}"),
        "7:13",
        Code::DuplicateRoute,
        "two routes take POST /orders",
        "another path",
    );
    assert_eq!(said.also.expect("the first").1, "first here");
    let other = FLOW.replace("name: intake", "name: other");
    let said = check(
        &with(&[("flows/z.yml", &other)]),
        "flows/z.yml:5:13",
        Code::DuplicateRoute,
        "POST /orders",
        "another path",
    );
    assert_eq!(said.notes, ["the first is at flows/intake.yml:5:13"]);
}

#[test]
fn a_queue_that_nobody_consumes_is_a_warning() {
    let flow = FLOW.replace("name: orders", "name: orders-dlq");
    let files = with(&[("flows/intake.yml", &flow)]);
    let said = check(
        &files,
        "flows/intake.yml:14:13",
        Code::Unconsumed,
        "nobody consumes queue `orders-dlq`",
        "consumes: {queue: orders-dlq}",
    );
    assert_eq!(said.severity, Severity::Warning);
    assert!(load(&files).is_ok());
}

#[test]
fn b3_a_ttl_shorter_than_the_retries_is_refused() {
    // 2 + 4 + 8 + 16 seconds of pauses, and five attempts of 30 seconds.
    let said = check_flow(
        "48h",
        "2m",
        "9:14",
        Code::TtlTooShort,
        "keys are forgotten after 2m, but worker `post` may retry a job for 3m",
        "write `ttl: 3m` or longer",
    );
    assert_eq!(said.severity, Severity::Error);
    loaded(&with(&[("flows/intake.yml", &FLOW.replace("48h", "3m"))]));
    let bounded = WORKER.replace("max_attempts: 5", "max_elapsed: 20s");
    loaded(&with(&[("flows/intake.yml", &FLOW.replace("48h", "1m")), ("workers/post.yml", &bounded)]));
}

#[test]
fn the_answer_is_about_a_step_that_exists() {
    let with_answer = |answer: &str| with(&[("flows/intake.yml", &format!("{FLOW}responses:\n  {answer}\n"))]);
    assert_eq!(loaded(&with_answer("status: 200")).flows[0].answer.status, 200);
    loaded(&with_answer("success_from: step:enqueue"));
    let place = "flows/intake.yml:16:17";
    check(
        &with_answer("success_from: step:enqeue"),
        place,
        Code::UnknownStep,
        "names step `enqeue`",
        "did you mean `step:enqueue`?",
    );
    check(&with_answer("status: 404"), "flows/intake.yml:16:11", Code::OutOfRange, "too large", "write 200 to 299");
}

#[test]
fn a_flow_only_fills_queues_for_now() {
    let flow = format!("{FLOW}  - {{name: mail, send_template: {{to: x}}}}\n");
    let files = with(&[("flows/intake.yml", &flow)]);
    let workspace = loaded(&files);
    assert_eq!(workspace.flows[0].enqueue.len(), 1);
    assert_eq!(workspace.refusals().len(), 1);
    check(&files, "flows/intake.yml:15:18", Code::NotYet, "step `mail` of a flow uses `send_template`", "in a worker");
}

#[test]
fn a_workspace_has_no_other_files() {
    for path in ["flows.yml", "notes.txt", "flows/a.txt", "flows/.yml", "queues/x.yml", "clinch.toml"] {
        let files = with(&[(path, "x: 1\n")]);
        check(&files, &format!("{path}:1:1"), Code::UnknownFile, "is not a file of a workspace", "flows/*.yml");
    }
    let files = with(&[("queues.yaml", QUEUES)]);
    check(&files, "queues.yml:1:1", Code::UnknownFile, "the same file under two names", "keep one");
}

#[test]
fn p12_a_version_is_the_same_for_the_same_files_only() {
    let some = with(&[]);
    let backwards = Files(some.0.iter().rev().cloned().collect());
    assert_eq!(some.version(), backwards.version());
    assert_eq!(some.version().to_string().len(), 12);
    assert_ne!(some.version(), with(&[("queues.yml", &format!("{QUEUES}#"))]).version());
    assert_ne!(files(&[("ab", "c")]).version(), files(&[("a", "bc")]).version());
    assert_eq!(Files::from_json(&some.to_json()), Ok(some));
    assert!(Files::from_json("{").is_err());
}

#[test]
fn bytes_that_editors_add_do_no_harm() {
    for text in [WORKER.replace('\n', "\r\n"), format!("\u{feff}{WORKER}")] {
        loaded(&with(&[("workers/post.yml", &text)]));
    }
    let text = format!("\u{feff}# é\n{}", WORKER.replace("max_attempts: 5", "max_attempts: 0")).replace('\n', "\r\n");
    check(&with(&[("workers/post.yml", &text)]), "workers/post.yml:7:17", Code::OutOfRange, "too small", "");
}

#[test]
fn p10_only_so_many_problems_are_told() {
    let text: String = (0..5_000).map(|n| format!("wrong{n}: 1\n")).collect();
    let found = problems(&with(&[("clinch.yml", &text)]));
    assert_eq!(found.len(), PROBLEMS_MAX);
    assert_eq!(found[PROBLEMS_MAX - 1].notes.last().map(String::as_str), Some("4000 more problems are not shown"));
}

#[test]
fn p10_a_list_has_only_so_many_items() {
    let queues: String = (0..1_001).map(|n| format!("  - name: q{n}\n")).collect();
    let files = with(&[("queues.yml", &format!("queues:\n{queues}"))]);
    check(&files, "queues.yml:2:5", Code::TooLarge, "`queues` has 1001 items", "at most 1000");
}

/// Files in which some bytes were changed, moved or cut: the way files go wrong.
pub(super) fn mutated() -> impl Strategy<Value = Files> {
    let texts = [INGEST, UPSERT, REPLAY, CART, TUTORIAL_QUEUES, FLOW, WORKER, PARTED, UNDONE, QUEUES, REDIS, POLICIES];
    let paths = ["clinch.yml", "flows/a.yml", "playbooks/a.yml", "policies.yml", "queues.yml", "workers/a.yml"];
    let scraps = prop::sample::select(vec![
        "",
        "\t",
        "\0",
        "\u{feff}",
        "é",
        "- ",
        ": ",
        "{{ ",
        " }}",
        "[",
        "}",
        "'",
        "\"",
        "|\n",
        "&a ",
        "*a",
        "!!str ",
        "null",
        "99999999999999999999",
        "-1",
        "${secrets.",
        "\r\n",
        "---\n",
        "? ",
        "name",
        "steps.a-b",
        "dlq:",
        "#",
    ]);
    let change = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), scraps);
    let file = (
        prop::sample::select(paths.to_vec()),
        prop::sample::select(texts.to_vec()),
        prop::collection::vec(change, 0..6),
    );
    prop::collection::vec(file, 1..5).prop_map(|files| {
        let broken = files.into_iter().map(|(path, text, changes)| {
            let mut text = text.to_string();
            for (from, to, scrap) in changes {
                let (from, to) = (from.index(text.len() + 1), to.index(8) + from.index(text.len() + 1));
                let (from, to) = (text.floor_char_boundary(from), text.floor_char_boundary(to.min(text.len())));
                text.replace_range(from..to, scrap);
            }
            (path.to_string(), text)
        });
        Files(broken.collect())
    })
}

proptest! {
    #[test]
    fn no_workspace_makes_the_loader_panic(files in mutated()) {
        for problem in problems(&files) {
            let mut texts = files.0.iter().filter(|(path, _)| *path == problem.file).map(|(_, text)| text);
            prop_assert!(texts.any(|text| text.get(problem.span.start..problem.span.end).is_some()), "{:?}", problem);
            prop_assert!(!problem.message.is_empty());
        }
    }

    #[test]
    fn what_loads_once_loads_again_from_the_store(files in mutated()) {
        let again = Files::from_json(&files.to_json()).expect("what was written");
        prop_assert_eq!(again.version(), files.version());
        prop_assert_eq!(load(&again).is_ok(), load(&files).is_ok());
    }
}

#[test]
fn p10_an_expression_is_only_so_long_and_none_is_too_deep() {
    let deep = |part: &str, times: usize| [part.repeat(times / part.len()), "x".into()].concat();
    for part in ["1+", "not ", "-", "x.", "x|upper|", "(", "[", "{'a':", "x if ", "x and ", "x[", "f(", "1<"] {
        for (times, fine) in [(980, true), (50_000, false)] {
            let expr = deep(part, times);
            let forms = [
                format!("body_from: \"{expr}\""),
                format!("body: \"{{{{ '}}}}' ~ {expr} }}}}\""),
                format!("body: \"{{{{ {expr}\""),
                format!("body: \"${{secrets.{expr}}}\""),
                format!("body: [\"{{{{ {expr} }}}}\"]"),
            ];
            for form in forms {
                let found = problems(&with(&[("workers/post.yml", &WORKER.replace("body_from: body", &form))]));
                let too_long = found.iter().any(|problem| problem.message.contains("the most is 1024"));
                assert_ne!(too_long, fine, "{part} {times}: {found:?}");
            }
        }
    }
}

const PARTNER: &str = "\
integrations:
  crm:
    base_url: https://api.crm.example/v2/
    auth: {bearer: \"${secrets.CRM_TOKEN}\"}
    headers: {X-Team: growth}
    key_header: X-Request-Id
    timeout: 5s
    concurrency: 8
    rate: 100/10s
    jitter: 200-600ms
    breaker: {errors_percent: 25, window: 1m, min_calls: 10, open_for: 15s, probes: 2}
    retry_on: [409, 500-504]
    idempotency: header
    honoured_for: 24h
    class: monetary
";

#[test]
fn e1_e2_e3_an_integration_says_what_its_partner_bears_and_a_steps_word_wins() {
    let step = "http:\n      integration: crm\n      url: /leads\n";
    let worker = WORKER.replacen("http:\n      url: https://api.example.com/orders\n", step, 1);
    let workspace = loaded(&with(&[("clinch.yml", PARTNER), ("workers/post.yml", &worker)]));
    let partner = workspace.integration("crm").expect("it is there");
    assert_eq!((&*partner.name, partner.concurrency, partner.key_header.as_str()), ("crm", Some(8), "X-Request-Id"));
    let breaker = partner.breaker.expect("a breaker");
    assert_eq!((breaker.errors_percent, breaker.calls_min, breaker.probes), (25, 10, 2));
    assert!(partner.retry_on.has(409) && partner.retry_on.has(502) && !partner.retry_on.has(429));
    assert_eq!(partner.jitter.map(|jitter| jitter.most), Some(Duration::from_millis(600)));
    assert_eq!((partner.class.word(), partner.rate.map(|rate| rate.to_string())), ("monetary", Some("100/10s".into())));
    let action = http(&workspace);
    assert_eq!((&*action.partner.name, action.timeout), ("crm", Duration::from_secs(5)));
    assert_eq!(action.promise.idempotency, Idempotency::Header);
    assert_eq!(action.promise.honoured_for, Some(Duration::from_secs(86_400)));
    assert!(workspace.secrets.contains("CRM_TOKEN"));

    let own = worker.replacen("idempotency: header", "idempotency: natural", 1);
    let workspace = loaded(&with(&[("clinch.yml", PARTNER), ("workers/post.yml", &own)]));
    assert_eq!(http(&workspace).promise.idempotency, Idempotency::Natural);

    let seed = "integrations:\n  crm:\n    base_url: https://a.example\n    breaker: none\n    rate_limit: {per_integration: 5/min, jitter: 200-600ms}\n";
    let workspace = loaded(&with(&[("clinch.yml", seed), ("workers/post.yml", &worker)]));
    let partner = workspace.integration("crm").expect("it is there");
    assert_eq!((partner.breaker, partner.rate.map(|rate| rate.to_string())), (None, Some("5/60s".into())));
}

#[test]
fn j1_what_is_wrong_with_an_integration_is_said_where_it_is_written() {
    let check_partner = |from: &str, to: &str, place: &str, code: Code, said: &str, help: &str| {
        assert!(PARTNER.contains(from), "{from}");
        let text = PARTNER.replacen(from, to, 1);
        check(&with(&[("clinch.yml", &text)]), &format!("clinch.yml:{place}"), code, said, help);
    };
    check_partner("200-600ms", "600-200ms", "10:13", Code::BadSpread, "not a pause", "200-600ms");
    check_partner("[409, 500-504]", "[409, 99]", "12:21", Code::BadStatuses, "not a status", "500-599");
    check_partner(
        "idempotency: header\n    honoured_for: 24h",
        "idempotency: lookup",
        "13:5",
        Code::MissingKey,
        "what to ask",
        "done",
    );
    check_partner("idempotency: header", "idempotency: natural", "14:5", Code::EitherOr, "no key is", "remove");
    check_partner("100/10s", "fast", "9:11", Code::BadRate, "not a rate", "");
    check_worker(
        "url: https://api.example.com/orders",
        "integration: cmr\n      url: https://x.example/",
        "11:20",
        Code::UnknownIntegration,
        "`cmr` is not defined",
        "integrations:",
    );
    check_worker(
        "url: https://api.example.com/orders",
        "url: /orders",
        "11:12",
        Code::BadUrl,
        "a path of nobody",
        "base_url",
    );
}

#[test]
fn j1_every_key_of_the_dialect_is_on_its_page() {
    let page = concat!(include_str!("../../../../docs/workspace.md"), include_str!("../../../../docs/start.md"));
    let schema = json_schema();
    for (shape, definition) in schema["$defs"].as_object().expect("definitions") {
        for key in definition["properties"].as_object().into_iter().flat_map(|keys| keys.keys()) {
            let told = page.contains(&format!("`{key}`")) || page.contains(&format!("`{key}:"));
            let detail = ["script", "env", "with", "on_unknown", "rate_limit", "cron"].contains(&key.as_str());
            assert!(
                told || detail || key == "version",
                "neither docs/workspace.md nor docs/start.md tells about `{key}` of {shape}"
            );
        }
    }
}

/// The worker with this step first.
fn with_step(step: &str) -> Files {
    let worker = WORKER.replacen("run:\n", &format!("run:\n  - {step}\n"), 1);
    with(&[("workers/post.yml", &worker), ("schemas/order.json", "{}")])
}

#[test]
fn c8_steps_that_do_nothing_outside_are_read() {
    let action = |step: &str| loaded(&with_step(step)).workers[0].steps[0].action.clone();
    assert!(matches!(action("{name: a, transform: {id: '{{ body.id }}'}}"), Action::Transform(_)));
    let Action::Validate(validate) = action("{name: a, validate: {schema: order}}") else { panic!("a validate") };
    assert_eq!((validate.schema.as_str(), validate.from.source()), ("order", "body"));
    let Action::Phone(phone) = action("{name: a, enrich: {phone: {from: body.phone, country: DE, strict: valid}}}")
    else {
        panic!("a phone")
    };
    assert_eq!((phone.from.source(), phone.strict), ("body.phone", crate::phone::Strictness::Valid));
    let Action::Geoip(geoip) = action("{name: a, enrich: {geoip: {from: body.ip, database: geo/City.mmdb}}}") else {
        panic!("a geoip")
    };
    assert_eq!(geoip.database, "geo/City.mmdb");
    let hours = |step: &str| match action(step) {
        Action::Delay(crate::worker::DelayAction::For(pause)) => pause.as_secs() / 3600,
        other => panic!("{other:?}"),
    };
    assert_eq!((hours("{name: a, delay: 2h}"), hours("{name: a, delay: {for: 3h}}")), (2, 3));
    assert!(matches!(
        action("{name: a, delay: {until: body.at}}"),
        Action::Delay(crate::worker::DelayAction::Until(_))
    ));
    let secrets = loaded(&with_step("{name: a, transform: {x: '${secrets.SALT}'}}")).secrets;
    assert!(secrets.contains("SALT"));
}

#[test]
fn c8_j1_a_step_that_cannot_be_read_is_told_what_to_write() {
    let check = |step: &str, column: usize, code: Code, said: &str, help: &str| {
        check(&with_step(step), &format!("workers/post.yml:9:{column}"), code, said, help);
    };
    check("{name: a, validate: {from: body}}", 15, Code::MissingKey, "`schema` is missing", "schema: NAME");
    check("{name: a, validate: {schema: oder}}", 34, Code::UnknownSchema, "no schemas/oder.json", "`order`");
    check("{name: a, enrich: {phone: {from: body.p, contry: DE}}}", 46, Code::UnknownKey, "`contry`", "`country`");
    check("{name: a, enrich: {phone: {from: body.p, country: Germany}}}", 55, Code::BadChoice, "not a country", "`DE`");
    check("{name: a, enrich: {phone: {from: body.p, strict: very}}}", 54, Code::BadChoice, "`very`", "`possible`");
    check(
        "{name: a, enrich: {geoip: {from: body.ip, database: ../x.mmdb}}}",
        57,
        Code::BadPath,
        "not a file",
        "NAME.mmdb",
    );
    check("{name: a, enrich: {geoip: {from: body.ip, database: x.csv}}}", 57, Code::BadPath, "`.mmdb`", "NAME.mmdb");
    check("{name: a, delay: 2}", 22, Code::BadDuration, "needs a unit", "`2s`");
    check("{name: a, delay: {for: 2h, until: body.at}}", 32, Code::EitherOr, "both say how long", "keep one");
    check("{name: a, delay: {}}", 15, Code::MissingKey, "says no time", "for: 2h");
    check("{name: a, transform: '{{ customer }}'}", 30, Code::BadExpression, "`customer`", "body.customer");
    check("{name: a, transform: '{{ steps.b.output }}'}", 30, Code::UnknownStep, "`steps.b`", "no step runs before");
    check("{name: a, delay: 2h, with: {x: 1}}", 26, Code::EitherOr, "`with` does not go with `delay`", "`delay:`");
}

#[test]
fn b8_a_step_that_sets_a_key_is_read_or_told_what_to_write() {
    let action = |step: &str| loaded(&with_step(step)).workers[0].steps[0].action.clone();
    let Action::Setnx(setnx) = action("{name: a, setnx: {key: 'cart-{{ body.id }}', ttl: 24h, on_exists: stop}}")
    else {
        panic!("a setnx")
    };
    assert_eq!((setnx.ttl.as_secs(), setnx.stops), (86_400, true));
    let check = |step: &str, column: usize, code: Code, said: &str, help: &str| {
        check(&with_step(step), &format!("workers/post.yml:9:{column}"), code, said, help);
    };
    check("{name: a, setnx: {key: x}}", 15, Code::MissingKey, "how long the key stays set", "ttl: 48h");
    check("{name: a, setnx: {ttl: 1h}}", 15, Code::MissingKey, "`key` is missing", "key: ");
    check("{name: a, setnx: {key: '{{ id }}', ttl: 1h}}", 32, Code::BadExpression, "`id`", "body.id");
    check("{name: a, setnx: {key: x, ttl: 1h, on_exists: fail}}", 51, Code::BadChoice, "`fail`", "`stop`");
    check("{name: a, setnx: {key: x, ttl: 1h, store: kv:x}}", 40, Code::UnknownKey, "`store`", "");
}

const DATABASES: &str = "\
integrations:
  crm:
    url: postgres://app:${secrets.CRM_PASSWORD}@db.example/crm
  shop:
    base_url: https://shop.example
";

#[test]
fn c8_a_statement_has_parameters_and_nothing_else_that_is_computed() {
    let files = |step: &str| {
        let mut files = with_step(step);
        files.0.push(("clinch.yml".into(), DATABASES.into()));
        files
    };
    let step =
        "{name: a, sql: {database: crm, statement: 'DELETE FROM x WHERE id = $1', params: ['{{ body.id }}', 7]}}";
    let workspace = loaded(&files(step));
    let Action::Sql(sql) = &workspace.workers[0].steps[0].action else { panic!("a sql") };
    assert_eq!((&*sql.partner.name, &*sql.statement, sql.params.len()), ("crm", "DELETE FROM x WHERE id = $1", 2));
    assert_eq!(sql.promise.idempotency, Idempotency::Natural);
    assert!(workspace.secrets.contains("CRM_PASSWORD"));
    assert!(workspace.partners().any(|partner| &*partner.name == "crm"));
    let check = |step: &str, column: usize, code: Code, said: &str, help: &str| {
        check(&files(step), &format!("workers/post.yml:9:{column}"), code, said, help);
    };
    let s = "'DELETE FROM x WHERE id = {{ body.id }}'";
    check(
        &format!("{{name: a, sql: {{database: crm, statement: {s}}}}}"),
        47,
        Code::BadStatement,
        "could change",
        "`$1`",
    );
    check("{name: a, sql: {database: crm, statement: COMMIT}}", 47, Code::BadStatement, "transaction", "remove it");
    check("{name: a, sql: {database: crm}}", 15, Code::MissingKey, "`statement` is missing", "statement: ");
    check(
        "{name: a, sql: {database: shop, statement: DELETE FROM x}}",
        31,
        Code::BadDatabase,
        "`shop`",
        "url: ${secrets.NAME}",
    );
    check("{name: a, sql: {database: cmr, statement: DELETE FROM x}}", 31, Code::UnknownIntegration, "`cmr`", "`crm`");
    let params = "{name: a, sql: {database: crm, statement: DELETE FROM x, params: ['{{ steps.b.output }}']}}";
    check(params, 75, Code::UnknownStep, "`steps.b`", "no step runs before");
}

#[test]
fn c8_the_address_of_a_database_has_no_password_in_a_file() {
    let check = |url: &str, code: Code, said: &str, help: &str| {
        let text = format!("integrations:\n  crm:\n    url: {url}\n");
        check(&with(&[("clinch.yml", &text)]), "clinch.yml:3:10", code, said, help);
    };
    for fine in [
        "${secrets.CRM}",
        "sqlite:data/crm.db",
        "postgres://app@/crm?host=/run/pg",
        "postgres://a:${secrets.P}@h/d",
        "mysql://a:${secrets.P}@h/d",
        "mariadb://a@h:3307/d?sslmode=require",
    ] {
        loaded(&with(&[("clinch.yml", &format!("integrations:\n  crm:\n    url: {fine}\n"))]));
    }
    check("postgres://app:hunter2@db/crm", Code::BadDatabase, "a password", "${secrets.NAME}");
    check("mysql://app:hunter2@db/crm", Code::BadDatabase, "a password", "${secrets.NAME}");
    check("mongodb://db/crm", Code::BadDatabase, "not the address", "postgres://");
    check("'sqlite:'", Code::BadDatabase, "no file", "sqlite:data");
    check("postgres://{{ body.host }}/crm", Code::BadExpression, "secrets", "${secrets.NAME}");
}

#[test]
fn c8_a_delay_of_a_step_counts_towards_the_time_that_a_key_must_be_known() {
    check(&with_step("{name: a, delay: 60h}"), "flows/intake.yml:9:14", Code::TtlTooShort, "for 3d", "ttl: 3d");
}

/// The queues with these lines added to the first.
fn queues_with(lines: &str) -> String {
    QUEUES.replacen("orders\n", &format!("orders\n{lines}"), 1)
}

fn check_queues(lines: &str, place: &str, code: Code, said: &str, help: &str) -> Problem {
    check(&with(&[("queues.yml", &queues_with(lines))]), &format!("queues.yml:{place}"), code, said, help)
}

#[test]
fn c1_a_queue_says_in_which_order_its_jobs_run() {
    let lines = "    fifo: true\n    on_dead: block\n    group_from: [body:/shop, header:X-Order]\n    priority: -5\n    delay: 90s\n";
    let files = with(&[("queues.yml", &queues_with(lines))]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let queue = &workspace.queues[0];
    assert_eq!(queue.order, Order::Fifo { on_dead: OnDead::Block });
    assert_eq!(queue.group.as_ref().map(|rule| rule.parts().len()), Some(2));
    assert_eq!((queue.priority, queue.delay), (-5, Duration::from_secs(90)));
    let plain = &workspace.queues[1];
    assert_eq!((plain.order, &plain.group), (Order::Any, &None));
    assert_eq!((plain.priority, plain.delay), (0, Duration::ZERO));
}

#[test]
fn c1_a_step_says_where_its_jobs_stand() {
    let lines = "      name: orders\n      group_from: body:/shop\n      priority: 7\n      delay: 1m\n";
    let flow = FLOW.replacen("      name: orders\n", lines, 1);
    let workspace = loaded(&with(&[("flows/intake.yml", &flow)]));
    assert!(workspace.is_shared("orders") && !workspace.is_shared("other"));
    let step = &workspace.flows[0].enqueue[0];
    assert_eq!(step.group, Some(KeyRule::One(KeyPart::Body("/shop".into()))));
    assert_eq!((step.priority, step.delay), (Some(7), Some(Duration::from_secs(60))));
}

#[test]
fn p7_order_without_groups_is_warned_about_where_no_step_names_one() {
    let problem = check_queues("    fifo: true\n", "3:11", Code::OneGroup, "run one at a time", "group_from");
    assert!(!problem.is_error());
    let flow = FLOW.replacen("      name: orders\n", "      name: orders\n      group_from: header:X-Order\n", 1);
    let fine = with(&[("queues.yml", &queues_with("    fifo: true\n")), ("flows/intake.yml", &flow)]);
    assert_eq!(told(&fine), Vec::<String>::new());
}

#[test]
fn p7_what_a_dead_letter_does_to_its_group_is_for_queues_that_keep_their_order() {
    for lines in ["    on_dead: block\n", "    on_dead: continue\n    fifo: false\n"] {
        check_queues(lines, "3:5", Code::EitherOr, "`on_dead` is for queues that keep", "add `fifo: true`");
    }
    check_queues(
        "    fifo: true\n    on_dead: stop\n    group_from: body:/a\n",
        "4:14",
        Code::BadChoice,
        "stop",
        "block",
    );
}

#[test]
fn c1_a_place_that_cannot_be_read_is_told() {
    check_queues("    priority: 101\n", "3:15", Code::OutOfRange, "priority", "");
    check_queues("    priority: high\n", "3:15", Code::WrongType, "priority", "");
    check_queues("    delay: 5\n", "3:12", Code::BadDuration, "needs a unit", "5s");
    check_queues("    group_from: shop\n", "3:17", Code::BadKeyRule, "where to look", "header:shop");
}

#[test]
fn c1_a_delay_counts_towards_the_time_that_a_key_must_be_known() {
    let files = with(&[("queues.yml", &queues_with("    delay: 3d\n"))]);
    check(&files, "flows/intake.yml:9:14", Code::TtlTooShort, "keys are forgotten after 2d", "or longer");
}

const SHOP: &str = "sources:\n  shop:\n    verify: shopify\n    secret: ${secrets.SHOP}\n";
const FROM_SHOP: &str = "\
name: from-shop
triggers:
  - source: shop
    on: shopify.order.*
steps:
  - name: enqueue
    queue: {name: orders}
";

/// The good workspace with a shop whose source has these lines too.
fn shop_with(lines: &str) -> Files {
    let shop = format!("{SHOP}{lines}");
    with(&[("clinch.yml", &shop), ("flows/shop.yml", FROM_SHOP)])
}

#[test]
fn a3_a_source_has_what_its_preset_knows() {
    assert_eq!(told(&shop_with("")), Vec::<String>::new());
    let workspace = loaded(&shop_with(""));
    let shop = &workspace.sources[0];
    assert_eq!((shop.name.as_str(), shop.path.as_str(), shop.preset.name), ("shop", "/in/shop", "shopify"));
    assert_eq!((shop.ack, shop.keys.ttl, shop.keys.on_conflict), (202, 7 * DAY, OnConflict::KeepFirst));
    assert_eq!(shop.variables().collect::<Vec<_>>(), ["SHOP"]);
    assert!(workspace.secrets.iter().all(|name| name != "SHOP"), "no step may read what a sender signs with");
    let flow = workspace.flow("from-shop").expect("the flow");
    assert!(flow.takes("shop", "shopify.order.created") && !flow.takes("shop", "shopify.cart.updated"));
    assert!(!flow.takes("other", "shopify.order.created"));
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn a3_every_key_of_a_source_is_read() {
    let schema = r#"{"type": "object"}"#;
    let lines = "    path: /hooks/shop\n    tolerance: 1m\n    public_url: https://a.example/in/shop\n    key_from: body:/id\n    ttl: 10d\n    ack: 200\n    \
                 type_from: header:X-Shopify-Topic\n    types: {orders/create: shop.order}\n    tenant_from: header:X-Shopify-Shop-Domain\n    schema: {shop.*: order.v2}\n    \
                 on_mismatch: reject\n    drop: [/note]\n    hash: [/email]\n    headers: [X-Shopify-Topic]\n    body_max: 2MiB\n    store: kv:shop\n    \
                 on_conflict: reject\n    on_duplicate_of_dead: replay\n    limits: {address: 100/s, source: 5/s, mode: defer}\n    \
                 cloudevents: {batches: true, origins: [a.example]}\n";
    let shop = format!("{SHOP}{lines}");
    let files = with(&[("clinch.yml", &shop), ("flows/shop.yml", FROM_SHOP), ("schemas/order.v2.json", schema)]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let shop = &workspace.sources[0];
    assert_eq!((shop.path.as_str(), shop.ack, shop.keys.ttl), ("/hooks/shop", 200, 10 * DAY));
    assert_eq!(shop.schema.as_ref().expect("a rule").name_for("shop.order"), Some("order.v2"));
    assert!(workspace.schema("order.v2").is_some());
    assert!(!shop.minimise.shows("/note") && !shop.minimise.shows("/email") && shop.minimise.shows("/id"));
    assert_eq!(shop.limits.source.expect("a rate").to_string(), "5/1s");
    assert_eq!(shop.cloudevents.origins, ["a.example"]);
}

#[test]
fn a3_a_source_that_would_prove_nothing_is_refused() {
    let check = |source: &str, place: &str, code: Code, said: &str, help: &str| {
        let settings = format!("sources:\n  shop:\n{source}");
        let files = with(&[("clinch.yml", &settings), ("flows/shop.yml", FROM_SHOP)]);
        check(&files, &format!("clinch.yml:{place}"), code, said, help)
    };
    let secret = "    secret: ${secrets.S}\n";
    check(
        "    verify: shopfy\n    secret: ${secrets.S}\n",
        "3:13",
        Code::BadChoice,
        "`shopfy`",
        "did you mean `shopify`?",
    );
    check("    path: /x\n", "2:3", Code::MissingKey, "how its sender is recognised", "`verify: none`");
    check("    verify: stripe\n", "3:5", Code::MissingKey, "no secret to check", "`secret: ${secrets.NAME}`");
    check(&format!("    verify: square\n{secret}"), "3:5", Code::MissingKey, "signs the address", "add `public_url:`");
    check(&format!("    verify: meta\n{secret}"), "3:5", Code::MissingKey, "verify token", "add `verify_token:");
    check(&format!("    verify: none\n{secret}"), "4:5", Code::EitherOr, "says that nobody does", "remove this");
    check(
        "    verify: stripe\n    secret: whsec_in_the_file\n",
        "4:13",
        Code::BadStore,
        "must be a secret",
        "secrets.NAME",
    );
    let hmac = "    verify: {header: X-Sig, signed: \"{url}\"}\n";
    check(&format!("{hmac}{secret}"), "3:14", Code::BadVerify, "fit any body", "docs/sources.md");
    let two = "    secrets: [\"${secrets.A}\", \"${secrets.A}\"]\n";
    check(&format!("    verify: stripe\n{two}"), "3:5", Code::DuplicateName, "the id `A`", "an id of its own");
    let six = "    secrets: [\"${secrets.A}\", \"${secrets.B}\", \"${secrets.C}\", \"${secrets.D}\", \"${secrets.E}\", \"${secrets.F}\"]\n";
    check(&format!("    verify: stripe\n{six}"), "3:5", Code::OutOfRange, "6 secrets", "no sender uses");
}

#[test]
fn a3_a_rotation_has_several_secrets_and_dates() {
    let lines = "sources:\n  shop:\n    verify: stripe\n    secrets:\n      - ${secrets.NEW}\n      - {secret: \"${secrets.OLD}\", id: old, not_after: 2026-08-01T00:00:00Z}\n";
    let workspace = loaded(&with(&[("clinch.yml", lines), ("flows/shop.yml", FROM_SHOP)]));
    let secrets = &workspace.sources[0].signature().expect("it signs").secrets;
    assert_eq!(secrets.iter().map(|secret| secret.id.as_str()).collect::<Vec<_>>(), ["NEW", "old"]);
    assert!(secrets[0].not_after.is_none() && secrets[1].not_after.is_some());
    let late = lines.replace("2026-08-01T00:00:00Z", "tomorrow");
    let files = with(&[("clinch.yml", &late), ("flows/shop.yml", FROM_SHOP)]);
    check(&files, "clinch.yml:6:56", Code::BadMoment, "`tomorrow` is not a moment", "2026-08-01T00:00:00Z");
}

#[test]
fn a5_rules_that_contradict_themselves_are_refused_where_they_stand() {
    let check = |lines: &str, place: &str, code: Code, said: &str| {
        check(&shop_with(lines), &format!("clinch.yml:{place}"), code, said, "");
    };
    check("    drop: [/a]\n    keep: [/a/b]\n", "6:5", Code::BadRules, "`/a` is dropped");
    check("    drop: [email]\n", "5:12", Code::BadPointer, "begin with a slash");
    check("    headers: [Authorization]\n", "5:5", Code::BadRules, "never kept");
    check("    drop: [/what]\n    type_from: body:/what\n", "6:16", Code::BadRules, "a type is written down");
    check("    limits: {source: fast}\n", "5:22", Code::BadRate, "not a rate");
    check("    ttl: 1h\n", "5:10", Code::TtlShorterThanRetries, "`shopify` tries again for 4h");
    check("    on_mismatch: reject\n", "5:5", Code::EitherOr, "has none");
    check("    schema: order\n", "5:13", Code::UnknownSchema, "there is no schemas/order.json");
}

#[test]
fn a4_senders_with_tokens_need_no_secret_and_may_have_a_limit_each() {
    let shop = "sources:\n  shop:\n    verify: sender\n    limits: {sender: 5/s, mode: defer}\n";
    let flow = FROM_SHOP.replace("    on: shopify.order.*\n", "");
    let files = |lines: &str| with(&[("clinch.yml", &format!("{shop}{lines}")), ("flows/shop.yml", &flow)]);
    let workspace = loaded(&files(""));
    let source = &workspace.sources[0];
    assert!(matches!(source.proof, Some(crate::source::Proof::Sender)) && source.variables().next().is_none());
    assert_eq!(source.limits.sender.map(|rate| rate.to_string()).as_deref(), Some("5/1s"));
    assert_eq!(source.keys.on_conflict, crate::flow::OnConflict::Reject, "a caller understands a conflict");
    let secret = "    secret: ${secrets.S}\n";
    check(&files(secret), "clinch.yml:5:5", Code::EitherOr, "takes tokens", "remove this");
    let limits = "    limits: {sender: 5/s}\n";
    check(&shop_with(limits), "clinch.yml:5:14", Code::EitherOr, "told apart by their tokens", "`verify: sender`");
}

#[test]
fn t031_t035_t056_what_a_body_is_and_what_is_done_about_it_twice() {
    let any = "sources:\n  shop:\n    verify: none\n";
    let flow = FROM_SHOP.replace("    on: shopify.order.*\n", "");
    let files = |lines: &str| with(&[("clinch.yml", &format!("{any}{lines}")), ("flows/shop.yml", &flow)]);
    let source = |files: &Files| loaded(files).sources.remove(0);
    let raw = source(&files("    content: raw\n    accept_encoding: [gzip]\n    key_from: header:X\n"));
    assert_eq!((raw.content, raw.takes_gzip, raw.same_body), (crate::source::Content::Raw, true, None));
    let refused = |lines: &str, place: &str, said: &str| {
        check(&files(lines), &format!("clinch.yml:{place}"), Code::EitherOr, said, "remove");
    };
    refused("    content: raw\n    drop: [/a]\n", "5:5", "`drop` looks into the body");
    refused("    content: raw\n    key_from: body:/id\n", "5:5", "`key_from` looks into the body");
    refused("    same_body: drop\n", "4:5", "sign the body and not the id");
    check(&files("    accept_encoding: [br]\n"), "clinch.yml:4:23", Code::BadChoice, "br", "gzip");
    let guarded = |lines: &str| source(&shop_with(lines)).same_body;
    assert_eq!(guarded(""), Some(crate::source::SameBody::Count));
    assert_eq!(guarded("    same_body: drop\n"), Some(crate::source::SameBody::Drop));
    let both = "    same_body: drop\n    key_from: body:/id\n";
    check(&shop_with(both), "clinch.yml:5:5", Code::EitherOr, "by something else", "remove one of the two");
    check(&shop_with("    content: raw\n"), "clinch.yml:5:5", Code::EitherOr, "are known", "remove it");
}

#[test]
fn a1_listeners_have_certificates_and_bounds() {
    let lines = "tls: {cert: tls.crt, key: /etc/tls.key}\nconnections: {max: 100, per_address: 10}\n";
    let settings = loaded(&with(&[("clinch.yml", lines)])).settings;
    let rule = settings.tls.expect("a certificate");
    assert_eq!((rule.cert.as_str(), rule.key.as_str(), settings.admin_tls), ("tls.crt", "/etc/tls.key", None));
    assert_eq!((settings.connections.all, settings.connections.address), (Some(100), Some(10)));
    check(&with(&[("clinch.yml", "tls: {cert: a}\n")]), "clinch.yml:1:1", Code::MissingKey, "`key`", "");
    let none = "connections: {per_address: 0}\n";
    check(&with(&[("clinch.yml", none)]), "clinch.yml:1:28", Code::OutOfRange, "per_address", "");
}

#[test]
fn a7_a_schema_that_cannot_be_used_is_shown_where_it_is_wrong() {
    let shop = format!("{SHOP}    schema: order\n");
    let bad = "{\n  \"properties\": {\"a\": {\"type\": \"strin\"}}\n}";
    let files = with(&[("clinch.yml", &shop), ("flows/shop.yml", FROM_SHOP), ("schemas/order.json", bad)]);
    check(&files, "schemas/order.json:2:32", Code::BadSchema, "not a valid schema", "");
}

#[test]
fn a6_sources_and_flows_find_each_other_by_name() {
    let flow = FROM_SHOP.replace("source: shop", "source: shp");
    let files = with(&[("clinch.yml", SHOP), ("flows/shop.yml", &flow)]);
    let found = told(&files);
    assert!(found[0].contains("CL0148 no flow takes the events of source `shop`"), "{found:?}");
    assert!(found[1].contains("CL0120 source `shp` is not defined"), "{found:?}");
    let files = with(&[("clinch.yml", &format!("{SHOP}    path: /orders\n")), ("flows/shop.yml", FROM_SHOP)]);
    assert!(told(&files)[0].contains("CL0113 a source and another route have the path /orders"), "{:?}", told(&files));
    let own = FROM_SHOP.replace("name: from-shop", "name: shop").replace("    on: shopify.order.*\n", "");
    let own = own.replace("- source: shop", "- http: {path: /own, verify: github, secret: \"${secrets.S}\"}");
    let files = with(&[("clinch.yml", SHOP), ("flows/shop.yml", &own)]);
    assert!(told(&files).iter().any(|told| told.contains("two sources have the name `shop`")), "{:?}", told(&files));
    check(
        &with(&[("clinch.yml", SHOP), ("flows/shop.yml", &FROM_SHOP.replace("shopify.order.*", "'*.order'"))]),
        "flows/shop.yml:4:9",
        Code::BadType,
        "is not a type of events",
        "",
    );
}

#[test]
fn a3_a_trigger_may_be_a_source_of_its_own() {
    let inline = FLOW
        .replace("      verify: none\n", "      verify: github\n      secret: ${secrets.HUB}\n      drop: [/sender]\n");
    let files = with(&[("flows/intake.yml", &inline)]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let (source, flow) = (&workspace.sources[0], &workspace.flows[0]);
    assert_eq!((source.name.as_str(), source.path.as_str()), ("intake", "/orders"));
    assert_eq!(source.scope, "POST /orders", "keys that were seen before stay known");
    assert_eq!(source.keys.ttl, 2 * DAY);
    assert!(flow.routes.is_empty() && flow.takes("intake", "github.push"));
    let answered = |more: &str| loaded(&with(&[("flows/intake.yml", &format!("{inline}{more}"))])).sources[0].ack;
    assert_eq!((answered(""), answered("responses: {status: 200}\n")), (202, 200));
    let both = FLOW.replace("      verify: none\n", "      verify: none\n      key_from: body:/id\n");
    check(
        &with(&[("flows/intake.yml", &both)]),
        "flows/intake.yml:11:7",
        Code::EitherOr,
        "exclude each other",
        "keep one",
    );
}

#[test]
fn b3_a_ttl_of_a_source_is_held_against_the_retries_too() {
    let worker =
        WORKER.replace("max_attempts: 5", "max_attempts: 5\n  max_delay: 30d\n  base_delay: 20d\n  strategy: fixed");
    let shop = format!("{SHOP}    ttl: 5d\n");
    let files = with(&[("clinch.yml", &shop), ("flows/shop.yml", FROM_SHOP), ("workers/post.yml", &worker)]);
    assert!(told(&files).iter().any(|told| told.starts_with("clinch.yml:5:10 CL0116")), "{:?}", told(&files));
}

#[test]
fn c7_a_script_says_what_runs_it_and_how_far_it_may_go() {
    let step = |text: &str| format!("name: w\nconsumes: {{queue: orders}}\nrun:\n  - {{name: a, {text}}}\n");
    let load = |text: &str| loaded(&with(&[("workers/post.yml", &step(text))]));
    let said =
        "uses: python:3.11, script: 'return 1', timeout: 5s, memory: 64MiB, isolation: process, on_unknown: retry";
    let workspace = load(said);
    let Action::Script(script) = &workspace.workers[0].steps[0].action else { panic!("a script") };
    assert_eq!((script.runtime.to_string().as_str(), &*script.text), ("python:3.11", "return 1"));
    assert_eq!((script.timeout, script.memory_bytes_max), (Duration::from_secs(5), 64 << 20));
    assert_eq!((script.isolation, script.promise.idempotency), (Isolation::Process, Idempotency::Header));
    assert_eq!(workspace.runtimes.len(), 1);
    assert_eq!(workspace.runtimes[0].file, "workers/post.yml");

    let wrong = |text: &str, code, said: &str, help: &str| {
        let files = with(&[("workers/post.yml", &step(text))]);
        let found = problems(&files).into_iter().find(|problem| problem.code == code);
        let found = found.unwrap_or_else(|| panic!("{text}: {:#?}", problems(&files)));
        assert!(found.is_error() && found.message.contains(said), "{found:?}");
        assert!(found.help.as_deref().is_some_and(|found| found.contains(help)), "{found:?}");
    };
    wrong("uses: node:18", Code::MissingKey, "needs a `script`", "script: |");
    wrong("uses: node:18, with: {script: x}", Code::EitherOr, "`with` does not go with `uses`", "stands beside `uses`");
    wrong("uses: node:18, with: {a: 1}, script: x", Code::EitherOr, "`with` does not go with `uses`", "below `env:`");
    wrong("uses: ruby:3, script: x", Code::BadChoice, "`ruby:3` is not a runtime", "node:18");
    wrong("uses: bash, script: x, env: {BODY: x}", Code::BadEnv, "`BODY` is set by clinch", "another name");
    wrong("uses: bash, script: x, env: {A-B: x}", Code::BadEnv, "not the name of a variable", "letters");
    wrong("uses: bash, script: x, env: {A: '{{ nobody.x }}'}", Code::BadExpression, "`nobody` is not known", "`body`");
    wrong("uses: bash, script: x, env: {A: '{{ steps.b.output }}'}", Code::UnknownStep, "steps.b", "");
    wrong("uses: bash, script: x, memory: 1KiB", Code::OutOfRange, "too small", "32MiB");
    wrong("uses: bash, script: x, on_unknown: perhaps", Code::BadChoice, "perhaps", "`ask`");
    wrong("http: {url: 'https://a.b'}, isolation: process", Code::EitherOr, "`isolation` does not go", "http:");
}

const MAIL: &str = "\
integrations:
  mail: {smtp: 'smtp://shop:${secrets.SMTP}@mail.example.com:587', from: 'Shop <hello@example.com>'}
  chat: {message: slack, auth: {bearer: '${secrets.SLACK}'}}
  crm: {base_url: 'https://crm.example'}
";

fn with_approval(settings: &str, approval: &str) -> Files {
    let worker = format!("name: w\nconsumes: {{queue: orders}}\nrun:\n  - {{name: a, approval: {{{approval}}}}}\n");
    with(&[("clinch.yml", &format!("{MAIL}{settings}")), ("workers/post.yml", &worker)])
}

#[test]
fn g2_an_approval_says_what_is_decided_by_whom_and_until_when() {
    let all = "title: 'Cart {{ body.cart }}', show: {total: '{{ body.total }}'}, of: [maya, omar], need: 2, expires: 4h, \
               on_expiry: approve, remind: 30m, slack: {integration: chat, channel: C1}";
    let buttons = "approvals: {slack: {signing_secret: '${secrets.SIGNING}', users: {U01: maya}}}\n";
    let workspace = loaded(&with_approval(buttons, all));
    let Action::Approval(approval) = &workspace.workers[0].steps[0].action else { panic!("an approval") };
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    assert_eq!(
        approval.rule,
        Rule {
            of: vec!["maya".into(), "omar".into()],
            need: 2,
            expires: hours(4),
            on_expiry: OnExpiry::Approve,
            remind: Some(hours(1) / 2)
        }
    );
    assert_eq!(approval.slack.as_ref().map(|slack| (&*slack.partner.name, &*slack.channel)), Some(("chat", "C1")));
    let slack = workspace.settings.approvals.as_ref().expect("buttons");
    assert_eq!(
        (slack.signing_secret.as_str(), slack.person("U01"), slack.person("U02")),
        ("SIGNING", Some("maya"), None)
    );
    let workspace = loaded(&with_approval("", "title: x"));
    let Action::Approval(usual) = &workspace.workers[0].steps[0].action else { panic!("an approval") };
    assert_eq!((usual.rule.need, usual.rule.expires, usual.rule.on_expiry), (1, hours(24), OnExpiry::Reject));
    assert!(usual.slack.is_none() && workspace.settings.approvals.is_none());
}

#[test]
fn g2_an_approval_that_nobody_can_give_or_hears_of_is_told() {
    let check = |approval: &str, place: &str, code, said: &str, help: &str| {
        check(&with_approval("", approval), &format!("workers/post.yml:4:{place}"), code, said, help);
    };
    check("of: [maya]", "15", Code::MissingKey, "`title`", "title");
    check(
        "title: x, of: [maya, maya], need: 2",
        "60",
        Code::OutOfRange,
        "`need` is 2, but `of` names 1 people",
        "name more people",
    );
    check("title: x, remind: 5m", "36", Code::MissingKey, "`remind` needs `slack`", "or remove `remind`");
    check(
        "title: x, slack: {integration: crm, channel: C1}",
        "57",
        Code::BadMailServer,
        "integration `crm` is not Slack",
        "add `message: slack` below `crm:`",
    );
    check(
        "title: 'x ${secrets.TOKEN}'",
        "33",
        Code::BadExpression,
        "people would see a secret",
        "remove `secrets` from it",
    );
    let taken = "sources: {actions: {verify: none, path: /slack/actions}}\n\
                 approvals: {slack: {signing_secret: '${secrets.SIGNING}', users: {U01: maya}}}\n";
    let files = with_approval(taken, "title: x");
    let found = problems(&files);
    let told = |problem: &Problem| problem.code == Code::DuplicateRoute && problem.message.contains("/slack/actions");
    assert!(found.iter().any(told), "{found:#?}");
}

fn with_mail(integration: &str, template: &str, files: &[(&'static str, &str)]) -> Files {
    let step = format!(
        "{{name: a, send_template: {{integration: {integration}, template: {template}, to: '{{{{ body.x }}}}'}}}}"
    );
    let worker = format!("name: w\nconsumes: {{queue: orders}}\nrun:\n  - {step}\n");
    let mut all = vec![("clinch.yml", MAIL), ("workers/post.yml", worker.as_str())];
    all.extend(files);
    with(&all)
}

#[test]
fn c8_a_message_has_a_template_that_its_channel_can_carry() {
    let cart =
        ("templates/cart.txt", "---\nsubject: Hello {{ with.name }}\n---\nHello {{ body.name }}, ${{ body.sum }}\n");
    let workspace = loaded(&with_mail("mail", "cart", &[cart]));
    assert_eq!(workspace.secrets.iter().map(String::as_str).collect::<Vec<_>>(), ["SLACK", "SMTP"]);
    assert!(workspace.template("cart").is_some_and(|cart| cart.subject.is_some() && cart.text.is_some()));
    assert!(matches!(workspace.workers[0].steps[0].action, Action::Send(_)));
    // What takes a message back is a message as well.
    let sorry = "name: w\nconsumes: {queue: orders}\nrun:\n  - name: a\n    \
                 send_template: {integration: mail, template: cart, to: '{{ body.x }}'}\n    \
                 compensate: {send_template: {integration: mail, template: sorry, to: '{{ body.x }}'}}\n";
    let undone = |text| with(&[("clinch.yml", MAIL), ("workers/post.yml", sorry), cart, ("templates/sorry.txt", text)]);
    let workspace = loaded(&undone("---\nsubject: Sorry\n---\nForget it.\n"));
    assert!(matches!(workspace.workers[0].steps[0].compensate, Some(Action::Send(_))));
    let (bare, place) = (undone("Forget it.\n"), "workers/post.yml:6:63");
    check(&bare, place, Code::BadTemplate, "a mail needs a subject", "templates/sorry.txt");
    let place = "workers/post.yml:4:60";
    let help = "did you mean `cart`? If not, write what it says into templates/crat.txt";
    check(&with_mail("mail", "crat", &[cart]), place, Code::UnknownTemplate, "there is no template `crat`", help);
    let bare = ("templates/cart.txt", "Hello\n");
    check(
        &with_mail("mail", "cart", &[bare]),
        place,
        Code::BadTemplate,
        "a mail needs a subject",
        "templates/cart.txt",
    );
    let json = ("templates/cart.json", "{}");
    check(&with_mail("mail", "cart", &[json]), place, Code::BadTemplate, "a mail needs a text", "templates/cart.txt");
    let html = ("templates/cart.html", "<p>x</p>");
    check(&with_mail("chat", "cart", &[html]), place, Code::BadTemplate, "Slack needs a text, or JSON", "cart.md");
    let said = "integration `crm` does not say how a message is sent to it";
    check(&with_mail("crm", "cart", &[cart]), "workers/post.yml:4:44", Code::BadMailServer, said, "below `crm:`");
    let said = "integration `mial` is not defined";
    check(&with_mail("mial", "cart", &[cart]), "workers/post.yml:4:44", Code::UnknownIntegration, said, "`mail`?");
}

#[test]
fn c8_a_template_is_looked_at_before_anything_is_sent() {
    let check = |file: &'static str, text: &str, place: &str, said: &str, help: &str| {
        let subject = ("templates/cart.html", "---\nsubject: x\n---\nx");
        let files = with_mail("mail", "cart", &[(file, text), subject]);
        let all = told(&files);
        let has_help = problems(&files).iter().any(|one| one.help.as_deref().unwrap_or_default().contains(help));
        let fits = |one: &String| one.starts_with(&format!("{file}:{place} ")) && one.contains(said);
        assert!(has_help && all.iter().any(fits), "{text}: {all:#?}");
    };
    let txt = "templates/cart.txt";
    check(txt, "Hello {{ bdy.name }}", "1:10", "the name `bdy` is not known in a message", "did you mean `body`?");
    check(txt, "x\nHello {{ secrets.TOKEN }}", "2:10", "the name `secrets` is not known", "");
    check(txt, "Hello ${secrets.TOKEN}", "1:7", "means nothing in a message", "no secrets");
    check(txt, "{% if x %}", "1:1", "means nothing in a message", "transform");
    check(txt, "Hello {{ body. }}", "1:7", "", "");
    check(txt, "Hello {{ body.name", "1:7", "", "");
    check(txt, "---\nsubjet: x\n---\n", "2:1", "`subjet` is not known at the head", "did you mean `subject`?");
    check(txt, "---\nsubject: x\n", "1:1", "has no end", "---");
    check(txt, "---\nsubject: y\n---\nx", "2:10", "is in another of its files too", "keep one");
    check("templates/cart.json", "{\"a\": }", "1:7", "this is not JSON", "");
    check("templates/cart.json", "{\"a\": \"{{ bdy }}\"}", "1:1", "the name `bdy` is not known", "");
    let two = with_mail("mail", "cart", &[(txt, "---\nsubject: x\n---\n"), ("templates/cart.md", "x")]);
    assert!(load(&two).expect_err("two texts").iter().any(|problem| problem.message.contains("its text in two files")));
    assert!(load(&with(&[("templates/cart.pdf", "x")])).is_err());
}

#[test]
fn c8_what_is_said_of_a_mail_server_must_make_sense() {
    let check = |integration: &str, place: &str, code, said: &str, help: &str| {
        let files = with(&[("clinch.yml", &format!("integrations:\n  mail: {integration}\n"))]);
        super::tests::check(&files, &format!("clinch.yml:{place}"), code, said, help);
    };
    let from = "from: a@b.example";
    check(
        &format!("{{smtp: 'http://mail', {from}}}"),
        "2:16",
        Code::BadMailServer,
        "not the address of a mail server",
        "smtp://",
    );
    check(
        &format!("{{smtp: 'smtp://u:pw@mail', {from}}}"),
        "2:16",
        Code::BadMailServer,
        "a password in this file",
        "secrets",
    );
    check(&format!("{{smtp: 'smtp://', {from}}}"), "2:16", Code::BadMailServer, "names no host", "host");
    check("{smtp: 'smtp://mail'}", "2:10", Code::MissingKey, "mails must be from somebody", "add `from:");
    check("{smtp: 'smtp://mail', from: nobody}", "2:37", Code::BadMailServer, "not a mail address", "");
    check(&format!("{{{from}}}"), "2:10", Code::MissingKey, "`from` needs a mail server", "smtp");
    for promise in ["header", "wrap"] {
        check(
            &format!("{{smtp: 'smtp://mail', {from}, idempotency: {promise}}}"),
            "2:50",
            Code::BadChoice,
            "neither honours a key",
            "natural",
        );
    }
    check("{message: slack, idempotency: header}", "2:26", Code::BadChoice, "Slack honours no key", "natural");
    check("{smtp: 'smtp://mail', from: a@b.c, message: slack}", "2:44", Code::EitherOr, "exclude each other", "");
    check("{message: {url: /x, form: {a: [1]}}}", "2:36", Code::WrongType, "a form has names", "form:");
    check(
        "{message: {url: /x, body: {a: '{{ mesage.to }}'}}}",
        "2:43",
        Code::BadExpression,
        "`mesage` is not known",
        "`message`",
    );
}

const CART_SETTINGS: &str = "\
sources:
  shop: {verify: shopify, secret: '${secrets.SHOP}', types: {carts/abandoned: shopify.cart.abandoned}}
integrations:
  mail: {smtp: 'smtp://user:${secrets.SMTP}@mail.example:587', from: 'Shop <hello@shop.example>'}
";
const CART_MAIL: (&str, &str) =
    ("templates/cart_recovery_v3.txt", "---\nsubject: Your cart\n---\nHello {{ event.email }}\n");

/// A workspace with this playbook and nothing else that runs.
fn with_playbook(playbook: &str, settings: &str) -> Files {
    files(&[("clinch.yml", settings), ("playbooks/cart-recovery.yaml", playbook), CART_MAIL])
}

#[test]
fn c12_the_playbook_of_the_incident_loads_byte_for_byte() {
    let files = with_playbook(CART, CART_SETTINGS);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let playbook = workspace.playbook("cart-recovery").expect("the playbook");
    assert!(playbook.on[0].matches("shopify.cart.abandoned"));
    let (flow, queue) = (workspace.flow("cart-recovery").expect("its flow"), "playbook.cart-recovery");
    assert!(flow.takes("shop", "shopify.cart.abandoned") && !flow.takes("shop", "shopify.cart.created"));
    assert_eq!((flow.enqueue.len(), flow.enqueue[0].queue.as_str()), (1, queue));
    assert!(workspace.queue(queue).is_some());
    let steps = &workspace.worker_for(queue).expect("its worker").steps;
    let names: Vec<&str> = steps.iter().map(|step| &*step.name).collect();
    assert_eq!(names, ["compute-dedup", "check-and-set", "maybe-send-email"]);
    let Action::DedupKey(rule) = &steps[0].action else { panic!("{:?}", steps[0]) };
    let readings: Vec<_> = rule.fields.iter().map(|field| (field.name.as_str(), field.reading)).collect();
    let bucket_minutes = std::num::NonZeroU32::new(5).expect("not zero");
    let time = crate::dedup::Reading::Time { bucket_minutes };
    let plain = crate::dedup::Reading::AsItIs;
    assert_eq!(readings, [("customer_id", plain), ("store_id", plain), ("timestamp", time)]);
    assert_eq!(rule.owner, "cart-recovery");
    let Action::Setnx(setnx) = &steps[1].action else { panic!("{:?}", steps[1]) };
    assert_eq!((setnx.ttl, setnx.stops), (Duration::from_secs(2700), false));
    let Action::Send(send) = &steps[2].action else { panic!("{:?}", steps[2]) };
    assert_eq!((&*send.partner.name, send.template.as_str()), ("mail", "cart_recovery_v3"));
    assert_eq!(steps[2].when.as_ref().map(Expr::source), Some("steps[\"check-and-set\"].output.set == true"));
}

#[test]
fn c12_c5_the_retry_policy_of_the_incident_is_read_as_json_writes_it() {
    let retry = CART_RETRY.trim().trim_start_matches('{').trim_end_matches('}').trim();
    let workspace = loaded(&with_playbook(&format!("{CART}{retry}\n"), CART_SETTINGS));
    let retry = &workspace.workers[0].retry;
    assert_eq!((retry.base, retry.attempts_max.get()), (Duration::from_millis(500), 3));
    let budget = retry.budget.as_ref().expect("a budget");
    assert_eq!((budget.per.clone(), budget.allowance.units.get(), &*budget.name), (Per::Contact, 5, "cart-recovery"));
}

/// The playbook with one piece of its text replaced has exactly this problem.
fn check_playbook(from: &str, to: &str, place: &str, code: Code, said: &str, help: &str) {
    assert!(CART.contains(from), "{from}");
    let files = with_playbook(&CART.replacen(from, to, 1), CART_SETTINGS);
    check(&files, &format!("playbooks/cart-recovery.yaml:{place}"), code, said, help);
}

#[test]
fn c12_j1_what_is_wrong_with_a_playbook_is_told_at_its_place() {
    check_playbook("run: store.setnx", "run: store.setnxx", "11:10", Code::BadChoice, "no action", "`store.setnx`?");
    check_playbook("run: store.setnx", "run: setnx", "11:10", Code::BadChoice, "no action", "`store.setnx`?");
    check_playbook("ttl_seconds: 2700", "ttl_second: 2700", "14:7", Code::UnknownKey, "`ttl_second`", "`ttl_seconds`?");
    check_playbook("ttl_seconds: 2700", "ttl_seconds: 0", "14:20", Code::OutOfRange, "too small", "");
    check_playbook(
        "steps.compute-dedup",
        "steps.compute-dedop",
        "13:15",
        Code::UnknownStep,
        "compute-dedop",
        "compute-dedup",
    );
    check_playbook(
        "steps.check-and-set",
        "steps.check-and-sett",
        "16:12",
        Code::UnknownStep,
        "check-and-sett",
        "check-and-set",
    );
    check_playbook("{{ event.email }}", "{{ evnt.email }}", "20:14", Code::BadExpression, "`evnt`", "`event`?");
    check_playbook(
        "template: cart_recovery_v3",
        "template: cart_recovery_v2",
        "19:17",
        Code::UnknownTemplate,
        "v2",
        "v3",
    );
    check_playbook("on: shopify.cart.abandoned\n", "", "2:1", Code::MissingKey, "`on` is missing", "on: shopify.*");
    let found = told(&with_playbook(&CART.replace("on: shopify.", "on: stripe."), CART_SETTINGS));
    assert!(
        found.iter().any(|told| told.ends_with("yaml:3:5 CL0174 no source sends events of this type")),
        "{found:?}"
    );
    check_playbook("bucket_minutes: 5", "bucket_minutes: 0", "9:23", Code::OutOfRange, "too small", "");
    check_playbook(", timestamp]", "]", "9:7", Code::MissingKey, "needs a field that is a moment", "time_field");
    check_playbook(
        "[customer_id, store_id,",
        "['customer id', store_id,",
        "8:16",
        Code::BadExpression,
        "not a field",
        "path",
    );
    check_playbook("bucket_minutes: 5", "normalise: {email: [emal]}", "9:27", Code::BadChoice, "`emal`", "");
    check_playbook(
        "bucket_minutes: 5",
        "time_field: store_id",
        "9:19",
        Code::EitherOr,
        "goes with `bucket_minutes`",
        "",
    );
    let bare = "    with:\n      key: {{ steps.compute-dedup.output.key }}\n      ttl_seconds: 2700\n";
    check_playbook(bare, "", "11:10", Code::MissingKey, "`store.setnx` is given nothing", "below `setnx:`");
}

#[test]
fn c12_a_name_is_of_a_playbook_a_flow_or_a_worker() {
    let playbook = CART.replace("name: cart-recovery", "name: post");
    let mut files = with(&[("playbooks/a.yml", &playbook), ("clinch.yml", CART_SETTINGS)]);
    files.0.push((CART_MAIL.0.into(), CART_MAIL.1.into()));
    check(
        &files,
        "playbooks/a.yml:2:7",
        Code::DuplicateName,
        "a playbook and a worker have the name `post`",
        "another",
    );
    let twice = Files([with_playbook(CART, CART_SETTINGS).0, vec![("playbooks/b.yml".into(), CART.into())]].concat());
    assert!(
        told(&twice).iter().any(|told| told.contains("two playbooks have the name `cart-recovery`")),
        "{:?}",
        told(&twice)
    );
}

#[test]
fn c12_a_queue_of_a_playbook_may_be_declared_for_its_settings() {
    let mut files = with_playbook(CART, CART_SETTINGS);
    files
        .0
        .push(("queues.yml".into(), "queues:\n  - {name: playbook.cart-recovery, visibility_timeout: 90s}\n".into()));
    assert_eq!(told(&files), Vec::<String>::new());
    let queues = loaded(&files).queues;
    assert_eq!((queues.len(), queues[0].visibility_timeout), (1, Duration::from_secs(90)));
    let mut files = with_playbook(CART, CART_SETTINGS);
    files.0.push(("queues.yml".into(), "queues:\n  - {name: playbook.cart-recovery, fifo: true}\n".into()));
    check(&files, "queues.yml:2:42", Code::OneGroup, "its jobs run one at a time", "group_from");
}

#[test]
fn c12_a_source_needs_no_flow_where_a_playbook_takes_its_events() {
    let found = told(&with_playbook(CART, &format!("{CART_SETTINGS}  other: {{base_url: 'https://a.b'}}\n")));
    assert_eq!(found, Vec::<String>::new());
    let stripe = CART_SETTINGS.replace("sources:\n", "sources:\n  pay: {verify: stripe, secret: '${secrets.PAY}'}\n");
    let found = told(&with_playbook(CART, &stripe));
    assert!(found.len() == 1 && found[0].contains("no flow takes the events of source `pay`"), "{found:?}");
    let short = CART_SETTINGS.replace("verify: shopify,", "verify: shopify, ttl: 5s,");
    let found = told(&with_playbook(CART, &short));
    assert!(found.iter().any(|told| told.contains("playbook `cart-recovery` may retry a job for")), "{found:?}");
}

#[test]
fn c8_a_message_that_names_no_integration_goes_by_its_channel_or_by_the_only_one() {
    let two = format!("{CART_SETTINGS}  chat: {{message: slack}}\n");
    let said = "several integrations can carry this message: mail, chat";
    check(
        &with_playbook(CART, &two),
        "playbooks/cart-recovery.yaml:17:5",
        Code::UnknownIntegration,
        said,
        "messaging: {email: NAME}",
    );
    let partner = |playbook: &str, settings: &str| {
        let workspace = loaded(&with_playbook(playbook, settings));
        let Action::Send(send) = &workspace.workers[0].steps[2].action else { panic!("a message") };
        send.partner.name.to_string()
    };
    assert_eq!(partner(CART, &format!("{two}messaging: {{email: mail}}\n")), "mail");
    let both = format!("{two}messaging: {{email: mail, slack: chat}}\n");
    assert_eq!(partner(&CART.replace("      template:", "      channel: slack\n      template:"), &both), "chat");
    assert_eq!(partner(&CART.replace("      template:", "      integration: chat\n      template:"), &both), "chat");
    let push = CART.replace("      template:", "      channel: slak\n      template:");
    let place = "playbooks/cart-recovery.yaml:19:16";
    check(&with_playbook(&push, &both), place, Code::UnknownIntegration, "channel `slak`", "did you mean `slack`?");
    let settings = format!("{CART_SETTINGS}messaging: {{email: mial}}\n");
    let files = with_playbook(CART, &settings);
    assert!(
        told(&files).iter().any(|told| told.contains("clinch.yml:5:20 CL0162 integration `mial` is not defined")),
        "{:?}",
        told(&files)
    );
}

#[test]
fn c12_named_actions_are_another_spelling_of_every_short_form_in_workers_too() {
    let action = |step: &str| loaded(&with_step(step)).workers[0].steps[0].action.clone();
    assert!(matches!(action("{id: a, run: http, with: {url: 'https://a.b'}}"), Action::Http(_)));
    assert!(matches!(action("{id: a, run: transform, with: {x: '{{ body.id }}'}}"), Action::Transform(_)));
    assert!(matches!(action("{id: a, run: delay, with: 2h}"), Action::Delay(_)));
    assert!(matches!(action("{id: a, dedup_key: {fields: [customer.id, '{{ event.type }}']}}"), Action::DedupKey(_)));
    let inside = "{name: p, parallel: [{name: a, run: store.setnx, with: {key: x, ttl: 1h}}]}";
    let Action::Parallel(branches) = action(inside) else { panic!("branches") };
    assert!(matches!(branches[0].steps[0].action, Action::Setnx(_)));
    let both = with_step("{name: a, setnx: {key: x, ttl: 1h}, run: store.setnx, with: {key: y, ttl: 2h}}");
    assert!(told(&both).iter().any(|told| told.contains("exclude each other")), "{:?}", told(&both));
}

#[test]
fn b1_a_key_and_a_group_may_be_computed_from_the_body() {
    let flow = FLOW.replace("key_from: header:Idempotency-Key", "key_from: [{{ body.email | lower }}, 'body:/id']");
    let flow = flow.replace("      name: orders", "      name: orders\n      group_from: {{ body.customer.id }}");
    let flow = flow.replace("[{{ body.email | lower }}, 'body:/id']", "['{{ body.email | lower }}', 'body:/id']");
    let files = with(&[("flows/intake.yml", &flow)]);
    assert_eq!(told(&files), Vec::<String>::new());
    let workspace = loaded(&files);
    let group = workspace.flows[0].enqueue[0].group.as_ref().expect("a group");
    assert!(matches!(group, KeyRule::One(KeyPart::Computed(expr)) if expr.source() == "body.customer.id"));
    check_flow(
        "header:Idempotency-Key",
        "{{ headers.x-id }}",
        "7:19",
        Code::BadExpression,
        "only the body",
        "header:NAME",
    );
    check_flow("header:Idempotency-Key", "{{ body. }}", "7:19", Code::BadExpression, "cannot be read", "");
}

const POLICIES: &str = "\
policies:
  marketing:
    channels: [sms]
    contact: '{{ body.customer }}'
    consent: {integration: crm, url: /consents, headers: {x: '${secrets.CRM}'}, given: answer.body.sms}
    time_zone: '{{ body.zone }}'
    frequency:
      - {max: 2, per: day}
      - {max: 5, per: 7d, channel: sms}
    quiet_hours: {from: '21:00', to: '08:00', then: decline}
  strict:
    consent: body.agreed
";
const RULED: &str = "\
integrations:
  texts: {base_url: https://texts.example, channel: sms}
  crm: {base_url: https://crm.example, class: read}
  bare: {auth: {bearer: '${secrets.BARE}'}}
";

/// One step that calls somebody, and one that asks.
fn ruled(policies: &str, steps: &str) -> Files {
    let worker = format!("name: w\nconsumes: {{queue: orders}}\nrun:\n{steps}");
    with(&[("clinch.yml", RULED), ("policies.yml", policies), ("workers/post.yml", &worker)])
}

const STEPS: &str = "  - {name: may, policy: {use: strict, channel: sms}}
  - {name: text, http: {integration: texts, url: /send}}
  - {name: look, http: {integration: crm, url: /look}, policies: [strict]}
  - {name: read, http: {integration: crm, url: /look}}
";

#[test]
fn g1_policies_are_over_what_they_name_and_over_what_names_them() {
    let workspace = loaded(&ruled(POLICIES, STEPS));
    let steps = &workspace.workers[0].steps;
    let over = |step: usize| {
        let names = workspace.policies_over(&steps[step]).map(|policy| policy.name.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!([over(0), over(1), over(2), over(3)].map(|names| names.join(" ")), ["", "marketing", "strict", ""]);
    assert!(workspace.counts(&workspace.workers[0]));
    assert!(workspace.secrets.contains("CRM"));
    let marketing = workspace.policy("marketing").expect("it is there");
    assert_eq!(marketing.caps.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2 per day", "5 per 7d by sms"]);
    assert_eq!(marketing.quiet.map(|quiet| quiet.to_string()).as_deref(), Some("between 21:00 and 08:00"));
    assert!(matches!(&steps[0].action, Action::Policy(ask) if ask.channel.as_deref() == Some("sms")));
    // A mail server is a channel by itself; and what only reads is not irreversible.
    let read = "policies: {all: {integrations: [crm], consent: body.agreed}}\n";
    assert!(told(&ruled(read, STEPS)).iter().any(|said| said.contains("nothing is under policy `all`")));
}

#[test]
fn g1_a_policy_that_would_not_rule_is_told() {
    let check = |from: &str, to: &str, place: &str, code: Code, said: &str, help: &str| {
        assert!(POLICIES.contains(from), "{from}");
        super::tests::check(
            &ruled(&POLICIES.replacen(from, to, 1), STEPS),
            &format!("policies.yml:{place}"),
            code,
            said,
            help,
        );
    };
    check("[sms]", "[smss]", "3:16", Code::UnknownChannel, "nothing goes over channel `smss`", "did you mean `sms`?");
    check("channel: sms}", "channel: fax}", "9:36", Code::UnknownChannel, "channel `fax`", "channel: fax");
    check("integration: crm", "integration: cmr", "5:28", Code::UnknownIntegration, "`cmr`", "did you mean `crm`?");
    check("integration: crm", "integration: bare", "5:28", Code::BadUrl, "does not say where it is", "base_url");
    check("'{{ body.zone }}'", "Europe/Berln", "6:16", Code::BadTimeZone, "not a time zone", "Europe/Berlin");
    check("'21:00'", "'25:00'", "10:25", Code::BadHours, "not a time of day", "21:00");
    check("'21:00'", "'8:00'", "10:37", Code::BadHours, "end when they begin", "another hour");
    check("per: day", "per: dya", "8:23", Code::BadDuration, "`dya`", "");
    check("per: day", "per: 10ms", "8:23", Code::OutOfRange, "too small", "1s");
    check("    contact: '{{ body.customer }}'\n", "", "6:5", Code::MissingKey, "whom to count", "contact");
    check("consent: body.agreed", "contact: '{{ body.x }}'", "11:3", Code::MissingKey, "has no rule", "consent");
    check("consent: body.agreed", "consent: bdy.agreed", "12:14", Code::BadExpression, "`bdy`", "`body`");
    let steps = STEPS.replace("use: strict", "use: stric").replace("policies: [strict]", "policies: [srtict]");
    let said = told(&ruled(POLICIES, &steps));
    for (place, name) in [("4:31", "stric"), ("6:67", "srtict")] {
        let line = format!("workers/post.yml:{place} CL0185 policy `{name}` is not defined");
        assert!(said.iter().any(|said| said.starts_with(&line)), "{said:#?}");
    }
    let inward = "  - {name: a, transform: {x: 1}, policies: [strict]}\n";
    super::tests::check(
        &ruled("policies: {strict: {consent: body.agreed}}\n", inward),
        "workers/post.yml:4:34",
        Code::EitherOr,
        "`policies` does not go with `transform`",
        "remove it",
    );
}

/// A worker that sends `cart` by mail, with this `safe_mode:` in the settings.
fn with_safe_mode(rule: &str, files: &[(&'static str, &str)]) -> Files {
    let settings = format!("{MAIL}safe_mode: {rule}\n");
    let cart = ("templates/cart.txt", "---\nsubject: Half of it\n---\nHello\n");
    let Files(mut all) = with_mail("mail", "cart", &[&[cart], files].concat());
    for (path, text) in &mut all {
        if path == "clinch.yml" {
            text.clone_from(&settings);
        }
    }
    Files(all)
}

#[test]
fn e4_safe_mode_is_as_the_settings_say_and_holds_where_they_say_nothing() {
    assert_eq!(
        loaded(&with_mail("mail", "cart", &[("templates/cart.txt", "---\nsubject: a\n---\nb\n")])).settings.safe_mode,
        SafeModeRule::default()
    );
    let safe = ("templates/calm.txt", "---\nsubject: Hello\n---\nHello\n");
    let rule = "{hold: false, templates: {cart: calm}, cap: {max: 2, per: 1d}, max_age: 4h, drain: 5/s, \
                trip: {circuits: [crm], errors: {percent: 30, window: 1m}, scope: all, for: 30m}}";
    let read = loaded(&with_safe_mode(rule, &[safe])).settings.safe_mode;
    assert!(!read.hold && read.template("cart") == "calm");
    assert_eq!(read.cap.map(|cap| (cap.units.get(), cap.window)), Some((2, Duration::from_secs(86_400))));
    assert_eq!((read.max_age, read.drain.to_string().as_str()), (Some(Duration::from_secs(14_400)), "5/1s"));
    let trip = read.trip.expect("something trips it");
    assert_eq!((trip.circuits.clone(), trip.all), (Circuits::Of(vec!["crm".into()]), true));
    assert_eq!(trip.lasts, Some(Duration::from_secs(1_800)));
    let errors = trip.errors.expect("errors do");
    assert_eq!((errors.errors_percent, errors.window, errors.calls_min), (30, Duration::from_secs(60), 20));
    let any = loaded(&with_safe_mode("{trip: {circuits: any}}", &[])).settings.safe_mode.trip;
    assert_eq!(any.map(|trip| (trip.circuits, trip.errors, trip.all)), Some((Circuits::Any, None, false)));
}

#[test]
fn e4_safe_mode_names_templates_that_fit_and_integrations_that_are_there() {
    let found = |rule: &str, files: &[(&'static str, &str)], code| {
        let files = with_safe_mode(rule, files);
        let found = problems(&files).into_iter().find(|problem| problem.code == code && problem.file == "clinch.yml");
        found.unwrap_or_else(|| panic!("{rule}: {:#?}", problems(&files))).message
    };
    assert!(found("{templates: {cart: clam}}", &[], Code::UnknownTemplate).contains("`clam`"));
    assert!(found("{templates: {crat: cart}}", &[], Code::UnknownTemplate).contains("`crat`"));
    let bare = ("templates/calm.txt", "Hello\n");
    assert!(found("{templates: {cart: calm}}", &[bare], Code::BadTemplate).contains("a mail needs a subject"));
    assert!(found("{trip: {circuits: [cmr]}}", &[], Code::UnknownIntegration).contains("`cmr`"));
    for (rule, code) in [
        ("{holds: true}", Code::UnknownKey),
        ("{cap: {max: 2}}", Code::MissingKey),
        ("{cap: {max: 0, per: 1d}}", Code::OutOfRange),
        ("{drain: fast}", Code::BadRate),
        ("{trip: {circuits: all}}", Code::BadChoice),
        ("{trip: {errors: {percent: 101}}}", Code::OutOfRange),
    ] {
        found(rule, &[], code);
    }
}

#[test]
fn t100_the_console_is_known_by_the_names_that_are_added() {
    let named = |hosts: &str| with(&[("clinch.yml", &format!("console: {{hosts: [{hosts}]}}\n"))]);
    assert_eq!(
        loaded(&named("Clinch.Example.com, '10.0.0.5:7401'")).settings.console_hosts,
        ["clinch.example.com", "10.0.0.5:7401"]
    );
    assert!(loaded(&with(&[])).settings.console_hosts.is_empty());
    for bad in ["'https://clinch.example.com'", "'*.example.com'", "''"] {
        check(&named(bad), "clinch.yml:1:19", Code::BadAddress, "is not a name that a browser", "in the address bar");
    }
}

#[test]
fn h5_an_objective_is_what_the_workspace_says_or_the_usual_one() {
    let of = |settings: &str| loaded(&with(&[("clinch.yml", settings)])).settings;
    let usual = of("version: 1\n").slo;
    assert_eq!((usual.end_to_end, usual.target.to_string()), (Duration::from_secs(30), "95%".into()));
    let own = of("slo: {end_to_end: 2m, target: 99.5%}\n").slo;
    assert_eq!((own.end_to_end, own.target.to_string()), (Duration::from_secs(120), "99.5%".into()));
    assert_eq!(of("slo: {target: 50%}\n").slo.end_to_end, Duration::from_secs(30));
    let bad = |target: &str| with(&[("clinch.yml", &format!("slo: {{target: {target}}}\n"))]);
    for target in ["100%", "95", "high"] {
        check(&bad(target), "clinch.yml:1:15", Code::BadShare, "is not a share that can be reached and missed", "");
    }
    check(&with(&[("clinch.yml", "slo: {latency: 3s}\n")]), "clinch.yml:1:7", Code::UnknownKey, "latency", "");
}

#[test]
fn h1_steps_are_counted_one_by_one_unless_the_workspace_says_otherwise() {
    let of = |settings: &str| loaded(&with(&[("clinch.yml", settings)])).settings.metrics.per_step;
    assert!(of("version: 1\n") && of("metrics: {}\n") && !of("metrics: {per_step: false}\n"));
}

#[test]
fn k1_a_provider_of_identities_says_who_has_which_role() {
    let with_oidc = |more: &str| {
        let text = format!("oidc:\n  issuer: https://id.example.com\n  client_id: clinch\n{more}");
        with(&[("clinch.yml", &text)])
    };
    let files = with_oidc(
        "  client_secret: ${secrets.OIDC}\n  domains: [Example.com]\n  roles: {claim: groups, map: {ops: operator, all: viewer}}\n  users: {maya@example.com: maya}\n",
    );
    let rule = loaded(&files).settings.oidc.expect("a rule");
    assert_eq!((rule.issuer.as_str(), rule.client_secret.as_deref()), ("https://id.example.com", Some("OIDC")));
    assert_eq!((rule.domains, rule.scopes), (vec!["example.com".into()], vec!["profile".into(), "email".to_string()]));
    let roles = rule.roles.expect("roles");
    assert_eq!(roles.map, [("ops".into(), Role::Operator), ("all".to_string(), Role::Viewer)]);
    assert_eq!((rule.name.as_str(), rule.users.len()), ("preferred_username", 1));
    assert!(loaded(&with(&[])).settings.oidc.is_none());

    let none = with_oidc("");
    check(&none, "clinch.yml:2:3", Code::MissingKey, "nobody could log in by this provider", "add `roles:");
    let role = with_oidc("  roles: {claim: groups, map: {ops: root}}\n");
    check(&role, "clinch.yml:4:37", Code::BadChoice, "`root` is not a role; they are viewer, operator", "");
    let name = with_oidc("  users: {u-1: Maya}\n");
    check(&name, "clinch.yml:4:16", Code::BadName, "`Maya` is not a user's name; use 1 to 64 of a-z", "");
    let url = with(&[("clinch.yml", "oidc: {issuer: 'https://id.example.com?x=1', client_id: c, users: {u: maya}}\n")]);
    check(&url, "clinch.yml:1:16", Code::BadUrl, "`issuer` is a plain address", "https://id.example.com");
}

#[test]
fn h2_a_workspace_says_which_collector_is_told_and_what() {
    let tracing = |said: &str| with(&[("clinch.yml", &format!("tracing: {{{said}}}\n"))]);
    let usual = loaded(&with(&[])).settings.tracing;
    assert_eq!((usual.endpoint, usual.protocol, usual.service.as_str()), (None, Protocol::Http, "clinch"));
    assert_eq!(usual.share, Share::ALL);
    let workspace = loaded(&tracing(
        "endpoint: 'https://otel.example:4317', protocol: grpc, headers: {authorization: 'Bearer ${secrets.OTEL}'}, service: shop, \
         sample: 0.25, attributes: {shop.campaign: '{{ body.campaign }}'}, personal: {customer: '{{ body.email }}'}",
    ));
    assert!(workspace.secrets.contains("OTEL"), "it is read at the start");
    let rule = workspace.settings.tracing;
    assert_eq!((rule.endpoint.as_deref(), rule.protocol), (Some("https://otel.example:4317"), Protocol::Grpc));
    assert_eq!((rule.service.as_str(), rule.share), ("shop", Share::of(0.25)));
    let attributes: Vec<_> = rule.attributes.iter().map(|rule| (rule.name.as_str(), rule.is_personal)).collect();
    assert_eq!(attributes, [("shop.campaign", false), ("customer", true)]);
    let bad = |said: &str, code, part: &str, help: &str| {
        let problems = load(&tracing(said)).expect_err(said);
        let [problem] = problems.as_slice() else { panic!("{said}: {problems:#?}") };
        assert_eq!(problem.code, code, "{problem:#?}");
        let told = format!("{problem:?}");
        assert!(told.contains(part) && told.contains(help), "{told}");
    };
    bad("endpoint: 'otel:4318'", Code::BadUrl, "is not the address of a collector", "http://127.0.0.1:4318");
    bad("endpoint: 'http://me:word@otel:4318'", Code::BadUrl, "is not the address of a collector", "headers:");
    bad("headers: {x-key: '{{ body.id }}'}", Code::BadExpression, "and nothing else that is computed", "secrets.NAME");
    bad("sample: 1.5", Code::OutOfRange, "sample", "1");
    bad("attributes: {http.method: '{{ body.x }}'}", Code::BadName, "that clinch sets itself", "another name");
    bad("attributes: {Campaign: '{{ body.x }}'}", Code::BadName, "not the name of an attribute", "shop.campaign");
    bad("personal: {token: '{{ secrets.X }}'}", Code::BadExpression, "`secrets` is not known", "body");
}

#[test]
fn t113_a_trace_is_continued_only_for_senders_that_are_known() {
    let source = |verify: &str, incoming: &str| {
        let clinch = format!("sources:\n  shop: {{verify: {verify}, trace: {{incoming: {incoming}}}}}\n");
        with(&[
            ("clinch.yml", &clinch),
            (
                "flows/shop.yml",
                "name: shop\ntriggers:\n  - source: shop\nsteps:\n  - name: go\n    queue: {name: orders}\n",
            ),
        ])
    };
    let read = |verify, incoming| loaded(&source(verify, incoming)).sources[0].trace;
    assert_eq!(read("sender", "continue"), Incoming::Continue);
    assert_eq!((read("none", "link"), read("none", "ignore")), (Incoming::Link, Incoming::Ignore));
    let problems = load(&source("none", "continue")).expect_err("anybody may send");
    assert_eq!(problems[0].code, Code::EitherOr, "{problems:#?}");
    assert!(problems[0].message.contains("here anybody may send"), "{problems:#?}");
}

#[test]
fn h2_an_integration_or_a_step_says_whether_the_partner_is_told_the_trace() {
    let told = |of_partner: &str, of_step: &str| {
        let clinch = format!("integrations:\n  crm: {{base_url: 'https://crm.example'{of_partner}}}\n");
        let step = format!("http: {{integration: crm, url: /x{of_step}}}");
        let head = WORKER.split("http:").next().expect("its beginning");
        let worker = format!("{head}{step}\n");
        http(&loaded(&with(&[("clinch.yml", &clinch), ("workers/post.yml", &worker)]))).propagate_trace
    };
    assert!(!told("", ""));
    assert!(told(", propagate_trace: true", "") && told("", ", propagate_trace: true"));
    assert!(!told(", propagate_trace: true", ", propagate_trace: false"));
}
