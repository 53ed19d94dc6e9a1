//! What happens when a call does not work: again later, never again, or a person must say.

use crate::world::{Call, FLOW, OK, Reply, WORKER, World, worker_with_step};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use clinch_store::read::JobStory;
use std::time::Duration;

const BODY: &str = r#"{"order":7}"#;

/// From the end of each attempt to the start of the next.
fn pauses(story: &JobStory) -> Vec<Duration> {
    story.attempts.windows(2).map(|pair| pair[1].started_at.since(pair[0].ended_at)).collect()
}

fn outcomes(story: &JobStory) -> Vec<&str> {
    story.attempts.iter().map(|attempt| attempt.outcome.as_str()).collect()
}

fn keys(calls: &[Call]) -> Vec<&str> {
    let mut keys: Vec<&str> = calls.iter().map(Call::key).collect();
    keys.dedup();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_transient_failure_is_retried_with_growing_pauses_and_then_succeeds() {
    let worker = WORKER.replace(
        "strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3",
        "strategy: exponential, base_delay: 50ms, multiplier: 3, jitter: none, max_attempts: 7",
    );
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Status(500), Reply::Status(408), OK]);
    let story = world.post_and_wait("k", BODY, Word::Success).await;

    assert_eq!(outcomes(&story), ["failed", "failed", "failed", "success"]);
    let reasons: Vec<_> = story.attempts.iter().map(|attempt| attempt.reason).collect();
    assert_eq!(reasons, [Some(Reason::TargetDown), Some(Reason::TargetDown), Some(Reason::Timeout), None]);
    // Each pause is at least what the policy says, which is three times the one before.
    for (pause, least) in pauses(&story).into_iter().zip([50, 150, 450]) {
        assert!(pause >= Duration::from_millis(least), "{:?}", pauses(&story));
    }
    assert_eq!((story.row.failures, story.row.attempts), (3, 4));
    let calls = world.target.calls();
    assert_eq!(calls.len(), 4);
    assert_eq!(keys(&calls).len(), 1, "every attempt carries the same key");
    assert_eq!(calls[0].method, "POST");
    assert!(calls.iter().all(|call| call.body == BODY));
    assert!(calls.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(50)));
    let report = world.close_and_verify().await;
    assert!(report.parts.contains(&("success", 1)), "{report:?}");
    assert!(report.effects.contains(&("done", 1)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c6_a_permanent_failure_stops_at_the_budget_and_is_buried_with_error_and_count() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(503)]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!((story.row.failures, story.row.attempts), (3, 3));
    assert_eq!(story.row.reason, Some(Reason::TargetDown));
    assert_eq!(story.row.error.as_deref(), Some("step `charge`: the target answered 503"));
    assert_eq!(outcomes(&story), ["failed", "failed", "failed"]);
    assert!(story.row.ended_at.is_some() && story.row.run_at.is_none());
    assert_eq!(story.effects[0].state, EffectState::NotDone);
    assert_eq!(story.effects[0].sends, 3);
    // It stays where it is: a later delivery of its key is counted and shown, not run.
    let again = world.post("k", BODY).await;
    assert!(again.is_replayed());
    let later = world.job(again.job()).await;
    assert_eq!((later.row.word, later.deliveries.len()), (Word::Dead, 1));
    assert_eq!(world.target.calls().len(), 3);
    let report = world.close_and_verify().await;
    assert!(report.parts.contains(&("dead", 1)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_no_retry_starts_later_than_the_policy_allows() {
    let worker = WORKER.replace("base_delay: 10ms", "max_elapsed: 1s, base_delay: 20s");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Status(503)]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!((story.row.attempts, story.row.reason), (1, Some(Reason::TargetDown)));
}

/// What a target asks for with 429, and when the next attempt is due after the first.
async fn check_retry_after(asked: &'static [(&'static str, &'static str)], policy: &str, pause: Duration) {
    let worker = WORKER.replace("base_delay: 10ms", policy);
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::With { status: 429, headers: asked, body: "" }, OK]);
    let job = world.post("k", BODY).await.job();
    let story = world.wait_until(job, "an attempt", |story| !story.attempts.is_empty()).await;
    if story.row.word == Word::Retrying {
        let due = story.row.run_at.expect("a retry has a time").since(story.attempts[0].ended_at);
        assert_eq!(due, pause, "{asked:?} with {policy}");
    }
    if pause < Duration::from_secs(5) {
        let story = world.wait(job, Word::Success).await;
        assert!(pauses(&story)[0] >= pause, "{:?} for {asked:?} with {policy}", pauses(&story));
        assert_eq!(story.attempts[0].reason, Some(Reason::RateLimited));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_t_082_a_target_that_asks_for_a_pause_gets_it() {
    check_retry_after(&[("retry-after", "1")], "base_delay: 10ms", Duration::from_secs(1)).await;
    check_retry_after(&[("retry-after", "60")], "base_delay: 10ms", Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_t_082_a_pause_that_is_asked_for_is_cut_to_the_cap() {
    let policy = "base_delay: 10ms, max_delay: 200ms";
    check_retry_after(&[("retry-after", "1000000000")], policy, Duration::from_millis(200)).await;
    check_retry_after(&[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")], policy, Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_t_082_a_pause_that_says_nothing_leaves_the_policy_as_it_is() {
    for asked in [&[("retry-after", "soon")][..], &[("retry-after", "-5")], &[]] {
        check_retry_after(asked, "base_delay: 30ms", Duration::from_millis(30)).await;
    }
}

/// An answer after which nothing is sent again.
async fn check_terminal(reply: Reply, reason: Reason) {
    let world = World::new(&[]).await;
    world.target.script("/charge", [reply.clone()]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(reason), 1), "{reply:?}");
    assert_eq!(outcomes(&story), ["refused"], "{reply:?}");
    assert_eq!(world.target.calls().len(), 1, "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_refusal_by_the_target_is_final() {
    check_terminal(Reply::Status(400), Reason::RejectedByTarget).await;
    check_terminal(Reply::Status(404), Reason::RejectedByTarget).await;
    check_terminal(Reply::Status(422), Reason::RejectedByTarget).await;
    check_terminal(Reply::Status(401), Reason::AuthFailed).await;
    check_terminal(Reply::Status(403), Reason::AuthFailed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t_086_a_redirect_is_not_followed() {
    let headers = &[("location", "/elsewhere")];
    check_terminal(Reply::With { status: 302, headers, body: "" }, Reason::RejectedByTarget).await;
    check_terminal(Reply::With { status: 307, headers, body: "" }, Reason::RejectedByTarget).await;
}

/// Who answers does so within this, also where the machine is busy; who is silent is waited for so long.
const TIMEOUT: &str = "timeout: 3s";

fn worker_of_class(class: &str) -> String {
    WORKER.replace("idempotency: header", &format!("{TIMEOUT}, idempotency: {class}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_t_065_a_lost_reply_is_never_sent_again_where_repeating_could_hurt() {
    for reply in [Reply::Drop, Reply::Silence] {
        // Not declared means none.
        let worker = WORKER.replace(", idempotency: header", &format!(", {TIMEOUT}"));
        let mut world = World::new(&[("workers/charge.yml", &worker)]).await;
        world.target.script("/charge", [reply.clone(), OK]);
        let job = world.post("k", BODY).await.job();
        let story = world.wait(job, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::UnknownOutcome), 1), "{reply:?}");
        assert_eq!(outcomes(&story), ["unknown"], "{reply:?}");
        assert_eq!(story.effects[0].state, EffectState::Unknown, "{reply:?}");
        let error = story.row.error.unwrap();
        assert!(error.contains("sent, but no answer came"), "{error}");

        // Neither a restart nor a duplicate sends it again: the next job's call is the second one.
        world.close().await;
        world.open(Roles::ALL).await;
        assert!(world.post("k", BODY).await.is_replayed());
        world.post_and_wait("other", BODY, Word::Success).await;
        assert_eq!(world.job(job).await.row.word, Word::Dead);
        assert_eq!(world.target.calls().len(), 2);
        assert_ne!(world.target.calls()[0].key(), world.target.calls()[1].key());
        let report = world.close_and_verify().await;
        assert!(report.effects.contains(&("unknown", 1)), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_t_065_a_lost_reply_is_sent_again_with_the_same_key_where_the_step_says_it_may() {
    for class in ["header", "natural"] {
        for reply in [Reply::Drop, Reply::Silence] {
            let world = World::new(&[("workers/charge.yml", &worker_of_class(class))]).await;
            world.target.script("/charge", [reply.clone(), OK]);
            let story = world.post_and_wait("k", BODY, Word::Success).await;
            assert_eq!(outcomes(&story), ["unknown", "success"], "{class} {reply:?}");
            let calls = world.target.calls();
            assert_eq!((calls.len(), keys(&calls).len()), (2, 1), "{class} {reply:?}");
            assert_eq!((story.effects.len(), story.effects[0].sends), (1, 2));
            assert!(matches!(story.effects[0].state, EffectState::Done(_)), "{class} {reply:?}");
            world.close_and_verify().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_p4_a_target_that_never_replies_is_given_up_at_the_budget() {
    let world = World::new(&[("workers/charge.yml", &worker_of_class("natural"))]).await;
    world.target.script("/charge", [Reply::Silence]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::Timeout), 3));
    assert_eq!(story.effects[0].state, EffectState::Unknown);
    assert_eq!(world.target.calls().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_lost_reply_stays_unknown_when_those_after_it_fail() {
    for (status, reason, attempts) in [(503, Reason::TargetDown, 3), (409, Reason::RejectedByTarget, 2)] {
        let world = World::new(&[]).await;
        world.target.script("/charge", [Reply::Drop, Reply::Status(status)]);
        let story = world.post_and_wait("k", BODY, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(reason), attempts), "{status}");
        assert_eq!(story.effects[0].state, EffectState::Unknown, "{status}");
        world.close_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_refused_connection_says_nothing_of_the_call_before_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It hears one call, and is gone.
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        drop(listener);
        tokio::io::AsyncReadExt::read_u8(&mut stream).await
    });
    let world = World::new(&[("workers/charge.yml", &WORKER.replace("TARGET", &address))]).await;
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(outcomes(&story), ["unknown", "failed", "failed"]);
    assert_eq!(story.effects[0].state, EffectState::Unknown);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_refused_connection_sent_nothing_and_is_retried_whatever_the_target_promises() {
    // The port is taken, so that nobody else gets it, but nobody listens on it.
    let deaf = tokio::net::TcpSocket::new_v4().unwrap();
    deaf.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let deaf_address = deaf.local_addr().unwrap().to_string();
    for class in ["header", "natural", "none"] {
        let worker = worker_of_class(class).replace("TARGET", &deaf_address);
        let world = World::new(&[("workers/charge.yml", &worker)]).await;
        let story = world.post_and_wait("k", BODY, Word::Dead).await;
        assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 3), "{class}");
        assert_eq!(story.effects[0].state, EffectState::NotDone, "{class}");
        let error = story.row.error.unwrap();
        assert!(error.contains("nothing was sent"), "{error}");
        world.close_and_verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_target_that_does_not_speak_tls_was_sent_nothing() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = plain.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = plain.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let worker = worker_of_class("none").replace("http://TARGET", &format!("https://{address}"));
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::TargetDown), 3));
    assert_eq!(story.effects[0].state, EffectState::NotDone);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_a_kept_connection_that_the_target_closed_leaves_nothing_unknown() {
    // Says keep-alive and hangs up after each answer, as a target does whose patience has ended.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hung_up = tokio::sync::watch::Sender::new(0);
    let told = hung_up.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let told = told.clone();
            tokio::spawn(async move {
                let mut read = vec![0; 4096];
                let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut read).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\n{}";
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
                drop(stream);
                told.send_modify(|times| *times += 1);
            });
        }
    });
    let worker = worker_of_class("header").replace("TARGET", &address);
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    for n in 0..20 {
        let story = world.post_and_wait(&format!("k-{n}"), BODY, Word::Success).await;
        assert_eq!((story.row.attempts, story.effects[0].sends), (1, 1));
        // What is sent while it hangs up may have arrived, and nobody can tell.
        hung_up.subscribe().wait_for(|times| *times > n).await.unwrap();
    }
    world.close_and_verify().await;
}

const TWO_STEPS: &str = r#"
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 3}
run:
  - name: invoice
    http: {url: http://TARGET/invoice, body_from: body}
  - name: mail
    http:
      url: http://TARGET/mail
      headers: {x-invoice: "{{ steps.invoice.output.id }}"}
      body: {invoice: "{{ steps.invoice.output.id }}", status: "{{ steps.invoice.status }}", order: "{{ body.order }}"}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_finished_step_is_skipped_on_the_next_attempt_and_its_output_is_still_there() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    world.target.script("/invoice", [Reply::With { status: 201, headers: &[], body: r#"{"id":"inv-9"}"# }]);
    world.target.script("/mail", [Reply::Status(503), Reply::Status(503), OK]);
    let story = world.post_and_wait("k", BODY, Word::Success).await;
    assert_eq!(outcomes(&story), ["failed", "failed", "success"]);
    assert_eq!(world.target.calls_at("/invoice").len(), 1);
    let mails = world.target.calls_at("/mail");
    assert_eq!((mails.len(), keys(&mails).len()), (3, 1));
    for mail in &mails {
        assert_eq!(mail.body, r#"{"invoice":"inv-9","status":201,"order":7}"#, "values keep their types");
        assert_eq!(mail.headers["x-invoice"], "inv-9");
    }
    assert_ne!(world.target.calls_at("/invoice")[0].key(), mails[0].key(), "each step has a key of its own");
    let sends: Vec<(&str, u32)> = story.effects.iter().map(|effect| (effect.name.as_str(), effect.sends)).collect();
    assert_eq!(sends, [("invoice", 1), ("mail", 3)]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_step_sees_the_deliverys_key_or_the_one_that_the_flow_gives_its_job() {
    let worker = WORKER.replace("body_from: body", "headers: {x-key: \"{{ key }}\"}");
    let flow = FLOW.replace("queue: {name: orders}", "queue: {name: orders, key_from: body:/order}");
    for (flow, seen) in [(FLOW, "k"), (flow.as_str(), "7")] {
        let world = World::new(&[("flows/orders.yml", flow), ("workers/charge.yml", &worker)]).await;
        world.post_and_wait("k", BODY, Word::Success).await;
        assert_eq!(world.target.calls()[0].headers["x-key"], seen);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_conditions_are_all_false_does_nothing_and_says_so() {
    let worker = worker_with_step(
        "  - name: big\n    if: \"body.order > 100\"\n    http: {url: http://TARGET/big}\n  - name: gift\n    if: \"body.gift\"\n    http: {url: http://TARGET/gift}\n",
    );
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let story = world.post_and_wait("none", r#"{"order":7,"gift":false}"#, Word::Noop).await;
    assert_eq!(outcomes(&story), ["noop"]);
    assert!(world.target.calls().is_empty());
    world.post_and_wait("one", r#"{"order":7,"gift":true}"#, Word::Success).await;
    let paths: Vec<String> = world.target.calls().into_iter().map(|call| call.path).collect();
    assert_eq!(paths, ["/gift"]);
    let report = world.close_and_verify().await;
    assert!(report.parts.contains(&("noop", 1)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p9_a_value_that_is_not_there_buries_the_job_and_the_error_repeats_no_value() {
    let worker = worker_with_step(
        "  - name: mail\n    http: {url: http://TARGET/mail, body: {to: \"{{ body.contact.email.address }}\"}}\n",
    );
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let body = r#"{"contact":{"email":"ada@example.com"},"card":"4242424242424242"}"#;
    let story = world.post_and_wait("k", body, Word::Dead).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::MissingData), 1));
    let error = story.row.error.unwrap();
    assert!(error.contains("`mail`") && error.contains("body.contact.email.address"), "{error}");
    for value in ["ada", "example.com", "4242"] {
        assert!(!error.contains(value), "{error}");
    }
    assert!(world.target.calls().is_empty());
    world.close_and_verify().await;
}
