//! Which workspace is live: what asks for another, and what is answered. Both engines decide alike.

use crate::VersionId;
use clinch_core::audit::{Act, Record};
use serde_json::{Value, json};

/// A workspace that somebody wants to be live.
#[derive(Clone, Debug)]
pub struct ActivateAsk {
    /// Of its files.
    pub hash: [u8; 32],
    pub files: String,
    pub by: Activation,
    pub record: Record,
}

/// Who wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// A process has these files. They count; but a choice of an operator is not undone by files that were known when he chose.
    Files,
    /// An operator chooses it, under the name of his act; where a version is named, only if that one is live.
    Operator { action: &'static str, expect: Option<VersionId> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activated {
    /// It is live, from now on or since before.
    Live(VersionId),
    /// An operator chose another, and these files are an older one.
    Kept { live: VersionId, files: VersionId },
    /// Another version is live than was expected; nothing was changed.
    Conflict(VersionId),
}

/// How it is when somebody asks. Nothing is live before the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub live: Option<VersionId>,
    /// Whether an operator chose the live one.
    pub chosen: bool,
    /// The version that has these files.
    pub known: Option<VersionId>,
}

impl ActivateAsk {
    /// `None`: it becomes live.
    pub(crate) fn answer(&self, standing: Standing) -> Option<Activated> {
        let Standing { live, chosen, known } = standing;
        match self.by {
            Activation::Operator { expect: Some(expected), .. } if live != Some(expected) => {
                return Some(Activated::Conflict(live.unwrap_or(VersionId(0))));
            }
            _ => {}
        }
        match (live, known) {
            (Some(live), Some(known)) if live == known => Some(Activated::Live(live)),
            (Some(live), Some(files)) if chosen && self.by == Activation::Files => {
                Some(Activated::Kept { live, files })
            }
            _ => None,
        }
    }

    /// What is kept of who chose it.
    pub(crate) fn is_chosen(&self) -> bool {
        self.by != Activation::Files
    }

    pub(crate) fn act(&self, before: Option<VersionId>, now: VersionId) -> (Act, Record) {
        let hash = data_encoding::HEXLOWER.encode(&self.hash[..6]);
        let act = Act {
            action: match self.by {
                Activation::Files => "config.activate",
                Activation::Operator { action, .. } => action,
            },
            object: "workspace".into(),
            job: None,
            before: before.map_or(Value::Null, |before| json!({ "version": before.0 })),
            after: json!({ "version": now.0, "hash": hash }),
        };
        (act, self.record.clone())
    }
}
