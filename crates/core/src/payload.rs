//! The event contract: what every source is brought to, and the one blob in which an event is kept.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One event, whatever its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    pub about: About,
    /// As it came, byte for byte.
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The flow that took it in.
    pub source: String,
    /// The key that the sender or the key rule gave it; empty when there is none.
    #[serde(rename = "id", default, skip_serializing_if = "String::is_empty")]
    pub source_event_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub tenant: String,
    #[serde(rename = "v")]
    pub schema_version: u32,
    pub trace: TraceId,
    /// The keys of its jobs, in order, where a flow gives them keys of their own.
    #[serde(rename = "keys", default, skip_serializing_if = "Vec::is_empty")]
    pub job_keys: Vec<String>,
    /// Names in lower case; what could authenticate somebody is never among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

pub const TENANT_DEFAULT: &str = "default";

/// Shared by everything that ever happens to an event: deliveries, attempts, replays, calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored event cannot be read: {0}")]
pub struct BadPayload(&'static str);

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

impl About {
    /// The key that travels with a job; `place` counts the event's jobs from 0.
    pub fn key_of(&self, place: usize) -> &str {
        self.job_keys.get(place).unwrap_or(&self.source_event_id)
    }
}

impl Payload {
    pub fn encode(&self) -> Bytes {
        let about = serde_json::to_vec(&self.about).expect("plain strings and numbers are always JSON");
        let mut blob = BytesMut::with_capacity(5 + about.len() + self.body.len());
        blob.put_u8(FORMAT);
        blob.put_u32(u32::try_from(about.len()).expect("headers are bounded far below 4 GiB"));
        blob.put_slice(&about);
        blob.put_slice(&self.body);
        blob.freeze()
    }

    pub fn decode(blob: &Bytes) -> Result<Payload, BadPayload> {
        let (Some(format), Some(length)) = (blob.first(), blob.get(1..5)) else {
            return Err(BadPayload("it is cut short"));
        };
        if *format != FORMAT {
            return Err(BadPayload("it was written by another version"));
        }
        let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
        let end = length.checked_add(5).filter(|end| *end <= blob.len()).ok_or(BadPayload("it is cut short"))?;
        let about = serde_json::from_slice(&blob[5..end]).map_err(|_| BadPayload("its description is damaged"))?;
        Ok(Payload { about, body: blob.slice(end..) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn about() -> About {
        About {
            source: "contact-intake".into(),
            source_event_id: "evt_123".into(),
            kind: "contact-intake".into(),
            tenant: TENANT_DEFAULT.into(),
            schema_version: 1,
            trace: TraceId(u128::MAX - 1),
            job_keys: Vec::new(),
            headers: vec![("content-type".into(), "application/json".into())],
        }
    }

    proptest! {
        #[test]
        fn an_event_reads_back_as_it_was_written(body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let payload = Payload { about: about(), body: body.into() };
            prop_assert_eq!(Payload::decode(&payload.encode()), Ok(payload));
        }

        #[test]
        fn damaged_bytes_are_an_error_and_never_a_panic(blob in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Payload::decode(&blob.into());
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
