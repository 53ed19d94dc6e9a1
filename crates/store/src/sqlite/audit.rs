//! The audit: the one place that writes a row of it, always in the transaction of the act itself, for whom it is
//! allowed, and the walk along its chain.

use super::writer::{self, Batch};
use super::{rows, user};
use crate::read::{AuditFilter, AuditRow, AuditWalk, Inspected};
use clinch_core::audit::{Act, Chain, Digest, Inspection, Record, Right};
use clinch_core::id::JobId;
use rusqlite::{Connection, Row, params};

const COLUMNS: &str = "id, at, actor, origin, action, object, job, before, after, reason, hash";

pub(super) fn append(batch: &Batch<'_>, act: &Act, record: &Record) -> rusqlite::Result<()> {
    if record.right != Right::Given {
        record.allows(act.action, user::role(batch.conn, &record.actor)?).map_err(writer::refused)?;
    }
    let mut chain = head(batch.conn)?;
    let row = chain.append(act, record);
    batch
        .conn
        .prepare_cached(&format!(
            "INSERT INTO audit ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
        ))?
        .execute(params![
            row.no.cast_signed(),
            row.at.as_micros(),
            row.actor,
            row.origin,
            row.action,
            row.object,
            row.job.map(|job| job.number().cast_signed()),
            row.before,
            row.after,
            row.reason,
            row.hash.as_bytes(),
        ])?;
    let mut set = batch.conn.prepare_cached("UPDATE fact SET value = ?2 WHERE name = ?1")?;
    set.execute(params!["audit_rows", chain.count.cast_signed()])?;
    set.execute(params!["audit_hash", chain.hash.as_bytes()])?;
    Ok(())
}

/// How far the chain goes, kept apart from it.
pub(super) fn head(conn: &Connection) -> rusqlite::Result<Chain> {
    let count = rows::fact(conn, "audit_rows")?.cast_unsigned();
    let hash = conn.query_row("SELECT value FROM fact WHERE name = 'audit_hash'", [], |row| digest(row, 0))?;
    Ok(Chain { count, hash })
}

/// A hash that is none fits nothing, and that is said of its row.
fn digest(row: &Row<'_>, column: usize) -> rusqlite::Result<Digest> {
    let bytes = row.get_ref(column)?.as_blob().unwrap_or_default();
    Ok(bytes.try_into().map_or(Chain::START.hash, Digest::from_bytes))
}

fn row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        no: row.get::<_, i64>(0)?.cast_unsigned(),
        at: rows::time(row, 1)?,
        actor: row.get(2)?,
        origin: row.get(3)?,
        action: row.get(4)?,
        object: row.get(5)?,
        job: row.get::<_, Option<i64>>(6)?.map(|id| JobId::from_number(id.cast_unsigned())),
        before: row.get(7)?,
        after: row.get(8)?,
        reason: row.get(9)?,
        hash: digest(row, 10)?,
    })
}

pub(super) fn of_job(conn: &Connection, job: JobId) -> rusqlite::Result<Vec<AuditRow>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM audit WHERE job = ?1 ORDER BY id"))?
        .query_map([job.number().cast_signed()], row)?
        .collect()
}

pub(super) fn find(conn: &Connection, filter: &AuditFilter) -> rusqlite::Result<Vec<AuditRow>> {
    let (order, from) = match filter.walk {
        AuditWalk::Back { before } => ("id < ?1 ORDER BY id DESC", before.unwrap_or(u64::MAX)),
        AuditWalk::Forth { after } => ("id > ?1 ORDER BY id", after),
    };
    let (action, is_family) = filter.action();
    let sql = format!(
        "SELECT {COLUMNS} FROM audit
         WHERE (?2 IS NULL OR actor = ?2) AND (?3 IS NULL OR object = ?3) AND (?4 IS NULL OR at >= ?4) AND (?5 IS NULL OR at < ?5)
           AND (?6 IS NULL OR action = ?6 OR (?7 AND substr(action, 1, length(?6)) = ?6)) AND {order} LIMIT ?8"
    );
    conn.prepare_cached(&sql)?
        .query_map(
            params![
                i64::try_from(from).unwrap_or(i64::MAX),
                filter.actor,
                filter.object,
                filter.since.map(|at| at.as_micros()),
                filter.until.map(|at| at.as_micros()),
                action,
                is_family,
                i64::try_from(filter.limit).unwrap_or(i64::MAX),
            ],
            row,
        )?
        .collect()
}

/// All rows after this one, in parts.
pub(super) fn next(conn: &Connection, after: u64, most: usize) -> rusqlite::Result<Vec<AuditRow>> {
    find(conn, &AuditFilter { walk: AuditWalk::Forth { after }, limit: most, ..AuditFilter::default() })
}

/// From end to end, as it is at one moment.
pub(super) fn inspect(conn: &Connection, noted: Option<Digest>) -> rusqlite::Result<Inspected> {
    let head = head(conn)?;
    let mut inspection = Inspection::new(head, noted);
    let mut rows = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM audit ORDER BY id"))?;
    let mut rows = rows.query([])?;
    while let Some(found) = rows.next()? {
        if let Err(broken) = inspection.look(&row(found)?) {
            return Ok(Inspected { head, broken: Some(broken) });
        }
    }
    Ok(Inspected { head, broken: inspection.end().err() })
}
