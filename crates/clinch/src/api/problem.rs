//! What a caller is told when it does not get what it asked for: `application/problem+json` (RFC 9457), always.

use crate::masking::rules;
use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use clinch_store::StoreError;
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    slug: &'static str,
    title: &'static str,
    detail: String,
    /// The steps that wait for a ruling.
    steps: Vec<String>,
    /// After so many seconds it may be asked again.
    retry_after: Option<u64>,
}

/// The problem, as it is sent.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Told {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    /// What happened, and what to do.
    detail: String,
    /// Which problem it is; it stays the same.
    code: &'static str,
    /// The steps that wait for a ruling.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<String>,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, slug: &'static str, title: &'static str, detail: String) -> Problem {
        Problem { status, code, slug, title, detail, steps: Vec::new(), retry_after: None }
    }

    pub fn unauthorized() -> Problem {
        let detail = "Send `Authorization: Bearer <token>`: one from `clinch users add NAME --role ROLE`, or the one in admin.token in the server's data directory.";
        Problem::new(StatusCode::UNAUTHORIZED, "CL0501", "unauthorized", "The token is missing or wrong", detail.into())
    }

    pub fn not_allowed(detail: String) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "CL0502", "not-allowed", "The role does not allow this", detail)
    }

    pub fn too_often(wait: Duration) -> Problem {
        let seconds = wait.as_secs().max(1);
        let detail = format!("There were too many tries of late; try again in {seconds} seconds.");
        Problem {
            retry_after: Some(seconds),
            ..Problem::new(StatusCode::TOO_MANY_REQUESTS, "CL0517", "too-often", "Too many tries", detail)
        }
    }

    pub fn bad_query(detail: String) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "CL0503", "bad-query", "The question cannot be read", detail)
    }

    pub fn bad_body(detail: String) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "CL0507", "bad-body", "The command cannot be read", detail)
    }

    pub fn too_large() -> Problem {
        let detail = format!("A command has at most {} bytes.", super::BODY_BYTES_MAX);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "CL0507", "too-large", "The command is too large", detail)
    }

    pub fn not_found(detail: String) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "CL0505", "not-found", "It is not there", detail)
    }

    /// A workspace with errors: each on a line of its own.
    pub fn config_invalid(detail: String) -> Problem {
        let title = "The workspace has problems";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "CL0519", "config-invalid", title, detail)
    }

    pub fn not_now(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0511", "not-now", "This cannot be done now", detail)
    }

    /// Another command was sent under this key.
    pub fn key_reused(detail: String) -> Problem {
        let title = "The key belongs to another command";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "CL0515", "key-reused", title, detail)
    }

    /// A command under this key is being carried out, or was and cannot be told again.
    pub fn key_in_use(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0516", "key-in-use", "A command under this key was sent before", detail)
    }

    pub fn wrong_method(detail: String) -> Problem {
        let title = "This method is not taken here";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "CL0506", "method-not-allowed", title, detail)
    }

    pub fn full(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0511", "full", "There is no room for another", detail)
    }

    pub fn taken(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0511", "taken", "Somebody has this name", detail)
    }

    /// Nobody's word is needed on this effect.
    pub fn not_unknown(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0512", "not-unknown", "The effect is not of unknown outcome", detail)
    }

    /// Another verdict came first.
    pub fn decided_before(detail: String) -> Problem {
        Problem::new(StatusCode::CONFLICT, "CL0513", "decided-before", "It was decided before", detail)
    }

    /// Others decide it.
    pub fn not_yours(detail: String) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "CL0514", "not-yours", "This vote does not count", detail)
    }

    /// Only a person can say what becomes of these steps.
    pub fn needs_ruling(steps: Vec<String>) -> Problem {
        let detail = format!(
            "It is not known whether {} happened. Say `unknown: skip` to take it as done, or `unknown: resend` to send it \
             again, which may repeat it.",
            steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", ")
        );
        let title = "An effect has an unknown outcome";
        Problem { steps, ..Problem::new(StatusCode::CONFLICT, "CL0508", "needs-ruling", title, detail) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        if let StoreError::NotAllowed(why) = error {
            return Problem::not_allowed(format!("{why}."));
        }
        tracing::warn!("a question could not be answered: {error}");
        let title = "The store cannot answer at the moment";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Problem {
            retry_after: Some(2),
            ..Problem::new(status, "CL0510", "store-unavailable", title, error.to_string())
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Told {
            kind: format!("urn:clinch:problem:{}", self.slug),
            title: self.title,
            status: self.status.as_u16(),
            // A question is answered with its own words; they may be an address or a token that was pasted.
            detail: rules().sentence(&self.detail),
            code: self.code,
            steps: self.steps,
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
