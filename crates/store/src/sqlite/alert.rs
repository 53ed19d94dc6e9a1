//! Alerts: begun once, and changed by who knows how they stand.

use super::rows;
use super::writer::Batch;
use crate::alert::{ALERT_KEPT, ALERTS_KEPT_MAX, AlertRow, Alerts};
use crate::read::LIST_ROWS_MAX;
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::sync::Arc;

const COLUMNS: &str = "id, name, version, value, began_at, ended_at, rest_at";

pub(super) fn raise(batch: &Batch<'_>, alert: &AlertRow) -> rusqlite::Result<Option<i64>> {
    let sql = "INSERT INTO alert (name, version, value, began_at, ended_at, rest_at) VALUES (?1, 1, ?2, ?3, ?4, ?5)
               ON CONFLICT DO NOTHING RETURNING id";
    let (began, ended, rest) = times(alert);
    let params = params![alert.name, alert.value, began, ended, rest];
    batch.conn.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional()
}

pub(super) fn mark(batch: &Batch<'_>, alert: &AlertRow) -> rusqlite::Result<bool> {
    let sql = "UPDATE alert SET version = version + 1, value = ?3, ended_at = ?4, rest_at = ?5
               WHERE id = ?1 AND version = ?2";
    let (_, ended, rest) = times(alert);
    let params = params![alert.id, alert.version, alert.value, ended, rest];
    Ok(batch.conn.prepare_cached(sql)?.execute(params)? > 0)
}

fn times(alert: &AlertRow) -> (i64, Option<i64>, Option<i64>) {
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    (alert.began_at.as_micros(), micros(alert.ended_at), micros(alert.rest_at))
}

pub(super) fn all(conn: &Connection, which: Alerts) -> rusqlite::Result<Vec<AlertRow>> {
    let (rest, most) = match which {
        Alerts::Restless => ("WHERE rest_at IS NULL ORDER BY id", LIST_ROWS_MAX),
        Alerts::Newest(most) => ("ORDER BY id DESC", most.min(LIST_ROWS_MAX)),
    };
    let sql = format!("SELECT {COLUMNS} FROM alert {rest} LIMIT ?1");
    conn.prepare_cached(&sql)?.query_map([i64::try_from(most).unwrap_or(i64::MAX)], row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<AlertRow> {
    let time = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_micros));
    Ok(AlertRow {
        id: row.get(0)?,
        name: Arc::from(row.get_ref(1)?.as_str()?),
        version: row.get(2)?,
        value: row.get(3)?,
        began_at: rows::time(row, 4)?,
        ended_at: time(5)?,
        rest_at: time(6)?,
    })
}

/// Those that are long over, and those that are too many.
pub(super) fn prune(batch: &Batch<'_>, now: Timestamp) -> rusqlite::Result<()> {
    let sql =
        "DELETE FROM alert WHERE rest_at <= ?1 OR (rest_at IS NOT NULL AND id <= (SELECT max(id) FROM alert) - ?2)";
    batch.conn.prepare_cached(sql)?.execute(params![(now - ALERT_KEPT).as_micros(), ALERTS_KEPT_MAX]).map(drop)
}
