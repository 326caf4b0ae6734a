//! The order of a binding whose copies fail, or whose partitions move.

use std::num::{NonZeroU16, NonZeroUsize};

use a2abus_transports::memory::{FaultPlan, Memory, MemoryConfig};
use a2abus_transports::{
    Address, AnyTransport, Message, Reading, Subscription, Topic, TopicFilter, Transport as _,
    TransportErrorKind,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;
use crate::bridge::{BindingService, Bridge};
use crate::config::{Config, Name};

const CONFIG: &str = "
instance: test
http: { enabled: false }
admin: { enabled: false }
transports: { source: { type: memory }, sink: { type: memory } }
bindings: [{ name: in, transport: source, topics: [in], group: g }]
default_route: [{ transport: sink, topic: out }]";

/// A binding between two buses.
struct Fixture {
    source: Memory,
    sink: Memory,
    pipeline: Arc<Pipeline>,
}

fn subscription(topic: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading: Reading::Group("g".into()),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    }
}

impl Fixture {
    async fn new(sink: Memory) -> Self {
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let source = Memory::default();
        let buses = [("source", source.clone()), ("sink", sink.clone())];
        let buses = buses.map(|(name, bus)| (Name::from_static(name), AnyTransport::Memory(bus)));
        let bridge = Bridge::build_on(config, buses.into()).await.unwrap();
        let mut bindings = bridge.bindings.into_iter();
        let Some((BindingService::Pipeline(pipeline), _)) = bindings.next() else {
            panic!("no binding");
        };
        Self {
            source,
            sink,
            pipeline,
        }
    }

    /// Publishes numbered messages to one partition of the source.
    async fn publish(&self, count: i64) {
        let to = Address::topic(Topic::from_static("in"));
        for number in 0..count {
            let body =
                json!({ "jsonrpc": "2.0", "method": "note", "params": { "number": number } });
            let message = Message {
                key: Some("key".into()),
                ..Message::plain(body.to_string())
            };
            let sent = self.source.send(&to, message).await;
            sent.unwrap().await.unwrap();
        }
    }

    /// Gives the next messages of a new reader of the source to the binding. Their partition moves when it is dropped.
    async fn read(&self, count: i64, deliveries: &mpsc::Sender<Delivery>) -> Consumer {
        let mut reader = self.source.subscribe(subscription("in")).await.unwrap();
        for _ in 0..count {
            let delivery = reader.recv().await.unwrap();
            deliveries.send(delivery).await.unwrap();
        }
        reader
    }

    fn work(&self, mut deliveries: mpsc::Receiver<Delivery>) {
        let pipeline = Arc::clone(&self.pipeline);
        let stop = CancellationToken::new();
        tokio::spawn(async move { pipeline.work(&mut deliveries, &stop).await });
    }
}

/// Settles a message of the sink, and returns its number.
fn settle(delivery: Delivery) -> i64 {
    let body: Value = serde_json::from_slice(delivery.message.body.as_ref().unwrap()).unwrap();
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    body["params"]["number"].as_i64().unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_behind_one_of_a_moved_partition_are_not_sent() {
    let fixture = Fixture::new(Memory::default()).await;
    let out = TopicFilter::new("out").unwrap();
    let refuse = |kind| fixture.sink.set_refused(out.clone(), kind);
    refuse(Some(TransportErrorKind::UnknownTopic));
    fixture.publish(10).await;
    let (sender, deliveries) = mpsc::channel(100);
    fixture.work(deliveries);
    let reader = fixture.read(10, &sender).await;
    // The first message waits for its next attempt, and the others wait behind it.
    sleep(Duration::from_millis(50)).await;
    drop(reader);
    refuse(None);
    sleep(Duration::from_millis(500)).await;
    let _reader = fixture.read(10, &sender).await;
    let mut sink = fixture.sink.subscribe(subscription("out")).await.unwrap();
    for number in 0..10 {
        let delivery = sink.recv().await.unwrap();
        assert_eq!(settle(delivery), number);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_room_is_not_sent_before_one_that_failed_meanwhile() {
    let config = MemoryConfig {
        partitions: NonZeroU16::MIN,
        capacity_messages: NonZeroUsize::MIN,
        ..MemoryConfig::default()
    };
    let plan = FaultPlan {
        drop_confirmation: 0.3,
        late_confirmation: 1.0,
        late_at_most: Duration::from_millis(50),
        ..FaultPlan::default()
    };
    for seed in 0..20 {
        let sink = Memory::with_config_and_faults(config.clone(), seed, plan);
        let fixture = Fixture::new(sink).await;
        fixture.publish(20).await;
        let (sender, deliveries) = mpsc::channel(100);
        fixture.work(deliveries);
        let _reader = fixture.read(20, &sender).await;
        let mut sink = fixture.sink.subscribe(subscription("out")).await.unwrap();
        let mut last = 0;
        while last < 19 {
            let delivery = sink.recv().await.unwrap();
            // It takes the room of the next message until its confirmation has come, or is lost.
            sleep(Duration::from_millis(60)).await;
            let number = settle(delivery);
            assert!(
                (last..=last + 1).contains(&number),
                "{number} follows {last}"
            );
            last = number;
        }
    }
}
