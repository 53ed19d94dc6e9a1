//! steer: what operators switch, on record.

use super::writer::Batch;
use super::{audit, open_error};
use crate::{CONTROL_KEPT, Result, SteerAsk, Steered, StoreError};
use clinch_core::control::Control;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use std::path::Path;
use std::sync::Arc;

const COLUMNS: &str = "name, value, version, at, actor, until";

pub(super) fn steer(batch: &Batch<'_>, ask: &SteerAsk) -> rusqlite::Result<Steered> {
    let (conn, record) = (batch.conn, &ask.record);
    let before = conn
        .prepare_cached(&format!("SELECT {COLUMNS} FROM control WHERE name = ?1"))?
        .query_row([&ask.name], row)
        .optional()?;
    if ask.is_late(before.as_ref()) {
        return Ok(Steered::Conflict(before));
    }
    if ask.is_idle(before.as_ref()) {
        return Ok(Steered::Steered { before, version: 0 });
    }
    let version = match &ask.value {
        None => {
            conn.execute("DELETE FROM control WHERE name = ?1", [&ask.name])?;
            0
        }
        Some(value) => {
            let next = "UPDATE fact SET value = value + 1 WHERE name = 'control_version' RETURNING value";
            let version: i64 = conn.query_row(next, [], |row| row.get(0))?;
            let (at, until) = (record.at.as_micros(), ask.until.map(Timestamp::as_micros));
            conn.execute(
                &format!("INSERT OR REPLACE INTO control ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
                params![ask.name, value, version, at, record.actor, until],
            )?;
            version
        }
    };
    audit::append(batch, &ask.act(before.as_ref(), version), record)?;
    Ok(Steered::Steered { before, version })
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<Control>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM control ORDER BY name"))?.query_map([], row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<Control> {
    Ok(Control {
        name: Arc::from(row.get_ref(0)?.as_str()?),
        value: row.get(1)?,
        version: row.get(2)?,
        at: Timestamp::from_micros(row.get(3)?),
        actor: row.get(4)?,
        until: row.get::<_, Option<i64>>(5)?.map(Timestamp::from_micros),
    })
}

/// What operators switched in the store of this directory; a server may be running on it. Needs no key.
pub fn controls_of(data_dir: &Path) -> Result<Vec<Control>> {
    let path = super::database_path(data_dir);
    if !path.exists() {
        return Err(StoreError::Open(format!("there is no store in {}", data_dir.display())));
    }
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(open_error)?;
    super::refuse_newer(&conn)?;
    all(&conn).map_err(open_error)
}

/// Those that ended long ago.
pub(super) fn prune(batch: &Batch<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let sql = "DELETE FROM control WHERE until <= ?1";
    batch.conn.prepare_cached(sql)?.execute([(now - CONTROL_KEPT).as_micros()]).map(drop)
}
