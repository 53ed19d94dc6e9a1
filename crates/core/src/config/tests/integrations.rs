//! Those who are called: partners, databases, and who carries messages.

use super::*;

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
