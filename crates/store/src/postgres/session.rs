//! Log-ins: opened, on record, noted as used, and ended.

use super::pool::{Line, Pool};
use super::user::{parsed, user_row};
use super::{Fault, Shared, audit, rows};
use crate::people::{NewLink, NewSession, Proof, SESSIONS_MAX, Seen, standing};
use clinch_core::session::Session;
use clinch_core::time::Timestamp;
use clinch_core::user::{ADMIN, Role, TokenDigest};
use std::sync::Arc;

pub(super) async fn make_link(shared: &Shared, link: &NewLink) -> Result<(), Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    hold(&mut line, &link.who.name).await?;
    line.query("DELETE FROM login_link WHERE expires_at <= $1", &[&link.at.as_micros()]).await?;
    line.query(
        "INSERT INTO login_link (digest, person, role, made_at, expires_at) VALUES ($1, $2, $3, $4, $5)",
        &[
            &&link.digest.as_bytes()[..],
            &link.who.name,
            &link.who.role.word(),
            &link.at.as_micros(),
            &link.expires_at.as_micros(),
        ],
    )
    .await?;
    keep_newest(&mut line, "login_link", &link.who.name).await?;
    audit::append(&mut line, [&link.acted()]).await?;
    line.commit().await
}

/// More of one person are not kept.
async fn keep_newest(line: &mut Line, table: &str, name: &String) -> Result<(), Fault> {
    let sql = format!(
        "DELETE FROM {table} WHERE person = $1 AND digest NOT IN
         (SELECT digest FROM {table} WHERE person = $1 ORDER BY made_at DESC, digest LIMIT $2)"
    );
    line.query(&sql, &[name, &SESSIONS_MAX]).await?;
    Ok(())
}

/// Nobody changes this user until the transaction has ended; whoever was at it has ended.
async fn hold(line: &mut Line, name: &String) -> Result<Option<crate::UserRow>, Fault> {
    let sql = "SELECT name, added_at, role, password, identity FROM person WHERE name = $1 FOR SHARE";
    line.query(sql, &[name]).await?.first().map(user_row).transpose()
}

pub(super) async fn open(shared: &Shared, new: &NewSession) -> Result<Option<Session>, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let opened = opened(&mut line, new).await?;
    line.commit().await?;
    Ok(opened)
}

async fn opened(line: &mut Line, new: &NewSession) -> Result<Option<Session>, Fault> {
    let Some((name, role)) = proven(line, new).await? else { return Ok(None) };
    let session = new.of(&name, role);
    // Those that somebody else removes at this moment are none of our business.
    line.query(
        "DELETE FROM session WHERE digest IN (SELECT digest FROM session
         WHERE expires_at <= $1 OR seen_at <= $2 FOR UPDATE SKIP LOCKED)",
        &[&new.at.as_micros(), &new.idle_before().as_micros()],
    )
    .await?;
    line.query(
        "INSERT INTO session (digest, person, role, made_at, seen_at, expires_at) VALUES ($1, $2, $3, $4, $4, $5)",
        &[&&new.digest.as_bytes()[..], &name, &role.word(), &new.at.as_micros(), &session.expires_at.as_micros()],
    )
    .await?;
    keep_newest(line, "session", &name).await?;
    audit::append(line, [&new.acted(&session)]).await?;
    Ok(Some(session))
}

/// Who it is, as far as that is proven in this transaction. A link is used up by it.
async fn proven(line: &mut Line, new: &NewSession) -> Result<Option<(String, Role)>, Fault> {
    match &new.proof {
        Proof::Admin => Ok(Some((ADMIN.into(), Role::Admin))),
        Proof::Password(name, hash) => {
            let user = hold(line, &name.to_string()).await?;
            let user = user.filter(|user| user.password.as_ref() == Some(hash));
            Ok(user.map(|user| (user.name.to_string(), user.role)))
        }
        Proof::Identity(name, identity) => {
            let user = hold(line, &name.to_string()).await?;
            let user = user.filter(|user| user.identity.as_ref() == Some(identity));
            Ok(user.map(|user| (user.name.to_string(), user.role)))
        }
        Proof::Link(link) => {
            let digest = &link.as_bytes()[..];
            // The user before his link, as everybody does who changes him.
            let whose = line.query("SELECT person FROM login_link WHERE digest = $1", &[&digest]).await?;
            let Some(row) = whose.first() else { return Ok(None) };
            hold(line, &row.try_get(0)?).await?;
            let sql = "DELETE FROM login_link WHERE digest = $1 AND expires_at > $2 RETURNING person, role";
            let used = line.query(sql, &[&digest, &new.at.as_micros()]).await?;
            used.first().map(|row| Ok((row.try_get(0)?, parsed(row, 1)?))).transpose()
        }
    }
}

pub(super) async fn end(shared: &Shared, session: &TokenDigest) -> Result<(), Fault> {
    let sql = "DELETE FROM session WHERE digest = $1";
    shared.hands.line().await?.query(sql, &[&&session.as_bytes()[..]]).await?;
    Ok(())
}

/// What is over does not come back by it.
pub(super) async fn saw(shared: &Shared, secret: &Seen, at: Timestamp) -> Result<(), Fault> {
    let (sql, digest) = match secret {
        Seen::Session(digest) => ("UPDATE session SET seen_at = greatest(seen_at, $2) WHERE digest = $1", digest),
        Seen::Token(digest) => ("UPDATE person_token SET used_at = greatest(used_at, $2) WHERE digest = $1", digest),
    };
    shared.hands.line().await?.query(sql, &[&&digest.as_bytes()[..], &at.as_micros()]).await?;
    Ok(())
}

pub(super) async fn one(eyes: &Arc<Pool>, session: &TokenDigest) -> Result<Option<Session>, Fault> {
    let sql = "SELECT session.person, session.role, session.made_at, session.seen_at, session.expires_at, person.role
               FROM session LEFT JOIN person ON person.name = session.person WHERE session.digest = $1";
    let found = eyes.ask(sql, &[&&session.as_bytes()[..]]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let session = Session {
        name: row.try_get(0)?,
        role: parsed(row, 1)?,
        made_at: rows::time(row, 2)?,
        seen_at: rows::time(row, 3)?,
        expires_at: rows::time(row, 4)?,
    };
    let user = row.try_get::<_, Option<&str>>(5)?.map(|_| parsed(row, 5)).transpose()?;
    Ok(standing(session, user))
}
