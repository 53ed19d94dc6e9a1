//! Alerts: begun once among all nodes, and changed by who is first.

use super::pool::Pool;
use super::rows::text;
use super::{Fault, Shared};
use crate::alert::{ALERT_KEPT, ALERTS_KEPT_MAX, AlertRow, Alerts};
use crate::read::LIST_ROWS_MAX;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use tokio_postgres::Row;

const COLUMNS: &str = "id, name, version, value, began_at, ended_at, rest_at";

pub(super) async fn raise(shared: &Shared, alert: &AlertRow) -> Result<Option<i64>, Fault> {
    let sql = "INSERT INTO alert (name, version, value, began_at, ended_at, rest_at) VALUES ($1, 1, $2, $3, $4, $5)
               ON CONFLICT DO NOTHING RETURNING id";
    let (began, ended, rest) = times(alert);
    let (name, value) = (&*alert.name, text(&alert.value));
    let made = shared.hands.line().await?.query(sql, &[&name, &value, &began, &ended, &rest]).await?;
    Ok(made.first().map(|row| row.try_get(0)).transpose()?)
}

pub(super) async fn mark(shared: &Shared, alert: &AlertRow) -> Result<bool, Fault> {
    let sql = "UPDATE alert SET version = version + 1, value = $3, ended_at = $4, rest_at = $5
               WHERE id = $1 AND version = $2 RETURNING id";
    let (_, ended, rest) = times(alert);
    let mut line = shared.hands.line().await?;
    let marked = line.query(sql, &[&alert.id, &alert.version, &text(&alert.value), &ended, &rest]).await?;
    Ok(!marked.is_empty())
}

fn times(alert: &AlertRow) -> (i64, Option<i64>, Option<i64>) {
    let micros = |at: Option<Timestamp>| at.map(Timestamp::as_micros);
    (alert.began_at.as_micros(), micros(alert.ended_at), micros(alert.rest_at))
}

pub(super) async fn all(eyes: &Arc<Pool>, which: Alerts) -> Result<Vec<AlertRow>, Fault> {
    let (rest, most) = match which {
        Alerts::Restless => ("WHERE rest_at IS NULL ORDER BY id", LIST_ROWS_MAX),
        Alerts::Newest(most) => ("ORDER BY id DESC", most.min(LIST_ROWS_MAX)),
    };
    let sql = format!("SELECT {COLUMNS} FROM alert {rest} LIMIT $1");
    eyes.ask(&sql, &[&i64::try_from(most).unwrap_or(i64::MAX)]).await?.iter().map(row).collect()
}

fn row(row: &Row) -> Result<AlertRow, Fault> {
    let time = |at: usize| Ok::<_, Fault>(row.try_get::<_, Option<i64>>(at)?.map(Timestamp::from_micros));
    Ok(AlertRow {
        id: row.try_get(0)?,
        name: row.try_get::<_, &str>(1)?.into(),
        version: row.try_get(2)?,
        value: row.try_get(3)?,
        began_at: Timestamp::from_micros(row.try_get(4)?),
        ended_at: time(5)?,
        rest_at: time(6)?,
    })
}

/// Those that are long over, and those that are too many.
pub(super) async fn prune(shared: &Shared, now: Timestamp) -> Result<(), Fault> {
    let sql =
        "DELETE FROM alert WHERE rest_at <= $1 OR (rest_at IS NOT NULL AND id <= (SELECT max(id) FROM alert) - $2)";
    let mut line = shared.hands.line().await?;
    line.query(sql, &[&(now - ALERT_KEPT).as_micros(), &ALERTS_KEPT_MAX]).await.map(drop)
}
