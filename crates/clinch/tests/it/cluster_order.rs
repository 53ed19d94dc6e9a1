//! Order and fairness among many nodes: groups reach the target in order whichever nodes accept and run their jobs, and the
//! backlog of one tenant delays nobody else. `CLINCH_TEST_ROUNDS` makes both longer.

use super::cluster::rounds;
use super::crash::seed;
use super::nodes::{Nodes, shared_postgres};
use super::process::{AGAIN, PATIENCE, Pace, Server, client, eventually};
use std::collections::BTreeMap;
use std::time::Duration;

/// Posts until it is acknowledged.
async fn deliver(client: &reqwest::Client, node: &str, tenant: &str, id: &str, group: &str) {
    let until_acknowledged = async {
        loop {
            let request = client.post(format!("{node}/hooks/{}", AGAIN.name)).header("idempotency-key", id);
            let request = request.header("x-tenant", tenant).body(format!(r#"{{"id":"{id}","group":"{group}"}}"#));
            if request.send().await.is_ok_and(|answer| answer.status() == 202) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, until_acknowledged).await.expect("it is acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p7_groups_reach_a_failing_target_in_order_through_three_nodes_and_a_poison_job_holds_up_nobody_for_ever() {
    const GROUPS: usize = 50;
    let each = 40 * rounds();
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    nodes.place.write("queues.yml", "queues:\n  - name: again\n    fifo: true\n    group_from: body:/group\n");
    let dice = std::cell::RefCell::new(fastrand::Rng::with_seed(seed()));
    // One in ten fails; the third of each tenth group always does.
    let is_poison = |event: &str| event.ends_with("0-2");
    nodes.place.sink.answer_with(move |call| {
        let fails = is_poison(&call.event) || dice.borrow_mut().u8(..10) == 0;
        if fails { 503 } else { 200 }
    });
    let servers = [nodes.start().await, nodes.start().await, nodes.start().await];
    let mut senders = tokio::task::JoinSet::new();
    for group in 0..GROUPS {
        let intakes = servers.each_ref().map(|server: &Server| server.intake.clone());
        senders.spawn(async move {
            let client = client();
            for nth in 0..each {
                // Each to another node, and the next only when the last one is accepted.
                let node = &intakes[(group + nth) % intakes.len()];
                deliver(&client, node, "one", &format!("g{group}-{nth}"), &format!("g{group}")).await;
            }
        });
    }
    senders.join_all().await;
    // A poison job is tried fifty times before those behind it come.
    let patience = PATIENCE * 4 * u32::try_from(rounds()).unwrap();
    eventually("every group comes to its end", patience, async || {
        let report = nodes.report().await;
        report.parts.iter().all(|(name, jobs)| !["queued", "running", "retrying"].contains(name) || *jobs == 0)
    })
    .await;
    let mut sent: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut by_node: BTreeMap<String, usize> = BTreeMap::new();
    for call in nodes.place.sink.calls() {
        let (group, nth) = call.event[1..].split_once('-').unwrap();
        sent.entry(group.parse().unwrap()).or_default().push(nth.parse().unwrap());
        *by_node.entry(call.node).or_default() += 1;
    }
    assert_eq!(sent.len(), GROUPS);
    let calls: usize = sent.values().map(Vec::len).sum();
    for (group, mut order) in sent {
        order.dedup();
        assert_eq!(order, (0..each).collect::<Vec<_>>(), "group {group}");
    }
    eprintln!("{} events, {calls} calls, by node: {by_node:?}", GROUPS * each);
    assert!(calls > GROUPS * each, "some calls failed");
    assert_eq!(by_node.len(), 3, "every node had a part in it: {by_node:?}");
    let poisoned = i64::try_from((0..GROUPS).filter(|group| is_poison(&format!("g{group}-2"))).count()).unwrap();
    assert_eq!(nodes.jobs("dead").await, poisoned);
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f49_newcomers_are_served_near_the_front_of_a_long_backlog_of_another_tenant() {
    const NEWCOMERS: usize = 10;
    /// What two nodes may have taken before a newcomer comes, twice over.
    const NEAR: usize = 2 * 2 * 2 * AGAIN.concurrency;
    let backlog = 5_000 * rounds();
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    let flow = "version: 1
name: again
triggers:
  - http:
      path: /hooks/again
      tenant_from: header:X-Tenant
      idempotency: {key_from: 'header:Idempotency-Key', ttl: 48h}
steps:
  - name: enqueue
    queue: {name: again}
";
    nodes.place.write("flows/again.yml", flow);
    let intake = nodes.start_at(&nodes.url, &["--roles", "intake,admin"]).await;
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..64 {
        let node = intake.intake.clone();
        senders.spawn(async move {
            let client = client();
            for nth in (sender..backlog).step_by(64) {
                deliver(&client, &node, "noisy", &format!("noisy-{nth}"), "").await;
            }
        });
    }
    senders.join_all().await;
    let sink = &nodes.place.sink;
    sink.pace(Pace::Within(Duration::from_millis(60)));
    let _workers = [
        nodes.start_at(&nodes.url, &["--roles", "worker"]).await,
        nodes.start_at(&nodes.url, &["--roles", "worker"]).await,
    ];
    sink.called(100).await;
    let client = client();
    let mut passed = Vec::new();
    for nth in 0..NEWCOMERS {
        let (tenant, event) = (format!("quiet-{nth}"), format!("new-{nth}"));
        deliver(&client, &intake.intake, &tenant, &event, "").await;
        let accepted = sink.count();
        let mut served = None;
        eventually("the newcomer is served", PATIENCE, async || {
            served = sink.calls().iter().position(|call| call.event == event);
            served.is_some()
        })
        .await;
        // One that stood still after it had taken the newcomer is no slower than the other in what it began itself.
        let (calls, served) = (sink.calls(), served.unwrap());
        let before = &calls[accepted.min(served)..served];
        let by_its_node = before.iter().filter(|call| call.node == calls[served].node).count();
        passed.push(before.len().min(2 * by_its_node));
    }
    let left = nodes.jobs("queued").await;
    eprintln!("before each newcomer: {passed:?}; {left} of {backlog} were still waiting");
    assert!(left > i64::try_from(NEAR).unwrap(), "the backlog was too short to tell: {left}");
    assert!(passed.iter().all(|passed| *passed <= NEAR), "{passed:?} jobs went before the newcomers");
}
