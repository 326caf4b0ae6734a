//! The order of answers: those to one requester are published in the order in which they arrive.
//!
//! ```text
//! reader of answers ── part, Turn ──> task of its request ── waits for its turn ──> bus
//! ```
//! Each request has a task, and tasks run in any order. So a part gets its place in line when it arrives.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use a2abus_transports::Topic;
use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::coop::unconstrained;

use crate::bus::BusId;

/// The lines of all requesters that wait for answers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lines(Arc<DashMap<LineKey, Weak<Line>>>);

/// Where answers go: those with the same address and key keep their order.
type LineKey = (BusId, Topic, Option<Bytes>);

/// The line of one requester.
#[derive(Debug)]
pub(crate) struct Line {
    key: LineKey,
    lines: Lines,
    turns: Arc<Semaphore>,
}

/// A place in a line. When it is dropped, the next one has its turn.
pub struct Turn {
    state: TurnState,
    _line: Arc<Line>,
}

enum TurnState {
    Now {
        _permit: OwnedSemaphorePermit,
    },
    Later(Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + Sync>>),
    /// The line is closed, which never happens.
    Closed,
}

// === impl Lines ===

impl Lines {
    /// The line of the requesters with this address and key.
    pub(crate) fn line(&self, bus: BusId, topic: Topic, key: Option<Bytes>) -> Arc<Line> {
        let key = (bus, topic, key);
        let mut known = self.0.entry(key.clone()).or_default();
        if let Some(line) = known.upgrade() {
            return line;
        }
        let line = Arc::new(Line {
            key,
            lines: self.clone(),
            turns: Arc::new(Semaphore::new(1)),
        });
        *known = Arc::downgrade(&line);
        line
    }
}

// === impl Line ===

impl Line {
    /// The last place in the line.
    pub(crate) fn turn(self: &Arc<Self>) -> Turn {
        // The semaphore is fair: whoever asks first has the first turn. It is asked by polling.
        let mut later = Box::pin(unconstrained(Arc::clone(&self.turns).acquire_owned()));
        let mut context = Context::from_waker(Waker::noop());
        Turn {
            state: match later.as_mut().poll(&mut context) {
                Poll::Ready(Ok(permit)) => TurnState::Now { _permit: permit },
                Poll::Ready(Err(_)) => TurnState::Closed,
                Poll::Pending => TurnState::Later(later),
            },
            _line: Arc::clone(self),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Another line with this key may have begun meanwhile.
        let is_gone = |_: &LineKey, line: &Weak<Self>| line.strong_count() == 0;
        self.lines.0.remove_if(&self.key, is_gone);
    }
}

// === impl Turn ===

impl Turn {
    /// Waits for the turn.
    pub(crate) async fn come(mut self) -> Self {
        if let TurnState::Later(later) = &mut self.state {
            self.state = match later.await {
                Ok(permit) => TurnState::Now { _permit: permit },
                Err(_) => TurnState::Closed,
            };
        }
        self
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_now = matches!(self.state, TurnState::Now { .. });
        f.debug_struct("Turn").field("is_now", &is_now).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn line(lines: &Lines) -> Arc<Line> {
        lines.line(BusId::FIRST, Topic::new("t").unwrap(), None)
    }

    #[tokio::test]
    async fn turns_come_in_the_order_in_which_they_were_taken() {
        let lines = Lines::default();
        let line = line(&lines);
        let [first, second, third] = [line.turn(), line.turn(), line.turn()];
        let mut third = Box::pin(third.come());
        assert!(third.as_mut().now_or_never().is_none());
        let first = first.come().await;
        drop(first);
        assert!(third.as_mut().now_or_never().is_none());
        // Whoever leaves the line lets the next one through.
        drop(second);
        third.await;
    }

    #[tokio::test]
    async fn a_line_is_shared_while_somebody_stands_in_it() {
        let lines = Lines::default();
        let first = line(&lines);
        let turn = first.turn();
        drop(first);
        assert!(line(&lines).turn().come().now_or_never().is_none());
        drop(turn);
        assert!(lines.0.is_empty());
    }
}
