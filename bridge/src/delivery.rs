//! What becomes of a copy: sent, sent again, or a dead letter. The one policy for everybody who sends.
//!
//! | the bus says | a place that the event names | a place that the configuration names |
//! |---|---|---|
//! | too large, cannot be expressed | dead letter | dead letter |
//! | no (unknown topic, not allowed, full, ...) | dead letter | held: sent again until a person has repaired the place |
//! | nothing (away, timed out, queue full) | held: sent again | held: sent again |
//!
//! The wait before a copy is sent again belongs to its destination ([`Destinations`]): one copy finds out whether it
//! works again, then all go at full speed.

mod destinations;

use std::sync::Arc;

use a2abus_transports::{
    Confirmation, Disposition, Health, Transport as _, TransportError, TransportErrorKind,
};
use tokio::time::Instant;

pub use destinations::Destinations;

use crate::bus::BusId;
use crate::outbound::{Outbound, Outgoing, Place};
use destinations::Destination;

pub(crate) use destinations::{BACKOFF, jittered};

/// Sends copies by the rules of this module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    outbound: Outbound,
    destinations: Arc<Destinations>,
}

/// What to do with a copy that its bus did not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send it again when its destination works, before anything that came after it.
    Hold,
    /// No bus will ever take it: send its dead letter.
    Refuse,
}

// === impl Publisher ===

impl Publisher {
    /// A publisher that shares what is known of destinations with all others of the bridge.
    #[must_use]
    pub fn new(outbound: Outbound, destinations: Arc<Destinations>) -> Self {
        Self {
            outbound,
            destinations,
        }
    }

    /// What to do with a copy that failed in this way.
    #[must_use]
    pub fn judge(&self, copy: &Outgoing, error: &TransportError) -> Verdict {
        if let Some(letter) = copy.letter {
            return self.judge_letter(copy, letter.is_reduced, letter.is_backed, error);
        }
        match error.disposition() {
            Disposition::DeadLetter => Verdict::Refuse,
            _ if copy.place == Place::FromEvent && is_refusal(error) && self.is_up(copy.bus) => {
                Verdict::Refuse
            }
            Disposition::Retry | Disposition::Pause => Verdict::Hold,
        }
    }

    /// A dead letter waits for its topic as long as its source keeps the message. One that cannot be made smaller, too.
    fn judge_letter(
        &self,
        letter: &Outgoing,
        is_reduced: bool,
        is_backed: bool,
        error: &TransportError,
    ) -> Verdict {
        let can_be_reduced = error.disposition() == Disposition::DeadLetter && !is_reduced;
        if can_be_reduced || (!is_backed && self.is_up(letter.bus)) {
            Verdict::Refuse
        } else {
            Verdict::Hold
        }
    }

    /// Whether the bus as a whole answers: what it refuses then, it refuses for a reason.
    fn is_up(&self, bus: BusId) -> bool {
        let bus = self.outbound.buses().get(bus);
        bus.is_some_and(|bus| *bus.transport.health().borrow() == Health::Up)
    }

    /// Hands a copy to its bus; the confirmation is still to come. A destination that is known to fail is not tried.
    ///
    /// # Errors
    /// As [`a2abus_transports::Transport::send`].
    pub async fn send(&self, copy: &Outgoing) -> Result<Confirmation, TransportError> {
        match self.destinations.known_failure(copy) {
            Some(error) => Err(error),
            None => self.outbound.send(copy).await,
        }
    }

    /// Notes that a copy is confirmed, which was handed to its bus at that time.
    pub fn confirmed(&self, copy: &Outgoing, sent: Instant) {
        if let Some(bus) = self.outbound.buses().get(copy.bus) {
            bus.metrics.published.inc();
            bus.metrics
                .publish_seconds
                .observe(sent.elapsed().as_secs_f64());
        }
    }

    /// Notes that a copy is held and will be sent again.
    pub fn held(&self, copy: &Outgoing, error: &TransportError) {
        self.destinations.failed(&Destination::of(copy), error);
        self.count_retry(copy, error);
    }

    /// Sends a copy until it is confirmed. Waits for its destination as long as that takes.
    ///
    /// # Errors
    /// Why no bus will ever take it ([`Verdict::Refuse`]).
    pub async fn until_confirmed(&self, copy: &Outgoing) -> Result<(), TransportError> {
        let destination = Destination::of(copy);
        loop {
            let probe = self.destinations.turn(&destination).await;
            let sent = Instant::now();
            let attempt = async { self.outbound.send(copy).await?.await };
            let Err(error) = attempt.await else {
                self.confirmed(copy, sent);
                if let Some(probe) = probe {
                    probe.confirmed();
                }
                return Ok(());
            };
            match (self.judge(copy, &error), probe) {
                (Verdict::Refuse, probe) => {
                    if let Some(probe) = probe {
                        probe.refused();
                    }
                    return Err(error);
                }
                (Verdict::Hold, Some(probe)) => probe.failed(&error),
                (Verdict::Hold, None) => self.destinations.failed(&destination, &error),
            }
            self.count_retry(copy, &error);
        }
    }

    fn count_retry(&self, copy: &Outgoing, error: &TransportError) {
        if let Some(bus) = self.outbound.buses().get(copy.bus) {
            bus.metrics.retried(error.kind());
        }
    }
}

/// Whether the bus has said no, rather than nothing at all.
fn is_refusal(error: &TransportError) -> bool {
    match error.kind() {
        TransportErrorKind::Other => true,
        kind => kind.disposition() == Disposition::Pause,
    }
}
