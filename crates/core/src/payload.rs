//! The event contract: what every source is brought to, and the one blob in which an event is kept.

use crate::time::Timestamp;
use bytes::{BufMut, Bytes, BytesMut};
use std::borrow::Cow;
use std::fmt;

/// One event, whatever its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    pub about: About<'static>,
    /// As it came, byte for byte.
    pub body: Bytes,
}

/// Written at the door from borrowed parts, read later as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About<'a> {
    /// The source, or the flow whose own route took it in.
    pub source: Cow<'a, str>,
    /// The key that the sender or the key rule gave it; empty when there is none.
    pub source_event_id: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub tenant: Cow<'a, str>,
    /// Whose token it came with; empty where senders have none.
    pub sender: Cow<'a, str>,
    pub schema_version: u32,
    /// Which places of it break which rules of its schema; empty when none do. Names no value.
    pub mismatch: Cow<'a, str>,
    pub trace: TraceId,
    /// The keys of its jobs, in order, where a flow gives them keys of their own.
    pub job_keys: Vec<String>,
    /// Names in lower case; what could authenticate somebody is never among them.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

pub const TENANT_DEFAULT: &str = "default";

/// Shared by everything that ever happens to an event: deliveries, attempts, replays, calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl TraceId {
    const DICE_BITS: u32 = 80;

    /// Begins with the millisecond of the acceptance, so that its event can be found without an index; the rest is dice.
    pub fn new(at: Timestamp, dice: u128) -> TraceId {
        let millis = u128::from(u64::try_from(at.as_millis()).unwrap_or(0)) & ((1 << (128 - Self::DICE_BITS)) - 1);
        TraceId((millis << Self::DICE_BITS) | (dice & ((1 << Self::DICE_BITS) - 1)))
    }

    pub const fn from_bytes(bytes: [u8; 16]) -> TraceId {
        TraceId(u128::from_be_bytes(bytes))
    }

    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// When its event was accepted, to the millisecond.
    pub fn at(self) -> Timestamp {
        Timestamp::from_micros(i64::try_from(self.0 >> Self::DICE_BITS).unwrap_or(i64::MAX).saturating_mul(1_000))
    }

    /// Of 32 hexadecimal digits, not all of them 0.
    pub fn read(text: &str) -> Option<TraceId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|number| is_hex && *number != 0)?;
        Some(TraceId(number))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored event cannot be read: {0}")]
pub struct BadPayload(&'static str);

const CUT_SHORT: BadPayload = BadPayload("it is cut short");
const FORMAT: u8 = 1;

/// Headers that are kept. An allow-list: anything else may carry a credential.
pub fn is_kept(header: &str) -> bool {
    matches!(header, "content-type" | "user-agent" | "traceparent" | "idempotency-key")
        || header.starts_with("ce-")
        || (header.starts_with("x-")
            && (header.ends_with("-id")
                || header.ends_with("-topic")
                || header.ends_with("-event")
                || header.ends_with("-delivery")))
}

impl About<'_> {
    /// The key that travels with a job; `place` counts the event's jobs from 0.
    pub fn key_of(&self, place: usize) -> &str {
        self.job_keys.get(place).map_or(&*self.source_event_id, String::as_str)
    }

    /// The blob: format, description, body. Texts have their length in front.
    pub fn encode(&self, body: &[u8]) -> Bytes {
        let headers: usize = self.headers.iter().map(|(name, value)| 8 + name.len() + value.len()).sum();
        let keys: usize = self.job_keys.iter().map(|key| 4 + key.len()).sum();
        let names = [&self.source, &self.source_event_id, &self.kind, &self.tenant, &self.sender, &self.mismatch];
        let names_bytes: usize = names.iter().map(|text| text.len()).sum();
        let mut blob = BytesMut::with_capacity(64 + names_bytes + keys + headers + body.len());
        blob.put_u8(FORMAT);
        for text in names {
            put_text(&mut blob, text);
        }
        blob.put_u32(self.schema_version);
        blob.put_slice(&self.trace.to_bytes());
        put_length(&mut blob, self.job_keys.len());
        for key in &self.job_keys {
            put_text(&mut blob, key);
        }
        put_length(&mut blob, self.headers.len());
        for (name, value) in &self.headers {
            put_text(&mut blob, name);
            put_text(&mut blob, value);
        }
        blob.put_slice(body);
        blob.freeze()
    }
}

fn put_length(blob: &mut BytesMut, length: usize) {
    blob.put_u32(u32::try_from(length).expect("what comes through the door is far below 4 GiB"));
}

fn put_text(blob: &mut BytesMut, text: &str) {
    put_length(blob, text.len());
    blob.put_slice(text.as_bytes());
}

/// Reads a blob from its front; each step says when it is cut short.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BadPayload> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CUT_SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, BadPayload> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn text(&mut self) -> Result<String, BadPayload> {
        let length = self.number()? as usize;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| BadPayload("its description is damaged"))?;
        Ok(text.to_string())
    }

    /// So many things, each read by `one`; a number that the rest cannot hold is damage, not a reason to reserve it.
    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Result<T, BadPayload>) -> Result<Vec<T>, BadPayload> {
        let length = self.number()? as usize;
        if length > self.0.len() {
            return Err(CUT_SHORT);
        }
        (0..length).map(|_| one(self)).collect()
    }
}

impl Payload {
    pub fn decode(blob: &Bytes) -> Result<Payload, BadPayload> {
        let mut reader = Reader(blob);
        if reader.take(1)? != [FORMAT] {
            return Err(BadPayload("it was written by another version"));
        }
        let about = About {
            source: reader.text()?.into(),
            source_event_id: reader.text()?.into(),
            kind: reader.text()?.into(),
            tenant: reader.text()?.into(),
            sender: reader.text()?.into(),
            mismatch: reader.text()?.into(),
            schema_version: reader.number()?,
            trace: TraceId::from_bytes(reader.take(16)?.try_into().expect("sixteen bytes")),
            job_keys: reader.list(Reader::text)?,
            headers: reader.list(|reader| Ok((reader.text()?.into(), reader.text()?.into())))?,
        };
        Ok(Payload { about, body: blob.slice(blob.len() - reader.0.len()..) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about() -> About<'static> {
        About {
            source: "contact-intake".into(),
            source_event_id: "evt_123".into(),
            kind: "contact-intake".into(),
            tenant: TENANT_DEFAULT.into(),
            sender: "shop-1".into(),
            schema_version: 1,
            mismatch: "/id breaks type".into(),
            trace: TraceId(u128::MAX - 1),
            job_keys: Vec::new(),
            headers: vec![("content-type".into(), "application/json".into())],
        }
    }

    proptest! {
        #[test]
        fn an_event_reads_back_as_it_was_written(body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let payload = Payload { about: about(), body: body.into() };
            prop_assert_eq!(Payload::decode(&payload.about.encode(&payload.body)), Ok(payload));
        }

        #[test]
        fn an_event_that_is_cut_short_is_an_error(keep in 0usize..100) {
            let blob = Payload { about: about(), body: Bytes::new() }.about.encode(b"");
            prop_assert!(Payload::decode(&blob.slice(..keep.min(blob.len() - 1))).is_err());
        }

        #[test]
        fn damaged_bytes_are_an_error_and_never_a_panic(blob in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Payload::decode(&blob.into());
        }
    }

    #[test]
    fn i1_a_trace_id_tells_when_its_event_came() {
        let at = Timestamp::from_micros(1_790_000_000_123_456);
        let trace = TraceId::new(at, u128::MAX);
        assert_eq!(trace.at(), Timestamp::from_micros(1_790_000_000_123_000));
        assert_eq!(TraceId::read(&trace.to_string()), Some(trace));
        assert_ne!(trace, TraceId::new(at, 7));
        for bad in ["", "0", &"0".repeat(32), &"g".repeat(32), "+af7651916cd43dd8448eb211c80319c"] {
            assert_eq!(TraceId::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_that_could_hold_a_credential_is_not_kept() {
        for header in
            ["authorization", "cookie", "x-api-key", "stripe-signature", "x-hub-signature-256", "x-auth-token"]
        {
            assert!(!is_kept(header), "{header}");
        }
        assert!(is_kept("x-shopify-topic"));
    }
}
