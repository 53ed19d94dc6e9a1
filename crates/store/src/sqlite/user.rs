//! Users and their tokens: made, changed and removed, on record.

use super::writer::Batch;
use super::{audit, rows};
use crate::Record;
use crate::people::{
    Holder, NewUser, NewUserToken, USER_TOKENS_MAX, USERS_MAX, UserAdded, UserRow, UserTokenMade, UserTokenRow,
    Welcome, Welcomed, linked, password_set, removed, role_set, token_removed, welcome as wanted,
};
use clinch_core::oidc::{Guest, Identity};
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::error::Error;
use std::str::FromStr;

const USER: &str = "SELECT name, added_at, role, password, identity FROM person";
const TOKEN: &str = "SELECT token.id, token.person, token.made_at, token.expires_at, token.used_at, token.role, token.source, \
                     token.digest, person.role FROM person_token AS token JOIN person ON person.name = token.person";

pub(super) fn add(batch: &Batch<'_>, user: &NewUser, record: &Record) -> rusqlite::Result<UserAdded> {
    if find(batch.conn, user.name.as_str())?.is_some() {
        return Ok(UserAdded::Taken);
    }
    let kept: i64 = batch.conn.query_row("SELECT count(*) FROM person", [], |row| row.get(0))?;
    if kept >= USERS_MAX {
        return Ok(UserAdded::TooMany);
    }
    let password = user.password.as_ref().map(PasswordHash::as_str);
    batch.conn.execute(
        "INSERT INTO person (name, added_at, role, password) VALUES (?1, ?2, ?3, ?4)",
        params![user.name.as_str(), record.at.as_micros(), user.role.word(), password],
    )?;
    if let Some(token) = &user.token {
        insert_token(batch, &user.name, token, record.at)?;
    }
    audit::append(batch, &user.act(), record)?;
    Ok(UserAdded::Added)
}

pub(super) fn remove(batch: &Batch<'_>, name: &UserName, record: &Record) -> rusqlite::Result<bool> {
    let Some(user) = find(batch.conn, name.as_str())? else { return Ok(false) };
    log_out(batch, name)?;
    batch.conn.execute("DELETE FROM person_token WHERE person = ?1", [name.as_str()])?;
    // Before he is gone: he may be who asks.
    audit::append(batch, &removed(&user), record)?;
    batch.conn.execute("DELETE FROM person WHERE name = ?1", [name.as_str()])?;
    Ok(true)
}

pub(super) fn set_role(batch: &Batch<'_>, name: &UserName, role: Role, record: &Record) -> rusqlite::Result<bool> {
    let Some(user) = find(batch.conn, name.as_str())? else { return Ok(false) };
    if user.role == role {
        return Ok(true);
    }
    for wider in Role::ALL.into_iter().filter(|wider| !role.covers(*wider)) {
        batch
            .conn
            .execute("DELETE FROM person_token WHERE person = ?1 AND role = ?2", [name.as_str(), wider.word()])?;
    }
    log_out(batch, name)?;
    // Before he has it: nobody gives himself the role that he needs for it.
    audit::append(batch, &role_set(&user, role), record)?;
    batch.conn.execute("UPDATE person SET role = ?2 WHERE name = ?1", [name.as_str(), role.word()])?;
    Ok(true)
}

pub(super) fn set_password(
    batch: &Batch<'_>,
    name: &UserName,
    password: &PasswordHash,
    record: &Record,
) -> rusqlite::Result<bool> {
    let Some(user) = find(batch.conn, name.as_str())? else { return Ok(false) };
    batch.conn.execute("UPDATE person SET password = ?2 WHERE name = ?1", [name.as_str(), password.as_str()])?;
    log_out(batch, name)?;
    audit::append(batch, &password_set(&user, record), record)?;
    Ok(true)
}

/// Finds or makes the user who a provider says that somebody is, on record.
pub(super) fn welcome(batch: &Batch<'_>, guest: &Guest, record: &Record) -> rusqlite::Result<Welcomed> {
    let (known, named) = (by_identity(batch.conn, &guest.identity)?, find(batch.conn, guest.name.as_str())?);
    let name = known.as_ref().map_or(&guest.name, |known| &known.name);
    match wanted(guest, known.as_ref(), named.as_ref()) {
        Welcome::Nothing => {}
        Welcome::Change(role) => drop(set_role(batch, name, role, record)?),
        Welcome::Link(role) => {
            link(batch, name, &guest.identity, record)?;
            role.map(|role| set_role(batch, name, role, record)).transpose()?;
        }
        Welcome::Add(role) => {
            let user = NewUser { name: name.clone(), role, password: None, token: None };
            match add(batch, &user, record)? {
                UserAdded::Added => link(batch, name, &guest.identity, record)?,
                UserAdded::Taken => return Ok(Welcomed::Taken),
                UserAdded::TooMany => return Ok(Welcomed::TooMany),
            }
        }
        Welcome::NoRole => {
            known.as_ref().map(|known| log_out(batch, &known.name)).transpose()?;
            return Ok(Welcomed::NoRole);
        }
        Welcome::Taken => return Ok(Welcomed::Taken),
    }
    Ok(Welcomed::As(name.clone()))
}

fn link(batch: &Batch<'_>, name: &UserName, identity: &Identity, record: &Record) -> rusqlite::Result<()> {
    let sql = "UPDATE person SET identity = ?2 WHERE name = ?1";
    batch.conn.execute(sql, params![name.as_str(), identity.as_bytes()])?;
    audit::append(batch, &linked(name), record)
}

fn log_out(batch: &Batch<'_>, name: &UserName) -> rusqlite::Result<()> {
    for table in ["session", "login_link"] {
        batch.conn.execute(&format!("DELETE FROM {table} WHERE person = ?1"), [name.as_str()])?;
    }
    Ok(())
}

pub(super) fn make_token(
    batch: &Batch<'_>,
    name: &UserName,
    token: &NewUserToken,
    record: &Record,
) -> rusqlite::Result<UserTokenMade> {
    let Some(user) = find(batch.conn, name.as_str())? else { return Ok(UserTokenMade::NotFound) };
    if token.role.is_some_and(|role| !user.role.covers(role)) {
        return Ok(UserTokenMade::TooMuch(user.role));
    }
    // Those whose time is over are in nobody's way.
    let over = "DELETE FROM person_token WHERE person = ?1 AND expires_at <= ?2";
    batch.conn.execute(over, params![name.as_str(), record.at.as_micros()])?;
    let count = "SELECT count(*) FROM person_token WHERE person = ?1";
    if batch.conn.query_row(count, [name.as_str()], |row| row.get::<_, i64>(0))? >= USER_TOKENS_MAX {
        return Ok(UserTokenMade::TooMany);
    }
    insert_token(batch, name, token, record.at)?;
    audit::append(batch, &token.act(name), record)?;
    Ok(UserTokenMade::Made)
}

fn insert_token(batch: &Batch<'_>, name: &UserName, token: &NewUserToken, at: Timestamp) -> rusqlite::Result<()> {
    batch.conn.execute(
        "INSERT INTO person_token (digest, id, person, made_at, expires_at, role, source)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            token.digest.as_bytes(),
            token.id.to_string(),
            name.as_str(),
            at.as_micros(),
            token.expires_at.map(Timestamp::as_micros),
            token.role.map(Role::word),
            token.source,
        ],
    )?;
    Ok(())
}

pub(super) fn remove_token(
    batch: &Batch<'_>,
    name: &UserName,
    token: UserTokenId,
    record: &Record,
) -> rusqlite::Result<bool> {
    let sql = "DELETE FROM person_token WHERE id = ?1 AND person = ?2";
    let had = batch.conn.execute(sql, [&token.to_string(), name.as_str()])? > 0;
    if had {
        // Whoever had it may have made a link with it and logged in.
        log_out(batch, name)?;
        audit::append(batch, &token_removed(name, token), record)?;
    }
    Ok(had)
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<UserRow>> {
    conn.prepare_cached(&format!("{USER} ORDER BY name"))?.query_map([], user_row)?.collect()
}

pub(super) fn find(conn: &Connection, name: &str) -> rusqlite::Result<Option<UserRow>> {
    conn.prepare_cached(&format!("{USER} WHERE name = ?1"))?.query_row([name], user_row).optional()
}

fn by_identity(conn: &Connection, identity: &Identity) -> rusqlite::Result<Option<UserRow>> {
    conn.prepare_cached(&format!("{USER} WHERE identity = ?1"))?.query_row([identity.as_bytes()], user_row).optional()
}

pub(super) fn tokens(conn: &Connection) -> rusqlite::Result<Vec<UserTokenRow>> {
    conn.prepare_cached(&format!("{TOKEN} ORDER BY token.person, token.made_at DESC, token.id"))?
        .query_map([], token_row)?
        .collect()
}

pub(super) fn holder(conn: &Connection, token: &TokenDigest, now: Timestamp) -> rusqlite::Result<Option<Holder>> {
    conn.prepare_cached(&format!(
        "{TOKEN} WHERE token.digest = ?1 AND (token.expires_at IS NULL OR token.expires_at > ?2)"
    ))?
    .query_row(params![token.as_bytes(), now.as_micros()], |row| Ok((token_row(row)?, parsed(row, 8)?)))
    .optional()
    .map(|found| found.and_then(|(token, user)| Holder::of(&token, user)))
}

/// The role of the user of this name, if there is one.
pub(super) fn role(conn: &Connection, name: &str) -> rusqlite::Result<Option<Role>> {
    conn.prepare_cached("SELECT role FROM person WHERE name = ?1")?.query_row([name], |row| parsed(row, 0)).optional()
}

fn user_row(row: &Row<'_>) -> rusqlite::Result<UserRow> {
    Ok(UserRow {
        name: parsed(row, 0)?,
        added_at: rows::time(row, 1)?,
        role: parsed(row, 2)?,
        password: row.get::<_, Option<String>>(3)?.map(PasswordHash::new),
        identity: row.get::<_, Option<[u8; 32]>>(4)?.map(Identity::from_bytes),
    })
}

fn token_row(row: &Row<'_>) -> rusqlite::Result<UserTokenRow> {
    let time = |column| -> rusqlite::Result<_> { Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros)) };
    Ok(UserTokenRow {
        id: parsed(row, 0)?,
        user: parsed(row, 1)?,
        made_at: rows::time(row, 2)?,
        expires_at: time(3)?,
        used_at: time(4)?,
        role: row.get_ref(5)?.as_str_or_null()?.map(|_| parsed(row, 5)).transpose()?,
        source: row.get(6)?,
        digest: TokenDigest::from_bytes(row.get(7)?),
    })
}

pub(super) fn parsed<T: FromStr<Err: Error + Send + Sync + 'static>>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let damaged = |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error));
    row.get_ref(column)?.as_str()?.parse().map_err(damaged)
}
