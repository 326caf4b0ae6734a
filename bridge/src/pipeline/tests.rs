//! The order of messages if copies of them fail, or their partitions move.

use std::num::{NonZeroU16, NonZeroUsize};

use a2abus_transports::memory::{FaultPlan, Memory, MemoryConfig};
use a2abus_transports::{
    Address, AnyTransport, Message, Reading, Subscription, Topic, TopicFilter, Transport as _,
    TransportErrorKind,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep, timeout};

use super::*;
use crate::bridge::{BindingService, Bridge};
use crate::config::{Config, Name};
use crate::metrics::Metrics;

const CONFIG: &str = "
instance: test
http: { enabled: false }
admin: { enabled: false }
transports: { source: { type: memory }, sink: { type: memory }, slow: { type: memory } }
bindings: [{ name: in, transport: source, topics: [in], group: g, reply_topics: [answers] }]
routes:
  - { name: slow, when: { targetagent: slow }, to: [{ transport: slow, topic: out }] }
  - { name: both, when: { targetagent: both }, to: [{ transport: slow, topic: out }, { transport: sink, topic: out }] }
default_route: [{ transport: sink, topic: out }]";

/// A binding that reads one bus, and sends to two others.
struct Fixture {
    source: Memory,
    sink: Memory,
    pipeline: Arc<Pipeline>,
    metrics: Arc<Metrics>,
}

pub(super) fn subscription(topic: &str) -> Subscription {
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
        let plan = FaultPlan {
            late_confirmation: 1.0,
            late_at_most: Duration::from_secs(1_000),
            ..FaultPlan::default()
        };
        let buses = [
            ("source", source.clone()),
            ("sink", sink.clone()),
            ("slow", Memory::with_faults(1, plan)),
        ];
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
            metrics: bridge.metrics,
        }
    }

    /// An event and a request that wait, because the sink refuses them. Also their binding, and the reader that got
    /// them.
    async fn with_request() -> (Self, mpsc::Sender<Delivery>, Consumer) {
        let fixture = Self::new(Memory::default()).await;
        fixture.refuse(Some(TransportErrorKind::UnknownTopic));
        let binding = fixture.start();
        let mut reader = fixture.reader().await;
        fixture.publish("fast", 0).await;
        fixture.request("fast").await;
        process(read(&mut reader, 2).await, &binding).await;
        fixture.until_in_flight(2).await;
        (fixture, binding, reader)
    }

    /// A sink without its topic, and agents whose answers are read. Also the binding, and a reader of its source.
    async fn with_refusing_sink() -> (Self, mpsc::Sender<Delivery>, Consumer) {
        let fixture = Self::new(Memory::default()).await;
        fixture.refuse(Some(TransportErrorKind::UnknownTopic));
        for channel in fixture.pipeline.calls.channels().iter() {
            channel.set_reading(true);
        }
        let (binding, reader) = (fixture.start(), fixture.reader().await);
        (fixture, binding, reader)
    }

    /// Makes the sink refuse its messages for this reason, or accept them.
    fn refuse(&self, reason: Option<TransportErrorKind>) {
        let out = TopicFilter::new("out").unwrap();
        self.sink.set_refused(out, reason);
    }

    /// Publishes a numbered message for an agent to the partition of the source that all messages share.
    async fn publish(&self, agent: &str, number: i64) {
        let params = json!({ "_agentId": agent, "number": number });
        self.publish_body(json!({ "jsonrpc": "2.0", "method": "note", "params": params }))
            .await;
    }

    /// Publishes a request there.
    async fn request(&self, agent: &str) {
        let params = json!({ "_agentId": agent });
        self.publish_body(json!({ "jsonrpc": "2.0", "id": 1, "method": "do", "params": params }))
            .await;
    }

    async fn publish_body(&self, body: Value) {
        let mut to = Address::topic(Topic::from_static("in"));
        to.reply_to = Some(Topic::from_static("answers"));
        let message = Message {
            key: Some("key".into()),
            ..Message::plain(body.to_string())
        };
        let sent = self.source.send(&to, message).await;
        sent.unwrap().await.unwrap();
    }

    /// Waits until this many messages of the binding are in progress.
    async fn until_in_flight(&self, count: i64) {
        let in_flight = &self.pipeline.intake.metrics.in_flight;
        let until = timeout(Duration::from_secs(100), async {
            while in_flight.get() != count {
                sleep(Duration::from_millis(10)).await;
            }
        });
        until.await.expect("they are");
    }

    /// A new reader of the source. When it is dropped, the partition moves.
    async fn reader(&self) -> Consumer {
        self.source.subscribe(subscription("in")).await.unwrap()
    }

    /// The answers to requests.
    async fn answers(&self) -> Consumer {
        let answers = subscription("answers");
        self.source.subscribe(answers).await.unwrap()
    }

    /// The messages of the sink.
    async fn events(&self) -> Consumer {
        self.sink.subscribe(subscription("out")).await.unwrap()
    }

    /// Starts the binding, which processes what is sent here.
    fn start(&self) -> mpsc::Sender<Delivery> {
        self.start_task().0
    }

    /// The same, and its task.
    fn start_task(&self) -> (mpsc::Sender<Delivery>, JoinHandle<()>) {
        let (sender, mut deliveries) = mpsc::channel(100);
        let pipeline = Arc::clone(&self.pipeline);
        let stop = CancellationToken::new();
        let task = tokio::spawn(async move { pipeline.work(&mut deliveries, &stop).await });
        (sender, task)
    }
}

/// The next messages of a reader.
async fn read(reader: &mut Consumer, count: usize) -> Vec<Delivery> {
    let mut read = Vec::new();
    while read.len() < count {
        read.push(reader.recv().await.unwrap());
    }
    read
}

async fn process(deliveries: impl IntoIterator<Item = Delivery>, binding: &mpsc::Sender<Delivery>) {
    for delivery in deliveries {
        binding.send(delivery).await.unwrap();
    }
}

/// Settles a message of the sink, and returns its number.
fn settle(delivery: Delivery) -> i64 {
    let body: Value = serde_json::from_slice(delivery.message.body.as_ref().unwrap()).unwrap();
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    body["params"]["number"].as_i64().unwrap()
}

/// Faults of a bus that confirms late, or not at all.
fn lossy() -> FaultPlan {
    FaultPlan {
        drop_confirmation: 0.3,
        late_confirmation: 1.0,
        late_at_most: Duration::from_millis(50),
        ..FaultPlan::default()
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_wait_behind_one_of_a_moved_partition_are_not_sent() {
    let fixture = Fixture::new(Memory::default()).await;
    fixture.refuse(Some(TransportErrorKind::UnknownTopic));
    for number in 0..10 {
        fixture.publish("fast", number).await;
    }
    let binding = fixture.start();
    let mut reader = fixture.reader().await;
    let mut old = read(&mut reader, 10).await.into_iter();
    // The first message waits for its next attempt, and the others wait behind it. Some are not read yet.
    process(old.by_ref().take(5), &binding).await;
    sleep(Duration::from_millis(50)).await;
    drop(reader);
    fixture.refuse(None);
    sleep(Duration::from_millis(500)).await;
    process(old, &binding).await;
    sleep(Duration::from_millis(500)).await;
    let mut reader = fixture.reader().await;
    process(read(&mut reader, 10).await, &binding).await;
    let mut events = fixture.events().await;
    for number in 0..10 {
        let delivery = events.recv().await.unwrap();
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
    for seed in 0..20 {
        let sink = Memory::with_config_and_faults(config.clone(), seed, lossy());
        let fixture = Fixture::new(sink).await;
        for number in 0..20 {
            fixture.publish("fast", number).await;
        }
        let binding = fixture.start();
        let mut reader = fixture.reader().await;
        process(read(&mut reader, 20).await, &binding).await;
        let mut events = fixture.events().await;
        let mut last = 0;
        while last < 19 {
            let delivery = events.recv().await.unwrap();
            // Keep the sink full until the confirmation has come or is lost: the next message waits for room.
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

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_a_message_that_failed_while_an_earlier_one_waits_elsewhere() {
    // The first message goes elsewhere only, or to both destinations.
    for (seed, first) in (0..40).zip(["slow", "both"].into_iter().cycle()) {
        let fixture = Fixture::new(Memory::with_faults(seed, lossy())).await;
        let binding = fixture.start();
        let mut reader = fixture.reader().await;
        fixture.publish(first, -1).await;
        process(read(&mut reader, 1).await, &binding).await;
        // By then it is known whether its copy has failed.
        sleep(Duration::from_millis(60)).await;
        for number in 0..20 {
            fixture.publish("fast", number).await;
            process(read(&mut reader, 1).await, &binding).await;
            // By then it is known whether it has failed.
            sleep(Duration::from_millis(60)).await;
        }
        let mut events = fixture.events().await;
        let mut last = if first == "both" { -1 } else { 0 };
        while last < 19 {
            let number = settle(events.recv().await.unwrap());
            assert!(
                (last..=last + 1).contains(&number),
                "{number} follows {last}"
            );
            last = number;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_binding_that_stops_leaves_messages_for_a_failing_destination_at_their_source() {
    let fixture = Fixture::new(Memory::default()).await;
    fixture.refuse(Some(TransportErrorKind::UnknownTopic));
    let (binding, task) = fixture.start_task();
    let mut reader = fixture.reader().await;
    // The first ones are for another destination, which is slow, but works.
    for (number, agent) in (0..).zip(["slow", "fast", "fast"]) {
        fixture.publish(agent, number).await;
    }
    process(read(&mut reader, 3).await, &binding).await;
    drop(binding);
    let stopped = timeout(Duration::from_secs(2_000), task).await;
    stopped.expect("it does not wait for the topic").unwrap();
    assert_eq!(fixture.pipeline.intake.metrics.in_flight.get(), 0);
    let again = read(&mut reader, 2).await.into_iter().map(settle);
    assert_eq!(again.collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_copy_beside_a_request_is_sent_although_the_partition_has_moved() {
    let (fixture, binding, mut reader) = Fixture::with_refusing_sink().await;
    fixture.request("both").await;
    process(read(&mut reader, 1).await, &binding).await;
    // Its agent has the request by then.
    sleep(Duration::from_secs(2_000)).await;
    drop(reader);
    fixture.refuse(None);
    let mut events = fixture.events().await;
    let copy = timeout(Duration::from_secs(2_000), events.recv()).await;
    assert!(copy.is_ok_and(|copy| copy.is_some()));
}

/// If this process reads the request again, it may send none.
#[tokio::test(start_paused = true)]
async fn a_copy_beside_an_unsent_request_is_sent_although_the_partition_has_moved() {
    for has_failed in [false, true] {
        copy_is_sent_after_a_move(has_failed).await;
    }
}

async fn copy_is_sent_after_a_move(has_failed: bool) {
    let (fixture, binding, mut reader) = Fixture::with_refusing_sink().await;
    fixture.publish("fast", 0).await;
    fixture.request("both").await;
    process(read(&mut reader, 2).await, &binding).await;
    if has_failed {
        let mut answers = fixture.answers().await;
        let failed = timeout(Duration::from_secs(100), answers.recv()).await;
        assert!(failed.is_ok_and(|failed| failed.is_some()), "its deadline");
    }
    drop(reader);
    // The lane notices that.
    sleep(Duration::from_secs(10)).await;
    fixture.refuse(None);
    let mut events = fixture.events().await;
    let copy = timeout(Duration::from_secs(2_000), events.recv()).await;
    let copy = copy.expect("a copy").unwrap().message.body.unwrap();
    let copy: Value = serde_json::from_slice(&copy).unwrap();
    assert_eq!(copy["method"], "do");
}

/// An operator is alerted, although the lane continues.
#[tokio::test(start_paused = true)]
async fn a_lane_whose_copies_beside_requests_wait_counts_as_held() {
    let (fixture, binding, mut reader) = Fixture::with_refusing_sink().await;
    let kind = TransportErrorKind::UnknownTopic;
    fixture.request("both").await;
    process(read(&mut reader, 1).await, &binding).await;
    let held = fixture.pipeline.intake.metrics.held_lanes(kind);
    let until = async |count: i64| {
        while held.get() != count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    // The other copy is confirmed late.
    let long = Duration::from_secs(2_000);
    timeout(long, until(1)).await.expect("it is held");
    sleep(Duration::from_secs(100)).await;
    assert_eq!(held.get(), 1);
    fixture.refuse(None);
    timeout(long, until(0)).await.expect("it is not held");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_in_a_moved_partition_ends_before_its_deadline() {
    let (fixture, _binding, reader) = Fixture::with_request().await;
    let calls = fixture.pipeline.calls.pending();
    assert_eq!(calls.len(), 1);
    let moved = Instant::now();
    drop(reader);
    fixture.until_in_flight(0).await;
    assert!(calls.is_empty());
    assert!(moved.elapsed() < Duration::from_secs(25), "not its timeout");
    // The next reader gets both, and this replica has sent no error.
    let mut answers = fixture.answers().await;
    let mut next = fixture.reader().await;
    assert_eq!(read(&mut next, 2).await.len(), 2);
    assert!(answers.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_read_again_before_it_was_sent_is_answered_with_an_error() {
    let (fixture, binding, reader) = Fixture::with_request().await;
    drop(reader);
    let mut reader = fixture.reader().await;
    process(read(&mut reader, 2).await, &binding).await;
    let mut answers = fixture.answers().await;
    let error = answers.recv().await.unwrap();
    let body: Value = serde_json::from_slice(error.message.body.as_ref().unwrap()).unwrap();
    assert_eq!(body["id"], 1);
    let why = body["error"]["message"].as_str().unwrap();
    assert!(why.contains("its partition moved"), "{why}");
    let metrics = fixture.metrics.render().unwrap();
    assert!(metrics.contains("a2abus_calls_total{outcome=\"failed\"} 1"));
    fixture.refuse(None);
    let mut events = fixture.events().await;
    assert_eq!(settle(events.recv().await.unwrap()), 0);
    fixture.until_in_flight(0).await;
    // Both are settled.
    drop((reader, binding));
    let mut next = fixture.reader().await;
    sleep(Duration::from_secs(60)).await;
    assert!(next.try_recv().is_none());
    assert!(events.try_recv().is_none(), "the request was not sent");
}
