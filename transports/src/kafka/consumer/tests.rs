//! Clients against a cluster of librdkafka: what they deliver, are refused, commit, and wait for.

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, ConsumerContext as _, Rebalance};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
use rdkafka::topic_partition_list::Offset;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Response};
use rdkafka::{ClientConfig, ClientContext as _};

use super::super::health;
use super::super::questions::may_read;
use super::super::rebalance::COMMITTED_TIMEOUT;
use super::refusals::ASK_AGAIN;
use super::*;
use crate::delivery::Outcome;
use crate::transport::{CloseDeadlines, Health};

const DEADLINE: Duration = Duration::from_secs(30);

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster() -> Cluster {
    let cluster = Cluster::new(1).unwrap();
    cluster.create_topic("t", 1, 1).unwrap();
    cluster
}

/// A record in the topic `t`.
fn publish(cluster: &Cluster) {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    producer
        .send(BaseRecord::<(), _>::to("t").payload("x"))
        .unwrap();
    producer.flush(DEADLINE).unwrap();
}

/// Polls until a record is delivered.
fn delivered(session: &mut Session<'_>, deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
    let late = Instant::now() + DEADLINE;
    loop {
        assert!(Instant::now() < late, "no record is delivered");
        assert!(session.poll(TICK).is_continue());
        session.deliver();
        if let Ok(delivery) = deliveries.try_recv() {
            return delivery;
        }
    }
}

/// Polls until the member has this share.
#[track_caller]
fn until(session: &mut Session<'_>, share: Share) {
    let late = Instant::now() + DEADLINE;
    while *session.task.share.borrow() != share {
        assert!(Instant::now() < late, "it is never {share:?}");
        assert!(session.poll(TICK).is_continue());
        session.ask_again();
    }
}

/// A member of the group `g` that reads the topic `t` of this cluster, which answers.
fn member(brokers: String) -> (Task, mpsc::Receiver<Delivery>) {
    let pulse = Arc::new(Pulse::default());
    health::watch(&pulse, &watch::Sender::new(Health::Up), || {
        pulse.stop();
        Ok(health::Answer::Producer)
    });
    let (deliveries, receiver) = mpsc::channel(1);
    let budget = Budget {
        bytes: 1 << 20,
        messages: 100,
    };
    let task = Task {
        plan: Plan {
            config: Arc::new(KafkaConfig::new([brokers])),
            pulse,
            closing: CancellationToken::new(),
            source: Source::Group {
                name: Text::from_static("g"),
                topics: vec![Topic::from_static("t")],
            },
            is_prompt: false,
            budget,
        },
        intake: Arc::new(Intake::new(PositionStorage::Offsets, budget)),
        leave: EndSignal::default(),
        share: watch::Sender::new(Share::Waiting),
        replaced: Arc::default(),
        deliveries,
        lag: None,
        missing: watch::Sender::default(),
        removed: watch::Sender::default(),
        full: watch::Sender::default(),
        needs_long_session: Cell::new(false),
    };
    (task, receiver)
}

#[test]
fn a_last_commit_has_time_after_the_deadline_of_deliveries() {
    let cluster = cluster();
    publish(&cluster);
    let (task, mut deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    let delivery = delivered(&mut session, &mut deliveries);
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    let refusals = [Response::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3];
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &refusals);
    let settle = Instant::now();
    let commit = settle + DEADLINE;
    task.leave
        .deadlines
        .set(CloseDeadlines {
            settle,
            commit,
            end: commit,
        })
        .unwrap();
    session.close();
    assert_eq!(committed(&cluster), Offset::Offset(1));
}

#[test]
fn a_member_gets_its_first_partitions_before_it_leaves() {
    let cluster = cluster();
    let (task, _) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    assert_eq!(*task.share.borrow(), Share::Waiting);
    session.leave_without_partitions(Instant::now() + DEADLINE);
    assert_eq!(*task.share.borrow(), Share::Assigned);
    assert_eq!(session.client.assignment().unwrap().count(), 1);
}

#[test]
fn a_member_that_is_refused_is_not_stuck() {
    let cluster = cluster();
    let refusals = [Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 1_000];
    cluster.request_errors(RDKafkaApiKey::FindCoordinator, &refusals);
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    let late = Instant::now() + DEADLINE;
    while session.is_without_partitions(Duration::ZERO) {
        assert!(Instant::now() < late, "no refusal is reported");
        assert!(session.poll(TICK).is_continue());
    }
    // Once it is permitted it gets partitions. If it loses them, it waits again.
    cluster.clear_request_errors(RDKafkaApiKey::FindCoordinator);
    while *task.share.borrow() != Share::Assigned {
        assert!(Instant::now() < late, "no partitions are assigned");
        assert!(session.poll(TICK).is_continue());
    }
    assert!(!session.is_without_partitions(Duration::ZERO));
    session.client.unsubscribe();
    while !session.is_without_partitions(Duration::ZERO) {
        assert!(Instant::now() < late, "the next wait does not count");
        assert!(session.poll(TICK).is_continue());
    }
}

#[test]
fn a_member_waits_longer_than_a_session_and_a_revocation() {
    let (mut task, _) = member("127.0.0.1:1".to_owned());
    assert_eq!(task.max_wait(), MAX_WAIT);
    let session_timeout = Duration::from_secs(10 * 60);
    task.plan.config = Arc::new(KafkaConfig {
        session_timeout,
        ..KafkaConfig::clone(&task.plan.config)
    });
    assert_eq!(task.max_wait(), session_timeout + MAX_REVOCATION);
}

#[test]
fn a_prompt_member_has_a_short_session_unless_the_brokers_refuse_it() {
    let cluster = cluster();
    publish(&cluster);
    // The refused client joins again after a second. If it were a member by the time it is closed, the group might wait
    // for it until the session ends, which is longer than `DEADLINE`.
    let refusals = [Response::RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT; 1_000];
    cluster.request_errors(RDKafkaApiKey::JoinGroup, &refusals);
    let (mut task, mut deliveries) = member(cluster.bootstrap_servers());
    assert_eq!(task.session_timeout(), task.plan.config.session_timeout);
    task.plan.is_prompt = true;
    assert_eq!(task.session_timeout(), PROMPT_SESSION);
    let mut session = Session::open(&task).unwrap();
    let late = Instant::now() + DEADLINE;
    while session.poll(TICK).is_continue() {
        assert!(Instant::now() < late, "the refusal is not noticed");
    }
    session.replace();
    let is_closed = || Arc::strong_count(&task.replaced) == 1;
    let intake = &task.intake;
    intake.wait_for_stop(Instant::now() + DEADLINE, is_closed);
    assert!(is_closed(), "the refused client is not closed");
    cluster.clear_request_errors(RDKafkaApiKey::JoinGroup);
    assert_eq!(task.session_timeout(), task.plan.config.session_timeout);
    let mut session = Session::open(&task).unwrap();
    drop(delivered(&mut session, &mut deliveries));
}

/// Asks now whether the topics are still refused, and waits for the answer.
#[track_caller]
fn ask(session: &mut Session<'_>) {
    let late = Instant::now() + DEADLINE;
    session.unreadable.as_mut().unwrap().ask_at = Instant::now();
    session.ask_again();
    let is_asked = |unreadable: &Unreadable| unreadable.asked.is_some();
    while session.unreadable.as_ref().is_some_and(is_asked) {
        assert!(Instant::now() < late, "no answer");
        assert!(session.poll(TICK).is_continue());
        session.ask_again();
    }
}

#[test]
fn a_reader_whose_records_are_refused_has_its_share_again_when_they_are_permitted() {
    let cluster = cluster();
    let refusals = [Response::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 1_000];
    cluster.request_errors(RDKafkaApiKey::Fetch, &refusals);
    let (task, mut deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    until(&mut session, Share::Refused);
    cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    ask(&mut session);
    assert_eq!(*task.share.borrow(), Share::Assigned);
    publish(&cluster);
    drop(delivered(&mut session, &mut deliveries));
}

#[test]
fn a_permission_that_is_refused_again_before_the_answer_counts_as_refused() {
    let cluster = cluster();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    session.note_refusal(Code::TopicAuthorizationFailed);
    session.unreadable.as_mut().unwrap().ask_at = Instant::now();
    session.ask_again();
    session.note_refusal(Code::TopicAuthorizationFailed);
    ask(&mut session);
    assert_eq!(*task.share.borrow(), Share::Refused);
    ask(&mut session);
    assert_eq!(*task.share.borrow(), Share::Assigned);
}

/// A topic that the user may not see any more has no partitions, and librdkafka reports that once.
#[test]
fn a_member_is_refused_as_long_as_it_may_not_see_its_topic() {
    let cluster = cluster();
    let (mut task, _deliveries) = member(cluster.bootstrap_servers());
    let refresh = [("topic.metadata.refresh.interval.ms", "100")];
    task.plan.config = Arc::new(KafkaConfig {
        properties: refresh.into_iter().collect(),
        ..KafkaConfig::clone(&task.plan.config)
    });
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    let refusal = Response::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.topic_error("t", refusal).unwrap();
    until(&mut session, Share::Refused);
    let late = Instant::now() + DEADLINE;
    while task.intake.is_assigned() {
        assert!(Instant::now() < late, "nothing is revoked");
        assert!(session.poll(TICK).is_continue());
    }
    assert_eq!(*task.share.borrow(), Share::Refused);
    ask(&mut session);
    assert_eq!(*task.share.borrow(), Share::Refused);
    assert!(session.unreadable.is_some());
    let granted = Response::RD_KAFKA_RESP_ERR_NO_ERROR;
    cluster.topic_error("t", granted).unwrap();
    ask(&mut session);
    assert!(session.unreadable.is_none());
    assert_eq!(*task.share.borrow(), Share::Waiting);
}

#[test]
fn a_member_whose_share_is_empty_has_it_again_when_its_topic_is_permitted() {
    let cluster = cluster();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    let context = Arc::clone(session.client.context());
    let nothing = TopicPartitionList::new();
    let share = || *task.share.borrow();
    session.note_refusal(Code::TopicAuthorizationFailed);
    assert_eq!(share(), Share::Refused);
    // The other members have all partitions.
    context.post_rebalance(&session.client, &Rebalance::Assign(&nothing));
    assert_eq!(share(), Share::Refused);
    context.set_records_refused(false);
    assert_eq!(share(), Share::Assigned);
    context.post_rebalance(&session.client, &Rebalance::Revoke(&nothing));
    session.note_refusal(Code::TopicAuthorizationFailed);
    assert_eq!(share(), Share::Refused);
    context.set_records_refused(false);
    assert_eq!(share(), Share::Waiting);
}

#[test]
fn a_partition_without_a_leader_does_not_hide_that_its_topic_may_be_read() {
    let cluster = Cluster::new(1).unwrap();
    cluster.create_topic("two", 2, 1).unwrap();
    cluster.partition_leader("two", 0, None).unwrap();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let topics = [Topic::from_static("two")];
    may_read(&task.plan.config, &task.plan.pulse, &topics, true).unwrap();
}

#[test]
fn a_topic_that_cannot_be_read_does_not_hide_that_another_one_is_missing() {
    let cluster = Cluster::new(1).unwrap();
    cluster.create_topic("one", 1, 1).unwrap();
    cluster.partition_leader("one", 0, None).unwrap();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let gone = Topic::from_static("gone");
    let topics = [Topic::from_static("one"), gone.clone()];
    let missing = may_read(&task.plan.config, &task.plan.pulse, &topics, false);
    assert_eq!(missing.unwrap(), [gone]);
}

#[test]
fn a_member_whose_commits_are_refused_has_its_share_again_when_they_are_permitted() {
    let cluster = cluster();
    publish(&cluster);
    let refusals = [Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 1_000];
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &refusals);
    let (task, mut deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    let delivery = delivered(&mut session, &mut deliveries);
    assert_eq!(*task.share.borrow(), Share::Assigned);
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    session.store_positions();
    until(&mut session, Share::Refused);
    cluster.clear_request_errors(RDKafkaApiKey::OffsetCommit);
    until(&mut session, Share::Assigned);
}

/// Polls until the reader knows that these topics do not exist.
#[track_caller]
fn until_missing(session: &mut Session<'_>, expected: &[&str]) {
    let late = Instant::now() + DEADLINE;
    let missing = session.task.missing.subscribe();
    let is_known = || {
        let missing = missing.borrow();
        missing.iter().map(Topic::as_str).eq(expected.to_vec())
    };
    while !is_known() {
        assert!(Instant::now() < late, "never missing: {expected:?}");
        if let Some(unreadable) = &mut session.unreadable {
            // As if a long time had passed.
            unreadable.ask_at = Instant::now();
            unreadable.missing_at = Instant::now().checked_sub(2 * ASK_AGAIN);
        }
        assert!(session.poll(TICK).is_continue());
        session.ask_again();
    }
}

#[test]
fn topics_that_no_longer_exist_are_reported_until_they_exist_again() {
    let cluster = cluster();
    cluster.create_topic("u", 1, 1).unwrap();
    let (mut task, _deliveries) = member(cluster.bootstrap_servers());
    let refresh = [("topic.metadata.refresh.interval.ms", "100")];
    task.plan.config = Arc::new(KafkaConfig {
        properties: refresh.into_iter().collect(),
        ..KafkaConfig::clone(&task.plan.config)
    });
    task.plan.source = Source::Group {
        name: Text::from_static("g"),
        topics: vec![Topic::from_static("t"), Topic::from_static("u")],
    };
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    let set = |topic, response| cluster.topic_error(topic, response).unwrap();
    let gone = Response::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    set("u", gone);
    until_missing(&mut session, &["u"]);
    assert!(!session.has_no_topic());
    set("t", gone);
    until_missing(&mut session, &["t", "u"]);
    assert!(session.has_no_topic() && !session.is_without_partitions(Duration::ZERO));
    for topic in ["t", "u"] {
        set(topic, Response::RD_KAFKA_RESP_ERR_NO_ERROR);
    }
    until_missing(&mut session, &[]);
    assert!(session.unreadable.is_none());
}

#[test]
fn a_client_that_replaces_another_asks_whether_topics_still_do_not_exist() {
    let cluster = cluster();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    task.missing.send_replace(vec![Topic::from_static("t")]);
    let mut session = Session::open(&task).unwrap();
    until_missing(&mut session, &[]);
}

#[test]
fn records_that_were_removed_before_they_were_read_are_counted() {
    let cluster = cluster();
    publish(&cluster);
    let (task, mut deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    drop(delivered(&mut session, &mut deliveries));
    assert_eq!(*task.removed.borrow(), 0);
    // Nothing is fetched until the cluster, which keeps 5 MiB of a partition, has removed records.
    let failures = [Response::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION; 1_000];
    cluster.request_errors(RDKafkaApiKey::Fetch, &failures);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("batch.num.messages", "1")
        .create()
        .unwrap();
    let large = "x".repeat(900_000);
    for _ in 0..10 {
        let record = BaseRecord::<(), _>::to("t").payload(&large);
        assert!(producer.send(record).is_ok());
        producer.flush(DEADLINE).unwrap();
    }
    cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    let delivery = delivered(&mut session, &mut deliveries);
    let position = delivery.origin.unwrap().position;
    let offset: u64 = position.strip_prefix("k:t/0/").unwrap().parse().unwrap();
    assert!(offset > 1, "the cluster has removed nothing");
    assert_eq!(*task.removed.borrow(), offset - 1);
    // It is not settled, but the next reader must not find the same gap.
    let first = Offset::Offset(offset.try_into().unwrap());
    let late = Instant::now() + DEADLINE;
    while committed(&cluster) != first {
        assert!(Instant::now() < late, "it is not committed");
        // Fails when there is nothing left to commit.
        drop(session.client.commit_consumer_state(CommitMode::Sync));
    }
}

#[test]
fn the_position_that_a_broker_does_not_have_is_taken_with_the_first_record_after_it() {
    let (task, _deliveries) = member("127.0.0.1:1".to_owned());
    let context = task.context();
    let reset = "[thrd:main]: t.a [3]: offset reset (at offset 10 (leader epoch 0), broker 1) to offset BEGINNING (leader epoch -1): fetch failed due to requested offset not available on the broker: Broker: Offset out of range";
    context.log(RDKafkaLogLevel::Warning, "OFFSET", reset);
    context.log(RDKafkaLogLevel::Warning, "OFFSET", "anything else");
    assert_eq!(context.take_reset("t.a", 2, 800), None);
    assert_eq!(context.take_reset("t.a", 3, 9), None, "fetched before");
    assert_eq!(context.take_reset("t.a", 3, 800), Some(10));
    assert_eq!(context.take_reset("t.a", 3, 801), None);
    context.log(RDKafkaLogLevel::Warning, "OFFSET", reset);
    assert_eq!(context.take_reset("t.a", 3, 10), None, "there is no gap");
    assert_eq!(context.take_reset("t.a", 3, 12), None);
}

/// The offset that the group `g` has committed in the topic `t`.
fn committed(cluster: &Cluster) -> Offset {
    let other: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "g")
        .create()
        .unwrap();
    let mut partition = TopicPartitionList::new();
    partition.add_partition("t", 0);
    let late = Instant::now() + DEADLINE;
    loop {
        // A client that does not know the coordinator yet may miss the moment when it does.
        match other.committed_offsets(partition.clone(), COMMITTED_TIMEOUT) {
            Ok(committed) => return committed.elements()[0].offset(),
            Err(error) => assert!(Instant::now() < late, "{error}"),
        }
    }
}

#[test]
fn a_refused_commit_of_a_topic_that_was_created_again_is_repeated() {
    let cluster = cluster();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    let old = list([(Topic::from_static("t"), 0, 6)]).unwrap();
    session.client.commit(&old, CommitMode::Sync).unwrap();
    let lane = task.intake.lane("t", 0).unwrap();
    let (epoch, _) = task.intake.arrive(lane).unwrap();
    let admit = |offset| task.intake.admit(lane, epoch, offset, 1);
    let _admitted = [5, 0].map(admit);
    let refusal = Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[refusal]);
    let late = Instant::now() + DEADLINE;
    session.store_positions();
    assert_eq!(committed(&cluster), Offset::Offset(6));
    while committed(&cluster) != Offset::Offset(0) {
        assert!(Instant::now() < late, "the commit is not repeated");
        assert!(session.poll(TICK).is_continue());
        session.store_positions();
    }
}

#[test]
fn a_refused_commit_of_partitions_that_are_gone_does_not_count() {
    let cluster = cluster();
    let (task, _deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    until(&mut session, Share::Assigned);
    let partitions = session.client.assignment().unwrap();
    let refused = || Err(KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed));
    let context = Arc::clone(session.client.context());
    context.commit_callback(refused(), &partitions);
    assert_eq!(*task.share.borrow(), Share::Refused);
    session.client.unsubscribe();
    until(&mut session, Share::Waiting);
    // The answer to the commit of the revocation.
    context.commit_callback(refused(), &partitions);
    assert!(!context.are_commits_refused());
}

#[test]
fn a_revocation_does_not_wait_long_for_its_commit() {
    let cluster = cluster();
    publish(&cluster);
    let (task, mut deliveries) = member(cluster.bootstrap_servers());
    let mut session = Session::open(&task).unwrap();
    let delivery = delivered(&mut session, &mut deliveries);
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    // The coordinator answers after the deadline of this test.
    cluster.broker_round_trip_time(1, 4 * DEADLINE).unwrap();
    session.client.unsubscribe();
    let late = Instant::now() + DEADLINE;
    while task.intake.is_assigned() {
        assert!(Instant::now() < late, "nothing is revoked");
        assert!(session.poll(TICK).is_continue());
    }
    assert!(Instant::now() < late, "the revocation waits");
    // Closing the client would wait for the coordinator too.
    std::mem::forget(session);
}
