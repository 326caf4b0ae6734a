//! The open requests of one connection: is the connection active, idle or stalled?
//!
//! HTTP/2 keeps a connection open as long as its peer answers pings, and leaves a response pending as long as its peer
//! does not enlarge the window. So the bridge checks: a connection without requests is idle, and one whose peer reads
//! none of its responses is stalled. While the peer reads one of them, or waits for one, the connection is kept for
//! longer: an unread response must not cut off the others, but must not use memory for ever either. A peer that reads
//! too slowly counts as one that does not read: the longer it takes than [`MIN_RATE`] allows, the less time it has for
//! the next piece. A response body ends when hyper has taken it, which may be long before the peer has it. So a
//! connection with an unfinished write is not idle, and hyper gets a large body in pieces.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use smallvec::SmallVec;

use crate::lock::lock;

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    open: Mutex<OpenStreams>,
    /// Whether bytes for the peer wait until it has read others.
    has_unsent: Arc<AtomicBool>,
}

#[derive(Debug)]
struct OpenStreams {
    next: usize,
    /// The open requests: one on HTTP/1, a few on HTTP/2.
    requests: SmallVec<[OpenRequest; 1]>,
    /// When the last request ended.
    idle_since: Instant,
    /// Whether the body of the last request has not been read to its end.
    has_unread_body: bool,
    /// How many bytes of it have been read.
    received: u64,
}

#[derive(Debug)]
struct OpenRequest {
    number: usize,
    began: Instant,
    /// When the connection last polled for more of its response; `None` before the first poll.
    polled: Option<Instant>,
    /// How much longer the peer has taken so far than the least rate allows.
    late: Duration,
}

/// One request; dropped when its response is sent or given up.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Arc<Streams>,
    number: usize,
}

/// The activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionActivity {
    /// It has requests.
    Active,
    /// It has been idle for too long.
    Idle,
    /// Its peer reads none of the responses, and waits for no other; or it has not read one of them for much longer.
    Stalled,
}

/// A request body that records when it is read to its end.
struct ReadBody {
    body: Incoming,
    streams: Arc<Streams>,
}

/// A response body that records when it is polled, in pieces.
struct WatchedBody {
    body: Body,
    /// The rest of the last frame of the body.
    rest: Option<Bytes>,
    /// The size of the piece that the last poll has returned.
    taken: usize,
    stream: Stream,
}

/// The largest piece of a response body, in bytes. HTTP/2 takes it although the peer has not opened its window: so much
/// of a response counts as sent.
const PIECE: usize = 16 << 10;
/// How long the body of a request may take before it counts as slow.
const MIN_RECEIVING: Duration = Duration::from_secs(1);
/// The least rate at which a peer must read, in bytes per second, all responses of its connection together. A request
/// body that arrives more slowly on average is slow.
const MIN_RATE: usize = 8 << 10;
/// How many times as long one response may go unread while the peer reads, or waits for, another.
const UNREAD_FACTOR: u32 = 5;

// === impl Streams ===

impl Streams {
    pub(super) fn new() -> Arc<Self> {
        let open = OpenStreams {
            next: 0,
            requests: SmallVec::new(),
            idle_since: Instant::now(),
            has_unread_body: false,
            received: 0,
        };
        Arc::new(Self {
            open: Mutex::new(open),
            has_unsent: Arc::default(),
        })
    }

    /// Set while bytes for the peer wait.
    pub(super) fn has_unsent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_unsent)
    }

    pub(super) fn begin(self: &Arc<Self>) -> Stream {
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.requests.push(OpenRequest {
            number,
            began: Instant::now(),
            polled: None,
            late: Duration::ZERO,
        });
        Stream {
            streams: Arc::clone(self),
            number,
        }
    }

    /// Whether there has been any request.
    pub(super) fn have_begun(&self) -> bool {
        self.open().next > 0
    }

    /// For how long there has been no request; `None` while there is one, or its response is being sent.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        if self.is_sending() {
            return None;
        }
        let open = self.open();
        open.requests.is_empty().then(|| open.idle_since.elapsed())
    }

    /// For how long the only request has waited for the rest of its body, if that is slow; `None` if it is not. Only on
    /// HTTP/1.
    pub(super) fn receiving_for(&self) -> Option<Duration> {
        let open = self.open();
        let [request] = open.requests.as_slice() else {
            return None;
        };
        let is_receiving = open.has_unread_body && request.polled.is_none();
        let waited = request.began.elapsed();
        let is_slow = waited >= MIN_RECEIVING && open.received < waited.as_secs() * MIN_RATE as u64;
        (is_receiving && is_slow).then_some(waited)
    }

    /// The activity of the connection, given how long it may be idle and how long a response may go unread.
    pub(super) fn activity(
        &self,
        idle_timeout: Duration,
        response_timeout: Duration,
    ) -> ConnectionActivity {
        let is_sending = self.is_sending();
        let (open, now) = (self.open(), Instant::now());
        let since = |then: Instant| now.saturating_duration_since(then);
        if open.requests.is_empty() {
            return match !is_sending && since(open.idle_since) >= idle_timeout {
                true => ConnectionActivity::Idle,
                false => ConnectionActivity::Active,
            };
        }
        let is_unread = |request: &OpenRequest, limit: Duration| {
            let polled = request.polled;
            polled.is_some_and(|polled| since(polled) + request.late >= limit)
        };
        let longer = response_timeout.saturating_mul(UNREAD_FACTOR);
        let mut requests = open.requests.iter();
        let is_stalled = requests.clone().all(|it| is_unread(it, response_timeout))
            || requests.any(|it| is_unread(it, longer));
        match is_stalled {
            true => ConnectionActivity::Stalled,
            false => ConnectionActivity::Active,
        }
    }

    /// Whether bytes for the peer wait. The connection is idle only from then on.
    fn is_sending(&self) -> bool {
        let is_sending = self.has_unsent.load(Ordering::Relaxed);
        if is_sending {
            self.open().idle_since = Instant::now();
        }
        is_sending
    }

    fn open(&self) -> MutexGuard<'_, OpenStreams> {
        lock(&self.open)
    }
}

// === impl Stream ===

impl Stream {
    /// The body of this request. Only for HTTP/1, which has one request at a time.
    pub(super) fn receive(&self, body: Incoming) -> Body {
        let streams = Arc::clone(&self.streams);
        let mut open = streams.open();
        open.has_unread_body = !body.is_end_stream();
        open.received = 0;
        drop(open);
        Body::new(ReadBody { body, streams })
    }

    /// Whether part of the request body has not been read.
    pub(super) fn has_unread_body(&self) -> bool {
        self.streams.open().has_unread_body
    }

    /// The body of this request's response, which records when it is polled.
    pub(super) fn watch(self, body: Body) -> Body {
        self.touch(0);
        Body::new(WatchedBody {
            body,
            rest: None,
            taken: 0,
            stream: self,
        })
    }

    /// Records that the connection polls for more of the response, after it has taken this many bytes.
    fn touch(&self, taken: usize) {
        let now = Instant::now();
        let mut open = self.streams.open();
        // The responses of a connection share what the peer can read.
        let millis = taken * open.requests.len() * 1_000 / MIN_RATE;
        let allowed = Duration::from_millis(millis as u64);
        let mut requests = open.requests.iter_mut();
        if let Some(request) = requests.find(|request| request.number == self.number) {
            let last = request.polled.filter(|_| taken > 0).unwrap_or(now);
            let took = now.saturating_duration_since(last);
            request.late = (request.late + took).saturating_sub(allowed);
            request.polled = Some(now);
        }
    }

    /// Records that the peer has read everything, and waits for more.
    fn caught_up(&self) {
        let mut open = self.streams.open();
        let mut requests = open.requests.iter_mut();
        if let Some(request) = requests.find(|request| request.number == self.number) {
            request.late = Duration::ZERO;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.requests
            .retain(|request| request.number != self.number);
        if open.requests.is_empty() {
            open.idle_since = Instant::now();
        }
    }
}

// === impl ReadBody ===

impl HttpBody for ReadBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let read = frame.as_ref().and_then(|frame| frame.as_ref().ok());
        let data = read.and_then(Frame::data_ref);
        let mut open = self.streams.open();
        open.received += data.map_or(0, |data| data.len() as u64);
        if frame.is_none() || self.body.is_end_stream() {
            open.has_unread_body = false;
        }
        drop(open);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl WatchedBody ===

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let taken = std::mem::take(&mut self.taken);
        self.stream.touch(taken);
        let mut piece = match self.rest.take() {
            Some(rest) => rest,
            None => match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Poll::Ready(ended) => return Poll::Ready(ended),
                Poll::Pending => {
                    self.stream.caught_up();
                    return Poll::Pending;
                }
            },
        };
        self.rest = (piece.len() > PIECE).then(|| piece.split_off(PIECE));
        self.taken = piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref().map_or(0, |rest| rest.len() as u64);
        let mut hint = self.body.size_hint();
        let lower = hint.lower() + rest;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(lower);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::BodyExt as _;
    use std::convert::Infallible;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_whose_peer_still_reads_a_response_is_not_idle() {
        let streams = Streams::new();
        drop(streams.begin());
        streams.has_unsent().store(true, Ordering::Relaxed);
        let activity = || streams.activity(Duration::ZERO, LONG);
        assert_eq!(
            (activity(), streams.idle_for()),
            (ConnectionActivity::Active, None)
        );
        streams.has_unsent().store(false, Ordering::Relaxed);
        assert_eq!(activity(), ConnectionActivity::Idle);
        assert!(streams.idle_for().is_some());
    }

    #[tokio::test]
    async fn a_large_body_comes_in_pieces() {
        let streams = Streams::new();
        let whole = vec![7; 2 * PIECE + 1];
        let mut body = streams.begin().watch(Body::from(whole.clone()));
        let mut left = whole.len() as u64;
        for piece in [PIECE, PIECE, 1] {
            assert_eq!(
                (body.size_hint().exact(), body.is_end_stream()),
                (Some(left), false)
            );
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap().len(), piece);
            left -= piece as u64;
        }
        assert!(body.is_end_stream());
        assert!(
            streams.idle_for().is_none(),
            "the last piece may still be sent"
        );
        drop(body);
        assert!(streams.idle_for().is_some());
    }

    #[test]
    fn a_connection_is_idle_once_its_last_request_is_over() {
        let streams = Streams::new();
        assert_eq!(
            streams.activity(Duration::ZERO, LONG),
            ConnectionActivity::Idle
        );
        let (first, second) = (streams.begin(), streams.begin());
        drop(first);
        assert_eq!(
            streams.activity(Duration::ZERO, LONG),
            ConnectionActivity::Active
        );
        let body = second.watch(Body::from("answer"));
        assert_eq!(
            body.size_hint().exact(),
            Some(6),
            "its length is still known"
        );
        assert_eq!(
            streams.activity(Duration::ZERO, LONG),
            ConnectionActivity::Active
        );
        drop(body);
        assert_eq!(streams.activity(LONG, LONG), ConnectionActivity::Active);
        assert_eq!(
            streams.activity(Duration::ZERO, LONG),
            ConnectionActivity::Idle
        );
    }

    #[test]
    fn only_a_body_below_the_least_rate_is_slow() {
        let streams = Streams::new();
        let _request = streams.begin();
        let is_slow = |secs: u64, received: usize| {
            let began = Instant::now().checked_sub(Duration::from_secs(secs));
            let mut open = streams.open();
            open.has_unread_body = true;
            open.received = received as u64;
            open.requests[0].began = began.unwrap();
            drop(open);
            streams.receiving_for().is_some()
        };
        assert!(!is_slow(0, 0), "it has just begun");
        assert!(is_slow(10, 9 * MIN_RATE));
        assert!(!is_slow(10, 100 * MIN_RATE));
        streams.open().has_unread_body = false;
        assert!(streams.receiving_for().is_none());
    }

    #[test]
    fn an_unread_response_is_stalled_and_a_waiting_request_is_not() {
        let streams = Streams::new();
        let waiting = streams.begin();
        assert_eq!(
            streams.activity(LONG, Duration::ZERO),
            ConnectionActivity::Active
        );
        let _body = waiting.watch(Body::from("answer"));
        assert_eq!(
            streams.activity(LONG, Duration::ZERO),
            ConnectionActivity::Stalled
        );
        assert_eq!(streams.activity(LONG, LONG), ConnectionActivity::Active);
    }

    /// The time is that of the peer: the test moves the last poll into the past.
    #[tokio::test]
    async fn a_response_that_is_read_too_slowly_is_stalled() {
        let (streams, timeout) = (Streams::new(), Duration::from_secs(100));
        let pause = |time: Duration| {
            let mut open = streams.open();
            let request = &mut open.requests[0];
            request.polled = request.polled.unwrap().checked_sub(time);
        };
        let activity = || streams.activity(LONG, timeout);
        let [allowed, slow] = [PIECE / MIN_RATE, 60].map(|secs| Duration::from_secs(secs as u64));
        let mut body = streams.begin().watch(Body::from(vec![7; 64 * PIECE]));
        // It may be late for a while, if it is fast enough on the whole.
        for _ in 0..20 {
            body.frame().await.unwrap().unwrap();
            pause(allowed);
        }
        body.frame().await.unwrap().unwrap();
        pause(slow);
        body.frame().await.unwrap().unwrap();
        assert_eq!(activity(), ConnectionActivity::Active);
        for _ in 0..30 {
            body.frame().await.unwrap().unwrap();
        }
        pause(slow);
        body.frame().await.unwrap().unwrap();
        assert_eq!(activity(), ConnectionActivity::Active);
        pause(slow);
        assert_eq!(activity(), ConnectionActivity::Stalled);
        // With the second piece in that time it has still been too slow.
        body.frame().await.unwrap().unwrap();
        assert_eq!(activity(), ConnectionActivity::Stalled);
    }

    #[tokio::test]
    async fn a_stream_whose_peer_has_read_everything_is_not_late() {
        let streams = Streams::new();
        let piece = stream::iter([Ok::<_, Infallible>(vec![7; PIECE])]);
        let body = Body::from_stream(piece.chain(stream::pending()));
        let mut body = streams.begin().watch(body);
        body.frame().await.unwrap().unwrap();
        let late = || streams.open().requests[0].late;
        let polled = Instant::now().checked_sub(LONG);
        streams.open().requests[0].polled = polled;
        assert!(body.frame().now_or_never().is_none());
        assert_eq!(late(), Duration::ZERO);
    }

    #[test]
    fn an_unread_response_ends_the_other_requests_of_its_connection_only_after_longer() {
        let streams = Streams::new();
        let _unread = streams.begin().watch(Body::from("answer"));
        let other = streams.begin();
        let timeout = Duration::from_secs(10);
        let unread_for = |time: Duration| {
            let polled = Instant::now().checked_sub(time).unwrap();
            streams.open().requests[0].polled = Some(polled);
            streams.activity(LONG, timeout)
        };
        assert_eq!(unread_for(timeout), ConnectionActivity::Active);
        let longer = timeout * UNREAD_FACTOR;
        assert_eq!(unread_for(longer), ConnectionActivity::Stalled);
        drop(other);
        assert_eq!(unread_for(timeout), ConnectionActivity::Stalled);
    }
}
