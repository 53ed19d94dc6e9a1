//! Safe mode and pauses in the console: everything is stopped and started again, also without a script.

use crate::console_browser::{Browser, check_says};
use crate::world::{Reply, World, worker_with_step};
use clinch_core::job::{Waits, Word};
use serde_json::json;

fn charges() -> String {
    worker_with_step(
        "  - name: charge
    http: {url: http://TARGET/charge, body_from: body, idempotency: header}
",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn f5_everything_is_stopped_and_let_go_again_from_the_sheet() {
    let world = World::new(&[("workers/charge.yml", &charges())]).await;
    let browser = Browser::of(&world).await;
    check_says(
        &browser.page("/safe-mode").await,
        &["Stop what?", "integration:127.0.0.1", "flow:orders", "jobs run now"],
    );
    let on = [("what", "all"), ("until", ""), ("reason", "wrong price")];
    browser.check_guarded("/safe-mode/on", &on).await;
    assert_eq!(browser.post("/safe-mode/on", &on[..2]).await.status, 400, "a reason is needed");
    let unsaid = browser.post("/safe-mode/on", &[("what", "flow"), ("flow", ""), ("reason", "x")]).await;
    assert_eq!(unsaid.status, 400, "a list that was not chosen from does not mean everything");
    assert_eq!(world.admin("/api/v1/safe-mode").await.json()["on"], json!([]), "nothing was changed");

    let page = browser.follow("/safe-mode/on", &on).await;
    check_says(&page, &["Safe mode is on", "wrong price", "Turn it off", "Nothing waits because of it"]);
    let job = world.post("k-1", "{}").await.job();
    world.wait_until(job, "held", |story| story.row.waits == Some(Waits::SafeMode)).await;
    check_says(&browser.page("/safe-mode").await, &["<b>1</b> job waits", "orders", "takes "]);
    assert!(world.target.calls().is_empty());
    browser.check_guarded("/safe-mode/off", &[]).await;
    assert_eq!(browser.post("/safe-mode/off", &[("drain_other", "fast")]).await.status, 400);
    let page = browser.follow("/safe-mode/off", &[("drain", "20/s")]).await;
    check_says(&page, &["Safe mode is off", "Stop what?"]);
    world.wait(job, Word::Success).await;

    // One part alone, and for a while.
    let part = [
        ("what", "integration"),
        ("integration", "integration:127.0.0.1"),
        ("until", "30m"),
        ("reason", "they bounce"),
    ];
    check_says(
        &browser.follow("/safe-mode/on", &part).await,
        &["(integration:127.0.0.1)", "they bounce", "Stop what?"],
    );
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_anything_that_can_be_paused_is_offered_paused_and_resumed() {
    let world = World::new(&[("workers/charge.yml", &charges())]).await;
    let browser = Browser::of(&world).await;
    let page = browser.page("/pauses?scope=flow:orders").await;
    check_says(
        &page,
        &["Nothing is paused", "value=\"flow:orders\" selected", "value=\"queue:orders\"", "value=\"replays\""],
    );
    check_says(&page, &["value=\"integration:127.0.0.1\"", "value=\"source:orders\""]);
    let pause = [("scope", "flow:orders"), ("until", "2h"), ("reason", "wrong prices")];
    browser.check_guarded("/pauses", &pause).await;
    assert_eq!(world.admin("/api/v1/pauses").await.json()["pauses"], json!([]));
    assert_eq!(browser.post("/pauses", &[("scope", "flow:other"), ("reason", "x")]).await.status, 404);
    check_says(
        &browser.follow("/pauses", &pause).await,
        &["It stands still", "wrong prices", "aria-label=\"Resume flow:orders\""],
    );
    let job = world.post("k-1", "{}").await.job();
    world.wait_until(job, "held", |story| story.row.waits == Some(Waits::Paused)).await;
    browser.check_guarded("/pauses/resume", &[("scope", "flow:orders")]).await;
    check_says(
        &browser.follow("/pauses/resume", &[("scope", "flow:orders")]).await,
        &["It goes on", "Nothing is paused"],
    );
    world.wait(job, Word::Success).await;
    check_says(&browser.follow("/pauses/resume", &[("scope", "flow:orders")]).await, &["It was not paused"]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_what_a_role_may_not_do_is_neither_offered_nor_done() {
    let world = World::new(&[("workers/charge.yml", &charges())]).await;
    world.target.script("/charge", [Reply::Status(422)]);
    let job = world.post_and_wait("k-1", "{}", Word::Dead).await.row.id.to_string();
    let viewer = Browser::of_user(&world, "vic", "viewer").await;
    let growth = Browser::of_user(&world, "gil", "growth").await;
    let why = ("reason", "because");
    let group = "/dead?flow=orders&reason=rejected_by_target";
    for (browser, path, offered) in [
        (&viewer, group, ["/replays/new", "Request drop"]),
        (&viewer, "/safe-mode", ["/safe-mode/on", "/safe-mode/off"]),
        (&viewer, "/pauses", ["action=\"/pauses\"", "/pauses/resume"]),
        (&growth, group, ["/replays/new", "Request drop"]),
    ] {
        let page = browser.page(path).await;
        assert!(offered.iter().all(|one| !page.contains(one)), "{path} offers what is refused: {page}");
    }
    for (browser, path, fields) in [
        (&viewer, "/replays", vec![("query", "flow:orders"), why]),
        (&growth, "/replays", vec![("query", "flow:orders"), why]),
        (&growth, "/dead/drop/ask", vec![("job", &*job), ("count", "1"), why]),
        (&growth, "/pauses", vec![("scope", "flow:orders"), why]),
        (&viewer, "/safe-mode/on", vec![("what", "all"), why]),
    ] {
        let refused = browser.post(path, &fields).await;
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
    }
    for (path, list) in [("replays", "plans"), ("dead/drops", "drops"), ("pauses", "pauses"), ("safe-mode", "on")] {
        assert_eq!(world.admin(&format!("/api/v1/{path}")).await.json()[list], json!([]), "nothing was changed");
    }
    // What growth is for.
    check_says(&growth.follow("/safe-mode/on", &[("what", "all"), why]).await, &["Safe mode is on", "by gil"]);
    world.close_and_verify().await;
}
