//! Clients as anybody has them: no header of ours, no library of ours.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use async_nats::jetstream::{self, ContextBuilder};
use futures_util::StreamExt as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use support::battery::within;

/// A name that no other test uses.
pub(crate) fn unique(prefix: &str) -> String {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    format!("{prefix}.{:016x}", u64::from_be_bytes(bytes))
}

/// The answer of an agent.
pub(crate) fn answer_to(request: &[u8]) -> String {
    let request: Value = serde_json::from_slice(request).unwrap();
    json!({"jsonrpc": "2.0", "id": request["id"], "result": {}}).to_string()
}

/// A client of NATS.
pub(crate) async fn nats_client(address: &str) -> async_nats::Client {
    let connecting = patient(ConnectOptions::new()).connect(address);
    connecting.await.unwrap()
}

/// Options of a client that waits for a server that is slow.
pub(crate) fn patient(options: ConnectOptions) -> ConnectOptions {
    options
        .connection_timeout(TIMEOUT)
        .request_timeout(Some(TIMEOUT))
}

/// JetStream, for a client that waits for a server that is slow.
pub(crate) fn jetstream_of(client: async_nats::Client) -> jetstream::Context {
    ContextBuilder::new().timeout(TIMEOUT).build(client)
}

/// Waits until the server has seen every subscription that a client has made.
pub(crate) async fn subscribed(client: &async_nats::Client) {
    let inbox = client.new_inbox();
    let mut echo = client.subscribe(inbox.clone()).await.unwrap();
    client.publish(inbox, "".into()).await.unwrap();
    within("an echo", echo.next()).await.unwrap();
}

/// A plain Kafka client.
pub(crate) struct Plain {
    pub(crate) brokers: String,
    config: ClientConfig,
    producer: FutureProducer,
}

/// A record as a plain client sees it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) headers: BTreeMap<String, Vec<u8>>,
    pub(crate) body: Vec<u8>,
}

/// How long clients wait for a server.
const TIMEOUT: Duration = Duration::from_secs(60);

// === impl Plain ===

impl Plain {
    pub(crate) fn new(brokers: &str) -> Self {
        Self::with(brokers, client(brokers))
    }

    /// A client that logs in by SCRAM-SHA-256.
    pub(crate) fn as_user(brokers: &str, user: &str, password: &str) -> Self {
        let mut config = client(brokers);
        config
            .set("security.protocol", "SASL_PLAINTEXT")
            .set("sasl.mechanism", "SCRAM-SHA-256")
            .set("sasl.username", user)
            .set("sasl.password", password);
        Self::with(brokers, config)
    }

    fn with(brokers: &str, config: ClientConfig) -> Self {
        let producer = config.clone().set("linger.ms", "0").create().unwrap();
        Self {
            brokers: brokers.to_owned(),
            config,
            producer,
        }
    }

    /// The server refuses to let this client see a topic, and so read it.
    pub(crate) async fn cannot_read(&self, topic: &str) {
        let (consumer, topic) = (self.read(topic, 1), topic.to_owned());
        let error = tokio::task::spawn_blocking(move || {
            let metadata = consumer.fetch_metadata(Some(&topic), TIMEOUT).unwrap();
            metadata.topics()[0].error()
        });
        let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        assert_eq!(error.await.unwrap(), Some(forbidden));
    }

    pub(crate) async fn create(&self, topic: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = self.config.create().unwrap();
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        admin
            .create_topics(&[new], &options)
            .await
            .unwrap()
            .remove(0)
            .unwrap();
    }

    /// Deletes a topic, and waits until the server has done it.
    pub(crate) async fn delete(&self, topic: &str) {
        let admin: AdminClient<DefaultClientContext> = self.config.create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        let deleted = admin.delete_topics(&[topic], &options).await;
        deleted.unwrap().remove(0).unwrap();
    }

    /// Waits until a group has committed this offset of partition 0.
    pub(crate) async fn committed(&self, group: &str, topic: &str, offset: i64) {
        let mut config = self.config.clone();
        let consumer: BaseConsumer = config.set("group.id", group).create().unwrap();
        let topic = topic.to_owned();
        let read = move || {
            let mut partitions = TopicPartitionList::new();
            partitions.add_partition(&topic, 0);
            let committed = consumer.committed_offsets(partitions, TIMEOUT).unwrap();
            committed.elements()[0].offset()
        };
        let until = Instant::now() + TIMEOUT;
        let wait = move || {
            let mut committed = read();
            while committed != Offset::Offset(offset) && Instant::now() < until {
                std::thread::yield_now();
                committed = read();
            }
            committed
        };
        let committed = tokio::task::spawn_blocking(wait).await.unwrap();
        assert_eq!(committed, Offset::Offset(offset));
    }

    /// Gives a topic more partitions.
    pub(crate) async fn grow(&self, topic: &str, partitions: usize) {
        let admin: AdminClient<DefaultClientContext> = self.config.create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(TIMEOUT));
        let more = NewPartitions::new(topic, partitions);
        let grown = admin.create_partitions(&[more], &options).await;
        grown.unwrap().remove(0).unwrap();
    }

    /// Publishes a body and nothing else.
    pub(crate) async fn publish(&self, topic: &str, partition: Option<i32>, body: &str) {
        let mut record = FutureRecord::<(), str>::to(topic).payload(body);
        record.partition = partition;
        within("the record is stored", self.producer.send(record, TIMEOUT))
            .await
            .unwrap();
    }

    /// Publishes a body with a key.
    pub(crate) async fn publish_key(&self, topic: &str, key: &str, body: &str) {
        let record = FutureRecord::to(topic).key(key).payload(body);
        within("the record is stored", self.producer.send(record, TIMEOUT))
            .await
            .unwrap();
    }

    /// Publishes a body with headers; the value of one may be null.
    pub(crate) async fn publish_with(
        &self,
        topic: &str,
        headers: &[(&str, Option<&str>)],
        body: &str,
    ) {
        let headers = headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: *value })
            });
        let record = FutureRecord::<(), str>::to(topic)
            .payload(body)
            .headers(headers);
        within("the record is stored", self.producer.send(record, TIMEOUT))
            .await
            .unwrap();
    }

    /// Reads all partitions of a topic from the beginning.
    pub(crate) fn read(&self, topic: &str, partitions: i32) -> StreamConsumer {
        let consumer: StreamConsumer = self
            .config
            .clone()
            .set("group.id", "plain")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition_offset(topic, partition, Offset::Beginning)
                .unwrap();
        }
        consumer.assign(&list).unwrap();
        consumer
    }

    /// Makes a group without members read the first partition of a topic from its beginning again.
    pub(crate) fn rewind(&self, group: &str, topic: &str) {
        let consumer: StreamConsumer = self.config.clone().set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Offset(0))
            .unwrap();
        consumer.commit(&list, CommitMode::Sync).unwrap();
    }

    /// An agent that answers every request on `topic`: `answers` makes the answer from the body.
    pub(crate) fn agent(
        &self,
        topic: &str,
        reply: Reply,
        answers: fn(&Value) -> Vec<String>,
    ) -> tokio::task::JoinHandle<()> {
        let (consumer, plain) = (self.read(topic, 1), Self::new(&self.brokers));
        tokio::spawn(async move {
            loop {
                let record = next(&consumer).await;
                let request: Value = serde_json::from_slice(&record.body).unwrap();
                // A notification, such as that of a cancel, has no answer.
                if request.get("id").is_none() {
                    continue;
                }
                let (topic, partition) = reply.place(&record);
                for answer in answers(&request) {
                    plain.publish(&topic, partition, &answer).await;
                }
            }
        })
    }
}

/// Where a plain agent publishes its answers.
pub(crate) enum Reply {
    /// To the topic and the partition that the request names.
    AsAsked,
    /// To the topic that the request names, wherever the client puts it.
    AnyPartition,
    /// To the topic that the request names, and this partition.
    Partition(i32),
    /// To a topic of its own.
    Topic(String),
}

impl Reply {
    fn place(&self, request: &Record) -> (String, Option<i32>) {
        let text = |name: &str| String::from_utf8(request.headers[name].clone()).unwrap();
        match self {
            Self::AsAsked => (
                text("ce_replyto"),
                Some(text("ce_replypartition").parse().unwrap()),
            ),
            Self::AnyPartition => (text("ce_replyto"), None),
            Self::Partition(partition) => (text("ce_replyto"), Some(*partition)),
            Self::Topic(topic) => (topic.clone(), None),
        }
    }
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

/// The next record; waits through outages of the broker.
pub(crate) async fn next(consumer: &StreamConsumer) -> Record {
    loop {
        match consumer.recv().await {
            Ok(message) => return record(&message),
            Err(error) => println!("reading again after: {error}"),
        }
    }
}

fn record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map(|headers| {
        let header = |header: rdkafka::message::Header<'_, &[u8]>| {
            (
                header.key.to_owned(),
                header.value.map(<[u8]>::to_vec).unwrap_or_default(),
            )
        };
        headers.iter().map(header).collect()
    });
    Record {
        headers: headers.unwrap_or_default(),
        body: message.payload().unwrap_or_default().to_vec(),
    }
}
