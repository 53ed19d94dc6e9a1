//! People who may ask: added and removed, on record.

use super::pool::Pool;
use super::{Fault, Shared, audit, rows};
use crate::read::UserRow;
use crate::{NewUser, Record, USERS_MAX, UserAdded, acts};
use clinch_core::time::Timestamp;
use clinch_core::user::{TokenDigest, UserName};
use std::sync::Arc;
use tokio_postgres::Row;

pub(super) async fn add(shared: &Shared, user: &NewUser, record: &Record) -> Result<UserAdded, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // Who asks for the same name at the same time waits here, and then finds it taken.
    let made = line
        .query(
            "INSERT INTO person (name, added_at, token)
             SELECT $1, $2, $3 WHERE (SELECT count(*) FROM person) < $4 OR EXISTS (SELECT 1 FROM person WHERE name = $1)
             ON CONFLICT (name) DO NOTHING RETURNING name",
            &[&user.name.as_str(), &record.at.as_micros(), &&user.token.as_bytes()[..], &USERS_MAX],
        )
        .await?;
    let added = match made.is_empty() {
        false => {
            audit::append(&mut line, [&(acts::add_user(&user.name), record.clone())]).await?;
            UserAdded::Added
        }
        true => match line.query("SELECT 1 FROM person WHERE name = $1", &[&user.name.as_str()]).await?.is_empty() {
            true => UserAdded::TooMany,
            false => UserAdded::Taken,
        },
    };
    line.commit().await?;
    Ok(added)
}

pub(super) async fn remove(shared: &Shared, name: &UserName, record: &Record) -> Result<bool, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let gone = line.query("DELETE FROM person WHERE name = $1 RETURNING added_at", &[&name.as_str()]).await?;
    if let Some(row) = gone.first() {
        let added_at = Timestamp::from_micros(row.try_get(0)?);
        audit::append(&mut line, [&(acts::remove_user(name, added_at), record.clone())]).await?;
    }
    line.commit().await?;
    Ok(!gone.is_empty())
}

pub(super) async fn all(eyes: &Arc<Pool>) -> Result<Vec<UserRow>, Fault> {
    eyes.ask("SELECT name, added_at, token FROM person ORDER BY name COLLATE \"C\"", &[])
        .await?
        .iter()
        .map(row)
        .collect()
}

pub(super) async fn of_token(eyes: &Arc<Pool>, token: &TokenDigest) -> Result<Option<UserName>, Fault> {
    let sql = "SELECT name, added_at, token FROM person WHERE token = $1";
    let found = eyes.ask(sql, &[&&token.as_bytes()[..]]).await?;
    Ok(found.first().map(row).transpose()?.map(|user| user.name))
}

fn row(row: &Row) -> Result<UserRow, Fault> {
    let damaged = || Fault::Damaged("a user");
    Ok(UserRow {
        name: row.try_get::<_, &str>(0)?.parse().map_err(|_| damaged())?,
        added_at: rows::time(row, 1)?,
        token: TokenDigest::from_bytes(row.try_get::<_, &[u8]>(2)?.try_into().map_err(|_| damaged())?),
    })
}
