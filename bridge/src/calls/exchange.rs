//! Requests that are made on the bus, and the return of their answers.
//!
//! ```text
//! requester ── request ──> binding ── copy with a call id and a reply address of the bridge ──> agent
//!     ^                                                                                           │
//!     └── reply address of the requester <── Exchanges::return_parts <── pending call <── answer ─┘
//! ```
//!
//! Like a call over HTTP, such a request has a call id, a deadline, and one last answer. The answer goes to the
//! requester's own reply address, with its own id, correlation headers and key. If the source stores the request
//! (Kafka, JetStream), it is settled once its answer is on the bus and its copies are confirmed; if the bridge dies
//! earlier, the source delivers it again.

mod cancellable;
mod requester;
pub mod room;
mod running;
#[cfg(test)]
mod running_model;
mod unsettled;

use super::sync;

use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Event, Text};
use a2abus_transports::{Message, TransportError, TransportErrorKind};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Level;

use crate::bus::deadletter::{Reason as DeadLetterReason, Stage, Undelivered};
use crate::bus::delivery::Publisher;
use crate::bus::line::{Line, Lines, Turn};
use crate::bus::outbound::{Outbound, Outgoing, RoutingError};
use crate::calls::answer::Answer;
use crate::calls::callid::{CallId, shown_topic};
use crate::calls::error::CallError;
use crate::calls::failure::{Failure, Reason};
use crate::log_limit::{LogLimit, LogLimits};
use crate::restart::chain;
use cancellable::{Cancellable, Cancellables};
pub(crate) use cancellable::{Cancelled, RequestIdentity};
pub(crate) use requester::Requester;
use room::Place;
use running::{EntryState, Running};
pub(crate) use unsettled::Unsettled;
use unsettled::{Earlier, Publishing};

/// The requests of all bindings that wait for their answers.
#[derive(Debug)]
pub struct Exchanges {
    outbound: Outbound,
    publisher: Publisher,
    running: Running<Unsettled, Earlier>,
    cancellables: Cancellables,
    lines: Lines,
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
    /// Identifies the request, also if it is redelivered; `None` if the source has no positions.
    pub(crate) position: Option<Text>,
    /// Keeps its message unsettled until it is answered.
    pub(crate) share: Unsettled,
    pub(crate) how: RequestStatus,
}

/// The state of a request.
#[derive(Debug)]
pub(crate) enum RequestStatus {
    /// It is published, and waits for its answer.
    Waits(Box<WaitingRequest>),
    /// It cannot be made.
    Failed(Box<FailedRequest>),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) answer: Box<Answer>,
    pub(crate) requester: Requester,
    /// Its place among the requests that may be cancelled.
    pub(crate) cancellable: Option<Cancellable>,
    /// Its share of the binding's budget until the requester has its answer. So a requester whose topic accepts nothing
    /// blocks only the share of its agent.
    pub(crate) _place: Arc<Place>,
}

/// A request that failed before it was published.
#[derive(Debug)]
pub(crate) struct FailedRequest {
    /// Why.
    pub(crate) failure: Failure,
    pub(crate) requester: Requester,
    /// The share of the binding's budget until the requester has the error. Without a share, the error does not wait
    /// for a destination that accepts nothing.
    pub(crate) place: Option<Arc<Place>>,
    /// Its place among the answers to the requester.
    pub(crate) turn: Turn,
}

/// A message that did not reach its requester.
struct UndeliveredReply {
    code: &'static str,
    why: Text,
    /// The message, if it could be written.
    copy: Option<Box<Outgoing>>,
}

/// How long an answer waits for its bus if the bus stores nothing, and an error if it has no share of the budget.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Exchanges ===

impl Exchanges {
    /// No requests yet.
    #[must_use]
    pub fn new(outbound: Outbound, publisher: Publisher, log: &LogLimits) -> Self {
        Self {
            outbound,
            publisher,
            running: Running::default(),
            cancellables: Cancellables::default(),
            lines: Lines::default(),
            hasher: RandomState::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            undelivered: log.limit(Level::WARN, "more answers did not reach their requesters"),
            left: log.limit(Level::INFO, "more requests are answered by other replicas"),
            again: log.limit(Level::INFO, "more requests were redelivered"),
        }
    }

    /// Distinguishes messages that were read at the same position, because their topic was deleted and created again.
    /// It is the same for a redelivered message, whose headers may be in another order.
    pub(crate) fn fingerprint(&self, message: &Message) -> u64 {
        let headers = message.headers.iter();
        let headers = headers.map(|header| self.hasher.hash_one((&header.name, &header.value)));
        let rest = self.hasher.hash_one((&message.key, &message.body));
        headers.fold(rest, u64::wrapping_add)
    }

    /// Logs a redelivered request, which is answered once.
    pub(crate) fn log_redelivered(&self, binding: &Text, origin: Option<&Text>) {
        if let Some(suppressed) = self.again.allow() {
            tracing::info!(
                %binding, origin = origin.map(Text::as_str), suppressed,
                "a request was redelivered: it is answered once"
            );
        }
    }

    /// Registers the request that was read at this position. Returns its share of the message; `None` for a redelivered
    /// request: its share then waits with the first one.
    pub(crate) fn enter(&self, position: Option<&Text>, mut share: Unsettled) -> Option<Unsettled> {
        let Some(position) = position else {
            return Some(share);
        };
        loop {
            match self.running.enter(position, share, Earlier::is_abandoned) {
                EntryState::New(share) => return Some(share),
                EntryState::Waits => return None,
                // `None` unless the first one was abandoned a moment ago.
                EntryState::Answered(again, first) => share = again.done_with(&first)?,
            }
        }
    }

    /// Enters a JSON-RPC request, which its requester may cancel.
    pub(crate) fn cancellable(&self, requester: &Requester, agent: &Text) -> Option<Cancellable> {
        let id = requester.form.recipient.id();
        let has_id = id != "null";
        has_id.then(|| {
            let identity = RequestIdentity {
                binding: requester.dead_letters.name.clone(),
                topic: requester.topic.clone(),
                key: requester.key.clone(),
                id: id.clone(),
            };
            self.cancellables.enter(identity, agent.clone())
        })
    }

    /// The line in which the answers to a requester wait for their turn.
    pub(crate) fn line(&self, requester: &Requester) -> Arc<Line> {
        let topic = requester.address.topic.clone();
        self.lines.line(requester.bus, topic, requester.key.clone())
    }

    /// Cancels a request for this agent, or for any one if the cancel names none.
    pub(crate) fn cancel(&self, identity: &RequestIdentity, agent: &Text) -> Cancelled {
        self.cancellables.cancel(identity, agent)
    }

    /// Answers the requests of one message, each when its agent has answered.
    pub(crate) fn start(self: &Arc<Self>, requests: Vec<RoutedRequest>) {
        for request in requests {
            let (this, stop) = (Arc::clone(self), self.stop.clone());
            self.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = this.answer(request) => {}
                }
            });
        }
    }

    async fn answer(&self, request: RoutedRequest) {
        let RoutedRequest {
            position,
            share,
            how,
        } = request;
        let answered = match how {
            RequestStatus::Waits(waits) => {
                self.return_parts(*waits, position.as_ref(), &share).await
            }
            RequestStatus::Failed(failed) => {
                let publishing = share.publishing();
                Box::pin(self.refuse(*failed)).await;
                Some(publishing)
            }
        };
        // Held until it is settled, so that the source does not take it away in between.
        if let Some(publishing) = answered {
            self.finish(position, share, &publishing);
        }
    }

    /// Waits until every requester has its answer, at most until the deadline. The remaining requests are left to their
    /// source, which delivers them again.
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

    /// Starts publishing a part of an answer, if this replica still has to answer the request: it reads the partition,
    /// or has read the request again. Otherwise the request is forgotten.
    fn publishing(&self, position: Option<&Text>, share: &Unsettled) -> Option<Publishing> {
        let publishing = share.publishing_if_current();
        publishing.or_else(|| {
            let begin = Unsettled::publishing_if_current;
            self.running.begin_again(position?, begin)
        })
    }

    fn finish(&self, position: Option<Text>, share: Unsettled, publishing: &Publishing) {
        if let Some(position) = position {
            let first = share.as_earlier(publishing);
            for again in self.running.finish(&position, first.clone()) {
                // With an abandoned message it is returned to its source.
                drop(again.done_with(&first));
            }
        }
        share.done();
    }

    /// Publishes the parts of an answer to the requester, in order. `None` if the request is left to its source.
    ///
    /// Requests spend most of their time here. The futures that publish are boxed, so that they use no memory until
    /// there is a part.
    async fn return_parts(
        &self,
        waits: WaitingRequest,
        position: Option<&Text>,
        share: &Unsettled,
    ) -> Option<Publishing> {
        let WaitingRequest {
            mut answer,
            requester,
            cancellable,
            _place,
        } = waits;
        let mut number = 0_u32;
        loop {
            let part = tokio::select! {
                biased;
                () = cancelled(cancellable.as_ref()) => {
                    return self.end_cancelled(&requester, answer, position, share).await;
                }
                part = answer.next() => part,
            };
            let Some(part) = part else { break };
            let Some(publishing) = self.publishing(position, share) else {
                answer.leave();
                self.log_left(&requester);
                return None;
            };
            match part {
                Ok(part) => {
                    answer.note_part(&part);
                    let event = requester.form.event(&part, answer.call_id(), number);
                    number += 1;
                    let sent = Box::pin(self.send(&requester, &event, answer.take_turn())).await;
                    if let Err(undelivered) = sent {
                        Box::pin(self.break_off(&requester, &mut answer, undelivered)).await;
                        return Some(publishing);
                    }
                    if part.last {
                        return Some(publishing);
                    }
                }
                // The next reader makes the call again.
                Err(error) if error.is_drain() && requester.is_redeliverable => {
                    answer.leave();
                    if let Some(position) = position {
                        self.running.leave(position);
                    }
                    return None;
                }
                Err(error) => {
                    answer.note_failed(&error);
                    let (call, turn) = (Some(answer.call_id()), answer.take_turn());
                    drop(answer);
                    Box::pin(self.fail((&requester, call), &Failure::on_bus(&error), turn)).await;
                    return Some(publishing);
                }
            }
        }
        self.publishing(position, share)
    }

    /// Ends an answer of which a part is undeliverable with an error: without that part, it would seem complete. The
    /// part becomes a dead letter, unless the bus of the request stores nothing.
    async fn break_off(
        &self,
        requester: &Requester,
        answer: &mut Answer,
        UndeliveredReply { code, why, copy }: UndeliveredReply,
    ) {
        // Their places in the line are free from now on.
        let (call, discarded) = (answer.call_id(), answer.discard());
        for _ in 0..=discarded {
            self.undelivered(requester, Some(call), &why);
        }
        let failure = Failure::on_bus(&CallError::Undeliverable(why.clone()));
        let event = requester.form.failure(&failure);
        let turn = self.line(requester).turn();
        // It was already counted and logged.
        drop(self.send(requester, &event, Some(turn)).await);
        if let Some(copy) = copy.filter(|_| requester.is_redeliverable) {
            self.dead_letter((requester, call), &copy, (code, &why))
                .await;
        }
    }

    async fn dead_letter(
        &self,
        (requester, call): (&Requester, CallId),
        copy: &Outgoing,
        (code, why): (&'static str, &Text),
    ) {
        let of = Undelivered {
            message: &copy.message,
            topic: &copy.address.topic,
            origin: requester.origin.as_ref(),
            agent: copy.agent.as_ref(),
            call: Some(call.text()),
        };
        let reason = DeadLetterReason {
            code,
            stage: Stage::Answer,
            detail: format!("the answer to a request on {}: {why}", requester.topic),
            unit: requester.unit,
        };
        let mut dead_letter = requester.dead_letters.dead_letter(&of, None, &reason);
        if let Some(partition) = requester.address.partition {
            let headers = &mut dead_letter.message.headers;
            headers.push("bus-dlq-partition", partition.to_string());
        }
        let dead_letters = &requester.dead_letters;
        dead_letters.store(dead_letter, &self.publisher).await;
    }

    /// Ends a request that its requester has cancelled. Only ACP requires an answer to it.
    async fn end_cancelled(
        &self,
        requester: &Requester,
        answer: Box<Answer>,
        position: Option<&Text>,
        share: &Unsettled,
    ) -> Option<Publishing> {
        let call = Some(answer.call_id());
        // The parts in it have places in the line, before that of the error. The agent gets its cancel now.
        drop(answer);
        let publishing = self.publishing(position, share);
        if publishing.is_none() {
            self.log_left(requester);
        } else if requester.form.recipient.dialect() == Dialect::Acp {
            let failure = Failure::new(Reason::Cancelled, "the request was cancelled");
            Box::pin(self.fail((requester, call), &failure, None)).await;
        }
        publishing
    }

    fn log_left(&self, requester: &Requester) {
        if let Some(suppressed) = self.left.allow() {
            tracing::info!(topic = %requester.topic, suppressed, "the partition of a request has moved: its new owner sends the request to the agent again");
        }
    }

    /// Publishes an error to the requester in place of an answer, in its turn.
    async fn fail(
        &self,
        (requester, call): (&Requester, Option<CallId>),
        failure: &Failure,
        turn: Option<Turn>,
    ) {
        let turn = turn.unwrap_or_else(|| self.line(requester).turn());
        let event = requester.form.failure(failure);
        if let Err(undelivered) = self.send(requester, &event, Some(turn)).await {
            self.undelivered(requester, call, &undelivered.why);
        }
    }

    /// Publishes the error of a request that cannot be made.
    async fn refuse(&self, failed: FailedRequest) {
        let FailedRequest {
            failure,
            mut requester,
            place,
            turn,
        } = failed;
        if place.is_none() {
            // It is tried only once.
            requester.is_redeliverable = false;
            let copy = self
                .copy(&requester, &requester.form.failure(&failure))
                .ok();
            if let Some(error) = copy.and_then(|copy| self.publisher.known_failure(&copy)) {
                return self.undelivered(&requester, None, &chain(&error).into());
            }
        }
        self.fail((&requester, None), &failure, Some(turn)).await;
    }

    /// Publishes a message to the requester, and waits until the bus has confirmed it. The next one has its turn once
    /// the bus has accepted this one into its queue.
    async fn send(
        &self,
        requester: &Requester,
        event: &Event,
        turn: Option<Turn>,
    ) -> Result<(), UndeliveredReply> {
        let copy = self.copy(requester, event)?;
        let sent = self.publish(requester, &copy, turn.as_ref()).await;
        sent.map_err(|error| UndeliveredReply {
            code: error.kind().as_str(),
            why: chain(&error).into(),
            copy: Some(Box::new(copy)),
        })
    }

    async fn publish(
        &self,
        requester: &Requester,
        copy: &Outgoing,
        turn: Option<&Turn>,
    ) -> Result<(), TransportError> {
        if requester.is_redeliverable {
            return self.publisher.in_turn(copy, turn).await;
        }
        // Its bus stores nothing: its inbox disappears when it stops waiting.
        let once = self.publisher.once(copy, turn);
        match tokio::time::timeout(REPLY_TIMEOUT, once).await {
            Ok(sent) => sent,
            Err(_) => Err(TransportError::new(
                TransportErrorKind::TimedOut,
                "publish the answer",
            )),
        }
    }

    /// Counts and logs a message that does not reach its requester.
    fn undelivered(&self, requester: &Requester, call: Option<CallId>, why: &Text) {
        requester
            .dead_letters
            .metrics
            .dropped("reply_undeliverable");
        if let Some(suppressed) = self.undelivered.allow() {
            let call = call.map(|call| call.to_string());
            tracing::warn!(
                call,
                binding = %requester.dead_letters.name,
                topic = %shown_topic(requester.address.topic.as_str()),
                request = %requester.topic,
                origin = requester.origin.as_ref().map(|origin| origin.position.as_str()), %why, suppressed,
                "an answer did not reach its requester"
            );
        }
    }

    fn copy(&self, requester: &Requester, event: &Event) -> Result<Outgoing, RoutingError> {
        let to = (requester.bus, &requester.address);
        let headers = (requester.correlation.as_ref(), &*requester.headers);
        let stored = requester.may_be_stored;
        let mut copy = self.outbound.to_address(event, to, headers, stored)?;
        copy.message.key = requester.answer_key();
        Ok(copy)
    }
}

// === impl UndeliveredReply ===

impl From<RoutingError> for UndeliveredReply {
    fn from(error: RoutingError) -> Self {
        Self {
            code: error.reason(),
            why: error.to_string().into(),
            copy: None,
        }
    }
}

/// Waits until the request is cancelled.
async fn cancelled(cancellable: Option<&Cancellable>) {
    match cancellable {
        Some(cancellable) => cancellable.cancelled().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::bus::Buses;
    use crate::metrics::{BindingMetrics, Metrics};
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{
        Address, Consumer, Reading, Subscription, Topic, TopicFilter, Transport as _,
    };

    /// A source that redelivers requests, and their exchanges.
    struct Fixture {
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

    impl Fixture {
        async fn new() -> Self {
            let publisher = Publisher::of_test(Buses::new(Vec::new()));
            let (outbound, log) = (publisher.outbound().clone(), LogLimits::default());
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
                // The source may take it away before it is read.
                if delivery.acknowledger.is_current() {
                    let unsettled = Unsettled::new(self.metrics.clone());
                    unsettled.hold(delivery.acknowledger);
                    return unsettled;
                }
            }
        }

        /// The same, after the source has taken it away from its reader.
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

        /// A request that is answered. Returns the share of its copies, which are not confirmed.
        async fn answered(&mut self) -> Unsettled {
            let copies = self.read().await;
            let share = self.enter(copies.another()).unwrap();
            self.finish(share);
            copies
        }

        fn finish(&self, share: Unsettled) {
            let publishing = self.publishing(&share).unwrap();
            let position = Some(self.position.clone());
            self.exchanges.finish(position, share, &publishing);
        }
    }

    #[tokio::test]
    async fn a_redelivered_request_is_answered_with_the_first_one_or_is_a_new_one() {
        let mut fixture = Fixture::new().await;
        let first = fixture.read().await;
        let first = fixture.enter(first).unwrap();
        assert!(fixture.publishing(&first).is_some());
        let second = fixture.read_again().await;
        assert!(fixture.enter(second).is_none(), "it waits with the first");
        assert!(fixture.publishing(&first).is_some(), "for both");
        // The waiting one was taken away as well.
        let third = fixture.read_again().await;
        assert!(fixture.publishing(&first).is_none());
        let third = fixture.enter(third).expect("a new request");
        fixture.finish(third);
        let fourth = Unsettled::new(fixture.metrics.clone());
        assert!(fixture.enter(fourth).is_none(), "it was answered");
    }

    /// Its copies beside the request are in the first delivery only.
    #[tokio::test]
    async fn a_redelivered_request_is_settled_once_the_copies_of_the_first_one_are_confirmed() {
        let mut fixture = Fixture::new().await;
        let copies = fixture.answered().await;
        let second = fixture.read_again().await;
        assert!(fixture.enter(second).is_none());
        assert_eq!(fixture.metrics.settled.get(), 0, "not yet");
        copies.done();
        // The source has taken the first one away.
        assert_eq!(fixture.metrics.settled.get(), 1, "the second one");
    }

    /// Only that one is new when the message comes again.
    #[tokio::test]
    async fn a_request_that_is_left_does_not_return_the_answered_ones_of_its_message() {
        let mut fixture = Fixture::new().await;
        let copies = fixture.answered().await;
        drop(copies.another());
        let second = fixture.read_again().await;
        assert!(fixture.enter(second).is_none());
        copies.done();
        assert_eq!(fixture.metrics.settled.get(), 1, "the second one");
    }

    #[tokio::test]
    async fn a_redelivered_request_is_a_new_one_if_copies_of_the_first_one_are_not_confirmed() {
        // They are given up before or after the second delivery is read.
        for is_before in [true, false] {
            let mut fixture = Fixture::new().await;
            let mut copies = Some(fixture.answered().await);
            if is_before {
                drop(copies.take());
            }
            let second = fixture.read_again().await;
            let second = fixture.enter(second);
            assert_eq!(second.is_some(), is_before);
            drop(copies);
            drop(second);
            let again = timeout(Duration::from_secs(60), fixture.read()).await;
            let again = again.expect("its source delivers it again");
            assert_eq!(fixture.enter(again).is_some(), !is_before);
        }
    }

    #[tokio::test]
    async fn messages_at_one_position_are_distinguished_by_their_content() {
        let fixture = Fixture::new().await;
        let message = |body: &'static str, names: [&'static str; 2]| {
            let mut message = Message::plain(body);
            for name in names {
                message.headers.push(name, "x");
            }
            fixture.exchanges.fingerprint(&message)
        };
        let first = message("a", ["b", "c"]);
        assert_eq!(first, message("a", ["c", "b"]), "the order is the bus's");
        assert_ne!(first, message("b", ["b", "c"]));
        assert_ne!(first, message("a", ["b", "d"]));
    }
}
