//! `clinch users`: people with a token of their own, so that the record says who did what.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::render::{self, Cell, Table};
use crate::api::shapes::{RevokeAsk, UserAsk, UserList, UserMade, UserRemoved};
use clap::Subcommand;
use clinch_core::user::{Role, UserName};
use serde_json::json;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch users add maya --role operator --reason 'on call from May'
  clinch users ls
  clinch users rm maya --reason 'left the team'

A user sets CLINCH_TOKEN to the token, and everything done with it is on record under that name: clinch audit ls --actor maya.
Adding and removing needs the role admin, which the admin token has. Roles: viewer looks; operator replays, resolves, pauses and drops;
approver votes; growth votes and switches safe mode; admin may all.")]
pub enum Users {
    /// Give somebody a token; its text is shown once and kept nowhere
    Add {
        #[arg(value_name = "NAME")]
        name: UserName,
        /// What they may do: viewer, operator, approver, growth or admin
        #[arg(long, value_name = "ROLE")]
        role: Role,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// List who has one, by name
    Ls,
    /// Take it away, on every node at once
    Rm {
        #[arg(value_name = "NAME")]
        name: UserName,
        /// Why; it is kept on record
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
}

impl Users {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Users::Add { name, role, reason } => {
                let ask = UserAsk { name: name.to_string(), role: role.to_string(), reason: reason.clone() };
                let answer = client.post::<UserMade>(&["users"], &json!(ask)).await?;
                // The text is the data: it can be piped to where it is needed, and is nowhere else.
                render::show(output, &answer.document, name.as_str(), || answer.told.token.clone())?;
                render::note(&format!("this is the token of {name}, shown this once; it goes into CLINCH_TOKEN"));
            }
            Users::Ls => {
                let answer = client.get::<UserList>(&["users"], &[]).await?;
                let now = render::now();
                let mut table = Table::new(&["NAME", "ROLE", "ADDED"]);
                for user in &answer.told.users {
                    table.row(vec![Cell::text(&user.name), Cell::text(&user.role), Cell::age(user.added_at, now)]);
                }
                table.print(output, &answer.document, "users")?;
                if answer.told.users.is_empty() {
                    render::note("nobody has a token but the admin");
                    render::next(output, "clinch users add NAME --role ROLE");
                }
            }
            Users::Rm { name, reason } => {
                let ask = json!(RevokeAsk { reason: reason.clone() });
                let answer = client.post::<UserRemoved>(&["users", name.as_str(), "remove"], &ask).await?;
                let sentence = || format!("{name} has no token any more; every node refuses it from now on");
                render::show(output, &answer.document, name.as_str(), sentence)?;
            }
        }
        Ok(Exit::Done)
    }
}
