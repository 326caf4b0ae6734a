//! Messages that may not linger: while few messages of a topic are in flight, the next one leaves at once. More wait
//! here, and leave together.
//!
//! ```text
//! send ──few in flight?──▶ librdkafka ──result──┐
//!   │no                        ▲                │
//!   └──▶ waiting ──all at once─┘◀──few in flight┘
//! ```
//! A partition takes five requests of an idempotent producer at a time. While more messages wait, librdkafka polls
//! without a pause, which costs a core. Here they cost nothing, and then share requests.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};

use super::writer::{Answer, Sent, Writer};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{Address, Confirmation, QUEUE_DEADLINE};

/// How many messages for each partition of a topic are in flight before others wait. Fewer than the requests that a
/// partition takes, because waiting messages may leave in several requests.
const WINDOW: usize = 2;
/// The size of the messages of one topic that wait. Further senders wait too.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// At most this many idle topics are remembered, in addition to those with traffic.
const MAX_TOPICS: usize = 10_000;

/// The windows of all topics.
#[derive(Debug)]
pub(super) struct Windows<S: Sent> {
    writer: Arc<Writer<S>>,
    windows: RwLock<HashMap<Topic, Arc<Window<S>>>>,
}

/// The messages of one topic.
#[derive(Debug)]
struct Window<S: Sent> {
    state: Mutex<State<S>>,
    /// The waiting messages have left.
    left: Notify,
}

#[derive(Debug)]
struct State<S: Sent> {
    in_flight: usize,
    waiting: VecDeque<Waiting<S>>,
    waiting_bytes: usize,
    /// Messages that have waited are being queued: others wait, so that they stay in order.
    is_releasing: bool,
}

#[derive(Debug)]
struct Waiting<S: Sent> {
    to: Address,
    message: Message,
    sent: S,
    since: Instant,
}

/// A place in the window of a topic, given up on drop.
pub(super) struct Slot<S: Sent> {
    windows: Arc<Windows<S>>,
    window: Arc<Window<S>>,
    /// See [`Windows::release`].
    limit: usize,
}

/// What becomes of a message.
enum Turn<S: Sent, F> {
    /// It leaves now.
    Now(F, Slot<S>),
    /// It waits.
    Later(Confirmation),
}

// === impl Windows ===

impl<S: Sent> Windows<S> {
    pub(super) fn new(writer: Arc<Writer<S>>) -> Arc<Self> {
        Arc::new(Self {
            writer,
            windows: RwLock::default(),
        })
    }

    /// The writer of the messages.
    pub(super) fn writer(&self) -> &Writer<S> {
        &self.writer
    }

    /// Sends a message, or lets it wait for those before it. `partitions` is how many the topic has; `sent` makes the
    /// state kept for the message.
    ///
    /// # Errors
    /// `Saturated` if too much waits for too long, and the errors of the writer.
    pub(super) async fn send(
        self: &Arc<Self>,
        to: &Address,
        partitions: usize,
        message: &Message,
        sent: impl FnOnce(Answer, Slot<S>) -> S,
    ) -> Result<Confirmation, TransportError> {
        let window = self.window(&to.topic);
        let limit = WINDOW * partitions.max(1);
        let turn = match self.turn(&window, limit, (to, message), sent) {
            Ok(turn) => turn,
            Err(sent) => {
                let turn = self.turn_later(&window, limit, (to, message), sent);
                let turn = tokio::time::timeout(QUEUE_DEADLINE, turn).await;
                turn.map_err(|_| {
                    let what = format!("wait for earlier messages to {}", to.topic);
                    TransportError::new(TransportErrorKind::Saturated, what)
                })?
            }
        };
        match turn {
            Turn::Later(confirmation) => Ok(confirmation),
            Turn::Now(sent, slot) => {
                let sent = |answer| sent(answer, slot);
                self.writer.queue(to, message, sent).await
            }
        }
    }

    async fn turn_later<F: FnOnce(Answer, Slot<S>) -> S>(
        self: &Arc<Self>,
        window: &Arc<Window<S>>,
        limit: usize,
        message: (&Address, &Message),
        mut sent: F,
    ) -> Turn<S, F> {
        loop {
            // Registered before the attempt, so that room made in between is not missed.
            let mut left = std::pin::pin!(window.left.notified());
            left.as_mut().enable();
            match self.turn(window, limit, message, sent) {
                Ok(turn) => return turn,
                Err(back) => sent = back,
            }
            left.await;
        }
    }

    /// Returns `sent` if too much waits.
    fn turn<F: FnOnce(Answer, Slot<S>) -> S>(
        self: &Arc<Self>,
        window: &Arc<Window<S>>,
        limit: usize,
        (to, message): (&Address, &Message),
        sent: F,
    ) -> Result<Turn<S, F>, F> {
        let slot = || Slot {
            windows: Arc::clone(self),
            window: Arc::clone(window),
            limit,
        };
        let mut state = window.state();
        if state.is_open(limit) {
            state.in_flight += 1;
            return Ok(Turn::Now(sent, slot()));
        }
        let size = message.size_bytes();
        if !state.waiting.is_empty() && state.waiting_bytes + size > MAX_WAITING_BYTES {
            return Err(sent);
        }
        let (answer, receiver) = oneshot::channel();
        let sent = sent(answer, slot());
        state.waiting_bytes += size;
        state.waiting.push_back(Waiting {
            to: to.clone(),
            message: message.clone(),
            sent,
            since: Instant::now(),
        });
        Ok(Turn::Later(Confirmation::waiting(receiver)))
    }

    /// Sends everything that waits, before the writer closes.
    pub(super) fn release_all(&self) {
        let windows = |known: &HashMap<_, Arc<_>>| known.values().cloned().collect::<Vec<_>>();
        let windows = windows(&self.windows.read().unwrap_or_else(PoisonError::into_inner));
        for window in windows {
            self.release(&window, usize::MAX);
        }
    }

    /// Sends everything that waits in a window, if fewer messages than `limit` are in flight.
    fn release(&self, window: &Window<S>, limit: usize) {
        let mut state = window.state();
        if state.is_releasing {
            return;
        }
        while !state.waiting.is_empty() && state.in_flight < limit {
            let waiting = std::mem::take(&mut state.waiting);
            state.waiting_bytes = 0;
            state.in_flight += waiting.len();
            state.is_releasing = true;
            // A message that is not queued is dropped, and then leaves the window.
            drop(state);
            window.left.notify_waiters();
            for waiting in waiting {
                self.queue(waiting);
            }
            state = window.state();
            state.is_releasing = false;
        }
    }

    /// Queues a message that has waited, unless it is too old by now: librdkafka would count its age from here.
    fn queue(&self, waiting: Waiting<S>) {
        let Waiting {
            to,
            message,
            sent,
            since,
        } = waiting;
        if since.elapsed() < self.writer.message_timeout() {
            return self.writer.queue_now(&to, &message, sent);
        }
        let what = format!("wait for earlier messages to {}", to.topic);
        sent.answer(Err(TransportError::new(TransportErrorKind::TimedOut, what)));
    }

    fn window(&self, topic: &Topic) -> Arc<Window<S>> {
        let known = self.windows.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = known.get(topic) {
            return Arc::clone(window);
        }
        drop(known);
        let mut known = self.windows.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_TOPICS {
            // Every message in flight holds its window.
            known.retain(|_, window| Arc::strong_count(window) > 1);
        }
        Arc::clone(known.entry(topic.clone()).or_default())
    }
}

// === impl Window ===

impl<S: Sent> Default for Window<S> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                in_flight: 0,
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                is_releasing: false,
            }),
            left: Notify::new(),
        }
    }
}

impl<S: Sent> Window<S> {
    /// Every change is complete before the lock is released, so a panic elsewhere leaves it usable.
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl<S: Sent> State<S> {
    /// Whether a message may leave now.
    fn is_open(&self, limit: usize) -> bool {
        self.in_flight < limit && self.waiting.is_empty() && !self.is_releasing
    }
}

impl<S: Sent> Drop for Slot<S> {
    fn drop(&mut self) {
        self.window.state().in_flight -= 1;
        self.windows.release(&self.window, self.limit);
    }
}

impl<S: Sent> fmt::Debug for Slot<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}
