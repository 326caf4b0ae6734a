//! Deliveries that are settled only after every request in them is answered.

use std::sync::Arc;

use a2abus_transports::{Delivery, Message, Origin, Topic};

use crate::bus::deadletter::Undelivered;
use crate::calls::exchange::Unsettled;
use crate::metrics::BindingMetrics;

/// A delivery that its unanswered requests hold. It is settled when the last one is done. If one is given up, or the
/// last one is dropped without being done, the source delivers it again.
#[derive(Debug)]
pub(crate) struct Held {
    /// The message, for its dead letter.
    pub(crate) message: Message,
    /// Where it was read.
    pub(crate) topic: Topic,
    /// Where its source keeps it.
    pub(crate) origin: Option<Origin>,
    share: Unsettled,
}

// === impl Held ===

impl Held {
    /// Holds a delivery. Also returns the inbox of its sender.
    pub(crate) fn new(delivery: Delivery, metrics: BindingMetrics) -> (Arc<Self>, Option<Topic>) {
        let share = Unsettled::new(metrics);
        share.hold(delivery.acknowledger);
        let held = Self {
            message: delivery.message,
            topic: delivery.topic,
            origin: delivery.origin,
            share,
        };
        (Arc::new(held), delivery.reply_to)
    }

    /// Its position at its source.
    pub(crate) fn position(&self) -> Option<&str> {
        let origin = self.origin.as_ref();
        origin.map(|origin| origin.position.as_str())
    }

    /// The message, for its dead letter or for the report that it is dropped.
    pub(crate) fn undelivered(&self) -> Undelivered<'_> {
        Undelivered::new(&self.message, &self.topic, self.origin.as_ref())
    }

    /// Whether this bridge still has to answer it.
    pub(crate) fn is_current(&self) -> bool {
        self.share.is_current()
    }

    /// One of its requests is answered.
    pub(crate) fn done(self: Arc<Self>) {
        if let Some(held) = Arc::into_inner(self) {
            held.share.done();
        }
    }

    /// One of its requests is left to the next reader of the delivery.
    pub(crate) fn give_up(self: Arc<Self>) {
        self.share.abandon();
    }
}
