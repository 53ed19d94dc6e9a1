//! One HTTP request outward, and the one thing that matters about it: was it sent, and was it answered.

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use super::connection::{Connections, NoConnection, Target};
use bytes::{Bytes, BytesMut};
use clinch_core::effect::{Idempotency, RECEIPT_BYTES_MAX, Receipt};
use clinch_core::egress::Egress;
use clinch_core::key::IdempotencyKey;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Opening a connection takes at most this long, whatever the step allows.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct HttpCall {
    pub method: Method,
    /// Absolute, http or https.
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub timeout: Duration,
    /// Our key, in the header that the target knows it by.
    pub key: Option<(HeaderName, IdempotencyKey)>,
}

impl Act for HttpCall {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn send<'a>(self: Box<Self>, tools: &'a Tools, class: Idempotency, may_begin: MayBegin<'a>) -> Sending<'a> {
        Box::pin(tools.http.send(*self, class, may_begin))
    }
}

/// Where a failed exchange stands: whether the request can be tried on another connection is exactly whether it was sent.
enum Broken {
    /// Not a byte was written; here it is back.
    Unsent(Box<Request<Full<Bytes>>>),
    TooLate,
    Sent(String),
}

pub struct HttpClient {
    connections: Connections,
}

impl HttpClient {
    pub fn new(egress: Arc<Egress>) -> Result<HttpClient, String> {
        Ok(HttpClient { connections: Connections::new(egress)? })
    }

    pub async fn send(&self, call: HttpCall, class: Idempotency, may_begin: MayBegin<'_>) -> Sent {
        let deadline = Instant::now() + call.timeout;
        let Some(target) = Target::of(&call.uri) else {
            return Sent::Invalid("its url is neither http:// nor https:// with a host".into());
        };
        let Some(mut request) = request(call) else {
            return Sent::Invalid("it cannot be made into a request".into());
        };
        // A kept connection may be closed by the target while we write to it, and then nobody knows whether the request
        // arrived: fatal where it must not be repeated. Such requests get a connection of their own.
        if class.may_send_again() {
            while let Some(kept) = self.connections.take(&target) {
                match self.exchange(kept, &target, request, deadline, may_begin).await {
                    Ok(sent) => return sent,
                    Err(Broken::Unsent(back)) => request = *back,
                    Err(Broken::TooLate) => return Sent::TooLate,
                    Err(Broken::Sent(why)) => return Sent::NoAnswer { timed_out: false, why },
                }
            }
        }
        let opened =
            tokio::time::timeout_at(deadline.min(Instant::now() + CONNECT_TIMEOUT), self.connections.open(&target));
        let fresh = match opened.await {
            Ok(Ok(fresh)) => fresh,
            Ok(Err(NoConnection::Failed(why))) => return Sent::NotSent(why),
            Ok(Err(NoConnection::Blocked(why))) => return Sent::Blocked(why.to_string()),
            Err(_) => return Sent::NotSent("no connection in time".into()),
        };
        match self.exchange(fresh, &target, request, deadline, may_begin).await {
            Ok(sent) => sent,
            Err(Broken::TooLate) => Sent::TooLate,
            Err(Broken::Unsent(_)) => Sent::NotSent("the connection was closed at once".into()),
            Err(Broken::Sent(why)) => Sent::NoAnswer { timed_out: false, why },
        }
    }

    async fn exchange(
        &self,
        mut sender: super::connection::Sender,
        target: &Target,
        request: Request<Full<Bytes>>,
        deadline: Instant,
        may_begin: MayBegin<'_>,
    ) -> Result<Sent, Broken> {
        // A kept connection may still be putting away its last answer, or be closed by now.
        if !matches!(tokio::time::timeout_at(deadline, sender.ready()).await, Ok(Ok(()))) {
            return Err(Broken::Unsent(Box::new(request)));
        }
        if !may_begin() {
            return Err(Broken::TooLate);
        }
        let answer = match tokio::time::timeout_at(deadline, sender.try_send_request(request)).await {
            Err(_) => return Ok(Sent::NoAnswer { timed_out: true, why: "no answer in time".into() }),
            Ok(Ok(answer)) => answer,
            Ok(Err(mut error)) => {
                return Err(match error.take_message() {
                    Some(back) => Broken::Unsent(Box::new(back)),
                    None => Broken::Sent(root_cause(error.error())),
                });
            }
        };
        let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_string);
        let (receipt, whole) = read(answer, deadline).await;
        if whole {
            self.connections.keep(target, sender);
        }
        Ok(Sent::Answered { receipt, retry_after })
    }
}

/// The status is the answer. A body that breaks off, is too long or too slow changes nothing about what was done.
async fn read(answer: Response<Incoming>, deadline: Instant) -> (Receipt, bool) {
    let status = answer.status().as_u16();
    let mut incoming = answer.into_body();
    let mut body = BytesMut::new();
    loop {
        match tokio::time::timeout_at(deadline, incoming.frame()).await {
            Ok(None) => return (Receipt { status, body: body.freeze() }, true),
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                body.extend_from_slice(&data[..data.len().min(RECEIPT_BYTES_MAX - body.len())]);
                if body.len() == RECEIPT_BYTES_MAX {
                    return (Receipt { status, body: body.freeze() }, false);
                }
            }
            Ok(Some(Err(_))) | Err(_) => return (Receipt { status, body: body.freeze() }, false),
        }
    }
}

fn request(call: HttpCall) -> Option<Request<Full<Bytes>>> {
    let host = HeaderValue::from_str(call.uri.authority()?.as_str()).ok()?;
    let mut request = Request::new(Full::new(call.body));
    *request.method_mut() = call.method;
    *request.uri_mut() = call.uri.into_parts().path_and_query.map_or_else(|| Uri::from_static("/"), Uri::from);
    *request.headers_mut() = call.headers;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    if let Some((name, key)) = &call.key {
        headers.insert(name, HeaderValue::from_str(key.as_str()).ok()?);
    }
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(concat!("clinch/", env!("CARGO_PKG_VERSION"))));
    Some(request)
}

fn root_cause(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
