//! Policies: nobody gets what he has not agreed to, at night, or more often than he may.

use crate::nodes::{Nodes, shared_postgres};
use crate::process::{AGAIN, Books, PATIENCE, Pace, Place, Server, client, eventually};
use crate::world::{OK, Reply, World, check_absent, worker_with_step};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ADA: &str = "ada.lovelace@example.org";

const CLINCH: &str = "
integrations:
  texts:
    base_url: http://TARGET
    channel: sms
    idempotency: header
    message: {url: /send, body: {to: '{{ message.to }}', text: '{{ message.text }}'}}
  crm:
    base_url: http://TARGET
";

const SEND: &str = "  - name: remind
    send_template: {integration: texts, template: cart, to: '{{ body.email }}'}
";

/// Text messages under this policy, which is about their channel.
async fn world(policy: &str) -> World {
    world_with(policy, SEND).await
}

async fn world_with(policy: &str, steps: &str) -> World {
    world_of(CLINCH, policy, steps).await
}

async fn world_of(clinch: &str, policy: &str, steps: &str) -> World {
    let policies = format!("policies:\n  marketing:\n    channels: [sms]\n{policy}");
    World::new(&[
        ("clinch.yml", clinch),
        ("policies.yml", &policies),
        ("templates/cart.txt", "You left something.\n"),
        ("workers/charge.yml", &worker_with_step(steps)),
    ])
    .await
}

fn event(more: Value) -> String {
    let mut event = json!({ "email": ADA });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event.to_string()
}

async fn shown(world: &World, job: JobId) -> Value {
    world.admin(&format!("/api/v1/jobs/{job}")).await.json()
}

/// A time zone in which it is about this hour now.
pub fn zone_at(hour: i16) -> String {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    // Turned round as POSIX has it: `Etc/GMT-3` is east.
    match (hour - i16::from(now.hour())).rem_euclid(24) {
        east @ 0..=12 => format!("Etc/GMT-{east}"),
        west => format!("Etc/GMT+{}", 24 - west),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_who_has_not_agreed_gets_nothing_and_the_noop_says_by_which_rule_and_fact() {
    let world = world("    consent: step.channel in body.agreed\n").await;
    let no = world.post_and_wait("no", &event(json!({"agreed": ["email"]})), Word::Noop).await;
    assert_eq!((no.row.reason, no.row.attempts, no.effects.len()), (Some(Reason::PolicyDenied), 1, 0));
    let told = shown(&world, no.row.id).await;
    let refusal = json!({
        "policy": "marketing", "rule": "consent", "fact": "`step.channel in body.agreed` is false",
        "reason": "the contact has not agreed to it",
    });
    assert_eq!((&told["job"]["refusal"], &told["attempts"][0]["refusal"]), (&refusal, &refusal), "{told}");
    assert!(told["job"]["error"].as_str().unwrap().starts_with("step `remind`: policy `marketing`, rule `consent`"));
    assert_eq!(world.target.calls().len(), 0);
    world.post_and_wait("yes", &event(json!({"agreed": ["email", "sms"]})), Word::Success).await;
    assert_eq!(world.target.calls_at("/send").len(), 1);
    // Of whom nothing is known, nothing is done: a person looks at it.
    let unknown = world.post_and_wait("unknown", &event(json!({})), Word::Dead).await;
    assert_eq!(unknown.row.reason, Some(Reason::MissingData));
    let metrics = world.admin("/metrics").await;
    let line = r#"clinch_policy_refusals_total{policy="marketing",rule="consent"} 1"#;
    assert!(metrics.body.contains(line), "{}", metrics.body);
    check_absent("lovelace", &[metrics, world.admin("/api/v1/jobs").await]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_partner_who_knows_is_asked_each_time_also_when_the_job_is_replayed() {
    let consent = "    consent: {integration: crm, url: '/consents/{{ body.id }}', given: answer.body.sms}\n";
    let world = world(consent).await;
    let says = |body| Reply::With { status: 200, headers: &[], body };
    world.target.script("/consents/7", [Reply::Status(503), says(r#"{"sms":true}"#), says(r#"{"sms":false}"#)]);
    world.target.script("/send", [Reply::Status(404)]);
    // It does not answer at first: nothing is sent, and it is asked again.
    let job = world.post_and_wait("a", &event(json!({"id": 7})), Word::Dead).await;
    assert_eq!((job.row.reason, job.row.attempts), (Some(Reason::RejectedByTarget), 2));
    assert!(job.attempts[0].error.as_deref().unwrap().contains("whether the contact has agreed is not known"));
    assert_eq!((world.target.calls_at("/send").len(), world.target.calls_at("/consents/7").len()), (1, 2));
    // By now the contact has thought better of it.
    world.target.script("/send", [OK]);
    assert_eq!(world.replay(job.row.id, json!({"reason": "the number was corrected"})).await.status, 200);
    let again = world.wait(job.row.id, Word::Noop).await;
    assert_eq!(again.row.reason, Some(Reason::PolicyDenied));
    assert_eq!(
        shown(&world, job.row.id).await["job"]["refusal"]["fact"],
        "`crm` answered 200, and `answer.body.sms` is false"
    );
    assert_eq!(world.target.calls_at("/send").len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_e2_a_question_of_consent_does_not_use_up_the_moment_of_its_call() {
    // Questions and the call have a moment each, too far apart to be waited for on the spot.
    let clinch = CLINCH.replace("channel: sms", "channel: sms\n    rate: 60/min");
    let consent = "    consent: {integration: texts, url: /consents, given: answer.status == 200}\n";
    let asks = "  - name: may\n    policy: {use: marketing, channel: sms}\n";
    let world = world_of(&clinch, consent, &format!("{asks}{SEND}")).await;
    let job = world.post_and_wait("a", &event(json!({})), Word::Success).await;
    assert_eq!((job.row.attempts, job.row.failures), (1, 0));
    let paths: Vec<String> = world.target.calls().into_iter().map(|call| call.path).collect();
    assert_eq!(
        paths,
        ["/consents", "/consents", "/send"],
        "the step asks, the policy over the message asks, and it is sent"
    );
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_partner_that_lets_nobody_in_has_not_said_no() {
    let consent = "    consent: {integration: crm, url: /consents, given: answer.status == 200 and answer.body.sms}\n";
    let world = world(consent).await;
    for status in [302, 401, 403, 407, 425] {
        world.target.script(
            "/consents",
            [Reply::Status(status), Reply::With { status: 200, headers: &[], body: r#"{"sms":true}"# }],
        );
        let job = world.post_and_wait(&format!("k{status}"), &event(json!({})), Word::Success).await;
        assert_eq!((job.row.attempts, job.row.failures), (2, 1), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_g1_a_job_that_may_have_sent_something_is_no_noop_when_it_is_declined_later() {
    let world = world("    consent: {integration: crm, url: /consents, given: answer.body.sms}\n").await;
    let says = |body| Reply::With { status: 200, headers: &[], body };
    world.target.script("/consents", [says(r#"{"sms":true}"#), says(r#"{"sms":false}"#)]);
    world.target.script("/send", [Reply::Drop]);
    let job = world.post_and_wait("a", &event(json!({})), Word::Dead).await;
    assert_eq!((job.row.reason, job.row.attempts), (Some(Reason::UnknownOutcome), 2));
    assert!(job.row.error.as_deref().unwrap().ends_with("it was sent before, and what came of that is not known"));
    assert_eq!(job.effects[0].state, EffectState::Unknown);
    assert_eq!(world.target.calls_at("/send").len(), 1);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_in_the_night_of_the_contact_a_job_waits_at_no_cost_or_ends_without_it() {
    let quiet = |then: &str| {
        format!("    time_zone: '{{{{ body.zone }}}}'\n    quiet_hours: {{from: '21:00', to: '08:00', then: {then}}}\n")
    };
    let mut waiting = world(&quiet("wait")).await;
    waiting.post_and_wait("noon", &event(json!({"zone": zone_at(13)})), Word::Success).await;
    let night = waiting.post_and_wait("night", &event(json!({"zone": zone_at(2)})), Word::Waiting).await;
    assert_eq!((night.row.waits, night.row.attempts), (Some(Waits::QuietHours), 0));
    let due = night.row.run_at.unwrap().since(night.row.received_at).as_secs();
    assert!((4 * 3_600..7 * 3_600).contains(&due), "it is due in the morning, in {due} s");
    // A restart is no morning.
    waiting.close().await;
    waiting.open(Roles::ALL).await;
    waiting.wait(night.row.id, Word::Waiting).await;
    let nowhere = waiting.post_and_wait("nowhere", &event(json!({"zone": "Mars/Olympus"})), Word::Dead).await;
    assert_eq!(nowhere.row.reason, Some(Reason::BadPayload));
    assert_eq!(waiting.target.calls().len(), 1);
    waiting.close_and_verify().await;

    let declining = world(&quiet("decline")).await;
    let night = declining.post_and_wait("night", &event(json!({"zone": zone_at(2)})), Word::Noop).await;
    let told = shown(&declining, night.row.id).await;
    assert_eq!(told["job"]["refusal"]["rule"], "quiet_hours", "{told}");
    assert_eq!(told["job"]["refusal"]["fact"], "between 21:00 and 08:00", "{told}");
}

/// Days as long as anybody's test, so that none ends in the middle of it.
const TWO: &str = "    contact: '{{ body.email }}'\n    frequency: [{max: 2, per: 48h}]\n";

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_contact_gets_as_many_as_it_may_and_what_failed_does_not_count() {
    let mut world = world(TWO).await;
    // The target will not have the first.
    world.target.script("/send", [Reply::Status(404), OK]);
    world.post_and_wait("refused", &event(json!({})), Word::Dead).await;
    for nth in 0..2 {
        // However an address is written, it is the same contact.
        let body = event(json!({})).replace("ada", if nth == 0 { "Ada" } else { "ada" });
        world.post_and_wait(&format!("k{nth}"), &body, Word::Success).await;
    }
    let third = world.post_and_wait("third", &event(json!({})), Word::Noop).await;
    let told = shown(&world, third.row.id).await;
    assert_eq!(told["job"]["refusal"]["rule"], "frequency");
    assert_eq!(told["job"]["refusal"]["fact"], "2 of 2 per 2d");
    world.post_and_wait("bob", r#"{"email":"bob@example.org"}"#, Word::Success).await;
    // A restart gives nothing back.
    world.close().await;
    world.open(Roles::ALL).await;
    world.post_and_wait("fourth", &event(json!({})), Word::Noop).await;
    assert_eq!(world.target.calls_at("/send").len(), 1 + 2 + 1);
    // Whom nobody names nobody can count.
    let nobody = world.post_and_wait("nobody", r#"{"email":""}"#, Word::Dead).await;
    assert!(matches!(nobody.row.reason, Some(Reason::MissingData | Reason::BadPayload)), "{nobody:?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g1_a_step_may_ask_a_policy_without_being_counted() {
    let steps = format!(
        "  - name: may
    policy: {{use: marketing, channel: sms}}
{SEND}    if: steps.may.output.allowed
  - name: note
    if: not steps.may.output.allowed
    http: {{url: 'http://TARGET/note', body: {{why: '{{{{ steps.may.output.fact }}}}'}}, idempotency: header}}
"
    );
    let world = world_with(TWO, &steps).await;
    // Its own attempts are not in its way: the first send of each fails once.
    world.target.script("/send", [Reply::Status(503), OK, Reply::Status(503), OK]);
    for nth in 0..3 {
        world.post_and_wait(&format!("k{nth}"), &event(json!({})), Word::Success).await;
    }
    assert_eq!(world.target.calls_at("/send").len(), 4);
    let notes = world.target.calls_at("/note");
    assert_eq!(notes.iter().map(|note| note.body.as_str()).collect::<Vec<_>>(), [r#"{"why":"2 of 2 per 2d"}"#]);
}

/// Whether a partner says yes is asked in every attempt; what it answers is said here.
const ASKED: &str = "    consent: {integration: crm, url: /consents, given: answer.body.sms}\n";
const MAY: &str = "  - name: may\n    policy: {use: marketing, channel: sms}\n";
const YES: Reply = Reply::With { status: 200, headers: &[], body: r#"{"sms":true}"# };
const NO: Reply = Reply::With { status: 200, headers: &[], body: r#"{"sms":false}"# };
const UNUSABLE: Reply = Reply::With { status: 200, headers: &[], body: "{}" };

#[tokio::test(flavor = "multi_thread")]
async fn p3_g1_what_may_have_been_sent_is_not_passed_over_when_its_condition_does_not_hold_any_more() {
    let note = "  - name: note\n    if: not steps.may.output.allowed\n    http: {url: 'http://TARGET/note', body_from: body}\n";
    let one = format!(
        "{MAY}  - name: tell\n    if: steps.may.output.allowed\n    http: {{url: http://TARGET/tell, body_from: body, idempotency: header}}\n{note}"
    );
    let branch = format!(
        "{MAY}  - name: all\n    parallel:\n      - name: aside\n        if: steps.may.output.allowed\n        steps:\n          - name: tell\n            http: {{url: http://TARGET/tell, body_from: body, idempotency: header}}\n      - name: other\n        http: {{url: http://TARGET/other, body_from: body}}\n{note}"
    );
    let each = format!(
        "{MAY}  - name: tell\n    foreach: body.all\n    if: steps.may.output.allowed\n    http: {{url: http://TARGET/tell, body_from: body, idempotency: header}}\n{note}"
    );
    for (steps, line) in [(one, "tell"), (branch, "tell"), (each, "tell[0]")] {
        let world = world_with(ASKED, &steps).await;
        world.target.script("/consents", [YES, NO]);
        world.target.script("/tell", [Reply::Drop]);
        let dead = world.post_and_wait("k", &event(json!({"all": [1]})), Word::Dead).await;
        assert_eq!(dead.row.reason, Some(Reason::UnknownOutcome), "{steps}");
        let told = dead.effects.iter().find(|effect| effect.name == line).unwrap();
        assert_eq!((&told.state, told.sends), (&EffectState::Unknown, 1), "{steps}");
        assert_eq!(world.target.calls_at("/note").len(), 0, "{steps}");
        world.close_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c9_g1_p5_a_branch_that_failed_and_is_declined_later_leaves_sound_books() {
    let steps = "  - name: all
    parallel:
      - name: remind
        send_template: {integration: texts, template: cart, to: '{{ body.email }}'}
      - name: other
        http: {url: http://TARGET/other, body_from: body}
";
    let world = world_with(ASKED, steps).await;
    world.target.script("/consents", [YES, NO]);
    world.target.script("/send", [Reply::Status(503)]);
    let story = world.post_and_wait("k", &event(json!({})), Word::Success).await;
    let remind = story.effects.iter().find(|effect| effect.name == "remind").unwrap();
    assert_eq!((&remind.state, remind.sends), (&EffectState::NotDone, 1));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_what_is_undone_is_what_the_ledger_knows_and_not_how_far_the_last_attempt_came() {
    let reserve = "  - name: reserve\n    http: {url: http://TARGET/reserve, body_from: body}\n    compensate: {http: {url: http://TARGET/release}}\n";
    let then = |idempotency| {
        format!("  - name: then\n    http: {{url: http://TARGET/then, body_from: body, idempotency: {idempotency}}}\n")
    };
    // What was reserved is known although the last attempt did not come to it; and is left alone while something later is unknown.
    let ways = [
        (format!("{MAY}{reserve}{}", then("none")), Reply::Status(503), 1),
        (format!("{reserve}{MAY}{}", then("header")), Reply::Drop, 0),
    ];
    for (steps, answer, released) in ways {
        let world = world_with(ASKED, &steps).await;
        world.target.script("/consents", [YES, UNUSABLE]);
        world.target.script("/then", [answer]);
        let dead = world.post_and_wait("k", &event(json!({})), Word::Dead).await;
        assert_eq!(dead.row.reason, Some(Reason::MissingData), "{:?}", dead.row.error);
        let counts = ["/reserve", "/then", "/release"].map(|path| world.target.calls_at(path).len());
        assert_eq!(counts, [1, 1, released], "{steps}");
        world.close_and_verify().await;
    }
}

/// The workers of this place under a policy that lets each contact have two.
fn rule_over(place: &Place) {
    let file = place.dir.path().join("workspace/workers/again.yml");
    let worker = std::fs::read_to_string(&file).unwrap();
    let ruled = worker.replace("  - name: charge\n", "  - name: charge\n    policies: [marketing]\n");
    assert_ne!(worker, ruled);
    std::fs::write(file, ruled).unwrap();
    let two = "policies:\n  marketing:\n    contact: '{{ body.email }}'\n    frequency: [{max: 2, per: 48h}]\n";
    place.write("policies.yml", two);
}

async fn send(server: &Server, nth: usize) -> bool {
    let body = json!({ "id": format!("event-{nth}"), "email": ADA }).to_string();
    let request = client().post(server.hook(AGAIN.name)).header("idempotency-key", nth.to_string()).body(body);
    request.send().await.is_ok_and(|answer| answer.status() == 202)
}

/// As many as there were at the sink under keys of their own, and how the jobs ended.
async fn exactly_two_of(events: usize, place: &Place, books: Books) {
    let jobs = books.jobs().await;
    let ended = |word| jobs.values().filter(|row| row.word == word).count();
    assert_eq!((ended(Word::Success), ended(Word::Noop), jobs.len()), (2, events - 2, events));
    assert!(jobs.values().all(|row| row.word == Word::Success || row.reason == Some(Reason::PolicyDenied)));
    let effects: BTreeSet<String> = place.sink.calls().into_iter().map(|call| call.effect).collect();
    assert_eq!(effects.len(), 2, "{effects:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_of_fifty_events_at_once_on_two_nodes_a_contact_gets_exactly_two() {
    const EVENTS: usize = 50;
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    rule_over(&nodes.place);
    let (first, second) = (nodes.start().await, nodes.start().await);
    let sending = (0..EVENTS).map(|nth| send(if nth % 2 == 0 { &first } else { &second }, nth));
    assert!(futures_util::future::join_all(sending).await.into_iter().all(|accepted| accepted));
    nodes.drained().await;
    exactly_two_of(EVENTS, &nodes.place, nodes.books().await).await;
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_contact_gets_exactly_two_though_a_node_is_killed_in_the_middle() {
    const EVENTS: usize = 50;
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    rule_over(&nodes.place);
    let (mut first, second) = (nodes.start().await, nodes.start().await);
    nodes.place.sink.pace(Pace::Held);
    assert!(send(&first, 0).await);
    nodes.place.sink.called(1).await;
    let sending = (1..EVENTS).map(|nth| send(&second, nth));
    assert!(futures_util::future::join_all(sending).await.into_iter().all(|accepted| accepted));
    nodes.place.sink.called(2).await;
    first.kill9();
    nodes.place.sink.pace(Pace::Prompt);
    // Who could not ask the database for a while begins anew to listen for the others.
    eventually("what the dead node had is given back", 3 * PATIENCE, async || nodes.jobs("running").await == 0).await;
    nodes.drained().await;
    exactly_two_of(EVENTS, &nodes.place, nodes.books().await).await;
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_crash_at_any_point_neither_gives_a_contact_more_nor_takes_what_it_may_have() {
    const EVENTS: usize = 6;
    for point in ["after_admit", "after_intend", "after_send"] {
        let place = Place::new(&[AGAIN]).await;
        rule_over(&place);
        let mut server = place.start_with(&[("CLINCH_CRASH_AT", point)]).await;
        // The answer to the first may be lost with the server.
        send(&server, 0).await;
        server.exited().await;
        assert!(server.said().contains(point), "{point}");
        let server = place.start().await;
        for nth in 0..EVENTS {
            assert!(send(&server, nth).await, "{point}");
        }
        place.drained().await;
        server.stop().await;
        place.verified();
        exactly_two_of(EVENTS, &place, place.books().await).await;
    }
}
