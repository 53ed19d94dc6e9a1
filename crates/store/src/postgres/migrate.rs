//! The schema: made and brought up to date at start, in one transaction, by one node at a time; and what a server must be
//! for its word to count.

use super::Fault;
use super::import;
use super::link::Link;
use super::param::{self, Params};
use crate::{Result, StoreError};
use tokio_postgres::{Client, Row};

/// The migrations, in order; the number of the last one is the version of the schema. One that was ever released is never
/// changed.
const MIGRATIONS: &[&str] = &[
    include_str!("../../migrations/postgres/0001_init.sql"),
    include_str!("../../migrations/postgres/0002_call_fence.sql"),
];
/// The lock of whoever migrates or moves a store in. It ends with the transaction, so it also holds behind a pooler.
const MIGRATOR: i64 = 0x636c_696e_6368_0001;
const SERVER_VERSION_MIN: i32 = 150_000;

/// What a start finds out.
pub(super) struct Found {
    pub pepper: [u8; 32],
    /// How durable a commit of this server is.
    pub commit: String,
    /// Why it may lose what was accepted, if the operator accepts that.
    pub forgets: Option<String>,
    /// A store is being moved in, and not all of it is there.
    pub is_half_moved: bool,
}

/// `pepper` is used if the store is new.
pub(super) async fn migrate(link: &Link, pepper: [u8; 32]) -> Result<Found> {
    let client = open(link).await?;
    let (commit, forgets) = refuse_unfit(&client, link.is_unsafe_accepted).await?;
    begin(&client).await.map_err(open_error)?;
    // Asked for first: making what is there is refused to who may not make anything, even when there is nothing to make.
    let known = match is_there(&client).await? {
        true => known(&client).await?,
        false => {
            let made = "CREATE TABLE migration (no integer PRIMARY KEY, hash text NOT NULL,
                        at timestamptz NOT NULL DEFAULT now())";
            client.batch_execute(made).await.map_err(open_error)?;
            Vec::new()
        }
    };
    refuse_other(&client, &known).await?;
    for (no, migration) in (1i32..).zip(MIGRATIONS).skip(known.len()) {
        client.batch_execute(migration).await.map_err(open_error)?;
        let note = "INSERT INTO migration (no, hash) VALUES ($1, md5($2))";
        param::ask(&client, note, &[&no, migration]).await.map_err(open_error)?;
    }
    let keep = "INSERT INTO secret (name, value) VALUES ('pepper', $1) ON CONFLICT DO NOTHING";
    param::ask(&client, keep, &[&&pepper[..]]).await.map_err(open_error)?;
    let row = one(&client, "SELECT value FROM secret WHERE name = 'pepper'", &[]).await?;
    let pepper = row.get::<_, &[u8]>(0).try_into();
    let pepper = pepper.map_err(|_| StoreError::Damaged("its pepper does not have 32 bytes".into()))?;
    let is_half_moved = import::is_half_moved(&client).await.map_err(open_error)?;
    client.batch_execute("COMMIT").await.map_err(open_error)?;
    Ok(Found { pepper, commit, forgets, is_half_moved })
}

/// A transaction that begins when every other one of its kind is over, also that of a process that was killed at its
/// commit: whoever opens the store sees what became of it.
pub(super) async fn begin(client: &Client) -> std::result::Result<(), tokio_postgres::Error> {
    client.batch_execute("BEGIN").await?;
    param::ask(client, "SELECT pg_advisory_xact_lock($1)", &[&MIGRATOR]).await.map(drop)
}

/// A connection of its own, without the deadlines of a verb: a migration takes as long as it takes.
pub(super) async fn open(link: &Link) -> Result<Client> {
    let (client, driver) = link.connect().await.map_err(|fault: Fault| StoreError::Open(fault.to_string()))?;
    tokio::spawn(driver.run());
    Ok(client)
}

pub(super) fn open_error(error: tokio_postgres::Error) -> StoreError {
    StoreError::Open(Fault::from(error).to_string())
}

async fn one(client: &Client, sql: &str, params: Params<'_>) -> Result<Row> {
    let mut rows = param::ask(client, sql, params).await.map_err(open_error)?;
    rows.pop().ok_or_else(|| StoreError::Damaged("a question that has one answer has none".into()))
}

/// What is committed must be there after a power cut, and what is read must be what was committed. Tells how durable a commit
/// is, and what was wrong with it if that was accepted.
async fn refuse_unfit(client: &Client, is_unsafe_accepted: bool) -> Result<(String, Option<String>)> {
    let sql = "SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit'),
                      current_setting('server_version_num')::integer";
    let row = one(client, sql, &[]).await?;
    let (in_recovery, fsync, commit, version): (bool, String, String, i32) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    if version < SERVER_VERSION_MIN {
        return Err(StoreError::Open(format!("the server is PostgreSQL {}; 15 or newer is needed", version / 10_000)));
    }
    if in_recovery {
        return Err(StoreError::Open(
            "this server is a read replica; name the primary, or all hosts with target_session_attrs=read-write".into(),
        ));
    }
    let (why, remedy) = if fsync != "on" {
        (format!("fsync = {fsync}: a power cut loses events that were accepted"), "set fsync = on and restart it")
    } else if commit == "off" {
        (
            "synchronous_commit = off: a crash loses events that were accepted".into(),
            "set it to on for this server, database or role",
        )
    } else {
        return Ok((commit, None));
    };
    if !is_unsafe_accepted {
        return Err(StoreError::Open(format!("the server has {why}; {remedy}")));
    }
    tracing::warn!("THE SERVER HAS {why}; this goes on because the address says unsafe_durability=accept");
    Ok((commit, Some(format!("the server has {why}"))))
}

pub(super) async fn is_there(client: &Client) -> Result<bool> {
    let row = one(client, "SELECT to_regclass('migration') IS NOT NULL", &[]).await?;
    Ok(row.get(0))
}

/// The hashes of the migrations that were made, in order.
pub(super) async fn known(client: &Client) -> Result<Vec<String>> {
    let rows = param::ask(client, "SELECT hash FROM migration ORDER BY no", &[]).await.map_err(open_error)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub(super) async fn refuse_other(client: &Client, known: &[String]) -> Result<()> {
    if known.len() > MIGRATIONS.len() {
        return Err(StoreError::Open(format!(
            "it was written by a newer clinch (schema {}, this one knows {}); use that version",
            known.len(),
            MIGRATIONS.len()
        )));
    }
    for (no, (hash, migration)) in (1..).zip(known.iter().zip(MIGRATIONS)) {
        let row = one(client, "SELECT md5($1)", &[migration]).await?;
        if row.get::<_, &str>(0) != hash {
            return Err(StoreError::Open(format!(
                "its schema {no} is not the one that this clinch knows; use the version that made it"
            )));
        }
    }
    Ok(())
}
