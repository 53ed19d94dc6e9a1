//! A listener that nobody can hold: handshakes, headers and silence have deadlines, connections a bound for each address
//! and for all, and stopping is graceful. HTTP/1.1, and HTTP/2 where TLS agrees on it.

mod places;
pub mod tls;
mod wire;

pub use places::Places;

use crate::telemetry::{ByListener, ByListenerReason, Metrics};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use places::{Full, Place};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tls::Tls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use wire::{Quiet, Watch, Wire};

/// A handshake has to be done within this time, and so have headers once they began. A new connection has to begin at
/// once.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that was used may wait this long for its next request.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A request line and its headers have at most this size.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// After a stop, requests under way have this long.
const DRAIN: Duration = Duration::from_secs(10);

const STREAMS_MAX: u32 = 100;
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;
/// Streams that the other side began and took back, and those that we had to end: beyond it the connection is ended.
const RESET_STREAMS_MAX: usize = 20;
const ERROR_STREAMS_MAX: usize = 100;
/// What all streams of a connection may have under way together, unread.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// A peer that is gone without a word is found out by asking it.
const PING_EVERY: Duration = Duration::from_secs(20);

/// What a listener is.
#[derive(Clone)]
pub struct Listener {
    /// What metrics call it.
    pub name: &'static str,
    pub places: Places,
    pub tls: Option<Tls>,
    pub metrics: Arc<Metrics>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves until `stop`, then lets requests under way finish. Each connection has a service of its own, which is told who
/// called.
pub async fn serve<S, B>(
    socket: TcpListener,
    listener: Listener,
    service: impl Fn(IpAddr) -> S,
    stop: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failure>> + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Failure>> + Send + Unpin + 'static,
{
    let graceful = GracefulShutdown::new();
    let open = listener.metrics.connections.get_or_create_owned(&ByListener { listener: listener.name.into() });
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = socket.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(connected) => connected,
            Err(error) => {
                // Out of file descriptors, mostly: give connections a moment to close rather than spin.
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = match listener.places.take(peer.ip()) {
            Ok(place) => place,
            Err(full) => {
                listener.refused(full.word());
                turn_away(&stream, full, listener.tls.is_some());
                continue;
            }
        };
        // Answers are small and single: waiting to fill a packet only adds delay.
        let _ = stream.set_nodelay(true);
        let guest = Guest { service: service(peer.ip()), watcher: graceful.watcher(), _place: place };
        let (listener, open) = (listener.clone(), open.clone());
        tokio::spawn(async move {
            open.inc();
            match listener.tls.clone() {
                None => guest.speak_http1(stream).await,
                Some(tls) => match tokio::time::timeout(HEADER_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(tls::H2) => {
                        guest.speak_http2(stream).await;
                    }
                    Ok(Ok(stream)) => guest.speak_http1(stream).await,
                    _ => listener.refused("handshake"),
                },
            }
            open.dec();
        });
    }
    drop(socket);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

impl Listener {
    fn refused(&self, reason: &'static str) {
        let labels = ByListenerReason { listener: self.name.into(), reason: reason.into() };
        self.metrics.connections_refused.get_or_create(&labels).inc();
    }
}

/// Says why in one breath, to whoever reads it, and waits for nobody. In TLS nothing can be said before a handshake.
fn turn_away(stream: &TcpStream, full: Full, is_tls: bool) {
    if !is_tls {
        let line = full.status_line();
        let said = format!("HTTP/1.1 {line}\r\nretry-after: 2\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        let _ = stream.try_write(said.as_bytes());
    }
}

/// A connection that has its place.
struct Guest<S> {
    service: S,
    watcher: Watcher,
    _place: Place,
}

impl<S, B> Guest<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Failure>> + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Failure>> + Send + Unpin + 'static,
{
    /// What a peer does wrong on its connection is its own affair.
    async fn speak_http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let watch = Watch::default();
        let service = self.service;
        let watched = service_fn(|request| {
            watch.begun();
            let answer = service.call(request);
            let watch = watch.clone();
            async move {
                let answer = answer.await?;
                let is_refused = answer.status().as_u16() >= 400;
                Ok::<_, S::Error>(answer.map(|body| watch.answered(body, is_refused)))
            }
        });
        let connection = http1::Builder::new()
            // How long headers may take is watched by the wire.
            .max_buf_size(HEADER_BYTES_MAX)
            // Answers are so small that copying them together is cheaper than describing their parts to the kernel.
            .writev(false)
            .serve_connection(TokioIo::new(Wire::new(stream, watch.clone())), watched);
        let _ = self.watcher.watch(connection).await;
    }

    async fn speak_http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let watch = Watch::default();
        let service = Arc::new(self.service);
        let counted = watch.clone();
        let watched = service_fn(move |request| {
            let answer = service.call(request);
            let (under_way, watch) = (counted.under_way(), counted.clone());
            async move {
                let answer = answer.await;
                drop(under_way);
                answer.map(|answer| answer.map(|body| watch.answered(body, false)))
            }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
            .max_local_error_reset_streams(ERROR_STREAMS_MAX)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .serve_connection(TokioIo::new(stream), watched);
        tokio::select! {
            _ = self.watcher.watch(connection) => {}
            Quiet = watch.quiet(HEADER_TIMEOUT, IDLE_TIMEOUT) => {}
        }
    }
}
