//! Makes a workspace live.

use super::writer::Batch;
use super::{audit, open_error, rows};
use crate::activate::{ActivateAsk, Activated, Standing};
use crate::{Result, VersionId};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::path::Path;

pub(super) fn activate(batch: &Batch<'_>, ask: &ActivateAsk) -> rusqlite::Result<Activated> {
    let known =
        batch.conn.query_row("SELECT id FROM version WHERE hash = ?1", [ask.hash], |row| row.get(0).map(VersionId));
    let standing = Standing {
        live: live(batch.conn)?,
        chosen: rows::fact(batch.conn, "live_chosen")? != 0,
        known: known.optional()?,
    };
    if let Some(answer) = ask.answer(standing) {
        return Ok(answer);
    }
    let version = match standing.known {
        Some(version) => version,
        None => {
            let insert = "INSERT INTO version (hash, files, at) VALUES (?1, ?2, ?3) RETURNING id";
            let values = params![ask.hash, ask.files, ask.record.at.as_micros()];
            batch.conn.query_row(insert, values, |row| row.get(0).map(VersionId))?
        }
    };
    let mut set = batch.conn.prepare_cached("UPDATE fact SET value = ?2 WHERE name = ?1")?;
    set.execute(params!["live_version", version.0])?;
    set.execute(params!["live_chosen", i64::from(ask.is_chosen())])?;
    let (act, record) = ask.act(standing.live, version);
    audit::append(batch, &act, &record)?;
    Ok(Activated::Live(version))
}

/// The files of the first workspace that was live in the store of this directory; none if there is no store. Only reads.
pub fn first_files(data_dir: &Path) -> Result<Option<String>> {
    let path = super::database_path(data_dir);
    if !path.exists() {
        return Ok(None);
    }
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(open_error)?;
    super::refuse_newer(&conn)?;
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'version')";
    if !conn.query_row(is_there, [], |row| row.get(0)).map_err(open_error)? {
        return Ok(None);
    }
    let first = "SELECT files FROM version ORDER BY id LIMIT 1";
    conn.query_row(first, [], |row| row.get(0)).optional().map_err(open_error)
}

pub(super) fn live(conn: &Connection) -> rusqlite::Result<Option<VersionId>> {
    let live = rows::fact(conn, "live_version")?;
    Ok((live != 0).then_some(VersionId(live)))
}
