//! Asking a partner whether an effect was done, for a person. Who can ask is handed to who wants to know: the rooms do not
//! meet.

use clinch_store::read::JobStory;
use std::pin::Pin;

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The partner says that it was done; this was the status of its answer.
    Done {
        status: u16,
    },
    NotDone {
        status: u16,
    },
    /// It was asked, or should have been, and nothing can be concluded: why.
    NoAnswer(String),
    /// There is no way to ask: why.
    CannotBeAsked(String),
}

pub type Asking<'a> = Pin<Box<dyn Future<Output = clinch_store::Result<Finding>> + Send + 'a>>;

pub trait Inquiry: Send + Sync {
    /// Whether this step of the job was done. Nothing is written down.
    fn was_done<'a>(&'a self, job: &'a JobStory, step: &'a str) -> Asking<'a>;
}
