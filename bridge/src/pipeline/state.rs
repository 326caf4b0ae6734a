//! A binding, and its messages in progress.

use std::sync::Arc;

use a2abus_transports::{Acknowledger, Message, Origin, Topic};
use prometheus::IntGauge;
use tokio::time::Instant;
use tracing::Span;

use super::claims::Claims;
use super::copies::{CopiesInHand, Weight};
use super::intake::Intake;
use crate::bus::deadletter::Undelivered;
use crate::bus::delivery::Publisher;
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::{Outbound, Outgoing, Unit};
use crate::calls::Calls;
use crate::calls::callid::CallId;
use crate::calls::exchange::room::{Places, WaitingRoom};
use crate::calls::exchange::{Exchanges, RoutedRequest, Unsettled};
use crate::calls::resolve::ReadAt;
use crate::config::{EventIds, OnUnknown, Role};
use crate::metrics::BindingMetrics;

/// One binding, and how it processes the messages of its topics.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Reads its messages.
    pub(crate) intake: Intake,
    /// The purpose of its messages.
    pub(crate) role: Role,
    /// How the ids of mapped events are generated.
    pub(crate) ids: EventIds,
    /// What to do with payloads of an unknown format.
    pub(crate) on_unknown: OnUnknown,
    /// Whether missing routing attributes of CloudEvents are taken from their data.
    pub(crate) fills_from_data: bool,
    /// The topic for answers to its requests that name no reply address.
    pub(crate) replies: Option<Topic>,
    /// Which attributes its writers may set.
    pub(crate) claims: Claims,
    /// The headers that its copies keep.
    pub(crate) passed: PassedHeaders,
    /// Routes.
    pub(crate) outbound: Outbound,
    /// Sends the copies.
    pub(crate) publisher: Publisher,
    /// Calls that its messages may answer.
    pub(crate) calls: Arc<Calls>,
    /// Its requests whose requester waits for an answer.
    pub(crate) exchanges: Arc<Exchanges>,
    /// How much of its budget these requests hold.
    pub(crate) waiting: WaitingRoom,
    /// The memory that its copies use.
    pub(crate) copies: CopiesInHand,
    /// How many tasks process its messages.
    pub(crate) workers: usize,
}

/// A received message, and what to publish.
pub(super) struct Received {
    pub(super) copies: Vec<Outgoing>,
    pub(super) original: Original,
    /// When it was received.
    pub(super) since: Instant,
    pub(super) span: Span,
}

/// The origin of a copy, for its dead letter and its settlement.
pub(super) struct Original {
    pub(super) message: Message,
    pub(super) topic: Topic,
    pub(super) origin: Option<Origin>,
    pub(super) settlement: Settlement,
    /// Counts it, unless its shares do.
    pub(super) _counted: Option<InProgress>,
    pub(super) weight: Weight,
}

/// Counts a message as in progress until it is dropped.
pub(super) struct InProgress(IntGauge);

/// How a message is settled once its copies are confirmed.
pub(super) enum Settlement {
    /// At once.
    Now(Acknowledger),
    /// When the requests in it, which are these calls, are answered as well.
    Shared(Unsettled, Box<[CallId]>),
}

/// The result of routing a message.
#[derive(Default)]
pub(super) struct Routed {
    /// Settles it once the requests in it are answered.
    pub(super) unsettled: Option<Unsettled>,
    /// The copies to publish.
    pub(super) copies: Vec<Outgoing>,
    /// The requests in it whose requester waits for an answer.
    pub(super) in_hand: Vec<RoutedRequest>,
    /// Their places among those that wait.
    pub(super) places: Places,
    /// Distinguishes the message from others with the same position; computed when it is needed.
    pub(super) fingerprint: Option<u64>,
    /// Error replies to its elements.
    pub(super) error_replies: usize,
}

// === impl Routed ===

impl Routed {
    /// Copies of one unit. All of them may linger: if only some did, they would not stay in order.
    pub(super) fn publish(&mut self, mut copies: Vec<Outgoing>, unit: Option<&Unit>) {
        for copy in &mut copies {
            copy.unit = unit.cloned();
            copy.address.may_linger = true;
        }
        if self.copies.is_empty() {
            self.copies = copies;
        } else {
            self.copies.append(&mut copies);
        }
    }

    /// A share of the message. The message is settled only after its shares are done.
    pub(super) fn share(&mut self, metrics: &BindingMetrics) -> Unsettled {
        let unsettled = self
            .unsettled
            .get_or_insert_with(|| Unsettled::new(metrics.clone()));
        unsettled.another()
    }
}

// === impl InProgress ===

impl InProgress {
    /// Continues the count of a message that was counted when it was received.
    pub(super) fn new(messages: &IntGauge) -> Self {
        Self(messages.clone())
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.dec();
    }
}

// === impl Original ===

impl Original {
    /// Whether the message still belongs to this replica: its Kafka partition may have moved to another one, which reads
    /// the message again.
    pub(super) fn is_current(&self) -> bool {
        match &self.settlement {
            Settlement::Now(acknowledger) => acknowledger.is_current(),
            Settlement::Shared(unsettled, _) => unsettled.is_current(),
        }
    }

    /// The calls whose requests are in it.
    pub(super) fn calls(&self) -> &[CallId] {
        match &self.settlement {
            Settlement::Now(_) => &[],
            Settlement::Shared(_, calls) => calls,
        }
    }

    pub(super) fn undelivered(&self) -> Undelivered<'_> {
        Undelivered::new(&self.message, &self.topic, self.origin.as_ref())
    }
}

pub(super) fn undelivered(at: ReadAt<'_>) -> Undelivered<'_> {
    Undelivered::new(at.message, at.topic, at.origin)
}
