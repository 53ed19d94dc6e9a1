//! People who may ask: added and removed, on record.

use super::pool::{Line, Pool};
use super::{Fault, Shared, audit, rows};
use crate::read::{Holder, UserRow};
use crate::{NewUser, Record, USERS_MAX, UserAdded, acts};
use clinch_core::user::{Role, TokenDigest, UserName};
use std::collections::HashMap;
use std::sync::Arc;
use tokio_postgres::Row;

pub(super) async fn add(shared: &Shared, user: &NewUser, record: &Record) -> Result<UserAdded, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    // Who asks for the same name at the same time waits here, and then finds it taken.
    let made = line
        .query(
            "INSERT INTO person (name, added_at, role, token)
             SELECT $1, $2, $3, $4 WHERE (SELECT count(*) FROM person) < $5 OR EXISTS (SELECT 1 FROM person WHERE name = $1)
             ON CONFLICT (name) DO NOTHING RETURNING name",
            &[&user.name.as_str(), &record.at.as_micros(), &user.role.word(), &&user.token.as_bytes()[..], &USERS_MAX],
        )
        .await?;
    let added = match made.is_empty() {
        false => {
            audit::append(&mut line, [&(acts::add_user(user), record.clone())]).await?;
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
    let gone = line.query("DELETE FROM person WHERE name = $1 RETURNING added_at, role", &[&name.as_str()]).await?;
    if let Some(row) = gone.first() {
        let act = acts::remove_user(name, rows::time(row, 0)?, row.try_get(1)?);
        audit::append(&mut line, [&(act, record.clone())]).await?;
    }
    line.commit().await?;
    Ok(!gone.is_empty())
}

pub(super) async fn all(eyes: &Arc<Pool>) -> Result<Vec<UserRow>, Fault> {
    eyes.ask("SELECT name, added_at, role, token FROM person ORDER BY name COLLATE \"C\"", &[])
        .await?
        .iter()
        .map(row)
        .collect()
}

pub(super) async fn of_token(eyes: &Arc<Pool>, token: &TokenDigest) -> Result<Option<Holder>, Fault> {
    let sql = "SELECT name, added_at, role, token FROM person WHERE token = $1";
    let found = eyes.ask(sql, &[&&token.as_bytes()[..]]).await?;
    Ok(found.first().map(row).transpose()?.map(|user| Holder { name: user.name, role: user.role }))
}

fn row(row: &Row) -> Result<UserRow, Fault> {
    let damaged = || Fault::Damaged("a user");
    Ok(UserRow {
        name: row.try_get::<_, &str>(0)?.parse().map_err(|_| damaged())?,
        added_at: rows::time(row, 1)?,
        role: row.try_get::<_, &str>(2)?.parse().map_err(|_| damaged())?,
        token: TokenDigest::from_bytes(row.try_get::<_, &[u8]>(3)?.try_into().map_err(|_| damaged())?),
    })
}

/// The roles of those among these names who are users, as they are now.
pub(super) async fn roles(line: &mut Line, names: Vec<&str>) -> Result<HashMap<String, Role>, Fault> {
    let found = line.query("SELECT name, role FROM person WHERE name = ANY($1::text[])", &[&names]).await?;
    let role = |row: &Row| {
        let role = row.try_get::<_, &str>(1)?.parse().map_err(|_| Fault::Damaged("a role"))?;
        Ok((row.try_get(0)?, role))
    };
    found.iter().map(role).collect()
}
