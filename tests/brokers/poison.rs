//! Messages for places that the broker refuses, among others: every other message is delivered, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::{consumer::pull, stream};
use futures_util::StreamExt as _;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::StreamConsumer;
use serde_json::Value;
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named};

use crate::plain::{Plain, Record, jetstream_of, nats_client, next, patient, subscribed, unique};

/// Messages of each test.
const MESSAGES: usize = 621;

/// The agent of a message: sometimes one to whose topic the broker refuses all writes.
fn agent(id: usize) -> &'static str {
    match id % 30 {
        0 => "secret",
        15 => "readonly",
        _ => "good",
    }
}

fn request(agent: &str, id: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_agentId":"{agent}"}}}}"#
    )
}

fn id_of(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap();
    usize::try_from(body["id"].as_u64().unwrap()).unwrap()
}

fn ids(of: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..MESSAGES).filter(|id| of(agent(*id))).collect()
}

/// A stream that is full, whose reader then makes room again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fills_up_again_and_again_keeps_the_order() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    const MESSAGES: usize = 2_000;
    const ROOM: i64 = 50;
    let (plain, name) = (Plain::new(&kafka), unique("full"));
    plain.create(&name, 1).await;
    for id in 0..MESSAGES {
        let body = request("good", id);
        plain.publish(&name, Some(0), &body).await;
    }
    let jetstream = jetstream_of(nats_client(&nats).await);
    let config = stream::Config {
        name: name.replace('.', "-"),
        subjects: vec![name.clone()],
        retention: stream::RetentionPolicy::WorkQueue,
        discard: stream::DiscardPolicy::New,
        max_messages: ROOM,
        ..stream::Config::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    let bridge = Running::start(&format!(
        "
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: kafka, topics: [{name}], group: {name}, role: events }}]
default_route: [{{ transport: nats, topic: {name}, stored: true }}]
calls: {{ enabled: false }}"
    ))
    .await;
    within("the stream is full", async {
        while !format!("{:?}", bridge.report()).contains("(full)") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let consumer = stream
        .create_consumer(pull::Config {
            durable_name: Some("reader".into()),
            ..pull::Config::default()
        })
        .await
        .unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut arrived = Vec::new();
    while arrived.len() < MESSAGES {
        let message = within("a message", messages.next()).await.unwrap().unwrap();
        arrived.push(id_of(&message.payload));
        message.ack().await.unwrap();
    }
    // Messages that were in flight when the stream became full may precede the first one that it refused.
    let in_order = (0..MESSAGES)
        .zip(&arrived)
        .take_while(|(expected, id)| expected == *id);
    let refused = in_order.count();
    let again = arrived
        .iter()
        .position(|id| *id == refused)
        .unwrap_or(MESSAGES);
    assert!(arrived[again..].is_sorted(), "after {refused}: {arrived:?}");
    assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), MESSAGES);
    bridge.stop().await;
}

/// Kafka refuses some topics by its access control lists.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_kafka_forbids_stop_no_other_message() {
    let settings = [
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
    ];
    let Some(broker) = Private::start_with(Kind::Kafka, &settings).await else {
        return;
    };
    let plain = Plain::new(&broker.address());
    for topic in [
        "in",
        "dead",
        "agents.good",
        "agents.secret",
        "agents.readonly",
    ] {
        plain.create(topic, 1).await;
    }
    // A topic with a rule is closed to everybody whom no rule lets in.
    let rule = async |topic: &str, user: &str, operation: &str| {
        let arguments = [
            "--add",
            "--topic",
            topic,
            "--allow-principal",
            user,
            "--operation",
            operation,
        ];
        broker
            .kafka_tool("org.apache.kafka.tools.AclCommand", &arguments)
            .await;
    };
    rule("agents.secret", "User:somebody", "Write").await;
    rule("agents.readonly", "User:ANONYMOUS", "Describe").await;
    let bridge = Running::start(&format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{}'] }} }}
bindings: [{{ name: in, transport: kafka, topics: [in], group: in, dead_letter: {{ topic: dead }} }}]
default_route: [{{ transport: kafka, topic: 'agents.{{targetagent}}' }}]
calls: {{ enabled: false }}",
        broker.address()
    ))
    .await;
    for id in 0..MESSAGES {
        plain.publish("in", None, &request(agent(id), id)).await;
    }
    let good = plain.read("agents.good", 1);
    for id in ids(|agent| agent == "good") {
        let record = within("the message arrives", next(&good)).await;
        assert_eq!(id_of(&record.body), id);
    }
    let dead = plain.read("dead", 1);
    let mut dlq_messages = Vec::new();
    for _ in ids(|agent| agent != "good") {
        let dlq_message: Record = within("the dead letter arrives", next(&dead)).await;
        assert_eq!(dlq_message.headers["bus-dlq-reason"], b"unauthorised");
        dlq_messages.push(id_of(&dlq_message.body));
    }
    dlq_messages.sort_unstable();
    assert_eq!(dlq_messages, ids(|agent| agent != "good"));
    bridge.stop().await;
}

/// NATS refuses some subjects to the user of an account.
#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_nats_forbids_stop_no_other_message() {
    let accounts = r#"accounts { AGENTS { jetstream: enabled, users: [
        { user: bridge, password: secret, permissions: { publish: { deny: ["agents.secret", "agents.readonly"] } } },
        { user: test, password: secret } ] } }"#
        .replace('\n', " ");
    let Some(server) = Private::start_with(Kind::Nats, &[&accounts]).await else {
        return;
    };
    let options =
        async_nats::ConnectOptions::with_user_and_password("test".into(), "secret".into());
    let client = patient(options).connect(server.address()).await.unwrap();
    let jetstream = jetstream_of(client);
    for (name, subject) in [("IN", "in"), ("DEAD", "dead"), ("AGENTS", "agents.>")] {
        let config = stream::Config {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.unwrap();
    }
    for id in 0..MESSAGES {
        let body = request(agent(id), id).into();
        let stored = jetstream.publish("in", body).await.unwrap();
        within("the message is stored", stored.into_future())
            .await
            .unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret").unwrap();
    let bridge = Running::start(&format!(
        "
transports:
  nats:
    type: nats
    servers: ['nats://{}']
    auth: {{ user: bridge, password: {{ file: '{}' }} }}
    jetstream: {{ manage: true }}
bindings: [{{ name: in, transport: nats, topics: [in], stream: IN, durable: bridge, dead_letter: {{ topic: dead }} }}]
default_route: [{{ transport: nats, topic: 'agents.{{targetagent}}', stored: true }}]
calls: {{ enabled: false }}",
        server.address(),
        password.display()
    ))
    .await;
    let read = async |stream: &str| {
        let stream = jetstream.get_stream(stream).await.unwrap();
        let consumer = stream
            .create_consumer(pull::Config::default())
            .await
            .unwrap();
        consumer.messages().await.unwrap()
    };
    let mut good = read("AGENTS").await;
    for id in ids(|agent| agent == "good") {
        let message = within("the message arrives", good.next())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(id_of(&message.payload), id);
    }
    let mut dead = read("DEAD").await;
    let mut dlq_messages = BTreeMap::new();
    for _ in ids(|agent| agent != "good") {
        let dlq_message = within("the dead letter arrives", dead.next())
            .await
            .unwrap()
            .unwrap();
        let headers = dlq_message.headers.as_ref().unwrap();
        let reason = headers.get("bus-dlq-reason").unwrap().to_string();
        dlq_messages.insert(id_of(&dlq_message.payload), reason);
    }
    assert!(
        dlq_messages.values().all(|reason| reason == "unauthorised"),
        "{dlq_messages:?}"
    );
    assert_eq!(
        dlq_messages.into_keys().collect::<Vec<_>>(),
        ids(|agent| agent != "good")
    );
    bridge.stop().await;
}

/// Core NATS keeps nothing, so a dead letter that no stream stores is lost; that is counted, and holds up nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_of_core_nats_that_no_stream_stores_is_counted_as_lost() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (inbox, outbox) = (unique("in"), unique("out"));
    let client = nats_client(&nats).await;
    let mut events = client.subscribe(outbox.clone()).await.unwrap();
    subscribed(&client).await;
    let bridge = Running::start(&format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: in, transport: nats, topics: [{inbox}], dead_letter: {{ topic: {inbox}.dead }} }}]
default_route: [{{ transport: nats, topic: {outbox} }}]
calls: {{ enabled: false }}"
    ))
    .await;
    for body in ["not json".to_owned(), request("good", 1)] {
        client.publish(inbox.clone(), body.into()).await.unwrap();
    }
    let message = within("the message arrives", events.next()).await.unwrap();
    assert_eq!(id_of(&message.payload), 1);
    let lost = "a2abus_dead_letters_lost_total{binding=\"in\"} 1";
    within("the loss is counted", async {
        while !bridge.metrics.render().unwrap().contains(lost) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    bridge.stop().await;
}

/// Such a message has no position, but all attempts to store it have one id, so that the stream keeps one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_core_nats_is_stored_with_an_id_of_its_own() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (inbox, outbox) = (unique("in"), unique("out"));
    let client = nats_client(&nats).await;
    let jetstream = jetstream_of(client.clone());
    let config = stream::Config {
        name: outbox.replace('.', "-"),
        subjects: vec![outbox.clone()],
        ..stream::Config::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    let bridge = Running::start(&format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: in, transport: nats, topics: [{inbox}] }}]
default_route: [{{ transport: nats, topic: {outbox}, stored: true }}]
calls: {{ enabled: false }}"
    ))
    .await;
    // The same payload twice is two messages.
    for _ in 0..2 {
        let body = request("good", 1).into();
        client.publish(inbox.clone(), body).await.unwrap();
    }
    let consumer = stream
        .create_consumer(pull::Config::default())
        .await
        .unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        let message = within("the message arrives", messages.next()).await;
        let message = message.unwrap().unwrap();
        let id = message.headers.as_ref().unwrap().get("Nats-Msg-Id");
        ids.insert(id.unwrap().to_string());
    }
    assert_eq!(ids.len(), 2, "{ids:?}");
    bridge.stop().await;
}

/// Messages that wait for a broker.
const WAITING: usize = 20_000;

/// The value of a metric, by the start of its line; 0 when there is none.
fn metric(bridge: &Running, line: &str) -> f64 {
    let text = bridge.metrics.render().unwrap();
    let value = text.lines().find_map(|found| found.strip_prefix(line));
    value.map_or(0.0, |value| value.trim().parse().unwrap())
}

/// How long it takes to read that many messages, in order, from the first on, and how many of them came again.
async fn drain(consumer: &StreamConsumer, ids: std::ops::Range<usize>) -> (Duration, usize) {
    let (mut began, mut due, mut repeated) = (None, ids.start, 0);
    while due < ids.end {
        let record = within("the message arrives", next(consumer)).await;
        let id = id_of(&record.body);
        assert!(id <= due, "{id} before {due}");
        began.get_or_insert_with(Instant::now);
        repeated += usize::from(id < due);
        due = due.max(id + 1);
    }
    (began.unwrap().elapsed(), repeated)
}

/// A sink that goes away with the client full of messages, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_for_a_broker_arrive_in_order_when_it_is_back() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let Some(sink) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let (source, far) = (Plain::new(&kafka), Plain::new(&sink.address()));
    let inbox = unique("in");
    source.create(&inbox, 1).await;
    source.create(&format!("{inbox}.dead"), 1).await;
    far.create("out", 1).await;
    let publish = async |ids: std::ops::Range<usize>| {
        for id in ids.clone().step_by(1_000) {
            let chunk = id..ids.end.min(id + 1_000);
            let sent = chunk.map(|id| {
                let (source, inbox) = (&source, &inbox);
                async move { source.publish(inbox, Some(0), &request("good", id)).await }
            });
            futures_util::future::join_all(sent).await;
        }
    };
    publish(0..WAITING).await;
    let bridge = Running::start(&format!(
        "
transports:
  source: {{ type: kafka, brokers: ['{kafka}'] }}
  sink: {{ type: kafka, brokers: ['{}'], message_timeout: 2s }}
bindings: [{{ name: in, transport: source, topics: [{inbox}], group: {inbox}, dead_letter: {{ topic: {inbox}.dead }} }}]
default_route: [{{ transport: sink, topic: out }}]
calls: {{ enabled: false }}",
        sink.address()
    ))
    .await;
    let out = far.read("out", 1);
    let (normally, repeated) = drain(&out, 0..WAITING).await;
    // A broker that stores messages but confirms them too late gets them again.
    let metrics = bridge.metrics.render().unwrap();
    let mut retries = metrics.lines();
    let is_retried =
        retries.any(|it| it.starts_with("a2abus_retries_total{") && !it.ends_with(" 0"));
    assert!(repeated == 0 || is_retried, "{repeated} came twice");

    within("everything is settled", async {
        while metric(&bridge, "a2abus_in_flight{binding=\"in\"}") > 0.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    sink.kill().await;
    publish(WAITING..2 * WAITING).await;
    // All that was with the client has failed, and one message tries.
    within("the lane waits for the sink", async {
        while !bridge
            .report()
            .degraded
            .iter()
            .any(|held| held.cause.ends_with("waiting lanes and calls: 1"))
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    sink.start().await;
    let (recovering, _) = drain(&out, WAITING..2 * WAITING).await;
    println!("{WAITING} messages: {normally:?} normally, {recovering:?} after the broker was back");
    bridge.stop().await;
}

/// A Kafka topic that takes requests of 3,000 bytes only, and many small messages for it.
#[tokio::test(flavor = "multi_thread")]
async fn small_messages_reach_a_topic_that_refuses_large_requests() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (inbox, outbox, dead) = (unique("in"), unique("out"), unique("dead"));
    plain.create(&inbox, 1).await;
    plain.create(&dead, 1).await;
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &kafka)
        .create()
        .unwrap();
    let small =
        NewTopic::new(&outbox, 1, TopicReplication::Fixed(1)).set("max.message.bytes", "3000");
    let created = admin
        .create_topics(&[small], &AdminOptions::new())
        .await
        .unwrap();
    created.into_iter().next().unwrap().unwrap();
    // Two that are too large by themselves, among the others.
    let is_large = |id: usize| id == 500 || id == 501;
    let large = format!(r#""_agentId":"good","text":"{}""#, "x".repeat(4_000));
    let publish = async |ids: std::ops::Range<usize>| {
        let sent = ids.map(|id| {
            let body = request("good", id);
            let body = if is_large(id) {
                body.replace(r#""_agentId":"good""#, &large)
            } else {
                body
            };
            let (plain, inbox) = (&plain, &inbox);
            async move { plain.publish(inbox, None, &body).await }
        });
        futures_util::future::join_all(sent).await;
    };
    publish(0..1_000).await;
    let bridge = Running::start(&format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings: [{{ name: in, transport: kafka, topics: [{inbox}], group: {inbox}, dead_letter: {{ topic: {dead} }} }}]
default_route: [{{ transport: kafka, topic: {outbox} }}]
calls: {{ enabled: false }}"
    ))
    .await;
    let events = plain.read(&outbox, 1);
    let mut missing: BTreeSet<usize> = (0..1_000).filter(|id| !is_large(*id)).collect();
    while !missing.is_empty() {
        let record = within("the message arrives", next(&events)).await;
        assert!(missing.remove(&id_of(&record.body)), "it came twice");
    }
    let dead = plain.read(&dead, 1);
    for _ in 0..2 {
        let dlq_message = within("the dead letter arrives", next(&dead)).await;
        assert_eq!(dlq_message.headers["bus-dlq-reason"], b"too_large");
        assert!(is_large(id_of(&dlq_message.body)));
    }
    // From the first refusal on everything is in the order of the source.
    publish(1_000..2_000).await;
    let source = plain.read(&inbox, 1);
    for _ in 0..1_000 {
        within("the source is read", next(&source)).await;
    }
    for _ in 1_000..2_000 {
        let expected = within("the source is read", next(&source)).await;
        let record = within("the message arrives", next(&events)).await;
        assert_eq!(id_of(&record.body), id_of(&expected.body));
    }
    bridge.stop().await;
}
