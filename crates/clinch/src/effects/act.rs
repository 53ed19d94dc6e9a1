//! Something that is done outside. Whatever it is, it says whether it was begun and what came of it.

use super::http::HttpClient;
use super::mail::MailClient;
use super::script::Scripts;
use clinch_core::death::Reason;
use clinch_core::effect::{Idempotency, Receipt};
use clinch_core::key::Fingerprint;
use clinch_store::target::Targets;
use http::{Method, Uri};
use std::pin::Pin;
use std::time::Duration;

/// What acts are done with. One of each for the house.
pub struct Tools {
    pub http: HttpClient,
    pub mail: MailClient,
    pub databases: Targets,
    pub scripts: Scripts,
}

/// Asked when everything is ready and before the first byte leaves: to get ready takes its time. For how much longer it may begin, or `None`.
pub type MayBegin<'a> = &'a (dyn Fn() -> Option<Duration> + Send + Sync);

pub type Sending<'a> = Pin<Box<dyn Future<Output = Sent> + Send + 'a>>;

pub trait Act: Send + Sync {
    /// The longest that it may take.
    fn timeout(&self) -> Duration;

    /// Waits for what it needs, before anything is intended: who waits here has not begun.
    fn get_ready<'a>(&'a mut self, _tools: &'a Tools) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async {})
    }

    /// Where it goes, and what tells it from another that goes there; `None` where that cannot be told.
    fn fingerprint(&self) -> Option<(String, Fingerprint)> {
        None
    }

    /// The request that it is, if it is one.
    fn request(&self) -> Option<(Method, Uri)> {
        None
    }
    /// What it would do, for people who plan, and what tells it from anything else that it could be: everything that would be sent.
    fn told(&self) -> (String, Fingerprint);

    fn send<'a>(self: Box<Self>, tools: &'a Tools, class: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a>;
}

#[derive(Debug)]
pub enum Sent {
    Answered {
        receipt: Receipt,
        retry_after: Option<String>,
        /// The receipt has all of its body. What was done is known without it, what is asked for may not be.
        is_whole: bool,
    },
    /// No byte of it left.
    NotSent(String),
    /// No byte of it left, because it was too late to begin.
    TooLate,
    /// It may or may not have arrived.
    NoAnswer { timed_out: bool, why: String },
    /// It is a place that may not be called; no byte of it left.
    Blocked(String),
    /// It was begun, and says itself that it failed.
    Failed { reason: Reason, why: String },
    /// It was begun and ended without a word.
    Broken { reason: Reason, why: String },
    /// It was begun, did not work, and was taken back.
    Undone(String),
    /// The target looked at it and will not have it; nothing was done.
    Refused(String),
    /// It could not be made into a request at all.
    Invalid(String),
}

impl Sent {
    /// The status of the answer; or in a word of a fixed list why there is none.
    pub const fn in_a_word(&self) -> Result<u16, &'static str> {
        match self {
            Sent::Answered { receipt, .. } => Ok(receipt.status),
            Sent::NotSent(_) => Err("connect_error"),
            Sent::TooLate => Err("too_late"),
            Sent::NoAnswer { timed_out: true, .. } => Err("effect_timeout"),
            Sent::NoAnswer { timed_out: false, .. } => Err("connection_lost"),
            Sent::Blocked(_) => Err("ssrf_blocked"),
            Sent::Failed { .. } | Sent::Broken { .. } | Sent::Undone(_) | Sent::Refused(_) | Sent::Invalid(_) => {
                Err("_OTHER")
            }
        }
    }
}
