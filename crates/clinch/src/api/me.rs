//! Whoever asks, himself: who he is here, a link into the console, and another password.

use super::jobs::read_body;
use super::problem::Problem;
use super::query::Query;
use super::shapes::Moment;
use crate::sessions::{Changed, Sessions};
use axum::body::Bytes;
use axum::extract::RawQuery;
use axum::extract::rejection::BytesRejection;
use axum::{Extension, Json};
use clinch_core::audit::Who;
use clinch_core::user::{Permission, is_own};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use utoipa::ToSchema;

/// `clinch.me.show/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MeShow {
    pub schema: String,
    pub name: String,
    pub role: String,
    /// What the role allows, by name.
    pub may: Vec<String>,
    /// The only source whose jobs are shown, if the token says so.
    pub source: Option<String>,
}

/// `clinch.me.link/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LoginLink {
    pub schema: String,
    /// Below the address of the console. It works once.
    pub path: String,
    pub expires_at: Moment,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnPasswordAsk {
    pub present: String,
    pub new: String,
}

/// `clinch.me.password/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PasswordSet {
    pub schema: String,
    pub name: String,
}

pub async fn show(Extension(who): Extension<Who>, RawQuery(raw): RawQuery) -> Result<Json<MeShow>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    let may = Permission::ALL.into_iter().filter(|permission| who.role.may(*permission));
    Ok(Json(MeShow {
        schema: "clinch.me.show/v1".into(),
        may: may.map(|permission| permission.to_string()).collect(),
        name: who.name,
        role: who.role.to_string(),
        source: who.source.map(|source| source.to_string()),
    }))
}

pub async fn link(
    Extension(who): Extension<Who>,
    Extension(sessions): Extension<Arc<Sessions>>,
) -> Result<Json<LoginLink>, Problem> {
    let (code, until) = sessions.link(&who).await?;
    let path = format!("/login?code={code}");
    Ok(Json(LoginLink { schema: "clinch.me.link/v1".into(), path, expires_at: Moment(until) }))
}

pub async fn password(
    Extension(who): Extension<Who>,
    Extension(sessions): Extension<Arc<Sessions>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PasswordSet>, Problem> {
    let ask: OwnPasswordAsk = read_body(body)?;
    if is_own(&who.name) {
        return Err(Problem::not_now("The admin has a token and no password; `clinch users add` makes users.".into()));
    }
    let new = sessions.hash(&who.name, &ask.new).await;
    let new = new.map_err(|error| Problem::bad_body(format!("new: {error}.")))?;
    // The console asks from inside; where its visitor is, his origin says.
    let from = who.origin.rsplit(' ').next().and_then(|address| address.parse().ok());
    match sessions.change(&who, &ask.present, new, from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))).await? {
        Changed::Changed => Ok(Json(PasswordSet { schema: "clinch.me.password/v1".into(), name: who.name })),
        Changed::Refused => Err(Problem::not_allowed("The present password is another, or there is none yet.".into())),
        Changed::Wait(wait) => Err(Problem::too_often(wait)),
    }
}
