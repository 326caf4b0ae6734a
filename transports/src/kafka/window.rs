//! Messages that may not linger. While few messages of a topic are in flight, the next one leaves at once. Any others
//! wait here, and then leave together.
//!
//! ```text
//! send ──few in flight?──▶ librdkafka ──result──┐
//!   │no                        ▲                │
//!   └──▶ waiting ──all at once─┘◀──few in flight┘
//! ```
//! librdkafka has at most five requests of an idempotent producer in flight for a partition. If further messages wait in
//! its queue, it polls without a pause, which costs a core. Here they wait for free, and then share requests.
//!
//! A partition that takes no messages, because it has no leader for example, must not delay those of other partitions.
//! So once a message has waited for [`MAX_WAIT`], it leaves, and later ones leave at once, until few are in flight
//! again. They wait only while [`OVERDUE_BYTES`] of their topic are in flight, or the queue of the client is full.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::per_topic::PerTopic;
use super::writer::{Sent, Writer, closed, saturated};
use crate::error::TransportError;
use crate::message::Message;
use crate::transport::{Address, Confirmation, Decision, QUEUE_DEADLINE};

/// How many messages in flight, for each partition of a topic, make others wait. Fewer than the requests that a
/// partition takes, because waiting messages may leave in several requests.
const WINDOW: usize = 2;
/// How long a message waits for earlier ones. Longer than the round trip of any usable cluster.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// How many bytes of one topic may be in flight while others do not wait for them: a quarter of the client's queue, or less.
const OVERDUE_BYTES: usize = 16 << 20;
/// The largest total size of all waiting messages. Beyond it, their senders wait.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// The windows of all topics.
#[derive(Debug)]
pub(super) struct Windows<S: Sent> {
    writer: Arc<Writer<S>>,
    windows: PerTopic<Window<S>>,
    /// How many more bytes of messages may wait.
    room: Arc<Semaphore>,
}

/// The messages of one topic.
#[derive(Debug)]
struct Window<S: Sent> {
    state: Mutex<State<S>>,
    /// Notified when a message can leave at once again.
    reopened: Notify,
}

#[derive(Debug)]
struct State<S: Sent> {
    /// While fewer messages are in flight, the next one leaves at once.
    limit: usize,
    in_flight: usize,
    bytes_in_flight: usize,
    waiting: VecDeque<Waiting<S>>,
    /// Messages that have waited are being queued: others wait, so that they stay in order.
    is_releasing: bool,
    /// The messages in flight take too long: nothing waits for them.
    is_overdue: bool,
    /// Limits how long messages wait.
    watch: Option<AbortOnDropHandle<()>>,
}

#[derive(Debug)]
struct Waiting<S: Sent> {
    to: Address,
    message: Message,
    sent: S,
    bytes: usize,
    since: Instant,
    room: OwnedSemaphorePermit,
}

/// Counts a message as in flight in its window until it is dropped.
pub(super) struct InWindow<S: Sent> {
    windows: Arc<Windows<S>>,
    window: Arc<Window<S>>,
    bytes: usize,
}

/// What becomes of a message. `F` makes the state kept for it.
enum Turn<S: Sent, F> {
    /// It leaves now.
    Now(F, InWindow<S>),
    /// It waits.
    Later(Confirmation),
    /// Too much waits.
    Full(F),
}

// === impl Windows ===

impl<S: Sent> Windows<S> {
    pub(super) fn new(writer: Arc<Writer<S>>) -> Arc<Self> {
        Arc::new(Self {
            writer,
            windows: PerTopic::default(),
            room: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
        })
    }

    /// The writer of the messages.
    pub(super) fn writer(&self) -> &Writer<S> {
        &self.writer
    }

    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.room.available_permits()
    }

    /// Sends a message, or lets it wait for those before it. `partitions` is how many the topic has; `sent` makes the
    /// state kept for the message.
    ///
    /// # Errors
    /// `Saturated` if there is no room for it at `until`, and the errors of the writer.
    pub(super) async fn send(
        self: &Arc<Self>,
        (to, partitions): (&Address, usize),
        message: &Message,
        until: Instant,
        mut sent: impl FnOnce(Decision, InWindow<S>) -> S,
    ) -> Result<Confirmation, TransportError> {
        if self.writer.is_closing() {
            return Err(closed());
        }
        let window = self.windows.get(&to.topic);
        let limit = WINDOW * partitions.max(1);
        let acquired = Arc::clone(&self.room).acquire_many_owned(room_of(message));
        let mut acquired = std::pin::pin!(acquired);
        let overdue = Instant::now() + MAX_WAIT;
        let (mut room, mut is_overdue) = (None, false);
        loop {
            // Created before the attempt, so that a change in between is not missed.
            let reopened = window.reopened.notified();
            match self.turn((&window, limit), (to, message), room.take(), sent) {
                Turn::Now(sent, in_window) => {
                    let sent = |answer| sent(answer, in_window);
                    return self.writer.queue(to, message, until, sent).await;
                }
                Turn::Later(confirmation) => return Ok(confirmation),
                Turn::Full(back) => sent = back,
            }
            tokio::select! {
                biased;
                // It fails only if it was closed, which never happens.
                acquired = &mut acquired => room = acquired.ok(),
                // The messages of other topics may take all the room.
                () = reopened => {}
                // If nothing of this topic may wait, nothing else watches it.
                () = tokio::time::sleep_until(overdue), if !is_overdue => {
                    is_overdue = true;
                    window.state().is_overdue = true;
                    self.release(&window);
                }
                () = tokio::time::sleep_until(until) => return Err(saturated(&to.topic)),
            }
        }
    }

    fn turn<F: FnOnce(Decision, InWindow<S>) -> S>(
        self: &Arc<Self>,
        (window, limit): (&Arc<Window<S>>, usize),
        (to, message): (&Address, &Message),
        room: Option<OwnedSemaphorePermit>,
        sent: F,
    ) -> Turn<S, F> {
        let in_window = || InWindow {
            windows: Arc::clone(self),
            window: Arc::clone(window),
            bytes: message.size_bytes(),
        };
        let mut state = window.state();
        state.limit = limit;
        if state.is_open() && state.waiting.is_empty() && !state.is_releasing {
            let in_window = in_window();
            state.in_flight += 1;
            state.bytes_in_flight += in_window.bytes;
            return Turn::Now(sent, in_window);
        }
        let acquired = || Arc::clone(&self.room).try_acquire_many_owned(room_of(message));
        let Some(room) = room.or_else(|| acquired().ok()) else {
            return Turn::Full(sent);
        };
        let (answer, confirmation) = Confirmation::waiting();
        let in_window = in_window();
        state.waiting.push_back(Waiting {
            to: to.clone(),
            message: message.clone(),
            bytes: in_window.bytes,
            sent: sent(answer, in_window),
            since: Instant::now(),
            room,
        });
        if state.watch.is_none() {
            let watch = watch(Arc::downgrade(self), Arc::downgrade(window));
            state.watch = Some(AbortOnDropHandle::new(tokio::spawn(watch)));
        }
        Turn::Later(confirmation)
    }

    /// Sends everything that waits, before the writer closes.
    pub(super) fn release_all(&self) {
        for window in self.windows.all() {
            window.state().limit = usize::MAX;
            self.release(&window);
        }
    }

    /// Sends everything that waits in a window and may leave now.
    fn release(&self, window: &Window<S>) {
        let mut state = window.state();
        if state.is_releasing {
            return;
        }
        state.is_releasing = true;
        loop {
            let mut waiting = state.take_open();
            if waiting.is_empty() {
                break;
            }
            state.add(&waiting);
            // A message that is refused is answered, and so leaves the window.
            drop(state);
            while let Some(next) = waiting.pop_front() {
                if let Some(back) = self.queue(next) {
                    waiting.push_front(back);
                    break;
                }
            }
            state = window.state();
            if !waiting.is_empty() {
                // The queue of the writer is full. They keep their order.
                state.remove(&waiting);
                waiting.append(&mut state.waiting);
                state.waiting = waiting;
                break;
            }
        }
        state.is_releasing = false;
        let is_free = state.is_open() && state.waiting.is_empty();
        drop(state);
        if is_free {
            window.reopened.notify_waiters();
        }
    }

    /// Queues a message that has waited. Returns it if the queue is full.
    fn queue(&self, waiting: Waiting<S>) -> Option<Waiting<S>> {
        let Waiting {
            to,
            message,
            sent,
            bytes,
            since,
            room,
        } = waiting;
        let sent = sent.follow(&to, &message)?;
        let sent = self.writer.hand_over(&to, &message, sent)?;
        Some(Waiting {
            to,
            message,
            sent,
            bytes,
            since,
            room,
        })
    }
}

/// Releases messages that have waited for a while, and refuses those that have waited for too long, until none waits.
async fn watch<S: Sent>(windows: Weak<Windows<S>>, window: Weak<Window<S>>) {
    loop {
        let Some(due) = window.upgrade().and_then(|window| window.due()) else {
            return;
        };
        tokio::time::sleep_until(due).await;
        let (Some(windows), Some(window)) = (windows.upgrade(), window.upgrade()) else {
            return;
        };
        // They leave the window, and their room is free for others.
        let expired = window.state().take_expired();
        for Waiting { to, sent, .. } in expired {
            sent.answer(Err(saturated(&to.topic)));
        }
        if window.is_overdue() {
            windows.release(&window);
        }
    }
}

fn bytes_of<S: Sent>(messages: &VecDeque<Waiting<S>>) -> usize {
    messages.iter().map(|waiting| waiting.bytes).sum()
}

/// The share of the room that a message takes.
fn room_of(message: &Message) -> u32 {
    let bytes = message.size_bytes().min(MAX_WAITING_BYTES);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

// === impl Window ===

impl<S: Sent> Default for Window<S> {
    fn default() -> Self {
        let state = State {
            limit: WINDOW,
            in_flight: 0,
            bytes_in_flight: 0,
            waiting: VecDeque::new(),
            is_releasing: false,
            is_overdue: false,
            watch: None,
        };
        Self {
            state: Mutex::new(state),
            reopened: Notify::new(),
        }
    }
}

impl<S: Sent> Window<S> {
    /// Every change is complete before the lock is released, so a panic elsewhere leaves it usable.
    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to look again. If nothing waits, it is no longer watched.
    fn due(&self) -> Option<Instant> {
        let mut state = self.state();
        // If it is overdue already, there is no room for it.
        let soon = Instant::now() + MAX_WAIT / 10;
        match state.waiting.front() {
            Some(oldest) => Some((oldest.since + MAX_WAIT).max(soon)),
            // They may be put back.
            None if state.is_releasing => Some(soon),
            None => {
                state.watch = None;
                None
            }
        }
    }

    /// Whether a message has waited for too long. Then nothing waits until fewer messages are in flight.
    fn is_overdue(&self) -> bool {
        let mut state = self.state();
        let oldest = state.waiting.front();
        state.is_overdue |= oldest.is_some_and(|oldest| oldest.since.elapsed() >= MAX_WAIT);
        state.is_overdue
    }
}

// === impl State ===

impl<S: Sent> State<S> {
    /// Whether messages may leave now.
    fn is_open(&self) -> bool {
        self.in_flight < self.limit || (self.is_overdue && self.bytes_in_flight < OVERDUE_BYTES)
    }

    /// Takes the waiting messages that may leave now.
    fn take_open(&mut self) -> VecDeque<Waiting<S>> {
        if !self.is_open() {
            return VecDeque::new();
        }
        let mut later = VecDeque::new();
        if self.in_flight >= self.limit {
            let mut bytes = self.bytes_in_flight;
            let fits = |next: &&Waiting<S>| {
                let fits = bytes < OVERDUE_BYTES;
                bytes += next.bytes;
                fits
            };
            later = self
                .waiting
                .split_off(self.waiting.iter().take_while(fits).count());
        }
        std::mem::replace(&mut self.waiting, later)
    }

    /// Takes the messages that have waited for too long, and those behind them, which would overtake them when they are
    /// sent again.
    fn take_expired(&mut self) -> VecDeque<Waiting<S>> {
        let is_late = |waiting: &Waiting<S>| waiting.since.elapsed() >= QUEUE_DEADLINE;
        if !self.waiting.front().is_some_and(is_late) {
            return VecDeque::new();
        }
        let mut late = HashSet::new();
        let (expired, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|next| {
                let order = (next.to.partition, next.message.key.clone());
                let is_expired = is_late(next) || late.contains(&order);
                // Without a partition and a key they have no order.
                if is_expired && order != (None, None) {
                    late.insert(order);
                }
                is_expired
            });
        self.waiting = waiting;
        self.add(&expired);
        expired
    }

    fn add(&mut self, messages: &VecDeque<Waiting<S>>) {
        self.in_flight += messages.len();
        self.bytes_in_flight += bytes_of(messages);
    }

    fn remove(&mut self, messages: &VecDeque<Waiting<S>>) {
        self.in_flight -= messages.len();
        self.bytes_in_flight -= bytes_of(messages);
    }
}

// === impl InWindow ===

impl<S: Sent> Drop for InWindow<S> {
    fn drop(&mut self) {
        let mut state = self.window.state();
        state.in_flight -= 1;
        state.bytes_in_flight -= self.bytes;
        state.is_overdue &= state.in_flight >= state.limit;
        drop(state);
        self.windows.release(&self.window);
    }
}

impl<S: Sent> fmt::Debug for InWindow<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InWindow").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::BorrowedMessage;

    use super::*;
    use crate::message::Topic;
    use crate::transport::Receipt;

    #[derive(Debug)]
    struct Nobody;

    impl Sent for Nobody {
        const IS_SINGLE: bool = false;

        fn too_large(self, _: &BorrowedMessage<'_>) -> Option<Self> {
            Some(self)
        }

        fn answer(self, _: Result<Receipt, TransportError>) {}
    }

    async fn add(window: &Window<Nobody>, key: &'static str, body: &'static str) {
        let message = Message {
            key: Some(key.into()),
            ..Message::plain(body)
        };
        let room = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        window.state().waiting.push_back(Waiting {
            to: Address::topic(Topic::from_static("t")),
            bytes: message.size_bytes(),
            message,
            sent: Nobody,
            since: Instant::now(),
            room,
        });
    }

    fn bodies(messages: &VecDeque<Waiting<Nobody>>) -> Vec<&[u8]> {
        let bodies = messages
            .iter()
            .filter_map(|next| next.message.body.as_deref());
        bodies.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_overtakes_a_message_of_its_key_that_waited_for_too_long() {
        let window = Window::default();
        add(&window, "a", "a1").await;
        tokio::time::advance(QUEUE_DEADLINE / 2).await;
        add(&window, "a", "a2").await;
        add(&window, "b", "b1").await;
        assert!(window.state().take_expired().is_empty());
        tokio::time::advance(QUEUE_DEADLINE / 2).await;
        let mut state = window.state();
        let expired = state.take_expired();
        assert_eq!(bodies(&expired), [b"a1", b"a2"]);
        assert_eq!(bodies(&state.waiting), [b"b1"]);
        // Until they are answered.
        assert_eq!(state.in_flight, 2);
    }
}
