//! Reading what a stranger sends: bounded in size, time and depth, and taken only as data.

use super::answer::Answer;
use bytes::{Bytes, BytesMut};
use clinch_core::payload::is_kept;
use clinch_core::signature::digest::{self, BadDigest};
use flate2::bufread::GzDecoder;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, Incoming};
use serde_json::Value;
use std::borrow::Cow;
use std::future::poll_fn;
use std::io::Read;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A body has to arrive whole within this time.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(15);
/// After so long it must have come at least this fast, or it is a way to hold a connection.
const BODY_HEAD_START: Duration = Duration::from_secs(5);
const BODY_BYTES_PER_SECOND_MIN: usize = 1024;
/// A gzip that holds more than so many times its own size is a bomb.
const GZIP_FACTOR_MAX: usize = 20;
/// JSON nested deeper is refused.
pub const JSON_DEPTH_MAX: usize = 64;
/// At most this many headers of an event are kept, each with a value of at most this size.
const HEADERS_KEPT_MAX: usize = 32;
const HEADER_KEPT_BYTES_MAX: usize = 1024;

/// How a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Plain,
    Gzip,
}

/// Wrapped once, in what is taken, or not at all.
pub fn encoding(headers: &HeaderMap, takes_gzip: bool) -> Result<Encoding, Answer> {
    let mut sent = headers.get_all("content-encoding").iter().map(|value| value.as_bytes());
    match (sent.next(), sent.next()) {
        (None, _) => Ok(Encoding::Plain),
        (Some(one), None) if one.eq_ignore_ascii_case(b"identity") => Ok(Encoding::Plain),
        (Some(one), None) if takes_gzip && one.eq_ignore_ascii_case(b"gzip") => Ok(Encoding::Gzip),
        _ => Err(Answer::encoded(takes_gzip)),
    }
}

/// What is in a gzip. Counted first, and only as far as a body may go or is honest: a bomb costs no memory.
pub fn inflate(body: &[u8], most: usize) -> Result<Bytes, Answer> {
    let most = most.min(body.len().saturating_mul(GZIP_FACTOR_MAX));
    let mut gzip = GzDecoder::new(body);
    let counted = std::io::copy(&mut gzip.by_ref().take(most as u64 + 1), &mut std::io::sink());
    let length = match counted {
        Ok(length) if length > most as u64 => return Err(Answer::too_large(most)),
        Ok(length) if gzip.into_inner().is_empty() => length,
        _ => return Err(Answer::not_gzip()),
    };
    let mut whole = Vec::with_capacity(usize::try_from(length).unwrap_or(most));
    GzDecoder::new(body).read_to_end(&mut whole).map_err(|_| Answer::not_gzip())?;
    Ok(whole.into())
}

/// Where a sender says which digest its body has, it must have it. A digest of another kind says nothing to us.
pub fn check_digest(headers: &HeaderMap, body: &[u8]) -> Result<(), Answer> {
    let sent: Vec<&str> = match headers.get_all("content-digest").iter().map(|value| value.to_str()).collect() {
        Ok(sent) => sent,
        Err(_) => return Err(Answer::bad_digest(&BadDigest::Unreadable)),
    };
    match sent.is_empty() {
        true => Ok(()),
        false => match digest::check(&sent.join(", "), body) {
            Ok(()) | Err(BadDigest::Unknown) => Ok(()),
            Err(bad) => Err(Answer::bad_digest(&bad)),
        },
    }
}

/// The whole body, or a refusal as soon as it is too long or too slow.
pub async fn read(body: Incoming, headers: &HeaderMap, most: usize) -> Result<Bytes, Answer> {
    let declared = headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > most as u64) || body.size_hint().lower() > most as u64 {
        return Err(Answer::too_large(most));
    }
    collect(body, most).await
}

/// How long after its beginning the rest of a body is waited for, when so much of it is here.
fn patience(received_bytes: usize) -> Duration {
    let earned = Duration::from_secs((received_bytes / BODY_BYTES_PER_SECOND_MIN) as u64);
    earned.clamp(BODY_HEAD_START, BODY_TIMEOUT)
}

/// The next piece, if it is here already. Most bodies come with their heads, and are handed over when they were asked for: to set
/// a timer for each would cost more than to look twice.
async fn at_hand(body: &mut Incoming) -> Option<Option<hyper::Result<Frame<Bytes>>>> {
    let mut is_asked_for = false;
    poll_fn(|context| match Pin::new(&mut *body).poll_frame(context) {
        Poll::Ready(frame) => Poll::Ready(Some(frame)),
        Poll::Pending if is_asked_for => Poll::Ready(None),
        Poll::Pending => {
            is_asked_for = true;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

async fn collect(mut body: Incoming, most: usize) -> Result<Bytes, Answer> {
    let began = Instant::now();
    let mut first: Option<Bytes> = None;
    let mut whole = BytesMut::new();
    let mut received = 0;
    loop {
        let frame = match at_hand(&mut body).await {
            Some(frame) => frame,
            None => timeout_at(began + patience(received), body.frame()).await.map_err(|_| Answer::too_slow())?,
        };
        let Some(frame) = frame else { break };
        let Ok(frame) = frame else {
            return Err(Answer::cut_short());
        };
        let Ok(data) = frame.into_data() else { continue };
        received += data.len();
        if received > most {
            return Err(Answer::too_large(most));
        }
        // Most bodies come in one piece and need no copy.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            earlier => {
                whole.extend_from_slice(&earlier.unwrap_or_default());
                whole.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// A delivery as key rules see it. Its body is JSON, or empty.
pub struct Delivery<'a> {
    headers: &'a HeaderMap,
    body: Option<Value>,
}

impl<'a> Delivery<'a> {
    /// `parse` only when a key rule looks into the body; else it is checked, which is several times cheaper.
    pub fn read(headers: &'a HeaderMap, body: &[u8], parse: bool) -> Result<Self, Answer> {
        if body.is_empty() {
            return Ok(Delivery { headers, body: None });
        }
        let text = std::str::from_utf8(body).map_err(|error| Answer::not_utf8(error.valid_up_to()))?;
        if may_be_deep(body) && depth(body) > JSON_DEPTH_MAX {
            return Err(Answer::too_deep());
        }
        let malformed = |error: serde_json::Error| Answer::malformed(error.line(), error.column());
        let body = if parse {
            Some(serde_json::from_str(text).map_err(malformed)?)
        } else {
            serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(malformed)?;
            None
        };
        Ok(Delivery { headers, body })
    }
}

/// Counting brackets is several times cheaper than following them, and most bodies have few.
fn may_be_deep(json: &[u8]) -> bool {
    json.iter().filter(|byte| matches!(byte, b'{' | b'[')).count() > JSON_DEPTH_MAX
}

/// How deep brackets nest, outside of strings.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0usize, false, false);
    for byte in json {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

impl clinch_core::key::Delivery for Delivery<'_> {
    fn header(&self, name: &str) -> Vec<Option<&str>> {
        self.headers.get_all(name).iter().map(|value| value.to_str().ok()).collect()
    }

    fn body(&self, pointer: &str) -> Option<Value> {
        self.body.as_ref()?.pointer(pointer).cloned()
    }
}

/// The headers that an event keeps: an allow-list, bounded.
pub fn kept_headers(headers: &HeaderMap) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    let kept = headers.iter().filter(|(name, _)| is_kept(name.as_str()));
    bounded_headers(kept.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))))
}

/// As many of them as are kept, and none that is longer.
pub fn bounded_headers<'t>(headers: impl Iterator<Item = (&'t str, &'t str)>) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
    headers
        .filter(|(_, value)| value.len() <= HEADER_KEPT_BYTES_MAX)
        .take(HEADERS_KEPT_MAX)
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_of_strings() {
        assert_eq!(depth(br#"{"a":[1,{"b":"[[[[\"[[["}]}"#), 3);
        assert_eq!(depth(b"1"), 0);
        assert_eq!(depth("[".repeat(10_000).as_bytes()), 10_000);
        assert_eq!(depth(b"]]]][["), 2);
    }

    #[test]
    fn t073_a_body_earns_its_time_by_coming() {
        let check = |bytes: usize, seconds: u64| assert_eq!(patience(bytes), Duration::from_secs(seconds), "{bytes}");
        check(0, 5);
        check(5 * 1024, 5);
        check(7 * 1024, 7);
        check(1 << 20, 15);
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        gzip.write_all(bytes).expect("written");
        gzip.finish().expect("ended")
    }

    #[test]
    fn t076_a_gzip_is_opened_as_far_as_a_body_may_go() {
        let honest: Vec<u8> = (0..5_000u32).flat_map(|nth| nth.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        assert_eq!(inflate(&gzip(&honest), 1 << 20).ok().as_deref(), Some(&honest[..]));
        let outcome = |packed: &[u8], most: usize| inflate(packed, most).expect_err("refused").told().0;
        assert_eq!(outcome(&gzip(&honest), 19_999), "too-large");
        assert_eq!(outcome(&gzip(&vec![0; 1 << 20]), 10 << 20), "too-large", "a bomb");
        let mut twice = gzip(&honest);
        assert_eq!(outcome(&twice[..twice.len() - 1], 1 << 20), "malformed");
        twice.extend_from_slice(&gzip(b"more"));
        assert_eq!(outcome(&twice, 1 << 20), "malformed");
        assert_eq!(outcome(b"nope", 1 << 20), "malformed");
    }

    #[test]
    fn t035_t076_a_body_is_wrapped_once_at_most() {
        let check = |sent: &[&str], takes_gzip: bool, expected: Option<Encoding>| {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append("content-encoding", value.parse().expect("a value"));
            }
            assert_eq!(encoding(&headers, takes_gzip).ok(), expected, "{sent:?}");
        };
        check(&[], false, Some(Encoding::Plain));
        check(&["identity"], false, Some(Encoding::Plain));
        check(&["gzip"], false, None);
        check(&["GZIP"], true, Some(Encoding::Gzip));
        check(&["gzip", "gzip"], true, None);
        check(&["gzip, gzip"], true, None);
        check(&["br"], true, None);
    }

    #[test]
    fn what_is_not_json_is_refused_before_it_is_stored() {
        let headers = HeaderMap::new();
        for bad in [&b"{"[..], b"{\"a\":}", b"nope", b"\xff\xfe", b"{} {}", "[".repeat(10_000).as_bytes()] {
            assert!(Delivery::read(&headers, bad, false).is_err());
            assert!(Delivery::read(&headers, bad, true).is_err());
        }
        for good in [&b""[..], b"{}", b"[1,2]", b" \"text\" ", b"1e400"] {
            assert!(Delivery::read(&headers, good, false).is_ok(), "{}", String::from_utf8_lossy(good));
        }
    }
}
