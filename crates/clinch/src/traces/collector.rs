//! The collector: one connection to it, over which one batch after another is told. OTLP over HTTP is a request; over gRPC it is a
//! request of HTTP/2 with five bytes in front of the message and the outcome behind it.

use bytes::{BufMut, Bytes, BytesMut};
use clinch_core::trace::Protocol;
use http::header::{CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const HTTP_PATH: &str = "/v1/traces";
const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// More of an answer is not read: it says little, and only where something was refused.
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub struct Collector {
    uri: Uri,
    protocol: Protocol,
    headers: HeaderMap,
    tls: TlsConnector,
    line: Option<Line>,
}

/// Why a batch was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTold {
    /// It may be taken later.
    #[error("{0}")]
    Later(String),
    /// However often it is told.
    #[error("{0}")]
    Never(String),
}

enum Line {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Collector {
    pub fn new(
        endpoint: &str,
        protocol: Protocol,
        headers: &[(String, String)],
        mut tls: rustls::ClientConfig,
    ) -> Result<Collector, String> {
        let whole = match protocol {
            Protocol::Http if endpoint.ends_with(HTTP_PATH) => endpoint.to_string(),
            Protocol::Http => format!("{}{HTTP_PATH}", endpoint.trim_end_matches('/')),
            Protocol::Grpc => format!("{}{GRPC_PATH}", endpoint.trim_end_matches('/')),
        };
        let bad = || format!("the collector's address `{endpoint}` is not one; write it like http://127.0.0.1:4318");
        let uri: Uri = whole.parse().map_err(|_| bad())?;
        if uri.host().is_none() || !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(bad());
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let bad = |_| format!("the header `{name}` for the collector cannot be sent");
            let mut value = HeaderValue::from_str(value).map_err(|error| bad(error.to_string()))?;
            value.set_sensitive(true);
            map.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|error| bad(error.to_string()))?, value);
        }
        let spoken: &[u8] = if protocol == Protocol::Grpc { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![spoken.to_vec()];
        Ok(Collector { uri, protocol, headers: map, tls: TlsConnector::from(Arc::new(tls)), line: None })
    }

    /// One batch. What goes wrong on a connection ends it.
    pub async fn tell(&mut self, message: &[u8]) -> Result<(), NotTold> {
        let mut line = match self.line.take() {
            Some(line) if line.is_open() => line,
            _ => self.open().await.map_err(NotTold::Later)?,
        };
        let answer = line.send(self.request(message)).await.map_err(NotTold::Later)?;
        let (head, body) = answer.into_parts();
        let read = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let trailers = read.map_err(|error| NotTold::Later(error.to_string()))?.trailers().cloned();
        self.line = Some(line);
        if !head.status.is_success() {
            return Err(refused(head.status));
        }
        match self.protocol {
            Protocol::Http => Ok(()),
            // Where nothing was said before the end, the end came first.
            Protocol::Grpc => outcome(trailers.as_ref().unwrap_or(&head.headers)),
        }
    }

    fn request(&self, message: &[u8]) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(match self.protocol {
            Protocol::Http => Bytes::copy_from_slice(message),
            Protocol::Grpc => framed(message),
        }));
        *request.method_mut() = Method::POST;
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("clinch/", env!("CARGO_PKG_VERSION"))));
        match self.protocol {
            Protocol::Http => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
                let host = self.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
                headers.extend(host.map(|host| (HOST, host)));
                let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = path.parse().unwrap_or_default();
            }
            Protocol::Grpc => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                headers.insert(TE, HeaderValue::from_static("trailers"));
                *request.uri_mut() = self.uri.clone();
            }
        }
        request
    }

    async fn open(&self) -> Result<Line, String> {
        let host = self.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let is_secure = self.uri.scheme_str() == Some("https");
        let port = self.uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
        if !is_secure {
            return Line::over(stream, self.protocol).await;
        }
        let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
        Line::over(stream, self.protocol).await
    }
}

impl Line {
    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        protocol: Protocol,
    ) -> Result<Line, String> {
        let stream = TokioIo::new(stream);
        // What goes wrong on a connection is told to the request that is on it.
        match protocol {
            Protocol::Http => {
                let (line, bytes) = http1::handshake(stream).await.map_err(|error| error.to_string())?;
                tokio::spawn(async move { drop(bytes.await) });
                Ok(Line::One(line))
            }
            Protocol::Grpc => {
                let executor = TokioExecutor::new();
                let (line, bytes) = http2::handshake(executor, stream).await.map_err(|error| error.to_string())?;
                tokio::spawn(async move { drop(bytes.await) });
                Ok(Line::Two(line))
            }
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Line::One(line) => !line.is_closed(),
            Line::Two(line) => !line.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let told = |error: hyper::Error| error.to_string();
        match self {
            Line::One(line) => {
                line.ready().await.map_err(told)?;
                line.send_request(request).await.map_err(told)
            }
            Line::Two(line) => {
                line.ready().await.map_err(told)?;
                line.send_request(request).await.map_err(told)
            }
        }
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).expect("a batch is far below 4 GiB"));
    frame.put_slice(message);
    frame.freeze()
}

/// What the specification says may be told again.
fn refused(status: StatusCode) -> NotTold {
    let said = format!("it answered {}", status.as_u16());
    match status.as_u16() {
        408 | 429 | 502 | 503 | 504 => NotTold::Later(said),
        _ => NotTold::Never(said),
    }
}

fn outcome(said: &HeaderMap) -> Result<(), NotTold> {
    let code = said.get("grpc-status").and_then(|code| code.to_str().ok()?.parse::<u32>().ok());
    match code {
        Some(0) => Ok(()),
        // cancelled, deadline exceeded, resource exhausted, aborted, out of range, unavailable, data loss
        Some(code @ (1 | 4 | 8 | 10 | 11 | 14 | 15)) => Err(NotTold::Later(format!("it answered gRPC status {code}"))),
        Some(code) => Err(NotTold::Never(format!("it answered gRPC status {code}"))),
        None => Err(NotTold::Never("it does not speak gRPC".into())),
    }
}
