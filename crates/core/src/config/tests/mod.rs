//! Whole workspaces: what loads, and everything that is said when one does not.

mod integrations;
mod playbooks;
mod policies;
mod queues;
mod settings;
mod sources;
mod steps;
mod workers;

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

const INGEST: &str = include_str!("../../../tests/tutorial/flows/ingest.yml");
const UPSERT: &str = include_str!("../../../tests/tutorial/workers/contact-upsert.yml");
const REPLAY: &str = include_str!("../../../tests/tutorial/workers/replay-dlq.yml");
const CART: &str = include_str!("../../../tests/cart-recovery/playbooks/cart-recovery.yaml");
const CART_RETRY: &str = include_str!("../../../tests/cart-recovery/retry.json");
const TUTORIAL_QUEUES: &str = include_str!("../../../tests/tutorial/queues.yml");

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

fn with_step(step: &str) -> Files {
    let worker = WORKER.replacen("run:\n", &format!("run:\n  - {step}\n"), 1);
    with(&[("workers/post.yml", &worker), ("schemas/order.json", "{}")])
}

const CART_SETTINGS: &str = "\
sources:
  shop: {verify: shopify, secret: '${secrets.SHOP}', types: {carts/abandoned: shopify.cart.abandoned}}
integrations:
  mail: {smtp: 'smtp://user:${secrets.SMTP}@mail.example:587', from: 'Shop <hello@shop.example>'}
";

const CART_MAIL: (&str, &str) =
    ("templates/cart_recovery_v3.txt", "---\nsubject: Your cart\n---\nHello {{ event.email }}\n");

fn with_playbook(playbook: &str, settings: &str) -> Files {
    files(&[("clinch.yml", settings), ("playbooks/cart-recovery.yaml", playbook), CART_MAIL])
}

fn scheduled(schedule: &str, step: &str) -> Files {
    let worker = format!("name: nightly\nschedule: {schedule}\nrun:\n  - {step}\n");
    with(&[("workers/nightly.yml", &worker)])
}

fn check_near(files: &Files, line: &str, code: Code, said: &str, help: &str) {
    let told = told(files).pop().unwrap_or_default();
    assert!(told.starts_with(line), "{told}");
    check(files, told.split(' ').next().unwrap_or_default(), code, said, help);
}

const MAIL: &str = "\
integrations:
  mail: {smtp: 'smtp://shop:${secrets.SMTP}@mail.example.com:587', from: 'Shop <hello@example.com>'}
  chat: {message: slack, auth: {bearer: '${secrets.SLACK}'}}
  crm: {base_url: 'https://crm.example'}
";

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
    let texts = [
        INGEST,
        UPSERT,
        REPLAY,
        CART,
        TUTORIAL_QUEUES,
        FLOW,
        WORKER,
        steps::PARTED,
        steps::UNDONE,
        QUEUES,
        settings::REDIS,
        policies::POLICIES,
    ];
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

#[test]
fn j1_every_key_of_the_dialect_is_on_its_page() {
    let page = concat!(include_str!("../../../../../docs/workspace.md"), include_str!("../../../../../docs/start.md"));
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
