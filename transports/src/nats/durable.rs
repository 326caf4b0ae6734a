//! Reading a durable consumer: pulls within the budget, deliveries, acknowledgements.
//!
//! ```text
//! budget --reserve--> pull --> server --messages--> outstanding --Delivery--> Consumer
//!    ^                                                  |  ^                      |
//!    +------------ permits come back <------------------+  +------- Verdict <-----+
//!                                    \-- +WPI at half of the ack wait, +ACK, -NAK --> server
//! ```
//! One task owns all of it. A verdict carries the right to have one more message out until it is processed, so the
//! bounded queue of verdicts always has room and settling never waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::{Client, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::ReadyChunks;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::consumer::{Begin, ConsumerRef, Limits};
use super::core::{inbound, lane};
use super::jetstream::{nanoseconds, position};
use super::link::{Link, jitter};
use crate::delivery::{Acknowledger, Delivery, Outcome, Settle};
use crate::error::{TransportError, TransportErrorKind};

/// Messages one pull asks for, at most.
const BATCH: u32 = 256;

/// How long a pull waits on the server for messages.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// How often the server shows that a waiting pull is alive; two that do not come end it.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// How long an acknowledgement waits for room in the client's queue; one that is lost means a redelivery.
const ACK_DEADLINE: Duration = Duration::from_secs(5);

/// Pauses before a message that was abandoned is delivered again, and before a lost consumer is looked for again.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_REPAIR_PAUSE: Duration = Duration::from_secs(10);

/// How long messages that go back to the server are collected, so that they go back in their order.
const RETURN_AFTER: Duration = Duration::from_millis(500);

/// How long the server takes to notice that nobody listens for our last pull any more.
const FORGET_PULL: Duration = Duration::from_millis(20);

/// Messages taken from the client at once.
const CHUNK: usize = 64;

/// Reads one durable consumer for one subscription.
pub(super) struct DurableReader {
    client: Client,
    link: Arc<Link>,
    consumer: ConsumerRef,
    limits: Limits,
    /// Answers to pulls come on `{inbox}.{number of the pull}`.
    inbox: String,
    messages: ReadyChunks<Subscriber>,
    budget: Budget,
    pull: Option<Pull>,
    pulls: u64,
    /// The next message is larger than what was free: wait for the whole budget.
    oversize: bool,
    repair: Option<BoxFuture<'static, Limits>>,
    outstanding: HashMap<u64, Outstanding>,
    /// When to tell the server that a delivery is still being worked on; all intervals are equal, so in order.
    progress: VecDeque<(Instant, u64, u64)>,
    /// What goes back to the server, in order, because this subscription takes nothing more.
    returned: BTreeMap<u64, Subject>,
    return_at: Option<Instant>,
    /// The sequence after the last message received.
    next_sequence: Option<u64>,
    /// Distinguishes a delivery from an earlier one of the same sequence.
    deliveries_made: u64,
    deliveries: Option<mpsc::Sender<Delivery>>,
    verdicts: mpsc::Receiver<Verdict>,
    verdict_sender: mpsc::Sender<Verdict>,
}

/// Bytes and messages that may be out.
#[derive(Debug, Clone)]
struct Budget {
    bytes: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    all_bytes: u32,
    all_messages: u32,
}

/// A request for messages that the server has, and the part of the budget that is kept for them.
#[derive(Debug)]
struct Pull {
    number: u64,
    messages: OwnedSemaphorePermit,
    bytes: OwnedSemaphorePermit,
    received: u32,
    /// When something must have come from the server.
    watchdog: Instant,
}

/// A delivery that is out.
#[derive(Debug)]
struct Outstanding {
    delivery: u64,
    reply: Subject,
}

/// What became of a delivery, and the right to have one more out.
#[derive(Debug)]
struct Verdict {
    sequence: u64,
    delivery: u64,
    attempt: u32,
    outcome: Outcome,
    _message: OwnedSemaphorePermit,
}

/// Settles one delivery by telling the task that reads.
struct ToReader {
    sequence: u64,
    delivery: u64,
    attempt: u32,
    message: OwnedSemaphorePermit,
    verdicts: mpsc::Sender<Verdict>,
}

/// What the server says instead of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Alive,
    /// The pull is over; ask again.
    PullOver,
    /// The next message is larger than the pull allows.
    TooLarge,
    /// The consumer is gone, or cannot be read so.
    ConsumerLost,
}

/// Whether the subscription goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reading,
    /// Nobody takes deliveries any more; those that are out may still settle.
    Quiet,
    /// Closed: as `Quiet`, until then.
    Draining(Instant),
}

// === impl DurableReader ===

impl DurableReader {
    /// Finds or creates the consumer and subscribes to the inbox; nothing is pulled before [`DurableReader::run`].
    pub(super) async fn open(
        client: Client,
        link: Arc<Link>,
        consumer: ConsumerRef,
        budget_bytes: usize,
        deliveries: mpsc::Sender<Delivery>,
    ) -> Result<Self, TransportError> {
        let limits = consumer.ensure(Begin::First).await?;
        let inbox = client.new_inbox();
        let messages = client
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| {
                TransportError::new(TransportErrorKind::Closed, "subscribe to an inbox")
                    .caused_by(error)
            })?;
        let budget = Budget::new(budget_bytes, consumer.max_ack_pending);
        let (verdict_sender, verdicts) = mpsc::channel(budget.all_messages as usize);
        Ok(Self {
            client,
            link,
            consumer,
            limits,
            inbox,
            messages: messages.ready_chunks(CHUNK),
            budget,
            pull: None,
            pulls: 0,
            oversize: false,
            repair: None,
            outstanding: HashMap::new(),
            progress: VecDeque::new(),
            returned: BTreeMap::new(),
            return_at: None,
            next_sequence: None,
            deliveries_made: 0,
            deliveries: Some(deliveries),
            verdicts,
            verdict_sender,
        })
    }

    /// Until it is stopped and what is out has settled, or the time for that is over. Without a time what is out is
    /// given back at once.
    pub(super) async fn run(
        mut self,
        stop: CancellationToken,
        drain_until: Arc<OnceLock<std::time::Instant>>,
    ) {
        let mut connection = self.link.connection();
        let mut stage = Stage::Reading;
        let deliveries = self.deliveries.take();
        let Some(deliveries) = deliveries else { return };
        let mut verdicts = Vec::with_capacity(CHUNK);
        loop {
            let up = connection.borrow_and_update().up;
            let reading = stage == Stage::Reading;
            if let Stage::Draining(until) = stage
                && (self.outstanding.is_empty() || Instant::now() >= until)
            {
                break;
            }
            let next_progress = self.next_progress().filter(|_| up);
            let watchdog = self.pull.as_ref().map(|pull| pull.watchdog);
            let drain_end = match stage {
                Stage::Draining(until) => Some(until),
                Stage::Reading | Stage::Quiet => None,
            };
            tokio::select! {
                biased;
                () = stop.cancelled(), if drain_end.is_none() => {
                    self.hand_back().await;
                    let until = drain_until.get().copied().map(Instant::from_std);
                    stage = Stage::Draining(until.unwrap_or_else(Instant::now));
                }
                () = deliveries.closed(), if reading => {
                    self.hand_back().await;
                    stage = Stage::Quiet;
                }
                Ok(()) = connection.changed() => {
                    // The server forgets the pulls of a connection that is gone.
                    self.pull = None;
                }
                // Kept while the connection is down: in the client's queue they would be lost with it.
                _ = self.verdicts.recv_many(&mut verdicts, CHUNK), if up => {
                    for verdict in verdicts.drain(..) {
                        self.settle(verdict, stage).await;
                    }
                }
                () = sleep_until(next_progress), if next_progress.is_some() => self.tell_progress().await,
                limits = poll_repair(&mut self.repair) => {
                    self.repair = None;
                    self.limits = limits;
                }
                () = sleep_until(watchdog), if watchdog.is_some() => {
                    tracing::debug!(consumer = %self.consumer.name, "no sign of a pull: asking again");
                    self.pull = None;
                }
                messages = self.messages.next(), if reading => {
                    // The client has closed.
                    let Some(messages) = messages else { break };
                    for message in messages {
                        self.received(message, &deliveries).await;
                    }
                }
                pull = self.budget.reserve(self.oversize, self.limits, self.client.max_payload()),
                    if reading && up && self.pull.is_none() && self.repair.is_none() =>
                {
                    self.ask(pull).await;
                }
                () = sleep_until(self.return_at), if up && self.return_at.is_some() => {
                    self.give_back().await;
                }
                () = sleep_until(drain_end), if drain_end.is_some() => {}
            }
        }
        self.finish().await;
    }

    /// Sends a pull for what was reserved.
    async fn ask(&mut self, reserved: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>) {
        // `None` only if the semaphore was closed, which nobody does.
        let Some((messages, bytes)) = reserved else {
            return;
        };
        self.pulls += 1;
        let expires = self
            .limits
            .max_expires
            .unwrap_or(PULL_EXPIRES)
            .min(PULL_EXPIRES);
        let heartbeat = HEARTBEAT.min(expires / 3);
        let mut request = json!({
            "batch": messages.num_permits(),
            "expires": nanoseconds(expires),
            "idle_heartbeat": nanoseconds(heartbeat),
        });
        if !self.oversize {
            request["max_bytes"] = json!(bytes.num_permits());
        }
        let api = &self.consumer.api;
        let (stream, name) = (&self.consumer.stream, &self.consumer.name);
        let subject = api.subject(&format!("CONSUMER.MSG.NEXT.{stream}.{name}"));
        let inbox = format!("{}.{}", self.inbox, self.pulls);
        let body = Bytes::from(request.to_string());
        let sent = self.client.publish_with_reply(subject, inbox, body);
        match tokio::time::timeout(ACK_DEADLINE, sent).await {
            Ok(Ok(())) => {
                self.pull = Some(Pull {
                    number: self.pulls,
                    messages,
                    bytes,
                    received: 0,
                    watchdog: Instant::now() + heartbeat * 2 + Duration::from_secs(1),
                });
            }
            // Asked again at the next turn; the loop ends when the client has closed.
            Ok(Err(error)) => tracing::debug!(%error, "could not ask for messages"),
            Err(_) => tracing::debug!("could not ask for messages in time"),
        }
    }

    async fn received(
        &mut self,
        message: async_nats::Message,
        deliveries: &mpsc::Sender<Delivery>,
    ) {
        match message.status {
            None => self.message(message, deliveries).await,
            Some(status) => self.status(status, &message),
        }
    }

    async fn message(&mut self, message: async_nats::Message, deliveries: &mpsc::Sender<Delivery>) {
        let Some((reply, info)) = message
            .reply
            .clone()
            .and_then(|reply| Info::parse(&reply).map(|info| (reply, info)))
        else {
            tracing::debug!("a message without a JetStream reply subject was ignored");
            return;
        };
        let permits = self.take_permits(message.length);
        let sequence = info.sequence;
        if let Some(outstanding) = self.outstanding.get_mut(&sequence) {
            // The earlier delivery of it is still being worked on here; its outcome counts for this one too.
            outstanding.reply = reply;
            return;
        }
        let Some((message_permit, bytes_permit)) = permits else {
            // More than was asked for, after a pull that was given up too early: somebody else, or later.
            self.publish_ack(reply, nak(info.attempt)).await;
            return;
        };
        let lane = lane(&message.subject);
        let Some((topic, message)) = inbound(message) else {
            return;
        };
        self.deliveries_made += 1;
        let delivery = self.deliveries_made;
        let acknowledger = Acknowledger::new(
            Box::new(ToReader {
                sequence,
                delivery,
                attempt: info.attempt,
                message: message_permit,
                verdicts: self.verdict_sender.clone(),
            }),
            bytes_permit,
        );
        self.outstanding
            .insert(sequence, Outstanding { delivery, reply });
        self.expect_progress(sequence, delivery);
        let after = sequence.saturating_add(1);
        self.next_sequence = Some(self.next_sequence.map_or(after, |next| next.max(after)));
        let delivery = Delivery {
            message,
            topic,
            reply_to: None,
            origin: Some(position(&self.consumer.stream, sequence)),
            lane,
            attempt: info.attempt,
            acknowledger,
        };
        // Never full: the budget is the bound. If it is closed the delivery is dropped, which abandons it.
        if deliveries.try_send(delivery).is_err() {
            tracing::debug!(sequence, "nobody takes deliveries any more");
        }
    }

    /// One message and its bytes out of what the pull reserved.
    fn take_permits(
        &mut self,
        bytes: usize,
    ) -> Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)> {
        let pull = self.pull.as_mut()?;
        pull.received += 1;
        pull.watchdog = Instant::now() + HEARTBEAT * 2 + Duration::from_secs(1);
        let message = pull.messages.split(1)?;
        // A single message of a pull without a limit in bytes takes all there is.
        let bytes = bytes.min(pull.bytes.num_permits());
        let bytes = pull.bytes.split(bytes);
        if pull.messages.num_permits() == 0 {
            self.pull = None;
            self.oversize = false;
        }
        Some((message, bytes))
    }

    fn status(&mut self, status: StatusCode, message: &async_nats::Message) {
        let number = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|n| n.parse().ok());
        let Some(pull) = self
            .pull
            .as_mut()
            .filter(|pull| Some(pull.number) == number)
        else {
            // About a pull that was given up.
            return;
        };
        let description = message.description.as_deref().unwrap_or_default();
        match Status::read(status, description) {
            Status::Alive => {
                pull.watchdog = Instant::now() + HEARTBEAT * 2 + Duration::from_secs(1)
            }
            Status::PullOver => {
                self.pull = None;
                self.oversize = false;
            }
            Status::TooLarge => {
                // If some came before it, the rest of the budget was too small, not the budget.
                self.oversize = pull.received == 0;
                self.pull = None;
            }
            Status::ConsumerLost => {
                self.pull = None;
                self.repair(description);
            }
        }
    }

    /// Looks for the consumer again, with pauses, until it is there.
    fn repair(&mut self, cause: &str) {
        let (consumer, link) = (self.consumer.clone(), Arc::clone(&self.link));
        tracing::warn!(
            stream = %consumer.stream, consumer = %consumer.name, cause,
            "the durable consumer cannot be read: looking for it again"
        );
        // Nothing that is out here may be skipped by a consumer that begins anew.
        let first_out = self.outstanding.keys().min().copied();
        let begin = first_out
            .or(self.next_sequence)
            .map_or(Begin::First, Begin::At);
        self.repair = Some(
            async move {
                let name = consumer.title();
                let mut pause = FIRST_PAUSE;
                loop {
                    tokio::time::sleep(pause / 2 + jitter(pause / 2)).await;
                    match consumer.ensure(begin).await {
                        Ok(limits) => {
                            link.report(&name, None);
                            return limits;
                        }
                        Err(error) => {
                            link.report(&name, Some(Text::from(error.to_string())));
                            tracing::warn!(%error, "the durable consumer is not there");
                        }
                    }
                    pause = (pause * 2).min(LONGEST_REPAIR_PAUSE);
                }
            }
            .boxed(),
        );
    }

    async fn settle(&mut self, verdict: Verdict, stage: Stage) {
        let current = self
            .outstanding
            .get(&verdict.sequence)
            .is_some_and(|outstanding| outstanding.delivery == verdict.delivery);
        if !current {
            return;
        }
        let Some(Outstanding { reply, .. }) = self.outstanding.remove(&verdict.sequence) else {
            return;
        };
        match (verdict.outcome, stage) {
            (Outcome::Settled, _) => self.publish_ack(reply, Bytes::from_static(b"+ACK")).await,
            (Outcome::Abandoned, Stage::Reading) => {
                self.publish_ack(reply, nak(verdict.attempt)).await;
            }
            (Outcome::Abandoned, Stage::Quiet | Stage::Draining(_)) => {
                self.returned.insert(verdict.sequence, reply);
                self.return_at
                    .get_or_insert_with(|| Instant::now() + RETURN_AFTER);
            }
        }
    }

    /// Gives messages back without a delay, in their order, so that the next reader gets them in that order.
    ///
    /// The server still tries our ended pull for the first of them, and then puts that one behind all it has by then:
    /// hence the pause, during which it has no other.
    async fn give_back(&mut self) {
        self.return_at = None;
        let several = self.returned.len() > 1;
        for (index, (_, reply)) in std::mem::take(&mut self.returned).into_iter().enumerate() {
            if several && index == 1 {
                tokio::time::sleep(FORGET_PULL).await;
            }
            self.publish_ack(reply, Bytes::from_static(b"-NAK")).await;
        }
    }

    async fn publish_ack(&mut self, reply: Subject, ack: Bytes) {
        match tokio::time::timeout(ACK_DEADLINE, self.client.publish(reply, ack)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "an acknowledgement was lost: the message comes again")
            }
            Err(_) => tracing::warn!("an acknowledgement was lost: the message comes again"),
        }
    }

    fn next_progress(&mut self) -> Option<Instant> {
        while let Some((when, sequence, delivery)) = self.progress.front() {
            let out = self.outstanding.get(sequence);
            if out.is_some_and(|outstanding| outstanding.delivery == *delivery) {
                return Some(*when);
            }
            self.progress.pop_front();
        }
        None
    }

    /// Tells the server about every delivery that has been out for half of the ack wait.
    async fn tell_progress(&mut self) {
        let now = Instant::now();
        while self.next_progress().is_some_and(|when| when <= now) {
            let Some((_, sequence, delivery)) = self.progress.pop_front() else {
                return;
            };
            if let Some(outstanding) = self.outstanding.get(&sequence) {
                self.publish_ack(outstanding.reply.clone(), Bytes::from_static(b"+WPI"))
                    .await;
                self.expect_progress(sequence, delivery);
            }
        }
    }

    fn expect_progress(&mut self, sequence: u64, delivery: u64) {
        if self.progress.len() > 4 * self.outstanding.len() + 1024 {
            // One slow delivery at the front would keep the entries of all quick ones behind it.
            self.progress.retain(|(_, sequence, delivery)| {
                let out = self.outstanding.get(sequence);
                out.is_some_and(|outstanding| outstanding.delivery == *delivery)
            });
        }
        let when = Instant::now() + self.limits.ack_wait / 2;
        self.progress.push_back((when, sequence, delivery));
    }

    /// Ends the pulls and gives back what came and was not delivered.
    async fn hand_back(&mut self) {
        self.pull = None;
        self.repair = None;
        if !self.link.is_up() {
            // The server has ended the pulls itself, and gives what was on its way to others after the ack wait.
            return;
        }
        let unsubscribed = self.messages.get_mut().unsubscribe();
        if tokio::time::timeout(ACK_DEADLINE, unsubscribed)
            .await
            .is_err()
        {
            return;
        }
        while let Some(Some(messages)) = self.messages.next().now_or_never() {
            for message in messages {
                let reply = message.reply.filter(|_| message.status.is_none());
                let info = reply.as_deref().and_then(Info::parse);
                if let (Some(reply), Some(info)) = (reply, info) {
                    self.returned.insert(info.sequence, reply);
                }
            }
        }
        self.return_at = Some(Instant::now() + RETURN_AFTER);
    }

    /// Takes the verdicts that are in, gives back the rest of what is out, and makes sure that all of it has left.
    async fn finish(mut self) {
        self.link.report(&self.consumer.title(), None);
        if !self.link.is_up() {
            return;
        }
        self.verdicts.close();
        while let Ok(verdict) = self.verdicts.try_recv() {
            self.settle(verdict, Stage::Draining(Instant::now())).await;
        }
        let out = std::mem::take(&mut self.outstanding).into_iter();
        self.returned
            .extend(out.map(|(sequence, outstanding)| (sequence, outstanding.reply)));
        self.give_back().await;
        if tokio::time::timeout(ACK_DEADLINE, self.client.flush())
            .await
            .is_err()
        {
            tracing::debug!("the last acknowledgements may not have left");
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

async fn poll_repair(repair: &mut Option<BoxFuture<'static, Limits>>) -> Limits {
    match repair {
        Some(repair) => repair.await,
        None => std::future::pending().await,
    }
}

/// Not now: again after 250 ms, doubled with each attempt up to a minute, of which the second half is random.
fn nak(attempt: u32) -> Bytes {
    let pause = FIRST_PAUSE
        .saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1).min(16)))
        .min(LONGEST_PAUSE);
    let pause = pause / 2 + jitter(pause / 2);
    Bytes::from(format!("-NAK {{\"delay\":{}}}", pause.as_nanos()))
}

// === impl Budget ===

impl Budget {
    fn new(bytes: usize, messages: u32) -> Self {
        let all_bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        let all_messages = messages.max(1);
        Self {
            bytes: Arc::new(Semaphore::new(all_bytes as usize)),
            messages: Arc::new(Semaphore::new(all_messages as usize)),
            all_bytes,
            all_messages,
        }
    }

    /// Waits until something can be asked for, and reserves it: messages, then bytes. Cancel-safe.
    async fn reserve(
        &self,
        oversize: bool,
        limits: Limits,
        max_payload: usize,
    ) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let mut messages = Arc::clone(&self.messages)
            .acquire_many_owned(1)
            .await
            .ok()?;
        if oversize {
            let bytes = Arc::clone(&self.bytes)
                .acquire_many_owned(self.all_bytes)
                .await
                .ok()?;
            return Some((messages, bytes));
        }
        // Enough for any message the server takes, so that it does not refuse the pull; half of a small budget, so that
        // two can be out.
        let payload = u32::try_from(max_payload)
            .unwrap_or(u32::MAX)
            .saturating_add(4096);
        let least = (self.all_bytes / 2).clamp(1, payload);
        let mut bytes = Arc::clone(&self.bytes)
            .acquire_many_owned(least)
            .await
            .ok()?;
        let most = limits.max_batch.unwrap_or(BATCH).min(BATCH) - 1;
        extend(&mut messages, &self.messages, most);
        extend(
            &mut bytes,
            &self.bytes,
            limits.max_bytes.unwrap_or(u32::MAX).saturating_sub(least),
        );
        Some((messages, bytes))
    }
}

/// Adds what is free to a permit, up to a number.
fn extend(permit: &mut OwnedSemaphorePermit, semaphore: &Arc<Semaphore>, most: u32) {
    let free = u32::try_from(semaphore.available_permits())
        .unwrap_or(u32::MAX)
        .min(most);
    // Only this reader takes permits, so what is free stays free.
    if free > 0
        && let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(free)
    {
        permit.merge(more);
    }
}

// === impl ToReader ===

impl Settle for ToReader {
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError> {
        let verdict = Verdict {
            sequence: self.sequence,
            delivery: self.delivery,
            attempt: self.attempt,
            outcome,
            _message: self.message,
        };
        self.verdicts.try_send(verdict).map_err(|_| {
            TransportError::new(
                TransportErrorKind::Closed,
                "settle a delivery of a subscription that has ended",
            )
        })
    }
}

// === impl Status ===

impl Status {
    /// Reads a status of a pull. Source: NATS ADR-13 (pull subscribe internals).
    fn read(status: StatusCode, description: &str) -> Self {
        let is = |start: &str| {
            description
                .get(..start.len())
                .is_some_and(|found| found.eq_ignore_ascii_case(start))
        };
        match status {
            StatusCode::IDLE_HEARTBEAT => Self::Alive,
            StatusCode::NO_RESPONDERS => Self::ConsumerLost,
            StatusCode::REQUEST_TERMINATED if is("Message Size Exceeds") => Self::TooLarge,
            StatusCode::REQUEST_TERMINATED
                if is("Consumer Deleted")
                    || is("Consumer is push based")
                    || is("Exceeded MaxRequest")
                    || is("Exceeded MaxWaiting") =>
            {
                Self::ConsumerLost
            }
            // 408, 404, and the other 409: leadership change, server shutdown, batch completed.
            _ => Self::PullOver,
        }
    }
}

/// What the reply subject of a JetStream message tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Info {
    sequence: u64,
    attempt: u32,
}

// === impl Info ===

impl Info {
    /// Reads `$JS.ACK.STREAM.CONSUMER.DELIVERED.STREAM_SEQ.CONSUMER_SEQ.TIME.PENDING`, or the longer form with domain
    /// and account before the stream. Source: NATS ADR-15.
    fn parse(reply: &str) -> Option<Self> {
        let words = reply.strip_prefix("$JS.ACK.")?;
        let count = words.split('.').count();
        let skip = match count {
            7 => 2,
            9.. => 4,
            _ => return None,
        };
        let mut words = words.split('.').skip(skip);
        let attempt = words.next()?.parse().ok()?;
        let sequence = words.next()?.parse().ok()?;
        Some(Self { sequence, attempt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_subjects_of_all_servers_are_read() {
        let info = Some(Info {
            sequence: 100,
            attempt: 3,
        });
        for (reply, expected) in [
            (
                "$JS.ACK.events.durable.3.100.7.1790230470084404000.42",
                info,
            ),
            (
                "$JS.ACK._.acc.events.durable.3.100.7.1790230470084404000.42",
                info,
            ),
            (
                "$JS.ACK.hub.acc.events.durable.3.100.7.1790230470084404000.42.rand",
                info,
            ),
            ("$JS.ACK.events.durable.3.100.7.1", None),
            ("$JS.ACK.events.durable.3.abc.7.1.1", None),
            ("_INBOX.a.b", None),
        ] {
            assert_eq!(Info::parse(reply), expected, "{reply}");
        }
    }

    #[test]
    fn statuses_of_a_pull() {
        for (code, description, expected) in [
            (100, "Idle Heartbeat", Status::Alive),
            (404, "No Messages", Status::PullOver),
            (408, "Request Timeout", Status::PullOver),
            (409, "Message Size Exceeds MaxBytes", Status::TooLarge),
            (409, "Batch Completed", Status::PullOver),
            (409, "Leadership Change", Status::PullOver),
            (409, "Server Shutdown", Status::PullOver),
            (409, "Consumer Deleted", Status::ConsumerLost),
            (409, "Exceeded MaxRequestBatch of 10", Status::ConsumerLost),
            (503, "", Status::ConsumerLost),
        ] {
            let code = StatusCode::from_u16(code).unwrap();
            assert_eq!(Status::read(code, description), expected, "{description}");
        }
    }

    #[test]
    fn pauses_grow_with_the_attempts_and_are_capped() {
        let pause = |attempt| {
            let nak = nak(attempt);
            let text = std::str::from_utf8(&nak).unwrap();
            let nanos = text.strip_prefix("-NAK {\"delay\":").unwrap();
            Duration::from_nanos(nanos.strip_suffix('}').unwrap().parse().unwrap())
        };
        for (attempt, most) in [
            (0, 250),
            (1, 250),
            (2, 500),
            (5, 4000),
            (9, 60_000),
            (u32::MAX, 60_000),
        ] {
            let most = Duration::from_millis(most);
            assert!((most / 2..=most).contains(&pause(attempt)), "{attempt}");
        }
    }

    fn no_limits() -> Limits {
        Limits {
            ack_wait: Duration::from_secs(30),
            max_batch: None,
            max_bytes: None,
            max_expires: None,
        }
    }

    #[tokio::test]
    async fn a_pull_reserves_what_is_free_and_no_more_than_a_batch() {
        let budget = Budget::new(10_000_000, 1000);
        let (messages, bytes) = budget.reserve(false, no_limits(), 1 << 20).await.unwrap();
        assert_eq!(
            (messages.num_permits(), bytes.num_permits()),
            (256, 10_000_000)
        );
        assert!(
            budget
                .reserve(false, no_limits(), 1 << 20)
                .now_or_never()
                .is_none()
        );
        drop(bytes);
        let (rest, _bytes) = budget.reserve(false, no_limits(), 1 << 20).await.unwrap();
        assert_eq!(rest.num_permits(), 256);
        assert_eq!(budget.messages.available_permits(), 1000 - 512);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_budget_waits_for_all_of_it() {
        let budget = Budget::new(1000, 10);
        let (mut messages, bytes) = budget.reserve(false, no_limits(), 500).await.unwrap();
        assert_eq!((messages.num_permits(), bytes.num_permits()), (10, 1000));
        drop(messages.split(9));
        assert!(
            budget
                .reserve(true, no_limits(), 500)
                .now_or_never()
                .is_none()
        );
        drop(bytes);
        let (_two, all) = budget.reserve(true, no_limits(), 500).await.unwrap();
        assert_eq!(all.num_permits(), 1000);
    }
}
