//! The scenarios, with the source and the destination of each on running brokers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use bench_support::{Filling, request};
use futures_util::{StreamExt as _, stream};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use tokio::runtime::Runtime;

const PARTITIONS: i32 = 4;
const BODY: usize = 1024;
/// Distinct keys, and subjects of a JetStream source.
const KEYS: u64 = 64;
const QUESTION: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    KafkaToNats,
    KafkaToJetStream,
    KafkaToKafka,
    JetStreamToKafka,
}

pub(crate) struct Brokers {
    pub(crate) kafka: String,
    pub(crate) nats: String,
    runtime: Runtime,
}

/// Where the messages of one round arrive.
pub(crate) struct Destination<'a> {
    pub(crate) name: String,
    brokers: &'a Brokers,
    counter: Counter,
}

enum Counter {
    Subject(Arc<AtomicU64>),
    Stream(Box<jetstream::stream::Stream>),
    Topic(BaseConsumer),
}

// === impl Scenario ===

impl Scenario {
    pub(crate) const ALL: [Self; 4] = [
        Self::KafkaToNats,
        Self::KafkaToJetStream,
        Self::KafkaToKafka,
        Self::JetStreamToKafka,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KafkaToNats => "kafka-nats",
            Self::KafkaToJetStream => "kafka-jetstream",
            Self::KafkaToKafka => "kafka-kafka",
            Self::JetStreamToKafka => "jetstream-kafka",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|scenario| scenario.name() == name)
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::KafkaToNats => "Kafka -> NATS core",
            Self::KafkaToJetStream => "Kafka -> JetStream",
            Self::KafkaToKafka => "Kafka -> Kafka",
            Self::JetStreamToKafka => "JetStream -> Kafka",
        }
    }

    pub(crate) fn is_from_kafka(self) -> bool {
        self != Self::JetStreamToKafka
    }

    pub(crate) fn is_to_kafka(self) -> bool {
        matches!(self, Self::KafkaToKafka | Self::JetStreamToKafka)
    }
}

// === impl Brokers ===

impl Brokers {
    pub(crate) fn of_environment() -> Option<Self> {
        let address = |name| {
            std::env::var(name)
                .ok()
                .filter(|address| !address.is_empty())
        };
        Some(Self {
            kafka: address("A2ABUS_TEST_KAFKA")?,
            nats: address("A2ABUS_TEST_NATS")?,
            runtime: Runtime::new().expect("a runtime"),
        })
    }

    /// Makes a source that holds so many messages.
    pub(crate) fn fill(&self, scenario: Scenario, messages: u64) -> String {
        let name = unique("source");
        if scenario.is_from_kafka() {
            self.create_topic(&name, PARTITIONS);
            self.fill_topic(&name, messages);
        } else {
            self.runtime.block_on(self.fill_stream(&name, messages));
        }
        name
    }

    pub(crate) fn remove(&self, scenario: Scenario, source: &str) {
        if scenario.is_from_kafka() {
            self.delete_topic(source);
        } else {
            self.delete_stream(source);
        }
    }

    fn fill_topic(&self, name: &str, messages: u64) {
        let mut config = client(&self.kafka);
        config.set("linger.ms", "20");
        let producer: ThreadedProducer<DefaultProducerContext> =
            config.create().expect("a producer");
        let body = request(BODY, Filling::Text);
        for number in 0..messages {
            let key = format!("key-{}", number % KEYS);
            let mut record = BaseRecord::to(name).payload(&body[..]).key(&key);
            while let Err((_, back)) = producer.send(record) {
                record = back;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        producer.flush(Duration::from_secs(60)).expect("delivered");
    }

    async fn fill_stream(&self, name: &str, messages: u64) {
        let context = self.jetstream().await;
        create_stream(&context, name).await;
        let body = request(BODY, Filling::Text);
        stream::iter(0..messages)
            .map(|number| {
                let publish = context.publish(format!("{name}.{}", number % KEYS), body.clone());
                async { publish.await.expect("published").await.expect("stored") }
            })
            .buffered(512)
            .for_each(|_| async {})
            .await;
    }

    /// A new destination.
    pub(crate) fn open(&self, scenario: Scenario) -> Destination<'_> {
        let name = unique("destination");
        let counter = if scenario.is_to_kafka() {
            self.create_topic(&name, PARTITIONS);
            Counter::Topic(client(&self.kafka).create().expect("a consumer"))
        } else if scenario == Scenario::KafkaToJetStream {
            let stream = async { create_stream(&self.jetstream().await, &name).await };
            Counter::Stream(Box::new(self.runtime.block_on(stream)))
        } else {
            Counter::Subject(count_subject(&self.nats, &name))
        };
        Destination {
            name,
            brokers: self,
            counter,
        }
    }

    async fn jetstream(&self) -> jetstream::Context {
        let client = async_nats::connect(&self.nats).await.expect("connected");
        jetstream::new(client)
    }

    pub(crate) fn create_topic(&self, name: &str, partitions: i32) {
        let admin = self.admin();
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new();
        let made = self.runtime.block_on(admin.create_topics(&[new], &options));
        made.expect("an answer")[0].as_ref().expect("a topic");
    }

    pub(crate) fn delete_topic(&self, name: &str) {
        let admin = self.admin();
        let gone = admin.delete_topics(&[name], &AdminOptions::new());
        drop(self.runtime.block_on(gone));
    }

    fn delete_stream(&self, name: &str) {
        let gone = async { self.jetstream().await.delete_stream(name).await };
        drop(self.runtime.block_on(gone));
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        client(&self.kafka).create().expect("an admin client")
    }
}

// === impl Destination ===

impl Destination<'_> {
    /// How many messages have arrived.
    pub(crate) fn count(&self) -> u64 {
        match &self.counter {
            Counter::Subject(count) => count.load(Ordering::Relaxed),
            Counter::Stream(stream) => {
                let info = self.brokers.runtime.block_on(stream.get_info());
                info.expect("an answer").state.messages
            }
            Counter::Topic(consumer) => {
                let end = |partition| {
                    let ends = consumer.fetch_watermarks(&self.name, partition, QUESTION);
                    ends.map_or(0, |(_, end)| u64::try_from(end).expect("an offset"))
                };
                (0..PARTITIONS).map(end).sum()
            }
        }
    }
}

impl Drop for Destination<'_> {
    fn drop(&mut self) {
        match self.counter {
            Counter::Subject(_) => {}
            Counter::Stream(_) => self.brokers.delete_stream(&self.name),
            Counter::Topic(_) => self.brokers.delete_topic(&self.name),
        }
    }
}

pub(crate) fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

async fn create_stream(context: &jetstream::Context, name: &str) -> jetstream::stream::Stream {
    let config = jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![name.to_owned(), format!("{name}.>")],
        ..Default::default()
    };
    context.create_stream(config).await.expect("a stream")
}

pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("side-by-side-{what}-{}-{number}", std::process::id())
}

/// Counts the messages of a subject, without a client: that would take as much of the machine as a contestant.
fn count_subject(url: &str, subject: &str) -> Arc<AtomicU64> {
    let address = url.trim_start_matches("nats://");
    let mut stream = TcpStream::connect(address).expect("connected");
    let hello = format!(
        "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":false}}\r\nSUB {subject} 1\r\nPING\r\n"
    );
    stream.write_all(hello.as_bytes()).expect("written");
    let mut reader = BufReader::with_capacity(1 << 18, stream.try_clone().expect("a socket"));
    let mut line = String::new();
    while !line.starts_with("PONG") {
        line.clear();
        reader.read_line(&mut line).expect("a line");
    }
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::downgrade(&count);
    std::thread::spawn(move || {
        let mut body = Vec::new();
        while let Some(count) = counted.upgrade() {
            line.clear();
            reader.read_line(&mut line).expect("a line");
            if line.starts_with("PING") {
                stream.write_all(b"PONG\r\n").expect("written");
            } else if line.contains("MSG ") {
                let size = line
                    .split_whitespace()
                    .last()
                    .and_then(|n| n.parse::<usize>().ok());
                body.resize(size.expect("a size") + 2, 0);
                reader.read_exact(&mut body).expect("a body");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    count
}
