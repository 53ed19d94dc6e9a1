//! The audit and the settings in the console, and the names that it may be called by.

use crate::console_browser::{Browser, check_says};
use crate::world::{Answer, World};
use serde_json::{Value, json};

/// Two acts of the admin, and what clinch did by itself.
async fn acted() -> World {
    let world = World::new(&[]).await;
    let pause = json!({"scope": "flow:orders", "reason": "wrong prices"});
    assert_eq!(world.command("/api/v1/pauses", pause).await.status, 200);
    let resume = world.command("/api/v1/pauses/flow:orders/resume", json!({"reason": "right again"})).await;
    assert_eq!(resume.status, 200, "{resume:?}");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn k4_the_audit_is_filtered_paged_verified_and_exported() {
    let world = acted().await;
    let browser = Browser::of(&world).await;
    let page = browser.page("/audit").await;
    check_says(&page, &["pause.set", "pause.end", "config.activate", "wrong prices", "Verify the chain"]);
    let only = browser.page("/audit?actor=admin&action=pause.*&since=1h").await;
    assert!(only.contains("pause.end") && !only.contains("config.activate"), "{only}");
    check_says(&only, &["clinch audit ls --actor &#39;admin&#39; --action &#39;pause.*&#39; --since 1h"]);
    check_says(&browser.page("/audit?actor=nobody").await, &["Nothing was done that fits."]);
    let verified = world.admin("/api/v1/audit/verify").await.json();
    check_says(&browser.page("/audit?verify=1").await, &["The record is whole", verified["head"].as_str().unwrap()]);
    // A page ends where the next one begins.
    let last = world.admin("/api/v1/audit").await.json()["audit"][0]["no"].as_u64().unwrap();
    let older = browser.page(&format!("/audit?before={last}")).await;
    assert!(older.contains("pause.set") && !older.contains(&format!("id=\"row-{last}\"")), "{older}");

    let export = browser.get("/audit/export.jsonl?since=all").await;
    assert_eq!(export.header("content-disposition"), Some("attachment; filename=\"clinch-audit.jsonl\""));
    let rows: Vec<Value> = export.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = rows.iter().map(|row| row["no"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=last).collect::<Vec<u64>>(), "all of it, the oldest first");
    assert!(rows.iter().all(|row| row["hash"].is_string()), "with what is needed to prove it");
    let some = browser.get("/audit/export.jsonl?action=pause.*").await.body;
    assert_eq!(some.lines().count(), 2, "{some}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_settings_show_who_may_come_in_who_may_send_and_what_is_kept() {
    let world = World::new(&[]).await;
    let browser = Browser::of(&world).await;
    let page = browser.page("/settings").await;
    check_says(&page, &["Nobody has a token of their own yet", "No token yet", "anybody may send", "not yet"]);
    check_says(
        &page,
        &["orders-dlq", "7d", "queues.yml", "sqlite", "flows/orders.yml", "clinch itself reports to nobody"],
    );
    check_says(&page, &["The files count as they are.", "clinch set"]);
    world.post("k", "{}").await.job();
    assert!(!browser.page("/settings").await.contains("not yet"), "something was accepted");
    let told = world.admin("/api/v1/about").await.json();
    assert_eq!((&told["engine"], &told["version"]), (&json!("sqlite"), &json!("v1")));
    let (code, text) = world.clinch(&["about"]).await;
    assert!(code == 0 && text.contains("queue       orders-dlq keeps what ended for 7d"), "{text}");

    let dark = browser.post("/theme", &[("theme", "dark")]).await;
    assert_eq!((dark.status, dark.header("location")), (303, Some("/settings")));
    assert!(dark.header("set-cookie").unwrap().starts_with("clinch-theme=dark;"), "{dark:?}");
    let odd = browser.post("/theme", &[("theme", "\"><script>")]).await;
    assert!(odd.header("set-cookie").unwrap().starts_with("clinch-theme=auto;"), "{odd:?}");
    browser.check_guarded("/theme", &[("theme", "dark")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t100_the_console_answers_to_the_names_that_the_workspace_adds() {
    let world = World::new(&[("clinch.yml", "console: {hosts: [Clinch.Example.com]}\n")]).await;
    let at = world.app().admin.unwrap();
    let call = async |host: &str| {
        let request = world.client.get(format!("http://{at}/login")).header("host", host);
        Answer::read(request.send().await.unwrap()).await
    };
    assert_eq!(call("clinch.example.com").await.status, 200);
    assert_eq!(call(&at.to_string()).await.status, 200);
    for other in ["evil.example", "clinch.example.com.evil.example", "clinch.example.com:7401"] {
        let refused = call(other).await;
        assert_eq!(refused.status, 421, "{other}");
        assert!(refused.body.contains("console: {hosts:"), "{refused:?}");
    }
}
