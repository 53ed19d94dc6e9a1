//! Approvals in the console: many at once, all shown before, held for a moment, and taken back for real.

use crate::console_browser::{Browser, between, check_says, values};
use crate::process::eventually;
use crate::world::{PATIENCE, World, worker_with_step};
use clinch_core::approval::{ApprovalId, Verdict};
use clinch_core::job::{Waits, Word};
use clinch_store::ApprovalRow;
use serde_json::json;

const WHY: (&str, &str) = ("reason", "checked the list");

fn mails() -> String {
    worker_with_step(
        "  - name: review
    approval:
      title: 'Send a mail about cart {{ body.cart }}'
      show: {customer: '{{ body.email }}', cart: '{{ body.cart }}'}
      expires: 4h
  - name: give
    http: {url: http://TARGET/give, body_from: body, idempotency: header}
",
    )
}

/// So many jobs that wait for people.
async fn waiting(world: &World, jobs: usize) -> Vec<ApprovalId> {
    let mut made = Vec::new();
    for nth in 0..jobs {
        let body = json!({"cart": format!("c-{nth}"), "email": "ada@example.com"}).to_string();
        let job = world.post(&format!("k-{nth}"), &body).await.job();
        world.wait_until(job, "waiting for people", |story| story.row.waits == Some(Waits::Approval)).await;
        made.push(ApprovalId { job, step: "review".into() });
    }
    made
}

async fn row(world: &World, id: &ApprovalId) -> ApprovalRow {
    world.app().house.store.approval(id).await.unwrap().expect("it was asked for")
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_fifty_are_approved_in_bulk_after_a_slip_was_taken_back() {
    let world = World::new(&[("workers/charge.yml", &mails())]).await;
    let ids = waiting(&world, 50).await;
    let browser = Browser::of(&world).await;

    let list = browser.page("/approvals").await;
    check_says(&list, &["<b>50</b> waiting for you", "Send a mail about cart c-…", "All 50"]);
    assert!(!list.contains("ada@example.com"), "what nobody is to see is hidden");
    let chosen: Vec<String> = values(&list, "id").into_iter().map(String::from).collect();
    assert_eq!(chosen.len(), 50);
    let fields: Vec<(&str, &str)> = chosen.iter().map(|id| ("id", id.as_str())).collect();
    let approve = [&[("vote", "approve")], fields.as_slice()].concat();

    // All are shown before anything is decided.
    let review = browser.post("/approvals/review", &approve).await;
    assert_eq!(review.status, 200, "{review:?}");
    check_says(&review.body, &["Approve 50?", "cart c-0<", "cart c-49<", "undo it for 10 seconds"]);
    assert_eq!(values(&review.body, "id").len(), 50);

    // Without a reason nothing is held; from elsewhere, nothing either.
    assert_eq!(browser.post("/approvals/decide", &approve).await.status, 400);
    let decide = [&[WHY], approve.as_slice()].concat();
    browser.check_guarded("/approvals/decide", &decide).await;
    assert!(!browser.page("/approvals").await.contains("/undo\""), "nothing is held");

    // Held, and taken back: the server casts no vote.
    let held = browser.follow("/approvals/decide", &decide).await;
    check_says(
        &held,
        &["<strong>Approve 50</strong> in ", "Undo", "If clinch stops until then, nothing is done at all"],
    );
    assert_eq!(values(&held, "id").len(), 0, "what is held cannot be chosen again");
    let undo = format!("/held/{}/undo", between(&held, "action=\"/held/", "/undo\""));
    check_says(&browser.follow(&undo, &[("back", "/approvals")]).await, &["Taken back. Nothing was done.", "All 50"]);
    check_says(&browser.follow(&undo, &[("back", "//evil.example")]).await, &["too late to take it back"]);

    // Held again, and this time it is meant: nobody else takes it back.
    let held = browser.follow("/approvals/decide", &decide).await;
    let undo = format!("/held/{}/undo", between(&held, "action=\"/held/", "/undo\""));
    browser.check_guarded(&undo, &[]).await;
    eventually("the votes are cast", 2 * PATIENCE, async || {
        browser.page("/approvals").await.contains("<strong>Approve 50:</strong> 50 decided.")
    })
    .await;
    for id in &ids {
        world.wait(id.job, Word::Success).await;
        let row = row(&world, id).await;
        assert_eq!(row.decision.unwrap().verdict, Verdict::Approved);
        assert_eq!(row.ballots.len(), 1, "what was taken back has left no vote");
        assert_eq!(row.ballots[0].reason, WHY.1);
    }
    assert_eq!(world.target.calls_at("/give").len(), 50);
    check_says(&browser.page("/approvals").await, &["Nothing waits for you"]);
    check_says(&browser.page("/approvals?state=approved").await, &["cart c-0<", WHY.1]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_who_comes_late_is_told_who_was_first_and_kinds_are_not_mixed() {
    let other = mails()
        .replace("name: charge", "name: other")
        .replace("queue: orders", "queue: other")
        .replace("review", "second");
    let flow = crate::world::FLOW.replace("orders", "other");
    let queues = format!("{}  - name: other\n", crate::world::QUEUES);
    let files = [
        ("workers/charge.yml", &*mails()),
        ("workers/other.yml", &other),
        ("flows/other.yml", &flow),
        ("queues.yml", &queues),
    ];
    let world = World::new(&files).await;
    let ids = waiting(&world, 2).await;
    let browser = Browser::of(&world).await;
    let (first, second) = (ids[0].to_string(), ids[1].to_string());

    // Somebody else rejects one while the page is open.
    let made =
        world.command("/api/v1/users", json!({"name": "maya", "role": "approver", "reason": "test"})).await.json();
    let vote = json!({"vote": "reject", "reason": "too much"}).to_string();
    let url = format!("http://{}/api/v1/approvals/{first}/decide", world.app().admin.unwrap());
    let voted = world.client.post(url).bearer_auth(made["token"].as_str().unwrap()).body(vote).send().await.unwrap();
    assert_eq!(voted.status(), 200);
    let late = browser.post("/approvals/decide", &[("vote", "approve"), ("id", &first), ("id", &second), WHY]).await;
    assert_eq!(late.status, 409, "{late:?}");
    check_says(&late.body, &["1 was decided meanwhile", "rejected by maya", "Approve 1?"]);
    assert_eq!(values(&late.body, "id"), [second.as_str()], "the rest is offered, and nothing was held");
    assert!(row(&world, &ids[1]).await.decision.is_none());
    check_says(&browser.page(&format!("/approvals/{first}")).await, &["rejected by maya", "too much"]);

    // One by one.
    let job = world.deliver("/hooks/other", &[("Idempotency-Key", "x")], r#"{"cart":"c-9","email":"x"}"#).await.job();
    world.wait_until(job, "waiting for people", |story| story.row.waits == Some(Waits::Approval)).await;
    let third = format!("{job}/second");
    let mixed = browser.post("/approvals/review", &[("vote", "approve"), ("id", &second), ("id", &third)]).await;
    assert_eq!(mixed.status, 400, "{mixed:?}");
    check_says(&mixed.body, &["Mixed kinds"]);
    let page = browser.follow("/approvals/decide", &[("vote", "reject"), ("id", &third), WHY]).await;
    check_says(&page, &["Reject “Send a mail about cart c-9”", "Undo"]);
    world.wait(job, Word::Noop).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_what_is_held_when_clinch_stops_is_not_done() {
    let mut world = World::new(&[("workers/charge.yml", &mails())]).await;
    let ids = waiting(&world, 1).await;
    let browser = Browser::of(&world).await;
    browser.follow("/approvals/decide", &[("vote", "approve"), ("id", &ids[0].to_string()), WHY]).await;
    world.close().await;
    world.open(clinch::app::Roles::ALL).await;
    let row = row(&world, &ids[0]).await;
    assert!(row.decision.is_none() && row.ballots.is_empty(), "{row:?}");
    assert!(!Browser::of(&world).await.page("/approvals").await.contains("/undo\""));
    world.close_and_verify().await;
}
