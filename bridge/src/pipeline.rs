//! The path of a message through the bridge. Read this first.
//!
//! ```text
//! receive ─> detect ─> parse ─> map ─> resolve (answers) │ route (all else) ─> publish ─> settle
//! ```
//!
//! One task runs each binding, and takes as many messages at once as there are. What becomes of a message is decided when
//! it is read, and whoever waits for the answer to a request in it waits from then on, even if its lane cannot go on.
//! Messages of one lane (a Kafka partition) are published in order; a lane whose message cannot be published waits and
//! tries again while the other lanes go on ([`crate::bus::delivery`] has the rules). A message is settled after every copy
//! of it, or its dead letter, is confirmed. What is held is bounded by the budget of the subscription.
//!
//! | `Pipeline::run` takes a message through | in |
//! |---|---|
//! | `receive`: read it, and decide what is published of it | `intake.rs`, `events.rs`, `request.rs`, `refused.rs` |
//! | `Run::go_on`: wait for its turn, then hand its copies to their buses | `run.rs`, `lane.rs`, `send.rs` |
//! | `Run::look`: settle it once they are confirmed | `run.rs`, `send.rs` |
//! | `Run::decided`: or hold its lane and send it again | `run.rs`, `send.rs` |

pub mod adapt;
pub(crate) mod claims;
mod copies;
mod events;
pub(crate) mod held;
pub(crate) mod intake;
mod lane;
mod refused;
mod request;
mod run;
mod send;

use std::collections::VecDeque;
use std::sync::Arc;

use a2abus_plugin::{MapContext, Text};
use a2abus_transports::{Acknowledger, Consumer, Delivery, Message, Outcome, Topic};
use futures_util::StreamExt as _;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::bus::deadletter::Undelivered;
use crate::bus::delivery::Publisher;
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::{Outbound, Outgoing, Unit};
use crate::calls::Calls;
use crate::calls::exchange::room::{Holds, WaitingRoom};
use crate::calls::exchange::{Exchanges, RoutedRequest, Unsettled};
use crate::calls::resolve::ReadAt;
use crate::config::{EventIds, OnUnknown, Role};
use crate::metrics::BindingMetrics;
use crate::stage;
use claims::Claims;
pub(crate) use copies::CopiesInHand;
use copies::Weight;
use intake::{Intake, Read};
use run::Run;

/// One binding: what is done with the messages of its topics.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Reads its messages.
    pub(crate) intake: Intake,
    /// The purpose of its messages.
    pub(crate) role: Role,
    /// Where the ids of mapped events come from.
    pub(crate) ids: EventIds,
    /// What to do with payloads that no family recognises.
    pub(crate) on_unknown: OnUnknown,
    /// Whether CloudEvents that lack routing attributes get them from their data.
    pub(crate) data: DataLook,
    /// Where answers to its requests go that name no reply address.
    pub(crate) replies: Option<Topic>,
    /// Which attributes its writers may set.
    pub(crate) claims: Claims,
    /// The headers that copies keep.
    pub(crate) passed: PassedHeaders,
    /// Routes.
    pub(crate) outbound: Outbound,
    /// Sends what was routed.
    pub(crate) publisher: Publisher,
    /// Calls that its messages may answer.
    pub(crate) calls: Arc<Calls>,
    /// Its requests that somebody waits for.
    pub(crate) exchanges: Arc<Exchanges>,
    /// How much of its budget these hold.
    pub(crate) waiting: WaitingRoom,
    /// The memory that the copies of its messages take.
    pub(crate) copies: CopiesInHand,
}

/// Whether a binding looks into the data of CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataLook {
    /// Attributes only.
    Never,
    /// For routing attributes that the event lacks.
    ForMissing,
}

/// How often requests in held lanes are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Messages taken from the source at once.
const AT_ONCE: usize = 64;

/// A message that was read, and what is to be published of it.
struct Received {
    copies: Vec<Outgoing>,
    original: Original,
    /// When it was read.
    since: Instant,
    span: Span,
}

/// The origin of a copy, for its dead letter and its settlement.
struct Original {
    message: Message,
    topic: Topic,
    origin: Option<Text>,
    settlement: Settlement,
    _weight: Weight,
}

/// How a message is settled once its copies are confirmed.
enum Settlement {
    /// At once.
    Now(Acknowledger),
    /// When the requests in it are answered too.
    Shared(Unsettled),
}

/// The result of routing a message.
#[derive(Default)]
struct Routed {
    /// Settles it once the requests in it are answered.
    unsettled: Option<Unsettled>,
    /// The copies to publish.
    copies: Vec<Outgoing>,
    /// The requests in it that somebody waits for.
    in_hand: Vec<RoutedRequest>,
    /// The shares of the budget that these hold.
    room: Holds,
    /// Tells the message from others that were read at its position, once that is asked.
    fingerprint: Option<u64>,
    /// Error replies to its elements.
    error_replies: usize,
}

// === impl Pipeline ===

impl Pipeline {
    /// Runs until `stop`, then finishes what was received. What is unfinished when the future is dropped is abandoned:
    /// the source delivers it again.
    pub(crate) async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let mut run = Run::new(self);
        let mut received = Vec::with_capacity(AT_ONCE);
        // The budget of the subscription counts these; what they become is counted when they are read.
        let mut unread = VecDeque::with_capacity(AT_ONCE);
        let (mut open, mut wanted) = (true, true);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while self.copies.has_room()
                && let Some(delivery) = unread.pop_front()
            {
                run.receive(delivery);
            }
            // A lane that is held has work or a confirmation here.
            let is_idle = run.waiting.is_empty() && run.unconfirmed.is_empty();
            tokio::select! {
                biased;
                Some(decided) = run.unconfirmed.next() => run.decided(decided),
                Some((lane, done)) = run.waiting.next() => run.done(lane, done),
                _ = looks.tick(), if !is_idle => run.drop_unwanted(),
                count = consumer.recv_many(&mut received, AT_ONCE), if open && unread.is_empty() => {
                    open = count > 0;
                    unread.extend(received.drain(..));
                }
                () = stop.cancelled(), if wanted && open => {
                    wanted = false;
                    consumer.stop();
                }
                else => return consumer,
            }
        }
    }

    /// Reads a delivery.
    fn receive(&self, delivery: Delivery) -> Received {
        let span = self.intake.receive(&delivery);
        span.clone().in_scope(|| self.received(delivery, span))
    }

    /// What becomes of a message: each event in it is routed, each answer goes to its call, and all else is a dead letter.
    /// The requests in it are calls from here on.
    fn received(&self, delivery: Delivery, span: Span) -> Received {
        let rules = self.outbound.rules();
        let at = self.intake.at(&delivery, &rules);
        let mut routed = Routed::default();
        match self.role {
            Role::Responses => self.answers(at, &mut routed),
            Role::Events | Role::Workflows | Role::Discovery | Role::Agent => {
                let context = || self.context(at.origin);
                let take = |read| match read {
                    Read::CloudEvent(event, unit) => {
                        self.event(at, unit.as_ref(), event, &mut routed);
                    }
                    Read::Mapped(mapped) => {
                        let unit = Unit {
                            index: mapped.index,
                            bytes: mapped.bytes,
                        };
                        self.route(at, Some(&unit), mapped.event, &mut routed);
                    }
                    Read::Refused(refusal) => self.refused(at, &refusal, &mut routed),
                };
                let limits = &at.rules.limits;
                self.intake.read(at.message, limits, None, context, take);
            }
        }
        let Delivery {
            message,
            topic,
            origin,
            acknowledger,
            ..
        } = delivery;
        let settlement = match routed.unsettled {
            None => Settlement::Now(acknowledger),
            Some(unsettled) => {
                unsettled.hold(acknowledger, routed.room.message());
                self.exchanges.start(routed.in_hand);
                Settlement::Shared(unsettled)
            }
        };
        let original = Original {
            message,
            topic,
            origin,
            settlement,
            _weight: self.copies.hold(&routed.copies),
        };
        Received {
            copies: routed.copies,
            original,
            since: Instant::now(),
            span,
        }
    }

    fn settle(&self, original: Original) {
        let acknowledger = match original.settlement {
            Settlement::Now(acknowledger) => acknowledger,
            Settlement::Shared(unsettled) => return unsettled.done(),
        };
        self.intake.metrics.in_flight.dec();
        let _settle = stage::settle().entered();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.intake.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(binding = %self.intake.name, %error, "not acknowledged: it may be redelivered");
            }
        }
    }

    /// What the events of a message get that was read at `origin`.
    fn context(&self, origin: Option<&Text>) -> MapContext<'static> {
        MapContext {
            source: self.intake.source.clone(),
            time: Some(crate::clock::time()),
            ids: self.ids.at(origin),
        }
    }
}

// === impl Routed ===

impl Routed {
    /// Copies of one unit.
    fn publish(&mut self, copies: Vec<Outgoing>, unit: Option<&Unit>) {
        let copies = copies.into_iter().map(|copy| Outgoing {
            unit: unit.cloned(),
            ..copy
        });
        self.copies.extend(copies);
    }

    /// A share of the message, which is settled when that is done too.
    fn share(&mut self, metrics: &BindingMetrics) -> Unsettled {
        let unsettled = self
            .unsettled
            .get_or_insert_with(|| Unsettled::new(metrics.clone()));
        unsettled.another()
    }
}

// === impl Original ===

impl Original {
    fn undelivered(&self) -> Undelivered<'_> {
        Undelivered {
            message: &self.message,
            topic: &self.topic,
            origin: self.origin.as_ref(),
            agent: None,
            call: None,
        }
    }
}

fn undelivered(at: ReadAt<'_>) -> Undelivered<'_> {
    Undelivered {
        message: at.message,
        topic: at.topic,
        origin: at.origin,
        agent: None,
        call: None,
    }
}
