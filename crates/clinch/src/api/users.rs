//! People with a token of their own: added, listed and removed. The text of a token is told once, to whoever adds one.

use super::auth::new_token;
use super::jobs::{read_body, reason};
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::{Moment, RevokeAsk, User, UserAsk, UserList, UserMade, UserRemoved};
use crate::house::House;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::user::{Role, TokenDigest, UserName};
use clinch_store::read::UserRow;
use clinch_store::{NewUser, USERS_MAX, UserAdded};

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<UserList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let users = house.store.users().await?;
    let users = users.iter().map(told).collect();
    Ok(Json(UserList { schema: "clinch.users.list/v1".into(), users }))
}

pub async fn add(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserMade>, Problem> {
    let ask: UserAsk = read_body(body)?;
    let name: UserName = ask.name.parse().map_err(|error| Problem::bad_body(format!("name: {error}.")))?;
    let role: Role = ask.role.parse().map_err(|error| Problem::bad_body(format!("role: {error}.")))?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    let user = User { name: name.to_string(), role: role.to_string(), added_at: Moment(record.at) };
    let token = new_token();
    match house.store.add_user(NewUser { name, role, token: TokenDigest::of(&token) }, record).await? {
        UserAdded::Taken => {
            let said =
                format!("There is a user {0}; `clinch users rm {0}` takes the token away, for another.", user.name);
            Err(Problem::taken(said))
        }
        UserAdded::TooMany => Err(Problem::full(format!("There are {USERS_MAX} users, and no more can be."))),
        UserAdded::Added => {
            tracing::info!("user {} was added", user.name);
            Ok(Json(UserMade { schema: "clinch.users.add/v1".into(), user, token }))
        }
    }
}

pub async fn remove(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<UserName>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserRemoved>, Problem> {
    let ask: RevokeAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    if !house.store.remove_user(name.clone(), record).await? {
        return Err(Problem::not_found(format!("There is no user {name}.")));
    }
    tracing::info!("user {name} was removed");
    Ok(Json(UserRemoved { schema: "clinch.users.remove/v1".into(), name: name.to_string() }))
}

fn told(row: &UserRow) -> User {
    User { name: row.name.to_string(), role: row.role.to_string(), added_at: Moment(row.added_at) }
}
