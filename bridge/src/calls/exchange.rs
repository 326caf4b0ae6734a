//! Requests that are made on the bus, and the way back of their answers.
//!
//! ```text
//! requester ── request ──> binding ── copy with a call id and a reply address of the bridge ──> agent
//!     ^                                                                                           │
//!     └── reply address of the requester <── Exchanges::carry <── pending call <── answer ────────┘
//! ```
//!
//! A request is a call like one of the HTTP listener: it has a call id, a deadline, and one last answer. The answer goes
//! to the requester's own reply address, with its own id, correlation headers and key. A request that its source keeps
//! (Kafka, JetStream) is settled once its answer is on the bus; until then it comes again when the bridge dies.

mod requester;
pub mod room;
mod running;
#[cfg(test)]
mod running_model;
mod unsettled;

use super::sync;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::{Event, Text};
use a2abus_transports::{Message, TransportError, TransportErrorKind};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Level;

use crate::bus::delivery::Publisher;
use crate::bus::outbound::{Outbound, Outgoing, RoutingError};
use crate::calls::answer::Answer;
use crate::calls::callid::shown_topic;
use crate::calls::error::CallError;
use crate::calls::failure::Failure;
use crate::calls::reply::spring;
use crate::log_limit::{LogLimit, LogLimits};
pub(crate) use requester::Requester;
use room::Hold;
use running::{EntryState, Running};
use unsettled::Publishing;
pub(crate) use unsettled::Unsettled;

/// The requests of all bindings that wait for their answers.
#[derive(Debug)]
pub struct Exchanges {
    outbound: Outbound,
    publisher: Publisher,
    running: Running<Unsettled>,
    hasher: RandomState,
    tasks: TaskTracker,
    stop: CancellationToken,
    undelivered: LogLimit,
    left: LogLimit,
    again: LogLimit,
}

/// A request of a message, after routing.
#[derive(Debug)]
pub(crate) struct RoutedRequest {
    /// Names the request: the same when it is redelivered; `None` where the source has no positions.
    pub(crate) position: Option<Text>,
    /// Keeps its message unsettled until it is answered.
    pub(crate) share: Unsettled,
    pub(crate) how: RequestStatus,
}

/// The state of a request.
#[derive(Debug)]
pub(crate) enum RequestStatus {
    /// It is published, and this is its answer.
    Waits(Box<WaitingRequest>),
    /// It cannot be made.
    Failed(Box<FailedRequest>),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) answer: Answer,
    pub(crate) requester: Requester,
    /// What the agent holds of the budget of the binding until the requester has its answer.
    pub(crate) room: Arc<Hold<Text>>,
}

/// A request that failed before it was published.
#[derive(Debug)]
pub(crate) struct FailedRequest {
    /// Why.
    pub(crate) failure: Failure,
    pub(crate) requester: Requester,
    /// What the error holds of the budget of the binding until the requester has it. One that found no room does not wait
    /// for a destination that takes nothing.
    pub(crate) room: Option<Arc<Hold<Text>>>,
}

/// How long an answer waits for a bus whose requester keeps nothing, and an error that holds no part of the budget.
const REPLY_PATIENCE: Duration = Duration::from_secs(30);

// === impl Exchanges ===

impl Exchanges {
    /// No requests yet.
    #[must_use]
    pub fn new(outbound: Outbound, publisher: Publisher, log: &LogLimits) -> Self {
        Self {
            outbound,
            publisher,
            running: Running::default(),
            hasher: RandomState::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            undelivered: log.limit(Level::WARN, "more answers did not reach their requesters"),
            left: log.limit(Level::INFO, "more requests are answered by other replicas"),
            again: log.limit(Level::INFO, "more requests were redelivered"),
        }
    }

    /// Tells messages apart that were read at the same position: those of a topic that was deleted and created again.
    /// The same for a message that is redelivered, whose headers may be in another order.
    pub(crate) fn fingerprint(&self, message: &Message) -> u64 {
        let headers = message.headers.iter();
        let headers = headers.map(|header| self.hasher.hash_one((&header.name, &header.value)));
        let rest = self.hasher.hash_one((&message.key, &message.body));
        headers.fold(rest, u64::wrapping_add)
    }

    /// Logs a request that came again, and is answered once.
    pub(crate) fn log_redelivered(&self, binding: &Text, origin: Option<&Text>) {
        if let Some(suppressed) = self.again.allow() {
            tracing::info!(
                %binding, origin = origin.map(Text::as_str), suppressed,
                "a request was redelivered: it is answered once"
            );
        }
    }

    /// Takes in hand the request that was read at this position. Gives its share of the message back; `None` when the
    /// request came again: its share waits with the first one, or is done if that was answered.
    pub(crate) fn enter(&self, position: Option<&Text>, share: Unsettled) -> Option<Unsettled> {
        let Some(position) = position else {
            return Some(share);
        };
        match self.running.enter(position, share) {
            EntryState::New(share) => Some(share),
            EntryState::Waits => None,
            EntryState::Answered(share) => {
                share.done();
                None
            }
        }
    }

    /// Answers the requests of one message, each when its agent has.
    pub(crate) fn start(self: &Arc<Self>, requests: Vec<RoutedRequest>) {
        for request in requests {
            let RoutedRequest {
                position,
                share,
                how,
            } = request;
            let this = Arc::clone(self);
            let work = async move {
                let answered = match how {
                    RequestStatus::Waits(waits) => {
                        this.carry(*waits, position.as_ref(), &share).await
                    }
                    RequestStatus::Failed(failed) => {
                        let publishing = share.publishing();
                        this.refuse(*failed).await;
                        Some(publishing)
                    }
                };
                // Until it is settled, so that no source takes it away in between.
                if let Some(_publishing) = answered {
                    this.finish(position, share);
                }
            };
            let stop = self.stop.clone();
            self.tasks.spawn(async move {
                stop.run_until_cancelled(work).await;
            });
        }
    }

    /// Waits until every requester has its answer, at most until the deadline. What has none by then is left to its
    /// source, which delivers it again.
    pub async fn end(&self, deadline: tokio::time::Instant) {
        self.tasks.close();
        if tokio::time::timeout_at(deadline, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                requests = self.tasks.len(),
                "the grace period is over: requests on the bus are left unanswered"
            );
        }
        self.stop.cancel();
        self.tasks.wait().await;
    }

    /// Begins to publish a part of an answer, if this replica is still to answer: it reads the request, or has read it
    /// again. Else the request is forgotten.
    fn publishing(&self, position: Option<&Text>, share: &Unsettled) -> Option<Publishing> {
        let publishing = share.publishing_if_current();
        publishing.or_else(|| {
            let begin = Unsettled::publishing_if_current;
            self.running.begin_again(position?, begin)
        })
    }

    fn finish(&self, position: Option<Text>, share: Unsettled) {
        if let Some(position) = position {
            let again = self.running.finish(&position);
            again.into_iter().for_each(Unsettled::done);
        }
        share.done();
    }

    /// Carries the parts of an answer to the requester, in order. `None` when the request is left to its source.
    async fn carry(
        &self,
        waits: WaitingRequest,
        position: Option<&Text>,
        share: &Unsettled,
    ) -> Option<Publishing> {
        let WaitingRequest {
            mut answer,
            requester,
            // Until the requester has its answer: one whose topic takes nothing leaves the rest of the budget to others.
            room: _room,
        } = waits;
        let requester = &requester;
        let mut number = 0_u32;
        while let Some(part) = answer.next().await {
            let is_last = part.as_ref().map_or(true, |part| part.last);
            let Some(publishing) = self.publishing(position, share) else {
                if let Some(suppressed) = self.left.allow() {
                    tracing::info!(topic = %requester.topic, suppressed, "another replica reads the request now, and answers it");
                }
                return None;
            };
            match part {
                Ok(part) => {
                    let event = requester.form.event(&part, answer.call_id(), number);
                    number += 1;
                    if let Err(why) = self.reply(requester, &event).await {
                        // A stream with a hole in it would end as if nothing were missing.
                        let failure = Failure::on_bus(&CallError::Undeliverable(why));
                        // That the answer is lost is counted and logged already.
                        drop(
                            self.send(requester, &requester.form.failure(&failure))
                                .await,
                        );
                        return Some(publishing);
                    }
                }
                // Whoever reads it next makes it again.
                Err(CallError::Draining) if requester.comes_again => {
                    if let Some(position) = position {
                        self.running.leave(position);
                    }
                    return None;
                }
                Err(error) => self.fail(requester, &Failure::on_bus(&error)).await,
            }
            if is_last {
                return Some(publishing);
            }
        }
        self.publishing(position, share)
    }

    /// Publishes the error that a requester gets in place of an answer.
    async fn fail(&self, requester: &Requester, failure: &Failure) {
        // What is not delivered is counted and logged.
        drop(
            self.reply(requester, &requester.form.failure(failure))
                .await,
        );
    }

    /// Publishes the error of a request that cannot be made.
    async fn refuse(&self, failed: FailedRequest) {
        let FailedRequest {
            failure,
            mut requester,
            room,
        } = failed;
        if room.is_none() {
            // It is published now or never.
            requester.comes_again = false;
            let copy = self
                .copy(&requester, &requester.form.failure(&failure))
                .ok();
            if let Some(error) = copy.and_then(|copy| self.publisher.known_failure(&copy)) {
                return self.undelivered(&requester, &error.to_string().into());
            }
        }
        self.fail(&requester, &failure).await;
    }

    /// Publishes one message to the requester, and waits until the bus has it. What is not delivered is counted and logged.
    async fn reply(&self, requester: &Requester, event: &Event) -> Result<(), Text> {
        let sent = self.send(requester, event).await;
        sent.inspect_err(|why| self.undelivered(requester, why))
    }

    async fn send(&self, requester: &Requester, event: &Event) -> Result<(), Text> {
        let copy = self.copy(requester, event);
        let mut copy = copy.map_err(|error| Text::from(error.to_string()))?;
        let mut sent = self.publish(requester, &copy).await;
        let is_unknown = |error: &TransportError| error.kind() == TransportErrorKind::UnknownTopic;
        if copy.address.partition.is_some() && sent.as_ref().is_err_and(is_unknown) {
            // The requester has named a partition that its topic does not have.
            copy.address.partition = None;
            sent = self.publish(requester, &copy).await;
        }
        sent.map_err(|error| error.to_string().into())
    }

    async fn publish(&self, requester: &Requester, copy: &Outgoing) -> Result<(), TransportError> {
        if requester.comes_again {
            self.publisher.until_confirmed(copy).await
        } else {
            self.publish_now(copy).await
        }
    }

    /// Publishes to a requester whose bus keeps nothing: its inbox is gone when it no longer waits.
    async fn publish_now(&self, copy: &Outgoing) -> Result<(), TransportError> {
        match tokio::time::timeout(REPLY_PATIENCE, self.publisher.once(copy)).await {
            Ok(sent) => sent,
            Err(_) => Err(TransportError::new(
                TransportErrorKind::TimedOut,
                "publish the answer",
            )),
        }
    }

    fn undelivered(&self, requester: &Requester, why: &Text) {
        requester.metrics.dropped("reply_undeliverable");
        if let Some(suppressed) = self.undelivered.allow() {
            tracing::warn!(
                topic = %shown_topic(requester.address.topic.as_str()), request = %requester.topic,
                origin = requester.origin.as_deref(), %why, suppressed,
                "an answer did not reach its requester"
            );
        }
    }

    fn copy(&self, requester: &Requester, event: &Event) -> Result<Outgoing, RoutingError> {
        let correlation = requester.correlation.iter();
        let own = correlation.map(|id| (Text::from_static(spring::CORRELATION_ID), id.clone()));
        let headers = (own.collect(), requester.headers.as_slice());
        let address = requester.address.clone();
        let mut copy = self
            .outbound
            .to_address(requester.bus, event, headers, address)?;
        copy.message.key.clone_from(&requester.key);
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::Buses;
    use crate::bus::delivery::Destinations;
    use crate::config::Config;
    use crate::metrics::{BindingMetrics, Metrics};
    use crate::readiness::Readiness;
    use crate::rules::{CurrentRules, Rules};
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{
        Address, Consumer, Reading, Subscription, Topic, TopicFilter, Transport as _,
    };

    const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
default_route: [{ transport: bus, topic: t }]
";

    /// A source of requests that comes again, and the exchanges of it.
    struct World {
        bus: Memory,
        consumer: Consumer,
        metrics: BindingMetrics,
        exchanges: Exchanges,
        position: Text,
    }

    fn requests() -> Subscription {
        Subscription {
            topics: vec![TopicFilter::new("requests").unwrap()],
            reading: Reading::Group("g".into()),
            budget_bytes: 1 << 20,
            budget_messages: 10,
        }
    }

    impl World {
        async fn new() -> Self {
            let config = Config::read("test.yaml", CONFIG, []).unwrap();
            let buses = Buses::new(Vec::new());
            let rules = Rules::new(&config).unwrap();
            let rules = Arc::new(CurrentRules::new(rules));
            let outbound = Outbound::new(buses.clone(), rules);
            let log = LogLimits::default();
            let destinations = Destinations::new(buses, Arc::new(Readiness::new()), &log);
            let publisher = Publisher::new(outbound.clone(), Arc::new(destinations));
            let bus = Memory::default();
            let consumer = bus.subscribe(requests()).await.unwrap();
            let to = Address::topic(Topic::new("requests").unwrap());
            let sent = bus.send(&to, Message::plain("a request")).await.unwrap();
            sent.await.unwrap();
            Self {
                bus,
                consumer,
                metrics: Metrics::new().unwrap().binding(&"b".into()),
                exchanges: Exchanges::new(outbound, publisher, &log),
                position: "here".into(),
            }
        }

        /// The request as it is read now.
        async fn read(&mut self) -> Unsettled {
            loop {
                let delivery = self.consumer.recv().await.unwrap();
                // It may be taken away before it is read.
                if delivery.acknowledger.is_current() {
                    let unsettled = Unsettled::new(self.metrics.clone());
                    unsettled.hold(delivery.acknowledger, None);
                    return unsettled;
                }
            }
        }

        /// The same, after the source has taken it away from whoever had it.
        async fn read_again(&mut self) -> Unsettled {
            self.consumer = self.bus.subscribe(requests()).await.unwrap();
            self.read().await
        }

        fn enter(&self, share: Unsettled) -> Option<Unsettled> {
            self.exchanges.enter(Some(&self.position), share)
        }

        fn publishing(&self, share: &Unsettled) -> Option<Publishing> {
            self.exchanges.publishing(Some(&self.position), share)
        }
    }

    #[tokio::test]
    async fn a_request_that_comes_again_is_answered_with_the_first_one_or_is_a_new_one() {
        let mut world = World::new().await;
        let first = world.read().await;
        let first = world.enter(first).unwrap();
        assert!(world.publishing(&first).is_some());
        let second = world.read_again().await;
        assert!(world.enter(second).is_none(), "it waits with the first");
        assert!(world.publishing(&first).is_some(), "for both");
        // What waits was taken away as well.
        let third = world.read_again().await;
        assert!(world.publishing(&first).is_none());
        let third = world.enter(third).expect("a new request");
        assert!(world.publishing(&third).is_some());
        let position = Some(world.position.clone());
        world.exchanges.finish(position, third);
        let fourth = Unsettled::new(world.metrics.clone());
        assert!(world.enter(fourth).is_none(), "it was answered");
    }

    #[tokio::test]
    async fn messages_at_one_position_are_told_apart_by_what_they_say() {
        let world = World::new().await;
        let message = |body: &'static str, names: [&'static str; 2]| {
            let mut message = Message::plain(body);
            for name in names {
                message.headers.push(name, "x");
            }
            world.exchanges.fingerprint(&message)
        };
        let first = message("a", ["b", "c"]);
        assert_eq!(first, message("a", ["c", "b"]), "the order is the bus's");
        assert_ne!(first, message("b", ["b", "c"]));
        assert_ne!(first, message("a", ["b", "d"]));
    }
}
