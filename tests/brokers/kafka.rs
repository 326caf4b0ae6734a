//! Kafka passes the battery.

use std::collections::BTreeSet;

use a2abus_transports::kafka::{Kafka, KafkaConfig};
use a2abus_transports::{
    Address, Consumer, Delivery, Disposition, Message, Outcome, Reading, Subscription, Topic,
    Transport as _, TransportErrorKind,
};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use support::battery::{self, CASES, Case, DEADLINE, Environment, Feature, unique, within};
use support::server::{Kind, Private, named};

struct Cluster {
    address: String,
    /// Our own broker, for cases that stop it.
    private: Option<Private>,
    may_linger: bool,
}

impl Environment for Cluster {
    type Transport = Kafka;

    async fn connect(&self) -> Kafka {
        Kafka::connect(KafkaConfig::new([self.address.as_str()])).unwrap()
    }

    fn durable(&self, topic: &Topic, name: &str) -> Reading {
        Reading::Group(format!("{topic}.{name}").into())
    }

    fn may_linger(&self) -> bool {
        self.may_linger
    }

    fn has(&self, feature: Feature) -> bool {
        match feature {
            Feature::NullHeaders
            | Feature::BinaryHeaders
            | Feature::Keys
            | Feature::Lag
            | Feature::OrderedRedelivery => true,
            Feature::Wildcards => false,
            Feature::Outage => self.private.is_some(),
        }
    }

    fn oversize_bytes(&self) -> usize {
        2_000_000
    }

    async fn stop(&self) {
        if let Some(broker) = &self.private {
            broker.kill().await;
        }
    }

    async fn start(&self) {
        if let Some(broker) = &self.private {
            broker.start().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_passes_the_battery() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    for may_linger in [true, false] {
        let cluster = Cluster {
            address: address.clone(),
            private: None,
            may_linger,
        };
        for case in CASES {
            println!("kafka: {case}, may linger: {may_linger}");
            battery::run(case, &cluster).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_survives_the_death_of_its_broker() {
    if named(Kind::Kafka).is_none() {
        return;
    }
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let mut cluster = Cluster {
        address: broker.address(),
        private: Some(broker),
        may_linger: true,
    };
    battery::run(Case::ReconnectMidFlight, &cluster).await;
    cluster.may_linger = false;
    battery::run(Case::ReconnectMidFlight, &cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_the_same_instance_id_ends_the_first_and_the_first_knows() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let config = KafkaConfig {
        instance_id: Some("pod-0".to_owned()),
        ..KafkaConfig::new([address])
    };
    let topic = Topic::new(unique()).unwrap();
    let join = async || {
        let kafka = Kafka::connect(config.clone()).unwrap();
        kafka.ensure_topic(&topic, 1).await.unwrap();
        let consumer = kafka.subscribe(group(&topic)).await.unwrap();
        let to = Address::topic(topic.clone());
        let sent = kafka.send(&to, Message::plain("x")).await.unwrap();
        within("it is there", sent).await.unwrap();
        (kafka, consumer)
    };
    let (_first, mut consumer) = join().await;
    // It has joined once it reads.
    drop(within("a delivery", consumer.recv()).await.unwrap());
    let (_second, _reading) = join().await;
    within("the end of the first", async {
        while consumer.recv().await.is_some() {}
    })
    .await;
    let error = consumer.close(DEADLINE).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Fenced, "{error}");
    assert_eq!(error.disposition(), Disposition::Pause);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_was_paused_when_it_left_is_read_when_it_comes_back() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let kafka = Kafka::connect(KafkaConfig::new([address])).unwrap();
    let topic = Topic::new(unique()).unwrap();
    kafka.ensure_topic(&topic, 2).await.unwrap();
    let publish = async |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let to = Address {
                partition: Some(number % 2),
                ..Address::topic(topic.clone())
            };
            let message = Message::plain(number.to_string());
            let sent = kafka.send(&to, message).await.unwrap();
            within("it is there", sent).await.unwrap();
        }
    };
    let join = async || {
        let subscription = Subscription {
            budget_messages: 10,
            ..group(&topic)
        };
        let consumer = kafka.subscribe(subscription).await.unwrap();
        within("an assignment", consumer.assigned()).await;
        consumer
    };
    publish(0..60).await;
    let mut first = join().await;
    // They use up its budget, so it pauses both partitions.
    let mut held = Vec::new();
    while held.len() < 10 {
        held.push(within("a delivery", first.recv()).await.unwrap());
    }
    let mut second = join().await;
    let partition =
        |delivery: &Delivery| u32::from(delivery.origin.as_ref().unwrap().position.contains("/1/"));
    // What the second reads has left the first. Its first assignment may be empty.
    let moved = within("a partition moves", second.recv()).await.unwrap();
    let kept_partition = 1 - partition(&moved);
    drop((held, moved));
    let read = async |consumer: &mut Consumer, numbers: BTreeSet<u32>| {
        let mut missing = numbers;
        while !missing.is_empty() {
            let delivery = within("a delivery", consumer.recv()).await.unwrap();
            let body = delivery.message.body.as_deref().unwrap_or_default();
            missing.remove(&std::str::from_utf8(body).unwrap().parse().unwrap());
            delivery.acknowledger.settle(Outcome::Settled).unwrap();
        }
    };
    // The first goes on with the partition that it keeps.
    publish(60..80).await;
    let of = |partition: u32, numbers: std::ops::Range<u32>| {
        numbers.filter(|number| number % 2 == partition).collect()
    };
    read(&mut first, of(kept_partition, 60..80)).await;
    within("the second leaves", second.close(DEADLINE))
        .await
        .unwrap();
    read(&mut first, of(1 - kept_partition, 60..80)).await;
    within("the end", first.close(DEADLINE)).await.unwrap();
}

/// What a group of the name of a topic reads from it.
fn group(topic: &Topic) -> Subscription {
    Subscription {
        topics: vec![topic.clone().into()],
        reading: Reading::Group(topic.as_str().into()),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    }
}

/// How many members a group has.
async fn members(address: &str, group: &str) -> usize {
    let client: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .create()
        .unwrap();
    let group = group.to_owned();
    let asked = tokio::task::spawn_blocking(move || {
        let list = client.fetch_group_list(Some(&group), DEADLINE).unwrap();
        list.groups()
            .first()
            .map_or(0, |group| group.members().len())
    });
    asked.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_partitions_leaves_its_group_when_it_is_closed() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let topic = Topic::new(unique()).unwrap();
    // A member that does not leave stays until its session ends: longer than this test.
    let kafka = Kafka::connect(KafkaConfig::new([address.as_str()])).unwrap();
    kafka.ensure_topic(&topic, 1).await.unwrap();
    let join = async || {
        let consumer = kafka.subscribe(group(&topic)).await.unwrap();
        within("an assignment", consumer.assigned()).await;
        consumer
    };
    let (first, second) = (join().await, join().await);
    assert_eq!(members(&address, topic.as_str()).await, 2);
    // The first has the partition.
    second.close(DEADLINE).await.unwrap();
    assert_eq!(members(&address, topic.as_str()).await, 1);
    first.close(DEADLINE).await.unwrap();
    assert_eq!(members(&address, topic.as_str()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_waits_for_a_dead_one_leaves_without_waiting() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let (inbox, outbox) = (Topic::new(unique()).unwrap(), unique());
    let kafka = Kafka::connect(KafkaConfig::new([address.as_str()])).unwrap();
    kafka.ensure_topic(&inbox, 1).await.unwrap();
    kafka
        .ensure_topic(&Topic::new(outbox.clone()).unwrap(), 1)
        .await
        .unwrap();
    let config = format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{address}'], session_timeout: 120s }} }}
bindings: [{{ name: in, transport: kafka, topics: [{inbox}], group: {inbox} }}]
default_route: [{{ transport: kafka, topic: {outbox} }}]
calls: {{ enabled: false }}
http: {{ enabled: false }}
admin: {{ enabled: false }}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    let mut dead = crate::path::serve(&file);
    let members = async |count: usize| {
        within("the members of the group", async {
            while members(&address, inbox.as_str()).await != count {}
        })
        .await;
    };
    members(1).await;
    dead.kill().await.unwrap();
    let waiting = kafka.subscribe(group(&inbox)).await.unwrap();
    members(2).await;
    // The session of the dead member is six times as long.
    waiting.close(DEADLINE).await.unwrap();
}
