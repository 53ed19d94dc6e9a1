//! In which order jobs reach the target: groups one at a time, the urgent first, nobody kept waiting by another's backlog.

use crate::world::{Call, FLOW, NO_WORKER, OK, Reply, WORKER, World, files_below};
use clinch::app::Roles;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const FIFO: &str = "
queues:
  - name: orders
    fifo: true
    group_from: body:/group
  - name: orders-dlq
    retention: 7d
";

fn body(group: &str, nth: usize) -> String {
    format!(r#"{{"group":"{group}","nth":{nth}}}"#)
}

/// The numbers that each group's calls carried, in the order in which they came, each as often as it came.
fn by_group(calls: &[Call]) -> HashMap<String, Vec<u64>> {
    let mut groups: HashMap<String, Vec<u64>> = HashMap::new();
    for call in calls {
        let sent: serde_json::Value = serde_json::from_str(&call.body).unwrap();
        groups.entry(sent["group"].as_str().unwrap().into()).or_default().push(sent["nth"].as_u64().unwrap());
    }
    groups
}

/// Answers as dice would have it: about a third of them are failures.
fn at_random(seed: u64, times: usize) -> Vec<Reply> {
    let mut state = seed;
    let mut replies: Vec<Reply> = (0..times)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match (state >> 60) % 6 {
                0 => Reply::Status(503),
                1 => Reply::Drop,
                _ => OK,
            }
        })
        .collect();
    replies.push(OK);
    replies
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_i5_each_group_reaches_a_failing_target_in_order_of_acceptance() {
    const GROUPS: usize = 10;
    const EACH: usize = 20;
    let worker = WORKER.replace("max_attempts: 3", "max_attempts: 30");
    let world = World::new(&[("queues.yml", FIFO), ("workers/charge.yml", &worker)]).await;
    world.target.script("/charge", at_random(7, GROUPS * EACH));
    let mut jobs: Vec<JobId> = Vec::new();
    for nth in 0..EACH {
        for group in 0..GROUPS {
            let answer = world.post(&format!("{group}-{nth}"), &body(&format!("g{group}"), nth)).await;
            jobs.push(answer.job());
        }
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    let groups = by_group(&world.target.calls());
    assert_eq!(groups.len(), GROUPS);
    assert!(groups.values().map(Vec::len).sum::<usize>() > GROUPS * EACH, "some calls failed");
    for (group, mut sent) in groups {
        sent.dedup();
        assert_eq!(sent, (0..EACH as u64).collect::<Vec<_>>(), "{group}");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_group_has_one_call_under_way_and_holds_up_no_other() {
    let world = World::new(&[("queues.yml", FIFO)]).await;
    world.target.script("/charge", [Reply::Held]);
    let first = world.post("a0", &body("a", 0)).await.job();
    let second = world.post("a1", &body("a", 1)).await.job();
    world.target.called(1).await;
    world.post("b0", &body("b", 0)).await;
    let calls = world.target.called(2).await;
    assert_eq!(by_group(&calls), HashMap::from([("a".into(), vec![0]), ("b".into(), vec![0])]));
    let shown = world.admin(&format!("/api/v1/jobs/{second}")).await.json();
    assert_eq!(shown["waits_behind"], first.to_string());
    assert_eq!(shown["job"]["state"], "queued");
    world.target.release();
    world.target.release();
    let calls = world.target.called(3).await;
    assert_eq!(by_group(&calls)["a"], [0, 1]);
    world.target.release();
    world.wait(second, Word::Success).await;
    world.close_and_verify().await;
}

/// A worker that calls the path which the delivery names.
fn poisonable() -> String {
    WORKER.replace("url: http://TARGET/charge", "url: \"http://TARGET/{{ body.path }}\"")
}

fn to(path: &str, nth: usize) -> String {
    format!(r#"{{"group":"g","nth":{nth},"path":"{path}"}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_poison_job_is_buried_and_its_group_goes_on() {
    let world = World::new(&[("queues.yml", FIFO), ("workers/charge.yml", &poisonable())]).await;
    world.target.script("/poison", [Reply::Status(503)]);
    let first = world.post("0", &to("fine", 0)).await.job();
    let poison = world.post("1", &to("poison", 1)).await.job();
    let last = world.post("2", &to("fine", 2)).await.job();
    world.wait(last, Word::Success).await;
    world.wait(first, Word::Success).await;
    assert_eq!(world.job(poison).await.row.word, Word::Dead);
    assert_eq!(by_group(&world.target.calls())["g"], [0, 1, 1, 1, 2]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_poison_job_blocks_its_group_until_it_is_replayed_where_the_queue_says_so() {
    let queues = FIFO.replace("fifo: true", "fifo: true\n    on_dead: block");
    let mut world = World::new(&[("queues.yml", &queues), ("workers/charge.yml", &poisonable())]).await;
    world.target.script("/poison", [Reply::Status(404), OK]);
    let poison = world.post("0", &to("poison", 0)).await.job();
    let behind = world.post("1", &to("fine", 1)).await.job();
    world.wait(poison, Word::Dead).await;
    // Also after a start.
    world.close().await;
    world.open(Roles::ALL).await;
    let other = world.post("other", &body("other", 0).replace('}', r#","path":"fine"}"#)).await.job();
    world.wait(other, Word::Success).await;
    let waiting = world.job(behind).await;
    assert_eq!((waiting.row.word, waiting.behind), (Word::Queued, Some(poison)));
    let answer = world.replay(poison, serde_json::json!({ "reason": "the target was mended" })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    world.wait(behind, Word::Success).await;
    assert_eq!(by_group(&world.target.calls())["g"], [0, 0, 1]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_order_outlives_a_stop_in_the_middle() {
    let mut world = World::with_roles(NO_WORKER, &[("queues.yml", FIFO)]).await;
    let mut jobs = Vec::new();
    for nth in 0..30 {
        jobs.push(world.post(&nth.to_string(), &body(["a", "b", "c"][nth % 3], nth)).await.job());
    }
    for calls in [5, 15] {
        world.close().await;
        world.open(Roles::ALL).await;
        world.target.called(calls).await;
    }
    for job in jobs {
        world.wait(job, Word::Success).await;
    }
    for mut sent in by_group(&world.target.calls()).into_values() {
        sent.dedup();
        assert_eq!(sent.len(), 10);
        assert!(sent.is_sorted(), "{sent:?}");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_delivery_without_its_group_is_refused_only_where_order_is_promised() {
    let strict = World::new(&[("queues.yml", FIFO)]).await;
    strict.post("k", "{}").await.check_problem(400, "group-missing");
    strict.post("k", r#"{"group":{"deep":1}}"#).await.check_problem(400, "group-invalid");
    assert!(strict.jobs().await.is_empty());
    strict.post_and_wait("k", &body("g", 0), Word::Success).await;

    let queues = FIFO.replace("    fifo: true\n", "");
    let lenient = World::new(&[("queues.yml", &queues)]).await;
    lenient.post_and_wait("k", "{}", Word::Success).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_delayed_job_reaches_the_target_after_its_delay() {
    // Long enough to be seen waiting, also where the machine is busy.
    const DELAY: Duration = Duration::from_secs(5);
    let flow = FLOW.replace("{name: orders}", "{name: orders, delay: 5s}");
    let world = World::new(&[("flows/orders.yml", &flow)]).await;
    let sent = Instant::now();
    let answer = world.post("k", "{}").await;
    assert_eq!(world.job(answer.job()).await.row.word, Word::Queued);
    let calls = world.target.called(1).await;
    assert!(calls[0].at - sent >= DELAY);
    world.wait(answer.job(), Word::Success).await;
}

/// A worker that does one thing at a time.
fn one_at_a_time() -> String {
    WORKER.replace("retry:", "concurrency: 1\nretry:")
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_the_urgent_reach_the_target_first() {
    let urgent = FLOW
        .replace("name: orders\ntriggers", "name: urgent\ntriggers")
        .replace("/hooks/orders", "/hooks/urgent")
        .replace("{name: orders}", "{name: orders, priority: 50}");
    let files = [("flows/urgent.yml", urgent.as_str()), ("workers/charge.yml", &one_at_a_time())];
    let mut world = World::with_roles(NO_WORKER, &files).await;
    for nth in 0..5 {
        world.post(&nth.to_string(), &body("usual", nth)).await;
    }
    for nth in 0..2 {
        world.deliver("/hooks/urgent", &[("idempotency-key", &nth.to_string())], &body("urgent", nth)).await;
    }
    world.close().await;
    world.open(Roles::ALL).await;
    let calls = world.target.called(7).await;
    assert!(calls[..2].iter().all(|call| call.body.contains("urgent")), "{calls:#?}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f49_the_backlog_of_one_tenant_does_not_delay_another() {
    const BACKLOG: usize = 300;
    let flow = FLOW.replace("      idempotency:", "      tenant_from: header:X-Tenant\n      idempotency:");
    let files = [("flows/orders.yml", flow.as_str()), ("workers/charge.yml", &one_at_a_time())];
    let mut world = World::with_roles(NO_WORKER, &files).await;
    let deliver = async |world: &World, tenant: &str, nth: usize| {
        let (key, sent) = (nth.to_string(), body(tenant, nth));
        let headers = [("idempotency-key", key.as_str()), ("x-tenant", tenant)];
        world.deliver("/hooks/orders", &headers, &sent).await.job()
    };
    for nth in 0..BACKLOG {
        deliver(&world, "noisy", nth).await;
    }
    world.close().await;
    world.target.script("/charge", [Reply::Held]);
    world.open(Roles::ALL).await;
    for round in 0..3 {
        let under_way = world.target.called(2 * round + 1).await.len();
        deliver(&world, "quiet", round).await;
        world.target.release();
        let calls = world.target.called(under_way + 1).await;
        assert_eq!(calls[under_way].body, body("quiet", round), "it is next");
        world.target.release();
    }
    world.target.script("/charge", [OK]);
    for _ in 0..BACKLOG {
        world.target.release();
    }
    world.target.called(BACKLOG + 3).await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t_072_no_group_is_readable_on_disk() {
    let group = "maria.lopez@example.com";
    let queues = FIFO.replace("body:/group", "header:X-Customer");
    let mut world = World::new(&[("queues.yml", &queues)]).await;
    let headers = [("idempotency-key", "k"), ("x-customer", group)];
    let answer = world.deliver("/hooks/orders", &headers, r#"{"order":"the order"}"#).await;
    world.wait(answer.job(), Word::Success).await;
    world.close().await;
    let bytes: Vec<u8> = files_below(&world.data_dir()).iter().flat_map(|file| std::fs::read(file).unwrap()).collect();
    let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(holds("orders"), "the search finds what is there");
    assert!(!holds(group));
}
