//! The door: what is accepted, what is recognised, what is refused, and that the same thing always gets the same answer.

use crate::world::{Answer, FLOW, NO_WORKER, PATIENCE, QUEUES, WORKER, World, raw, read_raw};
use clinch_core::job::Word;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const BODY: &str = r#"{"order":7,"note":"fragile"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn b4_the_same_key_twice_gets_the_first_answer_and_makes_one_job() {
    let world = World::new(&[]).await;
    let first = world.post("k-1", BODY).await;
    let second = world.post("k-1", BODY).await;
    assert_eq!(first.status, 202);
    assert_eq!((second.status, &second.body), (first.status, &first.body));
    assert_eq!(second.header("content-type"), first.header("content-type"));
    assert!(!first.is_replayed() && second.is_replayed());
    let told = first.json();
    assert_eq!(told["status"], "accepted");
    assert!(told["event_id"].as_str().unwrap().starts_with("evt_"), "{told}");

    let story = world.wait(first.job(), Word::Success).await;
    let third = world.post("k-1", BODY).await;
    assert_eq!((third.status, &third.body, third.is_replayed()), (202, &first.body, true), "also after the job ended");
    assert_eq!(story.row.attempts, 1);
    assert_eq!(world.jobs().await.len(), 1);
    assert_eq!(world.target.calls().len(), 1);
    assert_eq!(world.target.calls()[0].body, BODY);
    assert_eq!(world.close_and_verify().await.events, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_t_050_a_thousand_concurrent_posts_of_one_key_make_one_event_one_effect_and_equal_answers() {
    const POSTS: usize = 1_000;
    allow_open_files(3 * POSTS as u64);
    let world = World::new(&[]).await;
    let request = format!(
        "POST /hooks/orders HTTP/1.1\r\nhost: clinch\r\nidempotency-key: only-one\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    // Everybody is connected before anybody speaks.
    let together = Arc::new(tokio::sync::Barrier::new(POSTS));
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..POSTS {
        let (address, request, together) = (world.intake(), request.clone(), together.clone());
        posts.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            together.wait().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            read_raw(stream).await
        });
    }
    let answers = tokio::time::timeout(2 * PATIENCE, posts.join_all()).await.expect("all are answered");
    let told: BTreeSet<(u16, &str)> = answers.iter().map(|answer| (answer.status, answer.body.as_str())).collect();
    assert_eq!(told.len(), 1, "all are equal: {told:?}");
    assert_eq!(answers[0].status, 202);
    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1, "one of them was the first");

    let story = world.wait(answers[0].job(), Word::Success).await;
    assert_eq!(story.deliveries.iter().map(|row| row.times).sum::<u64>(), POSTS as u64 - 1);
    assert!(story.deliveries.iter().all(|row| !row.conflict));
    assert_eq!(world.jobs().await.len(), 1);
    assert_eq!(world.target.calls().len(), 1);
    let report = world.close_and_verify().await;
    assert_eq!((report.events, report.accepted), (1, 1));
}

/// Both ends of every connection are in this process.
fn allow_open_files(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|now| now < files) {
        let raised = Rlimit { current: Some(files), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("so many files may be open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_t_051_the_same_key_with_another_body_is_422_and_leaves_the_first_untouched() {
    let world = World::new(&[]).await;
    let first = world.post("k", BODY).await;
    world.wait(first.job(), Word::Success).await;
    let problem = world.post("k", r#"{"order":8}"#).await.check_problem(422, "idempotency-key-reused");
    assert_eq!(problem["job_id"], first.job().to_string());
    assert!(!problem.to_string().contains("fragile"), "the first body stays private: {problem}");

    let again = world.post("k", BODY).await;
    assert_eq!((again.status, &again.body, again.is_replayed()), (202, &first.body, true));
    let story = world.job(first.job()).await;
    let conflicts: Vec<bool> = story.deliveries.iter().map(|row| row.conflict).collect();
    assert_eq!(conflicts, [true, false], "both later deliveries are on record");
    assert_eq!(world.target.calls().len(), 1);
    assert_eq!(world.target.calls()[0].body, BODY);
    assert_eq!(world.close_and_verify().await.events, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_t_051_a_source_that_keeps_the_first_is_answered_like_it_and_the_conflict_is_counted() {
    let flow = FLOW.replace("ttl: 48h", "ttl: 48h\n        on_conflict: keep_first");
    let world = World::new(&[("flows/orders.yml", &flow)]).await;
    let first = world.post("k", BODY).await;
    let other = world.post("k", r#"{"order":8}"#).await;
    assert_eq!((other.status, &other.body, other.is_replayed()), (202, &first.body, true));
    let story = world.wait(first.job(), Word::Success).await;
    assert!(story.deliveries.iter().map(|row| row.conflict).eq([true]), "{story:?}");
    assert_eq!(world.target.calls().len(), 1);
    assert_eq!(world.target.calls()[0].body, BODY);
}

/// Two deliveries: the same event, or two.
async fn check_same(world: &World, same: bool, one: (&[(&str, &str)], &str), two: (&[(&str, &str)], &str)) {
    let first = world.deliver("/hooks/orders", one.0, one.1).await;
    let second = world.deliver("/hooks/orders", two.0, two.1).await;
    assert_eq!(first.job() == second.job(), same, "{one:?} and {two:?}");
    assert_eq!(second.is_replayed(), same, "{one:?} and {two:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_t_052_a_key_is_read_from_a_header_in_either_spelling() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    let key = |value: &'static str| [("Idempotency-Key", value)];
    check_same(&world, true, (&key("k"), BODY), (&key("\"k\""), BODY)).await;
    check_same(&world, false, (&key("a"), BODY), (&key("A"), BODY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_key_is_read_from_a_place_in_the_body() {
    let flow = FLOW.replace("header:Idempotency-Key", "body:/data/id");
    let flow = flow.replace("ttl: 48h", "ttl: 48h\n        on_conflict: keep_first");
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    check_same(&world, true, (&[], r#"{"data":{"id":"e-1"},"try":1}"#), (&[], r#"{"data":{"id":"e-1"},"try":2}"#))
        .await;
    check_same(&world, false, (&[], r#"{"data":{"id":1}}"#), (&[], r#"{"data":{"id":2}}"#)).await;
    for without in [r#"{"data":{}}"#, r#"{"data":{"id":null}}"#, ""] {
        let answer = world.deliver("/hooks/orders", &[("idempotency-key", "elsewhere")], without).await;
        answer.check_problem(400, "idempotency-key-missing");
    }
    let object = world.deliver("/hooks/orders", &[], r#"{"data":{"id":{"x":1}}}"#).await;
    object.check_problem(400, "idempotency-key-invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_key_of_several_parts_is_the_same_when_all_of_them_are() {
    let flow = FLOW.replace("header:Idempotency-Key", "[header:X-Shop-Id, body:/id]");
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    let shop = |value: &'static str| [("x-shop-id", value)];
    check_same(&world, true, (&shop("a"), r#"{"id":1}"#), (&shop("a"), r#"{"id":1}"#)).await;
    check_same(&world, false, (&shop("b"), r#"{"id":1}"#), (&shop("b"), r#"{"id":2}"#)).await;
    check_same(&world, false, (&shop("c"), r#"{"id":1}"#), (&shop("d"), r#"{"id":1}"#)).await;
    // The parts are told apart, not glued together.
    check_same(&world, false, (&shop("1"), r#"{"id":"23"}"#), (&shop("12"), r#"{"id":"3"}"#)).await;
    world.deliver("/hooks/orders", &shop("a"), "{}").await.check_problem(400, "idempotency-key-missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_t_054_one_key_of_two_tenants_is_two_events() {
    let flow = FLOW.replace("path: /hooks/orders", "path: /hooks/orders\n      tenant_from: header:X-Account-Id");
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    let of = |tenant: &'static str| [("idempotency-key", "k"), ("x-account-id", tenant)];
    check_same(&world, false, (&of("acme"), BODY), (&of("globex"), BODY)).await;
    // Another body under the other tenant's key says nothing about the other tenant.
    let third = world.deliver("/hooks/orders", &of("initech"), r#"{"x":1}"#).await;
    assert_eq!((third.status, third.is_replayed()), (202, false));
    check_same(&world, true, (&of("acme"), BODY), (&of("acme"), BODY)).await;
    let nobody = world.post("k", BODY).await;
    assert_eq!(nobody.status, 400, "whose delivery it is must be said: {nobody:?}");
    assert_eq!(world.close_and_verify().await.events, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_t_054_one_key_on_two_routes_is_two_events() {
    let refunds =
        FLOW.replace("name: orders\ntriggers", "name: refunds\ntriggers").replace("/hooks/orders", "/hooks/refunds");
    let world = World::with_roles(NO_WORKER, &[("flows/refunds.yml", &refunds)]).await;
    let key = [("idempotency-key", "k")];
    let order = world.deliver("/hooks/orders", &key, BODY).await;
    let refund = world.deliver("/hooks/refunds", &key, r#"{"refund":1}"#).await;
    assert_ne!(order.job(), refund.job());
    assert!(!refund.is_replayed());
    let flows: BTreeSet<String> = world.jobs().await.iter().map(|row| row.flow.to_string()).collect();
    assert_eq!(flows.into_iter().collect::<Vec<_>>(), ["orders", "refunds"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn t_053_a_request_has_one_readable_key() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    let send = async |keys: &[&str]| {
        let headers: Vec<(&str, &str)> = keys.iter().map(|key| ("idempotency-key", *key)).collect();
        world.deliver("/hooks/orders", &headers, BODY).await
    };
    let missing = send(&[]).await.check_problem(400, "idempotency-key-missing");
    assert!(missing["detail"].as_str().unwrap().contains("idempotency-key"), "{missing}");
    let long = "x".repeat(256);
    for keys in [&["a", "a"][..], &["a", "b"], &[""], &[&long], &["\"a\", \"b\""], &["a b"]] {
        send(keys).await.check_problem(400, "idempotency-key-invalid");
    }
    assert_eq!(send(&[&long[1..]]).await.status, 202);
    assert_eq!(world.jobs().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn t_057_a_refused_request_never_claims_its_key() {
    let flow = FLOW.replace("path: /hooks/orders", "path: /hooks/orders\n      body_max: 64B");
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    let key = ("idempotency-key", "k");
    world.post("k", "{").await.check_problem(400, "malformed");
    world.post("k", &format!("{:?}", "x".repeat(100))).await.check_problem(413, "too-large");
    let encoded = world.deliver("/hooks/orders", &[key, ("content-encoding", "gzip")], BODY).await;
    encoded.check_problem(415, "unsupported-encoding");
    world.deliver("/hooks/orders", &[key, key], BODY).await.check_problem(400, "idempotency-key-invalid");
    let good = world.post("k", BODY).await;
    assert_eq!((good.status, good.is_replayed()), (202, false));
    assert!(world.job(good.job()).await.deliveries.is_empty());
    assert_eq!(world.jobs().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f27_a_hundred_pings_without_key_or_body_are_a_hundred_events() {
    let flow = FLOW.replace("ttl: 48h", "ttl: 48h\n        required: false");
    let world = World::new(&[("flows/orders.yml", &flow)]).await;
    let mut jobs = BTreeSet::new();
    for _ in 0..100 {
        let answer = world.deliver("/hooks/orders", &[], "").await;
        assert!(!answer.is_replayed());
        jobs.insert(answer.job());
    }
    assert_eq!(jobs.len(), 100);
    for job in &jobs {
        world.wait(*job, Word::Success).await;
    }
    let keys: BTreeSet<String> = world.target.calls().iter().map(|call| call.key().to_string()).collect();
    assert_eq!((world.target.calls().len(), keys.len()), (100, 100));
    // A key that is sent counts all the same.
    check_same(&world, true, (&[("idempotency-key", "k")], BODY), (&[("idempotency-key", "k")], BODY)).await;
    assert_eq!(world.close_and_verify().await.events, 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_without_a_key_rule_takes_everything_as_new() {
    let flow = FLOW.split("      idempotency:").next().unwrap().to_string()
        + "steps:\n  - {name: enqueue, queue: {name: orders}}\n";
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    check_same(&world, false, (&[("idempotency-key", "k")], BODY), (&[("idempotency-key", "k")], BODY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t_121_every_refusal_is_a_problem_that_repeats_its_status() {
    let world = World::with_roles(NO_WORKER, &[]).await;
    let key = [("idempotency-key", "k")];
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    world.deliver("/hooks/nowhere", &key, BODY).await.check_problem(404, "not-found");
    world.deliver("/hooks/orders/", &key, BODY).await.check_problem(404, "not-found");
    world.deliver("/hooks/orders", &key, &deep).await.check_problem(400, "malformed");
    let bad = world.deliver("/hooks/orders", &key, "{\"a\":\n nope}").await.check_problem(400, "malformed");
    assert!(bad["detail"].as_str().unwrap().contains("line 2, column"), "{bad}");

    let url = format!("http://{}/hooks/orders", world.intake());
    let got = world.client.get(&url).send().await.unwrap();
    assert_eq!(got.headers()["allow"], "POST");
    assert_eq!(got.headers()["content-type"], "application/problem+json");
    assert_eq!(got.status(), 405);
    assert_eq!(got.json::<serde_json::Value>().await.unwrap()["status"], 405);

    let not_text = world.client.post(&url).header("idempotency-key", "k").body(&b"{\"a\":\"\xff\xfe\"}"[..]);
    let not_text = not_text.send().await.unwrap();
    assert_eq!(not_text.status(), 400);
    assert!(not_text.text().await.unwrap().contains("not UTF-8 text after byte 6"));
    assert!(world.jobs().await.is_empty(), "nothing of it was stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so() {
    let flow = FLOW.replace("path: /hooks/orders", "path: /hooks/orders\n      body_max: 1KiB");
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", &flow)]).await;
    let send = async |more: &str| -> Answer {
        let request = format!("POST /hooks/orders HTTP/1.1\r\nhost: clinch\r\nidempotency-key: k\r\n{more}");
        raw(world.intake(), request.as_bytes()).await
    };
    // Declared: refused before a byte of it is read.
    send("content-length: 2000000\r\n\r\n").await.check_problem(413, "too-large");
    // Not declared: refused as soon as it is more; the end never comes.
    let chunk = format!("258\r\n{}\r\n", "x".repeat(600));
    send(&format!("transfer-encoding: chunked\r\n\r\n{chunk}{chunk}")).await.check_problem(413, "too-large");
    // Chunks within the limit are a body like any other.
    let small =
        send("connection: close\r\ntransfer-encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n").await;
    assert_eq!(small.status, 202, "{small:?}");
    let exact = format!("{:?}", "x".repeat(1022));
    assert_eq!(world.post("exact", &exact).await.status, 202);
    assert_eq!(world.jobs().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_who_sends_too_much_and_listens_only_then_is_answered_all_the_same() {
    let world = World::with_roles(NO_WORKER, &[("flows/orders.yml", FLOW)]).await;
    let admin = world.app().admin.expect("it has an admin listener");
    for (at, path) in [(world.intake(), "/hooks/orders"), (admin, "/login"), (admin, "/api/v1/users")] {
        let answer = tokio::task::spawn_blocking(move || {
            let body = vec![b'x'; 5 << 20];
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: clinch\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let mut stream = std::net::TcpStream::connect(at).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_that_the_flow_asks_for_is_given_to_the_first_and_to_its_duplicates() {
    let flow = format!("{FLOW}responses: {{status: 200}}\n");
    let mut world = World::new(&[("flows/orders.yml", &flow)]).await;
    let first = world.post("k", BODY).await;
    let second = world.post("k", BODY).await;
    assert_eq!((first.status, second.status, second.is_replayed()), (200, 200, true));
    assert_eq!(first.body, second.body);
    // A duplicate gets what the first one got, whatever the flow says by now.
    world.wait(first.job(), Word::Success).await;
    world.close().await;
    world.write("flows/orders.yml", FLOW);
    world.open(clinch::app::Roles::ALL).await;
    let third = world.post("k", BODY).await;
    assert_eq!((third.status, &third.body, third.is_replayed()), (200, &first.body, true));
    assert_eq!(world.post("other", BODY).await.status, 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_p2_keys_outlive_the_process() {
    let mut world = World::with_roles(NO_WORKER, &[]).await;
    let first = world.post("k", BODY).await;
    world.close().await;
    world.open(clinch::app::Roles::ALL).await;
    let second = world.post("k", BODY).await;
    assert_eq!((second.status, &second.body, second.is_replayed()), (202, &first.body, true));
    world.wait(first.job(), Word::Success).await;
    assert_eq!(world.target.calls().len(), 1);
    assert_eq!(world.close_and_verify().await.events, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn t_058_t_059_a_key_is_forgotten_when_its_time_is_over_but_never_while_its_job_is_unfinished() {
    const TTL: Duration = Duration::from_secs(6);
    let flow = FLOW.replace("ttl: 48h", "ttl: 6s");
    let slow = FLOW.replace("name: orders\ntriggers", "name: slow\ntriggers").replace("/hooks/orders", "/hooks/slow");
    let slow = slow.replace("ttl: 48h", "ttl: 6s").replace("queue: {name: orders}", "queue: {name: parked}");
    let queues = format!("{QUEUES}  - name: parked\n");
    let worker = WORKER.replace("max_attempts: 3", "max_attempts: 1").replace("body_from", "timeout: 5s, body_from");
    let files = [("flows/orders.yml", flow.as_str()), ("flows/slow.yml", &slow), ("queues.yml", &queues)];
    let world = World::new(&[&files[..], &[("workers/charge.yml", &worker)]].concat()).await;
    // Nobody consumes its queue: this one stays unfinished.
    let key = [("idempotency-key", "k")];
    let unfinished = world.deliver("/hooks/slow", &key, BODY).await;
    let finished = world.post("k", BODY).await;
    world.wait(finished.job(), Word::Success).await;
    let began = std::time::Instant::now();
    let again = loop {
        let again = world.post("k", BODY).await;
        if !again.is_replayed() {
            break again;
        }
        assert_eq!(again.body, finished.body);
        assert!(began.elapsed() < PATIENCE, "it is never forgotten");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let received = async |answer: &Answer| world.job(answer.job()).await.row.received_at;
    let apart = received(&again).await.since(received(&finished).await);
    assert!(apart >= TTL, "forgotten too early: {apart:?}");
    // The other key was taken before that one, so its time is over, too.
    let held = world.deliver("/hooks/slow", &key, BODY).await;
    assert_eq!((held.is_replayed(), &held.body), (true, &unfinished.body));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_with_two_queues_makes_a_job_in_each() {
    let queues = "queues:\n  - name: orders\n  - name: orders-dlq\n  - name: mails\n";
    let flow = format!("{FLOW}  - name: mail\n    queue: {{name: mails}}\n");
    let mailer = "name: mailer\nconsumes: {queue: mails}\nrun:\n  - name: mail\n    http: {url: http://TARGET/mail, body_from: body}\n";
    let world =
        World::new(&[("queues.yml", queues), ("flows/orders.yml", &flow), ("workers/mailer.yml", mailer)]).await;
    let answer = world.post("k", BODY).await;
    assert_eq!(world.post("k", BODY).await.body, answer.body);
    let jobs = world.jobs().await;
    assert_eq!(jobs.len(), 2);
    for row in jobs {
        world.wait(row.id, Word::Success).await;
    }
    assert_eq!((world.target.calls_at("/charge").len(), world.target.calls_at("/mail").len()), (1, 1));
    let report = world.close_and_verify().await;
    assert_eq!((report.events, report.accepted), (1, 2));
}
