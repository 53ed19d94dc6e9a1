//! A flow: what starts it (a route of its own, or the events of a source) and the queues that its deliveries go to.

use crate::key::{KeyPart, KeyRule};
use crate::lane::Order;
use std::str::FromStr;
use std::time::Duration;

pub const BODY_BYTES_DEFAULT: usize = 1 << 20;
pub const BODY_BYTES_MAX: usize = 10 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    pub name: String,
    /// Routes of its own that anybody may send to.
    pub routes: Vec<Route>,
    /// The sources whose events it takes.
    pub subscriptions: Vec<Subscription>,
    /// One job per entry, in this order. Never empty.
    pub enqueue: Vec<Enqueue>,
    pub answer: AnswerRule,
}

impl Flow {
    /// Whether it wants an event of this source and type.
    pub fn takes(&self, source: &str, kind: &str) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.source == source && subscription.takes(kind))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The name of the source.
    pub source: String,
    /// Empty: events of any type.
    pub on: Vec<TypePattern>,
}

impl Subscription {
    fn takes(&self, kind: &str) -> bool {
        self.on.is_empty() || self.on.iter().any(|pattern| pattern.matches(kind))
    }
}

/// A type, or `shopify.*` for all that begin so, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypePattern(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a type of events; write one such as `shopify.order.created`, or `shopify.*` for all that begin so"
)]
pub struct BadTypePattern(String);

impl FromStr for TypePattern {
    type Err = BadTypePattern;
    fn from_str(text: &str) -> Result<Self, BadTypePattern> {
        const CHARS_MAX: usize = 200;
        let plain = text.strip_suffix(".*").or(text.strip_suffix('*').filter(|rest| rest.is_empty())).unwrap_or(text);
        let fine = plain.bytes().all(|b| b.is_ascii_graphic() && b != b'*');
        match fine && !text.is_empty() && text.len() <= CHARS_MAX {
            true => Ok(TypePattern(text.to_string())),
            false => Err(BadTypePattern(text.chars().take(80).collect())),
        }
    }
}

impl TypePattern {
    pub fn matches(&self, kind: &str) -> bool {
        match self.0.strip_suffix('*') {
            // The dot stays: `shop.*` is not for `shopify.order.created`.
            Some(beginning) => kind.starts_with(beginning),
            None => self.0 == kind,
        }
    }

    /// Whether some type that begins with this family and a dot fits.
    pub fn may_match_below(&self, family: &str) -> bool {
        let beginning = self.0.strip_suffix('*').unwrap_or(&self.0);
        let below = beginning.strip_prefix(family).is_some_and(|rest| rest.starts_with('.'));
        below || (self.0.ends_with('*') && format!("{family}.").starts_with(beginning))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    pub method: Method,
    /// Begins with `/`, matched whole.
    pub path: String,
    pub body_bytes_max: usize,
    /// Whose delivery it is; keys of two tenants never meet. Without a rule all belong to one.
    pub tenant: Option<KeyPart>,
    /// What an event is found by, besides its key.
    pub find_by: Vec<KeyPart>,
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

impl Queue {
    /// One about which nothing is said but its name.
    pub fn named(name: &str) -> Queue {
        Queue {
            name: name.to_string(),
            visibility_timeout: VISIBILITY_TIMEOUT_DEFAULT,
            retention: QUEUE_RETENTION_DEFAULT,
            order: Order::Any,
            group: None,
            priority: 0,
            delay: Duration::ZERO,
        }
    }
}

pub const PRIORITY_MIN: i16 = -100;
pub const PRIORITY_MAX: i16 = 100;

pub const VISIBILITY_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
pub const QUEUE_RETENTION_DEFAULT: Duration = Duration::from_secs(4 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a6_a_pattern_is_a_type_or_the_beginning_of_one() {
        let check = |pattern: &str, kind: &str, matches: bool| {
            assert_eq!(pattern.parse::<TypePattern>().expect(pattern).matches(kind), matches, "{pattern} {kind}");
        };
        check("shopify.order.created", "shopify.order.created", true);
        check("shopify.order.created", "shopify.order.created.x", false);
        check("shopify.*", "shopify.order.created", true);
        check("shop.*", "shopify.order.created", false);
        check("*", "anything", true);
        for bad in ["", "a b", "*.created", "a.*.b", "a*", "é"] {
            assert!(bad.parse::<TypePattern>().is_err(), "{bad}");
        }
    }
}
