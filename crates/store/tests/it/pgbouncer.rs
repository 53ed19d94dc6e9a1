//! The engine for many nodes behind a real PgBouncer in transaction mode, where a session lasts for one transaction: every
//! law, and that nodes find each other's work without hearing of it.

use crate::laws::{self, *};
use crate::postgres::{PATIENCE, Postgres, cluster};
use clinch_core::time::Timestamp;
use clinch_store::{ClaimAsk, Held, Store};
use std::path::PathBuf;
use std::sync::OnceLock;

laws::every_law!(crate::pgbouncer::world);

pub fn url(database: &str) -> String {
    static POOLER: OnceLock<PathBuf> = OnceLock::new();
    let directory = POOLER.get_or_init(|| cluster().with_pgbouncer());
    format!("postgres:///{database}?user=clinch&host={}&port=6432&pgbouncer=transaction", directory.display())
}

async fn pooled() -> Postgres {
    Postgres { is_pooled: true, ..Postgres::prepared().await }
}

async fn world() -> World {
    pooled().await.world().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_behind_a_pooler_find_each_others_work_by_looking() {
    let postgres = pooled().await;
    let (here, there) = (postgres.node().await, postgres.node().await);
    assert!(here.claim(ask(later(1))).await.expect("claimed").is_empty());
    there.accept(event("k")).await.expect("accepted");
    // Nobody says so; but who waits looks by himself.
    tokio::time::timeout(PATIENCE, here.work("work")).await.expect("it looks");
    let claim = here.claim(ask(later(1))).await.expect("claimed").pop().expect("it is found");
    assert_eq!(here.settle(claim.lease, finished(later(2))).await.expect("settled"), Held::Held);
    assert_eq!(postgres.verify(later(0)).await.problems, Vec::<String>::new());
}

fn ask(now: Timestamp) -> ClaimAsk {
    ClaimAsk { queue: "work".into(), most: 1, but: None, now, until: now + LEASE }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooled_session_is_left_as_it_was_found() {
    let postgres = pooled().await;
    let world = postgres.world().await;
    world.accepted(event("k")).await;
    world.finish(later(1)).await;
    let (client, connection) =
        tokio_postgres::connect(&postgres.url().replace("&pgbouncer=transaction", ""), tokio_postgres::NoTls)
            .await
            .expect("connected");
    tokio::spawn(connection);
    // Whichever session of the pool is given, nothing of ours is in it.
    for _ in 0..20 {
        let sql = "SELECT (SELECT count(*) FROM pg_prepared_statements) || ' ' || current_setting('enable_seqscan')";
        let messages = client.simple_query(sql).await.expect("read");
        let found = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
            _ => None,
        });
        assert_eq!(found.as_deref(), Some("0 on"));
    }
}
