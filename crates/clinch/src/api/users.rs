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
use clinch_core::user::{ADMIN, TokenDigest, UserName};
use clinch_store::{NewUser, USERS_MAX, UserAdded};

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<UserList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let users = house.store.users().await?;
    let users = users.iter().map(|row| User { name: row.name.to_string(), added_at: Moment(row.added_at) }).collect();
    Ok(Json(UserList { schema: "clinch.users.list/v1".into(), users }))
}

pub async fn add(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserMade>, Problem> {
    only_admin(&who)?;
    let ask: UserAsk = read_body(body)?;
    let name: UserName = ask.name.parse().map_err(|error| Problem::bad_body(format!("name: {error}.")))?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    let (token, user) = (new_token(), User { name: name.to_string(), added_at: Moment(record.at) });
    match house.store.add_user(NewUser { name, token: TokenDigest::of(&token) }, record).await? {
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
    only_admin(&who)?;
    let ask: RevokeAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    if !house.store.remove_user(name.clone(), record).await? {
        return Err(Problem::not_found(format!("There is no user {name}.")));
    }
    tracing::info!("user {name} was removed");
    Ok(Json(UserRemoved { schema: "clinch.users.remove/v1".into(), name: name.to_string() }))
}

/// Who could add users could be several people at once, where a second one is asked for.
fn only_admin(who: &Who) -> Result<(), Problem> {
    match who.name == ADMIN {
        true => Ok(()),
        false => Err(Problem::only_admin(format!("{} is a user; users are added and removed by the admin.", who.name))),
    }
}
