//! A message that is settled when all work on it is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use a2abus_transports::{Acknowledger, Outcome};

use crate::lock::lock;
use crate::metrics::BindingMetrics;
use crate::stage;

/// A share of an unsettled message; each piece of work has one. The message is settled when all shares are
/// [`Unsettled::done`]. If one is dropped before that, the source delivers the message again.
#[derive(Debug)]
pub(crate) struct Unsettled {
    shared: Arc<Shared>,
    is_done: bool,
    /// Set until the copies of the message are published; dropped last.
    _publishing: Option<Publishing>,
}

/// Exists while the message or its answer is being published. Without it, the message only waits for an agent; the
/// source then knows that it may wait for a long time.
#[derive(Debug)]
pub(super) struct Publishing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Set once the message is routed.
    acknowledger: OnceLock<Acknowledger>,
    is_abandoned: AtomicBool,
    /// How many things are being published.
    publishing: Mutex<usize>,
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
            metrics,
        });
        Self {
            _publishing: Some(Publishing(Arc::clone(&shared))),
            shared,
            is_done: false,
        }
    }

    /// Sets the acknowledger.
    pub(crate) fn hold(&self, acknowledger: Acknowledger) {
        // This is called once per message.
        drop(self.shared.acknowledger.set(acknowledger));
    }

    /// A share for another piece of work.
    pub(crate) fn another(&self) -> Self {
        Self {
            _publishing: None,
            shared: Arc::clone(&self.shared),
            is_done: false,
        }
    }

    /// The work of this share is done.
    pub(crate) fn done(mut self) {
        self.is_done = true;
    }

    /// From now on, the message will not be settled: the source delivers it again.
    pub(crate) fn abandon(&self) {
        self.shared.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Starts publishing something.
    pub(super) fn publishing(&self) -> Publishing {
        self.shared.count_publishing(1, 0);
        Publishing(Arc::clone(&self.shared))
    }

    /// Starts publishing something, if the message still belongs to this replica.
    pub(super) fn publishing_if_current(&self) -> Option<Publishing> {
        // The order matters: from now on, a source that takes the message away waits.
        let publishing = self.publishing();
        self.is_current().then_some(publishing)
    }

    /// Whether the message still belongs to this replica.
    pub(crate) fn is_current(&self) -> bool {
        let acknowledger = self.shared.acknowledger.get();
        acknowledger.is_none_or(Acknowledger::is_current)
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_done {
            self.abandon();
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        // With the last reference the message is settled, so it is not reported as waiting before.
        if Arc::strong_count(&self.0) > 1 {
            self.0.count_publishing(0, 1);
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Tells the source when the first publication starts, and when the last one has ended.
    fn count_publishing(&self, begun: usize, ended: usize) {
        let mut publishing = lock(&self.publishing);
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
            // Dropping the acknowledger returns the message to its source.
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
