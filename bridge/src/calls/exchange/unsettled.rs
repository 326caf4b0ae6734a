//! A message that is settled when all work on it is done.

use std::sync::atomic::{AtomicBool, Ordering, fence};
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
    publishing: Option<Publishing>,
}

/// A message whose request is answered, for its later deliveries. They publish no copies, so they are settled only once
/// those of this message are confirmed. Empty if they are confirmed already.
#[derive(Debug, Clone, Default)]
pub(super) struct Earlier(Option<Arc<Mutex<LaterDeliveries>>>);

/// What becomes of the later deliveries of a message.
#[derive(Debug)]
enum LaterDeliveries {
    /// They wait until it is settled.
    Wait(Vec<Unsettled>),
    /// It was settled: so are they.
    Settled,
    /// It was not: they are new.
    Abandoned,
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
    /// Whether copies of the message may be lost, so that a later delivery has to publish them.
    are_copies_lost: AtomicBool,
    /// How many things are being published.
    publishing: Mutex<usize>,
    /// Set if the message is not settled when its request is answered.
    later: OnceLock<Arc<Mutex<LaterDeliveries>>>,
    metrics: BindingMetrics,
}

// === impl Unsettled ===

impl Unsettled {
    /// A message whose copies are about to be published.
    pub(crate) fn new(metrics: BindingMetrics) -> Self {
        let shared = Arc::new(Shared {
            acknowledger: OnceLock::new(),
            is_abandoned: AtomicBool::new(false),
            are_copies_lost: AtomicBool::new(false),
            publishing: Mutex::new(1),
            later: OnceLock::new(),
            metrics,
        });
        Self {
            publishing: Some(Publishing(Arc::clone(&shared))),
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
            publishing: None,
            shared: Arc::clone(&self.shared),
            is_done: false,
        }
    }

    /// The work of this share is done.
    pub(crate) fn done(mut self) {
        self.is_done = true;
    }

    /// The same, once an earlier delivery of the message is settled. Returns the share if that was abandoned.
    pub(super) fn done_with(self, earlier: &Earlier) -> Option<Self> {
        let is_other = |later: &&Arc<_>| {
            let own = self.shared.later.get();
            own.is_none_or(|own| !Arc::ptr_eq(own, later))
        };
        let Some(later) = earlier.0.as_ref().filter(is_other) else {
            self.done();
            return None;
        };
        let mut later = lock(later);
        match &mut *later {
            LaterDeliveries::Wait(waiting) => {
                // Other readers have those, and they would use the budget of the source.
                let moved = waiting.extract_if(.., |it| !it.is_current());
                let moved: Vec<Self> = moved.collect();
                waiting.push(self);
                drop(later);
                drop(moved);
                None
            }
            LaterDeliveries::Settled => {
                drop(later);
                self.done();
                None
            }
            LaterDeliveries::Abandoned => Some(self),
        }
    }

    /// This message, for its later deliveries. The caller holds `publishing`.
    pub(super) fn as_earlier(&self, publishing: &Publishing) -> Earlier {
        let held = self.publishing.iter().chain([publishing]);
        let held = held.filter(|it| Arc::ptr_eq(&it.0, &self.shared)).count();
        let is_in_progress = Arc::strong_count(&self.shared) > held + 1;
        // What was written before the other shares were dropped.
        fence(Ordering::Acquire);
        let are_copies_lost = self.shared.are_copies_lost.load(Ordering::Relaxed);
        let later = || Arc::clone(self.shared.later.get_or_init(Arc::default));
        Earlier((is_in_progress || are_copies_lost).then(later))
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

// === impl Earlier ===

impl Earlier {
    /// Whether the message was returned to its source with copies that may not be published.
    pub(super) fn is_abandoned(&self) -> bool {
        let later = self.0.as_ref();
        later.is_some_and(|later| matches!(*lock(later), LaterDeliveries::Abandoned))
    }
}

// === impl LaterDeliveries ===

impl Default for LaterDeliveries {
    fn default() -> Self {
        Self::Wait(Vec::new())
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if !self.is_done {
            // Only the share of the copies publishes. A request that is left is a new one when it comes again.
            if self.publishing.is_some() {
                self.shared.are_copies_lost.store(true, Ordering::Relaxed);
            }
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
        if let Some(later) = self.later.take() {
            let are_copies_lost = self.are_copies_lost.load(Ordering::Relaxed);
            let end = match are_copies_lost {
                true => LaterDeliveries::Abandoned,
                false => LaterDeliveries::Settled,
            };
            let waiting = std::mem::replace(&mut *lock(&later), end);
            // Otherwise they are dropped here, and return to their source.
            if let LaterDeliveries::Wait(waiting) = waiting
                && !are_copies_lost
            {
                waiting.into_iter().for_each(Unsettled::done);
            }
        }
        if self.is_abandoned.load(Ordering::Relaxed) {
            // Dropping the acknowledger returns the message to its source.
            return;
        }
        let Some(acknowledger) = self.acknowledger.take() else {
            return;
        };
        let _settle = stage::settle().entered();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(%error, "a request was not acknowledged: it may be redelivered");
            }
        }
    }
}
