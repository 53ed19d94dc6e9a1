//! The one search box and the lists behind it: whatever names something finds it, and what is not understood is said.

use crate::world::{FLOW, Reply, World};
use clinch_core::job::Word;
use serde_json::{Value, json};

const BODY: &str = r#"{"order":7,"email":"ada@example.com"}"#;

/// What the search box says to this text.
async fn search(world: &World, text: &str) -> Value {
    let query: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    let answer = world.admin(&format!("/api/v1/search?q={query}")).await;
    assert_eq!(answer.status, 200, "{text}: {}", answer.body);
    answer.json()
}

/// What cannot be understood: the sentence that says so.
async fn refused(world: &World, path: &str, text: &str) -> String {
    let query: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    let told = world.admin(&format!("/api/v1/{path}?q={query}")).await.check_problem(400, "bad-query");
    told["detail"].as_str().unwrap().to_string()
}

fn ids(told: &Value) -> Vec<String> {
    told["jobs"]["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_whatever_names_a_job_finds_it() {
    let world = World::new(&[]).await;
    world.post_and_wait("order-8", BODY, Word::Success).await;
    world.target.script("/charge", [Reply::Status(403)]);
    let story = world.post_and_wait("order-7:a", BODY, Word::Dead).await;
    let (job, event) = (story.row.id.to_string(), story.row.event.to_string());
    let shown = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
    let trace = shown["event"]["trace_id"].as_str().unwrap().to_string();
    let step = story.effects[0].name.clone();
    let path = format!("/jobs/{job}");
    for (text, taken_for, by) in [
        (&*job, "job", "id"),
        (&*event, "event", "event"),
        (&*trace, "trace", "trace"),
        ("order-7:a", "text", "key"),
        ("orders:order-7:a", "text", "key"),
        (&*format!("  {job} "), "job", "id"),
    ] {
        let told = search(&world, text).await;
        assert_eq!(told["taken_for"], taken_for, "{text}");
        assert_eq!(told["open"], json!(path), "{text}");
        assert_eq!(told["hits"][0]["by"], by, "{text}");
        assert_eq!(ids(&told), std::slice::from_ref(&job), "{text}");
    }
    let told = search(&world, &format!("{job}/{step}")).await;
    assert_eq!(told["open"], json!(format!("/effects/{job}/{step}")));
    assert_eq!(world.admin(&format!("/api/v1{}", told["open"].as_str().unwrap())).await.status, 200);
    let sent = world.target.calls().last().unwrap().key().to_string();
    let told = search(&world, &sent).await;
    assert_eq!(
        (&told["open"], &told["hits"][0]["by"]),
        (&json!(format!("/effects/{job}/{step}")), &json!("effect_key"))
    );
    let ask = json!({"query": "reason:auth_failed source:orders try>=1", "reason": "look"});
    let plan = world.command("/api/v1/replays", ask).await.json()["plan"]["id"].as_str().unwrap().to_string();
    assert_eq!(search(&world, &plan).await["open"], json!(format!("/replays/{plan}")));
    let nothing = search(&world, "job_01HZX5T0N8W2A").await;
    assert_eq!((&nothing["open"], &nothing["hits"]), (&json!(null), &json!([])));
    assert!(nothing["notes"][0].as_str().unwrap().contains("retention"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_what_is_not_found_says_where_was_looked_and_where_not() {
    let world = World::new(&[]).await;
    let told = search(&world, "nobody-has-this").await;
    let notes = told["notes"].to_string();
    assert!(notes.contains("/hooks/orders") && notes.contains("encrypted"), "{notes}");
    let (exit, text) = world.clinch(&["find", "nobody-has-this"]).await;
    assert_eq!(exit, 3, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_a_customer_is_found_by_the_address_that_find_by_names() {
    let flow = FLOW.replace(
        "      path: /hooks/orders\n",
        "      path: /hooks/orders\n      find_by: [body:/email, '{{ body.phone }}', header:x-order-id]\n",
    );
    assert_ne!(flow, FLOW);
    let world = World::new(&[("flows/orders.yml", &flow)]).await;
    let body = r#"{"email":"Ada@Example.com","phone":"+49 30 1234567"}"#;
    let headers = [("idempotency-key", "a"), ("x-order-id", "order-77")];
    let job = world.deliver("/hooks/orders", &headers, body).await.job();
    world.wait(job, Word::Success).await;
    world.post_and_wait("b", r#"{"email":["nobody"],"phone":null}"#, Word::Success).await;
    let path = json!(format!("/jobs/{job}"));
    for text in ["ada@example.com", " ADA@EXAMPLE.COM", "0049 (30) 1234567", "order-77"] {
        let told = search(&world, text).await;
        assert_eq!((&told["open"], &told["hits"][0]["by"]), (&path, &json!("find_by")), "{text}: {told}");
    }
    let told = search(&world, "eve@example.com").await;
    assert_eq!(told["hits"], json!([]));
    assert!(told["notes"].to_string().contains("`find_by` of orders"), "{told}");
    let whole = world.admin("/api/v1/search?q=ada%40example.com").await.body;
    assert!(!whole.to_lowercase().contains("ada@"), "{whole}");
    let (exit, _) = world.clinch(&["forget", "--value", "ada@example.com", "--reason", "asked for"]).await;
    assert_eq!(exit, 0);
    assert_eq!(search(&world, "ada@example.com").await["hits"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_words_narrow_the_list_and_an_unknown_one_shows_nothing() {
    let refunds = FLOW.replace("name: orders\ntriggers", "name: refunds\ntriggers");
    let world = World::new(&[("flows/refunds.yml", &refunds.replace("/hooks/orders", "/hooks/refunds"))]).await;
    let good = world.post_and_wait("good", BODY, Word::Success).await.row.id.to_string();
    world.target.script("/charge", [Reply::Status(422)]);
    let bad = world.post_and_wait("bad", BODY, Word::Dead).await.row.id.to_string();
    world.target.script("/charge", [Reply::Status(403)]);
    let refund = world.deliver("/hooks/refunds", &[("idempotency-key", "r-1")], BODY).await.job();
    world.wait(refund, Word::Dead).await;
    let refund = refund.to_string();
    let check = async |query: &str, jobs: &[&String]| {
        let told = search(&world, query).await;
        assert_eq!(told["taken_for"], "query");
        assert_eq!(ids(&told), jobs.iter().map(|id| id.to_string()).collect::<Vec<_>>(), "{query}");
        assert_eq!(told["jobs"]["scope"]["matches"], jobs.len(), "{query}");
        let encoded: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let list = world.admin(&format!("/api/v1/jobs?q={encoded}")).await.json();
        assert_eq!(list["jobs"].as_array().unwrap().len(), jobs.len(), "{query}");
    };
    check("flow:orders", &[&bad, &good]).await;
    check("state:dead", &[&refund, &bad]).await;
    check("state:dead flow:refunds", &[&refund]).await;
    check("source:refunds", &[&refund]).await;
    check("reason:auth_failed", &[&refund]).await;
    check("key:bad", &[&bad]).await;
    check("key:bad flow:refunds", &[]).await;
    check(&format!("job:{good} state:success"), &[&good]).await;
    check("step:charge", &[&refund, &bad, &good]).await;
    check("try>=2", &[]).await;
    check("try<2 state:dead age<1h", &[&refund, &bad]).await;
    check("age>1h", &[]).await;
    check("state:dead since:1h", &[&refund, &bad]).await;
    check("until:1h", &[]).await;

    assert!(refused(&world, "search", "flwo:orders").await.contains("did you mean `flow:`?"));
    assert!(refused(&world, "jobs", "state:deda").await.contains("did you mean `dead`?"));
    assert!(refused(&world, "search", "integration:nobody").await.contains("no integration `nobody`"));
    assert!(refused(&world, "search", "").await.contains("nothing says"));
    assert!(refused(&world, "search", "flow:orders ada").await.contains("`ada` is not a word"));
    let told = search(&world, "flow:ordres").await;
    assert!(told["notes"][0].as_str().unwrap().contains("Did you mean `orders`?"), "{told}");
    world.admin("/api/v1/jobs?q=flow:orders&flow=refunds").await.check_problem(400, "bad-query");

    let (exit, text) = world.clinch(&["jobs", "ls", "state:dead", "flow:refunds", "-o", "id"]).await;
    assert_eq!((exit, text.lines().next()), (0, Some(&*refund)), "{text}");
    let (exit, text) = world.clinch(&["find", "flow:orders", "try>=1", "-o", "json"]).await;
    assert!(exit == 0 && text.contains("clinch.search/v1"), "{text}");
    assert_eq!(world.clinch(&["jobs", "ls", "flwo:x"]).await.0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_events_are_listed_with_their_duplicates_and_conflicts() {
    let world = World::new(&[]).await;
    world.post_and_wait("a", BODY, Word::Success).await;
    world.post_and_wait("b", BODY, Word::Success).await;
    assert!(world.post("a", BODY).await.is_replayed());
    assert_eq!(world.post("b", "{}").await.status, 422);
    let told = world.admin("/api/v1/events").await.json();
    let counts: Vec<(u64, u64)> = told["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["duplicates"].as_u64().unwrap(), event["conflicts"].as_u64().unwrap()))
        .collect();
    assert_eq!(counts, [(0, 1), (1, 0)]);
    let again = world.admin("/api/v1/events?again=conflict").await.json();
    assert_eq!(again["events"].as_array().unwrap().len(), 1);
    let first = world.admin("/api/v1/events?limit=1").await.json();
    let next = first["next_before"].as_str().unwrap();
    let rest = world.admin(&format!("/api/v1/events?limit=1&before={next}")).await.json();
    assert_eq!(rest["events"][0], told["events"][1]);
    for wrong in ["events?again=twice", "events?since=never", "events?before=job_01HZX5T0N8W2A", "events?sorce=x"] {
        world.admin(&format!("/api/v1/{wrong}")).await.check_problem(400, "bad-query");
    }
    let (exit, text) = world.clinch(&["events", "ls", "--again", "duplicate", "-o", "json"]).await;
    assert!(exit == 0 && text.contains("\"duplicates\": 1"), "{text}");
}
