//! NATS: core subjects and JetStream streams under the same contract.
//!
//! ```text
//! send  Default --publish--> client --flush_for--> Confirmation: written to the connection
//!                 to a subject that the server has refused: an echo follows, and no refusal before it
//! send  Stored  --publish--> client --Replies----> Confirmation: stored by a stream
//! read  Group, Live --CoreReader----> Consumer     at most once: what nobody takes in time is dropped and counted
//! read  Durable     --DurableReader-> Consumer     at least once: acknowledged when settled
//! ```
//! All of them share one client connection. It comes up when the server does and reconnects forever. `Link` reports
//! whether it is up and whether it is still the same connection. If the client itself ends, `replace` starts another
//! one: everything that used the old one fails or ends, as when a connection is lost, and whoever subscribed subscribes
//! again.

use std::borrow::Borrow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::Client;
use futures_util::StreamExt as _;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

mod api;
mod config;
mod consumer;
mod core;
mod credentials;
mod diagnose;
mod durable;
mod expected;
mod headers;
mod inspect;
mod jetstream;
mod ledger;
mod link;
mod log;
mod lookup;
mod managed;
#[cfg(test)]
mod mock;
mod permissions;
mod pull;
mod replace;
mod subjects;
mod subscribe;
mod taken;
mod unreadable;

pub use config::{JetStreamConfig, NatsAuth, NatsConfig, NatsTls, StreamConfig, StreamStorage};
pub use core::LANES;
pub use headers::SUBJECT_HEADER;
pub use permissions::Permissions;
pub use subjects::{covers, stored_subjects};

use api::Api;
use consumer::ConsumerRef;
use core::{CoreReader, Subscribers, ToFlush, Unflushed};
use durable::DurableReader;
use expected::{Answer, Expected, NotSentGuard, Notice};
use jetstream::Replies;
use link::{Link, connects};
use subscribe::{RefusalListener, subscribe_one};
use taken::TakenSubjects;

use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{
    Address, Confirmation, Consumer, Decision, Guarantee, Health, QUEUE_DEADLINE, Reader, Reading,
    Subscription, TopicFilter, Transport,
};

/// A connection to NATS, core and JetStream. Clones share it; it ends with the last clone or with
/// [`Transport::close`].
///
/// # What a confirmation means
/// [`Guarantee::Default`]: the message was written to the connection that was up when it was sent, and that connection
/// was still up afterwards. Whether the server read the message, and whether anybody was subscribed, is unknown; if a
/// server dies, the data that it had not read are lost, and a message that the server refuses is lost if its refusal
/// comes later than the confirmation. From then on, until the server permits one, messages on this subject are
/// confirmed only after the server has read them. [`Guarantee::Stored`]: a stream has stored the message, or already
/// had a message with that id. The send fails with `UnknownTopic` only when the JetStream API says that no stream
/// stores the subject, which needs permission to ask `STREAM.NAMES`. It fails with `Disconnected` when no stream
/// answered, and the API names a stream, which then has no leader, or does not say within two seconds that there is
/// none. When a connection is lost, its unconfirmed messages fail with `Disconnected` at once: they may or may not have
/// arrived. A message that still waits in the client's queue when the connection is lost is sent after the reconnect,
/// although its confirmation has failed.
#[derive(Clone)]
pub struct Nats {
    shared: Arc<Shared>,
}

struct Shared {
    /// How to start another client.
    config: NatsConfig,
    /// The name of the user in messages.
    user: Text,
    current: RwLock<Current>,
    /// All tasks of all clients.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Ends the tasks with the last clone.
    _stop: DropGuard,
}

/// The current client.
struct Current {
    inner: Arc<Inner>,
    /// Whether no other client may take its place.
    is_last: bool,
}

/// One client, and what uses it.
struct Inner {
    client: Client,
    link: Arc<Link>,
    api: Api,
    /// Publications waiting for a flush.
    written: mpsc::Sender<Unflushed>,
    /// The same for messages with a reply subject.
    requested: mpsc::Sender<Unflushed>,
    /// The subjects that streams take.
    taken: TakenSubjects,
    /// Questions whose answers come on `{inbox}.{token}`.
    notices: mpsc::Sender<Notice>,
    inbox: String,
    tokens: AtomicU64,
    /// Cancelled after the first attempt to create the managed streams.
    streams_tried: CancellationToken,
    /// Permits for unanswered stored publications.
    unanswered: Arc<Semaphore>,
    max_ack_pending: u32,
    ack_timeout: Duration,
    request_timeout: Duration,
    tasks: TaskTracker,
    /// Ends the tasks of this client.
    stop: CancellationToken,
    /// Ends those of all clients. Core readers end with it only: what they have received, no server sends again.
    stop_all: CancellationToken,
}

/// Reports to a consumer why its reader ended.
type End = oneshot::Sender<Result<(), TransportError>>;

/// How many messages the client keeps for one subscription until we read them. Our reader reads them at once and keeps
/// those that exceed the byte budget, so this only bridges a busy moment.
const SUBSCRIPTION_CAPACITY: usize = 65_536;

// === impl Nats ===

impl Nats {
    /// Starts a client. Returns before the server is reached, which may be later: see [`Transport::health`].
    ///
    /// # Errors
    /// `BadConfig`, with every fault of the configuration, or with a secret or certificate file that cannot be read.
    pub async fn connect(config: NatsConfig) -> Result<Self, TransportError> {
        TransportError::reject_problems("NATS", &config.problems())?;
        // If the process uses several rustls providers, there may be no default. An existing default is kept.
        let _ = async_nats::rustls::crypto::ring::default_provider().install_default();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let inner = Inner::start(&config, None, &tasks, &stop).await?;
        let shared = Arc::new(Shared {
            user: inner.link.user().clone(),
            current: RwLock::new(Current {
                inner: Arc::new(inner),
                is_last: false,
            }),
            config,
            tasks: tasks.clone(),
            _stop: stop.clone().drop_guard(),
            stop: stop.clone(),
        });
        tasks.spawn(Shared::replace_ended(Arc::downgrade(&shared), stop));
        Ok(Self { shared })
    }

    /// The client of this moment, with what uses it.
    fn inner(&self) -> Arc<Inner> {
        self.shared.inner()
    }

    /// How many messages of core subscriptions were dropped because they were not read in time. A lower bound: the
    /// client does not count each message that it drops when it is overrun.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        self.inner().link.dropped()
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("health", &*self.health().borrow())
            .finish_non_exhaustive()
    }
}

impl Transport for Nats {
    /// `Group` is a queue group on core subjects, `Live` a plain subscription: both are at most once, and miss what is
    /// published while the connection is down. `Durable` reads a JetStream pull consumer, which is created or updated
    /// if `jetstream.manage` allows; its `max_ack_pending` is `budget_messages`, for all its readers together. If the
    /// server later refuses one of the subjects of a core subscription, the consumer ends.
    async fn subscribe(&self, subscription: Subscription) -> Result<Consumer, TransportError> {
        let inner = self.inner();
        inner.link.up(inner.request_deadline()).await?;
        match &subscription.reading {
            Reading::Group(group) | Reading::PromptGroup(group) => {
                let group = Some(group.clone());
                inner.subscribe_core(&subscription, group.as_ref()).await
            }
            Reading::Live { partition: _ } => inner.subscribe_core(&subscription, None).await,
            Reading::Durable { stream, name } => {
                inner.subscribe_durable(&subscription, stream, name).await
            }
        }
    }

    /// Without a connection the send waits for one, at most `ack_timeout`, and then fails with `Disconnected`: the
    /// message was not sent and will not be. If the client has ended by itself, it fails at once, until another client
    /// has taken its place. With [`Guarantee::StoredIfAny`], once there is a connection, it also waits until JetStream
    /// says whether a stream takes the subject: at most [`QUEUE_DEADLINE`] for its turn to ask, and 2 s for the answer.
    async fn send(
        &self,
        to: &Address,
        message: impl Borrow<Message> + Send,
    ) -> Result<Confirmation, TransportError> {
        let inner = self.inner();
        let message = message.borrow();
        let bytes = || message.content_bytes();
        let mut is_stored = to.guarantee != Guarantee::Default;
        let out = match &to.guarantee {
            Guarantee::Default => core::outbound(to, message, None)?,
            Guarantee::Stored { message_id } => {
                let id = message_id.as_ref().map(|id| ("Nats-Msg-Id", id.as_str()));
                core::outbound(to, message, id)?
            }
            Guarantee::StoredIfAny { message_id } => {
                // Without a connection the API cannot answer, which would count as its fault.
                inner.link.up(core::after(inner.ack_timeout)).await?;
                is_stored = inner.taken.is_taken(&inner.api, &to.topic).await?;
                let id = ("Nats-Msg-Id", message_id.as_str());
                core::outbound(to, message, is_stored.then_some(id))?
            }
            Guarantee::StoredNext { after } => {
                let last = ("Nats-Expected-Last-Subject-Sequence", &*after.to_string());
                core::outbound(to, message, Some(last))?
            }
        };
        let (verdict, confirmation) = Confirmation::waiting();
        if is_stored {
            inner.send_stored(to, out, bytes(), verdict).await?;
        } else {
            let queue = match &to.reply_to {
                Some(_) => &inner.requested,
                None => &inner.written,
            };
            inner.send_core(queue, to, out, (bytes, verdict)).await?;
        }
        Ok(confirmation)
    }

    /// Always 1.
    async fn partitions(&self, _topic: &Topic) -> Result<u32, TransportError> {
        Ok(1)
    }

    /// Creates or updates the stream of `jetstream.streams` that stores the topic, if `jetstream.manage` allows;
    /// otherwise does nothing.
    async fn ensure_topic(&self, topic: &Topic, _partitions: u32) -> Result<(), TransportError> {
        let inner = self.inner();
        inner.link.up(inner.request_deadline()).await?;
        inner.api.ensure_topic(topic).await.map(drop)
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.inner().link.health()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let last = self.shared.last_client();
        last.close(core::after(deadline), &self.shared.stop).await
    }
}

// === impl Shared ===

impl Shared {
    fn inner(&self) -> Arc<Inner> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner).inner)
    }
}

// === impl Inner ===

impl Inner {
    /// Starts a client, perhaps in place of `earlier`. Its tasks end with `stop_all`.
    async fn start(
        config: &NatsConfig,
        earlier: Option<&Link>,
        tasks: &TaskTracker,
        stop_all: &CancellationToken,
    ) -> Result<Self, TransportError> {
        let (link, client) = Link::connect(config, SUBSCRIPTION_CAPACITY, earlier).await?;
        let inbox = client.new_inbox();
        let replies = subscribe_one(&client, format!("{inbox}.*"), None).await?;
        let (written, messages) = mpsc::channel(core::FLUSH_QUEUE);
        let (requested, requests) = mpsc::channel(core::FLUSH_QUEUE);
        let (notices, to_notice) = mpsc::channel(jetstream::NOTICES);
        let stop = stop_all.child_token();
        tasks.spawn(core::flush_for(
            client.clone(),
            Arc::clone(&link),
            ToFlush { messages, requests },
            config.ack_timeout,
            stop.clone(),
        ));
        let api = Api::new(client.clone(), Arc::clone(&link), config.jetstream.clone());
        let replies = Replies {
            client: client.clone(),
            link: Arc::clone(&link),
            api: api.clone(),
            inbox: replies.ready_chunks(jetstream::CHUNK),
            notices: to_notice,
        };
        tasks.spawn(replies.run(stop.clone()));
        let streams_tried = CancellationToken::new();
        let make = managed::make_streams(Arc::clone(&link), api.clone(), streams_tried.clone());
        let until = stop.clone();
        tasks.spawn(async move {
            until.run_until_cancelled(make).await;
        });
        Ok(Self {
            api,
            client,
            link,
            written,
            requested,
            taken: TakenSubjects::new(),
            notices,
            inbox,
            tokens: AtomicU64::new(1),
            streams_tried,
            unanswered: Arc::new(Semaphore::new(config.max_ack_pending as usize)),
            max_ack_pending: config.max_ack_pending,
            ack_timeout: config.ack_timeout,
            request_timeout: config.request_timeout,
            tasks: tasks.clone(),
            stop,
            stop_all: stop_all.clone(),
        })
    }

    /// What stops a reader, also when `parent` is cancelled.
    fn stop_with(parent: &CancellationToken) -> (CancellationToken, Reader, End) {
        let stop = parent.child_token();
        let (end, ended) = oneshot::channel();
        let reader = Reader {
            stop: stop.clone(),
            ended,
        };
        (stop, reader, end)
    }

    fn request_deadline(&self) -> Instant {
        core::after(self.request_timeout)
    }

    /// Reserve room for the confirmation before sending: a message that the client has cannot be taken back.
    async fn send_core(
        &self,
        queue: &mpsc::Sender<Unflushed>,
        to: &Address,
        out: async_nats::message::OutboundMessage,
        (bytes, confirm): (impl FnOnce() -> usize, Decision),
    ) -> Result<(), TransportError> {
        let room = match queue.try_reserve() {
            Ok(room) => room,
            Err(_) => self.in_queue(queue.reserve()).await?,
        };
        if !self.link.is_usable() {
            self.link.up(core::after(self.ack_timeout)).await?;
        }
        // After the wait: a message that waited for a reconnect goes to the new connection, and only that connection
        // can lose it.
        let connects = connects(&self.client);
        if self.link.is_refused(to.topic.as_str()) {
            drop(room);
            return Box::pin(self.send_doubtful(to, out, bytes(), confirm)).await;
        }
        let subject = out.subject.clone();
        core::publish(&self.client, out, bytes).await?;
        room.send(Unflushed {
            subject,
            connects,
            confirm,
        });
        Ok(())
    }

    /// Publishes to a subject that the server has refused. The confirmation waits for an echo: a server that still
    /// refuses it says so before.
    async fn send_doubtful(
        &self,
        to: &Address,
        out: async_nats::message::OutboundMessage,
        bytes: usize,
        verdict: Decision,
    ) -> Result<(), TransportError> {
        let (token, echo) = self.next_echo()?;
        let echo = core::outbound(&Address::topic(echo), &Message::default(), None)?;
        let expected = Expected {
            token,
            answer: Answer::Permitted,
            bytes,
            subject: to.topic.clone(),
            connects: connects(&self.client),
            deadline: core::after(self.ack_timeout),
            verdict,
            permit: None,
        };
        self.ask(expected, out).await?;
        // Not awaited, because the message cannot be taken back any more. Without an echo, its confirmation times out.
        let (client, stop) = (self.client.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let published = core::publish(&client, echo, || 0);
            drop(stop.run_until_cancelled(published).await);
        });
        Ok(())
    }

    async fn send_stored(
        &self,
        to: &Address,
        mut out: async_nats::message::OutboundMessage,
        bytes: usize,
        verdict: Decision,
    ) -> Result<(), TransportError> {
        let permit = match Arc::clone(&self.unanswered).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let acquired = Arc::clone(&self.unanswered).acquire_owned();
                self.in_queue(acquired).await?
            }
        };
        if !self.link.is_usable() || !self.streams_tried.is_cancelled() {
            self.ready_to_store().await?;
        }
        let token = self.next_token();
        // The stream answers to the reply subject, so the message cannot carry another one for agents.
        let reply = [&self.inbox, ".", itoa::Buffer::new().format(token)].concat();
        out.reply = Some(reply.into());
        let expected = Expected {
            token,
            answer: Answer::Stored,
            bytes,
            subject: to.topic.clone(),
            connects: connects(&self.client),
            deadline: core::after(self.ack_timeout),
            verdict,
            permit: Some(permit),
        };
        self.ask(expected, out).await
    }

    /// Waits for the connection, and until the managed streams were tried: a message that comes before its stream
    /// exists would be refused, and overtaken by later messages.
    async fn ready_to_store(&self) -> Result<(), TransportError> {
        let deadline = core::after(self.ack_timeout);
        self.link.up(deadline).await?;
        let tried = self.streams_tried.cancelled();
        match tokio::time::timeout_at(deadline, tried).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.link.disconnected("make the managed streams")),
        }
    }

    /// Announces a question and sends it. If sending fails, the announcement and its permit are withdrawn.
    async fn ask(
        &self,
        expected: Expected,
        out: async_nats::message::OutboundMessage,
    ) -> Result<(), TransportError> {
        let (token, bytes) = (expected.token, expected.bytes);
        let mut room = self.in_queue(self.notices.reserve_many(2)).await?;
        if let Some(first) = room.next() {
            first.send(Notice::Expected(expected));
        }
        let mut unasked = NotSentGuard {
            token,
            room: Some(room),
        };
        core::publish(&self.client, out, || bytes).await?;
        unasked.room = None;
        Ok(())
    }

    /// A round trip: publishes to our own inbox and waits for the message to return. The server handles the data of one
    /// connection in order, so it has then seen every earlier subscription. A flush only empties our own buffer.
    async fn echo(&self) -> Result<(), TransportError> {
        let (token, subject) = self.next_echo()?;
        let (verdict, echoed) = Confirmation::waiting();
        let expected = Expected {
            token,
            answer: Answer::Echo,
            bytes: 0,
            subject: subject.clone(),
            connects: connects(&self.client),
            deadline: core::after(self.request_timeout),
            verdict,
            permit: None,
        };
        let out = core::outbound(&Address::topic(subject), &Message::default(), None)?;
        self.ask(expected, out).await?;
        echoed.await.map(drop)
    }

    /// Waits for room, at most [`QUEUE_DEADLINE`].
    async fn in_queue<T, E>(
        &self,
        room: impl Future<Output = Result<T, E>>,
    ) -> Result<T, TransportError> {
        match tokio::time::timeout(QUEUE_DEADLINE, room).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(self.link.gone()),
            Err(_) => Err(TransportError::new(
                TransportErrorKind::Saturated,
                "wait for earlier NATS publications to be confirmed",
            )),
        }
    }

    /// The token and the subject of the next message to our own inbox.
    fn next_echo(&self) -> Result<(u64, Topic), TransportError> {
        let token = self.next_token();
        let subject = Topic::new(format!("{}.{token}", self.inbox)).map_err(|error| {
            TransportError::new(TransportErrorKind::BadConfig, "use inbox_prefix").caused_by(error)
        })?;
        Ok((token, subject))
    }

    fn next_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Confirms pending publications, ends all tasks with `stop`, and closes the client. Without a connection nothing
    /// can be confirmed: what was sent has failed.
    async fn close(
        &self,
        deadline: Instant,
        stop: &CancellationToken,
    ) -> Result<(), TransportError> {
        let queues_empty = async {
            // A queue without waiting messages has all its room free, and all permits are free if nothing is
            // unanswered. Acquiring them fails only if they were closed before, and then nothing waits either.
            for queue in [&self.written, &self.requested] {
                drop(queue.reserve_many(queue.max_capacity()).await);
            }
            drop(self.unanswered.acquire_many(self.max_ack_pending).await);
        };
        let emptied = tokio::time::timeout_at(deadline, queues_empty)
            .await
            .is_ok();
        let flushed = !self.link.is_up() || self.flush(deadline).await;
        self.link.close();
        self.unanswered.close();
        stop.cancel();
        self.tasks.close();
        let ended = tokio::time::timeout_at(deadline, self.tasks.wait())
            .await
            .is_ok();
        // Ends the client's own task. Without a connection the task reads no commands: it then sleeps until the process
        // ends, because its pause between attempts is now endless.
        let last_word = deadline.max(core::after(CLOSE_TIMEOUT));
        if tokio::time::timeout_at(last_word, self.client.drain())
            .await
            .is_err()
        {
            tracing::debug!("the NATS client could not be closed");
        }
        if emptied && flushed && ended {
            Ok(())
        } else {
            Err(TransportError::new(
                TransportErrorKind::TimedOut,
                "close NATS: something was not confirmed or not settled",
            ))
        }
    }

    async fn flush(&self, deadline: Instant) -> bool {
        matches!(
            tokio::time::timeout_at(deadline, self.client.flush()).await,
            Ok(Ok(()))
        )
    }
}

/// Subscriptions.
impl Inner {
    async fn subscribe_core(
        &self,
        subscription: &Subscription,
        group: Option<&Text>,
    ) -> Result<Consumer, TransportError> {
        if subscription.topics.is_empty() {
            return Err(TransportError::new(
                TransportErrorKind::BadConfig,
                "subscribe to no topic at all",
            ));
        }
        let topics = subscription.topics.iter();
        let subjects = topics.map(|topic| Text::from(topic.as_str())).collect();
        let mut listener = RefusalListener::new(&self.link, subjects, group);
        let (connection, overrun) = (self.link.connection(), self.link.overrun());
        let lost = CancellationToken::new();
        let mut subscribers = Vec::with_capacity(subscription.topics.len());
        for topic in &subscription.topics {
            subscribers.push(subscribe_one(&self.client, topic.as_str().to_owned(), group).await?);
        }
        self.echo().await?;
        listener.check(self.link.user()).await?;
        let budget = core::Budget::new(subscription.budget_bytes, subscription.budget_messages);
        let (deliveries, to_consumer) = mpsc::channel(budget.max_messages());
        let (stop, reader, end) = Self::stop_with(&self.stop_all);
        let leave = CancellationToken::new();
        let name = described(&subscription.topics, group);
        let ends = (lost.clone(), leave.clone());
        let listening = listener.end_when_refused(name.clone(), ends, stop.clone());
        self.tasks.spawn(listening);
        let core = CoreReader {
            messages: Subscribers::new(subscribers),
            deliveries,
            budget,
            link: Arc::clone(&self.link),
            leave: leave.clone(),
            subscription: name,
            connection,
            overrun,
            lost: lost.clone(),
            stop,
        };
        self.tasks.spawn(async move {
            core.run().await;
            // Nobody may be waiting for the end.
            let _ = end.send(Ok(()));
        });
        Ok(Consumer::new(to_consumer, reader)
            .leaving(leave)
            .losing(lost))
    }

    async fn subscribe_durable(
        &self,
        subscription: &Subscription,
        stream: &Text,
        name: &Text,
    ) -> Result<Consumer, TransportError> {
        for word in [stream, name] {
            if !config::is_name(word) {
                return Err(TransportError::new(
                    TransportErrorKind::BadConfig,
                    format!("read {word:?}: not a valid name of a stream or consumer"),
                ));
            }
        }
        let consumer = ConsumerRef {
            api: self.api.clone(),
            stream: stream.clone(),
            name: name.clone(),
            topics: subscription.topics.as_slice().into(),
            max_ack_pending: u32::try_from(subscription.budget_messages)
                .unwrap_or(u32::MAX)
                .max(1),
        };
        let (deliveries, to_consumer) = mpsc::channel(subscription.budget_messages.max(1));
        let (tell_lag, lag) = watch::channel(None);
        let asking = consumer.clone();
        let (reading, tell_state) = DurableReader::open(
            self.client.clone(),
            Arc::clone(&self.link),
            consumer,
            subscription.budget_bytes,
            deliveries,
        )
        .await?;
        let (stop, reader, end) = Self::stop_with(&self.stop);
        let deadlines = Arc::new(OnceLock::new());
        let until = Arc::clone(&deadlines);
        self.tasks.spawn(async move {
            tokio::select! {
                () = reading.run(stop, until) => {}
                never = asking.watch(tell_lag, tell_state) => match never {},
            }
            asking.unwatched();
            // Nobody may be waiting for the end.
            let _ = end.send(Ok(()));
        });
        Ok(Consumer::new(to_consumer, reader)
            .draining(deadlines)
            .with_lag(lag))
    }
}

/// How long the client may take to accept the close command, even after the deadline for closing.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// The name of a subscription in messages: `a.b, c.> (group g)`.
fn described(topics: &[TopicFilter], group: Option<&Text>) -> String {
    let topics: Vec<&str> = topics.iter().map(TopicFilter::as_str).collect();
    let group = group.map(|group| format!(" (group {group})"));
    topics.join(", ") + &group.unwrap_or_default()
}
