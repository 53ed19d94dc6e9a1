//! The places of an integration among many nodes of one database.

use super::laws::later;
use super::postgres::Postgres;
use clinch_core::portion::{Places, ROUND, Share};
use clinch_core::time::Timestamp;
use clinch_store::postgres::PostgresStore;
use clinch_store::{ShareAsk, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Barrier;

/// A node, and what it knows of its places.
struct Node {
    store: Arc<PostgresStore>,
    places: Places,
}

impl Node {
    async fn on(postgres: &Postgres) -> Node {
        Node { store: postgres.node().await, places: Places::default() }
    }

    /// Tells the store what it has, until there is nothing to tell at once.
    async fn asks(&mut self, max: u32, now: Timestamp) -> Share {
        loop {
            let (held, in_use) = self.places.tell();
            let ask = ShareAsk { name: "crm".into(), max, held, in_use, stays: true, now };
            let share = self.store.share(ask).await.expect("shared");
            if !self.places.hear(share) {
                return share;
            }
        }
    }

    fn takes(&mut self, times: usize) -> usize {
        (0..times).filter(|_| self.places.take()).count()
    }
}

/// All of them are there before the first one asks.
async fn nodes(count: usize, postgres: &Postgres) -> Vec<Node> {
    let mut nodes = Vec::with_capacity(count);
    for _ in 0..count {
        nodes.push(Node::on(postgres).await);
    }
    nodes
}

/// Heads or tails, others for each node and the same in every run.
fn coins(nth: usize) -> impl FnMut() -> bool {
    let mut state = nth as u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 63 == 0
    }
}

const HELD: &str = "SELECT coalesce(sum(held), 0) FROM place";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_a_node_that_comes_gets_its_part_as_calls_of_the_others_end() {
    let postgres = Postgres::new().await;
    let (mut first, mut second) = (Node::on(&postgres).await, Node::on(&postgres).await);
    assert_eq!(first.asks(4, later(0)).await, Share { granted: 4, part: 4 });
    assert_eq!(first.takes(9), 4);
    assert_eq!(second.asks(4, later(0)).await, Share { granted: 0, part: 2 });
    assert_eq!((second.takes(1), first.asks(4, later(0)).await.granted), (0, 4));
    // One call ends, and its place is the other's.
    assert!(first.places.give_back());
    first.asks(4, later(0)).await;
    assert_eq!(second.asks(4, later(0)).await.granted, 1);
    assert_eq!((first.takes(1), second.takes(9)), (0, 1));
    first.places.give_back();
    first.asks(4, later(0)).await;
    assert_eq!(second.asks(4, later(0)).await, Share { granted: 2, part: 2 });
    assert_eq!((first.takes(1), second.takes(9)), (0, 1));
    assert_eq!(postgres.count(HELD).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_the_places_of_a_node_that_leaves_or_dies_are_the_others() {
    let postgres = Postgres::new().await;
    let (mut first, mut second) = (Node::on(&postgres).await, Node::on(&postgres).await);
    for _ in 0..2 {
        first.asks(5, later(0)).await;
        second.asks(5, later(0)).await;
    }
    assert_eq!(postgres.count(HELD).await, 5);
    second.store.close().await;
    assert_eq!(postgres.count("SELECT count(*) FROM place").await, 1);
    assert_eq!(first.asks(5, later(0)).await, Share { granted: 5, part: 5 });
    // Taken for dead: what it had is gone, and what it is told then is that it is not alive.
    postgres.run("DELETE FROM node").await;
    assert_eq!(postgres.count(HELD).await, 0);
    let (held, in_use) = first.places.tell();
    let ask = ShareAsk { name: "crm".into(), max: 5, held, in_use, stays: true, now: later(0) };
    assert!(first.store.share(ask).await.is_err());
    assert_eq!(postgres.count(HELD).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_fewer_places_than_nodes_go_round() {
    let postgres = Postgres::new().await;
    let (mut first, mut second) = (Node::on(&postgres).await, Node::on(&postgres).await);
    let mut had = [0, 0];
    for round in 0..6 {
        let now = later(0) + ROUND * round + Duration::from_millis(10);
        // Who has it gives it back first; then the other finds it.
        for _ in 0..2 {
            first.asks(1, now).await;
            second.asks(1, now).await;
        }
        let now = [first.places.granted(), second.places.granted()];
        assert_eq!(now.iter().sum::<u32>(), 1, "in round {round}");
        had = [had[0] + now[0], had[1] + now[1]];
    }
    assert_eq!(had, [3, 3]);
}

/// However many nodes ask at once, and whatever they use meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_never_more_is_granted_than_there_is_however_many_ask_at_once() {
    const MAX: u32 = 5;
    let postgres = Postgres::new().await;
    let in_use = Arc::new(AtomicU32::new(0));
    let mut asking = tokio::task::JoinSet::new();
    for (nth, mut node) in nodes(4, &postgres).await.into_iter().enumerate() {
        let in_use = in_use.clone();
        asking.spawn(async move {
            let mut coin = coins(nth);
            let (mut mine, mut had) = (0, 0);
            for turn in 0..60 {
                node.asks(MAX, later(turn)).await;
                while node.takes(1) == 1 {
                    (mine, had) = (mine + 1, had + 1);
                    let all = in_use.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(all <= MAX, "{all} calls at once");
                }
                while mine > 0 && coin() {
                    mine -= 1;
                    in_use.fetch_sub(1, Ordering::SeqCst);
                    node.places.give_back();
                }
            }
            // The node goes, and with it what it called.
            in_use.fetch_sub(mine, Ordering::SeqCst);
            node.store.close().await;
            had
        });
    }
    let had: usize = asking.join_all().await.into_iter().sum();
    assert!(had > 0, "nobody called");
}

/// They ask at once, and use what they like; as soon as their calls have ended and all have said so, everybody has its part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_every_node_has_its_part_as_soon_as_the_calls_of_the_others_have_ended() {
    const MAX: u32 = 5;
    const NODES: usize = 4;
    let postgres = Postgres::new().await;
    let together = Arc::new(Barrier::new(NODES));
    let mut asking = tokio::task::JoinSet::new();
    for (nth, mut node) in nodes(NODES, &postgres).await.into_iter().enumerate() {
        let together = together.clone();
        asking.spawn(async move {
            let mut coin = coins(nth);
            let mut granted = Vec::new();
            for turn in 0..60 {
                // In the middle of a round: all are in the same one.
                let now = later(0) + ROUND * turn + ROUND / 2;
                node.asks(MAX, now).await;
                let calls = (0..MAX).filter(|_| coin() && node.places.take()).count();
                together.wait().await;
                for _ in 0..calls {
                    node.places.give_back();
                }
                node.asks(MAX, now).await;
                together.wait().await;
                let share = node.asks(MAX, now).await;
                assert_eq!(share.granted, share.part, "node {nth}, turn {turn}");
                granted.push(share.granted);
                together.wait().await;
            }
            granted
        });
    }
    let granted = asking.join_all().await;
    for turn in 0..60 {
        let shares: Vec<u32> = granted.iter().map(|node| node[turn]).collect();
        assert_eq!(shares.iter().sum::<u32>(), MAX, "turn {turn}: {shares:?}");
        assert!(shares.iter().all(|share| *share > 0), "turn {turn}: {shares:?}");
    }
}

/// None of them knows of another before it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_nodes_that_ask_for_the_first_time_at_once_are_not_each_given_all() {
    const MAX: u32 = 5;
    let postgres = Postgres::new().await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(postgres.node().await);
    }
    for round in 0..30u64 {
        let ask = |stays| ShareAsk {
            name: format!("crm-{round}").into(),
            max: MAX,
            held: 0,
            in_use: 0,
            stays,
            now: later(round),
        };
        let mut asking = tokio::task::JoinSet::new();
        for node in nodes.clone() {
            let ask = ask(true);
            asking.spawn(async move { node.share(ask).await.expect("shared").granted });
        }
        let granted = asking.join_all().await;
        assert_eq!(granted.iter().sum::<u32>(), MAX, "{granted:?}");
        nodes[0].share(ask(false)).await.expect("left");
    }
}
