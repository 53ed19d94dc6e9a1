//! Servers of all kinds, each a real one of its own: those that are refused, those that ask for a password or have a
//! certificate, a primary with its replica, and one that stalls.

use crate::laws::*;
use crate::postgres::{PATIENCE, Postgres, alone, in_the_wild};
use clinch_store::postgres::{Options, PostgresStore};
use clinch_store::{Acceptance, ClaimAsk, Held, Read, Store, StoreError};
use clinch_testbed::Postgres as Server;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

async fn client(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.expect("connected");
    tokio::spawn(connection);
    client
}

/// Changes a setting of a server that runs.
async fn set(server: &Server, setting: &str) {
    client(server).await.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.expect("set");
    client(server).await.batch_execute("SELECT pg_reload_conf()").await.expect("told");
    let (name, value) = setting.split_once(" = ").expect("a name and a value");
    let show = format!("SHOW {name}");
    let is_set = async {
        while client(server).await.query_one(&show, &[]).await.expect("read").get::<_, String>(0) != value {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_set).await.expect("it is set");
}

async fn open(url: &str) -> Result<PostgresStore, StoreError> {
    PostgresStore::open(url, PEPPER, keys(KEY), alone()).await
}

async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(StoreError::Open(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_server_that_may_forget_is_refused_unless_the_address_accepts_that() {
    let server = Server::start();
    let url = server.url("postgres");
    let accepting = format!("{url}&unsafe_durability=accept");
    set(&server, "fsync = off").await;
    let why = refusal(&url).await;
    assert!(why.contains("fsync = off") && why.contains("set fsync = on"), "{why}");
    let store = open(&accepting).await.expect("opened");
    assert!(matches!(store.accept(event("k")).await.expect("answered"), Acceptance::Fresh(_)));
    let warning = store.health().warning.expect("it is not forgotten");
    assert!(warning.contains("fsync = off"), "{warning}");

    set(&server, "fsync = on").await;
    set(&server, "synchronous_commit = off").await;
    let why = refusal(&url).await;
    assert!(why.contains("synchronous_commit = off") && why.contains("set it to on"), "{why}");
    assert!(open(&accepting).await.expect("opened").health().warning.is_some());

    set(&server, "synchronous_commit = on").await;
    assert_eq!(open(&accepting).await.expect("opened").health().warning, None, "there is nothing to accept");
    let roles = "CREATE ROLE careless LOGIN SUPERUSER; ALTER ROLE careless SET synchronous_commit = off";
    client(&server).await.batch_execute(roles).await.expect("made");
    let why = refusal(&url.replace("user=clinch", "user=careless")).await;
    assert!(why.contains("synchronous_commit = off"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_replica_is_refused_and_among_several_hosts_the_primary_is_found() {
    let primary = Server::start();
    let first = open(&primary.url("postgres")).await.expect("opened");
    first.accept(event("k")).await.expect("accepted");
    let replica = primary.with_standby();
    let url = replica.url("postgres");
    for url in [format!("{url}&unsafe_durability=accept"), url] {
        let why = refusal(&url).await;
        assert!(why.contains("read replica") && why.contains("target_session_attrs=read-write"), "{why}");
    }
    for ports in [[primary.port(), replica.port()], [replica.port(), primary.port()]] {
        let [one, other] = ports.map(|port| format!("127.0.0.1:{port}"));
        let url = format!("postgres://clinch@{one},{other}/postgres?target_session_attrs=read-write");
        let store = open(&url).await.expect("opened");
        assert!(matches!(store.accept(event("k")).await.expect("answered"), Acceptance::Duplicate(_)));
    }
}

/// An authority, and a certificate for `localhost` that it signed; another authority that signed nothing.
const CERTIFICATES: &[&str] = &[
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stranger -keyout stranger.key -out stranger.pem",
    "openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout data/server.key -out server.csr",
    r"printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n' > extensions",
    "openssl x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions -out data/server.crt",
    "chmod 600 data/server.key",
    r"printf 'local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n' > data/pg_hba.conf",
];

/// A password file that only its owner can read.
fn passfile(directory: &Path, port: u16, password: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let file = directory.join(format!("{password}.pgpass"));
    std::fs::write(&file, format!("*:{port}:*:clinch:{password}\n")).expect("written");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("closed to others");
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_only_with_a_server_that_proves_its_name_and_a_password_file_opens_it() {
    let server = Server::start_after(|server| {
        for command in CERTIFICATES {
            server.does(command);
        }
        server.set("ssl = on");
    });
    let port = server.port();
    client(&server).await.batch_execute("ALTER ROLE clinch PASSWORD 'right'").await.expect("set");
    let files = tempfile::tempdir().expect("made");
    let right = passfile(files.path(), port, "right");
    let wrong = passfile(files.path(), port, "wrong");
    // Copied: the directory of the server is its own.
    for (name, text) in ["ca.pem", "stranger.pem"].map(|name| (name, server.does(&format!("cat {name}")))) {
        std::fs::write(files.path().join(name), text).expect("written");
    }
    let authority = |name: &str| files.path().join(name).display().to_string();
    let url = |host: &str, mode: &str, root: &str, passfile: &Path| {
        let (root, passfile) = (authority(root), passfile.display());
        format!("postgres://clinch@{host}:{port}/postgres?sslmode={mode}&sslrootcert={root}&passfile={passfile}")
    };
    for mode in ["require", "verify-ca", "verify-full"] {
        let store = open(&url("localhost", mode, "ca.pem", &right)).await.expect("opened");
        store.accept(event("k")).await.expect("accepted");
        let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                         WHERE application_name = 'clinch' AND NOT ssl";
        let in_clear: i64 = client(&server).await.query_one(encrypted, &[]).await.expect("read").get(0);
        assert_eq!(in_clear, 0);
    }
    for (address, said) in [
        (url("localhost", "verify-full", "stranger.pem", &right), "sslrootcert=FILE"),
        (url("127.0.0.1", "verify-full", "ca.pem", &right), "as its certificate does"),
        (url("localhost", "verify-full", "ca.pem", &wrong), "passfile=FILE"),
        (format!("postgres://clinch@localhost:{port}/postgres?sslmode=require"), "sslrootcert=FILE"),
        (url("localhost", "disable", "ca.pem", &right), "no pg_hba.conf entry"),
    ] {
        let why = refusal(&address).await;
        assert!(why.contains(said), "{address}: {why}");
        assert!(!why.contains("right") && !why.contains("wrong"), "no password is told: {why}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p11_the_jobs_of_a_node_that_leaves_are_free_when_it_has_closed() {
    let postgres = Postgres::new().await;
    let (leaving, staying) = (postgres.node().await, postgres.node().await);
    leaving.accept(event("k")).await.expect("accepted");
    let ask = ClaimAsk { queue: "work".into(), most: 1, but: None, now: later(0), until: later(60) };
    let lease = leaving.claim(ask.clone()).await.expect("claimed")[0].lease;
    leaving.close().await;
    let again = staying.claim(ask).await.expect("claimed");
    assert_eq!(again.iter().map(|claim| claim.lease.job).collect::<Vec<_>>(), [lease.job]);
    assert_eq!(postgres.count("SELECT count(*) FROM node").await, 1);
    assert_eq!(staying.settle(again[0].lease, finished(later(1))).await.expect("answered"), Held::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f39_a_verb_that_stalls_fails_within_its_deadline_and_the_others_go_on() {
    let postgres = Postgres::new().await;
    let options = Options { deadline: Duration::from_secs(1), ..in_the_wild() };
    let store = PostgresStore::open(&postgres.url(), PEPPER, keys(KEY), options).await.expect("opened");
    for nth in 0..3 {
        store.accept(event(&format!("k{nth}"))).await.expect("accepted");
    }
    let ask = |most| ClaimAsk { queue: "work".into(), most, but: None, now: later(0), until: later(60) };
    let lease = store.claim(ask(1)).await.expect("claimed")[0].lease;
    let stall = postgres.client().await;
    stall.batch_execute("BEGIN; LOCK TABLE dedup IN ACCESS EXCLUSIVE MODE").await.expect("locked");
    // Acceptance cannot go on; settling and claiming can.
    let stalled = tokio::time::timeout(PATIENCE, store.accept(event("stalled")));
    let others = async {
        assert_eq!(store.settle(lease, finished(later(1))).await.expect("settled"), Held::Held);
        assert_eq!(store.claim(ask(1)).await.expect("claimed").len(), 1);
    };
    let (answer, ()) = tokio::join!(stalled, others);
    assert!(matches!(&answer, Ok(Err(StoreError::Unavailable(_)))), "{answer:?}");
    stall.batch_execute("ROLLBACK").await.expect("freed");
    let back = async {
        while !matches!(store.accept(event("stalled")).await, Ok(Acceptance::Fresh(_))) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("it goes on by itself");
    assert_eq!(postgres.count("SELECT count(*) FROM event").await, 4);
}
