//! How the copies of a message are sent: handed to their buses in order, confirmed, sent again, or given up for a dead
//! letter. [`crate::bus::delivery`] decides which.

use a2abus_transports::{Confirmation, TransportError, TransportErrorKind};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::lane::Task;
use super::{Original, Pipeline, Received};
use crate::bus::deadletter::{Reason, Stage, Undelivered};
use crate::bus::delivery::{Holder, Verdict};
use crate::bus::outbound::Outgoing;
use crate::calls::callid::shown_topic;
use crate::clock;

/// What a task of a lane has done.
pub(super) enum Done {
    /// The copies of a message are with their buses.
    Sent(InFlight),
    /// The first message that had failed is confirmed.
    Recovered(Original),
}

/// A message whose copies are on their way.
pub(super) struct InFlight {
    lane: u32,
    /// Its place among the messages of its lane.
    number: u64,
    copies: Vec<Copy>,
    /// When the copies were handed to their buses.
    sent: Instant,
    original: Original,
}

/// A copy that was handed to its bus.
struct Copy {
    outgoing: Outgoing,
    /// What the bus said.
    handed: Result<Confirmation, TransportError>,
    /// Where it was held before.
    _holder: Option<Holder>,
}

/// A copy that has to be sent again.
pub(super) type HeldCopy = (Outgoing, Holder);

/// A message of which some copies have to be sent again.
pub(super) struct Unconfirmed {
    pub(super) copies: Vec<HeldCopy>,
    pub(super) original: Original,
}

/// How the wait for the confirmations of one message ended.
pub(super) struct Decided {
    pub(super) lane: u32,
    pub(super) number: u64,
    pub(super) original: Original,
    /// The copies to send again, and why the first of them failed.
    pub(super) again: Option<(Vec<HeldCopy>, TransportErrorKind)>,
}

// === impl Pipeline ===

impl Pipeline {
    pub(super) async fn work(&self, lane: u32, task: Task<Received, Unconfirmed>) -> (u32, Done) {
        let done = match task {
            Task::Step(number, received) => {
                let span = received.span.clone();
                let step = self.step(lane, number, received);
                Done::Sent(step.instrument(span).await)
            }
            Task::Again(number, Unconfirmed { copies, original }) => {
                let mut in_flight = InFlight::new(lane, number, original);
                let held = |(copy, holder)| (copy, Some(holder));
                let copies = copies.into_iter().map(held);
                self.publish(copies, &mut in_flight).await;
                Done::Sent(in_flight)
            }
            Task::First(Unconfirmed { copies, original }) => {
                for (copy, _holder) in copies {
                    self.until_confirmed(copy, &original).await;
                }
                Done::Recovered(original)
            }
        };
        (lane, done)
    }

    /// Publishes a message. A request whose answer could not be read yet waits for that, after the rest of its message:
    /// an agent may be quick.
    async fn step(&self, lane: u32, number: u64, received: Received) -> InFlight {
        let Received {
            copies,
            original,
            since,
            ..
        } = received;
        let mut in_flight = InFlight::new(lane, number, original);
        let is_deaf = |copy: &Outgoing| self.calls.is_deaf(copy);
        let (deaf, copies) = if copies.iter().any(is_deaf) {
            copies.into_iter().partition(is_deaf)
        } else {
            (Vec::new(), copies)
        };
        let fresh = |copy| (copy, None);
        let copies = copies.into_iter().map(fresh);
        self.publish(copies, &mut in_flight).await;
        if !deaf.is_empty() {
            self.calls.until_answers_are_read(&deaf, since).await;
            let copies = deaf.into_iter().map(fresh);
            self.publish(copies, &mut in_flight).await;
        }
        in_flight
    }

    /// Whether a copy that has waited is still to be sent. Nobody waits for the answer to a request whose call has ended.
    pub(super) fn is_wanted(&self, copy: &Outgoing) -> bool {
        if copy.dead_letter.is_some() {
            return true;
        }
        let call = copy.call.as_ref().filter(|_| copy.is_awaited);
        let call = call.and_then(|call| call.parse().ok());
        !copy.expires.is_some_and(clock::is_over)
            && call.is_none_or(|call| !self.calls.has_ended(call))
    }

    /// Counts and logs a copy that is no longer wanted.
    pub(super) fn expired(&self, copy: &Outgoing, original: &Original) {
        let of = Undelivered {
            agent: copy.agent.as_ref(),
            call: copy.call.clone(),
            ..original.undelivered()
        };
        self.intake.dead_letters.dropped(&of, "expired");
    }

    /// Hands those copies to their buses, in order, that are still wanted. Waits at most while the queue of a bus is full.
    async fn publish(
        &self,
        copies: impl Iterator<Item = (Outgoing, Option<Holder>)>,
        in_flight: &mut InFlight,
    ) {
        for (outgoing, _holder) in copies {
            if !self.is_wanted(&outgoing) {
                self.expired(&outgoing, &in_flight.original);
                continue;
            }
            in_flight.copies.push(Copy {
                handed: self.publisher.send(&outgoing).await,
                outgoing,
                _holder,
            });
        }
        in_flight.sent = Instant::now();
    }

    /// Whether some copy was not even handed to its bus, and has to be sent again before anything later.
    pub(super) fn has_failed(&self, in_flight: &InFlight) -> bool {
        let holds = |copy: &Copy| {
            let error = copy.handed.as_ref().err();
            error
                .is_some_and(|error| self.publisher.verdict(&copy.outgoing, error) == Verdict::Hold)
        };
        in_flight.copies.iter().any(holds)
    }

    /// Waits for the confirmation of every copy. What no bus will ever take goes to the dead letters at once: that holds
    /// up nobody.
    pub(super) async fn confirm(&self, in_flight: InFlight) -> Decided {
        let InFlight {
            lane,
            number,
            copies,
            sent,
            original,
        } = in_flight;
        let mut again: Option<(Vec<HeldCopy>, TransportErrorKind)> = None;
        for copy in copies {
            if let Err((held, kind)) = self.delivered(copy, sent, &original).await {
                again.get_or_insert_with(|| (Vec::new(), kind)).0.push(held);
            }
        }
        Decided {
            lane,
            number,
            original,
            again,
        }
    }

    /// Waits until a copy, or what stands for it, is confirmed. Gives back what has to be sent again.
    async fn delivered(
        &self,
        copy: Copy,
        mut sent: Instant,
        original: &Original,
    ) -> Result<(), (HeldCopy, TransportErrorKind)> {
        let Copy {
            outgoing: mut copy,
            mut handed,
            _holder,
        } = copy;
        loop {
            let confirmed = match handed {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            };
            let Err(error) = confirmed else {
                self.publisher.confirmed(&copy, sent);
                self.calls.note_published(&copy);
                return Ok(());
            };
            if self.publisher.verdict(&copy, &error) == Verdict::Hold {
                let holder = self.publisher.held(&copy, &error);
                return Err(((copy, holder), error.kind()));
            }
            self.publisher.refused(&copy, &error);
            match self.instead(copy, &error, original) {
                Some(dead_letter) => copy = dead_letter,
                None => return Ok(()),
            }
            sent = Instant::now();
            handed = self.publisher.send(&copy).await;
        }
    }

    /// Sends a copy, or what stands for it, until it is confirmed.
    async fn until_confirmed(&self, copy: Outgoing, original: &Original) {
        let mut copy = Some(copy);
        while let Some(sending) = copy {
            let is_wanted = || self.is_wanted(&sending);
            copy = match self.publisher.until_confirmed_if(&sending, is_wanted).await {
                Ok(true) => {
                    self.calls.note_published(&sending);
                    None
                }
                Ok(false) => {
                    self.expired(&sending, original);
                    None
                }
                Err(error) => self.instead(sending, &error, original),
            };
        }
    }

    /// What to send in place of a copy that no bus will ever take. The one place where a copy is given up: whoever waits
    /// for it (`copy.call`) waits in vain.
    fn instead(
        &self,
        copy: Outgoing,
        error: &TransportError,
        original: &Original,
    ) -> Option<Outgoing> {
        if copy.dead_letter.is_some() {
            return self.intake.dead_letters.instead(copy, error);
        }
        self.calls.undeliverable(&copy, error);
        let reason = Reason {
            code: error.kind().as_str(),
            stage: Stage::Publish,
            detail: format!("{}: {error}", shown_topic(copy.address.topic.as_str())),
            unit: copy.unit.as_ref().map(|unit| unit.index),
        };
        let of = Undelivered {
            agent: copy.agent.as_ref(),
            call: copy.call.clone(),
            ..original.undelivered()
        };
        let body = copy.unit.map(|unit| unit.bytes);
        Some(self.intake.dead_letters.dead_letter(&of, body, &reason))
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(lane: u32, number: u64, original: Original) -> Self {
        Self {
            lane,
            number,
            copies: Vec::new(),
            sent: Instant::now(),
            original,
        }
    }
}
