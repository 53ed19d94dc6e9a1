//! One HTTP request outward, and the one thing that matters about it: was it sent, and was it answered.

use super::act::{Act, MayBegin, Sending, Sent, Tools};
use super::connection::{Connections, NoConnection, Sender, Target};
use crate::rehearsal::Detour;
use bytes::{Bytes, BytesMut};
use clinch_core::effect::{Idempotency, RECEIPT_BYTES_MAX, Receipt};
use clinch_core::egress::Egress;
use clinch_core::key::{Fingerprint, IdempotencyKey};
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
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

    fn fingerprint(&self) -> Option<(String, Fingerprint)> {
        let place = format!("{} {}", self.method, self.uri);
        let fingerprint = Fingerprint::of(&place, &self.body);
        Some((place, fingerprint))
    }

    fn request(&self) -> Option<(Method, Uri)> {
        Some((self.method.clone(), self.uri.clone()))
    }

    fn told(&self) -> (String, Fingerprint) {
        let place = format!("{} {}", self.method, self.uri);
        let mut headers: Vec<String> = self
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        headers.sort();
        let fingerprint = Fingerprint::of(&format!("{place}\n{}", headers.join("\n")), &self.body);
        (place, fingerprint)
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
    TimedOut,
    Sent(String),
}

impl From<Broken> for Sent {
    fn from(broken: Broken) -> Sent {
        match broken {
            Broken::Unsent(_) => Sent::NotSent("the connection was closed at once".into()),
            Broken::TooLate => Sent::TooLate,
            Broken::TimedOut => Sent::NoAnswer { timed_out: true, why: "no answer in time".into() },
            Broken::Sent(why) => Sent::NoAnswer { timed_out: false, why },
        }
    }
}

pub struct HttpClient {
    connections: Connections,
}

impl HttpClient {
    /// With a detour, nobody outside is called.
    pub fn new(egress: Arc<Egress>, detour: Option<Arc<Detour>>) -> Result<HttpClient, String> {
        Ok(HttpClient { connections: Connections::new(egress, detour)? })
    }

    pub async fn send(&self, call: HttpCall, class: Idempotency, may_begin: MayBegin<'_>) -> Sent {
        let deadline = Instant::now() + call.timeout;
        let (target, answer, mut sender) = match self.deliver(call, class, deadline, may_begin).await {
            Ok(delivered) => delivered,
            Err(sent) => return sent,
        };
        let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_string);
        let status = answer.status().as_u16();
        let (body, is_whole) = read(answer, &mut sender, RECEIPT_BYTES_MAX, deadline).await;
        if is_whole {
            self.connections.keep(&target, sender);
        }
        Sent::Answered { receipt: Receipt { status, body }, retry_after, is_whole }
    }

    /// With all of the answer, as far as it is no longer than `body_bytes_max`.
    pub async fn forward(&self, call: HttpCall, class: Idempotency, body_bytes_max: usize) -> Result<Forwarded, Sent> {
        let deadline = Instant::now() + call.timeout;
        let (target, mut answer, mut sender) = self.deliver(call, class, deadline, &|| Some(Duration::MAX)).await?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let (body, whole) = read(answer, &mut sender, body_bytes_max, deadline).await;
        if whole {
            self.connections.keep(&target, sender);
        }
        Ok(Forwarded { status, headers, body: whole.then_some(body) })
    }

    /// The answer, as soon as its head is here.
    async fn deliver(
        &self,
        call: HttpCall,
        class: Idempotency,
        deadline: Instant,
        may_begin: MayBegin<'_>,
    ) -> Result<(Target, Response<Incoming>, Sender), Sent> {
        let Some(target) = Target::of(&call.uri) else {
            return Err(Sent::Invalid("its url is neither http:// nor https:// with a host".into()));
        };
        let Some(mut request) = request(call) else {
            return Err(Sent::Invalid("it cannot be made into a request".into()));
        };
        // A kept connection may be closed by the target while we write to it, and then nobody knows whether the request
        // arrived: fatal where it must not be repeated. Such requests get a connection of their own.
        if class.may_send_again() {
            while let Some(kept) = self.connections.take(&target) {
                match exchange(kept, request, deadline, may_begin).await {
                    Ok((answer, sender)) => return Ok((target, answer, sender)),
                    Err(Broken::Unsent(back)) => request = *back,
                    Err(broken) => return Err(broken.into()),
                }
            }
        }
        // Boxed, for most requests find a kept one and need no room for it.
        let opening = Box::pin(self.connections.open(&target));
        let fresh = match tokio::time::timeout_at(deadline.min(Instant::now() + CONNECT_TIMEOUT), opening).await {
            Ok(Ok(fresh)) => fresh,
            Ok(Err(NoConnection::Failed(why))) => return Err(Sent::NotSent(why)),
            Ok(Err(NoConnection::Blocked(why))) => return Err(Sent::Blocked(why.to_string())),
            Err(_) => return Err(Sent::NotSent("no connection in time".into())),
        };
        let (answer, sender) = exchange(fresh, request, deadline, may_begin).await?;
        Ok((target, answer, sender))
    }
}

/// An answer that is given to somebody else.
#[derive(Debug)]
pub struct Forwarded {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// `None`: it was too long, or broke off.
    pub body: Option<Bytes>,
}

async fn exchange(
    mut sender: Sender,
    request: Request<Full<Bytes>>,
    deadline: Instant,
    may_begin: MayBegin<'_>,
) -> Result<(Response<Incoming>, Sender), Broken> {
    // A kept connection may still be putting away its last answer, or be closed by now.
    if !matches!(tokio::time::timeout_at(deadline, sender.ready()).await, Ok(Ok(()))) {
        return Err(Broken::Unsent(Box::new(request)));
    }
    if may_begin().is_none() {
        return Err(Broken::TooLate);
    }
    match tokio::time::timeout_at(deadline, sender.send(request)).await {
        Err(_) => Err(Broken::TimedOut),
        Ok(Ok(answer)) if answer.status().is_informational() => {
            Err(Broken::Sent(format!("it only announced one, with {}", answer.status().as_u16())))
        }
        Ok(Ok(answer)) => Ok((answer, sender)),
        Ok(Err(mut error)) => Err(match error.take_message() {
            Some(back) => Broken::Unsent(Box::new(back)),
            None => Broken::Sent(root_cause(error.error())),
        }),
    }
}

/// The body, and whether it is all of it. The status is the answer: a body that breaks off, is too long or too slow changes
/// nothing about what was done.
async fn read(answer: Response<Incoming>, sender: &mut Sender, bytes_max: usize, deadline: Instant) -> (Bytes, bool) {
    let mut incoming = answer.into_body();
    let mut body = BytesMut::new();
    loop {
        match tokio::time::timeout_at(deadline, sender.frame(&mut incoming)).await {
            Ok(None) => return (body.freeze(), true),
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                let room = bytes_max - body.len();
                body.extend_from_slice(&data[..data.len().min(room)]);
                if data.len() > room {
                    return (body.freeze(), false);
                }
            }
            Ok(Some(Err(_))) | Err(_) => return (body.freeze(), false),
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
