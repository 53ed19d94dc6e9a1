//! Tokens of senders: made and revoked, on record.

use super::pool::Pool;
use super::{Fault, Shared, audit};
use crate::read::TokenRow;
use crate::{Issued, Record, Revocation, TOKEN_KEPT, TOKENS_MAX, acts};
use clinch_core::sender::{Sender, TokenId};
use clinch_core::time::Timestamp;
use std::sync::Arc;
use tokio_postgres::Row;

pub(super) async fn issue(shared: &Shared, token: &Sender, record: &Record) -> Result<Issued, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let kept: i64 = match line.query("SELECT count(*) FROM sender_token", &[]).await?.first() {
        Some(row) => row.try_get(0)?,
        None => 0,
    };
    if kept >= TOKENS_MAX {
        line.commit().await?;
        return Ok(Issued::TooMany);
    }
    line.query(
        "INSERT INTO sender_token (id, sender, issued_at, expires_at) VALUES ($1, $2, $3, $4)",
        &[
            &token.token.to_string(),
            &token.name.as_str(),
            &token.issued_at.as_micros(),
            &token.expires_at.map(Timestamp::as_micros),
        ],
    )
    .await?;
    audit::append(&mut line, [&(acts::issue(token), record.clone())]).await?;
    line.commit().await?;
    Ok(Issued::Issued)
}

pub(super) async fn revoke(shared: &Shared, id: TokenId, record: &Record) -> Result<Revocation, Fault> {
    let mut line = shared.hands.line().await?;
    line.begin().await?;
    let known = line
        .query("SELECT sender, revoked_at IS NOT NULL FROM sender_token WHERE id = $1 FOR UPDATE", &[&id.to_string()])
        .await?;
    let revocation = match known.first() {
        None => Revocation::NotFound,
        Some(row) if row.try_get(1)? => Revocation::Before,
        Some(row) => {
            let sender: &str = row.try_get(0)?;
            line.query(
                "UPDATE sender_token SET revoked_at = $2 WHERE id = $1",
                &[&id.to_string(), &record.at.as_micros()],
            )
            .await?;
            audit::append(&mut line, [&(acts::revoke(id, sender), record.clone())]).await?;
            Revocation::Revoked
        }
    };
    line.commit().await?;
    Ok(revocation)
}

/// A bounded number of those whose time is over, and with it the need to remember that they were revoked.
pub(super) async fn prune(shared: &Shared, now: Timestamp, most: usize) -> Result<(), Fault> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let sql = "DELETE FROM sender_token WHERE id IN (SELECT id FROM sender_token WHERE expires_at <= $1 LIMIT $2)";
    shared.hands.line().await?.query(sql, &[&(now - TOKEN_KEPT).as_micros(), &most]).await?;
    Ok(())
}

pub(super) async fn all(eyes: &Arc<Pool>) -> Result<Vec<TokenRow>, Fault> {
    let sql = "SELECT id, sender, issued_at, expires_at, revoked_at FROM sender_token ORDER BY issued_at DESC, id";
    eyes.ask(sql, &[]).await?.iter().map(row).collect()
}

fn row(row: &Row) -> Result<TokenRow, Fault> {
    let time = |column| -> Result<Option<Timestamp>, Fault> {
        Ok(row.try_get::<_, Option<i64>>(column)?.map(Timestamp::from_micros))
    };
    let damaged = || Fault::Damaged("a sender's token");
    Ok(TokenRow {
        sender: Sender {
            token: row.try_get::<_, &str>(0)?.parse().map_err(|_| damaged())?,
            name: row.try_get::<_, &str>(1)?.parse().map_err(|_| damaged())?,
            issued_at: Timestamp::from_micros(row.try_get(2)?),
            expires_at: time(3)?,
        },
        revoked_at: time(4)?,
    })
}
