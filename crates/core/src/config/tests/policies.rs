//! What must be so, or be decided by people, before something is done.

use super::*;

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

pub(super) const POLICIES: &str = "\
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
