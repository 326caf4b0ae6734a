//! A connection that fails when the peer stops reading, and that closes only after the peer has received everything.
//!
//! Hyper waits forever for a peer that keeps its connection open but reads nothing. Meanwhile the deadline of the call
//! behind it is not checked, and the connection counts against the limit.
//!
//! Closing a socket while the peer is still sending resets the connection, and the peer loses the part of the answer
//! that it has not read. So data that still arrives is read and discarded, for a short time, until the peer closes as
//! well.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long a connection is still read after the end was written.
const LINGER: Duration = Duration::from_millis(500);

/// Whether an error means that the peer stopped reading. HTTP/2 keeps only the kind and the text of an error, so an
/// error type of the bridge would be lost; errors of the operating system have no such text.
pub(super) fn is_stall(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.get_ref().is_some()
}

/// A stream whose writes fail if the peer reads nothing for some time.
#[derive(Debug)]
pub(super) struct Stalling<S> {
    inner: S,
    timeout: Duration,
    /// Created at the first write that has to wait.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether a write has been waiting since the timer was set.
    waiting: Arc<AtomicBool>,
    /// Set once the end is written: when reading ends.
    linger: Option<Pin<Box<Sleep>>>,
}

// === impl Stalling ===

impl<S> Stalling<S> {
    /// `waiting` shows while a write waits.
    pub(super) fn new(inner: S, timeout: Duration, waiting: Arc<AtomicBool>) -> Self {
        Self {
            inner,
            timeout,
            timer: None,
            waiting,
            linger: None,
        }
    }

    /// The result of a write, or an error once it has waited too long.
    fn check_stall<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting.store(false, Ordering::Relaxed);
            return written;
        }
        let deadline = Instant::now() + self.timeout;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if !self.waiting.swap(true, Ordering::Relaxed) {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer stopped reading",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.check_stall(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.check_stall(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, linger, .. } = &mut *self;
        let Some(linger) = linger else {
            let closed = Pin::new(inner).poll_shutdown(context);
            ready!(self.check_stall(context, closed))?;
            self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
            return self.poll_shutdown(context);
        };
        let mut scrap = [0; 4_096];
        loop {
            let mut buffer = ReadBuf::new(&mut scrap);
            match Pin::new(&mut *inner).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                // The peer has closed or reset the connection.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                // A socket that always has more data also returns `Pending` from time to time.
                Poll::Pending => return linger.as_mut().poll(context).map(Ok),
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, buffers);
        self.check_stall(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_stops_reading_is_given_up() {
        let (ours, _theirs) = duplex(4);
        let mut ours = Stalling::new(ours, TIMEOUT, Arc::default());
        let start = Instant::now();
        let error = ours.write_all(b"more than four").await.unwrap_err();
        assert!(is_stall(&error), "{error:?}");
        assert!(!is_stall(&io::ErrorKind::TimedOut.into()));
        assert_eq!(start.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_served() {
        let (ours, mut theirs) = duplex(1);
        let mut ours = Stalling::new(ours, TIMEOUT, Arc::default());
        let writer = tokio::spawn(async move { ours.write_all(b"12345678").await });
        let mut read = Vec::new();
        for _ in 0..8 {
            tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
            read.push(theirs.read_u8().await.unwrap());
        }
        writer.await.unwrap().unwrap();
        assert_eq!(read, b"12345678");
    }

    #[tokio::test(start_paused = true)]
    async fn data_after_the_end_is_read_until_the_peer_closes() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Stalling::new(ours, TIMEOUT, Arc::default());
        let closer = tokio::spawn(async move { ours.shutdown().await });
        theirs.write_all(b"more than four").await.unwrap();
        drop(theirs);
        let start = Instant::now();
        closer.await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_dropped_if_the_peer_does_not_close_in_time() {
        let (ours, _theirs) = duplex(4);
        let start = Instant::now();
        Stalling::new(ours, TIMEOUT, Arc::default())
            .shutdown()
            .await
            .unwrap();
        assert_eq!(start.elapsed(), LINGER);
    }
}
