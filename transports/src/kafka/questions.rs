//! Questions to the cluster: whether a topic exists, and whether this user may read it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::client::Client;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::config::KafkaConfig;
use super::error::failed;
use super::health::{Events, Pulse};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// The timeout of a request to the cluster, such as a lookup or creation of a topic.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a request is repeated.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The state of a topic as the cluster reports it.
pub(super) enum Lookup {
    Partitions(Partitions),
    Unknown,
    /// It is being created.
    Pending,
    /// The user is not permitted to see it.
    Forbidden,
}

/// The partitions of a topic.
pub(super) struct Partitions {
    pub(super) ids: Vec<i32>,
    /// The first that has a leader.
    led: Option<i32>,
    /// Whether each of them has a leader.
    pub(super) has_leaders: bool,
    /// The replicas of the one that has the fewest.
    pub(super) replicas: usize,
}

impl ConsumerContext for Events {}

// === impl Partitions ===

impl Partitions {
    /// The partition to ask about a permission, which applies to all of them. A partition without a leader does not
    /// answer.
    pub(super) fn to_ask(&self) -> Option<i32> {
        self.led.or(self.ids.first().copied())
    }
}

/// Asks whether a topic exists. Blocks.
pub(super) fn lookup<C: ClientContext>(
    client: &Client<C>,
    topic: &Topic,
) -> Result<Lookup, KafkaError> {
    let topic = topic.as_str();
    let metadata = client.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Lookup::Unknown);
    };
    let partitions = found.partitions();
    match found.error().map(Code::from) {
        Some(Code::UnknownTopicOrPartition) => Ok(Lookup::Unknown),
        Some(Code::LeaderNotAvailable) => Ok(Lookup::Pending),
        Some(Code::TopicAuthorizationFailed) => Ok(Lookup::Forbidden),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
        None if partitions.is_empty() => Ok(Lookup::Pending),
        None => {
            let mut led = partitions.iter().filter(|it| it.leader() >= 0);
            let replicas = partitions.iter().map(|it| it.replicas().len());
            Ok(Lookup::Partitions(Partitions {
                ids: partitions.iter().map(|partition| partition.id()).collect(),
                has_leaders: led.clone().count() == partitions.len(),
                led: led.next().map(|partition| partition.id()),
                replicas: replicas.min().unwrap_or_default(),
            }))
        }
    }
}

/// Tests with a client of its own whether this user may read these topics. A topic that does not exist is not
/// forbidden. Blocks.
///
/// # Errors
/// `Unauthorised` when one of them is forbidden, or the reason why the cluster did not answer.
pub(super) fn may_read(
    config: &KafkaConfig,
    pulse: &Arc<Pulse>,
    topics: &[Topic],
) -> Result<(), TransportError> {
    let consumer = consumer(config, pulse, "a2abus.check")?;
    for topic in topics {
        let what = || format!("look up the topic {topic}");
        match lookup(consumer.client(), topic).map_err(|error| failed(what(), error))? {
            Lookup::Partitions(partitions) => {
                if let Some(partition) = partitions.to_ask() {
                    read_end(&consumer, topic, partition)?;
                }
            }
            Lookup::Unknown | Lookup::Pending => {}
            Lookup::Forbidden => {
                return Err(TransportError::new(
                    TransportErrorKind::Unauthorised,
                    what(),
                ));
            }
        }
    }
    Ok(())
}

/// A client for [`read_end`].
pub(super) fn consumer(
    config: &KafkaConfig,
    pulse: &Arc<Pulse>,
    group: &str,
) -> Result<BaseConsumer<Events>, TransportError> {
    let events = Events::new("check", Arc::clone(pulse));
    let mut config = config.live(group)?;
    config.set("enable.partition.eof", "true");
    config
        .build()
        .create_with_context(events)
        .map_err(|error| failed("create a Kafka consumer", error))
}

/// Continues from the end of a partition until there is a record, or the broker says that there is none.
pub(super) fn read_end(
    consumer: &BaseConsumer<Events>,
    topic: &Topic,
    partition: i32,
) -> Result<(), TransportError> {
    let what = || format!("read the topic {topic}");
    let mut list = TopicPartitionList::new();
    let added = list.add_partition_offset(topic.as_str(), partition, Offset::End);
    let assigned = added.and_then(|()| consumer.assign(&list));
    assigned.map_err(|error| failed(what(), error))?;
    let until = Instant::now() + REQUEST_TIMEOUT;
    while Instant::now() < until {
        match consumer.poll(RETRY_PAUSE) {
            Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => return Ok(()),
            // Reading needs no permission for a group. `test_read` tests that by itself.
            Some(Err(error))
                if error.rdkafka_error_code() == Some(Code::GroupAuthorizationFailed) => {}
            Some(Err(error)) => {
                let error = failed(what(), error);
                // Connections that open and close during the start say nothing about the topic.
                if error.kind() != TransportErrorKind::Disconnected {
                    return Err(error);
                }
            }
            None => {}
        }
    }
    Err(TransportError::new(TransportErrorKind::TimedOut, what()))
}
