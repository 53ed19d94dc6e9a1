//! Playbooks, and the spelling that they brought.

use super::*;

/// A workspace with this playbook and nothing else that runs.
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
