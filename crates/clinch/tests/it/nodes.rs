//! Several servers on one database: what they share, what is asked of it behind their backs, and who sends to them.

use super::process::{
    AGAIN, Books, ONCE, PATIENCE, Pace, Place, Provider, Server, Way, eventually, keys_in, nothing_was_lost_or_repeated,
};
use clinch::encryption::KEY_FILE;
use clinch_core::time::Timestamp;
use clinch_store::postgres::{Options, PostgresStore, verify};
use clinch_store::verify::Report;
use clinch_testbed::Postgres;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Between two looks at a database that is busy with something else.
const TICK: Duration = Duration::from_millis(50);

/// A server that is waited for, without keeping the others of this runtime from going on.
pub fn postgres() -> Postgres {
    tokio::task::block_in_place(Postgres::start)
}

/// One for all tests that do it no harm; each has a database of its own.
pub fn shared_postgres() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    tokio::task::block_in_place(|| SHARED.get_or_init(Postgres::start))
}

/// What every database here is encrypted with.
pub const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// A database, a workspace, and the servers that come and go on them.
pub struct Nodes {
    pub place: Place,
    /// Straight to the database, for the nodes and for us.
    pub url: String,
}

impl Nodes {
    /// On a database of its own.
    pub async fn on(postgres: &Postgres, ways: &[Way]) -> Nodes {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("nodes_{}", MADE.fetch_add(1, Ordering::Relaxed));
        tokio::task::block_in_place(|| postgres.create_database(&name));
        let place = Place::new(ways).await;
        // What nodes share they must be given.
        let keys = place.dir.path().join(KEY_FILE);
        std::fs::write(&keys, KEY).unwrap();
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
        place.write("clinch.yml", &format!("encryption: {{file: '{}'}}\n", keys.display()));
        Nodes { place, url: format!("postgres://clinch@127.0.0.1:{}/{name}", postgres.port()) }
    }

    /// The same database at another port.
    pub fn url_at(&self, port: u16) -> String {
        let (head, name) = self.url.rsplit_once('/').unwrap();
        format!("{}:{port}/{name}", head.rsplit_once(':').unwrap().0)
    }

    pub fn spawn(&self, url: &str, args: &[&str]) -> Server {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let data_dir = self.place.dir.path().join(format!("node-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        self.place.launch(&data_dir, &[&["--store", url], args].concat(), &[])
    }

    pub async fn start(&self) -> Server {
        self.start_at(&self.url, &[]).await
    }

    pub async fn start_at(&self, url: &str, args: &[&str]) -> Server {
        let mut server = self.spawn(url, args);
        server.opened().await;
        server
    }

    pub async fn client(&self) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn report(&self) -> Report {
        verify(&self.url, Timestamp::from_micros(0)).await.unwrap()
    }

    pub async fn jobs(&self, part: &str) -> i64 {
        let report = self.report().await;
        report.parts.iter().find(|(name, _)| *name == part).map(|(_, jobs)| *jobs).unwrap()
    }

    /// Until no job is queued, running or retrying.
    pub async fn drained(&self) {
        self.drained_within(PATIENCE).await;
    }

    async fn drained_within(&self, within: Duration) {
        eventually("every job ends", within, async || {
            tokio::time::sleep(TICK).await;
            let report = self.report().await;
            report.parts.iter().all(|(name, jobs)| !["queued", "running", "retrying"].contains(name) || *jobs == 0)
        })
        .await;
    }

    /// What `clinch verify` says when it is content.
    pub fn verified(&self) -> String {
        let out = Command::new(env!("CARGO_BIN_EXE_clinch")).args(["verify", "--store", &self.url]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "verify: {said}{}", String::from_utf8_lossy(&out.stderr));
        said
    }

    /// The store, opened by the test itself as one node more.
    pub async fn books(&self) -> Books {
        let clock = || Timestamp::from_micros(jiff::Timestamp::now().as_microsecond());
        Books(Arc::new(
            PostgresStore::open(&self.url, [0; 32], keys_in(self.place.dir.path()), Options::new(Arc::new(clock)))
                .await
                .unwrap(),
        ))
    }

    /// The end of every story with load: what is owed is delivered, all is done, nothing is lost or repeated, and the
    /// books add up. How many effects ended unknown.
    pub async fn settled(&self, load: Load, server: &Server) -> usize {
        let providers = load.stop().await;
        self.place.sink.pace(Pace::Prompt);
        for provider in &providers {
            provider.settle(&server.intake).await;
        }
        // A busy machine may have accepted more than it did, for as long as the load lasted.
        self.drained_within(4 * PATIENCE).await;
        self.verified();
        let unknown = nothing_was_lost_or_repeated(&self.place.sink, &self.books().await, &providers).await.len();
        let made: usize = providers.iter().map(|provider| provider.made()).sum();
        eprintln!("{made} events, {} calls at the sink, {unknown} of unknown outcome", self.place.sink.count());
        unknown
    }
}

/// Providers that send to whoever is there, effects that must not be repeated and effects that may be.
pub struct Load {
    pub servers: watch::Sender<Vec<String>>,
    providers: Vec<Arc<Provider>>,
    stop: CancellationToken,
    senders: Vec<JoinHandle<()>>,
}

impl Load {
    /// `connections` for each of the two.
    pub fn start(nodes: &[&Server], connections: usize) -> Load {
        const EVENTS_MAX: usize = 20_000;
        let servers = watch::Sender::new(nodes.iter().map(|node| node.intake.clone()).collect());
        let stop = CancellationToken::new();
        let hurry = Duration::from_secs(2);
        let providers: Vec<Arc<Provider>> =
            [ONCE, AGAIN].into_iter().map(|way| Arc::new(Provider::in_a_hurry(way, hurry))).collect();
        let senders = providers.iter().map(|provider| {
            let (provider, servers, stop) = (provider.clone(), servers.clone(), stop.clone());
            tokio::spawn(async move { provider.load_any(&servers, connections, EVENTS_MAX, &stop).await })
        });
        Load { senders: senders.collect(), servers, providers, stop }
    }

    pub fn goes_to(&self, nodes: &[&Server]) {
        self.servers.send_replace(nodes.iter().map(|node| node.intake.clone()).collect());
    }

    fn acknowledged(&self) -> usize {
        self.providers.iter().map(|provider| provider.acknowledged().len()).sum()
    }

    /// The events that these are the jobs of, as far as they are acknowledged.
    pub fn events_of(&self, jobs: &[i64]) -> HashSet<String> {
        let acknowledged = self.providers.iter().flat_map(|provider| provider.acknowledged());
        acknowledged.filter(|(_, job)| jobs.contains(&job.number().cast_signed())).map(|(event, _)| event).collect()
    }

    /// Until so many more events are acknowledged and done than now.
    pub async fn progresses(&self, nodes: &Nodes, events: usize) {
        let (acknowledged, done) = (self.acknowledged(), nodes.place.sink.count());
        eventually("events are accepted and done again", 2 * PATIENCE, async || {
            self.acknowledged() >= acknowledged + events && nodes.place.sink.count() >= done + events
        })
        .await;
    }

    async fn stop(self) -> Vec<Arc<Provider>> {
        self.stop.cancel();
        for sender in self.senders {
            sender.await.unwrap();
        }
        self.providers
    }
}
