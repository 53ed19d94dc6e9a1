//! Users: added, listed, changed and removed, and their tokens. The text of a token is told once, to whoever makes it.

use super::auth::new_token;
use super::jobs::{read_body, reason};
use super::me::PasswordSet;
use super::problem::Problem;
use super::query::{Id, Query};
use super::shapes::{Moment, RevokeAsk, User, UserAsk, UserList, UserMade, UserRemoved};
use crate::clock::secret_bytes;
use crate::house::House;
use crate::sessions::Sessions;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, RawQuery, State};
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::time::{Timestamp, parse_duration};
use clinch_core::user::{Role, TokenDigest, UserName, UserTokenId};
use clinch_store::{
    NewUser, NewUserToken, USER_TOKENS_MAX, USERS_MAX, UserAdded, UserRow, UserTokenMade, UserTokenRow,
};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleAsk {
    pub role: String,
    #[serde(default)]
    pub reason: String,
}

/// `clinch.users.role/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RoleSet {
    pub schema: String,
    pub name: String,
    pub role: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordAsk {
    pub password: String,
    #[serde(default)]
    pub reason: String,
}

/// A token is to be made.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserTokenAsk {
    /// No more than that of the user; without one, that of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Only what came in through this source is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How long it is good for: `90d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserToken {
    pub id: String,
    pub user: String,
    /// Without one, that of the user.
    pub role: Option<String>,
    pub source: Option<String>,
    pub made_at: Moment,
    pub expires_at: Option<Moment>,
    /// To the minute.
    pub used_at: Option<Moment>,
}

/// `clinch.users.tokens/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserTokenList {
    pub schema: String,
    pub tokens: Vec<UserToken>,
}

/// `clinch.users.token/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserTokenTold {
    pub schema: String,
    pub id: String,
    /// The token: told this once, and kept nowhere.
    pub token: String,
}

/// `clinch.users.token_removed/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserTokenRemoved {
    pub schema: String,
    pub id: String,
}

pub async fn list(State(house): State<House>, RawQuery(raw): RawQuery) -> Result<Json<UserList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let users = house.store.users().await?.iter().map(told).collect();
    Ok(Json(UserList { schema: "clinch.users.list/v1".into(), users }))
}

pub async fn add(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Extension(sessions): Extension<Arc<Sessions>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserMade>, Problem> {
    let ask: UserAsk = read_body(body)?;
    let name: UserName = parsed("name", &ask.name)?;
    let role: Role = parsed("role", &ask.role)?;
    let reason = reason(&ask.reason, 0)?;
    let password = match &ask.password {
        Some(password) => Some(hashed(&sessions, &name, password).await?),
        None => None,
    };
    let record = who.record(reason, house.clock.now());
    // Who logs in with a password needs no token.
    let (token, text) = password.is_none().then(|| new_user_token(None, None, None)).unzip();
    let row = UserRow { name: name.clone(), added_at: record.at, role, password: password.clone(), identity: None };
    match house.store.add_user(NewUser { name, role, password, token }, record).await? {
        UserAdded::Taken => {
            let said = format!("There is a user {0}; `clinch users token {0}` makes another token.", row.name);
            Err(Problem::taken(said))
        }
        UserAdded::TooMany => Err(Problem::full(format!("There are {USERS_MAX} users, and no more can be."))),
        UserAdded::Added => {
            tracing::info!("user {} was added", row.name);
            Ok(Json(UserMade { schema: "clinch.users.add/v1".into(), user: told(&row), token: text }))
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
        return Err(absent(&name));
    }
    tracing::info!("user {name} was removed");
    Ok(Json(UserRemoved { schema: "clinch.users.remove/v1".into(), name: name.to_string() }))
}

pub async fn set_role(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<UserName>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<RoleSet>, Problem> {
    let ask: RoleAsk = read_body(body)?;
    let role: Role = parsed("role", &ask.role)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    match house.store.set_role(name.clone(), role, record).await? {
        false => Err(absent(&name)),
        true => {
            tracing::info!("user {name} is {role} now");
            let (name, role) = (name.to_string(), role.to_string());
            Ok(Json(RoleSet { schema: "clinch.users.role/v1".into(), name, role }))
        }
    }
}

pub async fn set_password(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Extension(sessions): Extension<Arc<Sessions>>,
    Id(name): Id<UserName>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PasswordSet>, Problem> {
    let ask: PasswordAsk = read_body(body)?;
    let reason = reason(&ask.reason, 0)?;
    let password = hashed(&sessions, &name, &ask.password).await?;
    match house.store.set_password(name.clone(), password, who.record(reason, house.clock.now())).await? {
        false => Err(absent(&name)),
        true => Ok(Json(PasswordSet { schema: "clinch.users.password/v1".into(), name: name.to_string() })),
    }
}

pub async fn tokens(
    State(house): State<House>,
    Id(name): Id<UserName>,
    RawQuery(raw): RawQuery,
) -> Result<Json<UserTokenList>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    house.store.user(name.clone()).await?.ok_or_else(|| absent(&name))?;
    let tokens = house.store.user_tokens().await?;
    let tokens = tokens.iter().filter(|token| token.user == name).map(token_told).collect();
    Ok(Json(UserTokenList { schema: "clinch.users.tokens/v1".into(), tokens }))
}

pub async fn make_token(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Id(name): Id<UserName>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserTokenTold>, Problem> {
    let ask: UserTokenAsk = read_body(body)?;
    let (reason, now) = (reason(&ask.reason, 0)?, house.clock.now());
    let role = ask.role.as_deref().map(|role| parsed("role", role)).transpose()?;
    let expires_at = ask.expires.as_deref().map(|text| end(text, now)).transpose()?;
    if let Some(source) = &ask.source
        && !house.versions.workspace().entrances().any(|way| way.to.1 == source)
    {
        return Err(Problem::bad_body(format!("source: this workspace has no source or flow `{source}`.")));
    }
    let (token, text) = new_user_token(role, ask.source, expires_at);
    let id = token.id;
    match house.store.make_user_token(name.clone(), token, who.record(reason, now)).await? {
        UserTokenMade::Made => {
            let schema = "clinch.users.token/v1".into();
            Ok(Json(UserTokenTold { schema, id: id.to_string(), token: text }))
        }
        UserTokenMade::NotFound => Err(absent(&name)),
        UserTokenMade::TooMuch(has) => {
            Err(Problem::not_now(format!("{name} is {has}: a token cannot be for more than its user.")))
        }
        UserTokenMade::TooMany => {
            Err(Problem::full(format!("{name} has {USER_TOKENS_MAX} tokens, and no more can be; remove one.")))
        }
    }
}

pub async fn remove_token(
    State(house): State<House>,
    Extension(who): Extension<Who>,
    Path((name, id)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<UserTokenRemoved>, Problem> {
    let name: UserName = name.parse().map_err(|error| Problem::bad_query(format!("{error}.")))?;
    let id: UserTokenId = id.parse().map_err(|error| Problem::bad_query(format!("{error}.")))?;
    let ask: RevokeAsk = read_body(body)?;
    let record = who.record(reason(&ask.reason, 0)?, house.clock.now());
    match house.store.remove_user_token(name.clone(), id, record).await? {
        true => Ok(Json(UserTokenRemoved { schema: "clinch.users.token_removed/v1".into(), id: id.to_string() })),
        false => Err(Problem::not_found(format!("{name} has no token {id}."))),
    }
}

fn parsed<T: FromStr<Err: Display>>(field: &str, text: &str) -> Result<T, Problem> {
    text.parse().map_err(|error| Problem::bad_body(format!("{field}: {error}.")))
}

async fn hashed(
    sessions: &Sessions,
    name: &UserName,
    password: &str,
) -> Result<clinch_core::user::PasswordHash, Problem> {
    let hashed = sessions.hash(name.as_str(), password).await;
    hashed.map_err(|error| Problem::bad_body(format!("password: {error}.")))
}

fn end(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    let lasts = parse_duration(text).map_err(|error| Problem::bad_body(format!("expires: {error}.")))?;
    Ok(now + lasts)
}

fn new_user_token(role: Option<Role>, source: Option<String>, expires_at: Option<Timestamp>) -> (NewUserToken, String) {
    let text = new_token();
    let id = UserTokenId::from_bytes(*secret_bytes().first_chunk().expect("32 bytes begin with 8"));
    (NewUserToken { id, digest: TokenDigest::of(&text), role, source, expires_at }, text)
}

fn absent(name: &UserName) -> Problem {
    Problem::not_found(format!("There is no user {name}."))
}

fn told(row: &UserRow) -> User {
    User {
        name: row.name.to_string(),
        role: row.role.to_string(),
        added_at: Moment(row.added_at),
        password: row.password.is_some(),
    }
}

fn token_told(row: &UserTokenRow) -> UserToken {
    UserToken {
        id: row.id.to_string(),
        user: row.user.to_string(),
        role: row.role.map(|role| role.to_string()),
        source: row.source.clone(),
        made_at: Moment(row.made_at),
        expires_at: row.expires_at.map(Moment),
        used_at: row.used_at.map(Moment),
    }
}
