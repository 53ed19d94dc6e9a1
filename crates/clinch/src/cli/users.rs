//! `clinch users`: who may ask and do what, so that the record says who did what.

use super::Globals;
use super::client::Client;
use super::exit::{Exit, Failure};
use super::prompt;
use super::render::{self, Cell, Output, Table};
use crate::api::me::{MeShow, OwnPasswordAsk, PasswordSet};
use crate::api::shapes::{RevokeAsk, UserAsk, UserList, UserMade, UserRemoved};
use crate::api::users::{PasswordAsk, RoleAsk, RoleSet, UserTokenAsk, UserTokenList, UserTokenRemoved, UserTokenTold};
use clap::{Args, Subcommand};
use clinch_core::time::parse_duration;
use clinch_core::user::{Role, UserName, UserTokenId};
use serde_json::json;
use std::time::Duration;

#[derive(Subcommand, Debug)]
#[command(after_help = "\
Examples:
  clinch users add maya --role operator --reason 'on call from May'
  clinch users add ben --role approver --password
  clinch users role maya admin
  clinch users token maya --role viewer --source shop --expires 90d
  clinch users rm maya --reason 'left the team'

Roles: viewer looks; operator replays, resolves, pauses, drops and sets; approver votes; growth votes and switches safe mode;
admin may all. A token goes into CLINCH_TOKEN; a password is for the console. Everything done with either is on record under the
name: clinch audit ls --actor maya. All but `me` and one's own password needs the role admin, which the admin token has.")]
pub enum Users {
    /// Make somebody a user, with a token that is shown once and kept nowhere
    Add {
        #[arg(value_name = "NAME")]
        name: UserName,
        /// What they may do: viewer, operator, approver, growth or admin
        #[arg(long, value_name = "ROLE")]
        role: Role,
        /// Ask for a password for the console, and make no token
        #[arg(long)]
        password: bool,
        #[command(flatten)]
        why: Why,
    },
    /// List them, by name
    Ls,
    /// Say who you are here and what you may do
    Me,
    /// Give somebody another role; their log-ins end
    Role {
        #[arg(value_name = "NAME")]
        name: UserName,
        #[arg(value_name = "ROLE")]
        role: Role,
        #[command(flatten)]
        why: Why,
    },
    /// Set the password of somebody, or your own; log-ins with the old one end
    Password {
        /// Whose; your own if not given, and then the present one is asked for
        #[arg(value_name = "NAME")]
        name: Option<UserName>,
        #[command(flatten)]
        why: Why,
    },
    /// Take everything away, on every node at once
    Rm {
        #[arg(value_name = "NAME")]
        name: UserName,
        #[command(flatten)]
        why: Why,
    },
    /// Make another token for somebody; its text is shown once and kept nowhere
    Token {
        #[arg(value_name = "NAME")]
        name: UserName,
        /// Less than the user may; as the user if not given
        #[arg(long, value_name = "ROLE")]
        role: Option<Role>,
        /// Show only what came in through this source, or flow with a route of its own
        #[arg(long, value_name = "SOURCE")]
        source: Option<String>,
        /// How long it counts; until it is removed if not given
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        expires: Option<Duration>,
        #[command(flatten)]
        why: Why,
    },
    /// List somebody's tokens, newest first; never their text
    Tokens {
        #[arg(value_name = "NAME")]
        name: UserName,
    },
    /// Take one token away, on every node at once
    RmToken {
        #[arg(value_name = "NAME")]
        name: UserName,
        #[arg(value_name = "ID")]
        id: UserTokenId,
        #[command(flatten)]
        why: Why,
    },
}

#[derive(Args, Debug)]
pub struct Why {
    /// Why; it is kept on record
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl Users {
    pub async fn run(&self, globals: &Globals) -> Result<Exit, Failure> {
        let output = globals.output();
        let client = Client::open(globals)?;
        match self {
            Users::Add { name, role, password, why } => add(&client, output, name, *role, *password, why).await,
            Users::Ls => list(&client, output).await,
            Users::Me => me(&client, output).await,
            Users::Role { name, role, why } => {
                let ask = json!(RoleAsk { role: role.to_string(), reason: why.reason.clone() });
                let answer = client.post::<RoleSet>(&["users", name.as_str(), "role"], &ask).await?;
                let sentence = || format!("{name} is {} now; log-ins of before are over", answer.told.role);
                render::show(output, &answer.document, name.as_str(), sentence)
            }
            Users::Password { name: Some(name), why } => {
                let password = prompt::new_secret(&format!("new password of {name}"))?;
                let ask = json!(PasswordAsk { password, reason: why.reason.clone() });
                let answer = client.post::<PasswordSet>(&["users", name.as_str(), "password"], &ask).await?;
                password_told(output, answer)
            }
            Users::Password { name: None, .. } => {
                let present = prompt::secret("present password")?;
                let ask = json!(OwnPasswordAsk { present, new: prompt::new_secret("new password")? });
                password_told(output, client.post::<PasswordSet>(&["me", "password"], &ask).await?)
            }
            Users::Rm { name, why } => {
                let ask = json!(RevokeAsk { reason: why.reason.clone() });
                let answer = client.post::<UserRemoved>(&["users", name.as_str(), "remove"], &ask).await?;
                let sentence =
                    || format!("{name} is no user any more; every node refuses their tokens and log-ins from now on");
                render::show(output, &answer.document, name.as_str(), sentence)
            }
            Users::Token { name, role, source, expires, why } => {
                let ask = UserTokenAsk {
                    role: role.map(|role| role.to_string()),
                    source: source.clone(),
                    expires: expires.map(|lasts| format!("{}s", lasts.as_secs())),
                    reason: why.reason.clone(),
                };
                let answer = client.post::<UserTokenTold>(&["users", name.as_str(), "tokens"], &json!(ask)).await?;
                render::show(output, &answer.document, &answer.told.id, || answer.told.token.clone())?;
                render::note(&format!(
                    "this is {} of {name}, shown this once; it goes into CLINCH_TOKEN",
                    answer.told.id
                ));
                Ok(())
            }
            Users::Tokens { name } => tokens(&client, output, name).await,
            Users::RmToken { name, id, why } => {
                let ask = json!(RevokeAsk { reason: why.reason.clone() });
                let path = ["users", name.as_str(), "tokens", &id.to_string(), "remove"];
                let answer = client.post::<UserTokenRemoved>(&path, &ask).await?;
                let sentence = || format!("{id} of {name} is gone; every node refuses it from now on");
                render::show(output, &answer.document, &answer.told.id, sentence)
            }
        }?;
        Ok(Exit::Done)
    }
}

async fn add(
    client: &Client,
    output: Output,
    name: &UserName,
    role: Role,
    with_password: bool,
    why: &Why,
) -> Result<(), Failure> {
    let password = with_password.then(|| prompt::new_secret(&format!("password of {name}"))).transpose()?;
    let ask = UserAsk { name: name.to_string(), role: role.to_string(), password, reason: why.reason.clone() };
    let answer = client.post::<UserMade>(&["users"], &json!(ask)).await?;
    match &answer.told.token {
        // The text is the data: it can be piped to where it is needed, and is nowhere else.
        Some(token) => {
            render::show(output, &answer.document, name.as_str(), || token.clone())?;
            render::note(&format!("this is the token of {name}, shown this once; it goes into CLINCH_TOKEN"));
            Ok(())
        }
        None => render::show(output, &answer.document, name.as_str(), || format!("{name} is a user: {role}")),
    }
}

fn password_told(output: Output, answer: super::client::Answer<PasswordSet>) -> Result<(), Failure> {
    let name = &answer.told.name;
    let sentence = || format!("{name} has another password; log-ins of before are over");
    render::show(output, &answer.document, name, sentence)
}

async fn list(client: &Client, output: Output) -> Result<(), Failure> {
    let answer = client.get::<UserList>(&["users"], &[]).await?;
    let now = render::now();
    let mut table = Table::new(&["NAME", "ROLE", "PASSWORD", "ADDED"]);
    for user in &answer.told.users {
        let password = if user.password { "yes" } else { "no" };
        let cells = [&user.name, &user.role, password].map(Cell::text);
        table.row(cells.into_iter().chain([Cell::age(user.added_at, now)]).collect());
    }
    table.print(output, &answer.document, "users")?;
    if answer.told.users.is_empty() {
        render::note("there are no users; only the admin token is let in");
        render::next(output, "clinch users add NAME --role ROLE");
    }
    Ok(())
}

async fn me(client: &Client, output: Output) -> Result<(), Failure> {
    let answer = client.get::<MeShow>(&["me"], &[]).await?;
    let MeShow { name, role, may, source, .. } = &answer.told;
    let only = source.as_ref().map_or_else(String::new, |source| format!(" of source {source} only"));
    let sentence = || format!("{name}, {role}{only}; may {}", may.join(", "));
    render::show(output, &answer.document, name, sentence)
}

async fn tokens(client: &Client, output: Output, name: &UserName) -> Result<(), Failure> {
    let answer = client.get::<UserTokenList>(&["users", name.as_str(), "tokens"], &[]).await?;
    let now = render::now();
    let mut table = Table::new(&["ID", "ROLE", "SOURCE", "MADE", "EXPIRES", "USED"]);
    for token in &answer.told.tokens {
        table.row(vec![
            Cell::text(&token.id),
            Cell::text(token.role.as_deref().unwrap_or("as the user")),
            Cell::text(token.source.as_deref().unwrap_or("all")),
            Cell::age(token.made_at, now),
            Cell::text(token.expires_at.map_or_else(|| "never".into(), |at| at.0.to_string())),
            token.used_at.map_or_else(|| Cell::text("never"), |at| Cell::age(at, now)),
        ]);
    }
    table.print(output, &answer.document, "tokens")
}
