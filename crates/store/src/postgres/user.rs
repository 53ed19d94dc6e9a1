//! Users and their tokens: made, changed and removed, on record. Whoever changes a user locks him first: a log-in of his is over
//! before that, or waits for it.

use super::pool::{Line, Pool};
use super::{Fault, Shared, audit, rows};
use crate::people::{
    Holder, NewUser, NewUserToken, USER_TOKENS_MAX, USERS_MAX, UserAdded, UserRow, UserTokenMade, UserTokenRow,
    Welcome, Welcomed, linked, password_set, removed, role_set, token_removed, welcome as wanted,
};
use crate::{Act, Record};
use clinch_core::oidc::{Guest, Identity};
use clinch_core::time::Timestamp;
use clinch_core::user::{PasswordHash, Role, TokenDigest, UserName, UserTokenId};
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use tokio_postgres::Row;

const USER: &str = "SELECT name, added_at, role, password, identity FROM person";
const TOKEN: &str = "SELECT token.id, token.person, token.made_at, token.expires_at, token.used_at, token.role, token.source, \
                     token.digest, person.role FROM person_token AS token JOIN person ON person.name = token.person";

pub(super) async fn add(shared: &Shared, user: &NewUser, record: &Record) -> Result<UserAdded, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let added = added(&mut line, user, record).await?;
    line.commit().await?;
    Ok(added)
}

async fn added(line: &mut Line, user: &NewUser, record: &Record) -> Result<UserAdded, Fault> {
    let added = inserted(line, user, record.at).await?;
    if added == UserAdded::Added {
        audit::append(line, [&(user.act(), record.clone())]).await?;
    }
    Ok(added)
}

async fn inserted(line: &mut Line, user: &NewUser, at: Timestamp) -> Result<UserAdded, Fault> {
    // Who asks for the same name at the same time waits here, and then finds it taken.
    let made = line
        .query(
            "INSERT INTO person (name, added_at, role, password)
             SELECT $1, $2, $3, $4 WHERE (SELECT count(*) FROM person) < $5 OR EXISTS (SELECT 1 FROM person WHERE name = $1)
             ON CONFLICT (name) DO NOTHING RETURNING name",
            &[
                &user.name.as_str(),
                &at.as_micros(),
                &user.role.word(),
                &user.password.as_ref().map(PasswordHash::as_str),
                &USERS_MAX,
            ],
        )
        .await?;
    if !made.is_empty() {
        if let Some(token) = &user.token {
            insert_token(line, &user.name, token, at).await?;
        }
        return Ok(UserAdded::Added);
    }
    let is_there = line.query("SELECT 1 FROM person WHERE name = $1", &[&user.name.as_str()]).await?;
    Ok(if is_there.is_empty() { UserAdded::TooMany } else { UserAdded::Taken })
}

pub(super) async fn remove(shared: &Shared, name: &UserName, record: &Record) -> Result<bool, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let user = locked(&mut line, name).await?;
    if let Some(user) = &user {
        log_out(&mut line, name).await?;
        line.query("DELETE FROM person_token WHERE person = $1", &[&name.as_str()]).await?;
        // Before he is gone: he may be who asks. His row is locked already, and nothing is waited for after this.
        audit::append(&mut line, [&(removed(user), record.clone())]).await?;
        line.query("DELETE FROM person WHERE name = $1", &[&name.as_str()]).await?;
    }
    line.commit().await?;
    Ok(user.is_some())
}

pub(super) async fn set_role(shared: &Shared, name: &UserName, role: Role, record: &Record) -> Result<bool, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let user = locked(&mut line, name).await?;
    if let Some(user) = user.as_ref().filter(|user| user.role != role) {
        change_role(&mut line, user, role, None, record).await?;
    }
    line.commit().await?;
    Ok(user.is_some())
}

/// Of a user who is locked. `before` was done to him in the same transaction and is not on record yet.
async fn change_role(
    line: &mut Line,
    user: &UserRow,
    role: Role,
    before: Option<Act>,
    record: &Record,
) -> Result<(), Fault> {
    let wider: Vec<&str> = Role::ALL.into_iter().filter(|wider| !role.covers(*wider)).map(Role::word).collect();
    let sql = "DELETE FROM person_token WHERE person = $1 AND role = ANY($2::text[])";
    line.query(sql, &[&user.name.as_str(), &wider]).await?;
    log_out(line, &user.name).await?;
    let acts: Vec<_> = before.into_iter().chain([role_set(user, role)]).map(|act| (act, record.clone())).collect();
    // Before he has it: nobody gives himself the role that he needs for it.
    audit::append(line, &acts).await?;
    line.query("UPDATE person SET role = $2 WHERE name = $1", &[&user.name.as_str(), &role.word()]).await?;
    Ok(())
}

/// Finds or makes the user who a provider says that somebody is, on record.
pub(super) async fn welcome(shared: &Shared, guest: &Guest, record: &Record) -> Result<Welcomed, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let mut welcomed = welcomed(&mut line, guest, record).await?;
    // He may have come twice at once: then he is known by now.
    if welcomed == Welcomed::Taken {
        welcomed = self::welcomed(&mut line, guest, record).await?;
    }
    line.commit().await?;
    Ok(welcomed)
}

async fn welcomed(line: &mut Line, guest: &Guest, record: &Record) -> Result<Welcomed, Fault> {
    let found =
        line.query(&format!("{USER} WHERE identity = $1 FOR UPDATE"), &[&&guest.identity.as_bytes()[..]]).await?;
    let known = found.first().map(user_row).transpose()?;
    let named = if known.is_none() { locked(line, &guest.name).await? } else { None };
    let name = known.as_ref().map_or(&guest.name, |known| &known.name);
    match (wanted(guest, known.as_ref(), named.as_ref()), known.as_ref().or(named.as_ref())) {
        (Welcome::Change(role), Some(user)) => change_role(line, user, role, None, record).await?,
        (Welcome::Link(role), Some(user)) => {
            link(line, name, &guest.identity).await?;
            match role {
                Some(role) => change_role(line, user, role, Some(linked(name)), record).await?,
                None => audit::append(line, [&(linked(name), record.clone())]).await?,
            }
        }
        (Welcome::Add(role), _) => {
            let user = NewUser { name: name.clone(), role, password: None, token: None };
            match inserted(line, &user, record.at).await? {
                UserAdded::Added => {
                    link(line, name, &guest.identity).await?;
                    audit::append(line, &[user.act(), linked(name)].map(|act| (act, record.clone()))).await?;
                }
                UserAdded::Taken => return Ok(Welcomed::Taken),
                UserAdded::TooMany => return Ok(Welcomed::TooMany),
            }
        }
        (Welcome::NoRole, user) => {
            if let Some(user) = user.filter(|_| known.is_some()) {
                log_out(line, &user.name).await?;
            }
            return Ok(Welcomed::NoRole);
        }
        (Welcome::Taken, _) => return Ok(Welcomed::Taken),
        (Welcome::Nothing | Welcome::Change(_) | Welcome::Link(_), _) => {}
    }
    Ok(Welcomed::As(name.clone()))
}

/// May wait for another who is given the same identity: so nothing is on record yet.
async fn link(line: &mut Line, name: &UserName, identity: &Identity) -> Result<(), Fault> {
    let sql = "UPDATE person SET identity = $2 WHERE name = $1";
    line.query(sql, &[&name.as_str(), &&identity.as_bytes()[..]]).await?;
    Ok(())
}

pub(super) async fn set_password(
    shared: &Shared,
    name: &UserName,
    password: &PasswordHash,
    record: &Record,
) -> Result<bool, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let user = locked(&mut line, name).await?;
    if let Some(user) = &user {
        let sql = "UPDATE person SET password = $2 WHERE name = $1";
        line.query(sql, &[&name.as_str(), &password.as_str()]).await?;
        log_out(&mut line, name).await?;
        audit::append(&mut line, [&(password_set(user, record), record.clone())]).await?;
    }
    line.commit().await?;
    Ok(user.is_some())
}

/// The user as he is, until the end of the transaction.
async fn locked(line: &mut Line, name: &UserName) -> Result<Option<UserRow>, Fault> {
    let found = line.query(&format!("{USER} WHERE name = $1 FOR UPDATE"), &[&name.as_str()]).await?;
    found.first().map(user_row).transpose()
}

async fn log_out(line: &mut Line, name: &UserName) -> Result<(), Fault> {
    for table in ["session", "login_link"] {
        line.query(&format!("DELETE FROM {table} WHERE person = $1"), &[&name.as_str()]).await?;
    }
    Ok(())
}

pub(super) async fn make_token(
    shared: &Shared,
    name: &UserName,
    token: &NewUserToken,
    record: &Record,
) -> Result<UserTokenMade, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let made = made(&mut line, name, token, record).await?;
    line.commit().await?;
    Ok(made)
}

async fn made(line: &mut Line, name: &UserName, token: &NewUserToken, record: &Record) -> Result<UserTokenMade, Fault> {
    let Some(user) = locked(line, name).await? else { return Ok(UserTokenMade::NotFound) };
    if token.role.is_some_and(|role| !user.role.covers(role)) {
        return Ok(UserTokenMade::TooMuch(user.role));
    }
    // Those whose time is over are in nobody's way.
    let over = "DELETE FROM person_token WHERE person = $1 AND expires_at <= $2";
    line.query(over, &[&name.as_str(), &record.at.as_micros()]).await?;
    let kept = line.query("SELECT count(*) FROM person_token WHERE person = $1", &[&name.as_str()]).await?;
    if kept.first().map(|row| row.try_get::<_, i64>(0)).transpose()?.unwrap_or(0) >= USER_TOKENS_MAX {
        return Ok(UserTokenMade::TooMany);
    }
    insert_token(line, name, token, record.at).await?;
    audit::append(line, [&(token.act(name), record.clone())]).await?;
    Ok(UserTokenMade::Made)
}

async fn insert_token(line: &mut Line, name: &UserName, token: &NewUserToken, at: Timestamp) -> Result<(), Fault> {
    line.query(
        "INSERT INTO person_token (digest, id, person, made_at, expires_at, role, source)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        &[
            &&token.digest.as_bytes()[..],
            &token.id.to_string(),
            &name.as_str(),
            &at.as_micros(),
            &token.expires_at.map(Timestamp::as_micros),
            &token.role.map(Role::word),
            &token.source.as_deref(),
        ],
    )
    .await?;
    Ok(())
}

pub(super) async fn remove_token(
    shared: &Shared,
    name: &UserName,
    token: UserTokenId,
    record: &Record,
) -> Result<bool, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let sql = "DELETE FROM person_token WHERE id = $1 AND person = $2 RETURNING id";
    let had = !line.query(sql, &[&token.to_string(), &name.as_str()]).await?.is_empty();
    if had {
        // Whoever had it may have made a link with it and logged in.
        log_out(&mut line, name).await?;
        audit::append(&mut line, [&(token_removed(name, token), record.clone())]).await?;
    }
    line.commit().await?;
    Ok(had)
}

pub(super) async fn all(eyes: &Arc<Pool>) -> Result<Vec<UserRow>, Fault> {
    eyes.ask(&format!("{USER} ORDER BY name"), &[]).await?.iter().map(user_row).collect()
}

pub(super) async fn find(eyes: &Arc<Pool>, name: &UserName) -> Result<Option<UserRow>, Fault> {
    let found = eyes.ask(&format!("{USER} WHERE name = $1"), &[&name.as_str()]).await?;
    found.first().map(user_row).transpose()
}

pub(super) async fn tokens(eyes: &Arc<Pool>) -> Result<Vec<UserTokenRow>, Fault> {
    let sql = format!("{TOKEN} ORDER BY token.person, token.made_at DESC, token.id");
    eyes.ask(&sql, &[]).await?.iter().map(token_row).collect()
}

pub(super) async fn holder(eyes: &Arc<Pool>, token: &TokenDigest, now: Timestamp) -> Result<Option<Holder>, Fault> {
    let sql = format!("{TOKEN} WHERE token.digest = $1 AND (token.expires_at IS NULL OR token.expires_at > $2)");
    let found = eyes.ask(&sql, &[&&token.as_bytes()[..], &now.as_micros()]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(Holder::of(&token_row(row)?, parsed(row, 8)?))
}

/// The roles of those among these names who are users, as they are now.
pub(super) async fn roles(line: &mut Line, names: Vec<&str>) -> Result<HashMap<String, Role>, Fault> {
    let found = line.query("SELECT name, role FROM person WHERE name = ANY($1::text[])", &[&names]).await?;
    found.iter().map(|row| Ok((row.try_get(0)?, parsed(row, 1)?))).collect()
}

pub(super) fn user_row(row: &Row) -> Result<UserRow, Fault> {
    Ok(UserRow {
        name: parsed(row, 0)?,
        added_at: rows::time(row, 1)?,
        role: parsed(row, 2)?,
        password: row.try_get::<_, Option<String>>(3)?.map(PasswordHash::new),
        identity: identity(row)?,
    })
}

fn identity(row: &Row) -> Result<Option<Identity>, Fault> {
    let bytes = row.try_get::<_, Option<&[u8]>>(4)?;
    let whole = |bytes: &[u8]| bytes.try_into().map(Identity::from_bytes).map_err(|_| Fault::Damaged("a user"));
    bytes.map(whole).transpose()
}

fn token_row(row: &Row) -> Result<UserTokenRow, Fault> {
    let time = |column| -> Result<_, Fault> { Ok(row.try_get::<_, Option<i64>>(column)?.map(Timestamp::from_micros)) };
    let digest = row.try_get::<_, &[u8]>(7)?.try_into().map_err(|_| Fault::Damaged("a token"))?;
    Ok(UserTokenRow {
        id: parsed(row, 0)?,
        user: parsed(row, 1)?,
        made_at: rows::time(row, 2)?,
        expires_at: time(3)?,
        used_at: time(4)?,
        role: row.try_get::<_, Option<&str>>(5)?.map(|_| parsed(row, 5)).transpose()?,
        source: row.try_get(6)?,
        digest: TokenDigest::from_bytes(digest),
    })
}

pub(super) fn parsed<T: FromStr>(row: &Row, column: usize) -> Result<T, Fault> {
    row.try_get::<_, &str>(column)?.parse().map_err(|_| Fault::Damaged("a user"))
}
