//! One received message and the right to settle it.

use std::fmt;

use a2abus_plugin::Text;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};

/// One received message and its acknowledgement.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// Where it was received.
    pub topic: Topic,
    /// The NATS reply subject of the message.
    pub reply_to: Option<Topic>,
    /// Where the source keeps the message; `None` for core NATS, which keeps none.
    pub origin: Option<Origin>,
    /// A Kafka partition, or a hash of the key or subject. Deliveries of one lane are in order and must be published in
    /// order; different lanes are independent.
    pub lane: u32,
    /// How often this message has been delivered, including this delivery, if the source knows.
    pub attempt: u32,
    /// Settles it.
    pub acknowledger: Acknowledger,
}

/// Where a source keeps a message. Both parts are the same when the message is redelivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `k:TOPIC/PARTITION/OFFSET`, `j:STREAM/SEQUENCE` or `m:TOPIC/PARTITION/OFFSET`.
    pub position: Text,
    /// The time of the message in milliseconds since 1970, if the source has one: in a Kafka record, as the producer or
    /// the broker set it; in JetStream, when it was stored. The positions of a topic begin again when it is deleted and
    /// created again, and the time tells its messages from the ones before.
    pub time: Option<i64>,
}

/// The outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every copy, or the dead letter, is confirmed: the source may forget the message.
    Settled,
    /// Not finished: the source delivers the message again (Kafka: to the next owner of the partition; JetStream: after
    /// a delay; memory: at once; core NATS: never).
    Abandoned,
}

/// The right to settle one delivery, once. Dropping it unused abandons the delivery.
pub struct Acknowledger {
    settle: Option<Box<dyn Settle>>,
    /// Returns the bytes of the message to the budget of its subscription.
    _budget: Option<OwnedSemaphorePermit>,
}

/// Settles a delivery at its source. Called exactly once.
///
/// Must not block: work that has to wait (a JetStream acknowledgement) goes to the task that owns the connection.
pub(crate) trait Settle: Send + Sync {
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError>;

    /// Whether an outcome still takes effect.
    fn is_current(&self) -> bool {
        true
    }

    /// See [`Acknowledger::set_waiting`].
    fn set_waiting(&self, _is_waiting: bool) {}
}

// === impl Origin ===

impl Origin {
    /// Identifies the message, also among others that were at its position before: `POSITION@TIME`.
    #[must_use]
    pub fn identity(&self) -> Text {
        let mut digits = itoa::Buffer::new();
        let time = self.time.map_or("", |time| digits.format(time));
        Text::concat(&[&self.position, "@", time])
    }
}

impl From<Text> for Origin {
    fn from(position: Text) -> Self {
        Self {
            position,
            time: None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.position.fmt(f)
    }
}

// === impl Acknowledger ===

impl Acknowledger {
    pub(crate) fn new(settle: Box<dyn Settle>, budget: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            settle: Some(settle),
            _budget: budget,
        }
    }

    /// For sources that store nothing: settling does nothing.
    #[cfg(feature = "nats")]
    pub(crate) fn none(budget: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            settle: None,
            _budget: budget,
        }
    }

    /// Whether the delivery still belongs to this subscriber, as far as is known: a Kafka partition may have been
    /// assigned to another consumer, which receives the message again.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.settle
            .as_ref()
            .is_none_or(|settle| settle.is_current())
    }

    /// Tells the source whether only an answer is missing. If the source gives the delivery to another reader (Kafka,
    /// when a partition is revoked), it then does so at once, because no work has to be finished first.
    pub fn set_waiting(&self, is_waiting: bool) {
        if let Some(settle) = &self.settle {
            settle.set_waiting(is_waiting);
        }
    }

    /// Settles the message at its source. Never waits.
    ///
    /// # Errors
    /// When the source could not record the outcome: the message may be delivered again.
    pub fn settle(mut self, outcome: Outcome) -> Result<(), TransportError> {
        self.settle
            .take()
            .map_or(Ok(()), |settle| settle.settle(outcome))
    }
}

impl Drop for Acknowledger {
    fn drop(&mut self) {
        if let Some(settle) = self.settle.take()
            && let Err(error) = settle.settle(Outcome::Abandoned)
        {
            // After the end of its subscription, the source delivers it again by itself.
            if error.kind() == TransportErrorKind::Closed {
                tracing::debug!(%error, "an abandoned delivery is not returned to its source");
            } else {
                tracing::warn!(%error, "an abandoned delivery could not be returned to its source");
            }
        }
    }
}

impl fmt::Debug for Acknowledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acknowledger").finish_non_exhaustive()
    }
}
