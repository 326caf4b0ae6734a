//! The whole path over real servers, between clients that know nothing of us.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt as _;
use rdkafka::consumer::StreamConsumer;
use serde_json::Value;
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named, program};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::plain::{Plain, Reply, nats_client, next, subscribed, unique};
use crate::trust::shell;

/// A request as a person writes it: the spaces must survive.
const REQUEST: &str = r#"{ "jsonrpc": "2.0", "id": "msg-101",  "method": "tools/call", "params": {"name": "weather", "_agentId": "weather", "x": 1.50} }"#;

fn result(request: &Value) -> Vec<String> {
    vec![format!(
        r#"{{"jsonrpc":"2.0","result":{{"temperature":22}},"id":{}}}"#,
        request["id"]
    )]
}

fn parts(request: &Value) -> Vec<String> {
    let part = |state: &str, last: bool| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"kind":"status-update","taskId":"t","status":{{"state":"{state}"}},"final":{last}}}}}"#,
            request["id"]
        )
    };
    vec![
        part("submitted", false),
        part("working", false),
        part("completed", true),
    ]
}

fn kafka_and_route(plain: &Plain, topic: &str, replies: &str) -> String {
    format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{}'] }} }}
routes: [{{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: kafka, topic: {topic} }}] }}]
calls: {{ reply_topic: {replies}, reply_partitions: 4 }}",
        plain.brokers
    )
}

fn assert_answered(answer: &support::running::Answered) {
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (200, "application/json"),
        "{}",
        answer.body
    );
    assert_eq!(
        answer.body,
        r#"{"jsonrpc":"2.0","result":{"temperature":22},"id":"msg-101"}"#
    );
}

/// A client of Kafka, a topic that a bridge reads, with these partitions, and a topic to which it publishes.
async fn in_and_out(kafka: &str, partitions: i32) -> (Plain, String, String) {
    let plain = Plain::new(kafka);
    let (inbox, outbox) = (unique("in"), unique("out"));
    plain.create(&inbox, partitions).await;
    plain.create(&outbox, 1).await;
    (plain, inbox, outbox)
}

/// A client of Kafka, the topic of an agent, and the name of a reply topic.
async fn agent_topics(kafka: &str) -> (Plain, String, String) {
    let plain = Plain::new(kafka);
    let (topic, replies) = (unique("agent"), unique("replies"));
    plain.create(&topic, 1).await;
    (plain, topic, replies)
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_json_rpc_on_kafka_reaches_kafka_and_nats_by_its_target() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (plain, inbox, outbox) = in_and_out(&kafka, 1).await;
    let dead = unique("dlq");
    let agent = nats_client(&nats).await;
    let mut subject = agent.subscribe(outbox.clone()).await.unwrap();
    subscribed(&agent).await;
    let bridge = Running::start(&format!(
        "
instance: test
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: kafka, topics: [{inbox}], group: {inbox}, dead_letter: {{ topic: {dead} }} }}]
routes:
  - name: weather
    when: {{ targetagent: weather }}
    to: [{{ transport: kafka, topic: {outbox} }}, {{ transport: nats, topic: {outbox} }}]
calls: {{ reply_topic: {dead}.replies, reply_partitions: 1 }}"
    ))
    .await;
    let headers = [
        ("traceparent", Some("00-1-2-01")),
        ("tracestate", None),
        ("baggage", Some("a=\u{e9}")),
        ("tenant", Some("t")),
        ("ce-id", Some("another")),
        ("Nats-Rollup", Some("all")),
    ];
    plain.publish_with(&inbox, &headers, REQUEST).await;

    let on_kafka = within("the record arrives", next(&plain.read(&outbox, 1))).await;
    assert_eq!(on_kafka.body, REQUEST.as_bytes());
    let on_nats = within("the message arrives", subject.next()).await.unwrap();
    assert_eq!(on_nats.payload, REQUEST.as_bytes());
    let nats_headers = on_nats.headers.unwrap();
    let origin = format!("k:{inbox}/0/0");
    let id = format!("{origin}#0");
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", id.as_str()),
        ("source", "/a2abus/test/in"),
        ("type", "org.apache.eventmesh.a2a.tools.call.req"),
        ("a2amethod", "tools/call"),
        ("mcptype", "request"),
        ("targetagent", "weather"),
        ("protocol", "A2A"),
        ("protocolversion", "2.0"),
        ("hops", "1"),
        ("origin", origin.as_str()),
    ] {
        let kafka_value = on_kafka
            .headers
            .get(&format!("ce_{name}"))
            .map(Vec::as_slice);
        assert_eq!(kafka_value, Some(value.as_bytes()), "ce_{name}");
        let nats_value = nats_headers
            .get(format!("ce-{name}").as_str())
            .map(async_nats::HeaderValue::as_str);
        assert_eq!(nats_value, Some(value), "ce-{name}");
    }
    assert_eq!(on_kafka.headers["content-type"], b"application/json");
    // Trace headers are passed on, if the bus can carry them, and no other headers.
    assert_eq!(on_kafka.headers["traceparent"], b"00-1-2-01");
    assert_eq!(on_kafka.headers["baggage"], "a=\u{e9}".as_bytes());
    let on_nats = |name: &str| nats_headers.get(name).map(async_nats::HeaderValue::as_str);
    assert_eq!(on_nats("traceparent"), Some("00-1-2-01"));
    for name in ["tracestate", "baggage", "tenant", "Nats-Rollup"] {
        assert_eq!(on_nats(name), None, "{name}");
    }
    for name in ["tenant", "ce-id", "Nats-Rollup"] {
        assert!(!on_kafka.headers.contains_key(name), "{name}");
    }
    bridge.stop().await;
}

/// A bridge without routes, another client of its bus, the topic that it reads, and its dead letters.
async fn without_routes(kafka: &str, more: &str) -> (Running, Plain, String, StreamConsumer) {
    let plain = Plain::new(kafka);
    let (inbox, dead) = (unique("in"), unique("dlq"));
    plain.create(&inbox, 1).await;
    plain.create(&dead, 1).await;
    let bridge = Running::start(&format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}']{more} }} }}
bindings: [{{ name: in, transport: kafka, topics: [{inbox}], group: {inbox}, dead_letter: {{ topic: {dead} }} }}]
calls: {{ reply_topic: {dead}.replies, reply_partitions: 1 }}"
    ))
    .await;
    let consumer = plain.read(&dead, 1);
    (bridge, plain, inbox, consumer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_cannot_be_mapped_or_routed_becomes_a_dead_letter_with_its_bytes() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (bridge, plain, inbox, consumer) = without_routes(&kafka, "").await;
    for (body, reason) in [
        ("{\"jsonrpc\":", "not_json"),
        (REQUEST, "no_route"),
        ("[1]", "not_an_object"),
    ] {
        plain.publish(&inbox, None, body).await;
        let dlq_message = within("the dead letter arrives", next(&consumer)).await;
        assert_eq!(
            String::from_utf8_lossy(&dlq_message.headers["bus-dlq-reason"]),
            reason
        );
        let expected = if reason == "not_an_object" { "1" } else { body };
        assert_eq!(String::from_utf8_lossy(&dlq_message.body), expected);
        assert!(dlq_message.headers.contains_key("bus-dlq-origin"));
    }
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_no_topic_accepts_does_not_delay_the_next() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (bridge, plain, inbox, consumer) =
        without_routes(&kafka, ", max_message_bytes: 2000").await;
    plain.publish(&inbox, None, &"x".repeat(3_000)).await;
    let batch = format!("[{REQUEST} , 7]");
    plain.publish(&inbox, None, &batch).await;

    let large = within("the dead letter arrives", next(&consumer)).await;
    assert_eq!(large.headers["bus-dlq-reason"], b"not_json");
    assert_eq!(
        large.headers["bus-dlq-origin"],
        format!("k:{inbox}/0/0").as_bytes()
    );
    let omitted = String::from_utf8_lossy(&large.headers["bus-dlq-omitted"]).into_owned();
    assert!(omitted.starts_with("3000 bytes: "), "{omitted}");
    assert!(large.body.is_empty());
    // For a batch, each dead letter contains its own unit.
    for (body, reason) in [(REQUEST, "no_route"), ("7", "not_an_object")] {
        let dlq_message = within("the dead letter arrives", next(&consumer)).await;
        assert_eq!(dlq_message.headers["bus-dlq-reason"], reason.as_bytes());
        assert_eq!(dlq_message.body, body.as_bytes());
    }
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_topic_that_was_there_before_is_used_with_the_partitions_it_has() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    plain.create(&replies, 1).await;
    let agent = plain.agent(&topic, Reply::AsAsked, result);
    let bridge = Running::start(&kafka_and_route(&plain, &topic, &replies)).await;
    assert_answered(&within("the answer", bridge.post("/rpc", REQUEST)).await);
    bridge.stop().await;
    agent.abort();
}

/// Without a bridge nobody forwards misplaced answers; beside one, each of them arrives twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_shell_is_answered_in_any_partition() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    plain.create(&replies, 16).await;
    let agent = plain.agent(&topic, Reply::Partition(5), parts);
    let directory = tempfile::tempdir().unwrap();
    let (file, config) = (
        directory.path().join("a2abus.yaml"),
        kafka_and_route(&plain, &topic, &replies),
    );
    std::fs::write(&file, &config).unwrap();
    let params =
        r#"{"message":{"role":"user","messageId":"m","parts":[{"kind":"text","text":"x"}]}}"#;
    let call = async || {
        let printed = shell(&file, &["weather", "message/stream", params]).await;
        let states = ["working", "completed"];
        states.map(|state| printed.matches(&format!(r#""state":"{state}""#)).count())
    };
    assert_eq!(call().await, [1, 1]);
    let bridge = Running::start(&config).await;
    // Its reader of misplaced answers has joined its group.
    let stream =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{params}}}"#);
    let answer = within("the answer", bridge.post("/rpc/weather", stream)).await;
    assert!(answer.body.contains("completed"), "{}", answer.body);
    for _ in 0..3 {
        assert_eq!(call().await, [1, 1]);
    }
    bridge.stop().await;
    agent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_shell_waits_no_longer_than_its_timeout() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    plain.create(&replies, 4).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, kafka_and_route(&plain, &topic, &replies)).unwrap();
    // A machine with much to do may need all of a short time to connect.
    for time in ["1s", "4s", "16s"] {
        let mut call = Command::new(program());
        call.args(["call", "-t", time, "-c"]).arg(&file);
        call.args(["weather", "tools/call"]).stdin(Stdio::null());
        let output = within("the call ends", call.kill_on_drop(true).output()).await;
        let output = output.unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        if told.starts_with("a2abus: no answer from agent \"weather\" within ") {
            return;
        }
        let not_connected = format!("a2abus: not connected within {time}: ");
        assert!(told.starts_with(&not_connected), "{told}");
    }
    panic!("it never connected");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_kafka_is_answered_by_plain_json_rpc() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    for reply in [Reply::AsAsked, Reply::AnyPartition] {
        let (plain, topic, replies) = agent_topics(&kafka).await;
        let agent = plain.agent(&topic, reply, result);
        let bridge = Running::start(&kafka_and_route(&plain, &topic, &replies)).await;
        for _ in 0..8 {
            assert_answered(&within("the answer", bridge.post("/rpc", REQUEST)).await);
        }
        bridge.stop().await;
        agent.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_call_over_kafka_comes_in_parts() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    let agent = plain.agent(&topic, Reply::AsAsked, parts);
    let bridge = Running::start(&kafka_and_route(&plain, &topic, &replies)).await;
    let body =
        r#"{"jsonrpc":"2.0","id":7.0,"method":"message/stream","params":{"_agentId":"weather"}}"#;
    let answer = within("the answer", bridge.post("/rpc", body)).await;
    assert_eq!(answer.content_type, "text/event-stream");
    let parts = answer.events();
    assert_eq!(parts.len(), 3, "{}", answer.body);
    assert!(
        parts.iter().all(|part| part.contains(r#""id":7.0,"#)),
        "{}",
        answer.body
    );
    assert!(parts[2].contains(r#""final":true"#));
    bridge.stop().await;
    agent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_nats_is_answered_by_respond() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("agent");
    let agent = nats_client(&nats).await;
    let mut requests = agent.subscribe(subject.clone()).await.unwrap();
    subscribed(&agent).await;
    let serving = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let body = serde_json::from_slice(&request.payload).unwrap();
            for answer in result(&body) {
                agent
                    .publish(request.reply.clone().unwrap(), answer.into())
                    .await
                    .unwrap();
            }
        }
    });
    let bridge = Running::start(&format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
routes:
  - {{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {subject} }}] }}
  - {{ name: nobody, when: {{ targetagent: nobody }}, to: [{{ transport: nats, topic: {subject}.nobody }}] }}
calls: {{ reply_topic: {subject}.replies }}"
    ))
    .await;
    for _ in 0..8 {
        assert_answered(&within("the answer", bridge.post("/rpc", REQUEST)).await);
    }
    let nobody = REQUEST.replace(r#""_agentId": "weather""#, r#""_agentId": "nobody""#);
    let answer = within(
        "a refusal without waiting for the deadline",
        bridge.post("/rpc", nobody),
    )
    .await;
    assert!(
        answer.body.contains(r#""code":-32603"#) && answer.body.contains("agent_unavailable"),
        "{}",
        answer.body
    );
    let why = format!("nothing subscribes to NATS subject {subject}.nobody");
    assert!(answer.body.contains(&why), "{}", answer.body);
    bridge.stop().await;
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_read_by_another_bridge_are_forwarded() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    let responses = unique("responses");
    plain.create(&responses, 4).await;
    let agent = plain.agent(&topic, Reply::Topic(responses.clone()), result);
    let config = format!(
        "{}
bindings: [{{ name: responses, role: responses, transport: kafka, topics: [{responses}], group: {responses} }}]",
        kafka_and_route(&plain, &topic, &replies)
    );
    let (first, second) = (Running::start(&config).await, Running::start(&config).await);
    for _ in 0..16 {
        assert_answered(&within("the answer", first.post("/rpc", REQUEST)).await);
        assert_answered(&within("the answer", second.post("/rpc", REQUEST)).await);
    }
    let forwarded = |bridge: &Running| {
        bridge.metrics.render().unwrap().lines().any(|line| {
            line.starts_with("a2abus_replies_total{outcome=\"forwarded\"}") && !line.ends_with(" 0")
        })
    };
    assert!(
        forwarded(&first) || forwarded(&second),
        "no answer landed on the other bridge"
    );
    first.stop().await;
    second.stop().await;
    agent.abort();
}

/// One replica knows the partitions that the reply topic had, another one those that it has.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_a_reply_topic_that_grows_and_send_no_answer_to_and_fro() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, topic, replies) = agent_topics(&kafka).await;
    plain.create(&replies, 1).await;
    let config = kafka_and_route(&plain, &topic, &replies);
    let first = Running::start(&config).await;
    plain.grow(&replies, 8).await;
    let second = Running::start(&config).await;
    // It ignores the partition that a request names.
    let agent = plain.agent(&topic, Reply::AnyPartition, result);
    let (mut posted, mut in_a_row) = (0, 0);
    within("both replicas know where answers belong", async {
        while in_a_row < 16 {
            for bridge in [&first, &second] {
                let answer = bridge.post_within("/rpc", REQUEST, Some(3_000)).await;
                posted += 1;
                in_a_row = if answer.status == 200 {
                    in_a_row + 1
                } else {
                    0
                };
            }
        }
    })
    .await;
    let count = |bridge: &Running, outcome: &str| -> u64 {
        let series = format!("a2abus_replies_total{{outcome=\"{outcome}\"}} ");
        let text = bridge.metrics.render().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(&series));
        value.unwrap().parse().unwrap()
    };
    let sent: u64 = [&first, &second]
        .map(|bridge| count(bridge, "forwarded"))
        .iter()
        .sum();
    assert!(sent <= 2 * posted, "{sent} forwarded of {posted}");
    first.stop().await;
    second.stop().await;
    agent.abort();
}

/// Events in flight when something dies.
const LOAD: usize = 500;

fn event(number: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{{"_agentId":"weather"}}}}"#
    )
}

async fn publish_load(plain: &Plain, topic: &str) {
    let sent =
        (0..LOAD).map(|number| async move { plain.publish(topic, None, &event(number)).await });
    futures_util::future::join_all(sent).await;
}

/// Reads until every event of the load was there; calls `after_some` once, on the way.
async fn read_load(plain: &Plain, topic: &str, after_some: impl Future<Output = ()>) {
    let consumer = plain.read(topic, 1);
    let mut missing: BTreeSet<String> = (0..LOAD).map(event).collect();
    let mut after_some = Some(after_some);
    while !missing.is_empty() {
        let record = within("every event arrives", next(&consumer)).await;
        missing.remove(&String::from_utf8(record.body).unwrap());
        if missing.len() < LOAD - 20
            && let Some(action) = after_some.take()
        {
            action.await;
        }
    }
}

fn load_config(kafka: &str, inbox: &str, outbox: &str) -> String {
    format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 6s }} }}
bindings: [{{ name: in, transport: kafka, topics: [{inbox}], group: {inbox}, workers: 2, dead_letter: {{ topic: {inbox}.dlq }} }}]
routes: [{{ name: weather, when: {{ targetagent: weather }}, to: [{{ transport: kafka, topic: {outbox} }}] }}]
calls: {{ enabled: false }}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_under_load_loses_nothing() {
    if named(Kind::Kafka).is_none() {
        return;
    }
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let (plain, inbox, outbox) = in_and_out(&broker.address(), 4).await;
    publish_load(&plain, &inbox).await;
    let bridge = Running::launch(&load_config(&broker.address(), &inbox, &outbox)).await;
    read_load(&plain, &outbox, async {
        broker.kill().await;
        broker.start().await;
        publish_load(&plain, &inbox).await;
    })
    .await;
    bridge.stop().await;
}

pub(crate) fn serve(config: &std::path::Path) -> Child {
    Command::new(program())
        .args(["serve", "-c"])
        .arg(config)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_is_killed_under_load_loses_nothing() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, inbox, outbox) = in_and_out(&kafka, 4).await;
    publish_load(&plain, &inbox).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2abus.yaml");
    let config = load_config(&kafka, &inbox, &outbox);
    std::fs::write(
        &file,
        format!("{config}\nhttp: {{ enabled: false }}\nadmin: {{ enabled: false }}\n"),
    )
    .unwrap();
    let mut first = serve(&file);
    let mut second = None;
    read_load(&plain, &outbox, async {
        first.kill().await.unwrap();
        publish_load(&plain, &inbox).await;
        second = Some(serve(&file));
    })
    .await;
    if let Some(mut second) = second {
        second.kill().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_whose_group_has_no_partition_left_for_it_is_ready() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, inbox, outbox) = in_and_out(&kafka, 1).await;
    let config = load_config(&kafka, &inbox, &outbox);
    // Starting waits until it is ready.
    let first = Running::start(&config).await;
    let second = Running::start(&config).await;
    first.stop().await;
    plain.publish(&inbox, None, REQUEST).await;
    let record = within("the record arrives", next(&plain.read(&outbox, 1))).await;
    assert_eq!(record.body, REQUEST.as_bytes());
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_with_the_instance_id_of_another_is_no_longer_ready() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (_, inbox, outbox) = in_and_out(&kafka, 1).await;
    let config = format!(
        "
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'], instance_id: {inbox}, session_timeout: 6s }} }}
bindings: [{{ name: in, transport: bus, topics: ['{inbox}'], group: {inbox}, dead_letter: {{ topic: {inbox}.dlq }} }}]
default_route: [{{ transport: bus, topic: {outbox} }}]
calls: {{ enabled: false }}
"
    );
    let first = Running::start(&config).await;
    let second = Running::launch(&config).await;
    within("the first says why it reads nothing", async {
        while !format!("{:?}", first.report()).contains("instance_id") {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!first.report().ready, "{:?}", first.report());
    first.stop().await;
    second.stop().await;
}
