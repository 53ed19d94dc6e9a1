//! Log-ins: opened, on record, noted as used, and ended.

use super::user::{find, parsed};
use super::writer::Batch;
use super::{audit, rows};
use crate::people::{NewLink, NewSession, Proof, SESSIONS_MAX, Seen, standing};
use clinch_core::session::Session;
use clinch_core::time::Timestamp;
use clinch_core::user::{ADMIN, Role, TokenDigest};
use rusqlite::{Connection, OptionalExtension, params};

pub(super) fn make_link(batch: &Batch<'_>, link: &NewLink) -> rusqlite::Result<()> {
    batch.conn.execute("DELETE FROM login_link WHERE expires_at <= ?1", [link.at.as_micros()])?;
    batch.conn.execute(
        "INSERT INTO login_link (digest, person, role, made_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            link.digest.as_bytes(),
            link.who.name,
            link.who.role.word(),
            link.at.as_micros(),
            link.expires_at.as_micros()
        ],
    )?;
    keep_newest(batch, "login_link", &link.who.name)?;
    let (act, record) = link.acted();
    audit::append(batch, &act, &record)
}

/// More of one person are not kept.
fn keep_newest(batch: &Batch<'_>, table: &str, name: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM {table} WHERE person = ?1 AND digest NOT IN
         (SELECT digest FROM {table} WHERE person = ?1 ORDER BY made_at DESC, digest LIMIT ?2)"
    );
    batch.conn.execute(&sql, params![name, SESSIONS_MAX])?;
    Ok(())
}

pub(super) fn open(batch: &Batch<'_>, new: &NewSession) -> rusqlite::Result<Option<Session>> {
    let Some((name, role)) = proven(batch, new)? else { return Ok(None) };
    let session = new.of(&name, role);
    batch.conn.execute(
        "DELETE FROM session WHERE expires_at <= ?1 OR seen_at <= ?2",
        [new.at.as_micros(), new.idle_before().as_micros()],
    )?;
    batch.conn.execute(
        "INSERT INTO session (digest, person, role, made_at, seen_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?4, ?5)",
        params![new.digest.as_bytes(), name, role.word(), new.at.as_micros(), session.expires_at.as_micros()],
    )?;
    keep_newest(batch, "session", &name)?;
    let (act, record) = new.acted(&session);
    audit::append(batch, &act, &record)?;
    Ok(Some(session))
}

/// Who it is, as far as that is proven in this transaction. A link is used up by it.
fn proven(batch: &Batch<'_>, new: &NewSession) -> rusqlite::Result<Option<(String, Role)>> {
    match &new.proof {
        Proof::Admin => Ok(Some((ADMIN.into(), Role::Admin))),
        Proof::Password(name, hash) => {
            let user = find(batch.conn, name.as_str())?.filter(|user| user.password.as_ref() == Some(hash));
            Ok(user.map(|user| (user.name.to_string(), user.role)))
        }
        Proof::Identity(name, identity) => {
            let user = find(batch.conn, name.as_str())?.filter(|user| user.identity.as_ref() == Some(identity));
            Ok(user.map(|user| (user.name.to_string(), user.role)))
        }
        Proof::Link(link) => batch
            .conn
            .query_row(
                "DELETE FROM login_link WHERE digest = ?1 AND expires_at > ?2 RETURNING person, role",
                params![link.as_bytes(), new.at.as_micros()],
                |row| Ok((row.get(0)?, parsed(row, 1)?)),
            )
            .optional(),
    }
}

pub(super) fn end(batch: &Batch<'_>, session: &TokenDigest) -> rusqlite::Result<()> {
    batch.conn.execute("DELETE FROM session WHERE digest = ?1", [session.as_bytes()])?;
    Ok(())
}

/// What is over does not come back by it.
pub(super) fn saw(batch: &Batch<'_>, secret: &Seen, at: Timestamp) -> rusqlite::Result<()> {
    let (sql, digest) = match secret {
        Seen::Session(digest) => ("UPDATE session SET seen_at = max(seen_at, ?2) WHERE digest = ?1", digest),
        Seen::Token(digest) => {
            ("UPDATE person_token SET used_at = max(coalesce(used_at, 0), ?2) WHERE digest = ?1", digest)
        }
    };
    batch.conn.prepare_cached(sql)?.execute(params![digest.as_bytes(), at.as_micros()])?;
    Ok(())
}

pub(super) fn one(conn: &Connection, session: &TokenDigest) -> rusqlite::Result<Option<Session>> {
    let sql = "SELECT session.person, session.role, session.made_at, session.seen_at, session.expires_at, person.role
               FROM session LEFT JOIN person ON person.name = session.person WHERE session.digest = ?1";
    conn.prepare_cached(sql)?
        .query_row([session.as_bytes()], |row| {
            let session = Session {
                name: row.get(0)?,
                role: parsed(row, 1)?,
                made_at: rows::time(row, 2)?,
                seen_at: rows::time(row, 3)?,
                expires_at: rows::time(row, 4)?,
            };
            let user = row.get_ref(5)?.as_str_or_null()?.map(|_| parsed(row, 5)).transpose()?;
            Ok(standing(session, user))
        })
        .optional()
        .map(Option::flatten)
}
