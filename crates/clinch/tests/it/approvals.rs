//! Approvals: jobs that wait for people, who decide by API, command line and Slack. One verdict wins.

use crate::nodes::{Nodes, shared_postgres};
use crate::process::{AGAIN, Place, Server, client, eventually};
use crate::world::{Answer, Call, PATIENCE, Reply, World, worker_with_step};
use aws_lc_rs::hmac;
use clinch_core::approval::{ApprovalId, Verdict, Vote};
use clinch_core::audit::{Record, Right};
use clinch_core::death::Reason;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use clinch_core::time::Timestamp;
use clinch_store::read::JobStory;
use clinch_store::{ApprovalRow, DecideAsk, Decided};
use data_encoding::HEXLOWER;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// A variable that every process has stands for the secret.
const SECRET: &str = "PATH";

/// Asks about high discounts, then gives them.
fn discounts(rule: &str) -> String {
    worker_with_step(&format!(
        "  - name: review
    if: \"body.discount > 20\"
    approval:
      title: 'Discount of {{{{ body.discount }}}} % for cart {{{{ body.cart }}}}'
      show: {{discount: '{{{{ body.discount }}}}', customer: '{{{{ body.email }}}}'}}
{rule}
  - name: give
    http: {{url: http://TARGET/give, body: {{cart: '{{{{ body.cart }}}}'}}, idempotency: header}}
"
    ))
}

const SLACK: &str = "
integrations:
  chat: {base_url: 'http://TARGET', message: slack, breaker: none, headers: {authorization: Bearer xoxb}}
approvals:
  slack:
    signing_secret: ${secrets.PATH}
    users: {U01: maya, U02: omar}
";

fn cart(nth: u64, discount: u32) -> String {
    json!({"cart": format!("c-{nth}"), "discount": discount, "email": "ada@example.com"}).to_string()
}

fn review(job: JobId) -> ApprovalId {
    ApprovalId { job, step: "review".into() }
}

/// A job that waits for people.
async fn asked(world: &World, nth: u64) -> ApprovalId {
    let job = world.post(&format!("k-{nth}"), &cart(nth, 40)).await.job();
    waits(world, job).await;
    review(job)
}

async fn waits(world: &World, job: JobId) -> JobStory {
    world.wait_until(job, "waiting for people", |story| story.row.waits == Some(Waits::Approval)).await
}

async fn row(world: &World, id: &ApprovalId) -> ApprovalRow {
    world.app().house.store.approval(id).await.unwrap().expect("it was asked for")
}

async fn api(world: &World, id: &ApprovalId, vote: &str) -> Answer {
    let path = format!("/api/v1/approvals/{}/{}/decide", id.job, id.step);
    world.command(&path, json!({"vote": vote, "reason": format!("{vote} it")})).await
}

/// Somebody presses a button in Slack, at this moment, with this secret.
async fn press_with(world: &World, secret: &str, user: &str, action: &str, ids: &[&ApprovalId]) -> Answer {
    let value: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let payload = json!({
        "type": "block_actions", "user": {"id": user}, "response_url": format!("http://{}/respond", world.target.address),
        "actions": [{"action_id": action, "value": value.join(" ")}],
    });
    let body: String =
        url::form_urlencoded::Serializer::new(String::new()).append_pair("payload", &payload.to_string()).finish();
    let at = jiff::Timestamp::now().as_second().to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = HEXLOWER.encode(hmac::sign(&key, format!("v0:{at}:{body}").as_bytes()).as_ref());
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-slack-request-timestamp", &at),
        ("x-slack-signature", &format!("v0={tag}")),
    ];
    world.deliver("/slack/actions", &headers, &body).await
}

async fn press(world: &World, user: &str, action: &str, ids: &[&ApprovalId]) -> Answer {
    press_with(world, &std::env::var(SECRET).unwrap(), user, action, ids).await
}

fn said(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{answer:?}");
    let told = answer.json();
    assert_eq!(told["response_type"], "ephemeral", "{answer:?}");
    told["text"].as_str().unwrap().to_string()
}

async fn messages(world: &World, at_least: usize) -> Vec<Value> {
    let calls = world.target.called_at("/api/chat.postMessage", at_least).await;
    calls.iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect()
}

async fn on_postgres(name: &str, files: &[(&str, &str)]) -> World {
    tokio::task::block_in_place(|| shared_postgres().create_database(name));
    World::on(shared_postgres().url(name), files).await
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_job_waits_for_people_and_goes_on_or_ends_by_their_word() {
    let worker = discounts("      expires: 4h");
    let report = check_words(World::new(&[("workers/charge.yml", &worker)]).await).await.close_and_verify().await;
    assert!(report.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_job_waits_for_people_and_goes_on_or_ends_by_their_word_on_postgres() {
    let worker = discounts("      expires: 4h");
    check_words(on_postgres("approvals_words", &[("workers/charge.yml", &worker)]).await).await.close().await;
}

async fn check_words(world: World) -> World {
    // Nobody is asked about a small one.
    let small = world.post_and_wait("small", &cart(0, 10), Word::Success).await;
    assert!(world.app().house.store.approval(&review(small.row.id)).await.unwrap().is_none());

    let approved = asked(&world, 1).await;
    let list = world.admin("/api/v1/approvals?state=pending").await.json();
    let shown = &list["approvals"][0];
    assert_eq!(
        (&shown["id"], &shown["title"]),
        (&json!(approved.to_string()), &json!("Discount of 40 % for cart c-1"))
    );
    assert_eq!((&shown["approved"], &shown["need"], &shown["flow"]), (&json!(0), &json!(1), &json!("orders")));
    let whole = world.admin(&format!("/api/v1/approvals/{approved}")).await;
    assert_eq!(whole.json()["shown"][0], json!({"name": "discount", "value": "40"}));
    assert!(!whole.body.contains("ada@example.com"), "what nobody is to see is hidden: {whole:?}");
    let decided = api(&world, &approved, "approve").await.json();
    assert_eq!((&decided["outcome"], &decided["state"]), (&json!("decided"), &json!("approved")));
    let story = world.wait(approved.job, Word::Success).await;
    assert_eq!((story.row.attempts, story.row.failures), (1, 0), "to wait costs no attempt");

    let rejected = asked(&world, 2).await;
    assert_eq!(api(&world, &rejected, "reject").await.status, 200);
    let story = world.wait(rejected.job, Word::Noop).await;
    assert_eq!(story.row.reason, Some(Reason::ApprovalRejected));
    let error = story.row.error.unwrap();
    assert!(error.contains("rejected by admin") && error.contains("reject it"), "{error}");

    // Whoever comes late is told what won.
    let late = api(&world, &rejected, "approve").await.check_problem(409, "decided-before");
    assert!(late["detail"].as_str().unwrap().contains("it was rejected by admin"), "{late}");
    let nobody = ApprovalId { step: "other".into(), ..rejected };
    api(&world, &nobody, "approve").await.check_problem(404, "not-found");
    let carts: Vec<String> = world.target.calls_at("/give").into_iter().map(|call| call.body).collect();
    assert_eq!(carts, [r#"{"cart":"c-0"}"#, r#"{"cart":"c-1"}"#], "what was rejected was not given");
    let metrics = world.admin("/metrics").await.body;
    assert!(metrics.contains(r#"clinch_approvals_total{flow="orders",decision="rejected"} 1"#), "{metrics}");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_approve_reject_expire_and_cancel_in_the_same_millisecond_are_one_verdict() {
    let files = race_files();
    let world = World::new(&[("workers/charge.yml", &files), ("clinch.yml", SLACK)]).await;
    check_race(world).await.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_approve_reject_expire_and_cancel_in_the_same_millisecond_are_one_verdict_on_postgres() {
    let mut world = check_race(on_postgres("approvals_race", &[("workers/charge.yml", &race_files())]).await).await;
    world.close().await;
}

fn race_files() -> String {
    discounts("      expires: 2s\n      on_expiry: approve")
}

/// Many jobs; for each, at the moment at which it expires, three people say three things.
async fn check_race(world: World) -> World {
    let jobs: Vec<JobId> = join_all((0..12).map(|nth| {
        let world = &world;
        async move { world.post(&format!("k-{nth}"), &cart(nth, 40)).await.job() }
    }))
    .await;
    let ids: Vec<ApprovalId> = jobs.into_iter().map(review).collect();
    // Asked for, and not that it still waits: on a machine that is busy it may be over by the time that it is seen.
    for id in &ids {
        let is_asked = async || world.app().house.store.approval(id).await.unwrap().is_some();
        eventually("people are asked", PATIENCE, is_asked).await;
    }
    let told = join_all(ids.iter().enumerate().map(|(nth, id)| {
        let world = &world;
        async move {
            let end = row(world, id).await.expires_at;
            let left = end.since(now());
            // Some a little before, some a little after: who is first is not known.
            let early = Duration::from_micros(700 * (1 + nth as u64 % 4));
            tokio::time::sleep(left.saturating_sub(early)).await;
            let person = |actor: &'static str, vote| async move {
                let record = named(actor, "at the last moment");
                world.app().house.store.decide(DecideAsk { approval: id.clone(), vote, record }).await.unwrap()
            };
            let told = tokio::join!(
                person("maya", Vote::Approve),
                person("omar", Vote::Reject),
                person("ines", Vote::Cancel),
                async {
                    while row(world, id).await.decision.is_none() {
                        world.app().house.store.expire_approvals(now(), 100).await.unwrap();
                    }
                }
            );
            [told.0, told.1, told.2]
        }
    }))
    .await;
    let (mut given, mut verdicts) = (0, Vec::new());
    for (id, told) in ids.iter().zip(told) {
        let won = row(&world, id).await.decision.expect("it is decided");
        let winners = told.iter().filter(|told| matches!(told, Decided::Verdict(_))).count();
        assert_eq!(winners, usize::from(won.verdict != Verdict::Expired), "{won:?} {told:?}");
        for told in &told {
            match told {
                Decided::Verdict(mine) => assert_eq!(*mine, won),
                Decided::Late(first) => assert_eq!(*first, won, "everybody is told the same"),
                other => panic!("{other:?}"),
            }
        }
        // Everything that anybody did is on record, once.
        let goes_on = matches!(won.verdict, Verdict::Approved | Verdict::Expired);
        let story = world.wait(id.job, if goes_on { Word::Success } else { Word::Noop }).await;
        let actions: Vec<(String, String)> =
            story.audit.iter().map(|row| (row.action.clone(), row.actor.clone())).collect();
        let mut expected = vec![("approval.ask", "clinch"), ("approval.approve", "maya"), ("approval.reject", "omar")];
        expected.push(("approval.cancel", "ines"));
        expected.extend((won.verdict == Verdict::Expired).then_some(("approval.expire", "clinch")));
        let expected: BTreeSet<_> = expected.into_iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        assert_eq!(actions.len(), expected.len(), "{actions:?}");
        assert_eq!(actions.into_iter().collect::<BTreeSet<_>>(), expected);
        given += usize::from(goes_on);
        verdicts.push(won.verdict.word());
    }
    eprintln!("verdicts: {verdicts:?}");
    assert_eq!(world.target.calls_at("/give").len(), given, "each that went on did so once, and no other");
    world
}

fn now() -> Timestamp {
    Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
}

/// Somebody whom the workspace names.
fn named(actor: &str, reason: &str) -> Record {
    let (actor, origin, reason) = (actor.into(), "a test".into(), reason.into());
    Record { actor, origin, right: Right::Named, reason, at: now() }
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_what_nobody_decides_ends_or_goes_on_as_the_step_says() {
    let worker = discounts("      expires: 300ms");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let story = world.post_and_wait("a", &cart(1, 40), Word::Noop).await;
    assert_eq!((story.row.reason, story.row.attempts), (Some(Reason::ApprovalExpired), 1));
    assert!(world.target.calls().is_empty());
    let late = api(&world, &review(story.row.id), "approve").await.check_problem(409, "decided-before");
    assert!(late["detail"].as_str().unwrap().contains("it expired at"), "{late}");

    let worker = discounts("      expires: 300ms\n      on_expiry: approve");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.post_and_wait("a", &cart(1, 40), Word::Success).await;
    assert_eq!(world.target.calls_at("/give").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_job_that_waits_is_still_asked_about_after_a_restart_and_its_votes_count() {
    let worker = discounts("      expires: 4h\n      of: [maya, admin]\n      need: 2");
    let mut world = World::new(&[("workers/charge.yml", &worker)]).await;
    let id = asked(&world, 1).await;
    let counted = api(&world, &id, "approve").await.json();
    assert_eq!(
        (&counted["outcome"], &counted["said"]),
        (&json!("counted"), &json!("the vote counts; 1 of 2 have approved"))
    );
    world.close().await;
    world.open(clinch::app::Roles::ALL).await;
    waits(&world, id.job).await;
    assert_eq!(api(&world, &id, "approve").await.json()["outcome"], "before");
    let record = |actor: &str| named(actor, "fine");
    let vote = |actor: &str| DecideAsk { approval: id.clone(), vote: Vote::Approve, record: record(actor) };
    let store = &world.app().house.store;
    assert!(matches!(store.decide(vote("eve")).await.unwrap(), Decided::NotAllowed(_)));
    assert!(matches!(store.decide(vote("maya")).await.unwrap(), Decided::Verdict(_)));
    world.wait(id.job, Word::Success).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_who_replayed_a_job_does_not_approve_it() {
    let worker = worker_with_step(
        "  - name: look
    http: {url: http://TARGET/look, idempotency: header}
  - name: review
    approval: {title: 'Look at cart {{ body.cart }}'}
  - name: give
    http: {url: http://TARGET/give, body: {by: '{{ steps.review.output.by }}'}, idempotency: header}
",
    );
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    world.target.script("/look", [Reply::Status(400), Reply::Status(200)]);
    let dead = world.post_and_wait("a", &cart(1, 40), Word::Dead).await;
    assert_eq!(world.replay(dead.row.id, json!({"reason": "again"})).await.status, 200);
    waits(&world, dead.row.id).await;
    let id = review(dead.row.id);
    assert_eq!(row(&world, &id).await.requester.as_deref(), Some("admin"));
    let own = api(&world, &id, "approve").await.check_problem(403, "not-yours");
    assert!(own["detail"].as_str().unwrap().contains("your own request"), "{own}");
    let record = named("maya", "fine");
    world.app().house.store.decide(DecideAsk { approval: id, vote: Vote::Approve, record }).await.unwrap();
    world.wait(dead.row.id, Word::Success).await;
    assert_eq!(world.target.calls_at("/give")[0].body, r#"{"by":"maya"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_many_approvals_are_one_message_in_slack_and_its_buttons_decide() {
    let worker = discounts("      slack: {integration: chat, channel: C1}\n      of: [maya, omar]\n      need: 2");
    let world = World::new(&[("workers/charge.yml", &worker), ("clinch.yml", SLACK)]).await;
    let mut ids = Vec::new();
    for nth in 0..3 {
        ids.push(asked(&world, nth).await);
    }
    let first = messages(&world, 1).await;
    let sent = &world.target.calls_at("/api/chat.postMessage")[0];
    assert_eq!((sent.headers["authorization"].as_str(), &first[0]["channel"]), ("Bearer xoxb", &json!("C1")));
    // Those that come close together are in one message; whoever was a moment later is in the next.
    eventually("everything is told", PATIENCE, async || {
        join_all(ids.iter().map(|id| row(&world, id))).await.iter().all(|row| row.told > 0)
    })
    .await;
    let texts: String = messages(&world, 1).await.iter().map(ToString::to_string).collect();
    for (nth, id) in ids.iter().enumerate() {
        assert_eq!(texts.matches(&format!("for cart c-{nth}")).count(), 1, "{texts}");
        assert!(texts.contains(&format!("`{id}`")));
    }
    assert!(!texts.contains("ada@example.com"), "{texts}");

    let [one, two, three] = [&ids[0], &ids[1], &ids[2]];
    assert!(said(&press(&world, "U01", "clinch_approve", &[one]).await).contains("1 of 2 have approved"));
    assert!(said(&press(&world, "U01", "clinch_approve", &[one]).await).contains("you have said so before"));
    let stranger = said(&press(&world, "U99", "clinch_approve", &[one]).await);
    assert!(stranger.contains("You are not known here") && stranger.contains("`U99: NAME`"), "{stranger}");
    assert_eq!(row(&world, one).await.tally().have, 1);
    // Two people, all three at once; one of them is rejected on the way.
    assert!(said(&press(&world, "U01", "clinch_approve", &[two, three]).await).contains("1 of 2"));
    assert!(said(&press(&world, "U02", "clinch_reject", &[three]).await).contains("is rejected"));
    let all = said(&press(&world, "U02", "clinch_approve", &[one, two, three]).await);
    assert!(all.contains(&format!("`{one}` is approved.")) && all.contains(&format!("`{two}` is approved.")), "{all}");
    assert!(all.contains(&format!("`{three}`: too late, it was rejected by omar")), "{all}");
    world.wait(one.job, Word::Success).await;
    world.wait(two.job, Word::Success).await;
    world.wait(three.job, Word::Noop).await;
    // The one who pressed is told at the address that Slack gave for it, without our credentials.
    let is_late = |call: &Call| call.path.starts_with("/respond") && call.body.contains("too late");
    world.target.called_until("the reply that it was too late", |calls| calls.iter().any(is_late)).await;
    let replies = world.target.calls_at("/respond");
    assert!(replies.iter().all(|reply| !reply.headers.contains_key("authorization")));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_press_that_slack_did_not_sign_is_refused_and_decides_nothing() {
    let worker = discounts("      slack: {integration: chat, channel: C1}");
    let world = World::new(&[("workers/charge.yml", &worker), ("clinch.yml", SLACK)]).await;
    let id = asked(&world, 1).await;
    press_with(&world, "another secret", "U01", "clinch_approve", &[&id]).await.check_problem(401, "signature-invalid");
    let unsigned = world.deliver("/slack/actions", &[], "payload=%7B%7D").await;
    unsigned.check_problem(401, "signature-invalid");
    // What was signed long ago is not heard again.
    let (secret, at) = (std::env::var(SECRET).unwrap(), (jiff::Timestamp::now().as_second() - 3_600).to_string());
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = HEXLOWER.encode(hmac::sign(&key, format!("v0:{at}:payload=%7B%7D").as_bytes()).as_ref());
    let headers = [("x-slack-request-timestamp", &*at), ("x-slack-signature", &format!("v0={tag}"))];
    world.deliver("/slack/actions", &headers, "payload=%7B%7D").await.check_problem(401, "signature-invalid");
    let asked = row(&world, &id).await;
    assert!(asked.decision.is_none() && asked.ballots.is_empty());
    assert!(said(&press(&world, "U01", "clinch_approve", &[&id]).await).contains("is approved"));
    world.wait(id.job, Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_message_that_slack_does_not_take_is_sent_again() {
    let worker = discounts("      slack: {integration: chat, channel: C1}");
    let world = World::new(&[("workers/charge.yml", &worker), ("clinch.yml", SLACK)]).await;
    let busy = Reply::With { status: 200, headers: &[], body: r#"{"ok":false,"error":"ratelimited"}"# };
    world.target.script("/api/chat.postMessage", [busy, Reply::Status(200)]);
    let id = asked(&world, 1).await;
    let sent = messages(&world, 2).await;
    assert_eq!(sent[0], sent[1]);
    let told = async || row(&world, &id).await.told == 1;
    eventually("it is known that people were told", PATIENCE, told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_people_are_reminded_once_before_the_end() {
    // Eight seconds after it was asked for, and long before it expires.
    let worker = discounts("      expires: 3600s\n      remind: 3592s\n      slack: {integration: chat, channel: C1}");
    let world = World::new(&[("workers/charge.yml", &worker), ("clinch.yml", SLACK)]).await;
    let first = asked(&world, 1).await;
    messages(&world, 2).await;
    eventually("it is known that people were reminded", PATIENCE, async || row(&world, &first).await.told == 2).await;
    // Whoever is told of another one is told of nothing else.
    let second = asked(&world, 2).await;
    eventually("people are told of the other", PATIENCE, async || row(&world, &second).await.told == 1).await;
    let sent = messages(&world, 3).await;
    let texts: Vec<&Value> = sent.iter().map(|message| &message["text"]).collect();
    assert_eq!(texts, ["1 approval is asked for", "1 approval expires soon", "1 approval is asked for"]);
    let ends = [row(&world, &first).await.expires_at, row(&world, &second).await.expires_at];
    assert!(ends.iter().all(|end| *end > now()), "all of it was before the end");
    assert_eq!(row(&world, &first).await.told, 2, "once");
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_the_command_line_lists_shows_and_decides_one_by_one_and_in_bulk() {
    let worker = discounts("      expires: 4h");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let mut ids = Vec::new();
    for nth in 0..5 {
        ids.push(asked(&world, nth).await);
    }
    let (code, said) = world.clinch(&["approve", "ls", "-o", "plain"]).await;
    assert_eq!((code, said.matches("Discount of 40 %").count()), (0, 5), "{said}");
    let one = ids[0].to_string();
    let (code, said) = world.clinch(&["approve", "show", &one, "-o", "plain"]).await;
    assert!(code == 0 && said.contains("Discount of 40 % for cart c-0") && said.contains("then reject"), "{said}");
    let (code, said) = world.clinch(&["approve", "yes", &one, "-o", "plain"]).await;
    assert!(code == 9 && said.contains("--reason TEXT"), "{said}");
    let (code, said) = world.clinch(&["approve", "yes", &one, "--reason", "known customer", "-o", "plain"]).await;
    assert!(code == 0 && said.contains("decided"), "{said}");
    let (code, said) = world.clinch(&["approve", "no", &one, "--reason", "too much", "-o", "plain"]).await;
    assert!(code == 5 && said.contains("late") && said.contains("it was approved by admin"), "{said}");
    // Never more than was said, and never everything by mistake.
    let (code, said) = world
        .clinch(&["approve", "yes", "--query", "flow:orders", "--max", "3", "--reason", "all", "-o", "plain"])
        .await;
    assert!(code == 5 && said.contains("More than 3 wait"), "{said}");
    let (code, said) = world
        .clinch(&["approve", "yes", "--query", "flw:orders", "--max", "9", "--reason", "all", "-o", "plain"])
        .await;
    assert!(code == 2 && said.contains("flow:…, step:…"), "{said}");
    let (code, said) =
        world.clinch(&["approve", "cancel", &ids[1].to_string(), "--reason", "not needed", "-o", "plain"]).await;
    assert!(code == 0 && said.contains("cancelled"), "{said}");
    let (code, said) = world
        .clinch(&[
            "approve",
            "no",
            "--query",
            "flow:orders step:review",
            "--max",
            "3",
            "--reason",
            "all",
            "-o",
            "plain",
        ])
        .await;
    assert_eq!((code, said.matches("rejected").count() >= 3), (0, true), "{said}");
    world.wait(ids[0].job, Word::Success).await;
    for id in &ids[1..] {
        let story = world.wait(id.job, Word::Noop).await;
        assert_eq!(story.row.reason, Some(Reason::ApprovalRejected));
    }
    let (_, said) = world.clinch(&["approve", "ls", "-o", "plain"]).await;
    assert!(said.contains("nothing waits for you"), "{said}");
    let (_, said) = world.clinch(&["approve", "ls", "state:cancelled", "-o", "plain"]).await;
    assert!(said.contains(&ids[1].to_string()) && !said.contains(&one), "{said}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_every_item_of_a_bulk_has_an_answer_of_its_own() {
    let worker = discounts("      expires: 4h");
    let world = World::new(&[("workers/charge.yml", &worker)]).await;
    let (one, two) = (asked(&world, 1).await, asked(&world, 2).await);
    api(&world, &one, "reject").await;
    let gone = ApprovalId { step: "gone".into(), ..two.clone() };
    let ids = [&one, &two, &gone].map(ToString::to_string);
    let told =
        world.command("/api/v1/approvals/decide", json!({"vote": "approve", "reason": "all", "ids": ids})).await.json();
    let outcomes: Vec<&str> =
        told["outcomes"].as_array().unwrap().iter().map(|told| told["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["late", "decided", "not_found"]);
    for bad in [
        json!({"vote": "approve", "reason": "all"}),
        json!({"vote": "approve", "reason": "all", "query": {}, "max": 5}),
        json!({"vote": "approve", "reason": "all", "query": {"flow": "orders"}}),
        json!({"vote": "approve", "reason": "all", "query": {"flw": "orders"}, "max": 5}),
        json!({"vote": "approve", "reason": "all", "query": {"flow": "orders"}, "max": 5, "ids": ids}),
        json!({"vote": "approve", "reason": " ", "ids": ids}),
    ] {
        world.command("/api/v1/approvals/decide", bad).await.check_problem(400, "bad-body");
    }
}

/// The way of these stories with a question before its effect.
fn ask_first(place: &Place) {
    let file = place.dir.path().join(format!("workspace/workers/{}.yml", AGAIN.name));
    let worker = std::fs::read_to_string(&file).unwrap();
    let asked = "run:\n  - name: review\n    approval: {title: 'Event {{ body.id }}'}\n";
    std::fs::write(file, worker.replace("run:\n", asked)).unwrap();
}

fn event(server: &Server) -> reqwest::RequestBuilder {
    client().post(server.hook(AGAIN.name)).header("idempotency-key", "e-1").body(r#"{"id":"e-1"}"#)
}

async fn send(server: &Server) -> ApprovalId {
    let told: Value = event(server).send().await.unwrap().json().await.unwrap();
    review(told["job_id"].as_str().unwrap().parse().unwrap())
}

async fn decide_at(server: &Server, id: &ApprovalId, vote: &str) -> Value {
    let token = std::fs::read_to_string(server.data_dir().join(clinch::api::auth::TOKEN_FILE)).unwrap();
    let url = format!("{}/api/v1/approvals/{}/{}/decide", server.admin, id.job, id.step);
    let body = json!({"vote": vote, "reason": "looked at it"}).to_string();
    client().post(url).bearer_auth(token.trim()).body(body).send().await.unwrap().json().await.unwrap()
}

/// Until people are asked; each server of the place may be the one that asks.
async fn is_asked(server: &Server, id: &ApprovalId) {
    let token = std::fs::read_to_string(server.data_dir().join(clinch::api::auth::TOKEN_FILE)).unwrap();
    let url = format!("{}/api/v1/jobs/{}", server.admin, id.job);
    eventually("people are asked", PATIENCE, async || {
        let told = client().get(&url).bearer_auth(token.trim()).send().await.unwrap();
        told.json::<Value>().await.unwrap()["job"]["waits_for"] == "approval"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_process_that_dies_when_it_has_asked_asks_once() {
    let place = Place::new(&[AGAIN]).await;
    ask_first(&place);
    let mut server = place.start_with(&[("CLINCH_CRASH_AT", "after_ask")]).await;
    // It may die before it has answered; then it is sent again, under the same key.
    let _ = event(&server).send().await;
    assert_eq!(server.exited().await.signal(), Some(6), "{}", server.said());
    let mut server = place.start().await;
    let id = send(&server).await;
    is_asked(&server, &id).await;
    // And again while it waits.
    server.kill9();
    let server = place.start().await;
    is_asked(&server, &id).await;
    assert_eq!(place.sink.count(), 0);
    assert_eq!(decide_at(&server, &id, "approve").await["state"], "approved");
    place.sink.called(1).await;
    place.drained().await;
    server.stop().await;
    place.verified();
    let books = place.books().await;
    let story = books.story(id.job).await;
    assert_eq!((story.row.word, place.sink.count()), (Word::Success, 1));
    assert_eq!(story.audit.iter().map(|row| &*row.action).collect::<Vec<_>>(), ["approval.ask", "approval.approve"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_verdict_on_one_node_wakes_the_job_and_one_that_was_killed_is_not_needed_for_it() {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    ask_first(&nodes.place);
    let mut first = nodes.start().await;
    let id = send(&first).await;
    is_asked(&first, &id).await;
    first.kill9();
    let (second, third) = (nodes.start().await, nodes.start().await);
    let (told, late) = tokio::join!(decide_at(&second, &id, "approve"), decide_at(&third, &id, "reject"));
    let won = [&told, &late].iter().filter(|told| told["outcome"] == "decided").count();
    assert_eq!(won, 1, "{told} {late}");
    let is_approved = told["outcome"] == "decided";
    let lost = if is_approved { &late } else { &told };
    assert_eq!(lost["code"], "CL0513", "{lost}");
    nodes.drained().await;
    let books = nodes.books().await;
    eventually("the job ends", PATIENCE, async || books.story(id.job).await.row.ended_at.is_some()).await;
    let story = books.story(id.job).await;
    assert_eq!(story.row.word, if is_approved { Word::Success } else { Word::Noop });
    assert_eq!((nodes.place.sink.count(), story.audit.len()), (usize::from(is_approved), 3));
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_what_people_are_asked_moves_with_the_store() {
    let worker = discounts("      of: [admin, maya]\n      need: 2\n      expires: 4h");
    let mut world = World::new(&[("workers/charge.yml", &worker)]).await;
    let (open, closed) = (asked(&world, 1).await, asked(&world, 2).await);
    api(&world, &open, "approve").await;
    api(&world, &closed, "reject").await;
    world.wait(closed.job, Word::Noop).await;
    let before = [row(&world, &open).await, row(&world, &closed).await];
    world.close().await;
    tokio::task::block_in_place(|| shared_postgres().create_database("approvals_moved"));
    let url = shared_postgres().url("approvals_moved");
    clinch_store::moving::carry(&world.data_dir(), &url, now(), |_| {}).await.unwrap();
    let keys = world.data_dir().join(clinch::encryption::KEY_FILE);
    world.write("clinch.yml", &format!("encryption: {{file: '{}'}}\n", keys.display()));
    world.open_with(clinch::app::Options { store: Some(url), ..world.options(clinch::app::Roles::ALL) }).await;
    assert_eq!([row(&world, &open).await, row(&world, &closed).await], before);
    waits(&world, open.job).await;
    let record = named("maya", "fine");
    world.app().house.store.decide(DecideAsk { approval: open.clone(), vote: Vote::Approve, record }).await.unwrap();
    world.wait(open.job, Word::Success).await;
    world.close().await;
}
