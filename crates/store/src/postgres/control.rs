//! steer: what operators switch, on record, for all nodes.

use super::pool::{Line, Pool};
use super::rows::text;
use super::{Fault, Shared, audit};
use crate::{CONTROL_KEPT, SteerAsk, Steered};
use clinch_core::control::Control;
use clinch_core::time::Timestamp;
use std::sync::Arc;
use tokio_postgres::Row;

const COLUMNS: &str = "name, value, version, at, actor, until";

const SET: &str = "
    INSERT INTO control (name, value, version, at, actor, until) VALUES ($1, $2, nextval('control_version'), $3, $4, $5)
    ON CONFLICT (name) DO UPDATE SET
        value = excluded.value, version = excluded.version, at = excluded.at, actor = excluded.actor, until = excluded.until
    RETURNING version";

pub(super) async fn steer(shared: &Shared, ask: &SteerAsk) -> Result<Steered, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // One at a time, also where there is no row yet to wait for. Who reads is not in the way.
    line.query("LOCK TABLE control IN EXCLUSIVE MODE", &[]).await?;
    let steered = change(&mut line, ask).await?;
    line.commit().await?;
    Ok(steered)
}

async fn change(line: &mut Line, ask: &SteerAsk) -> Result<Steered, Fault> {
    let (name, record) = (&*ask.name, &ask.record);
    let found = line.query(&format!("SELECT {COLUMNS} FROM control WHERE name = $1"), &[&name]).await?;
    let before = found.first().map(row).transpose()?;
    if ask.is_late(before.as_ref()) {
        return Ok(Steered::Conflict(before));
    }
    if ask.is_idle(before.as_ref()) {
        return Ok(Steered::Steered { before, version: 0 });
    }
    let (at, actor) = (record.at.as_micros(), text(&record.actor));
    let version = match &ask.value {
        None => {
            line.query("DELETE FROM control WHERE name = $1", &[&name]).await?;
            0
        }
        Some(value) => {
            let until = ask.until.map(Timestamp::as_micros);
            let set = line.query(SET, &[&name, &text(value), &at, &actor, &until]).await?;
            set.first().map_or(Err(Fault::Silent), |row| Ok(row.try_get(0)?))?
        }
    };
    audit::append(line, [&(ask.act(before.as_ref(), version), record.clone())]).await?;
    Ok(Steered::Steered { before, version })
}

pub(super) async fn all(eyes: &Arc<Pool>) -> Result<Vec<Control>, Fault> {
    eyes.ask(&format!("SELECT {COLUMNS} FROM control ORDER BY name"), &[]).await?.iter().map(row).collect()
}

fn row(row: &Row) -> Result<Control, Fault> {
    Ok(Control {
        name: row.try_get::<_, &str>(0)?.into(),
        value: row.try_get(1)?,
        version: row.try_get(2)?,
        at: Timestamp::from_micros(row.try_get(3)?),
        actor: row.try_get(4)?,
        until: row.try_get::<_, Option<i64>>(5)?.map(Timestamp::from_micros),
    })
}

/// Those that ended long ago.
pub(super) async fn prune(shared: &Shared, now: Timestamp) -> Result<(), Fault> {
    let sql = "DELETE FROM control WHERE until <= $1";
    shared.hands.line().await?.query(sql, &[&(now - CONTROL_KEPT).as_micros()]).await.map(drop)
}
