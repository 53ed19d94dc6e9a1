//! Many nodes on one PostgreSQL: whatever ends, stalls or is cut off, nothing acknowledged is lost and nothing is done twice
//! behind anybody's back. `CLINCH_TEST_ROUNDS` makes the long ones longer.

use super::crash::seed;
use super::nodes::{Load, Nodes, postgres, shared_postgres};
use super::process::{AGAIN, ONCE, PATIENCE, Pace, Provider, Server, Told, client, eventually};
use clinch_testbed::{Fate, Postgres, Proxy, Stop};
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// A node begins nothing when it has not been heard of for this long; others take it for dead a second later.
const LOCAL_DEADLINE: Duration = Duration::from_secs(9);

pub fn rounds() -> usize {
    std::env::var("CLINCH_TEST_ROUNDS").map_or(1, |rounds| rounds.parse().expect("CLINCH_TEST_ROUNDS is a number"))
}

/// Slow enough for many effects to be under way at any moment.
const SLOWLY: Pace = Pace::Within(Duration::from_millis(60));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_f37_three_nodes_survive_a_kill_a_pause_and_every_way_to_restart_the_database() {
    let postgres = postgres();
    let nodes = Nodes::on(&postgres, &[ONCE, AGAIN]).await;
    nodes.place.sink.pace(SLOWLY);
    let (mut killed, mut stopped, third) = (nodes.start().await, nodes.start().await, nodes.start().await);
    let load = Load::start(&[&killed, &stopped, &third], 4);
    load.progresses(&nodes, 50).await;
    for _ in 0..rounds() {
        killed.kill9();
        stopped.signal(Signal::STOP);
        let fresh = nodes.start().await;
        load.goes_to(&[&fresh, &third, &stopped]);
        // The others notice, and take up what the two had.
        let client = nodes.client().await;
        let alive = async || client.query("SELECT 1 FROM node", &[]).await.unwrap().len();
        eventually("both are taken for dead", PATIENCE, async || alive().await == 2).await;
        load.progresses(&nodes, 20).await;
        stopped.signal(Signal::CONT);
        eventually("it comes back by itself", PATIENCE, async || alive().await == 3).await;
        for how in [Stop::Fast, Stop::Immediate, Stop::Kill9] {
            block_in_place(|| postgres.stop(how));
            block_in_place(|| postgres.start_again());
            load.progresses(&nodes, 50).await;
        }
        (killed, stopped) = (stopped, fresh);
    }
    nodes.settled(load, &third).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f40_a_lost_answer_to_a_commit_loses_and_repeats_nothing() {
    const KINDS: [&str; 4] = ["INSERT INTO event", "SKIP LOCKED", "INSERT INTO attempt", "INSERT INTO effect"];
    let postgres = shared_postgres();
    let nodes = Nodes::on(postgres, &[ONCE, AGAIN]).await;
    let proxy = Proxy::to(postgres.port()).await;
    let url = nodes.url_at(proxy.port);
    let (first, second) = (nodes.start_at(&url, &[]).await, nodes.start_at(&url, &[]).await);
    nodes.place.sink.pace(SLOWLY);
    let load = Load::start(&[&first, &second], 4);
    load.progresses(&nodes, 20).await;
    let cuts: Arc<[AtomicUsize; 4]> = Arc::default();
    let dice = Mutex::new(fastrand::Rng::with_seed(seed()));
    let counted = cuts.clone();
    proxy.at_commits(move |sql| {
        let Some(kind) = KINDS.iter().position(|kind| sql.contains(kind)) else { return Fate::Pass };
        if dice.lock().unwrap().u8(..10) > 0 {
            return Fate::Pass;
        }
        counted[kind].fetch_add(1, Ordering::Relaxed);
        Fate::Cut
    });
    let enough = 10 * rounds();
    eventually("answers of every kind were lost", PATIENCE * 4 * u32::try_from(rounds()).unwrap(), async || {
        cuts.iter().all(|cuts| cuts.load(Ordering::Relaxed) >= enough)
    })
    .await;
    proxy.let_all_pass();
    load.progresses(&nodes, 50).await;
    nodes.settled(load, &first).await;
    eprintln!("lost answers to {KINDS:?}: {cuts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_a_claim_whose_answer_was_lost_does_not_keep_its_jobs_for_the_length_of_a_lease() {
    let postgres = shared_postgres();
    let nodes = Nodes::on(postgres, &[ONCE]).await;
    let proxy = Proxy::to(postgres.port()).await;
    let node = nodes.start_at(&nodes.url_at(proxy.port), &[]).await;
    let is_lost = Arc::new(AtomicBool::new(false));
    let enough = is_lost.clone();
    proxy.at_commits(move |sql| {
        // Until the node has found out that one had taken something.
        let is_one = sql.contains("SKIP LOCKED") && !enough.load(Ordering::Relaxed);
        if is_one { Fate::Cut } else { Fate::Pass }
    });
    // The connection that is cut may be the one that the event comes to; then it is sent again, as providers do.
    let provider = Provider::new(ONCE);
    let _ = provider.deliver(&node.intake).await;
    provider.settle(&node.intake).await;
    // Far sooner than after the minute of a lease.
    eventually("what was claimed is given back", PATIENCE, async || node.said().contains("claimed without an answer"))
        .await;
    is_lost.store(true, Ordering::Relaxed);
    nodes.drained().await;
    assert_eq!(nodes.place.sink.count(), 1);
    assert_eq!(nodes.jobs("success").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f38_backends_that_are_ended_twenty_times_a_second_lose_and_repeat_nothing() {
    let nodes = Nodes::on(shared_postgres(), &[ONCE, AGAIN]).await;
    let (first, second) = (nodes.start().await, nodes.start().await);
    nodes.place.sink.pace(SLOWLY);
    let load = Load::start(&[&first, &second], 4);
    load.progresses(&nodes, 20).await;
    let knife = nodes.client().await;
    let cut = "SELECT pg_terminate_backend(pid) FROM
               (SELECT pid FROM pg_stat_activity WHERE application_name = 'clinch' AND datname = current_database()
                ORDER BY random() LIMIT 1) AS one";
    let (mut looks, mut cuts) = (0, 0);
    // On a busy machine they need a while to come back.
    while looks < 60 * rounds() || cuts <= 30 * rounds() {
        assert!(looks < 1_000 * rounds(), "only {cuts} backends were there to be ended");
        cuts += knife.query(cut, &[]).await.unwrap().len();
        looks += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    load.progresses(&nodes, 50).await;
    nodes.settled(load, &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f41_a_node_for_whom_the_database_has_no_connection_left_says_so_and_comes_back_by_itself() {
    // Each connection is a process: a few are taken sooner than hundreds.
    let postgres = block_in_place(|| Postgres::start_after(|server| server.set("max_connections = 40")));
    let nodes = Nodes::on(&postgres, &[ONCE]).await;
    let node = nodes.start().await;
    let provider = Provider::new(ONCE);
    assert_eq!(provider.deliver(&node.intake).await, Told::Acknowledged);
    nodes.drained().await;
    // Others take every connection that is free, and those of the node, also one that it was just about to get.
    let mut others = vec![nodes.client().await];
    let ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clinch'";
    eventually("nothing is accepted and the node says why", PATIENCE * 4, async || {
        others[0].query(ended, &[]).await.unwrap();
        while let Ok((client, connection)) = tokio_postgres::connect(&nodes.url, tokio_postgres::NoTls).await {
            tokio::spawn(connection);
            others.push(client);
        }
        let ready = client().get(format!("{}/readyz", node.admin)).send().await.unwrap();
        // Too many connections, in PostgreSQL's words.
        ready.status() == 503
            && ready.text().await.unwrap().contains("53300")
            && provider.deliver(&node.intake).await == Told::Refused(503)
    })
    .await;
    drop(others);
    provider.settle(&node.intake).await;
    nodes.drained().await;
    assert_eq!(nodes.place.sink.count(), provider.made());
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f37_p1_nodes_follow_a_failover_to_the_synchronous_standby_by_themselves() {
    let primary = postgres();
    let mut nodes = Nodes::on(&primary, &[ONCE, AGAIN]).await;
    let standby = block_in_place(|| primary.with_synchronous_standby());
    let (host, name) = nodes.url.rsplit_once('/').unwrap();
    let url = format!("{host},127.0.0.1:{}/{name}?target_session_attrs=read-write", standby.port());
    let (first, second) = (nodes.start_at(&url, &[]).await, nodes.start_at(&url, &[]).await);
    nodes.place.sink.pace(SLOWLY);
    let load = Load::start(&[&first, &second], 4);
    load.progresses(&nodes, 50).await;
    block_in_place(|| primary.stop(Stop::Kill9));
    block_in_place(|| standby.promote());
    load.progresses(&nodes, 50).await;
    nodes.url = nodes.url_at(standby.port());
    nodes.settled(load, &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f46_a_standby_is_refused_at_the_start() {
    let primary = postgres();
    let nodes = Nodes::on(&primary, &[ONCE]).await;
    nodes.start().await.stop().await;
    let standby = block_in_place(|| primary.with_synchronous_standby());
    let mut node = nodes.spawn(&nodes.url_at(standby.port()), &[]);
    let status = node.exited().await;
    assert_eq!(status.code(), Some(1), "{}", node.said());
    assert!(node.said().contains("read"), "{}", node.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f43_a_node_that_is_cut_off_begins_nothing_after_its_local_deadline_and_its_jobs_run_elsewhere() {
    let postgres = shared_postgres();
    let nodes = Nodes::on(postgres, &[ONCE, AGAIN]).await;
    let proxy = Proxy::to(postgres.port()).await;
    let cut_off = nodes.start_at(&nodes.url_at(proxy.port), &[]).await;
    let other = nodes.start().await;
    nodes.place.sink.pace(SLOWLY);
    let load = Load::start(&[&cut_off, &other], 4);
    load.progresses(&nodes, 50).await;
    let client = nodes.client().await;
    let others_boot: i64 = client.query_one("SELECT max(boot) FROM node", &[]).await.unwrap().get(0);
    let alive = async || client.query("SELECT 1 FROM node", &[]).await.unwrap().len();
    // An answer that is waited for no more is not read when it comes: a slow machine may need several times.
    for _ in 0..4 {
        // The wire goes dead in the moment in which an intent is on disk and its node does not know yet: if the answer
        // ever comes, it may begin.
        proxy.at_commits(hold_at_an_intent());
        tokio::time::timeout(PATIENCE, proxy.is_held()).await.expect("an intent was written");
        let held_at = Instant::now();
        proxy.let_all_pass();
        load.goes_to(&[&other]);
        let its_jobs = "SELECT id FROM job WHERE state = 4 AND node <> $1";
        let jobs = client.query(its_jobs, &[&others_boot]).await.unwrap();
        let jobs: Vec<i64> = jobs.iter().map(|row| row.get(0)).collect();
        eventually("it is taken for dead", PATIENCE, async || alive().await == 1).await;
        eventually("all that it had ends elsewhere", PATIENCE, async || {
            let unfinished = "SELECT 1 FROM job WHERE id = ANY($1) AND state IN (0, 4, 5)";
            client.query(unfinished, &[&jobs]).await.unwrap().is_empty()
        })
        .await;
        let connected_at = Instant::now();
        proxy.go_on();
        eventually("it comes back by itself", PATIENCE, async || alive().await == 2).await;
        let back_at = Instant::now();
        load.goes_to(&[&cut_off, &other]);
        eventually("it works again", PATIENCE, async || {
            nodes.place.sink.calls().iter().any(|call| call.node == cut_off.name && call.at > back_at)
        })
        .await;
        let old_jobs = load.events_of(&jobs);
        for call in nodes.place.sink.calls() {
            let is_late = call.node == cut_off.name && call.at > held_at + LOCAL_DEADLINE;
            assert!(!is_late || call.at > connected_at, "begun without the database: {call:?}");
            assert!(!is_late || !old_jobs.contains(&call.event), "begun when others had it: {call:?}");
        }
        if cut_off.said().contains("was not sent") {
            break;
        }
    }
    assert!(cut_off.said().contains("was not sent"), "no answer came late: {}", cut_off.said());
    load.progresses(&nodes, 50).await;
    nodes.settled(load, &other).await;
}

/// Holds the wire at the answer to an intent, when the last heartbeat is some time ago: the sooner is the node taken for
/// dead.
fn hold_at_an_intent() -> impl Fn(&str) -> Fate + Send + Sync {
    let beat_at = Mutex::new(None);
    move |sql| {
        let mut beat_at = beat_at.lock().unwrap();
        if sql.contains("UPDATE node SET seen_at") {
            *beat_at = Some(Instant::now());
        }
        let is_long_ago = beat_at.is_some_and(|beat_at| beat_at.elapsed() > Duration::from_millis(1_500));
        if is_long_ago && sql.contains("WITH intending") { Fate::Hold } else { Fate::Pass }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_the_same_key_at_the_same_instant_at_two_nodes_is_one_event_with_equal_answers_and_one_effect() {
    let nodes = Nodes::on(shared_postgres(), &[ONCE]).await;
    let (first, second) = (nodes.start().await, nodes.start().await);
    let client = client();
    let rounds = 100 * rounds();
    for round in 0..rounds {
        let post = async |node: &Server| {
            let request = client.post(node.hook(ONCE.name)).header("idempotency-key", format!("same-{round}"));
            let request = request.body(format!(r#"{{"id":"same-{round}"}}"#));
            let mut told = None;
            // A node that has not heard of its database for a moment says so; senders send again.
            eventually("it is answered", PATIENCE, async || {
                let answer = request.try_clone().unwrap().send().await.unwrap();
                let is_answered = answer.status() != 503;
                let replayed = answer.headers().contains_key("idempotent-replayed");
                told = Some((answer.status(), replayed, answer.text().await.unwrap()));
                is_answered
            })
            .await;
            told.unwrap()
        };
        let (one, other) = tokio::join!(post(&first), post(&second));
        assert_eq!((one.0, &one.2), (other.0, &other.2));
        assert_eq!(one.0, 202);
        assert!(one.1 != other.1, "one of them is the first");
    }
    nodes.drained().await;
    assert_eq!(nodes.jobs("success").await, i64::try_from(rounds).unwrap());
    let mut events: Vec<String> = nodes.place.sink.calls().into_iter().map(|call| call.event).collect();
    events.sort();
    events.dedup();
    assert_eq!((events.len(), nodes.place.sink.count()), (rounds, rounds));
    nodes.verified();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f44_nodes_that_start_at_once_are_different_nodes_and_so_is_one_that_starts_again() {
    let nodes = Nodes::on(shared_postgres(), &[ONCE]).await;
    let mut starting: Vec<Server> = (0..3).map(|_| nodes.spawn(&nodes.url, &[])).collect();
    for node in &mut starting {
        node.opened().await;
    }
    let client = nodes.client().await;
    let boots = async |of: &str| -> Vec<i64> {
        let rows = client.query(&format!("SELECT DISTINCT {of}::bigint FROM node ORDER BY 1"), &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let before = boots("boot").await;
    assert_eq!((before.len(), boots("number").await.len()), (3, 3));
    starting.remove(0).stop().await;
    let again = nodes.start().await;
    let after = boots("boot").await;
    assert_eq!((after.len(), boots("number").await.len()), (3, 3));
    assert!(after.iter().any(|boot| *boot > before[2]), "{before:?}, then {after:?}");
    assert_eq!(Provider::new(ONCE).deliver(&again.intake).await, Told::Acknowledged);
    nodes.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k3_what_an_intake_accepts_a_worker_elsewhere_does_at_once_and_without_hearing_of_it_a_little_later() {
    let postgres = shared_postgres();
    let nodes = Nodes::on(postgres, &[ONCE]).await;
    let proxy = Proxy::to(postgres.port()).await;
    let intake = nodes.start_at(&nodes.url, &["--roles", "intake"]).await;
    let worker = nodes.start_at(&nodes.url_at(proxy.port), &["--roles", "worker"]).await;
    assert!(worker.intake.is_empty() && worker.admin.is_empty(), "it has no doors");
    let provider = Provider::new(ONCE);
    // Sent again if it is refused: a node may not have heard of its database for a moment.
    let accepted = async || {
        let _ = provider.deliver(&intake.intake).await;
        provider.settle(&intake.intake).await;
    };
    // A look at the queue every few seconds would not be enough for so many, one after the other.
    let one_by_one = async {
        for nth in 1..=50 {
            accepted().await;
            nodes.place.sink.called(nth).await;
        }
    };
    tokio::time::timeout(2 * PATIENCE, one_by_one).await.expect("the worker is told of each of them");
    // Nobody can listen any more.
    proxy.at_commits(|sql| if sql.contains("LISTEN") { Fate::Cut } else { Fate::Pass });
    proxy.cut_all();
    for nth in 51..=52 {
        accepted().await;
        nodes.place.sink.called(nth).await;
    }
    assert!(nodes.place.sink.calls().iter().all(|call| call.node == worker.name));
    nodes.drained().await;
    nodes.verified();
}
