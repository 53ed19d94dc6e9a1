//! Senders, and the routes that take in what they send.

use super::*;

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
