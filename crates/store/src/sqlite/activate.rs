//! Makes a workspace live.

use super::writer::Batch;
use super::{audit, rows};
use crate::VersionId;
use crate::activate::{ActivateAsk, Activated, Standing};
use rusqlite::{Connection, OptionalExtension, params};

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

pub(super) fn live(conn: &Connection) -> rusqlite::Result<Option<VersionId>> {
    let live = rows::fact(conn, "live_version")?;
    Ok((live != 0).then_some(VersionId(live)))
}
