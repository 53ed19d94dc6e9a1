//! Who did what, and whether that record is whole.

use super::Moment;
use crate::masking::rules;
use clinch_core::audit;
use clinch_store::read;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    pub no: u64,
    pub at: Moment,
    /// As it goes into the hash.
    pub at_micros: i64,
    pub actor: String,
    /// Where from: `api ADDRESS`, or the room in which clinch acts by itself.
    pub origin: String,
    pub action: String,
    pub object: String,
    pub job_id: Option<String>,
    /// How it was and how it is: texts of JSON, as they go into the hash.
    pub before: Option<String>,
    pub after: Option<String>,
    pub reason: String,
    pub hash: String,
}

impl From<&read::AuditRow> for Audit {
    fn from(row: &read::AuditRow) -> Audit {
        Audit {
            no: row.no,
            at: Moment(row.at),
            at_micros: row.at.as_micros(),
            actor: row.actor.clone(),
            origin: row.origin.clone(),
            action: row.action.clone(),
            object: row.object.clone(),
            job_id: row.job.map(|job| job.to_string()),
            before: row.before.clone(),
            after: row.after.clone(),
            reason: rules().text(&row.reason),
            hash: row.hash.to_string(),
        }
    }
}

impl Audit {
    /// For people.
    pub fn change(&self) -> String {
        audit::change(self.before.as_deref(), self.after.as_deref())
    }
}

/// `clinch.audit.list/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    pub schema: String,
    pub audit: Vec<Audit>,
    /// Whether there are others beyond the last of these.
    pub more: bool,
}

/// `clinch.audit.verify/v1`
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditVerified {
    pub schema: String,
    /// Every row is where it was and as it was.
    pub ok: bool,
    pub rows: u64,
    /// The hash of the last row: who notes it elsewhere can ask for it later.
    pub head: String,
    /// What does not fit, and the first row that does not.
    pub problem: Option<String>,
    pub row: Option<u64>,
}
