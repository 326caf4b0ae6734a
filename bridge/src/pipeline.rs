//! The path of a message through the bridge. Read this first.
//!
//! ```text
//! receive ─> detect ─> parse ─> map ─> resolve (answers) │ route (others) ─> publish ─> settle
//! ```
//!
//! Each binding is one task, which receives all available messages at once. With `workers` it is several: the messages
//! of one lane (a Kafka partition) go to the same one, which publishes them in order. A message is routed when its
//! worker reads it. The deadline of a request in it starts then, even if its lane is held. While copies use too much
//! memory, further messages wait unread ([`Unread`]). A lane whose message cannot be published is held and retries,
//! while the other lanes continue ([`crate::bus::delivery`] has the rules). Copies of a request for destinations that do
//! not answer hold no lane: they wait beside it. A message is settled after each of its
//! copies, or its dead letter, is confirmed; a request on core NATS may remain unconfirmed. The budget of the
//! subscription limits how much is held.
//!
//! | `Pipeline::work` takes a message through | in |
//! |---|---|
//! | `receive`: read it, and decide what to publish | `intake.rs`, `events.rs`, `request.rs`, `refused.rs` |
//! | `Run::proceed`: wait for its turn, then hand its copies to their buses | `run.rs`, `lane.rs`, `send.rs` |
//! | `Run::settle_confirmed`: settle it once the copies are confirmed | `run.rs`, `send.rs` |
//! | `Run::decided`: or hold its lane and send the copies again | `run.rs`, `send.rs` |

pub(crate) mod adapt;
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
mod state;
#[cfg(test)]
mod tests;
mod unread;
mod workers;

use std::collections::VecDeque;
use std::sync::Arc;

use a2abus_plugin::{MapContext, Text};
use a2abus_transports::{Consumer, Delivery, Outcome};
use futures_util::StreamExt as _;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::bus::outbound::{Outgoing, Unit};
use crate::config::Role;
use crate::stage;
pub(crate) use copies::CopiesInHand;
pub(crate) use events::{ROUTING_ATTRIBUTES, fill_missing};
use intake::Read;
use run::Run;
use send::CHECK_INTERVAL;
pub(crate) use state::Pipeline;
use state::{InProgress, Original, Received, Routed, Settlement};
use unread::Unread;
use workers::{AT_ONCE, Source};

// === impl Pipeline ===

impl Pipeline {
    /// Runs until `stop`, and then finishes the received messages. If the future is dropped earlier, the source
    /// delivers the unfinished ones again.
    pub(crate) async fn run(
        self: &Arc<Self>,
        mut consumer: Consumer,
        stop: CancellationToken,
    ) -> Consumer {
        match self.workers {
            1 => self.work(&mut consumer, &stop).await,
            _ => self.distribute(&mut consumer, &stop).await,
        }
        consumer
    }

    /// Gives each delivery to the worker of its lane.
    async fn distribute(self: &Arc<Self>, consumer: &mut Consumer, stop: &CancellationToken) {
        let (queues, mut workers) = workers::start(self, stop);
        let mut received = Vec::with_capacity(AT_ONCE);
        let mut unread = VecDeque::with_capacity(AT_ONCE);
        let (mut open, mut wanted) = (true, true);
        loop {
            while let Some(delivery) = unread.pop_front() {
                if let Some(delivery) = queues.push(delivery) {
                    unread.push_front(delivery);
                    break;
                }
            }
            let next = unread.front().map(|delivery: &Delivery| delivery.lane);
            if !open && next.is_none() {
                break;
            }
            tokio::select! {
                biased;
                Some(worker) = workers.join_next() => workers::ended(worker),
                Some(room) = queues.room(next.unwrap_or_default()), if next.is_some() => {
                    if let Some(delivery) = unread.pop_front() {
                        room.send(delivery);
                    }
                }
                count = consumer.recv_many(&mut received, AT_ONCE), if open && next.is_none() => {
                    open = count > 0;
                    unread.extend(received.drain(..));
                }
                () = stop.cancelled(), if wanted && open => {
                    wanted = false;
                    consumer.stop();
                }
            }
        }
        drop(queues);
        while let Some(worker) = workers.join_next().await {
            workers::ended(worker);
        }
    }

    /// Processes the deliveries of a source until it ends (`stop` ends it), and finishes those in progress. Does not
    /// wait for a failing destination, so that another process gets the partitions at once: the source delivers these
    /// messages again. It does wait if the source delivers nothing again, or if an agent may be at work on a request in the
    /// same lane: what is behind that request must not come before it, and it is returned when its call has ended.
    async fn work(&self, source: &mut impl Source, stop: &CancellationToken) {
        let mut unread = Unread::default();
        let mut received = Vec::with_capacity(AT_ONCE);
        // Dropped first, because its messages are the oldest.
        let mut run = Run::new(self);
        let (mut open, mut wanted) = (true, true);
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = Instant::now();
            for delivery in received.drain(..) {
                if unread.is_empty() && self.copies.has_room() {
                    run.receive(delivery, false, now);
                } else {
                    unread.push(delivery);
                }
            }
            // Without room, a lane reads one message at a time: another lane may hold the copies that use the memory.
            while let Some(delivery) =
                unread.next(|lane| run.is_empty(lane), || self.copies.has_room())
            {
                run.receive(delivery, true, now);
            }
            run.proceed_fresh();
            // After a subscription that has ended by itself, an answer settles nothing.
            if !open && self.intake.is_redelivered() && run.leave_held(stop.is_cancelled()) {
                tracing::info!(binding = %self.intake.name, "messages that wait for a failing destination stay at their source");
            }
            // A held lane has work or a confirmation here.
            let is_idle = run.waiting.is_empty() && run.unconfirmed.is_empty();
            tokio::select! {
                biased;
                Some(known) = run.unconfirmed.next() => run.known(known),
                Some((lane, done)) = run.waiting.next() => run.done(lane, done),
                _ = checks.tick(), if !is_idle => run.check(),
                () = self.copies.room(), if !unread.is_empty() => {}
                count = source.recv_many(&mut received, AT_ONCE), if open => open = count > 0,
                () = stop.cancelled(), if wanted && open => {
                    wanted = false;
                    source.stop();
                }
                else => return,
            }
        }
    }

    /// Reads a delivery.
    fn receive(&self, delivery: Delivery, now: Instant) -> Received {
        let span = self.intake.receive(&delivery);
        let (copies, original) = span.in_scope(|| self.received(delivery));
        Received {
            copies,
            original,
            since: now,
            span,
        }
    }

    /// Routes each event in a message, sends each answer to its call, and makes dead letters of the rest. The requests
    /// in it become calls here.
    fn received(&self, delivery: Delivery) -> (Vec<Outgoing>, Original) {
        let rules = self.outbound.rules();
        let at = self.intake.at(&delivery, &rules);
        let mut routed = Routed::default();
        match self.role {
            Role::Responses => self.answers(at, &mut routed),
            Role::Events | Role::Workflows | Role::Discovery | Role::Agent => {
                let context = || self.context(at.position());
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
                unsettled.hold(acknowledger);
                self.exchanges.start(routed.in_hand);
                let calls = routed.copies.iter().filter_map(Outgoing::awaited_call);
                Settlement::Shared(unsettled, calls.collect())
            }
        };
        let is_shared = matches!(settlement, Settlement::Shared(..));
        let in_progress = || InProgress::new(&self.intake.metrics.in_flight);
        let original = Original {
            _counted: (!is_shared).then(in_progress),
            weight: self.copies.hold(&message, &routed.copies),
            message,
            topic,
            origin,
            settlement,
        };
        (routed.copies, original)
    }

    fn settle(&self, original: Original) {
        let acknowledger = match original.settlement {
            Settlement::Now(acknowledger) => acknowledger,
            Settlement::Shared(unsettled, _) => return unsettled.done(),
        };
        let _settle = stage::settle().entered();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.intake.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(binding = %self.intake.name, %error, "a message was not acknowledged: it may be redelivered");
            }
        }
    }

    /// The context for mapping a message from the position `origin`.
    fn context(&self, origin: Option<&Text>) -> MapContext<'static> {
        MapContext {
            source: self.intake.source.clone(),
            time: Some(crate::clock::time()),
            ids: self.ids.at(origin),
        }
    }
}
