//! Steps: what they do, what they read, and what they may not say.

use super::*;

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

pub(super) const PARTED: &str = "\
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

pub(super) const UNDONE: &str = "\
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

/// The worker with this step first.
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
