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

pub mod room;
mod unsettled;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{
    Event, EventId, Family, Hint, Ids, Kind, Limits, MapContext, MapOptions, Source, Text,
    extension, map, wrap_unknown,
};
use a2abus_transports::{Address, Header, Message, Topic, TransportError, TransportErrorKind};
use bytes::Bytes;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Level;

use crate::bus::BusId;
use crate::bus::delivery::Publisher;
use crate::bus::outbound::{Outbound, Outgoing, RoutingError};
use crate::calls::callid::{CallId, ReplyId, shown_topic};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::reply::spring;
use crate::calls::{Answer, CallError, Part};
use crate::metrics::BindingMetrics;
use crate::recent::Recent;
use crate::seldom::{LogLimits, Seldom};
use room::Part as RoomPart;
use unsettled::Publishing;
pub(crate) use unsettled::Unsettled;

/// The requests of all bindings that wait for their answers.
#[derive(Debug)]
pub struct Exchanges {
    outbound: Outbound,
    publisher: Publisher,
    /// By where they were read: a request that comes again waits for the answer that is on its way.
    running: DashMap<Text, Vec<Unsettled>>,
    /// Those that were answered lately, so that one that comes again is not answered twice.
    answered: Mutex<Recent<Text>>,
    hasher: RandomState,
    tasks: TaskTracker,
    stop: CancellationToken,
    undelivered: Seldom,
    left: Seldom,
    again: Seldom,
}

/// Who made a request on the bus, and how it is answered.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) bus: BusId,
    pub(crate) address: Address,
    pub(crate) language: Language,
    /// The key of the request.
    pub(crate) key: Option<Bytes>,
    /// Its Spring correlation id.
    pub(crate) correlation: Option<Bytes>,
    /// Its `collaborationid`.
    pub(crate) collaboration_id: Option<Text>,
    /// Its `callid`.
    pub(crate) call_id: Option<Text>,
    /// The headers that its answer keeps.
    pub(crate) headers: Vec<Header>,
    /// The `source` of answers.
    pub(crate) source: Source,
    pub(crate) options: MapOptions,
    pub(crate) limits: Limits,
    /// Whether the source delivers the request again if it is not settled.
    pub(crate) comes_again: bool,
    /// Where the request was read, for the log.
    pub(crate) topic: Topic,
    pub(crate) origin: Option<Text>,
    /// The counters of the binding.
    pub(crate) metrics: BindingMetrics,
}

/// How a requester is spoken to when there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Language {
    /// By JSON-RPC errors.
    JsonRpc {
        /// The requester's own id, as its JSON token.
        id: Text,
        dialect: Dialect,
    },
    /// In its own family.
    Family(Family),
}

/// What was made of one request.
#[derive(Debug)]
pub(crate) struct InHand {
    /// Names the request: the same when it is redelivered; `None` where the source has no positions.
    pub(crate) position: Option<Text>,
    /// What keeps its message until it is answered.
    pub(crate) share: Unsettled,
    pub(crate) how: How,
}

/// How a request goes on.
#[derive(Debug)]
pub(crate) enum How {
    /// It is published, and this is its answer.
    Waits(Box<Waits>),
    /// It cannot be made.
    Failed(Box<Failed>),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) answer: Answer,
    pub(crate) requester: Requester,
    /// What the agent holds of the budget of the binding until the requester has its answer.
    pub(crate) room: Arc<RoomPart<Text>>,
}

/// A request that cannot be made.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Why.
    pub(crate) failure: Failure,
    pub(crate) requester: Requester,
    /// What the error holds of the budget of the binding until the requester has it. One that found no room does not wait
    /// for a destination that takes nothing.
    pub(crate) room: Option<Arc<RoomPart<Text>>>,
}

/// The most requests that are remembered once they are answered.
const MAX_RECENT: usize = 65_536;
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
            running: DashMap::new(),
            answered: Mutex::new(Recent::new(MAX_RECENT)),
            hasher: RandomState::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            undelivered: log.seldom(Level::WARN, "more answers did not reach their requesters"),
            left: log.seldom(Level::INFO, "more requests are answered by other replicas"),
            again: log.seldom(Level::INFO, "more requests were redelivered"),
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
        match self.running.entry(position.clone()) {
            Entry::Occupied(mut entry) => entry.get_mut().push(share),
            // What is answered is put there before it is taken out here.
            Entry::Vacant(_) if self.recent().contains(position) => share.done(),
            Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                return Some(share);
            }
        }
        None
    }

    /// Answers the requests of one message, each when its agent has.
    pub(crate) fn start(self: &Arc<Self>, requests: Vec<InHand>) {
        for request in requests {
            let InHand {
                position,
                share,
                how,
            } = request;
            let this = Arc::clone(self);
            let work = async move {
                let answered = match how {
                    How::Waits(waits) => this.carry(*waits, position.as_ref(), &share).await,
                    How::Failed(failed) => {
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
    /// again. Else the request is forgotten, in one step: one that comes again is either found here or is a new request.
    fn publishing(&self, position: Option<&Text>, share: &Unsettled) -> Option<Publishing> {
        if let Some(publishing) = share.publishing_if_current() {
            return Some(publishing);
        }
        let Entry::Occupied(again) = self.running.entry(position?.clone()) else {
            return None;
        };
        let mut shares = again.get().iter();
        let publishing = shares.find_map(Unsettled::publishing_if_current);
        if publishing.is_none() {
            drop(again.remove());
        }
        publishing
    }

    fn finish(&self, position: Option<Text>, share: Unsettled) {
        if let Some(position) = position {
            self.recent().insert(position.clone(), ());
            let waiting = self.running.remove(&position);
            waiting
                .into_iter()
                .flat_map(|(_, shares)| shares)
                .for_each(Unsettled::done);
        }
        share.done();
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, Recent<Text>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries the parts of an answer to the requester, in order. `None` when the request is left to its source.
    async fn carry(
        &self,
        waits: Waits,
        position: Option<&Text>,
        share: &Unsettled,
    ) -> Option<Publishing> {
        let Waits {
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
                    let event = requester.event(&part, answer.call_id(), number);
                    number += 1;
                    if let Err(why) = self.reply(requester, &event).await {
                        // A stream with a hole in it would end as if nothing were missing.
                        let failure = Failure::on_bus(&CallError::Undeliverable(why));
                        // That the answer is lost is counted and logged already.
                        drop(self.send(requester, &requester.failure(&failure)).await);
                        return Some(publishing);
                    }
                }
                // Whoever reads it next makes it again.
                Err(CallError::Draining) if requester.comes_again => {
                    drop(position.and_then(|position| self.running.remove(position)));
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
        drop(self.reply(requester, &requester.failure(failure)).await);
    }

    /// Publishes the error of a request that cannot be made.
    async fn refuse(&self, failed: Failed) {
        let Failed {
            failure,
            mut requester,
            room,
        } = failed;
        if room.is_none() {
            // It is published now or never.
            requester.comes_again = false;
            let copy = self.copy(&requester, &requester.failure(&failure)).ok();
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

// === impl Requester ===

impl Requester {
    /// The event that carries a part of the answer.
    fn event(&self, part: &Part, call: CallId, number: u32) -> Event {
        let id = EventId::new(format!("{call}.{number}"));
        let id = id.unwrap_or_else(|_| crate::clock::new_event_id());
        let mut event = match &part.event {
            Some(event) => {
                let mut event = Event::clone(event);
                event.remove(extension::REPLY_PARTITION);
                event.remove(extension::REPLY_TO);
                event
            }
            None => self.mapped(&part.body, &id),
        };
        if event
            .extension_text(extension::MCP_TYPE)
            .is_none_or(|kind| kind != Kind::Notification.as_str())
        {
            let kind = if part.last {
                Kind::Response
            } else {
                Kind::Stream
            };
            put(
                &mut event,
                extension::MCP_TYPE,
                Text::from_static(kind.as_str()),
            );
            put(&mut event, extension::IS_FINAL, part.last);
        }
        self.correlate(&mut event, Some(call));
        event
    }

    /// The event that says why there is no answer, in the requester's own language.
    fn failure(&self, failure: &Failure) -> Event {
        let body = match &self.language {
            Language::JsonRpc { id, dialect } => {
                failure.render(&Recipient::new(id.clone(), *dialect))
            }
            Language::Family(family) => self.failure_in(*family, failure),
        };
        let mut event = self.mapped(&body, &crate::clock::new_event_id());
        put(
            &mut event,
            extension::MCP_TYPE,
            Text::from_static(Kind::Response.as_str()),
        );
        put(&mut event, extension::IS_FINAL, true);
        self.correlate(&mut event, None);
        event
    }

    fn failure_in(&self, family: Family, failure: &Failure) -> Bytes {
        let request = self.collaboration_id.as_ref().map(Text::as_str);
        let (word, message) = (failure.word(), failure.message());
        let now = crate::clock::rfc3339(crate::clock::now());
        let id = crate::clock::new_event_id();
        let body = match family {
            Family::E2a => json!({
                "protocol_version": "1.0", "response_id": &*id, "request_id": request, "sequence": 0,
                "is_final": true, "status": "failed", "response_kind": "e2a.error", "timestamp": now.as_str(),
                "body": {"code": format!("E2A.{}", word.to_uppercase()), "message": message},
            }),
            Family::A2eMessage => json!({
                "type": "error", "id": &*id, "version": "1.0", "ts": crate::clock::seconds(), "req_id": request,
                "code": if word == "timeout" { "timeout" } else { "runtime_error" }, "message": message,
                "detail": {"reason": word}, "retryable": matches!(word, "timeout" | "exhausted" | "agent_unavailable"),
            }),
            Family::Legacy => json!({
                "protocol": "A2A", "messageType": "FAILURE", "metadata": {"correlationId": request},
                "payload": {"reason": word, "message": message},
            }),
            Family::JsonRpc | Family::CloudEvent | Family::A2eWorkflow => {
                return failure.render(&Recipient::unknown(Dialect::JsonRpc));
            }
        };
        body.to_string().into()
    }

    /// The event of a message in whatever family it is written.
    fn mapped(&self, body: &Bytes, id: &EventId) -> Event {
        let new_id = || id.clone();
        let context = MapContext {
            source: self.source.clone(),
            time: Some(crate::clock::time()),
            ids: Ids::Payload(&new_id),
        };
        let units = map(
            body,
            &Hint::default(),
            &self.limits,
            &self.options,
            &context,
        );
        match units.into_only() {
            Ok(Ok(mapped)) => mapped.event,
            // A batch, or no message of any family.
            Ok(Err(_)) | Err(_) => wrap_unknown(body, 0, &self.options, &context),
        }
    }

    /// Puts the requester's own marks on an answer, in place of those of the exchange with the agent: the call `ours`.
    fn correlate(&self, event: &mut Event, ours: Option<CallId>) {
        let is_ours = |text: &Text| text.parse().ok().map(|id: ReplyId| id.call) == ours;
        match &self.call_id {
            // It came in a header that nobody checked.
            Some(own) if event.set(extension::CALL_ID, own.clone()).is_ok() => {}
            Some(_) | None => event.remove(extension::CALL_ID),
        }
        match &self.collaboration_id {
            Some(own) => put(event, extension::COLLABORATION_ID, own.clone()),
            // What the agent repeats of the exchange with the bridge says nothing to the requester.
            None if ours.is_some()
                && event
                    .extension_text(extension::COLLABORATION_ID)
                    .is_some_and(is_ours) =>
            {
                event.remove(extension::COLLABORATION_ID);
            }
            None => {}
        }
    }
}

/// Sets an attribute whose name is ours and whose value is legal.
fn put(event: &mut Event, name: &'static str, value: impl Into<a2abus_plugin::Value>) {
    let set = event.set(name, value);
    debug_assert!(set.is_ok(), "{name} is a legal extension");
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::bus::Buses;
    use crate::bus::delivery::Destinations;
    use crate::config::Config;
    use crate::metrics::Metrics;
    use crate::readiness::Readiness;
    use crate::rules::{CurrentRules, Rules};
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{
        Consumer, Message, Reading, Subscription, TopicFilter, Transport as _,
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

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_comes_again_in_the_moment_the_first_is_given_up_is_not_lost() {
        let mut world = World::new().await;
        let mut current = world.read().await;
        for _ in 0..2_000 {
            let first = world.enter(current).expect("nothing is in hand");
            let again = world.read_again().await;
            let barrier = Barrier::new(2);
            let (publishing, entered) = std::thread::scope(|scope| {
                let entering = scope.spawn(|| {
                    barrier.wait();
                    world.enter(again)
                });
                barrier.wait();
                let publishing = world.publishing(&first);
                (publishing, entering.join().unwrap())
            });
            match (publishing, entered) {
                // It waits with the first, or is a new request.
                (Some(_), None) | (None, Some(_)) => {}
                (None, None) => panic!("the request is lost"),
                (Some(_), Some(_)) => panic!("the request is answered twice"),
            }
            world.exchanges.running.clear();
            drop(first);
            current = world.read_again().await;
        }
    }
}
