//! A partner that is down for a while, and comes back to what has piled up: it is left alone but for single probes, nothing is
//! lost, and it is never called faster than it bears, as it sees it itself. `CLINCH_TEST_ROUNDS=10` makes a long outage of it.

use super::cluster::rounds;
use super::nodes::{Nodes, shared_postgres};
use super::process::{AGAIN, Books, Call, PATIENCE, Pace, Place, Provider, Server, Told, client, eventually};
use clinch_core::job::Word;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const BREAKER_WINDOW: Duration = Duration::from_secs(2);
const MIN_CALLS: usize = 10;
const ERRORS_PERCENT: usize = 50;
const OPEN_FOR: Duration = Duration::from_secs(1);
const PROBES: usize = 3;
/// On each node.
const CONCURRENCY: usize = 16;
const RATE_WINDOW: Duration = Duration::from_secs(5);
/// As long as the partner is well, before and after.
const WELL: Duration = Duration::from_secs(3);
/// What has piled up is done by then, however busy the machine is.
const DRAINED_WITHIN: Duration = Duration::from_secs(240);

/// An answer is counted when it is heard, which may be so much later on a busy machine.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// However short the outage is, each circuit opens so often before it ends: by itself, and after probes that failed.
const OPENINGS: usize = 4;

/// How long at least, how many events a second, and how many calls the partner bears in a window.
struct Size {
    outage: Duration,
    events: u32,
    rate: usize,
}

fn size() -> Size {
    let outage = Duration::from_secs(6) * u32::try_from(rounds()).unwrap();
    let events = if rounds() < 10 { 100 } else { 200 };
    Size { outage, events, rate: if rounds() < 10 { 1_000 } else { 2_000 } }
}

/// What is added to the settings, and the worker that calls the partner by its name.
fn files(sink: std::net::SocketAddr, size: &Size) -> (String, String) {
    let settings = format!(
        "integrations:
  crm:
    base_url: http://{sink}
    idempotency: header
    timeout: 10s
    concurrency: {CONCURRENCY}
    rate: {}/{}s
    breaker: {{errors_percent: {ERRORS_PERCENT}, window: {}s, min_calls: {MIN_CALLS}, open_for: {}s, probes: {PROBES}}}
",
        size.rate,
        RATE_WINDOW.as_secs(),
        BREAKER_WINDOW.as_secs(),
        OPEN_FOR.as_secs(),
    );
    let worker = "version: 1
name: again-worker
consumes: {queue: again}
concurrency: 64
retry: {strategy: fixed, base_delay: 1s, jitter: full, max_attempts: 50}
run:
  - name: charge
    http: {integration: crm, url: /again/charge, body_from: body, headers: {x-node: '${secrets.NODE}'}}
";
    (settings, worker.to_string())
}

struct Outage {
    began: Instant,
    ended: Instant,
    /// How often the circuit of each node opened.
    openings: HashMap<String, usize>,
}

impl Outage {
    fn lasted(&self) -> Duration {
        self.ended - self.began
    }

    fn has(&self, call: &Call) -> bool {
        (self.began..self.ended).contains(&call.at)
    }
}

/// How often the circuit of a server has opened.
async fn openings(server: &Server) -> usize {
    let metrics = client().get(format!("{}/metrics", server.admin)).send().await.unwrap().text().await.unwrap();
    let series = r#"clinch_circuit_transitions_total{integration="crm",to="open"} "#;
    metrics.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or(0)
}

/// What a node refuses that has not heard of its database for a moment. It is sent again.
fn is_refused(told: Told) -> bool {
    match told {
        Told::Acknowledged => false,
        Told::Refused(503) => true,
        told => panic!("{told:?}"),
    }
}

/// Events come at a steady rate to all servers in turn; in the middle the partner is down.
async fn suffer(place: &Place, servers: &[Server], provider: &Arc<Provider>, size: &Size) -> Outage {
    place.sink.pace(Pace::Within(Duration::from_millis(20)));
    let intakes: Vec<String> = servers.iter().map(|server| server.intake.clone()).collect();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / size.events);
    let (mut deliveries, mut refused) = (JoinSet::new(), 0);
    let mut turn = intakes.iter().cycle();
    let mut load = async |lasting: Duration| {
        let until = Instant::now() + lasting;
        while Instant::now() < until {
            tick.tick().await;
            let (provider, intake) = (provider.clone(), turn.next().unwrap().clone());
            deliveries.spawn(async move { provider.deliver(&intake).await });
            while let Some(told) = deliveries.try_join_next() {
                refused += usize::from(is_refused(told.unwrap()));
            }
        }
        Instant::now()
    };
    let began = load(WELL).await;
    place.sink.answer_with(|_| 503);
    let mut ended = load(size.outage).await;
    let mut openings = HashMap::new();
    for server in servers {
        while openings.get(&server.name).is_none_or(|openings| *openings < OPENINGS) {
            load(Duration::from_millis(100)).await;
            openings.insert(server.name.clone(), self::openings(server).await);
            ended = Instant::now();
            assert!(ended - began < size.outage + PATIENCE, "the circuit of {} opens", server.name);
        }
    }
    place.sink.answer_with(|_| 200);
    load(WELL).await;
    while let Some(told) = deliveries.join_next().await {
        refused += usize::from(is_refused(told.unwrap()));
    }
    provider.settle(&intakes[0]).await;
    let most = if servers.len() > 1 { provider.made() / 2 } else { 0 };
    assert!(refused <= most, "{refused} of {} events were refused", provider.made());
    Outage { began, ended, openings }
}

/// During the outage each node makes the calls that open its circuit, those that are under way then, and one probe for each
/// pause. `calls` are those of one node, in order.
fn left_alone(calls: &[Call], outage: &Outage) -> usize {
    let window = |call: &&Call| call.at < outage.began && outage.began - call.at < BREAKER_WINDOW + HEARD_WITHIN;
    let well = calls.iter().filter(window).count();
    let opening = MIN_CALLS.max(well * ERRORS_PERCENT / (100 - ERRORS_PERCENT) + 1);
    let pauses = (outage.lasted().as_secs_f64() / OPEN_FOR.as_secs_f64()).ceil() as usize;
    let bound = opening + CONCURRENCY + 1 + pauses;
    let during: Vec<&Call> = calls.iter().filter(|call| outage.has(call)).collect();
    assert!(during.len() <= bound, "{} calls during the outage, at most {bound}: {well} before", during.len());

    // A probe is alone, and comes after a pause of its own. A call that was let through before the circuit opened may come to
    // the partner after that: so the first probe is not looked at, and on a busy machine not every one is alone. Were they
    // made in pairs, there would be another for each.
    let is_probe = |pair: &[&Call]| pair[1].at - pair[0].at >= OPEN_FOR && pair[1].at_once == 1;
    let failed = outage.openings[&calls[0].node] - 1;
    let (mut alone, mut others) = (0, 0);
    for pair in during.windows(2).rev() {
        if alone == failed - 1 {
            break;
        }
        let count = if is_probe(pair) { &mut alone } else { &mut others };
        *count += 1;
    }
    assert!(others <= failed / 2, "{failed} probes failed, {alone} alone, {others} others: {during:#?}");
    // And those that find it well again come one by one.
    let back: Vec<&Call> = calls.iter().filter(|call| call.at >= outage.ended).take(PROBES).collect();
    assert!(back.iter().filter(|call| call.at_once > 1).count() <= 1, "{back:?}");
    eprintln!(
        "node {}: {} calls during the outage (bound {bound}), of which {failed} probes that failed",
        calls[0].node,
        during.len()
    );
    during.len()
}

/// In no window of the rate are there more calls than it allows. The fullest one.
fn within_rate(calls: &[Call], size: &Size) -> usize {
    let mut fullest = 0;
    for (nth, call) in calls.iter().enumerate() {
        let within = calls[nth..].iter().take_while(|other| other.at - call.at < RATE_WINDOW).count();
        fullest = fullest.max(within);
    }
    assert!(fullest <= size.rate, "{fullest} calls in {RATE_WINDOW:?}, at most {}", size.rate);
    fullest
}

/// Every event was made once, and nothing but calls that failed was charged.
async fn nothing_lost(books: &Books, provider: &Provider, calls: &[Call]) {
    let mut made: HashMap<&str, usize> = HashMap::new();
    for call in calls.iter().filter(|call| call.is_made) {
        *made.entry(&call.event).or_default() += 1;
    }
    let acknowledged = provider.acknowledged();
    assert_eq!(acknowledged.len(), provider.made());
    let jobs = books.jobs().await;
    for (event, job) in &acknowledged {
        let row = &jobs[job];
        assert_eq!((row.word, made.get(event.as_str())), (Word::Success, Some(&1)), "{event}: {row:?}");
    }
    let failed = calls.iter().filter(|call| !call.is_made).count();
    let charged: u32 = jobs.values().map(|row| row.failures).sum();
    assert_eq!(charged as usize, failed, "an attempt for each call that failed, and none for waiting");
}

async fn check(place: &Place, books: &Books, provider: &Provider, outage: &Outage, size: &Size, nodes: usize) {
    let mut calls = place.sink.calls();
    calls.sort_by_key(|call| call.at);
    nothing_lost(books, provider, &calls).await;
    let fullest = within_rate(&calls, size);
    let mut by_node: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in &calls {
        by_node.entry(call.node.clone()).or_default().push(call.clone());
    }
    assert_eq!(by_node.len(), nodes);
    let during: usize = by_node.values().map(|calls| left_alone(calls, outage)).sum();
    let drained = calls.last().unwrap().at - outage.ended;
    eprintln!(
        "{} events at {}/s, down for {:?}: {during} calls meanwhile, drained {drained:?} after it; fullest window {fullest} of {}",
        provider.made(),
        size.events,
        outage.lasted(),
        size.rate
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_e3_an_outage_costs_single_probes_loses_nothing_and_is_drained_within_the_rate() {
    let size = size();
    let place = Place::new(&[AGAIN]).await;
    let (settings, worker) = files(place.sink.address, &size);
    place.write("clinch.yml", &settings);
    place.write("workers/again.yml", &worker);
    let servers = [place.start().await];
    let provider = Arc::new(Provider::new(AGAIN));
    let outage = suffer(&place, &servers, &provider, &size).await;
    let made = provider.made() as i64;
    eventually("all is done", DRAINED_WITHIN, async || place.jobs("success") == made).await;
    for server in servers {
        server.stop().await;
    }
    place.verified();
    check(&place, &place.books().await, &provider, &outage, &size, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f22_e3_an_outage_costs_single_probes_of_each_node_and_two_nodes_drain_within_one_rate() {
    let size = size();
    let nodes = Nodes::on(shared_postgres(), &[AGAIN]).await;
    let (settings, worker) = files(nodes.place.sink.address, &size);
    let keys = std::fs::read_to_string(nodes.place.dir.path().join("workspace/clinch.yml")).unwrap();
    nodes.place.write("clinch.yml", &format!("{keys}{settings}"));
    nodes.place.write("workers/again.yml", &worker);
    let servers = [nodes.start().await, nodes.start().await];
    let provider = Arc::new(Provider::new(AGAIN));
    let outage = suffer(&nodes.place, &servers, &provider, &size).await;
    let made = provider.made() as i64;
    eventually("all is done", DRAINED_WITHIN, async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        nodes.jobs("success").await == made
    })
    .await;
    for server in servers {
        server.stop().await;
    }
    nodes.verified();
    check(&nodes.place, &nodes.books().await, &provider, &outage, &size, 2).await;
}
