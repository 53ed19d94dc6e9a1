//! One HTTP request outward, and the one thing that matters about it: was it sent, and was it answered.

use bytes::{Bytes, BytesMut};
use clinch_core::effect::{Idempotency, RECEIPT_BYTES_MAX, Receipt};
use clinch_core::key::IdempotencyKey;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Kept shorter than the keep-alive of common servers: a connection that they close under us costs an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
const IDLE_PER_HOST_MAX: usize = 256;

#[derive(Debug)]
pub struct HttpCall {
    pub method: http::Method,
    pub url: url::Url,
    pub headers: http::HeaderMap,
    pub body: Bytes,
    pub timeout: Duration,
    pub key: IdempotencyKey,
}

#[derive(Debug)]
pub enum Sent {
    Answered {
        receipt: Receipt,
        retry_after: Option<String>,
    },
    /// No byte of it left.
    NotSent(String),
    /// It may or may not have arrived.
    NoAnswer {
        timed_out: bool,
        why: String,
    },
    /// It could not be made into a request at all.
    Invalid(String),
}

pub struct HttpClient {
    /// Keeps connections, for targets where a repeated request is harmless.
    keeping: reqwest::Client,
    /// A new connection each time. A kept one may be closed by the target while we write to it, and then nobody knows
    /// whether the request arrived: fatal where it must not be repeated.
    fresh: reqwest::Client,
}

impl HttpClient {
    pub fn new() -> Result<HttpClient, String> {
        let keeping = |builder: reqwest::ClientBuilder| {
            builder.pool_idle_timeout(IDLE_TIMEOUT).pool_max_idle_per_host(IDLE_PER_HOST_MAX)
        };
        let fresh = |builder: reqwest::ClientBuilder| builder.pool_max_idle_per_host(0);
        Ok(HttpClient { keeping: client(keeping)?, fresh: client(fresh)? })
    }

    pub async fn send(&self, call: HttpCall, class: Idempotency) -> Sent {
        let client = if class.may_send_again() { &self.keeping } else { &self.fresh };
        let Ok(key) = http::HeaderValue::from_str(call.key.as_str()) else {
            return Sent::Invalid("its idempotency key is not a header value".into());
        };
        let mut request = reqwest::Request::new(call.method, call.url);
        *request.headers_mut() = call.headers;
        request.headers_mut().insert("idempotency-key", key);
        if !call.body.is_empty() {
            *request.body_mut() = Some(call.body.into());
        }
        match tokio::time::timeout(call.timeout, exchange(client, request)).await {
            Ok(sent) => sent,
            Err(_) => Sent::NoAnswer { timed_out: true, why: format!("no answer within {:?}", call.timeout) },
        }
    }
}

async fn exchange(client: &reqwest::Client, request: reqwest::Request) -> Sent {
    let mut response = match client.execute(request).await {
        Ok(response) => response,
        Err(error) if error.is_builder() => return Sent::Invalid(root_cause(&error)),
        Err(error) if error.is_connect() => return Sent::NotSent(root_cause(&error)),
        Err(error) => {
            return Sent::NoAnswer { timed_out: error.is_timeout(), why: root_cause(&error) };
        }
    };
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_string);
    let mut body = BytesMut::new();
    // The status is the answer. A body that breaks off or does not end changes nothing about what was done.
    while body.len() < RECEIPT_BYTES_MAX {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk[..chunk.len().min(RECEIPT_BYTES_MAX - body.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    Sent::Answered { receipt: Receipt { status, body: body.freeze() }, retry_after }
}

/// The innermost error, without the URL: it may hold a secret.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    if text.contains("://") { "the request failed".into() } else { text }
}

fn client(shape: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder) -> Result<reqwest::Client, String> {
    let builder = || {
        shape(reqwest::Client::builder())
            .connect_timeout(CONNECT_TIMEOUT)
            // The ledger counts sends: nothing may be sent again behind its back.
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .user_agent(concat!("clinch/", env!("CARGO_PKG_VERSION")))
    };
    // A machine without certificate files still has the roots that clinch brings along.
    builder().build().or_else(|_| {
        let roots =
            webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().filter_map(|der| reqwest::Certificate::from_der(der).ok());
        builder().tls_certs_only(roots).build().map_err(|error| format!("the HTTP client cannot be made: {error}"))
    })
}
