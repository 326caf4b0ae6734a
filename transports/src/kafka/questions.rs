//! Questions to the cluster: whether a topic exists, and whether this user may read it.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::Client;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer as _;
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use super::checkup::{Asker, new_client};
use super::config::KafkaConfig;
use super::error::{failed, kind};
use super::health::{Events, Pulse};
use super::thread::close_apart;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// The timeout of a request to the cluster, such as a lookup or creation of a topic.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a request is repeated.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How many topics that do not exist the producer may be asked about.
const MAX_OF_PRODUCER: usize = 128;
/// The same for a client of its own.
const MAX_OF_CLIENT: usize = 256;
/// After this time without questions, that client is ended.
const IDLE: Duration = Duration::from_secs(30);

/// Asks whether the topics of messages exist.
///
/// As long as a client lives, librdkafka keeps each topic that it was asked about, and asks again every second for
/// those that do not exist, which takes time that grows with the square of their number. Events name topics, so the
/// number has no bound. The producer is therefore asked about a limited number of missing topics, and then clients that
/// are replaced.
pub(super) struct Enquiries {
    config: Arc<KafkaConfig>,
    pulse: Arc<Pulse>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The topics that the producer did not find.
    missing: HashSet<Topic>,
    /// The client that is asked instead.
    asker: Option<CurrentAsker>,
}

struct CurrentAsker {
    client: Arc<Asker>,
    /// The topics that it did not find.
    missing: HashSet<Topic>,
    used_at: Instant,
}

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

// === impl Enquiries ===

impl Enquiries {
    pub(super) fn new(config: &Arc<KafkaConfig>, pulse: &Arc<Pulse>) -> Self {
        Self {
            config: Arc::clone(config),
            pulse: Arc::clone(pulse),
            state: Mutex::default(),
        }
    }

    /// Asks whether a topic exists: the producer, or a client of its own, which is replaced if it gets no answer.
    /// Blocks.
    pub(super) fn ask<C: ClientContext>(
        &self,
        producer: &Client<C>,
        topic: &Topic,
    ) -> Result<Lookup, KafkaError> {
        let asker = self.asker();
        let found = match &asker {
            Some(asker) => lookup(asker.client(), topic),
            None => lookup(producer, topic),
        };
        if !matches!(found, Ok(Lookup::Partitions(_))) {
            self.note_missing(topic, asker.as_ref());
        }
        if let (Some(asked), Err(error)) = (&asker, &found)
            && is_unanswered(error)
        {
            self.end_current(asked);
        }
        found
    }

    /// Ends the client that was asked, unless another one has taken its place.
    fn end_current(&self, asked: &Arc<Asker>) {
        let mut state = self.state();
        let current = state.asker.as_ref();
        if current.is_some_and(|current| Arc::ptr_eq(asked, &current.client)) {
            end(&mut state);
        }
    }

    /// The client to ask instead of the producer, if the producer must not be asked any more.
    fn asker(&self) -> Option<Arc<Asker>> {
        let mut state = self.state();
        if state.missing.len() < MAX_OF_PRODUCER {
            return None;
        }
        let is_full = |asker: &CurrentAsker| asker.missing.len() >= MAX_OF_CLIENT;
        if state.asker.as_ref().is_some_and(is_full) {
            end(&mut state);
        }
        if state.asker.is_none() {
            let client = new_client(&self.config, &self.pulse)?;
            state.asker = Some(CurrentAsker {
                client: Arc::new(client),
                missing: HashSet::new(),
                used_at: Instant::now(),
            });
        }
        let asker = state.asker.as_mut()?;
        asker.used_at = Instant::now();
        // Its events are not used.
        asker.client.poll(Duration::ZERO);
        Some(Arc::clone(&asker.client))
    }

    fn note_missing(&self, topic: &Topic, asker: Option<&Arc<Asker>>) {
        let mut state = self.state();
        let Some(asked) = asker else {
            // If no other client can be made, the producer is asked about more of them.
            if state.missing.len() < MAX_OF_PRODUCER {
                state.missing.insert(topic.clone());
            }
            return;
        };
        // One that has been replaced no longer counts.
        let current = state.asker.as_mut();
        if let Some(current) = current.filter(|current| Arc::ptr_eq(asked, &current.client)) {
            current.missing.insert(topic.clone());
        }
    }

    /// Ends the client if it is not used.
    pub(super) fn end_idle(&self) {
        let mut state = self.state();
        let is_idle = |asker: &CurrentAsker| asker.used_at.elapsed() >= IDLE;
        if state.asker.as_ref().is_some_and(is_idle) {
            end(&mut state);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a client got no answer, perhaps because its connections or its login no longer work.
fn is_unanswered(error: &KafkaError) -> bool {
    use TransportErrorKind::{Disconnected, TimedOut, Unauthenticated};
    let kind = error.rdkafka_error_code().map(kind);
    matches!(kind, Some(Disconnected | TimedOut | Unauthenticated))
}

/// Ends the client, which takes a moment.
fn end(state: &mut State) {
    if let Some(CurrentAsker { client, .. }) = state.asker.take() {
        close_apart(client, ());
    }
}

impl fmt::Debug for Enquiries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enquiries").finish_non_exhaustive()
    }
}

impl Drop for Enquiries {
    fn drop(&mut self) {
        end(&mut self.state());
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

/// Looks these topics up with a client of its own, and returns those that do not exist. If `tests_reading`, also tests
/// whether this user may read the others, which takes longer, and fails if one of them cannot be read. Blocks.
///
/// # Errors
/// `Unauthorised` when one of them is forbidden, or the reason why the cluster did not answer.
pub(super) fn may_read(
    config: &KafkaConfig,
    pulse: &Arc<Pulse>,
    topics: &[Topic],
    tests_reading: bool,
) -> Result<Vec<Topic>, TransportError> {
    let consumer = consumer(config, pulse, "a2abus.check")?;
    let mut missing = Vec::new();
    for topic in topics {
        let what = || format!("look up the topic {topic}");
        match lookup(consumer.client(), topic).map_err(|error| failed(what(), error))? {
            Lookup::Partitions(partitions) => {
                if let Some(partition) = partitions.to_ask().filter(|_| tests_reading) {
                    read_end(&consumer, topic, partition)?;
                }
            }
            Lookup::Unknown => missing.push(topic.clone()),
            Lookup::Pending => {}
            Lookup::Forbidden if !tests_reading => {}
            Lookup::Forbidden => {
                return Err(TransportError::new(
                    TransportErrorKind::Unauthorised,
                    what(),
                ));
            }
        }
    }
    Ok(missing)
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

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[test]
    fn each_client_is_asked_about_a_limited_number_of_topics_that_do_not_exist() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 1, 1).unwrap();
        let config = Arc::new(KafkaConfig::new([cluster.bootstrap_servers()]));
        let pulse = Arc::new(Pulse::default());
        let producer = new_client(&config, &pulse).unwrap();
        let enquiries = Enquiries::new(&config, &pulse);
        let ask = |topic: String| {
            let found = enquiries.ask(producer.client(), &Topic::new(topic).unwrap());
            match found.unwrap() {
                Lookup::Partitions(_) => true,
                Lookup::Unknown => false,
                Lookup::Pending | Lookup::Forbidden => panic!("another answer"),
            }
        };
        let current = || {
            let state = enquiries.state();
            let asker = state.asker.as_ref();
            asker.map(|asker| (Arc::as_ptr(&asker.client), asker.missing.len()))
        };
        for number in 0..MAX_OF_PRODUCER {
            assert!(ask("t".to_owned()) && current().is_none());
            // To ask again makes no difference.
            assert!(!ask(format!("p{number}")) && !ask(format!("p{number}")));
        }
        assert!(ask("t".to_owned()));
        // The last name above was asked for a second time here.
        let (first, asked) = current().unwrap();
        for number in asked..MAX_OF_CLIENT {
            assert!(!ask(format!("c{number}")));
        }
        assert_eq!(current().unwrap(), (first, MAX_OF_CLIENT));
        assert!(!ask("another".to_owned()));
        assert_eq!(current().unwrap().1, 1);
        assert_eq!(enquiries.state().missing.len(), MAX_OF_PRODUCER);
        enquiries.end_idle();
        assert!(current().is_some());
        let long_ago = Instant::now().checked_sub(IDLE).unwrap();
        enquiries.state().asker.as_mut().unwrap().used_at = long_ago;
        enquiries.end_idle();
        assert!(current().is_none());
    }
}
