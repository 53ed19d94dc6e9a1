//! Partners that throttle, fail and come back: circuits, limits, lookups.

use crate::process::eventually;
use crate::world::{FLOW, OK, PATIENCE, Reply, World, worker_with_step};
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use clinch_core::key::IdempotencyKey;
use serde_json::json;
use std::time::Duration;

/// The key under which the step of a job travels.
fn key_of(job: JobId) -> String {
    IdempotencyKey::of(job, "charge").as_str().to_string()
}

const BODY: &str = r#"{"order":7}"#;

/// The settings with an integration named `crm`, and the step that calls it.
fn partner(world: &str, settings: &str) -> (String, String) {
    let clinch = format!("integrations:\n  crm:\n    base_url: http://{world}\n{settings}");
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    (clinch, worker_with_step(step))
}

async fn world(settings: &str) -> World {
    // The target's address is known only when it is there.
    let (clinch, worker) = partner("TARGET", settings);
    World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_the_key_and_the_credentials_travel_as_the_integration_says() {
    let settings = "    key_header: X-Request-Id\n    headers: {X-Team: growth}\n    idempotency: header\n";
    let world = world(settings).await;
    world.post_and_wait("k", BODY, Word::Success).await;
    let call = &world.target.calls()[0];
    assert_eq!(call.headers.get("x-team").map(String::as_str), Some("growth"));
    assert!(call.headers.get("x-request-id").is_some_and(|key| !key.is_empty()));
    assert_eq!(call.headers.get("idempotency-key"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_p4_an_open_circuit_holds_jobs_back_at_no_cost_probes_and_closes() {
    let settings = "    breaker: {min_calls: 2, open_for: 5s, probes: 1}\n    idempotency: natural\n";
    let world = world(settings).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Status(503), OK]);
    let first = world.post("a", BODY).await.job();
    let second = world.post("b", BODY).await.job();
    // Two calls failed: the circuit is open, and whoever comes now waits and is charged nothing.
    eventually("the circuit opens", PATIENCE, async || {
        world.admin("/api/v1/integrations/crm").await.json()["integration"]["circuit"]["state"] == "open"
    })
    .await;
    let third = world.post("c", BODY).await.job();
    let waiting = world.wait(third, Word::Waiting).await;
    assert_eq!((waiting.row.waits, waiting.row.attempts), (Some(Waits::Circuit), 0));
    for job in [first, second, third] {
        world.wait(job, Word::Success).await;
    }
    assert_eq!(world.job(third).await.row.failures, 0);
    assert_eq!(world.target.calls().len(), 5, "two that failed, and each job once more");
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_circuit_state{integration="crm",state="closed"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"clinch_circuit_transitions_total{integration="crm",to="open"} 1"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_a_rate_is_kept_as_the_target_sees_it_and_waiting_costs_no_attempt() {
    // A call may be late by a small part of the window: of this one that is longer than a busy machine holds one up.
    const WINDOW: Duration = Duration::from_secs(8);
    let world = world("    rate: 10/8s\n    idempotency: natural\n").await;
    let mut jobs = Vec::new();
    for nth in 0..12 {
        jobs.push(world.post(&format!("k{nth}"), BODY).await.job());
    }
    for job in jobs {
        let story = world.wait(job, Word::Success).await;
        assert_eq!((story.row.failures, story.row.attempts), (0, 1));
    }
    let calls = world.target.calls();
    assert_eq!(calls.len(), 12);
    for (nth, call) in calls.iter().enumerate() {
        let within = calls[nth..].iter().take_while(|other| other.at - call.at < WINDOW).count();
        assert!(within <= 10, "{within} calls in a window");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_no_more_calls_at_once_than_the_integration_bears() {
    let world = world("    concurrency: 2\n    idempotency: natural\n").await;
    world.target.script("/charge", [Reply::Held, Reply::Held, OK]);
    let jobs =
        [world.post("a", BODY).await.job(), world.post("b", BODY).await.job(), world.post("c", BODY).await.job()];
    world.target.called(2).await;
    // Two are called, and the third comes back again and again without being called.
    let called: Vec<_> = world.target.calls().iter().map(|call| call.key().to_string()).collect();
    let third = jobs.into_iter().find(|job| !called.contains(&key_of(*job))).expect("one is not called");
    world.wait_until(third, "waiting for a place", |story| story.row.waits == Some(Waits::Limit)).await;
    assert_eq!(world.target.calls().len(), 2);
    world.target.release();
    world.target.release();
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
}

fn found(body: &'static str) -> Reply {
    Reply::With { status: 200, headers: &[], body }
}

const LOOKUP: &str =
    "    lookup: {url: \"/leads?key={{ step.key }}\", done: \"answer.status == 200 and answer.body.total > 0\"}\n";

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_lost_answer_is_looked_up_and_what_was_done_is_not_done_again() {
    let world = world(LOOKUP).await;
    world.target.script("/charge", [Reply::Drop]);
    world.target.script("/leads", [Reply::Status(503), found(r#"{"total": 1}"#)]);
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    assert_eq!(world.target.calls_at("/charge").len(), 1);
    let asked = world.target.calls_at("/leads");
    assert_eq!(asked.len(), 2, "an answer that says nothing is asked for again");
    let key = world.target.calls_at("/charge")[0].key().to_string();
    assert!(asked[0].path.ends_with(&format!("key={key}")), "{}", asked[0].path);
    assert!(matches!(&story.effects[0].state, EffectState::Done(receipt) if receipt.status == 200));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_a_lost_answer_is_looked_up_and_what_was_not_done_is_done() {
    let world = world(LOOKUP).await;
    world.target.script("/charge", [Reply::Drop, OK]);
    world.target.script("/leads", [found(r#"{"total": 0}"#)]);
    world.post_and_wait("k", BODY, Word::Success).await;
    let calls = world.target.calls_at("/charge");
    assert_eq!((calls.len(), calls[0].key()), (2, calls[1].key()));
    assert_eq!(world.target.calls_at("/leads").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_e2_a_lookup_does_not_use_up_the_moment_of_its_call() {
    // The question and the call have a moment each, too far apart to be waited for on the spot.
    let world = world(&format!("    rate: 60/min\n{LOOKUP}")).await;
    world.target.script("/charge", [Reply::Drop, OK]);
    world.target.script("/leads", [found(r#"{"total": 0}"#)]);
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    assert_eq!((world.target.calls_at("/charge").len(), world.target.calls_at("/leads").len()), (2, 1));
    assert_eq!((story.row.attempts, story.effects[0].sends), (2, 2));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_d2_a_lookup_that_is_not_let_in_says_nothing_and_nothing_is_done_again() {
    let world = world(LOOKUP).await;
    for status in [302, 401, 403, 407, 425] {
        world.target.script("/charge", [Reply::Drop]);
        world.target.script("/leads", [Reply::Status(status), found(r#"{"total": 1}"#)]);
        let before = world.target.calls_at("/charge").len();
        let story = world.post_and_wait(&format!("k{status}"), BODY, Word::Success).await;
        assert_eq!(world.target.calls_at("/charge").len(), before + 1, "{status}");
        let error = story.attempts[1].error.as_deref().unwrap_or_default();
        assert!(error.contains(&format!("to the lookup the target answered {status}")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_d2_what_a_gateway_says_of_a_target_is_a_lost_answer() {
    for status in [502, 504] {
        let asked = world(LOOKUP).await;
        asked.target.script("/charge", [Reply::Status(status)]);
        asked.target.script("/leads", [found(r#"{"total": 1}"#)]);
        asked.post_and_wait("k", BODY, Word::Success).await;
        assert_eq!((asked.target.calls_at("/charge").len(), asked.target.calls_at("/leads").len()), (1, 1), "{status}");

        let nobody = world("    idempotency: none\n").await;
        nobody.target.script("/charge", [Reply::Status(status)]);
        let story = nobody.post_and_wait("k", BODY, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::UnknownOutcome), 1), "{status}");
        assert_eq!(story.effects[0].state, EffectState::Unknown, "{status}");

        let keyed = world("    idempotency: header\n    honoured_for: 24h\n").await;
        keyed.target.script("/charge", [Reply::Status(status), OK]);
        keyed.post_and_wait("k", BODY, Word::Success).await;
        let calls = keyed.target.calls_at("/charge");
        assert_eq!((calls.len(), calls[0].key()), (2, calls[1].key()), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_which_answers_are_tried_again_is_the_integrations_to_say() {
    let world = world("    retry_on: [409]\n    idempotency: natural\n").await;
    world.target.script("/charge", [Reply::Status(409), OK]);
    world.post_and_wait("a", BODY, Word::Success).await;
    world.target.script("/charge", [Reply::Status(503)]);
    let story = world.post_and_wait("b", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn t083_t086_places_inside_are_not_called_and_redirects_not_followed() {
    let step = "  - name: charge\n    http: {url: \"http://{{ body.host }}/x\", idempotency: natural}\n";
    let world = World::new(&[("workers/charge.yml", &worker_with_step(step))]).await;
    let hosts = ["10.0.0.1", "169.254.169.254", "metadata.google.internal", "[::ffff:127.0.0.1]", "printer.local:631"];
    for (nth, host) in hosts.into_iter().enumerate() {
        let story = world.post_and_wait(&format!("k{nth}"), &format!(r#"{{"host":"{host}"}}"#), Word::Dead).await;
        assert_eq!(story.row.reason, Some(Reason::EgressBlocked), "{host}");
        assert!(story.row.error.is_some_and(|error| error.contains("egress")), "{host}");
        assert_eq!((story.row.attempts, &story.effects[0].state), (1, &EffectState::NotDone), "{host}");
    }
    assert_eq!(world.target.calls().len(), 0);
    let away = Reply::With { status: 302, headers: &[("location", "http://169.254.169.254/")], body: "" };
    world.target.script("/x", [away]);
    let body = format!(r#"{{"host":"{}"}}"#, world.target.address);
    let story = world.post_and_wait("away", &body, Word::Dead).await;
    assert_eq!((story.row.reason, world.target.calls().len()), (Some(Reason::RejectedByTarget), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_a_server_that_others_reach_calls_this_machine_only_where_it_is_allowed() {
    for (allow, word) in [("version: 1\n", Word::Dead), ("egress: {allow: [127.0.0.0/8]}\n", Word::Success)] {
        let world = World::listening("0.0.0.0:0", &[("clinch.yml", allow)]).await;
        let story = world.post_and_wait("k", BODY, word).await;
        assert_eq!(story.row.reason, (word == Word::Dead).then_some(Reason::EgressBlocked));
    }
}

const WRAPPED: &str = "  - name: lead
    http:
      url: http://TARGET/lead
      body: {email: '{{ body.email }}'}
      idempotency: wrap
      wrap_key: '{{ body.email }}'
";

async fn wrapped() -> World {
    World::new(&[("workers/charge.yml", &worker_with_step(WRAPPED))]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_target_without_keys_is_called_once_for_a_key_whichever_job_comes_first() {
    let world = wrapped().await;
    world.target.script("/lead", [Reply::With { status: 201, headers: &[], body: "{\"id\":7}" }]);
    for nth in 0..3 {
        let body = format!("{{\"id\":{nth},\"email\":\"a@example.com\"}}");
        let story = world.post_and_wait(&format!("k-{nth}"), &body, Word::Success).await;
        let EffectState::Done(receipt) = &story.effects[0].state else { panic!("not done: {:?}", story.effects) };
        assert_eq!((receipt.status, &receipt.body[..]), (201, &b"{\"id\":7}"[..]), "job {nth} has the first answer");
    }
    assert_eq!(world.target.calls_at("/lead").len(), 1);
    world.post_and_wait("k-9", "{\"id\":9,\"email\":\"b@example.com\"}", Word::Success).await;
    assert_eq!(world.target.calls_at("/lead").len(), 2, "another key is another call");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_b2_keys_of_two_tenants_never_meet_and_a_senders_key_is_that_of_its_route() {
    let flow = FLOW.replace("path: /hooks/orders", "path: /hooks/orders\n      tenant_from: header:X-Tenant");
    let other =
        flow.replace("name: orders\ntriggers", "name: refunds\ntriggers").replace("/hooks/orders", "/hooks/refunds");
    let by_default = WRAPPED.replace("      wrap_key: '{{ body.email }}'\n", "");
    // How many calls there are for the same key of two tenants, and then for the first tenant's on another route.
    for (step, calls) in [(WRAPPED, [1, 2, 2]), (by_default.as_str(), [1, 2, 3])] {
        let files = [
            ("flows/orders.yml", &*flow),
            ("flows/refunds.yml", &other),
            ("workers/charge.yml", &worker_with_step(step)),
        ];
        let world = World::new(&files).await;
        for ((path, tenant), calls) in
            [("/hooks/orders", "acme"), ("/hooks/orders", "globex"), ("/hooks/refunds", "acme")].into_iter().zip(calls)
        {
            let headers = [("idempotency-key", "k"), ("x-tenant", tenant)];
            let taken = world.deliver(path, &headers, "{\"email\":\"a@example.com\"}").await;
            world.wait(taken.job(), Word::Success).await;
            assert_eq!(world.target.calls_at("/lead").len(), calls, "{path} of {tenant}");
        }
        world.close_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_c12_what_is_called_for_each_of_a_list_is_called_once_for_its_key_wherever_it_stands() {
    let step = "  - name: lead
    foreach: body.leads
    http:
      url: http://TARGET/lead
      body: {email: '{{ item }}'}
      idempotency: wrap
";
    // Two jobs with the same two addresses, the other way round; without a key of its own each place is a call.
    for (key, calls) in [("      wrap_key: '{{ item }}'\n", 2), ("", 4)] {
        let world = World::new(&[("workers/charge.yml", &worker_with_step(&format!("{step}{key}")))]).await;
        world.post_and_wait("k-1", "{\"leads\":[\"a\",\"b\"]}", Word::Success).await;
        world.post_and_wait("k-2", "{\"leads\":[\"b\",\"a\"]}", Word::Success).await;
        assert_eq!(world.target.calls_at("/lead").len(), calls);
        world.close_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_t108_a_call_whose_answer_was_forgotten_is_not_made_again() {
    let world = wrapped().await;
    let body = "{\"id\":7,\"email\":\"a@example.com\"}";
    world.target.script("/lead", [Reply::With { status: 201, headers: &[], body }]);
    world.post_and_wait("k-1", "{\"id\":1,\"email\":\"a@example.com\"}", Word::Success).await;
    let (code, said) = world.clinch(&["forget", "--value", "a@example.com", "--reason", "request 4711"]).await;
    assert!(code == 0 && said.contains("1 answers that were kept for calls are erased"), "{code} {said}");
    let second = world.post_and_wait("k-2", "{\"id\":2,\"email\":\"a@example.com\"}", Word::Dead).await;
    assert_eq!(second.row.reason, Some(Reason::Unreadable));
    assert_eq!(world.target.calls_at("/lead").len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_p3_what_one_job_left_in_doubt_no_other_job_sends() {
    let world = wrapped().await;
    world.target.script("/lead", [Reply::Drop, OK]);
    let body = "{\"id\":1,\"email\":\"a@example.com\"}";
    let first = world.post_and_wait("k-1", body, Word::Dead).await;
    assert_eq!(first.effects[0].state, EffectState::Unknown);
    let second = world.post_and_wait("k-2", "{\"id\":2,\"email\":\"a@example.com\"}", Word::Dead).await;
    assert_eq!((first.row.reason, second.row.reason), (Some(Reason::UnknownOutcome), Some(Reason::UnknownOutcome)));
    assert_eq!(world.target.calls_at("/lead").len(), 1);
    // Who looked at the target says that it was not done; the other job then finds it done.
    let said = world.replay(first.row.id, json!({"reason": "looked", "unknown": "resend"})).await;
    assert_eq!(said.status, 200, "{said:?}");
    world.wait(first.row.id, Word::Success).await;
    world.replay(second.row.id, json!({"reason": "decided"})).await;
    world.wait(second.row.id, Word::Success).await;
    assert_eq!(world.target.calls_at("/lead").len(), 2);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_person_who_says_that_it_was_done_says_it_for_every_job_with_that_key() {
    let world = wrapped().await;
    world.target.script("/lead", [Reply::Drop, OK]);
    let first = world.post_and_wait("k-1", "{\"id\":1,\"email\":\"a@example.com\"}", Word::Dead).await;
    let second = world.post_and_wait("k-2", "{\"id\":2,\"email\":\"a@example.com\"}", Word::Dead).await;
    world.replay(first.row.id, json!({"reason": "it is in the CRM", "unknown": "skip"})).await;
    world.wait(first.row.id, Word::Success).await;
    world.replay(second.row.id, json!({"reason": "decided"})).await;
    world.wait(second.row.id, Word::Success).await;
    assert_eq!(world.target.calls_at("/lead").len(), 1, "nobody sent it again");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_an_event_cannot_lead_the_credentials_of_an_integration_elsewhere() {
    let step = "  - name: charge\n    http: {integration: crm, url: '{{ body.callback }}', body_from: body}\n";
    let world = World::unopened(&[]).await;
    let clinch = format!(
        "integrations:\n  crm:\n    base_url: http://{}\n    auth: {{bearer: '${{secrets.PATH}}'}}\n",
        world.target.address
    );
    drop(world);
    let world = World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await;
    let body = format!("{{\"callback\":\"http://{}/steal\"}}", world.target.address);
    let story = world.post_and_wait("k-1", &body, Word::Dead).await;
    let error = story.attempts[0].error.clone().unwrap();
    assert!(error.contains("leads away from integration `crm`"), "{error}");
    assert!(world.target.calls().is_empty(), "nothing was sent");
    world.close_and_verify().await;
}
