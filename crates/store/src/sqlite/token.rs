//! Tokens of senders: made and revoked, on record.

use super::audit;
use super::writer::Batch;
use crate::read::TokenRow;
use crate::{Issued, Record, Revocation, TOKEN_KEPT, TOKENS_MAX, acts};
use clinch_core::sender::{Sender, TokenId};
use clinch_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

pub(super) fn issue(batch: &mut Batch<'_>, token: &Sender, record: &Record) -> rusqlite::Result<Issued> {
    let kept: i64 = batch.conn.query_row("SELECT count(*) FROM sender_token", [], |row| row.get(0))?;
    if kept >= TOKENS_MAX {
        return Ok(Issued::TooMany);
    }
    batch
        .conn
        .prepare_cached("INSERT INTO sender_token (id, sender, issued_at, expires_at) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            token.token.to_string(),
            token.name.as_str(),
            token.issued_at.as_micros(),
            token.expires_at.map(Timestamp::as_micros)
        ])?;
    audit::append(batch, &acts::issue(token), record)?;
    Ok(Issued::Issued)
}

pub(super) fn revoke(batch: &mut Batch<'_>, id: TokenId, record: &Record) -> rusqlite::Result<Revocation> {
    let known: Option<(String, Option<i64>)> = batch
        .conn
        .prepare_cached("SELECT sender, revoked_at FROM sender_token WHERE id = ?1")?
        .query_row([id.to_string()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match known {
        None => Ok(Revocation::NotFound),
        Some((_, Some(_))) => Ok(Revocation::Before),
        Some((sender, None)) => {
            batch
                .conn
                .prepare_cached("UPDATE sender_token SET revoked_at = ?2 WHERE id = ?1")?
                .execute(params![id.to_string(), record.at.as_micros()])?;
            audit::append(batch, &acts::revoke(id, &sender), record)?;
            Ok(Revocation::Revoked)
        }
    }
}

/// A bounded number of those whose time is over, and with it the need to remember that they were revoked.
pub(super) fn prune(batch: &Batch<'_>, now: Timestamp, most: usize) -> rusqlite::Result<()> {
    batch
        .conn
        .prepare_cached(
            "DELETE FROM sender_token WHERE id IN (SELECT id FROM sender_token WHERE expires_at <= ?1 LIMIT ?2)",
        )?
        .execute(params![(now - TOKEN_KEPT).as_micros(), i64::try_from(most).unwrap_or(i64::MAX)])?;
    Ok(())
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<TokenRow>> {
    conn.prepare_cached(
        "SELECT id, sender, issued_at, expires_at, revoked_at FROM sender_token ORDER BY issued_at DESC, id",
    )?
    .query_map([], row)?
    .collect()
}

pub(super) fn row(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    let damaged = |column, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error)
    };
    let time = |column| -> rusqlite::Result<Option<Timestamp>> {
        Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
    };
    Ok(TokenRow {
        sender: Sender {
            token: row.get_ref(0)?.as_str()?.parse().map_err(|error| damaged(0, Box::new(error)))?,
            name: row.get_ref(1)?.as_str()?.parse().map_err(|error| damaged(1, Box::new(error)))?,
            issued_at: Timestamp::from_micros(row.get(2)?),
            expires_at: time(3)?,
        },
        revoked_at: time(4)?,
    })
}
