//! One idempotent librdkafka producer, and the thread that serves it.
//!
//! ```text
//! queue ──▶ [room? else wait in line] ──▶ librdkafka queue ──▶ broker
//!                    ▲                                           │
//!                    └────── delivery report ◀───────────────────┘──▶ Sent::answer
//! ```

use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{
    BorrowedMessage, Header, Headers as NativeHeaders, Message as _, OwnedHeaders,
};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig,
};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::checkup::{Checkup, SILENCE};
use super::config::KafkaConfig;
use super::error::{GRANT_WRITE, failed, kind, sending};
use super::health::{Events, Pulse};
use super::thread::spawn;
use super::topics::Topics;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Headers, Message};
use crate::transport::{Address, Confirmation, Decision, Receipt};

/// A librdkafka producer.
pub(super) type Client<S> = BaseProducer<Reports<S>>;
type Record<'a, S> = BaseRecord<'a, [u8], [u8], Box<S>>;

/// The state of a message in a client's queue, until its result is known.
pub(super) trait Sent: Send + Sync + Sized + 'static {
    /// Whether each message has its own request.
    const IS_SINGLE: bool;

    /// The broker refused the request as too large. Takes the message, if other messages of the request may be the
    /// reason.
    fn too_large(self, message: &BorrowedMessage<'_>) -> Option<Self>;

    /// The message has waited, and is next. Takes it, if earlier ones have to be sent again, which it must not
    /// overtake.
    fn follow(self, _to: &Address, _message: &Message) -> Option<Self> {
        Some(self)
    }

    /// The result of the message.
    fn answer(self, result: Result<Receipt, TransportError>);
}

/// How often the serving thread checks for other work. The client waits for whole milliseconds and then spins until the
/// time is over, up to 1 ms: just above a whole number, almost nothing is left.
const TICK: Duration = Duration::from_micros(100_050);
/// Pause before a failed client is replaced for the second time; doubled up to the longest.
const REPLACE_PAUSE: Duration = Duration::from_secs(1);
const MAX_REPLACE_PAUSE: Duration = Duration::from_secs(30);
/// How long a released client may take to report the results of its messages.
const RETIREMENT: Duration = Duration::from_secs(5);

/// What a writer needs.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) config: Arc<KafkaConfig>,
    pub(super) pulse: Arc<Pulse>,
    /// The topics that are written to.
    pub(super) topics: Arc<Topics>,
    /// How long a message waits for others.
    pub(super) linger: Duration,
}

/// A writer that starts when it is first needed.
#[derive(Debug)]
pub(super) struct LazyWriter<S: Sent> {
    setup: Setup,
    state: std::sync::Mutex<State<S>>,
}

#[derive(Debug)]
enum State<S: Sent> {
    Unused,
    Started(Arc<Writer<S>>),
    Closed,
}

/// A producer that is replaced when it fails.
pub(super) struct Writer<S: Sent> {
    setup: Setup,
    slot: RwLock<Slot<S>>,
    /// Set before the last flush: no further messages are accepted.
    closing: AtomicBool,
    line: Line,
    ended: CancellationToken,
}

/// The client in use.
enum Slot<S: Sent> {
    Open(Arc<Client<S>>),
    Closed,
}

/// Senders that wait for room in the queue, first come, first served.
#[derive(Debug, Default)]
struct Line {
    /// Senders that have to wait, in order.
    length: AtomicUsize,
    /// Held by the first of them.
    head: Mutex<()>,
    /// A message left the queue.
    room: Arc<Notify>,
}

/// Takes the delivery reports of a client.
pub(super) struct Reports<S> {
    events: Events,
    topics: Arc<Topics>,
    room: Arc<Notify>,
    /// How many messages the cluster has confirmed.
    confirmed: AtomicUsize,
    /// The client is being replaced, and accepts no further messages.
    retired: AtomicBool,
    /// The writer is closing, so messages that are dropped from now on do not mean that the client failed.
    closing: AtomicBool,
    sent: PhantomData<fn(S)>,
}

// === impl LazyWriter ===

impl<S: Sent> LazyWriter<S> {
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            state: std::sync::Mutex::new(State::Unused),
        }
    }

    /// The writer, started if necessary.
    pub(super) fn get(&self) -> Result<Arc<Writer<S>>, TransportError> {
        let mut state = self.state();
        match &*state {
            State::Started(writer) => return Ok(Arc::clone(writer)),
            State::Closed => return Err(closed()),
            State::Unused => {}
        }
        let writer = Writer::start(self.setup.clone())?;
        *state = State::Started(Arc::clone(&writer));
        Ok(writer)
    }

    /// Waits until every queued message has a result, then releases the client.
    pub(super) async fn close(&self, until: Instant) -> Result<(), TransportError> {
        match self.end() {
            Some(writer) => writer.close(until).await,
            None => Ok(()),
        }
    }

    /// Releases the client without waiting. Pending confirmations report that it is closed.
    pub(super) fn stop(&self) {
        if let Some(writer) = self.end() {
            writer.stop();
        }
    }

    /// The writer, if it has been started. It cannot be started from now on.
    fn end(&self) -> Option<Arc<Writer<S>>> {
        match std::mem::replace(&mut *self.state(), State::Closed) {
            State::Started(writer) => Some(writer),
            State::Unused | State::Closed => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Writer ===

impl<S: Sent> Writer<S> {
    /// Creates the client and the thread that serves it until [`Writer::stop`]. Does not wait for a broker.
    pub(super) fn start(setup: Setup) -> Result<Arc<Self>, TransportError> {
        let line = Line::default();
        let client = create(&setup, &line.room)?;
        let writer = Arc::new(Self {
            setup,
            slot: RwLock::new(Slot::Open(Arc::new(client))),
            closing: AtomicBool::new(false),
            line,
            ended: CancellationToken::new(),
        });
        let served = Arc::clone(&writer);
        spawn("a2abus-kafka-write", move || {
            serve(&served);
            served.ended.cancel();
        })?;
        Ok(writer)
    }

    /// The client in use.
    pub(super) fn client(&self) -> Result<Arc<Client<S>>, TransportError> {
        match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Slot::Open(client) => Ok(Arc::clone(client)),
            Slot::Closed => Err(closed()),
        }
    }

    /// The known state of the topics that are written to.
    pub(super) fn topics(&self) -> &Topics {
        &self.setup.topics
    }

    /// Queues a message, in the order of the calls. `sent` makes the state kept for it.
    ///
    /// # Errors
    /// `Saturated` if there is no room for it at `until`, and why the client refuses it.
    pub(super) async fn queue(
        &self,
        to: &Address,
        message: &Message,
        until: tokio::time::Instant,
        sent: impl FnOnce(Decision) -> S,
    ) -> Result<Confirmation, TransportError> {
        let (answer, confirmation) = Confirmation::waiting();
        let partition = partition(to)?;
        let mut record = record(to, partition, message, Box::new(sent(answer)));
        if self.line.is_empty() {
            match self.enqueue(record) {
                Enqueued::Yes => return Ok(confirmation),
                Enqueued::Full(back) => record = back,
                Enqueued::Refused(error, _) => return Err(error),
            }
        }
        let wait = self.enqueue_in_order(record);
        let waited = tokio::time::timeout_at(until, wait).await;
        waited.map_err(|_| saturated(&to.topic))??;
        Ok(confirmation)
    }

    async fn enqueue_in_order(&self, mut record: Record<'_, S>) -> Result<(), TransportError> {
        let _place = self.line.join();
        let _head = self.line.head.lock().await;
        loop {
            // Registered before the attempt, so that room made in between is not missed.
            let room = self.line.room.notified();
            match self.enqueue(record) {
                Enqueued::Yes => return Ok(()),
                Enqueued::Full(back) => record = back,
                Enqueued::Refused(error, _) => return Err(error),
            }
            room.await;
        }
    }

    /// Queues a message whose sender already waits for the result, which may be that the client refuses it: also while
    /// the writer closes, because the sender was told that the message is accepted. Returns its state if the queue is
    /// full.
    pub(super) fn hand_over(&self, to: &Address, message: &Message, sent: S) -> Option<S> {
        let partition = match partition(to) {
            Ok(partition) => partition,
            Err(error) => {
                sent.answer(Err(error));
                return None;
            }
        };
        self.hand_over_record(record(to, partition, message, Box::new(sent)))
    }

    /// The same for a record.
    pub(super) fn hand_over_record(&self, record: Record<'_, S>) -> Option<S> {
        match self.produce(record) {
            Enqueued::Yes => None,
            Enqueued::Full(record) => Some(*record.delivery_opaque),
            Enqueued::Refused(error, record) => {
                record.delivery_opaque.answer(Err(error));
                None
            }
        }
    }

    fn enqueue<'a>(&self, record: Record<'a, S>) -> Enqueued<'a, S> {
        if self.is_closing() {
            return Enqueued::Refused(closed(), record);
        }
        self.produce(record)
    }

    fn produce<'a>(&self, record: Record<'a, S>) -> Enqueued<'a, S> {
        // Held meanwhile, so that nothing is sent through a client that is being replaced.
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        let Slot::Open(client) = &*slot else {
            return Enqueued::Refused(closed(), record);
        };
        if client.context().is_retired() {
            let error = TransportError::new(TransportErrorKind::Fatal, "queue the message");
            return Enqueued::Refused(error, record);
        }
        match client.send(record) {
            Ok(()) => Enqueued::Yes,
            Err((KafkaError::MessageProduction(Code::QueueFull), record)) => Enqueued::Full(record),
            Err((error, record)) => {
                let broken = client.client().fatal_error().map(|(code, _)| code);
                let code = error.rdkafka_error_code();
                let what = sending(record.topic, "queue the message", code);
                let mut error = refused(&what, error, broken);
                if error.kind() == TransportErrorKind::TooLarge {
                    let limit = self.setup.config.max_message_bytes;
                    let limit = format!("max_message_bytes is {limit}");
                    error = TransportError::too_large(record_bytes(&record), limit);
                }
                Enqueued::Refused(error, record)
            }
        }
    }

    /// Waits until every queued message has a result, then releases the client.
    pub(super) async fn close(&self, until: Instant) -> Result<(), TransportError> {
        self.closing.store(true, Ordering::Release);
        self.line.room.notify_waiters();
        let Ok(client) = self.client() else {
            return Ok(());
        };
        let flush = tokio::task::spawn_blocking(move || {
            client.flush(until.saturating_duration_since(Instant::now()))
        });
        let flushed = match flush.await {
            Ok(flushed) => flushed.map_err(|error| failed("deliver what is queued", error)),
            Err(error) => Err(TransportError::new(
                TransportErrorKind::Other,
                "deliver what is queued",
            )
            .caused_by(error)),
        };
        self.stop();
        // The thread only has to release the client; the deadline was for the messages.
        let _ = tokio::time::timeout(RETIREMENT, self.ended.cancelled()).await;
        flushed
    }

    /// Releases the client without waiting. Pending confirmations report that it is closed.
    pub(super) fn stop(&self) {
        self.closing.store(true, Ordering::Release);
        let client = std::mem::replace(
            &mut *self.slot.write().unwrap_or_else(PoisonError::into_inner),
            Slot::Closed,
        );
        if let Slot::Open(client) = &client {
            client.context().closing.store(true, Ordering::Release);
        }
        // The serving thread holds a copy, so the slow destructor runs there.
        drop(client);
        self.line.room.notify_waiters();
    }

    /// Whether no new messages are accepted.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Reports a result to every sender that still waits for a client that is about to be replaced, and makes it refuse
    /// further messages.
    fn retire(&self, client: &Client<S>) {
        client.context().retired.store(true, Ordering::Release);
        // Whoever has not seen that yet holds the lock.
        drop(self.slot.write().unwrap_or_else(PoisonError::into_inner));
        retire(client);
    }

    /// Replaces a failed client.
    fn replace(&self) -> Result<(), TransportError> {
        let client = Arc::new(create(&self.setup, &self.line.room)?);
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*slot, Slot::Open(_)) {
            *slot = Slot::Open(client);
        }
        Ok(())
    }
}

/// The result of an attempt to queue a record.
enum Enqueued<'a, S: Sent> {
    Yes,
    /// The record, returned.
    Full(Record<'a, S>),
    /// The record, returned, and why.
    Refused(TransportError, Record<'a, S>),
}

/// Serves delivery reports and errors until the writer is stopped, and replaces a failed client.
fn serve<S: Sent>(writer: &Writer<S>) {
    let Ok(mut client) = writer.client() else {
        return;
    };
    let mut replace_at = Instant::now();
    let mut pause = REPLACE_PAUSE;
    let mut progress = Progress::new();
    loop {
        client.poll(TICK);
        // librdkafka frees the room of a report's messages after the last of them was handled, which is when the line
        // was woken. So wake it again.
        writer.line.room.notify_one();
        let Ok(current) = writer.client() else {
            return retire(&client);
        };
        if !Arc::ptr_eq(&client, &current) {
            retire(&client);
            client = current;
            progress = Progress::new();
        }
        let now = Instant::now();
        let failure = client.client().fatal_error().or_else(|| {
            // Once it is retired, it has to be replaced.
            let is_lost =
                client.context().is_retired() || progress.is_cut_off(writer, &client, now);
            let reason = || {
                "it gets no response from the cluster, although a new connection does".to_owned()
            };
            is_lost.then(|| (Code::AllBrokersDown, reason()))
        });
        match failure {
            Some((code, reason)) if now >= replace_at => {
                // All its messages fail before its successor takes any, so that none is overtaken by a later one.
                writer.retire(&client);
                replace(writer, code, &reason);
                replace_at = now + pause;
                pause = (pause * 2).min(MAX_REPLACE_PAUSE);
            }
            None if now > replace_at + MAX_REPLACE_PAUSE => pause = REPLACE_PAUSE,
            _ => {}
        }
    }
}

/// Whether the cluster still confirms messages.
struct Progress {
    confirmed: usize,
    /// When it last did, or had nothing to confirm.
    at: Instant,
    checkup: Checkup,
}

// === impl Progress ===

impl Progress {
    fn new() -> Self {
        Self {
            confirmed: 0,
            at: Instant::now(),
            checkup: Checkup::new(),
        }
    }

    fn is_cut_off<S: Sent>(
        &mut self,
        writer: &Writer<S>,
        client: &Client<S>,
        now: Instant,
    ) -> bool {
        let confirmed = client.context().confirmed.load(Ordering::Relaxed);
        if confirmed != self.confirmed {
            *self = Self::new();
            self.confirmed = confirmed;
        }
        if now.duration_since(self.at) < SILENCE {
            return false;
        }
        let Setup { config, pulse, .. } = &writer.setup;
        if client.in_flight_count() == 0 && pulse.is_answered() {
            self.at = now;
            self.checkup = Checkup::new();
            return false;
        }
        self.checkup.is_cut_off(client.client(), config, pulse)
    }
}

fn replace<S: Sent>(writer: &Writer<S>, code: Code, reason: &str) {
    let fix = (kind(code) == TransportErrorKind::Unauthorised).then_some(GRANT_WRITE);
    match writer.replace() {
        Ok(()) => tracing::warn!(%code, reason, fix, "the Kafka producer failed and was replaced"),
        Err(error) => {
            tracing::warn!(%code, reason, fix, %error, "the Kafka producer failed and cannot be replaced yet");
        }
    }
}

/// Reports a result to every sender that still waits for this client.
fn retire<S: Sent>(client: &Client<S>) {
    client.purge(PurgeConfig::default().queue().inflight());
    if let Err(error) = client.flush(RETIREMENT) {
        tracing::warn!(%error, "the Kafka producer did not report the result of all messages");
    }
}

fn create<S: Sent>(setup: &Setup, room: &Arc<Notify>) -> Result<Client<S>, TransportError> {
    let reports = Reports {
        events: Events::new("producer", Arc::clone(&setup.pulse)),
        topics: Arc::clone(&setup.topics),
        room: Arc::clone(room),
        confirmed: AtomicUsize::new(0),
        retired: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        sent: PhantomData,
    };
    let mut config = setup.config.producer(setup.linger)?;
    if S::IS_SINGLE {
        config.set("batch.num.messages", "1");
    }
    config
        .create_with_context(reports)
        .map_err(|error| failed("create the Kafka producer", error))
}

/// The partition that the address forces.
fn partition(to: &Address) -> Result<Option<i32>, TransportError> {
    let partition = to.partition.map(i32::try_from).transpose();
    partition
        .map_err(|_| TransportError::new(TransportErrorKind::UnknownTopic, "address the partition"))
}

fn record<'a, S: Sent>(
    to: &'a Address,
    partition: Option<i32>,
    message: &'a Message,
    sent: Box<S>,
) -> Record<'a, S> {
    BaseRecord {
        topic: to.topic.as_str(),
        partition,
        payload: message.body.as_deref(),
        key: message.key.as_deref(),
        timestamp: None,
        headers: headers(&message.headers),
        delivery_opaque: sent,
    }
}

pub(super) fn headers(headers: &Headers) -> Option<OwnedHeaders> {
    if headers.is_empty() {
        return None;
    }
    let native = OwnedHeaders::new_with_capacity(headers.len());
    Some(headers.iter().fold(native, |native, header| {
        native.insert(Header {
            key: &header.name,
            value: header.value.as_deref(),
        })
    }))
}

/// The bytes of key, headers and body.
fn sent_bytes(message: &BorrowedMessage<'_>) -> usize {
    let headers = message.headers().map_or(0, header_bytes);
    message.key_len() + headers + message.payload_len()
}

/// The same for a record that was not sent.
fn record_bytes<S: Sent>(record: &Record<'_, S>) -> usize {
    let headers = record.headers.as_ref().map_or(0, header_bytes);
    record.key.map_or(0, <[u8]>::len) + headers + record.payload.map_or(0, <[u8]>::len)
}

fn header_bytes(headers: &impl NativeHeaders) -> usize {
    let sizes = headers
        .iter()
        .map(|h| h.key.len() + h.value.map_or(0, <[u8]>::len));
    sizes.sum()
}

/// The error of a message that a client refused, or dropped because it failed. A missing permission is reported as
/// such; everything else ends with the client.
fn refused(what: &str, error: KafkaError, broken: Option<Code>) -> TransportError {
    if error.rdkafka_error_code() == Some(Code::DestroyBroker) {
        // The broker is gone, and may have stored the message before.
        let kind = match broken {
            Some(_) => TransportErrorKind::TimedOut,
            None => TransportErrorKind::Closed,
        };
        return TransportError::new(kind, what).caused_by(error);
    }
    let error = failed(what, error);
    match (broken.map(kind), error.kind()) {
        (
            Some(kind @ (TransportErrorKind::Unauthenticated | TransportErrorKind::Unauthorised)),
            TransportErrorKind::Closed | TransportErrorKind::Fatal,
        ) => TransportError::new(kind, what).caused_by(error),
        (Some(_), TransportErrorKind::Closed) => {
            TransportError::new(TransportErrorKind::Fatal, what).caused_by(error)
        }
        _ => error,
    }
}

pub(super) fn closed() -> TransportError {
    TransportError::new(TransportErrorKind::Closed, "use the Kafka connection")
}

/// The error when there has been no room for a message for too long.
pub(super) fn saturated(topic: &impl Display) -> TransportError {
    let what = format!("wait for earlier messages to {topic}");
    TransportError::new(TransportErrorKind::Saturated, what)
}

impl<S: Sent> std::fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("slot", &self.slot)
            .field("closing", &self.closing)
            .finish_non_exhaustive()
    }
}

// === impl Slot ===

impl<S: Sent> std::fmt::Debug for Slot<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open(_) => "Open",
            Self::Closed => "Closed",
        })
    }
}

// === impl Line ===

impl Line {
    fn is_empty(&self) -> bool {
        self.length.load(Ordering::Acquire) == 0
    }

    /// A place in the line, released on drop.
    fn join(&self) -> QueueSlot<'_> {
        self.length.fetch_add(1, Ordering::AcqRel);
        QueueSlot(&self.length)
    }
}

struct QueueSlot<'a>(&'a AtomicUsize);

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl Reports ===

impl<S: Sent> ClientContext for Reports<S> {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.events.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.events.error(error, reason);
    }
}

impl<S: Sent> ProducerContext for Reports<S> {
    type DeliveryOpaque = Box<S>;

    fn delivery(&self, result: &DeliveryResult<'_>, sent: Box<S>) {
        if result.is_ok() {
            self.confirmed.fetch_add(1, Ordering::Relaxed);
        }
        let sent = match result {
            Err((error, message))
                if error.rdkafka_error_code().map(kind) == Some(TransportErrorKind::TooLarge) =>
            {
                sent.too_large(message)
            }
            _ => Some(*sent),
        };
        if let Some(sent) = sent {
            sent.answer(self.receipt(result));
        }
        self.room.notify_one();
    }
}

impl<S> Reports<S> {
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// The content of a delivery report.
    fn receipt(&self, result: &DeliveryResult<'_>) -> Result<Receipt, TransportError> {
        match result {
            Ok(message) if message.offset() >= 0 => Ok(Receipt {
                position: Some(position(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                )),
            }),
            // librdkafka treats the confirmation of a later request as one for this request. That proves nothing,
            // because a partition that has not seen this producer before accepts a later request without the earlier
            // one: on a new topic, messages confirmed in this way were missing.
            Ok(_) => Err(TransportError::new(
                TransportErrorKind::TimedOut,
                "deliver the message, of which the broker confirmed only a successor",
            )),
            Err((error, message)) => {
                let closing = self.closing.load(Ordering::Acquire);
                let broken = (!closing).then_some(Code::Fatal);
                let code = error.rdkafka_error_code();
                let what = sending(message.topic(), "deliver the message", code);
                let error = refused(&what, error.clone(), broken);
                if error.kind() == TransportErrorKind::UnknownTopic {
                    self.topics.forget(message.topic());
                }
                Err(match error.kind() {
                    // The broker does not say how large a message may be.
                    TransportErrorKind::TooLarge => {
                        let limit = format!("max.message.bytes of {} is less", message.topic());
                        TransportError::too_large(sent_bytes(message), limit)
                    }
                    _ => error,
                })
            }
        }
    }
}

/// The position of a record: stable, unique in its cluster.
pub(super) fn position(topic: &str, partition: i32, offset: i64) -> Text {
    let (mut first, mut second) = (itoa::Buffer::new(), itoa::Buffer::new());
    Text::concat(&[
        "k:",
        topic,
        "/",
        first.format(partition),
        "/",
        second.format(offset),
    ])
}
