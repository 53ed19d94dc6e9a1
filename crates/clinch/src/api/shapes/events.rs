//! What came in.

use super::{Moment, Scope};
use clinch_store::read;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `clinch.events.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    pub schema: String,
    pub events: Vec<EventLine>,
    /// Ask again with `before` of this for the next page.
    pub next_before: Option<String>,
    pub scope: Scope,
}

/// An event in a list.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventLine {
    pub id: String,
    pub trace_id: String,
    pub source: String,
    pub received_at: Moment,
    /// The status that its sender got.
    pub answer_status: u16,
    pub jobs: u32,
    /// Until when its key is held, if it has one.
    pub key_until: Option<Moment>,
    /// How often it came again with the same body: nothing was repeated.
    pub duplicates: u64,
    /// How often another body came under its key.
    pub conflicts: u64,
}

impl From<&read::EventRow> for EventLine {
    fn from(row: &read::EventRow) -> EventLine {
        EventLine {
            id: row.id.to_string(),
            trace_id: row.trace.to_string(),
            source: row.source.to_string(),
            received_at: Moment(row.received_at),
            answer_status: row.status,
            jobs: row.jobs,
            key_until: row.key_until.map(Moment),
            duplicates: row.duplicates,
            conflicts: row.conflicts,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub id: String,
    pub source: String,
    pub source_event_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub tenant: String,
    /// Whose token it came with, where senders have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    #[serde(default = "one")]
    pub schema_version: u32,
    pub trace_id: String,
    pub received_at: Moment,
}

fn one() -> u32 {
    1
}
