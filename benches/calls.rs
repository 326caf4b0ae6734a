//! What does a call through the bridge cost beside the same call written by hand? In microseconds per call with one in
//! flight. Needs real servers: `tests/run --brokers-only` prints the two variables to set.
//!
//! NATS core: the baseline is `client.request` of the same client library to the same agent.
//! Kafka: the baseline is a producer and a consumer of the same client library, two topics, `linger.ms=0`,
//! `fetch.wait.max.ms=500`, `acks=all`, to the same agent.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;
use std::time::Duration;

use a2abus_bridge::calls::{Calls, Request};
use a2abus_plugin::{Hint, Limits, decode};
use bench_support::{SMALL_REQUEST, answer_to, run_bridge};
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::StreamExt as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// A call that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(30);

async fn call(calls: &Arc<Calls>) {
    let units = decode(
        &Bytes::from_static(SMALL_REQUEST.as_bytes()),
        &Hint::default(),
        &Limits::default(),
    );
    let unit = units.into_only().expect("one unit").expect("a request");
    let request = Request {
        unit,
        data: None,
        call: None,
        target: None,
        timeout: Some(PATIENCE),
        bounds_first_part: false,
        accepts_parts: None,
        key: None,
        arrived: std::time::Instant::now(),
        caller: "bench".into(),
        headers: Vec::new(),
    };
    let mut answer = calls.call(request).await.expect("the call is made");
    let part = answer.next().await.expect("an answer").expect("an answer");
    assert!(part.last);
}

fn nats(criterion: &mut Criterion) {
    let Ok(url) = std::env::var("A2ABUS_TEST_NATS") else {
        return println!("skipped: A2ABUS_TEST_NATS names no server");
    };
    let runtime = Runtime::new().expect("a runtime");
    let stop = CancellationToken::new();
    let subject = format!("bench.{}", std::process::id());
    let (calls, client) = runtime.block_on(async {
        let agent = async_nats::connect(&url).await.expect("the server answers");
        let mut requests = agent.subscribe(subject.clone()).await.expect("subscribed");
        agent.flush().await.expect("flushed");
        tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                let Some(reply) = request.reply else { continue };
                agent.publish(reply, answer_to(&request.payload).into()).await.expect("published");
            }
        });
        let text = format!(
            "transports: {{ nats: {{ type: nats, servers: ['{url}'] }} }}
routes: [{{ name: r, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {subject} }}] }}]
http: {{ listen: '127.0.0.1:0' }}
admin: {{ enabled: false }}"
        );
        (run_bridge(&text, &stop).await, async_nats::connect(&url).await.expect("the server answers"))
    });
    let mut group = criterion.benchmark_group("call over NATS core, one in flight");
    group.bench_function("baseline client.request", |bencher| {
        bencher.to_async(&runtime).iter(|| async {
            client
                .request(
                    subject.clone(),
                    Bytes::from_static(SMALL_REQUEST.as_bytes()),
                )
                .await
                .expect("an answer")
        });
    });
    group.bench_function("through the bridge", |bencher| {
        bencher.to_async(&runtime).iter(|| call(&calls));
    });
    group.finish();
    stop.cancel();
}

/// Everything the Kafka loop needs, written by hand.
struct ByHand {
    producer: FutureProducer,
    replies: StreamConsumer,
    topic: String,
    reply_topic: String,
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn producer(brokers: &str) -> FutureProducer {
    client(brokers)
        .set("linger.ms", "0")
        .set("acks", "all")
        .create()
        .expect("a producer")
}

/// A consumer of partition 0 of the topic, which is new.
fn reader(brokers: &str, topic: &str) -> StreamConsumer {
    let consumer: StreamConsumer = client(brokers)
        .set("group.id", "bench")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "500")
        .create()
        .expect("a consumer");
    let mut partitions = TopicPartitionList::new();
    partitions
        .add_partition_offset(topic, 0, Offset::Beginning)
        .expect("an offset");
    consumer.assign(&partitions).expect("assigned");
    consumer
}

// === impl ByHand ===

impl ByHand {
    async fn call(&self) {
        let headers = OwnedHeaders::new().insert(rdkafka::message::Header {
            key: "kafka_replyTopic",
            value: Some(self.reply_topic.as_str()),
        });
        let record = FutureRecord::<(), _>::to(&self.topic)
            .payload(SMALL_REQUEST)
            .headers(headers);
        let sent = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error)
            .expect("queued");
        let _reply = self.replies.recv().await.expect("an answer");
        sent.await.expect("confirmed").expect("confirmed");
    }
}

/// Answers every request to the topic and partition that its headers name.
async fn kafka_agent(requests: StreamConsumer, producer: FutureProducer) {
    while let Ok(request) = requests.recv().await {
        let header = |name: &str| {
            let headers = request.headers()?;
            headers
                .iter()
                .find(|header| header.key == name)?
                .value
                .map(<[u8]>::to_vec)
        };
        let topic = header("kafka_replyTopic")
            .and_then(|name| String::from_utf8(name).ok())
            .expect("a reply topic");
        let partition = header("kafka_replyPartition")
            .and_then(|bytes| bytes.try_into().ok())
            .map(i32::from_be_bytes);
        let body = answer_to(request.payload().unwrap_or_default());
        let mut record = FutureRecord::<(), _>::to(&topic).payload(&body);
        record.partition = partition;
        let sent = producer
            .send_result(record)
            .map_err(|(error, _)| error)
            .expect("queued");
        tokio::spawn(sent);
    }
}

async fn kafka_parts(brokers: &str, stop: &CancellationToken) -> (Arc<Calls>, ByHand) {
    let unique = std::process::id();
    let (topic, reply_topic) = (format!("bench.{unique}"), format!("bench.replies.{unique}"));
    let admin: AdminClient<DefaultClientContext> =
        client(brokers).create().expect("an admin client");
    let topics =
        [&topic, &reply_topic].map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1)));
    admin
        .create_topics(&topics, &AdminOptions::new())
        .await
        .expect("the topics are made");
    tokio::spawn(kafka_agent(reader(brokers, &topic), producer(brokers)));
    let text = format!(
        "transports: {{ kafka: {{ type: kafka, brokers: ['{brokers}'] }} }}
routes: [{{ name: r, when: {{ targetagent: weather }}, to: [{{ transport: kafka, topic: {topic} }}] }}]
calls: {{ reply_topic: bench.bridge.{unique}, reply_partitions: 4 }}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ enabled: false }}"
    );
    let calls = run_bridge(&text, stop).await;
    let replies = reader(brokers, &reply_topic);
    (
        calls,
        ByHand {
            producer: producer(brokers),
            replies,
            topic,
            reply_topic,
        },
    )
}

fn kafka(criterion: &mut Criterion) {
    let Ok(brokers) = std::env::var("A2ABUS_TEST_KAFKA") else {
        return println!("skipped: A2ABUS_TEST_KAFKA names no server");
    };
    let runtime = Runtime::new().expect("a runtime");
    let stop = CancellationToken::new();
    let (calls, by_hand) = runtime.block_on(kafka_parts(&brokers, &stop));
    let mut group = criterion.benchmark_group("call over Kafka, one in flight");
    group.bench_function("baseline two topics by hand", |bencher| {
        bencher.to_async(&runtime).iter(|| by_hand.call());
    });
    group.bench_function("through the bridge", |bencher| {
        bencher.to_async(&runtime).iter(|| call(&calls));
    });
    group.finish();
    stop.cancel();
}

criterion_group!(benches, nats, kafka);
criterion_main!(benches);
