//! The delivery policy: when a copy is sent, retried or refused. All senders use it.
//!
//! | result of the send | the event names the destination | the configuration names it |
//! |---|---|---|
//! | too large, cannot be written | refused | refused |
//! | refused by the bus (unknown topic, not allowed, full, ...) | refused | held: retried until an operator has repaired the destination; a request with a waiting caller is refused |
//! | no answer (disconnected, timed out, queue full) | held: retried | held: retried |
//!
//! A refused copy becomes a dead letter, or its caller gets an error. If an earlier attempt may have arrived, both say
//! so; but a caller that awaits an answer keeps waiting: the answer shows whether the agent has got the request. A
//! waiting caller ([`Publisher::for_call`]) also gets the error if an operator has to repair the destination, and its
//! copy is retried only until its deadline.
//!
//! The wait before a retry belongs to the destination ([`Destinations`]): one copy probes whether the destination works
//! again, and then all copies are sent at full speed.

mod destinations;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Confirmation, Disposition, Guarantee, TransportError, TransportErrorKind};
use tokio::time::{Duration, Instant};

pub(crate) use destinations::{Destinations, Holder};

use crate::bus::line::Turn;
use crate::bus::outbound::{Outbound, Outgoing};
use crate::route::NamedBy;
use destinations::{Destination, Probe, SendGuard, WaitPolicy, needs_repair};

pub(crate) use destinations::{BACKOFF, jittered};

/// How long a dead letter that nothing else stores waits for a stream that may come back by itself.
const UNBACKED_HOLD: Duration = Duration::from_secs(60);

/// Sends copies by the rules of this module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    outbound: Outbound,
    destinations: Arc<Destinations>,
}

/// What to do with a copy that its bus did not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureAction {
    /// Send it again once its destination works, before any later message.
    Hold,
    /// It can never be delivered: send its dead letter, or fail its call.
    Refuse,
}

/// The result of sending a copy until it is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Confirmed,
    /// The copy was no longer wanted when an attempt was due. An earlier attempt may have arrived.
    NotWanted {
        may_have_arrived: bool,
    },
    /// It may have arrived, and is not sent again: it must not be ([`Publisher::must_not_repeat`]), or its bus has
    /// refused a later attempt.
    Unknown,
}

// === impl Publisher ===

impl Publisher {
    /// A publisher; all publishers of a bridge share the state of the destinations.
    #[must_use]
    pub fn new(outbound: Outbound, destinations: Arc<Destinations>) -> Self {
        Self {
            outbound,
            destinations,
        }
    }

    /// The component that routes events to their destinations.
    #[must_use]
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    /// Forgets destinations that failed and that no copy waits for, because the rules have changed.
    pub(crate) fn forget_unheld(&self) {
        self.destinations.forget_unheld();
    }

    /// What to do with a copy of a received message after this error. If an operator has to repair the destination, a
    /// request with a waiting caller fails at once, and does not hold its lane.
    #[must_use]
    pub fn failure_action(&self, copy: &Outgoing, error: &TransportError) -> FailureAction {
        if copy.is_awaited && needs_repair(error) {
            return FailureAction::Refuse;
        }
        self.action_at_destination(copy, error)
    }

    fn action_at_destination(&self, copy: &Outgoing, error: &TransportError) -> FailureAction {
        if let Some(dead_letter) = copy.dead_letter {
            return self.action_for_dead_letter(
                copy,
                dead_letter.is_reduced,
                dead_letter.is_backed,
                error,
            );
        }
        let is_up = self.outbound.buses().is_up(copy.bus);
        match error.disposition() {
            Disposition::DeadLetter => FailureAction::Refuse,
            _ if copy.named_by == NamedBy::Event && is_refusal(error) && is_up => {
                FailureAction::Refuse
            }
            Disposition::Retry | Disposition::Pause => FailureAction::Hold,
        }
    }

    /// A dead letter waits for its topic as long as its source stores the message, even if it cannot be made smaller.
    /// Otherwise it waits only while its stream may come back by itself, and at most [`UNBACKED_HOLD`].
    fn action_for_dead_letter(
        &self,
        dead_letter: &Outgoing,
        is_reduced: bool,
        is_backed: bool,
        error: &TransportError,
    ) -> FailureAction {
        let can_be_reduced = error.disposition() == Disposition::DeadLetter && !is_reduced;
        let has_waited = || {
            let since = self.destinations.fails_since(dead_letter);
            since.is_some_and(|since| since.elapsed() >= UNBACKED_HOLD)
        };
        let is_given_up = !is_backed && (is_lasting(error) || has_waited());
        let is_lost = is_given_up && self.outbound.buses().is_up(dead_letter.bus);
        if can_be_reduced || is_lost {
            FailureAction::Refuse
        } else {
            FailureAction::Hold
        }
    }

    /// Hands a copy to its bus; the confirmation comes later. A destination that is known to fail is not tried,
    /// except with a dead letter, or a copy with a waiting caller, if a failure would refuse it instead of holding it.
    ///
    /// # Errors
    /// As [`a2abus_transports::Transport::send`].
    pub async fn send(&self, copy: &Outgoing) -> Result<Confirmation, TransportError> {
        match self.destinations.known_failure(copy) {
            Some(error) if !self.is_tried(copy, &error) => Err(error),
            Some(_) | None => self.outbound.send(copy).await,
        }
    }

    /// Whether a copy is sent although its destination has failed: nothing else would show that it works again.
    fn is_tried(&self, copy: &Outgoing, error: &TransportError) -> bool {
        let is_last_chance = copy.is_awaited || copy.dead_letter.is_some();
        is_last_chance && matches!(self.failure_action(copy, error), FailureAction::Refuse)
    }

    /// Records that a copy is confirmed, this long after it was handed to its bus.
    pub fn confirmed(&self, copy: &Outgoing, after: Duration) {
        if let Some(bus) = self.outbound.buses().get(copy.bus) {
            bus.metrics.published.inc();
            bus.metrics.publish_seconds.observe(after.as_secs_f64());
        }
        if copy.is_awaited || copy.dead_letter.is_some() {
            // It was sent without waiting for a probe, so it may be the first that succeeds.
            self.destinations.works(&Destination::of(copy));
        }
    }

    /// Records that an undeliverable copy is given up. If the configuration names its destination, the destination is
    /// recorded as failed.
    pub fn refused(&self, copy: &Outgoing, error: &TransportError) {
        if copy.named_by == NamedBy::Config && needs_repair(error) {
            let destination = Destination::of(copy);
            drop(self.destinations.failed(&destination, copy.named_by, error));
        }
    }

    /// Records that a copy is held and will be sent again; keep the returned holder until then.
    pub fn held(&self, copy: &Outgoing, error: &TransportError) -> Holder {
        self.count_retry(copy, error);
        self.destinations
            .failed(&Destination::of(copy), copy.named_by, error)
    }

    /// Why the destination of this copy fails at the moment, if that is known.
    #[must_use]
    pub fn known_failure(&self, copy: &Outgoing) -> Option<TransportError> {
        self.destinations.known_failure(copy)
    }

    /// Sends a copy once, in its turn if it has one, and waits for its confirmation.
    ///
    /// # Errors
    /// As [`a2abus_transports::Transport::send`] and its confirmation.
    pub async fn once(&self, copy: &Outgoing, place: Option<&Turn>) -> Result<(), TransportError> {
        if let Some(place) = place {
            place.come().await;
        }
        let handed_over = || place.into_iter().for_each(Turn::handed_over);
        let sent = self.attempt(copy, handed_over).await;
        sent.map_err(|(error, _)| error)
    }

    /// Sends a copy until it is confirmed. Waits for its destination as long as that takes.
    ///
    /// # Errors
    /// Why the copy can never be delivered ([`FailureAction::Refuse`]).
    pub async fn until_confirmed(&self, copy: &Outgoing) -> Result<(), TransportError> {
        self.in_turn(copy, None).await
    }

    /// The same, while the copy is wanted. `handed_over` is called whenever the bus has accepted the copy into its
    /// queue. If a request may have arrived and is not sent again ([`Sent::Unknown`]), its answer shows whether it has
    /// arrived, or its deadline passes.
    ///
    /// # Errors
    /// As [`Publisher::until_confirmed`].
    pub async fn until_confirmed_if(
        &self,
        copy: &Outgoing,
        is_wanted: impl Fn() -> bool,
        handed_over: impl Fn(),
    ) -> Result<Sent, TransportError> {
        let how = (None, None);
        self.send_while(copy, how, is_wanted, handed_over).await
    }

    /// As [`Publisher::until_confirmed`]. Before each attempt, waits for the turn of the copy in its line, if it has
    /// one. A request that may have arrived and is not sent again counts as confirmed.
    ///
    /// # Errors
    /// As [`Publisher::until_confirmed`].
    pub async fn in_turn(
        &self,
        copy: &Outgoing,
        place: Option<&Turn>,
    ) -> Result<(), TransportError> {
        let handed_over = || place.into_iter().for_each(Turn::handed_over);
        let sent = self.send_while(copy, (place, None), || true, handed_over);
        sent.await.map(drop)
    }

    /// Sends a copy whose caller waits, until it is confirmed. Retries as long as the destination may recover by
    /// itself; the caller drops this future at its deadline. `handed_over` is called whenever the bus has accepted the
    /// copy into its queue, because it may arrive from then on. If it may have arrived and is not sent again, this
    /// never returns: the answer shows whether it has arrived. Once `is_answered` is true, it has arrived, confirmed or
    /// not, and is not sent again.
    ///
    /// # Errors
    /// Why the bus refuses it, if the destination cannot recover by itself.
    pub(crate) async fn for_call(
        &self,
        copy: &Outgoing,
        handed_over: impl Fn(),
        is_answered: Option<&AtomicBool>,
    ) -> Result<(), TransportError> {
        // Nothing else reports that it is not published: the caller may have other copies, or have disconnected.
        let interest = self.destinations.interest(copy, is_answered);
        let how = (None, Some(interest));
        let is_wanted = || !is_answered.is_some_and(|it| it.load(Ordering::Relaxed));
        match self.send_while(copy, how, is_wanted, handed_over).await? {
            Sent::Confirmed | Sent::NotWanted { .. } => Ok(()),
            Sent::Unknown => pending().await,
        }
    }

    async fn send_while(
        &self,
        copy: &Outgoing,
        (place, mut interest): (Option<&Turn>, Option<SendGuard<'_>>),
        is_wanted: impl Fn() -> bool,
        handed_over: impl Fn(),
    ) -> Result<Sent, TransportError> {
        let (destinations, destination) = (&self.destinations, Destination::of(copy));
        let wait_policy = WaitPolicy::of(copy, interest.is_some());
        let mut may_have_arrived = copy.may_have_arrived;
        let mut held: Option<Holder> = None;
        loop {
            let turn = || destinations.turn(&destination, copy.named_by, wait_policy, &is_wanted);
            let probe = match place {
                None => turn().await,
                Some(place) => place.come_with(turn).await,
            };
            if !is_wanted() {
                return Ok(Sent::NotWanted { may_have_arrived });
            }
            let handed_over = || {
                interest.iter().for_each(SendGuard::handed_over);
                handed_over();
            };
            let Err((error, is_handed_over)) = self.attempt(copy, handed_over).await else {
                interest.into_iter().for_each(SendGuard::done);
                self.works(probe, &destination, wait_policy);
                return Ok(Sent::Confirmed);
            };
            may_have_arrived |= is_handed_over && error.leaves_open();
            if is_handed_over && self.must_not_repeat(copy, &error) {
                if let Some(probe) = probe {
                    drop(probe.failed(&error));
                }
                return Ok(self.left_open(copy, &error, interest));
            }
            if let Some(interest) = &mut interest {
                interest.failed(&error, may_have_arrived);
            }
            match (self.action_at_destination(copy, &error), probe) {
                (FailureAction::Refuse, probe) => {
                    if let Some(probe) = probe {
                        probe.refused();
                    }
                    return self.refusal(copy, error, may_have_arrived, interest);
                }
                (FailureAction::Hold, Some(probe)) => drop(held.replace(probe.failed(&error))),
                (FailureAction::Hold, None) => {
                    let holder = destinations.failed(&destination, copy.named_by, &error);
                    drop(held.replace(holder));
                }
            }
            if wait_policy == WaitPolicy::UntilRefused && needs_repair(&error) {
                return self.refusal(copy, error, may_have_arrived, interest);
            }
            self.count_retry(copy, &error);
            place.inspect(|place| place.failed());
        }
    }

    /// The result for a copy that its bus refuses. If an earlier attempt may have arrived, whoever awaits its answer
    /// waits on.
    fn refusal(
        &self,
        copy: &Outgoing,
        error: TransportError,
        may_have_arrived: bool,
        interest: Option<SendGuard<'_>>,
    ) -> Result<Sent, TransportError> {
        match may_have_arrived {
            false => Err(error),
            true if copy.is_awaited => Ok(self.left_open(copy, &error, interest)),
            true => Err(error.after_unconfirmed()),
        }
    }

    /// The result for a request that may have arrived, and is not sent again. It is counted and logged, unless its
    /// agent has answered.
    fn left_open(
        &self,
        copy: &Outgoing,
        error: &TransportError,
        interest: Option<SendGuard<'_>>,
    ) -> Sent {
        match interest {
            // Its end reports that.
            Some(mut interest) => interest.failed(error, true),
            None => self.unconfirmed(copy, error),
        }
        Sent::Unknown
    }

    /// Sends a copy once: to any partition if its topic does not have the one that a requester named. The Boolean of an
    /// error says whether the bus had accepted the copy into its queue.
    async fn attempt(
        &self,
        copy: &Outgoing,
        handed_over: impl Fn(),
    ) -> Result<(), (TransportError, bool)> {
        let begin = Instant::now();
        let mut sent = self.attempt_as_addressed(copy, &handed_over).await;
        let is_unknown =
            |(error, _): &(TransportError, bool)| error.kind() == TransportErrorKind::UnknownTopic;
        let may_move = copy.address.partition.is_some() && copy.named_by == NamedBy::Event;
        if may_move && sent.as_ref().is_err_and(is_unknown) {
            let mut elsewhere = copy.clone();
            elsewhere.address.partition = None;
            // Boxed, because it is rare.
            sent = Box::pin(self.attempt_as_addressed(&elsewhere, &handed_over)).await;
        }
        sent?;
        self.confirmed(copy, begin.elapsed());
        Ok(())
    }

    async fn attempt_as_addressed(
        &self,
        copy: &Outgoing,
        handed_over: &impl Fn(),
    ) -> Result<(), (TransportError, bool)> {
        let confirmation = self.outbound.send(copy).await;
        let confirmation = confirmation.map_err(|error| (error, false))?;
        handed_over();
        let confirmed = confirmation.await.map_err(|error| (error, true));
        confirmed.map(drop)
    }

    /// Whether a copy that the bus has accepted into its queue, and that then failed with this error, must not be sent
    /// again: it may have arrived, and the agent would execute it twice. Core NATS does not recognise a request that is
    /// sent again, and the caller still waits for the answer to the first.
    pub(crate) fn must_not_repeat(&self, copy: &Outgoing, error: &TransportError) -> bool {
        let bus = self.outbound.buses().get(copy.bus);
        let is_nats = bus.is_some_and(|bus| bus.transport.binding() == ProtocolBinding::Nats);
        let is_core = is_nats && copy.address.guarantee == Guarantee::Default;
        copy.is_awaited && is_core && error.leaves_open()
    }

    /// Counts and logs a copy that its bus has not confirmed, and that is not sent again.
    pub(crate) fn unconfirmed(&self, copy: &Outgoing, error: &TransportError) {
        self.destinations.lost(copy, error, true);
    }

    /// Records that a destination works, if the copy was a probe, or was sent although the destination may fail.
    fn works(&self, probe: Option<Probe>, destination: &Destination, wait_policy: WaitPolicy) {
        match probe {
            Some(probe) => probe.confirmed(),
            None if wait_policy == WaitPolicy::UntilRefused => self.destinations.works(destination),
            None => {}
        }
    }

    fn count_retry(&self, copy: &Outgoing, error: &TransportError) {
        if let Some(bus) = self.outbound.buses().get(copy.bus) {
            bus.metrics.retried(error.kind());
        }
    }
}

/// Whether waiting would not help: the bus has refused the message, cannot store any, or does not say whether it would.
/// A stream that stores the message, but confirms it late, is not told from a subscriber of core NATS without a stream.
fn is_lasting(error: &TransportError) -> bool {
    let cause = error.source();
    let cause = cause.and_then(|cause| cause.downcast_ref::<TransportError>());
    error.disposition() == Disposition::DeadLetter
        || is_refusal(error)
        || error.kind() == TransportErrorKind::TimedOut
        || cause.is_some_and(needs_repair)
}

/// Whether the bus answered with a refusal.
fn is_refusal(error: &TransportError) -> bool {
    needs_repair(error) || error.kind() == TransportErrorKind::Other
}
