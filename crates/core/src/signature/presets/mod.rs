//! Providers, one per file: how they sign, what recognises an event, what they must be answered, what they ask.

mod calendly;
mod generic;
mod github;
mod google_ads;
mod hubspot;
mod intercom;
mod klaviyo;
mod linear;
mod mandrill;
mod meta;
mod paddle;
mod rfc9421;
mod segment;
mod sendgrid;
mod shopify;
mod slack;
mod square;
mod standardwebhooks;
mod stripe;
mod tiktok;
mod twilio;
mod typeform;
#[cfg(test)]
mod vectors;
mod woocommerce;
mod zendesk;
mod zoom;

use super::handshake::Handshake;
use super::{Request, Scheme};
use crate::config::nearest::nearest;
use crate::form;
use crate::key::KEY_BYTES_MAX;
use crate::mask::is_revealing;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// In the order of their names.
pub static ALL: [&Preset; 27] = [
    &calendly::PRESET,
    &github::PRESET,
    &google_ads::PRESET,
    &generic::PRESET,
    &hubspot::V1,
    &hubspot::V2,
    &hubspot::V3,
    &intercom::PRESET,
    &klaviyo::PRESET,
    &linear::PRESET,
    &mandrill::PRESET,
    &meta::PRESET,
    &paddle::PRESET,
    &rfc9421::PRESET,
    &segment::PRESET,
    &sendgrid::PRESET,
    &shopify::PRESET,
    &slack::PRESET,
    &square::PRESET,
    &standardwebhooks::PRESET,
    &stripe::PRESET,
    &tiktok::PRESET,
    &twilio::PRESET,
    &typeform::PRESET,
    &woocommerce::PRESET,
    &zendesk::PRESET,
    &zoom::PRESET,
];

pub struct Preset {
    /// What a source writes to choose it.
    pub name: &'static str,
    /// What the provider calls itself.
    pub title: &'static str,
    /// What its types begin with; empty where the preset is no provider's.
    pub family: &'static str,
    pub scheme: fn() -> Scheme,
    /// Where an event's id is: the first of these whose places are all filled.
    pub id: &'static [Places],
    /// Whether that id is signed. If not, a captured body could come back under a fresh id.
    pub id_is_signed: bool,
    /// Where an event's type is, likewise.
    pub kind: &'static [Places],
    /// The provider's words for types, and ours; an empty word stands for none. What is not here keeps its words, with
    /// dots between them.
    pub kinds: &'static [(&'static str, &'static str)],
    pub content: Content,
    pub batch: Batch,
    /// What the provider takes as received.
    pub ack: u16,
    pub handshake: Option<Handshake>,
    pub retries: Retries,
    /// Secrets that the provider puts into the body: dropped before anything is stored.
    pub drop: &'static [&'static str],
    /// The provider's own words about it.
    pub docs: &'static str,
}

/// Places whose values together are the answer.
pub type Places = &'static [Place];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In lower case.
    Header(&'static str),
    /// A pointer into the event, which in a batch is the item.
    Event(&'static str),
    /// The SHA-256 of the event's bytes.
    Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Json,
    /// A form, or JSON if Content-Type says so.
    Form,
    /// JSON in one field of a form.
    FormField(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    One,
    /// A list at this pointer (empty: the body itself), an event each. A body without that list is one event.
    List(&'static str),
    /// `entry[].changes[]` and `entry[].messaging[]`.
    Meta,
}

/// How long the provider tries again: a key must be remembered for longer than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retries {
    For(Duration),
    /// What is refused is lost.
    Never,
    Unknown,
}

const fn minutes(minutes: u64) -> Retries {
    Retries::For(Duration::from_secs(minutes * 60))
}

const fn hours(hours: u64) -> Retries {
    minutes(hours * 60)
}

/// The preset of this name, or the one that was probably meant.
pub fn find(name: &str) -> Result<&'static Preset, NoPreset> {
    let known = ALL.iter().find(|preset| preset.name == name);
    known.copied().ok_or_else(|| NoPreset { written: name.into(), meant: nearest(name, ALL.map(|preset| preset.name)) })
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no preset `{written}`{}", meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?")))]
pub struct NoPreset {
    pub written: String,
    pub meant: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    #[error("the body is not JSON")]
    NotJson,
    #[error("the body cannot be read as a form: {0}")]
    NotForm(#[from] form::BadForm),
    #[error("the form has no field `{0}`, or more than one")]
    NoField(&'static str),
    #[error("the event has no id at {0}")]
    NoId(String),
}

/// One event out of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The provider's id for it, or the digest of several values; `None` when it has none where the provider puts it.
    pub id: Option<String>,
    /// The provider's own word for its type; empty when it has none.
    pub said: String,
    /// `shopify.order.created`
    pub kind: String,
    /// The bytes as they came, in a batch the item's own; a form as JSON.
    pub body: Cow<'a, [u8]>,
    /// What the bytes say.
    pub value: Value,
}

impl fmt::Debug for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Preset({})", self.name)
    }
}

impl Preset {
    /// What is said of an event without an id.
    pub fn no_id(&self) -> BadBody {
        BadBody::NoId(told(self.id))
    }

    /// How long a key must be remembered at the least.
    pub fn retry_window(&self) -> Option<Duration> {
        match self.retries {
            Retries::For(window) => Some(window),
            Retries::Never | Retries::Unknown => None,
        }
    }

    /// The fields of an event whose values are its id, or whose hash is.
    pub fn id_fields(&self) -> impl Iterator<Item = &'static str> {
        self.id.iter().flat_map(|places| places.iter()).filter_map(|place| match place {
            Place::Event(pointer) => Some(*pointer),
            Place::Header(_) | Place::Digest => None,
        })
    }

    /// The events in a request, each with its own id and type.
    pub fn events<'a>(&self, request: &Request<'a>) -> Result<Vec<Event<'a>>, BadBody> {
        let body = self.content.read(request)?;
        let items = match body {
            Cow::Borrowed(body) => self.batch.items(body)?,
            Cow::Owned(body) => self.batch.items(&body)?.into_iter().map(|item| item.into_owned().into()).collect(),
        };
        items.into_iter().map(|item| self.event(request, item)).collect()
    }

    /// The body as one event that nothing looks into.
    pub fn bytes<'a>(&self, request: &Request<'a>) -> Event<'a> {
        self.read(request, request.body.into(), Value::Null)
    }

    fn event<'a>(&self, request: &Request<'_>, body: Cow<'a, [u8]>) -> Result<Event<'a>, BadBody> {
        let value: Value = serde_json::from_slice(&body).map_err(|_| BadBody::NotJson)?;
        Ok(self.read(request, body, value))
    }

    fn read<'a>(&self, request: &Request<'_>, body: Cow<'a, [u8]>, value: Value) -> Event<'a> {
        let look = |place: &Place| place.look(request, &body, &value);
        let first =
            |rule: &[Places]| rule.iter().find_map(|places| places.iter().map(look).collect::<Option<Vec<_>>>());
        let id = first(self.id);
        let said = first(self.kind).unwrap_or_default().join(".");
        Event { id: id.map(|values| identity(&values)), kind: self.kind_of(&said), said, body, value }
    }

    /// A type in our words, for one in the provider's.
    pub fn kind_of(&self, said: &str) -> String {
        let ours = match self.kinds.iter().find(|(theirs, _)| *theirs == said) {
            Some((_, ours)) => (*ours).into(),
            // Types are shown and searched for as they are: what looks like somebody's address is none.
            None if is_revealing(said) => "event".into(),
            None => Some(dotted(said)).filter(|dotted| !dotted.is_empty()).unwrap_or_else(|| "event".into()),
        };
        match self.family {
            "" => ours,
            family if ours.split('.').next() == Some(family) => ours,
            family => format!("{family}.{ours}"),
        }
    }
}

/// What recognises a body that has no id.
pub(crate) fn body_hash(body: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, body).as_ref())
}

/// One value is the id itself; several are hashed, as is what would be too long for a key.
pub(crate) fn identity(values: &[String]) -> String {
    match values {
        [one] if one.len() <= KEY_BYTES_MAX => one.clone(),
        _ => {
            // Length first, so that ("ab", "c") and ("a", "bc") differ.
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| (value.len() as u64).to_be_bytes().into_iter().chain(value.bytes()))
                .collect();
            HEXLOWER.encode(digest(&SHA256, &bytes).as_ref())
        }
    }
}

impl Place {
    fn look(&self, request: &Request<'_>, body: &[u8], value: &Value) -> Option<String> {
        let text = match self {
            Place::Header(name) => request.header(name).ok()?.trim().to_string(),
            Place::Digest => body_hash(body),
            Place::Event(pointer) => match value.pointer(pointer)? {
                Value::String(text) => text.clone(),
                scalar @ (Value::Number(_) | Value::Bool(_)) => scalar.to_string(),
                _ => return None,
            },
        };
        Some(text).filter(|text| !text.is_empty())
    }

    fn told(&self) -> String {
        match self {
            Place::Header(name) => format!("header:{name}"),
            Place::Event(pointer) => format!("body:{pointer}"),
            Place::Digest => "sha256(body)".into(),
        }
    }
}

/// Places for people: `header:a`, `body:/b + body:/c or sha256(body)`.
pub fn told(rule: &[Places]) -> String {
    let one = |places: &Places| places.iter().map(Place::told).collect::<Vec<_>>().join(" + ");
    rule.iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// A provider's word in the shape of ours: `orders/create` is `orders.create`.
fn dotted(said: &str) -> String {
    const CHARS_MAX: usize = 100;
    let shaped = said.chars().take(CHARS_MAX).map(|c| match c.to_ascii_lowercase() {
        '/' | ':' | ' ' | '.' => '.',
        plain @ ('a'..='z' | '0'..='9' | '_' | '-') => plain,
        _ => '_',
    });
    shaped.collect::<String>().split('.').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(".")
}

impl Content {
    /// The body as JSON bytes.
    fn read<'a>(self, request: &Request<'a>) -> Result<Cow<'a, [u8]>, BadBody> {
        match self {
            Content::Json => Ok(request.body.into()),
            Content::Form if request.media_type().ends_with("json") => Ok(request.body.into()),
            Content::Form => Ok(form::to_json(form::fields(request.body)?).to_string().into_bytes().into()),
            Content::FormField(name) => {
                let fields = form::fields(request.body)?;
                let mut found = fields.into_iter().filter(|(field, _)| field == name);
                match (found.next(), found.next()) {
                    (Some((_, value)), None) => Ok(value.into_bytes().into()),
                    _ => Err(BadBody::NoField(name)),
                }
            }
        }
    }
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

impl Batch {
    /// The bytes of each event, not parsed and written again: a number stays as the provider wrote it.
    fn items(self, body: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, BadBody> {
        let whole = || vec![Cow::Borrowed(body)];
        Ok(match self {
            Batch::One => whole(),
            Batch::List(pointer) => list_at(body, pointer).map_or_else(whole, |items| items.map(bytes).collect()),
            Batch::Meta => meta::items(body).unwrap_or_else(whole),
        })
    }
}

fn bytes(raw: &RawValue) -> Cow<'_, [u8]> {
    raw.get().as_bytes().into()
}

/// The list that stands in the body itself, or under one of its names.
fn list_at<'a>(body: &'a [u8], pointer: &str) -> Option<impl Iterator<Item = &'a RawValue> + use<'a>> {
    let list: Vec<&RawValue> = match pointer.strip_prefix('/') {
        None => serde_json::from_slice(body).ok()?,
        Some(name) => {
            let members: Members<'a> = serde_json::from_slice(body).ok()?;
            serde_json::from_str(members.get(name)?.get()).ok()?
        }
    };
    Some(list.into_iter())
}
