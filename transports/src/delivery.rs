//! One received message and the right to settle it.

use std::fmt;

use a2abus_plugin::Text;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::TransportError;
use crate::message::{Message, Topic};

/// One received message plus its acknowledgement.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// Where it was received.
    pub topic: Topic,
    /// The reply subject NATS carried with it.
    pub reply_to: Option<Topic>,
    /// The place of the message at its source, unique and stable over redelivery: `k:TOPIC/PARTITION/OFFSET`,
    /// `j:STREAM/SEQUENCE`, `m:TOPIC/PARTITION/OFFSET`; for NATS core, which has no positions, `None`.
    pub origin: Option<Text>,
    /// Deliveries of one lane are in order and must be published in order; different lanes are independent.
    /// A Kafka partition, or a hash of the key or subject.
    pub lane: u32,
    /// How often this message has been delivered, including this time, if the source knows.
    pub attempt: u32,
    /// Settles it.
    pub acknowledger: Acknowledger,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every copy, or the dead letter, is confirmed: the source may forget the message.
    Settled,
    /// Not done: the source delivers it again (Kafka: to whom the partition is assigned next, JetStream: after a delay,
    /// memory: at once; NATS core: never).
    Abandoned,
}

/// The right to settle one delivery, once. Dropping it without a verdict abandons the delivery.
pub struct Acknowledger {
    settle: Option<Box<dyn Settle>>,
    /// Gives the bytes of the message back to the budget of its subscription.
    _budget: Option<OwnedSemaphorePermit>,
}

/// How one transport settles; called exactly once.
///
/// Must not block: what has to wait (a JetStream acknowledgement) is handed to the task that owns the connection.
pub(crate) trait Settle: Send + Sync {
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError>;

    /// Whether a verdict still counts.
    fn is_current(&self) -> bool {
        true
    }

    /// See [`Acknowledger::set_waiting`].
    fn set_waiting(&self, _is_waiting: bool) {}
}

// === impl Acknowledger ===

impl Acknowledger {
    pub(crate) fn new(settle: Box<dyn Settle>, budget: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            settle: Some(settle),
            _budget: budget,
        }
    }

    /// For sources that keep nothing: settling does nothing.
    pub(crate) fn none(budget: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            settle: None,
            _budget: budget,
        }
    }

    /// Whether the delivery is still this subscriber's, as far as is known: a Kafka partition may have been assigned to
    /// another, who receives the message again.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.settle
            .as_ref()
            .is_none_or(|settle| settle.is_current())
    }

    /// Tells the source whether nothing is left to do but to wait for somebody's answer. A source that gives the delivery
    /// to another reader (Kafka, when a partition is revoked) then does so at once: there is nothing to finish first.
    pub fn set_waiting(&self, is_waiting: bool) {
        if let Some(settle) = &self.settle {
            settle.set_waiting(is_waiting);
        }
    }

    /// Settles the message at its source. Never waits.
    ///
    /// # Errors
    /// When the source could not take the verdict: the message may be delivered again.
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
            tracing::warn!(%error, "an abandoned delivery could not be handed back");
        }
    }
}

impl fmt::Debug for Acknowledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acknowledger").finish_non_exhaustive()
    }
}
