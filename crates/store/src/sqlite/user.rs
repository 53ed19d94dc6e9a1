//! People who may ask: added and removed, on record.

use super::writer::Batch;
use super::{audit, rows};
use crate::read::{Holder, UserRow};
use crate::{NewUser, Record, USERS_MAX, UserAdded, acts};
use clinch_core::time::Timestamp;
use clinch_core::user::{Role, TokenDigest, UserName};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::error::Error;
use std::str::FromStr;

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
        "INSERT INTO person (name, added_at, role, token) VALUES (?1, ?2, ?3, ?4)",
        params![user.name.as_str(), record.at.as_micros(), user.role.word(), user.token.as_bytes()],
    )?;
    audit::append(batch, &acts::add_user(user), record)?;
    Ok(UserAdded::Added)
}

pub(super) fn remove(batch: &Batch<'_>, name: &UserName, record: &Record) -> rusqlite::Result<bool> {
    let gone: Option<(Timestamp, String)> = batch
        .conn
        .query_row("DELETE FROM person WHERE name = ?1 RETURNING added_at, role", [name.as_str()], |row| {
            Ok((rows::time(row, 0)?, row.get(1)?))
        })
        .optional()?;
    if let Some((added_at, role)) = &gone {
        audit::append(batch, &acts::remove_user(name, *added_at, role), record)?;
    }
    Ok(gone.is_some())
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<UserRow>> {
    conn.prepare_cached("SELECT name, added_at, role, token FROM person ORDER BY name")?.query_map([], row)?.collect()
}

pub(super) fn of_token(conn: &Connection, token: &TokenDigest) -> rusqlite::Result<Option<Holder>> {
    conn.prepare_cached("SELECT name, added_at, role, token FROM person WHERE token = ?1")?
        .query_row([&token.as_bytes()[..]], row)
        .optional()
        .map(|found| found.map(|user| Holder { name: user.name, role: user.role }))
}

fn row(row: &Row<'_>) -> rusqlite::Result<UserRow> {
    Ok(UserRow {
        name: parsed(row, 0)?,
        added_at: rows::time(row, 1)?,
        role: parsed(row, 2)?,
        token: TokenDigest::from_bytes(row.get(3)?),
    })
}

/// The role of the user of this name, if there is one.
pub(super) fn role(conn: &Connection, name: &str) -> rusqlite::Result<Option<Role>> {
    conn.prepare_cached("SELECT role FROM person WHERE name = ?1")?.query_row([name], |row| parsed(row, 0)).optional()
}

fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let damaged = |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error));
    row.get_ref(column)?.as_str()?.parse().map_err(damaged)
}
