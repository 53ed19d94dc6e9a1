//! `clinch open`: a way into the console for whoever has a token.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render;
use crate::api::me::LoginLink;
use clap::Args;
use serde_json::json;

/// Print a link that logs you in to the console: it works once, for 15 minutes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  clinch open
  xdg-open \"$(clinch open)\"

You are logged in as whoever the token is of: the admin where CLINCH_TOKEN is not set and this is the server's machine.")]
pub struct Open;

impl Open {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let client = Client::open(globals)?;
        let answer = client.post::<LoginLink>(&["login-links"], &json!({})).await?;
        let mut document = answer.document.clone();
        let url = client.page(&answer.told.path);
        document["url"] = json!(url);
        // The address is the data: it can be handed to a browser.
        render::show(globals.output(), &document, &url, || url.clone())?;
        render::note("it works once, for 15 minutes; whoever has it is logged in as you");
        Ok(Exit::Done)
    }
}
