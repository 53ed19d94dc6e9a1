//! Makes a workspace live. Who asks at the same time waits for the row of the live one.

use super::link::Link;
use super::pool::{Line, Pool};
use super::{Fault, Shared, audit, migrate, param, rows};
use crate::VersionId;
use crate::activate::{ActivateAsk, Activated, Standing};
use std::sync::Arc;

pub(super) async fn activate(shared: &Shared, ask: &ActivateAsk) -> Result<Activated, Fault> {
    let mut line: Line = shared.hands.line().await?;
    line.begin().await?;
    let fact = |rows: &[tokio_postgres::Row]| rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0));
    let live = fact(&line.query("SELECT value FROM fact WHERE name = 'live_version' FOR UPDATE", &[]).await?)?;
    // In a statement of its own: it must see what those did who had the row before.
    let chosen = fact(&line.query("SELECT value FROM fact WHERE name = 'live_chosen'", &[]).await?)?;
    let known = fact(&line.query("SELECT id FROM version WHERE hash = $1", &[&&ask.hash[..]]).await?)?;
    let version = |id: i64| (id != 0).then_some(VersionId(id));
    let standing = Standing { live: version(live), chosen: chosen != 0, known: version(known) };
    if let Some(answer) = ask.answer(standing) {
        line.commit().await?;
        return Ok(answer);
    }
    let version = match standing.known {
        Some(version) => version,
        None => {
            let insert = "INSERT INTO version (hash, files, at) VALUES ($1, $2, $3) RETURNING id";
            let (hash, files, at) = (&ask.hash[..], rows::text(&ask.files), ask.record.at.as_micros());
            VersionId(fact(&line.query(insert, &[&hash, &files, &at]).await?)?)
        }
    };
    line.query("UPDATE fact SET value = $1 WHERE name = 'live_version'", &[&version.0]).await?;
    line.query("UPDATE fact SET value = $1 WHERE name = 'live_chosen'", &[&i64::from(ask.is_chosen())]).await?;
    audit::append(&mut line, [&ask.act(standing.live, version)]).await?;
    line.commit().await?;
    Ok(Activated::Live(version))
}

/// The files of the first workspace that was live in the store of this database; none if there is no store. Only reads.
pub async fn first_files(url: &str) -> crate::Result<Option<String>> {
    let client = migrate::open(&Link::parse(url)?).await?;
    if !migrate::is_there(&client).await? {
        return Ok(None);
    }
    migrate::refuse_other(&client, &migrate::known(&client).await?).await?;
    let first = "SELECT files FROM version ORDER BY id LIMIT 1";
    let found = param::ask(&client, first, &[]).await.map_err(migrate::open_error)?;
    found.first().map(|row| row.try_get(0)).transpose().map_err(migrate::open_error)
}

pub(super) async fn live(eyes: &Arc<Pool>) -> Result<Option<VersionId>, Fault> {
    let found = eyes.ask("SELECT value FROM fact WHERE name = 'live_version' AND value <> 0", &[]).await?;
    Ok(found.first().map(|row| row.try_get(0).map(VersionId)).transpose()?)
}
