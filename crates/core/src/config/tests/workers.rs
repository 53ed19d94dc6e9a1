//! Workers: when their jobs run, how often they are tried, and how long they may live.

use super::*;

/// A worker with a schedule and one step.
/// As `check`, for a problem somewhere in a line.
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
fn c8_a_delay_of_a_step_counts_towards_the_time_that_a_key_must_be_known() {
    check(&with_step("{name: a, delay: 60h}"), "flows/intake.yml:9:14", Code::TtlTooShort, "for 3d", "ttl: 3d");
}
