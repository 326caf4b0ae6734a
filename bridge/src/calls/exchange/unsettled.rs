//! A message that is settled when everything in it is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use a2abus_transports::{Acknowledger, Outcome};

use super::room::Hold;
use crate::metrics::BindingMetrics;
use crate::stage;

/// A message that is not settled yet, held by everything that is still to be done about it. It is settled when everybody
/// is [`Unsettled::done`]; one that is dropped before that leaves the message to its source, which delivers it again.
#[derive(Debug)]
pub(crate) struct Unsettled {
    shared: Arc<Shared>,
    is_done: bool,
    /// Until the copies of the message are published; dropped last.
    _publishing: Option<Publishing>,
}

/// Something of the message, or of its answer, is on its way. While nothing is, the message waits for an agent alone, and
/// its source knows that.
#[derive(Debug)]
pub(super) struct Publishing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Set once the message is routed.
    acknowledger: OnceLock<Acknowledger>,
    is_abandoned: AtomicBool,
    /// How many things are on their way.
    publishing: Mutex<usize>,
    /// What it holds of the budget of its binding beside the agents.
    hold: OnceLock<Hold<()>>,
    metrics: BindingMetrics,
}

// === impl Unsettled ===

impl Unsettled {
    /// A message whose copies are about to be published.
    pub(crate) fn new(metrics: BindingMetrics) -> Self {
        let shared = Arc::new(Shared {
            acknowledger: OnceLock::new(),
            is_abandoned: AtomicBool::new(false),
            publishing: Mutex::new(1),
            hold: OnceLock::new(),
            metrics,
        });
        Self {
            _publishing: Some(Publishing(Arc::clone(&shared))),
            shared,
            is_done: false,
        }
    }

    /// What settles it, and the part of the budget that it holds until then.
    pub(crate) fn hold(&self, acknowledger: Acknowledger, hold: Option<Hold<()>>) {
        // Once for each message.
        drop(self.shared.acknowledger.set(acknowledger));
        if let Some(hold) = hold {
            drop(self.shared.hold.set(hold));
        }
    }

    /// One more thing to be done about it.
    pub(crate) fn another(&self) -> Self {
        Self {
            _publishing: None,
            shared: Arc::clone(&self.shared),
            is_done: false,
        }
    }

    /// This is done.
    pub(crate) fn done(mut self) {
        self.is_done = true;
    }

    /// Begins to publish something.
    pub(super) fn publishing(&self) -> Publishing {
        self.shared.count_publishing(1, 0);
        Publishing(Arc::clone(&self.shared))
    }

    /// Begins to publish something, if the message is still this replica's.
    pub(super) fn publishing_if_current(&self) -> Option<Publishing> {
        // In this order: a source that takes the message away from now on waits.
        let publishing = self.publishing();
        let acknowledger = self.shared.acknowledger.get();
        let is_current = acknowledger.is_none_or(Acknowledger::is_current);
        is_current.then_some(publishing)
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.is_abandoned.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        // With the last one the message is settled, and is not said to wait before.
        if Arc::strong_count(&self.0) > 1 {
            self.0.count_publishing(0, 1);
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Tells the source when the first thing begins, and when the last has ended.
    fn count_publishing(&self, begun: usize, ended: usize) {
        let mut publishing = self
            .publishing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = *publishing;
        *publishing = (before + begun).saturating_sub(ended);
        let (was_waiting, is_waiting) = (before == 0, *publishing == 0);
        if was_waiting != is_waiting
            && let Some(acknowledger) = self.acknowledger.get()
        {
            acknowledger.set_waiting(is_waiting);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        let Some(acknowledger) = self.acknowledger.take() else {
            return;
        };
        if self.is_abandoned.load(Ordering::Relaxed) {
            // Dropping it hands the message back.
            return;
        }
        let _settle = stage::settle().entered();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(%error, "a request was not acknowledged: it may be redelivered");
            }
        }
    }
}
