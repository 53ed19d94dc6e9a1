//! Alerts, from a fault to the people who are told: over real sockets, on the house's own schedule.

use crate::console_browser::{Browser, check_says};
use crate::messages::{Does, Postbox};
use crate::nodes::{Nodes, postgres, shared_postgres};
use crate::process::{AGAIN, ONCE, Place, Provider, client, eventually};
use crate::world::{Call, Reply, Target, World};
use aws_lc_rs::hmac;
use clinch::app::Roles;
use clinch::carrier::CARRY_MAX;
use clinch_core::job::Word;
use clinch_store::read::AuditFilter;
use clinch_testbed::Stop;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A notice is looked for once a second, and an end is believed after some.
const PATIENCE: Duration = Duration::from_secs(60);
const BODY: &str = r#"{"order":7,"email":"ada.canary@example.com"}"#;
const SIGNING: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A webhook at the target, without a secret.
const HOOK: &str = "alerts:\n  channels:\n    hook: {webhook: 'http://TARGET/hook'}\n";

/// All alerts that a webhook was told, notice by notice: name and status. One that was tried again is the same notice.
fn told(calls: &[Call]) -> Vec<Vec<(String, String)>> {
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let notice = |call: &Call| {
        let notice: Value = serde_json::from_str(&call.body).unwrap();
        let alerts = notice["alerts"].as_array().unwrap().iter();
        alerts.map(|alert| (text(&alert["name"]), text(&alert["status"]))).collect()
    };
    let mut known = BTreeSet::new();
    calls.iter().filter(|call| known.insert(call.headers["webhook-id"].clone())).map(notice).collect()
}

fn count(calls: &[Call], name: &str, status: &str) -> usize {
    told(calls).into_iter().flatten().filter(|(known, word)| known == name && word == status).count()
}

async fn until_told(target: &Target, name: &str, status: &str) {
    let what = format!("{name} is told to be {status}");
    eventually(&what, PATIENCE, async || count(&target.calls_at("/hook"), name, status) > 0).await;
}

/// The same key with another body: an alert at once.
async fn conflict(world: &World, key: &str) {
    world.post(key, BODY).await;
    assert_eq!(world.post(key, r#"{"order":8}"#).await.status, 422);
}

const CONFLICT: &str = "ClinchKeyConflicts:orders";

#[tokio::test(flavor = "multi_thread")]
async fn h4_an_outage_of_a_partner_reaches_people_over_every_channel_and_so_does_its_end() {
    let (target, postbox, place) = (Target::start().await, Postbox::start().await, Place::new(&[AGAIN]).await);
    let (hook, sink) = (format!("http://{}/slack-hook", target.address), place.sink.address);
    place.write(
        "clinch.yml",
        &format!(
            "integrations:
  crm: {{base_url: 'http://{sink}', idempotency: header, breaker: {{window: 5s, min_calls: 5, open_for: 1s}}}}
  chat: {{base_url: 'http://{0}', message: slack, auth: {{bearer: '${{secrets.ALERT_CHAT}}'}}}}
  mail: {{smtp: 'smtp://127.0.0.1:{1}', tls: none, from: Clinch <clinch@shop.example>}}
alerts:
  console: https://clinch.example.com
  channels:
    ops: {{slack: '${{secrets.ALERT_HOOK}}'}}
    team: {{integration: chat, to: '#incidents'}}
    mail: {{integration: mail, to: oncall@shop.example}}
    hook: {{webhook: 'http://{0}/hook', secret: '${{secrets.ALERT_SIGNING}}'}}
    pager: {{pagerduty: '${{secrets.ALERT_PAGER}}', url: 'http://{0}/v2/enqueue'}}
",
            target.address, postbox.port
        ),
    );
    let worker = "version: 1
name: again-worker
consumes: {queue: again}
retry: {strategy: fixed, base_delay: 200ms, jitter: none, max_attempts: 1000}
run:
  - name: charge
    http: {integration: crm, url: /again/charge, body_from: body, headers: {x-node: '${secrets.NODE}'}}
";
    place.write("workers/again.yml", worker);
    let env =
        [("ALERT_CHAT", "xoxb"), ("ALERT_HOOK", hook.as_str()), ("ALERT_SIGNING", SIGNING), ("ALERT_PAGER", "pd-key")];
    let server = place.start_with(&env).await;
    place.sink.answer_with(|_| 503);
    let provider = Provider::with_padding(AGAIN, 10);
    let began = Instant::now();
    for _ in 0..10 {
        provider.deliver(&server.intake).await;
    }
    let at = |path: &str| target.calls_at(path);
    let name = |call: &Call| call.body.contains("ClinchErrorRate:crm") || call.body.contains("ClinchCircuitOpen:crm");
    eventually("everybody is told", PATIENCE, async || {
        let paths = ["/slack-hook", "/api/chat.postMessage", "/hook", "/v2/enqueue"];
        paths.iter().all(|path| at(path).iter().any(name)) && !postbox.mails().is_empty()
    })
    .await;
    let first = target.calls().into_iter().filter(name).map(|call| call.at).min().unwrap();
    println!("first signal {:?} after the first event of the outage was sent", first - began);

    // Each says what to run first and where the runbook is, in the words of its channel.
    let command = "clinch integrations show crm";
    let runbook = "https://clinch.example.com/runbooks/Clinch";
    let mail = postbox.mails()[0].clone();
    assert_eq!(mail.to, "oncall@shop.example");
    let everything: Vec<String> = target
        .calls()
        .into_iter()
        .map(|call| call.body)
        .chain(postbox.mails().into_iter().map(|mail| mail.text))
        .collect();
    for said in &everything {
        let unfolded = said.replace("=\r\n", "").replace("=3D", "=");
        assert!(unfolded.contains(command) && unfolded.contains(runbook), "{said}");
    }
    assert!(mail.text.contains("Subject: [clinch] "), "{}", mail.text);
    assert_eq!(at("/api/chat.postMessage")[0].headers["authorization"], "Bearer xoxb");
    let message: Value = serde_json::from_str(&at("/api/chat.postMessage")[0].body).unwrap();
    assert_eq!(message["channel"], "#incidents");

    // The webhook is signed as Standard Webhooks says.
    let signed = &at("/hook")[0];
    let content = format!("{}.{}.{}", signed.headers["webhook-id"], signed.headers["webhook-timestamp"], signed.body);
    let key =
        hmac::Key::new(hmac::HMAC_SHA256, &BASE64.decode(SIGNING.trim_start_matches("whsec_").as_bytes()).unwrap());
    let expected = format!("v1,{}", BASE64.encode(hmac::sign(&key, content.as_bytes()).as_ref()));
    assert_eq!(signed.headers["webhook-signature"], expected);

    // The partner is back: the end is told once to everybody who was told.
    place.sink.answer_with(|_| 200);
    // However long it was down: most calls of the last minute go well again, and their share keeps no alert alive.
    for _ in 0..100 {
        provider.deliver(&server.intake).await;
    }
    eventually("everybody is told that it is over", PATIENCE, async || {
        let calls = at("/hook");
        let firing = told(&calls).into_iter().flatten().filter(|(_, word)| word == "firing");
        let names: Vec<String> = firing.map(|(name, _)| name).collect();
        let over = |call: &Call| call.body.contains("RESOLVED");
        names.iter().all(|name| count(&calls, name, "resolved") == 1)
            && ["/slack-hook", "/api/chat.postMessage"].iter().all(|path| at(path).iter().any(over))
            && postbox.mails().iter().any(|mail| mail.text.contains("RESOLVED"))
    })
    .await;
    let events: Vec<Value> = at("/v2/enqueue").iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect();
    let (began, ended): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["event_action"] == "trigger");
    assert!(began.iter().all(|event| event["routing_key"] == "pd-key" && event["links"][0]["text"] == "Runbook"));
    eventually("PagerDuty is told the end of each", PATIENCE, async || {
        let events: Vec<Value> =
            at("/v2/enqueue").iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect();
        let ends = |key: &Value| events.iter().any(|one| one["event_action"] == "resolve" && one["dedup_key"] == *key);
        began.iter().all(|event| ends(&event["dedup_key"]))
    })
    .await;
    drop(ended);

    // How long it took is measured; nothing of an event is in any notice.
    let metrics = client().get(format!("{}/metrics", server.admin)).send().await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains("clinch_time_to_first_signal_seconds_count 1") || metrics.contains("_signal_seconds_count 2"),
        "{metrics}"
    );
    assert!(metrics.contains(r#"clinch_notifications_total{channel="hook",outcome="sent"}"#));
    let ids: Vec<String> = provider.acknowledged().into_keys().collect();
    for said in &everything {
        assert!(!ids.iter().any(|id| said.contains(id)), "an event's id is in a notice: {said}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_what_comes_while_a_channel_is_busy_is_in_one_notice_and_nothing_is_told_twice() {
    let rules = "  rules: {ClinchDeadLettersGrowing: {limit: 0}}\n";
    let world = World::new(&[("clinch.yml", &format!("{HOOK}{rules}"))]).await;
    world.target.script("/hook", [Reply::Held]);
    conflict(&world, "k-1").await;
    eventually("the first notice is on its way", PATIENCE, async || !world.target.calls_at("/hook").is_empty()).await;
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("k-2", BODY, Word::Dead).await;
    world.target.script("/charge", [Reply::Status(401)]);
    world.post_and_wait("k-3", BODY, Word::Dead).await;
    let firing = async || world.admin("/api/v1/alerts").await.json()["alerts"].as_array().unwrap().len();
    eventually("three alerts fire", PATIENCE, async || firing().await == 3).await;
    // Who was not answered for some time may have tried again, and hangs there too.
    world.target.script("/hook", [Reply::Status(200)]);
    for _ in 0..10 {
        world.target.release();
    }
    let dead = |reason: &str| format!("ClinchDeadLettersGrowing:orders,{reason}");
    until_told(&world.target, &dead("auth_failed"), "firing").await;
    let notices = told(&world.target.calls_at("/hook"));
    assert_eq!(notices.len(), 2, "{notices:?}");
    let mut second: Vec<&String> = notices[1].iter().map(|(name, _)| name).collect();
    second.sort();
    assert_eq!(second, [&dead("auth_failed"), &dead("rejected_by_target")]);
    // More of the same is no news.
    conflict(&world, "k-4").await;
    world.target.script("/charge", [Reply::With { status: 200, headers: &[], body: "{}" }]);
    world.post_and_wait("k-5", BODY, Word::Success).await;
    let history = world.admin("/api/v1/alerts/history").await.json();
    assert_eq!(history["alerts"].as_array().unwrap().len(), 3, "{history}");
    assert_eq!(count(&world.target.calls_at("/hook"), CONFLICT, "firing"), 1);
    // P9: nothing of an event is in a notice, in the API or on the pages.
    let pages = [world.admin("/api/v1/alerts").await.body, world.admin("/api/v1/alerts/history").await.body];
    let notices = world.target.calls_at("/hook").into_iter().map(|call| call.body);
    for text in notices.chain(pages) {
        assert!(!text.contains("canary") && !text.contains("k-2"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_a_silence_is_on_record_hides_nothing_and_ends() {
    let rules = "  rules: {ClinchDeadLettersGrowing: {limit: 0}}\n";
    let world = World::new(&[("clinch.yml", &format!("{HOOK}{rules}"))]).await;
    let silence = ["alerts", "silence", CONFLICT, "--for", "2h", "--reason", "we know, INC-7"];
    let (code, said) = world.clinch(&silence).await;
    assert_eq!(code, 0, "{said}");
    conflict(&world, "k-1").await;
    eventually("it fires", PATIENCE, async || {
        world.admin("/api/v1/alerts").await.json()["alerts"][0]["name"] == CONFLICT
    })
    .await;
    let listed = world.admin("/api/v1/alerts").await.json();
    assert_eq!(
        (&listed["alerts"][0]["silenced"], &listed["silences"][0]["reason"]),
        (&json!(true), &json!("we know, INC-7"))
    );
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("k-2", BODY, Word::Dead).await;
    until_told(&world.target, "ClinchDeadLettersGrowing:orders,rejected_by_target", "firing").await;
    assert_eq!(count(&world.target.calls_at("/hook"), CONFLICT, "firing"), 0, "nobody wants to hear of it");
    let (code, said) = world.clinch(&["alerts", "unsilence", CONFLICT, "--reason", "over"]).await;
    assert_eq!(code, 0, "{said}");
    until_told(&world.target, CONFLICT, "firing").await;
    let rows = world.app().house.store.audit(AuditFilter::last(2)).await.unwrap();
    let acts: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.object.as_str(), row.reason.as_str())).collect();
    assert_eq!(acts, [("alert.unsilence", CONFLICT, "over"), ("alert.silence", CONFLICT, "we know, INC-7")]);
    let (code, _) = world.clinch(&["alerts", "silence", "ClinchNothing", "--for", "2h", "--reason", "x"]).await;
    assert_eq!(code, 2, "there is no such rule");
    world
        .command("/api/v1/alerts/silences", json!({"name": CONFLICT, "until": "90d", "reason": "x"}))
        .await
        .check_problem(400, "bad-body");
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_a_restart_tells_nothing_twice() {
    let rules = "  rules: {ClinchDeadLetterOld: {limit: 1s}}\n";
    let mut world = World::new(&[("clinch.yml", &format!("{HOOK}{rules}"))]).await;
    world.target.script("/charge", [Reply::Status(422)]);
    world.post_and_wait("k-1", BODY, Word::Dead).await;
    until_told(&world.target, "ClinchDeadLetterOld:orders", "firing").await;
    let is_written = async || {
        let alert = &world.admin("/api/v1/alerts").await.json()["alerts"][0];
        alert["told"][0]["how"] == "sent"
    };
    eventually("that it was told is written down", PATIENCE, is_written).await;
    world.close().await;
    world.open(Roles::ALL).await;
    conflict(&world, "k-2").await;
    until_told(&world.target, CONFLICT, "firing").await;
    let listed = world.admin("/api/v1/alerts").await.json();
    assert!(
        listed["alerts"].as_array().unwrap().iter().any(|alert| alert["rule"] == "ClinchDeadLetterOld"),
        "{listed}"
    );
    assert_eq!(count(&world.target.calls_at("/hook"), "ClinchDeadLetterOld:orders", "firing"), 1);
    let history = world.admin("/api/v1/alerts/history").await.json();
    let old = history["alerts"].as_array().unwrap().iter().filter(|alert| alert["rule"] == "ClinchDeadLetterOld");
    assert_eq!(old.count(), 1, "{history}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_of_two_nodes_one_tells() {
    let target = Target::start().await;
    let nodes = Nodes::on(shared_postgres(), &[ONCE, AGAIN]).await;
    let settings = std::fs::read_to_string(nodes.place.dir.path().join("workspace/clinch.yml")).unwrap();
    let alerts = HOOK.replace("TARGET", &target.address.to_string());
    let rules = "  rules: {ClinchDeadLetterOld: {limit: 1s}, ClinchDeadLettersGrowing: {limit: 1000}}\n";
    nodes.place.write("clinch.yml", &format!("{settings}{alerts}{rules}"));
    nodes.place.sink.answer_with(|_| 422);
    let (one, other) = (nodes.start().await, nodes.start().await);
    for (way, server) in [(AGAIN, &one), (ONCE, &other)] {
        let provider = Provider::new(way);
        provider.deliver(&server.intake).await;
        provider.settle(&server.intake).await;
        let name = format!("ClinchDeadLetterOld:{}", way.name);
        until_told(&target, &name, "firing").await;
    }
    // Both have looked at both by now, and each was told once.
    for way in [AGAIN, ONCE] {
        assert_eq!(count(&target.calls_at("/hook"), &format!("ClinchDeadLetterOld:{}", way.name), "firing"), 1);
    }
    let books = nodes.books().await;
    // A busy machine may have given reason for others.
    let rows = books.0.alerts(clinch_store::Alerts::Newest(10)).await.unwrap();
    assert_eq!(rows.iter().filter(|row| row.name.starts_with("ClinchDeadLetterOld:")).count(), 2, "{rows:?}");
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_that_the_store_cannot_write_is_told_without_it_and_written_down_when_it_is_back() {
    let (target, database) = (Target::start().await, postgres());
    let nodes = Nodes::on(&database, &[AGAIN]).await;
    let settings = std::fs::read_to_string(nodes.place.dir.path().join("workspace/clinch.yml")).unwrap();
    let alerts = HOOK.replace("TARGET", &target.address.to_string());
    nodes.place.write("clinch.yml", &format!("{settings}{alerts}"));
    let server = nodes.start().await;
    tokio::task::block_in_place(|| database.stop(Stop::Fast));
    until_told(&target, "ClinchStoreFailing", "firing").await;
    tokio::task::block_in_place(|| database.start_again());
    until_told(&target, "ClinchStoreFailing", "resolved").await;
    let books = nodes.books().await;
    eventually("it is written down", PATIENCE, async || {
        let rows = books.0.alerts(clinch_store::Alerts::Newest(10)).await.unwrap();
        rows.iter().any(|row| &*row.name == "ClinchStoreFailing" && row.ended_at.is_some())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_channels_that_hang_or_refuse_hold_up_nothing_and_are_counted() {
    let postbox = Postbox::start().await;
    let settings = format!(
        "integrations:
  chat: {{base_url: 'http://TARGET', message: slack}}
  mail: {{smtp: 'smtp://127.0.0.1:{}', tls: none, from: Clinch <clinch@shop.example>}}
alerts:
  channels:
    slack: {{integration: chat, to: '#incidents'}}
    mail: {{integration: mail, to: oncall@shop.example}}
    gone: {{webhook: 'http://TARGET/gone'}}
    hook: {{webhook: 'http://TARGET/hook'}}
",
        postbox.port
    );
    let world = World::new(&[("clinch.yml", &settings)]).await;
    postbox.script("connect", &[Does::Nothing; 8]);
    world.target.script("/api/chat.postMessage", [Reply::Silence]);
    world.target.script("/gone", [Reply::Status(404)]);
    conflict(&world, "k-0").await;
    until_told(&world.target, CONFLICT, "firing").await;
    let counted = async |channel: &str, outcome: &str| {
        let metrics = world.admin_as(None, "/metrics").await.body;
        let series = format!(r#"clinch_notifications_total{{channel="{channel}",outcome="{outcome}"}} "#);
        metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse::<u64>().ok()).unwrap()
    };
    eventually("what was told is counted", PATIENCE, async || counted("hook", "sent").await == 1).await;
    // While two channels hang, all work is done.
    let mut jobs = Vec::new();
    for nth in 1..=200 {
        jobs.push(world.post(&format!("k-{nth}"), BODY).await.job());
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    // One notice at a time: it is tried again only when the try before was given up.
    let tries = world.target.calls_at("/api/chat.postMessage");
    let is_apart = |pair: &[Call]| pair[1].at - pair[0].at > CARRY_MAX / 2;
    assert!(!tries.is_empty() && tries.windows(2).all(is_apart), "{tries:#?}");
    assert!(tries.iter().all(|one| one.body == tries[0].body), "{tries:#?}");
    assert!(postbox.mails().is_empty());
    eventually("what was refused is given up and counted", PATIENCE, async || counted("gone", "dropped").await == 1)
        .await;
    assert_eq!((count(&world.target.calls_at("/hook"), CONFLICT, "firing"), counted("slack", "sent").await), (1, 0));
    eventually("tries that ran out are counted", PATIENCE, async || {
        counted("slack", "error").await > 0 && counted("mail", "error").await > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_a_source_that_falls_silent_is_told_and_so_is_its_return() {
    let sources = "sources: {shop: {verify: none, key_from: 'header:Idempotency-Key', silence: 5s}}\n";
    let flow =
        "version: 1\nname: shop-orders\ntriggers: [{source: shop}]\nsteps: [{name: enqueue, queue: {name: orders}}]\n";
    let world = World::new(&[("clinch.yml", &format!("{sources}{HOOK}")), ("flows/shop.yml", flow)]).await;
    until_told(&world.target, "ClinchSourceSilent:shop", "firing").await;
    let mut nth = 0;
    eventually("it is told that it is back", PATIENCE, async || {
        nth += 1;
        world.deliver("/in/shop", &[("idempotency-key", &format!("k-{nth}"))], BODY).await;
        count(&world.target.calls_at("/hook"), "ClinchSourceSilent:shop", "resolved") == 1
    })
    .await;
    let metrics = world.admin_as(None, "/metrics").await.body;
    assert!(metrics.contains(r#"clinch_source_silence_limit_seconds{source="shop"} 5"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h5_an_objective_that_is_missed_fast_is_told_and_what_is_too_slow_is_what_it_says() {
    let world = World::new(&[("clinch.yml", &format!("slo: {{end_to_end: 7s, target: 90%}}\n{HOOK}"))]).await;
    world.target.script("/charge", [Reply::Status(422)]);
    let mut jobs = Vec::new();
    for nth in 0..12 {
        jobs.push(world.post(&format!("k-{nth}"), BODY).await.job());
    }
    for job in jobs {
        world.wait(job, Word::Dead).await;
    }
    until_told(&world.target, "ClinchObjectiveBurning", "firing").await;
    let (code, said) = world.clinch(&["alerts", "ls", "-o", "json"]).await;
    assert_eq!(code, 0, "{said}");
    let listed: Value = serde_json::from_str(&said).unwrap();
    let alert =
        listed["alerts"].as_array().unwrap().iter().find(|one| one["rule"] == "ClinchObjectiveBurning").unwrap();
    assert_eq!((&alert["severity"], &alert["command"]), (&json!("critical"), &json!("clinch top")), "{alert}");
    assert!(alert["description"].as_str().unwrap().contains("miss the objective 10.0 times as fast"), "{alert}");
    // It burns slowly, too; who knows the worse is not told the lesser.
    eventually("it is found", PATIENCE, async || {
        world.clinch(&["alerts", "ls"]).await.1.contains("ClinchObjectiveBurningSlowly")
    })
    .await;
    assert_eq!(count(&world.target.calls_at("/hook"), "ClinchObjectiveBurningSlowly", "firing"), 0);
    let (_, rules) = world.clinch(&["alerts", "rules", "-o", "plain"]).await;
    let slow = rules.lines().find(|line| line.starts_with("ClinchEndToEndSlow")).unwrap();
    assert!(slow.contains("\t7s\t"), "{slow}");
    let directory = world.workspace_dir().display().to_string();
    let (_, printed) = world.clinch(&["alerts", "print", "--workspace", &directory]).await;
    assert!(printed.contains("(rate(clinch_job_end_to_end_seconds_bucket[15m]))) > 7\n"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_the_console_shows_an_alert_once_with_its_runbook_and_the_first_command() {
    let settings = "integrations: {crm: {base_url: 'http://TARGET', idempotency: header, breaker: {window: 5s, min_calls: 3, open_for: 60s}}}\n";
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    let worker = crate::world::worker_with_step(step).replace("max_attempts: 3", "max_attempts: 100");
    let own = "# Ours: the CRM is away\n\n## Do this\n1. Call Maya, then `clinch integrations show crm`.\n";
    let files = [("clinch.yml", settings), ("workers/charge.yml", &worker), ("runbooks/ClinchCircuitOpen.md", own)];
    let world = World::new(&files).await;
    world.target.script("/charge", [Reply::Status(503)]);
    world.post("k-1", BODY).await;
    let browser = Browser::of(&world).await;
    eventually("the overview shows it", PATIENCE, async || browser.page("/").await.contains("ClinchCircuitOpen:crm"))
        .await;
    let page = browser.page("/").await;
    check_says(
        &page,
        &[
            "WARN ClinchCircuitOpen:crm",
            "href=\"/runbooks/ClinchCircuitOpen\"",
            "data-copy=\"clinch integrations show crm\"",
        ],
    );
    assert!(!page.contains("<b>Circuit open</b>"), "what an alert says is not said again: {page}");
    let page = browser.page("/alerts").await;
    check_says(
        &page,
        &["ClinchCircuitOpen:crm", "Ours: the CRM is away", "Call Maya, then", "Nobody is told: clinch.yml has no"],
    );
    check_says(&browser.page("/runbooks/ClinchCircuitOpen").await, &["Ours: the CRM is away"]);
    check_says(&browser.page("/runbooks").await, &["ClinchQueueStalled", "auth_failed"]);
    let told = world.admin("/api/v1/runbooks/ClinchCircuitOpen").await.json();
    assert_eq!((&told["own"], told["text"].as_str().unwrap().contains("Maya")), (&json!(true), true));
    world.admin("/api/v1/runbooks/..%2Fclinch").await.check_problem(404, "not-found");
    let (code, said) = world.clinch(&["alerts", "ls"]).await;
    assert!(
        code == 0 && said.contains("ClinchCircuitOpen:crm") && said.contains("clinch integrations show crm"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn h4_a_channel_is_tried_on_demand_and_says_why_it_fails() {
    let world = World::new(&[("clinch.yml", &format!("{HOOK}    bad: {{webhook: 'http://TARGET/bad'}}\n"))]).await;
    world.target.script("/bad", [Reply::Status(500)]);
    let (code, said) = world.clinch(&["alerts", "test", "hook"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(told(&world.target.calls_at("/hook")), [[("ClinchTest:hook".to_string(), "firing".to_string())]]);
    let (code, said) = world.clinch(&["alerts", "test", "bad"]).await;
    assert!(code == 1 && said.contains("it answered 500"), "{said}");
    let (code, _) = world.clinch(&["alerts", "test", "nobody"]).await;
    assert_eq!(code, 3);
}

#[test]
fn h4_every_metric_that_a_printed_rule_names_is_one_that_clinch_has() {
    use clinch::telemetry::Metrics;
    use clinch_core::alert::{RULES, prometheus};
    for rule in RULES {
        let named = Metrics::named_in(&prometheus::expr(rule, rule.limit));
        assert!(!named.is_empty() || rule.name == "ClinchDown", "{rule:?} names no metric");
        for metric in named {
            assert!(Metrics::has(&metric), "{rule:?}: there is no {metric}");
        }
    }
}
