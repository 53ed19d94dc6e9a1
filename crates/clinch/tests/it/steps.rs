//! What steps do besides calls: values are made, held against schemas, enriched; jobs wait.

use crate::world::{OK, Reply, USUAL, World, worker_with_step};
use clinch::app::{Roles, StartError};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::{Waits, Word};

const BODY: &str = r#"{"first":"Ada","last":"Byron","phone":"030 123456","ip":"203.0.113.9"}"#;

/// These steps, and then one that sends what the last of them, `made`, put out.
fn then_send(steps: &str) -> String {
    let send =
        "  - name: send\n    http: {url: http://TARGET/sent, body_from: steps.made.output, idempotency: natural}\n";
    worker_with_step(&format!("{steps}{send}"))
}

async fn world(steps: &str, files: &[(&str, &str)]) -> World {
    let worker = then_send(steps);
    World::new(&[&[("workers/charge.yml", worker.as_str())], files].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_transform_makes_a_value_that_later_steps_read() {
    let steps =
        "  - name: made\n    transform: {name: '{{ body.first }} {{ body.last }}', tags: [web, '{{ body.n }}']}\n";
    let world = world(steps, &[]).await;
    let story = world.post_and_wait("a", r#"{"first":"Ada","last":"Byron","n":7}"#, Word::Success).await;
    assert_eq!(world.target.calls()[0].body, r#"{"name":"Ada Byron","tags":["web",7]}"#);
    // Nothing of it is in the ledger: it is the same whenever it is computed.
    assert_eq!(story.effects.iter().map(|effect| effect.name.as_str()).collect::<Vec<_>>(), ["send"]);
    let story = world.post_and_wait("b", "{}", Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::MissingData));
    assert_eq!(world.target.calls().len(), 1);
    world.close_and_verify().await;
}

const SCHEMA: &str = r#"{"type":"object","properties":{"first":{"type":"string"}},"required":["last"]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_breaks_a_schema_is_a_dead_letter_that_names_the_place_and_never_the_value() {
    let steps = "  - name: made\n    validate: {schema: person, from: body}\n";
    let world = world(steps, &[("schemas/person.json", SCHEMA)]).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    assert_eq!(world.target.calls()[0].body, BODY);
    let story = world.post_and_wait("b", r#"{"first":424242}"#, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::BadPayload), 1));
    let error = story.row.error.unwrap();
    assert!(error.contains("step `made`") && error.contains("/first breaks type"), "{error}");
    assert!(error.contains(r#"required: "last""#) && !error.contains("424242"), "{error}");
    assert_eq!(world.target.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_phone_number_is_enriched_or_the_job_is_a_dead_letter() {
    let steps = "  - name: made\n    enrich: {phone: {from: body.phone, country: DE, strict: valid}}\n";
    let world = world(steps, &[]).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    let sent = r#"{"e164":"+4930123456","country":"DE","possible":true,"valid":true}"#;
    assert_eq!(world.target.calls()[0].body, sent);
    let story = world.post_and_wait("b", r#"{"phone":"0000 4242"}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::BadPayload));
    assert!(!story.row.error.unwrap().contains("4242"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_what_is_no_phone_number_is_null_where_nothing_is_asked_of_it() {
    let world = world("  - name: made\n    enrich: {phone: {from: body.phone, strict: none}}\n", &[]).await;
    world.post_and_wait("a", r#"{"phone":"call me"}"#, Word::Success).await;
    assert_eq!(world.target.calls()[0].body, "null");
}

/// A database that says `country` of every address in 203.0.113.0/24 and knows no other, as its specification writes it.
fn mmdb(country: &str) -> Vec<u8> {
    let text = |text: &str| [vec![0x40 | u8::try_from(text.len()).unwrap()], text.as_bytes().to_vec()].concat();
    let number = |kind: u8, number: u16| vec![(kind << 5) | 2, (number >> 8) as u8, (number & 0xff) as u8];
    let map = |pairs: &[(&str, Vec<u8>)]| {
        let head = vec![0xe0 | u8::try_from(pairs.len()).unwrap()];
        pairs.iter().fold(head, |map, (key, value)| [map, text(key), value.clone()].concat())
    };
    let network = u32::from_be_bytes([203, 0, 113, 0]);
    let nodes = 24u32;
    let mut file = Vec::new();
    for bit in 0..nodes {
        // What is found is counted from behind the tree and the sixteen bytes after it.
        let onward = if bit + 1 == nodes { nodes + 16 } else { bit + 1 };
        let is_right = network >> (31 - bit) & 1 == 1;
        let (left, right) = if is_right { (nodes, onward) } else { (onward, nodes) };
        file.extend_from_slice(&left.to_be_bytes()[1..]);
        file.extend_from_slice(&right.to_be_bytes()[1..]);
    }
    file.extend_from_slice(&[0; 16]);
    file.extend(map(&[("country", map(&[("iso_code", text(country))]))]));
    file.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    // 5: a number of 16 bits; 6: one of 32; 9 (64 bits) and 11 (a list) are written behind a zero.
    file.extend(map(&[
        ("node_count", number(6, 24)),
        ("record_size", number(5, 24)),
        ("ip_version", number(5, 4)),
        ("database_type", text("Test-City")),
        ("languages", vec![0x00, 0x04]),
        ("binary_format_major_version", number(5, 2)),
        ("binary_format_minor_version", number(5, 0)),
        ("build_epoch", vec![0x02, 0x02, 1, 0]),
        ("description", vec![0xe0]),
    ]));
    file
}

const PLACE: &str = "  - name: made\n    enrich: {geoip: {from: body.ip, database: geo/City.mmdb}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn c8_an_address_is_enriched_by_a_database_that_may_be_replaced_meanwhile() {
    let worker = then_send(PLACE);
    let mut world = World::unopened(&[&USUAL[..], &[("workers/charge.yml", &worker)]].concat()).await;
    let file = world.workspace_dir().join("geo/City.mmdb");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, mmdb("DE")).unwrap();
    world.open(Roles::ALL).await;
    let enriched = async |key: &str, ip: &str| {
        world.post_and_wait(key, &format!(r#"{{"ip":"{ip}"}}"#), Word::Success).await;
        world.target.calls().last().unwrap().body.clone()
    };
    assert_eq!(enriched("a", "203.0.113.9").await, r#"{"country":{"iso_code":"DE"}}"#);
    assert_eq!(enriched("b", "198.51.100.1").await, "null");
    assert_eq!(enriched("c", "2001:db8::1").await, "null");
    assert_eq!(enriched("d", "::ffff:203.0.113.1").await, r#"{"country":{"iso_code":"DE"}}"#);
    std::fs::write(&file, "half of it").unwrap();
    assert_eq!(enriched("e", "203.0.113.9").await, r#"{"country":{"iso_code":"DE"}}"#);
    std::fs::write(&file, mmdb("Atlantis")).unwrap();
    assert_eq!(enriched("f", "203.0.113.9").await, r#"{"country":{"iso_code":"Atlantis"}}"#);
    let story = world.post_and_wait("g", r#"{"ip":"nowhere"}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::BadPayload));
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_database_that_is_not_there_keeps_the_house_closed() {
    let worker = then_send(PLACE);
    let StartError::Workspace(said) = World::refusal(&[&USUAL[..], &[("workers/charge.yml", &worker)]].concat()).await
    else {
        panic!("it is about the workspace")
    };
    assert!(said.contains("geo/City.mmdb cannot be used") && said.contains(".mmdb"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_p4_a_delay_costs_no_attempt_and_does_not_begin_again_after_a_restart() {
    let mut world = world("  - name: made\n    transform: {x: 1}\n  - name: later\n    delay: 6s\n", &[]).await;
    let job = world.post("k", "{}").await.job();
    let waiting = world.wait(job, Word::Waiting).await;
    assert_eq!((waiting.row.waits, waiting.row.attempts, waiting.row.failures), (Some(Waits::Delay), 0, 0));
    let reached = waiting.effects[0].first_intended_at;
    world.close().await;
    world.open(Roles::ALL).await;
    let story = world.wait(job, Word::Success).await;
    assert_eq!(story.effects[0].first_intended_at, reached);
    assert!(matches!(story.effects[0].state, EffectState::Done(_)), "{:?}", story.effects[0]);
    // It went on when the time was over that began before the restart.
    let sent = &story.effects[1];
    assert!(sent.first_intended_at.since(reached) >= std::time::Duration::from_secs(6));
    assert_eq!((story.row.failures, world.target.calls().len()), (0, 1), "{story:#?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8_a_delay_until_a_moment_that_is_over_lets_the_job_go_on() {
    let steps = "  - name: made\n    delay: {until: body.at}\n";
    let world = world(steps, &[]).await;
    world.post_and_wait("a", r#"{"at":"2020-01-01T00:00:00Z"}"#, Word::Success).await;
    assert_eq!(world.target.calls()[0].body, r#"{"until":"2020-01-01T00:00:00.000Z"}"#);
    let job = world.post("b", r#"{"at":"2035-01-01T00:00:00Z"}"#).await.job();
    let story = world.wait(job, Word::Waiting).await;
    assert_eq!(story.row.run_at.unwrap().to_string(), "2035-01-01T00:00:00.000Z");
    let story = world.post_and_wait("c", r#"{"at":"soon"}"#, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::BadPayload));
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_a_key_is_set_by_one_job_and_the_others_have_nothing_to_do() {
    let steps = "  - name: made\n    setnx: {key: 'cart-{{ body.cart }}', ttl: 24h, on_exists: stop}\n";
    let mut world = world(steps, &[]).await;
    world.post_and_wait("a", r#"{"cart":7}"#, Word::Success).await;
    assert_eq!(world.target.calls()[0].body, r#"{"set":true}"#);
    world.post_and_wait("b", r#"{"cart":7}"#, Word::Noop).await;
    world.post_and_wait("c", r#"{"cart":8}"#, Word::Success).await;
    world.close().await;
    world.open(Roles::ALL).await;
    world.post_and_wait("d", r#"{"cart":7}"#, Word::Noop).await;
    assert_eq!(world.target.calls().len(), 2);
    let story = world.post_and_wait("e", "{}", Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::MissingData));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_a_job_that_set_the_key_and_runs_again_is_told_that_it_has() {
    let steps = "  - name: made\n    setnx: {key: 'cart-{{ body.cart }}', ttl: 24h, on_exists: stop}\n";
    let world = world(steps, &[]).await;
    world.target.script("/sent", [Reply::Status(503), OK]);
    let story = world.post_and_wait("a", r#"{"cart":7}"#, Word::Success).await;
    assert_eq!(story.row.attempts, 2);
    let calls = world.target.calls();
    assert_eq!((calls.len(), calls[1].body.as_str()), (2, r#"{"set":true}"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_whether_it_was_set_is_for_the_steps_that_follow() {
    let steps = "  - name: made\n    setnx: {key: 'cart-{{ body.cart }}', ttl: 24h}\n";
    let world = world(steps, &[]).await;
    world.post_and_wait("a", r#"{"cart":7}"#, Word::Success).await;
    world.post_and_wait("b", r#"{"cart":7}"#, Word::Success).await;
    let sent: Vec<String> = world.target.calls().iter().map(|call| call.body.clone()).collect();
    assert_eq!(sent, [r#"{"set":true}"#, r#"{"set":false}"#]);
}
