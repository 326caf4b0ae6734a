//! Kafka, by librdkafka.
//!
//! [`Kafka`] keeps up to three producers: for messages that leave at once, for those that may linger, and for topics that
//! refuse batches. A thread serves each, and another one watches the cluster, with a client of its own while the producer
//! gets no answer. Once the producer has been asked about many topics that do not exist, another client is asked about
//! further ones. Each subscription and each reader of a log has a consumer on a thread of its own. Each administrative
//! request has its own client. See `producer`, `consumer`, `log` and `checkup`.

mod checkup;
mod config;
mod consumer;
mod error;
mod health;
mod inspect;
mod intake;
mod log;
#[cfg(test)]
mod mock;
mod offsets;
mod per_topic;
mod producer;
mod progress;
mod properties;
mod questions;
mod rebalance;
mod record;
mod singly;
mod thread;
mod topics;
mod window;
mod writer;

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::Producer as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::{Compression, KafkaConfig, KafkaSasl, KafkaTls, SaslMechanism};
pub use properties::KafkaProperties;
pub use topics::TopicSettings;

use self::checkup::SecondOpinion;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{Address, Confirmation, Consumer, Health, Reading, Subscription, Transport};
use consumer::{Plan, Source};
use error::failed;
use health::{Events, PROBE_TIMEOUT, PROBE_TOPIC, Pulse};
use intake::Budget;
use producer::{BatchClient, Producer};
use questions::{Enquiries, Lookup, Partitions, REQUEST_TIMEOUT, RETRY_PAUSE, lookup};
use thread::spawn;
use topics::{Existence, Topics};

/// How long a new topic may still be unknown to a broker.
const TOPIC_PROPAGATION: Duration = Duration::from_secs(1);
/// The same, when a sender waits for the topic.
const SENDER_PROPAGATION: Duration = Duration::from_millis(250);
/// How long a sender waits to learn whether a topic exists. After that, the message is queued anyway.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to one Kafka cluster.
#[derive(Debug, Clone)]
pub struct Kafka {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Arc<KafkaConfig>,
    pulse: Arc<Pulse>,
    health: watch::Receiver<Health>,
    producer: Arc<Producer>,
    enquiries: Arc<Enquiries>,
    /// Stops the readers.
    closing: CancellationToken,
    /// The threads that read.
    readers: TaskTracker,
}

/// Whether a lookup waits until each partition has a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaders {
    Awaited,
    Ignored,
}

// === impl Kafka ===

impl Kafka {
    /// Creates the clients. Does not wait for a broker: [`Transport::health`] shows when one answers.
    ///
    /// # Errors
    /// `BadConfig`, with every problem of the configuration, or when a secret or certificate cannot be read.
    pub fn connect(config: KafkaConfig) -> Result<Self, TransportError> {
        TransportError::reject_problems("Kafka", &config.problems())?;
        TransportError::reject_problems("Kafka", &config.tls_findings().unusable)?;
        let config = Arc::new(config);
        let pulse = Arc::new(Pulse::default());
        let connecting = format!("connecting to Kafka at {}", config.brokers.join(", "));
        let (changes, health) = watch::channel(Health::Connecting(connecting.into()));
        let topics = Arc::new(Topics::default());
        let producer = Arc::new(Producer::start(&config, &pulse, &topics)?);
        let enquiries = Arc::new(Enquiries::new(&config, &pulse));
        let shared = Arc::new(Shared {
            config,
            pulse: Arc::clone(&pulse),
            health,
            producer: Arc::clone(&producer),
            enquiries: Arc::clone(&enquiries),
            closing: CancellationToken::new(),
            readers: TaskTracker::new(),
        });
        // From here on, dropping `shared` on failure stops the threads of the producer.
        let settings = Arc::clone(&shared.config);
        spawn("a2abus-kafka-watch", move || {
            let mut second = SecondOpinion::default();
            health::watch(&pulse, &changes, || {
                enquiries.end_idle();
                match probe(&producer) {
                    Err(_) if second.is_answered(&settings, &pulse) => {
                        Ok(health::Answer::Other(second.health(pulse.is_refused())))
                    }
                    Err(error) => Err(error),
                    Ok(()) => {
                        second.close();
                        Ok(health::Answer::Producer)
                    }
                }
            });
            drop(changes);
        })?;
        Ok(Self { shared })
    }

    /// Asks the cluster a blocking question on a thread where blocking is allowed.
    async fn ask<T: Send + 'static>(
        &self,
        what: String,
        question: impl FnOnce(&BatchClient) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, TransportError> {
        let client = self.shared.producer.client()?;
        match tokio::task::spawn_blocking(move || question(&client)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let error = failed(&*what, error);
                let silence = matches!(
                    error.kind(),
                    TransportErrorKind::Disconnected | TransportErrorKind::TimedOut
                );
                if silence && self.shared.pulse.is_refused() {
                    // The client itself knows only that no broker is left.
                    let what = format!("{what}: {}", self.shared.pulse.cause(&error));
                    let refused = TransportError::new(TransportErrorKind::Unauthenticated, what);
                    return Err(refused);
                }
                Err(error)
            }
            Err(error) => {
                Err(TransportError::new(TransportErrorKind::Other, what).caused_by(error))
            }
        }
    }

    /// The partitions of a topic, with or without leaders. Asks again while the topic is being created, and for a limited
    /// time while it is unknown.
    async fn look_up(
        &self,
        topic: &Topic,
        unknown_for: Duration,
    ) -> Result<Partitions, TransportError> {
        self.look_up_with(topic, unknown_for, Leaders::Ignored)
            .await
    }

    async fn look_up_with(
        &self,
        topic: &Topic,
        unknown_for: Duration,
        leaders: Leaders,
    ) -> Result<Partitions, TransportError> {
        let start = Instant::now();
        loop {
            let name = topic.clone();
            let lookup = self
                .ask(format!("look up the topic {topic}"), move |client| {
                    lookup(client.client(), &name)
                })
                .await?;
            let (max_wait, kind, why) = match lookup {
                Lookup::Partitions(found) if found.has_leaders || leaders == Leaders::Ignored => {
                    return Ok(found);
                }
                Lookup::Unknown => (
                    unknown_for,
                    TransportErrorKind::UnknownTopic,
                    ", which does not exist",
                ),
                Lookup::Partitions(_) | Lookup::Pending => {
                    (REQUEST_TIMEOUT, TransportErrorKind::Disconnected, "")
                }
                Lookup::Forbidden => (Duration::ZERO, TransportErrorKind::Unauthorised, ""),
            };
            if start.elapsed() >= max_wait {
                let what = format!("look up the topic {topic}{why}");
                return Err(TransportError::new(kind, what));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Fails at once for a topic that does not exist, or that this user may not see. If the cluster does not answer,
    /// the client queues the message and finds out. If it is asked about too many topics at a time, the send fails, because
    /// the client keeps the topic of each message that it queues.
    async fn check_exists(&self, topic: &Topic) -> Result<usize, TransportError> {
        let topics = self.shared.producer.topics();
        if !self.shared.health.borrow().is_up() {
            return Existence::Undetermined.into_result(topic);
        }
        let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, self.find(topics, topic)).await;
        let verdict = match lookup {
            Ok(verdict) => verdict,
            Err(_) if topics.is_crowded() => {
                let what =
                    format!("look up the topic {topic}: too many are looked up at the same time");
                return Err(TransportError::new(TransportErrorKind::Saturated, what));
            }
            Err(_) => Existence::Undetermined,
        };
        topics.note(topic, verdict);
        verdict.into_result(topic)
    }

    async fn find(&self, topics: &Topics, topic: &Topic) -> Existence {
        // From the first answer on: waiting for a turn or for the cluster does not use up the time of a new topic.
        let mut unknown_since: Option<Instant> = None;
        loop {
            let turn = topics.turn().await;
            // Another message to the same topic may have looked it up in the meantime.
            if let Some(known) = topics.known(topic) {
                return known;
            }
            let (name, enquiries) = (topic.clone(), Arc::clone(&self.shared.enquiries));
            let question = move |client: &BatchClient| {
                let found = enquiries.ask(client.client(), &name);
                // The thread keeps its turn until then, even if nobody waits for its answer any more.
                drop(turn);
                found
            };
            match self
                .ask(format!("look up the topic {topic}"), question)
                .await
            {
                Ok(Lookup::Partitions(found)) => {
                    let partitions = found.ids.len();
                    return Existence::Exists { partitions };
                }
                Ok(Lookup::Forbidden) => return Existence::Forbidden,
                // No topic can have this name.
                Err(error) if error.kind() == TransportErrorKind::UnknownTopic => {
                    return Existence::Missing;
                }
                Ok(Lookup::Unknown) => {
                    let since = *unknown_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= SENDER_PROPAGATION {
                        return Existence::Missing;
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Ok(Lookup::Pending) | Err(_) => return Existence::Undetermined,
            }
        }
    }

    /// The current end of each of these partitions.
    async fn ends(
        &self,
        topic: &Topic,
        partitions: Vec<i32>,
    ) -> Result<Vec<(Topic, i32, i64)>, TransportError> {
        let name = topic.clone();
        self.ask(format!("find the end of {topic}"), move |client| {
            let end = |partition| {
                let watermarks =
                    client
                        .client()
                        .fetch_watermarks(name.as_str(), partition, REQUEST_TIMEOUT);
                watermarks.map(|(_, end)| (name.clone(), partition, end))
            };
            partitions.into_iter().map(end).collect()
        })
        .await
    }

    /// Waits until every partition answers. Brokers name the leader of a new partition before it is ready.
    async fn wait_for_leaders(
        &self,
        topic: &Topic,
        partitions: Vec<i32>,
    ) -> Result<(), TransportError> {
        let until = Instant::now() + REQUEST_TIMEOUT;
        loop {
            match self.ends(topic, partitions.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    async fn live(
        &self,
        topics: Vec<Topic>,
        partition: Option<u32>,
    ) -> Result<Source, TransportError> {
        let mut starts = Vec::new();
        for topic in topics {
            let mut partitions = self.look_up(&topic, TOPIC_PROPAGATION).await?.ids;
            if let Some(only) = partition {
                partitions.retain(|partition| u32::try_from(*partition) == Ok(only));
                if partitions.is_empty() {
                    return Err(TransportError::new(
                        TransportErrorKind::UnknownTopic,
                        format!("read partition {only} of {topic}"),
                    ));
                }
            }
            starts.extend(self.ends(&topic, partitions).await?);
        }
        Ok(Source::Live(starts))
    }

    /// Asks the cluster to create a topic with these settings; the broker's defaults apply to all others. If the topic
    /// exists by now, that is not an error.
    ///
    /// # Errors
    /// `Unauthorised`, `BadConfig` for settings that the broker refuses, or the reason why the cluster did not answer.
    pub async fn create_topic(
        &self,
        topic: &Topic,
        partitions: Option<u32>,
        replicas: Option<u32>,
        settings: &BTreeMap<String, String>,
    ) -> Result<(), TransportError> {
        let what = format!("create the topic {topic}");
        let number = |given: Option<u32>| given.map_or(Ok(-1), i32::try_from);
        let bad = |error| {
            TransportError::new(TransportErrorKind::BadConfig, what.clone()).caused_by(error)
        };
        let replication = TopicReplication::Fixed(number(replicas).map_err(bad)?);
        let partitions = number(partitions).map_err(bad)?;
        let mut new = NewTopic::new(topic.as_str(), partitions, replication);
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let admin = self.admin()?;
        let created = admin.create_topics([&new], &admin_options()).await;
        // Dropping it waits for threads, which nobody needs to wait for.
        drop(tokio::task::spawn_blocking(move || drop(admin)));
        let results = created.map_err(|error| failed(&*what, error))?;
        match results.into_iter().find_map(Result::err) {
            None | Some((_, Code::TopicAlreadyExists)) => {
                // Brokers learn of the topic with a delay, so an immediate lookup would miss it.
                let known = self.look_up_with(topic, REQUEST_TIMEOUT, Leaders::Awaited);
                drop(known.await);
                Ok(())
            }
            Some((_, code)) => Err(error::refused(what, code)),
        }
    }

    fn admin(&self) -> Result<AdminClient<Events>, TransportError> {
        let events = Events::new("admin", Arc::clone(&self.shared.pulse));
        self.shared
            .config
            .client()?
            .build()
            .create_with_context(events)
            .map_err(|error| failed("create the Kafka admin client", error))
    }
}

fn admin_options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .operation_timeout(Some(REQUEST_TIMEOUT))
}

impl Transport for Kafka {
    async fn subscribe(&self, subscription: Subscription) -> Result<Consumer, TransportError> {
        let topics = topics(&subscription)?;
        let is_prompt = matches!(subscription.reading, Reading::PromptGroup(_));
        let source = match subscription.reading {
            Reading::Group(name) | Reading::PromptGroup(name) => {
                for topic in &topics {
                    self.look_up(topic, TOPIC_PROPAGATION).await?;
                }
                Source::Group { name, topics }
            }
            Reading::Live { partition } => self.live(topics, partition).await?,
            Reading::Durable { .. } => {
                return Err(TransportError::new(
                    TransportErrorKind::BadConfig,
                    "read a JetStream consumer on Kafka",
                ));
            }
        };
        let plan = Plan {
            config: Arc::clone(&self.shared.config),
            pulse: Arc::clone(&self.shared.pulse),
            closing: self.shared.closing.child_token(),
            source,
            is_prompt,
            budget: Budget {
                bytes: subscription.budget_bytes.max(1),
                messages: subscription.budget_messages.max(1),
            },
        };
        consumer::start(plan, self.shared.readers.token()).await
    }

    /// The first message to a topic asks whether the topic exists. If it does not, the send fails with `UnknownTopic`
    /// at once.
    async fn send(
        &self,
        to: &Address,
        message: impl Borrow<Message> + Send,
    ) -> Result<Confirmation, TransportError> {
        let partitions = match self.shared.producer.topics().known(&to.topic) {
            Some(known) => known.into_result(&to.topic)?,
            None => Box::pin(self.check_exists(&to.topic)).await?,
        };
        let message = message.borrow();
        self.shared.producer.send(to, partitions, message).await
    }

    async fn partitions(&self, topic: &Topic) -> Result<u32, TransportError> {
        let partitions = self.look_up(topic, TOPIC_PROPAGATION).await?;
        Ok(u32::try_from(partitions.ids.len()).unwrap_or(u32::MAX))
    }

    async fn ensure_topic(&self, topic: &Topic, partitions: u32) -> Result<(), TransportError> {
        match self.look_up(topic, Duration::ZERO).await {
            Err(error) if error.kind() == TransportErrorKind::UnknownTopic => {}
            other => return other.map(drop),
        }
        let partitions = partitions.max(1);
        self.create_topic(topic, Some(partitions), None, &BTreeMap::new())
            .await?;
        let partitions = self
            .look_up_with(topic, REQUEST_TIMEOUT, Leaders::Awaited)
            .await?;
        let count = partitions.ids.len();
        tracing::info!(%topic, partitions = count, "the topic was missing, and exists now");
        self.wait_for_leaders(topic, partitions.ids).await
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.clone()
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let Shared {
            producer,
            pulse,
            closing,
            readers,
            ..
        } = &*self.shared;
        closing.cancel();
        readers.close();
        // Readers that were dropped still leave their groups.
        let ended = tokio::time::timeout(deadline, readers.wait());
        let (closed, ended) = tokio::join!(producer.close(deadline), ended);
        pulse.stop();
        let in_time = ended.map_err(|_| {
            TransportError::new(TransportErrorKind::TimedOut, "leave the consumer groups")
        });
        closed.and(in_time)
    }
}

// === impl Shared ===

impl Drop for Shared {
    fn drop(&mut self) {
        self.producer.stop();
        self.pulse.stop();
    }
}

/// The topics of a subscription, sorted. Refuses wildcards, which Kafka does not support.
fn topics(subscription: &Subscription) -> Result<Vec<Topic>, TransportError> {
    let mut topics = Vec::new();
    for filter in &subscription.topics {
        topics.push(filter.as_topic().ok_or_else(|| {
            TransportError::new(
                TransportErrorKind::BadConfig,
                format!(
                    "read the pattern {:?} on Kafka, which has no wildcards",
                    filter.as_str()
                ),
            )
        })?);
    }
    topics.sort_unstable();
    topics.dedup();
    if topics.is_empty() {
        return Err(TransportError::new(
            TransportErrorKind::BadConfig,
            "read no topic at all",
        ));
    }
    Ok(topics)
}

/// Whether any broker answers.
fn probe(producer: &Producer) -> Result<(), TransportError> {
    let client = producer.client()?;
    let answer = client
        .client()
        .fetch_metadata(Some(PROBE_TOPIC), PROBE_TIMEOUT);
    match answer {
        Ok(_) => Ok(()),
        Err(error) => Err(failed("request the brokers of the Kafka cluster", error)),
    }
}
