//! `clinch token`: what senders of your own prove themselves with, at sources with `verify: sender`.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Output, Table};
use crate::api::shapes::{RevokeAsk, TokenAsk, TokenList, TokenMade, TokenRevoked};
use clap::Subcommand;
use clinch_core::sender::{SenderName, TokenId};
use clinch_core::time::{human, parse_duration};
use serde_json::json;
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch token new --sender shop-eu --expires 90d
  clinch token ls
  clinch token revoke tok_0f1e2d3c4b5a6978 --reason 'it leaked'

The sender writes `Authorization: Bearer cls_…` on every request.")]
pub enum Token {
    /// Make a token; its text is shown once and kept nowhere
    New {
        /// Who will send with it
        #[arg(long, value_name = "NAME")]
        sender: SenderName,
        /// How long it counts; until it is revoked if not given
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// List tokens, newest first; never their text
    Ls,
    /// End a token for good, on every node within seconds
    Revoke {
        #[arg(value_name = "ID")]
        id: TokenId,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
}

impl Token {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Token::New { sender, expires, reason } => {
                let expires = expires.map(|lasts| format!("{}s", lasts.as_secs()));
                let ask = TokenAsk { sender: sender.to_string(), expires, reason: reason.clone() };
                new(&client, output, &ask).await
            }
            Token::Ls => list(&client, output).await,
            Token::Revoke { id, reason } => revoke(&client, output, *id, reason.clone()).await,
        }
    }
}

async fn new(client: &Client, output: Output, ask: &TokenAsk) -> Result<Exit, Failure> {
    let answer = client.post::<TokenMade>(&["tokens"], &json!(ask)).await?;
    let TokenMade { text, token, .. } = &answer.told;
    // The text is the data: it can be piped to where it is needed, and is nowhere else.
    render::show(output, &answer.document, &token.id, || text.clone())?;
    let until = match token.expires_at {
        Some(end) => format!("until {}", end.0),
        None => "until it is revoked".into(),
    };
    render::note(&format!("{} counts for sender {} {until}; its text is shown this once", token.id, token.sender));
    Ok(Exit::Done)
}

async fn list(client: &Client, output: Output) -> Result<Exit, Failure> {
    let answer = client.get::<TokenList>(&["tokens"], &[]).await?;
    let now = render::now();
    let mut table = Table::new(&["ID", "SENDER", "STATE", "MADE", "ENDS"]);
    for token in &answer.told.tokens {
        let ends = match token.expires_at {
            None => "never".into(),
            Some(end) if end.0 <= now => "over".into(),
            Some(end) => format!("in {}", human(end.0.since(now))),
        };
        table.row(vec![
            Cell::text(&token.id),
            Cell::text(&token.sender),
            Cell::text(&token.state),
            Cell::age(token.issued_at, now),
            Cell::text(ends),
        ]);
    }
    table.print(output, &answer.document, "tokens")?;
    if answer.told.tokens.is_empty() {
        render::note("there are no tokens");
        render::next(output, "clinch token new --sender NAME");
    }
    Ok(Exit::Done)
}

async fn revoke(client: &Client, output: Output, id: TokenId, reason: String) -> Result<Exit, Failure> {
    let ask = json!(RevokeAsk { reason });
    let answer = client.post::<TokenRevoked>(&["tokens", &id.to_string(), "revoke"], &ask).await?;
    let told = &answer.told;
    let sentence = || match told.revoked {
        true => format!("{} is revoked; every node refuses it within seconds", told.id),
        false => format!("{} was revoked before; nothing done", told.id),
    };
    render::show(output, &answer.document, &told.id, sentence)?;
    Ok(Exit::Done)
}
