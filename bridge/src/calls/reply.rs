//! The reply addresses of this replica, on every bus.
//!
//! ```text
//!            Kafka                                     NATS, memory
//! replyto    reply topic + partition of this replica   subject of this replica + call id
//! read by    one reader of that partition, no group    one subscription to the replica's subjects
//! misplaced  a group over the whole topic forwards     the subject always names its replica
//! ```
//!
//! A replica reads one partition of the reply topic without a consumer group: it is ready at once, a rebalance cannot
//! take its answers away, and several replicas may share a partition. Answers that arrive elsewhere (in another
//! partition, or on a response topic of simple agents) are published once more, to the address that their call id
//! names. Response topics that are read with core NATS are different: every replica reads them whole, and takes the
//! answers to its own calls. A queue group would spread the parts of one answer over the replicas, out of order. Their
//! answers are forwarded for processes that do not read them; who reads them ignores these copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use a2abus_models::e2a::Trust;
use a2abus_plugin::{Event, Text, extension};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{
    Address, Message, Reading, Subscription, Topic, TopicError, TopicFilter, TransportError,
    overlap,
};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Notify, watch};

use crate::bus::headers::spring;
use crate::bus::outbound::Outgoing;
use crate::bus::{BusId, Buses};
use crate::calls::callid::{CallId, Replica, ReplyId};
use crate::calls::reply_source::FORWARDED_FROM;
use crate::names::put;

/// The reply addresses of this replica, on every bus.
#[derive(Debug, Clone)]
pub struct ReplyChannels {
    channels: Vec<ReplyChannel>,
    replica: Replica,
    /// Whether every partition is read.
    reads_every_partition: Arc<AtomicBool>,
}

/// The reply address of this replica on one bus.
#[derive(Debug, Clone)]
pub struct ReplyChannel {
    /// The bus.
    pub bus: BusId,
    reply_address: ReplyAddress,
    /// Whether the address is being read. A call made before that would lose its answer.
    reading: watch::Sender<bool>,
    /// Notified when an answer was read at the wrong address.
    misplaced: Arc<Notify>,
}

#[derive(Debug, Clone)]
enum ReplyAddress {
    /// A topic with partitions. Each replica has its own, if there are enough.
    Partitioned {
        topic: Topic,
        partitions: Arc<AtomicU16>,
    },
    /// Subjects below this one: `SUBJECT.REPLICA.CALLID`, with the reply token after the call id, and `followed` before
    /// it if other replicas read the answer too.
    Subjects {
        below: Topic,
        /// The response topics that every replica reads whole.
        others: Vec<TopicFilter>,
        /// Those of bindings that trust their peers.
        trusted: Vec<TopicFilter>,
    },
}

/// The header of an answer that one replica has forwarded to another. It is not forwarded again: two replicas that
/// disagree about its address would do so forever.
pub const FORWARDS: &str = "bus-forwards";

/// Its value if the answer was read in another topic, and if it was read in another partition of the reply topic.
const ELSEWHERE: &str = "1";
const WITHIN: &str = "within";

/// The header of a message that is forwarded in place of an answer: it tells why the answer cannot be used or
/// forwarded.
const NOT_FORWARDED: &str = "bus-not-forwarded";
/// The longest text in it, in characters.
const MAX_WHY: usize = 1_024;

/// Whether a message was forwarded within the reply topic. Then a reader of all partitions has read the answer before.
pub(crate) fn is_forwarded_within(message: &Message) -> bool {
    let from = message.headers.get(FORWARDS);
    from.is_some_and(|from| from == WITHIN)
}

/// Why the answer in whose place a message was forwarded cannot be used.
pub(crate) fn why_not_forwarded(message: &Message) -> Option<Text> {
    let why = message.headers.get(NOT_FORWARDED)?;
    let why = String::from_utf8_lossy(why);
    Some(why.chars().take(MAX_WHY).collect::<String>().into())
}

/// A small message in place of an answer that cannot be used: it ends the call `id` at once, with the reason. A replica
/// that does not know the header reads a JSON-RPC error.
pub(crate) fn in_place_of_answer(id: &str, why: &str) -> Message {
    let error = json!({ "code": -32_603, "message": why });
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
    let mut message = Message::plain(body.to_string());
    // Headers of NATS hold visible characters.
    let visible = |c: char| {
        if c == ' ' || c.is_ascii_graphic() {
            c
        } else {
            '?'
        }
    };
    let why: String = why.chars().take(MAX_WHY).map(visible).collect();
    message.headers.push(NOT_FORWARDED, why);
    message.headers.push(spring::CORRELATION_ID, id.to_owned());
    message
}

/// The message to send in place of a forwarded answer that its bus refuses for good, which is usually too large.
pub(crate) fn in_place_of_refused(copy: &Outgoing, error: &TransportError) -> Option<Outgoing> {
    let headers = &copy.message.headers;
    let forwards = headers.get(FORWARDS)?;
    if copy.dead_letter.is_some() || headers.get(NOT_FORWARDED).is_some() {
        return None;
    }
    let id = std::str::from_utf8(headers.get(spring::CORRELATION_ID)?).ok()?;
    let why = format!("it cannot be passed on to the replica of the call: {error}");
    let mut message = in_place_of_answer(id, &why);
    message.headers.push(FORWARDS, forwards.clone());
    if let Some(from) = headers.get(FORWARDED_FROM) {
        message.headers.push(FORWARDED_FROM, from.clone());
    }
    Some(Outgoing {
        message,
        ..copy.clone()
    })
}

/// The word before the call id in the reply subject of a call that other replicas follow.
const FOLLOWED: &str = "followed";

/// Maximum number of bytes of answers that are read and not yet handed over.
const REPLY_BUDGET_BYTES: usize = 64 << 20;
/// Maximum number of answers that are read and not yet handed over.
const REPLY_BUDGET_MESSAGES: usize = 65_536;

// === impl ReplyChannels ===

impl ReplyChannels {
    /// The reply channels of the buses that calls are published to. `topic` is the reply topic, with `partitions` where
    /// the bus has partitions.
    #[must_use]
    pub fn new(
        buses: &Buses,
        called: &[BusId],
        topic: &Topic,
        partitions: u16,
        replica: Replica,
    ) -> Self {
        let channel = |(bus, entry): (BusId, &crate::bus::Bus)| {
            let reply_address = match entry.transport.binding() {
                ProtocolBinding::Kafka => ReplyAddress::Partitioned {
                    topic: topic.clone(),
                    partitions: Arc::new(AtomicU16::new(partitions.max(1))),
                },
                ProtocolBinding::Nats | ProtocolBinding::Memory | ProtocolBinding::Http => {
                    ReplyAddress::Subjects {
                        below: topic.clone(),
                        others: Vec::new(),
                        trusted: Vec::new(),
                    }
                }
            };
            ReplyChannel {
                bus,
                reply_address,
                reading: watch::Sender::new(false),
                misplaced: Arc::default(),
            }
        };
        let called = buses.iter().filter(|(bus, _)| called.contains(bus));
        Self {
            channels: called.map(channel).collect(),
            replica,
            reads_every_partition: Arc::default(),
        }
    }

    /// Makes this replica also read these topics of a bus, each with the trust of its binding.
    pub(crate) fn read_also(&mut self, bus: BusId, mut topics: Vec<(TopicFilter, Trust)>) {
        let mut channels = self.channels.iter_mut();
        let channel = channels.find(|channel| channel.bus == bus);
        let address = channel.map(|channel| &mut channel.reply_address);
        let Some(ReplyAddress::Subjects {
            others, trusted, ..
        }) = address
        else {
            return;
        };
        topics.sort_by_key(|(topic, _)| wide_first(topic));
        for (topic, trust) in topics {
            if trust == Trust::Trusted {
                trusted.push(topic.clone());
            }
            // A message that two subscriptions match arrives twice.
            let is_read = |other: &TopicFilter| overlap(other.as_str(), topic.as_str());
            if !others.iter().any(is_read) {
                others.push(topic);
            }
        }
    }

    /// Whether every replica reads this topic of a bus whole.
    pub(crate) fn is_whole(&self, bus: BusId, topic: &Topic) -> bool {
        self.others_on(bus).iter().any(|other| other.matches(topic))
    }

    /// The response topics of a bus that every replica reads whole.
    fn others_on(&self, bus: BusId) -> &[TopicFilter] {
        match self.channel(bus).map(|channel| &channel.reply_address) {
            Some(ReplyAddress::Subjects { others, .. }) => others,
            Some(ReplyAddress::Partitioned { .. }) | None => &[],
        }
    }

    /// Whether a message is a copy of an answer that this replica reads itself, because it reads the topic whole. The
    /// copy was made for processes that do not read the topic.
    pub(crate) fn is_read_here(&self, bus: BusId, copy: &Message) -> bool {
        let headers = &copy.headers;
        let is_copy = headers.get(FORWARDS).is_some();
        let from = headers.get(FORWARDED_FROM).filter(|_| is_copy);
        from.and_then(|from| std::str::from_utf8(from).ok())
            .and_then(|from| Topic::new(from.to_owned()).ok())
            .is_some_and(|topic| self.is_whole(bus, &topic))
    }

    /// The trust on a topic of a bus that every replica reads whole: that of its binding.
    pub(crate) fn trust_on(&self, bus: BusId, topic: &Topic) -> Trust {
        let address = self.channel(bus).map(|channel| &channel.reply_address);
        match address {
            Some(ReplyAddress::Subjects { trusted, .. })
                if trusted.iter().any(|trusted| trusted.matches(topic)) =>
            {
                Trust::Trusted
            }
            _ => Trust::Untrusted,
        }
    }

    /// Reads every partition of reply topics, in a process that only makes calls: it forwards no misplaced answers, and
    /// there may be no other process that does.
    pub(crate) fn read_every_partition(&self) {
        self.reads_every_partition.store(true, Ordering::Relaxed);
    }

    /// Whether this process reads every partition of reply topics.
    pub(crate) fn is_reading_every_partition(&self) -> bool {
        self.reads_every_partition.load(Ordering::Relaxed)
    }

    /// A new call id of this replica.
    ///
    /// # Errors
    /// When the operating system provides no random numbers.
    pub fn new_call(&self) -> Result<CallId, getrandom::Error> {
        CallId::new(self.replica)
    }

    /// The subscription of the reader that follows the answers of other replicas: all reply addresses of followed
    /// calls, and the response topics that every replica reads whole.
    ///
    /// # Errors
    /// When the reply topic is too long.
    pub fn followed(&self, channel: &ReplyChannel) -> Result<Subscription, TopicError> {
        let topics = match &channel.reply_address {
            ReplyAddress::Partitioned { topic, .. } => vec![TopicFilter::from(topic.clone())],
            ReplyAddress::Subjects { below, others, .. } => {
                and_others(TopicFilter::new(format!("{below}.*.{FOLLOWED}.>"))?, others)
            }
        };
        Ok(Subscription {
            topics,
            reading: Reading::Live { partition: None },
            budget_bytes: REPLY_BUDGET_BYTES,
            budget_messages: REPLY_BUDGET_MESSAGES,
        })
    }

    /// Whether the call was made by this replica.
    #[must_use]
    pub fn is_ours(&self, call: CallId) -> bool {
        call.replica() == self.replica
    }

    /// All channels.
    pub fn iter(&self) -> impl Iterator<Item = &ReplyChannel> {
        self.channels.iter()
    }

    /// Whether the reply address on this bus is being read.
    #[must_use]
    pub fn is_reading(&self, bus: BusId) -> bool {
        self.channel(bus)
            .is_some_and(|channel| *channel.reading.borrow())
    }

    /// Whether the bus stores answers, so that this replica can read them after an outage.
    #[must_use]
    pub fn stores_answers(&self, bus: BusId) -> bool {
        let address = self.channel(bus).map(|channel| &channel.reply_address);
        matches!(address, Some(ReplyAddress::Partitioned { .. }))
    }

    /// Waits until the reply address on this bus is being read. Returns at once if there is none.
    pub async fn until_reading(&self, bus: BusId) {
        if let Some(channel) = self.channel(bus) {
            // The sender lives as long as the channel.
            drop(
                channel
                    .reading
                    .subscribe()
                    .wait_for(|reading| *reading)
                    .await,
            );
        }
    }

    /// Whether this replica has no reply addresses, because it makes no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    fn channel(&self, bus: BusId) -> Option<&ReplyChannel> {
        self.channels.iter().find(|channel| channel.bus == bus)
    }

    /// Adds the reply address of a call to an event for `bus`. Returns the additional headers of the message.
    pub fn stamp(
        &self,
        id: ReplyId,
        bus: BusId,
        event: &mut Event,
        address: &mut Address,
    ) -> Vec<(Text, Bytes)> {
        let Some(channel) = self.channel(bus) else {
            return Vec::new();
        };
        match &channel.reply_address {
            ReplyAddress::Partitioned { topic, partitions } => {
                let partition = i32::from(partition_of(id.call.replica(), partitions));
                put(event, extension::REPLY_TO, topic.as_str());
                put(event, extension::REPLY_PARTITION, partition);
                let header = |name, value: Bytes| (Text::from_static(name), value);
                vec![
                    header(
                        spring::REPLY_TOPIC,
                        Bytes::copy_from_slice(topic.as_str().as_bytes()),
                    ),
                    header(
                        spring::REPLY_PARTITION,
                        Bytes::copy_from_slice(&partition.to_be_bytes()),
                    ),
                    header(spring::CORRELATION_ID, Bytes::from(id.to_string())),
                ]
            }
            ReplyAddress::Subjects { below, .. } => {
                if let Ok(subject) = subject_of(below, id) {
                    put(event, extension::REPLY_TO, subject.as_str());
                    address.reply_to = Some(subject);
                }
                Vec::new()
            }
        }
    }

    /// A message that was read in this topic of a bus, for the reply address that the call id names. `from` names the
    /// record that was read, or the topic if the bus numbers no messages.
    #[must_use]
    pub fn forward(
        &self,
        id: ReplyId,
        (bus, read_in): (BusId, &Topic),
        from: String,
        mut message: Message,
    ) -> Option<Outgoing> {
        let (address, is_within) = match &self.channel(bus)?.reply_address {
            ReplyAddress::Partitioned { topic, partitions } => {
                let address = Address {
                    partition: Some(u32::from(partition_of(id.call.replica(), partitions))),
                    ..Address::topic(topic.clone())
                };
                (address, topic == read_in)
            }
            ReplyAddress::Subjects { below, .. } => {
                (Address::topic(subject_of(below, id).ok()?), false)
            }
        };
        let place = if is_within { WITHIN } else { ELSEWHERE };
        message.headers.put(FORWARDS, place);
        // Only the body may name the call. If it cannot be forwarded, the header does.
        message.headers.put(spring::CORRELATION_ID, id.to_string());
        message.headers.put(FORWARDED_FROM, from);
        Some(Outgoing {
            call: Some(id.call.to_string().into()),
            ..Outgoing::new(bus, address, message)
        })
    }

    /// Records that an answer was read at the wrong address: the reply topic may have more partitions now.
    pub(crate) fn note_misplaced(&self, bus: BusId) {
        if let Some(channel) = self.channel(bus) {
            channel.misplaced.notify_one();
        }
    }

    /// The subscription of the reader of a channel, if the reply topic has this many partitions.
    ///
    /// # Errors
    /// When the reply topic is too long to append the replica's name.
    pub fn subscription(
        &self,
        channel: &ReplyChannel,
        count: u32,
    ) -> Result<Subscription, TopicError> {
        let own = || u32::from(partition_among(self.replica, limited(count)));
        let (topics, partition) = match &channel.reply_address {
            ReplyAddress::Partitioned { topic, .. } => (
                vec![TopicFilter::from(topic.clone())],
                (!self.reads_every_partition.load(Ordering::Relaxed)).then(own),
            ),
            ReplyAddress::Subjects { below, others, .. } => {
                let own = TopicFilter::new(format!("{below}.{}.>", self.replica))?;
                (and_others(own, others), None)
            }
        };
        Ok(Subscription {
            topics,
            reading: Reading::Live { partition },
            budget_bytes: REPLY_BUDGET_BYTES,
            budget_messages: REPLY_BUDGET_MESSAGES,
        })
    }

    /// The subscription of the reader of misplaced answers; `None` if answers cannot be misplaced on this channel.
    #[must_use]
    pub fn misplaced(&self, channel: &ReplyChannel) -> Option<Subscription> {
        match &channel.reply_address {
            ReplyAddress::Partitioned { topic, .. } => Some(Subscription {
                topics: vec![TopicFilter::from(topic.clone())],
                reading: Reading::PromptGroup(Text::from(format!("{topic}.forward"))),
                budget_bytes: REPLY_BUDGET_BYTES,
                budget_messages: REPLY_BUDGET_MESSAGES,
            }),
            ReplyAddress::Subjects { .. } => None,
        }
    }

    /// Whether several replicas may read the answers on this topic of a bus.
    #[must_use]
    pub fn is_shared(&self, bus: BusId, topic: &Topic) -> bool {
        let reply_address = self.channel(bus).map(|channel| &channel.reply_address);
        matches!(reply_address, Some(ReplyAddress::Partitioned { .. })) || self.is_whole(bus, topic)
    }

    /// Whether this is the reply topic of a bus with partitions. Followers read all of it.
    pub(crate) fn is_reply_topic(&self, bus: BusId, topic: &Topic) -> bool {
        let address = self.channel(bus).map(|channel| &channel.reply_address);
        matches!(address, Some(ReplyAddress::Partitioned { topic: replies, .. }) if replies == topic)
    }

    /// Whether a message that was read at `topic` and `origin` is at the reply address of its call, or on a topic that
    /// every replica reads whole.
    #[must_use]
    pub fn is_home(&self, call: CallId, bus: BusId, topic: &Topic, origin: Option<&Text>) -> bool {
        match self.channel(bus).map(|channel| &channel.reply_address) {
            Some(ReplyAddress::Partitioned {
                topic: replies,
                partitions,
            }) => {
                let of_topic = |origin: &Text| {
                    let rest = origin.strip_prefix("k:")?.strip_prefix(replies.as_str())?;
                    let (partition, _) = rest.strip_prefix('/')?.split_once('/')?;
                    partition.parse().ok()
                };
                let read = origin.filter(|_| replies == topic).and_then(of_topic);
                read == Some(partition_of(call.replica(), partitions))
            }
            Some(ReplyAddress::Subjects { below, .. }) => {
                let rest = topic.as_str().strip_prefix(below.as_str());
                let rest = rest.and_then(|rest| rest.strip_prefix('.'));
                let replica = rest.and_then(|rest| rest.split_once('.'));
                replica.is_some_and(|(replica, _)| *replica == *call.replica().text())
                    || self.is_whole(bus, topic)
            }
            None => false,
        }
    }
}

// === impl ReplyChannel ===

impl ReplyChannel {
    /// Records whether the address is being read.
    pub fn set_reading(&self, reading: bool) {
        self.reading.send_replace(reading);
    }

    /// Records how many partitions the reply topic has. It may have existed before.
    pub fn found(&self, count: u32) {
        if let ReplyAddress::Partitioned { partitions, .. } = &self.reply_address {
            partitions.store(limited(count), Ordering::Release);
        }
    }

    /// Whether the number of partitions of the reply topic has changed.
    #[must_use]
    pub fn has_changed(&self, count: u32) -> bool {
        let known = self.required_topic().map(|(_, known)| known);
        known.is_some_and(|known| known != u32::from(limited(count)))
    }

    /// Waits until an answer is read at the wrong address.
    pub async fn until_misplaced(&self) {
        self.misplaced.notified().await;
    }

    /// The topic that must exist, and its number of partitions.
    #[must_use]
    pub fn required_topic(&self) -> Option<(&Topic, u32)> {
        match &self.reply_address {
            ReplyAddress::Partitioned { topic, partitions } => {
                Some((topic, u32::from(partitions.load(Ordering::Acquire))))
            }
            ReplyAddress::Subjects { .. } => None,
        }
    }
}

fn and_others(own: TopicFilter, others: &[TopicFilter]) -> Vec<TopicFilter> {
    std::iter::once(own).chain(others.iter().cloned()).collect()
}

/// Sorts a pattern before all those whose topics it contains: few plain words, then a last `>`, then few words at all.
fn wide_first(topic: &TopicFilter) -> (usize, bool, usize) {
    let words = || topic.as_str().split('.');
    let plain = words().filter(|word| !matches!(*word, "*" | ">")).count();
    (plain, !topic.as_str().ends_with('>'), words().count())
}

/// The partition from which a replica reads its answers.
fn partition_of(replica: Replica, partitions: &AtomicU16) -> u16 {
    partition_among(replica, partitions.load(Ordering::Acquire))
}

fn partition_among(replica: Replica, partitions: u16) -> u16 {
    replica.0 % partitions.max(1)
}

/// A number of partitions, limited to the range of replica numbers.
fn limited(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX).max(1)
}

fn subject_of(below: &Topic, id: ReplyId) -> Result<Topic, TopicError> {
    let replica = id.call.replica();
    let (replica, id_text) = (replica.text(), id.text());
    let below = below.as_str();
    Topic::new(if id.call.is_followed() {
        Text::concat(&[below, ".", &replica, ".", FOLLOWED, ".", &id_text])
    } else {
        Text::concat(&[below, ".", &replica, ".", &id_text])
    })
}

#[cfg(test)]
mod tests {
    use a2abus_transports::memory::Memory;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn every_replica_reads_some_topics_whole() {
        let buses = Buses::of_test(Memory::default().into(), &Metrics::new().unwrap());
        let (bus, replies) = (BusId::FIRST, Topic::from_static("replies"));
        let mut channels = ReplyChannels::new(&buses, &[bus], &replies, 1, Replica(1));
        let mut copy = Message::plain("an answer");
        copy.headers.put(FORWARDS, ELSEWHERE);
        assert!(!channels.is_read_here(bus, &copy));
        let topics = [
            ("n.answers", true),
            ("n.*", false),
            ("n.>", false),
            ("other", true),
        ];
        let topics = topics.map(|(topic, is_trusted)| {
            let trust = if is_trusted {
                Trust::Trusted
            } else {
                Trust::Untrusted
            };
            (TopicFilter::new(topic).unwrap(), trust)
        });
        channels.read_also(bus, topics.to_vec());
        let channel = channels.iter().next().unwrap();
        let own = channels.subscription(channel, 1).unwrap();
        let followed = channels.followed(channel).unwrap();
        for read in [own, followed] {
            assert_eq!(read.reading, Reading::Live { partition: None });
            let topics = read.topics.iter().map(TopicFilter::as_str);
            // A message that two subscriptions match would arrive twice.
            assert_eq!(topics.skip(1).collect::<Vec<_>>(), ["n.>", "other"]);
        }
        let of_other = CallId::new(Replica(2)).unwrap();
        let topics = [
            ("n.answers", true, Trust::Trusted),
            ("n.some.other", true, Trust::Untrusted),
            ("other", true, Trust::Trusted),
            ("elsewhere", false, Trust::Untrusted),
        ];
        for (topic, is_whole, trust) in topics {
            let topic = Topic::from_static(topic);
            let is_home = channels.is_home(of_other, bus, &topic, None);
            assert_eq!(is_home, is_whole);
            assert_eq!(channels.is_shared(bus, &topic), is_whole);
            assert_eq!(channels.trust_on(bus, &topic), trust);
            copy.headers.put(FORWARDED_FROM, topic.to_string());
            assert_eq!(channels.is_read_here(bus, &copy), is_whole);
        }
        // A record of a bus that stores answers.
        copy.headers
            .put(FORWARDED_FROM, "j:stream/1@1700000000000#0");
        assert!(!channels.is_read_here(bus, &copy));
    }

    #[test]
    fn a_pattern_is_read_before_those_that_it_contains() {
        let mut topics = ["a.b.c", "a.*.c", "*.*", "a.>", "*.>", ">"]
            .map(|topic| TopicFilter::new(topic).unwrap());
        topics.sort_by_key(wide_first);
        let sorted = topics.each_ref().map(TopicFilter::as_str);
        assert_eq!(sorted, [">", "*.>", "*.*", "a.>", "a.*.c", "a.b.c"]);
    }
}
