//! The requests of one connection that are not over: does the connection do anything, or does it only hold a place?
//!
//! HTTP/2 keeps a connection open for as long as its peer answers pings, and leaves a response alone for as long as its
//! peer gives no room for it. So somebody has to look: a connection without requests is idle, and one with a response of
//! which nothing was asked for is stalled.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Streams(Mutex<Open>);

#[derive(Debug)]
struct Open {
    next: usize,
    /// When the connection last polled for more of a response; `None` before the first poll.
    asked: HashMap<usize, Option<Instant>>,
    /// Since when there is no request.
    idle_since: Instant,
}

/// One request; dropped when its response is sent or given up.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Arc<Streams>,
    number: usize,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It has requests.
    Work,
    /// Nothing, for longer than it may.
    Nothing,
    /// It has a response of which its peer takes nothing.
    Stalled,
}

/// A response that notes when it is asked for.
struct Watched {
    body: Body,
    stream: Stream,
}

// === impl Streams ===

impl Streams {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Open {
            next: 0,
            asked: HashMap::new(),
            idle_since: Instant::now(),
        })))
    }

    pub(super) fn begin(self: &Arc<Self>) -> Stream {
        let mut open = self.open();
        let number = open.next;
        open.next += 1;
        open.asked.insert(number, None);
        Stream {
            streams: Arc::clone(self),
            number,
        }
    }

    /// Whether there was any request.
    pub(super) fn have_begun(&self) -> bool {
        self.open().next > 0
    }

    /// For how long there has been no request; `None` while there is one.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let open = self.open();
        open.asked.is_empty().then(|| open.idle_since.elapsed())
    }

    /// What the connection does, where it may be idle and may leave a response alone for so long.
    pub(super) fn doing(&self, idle: Duration, patience: Duration) -> Doing {
        let (open, now) = (self.open(), Instant::now());
        let since = |then: Instant| now.saturating_duration_since(then);
        if open.asked.is_empty() {
            return match since(open.idle_since) >= idle {
                true => Doing::Nothing,
                false => Doing::Work,
            };
        }
        let mut responses = open.asked.values().flatten();
        match responses.any(|asked| since(*asked) >= patience) {
            true => Doing::Stalled,
            false => Doing::Work,
        }
    }

    // Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Stream ===

impl Stream {
    /// The response of this request.
    pub(super) fn watch(self, body: Body) -> Body {
        self.touch();
        Body::new(Watched { body, stream: self })
    }

    fn touch(&self) {
        let asked = Some(Instant::now());
        self.streams.open().asked.insert(self.number, asked);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        open.asked.remove(&self.number);
        if open.asked.is_empty() {
            open.idle_since = Instant::now();
        }
    }
}

// === impl Watched ===

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.stream.touch();
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_is_idle_once_its_last_request_is_over() {
        let streams = Streams::new();
        assert_eq!(streams.doing(Duration::ZERO, LONG), Doing::Nothing);
        let (first, second) = (streams.begin(), streams.begin());
        drop(first);
        assert_eq!(streams.doing(Duration::ZERO, LONG), Doing::Work);
        let body = second.watch(Body::from("answer"));
        assert_eq!(
            body.size_hint().exact(),
            Some(6),
            "its length is still known"
        );
        assert_eq!(streams.doing(Duration::ZERO, LONG), Doing::Work);
        drop(body);
        assert_eq!(streams.doing(LONG, LONG), Doing::Work);
        assert_eq!(streams.doing(Duration::ZERO, LONG), Doing::Nothing);
    }

    #[test]
    fn a_response_that_nobody_asks_for_is_stalled_and_a_request_that_waits_is_not() {
        let streams = Streams::new();
        let waiting = streams.begin();
        assert_eq!(streams.doing(LONG, Duration::ZERO), Doing::Work);
        let _body = waiting.watch(Body::from("answer"));
        assert_eq!(streams.doing(LONG, Duration::ZERO), Doing::Stalled);
        assert_eq!(streams.doing(LONG, LONG), Doing::Work);
    }
}
