//! Who may send, what was refused, and tokens of senders.

use super::Moment;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.sources.list/v1`: every way in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SourceList {
    pub schema: String,
    pub sources: Vec<SourceNow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceNow {
    pub name: String,
    /// source, or flow for a flow's own route.
    pub kind: String,
    pub method: String,
    pub path: String,
    /// A preset, or none: anybody may send.
    pub verify: String,
    /// How many secrets it accepts.
    pub secrets: usize,
    /// When this node accepted something there last, since its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_accepted_at: Option<Moment>,
    /// How many of the last refusals this node remembers.
    #[serde(default)]
    pub rejections: usize,
}

/// `clinch.tokens.list/v1`: tokens of senders, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    pub schema: String,
    pub tokens: Vec<Token>,
}

/// A sender's token without what proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    pub id: String,
    pub sender: String,
    /// live, expired or revoked
    pub state: String,
    pub issued_at: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Moment>,
}

/// What is asked for when a token is made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenAsk {
    pub sender: String,
    /// How long it counts, such as `90d`; until it is revoked if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// `clinch.tokens.new/v1`: the only time that its text is told.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    pub schema: String,
    pub text: String,
    pub token: Token,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RevokeAsk {
    pub reason: String,
}

/// `clinch.tokens.revoke/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenRevoked {
    pub schema: String,
    pub id: String,
    /// Whether it was live until now.
    pub revoked: bool,
}

/// `clinch.sources.rejections/v1`: what this node refused since it started, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RejectionList {
    pub schema: String,
    pub source: String,
    pub rejections: Vec<Rejection>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rejection {
    pub at: Moment,
    /// A word of a fixed list.
    pub reason: String,
    pub message: String,
    pub advice: String,
    /// The names of the headers that came.
    pub headers: Vec<String>,
}
