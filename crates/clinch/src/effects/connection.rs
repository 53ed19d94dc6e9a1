//! Connections to targets: opened when needed, kept for a short while, given out one request at a time.
//!
//! Our own rather than a client library's, because the ledger must know exactly whether a request was written to a
//! connection or not: libraries send again by themselves, and do not always tell.

use crate::rehearsal::Detour;
use crate::trust::tls_config;
use bytes::Bytes;
use clinch_core::egress::{Blocked, Egress};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Kept shorter than the keep-alive of common servers: a connection that they close under us costs an answer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
const IDLE_PER_TARGET_MAX: usize = 256;
/// To all targets together: addresses may come out of events, and each kept connection is an open file.
const IDLE_MAX: usize = 1_024;

/// No more is taken from the wire before the head of an answer is whole. The head itself may not be as long.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// What a request is sent on. Whoever uses it moves its bytes along: a task of its own would have to be woken for every request.
pub struct Sender {
    requests: http1::SendRequest<Full<Bytes>>,
    line: Line,
    allowance: Arc<AtomicUsize>,
}

/// The bytes of a connection, to and fro, for as long as it is open.
struct Line(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Line {
    /// What goes wrong on it is told to the request that is on it.
    async fn drive<T>(&mut self, exchange: impl Future<Output = T>) -> T {
        let mut exchange = pin!(exchange);
        poll_fn(|cx| {
            let asked = exchange.as_mut().poll(cx);
            if asked.is_ready() {
                return asked;
            }
            if self.0.as_mut().is_some_and(|bytes| bytes.as_mut().poll(cx).is_ready()) {
                self.0 = None;
            }
            exchange.as_mut().poll(cx)
        })
        .await
    }
}

impl Sender {
    /// Whether it is still open, and has put away its last answer.
    pub async fn ready(&mut self) -> hyper::Result<()> {
        self.line.drive(self.requests.ready()).await
    }

    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        self.allowance.store(HEAD_BYTES_MAX, Ordering::Relaxed);
        let answer = self.line.drive(self.requests.try_send_request(request)).await?;
        // How much of a body is read is up to its reader.
        self.allowance.store(usize::MAX, Ordering::Relaxed);
        Ok(answer)
    }

    /// The next part of an answer that came on it.
    pub async fn frame(&mut self, answer: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
        self.line.drive(answer.frame()).await
    }
}

/// A stream of which only so much is read, until more is allowed. Answers that announce an answer (1xx) can follow each other for ever, and are read
/// without a pause: a few of those that send them would keep all threads busy.
struct Measured<S> {
    stream: S,
    allowance: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Measured<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.allowance.load(Ordering::Relaxed) == 0 {
            return Poll::Ready(Err(io::Error::other("its answer never begins")));
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, into);
        let read = into.filled().len() - before;
        let rest = self.allowance.load(Ordering::Relaxed).saturating_sub(read);
        self.allowance.store(rest, Ordering::Relaxed);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Measured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Why no connection could be had; nothing was sent.
#[derive(Debug)]
pub enum NoConnection {
    Failed(String),
    Blocked(Blocked),
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    tls: bool,
    host: String,
    port: u16,
}

impl Target {
    pub fn of(uri: &Uri) -> Option<Target> {
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_string();
        let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
        (!host.is_empty()).then_some(Target { tls, host, port })
    }
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// The connections that are kept.
#[derive(Default)]
struct Shelf {
    kept: HashMap<Target, Vec<Idle>>,
    /// Of all targets.
    count: usize,
}

impl Shelf {
    fn take(&mut self, target: &Target) -> Option<Sender> {
        let kept = self.kept.get_mut(target)?;
        while let Some(idle) = kept.pop() {
            self.count -= 1;
            if idle.since.elapsed() < IDLE_TIMEOUT {
                return Some(idle.sender);
            }
        }
        None
    }

    /// Where there is no room for it, it is closed.
    fn keep(&mut self, target: &Target, sender: Sender) {
        if self.count >= IDLE_MAX {
            return;
        }
        let idle = Idle { sender, since: Instant::now() };
        match self.kept.get_mut(target) {
            Some(kept) if kept.len() >= IDLE_PER_TARGET_MAX => return,
            Some(kept) => kept.push(idle),
            None => {
                self.kept.insert(target.clone(), vec![idle]);
            }
        }
        self.count += 1;
    }

    fn sweep(&mut self) {
        self.kept.retain(|_, kept| {
            kept.retain(|idle| idle.since.elapsed() < IDLE_TIMEOUT);
            !kept.is_empty()
        });
        self.count = self.kept.values().map(Vec::len).sum();
    }
}

pub struct Connections {
    tls: TlsConnector,
    egress: Arc<Egress>,
    detour: Option<Arc<Detour>>,
    idle: Arc<Mutex<Shelf>>,
}

impl Connections {
    pub fn new(egress: Arc<Egress>, detour: Option<Arc<Detour>>) -> Result<Connections, String> {
        let idle: Arc<Mutex<Shelf>> = Arc::default();
        tokio::spawn(sweep(Arc::downgrade(&idle)));
        let mut config = tls_config()?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Connections { tls: TlsConnector::from(Arc::new(config)), egress, detour, idle })
    }

    /// A kept connection, the most recently used first. Whether it is still open is seen when it is used.
    pub fn take(&self, target: &Target) -> Option<Sender> {
        lock(&self.idle).take(target)
    }

    /// For the next request to the same target.
    pub fn keep(&self, target: &Target, sender: Sender) {
        lock(&self.idle).keep(target, sender);
    }

    pub async fn open(&self, target: &Target) -> Result<Sender, NoConnection> {
        if let Some(detour) = &self.detour {
            return handshake(aside(detour.http).await?).await;
        }
        let Target { tls, host, port } = target;
        self.egress.check_host(*tls, host, *port).map_err(NoConnection::Blocked)?;
        let stream = dial(&self.egress, host, *port).await?;
        if !tls {
            return handshake(stream).await;
        }
        handshake(encrypt(&self.tls, host, stream).await?).await
    }
}

/// A connection to whoever stands in for the target.
pub async fn aside(address: SocketAddr) -> Result<TcpStream, NoConnection> {
    let stream = TcpStream::connect(address).await.map_err(|error| NoConnection::Failed(error.to_string()))?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// A connection to a host whose name was looked at, if all that it is at this moment may be called.
pub async fn dial(egress: &Egress, host: &str, port: u16) -> Result<TcpStream, NoConnection> {
    let failed = |error: std::io::Error| NoConnection::Failed(error.to_string());
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
    for address in &addresses {
        egress.check_address(host, address.ip()).map_err(NoConnection::Blocked)?;
    }
    if addresses.is_empty() {
        return Err(NoConnection::Failed("its host has no address".into()));
    }
    let stream = TcpStream::connect(&addresses[..]).await.map_err(failed)?;
    // Whatever is between us and them: who answers must be one of those that were looked at.
    if !stream.peer_addr().is_ok_and(|peer| addresses.contains(&peer)) {
        return Err(NoConnection::Failed("somebody else answered".into()));
    }
    // A request is one small write: waiting to fill a packet only adds delay.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// TLS to whoever has this name.
pub async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
    tls: &TlsConnector,
    host: &str,
    stream: S,
) -> Result<TlsStream<S>, NoConnection> {
    let name = ServerName::try_from(host.to_string())
        .map_err(|_| NoConnection::Failed("its host is not a name that a certificate can have".into()))?;
    tls.connect(name, stream).await.map_err(|error| NoConnection::Failed(error.to_string()))
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Sender, NoConnection> {
    let allowance = Arc::new(AtomicUsize::new(HEAD_BYTES_MAX));
    let stream = TokioIo::new(Measured { stream, allowance: allowance.clone() });
    // Requests are so small that copying them together is cheaper than describing their parts to the kernel.
    let (requests, connection) = http1::Builder::new()
        .writev(false)
        .handshake(stream)
        .await
        .map_err(|error| NoConnection::Failed(error.to_string()))?;
    let bytes = async move {
        // What went wrong was told to the request.
        let _ = connection.await;
    };
    Ok(Sender { requests, line: Line(Some(Box::pin(bytes))), allowance })
}

fn lock(shelf: &Mutex<Shelf>) -> std::sync::MutexGuard<'_, Shelf> {
    shelf.lock().expect("nobody panics while holding the shelf")
}

/// Closes connections that nobody has used for a while, as long as there is anybody who might.
async fn sweep(shelf: std::sync::Weak<Mutex<Shelf>>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(shelf) = shelf.upgrade() else { return };
        lock(&shelf).sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_from_an_absolute_url() {
        let check = |url: &str, tls: bool, host: &str, port: u16| {
            let target = Target { tls, host: host.into(), port };
            assert_eq!(Target::of(&url.parse().expect("a uri")), Some(target), "{url}");
        };
        check("http://example.com/x?y=1", false, "example.com", 80);
        check("https://example.com", true, "example.com", 443);
        check("http://[::1]:8080/", false, "::1", 8080);
        for bad in ["/x", "ftp://example.com/", "http://user:pass@example.com/"] {
            assert_eq!(Target::of(&bad.parse().expect("a uri")), None, "{bad}");
        }
    }

    async fn sender() -> Sender {
        handshake(tokio::io::duplex(64).0).await.expect("a connection")
    }

    #[tokio::test]
    async fn p10_kept_connections_are_bounded_for_each_target_and_over_all() {
        let target = |nth: usize| Target { tls: false, host: format!("{nth}.example.com"), port: 80 };
        let mut shelf = Shelf::default();
        for _ in 0..IDLE_PER_TARGET_MAX + 1 {
            shelf.keep(&target(0), sender().await);
        }
        assert_eq!((shelf.count, shelf.kept[&target(0)].len()), (IDLE_PER_TARGET_MAX, IDLE_PER_TARGET_MAX));
        for nth in 1..=IDLE_MAX {
            shelf.keep(&target(nth), sender().await);
        }
        assert_eq!((shelf.count, shelf.kept.values().map(Vec::len).sum::<usize>()), (IDLE_MAX, IDLE_MAX));
        assert!(shelf.take(&target(IDLE_MAX)).is_none(), "it was not kept");
        // Whoever is used makes room, and so does what was swept away.
        assert!(shelf.take(&target(1)).is_some());
        shelf.keep(&target(IDLE_MAX), sender().await);
        assert!(shelf.take(&target(IDLE_MAX)).is_some());
        shelf.sweep();
        assert_eq!(shelf.count, IDLE_MAX - 1);
    }
}
