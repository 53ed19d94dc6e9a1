//! A partner that clinch calls: where it is, how fast and how many at once, when to leave it alone, and what it does with
//! a call that it has seen before.

use crate::breaker::BreakerRule;
use crate::effect::{EffectClass, Idempotency, Receipt};
use crate::expr::{BadExpr, Expr, Template};
use crate::limit::Rate;
use crate::message::{Channel, MessageBody};
use crate::scope::Scope;
use std::sync::Arc;
use std::time::Duration;

/// The header that our key travels in, unless the partner knows it by another name.
pub const KEY_HEADER_DEFAULT: &str = "Idempotency-Key";
pub const CONCURRENCY_MAX: usize = 10_000;
/// Headers that the connection, or clinch itself, is in charge of.
pub const HEADERS_NOT_YOURS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// How long clinch remembers what was done for a target that knows no keys, unless it is told otherwise.
pub const WRAPPED_FOR_DEFAULT: Duration = Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub struct Integration {
    pub name: Arc<str>,
    /// Where it is, if it is a database. Nothing but secrets is computed in it.
    pub url: Option<Template>,
    /// What a url that begins with `/` is appended to.
    pub base_url: Option<Template>,
    /// How messages get to it.
    pub channel: Option<Channel>,
    /// The channels below `messaging:` that it is there for.
    pub carries: Vec<String>,
    /// What policies call the way over which it reaches people, where it is not told by how messages get to it.
    pub channel_name: Option<String>,
    pub auth: Option<Auth>,
    pub headers: Vec<(String, Template)>,
    pub key_header: String,
    pub timeout: Option<Duration>,
    /// How many calls at once.
    pub concurrency: Option<usize>,
    pub rate: Option<Rate>,
    /// A pause before each call, at least and at most.
    pub jitter: Option<Spread>,
    /// `None`: it is called however it fares.
    pub breaker: Option<BreakerRule>,
    /// The answers after which a call is tried again.
    pub retry_on: Statuses,
    pub promise: Promise,
    pub class: EffectClass,
    /// Whether it is told in which trace it is called.
    pub propagate_trace: bool,
}

/// What a partner does with a call that it has seen before.
#[derive(Clone, Debug, Default)]
pub struct Promise {
    pub idempotency: Idempotency,
    /// How long it honours our key; `None`: for ever, and where clinch remembers, `WRAPPED_FOR_DEFAULT`.
    pub honoured_for: Option<Duration>,
    /// How to ask whether it was done.
    pub lookup: Option<Box<Lookup>>,
    /// What clinch remembers it under; `None`: under the key of the event.
    pub wrap_key: Option<Template>,
}

/// What a file says of a promise, here or there.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub idempotency: Option<Idempotency>,
    pub honoured_for: Option<Duration>,
    pub lookup: Option<Box<Lookup>>,
    pub wrap_key: Option<Template>,
}

impl Promise {
    /// What is said, over what was promised before. Who says what to ask need not say that it can be asked.
    pub fn with(&self, said: Said) -> Promise {
        let by_lookup = said.lookup.is_some().then_some(Idempotency::Lookup);
        Promise {
            idempotency: said.idempotency.or(by_lookup).unwrap_or(self.idempotency),
            honoured_for: said.honoured_for.or(self.honoured_for),
            lookup: said.lookup.or_else(|| self.lookup.clone()),
            wrap_key: said.wrap_key.or_else(|| self.wrap_key.clone()),
        }
    }
}

#[derive(Clone, Debug)]
pub enum Auth {
    Bearer(Template),
    Basic { user: Template, password: Template },
}

/// At least so long, at most so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub least: Duration,
    pub most: Duration,
}

impl Spread {
    /// From the shortest to the longest.
    pub fn width(self) -> Duration {
        self.most.saturating_sub(self.least)
    }

    /// `dice` is uniform in [0, 1).
    pub fn pick(self, dice: f64) -> Duration {
        self.least + self.width().mul_f64(dice.clamp(0.0, 1.0))
    }
}

/// A question to the partner, and how its answer is read.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub method: String,
    pub url: Template,
    pub headers: Vec<(String, Template)>,
    /// True when the answer says that it was done.
    pub done: Expr,
}

impl Lookup {
    /// Whether it was done, by the answer to the question. `names` are those of the step that asks.
    pub fn is_done(&self, answer: &Receipt, is_whole: bool, mut names: Scope) -> Result<bool, BadExpr> {
        // What is missing from the first half of a list says nothing.
        if !is_whole && self.done.source().contains("body") {
            return Err(BadExpr("it broke off, or is too long".into()));
        }
        let text = || serde_json::Value::String(String::from_utf8_lossy(&answer.body).into_owned());
        let body = serde_json::from_slice(&answer.body).unwrap_or_else(|_| text());
        names.insert("answer", serde_json::json!({ "status": answer.status, "body": body }));
        self.done.holds(&names)
    }
}

/// Does such an answer say anything of what was asked? Who is sent elsewhere, not let in, told to come later, or meets a partner that
/// is not well has learned nothing: to take that for a no would do again what was done.
pub const fn is_answer(status: u16) -> bool {
    matches!(status, 200..=299 | 400..=499) && !matches!(status, 401 | 403 | 407 | 408 | 425 | 429)
}

/// Ranges of HTTP statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub Vec<(u16, u16)>);

impl Default for Statuses {
    fn default() -> Self {
        Statuses(vec![(408, 408), (425, 425), (429, 429), (500, 599)])
    }
}

impl Statuses {
    pub fn has(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl Integration {
    /// A partner of whom nothing is said but where it is: what a step calls by its address.
    pub fn unsaid(name: &str) -> Integration {
        Integration {
            name: name.into(),
            url: None,
            base_url: None,
            channel: None,
            carries: Vec::new(),
            channel_name: None,
            auth: None,
            headers: Vec::new(),
            key_header: KEY_HEADER_DEFAULT.to_string(),
            timeout: None,
            concurrency: None,
            rate: None,
            jitter: None,
            breaker: None,
            retry_on: Statuses::default(),
            promise: Promise::default(),
            class: EffectClass::default(),
            propagate_trace: false,
        }
    }

    /// What policies call the way over which it reaches people.
    pub fn channel_word(&self) -> Option<&str> {
        let usual = self.channel.as_ref().map(|channel| match channel {
            Channel::Mail(_) => "email",
            Channel::Slack => "slack",
            Channel::Request(_) => "webhook",
        });
        self.channel_name.as_deref().or(usual)
    }

    /// The templates that it is written with.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let auth: Vec<&Template> = match &self.auth {
            None => Vec::new(),
            Some(Auth::Bearer(token)) => vec![token],
            Some(Auth::Basic { user, password }) => vec![user, password],
        };
        let lookup = self
            .promise
            .lookup
            .iter()
            .flat_map(|lookup| std::iter::once(&lookup.url).chain(lookup.headers.iter().map(|(_, value)| value)));
        let channel: Vec<&Template> = match &self.channel {
            None | Some(Channel::Slack) => Vec::new(),
            Some(Channel::Mail(server)) => vec![&server.address],
            Some(Channel::Request(request)) => match &request.body {
                MessageBody::Form(fields) => fields.iter().map(|(_, value)| value).chain([&request.url]).collect(),
                MessageBody::Written | MessageBody::Tree(_) => vec![&request.url],
            },
        };
        self.url
            .iter()
            .chain(&self.base_url)
            .chain(channel)
            .chain(auth)
            .chain(self.headers.iter().map(|(_, value)| value))
            .chain(lookup)
            .chain(&self.promise.wrap_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn d2_a_lookup_reads_the_answer_beside_the_names_of_the_step() {
        let lookup = Lookup {
            method: "GET".into(),
            url: Template::parse("https://crm.example/leads?key={{ key }}").expect("a template"),
            headers: Vec::new(),
            done: Expr::parse("answer.status == 200 and answer.body.total > 0").expect("an expression"),
        };
        let check = |status, body: &'static str, done| {
            let answer = Receipt { status, body: Bytes::from_static(body.as_bytes()) };
            assert_eq!(lookup.is_done(&answer, true, Scope::new()), done, "{status} {body}");
        };
        check(200, r#"{"total": 1}"#, Ok(true));
        check(200, r#"{"total": 0}"#, Ok(false));
        check(404, r#"{"total": 9}"#, Ok(false));
        let answer = Receipt { status: 200, body: Bytes::from_static(b"oops") };
        assert!(lookup.is_done(&answer, true, Scope::new()).is_err());
    }

    #[test]
    fn d2_of_half_an_answer_only_the_status_counts() {
        let lookup = |done| Lookup {
            method: "GET".into(),
            url: Template::parse("https://crm.example/leads").expect("a template"),
            headers: Vec::new(),
            done: Expr::parse(done).expect("an expression"),
        };
        let half = Receipt { status: 200, body: Bytes::from_static(b"one two") };
        let by_body = lookup("'three' in answer.body");
        assert!(by_body.is_done(&half, false, Scope::new()).is_err());
        assert_eq!(by_body.is_done(&half, true, Scope::new()), Ok(false));
        assert_eq!(lookup("answer.status == 200").is_done(&half, false, Scope::new()), Ok(true));
    }

    #[test]
    fn d2_g1_who_is_not_let_in_is_told_nothing() {
        assert!([200, 204, 299, 400, 404, 409, 410, 422, 451].into_iter().all(is_answer));
        let nothing = [101, 300, 301, 302, 304, 307, 399, 401, 403, 407, 408, 425, 429, 500, 502, 503, 599, 999];
        assert!(nothing.into_iter().all(|status| !is_answer(status)));
    }

    #[test]
    fn c3_which_answers_are_tried_again_is_said_by_the_partner() {
        let usual = Statuses::default();
        assert!([408, 425, 429, 500, 599].iter().all(|status| usual.has(*status)));
        assert!([200, 301, 400, 404, 422].iter().all(|status| !usual.has(*status)));
        assert!(Statuses(vec![(409, 409)]).has(409));
    }

    #[test]
    fn e2_a_pause_lies_between_its_bounds() {
        let spread = Spread { least: Duration::from_millis(200), most: Duration::from_millis(600) };
        assert_eq!(spread.pick(0.0), spread.least);
        assert_eq!(spread.pick(0.5), Duration::from_millis(400));
        assert!(spread.pick(0.999) < spread.most);
    }
}
