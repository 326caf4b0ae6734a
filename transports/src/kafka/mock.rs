//! Tests against librdkafka's mock cluster, which fails on demand. Tests against real brokers are in `tests/brokers`.

use bytes::Bytes;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, Producer as _};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Response};

use super::*;
use crate::delivery::{Delivery, Outcome};
use crate::error::TransportErrorKind as Kind;
use crate::transport::{Receipt, TopicFilter};

const DEADLINE: Duration = Duration::from_secs(30);

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// A cluster of one broker with the topic `t` of one partition, and a connection to it.
async fn cluster() -> (Cluster, Kafka) {
    cluster_of(1).await
}

async fn cluster_of(brokers: i32) -> (Cluster, Kafka) {
    let cluster = Cluster::new(brokers).unwrap();
    cluster.create_topic("t", 1, 1).unwrap();
    let addresses = cluster.bootstrap_servers();
    let kafka = Kafka::connect(KafkaConfig::new(addresses.split(','))).unwrap();
    until(&kafka, |health| *health == Health::Up).await;
    (cluster, kafka)
}

/// The same, with a property of librdkafka.
async fn cluster_with(property: &str, value: &str) -> (Cluster, Kafka) {
    let (cluster, kafka) = cluster().await;
    let mut config = KafkaConfig::clone(&kafka.shared.config);
    config.properties = [(property.to_owned(), value.to_owned())]
        .into_iter()
        .collect();
    let kafka = Kafka::connect(config).unwrap();
    until(&kafka, |health| *health == Health::Up).await;
    (cluster, kafka)
}

/// A cluster where each message has its own request.
async fn cluster_of_single_requests() -> (Cluster, Kafka) {
    cluster_with("batch.num.messages", "1").await
}

/// Makes each request take that many milliseconds.
fn slow_down(cluster: &Cluster, millis: u64) {
    let round_trip = Duration::from_millis(millis);
    cluster.broker_round_trip_time(1, round_trip).unwrap();
}

async fn until(kafka: &Kafka, condition: impl FnMut(&Health) -> bool) {
    let mut health = kafka.health();
    tokio::time::timeout(DEADLINE, health.wait_for(condition))
        .await
        .unwrap()
        .unwrap();
}

fn topic() -> Topic {
    Topic::new("t").unwrap()
}

fn by_group() -> Subscription {
    Subscription {
        topics: vec![TopicFilter::from(topic())],
        reading: Reading::Group("g".into()),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    }
}

async fn send(kafka: &Kafka, body: &'static str) -> Result<Receipt, TransportError> {
    kafka
        .send(&Address::topic(topic()), Message::plain(body))
        .await?
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_producer_is_replaced() {
    let (cluster, kafka) = cluster().await;
    send(&kafka, "before").await.unwrap();
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[Response::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let error = send(&kafka, "lost its place").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Fatal);
    let replaced = async {
        while let Err(error) = send(&kafka, "after").await {
            assert_eq!(error.kind(), Kind::Fatal);
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(DEADLINE, replaced).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_to_a_topic_that_does_not_exist_is_refused_before_it_is_queued() {
    let (cluster, kafka) = cluster().await;
    let to = Address::topic(Topic::from_static("later"));
    let error = kafka.send(&to, Message::plain("x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::UnknownTopic);
    assert_eq!(
        error.to_string(),
        "send to the topic later, which does not exist (unknown_topic)"
    );
    cluster.create_topic("later", 1, 1).unwrap();
    let created = async {
        while kafka.send(&to, Message::plain("x")).await.is_err() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(DEADLINE, created).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_without_permission_to_write_reports_it() {
    let (cluster, kafka) = cluster().await;
    let refusals = [Response::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 64];
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &refusals);
    // The producer of this connection may have its id already; the next one will not.
    let kafka = Kafka::connect(KafkaConfig::clone(&kafka.shared.config)).unwrap();
    until(&kafka, |health| *health == Health::Up).await;
    let refused = async {
        loop {
            match send(&kafka, "x").await.unwrap_err().kind() {
                Kind::Unauthorised => break,
                kind => assert_eq!(kind, Kind::Fatal),
            }
        }
    };
    tokio::time::timeout(DEADLINE, refused).await.unwrap();
    cluster.clear_request_errors(RDKafkaApiKey::InitProducerId);
    let allowed = async {
        while send(&kafka, "x").await.is_err() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(DEADLINE, allowed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_a_leader_keeps_no_other_from_being_read() {
    let (cluster, kafka) = cluster().await;
    cluster.create_topic("half", 2, 1).unwrap();
    cluster.partition_leader("half", 1, None).unwrap();
    let half = Topic::from_static("half");
    kafka.ensure_topic(&half, 2).await.unwrap();
    assert_eq!(kafka.partitions(&half).await.unwrap(), 2);
    let subscription = Subscription {
        topics: vec![TopicFilter::from(half.clone())],
        ..by_group()
    };
    let mut consumer = kafka.subscribe(subscription).await.unwrap();
    let to = Address {
        partition: Some(0),
        ..Address::topic(half)
    };
    let sent = kafka.send(&to, Message::plain("x")).await.unwrap();
    sent.await.unwrap();
    assert_eq!(receive(&mut consumer).await.topic, to.topic);
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_topic_may_be_read_is_tested_with_a_partition_that_has_a_leader() {
    let (cluster, kafka) = cluster().await;
    cluster.create_topic("half", 2, 1).unwrap();
    cluster.partition_leader("half", 0, None).unwrap();
    let half = Topic::from_static("half");
    kafka.test_read(&half, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_that_nobody_waits_for_still_has_its_turn() {
    let (cluster, kafka) = cluster().await;
    // No lookup is answered: each ends after `REQUEST_TIMEOUT`.
    slow_down(&cluster, 120_000);
    let topics = kafka.shared.producer.topics();
    for number in 0..20 {
        let topic = Topic::new(format!("t{number}")).unwrap();
        let lookup = tokio::time::timeout(Duration::ZERO, kafka.find(topics, &topic));
        assert!(lookup.await.is_err());
    }
    let turn = tokio::time::timeout(Duration::ZERO, topics.turn());
    assert!(turn.await.is_err(), "more lookups than threads for them");
    let turn = tokio::time::timeout(DEADLINE, topics.turn());
    assert!(turn.await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_does_not_use_up_the_time_of_a_new_topic() {
    let (cluster, kafka) = cluster().await;
    let round_trip = SENDER_PROPAGATION + RETRY_PAUSE;
    cluster.broker_round_trip_time(1, round_trip).unwrap();
    let topics = kafka.shared.producer.topics();
    let begun = Instant::now();
    let found = kafka.find(topics, &Topic::from_static("later")).await;
    assert_eq!(found, Existence::Missing);
    assert!(begun.elapsed() >= 2 * round_trip, "it is looked up once");
}

/// Hands that many messages to the client at once and returns their offsets, or the first error.
async fn burst(kafka: &Kafka, messages: usize) -> Result<Vec<i64>, TransportError> {
    let to = Address {
        may_linger: true,
        ..Address::topic(topic())
    };
    offsets(kafka, &to, "small".into(), messages).await
}

async fn offsets(
    kafka: &Kafka,
    to: &Address,
    body: Bytes,
    messages: usize,
) -> Result<Vec<i64>, TransportError> {
    let mut confirmations = Vec::new();
    for _ in 0..messages {
        confirmations.push(kafka.send(to, Message::plain(body.clone())).await?);
    }
    let mut offsets = Vec::new();
    for confirmation in confirmations {
        let position = confirmation.await?.position.unwrap();
        let offset = position.rsplit('/').next().unwrap();
        offsets.push(offset.parse().unwrap());
    }
    Ok(offsets)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_whose_request_was_too_large_are_sent_one_by_one_in_order() {
    let (cluster, kafka) = cluster().await;
    let mut config = KafkaConfig::clone(&kafka.shared.config);
    // So that they share a request.
    config.linger = Duration::from_millis(500);
    let kafka = Kafka::connect(config).unwrap();
    until(&kafka, |health| *health == Health::Up).await;
    assert_eq!(burst(&kafka, 3).await.unwrap(), [0, 1, 2]);
    let refusal = Response::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
    let expected: Vec<i64> = (3..103).collect();
    assert_eq!(burst(&kafka, 100).await.unwrap(), expected);
    // Now the topic is known to be small: what one request of one message is too large for is too large.
    cluster.request_errors(RDKafkaApiKey::Produce, &[refusal]);
    let error = burst(&kafka, 1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::TooLarge);
    assert_eq!(burst(&kafka, 2).await.unwrap(), [103, 104]);
    kafka.close(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_for_earlier_ones_stay_in_order() {
    let (_cluster, kafka) = cluster().await;
    let to = Address::topic(topic());
    let small = offsets(&kafka, &to, "small".into(), 1_000).await.unwrap();
    assert_eq!(small, (0..1_000).collect::<Vec<i64>>());
    // More than may wait at a time.
    let large = Bytes::from(vec![b'x'; 900_000]);
    let large = offsets(&kafka, &to, large, 40).await.unwrap();
    assert_eq!(large, (1_000..1_040).collect::<Vec<i64>>());
    // Those that wait leave before the connection closes.
    let mut confirmations = Vec::new();
    for _ in 0..100 {
        confirmations.push(kafka.send(&to, Message::plain("last")).await.unwrap());
    }
    kafka.close(DEADLINE).await.unwrap();
    for confirmation in confirmations {
        confirmation.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_without_a_leader_does_not_delay_the_others() {
    let (cluster, kafka) = cluster_of(2).await;
    cluster.create_topic("two", 2, 1).unwrap();
    for (partition, broker) in [(0, 2), (1, 1)] {
        cluster
            .partition_leader("two", partition, Some(broker))
            .unwrap();
    }
    let to = |partition| Address {
        partition: Some(partition),
        ..Address::topic(Topic::from_static("two"))
    };
    // Now the number of its partitions is known.
    for partition in 0..2 {
        offsets(&kafka, &to(partition), "warm".into(), 1)
            .await
            .unwrap();
    }
    cluster.broker_down(2).unwrap();
    let mut stuck = Vec::new();
    for _ in 0..20 {
        stuck.push(kafka.send(&to(0), Message::plain("stuck")).await.unwrap());
    }
    // Much less than the time after which the first ones fail.
    let second = to(1);
    let others = offsets(&kafka, &second, "other".into(), 20);
    let others = tokio::time::timeout(DEADLINE, others).await.unwrap();
    assert_eq!(others.unwrap(), (1..=20).collect::<Vec<i64>>());
    cluster.broker_up(2).unwrap();
    let mut offsets = Vec::new();
    for confirmation in stuck {
        let position = confirmation.await.unwrap().position.unwrap();
        offsets.push(position.to_string());
    }
    let expected: Vec<_> = (1..=20).map(|at| format!("k:two/0/{at}")).collect();
    assert_eq!(offsets, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_takes_nothing_leaves_room_for_others() {
    let (cluster, kafka) = cluster_of(2).await;
    let to = |name, partition| Address {
        partition: Some(partition),
        ..Address::topic(Topic::from_static(name))
    };
    cluster.create_topic("stuck", 1, 1).unwrap();
    cluster.create_topic("other", 1, 1).unwrap();
    cluster.create_topic("mixed", 2, 1).unwrap();
    for (name, partition, broker) in [
        ("stuck", 0, 2),
        ("other", 0, 1),
        ("mixed", 0, 2),
        ("mixed", 1, 1),
    ] {
        cluster
            .partition_leader(name, partition, Some(broker))
            .unwrap();
        let to = to(name, u32::try_from(partition).unwrap());
        offsets(&kafka, &to, "warm".into(), 1).await.unwrap();
    }
    cluster.broker_down(2).unwrap();
    // More than may be in flight and wait.
    let large = Bytes::from(vec![b'x'; 900_000]);
    let sender = {
        let (kafka, large) = (kafka.clone(), large.clone());
        tokio::spawn(async move { offsets(&kafka, &to("stuck", 0), large, 50).await })
    };
    let producer = &kafka.shared.producer;
    let in_flight = || producer.client().unwrap().in_flight_count();
    let waiting = async {
        while in_flight() < 18 || producer.room() > large.len() {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    tokio::time::timeout(DEADLINE, waiting).await.unwrap();
    slow_down(&cluster, 50);
    // Now and then their window is closed, but they need no room to wait for it.
    let others = offsets(&kafka, &to("other", 0), large.clone(), 20).await;
    assert_eq!(others.unwrap(), (1..=20).collect::<Vec<i64>>());
    // Nor do those of a topic of which one partition takes nothing.
    let mut behind = Vec::new();
    for _ in 0..4 {
        let sent = kafka
            .send(&to("mixed", 0), Message::plain(large.clone()))
            .await;
        behind.push(sent.unwrap());
    }
    let others = offsets(&kafka, &to("mixed", 1), large, 5).await;
    assert_eq!(others.unwrap(), (1..=5).collect::<Vec<i64>>());
    cluster.broker_up(2).unwrap();
    for confirmation in behind {
        confirmation.await.unwrap();
    }
    let stuck = sender.await.unwrap().unwrap();
    assert_eq!(stuck, (1..=50).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_fail_with_the_client_instead_of_overtaking() {
    for _ in 0..20 {
        let (cluster, kafka) = cluster_of_single_requests().await;
        send(&kafka, "before").await.unwrap();
        // Much less than the longest time that a message waits.
        slow_down(&cluster, 250);
        cluster.request_errors(
            RDKafkaApiKey::Produce,
            &[Response::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
        );
        let (to, begun) = (Address::topic(topic()), Instant::now());
        let mut sent = Vec::new();
        for _ in 0..20 {
            sent.push(kafka.send(&to, Message::plain("x")).await);
        }
        let mut results = Vec::new();
        for confirmation in sent {
            results.push(match confirmation {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            });
        }
        if begun.elapsed() > Duration::from_millis(450) {
            // Too slow: some may not have waited, or the client may have been replaced in between.
            continue;
        }
        // At most five requests are on their way, and the mock cluster accepts all but the first.
        for result in results.into_iter().skip(5) {
            assert_eq!(result.unwrap_err().kind(), Kind::Fatal);
        }
        return;
    }
    panic!("they take more than 450 ms each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_stay_behind_those_of_a_refused_request() {
    let mut last = Ok(Vec::new());
    // If the machine is busy, more than two may be on their way, or the refusals come so late that the others leave.
    for _ in 0..10 {
        let (cluster, kafka) = cluster_of_single_requests().await;
        send(&kafka, "before").await.unwrap();
        slow_down(&cluster, 250);
        let refusal = Response::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        cluster.request_errors(RDKafkaApiKey::Produce, &[refusal, refusal]);
        let to = Address::topic(topic());
        last = offsets(&kafka, &to, "x".into(), 10).await;
        if matches!(&last, Ok(offsets) if *offsets == (1..=10).collect::<Vec<i64>>()) {
            return;
        }
    }
    panic!("{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_are_kept_while_the_queue_is_full() {
    let (cluster, kafka) = cluster_with("queue.buffering.max.messages", "3").await;
    slow_down(&cluster, 100);
    let to = Address::topic(topic());
    let all = offsets(&kafka, &to, "x".into(), 50).await.unwrap();
    assert_eq!(all, (0..50).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confirmation_of_a_later_message_does_not_count() {
    let (cluster, kafka) = cluster_of_single_requests().await;
    send(&kafka, "warm").await.unwrap();
    slow_down(&cluster, 1_000);
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[Response::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION],
    );
    let to = Address::topic(topic());
    let first = kafka.send(&to, Message::plain("first")).await.unwrap();
    let second = kafka.send(&to, Message::plain("second")).await.unwrap();
    let (first, second) = (first.await, second.await);
    assert_eq!(first.unwrap_err().kind(), Kind::TimedOut);
    assert!(second.unwrap().position.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_record_is_a_dead_letter_and_a_temporary_refusal_is_not() {
    let (cluster, kafka) = cluster().await;
    for (response, expected) in [
        (
            Response::RD_KAFKA_RESP_ERR_INVALID_RECORD,
            Err(Kind::BadMessage),
        ),
        (
            Response::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
            Err(Kind::TooLarge),
        ),
        // Tried again by the client.
        (Response::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, Ok(())),
        // The last: until the next look at the topic the client refuses by itself.
        (
            Response::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            Err(Kind::Unauthorised),
        ),
    ] {
        // A message that is too large is sent twice: with others, and by itself.
        let times = if expected == Err(Kind::TooLarge) {
            2
        } else {
            1
        };
        cluster.request_errors(RDKafkaApiKey::Produce, &vec![response; times]);
        let result = send(&kafka, "x").await;
        if expected == Err(Kind::TooLarge) {
            let message = result.as_ref().unwrap_err().to_string();
            let size = "send a message of 1 bytes: max.message.bytes of t is less";
            assert_eq!(message, format!("{size} (too_large)"));
        }
        assert_eq!(
            result.map(drop).map_err(|error| error.kind()),
            expected,
            "{response:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_follows_the_cluster() {
    let (cluster, kafka) = cluster().await;
    cluster.broker_down(1).unwrap();
    until(&kafka, |health| matches!(health, Health::Down(_))).await;
    cluster.broker_up(1).unwrap();
    until(&kafka, |health| *health == Health::Up).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_or_dropping_a_connection_resolves_all_confirmations() {
    // Nobody listens on this port.
    let connect = || Kafka::connect(KafkaConfig::new(["127.0.0.1:1"])).unwrap();
    let to = Address::topic(topic());

    // The last of them wait for the others.
    let send = async |kafka: &Kafka| {
        let mut confirmations = Vec::new();
        for _ in 0..10 {
            confirmations.push(kafka.send(&to, Message::plain("x")).await.unwrap());
        }
        confirmations
    };
    let kafka = connect();
    let waiting = send(&kafka).await;
    let error = kafka.close(Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
    for confirmation in waiting {
        assert_eq!(confirmation.await.unwrap_err().kind(), Kind::Closed);
    }
    let refused = kafka.send(&to, Message::plain("x")).await;
    assert_eq!(refused.unwrap_err().kind(), Kind::Closed);

    let kafka = connect();
    let waiting = send(&kafka).await;
    drop(kafka);
    for confirmation in waiting {
        assert_eq!(confirmation.await.unwrap_err().kind(), Kind::Closed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_that_kafka_does_not_support_are_refused() {
    let (_cluster, kafka) = cluster().await;
    let refused = async |topics: &[&str], reading| {
        let topics = topics.iter().map(|topic| TopicFilter::new(*topic).unwrap());
        let subscription = Subscription {
            topics: topics.collect(),
            reading,
            ..by_group()
        };
        kafka.subscribe(subscription).await.unwrap_err().kind()
    };
    let group = || Reading::Group("g".into());
    assert_eq!(refused(&["a.*"], group()).await, Kind::BadConfig);
    assert_eq!(refused(&[], group()).await, Kind::BadConfig);
    assert_eq!(
        refused(&["t", "not-there"], group()).await,
        Kind::UnknownTopic
    );
    let live = Reading::Live { partition: Some(7) };
    assert_eq!(refused(&["t"], live).await, Kind::UnknownTopic);
}

/// A static member whose first attempts to join are fenced.
async fn fenced(times: usize) -> (Cluster, Consumer) {
    let (cluster, kafka) = cluster().await;
    let config = KafkaConfig {
        instance_id: Some("pod-0".to_owned()),
        ..KafkaConfig::clone(&kafka.shared.config)
    };
    let kafka = Kafka::connect(config).unwrap();
    let errors = vec![Response::RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID; times];
    cluster.request_errors(RDKafkaApiKey::JoinGroup, &errors);
    (cluster, kafka.subscribe(by_group()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_fenced_again_reports_it_when_it_ends() {
    let (_cluster, mut consumer) = fenced(2).await;
    let ended = async { while consumer.recv().await.is_some() {} };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
    let error = consumer.close(DEADLINE).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Fenced);
}

/// The cluster fences a member after an outage, though no other process has its name.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_fenced_once_joins_again() {
    let (_cluster, consumer) = fenced(1).await;
    let assigned = tokio::time::timeout(DEADLINE, consumer.assigned());
    assigned.await.unwrap();
    consumer.close(DEADLINE).await.unwrap();
}

/// The next message of the group.
async fn receive(consumer: &mut Consumer) -> Delivery {
    let received = tokio::time::timeout(DEADLINE, consumer.recv()).await;
    received.unwrap().unwrap()
}

/// Closes a consumer whose commits get these responses, each delayed by a round trip. Its group must not receive its
/// record again.
async fn the_last_commit_succeeds(refusals: &[Response], round_trip: Duration) {
    let (cluster, kafka) = cluster().await;
    let config = KafkaConfig {
        // The mock cluster keeps a member that left for as long as this.
        session_timeout: Duration::from_secs(3) + 3 * round_trip,
        ..KafkaConfig::clone(&kafka.shared.config)
    };
    let kafka = Kafka::connect(config).unwrap();
    send(&kafka, "first").await.unwrap();
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, refusals);
    let mut consumer = kafka.subscribe(by_group()).await.unwrap();
    let first = receive(&mut consumer).await;
    cluster.broker_round_trip_time(1, round_trip).unwrap();
    first.acknowledger.settle(Outcome::Settled).unwrap();
    consumer.close(DEADLINE).await.unwrap();
    cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    send(&kafka, "second").await.unwrap();
    let mut consumer = kafka.subscribe(by_group()).await.unwrap();
    let second = receive(&mut consumer).await;
    assert_eq!(second.message.body.as_deref(), Some(&b"second"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_commit_that_a_rebalance_refuses_is_repeated() {
    let refusals = [Response::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3];
    the_last_commit_succeeds(&refusals, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_commit_whose_refusal_comes_late_is_repeated() {
    let refusals = [Response::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3];
    the_last_commit_succeeds(&refusals, Duration::from_millis(1_500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_connection_waits_until_dropped_consumers_have_left() {
    let (_cluster, kafka) = cluster().await;
    send(&kafka, "unsettled").await.unwrap();
    let mut consumer = kafka.subscribe(by_group()).await.unwrap();
    let unsettled = receive(&mut consumer).await;
    drop(consumer);
    kafka.close(DEADLINE).await.unwrap();
    assert!(kafka.shared.readers.is_empty());
    drop(unsettled);
}
