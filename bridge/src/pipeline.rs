//! The path of a message through the bridge. Read this first.
//!
//! ```text
//! receive ─> detect ─> parse ─> map ─> resolve (answers) │ route (all else) ─> publish ─> settle
//! ```
//!
//! One task runs each binding. Messages of one lane (a Kafka partition) are published in order; a lane whose message
//! cannot be published waits and tries again while the other lanes go on. A message is settled after every copy of
//! it, or its dead letter, is confirmed. What is held is bounded by the budget of the subscription.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_plugin::{
    Event, Family, Hint, Limits, MapContext, MapOptions, Mapped, Refused, Text, extension, map,
    wrap_unknown,
};
use a2abus_transports::content_mode::{self, Binding, Content};
use a2abus_transports::{
    Acknowledger, Confirmation, Consumer, Delivery, Disposition, Message, Outcome, Topic,
    TransportError, TransportErrorKind,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

use crate::answer::{Answered, ReadAt, Reader, Unanswerable};
use crate::bus::BusId;
use crate::calls::Calls;
use crate::config::{Mode, OnUnknown, Role};
use crate::deadletter::{DeadLetters, Reason, Stage};
use crate::headers::PassedHeaders;
use crate::metrics::{BindingMetrics, Metrics};
use crate::outbound::{From, Outbound, Outgoing, Place};
use crate::reply_place::ReplyPlaces;

/// One binding: what is done with the messages of its topics.
#[derive(Debug)]
pub struct Pipeline {
    /// The name of the binding.
    pub name: Text,
    /// The bus it reads.
    pub bus: BusId,
    /// How that bus carries CloudEvents.
    pub binding: Binding,
    /// What its messages are for.
    pub role: Role,
    /// What is declared about its payloads.
    pub hint: Hint,
    /// What a payload may cost.
    pub limits: Limits,
    /// How payloads are mapped.
    pub options: MapOptions,
    /// The `source` of mapped events.
    pub source: Text,
    /// What to do with payloads that no family recognises.
    pub on_unknown: OnUnknown,
    /// Whether CloudEvents that lack routing attributes get them from their data.
    pub data: DataLook,
    /// Where answers to its requests go when they name no place.
    pub replies: Option<Topic>,
    /// The places that its requests may name for their answers.
    pub reply_places: ReplyPlaces,
    /// The headers that copies keep.
    pub passed: PassedHeaders,
    /// Where its dead letters go.
    pub dead_letters: DeadLetters,
    /// Routes and sends.
    pub outbound: Outbound,
    /// Calls that its messages may answer.
    pub calls: Arc<Calls>,
    /// Its counters.
    pub metrics: BindingMetrics,
    /// The counters of the bridge.
    pub counts: Arc<Metrics>,
}

/// Whether a binding looks into the data of CloudEvents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataLook {
    /// Attributes only.
    Never,
    /// For routing attributes that the event lacks.
    ForMissing,
}

/// How far clocks may differ before an event counts as expired.
const CLOCK_SKEW: Duration = Duration::from_secs(2);
/// The first and the longest wait before a message is sent again.
pub(crate) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(15));

/// Work for one lane.
enum Job {
    /// A message, with its place among those of its lane.
    Step(u64, Delivery),
    Retry(Unconfirmed),
}

/// A message whose copies are on their way.
struct InFlight {
    lane: u32,
    copies: Vec<(Outgoing, Confirmation)>,
    /// When the copies were handed to their buses.
    sent: Instant,
    original: Original,
}

/// A message of which some copies were refused or are in doubt.
struct Unconfirmed {
    copies: Vec<(Outgoing, TransportError)>,
    original: Original,
}

/// One unit of a message, for its dead letter.
struct Unit {
    index: usize,
    bytes: Bytes,
}

/// What a copy came from, for its dead letter and for its settlement.
struct Original {
    /// Its place among the messages of its lane.
    number: u64,
    message: Message,
    origin: Option<Text>,
    acknowledger: Acknowledger,
    /// How long the next attempt waits, after those that failed.
    wait: Duration,
    /// Held as long as only a person can set the lane free.
    paused: Option<Paused>,
}

/// The messages of one lane that wait behind the one that is being worked on.
#[derive(Default)]
struct Lane {
    /// In the order they were received.
    waiting: VecDeque<Job>,
    received: u64,
    busy: bool,
}

// === impl Pipeline ===

impl Pipeline {
    /// Runs until `stop`, then finishes what was received. What is unfinished when the future is dropped is abandoned:
    /// the source delivers it again.
    pub async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let mut lanes: HashMap<u32, Lane> = HashMap::new();
        let mut jobs = FuturesUnordered::new();
        let mut confirmations = FuturesUnordered::new();
        let mut open = true;
        loop {
            tokio::select! {
                biased;
                Some((lane, result)) = confirmations.next() => {
                    if let Some(unconfirmed) = self.settle(result) {
                        let entry = lanes.entry(lane).or_default();
                        entry.again(unconfirmed);
                        if let Some(job) = entry.next() {
                            jobs.push(self.work(lane, job));
                        }
                    }
                }
                Some(in_flight) = jobs.next() => {
                    let InFlight { lane, .. } = in_flight;
                    confirmations.push(self.confirm(in_flight));
                    let next = lanes.get_mut(&lane).and_then(Lane::finished);
                    if let Some(job) = next {
                        jobs.push(self.work(lane, job));
                    }
                }
                delivery = consumer.recv(), if open => match delivery {
                    Some(delivery) => {
                        let lane = delivery.lane;
                        let entry = lanes.entry(lane).or_default();
                        self.receive(delivery, entry);
                        if let Some(job) = entry.next() {
                            jobs.push(self.work(lane, job));
                        }
                    }
                    None => open = false,
                },
                () = stop.cancelled(), if open => {
                    consumer.stop();
                    while let Some(delivery) = consumer.try_recv() {
                        let entry = lanes.entry(delivery.lane).or_default();
                        self.receive(delivery, entry);
                    }
                    for (lane, entry) in &mut lanes {
                        if let Some(job) = entry.next() {
                            jobs.push(self.work(*lane, job));
                        }
                    }
                    open = false;
                }
                else => return consumer,
            }
        }
    }

    fn receive(&self, delivery: Delivery, lane: &mut Lane) {
        self.metrics.received.inc();
        self.metrics.in_flight.inc();
        lane.waiting.push_back(Job::Step(lane.received, delivery));
        lane.received += 1;
    }

    async fn work(&self, lane: u32, job: Job) -> InFlight {
        match job {
            Job::Step(number, delivery) => self.step(lane, number, delivery).await,
            Job::Retry(unconfirmed) => self.retry(lane, unconfirmed).await,
        }
    }

    /// The path of one message, up to the confirmation of its copies.
    async fn step(&self, lane: u32, number: u64, delivery: Delivery) -> InFlight {
        let Delivery {
            message,
            topic,
            origin,
            reply_to,
            acknowledger,
            ..
        } = delivery;
        let at = ReadAt {
            bus: self.bus,
            topic: &topic,
            origin: origin.as_ref(),
            message: &message,
            reply_to: reply_to.as_ref(),
            reader: Reader::Binding,
        };
        let mut outgoing = Vec::new();
        match self.role {
            Role::Responses => self.answers(at, &mut outgoing),
            Role::Events | Role::Workflows => self.events(at, &mut outgoing),
        }
        let original = Original {
            number,
            message,
            origin,
            acknowledger,
            wait: BACKOFF.0,
            paused: None,
        };
        self.publish(lane, outgoing, original).await
    }

    fn context(&self) -> MapContext<'static> {
        MapContext {
            source: self.source.clone(),
            time: Some(crate::clock::rfc3339(crate::clock::now())),
            new_id: &crate::clock::new_event_id,
        }
    }

    /// A message on a topic for answers: it goes to whoever waits for it, and what is no answer is a dead letter.
    fn answers(&self, at: ReadAt<'_>, outgoing: &mut Vec<Outgoing>) {
        for answered in self.calls.take_answers(at, self.binding, &self.limits) {
            self.counts.reply(answered.outcome());
            answered.log(at.topic);
            match answered {
                Answered::Forward(forward) => outgoing.push(*forward),
                Answered::Uncorrelated(Unanswerable { code, detail, unit }) => {
                    let unit = unit.map(|(index, bytes)| Unit { index, bytes });
                    outgoing.push(self.dead(at, unit.as_ref(), code, Stage::Resolve, &detail));
                }
                Answered::Delivered
                | Answered::Late(_)
                | Answered::Foreign(_)
                | Answered::Request(_) => {}
            }
        }
    }

    /// A message on a topic for events: each unit is mapped and routed.
    fn events(&self, at: ReadAt<'_>, outgoing: &mut Vec<Outgoing>) {
        match content_mode::read(self.binding, at.message, &self.limits) {
            Err(error) => {
                outgoing.push(self.dead(at, None, error.kind().as_str(), Stage::Receive, &error));
            }
            Ok(Content::Event(event)) => self.event(at, None, event, outgoing),
            Ok(Content::Plain { content_type, body }) => {
                let mut hint = self.hint.clone();
                if let Some(content_type) = content_type {
                    hint.header("content-type", &content_type);
                }
                let context = self.context();
                for unit in map(&body, &hint, &self.limits, &self.options, &context) {
                    match unit {
                        Ok(mapped) => self.mapped(at, mapped, outgoing),
                        Err(refused) => self.refused(at, refused, &context, outgoing),
                    }
                }
            }
        }
    }

    /// One unit of a plain payload.
    fn mapped(&self, at: ReadAt<'_>, mapped: Mapped, outgoing: &mut Vec<Outgoing>) {
        self.counts.unit(mapped.because.family, mapped.kind);
        let unit = Unit {
            index: mapped.index,
            bytes: mapped.bytes,
        };
        if mapped.because.family == Family::CloudEvent {
            return self.event(at, Some(&unit), mapped.event, outgoing);
        }
        self.route(at, Some(&unit), mapped.event, outgoing);
    }

    /// A CloudEvent.
    fn event(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut event: Event,
        outgoing: &mut Vec<Outgoing>,
    ) {
        if self.data == DataLook::ForMissing {
            self.fill_from_data(&mut event);
        }
        self.route(at, unit, event, outgoing);
    }

    fn refused(
        &self,
        at: ReadAt<'_>,
        refused: Refused,
        context: &MapContext<'_>,
        outgoing: &mut Vec<Outgoing>,
    ) {
        let kind = refused.error.kind();
        self.counts.refused(kind);
        let unit = Unit {
            index: refused.index,
            bytes: refused.bytes.clone(),
        };
        let is_unknown = kind == a2abus_plugin::DecodeErrorKind::Unknown;
        match self.on_unknown {
            OnUnknown::Wrap if is_unknown => {
                let event = wrap_unknown(&refused.bytes, &self.options, context);
                self.route(at, Some(&unit), event, outgoing);
            }
            OnUnknown::Pass if is_unknown => {
                let mut event = wrap_unknown(&refused.bytes, &self.options, context);
                // There is no event on the bus to count the hops, so a header of our own does.
                let hops = passed_hops(at.message);
                let counted = event.set(extension::HOPS, hops);
                debug_assert!(counted.is_ok(), "hops are a number");
                let before = outgoing.len();
                self.route(at, Some(&unit), event, outgoing);
                for copy in outgoing
                    .iter_mut()
                    .skip(before)
                    .filter(|copy| !self.is_dead_letter(copy))
                {
                    let key = copy.message.key.take();
                    copy.message = Message {
                        key,
                        body: Some(refused.bytes.clone()),
                        ..at.message.clone()
                    };
                    let next = hops.saturating_add(1).to_string();
                    copy.message.headers.put(PASSED_HOPS, next);
                }
            }
            OnUnknown::Reject | OnUnknown::Wrap | OnUnknown::Pass => {
                let pointer = match refused.error.pointer() {
                    "" => String::new(),
                    pointer => format!(" ({pointer})"),
                };
                let detail = format!(
                    "{} at byte {}{pointer}",
                    refused.error,
                    refused.error.offset()
                );
                let reason = Reason {
                    code: kind.as_str(),
                    stage: Stage::Detect,
                    detail,
                    unit: Some(refused.index),
                };
                let body = Some(refused.bytes);
                self.metrics.dead_lettered(reason.code);
                outgoing.push(
                    self.dead_letters
                        .letter(at.message, body, &self.name, at.origin, &reason),
                );
            }
        }
    }

    /// Takes from the data what routing needs and the event lacks.
    fn fill_from_data(&self, event: &mut Event) {
        let context = MapContext {
            source: self.source.clone(),
            time: None,
            new_id: &crate::clock::new_event_id,
        };
        let units = map(
            &event.body(),
            &self.hint,
            &self.limits,
            &self.options,
            &context,
        );
        let Ok(Ok(inner)) = units.into_only() else {
            return;
        };
        let names = [
            extension::A2A_METHOD,
            extension::MCP_TYPE,
            extension::TARGET_AGENT,
            extension::COLLABORATION_ID,
            "subject",
        ];
        for name in names {
            if let (None, Some(value)) = (event.attribute(name), inner.event.attribute(name)) {
                let set = event.set(name, value);
                debug_assert!(set.is_ok(), "a mapped attribute is legal");
            }
        }
    }

    fn route(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut event: Event,
        outgoing: &mut Vec<Outgoing>,
    ) {
        if is_expired(&event) {
            self.metrics.dropped("expired");
            tracing::debug!(binding = %self.name, id = %event.id(), "an expired event is not delivered");
            return;
        }
        self.mark(at, &mut event);
        let origin = at
            .origin
            .map(|origin| (origin, unit.map_or(0, |unit| unit.index)));
        let from = From {
            binding: &self.name,
            key: at.message.key.as_ref(),
            origin,
            headers: &self.passed.of(self.binding, at.message),
        };
        match self.outbound.route(&event, from, |_, _, _| Vec::new()) {
            Ok(copies) => outgoing.extend(copies),
            Err(error) => {
                self.counts.unrouted.inc();
                outgoing.push(self.dead(at, unit, error.reason(), Stage::Route, &error));
            }
        }
    }

    /// Puts on an event what the bridge knows of its way: where it was first read, and where its answer goes.
    fn mark(&self, at: ReadAt<'_>, event: &mut Event) {
        // The sender's own inbox, else where the binding's answers go.
        let reply_to = at
            .reply_to
            .or(self.replies.as_ref())
            .map(|topic| Text::from(topic.as_str()));
        for (name, value) in [
            (extension::ORIGIN, at.origin.cloned()),
            (extension::REPLY_TO, reply_to),
        ] {
            if let (None, Some(value)) = (event.extension(name), value) {
                let set = event.set(name, value);
                debug_assert!(set.is_ok(), "origins and topics are legal attributes");
            }
        }
    }

    fn dead(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        code: &'static str,
        stage: Stage,
        detail: &impl ToString,
    ) -> Outgoing {
        self.metrics.dead_lettered(code);
        let reason = Reason {
            code,
            stage,
            detail: detail.to_string(),
            unit: unit.map(|unit| unit.index),
        };
        let body = unit.map(|unit| unit.bytes.clone());
        self.dead_letters
            .letter(at.message, body, &self.name, at.origin, &reason)
    }

    /// Hands every copy to its bus, in order. Waits as long as it takes: the lane is held meanwhile.
    async fn publish(
        &self,
        lane: u32,
        outgoing: Vec<Outgoing>,
        mut original: Original,
    ) -> InFlight {
        let mut copies = Vec::with_capacity(outgoing.len());
        for copy in outgoing {
            copies.push(self.send(copy, None, &mut original).await);
        }
        InFlight {
            lane,
            copies,
            sent: Instant::now(),
            original,
        }
    }

    async fn retry(&self, lane: u32, unconfirmed: Unconfirmed) -> InFlight {
        let Unconfirmed {
            copies: refused,
            mut original,
        } = unconfirmed;
        let mut copies = Vec::with_capacity(refused.len());
        for (copy, error) in refused {
            copies.push(self.send(copy, Some(error), &mut original).await);
        }
        InFlight {
            lane,
            copies,
            sent: Instant::now(),
            original,
        }
    }

    /// Sends until the bus takes the copy, or takes the dead letter in place of a copy that no bus will ever take.
    async fn send(
        &self,
        mut copy: Outgoing,
        mut failed: Option<TransportError>,
        original: &mut Original,
    ) -> (Outgoing, Confirmation) {
        loop {
            if let Some(error) = failed.take() {
                if error.disposition() == Disposition::Pause {
                    let gauge = &self.metrics.paused_lanes;
                    original.paused.get_or_insert_with(|| Paused::new(gauge));
                }
                copy = self.after_failure(copy, &error, original);
                if let Some(bus) = self.outbound.buses().get(copy.bus) {
                    bus.metrics.retried(error.kind());
                }
                tokio::time::sleep(jittered(original.wait)).await;
                original.wait = (original.wait * 2).min(BACKOFF.1);
            }
            match self.outbound.send(&copy).await {
                Ok(confirmation) => return (copy, confirmation),
                Err(error) => failed = Some(error),
            }
        }
    }

    /// What to send next: the copy again, or its dead letter.
    fn after_failure(
        &self,
        copy: Outgoing,
        error: &TransportError,
        original: &Original,
    ) -> Outgoing {
        let nowhere =
            error.kind() == TransportErrorKind::UnknownTopic && copy.place == Place::FromEvent;
        let permanent = error.disposition() == Disposition::DeadLetter || nowhere;
        if permanent && !self.is_dead_letter(&copy) {
            let topic = &copy.address.topic;
            let reason = Reason {
                code: error.kind().as_str(),
                stage: Stage::Publish,
                detail: format!("{topic}: {error}"),
                unit: None,
            };
            self.metrics.dead_lettered(reason.code);
            // In binary mode the copy holds the bytes of its unit; a structured copy is our own writing.
            let body = if copy.mode == Mode::Binary {
                copy.message.body
            } else {
                None
            };
            return self.dead_letters.letter(
                &original.message,
                body,
                &self.name,
                original.origin.as_ref(),
                &reason,
            );
        }
        if permanent && !DeadLetters::is_reduced(&copy) {
            tracing::error!(binding = %self.name, topic = %copy.address.topic, %error,
                origin = original.origin.as_deref().unwrap_or("none: the source keeps nothing, so the body is lost"),
                "the dead letter is refused too: it is kept without its body, which only its origin has");
            return self.dead_letters.reduced(copy, error);
        }
        if error.disposition() == Disposition::Retry {
            tracing::warn!(binding = %self.name, topic = %copy.address.topic, %error, "not sent, trying again");
        } else {
            tracing::error!(binding = %self.name, topic = %copy.address.topic, %error,
                "not sent: mend the topic or the credentials; the lane waits and nothing is lost");
        }
        copy
    }

    fn is_dead_letter(&self, copy: &Outgoing) -> bool {
        copy.bus == self.dead_letters.bus && copy.address.topic == self.dead_letters.topic
    }

    /// Waits for the confirmation of every copy.
    async fn confirm(&self, in_flight: InFlight) -> (u32, Result<Acknowledger, Unconfirmed>) {
        let InFlight {
            lane,
            copies,
            sent,
            original,
        } = in_flight;
        let mut refused = Vec::new();
        for (copy, confirmation) in copies {
            match confirmation.await {
                Ok(_) => {
                    if let Some(bus) = self.outbound.buses().get(copy.bus) {
                        bus.metrics.published.inc();
                        bus.metrics
                            .publish_seconds
                            .observe(sent.elapsed().as_secs_f64());
                    }
                }
                Err(error) => refused.push((copy, error)),
            }
        }
        let result = if refused.is_empty() {
            Ok(original.acknowledger)
        } else {
            Err(Unconfirmed {
                copies: refused,
                original,
            })
        };
        (lane, result)
    }

    /// Settles a message all of whose copies are confirmed; gives back the others.
    fn settle(&self, result: Result<Acknowledger, Unconfirmed>) -> Option<Unconfirmed> {
        match result {
            Ok(acknowledger) => {
                self.metrics.in_flight.dec();
                match acknowledger.settle(Outcome::Settled) {
                    Ok(()) => self.metrics.settled.inc(),
                    Err(error) => {
                        tracing::warn!(binding = %self.name, %error, "not settled: it may be delivered again");
                    }
                }
                None
            }
            Err(unconfirmed) => Some(unconfirmed),
        }
    }
}

// === impl Job ===

impl Job {
    /// Its place among the messages of its lane.
    fn number(&self) -> u64 {
        match self {
            Self::Step(number, _) => *number,
            Self::Retry(unconfirmed) => unconfirmed.original.number,
        }
    }
}

// === impl Lane ===

impl Lane {
    /// Puts a message back where it stood: before all that came after it.
    fn again(&mut self, unconfirmed: Unconfirmed) {
        let number = unconfirmed.original.number;
        let at = self.waiting.partition_point(|job| job.number() < number);
        self.waiting.insert(at, Job::Retry(unconfirmed));
    }

    /// The next job, when the lane is free.
    fn next(&mut self) -> Option<Job> {
        if self.busy {
            return None;
        }
        let job = self.waiting.pop_front();
        self.busy = job.is_some();
        job
    }

    /// The current job is done; the one after it.
    fn finished(&mut self) -> Option<Job> {
        self.busy = false;
        self.next()
    }
}

/// A lane that a person has to set free; it counts as paused until this is dropped.
struct Paused(IntGauge);

impl Paused {
    fn new(lanes: &IntGauge) -> Self {
        lanes.inc();
        Self(lanes.clone())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts the routes that a payload of no known family has passed.
const PASSED_HOPS: &str = "bus-hops";

fn passed_hops(message: &Message) -> i32 {
    let value = message.headers.get(PASSED_HOPS);
    let text = value.and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether the event's time is over. Source: CloudEvents expirytime extension.
fn is_expired(event: &Event) -> bool {
    let expiry = event
        .extension_text(extension::EXPIRY_TIME)
        .and_then(|text| crate::clock::parse(text));
    expiry.is_some_and(|expiry| expiry + CLOCK_SKEW < crate::clock::now())
}

/// The wait, shortened at random by up to half, so that many do not wake at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness the full wait is as good.
    let random = getrandom::fill(&mut byte).map_or(0, |()| u32::from(byte[0]));
    wait - wait * random / 512
}

#[cfg(test)]
mod tests {
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{Address, Reading, Subscription, TopicFilter, Transport as _};

    use super::*;

    async fn delivery(memory: &Memory, consumer: &mut Consumer) -> Delivery {
        let address = Address::topic(Topic::from_static("t"));
        let sent = memory.send(&address, Message::plain("x")).await.unwrap();
        sent.await.unwrap();
        consumer.recv().await.unwrap()
    }

    #[tokio::test]
    async fn messages_that_are_sent_again_keep_their_order() {
        let memory = Memory::default();
        let subscription = Subscription {
            topics: vec![TopicFilter::new("t").unwrap()],
            reading: Reading::Group("g".into()),
            budget_bytes: 1 << 20,
            budget_messages: 100,
        };
        let mut consumer = memory.subscribe(subscription).await.unwrap();
        let mut lane = Lane::default();
        for number in [8, 9] {
            let delivery = delivery(&memory, &mut consumer).await;
            lane.waiting.push_back(Job::Step(number, delivery));
        }
        for number in [7, 2, 5, 3, 6] {
            let delivery = delivery(&memory, &mut consumer).await;
            lane.again(Unconfirmed {
                copies: Vec::new(),
                original: Original {
                    number,
                    message: delivery.message,
                    origin: None,
                    acknowledger: delivery.acknowledger,
                    wait: BACKOFF.0,
                    paused: None,
                },
            });
        }
        let order: Vec<u64> = lane.waiting.iter().map(Job::number).collect();
        assert_eq!(order, [2, 3, 5, 6, 7, 8, 9]);
    }
}
