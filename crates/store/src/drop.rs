//! Dead letters that people give up: asked for, confirmed, taken back. Both engines say it alike.

use crate::read::JobRow;
use crate::{Act, Record};
use clinch_core::drop::ALONE_AFTER;
use clinch_core::id::JobId;
use clinch_core::job::Word;
use clinch_core::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// What somebody wants with a dead letter.
#[derive(Clone, Debug)]
pub struct DropAsk {
    pub job: JobId,
    pub record: Record,
}

/// What became of it. A name is that of who asked first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropEnd {
    /// It waits for a second person, or for this moment.
    Asked {
        by: String,
        alone_from: Timestamp,
    },
    /// Somebody asked before; nothing was changed.
    AskedBefore {
        by: String,
        alone_from: Timestamp,
    },
    Dropped {
        flow: Arc<str>,
    },
    /// Nobody has asked for it; nothing was changed.
    NotAsked,
    /// It is another dead letter than the one that was meant: the request is gone, and nothing else was changed.
    Changed,
    /// It is a dead letter again.
    TakenBack,
    /// Nobody wants it dropped any more.
    Withdrawn,
    /// In this state it cannot be done; nothing was changed.
    Not {
        state: Word,
    },
    NotFound,
}

/// A request that nobody has confirmed yet.
#[derive(Clone, Debug)]
pub struct DropRow {
    pub job: JobId,
    pub flow: Arc<str>,
    pub at: Timestamp,
    pub actor: String,
    pub reason: String,
}

impl DropRow {
    pub fn alone_from(&self) -> Timestamp {
        self.at + ALONE_AFTER
    }
}

impl DropAsk {
    fn act(&self, action: &'static str, before: Value, after: Value) -> Act {
        Act { action, object: self.job.to_string(), job: Some(self.job), before, after }
    }

    pub(crate) fn asked(&self) -> Act {
        self.act("job.drop.ask", json!({ "state": "dead" }), json!({ "state": "dead", "drop": "asked for" }))
    }

    pub(crate) fn dropped(&self, dead: &JobRow, asked_by: &str) -> Act {
        let reason = dead.reason.map(|reason| reason.to_string());
        let before = json!({ "state": "dead", "reason": reason, "asked_by": asked_by });
        self.act("job.drop", before, json!({ "state": "dropped" }))
    }

    pub(crate) fn taken_back(&self) -> Act {
        self.act("job.undrop", json!({ "state": "dropped" }), json!({ "state": "dead" }))
    }

    pub(crate) fn withdrawn(&self, asked_by: &str) -> Act {
        let before = json!({ "state": "dead", "drop": "asked for", "asked_by": asked_by });
        self.act("job.drop.withdraw", before, json!({ "state": "dead" }))
    }
}
