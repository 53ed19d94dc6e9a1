//! A partner that bears so many calls at once, called by several nodes.

use super::nodes::{Nodes, shared_postgres};
use super::process::{AGAIN, PATIENCE, Pace, Provider, Server, eventually};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const MAX: usize = 4;
/// Long enough for calls to meet.
const SLOWLY: Pace = Pace::Within(Duration::from_millis(60));

/// Nodes whose worker calls through an integration with so many places.
async fn nodes(places: usize) -> Nodes {
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    let workspace = nodes.place.dir.path().join("workspace");
    let settings = std::fs::read_to_string(workspace.join("clinch.yml")).unwrap();
    let partner = format!("integrations:\n  crm: {{concurrency: {places}, breaker: none}}\n");
    nodes.place.write("clinch.yml", &(settings + &partner));
    let worker = std::fs::read_to_string(workspace.join("workers/again.yml")).unwrap();
    nodes.place.write("workers/again.yml", &worker.replace("http: {url", "http: {integration: crm, url"));
    nodes.place.sink.pace(SLOWLY);
    nodes
}

/// Events for as long as it is not stopped: always some more than there are calls, so that every place is wanted.
struct Stream {
    provider: Arc<Provider>,
    stop: CancellationToken,
    sender: tokio::task::JoinHandle<()>,
}

impl Stream {
    fn to(nodes: &Nodes, servers: &[&Server]) -> Stream {
        const BACKLOG: usize = 32;
        let (provider, stop) = (Arc::new(Provider::new(AGAIN)), CancellationToken::new());
        let servers: Vec<String> = servers.iter().map(|server| server.intake.clone()).collect();
        let (sent, until, calls) = (provider.clone(), stop.clone(), nodes.place.sink.counter());
        let sender = tokio::spawn(async move {
            while !until.is_cancelled() {
                if sent.made() < calls() + BACKLOG {
                    sent.deliver(fastrand::choice(&servers).unwrap()).await;
                } else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        Stream { provider, stop, sender }
    }

    async fn ends(self, nodes: &Nodes, server: &Server) {
        self.stop.cancel();
        self.sender.await.unwrap();
        self.provider.settle(&server.intake).await;
        nodes.place.sink.pace(Pace::Prompt);
        eventually("every job ends", PATIENCE, async || {
            nodes.jobs("success").await == i64::try_from(self.provider.made()).unwrap()
        })
        .await;
        nodes.verified();
    }
}

/// Until each of these nodes has made so many calls more.
async fn all_call(nodes: &Nodes, servers: &[&Server], calls: usize) {
    let by_node = || -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        nodes.place.sink.calls().into_iter().for_each(|call| *counts.entry(call.node).or_default() += 1);
        counts
    };
    let before = by_node();
    eventually("every node calls", PATIENCE, async || {
        let now = by_node();
        let of = |counts: &BTreeMap<String, usize>, server: &Server| counts.get(&server.name).copied().unwrap_or(0);
        servers.iter().all(|server| of(&now, server) >= of(&before, server) + calls)
    })
    .await;
}

async fn held(nodes: &Nodes) -> Vec<i32> {
    let rows = nodes.client().await.query("SELECT held FROM place ORDER BY held", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_nodes_that_come_and_die_never_call_a_partner_more_often_at_once_than_it_bears() {
    let nodes = nodes(MAX).await;
    let first = nodes.start().await;
    let stream = Stream::to(&nodes, &[&first]);
    all_call(&nodes, &[&first], 20).await;
    eventually("one alone uses them all", PATIENCE, async || nodes.place.sink.crowd_most() == MAX).await;
    let second = nodes.start().await;
    all_call(&nodes, &[&first, &second], 20).await;
    eventually("they share", PATIENCE, async || held(&nodes).await == [2, 2]).await;
    let mut third = nodes.start().await;
    all_call(&nodes, &[&first, &second, &third], 10).await;
    third.kill9();
    eventually("the part of the dead one comes back", PATIENCE, async || held(&nodes).await == [2, 2]).await;
    all_call(&nodes, &[&first, &second], 20).await;
    second.stop().await;
    eventually("so does that of one that stopped", PATIENCE, async || held(&nodes).await == [4]).await;
    stream.ends(&nodes, &first).await;
    assert_eq!(nodes.place.sink.crowd_most(), MAX, "never more, and all of them when there was work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_of_fewer_places_than_nodes_everyone_has_a_turn() {
    let nodes = nodes(1).await;
    let (first, second) = (nodes.start().await, nodes.start().await);
    let stream = Stream::to(&nodes, &[&first, &second]);
    for _ in 0..2 {
        all_call(&nodes, &[&first, &second], 5).await;
    }
    stream.ends(&nodes, &first).await;
    assert_eq!(nodes.place.sink.crowd_most(), 1);
    eventually("who calls no more has none", PATIENCE, async || held(&nodes).await.is_empty()).await;
}
