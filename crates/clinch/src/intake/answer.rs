//! What a caller gets: the first answer, the same again, or a problem (RFC 9457) that says what to do.

use crate::telemetry::IntakeOutcome;
use bytes::Bytes;
use clinch_core::key::NoKey;
use clinch_store::{Accepted, StoreError};
use http_body_util::Full;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

/// After a refusal that will pass: how many seconds to wait.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

#[derive(Debug)]
pub enum Answer {
    Success { body: Bytes, status: u16, replayed: bool },
    Problem(Box<Problem>),
}

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    outcome: IntakeOutcome,
    slug: &'static str,
    title: &'static str,
    detail: String,
    /// Members of this kind of problem.
    more: Vec<(&'static str, String)>,
    header: Option<(HeaderName, HeaderValue)>,
    /// Whether the connection can be used again after it.
    close: bool,
}

fn success(first: &Accepted, replayed: bool) -> Answer {
    let body = format!(r#"{{"event_id":"{}","job_id":"{}","status":"accepted"}}"#, first.event, first.job);
    Answer::Success { body: body.into(), status: first.status, replayed }
}

fn problem(
    status: StatusCode,
    outcome: IntakeOutcome,
    slug: &'static str,
    title: &'static str,
    detail: String,
) -> Problem {
    Problem { status, outcome, slug, title, detail, more: Vec::new(), header: None, close: false }
}

fn malformed(slug: &'static str, title: &'static str, detail: String) -> Problem {
    problem(StatusCode::BAD_REQUEST, IntakeOutcome::Malformed, slug, title, detail)
}

fn not_now(slug: &'static str, detail: String) -> Answer {
    let title = "Not now; send it again later";
    let mut away = problem(StatusCode::SERVICE_UNAVAILABLE, IntakeOutcome::StoreError, slug, title, detail);
    away.header = Some((hyper::header::RETRY_AFTER, RETRY_AFTER));
    away.into()
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Answer {
        Answer::Problem(Box::new(problem))
    }
}

impl Answer {
    pub fn accepted(first: &Accepted) -> Answer {
        success(first, false)
    }

    /// The first answer, word for word.
    pub fn again(first: &Accepted) -> Answer {
        success(first, true)
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
        problem.more = vec![("first_seen", first.received_at.to_string()), ("job_id", first.job.to_string())];
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

    pub fn encoded() -> Answer {
        let detail = "Send the body without Content-Encoding.".into();
        let title = "Encoded bodies are not taken";
        problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, IntakeOutcome::Malformed, "unsupported-encoding", title, detail)
            .into()
    }

    pub fn too_large(most: usize) -> Answer {
        let detail = format!("This route takes bodies of at most {most} bytes.");
        let title = "The body is too large";
        let mut large = problem(StatusCode::PAYLOAD_TOO_LARGE, IntakeOutcome::TooLarge, "too-large", title, detail);
        large.close = true;
        large.into()
    }

    pub fn too_slow() -> Answer {
        let detail = format!("A body has to arrive within {} s.", super::body::BODY_TIMEOUT.as_secs());
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
        wrong.header = HeaderValue::from_str(allowed).ok().map(|allowed| (hyper::header::ALLOW, allowed));
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
        busy.header = Some((hyper::header::RETRY_AFTER, RETRY_AFTER));
        busy.into()
    }

    pub fn outcome(&self) -> IntakeOutcome {
        match self {
            Answer::Success { replayed: false, .. } => IntakeOutcome::Accepted,
            Answer::Success { replayed: true, .. } => IntakeOutcome::Duplicate,
            Answer::Problem(problem) => problem.outcome,
        }
    }

    pub fn into_response(self) -> Response<Full<Bytes>> {
        match self {
            Answer::Success { body, status, replayed } => {
                let mut response = Response::new(Full::new(body));
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::ACCEPTED);
                let headers = response.headers_mut();
                headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                if replayed {
                    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
                }
                response
            }
            Answer::Problem(problem) => problem.into_response(),
        }
    }
}

impl Problem {
    fn into_response(self) -> Response<Full<Bytes>> {
        let mut body = serde_json::Map::new();
        body.insert("type".into(), format!("urn:clinch:problem:{}", self.slug).into());
        body.insert("title".into(), self.title.into());
        body.insert("status".into(), self.status.as_u16().into());
        body.insert("detail".into(), self.detail.into());
        for (name, value) in self.more {
            body.insert(name.into(), value.into());
        }
        let mut response = Response::new(Full::new(serde_json::Value::Object(body).to_string().into()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        if self.close {
            headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
