//! Playbooks: one event starts what is written for its type, each with an end of its own, and a mail goes out once.

use crate::messages::{Does, Postbox, settings};
use crate::nodes::{Nodes, shared_postgres};
use crate::process::{ONCE, PATIENCE, Place, Server, Way, client, eventually};
use crate::sources::mac;
use crate::world::{NO_WORKER, OK, Reply, USUAL, World};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;

/// As its authors wrote it.
const CART: &str = "\
# playbook.yaml
name: cart-recovery
on: shopify.cart.abandoned
steps:
  - id: compute-dedup
    run: utils.compute_dedup_key
    with:
      fields: [customer_id, store_id, timestamp]
      bucket_minutes: 5
  - id: check-and-set
    run: store.setnx
    with:
      key: {{ steps.compute-dedup.output.key }}
      ttl_seconds: 2700
  - id: maybe-send-email
    if: {{ steps.check-and-set.output.set == true }}
    run: messaging.send_template
    with:
      template: cart_recovery_v3
      to: {{ event.email }}
";
const MAIL: &str = "---\nsubject: Your cart\n---\nHello {{ event.email }}\n";
const SHOP: &str = "sources:\n  shop: {verify: none, key_from: 'header:X-Id', type_from: 'header:X-Type'}\n";

fn cart(customer: &str, at: &str) -> String {
    json!({"customer_id": customer, "store_id": 7, "timestamp": at, "email": format!("{customer}@example.com")})
        .to_string()
}

/// One event of the shop.
async fn send(world: &World, id: &str, kind: &str, body: &str) -> Value {
    let answer = world.deliver("/in/shop", &[("x-id", id), ("x-type", kind)], body).await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
    answer.json()
}

fn job(answer: &Value) -> JobId {
    answer["job_id"].as_str().unwrap_or_else(|| panic!("no job: {answer}")).parse().unwrap()
}

async fn shop(postbox: &Postbox, playbooks: &[(&str, &str)]) -> World {
    let settings = format!("{SHOP}{}", settings(postbox.port, ""));
    let files = [("clinch.yml", settings.as_str()), ("templates/cart_recovery_v3.txt", MAIL)];
    World::new(&[&files, playbooks].concat()).await
}

const ABANDONED: &str = "shopify.cart.abandoned";

#[tokio::test(flavor = "multi_thread")]
async fn c12_b1_b8_the_playbook_of_the_incident_runs_as_written_and_mails_once_for_each_customer_and_stretch() {
    assert_eq!(CART, include_str!("../../../core/tests/cart-recovery/playbooks/cart-recovery.yaml"));
    let postbox = Postbox::start().await;
    let world = shop(&postbox, &[("playbooks/cart-recovery.yaml", CART)]).await;
    let first = send(&world, "1", ABANDONED, &cart("ada", "2026-08-01T10:40:00Z")).await;
    let story = world.wait(job(&first), Word::Success).await;
    assert_eq!((&*story.row.flow, &*story.row.queue), ("cart-recovery", "playbook.cart-recovery"));
    // The same delivery again is no event; the same cart under another id is one, and has nothing to do.
    assert_eq!(send(&world, "1", ABANDONED, &cart("ada", "2026-08-01T10:40:00Z")).await, first);
    let twin = send(&world, "2", ABANDONED, &cart("ada", "2026-08-01T10:44:59Z")).await;
    world.wait(job(&twin), Word::Noop).await;
    let later = send(&world, "3", ABANDONED, &cart("ada", "2026-08-01T10:45:00Z")).await;
    world.wait(job(&later), Word::Success).await;
    let other = send(&world, "4", ABANDONED, &cart("bob", "2026-08-01T10:40:00Z")).await;
    world.wait(job(&other), Word::Success).await;
    let to: Vec<String> = postbox.mails().into_iter().map(|mail| mail.to).collect();
    assert_eq!(to, ["ada@example.com", "ada@example.com", "bob@example.com"]);
    // What no playbook and no flow takes is answered and not stored.
    let ignored = send(&world, "5", "shopify.cart.created", "{}").await;
    assert!(ignored.get("job_id").is_none(), "{ignored}");
    let report = world.close_and_verify().await;
    assert_eq!(report.accepted, 4);
}

const POST: &str = "
name: NAME
on: [shopify.*, stripe.charge.failed]
retry: {max_attempts: 1}
steps:
  - id: post-it
    run: http
    with: {url: http://TARGET/NAME, body_from: event.email, idempotency: header}
";

#[tokio::test(flavor = "multi_thread")]
async fn c12_one_event_starts_a_flow_and_several_playbooks_each_with_an_end_of_its_own() {
    let postbox = Postbox::start().await;
    let (good, bad) = (POST.replace("NAME", "good"), POST.replace("NAME", "bad"));
    let flow = "name: taken\ntriggers:\n  - source: shop\nsteps:\n  - {name: enqueue, queue: {name: orders}}\n";
    let files = [
        ("playbooks/bad.yml", bad.as_str()),
        ("playbooks/cart-recovery.yaml", CART),
        ("playbooks/good.yml", &good),
        ("flows/taken.yml", flow),
    ];
    let world = shop(&postbox, &files).await;
    world.target.script("/bad", [Reply::Status(400), OK]);
    send(&world, "1", ABANDONED, &cart("ada", "2026-08-01T10:40:00Z")).await;
    let ended = |word: Word| matches!(word, Word::Success | Word::Noop | Word::Dead);
    eventually("all of them end", PATIENCE, async || world.jobs().await.iter().all(|job| ended(job.word))).await;
    let mut ends: Vec<(String, Word)> =
        world.jobs().await.into_iter().map(|job| (job.flow.to_string(), job.word)).collect();
    ends.sort_by(|a, b| a.0.cmp(&b.0));
    let ends: Vec<(&str, Word)> = ends.iter().map(|(flow, word)| (flow.as_str(), *word)).collect();
    let expected =
        [("bad", Word::Dead), ("cart-recovery", Word::Success), ("good", Word::Success), ("taken", Word::Success)];
    assert_eq!(ends, expected);
    assert_eq!(postbox.mails().len(), 1);
    assert_eq!(world.target.calls_at("/good")[0].body, "\"ada@example.com\"");
    // One of them is replayed; the others are not touched.
    let dead = world.jobs().await.into_iter().find(|job| job.word == Word::Dead).unwrap();
    let answer = world.replay(dead.id, json!({"reason": "the target is well again"})).await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
    world.wait(dead.id, Word::Success).await;
    assert_eq!(
        (world.target.calls_at("/bad").len(), world.target.calls_at("/good").len(), postbox.mails().len()),
        (2, 1, 1)
    );
    // Another type starts those that take it.
    send(&world, "2", "stripe.charge.failed", &cart("bob", "2026-08-01T10:40:00Z")).await;
    eventually("all of them end", PATIENCE, async || world.jobs().await.iter().all(|job| ended(job.word))).await;
    assert_eq!(world.jobs().await.len(), 4 + 3);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_p9_a_name_that_is_not_there_is_told_with_the_nearest_one_and_without_any_value() {
    let postbox = Postbox::start().await;
    let world = shop(&postbox, &[("playbooks/cart-recovery.yaml", CART)]).await;
    let dead = async |id: &str, body: Value| {
        let story = world.wait(job(&send(&world, id, ABANDONED, &body.to_string()).await), Word::Dead).await;
        (story.row.reason.unwrap(), story.row.error.unwrap())
    };
    let at = "2026-08-01T10:40:00Z";
    let body = json!({"customer_id": "kanary", "store_id": 7, "timestamp": at, "emial": "kanary@leak.example"});
    let (reason, said) = dead("1", body).await;
    assert_eq!(reason, Reason::MissingData);
    assert!(said.contains("`event.emial`?") && said.contains("maybe-send-email"), "{said}");
    assert!(!said.contains("kanary"), "{said}");
    let (reason, said) = dead("2", json!({"costumer_id": "kanary", "store_id": 7, "timestamp": at})).await;
    assert_eq!(reason, Reason::MissingData);
    assert!(said.contains("`body.customer_id` is not there; did you mean `body.costumer_id`?"), "{said}");
    let (reason, said) = dead("3", json!({"customer_id": "kanary", "store_id": 7, "timestamp": "kanary"})).await;
    assert_eq!(reason, Reason::BadPayload);
    assert!(said.contains("`timestamp` is not a moment") && !said.contains("kanary"), "{said}");
    assert!(postbox.mails().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_job_runs_the_playbook_that_it_was_accepted_with_also_when_that_is_gone() {
    let postbox = Postbox::start().await;
    let settings = format!("{SHOP}{}", settings(postbox.port, ""));
    let files = [("clinch.yml", settings.as_str()), ("templates/cart_recovery_v3.txt", MAIL)];
    let playbook = [("playbooks/cart-recovery.yaml", CART)];
    let mut world = World::unopened(&[&USUAL[..], &files, &playbook].concat()).await;
    world.open(NO_WORKER).await;
    let job = job(&send(&world, "1", ABANDONED, &cart("ada", "2026-08-01T10:40:00Z")).await);
    world.close().await;
    std::fs::remove_dir_all(world.workspace_dir().join("playbooks")).unwrap();
    world.open(Roles::ALL).await;
    world.wait(job, Word::Success).await;
    assert_eq!(postbox.mails().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_a_playbook_may_stop_where_another_job_has_set_the_key() {
    let postbox = Postbox::start().await;
    let stops = CART.replace("ttl_seconds: 2700", "ttl_seconds: 2700\n      on_exists: stop");
    let world = shop(&postbox, &[("playbooks/cart-recovery.yaml", &stops)]).await;
    for (id, word) in [("1", Word::Success), ("2", Word::Noop)] {
        let sent = send(&world, id, ABANDONED, &cart("ada", "2026-08-01T10:40:00Z")).await;
        world.wait(job(&sent), word).await;
    }
    assert_eq!(postbox.mails().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b8_p8_a_dead_letter_keeps_its_key_and_its_mail_goes_out_when_it_is_replayed() {
    let postbox = Postbox::start().await;
    let world = shop(&postbox, &[("playbooks/cart-recovery.yaml", CART)]).await;
    postbox.script("RCPT", &[Does::Says("550 5.1.1 unknown")]);
    let body = cart("ada", "2026-08-01T10:40:00Z");
    let dead = job(&send(&world, "1", ABANDONED, &body).await);
    let story = world.wait(dead, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::RejectedByTarget));
    world.wait(job(&send(&world, "2", ABANDONED, &body).await), Word::Noop).await;
    let answer = world.replay(dead, json!({"reason": "the mailbox is there now"})).await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
    let story = world.wait(dead, Word::Success).await;
    assert_eq!((postbox.mails().len(), story.effects[0].sends), (1, 1));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_an_event_may_be_recognised_by_what_is_computed_from_its_body_a_stretch_of_time_included() {
    let postbox = Postbox::start().await;
    let key = "key_from: ['{{ body.email | lower }}', '{{ body.timestamp | bucket(5) }}']";
    let source = format!("sources:\n  shop: {{verify: none, type: shopify.cart.abandoned, {key}}}\n");
    let settings = format!("{source}{}", settings(postbox.port, ""));
    let files = [
        ("clinch.yml", settings.as_str()),
        ("templates/cart_recovery_v3.txt", MAIL),
        ("playbooks/cart-recovery.yaml", CART),
    ];
    let world = World::new(&files).await;
    let body =
        |at: &str, email: &str| json!({"customer_id": "c", "store_id": 7, "timestamp": at, "email": email}).to_string();
    let first = world.deliver("/in/shop", &[], &body("2026-08-01T10:40:00Z", "ada@example.com")).await;
    world.wait(first.job(), Word::Success).await;
    // Another body under the same key: nobody signs here, so the sender is told.
    let other = world.deliver("/in/shop", &[], &body("2026-08-01T10:44:00Z", "ADA@example.com")).await;
    assert_eq!(other.status, 422, "{other:?}");
    let later = world.deliver("/in/shop", &[], &body("2026-08-01T10:45:00Z", "ada@example.com")).await;
    assert_ne!(later.job(), first.job());
    let refused = world.deliver("/in/shop", &[], r#"{"emial": "kanary", "timestamp": 1}"#).await;
    assert!(refused.status == 400 && refused.body.contains("did you mean `body.emial`?"), "{refused:?}");
    assert!(!refused.body.contains("kanary"), "{refused:?}");
}

const SECRET: &str = "shpss_of_the_shop";

/// The shop as it is: signed, with the retry policy of a test, and a mail server that may fail.
fn signed_shop(place: &Place, port: u16, more: &str) {
    let source = "sources:\n  shop: {verify: shopify, secret: '${secrets.SHOP}', types: {carts/abandoned: shopify.cart.abandoned}}\n";
    place.write("clinch.yml", &format!("{more}{source}{}", settings(port, "")));
    place.write("templates/cart_recovery_v3.txt", MAIL);
    let retry = "retry: {strategy: fixed, base_delay: 500ms, jitter: none, max_attempts: 100}\n";
    place.write("playbooks/cart-recovery.yaml", &format!("{CART}{retry}"));
}

/// As Shopify delivers it. `None`: there was no answer.
async fn deliver(server: &Server, id: &str, customer: &str) -> Option<JobId> {
    let body = cart(customer, "2026-08-01T10:40:00Z");
    let signature = BASE64.encode(mac(SECRET.as_bytes(), &body).as_ref());
    let request = client().post(format!("{}/in/shop", server.intake)).header("x-shopify-hmac-sha256", signature);
    let request = request.header("x-shopify-topic", "carts/abandoned").header("x-shopify-webhook-id", id);
    let (request, mut answer) = (request.body(body), None);
    // A node that has not heard of its database for a moment says so; senders send again.
    eventually("it is answered", PATIENCE, async || {
        answer = request.try_clone().unwrap().send().await.ok();
        answer.as_ref().is_none_or(|answer| answer.status() != 503)
    })
    .await;
    let answer = answer?;
    assert!(answer.status().is_success(), "{answer:?}");
    let told: Value = serde_json::from_slice(&answer.bytes().await.ok()?).unwrap();
    Some(job(&told))
}

const WAY: Way = Way { name: "aside", ..ONCE };

/// What goes wrong after the key was set and before the mail was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The process dies as soon as the key is on disk.
    Dies,
    /// The mail server will not have it for now.
    Refused,
    /// The mail server will not have it for now, and the process dies as soon as the next attempt is on disk.
    RefusedAndKilled,
}

const TROUBLES: [Trouble; 5] =
    [Trouble::Dies, Trouble::Refused, Trouble::Dies, Trouble::RefusedAndKilled, Trouble::Dies];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b8_p3_a_key_that_was_set_before_the_send_failed_or_the_process_died_does_not_keep_the_mail_back_in_100_rounds()
{
    const ROUNDS: usize = 100;
    let postbox = Postbox::start().await;
    let place = Place::new(&[WAY]).await;
    signed_shop(&place, postbox.port, "");
    let shop = ("SHOP", SECRET);
    let mut server = place.start_with(&[shop]).await;
    let (mut firsts, mut twins) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let customer = format!("customer-{round}");
        let (id, twin) = (format!("id-{round}"), format!("twin-{round}"));
        let trouble = TROUBLES[round % TROUBLES.len()];
        match trouble {
            Trouble::Dies => {
                server.kill9();
                server = place.start_with(&[shop, ("CLINCH_CRASH_AT", "after_set")]).await;
                deliver(&server, &id, &customer).await;
                assert_eq!(server.exited().await.signal(), Some(6), "{}", server.said());
                assert_eq!(mails_to(&postbox, &customer), 0, "it died before the mail");
                server = place.start_with(&[shop]).await;
            }
            Trouble::Refused => {
                postbox.script("RCPT", &[Does::Says("450 4.2.1 later")]);
                postbox.script("connect", &[Does::Leaves]);
                deliver(&server, &id, &customer).await;
            }
            Trouble::RefusedAndKilled => {
                server.kill9();
                server = place.start_with(&[shop, ("CLINCH_CRASH_AT", "after_retry")]).await;
                postbox.script("connect", &[Does::Says("421 4.3.2 later")]);
                deliver(&server, &id, &customer).await;
                assert_eq!(server.exited().await.signal(), Some(6), "{}", server.said());
                assert_eq!((place.jobs("retrying"), mails_to(&postbox, &customer)), (1, 0));
                server = place.start_with(&[shop]).await;
            }
        }
        // The webhook comes again, under its own id and under another.
        let first = deliver(&server, &id, &customer).await.expect("an answer");
        place.drained().await;
        let again = deliver(&server, &twin, &customer).await.expect("an answer");
        place.drained().await;
        assert_ne!(first, again, "{trouble:?}");
        firsts.push((first, customer));
        twins.push(again);
    }
    server.stop().await;
    place.verified();
    let books = place.books().await;
    // Nothing died or was cut off while a mail was on its way: so none may be in doubt.
    for (first, customer) in &firsts {
        let story = books.story(*first).await;
        let mails = mails_to(&postbox, customer);
        assert_eq!((story.row.word, mails), (Word::Success, 1), "{customer}: {story:#?}");
        assert_eq!(story.effects[0].sends, 1, "the key was set once");
    }
    for twin in &twins {
        assert_eq!(books.story(*twin).await.row.word, Word::Noop);
    }
}

fn mails_to(postbox: &Postbox, customer: &str) -> usize {
    let to = format!("{customer}@example.com");
    postbox.mails().into_iter().filter(|mail| mail.to == to).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b8_p3_the_same_holds_on_postgresql_when_another_node_takes_the_job_over() {
    const ROUNDS: usize = 5;
    let postbox = Postbox::start().await;
    let nodes = Nodes::on(shared_postgres(), &[WAY]).await;
    let encryption = std::fs::read_to_string(nodes.place.dir.path().join("workspace/clinch.yml")).unwrap();
    signed_shop(&nodes.place, postbox.port, &encryption);
    let start = async |name: &str, env: &[(&str, &str)]| {
        let directory = nodes.place.dir.path().join(name);
        let mut server = nodes.place.launch(&directory, &["--store", &nodes.url], env);
        server.opened().await;
        server
    };
    let mut firsts = Vec::new();
    for round in 0..ROUNDS {
        let (id, customer) = (format!("id-{round}"), format!("customer-{round}"));
        let mut dying = start(&format!("dying-{round}"), &[("SHOP", SECRET), ("CLINCH_CRASH_AT", "after_set")]).await;
        deliver(&dying, &id, &customer).await;
        assert_eq!(dying.exited().await.signal(), Some(6), "{}", dying.said());
        assert_eq!(mails_to(&postbox, &customer), 0, "it died before the mail");
        let mut heir = start(&format!("heir-{round}"), &[("SHOP", SECRET)]).await;
        let first = deliver(&heir, &id, &customer).await.expect("an answer");
        deliver(&heir, &format!("twin-{round}"), &customer).await.expect("an answer");
        nodes.drained().await;
        heir.kill9();
        firsts.push((first, customer));
    }
    nodes.verified();
    let books = nodes.books().await;
    for (first, customer) in &firsts {
        let story = books.story(*first).await;
        assert_eq!((story.row.word, mails_to(&postbox, customer)), (Word::Success, 1), "{customer}: {story:#?}");
    }
}
