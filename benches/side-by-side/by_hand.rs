//! The loops that a user would write by hand, at least once: a position is stored after what came before it is confirmed.

use std::collections::{BTreeMap, VecDeque};
use std::future::IntoFuture as _;

use async_nats::jetstream::{self, consumer::pull};
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::StreamExt as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use tokio::runtime::Runtime;

use crate::brokers::client;

/// Messages without a confirmation.
const WINDOW: usize = 1024;
/// Core publications between two flushes.
const FLUSH: u64 = 256;

/// `SCENARIO KAFKA NATS FROM TO HEADERS`
pub(crate) fn run(work: &str) {
    let words: Vec<&str> = work.split(' ').collect();
    let [scenario, kafka, nats, from, to, headers] = words[..] else {
        panic!("not six words: {work}");
    };
    let ends = Ends {
        kafka,
        nats,
        from,
        to,
        headers: headers == "true",
    };
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        match scenario {
            "kafka-nats" => ends.kafka_to_nats().await,
            "kafka-jetstream" => ends.kafka_to_jetstream().await,
            "kafka-kafka" => ends.kafka_to_kafka().await,
            _ => ends.jetstream_to_kafka().await,
        }
    });
}

struct Ends<'a> {
    kafka: &'a str,
    nats: &'a str,
    from: &'a str,
    to: &'a str,
    headers: bool,
}

/// What the bridge says of each of these messages, beside its id, its origin and its time.
const ATTRIBUTES: [(&str, &str, &str); 11] = [
    ("ce_specversion", "ce-specversion", "1.0"),
    ("ce_source", "ce-source", "/a2abus/host/in"),
    ("ce_type", "ce-type", "org.apache.eventmesh.a2a.tools.call"),
    ("ce_subject", "ce-subject", "weather"),
    ("content-type", "ce-datacontenttype", "application/json"),
    ("ce_protocol", "ce-protocol", "A2A"),
    ("ce_protocolversion", "ce-protocolversion", "2.0"),
    ("ce_a2amethod", "ce-a2amethod", "tools/call"),
    ("ce_mcptype", "ce-mcptype", "request"),
    ("ce_targetagent", "ce-targetagent", "weather"),
    ("ce_hops", "ce-hops", "1"),
];

impl Ends<'_> {
    fn consumer(&self) -> StreamConsumer {
        let consumer: StreamConsumer = client(self.kafka)
            .set("group.id", self.to)
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.offset.store", "false")
            .create()
            .expect("a consumer");
        consumer.subscribe(&[self.from]).expect("subscribed");
        consumer
    }

    fn producer(&self) -> FutureProducer {
        let mut config = client(self.kafka);
        config.set("linger.ms", "0").set("acks", "all");
        config.set("enable.idempotence", "true");
        config.create().expect("a producer")
    }

    async fn client(&self) -> Client {
        async_nats::connect(self.nats).await.expect("connected")
    }

    /// What differs from one message to the next.
    fn own(position: &str) -> [(&'static str, &'static str, String); 3] {
        let time = "2026-01-01T00:00:00.000000Z".to_owned();
        [
            ("ce_id", "ce-id", format!("{position}#0")),
            ("ce_origin", "ce-origin", position.to_owned()),
            ("ce_time", "ce-time", time),
        ]
    }

    fn nats_headers(&self, record: &BorrowedMessage<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if self.headers {
            for (_, name, value) in ATTRIBUTES {
                headers.insert(name, value);
            }
            for (_, name, value) in Self::own(&position(record)) {
                headers.insert(name, value);
            }
        }
        headers
    }

    fn kafka_headers(&self, position: impl FnOnce() -> String) -> Option<OwnedHeaders> {
        if !self.headers {
            return None;
        }
        let mut headers = OwnedHeaders::new_with_capacity(16);
        for (key, _, value) in ATTRIBUTES {
            headers = headers.insert(Header {
                key,
                value: Some(value),
            });
        }
        for (key, _, value) in Self::own(&position()) {
            headers = headers.insert(Header {
                key,
                value: Some(&value),
            });
        }
        Some(headers)
    }

    async fn kafka_to_nats(&self) {
        let (consumer, client) = (self.consumer(), self.client().await);
        let (mut count, mut read) = (0, BTreeMap::new());
        loop {
            let record = consumer.recv().await.expect("a record");
            let body = Bytes::copy_from_slice(record.payload().unwrap_or_default());
            let headers = self.nats_headers(&record);
            let sent = client.publish_with_headers(self.to.to_owned(), headers, body);
            sent.await.expect("published");
            read.insert(record.partition(), record.offset());
            count += 1;
            if count % FLUSH == 0 {
                client.flush().await.expect("written");
                for (partition, offset) in std::mem::take(&mut read) {
                    let stored = consumer.store_offset(self.from, partition, offset);
                    stored.expect("stored");
                }
            }
        }
    }

    async fn kafka_to_jetstream(&self) {
        let consumer = self.consumer();
        let context = jetstream::new(self.client().await);
        let mut waiting = VecDeque::new();
        loop {
            let record = consumer.recv().await.expect("a record");
            let body = Bytes::copy_from_slice(record.payload().unwrap_or_default());
            let headers = self.nats_headers(&record);
            let sent = context.publish_with_headers(self.to.to_owned(), headers, body);
            let stored = sent.await.expect("published").into_future();
            waiting.push_back((record.partition(), record.offset(), stored));
            if waiting.len() == WINDOW
                && let Some((partition, offset, stored)) = waiting.pop_front()
            {
                stored.await.expect("stored");
                let stored = consumer.store_offset(self.from, partition, offset);
                stored.expect("stored");
            }
        }
    }

    async fn kafka_to_kafka(&self) {
        let (consumer, producer) = (self.consumer(), self.producer());
        let mut waiting = VecDeque::new();
        loop {
            let record = consumer.recv().await.expect("a record");
            let mut copy = FutureRecord::to(self.to)
                .key(record.key().unwrap_or_default())
                .payload(record.payload().unwrap_or_default());
            copy.headers = self.kafka_headers(|| position(&record));
            let sent = send(&producer, copy);
            waiting.push_back((record.partition(), record.offset(), sent));
            if waiting.len() == WINDOW
                && let Some((partition, offset, sent)) = waiting.pop_front()
            {
                sent.await.expect("confirmed").expect("confirmed");
                let stored = consumer.store_offset(self.from, partition, offset);
                stored.expect("stored");
            }
        }
    }

    async fn jetstream_to_kafka(&self) {
        let context = jetstream::new(self.client().await);
        let config = pull::Config {
            durable_name: Some(self.to.to_owned()),
            max_ack_pending: 10_000,
            ..Default::default()
        };
        let stream = context.get_stream(self.from).await.expect("a stream");
        let consumer = stream.create_consumer(config).await.expect("a consumer");
        let messages = consumer.stream().max_messages_per_batch(500).messages();
        let mut messages = messages.await.expect("messages");
        let producer = self.producer();
        let mut waiting = VecDeque::new();
        while let Some(message) = messages.next().await {
            let message = message.expect("a message");
            let position = || {
                let info = message.info().expect("of a stream");
                format!("j:{}/{}", self.from, info.stream_sequence)
            };
            let mut copy = FutureRecord::<str, _>::to(self.to)
                .key(message.subject.as_str())
                .payload(&message.payload[..]);
            copy.headers = self.kafka_headers(position);
            waiting.push_back((send(&producer, copy), message));
            if waiting.len() == WINDOW
                && let Some((sent, message)) = waiting.pop_front()
            {
                sent.await.expect("confirmed").expect("confirmed");
                message.ack().await.expect("acknowledged");
            }
        }
    }
}

fn position(record: &BorrowedMessage<'_>) -> String {
    let (topic, partition) = (record.topic(), record.partition());
    format!("k:{topic}/{partition}/{}", record.offset())
}

fn send<K: rdkafka::message::ToBytes + ?Sized>(
    producer: &FutureProducer,
    mut record: FutureRecord<'_, K, [u8]>,
) -> DeliveryFuture {
    loop {
        match producer.send_result(record) {
            Ok(sent) => return sent,
            Err((_, back)) => record = back,
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
