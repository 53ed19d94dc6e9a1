//! What a caller gets: the first answer, the same again, or a problem (RFC 9457) that says what to do.

use super::quota::{Beyond, Told};
use crate::telemetry::IntakeOutcome;
use bytes::Bytes;
use clinch_core::key::NoKey;
use clinch_core::limit::retry_after_seconds;
use clinch_core::minimise::NotMinimised;
use clinch_core::payload::TraceId;
use clinch_core::schema::Mismatches;
use clinch_core::signature::digest::BadDigest;
use clinch_core::signature::{self, handshake};
use clinch_core::slack::NotPressed;
use clinch_core::source::Unfit;
use clinch_store::{Accepted, StoreError};
use data_encoding::HEXLOWER;
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use std::time::Duration;

/// After a refusal that will pass: how many seconds to wait.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

#[derive(Debug)]
pub enum Answer {
    Success {
        body: Bytes,
        status: u16,
        replayed: bool,
        /// For who is known.
        quota: Option<Box<Told>>,
    },
    /// To a question that a provider asks; nothing was stored.
    Handshake(handshake::Answer),
    /// An origin may deliver CloudEvents.
    Allowed(HeaderValue),
    Problem(Box<Problem>),
}

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    outcome: IntakeOutcome,
    slug: &'static str,
    /// Its type, where one is registered for it; else it follows from the slug.
    registered: Option<&'static str>,
    title: &'static str,
    detail: String,
    /// Members of this kind of problem.
    more: Vec<(&'static str, serde_json::Value)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether the connection can be used again after it.
    close: bool,
}

fn success(first: &Accepted, replayed: bool) -> Answer {
    let body = format!(r#"{{"event_id":"{}","job_id":"{}","status":"accepted"}}"#, first.event, first.job);
    Answer::Success { body: body.into(), status: first.status, replayed, quota: None }
}

fn problem(
    status: StatusCode,
    outcome: IntakeOutcome,
    slug: &'static str,
    title: &'static str,
    detail: String,
) -> Problem {
    Problem {
        status,
        outcome,
        slug,
        registered: None,
        title,
        detail,
        more: Vec::new(),
        headers: Vec::new(),
        close: false,
    }
}

fn malformed(slug: &'static str, title: &'static str, detail: String) -> Problem {
    problem(StatusCode::BAD_REQUEST, IntakeOutcome::Malformed, slug, title, detail)
}

fn unproven(outcome: IntakeOutcome) -> Answer {
    let title = "The sender could not be verified";
    let (status, detail) = (StatusCode::UNAUTHORIZED, signature::ANSWER.to_string());
    problem(status, outcome, "signature-invalid", title, detail).into()
}

/// The type that is registered for it.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn too_many(wait: Duration, dice: f64) -> Problem {
    let seconds = retry_after_seconds(wait, dice);
    let detail = format!("More came than is taken here. Send it again in {seconds} s.");
    let title = "Too many requests";
    let mut many = problem(StatusCode::TOO_MANY_REQUESTS, IntakeOutcome::RateLimited, "rate-limited", title, detail);
    many.registered = Some(QUOTA_EXCEEDED);
    many.headers.push((hyper::header::RETRY_AFTER, HeaderValue::from(seconds)));
    many
}

impl Told {
    fn headers(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let pairs = [("ratelimit-policy", &self.policy), ("ratelimit", &self.left)];
        pairs
            .into_iter()
            .filter_map(|(name, value)| Some((HeaderName::from_static(name), HeaderValue::from_str(value).ok()?)))
    }
}

fn not_now(slug: &'static str, detail: String) -> Answer {
    let title = "Not now; send it again later";
    let mut away = problem(StatusCode::SERVICE_UNAVAILABLE, IntakeOutcome::StoreError, slug, title, detail);
    away.headers.push((hyper::header::RETRY_AFTER, RETRY_AFTER));
    away.into()
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Answer {
        Answer::Problem(Box::new(problem))
    }
}

/// Says in which trace a request is.
const TRACE_HEADER: HeaderName = HeaderName::from_static("clinch-trace-id");

impl Answer {
    pub fn accepted(first: &Accepted) -> Answer {
        success(first, false)
    }

    /// The first answer, word for word.
    pub fn again(first: &Accepted) -> Answer {
        success(first, true)
    }

    /// Several events came in one request, and all of them are stored.
    pub fn several(firsts: &[&Accepted], status: u16, replayed: bool) -> Answer {
        let event = |first: &&Accepted| format!(r#"{{"event_id":"{}","job_id":"{}"}}"#, first.event, first.job);
        let events: Vec<String> = firsts.iter().map(event).collect();
        let body = format!(r#"{{"events":[{}],"status":"accepted"}}"#, events.join(","));
        Answer::Success { body: body.into(), status, replayed, quota: None }
    }

    /// It was understood, and no flow wants it: the sender need not send it again.
    pub fn ignored(status: u16) -> Answer {
        Answer::Success { body: Bytes::from_static(br#"{"status":"ignored"}"#), status, replayed: false, quota: None }
    }

    /// To somebody who pressed a button.
    pub fn said(said: &serde_json::Value) -> Answer {
        Answer::Success { body: said.to_string().into(), status: 200, replayed: false, quota: None }
    }

    pub fn not_a_press(error: &NotPressed) -> Answer {
        malformed("malformed", "The request holds nothing that was pressed", format!("{error}.")).into()
    }

    pub fn handshake(answer: handshake::Answer) -> Answer {
        Answer::Handshake(answer)
    }

    pub fn allowed(origin: &str) -> Answer {
        HeaderValue::from_str(origin).map_or_else(|_| Answer::not_found(), Answer::Allowed)
    }

    /// One text, whatever the cause: who may not come in learns nothing from it.
    pub fn unverified() -> Answer {
        unproven(IntakeOutcome::BadSignature)
    }

    /// The same answer: that only its time is wrong is told to the operator.
    pub fn stale() -> Answer {
        unproven(IntakeOutcome::StaleTimestamp)
    }

    /// What the sender would be checked with is gone: it is not let in, and should come again.
    pub fn no_secret() -> Answer {
        let detail = "Senders cannot be verified at the moment.".to_string();
        let title = "Not now; send it again later";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut shut = problem(status, IntakeOutcome::StoreError, "verification-unavailable", title, detail);
        shut.headers.push((hyper::header::RETRY_AFTER, RETRY_AFTER));
        shut.into()
    }

    /// A success that says what is left of the caller's limits.
    pub fn with_quota(mut self, told: Option<Told>) -> Answer {
        if let Answer::Success { quota, .. } = &mut self {
            *quota = told.map(Box::new);
        }
        self
    }

    /// Nobody is known yet, so nothing is told of what could be borne.
    pub fn too_many_from_there(wait: Duration, dice: f64) -> Answer {
        too_many(wait, dice).into()
    }

    /// With what is left of the limits, for who is known.
    pub fn beyond(beyond: Beyond, dice: f64, is_known: bool) -> Answer {
        let mut many = too_many(beyond.wait, dice);
        many.more.push(("violated-policies", serde_json::json!([beyond.limit])));
        if is_known {
            many.headers.extend(beyond.told.headers());
        }
        many.into()
    }

    /// Names places and rules of the schema, never a value.
    pub fn mismatch(schema: &str, mismatches: &Mismatches) -> Answer {
        let detail = format!("The event breaks schema `{schema}`: {mismatches}.");
        let title = "The event is not what is expected here";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        problem(status, IntakeOutcome::Invalid, "schema-invalid", title, detail).into()
    }

    /// A request that was proven and holds no event.
    pub fn unfit(unfit: &Unfit) -> Answer {
        let detail = format!("{unfit}.");
        let title = "The request holds no event that can be taken";
        match unfit {
            Unfit::Key(refused) => Answer::bad_key(refused),
            Unfit::Body(_) => malformed("malformed", title, detail).into(),
            Unfit::TooMany(_) => {
                problem(StatusCode::PAYLOAD_TOO_LARGE, IntakeOutcome::TooLarge, "too-large", title, detail).into()
            }
            Unfit::CloudEvent(bad) => {
                let status = StatusCode::from_u16(bad.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let outcome = if bad.status() == 413 { IntakeOutcome::TooLarge } else { IntakeOutcome::Malformed };
                problem(status, outcome, "cloudevent-invalid", title, detail).into()
            }
        }
    }

    /// What must not be kept cannot be found in it.
    pub fn not_readable(why: &NotMinimised) -> Answer {
        malformed("malformed", "The body cannot be read", format!("{why}.")).into()
    }

    pub fn conflict(first: &Accepted) -> Answer {
        let detail = "The key was used before with another body; the first one stays as it is. \
                      Send the same body again, or use a new key for a new event.";
        let mut problem = problem(
            StatusCode::UNPROCESSABLE_ENTITY,
            IntakeOutcome::Conflict,
            "idempotency-key-reused",
            "This idempotency key was used with a different body",
            detail.into(),
        );
        problem.more =
            vec![("first_seen", first.received_at.to_string().into()), ("job_id", first.job.to_string().into())];
        problem.into()
    }

    pub fn bad_key(refused: &NoKey) -> Answer {
        let slug = if refused.is_missing() { "idempotency-key-missing" } else { "idempotency-key-invalid" };
        malformed(slug, "This request needs one readable idempotency key", refused.to_string()).into()
    }

    pub fn bad_group(refused: &NoKey) -> Answer {
        let slug = if refused.is_missing() { "group-missing" } else { "group-invalid" };
        malformed(slug, "This request does not say which group its order is kept in", refused.to_string()).into()
    }

    pub fn malformed(line: usize, column: usize) -> Answer {
        let detail = format!("The body stops being JSON at line {line}, column {column}.");
        malformed("malformed", "The body is not JSON", detail).into()
    }

    pub fn not_utf8(at: usize) -> Answer {
        malformed("malformed", "The body is not JSON", format!("The body is not UTF-8 text after byte {at}.")).into()
    }

    pub fn too_deep() -> Answer {
        let most = super::body::JSON_DEPTH_MAX;
        malformed("malformed", "The body is nested too deeply", format!("JSON may nest {most} levels deep.")).into()
    }

    pub fn cut_short() -> Answer {
        let mut cut = malformed("malformed", "The body was cut short", "The connection ended inside the body.".into());
        cut.close = true;
        cut.into()
    }

    pub fn encoded(takes_gzip: bool) -> Answer {
        let detail = match takes_gzip {
            true => "Send the body with `Content-Encoding: gzip`, wrapped once, or without.".into(),
            false => "Send the body without Content-Encoding.".into(),
        };
        let title = "Encoded bodies are not taken";
        problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, IntakeOutcome::Malformed, "unsupported-encoding", title, detail)
            .into()
    }

    pub fn not_gzip() -> Answer {
        malformed("malformed", "The body cannot be read", "The body is not one whole gzip.".into()).into()
    }

    pub fn bad_digest(bad: &BadDigest) -> Answer {
        malformed("digest-invalid", "The body is not what its digest says", format!("{bad}.")).into()
    }

    pub fn too_large(most: usize) -> Answer {
        let detail = format!("This route takes bodies of at most {most} bytes.");
        let title = "The body is too large";
        let mut large = problem(StatusCode::PAYLOAD_TOO_LARGE, IntakeOutcome::TooLarge, "too-large", title, detail);
        large.close = true;
        large.into()
    }

    pub fn too_slow() -> Answer {
        let most = super::body::BODY_TIMEOUT.as_secs();
        let detail = format!("A body has to arrive within {most} s, and not slower than 1 KiB/s.");
        let title = "The body came too slowly";
        let mut slow = problem(StatusCode::REQUEST_TIMEOUT, IntakeOutcome::Malformed, "timeout", title, detail);
        slow.close = true;
        slow.into()
    }

    pub fn not_found() -> Answer {
        let detail =
            "No flow has this path. Paths are matched whole: check for a trailing slash or another case.".into();
        problem(StatusCode::NOT_FOUND, IntakeOutcome::Malformed, "not-found", "There is nothing here", detail).into()
    }

    pub fn wrong_method(allowed: &str) -> Answer {
        let detail = format!("This path takes {allowed}.");
        let title = "This method is not taken here";
        let mut wrong =
            problem(StatusCode::METHOD_NOT_ALLOWED, IntakeOutcome::Malformed, "method-not-allowed", title, detail);
        wrong.headers.extend(HeaderValue::from_str(allowed).ok().map(|allowed| (hyper::header::ALLOW, allowed)));
        wrong.into()
    }

    /// Nothing was stored: the sender should come again.
    pub fn unavailable(error: &StoreError) -> Answer {
        tracing::debug!("a request was refused: {error}");
        let (slug, detail) = match error {
            StoreError::Full(why) => ("temporary-reduced-capacity", format!("Nothing was stored: {why}.")),
            _ => ("storage-unavailable", "Nothing was stored: the store cannot write at the moment.".to_string()),
        };
        not_now(slug, detail)
    }

    /// Nothing was stored: other installations cannot be asked whether they have it.
    pub fn keys_unavailable(error: &StoreError) -> Answer {
        tracing::debug!("a request was refused: {error}");
        not_now("storage-unavailable", "Nothing was stored: the key store cannot be asked at the moment.".into())
    }

    /// Another installation is storing it and has not said yet how that ended.
    pub fn in_flight() -> Answer {
        let detail = "Another installation began to store this key and has not finished. Send it again.".into();
        let title = "This key is being stored at this moment";
        let mut busy = problem(StatusCode::CONFLICT, IntakeOutcome::InFlight, "idempotency-in-flight", title, detail);
        busy.headers.push((hyper::header::RETRY_AFTER, RETRY_AFTER));
        busy.into()
    }

    pub fn outcome(&self) -> IntakeOutcome {
        match self {
            Answer::Success { replayed: false, .. } => IntakeOutcome::Accepted,
            Answer::Success { replayed: true, .. } => IntakeOutcome::Duplicate,
            Answer::Handshake(_) | Answer::Allowed(_) => IntakeOutcome::Handshake,
            Answer::Problem(problem) => problem.outcome,
        }
    }

    /// For the operator: a word of a fixed list, and what the sender is told.
    pub fn told(&self) -> (&'static str, String) {
        match self {
            Answer::Problem(problem) => (problem.slug, problem.detail.trim_end_matches('.').to_string()),
            Answer::Success { .. } | Answer::Handshake(_) | Answer::Allowed(_) => ("", String::new()),
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Answer::Success { status, .. } => *status,
            Answer::Handshake(answer) => answer.status,
            Answer::Allowed(_) => StatusCode::OK.as_u16(),
            Answer::Problem(problem) => problem.status.as_u16(),
        }
    }

    /// With the trace that the request is in: who asks about it later can say which one it was.
    pub fn into_response(self, trace: TraceId) -> Response<Full<Bytes>> {
        let mut response = self.bare();
        let mut digits = [0; 32];
        HEXLOWER.encode_mut(&trace.0.to_be_bytes(), &mut digits);
        let value = HeaderValue::from_bytes(&digits).expect("hexadecimal digits");
        response.headers_mut().insert(TRACE_HEADER, value);
        response
    }

    fn bare(self) -> Response<Full<Bytes>> {
        match self {
            Answer::Handshake(answer) => {
                let mut response = Response::new(Full::new(answer.body.into()));
                *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
                let headers = response.headers_mut();
                headers.insert(hyper::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                if let Some(kind) = answer.content_type {
                    headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(kind));
                }
                response
            }
            Answer::Allowed(origin) => {
                let mut response = Response::new(Full::default());
                let headers = response.headers_mut();
                headers.insert("webhook-allowed-origin", origin);
                headers.insert("webhook-allowed-rate", HeaderValue::from_static("*"));
                headers.insert(hyper::header::ALLOW, HeaderValue::from_static("POST"));
                response
            }
            Answer::Success { body, status, replayed, quota } => {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::ACCEPTED);
                let headers = response.headers_mut();
                headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                if replayed {
                    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
                }
                headers.extend(quota.iter().flat_map(|told| told.headers()));
                response
            }
            Answer::Problem(problem) => problem.into_response(),
        }
    }
}

impl Problem {
    fn into_response(self) -> Response<Full<Bytes>> {
        let mut body = serde_json::Map::new();
        let kind = self.registered.map_or_else(|| format!("urn:clinch:problem:{}", self.slug), str::to_string);
        body.insert("type".into(), kind.into());
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        for (name, value) in self.more {
            body.insert(name.into(), value);
        }
        let mut response = Response::new(Full::new(serde_json::Value::Object(body).to_string().into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        if self.close {
            headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
