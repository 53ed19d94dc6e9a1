//! What the store is sealed with, and work that takes a while.

use crate::chores::{self, Chore};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.keys.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeysList {
    pub schema: String,
    pub keys: Vec<KeyRow>,
}

/// A key that the store is encrypted with, and how much is under it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyRow {
    /// `none` for what is from before encryption.
    pub id: String,
    /// active, older, not_encrypted
    pub state: String,
    pub payloads: u64,
    pub results: u64,
    pub errors: u64,
}

/// Whose data is to be erased: a value, or an event.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct ForgetAsk {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    pub reason: String,
    #[serde(default)]
    pub dry_run: bool,
}

/// `clinch.chore/v1`: long work on the whole store, under way or the last that was.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChoreShow {
    pub schema: String,
    /// rotate, forget
    pub kind: String,
    /// running, done, failed
    pub state: String,
    pub error: Option<String>,
    pub events_looked_at: u64,
    /// Places sealed again; or events whose data was erased, or would have been.
    pub changed: u64,
    pub unreadable: u64,
    pub jobs_unfinished: u64,
    pub jobs_running: u64,
    pub notes: Vec<String>,
}

impl From<&Chore> for ChoreShow {
    fn from(chore: &Chore) -> ChoreShow {
        let (state, error) = match &chore.state {
            chores::State::Running => ("running", None),
            chores::State::Done => ("done", None),
            chores::State::Failed(why) => ("failed", Some(why.clone())),
        };
        ChoreShow {
            schema: "clinch.chore/v1".into(),
            kind: chore.kind.into(),
            state: state.into(),
            error,
            events_looked_at: chore.looked_at,
            changed: chore.changed,
            unreadable: chore.unreadable,
            jobs_unfinished: chore.unfinished,
            jobs_running: chore.running,
            notes: chore.said.clone(),
        }
    }
}
