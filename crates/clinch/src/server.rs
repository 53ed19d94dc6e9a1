//! An HTTP/1 listener that nobody can hold: headers have a deadline, connections a bound, and stopping is graceful.

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Half-sent headers and idle connections are cut after this long.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// At most this many connections are open at once; further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 4_096;
/// A request line and its headers have at most this size.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// After a stop, requests under way have this long.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves until `stop`, then lets requests under way finish. Each connection has a service of its own, which is told who
/// called.
pub async fn serve<S, B>(listener: TcpListener, service: impl Fn(IpAddr) -> S, stop: CancellationToken)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    S: Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            place = places.clone().acquire_owned() => place.expect("the places are never closed"),
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
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
        // Answers are small and single: waiting to fill a packet only adds delay.
        let _ = stream.set_nodelay(true);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEADER_BYTES_MAX)
            // Answers are so small that copying them together is cheaper than describing their parts to the kernel.
            .writev(false)
            .serve_connection(TokioIo::new(stream), service(peer.ip()));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // What a peer does wrong on its connection is its own affair.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}
