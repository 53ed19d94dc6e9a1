//! What flows on a connection, and how long nothing may. Headers that began must end soon, an answer must be taken, and
//! only between two requests may it be quiet for longer.

use super::{HEADER_TIMEOUT, IDLE_TIMEOUT};
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// An answer that nobody takes is given up after this long.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Who was refused may go on sending for this long, to nobody.
const LINGER: Duration = Duration::from_secs(5);

/// Where a connection is, known to the wire and to the service.
#[derive(Clone, Default)]
pub struct Watch(Arc<Seen>);

struct Seen {
    born: Instant,
    /// HTTP/1: when the last answer was over, in milliseconds since it was born.
    answered_at: AtomicU64,
    /// HTTP/1: reading a head (0, also of a connection that is new), serving, or between two requests.
    phase: AtomicUsize,
    /// HTTP/1: the last request was refused, perhaps before its body was read.
    is_refused: AtomicBool,
    /// HTTP/2: requests under way; and how many there were, with the pieces of answers.
    under_way: AtomicUsize,
    begun: AtomicU64,
}

impl Default for Seen {
    fn default() -> Seen {
        let (answered_at, phase, is_refused, under_way, begun) = Default::default();
        Seen { born: Instant::now(), answered_at, phase, is_refused, under_way, begun }
    }
}

const HEAD: usize = 0;
const SERVING: usize = 1;
const BETWEEN: usize = 2;

/// It has been quiet for too long.
pub struct Quiet;

/// A request of an HTTP/2 connection, until it is dropped.
pub struct UnderWay(Watch);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    pub fn begun(&self) {
        self.0.phase.store(SERVING, Ordering::Relaxed);
    }

    /// It was answered like this, which ends when all of it was taken.
    pub fn answered<B>(&self, body: B, is_refused: bool) -> Answer<B> {
        self.0.is_refused.store(is_refused, Ordering::Relaxed);
        Answer { body, watch: self.clone() }
    }

    /// Until when the next request may come, if this is between two.
    fn patience(&self) -> Option<Instant> {
        let answered_at = || self.0.born + Duration::from_millis(self.0.answered_at.load(Ordering::Relaxed));
        (self.0.phase.load(Ordering::Relaxed) == BETWEEN).then(|| answered_at() + IDLE_TIMEOUT)
    }

    pub fn under_way(&self) -> UnderWay {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// Until no request came for `first` on a new connection; or none, and nothing of an answer was taken, for `later` on one
    /// that was used.
    pub async fn quiet(&self, first: Duration, later: Duration) -> Quiet {
        let mut known = 0;
        loop {
            sleep(if known == 0 { first } else { later }).await;
            let begun = self.0.begun.load(Ordering::Relaxed);
            if begun == known && self.0.under_way.load(Ordering::Relaxed) == 0 {
                return Quiet;
            }
            known = begun;
        }
    }
}

/// An answer on its way. A connection is not quiet while pieces of it are taken, as a stream of events is one answer, and is between two
/// requests when it is over.
pub struct Answer<B> {
    body: B,
    watch: Watch,
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        let seen = &self.watch.0;
        seen.answered_at.store(u64::try_from(seen.born.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        seen.phase.store(BETWEEN, Ordering::Relaxed);
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let piece = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.watch.0.begun.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(piece)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream of HTTP/1 that is watched. What usually happens, a head in one piece and an answer at once, sets no timer.
pub struct Wire<T> {
    stream: T,
    watch: Watch,
    head: Option<Pin<Box<Sleep>>>,
    /// When it is looked at again whether nothing came after an answer.
    quiet: Option<Pin<Box<Sleep>>>,
    write: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<T> Wire<T> {
    pub fn new(stream: T, watch: Watch) -> Self {
        Wire { stream, watch, head: None, quiet: None, write: None, linger: None }
    }
}

/// Whether the timer, which starts when it is first asked, has run out.
fn is_over(timer: &mut Option<Pin<Box<Sleep>>>, after: Duration, context: &mut Context<'_>) -> bool {
    let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + after)));
    timer.as_mut().poll(context).is_ready()
}

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        let phase = &this.watch.0.phase;
        if read.is_ready() {
            if buffer.filled().len() > before {
                let _ = phase.compare_exchange(BETWEEN, HEAD, Ordering::Relaxed, Ordering::Relaxed);
            }
            return read;
        }
        let is_over = match phase.load(Ordering::Relaxed) {
            HEAD => is_over(&mut this.head, HEADER_TIMEOUT, context),
            _ => {
                this.head = None;
                this.is_quiet_for_too_long(context)
            }
        };
        if is_over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
    }
}

impl<T> Wire<T> {
    /// A timer that is set anew for each request costs more than many a request: this one runs out, and is then set to when it should have. It goes
    /// while an answer is given, too: of the end of that nobody tells the wire.
    fn is_quiet_for_too_long(&mut self, context: &mut Context<'_>) -> bool {
        let timer = self.quiet.get_or_insert_with(|| Box::pin(sleep(IDLE_TIMEOUT)));
        while timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let until = self.watch.patience().unwrap_or(now + IDLE_TIMEOUT);
            if until <= now {
                return true;
            }
            timer.as_mut().reset(until);
        }
        false
    }
}

impl<T: AsyncWrite + Unpin> Wire<T> {
    fn watched<R>(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if wrote.is_ready() {
            self.write = None;
        } else if is_over(&mut self.write, WRITE_TIMEOUT, context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        wrote
    }
}

impl<T: AsyncRead + Unpin> Wire<T> {
    /// Until the other side has hung up too, or for long enough. To close while it still sends would make it forget an
    /// answer that it has not read yet.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Asked first: who sends without a pause has no more time than others.
        if is_over(&mut self.linger, LINGER, context) {
            return Poll::Ready(());
        }
        loop {
            let mut unread = [0; 8 << 10];
            let mut unread = ReadBuf::new(&mut unread);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut unread)) {
                Ok(()) if !unread.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.watched(context, wrote)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.watched(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            let shut = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.watched(context, shut))?;
        }
        if this.watch.0.is_refused.load(Ordering::Relaxed) {
            ready!(this.poll_linger(context));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_connection_may_be_quiet_for_a_minute_after_each_request() {
        let (stream, mut peer) = tokio::io::duplex(64);
        let watch = Watch::default();
        let mut wire = Wire::new(stream, watch.clone());
        let mut read = async || wire.read(&mut [0; 64]).await;
        // As the server does: what it waits for it began to wait for before the answer was over.
        let mut answer = None;
        for (pause, takes) in [(0, 0), (59, 0), (1, 600), (59, 30)] {
            drop(answer.take());
            sleep(Duration::from_secs(pause)).await;
            peer.write_all(b"GET").await.expect("written");
            assert_eq!(read().await.expect("read"), 3);
            watch.begun();
            answer = Some(watch.answered((), false));
            let more = tokio::time::timeout(Duration::from_secs(takes), read()).await;
            assert!(more.is_err(), "an answer may take its time");
        }
        let began = Instant::now();
        let over = async {
            sleep(Duration::from_secs(45)).await;
            drop(answer);
        };
        let (hung_up, ()) = tokio::join!(read(), over);
        assert_eq!(hung_up.expect_err("hung up").kind(), io::ErrorKind::TimedOut);
        let waited = began.elapsed().as_secs_f64();
        assert!((104.9..105.1).contains(&waited), "{waited}");
    }

    #[tokio::test]
    async fn i2_an_answer_that_goes_on_keeps_its_connection_and_one_that_nobody_takes_does_not() {
        let watch = Watch::default();
        drop(watch.under_way());
        let beats = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"beat"))));
        let mut answer = watch.answered(StreamBody::new(beats), false);
        // It is quiet when between two looks nothing was counted.
        let counted = || watch.0.begun.load(Ordering::Relaxed);
        for _ in 0..3 {
            let before = counted();
            answer.frame().await.expect("it goes on").expect("it does not fail");
            assert!(counted() > before);
        }
        let Quiet = watch.quiet(Duration::from_millis(1), Duration::from_millis(1)).await;
    }
}
