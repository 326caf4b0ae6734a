//! A running binding: its lanes, and what they wait for.
//!
//! ```text
//! receive ──> Lane ──proceed──> handed to the buses ──settle_confirmed──> confirmed: settled
//!              ^    │ no room in a queue: `waiting`     │ not yet: `unconfirmed`
//!              └────┴───────── failed: held <───────────┘
//! ```
//! Anything that needs no wait is done at once, because buses usually have room and confirm in order. So only the first
//! message in flight of a lane is awaited. Later ones are checked when the first is decided. They are also checked when
//! any confirmation has failed, because the first may wait for another destination.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use a2abus_transports::{Delivery, TransportErrorKind, failed_confirmations};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use prometheus::IntGauge;
use tokio::task::coop::unconstrained;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::lane::{Lane, Task};
use super::send::{Decided, Done, InFlight, Known, Sending, Signals, Unconfirmed};
use super::state::{Original, Pipeline, Received};
use crate::bus::outbound::Outgoing;
use crate::calls::callid::{CallId, shown_topic};
use crate::calls::error::CallError;

/// A running binding. When it is dropped, it returns its messages to their source in their order.
pub(super) struct Run<'p> {
    pipeline: &'p Pipeline,
    /// The first message in flight of each lane, and messages with a copy that has failed.
    pub(super) unconfirmed: FuturesUnordered<BoxFuture<'p, Known>>,
    /// The tasks of lanes that have to wait: at most one per lane, and one for its copies beside requests.
    pub(super) waiting: FuturesUnordered<BoxFuture<'p, (u32, Done)>>,
    /// There are few, and each message needs several lookups, so this is not a hash map.
    lanes: BTreeMap<u32, BindingLane>,
    /// The lanes with messages that were received since [`Run::proceed_fresh`].
    fresh: Vec<u32>,
}

#[derive(Default)]
struct BindingLane {
    /// The messages in flight after the first, which is in [`Run::unconfirmed`].
    in_flight: VecDeque<InFlight>,
    order: Lane<Received, Unconfirmed>,
    /// The messages with copies beside a request, by number: `None` until a message waits for nothing else. They are sent
    /// again in this order, each after all older ones are decided, and do not hold the lane.
    beside: BTreeMap<u64, Option<Unconfirmed>>,
    /// Set while a task sends such copies again.
    sending_beside: Option<SendingBeside>,
    has_first: bool,
    /// Whether it is in [`Run::fresh`].
    is_fresh: bool,
    /// Counts the lane as held while it is set.
    held: Option<Held>,
    /// Set while copies beside requests wait for a destination that fails. Counts the lane although it is not held, so
    /// that an operator is alerted.
    held_beside: Option<Held>,
    /// Until when messages are sent one by one, because a destination was full. If room becomes free while several are in
    /// flight, it may accept a later one after it has refused an earlier one.
    singly_until: Option<Instant>,
    signals: Signals,
    /// How many confirmations had failed when the messages in flight were last checked.
    failures: u64,
    /// A message was not sent because the partition had moved. Those behind it are not sent either.
    has_moved: bool,
    /// The calls of the message in its task that waits.
    sending: Box<[CallId]>,
    /// Cancelled when the lane is left to the next reader of the source.
    left: CancellationToken,
}

/// The work of a task that sends copies beside requests again.
struct SendingBeside {
    /// The calls of the messages.
    calls: Box<[CallId]>,
    /// The copies of the oldest message. The task waits for their confirmation before it sends the others.
    first: Vec<Outgoing>,
}

/// Counts a lane that waits for a destination, until it is dropped.
struct Held(IntGauge);

/// How long a lane sends messages one by one after a destination was full.
const SINGLY: Duration = Duration::from_secs(60);

// === impl Run ===

impl<'p> Run<'p> {
    pub(super) fn new(pipeline: &'p Pipeline) -> Self {
        Self {
            pipeline,
            lanes: BTreeMap::new(),
            fresh: Vec::new(),
            waiting: FuturesUnordered::new(),
            unconfirmed: FuturesUnordered::new(),
        }
    }

    /// Whether a lane has no message.
    pub(super) fn is_empty(&self, lane: u32) -> bool {
        let lane = self.lanes.get(&lane);
        lane.is_none_or(|lane| lane.order.is_empty() && lane.beside.is_empty())
    }

    /// Leaves each lane to the next reader of the source if all its messages wait for destinations that fail. With
    /// `is_answered`, a lane stays if an agent may be at work on a request in it. Returns whether a lane was left.
    pub(super) fn leave_held(&mut self, is_answered: bool) -> bool {
        let pending = self.pipeline.calls.pending();
        let mut is_any = false;
        for lane in self.lanes.values() {
            if lane.left.is_cancelled() || !lane.waits_for_failing(self.pipeline) {
                continue;
            }
            if !(is_answered && lane.calls().any(|call| pending.may_have_arrived(call))) {
                let calls = lane.calls();
                calls.for_each(|call| pending.fail_unsent(call, CallError::Draining));
                lane.left.cancel();
                is_any = true;
            }
        }
        is_any
    }

    /// Adds a message to its lane. `has_waited` is whether its partition may have moved since it was received.
    pub(super) fn receive(&mut self, delivery: Delivery, has_waited: bool, now: Instant) {
        let lane = delivery.lane;
        let entry = self.lanes.entry(lane).or_default();
        if entry.left.is_cancelled() {
            return;
        }
        if has_waited || entry.has_moved {
            entry.has_moved = !delivery.acknowledger.is_current();
            if entry.has_moved {
                let topic = shown_topic(delivery.topic.as_str());
                tracing::debug!(%topic, "a message is not read, because its partition has moved");
                return;
            }
        }
        let received = self.pipeline.receive(delivery, now);
        entry.order.receive(received);
        if !std::mem::replace(&mut entry.is_fresh, true) {
            self.fresh.push(lane);
        }
    }

    /// Runs the tasks of the lanes with new messages. Their copies reach the client of a bus at nearly the same time, so it
    /// sends them in few requests.
    pub(super) fn proceed_fresh(&mut self) {
        while let Some(lane) = self.fresh.pop() {
            self.lanes.entry(lane).or_default().is_fresh = false;
            self.proceed(lane);
        }
    }

    /// A task that had to wait is done.
    pub(super) fn done(&mut self, lane: u32, done: Done) {
        let (pipeline, entry) = (self.pipeline, self.lanes.entry(lane).or_default());
        if matches!(done, Done::Beside(_)) {
            entry.sending_beside = None;
            // The first message of the task is confirmed.
            entry.held_beside = None;
        } else {
            entry.sending = Box::default();
        }
        let is_current = match done {
            Done::Beside(sent) => {
                for message in sent {
                    entry.settle_or_queue(message, pipeline);
                }
                true
            }
            Done::Sent(in_flight) => {
                let is_current = in_flight.original.is_current();
                self.unconfirmed.extend(entry.sent(in_flight, pipeline));
                // A copy may have failed while another one waited.
                entry.failures = 0;
                is_current
            }
            Done::Recovered(recovered) => {
                let is_current = recovered.original.is_current();
                entry.order.recovered();
                entry.settle_or_queue(recovered, pipeline);
                is_current
            }
            Done::Left => {
                // A message was dropped with the task; the source sorts what is returned.
                let left = entry.left.clone();
                *entry = BindingLane {
                    left,
                    ..BindingLane::default()
                };
                return;
            }
        };
        if !is_current {
            // It may not have been sent.
            entry.settle_waiting(pipeline, |received| !received.original.is_current());
            entry.has_moved = true;
        }
        self.proceed(lane);
    }

    /// More is known about a message in flight.
    pub(super) fn known(&mut self, known: Known) {
        let mut first = match known {
            Known::First(first) => first,
            Known::Decided(decided) => return self.decided(decided),
        };
        let (pipeline, lane) = (self.pipeline, first.lane);
        let entry = self.lanes.entry(lane).or_default();
        entry.has_first = false;
        if first.is_confirmed() {
            entry.confirmed(first, Instant::now(), pipeline);
        } else {
            self.unconfirmed.push(entry.decide(first, pipeline));
        }
        self.proceed(lane);
    }

    /// A message is decided: it is settled, or its failed copies go back to the lane.
    fn decided(&mut self, decided: Decided) {
        let Decided {
            lane,
            number,
            original,
            again,
            failure,
        } = decided;
        let pipeline = self.pipeline;
        let entry = self.lanes.entry(lane).or_default();
        if failure == Some(TransportErrorKind::Full) {
            entry.singly_until = Some(Instant::now() + SINGLY);
        }
        let only_beside = again.iter().all(|(copy, _)| copy.is_beside);
        let failed = Unconfirmed {
            number,
            copies: again,
            original,
        };
        if only_beside {
            entry.order.confirmed();
            entry.settle_or_queue(failed, pipeline);
        } else {
            if let Some(kind) = failure {
                entry.held_beside = None;
                let held = || Held::new(pipeline.intake.metrics.held_lanes(kind));
                entry.held.get_or_insert_with(held);
            }
            if !failed.copies.iter().any(|(copy, _)| copy.is_beside) {
                entry.end_beside(number);
            }
            entry.signals.earlier_failed.cancel();
            entry.order.failed(number, failed);
        }
        self.proceed(lane);
    }

    /// Runs the tasks that a lane can do now.
    fn proceed(&mut self, lane: u32) {
        self.work(lane);
        // Settling may have freed the lane.
        while self.settle_confirmed(lane) {
            self.work(lane);
        }
    }

    /// Hands messages to their buses until the lane has to wait.
    fn work(&mut self, lane: u32) {
        let pipeline = self.pipeline;
        let entry = self.lanes.entry(lane).or_default();
        if let Some((first, rest)) = entry.next_beside() {
            let task = pipeline.recover_beside(lane, first, rest).boxed();
            self.waiting.push(entry.until_left(lane, task));
        }
        loop {
            self.unconfirmed.extend(entry.failed(pipeline));
            let Some(task) = entry.next() else { return };
            let task = match task {
                Task::Send(number, received) => {
                    let mut step = Sending::new(lane, number, received);
                    if pipeline.hand_over(&mut step, &entry.signals) {
                        self.unconfirmed
                            .extend(entry.sent(step.in_flight, pipeline));
                        continue;
                    }
                    entry.sending = step.in_flight.original.calls().into();
                    pipeline.finish(step, entry.new_wait()).boxed()
                }
                Task::Again(_, failed) => {
                    let signals = entry.new_wait();
                    entry.sending = failed.original.calls().into();
                    pipeline.resend(lane, failed, signals).boxed()
                }
                Task::First(failed) => {
                    entry.sending = failed.original.calls().into();
                    pipeline.recover(lane, failed).boxed()
                }
            };
            self.waiting.push(entry.until_left(lane, task));
        }
    }

    /// Settles the confirmed messages of a lane up to the first unconfirmed one, which is then awaited. Returns whether
    /// any was settled.
    fn settle_confirmed(&mut self, lane: u32) -> bool {
        let entry = self.lanes.entry(lane).or_default();
        let mut now = None;
        while !entry.has_first
            && let Some(mut first) = entry.in_flight.pop_front()
        {
            if first.is_confirmed() {
                let now = *now.get_or_insert_with(Instant::now);
                entry.confirmed(first, now, self.pipeline);
            } else {
                entry.has_first = true;
                self.unconfirmed
                    .push(first.known().map(Known::First).boxed());
            }
        }
        now.is_some()
    }

    /// Holds lanes with messages in flight that have failed. Settles messages in held lanes whose requesters no longer
    /// wait, or which another replica now reads, so that others can be received.
    pub(super) fn check(&mut self) {
        let (pipeline, mut settled) = (self.pipeline, Vec::new());
        for (number, lane) in &mut self.lanes {
            self.unconfirmed.extend(lane.failed(pipeline));
            lane.count_beside(pipeline);
            if !lane.order.is_held() || lane.left.is_cancelled() {
                continue;
            }
            let is_moved = |received: &Received| !received.original.is_current();
            if lane.settle_waiting(pipeline, is_moved) {
                lane.has_moved = true;
                settled.push(*number);
            }
            lane.settle_waiting(pipeline, |received| {
                let mut copies = received.copies.iter();
                !received.copies.is_empty() && copies.all(|copy| !pipeline.is_wanted(copy))
            });
        }
        // Their copies beside requests can be sent.
        settled.into_iter().for_each(|lane| self.proceed(lane));
    }
}

// === impl BindingLane ===

impl BindingLane {
    /// The next task, if the lane is free.
    fn next(&mut self) -> Option<Task<Received, Unconfirmed>> {
        if let Some(until) = self.singly_until {
            if Instant::now() > until {
                self.singly_until = None;
            } else if self.order.in_flight() > 0 {
                return None;
            }
        }
        let task = self.order.next();
        if !self.order.is_held() {
            self.held = None;
        }
        task
    }

    /// Counts the lane as held if copies beside requests wait for a destination that fails, and it is not counted yet.
    fn count_beside(&mut self, pipeline: &Pipeline) {
        let sending = self.sending_beside.iter().filter(|_| self.held.is_none());
        let mut first = sending.flat_map(|sending| &sending.first);
        let failure = first.find_map(|copy| pipeline.failure(copy));
        let counted = self.held_beside.take();
        self.held_beside = failure.map(|kind| {
            let held = || Held::new(pipeline.intake.metrics.held_lanes(kind));
            counted.unwrap_or_else(held)
        });
    }

    /// A task of the lane, which ends when the lane is left.
    fn until_left<'p>(
        &self,
        lane: u32,
        task: BoxFuture<'p, (u32, Done)>,
    ) -> BoxFuture<'p, (u32, Done)> {
        let left = self.left.clone();
        let task = async move {
            tokio::select! {
                biased;
                () = left.cancelled() => (lane, Done::Left),
                done = task => done,
            }
        };
        task.boxed()
    }

    /// The first messages that wait only for copies beside a request; `None` while a task sends such copies, or while
    /// an older message with such copies is undecided.
    fn next_beside(&mut self) -> Option<(Unconfirmed, Vec<Unconfirmed>)> {
        if self.sending_beside.is_some() {
            return None;
        }
        let mut next = self.beside.values_mut().map_while(Option::take);
        let first = next.next()?;
        let rest: Vec<_> = next.collect();
        let all = std::iter::once(&first).chain(&rest);
        self.sending_beside = Some(SendingBeside {
            calls: all
                .flat_map(|message| message.original.calls())
                .copied()
                .collect(),
            first: first.copies.iter().map(|(copy, _)| copy.clone()).collect(),
        });
        Some((first, rest))
    }

    /// Whether it has messages, and all of them wait for destinations that fail.
    fn waits_for_failing(&self, pipeline: &Pipeline) -> bool {
        let is_failing = |copy: &Outgoing| pipeline.failure(copy).is_some();
        let fails = |sending: &SendingBeside| sending.first.iter().any(is_failing);
        let is_held = self.order.is_held() && self.order.in_flight() == 0;
        (is_held || self.order.is_empty() && self.sending_beside.is_some())
            && self.sending_beside.as_ref().is_none_or(fails)
    }

    /// A message has no copies beside a request any more.
    fn end_beside(&mut self, number: u64) {
        if self.beside.remove(&number).is_some() && self.beside.is_empty() {
            self.signals.beside_waits.store(false, Ordering::Relaxed);
        }
    }

    /// All copies of a message in flight are confirmed.
    fn confirmed(&mut self, in_flight: InFlight, now: Instant, pipeline: &Pipeline) {
        self.order.confirmed();
        self.end_beside(in_flight.number);
        pipeline.settle(pipeline.record_confirmed(in_flight, now));
    }

    /// Settles a message if all its copies are confirmed. Otherwise it waits for its copies beside a request.
    fn settle_or_queue(&mut self, mut message: Unconfirmed, pipeline: &Pipeline) {
        if message.copies.is_empty() {
            self.end_beside(message.number);
            pipeline.settle(message.original);
        } else {
            self.signals.beside_waits.store(true, Ordering::Relaxed);
            // The others are confirmed.
            let left = message.copies.iter().map(|(copy, _)| copy);
            let weight = pipeline.copies.hold(&message.original.message, left);
            message.original.weight = weight;
            self.beside.insert(message.number, Some(message));
        }
    }

    /// The signals to a task that waits.
    fn new_wait(&mut self) -> Signals {
        self.signals.earlier_failed = CancellationToken::new();
        self.signals.clone()
    }

    /// Settles messages that have not been sent. Copies beside a request are still sent. Returns whether there were any
    /// messages.
    fn settle_waiting(
        &mut self,
        pipeline: &Pipeline,
        is_unwanted: impl Fn(&Received) -> bool,
    ) -> bool {
        let unwanted = self.order.remove_waiting(is_unwanted);
        let is_any = !unwanted.is_empty();
        for (number, received) in unwanted {
            let Received {
                copies, original, ..
            } = received;
            // Nobody may send them later: this process sends none if it reads the request again after its requester got
            // an answer.
            let is_kept = |copy: &Outgoing| copy.is_beside && pipeline.is_wanted(copy);
            let (beside, others): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_kept);
            for copy in &others {
                pipeline.unwanted(copy, &original);
            }
            let copies = beside.into_iter().map(|copy| (copy, None)).collect();
            let message = Unconfirmed {
                number,
                copies,
                original,
            };
            self.settle_or_queue(message, pipeline);
        }
        is_any
    }

    /// Takes the messages in flight that have failed by now.
    fn failed<'p>(&mut self, pipeline: &'p Pipeline) -> Vec<BoxFuture<'p, Known>> {
        let failures = failed_confirmations();
        // The upper bound of those that have failed since the last look.
        let mut left = failures - std::mem::replace(&mut self.failures, failures);
        let (mut failed, mut index) = (Vec::new(), 0);
        while left > 0
            && let Some(in_flight) = self.in_flight.get_mut(index)
        {
            if in_flight.has_failed() {
                let in_flight = self.in_flight.remove(index);
                failed.extend(in_flight.map(|in_flight| self.decide(in_flight, pipeline)));
                left -= 1;
            } else {
                index += 1;
            }
        }
        failed
    }

    /// Waits for the other copies of a message with a failed copy. If that copy has to be sent again, nothing is sent
    /// before it, not even by a task that waits.
    fn decide<'p>(&mut self, in_flight: InFlight, pipeline: &'p Pipeline) -> BoxFuture<'p, Known> {
        if in_flight.lacks_beside() {
            self.signals.beside_waits.store(true, Ordering::Relaxed);
        }
        if pipeline.holds(&in_flight) {
            self.order.hold();
            self.signals.earlier_failed.cancel();
        }
        pipeline.confirm(in_flight).map(Known::Decided).boxed()
    }

    /// The calls of its messages that are not in flight.
    fn calls(&self) -> impl Iterator<Item = CallId> {
        let (failed, waiting) = self.order.left();
        let failed = failed.chain(self.beside.values().flatten());
        let failed = failed.map(|failed| &failed.original);
        let originals = failed.chain(waiting.map(|received| &received.original));
        let beside = self.sending_beside.iter();
        let beside = beside.flat_map(|sending| &*sending.calls);
        let sending = self.sending.iter().chain(beside);
        sending.chain(originals.flat_map(Original::calls)).copied()
    }

    /// The copies of a message were handed to their buses. If a bus refused one of them, the message is decided at
    /// once, so that its dead letter precedes later messages.
    fn sent<'p>(
        &mut self,
        in_flight: InFlight,
        pipeline: &'p Pipeline,
    ) -> Option<BoxFuture<'p, Known>> {
        self.order.sent(pipeline.holds(&in_flight));
        if in_flight.has_beside() {
            self.beside.entry(in_flight.number).or_insert(None);
        }
        if in_flight.lacks_beside() {
            self.signals.beside_waits.store(true, Ordering::Relaxed);
        }
        if !in_flight.has_failed_copy() {
            self.in_flight.push_back(in_flight);
            return None;
        }
        let mut deciding = pipeline.confirm(in_flight).map(Known::Decided).boxed();
        // Without this, tokio could make the future yield, and the dead letter would come later.
        Some(match unconstrained(&mut deciding).now_or_never() {
            Some(decided) => std::future::ready(decided).boxed(),
            None => deciding,
        })
    }
}

// === impl Held ===

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
