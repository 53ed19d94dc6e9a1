//! Flows in the console: what runs, in which version, and what is different between two.

use crate::console_browser::{Browser, check_says};
use crate::world::{NO_WORKER, WORKER, World};
use serde_json::{Value, json};

/// The first version has a job that is not finished; the second tries more often and says to whom mail goes.
async fn two_versions() -> World {
    let mut world = World::with_roles(NO_WORKER, &[]).await;
    world.post("old", "{}").await.job();
    world.close().await;
    let changed = WORKER.replace("max_attempts: 3", "max_attempts: 5") + "# ask ada@example.com\n";
    world.write("workers/charge.yml", &changed);
    world.open(NO_WORKER).await;
    world.post("new", "{}").await.job();
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_a_flow_shows_its_steps_its_versions_and_the_jobs_on_each() {
    let world = two_versions().await;
    let told = world.admin("/api/v1/flows").await.json();
    let flow = &told["flows"][0];
    assert_eq!(
        (&flow["name"], &flow["kind"], &flow["file"]),
        (&json!("orders"), &json!("flow"), &json!("flows/orders.yml"))
    );
    assert_eq!((&flow["unfinished"], &flow["starts"]), (&json!(2), &json!(["POST /hooks/orders"])), "{told}");
    let told = world.admin("/api/v1/flows/orders").await.json();
    let versions: Vec<(&str, bool, u64)> = told["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (row["version"].as_str().unwrap(), row["live"].as_bool().unwrap(), row["unfinished"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(versions, [("v2", true, 1), ("v1", false, 1)]);
    let step = &told["workers"][0]["steps"][0];
    assert_eq!(
        (&step["name"], &step["does"], &step["integration"]),
        (&json!("charge"), &json!("http"), &json!("127.0.0.1"))
    );
    let paths: Vec<&Value> = told["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["flows/orders.yml", "workers/charge.yml"]);
    world.admin("/api/v1/flows/nobody").await.check_problem(404, "not-found");
    world.admin("/api/v1/flows/orders?version=v9").await.check_problem(404, "not-found");
    world.admin("/api/v1/flows/orders?version=x").await.check_problem(400, "bad-query");

    let browser = Browser::of(&world).await;
    check_says(&browser.page("/flows").await, &["orders", "POST /hooks/orders", "flows/orders.yml", "v2", "v1"]);
    let page = browser.page("/flows/orders").await;
    check_says(&page, &["Steps of charge", "href=\"/integrations/127.0.0.1\"", "max_attempts: 5", "Compare"]);
    let old = browser.page("/flows/orders?version=v1").await;
    assert!(old.contains("max_attempts: 3") && !old.contains("max_attempts: 5"), "{old}");
    let (code, text) = world.clinch(&["flows", "ls"]).await;
    assert!(code == 0 && text.contains("orders\tflow\t1\t2\tPOST /hooks/orders\tflows/orders.yml"), "{text}");
    let (code, text) = world.clinch(&["flows", "show", "orders", "--version", "v1", "--files"]).await;
    assert!(code == 0 && text.contains("max_attempts: 3") && text.contains("clinch flows diff orders v1 v2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_two_versions_are_compared_line_by_line_with_nobodys_address_in_it() {
    let world = two_versions().await;
    let told = world.admin("/api/v1/flows/orders/diff?from=v1&to=v2").await.json();
    assert_eq!(told["files"].as_array().unwrap().len(), 1, "{told}");
    let file = &told["files"][0];
    assert_eq!((&file["path"], &file["change"]), (&json!("workers/charge.yml"), &json!("changed")));
    let changed: Vec<(&str, &str)> = file["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (line["kind"].as_str().unwrap(), line["text"].as_str().unwrap()))
        .filter(|(kind, _)| *kind != "same")
        .collect();
    let [("removed", old), ("added", new), ("added", note)] = changed.as_slice() else { panic!("{changed:?}") };
    assert!(old.contains("max_attempts: 3") && new.contains("max_attempts: 5") && note.starts_with("# ask "), "{told}");
    assert!(!told.to_string().contains("ada@example.com"), "{told}");
    let browser = Browser::of(&world).await;
    let page = browser.page("/flows/orders?from=v1&to=v2").await;
    check_says(&page, &["v1 → v2", "<tr class=\"removed\">", "<tr class=\"added\">", "clinch diff v1 v2"]);
    check_says(
        &page,
        &["What it means", "CL0205", "a job that keeps failing is retried for", "a server started with it"],
    );
    assert!(!page.contains("ada@example.com"), "{page}");
    check_says(&browser.page("/flows/orders?from=v1&to=v1").await, &["Nothing of it is different."]);
    world.admin("/api/v1/flows/orders/diff?from=v1").await.check_problem(400, "bad-query");
    world.admin("/api/v1/flows/orders/diff?from=v1&to=v7").await.check_problem(404, "not-found");
    let (code, text) = world.clinch(&["flows", "diff", "orders", "v1", "v2"]).await;
    assert!(code == 0 && text.contains("- retry:") && text.contains("+ retry:"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_playbooks_and_schedules_are_among_them() {
    let nightly = "version: 1\nname: nightly\nschedule: {cron: '0 3 * * *', time_zone: Europe/Berlin}\nrun:\n  - name: ping\n    http: {url: http://TARGET/ping, method: GET, idempotency: natural}\n";
    let world = World::new(&[("workers/nightly.yml", nightly)]).await;
    let told = world.admin("/api/v1/flows/nightly").await.json();
    assert_eq!((&told["kind"], &told["starts"]), (&json!("schedule"), &json!(["0 3 * * * (Europe/Berlin)"])), "{told}");
    check_says(&Browser::of(&world).await.page("/flows").await, &["nightly", "schedule", "workers/nightly.yml"]);
}
