//! What a caller gets: the target's answer, the same again, or a problem (RFC 9457) that says what to do.

use crate::effects::{Forwarded, Sent};
use crate::telemetry::PROXIED;
use bytes::Bytes;
use clinch_core::attempt::is_of_gateway;
use clinch_core::call::CallAnswer;
use clinch_core::time::Timestamp;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

#[derive(Clone, Debug)]
pub enum Answer {
    Answered {
        status: StatusCode,
        headers: Box<HeaderMap>,
        /// `None`: it was too long.
        body: Option<Bytes>,
        how: How,
    },
    /// Another call has this key.
    Other,
    /// Somebody else makes it at this moment.
    Busy,
    /// It may have been done, since then.
    Unknown(Timestamp),
    /// It was sent just now and no answer came.
    Silence(String),
    /// Nothing was sent.
    NotSent(String),
    /// It was done, and its answer is not to be had.
    Unreadable,
    StoreDown,
    NoKey(HeaderName),
    TooLarge(usize),
    Malformed(&'static str),
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Passed,
    Made,
    Joined,
    Kept,
}

impl Answer {
    pub fn passed(forwarded: Forwarded) -> Answer {
        Answer::of(forwarded, How::Passed)
    }

    pub fn made(forwarded: Forwarded) -> Answer {
        Answer::of(forwarded, How::Made)
    }

    fn of(forwarded: Forwarded, how: How) -> Answer {
        let Forwarded { status, headers, body } = forwarded;
        Answer::Answered { status, headers: Box::new(super::end_to_end(headers)), body, how }
    }

    pub fn kept(answer: CallAnswer) -> Answer {
        let mut headers = HeaderMap::new();
        for (name, value) in answer.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_bytes(&value)) {
                headers.append(name, value);
            }
        }
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
        Answer::Answered { status, headers: Box::new(headers), body: answer.body, how: How::Kept }
    }

    pub fn failed(sent: Sent) -> Answer {
        match sent {
            Sent::NoAnswer { why, .. } => Answer::Silence(why),
            Sent::NotSent(why) | Sent::Blocked(why) | Sent::Invalid(why) => Answer::NotSent(why),
            _ => Answer::NotSent("it was too late".into()),
        }
    }

    /// For one who came while it was made.
    pub fn again(self) -> Answer {
        match self {
            Answer::Answered { status, mut headers, body, how: How::Made } => {
                headers.remove(http::header::SET_COOKIE);
                Answer::Answered { status, headers, body, how: How::Joined }
            }
            answer => answer,
        }
    }

    /// What metrics call it.
    pub fn word(&self) -> &'static str {
        let [passed, done, not_done, joined, replayed, conflict, busy, unknown, not_sent, store_error, refused] =
            PROXIED;
        match self {
            Answer::Answered { how: How::Passed, .. } => passed,
            Answer::Answered { how: How::Made, status, .. } if status.is_success() => done,
            Answer::Answered { how: How::Made, status, .. } if is_of_gateway(status.as_u16()) => unknown,
            Answer::Answered { how: How::Made, .. } => not_done,
            Answer::Answered { how: How::Joined, .. } => joined,
            Answer::Answered { how: How::Kept, .. } | Answer::Unreadable => replayed,
            Answer::Other => conflict,
            Answer::Busy => busy,
            Answer::Unknown(_) | Answer::Silence(_) => unknown,
            Answer::NotSent(_) => not_sent,
            Answer::StoreDown => store_error,
            Answer::NoKey(_) | Answer::TooLarge(_) | Answer::Malformed(_) => refused,
        }
    }

    pub fn into_response(self) -> Response<Full<Bytes>> {
        match self {
            Answer::Answered { status, headers, body: Some(body), how } => {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = status;
                *response.headers_mut() = *headers;
                if matches!(how, How::Kept | How::Joined) && status.is_success() {
                    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
                }
                response
            }
            Answer::Answered { status, body: None, .. } => {
                let detail = format!(
                    "The target answered {status}, and the rest of its answer is longer than {} MiB or broke off. A call \
                     with a key that was done is not made again.",
                    super::calls::ANSWER_BYTES_MAX >> 20
                );
                problem(StatusCode::BAD_GATEWAY, "answer-too-long", "The answer cannot be handed on", &detail)
            }
            Answer::Other => problem(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency-conflict",
                "This key belongs to another call",
                "The first call under this key had another method, path or body, and was left as it is. Use a new key for \
                 a new call.",
            ),
            Answer::Busy => not_now(
                StatusCode::CONFLICT,
                "idempotency-in-flight",
                "This call is being made at this moment",
                "Another node makes it. Ask again with the same key.",
            ),
            Answer::Unknown(since) => problem(
                StatusCode::CONFLICT,
                "outcome-unknown",
                "Nobody knows whether this call was done",
                &format!(
                    "It was begun at {since} and its answer was lost, so it is not sent again. Look at the target; then use a \
                     new key, or start the proxy with --resend-unknown."
                ),
            ),
            Answer::Silence(why) => problem(
                StatusCode::GATEWAY_TIMEOUT,
                "outcome-unknown",
                "The call was sent and no answer came",
                &format!("It may have been done ({why}). With the same key it is not sent again."),
            ),
            Answer::NotSent(why) => not_now(
                StatusCode::BAD_GATEWAY,
                "target-unreachable",
                "Nothing was sent",
                &format!("The target cannot be reached: {why}. The key is free; ask again."),
            ),
            Answer::Unreadable => problem(
                StatusCode::CONFLICT,
                "answer-unreadable",
                "This call was done, and its answer cannot be read any more",
                "It is not made again.",
            ),
            Answer::StoreDown => not_now(
                StatusCode::SERVICE_UNAVAILABLE,
                "storage-unavailable",
                "Nothing was sent",
                "What is not written down is not sent, and the store cannot write at the moment. Ask again.",
            ),
            Answer::NoKey(header) => problem(
                StatusCode::BAD_REQUEST,
                "idempotency-key-missing",
                "A key is needed",
                &format!("Send the header {header} with a key of your own for each call."),
            ),
            Answer::TooLarge(most) => problem(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too-large",
                "The body is too large",
                &format!("At most {most} bytes are taken (--body-max)."),
            ),
            Answer::Malformed(why) => {
                problem(StatusCode::BAD_REQUEST, "malformed", "The request cannot be read", &format!("Refused: {why}."))
            }
        }
    }
}

fn problem(status: StatusCode, slug: &str, title: &str, detail: &str) -> Response<Full<Bytes>> {
    let kind = format!("urn:clinch:problem:{slug}");
    let body = serde_json::json!({"type": kind, "title": title, "status": status.as_u16(), "detail": detail});
    let mut response = Response::new(Full::new(body.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

fn not_now(status: StatusCode, slug: &str, title: &str, detail: &str) -> Response<Full<Bytes>> {
    let mut response = problem(status, slug, title, detail);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
