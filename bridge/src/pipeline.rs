//! The path of a message through the bridge. Read this first.
//!
//! ```text
//! receive ─> detect ─> parse ─> map ─> resolve (answers) │ route (all else) ─> publish ─> settle
//! ```
//!
//! One task runs each binding. What becomes of a message is decided when it is read, and whoever waits for the answer to
//! a request in it waits from then on, even if its lane cannot go on. Messages of one lane (a Kafka partition) are
//! published in order; a lane whose message cannot be published waits and tries again while the other lanes go on ([`crate::bus::delivery`] has the rules). A message
//! is settled after every copy of it, or its dead letter, is confirmed. What is held is bounded by the budget of the
//! subscription.

pub mod adapt;
pub mod claims;
mod copies;
mod lane;
mod refused;
mod request;

use std::collections::HashMap;
use std::sync::Arc;

use a2abus_plugin::{
    Event, Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Source, Text, extension, map,
};
use a2abus_transports::content_mode::{self, Binding, Content};
use a2abus_transports::{
    Acknowledger, Confirmation, Consumer, Delivery, Message, Outcome, Topic, TransportError,
    TransportErrorKind,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use prometheus::IntGauge;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::bus::BusId;
use crate::bus::deadletter::{DeadLetters, Reason, Stage, Undelivered};
use crate::bus::delivery::{Holder, Publisher, Verdict};
use crate::bus::headers::PassedHeaders;
use crate::bus::outbound::{Outbound, Outgoing, Provenance, RoutingError, Unit};
use crate::calls::callid::shown_topic;
use crate::calls::exchange::room::{Parts, WaitingRoom};
use crate::calls::exchange::{Exchanges, InHand, Unsettled};
use crate::calls::reply_place;
use crate::calls::resolve::{ReadAt, Reader};
use crate::calls::{Answered, Calls, Unanswerable};
use crate::clock;
use crate::config::{EventIds, OnUnknown, Role};
use crate::metrics::{BindingMetrics, Metrics};
use crate::pipeline::claims::Claims;
use crate::stage;
pub(crate) use copies::CopiesInHand;
use copies::Weight;
use lane::{Lane, Task};

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
    /// How payloads are mapped.
    pub options: MapOptions,
    /// The `source` of mapped events.
    pub source: Source,
    /// Where the ids of mapped events come from.
    pub ids: EventIds,
    /// What to do with payloads that no family recognises.
    pub on_unknown: OnUnknown,
    /// Whether CloudEvents that lack routing attributes get them from their data.
    pub data: DataLook,
    /// Where answers to its requests go when they name no place.
    pub replies: Option<Topic>,
    /// What its writers may say of their events.
    pub claims: Claims,
    /// The headers that copies keep.
    pub passed: PassedHeaders,
    /// Where its dead letters go.
    pub dead_letters: DeadLetters,
    /// Routes.
    pub outbound: Outbound,
    /// Sends what was routed.
    pub publisher: Publisher,
    /// Calls that its messages may answer.
    pub calls: Arc<Calls>,
    /// Its requests that somebody waits for.
    pub exchanges: Arc<Exchanges>,
    /// What they hold of its budget.
    pub waiting: WaitingRoom,
    /// What the copies of its messages take.
    pub(crate) copies: CopiesInHand,
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

/// How often requests in held lanes are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The lanes of one binding, by number.
#[derive(Default)]
struct Lanes(HashMap<u32, BindingLane>);

#[derive(Default)]
struct BindingLane {
    order: Lane<Received, Unconfirmed>,
    /// Counts the lane as held.
    held: Option<Held>,
}

/// A message that was read, and what is to be published of it.
struct Received {
    copies: Vec<Outgoing>,
    original: Original,
    /// When it was read.
    since: Instant,
    span: Span,
}

/// What a task of a lane has done.
enum Done {
    /// The copies of a message are with their buses.
    Sent(InFlight),
    /// The first message that had failed is confirmed.
    Recovered(Original),
}

/// A message whose copies are on their way.
struct InFlight {
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
type HeldCopy = (Outgoing, Holder);

/// A message of which some copies have to be sent again.
struct Unconfirmed {
    copies: Vec<HeldCopy>,
    original: Original,
}

/// How the wait for the confirmations of one message ended.
struct Decided {
    lane: u32,
    number: u64,
    original: Original,
    /// The copies to send again, and why the first of them failed.
    again: Option<(Vec<HeldCopy>, TransportErrorKind)>,
}

/// What a copy came from, for its dead letter and for its settlement.
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

/// What becomes of a message.
#[derive(Default)]
struct Routed {
    /// What settles it once the requests in it are answered.
    unsettled: Option<Unsettled>,
    /// What is published.
    copies: Vec<Outgoing>,
    /// The requests in it that somebody waits for.
    in_hand: Vec<InHand>,
    /// What these hold of the budget.
    room: Parts,
    /// Tells the message from others that were read at its position, once that is asked.
    fingerprint: Option<u64>,
    /// Error replies to its elements.
    error_replies: usize,
}

// === impl Pipeline ===

impl Pipeline {
    /// Runs until `stop`, then finishes what was received. What is unfinished when the future is dropped is abandoned:
    /// the source delivers it again.
    pub async fn run(&self, mut consumer: Consumer, stop: CancellationToken) -> Consumer {
        let mut lanes = Lanes::default();
        let mut tasks = FuturesUnordered::new();
        let mut confirmations = FuturesUnordered::new();
        let (mut open, mut wanted) = (true, true);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // While a lane is held, something of it is here.
            let is_idle = tasks.is_empty() && confirmations.is_empty();
            let lane = tokio::select! {
                biased;
                Some(decided) = confirmations.next() => self.decide(&mut lanes, decided),
                Some((lane, done)) = tasks.next() => {
                    match done {
                        Done::Sent(in_flight) => {
                            let has_failed = self.has_failed(&in_flight);
                            lanes.get(lane).order.sent(has_failed);
                            confirmations.push(self.confirm(in_flight));
                        }
                        Done::Recovered(original) => {
                            self.settle(original);
                            lanes.get(lane).order.recovered();
                        }
                    }
                    lane
                }
                _ = looks.tick(), if !is_idle => {
                    self.drop_unwanted(&mut lanes);
                    continue;
                }
                delivery = consumer.recv(), if open && self.copies.has_room() => match delivery {
                    Some(delivery) => self.receive(&mut lanes, delivery),
                    None => {
                        open = false;
                        continue;
                    }
                },
                () = stop.cancelled(), if wanted => {
                    wanted = false;
                    consumer.stop();
                    continue;
                }
                else => return consumer,
            };
            tasks.extend(lanes.next(lane).map(|task| self.work(lane, task)));
        }
    }

    /// Settles messages in held lanes whose requests nobody waits for any more, so that others can be received.
    fn drop_unwanted(&self, lanes: &mut Lanes) {
        let is_unwanted = |received: &Received| {
            let mut copies = received.copies.iter();
            !received.copies.is_empty() && copies.all(|copy| !self.is_wanted(copy))
        };
        for lane in lanes.0.values_mut().filter(|lane| lane.order.is_held()) {
            for Received {
                copies, original, ..
            } in lane.order.remove_waiting(is_unwanted)
            {
                for copy in &copies {
                    self.expired(copy, &original);
                }
                self.settle(original);
            }
        }
    }

    /// Puts a delivery into its lane; returns the lane.
    fn receive(&self, lanes: &mut Lanes, delivery: Delivery) -> u32 {
        self.metrics.received.inc();
        self.metrics.in_flight.inc();
        let lane = delivery.lane;
        let span = stage::receive(&self.name, &delivery.topic, delivery.origin.as_ref());
        let received = span.clone().in_scope(|| self.received(delivery, span));
        lanes.get(lane).order.receive(received);
        lane
    }

    /// What becomes of a message. The requests in it are calls from here on.
    fn received(&self, delivery: Delivery, span: Span) -> Received {
        let Delivery {
            message,
            topic,
            origin,
            reply_to,
            acknowledger,
            ..
        } = delivery;
        let rules = self.outbound.rules();
        let at = ReadAt {
            rules: &rules,
            bus: self.bus,
            topic: &topic,
            origin: origin.as_ref(),
            message: &message,
            reply_to: reply_to.as_ref(),
            reader: Reader::Binding,
        };
        let mut routed = Routed::default();
        match self.role {
            Role::Responses => self.answers(at, &mut routed),
            Role::Events | Role::Workflows => self.events(at, &mut routed),
        }
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

    async fn work(&self, lane: u32, task: Task<Received, Unconfirmed>) -> (u32, Done) {
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
    fn is_wanted(&self, copy: &Outgoing) -> bool {
        if copy.dead_letter.is_some() {
            return true;
        }
        let call = copy.call.as_ref().filter(|_| copy.is_awaited);
        let call = call.and_then(|call| call.parse().ok());
        !copy.expires.is_some_and(clock::is_over)
            && call.is_none_or(|call| !self.calls.has_ended(call))
    }

    /// Counts and logs a copy that is no longer wanted.
    fn expired(&self, copy: &Outgoing, original: &Original) {
        let of = Undelivered {
            agent: copy.agent.as_ref(),
            call: copy.call.clone(),
            ..original.undelivered()
        };
        self.dead_letters.dropped(&of, "expired");
    }

    /// What the events of a message get that was read at `origin`.
    fn context(&self, origin: Option<&Text>) -> MapContext<'static> {
        MapContext {
            source: self.source.clone(),
            time: Some(crate::clock::time()),
            ids: self.ids.at(origin),
        }
    }

    /// A message on a topic for answers: it goes to whoever waits for it, and what is no answer is a dead letter.
    fn answers(&self, at: ReadAt<'_>, outgoing: &mut Routed) {
        for answered in self.calls.take_answers(at, self.binding) {
            match answered {
                Answered::Forward(forward) => outgoing.copies.push(*forward),
                Answered::Uncorrelated(Unanswerable { code, detail, unit }) => {
                    let unit = unit.map(|(index, bytes)| Unit { index, bytes });
                    let unit = unit.as_ref();
                    outgoing
                        .copies
                        .push(self.dead(at, unit, None, code, Stage::Resolve, &detail));
                }
                Answered::Delivered
                | Answered::Late(_)
                | Answered::Foreign(_)
                | Answered::Rejected(..)
                | Answered::Looped(_)
                | Answered::Request(_) => {}
            }
        }
    }

    /// A message on a topic for events: each unit is mapped and routed.
    fn events(&self, at: ReadAt<'_>, outgoing: &mut Routed) {
        let limits = &at.rules.limits;
        match content_mode::read(self.binding, at.message, limits) {
            Err(error) => self.unreadable(at, &error, outgoing),
            Ok(Content::Event(event)) => self.event(at, None, event, outgoing),
            Ok(Content::Plain { content_type, body }) => {
                let mut hint = self.hint.clone();
                if let Some(content_type) = content_type {
                    hint.header("content-type", &content_type);
                }
                let context = self.context(at.origin);
                let map = |body| map(body, &hint, limits, &self.options, &context);
                let units = stage::map().in_scope(|| map(&body));
                if let Some(why) = copies::repeats_too_much(at.message, units.len()) {
                    return self.repeats(at, why, outgoing);
                }
                for unit in units {
                    match unit {
                        Ok(mapped) => self.mapped(at, mapped, outgoing),
                        Err(refused) => self.refused(at, &refused, &context, outgoing),
                    }
                }
            }
        }
    }

    /// One unit of a plain payload.
    fn mapped(&self, at: ReadAt<'_>, mapped: Mapped, outgoing: &mut Routed) {
        self.counts.unit(mapped.because.family, mapped.kind);
        let unit = Unit {
            index: mapped.index,
            bytes: mapped.bytes,
        };
        if mapped.because.family == Family::CloudEvent {
            return self.event(at, Some(&unit), mapped.event, outgoing);
        }
        let mut event = mapped.event;
        reply_place::take_deadline(at.message, &mut event);
        self.route(at, Some(&unit), event, outgoing);
    }

    /// A CloudEvent.
    fn event(&self, at: ReadAt<'_>, unit: Option<&Unit>, mut event: Event, outgoing: &mut Routed) {
        let index = unit.map_or(0, |unit| unit.index);
        let is_own = |event: &Event| self.calls.is_own_request(event);
        self.claims.of_cloudevent(at, index, &mut event, is_own);
        if self.data == DataLook::ForMissing {
            self.fill_from_data(&mut event, &at.rules.limits);
        }
        self.route(at, unit, event, outgoing);
    }

    /// Takes from the data what routing needs and the event lacks.
    fn fill_from_data(&self, event: &mut Event, limits: &Limits) {
        let context = MapContext {
            source: self.source.clone(),
            time: None,
            ids: Ids::Payload(&crate::clock::new_event_id),
        };
        let units = map(&event.body(), &self.hint, limits, &self.options, &context);
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

    fn route(&self, at: ReadAt<'_>, unit: Option<&Unit>, mut event: Event, outgoing: &mut Routed) {
        self.claims.of_event(at, &mut event);
        if self.is_misplaced(at, unit, &event, outgoing) {
            return;
        }
        if is_expired(&event) {
            let of = undelivered(at).with_event(Some(&event));
            self.dead_letters.dropped(&of, "expired");
            if let Ok(Some(requester)) = self.requester(at, &event) {
                self.request(at, unit, event, requester, outgoing);
            }
            return;
        }
        match self.requester(at, &event) {
            Ok(Some(requester)) => return self.request(at, unit, event, requester, outgoing),
            Ok(None) => self.claims.of_unasked(at, &mut event),
            Err(refused) => return self.misdirected(at, unit, &event, &refused, outgoing),
        }
        self.mark(at, &mut event);
        self.route_unasked(at, unit, &event, outgoing);
    }

    /// Whether an event answers a call, where no answers are taken: then it is a dead letter.
    fn is_misplaced(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        outgoing: &mut Routed,
    ) -> bool {
        let Some(call) = self.calls.misplaced_answer(at, event) else {
            return false;
        };
        let detail = format!(
            "it answers the call {call} under the headers of its request: answers belong at the reply address of the \
             request, or on a topic that a binding with role: responses reads"
        );
        let reason = "answer_on_request_topic";
        let dead_letter = self.dead(at, unit, Some(event), reason, Stage::Resolve, &detail);
        outgoing.copies.push(dead_letter);
        true
    }

    /// Routes an event whose answer the bridge does not take.
    fn route_unasked(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        outgoing: &mut Routed,
    ) {
        let origin = at
            .origin
            .map(|origin| (origin, unit.map_or(0, |unit| unit.index)));
        let from = Provenance {
            rules: at.rules,
            binding: &self.name,
            key: at.message.key.as_ref(),
            origin,
            headers: &self.passed.of(self.binding, at.message),
        };
        let routed = stage::route().in_scope(|| self.outbound.route(event, from, None));
        match routed {
            Ok(copies) => outgoing.publish(copies, unit),
            Err(error) => {
                self.count_unrouted(&error);
                let reason = error.reason();
                let dead_letter = self.dead(at, unit, Some(event), reason, Stage::Route, &error);
                outgoing.copies.push(dead_letter);
            }
        }
    }

    /// Counts an event that no route takes. What a route takes and cannot publish is counted among the dead letters only.
    fn count_unrouted(&self, error: &RoutingError) {
        if matches!(error, RoutingError::NoRoute) {
            self.counts.unrouted.inc();
        }
    }

    /// Puts on an event where its answer goes, unless it says so itself.
    fn mark(&self, at: ReadAt<'_>, event: &mut Event) {
        if event.extension(extension::REPLY_TO).is_some() {
            return;
        }
        // The sender's own inbox, else where the binding's answers go.
        let reply_to = match at.reply_to {
            Some(inbox) => match self.claims.reply_places.inbox(inbox) {
                Ok(inbox) => Some(inbox),
                Err(_) => return self.claims.overruled(extension::REPLY_TO, at),
            },
            None => self.replies.clone(),
        };
        if let Some(place) = reply_to {
            let set = event.set(extension::REPLY_TO, Text::from(place.as_str()));
            debug_assert!(set.is_ok(), "topics are legal attributes");
        }
    }

    /// The dead letter of a message, or of one unit of it, that never became a copy.
    fn dead(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: Option<&Event>,
        code: &'static str,
        stage: Stage,
        detail: &impl ToString,
    ) -> Outgoing {
        let reason = Reason {
            code,
            stage,
            detail: detail.to_string(),
            unit: unit.map(|unit| unit.index),
        };
        let body = unit.map(|unit| unit.bytes.clone());
        let of = undelivered(at).with_event(event);
        self.dead_letters.dead_letter(&of, body, &reason)
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
    fn has_failed(&self, in_flight: &InFlight) -> bool {
        let holds = |copy: &Copy| {
            let error = copy.handed.as_ref().err();
            error
                .is_some_and(|error| self.publisher.verdict(&copy.outgoing, error) == Verdict::Hold)
        };
        in_flight.copies.iter().any(holds)
    }

    /// Waits for the confirmation of every copy. What no bus will ever take goes to the dead letters at once: that holds
    /// up nobody.
    async fn confirm(&self, in_flight: InFlight) -> Decided {
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
            return self.dead_letters.instead(copy, error);
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
        Some(self.dead_letters.dead_letter(&of, body, &reason))
    }

    /// Settles a message all of whose copies are confirmed; puts the others back into their lane, which is returned.
    fn decide(&self, lanes: &mut Lanes, decided: Decided) -> u32 {
        let Decided {
            lane,
            number,
            original,
            again,
        } = decided;
        let entry = lanes.get(lane);
        match again {
            None => {
                entry.order.confirmed();
                self.settle(original);
            }
            Some((copies, kind)) => {
                let held = || Held::new(self.metrics.held_lanes(kind));
                entry.held.get_or_insert_with(held);
                entry.order.failed(number, Unconfirmed { copies, original });
            }
        }
        lane
    }

    fn settle(&self, original: Original) {
        let acknowledger = match original.settlement {
            Settlement::Now(acknowledger) => acknowledger,
            Settlement::Shared(unsettled) => return unsettled.done(),
        };
        self.metrics.in_flight.dec();
        let _settle = stage::settle().entered();
        match acknowledger.settle(Outcome::Settled) {
            Ok(()) => self.metrics.settled.inc(),
            Err(error) => {
                tracing::warn!(binding = %self.name, %error, "not acknowledged: it may be redelivered");
            }
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

// === impl Lanes ===

impl Lanes {
    fn get(&mut self, lane: u32) -> &mut BindingLane {
        self.0.entry(lane).or_default()
    }

    /// The next task of a lane, when it may do one now.
    fn next(&mut self, lane: u32) -> Option<Task<Received, Unconfirmed>> {
        let lane = self.get(lane);
        let task = lane.order.next();
        if !lane.order.is_held() {
            lane.held = None;
        }
        task
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

/// A lane that waits for a destination; it is counted until this is dropped.
struct Held(IntGauge);

impl Held {
    fn new(lanes: IntGauge) -> Self {
        lanes.inc();
        Self(lanes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
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

/// Whether the event's time is over.
fn is_expired(event: &Event) -> bool {
    clock::expiry(event).is_some_and(clock::is_over)
}
