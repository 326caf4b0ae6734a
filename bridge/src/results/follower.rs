//! Reads the answers to calls of other replicas, and takes over the calls of replicas that have stopped.
//!
//! ```text
//! reply address of another replica ──> Heard, by call ── nothing for a while ──> log: parts ──> who asks again
//!                                                                           └──> its task
//! ```
//!
//! It follows only calls whose answer can still be requested: calls of tasks, calls with an idempotency key, and calls
//! of MCP clients that can resume a stream. The replica of a call gets some time to receive an answer itself. If both
//! receive it, nothing is duplicated: each part has a number, and the folds of tasks and of answers apply each number
//! once. The number of a part of an E2A answer with a missing record depends on how long a replica waits for that
//! record, so a follower takes over no answer in which one was missing before. Source: docs/design.md §2.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Limits, Text};
use a2abus_transports::{
    Consumer, Delivery, Outcome, Transport as _, TransportError, TransportErrorKind,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::fold::{Author, OpenedCall, RecordedPart};
use super::{RENEWAL, Results};
use crate::bus::Bus;
use crate::calls::answer_unit::AnswerUnit;
use crate::calls::callid::{CallId, ReplyId, ReplyToken};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::pending::{CallRequest, Fingerprint, Form, Progress, Questions};
use crate::calls::reply::{ReplyChannel, is_forwarded_within};
use crate::calls::reply_reader::{RECOUNT_EVERY, watch_refusals};
use crate::calls::reply_source::AnswerSource;
use crate::calls::{AnswerOutcome, CallError, Calls, GAP_TIMEOUT, Part, render};
use crate::clock;
use crate::http::sse::UNTIL_STREAM;
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::restart::{CLOSE, not_too_soon, start};
use crate::state::{Cursor, StateError, UNATTENDED};
use crate::tasks::Tasks;

/// The follower on one bus.
pub(crate) struct Follower {
    pub(crate) channel: ReplyChannel,
    pub(crate) bus: Bus,
    pub(crate) calls: Arc<Calls>,
    pub(crate) results: Arc<Results>,
    /// The tasks of A2A callers, if A2A is enabled.
    pub(crate) tasks: Option<Arc<Tasks>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) adopted: LogLimit,
    pub(crate) lost: LogLimit,
    pub(crate) rejected: LogLimit,
}

/// The parts of the answer to one call that have been read.
#[derive(Debug)]
struct AnswerBuffer {
    /// Messages that are not rendered yet because the record of their call has not arrived.
    messages: Vec<BufferedMessage>,
    request_of: Option<CallRequest>,
    progress: Progress,
    /// How many parts precede the buffered ones.
    before: usize,
    parts: Vec<Part>,
    bytes: usize,
    first: Instant,
    last: Instant,
    /// How many parts the task has, and when it last got one or had all parts received so far.
    in_task: Option<usize>,
    task_went_on: Instant,
    /// How many parts are recorded or need no record.
    recorded: usize,
    /// Whether parts are being written to the log.
    is_being_recorded: bool,
    /// How many parts had arrived when the claim of the call was last renewed, and when that was.
    renewed: (usize, Instant),
    /// Whether the answer was taken over.
    is_adopted: bool,
    /// Why the last message cannot be used, until the error in its place is recorded.
    unusable: Option<Text>,
    /// Whether parts were dropped, which makes later parts useless.
    is_incomplete: bool,
}

/// A message that is not rendered yet.
#[derive(Debug)]
struct BufferedMessage {
    arrived: Instant,
    token: Option<ReplyToken>,
    /// Where it was first read, if it was forwarded.
    source: Option<AnswerSource>,
    unit: AnswerUnit,
}

/// The state of one subscription.
struct SubscriptionState {
    buffers: HashMap<CallId, AnswerBuffer>,
    /// Its approximate size in memory.
    bytes: usize,
    /// The end of the log when the subscription began. The answers to calls recorded later are read from their first
    /// part.
    began: Cursor,
}

/// The next action for one call.
enum DueAction {
    Nothing,
    /// Stop following it.
    End,
    /// Record its parts.
    Record(AdoptedCall),
    /// Renew the claim of this key.
    Renew(Text),
}

/// A call that is taken over.
#[derive(Clone)]
struct AdoptedCall {
    call: CallId,
    opened: Arc<OpenedCall>,
    has_task: bool,
}

/// The result of writing parts to the log.
struct RecordingResult {
    of: AdoptedCall,
    /// How many are stored.
    count: usize,
    /// Whether the last of them is an error, in place of a part that the log refuses. It ends the answer.
    has_loss: bool,
    /// Why the others are not.
    error: Option<StateError>,
}

/// How long the replica of a call has to receive an answer itself.
const GRACE: Duration = Duration::from_secs(3);
/// How much the clocks of replicas may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(2);
/// How long E2A records may wait for a missing one, until the replica of the call may go on without it (it waits
/// longer).
const MISSING: Duration = Duration::from_secs(1);
/// How long to wait for the record of a call after its answer.
const UNKNOWN: Duration = Duration::from_secs(10);
/// How long to wait for it when there is no room. It is written before the request is sent.
const RECORDED: Duration = Duration::from_secs(1);
/// How often the buffered answers are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum number of bytes of all buffered answers.
const MAX_BYTES: usize = 64 << 20;
/// How many bytes to free when there are more. To find the oldest answers takes a pass over all of them.
const ROOM: usize = MAX_BYTES / 8;
/// The approximate overhead of a buffered message.
const MESSAGE_BYTES: usize = 512;
/// Maximum number of calls whose parts are recorded concurrently.
const MAX_CONCURRENT: usize = 64;

// === impl Follower ===

impl Follower {
    /// The readiness condition of this follower.
    pub(crate) fn condition(&self) -> String {
        format!("answers to other replicas on {}", self.bus.name.text())
    }

    pub(crate) async fn run(self, readiness: Arc<Readiness>, stop: CancellationToken) {
        let condition = self.condition();
        while !stop.is_cancelled() {
            let Some((mut consumer, partitions)) =
                start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            match self.results.end().await {
                Ok(end) => {
                    readiness.set(condition.as_str(), Ok(()));
                    // This replica can do its own work without it.
                    readiness.optional(condition.as_str());
                    let report = |met| readiness.set(condition.as_str(), met);
                    let refusals = watch_refusals(consumer.share(), report);
                    let reading = self.read_all((&mut consumer, partitions), end, &stop);
                    tokio::select! {
                        never = refusals => match never {},
                        () = reading => {}
                    }
                }
                Err(error) => {
                    tracing::warn!(transport = %self.bus.name.text(), %error, "answers to calls of other replicas are not read yet");
                }
            }
            if let Err(error) = consumer.close(CLOSE).await {
                tracing::warn!(transport = %self.bus.name.text(), %error, "the reader of answers to other replicas did not close cleanly");
            }
            readiness.set(condition.as_str(), Err("the subscription ended".to_owned()));
            not_too_soon(began, &stop).await;
        }
    }

    /// A subscription, and how many partitions the reply topic had before it began.
    async fn subscribe(&self) -> Result<(Consumer, Option<u32>), TransportError> {
        let mut count = None;
        if let Some((topic, partitions)) = self.channel.required_topic() {
            self.bus.transport.ensure_topic(topic, partitions).await?;
            count = Some(self.bus.transport.partitions(topic).await?);
        }
        let subscription = self
            .calls
            .channels()
            .followed(&self.channel)
            .map_err(|error| {
                TransportError::new(TransportErrorKind::BadConfig, error.to_string())
            })?;
        let consumer = self.bus.transport.subscribe(subscription).await?;
        Ok((consumer, count))
    }

    /// Waits until the reply topic has another number of partitions. A subscription reads only those that existed when
    /// it began.
    async fn until_resized(&self, partitions: Option<u32>) {
        match (self.channel.required_topic(), partitions) {
            (Some((topic, _)), Some(partitions)) => {
                until_other(partitions, || self.bus.transport.partitions(topic)).await;
            }
            _ => std::future::pending().await,
        }
    }

    async fn read_all(
        &self,
        (consumer, partitions): (&mut Consumer, Option<u32>),
        began: Cursor,
        stop: &CancellationToken,
    ) {
        let mut reading = SubscriptionState {
            buffers: HashMap::new(),
            bytes: 0,
            began,
        };
        // After a lost part, later parts would get wrong numbers.
        let mut lost = pin!(consumer.lost());
        let mut resized = pin!(self.until_resized(partitions));
        // A slow log must not stop the reading, because unread messages could be lost.
        let mut recording = FuturesUnordered::new();
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut lost => return self.missed(&reading),
                () = stop.cancelled() => return,
                // Until the next subscription, parts may arrive in a new partition.
                () = &mut resized => return self.missed(&reading),
                _ = checks.tick() => {
                    let room = MAX_CONCURRENT - recording.len();
                    recording.extend(self.check_calls(&mut reading, room));
                }
                Some(recorded) = recording.next() => self.recorded(&mut reading, recorded),
                delivery = consumer.recv() => match delivery {
                    Some(delivery) => self.take(&mut reading, delivery),
                    None => return,
                },
            }
        }
    }

    /// Drops all answers, because parts of them may be lost.
    fn missed(&self, reading: &SubscriptionState) {
        let answers = reading.buffers.len();
        self.metrics.followed_lost.inc_by(answers as u64);
        if answers > 0
            && let Some(suppressed) = self.lost.allow()
        {
            tracing::warn!(transport = %self.bus.name.text(), answers, suppressed, "answers to calls of other replicas are no longer followed: parts of them may be lost");
        }
    }

    /// Buffers a message that answers calls of other replicas.
    fn take(&self, reading: &mut SubscriptionState, delivery: Delivery) {
        let rules = self.calls.rules();
        let bus = self.channel.bus;
        let at = self.calls.at_reply_address(&delivery, &rules, bus);
        let binding = self.bus.transport.binding();
        self.calls.no_responders(at, binding);
        let is_read_here = self.calls.channels().is_read_here(bus, at.message);
        let answers = match is_read_here || is_forwarded_within(at.message) {
            true => Vec::new(),
            false => self.calls.to_others(at, binding),
        };
        for (ReplyId { call, token }, unit) in answers {
            let buffer = reading.buffers.entry(call).or_default();
            if !buffer.is_incomplete {
                let source = AnswerSource::of_forwarded(at.message);
                reading.bytes += buffer.take(token, source, unit);
            }
        }
        if let Err(error) = delivery.acknowledger.settle(Outcome::Settled) {
            tracing::debug!(%error, "an answer to another replica was not acknowledged");
        }
        if reading.bytes > MAX_BYTES {
            self.make_room(reading);
        }
    }

    /// Drops the oldest answers, starting with those of unknown calls.
    fn make_room(&self, reading: &mut SubscriptionState) {
        let (now, excess) = (Instant::now(), reading.excess(MAX_BYTES - ROOM));
        for call in &excess {
            // Somebody has made up such a call. Of others, later parts must not count as the first ones.
            let is_made_up = |buffer: &AnswerBuffer| {
                now >= buffer.first + RECORDED && self.results.opened(*call).is_none()
            };
            let Some(buffer) = reading.buffers.get_mut(call) else {
                continue;
            };
            reading.bytes = reading.bytes.saturating_sub(buffer.bytes);
            if is_made_up(buffer) {
                reading.buffers.remove(call);
            } else {
                buffer.discard();
            }
        }
        let answers = excess.len();
        self.metrics.followed_lost.inc_by(answers as u64);
        if let Some(suppressed) = self.lost.allow() {
            tracing::warn!(
                answers,
                suppressed,
                "answers to calls of other replicas are no longer followed: more than {MAX_BYTES} bytes of answers are buffered"
            );
        }
    }

    /// Performs the due action of each call. Returns what to record, for a limited number of calls.
    fn check_calls<'s>(
        &'s self,
        reading: &mut SubscriptionState,
        room: usize,
    ) -> Vec<impl Future<Output = RecordingResult> + use<'s>> {
        let (now, began) = (Instant::now(), &reading.began);
        let mut to_record = Vec::new();
        reading.buffers.retain(|call, buffer| {
            match self.due(*call, buffer, (now, began)) {
                DueAction::Nothing => {}
                DueAction::End => return false,
                DueAction::Record(of) if to_record.len() < room && !buffer.is_being_recorded => {
                    buffer.is_being_recorded = true;
                    to_record.push(self.record(of, buffer.recorded, buffer.unrecorded()));
                }
                DueAction::Record(_) => {}
                DueAction::Renew(key) => self.results.renew_for(&key, *call),
            }
            true
        });
        reading.bytes = reading.buffers.values().map(|buffer| buffer.bytes).sum();
        to_record
    }

    fn due(
        &self,
        call: CallId,
        buffer: &mut AnswerBuffer,
        (now, began): (Instant, &Cursor),
    ) -> DueAction {
        let Some((opened, at)) = self.results.opened(call) else {
            return DueAction::end_if(now >= buffer.last + UNKNOWN);
        };
        if !self.follows(call, &opened, began.has_passed(at)) {
            return DueAction::End;
        }
        self.render(call, buffer, &opened);
        let is_late = opened.time_left().is_zero();
        if buffer.is_incomplete {
            return DueAction::end_if(is_late);
        }
        let key = opened.key.clone();
        let key = key.filter(|key| !self.results.is_settled(key));
        let has_key = key.is_some();
        let in_task = self.in_task(call, &opened, buffer.last);
        if opened.key.is_some() && !has_key && in_task.is_none() {
            // This replica may not have read its task yet.
            let is_over = opened.task.is_none() || now >= buffer.last + UNKNOWN;
            return DueAction::end_if(is_over);
        }
        if !has_key {
            buffer.forget(in_task.unwrap_or_default());
        }
        let (is_whole, count) = (buffer.is_whole(), buffer.count());
        let is_taken = in_task.is_some_and(|in_task| in_task >= count);
        if is_taken || in_task != buffer.in_task {
            buffer.in_task = in_task;
            buffer.task_went_on = now;
        }
        if is_taken && !(is_whole && has_key) {
            return DueAction::end_if(is_whole || is_late);
        }
        // The parts are not in the log yet: only a renewal tells other replicas that the agent is still working.
        if let Some(key) = key.filter(|_| in_task.is_none() && buffer.needs_renewal(now)) {
            return DueAction::Renew(key);
        }
        // For a task, a stopped replica is noticed while the agent is still sending. A stored answer is only checked
        // once it is complete.
        let since = in_task.map_or(buffer.last, |_| buffer.task_went_on);
        if now < since + GRACE && !buffer.is_adopted {
            return DueAction::Nothing;
        }
        let can_be_asked_for = in_task.is_some() || (has_key && is_whole);
        let is_recorded = buffer.recorded == count && buffer.is_adopted;
        if can_be_asked_for && count > 0 && !is_recorded {
            return DueAction::Record(AdoptedCall {
                call,
                opened,
                has_task: in_task.is_some(),
            });
        }
        DueAction::end_if(is_whole || is_late)
    }

    /// Whether to follow a call. `is_of_before` is whether it was recorded before this replica started to read.
    fn follows(&self, call: CallId, opened: &OpenedCall, is_of_before: bool) -> bool {
        if is_of_before {
            // Some of its parts may have arrived before this replica began to read, and the others would get their
            // numbers.
            return !opened.has_numbered_parts();
        }
        !self.calls.channels().is_ours(call)
    }

    /// Renders messages into parts, like the replica of the call.
    fn render(&self, call: CallId, buffer: &mut AnswerBuffer, opened: &OpenedCall) {
        let limits = self.calls.rules().limits;
        buffer
            .request_of
            .get_or_insert_with(|| request_of(call, opened));
        let mut has_gap = false;
        for message in std::mem::take(&mut buffer.messages) {
            let BufferedMessage {
                arrived,
                token,
                source,
                unit,
            } = message;
            if let Err(why) = self
                .calls
                .tokens()
                .verify_hashed(opened.token.as_deref(), token)
            {
                buffer.bytes = buffer.bytes.saturating_sub(bytes_of(&unit));
                self.calls
                    .count_reply(AnswerOutcome::Rejected(call, why).outcome());
                if let Some(suppressed) = self.rejected.allow() {
                    tracing::warn!(%call, why = why.message(), suppressed, "an answer to a call of another replica was rejected");
                }
                continue;
            }
            // The replica of the call drops it too.
            let sources = &mut buffer.progress.sources;
            if source.is_some_and(|source| !sources.note(source)) {
                buffer.bytes = buffer.bytes.saturating_sub(bytes_of(&unit));
                continue;
            }
            has_gap |= buffer.render(&unit, &limits, arrived);
        }
        has_gap |= buffer.note_gap(Instant::now());
        if !has_gap {
            return;
        }
        buffer.discard();
        self.metrics.followed_lost.inc();
        if let Some(suppressed) = self.lost.allow() {
            tracing::warn!(%call, suppressed, "an E2A record is missing in the answer to a call of another replica: this replica can no longer take it over");
        }
    }

    /// How many parts of the answer are available to its caller, in the task or in the log; `None` if the caller cannot
    /// request any.
    fn in_task(&self, call: CallId, opened: &OpenedCall, last: Instant) -> Option<usize> {
        if opened.session.is_some() {
            let parts = self.results.parts_of(call);
            return (parts > 0 || knows_event_id(opened, last)).then_some(parts);
        }
        let (tasks, task) = (self.tasks.as_ref()?, opened.task.as_ref()?);
        // The clocks of replicas differ, so a call that began a moment later counts as forgotten too.
        let began = opened
            .began
            .saturating_sub(clock::whole_milliseconds(CLOCK_SKEW));
        tasks.parts_from(task, &call.to_string(), began)
    }

    /// Records parts, starting with this number. An error takes the place of a part that the log refuses for good, for
    /// example because it is too large.
    async fn record(
        &self,
        of: AdoptedCall,
        first: usize,
        parts: Vec<RecordedPart>,
    ) -> RecordingResult {
        let mut result = RecordingResult {
            of,
            count: 0,
            has_loss: false,
            error: None,
        };
        for part in parts {
            let (call, index) = (result.of.call, first + result.count);
            let recorded = self.results.record_part(call, index, part, UNATTENDED);
            let mut recorded = recorded.await;
            if let Err(error) = &recorded
                && !error.is_transient()
            {
                self.note_loss(call, error);
                let loss = loss_of(&result.of.opened);
                let replaced = self.results.record_part(call, index, loss, UNATTENDED);
                recorded = replaced.await;
                result.has_loss = recorded.is_ok();
            }
            result.count += usize::from(recorded.is_ok());
            result.error = recorded.err();
            if result.has_loss || result.error.is_some() {
                break;
            }
        }
        result
    }

    fn note_loss(&self, call: CallId, error: &StateError) {
        self.metrics.followed_lost.inc();
        if let Some(suppressed) = self.lost.allow() {
            tracing::warn!(%call, %error, suppressed, "a part of the answer to a call of another replica cannot be recorded: its caller gets an error");
        }
    }

    /// Reports a message that cannot be used once the error in its place is recorded, as the replica of the call does.
    fn note_unusable(&self, (call, opened): (CallId, &OpenedCall), buffer: &mut AnswerBuffer) {
        if buffer.recorded == buffer.count()
            && let Some(why) = buffer.unusable.take()
        {
            let agent = Some(opened.agent.as_str());
            self.calls.log_unusable((call, agent), &why);
        }
    }

    /// Processes the result of recording, and drives the task of the call.
    fn recorded(
        &self,
        reading: &mut SubscriptionState,
        RecordingResult {
            of,
            count,
            has_loss,
            error,
        }: RecordingResult,
    ) {
        let AdoptedCall {
            call,
            opened,
            has_task,
        } = of;
        let Some(buffer) = reading
            .buffers
            .get_mut(&call)
            .filter(|buffer| !buffer.is_incomplete)
        else {
            return;
        };
        buffer.is_being_recorded = false;
        buffer.recorded += count;
        self.note_unusable((call, &opened), buffer);
        if let Some(error) = error {
            let tries_again = error.is_transient() && !opened.time_left().is_zero();
            if let Some(suppressed) = self.lost.allow() {
                tracing::warn!(%call, %error, tries_again, suppressed, "the answer to a call of a replica that has stopped was not recorded");
            }
            if opened.time_left().is_zero() {
                reading.buffers.remove(&call);
            } else if !tries_again {
                buffer.discard();
            }
            return;
        }
        let (before, was_adopted) = (buffer.before, buffer.is_adopted);
        buffer.is_adopted = true;
        if has_loss {
            buffer.discard();
        }
        if was_adopted {
            return;
        }
        self.metrics.followed.inc();
        let (agent, task) = (opened.agent.as_str(), opened.task.as_ref());
        if let Some(suppressed) = self.adopted.allow() {
            tracing::warn!(%call, agent, task = task.map(Text::as_str), suppressed, "the replica that made a call does not receive its answer: this replica takes it over");
        }
        if let (true, Some(task), Some(tasks)) = (has_task, task, &self.tasks) {
            let answer = self.results.resume(&self.calls, call, before, None);
            tasks.drive(task.clone(), answer);
        }
    }
}

// === impl SubscriptionState ===

impl SubscriptionState {
    /// The answers to drop, so that at most this many bytes are left: the oldest, starting with those of unknown calls.
    fn excess(&self, max_bytes: usize) -> Vec<CallId> {
        let held = self.buffers.iter().filter(|(_, buffer)| buffer.bytes > 0);
        let mut oldest: Vec<_> = held.collect();
        oldest.sort_unstable_by_key(|(_, buffer)| (buffer.request_of.is_some(), buffer.first));
        let mut left = self.bytes;
        let excess = oldest.into_iter().take_while(|(_, buffer)| {
            let is_excess = left > max_bytes;
            left = left.saturating_sub(buffer.bytes);
            is_excess
        });
        excess.map(|(call, _)| *call).collect()
    }
}

// === impl DueAction ===

impl DueAction {
    fn end_if(is_over: bool) -> Self {
        if is_over { Self::End } else { Self::Nothing }
    }
}

// === impl AnswerBuffer ===

impl Default for AnswerBuffer {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            messages: Vec::new(),
            request_of: None,
            progress: Progress::default(),
            before: 0,
            parts: Vec::new(),
            bytes: 0,
            first: now,
            last: now,
            in_task: None,
            task_went_on: now,
            recorded: 0,
            is_being_recorded: false,
            renewed: (0, now),
            is_adopted: false,
            unusable: None,
            is_incomplete: false,
        }
    }
}

impl AnswerBuffer {
    /// Buffers a message and returns its size.
    fn take(
        &mut self,
        token: Option<ReplyToken>,
        source: Option<AnswerSource>,
        unit: AnswerUnit,
    ) -> usize {
        let bytes = bytes_of(&unit);
        self.bytes += bytes;
        self.last = Instant::now();
        self.messages.push(BufferedMessage {
            arrived: self.last,
            token,
            source,
            unit,
        });
        bytes
    }

    /// Renders a message into parts, as the replica of the call did when it arrived. Returns whether a record had been
    /// missing for too long by then, as [`AnswerBuffer::note_gap`] does.
    fn render(&mut self, unit: &AnswerUnit, limits: &Limits, arrived: Instant) -> bool {
        let has_gap = self.note_gap(arrived);
        let is_usable = !self.is_whole() && !unit.is_request();
        let request = self.request_of.as_ref().filter(|_| is_usable);
        let fold = &mut self.progress.fold;
        let parts = request.map(|request| render::parts_of(request, fold, unit, limits));
        match parts {
            // Nor does the replica of the call count what it is asked.
            Some(Ok(parts)) => {
                let parts = parts.into_iter().filter(|part| !part.is_question);
                self.parts.extend(parts);
            }
            Some(Err(error)) => {
                self.bytes = self.bytes.saturating_sub(unit.raw.len());
                self.end_with(&error);
            }
            None => self.bytes = self.bytes.saturating_sub(bytes_of(unit)),
        }
        self.progress.note_missing(arrived.into_std());
        has_gap
    }

    /// Ends the answer with an error in place of a message that cannot be used, as the replica of the call does.
    fn end_with(&mut self, error: &CallError) {
        let form = self.request_of.as_ref().map(|request| &request.form);
        let Some(Form::JsonRpc { id, .. }) = form else {
            return;
        };
        let recipient = Recipient::new(id.clone(), Dialect::JsonRpc);
        let failure = Failure::call(error).render(&recipient);
        self.parts.push(Part::new(failure, true));
        // Nothing follows it.
        self.progress = Progress::default();
        self.unusable = Some(match error {
            CallError::BadAnswer(why) => why.clone(),
            error => error.to_string().into(),
        });
    }

    /// The parts that are not recorded yet.
    fn unrecorded(&self) -> Vec<RecordedPart> {
        let parts = self.parts.iter().skip(self.recorded - self.before);
        let recorded = parts.map(|part| {
            let by = match part.last && self.unusable.is_some() {
                true => Author::Bridge,
                false => Author::Agent,
            };
            RecordedPart::new(&part.body, part.last, by)
        });
        recorded.collect()
    }

    /// Returns whether an E2A record has been missing for so long that the replica of the call may have continued
    /// without it: then the parts have other numbers there. Once this replica takes the answer over, it goes on without
    /// the record itself, after the same time as the replica of the call.
    fn note_gap(&mut self, now: Instant) -> bool {
        let Some((_, since)) = self.progress.missing else {
            return false;
        };
        let waited = now.saturating_duration_since(since.into());
        if !self.is_adopted && !self.is_being_recorded {
            return waited >= MISSING;
        }
        if waited >= GAP_TIMEOUT
            && let Some(request) = &self.request_of
        {
            self.parts
                .extend(render::released(request, &mut self.progress));
            self.progress.note_missing(now.into_std());
        }
        false
    }

    /// How many parts have arrived.
    fn count(&self) -> usize {
        self.before + self.parts.len()
    }

    fn is_whole(&self) -> bool {
        self.parts.last().is_some_and(|part| part.last)
    }

    /// Whether new parts have arrived and the last renewal was at least [`RENEWAL`] ago. If so, the claim counts as
    /// renewed now.
    fn needs_renewal(&mut self, now: Instant) -> bool {
        let (count, at) = self.renewed;
        let needs = self.count() > count && now >= at + RENEWAL && !self.is_whole();
        if needs {
            self.renewed = (self.count(), now);
        }
        needs
    }

    /// Drops the first `consumed` parts except the last part, because they are stored.
    fn forget(&mut self, consumed: usize) {
        let most = self.parts.len().saturating_sub(1);
        let consumed = consumed.saturating_sub(self.before).min(most);
        if self.is_adopted || self.is_being_recorded || consumed == 0 {
            return;
        }
        for part in self.parts.drain(..consumed) {
            self.bytes = self.bytes.saturating_sub(part.body.len() + MESSAGE_BYTES);
        }
        self.before += consumed;
        self.recorded = self.recorded.max(self.before);
    }

    /// Drops everything buffered, and everything that arrives later.
    fn discard(&mut self) {
        self.is_incomplete = true;
        self.progress = Progress::default();
        self.messages = Vec::new();
        self.parts = Vec::new();
        self.unusable = None;
        self.bytes = 0;
    }
}

/// Whether the client of an MCP call of which no part is recorded may know an event id, with which it can come back:
/// its stream began because the agent had been silent for a while, before its answer arrived at this moment.
fn knows_event_id(opened: &OpenedCall, answered: Instant) -> bool {
    let begun = clock::milliseconds(clock::now()).saturating_sub(opened.began);
    let silence = Duration::from_millis(begun).saturating_sub(answered.elapsed());
    silence + CLOCK_SKEW >= UNTIL_STREAM
}

/// The approximate size of a buffered message.
fn bytes_of(unit: &AnswerUnit) -> usize {
    unit.raw.len() + MESSAGE_BYTES
}

/// What a caller gets in place of a part that the log refuses.
fn loss_of(opened: &OpenedCall) -> RecordedPart {
    let message = "a part of the answer could not be recorded (log `results`)";
    let recipient = Recipient::new(opened.id.clone(), Dialect::JsonRpc);
    let body = Failure::new(Reason::AnswerLost, message).render(&recipient);
    RecordedPart::new(&body, true, Author::Bridge)
}

fn request_of(call: CallId, opened: &OpenedCall) -> CallRequest {
    let form = Form::JsonRpc {
        id: opened.id.clone(),
        progress: opened.progress.clone(),
        accepts_parts: opened.streamed,
        questions: Questions::Refused,
    };
    let id = ReplyId { call, token: None };
    let agent = opened.agent.clone();
    CallRequest::new(id, form, opened.streamed, agent, Fingerprint::none())
}

/// Waits until a count is another one.
async fn until_other<F: Future<Output = Result<u32, TransportError>>>(
    known: u32,
    count: impl Fn() -> F,
) {
    loop {
        tokio::time::sleep(RECOUNT_EVERY).await;
        // On an error, the number is unknown: try again later.
        if count().await.is_ok_and(|count| count != known) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
