//! Dead letters come back: with a reason, on record, under the same keys, and without repeating what was done.

use crate::world::{Call, OK, Reply, WORKER, World, raw};
use clinch::app::Roles;
use clinch_core::death::Reason;
use clinch_core::effect::EffectState;
use clinch_core::job::Word;
use serde_json::json;

const BODY: &str = r#"{"order":7}"#;

const TWO_STEPS: &str = "
version: 1
name: charge
consumes: {queue: orders}
retry: {strategy: fixed, base_delay: 10ms, jitter: none, max_attempts: 2}
run:
  - name: invoice
    http: {url: http://TARGET/invoice, body_from: body}
  - name: mail
    http: {url: http://TARGET/mail, body_from: body}
";

#[tokio::test(flavor = "multi_thread")]
async fn f2_p8_a_replayed_dead_job_ends_right_and_repeats_no_effect() {
    let world = World::new(&[("workers/charge.yml", TWO_STEPS)]).await;
    world.target.script("/mail", [Reply::Status(422)]);
    let accepted = world.post("k", BODY).await;
    let job = accepted.job();
    let dead = world.wait(job, Word::Dead).await;
    assert_eq!(dead.row.reason, Some(Reason::RejectedByTarget));
    let trace = async || world.admin(&format!("/api/v1/jobs/{job}")).await.json()["event"]["trace_id"].clone();
    let trace_before = trace().await;
    assert_eq!(trace_before.as_str().map(str::len), Some(32));

    // Without a reason nothing happens.
    for without in [json!({}), json!({"reason": ""}), json!({"reason": "  \n"}), json!({"reason": 7})] {
        world.replay(job, without).await.check_problem(400, "bad-body");
    }
    assert_eq!(world.job(job).await.row.word, Word::Dead);

    // The target is repaired. Pressing the button many times is pressing it once.
    world.target.script("/mail", [OK]);
    let ask = json!({"reason": "the template was fixed"});
    let press = || world.replay(job, ask.clone());
    let (first, second, third) = tokio::join!(press(), press(), press());
    let answers = [first, second, third];
    let counted = answers.iter().filter(|answer| answer.status == 200 && answer.json()["replayed"] == true).count();
    assert_eq!(counted, 1, "{answers:#?}");
    let story = world.wait(job, Word::Success).await;
    let late = world.replay(job, ask).await.json();
    assert_eq!((&late["replayed"], &late["state"], &late["replays"]), (&json!(false), &json!("success"), &json!(1)));

    let (invoices, mails) = (world.target.calls_at("/invoice"), world.target.calls_at("/mail"));
    assert_eq!((invoices.len(), mails.len()), (1, 2), "what was done is not done again");
    assert_eq!(mails[0].key(), mails[1].key());
    assert_eq!((story.row.replays, story.row.attempts), (1, 2));
    assert_eq!(trace().await, trace_before);
    assert_eq!(story.audit.len(), 1, "{:?}", story.audit);
    let entry = &story.audit[0];
    assert_eq!((entry.action.as_str(), entry.reason.as_str()), ("job.replay", "the template was fixed"));
    assert_eq!((entry.actor.as_str(), entry.job), ("admin", Some(job)));
    let told = world.admin("/api/v1/audit").await.json();
    assert_eq!(told["audit"][0]["reason"], "the template was fixed");

    // The key is still the same key.
    let again = world.post("k", BODY).await;
    assert_eq!((again.is_replayed(), &again.body), (true, &accepted.body));
    let report = world.close_and_verify().await;
    assert!(report.parts.contains(&("success", 1)), "{report:?}");
    assert!(report.effects.contains(&("done", 2)), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f2_a_replay_that_fails_again_is_a_dead_letter_again_with_a_whole_budget_behind_it() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(503)]);
    let job = world.post("k", BODY).await.job();
    world.wait(job, Word::Dead).await;
    assert_eq!(world.replay(job, json!({"reason": "try"})).await.json()["replays"], 1);
    let story =
        world.wait_until(job, "dead again", |story| story.row.word == Word::Dead && story.row.attempts == 6).await;
    assert_eq!((story.row.failures, story.row.replays), (3, 1), "the budget begins anew");
    assert_eq!(world.replay(job, json!({"reason": "and again"})).await.json()["replays"], 2);
    let story =
        world.wait_until(job, "dead again", |story| story.row.word == Word::Dead && story.row.attempts == 9).await;
    let reasons: Vec<&str> = story.audit.iter().map(|entry| entry.reason.as_str()).collect();
    assert_eq!(reasons, ["try", "and again"]);
    let numbers: Vec<u32> = story.attempts.iter().map(|attempt| attempt.no).collect();
    assert_eq!(numbers, (1..=9).collect::<Vec<_>>(), "the history goes on");
    let calls = world.target.calls();
    assert!(calls.iter().all(|call| call.key() == calls[0].key()));
    world.close_and_verify().await;
}

/// A job whose only effect has an unknown outcome.
async fn parked() -> (World, clinch_core::id::JobId) {
    let worker = WORKER.replace("idempotency: header", "idempotency: none");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", [Reply::Drop, OK]);
    let story = world.post_and_wait("k", BODY, Word::Dead).await;
    assert_eq!(story.row.reason, Some(Reason::UnknownOutcome));
    (world, story.row.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_p8_an_unknown_effect_is_replayed_only_after_a_person_said_what_to_do_with_it() {
    let (world, job) = parked().await;
    let problem = world.replay(job, json!({"reason": "again"})).await.check_problem(409, "needs-ruling");
    assert_eq!(problem["steps"], json!(["charge"]));
    assert!(problem["detail"].as_str().unwrap().contains("`charge`"), "{problem}");
    let story = world.job(job).await;
    assert_eq!((story.row.word, story.row.replays, story.audit.len()), (Word::Dead, 0, 0));

    let ask = json!({"reason": "the target has no such order", "unknown": "resend"});
    assert_eq!(world.replay(job, ask).await.json()["replayed"], true);
    let story = world.wait(job, Word::Success).await;
    let calls = world.target.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].key(), calls[1].key(), "it may still be recognised");
    assert!(story.audit[0].after.as_deref().unwrap().contains("sent again"), "{:?}", story.audit);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_p8_an_unknown_effect_that_is_taken_as_done_is_not_sent() {
    let (mut world, job) = parked().await;
    let ask = json!({"reason": "it is in the books", "unknown": "skip"});
    assert_eq!(world.replay(job, ask).await.json()["replayed"], true);
    let story = world.wait(job, Word::Success).await;
    assert!(matches!(story.effects[0].state, EffectState::Done(_)), "{:?}", story.effects);
    // Nor after a restart: the next call is another job's.
    world.close().await;
    world.open(Roles::ALL).await;
    world.post_and_wait("other", BODY, Word::Success).await;
    let calls = world.target.calls();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].key(), calls[1].key());
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replayed_is_told_so() {
    let world = World::new(&[]).await;
    let job = world.post_and_wait("k", BODY, Word::Success).await.row.id;
    let told = world.replay(job, json!({"reason": "for fun"})).await.json();
    assert_eq!((&told["replayed"], &told["state"]), (&json!(false), &json!("success")));
    assert_eq!(world.target.calls().len(), 1);
    assert!(world.job(job).await.audit.is_empty());

    let stranger: clinch_core::id::JobId = "job_01HZX5T0N8W2A".parse().unwrap();
    world.replay(stranger, json!({"reason": "x"})).await.check_problem(404, "not-found");
    for strange in [json!({"reason": "x", "force": true}), json!({"reason": "x", "unknown": "maybe"}), json!([])] {
        world.replay(job, strange).await.check_problem(400, "bad-body");
    }
    // And nobody replays without the token.
    let request = format!(
        "POST /api/v1/jobs/{job}/replay HTTP/1.1\r\nhost: clinch\r\nconnection: close\r\ncontent-length: 14\r\n\r\n{{\"reason\":\"x\"}}"
    );
    raw(world.app().admin.unwrap(), request.as_bytes()).await.check_problem(401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn t_060_a_duplicate_of_a_dead_letter_is_run_again_where_the_flow_says_so() {
    let flow = crate::world::FLOW.replace("ttl: 48h", "ttl: 48h\n        on_duplicate_of_dead: replay");
    let world = World::new(&[("flows/orders.yml", &flow), ("workers/charge.yml", TWO_STEPS)]).await;
    world.target.script("/mail", [Reply::Status(422), OK]);
    let first = world.post("k", BODY).await;
    world.wait(first.job(), Word::Dead).await;
    let again = world.post("k", BODY).await;
    assert_eq!((again.status, &again.body, again.is_replayed()), (202, &first.body, true));
    let story = world.wait(first.job(), Word::Success).await;
    assert_eq!((story.row.replays, story.audit[0].actor.as_str()), (1, "clinch"));
    assert_eq!(world.target.calls_at("/invoice").len(), 1);
    let mails = world.target.calls_at("/mail");
    assert_eq!(mails.iter().map(Call::key).collect::<Vec<_>>(), [mails[0].key(); 2]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_replay_survives_the_process_that_was_asked() {
    let mut world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(422)]);
    let job = world.post_and_wait("k", BODY, Word::Dead).await.row.id;
    world.close().await;
    // Asked of a house without a worker, which then goes away.
    world.open(crate::world::NO_WORKER).await;
    assert_eq!(world.replay(job, json!({"reason": "fixed"})).await.json()["replayed"], true);
    assert_eq!(world.job(job).await.row.word, Word::Queued);
    world.close().await;
    world.target.script("/charge", [OK]);
    world.open(Roles::ALL).await;
    let story = world.wait(job, Word::Success).await;
    assert_eq!((story.row.replays, story.row.attempts, story.audit.len()), (1, 2, 1));
    world.close_and_verify().await;
}
