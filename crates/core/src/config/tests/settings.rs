//! `clinch.yml`, besides its integrations.

use super::*;

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

pub(super) const REDIS: &str = "\
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
