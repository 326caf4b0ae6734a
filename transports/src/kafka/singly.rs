//! Topics that refuse requests of several messages.
//!
//! ```text
//! send ──▶ producer of batches ──too large──▶ topic is small: wait until none of its messages is in flight ──▶ the
//!             refused messages, then all others, by a producer that sends one message a request
//! ```
//! A broker refuses a whole request that is larger than `max.message.bytes` of its topic, however small its messages
//! are. So each message of a refused request is sent once more on its own, and only then is a message too large. All
//! later messages to the topic are sent in the same way, in order. Batches are tried again when the topic has been idle
//! for a moment, [`SMALL_TOPIC_TTL`] after the last refusal.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Message as _, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::per_topic::PerTopic;
use super::window::InWindow;
use super::writer::{LazyWriter, Sent, Setup, headers, saturated};
use crate::error::TransportError;
use crate::message::{Message, Topic};
use crate::transport::{Address, Decision, Receipt};

/// How long a topic counts as one that refuses batches.
const SMALL_TOPIC_TTL: Duration = Duration::from_secs(60);

/// The topics that are written to, and the producer for those that refuse batches.
#[derive(Debug)]
pub(super) struct Singles {
    max_message_bytes: u32,
    traffic: PerTopic<Traffic>,
    /// Sends one message per request.
    writer: LazyWriter<Single>,
}

/// The messages in flight to one topic.
#[derive(Debug, Default)]
struct Traffic {
    /// Messages without a result, and senders that are about to queue one.
    in_flight: AtomicUsize,
    /// Whether `small` needs to be checked.
    is_small: AtomicBool,
    small: Mutex<Option<Small>>,
    drained: Notify,
}

#[derive(Debug)]
struct Small {
    since: Instant,
    /// While this is `Some`, batched messages are in flight, or refused messages are being sent again, and all senders
    /// wait.
    again: Option<Again>,
}

/// The messages to send on their own, each list in order.
#[derive(Debug, Default)]
struct Again {
    /// Those of refused requests.
    refused: Vec<Refused>,
    /// Those that waited for them.
    following: Vec<Refused>,
    /// A thread is sending them.
    is_under_way: bool,
}

/// A message that was refused with its request, or that waited for one.
#[derive(Debug)]
struct Refused {
    topic: String,
    /// The partition of the first attempt.
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    payload: Option<Vec<u8>>,
    headers: Option<OwnedHeaders>,
    answer: Decision,
}

/// A message in flight, from before it is queued until its result.
#[derive(Debug)]
pub(super) struct InFlight {
    singles: Arc<Singles>,
    traffic: Arc<Traffic>,
    /// Whether the message is sent on its own.
    pub(super) is_single: bool,
}

/// A message that was sent in a batch.
#[derive(Debug)]
pub(super) struct Batched {
    pub(super) answer: Decision,
    pub(super) passage: InFlight,
    /// Set if it may not linger.
    pub(super) in_window: Option<InWindow<Self>>,
}

/// A message that was sent on its own.
#[derive(Debug)]
pub(super) struct Single {
    pub(super) answer: Decision,
    pub(super) passage: InFlight,
}

// === impl Batched, Single ===

impl Sent for Batched {
    const IS_SINGLE: bool = false;

    fn too_large(self, message: &BorrowedMessage<'_>) -> Option<Self> {
        let message_limit = self.passage.singles.max_message_bytes;
        let traffic = Arc::clone(&self.passage.traffic);
        let mut small = traffic.small();
        if small.is_none() {
            tracing::warn!(
                topic = message.topic(),
                max_message_bytes = message_limit,
                "the topic refused a request as too large: its messages are sent one by one for a while, which is slower; max_message_bytes should not be more than its max.message.bytes"
            );
        }
        let state = small.get_or_insert_with(|| Small {
            since: Instant::now(),
            again: None,
        });
        state.since = Instant::now();
        let refused = Refused {
            topic: message.topic().to_owned(),
            partition: Some(message.partition()).filter(|partition| *partition >= 0),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map(BorrowedHeaders::detach),
            answer: self.answer,
        };
        state.again.get_or_insert_default().refused.push(refused);
        traffic.is_small.store(true, Ordering::SeqCst);
        None
    }

    fn follow(self, to: &Address, message: &Message) -> Option<Self> {
        if !self.passage.traffic.is_small.load(Ordering::SeqCst) {
            return Some(self);
        }
        let traffic = Arc::clone(&self.passage.traffic);
        let mut small = traffic.small();
        let Some(again) = small.as_mut().and_then(|small| small.again.as_mut()) else {
            drop(small);
            return Some(self);
        };
        again.following.push(Refused {
            topic: to.topic.as_str().to_owned(),
            partition: to.partition.and_then(|partition| partition.try_into().ok()),
            key: message.key.as_deref().map(<[u8]>::to_vec),
            payload: message.body.as_deref().map(<[u8]>::to_vec),
            headers: headers(&message.headers),
            answer: self.answer,
        });
        None
    }

    fn answer(self, result: Result<Receipt, TransportError>) {
        self.answer.decide(result);
        drop(self.passage);
        drop(self.in_window);
    }
}

impl Sent for Single {
    const IS_SINGLE: bool = true;

    fn too_large(self, _: &BorrowedMessage<'_>) -> Option<Self> {
        Some(self)
    }

    fn answer(self, result: Result<Receipt, TransportError>) {
        self.answer.decide(result);
        drop(self.passage);
    }
}

// === impl Singles ===

impl Singles {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            max_message_bytes: setup.config.max_message_bytes,
            traffic: PerTopic::default(),
            writer: LazyWriter::new(setup),
        }
    }

    /// Waits until a message to the topic may be queued. This takes time only while a topic begins to be sent one by
    /// one.
    ///
    /// # Errors
    /// `Saturated` when it may not be queued at `until`.
    pub(super) async fn pass(
        self: &Arc<Self>,
        topic: &Topic,
        until: tokio::time::Instant,
    ) -> Result<InFlight, TransportError> {
        let traffic = self.traffic.get(topic);
        // Counted before the check, so that a sender that switches the topic waits for this message.
        let passage = self.passage(&traffic, false);
        if !traffic.is_small.load(Ordering::SeqCst) {
            return Ok(passage);
        }
        drop(passage);
        let passing = async {
            loop {
                let mut drained = std::pin::pin!(traffic.drained.notified());
                drained.as_mut().enable();
                if let Some(passage) = self.enter(&traffic) {
                    return passage;
                }
                drained.await;
            }
        };
        let passed = timeout_at(until, passing).await;
        passed.map_err(|_| saturated(topic))
    }

    fn passage(self: &Arc<Self>, traffic: &Arc<Traffic>, is_single: bool) -> InFlight {
        traffic.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight {
            singles: Arc::clone(self),
            traffic: Arc::clone(traffic),
            is_single,
        }
    }

    /// Permission to send to a topic that refuses or refused batches; `None` while everybody waits.
    fn enter(self: &Arc<Self>, traffic: &Arc<Traffic>) -> Option<InFlight> {
        let mut small = traffic.small();
        let is_single = match &*small {
            Some(Small { again: Some(_), .. }) => return None,
            Some(Small { since, .. }) => {
                since.elapsed() < SMALL_TOPIC_TTL || traffic.in_flight.load(Ordering::SeqCst) > 0
            }
            None => false,
        };
        if !is_single {
            *small = None;
            traffic.is_small.store(false, Ordering::SeqCst);
        }
        Some(self.passage(traffic, is_single))
    }

    /// Sends the refused messages, now that no message of the topic is in flight, and releases the waiting senders.
    fn drained(self: &Arc<Self>, traffic: &Arc<Traffic>) {
        let again = match &mut *traffic.small() {
            Some(Small {
                again: Some(again), ..
            }) if !again.is_under_way => {
                let under_way = Again {
                    is_under_way: true,
                    ..Again::default()
                };
                std::mem::replace(again, under_way)
            }
            _ => return,
        };
        // Held meanwhile, so that the topic is not drained again if one of them fails at once.
        traffic.in_flight.fetch_add(1, Ordering::SeqCst);
        for message in again.refused.into_iter().chain(again.following) {
            self.send_alone(message, traffic);
        }
        if let Some(small) = &mut *traffic.small() {
            small.again = None;
        }
        traffic.in_flight.fetch_sub(1, Ordering::SeqCst);
        traffic.drained.notify_waiters();
    }

    fn send_alone(self: &Arc<Self>, message: Refused, traffic: &Arc<Traffic>) {
        let record = BaseRecord {
            topic: &message.topic,
            partition: message.partition,
            payload: message.payload.as_deref(),
            key: message.key.as_deref(),
            timestamp: None,
            headers: message.headers,
            delivery_opaque: Box::new(Single {
                answer: message.answer,
                passage: self.passage(traffic, true),
            }),
        };
        let full = match self.writer.get() {
            Ok(writer) => writer.hand_over_record(record),
            Err(error) => {
                record.delivery_opaque.answer(Err(error));
                None
            }
        };
        if let Some(single) = full {
            single.answer(Err(saturated(&message.topic)));
        }
    }

    /// The producer that sends one message per request.
    pub(super) fn writer(&self) -> &LazyWriter<Single> {
        &self.writer
    }
}

// === impl Traffic ===

impl Traffic {
    /// Every change is complete before the lock is released, so a panic elsewhere leaves it usable.
    fn small(&self) -> MutexGuard<'_, Option<Small>> {
        self.small.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let is_last = self.traffic.in_flight.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.traffic.is_small.load(Ordering::SeqCst) {
            self.singles.drained(&self.traffic);
        }
    }
}
