//! A flow: an HTTP route, how its deliveries are told apart, and the queues they go to.

use crate::key::{KeyPart, KeyRule};
use crate::lane::Order;
use std::time::Duration;

pub const BODY_BYTES_DEFAULT: usize = 1 << 20;
pub const BODY_BYTES_MAX: usize = 10 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub name: String,
    pub routes: Vec<Route>,
    /// One job per entry, in this order. Never empty.
    pub enqueue: Vec<Enqueue>,
    pub answer: AnswerRule,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub method: Method,
    /// Begins with `/`, matched whole.
    pub path: String,
    pub body_bytes_max: usize,
    /// Whose delivery it is; keys of two tenants never meet. Without a rule all belong to one.
    pub tenant: Option<KeyPart>,
    pub dedup: Option<DedupRule>,
}

impl Route {
    /// What its keys are scoped to, besides the tenant.
    pub fn scope(&self) -> String {
        format!("{} {}", self.method.word(), self.path)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    Post,
    Put,
    Patch,
}

impl Method {
    pub const fn word(self) -> &'static str {
        match self {
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct DedupRule {
    pub key: KeyRule,
    /// The name after `kv:`.
    pub store: String,
    /// Counted from acceptance; never shorter in effect than the life of the job.
    pub ttl: Duration,
    /// Whether a delivery without a key is refused; if not, it is accepted and not deduplicated.
    pub required: bool,
    pub on_conflict: OnConflict,
    pub on_duplicate_of_dead: OnDuplicateOfDead,
}

/// The same key came with another body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// 422: the caller made the key and should know.
    Reject,
    /// The first stays, the answer is its answer: a provider would only send again.
    KeepFirst,
}

/// The key belongs to a job that is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicateOfDead {
    Keep,
    Replay,
}

/// One job of the flow: the queue it goes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Enqueue {
    pub step: String,
    pub queue: String,
    /// The key that travels with the job; without a rule it is the delivery's own.
    pub key: Option<KeyRule>,
    /// What the step says itself wins over what the queue says.
    pub group: Option<KeyRule>,
    pub priority: Option<i16>,
    pub delay: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRule {
    /// The status of a first success, and so of its duplicates.
    pub status: u16,
}

/// A queue: in which order its jobs run, and how long it remembers.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    pub name: String,
    /// A claim ends this long after its last heartbeat.
    pub visibility_timeout: Duration,
    /// How long a finished job (in a dead letter queue: a dead one) is kept.
    pub retention: Duration,
    pub order: Order,
    /// Whose jobs belong together. Without a rule: those of a tenant, or all of them where they keep their order.
    pub group: Option<KeyRule>,
    /// The highest goes first.
    pub priority: i16,
    /// A job is not run before this time has passed since its acceptance.
    pub delay: Duration,
}

pub const PRIORITY_MIN: i16 = -100;
pub const PRIORITY_MAX: i16 = 100;

pub const VISIBILITY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
pub const QUEUE_RETENTION_DEFAULT: Duration = Duration::from_secs(4 * 86_400);
