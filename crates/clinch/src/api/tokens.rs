//! Tokens of senders: made, listed and revoked. The text of a token is told once, to whoever makes it.

use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::{Moment, RevokeAsk, Token, TokenAsk, TokenList, TokenMade, TokenRevoked};
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::sender::{SenderName, TokenId};
use clinch_core::time::{Timestamp, parse_duration};
use clinch_store::read::TokenRow;
use clinch_store::{Issued, Revocation, TOKENS_MAX};

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<TokenList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let now = house.clock.now();
    let tokens = house.store.tokens().await?.iter().map(|row| told(row, now)).collect();
    Ok(Json(TokenList { schema: "clinch.tokens.list/v1".into(), tokens }))
}

pub async fn make(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TokenMade>, Problem> {
    let ask: TokenAsk = read_body(body)?;
    let name: SenderName = ask.sender.parse().map_err(|error| Problem::bad_body(format!("sender: {error}.")))?;
    let lasts = ask.expires.as_deref().map(parse_duration).transpose();
    let lasts = lasts.map_err(|error| Problem::bad_body(format!("expires: {error}.")))?;
    let now = house.clock.now();
    let record = who.record(reason(&ask.reason, 0)?, now);
    let (sender, text) = house.senders.make(name, now, lasts.map(|lasts| now + lasts));
    match house.store.issue(sender.clone(), record).await? {
        Issued::TooMany => Err(Problem::full(format!("{TOKENS_MAX} tokens are kept, and no more can be."))),
        Issued::Issued => {
            tracing::info!("{} was made for sender {}", sender.token, sender.name);
            let token = told(&TokenRow { sender, revoked_at: None }, now);
            Ok(Json(TokenMade { schema: "clinch.tokens.new/v1".into(), text, token }))
        }
    }
}

pub async fn revoke(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(id): Id<TokenId>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TokenRevoked>, Problem> {
    let ask: RevokeAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    let revoked = match house.store.revoke(id, record).await? {
        Revocation::NotFound => return Err(Problem::not_found(format!("There is no token {id}."))),
        Revocation::Before => false,
        Revocation::Revoked => true,
    };
    // Here it is refused from this moment on; the other nodes look by themselves.
    house.senders.look(&*house.store).await?;
    tracing::info!("{id} is revoked");
    Ok(Json(TokenRevoked { schema: "clinch.tokens.revoke/v1".into(), id: id.to_string(), revoked }))
}

fn told(row: &TokenRow, now: Timestamp) -> Token {
    let sender = &row.sender;
    let state = match (row.revoked_at, sender.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now => "expired",
        (None, _) => "live",
    };
    Token {
        id: sender.token.to_string(),
        sender: sender.name.to_string(),
        state: state.into(),
        issued_at: Moment(sender.issued_at),
        expires_at: sender.expires_at.map(Moment),
        revoked_at: row.revoked_at.map(Moment),
    }
}
