//! People who may ask: added and removed, on record.

use super::writer::Batch;
use super::{audit, rows};
use crate::read::UserRow;
use crate::{NewUser, Record, USERS_MAX, UserAdded, acts};
use clinch_core::time::Timestamp;
use clinch_core::user::{TokenDigest, UserName};
use rusqlite::{Connection, OptionalExtension, Row, params};

pub(super) fn add(batch: &Batch<'_>, user: &NewUser, record: &Record) -> rusqlite::Result<UserAdded> {
    let is_taken = "SELECT EXISTS (SELECT 1 FROM person WHERE name = ?1)";
    if batch.conn.query_row(is_taken, [user.name.as_str()], |row| row.get(0))? {
        return Ok(UserAdded::Taken);
    }
    let kept: i64 = batch.conn.query_row("SELECT count(*) FROM person", [], |row| row.get(0))?;
    if kept >= USERS_MAX {
        return Ok(UserAdded::TooMany);
    }
    batch.conn.execute(
        "INSERT INTO person (name, added_at, token) VALUES (?1, ?2, ?3)",
        params![user.name.as_str(), record.at.as_micros(), user.token.as_bytes()],
    )?;
    audit::append(batch, &acts::add_user(&user.name), record)?;
    Ok(UserAdded::Added)
}

pub(super) fn remove(batch: &Batch<'_>, name: &UserName, record: &Record) -> rusqlite::Result<bool> {
    let added_at: Option<i64> = batch
        .conn
        .query_row("DELETE FROM person WHERE name = ?1 RETURNING added_at", [name.as_str()], |row| row.get(0))
        .optional()?;
    if let Some(added_at) = added_at {
        audit::append(batch, &acts::remove_user(name, Timestamp::from_micros(added_at)), record)?;
    }
    Ok(added_at.is_some())
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<UserRow>> {
    conn.prepare_cached("SELECT name, added_at, token FROM person ORDER BY name")?.query_map([], row)?.collect()
}

pub(super) fn of_token(conn: &Connection, token: &TokenDigest) -> rusqlite::Result<Option<UserName>> {
    conn.prepare_cached("SELECT name, added_at, token FROM person WHERE token = ?1")?
        .query_row([&token.as_bytes()[..]], row)
        .optional()
        .map(|found| found.map(|user| user.name))
}

fn row(row: &Row<'_>) -> rusqlite::Result<UserRow> {
    let damaged = |error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error));
    Ok(UserRow {
        name: row.get_ref(0)?.as_str()?.parse().map_err(damaged)?,
        added_at: rows::time(row, 1)?,
        token: TokenDigest::from_bytes(row.get(2)?),
    })
}
