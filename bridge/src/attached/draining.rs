//! What a binding reads while it finishes its requests in progress: their answers and cancels, and no other requests.
//!
//! | source | it reads | what belongs to no request in progress |
//! |---|---|---|
//! | Kafka, memory | its partitions, which no other process gets yet | is not settled: the next owner gets it |
//! | JetStream | the consumer that it shares with other processes | is returned, the first few times |
//! | core NATS | while a question is open, a copy of each message, outside the queue group | is ignored: the group gets the message too |
//!
//! Source: docs/protocols/mcp.md §11.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::jsonrpc::Id;
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Consumer, Delivery, Reading, Subscription, Transport as _};
use futures_util::StreamExt as _;
use tokio::time::{MissedTickBehavior, interval};

use super::ask::{Ask, Rejected};
use super::{AttachedBinding, Work};
use crate::pipeline::held::Held;

/// How often to check whether a question is open.
const LOOK: Duration = Duration::from_millis(5);
/// A message that was returned this often probably has no other reader. Each return makes the pause before the next
/// delivery longer, and a process that starts in that pause would have to wait for the message.
const MAX_RETURNS: u32 = 5;

// === impl AttachedBinding ===

impl AttachedBinding {
    /// Finishes the requests in progress.
    pub(super) async fn drain<'a>(&'a self, consumer: &mut Consumer, work: Work<'a>) {
        match self.intake.is_redelivered() {
            true => self.drain_stored(consumer, work).await,
            false => self.drain_copies(consumer, work).await,
        }
    }

    /// For a source that redelivers what is not settled.
    async fn drain_stored<'a>(&'a self, consumer: &mut Consumer, mut work: Work<'a>) {
        let is_memory = self.intake.binding == ProtocolBinding::Memory;
        let (mut left, mut is_open) = (Vec::new(), true);
        while !work.is_empty() {
            tokio::select! {
                biased;
                Some(()) = work.next() => {}
                delivery = consumer.recv(), if is_open => match delivery {
                    Some(delivery) => {
                        // If it were returned, this process would get it again.
                        let is_kept = is_memory || delivery.attempt > MAX_RETURNS;
                        self.receive(delivery, |ask_result, held| {
                            match self.take(ask_result, held, &work) {
                                None => {}
                                Some(held) if is_kept => left.push(held),
                                Some(held) => held.give_up(),
                            }
                        });
                    }
                    None => is_open = false,
                },
            }
        }
        consumer.stop();
        // Dropping a delivery that is not settled abandons it.
        drop(left);
        while consumer.try_recv().is_some() {}
    }

    /// For core NATS, which delivers each message of the queue group to one process only, and never again. Copies are read
    /// only while a question is open: a reader of copies hides from NATS that nobody takes new requests.
    async fn drain_copies<'a>(&'a self, consumer: &mut Consumer, mut work: Work<'a>) {
        let (mut copies, mut is_open) = (None, true);
        let mut subscribing = pin!(self.copies());
        let (mut is_subscribing, mut has_failed) = (self.is_asking(), false);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !is_subscribing {
                consumer.stop();
            }
            tokio::select! {
                biased;
                Some(()) = work.next() => {}
                // The group is left only now, so that no answer is missed.
                subscribed = &mut subscribing, if is_subscribing => {
                    is_subscribing = false;
                    has_failed = subscribed.is_none();
                    copies = subscribed;
                }
                // No other process gets what arrives before the server knows that this one has left the group.
                delivery = consumer.recv(), if is_open => match delivery {
                    Some(delivery) => self.receive(delivery, |ask_result, held| {
                        self.begin(ask_result, held, &work);
                    }),
                    None => is_open = false,
                },
                Some(delivery) = next(&mut copies), if !work.is_empty() => {
                    self.receive(delivery, |ask_result, held| {
                        if let Some(held) = self.take(ask_result, held, &work) {
                            held.done();
                        }
                    });
                }
                _ = looks.tick(), if !work.is_empty() && !is_subscribing && !has_failed => {
                    match (self.is_asking(), copies.is_some()) {
                        (true, false) => {
                            subscribing.set(self.copies());
                            is_subscribing = true;
                        }
                        (false, true) => copies = None,
                        (true, true) | (false, false) => {}
                    }
                }
                // While the bus is down, nothing confirms the end of the subscription.
                () = self.until_down(), if work.is_empty() && is_open => return,
                else => return,
            }
        }
    }

    /// Waits until the bus is down.
    async fn until_down(&self) {
        let buses = self.reply_publisher.publisher.outbound().buses();
        match buses.get(self.intake.bus) {
            Some(bus) => {
                let mut health = bus.transport.health();
                if health.wait_for(|health| !health.is_up()).await.is_err() {
                    pending().await
                }
            }
            None => pending().await,
        }
    }

    /// Reads a copy of each message on the topic of the binding.
    async fn copies(&self) -> Option<Consumer> {
        let buses = self.reply_publisher.publisher.outbound().buses();
        let bus = buses.get(self.intake.bus)?;
        let subscription = Subscription {
            reading: Reading::Live { partition: None },
            ..self.subscription.clone()
        };
        let copies = bus.transport.subscribe(subscription).await;
        let copies = copies.inspect_err(|error| {
            tracing::warn!(binding = %self.intake.name, %error, "this process stops and cannot read answers and cancels for its requests in progress: those that other processes do not pass on are lost; check that this user may subscribe to the topic outside the queue group");
        });
        copies.ok()
    }

    /// Takes a message that belongs to a request in progress: an answer to an open question, or a cancel. Returns the
    /// delivery of any other.
    fn take<'a>(
        &'a self,
        ask_result: Result<Ask, Box<Rejected>>,
        held: Arc<Held>,
        work: &Work<'a>,
    ) -> Option<Arc<Held>> {
        let belongs = match &ask_result {
            Ok(Ask::Answer(_, id)) => self.is_asked(id.as_ref()),
            Ok(Ask::Cancel(id)) => self.running().has(id),
            Ok(Ask::Request(_) | Ask::Expired(_) | Ask::Message(..) | Ask::Nothing) | Err(_) => {
                false
            }
        };
        if !belongs {
            return Some(held);
        }
        self.begin(ask_result, held, work);
        None
    }

    /// Whether the server waits for any answer.
    fn is_asking(&self) -> bool {
        self.now_up().is_some_and(|up| up.link.is_asking())
    }

    /// Whether the server waits for an answer with this id.
    fn is_asked(&self, id: Option<&Id>) -> bool {
        let up = self.now_up();
        up.zip(id).is_some_and(|(up, id)| up.link.asks(id))
    }
}

/// The next copy; never ready if there are none.
async fn next(copies: &mut Option<Consumer>) -> Option<Delivery> {
    match copies {
        Some(copies) => copies.recv().await,
        None => pending().await,
    }
}
