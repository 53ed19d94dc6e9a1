//! A source: who sends, how that is proven, and what of a request becomes an event. Whatever the sender, its events are
//! brought to one contract: id, type, tenant, payload.

use crate::cloudevents::{self, BadCloudEvent, Batches, CloudEvent};
use crate::flow::{Method, OnConflict, OnDuplicateOfDead, TypePattern};
use crate::key::{self, KEY_BYTES_MAX, KeyPart, KeyRule, NoKey};
use crate::limit::Rate;
use crate::mask::is_revealing;
use crate::minimise::Minimise;
use crate::signature::presets::{self, BadBody, Preset};
use crate::signature::{Request, Scheme};
use crate::time::Timestamp;
use crate::trace::Incoming;
use serde_json::Value;
use std::borrow::Cow;
use std::time::Duration;

/// How long keys of a source are remembered, unless its provider tries for longer.
pub const TTL_DEFAULT: Duration = Duration::from_secs(7 * 86_400);
/// Events in one request; more is a mistake or an attack.
pub const EVENTS_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub struct Source {
    pub name: String,
    pub method: Method,
    /// Begins with `/`, matched whole.
    pub path: String,
    /// What its keys are scoped to, besides the tenant.
    pub scope: String,
    pub body_bytes_max: usize,
    /// What is known about the sender; for senders of no provider, what is usual.
    pub preset: &'static Preset,
    /// `None`: anybody may send.
    pub proof: Option<Proof>,
    pub keys: Keys,
    /// The status of a success.
    pub ack: u16,
    pub kind: KindRule,
    /// The sender's words for types, and ours.
    pub kinds: Vec<(String, String)>,
    /// Whose event it is. Without a rule all belong to one.
    pub tenant: Option<KeyPart>,
    /// What an event is found by, besides its key.
    pub find_by: Vec<KeyPart>,
    pub schema: Option<SchemaRule>,
    pub minimise: Minimise,
    pub cloudevents: CloudEvents,
    pub limits: LimitRule,
    pub content: Content,
    /// Whether bodies may come in gzip.
    pub takes_gzip: bool,
    /// `None`: what recognises an event is signed, or is no id.
    pub same_body: Option<SameBody>,
    /// What is done with the trace that a sender is in.
    pub trace: Incoming,
    /// It is not silent for longer than this.
    pub silence: Option<Duration>,
}

/// What a body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// What the sender's preset says: JSON, or what becomes JSON.
    #[default]
    Preset,
    /// Any bytes. Nothing looks into them.
    Raw,
}

/// What is done about the same body under another id, where the id is not signed: whoever captured a delivery can write
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameBody {
    /// It is an event, and counted.
    Count,
    /// It is a duplicate of the first.
    Drop,
}

/// How a sender is recognised.
#[derive(Clone, Debug)]
pub enum Proof {
    Signature(Box<SignatureRule>),
    /// By a token that was made here (`clinch token new`), which says who it is.
    Sender,
}

#[derive(Clone, Debug)]
pub struct SignatureRule {
    pub scheme: Scheme,
    pub secrets: Vec<SecretRule>,
    /// The address that the sender calls, where it signs it.
    pub public_url: Option<String>,
    /// Instead of the scheme's own.
    pub tolerance: Option<Duration>,
    /// The variable with the word that Meta asks with.
    pub verify_token: Option<String>,
}

/// A secret, by the variable that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRule {
    /// What operators see of it.
    pub id: String,
    pub variable: String,
    pub not_before: Option<Timestamp>,
    pub not_after: Option<Timestamp>,
}

/// How an event is recognised that was seen before.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Instead of the preset's.
    pub rule: Option<KeyRule>,
    /// Whether an event without a key is refused; if not, it is accepted and not deduplicated.
    pub required: bool,
    /// The name after `kv:`.
    pub store: String,
    pub ttl: Duration,
    pub on_conflict: OnConflict,
    pub on_duplicate_of_dead: OnDuplicateOfDead,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindRule {
    /// Where the preset looks, in the preset's words.
    Preset,
    Fixed(String),
    From(KeyPart),
}

#[derive(Clone, Debug)]
pub struct SchemaRule {
    /// The first whose pattern fits an event's type; the names of files without `.json`.
    pub by_kind: Vec<(TypePattern, String)>,
    pub on_mismatch: OnMismatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMismatch {
    /// 422: the caller should know.
    Reject,
    /// Accepted and buried: a provider would only send it again.
    DeadLetter,
}

impl SchemaRule {
    /// The schema for this type of event, if there is one.
    pub fn name_for(&self, kind: &str) -> Option<&str> {
        self.by_kind.iter().find(|(pattern, _)| pattern.matches(kind)).map(|(_, name)| name.as_str())
    }
}

/// `order.v2` is version 2; a name without a number is the first.
pub fn schema_version(name: &str) -> u32 {
    let number = name.rsplit_once(".v").and_then(|(_, number)| number.parse().ok());
    number.unwrap_or(1)
}

/// What a source does about CloudEvents. A provider's requests are never read as such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudEvents {
    pub batches: bool,
    /// Who is told, when it asks with OPTIONS, that it may deliver.
    pub origins: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitRule {
    /// For each address, before anything is verified.
    pub address: Option<Rate>,
    /// For each sender, counting only what was verified.
    pub sender: Option<Rate>,
    /// For the source as a whole, counting only what was verified.
    pub source: Option<Rate>,
    pub mode: LimitMode,
}

/// What becomes of events beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// 429.
    #[default]
    Reject,
    /// Accepted, to be run when the limit allows: some senders never come again.
    Defer,
}

/// An event as it came, brought to the contract. Nothing was dropped from it yet.
#[derive(Clone, Debug)]
pub struct Arrived<'a> {
    /// What recognises it; `None` when it is never a duplicate of anything.
    pub key: Option<String>,
    /// The sender's id for it: mostly the key.
    pub id: String,
    pub kind: String,
    pub tenant: Option<String>,
    /// What an envelope said that is not in the request's headers.
    pub headers: Vec<(&'static str, String)>,
    /// JSON, or empty.
    pub body: Cow<'a, [u8]>,
    pub value: Value,
}

/// Why a request that was proven holds no event that could be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error(transparent)]
    Body(#[from] BadBody),
    #[error(transparent)]
    CloudEvent(#[from] BadCloudEvent),
    #[error(transparent)]
    Key(#[from] NoKey),
    #[error("the request has {0} events; the most is {EVENTS_MAX}")]
    TooMany(usize),
}

/// What key rules may look at: the request's headers, and one of its events.
pub struct Look<'a> {
    pub headers: &'a [(&'a str, &'a [u8])],
    pub value: &'a Value,
}

impl key::Delivery for Look<'_> {
    fn header(&self, name: &str) -> Vec<Option<&str>> {
        let visible = |text: &&str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte) || byte == b'\t');
        let values = self.headers.iter().filter(|(there, _)| *there == name).map(|(_, value)| *value);
        values.map(|value| std::str::from_utf8(value).ok().filter(visible)).collect()
    }

    fn body(&self, pointer: &str) -> Option<Value> {
        self.value.pointer(pointer).cloned()
    }
}

impl Source {
    pub fn signature(&self) -> Option<&SignatureRule> {
        match &self.proof {
            Some(Proof::Signature(rule)) => Some(rule),
            Some(Proof::Sender) | None => None,
        }
    }

    /// Whether some event of it may be of this type. Where types come from the sender, all may be that begin as its do.
    pub fn may_send(&self, pattern: &TypePattern) -> bool {
        let renamed = self.kinds.iter().any(|(_, ours)| pattern.matches(ours));
        match &self.kind {
            KindRule::Fixed(kind) => pattern.matches(kind),
            KindRule::Preset | KindRule::From(_) if self.preset.family.is_empty() => true,
            KindRule::Preset | KindRule::From(_) => renamed || pattern.may_match_below(self.preset.family),
        }
    }

    /// Every variable that must be set.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let rule = self.signature().into_iter();
        rule.flat_map(|proof| proof.secrets.iter().map(|secret| &*secret.variable).chain(proof.verify_token.as_deref()))
    }

    /// Whether the key may be written down as it is: not if it was read from what is dropped or hashed.
    pub fn shows_key(&self) -> bool {
        match &self.keys.rule {
            Some(rule) => self.shows_all(rule),
            None => self.preset.id_fields().all(|pointer| self.minimise.shows(pointer)),
        }
    }

    pub fn shows_all(&self, rule: &KeyRule) -> bool {
        rule.parts().iter().all(|part| self.shows(part))
    }

    pub fn shows(&self, part: &KeyPart) -> bool {
        match part {
            KeyPart::Header(_) => true,
            KeyPart::Body(pointer) => self.minimise.shows(pointer),
            // It may have been made of anything.
            KeyPart::Computed(_) => !self.minimise.changes_bodies(),
        }
    }

    /// The events in a request that was proven.
    pub fn events<'a>(&self, request: &Request<'a>) -> Result<Vec<Arrived<'a>>, Unfit> {
        let batches = if self.cloudevents.batches { Batches::Accepted } else { Batches::Refused };
        if self.content == Content::Raw {
            return Ok(vec![self.arrived(request, Raw::of_preset(self.preset.bytes(request)))?]);
        }
        let cloud = if self.preset.family.is_empty() { cloudevents::read(request, batches)? } else { None };
        let events: Vec<Raw<'a>> = match cloud {
            Some(events) => events.into_iter().map(Raw::of_cloud).collect::<Result<_, _>>()?,
            None => self.preset.events(request)?.into_iter().map(Raw::of_preset).collect(),
        };
        match events.len() {
            0..=EVENTS_MAX => events.into_iter().map(|event| self.arrived(request, event)).collect(),
            count => Err(Unfit::TooMany(count)),
        }
    }

    fn arrived<'a>(&self, request: &Request<'a>, event: Raw<'a>) -> Result<Arrived<'a>, Unfit> {
        let look = Look { headers: request.headers, value: &event.value };
        let key = match &self.keys.rule {
            _ if self.same_body == Some(SameBody::Drop) => Some(presets::body_hash(&event.body)),
            None => Some(event.key.ok_or_else(|| self.preset.no_id())?),
            Some(rule) => match key::find(rule, &look) {
                Ok(key) => Some(key),
                Err(missing) if missing.is_missing() && !self.keys.required => None,
                Err(refused) => return Err(refused.into()),
            },
        };
        let tenant = self.tenant.as_ref().map(|part| key::find(&KeyRule::One(part.clone()), &look)).transpose()?;
        let kind = self.kind(&look, &event.said, event.kind);
        let id = match &self.keys.rule {
            None => event.id,
            Some(_) => key.clone().unwrap_or_default(),
        };
        Ok(Arrived { key, id, kind, tenant, headers: event.headers, body: event.body, value: event.value })
    }

    fn kind(&self, look: &Look<'_>, said: &str, usual: String) -> String {
        let (said, usual): (Cow<'_, str>, String) = match &self.kind {
            KindRule::Fixed(kind) => return kind.clone(),
            KindRule::Preset => (said.into(), usual),
            KindRule::From(part) => {
                let said = key::find(&KeyRule::One(part.clone()), look).unwrap_or_default();
                let usual = self.preset.kind_of(&said);
                (said.into(), usual)
            }
        };
        match self.kinds.iter().find(|(theirs, _)| **theirs == *said) {
            Some((_, ours)) => ours.clone(),
            None if said.is_empty() && self.preset.family.is_empty() => self.name.clone(),
            None => usual,
        }
    }
}

/// An event as a preset or a CloudEvent says it.
struct Raw<'a> {
    key: Option<String>,
    id: String,
    said: String,
    kind: String,
    headers: Vec<(&'static str, String)>,
    body: Cow<'a, [u8]>,
    value: Value,
}

impl<'a> Raw<'a> {
    fn of_preset(event: presets::Event<'a>) -> Raw<'a> {
        let presets::Event { id, said, kind, body, value } = event;
        Raw { id: id.clone().unwrap_or_default(), key: id, said, kind, headers: Vec::new(), body, value }
    }

    fn of_cloud(event: CloudEvent<'a>) -> Result<Raw<'a>, Unfit> {
        if event.kind.len() > KEY_BYTES_MAX {
            return Err(BadCloudEvent::Unreadable("type".into()).into());
        }
        let value = match event.data.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&event.data).map_err(|_| BadBody::NotJson)?,
        };
        let mut headers = vec![("ce-id", event.id.clone()), ("ce-source", event.source.clone())];
        headers.push(("ce-type", event.kind.clone()));
        headers.extend(event.subject.clone().map(|subject| ("ce-subject", subject)));
        headers.extend(event.time.map(|time| ("ce-time", time.to_string())));
        headers.extend(event.dataschema.clone().map(|schema| ("ce-dataschema", schema)));
        let key = Some(presets::identity(&[event.key()]));
        let id = presets::identity(&[event.id]);
        let kind = if is_revealing(&event.kind) { "event".into() } else { event.kind.clone() };
        Ok(Raw { key, id, said: event.kind, kind, headers, body: event.data, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(preset: &str) -> Source {
        Source {
            name: "shop".into(),
            method: Method::Post,
            path: "/in/shop".into(),
            scope: "source shop".into(),
            body_bytes_max: 1 << 20,
            preset: presets::find(preset).expect("a preset"),
            proof: None,
            keys: Keys {
                rule: None,
                required: true,
                store: "shop".into(),
                ttl: TTL_DEFAULT,
                on_conflict: OnConflict::KeepFirst,
                on_duplicate_of_dead: OnDuplicateOfDead::Keep,
            },
            ack: 202,
            kind: KindRule::Preset,
            kinds: Vec::new(),
            tenant: None,
            find_by: Vec::new(),
            schema: None,
            minimise: Minimise::default(),
            cloudevents: CloudEvents::default(),
            limits: LimitRule::default(),
            content: Content::Preset,
            takes_gzip: false,
            same_body: None,
            trace: Incoming::Link,
            silence: None,
        }
    }

    fn events(source: &Source, headers: &[(&str, &str)], body: &str) -> Result<Vec<(String, String)>, Unfit> {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let request = Request { method: "POST", url: "", headers: &headers, body: body.as_bytes() };
        Ok(source.events(&request)?.into_iter().map(|event| (event.id, event.kind)).collect())
    }

    fn one(source: &Source, headers: &[(&str, &str)], body: &str) -> (String, String) {
        events(source, headers, body).expect("events").remove(0)
    }

    fn part(text: &str) -> KeyPart {
        text.parse().expect("a part")
    }

    const CART: [(&str, &str); 2] = [("x-shopify-webhook-id", "w-1"), ("x-shopify-topic", "carts/update")];

    #[test]
    fn a6_a_source_has_the_last_word_on_types() {
        let kind = |source: &Source, body: &str| one(source, &CART, body).1;
        let mut shop = source("shopify");
        assert_eq!(kind(&shop, "{}"), "shopify.cart.updated");
        shop.kinds = vec![("carts/update".into(), "shop.basket".into())];
        assert_eq!(kind(&shop, "{}"), "shop.basket");
        shop.kind = KindRule::From(part("body:/what"));
        assert_eq!(kind(&shop, r#"{"what":"Orders/New"}"#), "shopify.orders.new");
        assert_eq!(kind(&shop, r#"{"what":"carts/update"}"#), "shop.basket");
        shop.kind = KindRule::Fixed("it.happened".into());
        assert_eq!(kind(&shop, "{}"), "it.happened");
        assert_eq!(kind(&source("hmac"), "{}"), "shop", "who says nothing is called after the source");
        assert_eq!(kind(&source("hmac"), r#"{"type":"user.created"}"#), "user.created");
    }

    #[test]
    fn a6_a_source_may_choose_its_own_key_and_tenant() {
        let mut shop = source("shopify");
        shop.keys.rule = Some(KeyRule::One(part("body:/id")));
        shop.tenant = Some(part("header:X-Shopify-Shop-Domain"));
        assert_eq!(one(&shop, &[("x-shopify-shop-domain", "a.example")], r#"{"id":7}"#).0, "7");
        assert!(matches!(events(&shop, &CART, r#"{"id":7}"#), Err(Unfit::Key(NoKey::Missing(_)))), "no tenant");
        shop.tenant = None;
        assert!(matches!(events(&shop, &CART, "{}"), Err(Unfit::Key(NoKey::Missing(_)))));
        shop.keys.required = false;
        assert_eq!(one(&shop, &CART, "{}").0, "");
    }

    #[test]
    fn a6_a_cloudevent_is_known_by_source_and_id_and_providers_send_none() {
        let envelope = r#"{"specversion":"1.0","id":"1","source":"/a","type":"x.made","data":{"n":1}}"#;
        let structured = [("content-type", "application/cloudevents+json")];
        let any = source("hmac");
        assert_eq!(one(&any, &structured, envelope), ("1".into(), "x.made".into()));
        let headers: Vec<(&str, &[u8])> = vec![("content-type", b"application/cloudevents+json")];
        let request = Request { method: "POST", url: "", headers: &headers, body: envelope.as_bytes() };
        let event = any.events(&request).expect("an event").remove(0);
        assert_eq!((event.key.as_deref(), &*event.body), (Some("/a\u{0}1"), &br#"{"n":1}"#[..]));
        let batch = [("content-type", "application/cloudevents-batch+json")];
        let two = format!("[{envelope},{envelope}]");
        assert_eq!(events(&any, &batch, &two), Err(Unfit::CloudEvent(BadCloudEvent::BatchUnasked)));
        let asked = Source { cloudevents: CloudEvents { batches: true, origins: vec![] }, ..source("hmac") };
        assert_eq!(events(&asked, &batch, &two).map(|events| events.len()), Ok(2));
        assert_eq!(one(&source("stripe"), &structured, r#"{"id":"evt_1","type":"a.b"}"#).1, "stripe.a.b");
    }

    #[test]
    fn t031_raw_bytes_are_one_event_whatever_they_are() {
        let raw = Source { content: Content::Raw, ..source("hmac") };
        let headers: Vec<(&str, &[u8])> = vec![("content-type", b"application/cloudevents+json")];
        let request = Request { method: "POST", url: "", headers: &headers, body: b"\xff\xfe{" };
        let event = raw.events(&request).expect("an event").remove(0);
        assert_eq!((&*event.body, &event.value, event.kind.as_str()), (&b"\xff\xfe{"[..], &Value::Null, "shop"));
        assert_eq!(event.key, Some(presets::body_hash(b"\xff\xfe{")));
        let headers: Vec<(&str, &[u8])> = vec![("idempotency-key", b"k-1")];
        let event = raw.events(&Request { headers: &headers, ..request }).expect("an event").remove(0);
        assert_eq!(event.key.as_deref(), Some("k-1"));
    }

    #[test]
    fn t056_where_the_same_body_is_dropped_it_is_known_by_itself() {
        let hub = source("github");
        let guarded = Source { same_body: Some(SameBody::Drop), ..source("github") };
        let key = |source: &Source, delivery: &str, body: &[u8]| {
            let headers: Vec<(&str, &[u8])> = vec![("x-github-delivery", delivery.as_bytes())];
            let request = Request { method: "POST", url: "", headers: &headers, body };
            let event = source.events(&request).expect("an event").remove(0);
            assert_eq!(event.id, delivery, "what the sender calls it is still told");
            event.key
        };
        assert_ne!(key(&hub, "d-1", b"{}"), key(&hub, "d-2", b"{}"));
        assert_eq!(key(&guarded, "d-1", b"{}"), key(&guarded, "d-2", b"{}"));
        assert_ne!(key(&guarded, "d-1", b"{}"), key(&guarded, "d-1", b"[]"));
    }

    #[test]
    fn p10_a_request_has_a_bounded_number_of_events() {
        let item = r#"{"sg_event_id":"a","event":"open"}"#;
        let body = format!("[{}]", vec![item; EVENTS_MAX + 1].join(","));
        assert_eq!(events(&source("sendgrid"), &[], &body), Err(Unfit::TooMany(EVENTS_MAX + 1)));
    }

    #[test]
    fn a7_the_version_of_a_schema_is_in_its_name() {
        for (name, version) in [("order", 1), ("order.v2", 2), ("shop.order.v12", 12), ("order.vx", 1)] {
            assert_eq!(schema_version(name), version, "{name}");
        }
    }

    #[test]
    fn a5_a_key_out_of_a_hidden_field_is_hidden_too() {
        let hidden = |preset: &str, drop: &str| {
            let drop = [drop.to_string()];
            let wanted = crate::minimise::Wanted { drop: &drop, ..Default::default() };
            !Source { minimise: Minimise::new(wanted).expect("rules"), ..source(preset) }.shows_key()
        };
        assert!(hidden("stripe", "/id") && !hidden("stripe", "/data") && !hidden("shopify", "/id"));
        let mut stripe = source("stripe");
        stripe.keys.rule = Some(KeyRule::One(part("body:/email")));
        stripe.minimise =
            Minimise::new(crate::minimise::Wanted { keep: Some(&["/id".to_string()]), ..Default::default() })
                .expect("rules");
        assert!(!stripe.shows_key());
    }
}
