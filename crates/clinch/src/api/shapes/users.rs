//! People.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.users.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    pub schema: String,
    pub users: Vec<User>,
}

/// A user.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct User {
    pub name: String,
    pub role: String,
    pub added_at: Moment,
    /// Whether there is one to log in with.
    pub password: bool,
}

/// Somebody is to be one.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserAsk {
    pub name: String,
    pub role: String,
    /// To log in with; without one there is a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// `clinch.users.add/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserMade {
    pub schema: String,
    pub user: User,
    /// The token: told this once, and kept nowhere.
    pub token: Option<String>,
}

/// `clinch.users.remove/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UserRemoved {
    pub schema: String,
    pub name: String,
}
