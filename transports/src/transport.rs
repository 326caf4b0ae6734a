//! The contract of Kafka, NATS and memory.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::delivery::Delivery;
use crate::error::{TransportError, TransportErrorKind};
use crate::log::LogPosition;
use crate::message::{Message, Topic};

/// A connection to one bus. Cheap to clone; all clones share it. All methods may run in parallel.
///
/// Implementations pass one battery of named cases (`tests/support/battery.rs`).
pub trait Transport: Clone + fmt::Debug + Send + Sync + 'static {
    /// Starts reading. Returns once the source knows the subscription, so that a message published afterwards to a
    /// [`Reading::Live`] subscription is received.
    ///
    /// Order: deliveries of one lane are in the order of the source, except that JetStream may deliver an abandoned
    /// message after its successors. Retries: the implementation reconnects by itself, with back-off, forever. The
    /// consumer ends only when it is closed, when its client has failed and is replaced, or when another process has
    /// taken its place ([`Consumer::close`] then says so).
    ///
    /// # Errors
    /// When the source cannot be reached or refuses. Cancel-safe: nothing stays subscribed.
    fn subscribe(
        &self,
        subscription: Subscription,
    ) -> impl Future<Output = Result<Consumer, TransportError>> + Send;

    /// Gives a message, owned or borrowed, to the client in order, and returns the [`Confirmation`] to wait for.
    /// Consecutive calls for the same topic and key arrive in that order, unless some of them may linger and others may
    /// not ([`Address::may_linger`]), or Kafka has refused a batch of the topic as too large for the first time. Waits
    /// while there is no room for it, at most `QUEUE_DEADLINE`. NATS also waits for a connection, and for
    /// [`Guarantee::StoredIfAny`] for an answer of JetStream. Retries: the client, up to its delivery deadline; after
    /// that the caller.
    ///
    /// # Errors
    /// When the message was not queued. Cancel-safe: either queued or not at all.
    fn send(
        &self,
        to: &Address,
        message: impl Borrow<Message> + Send,
    ) -> impl Future<Output = Result<Confirmation, TransportError>> + Send;

    /// Number of partitions of a topic; 1 where the transport has none.
    ///
    /// # Errors
    /// `UnknownTopic` when it does not exist.
    fn partitions(&self, topic: &Topic)
    -> impl Future<Output = Result<u32, TransportError>> + Send;

    /// Creates a topic, with `partitions` partitions, if it does not exist. Does nothing on NATS core.
    ///
    /// # Errors
    /// When it does not exist and cannot be created.
    fn ensure_topic(
        &self,
        topic: &Topic,
        partitions: u32,
    ) -> impl Future<Output = Result<(), TransportError>> + Send;

    /// Whether the bus can be reached now, and if not, why. Changes are visible at once.
    fn health(&self) -> watch::Receiver<Health>;

    /// Waits until everything queued is confirmed or the deadline has passed, then closes the connection.
    ///
    /// # Errors
    /// `TimedOut` when something was still unconfirmed.
    fn close(&self, deadline: Duration) -> impl Future<Output = Result<(), TransportError>> + Send;
}

/// The longest [`Transport::send`] waits for room, in each queue.
pub const QUEUE_DEADLINE: Duration = Duration::from_secs(30);

/// How often a source is asked for the lag of its readers.
pub const LAG_INTERVAL: Duration = Duration::from_secs(5);

/// [`Consumer::close`] waits for deliveries in progress at most this long, whatever its argument.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether a bus can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Up,
    /// No attempt to connect has succeeded or failed yet; the brokers or servers.
    Connecting(Text),
    /// It answers, but a part of it does not work, such as one subscription; which part, and the reason.
    Impaired(Text),
    /// It does not answer; the reason.
    Down(Text),
}

// === impl Health ===

impl Health {
    /// Whether the bus answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self, Self::Up | Self::Impaired(_))
    }
}

/// What to read and how.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Topics; on NATS and in memory with the wildcards `*` (one word) and `>` (the rest).
    pub topics: Vec<TopicFilter>,
    /// How to share and remember the reading position.
    pub reading: Reading,
    /// The source is paused when received and unsettled messages have this many bytes.
    pub budget_bytes: usize,
    /// At most this many messages are received and unsettled.
    pub budget_messages: usize,
}

/// A partition that is not read, although the budget has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausedPartition {
    /// `TOPIC/PARTITION`.
    pub partition: Text,
    /// Why it is not read.
    pub cause: PauseCause,
}

/// Why a partition is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseCause {
    /// Too many messages after an outstanding one are already settled: Kafka commits in order, and would deliver all of
    /// them again after a crash.
    Behind,
    /// None of its messages settles, and they use its share of the budget.
    Blocked,
}

/// How a subscription shares and stores its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Members of the group share the messages. Kafka: a consumer group, at least once, starting at the earliest record
    /// when the group is new. NATS: a queue group on core subjects, at most once. Memory: a group, at least once,
    /// starting at the earliest message that is kept.
    Group(Text),
    /// The same, for work that may be done twice, but not late: on Kafka, the group notices after 10 s at most that a
    /// member has died, and after 5 s that a topic has new partitions.
    PromptGroup(Text),
    /// A durable JetStream consumer of that name on that stream, at least once. NATS only.
    Durable {
        /// The stream.
        stream: Text,
        /// The durable consumer.
        name: Text,
    },
    /// A copy of everything published from now on, without a stored position (Kafka: no group, no commits).
    Live {
        /// The only partition to read, on transports that have them; `None` for all.
        partition: Option<u32>,
    },
}

/// A topic, or a pattern of topics with the NATS wildcards.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicFilter(Text);

/// The destination of a message.
#[derive(Debug, Clone)]
pub struct Address {
    /// The topic or subject.
    pub topic: Topic,
    /// A partition to force (Kafka); otherwise the key decides.
    pub partition: Option<u32>,
    /// The reply subject to set on the message (NATS, memory).
    pub reply_to: Option<Topic>,
    /// The guarantee that the confirmation must give.
    pub guarantee: Guarantee,
    /// Whether the message may wait for others, to be sent with them (Kafka, for its `linger`). Messages that may and
    /// messages that may not wait are not in order with each other.
    pub may_linger: bool,
}

/// The guarantee that a confirmation gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarantee {
    /// Kafka: written by all in-sync replicas. Memory: in the topic. NATS core: written to the connection; a subscriber
    /// may or may not receive it.
    Default,
    /// NATS: stored by a JetStream stream, which drops a duplicate with the same id within its window. On other
    /// transports like `Default`.
    Stored {
        /// The `Nats-Msg-Id`.
        message_id: Option<Text>,
    },
    /// NATS: like `Stored`, if a JetStream stream takes the subject; otherwise like `Default`. On other transports like
    /// `Default`.
    StoredIfAny {
        /// The `Nats-Msg-Id`.
        message_id: Text,
    },
    /// NATS: like `Stored`, if nothing has been stored on the subject since; otherwise it fails with
    /// [`TransportErrorKind::Overtaken`]. On other transports like `Default`.
    StoredNext {
        /// The sequence of the last message on the subject, or 0.
        after: u64,
    },
}

/// Proof that the transport has the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its position, like [`Delivery::origin`], if the transport knows it.
    pub position: Option<Text>,
}

/// How many confirmations have failed in this process.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// How many confirmations have failed so far, on all transports. If several are awaited in turn, a change of this
/// number means that it is time to look at all of them.
#[must_use]
pub fn failed_confirmations() -> u64 {
    FAILED.load(Ordering::Acquire)
}

/// A future [`Receipt`]. Dropping it does not withdraw the message.
#[derive(Debug)]
#[must_use = "nothing is known to be delivered before the confirmation resolves"]
pub struct Confirmation(ConfirmationState);

#[derive(Debug)]
enum ConfirmationState {
    Ready(Option<Result<Receipt, TransportError>>),
    Waiting(oneshot::Receiver<Result<Receipt, TransportError>>),
}

/// Decides a [`Confirmation`]. Dropping it means that the client has ended.
#[derive(Debug)]
pub(crate) struct Decision(Option<oneshot::Sender<Result<Receipt, TransportError>>>);

/// The deadlines of a subscription that closes. Each leaves time for what comes after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloseDeadlines {
    /// For outstanding deliveries to settle: three quarters of the time.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "nats")),
        expect(dead_code, reason = "the memory transport waits by itself")
    )]
    pub(crate) settle: Instant,
    /// For the last commit: seven eighths of the time. The rest is for leaving the group.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "only Kafka commits positions")
    )]
    pub(crate) commit: Instant,
    /// For everything.
    #[cfg_attr(
        not(feature = "kafka"),
        expect(dead_code, reason = "only Kafka leaves a group")
    )]
    pub(crate) end: Instant,
}

/// The receiving end of a subscription. Dropping it, or [`Consumer::close`], ends the subscription.
#[derive(Debug)]
pub struct Consumer {
    deliveries: mpsc::Receiver<Delivery>,
    reader: Reader,
    deadlines: Option<Arc<OnceLock<CloseDeadlines>>>,
    leave: Option<CancellationToken>,
    share: Option<watch::Receiver<Share>>,
    missing: Option<watch::Receiver<Vec<Topic>>>,
    lag: Option<watch::Receiver<Option<u64>>>,
    removed: Option<watch::Receiver<u64>>,
    paused: Option<watch::Receiver<Vec<PausedPartition>>>,
    lost: Option<CancellationToken>,
}

/// Whether a consumer has a share of its topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// It waits for one.
    Waiting,
    /// The cluster has refused it a permission.
    Refused,
    /// It has one, which is empty if other members of the group have everything.
    Assigned,
}

/// The owner of the task or thread that reads for a [`Consumer`].
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) stop: CancellationToken,
    /// The result.
    pub(crate) ended: oneshot::Receiver<Result<(), TransportError>>,
}

// === impl Receipt ===

impl Receipt {
    /// The position of a message that a log stored, on Kafka and JetStream.
    #[must_use]
    pub fn log_position(&self) -> Option<LogPosition> {
        let (place, offset) = self.position.as_ref()?.rsplit_once('/')?;
        let partition = match place.strip_prefix("k:") {
            Some(place) => place.rsplit_once('/')?.1.parse().ok()?,
            None => place.starts_with("j:").then_some(0)?,
        };
        let offset = offset.parse().ok()?;
        Some(LogPosition { partition, offset })
    }
}

// === impl TopicFilter ===

impl TopicFilter {
    /// Checks a topic or a pattern.
    ///
    /// # Errors
    /// If a segment is neither a valid topic segment, `*`, nor a last `>`.
    pub fn new(pattern: impl Into<Text>) -> Result<Self, crate::message::TopicError> {
        let pattern = pattern.into();
        let plain: Vec<&str> = pattern
            .split('.')
            .enumerate()
            .map(|(index, word)| match word {
                "*" => "x",
                ">" if index + 1 == pattern.split('.').count() => "x",
                word => word,
            })
            .collect();
        Topic::new(plain.join("."))?;
        Ok(Self(pattern))
    }

    /// The pattern.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The topic, when the pattern has no wildcard.
    #[must_use]
    pub fn as_topic(&self) -> Option<Topic> {
        Topic::new(self.0.clone()).ok()
    }

    /// Whether the topic matches.
    #[must_use]
    pub fn matches(&self, topic: &Topic) -> bool {
        let (pattern, topic) = (self.0.as_str(), topic.as_str());
        let prefix = pattern.strip_suffix('>').unwrap_or(pattern);
        if !prefix.contains('*') {
            let is_exact = prefix.len() == pattern.len();
            return topic.starts_with(prefix) && (topic.len() == prefix.len()) == is_exact;
        }
        let mut words = topic.split('.');
        for pattern in pattern.split('.') {
            match (pattern, words.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (pattern, Some(word)) if pattern == word => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }
}

/// Whether one topic can match both patterns.
#[must_use]
pub fn overlap(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(x), Some(y)) if x == y || x == "*" || y == "*" => {}
            _ => return false,
        }
    }
}

impl From<Topic> for TopicFilter {
    fn from(topic: Topic) -> Self {
        Self(Text::from(topic.as_str()))
    }
}

// === impl Address ===

impl Address {
    /// Only the topic; the transport chooses the rest.
    #[must_use]
    pub fn topic(topic: Topic) -> Self {
        Self {
            topic,
            partition: None,
            reply_to: None,
            guarantee: Guarantee::Default,
            may_linger: false,
        }
    }
}

// === impl Confirmation ===

impl Confirmation {
    /// A confirmation with a known result.
    pub(crate) fn ready(result: Result<Receipt, TransportError>) -> Self {
        if result.is_err() {
            FAILED.fetch_add(1, Ordering::Release);
        }
        Self(ConfirmationState::Ready(Some(result)))
    }

    /// A confirmation that is decided later.
    pub(crate) fn waiting() -> (Decision, Self) {
        let (sender, receiver) = oneshot::channel();
        let waiting = Self(ConfirmationState::Waiting(receiver));
        (Decision(Some(sender)), waiting)
    }

    /// The result, if it is known by now. It is returned only once.
    pub fn now(&mut self) -> Option<Result<Receipt, TransportError>> {
        match &mut self.0 {
            ConfirmationState::Ready(result) => result.take(),
            ConfirmationState::Waiting(receiver) => match receiver.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => Some(Err(gone())),
            },
        }
    }
}

// === impl Decision ===

impl Decision {
    /// Decides the confirmation. Whoever sent the message may no longer wait for it.
    pub(crate) fn decide(mut self, result: Result<Receipt, TransportError>) {
        self.send(Some(result));
    }

    /// Whether nobody waits for the confirmation.
    #[cfg(feature = "nats")]
    pub(crate) fn is_unwanted(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn send(&mut self, result: Option<Result<Receipt, TransportError>>) {
        let Some(sender) = self.0.take() else {
            return;
        };
        let has_failed = !matches!(result, Some(Ok(_)));
        match result {
            Some(result) => drop(sender.send(result)),
            None => drop(sender),
        }
        // Counted after the result is sent, so that whoever sees the new number finds the result.
        if has_failed {
            FAILED.fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for Decision {
    fn drop(&mut self) {
        self.send(None);
    }
}

fn gone() -> TransportError {
    TransportError::new(
        TransportErrorKind::Closed,
        "the client closed before the confirmation",
    )
}

impl Future for Confirmation {
    type Output = Result<Receipt, TransportError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ConfirmationState::Ready(result) => {
                Poll::Ready(result.take().unwrap_or_else(|| Err(gone())))
            }
            ConfirmationState::Waiting(receiver) => Pin::new(receiver)
                .poll(cx)
                .map(|result| result.unwrap_or_else(|_| Err(gone()))),
        }
    }
}

// === impl CloseDeadlines ===

impl CloseDeadlines {
    fn within(limit: Duration) -> Self {
        let (now, limit) = (Instant::now(), limit.min(MAX_DRAIN));
        let eighth = limit / 8;
        Self {
            settle: now + eighth * 6,
            commit: now + eighth * 7,
            end: now + limit,
        }
    }
}

// === impl Consumer ===

impl Consumer {
    pub(crate) fn new(deliveries: mpsc::Receiver<Delivery>, reader: Reader) -> Self {
        Self {
            deliveries,
            reader,
            deadlines: None,
            leave: None,
            share: None,
            missing: None,
            lag: None,
            removed: None,
            paused: None,
            lost: None,
        }
    }

    /// The same, with a cell that [`Consumer::close`] sets before it stops the reader. A reader that is stopped while
    /// the cell is empty does not wait for deliveries.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn draining(mut self, deadlines: Arc<OnceLock<CloseDeadlines>>) -> Self {
        self.deadlines = Some(deadlines);
        self
    }

    /// The same, for a source that sends nothing again: `leave` asks it to stop sending, and everything sent before is
    /// delivered.
    #[cfg(feature = "nats")]
    pub(crate) fn leaving(mut self, leave: CancellationToken) -> Self {
        self.leave = Some(leave);
        self
    }

    /// The same, for a source that can lose messages: `lost` is cancelled when it may have lost one.
    #[cfg(feature = "nats")]
    pub(crate) fn losing(mut self, lost: CancellationToken) -> Self {
        self.lost = Some(lost);
        self
    }

    /// The same, for a source that assigns a share to a consumer later, and whose topics may cease to exist.
    #[cfg(feature = "kafka")]
    pub(crate) fn awaiting_assignment(
        mut self,
        share: watch::Receiver<Share>,
        missing: watch::Receiver<Vec<Topic>>,
    ) -> Self {
        (self.share, self.missing) = (Some(share), Some(missing));
        self
    }

    /// The same, for a source that reports the lag of its readers.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn with_lag(mut self, lag: watch::Receiver<Option<u64>>) -> Self {
        self.lag = Some(lag);
        self
    }

    /// The same, for a source that may remove messages before they are read.
    #[cfg(feature = "kafka")]
    pub(crate) fn with_removed(mut self, removed: watch::Receiver<u64>) -> Self {
        self.removed = Some(removed);
        self
    }

    /// The same, for a source that may pause single partitions.
    #[cfg(feature = "kafka")]
    pub(crate) fn with_paused(mut self, paused: watch::Receiver<Vec<PausedPartition>>) -> Self {
        self.paused = Some(paused);
        self
    }

    /// The partitions that are paused because of their own messages. `None` for sources where this cannot happen.
    #[must_use]
    pub fn paused(&self) -> Option<watch::Receiver<Vec<PausedPartition>>> {
        self.paused.clone()
    }

    /// How many messages at the source are not settled, measured every [`LAG_INTERVAL`]: on Kafka those after the
    /// stored offset in the partitions of this member, on JetStream those that the durable consumer has not yet
    /// delivered or that are not acknowledged, by any reader. `None` inside while it is unknown; `None` altogether for
    /// sources that do not report it: core NATS, memory, and live readers.
    #[must_use]
    pub fn lag(&self) -> Option<watch::Receiver<Option<u64>>> {
        self.lag.clone()
    }

    /// How many messages of this subscription the source has removed before they were read, so far. `None` for sources
    /// that do not report it: all but groups on Kafka.
    #[must_use]
    pub fn removed(&self) -> Option<watch::Receiver<u64>> {
        self.removed.clone()
    }

    /// The topics that existed when the subscription began, and no longer exist. They are read once they exist again.
    /// `None` for sources that do not report it: all but Kafka.
    #[must_use]
    pub fn missing_topics(&self) -> Option<watch::Receiver<Vec<Topic>>> {
        self.missing.clone()
    }

    /// Waits for a share of the topics. The share may be empty if other members of the group have everything. Ready at
    /// once on sources without assignments. During a rebalance it may wait again. Does not borrow the consumer, which
    /// must be read meanwhile.
    pub fn assigned(&self) -> impl Future<Output = ()> + Send + use<> {
        let share = self.share.clone();
        async move {
            if let Some(mut share) = share
                && share
                    .wait_for(|share| *share == Share::Assigned)
                    .await
                    .is_err()
            {
                // The reader has ended.
                std::future::pending().await
            }
        }
    }

    /// The share of the consumer in the topics. `None` for sources without assignments.
    #[must_use]
    pub fn share(&self) -> Option<watch::Receiver<Share>> {
        self.share.clone()
    }

    /// Waits until a message of this subscription may have been lost: on core NATS when the connection changes, or when
    /// messages arrive faster than they are read. Never ready on sources that store messages. Does not borrow the
    /// consumer.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost = self.lost.clone();
        async move {
            match lost {
                Some(lost) => lost.cancelled_owned().await,
                None => std::future::pending().await,
            }
        }
    }

    /// The next delivery; `None` once the subscription is closed and everything received was delivered. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// Waits for the next delivery, and appends it and further available deliveries to a list, at most `most`. Returns
    /// how many: 0 once the subscription is closed and everything received was delivered. Cancel-safe.
    pub async fn recv_many(&mut self, deliveries: &mut Vec<Delivery>, max: usize) -> usize {
        self.deliveries.recv_many(deliveries, max).await
    }

    /// The next delivery, if one is available.
    pub fn try_recv(&mut self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }

    /// Stops receiving new messages. Already received messages are still delivered, until [`Consumer::recv`] returns
    /// `None`. Deliveries can be settled until [`Consumer::close`].
    pub fn stop(&mut self) {
        match &self.leave {
            Some(leave) => leave.cancel(),
            None => self.deliveries.close(),
        }
    }

    /// Ends the subscription: positions of settled deliveries are committed, the others are abandoned. Outstanding
    /// deliveries have until `deadline` to settle first.
    ///
    /// # Errors
    /// `TimedOut` when the reader did not end in time; it then ends by itself. If the reader had already failed: its
    /// error. After `Fenced`, do not subscribe again at once.
    pub async fn close(mut self, deadline: Duration) -> Result<(), TransportError> {
        self.deliveries.close();
        while self.deliveries.try_recv().is_ok() {}
        if let Some(deadlines) = &self.deadlines {
            deadlines.get_or_init(|| CloseDeadlines::within(deadline));
        }
        self.reader.stop.cancel();
        match tokio::time::timeout(deadline, &mut self.reader.ended).await {
            Ok(Ok(how)) => how,
            // The reader ended without an error: the client ended it.
            Ok(Err(_)) => Ok(()),
            Err(_) => Err(TransportError::new(
                TransportErrorKind::TimedOut,
                "close the subscription",
            )),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`TopicFilter::matches`] without its shortcut for patterns that have no `*`.
    fn matches_by_words(pattern: &str, topic: &str) -> bool {
        let mut words = topic.split('.');
        for pattern in pattern.split('.') {
            match (pattern, words.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (pattern, Some(word)) if pattern == word => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }

    /// All texts of one to three of the words.
    fn texts(words: &[&str]) -> Vec<String> {
        let longer = |texts: &[String]| -> Vec<_> {
            let longer = |text| words.iter().map(move |word| format!("{text}.{word}"));
            texts.iter().flat_map(longer).collect()
        };
        let ones: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        let twos = longer(&ones);
        let threes = longer(&twos);
        [ones, twos, threes].concat()
    }

    #[test]
    fn a_filter_matches_word_by_word() {
        let texts = texts(&["a", "b", "ab", "-", "_a", "*", ">"]);
        let filters = texts
            .iter()
            .filter_map(|text| TopicFilter::new(text.as_str()).ok());
        let topics = texts
            .iter()
            .filter_map(|text| Topic::new(text.as_str()).ok());
        let topics: Vec<_> = topics.collect();
        let (mut matching, mut others) = (0, 0);
        for filter in filters {
            for topic in &topics {
                let expected = matches_by_words(filter.as_str(), topic.as_str());
                assert_eq!(filter.matches(topic), expected, "{filter:?} {topic:?}");
                *if expected { &mut matching } else { &mut others } += 1;
            }
        }
        assert!(matching > 1_000 && others > 10_000, "{matching} {others}");
    }
}
