//! Queues, and the order of what is in them.

use super::*;

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
