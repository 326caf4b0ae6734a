//! Deliveries that are settled only after every request in them is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_transports::{Acknowledger, Delivery, Message, Origin, Outcome, Topic};

use crate::bus::deadletter::Undelivered;
use crate::metrics::BindingMetrics;

/// A delivery that its unanswered requests hold. It is settled when the last one is done. If one is given up or dropped,
/// the source delivers it again.
#[derive(Debug)]
pub(crate) struct Held {
    /// The message, for its dead letter.
    pub(crate) message: Message,
    /// Where it was read.
    pub(crate) topic: Topic,
    /// Where its source keeps it.
    pub(crate) origin: Option<Origin>,
    acknowledger: Option<Acknowledger>,
    is_given_up: AtomicBool,
    metrics: BindingMetrics,
}

// === impl Held ===

impl Held {
    /// Holds a delivery. Also returns the inbox of its sender.
    pub(crate) fn new(delivery: Delivery, metrics: BindingMetrics) -> (Arc<Self>, Option<Topic>) {
        let held = Self {
            message: delivery.message,
            topic: delivery.topic,
            origin: delivery.origin,
            acknowledger: Some(delivery.acknowledger),
            is_given_up: AtomicBool::new(false),
            metrics,
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
        Undelivered {
            message: &self.message,
            topic: &self.topic,
            origin: self.origin.as_ref(),
            agent: None,
            call: None,
        }
    }

    /// Whether this bridge still has to answer it.
    pub(crate) fn is_current(&self) -> bool {
        let acknowledger = self.acknowledger.as_ref();
        acknowledger.is_none_or(Acknowledger::is_current)
    }

    /// One of its requests is answered.
    pub(crate) fn done(self: Arc<Self>) {
        let Some(mut held) = Arc::into_inner(self) else {
            return;
        };
        if held.is_given_up.load(Ordering::Relaxed) {
            return;
        }
        match held
            .acknowledger
            .take()
            .map(|acknowledger| acknowledger.settle(Outcome::Settled))
        {
            Some(Ok(())) | None => held.metrics.settled.inc(),
            Some(Err(error)) => {
                tracing::warn!(%error, "a request was not acknowledged: it may be redelivered");
            }
        }
    }

    /// One of its requests is left to the next reader of the delivery.
    pub(crate) fn give_up(self: Arc<Self>) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}
