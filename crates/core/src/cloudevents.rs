//! CloudEvents 1.0 over HTTP: binary (attributes in headers), structured (one JSON envelope) and batched.

use crate::form::percent_decoded;
use crate::signature::{Refusal, Request};
use crate::time::Timestamp;
use data_encoding::BASE64;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Events in one batch; more is a mistake or an attack.
const BATCH_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvent<'a> {
    pub id: String,
    pub source: String,
    pub kind: String,
    pub subject: Option<String>,
    pub time: Option<Timestamp>,
    pub dataschema: Option<String>,
    pub datacontenttype: Option<String>,
    /// As it came; out of an envelope, the bytes of its JSON.
    pub data: Cow<'a, [u8]>,
}

impl CloudEvent<'_> {
    /// What recognises it: an id is unique within its source only.
    pub fn key(&self) -> String {
        format!("{}\0{}", self.source, self.id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    Refused,
    Accepted,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCloudEvent {
    #[error("this is not a CloudEvents format that is read here; send application/cloudevents+json")]
    Format(String),
    #[error("this source takes one event at a time; send application/cloudevents+json")]
    BatchUnasked,
    #[error("the batch has more than {BATCH_MAX} events")]
    BatchTooLong,
    #[error("the attribute `{0}` is missing or empty")]
    Missing(&'static str),
    #[error("the attribute `{0}` was sent more than once or is not readable text")]
    Unreadable(String),
    #[error("specversion is not 1.0, the only version that is read here")]
    Version,
    #[error("`ce-datacontenttype` must not be sent; Content-Type says it")]
    DataContentType,
    #[error("`time` is not an RFC 3339 moment")]
    Time,
    #[error("the envelope is not a JSON object with text attributes")]
    Envelope,
    #[error("the envelope has both `data` and `data_base64`, or the latter is not base64")]
    Data,
}

impl BadCloudEvent {
    pub fn status(&self) -> u16 {
        match self {
            BadCloudEvent::Format(_) | BadCloudEvent::BatchUnasked => 415,
            BadCloudEvent::BatchTooLong => 413,
            _ => 400,
        }
    }
}

const REQUIRED: [&str; 4] = ["ce-id", "ce-source", "ce-type", "ce-specversion"];

/// The events in a request; `None` when it is not a CloudEvent at all.
pub fn read<'a>(request: &Request<'a>, batches: Batches) -> Result<Option<Vec<CloudEvent<'a>>>, BadCloudEvent> {
    let media_type = request.media_type();
    match media_type.as_str() {
        "application/cloudevents+json" => Ok(Some(vec![structured(request.body)?])),
        "application/cloudevents-batch+json" if batches == Batches::Accepted => batched(request.body).map(Some),
        other if other.starts_with("application/cloudevents-batch") => Err(BadCloudEvent::BatchUnasked),
        other if other.starts_with("application/cloudevents") => Err(BadCloudEvent::Format(media_type)),
        _ if REQUIRED.iter().all(|name| request.has(name)) => Ok(Some(vec![binary(request)?])),
        _ => Ok(None),
    }
}

fn binary<'a>(request: &Request<'a>) -> Result<CloudEvent<'a>, BadCloudEvent> {
    if request.has("ce-datacontenttype") {
        return Err(BadCloudEvent::DataContentType);
    }
    let optional = |name: &str| match request.header(name) {
        Ok(value) => header_value(value).map(Some).ok_or_else(|| BadCloudEvent::Unreadable(name.into())),
        Err(Refusal::HeaderMissing(_)) => Ok(None),
        Err(_) => Err(BadCloudEvent::Unreadable(name.into())),
    };
    let attributes = Attributes {
        specversion: optional("ce-specversion")?,
        id: optional("ce-id")?,
        source: optional("ce-source")?,
        kind: optional("ce-type")?,
        subject: optional("ce-subject")?,
        time: optional("ce-time")?,
        dataschema: optional("ce-dataschema")?,
        datacontenttype: request.header("content-type").ok().map(String::from),
    };
    attributes.event(request.body.into())
}

/// Quotes off, escapes undone once; `None` when what remains is not text.
fn header_value(value: &str) -> Option<String> {
    let value = value.trim();
    let plain: Cow<'_, str> = match value.strip_prefix('"').and_then(|value| value.strip_suffix('"')) {
        None => value.into(),
        Some(quoted) => {
            let mut text = String::with_capacity(quoted.len());
            let mut chars = quoted.chars();
            while let Some(next) = chars.next() {
                text.push(if next == '\\' { chars.next()? } else { next });
            }
            text.into()
        }
    };
    String::from_utf8(percent_decoded(plain.as_bytes())?).ok()
}

fn structured(body: &[u8]) -> Result<CloudEvent<'_>, BadCloudEvent> {
    let envelope: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(|_| BadCloudEvent::Envelope)?;
    enveloped(&envelope)
}

fn batched(body: &[u8]) -> Result<Vec<CloudEvent<'_>>, BadCloudEvent> {
    let envelopes: Vec<BTreeMap<String, &RawValue>> =
        serde_json::from_slice(body).map_err(|_| BadCloudEvent::Envelope)?;
    match envelopes.len() {
        0..=BATCH_MAX => envelopes.iter().map(enveloped).collect(),
        _ => Err(BadCloudEvent::BatchTooLong),
    }
}

fn enveloped<'a>(envelope: &BTreeMap<String, &'a RawValue>) -> Result<CloudEvent<'a>, BadCloudEvent> {
    let text = |name: &str| match envelope.get(name).map(|raw| serde_json::from_str::<Value>(raw.get())) {
        None | Some(Ok(Value::Null)) => Ok(None),
        Some(Ok(Value::String(text))) => Ok(Some(text)),
        _ => Err(BadCloudEvent::Unreadable(name.into())),
    };
    let data = match (envelope.get("data"), text("data_base64")?) {
        (Some(_), Some(_)) => return Err(BadCloudEvent::Data),
        (Some(json), None) => Cow::Borrowed(json.get().as_bytes()),
        (None, Some(base64)) => BASE64.decode(base64.as_bytes()).map_err(|_| BadCloudEvent::Data)?.into(),
        (None, None) => Cow::Borrowed(&[][..]),
    };
    let attributes = Attributes {
        specversion: text("specversion")?,
        id: text("id")?,
        source: text("source")?,
        kind: text("type")?,
        subject: text("subject")?,
        time: text("time")?,
        dataschema: text("dataschema")?,
        datacontenttype: text("datacontenttype")?,
    };
    attributes.event(data)
}

/// What both forms say, before it is checked.
struct Attributes {
    specversion: Option<String>,
    id: Option<String>,
    source: Option<String>,
    kind: Option<String>,
    subject: Option<String>,
    time: Option<String>,
    dataschema: Option<String>,
    datacontenttype: Option<String>,
}

impl Attributes {
    fn event(self, data: Cow<'_, [u8]>) -> Result<CloudEvent<'_>, BadCloudEvent> {
        if self.specversion.as_deref() != Some("1.0") {
            return Err(BadCloudEvent::Version);
        }
        let needed =
            |value: Option<String>, name| value.filter(|text| !text.is_empty()).ok_or(BadCloudEvent::Missing(name));
        let moment = |text: String| text.parse::<jiff::Timestamp>().map_err(|_| BadCloudEvent::Time);
        let time = self.time.map(moment).transpose()?;
        Ok(CloudEvent {
            id: needed(self.id, "id")?,
            source: needed(self.source, "source")?,
            kind: needed(self.kind, "type")?,
            subject: self.subject,
            time: time.map(|time| Timestamp::from_micros(time.as_microsecond())),
            dataschema: self.dataschema,
            datacontenttype: self.datacontenttype,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Headers<'a> = [(&'a str, &'a [u8])];

    fn request<'a>(headers: &'a Headers<'a>, body: &'a str) -> Request<'a> {
        Request { method: "POST", url: "", headers, body: body.as_bytes() }
    }

    const BINARY: [(&str, &[u8]); 5] = [
        ("content-type", b"application/json"),
        ("ce-specversion", b"1.0"),
        ("ce-id", b"1234-1234"),
        ("ce-source", b"/mycontext"),
        ("ce-type", b"com.example.someevent"),
    ];
    const STRUCTURED: &Headers<'_> = &[("content-type", b"application/cloudevents+json; charset=UTF-8")];
    const BATCH: &Headers<'_> = &[("content-type", b"application/cloudevents-batch+json")];

    fn with<'a>(name: &'a str, value: &'a [u8]) -> Vec<(&'a str, &'a [u8])> {
        BINARY.into_iter().chain([(name, value)]).collect()
    }

    fn one<'a>(headers: &'a Headers<'a>, body: &'a str) -> Result<CloudEvent<'a>, BadCloudEvent> {
        read(&request(headers, body), Batches::Refused).map(|events| events.expect("a CloudEvent").remove(0))
    }

    #[test]
    fn t119_both_forms_say_the_same_event_and_are_recognised_by_source_and_id() {
        let headers = with("ce-time", b"2018-04-05T03:56:24Z");
        let binary = one(&headers, r#"{"n":1.50}"#).expect("binary");
        let envelope = r#"{"specversion":"1.0","type":"com.example.someevent","source":"/mycontext","id":"1234-1234",
            "time":"2018-04-05T03:56:24Z","datacontenttype":"application/json","data":{"n":1.50}}"#;
        let structured = one(STRUCTURED, envelope).expect("structured");
        assert_eq!(binary, structured);
        assert_eq!(binary.key(), "/mycontext\x001234-1234");
    }

    #[test]
    fn t119_a_batch_needs_a_source_that_asked_for_it_and_a_missing_attribute_is_plain() {
        let batch = r#"[{"specversion":"1.0","type":"a","source":"/s","id":"1"},
            {"specversion":"1.0","type":"b","source":"/s","id":"2","data_base64":"AP8="}]"#;
        let asked = |batches| read(&request(BATCH, batch), batches);
        assert_eq!(asked(Batches::Refused), Err(BadCloudEvent::BatchUnasked));
        let events = asked(Batches::Accepted).expect("a batch").expect("events");
        assert_eq!((events.len(), &*events[1].data), (2, &[0, 255][..]));
        assert_eq!(read(&request(&BINARY[..4], "{}"), Batches::Refused), Ok(None));
        let xml: &Headers<'_> = &[("content-type", b"application/cloudevents+xml")];
        assert_eq!(read(&request(xml, ""), Batches::Refused).map_err(|error| error.status()), Err(415));
    }

    #[test]
    fn t120_header_values_are_unescaped_once_and_must_be_text() {
        let subject = |value| one(&with("ce-subject", value), "{}").map(|event| event.subject.expect("a subject"));
        assert_eq!(subject(b"Euro%20%E2%82%AC%20%F0%9F%98%80"), Ok("Euro € 😀".into()));
        assert_eq!(subject(b"\"a \\\"b\\\"%2525\""), Ok("a \"b\"%25".into()));
        let unreadable = Err(BadCloudEvent::Unreadable("ce-subject".into()));
        assert_eq!(subject(b"%C0%A0"), unreadable);
        assert_eq!(subject(b"%zz"), unreadable);
    }

    #[test]
    fn a9_an_event_that_the_specification_forbids_is_refused() {
        let check = |headers: &Headers<'_>, body: &str, error: BadCloudEvent| {
            assert_eq!(one(headers, body), Err(error), "{body}");
        };
        check(&with("ce-datacontenttype", b"text/plain"), "{}", BadCloudEvent::DataContentType);
        check(&with("ce-id", b"2"), "{}", BadCloudEvent::Unreadable("ce-id".into()));
        check(&with("ce-time", b"yesterday"), "{}", BadCloudEvent::Time);
        check(STRUCTURED, "[]", BadCloudEvent::Envelope);
        check(STRUCTURED, r#"{"specversion":"0.3"}"#, BadCloudEvent::Version);
        check(STRUCTURED, r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#, BadCloudEvent::Missing("id"));
        check(STRUCTURED, r#"{"specversion":"1.0","id":7}"#, BadCloudEvent::Unreadable("id".into()));
        let both = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":"AA=="}"#;
        check(STRUCTURED, both, BadCloudEvent::Data);
    }

    proptest! {
        #[test]
        fn reading_a_cloudevent_never_panics(value in proptest::collection::vec(any::<u8>(), 0..60), body in ".{0,200}") {
            let headers = with("ce-subject", &value);
            let _ = read(&request(&headers, &body), Batches::Accepted);
            let _ = read(&request(STRUCTURED, &body), Batches::Accepted);
            let _ = read(&request(BATCH, &body), Batches::Accepted);
        }
    }
}
